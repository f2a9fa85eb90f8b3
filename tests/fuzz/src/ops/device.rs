// SPDX-License-Identifier: GPL-2.0

//! Operations on device contexts, PDs, address handles, XRC domains, flows, device memory and
//! counters.

use super::Done;
use crate::{
    sys::{self, nr},
    thread::Thread,
    uverbs::{cmd, quad_at, word_at, Bytes, Value},
    world::{Kind, Object},
};

/// Opens a random device and replaces a context by it.
pub fn open(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let device = {
        let Ok(mut devices) = thread.world.devices.lock() else {
            return Ok(());
        };
        if thread.rng.one_in(8) || devices.is_empty() {
            *devices = crate::world::devices();
        }
        let which = thread.rng.index(devices.len());
        devices
            .get(which)
            .map(|device| (which, device.clone()))
            .ok_or(19)?
    };
    open_device(thread, context, device.0, &device.1.node)
}

/// Opens a device and replaces a context by it. Mostly requests rrxe's extension of the ABI
/// (Documentation/uabi.rst).
pub fn open_device(thread: &mut Thread<'_>, context: usize, which: usize, node: &str) -> Done {
    let fd = sys::open(node)?;
    let extension = match thread.rng.below(8) {
        0 => Bytes::new(),
        1 => Bytes::new().word(&[
            thread.rng.edge_value() as u32,
            thread.rng.edge_value() as u32,
        ]),
        _ => Bytes::new().word(&[1, 7]),
    };
    let room = if extension.0.is_empty() { 8 } else { 32 };
    // Thread::command() writes to the file of a context, and this file is not a context's yet.
    let body = Bytes::new().quad(&[thread.scratch]).bytes(&extension.0);
    let words = [((8 + body.0.len()) / 4) as u16, (room / 4) as u16];
    let message = Bytes::new()
        .word(&[cmd::GET_CONTEXT])
        .half(&words)
        .bytes(&body.0);
    if let Err(errno) = sys::write(fd, &message.0) {
        let _ = sys::close(fd);
        return Err(errno);
    }
    let response = sys::peek(thread.scratch, room);
    let events = word_at(&response, 0) as i32;
    sys::nonblocking(events);
    let (offset, size) = (quad_at(&response, 16), word_at(&response, 24));
    thread.world.remove_objects(context);
    let old = thread.world.set_files(context, which, fd, events, 0);
    if room == 32 && size > 0 {
        let page = thread.world.map_ring(context, offset, size);
        let _ = thread.world.set_files(context, which, fd, events, page);
    }
    for file in old {
        if file >= 0 {
            let _ = sys::close(file);
        }
    }
    Ok(())
}

/// Closes a file of a context while other threads use it: the file of events, or the device's file.
/// After the latter, opens a random device for a random context.
pub fn close(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    if thread.rng.one_in(2) {
        return sys::close(thread.world.events(context)).map(|_| ());
    }
    let done = sys::close(thread.world.fd(context)).map(|_| ());
    open(thread)?;
    done
}

/// Adds a file to the known ones, and closes the file that it replaces.
pub fn add_file(thread: &mut Thread<'_>, context: usize, fd: i64) {
    let file = Object {
        context,
        handle: fd as u32,
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::File, file, &mut thread.rng) {
        let _ = sys::close(old.handle as i32);
    }
}

/// Duplicates the file descriptor of a context, or closes a file from an earlier operation.
pub fn dup(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    if thread.rng.one_in(2) {
        if let Some(file) = thread.world.take(Kind::File, &mut thread.rng) {
            return sys::close(file.handle as i32).map(|_| ());
        }
    }
    let fd = sys::call(nr::DUP, &[thread.world.fd(context).into()])?;
    add_file(thread, context, fd);
    Ok(())
}

/// Queries the device or its port by commands.
pub fn query_device(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    match thread.rng.below(3) {
        0 => thread
            .command(context, cmd::QUERY_DEVICE, Bytes::new(), 176)
            .map(|_| ()),
        1 => thread
            .command(
                context,
                cmd::QUERY_PORT,
                Bytes::new().bytes(&[1, 0, 0, 0, 0, 0, 0, 0]),
                40,
            )
            .map(|_| ()),
        _ => thread
            .extended(context, cmd::QUERY_DEVICE, Bytes::new().word(&[0, 0]), 304)
            .map(|_| ()),
    }
}

/// Queries attributes of the device by ioctls.
pub fn query_ioctl(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let response = match thread.rng.below(6) {
        0 => thread.ioctl(
            context,
            0,
            2,
            &[(0, Value::Inline(1, 1)), (1, Value::Out(48))],
        ),
        1 => thread.ioctl(context, 0, 4, &[(0, Value::Out(4)), (1, Value::Out(8))]),
        2 => thread.ioctl(
            context,
            0,
            7,
            &[(0, Value::Inline(1, 8)), (1, Value::Out(8))],
        ),
        3 => thread.ioctl(
            context,
            0,
            5,
            &[
                (0, Value::Inline(32, 8)),
                (1, Value::Inline(0, 4)),
                (2, Value::Out(320)),
                (3, Value::Out(8)),
            ],
        ),
        4 => {
            let index = thread.rng.below(16);
            let attributes = [
                (0, Value::Inline(1, 4)),
                (1, Value::Inline(index, 4)),
                (2, Value::Inline(0, 4)),
                (3, Value::Out(32)),
            ];
            thread.ioctl(context, 0, 6, &attributes)
        }
        _ => {
            let object = thread.rng.below(20);
            thread.ioctl(
                context,
                0,
                1,
                &[
                    (0, Value::Inline(object, 2)),
                    (1, Value::Out(4)),
                    (2, Value::Out(256)),
                ],
            )
        }
    };
    response.map(|_| ())
}

/// Reads completion events from a channel, or asynchronous events.
pub fn events(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let fd = match thread.rng.below(2) {
        0 => thread.world.events(context),
        _ => thread.any(Kind::Channel).handle as i32,
    };
    sys::call(nr::READ, &[fd.into(), thread.scratch as i64, 256]).map(|_| ())
}

/// Allocates a protection domain.
pub fn alloc_pd(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let response = thread.command(context, cmd::ALLOC_PD, Bytes::new(), 4)?;
    let pd = Object {
        context,
        handle: word_at(&response, 0),
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Pd, pd, &mut thread.rng) {
        let _ = thread.command_on_handle(cmd::DEALLOC_PD, old);
    }
    Ok(())
}

/// Deallocates a protection domain. The kernel mostly refuses it, because the domain is in use.
pub fn dealloc_pd(thread: &mut Thread<'_>) -> Done {
    let pd = thread.any(Kind::Pd);
    if thread.rng.one_in(2) {
        return thread
            .ioctl(pd.context, 1, 0, &[(0, Value::Inline(pd.handle.into(), 0))])
            .map(|_| ());
    }
    thread.command_on_handle(cmd::DEALLOC_PD, pd).map(|_| ())
}

/// Chooses a destination GID and the index of a GID of the context's device.
pub fn path(thread: &mut Thread<'_>, context: usize) -> ([u8; 16], u8) {
    let own = thread
        .world
        .device(context)
        .map(|device| device.gids)
        .unwrap_or_default();
    let other = thread.context();
    let theirs = thread
        .world
        .device(other)
        .map(|device| device.gids)
        .unwrap_or_default();
    if own.is_empty() || theirs.is_empty() || thread.rng.one_in(thread.mutate_one_in) {
        let mut gid = [0; 16];
        gid.copy_from_slice(&thread.random_bytes(16));
        return (gid, thread.rng.below(16) as u8);
    }
    // GIDs of the same kind (link-local, IPv4, IPv6) have the same indices on all devices.
    let place = thread.rng.index(own.len());
    let target = if thread.rng.one_in(2) {
        own[place]
    } else {
        theirs[place % theirs.len()]
    };
    (target.1, own[place].0)
}

/// Creates an address handle.
pub fn create_ah(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let pd = thread.any_of(Kind::Pd, context);
    let (gid, index) = path(thread, context);
    let body = Bytes::new()
        .quad(&[0])
        .word(&[pd.handle, 0])
        .bytes(&gid)
        .word(&[0])
        .bytes(&[index, 64, 0, 0])
        .half(&[0])
        .bytes(&[0, 0, 0, 1, 1, 0]);
    let response = thread.command(context, cmd::CREATE_AH, body, 12)?;
    let ah = Object {
        context,
        handle: word_at(&response, 0),
        number: word_at(&response, 4),
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Ah, ah, &mut thread.rng) {
        let _ = thread.command_on_handle(cmd::DESTROY_AH, old);
    }
    Ok(())
}

/// Destroys an address handle.
pub fn destroy_ah(thread: &mut Thread<'_>) -> Done {
    let ah = thread.any_to_destroy(Kind::Ah);
    thread.command_on_handle(cmd::DESTROY_AH, ah).map(|_| ())
}

/// Opens an XRC domain, a private one or one that a file names.
pub fn open_xrcd(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let file = if thread.rng.one_in(2) { u32::MAX } else { 0 };
    // O_CREAT
    let body = Bytes::new().word(&[file, 0o100]);
    let response = thread.command(context, cmd::OPEN_XRCD, body, 4)?;
    let xrcd = Object {
        context,
        handle: word_at(&response, 0),
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Xrcd, xrcd, &mut thread.rng) {
        let _ = thread.command_on_handle(cmd::CLOSE_XRCD, old);
    }
    Ok(())
}

/// Closes an XRC domain.
pub fn close_xrcd(thread: &mut Thread<'_>) -> Done {
    let xrcd = thread.any_to_destroy(Kind::Xrcd);
    thread.command_on_handle(cmd::CLOSE_XRCD, xrcd).map(|_| ())
}

/// Creates a flow steering rule, for which a process needs CAP_NET_RAW.
pub fn create_flow(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    let kind = thread.rng.below(4) as u32;
    let mut specs = Bytes::new();
    let mut count = 0;
    for _ in 0..thread.rng.below(4) {
        let (spec_type, length) = thread.rng.pick(&[
            (0x20u32, 16usize),
            (0x30, 12),
            (0x31, 40),
            (0x40, 4),
            (0x41, 4),
            (0x50, 4),
        ]);
        let value = thread.random_bytes(length);
        let every = thread.rng.pick(&[0u8, 0xff]);
        specs = specs
            .word(&[spec_type])
            .half(&[8 + 2 * length as u16, 0])
            .bytes(&value)
            .bytes(&vec![every; length]);
        count += 1;
    }
    let body = Bytes::new()
        .word(&[0, qp.handle, kind])
        .half(&[specs.0.len() as u16, thread.rng.below(4) as u16])
        .bytes(&[count, 0, 0, 1])
        .word(&[thread.rng.pick(&[0, 1, 2, 4])])
        .bytes(&specs.0);
    let response = thread.extended(qp.context, cmd::CREATE_FLOW, body, 8)?;
    let flow = Object {
        context: qp.context,
        handle: word_at(&response, 4),
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Flow, flow, &mut thread.rng) {
        let _ = thread.extended(
            old.context,
            cmd::DESTROY_FLOW,
            Bytes::new().word(&[0, old.handle]),
            0,
        );
    }
    Ok(())
}

/// Destroys a flow steering rule.
pub fn destroy_flow(thread: &mut Thread<'_>) -> Done {
    let flow = thread.any_to_destroy(Kind::Flow);
    thread
        .extended(
            flow.context,
            cmd::DESTROY_FLOW,
            Bytes::new().word(&[0, flow.handle]),
            0,
        )
        .map(|_| ())
}

/// Allocates device memory.
pub fn alloc_dm(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let length = if thread.rng.one_in(8) {
        thread.rng.edge_value()
    } else {
        1 + thread.rng.below(256 << 10)
    };
    let attributes = [
        (0, Value::Inline(0, 0)),
        (1, Value::Inline(length, 8)),
        (2, Value::Inline(0, 4)),
    ];
    let (handle, _) = thread.ioctl(context, 14, 0, &attributes)?;
    let dm = Object {
        context,
        handle: handle as u32,
        length,
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Dm, dm, &mut thread.rng) {
        let _ = thread.ioctl(
            old.context,
            14,
            1,
            &[(0, Value::Inline(old.handle.into(), 0))],
        );
    }
    Ok(())
}

/// Frees device memory.
pub fn free_dm(thread: &mut Thread<'_>) -> Done {
    let dm = thread.any_to_destroy(Kind::Dm);
    thread
        .ioctl(
            dm.context,
            14,
            1,
            &[(0, Value::Inline(dm.handle.into(), 0))],
        )
        .map(|_| ())
}

/// Maps device memory over a ring, or over an area of which regions are registered.
pub fn map_dm(thread: &mut Thread<'_>) -> Done {
    let dm = thread.any(Kind::Dm);
    let offset = (1 << 43) + u64::from(dm.handle) * 0x40000;
    let length = if thread.rng.one_in(16) {
        4096
    } else {
        dm.length.max(1).next_multiple_of(4096)
    };
    if thread.rng.one_in(2) {
        thread
            .world
            .map_ring(dm.context, offset, length.min(1 << 20) as u32);
        return Ok(());
    }
    let area = thread.world.memory(thread.rng.next());
    let length = length.min(crate::world::AREA_LEN);
    sys::map(
        area,
        length,
        sys::READ_WRITE,
        sys::SHARED_FIXED,
        thread.world.fd(dm.context),
        offset,
    )
    .map(|_| ())
}

/// Creates, reads or destroys a counters object of uverbs.
pub fn counters(thread: &mut Thread<'_>) -> Done {
    match thread.rng.below(3) {
        0 => {
            let context = thread.context();
            let (handle, _) = thread.ioctl(context, 15, 0, &[(0, Value::Inline(0, 0))])?;
            let object = Object {
                context,
                handle: handle as u32,
                ..Object::default()
            };
            thread.world.add(Kind::Counters, object, &mut thread.rng);
            Ok(())
        }
        1 => {
            let object = thread.any(Kind::Counters);
            let attributes = [
                (0, Value::Inline(object.handle.into(), 0)),
                (1, Value::Out(64)),
                (2, Value::Inline(0, 4)),
            ];
            thread.ioctl(object.context, 15, 2, &attributes).map(|_| ())
        }
        _ => {
            let object = thread.any_to_destroy(Kind::Counters);
            thread
                .ioctl(
                    object.context,
                    15,
                    1,
                    &[(0, Value::Inline(object.handle.into(), 0))],
                )
                .map(|_| ())
        }
    }
}
