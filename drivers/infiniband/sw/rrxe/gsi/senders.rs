// SPDX-License-Identifier: GPL-2.0

//! The true senders of a device's latest questions.

use kernel::prelude::*;
use rdma::{
    device::gid::Gid,
    new_irq_spinlock,
    support::{sync::IrqSpinLock, workqueue::is_in_work_item},
    verbs::av::Av,
};
use roce::wire::grh::{with_stand_in, GRH_LEN};

/// Flow labels have so many bits.
pub(super) const NUMBER_BITS: u32 = 20;
const NUMBERS: u32 = 1 << NUMBER_BITS;
/// Questions whose senders are remembered: those of two seconds at least, and a power of two.
const REMEMBERED: u32 = 8_192;
/// The service levels of stand-ins, for senders and for probes. Those of packets and paths have four bits; only who writes to
/// ib_umad can name these (`ib_umad_write()`, user_mad.c).
const SENDER_SL: u8 = 16;
const PROBE_SL: u8 = 17;
const CHECK_SL: u8 = 18;
/// The explicit congestion notification in a traffic class, which is of one packet (RFC 3168 §5).
const ECN: u8 = 0b11;

/// What stands for the sender of a question, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandIn {
    /// For a sender of the device.
    Sender(u32),
    /// For that of a probe, which is nobody, behind a question of a network with a budget (`cm_budget.rs`).
    Probe(u32),
    /// For that of a probe by which the device learns how much waits (`cm_queue.rs`).
    Check(u32),
}

impl StandIn {
    /// The one that `av` leads to, from and to the same address of this host.
    fn of(av: &Av) -> Option<Self> {
        let kind = match av.sl {
            SENDER_SL => Self::Sender,
            PROBE_SL => Self::Probe,
            CHECK_SL => Self::Check,
            _ => return None,
        };
        (av.sgid == av.dgid).then(|| kind(av.flow_label))
    }

    /// The one whose answer `av` leads to, in the work item of ib_core that answers (`cm_work_handler()`, cm.c;
    /// `ib_mad_recv_done()`, mad.c). A process that writes to ib_umad chooses the numbers of the address itself
    /// (`ib_umad_write()`, user_mad.c), and is in none.
    pub(super) fn answered(av: &Av) -> Option<Self> {
        Self::of(av).filter(|_| is_in_work_item())
    }

    /// The header `grh` of a datagram with the stand-in in place of the sender.
    pub(crate) fn replace_in(self, grh: [u8; GRH_LEN as usize]) -> [u8; GRH_LEN as usize] {
        match self {
            Self::Sender(number) | Self::Probe(number) | Self::Check(number) => {
                with_stand_in(grh, number)
            }
        }
    }

    /// The service level that its completion names.
    pub(crate) fn service_level(self) -> u8 {
        match self {
            Self::Sender(_) => SENDER_SL,
            Self::Probe(_) => PROBE_SL,
            Self::Check(_) => CHECK_SL,
        }
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
    /// How many have a number that stands for them.
    known: u32,
    /// By number, modulo their count.
    gids: KVVec<Gid>,
}

impl Latest {
    fn slot(&mut self, number: u32) -> Option<&mut Gid> {
        self.gids.get_mut((number % REMEMBERED) as usize)
    }

    fn remember(&mut self, sender: Gid) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1) % NUMBERS;
        self.known = self.known.saturating_add(1).min(REMEMBERED);
        if let Some(slot) = self.slot(number) {
            *slot = sender;
        }
        number
    }

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
    /// No question has come. Process context.
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

    /// The stand-in for `sender`, until [`REMEMBERED`] other questions have come. Any context.
    pub(super) fn remember(&self, sender: Gid) -> StandIn {
        StandIn::Sender(self.state.lock().remember(sender))
    }

    /// The address vector for an answer to the true sender, if `av` leads to its stand-in; otherwise `av`. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the sender was forgotten, or the number is none of ib_core's.
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

    fn answer(stand_in: StandIn) -> Av {
        let (StandIn::Sender(number) | StandIn::Probe(number) | StandIn::Check(number)) = stand_in;
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
            .true_destination(answer(number))
            .ok()
            .map(|av| av.dgid)
    }

    #[test]
    fn an_answer_goes_to_the_true_sender() -> Result {
        let senders = senders()?;
        let (first, second) = (Gid([2; 16]), Gid([3; 16]));
        let numbers = [senders.remember(first), senders.remember(second)];
        for (number, sender) in numbers.into_iter().zip([first, second]) {
            let av = senders.true_destination(answer(number))?;
            assert_eq!((av.dgid, av.flow_label, av.sl), (sender, 0, 0));
            assert_eq!(av.traffic_class, 0x2c);
        }
        Ok(())
    }

    #[test]
    fn numbers_that_were_not_given_stand_for_nobody() -> Result {
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
    fn only_a_work_item_answers_a_probe() {
        // Tests run in a thread of their own.
        for probe in [StandIn::Probe(0), StandIn::Check(0)] {
            let answer = answer(probe);
            assert_eq!(StandIn::of(&answer), Some(probe));
            assert_eq!(StandIn::answered(&answer), None);
        }
    }
}
