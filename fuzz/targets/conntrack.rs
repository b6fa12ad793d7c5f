//! Packets with any contents are tracked, with any requests, by one tracker with small limits.
//! Must hold:
//!
//! * nothing panics, and the limits are kept;
//! * the counts of connections are those of a dump, and no two connections share a tuple;
//! * translating what an error quotes changes no length; a packet that a helper has rewritten is
//!   what its headers say;
//! * what helpers expect is bounded;
//! * nothing is left after a flush of everything, nor after all timeouts.
//!
//! Input: records of [`HEADER`] bytes, see [`Record::read`], and a frame. Transport checksums count
//! as verified and the IPv4 header's is corrected unless the record says otherwise, so that
//! mutations reach what is behind them.
#![no_main]

use conntrack::{
    Counter, Cursor, Direction, Filter, Helper, Masked, Nat, Policy, Range, Request, Timeout, Tracker,
    state, text,
};
use libfuzzer_sys::fuzz_target;
use packet::checksum::ipv4_header;
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, Offload, WordSet};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const LIMIT: usize = 12;
/// Limit of zone 1.
const ZONE_LIMIT: u32 = 3;
const ZONES: u8 = 4;
const HEADER: usize = 6;
const MAX_RECORDS: usize = 64;

/// One packet and what is asked for it.
struct Record {
    commit: bool,
    force: bool,
    /// Whether checksums are as the input says.
    raw: bool,
    /// Track it once more, as behind an earlier `ct` action.
    again: bool,
    v6: bool,
    mark: u32,
    zone: u16,
    nat: u8,
    /// What is done before: see [`keep_house`].
    house: u8,
    step_ms: u64,
    range: u8,
    frame: Vec<u8>,
    cut: usize,
}

impl Record {
    /// Takes a record off `input`: flags; zone (2 bits), kind of translation (3) and housekeeping
    /// (3); time as mantissa and exponent (4 bits each); the range of translation; where the second
    /// segment begins; and the frame's length. None at the end.
    fn read(input: &mut &[u8]) -> Option<Record> {
        let (header, rest) = input.split_first_chunk()?;
        let [flags, what, time, range, cut, length]: [u8; HEADER] = *header;
        let (frame, rest) = rest.split_at(rest.len().min(length.into()));
        *input = rest;
        Some(Record {
            commit: flags & 1 != 0,
            force: flags & 2 != 0,
            raw: flags & 4 != 0,
            again: flags & 8 != 0,
            v6: flags & 16 != 0,
            mark: u32::from(flags >> 5),
            zone: u16::from(what % ZONES),
            nat: what >> 2 & 7,
            house: what >> 5,
            step_ms: u64::from(time & 15) << (time >> 4),
            range,
            cut: cut.into(),
            frame: frame.to_vec(),
        })
    }

    /// Returns what `nat` asks for. Ranges may be empty, or of another family than the packet.
    fn nat(&self) -> Option<Nat> {
        let direction = match self.nat {
            0 => return None,
            1 => return Some(Nat::default()),
            kind if kind & 1 == 0 => Direction::Source,
            _ => Direction::Destination,
        };
        let ip = |last: u8| -> IpAddr {
            match self.v6 {
                true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0xffff, 0xffff, 0xffff, last.into()).into(),
                false => Ipv4Addr::new(10, 0, 0, last).into(),
            }
        };
        let (first, more) = (self.range & 7, self.range >> 3 & 3);
        let port = 80 + u16::from(self.range >> 5 & 1);
        let ports = (port, port + 1 - u16::from(self.range >> 6 & 1) * 2);
        Some(Nat {
            direction: Some(direction),
            range: (self.nat >= 4).then(|| Range {
                min: ip(first),
                max: ip((first + more) & 7),
                ports: (self.nat >= 6).then_some(ports),
            }),
            persistent: self.range & 0x80 != 0,
            hash: false,
            random: self.mark & 1 != 0,
        })
    }

    /// Returns the helper of connections that are committed.
    fn helper(&self) -> Option<Helper> {
        match self.house {
            6 => Some(Helper::Ftp),
            7 => Some(Helper::Tftp),
            _ => None,
        }
    }

    /// Returns the frame and its layers.
    fn parsed(&self) -> (HeapFrame, Layers) {
        let mut bytes = self.frame.clone();
        let mut key = FlowKey::ZERO;
        let read = |bytes: &[u8], key: &mut FlowKey| {
            parse_frame(&mut HeapFrame::new(bytes), 1, WordSet::MINI_KEY, key)
        };
        let mut layers = read(&bytes, &mut key);
        let l3 = usize::from(layers.l3);
        if !self.raw && bytes.get(l3).is_some_and(|byte| byte >> 4 == 4) {
            let end = l3 + usize::from(bytes[l3] & 15) * 4;
            if end >= l3 + 20 && end <= bytes.len() {
                bytes[l3 + 10..l3 + 12].fill(0);
                let sum = ipv4_header(&bytes[l3..end]);
                bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
                layers = read(&bytes, &mut key);
            }
        }
        let (head, tail) = bytes.split_at(self.cut.min(bytes.len()));
        let mut frame = HeapFrame::with_segments(&[head, tail]);
        frame.set_offload(Offload {
            checksum_valid: !self.raw,
            ..Offload::default()
        });
        (frame, layers)
    }
}

fn flush(tracker: &Tracker, filter: &Filter) {
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.flush(filter, at, 5).next;
    }
}

fn keep_house(tracker: &Tracker, record: &Record, now_ms: u64) {
    let zone = record.zone;
    match record.house {
        1 => drop(tracker.expire(now_ms, record.range.into())),
        2 => {
            let mut filter = Filter {
                zone: Some(zone),
                ..Filter::default()
            };
            filter.original.protocol = (record.range != 0).then_some(record.range);
            flush(tracker, &filter);
        }
        3 => tracker.set_sequence_checking(record.range & 1 != 0),
        4 => {
            let mut policy = Policy::default();
            let timeout = Timeout::ALL[usize::from(record.range) % Timeout::ALL.len()];
            policy.set(timeout, u32::from(record.range >> 4));
            tracker.set_policy(zone, record.force.then_some(policy));
        }
        5 => while !tracker.expire(now_ms, 10) {},
        _ => {}
    }
}

/// Compares the counts with a dump, and looks for tuples that two connections have.
fn check(tracker: &Tracker, now_ms: u64) {
    let mut by_zone = [0_u32; ZONES as usize];
    let mut tuples = HashSet::new();
    let (mut count, mut cursor) = (0, Some(Cursor::default()));
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 3, |connection| {
            count += 1;
            by_zone[usize::from(connection.zone)] += 1;
            let (zone, original, reply) = (connection.zone, connection.original, connection.reply);
            assert!(tuples.insert((zone, original)), "{original:?}");
            // From an end to itself: the only one that is its own reply.
            assert!(
                original == reply || tuples.insert((zone, reply)),
                "{reply:?}"
            );
            assert!(!text::line(connection, now_ms, true, true).is_empty());
        });
    }
    assert_eq!(tracker.count(), count);
    assert_eq!(tracker.bucket_counts().iter().sum::<usize>(), count);
    assert!(count <= LIMIT);
    assert!(tracker.expected() <= 8 * count);
    for (zone, count) in (0..).zip(by_zone) {
        assert_eq!(tracker.zone_count(zone), count);
        assert!(zone != 1 || count <= ZONE_LIMIT);
    }
    let counters = tracker.counters();
    let ended = [
        Counter::Expired,
        Counter::Flushed,
        Counter::Evicted,
        Counter::Replaced,
    ];
    let ended: u64 = ended.into_iter().map(|reason| counters.get(reason)).sum();
    assert_eq!(counters.get(Counter::Created) - ended, count as u64);
}

fuzz_target!(|data: &[u8]| {
    let mut input = data;
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    tracker.set_limit(LIMIT);
    tracker.set_zone_limit(Some(1), ZONE_LIMIT);
    let mut now_ms = 1_000_000;
    for _ in 0..MAX_RECORDS {
        let Some(record) = Record::read(&mut input) else {
            break;
        };
        now_ms += record.step_ms;
        keep_house(&tracker, &record, now_ms);
        let (mut frame, mut layers) = record.parsed();
        let nat = record.nat();
        let mask = if record.mark == 0 { 0 } else { u32::MAX };
        let request = Request {
            zone: record.zone,
            commit: record.commit,
            force: record.force,
            mark: Masked {
                value: record.mark,
                mask,
            },
            nat: nat.as_ref(),
            helper: record.helper(),
            ..Request::default()
        };
        let tracked = tracker.track(&frame, &layers, &request, now_ms);
        assert_ne!(tracked.state & state::TRACKED, 0);
        assert!(tracked.original.is_some() || tracked.state & state::INVALID != 0);
        let length = frame.len();
        Tracker::translate_inner(&mut frame, &layers, &tracked.translation);
        assert_eq!(frame.len(), length);
        if let Some(rewrite) = &tracked.rewrite {
            let padding = frame.len() - layers.end as usize;
            if Tracker::rewrite(&mut frame, &mut layers, rewrite) {
                assert_eq!(frame.len(), layers.end as usize + padding);
            } else {
                assert_eq!(frame.len(), length);
            }
        }
        if record.again {
            tracker.track_again(&frame, &layers, tracked.earlier(request.nat.is_some()), &request, now_ms);
        }
        check(&tracker, now_ms);
    }
    if data.len() % 2 == 0 {
        flush(&tracker, &Filter::default());
    } else {
        now_ms += 100_000_000;
        while !tracker.expire(now_ms, 7) {}
    }
    assert_eq!(tracker.count(), 0);
    check(&tracker, now_ms);
});
