//! Counts (does not measure) what a lookup costs in memory accesses.
//!
//! For one key, each template reports how many rules it compares, how many hash tables it tries,
//! and which cache lines of lookup and rules it reads. `sluice predict` shows these figures for
//! each table. The counting code must follow the lookups of [`super`] step by step.

use super::{Classifier, Classify};
use crate::epoch::Epoch;
use crate::rule::Rule;
use packet::FlowKey;
use std::collections::BTreeSet;

/// Bytes in a cache line.
const LINE: usize = 64;

/// The work of one lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effort {
    /// Rules compared one after the other.
    pub compares: u32,
    /// Hash tables tried, and inner nodes of trees and tries.
    pub probes: u32,
    /// Different cache lines read of lookup and rules, without those of the key, counters and
    /// steps.
    pub lines: u32,
}

/// An effort being counted.
#[derive(Default)]
pub(crate) struct Count {
    pub compares: u32,
    pub probes: u32,
    lines: BTreeSet<usize>,
}

impl Count {
    /// Records that a value is read.
    pub fn reads<T: ?Sized>(&mut self, value: &T) {
        let first = std::ptr::from_ref(value).cast::<u8>() as usize;
        let bytes = size_of_val(value).max(1);
        self.lines.extend(first / LINE..=(first + bytes - 1) / LINE);
    }

    /// Returns how many different cache lines have been read.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    pub fn reads_rule(&mut self, rule: &Rule) {
        self.reads(&rule.added);
        self.reads(&rule.spec.priority);
    }
}

impl Effort {
    /// Returns the work of looking `key` up.
    pub(crate) fn of(classifier: Option<&Classifier>, key: &FlowKey, epoch: Epoch) -> Effort {
        let mut count = Count::default();
        if let Some(classifier) = classifier {
            classifier.count_effort(key, epoch, &mut count);
        }
        Effort {
            compares: count.compares,
            probes: count.probes,
            lines: count.lines() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;
    use crate::actions::{Op, OpList};
    use crate::classifier::linear::LINEAR_MAX;
    use crate::rule::RuleSpec;
    use crate::table::{Bridge, BridgeWriter};
    use packet::key::at;
    use packet::{Field, Match};
    use std::sync::Arc;

    fn table(rules: impl Iterator<Item = (Match, u32)>) -> (Arc<Program>, BridgeWriter) {
        let program = Arc::new(Program::new());
        let mut writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
        for (matching, priority) in rules {
            let spec = RuleSpec {
                matching,
                priority,
                ops: Arc::new(OpList::new(vec![Op::Output(2)])),
                counter: program.counters.allocate().unwrap(),
                cookie: 0,
            };
            writer.insert(0, spec);
        }
        writer.commit();
        program.domain.publish();
        (program, writer)
    }

    fn port(number: u128) -> Match {
        let mut matching = Match::any();
        matching.set_exact(Field::InPort, number);
        matching
    }

    fn effort(program: &Program, writer: &BridgeWriter, port: u32) -> Effort {
        let mut key = FlowKey::ZERO;
        key.set_u32(at::IN_PORT, port);
        let mut reader = program.domain.reader().unwrap();
        writer.bridge().effort(0, &key, &reader.begin())
    }

    #[test]
    fn a_list_is_compared_up_to_the_rule_that_matches() {
        let (program, writer) = table((1..=10).map(|number| (port(number), 20 - number as u32)));
        for (number, compares) in [(1, 1), (7, 7), (10, 10), (99, 10)] {
            assert_eq!(effort(&program, &writer, number).compares, compares);
        }
        assert_eq!(effort(&program, &writer, 1).probes, 0);
        let (first, last) = (effort(&program, &writer, 1), effort(&program, &writer, 10));
        assert!(first.lines < last.lines && last.lines >= 10, "{last:?}");
    }

    #[test]
    fn one_mask_takes_one_probe_whatever_the_number_of_rules() {
        let many = LINEAR_MAX as u128 * 40;
        let (program, writer) = table((1..=many).map(|number| (port(number), 5)));
        for number in [1, 99, many as u32, many as u32 + 1] {
            let effort = effort(&program, &writer, number);
            assert_eq!((effort.compares, effort.probes), (0, 1));
            assert!((2..16).contains(&effort.lines), "{effort:?}");
        }
    }

    #[test]
    fn a_large_tuple_is_not_probed_by_a_packet_that_differs_from_all_its_rules() {
        let (program, writer) = table((1..=5000).map(|number| (port(number), 5)));
        // 8192 sets a bit that no rule has.
        for (number, probes) in [(1, 1), (4999, 1), (8191, 1), (8192, 0), (9999, 0)] {
            assert_eq!(effort(&program, &writer, number).probes, probes);
        }
    }

    #[test]
    fn a_tuple_of_one_match_is_compared_first() {
        let both = |number: u128| {
            let mut matching = port(1);
            matching.set_exact(Field::EthType, number);
            matching
        };
        let many = (1..=30).map(|priority| (port(7), priority));
        let (program, writer) = table(many.chain([(both(0x0800), 1000)]));
        assert_eq!(effort(&program, &writer, 7).probes, 1);
        assert_eq!(effort(&program, &writer, 8).probes, 0);
    }

    #[test]
    fn a_packet_that_is_told_by_value_asks_no_tuple() {
        let other = |number: u128| {
            let mut matching = Match::any();
            matching.set_exact(Field::EthType, number);
            matching
        };
        let many = (1..=100).map(|number| (port(number), 5));
        let others = (1..=2).map(|number| (other(number), 3));
        let (program, mut writer) = table(many.chain(others));
        let before = effort(&program, &writer, 7);
        writer.shape_now();
        let summaries = effort(&program, &writer, 7);
        assert_eq!((summaries.compares, summaries.probes), (0, 1));
        assert!(summaries.lines < before.lines, "{summaries:?} {before:?}");
        // A key that has no summary is looked up in both tuples.
        assert_eq!(effort(&program, &writer, 101).probes, 3);
    }
}
