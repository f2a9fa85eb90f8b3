// SPDX-License-Identifier: GPL-2.0

//! Commands and ioctls of uverbs, encoded as bytes. Messages have the contents that the caller
//! gives. But one in [`Thread::mutate_one_in`] has changed bytes, and some have a wrong command
//! number, length or response address.

use crate::{
    sys::{self, nr, Outcome},
    thread::Thread,
    world::Object,
};

/// Numbers of the write commands.
#[allow(missing_docs)]
pub mod cmd {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const POLL_CQ: u32 = 21;
    pub const REQ_NOTIFY_CQ: u32 = 23;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
    pub const POST_RECV: u32 = 29;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    pub const POST_SRQ_RECV: u32 = 36;
    pub const OPEN_XRCD: u32 = 37;
    pub const CLOSE_XRCD: u32 = 38;
    pub const CREATE_XSRQ: u32 = 39;
    pub const OPEN_QP: u32 = 40;
    // Extended commands.
    pub const CREATE_FLOW: u32 = 50;
    pub const DESTROY_FLOW: u32 = 51;
    pub const MODIFY_CQ: u32 = 57;
}

const RDMA_VERBS_IOCTL: i64 = 0xc018_1b01;
const DRIVER_RXE: u32 = 14;
const MANDATORY: u16 = 1;

/// A builder of a message, field by field.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Creates an empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends 8-bit values.
    pub fn bytes(mut self, values: &[u8]) -> Self {
        self.0.extend_from_slice(values);
        self
    }

    /// Appends 16-bit values.
    pub fn half(mut self, values: &[u16]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    /// Appends 32-bit values.
    pub fn word(mut self, values: &[u32]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    /// Appends 64-bit values.
    pub fn quad(mut self, values: &[u64]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }
}

/// The 32-bit value at an offset, or zero beyond the end.
pub fn word_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).map_or(0, |bytes| {
        u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
    })
}

/// The 64-bit value at an offset. Words beyond the end are zero.
pub fn quad_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from(word_at(bytes, offset)) | u64::from(word_at(bytes, offset + 4)) << 32
}

/// The value of an ioctl's attribute.
pub enum Value<'a> {
    /// A handle, a file descriptor or another value of up to 64 bits, and its length in bytes.
    Inline(u64, u16),
    /// A buffer that the kernel reads.
    In(&'a [u8]),
    /// A buffer of this many bytes that the kernel writes.
    Out(u16),
}

/// The result of an ioctl: the value of the first attribute, and the contents of each `Out` in
/// order.
pub type IoctlResult = Result<(u64, Vec<Vec<u8>>), i32>;

impl Thread<'_> {
    /// Executes a write command and returns its response of `response` bytes.
    pub fn command(
        &mut self,
        context: usize,
        number: u32,
        body: Bytes,
        response: usize,
    ) -> Result<Vec<u8>, i32> {
        let place = self.response_address();
        let body = Bytes::new().quad(&[place]).bytes(&body.0);
        self.submit(context, number, &body.0, response)?;
        Ok(sys::peek(self.scratch, response))
    }

    /// Executes a write command without a response.
    pub fn command_without_response(
        &mut self,
        context: usize,
        number: u32,
        body: Bytes,
    ) -> Outcome {
        self.submit(context, number, &body.0, 0)
    }

    /// Executes a write command whose body is a handle, and which has no response.
    pub fn command_on_handle(&mut self, number: u32, object: Object) -> Outcome {
        self.command_without_response(object.context, number, Bytes::new().word(&[object.handle]))
    }

    /// Executes a write command that destroys an object and whose response is a number of events.
    pub fn command_destroy(&mut self, number: u32, object: Object) -> Outcome {
        self.command(
            object.context,
            number,
            Bytes::new().word(&[object.handle, 0]),
            8,
        )
        .map(|_| 0)
    }

    fn submit(&mut self, context: usize, number: u32, body: &[u8], response: usize) -> Outcome {
        let mut words = [
            (8 + body.len()).div_ceil(4) as u16,
            response.div_ceil(4) as u16,
        ];
        let mut number = number;
        if self.rng.one_in(self.mutate_one_in * 8) {
            let which = self.rng.index(2);
            words[which] = self.rng.edge_value() as u16;
        }
        if self.rng.one_in(self.mutate_one_in * 16) {
            number = self.rng.word();
        }
        let mut message = Bytes::new().word(&[number]).half(&words).bytes(body).0;
        self.mutate(&mut message, 8);
        sys::write(self.world.fd(context), &message)
    }

    /// Executes an extended command. `response` is the length in bytes of the response of
    /// ib_uverbs. The driver's part of the response follows it ([`Self::provider_out`]).
    pub fn extended(
        &mut self,
        context: usize,
        number: u32,
        body: Bytes,
        response: usize,
    ) -> Result<Vec<u8>, i32> {
        let mut body = body.0;
        body.resize(body.len().next_multiple_of(8), 0);
        let place = if response == 0 {
            0
        } else {
            self.response_address()
        };
        let provider = if self.rng.one_in(self.mutate_one_in * 8) {
            self.rng.edge_value() as u16
        } else {
            0
        };
        let mut message = Bytes::new()
            .word(&[1 << 31 | number])
            .half(&[(body.len() / 8) as u16, (response / 8) as u16])
            .quad(&[place])
            .half(&[provider, self.provider_out])
            .word(&[0])
            .bytes(&body)
            .0;
        self.mutate(&mut message, 8);
        sys::write(self.world.fd(context), &message)?;
        Ok(sys::peek(
            self.scratch,
            response + 8 * usize::from(self.provider_out),
        ))
    }

    /// Executes an ioctl. Attributes are pairs of a number and a value.
    pub fn ioctl(
        &mut self,
        context: usize,
        object: u16,
        method: u16,
        attributes: &[(u16, Value<'_>)],
    ) -> IoctlResult {
        let mut place = self.scratch + 0x1000;
        let mut outs = Vec::new();
        let mut packed = Bytes::new();
        for (number, value) in attributes {
            let (length, data) = match value {
                Value::Inline(data, length) => (*length, *data),
                Value::In(bytes) if bytes.len() <= 8 => {
                    let mut quad = [0; 8];
                    quad[..bytes.len()].copy_from_slice(bytes);
                    (bytes.len() as u16, u64::from_ne_bytes(quad))
                }
                Value::In(bytes) => {
                    sys::poke(place, bytes);
                    (bytes.len() as u16, place)
                }
                Value::Out(length) => {
                    outs.push((place, usize::from(*length)));
                    (*length, place)
                }
            };
            place += u64::from(length).next_multiple_of(16) + 16;
            packed = packed.half(&[*number, length, MANDATORY, 0]).quad(&[data]);
        }
        let header = Bytes::new()
            .half(&[
                (24 + packed.0.len()) as u16,
                object,
                method,
                attributes.len() as u16,
            ])
            .quad(&[0])
            .word(&[DRIVER_RXE, 0]);
        let mut message = header.bytes(&packed.0).0;
        self.mutate(&mut message, 2);
        sys::poke(self.scratch, &message);
        sys::call(
            nr::IOCTL,
            &[
                self.world.fd(context).into(),
                RDMA_VERBS_IOCTL,
                self.scratch as i64,
            ],
        )?;
        let first = sys::quad(self.scratch + 32).load(std::sync::atomic::Ordering::Relaxed);
        Ok((
            first,
            outs.into_iter()
                .map(|(place, length)| sys::peek(place, length))
                .collect(),
        ))
    }

    /// The address for a response: the scratch memory, or seldom another address, most of which are
    /// invalid.
    fn response_address(&mut self) -> u64 {
        if self.rng.one_in(self.mutate_one_in * 8) {
            return self.rng.pick(&[
                0,
                8,
                u64::MAX - 7,
                0xffff_8880_0000_0000,
                self.world.memory(0),
            ]);
        }
        self.scratch
    }

    /// Changes a few bytes, mostly from offset `start` on, of one message in `mutate_one_in`.
    fn mutate(&mut self, message: &mut [u8], start: usize) {
        if !self.rng.one_in(self.mutate_one_in) || message.len() < start + 4 {
            return;
        }
        for _ in 0..=self.rng.below(2) {
            let at = start + self.rng.index(message.len() - start);
            match self.rng.below(3) {
                0 => message[at] ^= 1 << self.rng.below(8),
                1 => message[at] = self.rng.word() as u8,
                _ => {
                    let at = (at & !3).min(message.len() - 4);
                    let value = self.rng.edge_value() as u32;
                    message[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
    }
}
