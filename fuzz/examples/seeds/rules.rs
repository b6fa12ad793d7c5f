//! Small switches: rules, changes of them, and frames, in the byte format of the target `walk`,
//! whose functions of the same names read them.

use crate::{Corpus, frames};

/// Commands being built.
struct Commands(Vec<u8>);

const OUTPUT: u8 = 0;
const IN_PORT: u8 = 2;
const ALL: u8 = 3;
const NORMAL: u8 = 4;
const OUTPUT_REG: u8 = 5;
const TRUNCATED: u8 = 6;
const ENQUEUE: u8 = 7;
const CONTROLLER: u8 = 8;
const SET_FIELD: u8 = 9;
const MOVE: u8 = 11;
const PUSH_VLAN: u8 = 12;
const POP_VLAN: u8 = 14;
const SET_VID: u8 = 15;
const DEC_TTL: u8 = 17;
const SET_QUEUE: u8 = 18;
const RESUBMIT: u8 = 19;
const STACK_PUSH: u8 = 21;
const STACK_POP: u8 = 22;
const CLONE: u8 = 23;
const EXIT: u8 = 24;

fn field(field: packet::Field) -> u8 {
    field as u8
}

impl Commands {
    fn new(vlan_limit: u8) -> Commands {
        Commands(vec![vlan_limit - 1])
    }

    fn put(mut self, bytes: &[u8]) -> Commands {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds `matching` and `ops` in the target's format, each after its count; `tail` is what
    /// follows the ops.
    fn insert(self, table: u8, priority: u8, matching: &[u8], ops: &[u8], tail: &[u8]) -> Commands {
        self.put(&[0, table, priority])
            .put(matching)
            .put(ops)
            .put(tail)
    }

    fn publish(self) -> Commands {
        self.put(&[8])
    }

    fn burst(self, in_port: u8, names: &[&str]) -> Commands {
        let known = frames::sound();
        let mut commands = self.put(&[13, in_port, names.len() as u8 - 1]);
        for name in names {
            let (_, bytes) = known
                .iter()
                .find(|(known, _)| known == name)
                .expect("a known frame");
            commands = commands.put(&[bytes.len() as u8, 20]).put(bytes);
        }
        commands
    }
}

/// Matches everything.
const ANY: &[u8] = &[0];
/// Nothing after the ops.
const END: &[u8] = &[0];

fn many_masks() -> Commands {
    let mut commands = Commands::new(2);
    for number in 0..15_u8 {
        // Prefixes of the destination, and exact ports every third time.
        let matching: Vec<u8> = if number % 3 == 0 {
            vec![1, 9, 0, number]
        } else {
            vec![1, 0x25, number * 2, 10, 0, 0, number & 3]
        };
        commands = commands.insert(0, number, &matching, &[1, OUTPUT, number & 7], END);
    }
    commands = commands
        .publish()
        .burst(1, &["udp", "tcp", "arp", "ipv6-udp"]);
    for number in 0..10_u8 {
        commands = commands.put(&[7, number]);
    }
    commands
        .publish()
        .put(&[10, 255])
        .publish()
        .put(&[10, 255])
        .burst(1, &["udp", "vlan", "icmp"])
}

pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    use packet::Field::*;
    let seeds = [
        (
            "learning",
            Commands::new(1)
                .insert(0, 0, ANY, &[1, NORMAL], END)
                .publish()
                .burst(1, &["udp", "arp", "vlan", "solicitation"]),
        ),
        (
            "misses",
            Commands::new(1)
                .put(&[11, 0, 2, 11, 1, 1])
                .publish()
                .burst(2, &["tcp", "ethernet", "llc"]),
        ),
        ("many-masks", many_masks()),
        (
            "pipeline",
            Commands::new(2)
                .insert(
                    0,
                    1,
                    &[1, 2, 8, 0],
                    &[2, SET_FIELD, field(Reg0), 0, 0, 0, 0, 3, DEC_TTL, 1],
                    &[4],
                )
                .insert(
                    1,
                    1,
                    &[1, 14, 0, 0, 0, 3],
                    &[
                        2,
                        STACK_PUSH,
                        field(Reg0),
                        0,
                        31,
                        STACK_POP,
                        field(Reg1),
                        0,
                        31,
                    ],
                    &[6, 1, OUTPUT_REG, field(Reg1), 0, 31],
                )
                .insert(2, 0, ANY, &[2, RESUBMIT, 1, 3, OUTPUT, 4], END)
                .insert(3, 0, ANY, &[1, CONTROLLER, 0, 64, 5], END)
                .publish()
                .burst(1, &["udp", "tcp", "ipv4-options", "ipv6-udp", "icmp"]),
        ),
        (
            "tags",
            Commands::new(2)
                .insert(
                    0,
                    2,
                    &[1, 3, 0x10, 7],
                    &[3, POP_VLAN, OUTPUT, 1, OUTPUT, 2],
                    END,
                )
                .insert(
                    0,
                    1,
                    ANY,
                    &[4, PUSH_VLAN, SET_VID, 0, 9, 0, OUTPUT, 3, TRUNCATED, 4, 20],
                    END,
                )
                .publish()
                .burst(3, &["vlan", "service-tag", "three-tags", "udp", "vlan-arp"]),
        ),
        (
            "copies",
            Commands::new(1)
                .insert(
                    0,
                    1,
                    ANY,
                    &[
                        4,
                        CLONE,
                        2,
                        SET_FIELD,
                        field(EthDst),
                        0,
                        2,
                        2,
                        2,
                        2,
                        2,
                        2,
                        OUTPUT,
                        2,
                        ALL,
                        1,
                        ENQUEUE,
                        3,
                        9,
                        IN_PORT,
                    ],
                    &[3, 2, SET_QUEUE, 4, OUTPUT, 5],
                )
                .publish()
                .burst(1, &["arp", "sctp"]),
        ),
        (
            "resubmits",
            Commands::new(1)
                .insert(0, 1, ANY, &[2, RESUBMIT, 1, 1, RESUBMIT, 0x2f, 2], END)
                .insert(
                    1,
                    1,
                    ANY,
                    &[
                        2,
                        MOVE,
                        field(EthSrc),
                        0,
                        47,
                        field(Xreg0),
                        0,
                        47,
                        RESUBMIT,
                        1,
                        1,
                    ],
                    END,
                )
                .insert(2, 1, ANY, &[2, OUTPUT, 6, EXIT], END)
                .publish()
                .burst(1, &["udp", "rarp"]),
        ),
        (
            "packet-out",
            Commands::new(1)
                .insert(0, 1, ANY, &[1, OUTPUT, 6], END)
                .publish()
                .put(&[12, 1, 2, RESUBMIT, 0, OUTPUT, 1, 60, 14])
                .put(&frames::sound()[5].1),
        ),
        (
            "replaced",
            Commands::new(1)
                .insert(0, 5, &[1, 2, 8, 6], &[1, OUTPUT, 1], END)
                .publish()
                .insert(0, 5, &[1, 2, 8, 6], &[1, OUTPUT, 2], END)
                .burst(1, &["arp"])
                .publish()
                .burst(1, &["arp"])
                .put(&[10, 9])
                .burst(1, &["arp"]),
        ),
    ];
    for (name, commands) in seeds {
        corpus.add(name, &[&commands.0])?;
    }
    Ok(())
}
