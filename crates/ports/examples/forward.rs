//! Moves frames from one DPDK device to another and says how fast: what a core can do before any switching.
//!
//! `forward net_pcap0,rx_pcap=FILE,infinite_rx=1 net_null0,no-rx=1 [SECONDS] [DPDK-EXTRA]`

use ports::{Dpdk, EalOptions, Kind, PortSpec};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let from = arguments.next().ok_or("which device to receive from?")?;
    let to = arguments.next().ok_or("which device to send to?")?;
    let seconds: u64 = arguments.next().as_deref().unwrap_or("2").parse()?;
    let eal = ports::eal::init(&EalOptions {
        extra: arguments.next().unwrap_or_default(),
        ..EalOptions::default()
    })?;
    println!("{eal:?}");
    let mut source = ports::open(&eal, &PortSpec::new("source", Kind::Dpdk(Dpdk::new(from))))?;
    let mut sink = ports::open(&eal, &PortSpec::new("sink", Kind::Dpdk(Dpdk::new(to))))?;
    let mut tx = sink.control.tx_queue(0)?;
    let worker = std::thread::spawn(move || {
        let registration = ports::eal::register_thread();
        let rx = &mut source.rx[0];
        let mut frames = Vec::new();
        let (mut packets, start) = (0, Instant::now());
        while start.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..1000 {
                rx.receive(&mut frames);
                packets += tx.send(&mut frames).packets;
            }
        }
        let rate = packets as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{packets} packets, {rate:.2} million a second");
        drop(registration);
        source
    });
    let source = worker.join().map_err(|_| "the worker panicked")?;
    source.control.close();
    sink.control.close();
    eal.cleanup();
    Ok(())
}
