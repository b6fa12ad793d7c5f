//! Kernel interfaces that the daemon steers itself: `sluice-steer` and its companions in the root
//! row's `other_config`. They mean what the options of `sluice steer run` mean.

use super::problem::{Options, Problems};
use ovsdb::vswitch::Strings;
use softirq::control::{CONSTANTS, set_constants};
use softirq::layout::CPUS_MAX;
use softirq::parse::Layout;
use softirq::program::Mode;
use softirq::session::{self, Settings};
use std::collections::BTreeSet;

/// Most interfaces. Each has programs on the kernel's tracepoints, which run whenever a processor
/// changes between tasks and interrupts, so many would cost more than they gain.
pub const DEVICES_MAX: usize = 16;
/// Most bytes of an interface's name in Linux.
const NAME_MAX: usize = 15;

/// The keys. Others that begin alike are misspelt.
const KEYS: [&str; 11] = [
    DEVICES, MODE, CORES, LAYOUT, TRUSTED, STRIP, VXLAN, ENTRIES, FLOWS, SET, PROC_STAT,
];
/// Key for the interfaces, with commas between.
pub const DEVICES: &str = "sluice-steer";
const MODE: &str = "sluice-steer-mode";
const CORES: &str = "sluice-steer-cores";
const LAYOUT: &str = "sluice-steer-layout";
const TRUSTED: &str = "sluice-steer-fcf-trusted";
const STRIP: &str = "sluice-steer-fcf-strip";
const VXLAN: &str = "sluice-steer-vxlan-port";
const ENTRIES: &str = "sluice-steer-entries";
const FLOWS: &str = "sluice-steer-flows";
const SET: &str = "sluice-steer-set";
const PROC_STAT: &str = "sluice-steer-proc-stat";

/// The interfaces to steer, and how; the same for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steered {
    /// Their names.
    pub devices: BTreeSet<String>,
    /// Everything else, with an empty name.
    options: session::Options,
}

impl Default for Steered {
    fn default() -> Self {
        read(&Strings::new(), &[], &mut Problems::default())
    }
}

impl Steered {
    /// Returns the options of an interface's session.
    pub fn options(&self, device: &str) -> session::Options {
        session::Options {
            device: device.to_owned(),
            ..self.options.clone()
        }
    }
}

/// Reads the keys. `cores` are those that the machine has; if it is empty any number is accepted.
pub fn read(map: &Strings, cores: &[usize], problems: &mut Problems) -> Steered {
    let mut options = Options::new("Open_vSwitch", "", "other_config", map, problems);
    for key in map.keys() {
        if key.starts_with("sluice-steer-") && !KEYS.contains(&key.as_str()) {
            let keys = KEYS.join(", ");
            options.complain(key, format!("there is no such key, ignoring it ({keys})"));
        }
    }
    let layout = options.choice(
        LAYOUT,
        &[
            ("none", Layout::None),
            ("dscp6", Layout::Dscp6),
            ("tos8", Layout::Tos8),
            ("vlan", Layout::Vlan),
        ],
        Layout::None,
    );
    Steered {
        devices: devices(&mut options),
        options: session::Options {
            device: String::new(),
            mode: options.choice(
                MODE,
                &[
                    ("driver", Some(Mode::Driver)),
                    ("generic", Some(Mode::Generic)),
                ],
                None,
            ),
            cores: chosen_cores(&mut options, cores),
            layout,
            trusted: options.boolean(TRUSTED, false),
            strip: options.boolean(STRIP, matches!(layout, Layout::Tos8 | Layout::Vlan)),
            vxlan_port: options.integer(VXLAN, 4789, 1..=65_535) as u16,
            entries: options.integer(ENTRIES, 4096, 1..=session::ENTRIES_MAX.into()) as u32,
            flows: options.integer(FLOWS, 16_384, 1..=session::FLOWS_MAX.into()) as u32,
            settings: constants(&mut options),
            proc_stat: options.boolean(PROC_STAT, false),
        },
    }
}

fn devices(options: &mut Options<'_>) -> BTreeSet<String> {
    let mut devices = BTreeSet::new();
    let text = options.text(DEVICES).unwrap_or_default();
    for name in text.split(',').map(str::trim) {
        let is_name = !matches!(name, "" | "." | "..")
            && name.len() <= NAME_MAX
            && name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if !is_name {
            if !text.is_empty() {
                options.complain(
                    DEVICES,
                    format!("\"{name}\" is no interface's name, ignoring it"),
                );
            }
        } else if devices.len() == DEVICES_MAX && !devices.contains(name) {
            let message = format!("{name}: more than {DEVICES_MAX} interfaces, ignoring it");
            options.complain(DEVICES, message);
        } else {
            devices.insert(name.to_owned());
        }
    }
    devices
}

fn chosen_cores(options: &mut Options<'_>, cores: &[usize]) -> Option<BTreeSet<u32>> {
    let text = options.text(CORES)?;
    let parsed = softirq::cpus::parse(text).filter(|wanted| !wanted.is_empty());
    let Some(mut wanted) = parsed else {
        let message = format!("\"{text}\" is no list of cores such as 0-3,6; using all");
        options.complain(CORES, message);
        return None;
    };
    let exists = |core: &u32| {
        (*core as usize) < CPUS_MAX && (cores.is_empty() || cores.contains(&(*core as usize)))
    };
    let missing: Vec<String> = wanted
        .iter()
        .filter(|core| !exists(core))
        .map(u32::to_string)
        .take(8)
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let message = format!("no core {missing} can be steered to, ignoring it");
        options.complain(CORES, message);
        wanted.retain(exists);
    }
    if wanted.is_empty() {
        options.complain(CORES, "no core is left, using all");
        return None;
    }
    Some(wanted)
}

/// Reads the constants of the policy: NAME=VALUE, with commas or spaces between.
fn constants(options: &mut Options<'_>) -> Settings {
    let mut settings = Settings::default();
    let text = options.text(SET).unwrap_or_default();
    for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
        let pair = part
            .split_once('=')
            .and_then(|(name, value)| Some((name.to_owned(), value.parse::<f64>().ok()?)));
        let done = match pair {
            Some(pair) => set_constants(&mut settings, &[pair]).map_err(|error| error.to_string()),
            None => {
                let names = CONSTANTS.join(", ");
                Err(format!("must be NAME=VALUE; names are {names}"))
            }
        };
        if let Err(error) = done {
            options.complain(SET, format!("\"{part}\": {error}, ignoring it"));
        }
    }
    match settings.validate() {
        Ok(settings) => settings,
        Err(error) => {
            options.complain(SET, format!("{error}; using the defaults"));
            Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads keys and values; returns the texts of problems as well.
    fn read_all(map: &[(&str, &str)]) -> (Steered, Vec<String>) {
        let map = map
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()));
        let mut problems = Problems::default();
        let read = read(&map.collect(), &[0, 1, 2], &mut problems);
        (read, problems.0.iter().map(ToString::to_string).collect())
    }

    fn devices_of(text: &str) -> (Vec<String>, usize) {
        let (read, problems) = read_all(&[(DEVICES, text)]);
        (read.devices.into_iter().collect(), problems.len())
    }

    #[test]
    fn without_keys_nothing_is_steered() {
        assert_eq!(read_all(&[]), (Steered::default(), vec![]));
        assert!(Steered::default().devices.is_empty());
        let options = Steered::default().options("eth0");
        assert_eq!((options.device.as_str(), options.entries), ("eth0", 4096));
        assert_eq!(options.settings, Settings::default());
    }

    #[test]
    fn interfaces_are_names_with_commas_between() {
        assert_eq!(devices_of("eth0").0, ["eth0"]);
        assert_eq!(devices_of("eth1, eth0,eth1").0, ["eth0", "eth1"]);
        assert_eq!(devices_of(""), (vec![], 0));
        for bad in ["a/b", "..", "name-of-16-bytes", "a b", "a,", "ä"] {
            assert_eq!(devices_of(bad).1, 1, "{bad}");
            assert_eq!(devices_of(&format!("{bad},x")).0.last().unwrap(), "x");
        }
        let many: Vec<String> = (0..20).map(|number| format!("e{number}")).collect();
        let (devices, problems) = devices_of(&many.join(","));
        assert_eq!((devices.len(), problems), (DEVICES_MAX, 4));
    }

    #[test]
    fn options_are_those_of_the_command() {
        let (read, problems) = read_all(&[
            (DEVICES, "eth0"),
            (MODE, "generic"),
            (CORES, "0-1"),
            (LAYOUT, "tos8"),
            (TRUSTED, "true"),
            (VXLAN, "8472"),
            (ENTRIES, "7"),
            (FLOWS, "9"),
            (SET, "high=90, hold=400"),
            (PROC_STAT, "true"),
        ]);
        assert_eq!(problems, [""; 0]);
        let options = read.options("eth0");
        assert_eq!(options.mode, Some(Mode::Generic));
        assert_eq!(options.cores, Some(BTreeSet::from([0, 1])));
        assert!(options.trusted && options.strip && options.proc_stat);
        let numbers = (options.vxlan_port, options.entries, options.flows);
        assert_eq!(numbers, (8472, 7, 9));
        assert_eq!(options.settings.hold_ns, 400_000_000);
        let (read, _) = read_all(&[(LAYOUT, "tos8"), (STRIP, "false")]);
        assert!(!read.options("eth0").strip);
    }

    #[test]
    fn bad_values_are_problems_that_name_their_key() {
        let default = Steered::default();
        for (key, bad) in [
            (MODE, "fast"),
            (CORES, "1-"),
            (CORES, ""),
            (LAYOUT, "dscp"),
            (TRUSTED, "yes"),
            (STRIP, "no"),
            (VXLAN, "http"),
            (ENTRIES, "many"),
            (FLOWS, "-"),
            (SET, "low=1"),
            (SET, "high"),
            (SET, "high=0"),
            (SET, "hold=-1"),
            ("sluice-steer-core", "1"),
        ] {
            let (read, problems) = read_all(&[(key, bad)]);
            assert_eq!(read, default, "{key}={bad}");
            assert_eq!(problems.len(), 1, "{key}={bad}: {problems:?}");
            let place = format!("open_vswitch other_config:{key}: ");
            assert!(problems[0].starts_with(&place), "{problems:?}");
        }
        // Cores that the machine lacks are left out; so is what is out of range.
        let (read, problems) = read_all(&[(CORES, "1,7")]);
        assert_eq!(read.options("x").cores, Some(BTreeSet::from([1])));
        assert!(problems[0].contains("no core 7"), "{problems:?}");
        let (read, problems) = read_all(&[(CORES, "7")]);
        assert_eq!((read, problems.len()), (default, 2));
        let (read, problems) = read_all(&[(ENTRIES, "70000"), (VXLAN, "0")]);
        let options = read.options("x");
        assert_eq!((options.entries, options.vxlan_port), (65_536, 1));
        assert_eq!(problems.len(), 2);
        // The keys of the workers' steering are others'.
        assert_eq!(read_all(&[("sluice-steering", "rss")]).1, [""; 0]);
    }
}
