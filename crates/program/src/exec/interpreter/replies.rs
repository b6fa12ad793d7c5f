//! DHCP replies in a bridge under in-band control: the local port gets each, whatever the rules do
//! with it, so that it can be given an address before rules are there (Open vSwitch's
//! `in_band_must_output_to_local_port`).

use crate::actions::reserved;
use crate::exec::interpreter::{Burst, Pending, PendingKind, Walk};
use crate::host::Host;
use packet::Frame;
use packet::key::at;
use packet::parse::{DHCP_CLIENT, DHCP_SERVER, MINI_KEY_WORDS, UDP};

const IPV4: u16 = 0x0800;

// Every bridge fills these words of the key.
const _: () = {
    assert!(at::ETH_TYPE / 8 < MINI_KEY_WORDS && at::IP_PROTO / 8 < MINI_KEY_WORDS);
    assert!(at::TP_SRC / 8 < MINI_KEY_WORDS);
};

impl<F: Frame> Walk<F> {
    /// Returns whether the packet, as it is now, is a DHCP reply that must reach the local port.
    #[inline(always)]
    pub(crate) fn is_reply(&self, burst: &Burst<'_, '_>) -> bool {
        burst.replies && self.looks_like_reply()
    }

    #[cold]
    fn looks_like_reply(&self) -> bool {
        let ports = (self.key.u16(at::TP_SRC), self.key.u16(at::TP_DST));
        self.key.u16(at::ETH_TYPE) == IPV4
            && self.key.u8(at::IP_PROTO) == UDP
            && ports == (DHCP_SERVER, DHCP_CLIENT)
    }

    /// Sends a frame to an output, and notes whether it reaches the local port.
    #[cold]
    pub(super) fn hand_on_reply<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: Pending,
        frame: F,
    ) {
        let from_local = self.key.u32(at::IN_PORT) == reserved::LOCAL;
        host.take_reached_local(); // of packets before
        self.send(burst, host, to, frame);
        self.at_local |= match to.kind {
            PendingKind::Port(port) => port == reserved::LOCAL && !from_local,
            PendingKind::InPort => from_local,
            PendingKind::All { .. } | PendingKind::Normal => host.take_reached_local(),
        };
    }

    /// Has a reply sent to the local port at the end of its walk, unless it has been.
    #[cold]
    pub(super) fn reach_local<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        // Only now it is known where NORMAL sends it.
        self.flush(burst, host);
        if self.at_local {
            return;
        }
        let from_local = self.key.u32(at::IN_PORT) == reserved::LOCAL;
        self.pending.push(Pending {
            // Back to the local port, too, as Open vSwitch does.
            kind: match from_local {
                true => PendingKind::InPort,
                false => PendingKind::Port(reserved::LOCAL),
            },
            queue: self.queue,
        });
    }
}
