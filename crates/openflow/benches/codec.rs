//! Nanoseconds to decode and to encode a typical flow mod (six fields, one output): `cargo bench -p
//! sluice-openflow`.
//!
//! Prints the minimum of many short runs, since other load on the machine only adds time.

use openflow::action::{Action, Instruction};
use openflow::flow::FlowMod;
use openflow::message::{FlowFormat, FlowModForm, Message};
use openflow::{DecodeOptions, Version, decode, encode};
use packet::{Field, Match};
use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 200;
const ROUNDS: u32 = 1000;

fn flow_mod() -> FlowMod {
    let mut matching = Match::any();
    for (field, value) in [
        (Field::InPortOxm, 3),
        (Field::EthType, 0x0800),
        (Field::IpProto, 6),
        (Field::Ipv4Src, 0x0a00_0001),
        (Field::Ipv4Dst, 0x0a00_0002),
        (Field::TcpDst, 80),
    ] {
        matching.set_exact(field, value);
    }
    FlowMod {
        cookie: 1,
        ..FlowMod::add(
            matching,
            5,
            vec![Instruction::ApplyActions(vec![Action::Output {
                port: 2,
                max_len: 0,
            }])],
        )
    }
}

/// Returns nanoseconds per call, the minimum of many runs.
fn least(mut call: impl FnMut()) -> u128 {
    let run = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| call());
        start.elapsed().as_nanos() / u128::from(ROUNDS)
    };
    (0..RUNS).map(|_| run(&mut call)).min().unwrap_or_default()
}

fn main() {
    let nicira = FlowModForm {
        format: FlowFormat::Nicira,
        table_in_command: false,
    };
    for (name, version, form) in [
        ("1.0", Version::V1_0, FlowModForm::default()),
        ("1.0 NXM", Version::V1_0, nicira),
        ("1.3", Version::V1_3, FlowModForm::default()),
    ] {
        let message = Message::FlowMod {
            change: flow_mod(),
            form,
        };
        let bytes = encode(version, 1, &message);
        let options = DecodeOptions::default();
        let decoding = least(|| {
            let _ = black_box(decode(black_box(&bytes), &options));
        });
        let encoding = least(|| {
            black_box(encode(version, 1, black_box(&message)));
        });
        println!("flow mod of {name:8} decode {decoding:5} ns  encode {encoding:5} ns");
    }
}
