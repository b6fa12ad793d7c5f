//! Fragments that come to `ct`, in any order and with lies, within small limits. Must hold:
//!
//! * nothing panics, and limits are kept;
//! * each fragment that is held comes out once, and the counts say how;
//! * a whole datagram can be joined, has the lengths that its header says, and is a fragment no
//!   more; the tracker takes it.
//!
//! Input: records of [`RECORD`] bytes, see [`Record::read`].
#![no_main]

use conntrack::fragments::{
    self, Fragments, LEAST_MINIMUM, OVERDUE_MS, Outcome, ReassemblyContext,
};
use conntrack::{Request, Tracker, state};
use libfuzzer_sys::fuzz_target;
use packet::checksum::ipv4_header;
use packet::fragment::{Fragment, join_bytes};
use packet::parse::parse_frame;
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use std::collections::HashSet;

const RECORD: usize = 8;
const MOST: u32 = 12;
const BUFFERS: u64 = 20;

/// A fragment, and what is done before it comes.
struct Record {
    v6: bool,
    more: bool,
    /// Whether its payload begins with a UDP header that fits so many bytes.
    is_long: bool,
    house: u8,
    place: ReassemblyContext,
    holder: u64,
    offset: u16,
    id: u8,
    source: u8,
    length: u16,
    options: u8,
    step_ms: u64,
    setting: u8,
}

impl Record {
    /// Takes a record off `input`: flags and housekeeping; place and holder; offset (two bytes);
    /// source, identification and options; length; time; a value to set.
    fn read(input: &mut &[u8]) -> Option<Record> {
        let (record, rest) = input.split_first_chunk()?;
        *input = rest;
        let [flags, place, high, low, who, length, time, setting]: [u8; RECORD] = *record;
        Some(Record {
            v6: flags & 1 != 0,
            more: flags & 2 != 0,
            is_long: flags & 4 != 0,
            house: flags >> 4,
            place: ReassemblyContext {
                bridge: (place & 1).into(),
                pass: (place >> 1 & 1).into(),
                zone: (place >> 2 & 1).into(),
            },
            holder: (place >> 4 & 3).into(),
            offset: u16::from_be_bytes([high, low]) & 0xfff8,
            id: who & 3,
            source: who >> 2 & 3,
            length: u16::from(length) * if flags & 8 != 0 { 200 } else { 8 },
            options: if who & 0x80 != 0 { 8 } else { 0 },
            step_ms: u64::from(time) * u64::from(time),
            setting,
        })
    }

    fn frame(&self) -> HeapFrame {
        let mut bytes = vec![2; 12];
        if self.v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(self.length.saturating_add(8).to_be_bytes());
            bytes.extend([44, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.source]);
            bytes.extend([0xfd; 16]);
            bytes.extend([17, 0]);
            bytes.extend((self.offset | u16::from(self.more)).to_be_bytes());
            bytes.extend([0, 0, 0, self.id]);
        } else {
            let header = 20 + self.options;
            bytes.extend([0x08, 0x00, 0x40 | header / 4, 0]);
            let total = self.length.saturating_add(header.into());
            bytes.extend(total.to_be_bytes());
            bytes.extend([0, self.id]);
            let place = self.offset / 8 | if self.more { 0x2000 } else { 0 };
            bytes.extend(place.to_be_bytes());
            bytes.extend([64, 17, 0, 0, 10, 0, 0, self.source, 10, 0, 0, 9]);
            bytes.extend(vec![1; self.options.into()]);
            let checksum = ipv4_header(&bytes[14..]);
            bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
        let start = bytes.len();
        bytes.resize(start + usize::from(self.length), self.setting);
        if let Some(header) = bytes[start..].first_chunk_mut::<8>()
            && self.offset == 0
        {
            // IPv4 need not have a checksum.
            let times = if self.is_long { 2 } else { 1 };
            let [high, low] = self.length.wrapping_mul(times).to_be_bytes();
            *header = [0, 5, 0, 6, high, low, 0, 0];
        }
        HeapFrame::new(&bytes)
    }
}

/// What waits, as numbers, and the frames.
struct Inside {
    waiting: HashSet<u32>,
    came: u64,
}

impl Inside {
    fn gone(&mut self, held: impl IntoIterator<Item = (u32, HeapFrame)>) -> u64 {
        let mut count = 0;
        for (number, _) in held {
            assert!(self.waiting.remove(&number));
            count += 1;
        }
        count
    }
}

/// Tracks a datagram whose fragments are all there.
fn whole(tracker: &Tracker, all: &[(Fragment, (u32, HeapFrame))], zone: u16, now_ms: u64) {
    let frames = all.iter().map(|(fragment, (_, frame))| (fragment, frame));
    let bytes = join_bytes(frames).expect("all is there");
    let payload: usize = all.iter().map(|(fragment, _)| fragment.length).sum();
    assert!(bytes.len() > payload);
    let mut frame = HeapFrame::new(&bytes);
    assert_eq!(Fragment::read(&mut frame), Ok(None));
    let mut key = FlowKey::ZERO;
    let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
    assert!(layers.malformed.is_none() || layers.end as usize <= frame.len());
    let request = Request {
        zone,
        commit: true,
        ..Request::default()
    };
    let tracked = tracker.track(&frame, &layers, &request, now_ms);
    assert_ne!(tracked.state & state::TRACKED, 0);
}

fuzz_target!(|data: &[u8]| {
    let mut input = data;
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let mut table: Fragments<(u32, HeapFrame)> = Fragments::default();
    table.set_most(MOST).expect("in range");
    table.set_most_buffers(BUFFERS);
    for v6 in [false, true] {
        table.set_minimum(v6, LEAST_MINIMUM).expect("in range");
    }
    let mut inside = Inside {
        waiting: HashSet::new(),
        came: 0,
    };
    let (mut now_ms, mut number) = (1_000_000, 0);
    let (mut completed, mut expired, mut purged) = (0, 0, 0);
    while let Some(record) = Record::read(&mut input) {
        now_ms += record.step_ms;
        match record.house {
            1 | 2 => expired += inside.gone(table.expire(now_ms, record.setting.into())),
            3 => purged += inside.gone(table.purge_overdue(now_ms)),
            4 if record.setting == 0 => purged += inside.gone(table.purge()),
            5 => table.set_enabled(record.v6, record.setting & 1 != 0),
            6 => {
                let bytes = u32::from(record.setting) * 4;
                assert_eq!(table.set_minimum(record.v6, bytes).is_ok(), bytes >= LEAST_MINIMUM);
            }
            _ => {}
        }
        number += 1;
        let mut frame = record.frame();
        let Ok(Some(fragment)) = Fragment::read(&mut frame) else {
            continue;
        };
        let buffers = 1 + u32::from(record.setting & 3);
        let request = fragments::Request {
            place: record.place,
            holder: record.holder,
            buffers,
            makes_room: record.setting & 4 == 0,
        };
        let mut is_held = false;
        let offer = table.offer(&fragment, &request, now_ms, || {
            is_held = true;
            (number, frame)
        });
        assert_eq!(is_held, !matches!(offer.outcome, Outcome::Refused(_)));
        if is_held {
            inside.came += 1;
            assert!(inside.waiting.insert(number));
        }
        expired += inside.gone(offer.ended);
        if let Outcome::Whole(all) = offer.outcome {
            whole(&tracker, &all, request.place.zone, now_ms);
            completed += inside.gone(all.into_iter().map(|(_, held)| held));
        }
        let status = table.status();
        assert!(status.held <= MOST);
        assert_eq!(status.held as usize, inside.waiting.len());
        assert_eq!(table.due_ms().is_some(), status.held > 0);
        assert_eq!(table.waiting(None, 1).is_empty(), status.held == 0);
        let (v4, v6) = (status.v4.counts, status.v6.counts);
        assert_eq!(v4.accepted + v6.accepted, inside.came);
        assert_eq!(v4.completed + v6.completed, completed);
        assert_eq!(v4.expired + v6.expired, expired);
        assert_eq!(v4.purged + v6.purged, purged);
        assert_eq!(inside.came, completed + expired + purged + u64::from(status.held));
    }
    now_ms += 20_000;
    match data.len() % 2 {
        0 => inside.gone(table.expire(now_ms, usize::MAX)),
        _ => inside.gone(table.purge_overdue(now_ms + OVERDUE_MS)),
    };
    assert!(inside.waiting.is_empty());
    assert_eq!(table.status().held, 0);
});
