// SPDX-License-Identifier: GPL-2.0

//! Memory regions: the arguments and results of their verbs, and the operations on `struct ib_mr`.

mod advice;
mod current;
pub(crate) mod register;

use kernel::{
    bindings as core_bindings,
    error::{from_result, Error},
    ffi::{c_int, c_uint},
    prelude::*,
    sync::Arc,
};
use roce::{
    host::{LocalAccess, RemoteAccess},
    ids::{Lkey, Rkey},
};

pub(crate) use advice::advise;
pub use advice::Advised;
pub(crate) use current::CurrentRegion;
use current::MrMemory;
pub use register::UserRange;

pub use crate::memory::span::{Span, SpanError};
use crate::{
    bindings,
    memory::fast_mr::{FastKind, FastMemory},
    provider::Provider,
    support::error::unsupported,
    verbs::{object::Object, udata, unread::is_empty},
};

/// Access rights of a region or a memory window: a set of `IB_ACCESS_*` (`enum ib_access_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    const LOCAL_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
    const REMOTE_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
    const REMOTE_READ: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_READ;
    const REMOTE_ATOMIC: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
    const MW_BIND: u32 = bindings::ib_access_flags_IB_ACCESS_MW_BIND;
    const ON_DEMAND: u32 = bindings::ib_access_flags_IB_ACCESS_ON_DEMAND;
    const HUGE: u32 = bindings::ib_access_flags_IB_ACCESS_HUGETLB;
    const ZERO_BASED: u32 = bindings::ib_access_flags_IB_ZERO_BASED;
    const FLUSH_GLOBAL: u32 = bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL;
    const FLUSH_PERSISTENT: u32 = bindings::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT;

    /// Placement bit on the wire of a FLUSH for global visibility (IBTA 1.x annex A19).
    const PLACE_GLOBAL: u8 = 1 << 0;

    /// Creates a set from bits of `IB_ACCESS_*`.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Creates the set that ib_core passes as an `int`.
    pub(crate) const fn from_raw(flags: c_int) -> Self {
        Self(flags as u32)
    }

    /// Returns the set as the `int` that ib_core uses.
    pub(crate) const fn as_raw(self) -> c_int {
        self.0 as c_int
    }

    /// Returns whether addresses count from the region's start (`IB_ZERO_BASED`), instead of being
    /// the process's virtual addresses.
    pub const fn is_zero_based(self) -> bool {
        self.0 & Self::ZERO_BASED != 0
    }

    /// Returns whether a memory window may grant this set, on a region with the rights `region`
    /// (IBTA 1.x §10.6.7.2.3).
    pub const fn suits_window(self, region: Self) -> bool {
        let known = Self::LOCAL_WRITE
            | Self::REMOTE_WRITE
            | Self::REMOTE_READ
            | Self::REMOTE_ATOMIC
            | Self::FLUSH_GLOBAL
            | Self::FLUSH_PERSISTENT
            | Self::ZERO_BASED;
        let flush = Self::FLUSH_GLOBAL | Self::FLUSH_PERSISTENT;
        let changes = self.0 & (Self::REMOTE_WRITE | Self::REMOTE_ATOMIC) != 0;
        self.0 & !known == 0
            && self.0 & flush & !region.0 == 0
            && region.0 & Self::MW_BIND != 0
            && !region.is_zero_based()
            && (!changes || region.0 & Self::LOCAL_WRITE != 0)
    }

    /// Returns whether the set is consistent: remote write and remote atomic need local write (IBTA
    /// 1.x §10.6.3.1).
    pub const fn is_consistent(self) -> bool {
        self.0 & (Self::REMOTE_WRITE | Self::REMOTE_ATOMIC) == 0 || self.0 & Self::LOCAL_WRITE != 0
    }

    /// Returns whether the region's memory is faulted in on demand instead of pinned
    /// (`IB_ACCESS_ON_DEMAND`).
    pub const fn is_on_demand(self) -> bool {
        self.0 & Self::ON_DEMAND != 0
    }

    /// Returns whether the memory consists of huge pages (`IB_ACCESS_HUGETLB`).
    pub const fn is_huge(self) -> bool {
        self.0 & Self::HUGE != 0
    }

    /// Returns the set without the right to bind memory windows.
    pub const fn without_windows(self) -> Self {
        Self(self.0 & !Self::MW_BIND)
    }

    /// Returns the set for a change of a region's rights. The bits that belong to the memory
    /// (`IB_ZERO_BASED`) stay those of `registered`.
    pub const fn with_memory_of(self, registered: Self) -> Self {
        Self(self.0 & !Self::ZERO_BASED | registered.0 & Self::ZERO_BASED)
    }

    /// Returns whether the rights let the owner or a peer write the memory.
    pub const fn writes(self) -> bool {
        self.0 & (Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC) != 0
    }

    /// Returns the bits, as [`Self::from_bits`] takes them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the owner's own requests may make this access. Reads are always allowed.
    #[inline]
    pub const fn allows_local(self, access: LocalAccess) -> bool {
        match access {
            LocalAccess::Read => true,
            LocalAccess::Write => self.0 & Self::LOCAL_WRITE != 0,
        }
    }

    /// Returns whether requests of a peer may make this access.
    #[inline]
    pub const fn allows_remote(self, access: RemoteAccess) -> bool {
        let needed = match access {
            RemoteAccess::Read => Self::REMOTE_READ,
            RemoteAccess::Write => Self::REMOTE_WRITE,
            RemoteAccess::Atomic => Self::REMOTE_ATOMIC,
            RemoteAccess::Flush(kind) => return self.allows_flush(kind.placement),
        };
        self.0 & needed == needed
    }

    /// Returns whether requests of a peer may FLUSH with these placement bits. No right allows a
    /// FLUSH for persistence, because this driver makes no data persistent.
    const fn allows_flush(self, placement: u8) -> bool {
        let allowed = if self.0 & Self::FLUSH_GLOBAL != 0 {
            Self::PLACE_GLOBAL
        } else {
            0
        };
        placement & !allowed == 0
    }
}

/// Keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// Local key, by which the owner's work requests name the region.
    pub lkey: Lkey,
    /// Remote key, by which peers' requests name the region.
    pub rkey: Rkey,
}

/// Changes of a region by `rereg_user_mr`. A field that is `None` is not changed.
pub struct MrChange<'a, Pd> {
    /// New protection domain.
    pub pd: Option<&'a Arc<Pd>>,
    /// New access rights; consistent.
    pub access: Option<Access>,
    /// New memory.
    pub range: Option<UserRange<'a>>,
}

type MrObject<P> = Object<P, bindings::ib_mr>;

/// Implements `get_dma_mr` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn get_dma<P: Provider>(
    pd: *mut bindings::ib_pd,
    access: c_int,
) -> *mut bindings::ib_mr {
    let make = || {
        let access = Access::from_raw(access);
        if !access.is_consistent() {
            return Err(EINVAL);
        }
        let object = MrMemory::<P>::new()?;
        // SAFETY: `pd` is a protection domain of `P`, alive during the call.
        let pd = unsafe { Object::<P, _>::get(pd) };
        let mr = P::get_dma_mr(pd, access)?;
        object.create_ib_mr(mr, 0, 0)
    };
    make().unwrap_or_else(|error: Error| error.to_ptr())
}

/// Implements `alloc_mr` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a protection domain of `P`.
pub(crate) unsafe extern "C" fn alloc<P: Provider>(
    pd: *mut bindings::ib_pd,
    kind: bindings::ib_mr_type,
    max_pages: u32,
) -> *mut bindings::ib_mr {
    let make = || {
        let kind = match kind {
            bindings::ib_mr_type_IB_MR_TYPE_MEM_REG => FastKind::Pages,
            bindings::ib_mr_type_IB_MR_TYPE_SG_GAPS => FastKind::Gaps,
            _ => return Err(unsupported()),
        };
        let object = MrMemory::<P>::new()?;
        // SAFETY: `pd` is a protection domain of `P`, alive during the call.
        let pd = unsafe { Object::<P, _>::get(pd) };
        let mr = P::alloc_mr(pd, kind, max_pages)?;
        object.create_ib_mr(mr, 0, 0)
    };
    make().unwrap_or_else(|error: Error| error.to_ptr())
}

/// Implements `map_mr_sg` of `struct ib_device_ops`: stores the list of pages, or for a region with
/// gaps (`IB_MR_TYPE_SG_GAPS`) of pieces of any size, that the next fast registration uses. Any
/// context.
///
/// # Safety
///
/// Must be called only by ib_core, on a region of `P`.
pub(crate) unsafe extern "C" fn map_sg<P: Provider>(
    base: *mut bindings::ib_mr,
    list: *mut bindings::scatterlist,
    entries: c_int,
    offset: *mut c_uint,
) -> c_int {
    from_result(|| {
        // SAFETY: The region is alive while ib_core calls its operations.
        let memory = unsafe { fast_memory::<P>(base) }?;
        if memory.kind() == FastKind::Gaps {
            // SAFETY: ib_core passes a list of `entries` entries, and an offset that is null or
            // valid. `memory` belongs to `base`.
            return unsafe { list_pieces(memory, base, list, entries, offset) };
        }
        // SAFETY: The region is alive while ib_core calls its operations; ib_core sets the page
        // size before it calls.
        memory.begin_pages(unsafe { (*base).page_size })?;
        // SAFETY: ib_core passes a valid list of `entries` entries, and an offset that is null or
        // valid.
        let mapped =
            unsafe { bindings::ib_sg_to_pages(base, list, entries, offset, Some(set_page::<P>)) };
        if mapped > 0 {
            // SAFETY: `base` is valid during the call, and `ib_sg_to_pages()` has set both fields.
            let (iova, length) = unsafe { ((*base).iova, (*base).length) };
            memory.end(iova, length)?;
        }
        Ok(mapped)
    })
}

/// Lists the entries of a scatterlist as pieces of a region, until `memory` has no more room.
/// Returns the number of listed entries.
///
/// # Safety
///
/// `list` must have `entries` entries, `base` must be the region of `memory`, and `offset` must be
/// null or valid.
unsafe fn list_pieces(
    memory: &FastMemory,
    base: *mut bindings::ib_mr,
    list: *mut bindings::scatterlist,
    entries: c_int,
    offset: *mut c_uint,
) -> Result<c_int> {
    let mut entry: *mut core_bindings::scatterlist = list.cast();
    let (mut mapped, mut iova, mut length) = (0, None, 0u64);
    // SAFETY: The caller guarantees that `offset` is null or valid.
    let mut skip = unsafe { offset.as_mut() }.map_or(0, core::mem::take);
    memory.begin();
    while mapped < entries && !entry.is_null() {
        // SAFETY: `entry` is an entry of the list, which the caller guarantees to be valid.
        let addr = unsafe { core_bindings::sg_dma_address(entry) };
        // SAFETY: `entry` is an entry of the list, which the caller guarantees to be valid.
        let len = unsafe { core_bindings::sg_dma_len(entry) };
        let addr = addr.checked_add(u64::from(skip)).ok_or(EINVAL)?;
        let len = len.checked_sub(skip).ok_or(EINVAL)?;
        match memory.list_piece(addr, len) {
            Err(error) if error == ENOMEM => break,
            listed => listed?,
        }
        iova = iova.or(Some(addr));
        length = length.saturating_add(len.into());
        mapped = mapped.saturating_add(1);
        skip = 0;
        // SAFETY: `entry` is an entry of the list, which the caller guarantees to be valid.
        entry = unsafe { core_bindings::sg_next(entry) };
    }
    // SAFETY: The caller guarantees that `base` is valid. No other code accesses these fields
    // during this operation.
    unsafe { ((*base).iova, (*base).length) = (iova.unwrap_or(0), length) };
    Ok(mapped)
}

/// Adds a page to the list of a region.
///
/// # Safety
///
/// Must be called only by `ib_sg_to_pages()`, from within [`map_sg`] for the region `base`.
unsafe extern "C" fn set_page<P: Provider>(base: *mut bindings::ib_mr, addr: u64) -> c_int {
    from_result(|| {
        // SAFETY: The caller guarantees that `base` is the region of the running `map_sg`, which is
        // alive.
        unsafe { fast_memory::<P>(base) }?.list(addr)?;
        Ok(0)
    })
}

/// Returns the list of pages or pieces of a region for fast registration. Returns `EINVAL` for any
/// other region.
///
/// # Safety
///
/// `base` must be a region of a device of `P`, created and not yet destroyed, for all of `'a`.
unsafe fn fast_memory<'a, P: Provider>(base: *mut bindings::ib_mr) -> Result<&'a FastMemory> {
    // SAFETY: The caller guarantees that `base` is a region of `P`, created and not yet destroyed.
    let current = unsafe { MrObject::<P>::get(base) };
    current
        .fast()
        .and_then(|mr| P::fast_memory(mr))
        .ok_or(EINVAL)
}

/// Implements `rereg_user_mr` of `struct ib_device_ops`. The keys of the region stay, so the
/// operation never returns another `ib_mr`.
///
/// # Safety
///
/// Must be called only by ib_core, on a region and a protection domain of `P`.
pub(crate) unsafe extern "C" fn rereg<P: Provider>(
    base: *mut bindings::ib_mr,
    flags: c_int,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    let change = || {
        // SAFETY: ib_core's buffers are null or valid during the call.
        unsafe { udata::require_zero_udata(udata) }?;
        let is_set = |flag| flags as u32 & flag != 0;
        let change = MrChange {
            pd: is_set(bindings::ib_mr_rereg_flags_IB_MR_REREG_PD)
                // SAFETY: `pd` is a protection domain of `P`, alive during the call.
                .then(|| unsafe { Object::<P, _>::get(pd) }),
            access: is_set(bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
                .then(|| Access::from_raw(access)),
            range: is_set(bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS)
                // SAFETY: The region is alive while ib_core calls its operations, and so is its
                // device. `Unregistered::new` created the device, because this is an operation of
                // this driver.
                .then(|| unsafe { UserRange::of_process((*base).device, start, length, iova) }),
        };
        if change.access.is_some_and(|access| !access.is_consistent()) {
            return Err(EINVAL);
        }
        // SAFETY: The region is alive while ib_core calls its operations.
        let current = unsafe { MrObject::<P>::get(base) };
        // SAFETY: The device is alive while it has regions.
        let device = unsafe { crate::device::of::<P>((*base).device) };
        let changed = P::rereg_user_mr(device, &current.get(), change)?;
        drop(current.replace(changed));
        Ok(core::ptr::null_mut())
    };
    change().unwrap_or_else(|error: Error| error.to_ptr())
}

/// Returns whether a region is being destroyed in order to undo its creation. uverbs adds the
/// uobject to a list only when it gives the handle to the process, so here the uobject is in no
/// list.
///
/// # Safety
///
/// `base` must be a region that is created and not yet destroyed.
unsafe fn is_creation_undone(base: *const bindings::ib_mr) -> bool {
    // SAFETY: The caller guarantees that `base` is a region that is not yet destroyed.
    let kind = unsafe { (*base).type_ };
    // The field `uobject` is in a union. In regions of other types in-kernel consumers use its
    // bytes to link the region in a list.
    if !matches!(
        kind,
        bindings::ib_mr_type_IB_MR_TYPE_USER | bindings::ib_mr_type_IB_MR_TYPE_DM
    ) {
        return false;
    }
    // SAFETY: The caller guarantees that `base` is valid. ib_core stores a pointer to the uobject,
    // or null, in this field of regions of these types.
    let object = unsafe { (*base).__bindgen_anon_1.uobject };
    if object.is_null() {
        return false;
    }
    // SAFETY: uverbs initialised the list when it created the uobject, which outlives the region.
    unsafe { is_empty((&raw mut (*object).list).cast()) }
}

/// Implements `dereg_mr` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a region of `P`.
pub(crate) unsafe extern "C" fn dereg<P: Provider>(
    base: *mut bindings::ib_mr,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: The region is alive while ib_core calls its operations, here until the
        // destruction succeeds.
        let mr = unsafe { MrObject::<P>::get(base) }.get();
        // SAFETY: The device is alive while it has regions.
        let device = unsafe { crate::device::of::<P>((*base).device) };
        // SAFETY: The region is alive while ib_core calls its operations.
        if unsafe { is_creation_undone(base) } {
            P::abort_mr(device, &mr);
        } else {
            P::dereg_mr(device, &mr)?;
        }
        // SAFETY: This is the destruction operation, past the point where it can fail.
        drop(unsafe { MrObject::<P>::free(base) });
        Ok(0)
    })
}

#[kunit_tests(rrxe_mr)]
mod tests {
    use super::*;
    use roce::wr::FlushKind;

    /// Checks the accesses that rights allow: local write, and remote read, write and atomic.
    #[test]
    fn access_rights_allow_their_accesses() {
        for (rights, local, allowed) in [
            (0, false, [false, false, false]),
            (Access::LOCAL_WRITE, true, [false, false, false]),
            (Access::REMOTE_READ, false, [true, false, false]),
            (
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
                true,
                [false, true, false],
            ),
            (
                Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
                true,
                [false, false, true],
            ),
            (15, true, [true, true, true]),
        ] {
            let access = Access(rights);
            assert!(access.is_consistent());
            assert!(access.allows_local(LocalAccess::Read));
            assert_eq!(access.allows_local(LocalAccess::Write), local);
            let kinds = [
                RemoteAccess::Read,
                RemoteAccess::Write,
                RemoteAccess::Atomic,
            ];
            assert_eq!(kinds.map(|kind| access.allows_remote(kind)), allowed);
        }
    }

    #[test]
    fn remote_write_rights_need_local_write() {
        assert!(!Access(Access::REMOTE_WRITE).is_consistent());
        assert!(!Access(Access::REMOTE_ATOMIC | Access::REMOTE_READ).is_consistent());
    }

    #[test]
    fn windows_grant_only_rights_of_their_region() {
        let writable = Access(Access::MW_BIND | Access::LOCAL_WRITE);
        let readable = Access(Access::MW_BIND);
        for (asked, on_writable, on_readable) in [
            (0, true, true),
            (Access::REMOTE_READ, true, true),
            (Access::REMOTE_WRITE, true, false),
            (Access::REMOTE_ATOMIC, true, false),
            (Access::REMOTE_READ | Access::ZERO_BASED, true, true),
            (Access::FLUSH_GLOBAL, false, false),
            (Access::MW_BIND, false, false),
            (1 << 31, false, false),
        ] {
            assert_eq!(Access(asked).suits_window(writable), on_writable);
            assert_eq!(Access(asked).suits_window(readable), on_readable);
            assert!(!Access(asked).suits_window(Access(Access::LOCAL_WRITE)));
            assert!(!Access(asked).suits_window(Access(writable.0 | Access::ZERO_BASED)));
        }
        let flushable = Access(writable.0 | Access::FLUSH_GLOBAL);
        assert!(Access(Access::FLUSH_GLOBAL).suits_window(flushable));
        assert!(!Access(Access::FLUSH_PERSISTENT).suits_window(flushable));
    }

    #[test]
    fn no_right_allows_flush_for_persistence() {
        let flush = |placement| {
            RemoteAccess::Flush(FlushKind {
                placement,
                selectivity: 0,
            })
        };
        let global = Access(Access::FLUSH_GLOBAL);
        let both = Access(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        for (access, globally) in [(Access(0), false), (global, true), (both, true)] {
            assert_eq!(
                [1, 2, 3].map(|kind| access.allows_remote(flush(kind))),
                [globally, false, false]
            );
        }
    }
}
