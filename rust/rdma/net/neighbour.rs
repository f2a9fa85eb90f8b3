// SPDX-License-Identifier: GPL-2.0

//! Whether the link-layer address of the next hop to a destination is known.

use core::ptr::NonNull;

use kernel::{ffi::c_void, sync::rcu};

use super::{
    netdev::Netdev,
    route::{Flow, Route},
};
use crate::{
    bindings,
    gid::{Gid, Network},
};

/// An entry of a neighbour table.
///
/// # Invariants
///
/// `self` owns a count of the valid entry.
struct Neighbour(NonNull<bindings::neighbour>);

impl Neighbour {
    /// Its link-layer address is known, or it needs none.
    fn is_valid(&self) -> bool {
        // SAFETY: Valid by the type invariant. The state is one byte, which others write.
        let state = unsafe { (&raw const (*self.0.as_ptr()).nud_state).read_volatile() };
        u32::from(state) & bindings::NUD_VALID != 0
    }

    /// Begins to ask for its address, unless it is valid.
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

/// Whether a packet for `flow` could leave at once: its destination is local, or the link-layer address of its next hop
/// is known. If not, and `may_ask` says so, begins to ask for it; only then a new entry is made in the tables of
/// neighbours. Policies of IPsec are not asked.
///
/// # Context
///
/// Any but hard interrupts; doesn't sleep.
pub fn is_known(netdev: &Netdev, flow: &Flow, may_ask: impl FnOnce() -> bool) -> bool {
    let readers = rcu::read_lock();
    let Ok(route) = Route::of_packet(netdev, flow, &readers) else {
        return false;
    };
    if route.is_local() {
        return true;
    }
    if find(&route, flow.destination, &readers).is_some_and(|neighbour| neighbour.is_valid()) {
        return true;
    }
    may_ask() && asked(&route, flow.destination)
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

/// Finds or makes the entry of the next hop, and begins to ask for its address. Returns whether it is known by then, as
/// that of a device without neighbours.
fn asked(route: &Route, destination: Gid) -> bool {
    let dst = route.hold();
    // SAFETY: The entry is valid while its count is held, and the key an address of its version.
    let found = unsafe { bindings::dst_neigh_lookup(dst, key_of(&destination)) };
    // SAFETY: Gives up the count that was just taken.
    unsafe { bindings::dst_release(dst) };
    // INVARIANT: The function took a count.
    let Some(neighbour) = NonNull::new(found).map(Neighbour) else {
        return false;
    };
    if neighbour.is_valid() {
        return true;
    }
    neighbour.ask();
    false
}
