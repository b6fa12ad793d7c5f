//! More commands about machinery that does not exist here: features of a datapath, bonds, spanning
//! trees. They answer truthfully for a switch that caches no datapath flows.
//!
//! Commands that would change such machinery are not registered; `docs/differences.md` lists them.

use super::{Commands, bridge, datapaths};
use crate::features;

pub(super) fn register(commands: &Commands) {
    protocols(commands);
    commands.answer(
        "dpif/show-dp-features",
        "bridge",
        (1, 1),
        |switch, words| {
            bridge(switch, &words[0])?;
            Ok(features::shown())
        },
    );
    commands.answer("dpif-netdev/bond-show", "[dp]", (0, 1), |_, _| {
        Ok(String::new())
    });
    commands.answer("dpctl/del-flows", "[dp]", (0, 1), |switch, words| {
        datapaths::opened(switch, datapaths::Arguments::read(words)?.words, 1)?;
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
    let usage = "[interface] normal|false|true";
    commands.answer("cfm/set-fault", usage, (1, 2), |_, words| match words {
        [_, ..] if !["normal", "true", "false"].contains(&words[words.len() - 1].as_str()) => {
            Err("unknown fault string".into())
        }
        [_, _] => Err("no such CFM object".into()),
        _ => Ok("OK\n".into()),
    });
}
