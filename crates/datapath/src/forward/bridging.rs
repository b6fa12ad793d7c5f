//! The learning switch for many frames at a time.
//!
//! All frames of a run came in by one port, so the port's state is checked once. The stations of
//! all frames are prefetched, learned and looked up together ([`MacTable::meet`]). Frames to a
//! known station leave from here; rare cases go frame by frame to [`Host::normal`]: frames to be
//! flooded, and those with new or moved sources, after each of which the table is looked up again
//! for the rest; after some of these the rest of the run goes frame by frame, too.
//!
//! [`MacTable::meet`]: crate::mac_table::MacTable::meet

use super::Forward;
use crate::counters::DropReason;
use crate::mac_table::{NOBODY, NOWHERE, RUN_MAX, Station, Stations};
use crate::normal::is_reserved;
use crate::snapshot::{BridgeState, PortState};
use crate::vlan::{self, Inner, TPID_8021Q, Tag};
use packet::Frame;
use packet::key::at;
use packet::mini_key::MiniKey;
use program::actions::PortNo;
use program::host::{Context, Host};

/// The group bit of an address whose first byte is the lowest of a word.
const GROUP: u64 = 1;
/// The first three bytes of the only reserved addresses that are not group addresses.
const EXTREME: u64 = 0x2b_e000;
/// How often a run is looked up: once more after each frame with a new or moved source. For a flood
/// of such frames more lookups would cost more than they save.
const ROUNDS: usize = 4;
/// Length of an Ethernet header without a tag.
const UNTAGGED: u16 = 14;

/// Returns an Ethernet address, its first byte the lowest; the bytes above it are undefined.
#[inline(always)]
fn address(hot: &MiniKey, offset: usize) -> u64 {
    hot.words[offset / 8].to_le()
}

/// Returns the tag that a frame of the common kinds came in with, as far as its key tells: without
/// the DEI bit.
#[inline(always)]
fn known_tag(hot: &MiniKey) -> Option<Tag> {
    let tci = (hot.words[at::VLAN_TCI / 8].to_le() >> (at::VLAN_TCI % 8 * 8)) as u16;
    (hot.extent.l3() != UNTAGGED).then(|| Tag {
        tpid: TPID_8021Q,
        tci: tci.swap_bytes() & !0x1000,
    })
}

/// Returns whether frames to an address are not forwarded, and their sources not learned.
#[inline(never)]
fn refused(bridge: &BridgeState, to: u64) -> bool {
    let [a, b, c, d, e, f, _, _] = to.to_le_bytes();
    !bridge.forward_bpdu && is_reserved([a, b, c, d, e, f])
}

/// Returns a frame's source, to be learned, and its destination, to be looked up.
#[inline(always)]
fn stations(
    bridge: &BridgeState,
    ingress: &PortState,
    untagged: Option<Inner>,
    hot: &MiniKey,
) -> (Station, Station) {
    let inner = match known_tag(hot) {
        None => untagged,
        tag => ingress.vlan.input(tag),
    };
    let flooded = |vid| {
        let vlans = bridge.flood_vlans.as_ref();
        vlans.is_some_and(|vlans| vlans.contains(vid))
    };
    let Some(vid) = inner.map(|inner| inner.vid).filter(|vid| !flooded(*vid)) else {
        return (NOBODY, NOBODY);
    };
    let (to, from) = (address(hot, at::ETH_DST), address(hot, at::ETH_SRC));
    let group = to & GROUP != 0;
    if (group || to & 0xff_ffff == EXTREME) && refused(bridge, to) {
        return (NOBODY, NOBODY);
    }
    let station = |mac: u64| match mac & GROUP {
        0 => bridge.macs.station(mac, vid),
        _ => NOBODY,
    };
    (station(from), station(to))
}

impl<F: Frame> Forward<'_, F> {
    /// See [`Host::normal_run`].
    #[inline]
    pub(super) fn bridge_run(
        &mut self,
        in_port: PortNo,
        mirrored: u32,
        hot: &[MiniKey],
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        let _stage = stages::enter(stages::Stage::Normal, frames.len());
        let ingress = self.bridge.port(in_port).filter(|port| !port.reserved);
        if let Some(ingress) = ingress {
            for hot in hot.chunks(RUN_MAX) {
                let frames = &mut frames.by_ref().take(hot.len());
                self.bridge_some(ingress, mirrored, hot, frames);
            }
        }
        frames.for_each(|frame| self.bridge_one(in_port, mirrored, frame));
    }

    fn bridge_some(
        &mut self,
        ingress: &PortState,
        mirrored: u32,
        hot: &[MiniKey],
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        let bridge = self.bridge;
        let (own, number) = (ingress.id.slot(), ingress.number);
        let untagged = ingress.vlan.input(None);
        let mut asked = Stations::new();
        for hot in hot {
            let (from, to) = stations(bridge, ingress, untagged, hot);
            asked.push(from, to);
        }
        let mut found = [NOWHERE; RUN_MAX];
        let mut rest = hot;
        for _ in 0..ROUNDS {
            let met = bridge.macs.meet(&asked, own, self.second, &mut found);
            for (hot, to) in rest[..met].iter().zip(found) {
                let Some(frame) = frames.next() else { return };
                if to == NOWHERE {
                    self.bridge_one(number, mirrored, frame);
                } else if to == own {
                    self.cell.drop(DropReason::LearnedOnIngress, 1);
                } else if hot.extent.l3() == UNTAGGED {
                    self.emit_to(to, mirrored, number, (None, untagged), frame);
                } else {
                    self.emit_tagged(to, mirrored, ingress, frame);
                }
            }
            // The next one's source is new or has moved, or the table is being changed.
            let Some(frame) = frames.next() else { return };
            self.bridge_one(number, mirrored, frame);
            asked.advance(met + 1);
            rest = &hot[hot.len() - asked.left()..];
        }
        frames.for_each(|frame| self.bridge_one(number, mirrored, frame));
    }

    /// Sends a frame to the port in a slot, on which its destination was learned.
    #[inline(always)]
    fn emit_to(
        &mut self,
        slot: u32,
        mirrored: u32,
        in_port: PortNo,
        (present, inner): (Option<Tag>, Option<Inner>),
        frame: F,
    ) {
        let port = self.snapshot.port(slot);
        let port = port.filter(|port| port.bridge == self.bridge.id.slot());
        let (Some(port), Some(inner)) = (port, inner) else {
            return self.cell.drop(DropReason::LearnedPortGone, 1);
        };
        (self.queue, self.counted) = (None, 0);
        if port.plain && present.is_none() && port.vlan.output(inner, 0).is_none() {
            return self.egress.push(slot, frame, self.cell);
        }
        self.forget_tunnel(in_port);
        self.emit_in_vlan(&mut { mirrored }, port, present, inner, frame);
    }

    /// Like [`Forward::emit_to`], for a frame that came in tagged by `ingress`.
    #[inline]
    fn emit_tagged(&mut self, slot: u32, mirrored: u32, ingress: &PortState, mut frame: F) {
        match vlan::ethernet(&mut frame) {
            Ok(front) => {
                let inner = ingress.vlan.input(front.tag);
                self.emit_to(slot, mirrored, ingress.number, (front.tag, inner), frame);
            }
            Err(_) => self.bridge_one(ingress.number, mirrored, frame),
        }
    }

    /// Processes one frame by the general code.
    #[inline(never)]
    fn bridge_one(&mut self, in_port: PortNo, mirrored: u32, frame: F) {
        let (mut mirrored, mut sent) = (mirrored, false);
        let context = Context::of_run(in_port, &mut mirrored, &mut sent);
        self.normal(context, frame);
    }
}
