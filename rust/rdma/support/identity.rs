// SPDX-License-Identifier: GPL-2.0

//! Users and memory cgroups as the administrator of the host sees them.
//!
//! The driver's limits count by these identities. A process cannot evade such a limit by another
//! process or another context. A process in a user namespace counts for the user who created the
//! outermost namespace ([`Identity::current_user`]).
//!
//! A memory cgroup within another memory cgroup has an identity of its own. A process to which a
//! part of the cgroup tree was delegated may create cgroups there, and so evades the limit of its
//! cgroup.
//!
//! Two kinds of users evade the limit of a user, because their processes may become other users of
//! the initial user namespace. A user with subordinate UIDs (`newuidmap`) may give programs of
//! these UIDs the set-user-ID bit. Root of a container without a user namespace may become any
//! user.

use core::ptr::addr_of;

use kernel::sync::barrier::{smp_mb, Full};

use crate::bindings;

/// The identity of a user or of a memory cgroup.
///
/// The kernel may reuse the numbers of cgroups and namespaces after these have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A memory cgroup, by its number (`mem_cgroup_id()`).
    MemoryCgroup(u64),
    /// A user, by the UID in the initial user namespace.
    User(u32),
    /// A user namespace that root created in the initial user namespace and that has several users,
    /// by its inode number (`ns.inum`).
    UserNamespace(u32),
}

impl Identity {
    /// Returns the memory cgroup of the current process.
    ///
    /// Returns `None` if the process is in the root cgroup, which holds processes of all users, or
    /// if the kernel has no memory cgroups. Must be called in process context.
    ///
    /// A process may move between the cgroups that were delegated to it, and create further ones
    /// there. Each of these has an identity of its own.
    pub fn current_memory_cgroup() -> Option<Self> {
        // SAFETY: `current_memcg()` has no requirements. It returns null or a counted reference.
        let memcg = unsafe { bindings::current_memcg() };
        if memcg.is_null() {
            return None;
        }
        // SAFETY: `memcg` is not null, and the reference from `current_memcg()` keeps it valid.
        let is_root = unsafe { bindings::mem_cgroup_is_root(memcg) };
        // SAFETY: `memcg` is not null, and the reference from `current_memcg()` keeps it valid.
        let id = unsafe { bindings::mem_cgroup_id(memcg) };
        // SAFETY: The reference from `current_memcg()` is put once, here, and `memcg` is not used
        // again.
        unsafe { bindings::mem_cgroup_put(memcg) };
        (!is_root).then_some(Self::MemoryCgroup(id))
    }

    /// Returns the user of the current process. Must be called in process context.
    ///
    /// For a process in a user namespace, this is the user who created the outermost user namespace
    /// around it. The kernel's limits of users (`struct ucounts`) count in the same way. The reason
    /// is that every user may create user namespaces and have many UIDs there.
    ///
    /// Root creates user namespaces on behalf of other users. So each user namespace that root
    /// created has an identity of its own, with two exceptions. A namespace with a single user has
    /// the identity of that user: programs that run as root for any user create such namespaces
    /// (firejail), any number of them for each user. While no users are mapped in a namespace, a
    /// process in it has the identity of the process's own UID.
    pub fn current_user() -> Self {
        // SAFETY: `current_uid()` has no requirements. The process has credentials.
        let own = unsafe { bindings::current_uid() };
        let mut uid = own;
        // SAFETY: `current_user_ns()` has no requirements. The process has credentials.
        let mut namespace = unsafe { bindings::current_user_ns() };
        // `create_user_ns()` (kernel/user_namespace.c) limits the loop to 34 iterations.
        loop {
            // SAFETY: The credentials of the current task hold a reference to its namespace, and
            // each namespace holds one to its parent. Only the task itself changes its credentials.
            let parent = unsafe { (*namespace).parent };
            if parent.is_null() {
                return Self::User(uid);
            }
            // SAFETY: The credentials of the current task keep `namespace` valid.
            uid = unsafe { (*namespace).owner.val };
            // SAFETY: The credentials of the current task keep `namespace` valid. `namespace` holds
            // a reference to `parent`, which is not null.
            let outermost = unsafe { (*parent).parent.is_null() };
            if outermost && uid == 0 {
                // SAFETY: The credentials of the current task keep `namespace` valid during the
                // call.
                return match unsafe { Users::of(namespace) } {
                    Users::Unmapped => Self::User(own),
                    Users::One(uid) => Self::User(uid),
                    // SAFETY: The credentials of the current task keep `namespace` valid.
                    Users::Several => Self::UserNamespace(unsafe { (*namespace).ns.inum }),
                };
            }
            namespace = parent;
        }
    }
}

/// The users whose UIDs are mapped in a user namespace. Processes in it, and in namespaces within
/// it, may become these users only.
enum Users {
    /// No user: the mapping was not written yet.
    Unmapped,
    /// One user, by the UID in the initial user namespace.
    One(u32),
    /// Several users.
    Several,
}

impl Users {
    /// Returns the users that are mapped in `namespace`.
    ///
    /// # Safety
    ///
    /// `namespace` must point to a valid user namespace during the call.
    unsafe fn of(namespace: *const bindings::user_namespace) -> Self {
        // SAFETY: The caller guarantees that `namespace` is valid (see `# Safety`). Both members of
        // the union are valid for any bytes.
        let map = unsafe { addr_of!((*namespace).uid_map.__bindgen_anon_1.__bindgen_anon_1) };
        // SAFETY: `map` points into `namespace`, which the caller guarantees to be valid. A racing
        // write may be seen or not; both values are valid.
        let extents = unsafe { addr_of!((*map).nr_extents).read_volatile() };
        match extents {
            0 => return Self::Unmapped,
            1 => {}
            _ => return Self::Several,
        }
        // `map_write()` (kernel/user_namespace.c) writes the extent before the number of extents.
        // This barrier pairs with its `smp_wmb()`.
        smp_mb(Full);
        // SAFETY: `map` points into `namespace`, which the caller guarantees to be valid. A mapping
        // is written once, and the number of extents shows that it has been written.
        let [extent, ..] = unsafe { (*map).extent };
        match extent.count {
            1 => Self::One(extent.lower_first),
            _ => Self::Several,
        }
    }
}
