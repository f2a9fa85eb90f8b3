// SPDX-License-Identifier: GPL-2.0

//! A link: sends packets one after another at its rate. Packets that must wait are in its queue.

use std::collections::VecDeque;

use roce::wire::packet::Packet;
use roce::wire::ICRC_LEN;

/// Bytes of a packet on the wire besides BTH, other transport headers, payload, pad and ICRC:
/// Ethernet, IPv4 and UDP headers, then preamble, frame check sequence and gap.
const FRAMING: u64 = 14 + 20 + 8 + 24;

/// Picoseconds per second.
const SECOND: u64 = 1_000_000_000_000;

/// Returns the number of bytes for which a packet occupies a link.
pub(super) fn wire_bytes(packet: &Packet) -> u64 {
    let headers = packet.encode().len() + ICRC_LEN;
    FRAMING + headers as u64 + u64::from(packet.payload_len) + u64::from(packet.pad())
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Link {
    /// Bits per second.
    rate: u64,
    /// Maximum number of packets that wait, besides the one that is sent. `None` for a link whose
    /// sender limits the number itself.
    queue: Option<usize>,
    /// Time at which all accepted packets are sent, in picoseconds.
    free: u64,
    /// Times in nanoseconds at which the accepted packets are sent, without those that are over.
    departures: VecDeque<u64>,
}

impl Link {
    pub(super) fn new(rate: u64, queue: Option<usize>) -> Self {
        Self {
            rate,
            queue,
            free: 0,
            departures: VecDeque::new(),
        }
    }

    /// Accepts a packet at `now`. Returns the time at which its last bit is sent. Returns `None` if
    /// the queue is full: then the packet is lost (drop-tail). Times are nanoseconds.
    pub(super) fn send(&mut self, now: u64, bytes: u64) -> Option<u64> {
        if let Some(queue) = self.queue {
            while self.departures.front().is_some_and(|at| *at <= now) {
                self.departures.pop_front();
            }
            if self.departures.len() > queue {
                return None;
            }
        }
        self.free = self.free.max(now * 1000) + bytes * 8 * SECOND / self.rate;
        let departure = self.free.div_ceil(1000);
        if self.queue.is_some() {
            self.departures.push_back(departure);
        }
        Some(departure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    #[test]
    fn packets_leave_at_the_rate_of_the_link() {
        let mut link = Link::new(10 * GIGABIT, None);
        // 1,250 bytes take a microsecond.
        assert_eq!(link.send(500, 1250), Some(1500));
        assert_eq!(link.send(500, 1250), Some(2500));
        assert_eq!(link.send(2400, 125), Some(2600));
        // The link was idle.
        assert_eq!(link.send(9000, 1250), Some(10_000));
    }

    #[test]
    fn fractions_of_nanoseconds_add_up() {
        let mut link = Link::new(40 * GIGABIT, None);
        // 64 bytes take 12.8 ns.
        let last = (0..1000).filter_map(|_| link.send(0, 64)).last();
        assert_eq!(last, Some(12_800));
    }

    #[test]
    fn a_full_queue_drops_the_newest_packet() {
        let mut link = Link::new(10 * GIGABIT, Some(2));
        // One packet is sent, two wait.
        let sent = [(); 5].map(|()| link.send(0, 1250));
        assert_eq!(sent, [Some(1000), Some(2000), Some(3000), None, None]);
        assert_eq!(link.send(999, 1250), None);
        // One packet has left, so there is room for one.
        assert_eq!(link.send(1000, 1250), Some(4000));
        assert_eq!(link.send(1000, 1250), None);
    }

    #[test]
    fn a_link_passes_as_many_bytes_as_its_rate_allows() {
        let mut link = Link::new(10 * GIGABIT, Some(64));
        // Twice as many bytes as the link can send in a millisecond.
        let accepted = (0..2000).filter(|i| link.send(i * 500, 1250).is_some());
        // Those of a millisecond, and those that wait at its end.
        assert_eq!(accepted.count(), 1000 + 64);
    }

    #[test]
    fn a_packet_occupies_the_link_with_all_its_headers() {
        use roce::ids::Qpn;
        use roce::psn::Psn;
        use roce::wire::packet::{Body, Bth, Service, WritePart};
        let packet = Packet {
            service: Service::Rc,
            bth: Bth::new(Qpn::new(1), Psn::new(0)),
            body: Body::Write(WritePart::Middle),
            payload_len: 4093,
        };
        // Ethernet 14, IPv4 20, UDP 8, BTH 12, payload, pad 3, ICRC 4, preamble, FCS and gap 24.
        assert_eq!(wire_bytes(&packet), 14 + 20 + 8 + 12 + 4096 + 4 + 24);
    }
}
