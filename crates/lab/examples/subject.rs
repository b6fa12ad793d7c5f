//! Sets a switch up by a plan and prints what it counts: for trying subjects, and for their tests.
//!
//! ```text
//! subject versions                    what can be measured here
//! subject run SUBJECT PLAN SECONDS    a plan in JSON (a file), counters twice a second
//! subject clean                       removes what dead labs left
//! ```
//!
//! `SUBJECT` may be `LABEL=COMMAND`, any daemon. SLUICED in the environment is Sluice's daemon. All
//! that is printed is JSON, a line each.

use lab::place::{OwnPlace, clean, heed_signals, interrupted};
use lab::subject::{Error, Plan, Subject};
use lab::subjects;
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
        ["clean"] => clean().map(|cleaned| {
            say(json!({
                "removed": cleaned.removed,
                "failed": cleaned.failed,
                "living": cleaned.living,
            }));
        }),
        _ => Err(Error::Failed(
            "versions, run SUBJECT PLAN SECONDS, or clean".into(),
        )),
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
    let seconds: f64 = seconds.parse().map_err(|error| failed(&error))?;
    let subject: Box<dyn Subject> = match subject.split_once('=') {
        Some((label, command)) => Box::new(subjects::daemon(label, command)),
        None => subjects::named(subject, sluiced().as_deref())?,
    };
    subject.version()?;
    subject.can(&plan)?;
    heed_signals(Duration::from_secs(30))?;
    let place = OwnPlace::make()?;
    let mut running = subject.start(&place, &plan)?;
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
        say(json!({"counters": running.counters()?, "stages": stages}));
    }
    running.stop()?;
    place.remove()?;
    say(json!({"stopped": true, "signal": interrupted()}));
    Ok(())
}
