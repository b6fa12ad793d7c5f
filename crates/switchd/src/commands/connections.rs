//! `dpctl/...` commands about tracked connections, as in Open vSwitch. There is one tracker,
//! whatever datapath is named.

use super::datapaths::Arguments;
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
        let words = Words::parse(switch, words, "gt=")?;
        let above = words.number.unwrap_or(0) as u16;
        let counts = match switch.tracker() {
            Some(tracker) => tracker.bucket_counts(),
            None => Vec::new(),
        };
        match counts.iter().sum::<usize>() {
            0 => Ok(format!(
                "Total Buckets: {}\nCurrent Connections: 0\n\n",
                counts.len()
            )),
            _ => Ok(text::buckets(&counts, above.into())),
        }
    });
    with_tracker(commands, "ct-get-nconns", "[dp]", 1, |tracker, _| {
        Ok(format!("{}\n", tracker.count()))
    });
    with_tracker(commands, "ct-get-maxconns", "[dp]", 1, |tracker, _| {
        Ok(format!("{}\n", tracker.limit()))
    });
    commands.answer(
        "dpctl/ct-set-maxconns",
        "[dp] maxconns",
        (1, 2),
        |switch, words| {
            let words = Arguments::read(words)?.words;
            let (limit, names) = words.split_last().ok_or("maxconns missing or malformed")?;
            datapaths::opened(switch, names, 1)?;
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
        with_tracker(commands, name, "[dp]", 2, move |tracker, _| {
            tracker.set_sequence_checking(on);
            Ok(format!("{what} TCP sequence checking successful\n"))
        });
    }
    with_tracker(commands, "ct-get-tcp-seq-chk", "[dp]", 1, |tracker, _| {
        let state = if tracker.sequence_checking() {
            "enabled"
        } else {
            "disabled"
        };
        Ok(format!("TCP sequence checking: {state}\n"))
    });
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
    of_limits(commands, "ct-get-limits", usage, (0, 2), get_limits);
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
            let words = Arguments::read(words)?.words;
            let words = &words[usize::from(datapaths::begins_with_name(switch, words))..];
            let tracker = switch.tracker().ok_or_else(|| no_datapath(switch))?;
            act(&tracker, words).map_err(|error| invalid(switch, &error))
        },
    );
}

/// Registers a command that asks or sets something of the tracker. With as many words as `names`
/// they must name a datapath; of others, Open vSwitch ignores what they say.
fn with_tracker(
    commands: &Commands,
    name: &str,
    usage: &str,
    names: usize,
    act: impl Fn(&Tracker, &[String]) -> Answer + 'static,
) {
    commands.answer(
        &format!("dpctl/{name}"),
        usage,
        (0, 1),
        move |switch, words| {
            let words = Arguments::read(words)?.words;
            datapaths::opened(switch, words, names)?;
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
    number: Option<u64>,
}

impl Words {
    /// Reads words of which the last may be `key` with a number. As in Open vSwitch, one that
    /// cannot be read counts as a datapath's name.
    fn parse(switch: &Switch, words: &[String], key: &str) -> Result<Words, String> {
        let Arguments {
            mut more,
            statistics,
            mut words,
        } = Arguments::read(words)?;
        let mut number = None;
        while let Some((last, rest)) = words.split_last() {
            let text = last.strip_prefix(key).filter(|_| number.is_none());
            match text.and_then(scanned) {
                Some(found) => number = Some(found),
                None if last == "verbose" && !more => more = true,
                None => break,
            }
            words = rest;
        }
        datapaths::opened(switch, words, 1)?;
        Ok(Words {
            more,
            statistics,
            number,
        })
    }

    /// Whether connections of a zone are meant.
    fn admits(&self, zone: u16) -> bool {
        self.number.is_none_or(|number| number as u16 == zone)
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

fn stats(switch: Rc<Switch>, words: Vec<String>, reply: Reply) {
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
    let words = Words::parse(switch, words, "zone=")?;
    let tracker = switch.tracker().ok_or_else(|| no_datapath(switch))?;
    Ok((words, tracker))
}

fn flush_conntrack(switch: Rc<Switch>, words: Vec<String>, reply: Reply) {
    let parsed = || {
        let words = Arguments::read(&words)?.words;
        let after_name = &words[usize::from(datapaths::begins_with_name(&switch, words))..];
        let mut rest = after_name;
        let mut zone = None;
        if let Some((first, behind)) = rest.split_first()
            && let Some(number) = first.strip_prefix("zone=")
        {
            let number = scanned(number).map(|number| number as u16);
            zone = Some(number.ok_or_else(|| invalid(&switch, "failed to parse zone"))?);
            rest = behind;
        }
        let mut tuples = Tuples::default();
        for place in 0..2 {
            if let Some((first, behind)) = rest.split_first() {
                let read = tuples.read(place, first);
                read.map_err(|error| invalid(&switch, &error))?;
                rest = behind;
            }
        }
        if !rest.is_empty() {
            return Err(invalid(&switch, "invalid arguments"));
        }
        datapaths::opened(&switch, words, 4)?;
        let [original, reply] = tuples.parts();
        Ok::<_, String>(Filter {
            zone,
            original,
            reply,
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
        let removed = flush(tracker, filter).await;
        // A whole tuple means one connection, which there must be.
        let is_missing = is_whole(&filter.original) && removed == 0;
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

/// The conditions on both directions of connections, as they are read. Both have one protocol.
#[derive(Default)]
struct Tuples {
    parts: [Part; 2],
    protocol: Option<u8>,
    is_ipv4: Option<bool>,
}

impl Tuples {
    /// Reads the conditions on a direction, as `ct_nw_src=10.0.0.1,ct_tp_dst=80`.
    fn read(&mut self, direction: usize, text: &str) -> Result<(), String> {
        const ICMP: [u8; 2] = [1, 58];
        let part = &mut self.parts[direction];
        for item in text
            .split([',', ' ', '\t', '\n'])
            .filter(|item| !item.is_empty())
        {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            if value.is_empty() {
                return Err(format!("field {key} missing value"));
            }
            let bad = || format!("failed to parse field {key}");
            let number = |most: u32| number(value).filter(|it| *it <= most).ok_or_else(bad);
            match key {
                "ct_nw_src" | "ct_nw_dst" | "ct_ipv6_src" | "ct_ipv6_dst" => {
                    let is_ipv4 = key.starts_with("ct_nw");
                    if self.is_ipv4.is_some_and(|before| before != is_ipv4) {
                        return Err(format!("the L3 protocol does not match {value}"));
                    }
                    let place = match key.ends_with("src") {
                        true => &mut part.source,
                        false => &mut part.destination,
                    };
                    if place.is_some() {
                        return Err(format!("{key} is set multiple times"));
                    }
                    let address = value.parse::<IpAddr>().ok();
                    let address = address.filter(|it| it.is_ipv4() == is_ipv4);
                    *place = Some(address.ok_or_else(bad)?);
                    self.is_ipv4 = Some(is_ipv4);
                }
                // As in Open vSwitch, 0 is none.
                "ct_nw_proto" => self.protocol = Some(number(0xff)? as u8).filter(|it| *it != 0),
                "ct_tp_src" => {
                    part.source_port = Some(number(0xffff)? as u16).filter(|it| *it != 0);
                }
                "ct_tp_dst" => {
                    part.destination_port = Some(number(0xffff)? as u16).filter(|it| *it != 0);
                }
                "icmp_id" | "icmp_type" | "icmp_code"
                    if !(self.protocol).is_some_and(|protocol| ICMP.contains(&protocol)) =>
                {
                    return Err("invalid L4 fields".into());
                }
                "icmp_id" => part.icmp_id = Some(number(0xffff)? as u16),
                "icmp_type" => part.icmp_type = Some(number(0xff)? as u8),
                "icmp_code" => part.icmp_code = Some(number(0xff)? as u8),
                _ => return Err(format!("invalid conntrack tuple field: {key}")),
            }
        }
        let has_port = part.source_port.is_some() || part.destination_port.is_some();
        if has_port && self.protocol.is_none() {
            return Err("port is set without protocol".into());
        }
        Ok(())
    }

    /// Returns the conditions on the original direction and on the replies'.
    fn parts(self) -> [Part; 2] {
        self.parts.map(|part| Part {
            protocol: self.protocol,
            ..part
        })
    }
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

/// Reads the number that a text begins with, as scanf(3) does where Open vSwitch uses it.
fn scanned(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|letter: char| !letter.is_ascii_digit());
    let number = digits[..end.unwrap_or(digits.len())].parse::<u64>().ok()?;
    Some(if negative {
        number.wrapping_neg()
    } else {
        number
    })
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
