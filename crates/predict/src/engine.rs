//! What rules cost a worker, in cycles: its whole turns over ports in memory, under the rules and under a reference.
//!
//! Ports and rules do not cost their sum: a packet that is copied from cold memory is waited for by whoever reads it first. So ports are measured with a [`Reference`] in
//! force, the simplest rules that make a worker read packets, or not read them; and rules are measured by how much more than the reference they take, over ports that
//! behave as the real ones do.

use crate::machine::Watch;
use crate::memory::{self, Buffer, Sink, Source, Store};
use crate::ports::PortCost;
use crate::rules::Rules;
use crate::spread::Spread;
use crate::trace::Trace;
use crate::traffic::Traffic;
use crate::worker::{self, INTERRUPTED, Port, Setting, Stand, Turns, WARM, patience};
use crate::{Effort, Error};
use datapath::LOCAL;
use datapath::clock::cycles;
use packet::io::{BURST, RxQueue, TxQueue};
use program::table::Reads;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets of a round at least.
pub const ROUND_MIN: usize = 65_536;
/// How long rules and reference work at a time over ports in memory: they take turns.
const SLICE: Duration = Duration::from_millis(8);
/// Sizes of batches by which sending is told apart into calls and packets.
const BATCHES: (usize, usize) = (BURST, 4);

/// Rules to measure ports with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// Packets are sent on without being read.
    Untouched,
    /// A packet's headers are read, and it is sent on.
    Touched,
}

impl Reference {
    /// What comes nearest to these rules.
    pub fn of(rules: &Rules) -> Result<Reference, Error> {
        let mut reader = rules
            .program
            .domain
            .reader()
            .ok_or_else(|| Error::new("too many readers of the rules"))?;
        let reads = rules.bridge().reads(0, &reader.begin());
        reader.offline();
        Ok(match reads {
            Reads::Port => Reference::Untouched,
            _ => Reference::Touched,
        })
    }

    /// The rules: what comes in leaves by port 2 or 3.
    pub fn rules(self) -> Result<Rules, Error> {
        let text = match self {
            Reference::Untouched => "actions=output:2\n",
            Reference::Touched => {
                "priority=2,udp,tp_dst=65535,actions=output:3\npriority=1,actions=output:2\n"
            }
        };
        Rules::read("reference", text, &openflow::parse::no_names)
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct EngineCost {
    /// Turns under the rules.
    pub rules: Turns,
    /// Turns under the reference.
    pub reference: Turns,
    /// The ports in memory.
    pub ports: PortCost,
}

impl EngineCost {
    /// What turns take without the ports.
    pub fn without_ports(&self, turns: &Turns) -> Spread {
        let ports = self.ports.receive.median + self.ports.send(turns.sent, turns.batch).median;
        turns.cycles.minus(Spread::exact(ports))
    }
}

/// Measures the rules' worker under this traffic, and the reference's, in turns: what moves the machine moves both.
pub fn measure(
    rules: &Rules,
    traffic: &Traffic,
    trace: &Trace,
    reference: Reference,
    effort: Effort,
    watch: &mut Watch,
) -> Result<EngineCost, Error> {
    let stores = stores(traffic);
    let out =
        |ports: &mut dyn Iterator<Item = u32>| -> BTreeSet<u32> { ports.chain([LOCAL]).collect() };
    let round = traffic.arrivals.len().max(ROUND_MIN) as u64;
    let all = out(&mut trace.out_ports.keys().copied());
    let same = out(&mut [2, 3].into_iter());
    let mut stands = [
        with_worker(rules, &stores, &all, round, effort)?,
        with_worker(&reference.rules()?, &stores, &same, round, effort)?,
    ];
    worker::in_turns(&mut stands, effort.rounds, watch)?;
    let [of_rules, of_reference] = stands.map(Stand::finish);
    let ports = ports_alone(&stores, round, effort)?;
    watch.look()?;
    Ok(EngineCost {
        rules: of_rules?,
        reference: of_reference?,
        ports,
    })
}

/// Each ingress port with its frames.
fn stores(traffic: &Traffic) -> Vec<(u32, Arc<Store>)> {
    traffic
        .in_ports()
        .into_iter()
        .map(|port| {
            let own: Vec<_> = traffic
                .arrivals
                .iter()
                .filter(|arrival| arrival.in_port == port)
                .collect();
            (port, Arc::new(Store::new(own.into_iter())))
        })
        .collect()
}

fn with_worker(
    rules: &Rules,
    stores: &[(u32, Arc<Store>)],
    out: &BTreeSet<u32>,
    round: u64,
    effort: Effort,
) -> Result<Stand<Buffer>, Error> {
    let mut ports: Vec<Port<Buffer>> = stores
        .iter()
        .map(|(number, store)| Port {
            number: *number,
            rx: Some(Box::new(Source::new(Arc::clone(store)))),
            tx: Box::new(Sink),
        })
        .collect();
    for number in out {
        if stores.iter().all(|(inward, _)| inward != number) {
            ports.push(Port {
                number: *number,
                rx: None,
                tx: Box::new(Sink),
            });
        }
    }
    let setting = Setting {
        allocate: Box::new(memory::frame),
        thread_init: None,
        round,
        slice: SLICE,
    };
    Stand::new(rules, ports, setting, effort.cpu)
}

/// What the ports in memory cost: frames that are received go straight out again.
fn ports_alone(
    stores: &[(u32, Arc<Store>)],
    round: u64,
    effort: Effort,
) -> Result<PortCost, Error> {
    let stores: Vec<_> = stores.iter().map(|(_, store)| Arc::clone(store)).collect();
    on_a_thread(effort.cpu, move || {
        let mut sources: Vec<Box<dyn RxQueue<Buffer>>> = stores
            .into_iter()
            .map(|store| Box::new(Source::new(store)) as Box<dyn RxQueue<Buffer>>)
            .collect();
        let mut sink: Box<dyn TxQueue<Buffer>> = Box::new(Sink);
        ports_loop(&mut sources, &mut sink, (effort.rounds, round))
    })
}

/// Hands frames from receive queues to a transmit queue, whole bursts in every other round and small batches between, and says what each side cost. A round has so many
/// packets; it should be as many as there are different ones. Fails where there was not one burst that nothing interrupted.
pub fn ports_loop<F: packet::Frame>(
    sources: &mut [Box<dyn RxQueue<F>>],
    sink: &mut Box<dyn TxQueue<F>>,
    (rounds, round_packets): (usize, u64),
) -> Result<PortCost, Error> {
    let (mut receive, mut large, mut small) = (Vec::new(), Vec::new(), Vec::new());
    let mut frames = Vec::with_capacity(BURST);
    let mut part = Vec::with_capacity(BURST);
    let end = Instant::now() + patience(rounds);
    let reading = reading_cycles();
    for round in 0..2 * (rounds.max(3) + WARM) {
        let whole = round % 2 == 0;
        let (mut in_receive, mut in_send, mut packets, mut empty) = (0, 0, 0_u64, 0_u32);
        while packets < round_packets && empty < 1 << 20 && Instant::now() < end {
            for source in sources.iter_mut() {
                let start = cycles();
                let count = source.receive(&mut frames);
                let received = cycles();
                if count == 0 {
                    empty += 1;
                    continue;
                }
                if whole {
                    sink.send(&mut frames);
                } else {
                    while !frames.is_empty() {
                        let batch = frames.len().min(BATCHES.1);
                        part.extend(frames.drain(..batch));
                        sink.send(&mut part);
                    }
                }
                let sent = cycles();
                // As for a worker's turns. Rounds of thousands of ports are long, and where others want the processor hardly one of them is not interrupted.
                if sent.wrapping_sub(start) >= INTERRUPTED {
                    continue;
                }
                in_receive += received.wrapping_sub(start).saturating_sub(reading);
                in_send += sent.wrapping_sub(received).saturating_sub(reading);
                packets += count as u64;
            }
        }
        if packets == 0 {
            break;
        }
        if round >= 2 * WARM {
            receive.push(in_receive as f64 / packets as f64);
            let sent = if whole { &mut large } else { &mut small };
            sent.push(in_send as f64 / packets as f64);
        }
    }
    if large.is_empty() || small.is_empty() {
        return Err(Error::new("the processor was too busy to measure ports"));
    }
    let batches = ((BATCHES.0, large), (BATCHES.1, small));
    Ok(PortCost::of_rounds(receive, batches.0, batches.1))
}

/// What it costs to read the counter of cycles.
pub fn reading_cycles() -> u64 {
    let read = || {
        let start = cycles();
        cycles().wrapping_sub(start)
    };
    (0..1000).map(|_| read()).min().unwrap_or(0)
}

/// Does something on a thread of its own, on this processor if one is named. Fails where that cannot be had, or a thread, and where what is done does or panics.
pub fn on_a_thread<T: Send>(
    cpu: Option<usize>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let work = || {
            cpu.map_or(Ok(()), datapath::pin).map_err(Error::new)?;
            work()
        };
        let thread = std::thread::Builder::new()
            .name("predict".into())
            .spawn_scoped(scope, work)
            .map_err(|error| Error::new(format!("cannot start a thread: {error}")))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::new("measuring failed")))
    })
}
