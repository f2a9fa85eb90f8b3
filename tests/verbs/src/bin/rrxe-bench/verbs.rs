// SPDX-License-Identifier: GPL-2.0

//! The mode `verbs`: SEND, WRITE and READ over an RC connection.

use std::{
    env, hint,
    io::{self, Read, Write},
    process::Command,
    rc::Rc,
    time::{Duration, Instant},
};

use rrxe_verbs::{
    buffer::Buffer,
    link::{self, Endpoint, Settings},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

use crate::{
    load::{report_median, Control, Measurement, Pattern, Server},
    Fallible,
};

/// Number of receives that the server keeps posted.
const RECEIVES: u32 = 900;

/// Parameters of a case. In a stream, one in `signal_interval` requests is signaled, and the last.
struct Case {
    name: String,
    opcode: ibv_wr_opcode,
    pattern: Pattern,
    size: usize,
    count: u64,
    depth: u64,
    signal_interval: u64,
}

impl Case {
    fn parse(words: &[&str]) -> Fallible<Self> {
        let [op, pattern, size, count, depth, signal_interval] = words else {
            return Err("a case is OP PATTERN SIZE COUNT DEPTH EVERY".into());
        };
        let opcode = match *op {
            "send" => IBV_WR_SEND,
            "write" => IBV_WR_RDMA_WRITE,
            "read" => IBV_WR_RDMA_READ,
            _ => return Err(format!("no such operation: {op}").into()),
        };
        Ok(Self {
            name: (*op).into(),
            opcode,
            pattern: Pattern::parse(pattern)?,
            size: size.parse()?,
            count: count.parse()?,
            depth: depth.parse()?,
            signal_interval: signal_interval.parse()?,
        })
    }

    fn phases(&self) -> [u64; 2] {
        [(self.count / 4).max(self.depth * 2), self.count]
    }
}

/// Returns the Local ACK Timeout of the QPs (an exponent): `RRXE_BENCH_TIMEOUT`, or 20 by default.
/// That is 4.3 s, longer than an emulated peer takes to respond.
fn timeout() -> Fallible<u8> {
    match env::var("RRXE_BENCH_TIMEOUT") {
        Ok(exponent) => Ok(exponent.parse()?),
        Err(_) => Ok(20),
    }
}

/// One end of the connection.
struct End {
    qp: Qp,
    cq: Rc<Cq>,
    mr: Mr,
    peer: Endpoint,
}

impl End {
    fn connect(device: &str, size: usize, control: &mut (impl Read + Write)) -> Fallible<Self> {
        let context = Context::open(device)?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 4096)?;
        let mut buffer = Buffer::new(size.max(64))?;
        if env::var_os("RRXE_BENCH_SCATTER").is_some() {
            buffer.scatter()?;
        }
        buffer.fill(0, size, 1);
        let mr = Mr::of(&pd, buffer, ALL_ACCESS)?;
        let depth = Depth {
            send: 512,
            recv: 1024,
            sge: 1,
            inline: 0,
        };
        let qp = Qp::new(&pd, &cq, depth)?;
        link::to_init(&qp, ALL_ACCESS)?;
        let ours = Endpoint::with_memory(&context, &qp, &mr, false)?;
        let peer = ours.exchange(control)?;
        let settings = Settings {
            mtu: context.active_mtu()?,
            timeout: timeout()?,
            ..Settings::default()
        };
        link::to_rtr(&qp, &ours, &peer, &settings)?;
        link::to_rts(&qp, &ours, &settings)?;
        Ok(Self { qp, cq, mr, peer })
    }

    fn post(&self, case: &Case, signaled: bool) -> io::Result<()> {
        let mut wr = ibv_send_wr {
            opcode: case.opcode,
            send_flags: if signaled { IBV_SEND_SIGNALED } else { 0 },
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = self.peer.addr;
        wr.wr.rdma.rkey = self.peer.rkey;
        self.qp.post_send(&mut wr, &mut [self.mr.sge(0, case.size)])
    }

    fn receive(&self, case: &Case, count: u32) -> io::Result<()> {
        (0..count).try_for_each(|_| self.qp.post_recv(0, &mut [self.mr.sge(0, case.size)]))
    }

    /// Waits for completions. Returns how many were of sends and of receives.
    fn wait(&self) -> Fallible<(u64, u64)> {
        let mut wcs = [ibv_wc::default(); 64];
        let polled = self.cq.poll_or_wait(&mut wcs)?;
        let wcs = &wcs[..polled];
        if let Some(bad) = wcs.iter().find(|wc| wc.status != IBV_WC_SUCCESS) {
            return Err(format!("a completion has status {}", bad.status).into());
        }
        let receives = wcs.iter().filter(|wc| wc.opcode == IBV_WC_RECV).count() as u64;
        Ok((polled as u64 - receives, receives))
    }

    fn stream(&self, case: &Case, count: u64) -> Fallible<()> {
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted - done < case.depth {
                posted += 1;
                self.post(case, posted % case.signal_interval == 0 || posted == count)?;
            }
            let (sent, _) = self.wait()?;
            done = (done + sent * case.signal_interval).min(count).min(posted);
        }
        Ok(())
    }

    /// Posts a request and waits for its completion. For a SEND also waits for the receive of the
    /// answering SEND, and posts the receive anew.
    fn roundtrip(&self, case: &Case) -> Fallible<()> {
        self.post(case, true)?;
        let mut missing = (1, u64::from(case.opcode == IBV_WR_SEND));
        while missing != (0, 0) {
            let (sent, received) = self.wait()?;
            missing = (missing.0 - sent, missing.1 - received);
        }
        if case.opcode == IBV_WR_SEND {
            self.receive(case, 1)?;
        }
        Ok(())
    }

    /// Posts `count` requests one after another, and polls until each has completed. Returns the
    /// duration of each.
    fn spin(&self, case: &Case, count: u64) -> Fallible<Vec<Duration>> {
        let mut wcs = [ibv_wc::default()];
        let iteration = |_| {
            let start = Instant::now();
            self.post(case, true)?;
            while self.cq.poll(&mut wcs) == 0 {
                hint::spin_loop();
            }
            match wcs[0].status {
                IBV_WC_SUCCESS => Ok(start.elapsed()),
                status => Err(format!("a completion has status {status}").into()),
            }
        };
        (0..count).map(iteration).collect()
    }
}

/// Runs the client. The server is a child process.
pub fn client(device: &str, server: &str, words: &[&str]) -> Fallible<()> {
    let case = Case::parse(words)?;
    let mut command = Command::new(env::current_exe()?);
    let mut server = Server::start(command.arg("verbs-server").arg(server).args(words))?;
    let control = server.control.as_mut().ok_or("no control stream")?;
    let end = End::connect(device, case.size, control)?;
    if case.opcode == IBV_WR_SEND && case.pattern == Pattern::Roundtrip {
        end.receive(&case, 256)?;
    }
    for count in case.phases() {
        control.send_number(count)?;
        control.receive_number()?;
        let measurement = Measurement::start()?;
        let mut iterations = Vec::new();
        match case.pattern {
            Pattern::Stream => end.stream(&case, count)?,
            Pattern::Roundtrip => (0..count).try_for_each(|_| end.roundtrip(&case))?,
            Pattern::Spin => iterations = end.spin(&case, count)?,
        }
        control.receive_number()?;
        if count != case.count {
            continue;
        }
        match case.pattern {
            Pattern::Spin => report_median(
                &case.name,
                case.pattern.name(),
                case.size,
                1,
                &mut iterations,
            ),
            pattern => measurement.report(&case.name, pattern, case.size, count)?,
        }
    }
    server.finish()
}

/// Runs the server. Its standard streams are the control stream to the client.
pub fn server(device: &str, words: &[&str]) -> Fallible<()> {
    let case = Case::parse(words)?;
    let mut control = Control(io::stdin().lock(), io::stdout().lock());
    let end = End::connect(device, case.size, &mut control)?;
    let receives = case.opcode == IBV_WR_SEND;
    if receives {
        end.receive(&case, RECEIVES)?;
    }
    for _ in case.phases() {
        let count = control.receive_number()?;
        control.send_number(0)?;
        match case.pattern {
            _ if !receives => {}
            Pattern::Stream | Pattern::Spin => consume(&end, &case, count)?,
            Pattern::Roundtrip => answer(&end, &case, count)?,
        }
        control.send_number(0)?;
    }
    match control.receive_number() {
        Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        _ => Err("the client said more than expected".into()),
    }
}

fn consume(end: &End, case: &Case, count: u64) -> Fallible<()> {
    let mut got = 0;
    while got < count {
        let (_, received) = end.wait()?;
        got += received;
        end.receive(case, u32::try_from(received)?)?;
    }
    Ok(())
}

/// Answers each received SEND by a SEND. The completions of the answers are polled together with
/// the next receives.
fn answer(end: &End, case: &Case, count: u64) -> Fallible<()> {
    let (mut requests, mut sent) = (0, 0);
    while requests < count || sent < count {
        let (done, received) = end.wait()?;
        sent += done;
        for _ in 0..received {
            requests += 1;
            end.receive(case, 1)?;
            end.post(case, true)?;
        }
    }
    Ok(())
}
