//! `learn` steps compiled for packets that are lanes.
//!
//! Nearly all packets that come to such a step would teach a rule that is in force already. Whether
//! it is follows from a few words of the packet: those that the rule would match, by which it is
//! found, and what it would load or send to, which its fingerprint tells.

use crate::actions::bits;
use crate::actions::learn::{Learn, Source, Target};
use crate::actions::transfer::{Transfer, read_from};
use std::sync::Arc;

/// Most values that a learned rule takes from a packet and does not match.
pub(crate) const LOADED_MAX: usize = 4;

/// What a learned rule loads or sends to, in the order of its parts; those behind are zero.
pub(crate) type Loaded = [u64; LOADED_MAX];

/// Where a value that is not matched comes from.
#[derive(Clone, Copy, Debug)]
enum Load {
    Number(u64),
    /// Bits of a word of the packet, in wire order shifted to the right and masked.
    Word {
        word: u8,
        right: u32,
        mask: u64,
    },
}

impl Load {
    #[inline(always)]
    fn value(self, read: impl Fn(u8) -> u64) -> u64 {
        match self {
            Load::Number(number) => number,
            Load::Word { word, right, mask } => u64::from_be(read(word)) >> right & mask,
        }
    }
}

/// A step.
#[derive(Clone, Debug)]
pub(crate) struct LaneLearn {
    pub learn: Arc<Learn>,
    /// For each word of the shape how its parts are written, in order.
    matched: Box<[Box<[Transfer]>]>,
    loaded: Box<[Load]>,
}

impl LaneLearn {
    /// Compiles a step. None for one that writes whether the rule is there, and where lanes do not
    /// have the words.
    pub fn of(learn: &Arc<Learn>) -> Option<LaneLearn> {
        if learn.result.is_some() || learn.options != 0 {
            return None;
        }
        let (mut matched, mut loaded) = (vec![Vec::new(); learn.shape.len()], Vec::new());
        for part in &learn.parts {
            let Target::Match(to) = part.target else {
                loaded.push(match part.source {
                    Source::Number(number) => Load::Number(number.try_into().ok()?),
                    Source::Field(from) => {
                        let (word, right) = read_from(from)?;
                        let mask = u64::MAX >> 64_u32.checked_sub(from.bits.into())?;
                        Load::Word { word, right, mask }
                    }
                });
                continue;
            };
            let write = match part.source {
                Source::Number(number) => {
                    let (word, value, mask) = bits::write_in_word(to, number)?;
                    Transfer::constant(word, value, mask)
                }
                Source::Field(from) => Transfer::between(from, to)?,
            };
            let index = learn.shape.iter().position(|(word, _)| *word == write.to)?;
            matched[index].push(write);
        }
        (loaded.len() <= LOADED_MAX).then(|| LaneLearn {
            learn: Arc::clone(learn),
            matched: matched.into_iter().map(Vec::into).collect(),
            loaded: loaded.into(),
        })
    }

    /// Calls `put` with each word that the rule would match of the packet whose words `read`
    /// returns, in the order of [`Learn::shape`], and its value.
    #[inline(always)]
    pub fn matched(&self, read: impl Fn(u8) -> u64, mut put: impl FnMut(u8, u64)) {
        for ((word, _), writes) in self.learn.shape.iter().zip(&self.matched) {
            let value = writes.iter().fold(0, |value, write| {
                value & !write.mask | write.value(write.reads().map_or(0, &read))
            });
            put(*word, value);
        }
    }

    /// Returns whether this is what the rule would load or send to. Compares value by value: a
    /// processor waits for what it has written in parts and reads as a whole.
    #[inline(always)]
    pub fn loads(&self, values: &Loaded, read: impl Fn(u8) -> u64) -> bool {
        let both = self.loaded.iter().zip(values);
        both.fold(0, |differ, (load, value)| {
            differ | (load.value(&read) ^ value)
        }) == 0
    }

    /// Returns what the rule would load or send to.
    #[inline(always)]
    pub fn loaded(&self, read: impl Fn(u8) -> u64) -> Loaded {
        let mut values = [0; LOADED_MAX];
        for (value, load) in values.iter_mut().zip(&self.loaded) {
            *value = load.value(&read);
        }
        values
    }

    /// Returns the fingerprint of the rule that would do this.
    pub fn fingerprint(&self, values: &Loaded) -> u64 {
        self.learn
            .fingerprint_of(values.iter().map(|value| u128::from(*value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::Bits;
    use crate::actions::learn::Part;
    use packet::{Field, FlowKey};

    /// What lanes compute of a packet is what the step does of its key, for parts of every pair of
    /// fields.
    #[test]
    fn steps_in_lanes_ask_for_the_same_rules() {
        let mut key = FlowKey::ZERO;
        for (at, word) in key.words.iter_mut().enumerate() {
            *word = crate::actions::multipath::pair(11, at as u64);
        }
        let fields = || packet::fields::FIELDS.iter().map(|def| def.field);
        let mut made = 0;
        for (from, to) in fields().flat_map(|from| fields().map(move |to| (from, to))) {
            let most = from.def().action_bits.min(to.def().action_bits).min(128) as u16;
            for (bits, up) in [(most, 0), (most.min(5), 0), (1, most - 1)] {
                let bits_of = |field, start| Bits { field, start, bits };
                let part = |source, target| Part { source, target };
                let source = Source::Field(bits_of(from, up));
                let learn = Learn {
                    parts: vec![
                        part(source.clone(), Target::Match(bits_of(to, up))),
                        part(
                            Source::Number(0x123),
                            Target::Match(Bits {
                                field: Field::EthType,
                                start: 0,
                                bits: 16,
                            }),
                        ),
                        part(source.clone(), Target::Load(bits_of(Field::Reg0, 0))),
                        part(Source::Number(77), Target::Load(bits_of(Field::Reg1, 0))),
                        part(source, Target::Output(bits)),
                    ],
                    ..Learn::default()
                }
                .shaped();
                let learn = Arc::new(learn);
                let Some(lanes) = LaneLearn::of(&learn) else {
                    continue;
                };
                made += 1;
                let values = learn.values(&key);
                let matching = learn.matching(&values);
                let read = |word: u8| key.words[usize::from(word)];
                let mut matched = Vec::new();
                lanes.matched(read, |word, value| matched.push((word, value)));
                let wanted = matching.words().iter().map(|word| (word.word, word.value));
                assert!(
                    wanted.eq(matched.iter().copied()),
                    "{from:?} {to:?} {bits} {up}"
                );
                let loaded = lanes.loaded(read);
                assert!(lanes.loads(&loaded, read));
                for at in 0..lanes.loaded.len() {
                    let mut others = loaded;
                    others[at] ^= 1;
                    assert!(!lanes.loads(&others, read));
                }
                assert_eq!(
                    lanes.fingerprint(&lanes.loaded(read)),
                    learn.fingerprint(&values)
                );
            }
        }
        assert!(made > 1000, "{made}");
    }

    #[test]
    fn steps_that_lanes_cannot_make_have_no_such_form() {
        let whole = |field| Bits {
            field,
            start: 0,
            bits: 48,
        };
        let part = Part {
            source: Source::Field(whole(Field::EthSrc)),
            target: Target::Match(whole(Field::EthDst)),
        };
        let learn = Learn {
            parts: vec![part],
            ..Learn::default()
        }
        .shaped();
        let made = |learn: Learn| LaneLearn::of(&Arc::new(learn)).is_some();
        assert!(made(learn.clone()));
        let result = Some(Bits {
            field: Field::Reg3,
            start: 0,
            bits: 1,
        });
        assert!(!made(Learn {
            result,
            ..learn.clone()
        }));
        assert!(!made(Learn {
            options: 1,
            ..learn
        }));
    }
}
