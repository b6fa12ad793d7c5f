//! What several tests need: the messages that `ovs-ofctl` makes of rules.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// What `ovs-ofctl` says of a message, and the message.
pub struct Parsed {
    /// Its line.
    pub text: String,
    /// The message as it would be sent.
    pub bytes: Vec<u8>,
}

/// The flow mods that `ovs-ofctl parse-flows` makes of lines; None, with a word, where it is not installed.
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
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: ovs-ofctl is not installed");
            return None;
        }
        Err(error) => panic!("ovs-ofctl: {error}"),
    };
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
    // Not what sets the form of flow mods.
    parsed.retain(|parsed| parsed.text.contains("FLOW_MOD "));
    Some(parsed)
}
