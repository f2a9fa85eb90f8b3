// SPDX-License-Identifier: GPL-2.0

//! The mode `tcp`: messages over TCP, for comparison with RDMA over the same network devices.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
};

use crate::{
    load::{Control, Measurement, Pattern, Server},
    Fallible,
};

const PORT: u16 = 7777;

/// Bytes that the server of a stream reads at a time.
const CHUNK: usize = 256 << 10;

/// Runs the client. `server` is the command that starts the server, in another network namespace.
pub fn client(
    address: &str,
    pattern: &str,
    size: &str,
    count: &str,
    server: &[&str],
) -> Fallible<()> {
    let words = [pattern, size];
    let (pattern, size) = (Pattern::parse(pattern)?, size.parse::<usize>()?);
    let count: u64 = count.parse()?;
    let [program, args @ ..] = server else {
        return Err("no command for the server".into());
    };
    let mut command = Command::new(program);
    let mut server = Server::start(command.args(args).args(words))?;
    let control = server.control.as_mut().ok_or("no control stream")?;
    control.receive_number()?;
    let mut stream = TcpStream::connect((address, PORT))?;
    stream.set_nodelay(true)?;
    let mut bytes = vec![1u8; size];
    for messages in [count / 4, count] {
        control.send_number(messages * size as u64)?;
        let measurement = Measurement::start()?;
        for _ in 0..messages {
            stream.write_all(&bytes)?;
            if pattern == Pattern::Roundtrip {
                stream.read_exact(&mut bytes)?;
            }
        }
        control.receive_number()?;
        if messages == count {
            measurement.report("tcp", pattern, size, count)?;
        }
    }
    server.finish()
}

/// Runs the server. Its standard streams are the control stream to the client.
pub fn server(pattern: &str, size: &str) -> Fallible<()> {
    let (pattern, size) = (Pattern::parse(pattern)?, size.parse::<usize>()?);
    let mut control = Control(io::stdin().lock(), io::stdout().lock());
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    control.send_number(0)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut bytes = vec![
        0u8;
        if pattern == Pattern::Stream {
            CHUNK
        } else {
            size
        }
    ];
    for _ in 0..2 {
        let mut missing = control.receive_number()?;
        while missing > 0 {
            let read = stream.read(&mut bytes)?;
            if read == 0 {
                return Err("the client is gone".into());
            }
            missing = missing.saturating_sub(read as u64);
            if pattern == Pattern::Roundtrip {
                stream.write_all(&bytes[..read])?;
            }
        }
        control.send_number(0)?;
    }
    Ok(())
}
