//! Sets a switch up by a plan and prints what it counts: for trying subjects, and for their tests.
//!
//! ```text
//! subject versions                    what can be measured here
//! subject run SUBJECT PLAN SECONDS    a plan in JSON (a file), counters twice a second
//! subject topology NAME SUBJECT CAPTURE SECONDS    the same, with guests; no capture: veths
//! subject clean                       removes what dead labs left
//! ```
//!
//! With SAMPLES in the environment, it prints last what the plan's cores spent a second on.
//!
//! `SUBJECT` may be `LABEL=COMMAND`, any daemon. SLUICED in the environment is Sluice's daemon. All
//! that is printed is JSON, a line each.

use lab::guests::Guests;
use lab::place::{OwnPlace, clean, heed_signals, interrupted};
use lab::samples::{Target, samples};
use lab::subject::{Error, Plan, Subject};
use lab::subjects;
use lab::topology::{Shared, Topology, Wire, share, topology};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["versions"] => {
            versions();
            Ok(())
        }
        ["run", subject, plan, seconds] => run(subject, plan, seconds),
        ["topology", name, subject, capture, seconds] => build(name, subject, capture, seconds),
        ["clean"] => clean().map(|cleaned| {
            say(json!({
                "removed": cleaned.removed,
                "failed": cleaned.failed,
                "living": cleaned.living,
            }));
        }),
        _ => Err(Error::Failed("versions, run, topology, or clean".into())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(json!({"error": error.to_string(), "missing": matches!(error, Error::Missing(_))}));
            ExitCode::FAILURE
        }
    }
}

fn say(value: Value) {
    println!("{value}");
}

fn sluiced() -> Option<PathBuf> {
    std::env::var_os("SLUICED").map(PathBuf::from)
}

fn versions() {
    for subject in subjects::all(sluiced().as_deref()) {
        let (version, missing) = match subject.version() {
            Ok(version) => (Some(version), None),
            Err(error) => (None, Some(error.to_string())),
        };
        say(json!({
            "id": subject.id(),
            "name": subject.name(),
            "version": version,
            "missing": missing,
            "setup": subject.setup(),
        }));
    }
}

fn run(subject: &str, plan: &str, seconds: &str) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("{plan}: {error}"));
    let text = std::fs::read_to_string(plan).map_err(|error| failed(&error))?;
    let plan: Plan = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let subject = subject_of(subject)?;
    drive(&*subject, &plan, None, seconds)
}

fn build(name: &str, subject: &str, capture: &str, seconds: &str) -> Result<(), Error> {
    let subject = subject_of(subject)?;
    let wire = match capture {
        "" => Wire::Veth,
        path => Wire::Memory(path.into()),
    };
    // Guests are there where a generator need not share their core.
    let shared = share(&subjects::allowed_cores(), 1, false, true)?;
    let topology = topology(name, &*subject, &wire, &shared.workers)?;
    say(
        json!({"text": topology.text, "cores": shared.text, "sources": topology.sources,
        "sinks": topology.sinks}),
    );
    let plan = topology.plan.clone();
    drive(&*subject, &plan, Some((topology, shared)), seconds)
}

fn subject_of(name: &str) -> Result<Box<dyn Subject>, Error> {
    Ok(match name.split_once('=') {
        Some((label, command)) => Box::new(subjects::daemon(label, command)),
        None => subjects::named(name, sluiced().as_deref())?,
    })
}

fn drive(
    subject: &dyn Subject,
    plan: &Plan,
    built: Option<(Topology, Shared)>,
    seconds: &str,
) -> Result<(), Error> {
    let seconds: f64 = seconds
        .parse()
        .map_err(|error| Error::Failed(format!("{seconds}: {error}")))?;
    subject.version()?;
    subject.can(plan)?;
    heed_signals(Duration::from_secs(30))?;
    let place = OwnPlace::make()?;
    let mut running = subject.start(&place, plan)?;
    let mut guests = match &built {
        Some((topology, shared)) if !topology.guests.is_empty() => Some(Guests::start(
            &place,
            &running.ends(),
            &topology.guests,
            shared.guests,
            shared.beside,
        )?),
        _ => None,
    };
    say(json!({
        "prefix": place.prefix,
        "ends": running.ends(),
        "process": running.process(),
        "workers": running.workers(),
    }));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end && interrupted().is_none() {
        std::thread::sleep(Duration::from_millis(500));
        let stages = running.stages()?;
        let handled = guests.as_mut().map_or(Ok(Vec::new()), Guests::handled)?;
        let handled: Vec<_> = handled
            .iter()
            .map(|port| (port.port, port.received, port.sent))
            .collect();
        say(json!({"counters": running.counters()?, "stages": stages, "guests": handled}));
    }
    if std::env::var_os("SAMPLES").is_some() && interrupted().is_none() {
        let shares = samples(&place, &Target::Cores(plan.cores.clone()), 1.0)?;
        say(json!({"samples": shares}));
    }
    if let Some(guests) = guests {
        guests.stop()?;
    }
    running.stop()?;
    place.remove()?;
    say(json!({"stopped": true, "signal": interrupted()}));
    Ok(())
}
