//! Steps that choose a way: `multipath`, `bundle`, `bundle_load`; and `check_pkt_larger`.

use crate::actions::multipath as spread;
use crate::actions::reserved;
use crate::actions::{Bits, Bundle, Multipath, PacketInReason, PortNo};
use crate::exec::interpreter::{Burst, Walk};
use crate::host::Host;
use packet::Frame;

impl<F: Frame> Walk<F> {
    /// Writes the number of the chosen way; returns false when it could not be written.
    pub(crate) fn multipath<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        multipath: &Multipath,
    ) -> bool {
        let hash = multipath.fields.hash(&self.key, multipath.basis);
        let way = multipath.choice.choose(hash, multipath.ways);
        self.write_bits(burst, host, multipath.dst, way.into())
    }

    /// Sends out of the chosen port, or writes its number; returns false when it could not be
    /// written.
    pub(crate) fn bundle<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        bundle: &Bundle,
    ) -> bool {
        let port = bundle
            .choose(&self.key, |port| host.port_is_live(port))
            .unwrap_or(reserved::NONE);
        match bundle.dst {
            // Port numbers written by `bundle_load` have sixteen bits, as in OpenFlow 1.0.
            Some(dst) => self.write_bits(burst, host, dst, u128::from(port as u16)),
            None => {
                self.output_number(burst, host, port, PacketInReason::Action);
                true
            }
        }
    }

    /// Writes whether the packet, from its Ethernet header on, is longer than `max_len` bytes;
    /// returns false when that could not be written.
    pub(crate) fn check_length<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        max_len: u16,
        dst: Bits,
    ) -> bool {
        let length = self.frame.as_ref().map_or(0, Frame::len);
        self.write_bits(burst, host, dst, u128::from(length > usize::from(max_len)))
    }
}

impl Bundle {
    /// Returns the live port that is chosen for a packet, if any. Reserved ports are always live.
    pub fn choose(
        &self,
        key: &packet::FlowKey,
        mut is_live: impl FnMut(PortNo) -> bool,
    ) -> Option<PortNo> {
        let mut live = |port: &PortNo| match *port {
            reserved::NONE | reserved::CONTROLLER => false,
            reserved::FIRST..reserved::NONE => true,
            port => is_live(port),
        };
        let Some(basis) = self.basis else {
            return self.members.iter().copied().find(|port| live(port));
        };
        let hash = self.fields.hash(key, basis);
        let members = self.members.iter().enumerate();
        members
            .filter(|(_, port)| live(port))
            .max_by_key(|(index, _)| {
                let index = *index as u32;
                (spread::weight(hash, index), std::cmp::Reverse(index))
            })
            .map(|(_, port)| *port)
    }
}
