//! VLANs as NORMAL sees them: which VLAN a frame belongs to, and its tag on the wire of each port.
//!
//! A port's mode determines both (`Port.vlan_mode` in ovs-vswitchd.conf.db(5)). A frame that comes
//! in gets an *internal* VLAN: an access port's own, a trunk's tag, a native port's own where there
//! is no tag. When it goes out, the internal VLAN becomes a tag or no tag. Internal VLAN 0 means
//! untagged on a trunk. Only the outermost tag counts; what is behind it is payload.

use packet::Frame;

/// A set of VLAN ids, 0 to 4095.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Returns the empty set.
    pub fn empty() -> VlanSet {
        VlanSet(Box::new([0; 64]))
    }

    /// Returns the set of all 4096 ids.
    pub fn all() -> VlanSet {
        VlanSet(Box::new([u64::MAX; 64]))
    }

    /// Adds a VLAN; ignores ids above 4095.
    pub fn insert(&mut self, vid: u16) {
        if let Some(word) = self.0.get_mut(usize::from(vid / 64)) {
            *word |= 1 << (vid % 64);
        }
    }

    /// Removes a VLAN.
    pub fn remove(&mut self, vid: u16) {
        if let Some(word) = self.0.get_mut(usize::from(vid / 64)) {
            *word &= !(1 << (vid % 64));
        }
    }

    /// Returns whether the set contains `vid`.
    #[inline]
    pub fn contains(&self, vid: u16) -> bool {
        self.0
            .get(usize::from(vid / 64))
            .is_some_and(|word| word >> (vid % 64) & 1 == 1)
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

impl FromIterator<u16> for VlanSet {
    fn from_iter<I: IntoIterator<Item = u16>>(vids: I) -> VlanSet {
        let mut set = VlanSet::empty();
        vids.into_iter().for_each(|vid| set.insert(vid));
        set
    }
}

impl std::fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries((0..4096).filter(|vid| self.contains(*vid)))
            .finish()
    }
}

/// How a port takes part in VLANs. VLAN ids are 0 to 4095.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VlanMode {
    /// Carries one VLAN, untagged.
    Access(u16),
    /// Carries tagged frames; untagged ones are in VLAN 0.
    Trunk,
    /// A trunk whose untagged frames are in the native VLAN; leaves it tagged.
    NativeTagged(u16),
    /// A trunk whose native VLAN goes out untagged.
    NativeUntagged(u16),
}

/// When a frame without a VLAN gets a tag that only carries its priority
/// (`Port.other_config:priority-tags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PriorityTags {
    /// Never.
    #[default]
    Never,
    /// When the priority is not zero.
    IfNonzero,
    /// Always.
    Always,
}

/// A port's VLAN configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VlanConfig {
    mode: VlanMode,
    /// VLANs of a trunk; None for all.
    trunks: Option<VlanSet>,
    priority_tags: PriorityTags,
}

impl Default for VlanConfig {
    /// Returns a trunk of all VLANs, as a port without `tag` and `trunks` is.
    fn default() -> Self {
        VlanConfig::new(VlanMode::Trunk, None)
    }
}

/// An 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Ethertype, 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, DEI and VLAN id.
    pub tci: u16,
}

/// Ethertype of an 802.1Q tag.
pub const TPID_8021Q: u16 = 0x8100;
/// Ethertype of an 802.1ad tag.
pub const TPID_8021AD: u16 = 0x88a8;

impl Tag {
    /// Returns the VLAN id, 0 for a tag that only carries a priority.
    pub fn vid(self) -> u16 {
        self.tci & 0xfff
    }

    /// Returns the priority, 0 to 7.
    pub fn pcp(self) -> u16 {
        self.tci >> 13
    }
}

/// A frame's internal VLAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// The VLAN id; 0 for none.
    pub vid: u16,
    /// Priority of the tag that it came with, 0 without one.
    pub pcp: u16,
    /// Ethertype for a tag on the way out.
    pub tpid: u16,
}

impl VlanConfig {
    /// Creates a configuration. `trunks`: the VLANs of a trunk or native port, None for all; a
    /// native port always carries its native VLAN, and never VLAN 0 beside it.
    pub fn new(mode: VlanMode, trunks: Option<VlanSet>) -> VlanConfig {
        let trunks = match mode {
            VlanMode::Access(_) => None,
            VlanMode::Trunk => trunks,
            VlanMode::NativeTagged(0) | VlanMode::NativeUntagged(0) => trunks,
            VlanMode::NativeTagged(native) | VlanMode::NativeUntagged(native) => {
                let mut set = trunks.unwrap_or_else(VlanSet::all);
                set.insert(native);
                set.remove(0);
                Some(set)
            }
        };
        VlanConfig {
            mode,
            trunks,
            priority_tags: PriorityTags::Never,
        }
    }

    /// Returns the configuration with priority tags.
    pub fn with_priority_tags(mut self, priority_tags: PriorityTags) -> VlanConfig {
        self.priority_tags = priority_tags;
        self
    }

    /// Returns the mode.
    pub fn mode(&self) -> VlanMode {
        self.mode
    }

    fn trunks(&self, vid: u16) -> bool {
        self.trunks
            .as_ref()
            .is_none_or(|trunks| trunks.contains(vid))
    }

    /// Returns the internal VLAN of a frame that came in with `tag`; None when the port may not
    /// carry it.
    #[inline]
    pub fn input(&self, tag: Option<Tag>) -> Option<Inner> {
        let vid = tag.map_or(0, Tag::vid);
        let vid = match self.mode {
            VlanMode::Access(own) => (vid == 0).then_some(own)?,
            VlanMode::NativeTagged(own) | VlanMode::NativeUntagged(own) if vid == 0 => own,
            VlanMode::Trunk | VlanMode::NativeTagged(_) | VlanMode::NativeUntagged(_) => {
                self.trunks(vid).then_some(vid)?
            }
        };
        Some(Inner {
            vid,
            pcp: tag.map_or(0, Tag::pcp),
            tpid: tag.map_or(TPID_8021Q, |tag| tag.tpid),
        })
    }

    /// Returns whether frames of VLAN `vid` are flooded to the port.
    #[inline]
    pub fn includes(&self, vid: u16) -> bool {
        match self.mode {
            VlanMode::Access(own) => own == vid,
            VlanMode::Trunk | VlanMode::NativeTagged(_) | VlanMode::NativeUntagged(_) => {
                self.trunks(vid)
            }
        }
    }

    /// Returns the tag with which a frame leaves. `pcp`: the priority of the tag that the frame has
    /// now.
    #[inline]
    pub fn output(&self, inner: Inner, pcp: u16) -> Option<Tag> {
        let (vid, own_pcp) = match self.mode {
            VlanMode::Access(_) => (0, 0),
            VlanMode::NativeUntagged(own) if own == inner.vid => (0, 0),
            VlanMode::Trunk | VlanMode::NativeTagged(_) | VlanMode::NativeUntagged(_) => {
                (inner.vid, inner.pcp)
            }
        };
        let (tagged, pcp) = match self.priority_tags {
            PriorityTags::Never => (vid != 0, own_pcp),
            PriorityTags::IfNonzero => (vid != 0 || pcp != 0, pcp),
            PriorityTags::Always => (true, pcp),
        };
        tagged.then_some(Tag {
            tpid: inner.tpid,
            tci: pcp << 13 | vid,
        })
    }
}

/// The beginning of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// The outermost tag.
    pub tag: Option<Tag>,
}

/// Why the beginning of a frame cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than an Ethernet header.
    Runt,
    /// Ends inside its tag.
    TruncatedTag,
    /// No memory to make its first bytes contiguous.
    NoBuffer,
}

/// Returns whether an Ethertype is that of a tag.
#[inline]
fn is_tag(ethertype: u16) -> bool {
    ethertype == TPID_8021Q || ethertype == TPID_8021AD
}

/// Reads addresses and tag, which are in the first segment afterwards.
#[inline]
pub fn ethernet<F: Frame>(frame: &mut F) -> Result<Ethernet, Malformed> {
    if frame.head().len() < 18 && frame.head().len() < frame.len() && !frame.linearize(18) {
        return Err(Malformed::NoBuffer);
    }
    let head = frame.head();
    let Some((front, rest)) = head.split_first_chunk::<14>() else {
        return Err(Malformed::Runt);
    };
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = *front;
    let (dst, src) = ([a, b, c, d, e, f], [g, h, i, j, k, l]);
    let tpid = u16::from_be_bytes([m, n]);
    let tag = if is_tag(tpid) {
        let Some(rest) = rest.first_chunk::<4>() else {
            return Err(Malformed::TruncatedTag);
        };
        Some(Tag {
            tpid,
            tci: u16::from_be_bytes([rest[0], rest[1]]),
        })
    } else {
        None
    };
    Ok(Ethernet { dst, src, tag })
}

fn move_checksum_start<F: Frame>(frame: &mut F, by: i16) {
    let mut offload = frame.offload();
    if offload.partial_checksum {
        offload.csum_start = offload.csum_start.saturating_add_signed(by);
        frame.set_offload(offload);
    }
}

/// Replaces the frame's outermost tag `present`, which [`ethernet`] has read, by `wanted`. Returns
/// false when there is no room for a tag; the frame is then unchanged.
pub fn set_tag<F: Frame>(frame: &mut F, present: Option<Tag>, wanted: Option<Tag>) -> bool {
    match (present, wanted) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            if old != new {
                let head = frame.head_mut();
                head[12..14].copy_from_slice(&new.tpid.to_be_bytes());
                head[14..16].copy_from_slice(&new.tci.to_be_bytes());
            }
            true
        }
        (None, Some(new)) => {
            if !frame.push_front(4) {
                return false;
            }
            let head = frame.head_mut();
            head.copy_within(4..16, 0);
            head[12..14].copy_from_slice(&new.tpid.to_be_bytes());
            head[14..16].copy_from_slice(&new.tci.to_be_bytes());
            move_checksum_start(frame, 4);
            true
        }
        (Some(_), None) => {
            frame.head_mut().copy_within(0..12, 4);
            if !frame.pull_front(4) {
                return false;
            }
            move_checksum_start(frame, -4);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapFrame;
    use proptest::prelude::*;

    fn tag(vid: u16, pcp: u16) -> Option<Tag> {
        Some(Tag {
            tpid: TPID_8021Q,
            tci: pcp << 13 | vid,
        })
    }

    #[test]
    fn an_access_port_carries_its_vlan_without_tag() {
        let port = VlanConfig::new(VlanMode::Access(10), None);
        assert_eq!(port.input(None).map(|inner| inner.vid), Some(10));
        assert_eq!(
            port.input(tag(0, 5)).map(|inner| (inner.vid, inner.pcp)),
            Some((10, 5))
        );
        assert_eq!(
            port.input(tag(10, 0)),
            None,
            "even its own VLAN must come untagged"
        );
        assert!(port.includes(10) && !port.includes(11) && !port.includes(0));
        let inner = port.input(tag(0, 5)).unwrap();
        assert_eq!(port.output(inner, 5), None);
        let trunk = VlanConfig::default();
        assert_eq!(trunk.output(inner, 5), tag(10, 5), "the priority survives");
    }

    #[test]
    fn a_trunk_carries_what_it_is_told() {
        let port = VlanConfig::new(VlanMode::Trunk, Some([10, 20].into_iter().collect()));
        assert_eq!(port.input(tag(20, 0)).map(|inner| inner.vid), Some(20));
        assert_eq!(port.input(tag(30, 0)), None);
        assert_eq!(port.input(None), None, "VLAN 0 is not among its trunks");
        assert_eq!(
            VlanConfig::default().input(None).map(|inner| inner.vid),
            Some(0)
        );
    }

    #[test]
    fn native_ports_differ_only_on_the_way_out() {
        let tagged = VlanConfig::new(VlanMode::NativeTagged(7), Some([8].into_iter().collect()));
        let untagged =
            VlanConfig::new(VlanMode::NativeUntagged(7), Some([8].into_iter().collect()));
        for port in [&tagged, &untagged] {
            assert_eq!(port.input(None).map(|inner| inner.vid), Some(7));
            assert_eq!(port.input(tag(7, 0)).map(|inner| inner.vid), Some(7));
            assert_eq!(port.input(tag(8, 0)).map(|inner| inner.vid), Some(8));
            assert_eq!(port.input(tag(9, 0)), None);
            assert!(!port.includes(0));
        }
        let inner = tagged.input(None).unwrap();
        assert_eq!(tagged.output(inner, 0), tag(7, 0));
        assert_eq!(untagged.output(inner, 0), None);
    }

    #[test]
    fn priority_tags_as_asked() {
        let inner = |pcp| Inner {
            vid: 0,
            pcp,
            tpid: TPID_8021Q,
        };
        let port = |tags| VlanConfig::default().with_priority_tags(tags);
        assert_eq!(port(PriorityTags::Never).output(inner(3), 3), None);
        assert_eq!(port(PriorityTags::IfNonzero).output(inner(3), 3), tag(0, 3));
        assert_eq!(port(PriorityTags::IfNonzero).output(inner(0), 0), None);
        assert_eq!(port(PriorityTags::Always).output(inner(0), 0), tag(0, 0));
    }

    #[test]
    fn fronts_that_lie_are_told_apart() {
        let mut frame = HeapFrame::new(&[0; 13]);
        assert_eq!(ethernet(&mut frame), Err(Malformed::Runt));
        let mut bytes = [0; 17];
        bytes[12] = 0x81;
        assert_eq!(
            ethernet(&mut HeapFrame::new(&bytes)),
            Err(Malformed::TruncatedTag)
        );
        assert!(
            ethernet(&mut HeapFrame::with_segments(&[
                &bytes[..5],
                &bytes[5..],
                &[0]
            ]))
            .is_ok()
        );
    }

    proptest! {
        /// The reference builds the expected frame from its parts.
        #[test]
        fn tags_come_and_go_without_touching_the_rest(
            addresses: [u8; 12],
            payload in proptest::collection::vec(any::<u8>(), 4..40),
            from in proptest::option::of(any::<u16>()),
            to in proptest::option::of(any::<u16>()),
            cut in 1_usize..30,
        ) {
            let build = |tci: Option<u16>| {
                let mut bytes = addresses.to_vec();
                if let Some(tci) = tci {
                    bytes.extend(TPID_8021Q.to_be_bytes());
                    bytes.extend(tci.to_be_bytes());
                }
                bytes.extend([8, 0]);
                bytes.extend(&payload);
                bytes
            };
            let bytes = build(from);
            let cut = cut.min(bytes.len() - 1);
            let mut frame = HeapFrame::with_segments(&[&bytes[..cut], &bytes[cut..]]);
            frame.set_offload(packet::Offload { partial_checksum: true, csum_start: 50, ..Default::default() });
            let front = ethernet(&mut frame).unwrap();
            prop_assert_eq!(front.tag.map(|tag| tag.tci), from);
            let wanted = to.map(|tci| Tag { tpid: TPID_8021Q, tci });
            prop_assert!(set_tag(&mut frame, front.tag, wanted));
            prop_assert_eq!(frame.to_vec(), build(to));
            let moved = i16::from(to.is_some()) * 4 - i16::from(from.is_some()) * 4;
            prop_assert_eq!(frame.offload().csum_start, 50_u16.saturating_add_signed(moved));
        }
    }
}
