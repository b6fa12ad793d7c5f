//! Connection tracking: the steps [`Op::Track`](crate::actions::Op::Track) and `Op::Untrack`.
//!
//! Where Open vSwitch's datapath recirculates a tracked packet, the walk goes on in the table that
//! the step names: by itself where nothing is left to do behind the step, else as a clone does,
//! with a copy kept for the rest of the list. The rest does not see the connection, as there.

use super::{Aside, Burst, MAX_RESUBMITS, Next, Pending, Position, Steps, Walk};
use crate::actions::connection::{CONNECTION, Track, Write, Zone};
use crate::actions::{PortNo, bits};
use crate::host::{DropReason, Host};
use conntrack::{Earlier, Masked, Request, Rewrite, Settled, Tracked, Tracker, Translation, state};
use packet::key::at;
use packet::{Field, Frame, Value};
use std::net::IpAddr;

/// Most times that a packet may continue in a table behind the tracker, as Open vSwitch's
/// `MAX_RECIRC_DEPTH`.
pub(crate) const MAX_RECIRCULATIONS: u8 = 6;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// A fragment other than the first.
const LATER_FRAGMENT: u8 = 2;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;

impl<F: Frame> Walk<F> {
    /// Sends the packet through the tracker, and on to the step's table if it has one. A fragment
    /// may have to wait for the rest of its datagram.
    #[cold]
    pub(crate) fn track<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        track: &Track,
    ) -> Option<Next> {
        // Pending outputs send the packet as it is before a translation.
        self.flush(burst, host);
        let zone = match &track.zone {
            Zone::Number(zone) => *zone,
            Zone::In(from) => bits::read(&self.key, *from) as u16,
        };
        let (mark, label) = self.connection_writes(burst, host, track);
        let request = Request {
            zone,
            commit: track.commit,
            force: track.force,
            mark,
            label,
            nat: track.nat.as_ref(),
            helper: track.helper,
        };
        if self.is_fragment() && self.park(burst, host, &request) {
            return None;
        }
        let tracked = match &self.frame {
            Some(frame) => host.track(frame, &self.layers, self.tracked, &request),
            None => Tracked::default(),
        };
        self.go_on_tracked(burst, host, track, &tracked)
    }

    /// Goes on with the tracker's answer, from the place behind the step.
    pub(crate) fn go_on_tracked<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        track: &Track,
        tracked: &Tracked,
    ) -> Option<Next> {
        if !self.translate(burst, host, &tracked.translation) {
            return self.fail(host, DropReason::ActionFailed);
        }
        if let Some(rewrite) = &tracked.rewrite
            && !self.rewrite(burst, host, rewrite)
        {
            return self.fail(host, DropReason::ActionFailed);
        }
        self.tracked = tracked.earlier(track.nat.is_some());
        self.key.clear(CONNECTION);
        let table = track.table?;
        if self.recirculated == MAX_RECIRCULATIONS {
            host.dropped(DropReason::TooManyRecirculations);
            self.sent = true; // already counted
            return None;
        }
        if self.has_more() {
            let saved = self.put_aside(Aside::Fork);
            let (here, cookie) = (self.at.table, self.at.cookie);
            self.enter(Steps::of(&[]), here, cookie);
            self.at.saved = Some(saved);
        }
        // Unlike in Open vSwitch, where each pass may resubmit so often: forks would multiply.
        self.resubmits += 1;
        if self.resubmits > MAX_RESUBMITS {
            return self.fail(host, DropReason::TooManyResubmits);
        }
        (self.at.depth, self.resubmitted) = (0, false);
        self.recirculated += 1;
        self.count_anew(burst);
        self.show_connection(tracked);
        Some(Next::Lookup(table))
    }

    /// Looks up with the addresses, protocol and ports of the connection's first packet, if there
    /// is one (`resubmit(,t,ct)`).
    pub(crate) fn resubmit_tracked<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        port: PortNo,
        table: u8,
    ) {
        let ethertype = self.key.u16(at::ETH_TYPE);
        let is_ip = ethertype == ETHERTYPE_IPV4 || ethertype == ETHERTYPE_IPV6;
        if !is_ip || self.key.u8(at::CT_NW_PROTO) == 0 {
            return;
        }
        let own = self.key;
        let key = &mut self.key;
        key.set_u8(at::IP_PROTO, own.u8(at::CT_NW_PROTO));
        key.set_u16(at::TP_SRC, own.u16(at::CT_TP_SRC));
        key.set_u16(at::TP_DST, own.u16(at::CT_TP_DST));
        if ethertype == ETHERTYPE_IPV4 {
            key.set_u32(at::IPV4_SRC, own.u32(at::CT_NW_SRC));
            key.set_u32(at::IPV4_DST, own.u32(at::CT_NW_DST));
        } else {
            let addresses = at::CT_IPV6_SRC..at::CT_IPV6_SRC + 32;
            key.bytes_mut()[at::IPV6_SRC..at::IPV6_SRC + 32]
                .copy_from_slice(&own.bytes()[addresses]);
        }
        self.resubmit_from(burst, host, port, table);
        self.key = own;
    }

    /// Returns whether something is to be done behind the present step.
    fn has_more(&self) -> bool {
        let left = |at: &Position<F>| at.next < at.steps.get().len() || at.saved.is_some();
        left(&self.at) || self.stack.iter().any(left) || !self.set.is_empty()
    }

    /// Executes `ct_clear`. As in Open vSwitch, the tracker forgets what it said of the packet only
    /// where rules see it: not behind a `ct` without a table, nor behind a patch port.
    pub(crate) fn untrack(&mut self) {
        if self.key.u32(at::CT_STATE) & state::TRACKED != 0 {
            self.tracked = Earlier::default();
        }
        self.key.clear(CONNECTION);
    }

    /// Sends a frame to an output, and lets the host know what the tracker has said of it.
    #[cold]
    pub(crate) fn deliver_tracked<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: Pending,
        frame: F,
    ) {
        host.carry(self.tracked);
        self.hand_on(burst, host, to, frame);
        host.carry(Earlier::default());
    }

    /// Leaves the innermost tracked copy of a packet that is running, with what is left to do for
    /// it. Returns false if none is.
    pub(crate) fn leave_fork(&mut self) -> bool {
        if !self.at.is_fork() && !self.stack.iter().any(Position::is_fork) {
            return false;
        }
        self.pending.clear(); // the copy's: others were sent when the packet was tracked
        while !self.at.is_fork()
            && let Some(position) = self.stack.pop()
        {
            self.at = position;
        }
        if let Some(saved) = &mut self.at.saved {
            // Nor does the copy's action set run.
            saved.running_set.get_or_insert_default();
        }
        self.at.next = self.at.steps.get().len();
        true
    }

    /// Returns what the step writes to the connection's mark and label.
    fn connection_writes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        track: &Track,
    ) -> (Masked<u32>, Masked<u128>) {
        if track.writes.is_empty() {
            return Default::default();
        }
        const WRITTEN: [usize; 3] = [at::CT_MARK / 8, at::CT_LABEL / 8, at::CT_LABEL / 8 + 1];
        let before = WRITTEN.map(|word| self.key.words[word]);
        for write in &track.writes {
            // Both are metadata of the key, so neither write can fail.
            match write {
                Write::Constant { field, value, mask } => {
                    self.set(burst, host, *field, value, mask);
                }
                Write::Copy { src, dst } => {
                    let value = bits::read(&self.key, *src);
                    self.write_bits(burst, host, *dst, value);
                }
            }
        }
        let written = |field: Field| {
            let (offset, bytes) = (field.def().offset, field.def().bytes);
            let value = Value::from_bytes(&self.key.bytes()[offset..offset + bytes]);
            let mask = track.written(field);
            (value.to_u128() & mask, mask)
        };
        let ((mark, mark_mask), (label, label_mask)) =
            (written(Field::CtMark), written(Field::CtLabel));
        for (word, before) in WRITTEN.into_iter().zip(before) {
            self.key.words[word] = before;
        }
        let mark = Masked {
            value: mark as u32,
            mask: mark_mask as u32,
        };
        let label = Masked {
            value: label,
            mask: label_mask,
        };
        (mark, label)
    }

    /// Writes translated addresses and ports to the packet; returns false where that is not
    /// possible.
    fn translate<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        translation: &Translation,
    ) -> bool {
        let (source, destination) = match self.key.u8(at::IP_PROTO) {
            // Only the first fragment has the ports.
            _ if self.key.u8(at::IP_FRAG) & LATER_FRAGMENT != 0 => (None, None),
            TCP => (Some(Field::TcpSrc), Some(Field::TcpDst)),
            UDP => (Some(Field::UdpSrc), Some(Field::UdpDst)),
            SCTP => (Some(Field::SctpSrc), Some(Field::SctpDst)),
            _ => (None, None),
        };
        let ends = [
            (translation.source, Field::Ipv4Src, Field::Ipv6Src, source),
            (
                translation.destination,
                Field::Ipv4Dst,
                Field::Ipv6Dst,
                destination,
            ),
        ];
        for (end, ipv4, ipv6, port_field) in ends {
            let Some((address, port)) = end else {
                continue;
            };
            let (field, value) = match address {
                IpAddr::V4(address) => (ipv4, Value::from_bytes(&address.octets())),
                IpAddr::V6(address) => (ipv6, Value::from_bytes(&address.octets())),
            };
            if !self.set(burst, host, field, &value, &field.def().place()) {
                return false;
            }
            if let Some(field) = port_field {
                let value = Value::from_bytes(&port.to_be_bytes());
                if !self.set(burst, host, field, &value, &field.def().place()) {
                    return false;
                }
            }
        }
        if translation.is_empty() {
            return true;
        }
        if let Some(frame) = &mut self.frame {
            Tracker::translate_inner(frame, &self.layers, translation);
        }
        true
    }

    /// Writes what a helper has written; returns false where that is not possible.
    fn rewrite<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        rewrite: &Rewrite,
    ) -> bool {
        if self.is_fragment() {
            // The answer is that for the whole datagram. Its text may begin in one fragment and end
            // in another, and a longer one would move all offsets behind it.
            if rewrite.replaces_text() {
                return false;
            }
            // Only the first fragment has the numbers and the checksum.
            if self.key.u8(at::IP_FRAG) & LATER_FRAGMENT != 0 {
                return true;
            }
        }
        self.edit(burst, host, |frame, layers, _| {
            Tracker::rewrite(frame, layers, rewrite)
        })
    }

    /// Fills in the words that tell of the packet's connection.
    fn show_connection(&mut self, tracked: &Tracked) {
        self.key.words[FIRST_WORD..FIRST_WORD + CONNECTION_WORDS]
            .copy_from_slice(&words_of(tracked));
    }
}

/// The key's words about a packet's connection: the first of them, and their number.
pub(crate) const FIRST_WORD: usize = at::CT_STATE / 8;
pub(crate) const CONNECTION_WORDS: usize = (at::CT_IPV6_DST + 16) / 8 - FIRST_WORD;

/// Joins what lies in a word one after the other, in network byte order.
#[inline(always)]
const fn word(high: u32, low: u32) -> u64 {
    ((high as u64) << 32 | low as u64).to_be()
}

/// Returns the word with ports, zone and protocol.
#[inline(always)]
fn ports_word((source, destination): (u16, u16), zone: u16, protocol: u8) -> u64 {
    word(
        u32::from(source) << 16 | u32::from(destination),
        u32::from(zone) << 16 | u32::from(protocol) << 8,
    )
}

/// Returns the words of the key that tell of a tracked packet's connection.
pub(crate) fn words_of(tracked: &Tracked) -> [u64; CONNECTION_WORDS] {
    let mut words = [0; CONNECTION_WORDS];
    words[0] = word(tracked.state, tracked.mark);
    words[1] = ((tracked.label >> 64) as u64).to_be();
    words[2] = (tracked.label as u64).to_be();
    let (mut ports, mut protocol) = ((0, 0), 0);
    if let Some(tuple) = &tracked.original {
        ports = (tuple.source_port, tuple.destination_port);
        protocol = tuple.protocol;
        match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                words[3] = word(source.to_bits(), destination.to_bits());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                for (words, address) in words[5..].chunks_mut(2).zip([source, destination]) {
                    words[0] = ((address.to_bits() >> 64) as u64).to_be();
                    words[1] = (address.to_bits() as u64).to_be();
                }
            }
            _ => {}
        }
    }
    words[4] = ports_word(ports, tracked.zone, protocol);
    words
}

/// How many of the words are not 0 for connections over IPv4.
pub(crate) const SETTLED_WORDS: usize = 5;

/// [`words_of`] for packets of which less is to be said: the other words are 0.
#[inline(always)]
pub(crate) fn words_of_settled(settled: &Settled) -> [u64; SETTLED_WORDS] {
    let ([source, destination], label) = (settled.original(), settled.label());
    let ports = (source.1, destination.1);
    [
        word(settled.state(), settled.mark()),
        ((label >> 64) as u64).to_be(),
        (label as u64).to_be(),
        word(source.0.to_bits(), destination.0.to_bits()),
        ports_word(ports, settled.zone(), settled.protocol()),
    ]
}

const _: () = {
    const fn place(offset: usize) -> usize {
        (offset - at::CT_STATE) / 4
    }
    assert!(FIRST_WORD * 8 == at::CT_STATE && place(at::CT_MARK) == 1);
    assert!(place(at::CT_LABEL) == 2 && place(at::CT_NW_SRC) == 6 && place(at::CT_NW_DST) == 7);
    assert!(place(at::CT_TP_SRC) == 8 && at::CT_TP_DST == at::CT_TP_SRC + 2);
    assert!(place(at::CT_ZONE) == 9 && at::CT_NW_PROTO == at::CT_ZONE + 2);
    assert!(place(at::CT_IPV6_SRC) == 10 && place(at::CT_IPV6_DST) == 14);
};
