//! Places tasks on ports, and computes the queues they need.
//!
//! A task sends at a rate and needs its packets to wait no longer than a time. If its burst is
//! known (it keeps to a token bucket), its queue gets the rate that network calculus demands, and
//! the time is a hard bound. If not, packets are assumed to arrive independently, and the queue
//! gets the rate at which 99% wait no longer (the tail of M/G/1, taken as exponential with the mean
//! of Pollaczek and Khinchine). Queues guarantee these rates, so tasks do not affect each other.
//!
//! The largest task is placed first, on the port where the least is left over. If tasks remain, all
//! combinations are tried, up to [`TRIES`] checks of a port.

use crate::queue::{Arrivals, Load, Server};
use crate::{Error, Span};
use qos::shaper::spec::{MAX_RATE, MIN_RATE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A task's demand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Rate at which it sends, in bit/s.
    pub rate: f64,
    /// How long its packets may wait, in seconds.
    pub latency: f64,
    /// Size of its packets, in bits.
    #[serde(default = "frame")]
    pub size: f64,
    /// Depth of the token bucket that it keeps to, in bits, if any.
    #[serde(default)]
    pub burst: Option<f64>,
    /// The acceptable ports; all if empty.
    #[serde(default)]
    pub ports: Vec<String>,
}

fn frame() -> f64 {
    1514.0 * 8.0
}

/// A port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its rate, in bit/s.
    pub rate: f64,
    /// Share of the rate to leave free.
    #[serde(default)]
    pub reserve: f64,
}

/// A placed task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// The task.
    pub task: String,
    /// The port.
    pub port: String,
    /// The number of its queue on this port.
    pub queue: u32,
    /// The guaranteed rate of the queue, in bit/s.
    pub rate: u64,
    /// Mean wait, in seconds. The upper end holds for 99% of the packets, or for all that keep to
    /// the burst.
    pub wait: Span,
    /// Whether the upper end holds for every packet.
    pub bound: bool,
    /// The longest wait that the task asked for, in seconds.
    pub latency: f64,
    /// How many packets its queue must hold, if more than usual.
    pub limit: Option<u32>,
    /// Why the queue guarantees more than the task sends, if it does.
    pub why: Option<String>,
}

/// A task that was not placed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unplaced {
    /// The task.
    pub task: String,
    /// Why.
    pub reason: String,
}

/// Result of placing tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placement {
    /// Whether all tasks were placed.
    pub fits: bool,
    /// The placed tasks.
    pub placed: Vec<Placed>,
    /// The others.
    pub unplaced: Vec<Unplaced>,
    /// The remaining rate of each port, in bit/s.
    pub left: BTreeMap<String, f64>,
    /// Whether all combinations were tried; otherwise a solution may exist that was not found.
    pub complete: bool,
    /// Commands that create the queues.
    pub commands: Vec<String>,
}

/// Approximate limit of port checks in a search.
pub const TRIES: usize = 2_000_000;
/// Most tasks, and most ports.
pub const MOST: usize = 4096;
/// Most pairs of a task and a port: the needs of each pair are computed before the search.
pub const PAIRS: usize = 1_000_000;
/// How late a sender may be when its turn comes, in seconds: 60 us of the shaper's timer slack, and
/// 200 us for a batch on its way.
pub const SLACK: f64 = 260e-6;
/// The largest bound of a queue, in seconds (`max-latency-us`); used for tasks that accept more.
const LONGEST: f64 = qos::shaper::spec::MAX_LATENCY_NS as f64 * 1e-9;
/// Packet limit of a queue without `limit-packets`.
const USUAL_PACKETS: f64 = 1000.0;
/// Largest packet limit of a queue: half of the port's.
const MOST_PACKETS: f64 = 2048.0;
/// Share of packets that may wait longer if no burst is known.
const LATE: f64 = 0.01;

fn check(tasks: &[Task], ports: &[Port]) -> Result<(), Error> {
    if tasks.is_empty() || ports.is_empty() || tasks.len() > MOST || ports.len() > MOST {
        return Err(Error::new(format!(
            "{} tasks and {} ports: must be 1 to {MOST} of each",
            tasks.len(),
            ports.len()
        )));
    }
    if tasks.len() * ports.len() > PAIRS {
        return Err(Error::new(format!(
            "{} tasks and {} ports make more than {PAIRS} pairs",
            tasks.len(),
            ports.len()
        )));
    }
    let above = |what: &str, value: f64| {
        let good = value.is_finite() && value > 0.0;
        good.then_some(())
            .ok_or_else(|| Error::new(format!("{what}: {value} is not a number above 0")))
    };
    let mut names = std::collections::BTreeSet::new();
    for port in ports {
        // The name becomes part of a command.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        if port.name.is_empty() || !port.name.chars().all(plain) || port.name.starts_with('-') {
            return Err(Error::new(format!(
                "\"{}\" is no name of a port",
                port.name
            )));
        }
        above(&format!("port {}: rate", port.name), port.rate)?;
        if !(MIN_RATE as f64..=MAX_RATE as f64).contains(&port.rate) {
            return Err(Error::new(format!(
                "port {}: {} bit/s is not a rate between {MIN_RATE} and {MAX_RATE} bit/s",
                port.name, port.rate
            )));
        }
        if !(0.0..1.0).contains(&port.reserve) {
            return Err(Error::new(format!(
                "port {}: a reserve of {} is not from 0 to below 1",
                port.name, port.reserve
            )));
        }
        if !names.insert(&port.name) {
            return Err(Error::new(format!("port {} is there twice", port.name)));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    for task in tasks {
        let name = &task.name;
        above(&format!("task {name}: rate"), task.rate)?;
        above(&format!("task {name}: latency"), task.latency)?;
        above(&format!("task {name}: size"), task.size)?;
        task.burst
            .map_or(Ok(()), |burst| above(&format!("task {name}: burst"), burst))?;
        if !seen.insert(name) {
            return Err(Error::new(format!("task {name} is there twice")));
        }
        if let Some(port) = task.ports.iter().find(|port| !names.contains(port)) {
            return Err(Error::new(format!("task {name}: there is no port {port}")));
        }
    }
    Ok(())
}

/// Returns the wait that 99% of packets do not exceed in a queue of this rate, and the mean.
fn waits(task: &Task, rate: f64) -> (f64, f64) {
    let load = Load::new(task.rate, task.size, Arrivals::Poisson);
    let server = Server::new(rate);
    let mean = crate::model::Model::Mg1
        .evaluate(&server, &load)
        .map_or(f64::INFINITY, |outcome| outcome.wait);
    let rho = load.utilization(&server);
    let tail = if rho <= LATE {
        0.0
    } else {
        mean / rho * (rho / LATE).ln()
    };
    (mean, tail)
}

/// Returns how many packets of a task wait at once in a queue of this rate: those of its burst, or
/// the 99th percentile. A queue that holds this many packets of 1514 bytes holds their bytes, too.
fn waiting(task: &Task, rate: f64, port: &Port) -> f64 {
    let backlog = match task.burst {
        Some(burst) => {
            burst.max(task.size) + task.rate * (SLACK + frame().max(task.size) / port.rate)
        }
        None => waits(task, rate).1 * rate,
    };
    (backlog / task.size.min(frame())).ceil()
}

/// Returns the rate that a task's queue needs on a port of this rate, in bit/s.
fn needed(task: &Task, port: &Port) -> Result<f64, String> {
    // A packet being transmitted cannot be interrupted.
    let floor = SLACK + frame().max(task.size) / port.rate;
    let room = task.latency.min(LONGEST) - floor;
    if room <= 0.0 {
        return Err(format!(
            "{:.3} ms is less than timer slack and a packet on the line of {}, {:.3} ms",
            task.latency * 1e3,
            port.name,
            floor * 1e3
        ));
    }
    if let Some(burst) = task.burst {
        let packets = waiting(task, 0.0, port);
        if packets > MOST_PACKETS {
            return Err(format!(
                "its burst makes {packets:.0} packets wait, and a queue is given {MOST_PACKETS:.0} at most"
            ));
        }
        return Ok((burst.max(task.size) / room).max(task.rate).ceil());
    }
    if waits(task, port.rate).1 > room {
        return Err(format!(
            "even all of {} would make one of 100 packets wait longer than {:.3} ms",
            port.name,
            room * 1e3
        ));
    }
    let too_slow = |rate| waits(task, rate).1 > room || waiting(task, rate, port) > MOST_PACKETS;
    if too_slow(port.rate) {
        return Err(format!(
            "even with all of {} more packets wait than the {MOST_PACKETS:.0} that a queue is given",
            port.name
        ));
    }
    let (mut low, mut high) = (task.rate, port.rate);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if too_slow(middle) {
            low = middle
        } else {
            high = middle
        }
    }
    Ok(high.ceil())
}

struct Search<'a> {
    /// Tasks that could be placed, the largest first, with the rate that each needs on each port.
    needs: &'a [(usize, Vec<Option<f64>>)],
    left: Vec<f64>,
    places: Vec<Option<usize>>,
    best: Vec<Option<usize>>,
    /// How many tasks are placed now, and at most so far.
    placed: usize,
    most_placed: usize,
    tries: usize,
    most: usize,
}

impl Search<'_> {
    /// Places the tasks from index `at` on; returns true once all are placed.
    fn place(&mut self, at: usize) -> bool {
        if self.placed > self.most_placed {
            self.most_placed = self.placed;
            self.best.clone_from(&self.places);
        }
        if at == self.needs.len() {
            return self.placed == self.needs.len();
        }
        self.tries += 1;
        if self.tries > self.most {
            return false;
        }
        let needs = &self.needs[at].1;
        let fits = |port: &usize| needs[*port].is_some_and(|need| need <= self.left[*port]);
        let mut ports: Vec<usize> = (0..self.left.len()).filter(fits).collect();
        let rest = |port: &usize| self.left[*port] - needs[*port].unwrap_or(0.0);
        ports.sort_by(|a, b| rest(a).total_cmp(&rest(b)));
        for port in ports {
            let need = needs[port].unwrap_or(0.0);
            self.left[port] -= need;
            self.places[at] = Some(port);
            self.placed += 1;
            if self.place(at + 1) {
                return true;
            }
            self.left[port] += need;
            self.places[at] = None;
            self.placed -= 1;
        }
        // The others may fit without it.
        self.tries <= self.most && self.place(at + 1)
    }
}

/// Places tasks on ports.
pub fn place(tasks: &[Task], ports: &[Port]) -> Result<Placement, Error> {
    check(tasks, ports)?;
    let mut unplaced = Vec::new();
    let mut needs: Vec<(usize, Vec<Option<f64>>)> = Vec::new();
    for (number, task) in tasks.iter().enumerate() {
        let mut reason = String::new();
        let of_port = |port: &Port| -> Option<f64> {
            if !task.ports.is_empty() && !task.ports.contains(&port.name) {
                return None;
            }
            match needed(task, port) {
                Ok(need) if need <= port.rate * (1.0 - port.reserve) => Some(need),
                Ok(need) => {
                    reason = format!(
                        "needs {} bit/s, more than {} has for queues",
                        need, port.name
                    );
                    None
                }
                Err(why) => {
                    reason = why;
                    None
                }
            }
        };
        let on: Vec<Option<f64>> = ports.iter().map(of_port).collect();
        if on.iter().any(Option::is_some) {
            needs.push((number, on));
        } else {
            unplaced.push(Unplaced {
                task: task.name.clone(),
                reason,
            });
        }
    }
    let least = |on: &[Option<f64>]| on.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    needs.sort_by(|a, b| least(&b.1).total_cmp(&least(&a.1)));
    let capacity = |port: &Port| port.rate * (1.0 - port.reserve);
    let mut search = Search {
        needs: &needs,
        left: ports.iter().map(capacity).collect(),
        places: vec![None; needs.len()],
        best: vec![None; needs.len()],
        placed: 0,
        most_placed: 0,
        tries: 0,
        // Each step checks all ports.
        most: (TRIES / ports.len()).max(2 * tasks.len()),
    };
    search.place(0);
    let complete = search.tries <= search.most;
    let best = search.best;
    let mut left: Vec<f64> = ports.iter().map(capacity).collect();
    let mut placed = Vec::new();
    let mut queues = vec![0; ports.len()];
    for ((number, on), place) in needs.iter().zip(&best) {
        let Some(port) = *place else { continue };
        let need = on[port].unwrap_or(0.0);
        left[port] -= need;
        queues[port] += 1;
        placed.push(put(&tasks[*number], &ports[port], queues[port], need));
    }
    for ((number, on), _) in needs.iter().zip(&best).filter(|(_, place)| place.is_none()) {
        let most = left.iter().copied().fold(0.0, f64::max);
        unplaced.push(Unplaced {
            task: tasks[*number].name.clone(),
            reason: format!(
                "needs {:.0} bit/s, and no port that will do has more than {most:.0} left",
                least(on)
            ),
        });
    }
    Ok(Placement {
        fits: unplaced.is_empty(),
        commands: ports
            .iter()
            .filter_map(|port| command(port, &placed))
            .collect(),
        left: ports
            .iter()
            .map(|port| port.name.clone())
            .zip(left)
            .collect(),
        placed,
        unplaced,
        complete,
    })
}

fn put(task: &Task, port: &Port, queue: u32, need: f64) -> Placed {
    let floor = SLACK + frame().max(task.size) / port.rate;
    let (mean, tail) = waits(task, need);
    let packets = waiting(task, need, port);
    let longest = task.burst.map_or(tail, |burst| burst.max(task.size) / need);
    let mean = mean.min(longest);
    Placed {
        task: task.name.clone(),
        port: port.name.clone(),
        queue,
        rate: need as u64,
        wait: Span {
            value: mean,
            low: 0.0,
            high: longest + floor,
        },
        bound: task.burst.is_some(),
        latency: task.latency,
        limit: (packets > USUAL_PACKETS).then_some(packets as u32),
        why: (need > task.rate.ceil()).then(|| why_more(task, floor)),
    }
}

/// Explains why a task's rate alone would make its packets wait too long.
fn why_more(task: &Task, floor: f64) -> String {
    let room = (task.latency.min(LONGEST) - floor) * 1e3;
    match task.burst {
        Some(burst) => format!(
            "its burst of {:.0} bits has to leave within {room:.3} ms: what it may wait, less {:.3} ms \
             for timer slack and a packet on the line",
            burst.max(task.size),
            floor * 1e3
        ),
        None => format!(
            "no burst is named, so its packets are taken to come at random: at the {:.0} bit/s that it \
             sends, more than one of 100 would wait longer than {room:.3} ms; a burst, where the task \
             keeps to one, makes this exact",
            task.rate
        ),
    }
}

/// Returns one `ovs-vsctl` call for a port's queues; None for a port without. Queue 0, for all
/// other traffic, gets the rest.
fn command(port: &Port, placed: &[Placed]) -> Option<String> {
    let mine: Vec<&Placed> = placed
        .iter()
        .filter(|placed| placed.port == port.name)
        .collect();
    if mine.is_empty() {
        return None;
    }
    let queues: Vec<String> = mine
        .iter()
        .map(|placed| format!("queues:{0}=@q{0}", placed.queue))
        .collect();
    let rows: Vec<String> = mine
        .iter()
        .map(|placed| {
            let limit = placed.limit.map_or(String::new(), |packets| {
                format!(" other-config:limit-packets={packets}")
            });
            format!(
                "-- --id=@q{} create queue other-config:min-rate={} other-config:max-latency-us={}{limit} external-ids:task={}",
                placed.queue,
                placed.rate,
                (placed.latency.min(LONGEST) * 1e6).floor() as u64,
                quoted(&placed.task)
            )
        })
        .collect();
    Some(format!(
        "ovs-vsctl -- set port {} qos=@qos -- --id=@qos create qos type=linux-htb other-config:max-rate={} {} {}",
        port.name,
        port.rate as u64,
        queues.join(" "),
        rows.join(" ")
    ))
}

/// Quotes a word against the shell and `ovs-vsctl`.
fn quoted(word: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    word.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task(name: &str, rate: f64, latency: f64, burst: Option<f64>) -> Task {
        Task {
            name: name.into(),
            rate,
            latency,
            size: 12_000.0,
            burst,
            ports: Vec::new(),
        }
    }

    fn port(name: &str, rate: f64) -> Port {
        Port {
            name: name.into(),
            rate,
            reserve: 0.0,
        }
    }

    #[test]
    fn tasks_that_fit_are_placed_and_others_are_told_why() {
        let tasks = [
            task("camera", 20e6, 0.005, Some(200_000.0)),
            task("sensor", 1e6, 0.002, Some(12_000.0)),
            task("backup", 300e6, 0.1, None),
            task("robot", 1e6, 0.00005, None),
            task("flood", 2e9, 1.0, None),
        ];
        let got = place(&tasks, &[port("p1", 100e6), port("p2", 1e9)]).unwrap();
        assert!(!got.fits && got.complete);
        let left_out: Vec<&str> = got.unplaced.iter().map(|one| one.task.as_str()).collect();
        assert_eq!(left_out, ["robot", "flood"]);
        let backup = got.placed.iter().find(|one| one.task == "backup").unwrap();
        assert_eq!(backup.port, "p2");
        let camera = got.placed.iter().find(|one| one.task == "camera").unwrap();
        // 200,000 bits in the part of 5 ms that is left need more than the 20 Mbit/s of the task.
        assert!(
            camera
                .why
                .as_ref()
                .unwrap()
                .contains("burst of 200000 bits")
        );
        assert!(got.placed.iter().all(|one| {
            let asked = tasks
                .iter()
                .find(|task| task.name == one.task)
                .unwrap()
                .rate;
            one.why.is_some() == (one.rate as f64 > asked)
        }));
        assert!(camera.rate >= 40_000_000 && camera.bound && camera.wait.high <= 0.005 * 1.000_001);
        assert!(got.commands.iter().any(
            |text| text.starts_with("ovs-vsctl -- set port p2 qos=@qos")
                && text.contains("other-config:max-rate=1000000000")
                && text.contains("max-latency-us=")
        ));
    }

    #[test]
    fn ways_that_greed_misses_are_found() {
        // Greedily (largest first, fullest port) 6 and 5 go together, and then 5 and 4 do not fit
        // into 9.
        let tasks: Vec<Task> = [6e6, 5e6, 5e6, 4e6]
            .iter()
            .zip(["a", "b", "c", "d"])
            .map(|(rate, name)| task(name, *rate, 1.0, Some(12_000.0)))
            .collect();
        let got = place(&tasks, &[port("p1", 11e6), port("p2", 9e6)]).unwrap();
        assert!(got.fits, "{got:?}");
    }

    #[test]
    fn commands_are_such_that_the_switch_takes_them() {
        let tasks = [
            task("patient", 1e6, 3600.0, Some(12_000.0)),
            task("bursts", 1e6, 2.0, Some(1500.0 * 12_000.0)),
            task("torrents", 1e6, 2.0, Some(2100.0 * 12_000.0)),
            // 1% of the packets wait behind as many as a queue can hold.
            task("crowd", 300e6, 4.0, None),
        ];
        let got = place(&tasks, &[port("p1", 1e9)]).unwrap();
        let command = &got.commands[0];
        let row = |name: &str| {
            let rows = command.split("-- --id=");
            rows.filter(|row| row.contains(&format!("task={name}")))
                .collect::<String>()
        };
        assert!(
            row("patient").contains("max-latency-us=4000000 "),
            "{command}"
        );
        assert!(!row("patient").contains("limit-packets"), "{command}");
        assert!(row("bursts").contains("limit-packets=1501 "), "{command}");
        let crowd = got.placed.iter().find(|one| one.task == "crowd").unwrap();
        assert!(
            crowd
                .limit
                .is_some_and(|packets| packets > 1900 && packets <= 2048),
            "{crowd:?}"
        );
        assert_eq!(got.unplaced[0].task, "torrents");
        assert!(got.unplaced[0].reason.contains("2101 packets"), "{got:?}");
        for rate in [7_999.0, 4.1e11] {
            assert!(place(&tasks, &[port("p1", rate)]).is_err());
        }
        // Less than the switch's own delays.
        let hasty = [task("hasty", 1e6, 0.0002, Some(12_000.0))];
        assert!(!place(&hasty, &[port("p1", 1e9)]).unwrap().fits);
    }

    #[test]
    fn bad_demands_are_refused() {
        let good = task("a", 1e6, 0.01, None);
        let ports = [port("p1", 1e9)];
        assert!(place(&[], &ports).is_err());
        let many: Vec<Task> = (0..1001)
            .map(|at| task(&format!("t{at}"), 1e3, 0.01, None))
            .collect();
        let ports_of =
            |count| -> Vec<Port> { (0..count).map(|at| port(&format!("p{at}"), 1e9)).collect() };
        let error = place(&many, &ports_of(1000)).unwrap_err().to_string();
        assert!(error.contains("more than 1000000 pairs"), "{error}");
        for bad in [
            Task {
                rate: -1.0,
                ..good.clone()
            },
            Task {
                rate: f64::NAN,
                ..good.clone()
            },
            Task {
                latency: 0.0,
                ..good.clone()
            },
            Task {
                burst: Some(0.0),
                ..good.clone()
            },
            Task {
                ports: vec!["p9".into()],
                ..good.clone()
            },
        ] {
            assert!(place(&[bad], &ports).is_err());
        }
        assert!(place(&[good.clone(), good.clone()], &ports).is_err());
        assert!(place(std::slice::from_ref(&good), &[port("a;b", 1e9)]).is_err());
        assert!(
            place(
                &[good],
                &[Port {
                    reserve: 1.0,
                    ..port("p", 1e9)
                }]
            )
            .is_err()
        );
    }

    proptest! {
        /// No port is overcommitted, every placed demand is met, and every task is either placed or
        /// has a reason.
        #[test]
        fn promises_can_be_kept(
            tasks in prop::collection::vec((1e5..3e8_f64, 1e-4..0.05_f64, prop::option::of(1e4..1e6_f64)), 1..10),
            ports in prop::collection::vec(1e7..1e9_f64, 1..4),
        ) {
            let tasks: Vec<Task> = tasks.iter().enumerate()
                .map(|(at, (rate, latency, burst))| task(&format!("t{at}"), *rate, *latency, *burst)).collect();
            let ports: Vec<Port> = ports.iter().enumerate().map(|(at, rate)| port(&format!("p{at}"), *rate)).collect();
            let got = place(&tasks, &ports).unwrap();
            prop_assert_eq!(got.placed.len() + got.unplaced.len(), tasks.len());
            for port in &ports {
                let sum: u64 = got.placed.iter().filter(|one| one.port == port.name).map(|one| one.rate).sum();
                prop_assert!(sum as f64 <= port.rate + 1.0);
            }
            for one in &got.placed {
                prop_assert!(one.wait.high <= one.latency * 1.000_01, "{:?}", one);
            }
        }
    }
}
