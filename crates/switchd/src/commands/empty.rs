//! Commands about features that this switch lacks: bonds, LACP, spanning trees, fault monitors.
//! They answer as Open vSwitch does where none is configured.

use super::Commands;

/// Command, its argument, and the error for an object that is named.
const EMPTY: [(&str, &str, &str); 6] = [
    ("bond/show", "[port]", "no such bond"),
    ("cfm/show", "[interface]", "no such CFM object"),
    ("lacp/show", "[port]", "no such lacp object"),
    ("lacp/show-stats", "[port]", "no such lacp object"),
    ("rstp/show", "[bridge]", "No such RSTP object"),
    ("stp/show", "[bridge]", "no such stp object"),
];

pub(super) fn register(commands: &Commands) {
    for (name, usage, missing) in EMPTY {
        commands.answer(name, usage, (0, 1), move |_, arguments| {
            match arguments.first() {
                Some(_) => Err(missing.to_owned()),
                None => Ok(String::new()),
            }
        });
    }
    commands.answer("bond/list", "", (0, 0), |_, _| {
        Ok("bond\ttype\trecircID\tmembers\n".into())
    });
}
