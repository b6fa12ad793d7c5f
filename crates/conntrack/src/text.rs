//! Connections as text, as Open vSwitch prints them.

use crate::manage::{Connection, Flow};
use crate::tcp::{Peer, TcpState};
use std::fmt::Write;

/// Returns a connection's line in `dpctl/dump-conntrack`, without a line break. `more` and
/// `statistics` are the options `-m` and `-s`; `now_ms` is used to tell the time left, with `-s`.
pub fn line(connection: &Connection, now_ms: u64, more: bool, statistics: bool) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, connection, now_ms, more, statistics);
    text
}

fn write(
    text: &mut String,
    connection: &Connection,
    now_ms: u64,
    more: bool,
    statistics: bool,
) -> std::fmt::Result {
    text.push_str(&protocol(connection.original.tuple.protocol));
    text.push_str(",orig=(");
    tuple(text, &connection.original)?;
    text.push_str("),reply=(");
    tuple(text, &connection.reply)?;
    text.push(')');
    if more {
        // The userspace datapath has no numbers of connections.
        text.push_str(",id=0");
    }
    if connection.zone != 0 {
        write!(text, ",zone={}", connection.zone)?;
    }
    if more {
        text.push_str(",status=0");
    }
    if statistics {
        let left = connection.expires_ms.saturating_sub(now_ms) / 1000;
        write!(text, ",timeout={left}")?;
    }
    if connection.mark != 0 {
        write!(text, ",mark={}", connection.mark)?;
    }
    if connection.label != 0 {
        write!(text, ",labels={:#x}", connection.label)?;
    }
    if let Some(tcp) = &connection.tcp {
        text.push_str(",protoinfo=(");
        let (original, reply) = (&tcp.original, &tcp.reply);
        if more {
            let (first, second) = (original.state.name(), reply.state.name());
            write!(text, "state_orig={first},state_reply={second}")?;
            if original.scale != 0 || reply.scale != 0 {
                let (first, second) = (original.scale, reply.scale);
                write!(text, ",wscale_orig={first},wscale_reply={second}")?;
            }
            write!(
                text,
                ",flags_orig={},flags_reply={}",
                flags(original),
                flags(reply)
            )?;
        } else {
            write!(text, "state={}", of_both(original, reply).name())?;
        }
        text.push(')');
    }
    if let Some(helper) = connection.helper {
        write!(text, ",helper={}", helper.name())?;
    }
    Ok(())
}

/// Returns the state that stands for both peers': the later one, but by the name that the kernel's
/// tracker has for it.
fn of_both(original: &Peer, reply: &Peer) -> TcpState {
    match original.state.max(reply.state) {
        TcpState::FinWait2 => TcpState::TimeWait,
        TcpState::SynRecv => TcpState::Established,
        state => state,
    }
}

fn flags(peer: &Peer) -> String {
    let names = [("WINDOW_SCALE", peer.scaled), ("BE_LIBERAL", peer.liberal)];
    let set: Vec<_> = names
        .iter()
        .filter(|(_, set)| *set)
        .map(|(name, _)| *name)
        .collect();
    if set.is_empty() {
        return "0".to_owned();
    }
    set.join("|")
}

fn tuple(text: &mut String, flow: &Flow) -> std::fmt::Result {
    let tuple = &flow.tuple;
    let (source, destination) = (tuple.source_port, tuple.destination_port);
    write!(text, "src={},dst={}", tuple.source, tuple.destination)?;
    match flow.icmp_id {
        Some(id) => write!(text, ",id={id},type={source},code={destination}"),
        None => write!(text, ",sport={source},dport={destination}"),
    }
}

/// Returns the name of an IP protocol, its number if it has none here.
fn protocol(number: u8) -> String {
    let name = match number {
        1 => "icmp",
        2 => "igmp",
        6 => "tcp",
        17 => "udp",
        33 => "dccp",
        58 => "icmpv6",
        132 => "sctp",
        136 => "udplite",
        _ => return number.to_string(),
    };
    name.to_owned()
}

/// What `dpctl/ct-stats-show` counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    total: usize,
    /// TCP, UDP, UDPLITE, SCTP, ICMP, DCCP, IGMP, others.
    protocols: [usize; 8],
    states: [usize; TcpState::ALL.len()],
}

impl Statistics {
    /// Counts a connection.
    pub fn add(&mut self, connection: &Connection) {
        self.total += 1;
        let place = match connection.original.tuple.protocol {
            6 => 0,
            17 => 1,
            136 => 2,
            132 => 3,
            1 | 58 => 4,
            33 => 5,
            2 => 6,
            _ => 7,
        };
        self.protocols[place] += 1;
        if let Some(tcp) = &connection.tcp {
            self.states[of_both(&tcp.original, &tcp.reply) as usize] += 1;
        }
    }

    /// Returns the lines that are printed; `more` is the option `-m`, which adds TCP's states.
    pub fn text(&self, more: bool) -> String {
        let mut text = format!("Connections Stats:\n    Total: {}\n", self.total);
        let names = [
            "TCP", "UDP", "UDPLITE", "SCTP", "ICMP", "DCCP", "IGMP", "Other",
        ];
        for (name, count) in names.iter().zip(self.protocols) {
            if count == 0 {
                continue;
            }
            let _ = writeln!(text, "  {name}: {count}");
            if *name == "TCP" && more {
                text.push_str("    Conn per TCP states:\n");
                for (state, count) in TcpState::ALL.iter().zip(self.states) {
                    if count > 0 {
                        let _ = writeln!(text, "\t  [{}]={count}", state.name());
                    }
                }
            }
        }
        text
    }
}

/// Returns what `dpctl/ct-bkts` prints of the parts of the table
/// ([`Tracker::bucket_counts`](crate::Tracker::bucket_counts)); counts up to `above` (option
/// `gt=`) are shown as a dot.
pub fn buckets(counts: &[usize], above: usize) -> String {
    const PER_ROW: usize = 8;
    let total: usize = counts.iter().sum();
    let mut text = format!(
        "Total Buckets: {}\nCurrent Connections: {total}\n\n",
        counts.len()
    );
    let rule = "+-----------+-----------------------------------------+";
    let _ = write!(
        text,
        "{rule}\n|  Buckets  |         Connections per Buckets         |\n{rule}"
    );
    for (index, count) in counts.iter().enumerate() {
        if index % PER_ROW == 0 {
            let _ = write!(text, "\n {index:3}..{:3}   | ", index + PER_ROW - 1);
        }
        if *count > above {
            let _ = write!(text, "{count:5}");
        } else {
            let _ = write!(text, "{:>5}", ".");
        }
    }
    text.push_str("\n\n");
    text
}
