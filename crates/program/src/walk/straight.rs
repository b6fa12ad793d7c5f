//! Rules that packets pass on a straight way: they change the packet, look it up in later tables, and send it in the end, and nothing else.
//!
//! Most rules of most pipelines are so. Their steps are made ready when the first rule that has them is made: each part up to a lookup or the end is a
//! [`Stretch`], in which edits have become one ([`packet::edit::Rewrite`]) and writes to metadata a few words. A packet needs no stack of lists, no outputs
//! that wait and no action set for them; [`super::lanes`] carries them out.

use super::READ_BY_OUTPUTS;
use crate::counters::prefetch;
use crate::ops::{Op, OpList, PortNo};
use packet::edit::{CompiledSet, Rewrite};
use std::ptr::NonNull;

/// Words of the key that a packet on a straight way has of its own: the hot ones, metadata and registers. The others are as they were when it came in.
pub(super) const LANE_WORDS: usize = 14;

/// Bits of a word of metadata: `word = word & !mask | value`. By default none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Write {
    pub word: u8,
    pub mask: u64,
    pub value: u64,
}

/// Steps up to a lookup or the end.
#[derive(Clone, Debug)]
#[repr(C, align(64))] // what most rules need lies in the first line, the addresses of a router's edits the last of it
pub(crate) struct Stretch {
    pub(super) end: End,
    /// Number of its first step in the rule's list.
    pub(super) first: u16,
    /// What it writes to metadata: one word, and others.
    pub(super) write: Write,
    pub(super) rewrite: Rewrite,
    pub(super) more: Box<[Write]>,
}

const _: () = assert!(std::mem::offset_of!(Stretch, rewrite) + 24 == 64);

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Output(PortNo),
    Table { table: u8, resubmit: bool },
    Nothing,
}

impl Stretch {
    fn new(first: usize) -> Option<Stretch> {
        Some(Stretch {
            end: End::Nothing,
            first: first.try_into().ok()?,
            write: Write::default(),
            more: Box::default(),
            rewrite: Rewrite::default(),
        })
    }

    /// What it writes to metadata, if anything.
    #[inline(always)]
    pub(super) fn writes(&self) -> impl Iterator<Item = &Write> {
        let any = self.write.mask != 0;
        // Others come only behind one.
        any.then_some(&self.write)
            .into_iter()
            .chain(if any { &*self.more } else { &[] })
    }

    /// Whether there are packets with too low a TTL for it.
    pub(super) fn may_expire(&self) -> bool {
        self.rewrite.may_expire()
    }

    /// Adds a step that changes the packet or its metadata; false when it is another one.
    fn then(&mut self, op: &Op) -> bool {
        match op {
            Op::DecTtl(_) => self.rewrite.then_dec_ttl(),
            Op::Set(CompiledSet::Metadata { word, value, mask }) => {
                let at = usize::from(*word);
                // What is read when a packet is sent has its time; see `Walk::run`.
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

/// What these steps do, if that is all they do.
pub(crate) fn stretches(ops: &[Op]) -> Option<Box<[Stretch]>> {
    let mut done = Vec::new();
    let mut stretch = Stretch::new(0)?;
    for (index, op) in ops.iter().enumerate() {
        let last = index + 1 == ops.len();
        stretch.end = match op {
            Op::Output(port) if last => End::Output(*port),
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
            op if stretch.then(op) => continue,
            _ => return None,
        };
        done.push(std::mem::replace(&mut stretch, Stretch::new(index + 1)?));
    }
    // A lookup, or an output, at the end of the list has nothing behind it.
    if usize::from(stretch.first) < ops.len() || ops.is_empty() {
        done.push(stretch);
    }
    Some(done.into())
}

/// A rule's stretches; valid as long as the rule, whose list of steps they belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretches(NonNull<[Stretch]>);

impl Stretches {
    pub fn of(stretches: &[Stretch]) -> Stretches {
        Stretches(NonNull::from(stretches))
    }

    /// A stretch that has been the only one of others that are still valid.
    pub(crate) fn one(stretch: NonNull<Stretch>) -> Stretches {
        Stretches(NonNull::slice_from_raw_parts(stretch, 1))
    }

    /// The first one's address; none of nothing.
    pub(crate) fn first(self) -> Option<NonNull<Stretch>> {
        self.get().first().map(NonNull::from)
    }

    /// The only stretch and the port of a rule that sends, perhaps an edited packet.
    #[inline(always)]
    pub(crate) fn only_send<'a>(self) -> Option<(&'a Stretch, PortNo)> {
        let stretch = self.get().first()?;
        match stretch.end {
            End::Output(port) => Some((stretch, port)),
            _ => None,
        }
    }

    /// The only one, if there is one only.
    #[inline(always)]
    pub(super) fn only<'a>(self) -> Option<&'a Stretch> {
        match self.get() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Asks for the first one, of which most rules need one line.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        prefetch(self.0.as_ptr().cast::<u8>());
    }

    #[inline(always)]
    pub(super) fn get<'a>(self) -> &'a [Stretch] {
        // SAFETY: a rule's list of steps is not changed while the rule lives, and what is kept of a burst is dropped before its guard (see `Steps`).
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: stretches are only read, and hold nothing that belongs to a thread.
unsafe impl Send for Stretches {}
// SAFETY: as above.
unsafe impl Sync for Stretches {}

/// What lanes need to know of a rule, in little room: its stretches if it has some, its port if it does nothing but send to one, and whether it does nothing
/// but leave packets to the learning switch.
#[derive(Debug)]
pub(crate) struct Outline {
    first: Option<NonNull<Stretch>>,
    /// Of stretches; without any, 1 for a rule whose only step is NORMAL.
    count: u32,
    /// [`NO_PORT`] for none.
    port: PortNo,
}

/// No port has this number (`OFPP_ANY`), and a rule that sends there anyway goes the general way.
const NO_PORT: PortNo = PortNo::MAX;

impl Outline {
    /// Of a rule with these steps, for as long as they live.
    pub fn of(ops: &OpList) -> Outline {
        let stretches = ops.straight().map_or(&[][..], Stretches::get);
        let normal = stretches.is_empty() && matches!(&*ops.ops, [Op::Normal]);
        Outline {
            first: stretches.first().map(NonNull::from),
            count: stretches.len() as u32 + u32::from(normal),
            port: match &*ops.ops {
                [Op::Output(port)] => *port,
                _ => NO_PORT,
            },
        }
    }

    /// The stretches.
    #[inline(always)]
    pub fn straight(&self) -> Option<Stretches> {
        let all = NonNull::slice_from_raw_parts(self.first?, self.count as usize);
        Some(Stretches(all))
    }

    /// Asks for the first stretch, of which most rules need one line.
    #[inline(always)]
    pub fn prefetch(&self) {
        // Nothing comes of asking for no address.
        prefetch(
            self.first
                .map_or(std::ptr::null(), |first| first.as_ptr().cast_const()),
        );
    }

    /// The port.
    #[inline(always)]
    pub fn only_output(&self) -> Option<PortNo> {
        (self.port != NO_PORT).then_some(self.port)
    }

    /// Whether the only step is NORMAL.
    #[inline(always)]
    pub fn only_normal(&self) -> bool {
        self.first.is_none() && self.count == 1
    }
}

// SAFETY: as for `Stretches`, of which this is another form.
unsafe impl Send for Outline {}
// SAFETY: as above.
unsafe impl Sync for Outline {}
