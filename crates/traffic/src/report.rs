//! What became of the traffic: the output of `sluice gen`.

use serde::{Deserialize, Serialize};

/// What a run of the generator found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this layout; 1.
    pub schema: u32,
    /// Seconds that were measured, by the clock.
    pub seconds: f64,
    /// How well it kept its own schedule, measured before and meanwhile.
    pub generator: Generator,
    /// What was sent, by stream in the order of the spec.
    pub streams: Vec<Sent>,
    /// What was received, by sink in the order of the spec.
    pub sinks: Vec<Received>,
}

/// How well the generator kept its own schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Difference of the rate at which frames were offered to the ports (taken or refused) from the
    /// one asked for, relative: -0.01 is 1% less. 0 where as many as possible are asked for.
    pub rate_error: f64,
    /// Whether the generator, and not what it measured, was the limit; why, in words.
    pub limited: Option<String>,
    /// How late frames left after their scheduled times, nanoseconds.
    pub lateness: Percentiles,
    /// Times between departures, nanoseconds.
    pub departures: Percentiles,
    /// Time in which its thread did not run, nanoseconds.
    pub stalled_ns: u64,
    /// How many times that was so.
    #[serde(default)]
    pub stalls: u64,
    /// The longest of them, nanoseconds.
    #[serde(default)]
    pub longest_stall_ns: u64,
    /// What it found out about itself before the run, with the same streams and ports in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// How well the generator keeps the schedule where no port delays it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Difference of the rate that was sent from the one asked for, relative.
    pub rate_error: f64,
    /// How late frames left after their scheduled times, nanoseconds.
    pub lateness: Percentiles,
    /// Times between departures, nanoseconds.
    pub departures: Percentiles,
    /// Time in which its thread did not run, nanoseconds.
    pub stalled_ns: u64,
    /// Most packets per second that it can make of these streams and receive again, in memory.
    pub most_pps: f64,
}

/// What a stream sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Its name.
    pub name: String,
    /// Frames that the port took.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Frames that were due and that the port did not take.
    pub refused: u64,
    /// The same of each step of its rate, where it has steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<SentStep>,
}

/// What a stream sent in a step of its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SentStep {
    /// When it began, nanoseconds of the time that counts.
    pub from_ns: u64,
    /// Frames that the port took.
    pub packets: u64,
    /// Frames that were due and that the port did not take.
    pub refused: u64,
}

/// What a sink received.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Frames of these streams.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Frames that are nobody's here.
    pub foreign: u64,
    /// By stream, in the order of the spec.
    pub streams: Vec<Arrived>,
}

/// What arrived of a stream at a sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrived {
    /// Frames, each counted once.
    pub packets: u64,
    /// Frames that were sent and did not come.
    pub lost: u64,
    /// Frames that came again.
    pub duplicates: u64,
    /// Frames of a flow that came after a later one of the same flow (RFC 4737).
    pub reordered: u64,
    /// Frames, of those counted, that came so late that it is not known whether they had come
    /// before (more than 4,194,304 sequence numbers behind).
    #[serde(default)]
    pub stale: u64,
    /// From the scheduled time to arrival, nanoseconds.
    pub latency: Percentiles,
    /// Of how many frames it has a stop of the generator's thread in it, which was not running at
    /// some time while they were due or on their way.
    #[serde(default)]
    pub disturbed: u64,
    /// The latency of all other frames; absent if there is no difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undisturbed: Option<Percentiles>,
    /// Times between arrivals, nanoseconds.
    pub arrivals: Percentiles,
    /// Frames that were due in each step of the stream's rate, each counted once, where it has
    /// steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<u64>,
    /// When the last frame was due that did not come (or that the port did not take), nanoseconds
    /// of the time that counts, of a stream whose rate has steps; absent if all came that were due
    /// in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lost_ns: Option<u64>,
}

/// A distribution, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many values.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// Half are at or below.
    pub p50: u64,
    /// 90%.
    pub p90: u64,
    /// 99%.
    pub p99: u64,
    /// 99.9%.
    pub p999: u64,
    /// The greatest.
    pub max: u64,
    /// The whole histogram: HDR, V2 and deflate, base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}
