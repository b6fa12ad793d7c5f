//! A file of rules, compiled as the daemon compiles them.

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

/// A moment for rules that have none: nothing expires while they are looked at.
const NOW: u64 = 1;
/// Versions in which rules go to another process: the first can say all that the others can, but
/// wants a match to promise what the actions need; the second takes rules without that.
const VERSIONS: [Version; 2] = [Version::V1_5, Version::V1_0];
/// How 1.0 says all that a match can hold, and the table.
const FORM: FlowModForm = FlowModForm {
    format: FlowFormat::Nicira,
    table_in_command: true,
};
/// Lines of a file longer than this are refused.
const LINE_MAX: usize = 1 << 20;

/// Rules, compiled.
pub struct Rules {
    /// The program.
    pub program: Arc<Program>,
    /// OpenFlow's side.
    pub pipeline: Pipeline,
    /// What was read, in order.
    pub flows: Vec<FlowMod>,
}

impl Rules {
    /// Reads what `ovs-ofctl add-flows` reads: a rule a line, `#` begins a comment, `add` may stand
    /// in front. Errors name file and line.
    pub fn read(file: &str, text: &str, names: PortNames<'_>) -> Result<Rules, Error> {
        Rules::read_all((file, text), None, None, names)
    }

    /// Reads rules and what they refer to, as `ovs-ofctl add-groups` and `add-meter` take it; each
    /// file by its name and text.
    pub fn read_all(
        (file, text): (&str, &str),
        groups: Option<(&str, &str)>,
        meters: Option<(&str, &str)>,
        names: PortNames<'_>,
    ) -> Result<Rules, Error> {
        let mut rules = Rules::empty();
        // A bucket may send packets through a meter, and a rule to a group.
        if let Some((file, text)) = meters {
            // `dump-meters` puts each band on a line of its own. Lines keep their numbers.
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

    /// Compiles rules that are known already, with the groups and meters that they use. Those that
    /// cannot be compiled are left out; their number comes back.
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

    /// The rules with their groups and meters as OpenFlow messages, for another process to compile.
    /// None where one has no form that other processes understand.
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

    /// Compiles what [`Rules::to_messages`] wrote.
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
        // In the words of 1.0 a rule may name what later versions want prerequisites for; the rest
        // is the same in all.
        let version = Version::V1_0;
        self.pipeline
            .flow_mod(&flow, version, Clock::from_ms(NOW))?;
        self.flows.push(flow);
        Ok(())
    }

    fn add_group(&mut self, change: &GroupMod) -> Result<(), Refused> {
        // Buckets may have all that any version has.
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
        // A switch does this in the background; what is predicted is how it runs when it has.
        self.pipeline.shape_now();
    }

    /// What workers read.
    pub fn bridge(&self) -> &Arc<Bridge> {
        self.pipeline.tables()
    }
}

/// The message that makes such a group.
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

/// A message as another process would take it, and take it for the same.
fn encoded(message: &Message) -> Option<Vec<u8>> {
    VERSIONS.into_iter().find_map(|version| {
        let bytes = openflow::encode(version, 0, message);
        let is_right = match (decoded(&bytes), message) {
            (Ok(Message::FlowMod { change: other, .. }), Message::FlowMod { change, .. }) => {
                // 1.5 has one word for what 1.0 has several, and means the same by it; 1.0 has no
                // instructions, and leaves out those that are no list of actions.
                let same = version != Version::V1_0 || change.instructions == other.instructions;
                let rule = |flow: &FlowMod| (flow.table, flow.priority);
                same && rule(change) == rule(&other) && change.matching == other.matching
            }
            (other, _) => other.is_ok(),
        };
        is_right.then_some(bytes)
    })
}

/// A message in the version that it says it has.
fn decoded(bytes: &[u8]) -> Result<Message, DecodeError> {
    let options = DecodeOptions {
        version: Header::of(bytes).and_then(|header| Version::from_wire(header.version)),
        table_in_command: FORM.table_in_command,
    };
    openflow::decode(bytes, &options).map(|(_, message)| message)
}

/// Text in which the bands of a meter stand on its own line, and empty lines where they stood.
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

/// Reads a file line by line, without comments and commands and without what `ovs-ofctl` prints in
/// front of a list. Errors name file and line.
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

/// Whether this is what `dump-flows` and the like begin with: `NXST_FLOW reply (xid=0x4):`.
fn is_heading(line: &str) -> bool {
    line.ends_with(':') && line.contains(" reply (") && line.contains("(xid=0x")
}

/// A line without the command in front of it, which must be `add`.
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

/// The tables in which a rule's packets go on.
pub(crate) fn next_tables(flow: &FlowMod) -> Vec<u8> {
    let mut tables = Vec::new();
    for instruction in &flow.instructions {
        match instruction {
            Instruction::GotoTable(table) => tables.push(*table),
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                let resubmits = actions.iter().filter_map(|action| match action {
                    Action::Resubmit { table, .. } => Some(table.unwrap_or(flow.table)),
                    _ => None,
                });
                tables.extend(resubmits);
            }
            _ => {}
        }
    }
    tables
}

/// Whether a flow mod only adds a rule.
pub fn adds(flow: &FlowMod) -> bool {
    flow.command == FlowModCommand::Add
}
