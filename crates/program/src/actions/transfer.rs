//! Steps that copy bits of metadata, or write tunnel metadata, compiled for packets that are lanes.
//!
//! What such a step copies may have been written by the step before it, so they are executed one
//! after the other, in order.

use crate::actions::Bits;
use crate::actions::Op;
use crate::actions::block::LANE_WORDS;
use crate::actions::connection::CONNECTION;
use packet::Field;
use packet::edit::CompiledSet;
use packet::parse::MINI_KEY_WORDS;
use packet::tunnel::TunnelWords;
use smallvec::SmallVec;

/// Writes bits of one word of metadata.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    from: Source,
    /// The word that it writes.
    pub to: u8,
    /// The bits that it writes, in the form of the key.
    pub mask: u64,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Constant(u64),
    /// Bits of a word, in wire order shifted to the right and then to the left.
    Word {
        word: u8,
        right: u32,
        left: u32,
    },
}

/// Several, and whether one of them writes tunnel metadata.
#[derive(Clone, Debug)]
pub(crate) struct Transfers {
    pub to_tunnel: bool,
    /// Here and not elsewhere, so that where each packet meets a rule of its own, these are not
    /// waited for twice.
    pub list: SmallVec<[Transfer; 4]>,
}

impl Transfers {
    /// Puts some together.
    pub fn new(list: Vec<Transfer>) -> Transfers {
        Transfers {
            to_tunnel: list.iter().any(|one| usize::from(one.to) >= LANE_WORDS),
            list: list.into(),
        }
    }
}

/// Returns the word that holds these bits, and how many of its bits come after them in wire order.
/// None where they lie in two words, and for bits that fields have in actions only.
fn place(of: Bits) -> Option<(usize, u32)> {
    let def = of.field.def();
    let end = def.offset + def.bytes;
    let start = usize::from(of.start).checked_sub(def.wire_shift)? + def.shift;
    // The key has fewer bits of some fields than actions, which read zeros there.
    if start + usize::from(of.bits) > 8 * def.bytes {
        return None;
    }
    let start = start + (end.next_multiple_of(8) - end) * 8;
    let word = (end.div_ceil(8) - 1).checked_sub(start / 64)?;
    let behind = start % 64;
    (behind + usize::from(of.bits) <= 64).then_some((word, behind as u32))
}

/// Returns whether lanes can read a word, apart from those of IPv6 and ARP.
fn is_readable(word: usize) -> bool {
    word < LANE_WORDS || TunnelWords::holds(word) || word < 63 && CONNECTION.contains(word)
}

/// Returns whether lanes can write a word of metadata.
fn is_writable(word: usize) -> bool {
    (MINI_KEY_WORDS..LANE_WORDS).contains(&word) || TunnelWords::holds(word)
}

/// Returns the word from which lanes can read these bits, and how many of its bits come after them
/// in wire order; None where they cannot.
pub(crate) fn read_from(from: Bits) -> Option<(u8, u32)> {
    let (word, right) = place(from)?;
    is_readable(word).then_some((word as u8, right))
}

impl Transfer {
    /// Makes one that writes bits of a word, whichever it is.
    pub fn constant(word: usize, value: u64, mask: u64) -> Transfer {
        Transfer {
            from: Source::Constant(value),
            to: word as u8,
            mask,
        }
    }

    /// Makes one that copies bits to a word of whatever kind. None where lanes cannot read them,
    /// and where what is written is not what is read (any part of the ingress port).
    pub fn between(src: Bits, dst: Bits) -> Option<Transfer> {
        let ((from, right), (to, left)) = (read_from(src)?, place(dst)?);
        if matches!(dst.field, Field::InPort) || src.bits != dst.bits {
            return None;
        }
        Some(Transfer {
            from: Source::Word {
                word: from,
                right,
                left,
            },
            to: to as u8,
            mask: (u64::MAX >> (64 - u32::from(dst.bits)) << left).to_be(),
        })
    }

    /// Appends what does the same as a step. Returns false for steps of another kind, and where
    /// lanes do not have the words.
    pub fn append(op: &Op, all: &mut Vec<Transfer>) -> bool {
        match op {
            Op::Set(CompiledSet::Metadata { word, value, mask }) => {
                let fits = is_writable((*word).into());
                if fits {
                    all.push(Transfer {
                        from: Source::Constant(*value),
                        to: *word,
                        mask: *mask,
                    });
                }
                fits
            }
            Op::Set(CompiledSet::Other { field, value, mask })
                if field.tunnel_option().is_some() =>
            {
                Transfer::append_bytes(field.def().offset, value, mask, all)
            }
            Op::Move { src, dst } => match Transfer::copy(*src, *dst) {
                Some(copy) => {
                    all.push(copy);
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    /// Appends writes of bytes of the key from `offset` on, where the mask has bits.
    fn append_bytes(offset: usize, value: &[u8], mask: &[u8], all: &mut Vec<Transfer>) -> bool {
        let words = offset / 8..(offset + mask.len()).div_ceil(8);
        for word in words {
            let part = |bytes: &[u8]| {
                let byte = |at: usize| {
                    (word * 8 + at)
                        .checked_sub(offset)
                        .and_then(|at| bytes.get(at))
                };
                u64::from_ne_bytes(std::array::from_fn(|at| byte(at).copied().unwrap_or(0)))
            };
            let mask = part(mask);
            if mask == 0 {
                continue;
            }
            if !is_writable(word) {
                return false;
            }
            all.push(Transfer {
                from: Source::Constant(part(value) & mask),
                to: word as u8,
                mask,
            });
        }
        true
    }

    fn copy(src: Bits, dst: Bits) -> Option<Transfer> {
        let translated = |field: Field| matches!(field, Field::InPort);
        let copy = Transfer::between(src, dst)?;
        (is_writable(copy.to.into()) && !translated(src.field)).then_some(copy)
    }

    /// Returns the word that it reads, if any.
    #[inline(always)]
    pub fn reads(&self) -> Option<u8> {
        match self.from {
            Source::Constant(_) => None,
            Source::Word { word, .. } => Some(word),
        }
    }

    /// Returns the bits to write, none outside the mask, given the word that it reads.
    #[inline(always)]
    pub fn value(&self, word: u64) -> u64 {
        match self.from {
            Source::Constant(value) => value,
            Source::Word { right, left, .. } => {
                (u64::from_be(word) >> right << left).to_be() & self.mask
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::bits;
    use packet::FlowKey;

    /// A copy between any two fields writes what the step writes; those that lanes cannot make are
    /// left out, others not.
    #[test]
    fn copies_are_those_of_the_steps() {
        let mut key = FlowKey::ZERO;
        for (at, word) in key.words.iter_mut().enumerate() {
            *word = crate::actions::multipath::pair(7, at as u64);
        }
        let fields = || packet::fields::FIELDS.iter().map(|def| def.field);
        let (mut made, mut to_tunnels) = (0, 0);
        for (from, to) in fields().flat_map(|from| fields().map(move |to| (from, to))) {
            let most = from.def().action_bits.min(to.def().action_bits).min(128) as u16;
            for (bits, up) in [
                (most, 0),
                (most.min(5), 0),
                (most.min(16), 1),
                (1, most - 1),
            ] {
                let part = |field: Field| {
                    let room = field.def().action_bits as u16 - bits;
                    Bits {
                        field,
                        start: up.min(room),
                        bits,
                    }
                };
                let (src, dst) = (part(from), part(to));
                let mut all = Vec::new();
                if !Transfer::append(&Op::Move { src, dst }, &mut all) {
                    assert!(all.is_empty());
                    let plain = matches!(
                        (from, to),
                        (Field::Reg0 | Field::TunId, Field::Reg3 | Field::TunDst)
                    );
                    assert!(!plain, "{from:?} {to:?}");
                    continue;
                }
                let value = bits::read(&key, src);
                let (value, mask) = bits::write(dst, value);
                let mut wanted = key;
                let offset = to.def().offset;
                let bytes = &mut wanted.bytes_mut()[offset..offset + to.def().bytes];
                for (byte, (value, mask)) in bytes.iter_mut().zip(value.iter().zip(mask.iter())) {
                    *byte = *byte & !mask | value & mask;
                }
                let mut got = key;
                for one in &all {
                    let word = one.reads().map_or(0, |word| key.words[usize::from(word)]);
                    assert_eq!(one.value(word) & !one.mask, 0);
                    let at = usize::from(one.to);
                    got.words[at] = got.words[at] & !one.mask | one.value(word);
                }
                assert!(got == wanted, "{src:?} {dst:?}");
                made += 1;
                to_tunnels += usize::from(Transfers::new(all).to_tunnel);
            }
        }
        assert!(made > 1000 && to_tunnels > 100, "{made} {to_tunnels}");
    }

    /// Options are written word by word.
    #[test]
    fn options_are_written_as_the_step_writes_them() {
        let field = packet::options::KeyRange::new(1, 12).unwrap().field();
        let bytes = field.def().bytes;
        let (mut value, mut mask) = (packet::Value::zero(bytes), packet::Value::zero(bytes));
        for at in bytes - 12..bytes {
            (value[at], mask[at]) = (at as u8, 0xf0);
        }
        let set = CompiledSet::new(field, &value, &mask);
        let mut all = Vec::new();
        assert!(Transfer::append(&Op::Set(set), &mut all));
        let mut key = FlowKey::ZERO;
        key.words.fill(u64::MAX);
        let mut wanted = key;
        let offset = field.def().offset;
        for at in 0..bytes {
            let byte = &mut wanted.bytes_mut()[offset + at];
            *byte = *byte & !mask[at] | value[at] & mask[at];
        }
        for one in &all {
            let at = usize::from(one.to);
            key.words[at] = key.words[at] & !one.mask | one.value(0);
        }
        assert!(key == wanted);
        assert_eq!(all.len(), 2);
        // A longer one reaches beyond what lanes have.
        let field = packet::options::KeyRange::new(0, 124).unwrap().field();
        let (value, mask) = (packet::Value::zero(124), field.def().place());
        let set = CompiledSet::new(field, &value, &mask);
        assert!(!Transfer::append(&Op::Set(set), &mut Vec::new()));
    }
}
