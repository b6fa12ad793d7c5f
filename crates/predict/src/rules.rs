//! A file of rules, compiled as the daemon does.

use crate::Error;
use openflow::action::{Action, Instruction};
use openflow::error::Error as Refused;
use openflow::flow::{FlowMod, FlowModCommand};
use openflow::group::{self, GroupCommand, GroupDescription, GroupMod};
use openflow::header::Header;
use openflow::message::{FlowFormat, FlowModForm, Message};
use openflow::meter::{self, MeterCommand, MeterConfig, MeterMod};
use openflow::parse::{self, PortNames};
use openflow::{DecodeError, DecodeOptions, Version};
use pipeline::{Clock, Options, Pipeline};
use program::Program;
use program::table::Bridge;
use std::sync::Arc;

/// Time at which all rules are added: nothing expires.
const NOW: u64 = 1;
/// OpenFlow versions in which rules are sent to another process: the first can express everything,
/// but demands the prerequisites of actions in the match; the second does not.
const VERSIONS: [Version; 2] = [Version::V1_5, Version::V1_0];
/// How 1.0 expresses all matches, and the table.
const FORM: FlowModForm = FlowModForm {
    format: FlowFormat::Nicira,
    table_in_command: true,
};
/// Longest line of a file; longer ones are rejected.
const LINE_MAX: usize = 1 << 20;

/// Compiled rules.
pub struct Rules {
    /// The compiled program.
    pub program: Arc<Program>,
    /// The OpenFlow state.
    pub pipeline: Pipeline,
    /// The flow mods that were read, in order.
    pub flows: Vec<FlowMod>,
}

impl Rules {
    /// Reads the format of `ovs-ofctl add-flows`: one rule per line, comments after `#`, `add`
    /// optional. Errors name file and line.
    pub fn read(file: &str, text: &str, names: PortNames<'_>) -> Result<Rules, Error> {
        Rules::read_all((file, text), None, None, names)
    }

    /// Reads rules and the groups and meters that they use, in the formats of `ovs-ofctl
    /// add-groups` and `add-meter`; each file by name and text.
    pub fn read_all(
        (file, text): (&str, &str),
        groups: Option<(&str, &str)>,
        meters: Option<(&str, &str)>,
        names: PortNames<'_>,
    ) -> Result<Rules, Error> {
        let mut rules = Rules::empty();
        // A bucket may use a meter, and a rule a group.
        if let Some((file, text)) = meters {
            // `dump-meters` prints each band on its own line. Line numbers are preserved.
            let text = with_bands(text);
            each_line(file, &text, |line| {
                let meter = parse::meter(line).map_err(|error| error.to_string())?;
                rules.add_meter(&meter).map_err(|error| error.to_string())
            })?;
        }
        if let Some((file, text)) = groups {
            each_line(file, text, |line| {
                let group = parse::group(line, names).map_err(|error| error.to_string())?;
                rules.add_group(&group).map_err(|error| error.to_string())
            })?;
        }
        each_line(file, text, |line| {
            let flow = parse::flow(line, names).map_err(|error| error.to_string())?;
            rules.add(flow).map_err(|error| match error {
                Refused::BadOutGroup if groups.is_none() => {
                    format!("{error} (--groups takes a file of groups)")
                }
                Refused::InvalidMeter if meters.is_none() => {
                    format!("{error} (--meters takes a file of meters)")
                }
                error => error.to_string(),
            })
        })?;
        rules.publish();
        Ok(rules)
    }

    /// Compiles known rules with the groups and meters that they use. Rules that cannot be compiled
    /// are left out and counted.
    pub fn of(
        flows: impl IntoIterator<Item = FlowMod>,
        groups: &[GroupDescription],
        meters: &[MeterConfig],
    ) -> (Rules, usize) {
        let mut rules = Rules::empty();
        let mut refused = 0;
        for meter in meters {
            let command = MeterCommand::Add;
            let config = meter.clone();
            refused += usize::from(rules.add_meter(&MeterMod { command, config }).is_err());
        }
        for group in groups {
            refused += usize::from(rules.add_group(&adding(group)).is_err());
        }
        refused += flows
            .into_iter()
            .filter_map(|flow| rules.add(flow).err())
            .count();
        rules.publish();
        (rules, refused)
    }

    /// Returns the rules with their groups and meters as OpenFlow messages, for another process to
    /// compile. None if one has no equivalent message.
    pub fn to_messages(&self) -> Option<Vec<u8>> {
        let meters = self.pipeline.meter_configs(meter::ALL).ok()?;
        let meters = meters.into_iter().map(|config| {
            Message::MeterMod(MeterMod {
                command: MeterCommand::Add,
                config,
            })
        });
        let groups = self.pipeline.group_descriptions(group::ALL);
        let groups = groups.iter().map(|group| Message::GroupMod(adding(group)));
        let flows = self.flows.iter().map(|flow| Message::FlowMod {
            change: flow.clone(),
            form: FORM,
        });
        let mut bytes = Vec::new();
        for message in meters.chain(groups).chain(flows) {
            bytes.extend(encoded(&message)?);
        }
        Some(bytes)
    }

    /// Compiles the messages of [`Rules::to_messages`].
    pub fn of_messages(mut bytes: &[u8]) -> Result<Rules, Error> {
        let mut rules = Rules::empty();
        while !bytes.is_empty() {
            let wrong = |error: &dyn std::fmt::Display| Error::new(error.to_string());
            let length = openflow::header::frame_length(bytes).map_err(|error| wrong(&error))?;
            let (message, rest) = bytes
                .split_at_checked(length)
                .ok_or_else(|| Error::new("the last message is cut off"))?;
            match decoded(message).map_err(|error| wrong(&error))? {
                Message::FlowMod { change, .. } => rules.add(change),
                Message::GroupMod(change) => rules.add_group(&change),
                Message::MeterMod(change) => rules.add_meter(&change),
                _ => Ok(()),
            }
            .map_err(|error| wrong(&error))?;
            bytes = rest;
        }
        rules.publish();
        Ok(rules)
    }

    fn empty() -> Rules {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        Rules {
            pipeline: Pipeline::new(Arc::clone(&program), bridge, Options::default()),
            program,
            flows: Vec::new(),
        }
    }

    fn add(&mut self, flow: FlowMod) -> Result<(), Refused> {
        // 1.0 does not demand the prerequisites of actions in a match; otherwise all versions are
        // the same.
        let version = Version::V1_0;
        self.pipeline
            .flow_mod(&flow, version, Clock::from_ms(NOW))?;
        self.flows.push(flow);
        Ok(())
    }

    fn add_group(&mut self, change: &GroupMod) -> Result<(), Refused> {
        // Buckets may use the features of all versions.
        self.pipeline
            .group_mod(change, Version::V1_5, Clock::from_ms(NOW))?;
        Ok(())
    }

    fn add_meter(&mut self, change: &MeterMod) -> Result<(), Refused> {
        self.pipeline.meter_mod(change, Clock::from_ms(NOW))?;
        Ok(())
    }

    fn publish(&mut self) {
        self.pipeline.commit();
        self.program.domain.publish();
        while self.pipeline.housekeep(usize::MAX) > 0 {}
        // A switch does this in the background; the prediction is for the time after that.
        self.pipeline.shape_now();
    }

    /// Returns the tables that workers read.
    pub fn bridge(&self) -> &Arc<Bridge> {
        self.pipeline.tables()
    }
}

/// Returns the message that creates a group.
fn adding(group: &GroupDescription) -> GroupMod {
    GroupMod {
        command: GroupCommand::Add,
        kind: group.kind,
        group: group.group,
        command_bucket: group::BUCKET_ALL,
        buckets: group.buckets.clone(),
        selection: group.selection.clone(),
    }
}

/// Encodes a message in a version in which decoding it gives the same rule.
fn encoded(message: &Message) -> Option<Vec<u8>> {
    VERSIONS.into_iter().find_map(|version| {
        let bytes = openflow::encode(version, 0, message);
        let is_right = match (decoded(&bytes), message) {
            (Ok(Message::FlowMod { change: other, .. }), Message::FlowMod { change, .. }) => {
                // 1.5 has one action where 1.0 has several with the same meaning; 1.0 has no
                // instructions, and drops those that are not a list of actions.
                let same = version != Version::V1_0 || change.instructions == other.instructions;
                let rule = |flow: &FlowMod| (flow.table, flow.priority);
                same && rule(change) == rule(&other) && change.matching == other.matching
            }
            (other, _) => other.is_ok(),
        };
        is_right.then_some(bytes)
    })
}

/// Decodes a message in the version of its header.
fn decoded(bytes: &[u8]) -> Result<Message, DecodeError> {
    let options = DecodeOptions {
        version: Header::of(bytes).and_then(|header| Version::from_wire(header.version)),
        table_in_command: FORM.table_in_command,
    };
    openflow::decode(bytes, &options).map(|(_, message)| message)
}

/// Joins the bands of a meter to its own line, and leaves empty lines in their place.
fn with_bands(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut meter = 0;
    for line in text.lines() {
        match lines.get_mut(meter) {
            Some(meter) if line.starts_with("type=") => {
                meter.push(' ');
                meter.push_str(line);
                lines.push(String::new());
            }
            _ => {
                meter = lines.len();
                lines.push(line.to_owned());
            }
        }
    }
    lines.join("\n")
}

/// Calls `take` for each line of a file, without comments, commands and the heading that
/// `ovs-ofctl` prints. Errors name file and line.
fn each_line(
    file: &str,
    text: &str,
    mut read: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), Error> {
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() || is_heading(line) {
            continue;
        }
        let read = match line.len() > LINE_MAX {
            true => Err("line too long".to_owned()),
            false => added(line)
                .map_err(|error| error.to_string())
                .and_then(&mut read),
        };
        read.map_err(|error| Error::new(format!("{file}:{}: {error}", number + 1)))?;
    }
    Ok(())
}

/// Returns whether a line is the heading of `dump-flows` and the like: `NXST_FLOW reply
/// (xid=0x4):`.
fn is_heading(line: &str) -> bool {
    line.ends_with(':') && line.contains(" reply (") && line.contains("(xid=0x")
}

/// Returns a line without the command in front of it, which must be `add`.
fn added(line: &str) -> Result<&str, Error> {
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match first {
        "add" => Ok(rest.trim_start()),
        "delete" | "delete_strict" | "modify" | "modify_strict" => Err(Error::new(format!(
            "{first}: only rules to add can be predicted"
        ))),
        _ => Ok(line),
    }
}

/// Returns the tables in which a rule's packets continue.
pub(crate) fn next_tables(flow: &FlowMod) -> Vec<u8> {
    let mut tables = Vec::new();
    for instruction in &flow.instructions {
        match instruction {
            Instruction::GotoTable(table) => tables.push(*table),
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                let resubmits = actions.iter().filter_map(|action| match action {
                    Action::Resubmit { table, .. } => Some(table.unwrap_or(flow.table)),
                    Action::Ct(ct) => ct.table,
                    _ => None,
                });
                tables.extend(resubmits);
            }
            _ => {}
        }
    }
    tables
}

/// Returns whether a flow mod only adds a rule.
pub fn adds(flow: &FlowMod) -> bool {
    flow.command == FlowModCommand::Add
}
