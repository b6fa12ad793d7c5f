//! What a rule matches: masked bits of the flow key.

use crate::fields::Field;
use crate::key::{FlowKey, WordSet};
use crate::value::Value;
use smallvec::SmallVec;

/// One word of a match: `key & mask == value`, with `value & !mask == 0` and `mask != 0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MatchWord {
    /// Which word of the key; of a named tunnel option, which of its own words.
    pub word: u8,
    /// 0 for the key; n + 1 for tunnel option n, as messages name it ([`crate::options`]).
    pub(crate) bank: u8,
    /// The bits compared, as in the key.
    pub mask: u64,
    /// The values of these bits.
    pub value: u64,
}

/// A set of (value, mask) bits over the key in canonical form: words ascending, no empty masks, no
/// value bits outside masks. So two matches denote the same rule for a strict flow mod exactly when
/// they are equal.
///
/// Matches of messages may also name tunnel options, whose places in the key only the bridge's map
/// knows: see [`crate::options`]. These are kept behind the words of the key, and compared with
/// nothing.
#[derive(PartialEq, Eq, Hash, Default, Debug)]
pub struct Match {
    /// Ascending by bank and word.
    pub(crate) entries: SmallVec<[MatchWord; 3]>,
}

impl MatchWord {
    /// Compares these bits of a word of the key.
    pub fn of_key(word: u8, value: u64, mask: u64) -> MatchWord {
        MatchWord {
            word,
            bank: 0,
            mask,
            value,
        }
    }
}

impl Clone for Match {
    fn clone(&self) -> Match {
        // Copies in one piece, not word by word.
        Match {
            entries: SmallVec::from_slice(&self.entries),
        }
    }
}

impl Match {
    /// Returns a match of every packet.
    pub fn any() -> Match {
        Match::default()
    }

    /// Returns the words of the key that are compared, ascending.
    #[inline]
    pub fn words(&self) -> &[MatchWord] {
        match self.entries.last() {
            Some(last) if last.bank != 0 => {
                let named = self.entries.partition_point(|entry| entry.bank == 0);
                &self.entries[..named]
            }
            _ => &self.entries,
        }
    }

    /// Returns which words are compared.
    pub fn word_set(&self) -> WordSet {
        let words = self.words().iter();
        words.fold(WordSet::EMPTY, |set, word| {
            set.union(WordSet::of_word(usize::from(word.word)))
        })
    }

    /// Adds bits: `key.words[word] & mask == value & mask`. Bits added before stay, and take the
    /// new value where the masks overlap.
    pub fn set_word(&mut self, word: usize, value: u64, mask: u64) {
        self.set_word_of(0, word, value, mask);
    }

    pub(crate) fn set_word_of(&mut self, bank: u8, word: usize, value: u64, mask: u64) {
        if mask == 0 {
            return;
        }
        let new = MatchWord {
            word: word as u8,
            bank,
            mask,
            value: value & mask,
        };
        // A linear search: there are few.
        let after = |entry: &MatchWord| (entry.bank, entry.word) >= (new.bank, new.word);
        match self.entries.iter().position(after) {
            Some(at) if (self.entries[at].bank, self.entries[at].word) == (bank, new.word) => {
                let entry = &mut self.entries[at];
                entry.value = entry.value & !mask | new.value;
                entry.mask |= mask;
            }
            Some(at) => self.entries.insert(at, new),
            None => self.entries.push(new),
        }
    }

    /// Adds bytes at a byte offset of the key.
    pub fn set_bytes(&mut self, offset: usize, value: &[u8], mask: &[u8]) {
        self.set_bytes_of(0, offset, value, mask);
    }

    pub(crate) fn set_bytes_of(&mut self, bank: u8, offset: usize, value: &[u8], mask: &[u8]) {
        debug_assert_eq!(value.len(), mask.len());
        let mut done = 0;
        while done < value.len() {
            let word = (offset + done) / 8;
            let from = (offset + done) % 8;
            let n = (8 - from).min(value.len() - done);
            let (mut v, mut m) = ([0; 8], [0; 8]);
            v[from..from + n].copy_from_slice(&value[done..done + n]);
            m[from..from + n].copy_from_slice(&mask[done..done + n]);
            self.set_word_of(bank, word, u64::from_ne_bytes(v), u64::from_ne_bytes(m));
            done += n;
        }
    }

    /// Removes the bits that are set in `bits`, from a byte offset of the key on.
    pub(crate) fn clear_bits(&mut self, offset: usize, bits: &[u8]) {
        for entry in self.entries.iter_mut().filter(|entry| entry.bank == 0) {
            for index in 0..8 {
                let at = usize::from(entry.word) * 8 + index;
                if (offset..offset + bits.len()).contains(&at) {
                    let mut open = [0; 8];
                    open[index] = bits[at - offset];
                    let open = u64::from_ne_bytes(open);
                    entry.mask &= !open;
                    entry.value &= !open;
                }
            }
        }
        self.entries.retain(|entry| entry.mask != 0);
    }

    /// Returns the value and mask of the bytes `offset..offset + len` of the key.
    pub fn bytes(&self, offset: usize, len: usize) -> (Value, Value) {
        self.bytes_of(0, offset, len)
    }

    pub(crate) fn bytes_of(&self, bank: u8, offset: usize, len: usize) -> (Value, Value) {
        let (mut value, mut mask) = (Value::zero(len), Value::zero(len));
        for entry in self.entries.iter().filter(|entry| entry.bank == bank) {
            let (v, m) = (entry.value.to_ne_bytes(), entry.mask.to_ne_bytes());
            for i in 0..8 {
                let at = usize::from(entry.word) * 8 + i;
                if (offset..offset + len).contains(&at) {
                    value[at - offset] = v[i];
                    mask[at - offset] = m[i];
                }
            }
        }
        (value, mask)
    }

    /// Adds a field, masked; `value` and `mask` have the field's bytes. Bits outside the field are
    /// ignored.
    pub fn set(&mut self, field: Field, value: &[u8], mask: &[u8]) {
        let def = field.def();
        let place = def.place();
        let masked: Value = Value::from_bytes(
            &mask
                .iter()
                .zip(place.iter())
                .map(|(a, b)| a & b)
                .collect::<SmallVec<[u8; 16]>>(),
        );
        self.set_bytes(def.offset, value, &masked);
    }

    /// Adds a field with an exact value, given as a number.
    pub fn set_exact(&mut self, field: Field, value: u128) {
        let def = field.def();
        let value = Value::from_u128(value << def.shift, def.bytes);
        self.set_bytes(def.offset, &value, &def.place());
    }

    /// Returns the value and mask of a field in the form of the key.
    pub fn get(&self, field: Field) -> (Value, Value) {
        let def = field.def();
        let (mut value, mut mask) = self.bytes(def.offset, def.bytes);
        for (i, place) in def.place().iter().enumerate() {
            value[i] &= place;
            mask[i] &= place;
        }
        (value, mask)
    }

    /// Returns whether a key matches.
    #[inline]
    pub fn matches(&self, key: &FlowKey) -> bool {
        self.words()
            .iter()
            .all(|entry| key.words[usize::from(entry.word)] & entry.mask == entry.value)
    }

    /// Returns whether every packet that matches `self` also matches `wider` (for non-strict flow
    /// mods, OpenFlow 1.3.5 section 6.4).
    pub fn is_within(&self, wider: &Match) -> bool {
        let words = self.words();
        let names = wider.entries.len() > wider.words().len();
        if names && !self.names_within(wider) {
            return false;
        }
        wider.words().iter().all(|w| {
            words
                .binary_search_by_key(&w.word, |entry| entry.word)
                .is_ok_and(|at| {
                    words[at].mask & w.mask == w.mask && words[at].value & w.mask == w.value
                })
        })
    }

    /// Returns whether some packet could match both (`OFPFF_CHECK_OVERLAP`).
    pub fn overlaps(&self, other: &Match) -> bool {
        let others = other.words();
        self.words().iter().all(|a| {
            others
                .binary_search_by_key(&a.word, |entry| entry.word)
                .map_or(true, |at| {
                    (others[at].value ^ a.value) & others[at].mask & a.mask == 0
                })
        })
    }
}
