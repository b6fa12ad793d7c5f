//! Packet sources: on a schedule of their own, or driven by answers.

use super::MIXES;
use crate::random::{Draw, Random};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Source {
    /// Independently of each other.
    Poisson,
    /// At equal intervals, each packet then delayed uniformly by up to this many intervals.
    Jittered {
        /// Intervals.
        periods: f64,
    },
    /// In bursts with a geometric number of packets and exponential pauses.
    OnOff {
        /// Mean packets per burst.
        packets: f64,
        /// Rate within a burst, relative to the queue's.
        peak: f64,
    },
    /// From senders that keep a window of packets in flight, like TCP.
    Windows {
        /// Number of senders.
        senders: u32,
        /// Time from a departure to its answer.
        round_trip_ns: u64,
        /// Whether the window grows by a packet per round trip and is halved when a packet is lost;
        /// otherwise it is constant.
        adaptive: bool,
    },
}

impl Source {
    /// Returns a short name.
    pub fn name(&self) -> String {
        match self {
            Source::Poisson => "Poisson".into(),
            Source::Jittered { periods } => format!("CBR moved by {periods:.1} periods"),
            Source::OnOff { packets, peak } => {
                format!("bursts of {packets:.1} at {peak:.2} of the rate")
            }
            Source::Windows {
                senders,
                round_trip_ns,
                adaptive,
            } => format!(
                "{senders} {} of {:.1} ms",
                if *adaptive {
                    "adaptive windows"
                } else {
                    "windows"
                },
                *round_trip_ns as f64 / 1e6
            ),
        }
    }
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When it arrives.
    pub at_ns: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Its sender.
    pub sender: u32,
}

#[derive(Clone, Debug, Default)]
struct Sender {
    window: f64,
    threshold: f64,
    on_the_way: u32,
    /// Losses before this time belong to the same congestion event.
    halved_ns: u64,
}

enum State {
    Gaps,
    Moved {
        base: f64,
        waiting: BinaryHeap<Reverse<u64>>,
    },
    Windows {
        senders: Vec<Sender>,
        /// Answers on their way: time, sender, and whether the packet arrived.
        answers: BinaryHeap<Reverse<(u64, u32, bool)>>,
        ready: Vec<Packet>,
    },
}

/// A running source.
pub struct Sending {
    source: Source,
    random: Random,
    sizes: Draw,
    /// Mean gap, in nanoseconds.
    gap: f64,
    /// Gap within a burst, likewise.
    short: f64,
    now: f64,
    state: State,
}

impl Sending {
    /// Makes a source at its beginning. `rate` in bit/s.
    pub fn new(source: Source, rate: f64, load: f64, mix: usize, limit: u32, seed: u64) -> Sending {
        let atoms: Vec<(f64, f64)> = MIXES[mix]
            .1
            .iter()
            .map(|(len, weight)| (f64::from(*len), *weight))
            .collect();
        let packet_ns = super::mean_size(mix) * 8e9 / rate;
        let state = match source {
            Source::Jittered { .. } => State::Moved {
                base: 0.0,
                waiting: BinaryHeap::new(),
            },
            Source::Windows {
                senders,
                round_trip_ns,
                adaptive,
            } => {
                // Constant windows are large enough for the load, or additionally for a part of the
                // queue.
                let pipe = round_trip_ns as f64 / packet_ns;
                let all =
                    (pipe + f64::from(limit) * (2.0 * load - 1.0).max(0.0)) * (2.0 * load).min(1.0);
                let each = (all / f64::from(senders)).floor().max(1.0);
                State::Windows {
                    senders: vec![
                        Sender {
                            window: if adaptive { 4.0 } else { each },
                            threshold: if adaptive { 1e9 } else { 0.0 },
                            ..Sender::default()
                        };
                        senders as usize
                    ],
                    answers: BinaryHeap::new(),
                    ready: Vec::new(),
                }
            }
            _ => State::Gaps,
        };
        let peak = match source {
            Source::OnOff { peak, .. } => peak,
            _ => 1.0,
        };
        let mut sending = Sending {
            source,
            random: Random::new(seed),
            sizes: Draw::new(&atoms).expect("a mix has weights"),
            gap: packet_ns / load,
            short: packet_ns / peak,
            now: 0.0,
            state,
        };
        if let State::Windows { senders, .. } = &sending.state {
            (0..senders.len() as u32)
                .for_each(|sender| sending.fill(sender, 1000 * u64::from(sender)));
        }
        sending
    }

    /// Returns the time of the next event: an arrival or an answer.
    pub fn next_ns(&mut self) -> u64 {
        match &mut self.state {
            State::Windows { answers, ready, .. } => {
                let answer = answers.peek().map_or(u64::MAX, |answer| answer.0.0);
                ready
                    .last()
                    .map_or(answer, |packet| packet.at_ns.min(answer))
            }
            State::Moved { base, waiting } => {
                let Source::Jittered { periods } = self.source else {
                    return u64::MAX;
                };
                // All that may still arrive before the first one waiting.
                while waiting.peek().is_none_or(|first| *base <= first.0 as f64) {
                    let moved = *base + self.random.unit() * periods * self.gap;
                    waiting.push(Reverse(moved as u64));
                    *base += self.gap;
                }
                waiting.peek().map_or(u64::MAX, |first| first.0)
            }
            State::Gaps => {
                if self.now == 0.0 {
                    self.now = self.one_gap();
                }
                self.now as u64
            }
        }
    }

    fn one_gap(&mut self) -> f64 {
        match self.source {
            Source::OnOff { packets, .. } => {
                if self.random.unit() * packets < 1.0 {
                    // A pause whose mean preserves the load.
                    let pause = packets * (self.gap - self.short);
                    self.short + self.random.exponential(pause.max(0.0))
                } else {
                    self.short
                }
            }
            _ => self.random.exponential(self.gap),
        }
    }

    /// Handles the event at [`Sending::next_ns`]; returns the packet, or None for an answer.
    pub fn take(&mut self) -> Option<Packet> {
        let at_ns = self.next_ns();
        match &mut self.state {
            State::Windows { answers, ready, .. } => {
                if ready.last().is_some_and(|packet| packet.at_ns <= at_ns) {
                    return ready.pop();
                }
                let answer = answers.pop().map(|answer| answer.0);
                if let Some((at, sender, arrived)) = answer {
                    self.answered(at, sender, arrived);
                }
                None
            }
            State::Moved { waiting, .. } => {
                waiting.pop();
                Some(self.packet(at_ns, 0))
            }
            State::Gaps => {
                self.now += self.one_gap();
                Some(self.packet(at_ns, 0))
            }
        }
    }

    fn packet(&mut self, at_ns: u64, sender: u32) -> Packet {
        Packet {
            at_ns,
            len: self.sizes.draw(&mut self.random) as u32,
            sender,
        }
    }

    /// Reports that a packet has left, or was dropped.
    pub fn gone(&mut self, sender: u32, arrived: bool, now_ns: u64) {
        if let (State::Windows { answers, .. }, Source::Windows { round_trip_ns, .. }) =
            (&mut self.state, self.source)
        {
            // Round trips differ a little.
            let way = round_trip_ns - round_trip_ns / 16 + self.random.below(round_trip_ns / 8 + 1);
            answers.push(Reverse((now_ns + way, sender, arrived)));
        }
    }

    fn answered(&mut self, now_ns: u64, sender: u32, arrived: bool) {
        let Source::Windows {
            adaptive,
            round_trip_ns,
            ..
        } = self.source
        else {
            return;
        };
        let State::Windows { senders, .. } = &mut self.state else {
            return;
        };
        let state = &mut senders[sender as usize];
        state.on_the_way = state.on_the_way.saturating_sub(1);
        if adaptive && arrived {
            let slow_start = state.window < state.threshold;
            state.window += if slow_start { 1.0 } else { 1.0 / state.window };
        } else if adaptive && now_ns >= state.halved_ns {
            state.window = (state.window / 2.0).max(2.0);
            state.threshold = state.window;
            state.halved_ns = now_ns + 2 * round_trip_ns;
        }
        self.fill(sender, now_ns);
    }

    /// Sends what the window allows, one packet per microsecond.
    fn fill(&mut self, sender: u32, now_ns: u64) {
        let State::Windows { senders, .. } = &self.state else {
            return;
        };
        let state = &senders[sender as usize];
        let more = (state.window as u32).saturating_sub(state.on_the_way);
        let mut packets: Vec<Packet> = (0..more)
            .map(|at| self.packet(now_ns + 1000 * u64::from(at), sender))
            .collect();
        if let State::Windows { senders, ready, .. } = &mut self.state {
            senders[sender as usize].on_the_way += more;
            ready.append(&mut packets);
            // The next one is last.
            ready.sort_by_key(|packet| Reverse(packet.at_ns));
        }
    }
}
