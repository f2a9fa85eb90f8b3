// SPDX-License-Identifier: GPL-2.0

//! Memory windows: narrower, revocable views of regions for peers (IBTA 1.x §10.6.7).
//!
//! A window is bound to part of a region by a work request and grants rights of its own. One of type
//! 1 serves all QPs of its protection domain; one of type 2B the QP that bound it, until it is
//! invalidated, or that QP destroyed or reset.
//!
//! An access holds the window's lock from the check until the last byte is copied: so when an
//! invalidation returns, nobody is still writing through the window. A region counts the windows
//! bound to it and stays as long as there are any; so a binding names its region by key.

use core::ops::RangeInclusive;

use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow},
};
use rdma::{
    new_bh_spinlock,
    support::{
        read_section::ReadSections,
        sync::{cond_resched, BhSpinLock, BhSpinLockGuard},
        table::Table,
    },
    verbs::{mr::Access, mw::MwKind},
};
use roce::{
    host::{AccessFault, RemoteAccess},
    ids::{Lkey, Rkey},
};

use crate::{
    limits::{self, accounts::ObjectClaim},
    memory::{mr::MrTable, remote::RemoteRange},
    verbs::{
        members::{Members, Seat},
        pd::{Pd, PdId},
    },
};

/// Places of the table: the upper half of 24 bits. The lower half are regions'.
const PLACES: RangeInclusive<u32> = 0x80_0000..=0xff_ffff;

/// The key of a window that nobody can name any more: there is no place zero.
const NO_KEY: u32 = 0;

/// The QP through which a peer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteContext {
    pub(crate) pd: PdId,
    pub(crate) qpn: u32,
}

/// What a work request binds: as its poster wrote it, nothing of it checked.
pub(crate) struct Bind {
    /// The window, by its present key.
    pub(crate) window: Rkey,
    /// Its key from then on.
    pub(crate) rkey: Rkey,
    /// The region.
    pub(crate) region: Lkey,
    /// The first byte, by the region's addresses.
    pub(crate) addr: u64,
    /// Bytes; none unbinds a window of type 1.
    pub(crate) length: u64,
    /// What the window is to grant.
    pub(crate) access: Access,
}

/// Why a window could not be bound.
#[derive(Debug)]
pub(crate) struct NotBound;

/// What a window grants at present.
struct Binding {
    /// The region's key.
    region: u32,
    /// The first byte, by the region's addresses.
    start: u64,
    /// The same, by the window's.
    base: u64,
    length: u64,
    access: Access,
    /// The QP of a window of type 2B.
    qpn: Option<u32>,
}

impl Binding {
    /// Where in the region a peer comes to, if the window lets it.
    fn grants(&self, range: &RemoteRange) -> Option<u64> {
        let offset = range.va.checked_sub(self.base)?;
        let room = self.length.checked_sub(offset)?;
        let granted = u64::from(range.length) <= room
            && self.serves(range.context)
            && self.access.allows_remote(range.access);
        // Within the region, which was checked when the window was bound: it doesn't wrap.
        granted.then(|| self.start.wrapping_add(offset))
    }

    fn serves(&self, context: RemoteContext) -> bool {
        self.qpn.is_none_or(|qpn| qpn == context.qpn)
    }
}

/// What of a window changes.
struct State {
    /// The key; its upper 24 bits are the window's place in the table.
    key: u32,
    binding: Option<Binding>,
    /// Room among the windows of a QP, of a window of type 2B that is not bound.
    seat: Option<Seat>,
    /// Until the window is deallocated: readers may have it longer.
    object: Option<ObjectClaim>,
}

impl State {
    /// The QP to which alone the window grants anything.
    fn bound_by(&self) -> Option<u32> {
        self.binding.as_ref().and_then(|binding| binding.qpn)
    }
}

/// A memory window.
#[pin_data]
pub(crate) struct Mw {
    pd: PdId,
    kind: MwKind,
    /// The place in the table.
    place: u32,
    #[pin]
    state: BhSpinLock<State>,
}

impl Mw {
    /// The present key. Any context.
    pub(crate) fn rkey(&self) -> Rkey {
        Rkey(self.state.lock().key)
    }

    /// The state, if `key` is the window's and the protection domain right.
    fn open(&self, pd: PdId, key: u32) -> Option<BhSpinLockGuard<'_, State>> {
        let state = self.state.lock();
        (self.pd == pd && state.key == key).then_some(state)
    }

    /// Checks what depends on the kind of the window (IBTA 1.x §10.6.7.2.1 and .2).
    fn admits(&self, bind: &Bind, state: &State) -> bool {
        let zero_based = bind.access.is_zero_based();
        bind.rkey.0 >> 8 == self.place
            && match self.kind {
                MwKind::Type1 => !zero_based,
                MwKind::Type2B => bind.length != 0 && state.binding.is_none(),
            }
    }
}

/// All windows of a device.
///
/// What runs in a turn runs in any context that the data path runs in.
#[pin_data]
pub(crate) struct MwTable {
    #[pin]
    windows: Table<Mw>,
    /// The windows of type 2B that are bound, by the QPs that bound them.
    #[pin]
    bound: Members,
}

impl MwTable {
    /// Initialises an empty table.
    pub(crate) fn new(readers: &Arc<ReadSections>) -> impl PinInit<Self> + '_ {
        pin_init!(Self {
            windows <- Table::new(limits::MAX_MW, readers),
            bound <- Members::new(),
        })
    }

    /// Whether a key can only be a window's.
    #[inline]
    pub(crate) const fn is_window(key: u32) -> bool {
        key >> 8 >= *PLACES.start()
    }

    /// Makes a window that grants nothing yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn alloc(&self, pd: &Pd, kind: MwKind) -> Result<Arc<Mw>> {
        let object = Some(pd.claim_object()?);
        let place = self.windows.reserve_random(PLACES, limits::KEY_SCATTER)?;
        let number = place.id();
        let state = State {
            key: number.wrapping_shl(8) | (rdma::support::random::next_u32() & 0xff),
            binding: None,
            seat: match kind {
                MwKind::Type1 => None,
                MwKind::Type2B => Some(Seat::new()?),
            },
            object,
        };
        let mw = Arc::pin_init(
            pin_init!(Mw {
                pd: pd.id(),
                kind,
                place: number,
                state <- new_bh_spinlock!(state, "rrxe_mw"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        place.publish(mw.clone());
        Ok(mw)
    }

    /// Takes `mw` away: when this returns, nobody accesses memory through it. Process context.
    ///
    /// An access through it holds its lock, so readers need not be waited for before it returns. A reader that has found the
    /// window and not locked it yet finds that its key is another.
    pub(crate) fn dealloc(&self, mw: &Mw, mrs: &MrTable) {
        let rooms = {
            let mut state = mw.state.lock();
            self.unbind(mw, &mut state, mrs);
            state.key = NO_KEY;
            (state.seat.take(), state.object.take())
        };
        drop(rooms);
        // Last: `bound` knows the window by its place, which another window may have from now on.
        self.windows.retire(mw.place);
    }

    /// Carries out a work request that binds.
    ///
    /// # Errors
    ///
    /// [`NotBound`]; then nothing has changed.
    pub(crate) fn bind(
        &self,
        context: RemoteContext,
        bind: &Bind,
        mrs: &MrTable,
    ) -> Result<(), NotBound> {
        self.with(bind.window.0, |mw| {
            let mut state = mw.open(context.pd, bind.window.0)?;
            if !mw.admits(bind, &state) {
                return None;
            }
            let binding = match bind.length {
                0 => None,
                _ => Some(make_binding(context, bind, mw.kind, mrs)?),
            };
            self.unbind(&mw, &mut state, mrs);
            state.key = bind.rkey.0;
            state.binding = binding;
            self.enter(&mw, &mut state);
            Some(())
        })
        .ok_or(NotBound)
    }

    /// Takes a 2B window's grants away, by a work request or for a peer.
    ///
    /// # Errors
    ///
    /// `Denied` for a key that isn't a bound 2B window's, or that belongs to another QP.
    pub(crate) fn invalidate(
        &self,
        context: RemoteContext,
        key: u32,
        mrs: &MrTable,
    ) -> Result<(), AccessFault> {
        self.with(key, |mw| {
            let mut state = mw.open(context.pd, key)?;
            let binding = state.binding.as_ref()?;
            if mw.kind != MwKind::Type2B || !binding.serves(context) {
                return None;
            }
            self.unbind(&mw, &mut state, mrs);
            Some(())
        })
        .ok_or(AccessFault::Denied)
    }

    /// Takes the grants of all windows away that QP `qpn` bound, one by one. Process context.
    pub(crate) fn unbind_all(&self, qpn: u32, mrs: &MrTable) {
        let mut next = 0;
        while let Some(place) = self.bound.next(qpn, next) {
            self.windows.with(place, |mw| {
                let mut state = mw.state.lock();
                if state.bound_by() == Some(qpn) {
                    self.unbind(&mw, &mut state, mrs);
                }
            });
            next = place.saturating_add(1);
            cond_resched();
        }
    }

    /// Takes the grants of all windows away that are bound to the region of this key. The region takes
    /// no more windows by then. Process context.
    pub(crate) fn unbind_from(&self, region: u32, mrs: &MrTable) {
        self.windows.for_each(|_, mw| {
            let mut state = mw.state.lock();
            let binding = state.binding.as_ref();
            if binding.is_some_and(|binding| binding.region == region) {
                self.unbind(&mw, &mut state, mrs);
            }
        });
    }

    /// Counts a window that was just bound among those of its QP.
    fn enter(&self, mw: &Mw, state: &mut State) {
        if let Some((qpn, seat)) = state.bound_by().zip(state.seat.take()) {
            drop(self.bound.enter(seat, qpn, mw.place));
        }
    }

    /// Takes the window's grants away.
    fn unbind(&self, mw: &Mw, state: &mut State, mrs: &MrTable) {
        if let Some(qpn) = state.bound_by() {
            state.seat = self.bound.leave(qpn, mw.place);
        }
        if let Some(binding) = state.binding.take() {
            mrs.detach(binding.region);
        }
    }

    /// Runs `f` with the region's key and address of what a peer comes to, if a window lets it, under
    /// the window's lock.
    ///
    /// # Errors
    ///
    /// `Denied` if none does, and what `f` returns.
    pub(crate) fn with_range<R>(
        &self,
        range: &RemoteRange,
        f: impl FnOnce(u32, u64) -> Result<R, AccessFault>,
    ) -> Result<R, AccessFault> {
        self.with(range.rkey.0, |mw| {
            let state = mw.open(range.context.pd, range.rkey.0)?;
            let binding = state.binding.as_ref()?;
            let addr = binding.grants(range)?;
            Some(f(binding.region, addr))
        })
        .ok_or(AccessFault::Denied)?
    }

    /// Checks that a window grants a right, wherever.
    ///
    /// # Errors
    ///
    /// `Denied`.
    pub(crate) fn check(
        &self,
        context: RemoteContext,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.with(rkey.0, |mw| {
            let state = mw.open(context.pd, rkey.0)?;
            let binding = state.binding.as_ref()?;
            (binding.serves(context) && binding.access.allows_remote(access)).then_some(())
        })
        .ok_or(AccessFault::Denied)
    }

    fn with<R>(&self, key: u32, f: impl FnOnce(ArcBorrow<'_, Mw>) -> Option<R>) -> Option<R> {
        self.windows.with(key >> 8, f).flatten()
    }
}

/// Checks a binding against its region, and counts it there.
fn make_binding(
    context: RemoteContext,
    bind: &Bind,
    kind: MwKind,
    mrs: &MrTable,
) -> Option<Binding> {
    mrs.attach(context.pd, bind)?;
    Some(Binding {
        region: bind.region.0,
        start: bind.addr,
        base: if bind.access.is_zero_based() {
            0
        } else {
            bind.addr
        },
        length: bind.length,
        access: bind.access,
        qpn: (kind == MwKind::Type2B).then_some(context.qpn),
    })
}
