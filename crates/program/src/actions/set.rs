//! The action set (OpenFlow 1.3.5 section 5.10): at most one action of each kind, executed in a
//! fixed order at the end of the walk.

use crate::actions::{Op, PortNo, reserved};
use std::mem::discriminant;

/// Steps collected for the end of the walk.
#[derive(Clone, Default, Debug)]
pub(crate) struct ActionSet {
    ops: Vec<Op>,
}

/// Returns a step's rank in the order of execution: copy TTL in, pop (outermost first), push, copy
/// TTL out, decrement TTL, set fields, queue, output.
fn rank(op: &Op) -> u8 {
    match op {
        Op::CopyTtlIn => 0,
        Op::PopVlan => 1,
        Op::PopPbb => 2,
        Op::PopMpls(_) => 3,
        Op::PushMpls(_) => 4,
        Op::PushPbb => 5,
        Op::PushVlan(_) => 6,
        Op::CopyTtlOut => 7,
        Op::DecTtl(_) => 8,
        Op::DecMplsTtl => 9,
        Op::SetField { .. }
        | Op::Set(_)
        | Op::Move { .. }
        | Op::SetVlanVid { .. }
        | Op::SetVlanPcp { .. } => CHANGES,
        Op::SetQueue(_) => 11,
        Op::Track(_) => FINALS,
        Op::Untrack => FINALS + 1,
        Op::Resubmit { .. } | Op::ResubmitTracked { .. } => FINALS + 2,
        Op::Group(_) => FINALS + 4,
        _ => FINALS + 3,
    }
}

/// Most steps in a set. Sets and moves accumulate where rules resubmit to each other.
const MAX_STEPS: usize = 1024;

/// Rank of sets and moves. All of them run, in the order in which they were written, as in Open
/// vSwitch, since one may read what another wrote.
const CHANGES: u8 = 10;
/// Lowest rank of the final steps: ct, ct_clear, resubmit, output, group. Only the one of the
/// highest rank runs (1.3.5 section 5.10; ovs-actions(7), "Action Sets"), and of several outputs
/// only the one written last.
const FINALS: u8 = 20;

/// Returns whether a new step replaces an old one.
fn same_kind(old: &Op, new: &Op) -> bool {
    match rank(old) {
        CHANGES => false,
        FINALS.. => rank(old) == rank(new),
        _ => discriminant(old) == discriminant(new),
    }
}

impl ActionSet {
    /// Returns the port that the set sends to as it is now, encoded like the field `actset_output`.
    /// A set with a group sends to none, since the group runs instead of the output.
    pub fn output(&self) -> PortNo {
        match self.ops.last() {
            Some(Op::Output(port)) => *port,
            Some(Op::InPort) => 0xffff_fff8,
            Some(Op::Resubmit { .. } | Op::ResubmitTracked { .. }) => 0xffff_fff9, // OFPP_TABLE
            Some(Op::Normal) => 0xffff_fffa,
            Some(Op::All { flood: true }) => reserved::FLOOD,
            Some(Op::All { flood: false }) => reserved::ALL,
            Some(Op::Controller(_)) => reserved::CONTROLLER,
            _ => reserved::UNSET,
        }
    }

    /// Merges steps in; returns false when the set is full.
    pub fn write(&mut self, ops: &[Op]) -> bool {
        for op in ops {
            self.ops.retain(|old| !same_kind(old, op));
            if self.ops.len() == MAX_STEPS {
                return false;
            }
            let at = self.ops.partition_point(|old| rank(old) <= rank(op));
            self.ops.insert(at, op.clone());
        }
        true
    }

    /// Returns the steps so far.
    pub fn steps(&self) -> &[Op] {
        &self.ops
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub fn clear(&mut self) {
        self.ops.clear();
    }

    /// Returns the steps to run, and empties the set. None when no output is among them: the packet
    /// is then dropped, and its edits do not matter.
    pub fn take(&mut self) -> Option<Box<[Op]>> {
        let mut ops = std::mem::take(&mut self.ops);
        let last = ops.pop().filter(|op| rank(op) >= FINALS)?;
        ops.truncate(ops.partition_point(|op| rank(op) < FINALS));
        ops.push(last);
        Some(ops.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_kind_in_the_order_of_the_specification() {
        let mut set = ActionSet::default();
        assert!(set.write(&[Op::Output(1), Op::PushVlan(0x8100)]));
        assert!(set.write(&[Op::PopVlan, Op::Output(2)]));
        let ops = set.take().unwrap();
        assert_eq!(&*ops, &[Op::PopVlan, Op::PushVlan(0x8100), Op::Output(2)]);
    }

    #[test]
    fn a_group_goes_before_outputs_and_those_before_resubmits() {
        let group = Op::Group(crate::group::GroupRef::unbound(3));
        let resubmit = Op::Resubmit {
            in_port: None,
            table: Some(2),
        };
        let mut set = ActionSet::default();
        assert!(set.write(&[group.clone(), Op::PopVlan, Op::Output(1), resubmit.clone()]));
        assert_eq!(set.output(), reserved::UNSET, "the group runs instead");
        assert!(set.write(&[Op::Output(2)]));
        assert_eq!(
            set.output(),
            reserved::UNSET,
            "also of an output that comes later"
        );
        assert_eq!(&*set.take().unwrap(), &[Op::PopVlan, group]);
        assert!(set.write(&[resubmit.clone(), Op::Output(1), Op::Output(2)]));
        assert_eq!(&*set.take().unwrap(), &[Op::Output(2)]);
        assert!(set.write(std::slice::from_ref(&resubmit)));
        assert_eq!(&*set.take().unwrap(), &[resubmit]);
    }

    #[test]
    fn without_an_output_nothing_runs() {
        let mut set = ActionSet::default();
        assert!(set.write(&[Op::PopVlan]));
        assert!(set.take().is_none());
    }
}
