//! Reads `QoS` rows of types `linux-htb` and `linux-hfsc` into a shaper's settings (Open vSwitch's
//! documentation of the tables `QoS` and `Queue`).
//!
//! Rates are in bit/s and bursts in bits, of frames without FCS. A third level, tenants, is between
//! the port and those queues that name a tenant (`other_config:tenant`); tenants' rates are keys of
//! the `QoS` row.

use super::qos::{RowError, number, small};
use ovsdb::vswitch::{self, Strings};
use qos::shaper::watch::MAX_WATCHED;
use qos::shaper::{PortSpec, QueueSpec, TenantSpec, spec};
use std::collections::{BTreeMap, BTreeSet};

/// A shaper's settings, and what belongs to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shaping {
    /// The port, its tenants and queues.
    pub spec: PortSpec,
    /// Tenants' numbers by their names.
    pub tenants: BTreeMap<String, u32>,
    /// The numbers of queues whose waiting times are measured.
    pub measured: Vec<u32>,
    /// The configured guarantees of queues that give up a part to the default queue, by queue
    /// number.
    pub lowered: BTreeMap<u32, u64>,
}

/// Guarantee of the default queue in bit/s where other queues have guarantees: as much as Open
/// vSwitch guarantees each class of the kernel's HTB, one frame's payload (1500 bytes) per second.
const DEFAULT_GUARANTEE: u64 = 12_000;
/// Rate of a port without a configured one, bit/s.
const DEFAULT_RATE: u64 = 10_000_000_000;
/// Smallest burst of a class, in bits: one frame.
const FRAME: u64 = 1514 * 8;
/// Where no burst is configured it covers this time at the class's rate: as long as shapers may be
/// late.
const LOOK_NS: u64 = 60_000;
/// Most packets that wait at a port: they hold buffers that all ports share.
const PORT_PACKETS: u32 = 4096;
/// The same for a port with so many queues that two packets for each would not fit.
const MANY_PACKETS: u32 = 16_384;
/// Bytes that may wait at a port for each waiting packet, so that large segments hold no more
/// buffers than that number of frames.
const PACKET_BYTES: u64 = 2048;
/// Default length of a queue, in packets (and in bytes of packets of 1514).
const QUEUE_PACKETS: u32 = 1000;
/// Waiting time, ns, after which packets are marked in a queue with `ecn` but no bound.
const MARK_NS: u64 = 5_000_000;

const PORT_KEYS: [&str; 3] = ["max-rate", "burst", "overhead"];
/// Keys behind `tenant-NAME-`.
const TENANT_KEYS: [&str; 3] = ["min-rate", "max-rate", "burst"];
const QUEUE_KEYS: [&str; 10] = [
    "min-rate",
    "max-rate",
    "burst",
    "priority",
    "max-latency-us",
    "ecn",
    "limit-packets",
    "queue-limit",
    "tenant",
    "measure-latency",
];

/// Reads the burst of a class with this rate. The default is one frame plus what arrives between
/// two turns of a worker, so that traffic within its rate passes without waiting. (The kernel's
/// tools also add what a timer period lets through.)
fn burst(options: &Strings, key: &str, rate: u64) -> Result<u64, RowError> {
    let between_looks = (u128::from(rate) * u128::from(LOOK_NS) / 1_000_000_000) as u64;
    let otherwise = between_looks.saturating_add(FRAME).min(spec::MAX_BURST);
    Ok(number(options, key)?.map_or(otherwise, |burst| burst.max(FRAME)))
}

/// Reads a rate of at least `least`; none where the key is missing.
fn rate(options: &Strings, key: &str, least: u64) -> Result<Option<u64>, RowError> {
    match number(options, key)? {
        Some(rate) if !(least..=spec::MAX_RATE).contains(&rate) => {
            let key = key.to_owned();
            Err(RowError::Rate { key, rate, least })
        }
        rate => Ok(rate),
    }
}

/// Reads a boolean; false where the key is missing.
fn boolean(options: &Strings, key: &'static str) -> Result<bool, RowError> {
    match options.get(key).map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(RowError::NotABoolean {
            key,
            text: other.to_owned(),
        }),
    }
}

fn queue(at: u32, options: &Strings, port_rate: u64) -> Result<QueueSpec, RowError> {
    let min_rate = rate(options, "min-rate", 0)?.unwrap_or(0);
    let max_rate = rate(options, "max-rate", spec::MIN_RATE)?;
    let max_rate = max_rate.unwrap_or(port_rate.max(min_rate));
    let bound = small(
        options,
        "max-latency-us",
        (spec::MAX_LATENCY_NS / 1000) as u32,
    )?;
    let max_latency_ns = bound.map(|us| u64::from(us) * 1000);
    let ecn = boolean(options, "ecn")?;
    // Tools that configure several kinds of switches write `queue-limit`.
    let limit_packets = match small(options, "limit-packets", PORT_PACKETS)? {
        Some(limit) => limit,
        None => small(options, "queue-limit", PORT_PACKETS)?.unwrap_or(QUEUE_PACKETS),
    };
    Ok(QueueSpec {
        burst: burst(options, "burst", max_rate)?,
        // The kernel's HTB has eight priorities; higher numbers mean the last.
        priority: number(options, "priority")?.unwrap_or(0).min(7) as u8,
        max_latency_ns,
        mark_ns: ecn.then(|| max_latency_ns.map_or(MARK_NS, |bound| bound / 2)),
        limit_packets,
        limit_bytes: limit_packets.saturating_mul(1514).max(1 << 17),
        ..QueueSpec::new(at, min_rate, max_rate)
    })
}

fn port(qos: &vswitch::QoS) -> Result<PortSpec, RowError> {
    let options = &qos.other_config;
    let rate = rate(options, "max-rate", spec::MIN_RATE)?.unwrap_or(DEFAULT_RATE);
    let mut port = PortSpec::new(rate);
    port.burst = burst(options, "burst", rate)?;
    port.overhead = small(options, "overhead", spec::MAX_OVERHEAD as u32)?.unwrap_or(0) as i32;
    let pairs = (2 * qos.queues.len()).min(MANY_PACKETS as usize) as u32;
    port.limit_packets = PORT_PACKETS.max(pairs);
    port.limit_bytes = u64::from(port.limit_packets) * PACKET_BYTES;
    port.flows = if qos.queues.len() > 4096 { 4 } else { 64 };
    for (number, row) in &qos.queues {
        let number = super::qos::queue_number(*number)?;
        let spec = queue(number, &row.other_config, rate);
        port.queues
            .push(spec.map_err(|error| error.of_queue(number))?);
    }
    if !qos.queues.contains_key(&0) {
        port.queues.push(queue(0, &Strings::default(), rate)?);
    }
    Ok(port)
}

/// Returns tenants' numbers by their names: the same name always gets the same number, unless
/// another tenant has it already.
fn tenant_numbers(names: &BTreeSet<&str>) -> BTreeMap<String, u32> {
    let mut taken = BTreeSet::new();
    let mut number_of = |name: &&str| {
        // FNV-1a.
        let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let mut number = hash;
        while !taken.insert(number) {
            number = number.wrapping_add(1);
        }
        ((*name).to_owned(), number)
    };
    names.iter().map(&mut number_of).collect()
}

/// Splits a tenant's key into the tenant's name and what it sets.
fn tenant_key(key: &str) -> Option<(&str, &str)> {
    let rest = key.strip_prefix("tenant-")?;
    TENANT_KEYS.iter().find_map(|what| {
        let name = rest.strip_suffix(what)?.strip_suffix('-')?;
        (!name.is_empty()).then_some((name, *what))
    })
}

/// Adds a port's tenants: those that its keys name, and those of its queues. The default guarantee
/// is the sum over a tenant's queues, the default maximum the port's. Returns their numbers by
/// name.
fn tenants(qos: &vswitch::QoS, port: &mut PortSpec) -> Result<BTreeMap<String, u32>, RowError> {
    let options = &qos.other_config;
    let keys = options.keys().filter_map(|key| tenant_key(key));
    let rows = qos.queues.values();
    let members = rows.filter_map(|row| row.other_config.get("tenant").map(String::as_str));
    let names: BTreeSet<&str> = keys.map(|(name, _)| name).chain(members).collect();
    if names.contains("") {
        return Err(RowError::TenantName);
    }
    let numbers = tenant_numbers(&names);
    let mut guaranteed: BTreeMap<u32, u64> = BTreeMap::new();
    for queue in &mut port.queues {
        let row = qos.queues.get(&i64::from(queue.number));
        queue.tenant = row
            .and_then(|row| row.other_config.get("tenant"))
            .map(|name| numbers[name]);
        if let Some(tenant) = queue.tenant {
            let sum = guaranteed.entry(tenant).or_default();
            *sum = sum.saturating_add(queue.min_rate);
        }
    }
    for (name, number_of) in &numbers {
        let read = |what: &str, least| rate(options, &format!("tenant-{name}-{what}"), least);
        let own = guaranteed.get(number_of).copied().unwrap_or(0);
        let max_rate = read("max-rate", spec::MIN_RATE)?.unwrap_or(port.max_rate);
        port.tenants.push(TenantSpec {
            number: *number_of,
            min_rate: read("min-rate", 0)?.unwrap_or(own),
            max_rate,
            burst: burst(options, &format!("tenant-{name}-burst"), max_rate)?,
        });
    }
    Ok(numbers)
}

/// Returns the unknown keys of the rows.
fn strange(qos: &vswitch::QoS) -> Vec<String> {
    let unknown = |options: &Strings, known: &dyn Fn(&str) -> bool| -> Vec<String> {
        let keys = options.keys().filter(|key| !known(key));
        keys.map(|key| format!("unknown key other_config:{key}, ignoring it"))
            .collect()
    };
    let mut all = unknown(&qos.other_config, &|key| {
        PORT_KEYS.contains(&key) || tenant_key(key).is_some()
    });
    for (number, row) in &qos.queues {
        let queue = unknown(&row.other_config, &|key| QUEUE_KEYS.contains(&key));
        all.extend(queue.iter().map(|text| format!("queue {number}: {text}")));
    }
    all
}

/// Reads a row of type `linux-htb` or `linux-hfsc`. Unknown keys are ignored and reported by `say`.
pub fn read(qos: &vswitch::QoS, say: &mut dyn FnMut(String)) -> Result<Shaping, RowError> {
    strange(qos).into_iter().for_each(say);
    let mut spec = port(qos)?;
    let tenants = tenants(qos, &mut spec)?;
    let asked: Vec<u64> = spec.queues.iter().map(|queue| queue.min_rate).collect();
    spec.guarantee_default(DEFAULT_GUARANTEE);
    if let Err(error) = spec.check() {
        return Err(RowError::Shaper { error, tenants });
    }
    let measured = measured(qos, &spec)?;
    let both = spec.queues.iter().zip(asked);
    let lowered = both.filter(|(queue, asked)| queue.min_rate < *asked);
    let lowered = lowered
        .map(|(queue, asked)| (queue.number, asked))
        .collect();
    Ok(Shaping {
        spec,
        tenants,
        measured,
        lowered,
    })
}

/// Returns the queues to measure: only those that ask for it, since it costs a little for each
/// packet.
fn measured(qos: &vswitch::QoS, spec: &PortSpec) -> Result<Vec<u32>, RowError> {
    let mut asked = Vec::new();
    for queue in &spec.queues {
        let Some(row) = qos.queues.get(&i64::from(queue.number)) else {
            continue;
        };
        let wanted = boolean(&row.other_config, "measure-latency");
        if wanted.map_err(|error| error.of_queue(queue.number))? {
            asked.push(queue.number);
        }
    }
    if asked.len() > MAX_WATCHED {
        return Err(RowError::TooManyMeasured(asked.len()));
    }
    asked.sort_unstable();
    Ok(asked)
}
