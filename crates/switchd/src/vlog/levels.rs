//! Log levels: one for each module and destination, and the notation that changes them.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Severity of a message, the gravest first. `Off` is for thresholds only and logs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A threshold only: nothing is logged.
    Off,
    /// The daemon cannot go on.
    Emergency,
    /// Something is broken.
    Error,
    /// Something is unusual, but the daemon copes.
    Warning,
    /// Information for operators.
    Information,
    /// Information for developers.
    Debug,
}

impl Level {
    const ALL: [Level; 6] = [
        Level::Off,
        Level::Emergency,
        Level::Error,
        Level::Warning,
        Level::Information,
        Level::Debug,
    ];

    /// Returns the name in lines and tables.
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "OFF",
            Level::Emergency => "EMER",
            Level::Error => "ERR",
            Level::Warning => "WARN",
            Level::Information => "INFO",
            Level::Debug => "DBG",
        }
    }

    /// Converts a level of `tracing`; its `TRACE` becomes `dbg`, too.
    pub fn from_tracing(level: &tracing::Level) -> Self {
        match *level {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::INFO => Level::Information,
            _ => Level::Debug,
        }
    }

    /// Returns the severity of RFC 5424. As in Open vSwitch, `emer` becomes an alert: RFC 5424's
    /// emergency would write to every terminal.
    pub fn syslog_severity(self) -> u8 {
        match self {
            Level::Off | Level::Emergency => 1,
            Level::Error => 3,
            Level::Warning => 4,
            Level::Information => 6,
            Level::Debug => 7,
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|level| level.name().eq_ignore_ascii_case(word))
    }
}

/// Destination of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The system log.
    Syslog,
    /// Standard error.
    Console,
    /// The log file.
    File,
}

impl Destination {
    /// All destinations, in the order of `vlog/list-pattern`.
    pub const ALL: [Destination; 3] =
        [Destination::Syslog, Destination::Console, Destination::File];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Destination::Syslog => "SYSLOG",
            Destination::Console => "CONSOLE",
            Destination::File => "FILE",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|destination| destination.name().eq_ignore_ascii_case(word))
    }
}

/// Modules that can be named before any of their lines has been logged. The names are Open
/// vSwitch's, because start scripts use them (`-vofproto_dpif_xlate:dbg` must not keep the switch
/// from starting); where Sluice does the work of a module, it logs under that name.
const MODULES: &[&str] = &[
    "backtrace",
    "bfd",
    "bond",
    "bridge",
    "bundle",
    "bundles",
    "cfm",
    "collectors",
    "command_line",
    "connmgr",
    "conntrack",
    "conntrack_tp",
    "coverage",
    "ct_dpif",
    "daemon",
    "daemon_unix",
    "dns_resolve",
    "dpdk",
    "dpif",
    "dpif_lookup_autovalidator",
    "dpif_lookup_generic",
    "dpif_mfex_extract_study",
    "dpif_netdev",
    "dpif_netdev_extract",
    "dpif_netdev_impl",
    "dpif_netdev_lookup",
    "dpif_netlink",
    "dpif_netlink_rtnl",
    "entropy",
    "fail_open",
    "fatal_signal",
    "flow",
    "hmap",
    "in_band",
    "ipf",
    "ipfix",
    "jsonrpc",
    "lacp",
    "lldp",
    "lldpd",
    "lldpd_structs",
    "lockfile",
    "memory",
    "meta_flow",
    "native_tnl",
    "netdev",
    "netdev_afxdp",
    "netdev_dpdk",
    "netdev_dummy",
    "netdev_linux",
    "netdev_offload",
    "netdev_offload_dpdk",
    "netdev_offload_tc",
    "netdev_vport",
    "netflow",
    "netlink",
    "netlink_conntrack",
    "netlink_notifier",
    "netlink_socket",
    "nx_match",
    "odp_execute",
    "odp_execute_impl",
    "odp_util",
    "ofp_actions",
    "ofp_bundle",
    "ofp_connection",
    "ofp_errors",
    "ofp_flow",
    "ofp_group",
    "ofp_match",
    "ofp_meter",
    "ofp_monitor",
    "ofp_msgs",
    "ofp_packet",
    "ofp_port",
    "ofp_protocol",
    "ofp_queue",
    "ofp_table",
    "ofp_util",
    "ofproto",
    "ofproto_dpif",
    "ofproto_dpif_mirror",
    "ofproto_dpif_monitor",
    "ofproto_dpif_rid",
    "ofproto_dpif_upcall",
    "ofproto_dpif_xlate",
    "ofproto_xlate_cache",
    "ovs_lldp",
    "ovs_numa",
    "ovs_rcu",
    "ovs_replay",
    "ovs_router",
    "ovs_thread",
    "ovsdb_cs",
    "ovsdb_error",
    "ovsdb_idl",
    "ox_stat",
    "pcap",
    "pmd_perf",
    "poll_loop",
    "process",
    "rconn",
    "reconnect",
    "route_table",
    "rstp",
    "rstp_sm",
    "sflow",
    "sha1",
    "signals",
    "socket_util",
    "socket_util_unix",
    "stp",
    "stream",
    "stream_fd",
    "stream_replay",
    "stream_ssl",
    "stream_tcp",
    "stream_unix",
    "svec",
    "system_stats",
    "tc",
    "timeval",
    "tunnel",
    "unixctl",
    "userspace_tso",
    "util",
    "uuid",
    "vconn",
    "vconn_stream",
    "vlog",
    "vswitchd",
];

#[derive(Clone, Copy)]
struct Module {
    levels: [Level; 3],
    rate_limited: bool,
}

/// The levels of all modules. A module without levels of its own has those last set for all
/// modules.
pub(super) struct Table {
    modules: BTreeMap<String, Module>,
    others: Module,
}

impl Table {
    pub(super) fn new() -> Self {
        let module = Module {
            levels: [Level::Information; 3],
            rate_limited: true,
        };
        Table {
            modules: MODULES
                .iter()
                .map(|name| (name.to_string(), module))
                .collect(),
            others: module,
        }
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.modules.contains_key(&name.to_ascii_lowercase())
    }

    fn get(&self, name: &str) -> &Module {
        self.modules.get(name).unwrap_or(&self.others)
    }

    /// Returns for each destination whether it logs `module` at `level`.
    pub(super) fn heard(&self, module: &str, level: Level) -> [bool; 3] {
        self.get(module).levels.map(|threshold| level <= threshold)
    }

    pub(super) fn is_rate_limited(&self, module: &str) -> bool {
        self.get(module).rate_limited
    }

    fn each(&mut self, module: Option<&str>, change: impl Fn(&mut Module)) {
        match module {
            Some(name) => {
                if let Some(module) = self.modules.get_mut(&name.to_ascii_lowercase()) {
                    change(module);
                }
            }
            None => {
                self.modules.values_mut().for_each(&change);
                change(&mut self.others);
            }
        }
    }

    /// Sets the level of one module or all, for one destination or all.
    pub(super) fn set(
        &mut self,
        module: Option<&str>,
        destination: Option<Destination>,
        level: Level,
    ) {
        self.each(module, |module| match destination {
            Some(destination) => module.levels[destination as usize] = level,
            None => module.levels = [level; 3],
        });
    }

    pub(super) fn set_rate_limited(&mut self, module: Option<&str>, limited: bool) {
        self.each(module, |module| module.rate_limited = limited);
    }

    /// Returns the text of `vlog/list`.
    pub(super) fn list(&self) -> String {
        let mut text = String::from("                 console    syslog    file\n");
        text.push_str("                 -------    ------    ------\n");
        for (name, module) in &self.modules {
            let level = |destination: Destination| module.levels[destination as usize].name();
            let (console, syslog, file) = (
                level(Destination::Console),
                level(Destination::Syslog),
                level(Destination::File),
            );
            let _ = write!(
                text,
                "{name:<16}  {console:>4}       {syslog:>4}       {file:>4}"
            );
            text.push_str(if module.rate_limited {
                "\n"
            } else {
                "    (rate limiting disabled)\n"
            });
        }
        text
    }
}

/// The change that a specification asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Level {
        module: Option<String>,
        destination: Option<Destination>,
        level: Level,
    },
    Pattern(Destination, String),
    Facility(u8),
}

const SEPARATORS: &[char] = &[' ', ',', ':', '\t'];

/// Returns the first word of `text` and what follows the separator after it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(SEPARATORS);
    if text.is_empty() {
        return None;
    }
    let end = text.find(SEPARATORS).unwrap_or(text.len());
    Some((&text[..end], text.get(end + 1..).unwrap_or("")))
}

/// Reads a specification: `[MODULE][:DESTINATION][:LEVEL]` in any order, `PATTERN:DESTINATION:TEXT`
/// or `FACILITY:NAME`. The caller must check whether the module exists.
pub(super) fn parse(text: &str) -> Result<Change, String> {
    let first = word(text);
    match first {
        Some((name, rest)) if name.eq_ignore_ascii_case("PATTERN") => {
            let (name, rest) = word(rest).ok_or("missing destination")?;
            let destination = Destination::parse(name)
                .ok_or_else(|| format!("unknown destination \"{name}\""))?;
            return Ok(Change::Pattern(destination, rest.to_string()));
        }
        Some((name, rest)) if name.eq_ignore_ascii_case("FACILITY") => {
            return super::pattern::facility(rest)
                .map(Change::Facility)
                .ok_or_else(|| "invalid facility".into());
        }
        _ => {}
    }
    let (mut module, mut destination, mut level) = (None, None, None);
    let mut rest = text;
    while let Some((name, after)) = word(rest) {
        rest = after;
        if name.eq_ignore_ascii_case("ANY") {
            continue;
        } else if let Some(found) = Destination::parse(name) {
            if destination.replace(found).is_some() {
                return Err("cannot specify multiple destinations".into());
            }
        } else if let Some(found) = Level::parse(name) {
            if level.replace(found).is_some() {
                return Err("cannot specify multiple levels".into());
            }
        } else {
            if !MODULES.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                return Err(format!("no destination, level, or module \"{name}\""));
            }
            if module.replace(name.to_ascii_lowercase()).is_some() {
                return Err("cannot specify multiple modules".into());
            }
        }
    }
    Ok(Change::Level {
        module,
        destination,
        level: level.unwrap_or(Level::Debug),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn specifications() {
        let level = |module: Option<&str>, destination, level| {
            Ok(Change::Level {
                module: module.map(String::from),
                destination,
                level,
            })
        };
        assert_eq!(parse(""), level(None, None, Level::Debug));
        assert_eq!(
            parse("console:off"),
            level(None, Some(Destination::Console), Level::Off)
        );
        assert_eq!(
            parse("DBG Bridge,file"),
            level(Some("bridge"), Some(Destination::File), Level::Debug)
        );
        assert_eq!(parse("any:any:warn"), level(None, None, Level::Warning));
        assert_eq!(
            parse("PATTERN:file:%d|x:%m"),
            Ok(Change::Pattern(Destination::File, "%d|x:%m".into()))
        );
        assert_eq!(
            parse("PATTERN:foo:bar"),
            Err("unknown destination \"foo\"".into())
        );
        assert_eq!(parse("PATTERN"), Err("missing destination".into()));
        assert_eq!(parse("FACILITY:local0"), Ok(Change::Facility(16)));
        assert_eq!(parse("FACILITY:bar"), Err("invalid facility".into()));
        assert_eq!(
            parse("info dbg"),
            Err("cannot specify multiple levels".into())
        );
        assert_eq!(
            parse("file console"),
            Err("cannot specify multiple destinations".into())
        );
        assert_eq!(
            parse("bridge ofproto"),
            Err("cannot specify multiple modules".into())
        );
        assert_eq!(
            parse("bridge:file:bar"),
            Err("no destination, level, or module \"bar\"".into())
        );
    }

    #[test]
    fn the_table_is_open_vswitchs() {
        let mut table = Table::new();
        table.set(None, Some(Destination::Console), Level::Off);
        table.set(Some("bridge"), Some(Destination::File), Level::Debug);
        table.set_rate_limited(Some("vlog"), false);
        let list = table.list();
        assert!(list.starts_with("                 console    syslog    file\n                 -------    ------    ------\n"));
        assert!(
            list.contains("\nbacktrace          OFF       INFO       INFO\n"),
            "{list}"
        );
        assert!(list.contains("\nbridge             OFF       INFO        DBG\n"));
        assert!(list.contains("\ndpif_lookup_autovalidator   OFF       INFO       INFO\n"));
        assert!(list.contains(
            "\nvlog               OFF       INFO       INFO    (rate limiting disabled)\n"
        ));
        assert_eq!(table.heard("bridge", Level::Debug), [false, false, true]);
        assert_eq!(
            table.heard("never_seen", Level::Information),
            [true, false, true]
        );
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(MODULES.windows(2).all(|pair| pair[0] < pair[1]));
    }

    proptest! {
        #[test]
        fn no_specification_panics(text in "(PATTERN|FACILITY|bridge|file|dbg|any|\\PC|[ ,:\t]){0,8}") {
            let _ = parse(&text);
        }
    }
}
