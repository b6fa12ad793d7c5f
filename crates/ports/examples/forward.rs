//! Forwards frames between two ports, in both directions, and prints the rate: what a core can do
//! before any switching.
//!
//! `forward PORT PORT [SECONDS] [DPDK-EXTRA]`, where a port is `TYPE:NAME[;OPTION=VALUE]...`:
//!
//!     forward 'dpdk:a;dpdk-devargs=net_pcap0,rx_pcap=FILE,infinite_rx=1' \
//!         'dpdk:b;dpdk-devargs=net_null0,no-rx=1'
//!     forward system:veth1 system:veth2 10

use packet::io::{RxQueue, TxQueue};
use ports::{Eal, EalOptions, Mbuf, OpenPort, PortSpec};
use std::path::Path;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

fn open(eal: &Eal, text: &str) -> Result<OpenPort, Failure> {
    let mut parts = text.split(';');
    let (kind, name) = parts
        .next()
        .and_then(|port| port.split_once(':'))
        .ok_or("a port is TYPE:NAME")?;
    let options = parts
        .filter_map(|option| option.split_once('='))
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    let spec = PortSpec::from_row(name, kind, &options, Path::new("/tmp"))?;
    Ok(ports::open(eal, &spec)?)
}

/// One direction of forwarding.
struct Direction {
    from: Box<dyn RxQueue<Mbuf>>,
    to: Box<dyn TxQueue<Mbuf>>,
    packets: u64,
    bytes: u64,
    lost: u64,
}

impl Direction {
    fn forward(&mut self, frames: &mut Vec<Mbuf>) {
        if self.from.receive(frames) > 0 {
            let outcome = self.to.send(frames);
            self.packets += outcome.packets;
            self.bytes += outcome.bytes;
            self.lost += outcome.full + outcome.failed + outcome.too_long;
        }
    }
}

fn work(directions: &mut [Direction], seconds: u64) {
    let registration = ports::eal::register_thread();
    let mut frames = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..200 {
            for direction in directions.iter_mut() {
                direction.forward(&mut frames);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    for direction in directions {
        println!(
            "{} packets, {:.2} million a second, {:.2} Gbit/s, {} lost, {:?}",
            direction.packets,
            direction.packets as f64 / seconds / 1e6,
            direction.bytes as f64 * 8.0 / seconds / 1e9,
            direction.lost,
            direction.from.drops()
        );
    }
    drop(registration);
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().ok_or("which port is the first?")?;
    let second = arguments.next().ok_or("which port is the second?")?;
    let seconds: u64 = arguments.next().as_deref().unwrap_or("2").parse()?;
    let eal = ports::eal::init(&EalOptions {
        extra: arguments.next().unwrap_or_default(),
        ..EalOptions::default()
    })?;
    println!("{eal:?}");
    let (mut a, mut b) = (open(&eal, &first)?, open(&eal, &second)?);
    let direction = |from: &mut OpenPort, to: &mut OpenPort| -> Result<Direction, Failure> {
        Ok(Direction {
            from: from.rx.remove(0),
            to: to.control.tx_queue(0)?,
            packets: 0,
            bytes: 0,
            lost: 0,
        })
    };
    let mut directions = [direction(&mut a, &mut b)?, direction(&mut b, &mut a)?];
    let worker = std::thread::spawn(move || {
        work(&mut directions, seconds);
        directions
    });
    let directions = worker.join().map_err(|_| "the worker panicked")?;
    a.control.close();
    b.control.close();
    drop(directions);
    eal.cleanup();
    Ok(())
}
