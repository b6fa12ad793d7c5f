//! By which ports decapsulated packets come in, and what their outer headers said.

use super::{OptionsOf, WORDS};
use packet::FlowKey;
use packet::tunnel::{GeneveOptions, OPTION_WORDS, Reason, TunnelInfo, TunnelWords};

/// For each of some decapsulated packets, the port that it came by, and its tunnel metadata where
/// somebody may look at that: they are two cache lines, and mostly nobody does.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// The ports' slots.
    slots: Vec<u32>,
    /// Metadata of the first packets, as words of the key.
    words: Vec<TunnelWords>,
    /// Bytes of Geneve options of the first packets, where the bridge's map has options that those
    /// words have no room for.
    options: Vec<Option<Box<[u8]>>>,
}

impl Arrivals {
    /// Adds a packet at whose metadata nobody looks.
    #[inline(always)]
    pub fn push(&mut self, slot: u32) {
        self.slots.push(slot);
    }

    /// Adds a packet with its metadata; `map` is that of its bridge, and `fit` whether words have
    /// room for all options of that ([`TunnelWords::fit`]). Adds none where the map lacks a
    /// critical option, or has one with another length.
    #[inline]
    pub fn push_with(
        &mut self,
        slot: u32,
        info: &TunnelInfo,
        options: GeneveOptions<'_>,
        map: Option<&OptionsOf>,
        fit: bool,
    ) -> Result<(), Reason> {
        let at = self.slots.len();
        if self.words.len() < at {
            self.words.resize(at, TunnelWords::ZERO);
        }
        // Written where it stays: a copy by vectors would wait for the stores of single words.
        self.words.push(TunnelWords::ZERO);
        let words = &mut self.words[at];
        words.set(info);
        if !options.bytes().is_empty() {
            let map = map.map_or(&[][..], |map| map);
            let valid = match fit {
                true => words.set_options(options, map),
                false => options.check(map),
            };
            if valid.is_err() {
                self.words.truncate(at);
                return valid;
            }
            if !fit {
                self.options.resize_with(at, || None);
                self.options.push(Some(options.bytes().into()));
            }
        }
        self.slots.push(slot);
        Ok(())
    }

    /// The slots of the packets' ports.
    #[inline(always)]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// A packet's `tun_*` words, for a map whose options fit; all zero where nobody was to look at
    /// them.
    #[inline(always)]
    pub fn words(&self, index: usize) -> &TunnelWords {
        const NONE: &TunnelWords = &TunnelWords::ZERO;
        self.words.get(index).unwrap_or(NONE)
    }

    /// What a packet's outer header said, without options.
    pub fn info(&self, index: usize) -> TunnelInfo {
        self.words(index).info()
    }

    /// Writes a packet's `tun_*` words of the key ([`WORDS`]).
    pub fn to_key(&self, index: usize, map: Option<&OptionsOf>, key: &mut FlowKey) {
        key.clear(WORDS);
        self.words(index).fill(key, WORDS);
        let options = self.options.get(index).and_then(Option::as_deref);
        if let (Some(map), Some(options)) = (map, options.and_then(GeneveOptions::new))
            // They were checked when they were added; if the map has changed, none are written.
            && options.to_key(&**map, key).is_err()
        {
            key.clear(OPTION_WORDS);
        }
    }

    /// Takes out the packets that are marked in `taken`, which has a mark for each.
    #[cold]
    pub fn remove(&mut self, taken: &[bool]) {
        fn without<T>(list: &mut Vec<T>, taken: &[bool]) {
            let mut marks = taken.iter();
            list.retain(|_| !marks.next().is_some_and(|taken| *taken));
        }
        without(&mut self.slots, taken);
        without(&mut self.words, taken);
        without(&mut self.options, taken);
    }

    pub fn clear(&mut self) {
        self.slots.clear();
        self.words.clear();
        self.options.clear();
    }
}
