// SPDX-License-Identifier: GPL-2.0

//! Frames that are built from given fields.

use super::*;

/// A frame, as given fields.
#[derive(Clone, Debug)]
pub(super) struct Built {
    pub(super) dst: [u8; 6],
    pub(super) src: [u8; 6],
    /// Ethertype and content of each tag.
    pub(super) tags: Vec<(u16, u16)>,
    pub(super) network: Net,
    pub(super) protocol: u8,
    pub(super) ports: (u16, u16),
    payload: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Net {
    V4(V4),
    V6(V6),
    Other(u16),
}

#[derive(Clone, Debug)]
pub(super) struct V4 {
    addresses: [u32; 2],
    tos: u8,
    ttl: u8,
    /// DF and MF flags.
    flags: (bool, bool),
    offset: u16,
    option_words: u8,
}

#[derive(Clone, Debug)]
pub(super) struct V6 {
    addresses: [u128; 2],
    class: u8,
    label: u32,
    hop_limit: u8,
    /// Type of each extension header, and its length in units of 8 bytes beyond the first.
    extensions: Vec<(u8, u8)>,
    /// Fragment offset, if the packet is a fragment.
    offset: Option<u16>,
}

impl Built {
    pub(super) fn ether_type(&self) -> u16 {
        match self.network {
            Net::V4(_) => 0x800,
            Net::V6(_) => 0x86dd,
            Net::Other(ether_type) => ether_type,
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.dst, self.src].concat();
        for (kind, tag) in &self.tags {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend(self.ether_type().to_be_bytes());
        match &self.network {
            Net::V4(header) => bytes.extend(header.bytes(self.protocol)),
            Net::V6(header) => bytes.extend(header.bytes(self.protocol)),
            Net::Other(_) => {}
        }
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        bytes.extend(vec![0xee; self.payload]);
        bytes
    }

    /// Returns whether the frame has a transport header.
    pub(super) fn has_ports(&self) -> bool {
        match &self.network {
            Net::V4(header) => header.offset == 0,
            Net::V6(header) => header.offset.is_none_or(|offset| offset == 0),
            Net::Other(_) => false,
        }
    }
}

impl V4 {
    fn bytes(&self, protocol: u8) -> Vec<u8> {
        let (df, mf) = self.flags;
        let fragment = u16::from(df) << 14 | u16::from(mf) << 13 | self.offset;
        let mut bytes = vec![0x45 + self.option_words, self.tos, 0, 99, 1, 2];
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([self.ttl, protocol, 3, 4]);
        bytes.extend(self.addresses.iter().flat_map(|a| a.to_be_bytes()));
        bytes.extend(vec![0x5a; usize::from(self.option_words) * 4]);
        bytes
    }

    /// Returns the fields that rules can match: source, destination, protocol, TOS, TTL, flags.
    pub(super) fn fields(&self, protocol: u8) -> [u128; 6] {
        let ([src, dst], (df, mf)) = (self.addresses, self.flags);
        let flags = if df { 2 } else { 0 } + if mf { 4u8 } else { 0 };
        let small = [protocol, self.tos, self.ttl, flags].map(u128::from);
        let [protocol, tos, ttl, flags] = small;
        [src.into(), dst.into(), protocol, tos, ttl, flags]
    }
}

impl V6 {
    /// Returns the types of all headers after this one.
    fn kinds(&self, protocol: u8) -> Vec<u8> {
        let mut kinds: Vec<u8> = self.extensions.iter().map(|(kind, _)| *kind).collect();
        kinds.extend(self.offset.map(|_| 44));
        kinds.push(protocol);
        kinds
    }

    fn bytes(&self, protocol: u8) -> Vec<u8> {
        let word = 6 << 28 | u32::from(self.class) << 20 | self.label;
        let kinds = self.kinds(protocol);
        let mut bytes = word.to_be_bytes().to_vec();
        bytes.extend([0, 99, kinds[0], self.hop_limit]);
        bytes.extend(self.addresses.iter().flat_map(|a| a.to_be_bytes()));
        for (index, (_, extra)) in self.extensions.iter().enumerate() {
            bytes.extend([kinds[index + 1], *extra]);
            bytes.extend(vec![0xa5; 6 + 8 * usize::from(*extra)]);
        }
        if let Some(offset) = self.offset {
            bytes.extend([protocol, 0]);
            bytes.extend((offset << 3 | 1).to_be_bytes());
            bytes.extend([7; 4]);
        }
        bytes
    }

    /// Returns the fields that rules can match: source, destination, label, next header, class, hop
    /// limit.
    pub(super) fn fields(&self, protocol: u8) -> [u128; 6] {
        let [src, dst] = self.addresses;
        let small = [self.kinds(protocol)[0], self.class, self.hop_limit].map(u128::from);
        let [next, class, limit] = small;
        [src, dst, self.label.into(), next, class, limit]
    }
}

pub(super) fn macs() -> impl Strategy<Value = [u8; 6]> {
    select(vec![
        [2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 3],
        [0xff; 6],
        [1, 0, 0x5e, 0, 0, 1],
    ])
}

fn small<T: Copy + core::fmt::Debug + 'static>(values: &'static [T]) -> impl Strategy<Value = T> {
    select(values)
}

pub(super) const V4_ADDRESSES: [u32; 3] = [0x0a4d_0001, 0x0a4d_0002, 0xe000_0001];
pub(super) const V6_ADDRESSES: [u128; 3] =
    [0xfd77 << 112 | 1, 0xfd77 << 112 | 2, 0xff02 << 112 | 1];
pub(super) const PORTS: [u16; 4] = [53, 4791, 1024, 0x8000];

fn networks() -> impl Strategy<Value = Net> {
    let v4 = (
        [small(&V4_ADDRESSES), small(&V4_ADDRESSES)],
        small(&[0, 0x10]),
        small(&[1, 64]),
        any::<(bool, bool)>(),
        small(&[0, 0, 0, 1, 185]),
        0..=10u8,
    )
        .prop_map(|(addresses, tos, ttl, flags, offset, option_words)| {
            Net::V4(V4 {
                addresses,
                tos,
                ttl,
                flags,
                offset,
                option_words,
            })
        });
    let v6 = (
        [small(&V6_ADDRESSES), small(&V6_ADDRESSES)],
        small(&[0, 0x2c]),
        small(&[0, 0xabcde, 0xfffff]),
        small(&[1, 64]),
        some((small(&[0, 43, 60]), 0..2u8), 0..3),
        weighted(0.3, small(&[0, 0, 5])),
    )
        .prop_map(|(addresses, class, label, hop_limit, extensions, offset)| {
            Net::V6(V6 {
                addresses,
                class,
                label,
                hop_limit,
                extensions,
                offset,
            })
        });
    prop_oneof![3 => v4, 3 => v6, 1 => small(&[0x806, 0x88b5]).prop_map(Net::Other)]
}

pub(super) fn frames() -> impl Strategy<Value = Built> {
    (
        macs(),
        macs(),
        some(
            (small(&[0x8100, 0x88a8]), small(&[7, 0x2007, 0xffff])),
            0..3,
        ),
        networks(),
        small(&[6, 17, 1]),
        (small(&PORTS), small(&PORTS)),
        0..40usize,
    )
        .prop_map(
            |(dst, src, tags, network, protocol, ports, payload)| Built {
                dst,
                src,
                tags,
                network,
                protocol,
                ports,
                payload,
            },
        )
}
