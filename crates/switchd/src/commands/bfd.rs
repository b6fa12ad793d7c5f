//! `bfd/...` commands, in Open vSwitch's words.

use super::Commands;

pub(super) fn register(commands: &Commands) {
    commands.answer("bfd/show", "[interface]", (0, 1), |switch, words| {
        let name = words.first().map(String::as_str);
        let shown = switch.show_monitors(name);
        shown.ok_or_else(|| "no such bfd object".to_owned())
    });
    let usage = "[interface] normal|false|true";
    commands.answer("bfd/set-forwarding", usage, (1, 2), |switch, words| {
        let (word, names) = words.split_last().ok_or("unknown fault string")?;
        let forwarding = match word.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            "normal" => None,
            _ => return Err("unknown fault string".into()),
        };
        let name = names.first().map(String::as_str);
        match switch.force_monitors(name, forwarding) {
            true => Ok("OK\n".into()),
            false => Err("no such BFD object".into()),
        }
    });
}
