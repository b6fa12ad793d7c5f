//! Commands about what a switch may have and this one has none of: bonds, LACP, QoS. They answer as Open vSwitch does where none is configured.

use super::{Commands, has_interface};

pub(super) fn register(commands: &Commands) {
    for (name, missing) in [
        ("bond/show", "no such bond"),
        ("lacp/show", "no such lacp object"),
        ("lacp/show-stats", "no such lacp object"),
    ] {
        commands.answer(name, "[port]", (0, 1), move |_, arguments| match arguments.first() {
            Some(_) => Err(missing.to_owned()),
            None => Ok(String::new()),
        });
    }
    commands.answer("bond/list", "", (0, 0), |_, _| Ok("bond\ttype\trecircID\tmembers\n".into()));
    for (name, text) in [("qos/show", "QoS not configured on"), ("qos/show-types", "No QoS types supported for interface:")] {
        commands.answer(name, "interface", (1, 1), move |switch, arguments| match has_interface(switch, &arguments[0]) {
            true => Ok(format!("{text} {}\n", arguments[0])),
            false => Err("no such interface".into()),
        });
    }
}
