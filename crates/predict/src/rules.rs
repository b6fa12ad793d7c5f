//! A file of rules, compiled as the daemon compiles them.

use crate::Error;
use openflow::Version;
use openflow::action::{Action, Instruction};
use openflow::flow::{FlowMod, FlowModCommand};
use openflow::parse::{self, PortNames};
use pipeline::{Clock, Options, Pipeline};
use program::Program;
use program::table::Bridge;
use std::sync::Arc;

/// A moment for rules that have none: nothing expires while they are looked at.
const NOW: u64 = 1;
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
    /// Reads what `ovs-ofctl add-flows` reads: a rule a line, `#` begins a comment, `add` may stand in front. Errors name file and line.
    pub fn read(file: &str, text: &str, names: PortNames<'_>) -> Result<Rules, Error> {
        let mut rules = Rules::empty();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let place = |error: &dyn std::fmt::Display| {
                Error::new(format!("{file}:{}: {error}", number + 1))
            };
            if line.len() > LINE_MAX {
                return Err(place(&"line too long"));
            }
            let flow = parse::flow(added(line).map_err(|error| place(&error))?, names)
                .map_err(|error| place(&error))?;
            rules.add(flow).map_err(|error| place(&error))?;
        }
        rules.publish();
        Ok(rules)
    }

    /// Compiles rules that are known already. Those that cannot be compiled are left out; their number comes back.
    pub fn of(flows: impl IntoIterator<Item = FlowMod>) -> (Rules, usize) {
        let mut rules = Rules::empty();
        let refused = flows
            .into_iter()
            .filter_map(|flow| rules.add(flow).err())
            .count();
        rules.publish();
        (rules, refused)
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

    fn add(&mut self, flow: FlowMod) -> Result<(), openflow::error::Error> {
        // In the words of 1.0 a rule may name what later versions want prerequisites for; the rest is the same in all.
        let version = Version::V1_0;
        self.pipeline
            .flow_mod(&flow, version, Clock::from_ms(NOW))?;
        self.flows.push(flow);
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
