//! The packets that a prediction is made for: from a capture, a description, or the rules
//! themselves.
//!
//! A description is a match in `ovs-ofctl`'s syntax with some words of its own:
//! `udp,tp_dst=80,flows=10000,size=64,zipf`. Fields that the match leaves open differ from flow to
//! flow. Traffic from rules gives each rule of the first table the same share, and follows a rule's
//! resubmits and `ct`: in the next table, it picks a random rule whose match agrees with the packet
//! so far. Registers and connections' states are not followed, so some packets take another path
//! than intended.

mod capture;
mod compose;
mod random;

use crate::Error;
use crate::rules::{Rules, next_tables};
use openflow::flow::FlowMod;
use openflow::parse::{self, PortNames};
use packet::key::{WORDS, at};
use packet::{Field, Match};
pub(crate) use random::Random;
use std::collections::BTreeMap;

/// Longest frame in bytes without FCS: what one buffer of a DPDK port holds.
pub const FRAME_MAX: usize = 1518;
/// Most frames: a port that replays a file must hold all of them.
pub const FRAMES_MAX: usize = 200_000;
/// Fewest frames that are generated.
const FRAMES_MIN: usize = 4096;
/// Most frames generated from rules: as many as a port replays without huge pages.
pub const FROM_RULES_MAX: usize = 16_384;
/// Most tables that a generated packet is led through.
const DEPTH: usize = 64;
/// Most rules of a table that are tried for one that agrees with a packet.
const TRIES: usize = 64;
/// Bytes of Ethernet's frame check sequence, which sizes include and frames in memory lack.
const FCS: usize = 4;

/// A frame and the port it arrives by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Port number.
    pub in_port: u32,
    /// The frame, without FCS.
    pub bytes: Vec<u8>,
}

/// Packets in the order of arrival, repeated endlessly.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// The packets, at least one.
    pub arrivals: Vec<Arrival>,
}

impl Traffic {
    /// Reads a classic capture file (`pcap`); all frames arrive by one port.
    pub fn capture(name: &str, bytes: &[u8], in_port: u32) -> Result<Traffic, Error> {
        let frames =
            capture::frames(bytes).map_err(|error| Error::new(format!("{name}: {error}")))?;
        let arrivals = frames
            .into_iter()
            .map(|bytes| Arrival { in_port, bytes })
            .collect();
        Traffic { arrivals }.checked(name)
    }

    /// Writes the frames to a capture file, sorted by port.
    pub fn to_capture(&self) -> Vec<u8> {
        let mut arrivals: Vec<&Arrival> = self.arrivals.iter().collect();
        arrivals.sort_by_key(|arrival| arrival.in_port);
        capture::file(arrivals.into_iter().map(|arrival| &arrival.bytes[..]))
    }

    /// Generates the packets of a description.
    pub fn described(text: &str, names: PortNames<'_>, in_port: u32) -> Result<Traffic, Error> {
        let description = Description::read(text, names)?;
        let mut random = Random::new(7);
        let mut matching = description.matching;
        if matching.get(Field::InPortOxm).1.is_zero() {
            matching.set_exact(Field::InPortOxm, in_port.into());
        }
        let flows: Vec<Arrival> = (0..description.flows)
            .map(|_| compose::arrival(&matching, description.size - FCS, &mut random))
            .collect();
        let count = match description.zipf {
            Some(_) => flows.len().max(100_000),
            None => flows.len().max(FRAMES_MIN),
        };
        let order: Vec<usize> = match description.zipf {
            Some(exponent) => random.zipf(flows.len(), exponent, count),
            None => {
                let mut order: Vec<usize> = (0..count).map(|index| index % flows.len()).collect();
                random.shuffle(&mut order);
                order
            }
        };
        let arrivals = order
            .into_iter()
            .map(|index| flows[index].clone())
            .collect();
        Traffic { arrivals }.checked(text)
    }

    /// Generates packets for the rules; those without an ingress port in the match arrive by
    /// `in_port`.
    pub fn of_rules(rules: &Rules, in_port: u32) -> Result<Traffic, Error> {
        let mut tables: BTreeMap<u8, Vec<&FlowMod>> = BTreeMap::new();
        for flow in &rules.flows {
            tables.entry(flow.table).or_default().push(flow);
        }
        let first = tables.get(&0).ok_or_else(|| {
            Error::new("table 0 has no rules: no packet would meet any".to_owned())
        })?;
        let mut random = Random::new(7);
        let count = (first.len() * 4).clamp(FRAMES_MIN, FROM_RULES_MAX);
        let mut arrivals: Vec<Arrival> = (0..count)
            .map(|index| {
                // If there are more rules than packets, picks rules from the whole table.
                let index = if first.len() > count {
                    random.below(first.len())
                } else {
                    index % first.len()
                };
                let mut matching = led(first[index], &tables, &mut random);
                if matching.get(Field::InPortOxm).1.is_zero() {
                    matching.set_exact(Field::InPortOxm, in_port.into());
                }
                compose::arrival(&matching, 60, &mut random)
            })
            .collect();
        random.shuffle(&mut arrivals);
        Traffic { arrivals }.checked("traffic")
    }

    fn checked(self, name: &str) -> Result<Traffic, Error> {
        let refused = |what: String| Err(Error::new(format!("{name}: {what}")));
        if self.arrivals.is_empty() {
            return refused("there are no packets".to_owned());
        }
        if self.arrivals.len() > FRAMES_MAX {
            return refused(format!("more than {FRAMES_MAX} packets"));
        }
        for (index, arrival) in self.arrivals.iter().enumerate() {
            let len = arrival.bytes.len();
            if !(14..=FRAME_MAX).contains(&len) {
                return refused(format!(
                    "packet {} has {len} bytes; 14 to {FRAME_MAX} can be predicted",
                    index + 1
                ));
            }
        }
        Ok(self)
    }

    /// Returns the ports that packets arrive by, each once.
    pub fn in_ports(&self) -> Vec<u32> {
        let ports: std::collections::BTreeSet<u32> = self
            .arrivals
            .iter()
            .map(|arrival| arrival.in_port)
            .collect();
        ports.into_iter().collect()
    }
}

/// A parsed description.
struct Description {
    matching: Match,
    flows: usize,
    size: usize,
    zipf: Option<f64>,
}

impl Description {
    fn read(text: &str, names: PortNames<'_>) -> Result<Description, Error> {
        let wrong = |what: String| Error::new(format!("traffic {text:?}: {what}"));
        let (mut flows, mut size, mut zipf) = (1_usize, 64_usize, None);
        let mut fields = Vec::new();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let number = |least: usize, most: usize| {
                value
                    .parse::<usize>()
                    .ok()
                    .filter(|number| (least..=most).contains(number))
                    .ok_or_else(|| wrong(format!("{key} is a number from {least} to {most}")))
            };
            match key {
                "flows" => flows = number(1, FRAMES_MAX)?,
                "size" => size = number(64, FRAME_MAX + FCS)?,
                "zipf" if value.is_empty() => zipf = Some(1.0),
                "zipf" => {
                    let exponent = value
                        .parse::<f64>()
                        .ok()
                        .filter(|e| (0.0..=10.0).contains(e));
                    zipf = Some(
                        exponent.ok_or_else(|| wrong("zipf is a number from 0 to 10".into()))?,
                    );
                }
                _ => fields.push(item),
            }
        }
        let matching =
            parse::matching(&fields.join(","), names).map_err(|error| wrong(error.to_string()))?;
        Ok(Description {
            matching,
            flows,
            size,
            zipf,
        })
    }
}

/// Returns the match of a packet that meets `first` and then rules behind it.
fn led(first: &FlowMod, tables: &BTreeMap<u8, Vec<&FlowMod>>, random: &mut Random) -> Match {
    let mut matching = of_packets(&first.matching);
    let mut open = next_tables(first);
    for _ in 0..DEPTH {
        let Some(table) = open.pop() else { break };
        let Some(rules) = tables.get(&table) else {
            continue;
        };
        let tried = (0..TRIES).map(|_| rules[random.below(rules.len())]);
        let agreeing = tried
            .map(|rule| (rule, of_packets(&rule.matching)))
            .find(|(_, other)| matching.overlaps(other));
        if let Some((rule, other)) = agreeing {
            for word in other.words() {
                matching.set_word(usize::from(word.word), word.value, word.mask);
            }
            open.extend(next_tables(rule));
        }
    }
    matching
}

/// Returns the part of a match that a packet can have on arrival: no registers, metadata or
/// tunnels.
fn of_packets(matching: &Match) -> Match {
    let mut own = Match::any();
    for word in matching.words() {
        let word_at = usize::from(word.word);
        let carried =
            word_at < at::METADATA / 8 || (at::IPV6_SRC / 8..=at::MPLS_LSE2 / 8).contains(&word_at);
        if carried && word_at < WORDS {
            own.set_word(word_at, word.value, word.mask);
        }
    }
    own
}
