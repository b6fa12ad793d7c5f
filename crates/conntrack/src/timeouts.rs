//! How long connections are kept in which nothing happens, by zone.

use std::collections::HashMap;

/// What a timeout is for. Names and meanings are those of the database's `CT_Timeout_Policy`
/// (ovs-vswitchd.conf.db(5)) as far as Open vSwitch's userspace datapath has them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Timeout {
    /// TCP: only packets of the side that began, since its SYN.
    TcpSynSent,
    /// TCP: the handshake is not complete.
    TcpSynRecv,
    /// TCP: open in both directions.
    TcpEstablished,
    /// TCP: one side has closed.
    TcpFinWait,
    /// TCP: both sides have closed, not all is acknowledged.
    TcpTimeWait,
    /// TCP: closed and acknowledged, or reset.
    TcpClose,
    /// Others: after the first packet.
    UdpFirst,
    /// Others: several packets, all from the side that began.
    UdpSingle,
    /// Others: packets in both directions.
    UdpMultiple,
    /// ICMP: no reply yet.
    IcmpFirst,
    /// ICMP: replies were seen.
    IcmpReply,
}

impl Timeout {
    /// Every timeout, in order.
    pub const ALL: [Timeout; 11] = [
        Timeout::TcpSynSent,
        Timeout::TcpSynRecv,
        Timeout::TcpEstablished,
        Timeout::TcpFinWait,
        Timeout::TcpTimeWait,
        Timeout::TcpClose,
        Timeout::UdpFirst,
        Timeout::UdpSingle,
        Timeout::UdpMultiple,
        Timeout::IcmpFirst,
        Timeout::IcmpReply,
    ];

    /// Returns its name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Timeout::TcpSynSent => "tcp_syn_sent",
            Timeout::TcpSynRecv => "tcp_syn_recv",
            Timeout::TcpEstablished => "tcp_established",
            Timeout::TcpFinWait => "tcp_fin_wait",
            Timeout::TcpTimeWait => "tcp_time_wait",
            Timeout::TcpClose => "tcp_close",
            Timeout::UdpFirst => "udp_first",
            Timeout::UdpSingle => "udp_single",
            Timeout::UdpMultiple => "udp_multiple",
            Timeout::IcmpFirst => "icmp_first",
            Timeout::IcmpReply => "icmp_reply",
        }
    }

    /// Returns the timeout of this name in the database. None for others, also for those that only
    /// the kernel's datapath knows, as `tcp_close_wait`.
    pub fn by_name(name: &str) -> Option<Timeout> {
        Timeout::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns the seconds that hold where no policy says otherwise.
    pub fn default_seconds(self) -> u32 {
        match self {
            Timeout::TcpEstablished => 24 * 60 * 60,
            Timeout::TcpFinWait => 15 * 60,
            Timeout::TcpTimeWait => 45,
            Timeout::UdpFirst | Timeout::UdpSingle | Timeout::IcmpFirst => 60,
            _ => 30,
        }
    }
}

/// Timeouts of a zone, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy([u32; Timeout::ALL.len()]);

impl Default for Policy {
    fn default() -> Policy {
        Policy(Timeout::ALL.map(Timeout::default_seconds))
    }
}

impl Policy {
    /// Sets a timeout, in seconds.
    pub fn set(&mut self, timeout: Timeout, seconds: u32) {
        self.0[timeout as usize] = seconds;
    }

    /// Returns a timeout, in seconds.
    pub fn get(&self, timeout: Timeout) -> u32 {
        self.0[timeout as usize]
    }
}

/// The policies of all zones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub usual: Policy,
    pub zones: HashMap<u16, Policy>,
}

impl Policies {
    /// Returns when a connection expires in which something happened now.
    pub fn expiry(&self, zone: u16, timeout: Timeout, now_ms: u64) -> u64 {
        let policy = if self.zones.is_empty() {
            &self.usual
        } else {
            self.zones.get(&zone).unwrap_or(&self.usual)
        };
        now_ms.saturating_add(u64::from(policy.get(timeout)) * 1000)
    }
}
