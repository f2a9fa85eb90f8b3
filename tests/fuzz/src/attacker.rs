// SPDX-License-Identifier: GPL-2.0

//! An attacker: a process with several threads that share open devices, verbs objects and memory.

use std::{fs, thread::scope};

use crate::{
    ops::SETUP,
    profile::Profile,
    rng::Rng,
    stats::{self, Stats},
    sys,
    thread::Thread,
    world::{devices, World, CONTEXTS},
};

const RLIMIT_NPROC: i64 = 6;
const RLIMIT_NOFILE: i64 = 7;
const RLIMIT_MEMLOCK: i64 = 8;

/// Runs attacker `number` for `lifetime` milliseconds and returns its exit status. Its threads have
/// the entries of [`Stats::activities`] from `first_thread` on. Seven attackers in eight become an
/// unprivileged user.
pub fn run(
    profile: &Profile,
    stats: &'static Stats,
    number: u64,
    first_thread: usize,
    lifetime: u64,
) -> i32 {
    let _ = sys::call(sys::nr::SETPGID, &[0, 0]);
    if !profile.cgroup.is_empty() {
        let _ = fs::write(format!("{}/cgroup.procs", profile.cgroup), "0");
    }
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    sys::limit(RLIMIT_NOFILE, 1024);
    sys::limit(RLIMIT_NPROC, 400);
    sys::limit(RLIMIT_MEMLOCK, 8 << 20);
    let mut rng = Rng::new(profile.seed, &[number]);
    if !rng.one_in(8) && !sys::become_user(profile.user) {
        return 2;
    }
    let Ok(world) = World::new(devices(), profile.threads) else {
        return 2;
    };
    let until = stats::now() + lifetime;
    let focus = profile.focus_of(number);
    let mut setup = Thread::new(&world, stats, profile, focus, rng, first_thread, 0);
    for context in 0..CONTEXTS {
        setup.only = Some(context);
        setup.make(SETUP);
    }
    drop(setup);
    scope(|scope| {
        for index in 0..profile.threads {
            let world = &world;
            scope.spawn(move || {
                let rng = Rng::new(profile.seed, &[number, index + 1]);
                Thread::new(world, stats, profile, focus, rng, first_thread, index).run(until);
            });
        }
    });
    0
}
