// SPDX-License-Identifier: GPL-2.0

//! Evaluates the rules of iptables and ip6tables, as `iptables-save` prints them, for one packet.

use std::net::IpAddr;

use super::{nft::in_network, Action, Chain, Direction, Matches, Packet, Rule, Table};
use crate::doctor::ROCE_PORT;

/// Returns the tables of the text, with their rules evaluated for the packet.
pub(super) fn tables(text: &str, packet: &Packet<'_>) -> Vec<Table> {
    let (mut tables, mut table, mut name) = (Vec::new(), Table::new(), "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix('*') {
            name = rest;
        } else if let Some(rest) = line.strip_prefix(':') {
            add_chain(&mut table, rest, name, packet);
        } else if let Some(rest) = line.strip_prefix("-A ") {
            add_rule(&mut table, rest, packet);
        } else if line == "COMMIT" {
            tables.push(std::mem::take(&mut table));
        }
    }
    tables
}

/// Adds a chain, for example `INPUT DROP [0:0]`.
fn add_chain(table: &mut Table, text: &str, table_name: &str, packet: &Packet<'_>) {
    let mut words = text.split_whitespace();
    let (name, policy) = (words.next().unwrap_or_default(), words.next());
    let hooks = match packet.direction {
        Direction::In => ["PREROUTING", "INPUT"],
        Direction::Out => ["OUTPUT", "POSTROUTING"],
    };
    let program = if packet.is_v6 {
        "ip6tables"
    } else {
        "iptables"
    };
    let chain = Chain {
        name: format!("{name} of {program}"),
        is_base: policy != Some("-") && hooks.contains(&name),
        drops_by_policy: policy == Some("DROP"),
        rules: Vec::new(),
        command: format!(
            "{program} -t {table_name} -I {name} -p udp --dport {ROCE_PORT} -j ACCEPT"
        ),
    };
    table.insert(name.to_owned(), chain);
}

/// Adds a rule, for example `INPUT -p udp -m udp --dport 4791 -j DROP`.
fn add_rule(table: &mut Table, text: &str, packet: &Packet<'_>) {
    let words = split(text);
    let Some((name, options)) = words.split_first() else {
        return;
    };
    let rule = evaluate(options, packet);
    if let (Some(chain), Some(rule)) = (table.get_mut(name), rule) {
        chain.rules.push(rule);
    }
}

/// Splits a line into words. Quotes keep blanks in a word.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for character in text.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
            other => word.push(other),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Evaluates the options of a rule. Returns `None` if its target does not decide on the packet, and
/// neither leads to another chain nor returns from one.
fn evaluate(options: &[String], packet: &Packet<'_>) -> Option<Rule> {
    let mut matches = Matches::Yes;
    let mut words = options.iter().map(String::as_str).peekable();
    let mut is_negated = false;
    let mut action = None;
    while let Some(option) = words.next() {
        if option == "!" {
            is_negated = true;
            continue;
        }
        // After an option without a value comes `!`, another option, or the end of the rule.
        let value = words.next_if(|word| !word.starts_with('-') && *word != "!");
        match (option, value) {
            ("-j", Some(target)) => action = target_action(target),
            ("-g", Some(target)) => action = Some(Action::Goto(target.to_owned())),
            _ if action.is_some() => {}
            _ => {
                let one = condition(option, value, packet);
                matches = matches.and(if is_negated { one.not() } else { one });
            }
        }
        is_negated = false;
    }
    action.map(|action| Rule { matches, action })
}

fn target_action(target: &str) -> Option<Action> {
    match target {
        "ACCEPT" => Some(Action::Accept),
        "DROP" | "REJECT" => Some(Action::Drop),
        "RETURN" => Some(Action::Return),
        // A target in capitals is taken for an extension, which changes or logs packets, and any
        // other target for the name of a chain.
        other
            if other
                .chars()
                .all(|each| each.is_ascii_uppercase() || each.is_ascii_digit()) =>
        {
            None
        }
        chain => Some(Action::Jump(chain.to_owned())),
    }
}

/// Evaluates one option of a rule.
fn condition(option: &str, value: Option<&str>, packet: &Packet<'_>) -> Matches {
    let value = value.unwrap_or_default();
    match option {
        "-p" => Matches::from(["udp", "17", "all"].contains(&value)),
        "--dport" | "--dports" => Matches::from(value.split(',').any(has_port)),
        "-i" => interface(value, packet, Direction::In),
        "-o" => interface(value, packet, Direction::Out),
        "-s" => network(value, packet, Direction::In),
        "-d" => network(value, packet, Direction::Out),
        // Conntrack sees no response to RoCE packets, so each of them is new.
        "--ctstate" | "--state" => Matches::from(value.split(',').any(|state| state == "NEW")),
        // rrxe's packets have no socket.
        "--uid-owner" | "--gid-owner" => Matches::No,
        "-m" | "--comment" => Matches::Yes,
        _ => Matches::Unknown,
    }
}

/// Returns whether a port or a range `first:last` contains the port of RoCE.
fn has_port(text: &str) -> bool {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&ROCE_PORT),
        _ => false,
    }
}

fn interface(pattern: &str, packet: &Packet<'_>, direction: Direction) -> Matches {
    Matches::from(
        packet.direction == direction
            && match pattern.strip_suffix('+') {
                Some(beginning) => packet.netdev.starts_with(beginning),
                None => packet.netdev == pattern,
            },
    )
}

/// Compares the address of the other host, which is the source of incoming packets and the
/// destination of outgoing ones.
fn network(text: &str, packet: &Packet<'_>, direction: Direction) -> Matches {
    let Some(peer) = packet.peer.filter(|_| packet.direction == direction) else {
        return Matches::Unknown;
    };
    let (network, bits) = text.split_once('/').unwrap_or((text, "128"));
    match (network.parse::<IpAddr>(), bits.parse()) {
        (Ok(network), Ok(bits)) => {
            let all = if packet.is_v6 { 128 } else { 32 };
            Matches::from(in_network(peer, network, std::cmp::min(bits, all)))
        }
        _ => Matches::Unknown,
    }
}
