//! Sets a switch up by a plan and prints what it counts: for trying subjects, and for their tests.
//!
//! ```text
//! subject versions                    what can be measured here
//! subject run SUBJECT PLAN SECONDS    a plan in JSON (a file), counters twice a second
//! subject cell SETTINGS SUBJECT SECONDS   the same of a cell's settings in JSON, with its guests
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
use lab::settings::Settings;
use lab::subject::{Error, Plan, Subject};
use lab::subjects;
use lab::trial::{Setup, fitting};
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
        ["cell", settings, subject, seconds] => cell(settings, subject, seconds),
        ["clean"] => clean().map(|cleaned| {
            say(json!({
                "removed": cleaned.removed,
                "failed": cleaned.failed,
                "living": cleaned.living,
            }));
        }),
        _ => Err(Error::Failed("versions, run, cell, or clean".into())),
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
    let place = prepare(&*subject, &plan)?;
    drive(place, &*subject, &plan, None, seconds)
}

fn cell(settings: &str, subject: &str, seconds: &str) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("{settings}: {error}"));
    let values = serde_json::from_str(settings).map_err(|error| failed(&error))?;
    let settings = Settings::of(&values).map_err(|error| failed(&error))?;
    settings.check().map_err(|error| failed(&error))?;
    let subject = subject_of(subject)?;
    heed_signals(Duration::from_secs(30))?;
    let place = OwnPlace::make()?;
    // Workers' first, as `sluice lab run` has them.
    let cores: Vec<usize> = subjects::allowed_cores().into_iter().rev().collect();
    let setup = fitting(&settings, false, &*subject, &cores, &place.directory);
    let setup = setup.map_err(|unfit| Error::Missing(unfit.to_string()))?;
    say(json!({
        "cores": setup.sharing(),
        "physical": setup.physical.name(),
        "sources": setup.sources,
        "sinks": setup.sinks,
    }));
    subject.version()?;
    let plan = setup.plan.clone();
    drive(place, &*subject, &plan, Some(setup), seconds)
}

fn subject_of(name: &str) -> Result<Box<dyn Subject>, Error> {
    Ok(match name.split_once('=') {
        Some((label, command)) => Box::new(subjects::daemon(label, command)),
        None => subjects::named(name, sluiced().as_deref())?,
    })
}

fn prepare(subject: &dyn Subject, plan: &Plan) -> Result<OwnPlace, Error> {
    subject.version()?;
    subject.can(plan)?;
    heed_signals(Duration::from_secs(30))?;
    OwnPlace::make()
}

fn drive(
    place: OwnPlace,
    subject: &dyn Subject,
    plan: &Plan,
    setup: Option<Setup>,
    seconds: &str,
) -> Result<(), Error> {
    let seconds: f64 = seconds
        .parse()
        .map_err(|error| Error::Failed(format!("{seconds}: {error}")))?;
    let mut running = subject.start(&place, plan)?;
    let mut guests = match &setup {
        Some(setup) if !setup.guests.is_empty() => Some(Guests::start(
            &place,
            &running.ends(),
            &setup.guests,
            setup.kind,
            setup.guests_core,
            setup.core,
        )?),
        _ => None,
    };
    say(json!({
        "prefix": place.prefix,
        "ends": running.ends(),
        "process": running.process(),
        "workers": running.workers(),
        "guests": guests.as_ref().and_then(Guests::process),
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
