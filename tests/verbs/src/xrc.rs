// SPDX-License-Identifier: GPL-2.0

//! Extended reliable connections (XRC) through the kernel's uverbs interface.
//!
//! Stock librxe has no XRC. So this module writes the uverbs commands to the device's file and the
//! WQEs to the mapped rings, as a provider library would.

use std::{io, mem, ptr, rc::Rc};

use crate::{
    link::{init_attr, rtr_attr, rts_attr, Endpoint, Settings},
    object::{check, Context, Cq, Pd},
    sys::*,
};

extern "C" {
    fn write(fd: i32, bytes: *const u8, count: usize) -> isize;
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(addr: *mut u8, len: usize) -> i32;
    fn ioctl(fd: i32, request: usize, ...) -> i32;
}

const PROT_READ_WRITE: i32 = 3;
const MAP_SHARED: i32 = 1;

/// Numbers of write commands (`enum ib_uverbs_write_cmds`, `ib_user_verbs.h`).
const CREATE_QP: u32 = 24;
const MODIFY_QP: u32 = 26;
const DESTROY_QP: u32 = 27;
const POST_SEND: u32 = 28;
const DESTROY_SRQ: u32 = 35;
const OPEN_XRCD: u32 = 37;
const CLOSE_XRCD: u32 = 38;
const CREATE_XSRQ: u32 = 39;

const RDMA_VERBS_IOCTL: usize = 0xc018_1b01;
const RDMA_DRIVER_RXE: u32 = 14;
const OBJECT_QP: u16 = 4;
/// Attributes of the ioctl that creates a QP (`ib_user_ioctl_cmds.h`).
const HANDLE: u16 = 0;
const XRCD_HANDLE: u16 = 1;
const SRQ_HANDLE: u16 = 3;
const USER_HANDLE: u16 = 7;
const CAP: u16 = 8;
const TYPE: u16 = 9;
const RESP_CAP: u16 = 13;
const RESP_QP_NUM: u16 = 14;

const QPT_XRC_INI: u8 = 9;
const QPT_XRC_TGT: u8 = 10;
const SRQT_XRC: u32 = 1;

/// Executes a write command with the body `body` and returns its response.
fn command<C, R: Default>(context: &Context, number: u32, body: C) -> io::Result<R> {
    #[repr(C)]
    struct Command<C> {
        number: u32,
        in_words: u16,
        out_words: u16,
        response: *mut u8,
        body: C,
    }
    let mut response = R::default();
    let words = |bytes: usize| u16::try_from(bytes / 4).expect("commands are short");
    let command = Command {
        number,
        in_words: words(mem::size_of::<Command<C>>()),
        out_words: words(mem::size_of::<R>()),
        response: (&raw mut response).cast(),
        body,
    };
    submit(context, &command)?;
    Ok(response)
}

/// Writes a command to the device's file.
fn submit<C>(context: &Context, command: &C) -> io::Result<()> {
    let bytes = mem::size_of::<C>();
    // SAFETY: The command and the response that it points to outlive the call.
    let written = unsafe { write((*context.0).cmd_fd, (&raw const *command).cast(), bytes) };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `struct ib_uverbs_attr`.
#[repr(C)]
struct Attribute {
    number: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    value: u64,
}

impl Attribute {
    /// An attribute whose `value` is a handle, an input of up to 8 bytes, or the address of a
    /// longer input or of an output.
    fn new(number: u16, len: usize, value: u64) -> Self {
        Self {
            number,
            len: len as u16,
            flags: 1,
            reserved: 0,
            value,
        }
    }
}

/// Creates a QP by ioctl and returns its handle.
fn create_by_ioctl<const N: usize>(
    context: &Context,
    attributes: [Attribute; N],
) -> io::Result<u32> {
    #[repr(C)]
    struct Call<const N: usize> {
        len: u16,
        object: u16,
        method: u16,
        count: u16,
        reserved: u64,
        driver: [u32; 2],
        attributes: [Attribute; N],
    }
    let mut call = Call {
        len: mem::size_of::<Call<N>>() as u16,
        object: OBJECT_QP,
        method: 0,
        count: N as u16,
        reserved: 0,
        driver: [RDMA_DRIVER_RXE, 0],
        attributes,
    };
    // SAFETY: The call and the values that its attributes point to outlive the system call.
    check(unsafe { ioctl((*context.0).cmd_fd, RDMA_VERBS_IOCTL, &raw mut call) })?;
    Ok(call.attributes[0].value as u32)
}

/// The offset and size by which a ring is mapped (`struct mminfo`, `rdma_user_rxe.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MmapInfo {
    offset: u64,
    size: u32,
    pad: u32,
}

/// A mapped ring of which this process is the producer (`struct rxe_queue_buf`, `rdma_user_rxe.h`).
struct Ring {
    start: *mut u8,
    len: usize,
}

impl Ring {
    const PRODUCER: usize = 128;
    const ELEMENTS: usize = 384;

    fn map(context: &Context, place: MmapInfo) -> io::Result<Self> {
        let len = place.size as usize;
        // SAFETY: A new mapping, of the offset and size in the kernel's response.
        let start = unsafe {
            let fd = (*context.0).cmd_fd;
            mmap(
                ptr::null_mut(),
                len,
                PROT_READ_WRITE,
                MAP_SHARED,
                fd,
                place.offset as i64,
            )
        };
        if start as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, len })
    }

    fn word(&self, at: usize) -> *mut u32 {
        assert!(at % 4 == 0 && at + 4 <= self.len);
        // SAFETY: In bounds of the mapping.
        unsafe { self.start.add(at).cast() }
    }

    fn get(&self, at: usize) -> u32 {
        // SAFETY: `word` has checked the bounds.
        unsafe { self.word(at).read_volatile() }
    }

    fn set(&self, at: usize, word: u32) {
        // SAFETY: As above.
        unsafe { self.word(at).write_volatile(word) };
    }

    /// Writes `words`, pairs of an offset and a value, to the next element and advances the
    /// producer index.
    fn push(&self, words: &[(usize, u32)]) {
        let slot = self.get(Self::PRODUCER);
        let element = Self::ELEMENTS + ((slot as usize) << self.get(0));
        for (at, word) in words {
            self.set(element + at, *word);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.set(Self::PRODUCER, slot.wrapping_add(1) & self.get(4));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: Mapped once, unmapped once.
        unsafe { munmap(self.start, self.len) };
    }
}

/// The two words of a 64-bit field at offset `at`.
fn quad_words(at: usize, value: u64) -> [(usize, u32); 2] {
    [(at, value as u32), (at + 4, (value >> 32) as u32)]
}

/// The words of an SGE at offset `at` of an element.
fn sge_words(at: usize, sge: &ibv_sge) -> Vec<(usize, u32)> {
    let mut words = quad_words(at, sge.addr).to_vec();
    words.extend([(at + 8, sge.length), (at + 12, sge.lkey)]);
    words
}

/// An XRC domain.
pub struct Xrcd {
    handle: u32,
    context: Rc<Context>,
}

impl Xrcd {
    /// Opens an XRC domain that only this process uses.
    pub fn new(context: &Rc<Context>) -> io::Result<Rc<Self>> {
        // A file descriptor of -1: no file names the domain.
        let body = [u32::MAX, 0];
        let [handle]: [u32; 1] = command(context, OPEN_XRCD, body)?;
        Ok(Rc::new(Self {
            handle,
            context: context.clone(),
        }))
    }

    /// Closes the domain.
    pub fn close(&self) -> io::Result<()> {
        let words = (mem::size_of::<[u32; 3]>() / 4) as u32;
        submit(&self.context, &[CLOSE_XRCD, words, self.handle])
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // If this fails, the kernel closes the domain with the context.
        let _ = self.close();
    }
}

/// A shared receive queue of an XRC domain.
pub struct XrcSrq {
    handle: u32,
    /// SRQ number, by which requests (XRCETH) name the queue.
    pub number: u32,
    ring: Ring,
    pub pd: Rc<Pd>,
    pub cq: Rc<Cq>,
    xrcd: Rc<Xrcd>,
    /// The library's structure of the SRQ. The library counts events in it.
    _srq: Box<ibv_srq>,
}

impl XrcSrq {
    /// Creates an SRQ of at least `max_wr` WQEs of one SGE.
    pub fn new(pd: &Rc<Pd>, cq: &Rc<Cq>, xrcd: &Rc<Xrcd>, max_wr: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Create {
            user_handle: u64,
            rest: [u32; 8],
        }
        #[repr(C)]
        #[derive(Default)]
        struct Created {
            handle: u32,
            max_wr: u32,
            max_sge: u32,
            number: u32,
            ring: MmapInfo,
            driver: [u32; 2],
        }
        // SAFETY: Both are alive.
        let (pd_handle, cq_handle) = unsafe { ((*pd.raw).handle, (*cq.raw).handle) };
        let mut srq = Box::<ibv_srq>::default();
        srq.context = xrcd.context.0;
        let body = Create {
            user_handle: (&raw mut *srq) as u64,
            rest: [SRQT_XRC, pd_handle, max_wr, 1, 0, 0, xrcd.handle, cq_handle],
        };
        let created: Created = command(&xrcd.context, CREATE_XSRQ, body)?;
        assert_eq!(created.driver[0], created.number);
        Ok(Self {
            handle: created.handle,
            number: created.number,
            ring: Ring::map(&xrcd.context, created.ring)?,
            pd: pd.clone(),
            cq: cq.clone(),
            xrcd: xrcd.clone(),
            _srq: srq,
        })
    }

    /// Writes a producer index that is out of range to the ring.
    pub fn break_producer_index(&self) {
        self.ring.set(Ring::PRODUCER, u32::MAX);
    }

    /// Posts a receive work request.
    pub fn post_recv(&self, wr_id: u64, sge: &ibv_sge) {
        let mut words = quad_words(0, wr_id).to_vec();
        words.extend([(16, sge.length), (20, sge.length), (28, 1)]);
        words.extend(sge_words(40, sge));
        self.ring.push(&words);
    }
}

impl Drop for XrcSrq {
    fn drop(&mut self) {
        let _: io::Result<[u32; 1]> = command(&self.xrcd.context, DESTROY_SRQ, [self.handle, 0]);
    }
}

/// A QP of which the library has a bare `struct ibv_qp` with the context and the handle. That
/// suffices for events and, except to RESET, for `ibv_modify_qp`.
struct BareQp {
    qp: Box<ibv_qp>,
    context: Rc<Context>,
}

#[repr(C)]
struct CreateQp {
    user_handle: u64,
    handles: [u32; 4],
    caps: [u32; 5],
    kinds: [u8; 4],
}

#[repr(C)]
#[derive(Default)]
struct CreatedQp {
    handle: u32,
    number: u32,
    caps: [u32; 6],
    rq: MmapInfo,
    sq: MmapInfo,
}

impl BareQp {
    fn new(
        context: &Rc<Context>,
        kind: u8,
        handles: [u32; 4],
        caps: [u32; 5],
    ) -> io::Result<(Self, CreatedQp)> {
        let mut qp = Box::<ibv_qp>::default();
        let body = CreateQp {
            user_handle: (&raw mut *qp) as u64,
            handles,
            caps,
            kinds: [0, kind, 0, 0],
        };
        let created: CreatedQp = command(context, CREATE_QP, body)?;
        qp.context = context.0;
        qp.handle = created.handle;
        qp.qp_num = created.number;
        let context = context.clone();
        Ok((Self { qp, context }, created))
    }

    fn modify(&mut self, mut attr: ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: Both outlive the call, which reads only the QP's context and handle.
        check(unsafe { ibv_modify_qp(&mut *self.qp, &mut attr, mask as i32) })
    }

    fn init(&mut self, access: u32) -> io::Result<()> {
        let (attr, mask) = init_attr(access);
        self.modify(attr, mask)
    }

    fn rtr(
        &mut self,
        ours: &Endpoint,
        peer: &Endpoint,
        settings: &Settings,
        extra_mask: u32,
    ) -> io::Result<()> {
        let (attr, mask) = rtr_attr(ours, peer, settings);
        self.modify(attr, mask | extra_mask)
    }

    fn rts(&mut self, ours: &Endpoint, settings: &Settings, extra_mask: u32) -> io::Result<()> {
        let (attr, mask) = rts_attr(ours, settings);
        self.modify(attr, mask | IBV_QP_TIMEOUT | extra_mask)
    }
}

impl Drop for BareQp {
    fn drop(&mut self) {
        let _: io::Result<[u32; 1]> = command(&self.context, DESTROY_QP, [self.qp.handle, 0]);
    }
}

/// The initiator of an XRC connection: a send queue (`IB_QPT_XRC_INI`).
pub struct Initiator {
    bare: BareQp,
    ring: Ring,
    pub cq: Rc<Cq>,
    pub pd: Rc<Pd>,
}

/// A request of an initiator.
#[derive(Clone, Copy)]
pub struct Request {
    pub wr_id: u64,
    pub opcode: ibv_wr_opcode,
    pub imm: u32,
    /// Number of the peer's SRQ.
    pub srqn: u32,
    pub remote: u64,
    pub rkey: u32,
}

impl Initiator {
    /// Creates an initiator that completes to `cq`.
    pub fn new(pd: &Rc<Pd>, cq: &Rc<Cq>) -> io::Result<Self> {
        // SAFETY: Both are alive.
        let (pd_handle, cq_handle) = unsafe { ((*pd.raw).handle, (*cq.raw).handle) };
        let handles = [pd_handle, cq_handle, cq_handle, 0];
        let (bare, created) = BareQp::new(&pd.context, QPT_XRC_INI, handles, [16, 0, 1, 0, 0])?;
        Ok(Self {
            ring: Ring::map(&pd.context, created.sq)?,
            bare,
            cq: cq.clone(),
            pd: pd.clone(),
        })
    }

    /// The QP number.
    pub fn number(&self) -> u32 {
        self.bare.qp.qp_num
    }

    /// Takes the initiator from RESET to RTS.
    pub fn connect(
        &mut self,
        ours: &Endpoint,
        peer: &Endpoint,
        settings: &Settings,
    ) -> io::Result<()> {
        self.bare.init(0)?;
        self.bare.rtr(ours, peer, settings, 0)?;
        let extra_mask = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.bare.rts(ours, settings, extra_mask)
    }

    /// Posts a signaled request and rings the doorbell (`POST_SEND` without work requests).
    pub fn post(&self, request: &Request, sge: &ibv_sge) -> io::Result<()> {
        let mut words = quad_words(0, request.wr_id).to_vec();
        words.extend([
            (8, request.srqn),
            (12, request.opcode),
            (16, IBV_SEND_SIGNALED),
            (20, request.imm.to_be()),
        ]);
        words.extend(quad_words(24, request.remote));
        words.extend([(32, request.rkey)]);
        words.extend([(184, sge.length), (188, sge.length), (196, 1)]);
        words.extend(sge_words(208, sge));
        self.ring.push(&words);
        let body = [self.bare.qp.handle, 0, 0, 128];
        let _: [u32; 1] = command(&self.bare.context, POST_SEND, body)?;
        Ok(())
    }
}

/// The target of an XRC connection: a responder without queues of its own (`IB_QPT_XRC_TGT`).
pub struct Target {
    bare: BareQp,
    _xrcd: Rc<Xrcd>,
}

impl Target {
    /// Creates a target that serves the SRQs of `xrcd`.
    pub fn new(xrcd: &Rc<Xrcd>) -> io::Result<Self> {
        let handles = [xrcd.handle, 0, 0, 0];
        let (bare, _) = BareQp::new(&xrcd.context, QPT_XRC_TGT, handles, [0; 5])?;
        Ok(Self {
            bare,
            _xrcd: xrcd.clone(),
        })
    }

    /// Creates a target with `srq` as its SRQ, by ioctl, because the write command ignores the SRQ
    /// of a target.
    pub fn with_srq(xrcd: &Rc<Xrcd>, srq: &XrcSrq) -> io::Result<Self> {
        let context = xrcd.context.clone();
        let mut qp = Box::<ibv_qp>::default();
        let (cap, mut granted, mut number) = ([0u32; 5], [0u32; 5], 0u32);
        let bytes = mem::size_of_val(&cap);
        let attributes = [
            Attribute::new(HANDLE, 0, 0),
            Attribute::new(XRCD_HANDLE, 0, xrcd.handle.into()),
            Attribute::new(SRQ_HANDLE, 0, srq.handle.into()),
            Attribute::new(USER_HANDLE, 8, (&raw mut *qp) as u64),
            Attribute::new(CAP, bytes, (&raw const cap) as u64),
            Attribute::new(TYPE, 8, QPT_XRC_TGT.into()),
            Attribute::new(RESP_CAP, bytes, (&raw mut granted) as u64),
            Attribute::new(RESP_QP_NUM, 4, (&raw mut number) as u64),
        ];
        qp.context = context.0;
        qp.handle = create_by_ioctl(&context, attributes)?;
        qp.qp_num = number;
        Ok(Self {
            bare: BareQp { qp, context },
            _xrcd: xrcd.clone(),
        })
    }

    /// The QP number.
    pub fn number(&self) -> u32 {
        self.bare.qp.qp_num
    }

    /// Takes the target from RESET to RTS.
    pub fn connect(
        &mut self,
        access: u32,
        ours: &Endpoint,
        peer: &Endpoint,
        settings: &Settings,
    ) -> io::Result<()> {
        self.bare.init(access)?;
        let extra_mask = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        self.bare.rtr(ours, peer, settings, extra_mask)?;
        self.bare.rts(ours, settings, 0)
    }

    /// Takes the target back to RESET.
    pub fn reset(&mut self) -> io::Result<()> {
        // Not by ibv_modify_qp(): for RESET librrxe reads fields that follow `ibv_qp` in its own
        // structure. This QP has no such fields.
        const WORDS: usize = 30;
        let mut words = [0; WORDS];
        (words[0], words[1]) = (MODIFY_QP, WORDS as u32);
        // The fields after the two paths. The state field stays zero, which is RESET.
        (words[18], words[19]) = (self.bare.qp.handle, IBV_QP_STATE);
        submit(&self.bare.context, &words)?;
        self.bare.qp.state = IBV_QPS_RESET;
        Ok(())
    }
}
