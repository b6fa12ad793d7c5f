//! Shaped ports: devices and patch ports, several workers that send to one, owners and shapes that
//! change while frames wait.

use crate::support::*;
use datapath::{PortSettings, Shape};
use packet::{Frame, HeapFrame};
use program::actions::{Op, OpList};
use qos::shaper::{PortSpec, QueueSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const GIGABIT: u64 = 1_000_000_000;

/// Returns a shape of this rate with queues 0 to 3, each of which may use all of it.
fn shape(rate: u64) -> PortSpec {
    let mut port = PortSpec::new(rate);
    port.queues = (0..4)
        .map(|number| QueueSpec::new(number, rate / 4, rate))
        .collect();
    port
}

fn shaped(port: &PortSpec) -> PortSettings {
    PortSettings {
        queues: port.queues.iter().map(|queue| queue.number).collect(),
        shape: Shape::Queues(Arc::new(port.clone())),
        ..PortSettings::default()
    }
}

/// Creates a switch in which frames from the first wire go to the second, whose port is shaped.
fn between(workers: usize, port: &PortSpec) -> (Switch, Arc<Wire>, Arc<Wire>, datapath::PortId) {
    let mut switch = Switch::new(workers);
    let bridge = switch.bridge("br0");
    let (from, to) = (Wire::new(true), Wire::new(true));
    switch.port(bridge, 1, &from);
    let out = switch.port_with(bridge, 2, &to, shaped(port));
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    (switch, from, to, out)
}

/// Returns the number of frames that wait at a port.
fn waiting(switch: &Switch, port: datapath::PortId) -> u64 {
    let totals = switch.datapath.shaping(port).unwrap();
    totals.iter().map(|(_, totals)| totals.waiting).sum()
}

fn numbers(frames: &[Vec<u8>], source: u8) -> Vec<u64> {
    let from = frames.iter().filter(|bytes| bytes[11] == source);
    from.map(|bytes| u64::from_be_bytes(bytes[14..22].try_into().unwrap()))
        .collect()
}

#[test]
fn frames_for_a_shaped_port_are_sent_or_counted_while_workers_and_shapes_change() {
    let mut switch = Switch::new(2);
    let bridge = switch.bridge("br0");
    let wires: Vec<Arc<Wire>> = (0..3).map(|_| Wire::new(true)).collect();
    for number in [1, 2] {
        switch.port(bridge, number, &wires[number as usize - 1]);
        let ops = vec![Op::SetQueue(Some(number)), Op::Output(3)];
        switch.rule(bridge, 0, 1, in_port(number), ops);
    }
    let out = switch.port_with(bridge, 3, &wires[2], shaped(&shape(GIGABIT)));
    let stop = Arc::new(AtomicBool::new(false));
    let sources = [0, 1].map(|at: usize| {
        let (wire, stop) = (Arc::clone(&wires[at]), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += u64::from(wire.try_put(frame(mac(9), mac(at as u8 + 1), number)));
                if number % 32 == 0 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            }
            number
        })
    });
    let plans: [&[Option<usize>]; 4] = [&[None], &[None, None, None], &[None, None], &[]];
    for round in 0..24 {
        match round % 3 {
            0 => switch.datapath.set_workers(plans[round / 3 % 4]).unwrap(),
            1 => {
                let mut other = shape([GIGABIT, 20_000_000, 300_000_000][round / 3 % 3]);
                other.queues.truncate(2 + round % 3);
                switch.datapath.modify_port(out, shaped(&other)).unwrap();
            }
            _ if round % 12 == 8 => {
                let plain = PortSettings::default();
                switch.datapath.modify_port(out, plain).unwrap();
                switch
                    .datapath
                    .modify_port(out, shaped(&shape(GIGABIT)))
                    .unwrap();
            }
            _ => {}
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    switch.datapath.set_workers(&[None, None]).unwrap();
    stop.store(true, Ordering::Relaxed);
    let put: u64 = sources.map(|source| source.join().unwrap()).iter().sum();
    switch
        .datapath
        .modify_port(out, shaped(&shape(GIGABIT)))
        .unwrap();
    wait_until("all fetched", || {
        wires[0].waiting() + wires[1].waiting() == 0
    });
    wait_until("sent and dropped make what came", || {
        wires[2].sent() + switch.dropped_in_all() == put && waiting(&switch, out) == 0
    });
    let counted = ["shaped", "shaper_ring_full"].map(|reason| switch.dropped(reason));
    assert_eq!(switch.dropped_in_all(), counted.iter().sum::<u64>());
    let at_the_port = |switch: &Switch| switch.datapath.port_stats(out).unwrap().tx_policed;
    assert_eq!(at_the_port(&switch), switch.dropped_in_all());
    // How many depends on who had the processors while the rate was low; that the port sends now
    // depends on nothing.
    let before = wires[2].sent();
    assert!(before > 500, "{before} of {put}");
    (0..20).for_each(|number| wires[0].put(frame(mac(9), mac(1), number)));
    wait_until("the port sends", || wires[2].sent() == before + 20);
}

#[test]
fn drop_counters_of_a_port_survive_changes_and_removal_of_its_shaper() {
    for patch in [false, true] {
        let mut switch = Switch::new(1);
        let (near, far) = (switch.bridge("br0"), switch.bridge("br1"));
        let (from, to) = (Wire::new(true), Wire::new(true));
        switch.port(near, 1, &from);
        let out = match patch {
            true => switch.patch(near, 2, "there", "back"),
            false => switch.port(near, 2, &to),
        };
        switch.patch(far, 2, "back", "there");
        switch.rule(near, 0, 1, in_port(1), vec![Op::Output(2)]);
        let mut spec = shape(100_000);
        spec.queues
            .iter_mut()
            .for_each(|queue| queue.limit_packets = 10);
        let dropped = |switch: &Switch| switch.datapath.port_stats(out).unwrap().tx_policed;
        let mut last = 0;
        for queues in [4, 2, 0, 4] {
            spec.queues.truncate(queues);
            let settings = match queues {
                0 => PortSettings::default(),
                _ => shaped(&shape(100_000)),
            };
            switch.datapath.modify_port(out, settings).unwrap();
            if queues > 0 {
                switch.datapath.modify_port(out, shaped(&spec)).unwrap();
                (0..200).for_each(|number| from.put(frame(mac(9), mac(1), number)));
                wait_until("some are dropped", || dropped(&switch) > last + 100);
            }
            assert!(dropped(&switch) >= last);
            last = dropped(&switch);
            if queues == 0 {
                spec = shape(100_000);
                spec.queues
                    .iter_mut()
                    .for_each(|queue| queue.limit_packets = 10);
            }
        }
        wait_until("each drop stands at the port", || {
            from.waiting() == 0 && switch.dropped("shaped") == dropped(&switch)
        });
    }
}

#[test]
fn only_packets_that_name_a_queue_get_its_dscp() {
    let ip = |tos: u8| {
        let mut bytes = frame(mac(9), mac(1), 0).to_vec();
        bytes.truncate(14);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes.extend([0x45, tos, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let words = bytes[14..34].chunks(2);
        let sum: u32 = words
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
            .sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes.extend([0; 26]);
        bytes
    };
    let shapes = [Shape::None, Shape::Queues(Arc::new(shape(GIGABIT)))];
    for shape in shapes {
        let mut switch = Switch::new(1);
        let bridge = switch.bridge("br0");
        let (from, to, other) = (Wire::new(true), Wire::new(true), Wire::new(true));
        switch.port(bridge, 1, &from);
        let settings = PortSettings {
            queues: vec![0, 1, 2, 3],
            marks: vec![(0, 8), (2, 46), (9, 10)],
            shape: shape.clone(),
            ..PortSettings::default()
        };
        switch.port_with(bridge, 2, &to, settings);
        switch.port(bridge, 3, &other);
        let mut ops = vec![Op::Output(2)];
        for queue in [0, 1, 2, 9] {
            ops.extend([Op::SetQueue(Some(queue)), Op::Output(2), Op::Output(3)]);
        }
        switch.rule(bridge, 0, 1, in_port(1), ops);
        from.put(HeapFrame::new(&ip(0x29)));
        wait_until("all arrived", || to.sent() == 5 && other.sent() == 4);
        let mut arrived = to.take();
        arrived.sort();
        let wanted = [0x29, 8 << 2 | 1, 0x29, 46 << 2 | 1, 10 << 2 | 1];
        let mut wanted = wanted.map(ip).to_vec();
        wanted.sort();
        assert_eq!(arrived, wanted, "{shape:?}");
        assert_eq!(other.take(), vec![ip(0x29); 4], "other ports' copies");
    }
}

#[test]
fn the_time_before_a_frame_was_received_counts() {
    for workers in [1, 2] {
        let mut spec = shape(100_000);
        for queue in &mut spec.queues {
            queue.burst = 60 * 8;
            queue.max_latency_ns = Some(1_000_000_000);
        }
        let (switch, from, to, out) = between(workers, &spec);
        // Frames that need not wait leave, however late they are; the others have no time left.
        from.waited_ns.store(2_000_000_000, Ordering::SeqCst);
        (0..100).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("each has its end", || {
            to.sent() + switch.dropped("shaped") == 100
        });
        assert!(to.sent() < 50, "{} were sent", to.sent());
        let totals = switch.datapath.shaping(out).unwrap();
        // When their turn comes, or already on arrival.
        let dropped = totals[0].1.dropped;
        let late = dropped[qos::shaper::DropReason::Late as usize];
        let refused = dropped[qos::shaper::DropReason::OverBound as usize];
        assert_eq!(late + refused, switch.dropped("shaped"));
        let before = to.sent();
        from.waited_ns.store(0, Ordering::SeqCst);
        (0..10).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("those in time are sent", || to.sent() > before);
    }
}

/// Sets the flag on drop, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts a frame on a wire every 20 us while `during` runs; returns how many.
fn fed(wire: &Wire, during: impl FnOnce()) -> u64 {
    let (put, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let done = wire.try_put(frame(mac(9), mac(1), 0));
                put.fetch_add(u64::from(done), Ordering::Relaxed);
                let begun = std::time::Instant::now();
                while begun.elapsed() < std::time::Duration::from_micros(20) {
                    std::hint::spin_loop();
                }
            }
        });
        let _stop = Stop(&stop);
        during();
    });
    put.into_inner()
}

#[test]
fn a_worker_that_holds_frames_back_naps_between_them() {
    // A frame leaves every 64 us, and more come, so that the worker never finds nothing for long
    // enough to sleep on its queues.
    let (switch, from, to, out) = between(1, &shape(10_000_000));
    let put = fed(&from, || {
        wait_until("naps", || {
            switch.datapath.workers()[0].stats.naps > 100 && waiting(&switch, out) > 100
        });
    });
    wait_until("sent and dropped make what came", || {
        to.sent() + switch.dropped("shaped") == put
    });
}

#[test]
fn a_queue_that_has_been_quiet_cuts_naps_short() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let wires: Vec<Arc<Wire>> = (0..4).map(|_| Wire::new(true)).collect();
    for (number, wire) in (1..).zip(&wires) {
        let settings = match number {
            2 => shaped(&shape(10_000_000)),
            _ => PortSettings::default(),
        };
        switch.port_with(bridge, number, wire, settings);
    }
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    switch.rule(bridge, 0, 1, in_port(3), vec![Op::Output(4)]);
    let stats = || switch.datapath.workers()[0].stats;
    let mut quiet = 0;
    let put = fed(&wires[0], || {
        wait_until("naps", || stats().naps > 100);
        let begun = std::time::Instant::now();
        while stats().naps_cut < 10 {
            assert!(begun.elapsed().as_secs() < 60, "{:?}", stats());
            wires[2].put(frame(mac(8), mac(3), quiet));
            quiet += 1;
            wait_until("it arrives", || wires[3].sent() == quiet);
            std::thread::sleep(std::time::Duration::from_millis(4));
        }
    });
    wait_until("sent and dropped make what came", || {
        wires[1].sent() + switch.dropped("shaped") == put
    });
    assert_eq!(numbers(&wires[3].take(), 3), (0..quiet).collect::<Vec<_>>());
}

#[test]
fn frames_of_one_worker_stay_in_order_while_the_port_changes_hands() {
    let mut spec = shape(100_000_000);
    spec.queues
        .iter_mut()
        .for_each(|queue| queue.limit_packets = 1 << 14);
    spec.limit_packets = 1 << 16;
    let (mut switch, from, to, out) = between(1, &spec);
    let mut put = 0;
    for round in 0..40 {
        for _ in 0..64 {
            from.put(frame(mac(9), mac(1), put));
            put += 1;
        }
        let workers = vec![None; 1 + round % 3];
        switch.datapath.set_workers(&workers).unwrap();
        if round % 5 == 4 {
            spec.max_rate = spec.max_rate / 10 * 9;
            spec.queues.iter_mut().for_each(|queue| queue.min_rate /= 2);
            switch.datapath.modify_port(out, shaped(&spec)).unwrap();
        }
    }
    wait_until("all sent", || to.sent() == put);
    assert_eq!(numbers(&to.take(), 1), (0..put).collect::<Vec<_>>());
    assert_eq!(switch.dropped_in_all(), 0);
}

#[test]
fn frames_waiting_at_a_removed_port_are_counted_as_dropped() {
    for workers in [1, 3] {
        let (mut switch, from, to, out) = between(workers, &shape(100_000));
        (0..500).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("all fetched", || {
            waiting(&switch, out) + to.sent() + switch.dropped_in_all() == 500
        });
        switch.datapath.remove_port(out).unwrap();
        assert_eq!(to.queues_alive.load(Ordering::SeqCst), 0);
        assert_eq!(to.sent() + switch.dropped_in_all(), 500);
        assert!(switch.dropped("port_gone") > 100);
    }
}

#[test]
fn frames_waiting_at_a_port_removed_after_workers_changed_are_counted() {
    for (others, ends) in [(1, false), (2, false), (3, false), (0, false), (0, true)] {
        let (mut switch, from, to, out) = between(2, &shape(100_000));
        (0..500).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("all fetched", || {
            waiting(&switch, out) + to.sent() + switch.dropped_in_all() == 500
        });
        switch.datapath.set_workers(&vec![None; others]).unwrap();
        if ends {
            // Shaping is ended before, so the port has nothing left.
            let plain = PortSettings::default();
            switch.datapath.modify_port(out, plain).unwrap();
            assert_eq!(to.sent() + switch.dropped_in_all(), 500);
        }
        switch.datapath.remove_port(out).unwrap();
        assert_eq!(to.sent() + switch.dropped_in_all(), 500, "{others} workers");
        assert!(switch.dropped("port_gone") > 100);
    }
}

#[test]
fn a_shaped_patch_port_keeps_frames_and_lets_them_go_in_order() {
    for workers in [1, 2] {
        let mut switch = Switch::new(workers);
        let (near, far) = (switch.bridge("br0"), switch.bridge("br1"));
        let (from, to) = (Wire::new(true), Wire::new(true));
        switch.port(near, 1, &from);
        switch.port(far, 1, &to);
        let patch = switch.patch(near, 2, "there", "back");
        switch.patch(far, 2, "back", "there");
        switch.rule(near, 0, 1, in_port(1), vec![Op::Output(2)]);
        switch.rule(far, 0, 1, in_port(2), vec![Op::Output(1)]);
        switch
            .datapath
            .modify_port(patch, shaped(&shape(4_000_000)))
            .unwrap();
        let begun = std::time::Instant::now();
        (0..400).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("all arrived", || to.sent() == 400);
        // 400 frames of at least 480 bits, at 4 Mbit/s.
        assert!(begun.elapsed().as_millis() >= 40, "{:?}", begun.elapsed());
        assert_eq!(numbers(&to.take(), 1), (0..400).collect::<Vec<_>>());
        let stats = switch.datapath.port_stats(patch).unwrap();
        assert_eq!((stats.tx_packets, stats.tx_bytes), (400, 400 * 60));
        // Slow enough that some still wait, even if a thread is interrupted meanwhile.
        let spec = shape(100_000);
        switch.datapath.modify_port(patch, shaped(&spec)).unwrap();
        // Shaping ends while frames wait: they leave at once.
        (0..400).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("some wait again", || waiting(&switch, patch) > 10);
        switch
            .datapath
            .modify_port(patch, PortSettings::default())
            .unwrap();
        wait_until("all arrived again", || to.sent() == 800);
        // Another worker than the owner may send before the owner sends what waited.
        let mut arrived = numbers(&to.take(), 1);
        arrived.sort_unstable();
        assert_eq!(arrived, (0..400).collect::<Vec<_>>());
        assert_eq!(switch.dropped_in_all(), 0);
        // Frames that wait when the port is removed are counted.
        switch.datapath.modify_port(patch, shaped(&spec)).unwrap();
        (0..400).for_each(|number| from.put(frame(mac(9), mac(1), number)));
        wait_until("some wait once more", || waiting(&switch, patch) > 10);
        switch.datapath.remove_port(patch).unwrap();
        wait_until("each frame has an end", || {
            to.sent() - 800 + switch.dropped_in_all() == 400
        });
    }
}

/// Frames that waited are not part of the burst that comes in the same turn, however small that is.
#[test]
fn frames_released_by_a_shaped_patch_port_leave_in_a_turn_with_a_small_burst() {
    let mut switch = Switch::new(1);
    let (near, far) = (switch.bridge("br0"), switch.bridge("br1"));
    let (from, to, other) = (Wire::new(true), Wire::new(true), Wire::new(true));
    switch.port(near, 1, &from);
    switch.port(far, 1, &to);
    // A frame in every turn, which no rule matches: a burst of one.
    *other.always.lock().unwrap() = Some(bytes(mac(9), mac(2), None, 0));
    switch.port(near, 3, &other);
    let patch = switch.patch(near, 2, "there", "back");
    switch.patch(far, 2, "back", "there");
    switch.rule(near, 0, 1, in_port(1), vec![Op::Output(2)]);
    switch.rule(far, 0, 1, in_port(2), vec![Op::Output(1)]);
    let settings = shaped(&shape(100_000));
    switch.datapath.modify_port(patch, settings).unwrap();
    (0..900).for_each(|number| from.put(frame(mac(9), mac(1), number)));
    wait_until("nearly all wait", || waiting(&switch, patch) > 800);
    let plain = PortSettings::default();
    switch.datapath.modify_port(patch, plain).unwrap();
    wait_until("each frame has an end", || {
        to.sent() + switch.dropped("too_many_patches") == 900
    });
    assert_eq!(switch.dropped("too_many_patches"), 0);
    assert_eq!(numbers(&to.take(), 1), (0..900).collect::<Vec<_>>());
}

/// Packet-outs executed in one turn may all be walked again behind a shaped patch port, and not
/// only as often as the last of them may.
#[test]
fn packet_outs_of_one_turn_leave_by_a_shaped_patch_port() {
    const COPIES: usize = 12;
    const OUTS: u64 = 64;
    let mut switch = Switch::new(1);
    let (near, far) = (switch.bridge("br0"), switch.bridge("br1"));
    let (from, to) = (Wire::new(true), Wire::new(true));
    switch.port(near, 1, &from);
    switch.port(far, 1, &to);
    let patch = switch.patch(near, 2, "there", "back");
    switch.patch(far, 2, "back", "there");
    switch.rule(far, 0, 1, in_port(2), vec![Op::Output(1)]);
    let settings = shaped(&shape(GIGABIT));
    switch.datapath.modify_port(patch, settings).unwrap();
    let ops = Arc::new(OpList::new(vec![Op::Output(2); COPIES]));
    let looks = || from.looks.load(Ordering::SeqCst);
    let (held, before) = (from.held.lock().unwrap(), looks());
    from.signal();
    wait_until("the worker is kept", || looks() > before);
    for number in 0..OUTS {
        let data = bytes(mac(9), mac(1), None, number);
        let ops = Arc::clone(&ops);
        switch.datapath.packet_out(near, 1, data, ops).unwrap();
    }
    drop(held);
    let sent = OUTS * COPIES as u64;
    wait_until("each frame has an end", || {
        to.sent() + switch.dropped("too_many_patches") == sent
    });
    assert_eq!(switch.dropped_in_all(), 0);
}

#[test]
fn a_frame_in_a_loop_of_shaped_patch_ports_ends() {
    let mut switch = Switch::new(1);
    let (near, far) = (switch.bridge("br0"), switch.bridge("br1"));
    let from = Wire::new(true);
    switch.port(near, 1, &from);
    for (number, (here, there)) in [(2, ("a", "b")), (3, ("c", "d"))] {
        let port = switch.patch(near, number, here, there);
        let settings = shaped(&shape(GIGABIT));
        switch.datapath.modify_port(port, settings).unwrap();
        switch.patch(far, number, there, here);
    }
    switch.rule(near, 0, 1, in_port(1), vec![Op::Output(2)]);
    switch.rule(near, 0, 1, in_port(3), vec![Op::Output(2)]);
    switch.rule(far, 0, 1, in_port(2), vec![Op::Output(3)]);
    (0..20).for_each(|number| from.put(frame(mac(9), mac(1), number)));
    wait_until("all ended", || switch.dropped("too_many_patches") == 20);
    assert_eq!(switch.dropped_in_all(), 20);
}

#[test]
fn a_large_segment_passes_whatever_the_burst_and_counts_what_it_is_on_the_wire() {
    let mut spec = shape(20_000_000);
    spec.limit_bytes = 200_000;
    let (switch, from, to, out) = between(1, &spec);
    let segment = || {
        let ip = packet::build::Builder::ethernet(mac(2), mac(1)).ipv4(0x0a00_0001, 0x0a00_0002);
        let bytes = ip.udp(5, 6).payload(&vec![0; 60_000]).bytes();
        let mut frame = HeapFrame::new(&bytes);
        frame.set_offload(packet::Offload {
            partial_checksum: true,
            csum_start: 34,
            csum_offset: 6,
            gso: packet::frame::Gso::UdpL4,
            gso_size: 1000,
            ..packet::Offload::default()
        });
        frame
    };
    (0..20).for_each(|_| from.put(segment()));
    wait_until("each has its end", || {
        to.sent() + switch.dropped("shaped") == 20
    });
    // The first leaves at once; of those that wait two of 62,520 bytes fit into 200,000 bytes, and
    // one more does not.
    assert!((3..20).contains(&to.sent()), "{} were sent", to.sent());
    let totals = switch.datapath.shaping(out).unwrap();
    let bytes: u64 = totals.iter().map(|(_, totals)| totals.bytes).sum();
    assert_eq!(bytes, to.sent() * (60_000 + 60 * 42));
    let port_full: u64 = totals.iter().map(|(_, totals)| totals.dropped[2]).sum();
    assert_eq!(port_full, switch.dropped("shaped"));
}
