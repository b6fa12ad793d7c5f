//! The control commands of the log, `vlog/*`.

use std::fmt::Write;

use super::pattern::SYSLOG_PREFIX;
use super::{Destination, LOG, apply, read, reopen, write};
use crate::unixctl::Registry;

/// Adds `vlog/*` to the daemon's commands.
pub fn register(registry: &Registry) {
    let usage = "{spec | PATTERN:destination:pattern}";
    registry.register("vlog/set", usage, 0, usize::MAX, |arguments, reply| {
        reply.send(set(&arguments))
    });
    registry.register("vlog/list", "", 0, 0, |_, reply| {
        reply.ok(LOG
            .get()
            .map_or_else(String::new, |log| read(&log.settings).table.list()));
    });
    registry.register("vlog/list-pattern", "", 0, 0, |_, reply| {
        reply.ok(list_pattern())
    });
    registry.register(
        "vlog/enable-rate-limit",
        "[module]...",
        0,
        usize::MAX,
        |arguments, reply| {
            reply.send(set_rate_limit(&arguments, true));
        },
    );
    registry.register(
        "vlog/disable-rate-limit",
        "[module]...",
        0,
        usize::MAX,
        |arguments, reply| {
            reply.send(set_rate_limit(&arguments, false));
        },
    );
    registry.register("vlog/reopen", "", 0, 0, |_, reply| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        reopen(move |result| {
            let _ = sender.send(result);
        });
        crate::turns::spawn("vlog/reopen", async move {
            let limit = std::time::Duration::from_secs(5);
            reply.send(match tokio::time::timeout(limit, receiver).await {
                Ok(Ok(Ok(()))) => Ok(String::new()),
                Ok(Ok(Err(error))) => Err(crate::plain_error(&error)),
                Ok(Err(_)) | Err(_) => Err("the log's writer does not answer".into()),
            });
        });
    });
    registry.register("vlog/close", "", 0, 0, |_, reply| {
        if let Some(log) = LOG.get() {
            log.output.close();
        }
        reply.ok("");
    });
}

fn set(arguments: &[String]) -> Result<String, String> {
    let Some(log) = LOG.get() else {
        return Ok(String::new());
    };
    let everything = [String::new()];
    let specifications = if arguments.is_empty() {
        &everything[..]
    } else {
        arguments
    };
    let result = {
        let mut settings = write(&log.settings);
        specifications
            .iter()
            .try_for_each(|text| apply(&mut settings, text))
    };
    tracing::callsite::rebuild_interest_cache();
    result.map(|()| String::new())
}

fn set_rate_limit(arguments: &[String], limited: bool) -> Result<String, String> {
    let Some(log) = LOG.get() else {
        return Ok(String::new());
    };
    let mut settings = write(&log.settings);
    if arguments.is_empty() {
        settings.table.set_rate_limited(None, limited);
    }
    for name in arguments {
        if name.eq_ignore_ascii_case("any") {
            settings.table.set_rate_limited(None, limited);
        } else if settings.table.knows(name) {
            settings.table.set_rate_limited(Some(name), limited);
        } else {
            return Err("unknown module".into());
        }
    }
    Ok(String::new())
}

fn list_pattern() -> String {
    let mut text = String::from("         prefix                            format\n");
    text.push_str("         ------                            ------\n");
    if let Some(log) = LOG.get() {
        let settings = read(&log.settings);
        for destination in Destination::ALL {
            let prefix = if destination == Destination::Syslog {
                SYSLOG_PREFIX
            } else {
                "none"
            };
            let pattern = settings.patterns[destination as usize].text();
            let _ = writeln!(text, "{:<7}  {prefix:<32}  {pattern}", destination.name());
        }
    }
    text
}
