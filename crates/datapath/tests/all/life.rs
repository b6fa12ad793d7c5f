//! Ports, workers and rules that come and go while traffic runs; sleep, waking, failure.

use crate::support::*;
use datapath::clock::Clock;
use datapath::{
    Assignment, AutoBalance, Datapath, Error, Options, PortKind, PortSettings, PortSpec,
};
use packet::io::BURST;
use packet::{Frame, HeapFrame};
use program::Program;
use program::actions::Op;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Puts frames on a wire from another thread until told to stop.
struct Source {
    stop: Arc<AtomicBool>,
    put: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Source {
    fn new(wire: &Arc<Wire>, make: impl Fn(u64) -> HeapFrame + Send + 'static) -> Source {
        let (stop, put, wire) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
            Arc::clone(wire),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&put));
        let body = move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                if wire.try_put(make(number)) {
                    number += 1;
                    counted.store(number, Ordering::SeqCst);
                } else {
                    std::thread::yield_now();
                }
                if number % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        };
        Source {
            stop,
            put,
            thread: Some(std::thread::spawn(body)),
        }
    }

    /// Stops, and returns how many frames it has put on the wire.
    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.put.load(Ordering::SeqCst)
    }
}

#[test]
fn ports_come_and_go_and_every_frame_is_accounted_for() {
    for workers in [1, 2] {
        let mut switch = Switch::new(workers);
        let bridge = switch.bridge("br0");
        let ports = switch.ports(bridge, 4);
        switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
        switch.rule(bridge, 0, 1, in_port(3), vec![Op::Output(5)]); // a port that comes and goes
        let steady = Source::new(&ports[0].1, |number| frame(mac(2), mac(1), number));
        let unsteady = Source::new(&ports[2].1, |number| frame(mac(2), mac(1), number));
        let mut sent_to_guest = 0;
        for _ in 0..30 {
            let guest = Wire::new(true);
            let id = switch.port(bridge, 5, &guest);
            wait_until("the guest gets something", || guest.sent() > 0);
            switch.datapath.remove_port(id).unwrap();
            assert_eq!(
                guest.queues_alive.load(Ordering::SeqCst),
                0,
                "all queues are back and gone"
            );
            sent_to_guest += guest.sent();
        }
        let (first, third) = (steady.stop(), unsteady.stop());
        wait_until("all fetched", || {
            ports[0].1.waiting() == 0 && ports[2].1.waiting() == 0
        });
        wait_until("steady traffic has lost nothing", || {
            ports[1].1.sent() == first
        });
        wait_until("sent and dropped make received", || {
            sent_to_guest + switch.dropped_in_all() == third
        });
        assert_eq!(
            switch.dropped_in_all(),
            switch.dropped("unknown_port") + switch.dropped("port_gone")
        );
        let stats = switch.datapath.port_stats(ports[1].0).unwrap();
        assert_eq!((stats.tx_packets, stats.tx_bytes), (first, first * 60));
        let stats = switch.datapath.port_stats(ports[0].0).unwrap();
        assert_eq!((stats.rx_packets, stats.rx_bytes), (first, first * 60));
    }
}

#[test]
fn workers_come_and_go_and_no_frame_is_lost_or_overtaken() {
    let mut switch = Switch::new(0);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    switch.rule(bridge, 0, 1, in_port(3), vec![Op::Output(4)]);
    let sources =
        [0, 2].map(|at: usize| Source::new(&ports[at].1, |number| frame(mac(2), mac(1), number)));
    for round in 0..12 {
        let wanted: &[Option<usize>] = match round % 4 {
            0 => &[None],
            1 => &[None, Some(0)],
            2 => &[Some(0), Some(1)],
            _ => &[Some(1), None, None],
        };
        switch.datapath.set_workers(wanted).unwrap();
        let before = ports[1].1.sent() + ports[3].1.sent();
        wait_until("traffic flows", || {
            ports[1].1.sent() + ports[3].1.sent() > before + 100
        });
        let workers = switch.datapath.workers();
        assert_eq!(workers.len(), wanted.len());
        assert_eq!(
            workers
                .iter()
                .map(|worker| worker.queues.len())
                .sum::<usize>(),
            4
        );
        switch.datapath.rebalance().unwrap();
    }
    let put = sources.map(Source::stop);
    wait_until("all arrived", || {
        ports[1].1.sent() == put[0] && ports[3].1.sent() == put[1]
    });
    for port in [1, 3] {
        let numbers: Vec<u64> = ports[port]
            .1
            .take()
            .iter()
            .map(|bytes| u64::from_be_bytes(bytes[14..22].try_into().unwrap()))
            .collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "in order");
    }
    assert_eq!(switch.dropped_in_all(), 0);
    switch.datapath.set_workers(&[]).unwrap();
    let out = Arc::new(program::actions::OpList::new(vec![Op::Output(2)]));
    assert_eq!(
        switch.datapath.packet_out(bridge, 1, vec![0; 60], out),
        Err(Error::NoWorker)
    );
}

#[test]
fn a_packet_sent_after_a_barrier_obeys_the_rules_before_it() {
    for waitable in [true, false] {
        let mut switch = Switch::new(2);
        let bridge = switch.bridge("br0");
        let wires: Vec<_> = (0..4).map(|_| Wire::new(waitable)).collect();
        for (index, wire) in wires.iter().enumerate() {
            switch.port(bridge, index as u32 + 1, wire);
        }
        let noise = Source::new(&wires[3], |number| frame(mac(2), mac(1), number));
        let mut rule = None;
        for round in 0..300_u64 {
            let target = 2 + (round % 2) as u32;
            let new = switch.publish_rule(bridge, 0, 1, in_port(1), vec![Op::Output(target)]);
            if let Some(old) = rule.replace(new) {
                switch.remove_rule(bridge, 0, old);
            }
            let barrier = switch.datapath.barrier();
            wait_until("barrier", || switch.datapath.barrier_passed(barrier));
            let before = wires[target as usize - 1].sent();
            wires[0].put(frame(mac(2), mac(1), round));
            wait_until("obeyed", || wires[target as usize - 1].sent() == before + 1);
            switch.writers.get_mut(&bridge).unwrap().housekeep(100);
            switch.program.domain.collect();
        }
        noise.stop();
        assert_eq!(wires[1].sent() + wires[2].sent(), 300);
    }
}

#[test]
fn an_idle_worker_sleeps_and_is_woken_by_traffic_and_by_control() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 2);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    let stats = |switch: &Switch| switch.datapath.workers()[0].stats;
    // Number of times that it has prepared to sleep.
    let armed = || ports[0].1.armed.load(Ordering::SeqCst);
    wait_until("asleep", || armed() > 0);
    let begun = Instant::now();
    for number in 0..20 {
        let before = armed();
        ports[0].1.put(frame(mac(2), mac(1), number));
        wait_until("forwarded", || ports[1].1.sent() == number + 1);
        wait_until("asleep again", || armed() > before);
    }
    // A worker that nobody wakes looks again after a second.
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    let out = Arc::new(program::actions::OpList::new(vec![Op::Output(2)]));
    switch
        .datapath
        .packet_out(bridge, 1, vec![0; 60], out)
        .unwrap();
    wait_until("woken by a packet-out", || ports[1].1.sent() == 21);
    // While asleep it counts as having seen everything. It may not be asleep yet, and wakes once a
    // second.
    let seen = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        let epoch = switch.program.domain.publish();
        switch.datapath.epoch_passed(epoch)
    });
    assert!(seen);
    // A turn may have been interrupted for long, and then counts as busy.
    wait_until("it sleeps more than it works", || {
        stats(&switch).sleep_cycles > stats(&switch).busy_cycles
    });
    assert_eq!(stats(&switch).packets, 20);
}

#[test]
fn a_worker_that_cannot_wait_backs_off() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let (a, b) = (Wire::new(false), Wire::new(false));
    switch.port(bridge, 1, &a);
    switch.port(bridge, 2, &b);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    wait_until("naps", || switch.datapath.workers()[0].stats.sleeps > 20);
    a.put(frame(mac(2), mac(1), 0));
    wait_until("forwarded", || b.sent() == 1);
}

#[test]
fn a_dormant_queue_is_looked_at_rarely_and_not_forgotten() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let (awake, dormant, out) = (Wire::new(false), Wire::new(false), Wire::new(false));
    dormant.dormant.store(true, Ordering::SeqCst);
    for (number, wire) in [(1, &awake), (2, &dormant), (3, &out)] {
        switch.port(bridge, number, wire);
    }
    switch.rule(bridge, 0, 1, Default::default(), vec![Op::Output(3)]);
    let looks = |wire: &Wire| wire.looks.load(Ordering::SeqCst);
    wait_until("both known", || looks(&awake) > 0 && looks(&dormant) > 0);
    let (before, before_dormant) = (looks(&awake), looks(&dormant));
    // Kept busy, so that no turn is followed by a nap.
    let mut sent = 0;
    while looks(&awake) < before + 50_000 {
        sent += u64::from(awake.waiting() < 64 && awake.try_put(frame(mac(2), mac(1), sent)));
    }
    let dormant_looks = looks(&dormant) - before_dormant;
    assert!(dormant_looks < 25_000, "{dormant_looks} of 50000 looks");
    // Its frames are found, whether it has reported that it is awake again or not.
    dormant.put(frame(mac(2), mac(1), 0));
    wait_until("found though dormant", || out.sent() == sent + 1);
    dormant.dormant.store(false, Ordering::SeqCst);
    dormant.put(frame(mac(2), mac(1), 1));
    wait_until("found when awake", || out.sent() == sent + 2);
}

/// With many queues only those with frames are looked at, every frame arrives everywhere once, and
/// queues may come and go meanwhile.
#[test]
fn a_worker_with_many_quiet_queues_looks_at_those_that_have_something() {
    const PORTS: u32 = 120;
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let wires: Vec<Arc<Wire>> = (0..PORTS)
        .map(|number| {
            let wire = Wire::new(true);
            wire.steady.store(number != 7, Ordering::SeqCst);
            wire
        })
        .collect();
    let mut ids: Vec<_> = (1..)
        .zip(&wires)
        .map(|(number, wire)| switch.port(bridge, number, wire))
        .collect();
    let looks = |wires: &[Arc<Wire>]| -> Vec<u64> {
        let of = |wire: &Arc<Wire>| wire.looks.load(Ordering::SeqCst);
        wires.iter().map(of).collect()
    };
    let at_rest = |wires: &[Arc<Wire>]| {
        let mut before = looks(wires);
        wait_until("the worker sleeps", || {
            std::thread::sleep(Duration::from_millis(50));
            let now = looks(wires);
            std::mem::replace(&mut before, now) == before
        });
    };
    at_rest(&wires);
    let before = looks(&wires);
    let senders = [3_usize, 99, 40, 3, 119, 0, 99];
    for (round, sender) in senders.into_iter().enumerate() {
        wires[sender].put(frame(BROADCAST, mac(sender as u8), round as u64));
        for (number, wire) in wires.iter().enumerate() {
            let sent_itself = senders[..=round].iter().filter(|s| **s == number).count();
            let wanted = (round + 1 - sent_itself) as u64;
            wait_until("a flood", || wire.sent() >= wanted);
            assert_eq!(wire.sent(), wanted, "port {number}");
        }
    }
    at_rest(&wires);
    let after = looks(&wires);
    for number in 0..PORTS as usize {
        let looked = after[number] - before[number];
        if number == 7 {
            // Its descriptor is not readable for every frame.
        } else if senders.contains(&number) {
            assert!(looked > 0, "port {number} had frames");
        } else {
            assert_eq!(looked, 0, "port {number} had nothing");
        }
    }
    // Some are removed while parked, so that others get different indices.
    for number in [98_usize, 50, 10] {
        switch.datapath.remove_port(ids.remove(number)).unwrap();
        assert_eq!(Arc::strong_count(&wires[number]), 1, "nobody holds it");
    }
    wires[118].put(frame(BROADCAST, mac(118), 77));
    let counts = |wires: &[Arc<Wire>]| wires.iter().map(|wire| wire.sent()).sum::<u64>();
    let floods = senders.len() as u64 * u64::from(PORTS - 1);
    let wanted = floods + u64::from(PORTS) - 4;
    wait_until("a flood to those that stay", || counts(&wires) >= wanted);
    at_rest(&wires);
    assert_eq!(counts(&wires), wanted);
    // All at once.
    switch.datapath.remove_ports(&ids).unwrap();
    assert!(
        wires
            .iter()
            .all(|wire| wire.queues_alive.load(Ordering::SeqCst) == 0)
    );
    assert!(
        switch.datapath.remove_ports(&ids[..1]).is_err(),
        "it has gone"
    );
}

#[test]
fn a_descriptor_that_signals_for_nothing_costs_only_its_own_port() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let wires: Vec<_> = (0..3).map(|_| Wire::new(true)).collect();
    for (index, wire) in wires.iter().enumerate() {
        switch.port(bridge, index as u32 + 1, wire);
    }
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    let stop = Arc::new(AtomicBool::new(false));
    let nuisance = {
        let (stop, wire) = (Arc::clone(&stop), Arc::clone(&wires[2]));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                wire.signal();
                std::thread::sleep(Duration::from_micros(20));
            }
        })
    };
    // Time that others take from the processor counts as idle while the worker wants to run, so not
    // every interval shows it.
    wait_until("it sleeps most of the time nevertheless", || {
        let before = switch.datapath.workers()[0].stats;
        std::thread::sleep(Duration::from_millis(300));
        let spent = switch.datapath.workers()[0].stats.since(&before);
        spent.sleep_cycles > spent.idle_cycles
    });
    for number in 0..10 {
        wires[0].put(frame(mac(2), mac(1), number));
        wait_until("forwarded", || wires[1].sent() == number + 1);
    }
    stop.store(true, Ordering::Relaxed);
    nuisance.join().unwrap();
}

#[test]
fn a_failing_queue_does_not_take_the_worker_with_it() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2)]);
    switch.rule(bridge, 0, 1, in_port(3), vec![Op::Output(4)]);
    ports[2].1.fail_receive.store(true, Ordering::SeqCst);
    ports[2].1.put(frame(mac(2), mac(1), 0));
    wait_until("failed once", || {
        switch.datapath.workers()[0].stats.failures == 1
    });
    wait_until("and goes on", || ports[3].1.sent() == 1);
    ports[3].1.fail_send.store(true, Ordering::SeqCst);
    ports[2].1.put(frame(mac(2), mac(1), 1));
    wait_until("the frame is counted", || {
        switch.dropped("worker_failed") > 0
    });
    for number in 0..100 {
        ports[0].1.put(frame(mac(2), mac(1), number));
    }
    wait_until("others are served", || ports[1].1.sent() == 100);
    ports[3].1.fail_send.store(false, Ordering::SeqCst);
    ports[2].1.put(frame(mac(2), mac(1), 2));
    wait_until("healed", || ports[3].1.sent() == 2);
    switch.datapath.remove_port(ports[2].0).unwrap();
    switch.datapath.remove_port(ports[3].0).unwrap();
    assert_eq!(ports[3].1.queues_alive.load(Ordering::SeqCst), 0);
}

#[test]
fn bad_ports_are_refused_and_leave_nothing_behind() {
    let mut switch = Switch::new(2);
    let bridge = switch.bridge("br0");
    let wire = Wire::new(true);
    switch.port(bridge, 1, &wire);
    let spec = |name: &str, number, wire: &Arc<Wire>, good: bool| {
        let (sending, given) = (Arc::clone(wire), AtomicU64::new(0));
        PortSpec {
            name: name.to_owned(),
            bridge,
            number,
            settings: PortSettings::default(),
            kind: PortKind::Device {
                rx: vec![wire.rx()],
                tx: Box::new(move |_| {
                    if !good && given.fetch_add(1, Ordering::SeqCst) == 1 {
                        return Err("no more queues".into());
                    }
                    Ok(sending.tx())
                }),
            },
        }
    };
    let other = Wire::new(true);
    let add = |switch: &mut Switch, spec| switch.datapath.add_port(spec).unwrap_err();
    assert!(matches!(
        add(&mut switch, spec("x", 1, &other, true)),
        Error::NumberInUse { .. }
    ));
    assert!(matches!(
        add(&mut switch, spec("x", 0, &other, true)),
        Error::BadNumber { .. }
    ));
    assert!(matches!(
        add(&mut switch, spec("x", 0xffff_fff8, &other, true)),
        Error::BadNumber { .. }
    ));
    let name = switch.datapath.ports()[0].name.clone();
    assert_eq!(
        add(&mut switch, spec(&name, 2, &other, true)),
        Error::NameInUse(name)
    );
    let error = add(&mut switch, spec("x", 2, &other, false));
    assert!(error.to_string().contains("no more queues"), "{error}");
    assert_eq!(other.queues_alive.load(Ordering::SeqCst), 0);
    assert_eq!(switch.datapath.ports().len(), 1);
    let id = switch
        .datapath
        .add_port(spec("x", 2, &other, true))
        .unwrap();
    assert_eq!(switch.datapath.find_port("x"), Some(id));
    assert!(
        switch.datapath.set_workers(&[Some(5000)]).is_err(),
        "no such processor"
    );
    switch.datapath.set_workers(&[None]).unwrap();
    assert_eq!(
        switch.datapath.workers()[0].queues.len(),
        2,
        "queues survive"
    );
    drop(switch);
    assert_eq!(other.queues_alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_worker_that_starts_after_it_was_given_up_ends() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let witness = Arc::clone(&ended);
    let init = move |_: &str| -> Result<Box<dyn std::any::Any>, datapath::BoxError> {
        let _ = wait.lock().unwrap().recv();
        Ok(Box::new(Alive(Arc::clone(&witness))))
    };
    let mut datapath = Datapath::<HeapFrame>::new(Options {
        program: Arc::new(Program::new()),
        allocate: Box::new(|bytes| Some(HeapFrame::new(bytes))),
        thread_init: Some(Arc::new(init)),
        clock: Arc::new(Clock::default()),
    })
    .unwrap();
    assert!(datapath.set_workers(&[None]).is_err());
    assert!(datapath.workers().is_empty());
    go.send(()).unwrap();
    wait_until("the worker ends, for nobody can stop it", || {
        ended.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn pinned_queues_have_their_worker_and_others_do_not() {
    let mut switch = Switch::new(0);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    switch.datapath.set_workers(&[Some(0), Some(1)]).unwrap();
    let served = |switch: &Switch, cpu: usize| {
        let workers = switch.datapath.workers();
        let worker = workers
            .iter()
            .find(|worker| worker.cpu == Some(cpu))
            .unwrap();
        let queues = worker.queues.iter();
        let mut ports: Vec<_> = queues.map(|queue| queue.port).collect();
        ports.sort();
        (ports, worker.isolated)
    };
    let ids: Vec<_> = ports.iter().map(|(id, _)| *id).collect();
    let pinned_to = |cpu| PortSettings {
        affinity: vec![(0, cpu)],
        ..Default::default()
    };
    switch.datapath.modify_port(ids[0], pinned_to(1)).unwrap();
    assert_eq!(served(&switch, 1), (vec![ids[0]], true));
    assert_eq!(served(&switch, 0), (ids[1..].to_vec(), false));
    // With isolation off it also serves others.
    switch
        .datapath
        .set_assignment(Assignment::Group, false)
        .unwrap();
    assert!(!served(&switch, 1).1 && served(&switch, 1).0.contains(&ids[0]));
    assert_eq!(served(&switch, 0).0.len(), 2);
    switch
        .datapath
        .set_assignment(Assignment::Group, true)
        .unwrap();
    assert_eq!(served(&switch, 1), (vec![ids[0]], true));
    // A pin to a processor without a worker has no effect, and a new pinned port drives others out.
    switch.datapath.modify_port(ids[0], pinned_to(7)).unwrap();
    assert!(!served(&switch, 0).1 && !served(&switch, 1).1);
    assert_eq!(served(&switch, 0).0.len(), 2);
    let wire = Wire::new(true);
    let last = switch.port_with(bridge, 9, &wire, pinned_to(0));
    assert_eq!(served(&switch, 0), (vec![last], true));
    assert_eq!(served(&switch, 1), (ids.clone(), false));
    // Where all workers have pinned queues they serve the rest as well.
    switch.datapath.modify_port(ids[1], pinned_to(1)).unwrap();
    let all = served(&switch, 0).0.len() + served(&switch, 1).0.len();
    assert_eq!(
        (all, served(&switch, 0).1, served(&switch, 1).1),
        (5, false, false)
    );
    assert!(served(&switch, 0).0.contains(&last) && served(&switch, 1).0.contains(&ids[1]));
    // The worker ends, and another comes: the pin takes effect again.
    switch.datapath.set_workers(&[Some(1)]).unwrap();
    assert_eq!(served(&switch, 1).0.len(), 5);
    switch.datapath.set_workers(&[Some(1), Some(0)]).unwrap();
    assert!(served(&switch, 0).0.contains(&last));
}

/// Frames that cost a thousand times as much as others (each goes to 500 ports) do not take their
/// worker from these: both senders get about the same time, and not the same number of frames.
#[test]
fn a_flood_takes_its_share_and_no_more() {
    const COPIES: usize = 500;
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    switch.rule(bridge, 0, 5, in_port(1), vec![Op::Output(3); COPIES]);
    switch.rule(bridge, 0, 5, in_port(2), vec![Op::Output(4)]);
    let frames = vec![frame(mac(2), mac(1), 1).to_vec(); BURST];
    for (_, wire) in &ports[..2] {
        wire.endless.lock().unwrap().0.clone_from(&frames);
        wire.signal();
    }
    let counts = || [ports[2].1.sent() / COPIES as u64, ports[3].1.sent()];
    // Until it is known how long they take.
    grow_by([64, 64], counts);
    let [flooded, sent] = grow_by([200, 2000], counts);
    assert!(
        sent > 10 * flooded,
        "{sent} frames beside {flooded} flooded ones"
    );
    assert!(ports[0].1.most.load(Ordering::SeqCst) < BURST);
    for (_, wire) in &ports[..2] {
        wire.endless.lock().unwrap().0.clear();
    }
}

/// Returns the positions of the ports that each processor's worker serves.
fn served(switch: &Switch, ports: &[(datapath::PortId, Arc<Wire>)]) -> [Vec<usize>; 2] {
    let workers = switch.datapath.workers();
    [0, 1].map(|cpu| {
        let worker = workers.iter().find(|worker| worker.cpu == Some(cpu));
        let queues = worker.unwrap().queues.iter();
        let place = |queue: &datapath::QueueInfo| {
            let mut places = ports.iter();
            places.position(|(id, _)| *id == queue.port)
        };
        let mut places: Vec<usize> = queues.filter_map(place).collect();
        places.sort();
        places
    })
}

#[test]
fn queues_are_assigned_as_configured() {
    let mut switch = Switch::new(0);
    let bridge = switch.bridge("br0");
    // Processors in falling order: assignment goes by their numbers.
    switch.datapath.set_workers(&[Some(1), Some(0)]).unwrap();
    let ports = switch.ports(bridge, 6);
    assert_eq!(served(&switch, &ports), [[0, 2, 4], [1, 3, 5]]);
    let mut assign = |how, isolates| {
        switch.datapath.set_assignment(how, isolates).unwrap();
        served(&switch, &ports)
    };
    assert_eq!(assign(Assignment::RoundRobin, true), [[0, 2, 4], [1, 3, 5]]);
    // One way and back again.
    assert_eq!(assign(Assignment::Cycles, true), [[0, 3, 4], [1, 2, 5]]);
    assert_eq!(assign(Assignment::Group, true), [[0, 2, 4], [1, 3, 5]]);
}

#[test]
fn overloaded_workers_exchange_queues_by_themselves_and_lose_nothing() {
    let clock = Arc::new(Clock::default());
    let mut switch = Switch::with_clock(0, Arc::clone(&clock));
    switch.datapath.set_workers(&[Some(0), Some(1)]).unwrap();
    switch
        .datapath
        .set_assignment(Assignment::Group, true)
        .unwrap();
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    let outs = [8, 9].map(|number| {
        let out = Wire::new(true);
        switch.port(bridge, number, &out);
        out
    });
    // Each frame is sent so often that it makes work.
    const TIMES: usize = 32;
    // Both busy queues are the same worker's.
    let busy = served(&switch, &ports)[0].clone();
    assert_eq!(busy.len(), 2);
    for (at, out) in busy.iter().zip([8, 9]) {
        let number = *at as u32 + 1;
        switch.rule(bridge, 0, 1, in_port(number), vec![Op::Output(out); TIMES]);
    }
    let sources: Vec<Source> = (busy.iter())
        .map(|at| Source::new(&ports[*at].1, |number| frame(mac(2), mac(1), number)))
        .collect();
    let minutes = |switch: &mut Switch, minutes: u64| {
        for _ in 0..minutes * 12 {
            let sent = [0, 1].map(|at: usize| outs[at].sent());
            wait_until("frames", || {
                (0..2).all(|at| outs[at].sent() > sent[at] + 2_000)
            });
            clock.warp(5_000);
            switch.datapath.run();
        }
    };
    let together = |switch: &Switch| served(switch, &ports)[0] == busy;
    minutes(&mut switch, 3);
    assert!(together(&switch), "it is off");
    let mut settings = AutoBalance {
        is_enabled: true,
        load_threshold: 0,
        interval_minutes: 10,
        ..AutoBalance::default()
    };
    switch.datapath.set_auto_balance(settings);
    minutes(&mut switch, 3);
    assert!(together(&switch), "it is not due");
    settings.interval_minutes = 1;
    switch.datapath.set_auto_balance(settings);
    // Where the machine is busy with other things, the workers' shares may be too small at first.
    wait_until("they are apart", || {
        minutes(&mut switch, 2);
        let of_first = &served(&switch, &ports)[0];
        busy.iter().filter(|at| of_first.contains(at)).count() == 1
    });
    let put: Vec<u64> = sources.into_iter().map(Source::stop).collect();
    wait_until("all arrived", || {
        (0..2).all(|at| outs[at].sent() == put[at] * TIMES as u64)
    });
    assert_eq!(switch.dropped_in_all(), 0);
    for out in outs {
        let numbers: Vec<u64> = out
            .take()
            .iter()
            .map(|bytes| u64::from_be_bytes(bytes[14..22].try_into().unwrap()))
            .collect();
        assert!(numbers.is_sorted(), "overtaken");
    }
}
