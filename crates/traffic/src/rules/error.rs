//! What is wrong with a line of a file of rules.

use super::RULES_MAX;

/// Longest part of a line that an error repeats, in characters.
const EXCERPT: usize = 60;

/// A line that is no rule, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {defect}")]
pub struct BadRule {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub defect: Defect,
}

/// The beginning of a text of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt(String);

impl From<&str> for Excerpt {
    fn from(text: &str) -> Excerpt {
        Excerpt(text.chars().take(EXCERPT).collect())
    }
}

impl std::fmt::Display for Excerpt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// A value is not a number, or above its bound.
    #[error("{text} is not a number from 0 to {most}")]
    Number {
        /// The value.
        text: Excerpt,
        /// The bound.
        most: u64,
    },
    /// A value is not an IP address, nor a prefix.
    #[error("{0} is not an IP address or prefix")]
    Address(Excerpt),
    /// A value is not an Ethernet address.
    #[error("{0} is not an Ethernet address")]
    EthernetAddress(Excerpt),
    /// A value is no VLAN's ID.
    #[error("{0} is above 4095")]
    VlanId(u64),
    /// An address is of the family that the match's name does not say.
    #[error("{0} is of the other family")]
    OtherFamily(Excerpt),
    /// A value of `nw_tos` has bits that are not DSCP's.
    #[error("{0} has ECN bits, which it does not match")]
    EcnBits(u64),
    /// The rule's protocol, this one, has no such match.
    #[error("its protocol is {0}")]
    OtherProtocol(u128),
    /// The rule wants IPv4 and IPv6.
    #[error("it is both for IPv4 and for IPv6")]
    BothFamilies,
    /// The rule wants two protocols.
    #[error("it is for two protocols, {0} and {1}")]
    TwoProtocols(u128, u8),
    /// The rule wants ports of packets of a protocol, this one, that has none.
    #[error("it is for ports, and its packets, of protocol {0}, have none")]
    NoPorts(u128),
    /// The type or the code of an ICMP message is out of range.
    #[error("an ICMP message's type and code are from 0 to 255")]
    IcmpRange,
    /// The file has one rule too many.
    #[error("there are more than {RULES_MAX} rules")]
    TooMany,
    /// A line of ClassBench's begins otherwise.
    #[error("{0}: a rule begins with @")]
    NoAtSign(Excerpt),
    /// A line of ClassBench's has no such address.
    #[error("the {0} address is missing")]
    AddressMissing(&'static str),
    /// A line of ClassBench's has no such range.
    #[error("{0}: LOW : HIGH is missing")]
    RangeMissing(&'static str),
    /// The first number of a range is above the second.
    #[error("{name}: no port is from {low} to {high}")]
    EmptyRange {
        /// The range.
        name: &'static str,
        /// Its first number.
        low: u64,
        /// Its second number.
        high: u64,
    },
    /// A line of ClassBench's has no protocol.
    #[error("PROTOCOL/MASK is missing")]
    ProtocolMissing,
    /// The mask of TCP's flags has bits that are none.
    #[error("flags: 0x{0:04x}: TCP has no such flags (0x0100 is FIN, 0x8000 CWR)")]
    Flags(u128),
    /// A line of ClassBench's goes on behind the flags.
    #[error("{0}: nothing is known behind the flags")]
    BehindFlags(Excerpt),
    /// A rule of Open vSwitch's has no actions.
    #[error("{0}: a rule has actions=")]
    NoActions(Excerpt),
    /// A rule of Open vSwitch's has a match that flows cannot be made for.
    #[error("{0}: flows cannot be made for this match")]
    Match(Excerpt),
    /// A part of the rule is wrong.
    #[error("{name}: {defect}")]
    Part {
        /// The part.
        name: String,
        /// What is wrong with it.
        defect: Box<Defect>,
    },
}

impl Defect {
    /// Says that the part of this name has the defect.
    pub(super) fn of(self, name: &str) -> Defect {
        Defect::Part {
            name: name.to_owned(),
            defect: Box::new(self),
        }
    }
}
