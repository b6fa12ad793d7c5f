//! Groups as the specification describes them: each bucket is an action set that runs on a copy of
//! the packet.

use super::story::What;
use super::{At, Machine, in_order};
use crate::state::groups::{hash_of, selector_of};
use openflow::group::{self, Bucket, GroupDescription, GroupKind, Selection, SelectionMethod};
use openflow::port;
use packet::Field;
use packet::key::at;
use program::actions::PacketInReason;
use program::exec::{MAX_DEPTH, MAX_RESUBMITS};
use program::group::LOOKS;

/// A group that a packet met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupHit {
    /// Its number.
    pub group: u32,
    /// The index of the bucket; None for the group itself.
    pub bucket: Option<usize>,
    /// The packet's length as the group counted it.
    pub bytes: usize,
}

impl Machine<'_> {
    /// Runs a group.
    pub(super) fn group(&mut self, number: u32, at: At) {
        let Some(entry) = self.pipeline.groups.get(number) else {
            self.say(|| What::Warning(format!("output to nonexistent group {number}")));
            return;
        };
        if at.depth >= MAX_DEPTH {
            self.outcome.cut_short = true;
            self.say(|| What::Error(format!("over max translation depth {MAX_DEPTH}")));
            return;
        }
        let description = &entry.description;
        let level = self.level;
        let chosen: Vec<usize> = match description.kind {
            GroupKind::All | GroupKind::Indirect => (0..description.buckets.len()).collect(),
            GroupKind::FastFailover => self.first_live(description).into_iter().collect(),
            GroupKind::Select => {
                self.level += 1;
                if hash_of(description.selection.as_ref(), &self.pipeline.options).is_datapaths() {
                    self.counted = self.packet.bytes().len();
                    self.packet_out = false;
                }
                self.selected(description, level).into_iter().collect()
            }
        };
        let every = matches!(description.kind, GroupKind::All | GroupKind::Indirect);
        if every || !chosen.is_empty() {
            self.hit(number, None);
        } else {
            self.say(|| What::Detail("no live bucket".to_owned()));
        }
        for place in chosen {
            if !self.is_over() {
                self.bucket(description, place, at);
            }
        }
        self.level = level;
    }

    fn hit(&mut self, group: u32, bucket: Option<usize>) {
        let bytes = self.counted;
        self.outcome.groups.push(GroupHit {
            group,
            bucket,
            bytes,
        });
    }

    fn first_live(&self, description: &GroupDescription) -> Option<usize> {
        let (mut buckets, mut looks) = (description.buckets.iter(), LOOKS);
        buckets.position(|bucket| self.is_live(bucket, 0, &mut looks))
    }

    fn selected(&mut self, description: &GroupDescription, level: u32) -> Option<usize> {
        let selector = selector_of(description, &self.pipeline.options);
        let hash = selector.hash.hash(&self.key, level);
        self.look_at_hashed(description.selection.as_ref());
        let mut looks = LOOKS;
        selector.choose(hash, |place| {
            self.is_live(&description.buckets[place], 0, &mut looks)
        })
    }

    /// Records that the outcome depends on the hashed fields.
    fn look_at_hashed(&mut self, selection: Option<&Selection>) {
        const MACS: [Field; 2] = [Field::EthSrc, Field::EthDst];
        const FIVE_TUPLE: [Field; 8] = [
            Field::EthType,
            Field::Ipv4Src,
            Field::Ipv4Dst,
            Field::Ipv6Src,
            Field::Ipv6Dst,
            Field::IpProto,
            Field::TcpSrc,
            Field::TcpDst,
        ];
        let named = selection.map_or(&[][..], |selection| &selection.fields);
        if !named.is_empty() {
            named.iter().for_each(|(field, _)| self.look_at(*field));
            return;
        }
        let five_tuple = selection.is_some_and(|all| all.method == SelectionMethod::DpHash);
        if !five_tuple {
            MACS.iter().for_each(|field| self.look_at(*field));
        }
        let known = match self.key.u16(at::ETH_TYPE) {
            0x0800 | 0x86dd => &FIVE_TUPLE[..],
            0x0806 => &[Field::EthType, Field::ArpSpa, Field::ArpTpa],
            _ => &FIVE_TUPLE[..1],
        };
        known.iter().for_each(|field| self.look_at(*field));
    }

    /// Returns whether a bucket is live: whether what it watches is, or it watches nothing
    /// (OpenFlow 1.3.5 section 6.5). `looks`: how many more buckets may be examined.
    fn is_live(&self, bucket: &Bucket, depth: u32, looks: &mut u32) -> bool {
        if !bucket.is_watched() {
            return true;
        }
        if *looks == 0 || depth >= MAX_DEPTH {
            return false;
        }
        *looks -= 1;
        let port = bucket.watch_port != port::ANY && (self.live)(bucket.watch_port);
        port || bucket.watch_group != group::ANY
            && self.group_is_live(bucket.watch_group, depth, looks)
    }

    fn group_is_live(&self, number: u32, depth: u32, looks: &mut u32) -> bool {
        let Some(entry) = self.pipeline.groups.get(number) else {
            return false;
        };
        let description = &entry.description;
        let may_run =
            |bucket: &&Bucket| description.kind != GroupKind::Select || bucket.weight != 0;
        description
            .buckets
            .iter()
            .filter(may_run)
            .any(|bucket| self.is_live(bucket, depth + 1, looks))
    }

    fn bucket(&mut self, description: &GroupDescription, place: usize, at: At) {
        self.resubmits += 1;
        if self.resubmits > MAX_RESUBMITS {
            self.outcome.cut_short = true;
            self.say(|| What::Error(format!("over {MAX_RESUBMITS} resubmit actions")));
            return;
        }
        self.hit(description.group, Some(place));
        let bucket = &description.buckets[place];
        self.open(|| What::Bucket(format!("bucket {}: using bucket", bucket.id)));
        let before = (self.packet.clone(), self.key, self.queue);
        let counted = self.counted;
        let at = At {
            depth: at.depth + 1,
            apply: PacketInReason::Group,
            table_is_lookup: false,
            ..at
        };
        let (ordered, ends) = in_order(&bucket.actions);
        if ends {
            self.list(&ordered, at);
        }
        (self.packet, self.key, self.queue) = before;
        self.counted = counted;
        // An exit, or a meter that drops, ends only the bucket.
        (self.stopped, self.dead) = (false, false);
        self.close();
    }
}
