//! Compilation of conjunctions, tunnel options and hash fields.

use super::bits;
use openflow::action::{self, Action, Instruction, MultipathAlgorithm};
use packet::edit::CompiledSet;
use packet::key::at;
use program::actions::multipath::{Choice, HashFields};
use program::actions::{Bundle, Clause, Multipath, Op};

/// Returns the only op of a rule with `conjunction` actions; None for other rules.
pub(super) fn conjunctions(instructions: &[Instruction]) -> Option<Op> {
    let [Instruction::ApplyActions(actions)] = instructions else {
        return None;
    };
    let clauses: Vec<Clause> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Conjunction {
                id,
                clause,
                clauses,
            } => Some(Clause {
                id: *id,
                index: *clause,
                of: *clauses,
            }),
            _ => None,
        })
        .collect();
    (!clauses.is_empty()).then(|| Op::Conjunction(clauses.into()))
}

/// Returns the op that records that a packet has, or does not have, a tunnel option.
pub(super) fn option_presence(option: usize, present: bool) -> Op {
    let bit = (1_u64 << option).to_be_bytes();
    Op::Set(CompiledSet::Metadata {
        word: (at::TUN_METADATA_PRESENT / 8) as u8,
        value: if present { u64::from_ne_bytes(bit) } else { 0 },
        mask: u64::from_ne_bytes(bit),
    })
}

/// Returns the program's name of the fields that an action hashes.
pub(crate) fn fields(fields: action::HashFields) -> HashFields {
    match fields {
        action::HashFields::EthSrc => HashFields::EthSrc,
        action::HashFields::SymmetricL4 => HashFields::SymmetricL4,
        action::HashFields::SymmetricL3L4 => HashFields::SymmetricL3L4,
        action::HashFields::SymmetricL3L4Udp => HashFields::SymmetricL3L4Udp,
        action::HashFields::NwSrc => HashFields::NwSrc,
        action::HashFields::NwDst => HashFields::NwDst,
        action::HashFields::SymmetricL3 => HashFields::SymmetricL3,
    }
}

pub(super) fn multipath(multipath: &action::Multipath) -> Op {
    let choice = match multipath.algorithm {
        MultipathAlgorithm::ModuloN => Choice::Modulo,
        MultipathAlgorithm::HashThreshold => Choice::Threshold,
        MultipathAlgorithm::Hrw => Choice::HighestWeight,
        MultipathAlgorithm::IterHash => Choice::Iterate(multipath.arg),
    };
    Op::Multipath(Box::new(Multipath {
        fields: fields(multipath.fields),
        basis: multipath.basis,
        choice,
        ways: u32::from(multipath.max_link) + 1,
        dst: bits(&multipath.dst),
    }))
}

pub(super) fn bundle(bundle: &action::Bundle) -> Op {
    Op::Bundle(Box::new(Bundle {
        fields: fields(bundle.fields),
        basis: (!bundle.active_backup).then_some(bundle.basis),
        members: bundle.members.as_slice().into(),
        dst: bundle.dst.as_ref().map(bits),
    }))
}
