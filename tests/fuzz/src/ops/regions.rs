// SPDX-License-Identifier: GPL-2.0

//! Operations on memory regions and memory windows.

use super::Done;
use crate::{
    sys::{self, nr},
    thread::Thread,
    uverbs::{cmd, word_at, Bytes, Value},
    world::{Kind, Object, AREA_LEN},
};

const ON_DEMAND: u32 = 1 << 6;

/// Chooses the access rights of a region: mostly those for writes, reads, atomics and windows.
fn access(thread: &mut Thread<'_>) -> u32 {
    match thread.rng.below(12) {
        0..=4 => 0xf | 0x10,
        5..=7 => 0x1f | ON_DEMAND,
        8 => 1,
        9 => 0xf | 0x300,
        10 => 0xf | ON_DEMAND | thread.rng.below(2) as u32 * 0x20,
        _ => thread.rng.edge_value() as u32,
    }
}

/// Chooses a part of an area. Returns its address and length, which may reach beyond the area.
pub fn extent(thread: &mut Thread<'_>) -> (u64, u64) {
    let area = thread.world.memory(thread.rng.next());
    let offset = thread.rng.pick(&[0, 0, 1, 4096, 8000, 1 << 21]) % AREA_LEN;
    let length = match thread.rng.below(16) {
        0 => thread.rng.edge_value(),
        1 => 0,
        2 => thread.rng.below(AREA_LEN - offset),
        6 => 2 * AREA_LEN,
        _ => 1 + thread.rng.below(64 << 10),
    };
    (area + offset, length)
}

/// The region that a response to REG_MR describes.
fn region(context: usize, response: &[u8], address: u64, length: u64) -> Object {
    Object {
        context,
        handle: word_at(response, 0),
        number: word_at(response, 4),
        rkey: word_at(response, 8),
        address,
        length,
        ..Object::default()
    }
}

fn add_region(thread: &mut Thread<'_>, region: Object) {
    if let Some(old) = thread.world.add(Kind::Mr, region, &mut thread.rng) {
        let _ = thread.command_on_handle(cmd::DEREG_MR, old);
    }
}

/// Registers a region: pinned, on-demand or implicit on-demand.
pub fn reg_mr(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let access = access(thread);
    reg(thread, context, access)
}

/// Registers a region with the given access rights in a context.
pub fn reg(thread: &mut Thread<'_>, context: usize, access: u32) -> Done {
    let pd = thread.any_of(Kind::Pd, context);
    let (mut address, mut length) = extent(thread);
    if access & ON_DEMAND != 0 && thread.rng.one_in(4) {
        (address, length) = (0, u64::MAX);
    }
    let iova = match thread.rng.below(8) {
        0 => 0,
        1 => thread.rng.edge_value(),
        _ => address,
    };
    let body = Bytes::new()
        .quad(&[address, length, iova])
        .word(&[pd.handle, access]);
    let response = thread.command(context, cmd::REG_MR, body, 12)?;
    if length == u64::MAX {
        (address, length) = (thread.world.memory(thread.rng.next()), AREA_LEN);
    } else {
        address = iova;
    }
    add_region(thread, region(context, &response, address, length));
    Ok(())
}

/// Registers a region of the memory at `address`, which is also the region's IOVA.
pub fn reg_at(
    thread: &mut Thread<'_>,
    context: usize,
    address: u64,
    length: u64,
    access: u32,
) -> Result<Object, i32> {
    let pd = thread.any_of(Kind::Pd, context);
    let body = Bytes::new()
        .quad(&[address, length, address])
        .word(&[pd.handle, access]);
    let response = thread.command(context, cmd::REG_MR, body, 12)?;
    let region = region(context, &response, address, length);
    add_region(thread, region);
    Ok(region)
}

/// Registers the whole address space as an implicit on-demand region. The known object covers one
/// area of it, so that messages use mapped addresses.
pub fn reg_implicit(thread: &mut Thread<'_>, context: usize) -> Done {
    let pd = thread.any_of(Kind::Pd, context);
    let body = Bytes::new()
        .quad(&[0, u64::MAX, 0])
        .word(&[pd.handle, 0x1f | ON_DEMAND]);
    let response = thread.command(context, cmd::REG_MR, body, 12)?;
    let address = thread.world.memory(thread.rng.next());
    add_region(thread, region(context, &response, address, AREA_LEN));
    Ok(())
}

/// Registers a region by ioctl.
pub fn reg_mr_ioctl(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let pd = thread.any_of(Kind::Pd, context);
    let (address, length) = extent(thread);
    let access = access(thread);
    let attributes = [
        (0, Value::Inline(0, 0)),
        (1, Value::Inline(pd.handle.into(), 0)),
        (3, Value::Inline(address, 8)),
        (4, Value::Inline(address, 8)),
        (5, Value::Inline(length, 8)),
        (6, Value::Inline(access.into(), 4)),
        (9, Value::Out(4)),
        (10, Value::Out(4)),
    ];
    register(thread, context, 5, &attributes, address, length)
}

/// Registers a region of device memory.
pub fn reg_dm_mr(thread: &mut Thread<'_>) -> Done {
    let dm = thread.any(Kind::Dm);
    let pd = thread.any_of(Kind::Pd, dm.context);
    let length = if thread.rng.one_in(4) {
        thread.rng.edge_value()
    } else {
        dm.length
    };
    let attributes = [
        (0, Value::Inline(0, 0)),
        (1, Value::Inline(0, 8)),
        (2, Value::Inline(length, 8)),
        (3, Value::Inline(pd.handle.into(), 0)),
        (4, Value::Inline(0x2f, 4)),
        (5, Value::Inline(dm.handle.into(), 0)),
        (6, Value::Out(4)),
        (7, Value::Out(4)),
    ];
    register(thread, dm.context, 0, &attributes, 0, length)
}

/// Registers a region of a dma-buf.
pub fn reg_dmabuf_mr(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let pd = thread.any_of(Kind::Pd, context);
    let buffer = dma_buf(thread)?;
    let length = 1 + thread.rng.below(0x10000);
    let attributes = [
        (0, Value::Inline(0, 0)),
        (1, Value::Inline(pd.handle.into(), 0)),
        (2, Value::Inline(0, 8)),
        (3, Value::Inline(length, 8)),
        (4, Value::Inline(0, 8)),
        (5, Value::Inline(buffer as u64, 4)),
        (6, Value::Inline(0xf, 4)),
        (7, Value::Out(4)),
        (8, Value::Out(4)),
    ];
    let done = register(thread, context, 4, &attributes, 0, length);
    let _ = sys::close(buffer as i32);
    done
}

/// Creates a dma-buf of 16 pages of a memfd, by udmabuf.
fn dma_buf(thread: &mut Thread<'_>) -> Result<i64, i32> {
    // MFD_ALLOW_SEALING; F_ADD_SEALS with F_SEAL_SHRINK.
    sys::poke(thread.scratch, b"fuzz\0");
    let file = sys::call(nr::MEMFD_CREATE, &[thread.scratch as i64, 2])?;
    let _ = sys::call(nr::FTRUNCATE, &[file, 0x10000]);
    let _ = sys::call(nr::FCNTL, &[file, 1033, 2]);
    let request = Bytes::new().word(&[file as u32, 1]).quad(&[0, 0x10000]);
    sys::poke(thread.scratch, &request.0);
    let device = sys::open("/dev/udmabuf");
    let buffer = match device {
        Ok(device) => {
            let buffer = sys::call(
                nr::IOCTL,
                &[device.into(), 0x4018_7542, thread.scratch as i64],
            );
            let _ = sys::close(device);
            buffer
        }
        Err(errno) => Err(errno),
    };
    let _ = sys::close(file as i32);
    buffer
}

fn register(
    thread: &mut Thread<'_>,
    context: usize,
    method: u16,
    attributes: &[(u16, Value<'_>)],
    address: u64,
    length: u64,
) -> Done {
    let (handle, keys) = thread.ioctl(context, 7, method, attributes)?;
    let key = |index: usize| keys.get(index).map_or(0, |key| word_at(key, 0));
    let (number, rkey) = (key(0), key(1));
    add_region(
        thread,
        Object {
            context,
            handle: handle as u32,
            number,
            rkey,
            address,
            length,
            ..Object::default()
        },
    );
    Ok(())
}

/// Changes any combination of a region's translation, PD and access rights.
pub fn rereg_mr(thread: &mut Thread<'_>) -> Done {
    let mut region = thread.any(Kind::Mr);
    let pd = thread.any_of(Kind::Pd, region.context);
    let (address, length) = extent(thread);
    let flags = if thread.rng.one_in(16) {
        thread.rng.edge_value() as u32
    } else {
        1 + thread.rng.below(7) as u32
    };
    let access = access(thread);
    let body = Bytes::new()
        .word(&[region.handle, flags])
        .quad(&[address, length, address])
        .word(&[pd.handle, access]);
    let response = thread.command(region.context, cmd::REREG_MR, body, 8)?;
    region.number = word_at(&response, 0);
    region.rkey = word_at(&response, 4);
    if flags & 1 != 0 {
        (region.address, region.length) = (address, length);
    }
    thread.world.update(Kind::Mr, region);
    Ok(())
}

/// Registers a region of one page and replaces its page 200 times.
pub fn rereg_often(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let memory = thread.world.memory(thread.rng.next());
    let region = reg_at(thread, context, memory, 4096, 0x1f)?;
    let place = |thread: &mut Thread<'_>| {
        let address = memory + thread.rng.below(16) * 4096;
        let body = Bytes::new()
            .word(&[region.handle, 1])
            .quad(&[address, 4096, address])
            .word(&[0, 0]);
        thread.command(context, cmd::REREG_MR, body, 8).map(|_| ())
    };
    thread.without_mutation(|thread| (0..200).try_for_each(|_| place(thread)))?;
    thread.command_on_handle(cmd::DEREG_MR, region).map(|_| ())
}

/// Deregisters a region.
pub fn dereg_mr(thread: &mut Thread<'_>) -> Done {
    let region = thread.any_to_destroy(Kind::Mr);
    if thread.rng.one_in(4) {
        return thread
            .ioctl(
                region.context,
                7,
                1,
                &[(0, Value::Inline(region.handle.into(), 0))],
            )
            .map(|_| ());
    }
    thread.command_on_handle(cmd::DEREG_MR, region).map(|_| ())
}

/// Queries a region by ioctl, as a process does that imports the region.
pub fn query_mr(thread: &mut Thread<'_>) -> Done {
    let region = thread.any(Kind::Mr);
    let attributes = [
        (0, Value::Inline(region.handle.into(), 0)),
        (1, Value::Out(4)),
        (2, Value::Out(4)),
        (3, Value::Out(8)),
        (4, Value::Out(8)),
    ];
    thread.ioctl(region.context, 7, 3, &attributes).map(|_| ())
}

/// Gives advice about on-demand regions (`ibv_advise_mr`), with and without the flag FLUSH.
pub fn advise_mr(thread: &mut Thread<'_>) -> Done {
    let region = thread.any(Kind::Mr);
    let pd = thread.any_of(Kind::Pd, region.context);
    let mut list = Bytes::new();
    for _ in 0..=thread.rng.below(3) {
        let length = thread.rng.below(region.length.clamp(1, AREA_LEN)) as u32;
        list = list.quad(&[region.address]).word(&[length, region.number]);
    }
    let (advice, flags) = (thread.rng.below(3), thread.rng.below(2));
    let attributes = [
        (0, Value::Inline(pd.handle.into(), 0)),
        (1, Value::Inline(advice, 8)),
        (2, Value::Inline(flags, 4)),
        (3, Value::In(&list.0)),
    ];
    thread.ioctl(region.context, 7, 2, &attributes).map(|_| ())
}

/// Allocates a memory window.
pub fn alloc_mw(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let pd = thread.any_of(Kind::Pd, context);
    let subtype = 1 + thread.rng.below(2) as u8;
    let response = thread.command(
        context,
        cmd::ALLOC_MW,
        Bytes::new().word(&[pd.handle]).bytes(&[subtype, 0, 0, 0]),
        8,
    )?;
    let (handle, rkey) = (word_at(&response, 0), word_at(&response, 4));
    let window = Object {
        context,
        handle,
        rkey,
        subtype,
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Mw, window, &mut thread.rng) {
        let _ = thread.command_on_handle(cmd::DEALLOC_MW, old);
    }
    Ok(())
}

/// Deallocates a memory window.
pub fn dealloc_mw(thread: &mut Thread<'_>) -> Done {
    let window = thread.any_to_destroy(Kind::Mw);
    thread
        .command_on_handle(cmd::DEALLOC_MW, window)
        .map(|_| ())
}
