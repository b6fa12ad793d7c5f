//! Edits of common packets ([`crate::hot`]) that nobody looks at any more: in the frame alone, without a key to keep in step.

use super::{CompiledSet, set_ipv4_byte};

impl CompiledSet {
    /// Whether it sets Ethernet addresses and nothing else.
    #[inline(always)]
    pub fn sets_addresses_only(&self) -> bool {
        use CompiledSet::{EthAddresses, EthDst, EthSrc};
        matches!(self, EthDst(_) | EthSrc(_) | EthAddresses(_))
    }

    /// Sets the Ethernet addresses of a frame that has both; other sets do nothing.
    #[inline(always)]
    pub fn run_on_addresses(&self, head: &mut [u8]) {
        let Some(addresses) = head.first_chunk_mut::<12>() else {
            return;
        };
        match self {
            CompiledSet::EthDst(to) => addresses[..6].copy_from_slice(to),
            CompiledSet::EthSrc(to) => addresses[6..].copy_from_slice(to),
            CompiledSet::EthAddresses(to) => *addresses = *to,
            _ => {}
        }
    }
}

/// Gives the IPv4 header that begins at `l3` another TTL; nothing where there is no room for one.
#[inline(always)]
pub fn set_ipv4_ttl(head: &mut [u8], l3: usize, ttl: u8) {
    if let Some(header) = head.get_mut(l3..).and_then(<[u8]>::first_chunk_mut::<20>) {
        set_ipv4_byte(header, 8, ttl);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::edit::dec_ttl;
    use crate::{FlowKey, Frame, HeapFrame, WordSet};
    use proptest::prelude::*;

    /// The frame's bytes after `change`, which keeps the key in step.
    fn with_key(
        mut frame: HeapFrame,
        change: impl Fn(&mut HeapFrame, &mut crate::Layers, &mut FlowKey),
    ) -> Vec<u8> {
        let mut key = FlowKey::ZERO;
        let mut layers = crate::parse::parse_frame(&mut frame, 1, WordSet(u64::MAX), &mut key);
        change(&mut frame, &mut layers, &mut key);
        frame.head().to_vec()
    }

    proptest! {
        #[test]
        fn frames_end_as_with_their_keys(source: u32, ttl in 2_u8.., dst: [u8; 6], src: [u8; 6], tagged: bool) {
            let mut builder = Builder::ethernet([2; 6], [4; 6]);
            if tagged {
                builder = builder.tag(0x8100, 7);
            }
            let builder = builder.ipv4(source, 9).with_ipv4(|ip| ip.set_ttl(ttl)).udp(1, 2);
            let l3 = if tagged { 18 } else { 14 };
            let mut both = [0; 12];
            both[..6].copy_from_slice(&dst);
            both[6..].copy_from_slice(&src);
            for set in [CompiledSet::EthDst(dst), CompiledSet::EthSrc(src), CompiledSet::EthAddresses(both)] {
                prop_assert!(set.sets_addresses_only());
                let wanted = with_key(builder.frame(), |frame, layers, key| {
                    set.run(frame, layers, key);
                    dec_ttl(frame, layers, key).expect("the TTL is above 1");
                });
                let mut frame = builder.frame();
                set.run_on_addresses(frame.head_mut());
                set_ipv4_ttl(frame.head_mut(), l3, ttl - 1);
                prop_assert_eq!(frame.head(), &wanted[..]);
            }
        }
    }
}
