//! `sluice/vector`: which of the available vector instructions are used to read packets.

use super::{Answer, Commands};
use crate::switch::Switch;
use packet::mini_key::{ASKED_BY, Variant};
use std::fmt::Write;

pub(super) fn register(commands: &Commands) {
    commands.answer("sluice/vector", "", (0, 0), vector);
}

fn vector(_: &Switch, _: &[String]) -> Answer {
    let mut text = String::new();
    for variant in Variant::ALL {
        let standing = match variant.is_there() {
            true if variant == Variant::used() => "used",
            true => "available",
            false => "not on this processor",
        };
        let _ = writeln!(text, "{:<9} {standing}", variant.name());
    }
    Ok(text)
}

/// Logs which code reads packets.
pub(crate) fn tell() {
    let used = Variant::used();
    tracing::info!(target: "dpif_netdev_extract", "packets are read by {used}");
    if let Ok(name) = std::env::var(ASKED_BY)
        && Variant::of_name(&name) != Some(used)
    {
        tracing::warn!(target: "dpif_netdev_extract", "{ASKED_BY}={name} asks for what this processor does not have or nobody knows");
    }
}
