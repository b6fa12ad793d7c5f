//! Generated actions that choose a link or port, parts of conjunctions, and matches of the fields
//! that these actions write.

use super::{MACS, Random};
use crate::common;
use openflow::action::{
    Action, Bundle, HashFields, Instruction, Multipath, MultipathAlgorithm, Sample, Subfield,
};
use openflow::flow::{FlowMod, FlowModCommand};
use openflow::port;
use openflow::tlv::{TlvCommand, TlvMapping, TlvTableMod};
use packet::{Field, Match, Value};
use std::collections::HashMap;

fn fields(random: &mut Random) -> HashFields {
    random.pick(&[
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::NwSrc,
        HashFields::NwDst,
        HashFields::SymmetricL3,
    ])
}

fn low_bits(field: Field, bits: u16) -> Subfield {
    Subfield {
        field,
        start: 0,
        bits,
    }
}

/// The tunnel options of the map, with their lengths. Option 1 extends over the place of option 2.
pub const OPTIONS: [(usize, usize); 3] = [(0, 4), (1, 124), (40, 124)];

/// Returns the map for which rules are generated.
pub fn options() -> TlvTableMod {
    let mapping = |(field, length): (usize, usize)| TlvMapping {
        class: 0x0102,
        kind: field as u8,
        length: length as u8,
        field: field as u16,
    };
    TlvTableMod {
        command: TlvCommand::Add,
        mappings: OPTIONS.map(mapping).to_vec(),
    }
}

/// Generates an action that writes, moves or deletes a tunnel option.
fn option_action(random: &mut Random) -> Action {
    let (option, length) = random.pick(&OPTIONS);
    let field = Field::of_tunnel_option(option);
    let part = Subfield {
        field,
        start: random.below(2 * length as u64 - 3) as u16 * 4,
        bits: 16,
    };
    match random.below(7) {
        6 => {
            // Also longer than any number, and onto the same option.
            let bits = 1 + random.below(500) as u16;
            let mut part = || Subfield {
                field: Field::of_tunnel_option(random.pick(&[1, 40])),
                start: random.below(993 - u64::from(bits)) as u16,
                bits,
            };
            Action::Move {
                src: part(),
                dst: part(),
            }
        }
        0 => Action::DeleteField(field),
        1 => Action::Load {
            dst: part,
            value: random.below(4),
        },
        2 => Action::Move {
            src: part,
            dst: low_bits(Field::Reg0, 16),
        },
        3 => Action::Move {
            src: low_bits(Field::Reg0, 16),
            dst: part,
        },
        _ => {
            let bytes = field.def().bytes;
            let (mut value, mut mask) = (Value::zero(bytes), Value::zero(bytes));
            let whole = random.one_in(2);
            for index in bytes - length..bytes {
                mask[index] = if whole { 0xff } else { random.next() as u8 };
                value[index] = random.below(3) as u8 & mask[index];
            }
            // As decoded from a message: the mask of a whole field.
            let mask = if whole { field.def().place() } else { mask };
            Action::SetField { field, value, mask }
        }
    }
}

pub fn action(random: &mut Random) -> Action {
    if random.one_in(3) {
        return option_action(random);
    }
    match random.below(5) {
        0 | 1 => Action::Multipath(Box::new(Multipath {
            fields: fields(random),
            basis: random.below(3) as u16,
            algorithm: random.pick(&[
                MultipathAlgorithm::ModuloN,
                MultipathAlgorithm::HashThreshold,
                MultipathAlgorithm::Hrw,
                MultipathAlgorithm::IterHash,
            ]),
            max_link: random.pick(&[0, 1, 2, 3, 100]),
            arg: random.below(8) as u32,
            dst: low_bits(random.pick(&[Field::Reg0, Field::Reg1, Field::Ipv4Dst]), 16),
        })),
        2 | 3 => {
            let known = [1, 2, 3, 4, port::IN_PORT, port::LOCAL, port::ANY];
            Action::Bundle(Box::new(Bundle {
                fields: fields(random),
                basis: random.below(3) as u16,
                active_backup: random.one_in(2),
                members: (0..random.below(4)).map(|_| random.pick(&known)).collect(),
                dst: random
                    .one_in(2)
                    .then(|| low_bits(random.pick(&[Field::Reg0, Field::Reg1]), 16)),
            }))
        }
        _ if random.one_in(3) => Action::Sample(Sample {
            probability: 65535,
            collector_set: 1,
            domain: 1,
            point: 1,
            port: port::ANY,
            direction: 0,
        }),
        _ => Action::CheckPktLarger {
            max_len: random.pick(&[60, 100, 120]),
            dst: low_bits(random.pick(&[Field::Reg0, Field::Reg1]), 1),
        },
    }
}

/// The priority of all parts of conjunctions, and of no other rules.
pub const SHARED: u16 = 100;

/// Generates a flow mod that adds or deletes a part of a conjunction.
pub fn part(random: &mut Random, table: u8, known: &mut HashMap<(u8, u16), Match>) -> FlowMod {
    let index = random.below(10);
    let (field, value) = match index {
        0..=3 => (Field::EthSrc, number(MACS[index as usize])),
        4..=7 => (Field::EthDst, number(MACS[index as usize - 4])),
        8 => (Field::InPort, 1),
        _ => (Field::EthType, 0x0800),
    };
    let mut matching = Match::any();
    matching.set_exact(field, value);
    let command = if random.one_in(4) {
        FlowModCommand::DeleteStrict
    } else {
        FlowModCommand::Add
    };
    known.insert((table, SHARED + index as u16), matching.clone());
    let mut change = common::flow(command, matching, SHARED);
    change.table = table;
    change.instructions = conjunctions(random).into();
    change
}

fn number(address: [u8; 6]) -> u128 {
    address
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// Generates parts of one conjunction or two, with few clauses.
pub fn conjunctions(random: &mut Random) -> Vec<Instruction> {
    let clauses = random.pick(&[2, 2, 2, 3]);
    let some = (0..random.below(2) + 1).map(|_| Action::Conjunction {
        id: random.pick(&[1, 1, 1, 2]),
        clause: random.below(clauses) as u8,
        clauses: clauses as u8,
    });
    vec![Instruction::ApplyActions(some.collect())]
}

/// Sometimes adds a `conj_id`, a tunnel option or the action set's output to a match.
pub fn matching(random: &mut Random, all: &mut Match) {
    if random.one_in(8) {
        // Few other fields, so that it is matched.
        *all = Match::any();
        all.set_exact(Field::ConjId, random.pick(&[1, 1, 1, 2]));
    }
    if random.one_in(10) {
        let (option, _) = random.pick(&OPTIONS);
        match random.below(3) {
            0 => all.set_option(option, &[], None),
            1 => all.set_whole_option(option, &[random.below(3) as u8]),
            _ => all.set_option(option, &[random.below(2) as u8], Some(&[1])),
        };
    }
    if random.one_in(20) {
        let ports = [1_u32, 2, 3, 0xffff_fff7];
        all.set_exact(Field::ActsetOutput, random.pick(&ports).into());
    }
}
