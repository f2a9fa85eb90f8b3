// SPDX-License-Identifier: GPL-2.0

//! Trains between QPs of one device: the receiver copies their payload from the sender's memory to
//! its own, so that there is one copy and no packet.
//!
//! The socket buffer of a train has the headers of the train's packets as one
//! ([`Train`](roce::train::Train)). In place of the payload it has a [`Payload`], which names the
//! sender's memory. The receiver looks up the keys. So a region that was deregistered meanwhile is
//! not found, and the train is lost.

use rdma::verbs::mr::{Span, SpanError};
use roce::{
    host::{AccessFault, LocalAccess, RemoteAccess},
    ids::{Lkey, Rkey},
    mtu::Mtu,
};

use crate::{
    memory::{mr::MrTable, mw::RemoteContext, remote::RemoteRange},
    qp::{sge, wqe::Sge},
    verbs::pd::PdId,
};

/// Maximum number of bytes of a train's payload.
pub(crate) const MAX_BYTES: u32 = 1 << 16;
/// Maximum number of SGEs of a train's payload.
pub(crate) const MAX_SGES: usize = 4;

/// Number of words of an encoded [`Payload`].
const WORDS: usize = 4 + 2 * MAX_SGES;
/// Number of bytes of an encoded [`Payload`].
pub(crate) const PAYLOAD_LEN: usize = 8 * WORDS;

/// Lower half of the third word of an encoded [`Payload`] with [`Memory::Sges`].
const SGES: u64 = 0;
/// Lower half of the third word of an encoded [`Payload`] with [`Memory::Remote`].
const REMOTE: u64 = 1;

/// The sender's memory that holds the payload of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory of the sender's work request. Entries of zero bytes are unused.
    Sges(PdId, [Sge; MAX_SGES]),
    /// The memory that a READ names. The train consists of responses.
    Remote(RemoteContext, Rkey, u64),
}

/// The description of a train in its socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    /// Number of packets.
    pub(crate) count: u32,
    /// Number of bytes of payload.
    pub(crate) length: u32,
    /// Path MTU of the sender.
    pub(crate) mtu: Mtu,
    /// Session of the sender (`qp/train_source.rs`).
    pub(crate) session: u64,
    /// Place of the payload.
    pub(crate) memory: Memory,
}

impl Payload {
    /// Encodes the description for a socket buffer. Only this host reads it.
    pub(crate) fn encode(&self) -> [u8; PAYLOAD_LEN] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let mut words = [0; WORDS];
        let [session, size, kind, domain, places @ ..] = &mut words;
        *session = self.session;
        *size = pair(self.count, self.length);
        match self.memory {
            Memory::Sges(pd, sges) => {
                (*kind, *domain) = (pair(self.mtu as u32, 0) | SGES, pd.get());
                for (place, sge) in places.chunks_exact_mut(2).zip(sges) {
                    place.copy_from_slice(&[sge.addr, pair(sge.length, sge.lkey.0)]);
                }
            }
            Memory::Remote(context, rkey, va) => {
                (*kind, *domain) = (pair(self.mtu as u32, 0) | REMOTE, context.pd.get());
                let [address, key, ..] = places;
                (*address, *key) = (va, pair(context.qpn, rkey.0));
            }
        }
        let mut bytes = [0; PAYLOAD_LEN];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Decodes a description. Returns `None` if `bytes` is too short or the MTU is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            let rest = bytes.get(index.wrapping_mul(8)..)?;
            *word = u64::from_ne_bytes(*rest.first_chunk()?);
        }
        let split = |word: u64| ((word >> 32) as u32, word as u32);
        let [session, size, kind, domain, places @ ..] = &words;
        let (count, length) = split(*size);
        let (mtu, kind) = split(*kind);
        let pd = PdId::from_raw(*domain);
        let memory = if u64::from(kind) == REMOTE {
            let [va, key, ..] = places;
            let (qpn, rkey) = split(*key);
            Memory::Remote(RemoteContext { pd, qpn }, Rkey(rkey), *va)
        } else {
            let mut sges = [Sge::default(); MAX_SGES];
            for (sge, place) in sges.iter_mut().zip(places.chunks_exact(2)) {
                if let [addr, sizes] = place {
                    let (length, lkey) = split(*sizes);
                    *sge = Sge {
                        addr: *addr,
                        length,
                        lkey: Lkey(lkey),
                    };
                }
            }
            Memory::Sges(pd, sges)
        };
        Some(Self {
            count,
            length,
            mtu: Mtu::from_raw(mtu)?,
            session: *session,
            memory,
        })
    }

    /// Returns whether all of the sender's memory is resident, so that [`Self::copy_to`] would
    /// succeed now.
    pub(crate) fn is_resident(&self, mrs: &MrTable) -> bool {
        match self.memory {
            Memory::Sges(pd, sges) => sges.iter().filter(|sge| sge.length != 0).all(|sge| {
                mrs.with_resident(pd, sge, LocalAccess::Read, |_| ())
                    .is_ok()
            }),
            Memory::Remote(context, rkey, va) => mrs
                .with_resident_range(&read_range(context, rkey, va, self.length), |_| ())
                .is_ok(),
        }
    }

    /// Fills `span` with payload from byte `offset` on.
    ///
    /// # Errors
    ///
    /// `Retry` if the sender's memory can't be read any more: the train is lost. `Denied` if `span`
    /// can't be written or there is less payload.
    pub(crate) fn copy_to(
        &self,
        offset: u32,
        span: &Span<'_>,
        mrs: &MrTable,
    ) -> Result<(), AccessFault> {
        let length = u32::try_from(span.len()).map_err(|_| AccessFault::Denied)?;
        match self.memory {
            Memory::Sges(pd, sges) => {
                let mut done = 0u32;
                for part in sge::parts(&sges, offset, length) {
                    mrs.with_resident(pd, &part, LocalAccess::Read, |source| {
                        span.copy_from_span(done as usize, &source)
                    })
                    .map_err(|_| AccessFault::Retry)?
                    .map_err(denied)?;
                    done = done.wrapping_add(part.length);
                }
                (done == length).then_some(()).ok_or(AccessFault::Denied)
            }
            Memory::Remote(context, rkey, va) => {
                let from = va.wrapping_add(u64::from(offset));
                let range = read_range(context, rkey, from, length);
                mrs.with_resident_range(&range, |source| span.copy_from_span(0, &source))
                    .map_err(|_| AccessFault::Retry)?
                    .map_err(denied)
            }
        }
    }
}

/// Returns the range of `length` bytes from address `va` on, for a READ.
fn read_range(context: RemoteContext, rkey: Rkey, va: u64, length: u32) -> RemoteRange {
    RemoteRange {
        context,
        rkey,
        va,
        length,
        access: RemoteAccess::Read,
    }
}

/// Converts the error of a copy to the receiver's memory.
fn denied(_: SpanError) -> AccessFault {
    AccessFault::Denied
}
