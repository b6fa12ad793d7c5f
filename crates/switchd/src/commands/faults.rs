//! `sluice/panic` and `sluice/stall`: faults on demand, to test what happens to the rest. Only with
//! `--enable-dummy`.

use super::{Answer, Commands};
use crate::switch::{Switch, aside};
use crate::vlog;
use std::time::Duration;

/// Where the fault happens: in the command itself; in a task of the control thread; in a task that
/// may run on any thread, as the connection to the database does; on the thread pool; on a thread
/// of its own; on the thread that changes devices; on the log's writer; in a worker.
const PLACES: &str = "command|task|shared-task|blocking|thread|devices|log|worker";
/// Longest stall, ms.
const LONGEST: u64 = 60_000;

pub(super) fn register(commands: &Commands) {
    let Ok(switch) = commands.switch() else {
        return;
    };
    if switch.shell.options.dummy.is_none() {
        return;
    }
    commands.answer("sluice/panic", PLACES, (1, 1), |switch, words| {
        at(switch, &words[0], || panic!("as sluice/panic has asked"))
    });
    commands.answer(
        "sluice/stall",
        &format!("{PLACES} msecs"),
        (2, 2),
        |switch, words| {
            let time = words[1].parse().ok().filter(|time| *time <= LONGEST);
            let time =
                time.ok_or_else(|| format!("{}: must be 0 to {LONGEST} milliseconds", words[1]))?;
            at(switch, &words[0], move || {
                std::thread::sleep(Duration::from_millis(time));
            })
        },
    );
}

/// Runs `act` in the named place.
fn at(switch: &Switch, place: &str, act: impl FnOnce() + Send + 'static) -> Answer {
    match place {
        "command" => act(),
        "task" => drop(crate::turns::spawn("sluice/stall", async move { act() })),
        "shared-task" => drop(tokio::spawn(async move { act() })),
        "blocking" => drop(tokio::task::spawn_blocking(act)),
        "thread" => drop(
            std::thread::Builder::new()
                .spawn(act)
                .map_err(|error| format!("no thread: {error}"))?,
        ),
        "devices" => aside::post(act),
        "log" => vlog::reopen(move |_| act()),
        "worker" => {
            let sent = switch.with_datapath(|datapath| datapath.run_on_worker(0, Box::new(act)));
            if !sent.map_err(|error| error.to_string())? {
                return Err("there is no worker, or it has too much to do".into());
            }
        }
        _ => return Err(format!("{place}: must be one of {PLACES}")),
    }
    Ok(String::new())
}
