// SPDX-License-Identifier: GPL-2.0

//! The rows of the tables: rates of links from two samples, and QPs.

use serde::Deserialize;

use crate::device::Device;

/// Rates of a link, per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinkRow {
    pub(super) name: String,
    pub(super) netdev: String,
    pub(super) state: String,
    pub(super) qps: u64,
    pub(super) sent_packets: f64,
    pub(super) received_packets: f64,
    pub(super) sent_bytes: f64,
    pub(super) received_bytes: f64,
    pub(super) retransmissions: f64,
    pub(super) drops: f64,
}

/// A QP in the output of `rdma -j -dd resource show qp`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct Qp {
    #[serde(rename = "ifname")]
    pub(super) link: String,
    #[serde(rename = "lqpn")]
    pub(super) number: u64,
    #[serde(rename = "rqpn")]
    pub(super) peer: Option<u64>,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) state: String,
    #[serde(rename = "comm")]
    pub(super) process: String,
    pub(super) pid: Option<u64>,
    #[serde(rename = "drv_in_flight")]
    pub(super) in_flight: Option<u64>,
    #[serde(rename = "drv_sq_posted")]
    pub(super) sends: Option<u64>,
    #[serde(rename = "drv_rq_posted")]
    pub(super) receives: Option<u64>,
}

/// Returns the rows of all links of rrxe. `seconds` have passed between the two samples. A link
/// that is missing in the old sample, or was added again since, has rates of 0.
pub(super) fn link_rows(old: &[Device], new: &[Device], seconds: f64) -> Vec<LinkRow> {
    let links = new.iter().filter(|each| each.is_rrxe());
    links
        .map(|link| {
            let before = old.iter().find(|each| each.name == link.name);
            row(before.unwrap_or(link), link, seconds)
        })
        .collect()
}

fn row(old: &Device, new: &Device, seconds: f64) -> LinkRow {
    let rate = |count: &dyn Fn(&Device) -> u64| per_second(count(old), count(new), seconds);
    let counter = |name| rate(&|device: &Device| device.counter(name));
    LinkRow {
        name: new.name.clone(),
        netdev: new.netdev.clone().unwrap_or_default(),
        state: new.state.clone(),
        qps: new.objects.qp,
        sent_packets: counter("sent_pkts"),
        received_packets: counter("rcvd_pkts"),
        sent_bytes: counter("sent_bytes"),
        received_bytes: counter("rcvd_bytes"),
        retransmissions: rate(&Device::retransmissions),
        drops: rate(&Device::drops),
    }
}

/// Returns the growth of a counter per second.
fn per_second(old: u64, new: u64, seconds: f64) -> f64 {
    if seconds <= 0.0 {
        return 0.0;
    }
    new.saturating_sub(old) as f64 / seconds
}

/// Returns a number with at most three digits and a prefix of thousands, for example 12.3k.
pub(super) fn short(number: f64) -> String {
    let (mut value, mut prefixes) = (number, ["", "k", "M", "G", "T"].into_iter());
    let mut prefix = prefixes.next().unwrap_or_default();
    while value >= 999.5 {
        let Some(next) = prefixes.next() else {
            break;
        };
        (value, prefix) = (value / 1000.0, next);
    }
    let has_decimal = match prefix {
        "" => value > 0.0 && value < 9.95,
        _ => value < 99.95,
    };
    let decimals = usize::from(has_decimal);
    format!("{value:.decimals$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(counts: &[(&str, u64)]) -> Device {
        Device {
            name: "rrxe0".to_owned(),
            firmware: Some("rrxe 0.1.0".to_owned()),
            counters: counts
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
            ..Device::default()
        }
    }

    #[test]
    fn rates_are_differences_per_second() {
        let old = sample(&[("sent_pkts", 100), ("drop_icrc", 1), ("rto_resends", 5)]);
        let new = sample(&[("sent_pkts", 300), ("drop_icrc", 5), ("rto_resends", 9)]);
        let rows = link_rows(&[old], &[new], 2.0);
        let seen = (rows[0].sent_packets, rows[0].drops, rows[0].retransmissions);
        assert_eq!(seen, (100.0, 2.0, 2.0));
    }

    #[test]
    fn links_that_are_new_or_were_added_again_have_no_rates() {
        let new = [sample(&[("sent_pkts", 300)])];
        for old in [vec![], vec![sample(&[("sent_pkts", 900)])]] {
            assert_eq!(link_rows(&old, &new, 1.0)[0].sent_packets, 0.0);
        }
        assert_eq!(link_rows(&[sample(&[])], &new, 0.0)[0].sent_packets, 0.0);
    }

    #[test]
    fn devices_of_other_drivers_have_no_row() {
        let other = Device {
            firmware: None,
            ..sample(&[])
        };
        assert_eq!(link_rows(&[], &[other], 1.0), []);
    }

    #[test]
    fn numbers_are_shortened() {
        for (number, text) in [
            (0.0, "0"),
            (0.4, "0.4"),
            (12.0, "12"),
            (999.0, "999"),
            (999.6, "1.0k"),
            (1234.0, "1.2k"),
            (99_960.0, "100k"),
            (5_000_000.0, "5.0M"),
            (2e15, "2000T"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn a_qp_is_parsed() {
        let text = r#"{"ifname": "rrxe0", "port": 1, "lqpn": 17, "rqpn": 18, "type": "RC",
            "state": "RTS", "pid": 5, "comm": "x", "drv_in_flight": 3}"#;
        let qp: Qp = serde_json::from_str(text).unwrap();
        assert_eq!(
            (qp.number, qp.peer, qp.in_flight, qp.sends),
            (17, Some(18), Some(3), None)
        );
    }
}
