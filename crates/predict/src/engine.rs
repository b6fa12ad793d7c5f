//! Measures what rules cost a worker, in cycles: whole turns over ports in memory, under the rules
//! and under a reference.
//!
//! The costs of ports and rules do not simply add up: whoever reads a packet first waits for it if
//! it was copied from cold memory. So ports are measured under a [`Reference`], the simplest rules
//! that make a worker read packets, or leave them unread; and rules are measured by how much longer
//! than the reference they take, over ports that behave like the real ones.

use crate::machine::Watch;
use crate::memory::{self, Buffer, Sink, Source, Store};
use crate::ports::{PortCost, Shares};
use crate::rules::Rules;
use crate::spread::Spread;
use crate::trace::Trace;
use crate::traffic::Traffic;
use crate::worker::{self, INTERRUPTED, Port, Setting, Stand, Turns, WARM, patience};
use crate::{Effort, Error};
use datapath::clock::cycles;
use datapath::{LOCAL, PortSettings, Shape};
use packet::io::{BURST, RxQueue, TxQueue};
use program::table::Reads;
use qos::policer::{IngressSpec, PolicerSpec, Profile};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Fewest packets of a round.
pub const ROUND_MIN: usize = 65_536;
/// How long rules and reference run at a time over ports in memory, in turns.
const SLICE: Duration = Duration::from_millis(8);
/// Two batch sizes, to separate the costs of sending per call and per packet.
const BATCHES: (usize, usize) = (BURST, 4);

/// Simple rules under which ports are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// Packets are forwarded without being read.
    Untouched,
    /// Packets are forwarded after their headers were read.
    Touched,
}

impl Reference {
    /// Returns the reference that is closest to these rules.
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

    /// Returns the rules, which send all packets to port 2 or 3.
    pub fn rules(self) -> Result<Rules, Error> {
        self.rules_to([2, 3])
    }

    /// Like [`Reference::rules`], with other ports.
    fn rules_to(self, [out, other]: [u32; 2]) -> Result<Rules, Error> {
        let text = match self {
            Reference::Untouched => format!("actions=output:{out}\n"),
            Reference::Touched => format!(
                "priority=2,udp,tp_dst=65535,actions=output:{other}\n\
                 priority=1,actions=output:{out}\n"
            ),
        };
        Rules::read("reference", &text, &openflow::parse::no_names)
    }
}

/// Result of measuring a worker.
#[derive(Clone, Debug)]
pub struct EngineCost {
    /// Turns under the rules.
    pub rules: Turns,
    /// Turns under the reference.
    pub reference: Turns,
    /// What a policer costs per received packet; zero if not requested.
    pub police_in: Spread,
    /// What a policer costs per sent packet, likewise.
    pub police_out: Spread,
    /// Cost of the ports in memory.
    pub ports: PortCost,
}

impl EngineCost {
    /// Returns what turns take without the ports.
    pub fn without_ports(&self, turns: &Turns) -> Spread {
        let ports = self.ports.receive.median + self.ports.send(turns.sent, turns.batch).median;
        turns.cycles.minus(Spread::exact(ports))
    }
}

/// Measures a worker under the rules and one under the reference with this traffic, alternating, so
/// that changes of the machine affect both. Also measures the reference with policers, if packets
/// pass any.
pub fn measure(
    rules: &Rules,
    traffic: &Traffic,
    trace: &Trace,
    (reference, policed): (Reference, Shares),
    effort: Effort,
    watch: &mut Watch,
) -> Result<EngineCost, Error> {
    let stores = stores(traffic);
    let with_local =
        |ports: &mut dyn Iterator<Item = u32>| -> BTreeSet<u32> { ports.chain([LOCAL]).collect() };
    let round = traffic.arrivals.len().max(ROUND_MIN) as u64;
    // Ports that packets arrive by are not used to send.
    let mut free = (1..).filter(|port| stores.iter().all(|(inward, _)| inward != port));
    let out = [free.next(), free.next()].map(|port| port.unwrap_or(LOCAL));
    let all = with_local(&mut trace.out_ports.keys().copied());
    let same = with_local(&mut out.into_iter());
    let of_reference = |policer: Policer| {
        let rules = reference.rules_to(out)?;
        with_worker(&rules, &stores, &same, policer, round, effort)
    };
    let mut stands = vec![
        with_worker(rules, &stores, &all, Policer::None, round, effort)?,
        of_reference(Policer::None)?,
    ];
    let asked = [
        (policed.received, Policer::Inward),
        (policed.sent, Policer::Outward),
    ]
    .map(|(share, policer)| (share > 0.0).then_some(policer));
    for policer in asked.into_iter().flatten() {
        stands.push(of_reference(policer)?);
    }
    worker::in_turns(&mut stands, effort.rounds, watch)?;
    let turns = stands.into_iter().map(Stand::finish);
    let mut turns = turns.collect::<Result<Vec<Turns>, Error>>()?.into_iter();
    let (Some(of_rules), Some(reference)) = (turns.next(), turns.next()) else {
        return Err(Error::new("a worker is missing"));
    };
    let more = |turns: Turns| turns.cycles.minus(reference.cycles).at_least(0.0);
    let police = asked.map(|asked| asked.and_then(|_| turns.next()).map(more));
    let ports = ports_alone(&stores, round, effort)?;
    watch.look()?;
    let [police_in, police_out] = police.map(Option::unwrap_or_default);
    Ok(EngineCost {
        rules: of_rules,
        reference,
        police_in,
        // The reference sends each packet once.
        police_out,
        ports,
    })
}

/// Which direction a worker's ports police.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policer {
    /// Neither.
    None,
    /// Received packets.
    Inward,
    /// Sent packets.
    Outward,
}

impl Policer {
    /// Returns port settings with a policer that lets everything pass: measures policing, not
    /// dropping.
    fn settings(self) -> PortSettings {
        let mut settings = PortSettings::default();
        match self {
            Policer::None => {}
            Policer::Inward => {
                settings.ingress = IngressSpec {
                    kbits_rate: u32::MAX,
                    kbits_burst: u32::MAX,
                    ..IngressSpec::default()
                };
            }
            Policer::Outward => {
                let profile = Profile {
                    rate: 50_000_000_000,
                    burst: 1_000_000_000,
                };
                settings.shape = Shape::Policer(Arc::new(PolicerSpec::One(profile)));
            }
        }
        settings
    }
}

/// Returns each ingress port with its frames.
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
    policer: Policer,
    round: u64,
    effort: Effort,
) -> Result<Stand<Buffer>, Error> {
    let mut ports: Vec<Port<Buffer>> = stores
        .iter()
        .map(|(number, store)| Port {
            number: *number,
            rx: Some(Box::new(Source::new(Arc::clone(store)))),
            tx: Box::new(Sink),
            settings: policer.settings(),
        })
        .collect();
    for number in out {
        if stores.iter().all(|(inward, _)| inward != number) {
            ports.push(Port {
                number: *number,
                rx: None,
                tx: Box::new(Sink),
                settings: policer.settings(),
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

/// Measures the ports in memory: received frames are sent at once.
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
        let alone = Alone {
            rounds: effort.rounds,
            round,
            interrupted: INTERRUPTED,
        };
        ports_loop(&mut sources, &mut sink, alone, &mut |_| true)
    })
}

/// How to measure ports without a worker.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// Rounds to measure.
    pub rounds: usize,
    /// Packets per round; at least as many as the traffic has distinct ones.
    pub round: u64,
    /// A burst that takes longer, in cycles, was interrupted and does not count.
    pub interrupted: u64,
}

/// Moves frames from receive queues to a transmit queue, in whole bursts in every other round and
/// in small batches in the others, and returns what each side cost. Before each burst, calls
/// `ready` with the number of frames of the previous one; it may wait for more, and ends the loop
/// by returning false. Fails if no frames came, or every burst was interrupted.
pub fn ports_loop<F: packet::Frame>(
    sources: &mut [Box<dyn RxQueue<F>>],
    sink: &mut Box<dyn TxQueue<F>>,
    alone: Alone,
    ready: &mut dyn FnMut(usize) -> bool,
) -> Result<PortCost, Error> {
    let Alone {
        rounds,
        round: round_packets,
        interrupted,
    } = alone;
    let (mut last, mut came) = (0, false);
    let (mut receive, mut large, mut small) = (Vec::new(), Vec::new(), Vec::new());
    let mut frames = Vec::with_capacity(BURST);
    let mut part = Vec::with_capacity(BURST);
    let end = Instant::now() + patience(rounds);
    let reading = reading_cycles();
    for round in 0..2 * (rounds.max(3) + WARM) {
        let whole = round % 2 == 0;
        let (mut in_receive, mut in_send, mut packets, mut empty) = (0, 0, 0_u64, 0_u32);
        'round: while packets < round_packets && empty < 1 << 20 && Instant::now() < end {
            for source in sources.iter_mut() {
                if !ready(last) {
                    break 'round;
                }
                let start = cycles();
                let count = source.receive(&mut frames);
                last = count;
                let received = cycles();
                if count == 0 {
                    empty += 1;
                    continue;
                }
                came = true;
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
                // As for a worker's turns. Rounds of thousands of ports are long, and on a busy
                // processor hardly one of them is not interrupted.
                if sent.wrapping_sub(start) >= interrupted {
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
        return Err(Error::new(match came {
            true => "the processor was too busy to measure ports",
            false => "no frames came to measure ports with",
        }));
    }
    let batches = ((BATCHES.0, large), (BATCHES.1, small));
    Ok(PortCost::of_rounds(receive, batches.0, batches.1))
}

/// Returns what reading the cycle counter costs, in cycles.
pub fn reading_cycles() -> u64 {
    let read = || {
        let start = cycles();
        cycles().wrapping_sub(start)
    };
    (0..1000).map(|_| read()).min().unwrap_or(0)
}

/// Runs `work` on a thread of its own, on this processor if one is named. Fails if the thread or
/// the processor is not available, or if `work` fails or panics.
pub fn on_a_thread<T: Send>(
    cpu: Option<usize>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let work = || {
            cpu.map_or(Ok(()), datapath::pin)
                .map_err(|error| Error::new(error.to_string()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::FRAME_MAX;
    use qos::policer::IngressPolicer;

    #[test]
    fn policers_that_are_measured_police_and_let_everything_pass() {
        let inward = Policer::Inward.settings();
        let policer = IngressPolicer::new(&inward.ingress, 0).expect("it polices");
        // Some gigabytes within a nanosecond.
        assert!((0..1_000_000).all(|_| policer.pass(FRAME_MAX, 1)));
        assert_eq!(inward.shape, Shape::None);
        let outward = Policer::Outward.settings();
        assert!(outward.ingress.is_none());
        let Shape::Policer(spec) = outward.shape else {
            panic!("it does not police");
        };
        assert_eq!(spec.check(), Ok(()));
        let none = Policer::None.settings();
        assert!(none.ingress.is_none() && none.shape == Shape::None);
    }

    #[test]
    fn references_send_by_the_ports_that_they_are_given() {
        for reference in [Reference::Untouched, Reference::Touched] {
            let rules = reference.rules_to([7, 9]).unwrap();
            let traffic = Traffic::of_rules(&rules, 1).unwrap();
            let trace = crate::trace::trace(&rules, &traffic).unwrap();
            let ports: Vec<u32> = trace.out_ports.keys().copied().collect();
            assert!(ports.starts_with(&[7]) && ports.iter().all(|port| [7, 9].contains(port)));
            assert_eq!(Reference::of(&rules).unwrap(), reference);
        }
    }
}
