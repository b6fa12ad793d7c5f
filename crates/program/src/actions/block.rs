//! Action blocks: compiled actions of rules that only change the packet, look it up in later
//! tables, and send it in the end.
//!
//! Most rules of most pipelines are such. Their steps are compiled when the first rule that has
//! them is made: each part up to a lookup or the end is an [`ActionBlock`], in which all edits have
//! been merged into one ([`packet::edit::Rewrite`]) and writes to metadata into a few words. A
//! packet needs no stack of lists, deferred outputs or action set for them; [`crate::exec::lanes`]
//! runs them. A step that chooses one of several ways by a hash ([`MultipathHash`]) ends a block,
//! since it reads what the steps before it have written; the next block follows at once. So do `ct`
//! and `ct_clear`, unless the packet goes on in another table, steps that copy metadata or write
//! that of tunnels ([`Transfers`]), `learn`, and outputs before the last one, each of which sends a
//! copy.

use crate::actions::bits;
use crate::actions::connection::LaneTrack;
use crate::actions::lane_learn::LaneLearn;
use crate::actions::multipath::{Choice, HashFields};
use crate::actions::transfer::{Transfer, Transfers};
use crate::actions::{Multipath, Op, OpList, PortNo};
use crate::burst::Words;
use crate::prefetch::prefetch;
use packet::WordSet;
use packet::edit::{CompiledSet, Rewrite};
use packet::key::at;
use packet::parse::MINI_KEY_WORDS;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

/// Words of metadata that outputs read: ingress port, tunnel, mark, flow control field. Deferred
/// outputs must be sent before these change.
pub(crate) const READ_BY_OUTPUTS: WordSet = WordSet::of_bytes(at::IN_PORT, 4)
    .union(WordSet::of_bytes(at::TUN_ID, 8))
    .union(WordSet::of_bytes(at::PKT_MARK, 4))
    .union(WordSet::of_bytes(at::FCF, 2))
    .union(WordSet::of_bytes(
        at::TUN_SRC,
        at::TUN_TTL + 1 - at::TUN_SRC,
    ))
    .union(packet::tunnel::OPTION_WORDS);

/// Words of the key that each lane has a copy of: the mini key, metadata and registers. Other words
/// remain as they were on arrival.
pub(crate) const LANE_WORDS: usize = 14;

/// Bits to write to a word of metadata: `word = word & !mask | value`. The default writes none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Write {
    pub word: u8,
    pub mask: u64,
    pub value: u64,
}

/// The steps up to a lookup or the end of the list.
#[derive(Clone, Debug)]
#[repr(C, align(64))] // first line: what most rules need; a router's addresses are last in it
pub(crate) struct ActionBlock {
    pub(crate) end: End,
    /// Whether the list ends with it.
    pub(crate) is_last: bool,
    /// Index of its first step in the rule's list.
    pub(crate) first: u16,
    /// The first word of metadata that it writes; others are in `more`.
    pub(crate) write: Write,
    pub(crate) rewrite: Rewrite,
    pub(crate) more: Box<[Write]>,
    /// The choice at its end ([`End::Multipath`]), if any.
    pub(crate) multipath: Option<Box<MultipathHash>>,
    /// What the connection tracker is asked at its end ([`End::Track`]), if anything.
    pub(crate) track: Option<Box<LaneTrack>>,
    /// What is written at its end ([`End::Transfer`]), if anything.
    pub(crate) transfers: Option<Box<Transfers>>,
    /// The rule that is learned at its end ([`End::Learn`]), if any.
    pub(crate) learn: Option<Box<LaneLearn>>,
}

/// A choice of a way by a packet's hash, and the bits of metadata to which its number goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MultipathHash {
    fields: HashFields,
    basis: u16,
    choice: Choice,
    ways: u32,
    word: u8,
    /// How many bits of the word come after those of the number in wire order.
    behind: u32,
    mask: u64,
}

impl MultipathHash {
    /// Returns None where the destination is not among the words of metadata and registers that
    /// lanes have.
    fn of(multipath: &Multipath) -> Option<MultipathHash> {
        let (word, one, mask) = bits::write_in_word(multipath.dst, 1)?;
        let fits = (MINI_KEY_WORDS..LANE_WORDS).contains(&word) && !READ_BY_OUTPUTS.contains(word);
        fits.then_some(MultipathHash {
            fields: multipath.fields,
            basis: multipath.basis,
            choice: multipath.choice,
            ways: multipath.ways,
            word: word as u8,
            behind: u64::from_be(one).trailing_zeros(),
            mask,
        })
    }

    /// Returns the write that this choice makes for a packet.
    #[inline(always)]
    pub(crate) fn write(&self, packet: &impl Words) -> Write {
        let hash = self.fields.hash_words(packet, self.basis);
        let way = u64::from(self.choice.choose(hash, self.ways));
        Write {
            word: self.word,
            mask: self.mask,
            value: (way << self.behind).to_be() & self.mask,
        }
    }
}

const _: () = assert!(std::mem::offset_of!(ActionBlock, rewrite) + 24 == 64);

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Output(PortNo),
    /// A copy goes to this port, and the packet on to the next block; an output follows.
    Copy(PortNo),
    Table {
        table: u8,
        resubmit: bool,
    },
    /// A multipath choice, then the next block.
    Multipath,
    /// The connection tracker, then a lookup in this table, or the next block.
    Track(Option<u8>),
    /// The packet's connection is forgotten, then the next block.
    Untrack,
    /// Metadata is copied, or a tunnel's written, then the next block.
    Transfer,
    /// A rule is learned, then the next block.
    Learn,
    Nothing,
}

impl ActionBlock {
    fn new(first: usize) -> Option<ActionBlock> {
        Some(ActionBlock {
            end: End::Nothing,
            is_last: false,
            first: first.try_into().ok()?,
            write: Write::default(),
            more: Box::default(),
            rewrite: Rewrite::default(),
            multipath: None,
            track: None,
            transfers: None,
            learn: None,
        })
    }

    /// Returns its writes to metadata.
    #[inline(always)]
    pub(crate) fn writes(&self) -> impl Iterator<Item = &Write> {
        let any = self.write.mask != 0;
        // `more` is used only when `write` is.
        any.then_some(&self.write)
            .into_iter()
            .chain(if any { &*self.more } else { &[] })
    }

    /// Returns the port it sends to, if any.
    #[inline(always)]
    pub(crate) fn port(&self) -> Option<PortNo> {
        match self.end {
            End::Output(port) => Some(port),
            _ => None,
        }
    }

    /// Prefetches its first cache line, all that most rules need.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(std::ptr::from_ref(self));
    }

    /// Returns whether some packets may have too low a TTL for it.
    pub(crate) fn may_expire(&self) -> bool {
        self.rewrite.may_expire()
    }

    /// Ends it with these transfers, and leaves the block that begins with step `next` in its
    /// place.
    fn transfer(&mut self, transfers: &mut Vec<Transfer>, next: usize) -> Option<ActionBlock> {
        self.end = End::Transfer;
        self.transfers = Some(Box::new(Transfers::new(std::mem::take(transfers))));
        Some(std::mem::replace(self, ActionBlock::new(next)?))
    }

    /// Appends a step that changes the packet or its metadata; returns false for any other step.
    fn then(&mut self, op: &Op) -> bool {
        match op {
            Op::DecTtl(_) => self.rewrite.then_dec_ttl(),
            Op::Set(CompiledSet::Metadata { word, value, mask }) => {
                let at = usize::from(*word);
                // Words that outputs read may change only after deferred outputs are sent; see
                // `Walk::run`.
                if at >= LANE_WORDS || READ_BY_OUTPUTS.contains(at) {
                    return false;
                }
                if self.write.mask == 0 {
                    self.write.word = *word;
                }
                let mut writes = std::iter::once(&mut self.write).chain(&mut self.more);
                match writes.find(|write| write.word == *word) {
                    Some(write) => {
                        write.value = write.value & !mask | value;
                        write.mask |= mask;
                    }
                    None => {
                        let mut more = std::mem::take(&mut self.more).into_vec();
                        more.push(Write {
                            word: *word,
                            mask: *mask,
                            value: *value,
                        });
                        self.more = more.into();
                    }
                }
                true
            }
            Op::Set(set) => self.rewrite.then(set),
            _ => false,
        }
    }
}

/// Compiles steps to blocks; None if some step cannot be part of one.
pub(crate) fn blocks(ops: &[Op]) -> Option<Box<[ActionBlock]>> {
    let mut done = Vec::new();
    let mut block = ActionBlock::new(0)?;
    let mut transfers = Vec::new();
    let copies_from = copies_from(ops);
    for (index, op) in ops.iter().enumerate() {
        let last = index + 1 == ops.len();
        if transfers.is_empty() && block.then(op) {
            continue;
        }
        if Transfer::append(op, &mut transfers) {
            continue;
        }
        if !transfers.is_empty() {
            done.push(block.transfer(&mut transfers, index)?);
        }
        block.end = match op {
            Op::Output(port) if last => End::Output(*port),
            Op::Output(port) if index >= copies_from => End::Copy(*port),
            Op::Goto(table) if last => End::Table {
                table: *table,
                resubmit: false,
            },
            Op::Resubmit {
                in_port: None,
                table: Some(table),
            } => End::Table {
                table: *table,
                resubmit: true,
            },
            Op::Multipath(multipath) => {
                block.multipath = Some(Box::new(MultipathHash::of(multipath)?));
                End::Multipath
            }
            Op::Track(track) => {
                block.track = Some(Box::new(LaneTrack::of(track)?));
                End::Track(track.table)
            }
            Op::Untrack => End::Untrack,
            Op::Learn(learn) => {
                block.learn = Some(Box::new(LaneLearn::of(learn)?));
                End::Learn
            }
            op if block.then(op) => continue,
            _ => return None,
        };
        done.push(std::mem::replace(&mut block, ActionBlock::new(index + 1)?));
    }
    if !transfers.is_empty() {
        done.push(block.transfer(&mut transfers, ops.len())?);
    }
    // After a lookup or output at the end of the list nothing follows; after anything else there an
    // empty block does.
    let goes_on = done.last().is_some_and(|last| {
        let end = last.end;
        matches!(
            end,
            End::Multipath | End::Track(None) | End::Untrack | End::Transfer | End::Learn
        )
    });
    if usize::from(block.first) < ops.len() || ops.is_empty() || goes_on {
        done.push(block);
    }
    if let Some(last) = done.last_mut() {
        last.is_last = true;
    }
    Some(done.into())
}

/// Most outputs of a list with blocks: each is a block of its own.
const COPIES_MAX: usize = 64;

/// Returns the first step from which on outputs before the last may be copies: from there on steps
/// only edit and send, the last one to a port. Where lookups follow an output, a packet may end
/// without another one, and is not to be counted as dropped.
fn copies_from(ops: &[Op]) -> usize {
    let outputs = ops.iter().filter(|op| matches!(op, Op::Output(_))).count();
    if !matches!(ops.last(), Some(Op::Output(_))) || outputs > COPIES_MAX {
        return ops.len();
    }
    let fits = |op: &Op| matches!(op, Op::Output(_) | Op::Set(_) | Op::DecTtl(_));
    let before = ops.iter().rposition(|op| !fits(op));
    before.map_or(0, |before| before + 1)
}

/// A rule's blocks; valid as long as the rule, which owns the list of steps they belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActionBlocks(NonNull<[ActionBlock]>);

impl ActionBlocks {
    pub fn of(blocks: &[ActionBlock]) -> ActionBlocks {
        ActionBlocks(NonNull::from(blocks))
    }

    /// Returns the first block; None where there is none.
    #[inline(always)]
    pub(crate) fn first<'a>(self) -> Option<&'a ActionBlock> {
        self.get().first()
    }

    /// Returns the only block and the port of a rule that sends, perhaps after edits.
    #[inline(always)]
    pub(crate) fn only_send<'a>(self) -> Option<(&'a ActionBlock, PortNo)> {
        let block = self.first()?;
        Some((block, block.port()?))
    }

    /// Returns the block if there is only one.
    #[inline(always)]
    pub(crate) fn only<'a>(self) -> Option<&'a ActionBlock> {
        match self.get() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Prefetches the first cache line of the first block, all that most rules need.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        prefetch(self.0.as_ptr().cast::<u8>());
    }

    #[inline(always)]
    pub(crate) fn get<'a>(self) -> &'a [ActionBlock] {
        // SAFETY: a rule's list of steps is not changed while the rule lives, and what is kept of a
        // burst is dropped before its guard (see `Steps`). Blocks that a rule summary leads to are
        // valid for the same guard (`rule::summary::kept`).
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: blocks are only read, and hold nothing that belongs to a thread.
unsafe impl Send for ActionBlocks {}
// SAFETY: as above.
unsafe impl Sync for ActionBlocks {}

/// What lanes need to know of a rule, in few bytes: its blocks if it has some, its port if it only
/// sends to one, and whether its only step is NORMAL.
#[derive(Debug)]
pub(crate) struct ActionSummary {
    first: Option<NonNull<ActionBlock>>,
    /// Number of blocks; without blocks, 1 for a rule whose only step is NORMAL.
    count: u16,
    /// Whether one of its steps shortens the rule's timeouts at the end of a TCP connection.
    shortens_timeouts: bool,
    /// Whether control has been told of a FIN or RST.
    pub(crate) fin_told: AtomicBool,
    /// [`NO_PORT`] for none.
    port: PortNo,
}

/// Stands for "no port". It is `OFPP_ANY`, which no port has; a rule that outputs to that number
/// anyway goes the general way.
const NO_PORT: PortNo = PortNo::MAX;

impl ActionSummary {
    /// Summarizes these steps; valid as long as they live.
    pub fn of(ops: &OpList) -> ActionSummary {
        let blocks = ops.blocks().map_or(&[][..], ActionBlocks::get);
        // A list with too many blocks to count is run step by step.
        let (blocks, count) = match u16::try_from(blocks.len()) {
            Ok(count) => (blocks, count),
            Err(_) => (&[][..], 0),
        };
        let normal = blocks.is_empty() && matches!(&*ops.ops, [Op::Normal]);
        ActionSummary {
            first: blocks.first().map(NonNull::from),
            count: count + u16::from(normal),
            shortens_timeouts: crate::actions::fin_timeouts(&ops.ops).is_some(),
            fin_told: AtomicBool::new(false),
            port: match &*ops.ops {
                [Op::Output(port)] => *port,
                _ => NO_PORT,
            },
        }
    }

    /// Returns the blocks.
    #[inline(always)]
    pub fn blocks(&self) -> Option<ActionBlocks> {
        let all = NonNull::slice_from_raw_parts(self.first?, self.count as usize);
        Some(ActionBlocks(all))
    }

    /// Prefetches the first cache line of the first block, all that most rules need.
    #[inline(always)]
    pub fn prefetch(&self) {
        // Prefetching a null address does nothing.
        prefetch(
            self.first
                .map_or(std::ptr::null(), |first| first.as_ptr().cast_const()),
        );
    }

    /// Returns whether a FIN or RST among its packets shortens the rule's timeouts.
    #[inline(always)]
    pub fn shortens_timeouts(&self) -> bool {
        self.shortens_timeouts
    }

    /// Returns the port of a rule that only sends to one.
    #[inline(always)]
    pub fn only_output(&self) -> Option<PortNo> {
        (self.port != NO_PORT).then_some(self.port)
    }

    /// Returns whether the only step is NORMAL.
    #[inline(always)]
    pub fn only_normal(&self) -> bool {
        self.first.is_none() && self.count == 1
    }
}

// SAFETY: another form of `ActionBlocks`, so the same holds.
unsafe impl Send for ActionSummary {}
// SAFETY: as above.
unsafe impl Sync for ActionSummary {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::Bits;
    use packet::{Field, FlowKey};

    fn multipath(fields: HashFields, choice: Choice, dst: Bits) -> Multipath {
        Multipath {
            fields,
            basis: 7,
            choice,
            ways: 5,
            dst,
        }
    }

    /// A block's choice writes what the interpreter writes for the step, whichever metadata or
    /// register it goes to; a choice with another destination is left to the interpreter.
    #[test]
    fn a_choice_writes_what_its_step_writes() {
        let fields = [
            HashFields::EthSrc,
            HashFields::SymmetricL4,
            HashFields::SymmetricL3L4Udp,
            HashFields::NwDst,
        ];
        let choices = [
            Choice::Modulo,
            Choice::Threshold,
            Choice::HighestWeight,
            Choice::Iterate(8),
        ];
        let mut key = FlowKey::ZERO;
        let mut taken = 0;
        for (seed, field) in packet::fields::FIELDS
            .iter()
            .map(|def| def.field)
            .enumerate()
        {
            for (at, word) in key.words.iter_mut().enumerate() {
                *word = crate::actions::multipath::pair(seed as u64, at as u64);
            }
            key.set_u16(
                packet::key::at::ETH_TYPE,
                [0x0800, 0x86dd, 0x0806][seed % 3],
            );
            let wide = field.def().action_bits;
            for (start, bits) in [(0, wide), (0, 2), (wide / 2, wide - wide / 2)] {
                let (start, bits) = (start as u16, bits.clamp(1, 128) as u16);
                let dst = Bits { field, start, bits };
                let (fields, choice) = (fields[seed % 4], choices[seed / 4 % 4]);
                let step = multipath(fields, choice, dst);
                let held = bits::write_in_word(dst, 0)
                    .is_some_and(|(word, ..)| (MINI_KEY_WORDS..LANE_WORDS).contains(&word));
                let Some(multipath) = MultipathHash::of(&step) else {
                    assert!(!held, "{field:?}");
                    continue;
                };
                assert!(held, "{field:?}");
                taken += 1;
                let way = choice.choose(fields.hash(&key, 7), 5);
                let wanted = bits::write_in_word(dst, way.into());
                let write = multipath.write(&key);
                let written = (usize::from(write.word), write.value, write.mask);
                assert_eq!(wanted, Some(written), "{field:?} {start} {bits}");
            }
        }
        assert!(taken >= 3 * 16, "{taken}");
    }

    /// Rules with a choice are compiled to blocks, also where nothing follows the choice.
    #[test]
    fn rules_that_choose_are_on_straight_ways() {
        let register = Bits {
            field: Field::Reg0,
            start: 0,
            bits: 8,
        };
        let choose =
            |dst| Op::Multipath(Box::new(multipath(HashFields::NwSrc, Choice::Modulo, dst)));
        let resubmit = Op::Resubmit {
            in_port: None,
            table: Some(1),
        };
        let ends = |ops: &[Op]| {
            let blocks = blocks(ops)?;
            let shown = |block: &ActionBlock| {
                assert_eq!(
                    block.multipath.is_some(),
                    matches!(block.end, End::Multipath)
                );
                (block.first, format!("{:?}", block.end))
            };
            Some(blocks.iter().map(shown).collect::<Vec<_>>())
        };
        let table = "Table { table: 1, resubmit: true }";
        assert_eq!(
            ends(&[choose(register), resubmit]),
            Some(vec![(0, "Multipath".into()), (1, table.into())])
        );
        assert_eq!(
            ends(&[Op::DecTtl([0].into()), choose(register), choose(register)]),
            Some(vec![
                (0, "Multipath".into()),
                (2, "Multipath".into()),
                (3, "Nothing".into())
            ])
        );
        let address = Bits {
            field: Field::Ipv4Dst,
            ..register
        };
        assert_eq!(ends(&[choose(address), Op::Output(1)]), None);
    }

    #[test]
    fn outputs_before_the_last_are_copies() {
        let ends = |ops: &[Op]| {
            let blocks = blocks(ops)?;
            let shown = |block: &ActionBlock| (block.first, format!("{:?}", block.end));
            Some(blocks.iter().map(shown).collect::<Vec<_>>())
        };
        let ttl = || Op::DecTtl([0].into());
        assert_eq!(
            ends(&[Op::Output(1), ttl(), Op::Output(2), Op::Output(3)]),
            Some(vec![
                (0, "Copy(1)".into()),
                (1, "Copy(2)".into()),
                (3, "Output(3)".into())
            ])
        );
        let resubmit = || Op::Resubmit {
            in_port: None,
            table: Some(1),
        };
        let before = ends(&[resubmit(), Op::Output(1), Op::Output(2)]);
        assert_eq!(before.map(|ends| ends.len()), Some(3));
        // What follows may end without an output, and is not dropped then.
        assert_eq!(ends(&[Op::Output(1), resubmit()]), None);
        assert_eq!(ends(&[Op::Output(1), ttl()]), None);
        let many = |count| ends(&vec![Op::Output(1); count]).map(|ends| ends.len());
        assert_eq!(many(COPIES_MAX), Some(COPIES_MAX));
        assert_eq!(many(COPIES_MAX + 1), None);
    }
}
