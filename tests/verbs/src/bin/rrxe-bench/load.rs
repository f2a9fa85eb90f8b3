// SPDX-License-Identifier: GPL-2.0

//! What all loads have in common: phases, the clock, the result.

use std::{
    fs,
    io::{self, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use crate::Fallible;

/// How messages follow one another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// As many in flight as the depth allows.
    Stream,
    /// Each waits for the one before to be answered.
    Roundtrip,
    /// Each waits, awake, for the one before to complete.
    Spin,
}

impl Pattern {
    /// By its name on the command line.
    pub fn parse(word: &str) -> Fallible<Self> {
        match word {
            "stream" => Ok(Self::Stream),
            "roundtrip" => Ok(Self::Roundtrip),
            "spin" => Ok(Self::Spin),
            _ => Err(format!("no such pattern: {word}").into()),
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Roundtrip => "roundtrip",
            Self::Spin => "spin",
        }
    }
}

/// The byte stream between the two ends, for everything but the load.
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
    /// Tells the other end a number.
    pub fn tell(&mut self, number: u64) -> io::Result<()> {
        self.1.write_all(&number.to_le_bytes())?;
        self.1.flush()
    }

    /// Hears a number.
    pub fn hear(&mut self) -> io::Result<u64> {
        let mut raw = [0; 8];
        self.0.read_exact(&mut raw)?;
        Ok(u64::from_le_bytes(raw))
    }
}

/// A server as a child process, which ends when the control stream does.
pub struct Server {
    child: Child,
    /// Its ends of the control stream.
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

    /// Ends it and takes its verdict.
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
pub struct Watch {
    start: Instant,
    idle: f64,
    switches: u64,
}

impl Watch {
    /// Begins now.
    pub fn start() -> Fallible<Self> {
        Ok(Self {
            idle: idle_seconds()?,
            switches: context_switches()?,
            start: Instant::now(),
        })
    }

    /// Prints the case and what one message took, as a line of JSON.
    pub fn report(&self, op: &str, pattern: Pattern, size: usize, count: u64) -> Fallible<()> {
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

/// Prints a case, or a call of verbs, whose times were taken one by one, with the median and
/// the mean, as a line of JSON.
pub fn report_median(op: &str, pattern: &str, size: usize, times: &mut [Duration]) {
    times.sort_unstable();
    let median = times
        .get(times.len() / 2)
        .map_or(0.0, |time| time.as_nanos() as f64);
    let mean = times.iter().sum::<Duration>().as_nanos() as f64 / times.len().max(1) as f64;
    println!(
        "{{\"op\": \"{op}\", \"pattern\": \"{pattern}\", \"size\": {size}, \"count\": {}, \
         \"ns_per_message\": {median:.1}, \"ns_mean\": {mean:.1}}}",
        times.len(),
    );
}

/// How long the CPUs have been idle since boot.
fn idle_seconds() -> Fallible<f64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let idle = uptime
        .split_whitespace()
        .nth(1)
        .ok_or("/proc/uptime has no idle time")?;
    Ok(idle.parse()?)
}

/// How often the CPUs have gone from one thread to another since boot.
fn context_switches() -> Fallible<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
    Ok(switches
        .ok_or("/proc/stat has no context switches")?
        .trim()
        .parse()?)
}
