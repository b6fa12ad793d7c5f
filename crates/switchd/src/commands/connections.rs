//! `dpctl/...` commands about tracked connections, as in Open vSwitch. There is one tracker,
//! whatever datapath is named.

use super::{Answer, Commands, datapaths};
use crate::switch::Switch;
use crate::switch::connections::{dump, dump_some, flush};
use crate::unixctl::{PIECE, Reply};
use conntrack::{Cursor, Filter, Part, Tracker, text};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

pub(super) fn register(commands: &Commands) {
    commands.later(
        "dpctl/dump-conntrack",
        "[-m] [-s] [dp] [zone=N]",
        (0, 4),
        dump_conntrack,
    );
    commands.later(
        "dpctl/flush-conntrack",
        "[dp] [zone=N] [ct-orig-tuple] [ct-reply-tuple]",
        (0, 4),
        flush_conntrack,
    );
    commands.later("dpctl/ct-stats-show", "[dp] [zone=N]", (0, 3), stats);
    commands.answer("dpctl/ct-bkts", "[dp] [gt=N]", (0, 2), |switch, words| {
        let words = Words::parse(switch, words, "gt=", u32::MAX)?;
        let above = words.number.unwrap_or(0);
        let counts = match switch.tracker() {
            Some(tracker) => tracker.bucket_counts(),
            None => Vec::new(),
        };
        match counts.iter().sum::<usize>() {
            0 => Ok(format!(
                "Total Buckets: {}\nCurrent Connections: 0\n\n",
                counts.len()
            )),
            _ => Ok(text::buckets(&counts, above as usize)),
        }
    });
    with_tracker(commands, "ct-get-nconns", "[dp]", (0, 1), |tracker, _| {
        Ok(format!("{}\n", tracker.count()))
    });
    with_tracker(commands, "ct-get-maxconns", "[dp]", (0, 1), |tracker, _| {
        Ok(format!("{}\n", tracker.limit()))
    });
    commands.answer(
        "dpctl/ct-set-maxconns",
        "[dp] maxconns",
        (1, 2),
        |switch, words| {
            let (limit, names) = words.split_last().ok_or("maxconns missing or malformed")?;
            datapaths::checked(switch, names)?;
            let limit = (limit.parse::<u32>())
                .map_err(|_| invalid(switch, "maxconns missing or malformed"))?;
            let tracker = switch.tracker().ok_or_else(|| no_datapath(switch))?;
            tracker.set_limit(limit as usize);
            Ok("setting maxconns successful\n".into())
        },
    );
    for (name, on, what) in [
        ("ct-enable-tcp-seq-chk", true, "enabling"),
        ("ct-disable-tcp-seq-chk", false, "disabling"),
    ] {
        with_tracker(commands, name, "[dp]", (0, 1), move |tracker, _| {
            tracker.set_sequence_checking(on);
            Ok(format!("{what} TCP sequence checking successful\n"))
        });
    }
    with_tracker(
        commands,
        "ct-get-tcp-seq-chk",
        "[dp]",
        (0, 1),
        |tracker, _| {
            let state = if tracker.sequence_checking() {
                "enabled"
            } else {
                "disabled"
            };
            Ok(format!("TCP sequence checking: {state}\n"))
        },
    );
    let usage = "[dp] [default=L] [zone=N,limit=L]...";
    of_limits(
        commands,
        "ct-set-limits",
        usage,
        (1, usize::MAX),
        set_limits,
    );
    let usage = "[dp] zone=N1[,N2...]";
    of_limits(
        commands,
        "ct-del-limits",
        usage,
        (1, 2),
        |tracker, words| {
            let zones = zones(words)?.ok_or("zone missing")?;
            for zone in zones {
                tracker.delete_zone_limit(zone);
            }
            Ok(String::new())
        },
    );
    let usage = "[dp] [zone=N1[,N2...]]";
    of_limits(commands, "ct-get-limits", usage, (0, 3), get_limits);
}

/// Registers a command about zones' limits, which is given the words behind the datapath's name.
fn of_limits(
    commands: &Commands,
    name: &str,
    usage: &str,
    arguments: (usize, usize),
    act: impl Fn(&Tracker, &[String]) -> Answer + 'static,
) {
    commands.answer(
        &format!("dpctl/{name}"),
        usage,
        arguments,
        move |switch, words| {
            let words = match words.split_first() {
                Some((first, rest))
                    if !first.contains('=')
                        && datapaths::checked(switch, std::slice::from_ref(first)).is_ok() =>
                {
                    rest
                }
                _ => words,
            };
            let tracker = switch.tracker().ok_or_else(|| no_datapath(switch))?;
            act(&tracker, words).map_err(|error| invalid(switch, &error))
        },
    );
}

/// Registers a command that asks or sets something of the tracker.
fn with_tracker(
    commands: &Commands,
    name: &str,
    usage: &str,
    arguments: (usize, usize),
    act: impl Fn(&Tracker, &[String]) -> Answer + 'static,
) {
    commands.answer(
        &format!("dpctl/{name}"),
        usage,
        arguments,
        move |switch, words| {
            datapaths::checked(switch, words)?;
            let tracker = switch.tracker().ok_or_else(|| no_datapath(switch))?;
            act(&tracker, words).map_err(|error| invalid(switch, &error))
        },
    );
}

pub(super) fn no_datapath(switch: &Switch) -> String {
    invalid(switch, "no datapaths exist")
}

/// Returns an error as Open vSwitch words it.
pub(super) fn invalid(switch: &Switch, what: &str) -> String {
    let program = &switch.shell.options.program;
    format!("{program}: {what} (Invalid argument)")
}

/// Likewise, where a value is out of range.
pub(super) fn refused(switch: &Switch, what: &str) -> String {
    let program = &switch.shell.options.program;
    format!("{program}: {what} (Operation not permitted)")
}

/// The words of a command: options, and a number by its key.
struct Words {
    more: bool,
    statistics: bool,
    number: Option<u32>,
}

impl Words {
    /// Reads words of which one may be `key` with a number up to `most`.
    fn parse(switch: &Switch, words: &[String], key: &str, most: u32) -> Result<Words, String> {
        let mut parsed = Words {
            more: false,
            statistics: false,
            number: None,
        };
        let mut names = Vec::new();
        for word in words {
            let number = word.strip_prefix(key).and_then(|text| text.parse().ok());
            match (word.as_str(), number.filter(|number| *number <= most)) {
                (_, Some(number)) => parsed.number = Some(number),
                ("-m" | "--more", _) => parsed.more = true,
                ("-s" | "--statistics", _) => parsed.statistics = true,
                (option, _) if option.starts_with('-') => {
                    return Err(format!("Unrecognized option {option}"));
                }
                // As in Open vSwitch, a value that cannot be read counts as a name.
                (value, _) if value.contains('=') => {
                    return Err(invalid(switch, "datapath not found"));
                }
                (name, _) => names.push(name.to_owned()),
            }
        }
        datapaths::checked(switch, &names)?;
        Ok(parsed)
    }

    /// Whether connections of a zone are meant.
    fn admits(&self, zone: u16) -> bool {
        self.number.is_none_or(|number| number == u32::from(zone))
    }
}

/// Connections of which a piece of a dump has the lines, about.
const A_PIECE: usize = 128;

fn dump_conntrack(switch: Rc<Switch>, words: Vec<String>, reply: Reply) {
    let (words, tracker) = match of_connections(&switch, &words) {
        Ok(found) => found,
        Err(error) => return reply.error(error),
    };
    // The daemon may end while a client reads.
    let switch = Rc::downgrade(&switch);
    crate::turns::spawn("connections", async move {
        let pieces = reply.pieces();
        let mut lines = String::new();
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let Some(now) = switch.upgrade().map(|switch| switch.now()) else {
                return;
            };
            cursor = dump_some(&tracker, at, A_PIECE, |connection| {
                if words.admits(connection.zone) {
                    lines += &text::line(connection, now.ms(), words.more, words.statistics);
                    lines.push('\n');
                }
            })
            .await;
            if lines.len() >= PIECE && !pieces.add(std::mem::take(&mut lines)).await {
                return;
            }
        }
        pieces.add(lines).await;
    });
}

fn stats(switch: Rc<Switch>, mut words: Vec<String>, reply: Reply) {
    // Open vSwitch takes this word as well.
    for word in words.iter_mut().filter(|word| *word == "verbose") {
        *word = "-m".into();
    }
    let (words, tracker) = match of_connections(&switch, &words) {
        Ok(found) => found,
        Err(error) => return reply.error(error),
    };
    crate::turns::spawn("connections", async move {
        let mut sums = text::Statistics::default();
        dump(&tracker, |connection| {
            if words.admits(connection.zone) {
                sums.add(connection);
            }
        })
        .await;
        reply.ok(sums.text(words.more));
    });
}

/// Reads the words of a command about the connections of one zone or all.
fn of_connections(switch: &Switch, words: &[String]) -> Result<(Words, Arc<Tracker>), String> {
    let words = Words::parse(switch, words, "zone=", u16::MAX.into())?;
    let tracker = switch.tracker().ok_or_else(|| no_datapath(switch))?;
    Ok((words, tracker))
}

fn flush_conntrack(switch: Rc<Switch>, words: Vec<String>, reply: Reply) {
    let parsed = || {
        let mut rest = Vec::new();
        let mut zone = None;
        let mut tuples = Vec::new();
        for word in &words {
            if let Some(number) = word.strip_prefix("zone=") {
                let number = number.parse::<u16>();
                zone = Some(number.map_err(|_| invalid(&switch, "failed to parse zone"))?);
            } else if word.contains('=') {
                tuples.push(part(word).map_err(|error| invalid(&switch, &error))?);
            } else {
                rest.push(word.clone());
            }
        }
        datapaths::checked(&switch, &rest)?;
        let mut tuples = tuples.into_iter();
        Ok::<_, String>(Filter {
            zone,
            original: tuples.next().unwrap_or_default(),
            reply: tuples.next().unwrap_or_default(),
        })
    };
    let filter = match parsed() {
        Ok(filter) => filter,
        Err(error) => return reply.error(error),
    };
    let Some(tracker) = switch.tracker() else {
        return reply.error(no_datapath(&switch));
    };
    crate::turns::spawn("connections", async move {
        let flushed = || tracker.counters().get(conntrack::Counter::Flushed);
        let before = flushed();
        flush(Arc::clone(&tracker), filter).await;
        // A whole tuple means one connection, which there must be.
        let is_missing = is_whole(&filter.original) && flushed() == before;
        reply.send(match is_missing {
            true => Err(format!(
                "{}: failed to flush conntrack (No such file or directory)",
                switch.shell.options.program
            )),
            false => Ok(String::new()),
        });
    });
}

/// Returns whether conditions name one connection.
fn is_whole(part: &Part) -> bool {
    let ports = part.source_port.is_some() && part.destination_port.is_some();
    let icmp = part.icmp_id.is_some() && part.icmp_type.is_some() && part.icmp_code.is_some();
    part.source.is_some()
        && part.destination.is_some()
        && part.protocol.is_some()
        && (ports || icmp)
}

/// Reads the conditions on one direction, as `ct_nw_src=10.0.0.1,ct_tp_dst=80`.
fn part(text: &str) -> Result<Part, String> {
    let mut part = Part::default();
    for item in text.split([',', ' ']).filter(|item| !item.is_empty()) {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let bad = || format!("failed to parse field {key}");
        let address = |is_ipv4: bool| {
            let address = value.parse::<IpAddr>().ok();
            address.filter(|it| it.is_ipv4() == is_ipv4).ok_or_else(bad)
        };
        let short = || value.parse::<u16>().map_err(|_| bad());
        let byte = || value.parse::<u8>().map_err(|_| bad());
        match key {
            "ct_nw_src" => part.source = Some(address(true)?),
            "ct_nw_dst" => part.destination = Some(address(true)?),
            "ct_ipv6_src" => part.source = Some(address(false)?),
            "ct_ipv6_dst" => part.destination = Some(address(false)?),
            "ct_nw_proto" => part.protocol = Some(byte()?),
            "ct_tp_src" => part.source_port = Some(short()?),
            "ct_tp_dst" => part.destination_port = Some(short()?),
            "icmp_id" => part.icmp_id = Some(short()?),
            "icmp_type" => part.icmp_type = Some(byte()?),
            "icmp_code" => part.icmp_code = Some(byte()?),
            _ => return Err(format!("invalid conntrack tuple field: {key}")),
        }
    }
    Ok(part)
}

fn set_limits(tracker: &Tracker, words: &[String]) -> Answer {
    let mut changes = Vec::new();
    let mut words = words;
    if let Some((first, rest)) = words.split_first()
        && let Some(limit) = first.strip_prefix("default=")
    {
        let limit = limit.parse::<u32>().map_err(|_| "invalid default limit")?;
        changes.push((None, limit));
        words = rest;
    }
    for word in words {
        let mut zone = None;
        let mut limit = None;
        for item in word.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            if value.is_empty() {
                return Err(format!("field {key} missing value"));
            }
            let number = number(value).ok_or_else(|| format!("failed to parse field {key}"));
            match key {
                "zone" => {
                    let narrow = number.and_then(|number| {
                        u16::try_from(number).map_err(|_| "failed to parse field zone".to_owned())
                    });
                    zone = Some(narrow?);
                }
                "limit" => limit = Some(number?),
                other => return Err(format!("invalid zone limit field: {other}")),
            }
        }
        let (Some(zone), Some(limit)) = (zone, limit) else {
            return Err("failed to parse zone limit".into());
        };
        changes.push((Some(zone), limit));
    }
    for (zone, limit) in changes {
        tracker.set_zone_limit(zone, limit);
    }
    Ok(String::new())
}

/// Reads a number, decimal or hexadecimal.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn get_limits(tracker: &Tracker, words: &[String]) -> Answer {
    let usual = tracker.zone_limit(None).unwrap_or(0);
    let limits = match zones(words)? {
        None => tracker.zone_limits(),
        Some(zones) => (zones.into_iter())
            .map(|zone| (zone, tracker.zone_limit(Some(zone)).unwrap_or(usual)))
            .collect(),
    };
    let mut text = format!("default limit={usual}\n");
    for (zone, limit) in limits {
        let count = tracker.zone_count(zone);
        text += &format!("zone={zone},limit={limit},count={count}\n");
    }
    Ok(text)
}

/// Reads the word that names zones, if there is one.
fn zones(words: &[String]) -> Result<Option<Vec<u16>>, String> {
    let word = match words {
        [] => return Ok(None),
        [word] => word,
        // The first should have named a datapath.
        _ => return Err("datapath not found".into()),
    };
    let Some(list) = word.strip_prefix("zone=") else {
        return Err(format!("invalid argument {word}"));
    };
    let zone = |text: &str| {
        let zone = number(text).and_then(|number| u16::try_from(number).ok());
        zone.ok_or_else(|| "invalid zone".to_owned())
    };
    let items = list.split([',', ' ']).filter(|item| !item.is_empty());
    let zones: Vec<u16> = items.map(zone).collect::<Result<_, _>>()?;
    match zones[..] {
        [] => Err("invalid zone".into()),
        _ => Ok(Some(zones)),
    }
}
