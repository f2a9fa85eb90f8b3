// SPDX-License-Identifier: GPL-2.0

//! Large numbers of verbs objects: many at the same time, many one after another, and a user's
//! limit.
//!
//! `rrxe-scale objects DEVICE COUNT [leave]` creates COUNT memory regions, CQs and QPs in one
//! process, connects the QPs in pairs and sends a message over each pair. Then it destroys all
//! objects, or with `leave` leaves them to the end of the process.
//!
//! `rrxe-scale connections DEVICE_A DEVICE_B COUNT` sets up, uses and tears down COUNT connections,
//! one after another.
//!
//! `rrxe-scale limit DEVICE KIND` creates as many objects of a kind as one user may have objects.
//! KIND is `ah` (address handles), `mw` (memory windows) or `pd` (protection domains). At the limit
//! it runs `rrxe-scale one DEVICE KIND` as another user, who must be able to create one object.
//!
//! The program prints the duration of each step.

use std::{
    any::Any,
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    rc::Rc,
    time::{Duration, Instant},
};

use rrxe_verbs::{
    link::{self, Endpoint, Settings},
    object::{Ah, Context, Cq, Depth, Mr, Mw, Pd, Qp, ALL_ACCESS},
    sys::*,
};

const DEPTH: Depth = Depth {
    send: 15,
    recv: 15,
    sge: 1,
    inline: 0,
};
/// Bytes of a message.
const LENGTH: usize = 100;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["objects", device, count] => objects(device, count, false),
        ["objects", device, count, "leave"] => objects(device, count, true),
        ["connections", a, b, count] => connections(a, b, count),
        ["limit", device, kind] => limit(device, kind),
        ["one", device, kind] => one(device, kind),
        _ => Err("usage: rrxe-scale objects DEVICE COUNT [leave] | connections A B COUNT | limit|one DEVICE ah|mw|pd".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), String>;

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

/// Runs a step, and prints its duration and the memory that is available afterwards.
fn timed<T>(name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    let result = step().map_err(|why| format!("{name}: {why}"))?;
    let (ms, left) = (start.elapsed().as_millis(), available()? >> 10);
    println!("# {name}: {ms} ms, {left} MiB available");
    Ok(result)
}

fn available() -> Result<u64, String> {
    let info = std::fs::read_to_string("/proc/meminfo").map_err(|why| why.to_string())?;
    info.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| "no MemAvailable".into())
}

/// Creates `count` objects by `make`.
fn many<T>(count: usize, make: impl Fn(usize) -> io::Result<T>) -> Result<Vec<T>, String> {
    (0..count)
        .map(|index| make(index).map_err(|why| format!("number {index}: {why}")))
        .collect()
}

fn objects(device: &str, count: &str, leave_objects: bool) -> Outcome {
    let count = number(count)?;
    let text = |why: io::Error| why.to_string();
    let context = Context::open(device).map_err(text)?;
    let pd = Pd::new(&context).map_err(text)?;
    let mrs = timed("reg_mr", || many(count, |_| Mr::new(&pd, 4096, ALL_ACCESS)))?;
    let cqs = timed("create_cq", || {
        many(count, |_| Cq::without_channel(&context, 15))
    })?;
    let qps = timed("create_qp", || {
        many(count, |i| Qp::new(&pd, &cqs[i], DEPTH))
    })?;
    timed("modify_qp", || connect_pairs(&context, &qps).map_err(text))?;
    let mut mrs = mrs;
    timed("messages", || send_pairs(&qps, &cqs, &mut mrs))?;
    if leave_objects {
        std::process::exit(0);
    }
    // The QPs first, because each holds a reference to its CQ.
    timed("destroy_qp", || {
        drop(qps);
        Ok(())
    })?;
    timed("destroy_cq", || {
        drop(cqs);
        Ok(())
    })?;
    timed("dereg_mr", || {
        drop(mrs);
        Ok(())
    })
}

fn connect(qp: &Qp, ours: &Endpoint, peer: &Endpoint) -> io::Result<()> {
    let settings = Settings::default();
    link::to_init(qp, ALL_ACCESS)?;
    link::to_rtr(qp, ours, peer, &settings)?;
    link::to_rts(qp, ours, &settings)
}

fn connect_pairs(context: &Context, qps: &[Qp]) -> io::Result<()> {
    let any = Endpoint::new(context, 0, 0, false)?;
    let end = |qp: &Qp| Endpoint {
        qpn: qp.number(),
        ..any
    };
    for pair in qps.chunks_exact(2) {
        connect(&pair[0], &end(&pair[0]), &end(&pair[1]))?;
        connect(&pair[1], &end(&pair[1]), &end(&pair[0]))?;
    }
    Ok(())
}

/// Sends a message over each pair of QPs, from the region of the first to the region of the second,
/// and checks it.
fn send_pairs(qps: &[Qp], cqs: &[Rc<Cq>], mrs: &mut [Mr]) -> Outcome {
    for (index, pair) in qps.chunks_exact(2).enumerate() {
        let [from, to] = &mut mrs[2 * index..2 * index + 2] else {
            continue;
        };
        let seed = index as u64 + 1;
        message(&pair[0], &pair[1], from, to, seed)
            .and_then(|()| {
                expect_success(&cqs[2 * index]).and_then(|()| expect_success(&cqs[2 * index + 1]))
            })
            .and_then(|()| check_data(to, seed))
            .map_err(|why| format!("pair {index}: {why}"))?;
    }
    Ok(())
}

fn message(a: &Qp, b: &Qp, from: &mut Mr, to: &Mr, seed: u64) -> Outcome {
    from.buffer.fill(0, LENGTH, seed);
    let mut wr = ibv_send_wr {
        opcode: IBV_WR_SEND,
        send_flags: IBV_SEND_SIGNALED,
        ..Default::default()
    };
    b.post_recv(0, &mut [to.sge(0, LENGTH)])
        .and_then(|()| a.post_send(&mut wr, &mut [from.sge(0, LENGTH)]))
        .map_err(|why| why.to_string())
}

fn check_data(to: &Mr, seed: u64) -> Outcome {
    match to.buffer.mismatch(0, LENGTH, seed) {
        Some(at) => Err(format!("byte {at} is wrong")),
        None => Ok(()),
    }
}

fn expect_success(cq: &Cq) -> Outcome {
    let mut wc = [ibv_wc::default()];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if cq.poll(&mut wc) == 1 {
            return match wc[0].status {
                IBV_WC_SUCCESS => Ok(()),
                status => Err(format!("status {status}")),
            };
        }
        std::thread::yield_now();
    }
    Err("no completion came".into())
}

fn connections(a: &str, b: &str, count: &str) -> Outcome {
    let count = number(count)?;
    let text = |why: io::Error| why.to_string();
    let a = Context::open(a).map_err(text)?;
    let b = Context::open(b).map_err(text)?;
    timed("connections", || {
        for index in 0..count {
            connection(&a, &b, index as u64).map_err(|why| format!("number {index}: {why}"))?;
        }
        Ok(())
    })
}

fn connection(a: &Rc<Context>, b: &Rc<Context>, seed: u64) -> Outcome {
    let make = |context: &Rc<Context>| -> io::Result<(Rc<Cq>, Mr, Qp, Endpoint)> {
        let pd = Pd::new(context)?;
        let cq = Cq::new(context, 15)?;
        let mr = Mr::new(&pd, 4096, ALL_ACCESS)?;
        let qp = Qp::new(&pd, &cq, DEPTH)?;
        let end = Endpoint::new(context, qp.number(), 0, false)?;
        Ok((cq, mr, qp, end))
    };
    let text = |why: io::Error| why.to_string();
    let (cq_a, mut mr_a, qp_a, end_a) = make(a).map_err(text)?;
    let (cq_b, mr_b, qp_b, end_b) = make(b).map_err(text)?;
    connect(&qp_a, &end_a, &end_b).map_err(text)?;
    connect(&qp_b, &end_b, &end_a).map_err(text)?;
    message(&qp_a, &qp_b, &mut mr_a, &mr_b, seed)?;
    expect_success(&cq_a)?;
    expect_success(&cq_b)?;
    check_data(&mr_b, seed)
}

/// The context, the protection domain and the GID from which `limit` and `one` create objects.
struct ObjectFactory {
    context: Rc<Context>,
    pd: Rc<Pd>,
    gid_index: u8,
    gid: [u8; 16],
}

/// An object of any kind. It is destroyed when it is dropped.
type Object = Box<dyn Any>;

impl ObjectFactory {
    fn new(device: &str) -> Result<Self, String> {
        let text = |why: io::Error| why.to_string();
        let context = Context::open(device).map_err(text)?;
        let pd = Pd::new(&context).map_err(text)?;
        let (gid_index, gid) = context.gid(false).map_err(text)?;
        Ok(Self {
            context,
            pd,
            gid_index,
            gid,
        })
    }

    fn make(&self, kind: &str) -> io::Result<Object> {
        Ok(match kind {
            "ah" => Box::new(Ah::new(&self.pd, self.gid_index, self.gid)?),
            "mw" => Box::new(Mw::new(&self.pd, IBV_MW_TYPE_1)?),
            "pd" => Box::new(Pd::new(&self.context)?),
            _ => return Err(io::Error::other(format!("no kind: {kind}"))),
        })
    }
}

/// Creates and destroys one object of a kind.
fn one(device: &str, kind: &str) -> Outcome {
    let made = ObjectFactory::new(device)?.make(kind);
    made.map(drop).map_err(|why| why.to_string())
}

/// Creates objects of a kind until the device refuses one with `ENOMEM`. This must happen at the
/// limit of a user, which also counts the few other objects of this process. At the limit another
/// user can create an object. This user can do so after one object was destroyed.
fn limit(device: &str, kind: &str) -> Outcome {
    const ENOMEM: i32 = 12;
    /// Maximum number of objects of a user, of all kinds together.
    const MAX_OBJECTS: usize = 1 << 19;
    /// Maximum number of other objects that this process has.
    const OTHER_OBJECTS: usize = 4;
    let factory = ObjectFactory::new(device)?;
    let make = || factory.make(kind);
    let mut made = timed("made", || many(MAX_OBJECTS - OTHER_OBJECTS, |_| make()))?;
    let refused = loop {
        match make() {
            Ok(_) if made.len() >= MAX_OBJECTS => {
                return Err("an object beyond the limit was created".into())
            }
            Ok(object) => made.push(object),
            Err(why) => break why,
        }
    };
    if refused.raw_os_error() != Some(ENOMEM) {
        return Err(format!("at the limit: {refused}"));
    }
    create_as_other_user(device, kind)?;
    drop(made.pop());
    made.push(make().map_err(|why| format!("after one was destroyed: {why}"))?);
    println!("# {} of {MAX_OBJECTS}", made.len());
    timed("destroyed", || {
        drop(made);
        Ok(())
    })
}

/// Has another user create an object of a kind.
fn create_as_other_user(device: &str, kind: &str) -> Outcome {
    const NOBODY: u32 = 65534;
    let program = std::env::current_exe().map_err(|why| why.to_string())?;
    let status = Command::new(program)
        .args(["one", device, kind])
        .uid(NOBODY)
        .status()
        .map_err(|why| why.to_string())?;
    if !status.success() {
        return Err("another user cannot create an object".into());
    }
    Ok(())
}
