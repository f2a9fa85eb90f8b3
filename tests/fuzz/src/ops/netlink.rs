// SPDX-License-Identifier: GPL-2.0

//! Requests over RDMA netlink, by any user, for the state of devices and objects while it changes.

use std::sync::atomic::Ordering::Relaxed;

use super::Done;
use crate::{
    sys::{self, nr},
    thread::Thread,
    uverbs::Bytes,
    world::Kind,
};

/// Numbers of the commands RDMA_NLDEV_CMD_*_GET that can be dumped.
const DUMPS: [u16; 12] = [1, 5, 9, 10, 11, 12, 13, 14, 17, 22, 23, 29];
/// Numbers of the other commands, and 31, which no command has. RDMA_NLDEV_CMD_DELLINK (4) is
/// missing, because attackers that run as root would remove the victim's links.
const OTHERS: [u16; 18] = [
    0, 2, 3, 6, 7, 15, 16, 18, 19, 20, 21, 24, 25, 26, 27, 28, 30, 31,
];
const RES_MR_GET: u16 = 13;
/// Four bytes of freed memory under slab poisoning (`slub_debug=P`). Four bytes, because that is
/// the size of the access rights of a region in a dump.
const POISON: [u8; 4] = [0x6b; 4];

/// Requests a dump by one of [`DUMPS`].
pub fn dump(thread: &mut Thread<'_>) -> Done {
    let kind = thread.rng.pick(&DUMPS);
    ask(thread, kind, 0x301, Bytes::new())
}

/// Requests a dump of memory regions.
pub fn dump_mr(thread: &mut Thread<'_>) -> Done {
    ask(thread, RES_MR_GET, 0x301, Bytes::new())
}

/// Makes a request for one object, by a command that can be dumped or by another one.
pub fn get(thread: &mut Thread<'_>) -> Done {
    let kind = if thread.rng.one_in(4) {
        thread.rng.pick(&OTHERS)
    } else {
        thread.rng.pick(&DUMPS)
    };
    // RDMA_NLDEV_ATTR_RES_LQPN, RES_PDN, RES_CQN, RES_MRN, RES_CTXN, RES_SRQ and STAT_COUNTER.
    let attribute = thread.rng.pick(&[21u16, 60, 61, 62, 64, 88, 77]);
    let number = if thread.rng.one_in(2) {
        thread.any(Kind::Qp).number
    } else {
        thread.rng.below(128) as u32
    };
    let port = Bytes::new()
        .half(&[8, 3])
        .word(&[1])
        .half(&[8, attribute])
        .word(&[number]);
    ask(thread, kind, 1, port)
}

fn ask(thread: &mut Thread<'_>, kind: u16, flags: u16, attributes: Bytes) -> Done {
    // Mostly a low number, because ib_core numbers devices from 0 in the order of registration.
    let most = if thread.rng.one_in(8) { 8 } else { 3 };
    let device = thread.rng.below(most) as u32;
    let length = 24 + attributes.0.len() as u32;
    let message = Bytes::new()
        .word(&[length])
        .half(&[5 << 10 | kind, flags])
        .word(&[1, 0])
        .half(&[8, 1])
        .word(&[device])
        .bytes(&attributes.0);
    // AF_NETLINK, SOCK_RAW, NETLINK_RDMA
    let socket = sys::call(nr::SOCKET, &[16, 3, 20])?;
    let done = exchange(thread, socket, &message.0);
    let _ = sys::close(socket as i32);
    done
}

/// Sends the request and receives the responses that are there at once. Counts the responses that
/// contain freed memory.
fn exchange(thread: &mut Thread<'_>, socket: i64, message: &[u8]) -> Done {
    sys::poke(thread.scratch, message);
    sys::call(
        nr::SENDTO,
        &[socket, thread.scratch as i64, message.len() as i64, 0, 0, 0],
    )?;
    for _ in 0..64 {
        // MSG_DONTWAIT
        let received = sys::call(
            nr::RECVFROM,
            &[socket, thread.scratch as i64, 0x8000, 0x40, 0, 0],
        );
        let Ok(length) = received else {
            break;
        };
        let answer = sys::peek(thread.scratch, length as usize);
        if answer.windows(POISON.len()).any(|window| window == POISON) {
            thread.stats.poison.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}
