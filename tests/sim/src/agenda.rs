// SPDX-License-Identifier: GPL-2.0

//! The event queue: events in the order of virtual time, and in the order of their creation at
//! equal times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use roce::wire::packet::Packet;

use crate::swarm::Chaos;

/// A datagram on the network, to the end with index `to`. `epoch` is the number of the connection
/// that it belongs to.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) to: usize,
    pub(crate) epoch: u32,
    pub(crate) datagram: Vec<u8>,
    /// The packet that was sent. `None` if the network flipped some of its bits.
    pub(crate) intact: Option<Packet>,
}

/// An event. A `usize` is the index of an end, which is one QP of a connection, or of a pair of
/// ends. A `u32` is an epoch: the number of the end's connection when the event was created.
#[derive(Debug)]
pub(crate) enum Event {
    Arrive(Flight),
    Timer(usize),
    Poll(usize),
    App(usize),
    Chaos(Chaos),
    /// A pair establishes a new connection, since an end broke, was reset or was destroyed.
    Recover(usize),
    /// A delayed transition of an end from RTR to RTS.
    Ready(usize, u32),
    /// The transition of an end from SQD to RTS, once its send queue has drained.
    Undrain(usize, u32),
    /// The transition of an end from SQE to RTS.
    Resume(usize, u32),
    /// Packets reach again the node to which the network dropped all packets.
    BlackholeEnds,
}

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    serial: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Orders the earliest entry as the greatest, since the heap returns the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

/// The queue of future events.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    serial: u64,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            serial: 0,
        }
    }
}

impl<E> Agenda<E> {
    pub(crate) fn at(&mut self, at: u64, event: E) {
        self.serial += 1;
        self.heap.push(Entry {
            at,
            serial: self.serial,
            event,
        });
    }

    pub(crate) fn next(&mut self) -> Option<(u64, E)> {
        let entry = self.heap.pop()?;
        Some((entry.at, entry.event))
    }
}
