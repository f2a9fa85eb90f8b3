// SPDX-License-Identifier: GPL-2.0

//! Tables of rules, and whether they drop RoCE packets.

use serde_json::{json, Value};

use super::*;

/// A name, the policy of the input chain, its rules, those of the chain `other`, and whether they
/// drop packets.
type Case = (&'static str, &'static str, Vec<Value>, Vec<Value>, bool);

fn packet(direction: Direction) -> Packet<'static> {
    Packet {
        direction,
        is_v6: false,
        netdev: "eth0",
        peer: None,
    }
}

/// Returns a ruleset with an input chain and a chain `other`, which have these rules.
fn ruleset(policy: &str, input: &[Value], other: &[Value]) -> Rules {
    let mut objects = vec![
        json!({"chain": {"family": "inet", "table": "f", "name": "in", "hook": "input", "policy": policy}}),
        json!({"chain": {"family": "inet", "table": "f", "name": "other"}}),
        json!({"set": {"family": "inet", "table": "f", "name": "ports", "elem": [22, 4791]}}),
    ];
    for (chain, rules) in [("in", input), ("other", other)] {
        for rule in rules {
            objects.push(
                json!({"rule": {"family": "inet", "table": "f", "chain": chain, "expr": rule}}),
            );
        }
    }
    Rules {
        nft: json!({ "nftables": objects }),
        ..Rules::default()
    }
}

fn dport(right: Value) -> Value {
    json!({"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": right}})
}

fn equal(left: Value, right: Value) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right}})
}

fn meta(key: &str, right: Value) -> Value {
    equal(json!({"meta": {"key": key}}), right)
}

fn source(right: Value) -> Value {
    equal(
        json!({"payload": {"protocol": "ip", "field": "saddr"}}),
        right,
    )
}

#[test]
fn nft_rules_drop_roce_packets_or_not() {
    let drop = || json!({"drop": null});
    let accept = || json!({"accept": null});
    let state = |states: Value| equal(json!({"ct": {"key": "state"}}), states);
    let ssh = json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}});
    let jump = json!({"jump": {"target": "other"}});
    let cases: Vec<Case> = vec![
        ("no rule", "accept", vec![], vec![], false),
        ("the policy", "drop", vec![], vec![], true),
        (
            "the port",
            "accept",
            vec![json!([dport(json!(4791)), drop()])],
            vec![],
            true,
        ),
        (
            "another port",
            "accept",
            vec![json!([dport(json!(53)), drop()])],
            vec![],
            false,
        ),
        (
            "a range",
            "accept",
            vec![json!([dport(json!({"range": [4000, 5000]})), drop()])],
            vec![],
            true,
        ),
        (
            "an anonymous set",
            "accept",
            vec![json!([dport(json!({"set": [53, 4791]})), drop()])],
            vec![],
            true,
        ),
        (
            "a named set",
            "accept",
            vec![json!([dport(json!("@ports")), drop()])],
            vec![],
            true,
        ),
        (
            "reject",
            "accept",
            vec![json!([dport(json!(4791)), {"reject": {"type": "icmp"}}])],
            vec![],
            true,
        ),
        (
            "a counter before",
            "accept",
            vec![json!([dport(json!(4791)), {"counter": {"packets": 0}}, drop()])],
            vec![],
            true,
        ),
        (
            "accepted before",
            "drop",
            vec![json!([dport(json!(4791)), accept()])],
            vec![],
            false,
        ),
        (
            "accepted too late",
            "accept",
            vec![json!([drop()]), json!([dport(json!(4791)), accept()])],
            vec![],
            true,
        ),
        (
            "accepted by protocol",
            "drop",
            vec![json!([meta("l4proto", json!("udp")), accept()])],
            vec![],
            false,
        ),
        (
            "tcp accepted",
            "drop",
            vec![json!([ssh, accept()])],
            vec![],
            true,
        ),
        (
            "established accepted",
            "drop",
            vec![json!([state(json!(["established", "related"])), accept()])],
            vec![],
            true,
        ),
        (
            "new accepted",
            "drop",
            vec![json!([state(json!("new")), accept()])],
            vec![],
            false,
        ),
        (
            "another netdev accepted",
            "drop",
            vec![json!([meta("iifname", json!("lo")), accept()])],
            vec![],
            true,
        ),
        (
            "the netdev accepted",
            "drop",
            vec![json!([meta("iifname", json!("eth*")), accept()])],
            vec![],
            false,
        ),
        (
            "some source accepted",
            "drop",
            vec![json!([source(json!("10.0.0.1")), accept()])],
            vec![],
            false,
        ),
        (
            "some source dropped",
            "accept",
            vec![json!([source(json!("10.0.0.1")), drop()])],
            vec![],
            false,
        ),
        (
            "a socket's packets",
            "accept",
            vec![json!([meta("cgroup", json!(0)), drop()])],
            vec![],
            false,
        ),
        (
            "a jump that drops",
            "accept",
            vec![json!([jump])],
            vec![json!([dport(json!(4791)), drop()])],
            true,
        ),
        (
            "a jump that returns",
            "drop",
            vec![json!([jump]), json!([accept()])],
            vec![json!([{"return": null}]), json!([drop()])],
            false,
        ),
        (
            "an unknown extension",
            "drop",
            vec![json!([{"xt": {"type": "match", "name": "x"}}, accept()])],
            vec![],
            false,
        ),
        (
            "a verdict map",
            "accept",
            vec![
                json!([{"vmap": {"key": {"payload": {"protocol": "udp", "field": "dport"}}, "data": {"set": [[53, accept()], [4791, drop()]]}}}]),
            ],
            vec![],
            true,
        ),
    ];
    for (name, policy, input, other, drops) in cases {
        let rules = ruleset(policy, &input, &other);
        assert_eq!(
            culprit(&rules, &packet(Direction::In)).is_some(),
            drops,
            "{name}"
        );
        assert_eq!(
            culprit(&rules, &packet(Direction::Out)),
            None,
            "{name}, outgoing"
        );
    }
}

#[test]
fn the_address_of_a_known_peer_is_compared() {
    let network = json!({"prefix": {"addr": "10.0.0.0", "len": 8}});
    let rules = ruleset("accept", &[json!([source(network), {"drop": null}])], &[]);
    for (address, drops) in [("10.1.2.3", true), ("11.1.2.3", false)] {
        let peer = Some(address.parse().unwrap());
        let packet = Packet {
            peer,
            ..packet(Direction::In)
        };
        assert_eq!(culprit(&rules, &packet).is_some(), drops, "{address}");
    }
}

#[test]
fn iptables_rules_drop_roce_packets_or_not() {
    for (name, lines, drops) in [
        ("no rule", ":INPUT ACCEPT [0:0]", false),
        ("the policy", ":INPUT DROP [0:0]", true),
        (
            "the port",
            ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m udp --dport 4791 -j DROP",
            true,
        ),
        (
            "another port",
            ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m udp --dport 53 -j DROP",
            false,
        ),
        (
            "several ports",
            ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m multiport --dports 53,4000:5000 -j REJECT",
            true,
        ),
        (
            "all but tcp",
            ":INPUT ACCEPT [0:0]\n-A INPUT ! -p tcp -j DROP",
            true,
        ),
        (
            "accepted before",
            ":INPUT DROP [0:0]\n-A INPUT -p udp -j ACCEPT",
            false,
        ),
        (
            "lo accepted",
            ":INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT",
            true,
        ),
        (
            "established accepted",
            ":INPUT DROP [0:0]\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            true,
        ),
        (
            "a source accepted",
            ":INPUT DROP [0:0]\n-A INPUT -s 10.0.0.0/8 -j ACCEPT",
            false,
        ),
        (
            "a comment",
            ":INPUT ACCEPT [0:0]\n-A INPUT -m comment --comment \"no -j ACCEPT\" -j DROP",
            true,
        ),
        (
            "a chain",
            ":INPUT ACCEPT [0:0]\n:c - [0:0]\n-A INPUT -j c\n-A c -p udp -j DROP",
            true,
        ),
        (
            "a log target",
            ":INPUT ACCEPT [0:0]\n-A INPUT -j LOG --log-prefix x",
            false,
        ),
        (
            "a users' rule",
            ":OUTPUT ACCEPT [0:0]\n-A INPUT -m owner --uid-owner 5 -j DROP",
            false,
        ),
        (
            "an outgoing rule",
            ":OUTPUT ACCEPT [0:0]\n-A OUTPUT -p udp --dport 4791 -j DROP",
            false,
        ),
    ] {
        let rules = Rules {
            iptables: vec![(false, format!("*filter\n{lines}\nCOMMIT\n"))],
            ..Rules::default()
        };
        assert_eq!(
            culprit(&rules, &packet(Direction::In)).is_some(),
            drops,
            "{name}"
        );
    }
}

#[test]
fn a_culprit_is_named_with_a_command_that_lets_packets_pass() {
    let rules = Rules {
        iptables: vec![(false, "*filter\n:OUTPUT DROP [0:0]\nCOMMIT\n".to_owned())],
        ..Rules::default()
    };
    let seen = culprit(&rules, &packet(Direction::Out)).unwrap();
    assert_eq!(seen.rule, "the policy of chain OUTPUT of iptables");
    assert!(seen
        .remedy
        .contains("iptables -t filter -I OUTPUT -p udp --dport 4791 -j ACCEPT"));
}

#[test]
fn a_loop_of_chains_ends_without_a_verdict() {
    let jump = json!([{"jump": {"target": "other"}}]);
    let rules = ruleset("drop", &[jump.clone()], &[jump]);
    assert_eq!(culprit(&rules, &packet(Direction::In)), None);
}
