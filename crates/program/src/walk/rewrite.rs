//! What routers' rules do: another TTL, other Ethernet addresses, and out.
//!
//! A packet that meets such a rule in the first table, looked up by its hot words, needs neither key nor walk, for nobody looks at it again: it is changed
//! in the frame, whose layers the first reading has told.

use super::straight::Straight;
use crate::ops::{Op, PortNo};
use crate::table::HotWords;
use packet::Frame;
use packet::edit::{self, CompiledSet};
use packet::key::at;

impl Straight {
    /// Changes a packet as the rule says and tells where it goes; None, with nothing done, where the rule does something else, or the TTL runs out.
    #[inline(always)]
    pub(super) fn rewrite<F: Frame>(&self, frame: &mut F, hot: &HotWords) -> Option<PortNo> {
        let (edits, port) = self.edits_and_output()?;
        let before = hot.words[at::IP_TTL / 8].to_ne_bytes()[at::IP_TTL % 8];
        let mut ttl = None;
        for op in edits {
            match op {
                // One change only: several may leave another of the two checksums that mean the same.
                Op::DecTtl(_) if ttl.is_none() && before > 1 => ttl = Some(before - 1),
                Op::Set(CompiledSet::IpTtl(to)) if ttl.is_none() => ttl = Some(*to),
                Op::Set(set) if set.sets_addresses_only() => {}
                _ => return None,
            }
        }
        let head = frame.head_mut();
        for op in edits {
            if let Op::Set(set) = op {
                set.run_on_addresses(head);
            }
        }
        if let Some(ttl) = ttl {
            edit::set_ipv4_ttl(head, usize::from(hot.extent.l3), ttl);
        }
        Some(port)
    }
}
