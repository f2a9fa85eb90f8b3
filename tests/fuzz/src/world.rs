// SPDX-License-Identifier: GPL-2.0

//! The state that the threads of an attacker share: open devices, the verbs objects that any of
//! them created, and fixed areas of memory.

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

/// Number of areas of memory of which regions are registered.
pub const AREAS: u64 = 24;
/// Bytes of an area: two huge pages.
pub const AREA_LEN: u64 = 4 << 20;
/// Address of the first area.
const MEMORY: u64 = 0x10_0000_0000;

/// Number of places for mapped rings. A new ring replaces the oldest.
pub const RINGS: u64 = 64;
/// Bytes of a place for a ring.
const RING_LEN: u64 = 1 << 20;
/// Address of the first place.
const RING_BASE: u64 = 0x20_0000_0000;
/// Number of places for rings longer than [`RING_LEN`].
const LONG_RINGS: u64 = 4;
/// Bytes of a place for a long ring.
const LONG_RING_LEN: u64 = 1 << 29;
/// Address of the first place for a long ring.
const LONG_BASE: u64 = 0x28_0000_0000;

/// Bytes of the scratch memory of each thread.
pub const SCRATCH_LEN: u64 = 0x10000;
/// Address of the scratch memory of the first thread.
const SCRATCH_BASE: u64 = 0x30_0000_0000;

/// Number of open devices of an attacker.
pub const CONTEXTS: usize = 3;
/// Maximum number of known objects of a kind.
const MAX_KNOWN: usize = 20;

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

/// Number of kinds.
pub const KINDS: usize = 13;

/// The attributes of a verbs object that the attacker knows. A kind of object uses some of the
/// fields.
#[derive(Clone, Copy, Default, Debug)]
pub struct Object {
    /// Index of the context that the object belongs to.
    pub context: usize,
    /// Handle of uverbs, or a file descriptor.
    pub handle: u32,
    /// Number of a QP, AH or SRQ, or L_Key of a region.
    pub number: u32,
    /// R_Key of a region or window.
    pub rkey: u32,
    /// Address (IOVA) of a region.
    pub address: u64,
    /// Bytes of a region or of device memory, or entries that were requested for a CQ.
    pub length: u64,
    /// Address of the send ring of a QP.
    pub send: u64,
    /// Address of the receive ring of a QP or an SRQ, or of the ring of a CQ.
    pub ring: u64,
    /// Type of a QP, an SRQ or a memory window.
    pub subtype: u8,
    /// Slot of a QP in the doorbell page.
    pub slot: u32,
}

/// An RDMA device.
#[derive(Clone)]
pub struct Device {
    /// Name of the device.
    pub name: String,
    /// Path of its uverbs file.
    pub node: String,
    /// Indices and values of the GIDs that are not zero, of the first 12 of the table.
    pub gids: Vec<(u8, [u8; 16])>,
}

/// The rrxe devices of the host, by name.
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

/// The state that the threads of an attacker share.
pub struct World {
    /// The devices that exist, as last read.
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
    /// Maps the memory areas. No device is open.
    pub fn new(devices: Vec<Device>, threads: u64) -> Result<Self, i32> {
        for (base, length) in [
            (MEMORY, AREAS * AREA_LEN),
            (RING_BASE, RINGS * RING_LEN),
            (LONG_BASE, LONG_RINGS * LONG_RING_LEN),
            (SCRATCH_BASE, threads * SCRATCH_LEN),
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

    /// Address of an area.
    pub fn memory(&self, area: u64) -> u64 {
        MEMORY + area % AREAS * AREA_LEN
    }

    /// Address of a thread's scratch memory.
    pub fn scratch(&self, thread: u64) -> u64 {
        SCRATCH_BASE + thread * SCRATCH_LEN
    }

    /// File descriptor of a context.
    pub fn fd(&self, context: usize) -> i32 {
        self.files[context % CONTEXTS].load(Relaxed)
    }

    /// File descriptor from which asynchronous events of a context are read.
    pub fn events(&self, context: usize) -> i32 {
        self.events[context % CONTEXTS].load(Relaxed)
    }

    /// Sets the files, the device and the doorbell page of a context. Returns its old files.
    pub fn set_files(
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

    /// Address of the doorbell page of a context, or zero.
    pub fn page(&self, context: usize) -> u64 {
        self.pages[context % CONTEXTS].load(Relaxed)
    }

    /// The device of a context.
    pub fn device(&self, context: usize) -> Option<Device> {
        let which = self.which[context % CONTEXTS].load(Relaxed) as usize;
        self.devices.lock().ok()?.get(which).cloned()
    }

    /// Adds an object to the known ones. If there are [`MAX_KNOWN`] of its kind, removes a random
    /// one of them and returns it.
    pub fn add(&self, kind: Kind, object: Object, rng: &mut Rng) -> Option<Object> {
        let mut pool = self.pools[kind as usize].lock().ok()?;
        let evicted = (pool.len() >= MAX_KNOWN).then(|| {
            let index = rng.index(pool.len());
            pool.swap_remove(index)
        });
        pool.push(object);
        evicted
    }

    /// Returns a random object of a kind.
    pub fn any(&self, kind: Kind, rng: &mut Rng) -> Option<Object> {
        let pool = self.pools[kind as usize].lock().ok()?;
        (!pool.is_empty()).then(|| pool[rng.index(pool.len())])
    }

    /// Returns a random object of a kind that belongs to a context.
    pub fn any_of(&self, kind: Kind, context: usize, rng: &mut Rng) -> Option<Object> {
        let pool = self.pools[kind as usize].lock().ok()?;
        let own = pool.iter().filter(|object| object.context == context);
        let which = rng.index(own.clone().count());
        own.skip(which).copied().next()
    }

    /// Removes a random object of a kind from the known ones and returns it.
    pub fn take(&self, kind: Kind, rng: &mut Rng) -> Option<Object> {
        let mut pool = self.pools[kind as usize].lock().ok()?;
        let index = rng.index(pool.len());
        (index < pool.len()).then(|| pool.swap_remove(index))
    }

    /// Replaces the attributes of the known object with the same context and handle.
    pub fn update(&self, kind: Kind, object: Object) {
        if let Ok(mut pool) = self.pools[kind as usize].lock() {
            let same =
                |old: &&mut Object| old.context == object.context && old.handle == object.handle;
            if let Some(old) = pool.iter_mut().find(same) {
                *old = object;
            }
        }
    }

    /// Removes all objects of a context from the known ones.
    pub fn remove_objects(&self, context: usize) {
        for pool in &self.pools {
            if let Ok(mut pool) = pool.lock() {
                pool.retain(|object| object.context != context);
            }
        }
    }

    /// Maps a ring of a context over another ring or plain memory. Returns its address, or zero on
    /// failure.
    pub fn map_ring(&self, context: usize, offset: u64, length: u32) -> u64 {
        let length = u64::from(length);
        let place = match length {
            1..=RING_LEN => RING_BASE + self.next_ring.fetch_add(1, Relaxed) % RINGS * RING_LEN,
            ..=LONG_RING_LEN => {
                LONG_BASE + self.next_long_ring.fetch_add(1, Relaxed) % LONG_RINGS * LONG_RING_LEN
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

    /// Maps plain memory over a ring.
    pub fn unmap_ring(&self, ring: u64) {
        let length = if ring >= LONG_BASE {
            LONG_RING_LEN
        } else {
            RING_LEN
        };
        let _ = sys::map(ring, length, READ_WRITE, PRIVATE_FIXED, -1, 0);
    }

    /// Address of a random place for a ring. A ring may be mapped there.
    pub fn some_ring(&self, rng: &mut Rng) -> u64 {
        let used = self.next_ring.load(Relaxed).clamp(1, RINGS);
        RING_BASE + rng.below(used) * RING_LEN
    }

    /// Address of a random place for a long ring.
    pub fn some_long_ring(&self, rng: &mut Rng) -> Option<u64> {
        let used = self.next_long_ring.load(Relaxed).min(LONG_RINGS);
        (used > 0).then(|| LONG_BASE + rng.below(used) * LONG_RING_LEN)
    }
}
