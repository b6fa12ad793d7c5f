//! One run: the real shaper in virtual time, and its beginning through the reference, too.

use super::Scenario;
use super::source::Sending;
use crate::seen::ratio_deviation;
use crate::{Span, Z95};
use qos::reference;
use qos::shaper::watch::Seen;
use qos::shaper::{Shaper, TICK_NS};

/// Length of runs.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Fewest packets of the first quarter.
    pub first: u64,
    /// Most packets of a run.
    pub most: u64,
    /// A run ends when half the interval of the measured mean is below this share of it.
    pub precision: f64,
    /// Packets that also go through the reference.
    pub reference: usize,
}

impl Effort {
    /// The effort behind the published figures.
    pub const FULL: Effort = Effort {
        first: 20_000,
        most: 400_000_000,
        precision: 0.03,
        reference: 2_000,
    };
}

/// The judged period is three times as long as the recorded one.
pub const HORIZON: f64 = 3.0;

/// Arrivals per batch, from which the measurement's statistical error is estimated.
const BATCH: u64 = 1250;
/// Batches are joined until about this many are left.
const BATCHES: usize = 48;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the shaper recorded in the first quarter.
    pub seen: Seen,
    /// The mean wait after that, in seconds.
    pub measured: Span,
    /// Packets that arrived in total.
    pub packets: u64,
}

/// A call of the shaper with its result.
enum Step {
    Arrive { at_ns: u64, len: u32, taken: bool },
    Leave { at_ns: u64, waited_ns: Option<u64> },
}

struct Simulation {
    shaper: Shaper<u32>,
    sending: Sending,
    now_ns: u64,
    arrivals: u64,
    batches: Vec<(f64, f64)>,
    waited: f64,
    sent: f64,
    steps: Vec<Step>,
    reference: usize,
}

impl Simulation {
    /// Continues until this many packets have arrived.
    fn run(&mut self, arrivals: u64) {
        while self.arrivals < arrivals {
            let coming = self.sending.next_ns();
            match self.shaper.next_departure_ns() {
                Some(leaving) if leaving <= coming => self.depart(leaving),
                _ => self.arrive(coming),
            }
        }
    }

    fn depart(&mut self, at_ns: u64) {
        self.now_ns = self.now_ns.max(at_ns);
        let gone = self.shaper.dequeue(self.now_ns);
        if self.arrivals < self.reference as u64 {
            let waited_ns = gone.as_ref().map(|gone| gone.waited_ns);
            self.steps.push(Step::Leave {
                at_ns: self.now_ns,
                waited_ns,
            });
        }
        match gone {
            Some(gone) => {
                self.waited += gone.waited_ns as f64;
                self.sent += 1.0;
                self.sending.gone(gone.handle, true, self.now_ns);
            }
            // The shaper may name a time up to a millisecond early.
            None if self
                .shaper
                .next_departure_ns()
                .is_some_and(|next| next <= self.now_ns) =>
            {
                self.now_ns += TICK_NS
            }
            None => {}
        }
    }

    fn arrive(&mut self, at_ns: u64) {
        self.now_ns = self.now_ns.max(at_ns);
        let Some(packet) = self.sending.take() else {
            return;
        };
        let taken = self
            .shaper
            .enqueue(0, packet.sender, packet.len, 0, self.now_ns)
            .is_ok();
        if self.arrivals < self.reference as u64 {
            let (at_ns, len) = (self.now_ns, packet.len);
            self.steps.push(Step::Arrive { at_ns, len, taken });
        }
        if !taken {
            self.sending.gone(packet.sender, false, self.now_ns);
        }
        self.arrivals += 1;
        if self.arrivals.is_multiple_of(BATCH) {
            self.batches.push((self.waited, self.sent));
            (self.waited, self.sent) = (0.0, 0.0);
        }
    }

    /// Returns the mean wait in the batches from arrival `from` on.
    fn measured(&self, from: u64) -> Span {
        let batches = &self.batches[(from / BATCH) as usize..];
        let joined: Vec<(f64, f64)> = batches
            .chunks(batches.len().div_ceil(BATCHES).max(1))
            .map(|some| {
                some.iter()
                    .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            })
            .collect();
        let (waited, sent) = joined
            .iter()
            .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let mean = waited / f64::max(sent, 1.0) * 1e-9;
        let half = mean * ratio_deviation(&joined).min(10.0) * Z95;
        Span {
            value: mean,
            low: mean - half,
            high: mean + half,
        }
    }

    /// Repeats the calls on the reference, whose results must be equal.
    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let mut reference = reference::shaper::Shaper::new(&scenario.port(), 0);
        for (number, step) in self.steps.iter().enumerate() {
            let same = match *step {
                Step::Arrive { at_ns, len, taken } => {
                    reference.enqueue(0, number as u64, len, 0, at_ns).is_ok() == taken
                }
                Step::Leave { at_ns, waited_ns } => {
                    reference.dequeue(at_ns).map(|left| left.waited_ns) == waited_ns
                }
            };
            if !same {
                return Err(format!(
                    "scenario {}: step {number}: the reference says otherwise",
                    scenario.number
                ));
            }
        }
        Ok(())
    }
}

/// Simulates a scenario until its mean wait is known precisely enough.
pub fn measure(scenario: &Scenario, effort: Effort) -> Result<Run, String> {
    let shaper = Shaper::new(&scenario.port(), 0).map_err(|error| error.to_string())?;
    if !shaper.watch().ask(0) {
        return Err("the queue is not watched".into());
    }
    let limit = scenario.limit.unwrap_or(100);
    let mut simulation = Simulation {
        shaper,
        sending: Sending::new(
            scenario.source,
            scenario.rate as f64,
            scenario.load,
            scenario.mix,
            limit,
            scenario.number,
        ),
        now_ns: 0,
        arrivals: 0,
        batches: Vec::new(),
        waited: 0.0,
        sent: 0.0,
        steps: Vec::new(),
        reference: effort.reference,
    };
    // The record at each length; the last but one is a quarter of the run.
    let mut looks: Vec<Seen> = Vec::new();
    let mut length = effort.first;
    loop {
        simulation.run(length);
        looks.push(simulation.shaper.watch().seen(0).unwrap_or_default());
        if looks.len() >= 3 {
            let measured = simulation.measured(length / 4);
            let known = measured.half_width() <= effort.precision
                || measured.value < super::RESOLUTION / 4.0;
            if known || 2 * length > effort.most {
                simulation.check(scenario)?;
                return Ok(Run {
                    seen: looks.swap_remove(looks.len() - 3),
                    measured,
                    packets: simulation.arrivals,
                });
            }
        }
        length *= 2;
    }
}
