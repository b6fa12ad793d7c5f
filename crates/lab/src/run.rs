//! Runs experiments: cell by cell, in rounds.
//!
//! Each round visits every cell with every subject, so that windows of one cell are far apart and a
//! slow minute of the machine's hits all subjects. A visit starts a switch once for the cells that
//! need the same ports. Each window is written to the [journal](crate::journal) before the next
//! begins; a cell that cannot be measured is recorded with its reason, and the run goes on.

use crate::Error;
use crate::advice;
use crate::experiment::{Experiment, Mode};
use crate::findings;
use crate::generator::Generate;
use crate::guests::{self, Guests};
use crate::journal::{Entry, Header, Journal, Window};
use crate::lines::{self, Line};
use crate::machine::{self, Host};
use crate::methods::{self, Limits, Method};
use crate::place;
use crate::program;
use crate::results::{self, Cell, Figure, Made, Results, SCHEMA, State, Value, Windows};
use crate::scatter;
use crate::settings::{GuestKind, Settings};
use crate::simulation;
use crate::speed::{self, Probe};
use crate::statistics;
use crate::subject::{self, Place, Running, Subject};
use crate::trial::{self, Live, Physical, Setup};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// About how long a switch takes to start and to stop, seconds; and how much less in the kernel.
const START: f64 = 1.5;
const KERNELS: f64 = 1.0;
/// What a trial takes beside its seconds: settling, looks at the machine, and windows that are
/// repeated.
const TRIAL: f64 = 0.6;
/// What it takes more where a generator is started for it: one that feeds interfaces, and one that
/// also has guests' ports of DPDK.
const GENERATOR: f64 = 0.6;
const OFFERED: f64 = 2.4;
/// About how long a machine of QEMU's takes to boot and to be set up, emulated.
const MACHINE: f64 = 6.0;
/// About how long a round of a program's experiment takes, seconds, where it does not say so.
const PROGRAM: f64 = 18.0;
/// After so many starts that failed a subject is not started again for the same cells.
const FAILURES: u32 = 2;
/// The share of an experiment's windows of which at most so many are measured again since the
/// machine was in another state than usual.
const AGAIN: f64 = 0.25;
/// Longest time of a program, for each round.
const PROGRAM_LIMIT: Duration = Duration::from_secs(1800);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where results go.
    pub output: PathBuf,
    /// How thoroughly.
    pub mode: Mode,
    /// Only these subjects; all if empty.
    pub subjects: Vec<String>,
    /// Whether to go on with a run that was ended.
    pub resume: bool,
    /// Windows of each cell; absent: as the experiments and the mode say.
    pub rounds: Option<u32>,
    /// Seconds of a window, likewise.
    pub seconds: Option<f64>,
    /// Cores that the run may use, workers' first.
    pub cores: Vec<usize>,
    /// Sluice's daemon, for programs; absent: beside the command.
    pub daemon: Option<PathBuf>,
    /// The command line, for the report.
    pub command: String,
    /// The version, for the report.
    pub version: String,
}

/// What the run works with.
pub struct Hands<'a> {
    /// Switches that can be set up.
    pub subjects: &'a [Box<dyn Subject>],
    /// Where they are set up.
    pub place: &'a Place,
    /// Starts generators.
    pub generator: &'a mut dyn Generate,
    /// Looks how fast the machine is.
    pub probe: &'a mut dyn Probe,
    /// Whether the run is to end. Looked at often.
    pub stop: &'a dyn Fn() -> bool,
    /// Gets lines about progress.
    pub progress: &'a mut dyn FnMut(&str),
    /// Describes the machine, when all has been measured.
    pub machine: &'a mut dyn FnMut(&mut dyn Probe) -> results::Machine,
    /// What the kernel says of the host.
    pub host: &'a Host,
}

/// Cells of a subject that need the same ports.
struct Group<'e> {
    experiment: &'e Experiment,
    subject: &'e str,
    /// Index of the subject among those that can be set up.
    number: usize,
    cells: Vec<(BTreeMap<String, Value>, Settings, Setup)>,
    /// Starts that failed one after the other.
    failures: u32,
}

/// What is known so far.
#[derive(Default)]
struct Known {
    windows: Vec<Window>,
    lines: Vec<(String, Line)>,
    done: BTreeMap<String, (f64, Option<String>)>,
    /// Experiments whose cells others have measured with their own: which ones.
    with: BTreeMap<String, Vec<String>>,
    /// Why cells have not been tried: experiment, subject, cell.
    cannot: Vec<(String, String, BTreeMap<String, Value>, String)>,
    /// What stood for physical ports, by experiment and subject.
    physical: BTreeMap<String, BTreeMap<&'static str, BTreeSet<String>>>,
    /// The way between a program's two cores before and after it, nanoseconds, by experiment.
    ways: BTreeMap<String, Vec<f64>>,
    /// How cores were shared, by experiment.
    sharing: BTreeMap<String, BTreeSet<String>>,
}

/// Runs experiments, and writes their results.
pub fn run(
    experiments: &[Experiment],
    options: &Options,
    mut hands: Hands<'_>,
) -> Result<Results, Error> {
    let began = Instant::now();
    check(experiments, options, &hands)?;
    let header = Header {
        mode: options.mode.name().into(),
        began: crate::clock::now(),
        experiments: experiments
            .iter()
            .map(|e| {
                let text = serde_json::to_string(e).expect("it has text as keys only");
                (e.id.clone(), text)
            })
            .collect(),
        subjects: options.subjects.clone(),
        rounds: options.rounds,
        seconds: options.seconds,
        cores: options.cores.clone(),
        daemon: options.daemon.clone(),
    };
    let (mut journal, entries) = Journal::open(&options.output, header, options.resume)?;
    let mut known = Known::default();
    let mut started = String::new();
    for entry in entries {
        match entry {
            Entry::Run(header) => started = header.began,
            Entry::Window(window) => known.windows.push(*window),
            Entry::Line { experiment, line } => known.lines.push((experiment, line)),
            Entry::Begun { experiment } => known.lines.retain(|(of, _)| *of != experiment),
            // One that failed is tried again.
            Entry::Done {
                failed: Some(_), ..
            } => {}
            Entry::Done {
                experiment,
                seconds,
                failed,
                with,
            } => {
                if !with.is_empty() {
                    known.with.insert(experiment.clone(), with);
                }
                known.done.insert(experiment, (seconds, failed));
            }
        }
    }
    // What a program printed before it was ended is measured again with the rest of it.
    known
        .lines
        .retain(|(experiment, _)| known.done.contains_key(experiment));
    let versions = versions(experiments, options, &hands);
    let mut clock = TimeLeft::new(experiments, options);
    let mut results = Results {
        schema: SCHEMA,
        made: Made {
            version: options.version.clone(),
            command: options.command.clone(),
            mode: options.mode.name().into(),
            began: started,
            interrupted: true,
            ..Made::default()
        },
        subjects: versions.clone(),
        ..Results::default()
    };
    let sum_up = |results: &mut Results, known: &Known, seconds: f64| {
        results.made.seconds = seconds;
        results.made.repeated = known.windows.iter().map(|w| w.repeated).sum();
        results.machine.speeds = speeds(&known.windows);
        let windows = known.windows.iter().filter_map(|w| w.between_ns);
        let programs = known.ways.values().flatten().copied();
        results.machine.between_ns = windows.chain(programs).collect();
    };
    for experiment in experiments {
        if (hands.stop)() {
            break;
        }
        if experiment.method().is_outside() {
            outside(
                experiment,
                experiments,
                options,
                &mut hands,
                &mut journal,
                &mut known,
                &mut clock,
            )?;
        } else {
            trials(
                experiment,
                options,
                &versions,
                &mut hands,
                &mut journal,
                &mut known,
                &mut clock,
            )?;
        }
        let stopped = (hands.stop)();
        results
            .experiments
            .push(assemble(experiment, options, &versions, &known, stopped));
        sum_up(&mut results, &known, began.elapsed().as_secs_f64());
        results.write(&options.output)?;
    }
    let stopped = (hands.stop)();
    results.machine = (hands.machine)(hands.probe);
    sum_up(&mut results, &known, began.elapsed().as_secs_f64());
    results.made.interrupted = stopped;
    let mixed = |kinds: &BTreeMap<&str, BTreeSet<String>>| kinds.len() > 1;
    if known.physical.values().any(mixed) {
        results.machine.limits.push(
            "Switches in user space have frames in memory where the kernel's have veths that a \
             generator feeds from another core: what is between their figures is not the switch alone."
                .into(),
        );
    }
    results
        .machine
        .limits
        .extend(machine::ways(&results.machine.between_ns));
    let advice = advice::experiment(hands.host, &results);
    results.experiments.insert(0, advice);
    sum_up(&mut results, &known, began.elapsed().as_secs_f64());
    results.write(&options.output)?;
    Ok(results)
}

/// Says what is wrong before anything is started.
fn check(experiments: &[Experiment], options: &Options, hands: &Hands<'_>) -> Result<(), Error> {
    if experiments.is_empty() {
        return Err(Error::NoExperiments);
    }
    if options.cores.is_empty() {
        return Err(Error::NoCores);
    }
    let mut there: BTreeSet<&str> = hands.subjects.iter().map(|s| s.id()).collect();
    there.extend(
        experiments
            .iter()
            .flat_map(|e| e.subjects.iter().map(String::as_str)),
    );
    for subject in &options.subjects {
        if !there.contains(subject.as_str()) {
            return Err(Error::NoSubject {
                name: subject.clone(),
                known: there.into_iter().map(str::to_owned).collect(),
            });
        }
        if !experiments.iter().any(|e| e.subjects.contains(subject)) {
            return Err(Error::NotMeasured(subject.clone()));
        }
    }
    Ok(())
}

/// Whether a subject is measured in this run.
fn wanted(options: &Options, subject: &str) -> bool {
    options.subjects.is_empty() || options.subjects.iter().any(|s| s == subject)
}

/// The subjects of all experiments, with versions, or why they cannot be measured.
fn versions(
    experiments: &[Experiment],
    options: &Options,
    hands: &Hands<'_>,
) -> Vec<results::Subject> {
    let mut ids: Vec<&String> = Vec::new();
    for id in experiments.iter().flat_map(|e| &e.subjects) {
        if !ids.contains(&id) && wanted(options, id) {
            ids.push(id);
        }
    }
    let describe = |id: &&String| {
        let inside = experiments
            .iter()
            .any(|e| !e.method().is_outside() && e.subjects.contains(id));
        let Some(subject) = hands.subjects.iter().find(|s| s.id() == id.as_str()) else {
            return results::Subject {
                id: id.to_string(),
                name: id.to_string(),
                setup: "As its experiments say.".into(),
                missing: inside.then(|| "the lab cannot set it up".into()),
                ..results::Subject::default()
            };
        };
        let version = subject.version();
        results::Subject {
            id: id.to_string(),
            name: subject.name(),
            setup: subject.setup(),
            missing: version
                .as_ref()
                .err()
                .map(|error| first_line(&error.to_string())),
            version: version.unwrap_or_default(),
        }
    };
    ids.iter().map(describe).collect()
}

/// The first line of what a program said, and no more than a sentence of it.
fn first_line(text: &str) -> String {
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect()
}

/// Measures an experiment by trials.
fn trials(
    experiment: &Experiment,
    options: &Options,
    versions: &[results::Subject],
    hands: &mut Hands<'_>,
    journal: &mut Journal,
    known: &mut Known,
    clock: &mut TimeLeft,
) -> Result<(), Error> {
    let mut groups = groups(experiment, options, versions, hands, known)?;
    let rounds = options.rounds.unwrap_or(experiment.rounds(options.mode));
    for round in 0..rounds {
        for group in &mut groups {
            if (hands.stop)() {
                return Ok(());
            }
            visit(group, round, rounds, options, hands, journal, known, clock)?;
        }
    }
    // Windows in another state of the machine than most are measured once more, now that it may
    // have passed.
    let usual = usual(&known.windows);
    let mine = |w: &&Window| w.experiment == experiment.id && !w.figures.is_empty();
    let others: Vec<_> = known
        .windows
        .iter()
        .filter(|w| mine(w) && w.round < rounds && is_other(&usual, w))
        .map(|w| (w.subject.clone(), w.at.clone()))
        .collect();
    let all = known.windows.iter().filter(mine).count();
    let mut left = (all as f64 * AGAIN).ceil() as usize;
    for group in &mut groups {
        let is_theirs = |at: &BTreeMap<String, Value>| {
            let mut theirs = others.iter();
            theirs.any(|(subject, of)| *subject == group.subject && of == at)
        };
        group.cells.retain(|(at, ..)| is_theirs(at));
        group.cells.truncate(left);
        left -= group.cells.len();
        if (hands.stop)() {
            return Ok(());
        }
        if !group.cells.is_empty() {
            // This was not planned.
            clock.left += clock.visit(experiment, options, group.subject, group.cells.len());
            visit(group, rounds, rounds, options, hands, journal, known, clock)?;
        }
    }
    Ok(())
}

/// What the machine was like in most windows.
fn usual(windows: &[Window]) -> speed::Usual {
    let measured = windows.iter().filter(|w| !w.figures.is_empty());
    speed::Usual::of(measured.filter_map(|w| Some((w.cores?, w.speed, w.between_ns))))
}

/// Whether a window was measured in another state of the machine than most.
fn is_other(usual: &speed::Usual, window: &Window) -> bool {
    window
        .cores
        .is_some_and(|cores| usual.is_other(cores, window.speed, window.between_ns))
}

/// Of a cell's windows those that its figures are of, and how many are put aside: those in another
/// state of the machine than most, if at least two and half of all are left.
fn in_usual_state<'w>(windows: &[&'w Window], usual: &speed::Usual) -> (Vec<&'w Window>, u32) {
    let (measured, failed): (Vec<&Window>, Vec<&Window>) =
        windows.iter().partition(|w| !w.figures.is_empty());
    let (others, mut left): (Vec<&Window>, Vec<&Window>) =
        measured.iter().partition(|w| is_other(usual, w));
    if left.len() < 2 || left.len() < others.len() {
        return (windows.to_vec(), 0);
    }
    left.extend(failed);
    (left, others.len() as u32)
}

/// Puts cells that need the same ports together. Subjects take turns within each.
fn groups<'e>(
    experiment: &'e Experiment,
    options: &Options,
    versions: &[results::Subject],
    hands: &Hands<'_>,
    known: &mut Known,
) -> Result<Vec<Group<'e>>, Error> {
    let directory = hands.place.directory.join("frames");
    std::fs::create_dir_all(&directory).map_err(|error| Error::file("make", &directory, error))?;
    let mut groups: Vec<Group<'e>> = Vec::new();
    for at in experiment.cells(options.mode) {
        let settings = experiment.settings(&at)?;
        for id in experiment.subjects.iter().filter(|id| wanted(options, id)) {
            let mut cannot = |why: String| {
                known
                    .cannot
                    .push((experiment.id.clone(), id.clone(), at.clone(), why));
            };
            let missing = versions
                .iter()
                .find(|v| v.id == *id)
                .and_then(|v| v.missing.clone());
            let number = hands.subjects.iter().position(|s| s.id() == id.as_str());
            let (None, Some(number)) = (missing.clone(), number) else {
                cannot(missing.unwrap_or_else(|| "the lab cannot set it up".into()));
                continue;
            };
            let fits = trial::fitting(
                &settings,
                experiment.method().offers(),
                hands.subjects[number].as_ref(),
                &options.cores,
                &directory,
            );
            let setup = match fits {
                Ok(setup) => setup,
                Err(why) => {
                    cannot(why.to_string());
                    continue;
                }
            };
            let kinds = known.physical.entry(experiment.id.clone()).or_default();
            kinds
                .entry(setup.physical.name())
                .or_default()
                .insert(id.clone());
            let sharing = known.sharing.entry(experiment.id.clone()).or_default();
            sharing.insert(setup.sharing());
            let same = groups.iter().position(|group| {
                let first = &group.cells[0].2.plan;
                group.subject == id.as_str()
                    && group.cells[0].2.guests == setup.guests
                    && group.cells[0].2.kind == setup.kind
                    && first.ports == setup.plan.ports
                    && first.cores == setup.plan.cores
            });
            let cell = (at.clone(), settings.clone(), setup);
            match same {
                Some(index) => groups[index].cells.push(cell),
                None => groups.push(Group {
                    experiment,
                    subject: id,
                    number,
                    cells: vec![cell],
                    failures: 0,
                }),
            }
        }
    }
    Ok(groups)
}

/// Starts a switch, measures a window of each cell of a group, and stops it.
#[allow(
    clippy::too_many_arguments,
    reason = "the state of the run, taken apart"
)]
fn visit(
    group: &mut Group<'_>,
    round: u32,
    rounds: u32,
    options: &Options,
    hands: &mut Hands<'_>,
    journal: &mut Journal,
    known: &mut Known,
    clock: &mut TimeLeft,
) -> Result<(), Error> {
    let (id, subject) = (&group.experiment.id, group.subject);
    let blank = |at: &BTreeMap<String, Value>| Window {
        experiment: id.clone(),
        subject: subject.into(),
        at: at.clone(),
        round,
        ..Window::default()
    };
    let is_known = |at: &BTreeMap<String, Value>| {
        known
            .windows
            .iter()
            .any(|w| w.experiment == *id && w.subject == subject && w.at == *at && w.round == round)
    };
    let todo: Vec<_> = group
        .cells
        .iter()
        .filter(|(at, ..)| !is_known(at))
        .collect();
    let cost = clock.visit(group.experiment, options, subject, group.cells.len());
    if todo.is_empty() || group.failures >= FAILURES {
        clock.skip(cost);
        return Ok(());
    }
    let visited = Instant::now();
    let mut record = |window: Window, known: &mut Known| {
        let entry = Entry::Window(Box::new(window.clone()));
        known.windows.push(window);
        journal.write(&entry)
    };
    let started = hands.subjects[group.number].start(hands.place, &todo[0].2.plan);
    let mut running = match started {
        Ok(running) => running,
        Err(_) if (hands.stop)() => return Ok(()),
        Err(error) => {
            for (at, ..) in &todo {
                let missing = Some(format!("does not start: {error}"));
                record(
                    Window {
                        missing,
                        ..blank(at)
                    },
                    known,
                )?;
            }
            group.failures += 1;
            (hands.progress)(&format!("{} {id} {subject}: {error}", clock.left(cost)));
            clock.done(cost, visited.elapsed());
            return Ok(());
        }
    };
    // Guests end before the switch does.
    let guests = match guests(&todo[0].2, running.as_ref(), hands.place) {
        Ok(guests) => guests,
        Err(error) => {
            let why = format!("guests do not start: {error}");
            for (at, ..) in &todo {
                record(
                    Window {
                        missing: Some(why.clone()),
                        ..blank(at)
                    },
                    known,
                )?;
            }
            group.failures += 1;
            (hands.progress)(&format!("{} {id} {subject}: {why}", clock.left(cost)));
            let _ = running.stop();
            clock.done(cost, visited.elapsed());
            return Ok(());
        }
    };
    let mut job = &todo[0].2.plan.job;
    let mut measured = false;
    for (at, settings, setup) in &todo {
        let begun = Instant::now();
        let applied = match setup.plan.job == *job {
            true => Ok(()),
            false => running.apply(&setup.plan.job),
        };
        job = &setup.plan.job;
        let found = applied.map_err(WindowError::from).and_then(|()| {
            measure(
                group.experiment,
                options,
                settings,
                setup,
                running.as_mut(),
                hands,
            )
        });
        // What was cut short is no measurement.
        if (hands.stop)() {
            break;
        }
        let words: Vec<_> = at
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let number = match round < rounds {
            true => format!("{}/{rounds}", round + 1),
            false => "again".into(),
        };
        let seconds = begun.elapsed().as_secs_f64();
        let (window, text) = match found {
            Ok(found) => {
                measured = true;
                let text = show(&found.found.figures, group.experiment);
                let figures = found.found.figures.into_iter();
                let window = Window {
                    figures: figures
                        .map(|(name, value)| (name, rounded(value)))
                        .collect(),
                    limited: found.found.limited,
                    repeated: found.repeated,
                    moved: found.moved,
                    speed: found.speed,
                    between_ns: found.between,
                    cores: Some(found.cores),
                    seconds,
                    ..blank(at)
                };
                (window, text)
            }
            Err(error) => {
                let why = error.to_string();
                let window = Window {
                    missing: Some(why.clone()),
                    seconds,
                    ..blank(at)
                };
                (window, why)
            }
        };
        record(window, known)?;
        (hands.progress)(&format!(
            "{} {id} {subject} {} {number}: {text}",
            clock.left(cost),
            words.join(" ")
        ));
    }
    group.failures = if measured { 0 } else { group.failures + 1 };
    if let Some(Err(error)) = guests.map(Guests::stop) {
        (hands.progress)(&format!("{id} {subject}: guests: {error}"));
    }
    if let Err(error) = running.stop() {
        (hands.progress)(&format!("{id} {subject}: {error}"));
    }
    clock.done(cost, visited.elapsed());
    Ok(())
}

/// Starts the guests of a setup, if it has any.
fn guests(
    setup: &Setup,
    running: &dyn Running,
    place: &Place,
) -> Result<Option<Guests>, subject::Error> {
    if setup.guests.is_empty() {
        return Ok(None);
    }
    let (core, beside) = (setup.guests_core, setup.core);
    let ends = running.ends();
    Guests::start(place, &ends, &setup.guests, setup.kind, core, beside).map(Some)
}

/// Why a window has no figures.
#[derive(Debug, thiserror::Error)]
enum WindowError {
    /// The switch does not take what the cell asks for.
    #[error(transparent)]
    Job(#[from] subject::Error),
    /// The machine's speed is not known.
    #[error(transparent)]
    Probe(#[from] speed::ProbeError),
    /// The method has measured nothing.
    #[error(transparent)]
    Method(#[from] methods::Error),
}

/// Measures a window, bracketed by looks at the machine's speed.
fn measure(
    experiment: &Experiment,
    options: &Options,
    settings: &Settings,
    setup: &Setup,
    running: &mut dyn Running,
    hands: &mut Hands<'_>,
) -> Result<speed::Window<methods::Found>, WindowError> {
    let method = experiment.method();
    let limits = Limits {
        seconds: options.seconds.unwrap_or(experiment.seconds(options.mode)),
        load: settings.load,
        most: settings.most,
        loss: settings.loss,
        width: settings.width,
        size: settings.size,
        cycles: hands.probe.cycles_per_second() * setup.plan.cores.len() as f64,
    };
    let process = running.process();
    let core = setup.plan.cores.first().copied().unwrap_or(0);
    let (generator, stop) = (&mut *hands.generator, hands.stop);
    let repeats = match options.mode {
        Mode::Quick => 1,
        Mode::Normal | Mode::Full => speed::REPEATS,
    };
    // Where frames go from core to core.
    let is_alone = setup.guests.is_empty() && setup.physical == Physical::Memory;
    let theirs = match setup.physical {
        Physical::Memory => setup.guests_core,
        _ => setup.core,
    };
    let generators = (!setup.shared && !is_alone).then_some(theirs);
    let second = setup.plan.cores.get(1).copied().or(generators);
    speed::bracketed(hands.probe, core, second, process, repeats, || {
        let mut live = Live {
            running,
            setup,
            settings,
            generator,
            stop,
        };
        Ok(method.measure(&mut live, &limits)?)
    })
}

/// Twelve digits: what is read from the journal is what was written.
fn rounded(value: f64) -> f64 {
    format!("{value:.11e}").parse().unwrap_or(value)
}

/// The first figures of a window.
fn show(figures: &BTreeMap<String, f64>, experiment: &Experiment) -> String {
    let measures = experiment.measures.iter();
    let shown: Vec<_> = measures
        .filter_map(|measure| {
            let value = figures.get(&measure.name)?;
            Some(format!(
                "{} {} {}",
                measure.name,
                findings::round(*value),
                measure.unit
            ))
        })
        .take(3)
        .collect();
    shown.join(", ")
}

/// Why an experiment without trials has not been measured.
#[derive(Debug, thiserror::Error)]
enum OutsideError {
    /// It has not been simulated.
    #[error(transparent)]
    Simulation(#[from] simulation::Error),
    /// Its program has failed.
    #[error(transparent)]
    Program(#[from] program::Error),
}

/// Measures an experiment by a program or a simulation.
fn outside(
    experiment: &Experiment,
    all: &[Experiment],
    options: &Options,
    hands: &mut Hands<'_>,
    journal: &mut Journal,
    known: &mut Known,
    clock: &mut TimeLeft,
) -> Result<(), Error> {
    let cost = estimate(experiment, all, options);
    if known.done.contains_key(&experiment.id) {
        clock.skip(cost);
        return Ok(());
    }
    let measured = |id: &String| matches!(known.done.get(id), Some((_, None)));
    if experiment.is_with_others(options.mode, all) && experiment.quick_with.iter().all(measured) {
        let with = experiment.quick_with.clone();
        journal.write(&Entry::Done {
            experiment: experiment.id.clone(),
            seconds: 0.0,
            failed: None,
            with: with.clone(),
        })?;
        known.done.insert(experiment.id.clone(), (0.0, None));
        known.with.insert(experiment.id.clone(), with);
        clock.skip(cost);
        return Ok(());
    }
    (hands.progress)(&format!(
        "{} {}: {}",
        clock.left(0.0),
        experiment.id,
        experiment.title
    ));
    let begun = Instant::now();
    journal.write(&Entry::Begun {
        experiment: experiment.id.clone(),
    })?;
    let rounds = options.rounds.unwrap_or(experiment.rounds(options.mode));
    // It measures neither the machine's speed nor the way between its cores itself.
    let pair = match experiment.settings.get("program") {
        Some(Value::Text(name)) => program::cores(name, &options.cores).ok(),
        _ => None,
    };
    let mut ways = Vec::new();
    ways.extend(pair.and_then(|(one, other)| hands.probe.between(one, other)));
    let (mut found, mut problem) = (Vec::new(), None);
    let mut accept = |line: Line| {
        if wanted(options, &line.subject) && problem.is_none() {
            let entry = Entry::Line {
                experiment: experiment.id.clone(),
                line: line.clone(),
            };
            problem = journal.write(&entry).err();
            found.push(line);
        }
    };
    let outcome = match experiment.method() {
        Method::Simulation => {
            // Draws of five-tuples take the place of rounds; a quick run has enough of them.
            let lines = simulation::run(&experiment.id, u64::from(rounds) * 4);
            let lines = lines.map_err(OutsideError::from);
            lines.map(|lines| lines.into_iter().for_each(&mut accept))
        }
        Method::Host => {
            for _ in 0..rounds {
                let measured = machine::measure(hands.probe, options.cores[0]);
                let cycles = hands.probe.cycles_per_second();
                machine::bottlenecks(&measured, cycles)
                    .into_iter()
                    .for_each(&mut accept);
            }
            Ok(())
        }
        _ => run_program(experiment, options, rounds, hands, accept).map_err(OutsideError::from),
    };
    if let Some(problem) = problem {
        return Err(problem);
    }
    if (hands.stop)() {
        // Kept for this report, and measured again when the run goes on.
        known
            .lines
            .extend(found.into_iter().map(|line| (experiment.id.clone(), line)));
        return Ok(());
    }
    ways.extend(pair.and_then(|(one, other)| hands.probe.between(one, other)));
    known.ways.insert(experiment.id.clone(), ways);
    let seconds = begun.elapsed().as_secs_f64();
    let failed = outcome.err().map(|error| error.to_string());
    if let Some(why) = &failed {
        (hands.progress)(&format!("{}: {why}", experiment.id));
    }
    journal.write(&Entry::Done {
        experiment: experiment.id.clone(),
        seconds,
        failed: failed.clone(),
        with: Vec::new(),
    })?;
    known.done.insert(experiment.id.clone(), (seconds, failed));
    known
        .lines
        .extend(found.into_iter().map(|line| (experiment.id.clone(), line)));
    clock.done(cost, begun.elapsed());
    Ok(())
}

fn run_program(
    experiment: &Experiment,
    options: &Options,
    rounds: u32,
    hands: &mut Hands<'_>,
    accept: impl FnMut(Line),
) -> Result<(), program::Error> {
    let name = match experiment.settings.get("program") {
        Some(Value::Text(name)) => name.as_str(),
        _ => return Err(program::Error::NotText),
    };
    let cores = program::cores(name, &options.cores)?;
    let path = program::find(name)?;
    let measured: Vec<String> = experiment
        .subjects
        .iter()
        .filter(|s| wanted(options, s))
        .cloned()
        .collect();
    let request = program::Request {
        program: name,
        experiment: &experiment.id,
        mode: options.mode.name(),
        subjects: if options.subjects.is_empty() {
            &[]
        } else {
            &measured
        },
        daemon: options.daemon.as_deref(),
        cores,
        rounds,
        seconds: options.seconds.unwrap_or(experiment.seconds(options.mode)),
        limit: PROGRAM_LIMIT * rounds,
        mark: (place::MARK, hands.place.prefix.as_str()),
    };
    let log = options.output.join(format!("{}.log", experiment.id));
    let (ended, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
    // The program waits for a flag, and the run is ended by a function.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (ended, stopped) = (&ended, &stopped);
        let request = &request;
        let runner = scope.spawn(move || {
            let send = |line| drop(sender.send(line));
            let outcome = program::run(&path, request, &log, stopped, send);
            ended.store(true, Ordering::Release);
            outcome
        });
        let mut accept = accept;
        while !ended.load(Ordering::Acquire) {
            if let Ok(line) = receiver.recv_timeout(Duration::from_millis(100)) {
                accept(line);
            }
            stopped.store((hands.stop)(), Ordering::Relaxed);
        }
        receiver.try_iter().for_each(accept);
        runner.join().unwrap_or(Err(program::Error::Panicked))
    })
}

/// Puts together what is known of an experiment.
fn assemble(
    experiment: &Experiment,
    options: &Options,
    versions: &[results::Subject],
    known: &Known,
    stopped: bool,
) -> results::Experiment {
    let mut cells = match experiment.method().is_outside() {
        true => outside_cells(experiment, known),
        false => trial_cells(experiment, options, versions, known),
    };
    scatter::moderate(&mut cells, &experiment.measures);
    let paper_cells = experiment
        .paper_figures
        .iter()
        .map(|figure| Cell {
            subject: figure.subject.clone(),
            at: figure.at.clone(),
            figures: figure
                .figures
                .iter()
                .map(|(name, value)| (name.clone(), single(*value)))
                .collect(),
            ..Cell::default()
        })
        .collect();
    let rounds = options.rounds.unwrap_or(experiment.rounds(options.mode));
    let (seconds, failed) = match known.done.get(&experiment.id) {
        Some((seconds, failed)) => (*seconds, failed.clone()),
        None => (cells.iter().map(|cell| cell.seconds).sum(), None),
    };
    let complete = match experiment.method().is_outside() {
        true => known.done.contains_key(&experiment.id),
        false => {
            let runs = |cell: &Cell| cell.windows.measured + cell.windows.aside >= rounds;
            cells
                .iter()
                .all(|cell| cell.missing.is_some() || runs(cell))
        }
    };
    let mut found = results::Experiment {
        id: experiment.id.clone(),
        title: experiment.title.clone(),
        paper: experiment.paper.clone(),
        purpose: experiment.purpose.trim().into(),
        topology: topology(experiment, known),
        command: command(experiment, options),
        seconds,
        state: match failed {
            Some(why) => State::Failed(why),
            None if stopped && !complete => State::Interrupted,
            None if cells.iter().all(|cell| cell.figures.is_empty()) => {
                State::Failed(nothing(&cells))
            }
            None => State::Done,
        },
        substituted: substituted(experiment, options, guests::qemu::why_emulated()),
        parameters: experiment
            .sweep
            .iter()
            .map(|s| s.parameter.clone())
            .collect(),
        measures: experiment.measures.clone(),
        plots: experiment.plots.clone(),
        paper_cells,
        cells,
        findings: Vec::new(),
    };
    found.findings = findings::findings(experiment, &found);
    found
}

/// What stands for something else: the experiment's words, and what emulated guests are, with the
/// reason why they are emulated.
fn substituted(experiment: &Experiment, options: &Options, emulated: Option<&str>) -> Vec<String> {
    let mut sentences = experiment.substituted.clone();
    let machines = experiment
        .cells(options.mode)
        .iter()
        .any(|at| machines(experiment, at) > 0);
    if let (true, Some(why)) = (machines, emulated) {
        sentences.push(format!(
            "Guests of the kind qemu are emulated (TCG), since this host has no virtualization for \
             them ({why}). They stand for what a virtual machine costs, of which an emulator's \
             instructions are many times the price: their figures are to be compared with no other \
             guest's and no real machine's."
        ));
    }
    sentences
}

/// How many machines of QEMU's a cell of trials has.
fn machines(experiment: &Experiment, at: &BTreeMap<String, Value>) -> usize {
    match experiment.settings(at) {
        Ok(settings) if settings.guest == GuestKind::Qemu => {
            let ends = !experiment.method().offers() && !settings.path.from_guest;
            settings.path.through + usize::from(ends && settings.path.to_guest)
        }
        _ => 0,
    }
}

/// Why no cell has a figure.
fn nothing(cells: &[Cell]) -> String {
    let reasons: BTreeSet<String> = cells
        .iter()
        .filter_map(|c| Some(format!("{}: {}", c.subject, c.missing.as_ref()?)))
        .collect();
    match reasons.is_empty() {
        true => "nothing was measured".into(),
        false => reasons.into_iter().take(8).collect::<Vec<_>>().join("; "),
    }
}

/// The experiment's words, how cores were shared, and what stood for physical ports here.
fn topology(experiment: &Experiment, known: &Known) -> String {
    let mut text = experiment.topology.trim().to_string();
    if let Some(sharing) = known.sharing.get(&experiment.id) {
        let sentences: Vec<_> = sharing.iter().map(String::as_str).collect();
        text += &format!(" Cores: {}.", sentences.join("; or "));
    }
    if let Some(&[before, after]) = known.ways.get(&experiment.id).map(Vec::as_slice)
        && speed::another_way(Some(before), Some(after))
    {
        text += &format!(
            " While it was measured the host moved a virtual processor: the way of a cache line \
             between its two cores took {before:.0} ns before and {after:.0} ns after it."
        );
    }
    if let Some(with) = known.with.get(&experiment.id) {
        text += &format!(" Measured together with {}.", with.join(" and "));
    }
    if let Some(kinds) = known.physical.get(&experiment.id) {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|(kind, ids)| {
                let ids: Vec<_> = ids.iter().map(String::as_str).collect();
                format!("{kind} ({})", ids.join(", "))
            })
            .collect();
        text += &format!(" For physical ports stand: {}.", kinds.join("; "));
    }
    text
}

/// The command that runs it again.
fn command(experiment: &Experiment, options: &Options) -> String {
    let mut words = vec!["sluice lab run".to_string(), experiment.id.clone()];
    match options.mode {
        Mode::Quick => words.push("--quick".into()),
        Mode::Full => words.push("--full".into()),
        Mode::Normal => {}
    }
    words.extend(options.rounds.map(|rounds| format!("--rounds {rounds}")));
    words.extend(
        options
            .seconds
            .map(|seconds| format!("--seconds {seconds}")),
    );
    words.extend(
        options
            .subjects
            .iter()
            .map(|subject| format!("--subject {subject}")),
    );
    words.join(" ")
}

fn single(value: f64) -> Figure {
    Figure {
        median: value,
        low: value,
        high: value,
        deviation: 0.0,
        runs: vec![value],
        borrowed: 0.0,
    }
}

fn trial_cells(
    experiment: &Experiment,
    options: &Options,
    versions: &[results::Subject],
    known: &Known,
) -> Vec<Cell> {
    let mut cells = Vec::new();
    let usual = usual(&known.windows);
    for id in experiment.subjects.iter().filter(|id| wanted(options, id)) {
        for at in experiment.cells(options.mode) {
            let windows: Vec<&Window> = known
                .windows
                .iter()
                .filter(|w| w.experiment == experiment.id && w.subject == *id && w.at == at)
                .collect();
            let seconds = windows.iter().map(|w| w.seconds).sum();
            let (windows, aside) = in_usual_state(&windows, &usual);
            let mut figures = BTreeMap::new();
            for measure in &experiment.measures {
                let runs: Vec<f64> = windows
                    .iter()
                    .filter_map(|w| w.figures.get(&measure.name).copied())
                    .filter(|value| value.is_finite())
                    .collect();
                if !runs.is_empty() {
                    figures.insert(measure.name.clone(), statistics::figure(&runs));
                }
            }
            let missing = figures.is_empty().then(|| {
                let version = versions.iter().find(|v| v.id == *id);
                let cannot = known
                    .cannot
                    .iter()
                    .find(|(experiment_id, subject, cell, _)| {
                        *experiment_id == experiment.id && subject == id && *cell == at
                    });
                windows
                    .iter()
                    .find_map(|w| w.missing.clone())
                    .or_else(|| cannot.map(|(.., why)| why.clone()))
                    .or_else(|| version.and_then(|v| v.missing.clone()))
                    .unwrap_or_else(|| "the run was ended before".into())
            });
            let failed = |w: &&&Window| w.figures.is_empty();
            let measured: Vec<_> = windows.iter().filter(|w| !failed(w)).collect();
            let mut limits = measured.iter().filter_map(|w| w.limited.clone());
            let counts = Windows {
                measured: measured.len() as u32,
                failed: (windows.len() - measured.len()) as u32,
                because: windows.iter().find_map(|w| w.missing.clone()),
                aside,
                moved: measured.iter().filter(|w| w.moved).count() as u32,
                repeated: windows.iter().map(|w| w.repeated).sum(),
                limited: limits.clone().count() as u32,
            };
            let limited = limits.next().filter(|_| counts.are_limited());
            cells.push(Cell {
                subject: id.clone(),
                at,
                figures,
                limited_by: limited,
                missing,
                windows: counts,
                seconds,
            });
        }
    }
    cells
}

fn outside_cells(experiment: &Experiment, known: &Known) -> Vec<Cell> {
    let measures: BTreeSet<&str> = experiment
        .measures
        .iter()
        .map(|m| m.name.as_str())
        .collect();
    let with = known.with.get(&experiment.id);
    let lines = known.lines.iter().filter_map(|(from, line)| {
        let own = *from == experiment.id;
        let theirs = with.is_some_and(|with| with.contains(from));
        match own || theirs {
            true => line.told(&experiment.id, own, &measures),
            false => None,
        }
    });
    let runs = lines::group(lines);
    let cells = runs.into_iter().map(|runs| Cell {
        missing: runs.missing.filter(|_| runs.figures.is_empty()),
        figures: runs
            .figures
            .iter()
            .map(|(name, runs)| (name.clone(), statistics::figure(runs)))
            .collect(),
        subject: runs.subject,
        at: runs.at,
        limited_by: runs.limited_by.filter(|_| runs.windows.are_limited()),
        windows: runs.windows,
        seconds: 0.0,
    });
    cells.collect()
}

/// Speeds of windows relative to their median.
fn speeds(windows: &[Window]) -> Vec<f64> {
    let speeds: Vec<f64> = windows
        .iter()
        .map(|w| w.speed)
        .filter(|s| *s > 0.0)
        .collect();
    let middle = statistics::median(&speeds);
    speeds.iter().map(|speed| speed / middle).collect()
}

/// About how many seconds an experiment takes in a run of `all`: with all of its subjects that are
/// wanted.
pub fn estimate(experiment: &Experiment, all: &[Experiment], options: &Options) -> f64 {
    if experiment.is_with_others(options.mode, all) {
        return 0.0;
    }
    if experiment.method().is_outside() {
        return outsides(experiment, options);
    }
    let rounds = options.rounds.unwrap_or(experiment.rounds(options.mode));
    // Cells that differ in loads only share a visit.
    let cells = experiment.cells(options.mode);
    let shared = ["load", "pattern", "burst", "most", "loss", "width"];
    let visits: BTreeSet<String> = cells
        .iter()
        .map(|cell| {
            let words = cell
                .iter()
                .filter(|(name, _)| !shared.contains(&name.as_str()));
            words
                .map(|(name, value)| format!("{name}={value} "))
                .collect()
        })
        .collect();
    let visits = visits.len() as f64;
    let booting: f64 = cells
        .iter()
        .map(|at| machines(experiment, at) as f64 * MACHINE)
        .sum();
    let whole = experiment
        .subjects
        .iter()
        .filter(|subject| wanted(options, subject))
        .map(|subject| {
            let windows = cells.len() as f64 * window(experiment, options, subject);
            visits * start(subject) + booting + windows
        });
    f64::from(rounds) * whole.sum::<f64>()
}

/// About how many seconds a program, a simulation, or a look at the host takes.
fn outsides(experiment: &Experiment, options: &Options) -> f64 {
    let rounds = options.rounds.unwrap_or(experiment.rounds(options.mode));
    match experiment.method() {
        Method::Simulation | Method::Host => 1.0,
        _ => {
            // Normal and full runs sweep more values, and measure longer.
            let more = match options.mode {
                Mode::Quick => 1.0,
                Mode::Normal => 3.0,
                Mode::Full => 12.0,
            };
            f64::from(rounds) * more * experiment.takes.unwrap_or(PROGRAM)
        }
    }
}

/// About how many seconds a subject takes to start and to stop.
fn start(subject: &str) -> f64 {
    match subject.starts_with("linux-") {
        true => START - KERNELS,
        false => START,
    }
}

/// About how many seconds a window of a subject takes.
pub fn window(experiment: &Experiment, options: &Options, subject: &str) -> f64 {
    let seconds = options.seconds.unwrap_or(experiment.seconds(options.mode));
    // The kernel's interfaces do not feed themselves.
    let kernel = subject.starts_with("linux-") || subject == "ovs-netdev";
    let generator = match experiment.method() {
        Method::FlowSetup => 0.0,
        method if method.offers() => OFFERED,
        _ if kernel => GENERATOR,
        _ => 0.0,
    };
    experiment.method().trials() * (seconds + TRIAL + generator)
}

/// How much time is left, from what visits were thought to take and what they took.
struct TimeLeft {
    /// Seconds of visits that are to come, as planned.
    left: f64,
    /// Seconds of visits that were made, as planned.
    planned: f64,
    /// Seconds that they took.
    spent: f64,
}

impl TimeLeft {
    fn new(experiments: &[Experiment], options: &Options) -> TimeLeft {
        let left = experiments
            .iter()
            .map(|e| estimate(e, experiments, options))
            .sum();
        TimeLeft {
            left,
            planned: 0.0,
            spent: 0.0,
        }
    }

    fn visit(
        &self,
        experiment: &Experiment,
        options: &Options,
        subject: &str,
        cells: usize,
    ) -> f64 {
        start(subject) + cells as f64 * window(experiment, options, subject)
    }

    fn skip(&mut self, cost: f64) {
        self.left = (self.left - cost).max(0.0);
    }

    fn done(&mut self, cost: f64, took: Duration) {
        self.skip(cost);
        self.planned += cost;
        self.spent += took.as_secs_f64();
    }

    /// The time left, without what is being done: `12:34 left`.
    fn left(&self, current: f64) -> String {
        // Plans are right on average after some minutes.
        let factor = (self.spent + 60.0) / (self.planned + 60.0);
        let seconds = ((self.left - current).max(0.0) * factor).round() as u64;
        format!("[{}:{:02} left]", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests;
