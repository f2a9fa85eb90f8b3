// SPDX-License-Identifier: GPL-2.0

//! A thread of an attacker. It makes one operation after another, which its random numbers and the
//! weights choose.

use std::{mem::replace, sync::atomic::Ordering::Relaxed};

use crate::{
    ops::{Operation, OPERATIONS, SETUP},
    profile::{weight, Focus, Profile},
    rng::Rng,
    stats::{self, Activity, Stats},
    sys::{self, nr},
    world::{Kind, Object, World, CONTEXTS},
};

/// The state of a thread, which its operations use.
pub struct Thread<'a> {
    /// Random choices.
    pub rng: Rng,
    /// State shared with the other threads of the process.
    pub world: &'a World,
    /// Counts of operations.
    pub stats: &'static Stats,
    /// Address of the thread's memory for requests and responses.
    pub scratch: u64,
    /// One message in this many has changed bytes, and one object in this many a random handle.
    pub mutate_one_in: u64,
    /// Room for the driver's part of an extended response, in units of 8 bytes.
    pub provider_out: u16,
    /// The context that [`Self::context`] returns, or `None` for a random one.
    pub only: Option<usize>,
    /// Number of an RDMA device, as a netlink response named it.
    pub device_number: u32,
    activity: &'static Activity,
    fail: Option<i32>,
    weights: Vec<u64>,
}

impl<'a> Thread<'a> {
    /// Creates thread `index` of a process whose threads have the entries of [`Stats::activities`]
    /// from `first_thread` on.
    pub fn new(
        world: &'a World,
        stats: &'static Stats,
        profile: &Profile,
        focus: Focus,
        rng: Rng,
        first_thread: usize,
        index: u64,
    ) -> Self {
        let activity = &stats.activities[first_thread + index as usize];
        activity
            .tid
            .store(sys::call(nr::GETTID, &[]).unwrap_or(0) as u32, Relaxed);
        Self {
            rng,
            world,
            stats,
            scratch: world.scratch(index),
            mutate_one_in: profile.mutate_one_in,
            provider_out: 0,
            only: None,
            device_number: 0,
            activity,
            fail: profile
                .faults
                .then(|| sys::open("/proc/thread-self/fail-nth").ok())
                .flatten(),
            weights: OPERATIONS
                .iter()
                .map(|operation| weight(focus, operation))
                .collect(),
        }
    }

    /// Makes operations until the time `until`, in milliseconds.
    pub fn run(&mut self, until: u64) {
        let total: u64 = self.weights.iter().sum();
        while stats::now() < until {
            let mut chosen = self.rng.below(total);
            let kind = self
                .weights
                .iter()
                .position(|weight| match chosen.checked_sub(*weight) {
                    Some(rest) => {
                        chosen = rest;
                        false
                    }
                    None => true,
                });
            self.make(kind.unwrap_or(0));
        }
        self.activity.tid.store(0, Relaxed);
    }

    /// Makes one operation and counts it.
    pub fn make(&mut self, kind: usize) {
        let operation: &Operation = &OPERATIONS[kind];
        self.activity.kind.store(kind as u32, Relaxed);
        self.activity.since.store(stats::now(), Relaxed);
        // No faults in `setup`, because all other operations need its objects.
        let faulty = self.fail.filter(|_| kind != SETUP && self.rng.one_in(4));
        if let Some(fd) = faulty {
            // The nth allocation or user copy of the following system calls fails.
            let nth = 1 + self.rng.below(24);
            let _ = sys::write(fd, format!("{nth}").as_bytes());
        }
        let errno = (operation.make)(self).err().unwrap_or(0);
        if let Some(fd) = faulty {
            let _ = sys::write(fd, b"0");
        }
        self.stats.count(kind, errno);
        self.activity.since.store(0, Relaxed);
    }

    /// Runs `body` without changing its messages. A long sequence of messages would seldom pass
    /// unchanged otherwise.
    pub fn without_mutation<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let mutate_one_in = replace(&mut self.mutate_one_in, u64::MAX >> 8);
        let result = body(self);
        self.mutate_one_in = mutate_one_in;
        result
    }

    /// A context: the chosen one or a random one.
    pub fn context(&mut self) -> usize {
        self.only.unwrap_or_else(|| self.rng.index(CONTEXTS))
    }

    /// Returns a random object of a kind. If there is none, and once in `mutate_one_in` times,
    /// returns an object with a random handle.
    pub fn any(&mut self, kind: Kind) -> Object {
        let context = self.context();
        if self.rng.one_in(self.mutate_one_in) {
            let handle = if self.rng.one_in(2) {
                self.rng.below(64) as u32
            } else {
                self.rng.edge_value() as u32
            };
            return Object {
                context,
                handle,
                ..Object::default()
            };
        }
        let none = Object {
            context,
            handle: self.rng.below(16) as u32,
            ..Object::default()
        };
        self.world.any(kind, &mut self.rng).unwrap_or(none)
    }

    /// Returns a random object of a kind that belongs to a context. If there is none, returns one
    /// with a random handle. Once in `mutate_one_in` times returns an object of any context.
    pub fn any_of(&mut self, kind: Kind, context: usize) -> Object {
        if self.rng.one_in(self.mutate_one_in) {
            return self.any(kind);
        }
        let found = self.world.any_of(kind, context, &mut self.rng);
        found.unwrap_or(Object {
            context,
            handle: self.rng.below(16) as u32,
            ..Object::default()
        })
    }

    /// Returns a random object of a kind, to be destroyed. It is mostly removed from the pool of
    /// known objects. Once in eight times it stays there, so that other threads use it while it is
    /// destroyed.
    pub fn any_to_destroy(&mut self, kind: Kind) -> Object {
        if self.rng.one_in(8) {
            return self.any(kind);
        }
        match self.world.take(kind, &mut self.rng) {
            Some(object) => object,
            None => self.any(kind),
        }
    }

    /// Random bytes.
    pub fn random_bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.rng.word() as u8).collect()
    }
}
