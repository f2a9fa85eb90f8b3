// SPDX-License-Identifier: GPL-2.0

//! Wrappers of the verbs objects: device context, PD, MR, MW, CQ, QP and address handle.

use std::{ffi::CStr, io, mem::ManuallyDrop, ptr, rc::Rc};

use crate::{buffer::Buffer, srq::Srq, sys::*};

/// Local write, remote write, remote read and remote atomic access.
pub const ALL_ACCESS: u32 = 1 | 2 | 4 | 8;

/// Returns the pointer that a call returned, or the errno if it is null.
pub(crate) fn check_ptr<T>(raw: *mut T) -> io::Result<*mut T> {
    if raw.is_null() {
        return Err(io::Error::last_os_error());
    }
    Ok(raw)
}

/// Converts the result of a call that returns 0, an errno, or -1 with `errno` set.
pub(crate) fn check(errno: i32) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// `struct pollfd`.
#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

extern "C" {
    fn poll(fds: *mut PollFd, count: u64, milliseconds: i32) -> i32;
}

/// Whether the descriptor becomes readable within `milliseconds`.
fn readable_within(fd: i32, milliseconds: i32) -> bool {
    let mut wait = PollFd {
        fd,
        events: 1,
        revents: 0,
    };
    // SAFETY: One element, which outlives the call.
    unsafe { poll(&mut wait, 1, milliseconds) == 1 }
}

/// An open device.
pub struct Context(pub *mut ibv_context);

impl Context {
    /// Opens the device `name`.
    pub fn open(name: &str) -> io::Result<Rc<Self>> {
        let mut count = 0;
        // SAFETY: `count` outlives the call; the list is freed below and not used afterwards.
        unsafe {
            let list = check_ptr(ibv_get_device_list(&mut count))?;
            let device = (0..count as usize)
                .map(|i| *list.add(i))
                .find(|&d| CStr::from_ptr(ibv_get_device_name(d)).to_bytes() == name.as_bytes());
            let opened = match device {
                Some(device) => check_ptr(ibv_open_device(device)),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            ibv_free_device_list(list);
            Ok(Rc::new(Self(opened?)))
        }
    }

    /// Maximum number of entries of a CQ, as `ibv_query_device` reports it.
    pub fn max_cqe(&self) -> io::Result<i32> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: The context is open, and `attr` outlives the call.
        check(unsafe { ibv_query_device(self.0, &mut attr) })?;
        Ok(attr.max_cqe)
    }

    /// Returns the index and the value of the first GID that is not link-local and is of the wanted
    /// IP version. The GID's RoCE version is not checked.
    pub fn gid(&self, v6: bool) -> io::Result<(u8, [u8; 16])> {
        for index in 0..64 {
            let mut gid = ibv_gid::default();
            // SAFETY: `gid` outlives the call.
            if unsafe { ibv_query_gid(self.0, 1, i32::from(index), &mut gid) } != 0 {
                break;
            }
            // SAFETY: Every bit pattern is a valid GID.
            let raw = unsafe { gid.raw };
            let mapped = raw[..10] == [0; 10] && raw[10..12] == [0xff; 2];
            let link_local = raw[..2] == [0xfe, 0x80];
            if raw != [0; 16] && !link_local && mapped != v6 {
                return Ok((index, raw));
            }
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    /// The active MTU of port 1.
    pub fn active_mtu(&self) -> io::Result<ibv_mtu> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: `attr` outlives the call.
        check(unsafe { ibv_query_port(self.0, 1, (&raw mut attr).cast()) })?;
        Ok(attr.active_mtu)
    }

    /// Returns the type of the next asynchronous event, or `None` if there is none within
    /// `milliseconds`.
    pub fn async_event_within(&self, milliseconds: i32) -> io::Result<Option<ibv_event_type>> {
        // SAFETY: The context is open.
        match readable_within(unsafe { (*self.0).async_fd }, milliseconds) {
            true => self.async_event().map(Some),
            false => Ok(None),
        }
    }

    /// Blocks until the next asynchronous event, acknowledges it and returns its type.
    pub fn async_event(&self) -> io::Result<ibv_event_type> {
        let mut event = ibv_async_event::default();
        // SAFETY: `event` outlives the calls; it is acknowledged once.
        unsafe {
            check(ibv_get_async_event(self.0, &mut event))?;
            ibv_ack_async_event(&mut event);
        }
        Ok(event.event_type)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: Opened once, closed once. All objects created in the context hold a reference.
        unsafe { ibv_close_device(self.0) };
    }
}

/// A protection domain.
pub struct Pd {
    pub raw: *mut ibv_pd,
    pub context: Rc<Context>,
}

impl Pd {
    /// Allocates a protection domain.
    pub fn new(context: &Rc<Context>) -> io::Result<Rc<Self>> {
        // SAFETY: The context is open.
        let raw = check_ptr(unsafe { ibv_alloc_pd(context.0) })?;
        Ok(Rc::new(Self {
            raw,
            context: context.clone(),
        }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: Allocated once, freed once, after all objects created in it.
        unsafe { ibv_dealloc_pd(self.raw) };
    }
}

/// A memory region and its buffer.
pub struct Mr {
    pub raw: *mut ibv_mr,
    pub buffer: Buffer,
    _pd: Rc<Pd>,
}

impl Mr {
    /// Allocates a buffer of `len` zero bytes and registers it.
    pub fn new(pd: &Rc<Pd>, len: usize, access: u32) -> io::Result<Self> {
        Self::of(pd, Buffer::new(len)?, access)
    }

    /// Registers a buffer.
    pub fn of(pd: &Rc<Pd>, buffer: Buffer, access: u32) -> io::Result<Self> {
        let (addr, len) = (buffer.addr(), buffer.len());
        // SAFETY: The buffer lives as long as the region.
        let raw = unsafe { ibv_reg_mr_iova2(pd.raw, addr as *mut _, len, addr, access) };
        Ok(Self {
            raw: check_ptr(raw)?,
            buffer,
            _pd: pd.clone(),
        })
    }

    /// Deregisters the region and returns its buffer. On error the region stays registered and is
    /// returned with the error.
    pub fn deregister(self) -> Result<Buffer, (Self, io::Error)> {
        // SAFETY: Registered once; deregistered here or, if that fails, when dropped.
        match check(unsafe { ibv_dereg_mr(self.raw) }) {
            Ok(()) => {
                let region = ManuallyDrop::new(self);
                // SAFETY: Both fields are moved out once, because the region itself is never
                // dropped.
                unsafe {
                    drop(ptr::read(&region._pd));
                    Ok(ptr::read(&region.buffer))
                }
            }
            Err(error) => Err((self, error)),
        }
    }

    /// The region's local key.
    pub fn lkey(&self) -> u32 {
        // SAFETY: The region is registered.
        unsafe { (*self.raw).lkey }
    }

    /// The region's remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The region is registered.
        unsafe { (*self.raw).rkey }
    }

    /// An SGE of the `length` bytes at `offset` of the region.
    pub fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: self.buffer.addr() + offset as u64,
            length: length as u32,
            lkey: self.lkey(),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: Registered once, deregistered once.
        unsafe { ibv_dereg_mr(self.raw) };
    }
}

/// A memory window.
pub struct Mw {
    pub raw: *mut ibv_mw,
    pd: Rc<Pd>,
}

impl Mw {
    /// Allocates a window of type `kind`.
    pub fn new(pd: &Rc<Pd>, kind: ibv_mw_type) -> io::Result<Self> {
        // SAFETY: The operation table is that of the open context.
        let raw = check_ptr(unsafe {
            let alloc = (*pd.context.0).ops.alloc_mw;
            alloc.expect("the provider has windows")(pd.raw, kind)
        })?;
        Ok(Self {
            raw,
            pd: pd.clone(),
        })
    }

    /// The window's R_Key in the library's structure.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The window is alive.
        unsafe { (*self.raw).rkey }
    }

    /// Stores in the library's structure the R_Key that a BIND_MW work request has given the
    /// window. The library does so itself only in `ibv_bind_mw`.
    pub fn set_rkey(&self, rkey: u32) {
        // SAFETY: As above.
        unsafe { (*self.raw).rkey = rkey };
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: Allocated once, freed once.
        unsafe {
            let dealloc = (*self.pd.context.0).ops.dealloc_mw;
            dealloc.expect("the provider has windows")(self.raw);
        }
    }
}

/// A completion queue, with or without an event channel of its own.
pub struct Cq {
    pub raw: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    pub(crate) context: Rc<Context>,
}

impl Cq {
    /// Creates a CQ of at least `entries` entries with an event channel.
    pub fn new(context: &Rc<Context>, entries: i32) -> io::Result<Rc<Self>> {
        // SAFETY: The context is open; the channel outlives the queue.
        unsafe {
            let channel = check_ptr(ibv_create_comp_channel(context.0))?;
            let raw = check_ptr(ibv_create_cq(
                context.0,
                entries,
                ptr::null_mut(),
                channel,
                0,
            ))?;
            Ok(Rc::new(Self {
                raw,
                channel,
                context: context.clone(),
            }))
        }
    }

    /// Creates a CQ without an event channel, for polling only.
    pub fn without_channel(context: &Rc<Context>, entries: i32) -> io::Result<Rc<Self>> {
        let (cookie, channel) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: The context is open.
        let raw = unsafe { ibv_create_cq(context.0, entries, cookie, channel, 0) };
        Ok(Rc::new(Self {
            raw: check_ptr(raw)?,
            channel,
            context: context.clone(),
        }))
    }

    /// Resizes the CQ to at least `entries` entries.
    pub fn resize(&self, entries: i32) -> io::Result<()> {
        // SAFETY: The queue is alive.
        check(unsafe { ibv_resize_cq(self.raw, entries) })
    }

    /// Number of entries of the CQ.
    pub fn entries(&self) -> i32 {
        // SAFETY: The queue is alive.
        unsafe { (*self.raw).cqe }
    }

    /// Polls at most `wcs.len()` completions and returns their number.
    pub fn poll(&self, wcs: &mut [ibv_wc]) -> usize {
        // SAFETY: The operation table is that of the open context; the slice bounds the entries.
        let polled = unsafe {
            let poll = (*self.context.0).ops.poll_cq.expect("every provider polls");
            poll(self.raw, wcs.len() as i32, wcs.as_mut_ptr())
        };
        usize::try_from(polled).expect("polling a CQ can't fail")
    }

    /// Requests a completion event for the next completion, or the next solicited one.
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        // SAFETY: As for `poll`.
        check(unsafe {
            let arm = (*self.context.0)
                .ops
                .req_notify_cq
                .expect("every provider arms");
            arm(self.raw, i32::from(solicited_only))
        })
    }

    /// Blocks until a completion event and acknowledges it.
    pub fn wait(&self) -> io::Result<()> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: The out pointers outlive the call; each event is acknowledged once.
        unsafe {
            check(ibv_get_cq_event(self.channel, &mut cq, &mut cookie))?;
            ibv_ack_cq_events(cq, 1);
        }
        Ok(())
    }

    /// Whether a completion event is pending or comes within `milliseconds`. The event stays
    /// pending for [`Self::wait`].
    pub fn event_within(&self, milliseconds: i32) -> bool {
        // SAFETY: The channel is alive.
        readable_within(unsafe { (*self.channel).fd }, milliseconds)
    }

    /// Polls at least one completion. While there is none, arms the CQ and sleeps until the event.
    pub fn poll_or_wait(&self, wcs: &mut [ibv_wc]) -> io::Result<usize> {
        loop {
            let polled = self.poll(wcs);
            if polled > 0 {
                return Ok(polled);
            }
            self.arm(false)?;
            let polled = self.poll(wcs);
            if polled > 0 {
                return Ok(polled);
            }
            self.wait()?;
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: Created once, destroyed once, after the QPs that use it.
        unsafe {
            ibv_destroy_cq(self.raw);
            if !self.channel.is_null() {
                ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}

/// A queue pair.
pub struct Qp {
    pub raw: *mut ibv_qp,
    pub cq: Rc<Cq>,
    pub pd: Rc<Pd>,
    srq: Option<Rc<Srq>>,
}

/// Capacities of a QP: work requests, SGEs of a work request, bytes of inline data.
#[derive(Clone, Copy)]
pub struct Depth {
    pub send: u32,
    pub recv: u32,
    pub sge: u32,
    pub inline: u32,
}

impl Depth {
    pub(crate) fn cap(self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.send,
            max_recv_wr: self.recv,
            max_send_sge: self.sge,
            max_recv_sge: self.sge,
            max_inline_data: self.inline,
        }
    }
}

impl Default for Depth {
    fn default() -> Self {
        Self {
            send: 64,
            recv: 64,
            sge: 4,
            inline: 64,
        }
    }
}

impl Qp {
    /// Creates an RC QP whose send and receive queues both complete to `cq`.
    pub fn new(pd: &Rc<Pd>, cq: &Rc<Cq>, depth: Depth) -> io::Result<Self> {
        Self::make(IBV_QPT_RC, pd, cq, None, depth)
    }

    /// Creates a QP of type `qp_type` whose queues both complete to `cq`.
    pub fn of_type(
        qp_type: ibv_qp_type,
        pd: &Rc<Pd>,
        cq: &Rc<Cq>,
        depth: Depth,
    ) -> io::Result<Self> {
        Self::make(qp_type, pd, cq, None, depth)
    }

    /// Creates an RC QP that takes its receives from `srq`.
    pub fn with_srq(pd: &Rc<Pd>, cq: &Rc<Cq>, srq: &Rc<Srq>, depth: Depth) -> io::Result<Self> {
        Self::make(IBV_QPT_RC, pd, cq, Some(srq), depth)
    }

    fn make(
        qp_type: ibv_qp_type,
        pd: &Rc<Pd>,
        cq: &Rc<Cq>,
        srq: Option<&Rc<Srq>>,
        depth: Depth,
    ) -> io::Result<Self> {
        let mut init = ibv_qp_init_attr {
            send_cq: cq.raw,
            recv_cq: cq.raw,
            srq: srq.map_or(ptr::null_mut(), |srq| srq.raw),
            qp_type,
            cap: depth.cap(),
            ..Default::default()
        };
        // SAFETY: `init` outlives the call.
        let raw = check_ptr(unsafe { ibv_create_qp(pd.raw, &mut init) })?;
        let mut qp = Self::from_raw(raw, pd, cq);
        qp.srq = srq.cloned();
        Ok(qp)
    }

    /// Wraps a QP that another call created.
    pub(crate) fn from_raw(raw: *mut ibv_qp, pd: &Rc<Pd>, cq: &Rc<Cq>) -> Self {
        Self {
            raw,
            cq: cq.clone(),
            pd: pd.clone(),
            srq: None,
        }
    }

    /// The QP number.
    pub fn number(&self) -> u32 {
        // SAFETY: The QP is alive.
        unsafe { (*self.raw).qp_num }
    }

    /// The QP type.
    pub fn kind(&self) -> ibv_qp_type {
        // SAFETY: The QP is alive.
        unsafe { (*self.raw).qp_type }
    }

    /// `ibv_modify_qp`.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> io::Result<()> {
        let mut attr = *attr;
        // SAFETY: `attr` outlives the call.
        check(unsafe { ibv_modify_qp(self.raw, &mut attr, mask as i32) })
    }

    /// Posts one send work request.
    pub fn post_send(&self, wr: &mut ibv_send_wr, sges: &mut [ibv_sge]) -> io::Result<()> {
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as i32;
        let mut bad = ptr::null_mut();
        // SAFETY: The list outlives the call; the table is that of the open context.
        check(unsafe {
            let post = (*self.pd.context.0)
                .ops
                .post_send
                .expect("every provider sends");
            post(self.raw, wr, &mut bad)
        })
    }

    /// Posts one receive work request.
    pub fn post_recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> io::Result<()> {
        let mut wr = recv_wr(wr_id, sges);
        let mut bad = ptr::null_mut();
        // SAFETY: As for `post_send`.
        check(unsafe {
            let post = (*self.pd.context.0)
                .ops
                .post_recv
                .expect("every provider receives");
            post(self.raw, &mut wr, &mut bad)
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: Created once, destroyed once.
        unsafe { ibv_destroy_qp(self.raw) };
    }
}

/// An address handle.
pub struct Ah {
    pub raw: *mut ibv_ah,
    _pd: Rc<Pd>,
}

impl Ah {
    /// Creates an address handle for packets from the local GID `sgid_index` to `dgid`.
    pub fn new(pd: &Rc<Pd>, sgid_index: u8, dgid: [u8; 16]) -> io::Result<Self> {
        let mut attr = ibv_ah_attr {
            is_global: 1,
            port_num: 1,
            grh: ibv_global_route {
                dgid: ibv_gid { raw: dgid },
                sgid_index,
                hop_limit: 64,
                ..Default::default()
            },
            ..Default::default()
        };
        // SAFETY: `attr` outlives the call.
        let raw = check_ptr(unsafe { ibv_create_ah(pd.raw, &mut attr) })?;
        Ok(Self {
            raw,
            _pd: pd.clone(),
        })
    }

    /// Creates an address handle for the sender of a received datagram, from its completion and
    /// its GRH (`ibv_create_ah_from_wc`).
    pub fn from_wc(pd: &Rc<Pd>, wc: &ibv_wc, grh: &[u8; 40]) -> io::Result<Self> {
        let (mut wc, mut grh) = (*wc, *grh);
        // SAFETY: Both outlive the call. The call reads 40 bytes of the header.
        let raw = unsafe { ibv_create_ah_from_wc(pd.raw, &mut wc, grh.as_mut_ptr().cast(), 1) };
        Ok(Self {
            raw: check_ptr(raw)?,
            _pd: pd.clone(),
        })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: Created once, destroyed once.
        unsafe { ibv_destroy_ah(self.raw) };
    }
}

/// A receive work request with the SGEs `sges`.
pub(crate) fn recv_wr(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
        ..Default::default()
    }
}
