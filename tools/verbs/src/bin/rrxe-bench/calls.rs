// SPDX-License-Identifier: GPL-2.0

//! What the calls of a running program take, each by itself: a connection of a QP to itself writes to its own memory.

use std::{
    io,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use rrxe_verbs::{
    link::{self, Endpoint, Timing},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

use crate::{load::report_median, Fallible};

/// Bytes of a write.
const SIZE: usize = 64;
/// Calls timed together.
const BURST: u32 = 32;
/// Bursts of each call.
const ROUNDS: u32 = 64;

/// What one of a burst of calls takes.
fn time(mut call: impl FnMut() -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    (0..BURST).try_for_each(|_| call())?;
    Ok(start.elapsed() / BURST)
}

/// A connection of a QP to itself.
struct Own {
    qp: Qp,
    cq: Rc<Cq>,
    mr: Mr,
    end: Endpoint,
}

impl Own {
    fn connect(device: &str) -> Fallible<Self> {
        let context = Context::open(device)?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 1024)?;
        let mr = Mr::new(&pd, 2 * SIZE, ALL_ACCESS)?;
        let depth = Depth {
            send: 2 * BURST,
            recv: BURST * (ROUNDS + 1),
            sge: 1,
            inline: 0,
        };
        let qp = Qp::new(&pd, &cq, depth)?;
        link::to_init(&qp, ALL_ACCESS)?;
        let end = Endpoint::offering(&context, &qp, &mr, false)?;
        let timing = Timing {
            mtu: context.active_mtu()?,
            ..Timing::default()
        };
        link::to_rtr(&qp, &end, &end, &timing)?;
        link::to_rts(&qp, &end, &timing)?;
        Ok(Self { qp, cq, mr, end })
    }

    fn write(&self) -> io::Result<()> {
        let mut wr = ibv_send_wr {
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = self.end.addr + SIZE as u64;
        wr.wr.rdma.rkey = self.end.rkey;
        self.qp.post_send(&mut wr, &mut [self.mr.sge(0, SIZE)])
    }

    /// Takes a completion.
    fn take(&self) -> io::Result<()> {
        let mut wc = [ibv_wc::default()];
        match (self.cq.poll(&mut wc), wc[0].status) {
            (1, IBV_WC_SUCCESS) => Ok(()),
            (0, _) => Err(io::ErrorKind::WouldBlock.into()),
            (_, status) => Err(io::Error::other(format!(
                "a completion has status {status}"
            ))),
        }
    }

    /// Writes as many as are timed together, and lets others run until they are done. The kernel sees a busy program.
    fn stay_busy(&self) -> io::Result<()> {
        (0..BURST).try_for_each(|_| self.write())?;
        (0..BURST).try_for_each(|_| loop {
            match self.take() {
                Err(empty) if empty.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                taken => return taken,
            }
        })
    }
}

/// Prints what each call takes, a line of JSON each.
pub fn measure(device: &str) -> Fallible<()> {
    let own = Own::connect(device)?;
    let [mut posts, mut receives, mut arms, mut polls, mut in_vain] = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        own.stay_busy()?;
        posts.push(time(|| own.write())?);
        // Long enough for all to complete.
        thread::sleep(Duration::from_millis(2));
        polls.push(time(|| own.take())?);
        in_vain.push(time(|| match own.take() {
            Err(empty) if empty.kind() == io::ErrorKind::WouldBlock => Ok(()),
            _ => Err(io::Error::other("a completion too many")),
        })?);
        receives.push(time(|| own.qp.post_recv(0, &mut [own.mr.sge(0, SIZE)]))?);
        arms.push(time(|| own.cq.arm(false))?);
    }
    report_median("post_send", "call", SIZE, &mut posts);
    report_median("post_recv", "call", SIZE, &mut receives);
    report_median("poll_cq", "call", SIZE, &mut polls);
    report_median("poll_cq, empty", "call", 0, &mut in_vain);
    report_median("req_notify_cq", "call", 0, &mut arms);
    Ok(())
}
