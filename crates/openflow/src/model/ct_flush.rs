//! Requests to flush tracked connections (`NXT_CT_FLUSH` and `NXT_CT_FLUSH_ZONE`).

/// The connections to flush (`NXT_CT_FLUSH`, and `NXT_CT_FLUSH_ZONE` for all of a zone).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtFlush {
    /// Only connections of this zone.
    pub zone: Option<u16>,
    /// Only connections of this IP protocol, 0 for any.
    pub protocol: u8,
    /// The tuple of the original direction.
    pub original: Option<CtTuple>,
    /// The tuple of the reply direction.
    pub reply: Option<CtTuple>,
}

/// Addresses and ports of one direction of a connection; None for any.
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
