//! Requests to forget tracked connections (`NXT_CT_FLUSH` and `NXT_CT_FLUSH_ZONE`).

/// Which connections to forget (`NXT_CT_FLUSH`, and `NXT_CT_FLUSH_ZONE` for all of a zone).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtFlush {
    /// Only those of this zone.
    pub zone: Option<u16>,
    /// Only those of this IP protocol, 0 for any.
    pub protocol: u8,
    /// What the packets that made the connection have.
    pub original: Option<CtTuple>,
    /// What its answers have.
    pub reply: Option<CtTuple>,
}

/// Addresses and ports of one direction of a connection, each None for any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtTuple {
    /// Source; IPv4 addresses are mapped into IPv6.
    pub source: Option<u128>,
    /// Destination; IPv4 addresses are mapped into IPv6.
    pub destination: Option<u128>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// ICMP id.
    pub icmp_id: Option<u16>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code.
    pub icmp_code: Option<u8>,
}
