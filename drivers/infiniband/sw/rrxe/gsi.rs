// SPDX-License-Identifier: GPL-2.0

//! Management datagrams, and the senders of them that ib_core is told.
//!
//! Anybody can write a datagram to QP1: its Q_Key is public, and nobody looks at the sender. ib_core answers some, and for
//! that it looks up the link-layer address of the sender. If that is not known, it sleeps until the neighbour has answered,
//! a second at most (`ib_init_ah_attr_from_wc()`, verbs.c; `rdma_addr_find_l2_eth_by_grh()`, addr.c). It does so in the work
//! item that takes all MADs of a device, and in the one that connects for all devices of the host, whose queue has no limit
//! (`cm_recv_handler()`, cm.c). A queue of such datagrams would stop all connection management of the host.
//!
//! rrxe needs no link-layer addresses: the IP layer finds them when a packet leaves. So ib_core is told another sender of a
//! question: the address that the question came to, which is this host's own and needs no look-up
//! (`addr_resolve_neigh()`, addr.c). The flow label is the number of the true sender ([`Senders`]), and the service level
//! says so. ib_core makes an address handle of these for the answer; there the true sender takes its place again.
//!
//! A response gets a number, too: ib_core finds the request without its sender (`rcv_has_same_gid()`, mad.c).

use kernel::prelude::*;
use rdma::{av::Av, gid::Gid, new_irq_spinlock, sync::IrqSpinLock};
use roce::{
    responder::GRH_LEN,
    time::Instant,
    wire::{
        grh::with_stand_in,
        mad::{MadHeader, MAD_HEADER_LEN},
    },
};

use crate::{device::Device, rx::RxPacket, stats::Counter};

/// Nanoseconds.
const SECOND: i64 = 1_000_000_000;

/// The service level of a stand-in: no packet and no path has it, for theirs have four bits.
const STAND_IN_SL: u8 = 16;
/// The explicit congestion notification in a traffic class, which is of one packet (RFC 3168 §5).
const ECN: u8 = 0b11;
/// Flow labels have so many bits.
const NUMBER_BITS: u32 = 20;
/// Questions whose senders are remembered: those of three seconds at least.
const REMEMBERED: u32 = 4_096;

/// How often something may happen.
struct Pace {
    /// How often at once.
    burst: i64,
    /// Nanoseconds until it may happen once more.
    interval: i64,
}

impl Pace {
    const fn new(burst: i64, a_second: i64) -> Self {
        Self {
            burst,
            interval: SECOND / a_second,
        }
    }
}

/// Datagrams that are not answered.
const FINALS: Pace = Pace::new(4_096, 16_384);
/// Questions: more than ib_core handles would fill its queue, which has no limit.
const QUESTIONS: Pace = Pace::new(1_024, 1_024);

/// When something may happen again.
struct Rate {
    pace: Pace,
    /// When the next is due that is not early, in nanoseconds.
    due: i64,
}

impl Rate {
    const fn new(pace: Pace) -> Self {
        Self { pace, due: 0 }
    }

    /// Whether it may happen once more, at `now`.
    fn admits(&mut self, now: i64) -> bool {
        let due = self.due.max(now);
        let early = due.saturating_sub(now);
        let admitted = early < self.pace.burst.saturating_mul(self.pace.interval);
        if admitted {
            self.due = due.saturating_add(self.pace.interval);
        }
        admitted
    }
}

/// The true senders of a device's latest questions.
#[pin_data]
pub(crate) struct Senders {
    #[pin]
    state: IrqSpinLock<Latest>,
}

struct Latest {
    /// The number of the next.
    next: u32,
    /// By number, modulo their count.
    gids: KVVec<Gid>,
}

impl Latest {
    fn slot(&mut self, number: u32) -> Option<&mut Gid> {
        self.gids.get_mut((number % REMEMBERED) as usize)
    }
}

impl Senders {
    /// No question has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let latest = Latest {
            next: 0,
            gids: KVVec::from_elem(Gid::default(), REMEMBERED as usize, GFP_KERNEL)?,
        };
        Ok(pin_init!(Self { state <- new_irq_spinlock!(latest, "rrxe_senders") }))
    }

    /// The number that stands for `sender` until [`REMEMBERED`] other questions have come. Any context.
    fn remember(&self, sender: Gid) -> u32 {
        let mut latest = self.state.lock();
        let number = latest.next;
        latest.next = number.wrapping_add(1) & ((1 << NUMBER_BITS) - 1);
        if let Some(slot) = latest.slot(number) {
            *slot = sender;
        }
        number
    }

    /// The sender for which `number` stands, unless it was forgotten. Any context.
    fn find(&self, number: u32) -> Option<Gid> {
        let mut latest = self.state.lock();
        let age = latest.next.wrapping_sub(number) & ((1 << NUMBER_BITS) - 1);
        match age {
            1..=REMEMBERED => latest.slot(number).map(|gid| *gid),
            _ => None,
        }
    }

    /// The address vector for an answer to the true sender, if `av` leads to a stand-in; otherwise `av`. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the sender was forgotten, or the number is none of ib_core's.
    pub(crate) fn true_destination(&self, av: Av) -> Result<Av> {
        if av.sgid != av.dgid || av.sl != STAND_IN_SL {
            return Ok(av);
        }
        let sender = self.find(av.flow_label).ok_or(EINVAL)?;
        if sender.network() != av.network {
            return Err(EINVAL);
        }
        Ok(Av {
            dgid: sender,
            flow_label: 0,
            traffic_class: av.traffic_class & !ECN,
            sl: 0,
            ..av
        })
    }
}

/// The number that stands for a sender.
#[derive(Clone, Copy)]
pub(crate) struct StandIn(u32);

impl StandIn {
    /// The header `grh` of a datagram with the stand-in in place of the sender.
    pub(crate) fn replace_in(self, grh: [u8; GRH_LEN as usize]) -> [u8; GRH_LEN as usize] {
        with_stand_in(grh, self.0)
    }

    /// The service level that its completion names.
    pub(crate) fn service_level(self) -> u8 {
        STAND_IN_SL
    }
}

/// The rates of the management datagrams that a GSI QP takes, and the stand-in of the present one. The holder of the QP's
/// turn has it.
pub(crate) struct Gsi {
    finals: Rate,
    questions: Rate,
    /// The stand-in for the sender of the datagram that is taken, if it is a question.
    pub(crate) stand_in: Option<StandIn>,
}

impl Gsi {
    /// No datagram has come.
    pub(crate) fn new() -> Self {
        Self {
            finals: Rate::new(FINALS),
            questions: Rate::new(QUESTIONS),
            stand_in: None,
        }
    }

    /// Checks whether the QP takes a packet, and numbers its sender. With the turn.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        device: &Device,
        packet: &RxPacket,
    ) -> Result<(), Counter> {
        self.stand_in = None;
        // ib_core is about to free what its work items use: see `settle_gsi` in unplug.rs.
        if device.link.check_stays().is_err() {
            return Err(Counter::DropState);
        }
        let mut bytes = [0; MAD_HEADER_LEN];
        if packet.read_payload(0, &mut bytes).is_err() {
            return Err(Counter::DropInvalid);
        }
        let header = MadHeader::parse(&bytes).ok_or(Counter::DropInvalid)?;
        let now = nanos(now);
        if !header.may_be_answered() {
            return admitted(self.finals.admits(now));
        }
        admitted(self.questions.admits(now))?;
        let number = device.senders.remember(packet.endpoints.source);
        self.stand_in = Some(StandIn(number));
        Ok(())
    }
}

fn nanos(now: Instant) -> i64 {
    i64::try_from(now.0).unwrap_or(i64::MAX)
}

/// A datagram is dropped for the rate of such ones unless it is admitted.
fn admitted(admitted: bool) -> Result<(), Counter> {
    match admitted {
        true => Ok(()),
        false => Err(Counter::DropRate),
    }
}

#[kunit_tests(rrxe_gsi)]
mod tests {
    use super::*;
    use rdma::gid::Network;

    fn senders() -> Result<Pin<KBox<Senders>>> {
        KBox::pin_init(Senders::new()?, GFP_KERNEL)
    }

    fn answer(number: u32) -> Av {
        Av {
            dgid: Gid([1; 16]),
            sgid: Gid([1; 16]),
            sgid_index: 0,
            netdev_index: 1,
            network: Network::V6,
            traffic_class: 0x2f,
            hop_limit: 64,
            flow_label: number,
            dmac: [0; 6],
            sl: STAND_IN_SL,
            static_rate: 0,
            port: 1,
        }
    }

    #[test]
    fn a_rate_admits_a_burst_and_then_its_share() -> Result {
        let mut rate = Rate::new(Pace::new(4, 1_000_000));
        let mut admitted = |now: i64| (0..100).filter(|_| rate.admits(now)).count();
        assert_eq!(admitted(1_000_000), 4);
        assert_eq!(admitted(1_000_000), 0);
        assert_eq!(admitted(1_002_000), 2);
        // Time that passes without any is not kept.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }

    #[test]
    fn an_answer_goes_to_the_true_sender() -> Result {
        let senders = senders()?;
        let (first, second) = (Gid([2; 16]), Gid([3; 16]));
        let numbers = [senders.remember(first), senders.remember(second)];
        for (number, sender) in numbers.into_iter().zip([first, second]) {
            let av = senders.true_destination(answer(number))?;
            assert_eq!((av.dgid, av.flow_label, av.sl), (sender, 0, 0));
        }
        assert!(senders.true_destination(answer(2)).is_err());
        Ok(())
    }

    #[test]
    fn other_destinations_stay() -> Result {
        let senders = senders()?;
        let number = senders.remember(Gid([2; 16]));
        let mut other = answer(number);
        other.dgid = Gid([4; 16]);
        assert_eq!(senders.true_destination(other)?.dgid, other.dgid);
        let mut own = answer(number);
        own.sl = 15;
        assert_eq!(senders.true_destination(own)?.dgid, own.dgid);
        Ok(())
    }

    #[test]
    fn the_oldest_senders_are_forgotten() -> Result {
        let senders = senders()?;
        let first = senders.remember(Gid([2; 16]));
        for _ in 1..REMEMBERED {
            senders.remember(Gid([3; 16]));
        }
        assert_eq!(senders.find(first), Some(Gid([2; 16])));
        senders.remember(Gid([3; 16]));
        assert_eq!(senders.find(first), None);
        Ok(())
    }

    #[test]
    fn numbers_wrap() -> Result {
        let senders = senders()?;
        for _ in 0..1 << NUMBER_BITS {
            senders.remember(Gid([3; 16]));
        }
        let number = senders.remember(Gid([2; 16]));
        assert_eq!(number, 0);
        assert_eq!(senders.find(number), Some(Gid([2; 16])));
        Ok(())
    }
}
