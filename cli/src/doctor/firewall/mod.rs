// SPDX-License-Identifier: GPL-2.0

//! Decides whether the firewall drops RoCE packets. Rules of nftables and of iptables are brought
//! into one form. Then the chains of a packet's hooks are evaluated for the packet.
//!
//! A rule may match by facts that are unknown here, such as the addresses of other hosts. After
//! such a rule the verdict is uncertain, and an uncertain drop does not count.

use std::{collections::HashMap, net::IpAddr};

mod iptables;
mod nft;
#[cfg(test)]
mod tests;

/// Depth of nested chains from which an evaluation follows no jumps and is uncertain. The kernel
/// allows 16.
const MAX_DEPTH: u32 = 16;

/// The rules of this network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// Output of `nft -j list ruleset`.
    pub(crate) nft: serde_json::Value,
    /// Outputs of `iptables-save`, `ip6tables-save` and their variants, each with `true` for IPv6.
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

/// The rule that drops a packet, or the policy of a chain if that drops it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Culprit {
    /// Description of the rule or policy, such as "a rule of chain INPUT".
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
    /// Command that inserts a rule at the head of the chain. The rule accepts RoCE packets.
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

/// Result of the evaluation of a chain. It is uncertain if another verdict is possible, because of
/// rules whose matches are unknown, or because chains are nested too deeply.
struct Evaluation {
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
        let evaluation = evaluate(table, chain, 0);
        match evaluation.verdict {
            Verdict::Drop if evaluation.is_certain => Some(by_rule(chain)),
            Verdict::Continue if evaluation.is_certain && chain.drops_by_policy => {
                Some(by_policy(chain))
            }
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
    format!(
        "Accept these packets in an earlier rule, by `{}`.",
        chain.command
    )
}

/// Evaluates a chain, and the chains to which it jumps, for the packet.
fn evaluate(table: &Table, chain: &Chain, depth: u32) -> Evaluation {
    let mut is_certain = depth < MAX_DEPTH;
    for rule in &chain.rules {
        if rule.matches == Matches::No {
            continue;
        }
        let (step, ends) = follow(table, &rule.action, depth);
        let decides = ends || step.verdict != Verdict::Continue;
        if rule.matches == Matches::Yes && decides {
            let is_certain = is_certain && step.is_certain;
            return Evaluation { is_certain, ..step };
        }
        is_certain &= step.is_certain && !decides;
    }
    Evaluation {
        verdict: Verdict::Continue,
        is_certain,
    }
}

/// Returns the result of an action, and whether the action ends the evaluation of its chain.
fn follow(table: &Table, action: &Action, depth: u32) -> (Evaluation, bool) {
    let certain = |verdict| Evaluation {
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
                Some(chain) => (evaluate(table, chain, depth + 1), ends),
                None => (certain(Verdict::Continue), ends),
            }
        }
    }
}
