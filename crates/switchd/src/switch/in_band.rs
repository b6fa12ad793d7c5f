//! In-band control: hidden rules by which packets to and from controllers pass through a bridge
//! whatever its other rules say (Open vSwitch's `in-band.c`).
//!
//! The rules cover the IPv4 addresses of controllers and managers that the switch connects to, and
//! what it takes to reach them: DHCP, and ARP for the local port and for the first hop. DHCP
//! replies reach the local port besides what other rules do with them
//! ([`program::table::Bridge::deliver_replies`]).
//! `bridge/dump-flows` shows them, OpenFlow does not. What depends on the kernel's routes and
//! neighbours is looked up once a second, or every ten seconds once it is known.

use super::{Bridge, aside, fail};
use crate::config::controller::Controller;
use crate::config::{Mac, ofport};
use crate::streams::{Active, OPENFLOW_PORT};
use crate::turns;
use openflow::port;
use packet::{Field, Match};
use ports::NextHop;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::net::lookup_host;

/// Priorities of the rules. All rules have the same actions; the numbers only tell the rules apart.
mod priority {
    pub const FROM_LOCAL_DHCP: u32 = 180_000;
    pub const TO_LOCAL_ARP: u32 = 180_001;
    pub const FROM_LOCAL_ARP: u32 = 180_002;
    pub const TO_NEXT_HOP_ARP: u32 = 180_003;
    pub const FROM_NEXT_HOP_ARP: u32 = 180_004;
    pub const TO_REMOTE_ARP: u32 = 180_005;
    pub const FROM_REMOTE_ARP: u32 = 180_006;
    pub const TO_REMOTE_TCP: u32 = 180_007;
    pub const FROM_REMOTE_TCP: u32 = 180_008;
}

/// The port registered for OVSDB, used where a manager's target names none.
const OVSDB_PORT: u16 = 6640;

const ETH_IPV4: u128 = 0x0800;
const ETH_ARP: u128 = 0x0806;
const TCP: u128 = 6;
const UDP: u128 = 17;
const DHCP_SERVER: u128 = 67;
const DHCP_CLIENT: u128 = 68;
const ARP_REQUEST: u128 = 1;
const ARP_REPLY: u128 = 2;

/// Interval at which next hops are looked up, ms: shorter while a MAC address is unknown.
const NEXT_HOP_KNOWN_MS: u64 = 10_000;
const NEXT_HOP_UNKNOWN_MS: u64 = 1000;
/// [`State::due_ms`] while next hops are being looked up.
const LOOKING: u64 = u64::MAX;
/// Interval at which a name that could not be resolved is tried again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(10);

/// A bridge's in-band control.
#[derive(Default)]
pub(super) struct InBand(RefCell<State>);

#[derive(Default)]
struct State {
    /// Configured hosts and ports to reach.
    hosts: BTreeSet<(String, u16)>,
    /// Incremented with each change of `hosts`, so that outdated answers of the resolver are
    /// ignored.
    generation: u64,
    remotes: BTreeSet<SocketAddrV4>,
    /// The queue for packets of these rules.
    queue: Option<u32>,
    /// The MAC address of the first hop to each remote, at the last lookup.
    next_hops: BTreeMap<Ipv4Addr, Mac>,
    /// Remotes without a route that have been logged.
    unreachable: BTreeSet<Ipv4Addr>,
    /// When next hops are looked up next, ms; [`LOOKING`] while that is under way for all that is
    /// known.
    due_ms: u64,
    /// Whether they are being looked up.
    looking: bool,
    /// The present hidden rules.
    rules: Vec<(u32, Match)>,
    /// The queue in these rules.
    rules_queue: Option<u32>,
}

/// Returns hosts and ports of those targets that are connected to by IP.
fn hosts<'t>(
    targets: impl Iterator<Item = &'t str>,
    default_port: u16,
) -> impl Iterator<Item = (String, u16)> {
    targets.filter_map(
        move |target| match Active::parse(target, default_port).ok()? {
            Active::Tcp(host, port) | Active::Ssl(host, port) => Some((host, port)),
            Active::Unix(_) => None,
        },
    )
}

/// Returns whether packets to an address can pass through a bridge.
fn crosses_bridges(address: Ipv4Addr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

/// Returns the hidden rules for these remotes.
fn rules(
    local: Option<Mac>,
    next_hops: &BTreeSet<Mac>,
    remotes: &BTreeSet<SocketAddrV4>,
) -> Vec<(u32, Match)> {
    let mut rules: Vec<(u32, Match)> = Vec::new();
    let mut add = |priority: u32, fields: &[(Field, u128)]| {
        let mut matching = Match::any();
        for (field, value) in fields {
            matching.set_exact(*field, *value);
        }
        // Remotes with the same address differ in their ports only, so rules repeat.
        let rule = (priority, matching);
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    };
    let number = |mac: Mac| {
        mac.0
            .iter()
            .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
    };
    if let Some(mac) = local.filter(|_| !remotes.is_empty()) {
        let mac = number(mac);
        add(
            priority::FROM_LOCAL_DHCP,
            &[
                (Field::InPort, port::LOCAL.into()),
                (Field::EthType, ETH_IPV4),
                (Field::EthSrc, mac),
                (Field::IpProto, UDP),
                (Field::UdpSrc, DHCP_CLIENT),
                (Field::UdpDst, DHCP_SERVER),
            ],
        );
        let arp = |field, operation| [(Field::EthType, ETH_ARP), (field, mac), operation];
        add(
            priority::TO_LOCAL_ARP,
            &arp(Field::EthDst, (Field::ArpOp, ARP_REPLY)),
        );
        add(
            priority::FROM_LOCAL_ARP,
            &arp(Field::EthSrc, (Field::ArpOp, ARP_REQUEST)),
        );
    }
    for mac in next_hops {
        let mac = number(*mac);
        let arp = |field, operation| [(Field::EthType, ETH_ARP), (field, mac), operation];
        add(
            priority::TO_NEXT_HOP_ARP,
            &arp(Field::EthDst, (Field::ArpOp, ARP_REPLY)),
        );
        add(
            priority::FROM_NEXT_HOP_ARP,
            &arp(Field::EthSrc, (Field::ArpOp, ARP_REQUEST)),
        );
    }
    for remote in remotes {
        let (address, port) = (u32::from(*remote.ip()).into(), remote.port().into());
        let arp = |field, operation| [(Field::EthType, ETH_ARP), (field, address), operation];
        add(
            priority::TO_REMOTE_ARP,
            &arp(Field::ArpTpa, (Field::ArpOp, ARP_REPLY)),
        );
        add(
            priority::FROM_REMOTE_ARP,
            &arp(Field::ArpSpa, (Field::ArpOp, ARP_REQUEST)),
        );
        let tcp = |host, service| {
            [
                (Field::EthType, ETH_IPV4),
                (Field::IpProto, TCP),
                (host, address),
                (service, port),
            ]
        };
        add(priority::TO_REMOTE_TCP, &tcp(Field::Ipv4Dst, Field::TcpDst));
        add(
            priority::FROM_REMOTE_TCP,
            &tcp(Field::Ipv4Src, Field::TcpSrc),
        );
    }
    rules
}

impl Bridge {
    /// Sets what is configured: these controllers, and the bridge's managers and queue.
    pub(super) fn configure_in_band(&self, controllers: &[Controller]) {
        let settings = self.settings.borrow();
        let of_controllers = (controllers.iter())
            .filter(|controller| controller.in_band)
            .map(|controller| controller.target.as_str());
        let of_managers = settings.managers.iter().map(String::as_str);
        let wanted: BTreeSet<(String, u16)> = hosts(of_controllers, OPENFLOW_PORT)
            .chain(hosts(of_managers, OVSDB_PORT))
            .collect();
        let mut state = self.in_band.0.borrow_mut();
        state.queue = settings.in_band_queue;
        if state.hosts != wanted {
            state.hosts = wanted;
            state.generation += 1;
            state.remotes.clear();
            state.due_ms = 0;
            let mut names = Vec::new();
            for (host, port) in state.hosts.clone() {
                match host.parse() {
                    Ok(address) => state.add(SocketAddrV4::new(address, port)),
                    // There are no hidden rules for IPv6.
                    Err(_) if host.contains(':') => {}
                    Err(_) => names.push((host, port)),
                }
            }
            if !names.is_empty() {
                self.resolve(names, state.generation);
            }
        }
        drop(state);
        self.when_idle(Bridge::in_band_step);
    }

    /// Resolves hosts' names, and retries those without an answer.
    fn resolve(&self, mut names: Vec<(String, u16)>, generation: u64) {
        let me = self.me.clone();
        turns::spawn("in-band control", async move {
            loop {
                let mut unknown = Vec::new();
                for (host, port) in names {
                    let found = match lookup_host((host.as_str(), port)).await {
                        Ok(mut addresses) => addresses.find_map(|address| match address {
                            SocketAddr::V4(address) => Some(address),
                            SocketAddr::V6(_) => None,
                        }),
                        Err(_) => None,
                    };
                    let Some(bridge) = me.upgrade() else { return };
                    if bridge.in_band.0.borrow().generation != generation {
                        return;
                    }
                    match found {
                        None => unknown.push((host, port)),
                        Some(address) => {
                            bridge.in_band.0.borrow_mut().add(address);
                            bridge.when_idle(Bridge::in_band_step);
                        }
                    }
                }
                if unknown.is_empty() {
                    return;
                }
                names = unknown;
                tokio::time::sleep(RESOLVE_AGAIN).await;
            }
        });
    }

    /// Updates the hidden rules to the configuration and the kernel's routes. Called about once a
    /// second; does nothing while rules are being changed in slices.
    pub(super) fn in_band_step(&self) {
        let mut state = self.in_band.0.borrow_mut();
        if state.remotes.is_empty() && state.rules.is_empty() || self.is_busy() {
            return;
        }
        let now_ms = self.switch.clock.now_ms();
        if now_ms >= state.due_ms && !state.looking {
            self.look_up_next_hops(&mut state);
        }
        let local = (self.ports.borrow().get(&ofport::LOCAL))
            .map(|port| Mac(port.info.mac))
            .filter(|mac| !mac.is_zero());
        let next_hops = state.next_hops.values().copied().collect();
        let wanted = rules(local, &next_hops, &state.remotes);
        let same_queue = state.rules_queue == state.queue;
        if same_queue && state.rules == wanted {
            return;
        }
        let mut pipeline = self.pipeline.borrow_mut();
        pipeline.tables().deliver_replies(!state.remotes.is_empty());
        for rule in &state.rules {
            if !wanted.contains(rule) {
                let (priority, matching) = rule;
                pipeline.remove_hidden(0, *priority, matching);
            }
        }
        let (now, actions) = (self.switch.now(), fail::normal(state.queue));
        let before = std::mem::take(&mut state.rules);
        for rule in wanted {
            // An unchanged rule keeps its counters and its age.
            if !same_queue || !before.contains(&rule) {
                let (priority, matching) = &rule;
                if let Err(error) = pipeline.add_hidden(0, *priority, matching, &actions, now) {
                    // Retried with the next step.
                    tracing::error!(target: "in_band", "{}: cannot add a rule: {error}", self.name);
                    continue;
                }
            }
            state.rules.push(rule);
        }
        state.rules_queue = state.queue;
        drop((pipeline, state));
        self.publish();
    }

    /// Looks up the first hop to each remote aside, and updates the rules after that.
    fn look_up_next_hops(&self, state: &mut State) {
        let addresses: BTreeSet<Ipv4Addr> = state.remotes.iter().map(|it| *it.ip()).collect();
        (state.looking, state.due_ms) = (true, LOOKING);
        let hops = aside::call(move || {
            let hops = addresses.into_iter().map(|it| (it, ports::next_hop(it)));
            hops.collect::<Vec<_>>()
        });
        let me = self.me.clone();
        turns::spawn("in-band control", async move {
            let hops = hops.await;
            if let Some((bridge, hops)) = me.upgrade().zip(hops) {
                let now_ms = bridge.switch.clock.now_ms();
                (bridge.in_band.0.borrow_mut()).take_next_hops(&bridge.name, hops, now_ms);
                bridge.when_idle(Bridge::in_band_step);
            }
        });
    }
}

impl State {
    fn add(&mut self, remote: SocketAddrV4) {
        if crosses_bridges(*remote.ip()) {
            self.remotes.insert(remote);
            self.due_ms = 0;
        }
    }

    /// Takes the first hop to each remote. If remotes have come since these were asked for, it is
    /// due again.
    fn take_next_hops(
        &mut self,
        bridge: &str,
        hops: Vec<(Ipv4Addr, Result<NextHop, i32>)>,
        now_ms: u64,
    ) {
        self.looking = false;
        self.next_hops.clear();
        self.unreachable
            .retain(|address| hops.iter().any(|(other, _)| other == address));
        let count = hops.len();
        for (address, hop) in hops {
            match hop {
                Ok(hop) => {
                    self.unreachable.remove(&address);
                    if let Some(mac) = hop.mac {
                        self.next_hops.insert(address, Mac(mac));
                    }
                }
                Err(errno) => {
                    if self.unreachable.insert(address) {
                        let why = ports::describe(errno);
                        tracing::warn!(target: "in_band", "{bridge}: cannot find route for controller ({address}): {why}");
                    }
                }
            }
        }
        if self.due_ms == LOOKING {
            let all = self.next_hops.len() == count;
            let pause = if all {
                NEXT_HOP_KNOWN_MS
            } else {
                NEXT_HOP_UNKNOWN_MS
            };
            self.due_ms = now_ms + pause;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::format;

    fn shown(rules: Vec<(u32, Match)>) -> Vec<String> {
        let show = |(priority, matching): (u32, Match)| {
            let mut text = String::new();
            format::matching(&mut text, &matching, priority);
            text
        };
        rules.into_iter().map(show).collect()
    }

    fn remotes(addresses: &[&str]) -> BTreeSet<SocketAddrV4> {
        addresses.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn rules_are_those_of_open_vswitch() {
        let local = Mac([0xde, 0x7e, 0x6a, 0xbd, 0x3c, 0x46]);
        let hops = BTreeSet::from([Mac([2, 0, 0, 0, 0, 0x77])]);
        assert_eq!(
            shown(rules(Some(local), &hops, &remotes(&["10.1.1.1:6653"]))),
            [
                "priority=180000,udp,in_port=LOCAL,dl_src=de:7e:6a:bd:3c:46,tp_src=68,tp_dst=67",
                "priority=180001,arp,dl_dst=de:7e:6a:bd:3c:46,arp_op=2",
                "priority=180002,arp,dl_src=de:7e:6a:bd:3c:46,arp_op=1",
                "priority=180003,arp,dl_dst=02:00:00:00:00:77,arp_op=2",
                "priority=180004,arp,dl_src=02:00:00:00:00:77,arp_op=1",
                "priority=180005,arp,arp_tpa=10.1.1.1,arp_op=2",
                "priority=180006,arp,arp_spa=10.1.1.1,arp_op=1",
                "priority=180007,tcp,nw_dst=10.1.1.1,tp_dst=6653",
                "priority=180008,tcp,nw_src=10.1.1.1,tp_src=6653",
            ]
        );
    }

    #[test]
    fn remotes_that_come_during_a_lookup_are_looked_up_at_once() {
        let (known, unknown) = (Ipv4Addr::new(10, 1, 1, 1), Ipv4Addr::new(10, 1, 1, 2));
        let hop = |mac| {
            Ok(NextHop {
                device: "br0".into(),
                address: known,
                mac,
            })
        };
        let mut state = State::default();
        let take = |state: &mut State, hops| {
            (state.looking, state.due_ms) = (true, LOOKING);
            state.take_next_hops("br0", hops, 500);
            assert!(!state.looking);
            state.due_ms
        };
        let found = take(&mut state, vec![(known, hop(Some([2; 6])))]);
        assert_eq!(found, 500 + NEXT_HOP_KNOWN_MS);
        assert_eq!(state.next_hops, BTreeMap::from([(known, Mac([2; 6]))]));
        let some = take(
            &mut state,
            vec![(known, hop(Some([2; 6]))), (unknown, Err(101))],
        );
        assert_eq!(some, 500 + NEXT_HOP_UNKNOWN_MS);
        assert!(state.unreachable.contains(&unknown));
        assert_eq!(
            take(&mut state, vec![(unknown, hop(None))]),
            500 + NEXT_HOP_UNKNOWN_MS
        );
        assert!(state.unreachable.is_empty() && state.next_hops.is_empty());
        // One that comes meanwhile.
        (state.looking, state.due_ms) = (true, LOOKING);
        state.add("10.1.1.3:6653".parse().unwrap());
        state.take_next_hops("br0", vec![(known, hop(Some([2; 6])))], 500);
        assert_eq!(state.due_ms, 0);
    }

    #[test]
    fn rules_that_remotes_share_exist_once() {
        let two = remotes(&["10.1.1.1:6653", "10.1.1.1:6654"]);
        assert_eq!(rules(None, &BTreeSet::new(), &two).len(), 2 + 2 * 2);
        let local = Some(Mac([2, 0, 0, 0, 0, 1]));
        assert!(rules(local, &BTreeSet::new(), &remotes(&[])).is_empty());
    }

    #[test]
    fn only_remotes_connected_by_ip_have_rules() {
        let targets = [
            "tcp:10.1.1.1",
            "ssl:10.1.1.1:12",
            "unix:/x",
            "ptcp:6653",
            "tcp:",
        ];
        let found: Vec<_> = hosts(targets.into_iter(), 6653).collect();
        assert_eq!(
            found,
            [("10.1.1.1".to_owned(), 6653), ("10.1.1.1".into(), 12)]
        );
        assert!(!crosses_bridges(Ipv4Addr::new(127, 0, 1, 1)));
        assert!(crosses_bridges(Ipv4Addr::new(10, 0, 0, 1)));
    }
}
