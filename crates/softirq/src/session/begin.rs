//! Starts a session: checks the options, loads and attaches the programs.

use super::choices::Choices;
use super::{Counters, ENTRIES_MAX, FLOWS_MAX, Options, Session, SessionError, listed};
use crate::clock::now_ns;
use crate::cpus;
use crate::device::{ChosenMode, Device};
use crate::layout::CPUS_MAX;
use crate::object::BpfError;
use crate::parse::Layout;
use crate::program::{Constants, Limits, Mode, Program};
use crate::sampler::{Sampler, Shares, Source, visit};
use std::collections::{BTreeMap, BTreeSet};
use steer::balance::Balancer;
use steer::cores::CoreTable;
use steer::table::{FlowTable, Limits as TableLimits, TableError};

/// Shortest gap after which a flow may move without a sign that it has drained: longer than a woken
/// thread waits for a core on which it has been preempted once or twice.
const LEAST_WAIT_NS: u64 = 20_000_000;

impl Session {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    ///
    /// The first problem; nothing stays attached.
    pub fn start(options: &Options) -> Result<Session, SessionError> {
        let settings = options.settings.validate()?;
        for (name, value, most) in [
            ("entries", options.entries, ENTRIES_MAX),
            ("flows", options.flows, FLOWS_MAX),
        ] {
            if value == 0 || value > most {
                let (value, most) = (u64::from(value), u64::from(most));
                let least = 1;
                return Err(SessionError::Limit {
                    name,
                    value,
                    least,
                    most,
                });
            }
        }
        let device = Device::find(&options.device)?;
        device.check_vacant()?;
        let cpus = check_cores(options.cores.as_ref())?;
        let constants = Constants {
            choice_age_ns: settings.choice_age_ns,
            least_wait_ns: LEAST_WAIT_NS,
            layout: options.layout,
            trusted: options.trusted,
            strip: options.strip,
            vxlan_port: options.vxlan_port,
            seed: seed(),
        };
        let highest = cpus::present()
            .last()
            .copied()
            .unwrap_or(0)
            .min(CPUS_MAX as u32 - 1);
        let limits = Limits {
            cpus: highest + 1,
            entries: options.entries,
            flows: options.flows,
        };
        let mut program = Program::load(limits, &constants)?;
        for cpu in &cpus {
            program.open_core(*cpu)?;
        }
        let mut warnings = warnings(options, &device);
        program.attach_cpumap()?;
        let mut source = Source::ProcStat;
        if !options.proc_stat {
            match program.attach_samplers() {
                Ok(()) => source = Source::Tracepoints,
                Err(error) => warnings.push(format!(
                    "loads are from /proc/stat, which may not see interrupts: {error}"
                )),
            }
        }
        visit(&cpus);
        let now = now_ns();
        let count = cpus.len() as u16;
        let cores = CoreTable::new(count, now).map_err(TableError::from)?;
        let table = FlowTable::new(TableLimits {
            entries: options.entries as usize,
            choices: (options.entries + options.flows) as usize,
        });
        let mut session = Session {
            mode: attach(&mut program, &device, options.mode)?,
            balancer: Balancer::new(count, &settings),
            sampler: Sampler::new(source),
            choices: Choices::new(limits.entries, cpus.len()),
            shares: vec![Shares::default(); cpus.len()],
            free_slots: (0..limits.entries).rev().collect(),
            entry_slots: BTreeMap::new(),
            offline: BTreeSet::new(),
            vms: BTreeMap::new(),
            counters: Counters::default(),
            sampled_ns: now,
            device,
            program,
            constants,
            settings,
            cpus,
            cores,
            table,
            warnings,
        };
        session.publish_rankings()?;
        Ok(session)
    }
}

/// Checks the requested cores, and returns those to use in ascending order.
fn check_cores(wanted: Option<&BTreeSet<u32>>) -> Result<Vec<u32>, SessionError> {
    let (present, online) = (cpus::present(), cpus::online());
    let cores: Vec<u32> = match wanted {
        None => online
            .iter()
            .copied()
            .filter(|cpu| *cpu < CPUS_MAX as u32)
            .collect(),
        Some(wanted) => {
            for core in wanted.iter().copied() {
                if !present.contains(&core) {
                    let present = listed(&present);
                    return Err(SessionError::NoCore { core, present });
                }
                if !online.contains(&core) {
                    return Err(SessionError::Offline(core));
                }
                if core >= CPUS_MAX as u32 {
                    return Err(SessionError::Beyond(core));
                }
            }
            wanted.iter().copied().collect()
        }
    };
    if cores.is_empty() {
        Err(SessionError::NoCores)
    } else {
        Ok(cores)
    }
}

fn attach(
    program: &mut Program,
    device: &Device,
    wanted: Option<Mode>,
) -> Result<ChosenMode, SessionError> {
    let modes = device.modes(wanted);
    let mut last: Option<(Mode, BpfError)> = None;
    for mut chosen in modes {
        match program.attach(device.index, chosen.mode) {
            Ok(()) => {
                if let Some((_, refused)) = last {
                    chosen.reason = format!("driver mode was refused: {}", refused.error);
                }
                return Ok(chosen);
            }
            Err(error) => {
                // Another program may have been attached meanwhile.
                device.check_vacant()?;
                last = Some((chosen.mode, error));
            }
        }
    }
    let Some((mode, error)) = last else {
        return Err(SessionError::NoCores);
    };
    if mode == Mode::Driver {
        let device = device.name.clone();
        let error = error.error.to_string();
        return Err(SessionError::NoDriverMode { device, error });
    }
    Err(error.into())
}

/// Returns warnings about the options for the user.
fn warnings(options: &Options, device: &Device) -> Vec<String> {
    let mut warnings = Vec::new();
    if options.layout == Layout::Vlan && device.hides_tags {
        warnings.push(format!(
            "{}: the program cannot see tags that the device keeps beside frames: turn that off \
             (ethtool -K {} rxvlan off; at a veth pair's far end, txvlan off)",
            device.name, device.name
        ));
    }
    if options.layout == Layout::Tos8 && !options.strip {
        warnings.push(
            "tos8 without taking the field off: VM ids of 3 modulo 4 look like congestion marks \
             to whoever decapsulates"
                .to_owned(),
        );
    }
    if options.layout != Layout::None && !options.trusted {
        warnings.push(
            "the flow control field is not believed on this interface (--fcf-trusted)".to_owned(),
        );
    }
    warnings
}

/// Returns a number that senders cannot know, so that they cannot make flows' hashes collide.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish()
}
