// SPDX-License-Identifier: GPL-2.0

//! Flow steering: selects the raw packet QPs that get a frame (`ibv_create_flow`).
//!
//! A [`Frame`] holds the fields of a frame's headers, a [`Rule`] the condition on which its QP gets
//! a frame. The device keeps its rules in the order of their [indices](Rule::indices). A [`Walk`]
//! visits the rules in that order and decides for each rule whether its QP gets the frame.
//!
//! Sniffer rules get every frame. Of the normal rules, the first one that matches takes the frame,
//! together with those of the same priority and with an equal pattern. A normal rule with
//! `dont_trap` leaves the frame to the other rules as well. A frame that no normal rule took goes
//! to all default rules that match. A QP with several matching rules gets one copy ([`Numbers`]).

mod frame;
mod numbers;
mod pattern;
#[cfg(test)]
mod tests;

use core::ops::RangeInclusive;

pub use frame::{Frame, HEADERS_MAX};
pub use numbers::Numbers;
pub use pattern::{
    Match, Pattern, Spec, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, IP_DONT_FRAGMENT, IP_MORE_FRAGMENTS,
    PORTS_LEN,
};

/// Maximum number of rules of a device, and number of indices in a range of [`Rule::indices`].
pub const MAX_RULES: u32 = 1 << SEQUENCE_BITS;
/// Number of bits of an index that distinguish the rules in one range of [`Rule::indices`].
const SEQUENCE_BITS: u32 = 10;

/// The reason why a rule can't be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFault {
    /// The rule contradicts itself.
    Invalid,
    /// The rule has a condition that this implementation doesn't match.
    Unsupported,
}

/// The frames that a rule applies to (`IBV_FLOW_ATTR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All frames that pass the port, in both directions.
    Sniffer,
    /// Frames that match the pattern.
    Normal(Pattern),
    /// Multicast frames that no normal rule took.
    MulticastDefault,
    /// All frames that no normal rule took.
    AllDefault,
}

/// A steering rule of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    kind: Kind,
    priority: u16,
    dont_trap: bool,
    own: bool,
}

impl Rule {
    /// Creates a rule. Of the rules of one kind, those with a lower `priority` are visited first.
    ///
    /// With `dont_trap`, the frames that match the rule go on to the rules after it. With `own`,
    /// the rule's QP also gets its own frames, if they are looped back within the device.
    ///
    /// # Errors
    ///
    /// Returns [`RuleFault::Invalid`] if `dont_trap` is set for a rule that isn't [`Kind::Normal`].
    pub fn new(kind: Kind, priority: u16, dont_trap: bool, own: bool) -> Result<Self, RuleFault> {
        if dont_trap && !matches!(kind, Kind::Normal(_)) {
            return Err(RuleFault::Invalid);
        }
        Ok(Self {
            kind,
            priority,
            dont_trap,
            own,
        })
    }

    /// Returns the range of numbers from which the rule takes a free one as its index. Rules are
    /// visited in ascending order of their indices.
    pub fn indices(&self) -> RangeInclusive<u32> {
        let class = match self.kind {
            Kind::Sniffer => 0,
            Kind::Normal(_) => 1,
            Kind::MulticastDefault | Kind::AllDefault => 2,
        };
        let group = class << 17 | u32::from(self.priority) << 1 | u32::from(!self.dont_trap);
        let first = group << SEQUENCE_BITS;
        first..=first | (MAX_RULES - 1)
    }
}

/// The direction in which a frame passes the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The port received the frame.
    Received,
    /// The port sends the frame. Only sniffer rules get it.
    Sent,
    /// A QP of the device sent the frame, and it is looped back to the device's QPs. Sniffer rules
    /// have seen it as [`Self::Sent`].
    Looped,
}

/// The decision on a frame at one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule's QP gets the frame.
    Take,
    /// The rule's QP doesn't get the frame.
    Pass,
    /// The rule's QP doesn't get the frame, nor do those of the rules after it.
    End,
}

/// The evaluation of a device's rules for one frame.
#[derive(Debug)]
pub struct Walk<'a> {
    frame: &'a Frame,
    direction: Direction,
    /// Priority and pattern of the normal rule that took the frame.
    taken: Option<(u16, Pattern)>,
}

impl<'a> Walk<'a> {
    /// Begins the evaluation, before the first rule.
    pub fn new(frame: &'a Frame, direction: Direction) -> Self {
        Self {
            frame,
            direction,
            taken: None,
        }
    }

    /// Evaluates the next rule. The caller visits the rules in ascending order of their indices.
    /// `is_own` says whether the rule belongs to the QP that sent the frame.
    pub fn visit(&mut self, rule: &Rule, is_own: bool) -> Verdict {
        match (&rule.kind, self.direction) {
            (Kind::Sniffer, Direction::Received | Direction::Sent) => return Verdict::Take,
            (Kind::Sniffer, Direction::Looped) => return Verdict::Pass,
            (_, Direction::Sent) => return Verdict::End,
            (_, Direction::Received | Direction::Looped) => {}
        }
        if is_own && !rule.own {
            return Verdict::Pass;
        }
        match (&rule.kind, &self.taken) {
            (Kind::Normal(pattern), None) => self.try_normal(rule, pattern),
            (Kind::Normal(pattern), Some((priority, first))) if *priority == rule.priority => {
                take_if(pattern == first)
            }
            (_, Some(_)) => Verdict::End,
            (Kind::MulticastDefault, None) => take_if(self.frame.is_multicast()),
            (_, None) => Verdict::Take,
        }
    }

    /// Evaluates a normal rule while no rule has taken the frame.
    fn try_normal(&mut self, rule: &Rule, pattern: &Pattern) -> Verdict {
        let fits = pattern.admits(self.frame);
        if fits && !rule.dont_trap {
            self.taken = Some((rule.priority, *pattern));
        }
        take_if(fits)
    }
}

/// Returns the verdict of a rule that gets the frame if it `fits`.
fn take_if(fits: bool) -> Verdict {
    match fits {
        true => Verdict::Take,
        false => Verdict::Pass,
    }
}
