//! Helpers shared by tests: rules as text, and the output of `ovs-ofctl` for rules and messages.

use openflow::action::Instruction;
use openflow::format;
use packet::Match;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A message, and the text of `ovs-ofctl` for it.
pub struct Parsed {
    /// Its line of text.
    pub text: String,
    /// The encoded message.
    pub bytes: Vec<u8>,
}

/// Returns our text of a rule's match and actions.
pub fn rule_text(matching: &Match, priority: u16, instructions: &[Instruction]) -> String {
    let mut text = String::new();
    format::matching(&mut text, matching, priority.into());
    text.push_str(if text.is_empty() {
        "actions="
    } else {
        " actions="
    });
    format::instructions(&mut text, instructions);
    text
}

/// Returns the output of a command of `ovs-ofctl`; None, with a message, if it is not installed.
pub fn installed(output: std::io::Result<Output>) -> Option<Output> {
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: ovs-ofctl is not installed");
            None
        }
        Err(error) => panic!("ovs-ofctl: {error}"),
    }
}

/// Returns the output of `ovs-ofctl ofp-print` for messages.
pub fn ofp_print(bytes: &[u8]) -> Option<Output> {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let arguments = ["ofp-print", &hex, "2"];
    installed(Command::new("ovs-ofctl").args(arguments).output())
}

/// Returns the flow mods that `ovs-ofctl parse-flows` makes of lines; None, with a message, if it
/// is not installed.
pub fn parse_flows(version: &str, lines: &str) -> Option<Vec<Parsed>> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "sluice-rules-{}-{}",
        std::process::id(),
        FILES.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, lines).unwrap();
    let output = Command::new("ovs-ofctl")
        .args(["-O", version, "-mmmmm", "parse-flows"])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).unwrap();
    let output = installed(output)?;
    assert!(output.status.success(), "{version}: {output:?}");
    let mut parsed: Vec<Parsed> = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines().skip(2) {
        match line.split_once("  ") {
            Some((offset, rest))
                if offset.len() == 8 && u32::from_str_radix(offset, 16).is_ok() =>
            {
                let digits = rest[..rest.find('|').unwrap()].split([' ', '-']);
                let bytes = digits
                    .filter(|byte| !byte.is_empty())
                    .map(|byte| u8::from_str_radix(byte, 16).unwrap());
                parsed.last_mut().unwrap().bytes.extend(bytes);
            }
            _ => parsed.push(Parsed {
                text: line.to_owned(),
                bytes: Vec::new(),
            }),
        }
    }
    // Without the messages that set the format of flow mods.
    parsed.retain(|parsed| parsed.text.contains("FLOW_MOD "));
    Some(parsed)
}
