//! Walks that stop until a controller resumes them.
//!
//! `controller(pause)` sends the packet with the rest of its actions: a [`Frozen`], which holds
//! copies of the remaining steps and no packet, since the controller sends one back, changed
//! perhaps. Its owner may keep it as long as it likes; it resumes in the epoch of that time. A
//! pause in a clone freezes the clone; what it was cloned from continues at once.

use crate::actions::set::ActionSet;
use crate::actions::{Op, ToController};
use crate::epoch::Guard;
use crate::exec::Engine;
use crate::exec::interpreter::{Burst, First, Position, Steps, Walk};
use crate::host::Host;
use crate::table::Bridge;
use conntrack::{Earlier, state};
use packet::key::at;
use packet::{FlowKey, Frame, WordSet, parse};

/// A list of which some steps remain.
#[derive(Clone, Debug)]
struct Remaining {
    ops: Box<[Op]>,
    table: u8,
    cookie: u64,
    depth: u32,
}

/// The rest of a packet's walk.
#[derive(Clone, Debug, Default)]
pub struct Frozen {
    /// The innermost list is last.
    lists: Vec<Remaining>,
    set: ActionSet,
    /// Whether the action set has run, or is running.
    pub(super) set_run: bool,
    values: Vec<(u128, u16)>,
    queue: Option<u32>,
    resubmits: u32,
    mirrored: u32,
    /// Table and cookie to which the action set is attributed.
    first: Option<First>,
}

/// A walk to resume by [`Engine::thaw`].
pub struct Thaw<'a, F> {
    /// The packet as it is now.
    pub frame: F,
    /// Its metadata, including its ingress port.
    pub metadata: &'a FlowKey,
    /// The rest of the walk.
    pub rest: Frozen,
}

impl Frozen {
    /// Returns the number of remaining steps, a measure of its size.
    pub fn steps(&self) -> usize {
        let lists: usize = self.lists.iter().map(|list| list.ops.len()).sum();
        lists + self.set.steps().len() + self.values.len()
    }

    pub(super) fn words(&self) -> WordSet {
        let lists = self.lists.iter().flat_map(|list| list.ops.iter());
        lists
            .chain(self.set.steps().iter())
            .fold(WordSet::EMPTY, |set, op| set.union(op.words()))
    }
}

impl<F: Frame> Walk<F> {
    /// Takes up a frozen walk with this frame, whose key and layers have been read.
    pub(super) fn begin_again(&mut self, frame: F, rest: Frozen) {
        self.start(frame, rest.mirrored);
        self.queue = rest.queue;
        self.resubmits = rest.resubmits;
        self.first = rest.first;
        (self.key).set_u32(at::SKB_PRIORITY, rest.queue.unwrap_or(0));
        self.key.set_u32(at::ACTSET_OUTPUT, rest.set.output());
        self.set = rest.set;
        self.values = rest.values;
        self.running_set = rest.set_run.then(Box::default);
        for list in rest.lists {
            // Moving the box does not move the steps.
            self.enter(Steps::of(&list.ops), list.table, list.cookie);
            self.at.depth = list.depth;
            self.owned.push(list.ops);
        }
    }

    /// Sends the packet and the rest of its walk to the controllers, and ends the walk, or the
    /// clone that it is in.
    #[cold]
    pub(crate) fn freeze<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: &ToController,
    ) {
        self.flush(burst, host);
        let clone = self.innermost_clone();
        let rest = self.frozen(clone);
        let (context, frame) = self.context(burst);
        *context.sent = true;
        if let Some(frame) = frame {
            host.pause(context, to, frame, rest);
        }
        // What goes on later reaches the local port then.
        self.at_local |= clone.is_none();
        self.leave(clone);
    }

    /// Returns the position of the list of the innermost clone or bucket that the walk is in.
    pub(super) fn innermost_clone(&self) -> Option<usize> {
        let is_clone = |position: &Position<F>| position.saved.is_some();
        match is_clone(&self.at) {
            true => Some(self.stack.len()),
            false => self.stack.iter().rposition(is_clone),
        }
    }

    /// Returns the rest of the walk, or of the clone whose list is at this position.
    pub(super) fn frozen(&self, clone: Option<usize>) -> Frozen {
        let lists: Vec<&Position<F>> = self.stack.iter().chain([&self.at]).collect();
        let remaining = |position: &Position<F>| Remaining {
            ops: position.steps.get()[position.next..].into(),
            table: position.table,
            cookie: position.cookie,
            depth: position.depth,
        };
        let set_runs = |position: &&Position<F>| {
            let saved = position.saved.as_ref();
            saved.map_or(self.running_set.is_some(), |saved| {
                saved.running_set.is_some()
            })
        };
        let first = clone.unwrap_or(0);
        Frozen {
            set_run: lists.get(first).is_some_and(set_runs),
            lists: lists[first..]
                .iter()
                .map(|position| remaining(position))
                .collect(),
            set: self.set.clone(),
            values: self.values.clone(),
            queue: self.queue,
            resubmits: self.resubmits,
            mirrored: self.mirrored,
            // The rest of a clone becomes a packet of its own, whose action set is attributed to
            // the clone's rule.
            first: clone.map_or(self.first, |clone| {
                let Position { table, cookie, .. } = *lists[clone];
                Some(First { table, cookie })
            }),
        }
    }

    /// Ends the clone whose list is at this position, or all lists; its action set does not run
    /// either.
    pub(super) fn leave(&mut self, clone: Option<usize>) {
        self.set.clear();
        match clone {
            None => {
                self.stack.clear();
                // An empty set that counts as having run, so that nothing more follows. The present
                // step may be one of the old set, and be read until the walk is cleared.
                self.owned.extend(self.running_set.replace(Box::default()));
            }
            Some(index) => {
                while self.stack.len() > index {
                    if let Some(position) = self.stack.pop() {
                        self.at = position;
                    }
                }
                if let Some(saved) = &mut self.at.saved {
                    self.owned.extend(saved.running_set.replace(Box::default()));
                }
            }
        }
        self.at.next = self.at.steps.get().len();
    }
}

impl<F: Frame> Engine<F> {
    /// Resumes a frozen walk, in this bridge and the guard's epoch.
    pub fn thaw<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        thaw: Thaw<'_, F>,
        now_ms: u64,
        host: &mut H,
    ) {
        let _stage = stages::enter(stages::Stage::Actions, 1);
        let Thaw {
            mut frame,
            metadata,
            rest,
        } = thaw;
        let burst = Burst::of_one(bridge, guard, rest.words(), now_ms, host);
        if self.walks.is_empty() {
            self.walks.push(Walk::new());
        }
        let walk = &mut self.walks[0];
        let in_port = metadata.u32(at::IN_PORT);
        walk.layers = parse::parse_frame(&mut frame, in_port, burst.valid, &mut walk.key);
        for word in burst.valid.minus(parse::PACKET_WORDS).iter() {
            walk.key.words[word] = metadata.words[word];
        }
        walk.begin_again(frame, rest);
        let shown = metadata.u32(at::CT_STATE);
        walk.tracked = Earlier {
            state: shown,
            zone: metadata.u16(at::CT_ZONE),
            has_connection: shown & (state::ESTABLISHED | state::RELATED | state::REPLY) != 0,
        };
        walk.sent = true;
        let next = walk.run(&burst, host);
        self.run_to_end(&burst, host, 0, next);
    }
}
