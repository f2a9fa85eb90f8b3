// SPDX-License-Identifier: GPL-2.0

//! A thread of an attacker: it makes one operation after another, which its seed and weights
//! choose.

use std::{mem::replace, sync::atomic::Ordering::Relaxed};

use crate::{
    ops::{Operation, OPERATIONS, SETUP},
    profile::{weight, Focus, Profile},
    rng::Rng,
    stats::{self, Beat, Stats},
    sys::{self, nr},
    world::{Kind, Object, World, CONTEXTS},
};

/// A thread, and what its operations need.
pub struct Thread<'a> {
    /// Chooses.
    pub rng: Rng,
    /// What it shares with the other threads of its process.
    pub world: &'a World,
    /// Where it counts.
    pub stats: &'static Stats,
    /// Memory for requests and responses.
    pub scratch: u64,
    /// One message in so many is changed.
    pub wild: u64,
    /// Words of 8 bytes for the driver's part of an extended response.
    pub provider_out: u16,
    /// The context to choose, unless it is any.
    pub only: Option<usize>,
    beat: &'static Beat,
    fail: Option<i32>,
    weights: Vec<u64>,
}

impl<'a> Thread<'a> {
    /// Thread `index` of a process whose threads begin at `first` in the table of beats.
    pub fn new(
        world: &'a World,
        stats: &'static Stats,
        profile: &Profile,
        focus: Focus,
        rng: Rng,
        first: usize,
        index: u64,
    ) -> Self {
        let beat = &stats.beats[first + index as usize];
        beat.tid
            .store(sys::call(nr::GETTID, &[]).unwrap_or(0) as u32, Relaxed);
        Self {
            rng,
            world,
            stats,
            scratch: world.scratch(index),
            wild: profile.wild,
            provider_out: 0,
            only: None,
            beat,
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

    /// Makes operations until the time comes, or the process is killed.
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
        self.beat.tid.store(0, Relaxed);
    }

    /// Makes one operation and counts it.
    pub fn make(&mut self, kind: usize) {
        let operation: &Operation = &OPERATIONS[kind];
        self.beat.kind.store(kind as u32, Relaxed);
        self.beat.since.store(stats::now(), Relaxed);
        // All others need what the first operation makes.
        let faulty = self.fail.filter(|_| kind != SETUP && self.rng.one_in(4));
        if let Some(fd) = faulty {
            // The allocation or copy of this number in the next system calls fails.
            let nth = 1 + self.rng.below(24);
            let _ = sys::write(fd, format!("{nth}").as_bytes());
        }
        let errno = (operation.make)(self).err().unwrap_or(0);
        if let Some(fd) = faulty {
            let _ = sys::write(fd, b"0");
        }
        self.stats.count(kind, errno);
        self.beat.since.store(0, Relaxed);
    }

    /// Runs `body` with messages that are not changed: so many in a row would seldom all be.
    pub fn unchanged<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let wild = replace(&mut self.wild, u64::MAX >> 8);
        let result = body(self);
        self.wild = wild;
        result
    }

    /// Some context.
    pub fn context(&mut self) -> usize {
        self.only.unwrap_or_else(|| self.rng.index(CONTEXTS))
    }

    /// One object of a kind; one of no good when there is none, and now and then.
    pub fn any(&mut self, kind: Kind) -> Object {
        let context = self.context();
        if self.rng.one_in(self.wild) {
            let handle = if self.rng.one_in(2) {
                self.rng.below(64) as u32
            } else {
                self.rng.odd() as u32
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

    /// One object of a kind that belongs to a context; now and then one of no good.
    pub fn any_of(&mut self, kind: Kind, context: usize) -> Object {
        if self.rng.one_in(self.wild) {
            return self.any(kind);
        }
        let found = self.world.any_of(kind, context, &mut self.rng);
        found.unwrap_or(Object {
            context,
            handle: self.rng.below(16) as u32,
            ..Object::default()
        })
    }

    /// One object of a kind that is to be destroyed: mostly nobody knows of it afterwards, at
    /// times somebody does.
    pub fn doomed(&mut self, kind: Kind) -> Object {
        if self.rng.one_in(8) {
            return self.any(kind);
        }
        match self.world.take(kind, &mut self.rng) {
            Some(object) => object,
            None => self.any(kind),
        }
    }

    /// Bytes that nobody chose.
    pub fn noise(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.rng.word() as u8).collect()
    }
}
