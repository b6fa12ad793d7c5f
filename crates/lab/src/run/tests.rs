//! Runs with simulated switches: no process, no packet; counters advance with the clock.

use super::*;
use crate::generator::{self, Sending};
use crate::speed::{ProbeError, Reading};
use crate::subject::{Counters, End, Job, Plan, Port, Stage};
use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;
use traffic::report::{Arrived, Percentiles, Received, Report, Sent};
use traffic::spec::{Rate, Spec};

/// A switch of this many packets per second.
struct Switch {
    id: &'static str,
    rate: f64,
    missing: Option<&'static str>,
    refuses_memory: bool,
    fails: Slot<u32>,
    /// What happened, in order.
    log: Rc<RefCell<Vec<String>>>,
}

impl Subject for Switch {
    fn id(&self) -> &str {
        self.id
    }

    fn name(&self) -> String {
        format!("The {}", self.id)
    }

    fn version(&self) -> Result<String, subject::Error> {
        match self.missing {
            Some(why) => Err(subject::Error::Missing(why.into())),
            None => Ok("1.0".into()),
        }
    }

    fn setup(&self) -> String {
        "Simulated.".into()
    }

    fn can(&self, plan: &Plan) -> Result<(), subject::Error> {
        match &plan.ports[0] {
            Port::Memory { .. } if self.refuses_memory => {
                Err(subject::Error::Missing("it has no ports in memory".into()))
            }
            _ => Ok(()),
        }
    }

    fn start(&self, place: &Place, plan: &Plan) -> Result<Box<dyn Running>, subject::Error> {
        assert!(place.directory.is_dir());
        self.log.borrow_mut().push(format!("start {}", self.id));
        if self.fails.get() > 0 {
            self.fails.set(self.fails.get() - 1);
            return Err(subject::Error::Failed("no memory".into()));
        }
        let flows = match plan.job {
            Job::Stations(flows) => f64::from(flows),
            _ => 1.0,
        };
        Ok(Box::new(On {
            rate: self.rate / flows,
            since: Instant::now(),
            ends: match plan.ports[0] {
                Port::Memory { .. } => End::Itself,
                _ => End::Interface {
                    namespace: "ns".into(),
                    name: "veth".into(),
                },
            },
            ports: plan.ports.len(),
            id: self.id,
            log: self.log.clone(),
        }))
    }
}

struct On {
    rate: f64,
    since: Instant,
    ends: End,
    ports: usize,
    id: &'static str,
    log: Rc<RefCell<Vec<String>>>,
}

impl Running for On {
    fn ends(&self) -> Vec<End> {
        vec![self.ends.clone(); self.ports]
    }

    fn counters(&mut self) -> Result<Vec<Counters>, subject::Error> {
        let count = (self.since.elapsed().as_secs_f64() * self.rate) as u64;
        Ok(vec![
            Counters {
                received: count,
                sent: count,
                dropped: 0
            };
            self.ports
        ])
    }

    fn apply(&mut self, _: &Job) -> Result<(), subject::Error> {
        self.log.borrow_mut().push(format!("apply {}", self.id));
        Ok(())
    }

    fn process(&self) -> Option<u32> {
        None
    }

    fn workers(&self) -> Vec<u32> {
        Vec::new()
    }

    fn stages(&mut self) -> Result<Option<Vec<Stage>>, subject::Error> {
        Ok(None)
    }

    fn stop(self: Box<Self>) -> Result<(), subject::Error> {
        self.log.borrow_mut().push(format!("stop {}", self.id));
        Ok(())
    }
}

/// A generator whose frames all come back, up to a million a second.
struct Gen;

impl Generate for Gen {
    fn start(
        &mut self,
        spec: &Spec,
        namespace: Option<&str>,
    ) -> Result<Box<dyn Sending>, generator::Error> {
        assert_eq!(namespace, Some("ns"));
        let Rate::Constant { pps } = spec.streams[0].rate else {
            panic!("not a constant rate");
        };
        let sent = (pps * spec.seconds) as u64;
        let arrived = Arrived {
            packets: sent.min((1e6 * spec.seconds) as u64),
            latency: Percentiles {
                count: sent,
                p50: 5000,
                p99: 9000,
                ..Percentiles::default()
            },
            ..Arrived::default()
        };
        let report = Report {
            seconds: spec.seconds,
            streams: vec![Sent {
                packets: sent,
                ..Sent::default()
            }],
            sinks: vec![Received {
                streams: vec![arrived],
                ..Received::default()
            }],
            ..Report::default()
        };
        struct Ready(Report);
        impl Sending for Ready {
            fn finish(self: Box<Self>, _: &dyn Fn() -> bool) -> Result<Report, generator::Error> {
                Ok(self.0)
            }
        }
        Ok(Box::new(Ready(report)))
    }
}

/// A machine whose speed moves at the third look.
struct Speeds {
    looks: u32,
    /// Those at which the machine is slow.
    slow: Vec<u32>,
}

impl Probe for Speeds {
    fn look(&mut self, _: usize) -> Result<Reading, ProbeError> {
        self.looks += 1;
        let is_slow = self.slow.contains(&self.looks);
        let additions = if is_slow { 5.0 } else { 10.0 };
        Ok(Reading {
            additions,
            memory_ns: 80.0,
        })
    }

    fn between(&mut self, _: usize, _: usize) -> Option<f64> {
        Some(350.0)
    }

    fn cycles_per_second(&self) -> f64 {
        1e9
    }
}

/// A laboratory: two switches that work, one that is not installed.
struct Bench {
    subjects: Vec<Box<dyn Subject>>,
    log: Rc<RefCell<Vec<String>>>,
    directory: tempfile::TempDir,
    progress: Vec<String>,
    /// After so many lines of progress the run is to end.
    stop_after: usize,
    /// Looks at which the machine is slow.
    slow: Vec<u32>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(0, false)
    }

    fn with(fails: u32, refuses_memory: bool) -> Bench {
        let log = Rc::new(RefCell::new(Vec::new()));
        let switch = |id, rate, missing, fails, refuses_memory| {
            Box::new(Switch {
                id,
                rate,
                missing,
                refuses_memory,
                fails: Slot::new(fails),
                log: log.clone(),
            }) as Box<dyn Subject>
        };
        Bench {
            subjects: vec![
                switch("sluice", 1e7, None, fails, refuses_memory),
                switch("ovs-dpdk", 5e6, None, 0, refuses_memory),
                switch("vpp", 1.0, Some("vpp is not installed"), 0, false),
            ],
            directory: tempfile::tempdir().unwrap(),
            log,
            progress: Vec::new(),
            stop_after: usize::MAX,
            // Between the looks around the second window.
            slow: vec![3],
        }
    }

    fn options(&self) -> Options {
        Options {
            output: self.directory.path().join("out"),
            mode: Mode::Normal,
            subjects: Vec::new(),
            resume: false,
            rounds: Some(3),
            seconds: Some(0.02),
            cores: vec![1, 0],
            daemon: None,
            command: "sluice lab run own".into(),
            version: "test".into(),
        }
    }

    fn run(&mut self, text: &str, options: &Options) -> Result<Results, Error> {
        let experiment = Experiment::parse("own.yaml", text).unwrap();
        let place = Place {
            directory: self.directory.path().into(),
            prefix: "test-".into(),
        };
        let lines = RefCell::new(&mut self.progress);
        let stop_after = self.stop_after;
        run(
            &[experiment],
            options,
            Hands {
                subjects: &self.subjects,
                place: &place,
                generator: &mut Gen,
                probe: &mut Speeds {
                    looks: 0,
                    slow: self.slow.clone(),
                },
                stop: &|| lines.borrow().len() >= stop_after,
                progress: &mut |line| lines.borrow_mut().push(line.into()),
                machine: &mut |_| results::Machine {
                    cores: 2,
                    ..results::Machine::default()
                },
                host: &Host::at(self.directory.path()),
            },
        )
    }
}

const FLOWS: &str = "
id: own
title: Flows
purpose: To see.
topology: Two ports.
method: throughput
subjects: [sluice, ovs-dpdk, vpp]
sweep:
  - {name: flows, title: Flows, values: [1, 2]}
settings: {job: stations}
measures: [{name: rate, title: Rate, unit: Mpps, better: higher}]
paper_figures: [{subject: Paper, at: {flows: 1}, figures: {rate: 1.88}}]
expect:
  - text: Sluice is faster.
    left: {measure: rate, subject: sluice, at: {flows: 1}}
    is: above
    factor: 1.5
    right: {measure: rate, subject: ovs-dpdk, at: {flows: 1}}
";

fn cell<'r>(results: &'r Results, subject: &str, flows: f64) -> &'r Cell {
    let at = BTreeMap::from([("flows".to_string(), Value::Number(flows))]);
    let cells = &results.experiments[1].cells;
    cells
        .iter()
        .find(|c| c.subject == subject && c.at == at)
        .unwrap()
}

#[test]
fn cells_are_measured_in_rounds() {
    let mut bench = Bench::new();
    let options = bench.options();
    let results = bench.run(FLOWS, &options).unwrap();
    let rate = |subject, flows| cell(&results, subject, flows).figures["rate"].clone();
    for (subject, flows, wanted) in [
        ("sluice", 1.0, 10.0),
        ("sluice", 2.0, 5.0),
        ("ovs-dpdk", 1.0, 5.0),
    ] {
        let found = rate(subject, flows);
        assert!(
            (found.median - wanted).abs() < wanted / 10.0,
            "{subject} {flows}: {found:?}"
        );
        assert_eq!(found.runs.len(), 3);
        assert!(found.low <= found.median && found.high >= found.median);
    }
    assert_eq!(
        cell(&results, "vpp", 1.0).missing.as_deref(),
        Some("vpp is not installed")
    );
    let experiment = &results.experiments[1];
    assert_eq!(experiment.state, State::Done);
    assert_eq!(
        experiment.findings[0].holds,
        Some(true),
        "{:?}",
        experiment.findings
    );
    assert_eq!(experiment.paper_cells[0].figures["rate"].median, 1.88);
    assert!(experiment.topology.ends_with(
        "Cores: the worker has core 1, generator and guests share core 0. For physical \
                 ports stand: memory (ovs-dpdk, sluice)."
    ));
    assert_eq!(
        experiment.command,
        "sluice lab run own --rounds 3 --seconds 0.02"
    );
    assert_eq!(results.subjects.len(), 3);
    assert_eq!(
        results.subjects[2].missing.as_deref(),
        Some("vpp is not installed")
    );
    // The look before the second window was slow.
    assert_eq!(results.made.repeated, 1);
    let windows = |subject, flows| cell(&results, subject, flows).windows.clone();
    let all = [
        ("sluice", 1.0),
        ("sluice", 2.0),
        ("ovs-dpdk", 1.0),
        ("ovs-dpdk", 2.0),
    ];
    let all = all.map(|(subject, flows)| windows(subject, flows));
    assert!(
        all.iter()
            .all(|w| (w.measured, w.failed, w.moved) == (3, 0, 0))
    );
    assert_eq!(all.iter().map(|w| w.repeated).sum::<u32>(), 1);
    assert_eq!(windows("vpp", 1.0), Windows::default());
    assert!(!results.made.interrupted && !results.made.began.is_empty());
    assert_eq!(results.machine.speeds.len(), 12);
    // Frames of memory stay on the worker's core.
    assert!(results.machine.between_ns.is_empty());
    // Rounds are outermost, and subjects take turns: a slow minute hits all.
    let log = bench.log.borrow();
    let starts: Vec<_> = log.iter().filter(|l| l.starts_with("start")).collect();
    assert_eq!(starts.len(), 12);
    assert_eq!(
        starts[..3],
        ["start sluice", "start ovs-dpdk", "start sluice"]
    );
    assert_eq!(log.iter().filter(|l| l.starts_with("stop")).count(), 12);
    // What is on disk is the same, but for the last digit of what is computed.
    let read = Results::read(&bench.directory.path().join("out")).unwrap();
    let text = |results: &Results| {
        let cells = &results.experiments[1].cells;
        let lines = cells
            .iter()
            .map(|c| format!("{} {:?} {:.9?}", c.subject, c.at, c.figures));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(text(&read), text(&results));
    assert_eq!(
        (read.made.began, read.machine.cores),
        (results.made.began.clone(), 2)
    );
    assert!(
        bench.progress[0].contains("left] own sluice flows=1 1/3: rate"),
        "{:?}",
        bench.progress
    );
}

#[test]
fn windows_in_another_state_of_the_machine_are_measured_again() {
    let mut bench = Bench::new();
    // Both looks around the first window.
    bench.slow = vec![1, 2];
    let options = bench.options();
    let results = bench.run(FLOWS, &options).unwrap();
    let first = cell(&results, "sluice", 1.0);
    let counted = |cell: &Cell| (cell.windows.measured, cell.windows.aside);
    assert_eq!(counted(first), (3, 1));
    assert_eq!(first.figures["rate"].runs.len(), 3);
    assert_eq!(counted(cell(&results, "sluice", 2.0)), (3, 0));
    assert_eq!(results.made.repeated, 0);
    let again: Vec<_> = bench
        .progress
        .iter()
        .filter(|l| l.contains(" again: "))
        .collect();
    assert_eq!(again.len(), 1, "{:?}", bench.progress);
    assert!(again[0].contains("sluice flows=1"), "{again:?}");
    assert_eq!(
        bench
            .log
            .borrow()
            .iter()
            .filter(|l| l.starts_with("start"))
            .count(),
        13
    );
    // A run that goes on when all is done measures nothing.
    let options = Options {
        resume: true,
        ..bench.options()
    };
    let results = bench.run(FLOWS, &options).unwrap();
    assert_eq!(counted(cell(&results, "sluice", 1.0)), (3, 1));
    assert_eq!(
        bench
            .log
            .borrow()
            .iter()
            .filter(|l| l.starts_with("start"))
            .count(),
        13
    );
}

/// Where the machine changed for good, all windows count.
#[test]
fn windows_are_not_put_aside_where_few_would_be_left() {
    let window = |speed| Window {
        figures: [("rate".to_string(), 1.0)].into(),
        speed,
        cores: Some((1, Some(0))),
        ..Window::default()
    };
    let all = [10.0, 10.0, 10.0, 10.0, 5.0, 5.0, 5.0].map(window);
    let usual = usual(&all);
    let counted = |windows: &[usize]| {
        let windows: Vec<&Window> = windows.iter().map(|&at| &all[at]).collect();
        let (kept, aside) = in_usual_state(&windows, &usual);
        (kept.len(), aside)
    };
    assert_eq!(counted(&[0, 1, 4]), (2, 1));
    assert_eq!(counted(&[0, 1, 4, 5]), (2, 2));
    assert_eq!(counted(&[0, 4, 5]), (3, 0));
    assert_eq!(counted(&[0, 4]), (2, 0));
    assert_eq!(counted(&[0, 1, 4, 5, 6]), (5, 0));
}

#[test]
fn a_start_that_fails_is_recorded_and_does_not_end_the_run() {
    let mut bench = Bench::with(100, false);
    let options = bench.options();
    let results = bench.run(FLOWS, &options).unwrap();
    assert_eq!(
        cell(&results, "sluice", 1.0).missing.as_deref(),
        Some("does not start: no memory")
    );
    assert!(cell(&results, "ovs-dpdk", 1.0).missing.is_none());
    let finding = &results.experiments[1].findings[0];
    assert_eq!(finding.holds, None);
    assert!(finding.because.contains("no memory"));
    // Two cells, two tries each.
    let tries = bench
        .log
        .borrow()
        .iter()
        .filter(|l| *l == "start sluice")
        .count();
    assert_eq!(tries, 4);
    // A start that failed once is one window less.
    let mut bench = Bench::with(1, false);
    let results = bench.run(FLOWS, &bench.options()).unwrap();
    let cell = cell(&results, "sluice", 1.0);
    assert_eq!(cell.figures["rate"].runs.len(), 2);
    assert_eq!((cell.windows.measured, cell.windows.failed), (2, 1));
    assert_eq!(
        cell.windows.because.as_deref(),
        Some("does not start: no memory")
    );
}

#[test]
fn an_ended_run_goes_on_where_it_was() {
    let mut bench = Bench::new();
    bench.stop_after = 5;
    let mut options = bench.options();
    let results = bench.run(FLOWS, &options).unwrap();
    assert!(results.made.interrupted);
    assert_eq!(results.experiments[1].state, State::Interrupted);
    assert_eq!(cell(&results, "sluice", 1.0).figures["rate"].runs.len(), 2);
    let began = results.made.began.clone();
    let first = cell(&results, "sluice", 1.0).figures["rate"].runs.clone();
    bench.stop_after = usize::MAX;
    let error = bench.run(FLOWS, &options).unwrap_err().to_string();
    assert!(error.contains("--resume"), "{error}");
    options.resume = true;
    bench.log.borrow_mut().clear();
    let results = bench.run(FLOWS, &options).unwrap();
    assert_eq!(results.experiments[1].state, State::Done);
    assert!(!results.made.interrupted);
    assert_eq!(results.made.began, began);
    let runs = &cell(&results, "sluice", 1.0).figures["rate"].runs;
    assert_eq!((runs.len(), &runs[..2]), (3, &first[..]));
    let starts = bench
        .log
        .borrow()
        .iter()
        .filter(|l| l.starts_with("start"))
        .count();
    assert_eq!(starts, 7, "twelve windows, of which five were there");
}

#[test]
fn loads_of_one_setup_share_a_start() {
    let text = FLOWS
        .replace("method: throughput", "method: load")
        .replace(
            "name: flows, title: Flows, values: [1, 2]",
            "name: load, title: Load, values: [0.5, 2]",
        )
        .replace("at: {flows: 1}", "at: {load: 2}")
        .replace(
            "{name: rate, ",
            "{name: loss, title: Loss}, {name: p99, title: p99}, {name: rate, ",
        );
    let mut bench = Bench::with(0, true);
    let results = bench.run(&text, &bench.options()).unwrap();
    let cells = &results.experiments[1].cells;
    let figure = |index: usize, name: &str| cells[index].figures[name].median;
    assert_eq!(
        (figure(0, "rate"), figure(0, "loss"), figure(0, "p99")),
        (0.5, 0.0, 9.0)
    );
    assert_eq!((figure(1, "rate"), figure(1, "loss")), (1.0, 50.0));
    let starts = bench
        .log
        .borrow()
        .iter()
        .filter(|l| l.starts_with("start"))
        .count();
    assert_eq!(starts, 6, "two subjects, three rounds");
    assert_eq!(results.machine.between_ns, [350.0; 12]);
    assert!(
        results.experiments[1]
            .topology
            .contains("vhost-user (ovs-dpdk, sluice)")
    );
}

#[test]
fn what_cannot_be_is_said_before_it_begins() {
    let mut bench = Bench::new();
    let mut options = bench.options();
    options.subjects = vec!["cisco".into()];
    let error = bench.run(FLOWS, &options).unwrap_err().to_string();
    assert!(
        error.contains("no subject \"cisco\"; there are ovs-dpdk, sluice, vpp"),
        "{error}"
    );
    options.subjects = vec!["sluice".into()];
    let results = bench.run(FLOWS, &options).unwrap();
    assert!(
        results.experiments[1]
            .cells
            .iter()
            .all(|c| c.subject == "sluice")
    );
    let finding = &results.experiments[1].findings[0];
    assert_eq!(finding.because, "ovs-dpdk was not measured at flows 1");
    // A worker more than cores.
    let text = FLOWS.replace("{job: stations}", "{job: stations, workers: 3}");
    let mut bench = Bench::new();
    let results = bench.run(&text, &bench.options()).unwrap();
    assert!(
        matches!(&results.experiments[1].state, State::Failed(why) if why.contains("3 workers"))
    );
}

#[test]
fn simulations_are_experiments_too() {
    let mut bench = Bench::new();
    let all = Experiment::all().unwrap();
    let simulated = all.iter().find(|e| e.id == "C6").unwrap();
    let text = serde_json::to_string(simulated).unwrap();
    let results = bench.run(&text, &bench.options()).unwrap();
    let experiment = &results.experiments[1];
    assert_eq!(experiment.state, State::Done);
    assert!(experiment.cells.iter().any(|cell| !cell.figures.is_empty()));
}

#[test]
fn the_time_left_follows_what_visits_took() {
    let mut clock = TimeLeft {
        left: 600.0,
        planned: 0.0,
        spent: 0.0,
    };
    assert_eq!(clock.left(0.0), "[10:00 left]");
    clock.done(300.0, Duration::from_secs(660));
    assert_eq!(
        clock.left(0.0),
        "[10:00 left]",
        "half is left, and it takes twice as long"
    );
    clock.skip(1000.0);
    assert_eq!(clock.left(10.0), "[0:00 left]");
}

fn embedded(id: &str) -> Experiment {
    let all = Experiment::all().unwrap();
    all.into_iter().find(|e| e.id == id).unwrap()
}

#[test]
fn a_way_that_moved_while_a_program_measured_is_said() {
    let (experiment, mut known) = (embedded("A3"), Known::default());
    known.ways.insert("A3".into(), vec![350.0, 355.0]);
    assert!(!topology(&experiment, &known).contains("355 ns"));
    known.ways.insert("A3".into(), vec![50.0, 350.0]);
    let text = topology(&experiment, &known);
    assert!(text.contains("50 ns before and 350 ns after"), "{text}");
}

#[test]
fn machines_are_counted_and_what_they_stand_for_is_said() {
    let bench = Bench::new();
    let mut experiment = embedded("A1");
    let options = bench.options();
    let before = estimate(&experiment, &[], &options);
    experiment.settings.insert("guest".into(), "qemu".into());
    let count = |path: &str| {
        let at = BTreeMap::from([("path".to_string(), Value::from(path))]);
        machines(&experiment, &at)
    };
    let counts = ["p-p", "p-v", "v-p", "v-v", "p-v-p", "p-v-v", "p-v-v-p"].map(count);
    assert_eq!(counts, [0, 1, 0, 0, 1, 2, 2]);
    assert!(estimate(&experiment, &[], &options) > before + 6.0 * MACHINE);
    let said = |emulated| {
        let sentences = substituted(&experiment, &options, emulated);
        sentences.iter().any(|text| text.contains("no KVM here"))
    };
    assert!(said(Some("no KVM here")) && !said(None));
    let none = substituted(&embedded("A1"), &options, Some("no KVM here"));
    assert!(!none.iter().any(|text| text.contains("TCG")));
}
