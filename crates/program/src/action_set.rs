//! The action set (OpenFlow 1.3.5 section 5.10): at most one action of each kind, executed in a fixed order at the end of the walk.

use crate::ops::Op;
use std::mem::discriminant;

/// Steps that wait for the end of the walk.
#[derive(Clone, Default, Debug)]
pub(crate) struct ActionSet {
    ops: Vec<Op>,
}

/// Where a step stands in the order of execution: pop, push VLAN, decrement TTL, set fields, queue, output.
fn rank(op: &Op) -> u8 {
    match op {
        Op::PopVlan => 1,
        Op::PushVlan(_) => 4,
        Op::DecTtl(_) => 6,
        Op::SetField { .. } | Op::Move { .. } | Op::SetVlanVid { .. } | Op::SetVlanPcp { .. } => 7,
        Op::SetQueue(_) => 8,
        _ => 10,
    }
}

/// Whether a new step takes the place of an old one.
fn same_kind(old: &Op, new: &Op) -> bool {
    match (old, new) {
        (Op::SetField { field: a, .. }, Op::SetField { field: b, .. }) => a == b,
        // `move` and `load` of parts of a field do not replace each other: Open vSwitch keeps them all, in order.
        (Op::Move { .. }, Op::Move { .. }) => false,
        _ if rank(old) == 10 => rank(new) == 10,
        _ => discriminant(old) == discriminant(new),
    }
}

impl ActionSet {
    pub fn write(&mut self, ops: &[Op]) {
        for op in ops {
            self.ops.retain(|old| !same_kind(old, op));
            let at = self.ops.partition_point(|old| rank(old) <= rank(op));
            self.ops.insert(at, op.clone());
        }
    }

    pub fn clear(&mut self) {
        self.ops.clear();
    }

    /// The steps to run: none when no output is among them, for then the packet is dropped and nothing it carries matters.
    pub fn take(&mut self) -> Option<Box<[Op]>> {
        let ops = std::mem::take(&mut self.ops);
        ops.last()
            .is_some_and(|op| rank(op) == 10)
            .then(|| ops.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_kind_in_the_order_of_the_specification() {
        let mut set = ActionSet::default();
        set.write(&[Op::Output(1), Op::PushVlan(0x8100)]);
        set.write(&[Op::PopVlan, Op::Output(2)]);
        let ops = set.take().unwrap();
        assert_eq!(&*ops, &[Op::PopVlan, Op::PushVlan(0x8100), Op::Output(2)]);
    }

    #[test]
    fn without_an_output_nothing_runs() {
        let mut set = ActionSet::default();
        set.write(&[Op::PopVlan]);
        assert!(set.take().is_none());
    }
}
