//! Options of the switch as a whole: the root row's `other_config`.

use datapath::{Assignment, AutoBalance, SteeringMode};
use ovsdb::vswitch::Strings;
use std::net::{Ipv4Addr, SocketAddr};

use super::problem::{Options, Problems};

/// Whether DPDK is used (`dpdk-init`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DpdkInit {
    /// Not asked for.
    #[default]
    No,
    /// Required: the daemon ends when DPDK does not start.
    Yes,
    /// Optional: the daemon goes on when DPDK does not start.
    Try,
}

/// DPDK's start options. Changes after DPDK has started take effect when the daemon restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dpdk {
    /// Whether to start it.
    pub init: DpdkInit,
    /// `dpdk-lcore-mask`: hexadecimal mask of the CPUs of DPDK's own threads.
    pub lcore_mask: Option<String>,
    /// `dpdk-socket-mem`: MB to allocate at the start for each socket, such as `1024,0`.
    pub socket_mem: Option<String>,
    /// `dpdk-socket-limit`: most MB for each socket.
    pub socket_limit: Option<String>,
    /// `dpdk-alloc-mem`: MB to allocate at the start.
    pub alloc_mem: Option<u32>,
    /// `dpdk-hugepage-dir`: where hugetlbfs is mounted.
    pub hugepage_dir: Option<String>,
    /// `dpdk-extra`: further arguments, as a shell would split them.
    pub extra: Option<String>,
    /// `vhost-sock-dir`: directory of vhost-user sockets, relative to the run directory.
    pub vhost_sock_dir: Option<String>,
}

/// Options of the switch as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// DPDK's options.
    pub dpdk: Dpdk,
    /// `pmd-cpu-mask`: CPUs that get a worker, ascending. None leaves the choice to the daemon.
    pub worker_cpus: Option<Vec<usize>>,
    /// `max-idle`: ms that a cached flow may be idle.
    pub max_idle: u32,
    /// `flow-limit`: most cached flows.
    pub flow_limit: u32,
    /// `max-revalidator`: ms between revalidations of cached flows.
    pub max_revalidator: u32,
    /// `stats-update-interval`: ms between writes of statistics to the database.
    pub statistics_interval: u32,
    /// `flow-restore-wait`: whether packets and controllers must wait until flows are restored.
    pub flow_restore_wait: bool,
    /// `sluice-metrics`: where metrics are served over HTTP: a port of 127.0.0.1, or an address
    /// and a port.
    pub metrics: Option<SocketAddr>,
    /// `sluice-predict`: whether the cost of rules is predicted whenever they have changed.
    pub predict: bool,
    /// `sluice-rule-limit`: most rules of all bridges together; None derives it from the machine's
    /// memory.
    pub rule_limit: Option<u32>,
    /// `pmd-rxq-assign`: how receive queues are assigned to workers.
    pub assignment: Assignment,
    /// `pmd-auto-lb` and its keys: when queues are assigned anew by themselves.
    pub auto_balance: AutoBalance,
    /// `pmd-rxq-isolate`: whether workers that queues are pinned to serve no others.
    pub isolate: bool,
    /// `sluice-steering`: which worker processes which flow; None leaves it to controllers.
    pub steering: Option<SteeringMode>,
    /// `bundle-idle-timeout`: seconds after which an idle bundle is discarded.
    pub bundle_idle_s: u32,
    /// `vlan-limit`: how many VLAN tags of a packet are read, 1 or 2.
    pub vlan_limit: u8,
    /// `enable-statistics`: whether statistics of the system are written to the database.
    pub system_statistics: bool,
}

impl Default for Global {
    fn default() -> Self {
        read(&Strings::new(), &[], &mut Problems::default())
    }
}

/// Most minutes of `pmd-auto-lb-rebal-interval`.
const REBALANCE_MAX_MINUTES: i64 = 20_000;
/// Default seconds after which an idle bundle is discarded, as in Open vSwitch.
const BUNDLE_IDLE_S: u32 = 10;
const BUNDLE_IDLE_MAX_S: i64 = i32::MAX as i64;
/// Most rules of a switch; each has its own counter.
const RULE_LIMIT_MAX: i64 = 15_000_000;
/// Memory per rule, with its lookups, counters and OpenFlow state, in bytes: 640 were measured with
/// a million rules; doubled, because a rule that is being changed has two versions.
const RULE_BYTES: u64 = 1280;

impl Global {
    /// Returns the limit on rules of all bridges together, on a machine with `memory` bytes: by
    /// default rules may take a quarter of them.
    pub fn rules_max(&self, memory: u64) -> usize {
        let fits = (memory / 4 / RULE_BYTES).clamp(65_536, RULE_LIMIT_MAX as u64);
        self.rule_limit
            .map_or(fits as usize, |limit| limit as usize)
    }
}

/// Keys of ovs-vswitchd.conf.db(5) that have no effect here: they tune caches and threads that this
/// switch does not have, or enable what it always does (`userspace-tso-enable`).
const WITHOUT_EFFECT: &[&str] = &[
    "emc-insert-inv-prob",
    "hw-offload",
    "min-revalidate-pps",
    "n-handler-threads",
    "n-offload-threads",
    "n-revalidator-threads",
    "offload-rebalance",
    "per-port-memory",
    "pmd-maxsleep",
    "pmd-perf-metrics",
    "shared-mempool-config",
    "smc-enable",
    "tc-policy",
    "tx-flush-interval",
    "userspace-tso-enable",
    "vhost-iommu-support",
    "vhost-postcopy-support",
];

/// The other keys.
const KEYS: &[&str] = &[
    "bundle-idle-timeout",
    "dpdk-alloc-mem",
    "dpdk-extra",
    "dpdk-hugepage-dir",
    "dpdk-init",
    "dpdk-lcore-mask",
    "dpdk-socket-limit",
    "dpdk-socket-mem",
    "enable-statistics",
    "flow-limit",
    "flow-restore-wait",
    "max-idle",
    "max-revalidator",
    "pmd-auto-lb",
    "pmd-auto-lb-improvement-threshold",
    "pmd-auto-lb-load-threshold",
    "pmd-auto-lb-rebal-interval",
    "pmd-cpu-mask",
    "pmd-rxq-assign",
    "pmd-rxq-isolate",
    "sluice-metrics",
    "sluice-predict",
    "sluice-rule-limit",
    "sluice-steering",
    "stats-update-interval",
    "vhost-sock-dir",
    "vlan-limit",
    // For Open vSwitch's IPsec daemon.
    "ca_cert",
    "certificate",
    "ipsec_skb_mark",
    "private_key",
];

/// Reads the options. `cpus` are those that exist; if it is empty any number is accepted.
pub fn read(map: &Strings, cpus: &[usize], problems: &mut Problems) -> Global {
    let mut options = Options::new("Open_vSwitch", "", "other_config", map, problems);
    let dpdk = dpdk(&mut options);
    options.do_nothing(WITHOUT_EFFECT);
    options.misspelt(&["sluice-steer"], &[KEYS, WITHOUT_EFFECT]);
    let assignment = assignment(&mut options);
    Global {
        dpdk,
        worker_cpus: worker_cpus(&mut options, cpus),
        max_idle: options.integer("max-idle", 10_000, 500..=i64::from(i32::MAX)) as u32,
        flow_limit: options.integer("flow-limit", 200_000, 0..=i64::from(i32::MAX)) as u32,
        max_revalidator: options.integer("max-revalidator", 500, 100..=i64::from(i32::MAX)) as u32,
        statistics_interval: options.integer(
            "stats-update-interval",
            5000,
            5000..=i64::from(i32::MAX),
        ) as u32,
        flow_restore_wait: options.boolean("flow-restore-wait", false),
        metrics: metrics(&mut options),
        predict: options.boolean("sluice-predict", false),
        rule_limit: match options.integer("sluice-rule-limit", 0, 0..=RULE_LIMIT_MAX) {
            0 => None,
            limit => Some(limit as u32),
        },
        assignment,
        auto_balance: auto_balance(&mut options),
        isolate: isolate(&mut options, assignment),
        steering: options.choice(
            "sluice-steering",
            &SteeringMode::ALL.map(|(name, mode)| (name, Some(mode))),
            None,
        ),
        bundle_idle_s: match options.integer("bundle-idle-timeout", 0, 0..=BUNDLE_IDLE_MAX_S) {
            0 => BUNDLE_IDLE_S,
            seconds => seconds as u32,
        },
        vlan_limit: vlan_limit(&mut options),
        system_statistics: options.boolean("enable-statistics", false),
    }
}

/// Reads `pmd-rxq-assign`. Bad values get Open vSwitch's message.
fn assignment(options: &mut Options<'_>) -> Assignment {
    let key = "pmd-rxq-assign";
    let Some(text) = options.text(key) else {
        return Assignment::default();
    };
    let found = Assignment::ALL.into_iter().find(|(name, _)| *name == text);
    let Some((_, how)) = found else {
        let message = "Unsupported rx queue to PMD assignment mode in pmd-rxq-assign. \
                       Defaulting to 'cycles'.";
        options.complain(key, format!("\"{text}\": {message}"));
        return Assignment::default();
    };
    how
}

/// Reads `pmd-rxq-isolate`, which can be false only with `pmd-rxq-assign=group`.
fn isolate(options: &mut Options<'_>, assignment: Assignment) -> bool {
    let key = "pmd-rxq-isolate";
    let isolates = options.boolean(key, true);
    if !isolates && assignment != Assignment::Group {
        let message = "pmd-rxq-isolate can only be set false when using pmd-rxq-assign=group";
        options.complain(key, message);
        return true;
    }
    isolates
}

/// Reads `pmd-auto-lb` and its keys. As in Open vSwitch an interval of 0 is the default one, and a
/// threshold of more than 100% is the default one, too.
fn auto_balance(options: &mut Options<'_>) -> AutoBalance {
    let default = AutoBalance::default();
    let mut percent = |key: &str, default: u64| {
        let text = options.text(key).map(str::trim);
        let number = options.integer(key, default as i64, 0..=i64::MAX);
        if number > 100 {
            let text = text.unwrap_or_default();
            options.complain(
                key,
                format!("{text} is not in range 0 to 100, using {default}"),
            );
            return default;
        }
        number as u64
    };
    let load_threshold = percent("pmd-auto-lb-load-threshold", default.load_threshold);
    let improvement_threshold = percent(
        "pmd-auto-lb-improvement-threshold",
        default.improvement_threshold,
    );
    let key = "pmd-auto-lb-rebal-interval";
    let minutes = options.integer(
        key,
        default.interval_minutes as i64,
        0..=REBALANCE_MAX_MINUTES,
    );
    AutoBalance {
        is_enabled: options.boolean("pmd-auto-lb", default.is_enabled),
        interval_minutes: minutes.max(1) as u64,
        load_threshold,
        improvement_threshold,
    }
}

/// Reads `vlan-limit` as Open vSwitch does: 1 by default; 0 means as many tags as possible.
fn vlan_limit(options: &mut Options<'_>) -> u8 {
    match options.integer("vlan-limit", 1, 0..=i64::from(i32::MAX)) {
        1 => 1,
        _ => 2,
    }
}

fn metrics(options: &mut Options<'_>) -> Option<SocketAddr> {
    let text = options.text("sluice-metrics")?;
    let port = text.parse::<u16>().ok();
    let address = match port {
        Some(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        None => text.parse().ok(),
    };
    let address = address.filter(|address| address.port() != 0);
    if address.is_none() {
        options.complain(
            "sluice-metrics",
            format!("\"{text}\" is neither PORT nor ADDRESS:PORT, ignoring it"),
        );
    }
    address
}

fn dpdk(options: &mut Options<'_>) -> Dpdk {
    let words = [
        ("true", DpdkInit::Yes),
        ("try", DpdkInit::Try),
        ("false", DpdkInit::No),
    ];
    Dpdk {
        init: options.choice("dpdk-init", &words, DpdkInit::No),
        lcore_mask: checked(
            options,
            "dpdk-lcore-mask",
            "a hexadecimal mask of some CPU",
            |text| parse_mask(text).is_some_and(|cpus| !cpus.is_empty()),
        ),
        socket_mem: checked(
            options,
            "dpdk-socket-mem",
            "a list of megabytes",
            is_number_list,
        ),
        socket_limit: checked(
            options,
            "dpdk-socket-limit",
            "a list of megabytes",
            is_number_list,
        ),
        alloc_mem: options
            .optional_integer("dpdk-alloc-mem", 0..=i64::from(i32::MAX))
            .map(|mb| mb as u32),
        hugepage_dir: checked(options, "dpdk-hugepage-dir", "an absolute path", |text| {
            text.starts_with('/')
        }),
        extra: options.string("dpdk-extra"),
        vhost_sock_dir: checked(
            options,
            "vhost-sock-dir",
            "a path below the run directory",
            |text| !text.contains(".."),
        ),
    }
}

fn checked(
    options: &mut Options<'_>,
    key: &str,
    wanted: &str,
    good: impl Fn(&str) -> bool,
) -> Option<String> {
    let text = options.text(key)?;
    if good(text) {
        return Some(text.to_owned());
    }
    options.complain(key, format!("\"{text}\" is not {wanted}, ignoring it"));
    None
}

fn is_number_list(text: &str) -> bool {
    text.split(',').all(|part| part.parse::<u32>().is_ok())
}

fn worker_cpus(options: &mut Options<'_>, cpus: &[usize]) -> Option<Vec<usize>> {
    let text = options.text("pmd-cpu-mask")?;
    let Some(mut wanted) = parse_mask(text) else {
        options.complain(
            "pmd-cpu-mask",
            format!("\"{text}\" is not a hexadecimal CPU mask, ignoring it"),
        );
        return None;
    };
    if !cpus.is_empty() {
        let missing: Vec<String> = wanted
            .iter()
            .filter(|cpu| !cpus.contains(cpu))
            .map(usize::to_string)
            .collect();
        if !missing.is_empty() {
            options.complain(
                "pmd-cpu-mask",
                format!("no CPU {}, ignoring it", missing.join(", ")),
            );
        }
        wanted.retain(|cpu| cpus.contains(cpu));
    }
    // A mask without a usable CPU would stop forwarding altogether.
    (!wanted.is_empty()).then_some(wanted)
}

/// Parses a hexadecimal CPU mask such as `0x6`; the CPUs are in rising order, 4096 at most.
fn parse_mask(text: &str) -> Option<Vec<usize>> {
    let digits = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .unwrap_or(text);
    if digits.is_empty() || digits.len() > 1024 {
        return None;
    }
    let mut cpus = Vec::new();
    for (at, digit) in digits.chars().rev().enumerate() {
        let bits = digit.to_digit(16)?;
        cpus.extend(
            (0..4)
                .filter(|bit| bits >> bit & 1 != 0)
                .map(|bit| at * 4 + bit),
        );
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_take_a_quarter_of_the_memory_unless_somebody_says_otherwise() {
        let limit = |value| read_one("sluice-rule-limit", value).0.rules_max(24 << 30);
        assert_eq!(limit("0"), (6 << 30) / RULE_BYTES as usize);
        assert_eq!(limit("1"), 1);
        assert_eq!(limit("15000000"), 15_000_000);
        for (bad, taken) in [("15000001", "15000000"), ("-1", "0"), ("many", "0")] {
            assert_eq!(read_one("sluice-rule-limit", bad).1, 1);
            assert_eq!(limit(bad), limit(taken));
        }
        let global = Global::default();
        assert_eq!(global.rules_max(1 << 20), 65_536);
        assert_eq!(global.rules_max(1 << 50), 15_000_000);
    }

    #[test]
    fn one_vlan_tag_is_read_or_two() {
        let limit = |value| {
            let (global, problems) = read_one("vlan-limit", value);
            (global.vlan_limit, problems)
        };
        assert_eq!(Global::default().vlan_limit, 1);
        for (value, taken) in [("0", 2), ("1", 1), ("2", 2), ("3", 2)] {
            assert_eq!(limit(value), (taken, 0));
        }
        assert_eq!(limit("two"), (1, 1));
        assert_eq!(limit("-1"), (2, 1));
    }

    #[test]
    fn options_without_effect_are_reported() {
        assert_eq!(read_one("smc-enable", "true").1, 1);
        assert_eq!(read_one("smc-enable", "false").1, 0);
    }

    fn read_one(key: &str, value: &str) -> (Global, usize) {
        let mut problems = Problems::default();
        let global = read(
            &Strings::from([(key.to_owned(), value.to_owned())]),
            &[0, 1],
            &mut problems,
        );
        (global, problems.0.len())
    }

    #[test]
    fn queues_are_assigned_as_open_vswitch_does() {
        let how = |text| {
            let (global, problems) = read_one("pmd-rxq-assign", text);
            (global.assignment, problems)
        };
        assert_eq!(Global::default().assignment, Assignment::Cycles);
        assert_eq!(how("roundrobin"), (Assignment::RoundRobin, 0));
        assert_eq!(how("cycles"), (Assignment::Cycles, 0));
        assert_eq!(how("group"), (Assignment::Group, 0));
        for bad in ["", "Group", "fast"] {
            assert_eq!(how(bad), (Assignment::Cycles, 1), "{bad}");
        }
        // Cores with pinned queues serve others only with `group`.
        let isolates = |how: &str| {
            let map = [("pmd-rxq-isolate", "false"), ("pmd-rxq-assign", how)];
            let map = map.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let mut problems = Problems::default();
            let global = read(&Strings::from(map), &[], &mut problems);
            (global.isolate, problems.0.len())
        };
        assert_eq!(isolates("group"), (false, 0));
        assert_eq!(isolates("cycles"), (true, 1));
        assert_eq!(isolates("roundrobin"), (true, 1));
        assert_eq!(isolates("bad"), (true, 2));
    }

    #[test]
    fn automatic_balancing_has_open_vswitchs_limits() {
        assert_eq!(Global::default().auto_balance, AutoBalance::default());
        let read = |key, value| {
            let (global, problems) = read_one(key, value);
            (global.auto_balance, problems)
        };
        assert!(read("pmd-auto-lb", "true").0.is_enabled);
        let interval = |text| {
            let (read, problems) = read("pmd-auto-lb-rebal-interval", text);
            (read.interval_minutes, problems)
        };
        for (text, expected) in [
            ("0", (1, 0)),
            ("20000", (20_000, 0)),
            ("20001", (20_000, 1)),
            ("-1", (1, 1)),
            ("soon", (1, 1)),
        ] {
            assert_eq!(interval(text), expected, "{text}");
        }
        let load = |text| {
            let (read, problems) = read("pmd-auto-lb-load-threshold", text);
            (read.load_threshold, problems)
        };
        for (text, expected) in [
            ("0", (0, 0)),
            ("100", (100, 0)),
            ("101", (95, 1)),
            ("-1", (0, 1)),
            ("high", (95, 1)),
        ] {
            assert_eq!(load(text), expected, "{text}");
        }
        let (balance, problems) = read("pmd-auto-lb-improvement-threshold", "101");
        assert_eq!((balance.improvement_threshold, problems), (25, 1));
    }

    #[test]
    fn defaults_are_open_vswitchs() {
        let global = Global::default();
        assert_eq!(
            (
                global.max_idle,
                global.flow_limit,
                global.statistics_interval
            ),
            (10_000, 200_000, 5000)
        );
        assert!(
            !global.flow_restore_wait
                && global.worker_cpus.is_none()
                && global.dpdk == Dpdk::default()
        );
    }

    #[test]
    fn values_are_read_and_bad_ones_are_problems() {
        assert_eq!(read_one("pmd-cpu-mask", "0x2").0.worker_cpus, Some(vec![1]));
        assert_eq!(
            read_one("pmd-cpu-mask", "3").0.worker_cpus,
            Some(vec![0, 1])
        );
        let (global, problems) = read_one("pmd-cpu-mask", "f");
        assert_eq!((global.worker_cpus, problems), (Some(vec![0, 1]), 1));
        for bad in ["", "0x", "g", "0xfffffffffffffffffg", "4"] {
            let (global, problems) = read_one("pmd-cpu-mask", bad);
            assert_eq!((global.worker_cpus, problems), (None, 1), "{bad}");
        }
        assert_eq!(read_one("dpdk-init", "try").0.dpdk.init, DpdkInit::Try);
        assert_eq!(read_one("dpdk-init", "maybe"), (Global::default(), 1));
        assert_eq!(
            read_one("dpdk-socket-mem", "1024,0")
                .0
                .dpdk
                .socket_mem
                .as_deref(),
            Some("1024,0")
        );
        assert_eq!(
            read_one("dpdk-socket-mem", "1024, lots"),
            (Global::default(), 1)
        );
        assert_eq!(read_one("vhost-sock-dir", "../etc"), (Global::default(), 1));
        assert_eq!(
            read_one("sluice-steering", "rss").0.steering,
            Some(SteeringMode::Rss)
        );
        assert_eq!(read_one("sluice-steering", "fast"), (Global::default(), 1));
        assert_eq!(
            read_one("stats-update-interval", "1"),
            (Global::default(), 1)
        );
    }

    proptest! {
        #[test]
        fn a_mask_is_its_cpus(cpus in prop::collection::btree_set(0usize..128, 1..10)) {
            let number = cpus.iter().fold(0u128, |mask, cpu| mask | 1 << cpu);
            prop_assert_eq!(parse_mask(&format!("0x{number:x}")), Some(cpus.into_iter().collect()));
        }
    }
}
