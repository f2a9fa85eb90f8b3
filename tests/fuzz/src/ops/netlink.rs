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
    // RDMA_NLDEV_ATTR_RES_LQPN, RES_PDN, RES_CQN, RES_MRN, RES_CTXN, RES_SRQN and STAT_COUNTER_ID.
    let attribute = thread.rng.pick(&[21u16, 60, 61, 62, 64, 90, 79]);
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
    // ib_core gives a new device the number after the newest one, so links that are added again and
    // again have higher and higher numbers.
    let device = match thread.rng.one_in(8) {
        true => thread.rng.below(8) as u32,
        false => thread.device_number,
    };
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
/// contain freed memory. Remembers the number of one of the devices that are named in the first
/// response.
fn exchange(thread: &mut Thread<'_>, socket: i64, message: &[u8]) -> Done {
    sys::poke(thread.scratch, message);
    sys::call(
        nr::SENDTO,
        &[socket, thread.scratch as i64, message.len() as i64, 0, 0, 0],
    )?;
    for response in 0..64 {
        // MSG_DONTWAIT
        let received = sys::call(
            nr::RECVFROM,
            &[socket, thread.scratch as i64, 0x8000, 0x40, 0, 0],
        );
        let Ok(length) = received else {
            break;
        };
        let answer = sys::peek(thread.scratch, length as usize);
        if response == 0 {
            let numbers: Vec<u32> = device_numbers(&answer).collect();
            if !numbers.is_empty() {
                thread.device_number = thread.rng.pick(&numbers);
            }
        }
        if answer.windows(POISON.len()).any(|window| window == POISON) {
            thread.stats.poison.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}

/// Returns the number of the device that each message of a response names. A response without an
/// error has it in the first attribute, RDMA_NLDEV_ATTR_DEV_INDEX.
fn device_numbers(response: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let mut rest = response;
    core::iter::from_fn(move || {
        let length = rest.get(..4)?.try_into().map(u32::from_le_bytes).ok()?;
        let message = rest.get(..length as usize)?;
        rest = rest
            .get(length.next_multiple_of(4) as usize..)
            .unwrap_or(&[]);
        Some(message)
    })
    .filter(|message| message.get(16..20) == Some(&[8, 0, 1, 0]))
    .filter_map(|message| message.get(20..24)?.try_into().map(u32::from_le_bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_are_found_in_responses() {
        let message = |number: u32| {
            Bytes::new()
                .word(&[24, 0, 1, 0])
                .half(&[8, 1])
                .word(&[number])
        };
        let error = Bytes::new().word(&[20, 2, 1, 0, 0]);
        let response = Bytes::new()
            .bytes(&message(7).0)
            .bytes(&error.0)
            .bytes(&message(300).0);
        assert_eq!(device_numbers(&response.0).collect::<Vec<_>>(), [7, 300]);
        assert_eq!(device_numbers(&[0; 3]).count(), 0);
        assert_eq!(device_numbers(&[200, 0, 0, 0]).count(), 0);
    }
}
