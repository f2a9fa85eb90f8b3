// SPDX-License-Identifier: GPL-2.0

//! Flow steering: which raw packet QPs get a frame (`ibv_create_flow`).
//!
//! A [`Frame`] is what was found in a frame's headers, a [`Rule`] what a QP wants. The rules of a
//! device are kept in the order of their [places](Rule::places); a [`Walk`] visits them in that order
//! and says of each whether its QP gets the frame.
//!
//! Sniffers get every frame. Of the rules with specifications the first that fits takes the frame, and
//! with it those of the same priority with the very same specifications; one that doesn't trap leaves
//! it to the others as well. What no such rule took goes to all default rules that it fits. A QP of which several rules
//! get a frame has it once ([`Numbers`]).

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

/// Rules with one priority that have places of their own; a device must have no more rules in all.
pub const MAX_RULES: u32 = 1 << SEQUENCE_BITS;
const SEQUENCE_BITS: u32 = 10;

/// Why there can't be such a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFault {
    /// It contradicts itself.
    Invalid,
    /// It asks for what isn't matched here.
    Unsupported,
}

/// Which frames a rule is about (`IBV_FLOW_ATTR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All that pass the port, in both directions.
    Sniffer,
    /// Those that fit the pattern.
    Normal(Pattern),
    /// Multicast frames that no normal rule took.
    MulticastDefault,
    /// All that no normal rule took.
    AllDefault,
}

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    kind: Kind,
    priority: u16,
    dont_trap: bool,
    own: bool,
}

impl Rule {
    /// A rule; a lower `priority` comes first. With `dont_trap` what it gets goes on to the rules behind
    /// it; with `own` its QP also gets what it sent itself, should that come back within the device.
    ///
    /// # Errors
    ///
    /// [`RuleFault::Invalid`] if `dont_trap` is asked for of anything but a normal rule.
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

    /// The numbers from which it takes one that is free; rules are visited in the order of these.
    pub fn places(&self) -> RangeInclusive<u32> {
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

/// How a frame comes to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The port received it.
    Received,
    /// The port sends it: for sniffers only.
    Sent,
    /// A QP of the device sends it, and it comes back to the others. Sniffers see it being sent.
    Looped,
}

/// What becomes of a frame at a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule's QP gets it.
    Take,
    /// It doesn't.
    Pass,
    /// Nor does that of any further rule.
    End,
}

/// A frame's way through the rules of a device.
#[derive(Debug)]
pub struct Walk<'a> {
    frame: &'a Frame,
    way: Way,
    /// Priority and pattern of the rule that took it away from those behind.
    taken: Option<(u16, Pattern)>,
}

impl<'a> Walk<'a> {
    /// Before the first rule.
    pub fn new(frame: &'a Frame, way: Way) -> Self {
        Self {
            frame,
            way,
            taken: None,
        }
    }

    /// The next rule; `is_own` if it is one of the QP that sent the frame.
    pub fn visit(&mut self, rule: &Rule, is_own: bool) -> Verdict {
        match (&rule.kind, self.way) {
            (Kind::Sniffer, Way::Received | Way::Sent) => return Verdict::Take,
            (Kind::Sniffer, Way::Looped) => return Verdict::Pass,
            (_, Way::Sent) => return Verdict::End,
            (_, Way::Received | Way::Looped) => {}
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

    fn try_normal(&mut self, rule: &Rule, pattern: &Pattern) -> Verdict {
        let fits = pattern.admits(self.frame);
        if fits && !rule.dont_trap {
            self.taken = Some((rule.priority, *pattern));
        }
        take_if(fits)
    }
}

fn take_if(fits: bool) -> Verdict {
    match fits {
        true => Verdict::Take,
        false => Verdict::Pass,
    }
}
