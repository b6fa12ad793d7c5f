//! Flows that are made from a set of rules.

use super::Problem;
use crate::frames::Parsed;
use crate::random::number;
use crate::rules::{self, BadRule, FILE_MAX, Format, Header, Rule, TCP, UDP};
use crate::sample::{COMPARED_MAX, Explosion, NoFlows, Sampler};
use crate::spec::{Rules, RulesFormat, Stream};
use crate::table::{ROWS_MAX, Table};
use std::io::Read;
use std::net::IpAddr;

/// Why the rules of a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why not.
        error: std::io::Error,
    },
    /// The file, named here, is too large.
    #[error("{0}: it has more than {FILE_MAX} bytes")]
    TooLarge(String),
    /// A line is no rule.
    #[error("{path}:{}: {}", .bad.line, .bad.defect)]
    Line {
        /// The file.
        path: String,
        /// The line, and what is wrong with it.
        bad: BadRule,
    },
}

/// Reads a file of rules.
pub fn read(path: &str, format: Option<Format>) -> Result<Vec<Rule>, FileError> {
    let mut text = String::new();
    let size = std::fs::File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
        .map_err(|error| FileError::Io {
            path: path.to_owned(),
            error,
        })?;
    if size as u64 > FILE_MAX {
        return Err(FileError::TooLarge(path.to_owned()));
    }
    let format = format.unwrap_or_else(|| rules::format_of(&text));
    rules::read(&text, format).map_err(|bad| FileError::Line {
        path: path.to_owned(),
        bad,
    })
}

/// Makes the table of a stream's flows.
pub(super) fn table(
    place: &str,
    stream: &Stream,
    wanted: &Rules,
    lengths: &[u16],
    seed: u64,
) -> Result<Table, Problem> {
    let flows = &stream.flows;
    let at = |field: &str| format!("{place}.flows.rules.{field}");
    if !flows.by.is_empty() {
        let what = "flows that are made from rules differ in what these match";
        return Err(Problem::new(format!("{place}.flows.by"), what));
    }
    if flows.count > ROWS_MAX as u64 {
        return Err(Problem::new(
            format!("{place}.flows.count"),
            format!(
                "{} is above {ROWS_MAX}, the most that are made from rules",
                flows.count
            ),
        ));
    }
    if !(0.0..=1.0).contains(&wanted.miss) {
        let what = format!("{}: must be a share from 0 to 1", wanted.miss);
        return Err(Problem::new(at("miss"), what));
    }
    let format = wanted.format.map(|format| match format {
        RulesFormat::Classbench => Format::ClassBench,
        RulesFormat::Openflow => Format::OpenFlow,
    });
    let problem = |what: String| Problem::new(at("file"), what);
    let mut rules = read(&wanted.file, format).map_err(|error| problem(error.to_string()))?;
    match &wanted.in_port {
        Some(port) => rules.retain(|rule| rule.in_port.as_ref().is_none_or(|its| its == port)),
        None => {
            if let Some(rule) = rules.iter().find(|rule| rule.in_port.is_some()) {
                return Err(problem(format!(
                    "{}:{}: in_port: flows.rules.in_port must say where frames come in",
                    wanted.file, rule.line
                )));
            }
        }
    }
    if rules.is_empty() {
        let what = format!(
            "{}: there is no rule that frames could be made for",
            wanted.file
        );
        return Err(problem(what));
    }
    let usual = usual(place, stream)?;
    let headers = match wanted.explode {
        true => {
            if wanted.miss > 0.0 {
                let what = "flows of an explosion meet no rule: it says nothing here";
                return Err(Problem::new(at("miss"), what));
            }
            exploded(&rules, usual, flows.count)
                .map_err(|error| Problem::new(at("explode"), error.to_string()))?
        }
        false => sampled(&rules, usual, flows.count, wanted.miss, seed)
            .map_err(|error| Problem::new(at("miss"), error.to_string()))?,
    };
    Table::new(place, &stream.headers, lengths, &headers)
}

/// Returns what frames have where rules leave it open.
fn usual(place: &str, stream: &Stream) -> Result<Header, Problem> {
    let parsed = Parsed::new(place, &stream.headers)?;
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    Ok(Header {
        eth_src: parsed.eth_src,
        eth_dst: parsed.eth_dst,
        vlan: stream.headers.vlan,
        six: parsed.ip_src.is_ipv6(),
        src: number(parsed.ip_src),
        dst: number(parsed.ip_dst),
        tos: stream.headers.tos,
        protocol: if parsed.udp { UDP } else { TCP },
        port_src: stream.headers.port_src,
        port_dst: stream.headers.port_dst,
        flags: 0,
    })
}

/// Returns the flows of an explosion; all of them where the count is 0.
fn exploded(rules: &[Rule], usual: Header, count: u64) -> Result<Vec<Header>, NoFlows> {
    let explosion = Explosion::new(rules, usual)?;
    let most = match count {
        0 => ROWS_MAX,
        count => count as usize,
    };
    let found = explosion.packets(rules, most)?;
    match found.len() as u64 {
        0 => Err(NoFlows::AllMeet),
        found if found < count => Err(NoFlows::TooFew {
            found,
            wanted: count,
        }),
        _ => Ok(found),
    }
}

/// Returns flows that meet rules, and the share of them that meet none.
fn sampled(
    rules: &[Rule],
    usual: Header,
    count: u64,
    miss: f64,
    seed: u64,
) -> Result<Vec<Header>, NoFlows> {
    let sampler = Sampler { usual, seed };
    let count = match count {
        0 => rules.len() as u64,
        count => count,
    };
    // Those that miss lie evenly among the others: the n-th does where the share of n, rounded,
    // grows.
    let misses = |n: u64| (n as f64 * miss).round() as u64;
    let (mut flows, mut compared) = (Vec::with_capacity(count as usize), 0);
    // Rules have their turns in an order of no meaning.
    let mut turns: Vec<&Rule> = rules.iter().collect();
    for at in (1..turns.len()).rev() {
        turns.swap(at, (number(seed ^ 1, at as u64) % (at as u64 + 1)) as usize);
    }
    let mut met = 0;
    for n in 0..count {
        if misses(n + 1) > misses(n) {
            let found = sampler.missing(rules, n, &mut compared);
            flows.push(found.ok_or(NoFlows::NoneMisses)?);
            if compared > COMPARED_MAX {
                return Err(NoFlows::TooLong);
            }
            continue;
        }
        flows.push(sampler.meeting(turns[met % turns.len()], n));
        met += 1;
    }
    Ok(flows)
}
