// SPDX-License-Identifier: GPL-2.0

//! Users and memory cgroups, as an administrator of the host knows them: for limits that a process can't evade by
//! another process, context or user namespace. A memory cgroup within another one is a principal of its own: a process that
//! may make such, since a part of the tree was delegated to it, evades the limit of its cgroup, but not that of its user.

use core::ptr::addr_of;

use crate::{bindings, support::sync::smp_mb};

/// A user or a memory cgroup. Numbers of cgroups and namespaces may be used again after their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A memory cgroup, by its number.
    MemoryCgroup(u64),
    /// A user, by the number in the initial user namespace.
    User(u32),
    /// A user namespace with several users that root made in the initial one, by its number.
    UserNamespace(u32),
}

impl Identity {
    /// The memory cgroup of the current process; `None` of one that is in the root's, which holds processes of all
    /// users, and on a kernel without memory cgroups. Process context.
    ///
    /// A process may choose among the cgroups that were delegated to it, and make others there, each of which is another
    /// principal.
    pub fn current_memory_cgroup() -> Option<Self> {
        // SAFETY: No requirements.
        let memcg = unsafe { bindings::current_memcg() };
        if memcg.is_null() {
            return None;
        }
        // SAFETY: It is counted.
        let is_root = unsafe { bindings::mem_cgroup_is_root(memcg) };
        // SAFETY: As above.
        let id = unsafe { bindings::mem_cgroup_id(memcg) };
        // SAFETY: The count that was just taken is given up once, here.
        unsafe { bindings::mem_cgroup_put(memcg) };
        (!is_root).then_some(Self::MemoryCgroup(id))
    }

    /// The user of the current process. Process context.
    ///
    /// In a user namespace it is the user who made the outermost one, as for the kernel's limits of users
    /// (`struct ucounts`): anybody may make user namespaces and be many users there. Root makes them for others, so
    /// each of root's stands for itself. One of root's that has a single user stands for that user: programs that run
    /// as root for anybody make such ones (firejail), any number for each user.
    pub fn current_user() -> Self {
        // SAFETY: No requirements.
        let own = unsafe { bindings::current_uid() };
        let mut uid = own;
        // SAFETY: No requirements.
        let mut namespace = unsafe { bindings::current_user_ns() };
        // 33 at most: `create_user_ns()`, kernel/user_namespace.c.
        loop {
            // SAFETY: The current task's credentials, which only that task changes, keep the namespace and its parents.
            let parent = unsafe { (*namespace).parent };
            if parent.is_null() {
                return Self::User(uid);
            }
            // SAFETY: As above.
            uid = unsafe { (*namespace).owner.val };
            // SAFETY: As above.
            let outermost = unsafe { (*parent).parent.is_null() };
            if outermost && uid == 0 {
                // SAFETY: As above.
                return match unsafe { Users::of(namespace) } {
                    Users::Unmapped => Self::User(own),
                    Users::One(uid) => Self::User(uid),
                    // SAFETY: As above.
                    Users::Several => Self::UserNamespace(unsafe { (*namespace).ns.inum }),
                };
            }
            namespace = parent;
        }
    }
}

/// Whom processes of a user namespace and of those within it may become.
enum Users {
    /// Nobody else: no user is mapped yet.
    Unmapped,
    /// One user, by the number in the initial user namespace.
    One(u32),
    /// Several users.
    Several,
}

impl Users {
    /// Those of `namespace`.
    ///
    /// # Safety
    ///
    /// It must be valid during the call.
    unsafe fn of(namespace: *const bindings::user_namespace) -> Self {
        // SAFETY: As the caller promises. Both members of the union are valid for any bytes.
        let map = unsafe { addr_of!((*namespace).uid_map.__bindgen_anon_1.__bindgen_anon_1) };
        // SAFETY: As above; a racing write shows either value.
        let extents = unsafe { addr_of!((*map).nr_extents).read_volatile() };
        match extents {
            0 => return Self::Unmapped,
            1 => {}
            _ => return Self::Several,
        }
        // The extent is written before the number. Pairs with `smp_wmb()` in `map_write()`, kernel/user_namespace.c.
        smp_mb();
        // SAFETY: As above. A map is written once, and it was.
        let [extent, ..] = unsafe { (*map).extent };
        match extent.count {
            1 => Self::One(extent.lower_first),
            _ => Self::Several,
        }
    }
}
