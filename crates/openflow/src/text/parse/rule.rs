//! Parses whole rules as `ovs-ofctl add-flow` takes them and `dump-flows` prints them.

use super::matching::Reader;
use super::values::bounded;
use super::{Error, PortNames, Result, instructions, pairs, port};
use crate::model::flow::FlowMod;
use crate::text::format::DEFAULT_PRIORITY;

/// Statistics that `dump-flows` prints with a rule, which are ignored.
const STATISTICS: [&str; 8] = [
    "duration",
    "n_packets",
    "n_bytes",
    "idle_age",
    "hard_age",
    "n_offload_packets",
    "n_offload_bytes",
    "table_id",
];

/// Parses a rule to add: `table=1,priority=5,tcp,nw_dst=10.0.0.0/8,actions=output:2`. `actions=` is
/// required.
pub fn flow(text: &str, names: PortNames<'_>) -> Result<FlowMod> {
    let at = text
        .find("actions=")
        .ok_or_else(|| Error::new("must specify an action"))?;
    let (head, right) = (&text[..at], &text[at + "actions=".len()..]);
    let mut rule = FlowMod {
        modify_cookie: true,
        ..FlowMod::add(packet::Match::any(), DEFAULT_PRIORITY as u16, Vec::new())
    };
    let mut reader = Reader::new(names, false);
    for pair in pairs(head) {
        let u16_of = || bounded(pair.value, 16, pair.key).map(|number| number as u16);
        match pair.key {
            "table" | "table_id" => rule.table = bounded(pair.value, 8, pair.key)? as u8,
            "priority" => rule.priority = u16_of()?,
            "cookie" => rule.cookie = bounded(pair.value, 64, pair.key)? as u64,
            "idle_timeout" => rule.idle_timeout = u16_of()?,
            "hard_timeout" => rule.hard_timeout = u16_of()?,
            "importance" => rule.importance = u16_of()?,
            "send_flow_rem" => rule.flags.send_flow_rem = true,
            "check_overlap" => rule.flags.check_overlap = true,
            "reset_counts" => rule.flags.reset_counts = true,
            "no_packet_counts" => rule.flags.no_packet_counts = true,
            "no_byte_counts" => rule.flags.no_byte_counts = true,
            "out_port" => {
                rule.out_port = port(pair.value, names).ok_or_else(|| {
                    Error::new(format!("{} is not a valid OpenFlow port", pair.value))
                })?;
            }
            "out_group" => rule.out_group = bounded(pair.value, 32, pair.key)? as u32,
            key if STATISTICS.contains(&key) => {}
            _ => reader.pair(pair)?,
        }
    }
    rule.matching = reader.finish()?;
    rule.instructions = instructions(right, names)?.into();
    Ok(rule)
}
