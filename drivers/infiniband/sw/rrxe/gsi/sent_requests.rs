// SPDX-License-Identifier: GPL-2.0

//! The MAD requests that a GSI QP has sent recently. The QP takes responses to these requests only.
//!
//! ib_mad delivers a response to the agent whose number is in it, on any device
//! (`find_mad_agent()`, mad.c), and delivers some responses without a request
//! (`ib_mad_complete_recv()`, mad.c). `cm_recv_handler()` (cm.c) checks nothing but the attribute.
//! So any host could send a response with the attribute of a CM request and the number of another
//! device's ib_cm agent. ib_cm would take this response as a CM request to that device, and no
//! limit of this QP on CM messages would apply.

use kernel::prelude::*;
use roce::wire::mad::Exchange;

/// Number of requests that are remembered.
const REMEMBERED: usize = 256;
/// Time for which a request is remembered, in nanoseconds. A user that waits longer for a response
/// sends the request again. A response of many segments may take longer, but the user acknowledges
/// its segments by MADs that count as the request sent again (`format_ack()`, mad_rmpp.c).
const LIFETIME: i64 = 60_000_000_000;

/// A MAD request that was sent.
#[derive(Clone, Copy)]
struct SentRequest {
    /// Class and transaction ID.
    exchange: Exchange,
    /// Time when the request was sent last, in nanoseconds.
    at: i64,
}

/// The MAD requests that a GSI QP has sent recently.
pub(super) struct SentRequests {
    /// Index at which the next request is stored. Once the ring is full, the oldest is there.
    next: usize,
    /// The requests, in a ring.
    requests: KVVec<Option<SentRequest>>,
}

impl SentRequests {
    /// Creates an empty list. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            next: 0,
            requests: KVVec::from_elem(None, REMEMBERED, GFP_KERNEL)?,
        })
    }

    /// Records a request that is sent or repeated at the time `now`.
    pub(super) fn note(&mut self, exchange: Exchange, now: i64) {
        let request = Some(SentRequest { exchange, at: now });
        let same = |known: &&mut Option<SentRequest>| {
            known.is_some_and(|known| known.exchange == exchange)
        };
        if let Some(known) = self.requests.iter_mut().find(same) {
            *known = request;
            return;
        }
        if let Some(oldest) = self.requests.get_mut(self.next) {
            *oldest = request;
        }
        self.next = self.next.wrapping_add(1) % REMEMBERED;
    }

    /// Returns whether a request of this exchange was sent less than [`LIFETIME`] before `now`. A
    /// request may have any number of responses.
    pub(super) fn has(&self, exchange: Exchange, now: i64) -> bool {
        let matches = |request: &SentRequest| {
            request.exchange == exchange && now.saturating_sub(request.at) < LIFETIME
        };
        self.requests.iter().flatten().any(matches)
    }
}

#[kunit_tests(rrxe_gsi_sent_requests)]
mod tests {
    use super::*;
    use roce::wire::mad::{MadHeader, MAD_HEADER_LEN};

    /// Returns the exchange of a request with this transaction ID.
    fn exchange(number: u8) -> Result<Exchange> {
        let mut bytes = [0; MAD_HEADER_LEN];
        let [version, class, _, method, _, _, _, _, _, _, _, _, _, _, _, transaction, ..] =
            &mut bytes;
        (*version, *class, *method, *transaction) = (1, 4, 1, number);
        let header = MadHeader::parse(&bytes);
        header
            .and_then(|header| header.request_exchange())
            .ok_or(EINVAL)
    }

    #[test]
    fn a_request_has_responses_for_a_while() -> Result {
        let mut sent = SentRequests::new()?;
        assert!(!sent.has(exchange(1)?, 5));
        sent.note(exchange(1)?, 5);
        for _ in 0..2 {
            assert!(sent.has(exchange(1)?, LIFETIME + 4));
        }
        assert!(!sent.has(exchange(2)?, 6));
        assert!(!sent.has(exchange(1)?, LIFETIME + 5));
        Ok(())
    }

    #[test]
    fn a_repeated_request_takes_no_second_place() -> Result {
        let mut sent = SentRequests::new()?;
        sent.note(exchange(1)?, 0);
        for now in 0..2 * REMEMBERED as i64 {
            sent.note(exchange(2)?, now);
        }
        assert!(sent.has(exchange(1)?, 1));
        assert!(sent.has(exchange(2)?, LIFETIME + 1));
        Ok(())
    }

    #[test]
    fn the_oldest_request_is_forgotten() -> Result {
        let mut sent = SentRequests::new()?;
        for number in 0..=255 {
            sent.note(exchange(number)?, 0);
        }
        assert!(sent.has(exchange(0)?, 0));
        // The class differs, and so does the exchange.
        let mut bytes = [0; MAD_HEADER_LEN];
        bytes[0] = 1;
        let other = MadHeader::parse(&bytes).and_then(|header| header.request_exchange());
        sent.note(other.ok_or(EINVAL)?, 0);
        assert!(!sent.has(exchange(0)?, 0));
        assert!(sent.has(exchange(1)?, 0));
        Ok(())
    }
}
