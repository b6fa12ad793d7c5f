//! A device under test whose truth is known, for tests of methods.

use crate::methods::{Error, Latency, Outcome, Stepped, Trial};

/// Random numbers from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// Begins at a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Uniform between 0 (not included) and 1.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and standard deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

/// A switch of known capacity with a queue, behind a generator of known ability.
pub struct Device {
    /// Packets per second that it forwards.
    pub capacity: f64,
    /// Standard deviation of its capacity from trial to trial, relative.
    pub noise: f64,
    /// Packets that it holds.
    pub queue: f64,
    /// Probability that a trial loses a few packets for no reason of the switch's.
    pub flaky: f64,
    /// Packets per second that the generator can send.
    pub generator: f64,
    /// What is the limit whatever is lost.
    pub hindered: Option<&'static str>,
    /// Trials so far.
    pub trials: u32,
    /// Seconds of all trials so far.
    pub seconds: f64,
    /// Random numbers.
    pub random: Random,
}

impl Device {
    /// A device without noise, loss or limit of the generator.
    pub fn new(capacity: f64) -> Device {
        Device {
            capacity,
            noise: 0.0,
            queue: 0.0,
            flaky: 0.0,
            generator: 1e12,
            hindered: None,
            trials: 0,
            seconds: 0.0,
            random: Random::new(7),
        }
    }

    fn forward(&mut self, offered: f64, frames: f64, queue: f64) -> Outcome {
        let capacity = self.capacity * (1.0 + self.noise * self.random.normal()).max(0.01);
        let rate = offered.min(self.generator);
        let duration = frames / rate;
        let mut received = frames.min(capacity * duration + queue);
        if self.random.unit() < self.flaky {
            received -= (frames * 1e-5).ceil().min(received);
        }
        let waiting = if rate > capacity {
            queue / capacity
        } else {
            0.0
        };
        let ns = 1e9 * (1.0 / capacity + waiting);
        let latency = Latency {
            mean: ns,
            p50: ns,
            p90: ns,
            p99: ns,
            p999: ns,
            max: ns,
        };
        Outcome {
            seconds: duration,
            sent: frames.round() as u64,
            received: received.round().min(frames.round()) as u64,
            latency: Some(latency),
            back: Some(latency),
            limited: (rate < offered * 0.999).then(|| "the generator sent less".to_string()),
            hindered: self.hindered.map(str::to_string),
            ..Outcome::default()
        }
    }
}

impl Trial for Device {
    fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
        self.trials += 1;
        self.seconds += seconds;
        let offered = offered.unwrap_or(1e9).min(self.generator * 10.0);
        Ok(self.forward(offered, offered.min(self.generator) * seconds, self.queue))
    }

    /// What is above its capacity is lost, until the change.
    fn step(&mut self, rates: (f64, f64), times: (f64, f64)) -> Result<Stepped, Error> {
        let before = self.run(Some(rates.0), times.0)?;
        let after = self.run(Some(rates.1), times.1)?;
        Ok(Stepped {
            before: (before.sent, before.received),
            after: (after.sent, after.received),
            last_lost: (before.received < before.sent).then_some(-1e-6),
            limited: before.limits().or(after.limits()),
        })
    }

    fn burst(&mut self, frames: u64, _repeats: u32) -> Result<Outcome, Error> {
        self.trials += 1;
        let rate = self.generator.min(1e9);
        Ok(self.forward(rate, frames as f64, self.queue))
    }
}
