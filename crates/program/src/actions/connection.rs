//! The `ct` action: sends a packet through the connection tracker.

use super::{Bits, bits};
use crate::actions::block::LANE_WORDS;
use conntrack::{Helper, Masked, Nat, Request};
use packet::{Field, Value, WordSet};

/// A compiled `ct` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Track {
    /// Whether to commit the connection to the tracker.
    pub commit: bool,
    /// Whether this packet's direction becomes the original one, ending an earlier connection.
    pub force: bool,
    /// The zone.
    pub zone: Zone,
    /// The table in which the tracked packet, or a copy of it, continues; None for no table.
    pub table: Option<u8>,
    /// What is written to the connection's mark and label.
    pub writes: Box<[Write]>,
    /// How the connection's addresses are translated.
    pub nat: Option<Nat>,
    /// The helper that expects related connections.
    pub helper: Option<Helper>,
}

/// The zone of a [`Track`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Zone {
    /// A fixed zone.
    Number(u16),
    /// The zone whose number is in these 16 bits.
    In(Bits),
}

/// A write to `ct_mark` or `ct_label`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Write {
    /// A constant; value and mask as the field lies in the key.
    Constant {
        /// [`Field::CtMark`] or [`Field::CtLabel`].
        field: Field,
        /// Value.
        value: Value,
        /// Bits to write.
        mask: Value,
    },
    /// Bits of another field.
    Copy {
        /// Source.
        src: Bits,
        /// Destination, of the same width.
        dst: Bits,
    },
}

/// Words of the key that a tracked packet's connection fills.
pub(crate) const CONNECTION: WordSet = {
    use packet::key::at;
    let state = WordSet::of_bytes(at::CT_STATE, at::CT_IPV6_SRC - at::CT_STATE);
    state.union(WordSet::of_bytes(at::CT_IPV6_SRC, 32))
};

/// Words of headers that a translation writes, and those that tell which headers there are.
pub(super) const TRANSLATED: WordSet = {
    use packet::key::at;
    let ipv4 = WordSet::of_bytes(at::ETH_TYPE, at::ETH_DST - at::ETH_TYPE);
    ipv4.union(WordSet::of_bytes(at::IPV6_SRC, 32))
};

/// A [`Track`] as packets in lanes are given to the tracker.
#[derive(Clone, Debug)]
pub(crate) struct LaneTrack {
    track: Track,
    mark: Masked<u32>,
    label: Masked<u128>,
    zone: LaneZone,
}

/// The zone of a packet in a lane.
#[derive(Clone, Copy, Debug)]
enum LaneZone {
    Number(u16),
    /// In these bits of a lane's word, `behind` bits before the word's end in wire order.
    In {
        word: u8,
        mask: u64,
        behind: u32,
    },
}

impl LaneTrack {
    /// Returns None where what is written to the connection comes from the packet, or the zone is
    /// not in a word that lanes have.
    pub fn of(track: &Track) -> Option<LaneTrack> {
        let zone = match track.zone {
            Zone::Number(zone) => LaneZone::Number(zone),
            Zone::In(from) => {
                let (word, one, mask) = bits::write_in_word(from, 1)?;
                let behind = u64::from_be(one).trailing_zeros();
                (word < LANE_WORDS).then_some(LaneZone::In {
                    word: word as u8,
                    mask,
                    behind,
                })?
            }
        };
        let (mut mark, mut label) = (0, 0);
        for write in &track.writes {
            let Write::Constant { field, value, mask } = write else {
                return None;
            };
            let of = match field {
                Field::CtMark => &mut mark,
                _ => &mut label,
            };
            *of = *of & !mask.to_u128() | value.to_u128() & mask.to_u128();
        }
        Some(LaneTrack {
            mark: Masked {
                value: mark as u32,
                mask: track.written(Field::CtMark) as u32,
            },
            label: Masked {
                value: label,
                mask: track.written(Field::CtLabel),
            },
            zone,
            track: track.clone(),
        })
    }

    /// Returns the step.
    pub fn step(&self) -> &Track {
        &self.track
    }

    /// Returns the zone of a packet with these words.
    #[inline(always)]
    pub fn zone(&self, words: &[u64; LANE_WORDS]) -> u16 {
        match self.zone {
            LaneZone::Number(zone) => zone,
            LaneZone::In { word, mask, behind } => {
                let word = words.get(usize::from(word)).copied().unwrap_or_default();
                (u64::from_be(word & mask) >> behind) as u16
            }
        }
    }

    /// Returns what is asked for all packets; the zone is that of each.
    pub fn request(&self) -> Request<'_> {
        Request {
            zone: 0,
            commit: self.track.commit,
            force: self.track.force,
            mark: self.mark,
            label: self.label,
            nat: self.track.nat.as_ref(),
            helper: self.track.helper,
        }
    }
}

impl Track {
    /// Returns the words of the key that it reads or changes.
    pub(crate) fn words(&self) -> WordSet {
        let field = |bits: &Bits| bits.field.def().words();
        let read = self.writes.iter().map(|write| match write {
            Write::Constant { .. } => WordSet::EMPTY,
            Write::Copy { src, .. } => field(src),
        });
        let zone = match &self.zone {
            Zone::Number(_) => WordSet::EMPTY,
            Zone::In(bits) => field(bits),
        };
        read.fold(CONNECTION.union(TRANSLATED).union(zone), WordSet::union)
    }

    /// Returns the bits of a field that it writes, with the field's bytes as a number.
    pub(crate) fn written(&self, which: Field) -> u128 {
        let masks = self.writes.iter().map(|write| match write {
            Write::Constant { field, mask, .. } if *field == which => mask.to_u128(),
            Write::Copy { dst, .. } if dst.field == which => {
                super::bits::write(*dst, 0).1.to_u128()
            }
            _ => 0,
        });
        masks.fold(0, |all, mask| all | mask)
    }
}
