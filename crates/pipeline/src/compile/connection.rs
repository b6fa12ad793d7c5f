//! Compiles connection tracking (`ct`, `ct_clear`).

use super::{bits, load};
use conntrack::{Direction, Helper, Nat, Range};
use openflow::action::Action;
use openflow::conntrack::{self as model, Ct, CtZone, NatDirection};
use program::actions::Op;
use program::actions::connection::{Track, Write, Zone};

/// Ports of the helpers that `alg` names.
const FTP: u16 = 21;
const TFTP: u16 = 69;

/// Compiles a `ct` action.
pub(super) fn track(ct: &Ct) -> Op {
    let writes = ct.actions.iter().filter_map(|action| match action {
        Action::SetField { field, value, mask } => Some(Write::Constant {
            field: *field,
            value: value.clone(),
            mask: mask.clone(),
        }),
        Action::Load { dst, value } => match load(dst, *value) {
            Op::SetField { field, value, mask } => Some(Write::Constant { field, value, mask }),
            _ => None,
        },
        Action::Move { src, dst } => Some(Write::Copy {
            src: bits(src),
            dst: bits(dst),
        }),
        _ => None,
    });
    Op::Track(Box::new(Track {
        commit: ct.commit,
        force: ct.force,
        zone: match &ct.zone {
            CtZone::Number(zone) => Zone::Number(*zone),
            CtZone::Field(part) => Zone::In(bits(part)),
        },
        table: ct.table,
        writes: writes.collect(),
        nat: nat(ct),
        helper: helper(ct),
    }))
}

/// Returns the translation that a `ct` asks for.
pub(crate) fn nat(ct: &Ct) -> Option<Nat> {
    ct.actions.iter().find_map(|action| match action {
        Action::Nat(nat) => Some(Nat {
            direction: nat.direction.map(|direction| match direction {
                NatDirection::Source => Direction::Source,
                NatDirection::Destination => Direction::Destination,
            }),
            range: nat.range.as_ref().map(range),
            persistent: nat.persistent,
            hash: nat.hash,
            random: nat.random,
        }),
        _ => None,
    })
}

fn range(range: &model::NatRange) -> Range {
    let highest = match range.max_port {
        0 => range.min_port,
        port => port,
    };
    Range {
        min: range.min,
        max: range.max.unwrap_or(range.min),
        ports: (range.min_port > 0).then_some((range.min_port, highest)),
    }
}

/// Returns the helper of a `ct`.
pub(crate) fn helper(ct: &Ct) -> Option<Helper> {
    match ct.alg {
        FTP => Some(Helper::Ftp),
        TFTP => Some(Helper::Tftp),
        _ => None,
    }
}
