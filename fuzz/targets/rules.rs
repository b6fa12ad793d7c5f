//! Sets of rules with any text, in both formats. Must hold:
//!
//! * nothing panics;
//! * packets that are made to meet a rule meet it, and those that are to meet none do not;
//! * what is written of a rule for either format is read again, and is met by the same packets.
//!
//! Input: a byte, which is the seed and chooses the format, then the text.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/traffic/src/random.rs"]
mod random;
#[path = "../../crates/traffic/src/rule_sets.rs"]
mod rule_sets;
#[path = "../../crates/traffic/src/rules.rs"]
mod rules;
#[path = "../../crates/traffic/src/sample.rs"]
mod sample;

use rules::{Format, Header, Rule};
use sample::{Explosion, Sampler};

/// Reads what was written of one rule; some rule of it must be met.
fn check_written(text: &str, format: Format, header: &Header) {
    let again = rules::read(text, format).unwrap_or_else(|bad| panic!("{bad}: {text}"));
    let mut met = again.iter().filter(|rule| rule.meets(header));
    assert!(met.next().is_some(), "{header:?} does not meet {text}");
}

fn check(rule: &Rule, sampler: &Sampler) {
    let header = sampler.meeting(rule, 1);
    assert!(rule.meets(&header), "{header:?} does not meet {rule:?}");
    if let Ok(text) = rule_sets::class_bench_set(std::slice::from_ref(rule)) {
        check_written(
            &text,
            Format::ClassBench,
            &Header {
                six: rule.six.unwrap_or(false),
                ..header
            },
        );
    }
    let plain = rule
        .in_port
        .as_ref()
        .is_none_or(|port| !port.contains([',', ' ', '\t', '"']));
    if let (true, Ok(text)) = (plain, rule_sets::open_flow(rule, 1, "drop")) {
        check_written(
            &text,
            Format::OpenFlow,
            &Header {
                six: rule.six.unwrap_or(false),
                ..header
            },
        );
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&seed, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let format = match seed % 3 {
        0 => Format::ClassBench,
        1 => Format::OpenFlow,
        _ => rules::format_of(text),
    };
    let Ok(read) = rules::read(text, format) else {
        return;
    };
    let usual = Header {
        eth_src: 1 << 41,
        eth_dst: 3 << 40,
        src: 1,
        dst: 2,
        protocol: 17,
        ..Header::default()
    };
    let sampler = Sampler {
        usual,
        seed: seed.into(),
    };
    read.iter().for_each(|rule| check(rule, &sampler));
    let mut compared = 0;
    let meets_none =
        |header: &Header| !read.iter().any(|rule| rule.meets(header) && !rule.is_any());
    if let Some(header) = sampler.missing(&read, 0, &mut compared) {
        assert!(meets_none(&header));
    }
    if let Ok(explosion) = Explosion::new(&read, usual) {
        if let Ok(headers) = explosion.packets(&read, 16) {
            assert!(headers.iter().all(meets_none));
        }
    }
});
