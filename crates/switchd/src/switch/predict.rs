//! Predicts the cost of a bridge's rules, by the same means as `sluice predict`.
//!
//! A copy of the rules is compiled and measured on a thread of idle priority, and ports by a
//! separate process of idle priority (`crate::calibrate`), so that neither the control thread nor a
//! worker waits. One prediction is made at a time. Its result is kept, and written to the database
//! with the statistics.
//!
//! Predictions are made on request; with `other_config:sluice-predict` of the root row also when
//! rules have changed.

use super::bridge::Bridge;
use super::{Switch, processors};
use datapath::Shape;
use openflow::flow::{FlowMod, FlowStats, FlowStatsRequest};
use openflow::group::{self, GroupDescription};
use openflow::meter::{self, MeterConfig};
use predict::kinds::{Kinds, PortModel, shares};
use predict::ports::{Costs, Device, Edge, Helper, Memory, PortCost, Shares, add_notes};
use predict::rules::Rules;
use predict::spread::Spread;
use predict::traffic::Traffic;
use predict::{Effort, Prediction, report, trace};
use program::epoch::Epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most rules that are copied and compiled: some hundred megabytes.
const RULES_MAX: usize = 100_000;
/// Rules copied before other tasks run: about a millisecond.
const SLICE: usize = 512;
/// Interval at which rules are checked for changes, if predictions are kept up to date.
const RENEWAL: Duration = Duration::from_secs(30);
/// Pause before rules whose prediction failed are tried again.
const RETRY: Duration = Duration::from_secs(600);
/// The ingress port of packets where rules do not name one.
const IN_PORT: u32 = 1;

/// Whether a prediction is being made.
static BUSY: AtomicBool = AtomicBool::new(false);

/// The right to make a prediction.
struct Turn;

impl Turn {
    fn take() -> Result<Turn, String> {
        let free = BUSY.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        free.map(|_| Turn)
            .map_err(|_| "a prediction is being made already".to_owned())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// Keeps the predictions of all bridges up to date while the configuration asks for it.
pub async fn keep(switch: Rc<Switch>) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(RENEWAL).await;
        let wanted = || {
            let applied = switch.applied.borrow();
            applied.global.as_ref().is_some_and(|global| global.predict)
        };
        for bridge in crate::commands::bridges(&switch) {
            if !wanted() {
                break;
            }
            let known = (bridge.prediction.borrow().as_ref())
                .filter(|known| known.figure.is_some() || known.made.elapsed() < RETRY)
                .map(|known| (known.digest, known.epoch));
            // If nothing has been published since, no rule has changed and none needs to be copied.
            let epoch = switch.program.domain.current();
            if known.is_some_and(|(_, since)| since == epoch) {
                continue;
            }
            let known = known.map(|(digest, _)| digest);
            let made = renew(switch.clone(), bridge.clone(), None, known, false);
            if let Err(error) = made.await {
                tracing::debug!(target: "bridge", "no prediction for {}: {error}", bridge.name);
            }
        }
    }
}

/// A kept prediction.
pub(super) struct Known {
    /// Cycles per packet and Mpps; none where it failed.
    pub figure: Option<(Spread, Spread)>,
    /// Digest of its rules.
    digest: u64,
    /// The current epoch before the rules were copied.
    epoch: Epoch,
    made: Instant,
}

/// Makes a prediction for a bridge and returns it as text for people. `description` describes the
/// packets; without it they are derived from the rules, and only then the result is kept. If the
/// machine's speed changed during the measurement, figures are returned only if `anyway` is set,
/// and never kept.
pub async fn predict(
    switch: Rc<Switch>,
    bridge: Rc<Bridge>,
    description: Option<String>,
    anyway: bool,
) -> Result<String, String> {
    renew(switch, bridge, description, None, anyway).await
}

/// Makes a prediction like [`predict()`]. Does nothing and returns no text if the rules still have
/// the digest `known`.
async fn renew(
    switch: Rc<Switch>,
    bridge: Rc<Bridge>,
    description: Option<String>,
    known: Option<u64>,
    anyway: bool,
) -> Result<String, String> {
    let turn = Turn::take()?;
    let origin = description.clone();
    let epoch = switch.program.domain.current();
    let flows = match copied(&switch, &bridge).await {
        Ok(flows) => flows,
        Err(error) => {
            // The old prediction is for other rules.
            bridge.prediction.replace(None);
            return Err(error);
        }
    };
    let (groups, meters) = {
        let pipeline = bridge.pipeline.borrow();
        let meters = pipeline.meter_configs(meter::ALL);
        (
            pipeline.group_descriptions(group::ALL),
            meters.unwrap_or_default(),
        )
    };
    let ports = BridgePorts::of(&bridge);
    let run = switch.shell.options.directories.run.clone();
    let cpu = quiet_processor(&switch);
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("predict".into())
        .spawn(move || {
            run_when_idle();
            // Fails if the control thread has ended meanwhile.
            let digest = digest(&(&flows, &groups, &meters, &ports));
            let made = (known != Some(digest)).then(|| {
                let rules = (flows, groups.as_slice(), meters.as_slice());
                of_rules(rules, &ports, description.as_deref(), &run, cpu)
            });
            drop(turn);
            let _ = send.send((digest, made));
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let (digest, made) = receive.await.map_err(|_| "predicting failed".to_owned())?;
    let Some(made) = made else {
        if let Some(known) = bridge.prediction.borrow_mut().as_mut() {
            known.epoch = epoch;
        }
        return Ok(String::new());
    };
    if origin.is_none() {
        // If the machine's speed changed, no figure is kept; the next check tries again.
        let figure = made
            .as_ref()
            .ok()
            .filter(|made| made.prediction.machine.stood_still())
            .map(|made| (made.prediction.cycles, made.prediction.mpps));
        bridge.prediction.replace(Some(Known {
            figure,
            digest,
            epoch,
            made: Instant::now(),
        }));
    }
    let Made {
        prediction,
        kinds,
        notes,
    } = made?;
    let origin = origin.as_deref().unwrap_or("the rules");
    let mut text = report::text(&prediction, anyway);
    text.push_str(&format!(
        "{}: {kinds} ports, packets made from {origin}\n",
        bridge.name
    ));
    notes
        .iter()
        .for_each(|note| text.push_str(&format!("note: {note}\n")));
    Ok(text)
}

/// A bridge's ports, by their OpenFlow numbers.
#[derive(Debug, Default)]
struct BridgePorts {
    /// Names and types of all ports.
    types: BTreeMap<u32, (String, String)>,
    /// Ports that police what they receive.
    policed_in: BTreeSet<u32>,
    /// Ports that police what they send.
    policed_out: BTreeSet<u32>,
}

impl BridgePorts {
    fn of(bridge: &Bridge) -> BridgePorts {
        let mut ports = BridgePorts::default();
        for port in bridge.ports.borrow().values() {
            let number = port.openflow_number();
            let settings = port.settings(false);
            if settings.ingress != Default::default() {
                ports.policed_in.insert(number);
            }
            if matches!(settings.shape, Shape::Policer(_)) {
                ports.policed_out.insert(number);
            }
            let device = (port.config.name.clone(), port.config.device.clone());
            ports.types.insert(number, device);
        }
        ports
    }

    /// Returns the kind of a port; a DPDK device if the bridge has no such port.
    fn kind(&self, number: u32) -> PortModel {
        let port = self.types.get(&number);
        port.map_or(PortModel::Measured(Device::Dpdk), |(_, device)| {
            PortModel::of_type(device).0
        })
    }

    /// Returns notes about ports that the traffic uses and that are measured as another kind.
    fn notes(&self, traffic: &Traffic, trace: &trace::Trace) -> Vec<String> {
        let met = |number: &u32| {
            trace.out_ports.contains_key(number)
                || (traffic.arrivals.iter()).any(|arrival| arrival.in_port == *number)
        };
        let unlike = self.types.iter().filter(|(number, (_, device))| {
            let (_, exact) = PortModel::of_type(device);
            !exact && met(number)
        });
        unlike
            .map(|(_, (name, device))| format!("{name}: a port of type {device} may cost more"))
            .collect()
    }

    /// Returns how much of the traffic passes policers.
    fn policed(&self, traffic: &Traffic, trace: &trace::Trace) -> Shares {
        let part = |ports: &BTreeSet<u32>| shares(traffic, trace, &|port| ports.contains(&port));
        let nothing_is_sent = trace.out_ports.is_empty();
        Shares {
            received: part(&self.policed_in).received,
            sent: if nothing_is_sent {
                0.0
            } else {
                part(&self.policed_out).sent
            },
        }
    }
}

/// Copies a bridge's rules, a slice at a time.
async fn copied(switch: &Switch, bridge: &Bridge) -> Result<Vec<FlowMod>, String> {
    let count = bridge.pipeline.borrow().rule_count();
    if count > RULES_MAX {
        return Err(format!(
            "{}: {count} rules; up to {RULES_MAX} can be predicted while the switch runs",
            bridge.name
        ));
    }
    let request = FlowStatsRequest::all();
    let mut dump = bridge.pipeline.borrow_mut().begin_dump(&request);
    let mut flows = Vec::with_capacity(count);
    loop {
        let done =
            bridge
                .pipeline
                .borrow_mut()
                .continue_dump(&mut dump, switch.now(), SLICE, |stats| {
                    flows.push(added(stats))
                });
        if done || flows.len() > 2 * RULES_MAX {
            return Ok(flows);
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the flow mod that adds such a rule.
fn added(stats: FlowStats) -> FlowMod {
    FlowMod {
        table: stats.table,
        cookie: stats.cookie,
        ..FlowMod::add(stats.matching, stats.priority, stats.instructions.to_vec())
    }
}

/// Returns a processor without a pinned worker, if there is one.
fn quiet_processor(switch: &Switch) -> usize {
    let workers = switch
        .with_datapath(|datapath| datapath.workers())
        .unwrap_or_default();
    let taken: Vec<usize> = workers.iter().filter_map(|worker| worker.cpu).collect();
    processors::quiet(&taken)
}

/// Gives the calling thread, and what it starts, idle priority.
fn run_when_idle() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is valid; pid 0 is the calling thread. If this fails, the thread keeps
    // its normal priority.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) };
}

/// Returns a hash that differs if rules do.
fn digest(rules: &impl std::fmt::Debug) -> u64 {
    struct Digest(DefaultHasher);
    impl std::fmt::Write for Digest {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut digest = Digest(DefaultHasher::new());
    // Writing to a hash never fails.
    let _ = std::fmt::Write::write_fmt(&mut digest, format_args!("{rules:?}"));
    digest.0.finish()
}

/// Removes files from the run directory that predictions of dead processes have left.
fn remove_leftovers(run: &Path) {
    for entry in std::fs::read_dir(run).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix("sluice-predict."))
            .and_then(|rest| rest.split_once('.'))
            .and_then(|(process, _)| process.parse::<u32>().ok());
        if let Some(process) = process
            && !Path::new("/proc").join(process.to_string()).exists()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A prediction, its kinds of ports, and notes about it.
struct Made {
    prediction: Prediction,
    kinds: String,
    notes: Vec<String>,
}

fn of_rules(
    (flows, groups, meters): (Vec<FlowMod>, &[GroupDescription], &[MeterConfig]),
    ports: &BridgePorts,
    description: Option<&str>,
    run: &Path,
    cpu: usize,
) -> Result<Made, String> {
    let text = |error: predict::Error| error.to_string();
    let (rules, refused) = Rules::of(flows, groups, meters);
    let traffic = match description {
        Some(description) => {
            Traffic::described(description, &openflow::parse::no_names, IN_PORT).map_err(text)?
        }
        None => Traffic::of_rules(&rules, IN_PORT).map_err(text)?,
    };
    let trace = trace::trace(&rules, &traffic).map_err(text)?;
    let effort = Effort {
        cpu: Some(cpu),
        ..Effort::default()
    };
    remove_leftovers(run);
    let capture: PathBuf = run.join(format!("sluice-predict.{}.pcap", std::process::id()));
    let helper = Helper {
        program: Path::new("/proc/self/exe"),
        memory: Memory::Ordinary,
        capture: &capture,
    };
    let mut kinds = Kinds::of(&traffic, &trace, &|port| ports.kind(port));
    let mut notes = ports.notes(&traffic, &trace);
    let measure = |kinds: &Kinds| {
        let devices = kinds.devices();
        if devices.is_empty() {
            return Ok(Costs::new());
        }
        // The rules themselves are measured over DPDK's devices only.
        let whole = kinds.shares(Device::Dpdk) == Shares::ALL;
        helper.measure(
            &devices,
            &traffic,
            whole.then_some((&rules, &trace)),
            effort,
        )
    };
    let costs = match measure(&kinds) {
        // A pair of kernel interfaces needs privileges that the daemon may lack.
        Err(error) if kinds.devices().into_iter().any(Device::is_kernels) => {
            notes.push(format!("kernel interfaces are taken for dpdk: {error}"));
            kinds = Kinds::of(&traffic, &trace, &|port| match ports.kind(port) {
                PortModel::Measured(device) if device.is_kernels() => {
                    PortModel::Measured(Device::Dpdk)
                }
                kind => kind,
            });
            measure(&kinds).map_err(text)?
        }
        measured => measured.map_err(text)?,
    };
    let met: Vec<(&PortCost, Shares)> = costs
        .iter()
        .map(|(device, cost)| (cost, kinds.shares(*device)))
        .collect();
    let edge = Edge {
        ports: &met,
        policed: ports.policed(&traffic, &trace),
    };
    let prediction = predict::predict(&rules, &traffic, trace, edge, effort).map_err(text)?;
    add_notes(&costs, &mut notes);
    if refused > 0 {
        notes.push(format!(
            "{refused} rules, groups or meters could not be copied and were left out"
        ));
    }
    Ok(Made {
        prediction,
        kinds: kinds.describe(),
        notes,
    })
}
