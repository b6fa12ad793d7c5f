//! OpenFlow versions.

/// A version of the protocol; its discriminant is the number in the header's first byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the versions
pub enum Version {
    V1_0 = 1,
    V1_1 = 2,
    V1_2 = 3,
    V1_3 = 4,
    V1_4 = 5,
    V1_5 = 6,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Version; 6] = [
        Version::V1_0,
        Version::V1_1,
        Version::V1_2,
        Version::V1_3,
        Version::V1_4,
        Version::V1_5,
    ];

    /// Returns the version with this header byte; None if it is not supported.
    pub fn from_wire(byte: u8) -> Option<Version> {
        Version::ALL
            .into_iter()
            .find(|version| *version as u8 == byte)
    }

    /// Returns the version with a name of `Bridge.protocols`: `OpenFlow10` to `OpenFlow15`.
    pub fn by_name(name: &str) -> Option<Version> {
        Version::ALL
            .into_iter()
            .find(|version| version.name() == name)
    }

    /// Returns the name in `Bridge.protocols`.
    pub fn name(self) -> &'static str {
        match self {
            Version::V1_0 => "OpenFlow10",
            Version::V1_1 => "OpenFlow11",
            Version::V1_2 => "OpenFlow12",
            Version::V1_3 => "OpenFlow13",
            Version::V1_4 => "OpenFlow14",
            Version::V1_5 => "OpenFlow15",
        }
    }

    /// Returns its bit in a version bitmap (OpenFlow 1.3.5 section 7.5.1: bit n is version number
    /// n).
    pub fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// The bitmap of all supported versions.
pub const ALL_VERSIONS: u32 = 0b111_1110;
