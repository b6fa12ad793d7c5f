//! The flow key: all that a rule can match about one packet.
//!
//! A key is [`WORDS`] 64-bit words. Fields lie in it at fixed *byte* offsets in network byte order,
//! so a field's bytes in the key equal its bytes in an OXM TLV, a prefix mask is a bit mask, and
//! `reg0`/`xreg0`/`xxreg0` overlay each other as OpenFlow 1.5 demands. Fields narrower than their
//! bytes are right-aligned (the 20-bit IPv6 label in a `u32`).
//!
//! Words that are compared often come first: a classifier for IPv4 five-tuples touches words 0 to
//! 2, one for bridging words 0, 3 and 4. Fields of headers that a packet lacks are zero. A rule can
//! name such a field only together with its prerequisite, so zero is never mistaken for a value.
//!
//! A worker fills only the words that the program needs ([`WordSet`]); the others hold garbage and
//! are never read.

/// Number of 64-bit words in a key.
pub const WORDS: usize = 78;

/// Every field that lies within a word is in one of the first so many, a power of two.
pub const SINGLE: usize = 64;

/// Byte offsets of the fields in a key. Word `n` begins at byte `8 * n`.
pub mod at {
    #![allow(missing_docs)] // the names are those of the fields in `fields`
    // word 0
    pub const IN_PORT: usize = 0; // u32, OpenFlow 1.1+ port number
    pub const ETH_TYPE: usize = 4; // u16; 0x05ff for 802.2 without SNAP, as OpenFlow 1.0 section 3.4 says
    pub const VLAN_TCI: usize = 6; // u16; bit 0x1000 set when a tag is present (OXM_OF_VLAN_VID's OFPVID_PRESENT)
    // word 1
    pub const IPV4_SRC: usize = 8; // u32; also ARP SPA
    pub const IPV4_DST: usize = 12; // u32; also ARP TPA
    // word 2
    pub const TP_SRC: usize = 16; // u16; TCP/UDP/SCTP source port; ICMP type in the low byte
    pub const TP_DST: usize = 18; // u16; destination port; ICMP code in the low byte
    pub const IP_PROTO: usize = 20; // u8; also the low byte of the ARP opcode
    pub const IP_TOS: usize = 21; // u8; DSCP in the high 6 bits, ECN in the low 2
    pub const IP_TTL: usize = 22; // u8; also the IPv6 hop limit
    pub const IP_FRAG: usize = 23; // u8; bit 0: any fragment, bit 1: not the first (NXM_NX_IP_FRAG)
    // word 3
    pub const ETH_DST: usize = 24; // 6 bytes
    pub const TCP_FLAGS: usize = 30; // u16, low 12 bits
    // word 4
    pub const ETH_SRC: usize = 32; // 6 bytes
    pub const VLAN_TCI2: usize = 38; // u16; the second tag, bit 0x1000 when present
    // word 5
    pub const METADATA: usize = 40; // u64
    // words 6-13
    pub const REG0: usize = 48; // reg n at REG0 + 4 n, n in 0..16
    // word 14
    pub const TUN_ID: usize = 112; // u64
    // words 15-20
    pub const IPV6_SRC: usize = 120; // 16 bytes
    pub const IPV6_DST: usize = 136; // 16 bytes
    pub const ND_TARGET: usize = 152; // 16 bytes
    // word 21
    pub const ARP_SHA: usize = 168; // 6 bytes; also ND SLL
    pub const MPLS_DEPTH: usize = 174; // u8, label stack entries seen (0-3)
    pub const ND_OPTIONS_TYPE: usize = 175; // u8
    // word 22
    pub const ARP_THA: usize = 176; // 6 bytes; also ND TLL
    pub const IPV6_EXT: usize = 182; // u16, OXM_OF_IPV6_EXTHDR bits
    // word 23
    pub const IPV6_LABEL: usize = 184; // u32, low 20 bits
    pub const MPLS_LSE: usize = 188; // u32: label(20) tc(3) bos(1) ttl(8), the outermost
    // word 24
    pub const MPLS_LSE1: usize = 192; // u32
    pub const MPLS_LSE2: usize = 196; // u32
    // word 25
    pub const PKT_MARK: usize = 200; // u32
    pub const SKB_PRIORITY: usize = 204; // u32, the queue of set_queue
    // word 26
    pub const ACTSET_OUTPUT: usize = 208; // u32
    pub const PACKET_TYPE: usize = 212; // u32
    // word 27
    pub const CT_STATE: usize = 216; // u32
    pub const CT_MARK: usize = 220; // u32
    // words 28-29
    pub const CT_LABEL: usize = 224; // 16 bytes
    // word 30
    pub const CT_NW_SRC: usize = 240; // u32
    pub const CT_NW_DST: usize = 244; // u32
    // word 31
    pub const CT_TP_SRC: usize = 248; // u16
    pub const CT_TP_DST: usize = 250; // u16
    pub const CT_ZONE: usize = 252; // u16
    pub const CT_NW_PROTO: usize = 254; // u8
    // words 32-35
    pub const CT_IPV6_SRC: usize = 256; // 16 bytes
    pub const CT_IPV6_DST: usize = 272; // 16 bytes
    // word 36
    pub const TUN_SRC: usize = 288; // u32
    pub const TUN_DST: usize = 292; // u32
    // words 37-40
    pub const TUN_IPV6_SRC: usize = 296; // 16 bytes
    pub const TUN_IPV6_DST: usize = 312; // 16 bytes
    // word 41
    pub const TUN_FLAGS: usize = 328; // u16
    pub const TUN_GBP_ID: usize = 330; // u16
    pub const TUN_GBP_FLAGS: usize = 332; // u8
    pub const TUN_TOS: usize = 333; // u8
    pub const TUN_TTL: usize = 334; // u8
    // word 42
    pub const PBB_ISID: usize = 336; // u32, low 24 bits
    pub const PBB_UCA: usize = 340; // u8
    pub const DP_HASH: usize = 344; // u32
    pub const RECIRC_ID: usize = 348; // u32
    pub const CONJ_ID: usize = 352; // u32
    pub const FCF: usize = 356; // u16, the flow control field to be sent
    // word 45
    pub const TUN_METADATA_PRESENT: usize = 360; // u64, bit n: the packet has option n
    // words 46-77
    pub const TUN_METADATA: usize = 368; // 256 bytes: options of the tunnel's header, see `crate::options`
}

/// All that is known about one packet; the module documentation has the layout.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct FlowKey {
    /// The words, as loaded from memory in native order; the fields in them are in network byte
    /// order.
    pub words: [u64; WORDS],
}

impl FlowKey {
    /// A key whose every word is zero.
    pub const ZERO: FlowKey = FlowKey { words: [0; WORDS] };

    /// Returns the key as bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8; WORDS * 8] {
        // SAFETY: `[u64; WORDS]` and `[u8; WORDS * 8]` have the same size, `u8` has alignment 1 and
        // no invalid values.
        unsafe { &*(self.words.as_ptr().cast()) }
    }

    /// Returns the key as bytes, for writing fields.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8; WORDS * 8] {
        // SAFETY: as in `bytes`; every byte pattern is a valid `u64`.
        unsafe { &mut *(self.words.as_mut_ptr().cast()) }
    }

    /// Reads a byte field.
    #[inline(always)]
    pub fn u8(&self, offset: usize) -> u8 {
        self.bytes()[offset]
    }

    /// Reads a 16-bit field.
    #[inline(always)]
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_be_bytes(self.bytes()[offset..offset + 2].try_into().unwrap())
    }

    /// Reads a 32-bit field.
    #[inline(always)]
    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.bytes()[offset..offset + 4].try_into().unwrap())
    }

    /// Reads a 64-bit field.
    #[inline(always)]
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.bytes()[offset..offset + 8].try_into().unwrap())
    }

    /// Writes a byte field.
    #[inline(always)]
    pub fn set_u8(&mut self, offset: usize, value: u8) {
        self.bytes_mut()[offset] = value;
    }

    /// Writes a 16-bit field.
    #[inline(always)]
    pub fn set_u16(&mut self, offset: usize, value: u16) {
        self.bytes_mut()[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// Writes a 32-bit field.
    #[inline(always)]
    pub fn set_u32(&mut self, offset: usize, value: u32) {
        self.bytes_mut()[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Writes a 64-bit field.
    #[inline(always)]
    pub fn set_u64(&mut self, offset: usize, value: u64) {
        self.bytes_mut()[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
    }

    /// Returns the words that are not zero.
    pub fn nonzero(&self) -> WordSet {
        let words = self.words.iter().enumerate();
        let set = words.filter(|(_, word)| **word != 0);
        set.fold(WordSet::EMPTY, |set, (index, _)| {
            set.union(WordSet::of_word(index))
        })
    }

    /// Sets the words in `set` to zero.
    #[inline(always)]
    pub fn clear(&mut self, set: WordSet) {
        let mut bits = set.0;
        while bits != 0 {
            self.words[bits.trailing_zeros() as usize] = 0;
            bits &= bits - 1;
        }
        if set.contains(WordSet::LAST) {
            self.words[WordSet::LAST..].fill(0);
        }
    }
}

impl Default for FlowKey {
    fn default() -> Self {
        FlowKey::ZERO
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        for (index, word) in self
            .words
            .iter()
            .enumerate()
            .filter(|(_, word)| **word != 0)
        {
            map.entry(&index, &format_args!("{:016x}", word.to_be()));
        }
        map.finish()
    }
}

/// A set of words of a key. Those from [`WordSet::LAST`] on, the last ones of tunnel options, are
/// in a set together or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug, PartialOrd, Ord)]
pub struct WordSet(pub u64);

impl WordSet {
    /// No word.
    pub const EMPTY: WordSet = WordSet(0);
    /// Words 0 to 4: parsing Ethernet, IPv4 and a transport header fills them together, always.
    pub const MINI_KEY: WordSet = WordSet(0b1_1111);

    /// The last word that has a bit; the bit stands for all words after it, too.
    pub const LAST: usize = 63;

    /// Returns a word, and those that cannot be told from it.
    pub const fn of_word(word: usize) -> WordSet {
        WordSet(1 << if word < Self::LAST { word } else { Self::LAST })
    }

    /// Returns the words that contain the bytes `offset..offset + len`.
    pub const fn of_bytes(offset: usize, len: usize) -> WordSet {
        let mut bits = 0;
        let mut word = offset / 8;
        while word * 8 < offset + len {
            bits |= WordSet::of_word(word).0;
            word += 1;
        }
        WordSet(bits)
    }

    /// Returns the words in either set.
    pub const fn union(self, other: WordSet) -> WordSet {
        WordSet(self.0 | other.0)
    }

    /// Returns the words in `self` that are not in `other`.
    pub const fn minus(self, other: WordSet) -> WordSet {
        WordSet(self.0 & !other.0)
    }

    /// Returns the words in both sets.
    pub const fn intersect(self, other: WordSet) -> WordSet {
        WordSet(self.0 & other.0)
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether `word` is in the set.
    pub const fn contains(self, word: usize) -> bool {
        !self.intersect(WordSet::of_word(word)).is_empty()
    }

    /// Returns the number of words, where those from [`WordSet::LAST`] on count as one.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Iterates over the word numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..WORDS).filter(move |word| self.contains(*word))
    }
}
