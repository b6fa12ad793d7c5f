//! More commands about machinery that does not exist here: connection tracking, features of a
//! datapath. They answer truthfully for a switch that tracks no connections and caches no datapath
//! flows.
//!
//! Commands that would change such machinery are not registered; `docs/differences.md` lists them.

use super::{Answer, Commands, bridge, datapaths};
use crate::switch::Switch;
use std::fmt::Write;

/// The datapath's features, by Open vSwitch's names. There is no recirculation, no connection
/// tracking, and there are no datapath flows that a number (`ufid`) could identify.
const FEATURES: &[(&str, &str)] = &[
    ("Masked set action", "Yes"),
    ("Tunnel push pop", "Yes"),
    ("Ufid", "No"),
    ("Truncate action", "Yes"),
    ("Clone action", "Yes"),
    ("Sample nesting", "0"),
    ("Conntrack eventmask", "No"),
    ("Conntrack clear", "No"),
    ("Max dp_hash algorithm", "1"),
    ("Check pkt length action", "Yes"),
    ("Conntrack timeout policy", "No"),
    ("Explicit Drop action", "Yes"),
    ("Optimized Balance TCP mode", "No"),
    ("Conntrack all-zero IP SNAT", "No"),
    ("MPLS Label add", "No"),
    ("Max VLAN headers", "1"),
    ("Max MPLS depth", "3"),
    ("Recirc", "No"),
    ("CT state", "No"),
    ("CT zone", "No"),
    ("CT mark", "No"),
    ("CT label", "No"),
    ("CT state NAT", "No"),
    ("CT orig tuple", "No"),
    ("CT orig tuple for IPv6", "No"),
    ("IPv6 ND Extension", "Yes"),
];

pub(super) fn register(commands: &Commands) {
    connections(commands);
    protocols(commands);
    commands.answer(
        "dpif/show-dp-features",
        "bridge",
        (1, 1),
        |switch, words| {
            bridge(switch, &words[0])?;
            let mut text = String::new();
            for (name, value) in FEATURES {
                let _ = writeln!(text, "{name}: {value}");
            }
            Ok(text)
        },
    );
    commands.answer("dpif-netdev/bond-show", "[dp]", (0, 1), |_, _| {
        Ok(String::new())
    });
    commands.answer("dpctl/list-commands", "", (0, 0), |switch, _| {
        let all = switch.shell.commands.list();
        let ours = all
            .lines()
            .enumerate()
            .filter(|(index, line)| *index == 0 || line.trim_start().starts_with("dpctl/"));
        Ok(ours.map(|(_, line)| format!("{line}\n")).collect())
    });
}

/// `dpctl/...` commands about connections and cached flows; each takes a datapath.
fn connections(commands: &Commands) {
    for (name, usage, maximum, text) in [
        ("dump-conntrack", "[-m] [-s] [dp] [zone=N]", 4, ""),
        (
            "flush-conntrack",
            "[dp] [zone=N] [ct-orig-tuple] [ct-reply-tuple]",
            4,
            "",
        ),
        (
            "ct-stats-show",
            "[dp] [zone=N]",
            3,
            "Connections Stats:\n    Total: 0\n",
        ),
        (
            "ct-bkts",
            "[dp] [gt=N]",
            2,
            "Total Buckets: 0\nCurrent Connections: 0\n\n",
        ),
        ("ct-get-nconns", "[dp]", 1, "0\n"),
        ("del-flows", "[dp]", 1, ""),
    ] {
        let name = format!("dpctl/{name}");
        commands.answer(&name, usage, (0, maximum), move |switch, words| {
            of_datapath(switch, words, text)
        });
    }
}

fn of_datapath(switch: &Switch, words: &[String], text: &str) -> Answer {
    datapaths::checked(switch, words)?;
    Ok(text.to_owned())
}

/// Commands about bonds, spanning trees, fault monitors and link discovery.
fn protocols(commands: &Commands) {
    for name in [
        "autoattach/show-isid",
        "autoattach/statistics",
        "autoattach/status",
    ] {
        commands.answer(name, "[bridge]", (0, 1), |_, _| Ok(String::new()));
    }
    for (name, usage, count) in [
        ("bond/disable-member", "port member", 2),
        ("bond/enable-member", "port member", 2),
        ("bond/migrate", "port hash member", 3),
        ("bond/set-active-member", "port member", 2),
    ] {
        commands.answer(name, usage, (count, count), |_, _| {
            Err("no such bond".into())
        });
    }
    for (name, missing) in [
        ("rstp/tcn", "No such RSTP object"),
        ("stp/tcn", "no such stp object"),
    ] {
        commands.answer(name, "[bridge]", (0, 1), move |_, words| match words {
            [] => Ok("OK\n".into()),
            _ => Err(missing.into()),
        });
    }
    for (name, missing) in [
        ("bfd/set-forwarding", "no such BFD object"),
        ("cfm/set-fault", "no such CFM object"),
    ] {
        let usage = "[interface] normal|false|true";
        commands.answer(name, usage, (1, 2), move |_, words| match words {
            [_, ..] if !["normal", "true", "false"].contains(&words[words.len() - 1].as_str()) => {
                Err("unknown fault string".into())
            }
            [_, _] => Err(missing.into()),
            _ => Ok("OK\n".into()),
        });
    }
}
