//! `sluice/cache`: the flow cache that each worker keeps in front of long pipelines, and whether it
//! is used.

use super::{Answer, Commands};
use crate::switch::Switch;
use program::exec::CacheMode;
use std::fmt::Write;

pub(super) fn register(commands: &Commands) {
    commands.answer("sluice/cache", "[auto|always|never]", (0, 1), cache);
}

/// Reports the state of the caches, after applying the setting that the argument names, if any.
fn cache(switch: &Switch, arguments: &[String]) -> Answer {
    let board = &switch.program.walk_caches;
    match arguments.first().map(String::as_str) {
        None => {}
        Some("auto") => board.set_mode(CacheMode::Auto),
        Some("always") => board.set_mode(CacheMode::Always),
        Some("never") => board.set_mode(CacheMode::Never),
        Some(other) => return Err(format!("{other}: not auto, always or never")),
    }
    let mut text = format!(
        "{:<7} {:>20} {:>20} {:>9} {:>9} {:>12} {:>12} {:>14}  cache\n",
        "worker", "hits", "misses", "flows", "ways", "recorded", "cycles with", "cycles without"
    );
    for report in board.reports() {
        let _ = writeln!(
            text,
            "{:<7} {:>20} {:>20} {:>9} {:>9} {:>12} {:>12} {:>14}  {}",
            report.worker,
            report.hits,
            report.misses,
            report.entries,
            report.ways,
            report.records,
            report.cached_cycles,
            report.walk_cycles,
            report.standing
        );
    }
    Ok(text)
}
