//! Actions that choose a way, parts of conditions, and matches of what they write.

use super::Random;
use openflow::action::{
    Action, Bundle, HashFields, Instruction, Multipath, MultipathAlgorithm, Sample, Subfield,
};
use openflow::port;
use packet::{Field, Match};

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

pub fn action(random: &mut Random) -> Action {
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

/// Parts of one condition or two, of which few are needed.
pub fn conjunctions(random: &mut Random) -> Vec<Instruction> {
    let clauses = random.pick(&[2, 2, 2, 3]);
    let some = (0..random.below(2) + 1).map(|_| Action::Conjunction {
        id: random.pick(&[1, 1, 1, 2]),
        clause: random.below(clauses) as u8,
        clauses: clauses as u8,
    });
    vec![Instruction::ApplyActions(some.collect())]
}

/// Sometimes a condition, or where the action set outputs.
pub fn matching(random: &mut Random, all: &mut Match) {
    if random.one_in(8) {
        // Little beside the condition, so that it is met.
        *all = Match::any();
        all.set_exact(Field::ConjId, random.pick(&[1, 1, 1, 2]));
    }
    if random.one_in(20) {
        let ports = [1_u32, 2, 3, 0xffff_fff7];
        all.set_exact(Field::ActsetOutput, random.pick(&ports).into());
    }
}
