// SPDX-License-Identifier: GPL-2.0

//! Impairments: the packets that a network loses or delays besides those that a full queue drops.

use std::fmt;

use crate::rng::Rng;

/// Parts of a whole: a share of one per cent is 10,000.
const WHOLE: u64 = 1_000_000;

/// A share of packets, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(pub(super) u32);

/// Nanoseconds per microsecond and per millisecond.
const MICROSECOND: u64 = 1000;
const MILLISECOND: u64 = 1_000_000;

/// The kind of impairment of a row. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Impairment {
    /// Each packet of either direction is lost with this probability, independently of the others.
    Loss(Share),
    /// `length` consecutive data packets are lost. On average this happens once in `every` packets.
    Burst { length: u32, every: u32 },
    /// As [`Self::Burst`], but `length` is the mean of a geometric distribution
    /// (Gilbert–Elliott).
    Gilbert { length: u32, every: u32 },
    /// The first `count` data packets from time `at` on are lost.
    Once { count: u32, at: u64 },
    /// Each data packet is delayed by `delay` with the probability `share`. Packets that follow
    /// overtake it.
    Reorder { share: Share, delay: u64 },
}

impl Impairment {
    pub(super) const NONE: Self = Self::Loss(Share(0));

    /// Parses `1%`, `burst:15/1500`, `gilbert:15/1500`, `once:15@100` (ms) or `reorder:5%@20`
    /// (µs).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let Some((kind, rest)) = text.split_once(':') else {
            return Share::parse(text).map(Self::Loss);
        };
        let bursts = || {
            let (length, every) = rest.split_once('/')?;
            let (length, every) = (length.parse::<u32>().ok()?, every.parse::<u32>().ok()?);
            (0 < length && length < every).then_some((length, every))
        };
        match kind {
            "burst" => bursts().map(|(length, every)| Self::Burst { length, every }),
            "gilbert" => bursts().map(|(length, every)| Self::Gilbert { length, every }),
            "once" => {
                let (count, at) = rest.split_once('@')?;
                Some(Self::Once {
                    count: count.parse().ok()?,
                    at: at.parse::<u64>().ok()?.checked_mul(MILLISECOND)?,
                })
            }
            "reorder" => {
                let (share, delay) = rest.split_once('@')?;
                Some(Self::Reorder {
                    share: Share::parse(share)?,
                    delay: delay.parse::<u64>().ok()?.checked_mul(MICROSECOND)?,
                })
            }
            _ => None,
        }
    }

    /// Returns whether packets without payload are impaired, too.
    fn is_symmetric(self) -> bool {
        matches!(self, Self::Loss(_))
    }
}

impl Share {
    /// Parses a percentage with at most four decimals.
    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%').unwrap_or(text);
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if decimals.len() > 4 || !whole.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let share = format!("{whole}{decimals:0<4}").parse().ok()?;
        (u64::from(share) <= WHOLE).then_some(Self(share))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        let number = number.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{number}%")
    }
}

impl fmt::Display for Impairment {
    /// Writes the text that [`Self::parse`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss(share) => write!(f, "{share}"),
            Self::Burst { length, every } => write!(f, "burst:{length}/{every}"),
            Self::Gilbert { length, every } => write!(f, "gilbert:{length}/{every}"),
            Self::Once { count, at } => write!(f, "once:{count}@{}", at / MILLISECOND),
            Self::Reorder { share, delay } => write!(f, "reorder:{share}@{}", delay / MICROSECOND),
        }
    }
}

/// The fate of a packet on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The packet arrives, this many nanoseconds later than usual.
    Arrives(u64),
    Lost,
}

/// The impairment of one direction, with its state.
#[derive(Debug)]
pub(super) struct Channel {
    impairment: Impairment,
    rng: Rng,
    /// A burst of losses has begun.
    bad: bool,
    /// Number of packets that were lost in this burst.
    lost: u32,
}

impl Channel {
    /// Creates the impairment of a direction. `has_data` says whether the payload goes in this
    /// direction.
    pub(super) fn new(impairment: Impairment, has_data: bool, rng: Rng) -> Self {
        let applies = has_data || impairment.is_symmetric();
        Self {
            impairment: if applies {
                impairment
            } else {
                Impairment::NONE
            },
            rng,
            bad: false,
            lost: 0,
        }
    }

    /// Decides about the packet that enters the wire at `now`.
    pub(super) fn fate(&mut self, now: u64) -> Fate {
        let is_lost = match self.impairment {
            Impairment::Loss(share) => self.chance(share),
            Impairment::Burst { length, every } => {
                self.bad = match self.bad {
                    true => self.lost < length,
                    false => self.one_in(every - length + 1),
                };
                self.bad
            }
            Impairment::Gilbert { length, every } => {
                self.bad = match self.bad {
                    true => !self.one_in(length),
                    false => self.one_in(every - length + 1),
                };
                self.bad
            }
            Impairment::Once { count, at } => now >= at && self.lost < count,
            Impairment::Reorder { share, delay } => {
                let extra = if self.chance(share) { delay } else { 0 };
                return Fate::Arrives(extra);
            }
        };
        match is_lost {
            true => self.lost += 1,
            false if !matches!(self.impairment, Impairment::Once { .. }) => self.lost = 0,
            false => {}
        }
        if is_lost {
            Fate::Lost
        } else {
            Fate::Arrives(0)
        }
    }

    fn chance(&mut self, share: Share) -> bool {
        share.0 > 0 && self.rng.below(WHOLE) < u64::from(share.0)
    }

    fn one_in(&mut self, number: u32) -> bool {
        self.rng.below(u64::from(number)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 1_000_000;

    fn channel(text: &str) -> Channel {
        let impairment = Impairment::parse(text).unwrap();
        assert_eq!(impairment.to_string(), text);
        Channel::new(impairment, true, Rng::new(7))
    }

    /// Returns the lengths of all series of lost packets.
    fn bursts(text: &str) -> Vec<usize> {
        let mut channel = channel(text);
        let lost = (0..PACKETS).map(|_| channel.fate(0) == Fate::Lost);
        let lost: Vec<bool> = lost.collect();
        let series = lost.split(|lost| !lost).map(<[bool]>::len);
        series.filter(|length| *length > 0).collect()
    }

    #[test]
    fn independent_losses_have_the_given_share() {
        for (text, least, most) in [
            ("0.1%", 900, 1_100),
            ("1%", 9_700, 10_300),
            ("5%", 49_000, 51_000),
        ] {
            let lost: usize = bursts(text).into_iter().sum();
            assert!((least..most).contains(&lost), "{text}: {lost}");
        }
        assert_eq!(bursts("0%"), []);
        assert_eq!(bursts("100%"), [PACKETS]);
    }

    #[test]
    fn bursts_have_one_length_and_the_given_frequency() {
        let bursts = bursts("burst:15/1500");
        let (_, whole) = bursts.split_last().unwrap();
        assert!(whole.iter().all(|length| *length == 15));
        assert!((600..735).contains(&whole.len()), "{}", whole.len());
    }

    #[test]
    fn gilbert_bursts_have_the_mean_length_and_the_given_frequency() {
        let bursts = bursts("gilbert:15/1500");
        let lost: usize = bursts.iter().sum();
        assert!((8_500..11_500).contains(&lost), "{lost}");
        let mean = lost / bursts.len();
        assert!((13..17).contains(&mean), "{mean}");
        assert!(bursts.iter().any(|length| *length < 5));
        assert!(bursts.iter().any(|length| *length > 30));
    }

    #[test]
    fn one_gap_has_exactly_the_given_length() {
        let mut channel = channel("once:15@3");
        let lost = (0..1000).map(|i| channel.fate(i * 100_000) == Fate::Lost);
        let lost: Vec<usize> = lost.enumerate().filter(|l| l.1).map(|l| l.0).collect();
        assert_eq!(lost, (30..45).collect::<Vec<_>>());
    }

    #[test]
    fn reordering_delays_the_given_share() {
        let mut channel = channel("reorder:5%@20");
        let fates: Vec<Fate> = (0..PACKETS).map(|_| channel.fate(0)).collect();
        let late = fates.iter().filter(|fate| **fate == Fate::Arrives(20_000));
        let late = late.count();
        let usual = fates.iter().filter(|fate| **fate == Fate::Arrives(0));
        assert_eq!(late + usual.count(), PACKETS);
        assert!((49_000..51_000).contains(&late), "{late}");
    }

    #[test]
    fn only_independent_losses_affect_both_directions() {
        for (text, both) in [("100%", true), ("once:1@0", false)] {
            let impairment = Impairment::parse(text).unwrap();
            let mut back = Channel::new(impairment, false, Rng::new(7));
            assert_eq!(back.fate(0) == Fate::Lost, both);
        }
    }

    #[test]
    fn malformed_impairments_are_refused() {
        for text in [
            "",
            "x",
            "101%",
            "0.00001%",
            "-1%",
            "burst:15",
            "burst:0/9",
            "burst:9/9",
            "once:1",
            "reorder:5%",
            "other:1",
        ] {
            assert_eq!(Impairment::parse(text), None, "{text}");
        }
    }
}
