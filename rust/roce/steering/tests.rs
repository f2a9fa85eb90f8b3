// SPDX-License-Identifier: GPL-2.0

//! Tests of rules with frames that are built from given fields. A second implementation (`is_so`,
//! `expected`) computes the results to compare with from those fields.

use std::vec;
use std::vec::Vec;

use proptest::collection::vec as some;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

use built::{frames, macs, Built, Net, PORTS, V4_ADDRESSES, V6_ADDRESSES};

mod built;

/// The value of a field and its mask.
type Field = (u128, u128);

/// The fields that a rule requires. `None` for a header without a condition.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    /// Destination, source, type, tag.
    ethernet: Option<[Field; 4]>,
    /// Source, destination, protocol, TOS, TTL, flags.
    ipv4: Option<[Field; 6]>,
    /// Source, destination, label, next header, class, hop limit.
    ipv6: Option<[Field; 6]>,
    /// Whether TCP, destination and source port.
    ports: Option<(bool, [Field; 2])>,
}

fn same(field: &Field, actual: impl Into<u128>) -> bool {
    field.0 & field.1 == actual.into() & field.1
}

fn mac(bytes: [u8; 6]) -> u64 {
    bytes.iter().fold(0, |sum, b| sum << 8 | u64::from(*b))
}

fn all_same(fields: &[Field], actual: &[u128]) -> bool {
    let mut pairs = fields.iter().zip(actual);
    pairs.all(|(field, actual)| same(field, *actual))
}

/// Returns whether the frame fulfils all conditions.
fn is_so(said: &Said, frame: &Built) -> bool {
    let ethernet = said.ethernet.iter().all(|[dst, src, kind, tag]| {
        let tagged = match frame.tags.first() {
            Some((_, content)) => same(tag, *content),
            None => tag.1 == 0,
        };
        same(dst, mac(frame.dst))
            && same(src, mac(frame.src))
            && same(kind, frame.ether_type())
            && tagged
    });
    let ipv4 = said.ipv4.iter().all(|fields| match &frame.network {
        Net::V4(header) => all_same(fields, &header.fields(frame.protocol)),
        _ => false,
    });
    let ipv6 = said.ipv6.iter().all(|fields| match &frame.network {
        Net::V6(header) => all_same(fields, &header.fields(frame.protocol)),
        _ => false,
    });
    let ports = said.ports.iter().all(|(tcp, [dst, src])| {
        frame.has_ports()
            && frame.protocol == if *tcp { 6 } else { 17 }
            && same(src, frame.ports.0)
            && same(dst, frame.ports.1)
    });
    ethernet && ipv4 && ipv6 && ports
}

/// Returns the conditions with all bits cleared that the masks exclude.
fn meaning(said: &Said) -> Said {
    fn bare<const N: usize>(fields: [Field; N]) -> [Field; N] {
        fields.map(|(value, mask)| (value & mask, mask))
    }
    Said {
        ethernet: said.ethernet.map(bare),
        ipv4: said.ipv4.map(bare),
        ipv6: said.ipv6.map(bare),
        ports: said.ports.map(|(tcp, fields)| (tcp, bare(fields))),
    }
}

/// Returns the bytes of the values and masks of fields, which have `sizes` bytes.
fn pack<const LEN: usize>(fields: &[Field], sizes: &[usize]) -> Match<LEN> {
    let join = |part: fn(&Field) -> u128| {
        let pieces = fields
            .iter()
            .zip(sizes)
            .flat_map(|(field, size)| part(field).to_be_bytes()[16 - size..].to_vec());
        pieces.collect::<Vec<u8>>().try_into().unwrap()
    };
    Match::new(join(|field| field.0), join(|field| field.1))
}

fn pattern(said: &Said) -> Pattern {
    let mut pattern = Pattern::default();
    let mut add = |spec| pattern.add(spec).unwrap();
    // The order of the calls is arbitrary, and must not matter.
    if let Some((tcp, fields)) = &said.ports {
        let ports = pack(fields, &[2, 2]);
        add(if *tcp {
            Spec::Tcp(ports)
        } else {
            Spec::Udp(ports)
        });
    }
    if let Some(fields) = &said.ethernet {
        add(Spec::Ethernet(pack(fields, &[6, 6, 2, 2])));
    }
    if let Some(fields) = &said.ipv4 {
        add(Spec::Ipv4(pack(fields, &[4, 4, 1, 1, 1, 1])));
    }
    if let Some(fields) = &said.ipv6 {
        add(Spec::Ipv6(pack(fields, &[16, 16, 4, 1, 1, 1])));
    }
    pattern
}

/// Generates the condition on a field of `bits` bits: in half of the cases no condition, otherwise
/// one of `values`, rarely with a partial mask.
fn field(values: impl Strategy<Value = u128> + 'static, bits: u32) -> impl Strategy<Value = Field> {
    let full = u128::MAX >> (128 - bits);
    let masks =
        prop_oneof![5 => Just(0), 4 => Just(full), 1 => any::<u128>().prop_map(move |m| m & full)];
    (values, masks)
}

fn of<T: Copy + Into<u128> + core::fmt::Debug + 'static>(
    values: &'static [T],
    bits: u32,
) -> impl Strategy<Value = Field> {
    field(select(values).prop_map(Into::into), bits)
}

fn sayings() -> impl Strategy<Value = Said> {
    let mac_field = || field(macs().prop_map(|bytes| mac(bytes).into()), 48);
    let ethernet = (
        mac_field(),
        mac_field(),
        of(&[0x800u16, 0x86dd, 0x806, 0x8100], 16),
        of(&[7u16, 0x2007], 16),
    )
        .prop_map(|(a, b, c, d)| [a, b, c, d]);
    let ipv4 = (
        of(&V4_ADDRESSES, 32),
        of(&V4_ADDRESSES, 32),
        of(&[6u8, 17], 8),
        of(&[0u8, 0x10], 8),
        of(&[64u8], 8),
        of(&[0u8, 2, 4, 6], 8).prop_map(|(value, mask)| (value, mask & 6)),
    )
        .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f]);
    let ipv6 = (
        of(&V6_ADDRESSES, 128),
        of(&V6_ADDRESSES, 128),
        of(&[0u32, 0xabcde], 20),
        of(&[6u8, 17, 0, 44], 8),
        of(&[0u8, 0x2c], 8),
        of(&[64u8], 8),
    )
        .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f]);
    let ports = (any::<bool>(), of(&PORTS, 16), of(&PORTS, 16)).prop_map(|(t, d, s)| (t, [d, s]));
    (
        weighted(0.5, ethernet),
        prop_oneof![
            Just((None, None)),
            ipv4.prop_map(|said| (Some(said), None)),
            ipv6.prop_map(|said| (None, Some(said))),
        ],
        weighted(0.4, ports),
    )
        .prop_map(|(ethernet, (ipv4, ipv6), ports)| Said {
            ethernet,
            ipv4,
            ipv6,
            ports,
        })
}

/// A rule to create, and whether it belongs to the sender of the frame.
#[derive(Clone, Debug)]
struct Wish {
    what: What,
    priority: u16,
    dont_trap: bool,
    own: bool,
    is_own: bool,
}

#[derive(Clone, Debug)]
enum What {
    Sniffer,
    Multicast,
    All,
    /// Index of the conditions in a list, so that equal conditions are likely.
    Normal(usize),
}

fn wishes() -> impl Strategy<Value = Wish> {
    let what = prop_oneof![
        1 => Just(What::Sniffer),
        1 => Just(What::Multicast),
        1 => Just(What::All),
        6 => (0..6usize).prop_map(What::Normal),
    ];
    (what, 0..3u16, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(what, priority, dont_trap, own, is_own)| Wish {
            dont_trap: dont_trap && matches!(what, What::Normal(_)),
            what,
            priority,
            own,
            is_own,
        },
    )
}

/// Returns the indexes of the rules whose QPs should get the frame. Compares each rule with the one
/// that takes the frame.
fn expected(wishes: &[Wish], sayings: &[Said], frame: &Built, direction: Direction) -> Vec<usize> {
    let may = |wish: &Wish| direction != Direction::Sent && (!wish.is_own || wish.own);
    let fits = |wish: &Wish| match wish.what {
        What::Normal(number) => may(wish) && is_so(&sayings[number], frame),
        _ => false,
    };
    let traps = |wish: &&Wish| fits(wish) && !wish.dont_trap;
    let best = wishes.iter().filter(traps).map(|wish| wish.priority).min();
    let winner = wishes
        .iter()
        .filter(traps)
        .find(|wish| Some(wish.priority) == best);
    let gets = |wish: &Wish| match (&wish.what, winner) {
        (What::Sniffer, _) => direction != Direction::Looped,
        (What::Normal(_), None) => fits(wish),
        (What::Normal(_), Some(winner)) if wish.dont_trap => {
            fits(wish) && wish.priority <= winner.priority
        }
        (What::Normal(number), Some(winner)) => match winner.what {
            What::Normal(first) => {
                fits(wish)
                    && wish.priority == winner.priority
                    && meaning(&sayings[*number]) == meaning(&sayings[first])
            }
            _ => false,
        },
        (What::Multicast, None) => may(wish) && frame.dst[0] % 2 == 1,
        (What::All, None) => may(wish),
        (What::Multicast | What::All, Some(_)) => false,
    };
    (0..wishes.len()).filter(|&i| gets(&wishes[i])).collect()
}

/// Returns the indexes of the rules whose QPs get the frame.
fn steered(wishes: &[Wish], sayings: &[Said], frame: &Frame, direction: Direction) -> Vec<usize> {
    let mut rules: Vec<(u32, usize, Rule)> = Vec::new();
    for (index, wish) in wishes.iter().enumerate() {
        let kind = match wish.what {
            What::Sniffer => Kind::Sniffer,
            What::Multicast => Kind::MulticastDefault,
            What::All => Kind::AllDefault,
            What::Normal(number) => Kind::Normal(pattern(&sayings[number])),
        };
        let rule = Rule::new(kind, wish.priority, wish.dont_trap, wish.own).unwrap();
        let taken = |number: &u32| rules.iter().any(|(other, ..)| other == number);
        let number = rule.indices().find(|number| !taken(number)).unwrap();
        rules.push((number, index, rule));
    }
    rules.sort_by_key(|(number, ..)| *number);
    let mut walk = Walk::new(frame, direction);
    let mut getters = Vec::new();
    for (_, index, rule) in &rules {
        match walk.visit(rule, wishes[*index].is_own) {
            Verdict::Take => getters.push(*index),
            Verdict::Pass => {}
            Verdict::End => break,
        }
    }
    getters.sort_unstable();
    getters
}

/// Removes the first tag if it is an 802.1Q tag, as a network device with VLAN offload does.
fn untagged(bytes: &[u8]) -> (Vec<u8>, Option<u16>) {
    match &bytes[12..] {
        [0x81, 0x00, a, b, ..] => {
            let rest = [&bytes[..12], &bytes[16..]].concat();
            (rest, Some(u16::from_be_bytes([*a, *b])))
        }
        _ => (bytes.to_vec(), None),
    }
}

fn first(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(HEADERS_MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_pattern_admits_frames_with_its_fields(frame in frames(), said in sayings()) {
        let parsed = Frame::parse(first(&frame.bytes()), None).unwrap();
        prop_assert_eq!(pattern(&said).admits(&parsed), is_so(&said, &frame));
    }

    #[test]
    fn a_tag_beside_the_frame_counts_as_one_in_it(frame in frames()) {
        let bytes = frame.bytes();
        let (rest, tag) = untagged(&bytes);
        prop_assert_eq!(Frame::parse(&rest, tag), Frame::parse(&bytes, None));
    }

    #[test]
    fn truncation_removes_headers_but_changes_none(frame in frames(), length in 0..130usize) {
        let bytes = frame.bytes();
        let whole = Frame::parse(&bytes, None).unwrap();
        let Some(short) = Frame::parse(&bytes[..length.min(bytes.len())], None) else {
            prop_assert!(length < 14 + 4 * frame.tags.len());
            return Ok(());
        };
        prop_assert_eq!(short.ethernet, whole.ethernet);
        prop_assert!(short.network == whole.network || short.network == frame::Network::Other);
        let transports = [whole.transport, frame::Transport::Other];
        prop_assert!(transports.contains(&short.transport));
    }

    #[test]
    fn parsing_any_bytes_does_not_panic(bytes in some(any::<u8>(), 0..200), tag: Option<u16>) {
        Frame::parse(&bytes, tag);
    }

    #[test]
    fn frames_go_to_the_rules_that_want_them(
        frame in frames(),
        sayings in some(sayings(), 6),
        wishes in some(wishes(), 0..12),
        direction in select(vec![Direction::Received, Direction::Sent, Direction::Looped]),
    ) {
        let parsed = Frame::parse(first(&frame.bytes()), None).unwrap();
        prop_assert_eq!(
            steered(&wishes, &sayings, &parsed, direction),
            expected(&wishes, &sayings, &frame, direction)
        );
    }
}

#[test]
fn a_layer_has_at_most_one_condition() {
    let ports = Match::new([0, 1, 0, 2], [0xff; PORTS_LEN]);
    let mut pattern = Pattern::default();
    pattern.add(Spec::Tcp(ports)).unwrap();
    assert_eq!(pattern.add(Spec::Udp(ports)), Err(RuleFault::Invalid));
    pattern
        .add(Spec::Ipv6(Match::new([0; IPV6_LEN], [0; IPV6_LEN])))
        .unwrap();
    let flags = |bits: u8| {
        let mut mask = [0; IPV4_LEN];
        mask[11] = bits;
        Spec::Ipv4(Match::new([0; IPV4_LEN], mask))
    };
    assert_eq!(pattern.add(flags(6)), Err(RuleFault::Invalid));
    assert_eq!(
        Pattern::default().add(flags(1)),
        Err(RuleFault::Unsupported)
    );
}

#[test]
fn only_normal_rules_may_have_dont_trap() {
    for kind in [Kind::Sniffer, Kind::MulticastDefault, Kind::AllDefault] {
        assert_eq!(Rule::new(kind, 0, true, false), Err(RuleFault::Invalid));
    }
    assert!(Rule::new(Kind::Normal(Pattern::default()), 0, true, false).is_ok());
}

#[test]
fn the_first_free_number_is_the_least_that_the_set_lacks() {
    let mut numbers = Numbers::default();
    for number in 0..MAX_RULES {
        assert_eq!(numbers.first_free(), Some(number));
        assert!(numbers.insert(number));
        assert!(!numbers.insert(number));
    }
    assert_eq!(numbers.first_free(), None);
    assert!(!numbers.insert(MAX_RULES));
    assert!(!numbers.insert(u32::MAX));
    let mut scattered = Numbers::default();
    assert!(scattered.insert(64) && scattered.insert(0) && !scattered.insert(64));
    assert_eq!(scattered.first_free(), Some(1));
}
