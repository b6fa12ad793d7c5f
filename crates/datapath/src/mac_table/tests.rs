//! Tests the table against a reference made of plain collections, and readers against a writer.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// The reference: the same rules, one list in order of last use.
struct Reference {
    size: usize,
    /// (address, VLAN, port, static, second), the latest last.
    entries: Vec<(Mac, u16, u32, bool, u32)>,
    evicted: u64,
    moved: u64,
    learned: u64,
}

impl Reference {
    fn lookup(&self, mac: Mac, vlan: u16) -> Option<u32> {
        let found = self
            .entries
            .iter()
            .find(|entry| (entry.0, entry.1) == (mac, vlan));
        found.map(|entry| entry.2)
    }

    /// Makes room; returns false when only static entries are left. The port that loses one must be
    /// given, because of two ports with equally many either may.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.size {
            return true;
        }
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for entry in self.entries.iter().filter(|entry| !entry.3) {
            *counts.entry(entry.2).or_default() += 1;
        }
        let Some((_, port)) = counts.iter().map(|(port, count)| (*count, *port)).max() else {
            return false;
        };
        let at = self
            .entries
            .iter()
            .position(|entry| !entry.3 && entry.2 == port)
            .unwrap();
        self.entries.remove(at);
        self.evicted += 1;
        true
    }

    fn learn(&mut self, mac: Mac, vlan: u16, port: u32, second: u32) {
        if mac[0] & 1 == 1 {
            return;
        }
        if let Some(at) = self
            .entries
            .iter()
            .position(|entry| (entry.0, entry.1) == (mac, vlan))
        {
            let old = self.entries[at];
            if old.3 || (old.2 == port && old.4 == second) {
                return;
            }
            self.moved += u64::from(old.2 != port);
            self.entries.remove(at);
            self.entries.push((mac, vlan, port, false, second));
        } else if self.make_room() {
            self.learned += 1;
            self.entries.push((mac, vlan, port, false, second));
        }
    }

    fn add_static(&mut self, mac: Mac, vlan: u16, port: u32) -> bool {
        self.entries
            .retain(|entry| (entry.0, entry.1) != (mac, vlan));
        let room = self.make_room();
        if room {
            self.entries.push((mac, vlan, port, true, 0));
        }
        room
    }
}

#[derive(Clone, Debug)]
enum Step {
    Learn {
        mac: u32,
        multicast: bool,
        vlan: u16,
        port: u32,
    },
    Lookup {
        mac: u32,
        vlan: u16,
    },
    Static {
        mac: u32,
        vlan: u16,
        port: u32,
    },
    Delete {
        mac: u32,
        vlan: u16,
    },
    Flush {
        port: Option<u32>,
    },
    Wait {
        seconds: u32,
    },
    Expire,
    Resize {
        size: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..40_u32, prop::bool::weighted(0.05), 0..3_u16, 0..4_u32)
            .prop_map(|(mac, multicast, vlan, port)| Step::Learn { mac, multicast, vlan, port }),
        6 => (0..40_u32, 0..3_u16).prop_map(|(mac, vlan)| Step::Lookup { mac, vlan }),
        1 => (0..40_u32, 0..3_u16, 0..4_u32).prop_map(|(mac, vlan, port)| Step::Static { mac, vlan, port }),
        1 => (0..40_u32, 0..3_u16).prop_map(|(mac, vlan)| Step::Delete { mac, vlan }),
        1 => prop::option::of(0..4_u32).prop_map(|port| Step::Flush { port }),
        3 => (0..8_u32).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Expire),
        1 => (30..40_usize).prop_map(|size| Step::Resize { size }),
    ];
    prop::collection::vec(step, 1..200)
}

const AGING: u32 = 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_table_does_as_its_reference(steps in steps()) {
        let mut table = MacTable::new(30);
        let mut reference = Reference { size: 30, entries: Vec::new(), evicted: 0, moved: 0, learned: 0 };
        let mut now = 1;
        for step in steps {
            match step {
                Step::Learn { mac: number, multicast, vlan, port } => {
                    let mut address = mac(number);
                    address[0] |= u8::from(multicast);
                    table.learn(address, vlan, port, now);
                    reference.learn(address, vlan, port, now);
                }
                Step::Lookup { mac: number, vlan } => {
                    prop_assert_eq!(table.lookup(mac(number), vlan), reference.lookup(mac(number), vlan));
                }
                Step::Static { mac: number, vlan, port } => {
                    let done = table.add_static(mac(number), vlan, port);
                    prop_assert_eq!(done, reference.add_static(mac(number), vlan, port));
                }
                Step::Delete { mac: number, vlan } => {
                    let before = reference.entries.len();
                    reference.entries.retain(|entry| (entry.0, entry.1) != (mac(number), vlan));
                    prop_assert_eq!(table.delete(mac(number), vlan), reference.entries.len() < before);
                }
                Step::Flush { port } => {
                    table.flush(port, false);
                    reference.entries.retain(|entry| entry.3 || port.is_some_and(|port| port != entry.2));
                }
                Step::Wait { seconds } => now += seconds,
                Step::Expire => {
                    table.expire(now, AGING);
                    reference.entries.retain(|entry| entry.3 || now - entry.4 < AGING);
                }
                Step::Resize { size } if size >= reference.size => {
                    table = table.resized(size);
                    reference.size = size;
                    // Copying sorts by the second of last use; within one second the order is
                    // undefined.
                    reference.entries.sort_by_key(|entry| entry.4);
                    table.flush(None, false);
                    reference.entries.retain(|entry| entry.3);
                }
                Step::Resize { .. } => {}
            }
            let stats = table.stats();
            prop_assert_eq!(stats.current, reference.entries.len());
            prop_assert_eq!((stats.learned, stats.evicted, stats.moved), (reference.learned, reference.evicted, reference.moved));
        }
        let mut all: Vec<_> = table.entries(now).iter().map(|entry| (entry.mac, entry.vlan, entry.port, entry.age)).collect();
        let mut expected: Vec<_> =
            reference.entries.iter().map(|entry| (entry.0, entry.1, entry.2, (!entry.3).then(|| now - entry.4))).collect();
        all.sort();
        expected.sort();
        prop_assert_eq!(all, expected);
    }
}

#[test]
fn a_smaller_table_keeps_the_latest() {
    let table = MacTable::new(100);
    for number in 0..100 {
        table.learn(mac(number), 0, 1, number);
    }
    table.add_static(mac(0), 0, 2);
    let small = table.resized(10);
    assert_eq!(small.stats().current, 10);
    assert_eq!(small.lookup(mac(0), 0), Some(2));
    assert_eq!(small.lookup(mac(99), 0), Some(1));
    assert_eq!(small.lookup(mac(91), 0), Some(1));
    assert_eq!(small.lookup(mac(90), 0), None);
}

#[test]
fn readers_never_see_a_port_that_an_address_was_not_on() {
    // Each address is only ever on the port that its number determines; the table is small, so
    // entries are reused all the time.
    let table = Arc::new(MacTable::new(64));
    let stop = Arc::new(AtomicBool::new(false));
    let hits = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2_u32)
        .map(|reader| {
            let (table, stop, hits) = (Arc::clone(&table), Arc::clone(&stop), Arc::clone(&hits));
            std::thread::spawn(move || {
                let mut number = reader;
                while !stop.load(Ordering::Relaxed) {
                    number = (number + 1) % 256;
                    if let Some(port) = table.lookup(mac(number), 5) {
                        assert_eq!(port, number, "of another address");
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for turn in turns(&hits) {
        let number = turn.wrapping_mul(2_654_435_761) >> 24;
        table.learn(mac(number), 5, number, turn / 1000);
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(hits.load(Ordering::Relaxed) > 0);
}

/// Returns a writer's iterations: many, and more for as long as its readers have found nothing,
/// which may not have had a processor yet.
fn turns(met: &AtomicU64) -> impl Iterator<Item = u32> {
    let more = |turn: &u32| *turn < 200_000 || met.load(Ordering::Relaxed) == 0;
    (0..50_000_000).take_while(more)
}

/// The same by runs, while the writer refreshes, moves, removes and fixes what they learn.
#[test]
fn runs_never_see_a_port_that_an_address_was_not_on() {
    const NUMBERS: u32 = 96;
    let word = |number: u32| {
        let [a, b, c, d, e, f] = mac(number);
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    };
    let table = Arc::new(MacTable::new(64));
    let stop = Arc::new(AtomicBool::new(false));
    let met = Arc::new(AtomicU64::new(0));
    let runners: Vec<_> = (0..2_u32)
        .map(|runner| {
            let (table, stop, met) = (Arc::clone(&table), Arc::clone(&stop), Arc::clone(&met));
            std::thread::spawn(move || {
                let (mut second, mut own) = (0, runner);
                while !stop.load(Ordering::Relaxed) {
                    (second, own) = (second + 1, (own + 7) % NUMBERS);
                    let mut stations = Stations::new();
                    for step in 0..RUN_MAX as u32 {
                        let to = table.station(word((own + step) % NUMBERS), 5);
                        stations.push(table.station(word(own), 5), to);
                    }
                    let mut found = [NOWHERE; RUN_MAX];
                    let count = table.meet(&stations, own, second, &mut found);
                    for (step, port) in found[..count].iter().enumerate() {
                        let number = (own + step as u32) % NUMBERS;
                        assert!(*port == NOWHERE || *port == number, "of another address");
                    }
                    met.fetch_add(count as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for turn in turns(&met) {
        let number = turn.wrapping_mul(2_654_435_761) % NUMBERS;
        match turn % 1024 {
            0 => table.flush(None, true),
            1 => drop(table.add_static(mac(number), 5, number)),
            _ => table.learn(mac(number), 5, number, turn / 100),
        }
    }
    stop.store(true, Ordering::Relaxed);
    for runner in runners {
        runner.join().unwrap();
    }
    assert!(met.load(Ordering::Relaxed) > 0);
}

/// A frame's source and destination, if any.
type Frame = (Option<u32>, Option<u32>);

fn runs() -> impl Strategy<Value = Vec<(u32, u32, Vec<Frame>)>> {
    let number = || prop::option::weighted(0.9, 0..24_u32);
    let frames = prop::collection::vec((number(), number()), 0..RUN_MAX);
    // The port is most often that of the run before; otherwise addresses would only move.
    let port = prop_oneof![4 => Just(0_u32), 1 => Just(1)];
    let wait = prop_oneof![3 => Just(0_u32), 1 => 1..3_u32];
    prop::collection::vec((port, wait, frames), 1..30)
}

proptest! {
    #[test]
    fn a_run_does_as_its_frames_one_by_one(runs in runs(), size in 10..40_usize) {
        let (table, reference) = (MacTable::new(size), MacTable::new(size));
        let mut now = 1;
        for (port, wait, frames) in runs {
            now += wait;
            let address = |number: u32| u64::from_le_bytes({
                let [a, b, c, d, e, f] = mac(number);
                [a, b, c, d, e, f, 0, 0]
            });
            let mut stations = Stations::new();
            for (from, to) in &frames {
                // Even addresses are in one VLAN and the others in another.
                let station = |number: Option<u32>| {
                    number.map_or(NOBODY, |number| table.station(address(number), number as u16 % 2))
                };
                stations.push(station(*from), station(*to));
            }
            let mut seen = Vec::new();
            while stations.left() > 0 {
                let mut found = [NOWHERE; RUN_MAX];
                let met = table.meet(&stations, port, now, &mut found);
                seen.extend(found[..met].iter().map(|found| (*found != NOWHERE).then_some(*found)));
                if let Some((from, to)) = frames.get(seen.len()) {
                    if let Some(from) = from {
                        table.learn(mac(*from), *from as u16 % 2, port, now);
                    }
                    seen.push(to.and_then(|to| table.lookup(mac(to), to as u16 % 2)));
                }
                stations.advance(met + 1);
            }
            for (index, (from, to)) in frames.iter().enumerate() {
                if let Some(from) = from {
                    reference.learn(mac(*from), *from as u16 % 2, port, now);
                }
                prop_assert_eq!(seen[index], to.and_then(|to| reference.lookup(mac(to), to as u16 % 2)), "frame {}", index);
            }
            prop_assert_eq!(table.entries(now), reference.entries(now));
            prop_assert_eq!(table.stats(), reference.stats());
        }
    }
}
