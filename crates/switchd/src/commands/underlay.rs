//! `ovs/route/*`, `tnl/neigh/*` (also called `tnl/arp/*`) and the addresses of dummies: the network
//! that tunnels run over.

use super::{Answer, Commands};
use crate::switch::Switch;
use std::net::IpAddr;
use std::rc::Rc;
use underlay::text::{self, CommandError};

pub(super) fn register(commands: &Commands) {
    commands.later(
        "ovs/route/add",
        "ip_addr/prefix_len out_br_name [gw] [pkt_mark=mark]",
        (2, 4),
        |switch, words, reply| {
            crate::turns::spawn("adding a route", async move {
                reply.send(add_route(switch, &words).await);
            });
        },
    );
    commands.answer("ovs/route/show", "", (0, 0), |switch, _| {
        Ok(switch.underlay.with_routes(text::routes))
    });
    commands.answer(
        "ovs/route/del",
        "ip_addr/prefix_len [pkt_mark=mark]",
        (1, 2),
        remove_route,
    );
    commands.answer(
        "ovs/route/lookup",
        "ip_addr [pkt_mark=mark]",
        (1, 2),
        |switch, words| {
            let (address, mark) = text::parse_route_lookup(&of(words)).map_err(said)?;
            let found = |routes: &underlay::Routes| text::lookup(routes.lookup(address, mark));
            switch.underlay.with_routes(found).map_err(said)
        },
    );
    for prefix in ["tnl/neigh", "tnl/arp"] {
        commands.answer(&format!("{prefix}/show"), "", (0, 0), |switch, _| {
            let now_ms = switch.clock.now_ms();
            let neighbours = &switch.underlay;
            Ok(neighbours.with_neighbours(|all| text::neighbours(all, now_ms)))
        });
        commands.answer(
            &format!("{prefix}/set"),
            "BRIDGE IP MAC",
            (3, 3),
            |switch, words| {
                let (device, address, mac) = text::parse_neighbour_set(&of(words)).map_err(said)?;
                let now_ms = switch.clock.now_ms();
                switch.change_neighbours(|all| all.set(&device, address, mac, now_ms));
                Ok("OK\n".into())
            },
        );
        commands.answer(&format!("{prefix}/flush"), "", (0, 0), |switch, _| {
            switch.change_neighbours(|all| all.flush(None));
            Ok("OK\n".into())
        });
        commands.answer(&format!("{prefix}/aging"), "[SECS]", (0, 1), ageing);
    }
    commands.answer("tnl/egress_port_range", "min max", (0, 2), source_ports);
    let Ok(switch) = commands.switch() else {
        return;
    };
    if switch.shell.options.dummy.is_some() {
        for (name, usage, v4) in [
            (
                "netdev-dummy/ip4addr",
                "[netdev] ipaddr/mask-prefix-len",
                true,
            ),
            ("netdev-dummy/ip6addr", "[netdev] ip6addr", false),
        ] {
            commands.answer(name, usage, (2, 2), move |switch, words| {
                dummy_address(switch, words, v4)
            });
        }
    }
}

fn of(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn said(error: CommandError) -> String {
    error.to_string()
}

async fn add_route(switch: Rc<Switch>, words: &[String]) -> Answer {
    let route = text::parse_route_add(&of(words)).map_err(said)?;
    // The device may have just got the address that the route takes as its source.
    if let Err(error) = switch.read_kernel_addresses().await {
        tracing::warn!(target: "route_table", "cannot read addresses: {error}");
    }
    let addresses = switch.underlay.addresses(&route.device);
    let route = route.route(&addresses).map_err(said)?;
    switch.change_routes(|routes| routes.insert(route));
    Ok("OK\n".into())
}

fn remove_route(switch: &Switch, words: &[String]) -> Answer {
    let (prefix, len, mark) = text::parse_route_del(&of(words)).map_err(said)?;
    if switch.change_routes(|routes| routes.remove_user(prefix, len, mark)) {
        Ok("OK\n".into())
    } else {
        Err(said(CommandError::NotFound))
    }
}

fn ageing(switch: &Switch, words: &[String]) -> Answer {
    let [seconds] = words else {
        return Ok(switch.underlay.with_neighbours(text::ageing));
    };
    let ageing_ms = text::parse_ageing(seconds).map_err(said)?;
    let now_ms = switch.clock.now_ms();
    switch.change_neighbours(|all| all.set_ageing(ageing_ms, now_ms));
    Ok("OK\n".into())
}

/// Shows or sets the range of source UDP ports of tunnels' packets.
fn source_ports(_: &Switch, words: &[String]) -> Answer {
    let [least, most] = words else {
        let ports = packet::tunnel::source_ports();
        return Ok(format!(
            "Tunnel UDP source port range: {}-{}\n",
            ports.start, ports.end
        ));
    };
    // As in Open vSwitch, a bad number is no error but a text.
    let number = |text: &str, which: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("Invalid {which}.\n")),
    };
    let (least, most) = match (number(least, "min"), number(most, "max")) {
        (Ok(least), Ok(most)) => (least, most),
        (Err(text), _) | (_, Err(text)) => return Ok(text),
    };
    packet::tunnel::set_source_ports(least.min(most)..least.max(most));
    Ok("OK\n".into())
}

fn dummy_address(switch: &Switch, words: &[String], v4: bool) -> Answer {
    let is_dummy = switch.bridges.borrow().values().any(|bridge| {
        let ports = bridge.ports.borrow();
        let mut ports = ports.values();
        ports.any(|port| {
            port.config.interface_name == words[0] && super::is_dummy(switch, bridge, port)
        })
    });
    if !is_dummy {
        return Err("Unknown Dummy Interface".into());
    }
    let (address, len) = words[1].split_once('/').unwrap_or((&words[1], ""));
    let address: Option<IpAddr> = address.parse().ok();
    let most = if v4 { 32 } else { 128 };
    let len = match len {
        "" => Some(most),
        len => len.parse::<u8>().ok().filter(|len| *len <= most),
    };
    match (address, len) {
        (Some(address), Some(len)) if address.is_ipv4() == v4 => {
            switch.add_dummy_address(&words[0], address, len);
            Ok("OK\n".into())
        }
        _ => Err("Invalid parameters".into()),
    }
}
