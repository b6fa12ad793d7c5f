//! Methods: how a cell is measured.
//!
//! Each is a procedure over a [`Trial`], which offers a load for some seconds and says what came of
//! it. A method knows neither switches nor generators, and its tests run it against a simulated
//! device whose capacity is known.

pub mod back_to_back;
mod error;
pub mod flow_setup;
pub mod latency;
pub mod load;
pub mod loss;
pub mod mlrsearch;
pub mod recovery;
pub mod rfc2544;
pub mod soak;
pub mod throughput;
pub mod tst009;

pub use self::error::Error;

use crate::changes::Changes;
use std::collections::BTreeMap;

/// Offers load to a device under test.
pub trait Trial {
    /// Offers so many packets per second, or as many as can be sent, for so many seconds.
    fn run(&mut self, offered_pps: Option<f64>, seconds: f64) -> Result<Outcome, Error>;

    /// Sends bursts of so many frames, as fast as they can be sent, so far apart that queues empty
    /// between them.
    fn burst(&mut self, _frames: u64, _repeats: u32) -> Result<Outcome, Error> {
        Err(Error::NoBursts)
    }

    /// Offers `rates.0` packets per second for `times.0` seconds, then at once `rates.1` for
    /// `times.1`, in one schedule.
    fn step(&mut self, _rates: (f64, f64), _times: (f64, f64)) -> Result<Stepped, Error> {
        Err(Error::NoSteps)
    }

    /// Changes rules while packets pass, as often as `seconds` allow.
    fn changes(&mut self, _seconds: f64) -> Result<Changes, Error> {
        Err(Error::NoChanges)
    }
}

/// What came of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds in which it was sent.
    pub seconds: f64,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that came back, each counted once.
    pub received: u64,
    /// From the scheduled time to arrival; absent where frames carry no stamps.
    pub latency: Option<Latency>,
    /// The same the other way, where frames go both ways.
    pub back: Option<Latency>,
    /// Frames that came more than once.
    pub duplicates: u64,
    /// Frames that came after a later one of their flow.
    pub reordered: u64,
    /// Why the generator could not offer more, if it could not. Where the device lost some of what
    /// it was offered, the device was the limit nevertheless.
    pub limited: Option<String>,
    /// What was the limit whatever was lost: guests that did not take what came for them, a core
    /// that is shared.
    pub hindered: Option<String>,
}

/// What came of a rate that changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stepped {
    /// Frames that were sent before the change, and how many of them came back.
    pub before: (u64, u64),
    /// Those after it.
    pub after: (u64, u64),
    /// When the last frame was due that did not come back, seconds after the change; below 0:
    /// before it.
    pub last_lost: Option<f64>,
    /// What was the limit if not the device, in words.
    pub limited: Option<String>,
}

impl Outcome {
    /// Packets per second that came back.
    pub fn rate(&self) -> f64 {
        self.received as f64 / self.seconds.max(1e-9)
    }

    /// Packets per second that were sent.
    pub fn offered(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }

    /// What was the limit if not the device, in words; all that is known.
    pub fn limits(&self) -> Option<String> {
        let both = [&self.hindered, &self.limited];
        let mut words: Vec<&str> = both.into_iter().flatten().map(String::as_str).collect();
        words.dedup();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Share of frames that did not come back, 0 to 1.
    pub fn loss(&self) -> f64 {
        match self.sent {
            0 => 0.0,
            sent => 1.0 - self.received.min(sent) as f64 / sent as f64,
        }
    }
}

/// A distribution of latencies, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90% are at or below.
    pub p90: f64,
    /// 99%.
    pub p99: f64,
    /// 99.9%.
    pub p999: f64,
    /// The greatest.
    pub max: f64,
}

impl Latency {
    /// Writes it as figures, in microseconds, whose names end so.
    pub fn into_figures(self, end: &str, figures: &mut Figures) {
        let all = [
            ("latency", self.mean),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p999", self.p999),
            ("max", self.max),
        ];
        figures.extend(all.map(|(name, ns)| (format!("{name}{end}"), ns / 1e3)));
    }
}

/// What a method is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Seconds of a trial.
    pub seconds: f64,
    /// The load to offer, packets per second; absent: as much as can be sent.
    pub load: Option<f64>,
    /// The highest load that a search tries.
    pub most: f64,
    /// Share of frames that may be lost.
    pub loss: f64,
    /// Width at which a search ends, relative to the load.
    pub width: f64,
    /// Length of a frame with its check sequence, bytes.
    pub size: u16,
    /// Time stamp counter cycles per second of all workers together.
    pub cycles: f64,
}

/// Figures by measure.
pub type Figures = BTreeMap<String, f64>;

/// What a method found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Figures by measure.
    pub figures: Figures,
    /// What was the limit if not the device.
    pub limited: Option<String>,
    /// Trials that it took.
    pub trials: u32,
}

impl Found {
    /// Adds a figure.
    pub fn set(&mut self, measure: &str, value: f64) {
        self.figures.insert(measure.into(), value);
    }

    /// Adds what a trial says of rate, loss and latency.
    fn describe(&mut self, outcome: &Outcome) {
        self.set("rate", outcome.rate() / 1e6);
        self.set("offered", outcome.offered() / 1e6);
        self.set("loss", outcome.loss() * 100.0);
        for (latency, end) in [(outcome.latency, ""), (outcome.back, "_back")] {
            if let Some(latency) = latency {
                latency.into_figures(end, &mut self.figures);
            }
        }
        self.set("reordered", outcome.reordered as f64);
        self.set("duplicates", outcome.duplicates as f64);
        self.limited = outcome.limits();
    }
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The most that comes through.
    Throughput,
    /// What comes of an offered load.
    Load,
    /// RFC 2544, 26.1: the greatest load without loss.
    Rfc2544Throughput,
    /// RFC 2544, 26.2: latency at that load.
    Latency,
    /// RFC 2544, 26.3: loss from the greatest load downwards.
    Loss,
    /// RFC 9004: the longest burst without loss.
    BackToBack,
    /// RFC 2544, 26.5: time until an overloaded device forwards all again.
    Recovery,
    /// NDR and PDR by MLRsearch.
    MlrSearch,
    /// TST009: binary search with loss verification.
    Tst009,
    /// A load for long.
    Soak,
    /// From a rule's change to the first packet that obeys.
    FlowSetup,
    /// A program of the lab's measures, and prints cells ([`program`](crate::program)).
    Program,
    /// A simulation ([`simulation`](crate::simulation)).
    Simulation,
    /// The host itself is measured ([`machine`](crate::machine)).
    Host,
}

const METHODS: [(&str, Method); 14] = [
    ("throughput", Method::Throughput),
    ("load", Method::Load),
    ("rfc2544-throughput", Method::Rfc2544Throughput),
    ("rfc2544-latency", Method::Latency),
    ("rfc2544-loss", Method::Loss),
    ("back-to-back", Method::BackToBack),
    ("recovery", Method::Recovery),
    ("mlrsearch", Method::MlrSearch),
    ("tst009", Method::Tst009),
    ("soak", Method::Soak),
    ("flow-setup", Method::FlowSetup),
    ("program", Method::Program),
    ("simulation", Method::Simulation),
    ("host", Method::Host),
];

/// What trials that are described in full say.
const DESCRIBED: &[&str] = &[
    "rate",
    "offered",
    "loss",
    "latency",
    "p50",
    "p90",
    "p99",
    "p999",
    "max",
    "latency_back",
    "p50_back",
    "p90_back",
    "p99_back",
    "p999_back",
    "max_back",
    "reordered",
    "duplicates",
];

impl Method {
    /// Finds a method by its name in experiments.
    pub fn by_name(name: &str) -> Option<Method> {
        METHODS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, method)| *method)
    }

    /// Names of all.
    pub fn names() -> Vec<&'static str> {
        METHODS.iter().map(|(name, _)| *name).collect()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = METHODS.iter().find(|(_, method)| *method == self);
        found.expect("all are named").0
    }

    /// Whether cells come from outside, and not from trials.
    pub fn is_outside(self) -> bool {
        matches!(self, Method::Program | Method::Simulation | Method::Host)
    }

    /// Measures that it can fill. (Latency is absent where frames carry no stamps, and `_back`
    /// where they go one way.) What comes from outside has its own.
    pub fn measures(self) -> &'static [&'static str] {
        match self {
            Method::Throughput => &["rate", "gbit", "cycles", "offered", "loss"],
            Method::Load | Method::Latency => DESCRIBED,
            Method::Rfc2544Throughput | Method::Tst009 => &["rate", "gbit", "trials"],
            Method::Loss => &[
                "knee", "rate", "loss", "loss_90", "loss_80", "loss_70", "loss_60", "loss_50",
            ],
            Method::BackToBack => &["burst", "buffer", "rate"],
            Method::Recovery => &["recovery", "lost"],
            Method::MlrSearch => &["ndr", "pdr", "ndr_low", "pdr_low", "trials", "searched"],
            Method::Soak => &["rate", "least", "loss", "worst_loss", "p99", "max", "drift"],
            Method::FlowSetup => &[
                "setup",
                "setup_p99",
                "barrier",
                "barrier_p99",
                "statistics",
                "statistics_p99",
                "changes",
            ],
            Method::Program | Method::Simulation | Method::Host => &[],
        }
    }

    /// Whether it needs to offer a load of its choice, which ports that feed themselves cannot do.
    pub fn offers(self) -> bool {
        self != Method::Throughput
    }

    /// About how many trials it makes, for the time left.
    pub fn trials(self) -> f64 {
        match self {
            Method::Throughput | Method::Load | Method::FlowSetup => 1.0,
            Method::Rfc2544Throughput => 9.0,
            Method::Latency => 10.0,
            Method::Loss => 6.0,
            Method::BackToBack => 12.0,
            Method::Recovery => 11.0,
            Method::MlrSearch => 20.0,
            Method::Tst009 => 12.0,
            Method::Soak => f64::from(soak::SLICES),
            Method::Program | Method::Simulation | Method::Host => 0.0,
        }
    }

    /// Measures.
    pub fn measure(self, trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
        let mut trial = Counted { trial, count: 0 };
        let mut found = match self {
            Method::Throughput => throughput::measure(&mut trial, limits),
            Method::Load => load::measure(&mut trial, limits),
            Method::Rfc2544Throughput => rfc2544::measure(&mut trial, limits),
            Method::Latency => latency::measure(&mut trial, limits),
            Method::Loss => loss::measure(&mut trial, limits),
            Method::BackToBack => back_to_back::measure(&mut trial, limits),
            Method::Recovery => recovery::measure(&mut trial, limits),
            Method::MlrSearch => mlrsearch::measure(&mut trial, limits),
            Method::Tst009 => tst009::measure(&mut trial, limits),
            Method::Soak => soak::measure(&mut trial, limits),
            Method::FlowSetup => flow_setup::measure(&mut trial, limits),
            Method::Program | Method::Simulation | Method::Host => Err(Error::Outside),
        }?;
        found.trials = trial.count;
        Ok(found)
    }
}

/// Counts trials.
struct Counted<'a> {
    trial: &'a mut dyn Trial,
    count: u32,
}

impl Trial for Counted<'_> {
    fn run(&mut self, offered_pps: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
        self.count += 1;
        self.trial.run(offered_pps, seconds)
    }

    fn burst(&mut self, frames: u64, repeats: u32) -> Result<Outcome, Error> {
        self.count += 1;
        self.trial.burst(frames, repeats)
    }

    fn step(&mut self, rates: (f64, f64), times: (f64, f64)) -> Result<Stepped, Error> {
        self.count += 1;
        self.trial.step(rates, times)
    }

    fn changes(&mut self, seconds: f64) -> Result<Changes, Error> {
        self.count += 1;
        self.trial.changes(seconds)
    }
}

/// Bits per second on a wire of so many frames: each has 20 bytes of preamble and gap beside it.
pub fn gbit(rate: f64, size: u16) -> f64 {
    rate * (f64::from(size) + 20.0) * 8.0 / 1e9
}

/// Limits for tests: searches from 20 Mpps on, half a second a trial.
#[cfg(test)]
fn limits() -> Limits {
    Limits {
        seconds: 0.5,
        load: None,
        most: 20e6,
        loss: 0.0,
        width: 0.01,
        size: 64,
        cycles: 2.6e9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Device;

    /// An experiment may name what a method says that it measures, and nothing else comes.
    #[test]
    fn methods_measure_what_they_say() {
        for (name, method) in METHODS {
            assert_eq!(Method::by_name(name), Some(method));
            assert_eq!(method.name(), name);
            if method == Method::FlowSetup || method.is_outside() {
                continue;
            }
            let limits = Limits {
                load: Some(1e6),
                ..limits()
            };
            let found = method.measure(&mut Device::new(3e6), &limits).unwrap();
            let measured: Vec<_> = found.figures.keys().map(String::as_str).collect();
            for measure in &measured {
                assert!(method.measures().contains(measure), "{name}: {measure}");
            }
            for measure in method.measures() {
                assert!(measured.contains(measure), "{name} lacks {measure}");
            }
            assert!(found.trials > 0);
        }
    }

    #[test]
    fn a_trial_that_fails_is_the_answer() {
        struct Broken;
        impl Trial for Broken {
            fn run(&mut self, _: Option<f64>, _: f64) -> Result<Outcome, Error> {
                Err(Error::Trial("no carrier".into()))
            }
        }
        for (name, method) in METHODS {
            let error = method.measure(&mut Broken, &limits()).unwrap_err();
            assert!(!error.to_string().is_empty(), "{name}");
        }
    }

    #[test]
    fn rates_and_losses_are_ratios() {
        let outcome = Outcome {
            seconds: 2.0,
            sent: 1000,
            received: 900,
            ..Outcome::default()
        };
        assert_eq!((outcome.rate(), outcome.offered()), (450.0, 500.0));
        assert!((outcome.loss() - 0.1).abs() < 1e-12);
        assert_eq!(Outcome::default().loss(), 0.0);
        assert_eq!(Outcome::default().limits(), None);
        // 14.88 Mpps of 64 bytes are 10 Gbit/s.
        assert!((gbit(14_880_952.0, 64) - 10.0).abs() < 1e-6);
    }
}
