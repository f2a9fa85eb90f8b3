// SPDX-License-Identifier: GPL-2.0

//! The execution of the expected request packet.
//!
//! The responder's state changes only after the last step that can fail, so a packet that counts as
//! lost may simply arrive again. An exception is a receive WQE that was taken for the packet: it
//! stays held.

use super::check::{self, Message, Segment, ATOMIC_BYTES, SELECT_REGION};
use super::replay::{Recorded, Replay};
use super::{named_queue, Received, Refusal, Responder};
use crate::host::{Host, RemoteAccess};
use crate::qp::{Context, Slots};
use crate::wc::{RecvExtra, WcOpcode};
use crate::wire::packet::{AtomicEth, Body, NakCode, Packet, Reth, SendPart, WritePart};
use crate::wr::{FlushKind, RecvWr, SendExtra};

impl From<NakCode> for Refusal {
    fn from(code: NakCode) -> Self {
        Self::Request(code)
    }
}

impl<R: Slots<Replay>> Responder<R> {
    /// Carries out a train of `count` packets, whose headers are in `packet`. Returns the number of
    /// PSNs that it takes.
    ///
    /// # Errors
    ///
    /// Returns the [`Refusal`] of a train that can't be carried out.
    pub(super) fn execute<H: Host>(
        &mut self,
        packet: &Packet,
        count: u32,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        match packet.body {
            Body::Send(part) => self.execute_send(part, packet, count, context, host),
            Body::Write(part) => self.execute_write(part, packet, count, context, host),
            Body::ReadRequest(reth) => self.execute_read(reth, packet, context, host),
            Body::Atomic(eth) => self.execute_atomic(eth, packet, context, host),
            Body::AtomicWrite(reth) => self.execute_atomic_write(reth, packet, context, host),
            Body::Flush(kind, reth) => self.execute_flush(kind, reth, packet, context, host),
            Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_) | Body::Cnp => {
                Err(Refusal::Request(NakCode::InvalidRequest))
            }
        }
    }

    /// Carries out packets of a SEND.
    fn execute_send<H: Host>(
        &mut self,
        part: SendPart,
        packet: &Packet,
        count: u32,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        let mtu = context.settings.path_mtu;
        let segment = self
            .message
            .check_send(part, packet.payload_len, count, mtu)?;
        let wr = self.hold(named_queue(packet), host)?;
        fill(&wr, &segment, packet, host)?;
        match segment.end {
            None => {
                self.message = Message::Send {
                    received: segment.received,
                };
            }
            Some(sent) => {
                let extra = match sent {
                    SendExtra::Plain => RecvExtra::None,
                    SendExtra::Imm(imm) => RecvExtra::Imm(imm),
                    SendExtra::Invalidate(rkey) => {
                        host.invalidate_remote(rkey)?;
                        RecvExtra::Invalidated(rkey)
                    }
                };
                let received = received(WcOpcode::Recv, segment.received, extra, packet, context);
                self.complete_held(received, host);
                self.end_message();
            }
        }
        Ok(count)
    }

    /// Carries out packets of an RDMA WRITE.
    fn execute_write<H: Host>(
        &mut self,
        part: WritePart,
        packet: &Packet,
        count: u32,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        let mtu = context.settings.path_mtu;
        let (reth, segment) = self
            .message
            .check_write(part, packet.payload_len, count, mtu)?;
        check_right(context.settings.access.write)?;
        // The range of a message that arrives whole, without immediate data, is checked when the
        // payload is written.
        if segment.offset == 0 && segment.end != Some(None) {
            reach(&reth, RemoteAccess::Write, host)?;
        }
        if let Some(Some(_)) = segment.end {
            self.hold(named_queue(packet), host)?;
        }
        if packet.payload_len != 0 {
            host.write_remote(reth.rkey, reth.va.wrapping_add(u64::from(segment.offset)))?;
        }
        match segment.end {
            None => {
                self.message = Message::Write {
                    reth,
                    received: segment.received,
                };
            }
            Some(imm) => {
                if let Some(imm) = imm {
                    let (opcode, extra) = (WcOpcode::RecvRdmaWithImm, RecvExtra::Imm(imm));
                    let received = received(opcode, reth.length, extra, packet, context);
                    self.complete_held(received, host);
                }
                self.end_message();
            }
        }
        Ok(count)
    }

    /// Checks a READ and records its answer. The memory is read when the responses are sent.
    fn execute_read<H: Host>(
        &mut self,
        reth: Reth,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        check::check_read(&reth, packet.payload_len)?;
        self.admit(context.settings.access.read, context)?;
        reach(&reth, RemoteAccess::Read, host)?;
        let psns = check::read_psns(reth.length, context.settings.path_mtu);
        self.record(Recorded::Read(reth), psns, packet, context);
        self.peer_repeats_reads = packet.bth.reserved.repeats_reads();
        Ok(psns)
    }

    /// Carries out an atomic.
    fn execute_atomic<H: Host>(
        &mut self,
        eth: AtomicEth,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        check::check_atomic(&eth, packet.payload_len)?;
        self.admit(context.settings.access.atomic, context)?;
        host.check_remote(eth.rkey, eth.va, ATOMIC_BYTES, RemoteAccess::Atomic)?;
        let original = host.atomic_remote(eth.rkey, eth.va, eth.op)?;
        self.record(Recorded::Atomic(eth, original), 1, packet, context);
        Ok(1)
    }

    /// Carries out an ATOMIC WRITE.
    fn execute_atomic_write<H: Host>(
        &mut self,
        reth: Reth,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        check::check_atomic_write(&reth, packet.payload_len)?;
        self.admit(context.settings.access.write, context)?;
        reach(&reth, RemoteAccess::Write, host)?;
        host.atomic_write_remote(reth.rkey, reth.va)?;
        self.record(Recorded::AtomicWrite(reth), 1, packet, context);
        Ok(1)
    }

    /// Carries out a FLUSH.
    fn execute_flush<H: Host>(
        &mut self,
        kind: FlushKind,
        reth: Reth,
        packet: &Packet,
        context: &Context,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        check::check_flush(kind, &reth, packet.payload_len)?;
        self.admit(context.settings.access.allow_flush(kind), context)?;
        reach(&reth, RemoteAccess::Flush(kind), host)?;
        if reth.length != 0 || kind.selectivity == SELECT_REGION {
            host.flush_remote(reth.rkey, reth.va, reth.length, kind)?;
        }
        self.record(Recorded::Flush(kind, reth), 1, packet, context);
        Ok(1)
    }

    /// Checks that a request whose answer must be remembered comes between messages, that the peer
    /// has the right to it, and that the ring has room for the answer.
    fn admit(&self, right: bool, context: &Context) -> Result<(), Refusal> {
        self.message.check_none()?;
        check_right(right)?;
        self.ring.check_room(context.settings.max_dest_rd_atomic)?;
        Ok(())
    }

    /// Records the answer of a request that was carried out. The request counts as completed at
    /// once, a READ too (§9.7.7.1).
    fn record(&mut self, request: Recorded, psns: u32, packet: &Packet, context: &Context) {
        self.end_message();
        let replay = Replay {
            srqn: named_queue(packet),
            ..Replay::new(request, packet.bth.psn, self.position, psns, self.msn)
        };
        self.ring.push(replay, context.settings.max_dest_rd_atomic);
    }
}

/// Describes the message of a connection that ends with `packet`.
fn received(
    opcode: WcOpcode,
    byte_len: u32,
    extra: RecvExtra,
    packet: &Packet,
    context: &Context,
) -> Received {
    Received {
        opcode,
        byte_len,
        extra,
        src_qp: context.settings.dest_qpn,
        solicited: packet.bth.solicited,
        grh: false,
    }
}

/// Stores the payload of a SEND in the receive WQE.
fn fill<H: Host>(
    wr: &RecvWr,
    segment: &Segment<SendExtra>,
    packet: &Packet,
    host: &mut H,
) -> Result<(), Refusal> {
    if segment.received > wr.length {
        return Err(Refusal::TooLong);
    }
    if packet.payload_len == 0 {
        return Ok(());
    }
    host.scatter_recv(wr.slot, segment.offset)?;
    Ok(())
}

/// Checks the right to an operation. An operation that the QP's access flags exclude isn't
/// supported (§9.7.4.1.5).
fn check_right(right: bool) -> Result<(), Refusal> {
    right
        .then_some(())
        .ok_or(Refusal::Request(NakCode::InvalidRequest))
}

/// Checks a whole range. An empty range needs no valid key (§9.7.4.1.5).
fn reach<H: Host>(reth: &Reth, access: RemoteAccess, host: &mut H) -> Result<(), Refusal> {
    if reth.length == 0 {
        return Ok(());
    }
    host.check_remote(reth.rkey, reth.va, reth.length, access)?;
    Ok(())
}
