// SPDX-License-Identifier: GPL-2.0

//! The true senders of the MADs that a device received recently.
//!
//! ib_core gets a stand-in for each sender: an address of this host, with a number as the flow
//! label. The response to the stand-in is sent to the true sender of that number.

use kernel::prelude::*;
use rdma::{
    device::gid::Gid,
    new_irq_spinlock,
    support::{sync::IrqSpinLock, workqueue::is_in_work_item},
    verbs::av::Av,
};
use roce::wire::grh::{with_stand_in, GRH_LEN};

/// Number of bits of a flow label, which carries the number of a stand-in.
pub(super) const NUMBER_BITS: u32 = 20;
/// Number of different numbers of stand-ins.
const NUMBERS: u32 = 1 << NUMBER_BITS;
/// Number of senders that are remembered: those of two seconds at least. A power of two.
const REMEMBERED: u32 = 8_192;
/// Service level of the stand-in for a true sender. Service levels of packets and paths have four
/// bits, so they are below 16. Only a process that writes to ib_umad can name higher ones
/// (`ib_umad_write()`, user_mad.c).
const SENDER_SL: u8 = 16;
/// Service level of [`StandIn::Probe`].
const PROBE_SL: u8 = 17;
/// Service level of [`StandIn::QueueProbe`].
const QUEUE_PROBE_SL: u8 = 18;
/// Explicit congestion notification bits of a traffic class, which concern a single packet (RFC
/// 3168 §5).
const ECN: u8 = 0b11;

/// A stand-in: the address that ib_core gets in place of the sender of a MAD, identified by a
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandIn {
    /// Stand-in for the true sender of a MAD.
    Sender(u32),
    /// Stand-in for the sender of a probe (`probe.rs`) behind a request of a guest network, which
    /// has a budget (`cm_budget.rs`). rrxe itself made the probe.
    Probe(u32),
    /// Stand-in for the sender of a probe that measures ib_cm's queue (`cm_queue.rs`).
    QueueProbe(u32),
}

impl StandIn {
    /// Returns the stand-in that `av` leads to. The source and the destination of such an `av` are
    /// the same address of this host.
    fn of(av: &Av) -> Option<Self> {
        let kind = match av.sl {
            SENDER_SL => Self::Sender,
            PROBE_SL => Self::Probe,
            QUEUE_PROBE_SL => Self::QueueProbe,
            _ => return None,
        };
        (av.sgid == av.dgid).then(|| kind(av.flow_label))
    }

    /// Returns the stand-in to which a response by `av` goes, or `None` outside of work items.
    /// ib_core responds in a work item (`cm_work_handler()`, cm.c; `ib_mad_recv_done()`, mad.c). A
    /// process that writes to ib_umad chooses the numbers in the address itself (`ib_umad_write()`,
    /// user_mad.c), and runs in no work item.
    pub(super) fn of_response(av: &Av) -> Option<Self> {
        Self::of(av).filter(|_| is_in_work_item())
    }

    /// Returns the header `grh` of a MAD with the stand-in in place of the sender.
    pub(crate) fn replace_in(self, grh: [u8; GRH_LEN as usize]) -> [u8; GRH_LEN as usize] {
        match self {
            Self::Sender(number) | Self::Probe(number) | Self::QueueProbe(number) => {
                with_stand_in(grh, number)
            }
        }
    }

    /// Returns the service level that the MAD's completion reports.
    pub(crate) fn service_level(self) -> u8 {
        match self {
            Self::Sender(_) => SENDER_SL,
            Self::Probe(_) => PROBE_SL,
            Self::QueueProbe(_) => QUEUE_PROBE_SL,
        }
    }
}

/// The true senders of the MADs that a device received recently.
#[pin_data]
pub(crate) struct Senders {
    #[pin]
    state: IrqSpinLock<Latest>,
}

/// The latest senders, under the lock `rrxe_senders`.
struct Latest {
    /// Number of the next sender.
    next: u32,
    /// Number of senders in `gids`.
    known: u32,
    /// Senders, each at its number modulo [`REMEMBERED`].
    gids: KVVec<Gid>,
}

impl Latest {
    /// Returns the place of the sender with this number.
    fn slot(&mut self, number: u32) -> Option<&mut Gid> {
        self.gids.get_mut((number % REMEMBERED) as usize)
    }

    /// Stores a sender, and returns its number.
    fn remember(&mut self, sender: Gid) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1) % NUMBERS;
        self.known = self.known.saturating_add(1).min(REMEMBERED);
        if let Some(slot) = self.slot(number) {
            *slot = sender;
        }
        number
    }

    /// Returns the sender with this number, unless it was overwritten or the number was never
    /// assigned.
    fn find(&mut self, number: u32) -> Option<Gid> {
        let age = self.next.wrapping_sub(number) % NUMBERS;
        match age {
            0 => None,
            age if age > self.known => None,
            _ => self.slot(number).map(|gid| *gid),
        }
    }
}

impl Senders {
    /// Creates an empty list of senders. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let latest = Latest {
            next: 0,
            known: 0,
            gids: KVVec::from_elem(Gid([0; 16]), REMEMBERED as usize, GFP_KERNEL)?,
        };
        Ok(pin_init!(Self {
            state <- new_irq_spinlock!(latest, "rrxe_senders"),
        }))
    }

    /// Returns the stand-in for `sender`, which is valid until [`REMEMBERED`] other senders were
    /// stored. Any context.
    pub(super) fn remember(&self, sender: Gid) -> StandIn {
        StandIn::Sender(self.state.lock().remember(sender))
    }

    /// Returns the address vector for a response to the true sender if `av` leads to its stand-in,
    /// and `av` itself otherwise. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the sender was forgotten, if its number was never assigned, or if its address is
    /// of the other IP version than `av`.
    pub(crate) fn true_destination(&self, av: Av) -> Result<Av> {
        let Some(StandIn::Sender(number)) = StandIn::of(&av) else {
            return Ok(av);
        };
        let sender = self.state.lock().find(number).ok_or(EINVAL)?;
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

#[kunit_tests(rrxe_gsi_senders)]
mod tests {
    use super::*;
    use rdma::device::gid::Network;

    fn senders() -> Result<Pin<KBox<Senders>>> {
        KBox::pin_init(Senders::new()?, GFP_KERNEL)
    }

    fn response_to(stand_in: StandIn) -> Av {
        let (StandIn::Sender(number) | StandIn::Probe(number) | StandIn::QueueProbe(number)) =
            stand_in;
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
            sl: stand_in.service_level(),
            static_rate: 0,
            port: 1,
        }
    }

    fn find(senders: &Senders, number: StandIn) -> Option<Gid> {
        senders
            .true_destination(response_to(number))
            .ok()
            .map(|av| av.dgid)
    }

    #[test]
    fn a_response_goes_to_the_true_sender() -> Result {
        let senders = senders()?;
        let (first, second) = (Gid([2; 16]), Gid([3; 16]));
        let numbers = [senders.remember(first), senders.remember(second)];
        for (number, sender) in numbers.into_iter().zip([first, second]) {
            let av = senders.true_destination(response_to(number))?;
            assert_eq!((av.dgid, av.flow_label, av.sl), (sender, 0, 0));
            assert_eq!(av.traffic_class, 0x2c);
        }
        Ok(())
    }

    #[test]
    fn unassigned_numbers_have_no_sender() -> Result {
        let senders = senders()?;
        assert_eq!(find(&senders, StandIn::Sender(NUMBERS - 1)), None);
        senders.remember(Gid([2; 16]));
        for number in [1, NUMBERS - 1, NUMBERS / 2] {
            assert_eq!(find(&senders, StandIn::Sender(number)), None);
        }
        Ok(())
    }

    #[test]
    fn other_destinations_stay() -> Result {
        let senders = senders()?;
        let number = senders.remember(Gid([2; 16]));
        let mut other = response_to(number);
        other.dgid = Gid([4; 16]);
        assert_eq!(senders.true_destination(other)?.dgid, other.dgid);
        let mut own = response_to(number);
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
        assert_eq!(find(&senders, first), Some(Gid([2; 16])));
        senders.remember(Gid([3; 16]));
        assert_eq!(find(&senders, first), None);
        Ok(())
    }

    #[test]
    fn numbers_wrap() -> Result {
        let senders = senders()?;
        for _ in 0..NUMBERS {
            senders.remember(Gid([3; 16]));
        }
        let number = senders.remember(Gid([2; 16]));
        assert_eq!(number, StandIn::Sender(0));
        assert_eq!(find(&senders, number), Some(Gid([2; 16])));
        Ok(())
    }

    #[test]
    fn only_a_work_item_responds_to_a_probe() {
        // KUnit cases run in a thread, not in a work item.
        for probe in [StandIn::Probe(0), StandIn::QueueProbe(0)] {
            let response = response_to(probe);
            assert_eq!(StandIn::of(&response), Some(probe));
            assert_eq!(StandIn::of_response(&response), None);
        }
    }
}
