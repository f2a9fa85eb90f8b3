// SPDX-License-Identifier: GPL-2.0

//! The command line: the rows of the table.

use roce::mtu::Mtu;

use super::host::{Early, Op};
use super::impairment::Impairment;
use super::transfer::{Port, Setup};

pub(super) const USAGE: &str = "\
usage: roce-sim --goodput [OPTION VALUE[,VALUE...]]... [--quick]
       roce-sim --goodput --bounds
  --op write|read     operation
  --mtu BYTES         path MTU
  --rtt US            round-trip time in microseconds
  --timeout EXPONENT  Local ACK Timeout
  --loss LOSS         1%             independent losses, in both directions
                      burst:15/1500  15 consecutive data packets, once in 1,500 on average
                      gilbert:15/1500  the same, with random lengths (Gilbert-Elliott)
                      once:15@100    15 data packets after 100 ms
                      reorder:5%@20  5 % of the data packets come 20 us late
  --early EARLY       kept, refused (the hosts have no memory for early packets) or off (the
                      engines don't ask them to keep any)
  --qps NUMBER        connections
  --rate GBIT         rate of the hosts' links in Gbit/s
  --port none|GBIT:PACKETS  a port of a switch, with a queue of so many packets
  --ms MS             duration of a row in milliseconds
  --seed SEED
Without --loss, --qps, --rate and --port the table has rows for many networks. With one of them,
the others are 0%, 1, 10 and none. --quick selects fewer and shorter rows. --bounds compares some
rows with their bounds.";

/// The impairments of the table, for one connection over 10 Gbit/s.
const LOSSES: [&str; 8] = [
    "0%",
    "0.1%",
    "1%",
    "5%",
    "burst:15/1500",
    "gilbert:15/1500",
    "once:15@100",
    "reorder:5%@20",
];

/// The port of the table, for links of 40 Gbit/s.
const PORT: Port = Port {
    rate: 10,
    queue: 64,
};
/// The numbers of connections through the port, and the rate of the hosts' links in Gbit/s.
const PORT_QPS: [u32; 2] = [1, 16];
pub(super) const PORT_RATE: u32 = 40;

/// Rate of the hosts' links in Gbit/s in all other rows, and of the rows that others are compared
/// with.
pub(super) const RATE: u32 = 10;

/// The options of the command line. An empty list stands for the values of the table.
#[derive(Default)]
struct Options {
    ops: Vec<Op>,
    mtus: Vec<Mtu>,
    rtts: Vec<u32>,
    timeouts: Vec<u8>,
    losses: Vec<Impairment>,
    earlies: Vec<Early>,
    qps: Vec<u32>,
    rates: Vec<u32>,
    ports: Vec<Option<Port>>,
    duration: Option<u32>,
    seed: u64,
    quick: bool,
}

/// The network of a row.
#[derive(Clone, Copy)]
struct Network {
    impairment: Impairment,
    qps: u32,
    rate: u32,
    port: Option<Port>,
}

/// Parses the arguments. Returns the rows of the table, or `None` if an argument is wrong.
pub(super) fn rows(arguments: impl Iterator<Item = String>) -> Option<Vec<Setup>> {
    let options = parse(arguments)?;
    let networks = networks(&options);
    let quick = options.quick;
    let ops = or(options.ops, &[Op::Write, Op::Read]);
    let earlies = or(options.earlies, &[Early::Kept]);
    let mtus = [Mtu::Bytes4096, Mtu::Bytes1024];
    let mtus = or(options.mtus, if quick { &mtus[..1] } else { &mtus });
    let rtts = [500, 100, 20];
    let rtts = or(options.rtts, if quick { &rtts[..1] } else { &rtts });
    let timeouts = [14, 17];
    let timeouts = or(
        options.timeouts,
        if quick { &timeouts[..1] } else { &timeouts },
    );
    let duration = options.duration.unwrap_or(if quick { 300 } else { 1000 });
    let mut rows = Vec::new();
    for &mtu in &mtus {
        for &rtt in &rtts {
            for &timeout in &timeouts {
                for network in &networks {
                    let row = |op, early| Setup {
                        op,
                        mtu,
                        rtt,
                        timeout,
                        qps: network.qps,
                        rate: network.rate,
                        port: network.port,
                        impairment: network.impairment,
                        early,
                        duration,
                        seed: options.seed,
                    };
                    let with = |&op| earlies.iter().map(move |&early| row(op, early));
                    rows.extend(ops.iter().flat_map(with));
                }
            }
        }
    }
    Some(rows)
}

fn networks(options: &Options) -> Vec<Network> {
    let losses = LOSSES.iter().filter_map(|loss| Impairment::parse(loss));
    let plain = [
        options.losses.is_empty(),
        options.qps.is_empty(),
        options.rates.is_empty(),
        options.ports.is_empty(),
    ];
    if plain.contains(&false) {
        let mut networks = Vec::new();
        for port in or(options.ports.clone(), &[None]) {
            for rate in or(options.rates.clone(), &[RATE]) {
                for qps in or(options.qps.clone(), &[1]) {
                    let losses = or(options.losses.clone(), &[Impairment::NONE]);
                    networks.extend(losses.into_iter().map(|impairment| Network {
                        impairment,
                        qps,
                        rate,
                        port,
                    }));
                }
            }
        }
        return networks;
    }
    let direct = losses.map(|impairment| Network {
        impairment,
        qps: 1,
        rate: RATE,
        port: None,
    });
    let through_port = PORT_QPS.map(|qps| Network {
        impairment: Impairment::NONE,
        qps,
        rate: PORT_RATE,
        port: Some(PORT),
    });
    direct.chain(through_port).collect()
}

/// Returns `given`, or `others` if it is empty.
fn or<T: Clone>(given: Vec<T>, others: &[T]) -> Vec<T> {
    if given.is_empty() {
        others.to_vec()
    } else {
        given
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options {
        seed: 1,
        ..Options::default()
    };
    while let Some(argument) = arguments.next() {
        if argument == "--quick" {
            options.quick = true;
            continue;
        }
        let value = arguments.next()?;
        match argument.as_str() {
            "--op" => options.ops = list(&value, op)?,
            "--mtu" => options.mtus = list(&value, mtu)?,
            "--rtt" => options.rtts = list(&value, number)?,
            "--timeout" => options.timeouts = list(&value, |text| text.parse().ok())?,
            "--loss" => options.losses = list(&value, Impairment::parse)?,
            "--early" => options.earlies = list(&value, early)?,
            "--qps" => options.qps = list(&value, positive)?,
            "--rate" => options.rates = list(&value, positive)?,
            "--port" => options.ports = list(&value, port)?,
            "--ms" => options.duration = Some(positive(&value)?),
            "--seed" => options.seed = value.parse().ok()?,
            _ => return None,
        }
    }
    let valid = options.timeouts.iter().all(|timeout| *timeout < 32);
    valid.then_some(options)
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(parse).collect()
}

pub(super) fn op(text: &str) -> Option<Op> {
    match text {
        "write" => Some(Op::Write),
        "read" => Some(Op::Read),
        _ => None,
    }
}

pub(super) fn early(text: &str) -> Option<Early> {
    let all = [Early::Kept, Early::Refused, Early::Off];
    all.into_iter().find(|early| early.to_string() == text)
}

/// Returns the path MTU of exactly so many bytes.
pub(super) fn mtu(text: &str) -> Option<Mtu> {
    let bytes = number(text)?;
    Mtu::fitting(bytes).filter(|mtu| mtu.bytes() == bytes)
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

fn positive(text: &str) -> Option<u32> {
    number(text).filter(|number| *number > 0)
}

pub(super) fn port(text: &str) -> Option<Option<Port>> {
    if text == "none" {
        return Some(None);
    }
    let (rate, queue) = text.split_once(':')?;
    Some(Some(Port {
        rate: positive(rate)?,
        queue: number(queue)?,
    }))
}
