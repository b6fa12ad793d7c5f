//! `dpctl/ipf-*`: fragments that wait at `ct` for the rest of their datagrams, as in Open vSwitch.

use super::connections::{invalid, no_datapath, refused};
use super::datapaths::Arguments;
use super::{Commands, datapaths};
use crate::switch::Switch;

pub(super) fn register(commands: &Commands) {
    for (name, on, what) in [
        ("ipf-set-enabled", true, "enabling"),
        ("ipf-set-disabled", false, "disabling"),
    ] {
        let name = format!("dpctl/{name}");
        commands.answer(&name, "[dp] v4|v6", (1, 2), move |switch, words| {
            let words = Arguments::read(words)?.words;
            // As in Open vSwitch, which does not look at a datapath's name here.
            let family = words.last().map(String::as_str);
            let wanted = "parameter missing: 'v4' for IPv4 or 'v6' for IPv6";
            let v6 = v6(family).ok_or_else(|| invalid(switch, wanted))?;
            let set = switch.with_datapath(|datapath| datapath.set_fragments_enabled(v6, on));
            set.map_err(|_| no_datapath(switch))?;
            Ok(format!("{what} fragmentation reassembly successful\n"))
        });
    }
    let usage = "[dp] v4|v6 minfragment";
    commands.answer("dpctl/ipf-set-min-frag", usage, (2, 3), |switch, words| {
        let words = Arguments::read(words)?.words;
        let (names, [family, bytes]) = words.split_last_chunk().ok_or("minfragment missing")?;
        datapaths::opened(switch, names, 1)?;
        let wanted = "parameter missing: v4 for IPv4 or v6 for IPv6";
        let v6 = v6(Some(family)).ok_or_else(|| invalid(switch, wanted))?;
        let wanted = "parameter missing for minimum fragment size";
        let bytes = number(bytes).ok_or_else(|| invalid(switch, wanted))?;
        let small = "requested minimum fragment size too small; see documentation";
        let set = switch.with_datapath(|datapath| datapath.set_fragments_minimum(v6, bytes));
        let set = set.map_err(|_| no_datapath(switch))?;
        set.map_err(|_| refused(switch, small))?;
        Ok("setting minimum fragment size successful\n".into())
    });
    let usage = "[dp] maxfrags";
    commands.answer(
        "dpctl/ipf-set-max-nfrags",
        usage,
        (1, 2),
        |switch, words| {
            let words = Arguments::read(words)?.words;
            let (most, names) = words.split_last().ok_or("maxfrags missing")?;
            datapaths::opened(switch, names, 1)?;
            let wanted = "parameter missing for maximum fragments";
            let most = number(most).ok_or_else(|| invalid(switch, wanted))?;
            let set = switch.with_datapath(|datapath| datapath.set_most_fragments(most));
            let set = set.map_err(|_| no_datapath(switch))?;
            set.map_err(|_| refused(switch, "setting maximum fragments failed"))?;
            Ok("setting maximum fragments successful\n".into())
        },
    );
    commands.answer("dpctl/ipf-get-status", "[dp]", (0, 1), status);
}

fn status(switch: &Switch, words: &[String]) -> super::Answer {
    let Arguments { more, words, .. } = Arguments::read(words)?;
    datapaths::opened(switch, words, 1)?;
    let text = switch.with_datapath(|datapath| {
        let mut text = datapath.fragments().text();
        if more {
            text += "\n        Fragment Lists:\n\n";
            text += &datapath.waiting_fragments();
        }
        text
    });
    text.map_err(|_| no_datapath(switch))
}

fn v6(family: Option<&str>) -> Option<bool> {
    match family {
        Some("v4") => Some(false),
        Some("v6") => Some(true),
        _ => None,
    }
}

/// Reads the number that a word begins with, as Open vSwitch does; too large ones are the largest.
fn number(word: &str) -> Option<u32> {
    let digits = word.bytes().take_while(u8::is_ascii_digit);
    let add = |number: u32, digit: u8| {
        let digit = u32::from(digit - b'0');
        number.saturating_mul(10).saturating_add(digit)
    };
    (word.as_bytes().first()?.is_ascii_digit()).then(|| digits.fold(0, add))
}
