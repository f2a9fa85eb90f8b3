// SPDX-License-Identifier: GPL-2.0

//! Parts that all loads share: the patterns, the control stream, the server process, the
//! measurement and its report.

use std::{
    fs,
    io::{self, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    mark::{mark, BEGIN, END},
    Fallible,
};

/// The order of messages in time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// As many messages are in flight as the depth allows.
    Stream,
    /// A message is sent after the previous one was answered. The client sleeps meanwhile.
    Roundtrip,
    /// A message is sent after the previous one has completed. The client polls meanwhile.
    Spin,
}

impl Pattern {
    /// Returns the pattern of this name on the command line.
    pub fn parse(word: &str) -> Fallible<Self> {
        match word {
            "stream" => Ok(Self::Stream),
            "roundtrip" => Ok(Self::Roundtrip),
            "spin" => Ok(Self::Spin),
            _ => Err(format!("no such pattern: {word}").into()),
        }
    }

    /// The pattern's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Roundtrip => "roundtrip",
            Self::Spin => "spin",
        }
    }
}

/// The byte stream between client and server over which they exchange parameters and synchronize:
/// the standard streams of the server.
pub struct Control<R, W>(pub R, pub W);

impl<R: Read, W: Write> Read for Control<R, W> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl<R: Read, W: Write> Write for Control<R, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

impl<R: Read, W: Write> Control<R, W> {
    /// Sends a number to the other end.
    pub fn send_number(&mut self, number: u64) -> io::Result<()> {
        self.1.write_all(&number.to_le_bytes())?;
        self.1.flush()
    }

    /// Receives a number from the other end.
    pub fn receive_number(&mut self) -> io::Result<u64> {
        let mut raw = [0; 8];
        self.0.read_exact(&mut raw)?;
        Ok(u64::from_le_bytes(raw))
    }
}

/// A server as a child process. It ends at the latest when the control stream is closed.
pub struct Server {
    child: Child,
    /// The client's end of the control stream.
    pub control: Option<Control<ChildStdout, ChildStdin>>,
}

impl Server {
    /// Starts `command`.
    pub fn start(command: &mut Command) -> Fallible<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(from), Some(to)) = (child.stdout.take(), child.stdin.take()) else {
            return Err("the server has no pipes".into());
        };
        Ok(Self {
            child,
            control: Some(Control(from, to)),
        })
    }

    /// Closes the control stream and checks the server's exit status.
    pub fn finish(mut self) -> Fallible<()> {
        drop(self.control.take());
        if self.child.wait()?.success() {
            Ok(())
        } else {
            Err("the server failed".into())
        }
    }
}

/// A running measurement.
pub struct Measurement {
    start: Instant,
    idle: f64,
    switches: u64,
}

impl Measurement {
    /// Starts the measurement.
    pub fn start() -> Fallible<Self> {
        let this = Self {
            idle: idle_seconds()?,
            switches: context_switches()?,
            start: Instant::now(),
        };
        mark::<BEGIN>();
        Ok(this)
    }

    /// Prints the case and its results as a line of JSON: time, context switches and idle share.
    /// The time and the context switches are means per message. The idle time is that of all CPUs,
    /// in relation to the elapsed time.
    pub fn report(&self, op: &str, pattern: Pattern, size: usize, count: u64) -> Fallible<()> {
        mark::<END>();
        let elapsed = self.start.elapsed().as_nanos() as f64;
        let switches = context_switches()? - self.switches;
        let idle = (idle_seconds()? - self.idle) * 1e9 / elapsed;
        println!(
            "{{\"op\": \"{op}\", \"pattern\": \"{}\", \"size\": {size}, \"count\": {count}, \
             \"ns_per_message\": {:.1}, \"idle\": {idle:.3}, \"switches_per_message\": {:.2}}}",
            pattern.name(),
            elapsed / count as f64,
            switches as f64 / count as f64,
        );
        Ok(())
    }
}

/// Prints a case or a verbs call as a line of JSON, with the median and the mean of `times`. Each
/// of `times` is the mean of `burst` messages or calls.
pub fn report_median(op: &str, pattern: &str, size: usize, burst: u32, times: &mut [Duration]) {
    times.sort_unstable();
    let median = times
        .get(times.len() / 2)
        .map_or(0.0, |time| time.as_nanos() as f64);
    let mean = times.iter().sum::<Duration>().as_nanos() as f64 / times.len().max(1) as f64;
    println!(
        "{{\"op\": \"{op}\", \"pattern\": \"{pattern}\", \"size\": {size}, \"count\": {}, \
         \"burst\": {burst}, \"ns_per_message\": {median:.1}, \"ns_mean\": {mean:.1}}}",
        times.len(),
    );
}

/// The sum of the idle times of all CPUs since boot, in seconds.
fn idle_seconds() -> Fallible<f64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let idle = uptime
        .split_whitespace()
        .nth(1)
        .ok_or("/proc/uptime has no idle time")?;
    Ok(idle.parse()?)
}

/// The number of context switches of all CPUs since boot.
fn context_switches() -> Fallible<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
    Ok(switches
        .ok_or("/proc/stat has no context switches")?
        .trim()
        .parse()?)
}
