// SPDX-License-Identifier: GPL-2.0

//! The packets of a sender, such as a QP, that are in flight in this host.
//!
//! A packet is in flight from its transmission until its buffer's destructor is called. The
//! destructor is a function of this kernel module. It frees the packet's [`Slot`].
//!
//! The administrator of a network namespace can have a queue hold a packet for as long as the
//! namespace exists. The kernel module must be removable meanwhile. So each slot records the buffer
//! of its packet. The module's exit replaces the destructors of these buffers by a function of the
//! kernel ([`Slots::take_back`]).
//!
//! The network stack calls a buffer's destructor once, before it frees the buffer (`skb_orphan()`,
//! include/linux/skbuff.h; `skb_release_head_state()`, net/core/skbuff.c). But GRO clears the
//! destructor of a buffer that it merges into another one, without a call (`skb_gro_receive()`,
//! net/core/gro.c). The administrator of a container can cause this: a packet from another
//! namespace reaches GRO by MACsec with an asynchronous cipher (`macsec_decrypt_done()`,
//! drivers/net/macsec.c).
//!
//! So a sender sends a clone, and the slot keeps the original until the destructor was called. Both
//! are one object of the slab allocator (`struct sk_buff_fclones`, include/linux/skbuff.h). While
//! the slot keeps the original, the clone's fields can be read even if the clone was freed, and the
//! object shows whether the clone was freed. A sender that has as many packets in flight as it may
//! have (its tx limit) finds the clones that were freed without a call, and frees their slots
//! ([`Slots::recover`]).

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

/// A destructor of buffers (`sk_buff.destructor`).
///
/// # Safety
///
/// The buffer must be valid.
type Destructor = unsafe extern "C" fn(*mut bindings::sk_buff);

/// State of a slot whose packet the module's exit has taken back.
const TAKEN: *mut bindings::sk_buff = ptr::without_provenance_mut(1);

/// State of a slot while the sender checks whether the packet's buffer was freed.
const CHECKED: *mut bindings::sk_buff = ptr::without_provenance_mut(2);

/// State of a slot whose packet's destructor was called while the state was [`CHECKED`].
const DESTROYED: *mut bindings::sk_buff = ptr::without_provenance_mut(3);

/// Interval between two searches for packets that were freed without a call of their destructor, in
/// milliseconds.
pub(super) const RECOVERY_MS: u32 = 1000;

/// Returns the time in jiffies, modulo 2³².
fn jiffies() -> u32 {
    // SAFETY: The variable is always valid, and the kernel writes it in one store.
    let now = unsafe { (&raw const kernel::bindings::jiffies).read_volatile() };
    now as u32
}

/// The contents of a slot that was freed.
pub(super) struct Freed {
    /// The slot's reference to the count.
    pub(super) tx_count: Arc<TxCount>,
    /// Number of packets.
    pub(super) packets: u32,
}

/// The result of [`Slot::vacate`] for a packet's destructor.
pub(super) enum Departure {
    /// The slot is free. The caller subtracts its packets from the count.
    Freed(Freed),
    /// The sender is checking the packet, and frees the slot.
    Checking,
    /// The module's exit has taken the packet back, or is doing so. The slot keeps its reference to
    /// the [`TxCount`].
    Taken,
}

/// A place for one buffer in flight: a packet, or a burst (`skb/burst.rs`).
///
/// # Invariants
///
/// While `skb` is not null, `tx_count` comes from `Arc::<TxCount>::into_foreign()`, and the slot
/// owns that reference. The slot then owns `original`, too, which is in one object with the buffer
/// that `skb` was.
pub(super) struct Slot {
    /// The state: the packet's buffer, which is a clone; null if the slot is free; [`TAKEN`],
    /// [`CHECKED`] or [`DESTROYED`].
    skb: Atomic<*mut bindings::sk_buff>,
    /// The buffer of which the packet's buffer is a clone.
    original: Atomic<*mut bindings::sk_buff>,
    /// The count that the packet is a part of.
    tx_count: Atomic<*mut c_void>,
    /// Time at which the packet was sent, in jiffies modulo 2³².
    sent: Atomic<u32>,
    /// Number of packets of the buffer.
    packets: Atomic<u32>,
}

impl Slot {
    /// Creates a free slot.
    fn new() -> Self {
        // INVARIANT: `skb` is null.
        Self {
            skb: Atomic::new(ptr::null_mut()),
            original: Atomic::new(ptr::null_mut()),
            tx_count: Atomic::new(ptr::null_mut()),
            sent: Atomic::new(0),
            packets: Atomic::new(0),
        }
    }

    /// Records the clone `skb` of `original`, which has `packets` packets, in the slot, which must
    /// be free. The slot holds a reference to `tx_count` until the slot is free again.
    ///
    /// Only one caller at a time may occupy slots.
    ///
    /// # Safety
    ///
    /// The caller must own `skb`, and gives up `original`. Both must be in one `struct
    /// sk_buff_fclones`.
    pub(super) unsafe fn occupy(
        &self,
        skb: *mut bindings::sk_buff,
        original: *mut bindings::sk_buff,
        packets: u32,
        tx_count: &Arc<TxCount>,
    ) {
        // INVARIANT: The slot gets the original and the reference before `skb` becomes non-null.
        self.original.store(original, ordering::Relaxed);
        self.tx_count
            .store(tx_count.clone().into_foreign(), ordering::Relaxed);
        self.sent.store(jiffies(), ordering::Relaxed);
        self.packets.store(packets, ordering::Relaxed);
        self.skb.store(skb, ordering::Release);
    }

    /// Returns whether the slot has no packet.
    fn is_free(&self) -> bool {
        self.skb.load(ordering::Relaxed).is_null()
    }

    /// Returns the number of packets of the slot's buffer. Meaningless if the slot is free.
    pub(super) fn packets(&self) -> u32 {
        self.packets.load(ordering::Relaxed)
    }

    /// Returns the count that the slot's packet is a part of.
    ///
    /// # Safety
    ///
    /// The slot must have a packet, and keep its reference while the result lives.
    pub(super) unsafe fn tx_count(&self) -> ArcBorrow<'_, TxCount> {
        // SAFETY: The caller guarantees that the slot has a packet and keeps its reference while
        // the result lives (see `# Safety`). By the type invariant `tx_count` then comes from
        // `Arc::into_foreign()`.
        unsafe { Arc::borrow(self.tx_count.load(ordering::Relaxed)) }
    }

    /// Frees the slot if its state is `state`. Returns the slot's contents.
    ///
    /// # Errors
    ///
    /// Returns the state if it is another one.
    fn clear(&self, state: *mut bindings::sk_buff) -> Result<Freed, *mut bindings::sk_buff> {
        let packets = self.packets();
        let (free, tx_count) = (ptr::null_mut(), self.tx_count.load(ordering::Relaxed));
        let original = self.original.load(ordering::Relaxed);
        self.skb.cmpxchg(state, free, ordering::Full)?;
        // SAFETY: By the type invariant the slot owned `original`. The exchange above succeeds for
        // one caller only, so the buffer is freed once.
        unsafe { bindings::consume_skb(original) };
        // SAFETY: By the type invariant `tx_count` comes from `Arc::into_foreign()`. The exchange
        // above succeeds for one caller only, so the reference is taken once.
        let tx_count = unsafe { Arc::from_foreign(tx_count) };
        Ok(Freed { tx_count, packets })
    }

    /// Frees the slot of `skb`. The packet's destructor calls this, in any context.
    pub(super) fn vacate(&self, skb: *mut bindings::sk_buff) -> Departure {
        // The loop repeats only if the sender ended a check meanwhile, which happens twice in
        // [`RECOVERY_MS`] at most.
        loop {
            match self.clear(skb) {
                Ok(freed) => return Departure::Freed(freed),
                Err(state) if state != CHECKED => return Departure::Taken,
                Err(_) => {}
            }
            if self.skb.cmpxchg(CHECKED, DESTROYED, ordering::Full).is_ok() {
                return Departure::Checking;
            }
        }
    }

    /// Frees the slot if its packet was freed without a call of its destructor. Returns the slot's
    /// contents then.
    ///
    /// Only one caller at a time is allowed, and no concurrent call of [`Self::occupy`] or
    /// [`Self::take_back`].
    fn recover(&self) -> Option<Freed> {
        let skb = self.skb.load(ordering::Relaxed);
        if skb.is_null() || self.skb.cmpxchg(skb, CHECKED, ordering::Full).is_err() {
            return None;
        }
        let original = self.original.load(ordering::Relaxed);
        // SAFETY: The slot owns the buffer. No other code frees the slot while its state is
        // `CHECKED` or `DESTROYED`.
        let exists = unsafe { bindings::skb_fclone_exists(original) };
        if exists && self.skb.cmpxchg(CHECKED, skb, ordering::Full).is_ok() {
            return None;
        }
        self.clear(CHECKED)
            .or_else(|destroyed| self.clear(destroyed))
            .ok()
    }

    /// Replaces the destructor `own` of the slot's packet, if there is one, by a function of the
    /// kernel.
    ///
    /// # Safety
    ///
    /// If [`Self::vacate`] returned [`Departure::Taken`] to a call of `own`, that call must not
    /// return before this function has returned.
    unsafe fn take_back(&self, own: Destructor) {
        let skb = self.skb.load(ordering::Acquire);
        if skb.is_null() || self.skb.cmpxchg(skb, TAKEN, ordering::Full).is_err() {
            return;
        }
        // SAFETY: The slot owns the original, so the object that contains both buffers is
        // allocated, even if this buffer was freed without a call of `own`.
        let destructor = unsafe { bindings::skb_destructor(skb) };
        // GRO may have cleared the destructor.
        if destructor.map(|found| found as usize) != Some(own as usize) {
            return;
        }
        // `skb_tx_error()` reports to user space that zero-copy memory was sent, and this packet
        // has no such memory. No exported function of this type does less. The network stack reads
        // the field more than once before the call, so the field must not become null.
        let other: Destructor = bindings::skb_tx_error;
        // SAFETY: The slot owns the original, so the object that contains both buffers is
        // allocated. This is the last access to the buffer.
        unsafe { bindings::skb_set_destructor(skb, Some(other)) };
    }
}

/// The stage of life of a sender's slots. It tells which list of `TxLimits` (`net/senders.rs`) the
/// slots are in.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Stage {
    /// The sender uses the slots.
    Sender,
    /// The sender has ended.
    Ended,
    /// The module's exit has taken the packets back.
    Taken,
}

const SENDER: i32 = Stage::Sender as i32;
const ENDED: i32 = Stage::Ended as i32;

/// The slots of one sender.
#[pin_data]
pub(super) struct Slots {
    #[pin]
    links: ListLinks,
    slots: KVVec<Slot>,
    /// Index at which the search for a free slot begins. Most packets are freed in the order in
    /// which they were sent.
    next: Atomic<usize>,
    /// Time of the last search for packets that were freed without a call of their destructor, in
    /// jiffies modulo 2³².
    searched: Atomic<u32>,
    /// The stage of life: a [`Stage`] as a number.
    stage: Atomic<i32>,
}

impl_list_arc_safe! { impl ListArcSafe<0> for Slots { untracked; } }
impl_list_item! { impl ListItem<0> for Slots { using ListLinks { self.links }; } }

impl Slots {
    /// Creates `limit` free slots.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
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
            stage: Atomic::new(Stage::Sender as i32),
        });
        ListArc::pin_init(slots, GFP_KERNEL_ACCOUNT)
    }

    /// Returns a free slot, or `None` if all have packets. Only one caller at a time is allowed.
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

    /// Returns the number of packets in flight that were sent at least `age` jiffies ago. Callable
    /// in any context.
    pub(super) fn older_than(&self, age: u32) -> usize {
        let now = jiffies();
        let is_old = |slot: &&Slot| {
            !slot.is_free() && now.wrapping_sub(slot.sent.load(ordering::Relaxed)) >= age
        };
        self.slots.iter().filter(is_old).count()
    }

    /// Returns whether a search for packets is due: [`RECOVERY_MS`] have passed since the last call
    /// that returned `true`, or since the slots were created.
    ///
    /// Only one caller at a time is allowed, the one that calls [`Self::free`].
    pub(super) fn is_time_to_recover(&self) -> bool {
        let (now, interval) = (jiffies(), msecs_to_jiffies(RECOVERY_MS) as u32);
        let is_time = now.wrapping_sub(self.searched.load(ordering::Relaxed)) >= interval;
        if is_time {
            self.searched.store(now, ordering::Relaxed);
        }
        is_time
    }

    /// Frees the slots of packets that were freed without a call of their destructor. Returns the
    /// contents of the slots.
    ///
    /// Callable in any context. Only one caller at a time is allowed: the one that calls
    /// [`Self::free`] or, if the sender has ended, a caller that excludes [`Self::take_back`].
    pub(super) fn recover(&self) -> impl Iterator<Item = Freed> + '_ {
        self.slots.iter().filter_map(Slot::recover)
    }

    /// Returns the stage of life. The caller must exclude concurrent changes.
    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(ordering::Relaxed) {
            SENDER => Stage::Sender,
            ENDED => Stage::Ended,
            _ => Stage::Taken,
        }
    }

    /// Sets the stage of life. The caller must exclude concurrent calls.
    pub(super) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as i32, ordering::Relaxed);
    }

    /// Replaces the destructors `own` of the packets by a function of the kernel. The sender must
    /// not send any more.
    ///
    /// # Safety
    ///
    /// If [`Slot::vacate`] returned [`Departure::Taken`] to a call of `own`, that call must not
    /// return before this function has returned.
    pub(super) unsafe fn take_back(&self, own: Destructor) {
        self.set_stage(Stage::Taken);
        for slot in &self.slots {
            // SAFETY: The caller guarantees that calls of `own` which found a packet taken do not
            // return before this function has returned (see `# Safety`).
            unsafe { slot.take_back(own) };
        }
    }

    /// Drops the originals and the references to the [`TxCount`] of the packets that were taken
    /// back. Must be called in process context.
    pub(super) fn release(&self) {
        for slot in &self.slots {
            drop(slot.clear(TAKEN));
        }
    }
}
