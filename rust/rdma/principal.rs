// SPDX-License-Identifier: GPL-2.0

//! Users and memory cgroups, as an administrator of the host knows them: for limits that a process can't evade by
//! another process, context or user namespace.

use crate::bindings;

/// A user or a memory cgroup. Numbers of cgroups and namespaces may be used again after their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    /// A memory cgroup, by its number.
    MemoryCgroup(u64),
    /// A user, by the number in the initial user namespace.
    User(u32),
    /// A user namespace that root made in the initial one, by its number.
    UserNamespace(u32),
}

impl Principal {
    /// The memory cgroup of the current process; `None` of one that is in the root's, which holds processes of all
    /// users, and on a kernel without memory cgroups. Process context.
    ///
    /// A process may choose among the cgroups that were delegated to it, and make others there.
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
    /// each of root's stands for itself.
    pub fn current_user() -> Self {
        // SAFETY: No requirements.
        let mut uid = unsafe { bindings::current_uid() };
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
                return Self::UserNamespace(unsafe { (*namespace).ns.inum });
            }
            namespace = parent;
        }
    }
}
