//! The settings of a cell: what an experiment's `settings` and `sweep` may name.

mod error;

pub use self::error::{BadSetting, Defect};

use crate::results::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Names of settings, in the order in which `docs/lab.md` explains them.
pub const NAMES: &[&str] = &[
    "path",
    "chain",
    "ports",
    "devices",
    "peers",
    "guest",
    "direction",
    "job",
    "openflow",
    "capture",
    "workers",
    "size",
    "flows",
    "order",
    "outputs",
    "rules",
    "load",
    "pattern",
    "burst",
    "most",
    "loss",
    "width",
];

/// Most guests that frames pass through: DPDK as distributions build it has 32 ports, and the
/// switch needs two for each and two more.
pub const MOST_THROUGH: usize = 15;

/// What stands between a frame's entry and its exit. Its name in experiments has a `p` for each
/// physical port and a `v` for each guest, in the order in which a frame meets them: `p-v-v-p` goes
/// through two guests, and in `p-v-v` the second guest takes what the first sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Whether frames come from a guest, and not from a physical port.
    pub from_guest: bool,
    /// Guests that frames pass through, one after the other.
    pub through: usize,
    /// Whether they end at a guest.
    pub to_guest: bool,
}

impl Path {
    /// Reads a name.
    pub fn of(name: &str) -> Option<Path> {
        let words: Option<Vec<bool>> = name
            .split('-')
            .map(|word| match word {
                "p" => Some(false),
                "v" => Some(true),
                _ => None,
            })
            .collect();
        let [from_guest, through @ .., to_guest] = &words?[..] else {
            return None;
        };
        let are_guests = through.iter().all(|is_guest| *is_guest);
        (are_guests && through.len() <= MOST_THROUGH).then_some(Path {
            from_guest: *from_guest,
            through: through.len(),
            to_guest: *to_guest,
        })
    }

    /// Its name in experiments.
    pub fn name(self) -> String {
        let letter = |is_guest| if is_guest { "v" } else { "p" };
        let through = "-v".repeat(self.through);
        format!(
            "{}{through}-{}",
            letter(self.from_guest),
            letter(self.to_guest)
        )
    }

    /// Kinds of its ports in the order of the plan: whether each is a guest's.
    pub fn guests(self) -> Vec<bool> {
        let mut guests = vec![self.from_guest];
        guests.extend(std::iter::repeat_n(true, 2 * self.through));
        guests.push(self.to_guest);
        guests
    }

    /// Ports (numbers from 1) between which guests forward, one pair for each guest.
    pub fn pairs(self) -> impl Iterator<Item = (u16, u16)> {
        (1..=self.through as u16).map(|guest| (2 * guest, 2 * guest + 1))
    }
}

/// What stands for a physical port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Memory, and a veth where the switch cannot have that.
    Auto,
    /// Frames in memory.
    Memory,
    /// A veth.
    Veth,
    /// A guest's interface.
    Virtual,
    /// Devices that are given: network cards.
    Devices,
}

/// What guests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// What the switch's ports for guests are for: virtio-user, or a TAP.
    Auto,
    /// virtio-user devices of one process.
    VirtioUser,
    /// Files of TAPs.
    Tap,
    /// Machines of QEMU's, one for each guest.
    Qemu,
}

impl GuestKind {
    const ALL: [(&'static str, GuestKind); 4] = [
        ("auto", GuestKind::Auto),
        ("virtio-user", GuestKind::VirtioUser),
        ("tap", GuestKind::Tap),
        ("qemu", GuestKind::Qemu),
    ];

    /// Its name in experiments.
    pub fn name(self) -> &'static str {
        let found = GuestKind::ALL.iter().find(|(_, kind)| *kind == self);
        found.expect("all are named").0
    }
}

/// What the switch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Frames go to the port beside.
    Cross,
    /// Frames go by their destination address.
    Stations,
    /// Frames are routed.
    Routes,
    /// Frames go to several ports.
    Copies,
    /// OpenFlow rules by destination address and port.
    Rules,
    /// Rules and frames of one's own.
    Given,
}

impl JobKind {
    /// Whether it has as many ports out as `outputs` says, and not one.
    pub fn has_outputs(self) -> bool {
        matches!(self, JobKind::Copies | JobKind::Given)
    }
}

/// When frames are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// At equal distances.
    Constant,
    /// As a Poisson process.
    Poisson,
    /// In bursts.
    Bursts,
}

/// How the next flow is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other.
    InTurn,
    /// At random, all equally likely.
    Random,
    /// At random, some far more often than others (exponent 1.1).
    Zipf,
}

/// The settings of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What stands between entry and exit.
    pub path: Path,
    /// What stands for a physical port.
    pub ports: Ports,
    /// Names of the devices that are physical ports (`ports: devices`), in the path's order:
    /// interfaces, or PCI addresses.
    pub devices: Vec<String>,
    /// Devices at the other ends of their wires, in the same order, where the generator is; none:
    /// whoever sends is not the lab's.
    pub peers: Vec<String>,
    /// What guests are.
    pub guest: GuestKind,
    /// Whether frames go both ways (`both`), and not one way.
    pub both: bool,
    /// What the switch does.
    pub job: JobKind,
    /// A file of OpenFlow rules, as `ovs-ofctl add-flows` takes them (`job: given`). Ports are
    /// numbers in the path's order, from 1.
    pub openflow: Option<PathBuf>,
    /// A capture of the frames that meet them (pcap), which the first port replays for ever.
    pub capture: Option<PathBuf>,
    /// Workers.
    pub workers: usize,
    /// Length of a frame with its check sequence, bytes, as the papers count.
    pub size: u16,
    /// Active flows.
    pub flows: u64,
    /// How the next flow is chosen.
    pub order: Order,
    /// Ports that each frame goes to (`job: copies`), or may go to (`job: given`).
    pub outputs: usize,
    /// Prefixes or rules (`job: routes`, `job: rules`); absent: as many as there are flows.
    pub rules: Option<u32>,
    /// Offered load, packets per second.
    pub load: Option<f64>,
    /// When frames are sent.
    pub pattern: Pattern,
    /// Frames of a burst.
    pub burst: u32,
    /// The highest load that is tried, packets per second.
    pub most: f64,
    /// Share of frames that may be lost: 0.005 is 0.5%.
    pub loss: f64,
    /// Width at which a search ends, relative to the load.
    pub width: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            path: Path {
                from_guest: false,
                through: 0,
                to_guest: false,
            },
            ports: Ports::Auto,
            devices: Vec::new(),
            peers: Vec::new(),
            guest: GuestKind::Auto,
            both: false,
            job: JobKind::Cross,
            openflow: None,
            capture: None,
            workers: 1,
            size: 64,
            flows: 1,
            order: Order::InTurn,
            outputs: 1,
            rules: None,
            load: None,
            pattern: Pattern::Constant,
            burst: 32,
            most: 14_880_952.0,
            loss: 0.0,
            width: 0.02,
        }
    }
}

impl Settings {
    /// Reads settings.
    pub fn of(values: &BTreeMap<String, Value>) -> Result<Settings, BadSetting> {
        let mut settings = Settings::default();
        for (name, value) in values {
            settings
                .set(name, value)
                .map_err(|defect| defect.of(name))?;
        }
        if let Some(chain) = values.get("chain") {
            let chain = whole(chain, 0, MOST_THROUGH as u64);
            let chain = chain.map_err(|defect| defect.of("chain"))? as usize;
            let path = settings.path;
            if ![0, chain].contains(&path.through) {
                return Err(Defect::Chain { chain, path }.of("chain"));
            }
            settings.path.through = chain;
        }
        Ok(settings)
    }

    /// Says what does not go together, where all settings of a cell are known.
    pub fn check(&self) -> Result<(), BadSetting> {
        for (name, file) in [("openflow", &self.openflow), ("capture", &self.capture)] {
            match (self.job == JobKind::Given, file) {
                (true, None) => return Err(Defect::NeedsFile.of(name)),
                (false, Some(_)) => return Err(Defect::OnlyGiven.of(name)),
                _ => {}
            }
        }
        let guests = self.path.guests();
        let mut physical = guests.iter().filter(|is_guest| !**is_guest).count();
        if self.job.has_outputs() && !self.path.to_guest {
            physical += self.outputs - 1;
        }
        let enough = |name: &str, devices: &[String]| match devices.len() < physical {
            true => Err(Defect::TooFewDevices {
                path: self.path,
                physical,
                devices: devices.to_vec(),
            }
            .of(name)),
            false => Ok(()),
        };
        if self.ports != Ports::Devices {
            return match (&self.devices[..], &self.peers[..]) {
                ([], []) => Ok(()),
                ([], _) => Err(Defect::OnlyDevices.of("peers")),
                _ => Err(Defect::OnlyDevices.of("devices")),
            };
        }
        enough("devices", &self.devices)?;
        if self.peers.is_empty() {
            return Ok(());
        }
        enough("peers", &self.peers)?;
        match self.peers.iter().find(|peer| self.devices.contains(peer)) {
            Some(peer) => Err(Defect::AlsoDevice(peer.clone()).of("peers")),
            None => Ok(()),
        }
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), Defect> {
        match name {
            "path" => {
                let text = value.to_string();
                self.path = Path::of(&text).ok_or(Defect::Path(text))?;
            }
            // It changes the path, when that is known.
            "chain" => drop(whole(value, 0, MOST_THROUGH as u64)?),
            "devices" => self.devices = names(value)?,
            "peers" => self.peers = names(value)?,
            "guest" => self.guest = word(value, &GuestKind::ALL)?,
            "ports" => {
                self.ports = word(
                    value,
                    &[
                        ("auto", Ports::Auto),
                        ("memory", Ports::Memory),
                        ("veth", Ports::Veth),
                        ("virtual", Ports::Virtual),
                        ("devices", Ports::Devices),
                    ],
                )?;
            }
            "direction" => self.both = word(value, &[("one", false), ("both", true)])?,
            "job" => {
                self.job = word(
                    value,
                    &[
                        ("cross", JobKind::Cross),
                        ("stations", JobKind::Stations),
                        ("routes", JobKind::Routes),
                        ("copies", JobKind::Copies),
                        ("rules", JobKind::Rules),
                        ("given", JobKind::Given),
                    ],
                )?;
            }
            "openflow" => self.openflow = Some(file(value)?),
            "capture" => self.capture = Some(file(value)?),
            "pattern" => {
                self.pattern = word(
                    value,
                    &[
                        ("constant", Pattern::Constant),
                        ("poisson", Pattern::Poisson),
                        ("bursts", Pattern::Bursts),
                    ],
                )?;
            }
            "order" => {
                self.order = word(
                    value,
                    &[
                        ("in-turn", Order::InTurn),
                        ("random", Order::Random),
                        ("zipf", Order::Zipf),
                    ],
                )?;
            }
            "workers" => self.workers = whole(value, 1, 64)? as usize,
            "size" => self.size = whole(value, 64, 9018)? as u16,
            "flows" => self.flows = whole(value, 1, 10_000_000)?,
            "outputs" => self.outputs = whole(value, 1, 8)? as usize,
            "rules" => self.rules = Some(whole(value, 1, 1_000_000)? as u32),
            "burst" => self.burst = whole(value, 1, 65_536)? as u32,
            "load" => self.load = Some(number(value, 1e-6, 1000.0)? * 1e6),
            "most" => self.most = number(value, 1e-6, 1000.0)? * 1e6,
            "loss" => self.loss = number(value, 0.0, 99.0)? / 100.0,
            "width" => self.width = number(value, 0.01, 50.0)? / 100.0,
            _ => return Err(Defect::Unknown),
        }
        Ok(())
    }
}

fn word<T: Copy>(value: &Value, words: &[(&'static str, T)]) -> Result<T, Defect> {
    let text = value.to_string();
    match words.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let words = words.iter().map(|(name, _)| *name).collect();
            Err(Defect::Word { text, words })
        }
    }
}

/// A file, which is looked at when it is used.
fn file(value: &Value) -> Result<PathBuf, Defect> {
    match value {
        // DPDK's list of a device's arguments has commas.
        Value::Text(text) if !text.is_empty() && !text.contains([',', '"']) => Ok(text.into()),
        _ => Err(Defect::File(value.to_string())),
    }
}

/// Names of devices, parted by blanks.
fn names(value: &Value) -> Result<Vec<String>, Defect> {
    let Value::Text(text) = value else {
        return Err(Defect::NotDevices(value.to_string()));
    };
    let names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Defect::NoDevice);
    }
    let is_name = |name: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        name.len() <= 15 && name != "." && name != ".." && name.chars().all(fine)
    };
    for (number, name) in names.iter().enumerate() {
        if !is_name(name) {
            return Err(Defect::Device(name.clone()));
        }
        if names[..number].contains(name) {
            return Err(Defect::Twice(name.clone()));
        }
    }
    Ok(names)
}

fn number(value: &Value, least: f64, most: f64) -> Result<f64, Defect> {
    match value {
        Value::Number(number) if (least..=most).contains(number) => Ok(*number),
        _ => Err(Defect::Number {
            text: value.to_string(),
            least,
            most,
        }),
    }
}

fn whole(value: &Value, least: u64, most: u64) -> Result<u64, Defect> {
    match value {
        Value::Number(number)
            if number.fract() == 0.0 && (least as f64..=most as f64).contains(number) =>
        {
            Ok(*number as u64)
        }
        _ => Err(Defect::Whole {
            text: value.to_string(),
            least,
            most,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: impl Into<Value>) -> Result<Settings, String> {
        let values = BTreeMap::from([(name.to_string(), value.into())]);
        Settings::of(&values).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_read_in_their_units() {
        assert_eq!(of("load", 1.5).unwrap().load, Some(1.5e6));
        assert_eq!(of("loss", 0.5).unwrap().loss, 0.005);
        assert_eq!(of("path", "p-v-p").unwrap().path.through, 1);
        assert!(of("direction", "both").unwrap().both);
    }

    #[test]
    fn files_are_for_the_job_that_has_them() {
        let settings = |values: &[(&str, &str)]| {
            let values = values
                .iter()
                .map(|(name, value)| (name.to_string(), Value::from(*value)));
            Settings::of(&values.collect())
        };
        let whole = [
            ("job", "given"),
            ("openflow", "flows.txt"),
            ("capture", "in.pcap"),
        ];
        let given = settings(&whole).unwrap();
        assert_eq!(given.capture.as_deref(), Some("in.pcap".as_ref()));
        assert_eq!(given.check(), Ok(()));
        let error = |values: &[(&str, &str)]| {
            let checked = settings(values).unwrap().check();
            checked.unwrap_err().to_string()
        };
        assert_eq!(error(&whole[..2]), "capture: job: given needs a file");
        assert_eq!(error(&whole[1..]), "openflow: is for job: given");
        let error = settings(&[("capture", "a,b")]).unwrap_err();
        assert_eq!(error, Defect::File("a,b".into()).of("capture"));
    }

    #[test]
    fn paths_are_what_their_names_say() {
        for (name, guests, pairs) in [
            ("p-p", "pp", vec![]),
            ("v-p", "vp", vec![]),
            ("p-v-p", "pvvp", vec![(2, 3)]),
            ("p-v-v", "pvvv", vec![(2, 3)]),
            ("p-v-v-p", "pvvvvp", vec![(2, 3), (4, 5)]),
            ("v-v-v-v", "vvvvvv", vec![(2, 3), (4, 5)]),
        ] {
            let path = of("path", name).unwrap().path;
            assert_eq!(path.name(), name);
            let letters = |is_guest: &bool| if *is_guest { 'v' } else { 'p' };
            let found: String = path.guests().iter().map(letters).collect();
            assert_eq!(found, guests, "{name}");
            assert_eq!(path.pairs().collect::<Vec<_>>(), pairs, "{name}");
        }
        for name in ["", "p", "p-p-p", "p-v-p-v", "p--p", "pvp"] {
            assert_eq!(Path::of(name), None, "{name}");
        }
        let longest = format!("p{}-p", "-v".repeat(MOST_THROUGH));
        assert!(Path::of(&longest).is_some());
        assert_eq!(Path::of(&longest.replacen("-v", "-v-v", 1)), None);
    }

    #[test]
    fn a_chain_has_a_length() {
        let chained = |path: &str, chain: f64| {
            let values = [("path", Value::from(path)), ("chain", chain.into())];
            let values = values.map(|(name, value)| (name.to_string(), value));
            Settings::of(&values.into()).map(|settings| settings.path.name())
        };
        assert_eq!(chained("p-p", 3.0).unwrap(), "p-v-v-v-p");
        assert_eq!(chained("p-v", 1.0).unwrap(), "p-v-v");
        assert_eq!(chained("p-v-p", 1.0).unwrap(), "p-v-p");
        assert_eq!(chained("v-p", 0.0).unwrap(), "v-p");
        let error = chained("p-v-p", 2.0).unwrap_err().to_string();
        assert!(
            error.contains("chain: 2") && error.contains("p-v-p has 1"),
            "{error}"
        );
    }

    #[test]
    fn devices_are_as_many_as_the_path_needs() {
        let checked = |texts: &[(&str, &str)]| {
            let values = texts
                .iter()
                .map(|(name, value)| (name.to_string(), Value::from(*value)));
            Settings::of(&values.collect())?.check()
        };
        let devices = ("ports", "devices");
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(
            checked(&[devices, ("devices", "eth0 0000:3b:00.0")]),
            Ok(())
        );
        let to_guest = ("path", "p-v");
        assert_eq!(checked(&[devices, to_guest, ("devices", "eth0")]), Ok(()));
        let two = ("devices", "a b");
        for (texts, wanted) in [
            (
                vec![devices],
                "devices: the path p-p has 2 physical ports, and 0",
            ),
            (
                vec![devices, ("devices", "eth0")],
                "and 1 devices are named: eth0",
            ),
            (vec![("devices", "a b")], "devices: is for ports: devices"),
            (vec![("peers", "a b")], "peers: is for ports: devices"),
            (
                vec![devices, two, ("peers", "c")],
                "peers: the path p-p has 2",
            ),
            (
                vec![devices, two, ("peers", "c b")],
                "peers: b is one of the devices",
            ),
            (
                vec![devices, ("devices", "a a")],
                "devices: a is named twice",
            ),
            (
                vec![devices, ("devices", "a/b")],
                "devices: \"a/b\" is neither",
            ),
            (
                vec![devices, ("devices", " ")],
                "devices: no device is named",
            ),
        ] {
            let error = checked(&texts).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn bad_values_are_named_with_what_there_is() {
        let cases: [(&str, Value, &str); 9] = [
            (
                "chain",
                16.0.into(),
                "chain: \"16\" is not a whole number within 0 and 15",
            ),
            (
                "devices",
                5.0.into(),
                "devices: \"5\" is no name of a device",
            ),
            (
                "guest",
                "xen".into(),
                "guest: there is no \"xen\"; there are auto, virtio-user, tap, qemu",
            ),
            (
                "path",
                "p-q".into(),
                "path: there is no \"p-q\"; there are p-p, p-v",
            ),
            (
                "size",
                63.0.into(),
                "size: \"63\" is not a whole number within 64 and 9018",
            ),
            ("size", 64.5.into(), "size: \"64.5\" is not a whole number"),
            (
                "flows",
                "many".into(),
                "flows: \"many\" is not a whole number within 1",
            ),
            ("load", 0.0.into(), "load: \"0\" is not a number within"),
            (
                "colour",
                1.0.into(),
                "colour: there is no such setting; there are path",
            ),
        ];
        for (name, value, error) in cases {
            let found = of(name, value).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }

    #[test]
    fn every_name_is_a_setting() {
        for name in NAMES {
            // A file may have any name.
            let error = of(name, "?").err().unwrap_or_default();
            assert!(!error.contains("no such setting"), "{error}");
        }
    }
}
