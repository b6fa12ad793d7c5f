//! Checks a spec and prepares what it says.

use crate::capture::Capture;
use crate::flows::{Chooser, MOST_WEIGHED, PERIOD_MAX};
use crate::frames::Maker;
use crate::random::{Alias, number};
use crate::schedule::{Arrivals, Part, Schedule};
use crate::spec::{Order, Port, Rate, Size, Spec, Step, Stream};
use crate::stamp::Layout;
use crate::table::Table;
use std::path::Path;
use std::sync::Arc;

pub mod listed;

/// Most streams: a stamp has 8 bits for them.
const STREAMS: usize = 250;
/// Most sinks.
const SINKS: usize = 64;
/// Most pairs of a stream and a sink; each takes up to 17 MiB for what has arrived.
const PAIRS: usize = 1_024;
/// Highest rate that is understood, packets per second.
const MOST_PPS: f64 = 1e9;
/// Longest time that is understood, seconds; stamps have 48 bits for it.
const LONGEST: f64 = 200_000.0;
/// Most steps of a rate.
const STEPS: usize = 1_000;
/// Longest frame.
const MOST_BYTES: u16 = 65_000;

/// Something in a spec that cannot be done, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Problem {
    /// The path of the field, such as `streams[1].rate.constant.pps`.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

impl Problem {
    /// Makes a problem.
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Problem {
        Problem {
            place: place.into(),
            what: what.into(),
        }
    }
}

/// What to do, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The streams.
    pub streams: Vec<Planned>,
    /// How many ports receive.
    pub sinks: usize,
    /// Times that count, after those that do not, and in which only receiving goes on;
    /// nanoseconds.
    pub seconds: u64,
    /// See `seconds`.
    pub warm_up: u64,
    /// See `seconds`.
    pub drain: u64,
    /// Tells this run's frames from those of others.
    pub run: u8,
}

/// A stream, prepared.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// When its frames are due.
    pub schedule: Schedule,
    /// What they are.
    pub content: Content,
    /// The longest of its frames, bytes.
    pub longest: u16,
}

/// What a stream's frames are.
#[derive(Clone, Debug)]
pub enum Content {
    /// Made for measuring.
    Made(Box<Made>),
    /// Those of a file.
    Recorded {
        /// The file's.
        capture: Arc<Capture>,
        /// Whether they are sent again and again.
        repeat: bool,
    },
}

/// Frames that are made.
#[derive(Clone, Debug)]
pub struct Made {
    /// Whose they are.
    pub chooser: Chooser,
    /// How long they are.
    pub sizes: Sizes,
    /// What they hold.
    pub frames: Frames,
}

/// What frames hold.
#[derive(Clone, Debug)]
pub enum Frames {
    /// Headers of which some fields differ between flows, each by a rule of its own.
    Swept(Maker),
    /// The headers of a list.
    Listed(Table),
}

impl Frames {
    /// Returns where stamps begin, each place at least once.
    pub fn stamps_at(&self) -> Vec<usize> {
        match self {
            Frames::Swept(maker) => vec![maker.layout().1],
            Frames::Listed(table) => table.stamps_at(),
        }
    }

    /// Returns the layout of stamps that begin at `at`; None if none does.
    #[inline(always)]
    pub fn layout_at(&self, at: usize) -> Option<Layout> {
        match self {
            Frames::Swept(maker) => {
                let (layout, its) = maker.layout();
                (its == at).then_some(layout)
            }
            Frames::Listed(table) => table.layout_at(at),
        }
    }
}

impl Planned {
    /// Returns how many flows there are, as far as they are told apart.
    pub fn flows(&self) -> u64 {
        match &self.content {
            Content::Made(made) => made.chooser.count(),
            Content::Recorded { .. } => 1,
        }
    }

    /// Returns how many frames are sent at most; None: as many as the time has room for.
    pub fn frames(&self) -> Option<u64> {
        match &self.content {
            Content::Recorded {
                capture,
                repeat: false,
            } => Some(capture.len() as u64),
            _ => None,
        }
    }
}

/// Chooses lengths: the numbers of templates.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// All alike.
    One,
    /// In turn.
    Turn(u64),
    /// A pattern of numbers.
    Pattern(&'static [u8]),
    /// At random, by weights.
    Weighed(Alias, u64),
}

/// The simple Internet mix: 7 short, 4 medium and 1 long of twelve.
const IMIX: [u8; 12] = [0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 1, 0];

impl Sizes {
    /// Returns the template of frame `sequence`.
    #[inline(always)]
    pub fn of(&self, sequence: u64) -> usize {
        match self {
            Sizes::One => 0,
            Sizes::Turn(count) => (sequence % count) as usize,
            Sizes::Pattern(pattern) => {
                usize::from(pattern[(sequence % pattern.len() as u64) as usize])
            }
            Sizes::Weighed(alias, seed) => alias.choose(number(*seed, sequence)),
        }
    }

    fn new(place: &str, size: &Size, seed: u64) -> Result<(Sizes, Vec<u16>), Problem> {
        let problem = |field: &str, what: String| Problem::new(format!("{place}.{field}"), what);
        let (sizes, lengths) = match size {
            Size::Fixed(length) => (Sizes::One, vec![*length]),
            Size::Imix => (Sizes::Pattern(&IMIX), vec![60, 590, 1514]),
            Size::Sweep(first, last) => {
                if first > last {
                    let what = format!("from {first} to {last} is no way up");
                    return Err(problem("size.sweep", what));
                }
                let lengths: Vec<u16> = (*first..=*last).collect();
                (Sizes::Turn(lengths.len() as u64), lengths)
            }
            Size::Mix(parts) => {
                let is_good = |weight: f64| weight.is_finite() && weight >= 0.0;
                for (at, &(_, weight)) in parts.iter().enumerate() {
                    if !is_good(weight) {
                        let field = format!("size.mix[{at}][1]");
                        return Err(problem(&field, format!("{weight} is no weight")));
                    }
                }
                let weights: Vec<f64> = parts.iter().map(|part| part.1).collect();
                let total: f64 = weights.iter().sum();
                if total <= 0.0 || !total.is_finite() {
                    let what = "there must be a length with a weight above 0".into();
                    return Err(problem("size.mix", what));
                }
                let lengths = parts.iter().map(|part| part.0).collect();
                (Sizes::Weighed(Alias::new(&weights), seed), lengths)
            }
        };
        if let Some(long) = lengths.iter().find(|&&length| length > MOST_BYTES) {
            return Err(problem("size", format!("{long} is above {MOST_BYTES}")));
        }
        Ok((sizes, lengths))
    }
}

impl Plan {
    /// Checks a spec and prepares its run. `run` tells its frames from those of other runs.
    pub fn new(spec: &Spec, run: u8) -> Result<Plan, Problem> {
        let seconds = |name: &str, value: f64, least: f64| {
            if value.is_finite() && value >= least && value <= LONGEST {
                return Ok((value * 1e9) as u64);
            }
            let what = format!("{value}: must be a number from {least} to {LONGEST}");
            Err(Problem::new(name, what))
        };
        if spec.streams.is_empty() && spec.sinks.is_empty() {
            return Err(Problem::new(
                "streams",
                "there is neither a stream nor a sink",
            ));
        }
        if spec.streams.len() > STREAMS {
            let what = format!("{} are more than {STREAMS}", spec.streams.len());
            return Err(Problem::new("streams", what));
        }
        if spec.sinks.len() > SINKS {
            let what = format!("{} are more than {SINKS}", spec.sinks.len());
            return Err(Problem::new("sinks", what));
        }
        if spec.streams.len() * spec.sinks.len() > PAIRS {
            let what = format!(
                "{} sinks for {} streams: at most {PAIRS} pairs are kept account of",
                spec.sinks.len(),
                spec.streams.len()
            );
            return Err(Problem::new("sinks", what));
        }
        for (at, sink) in spec.sinks.iter().enumerate() {
            if spec.sinks[..at].contains(sink) {
                return Err(Problem::new(format!("sinks[{at}]"), "it is named twice"));
            }
        }
        let (warm_up, drain) = (
            seconds("warm_up", spec.warm_up, 0.0)?,
            seconds("drain", spec.drain, 0.0)?,
        );
        let times = (warm_up, seconds("seconds", spec.seconds, 0.000_001)?);
        let streams: Result<Vec<Planned>, Problem> = spec
            .streams
            .iter()
            .enumerate()
            .map(|(at, stream)| planned(at, stream, number(spec.seed, at as u64), times))
            .collect();
        let is_file = |port: &&Port| matches!(port, Port::File(_));
        Ok(Plan {
            streams: streams?,
            sinks: spec.sinks.iter().filter(|port| !is_file(port)).count(),
            seconds: times.1,
            warm_up,
            drain,
            run,
        })
    }
}

/// `times` are those before what counts and of what counts, nanoseconds.
fn planned(at: usize, stream: &Stream, seed: u64, times: (u64, u64)) -> Result<Planned, Problem> {
    let place = format!("streams[{at}]");
    let flows = &stream.flows;
    let least = if flows.rules.is_some() { 0 } else { 1 };
    if !(least..u64::from(u32::MAX)).contains(&flows.count) {
        return Err(Problem::new(
            format!("{place}.flows.count"),
            format!(
                "{}: must be a number from {least} to {}",
                flows.count,
                u32::MAX - 1
            ),
        ));
    }
    if let Order::Zipf { s } = flows.order
        && !(s.is_finite() && (0.0..=20.0).contains(&s))
    {
        return Err(Problem::new(
            format!("{place}.flows.order.zipf.s"),
            format!("{s}: must be a number from 0 to 20"),
        ));
    }
    if let Order::Pareto { a, b } = flows.order {
        for (name, value) in [("a", a), ("b", b)] {
            if !(value.is_finite() && (1e-6..=1000.0).contains(&value)) {
                return Err(Problem::new(
                    format!("{place}.flows.order.pareto.{name}"),
                    format!("{value}: must be a number from 0.000001 to 1000"),
                ));
            }
        }
    }
    let name_of = match flows.order {
        Order::Zipf { .. } => Some("zipf"),
        Order::Pareto { .. } => Some("pareto"),
        Order::InTurn | Order::Random => None,
    };
    if let Some(name) = name_of
        && flows.count > MOST_WEIGHED
    {
        return Err(Problem::new(
            format!("{place}.flows.count"),
            format!(
                "{} is above {MOST_WEIGHED}, the most for {name}",
                flows.count
            ),
        ));
    }
    let name = match stream.name.is_empty() {
        true => format!("stream {at}"),
        false => stream.name.clone(),
    };
    let rate = format!("{place}.rate");
    if let Rate::Replay {
        file,
        speed,
        pps,
        repeat,
    } = &stream.rate
    {
        let capture = Capture::open(Path::new(file)).map_err(|error| {
            Problem::new(format!("{rate}.replay.file"), format!("{file}: {error}"))
        })?;
        if capture.is_empty() {
            let what = format!("{file}: there is no frame in it");
            return Err(Problem::new(format!("{rate}.replay.file"), what));
        }
        let longest = (0..capture.len()).map(|at| capture.frame(at).len() as u16);
        return Ok(Planned {
            name,
            schedule: replay(&rate, &capture, *speed, *pps)?,
            longest: longest.max().unwrap_or(0),
            content: Content::Recorded {
                capture: Arc::new(capture),
                repeat: *repeat,
            },
        });
    }
    let (sizes, lengths) = Sizes::new(&place, &stream.size, number(seed, 1))?;
    let (frames, count) = match &flows.rules {
        None => {
            let maker = Maker::new(&place, &stream.headers, &lengths, &flows.by, flows.count)?;
            (Frames::Swept(maker), flows.count)
        }
        Some(rules) => {
            let table = listed::table(&place, stream, rules, &lengths, number(seed, 4))?;
            let count = table.count();
            (Frames::Listed(table), count)
        }
    };
    let chooser = Chooser::new(count, &flows.order, number(seed, 3));
    if !chooser.is_whole() {
        return Err(Problem::new(
            format!("{place}.flows.order.pareto"),
            format!("one turn of {count} flows takes more than {PERIOD_MAX} frames"),
        ));
    }
    Ok(Planned {
        name,
        schedule: schedule(&rate, &stream.rate, number(seed, 2), times)?,
        content: Content::Made(Box::new(Made {
            chooser,
            sizes,
            frames,
        })),
        longest: lengths.into_iter().max().unwrap_or(0),
    })
}

/// Returns a rate's mean distance of frames, nanoseconds.
fn distance(place: &str, kind: &str, pps: f64) -> Result<f64, Problem> {
    if pps.is_finite() && pps > 0.0 && pps <= MOST_PPS {
        return Ok(1e9 / pps);
    }
    let what = format!("{pps}: must be a number above 0 and up to {MOST_PPS}");
    Err(Problem::new(format!("{place}.{kind}.pps"), what))
}

/// Returns when the frames of a file are sent.
fn replay(
    place: &str,
    capture: &Capture,
    speed: Option<f64>,
    pps: Option<f64>,
) -> Result<Schedule, Problem> {
    let kind = match (speed, pps) {
        (Some(_), Some(_)) => {
            let what = "it excludes pps";
            return Err(Problem::new(format!("{place}.replay.speed"), what));
        }
        (None, Some(pps)) => Arrivals::Even {
            distance: distance(place, "replay", pps)?,
            length: 1,
        },
        (speed, None) => {
            let speed = speed.unwrap_or(1.0);
            if !(speed.is_finite() && (1e-6..=1e6).contains(&speed)) {
                let what = format!("{speed}: must be a number from 0.000001 to 1000000");
                return Err(Problem::new(format!("{place}.replay.speed"), what));
            }
            let scaled = |time: u64| (time as f64 / speed) as u64;
            let times: Vec<u64> = capture.times().map(scaled).collect();
            // From one round to the next it is as far as from one frame to the next, on average.
            let last = times.last().copied().unwrap_or(0);
            let round = last + (last / (times.len() as u64 - 1).max(1)).max(1);
            Arrivals::Recorded {
                times: times.into(),
                round,
            }
        }
    };
    Ok(Schedule::new(kind, 0))
}

/// Returns when frames of steps are due.
fn steps(place: &str, steps: &[Step], (warm_up, seconds): (u64, u64)) -> Result<Arrivals, Problem> {
    let problem = |field: &str, what: String| Err(Problem::new(format!("{place}.{field}"), what));
    if !(1..=STEPS).contains(&steps.len()) {
        return problem(
            "steps",
            format!("must be 1 to {STEPS}, not {}", steps.len()),
        );
    }
    let mut parts: Vec<Part> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let field = format!("steps[{at}]");
        let from = step.from;
        let right = match at {
            0 => from == 0.0,
            _ => from > steps[at - 1].from && from < seconds as f64 / 1e9,
        };
        if !right {
            let what = match at {
                0 => format!("{from}: the first step begins at 0"),
                _ => format!("{from}: must be later than the step before it, and before the end"),
            };
            return problem(&format!("{field}.from"), what);
        }
        parts.push(Part {
            from: match at {
                0 => 0.0,
                _ => warm_up as f64 + from * 1e9,
            },
            distance: distance(place, &field, step.pps)?,
        });
    }
    Ok(Arrivals::Steps {
        parts: parts.into(),
        firsts: vec![0],
    })
}

fn schedule(place: &str, rate: &Rate, seed: u64, times: (u64, u64)) -> Result<Schedule, Problem> {
    let distance = |kind: &str, pps: f64| distance(place, kind, pps);
    let period = |field: &str, seconds: f64| {
        if seconds.is_finite() && (1e-6..=LONGEST).contains(&seconds) {
            return Ok(seconds * 1e9);
        }
        let what = format!("{seconds}: must be a number from 0.000001 to {LONGEST}");
        Err(Problem::new(format!("{place}.{field}"), what))
    };
    let kind = match *rate {
        Rate::Steps(ref all) => steps(place, all, times)?,
        Rate::Most => Arrivals::Most,
        Rate::Constant { pps } => Arrivals::Even {
            distance: distance("constant", pps)?,
            length: 1,
        },
        Rate::Poisson { pps } => Arrivals::Poisson {
            mean: distance("poisson", pps)?,
            at: 0.0,
        },
        Rate::Bursts { pps, length } => {
            if length == 0 {
                return Err(Problem::new(
                    format!("{place}.bursts.length"),
                    "0: a burst has at least one frame",
                ));
            }
            Arrivals::Even {
                distance: distance("bursts", pps)? * f64::from(length),
                length: length.into(),
            }
        }
        Rate::OnOff { pps, on, off } => Arrivals::OnOff {
            distance: distance("on-off", pps)?,
            on: period("on-off.on", on)?,
            off: period("on-off.off", off)?,
            at: 0.0,
            until: 0.0,
        },
        Rate::Replay { .. } => unreachable!("files have been read before"),
    };
    Ok(Schedule::new(kind, seed))
}

/// Reads a spec: YAML, of which JSON is a part. The error names the field.
pub fn read(text: &str) -> Result<Spec, Problem> {
    let value: serde_json::Value = serde_yaml_ng::from_str(text)
        .map_err(|error| Problem::new("the spec", error.to_string()))?;
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { "the spec".into() } else { path };
        Problem::new(place, error.into_inner().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        match read(text).and_then(|spec| Plan::new(&spec, 0)) {
            Ok(_) => String::new(),
            Err(problem) => problem.to_string(),
        }
    }

    fn stream(parts: &str) -> String {
        format!(
            "seconds: 1\nstreams:\n- port: {{dpdk: net_null0}}\n  {}\n",
            parts.replace('\n', "\n  ")
        )
    }

    #[test]
    fn good_specs_are_read() {
        assert_eq!(problem(&stream("rate: most")), "");
        let whole = r#"{"seconds": 2, "warm_up": 0.1, "core": 1, "sinks": [{"interface": "h2"}],
            "streams": [{"port": {"virtio-user": {"path": "/run/x", "server": true}},
                "rate": {"constant": {"pps": 1e6}}, "size": "imix",
                "flows": {"count": 10, "order": {"zipf": {"s": 1.1}},
                    "by": [{"field": "udp_src"}]},
                "headers": {"vlan": 5}}]}"#;
        assert_eq!(problem(whole), "");
    }

    #[test]
    fn problems_name_their_fields() {
        for (text, wanted) in [
            ("seconds: 1\nstreams: []", "streams: there is neither"),
            (
                "seconds: x\nstreams: []",
                "seconds: invalid type: string \"x\"",
            ),
            (
                "seconds: 0\nstreams: []\nsinks: [{interface: a}]",
                "seconds: 0: must be a number from",
            ),
            (
                &stream("rate: fast"),
                "streams[0].rate: unknown variant `fast`",
            ),
            (
                &stream("rate: {constant: {pps: -1}}"),
                "streams[0].rate.constant.pps: -1: must be a number",
            ),
            (
                &stream("rate: {constant: {pps: 1, x: 2}}"),
                "unknown field `x`",
            ),
            (
                &stream("rate: {bursts: {pps: 1, length: 0}}"),
                "streams[0].rate.bursts.length: 0",
            ),
            (
                &stream("rate: {on-off: {pps: 1, on: 0, off: 1}}"),
                "streams[0].rate.on-off.on: 0",
            ),
            (
                &stream("rate: {steps: []}"),
                "streams[0].rate.steps: must be 1 to 1000, not 0",
            ),
            (
                &stream("rate: {steps: [{from: 1, pps: 5}]}"),
                "streams[0].rate.steps[0].from: 1: the first",
            ),
            (
                &stream("rate: {steps: [{from: 0, pps: 5}, {from: 0, pps: 6}]}"),
                "streams[0].rate.steps[1].from: 0: must be later than the step before it",
            ),
            (
                &stream("rate: {steps: [{from: 0, pps: 5}, {from: 1, pps: 6}]}"),
                "streams[0].rate.steps[1].from: 1: must be later than the step before it, and before the end",
            ),
            (
                &stream("rate: {steps: [{from: 0, pps: 0}]}"),
                "streams[0].rate.steps[0].pps: 0: must be a number",
            ),
            (
                &stream("rate: most\nsize: {sweep: [100, 90]}"),
                "streams[0].size.sweep: from 100 to 90",
            ),
            (
                &stream("rate: most\nsize: {mix: [[60, 1], [70, -1]]}"),
                "streams[0].size.mix[1][1]: -1",
            ),
            (
                &stream("rate: most\nsize: {mix: []}"),
                "streams[0].size.mix: there must be",
            ),
            (
                &stream("rate: most\nsize: {fixed: 65001}"),
                "streams[0].size: 65001 is above",
            ),
            (
                &stream("rate: most\nsize: {fixed: 40}"),
                "streams[0].size: 40 bytes are too few",
            ),
            (
                &stream("rate: most\nflows: {count: 0}"),
                "streams[0].flows.count: 0: must be a number",
            ),
            (
                &stream("rate: most\nflows: {count: 2, order: {zipf: {s: -1}}}"),
                "streams[0].flows.order.zipf.s: -1",
            ),
            (
                &stream("rate: most\nflows: {count: 2, by: [{field: ip_foo}]}"),
                "streams[0].flows.by[0].field: \"ip_foo\": there are eth_src, eth_dst",
            ),
            (
                "seconds: 1\nstreams: []\nsinks: [{interface: a}, {interface: a}]",
                "sinks[1]: it is named twice",
            ),
            ("seconds: [", "the spec: "),
        ] {
            let told = problem(text);
            assert!(told.contains(wanted), "{told:?} has no {wanted:?}");
        }
    }

    #[test]
    fn imix_has_its_shares() {
        let (sizes, lengths) = Sizes::new("s", &Size::Imix, 0).unwrap();
        let mut counts = [0; 3];
        (0..1200).for_each(|sequence| counts[sizes.of(sequence)] += 1);
        assert_eq!((counts, lengths), ([700, 400, 100], vec![60, 590, 1514]));
        let (sizes, _) = Sizes::new("s", &Size::Sweep(60, 63), 0).unwrap();
        let all: Vec<usize> = (0..6).map(|sequence| sizes.of(sequence)).collect();
        assert_eq!(all, [0, 1, 2, 3, 0, 1]);
        let parts = vec![(60, 1.0), (1000, 3.0)];
        let (sizes, _) = Sizes::new("s", &Size::Mix(parts), 1).unwrap();
        let long: usize = (0..10_000).map(|sequence| sizes.of(sequence)).sum();
        assert!((7_300..7_700).contains(&long), "{long}");
    }
}
