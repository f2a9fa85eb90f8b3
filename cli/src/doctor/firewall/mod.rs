// SPDX-License-Identifier: GPL-2.0

//! Decides whether the firewall drops RoCE packets. Rules of nftables and of iptables are brought
//! into one form, and a packet walks through the chains of its hooks.
//!
//! A rule may match by facts that are unknown here, such as the addresses of other hosts. After
//! such a rule the verdict is uncertain, and an uncertain drop does not count.

use std::{collections::HashMap, net::IpAddr};

mod iptables;
mod nft;
#[cfg(test)]
mod tests;

/// Depth of nested chains at which a walk ends. The kernel allows 16.
const MAX_DEPTH: u32 = 16;

/// The rules of this network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// Output of `nft -j list ruleset`.
    pub(crate) nft: serde_json::Value,
    /// Outputs of `iptables-save` and the like, with whether they are for IPv6.
    pub(crate) iptables: Vec<(bool, String)>,
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// A RoCE packet: UDP with the destination port 4791.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) direction: Direction,
    pub(crate) is_v6: bool,
    /// Network device by which it comes in or goes out.
    pub(crate) netdev: &'a str,
    /// Address of the other host, if it is known.
    pub(crate) peer: Option<IpAddr>,
}

/// The rule or policy that drops a packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Culprit {
    /// Words for it, such as "a rule of chain INPUT".
    pub(crate) rule: String,
    /// A sentence that says how to let the packet pass.
    pub(crate) remedy: String,
}

/// Whether a rule matches a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Matches {
    No,
    Unknown,
    Yes,
}

impl Matches {
    fn from(is_match: bool) -> Self {
        if is_match {
            Self::Yes
        } else {
            Self::No
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Unknown,
        }
    }

    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::No, Self::No) => Self::No,
            _ => Self::Unknown,
        }
    }

    fn not(self) -> Self {
        match self {
            Self::No => Self::Yes,
            Self::Unknown => Self::Unknown,
            Self::Yes => Self::No,
        }
    }
}

/// Action of a rule on a matching packet.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Action {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// A rule, evaluated for one packet.
#[derive(Clone, Debug)]
struct Rule {
    matches: Matches,
    action: Action,
}

/// A chain, evaluated for one packet.
#[derive(Clone, Debug, Default)]
struct Chain {
    /// Its name, with family and table.
    name: String,
    /// Whether the packet enters the firewall by this chain.
    is_base: bool,
    drops_by_policy: bool,
    rules: Vec<Rule>,
    /// Words for the table in a command that adds a rule.
    command: String,
}

/// Chains of one table, by their names in jumps.
type Table = HashMap<String, Chain>;

/// Result of a chain for a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Accept,
    Drop,
    Continue,
}

/// Result of a walk through a chain. If the walk is not certain, rules with unknown matches may
/// have given another verdict.
struct Walk {
    verdict: Verdict,
    is_certain: bool,
}

/// Returns the rule or policy that certainly drops a packet.
pub(crate) fn culprit(rules: &Rules, packet: &Packet<'_>) -> Option<Culprit> {
    let mut tables = nft::tables(&rules.nft, packet);
    for (is_v6, text) in &rules.iptables {
        if *is_v6 == packet.is_v6 {
            tables.extend(iptables::tables(text, packet));
        }
    }
    tables.iter().find_map(dropping_chain)
}

/// Returns the culprit if a base chain of the table drops the packet.
fn dropping_chain(table: &Table) -> Option<Culprit> {
    let mut chains: Vec<_> = table.values().filter(|chain| chain.is_base).collect();
    chains.sort_by(|one, other| one.name.cmp(&other.name));
    chains.into_iter().find_map(|chain| {
        let walk = walk(table, chain, 0);
        match walk.verdict {
            Verdict::Drop if walk.is_certain => Some(by_rule(chain)),
            Verdict::Continue if walk.is_certain && chain.drops_by_policy => Some(by_policy(chain)),
            _ => None,
        }
    })
}

fn by_rule(chain: &Chain) -> Culprit {
    Culprit {
        rule: format!("a rule of chain {}", chain.name),
        remedy: remedy(chain),
    }
}

fn by_policy(chain: &Chain) -> Culprit {
    Culprit {
        rule: format!("the policy of chain {}", chain.name),
        remedy: remedy(chain),
    }
}

fn remedy(chain: &Chain) -> String {
    format!("Accept these packets before, by `{}`.", chain.command)
}

/// Lets the packet walk through a chain and those to which it jumps.
fn walk(table: &Table, chain: &Chain, depth: u32) -> Walk {
    let mut is_certain = depth < MAX_DEPTH;
    for rule in &chain.rules {
        if rule.matches == Matches::No {
            continue;
        }
        let (step, ends) = follow(table, &rule.action, depth);
        let decides = ends || step.verdict != Verdict::Continue;
        if rule.matches == Matches::Yes && decides {
            let is_certain = is_certain && step.is_certain;
            return Walk { is_certain, ..step };
        }
        is_certain &= step.is_certain && !decides;
    }
    Walk {
        verdict: Verdict::Continue,
        is_certain,
    }
}

/// Returns what an action leads to, and whether it ends the walk through its chain.
fn follow(table: &Table, action: &Action, depth: u32) -> (Walk, bool) {
    let certain = |verdict| Walk {
        verdict,
        is_certain: true,
    };
    match action {
        Action::Accept => (certain(Verdict::Accept), true),
        Action::Drop => (certain(Verdict::Drop), true),
        Action::Return => (certain(Verdict::Continue), true),
        Action::Jump(name) | Action::Goto(name) => {
            let ends = matches!(action, Action::Goto(_));
            match table.get(name).filter(|_| depth < MAX_DEPTH) {
                Some(chain) => (walk(table, chain, depth + 1), ends),
                None => (certain(Verdict::Continue), ends),
            }
        }
    }
}
