//! Counts of what happened, by name.

use crate::stripes::Striped;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Counter {
    /// Connections committed.
    Created,
    /// Connections not committed because the limit of all zones was reached.
    RefusedFull,
    /// Connections not committed because the zone's limit was reached.
    RefusedZoneLimit,
    /// Connections not committed because another has their reply's tuple.
    RefusedClash,
    /// Connections that ended because nothing happened for their timeout.
    Expired,
    /// Half-open connections that gave way to others when a limit was reached: TCP's without a
    /// complete handshake, others without an answer.
    Evicted,
    /// Connections that `force` or a reused port replaced.
    Replaced,
    /// Connections that were flushed.
    Flushed,
    /// Connections not committed because no free address and port was found for them.
    NatExhausted,
    /// Connections that were announced and are expected.
    Expected,
    /// Connections that were announced and are not expected: too many are, or another connection
    /// has announced the same; or whose announcement cannot be translated, because it was sent
    /// before as it is.
    RefusedExpectation,
    /// Announcements that lie or are not complete: another address than the sender's, port 0, from
    /// the wrong side, split over segments; and requests of TFTP that are none.
    InvalidAnnouncement,
    /// Packets that are neither IPv4 nor IPv6, or end inside a header.
    InvalidHeaders,
    /// Fragments that were looked up alone, because they could not wait for their datagram.
    InvalidFragment,
    /// Packets whose IPv4 header checksum is wrong.
    InvalidIpChecksum,
    /// Packets whose transport checksum is wrong.
    InvalidTransportChecksum,
    /// Packets whose transport header contradicts the packet's length, or has port zero.
    InvalidTransport,
    /// ICMP messages of other types than echo, timestamp and information, and errors; and errors
    /// that quote what no connection has.
    InvalidIcmp,
    /// ICMP errors that quote a packet of no known connection.
    InvalidUnrelated,
    /// TCP flags that no packet has, or that cannot begin a connection.
    InvalidTcpFlags,
    /// TCP segments outside their connection's windows.
    InvalidTcpWindow,
    /// Packets that cannot begin a connection: replies to nothing.
    InvalidBeginning,
}

impl Counter {
    /// Every counter, in order.
    pub const ALL: [Counter; 22] = [
        Counter::Created,
        Counter::RefusedFull,
        Counter::RefusedZoneLimit,
        Counter::RefusedClash,
        Counter::Expired,
        Counter::Evicted,
        Counter::Replaced,
        Counter::Flushed,
        Counter::NatExhausted,
        Counter::Expected,
        Counter::RefusedExpectation,
        Counter::InvalidAnnouncement,
        Counter::InvalidHeaders,
        Counter::InvalidFragment,
        Counter::InvalidIpChecksum,
        Counter::InvalidTransportChecksum,
        Counter::InvalidTransport,
        Counter::InvalidIcmp,
        Counter::InvalidUnrelated,
        Counter::InvalidTcpFlags,
        Counter::InvalidTcpWindow,
        Counter::InvalidBeginning,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Created => "conntrack_created",
            Counter::RefusedFull => "conntrack_refused_full",
            Counter::RefusedZoneLimit => "conntrack_refused_zone_limit",
            Counter::RefusedClash => "conntrack_refused_clash",
            Counter::Expired => "conntrack_expired",
            Counter::Evicted => "conntrack_evicted",
            Counter::Replaced => "conntrack_replaced",
            Counter::Flushed => "conntrack_flushed",
            Counter::NatExhausted => "conntrack_nat_exhausted",
            Counter::Expected => "conntrack_expected",
            Counter::RefusedExpectation => "conntrack_refused_expectation",
            Counter::InvalidAnnouncement => "conntrack_invalid_announcement",
            Counter::InvalidHeaders => "conntrack_invalid_headers",
            Counter::InvalidFragment => "conntrack_invalid_fragment",
            Counter::InvalidIpChecksum => "conntrack_invalid_ip_checksum",
            Counter::InvalidTransportChecksum => "conntrack_invalid_transport_checksum",
            Counter::InvalidTransport => "conntrack_invalid_transport",
            Counter::InvalidIcmp => "conntrack_invalid_icmp",
            Counter::InvalidUnrelated => "conntrack_invalid_unrelated",
            Counter::InvalidTcpFlags => "conntrack_invalid_tcp_flags",
            Counter::InvalidTcpWindow => "conntrack_invalid_tcp_window",
            Counter::InvalidBeginning => "conntrack_invalid_beginning",
        }
    }
}

/// All counters.
#[derive(Debug, Default)]
pub struct Counters(Striped<{ Counter::ALL.len() }>);

impl Counters {
    pub(crate) fn add(&self, counter: Counter) {
        self.add_many(counter, 1);
    }

    pub(crate) fn add_many(&self, counter: Counter, count: u64) {
        if count > 0 {
            self.0.add(counter as usize, count);
        }
    }

    /// Returns the count.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize)
    }
}
