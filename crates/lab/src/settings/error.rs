//! What is wrong with a cell's settings.

use super::{MOST_THROUGH, NAMES, Path};

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{setting}: {defect}")]
pub struct BadSetting {
    /// The setting's name.
    pub setting: String,
    /// What is wrong with it.
    pub defect: Defect,
}

/// What is wrong with a setting.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Defect {
    /// There is none of this name.
    #[error("there is no such setting; there are {}", NAMES.join(", "))]
    Unknown,
    /// The value is not one of a few words.
    #[error("there is no {text:?}; there are {}", .words.join(", "))]
    Word {
        /// The value.
        text: String,
        /// The words.
        words: Vec<&'static str>,
    },
    /// The value is no number within bounds.
    #[error("{text:?} is not a number within {least} and {most}")]
    Number {
        /// The value.
        text: String,
        /// The least that is accepted.
        least: f64,
        /// The most that is accepted.
        most: f64,
    },
    /// The value is no whole number within bounds.
    #[error("{text:?} is not a whole number within {least} and {most}")]
    Whole {
        /// The value.
        text: String,
        /// The least that is accepted.
        least: u64,
        /// The most that is accepted.
        most: u64,
    },
    /// The value is no path.
    #[error(
        "there is no {0:?}; there are p-p, p-v, v-p and v-v, and these with up to {MOST_THROUGH} \
         guests (v) between, such as p-v-v-p"
    )]
    Path(String),
    /// The chain and the path have different numbers of guests.
    #[error("{chain}, but the path {} has {} guests between its ends", .path.name(), .path.through)]
    Chain {
        /// The chain's guests.
        chain: usize,
        /// The path.
        path: Path,
    },
    /// The value cannot name a file.
    #[error("{0:?} is no name of a file")]
    File(String),
    /// The value is a number.
    #[error("{0:?} is no name of a device")]
    NotDevices(String),
    /// The value is empty.
    #[error("no device is named")]
    NoDevice,
    /// One of the names cannot be a device's.
    #[error("{0:?} is neither an interface's name nor a PCI address")]
    Device(String),
    /// One of the names occurs twice.
    #[error("{0} is named twice")]
    Twice(String),
    /// The path has more physical ports than there are devices.
    #[error(
        "the path {} has {physical} physical ports, and {} devices are named: {}",
        .path.name(),
        .devices.len(),
        .devices.join(" ")
    )]
    TooFewDevices {
        /// The path.
        path: Path,
        /// Its physical ports.
        physical: usize,
        /// The devices.
        devices: Vec<String>,
    },
    /// One of the other ends is a port itself.
    #[error("{0} is one of the devices, too")]
    AlsoDevice(String),
    /// The job needs the setting.
    #[error("job: given needs a file")]
    NeedsFile,
    /// The job has no use for the setting.
    #[error("is for job: given")]
    OnlyGiven,
    /// Other ports have no use for the setting.
    #[error("is for ports: devices")]
    OnlyDevices,
}

impl Defect {
    /// Says that the setting of this name has the defect.
    pub(super) fn of(self, setting: &str) -> BadSetting {
        BadSetting {
            setting: setting.to_owned(),
            defect: self,
        }
    }
}
