// SPDX-License-Identifier: GPL-2.0

//! Memory windows: narrower, revocable views of memory regions for peers (IBTA 1.x §10.6.7).
//!
//! A work request binds a window to a part of a region, with access rights of the window's own. A
//! window of type 1 serves all QPs of its protection domain. A window of type 2B serves the QP that
//! bound it, until the window is invalidated or the QP is destroyed or reset.
//!
//! An access through a window holds the window's lock from the check until the last byte is copied.
//! So when an invalidation returns, no write through the window is in progress. A region counts the
//! windows that are bound to it, and cannot be deregistered while there are any. A binding
//! therefore names its region by key, without a reference count.

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
        members::{MemberEntry, Members},
        pd::{Pd, PdId},
    },
};

/// Range of table indices of windows: the upper half of the 24-bit numbers. The lower half belongs
/// to regions.
const INDICES: RangeInclusive<u32> = 0x80_0000..=0xff_ffff;

/// Key of a deallocated window. No work request can name it, because no window has index zero.
const NO_KEY: u32 = 0;

/// Protection domain and number by which a QP accesses memory for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteContext {
    /// Protection domain of the QP. For an XRC target QP, that of the shared receive queue that the
    /// request names.
    pub(crate) pd: PdId,
    /// QP number.
    pub(crate) qpn: u32,
}

/// Operands of a bind work request, unchecked as the consumer wrote them.
pub(crate) struct Bind {
    /// Present key of the window.
    pub(crate) window: Rkey,
    /// New key of the window.
    pub(crate) rkey: Rkey,
    /// L_Key of the region.
    pub(crate) region: Lkey,
    /// Address of the first byte, in the region's addresses.
    pub(crate) addr: u64,
    /// Number of bytes. Zero unbinds a window of type 1.
    pub(crate) length: u64,
    /// Rights that the window shall grant.
    pub(crate) access: Access,
}

/// The error of a bind work request that was refused.
#[derive(Debug)]
pub(crate) struct NotBound;

/// The present binding of a window.
struct Binding {
    /// Key of the region.
    region: u32,
    /// Address of the first byte, in the region's addresses.
    start: u64,
    /// Address of the first byte, in the window's addresses: zero, or the same as `start`.
    base: u64,
    /// Number of bytes.
    length: u64,
    /// Rights that the window grants.
    access: Access,
    /// Number of the QP that bound a window of type 2B; `None` for a window of type 1.
    qpn: Option<u32>,
}

impl Binding {
    /// Returns the address of the peer's access in the region, if the window grants the access.
    fn grants(&self, range: &RemoteRange) -> Option<u64> {
        let offset = range.va.checked_sub(self.base)?;
        let room = self.length.checked_sub(offset)?;
        let granted = u64::from(range.length) <= room
            && self.serves(range.context)
            && self.access.allows_remote(range.access);
        // The sum doesn't wrap: it is within the region, which was checked when the window was
        // bound.
        granted.then(|| self.start.wrapping_add(offset))
    }

    /// Returns whether the binding serves the QP of `context`.
    fn serves(&self, context: RemoteContext) -> bool {
        self.qpn.is_none_or(|qpn| qpn == context.qpn)
    }
}

/// The mutable state of a window.
struct State {
    /// Present key. Its upper 24 bits are the window's index in the table.
    key: u32,
    /// Present binding; `None` while the window is not bound.
    binding: Option<Binding>,
    /// Tree node by which the window will be listed under the QP that binds it. `None` for a window
    /// of type 1, and while a window of type 2B is bound.
    entry: Option<MemberEntry>,
    /// Claim on the object limit, until the window is deallocated. Readers of the table may hold
    /// the window itself longer.
    object: Option<ObjectClaim>,
}

impl State {
    /// Returns the number of the only QP that the present binding serves, `None` for other
    /// bindings.
    fn bound_by(&self) -> Option<u32> {
        self.binding.as_ref().and_then(|binding| binding.qpn)
    }
}

/// A memory window.
#[pin_data]
pub(crate) struct Mw {
    /// Protection domain of the window.
    pd: PdId,
    /// Type of the window.
    kind: MwKind,
    /// Index in the table.
    index: u32,
    /// Mutable state. The lock is held during each access through the window.
    #[pin]
    state: BhSpinLock<State>,
}

impl Mw {
    /// Returns the present key. Any context up to softirq.
    pub(crate) fn rkey(&self) -> Rkey {
        Rkey(self.state.lock().key)
    }

    /// Locks and returns the state, if `key` is the window's present key and `pd` is its protection
    /// domain.
    fn open(&self, pd: PdId, key: u32) -> Option<BhSpinLockGuard<'_, State>> {
        let state = self.state.lock();
        (self.pd == pd && state.key == key).then_some(state)
    }

    /// Returns whether the window's index, type and state allow the binding (IBTA 1.x §10.6.7.2.1
    /// and .2).
    fn admits(&self, bind: &Bind, state: &State) -> bool {
        let zero_based = bind.access.is_zero_based();
        bind.rkey.0 >> 8 == self.index
            && match self.kind {
                MwKind::Type1 => !zero_based,
                MwKind::Type2B => bind.length != 0 && state.binding.is_none(),
            }
    }
}

/// All memory windows of a device.
///
/// The methods that a QP's engine calls may be called in any context of the data path.
#[pin_data]
pub(crate) struct MwTable {
    #[pin]
    windows: Table<Mw>,
    /// Bound windows of type 2B, by the QPs that bound them.
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

    /// Returns whether `key` is in the range of windows' keys.
    #[inline]
    pub(crate) const fn is_window(key: u32) -> bool {
        key >> 8 >= *INDICES.start()
    }

    /// Allocates a window that is not bound. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn alloc(&self, pd: &Pd, kind: MwKind) -> Result<Arc<Mw>> {
        let object = Some(pd.claim_object()?);
        let reservation = self.windows.reserve_random(INDICES, limits::KEY_SCATTER)?;
        let index = reservation.id();
        let state = State {
            key: index.wrapping_shl(8) | (rdma::support::random::next_u32() & 0xff),
            binding: None,
            entry: match kind {
                MwKind::Type1 => None,
                MwKind::Type2B => Some(MemberEntry::new()?),
            },
            object,
        };
        let mw = Arc::pin_init(
            pin_init!(Mw {
                pd: pd.id(),
                kind,
                index,
                state <- new_bh_spinlock!(state, "rrxe_mw"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        reservation.publish(mw.clone());
        Ok(mw)
    }

    /// Deallocates `mw`. After the return, no access through it is in progress. Process context.
    ///
    /// An access through the window holds the window's lock, so this need not wait for readers of
    /// the table. A reader that has found the window and not locked it yet sees that the key has
    /// changed.
    pub(crate) fn dealloc(&self, mw: &Mw, mrs: &MrTable) {
        let released = {
            let mut state = mw.state.lock();
            self.unbind(mw, &mut state, mrs);
            state.key = NO_KEY;
            (state.entry.take(), state.object.take())
        };
        drop(released);
        // Last: `bound` names the window by its index, which another window may get from now on.
        self.windows.retire(mw.index);
    }

    /// Carries out a bind work request of the QP of `context`.
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

    /// Unbinds a window of type 2B, by a work request or for a peer.
    ///
    /// # Errors
    ///
    /// `Denied` if `key` is not that of a bound window of type 2B in the QP's protection domain, or
    /// the window is bound by another QP.
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

    /// Unbinds all windows of type 2B that QP `qpn` bound, one after the other. Process context.
    pub(crate) fn unbind_all(&self, qpn: u32, mrs: &MrTable) {
        let mut next = 0;
        while let Some(index) = self.bound.next(qpn, next) {
            self.windows.with(index, |mw| {
                let mut state = mw.state.lock();
                if state.bound_by() == Some(qpn) {
                    self.unbind(&mw, &mut state, mrs);
                }
            });
            next = index.saturating_add(1);
            cond_resched();
        }
    }

    /// Unbinds all windows that are bound to the region of key `region`. The region must accept no
    /// new bindings any more. Process context.
    pub(crate) fn unbind_from(&self, region: u32, mrs: &MrTable) {
        self.windows.for_each(|_, mw| {
            let mut state = mw.state.lock();
            let binding = state.binding.as_ref();
            if binding.is_some_and(|binding| binding.region == region) {
                self.unbind(&mw, &mut state, mrs);
            }
        });
    }

    /// Lists a window of type 2B, which was just bound, under the QP that bound it.
    fn enter(&self, mw: &Mw, state: &mut State) {
        if let Some((qpn, entry)) = state.bound_by().zip(state.entry.take()) {
            drop(self.bound.enter(entry, qpn, mw.index));
        }
    }

    /// Unbinds the window, if it is bound. The caller holds the window's lock.
    fn unbind(&self, mw: &Mw, state: &mut State, mrs: &MrTable) {
        if let Some(qpn) = state.bound_by() {
            state.entry = self.bound.leave(qpn, mw.index);
        }
        if let Some(binding) = state.binding.take() {
            mrs.detach(binding.region);
        }
    }

    /// Runs `f` with the key of the window's region and with the address of a peer's access in the
    /// region's addresses, if the window grants the access. `f` runs under the window's lock and
    /// must not sleep.
    ///
    /// # Errors
    ///
    /// `Denied` if no window grants the access, and the errors of `f`.
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

    /// Checks that the window of key `rkey` grants the right `access`, for whatever range.
    ///
    /// # Errors
    ///
    /// `Denied` if it doesn't.
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

    /// Runs `f` on the window at the index that `key` contains. `f` must not sleep.
    fn with<R>(&self, key: u32, f: impl FnOnce(ArcBorrow<'_, Mw>) -> Option<R>) -> Option<R> {
        self.windows.with(key >> 8, f).flatten()
    }
}

/// Checks a binding against its region, and counts the window at the region.
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
