//! `Port.qos` and its queues, as a shape of the port (Open vSwitch's documentation of the tables `QoS` and `Queue`).
//!
//! Rates are in bit/s and bursts in bits, of frames without FCS. A value that cannot be is said in the port's problems, and the port keeps the shape that it has.

use super::problem::Problems;
use ovsdb::vswitch::{self, Strings};
use qos::shaper::{PortSpec, QueueSpec, spec};
use std::sync::Arc;

/// What a port is to be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// Not shaped.
    #[default]
    None,
    /// What it is already, as what is wanted cannot be.
    Kept,
    /// Shaped so.
    Queues(Arc<PortSpec>),
}

/// The rate of a port that says none.
const DEFAULT_RATE: u64 = 10_000_000_000;
/// The burst of a class that says none, in bits, as at least: a frame.
const FRAME: u64 = 1514 * 8;
/// Packets that wait at a port at most: they hold buffers that all ports share.
const PORT_PACKETS: u32 = 4096;
/// Packets, and bytes of packets of 1514, that wait in a queue that says nothing else.
const QUEUE_PACKETS: u32 = 1000;
/// Packets are marked when they have waited so long in a queue with `ecn` and no bound.
const MARK_NS: u64 = 5_000_000;

const PORT_KEYS: [&str; 3] = ["max-rate", "burst", "overhead"];
const QUEUE_KEYS: [&str; 7] = [
    "min-rate",
    "max-rate",
    "burst",
    "priority",
    "max-latency-us",
    "ecn",
    "limit-packets",
];

/// A whole number from 0 on; none where the key is missing.
fn number(options: &Strings, key: &str) -> Result<Option<u64>, String> {
    let Some(text) = options.get(key) else {
        return Ok(None);
    };
    let number = text.trim().parse::<u64>();
    number
        .map(Some)
        .map_err(|_| format!("{key}: \"{text}\" is not a whole number from 0 on"))
}

fn small(options: &Strings, key: &str, most: u32) -> Result<Option<u32>, String> {
    match number(options, key)? {
        Some(value) if value > u64::from(most) => {
            Err(format!("{key}: {value} is more than {most}"))
        }
        value => Ok(value.map(|value| value as u32)),
    }
}

fn queue(at: u32, options: &Strings, port_rate: u64) -> Result<QueueSpec, String> {
    let min_rate = number(options, "min-rate")?.unwrap_or(0);
    let max_rate = number(options, "max-rate")?
        .unwrap_or(port_rate)
        .max(min_rate);
    let bound = small(
        options,
        "max-latency-us",
        (spec::MAX_LATENCY_NS / 1000) as u32,
    )?;
    let max_latency_ns = bound.map(|us| u64::from(us) * 1000);
    let ecn = match options.get("ecn").map(String::as_str) {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(format!("ecn: \"{other}\" is neither true nor false")),
    };
    let limit_packets = small(options, "limit-packets", PORT_PACKETS)?.unwrap_or(QUEUE_PACKETS);
    Ok(QueueSpec {
        burst: number(options, "burst")?.unwrap_or(0).max(FRAME),
        // The kernel's HTB has eight, and takes what is above for the last.
        priority: number(options, "priority")?.unwrap_or(0).min(7) as u8,
        max_latency_ns,
        mark_ns: ecn.then(|| max_latency_ns.map_or(MARK_NS, |bound| bound / 2)),
        limit_packets,
        limit_bytes: limit_packets.saturating_mul(1514).max(1 << 17),
        ..QueueSpec::new(at, min_rate, max_rate)
    })
}

fn port(qos: &vswitch::QoS) -> Result<PortSpec, String> {
    let options = &qos.other_config;
    let rate = number(options, "max-rate")?.unwrap_or(DEFAULT_RATE);
    let mut port = PortSpec::new(rate);
    // A millisecond's worth of lateness is made good by the slack; the burst is what the user says.
    port.burst = number(options, "burst")?.unwrap_or(0).max(FRAME);
    port.overhead = small(options, "overhead", spec::MAX_OVERHEAD as u32)?.unwrap_or(0) as i32;
    port.limit_packets = PORT_PACKETS;
    port.flows = if qos.queues.len() > 4096 { 4 } else { 64 };
    for (number, row) in &qos.queues {
        let number =
            u32::try_from(*number).map_err(|_| format!("queue {number}: no such number"))?;
        let spec = queue(number, &row.other_config, rate);
        port.queues
            .push(spec.map_err(|error| format!("queue {number}: {error}"))?);
    }
    if !qos.queues.contains_key(&0) {
        port.queues.push(queue(0, &Strings::default(), rate)?);
    }
    port.check().map_err(|error| error.to_string())?;
    Ok(port)
}

/// The shape that a port's `QoS` row asks for.
pub fn shape(name: &str, qos: Option<&vswitch::QoS>, problems: &mut Problems) -> Shape {
    let Some(qos) = qos else {
        return Shape::None;
    };
    let mut say = |what: String| problems.add("Port", name, "qos", what);
    match qos.kind.as_str() {
        "linux-htb" | "linux-hfsc" => {}
        "" | "linux-noop" => return Shape::None,
        "egress-policer" | "trtcm-policer" | "linux-sfq" | "linux-codel" | "linux-fq_codel"
        | "linux-netem" => {
            say(format!(
                "type {} is not enforced yet, its queues are listed and counted",
                qos.kind
            ));
            return Shape::None;
        }
        other => {
            say(format!("unknown type {other}, ignoring it"));
            return Shape::None;
        }
    }
    let strange = |options: &Strings, known: &[&str]| -> Vec<String> {
        options
            .keys()
            .filter(|key| !known.contains(&key.as_str()))
            .cloned()
            .collect()
    };
    for key in strange(&qos.other_config, &PORT_KEYS) {
        say(format!("unknown key other_config:{key}, ignoring it"));
    }
    for (number, row) in &qos.queues {
        for key in strange(&row.other_config, &QUEUE_KEYS) {
            say(format!(
                "queue {number}: unknown key other_config:{key}, ignoring it"
            ));
        }
    }
    match port(qos) {
        Ok(port) => Shape::Queues(Arc::new(port)),
        Err(error) => {
            say(format!("{error}; what was shaped before stays so"));
            Shape::Kept
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn strings(pairs: &[(&str, &str)]) -> Strings {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn read(
        kind: &str,
        port: &[(&str, &str)],
        queues: &[(i64, &[(&str, &str)])],
    ) -> (Shape, Vec<String>) {
        let queue = |pairs: &[(&str, &str)]| vswitch::Queue {
            other_config: strings(pairs),
            ..Default::default()
        };
        let qos = vswitch::QoS {
            kind: kind.to_owned(),
            queues: queues
                .iter()
                .map(|(number, pairs)| (*number, queue(pairs)))
                .collect::<BTreeMap<_, _>>(),
            other_config: strings(port),
            ..Default::default()
        };
        let mut problems = Problems::default();
        let shape = shape("p1", Some(&qos), &mut problems);
        (
            shape,
            problems
                .0
                .into_iter()
                .map(|problem| problem.message)
                .collect(),
        )
    }

    #[test]
    fn rows_become_a_shape_and_bad_values_keep_the_old_one() {
        let (shape, problems) = read(
            "linux-htb",
            &[("max-rate", "100000000")],
            &[
                (
                    3,
                    &[
                        ("min-rate", "10000000"),
                        ("max-latency-us", "2000"),
                        ("ecn", "true"),
                        ("priority", "99"),
                    ],
                ),
                (7, &[]),
            ],
        );
        assert_eq!(problems, Vec::<String>::new());
        let Shape::Queues(port) = shape else {
            panic!("{shape:?}")
        };
        assert_eq!(port.max_rate, 100_000_000);
        let numbers: Vec<u32> = port.queues.iter().map(|queue| queue.number).collect();
        assert_eq!(numbers, [3, 7, 0], "the default queue is there, too");
        let bounded = &port.queues[0];
        assert_eq!(
            (bounded.min_rate, bounded.max_rate, bounded.priority),
            (10_000_000, 100_000_000, 7)
        );
        assert_eq!(
            (bounded.max_latency_ns, bounded.mark_ns),
            (Some(2_000_000), Some(1_000_000))
        );
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case; 8] = [
            (
                &[("max-rate", "-5")],
                &[],
                "max-rate: \"-5\" is not a whole number from 0 on",
            ),
            (
                &[("max-rate", "0")],
                &[],
                "port: 0 bit/s is not a rate between 8000 and 400000000000 bit/s",
            ),
            (
                &[("max-rate", "99999999999999")],
                &[],
                "port: 99999999999999 bit/s is not a rate between 8000 and 400000000000 bit/s",
            ),
            (
                &[("max-rate", "1000000")],
                &[("min-rate", "2000000")],
                "port: guaranteed rates add up to 2000000 bit/s, more than its 1000000 bit/s",
            ),
            (
                &[],
                &[("burst", "much")],
                "queue 1: burst: \"much\" is not a whole number from 0 on",
            ),
            (
                &[],
                &[("max-latency-us", "4000001")],
                "queue 1: max-latency-us: 4000001 is more than 4000000",
            ),
            (
                &[],
                &[("ecn", "yes")],
                "queue 1: ecn: \"yes\" is neither true nor false",
            ),
            (
                &[],
                &[("limit-packets", "0")],
                "queue 1: a limit of 0 is not between 1 and 4096",
            ),
        ];
        for (port, queue, text) in cases {
            let (shape, problems) = read("linux-hfsc", port, &[(1, queue)]);
            assert_eq!(shape, Shape::Kept);
            assert_eq!(
                problems,
                [format!("{text}; what was shaped before stays so")]
            );
        }
    }

    #[test]
    fn types_and_keys_that_are_unknown_are_named() {
        assert_eq!(read("linux-noop", &[], &[]), (Shape::None, vec![]));
        assert_eq!(
            read("gold", &[], &[]),
            (
                Shape::None,
                vec!["unknown type gold, ignoring it".to_owned()]
            )
        );
        let (shape, problems) = read("linux-htb", &[("colour", "red")], &[(0, &[("size", "1")])]);
        assert!(matches!(shape, Shape::Queues(_)));
        assert_eq!(
            problems,
            [
                "unknown key other_config:colour, ignoring it",
                "queue 0: unknown key other_config:size, ignoring it"
            ]
        );
    }
}
