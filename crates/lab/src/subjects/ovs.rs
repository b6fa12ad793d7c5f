//! Open vSwitch, with DPDK and without.

use super::daemon::{Daemon, Kind};
use super::{find_program, is_executable};
use std::path::Path;

/// Where Debian has the daemons; the alternatives' link in PATH may lead to either.
const WITH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const WITHOUT_DPDK: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";

/// Open vSwitch with DPDK.
pub fn ovs_dpdk() -> Daemon {
    Daemon {
        id: "ovs-dpdk".into(),
        name: "Open vSwitch with DPDK".into(),
        command: found(WITH_DPDK),
        kind: Kind::OvsDpdk,
    }
}

/// Open vSwitch's datapath in user space without DPDK: kernel interfaces, which its main thread
/// serves.
pub fn ovs_netdev() -> Daemon {
    Daemon {
        id: "ovs-netdev".into(),
        name: "Open vSwitch without DPDK".into(),
        command: found(WITHOUT_DPDK),
        kind: Kind::OvsNetdev,
    }
}

fn found(place: &str) -> Result<Vec<String>, String> {
    let path = match is_executable(Path::new(place)) {
        true => Some(place.into()),
        false => find_program("ovs-vswitchd"),
    };
    path.map(|path| vec![path.display().to_string()])
        .ok_or_else(|| format!("there is no ovs-vswitchd, neither at {place} nor in PATH"))
}
