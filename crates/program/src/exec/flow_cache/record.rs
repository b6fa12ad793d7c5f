//! Records a walk for the flow cache.
//!
//! The walk takes place as usual, with [`Recording`] between it and its host, which is told of each
//! step. It keeps:
//!
//! * steps that change the packet, or words that outputs read, and outputs;
//! * copies from registers as constants, because registers begin at zero and everything else that
//!   is copied belongs to the bits by which the walk is found;
//! * nothing of resubmits, gotos, registers, stack and action set, which have had their effect.
//!
//! A walk with any other step must be repeated each time.

use crate::actions::bits;
use crate::actions::block::READ_BY_OUTPUTS;
use crate::actions::learn::{Ended, Request};
use crate::actions::reserved;
use crate::actions::{Bits, Op, PortNo, ToController};
use crate::counters::CounterId;
use crate::exec::suspend::fragment::{Arrived, Parked};
use crate::exec::suspend::freeze::Frozen;
use crate::host::{Context, DropReason, Event, Host, ResumePoint};
use crate::optimizer::unwildcarded::{TableSet, add_table};
use crate::rule::Rule;
use crate::table::Bridge;
use conntrack::Earlier;
use packet::edit::{self, CompiledSet};
use packet::key::at;
use packet::parse::Layers;
use packet::{Field, FlowKey, Frame};

/// Most rules met, and most steps, of a stored path.
const LONGEST: usize = 128;

/// A recorded walk.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct CachedPath {
    /// Whether it can be run without walking; otherwise only `tables` is meaningful.
    pub pure: bool,
    /// Steps to run on the packet.
    pub steps: Box<[Op]>,
    /// Reason for the drop when there are no steps: a table miss if true.
    pub missed: bool,
    /// Counters of rules.
    pub rules: Box<[CounterId]>,
    /// Counters of lookups, and whether a rule was found.
    pub lookups: Box<[(CounterId, bool)]>,
    /// Tables looked up.
    pub tables: TableSet,
}

/// A host that records what a walk does, and passes it on.
pub(crate) struct Recording<'h, H> {
    host: &'h mut H,
    pure: bool,
    missed: bool,
    steps: Vec<Op>,
    rules: Vec<CounterId>,
    lookups: Vec<(CounterId, bool)>,
    tables: TableSet,
}

impl<'h, H> Recording<'h, H> {
    pub fn new(host: &'h mut H) -> Recording<'h, H> {
        Recording {
            host,
            pure: true,
            missed: false,
            steps: Vec::new(),
            rules: Vec::new(),
            lookups: Vec::new(),
            tables: TableSet::default(),
        }
    }

    /// Returns the walk's own host.
    pub fn host(&mut self) -> &mut H {
        self.host
    }

    /// Records a lookup.
    pub fn looked(&mut self, bridge: &Bridge, table: u8, found: Option<&Rule>, resubmitted: bool) {
        add_table(&mut self.tables, table.min(crate::rule::TABLES as u8 - 1));
        if let Some(counter) = bridge.lookup_counter(table) {
            self.lookups.push((counter, found.is_some()));
        }
        match found {
            Some(rule) => {
                // The end of a connection is noticed when its rule is met, so such packets must be
                // walked.
                self.pure &= !rule.shortens_timeouts() && self.rules.len() < LONGEST;
                self.rules.push(rule.spec.counter);
            }
            None => self.pure &= resubmitted || self.steps.is_empty(),
        }
    }

    /// Returns what was recorded; `ended`: the walk ended by lookups and steps alone.
    pub fn finish(mut self, ended: bool) -> CachedPath {
        let sends = |op: &Op| {
            matches!(
                op,
                Op::Output(_) | Op::InPort | Op::All { .. } | Op::Normal | Op::Enqueue { .. }
            )
        };
        // Steps behind the last output have no effect.
        let seen = self
            .steps
            .iter()
            .rposition(sends)
            .map_or(0, |last| last + 1);
        self.steps.truncate(seen);
        // A miss was reported when it happened, so outputs would have to come after it.
        let pure = self.pure && ended && !(self.missed && seen > 0);
        let tables = self.tables;
        if !pure {
            return CachedPath {
                tables,
                ..CachedPath::default()
            };
        }
        CachedPath {
            pure,
            steps: self.steps.into(),
            missed: self.missed,
            rules: self.rules.into(),
            lookups: self.lookups.into(),
            tables,
        }
    }

    fn keep(&mut self, op: Op) {
        self.pure &= self.steps.len() < LONGEST;
        if self.pure {
            self.steps.push(op);
        }
    }

    fn keep_set(&mut self, set: CompiledSet) {
        match &set {
            CompiledSet::Metadata { word, .. } => {
                if READ_BY_OUTPUTS.contains(usize::from(*word)) {
                    self.keep(Op::Set(set));
                }
            }
            CompiledSet::Other { field, .. } if edit::is_metadata(*field) => {
                if !field.def().words().intersect(READ_BY_OUTPUTS).is_empty() {
                    self.keep(Op::Set(set));
                }
            }
            CompiledSet::Other { field, .. } if !is_plain(*field) => self.pure = false,
            _ => self.keep(Op::Set(set)),
        }
    }

    /// Records that a value was written to bits of a field.
    fn keep_written(&mut self, to: Bits, value: u128) {
        let (value, mask) = bits::write(to, value);
        self.keep_set(CompiledSet::new(to.field, &value, &mask));
    }

    fn keep_output(&mut self, port: u128) {
        match bits::port_number(port) {
            reserved::NONE => {}
            reserved::CONTROLLER => self.pure = false,
            reserved::IN_PORT => self.keep(Op::InPort),
            reserved::NORMAL => self.keep(Op::Normal),
            reserved::FLOOD => self.keep(Op::All { flood: true }),
            reserved::ALL => self.keep(Op::All { flood: false }),
            port => self.keep(Op::Output(port)),
        }
    }

    fn note(&mut self, op: &Op, key: &FlowKey, top: Option<u128>) {
        match op {
            Op::Output(_)
            | Op::InPort
            | Op::All { .. }
            | Op::Normal
            | Op::SetQueue(_)
            | Op::PopVlan => self.keep(op.clone()),
            Op::Enqueue { port, .. } if *port < reserved::FIRST => self.keep(op.clone()),
            Op::Set(set) => self.keep_set(set.clone()),
            Op::OutputReg { source, .. } => self.keep_output(bits::read(key, *source)),
            Op::Move { src, dst } => self.keep_written(*dst, bits::read(key, *src)),
            Op::StackPop(to) => {
                if let Some(value) = top {
                    self.keep_written(*to, value);
                }
            }
            // A TTL that expires ends the list, and may cause a packet-in.
            Op::DecTtl(_) if key.u8(at::IP_TTL) > 1 => self.keep(op.clone()),
            Op::Goto(_)
            | Op::Resubmit { in_port: None, .. }
            | Op::WriteActions(_)
            | Op::ClearActions
            | Op::StackPush(_)
            | Op::Exit => {}
            _ => self.pure = false,
        }
    }
}

/// Returns whether writing part of a field changes only that field of the key, and only headers of
/// the packet that packets of the common kinds have.
fn is_plain(field: Field) -> bool {
    matches!(
        field,
        Field::EthDst
            | Field::EthSrc
            | Field::Ipv4Src
            | Field::Ipv4Dst
            | Field::TcpSrc
            | Field::TcpDst
            | Field::UdpSrc
            | Field::UdpDst
            | Field::IpTtl
    )
}

impl<F: Frame, H: Host<F>> Host<F> for Recording<'_, H> {
    const FOLLOWS: bool = true;

    fn steps(&mut self, op: &Op, key: &FlowKey, top: Option<u128>) {
        self.note(op, key, top);
    }

    fn looked_up(&mut self, table: u8, key: Option<&FlowKey>, rule: Option<&Rule>) {
        self.host.looked_up(table, key, rule);
    }

    fn output(&mut self, context: Context<'_>, port: PortNo, frame: F, to_in_port: bool) {
        self.host.output(context, port, frame, to_in_port);
    }

    fn output_all(&mut self, context: Context<'_>, frame: F, flood: bool) {
        self.host.output_all(context, frame, flood);
    }

    fn port_is_live(&self, port: PortNo) -> bool {
        self.host.port_is_live(port)
    }

    fn normal(&mut self, context: Context<'_>, frame: F) {
        self.host.normal(context, frame);
    }

    fn are_first_here(&self) -> bool {
        self.host.are_first_here()
    }

    fn take_reached_local(&mut self) -> bool {
        self.host.take_reached_local()
    }

    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &F) {
        self.pure = false;
        self.host.controller(context, to, frame);
    }

    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &F, rest: Frozen) {
        self.pure = false;
        self.host.pause(context, to, frame, rest);
    }

    fn place(&self) -> ResumePoint {
        self.host.place()
    }

    fn learn(&mut self, request: Request) -> bool {
        self.pure = false;
        self.host.learn(request)
    }

    fn track(
        &mut self,
        frame: &F,
        layers: &Layers,
        earlier: Earlier,
        request: &conntrack::Request<'_>,
    ) -> conntrack::Tracked {
        self.pure = false;
        self.host.track(frame, layers, earlier, request)
    }

    fn hold_fragment(
        &mut self,
        arrived: &Arrived<'_>,
        park: &mut dyn FnMut() -> Box<Parked<F>>,
    ) -> bool {
        self.pure = false;
        self.host.hold_fragment(arrived, park)
    }

    fn carry(&mut self, earlier: Earlier) {
        self.host.carry(earlier);
    }

    fn connection_ended(&mut self, ended: Ended) -> bool {
        self.pure = false;
        self.host.connection_ended(ended)
    }

    fn noted(&mut self, event: Event) {
        self.host.noted(event);
    }

    fn malformed(&mut self, reason: packet::parse::Malformed) {
        self.host.malformed(reason);
    }

    fn now_ns(&mut self) -> u64 {
        self.host.now_ns()
    }

    fn dropped(&mut self, reason: DropReason) {
        match reason {
            DropReason::TableMiss => self.missed = true,
            DropReason::Action => {}
            // The walk failed, or there was no memory this time.
            _ => self.pure = false,
        }
        self.host.dropped(reason);
    }
}
