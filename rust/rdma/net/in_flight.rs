// SPDX-License-Identifier: GPL-2.0

//! The packets of a sender that are on their way through this host.
//!
//! The administrator of a network namespace can have a queue hold a packet for as long as the namespace lives. The packet's
//! destructor is code of this module. So a [`Slot`] names the buffer of each packet, and the end of the module gives these
//! buffers destructors that are code of the kernel ([`Slots::take_back`]).
//!
//! The network stack calls a buffer's destructor once, before it frees the buffer (`skb_orphan()`, include/linux/skbuff.h;
//! `skb_release_head_state()`, net/core/skbuff.c). But GRO clears the destructor of a buffer that it merges into another one,
//! without a call (`skb_gro_receive()`, net/core/gro.c). An administrator of a container can have this: a packet of another
//! namespace reaches GRO by MACsec with a cipher that works asynchronously (`macsec_decrypt_done()`, drivers/net/macsec.c). So
//! what is sent is a clone, and the slot keeps the original until the destructor was called. Both are one object of the slab
//! allocator (`struct sk_buff_fclones`, include/linux/skbuff.h). While the slot keeps the original, the clone's fields can be
//! read, also when the clone was freed, and the object tells whether it was. So a sender without credit gets back that of
//! clones which were freed without a call ([`Slots::recover`]).

use core::ptr;

use kernel::{
    ffi::c_void,
    list::{impl_list_arc_safe, impl_list_item, ListArc, ListLinks},
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, ArcBorrow,
    },
    time::msecs_to_jiffies,
    types::ForeignOwnable,
};

use super::tx_limit::TxCount;
use crate::bindings;

/// A destructor of buffers.
///
/// # Safety
///
/// The buffer is valid.
type Destructor = unsafe extern "C" fn(*mut bindings::sk_buff);

/// Stands for a packet that the end of the module has taken back.
const TAKEN: *mut bindings::sk_buff = ptr::without_provenance_mut(1);

/// Stands for a packet that the sender looks at, to see whether it was freed.
const CHECKED: *mut bindings::sk_buff = ptr::without_provenance_mut(2);

/// Stands for a packet whose destructor was called while it was [`CHECKED`].
const LEFT: *mut bindings::sk_buff = ptr::without_provenance_mut(3);

/// Milliseconds between two searches for packets that were freed without a call of their destructor.
pub(super) const RECOVERY_MS: u32 = 1000;

/// The time in jiffies, modulo 2³².
fn jiffies() -> u32 {
    // SAFETY: The kernel's variable, which it changes as a whole.
    let now = unsafe { (&raw const kernel::bindings::jiffies).read_volatile() };
    now as u32
}

/// The task of a packet's destructor.
pub(super) enum Departure {
    /// The slot is free. The packet held this credit.
    Over(Arc<TxCount>),
    /// Nothing: the sender, which looks at the packet just now, frees the slot.
    Noted,
    /// The end of the module has taken the packet, or takes it just now. The slot keeps the credit.
    Taken,
}

/// Room for a packet.
///
/// # Invariants
///
/// While `skb` is not null, `credit` is from `Arc::<TxCount>::into_foreign()`, and the slot owns that reference. It owns
/// `original`, too, which is in one object with the buffer that `skb` was.
pub(super) struct Slot {
    /// The packet's buffer, a clone; null, [`TAKEN`], [`CHECKED`] or [`LEFT`].
    skb: Atomic<*mut bindings::sk_buff>,
    /// The buffer that it is the clone of.
    original: Atomic<*mut bindings::sk_buff>,
    credit: Atomic<*mut c_void>,
    /// When the packet was sent, in jiffies.
    sent: Atomic<u32>,
}

impl Slot {
    fn new() -> Self {
        // INVARIANT: `skb` is null.
        Self {
            skb: Atomic::new(ptr::null_mut()),
            original: Atomic::new(ptr::null_mut()),
            credit: Atomic::new(ptr::null_mut()),
            sent: Atomic::new(0),
        }
    }

    /// Gives the slot, which is free, the clone `skb` of `original`. It holds `credit` until [`Self::leave`]. One caller at a
    /// time.
    ///
    /// # Safety
    ///
    /// The caller owns `skb` and gives up `original`; both are in one object.
    pub(super) unsafe fn enter(
        &self,
        skb: *mut bindings::sk_buff,
        original: *mut bindings::sk_buff,
        credit: &Arc<TxCount>,
    ) {
        // INVARIANT: The slot owns what it gets here before it has a packet.
        self.original.store(original, ordering::Relaxed);
        self.credit
            .store(credit.clone().into_foreign(), ordering::Relaxed);
        self.sent.store(jiffies(), ordering::Relaxed);
        self.skb.store(skb, ordering::Release);
    }

    fn is_free(&self) -> bool {
        self.skb.load(ordering::Relaxed).is_null()
    }

    /// The credit that the slot's packet holds.
    ///
    /// # Safety
    ///
    /// The slot has a packet, and keeps the credit while the result lives.
    pub(super) unsafe fn credit(&self) -> ArcBorrow<'_, TxCount> {
        // SAFETY: By the type invariant and the caller's promise.
        unsafe { Arc::borrow(self.credit.load(ordering::Relaxed)) }
    }

    /// Frees the slot if `state` is what stands in `skb`, and returns the credit.
    ///
    /// # Errors
    ///
    /// The state that stands there instead.
    fn clear(&self, state: *mut bindings::sk_buff) -> Result<Arc<TxCount>, *mut bindings::sk_buff> {
        let (free, credit) = (ptr::null_mut(), self.credit.load(ordering::Relaxed));
        let original = self.original.load(ordering::Relaxed);
        self.skb.cmpxchg(state, free, ordering::Full)?;
        // SAFETY: By the type invariant. Whoever clears the slot has the buffer, and only one caller does.
        unsafe { bindings::consume_skb(original) };
        // SAFETY: By the type invariant. Whoever clears the slot has its reference, and only one caller does.
        Ok(unsafe { Arc::from_foreign(credit) })
    }

    /// Frees the slot of `skb`. To be called by the packet's destructor.
    pub(super) fn leave(&self, skb: *mut bindings::sk_buff) -> Departure {
        // Another round follows only if the sender has ended a look meanwhile: two in [`RECOVERY_MS`] at most.
        loop {
            match self.clear(skb) {
                Ok(credit) => return Departure::Over(credit),
                Err(state) if state != CHECKED => return Departure::Taken,
                Err(_) => {}
            }
            if self.skb.cmpxchg(CHECKED, LEFT, ordering::Full).is_ok() {
                return Departure::Noted;
            }
        }
    }

    /// Frees the slot if its packet was freed without a call of its destructor, and returns the credit. One caller at a time;
    /// none calls [`Self::enter`] or [`Self::take_back`] meanwhile.
    fn recover(&self) -> Option<Arc<TxCount>> {
        let skb = self.skb.load(ordering::Relaxed);
        if skb.is_null() || self.skb.cmpxchg(skb, CHECKED, ordering::Full).is_err() {
            return None;
        }
        let original = self.original.load(ordering::Relaxed);
        // SAFETY: The slot owns the buffer, and nobody else clears the slot while the packet is `CHECKED` or `LEFT`.
        let exists = unsafe { bindings::skb_fclone_exists(original) };
        if exists && self.skb.cmpxchg(CHECKED, skb, ordering::Full).is_ok() {
            return None;
        }
        self.clear(CHECKED).or_else(|left| self.clear(left)).ok()
    }

    /// Gives the slot's packet, if it has one, a destructor that is code of the kernel instead of `own`.
    ///
    /// # Safety
    ///
    /// `own` must not return for a packet for which [`Self::leave`] returned [`Departure::Taken`] until this has returned.
    unsafe fn take_back(&self, own: Destructor) {
        let skb = self.skb.load(ordering::Acquire);
        if skb.is_null() || self.skb.cmpxchg(skb, TAKEN, ordering::Full).is_err() {
            return;
        }
        // SAFETY: The slot keeps the object that the buffer is a part of, also if the buffer was freed without a call of `own`.
        let destructor = unsafe { bindings::skb_destructor(skb) };
        // GRO may have cleared it.
        if destructor.map(|found| found as usize) != Some(own as usize) {
            return;
        }
        // It reports to user space that its memory was sent, and the packet has no such memory. No exported function does
        // less. The network stack reads the field more than once before the call, so null is not allowed.
        let other: Destructor = bindings::skb_tx_error;
        // SAFETY: As above. This is the last access to the buffer.
        unsafe { bindings::skb_set_destructor(skb, Some(other)) };
    }
}

/// In whose hands slots are.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Place {
    /// The sender uses them.
    Sender,
    /// The sender has ended.
    Ended,
    /// The end of the module has taken back their packets.
    Taken,
}

const SENDER: i32 = Place::Sender as i32;
const ENDED: i32 = Place::Ended as i32;

/// The packets in flight of one sender.
#[pin_data]
pub(super) struct Slots {
    #[pin]
    links: ListLinks,
    slots: KVVec<Slot>,
    /// Where the search for a free slot begins: packets mostly leave in the order in which they were sent.
    next: Atomic<usize>,
    /// When packets were last looked at, in jiffies.
    searched: Atomic<u32>,
    place: Atomic<i32>,
}

impl_list_arc_safe! { impl ListArcSafe<0> for Slots { untracked; } }
impl_list_item! { impl ListItem<0> for Slots { using ListLinks { self.links }; } }

impl Slots {
    /// For `limit` packets.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(limit: u32) -> Result<ListArc<Self>> {
        let mut slots = KVVec::with_capacity(limit as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..limit {
            slots.push(Slot::new(), GFP_KERNEL_ACCOUNT)?;
        }
        let slots = try_pin_init!(Self {
            links <- ListLinks::new(),
            slots,
            next: Atomic::new(0),
            searched: Atomic::new(jiffies()),
            place: Atomic::new(Place::Sender as i32),
        });
        ListArc::pin_init(slots, GFP_KERNEL_ACCOUNT)
    }

    /// A slot without a packet. One caller at a time. `None` if all have packets.
    pub(super) fn free(&self) -> Option<&Slot> {
        let (before, after) = self
            .slots
            .split_at_checked(self.next.load(ordering::Relaxed))?;
        let steps = Iterator::chain(after.iter(), before).position(Slot::is_free)?;
        let index = steps.wrapping_add(before.len());
        let index = index.checked_sub(self.slots.len()).unwrap_or(index);
        self.next.store(index, ordering::Relaxed);
        self.slots.get(index)
    }

    /// How many packets were sent `age` jiffies ago or earlier. Any context.
    pub(super) fn older_than(&self, age: u32) -> usize {
        let now = jiffies();
        let is_old = |slot: &&Slot| {
            !slot.is_free() && now.wrapping_sub(slot.sent.load(ordering::Relaxed)) >= age
        };
        self.slots.iter().filter(is_old).count()
    }

    /// Whether this was last answered with yes at least [`RECOVERY_MS`] ago. One caller at a time, the one of [`Self::free`].
    pub(super) fn is_time_to_recover(&self) -> bool {
        let (now, interval) = (jiffies(), msecs_to_jiffies(RECOVERY_MS) as u32);
        let is_time = now.wrapping_sub(self.searched.load(ordering::Relaxed)) >= interval;
        if is_time {
            self.searched.store(now, ordering::Relaxed);
        }
        is_time
    }

    /// Frees the slots of packets that were freed without a call of their destructor, and returns their credits. One caller at a
    /// time, the one of [`Self::free`] or, if the sender has ended, whoever excludes [`Self::take_back`]. Any context.
    pub(super) fn recover(&self) -> impl Iterator<Item = Arc<TxCount>> + '_ {
        self.slots.iter().filter_map(Slot::recover)
    }

    /// The caller excludes changes.
    pub(super) fn place(&self) -> Place {
        match self.place.load(ordering::Relaxed) {
            SENDER => Place::Sender,
            ENDED => Place::Ended,
            _ => Place::Taken,
        }
    }

    /// The caller excludes other calls.
    pub(super) fn set_place(&self, place: Place) {
        self.place.store(place as i32, ordering::Relaxed);
    }

    /// Gives the packets destructors that are code of the kernel instead of `own`.
    ///
    /// # Safety
    ///
    /// As of [`Slot::take_back`]. The sender has ended.
    pub(super) unsafe fn take_back(&self, own: Destructor) {
        self.set_place(Place::Taken);
        for slot in &self.slots {
            // SAFETY: The caller's promise.
            unsafe { slot.take_back(own) };
        }
    }

    /// Drops the credits and the originals of the packets that were taken back. Process context.
    pub(super) fn release(&self) {
        for slot in &self.slots {
            drop(slot.clear(TAKEN));
        }
    }
}
