// SPDX-License-Identifier: GPL-2.0

//! What the threads of an attacker share: open devices, the objects that they made and use
//! under each other, and fixed areas of memory.

use std::{
    fs,
    sync::{
        atomic::{AtomicI32, AtomicU64, Ordering::Relaxed},
        Mutex,
    },
};

use crate::{
    rng::Rng,
    sys::{self, PRIVATE_FIXED, READ_WRITE, SHARED_FIXED},
};

/// Areas of memory that regions are registered of, and the length of each.
pub const AREAS: u64 = 24;
/// Bytes of an area: two huge pages.
pub const AREA: u64 = 4 << 20;
const MEMORY: u64 = 0x10_0000_0000;

/// Rings that are mapped at a time, the room of each, and of a few long ones.
pub const RINGS: u64 = 64;
const RING: u64 = 1 << 20;
const RING_BASE: u64 = 0x20_0000_0000;
const LONG_RINGS: u64 = 4;
const LONG_RING: u64 = 1 << 29;
const LONG_BASE: u64 = 0x28_0000_0000;

/// Scratch memory of each thread.
pub const SCRATCH: u64 = 0x10000;
const SCRATCH_BASE: u64 = 0x30_0000_0000;

/// Open devices.
pub const CONTEXTS: usize = 3;
/// Objects of a kind that are remembered.
const MOST: usize = 20;

/// Kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Pd,
    Mr,
    Mw,
    Ah,
    Cq,
    Qp,
    Srq,
    Xrcd,
    Channel,
    Flow,
    Dm,
    Counters,
    File,
}

/// How many there are.
pub const KINDS: usize = 13;

/// An object of the kernel, as far as this process knows about it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Object {
    /// The context that it belongs to.
    pub context: usize,
    /// Its handle, or a file.
    pub handle: u32,
    /// A QP's number, an AH's, an SRQ's, or a region's L_Key.
    pub number: u32,
    /// The R_Key of a region or window.
    pub rkey: u32,
    /// What a region begins at, and its length.
    pub address: u64,
    /// Bytes from there on.
    pub length: u64,
    /// The send ring of a QP.
    pub send: u64,
    /// The receive ring of a QP or an SRQ, the ring of a CQ.
    pub ring: u64,
    /// The type of a QP.
    pub sort: u8,
    /// The slot of a QP in the doorbell page.
    pub slot: u32,
}

/// A device that can be opened.
#[derive(Clone)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its file.
    pub node: String,
    /// Its GIDs of RoCEv2, by their indices.
    pub gids: Vec<(u8, [u8; 16])>,
}

/// The devices of this driver.
pub fn devices() -> Vec<Device> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir("/sys/class/infiniband_verbs") else {
        return found;
    };
    for entry in entries.flatten() {
        let node = entry.file_name().to_string_lossy().into_owned();
        let Ok(name) = fs::read_to_string(entry.path().join("ibdev")) else {
            continue;
        };
        let name = name.trim().to_owned();
        if name.starts_with("rrxe") {
            let gids = gids(&name);
            found.push(Device {
                name,
                node: format!("/dev/infiniband/{node}"),
                gids,
            });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn gids(device: &str) -> Vec<(u8, [u8; 16])> {
    let port = format!("/sys/class/infiniband/{device}/ports/1");
    let mut found = Vec::new();
    for index in 0..12u8 {
        let Ok(text) = fs::read_to_string(format!("{port}/gids/{index}")) else {
            break;
        };
        let words: Vec<u16> = text
            .trim()
            .split(':')
            .filter_map(|word| u16::from_str_radix(word, 16).ok())
            .collect();
        let mut gid = [0; 16];
        for (bytes, word) in gid.chunks_exact_mut(2).zip(&words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        if gid != [0; 16] {
            found.push((index, gid));
        }
    }
    found
}

/// What threads share.
pub struct World {
    /// Devices that can be opened.
    pub devices: Mutex<Vec<Device>>,
    files: [AtomicI32; CONTEXTS],
    events: [AtomicI32; CONTEXTS],
    which: [AtomicU64; CONTEXTS],
    pages: [AtomicU64; CONTEXTS],
    pools: [Mutex<Vec<Object>>; KINDS],
    next_ring: AtomicU64,
    next_long_ring: AtomicU64,
}

impl World {
    /// One without open devices.
    pub fn new(devices: Vec<Device>, threads: u64) -> Result<Self, i32> {
        for (base, length) in [
            (MEMORY, AREAS * AREA),
            (RING_BASE, RINGS * RING),
            (LONG_BASE, LONG_RINGS * LONG_RING),
            (SCRATCH_BASE, threads * SCRATCH),
        ] {
            sys::map(base, length, READ_WRITE, PRIVATE_FIXED, -1, 0)?;
        }
        Ok(Self {
            devices: Mutex::new(devices),
            files: [const { AtomicI32::new(-1) }; CONTEXTS],
            events: [const { AtomicI32::new(-1) }; CONTEXTS],
            which: Default::default(),
            pages: Default::default(),
            pools: Default::default(),
            next_ring: AtomicU64::new(0),
            next_long_ring: AtomicU64::new(0),
        })
    }

    /// The beginning of an area.
    pub fn memory(&self, area: u64) -> u64 {
        MEMORY + area % AREAS * AREA
    }

    /// The scratch memory of a thread.
    pub fn scratch(&self, thread: u64) -> u64 {
        SCRATCH_BASE + thread * SCRATCH
    }

    /// The file of a context.
    pub fn fd(&self, context: usize) -> i32 {
        self.files[context % CONTEXTS].load(Relaxed)
    }

    /// The file that asynchronous events of a context come from.
    pub fn events(&self, context: usize) -> i32 {
        self.events[context % CONTEXTS].load(Relaxed)
    }

    /// Takes a new file into use; the old one is returned.
    pub fn opened(
        &self,
        context: usize,
        device: usize,
        fd: i32,
        events: i32,
        page: u64,
    ) -> [i32; 2] {
        self.which[context].store(device as u64, Relaxed);
        self.pages[context].store(page, Relaxed);
        [
            self.files[context].swap(fd, Relaxed),
            self.events[context].swap(events, Relaxed),
        ]
    }

    /// The doorbell page of a context, or zero.
    pub fn page(&self, context: usize) -> u64 {
        self.pages[context % CONTEXTS].load(Relaxed)
    }

    /// The device of a context.
    pub fn device(&self, context: usize) -> Option<Device> {
        let which = self.which[context % CONTEXTS].load(Relaxed) as usize;
        self.devices.lock().ok()?.get(which).cloned()
    }

    /// Remembers an object. Returns another, which is remembered no longer, when there are
    /// too many.
    pub fn add(&self, kind: Kind, object: Object, rng: &mut Rng) -> Option<Object> {
        let mut pool = self.pools[kind as usize].lock().ok()?;
        let evicted = (pool.len() >= MOST).then(|| {
            let index = rng.index(pool.len());
            pool.swap_remove(index)
        });
        pool.push(object);
        evicted
    }

    /// One of a kind.
    pub fn any(&self, kind: Kind, rng: &mut Rng) -> Option<Object> {
        let pool = self.pools[kind as usize].lock().ok()?;
        (!pool.is_empty()).then(|| pool[rng.index(pool.len())])
    }

    /// One of a kind in this context.
    pub fn any_of(&self, kind: Kind, context: usize, rng: &mut Rng) -> Option<Object> {
        let pool = self.pools[kind as usize].lock().ok()?;
        let own = pool.iter().filter(|object| object.context == context);
        let which = rng.index(own.clone().count());
        own.skip(which).copied().next()
    }

    /// One of a kind, which is remembered no longer.
    pub fn take(&self, kind: Kind, rng: &mut Rng) -> Option<Object> {
        let mut pool = self.pools[kind as usize].lock().ok()?;
        let index = rng.index(pool.len());
        (index < pool.len()).then(|| pool.swap_remove(index))
    }

    /// Remembers what became of an object.
    pub fn update(&self, kind: Kind, object: Object) {
        if let Ok(mut pool) = self.pools[kind as usize].lock() {
            let same =
                |old: &&mut Object| old.context == object.context && old.handle == object.handle;
            if let Some(old) = pool.iter_mut().find(same) {
                *old = object;
            }
        }
    }

    /// Forgets the objects of a context.
    pub fn forget(&self, context: usize) {
        for pool in &self.pools {
            if let Ok(mut pool) = pool.lock() {
                pool.retain(|object| object.context != context);
            }
        }
    }

    /// Maps a ring of this context, in the place of another one or of plain memory. Returns
    /// where, or zero.
    pub fn map_ring(&self, context: usize, offset: u64, length: u32) -> u64 {
        let length = u64::from(length);
        let place = match length {
            1..=RING => RING_BASE + self.next_ring.fetch_add(1, Relaxed) % RINGS * RING,
            ..=LONG_RING => {
                LONG_BASE + self.next_long_ring.fetch_add(1, Relaxed) % LONG_RINGS * LONG_RING
            }
            _ => return 0,
        };
        sys::map(
            place,
            length,
            READ_WRITE,
            SHARED_FIXED,
            self.fd(context),
            offset,
        )
        .map_or(0, |_| place)
    }

    /// Puts plain memory in the place of a ring.
    pub fn unmap_ring(&self, ring: u64) {
        let length = if ring >= LONG_BASE { LONG_RING } else { RING };
        let _ = sys::map(ring, length, READ_WRITE, PRIVATE_FIXED, -1, 0);
    }

    /// The place of some ring, which may be mapped.
    pub fn some_ring(&self, rng: &mut Rng) -> u64 {
        let used = self.next_ring.load(Relaxed).clamp(1, RINGS);
        RING_BASE + rng.below(used) * RING
    }

    /// The place of some long ring.
    pub fn some_long_ring(&self, rng: &mut Rng) -> Option<u64> {
        let used = self.next_long_ring.load(Relaxed).min(LONG_RINGS);
        (used > 0).then(|| LONG_BASE + rng.below(used) * LONG_RING)
    }
}
