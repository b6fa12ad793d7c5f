//! OpenFlow controllers and management sockets of a bridge.
//!
//! Permission to write the database must not include permission to connect to, or overwrite, any
//! socket of the machine: a `unix:` or `punix:` controller is accepted only within the run
//! directory.

use std::net::Ipv4Addr;
use std::path::Path;

use ovsdb::{Uuid, vswitch};

use super::problem::{Options, Problems, Severity};

/// IP configuration for the local port of a bridge with in-band control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// The netmask; that of the address's class when none is given.
    pub netmask: Ipv4Addr,
    /// The default gateway.
    pub gateway: Option<Ipv4Addr>,
}

/// An OpenFlow controller, or a management socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// The UUID of its row.
    pub uuid: Uuid,
    /// Where to connect to, or to listen: `tcp:`, `ssl:`, `unix:`, `ptcp:`, `pssl:` or `punix:` and
    /// an address.
    pub target: String,
    /// Whether it is a service controller: its absence does not trigger the fail mode, and it gets
    /// no asynchronous messages unless it asks for them.
    pub service: bool,
    /// Longest pause between connection attempts, s.
    pub max_backoff: u32,
    /// Silence before an echo request is sent, s; 0 means never.
    pub inactivity_probe: u32,
    /// Whether traffic to the controller passes through the bridge whatever its rules say.
    pub in_band: bool,
    /// Whether asynchronous messages are sent without being asked for.
    pub asynchronous: bool,
    /// Most packet-ins queued for it.
    pub queue_size: u16,
    /// Most packet-ins per second sent to it; 0 means no limit.
    pub rate_limit: u32,
    /// Packet-ins in a burst; 0 means a quarter of the rate.
    pub burst_limit: u32,
    /// IP configuration for the bridge's local port.
    pub local_address: Option<LocalAddress>,
    /// The DSCP of packets sent to it, 0 to 63.
    pub dscp: u8,
}

/// DSCP of controller connections by default (ovs-vswitchd.conf.db(5)).
const DEFAULT_DSCP: u8 = 48;

/// The bridge's settings that apply to all its controllers.
#[derive(Clone, Copy, Debug)]
pub struct BridgeDefaults<'a> {
    /// The bridge's name.
    pub bridge: &'a str,
    /// `other_config:disable-in-band`.
    pub disable_in_band: bool,
    /// `other_config:controller-queue-size`.
    pub queue_size: u16,
    /// The directory in which sockets may be.
    pub rundir: &'a Path,
}

/// A controller's target that is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// It is neither connected to nor listened on.
    #[error("unsupported controller \"{0}\"")]
    NotSupported(String),
    /// Another controller of the bridge has it.
    #[error("another controller of the bridge has the same target; this one is ignored")]
    Twice,
    /// It is a socket to connect to, outside the run directory.
    #[error(
        "Not connecting to socket controller \"{target}\" due to possibility for remote exploit.  \
         Instead, specify socket in permitted directory \"unix:{rundir}/\" \
         or connect to \"unix:{rundir}/{bridge}.mgmt\" \
         (which is always available without special configuration)."
    )]
    Connect {
        /// The target.
        target: String,
        /// The run directory.
        rundir: String,
        /// The bridge.
        bridge: String,
    },
    /// It is a socket to listen on that is not named as the bridge's own ones are.
    #[error(
        "Not adding Unix domain socket controller \"{target}\" due to possibility of overwriting \
         local files. Instead, specify path in permitted format \"punix:{rundir}/{bridge}.*\" \
         or connect to \"unix:{rundir}/{bridge}.mgmt\" \
         (which is always available without special configuration)."
    )]
    Listen {
        /// The target.
        target: String,
        /// The run directory.
        rundir: String,
        /// The bridge.
        bridge: String,
    },
}

impl BadTarget {
    /// Returns the log level: whoever wrote a row that names somebody else's socket may be hostile.
    fn severity(&self) -> Severity {
        match self {
            BadTarget::NotSupported(_) | BadTarget::Twice => Severity::Warning,
            BadTarget::Connect { .. } | BadTarget::Listen { .. } => Severity::Error,
        }
    }
}

/// Reads a bridge's controllers, sorted by target as the rows are. A single target `none` means
/// that there are none.
pub fn read(
    rows: &[vswitch::Controller],
    defaults: BridgeDefaults<'_>,
    problems: &mut Problems,
) -> Vec<Controller> {
    if let [only] = rows
        && only.target == "none"
    {
        return Vec::new();
    }
    let mut controllers: Vec<Controller> = Vec::new();
    for row in rows {
        let target = &row.target;
        let checked = match is_active(target) {
            None => Err(BadTarget::NotSupported(target.clone())),
            Some(_) if controllers.iter().any(|c| c.target == *target) => Err(BadTarget::Twice),
            Some(active) => check_socket(target, defaults).map(|()| active),
        };
        match checked {
            Ok(active) => controllers.push(controller(row, active, defaults, problems)),
            Err(error) => {
                let text = format!("bridge {}: {error}", defaults.bridge);
                problems.add_with(error.severity(), "Controller", target, "target", text);
            }
        }
    }
    controllers
}

/// Returns whether a target is connected to (true) or listened on (false); none when it is neither.
fn is_active(target: &str) -> Option<bool> {
    let (method, rest) = target.split_once(':')?;
    match method {
        "tcp" | "ssl" | "unix" if !rest.is_empty() => Some(true),
        "punix" if !rest.is_empty() => Some(false),
        "ptcp" | "pssl" => Some(false),
        _ => None,
    }
}

fn check_socket(target: &str, defaults: BridgeDefaults<'_>) -> Result<(), BadTarget> {
    let (rundir, bridge) = (defaults.rundir.display().to_string(), defaults.bridge);
    if let Some(path) = target.strip_prefix("unix:") {
        let inside = path.strip_prefix(&format!("{rundir}/"));
        if path.contains('/') && inside.is_none_or(|rest| rest.split('/').any(|part| part == ".."))
        {
            return Err(BadTarget::Connect {
                target: target.to_owned(),
                rundir,
                bridge: bridge.to_owned(),
            });
        }
    } else if let Some(path) = target.strip_prefix("punix:") {
        let own = path.strip_prefix(&format!("{rundir}/{bridge}."));
        if own.is_none_or(|rest| rest.contains('/')) {
            return Err(BadTarget::Listen {
                target: target.to_owned(),
                rundir,
                bridge: bridge.to_owned(),
            });
        }
    }
    Ok(())
}

fn controller(
    row: &vswitch::Controller,
    active: bool,
    defaults: BridgeDefaults<'_>,
    problems: &mut Problems,
) -> Controller {
    let seconds = |value: Option<i64>, default: u32| value.map_or(default, |ms| limited(ms / 1000));
    Controller {
        uuid: row.uuid,
        target: row.target.clone(),
        service: row
            .kind
            .as_deref()
            .map_or(!active, |kind| kind == "service"),
        max_backoff: seconds(row.max_backoff, 8),
        inactivity_probe: seconds(row.inactivity_probe, 5),
        in_band: row.connection_mode.as_deref() != Some("out-of-band") && !defaults.disable_in_band,
        asynchronous: row.enable_async_messages.unwrap_or(true),
        queue_size: row
            .controller_queue_size
            .map_or(defaults.queue_size, |size| size.clamp(1, 512) as u16),
        rate_limit: row.controller_rate_limit.map_or(0, limited),
        burst_limit: row.controller_burst_limit.map_or(0, limited),
        local_address: local_address(row, problems),
        dscp: dscp(row, problems),
    }
}

fn dscp(row: &vswitch::Controller, problems: &mut Problems) -> u8 {
    let map = &row.other_config;
    Options::new("Controller", &row.target, "other_config", map, problems).unknown(&["dscp"]);
    let Some(text) = row.other_config.get("dscp") else {
        return DEFAULT_DSCP;
    };
    let dscp = text.parse().ok().filter(|dscp| *dscp < 64);
    if dscp.is_none() {
        problems.add(
            "Controller",
            &row.target,
            "other_config:dscp",
            format!("\"{text}\" is not a number from 0 to 63, using {DEFAULT_DSCP}"),
        );
    }
    dscp.unwrap_or(DEFAULT_DSCP)
}

fn limited(value: i64) -> u32 {
    value.clamp(0, i64::from(i32::MAX)) as u32
}

fn local_address(row: &vswitch::Controller, problems: &mut Problems) -> Option<LocalAddress> {
    let mut parse = |column: &str, text: &Option<String>| {
        let text = text.as_deref()?;
        let address = text
            .parse::<Ipv4Addr>()
            .ok()
            .filter(|address| !address.is_unspecified());
        if address.is_none() {
            problems.add(
                "Controller",
                &row.target,
                column,
                format!("\"{text}\" is not an IPv4 address, ignoring it"),
            );
        }
        address
    };
    let address = parse("local_ip", &row.local_ip)?;
    let netmask = parse("local_netmask", &row.local_netmask);
    let gateway = parse("local_gateway", &row.local_gateway);
    Some(LocalAddress {
        address,
        netmask: netmask.unwrap_or_else(|| class_mask(address)),
        gateway,
    })
}

/// Returns the netmask of an address's historical class.
fn class_mask(address: Ipv4Addr) -> Ipv4Addr {
    match address.octets()[0] {
        0..128 => Ipv4Addr::new(255, 0, 0, 0),
        128..192 => Ipv4Addr::new(255, 255, 0, 0),
        _ => Ipv4Addr::new(255, 255, 255, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(targets: &[&str]) -> Vec<vswitch::Controller> {
        let row = |target: &&str| vswitch::Controller {
            target: (*target).to_owned(),
            ..Default::default()
        };
        targets.iter().map(row).collect()
    }

    fn read_rows(rows: &[vswitch::Controller]) -> (Vec<Controller>, Problems) {
        let mut problems = Problems::default();
        let defaults = BridgeDefaults {
            bridge: "br0",
            disable_in_band: false,
            queue_size: 100,
            rundir: Path::new("/run/ovs"),
        };
        (read(rows, defaults, &mut problems), problems)
    }

    #[test]
    fn defaults_and_kinds() {
        let (controllers, problems) = read_rows(&rows(&["ptcp:6653", "tcp:10.0.0.1"]));
        assert_eq!(problems, Problems::default());
        assert_eq!(
            (controllers[0].service, controllers[1].service),
            (true, false)
        );
        let controller = &controllers[1];
        assert_eq!(
            (
                controller.max_backoff,
                controller.inactivity_probe,
                controller.queue_size
            ),
            (8, 5, 100)
        );
        assert!(
            controller.in_band && controller.asynchronous && controller.local_address.is_none()
        );
        assert!(read_rows(&rows(&["none"])).0.is_empty());
    }

    #[test]
    fn sockets_outside_the_run_directory_are_refused() {
        for good in ["unix:/run/ovs/x", "unix:relative", "punix:/run/ovs/br0.ctl"] {
            assert_eq!(read_rows(&rows(&[good])).0.len(), 1, "{good}");
        }
        for bad in [
            "unix:/tmp/x",
            "unix:/run/ovs/../x",
            "punix:/tmp/x",
            "punix:/run/ovs/br1.x",
            "punix:/run/ovs/br0.x/y",
        ] {
            let (controllers, problems) = read_rows(&rows(&[bad]));
            assert_eq!((controllers.len(), problems.0.len()), (0, 1), "{bad}");
            assert_eq!(problems.0[0].severity, Severity::Error);
            let advice = "or connect to \"unix:/run/ovs/br0.mgmt\" \
                          (which is always available without special configuration).";
            let text = match bad.starts_with("unix:") {
                true => format!(
                    "bridge br0: Not connecting to socket controller \"{bad}\" due to possibility \
                     for remote exploit.  Instead, specify socket in permitted directory \
                     \"unix:/run/ovs/\" {advice}"
                ),
                false => format!(
                    "bridge br0: Not adding Unix domain socket controller \"{bad}\" due to \
                     possibility of overwriting local files. Instead, specify path in permitted \
                     format \"punix:/run/ovs/br0.*\" {advice}"
                ),
            };
            assert_eq!(problems.0[0].message, text);
        }
    }

    #[test]
    fn nonsense_and_repetition_are_problems() {
        let (controllers, problems) =
            read_rows(&rows(&["nonsense", "tcp:", "tcp:a", "tcp:a", "none"]));
        assert_eq!((controllers.len(), problems.0.len()), (1, 4));
    }

    #[test]
    fn local_addresses() {
        let mut row = rows(&["tcp:a"]);
        row[0].local_ip = Some("192.168.1.2".into());
        row[0].local_gateway = Some("gateway".into());
        let (controllers, problems) = read_rows(&row);
        let address = controllers[0].local_address.unwrap();
        assert_eq!(
            (address.netmask, address.gateway, problems.0.len()),
            (Ipv4Addr::new(255, 255, 255, 0), None, 1)
        );
    }

    #[test]
    fn connections_are_marked() {
        for (text, dscp, complaints) in [
            (None, 48, 0),
            (Some("0"), 0, 0),
            (Some("63"), 63, 0),
            (Some("64"), 48, 1),
            (Some("-1"), 48, 1),
            (Some("high"), 48, 1),
        ] {
            let mut row = rows(&["tcp:a"]);
            let options = text.map(|text| ("dscp".to_owned(), text.to_owned()));
            row[0].other_config = options.into_iter().collect();
            let (controllers, problems) = read_rows(&row);
            assert_eq!(
                (controllers[0].dscp, problems.0.len()),
                (dscp, complaints),
                "{text:?}"
            );
        }
    }
}
