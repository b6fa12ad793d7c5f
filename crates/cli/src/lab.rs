//! `sluice lab`: the papers' experiments on this machine. The crate `lab` does the work.

use crate::output::{errln, out, outln};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lab::compare::compare;
use lab::experiment::{Experiment, Mode};
use lab::generator::Own;
use lab::machine::{self, Host};
use lab::place::{self, Cores, OwnPlace};
use lab::results::{Results, State};
use lab::run::{self, Hands, Options};
use lab::speed::{Probe, ProbeError, Reading};
use predict::machine::{Machine, Watch};
use std::path::PathBuf;
use std::time::Duration;

/// Readings of a look at the machine, of about a millisecond each.
const READINGS: usize = 30;
/// How long an ended run has to put away what it made.
const GRACE: Duration = Duration::from_secs(30);
/// What stands before the commit in a version.
const COMMIT: &str = ", commit ";

/// What to do.
#[derive(Args)]
pub struct LabOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the experiments, what they need, and roughly how long they take.
    List(ListOptions),
    /// Run experiments and write results.json and report.html.
    Run(Box<RunOptions>),
    /// Compare two runs and print what changed beyond noise. Exits with 2 if something is worse.
    Compare(CompareOptions),
    /// Write report.html of a run again, or copy it with the results to another directory.
    Report(ReportOptions),
    /// Remove what killed runs left behind: processes, namespaces, huge pages, files.
    Clean,
}

#[derive(Args)]
struct ListOptions {
    /// List the cells of these experiments too
    #[arg(value_name = "ID|FILE.yaml")]
    experiments: Vec<String>,
    /// Show cells and times of --quick runs
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Show cells and times of --full runs
    #[arg(long)]
    full: bool,
}

#[derive(Args)]
struct RunOptions {
    /// Experiments: IDs (see `sluice lab list`), all, or your own files
    #[arg(value_name = "ID|all|FILE.yaml", required = true)]
    experiments: Vec<String>,
    /// Directory for the results [default: lab-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Measure few values in short windows
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure all values in long windows and many rounds
    #[arg(long)]
    full: bool,
    /// Measure only this switch; may be repeated [default: all that the experiment names]
    #[arg(long = "subject", value_name = "ID")]
    subjects: Vec<String>,
    /// Continue the interrupted run in --output
    #[arg(long, requires = "output")]
    resume: bool,
    /// Windows of each cell, 1 to 1000 [default: as the experiment says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Length of a window, in seconds [default: as the experiment says]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// Numbers of the processors to use, those of workers first [default: all, the last one first]
    #[arg(long = "core", value_name = "N", num_args = 1..)]
    cores: Vec<usize>,
    /// Longest time to wait for processors that another lab is measuring on, in seconds
    #[arg(long, value_name = "S", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
    /// Earlier results to compare with in the report
    #[arg(long, value_name = "DIR")]
    earlier: Option<PathBuf>,
    /// Path of Sluice's daemon [default: sluiced in the directory of this command]
    #[arg(long, value_name = "COMMAND")]
    sluiced: Option<PathBuf>,
    /// Commit that was built, for the report
    #[arg(long, value_name = "HASH", value_parser = commit)]
    commit: Option<String>,
}

#[derive(Args)]
struct CompareOptions {
    /// Earlier results: a directory or results.json
    before: PathBuf,
    /// Later results: a directory or results.json
    now: PathBuf,
}

#[derive(Args)]
struct ReportOptions {
    /// Directory of the results
    directory: PathBuf,
    /// Earlier results to compare with
    #[arg(long, value_name = "DIR")]
    earlier: Option<PathBuf>,
    /// Write report.html and results.json to this directory instead
    #[arg(long, value_name = "DIR")]
    publish: Option<PathBuf>,
    /// Commit that was built, if the results do not say
    #[arg(long, value_name = "HASH", value_parser = commit)]
    commit: Option<String>,
    /// Also write the plots of these experiments, as ID-1.svg and so on
    #[arg(long = "plots", value_name = "ID")]
    plots: Vec<String>,
}

/// A commit as Git prints it, whole or its beginning.
fn commit(text: &str) -> Result<String, String> {
    let is_hash = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_hash && (7..=64).contains(&text.len()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("must be 7 to 64 hexadecimal digits".into()),
    }
}

/// A version as reports show it, with the commit where it is known.
fn version(version: &str, commit: Option<&str>) -> String {
    match commit {
        Some(commit) if !version.contains(COMMIT) => format!("{version}{COMMIT}{commit}"),
        _ => version.to_string(),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number from 0.01 to 86400".into()),
    }
}

fn mode(quick: bool, full: bool) -> Mode {
    match (quick, full) {
        (true, _) => Mode::Quick,
        (_, true) => Mode::Full,
        _ => Mode::Normal,
    }
}

/// Carries a command out.
pub fn run(options: &LabOptions) -> Result<()> {
    match &options.command {
        Command::List(options) => list(options),
        Command::Run(options) => run_experiments(options),
        Command::Compare(options) => {
            let (before, now) = (
                Results::read(&options.before)?,
                Results::read(&options.now)?,
            );
            let comparison = compare(&now, &before);
            out!("{}", comparison.text());
            if comparison.count(lab::compare::Way::Worse) > 0 {
                std::process::exit(2);
            }
            Ok(())
        }
        Command::Report(options) => publish(options),
        Command::Clean => clean(),
    }
}

/// Options for estimates.
fn planned(mode: Mode) -> Options {
    Options {
        output: PathBuf::new(),
        mode,
        subjects: Vec::new(),
        resume: false,
        rounds: None,
        seconds: None,
        cores: vec![0],
        daemon: None,
        command: String::new(),
        version: String::new(),
    }
}

fn list(options: &ListOptions) -> Result<()> {
    if !options.experiments.is_empty() {
        let mode = mode(options.quick, options.full);
        let chosen = Experiment::choose(&options.experiments)?;
        for experiment in &chosen {
            print_cells(experiment, &chosen, &planned(mode));
        }
        return Ok(());
    }
    outln!(
        "{:<6} {:<52} {:>7} {:>8}  switches",
        "id",
        "title",
        "quick",
        "normal"
    );
    let mut totals = [0.0; 2];
    let all = Experiment::all()?;
    for experiment in &all {
        let both =
            [Mode::Quick, Mode::Normal].map(|mode| run::estimate(experiment, &all, &planned(mode)));
        totals = [totals[0] + both[0], totals[1] + both[1]];
        outln!(
            "{:<6} {:<52} {:>6.0}s {:>7.0}s  {}",
            experiment.id,
            experiment.title,
            both[0],
            both[1],
            experiment.subjects.join(" ")
        );
    }
    outln!(
        "{:<59} {:>6.0}s {:>7.0}s",
        "all, with all switches",
        totals[0],
        totals[1]
    );
    outln!("Needs root, huge pages, and what it measures: a switch that is missing is left out.");
    Ok(())
}

/// The cells of an experiment, one by one, with the seconds that they take in all rounds.
fn print_cells(experiment: &Experiment, all: &[Experiment], options: &Options) {
    outln!(
        "{}: {}, about {:.0} s",
        experiment.id,
        experiment.title,
        run::estimate(experiment, all, options)
    );
    if experiment.is_with_others(options.mode, all) {
        outln!(
            "  (measured together with {})",
            experiment.quick_with.join(" and ")
        );
    } else if experiment.method().is_outside() {
        outln!("  (a program says which cells there are)");
    }
    let rounds = options.rounds.unwrap_or(experiment.rounds(options.mode));
    for at in experiment.cells(options.mode) {
        let words: Vec<_> = at
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        for subject in &experiment.subjects {
            if options.subjects.is_empty() || options.subjects.contains(subject) {
                let seconds = f64::from(rounds) * run::window(experiment, options, subject);
                outln!("  {seconds:>5.0} s  {subject:<14} {}", words.join(" "));
            }
        }
    }
}

/// The machine's speed, by what `sluice predict` looks at.
#[derive(Default)]
struct Look {
    /// The last core, and its watch: that has 32 MB to load from.
    watch: Option<(usize, Watch)>,
}

impl Probe for Look {
    fn look(&mut self, core: usize) -> Result<Reading, ProbeError> {
        let mut watch = match self.watch.take() {
            Some((of, watch)) if of == core => watch,
            _ => Watch::new(Some(core)),
        };
        for _ in 0..READINGS {
            watch
                .look()
                .map_err(|error| ProbeError::from(Box::from(error)))?;
        }
        let machine = Machine::of(&watch.take());
        self.watch = Some((core, watch));
        Ok(Reading {
            additions: machine.additions.median,
            memory_ns: machine.memory_ns.median,
        })
    }

    fn cycles_per_second(&self) -> f64 {
        datapath::clock::cycles_per_second() as f64
    }
}

fn run_experiments(asked: &RunOptions) -> Result<()> {
    let experiments = Experiment::choose(&asked.experiments)?;
    let allowed = lab::subjects::allowed_cores();
    if let Some(core) = asked.cores.iter().find(|core| !allowed.contains(core)) {
        bail!("--core {core}: there are {allowed:?}");
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let output = match &asked.output {
        Some(output) => output.clone(),
        None => PathBuf::from(format!("lab-{}", lab::clock::now().replace([':', 'Z'], ""))),
    };
    let options = Options {
        output,
        mode: mode(asked.quick, asked.full),
        subjects: asked.subjects.clone(),
        resume: asked.resume,
        rounds: asked.rounds,
        seconds: asked.seconds,
        cores: match asked.cores.is_empty() {
            true => allowed.iter().rev().copied().collect(),
            false => asked.cores.clone(),
        },
        daemon: asked.sluiced.clone(),
        command: format!("sluice {}", words.join(" ")),
        version: version(env!("CARGO_PKG_VERSION"), asked.commit.as_deref()),
    };
    let earlier = asked.earlier.as_deref().map(Results::read).transpose()?;
    if options.mode == Mode::Quick {
        experiments
            .iter()
            .for_each(|experiment| print_cells(experiment, &experiments, &options));
        let whole: f64 = experiments
            .iter()
            .map(|experiment| run::estimate(experiment, &experiments, &options))
            .sum();
        outln!("all: about {:.0} s", whole);
    }
    place::heed_signals(GRACE)?;
    let place = OwnPlace::make()?;
    let mut used = options.cores.clone();
    for name in experiments.iter().filter_map(|e| e.settings.get("program")) {
        let pair = lab::program::cores(&name.to_string(), &options.cores);
        used.extend(pair.into_iter().flat_map(|(one, other)| [one, other]));
    }
    used.retain(|core| allowed.contains(core));
    let wait = Duration::from_secs(asked.wait);
    let _cores = Cores::take(&used, wait, &mut |line| errln!("{line}"))?;
    // What is made goes before others may measure.
    let place = place;
    let subjects = lab::subjects::all(asked.sluiced.as_deref());
    let (host, mut look) = (Host::default(), Look::default());
    let before = host.ticks();
    let cores = options.cores.clone();
    let results = run::run(
        &experiments,
        &options,
        Hands {
            subjects: &subjects,
            place: &place,
            generator: &mut Own {
                program: std::env::current_exe().context("own path")?,
                directory: place.directory.clone(),
                mark: (place::MARK.into(), place.prefix.clone()),
                count: 0,
            },
            probe: &mut look,
            stop: &|| place::interrupted().is_some(),
            progress: &mut |line| errln!("{line}"),
            machine: &mut |probe| {
                let measured = machine::measure(probe, cores[0]);
                let mhz = probe.cycles_per_second() / 1e6;
                host.describe(&cores, before, mhz, &measured)
            },
            host: &host,
        },
    )?;
    for experiment in &results.experiments {
        if experiment.state == State::Interrupted {
            errln!("{}: was ended before it was done", experiment.id);
        }
    }
    report(&options.output, &results, earlier.as_ref())?;
    outln!("{}", options.output.display());
    place.remove()?;
    if results.made.interrupted {
        // The same words, with the directory that was made for it, and once asked to go on.
        let mut again: Vec<String> = words;
        again.retain(|word| word != "--resume");
        if !again.iter().any(|word| word.starts_with("--output")) {
            again.push(format!("--output {}", options.output.display()));
        }
        bail!(
            "the run was ended; sluice {} --resume goes on with it",
            again.join(" ")
        );
    }
    match failures(&results.experiments) {
        None => Ok(()),
        Some(why) => bail!("{why}"),
    }
}

/// Which experiments failed, and why; none if none did.
fn failures(experiments: &[lab::results::Experiment]) -> Option<String> {
    let failed: Vec<String> = experiments
        .iter()
        .filter_map(|experiment| match &experiment.state {
            State::Failed(why) => Some(format!("\n{}: {why}", experiment.id)),
            _ => None,
        })
        .collect();
    let (count, all) = (failed.len(), experiments.len());
    (count > 0).then(|| format!("{count} of {all} experiments failed:{}", failed.concat()))
}

/// Writes a run's report again: where the run is, or with its results and plots into a directory.
fn publish(options: &ReportOptions) -> Result<()> {
    let mut results = Results::read(&options.directory)?;
    let earlier = options.earlier.as_deref().map(Results::read).transpose()?;
    results.made.version = version(&results.made.version, options.commit.as_deref());
    let into = options.publish.as_deref().unwrap_or(&options.directory);
    std::fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    let all = lab::report::plots(&results);
    for id in &options.plots {
        let own: Vec<_> = all.iter().filter(|(one, ..)| one.id == *id).collect();
        if own.is_empty() {
            bail!("the run has no plot of {id}");
        }
        for (number, (_, _, svg)) in own.iter().enumerate() {
            let path = into.join(format!("{id}-{}.svg", number + 1));
            std::fs::write(&path, svg)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    if options.publish.is_some() || options.commit.is_some() {
        results.write(into)?;
    }
    report(into, &results, earlier.as_ref())
}

/// Writes report.html.
fn report(directory: &std::path::Path, results: &Results, earlier: Option<&Results>) -> Result<()> {
    let path = directory.join("report.html");
    let html = lab::report::html(results, earlier);
    std::fs::write(&path, html).with_context(|| format!("cannot write {}", path.display()))
}

fn clean() -> Result<()> {
    let cleaned = place::clean()?;
    cleaned
        .removed
        .iter()
        .for_each(|what| outln!("removed {what}"));
    cleaned
        .living
        .iter()
        .for_each(|what| outln!("left alone, since it runs: {what}"));
    if !cleaned.failed.is_empty() {
        bail!("{}", cleaned.failed.join("; "));
    }
    if cleaned.removed.is_empty() {
        outln!("nothing was left behind");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_one_commit() {
        let whole = version("0.1.0", Some("0123abc"));
        assert_eq!(whole, "0.1.0, commit 0123abc");
        assert_eq!(version(&whole, Some("4567def")), whole);
        assert_eq!(version("0.1.0", None), "0.1.0");
        assert_eq!(commit("0123ABC"), Ok("0123abc".into()));
        assert!(commit("0123ab").is_err() && commit("HEAD~12").is_err());
    }

    #[test]
    fn failed_experiments_are_listed_with_their_reason() {
        let one = |id: &str, state| lab::results::Experiment {
            id: id.into(),
            state,
            ..Default::default()
        };
        let failed = State::Failed("no such port".into());
        let text = failures(&[one("A1", State::Done), one("C1", failed)]).unwrap();
        assert_eq!(text, "1 of 2 experiments failed:\nC1: no such port");
        assert_eq!(failures(&[one("A1", State::Done)]), None);
    }
}
