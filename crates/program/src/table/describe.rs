//! Describes tables' lookups for people.

use super::writer::{BridgeWriter, TableWriter};
use crate::classifier::describe::{Description, Template, Work, fields};
use std::fmt::Write;

/// Bytes read for one rule of a list.
const ENTRY_BYTES: usize = 128;

impl BridgeWriter {
    /// Describes how `table` looks up the rules that it holds now.
    pub fn describe(&self, table: u8) -> Description {
        let mut description = match self.tables.get(&table).filter(|writer| writer.len() > 0) {
            None => Description {
                template: Template::Empty,
                rules: 0,
                masks: 0,
                typical: Work::default(),
                worst: Work::default(),
                bytes: 0,
                why: "no rules".to_owned(),
            },
            Some(writer @ TableWriter::Linear { rules, .. }) => {
                let all = rules.len() as f64;
                let work = |compares| Work {
                    accesses: compares + 1.0,
                    compares,
                    hashes: 0.0,
                };
                let reads = writer
                    .rules()
                    .iter()
                    .map(|rule| crate::classifier::tuple_space::mask_of(rule.matching()))
                    .collect::<std::collections::HashSet<_>>();
                Description {
                    template: Template::Linear,
                    rules: rules.len(),
                    masks: reads.len(),
                    typical: work((all + 1.0) / 2.0),
                    worst: work(all),
                    bytes: rules.len() * ENTRY_BYTES,
                    why: format!(
                        "few rules, compared in order; {}",
                        fields(reads.iter().map(|mask| &**mask))
                    ),
                }
            }
            Some(TableWriter::Many(policy)) => policy.describe(),
        };
        if let Some(soft) = self.soft.get(&table) {
            let beside = soft.describe();
            description.template = Template::Conjunctive;
            description.rules += beside.rules;
            description.masks += beside.masks;
            // At least one fulfilled condition is looked up again by its number.
            description.typical = description
                .typical
                .and(beside.typical)
                .and(description.typical);
            description.worst = description.worst.and(beside.worst).and(description.worst);
            description.bytes += beside.bytes;
            let _ = write!(description.why, "; {} parts of conditions", beside.rules);
        }
        description
    }
}
