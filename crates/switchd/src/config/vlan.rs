//! A port's VLAN settings, and sets of VLANs.

use std::fmt;

/// A set of VLAN ids from 0 to 4095.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Returns the empty set.
    pub fn empty() -> VlanSet {
        VlanSet(Box::new([0; 64]))
    }

    /// Returns the set of every VLAN.
    pub fn all() -> VlanSet {
        VlanSet(Box::new([u64::MAX; 64]))
    }

    /// Adds a VLAN; only the low 12 bits count.
    pub fn insert(&mut self, vlan: u16) {
        self.0[usize::from(vlan >> 6 & 63)] |= 1 << (vlan & 63);
    }

    /// Removes a VLAN.
    pub fn remove(&mut self, vlan: u16) {
        self.0[usize::from(vlan >> 6 & 63)] &= !(1 << (vlan & 63));
    }

    /// Returns whether the VLAN is in the set.
    pub fn contains(&self, vlan: u16) -> bool {
        self.0[usize::from(vlan >> 6 & 63)] >> (vlan & 63) & 1 != 0
    }

    /// Returns the VLANs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..4096).filter(|vlan| self.contains(*vlan))
    }

    /// Returns the set as bits, VLAN 0 in the lowest bit of the first word.
    pub fn words(&self) -> &[u64; 64] {
        &self.0
    }

    /// Returns the VLANs of a database column. The schema keeps them in range.
    pub fn from_column(vlans: &[i64]) -> VlanSet {
        vlans
            .iter()
            .filter_map(|vlan| u16::try_from(*vlan).ok().filter(|vlan| *vlan < 4096))
            .collect()
    }
}

impl Default for VlanSet {
    fn default() -> Self {
        VlanSet::empty()
    }
}

impl FromIterator<u16> for VlanSet {
    fn from_iter<I: IntoIterator<Item = u16>>(vlans: I) -> VlanSet {
        let mut set = VlanSet::empty();
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        set
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// How a port treats VLAN tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VlanMode {
    /// Untagged; its VLAN is [`Vlan::tag`].
    Access,
    /// Tagged, on the VLANs of [`Vlan::trunks`].
    #[default]
    Trunk,
    /// Like a trunk; untagged packets belong to the native VLAN, whose packets are sent tagged.
    NativeTagged,
    /// Like a trunk; untagged packets belong to the native VLAN, whose packets are sent untagged.
    NativeUntagged,
}

/// Whether packets outside every VLAN keep an 802.1Q header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriorityTags {
    /// Never.
    #[default]
    Never,
    /// When they have a priority.
    IfNonzero,
    /// Always.
    Always,
}

/// A port's VLAN settings, complete: nothing is left to a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlan {
    /// How tags are treated.
    pub mode: VlanMode,
    /// The access or native VLAN; 0 for a trunk.
    pub tag: u16,
    /// The VLANs carried; none means all. In native modes a list always includes the native VLAN.
    pub trunks: Option<VlanSet>,
    /// When packets are sent priority-tagged.
    pub priority_tags: PriorityTags,
}

impl Vlan {
    /// Combines the settings of a Port row. Without a `mode` it is an access port if there is a
    /// tag, else a trunk.
    pub fn new(
        mode: Option<VlanMode>,
        tag: Option<u16>,
        trunks: Option<VlanSet>,
        priority_tags: PriorityTags,
    ) -> Vlan {
        let mode = mode.unwrap_or(if tag.is_some() {
            VlanMode::Access
        } else {
            VlanMode::Trunk
        });
        let tag = tag.unwrap_or(0);
        match mode {
            VlanMode::Access => Vlan {
                mode,
                tag,
                trunks: None,
                priority_tags,
            },
            VlanMode::Trunk => Vlan {
                mode,
                tag: 0,
                trunks,
                priority_tags,
            },
            VlanMode::NativeTagged | VlanMode::NativeUntagged => Vlan {
                mode,
                tag,
                trunks: native_trunks(tag, trunks),
                priority_tags,
            },
        }
    }
}

/// Returns the trunks of a native port: they always include its native VLAN, and do not include
/// VLAN 0, since untagged packets belong to the native VLAN.
fn native_trunks(native: u16, trunks: Option<VlanSet>) -> Option<VlanSet> {
    if native == 0
        || trunks
            .as_ref()
            .is_some_and(|set| set.contains(native) && !set.contains(0))
    {
        return trunks;
    }
    let mut set = trunks.unwrap_or_else(VlanSet::all);
    set.insert(native);
    set.remove(0);
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_set_behaves_like_a_set(steps in prop::collection::vec((0u16..4096, any::<bool>()), 0..50)) {
            let mut reference = BTreeSet::new();
            let mut set = VlanSet::empty();
            for (vlan, put) in steps {
                if put {
                    reference.insert(vlan);
                    set.insert(vlan);
                } else {
                    reference.remove(&vlan);
                    set.remove(vlan);
                }
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), reference.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_mode_follows_the_tag_when_it_is_not_given() {
        let trunks = Some(VlanSet::from_iter([4, 5]));
        let access = Vlan::new(None, Some(3), trunks.clone(), PriorityTags::Never);
        assert_eq!(
            (access.mode, access.tag, access.trunks),
            (VlanMode::Access, 3, None)
        );
        let trunk = Vlan::new(None, None, trunks.clone(), PriorityTags::Never);
        assert_eq!(
            (trunk.mode, trunk.tag, trunk.trunks),
            (VlanMode::Trunk, 0, trunks)
        );
        let trunk = Vlan::new(Some(VlanMode::Trunk), Some(3), None, PriorityTags::Never);
        assert_eq!((trunk.tag, trunk.trunks), (0, None));
    }

    #[test]
    fn native_ports_trunk_their_native_vlan_and_not_vlan_0() {
        let native = |tag, trunks| {
            Vlan::new(
                Some(VlanMode::NativeTagged),
                tag,
                trunks,
                PriorityTags::Never,
            )
            .trunks
        };
        assert_eq!(
            native(Some(3), Some([0, 4].into_iter().collect())),
            Some([3, 4].into_iter().collect())
        );
        let all_but_0 = native(Some(3), None).unwrap();
        assert!(!all_but_0.contains(0) && all_but_0.contains(3) && all_but_0.contains(4095));
        assert_eq!(native(Some(0), None), None);
    }
}
