//! Compares the XDP program with its references: parsing with `softirq::parse`, lookup with
//! `steer::table`, choices with `steer::ranking`. It runs in the kernel, on frames without a device
//! (BPF_PROG_TEST_RUN), so these tests need root; otherwise they say so and pass.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use softirq::clock::now_ns;
use softirq::key::Key;
use softirq::layout::{self, Entry, NONE, Placement};
use softirq::parse::{self, Layout, Reading};
use softirq::program::{Constants, Limits, Program, Published, rankings};
use std::cell::{Cell, RefCell};
use steer::cores::{CoreId, CoreTable, Load, Sample, VmId};
use steer::policy::{Basis, Decision, Request};
use steer::ranking::{Live, Rankings};
use steer::settings::Settings;
use steer::table::{EntrySpec, FlowTable, Limits as TableLimits, Match, Scope, Target};

const CPUS: u32 = 8;
const SEED: u64 = 0x1234_5678_9abc_def0;
const BYTES: usize = layout::KEY_BYTES;
const XDP_PASS: u32 = 2;

fn constants(layout: Layout, strip: bool) -> Constants {
    Constants {
        choice_age_ns: 3_600_000_000_000,
        least_wait_ns: 1,
        layout,
        trusted: true,
        strip,
        vxlan_port: 4789,
        seed: SEED,
    }
}

fn reading(layout: Layout) -> Reading {
    Reading {
        layout,
        trusted: true,
        vxlan_port: 4789,
        in_port: 1,
    }
}

/// Returns the program, if the kernel lets this process load it.
fn program() -> Option<Program> {
    // SAFETY: the call takes nothing and only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not root: the program is not tested");
        return None;
    }
    // Frames are run on the processor of the caller, which must not change.
    // SAFETY: the set is plain data that the call only reads.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
    let limits = Limits {
        cpus: CPUS,
        entries: 256,
        flows: 1024,
    };
    Some(Program::load(limits, &constants(Layout::None, false)).unwrap())
}

fn entry(id: u64, slot: u32, target: u8) -> Entry {
    Entry {
        id,
        slot,
        expected: 10_000,
        core: 3,
        precedence: 7,
        vm: 0,
        has_vm: 0,
        priority: 0,
        target,
        overrides: 0,
        zero: 0,
    }
}

fn bytes(count: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), count)
}

/// Generates a transport header of a protocol, and what follows.
fn transport(inside: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = (u8, Vec<u8>)> {
    let protocol = prop_oneof![
        4 => Just(17_u8), 2 => Just(6), 1 => Just(1), 1 => Just(58), 1 => Just(132), 1 => Just(50),
        1 => any::<u8>(),
    ];
    let port = prop_oneof![Just(4789_u16), any::<u16>()];
    (
        protocol,
        bytes(8),
        port,
        prop_oneof![3 => Just(8_u8), 1 => any::<u8>()],
        bytes(7),
        inside,
    )
        .prop_map(|(protocol, mut head, port, flags, rest, inside)| {
            head[2..4].copy_from_slice(&port.to_be_bytes());
            if protocol == 17 && port == 4789 {
                head.push(flags);
                head.extend(rest);
            }
            head.extend(inside);
            (protocol, head)
        })
}

fn ipv4(inside: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = (u16, Vec<u8>)> {
    let fragment =
        prop_oneof![6 => Just(0_u16), 1 => Just(0x4000), 1 => Just(0x2000), 1 => any::<u16>()];
    let options = prop_oneof![4 => Just(5_u8), 1 => 0..16_u8];
    (any::<u8>(), fragment, options, bytes(60), transport(inside)).prop_map(
        |(tos, fragment, length, mut head, (protocol, inside))| {
            head[0] = 0x40 | length;
            head[1] = tos;
            head[6..8].copy_from_slice(&fragment.to_be_bytes());
            head[9] = protocol;
            head.truncate(usize::from(length.max(5)) * 4);
            head.extend(inside);
            (0x0800, head)
        },
    )
}

fn ipv6(inside: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = (u16, Vec<u8>)> {
    let extension = prop_oneof![Just(0_u8), Just(43), Just(60), Just(51), Just(44)];
    let extensions = prop::collection::vec((extension, 0..3_u8, bytes(24)), 0..8);
    let extensions = prop_oneof![2 => Just(Vec::new()), 1 => extensions];
    (bytes(40), extensions, transport(inside)).prop_map(|(mut head, extensions, (last, inside))| {
        head[0] = 0x60 | (head[0] & 15);
        head[6] = extensions.first().map_or(last, |(kind, ..)| *kind);
        for (at, (kind, length, bytes)) in extensions.iter().enumerate() {
            let mut bytes = bytes.clone();
            bytes[0] = extensions.get(at + 1).map_or(last, |(kind, ..)| *kind);
            let whole = match kind {
                51 => {
                    bytes[1] = length * 2;
                    8 + usize::from(*length) * 8
                }
                44 => 8,
                _ => {
                    bytes[1] = *length;
                    8 + usize::from(*length) * 8
                }
            };
            bytes.truncate(whole);
            head.extend(bytes);
        }
        head.extend(inside);
        (0x86dd, head)
    })
}

/// VLAN tags: TPID and TCI.
type Tags = Vec<(u16, u16)>;

/// Generates a frame, perhaps tunnelled, with tags, truncated or with a byte changed.
fn frame(depth: u32) -> BoxedStrategy<Vec<u8>> {
    let inside = match depth {
        0 => bytes(20).boxed(),
        depth => frame(depth - 1),
    };
    let arp = (bytes(28), any::<bool>()).prop_map(|(mut arp, right)| {
        if right {
            arp[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        }
        (0x0806, arp)
    });
    let payload = prop_oneof![
        4 => ipv4(inside.clone()),
        3 => ipv6(inside),
        1 => arp,
        1 => (any::<u16>(), bytes(30)),
    ];
    let tag = (prop_oneof![Just(0x8100_u16), Just(0x88a8)], any::<u16>());
    let tags = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(tag, 0..4)];
    (bytes(12), tags, payload)
        .prop_map(
            |(mut frame, tags, (kind, payload)): (Vec<u8>, Tags, (u16, Vec<u8>))| {
                for (protocol, control) in tags {
                    frame.extend(protocol.to_be_bytes());
                    frame.extend(control.to_be_bytes());
                }
                frame.extend(kind.to_be_bytes());
                frame.extend(payload);
                frame
            },
        )
        .boxed()
}

fn some_frame() -> impl Strategy<Value = Vec<u8>> {
    let change = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    let cut = prop::option::weighted(0.3, any::<prop::sample::Index>());
    (frame(1), change, cut).prop_map(|(mut frame, change, cut)| {
        if let Some((at, value)) = change {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        if let Some(at) = cut {
            frame.truncate(at.index(frame.len()));
        }
        // The kernel runs no shorter frames.
        frame.resize(frame.len().max(14), 0);
        frame
    })
}

#[test]
fn the_program_reads_frames_as_the_reference_does() {
    let Some(program) = program().map(RefCell::new) else {
        return;
    };
    let layouts = [Layout::None, Layout::Dscp6, Layout::Tos8, Layout::Vlan];
    let ids = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(4000));
    let cases = (some_frame(), prop::sample::select(layouts.to_vec()));
    let result = runner.run(&cases, |(frame, layout)| {
        let mut program = program.borrow_mut();
        program.set_constants(&constants(layout, false));
        let key = parse::key(&frame, &reading(layout)).unwrap();
        // Matches only a packet with this very key.
        ids.set(ids.get() + 1);
        let id = ids.get();
        program.open_slot(0, id, NONE);
        let entry = entry(id, 0, layout::TARGET_FLOW);
        let matching = Match::new([0xff; BYTES], key);
        program
            .publish_entries(&[Published { matching, entry }])
            .unwrap();
        let run = program.test(&frame, 1).unwrap();
        prop_assert_eq!(run.verdict, XDP_PASS);
        prop_assert_eq!(&run.frame, &frame);
        prop_assert_eq!(program.slot(0).all_packets, 1, "key {:02x?}", key);
        let flow = program.slot(256);
        prop_assert_eq!(flow.flow, parse::flow(&key, SEED));
        prop_assert_eq!(flow.packets, 1);
        program.unlink_flow(flow.entry, flow.flow);
        program.vacate_slot(256);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn the_program_takes_the_flow_control_field_off() {
    let Some(mut program) = program() else {
        return;
    };
    let any = Match::new([0; BYTES], [0; BYTES]);
    let entry = entry(1, 0, layout::TARGET_CORE);
    program.open_slot(0, 1, NONE);
    program
        .publish_entries(&[Published {
            matching: any,
            entry,
        }])
        .unwrap();
    let mut ip = vec![
        0x45, 0, 0, 40, 1, 2, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    let checksum = |header: &[u8]| {
        let words = header
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    for (layout, keep) in [(Layout::Tos8, 0), (Layout::Dscp6, 3)] {
        program.set_constants(&constants(layout, true));
        for tos in 0..=255 {
            (ip[1], ip[10], ip[11]) = (tos, 0, 0);
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            for tags in [&[][..], &[0x81, 0, 0, 5]] {
                let frame = [&[2; 12], tags, &[8, 0], &ip[..], &[7; 20]].concat();
                let after = program.test(&frame, 1).unwrap().frame;
                let at = 14 + tags.len();
                assert_eq!(after.len(), frame.len());
                assert_eq!(after[at + 1], tos & keep, "{layout:?} {tos}");
                assert_eq!(checksum(&after[at..at + 20]), 0, "{layout:?} {tos}");
            }
            let mut six = vec![0x60 | tos >> 4, tos << 4 | 9, 1, 2];
            six.resize(60, 3);
            let frame = [&[2; 12], &[0x86, 0xdd][..], &six].concat();
            let after = program.test(&frame, 1).unwrap().frame;
            let left = after[14] << 4 | after[15] >> 4;
            assert_eq!((left, after[15] & 15), (tos & keep, 9), "{layout:?} {tos}");
        }
    }
    program.set_constants(&constants(Layout::Vlan, true));
    let frame = [&[2; 12], &[0x81, 0, 0x80, 5, 8, 0][..], &ip].concat();
    let after = program.test(&frame, 1).unwrap().frame;
    assert_eq!(after, [&[2; 12], &[8, 0][..], &ip].concat());
    // A tag without a virtual machine is kept.
    let frame = [&[2; 12], &[0x81, 0, 0x80, 0, 8, 0][..], &ip].concat();
    assert_eq!(program.test(&frame, 1).unwrap().frame, frame);
}

#[test]
fn the_program_finds_the_entry_that_the_table_finds() {
    let Some(program) = program().map(RefCell::new) else {
        return;
    };
    // Few positions and values, so that entries overlap and share masks.
    let masked = prop::collection::vec((0..4_usize, 0..3_u8), 0..4);
    let some = prop::collection::vec((masked, 0..3_u16), 0..24);
    let addresses = prop::collection::vec(prop::collection::vec(0..3_u8, 4), 1..8);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(400));
    let bases = Cell::new(0);
    let result = runner.run(&(some, addresses), |(some, addresses)| {
        let mut program = program.borrow_mut();
        let base = bases.get();
        bases.set(base + 1000);
        let mut cores = CoreTable::new(1, 0).unwrap();
        let mut table = FlowTable::<BYTES>::new(TableLimits::default());
        let mut published = Vec::new();
        for (places, precedence) in some {
            let (mut mask, mut value) = ([0; BYTES], [0; BYTES]);
            for (at, byte) in places {
                // The last byte of the destination address and its neighbours.
                mask[layout_at(at)] = 0xff;
                value[layout_at(at)] = byte;
            }
            let matching = Match::new(mask, value);
            let spec = EntrySpec {
                matching,
                precedence,
                target: Target::Choose(Scope::Entry),
                vm: None,
                priority: false,
                cookie: 0,
                idle_timeout_ns: None,
                hard_timeout_ns: None,
                notify: false,
            };
            let id = table.add(spec, &mut cores, 0).unwrap().number();
            let slot = id as u32;
            program.open_slot(slot, base + id, 0);
            let mut entry = entry(base + id, slot, layout::TARGET_ENTRY);
            entry.precedence = precedence;
            published.retain(|known: &Published| known.entry.id != base + id);
            published.push(Published { matching, entry });
        }
        program.publish_entries(&published).unwrap();
        let counts = |program: &Program| -> Vec<u64> {
            (0..24).map(|slot| program.slot(slot).all_packets).collect()
        };
        for address in addresses {
            let mut frame = vec![0; 34];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[30..34].copy_from_slice(&address);
            let key: Key = parse::key(&frame, &reading(Layout::None)).unwrap();
            let found = table.lookup(&key).map(|id| id.number() as usize);
            let before = counts(&program);
            program.test(&frame, 1).unwrap();
            let after = counts(&program);
            let met = (0..24).find(|slot| after[*slot] > before[*slot]);
            prop_assert_eq!(met, found);
        }
        Ok(())
    });
    result.unwrap();
}

/// Returns the offset in the key of a byte of an IPv4 frame's destination address.
fn layout_at(byte: usize) -> usize {
    softirq::key::OUTER + softirq::key::at::NW_DST + byte
}

/// What the program has placed since a ranking.
struct Since<'a> {
    cores: &'a CoreTable,
    before: &'a [Placement],
    now: Vec<Placement>,
}

impl Live for Since<'_> {
    fn placed(&self, core: CoreId) -> Load {
        let at = core.index();
        Load(self.now[at].load.wrapping_sub(self.before[at].load))
    }
    fn is_held(&self, core: CoreId) -> bool {
        let at = core.index();
        let more = self.now[at].priority != self.before[at].priority;
        self.cores.is_held(core) || (more && !self.cores.runs_vm(core))
    }
    fn held_cores(&self) -> u16 {
        self.cores.ids().filter(|core| self.is_held(*core)).count() as u16
    }
}

#[test]
fn the_program_makes_the_choices_of_the_policy() {
    let Some(program) = program().map(RefCell::new) else {
        return;
    };
    let load = prop_oneof![3 => 0..8_u32, 1 => 70..100_u32];
    let core = (load, 0..100_u32, prop::option::of(0..3_u16), any::<bool>());
    let cores = prop::collection::vec(core, 1..=CPUS as usize);
    let flow = (prop::option::of(0..3_u16), any::<bool>(), 0..30_u32);
    let flows = prop::collection::vec(flow, 1..24);
    let held = prop_oneof![Just(u16::MAX), 1..4_u16];
    let mut runner = TestRunner::new(ProptestConfig::with_cases(1000));
    let ids = Cell::new(0);
    let result = runner.run(
        &(cores, flows, held, prop::bool::weighted(0.05)),
        |(all, flows, held_cores, old)| {
            let mut program = program.borrow_mut();
            let settings = Settings {
                held_cores,
                ..Settings::default()
            };
            let mut cores = CoreTable::new(all.len() as u16, 0).unwrap();
            let samples: Vec<Sample> = all
                .iter()
                .map(|(load, yielding, ..)| Sample {
                    load: Load::percent(*load),
                    yielding: Load::percent(*load * *yielding / 100),
                })
                .collect();
            cores.sample(&samples, 0).unwrap();
            for (at, (.., vm, held)) in (0..).zip(&all) {
                if let Some(vm) = vm {
                    cores.vm_started(VmId(*vm), CoreId(at)).unwrap();
                }
                if *held {
                    hold(&mut cores, CoreId(at));
                }
            }
            let before = program.placements();
            let published = if old { 1 } else { now_ns() + 3_600_000_000_000 };
            let ranking = Rankings::publish(&cores, &settings, published);
            let cpus: Vec<u32> = (0..all.len() as u32).collect();
            program
                .publish_rankings(&rankings(&ranking, &cores, &cpus, &before))
                .unwrap();
            for (vm, priority, load) in flows {
                ids.set(ids.get() + 1);
                let id = ids.get();
                let request = Request {
                    vm: vm.map(VmId),
                    priority,
                };
                let live = Since {
                    cores: &cores,
                    before: &before,
                    now: program.placements(),
                };
                let decision = ranking.walk(request, &live, now_ns());
                let (core, basis) = match decision {
                    Decision::Use(core, basis) => (u32::from(core.0), basis),
                    // This thread's processor.
                    Decision::Stay(_) => (0, Basis::Stayed),
                };
                let basis = match basis {
                    Basis::Stayed => layout::BASIS_STAYED,
                    Basis::LeastLoad => layout::BASIS_LEAST,
                    Basis::Displacing => layout::BASIS_DISPLACING,
                    Basis::OwnCore => layout::BASIS_OWN,
                };
                program.open_slot(0, id, NONE);
                let mut entry = entry(id, 0, layout::TARGET_ENTRY);
                entry.expected = Load::percent(load).0;
                entry.priority = u8::from(priority);
                (entry.has_vm, entry.vm) = (u8::from(vm.is_some()), vm.unwrap_or(0));
                let matching = Match::new([0; BYTES], [0; BYTES]);
                program
                    .publish_entries(&[Published { matching, entry }])
                    .unwrap();
                program.test(&[0; 60], 1).unwrap();
                let slot = program.slot(0);
                prop_assert_eq!((slot.core, slot.basis), (core, basis), "{:?}", decision);
            }
            Ok(())
        },
    );
    result.unwrap();
}

/// Makes a core held, as by a priority flow on it.
fn hold(cores: &mut CoreTable, core: CoreId) {
    let mut table = FlowTable::<1>::new(TableLimits::default());
    let spec = EntrySpec {
        matching: Match::new([0], [0]),
        precedence: 0,
        target: Target::Choose(Scope::Entry),
        vm: None,
        priority: true,
        cookie: 0,
        idle_timeout_ns: None,
        hard_timeout_ns: None,
        notify: false,
    };
    let entry = table.add(spec, cores, 0).unwrap();
    let made = steer::table::Made {
        key: steer::table::ChoiceKey { entry, flow: None },
        core,
        basis: Basis::LeastLoad,
        made_ns: 0,
        used_ns: 0,
        load: Load::ZERO,
    };
    table.adopt(made, cores).unwrap();
}

/// A flood of single packets takes only a part of the flows' slots, and one entry's flows leave
/// some to other entries. Flows without a slot stay on their core.
#[test]
fn a_flood_leaves_slots_to_other_flows_and_entries() {
    let Some(_) = program() else {
        return;
    };
    const FLOWS: u32 = 1000;
    let limits = Limits {
        cpus: CPUS,
        entries: 2,
        flows: FLOWS,
    };
    let mut program = Program::load(limits, &constants(Layout::None, false)).unwrap();
    // Two entries, for frames of two Ethertypes.
    let published: Vec<Published> = [0x1111_u16, 0x2222]
        .into_iter()
        .zip(0..)
        .map(|(eth_type, slot)| {
            program.open_slot(slot, u64::from(slot) + 1, NONE);
            let (mut value, mut mask) = ([0; BYTES], [0; BYTES]);
            let at = softirq::key::OUTER + softirq::key::at::DL_TYPE;
            value[at..at + 2].copy_from_slice(&eth_type.to_be_bytes());
            mask[at..at + 2].fill(0xff);
            Published {
                matching: Match::new(value, mask),
                entry: entry(u64::from(slot) + 1, slot, layout::TARGET_FLOW),
            }
        })
        .collect();
    program.publish_entries(&published).unwrap();
    let send = |eth_type: u16, flow: u16| {
        let mut frame = [0; 60];
        frame[..2].copy_from_slice(&flow.to_be_bytes());
        frame[12..14].copy_from_slice(&eth_type.to_be_bytes());
        assert_eq!(program.test(&frame, 1).unwrap().verdict, XDP_PASS);
    };
    let counter = |name| {
        let counters = program.counters().unwrap();
        counters.iter().find(|(known, _)| *known == name).unwrap().1
    };
    let held = |slot: u32| program.slot(slot).flows;
    // A fifth of all slots is a quarter of those left: from then on a flow must be seen twice.
    (0..5000).for_each(|flow| send(0x1111, flow));
    assert_eq!(held(0), FLOWS / 5);
    assert_eq!(counter("once"), 5000 - u64::from(FLOWS) / 5);
    assert_eq!(counter("no_room"), 0);
    // Without a ranking every flow stays.
    assert_eq!(counter("stayed_old_ranking"), u64::from(FLOWS) / 5);
    // The other entry still gets its part.
    (0..100).for_each(|flow| send(0x2222, flow));
    assert_eq!(held(1), 100);
    // Flows seen twice get slots, but not too soon, until half are taken, as many as are left.
    let again = |flow: u16| {
        send(0x1111, flow);
        send(0x1111, flow);
        let before = held(0);
        std::thread::sleep(std::time::Duration::from_millis(6));
        send(0x1111, flow);
        held(0) - before
    };
    assert_eq!(again(60_000), 1);
    for chunk in 0..4 {
        let flows = 10_000 + chunk * 100..10_100 + chunk * 100;
        flows.clone().for_each(|flow| send(0x1111, flow));
        std::thread::sleep(std::time::Duration::from_millis(6));
        flows.for_each(|flow| send(0x1111, flow));
    }
    assert_eq!(held(0), (FLOWS - held(1)) / 2);
    assert!(counter("no_room") > 0);
    // Removed flows make room.
    let full = counter("no_room");
    let slot = program.slot(limits.entries);
    assert!(program.change_state(limits.entries, layout::SLOT_LIVE, layout::SLOT_DEAD));
    program.unlink_flow(slot.entry, slot.flow);
    program.flow_gone(0);
    program.vacate_slot(limits.entries);
    assert_eq!(again(61_000), 1);
    assert_eq!(counter("no_room"), full);
}
