//! The settings of a cell: what an experiment's `settings` and `sweep` may name.

use crate::results::Value;
use std::collections::BTreeMap;

/// Names of settings, in the order in which `docs/lab.md` explains them.
pub const NAMES: &[&str] = &[
    "path",
    "ports",
    "direction",
    "job",
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

/// What stands between a frame's entry and its exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// From a physical port to another.
    PhysicalPhysical,
    /// From a physical port to a guest.
    PhysicalVirtual,
    /// From a guest to a physical port.
    VirtualPhysical,
    /// From a guest to another.
    VirtualVirtual,
    /// From a physical port through a guest to another physical port.
    PhysicalVirtualPhysical,
    /// From a physical port through a guest to another guest.
    PhysicalVirtualVirtual,
}

impl Path {
    const ALL: [(&'static str, Path); 6] = [
        ("p-p", Path::PhysicalPhysical),
        ("p-v", Path::PhysicalVirtual),
        ("v-p", Path::VirtualPhysical),
        ("v-v", Path::VirtualVirtual),
        ("p-v-p", Path::PhysicalVirtualPhysical),
        ("p-v-v", Path::PhysicalVirtualVirtual),
    ];

    /// Its name in experiments.
    pub fn name(self) -> &'static str {
        let found = Path::ALL.iter().find(|(_, path)| *path == self);
        found.expect("all are named").0
    }

    /// Kinds of its ports in the order of the plan: whether each is a guest's.
    pub fn guests(self) -> &'static [bool] {
        match self {
            Path::PhysicalPhysical => &[false, false],
            Path::PhysicalVirtual => &[false, true],
            Path::VirtualPhysical => &[true, false],
            Path::VirtualVirtual => &[true, true],
            Path::PhysicalVirtualPhysical => &[false, true, true, false],
            Path::PhysicalVirtualVirtual => &[false, true, true, true],
        }
    }

    /// Ports (numbers from 1) between which a guest forwards.
    pub fn through(self) -> Option<(u16, u16)> {
        (self.guests().len() == 4).then_some((2, 3))
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
    /// Whether frames go both ways (`both`), and not one way.
    pub both: bool,
    /// What the switch does.
    pub job: JobKind,
    /// Workers.
    pub workers: usize,
    /// Length of a frame with its check sequence, bytes, as the papers count.
    pub size: u16,
    /// Active flows.
    pub flows: u64,
    /// How the next flow is chosen.
    pub order: Order,
    /// Ports that each frame goes to (`job: copies`).
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
            path: Path::PhysicalPhysical,
            ports: Ports::Auto,
            both: false,
            job: JobKind::Cross,
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
    /// Reads settings; an error names the setting, its value and what there is.
    pub fn of(values: &BTreeMap<String, Value>) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for (name, value) in values {
            settings
                .set(name, value)
                .map_err(|what| format!("{name}: {what}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
        match name {
            "path" => self.path = word(value, &Path::ALL)?,
            "ports" => {
                self.ports = word(
                    value,
                    &[
                        ("auto", Ports::Auto),
                        ("memory", Ports::Memory),
                        ("veth", Ports::Veth),
                        ("virtual", Ports::Virtual),
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
                    ],
                )?;
            }
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
            _ => {
                return Err(format!(
                    "there is no such setting; there are {}",
                    NAMES.join(", ")
                ));
            }
        }
        Ok(())
    }
}

fn word<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, String> {
    let text = value.to_string();
    match words.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
            Err(format!(
                "there is no {text:?}; there are {}",
                names.join(", ")
            ))
        }
    }
}

fn number(value: &Value, least: f64, most: f64) -> Result<f64, String> {
    match value {
        Value::Number(number) if (least..=most).contains(number) => Ok(*number),
        _ => Err(format!(
            "{:?} is not a number within {least} and {most}",
            value.to_string()
        )),
    }
}

fn whole(value: &Value, least: u64, most: u64) -> Result<u64, String> {
    match value {
        Value::Number(number)
            if number.fract() == 0.0 && (least as f64..=most as f64).contains(number) =>
        {
            Ok(*number as u64)
        }
        _ => Err(format!(
            "{:?} is not a whole number within {least} and {most}",
            value.to_string()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: impl Into<Value>) -> Result<Settings, String> {
        Settings::of(&BTreeMap::from([(name.to_string(), value.into())]))
    }

    #[test]
    fn values_are_read_in_their_units() {
        assert_eq!(of("load", 1.5).unwrap().load, Some(1.5e6));
        assert_eq!(of("loss", 0.5).unwrap().loss, 0.005);
        assert_eq!(of("path", "p-v-p").unwrap().path.through(), Some((2, 3)));
        assert_eq!(of("path", "v-v").unwrap().path.name(), "v-v");
        assert!(of("direction", "both").unwrap().both);
    }

    #[test]
    fn bad_values_are_named_with_what_there_is() {
        let cases: [(&str, Value, &str); 6] = [
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
            let error = of(name, "?").unwrap_err();
            assert!(!error.contains("no such setting"), "{error}");
        }
    }
}
