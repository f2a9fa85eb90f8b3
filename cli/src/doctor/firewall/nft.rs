// SPDX-License-Identifier: GPL-2.0

//! Evaluates the rules of nftables, in the form of libnftables-json(5), for one packet.

use std::{collections::HashMap, net::IpAddr};

use serde_json::Value;

use super::{Action, Chain, Direction, Matches, Packet, Rule, Table};
use crate::doctor::ROCE_PORT;

/// Statements of rules that neither match nor give a verdict.
const NEUTRAL: [&str; 8] = [
    "counter",
    "log",
    "mangle",
    "notrack",
    "flow",
    "set",
    "comment",
    "ct helper",
];

/// Elements of named sets and maps, by family, table and name.
type Sets<'a> = HashMap<(&'a str, &'a str, &'a str), &'a Value>;

/// The rules and a packet.
struct Context<'a> {
    sets: Sets<'a>,
    packet: &'a Packet<'a>,
}

/// Returns the chains that matter for the packet, by table.
pub(super) fn tables(ruleset: &Value, packet: &Packet<'_>) -> Vec<Table> {
    let empty = Vec::new();
    let objects = ruleset
        .get("nftables")
        .and_then(Value::as_array)
        .unwrap_or(&empty);
    let mut context = Context {
        sets: Sets::new(),
        packet,
    };
    for set in objects
        .iter()
        .filter_map(|each| each.get("set").or_else(|| each.get("map")))
    {
        if let Some(elements) = set.get("elem") {
            context.sets.insert(
                (text(set, "family"), text(set, "table"), text(set, "name")),
                elements,
            );
        }
    }
    let mut tables: HashMap<(&str, &str), Table> = HashMap::new();
    for chain in objects.iter().filter_map(|each| each.get("chain")) {
        let key = (text(chain, "family"), text(chain, "table"));
        tables
            .entry(key)
            .or_default()
            .insert(text(chain, "name").to_owned(), convert(chain, packet));
    }
    for rule in objects.iter().filter_map(|each| each.get("rule")) {
        let key = (text(rule, "family"), text(rule, "table"));
        let chain = tables
            .get_mut(&key)
            .and_then(|table| table.get_mut(text(rule, "chain")));
        if let Some(chain) = chain {
            chain.rules.extend(context.rules(rule, key));
        }
    }
    let mut tables: Vec<_> = tables.into_iter().collect();
    tables.sort_by_key(|(key, _)| *key);
    tables.into_iter().map(|(_, table)| table).collect()
}

/// Returns the text of a field, or an empty text.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns a chain without its rules.
fn convert(chain: &Value, packet: &Packet<'_>) -> Chain {
    let (family, table, name) = (
        text(chain, "family"),
        text(chain, "table"),
        text(chain, "name"),
    );
    let version = if packet.is_v6 { "ip6" } else { "ip" };
    let hooks: &[&str] = match packet.direction {
        Direction::In => &["ingress", "prerouting", "input"],
        Direction::Out => &["output", "postrouting"],
    };
    let is_ours = match family {
        "inet" => true,
        "netdev" => text(chain, "dev") == packet.netdev,
        family => family == version,
    };
    Chain {
        name: format!("{family} {table} {name}"),
        is_base: is_ours && hooks.contains(&text(chain, "hook")),
        drops_by_policy: text(chain, "policy") == "drop",
        rules: Vec::new(),
        command: format!("nft insert rule {family} {table} {name} udp dport {ROCE_PORT} accept"),
    }
}

impl Context<'_> {
    /// Returns the rules that a rule of nftables stands for: one for each verdict that its map or
    /// its statement has.
    fn rules(&self, rule: &Value, table: (&str, &str)) -> Vec<Rule> {
        let mut matches = Matches::Yes;
        for statement in rule
            .get("expr")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            if let Some(condition) = statement.get("match") {
                matches = matches.and(self.condition(condition, table));
            } else if let Some(map) = statement.get("vmap") {
                return self.map(map, matches, table);
            } else if let Some(action) = action(statement) {
                return vec![Rule { matches, action }];
            } else if !is_neutral(statement) {
                matches = matches.and(Matches::Unknown);
            }
        }
        Vec::new()
    }

    /// Returns a rule for each entry of a verdict map.
    fn map(&self, map: &Value, matches: Matches, table: (&str, &str)) -> Vec<Rule> {
        let (Some(key), Some(data)) = (map.get("key"), map.get("data")) else {
            return Vec::new();
        };
        let entries = self.elements(data, table);
        let convert = |entry: &Value| {
            let matches = matches.and(self.compare(key, entry.get(0)?, table));
            let action = action(entry.get(1)?)?;
            Some(Rule { matches, action })
        };
        entries.into_iter().filter_map(convert).collect()
    }

    /// Evaluates a match statement.
    fn condition(&self, condition: &Value, table: (&str, &str)) -> Matches {
        let (Some(left), Some(right)) = (condition.get("left"), condition.get("right")) else {
            return Matches::Unknown;
        };
        if lacks_socket(left) {
            return Matches::No;
        }
        match text(condition, "op") {
            "==" | "in" => self.compare(left, right, table),
            "!=" => self.compare(left, right, table).not(),
            _ => Matches::Unknown,
        }
    }

    /// Returns the elements of a set, whether it is anonymous or named.
    fn elements<'b>(&'b self, set: &'b Value, (family, name): (&str, &str)) -> Vec<&'b Value> {
        let named = set.as_str().and_then(|text| text.strip_prefix('@'));
        let found = match named {
            Some(set) => self.sets.get(&(family, name, set)).copied(),
            None => set.get("set").or(Some(set)),
        };
        match found {
            Some(Value::Array(elements)) => elements.iter().collect(),
            Some(other) => vec![other],
            None => Vec::new(),
        }
    }

    /// Compares an expression with a value or a set.
    fn compare(&self, left: &Value, right: &Value, table: (&str, &str)) -> Matches {
        let is_set = right.get("set").is_some() || right.is_array();
        if is_set || right.as_str().is_some_and(|text| text.starts_with('@')) {
            let elements = self.elements(right, table);
            let each = elements
                .into_iter()
                .map(|element| self.compare_one(left, element));
            return each.fold(Matches::No, Matches::or);
        }
        self.compare_one(left, right)
    }

    /// Compares an expression with one value. Elements with a comment or a timeout are objects.
    fn compare_one(&self, left: &Value, right: &Value) -> Matches {
        let right = right
            .get("elem")
            .and_then(|elem| elem.get("val"))
            .unwrap_or(right);
        if let Some(payload) = left.get("payload") {
            return self.payload(text(payload, "protocol"), text(payload, "field"), right);
        }
        if let Some(meta) = left.get("meta") {
            return self.meta(text(meta, "key"), right);
        }
        match left.get("ct").map(|ct| text(ct, "key")) {
            // Packets of both directions have the same destination port, so that conntrack sees
            // no response, and each packet is new.
            Some("state") => Matches::from(right.as_str() == Some("new")),
            _ => Matches::Unknown,
        }
    }

    fn payload(&self, protocol: &str, field: &str, right: &Value) -> Matches {
        let version = if self.packet.is_v6 { "ip6" } else { "ip" };
        match (protocol, field) {
            ("udp" | "th", "dport") => number(right, ROCE_PORT),
            ("udp" | "th", _) => Matches::Unknown,
            ("ip", "protocol") | ("ip6", "nexthdr") if protocol == version => is_udp(right),
            ("ip" | "ip6", _) if protocol == version => self.ip_field(field, right),
            ("ether" | "vlan", _) => Matches::Unknown,
            _ => Matches::No,
        }
    }

    /// Compares a field of the IP header. Only the peer's address may be known.
    fn ip_field(&self, field: &str, right: &Value) -> Matches {
        let is_peer = match self.packet.direction {
            Direction::In => field == "saddr",
            Direction::Out => field == "daddr",
        };
        match self.packet.peer.filter(|_| is_peer) {
            Some(peer) => address(right, peer),
            None => Matches::Unknown,
        }
    }

    fn meta(&self, key: &str, right: &Value) -> Matches {
        let is_name = || name(right, self.packet.netdev);
        let is_text =
            |v4, v6| Matches::from(right.as_str() == Some(if self.packet.is_v6 { v6 } else { v4 }));
        match (key, self.packet.direction) {
            ("l4proto", _) => is_udp(right),
            ("iif" | "iifname", Direction::In) | ("oif" | "oifname", Direction::Out) => is_name(),
            ("iif" | "iifname" | "oif" | "oifname", _) => Matches::No,
            ("nfproto", _) => is_text("ipv4", "ipv6"),
            ("protocol", _) => is_text("ip", "ip6"),
            ("mark", _) => number(right, 0),
            _ => Matches::Unknown,
        }
    }
}

/// Returns whether an expression reads the socket of a packet. rrxe's packets have no socket, so
/// that such a rule matches none of them, whatever the operator.
fn lacks_socket(left: &Value) -> bool {
    let key = left.get("meta").map(|meta| text(meta, "key"));
    left.get("socket").is_some() || matches!(key, Some("skuid" | "skgid" | "cgroup"))
}

fn is_neutral(statement: &Value) -> bool {
    NEUTRAL.iter().any(|name| statement.get(name).is_some())
}

/// Returns the action of a verdict statement.
fn action(statement: &Value) -> Option<Action> {
    let target = |name: &str| Some(text(statement.get(name)?, "target").to_owned());
    let object = statement.as_object()?;
    if object.contains_key("accept") {
        return Some(Action::Accept);
    }
    if object.contains_key("drop") || object.contains_key("reject") {
        return Some(Action::Drop);
    }
    if object.contains_key("return") || object.contains_key("continue") {
        return Some(Action::Return);
    }
    target("jump")
        .map(Action::Jump)
        .or_else(|| target("goto").map(Action::Goto))
}

fn is_udp(right: &Value) -> Matches {
    Matches::from(right.as_str() == Some("udp") || right.as_u64() == Some(17))
}

/// Compares a number with a number or a range.
fn number(right: &Value, value: u16) -> Matches {
    let value = u64::from(value);
    let bound = |index: usize| right.get("range")?.get(index)?.as_u64();
    if let (Some(first), Some(last)) = (bound(0), bound(1)) {
        return Matches::from((first..=last).contains(&value));
    }
    match right.as_u64() {
        Some(number) => Matches::from(number == value),
        None => Matches::Unknown,
    }
}

/// Compares the name of a network device with a name, or with a beginning of names (`eth*`).
fn name(right: &Value, netdev: &str) -> Matches {
    match right.as_str() {
        Some(pattern) => Matches::from(match pattern.strip_suffix('*') {
            Some(beginning) => netdev.starts_with(beginning),
            None => netdev == pattern,
        }),
        None => Matches::Unknown,
    }
}

/// Compares an address with an address, a prefix or a range.
fn address(right: &Value, address: IpAddr) -> Matches {
    let parse = |value: Option<&Value>| value?.as_str()?.parse::<IpAddr>().ok();
    if let Some(prefix) = right.get("prefix") {
        let bits = prefix
            .get("len")
            .and_then(Value::as_u64)
            .and_then(|len| u32::try_from(len).ok());
        return match (parse(prefix.get("addr")), bits) {
            (Some(network), Some(bits)) => Matches::from(in_network(address, network, bits)),
            _ => Matches::Unknown,
        };
    }
    if let Some(range) = right.get("range") {
        return match (parse(range.get(0)), parse(range.get(1))) {
            (Some(first), Some(last)) => Matches::from((first..=last).contains(&address)),
            _ => Matches::Unknown,
        };
    }
    match parse(Some(right)) {
        Some(other) => Matches::from(other == address),
        None => Matches::Unknown,
    }
}

/// Returns whether the first `bits` bits of two addresses are equal.
pub(super) fn in_network(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let differing = match (address, network) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return false,
    };
    differing >= bits
}
