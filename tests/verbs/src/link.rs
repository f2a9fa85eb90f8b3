// SPDX-License-Identifier: GPL-2.0

//! Connection of two QPs: the exchange of their parameters over a byte stream, and the state
//! transitions.

use std::io::{self, Read, Write};

use crate::{
    object::{Context, Mr, Qp},
    sys::*,
};

/// The parameters of a QP that its connection needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub qpn: u32,
    pub psn: u32,
    pub rkey: u32,
    pub addr: u64,
    pub gid: [u8; 16],
    pub gid_index: u8,
}

impl Endpoint {
    /// The endpoint of QP `qpn` with an IPv4 or IPv6 address. The QP sends from `psn` on and offers
    /// no memory.
    pub fn new(context: &Context, qpn: u32, psn: u32, v6: bool) -> io::Result<Self> {
        let (gid_index, gid) = context.gid(v6)?;
        Ok(Self {
            qpn,
            psn,
            rkey: 0,
            addr: 0,
            gid,
            gid_index,
        })
    }

    /// The endpoint of `qp`, which sends from PSN 0 on and offers the memory of `mr`.
    pub fn with_memory(context: &Context, qp: &Qp, mr: &Mr, v6: bool) -> io::Result<Self> {
        Ok(Self {
            rkey: mr.rkey(),
            addr: mr.buffer.addr(),
            ..Self::new(context, qp.number(), 0, v6)?
        })
    }

    /// Sends this endpoint over the stream and receives the peer's.
    pub fn exchange(&self, stream: &mut (impl Read + Write)) -> io::Result<Self> {
        let mut raw = [0u8; 37];
        raw[0..4].copy_from_slice(&self.qpn.to_le_bytes());
        raw[4..8].copy_from_slice(&self.psn.to_le_bytes());
        raw[8..12].copy_from_slice(&self.rkey.to_le_bytes());
        raw[12..20].copy_from_slice(&self.addr.to_le_bytes());
        raw[20..36].copy_from_slice(&self.gid);
        raw[36] = self.gid_index;
        stream.write_all(&raw)?;
        stream.flush()?;
        stream.read_exact(&mut raw)?;
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        Ok(Self {
            qpn: word(0),
            psn: word(4),
            rkey: word(8),
            addr: u64::from(word(12)) | u64::from(word(16)) << 32,
            gid: raw[20..36].try_into().expect("16 bytes"),
            gid_index: raw[36],
        })
    }
}

/// Path MTU, timers, retry counts and depth of READs and atomics of a connection, in the encoding
/// of `struct ibv_qp_attr`.
#[derive(Clone, Copy)]
pub struct Settings {
    pub mtu: ibv_mtu,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mtu: IBV_MTU_1024,
            // 0.5 s (4.096 µs · 2^17), because a CPU of an emulated machine may be stopped for a
            // long time.
            timeout: 17,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 16,
        }
    }
}

/// Returns the attributes of RESET → INIT, with the remote access rights `access`, and their
/// mask.
pub(crate) fn init_attr(access: u32) -> (ibv_qp_attr, u32) {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        port_num: 1,
        qp_access_flags: access,
        ..Default::default()
    };
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    (attr, mask)
}

/// Returns the attributes of INIT → RTR towards `peer`, and the mask of those that all connected
/// QP types need.
pub(crate) fn rtr_attr(
    ours: &Endpoint,
    peer: &Endpoint,
    settings: &Settings,
) -> (ibv_qp_attr, u32) {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: settings.mtu,
        dest_qp_num: peer.qpn,
        rq_psn: peer.psn,
        max_dest_rd_atomic: settings.rd_atomic,
        min_rnr_timer: settings.min_rnr_timer,
        ah_attr: ibv_ah_attr {
            is_global: 1,
            port_num: 1,
            grh: ibv_global_route {
                dgid: ibv_gid { raw: peer.gid },
                sgid_index: ours.gid_index,
                hop_limit: 64,
                ..Default::default()
            },
            ..Default::default()
        },
        ..Default::default()
    };
    let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    (attr, mask)
}

/// Returns the attributes of RTR → RTS, and the mask of those that all connected QP types need.
pub(crate) fn rts_attr(ours: &Endpoint, settings: &Settings) -> (ibv_qp_attr, u32) {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        sq_psn: ours.psn,
        timeout: settings.timeout,
        retry_cnt: settings.retry_cnt,
        rnr_retry: settings.rnr_retry,
        max_rd_atomic: settings.rd_atomic,
        ..Default::default()
    };
    (attr, IBV_QP_STATE | IBV_QP_SQ_PSN)
}

/// Takes a QP from RESET to INIT, with the remote access rights `access`.
pub fn to_init(qp: &Qp, access: u32) -> io::Result<()> {
    let (attr, mask) = init_attr(access);
    qp.modify(&attr, mask)
}

/// Takes a QP from INIT to RTR, towards `peer`.
pub fn to_rtr(qp: &Qp, ours: &Endpoint, peer: &Endpoint, settings: &Settings) -> io::Result<()> {
    let (attr, mask) = rtr_attr(ours, peer, settings);
    let reliable = match qp.kind() {
        IBV_QPT_RC => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        _ => 0,
    };
    qp.modify(&attr, mask | reliable)
}

/// Takes a QP from RTR to RTS.
pub fn to_rts(qp: &Qp, ours: &Endpoint, settings: &Settings) -> io::Result<()> {
    let (attr, mask) = rts_attr(ours, settings);
    let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    let reliable = match qp.kind() {
        IBV_QPT_RC => retries | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    };
    qp.modify(&attr, mask | reliable)
}

/// Takes a UD QP from RESET to RTS.
pub fn to_datagram(qp: &Qp, qkey: u32) -> io::Result<()> {
    let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    let steps = [
        (IBV_QPS_INIT, init),
        (IBV_QPS_RTR, IBV_QP_STATE),
        (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN),
    ];
    for (qp_state, mask) in steps {
        let attr = ibv_qp_attr {
            qp_state,
            port_num: 1,
            qkey,
            sq_psn: 0xff_fff0,
            ..Default::default()
        };
        qp.modify(&attr, mask)?;
    }
    Ok(())
}
