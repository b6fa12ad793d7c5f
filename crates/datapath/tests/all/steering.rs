//! Flows that are processed by other workers than the one that receives them.

use crate::support::*;
use datapath::fcf::Layout;
use datapath::{BUCKETS, BridgeSettings, PortSettings, SteeringMode};
use packet::io::BURST;
use packet::{Frame, HeapFrame};
use program::actions::Op;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Flows of a source.
const FLOWS: u64 = 200;
/// Most frames of a source in flight: what one ring holds, so that none is rejected.
const ON_THE_WAY: u64 = 768;

/// Puts numbered frames of [`FLOWS`] flows on one wire, no faster than they come out by another.
struct Source {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Source {
    fn new(wire: &Arc<Wire>, out: &Arc<Wire>) -> Source {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, wire, out) = (Arc::clone(&stop), Arc::clone(wire), Arc::clone(out));
        let body = move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                if number - out.sent() >= ON_THE_WAY {
                    std::thread::yield_now();
                    continue;
                }
                let flow = number % FLOWS;
                assert!(wire.try_put(frame(mac(250), mac(flow as u8), number)));
                number += 1;
            }
            number
        };
        Source {
            stop,
            thread: std::thread::spawn(body),
        }
    }

    /// Stops, and returns how many frames it has put on the wire.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Checks, piece by piece, what has come out of a wire.
#[derive(Default)]
struct Order {
    last: HashMap<u64, u64>,
    seen: u64,
}

impl Order {
    fn look(&mut self, wire: &Wire) {
        for bytes in wire.take() {
            let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
            let before = self.last.insert(number % FLOWS, number);
            assert!(before < Some(number), "{number} after {before:?}");
            self.seen += 1;
        }
    }
}

fn total(switch: &Switch, of: fn(&datapath::SteeringWorker) -> u64) -> u64 {
    switch.datapath.steering().workers.iter().map(of).sum()
}

/// Creates a switch that sends what comes in by one wire out by another.
fn two_ports(workers: usize, copied: bool) -> (Switch, Arc<Wire>, Arc<Wire>) {
    two_ports_with(workers, copied, 1)
}

/// Creates such a switch that sends each frame `times` times.
fn two_ports_with(workers: usize, copied: bool, times: usize) -> (Switch, Arc<Wire>, Arc<Wire>) {
    let mut switch = Switch::new(workers);
    let bridge = switch.bridge("br0");
    let (inward, outward) = (Wire::new(true), Wire::new(true));
    // So that the other worker copies short frames.
    inward.never_offloads.store(copied, Ordering::SeqCst);
    switch.port(bridge, 1, &inward);
    switch.port(bridge, 2, &outward);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2); times]);
    (switch, inward, outward)
}

/// Begins to move all buckets of one of two workers to the other.
fn give_all(switch: &mut Switch, receiver: usize) {
    for bucket in 0..BUCKETS {
        switch
            .datapath
            .move_bucket(receiver, bucket, 1 - receiver)
            .unwrap();
    }
}

/// Makes a worker do nothing until the flag is set.
fn stall(switch: &mut Switch, worker: usize) -> Arc<AtomicBool> {
    let (stalled, go_on) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (in_it, until) = (Arc::clone(&stalled), Arc::clone(&go_on));
    let stall = move || {
        in_it.store(true, Ordering::SeqCst);
        while !until.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    };
    assert!(switch.datapath.run_on_worker(worker, Box::new(stall)));
    wait_until("stalled", || stalled.load(Ordering::SeqCst));
    go_on
}

/// Returns the index of the worker that serves the first port.
fn receiver(switch: &Switch) -> usize {
    let serves = |worker: &datapath::WorkerInfo| {
        worker.queues.iter().any(|queue| queue.name.ends_with("-1"))
    };
    switch.datapath.workers().iter().position(serves).unwrap()
}

#[test]
fn a_hash_spreads_flows_over_workers_in_order() {
    spread(false);
    spread(true);
}

fn spread(copied: bool) {
    let (mut switch, inward, outward) = two_ports(3, copied);
    switch.datapath.set_steering(SteeringMode::Rss);
    assert_eq!(switch.datapath.steer(), Ok(true));
    let source = Source::new(&inward, &outward);
    let mut order = Order::default();
    wait_until("frames", || {
        order.look(&outward);
        order.seen > 100_000
    });
    let put = source.stop();
    wait_until("all", || {
        order.look(&outward);
        order.seen == put
    });
    assert_eq!(switch.dropped_in_all(), 0);
    let info = switch.datapath.steering();
    assert_eq!(info.effective, SteeringMode::Rss);
    let receiver = receiver(&switch);
    for (place, worker) in info.workers.iter().enumerate() {
        assert_eq!(worker.taken > 0, place != receiver, "{info:?}");
    }
    // About two thirds.
    let handed = info.workers[receiver].handed;
    assert!(
        (put / 2..put * 5 / 6).contains(&handed),
        "{handed} of {put}"
    );
    let stats = switch.datapath.ports()[0].id;
    assert_eq!(switch.datapath.port_stats(stats).unwrap().rx_packets, put);
    // Off again: all flows come back.
    switch.datapath.set_steering(SteeringMode::Off);
    assert_eq!(switch.datapath.steer(), Ok(false));
    assert!(
        switch
            .datapath
            .steering()
            .workers
            .iter()
            .all(|worker| worker.away == 0)
    );
}

#[test]
fn ten_thousand_moves_under_load_keep_the_order_and_lose_nothing() {
    move_much(false);
    move_much(true);
}

fn move_much(copied: bool) {
    let (mut switch, inward, outward) = two_ports(3, copied);
    switch.datapath.set_steering(SteeringMode::Adaptive);
    let source = Source::new(&inward, &outward);
    let receiver = receiver(&switch);
    let mut order = Order::default();
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while total(&switch, |worker| worker.moved) < 10_000 {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            switch.datapath.steering()
        );
        for _ in 0..16 {
            let (bucket, to) = (draw(BUCKETS), draw(3));
            switch.datapath.move_bucket(receiver, bucket, to).unwrap();
        }
        order.look(&outward);
        std::thread::sleep(Duration::from_micros(50));
    }
    let put = source.stop();
    wait_until("all", || {
        order.look(&outward);
        order.seen == put
    });
    assert_eq!(switch.dropped_in_all(), 0);
    assert!(order.seen > 10_000, "{}", order.seen);
}

#[test]
fn workers_come_and_go_while_flows_are_spread() {
    let (mut switch, inward, outward) = two_ports(2, true);
    switch.datapath.set_steering(SteeringMode::Rss);
    let source = Source::new(&inward, &outward);
    let mut order = Order::default();
    for round in 0..40 {
        let count = [2, 3, 1, 4][round % 4];
        switch.datapath.set_workers(&vec![None; count]).unwrap();
        switch.datapath.steer().unwrap();
        let before = order.seen;
        wait_until("frames", || {
            order.look(&outward);
            order.seen > before + 500
        });
        if round % 3 == 0 {
            switch.datapath.rebalance().unwrap();
        }
    }
    let put = source.stop();
    wait_until("all", || {
        order.look(&outward);
        order.seen == put
    });
    assert_eq!(switch.dropped_in_all(), 0);
}

#[test]
fn frames_of_ports_that_go_are_counted() {
    // With those of the source they fit into a ring of 1,024.
    const BESIDE: u64 = 200;
    let (mut switch, inward, outward) = two_ports(2, true);
    let bridge = switch.bridge("br1");
    switch.datapath.set_steering(SteeringMode::Rss);
    switch.datapath.steer().unwrap();
    let source = Source::new(&inward, &outward);
    let mut received = 0;
    for round in 0..30 {
        let wire = Wire::new(true);
        let port = switch.port(bridge, 7, &wire);
        let frames = (0..BESIDE).map(|number| frame(mac(250), mac(number as u8), number));
        wire.put_all(frames);
        std::thread::sleep(Duration::from_micros(round * 30));
        switch.datapath.remove_port(port).unwrap();
        received += BESIDE - wire.waiting() as u64;
    }
    let put = source.stop();
    let mut order = Order::default();
    wait_until("all", || {
        order.look(&outward);
        order.seen == put
    });
    // Each met no rule of its bridge, or its port had been removed when it was taken.
    wait_until("counted", || {
        let (gone, missed) = (switch.dropped("port_gone"), switch.dropped("table_miss"));
        gone + missed == received && switch.dropped_in_all() == received
    });
}

#[test]
fn a_full_ring_drops_by_a_name_and_goes_on() {
    let (mut switch, inward, outward) = two_ports(2, true);
    let receiver = receiver(&switch);
    let other = 1 - receiver;
    for bucket in 0..BUCKETS {
        switch
            .datapath
            .move_bucket(receiver, bucket, other)
            .unwrap();
    }
    wait_until("moved", || {
        switch.datapath.steering().workers[receiver].away == BUCKETS
    });
    let go_on = stall(&mut switch, other);
    inward.put_all((0..2_000).map(|number| frame(mac(250), mac(number as u8), number)));
    wait_until("dropped", || {
        switch.dropped("steering_ring_full") == 2_000 - 1_024
    });
    // A move cannot end while the other worker does not finish: frames are parked until it is given
    // up.
    switch.datapath.move_bucket(receiver, 0, receiver).unwrap();
    wait_until("given up", || {
        total(&switch, |worker| worker.gave_up_late) == 1
    });
    go_on.store(true, Ordering::SeqCst);
    wait_until("the rest", || outward.sent() == 1_024);
    inward.put(frame(mac(250), mac(1), 0));
    wait_until("one more", || outward.sent() == 1_025);
    assert_eq!(total(&switch, |worker| worker.refused), 2_000 - 1_024);
}

#[test]
fn a_worker_with_too_much_to_do_gives_flows_away_and_gets_silent_ones_back() {
    // Expensive enough to process that steering pays.
    let (mut switch, inward, _outward) = two_ports_with(2, true, 32);
    switch.datapath.set_steering(SteeringMode::Adaptive);
    let receiver = receiver(&switch);
    let frames = (0..FLOWS).map(|flow| frame(mac(250), mac(flow as u8), flow).to_vec());
    inward.endless.lock().unwrap().0 = frames.collect();
    inward.signal();
    let away = |switch: &Switch| switch.datapath.steering().workers[receiver].away;
    wait_until("given away", || {
        switch.datapath.steer().unwrap();
        std::thread::sleep(switch.datapath.steering_period());
        away(&switch) > 0
    });
    let taken = total(&switch, |worker| worker.taken);
    wait_until("taken", || {
        total(&switch, |worker| worker.taken) > taken + 1_000
    });
    inward.endless.lock().unwrap().0.clear();
    wait_until("back", || {
        switch.datapath.steer().unwrap();
        std::thread::sleep(switch.datapath.steering_period());
        away(&switch) == 0
    });
}

/// A single flow may leave the worker that receives it, and comes back if the other cannot cope;
/// then it stays for long.
#[test]
fn a_single_flow_does_not_wander() {
    let (mut switch, inward, outward) = two_ports_with(2, true, 32);
    switch.datapath.set_steering(SteeringMode::Adaptive);
    inward.endless.lock().unwrap().0 = vec![frame(mac(250), mac(1), 0).to_vec()];
    inward.signal();
    for _ in 0..60 {
        switch.datapath.steer().unwrap();
        std::thread::sleep(switch.datapath.steering_period());
    }
    assert!(outward.sent() > 0);
    assert!(total(&switch, |worker| worker.moved) <= 3);
}

/// A worker that processes what another receives is busy, although it serves no busy queue.
#[test]
fn frames_handed_to_a_worker_count_as_its_load() {
    let (mut switch, inward, outward) = two_ports(2, true);
    switch.datapath.set_steering(SteeringMode::Adaptive);
    assert_eq!(switch.datapath.steer(), Ok(true));
    let receiver = receiver(&switch);
    give_all(&mut switch, receiver);
    let source = Source::new(&inward, &outward);
    wait_until("all is away", || {
        switch.datapath.steering().workers[receiver].away == BUCKETS
    });
    let sent = outward.sent();
    wait_until("frames", || outward.sent() > sent + 100_000);
    let put = source.stop();
    wait_until("all frames", || {
        outward.sent() == put && total(&switch, |worker| worker.taken) > 100_000
    });
    let first = |worker: &datapath::WorkerInfo| {
        let mut queues = worker.queues.iter();
        queues.find(|queue| queue.name.ends_with("-1")).cloned()
    };
    // All of this work is the queue's, apart from looking into the ring.
    wait_until("all is accounted for", || {
        let workers = switch.datapath.workers();
        let queue = first(&workers[receiver]).unwrap().recent_taken_cycles;
        let taken = workers[1 - receiver].recent_taken_cycles;
        queue > 0 && (taken / 2..=taken).contains(&queue)
    });
    let workers = switch.datapath.workers();
    let (giver, taker) = (&workers[receiver], &workers[1 - receiver]);
    assert_eq!(giver.recent_taken_cycles, 0);
    assert!(taker.stats.taken > 100_000 && giver.stats.handed > 100_000);
    assert_eq!(
        taker.stats.processed(),
        taker.stats.taken + taker.stats.packets
    );
    // A new queue comes to whoever has less to do, which its queues alone would not tell.
    let own = |worker: &datapath::WorkerInfo| -> u64 {
        worker.queues.iter().map(|queue| queue.recent_cycles).sum()
    };
    let load = |worker: &datapath::WorkerInfo| own(worker) + worker.recent_taken_cycles;
    let bridge = *switch.writers.keys().next().unwrap();
    let more = switch.port(bridge, 3, &Wire::new(true));
    let now = switch.datapath.workers();
    let serves =
        |worker: &datapath::WorkerInfo| worker.queues.iter().any(|queue| queue.port == more);
    let chosen = now.iter().position(serves).unwrap();
    let less = usize::from(load(&now[1]) < load(&now[0]));
    assert_eq!(chosen, less, "{now:?}");
}

#[test]
fn moves_of_unknown_buckets_and_workers_are_refused() {
    let (mut switch, _, _) = two_ports(2, true);
    let refused = |switch: &mut Switch, from, bucket, to| {
        let moved = switch.datapath.move_bucket(from, bucket, to);
        moved.unwrap_err().to_string()
    };
    assert_eq!(refused(&mut switch, 2, 0, 0), "there is no worker 2");
    assert_eq!(refused(&mut switch, 0, 0, 9), "there is no worker 9");
    assert_eq!(
        refused(&mut switch, 0, BUCKETS, 1),
        "there is no bucket 512: they are numbered from 0 to 511"
    );
}

#[test]
fn more_workers_than_queues_are_used_by_themselves() {
    let (mut switch, _, _) = two_ports(2, true);
    // Two queues.
    assert_eq!(switch.datapath.steer(), Ok(false));
    assert_eq!(switch.datapath.steering().effective, SteeringMode::Off);
    switch.datapath.set_workers(&[None; 3]).unwrap();
    assert_eq!(switch.datapath.steer(), Ok(true));
    assert_eq!(switch.datapath.steering().effective, SteeringMode::Adaptive);
    switch.datapath.set_steering(SteeringMode::Off);
    assert_eq!(switch.datapath.steer(), Ok(false));
}

#[test]
fn a_worker_that_fails_over_handed_frames_goes_on() {
    let (mut switch, inward, outward) = two_ports(2, true);
    let receiver = receiver(&switch);
    give_all(&mut switch, receiver);
    wait_until("moved", || {
        switch.datapath.steering().workers[receiver].away == BUCKETS
    });
    outward.fail_send.store(true, Ordering::SeqCst);
    inward.put_all((0..100).map(|number| frame(mac(250), mac(number as u8), number)));
    wait_until("failed", || {
        switch.datapath.workers()[1 - receiver].stats.failures > 0
    });
    outward.fail_send.store(false, Ordering::SeqCst);
    // Frames in hand count both as received and as about to be sent.
    wait_until("counted", || {
        outward.sent() + switch.dropped("worker_failed") >= 100
    });
    // Failed frames count as finished: flows move back.
    for bucket in 0..BUCKETS {
        switch
            .datapath
            .move_bucket(receiver, bucket, receiver)
            .unwrap();
    }
    wait_until("back", || {
        switch.datapath.steering().workers[receiver].away == 0
    });
}

#[test]
fn a_flood_that_is_handed_over_takes_its_share_and_no_more() {
    const COPIES: usize = 500;
    let mut switch = Switch::new(2);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    switch.rule(bridge, 0, 5, in_port(1), vec![Op::Output(3); COPIES]);
    let giver = receiver(&switch);
    let serves = |worker: usize, port: usize| {
        let queues = &switch.datapath.workers()[worker].queues;
        queues.iter().any(|queue| queue.port == ports[port].0)
    };
    // One that the other worker receives, and processes itself.
    let other = (1..4).find(|port| serves(1 - giver, *port)).unwrap();
    let (from, to) = (ports[other].1.clone(), if other == 3 { 2 } else { 4 });
    switch.rule(
        bridge,
        0,
        5,
        in_port(other as u32 + 1),
        vec![Op::Output(to)],
    );
    give_all(&mut switch, giver);
    let frames = vec![frame(mac(2), mac(1), 1).to_vec(); BURST];
    for wire in [&ports[0].1, &from] {
        wire.endless.lock().unwrap().0.clone_from(&frames);
        wire.signal();
    }
    let counts = || {
        [
            ports[2].1.sent() / COPIES as u64,
            ports[to as usize - 1].1.sent(),
        ]
    };
    wait_until("frames are handed over", || {
        total(&switch, |worker| worker.taken) > 64
    });
    let [flooded, sent] = grow_by([200, 2000], counts);
    // A few hundred with shares; 45 where frames are only taken a few at a time.
    assert!(
        sent > 100 * flooded,
        "{sent} frames beside {flooded} flooded ones"
    );
    for wire in [&ports[0].1, &from] {
        wire.endless.lock().unwrap().0.clear();
    }
}

/// A numbered UDP datagram of a flow; one with priority has it in its ToS byte (layout `dscp6`).
fn datagram(flow: u8, urgent: bool, number: u64) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    let tos = if urgent { 0x84 } else { 4 };
    bytes.extend([8, 0, 0x45, tos, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0]);
    bytes.extend([u8::from(urgent), flow, 10, 9, 9, 9]);
    bytes.extend([0, 1, 0, 2, 0, 16, 0, 0]);
    bytes.extend(number.to_be_bytes());
    let sum = packet::checksum::ipv4_header(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Copies of each frame, so that steering pays.
const COPIES: usize = 32;

/// Of too many flows on one wire, those with priority stay with the worker that receives them, and
/// lose nothing; the others leave it, although the other worker has no room for all of them.
#[test]
fn flows_with_priority_keep_the_worker_that_receives_them() {
    let (mut switch, inward, outward) = two_ports_with(2, true, COPIES);
    let bridge = *switch.writers.keys().next().unwrap();
    let settings = BridgeSettings {
        fcf: Some(Layout::Dscp6),
        ..BridgeSettings::default()
    };
    switch.datapath.set_bridge(bridge, settings).unwrap();
    let first = switch.datapath.ports()[0].id;
    switch.datapath.set_steering(SteeringMode::Adaptive);
    let receiver = receiver(&switch);
    let frames = |flow: u8| datagram(flow, flow.is_multiple_of(8), 0);
    let step = |switch: &mut Switch| {
        switch.datapath.steer().unwrap();
        std::thread::sleep(switch.datapath.steering_period());
        outward.take();
        switch.datapath.steering().workers[receiver].clone()
    };
    // Where the field is not believed, nothing has priority.
    inward.endless.lock().unwrap().0 = (0..200).map(frames).collect();
    inward.signal();
    wait_until("some leave", || step(&mut switch).away > 0);
    let worker = step(&mut switch);
    assert_eq!((worker.urgent, worker.is_reserved), (0, false));
    let settings = PortSettings {
        underlay: true,
        ..PortSettings::default()
    };
    switch.datapath.modify_port(first, settings).unwrap();
    // Each of the 175 others may have a bucket of its own.
    wait_until("reserved", || step(&mut switch).is_reserved);
    wait_until("all others leave", || {
        let before = step(&mut switch);
        let after = step(&mut switch);
        // Of what was received in between an eighth stays. The counts are of moments that differ by
        // some bursts.
        let kept = after.urgent - before.urgent;
        let given = after.handed + after.refused - before.handed - before.refused;
        kept > 500 && given.abs_diff(7 * kept) <= 256
    });
    for _ in 0..10 {
        let worker = step(&mut switch);
        assert_eq!((worker.is_reserved, worker.keeps), (true, None));
    }
    inward.endless.lock().unwrap().0.clear();
    wait_until("all are finished", || {
        let done = |switch: &Switch| (outward.sent(), total(switch, |worker| worker.taken));
        let before = done(&switch);
        std::thread::sleep(Duration::from_millis(100));
        done(&switch) == before
    });
    outward.take();
    // While the other worker does nothing, its flows fill the ring and are dropped.
    let go_on = stall(&mut switch, 1 - receiver);
    let (dropped, sent) = (switch.dropped("steering_ring_full"), outward.sent());
    let all = (0..4_000_u64).map(|number| {
        let flow = (number % 200) as u8;
        HeapFrame::new(&datagram(flow, flow.is_multiple_of(8), number))
    });
    inward.put_all(all);
    let came = |frames: u64| outward.sent() - sent == frames * COPIES as u64;
    wait_until("all with priority, and no more", || {
        switch.dropped("steering_ring_full") - dropped == 3_500 - 1_024 && came(500)
    });
    let numbers: Vec<u64> = outward
        .take()
        .iter()
        .map(|bytes| u64::from_be_bytes(bytes[42..50].try_into().unwrap()))
        .collect();
    let wanted = (0..4_000_u64).filter(|number| (number % 200).is_multiple_of(8));
    let wanted: Vec<u64> = wanted.flat_map(|number| [number; COPIES]).collect();
    assert_eq!(numbers, wanted, "frames with priority, in order");
    go_on.store(true, Ordering::SeqCst);
    wait_until("the rest", || came(500 + 1_024));
    // Without frames with priority it is a worker like others.
    wait_until("no longer reserved", || {
        let worker = step(&mut switch);
        !worker.is_reserved && worker.away == 0
    });
}
