// SPDX-License-Identifier: GPL-2.0

//! Whether ib_core knows the link-layer address of a host, or would have to ask for it.

use core::ptr::NonNull;

use kernel::{ffi::c_void, sync::rcu};

use super::{netdev::Netdev, route::Route};
use crate::{
    bindings,
    gid::{Gid, Network},
};

/// What is known of the link-layer address of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// It is known, or none is needed. It stays known for three seconds at least, as it is asked three times a second apart
    /// before it is forgotten (`neigh_timer_handler()`, net/core/neighbour.c), if neither an administrator nor a want of
    /// room in the table (`neigh_forced_gc()`) makes it unknown.
    Lasting,
    /// It is known, and forgotten soon unless the hop answers.
    Fleeting,
    /// It is not known, or there is no way to the destination.
    None,
}

/// The first hop from an address of a device to a destination, by a network device: as ib_core looks it up for an answer
/// to a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The address of the device.
    pub source: Gid,
    /// The destination.
    pub destination: Gid,
    /// The index of the network device.
    pub netdev_index: u32,
}

impl Hop {
    /// What is known of the hop, in the namespace of `netdev`. If its address is not known it is asked, unless it was asked
    /// already or `may_ask` refuses; only then a new entry is made in the tables of neighbours.
    ///
    /// ib_core waits until the address is known, confirmed or not (`dst_fetch_ha()`, addr.c).
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    pub fn look_up(&self, netdev: &Netdev, mut may_ask: impl FnMut() -> bool) -> Knowledge {
        let readers = rcu::read_lock();
        let Ok(route) = Route::for_answer(netdev, self, &readers) else {
            return Knowledge::None;
        };
        if route.is_local() || route.needs_no_neighbour(&readers) {
            return Knowledge::Lasting;
        }
        if !route.is_unicast() {
            return Knowledge::None;
        }
        let found = match route.is_transformed() {
            // IPsec chooses another hop, which it needs anyway.
            true => make(&route, self.destination),
            false => find(&route, self.destination, &readers),
        };
        let found = found.or_else(|| may_ask().then(|| make(&route, self.destination)).flatten());
        let Some(neighbour) = found else {
            return Knowledge::None;
        };
        let knowledge = neighbour.knowledge();
        if knowledge == Knowledge::None && !neighbour.is_asked() && may_ask() {
            neighbour.ask();
        }
        knowledge
    }
}

/// An entry of a neighbour table.
///
/// # Invariants
///
/// `self` owns a count of the valid entry.
struct Neighbour(NonNull<bindings::neighbour>);

impl Neighbour {
    fn state(&self) -> u32 {
        // SAFETY: Valid by the type invariant. The state is one byte, which others write.
        u32::from(unsafe { (&raw const (*self.0.as_ptr()).nud_state).read_volatile() })
    }

    fn knowledge(&self) -> Knowledge {
        match self.state() {
            state if state & bindings::NUD_PROBE != 0 => Knowledge::Fleeting,
            state if state & bindings::NUD_VALID != 0 => Knowledge::Lasting,
            _ => Knowledge::None,
        }
    }

    /// Packets that ask it are on their way.
    fn is_asked(&self) -> bool {
        self.state() & bindings::NUD_INCOMPLETE != 0
    }

    /// Begins to ask for its address, which is not known.
    fn ask(&self) {
        // SAFETY: Valid by the type invariant; there is no packet to be sent then.
        unsafe { bindings::neigh_event_send(self.0.as_ptr(), core::ptr::null_mut()) };
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // SAFETY: Gives up the count that the type invariant speaks of.
        unsafe { bindings::neigh_release(self.0.as_ptr()) };
    }
}

/// The address as the tables of its version have it.
fn key_of(address: &Gid) -> *const c_void {
    match (address.network(), address.0.last_chunk::<4>()) {
        (Network::V4, Some(v4)) => v4.as_ptr().cast(),
        _ => address.0.as_ptr().cast(),
    }
}

/// The entry of the next hop, if there is one.
fn find(route: &Route, destination: Gid, readers: &rcu::Guard) -> Option<Neighbour> {
    let hop = route.next_hop(destination);
    let netdev = route.netdev(readers);
    let table = match hop.network() {
        Network::V4 => &raw mut bindings::arp_tbl,
        Network::V6 => &raw mut bindings::nd_tbl,
    };
    // SAFETY: The tables exist as long as the kernel. The key is as long as those of its table, and RCU keeps the device.
    let found = unsafe { bindings::neigh_lookup(table, key_of(&hop), netdev) };
    // INVARIANT: The function took a count.
    NonNull::new(found).map(Neighbour)
}

/// Finds or makes the entry of the next hop.
fn make(route: &Route, destination: Gid) -> Option<Neighbour> {
    let dst = route.hold();
    // SAFETY: The entry is valid while its count is held, and the key an address of its version.
    let found = unsafe { bindings::dst_neigh_lookup(dst, key_of(&destination)) };
    // SAFETY: Gives up the count that was just taken.
    unsafe { bindings::dst_release(dst) };
    // INVARIANT: The function took a count.
    NonNull::new(found).map(Neighbour)
}
