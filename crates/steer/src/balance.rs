//! Decides which live flows move to another core, and when (the paper's future work, VI).
//!
//! After every sample, [`Balancer::decide`] looks for flows that should move, in this order:
//!
//! 1. At once: flows on a core where a virtual machine has started, and flows without priority on a
//!    core that a priority flow has taken. Priority flows choose first. A priority flow that had to
//!    use its virtual machine's core leaves it as soon as another core has room for it.
//! 2. After the hold time: flows without priority that had to use their virtual machine's core, if
//!    another core has had room for them for the whole hold time.
//! 3. After the hold time: flows of a core that has been highly loaded for the whole hold time. The
//!    heaviest goes first, until the core is below the threshold by the margin. A flow that makes
//!    more than half of its core's load stays, since it would overload its new core, too; its
//!    neighbours move.
//!
//! In 2 and 3, the evidence is the worst case over the hold time: the lowest load of the old core
//! in any sample, and the highest of the new core. A load that alternates with a period below twice
//! the hold time shows both of its values in every hold time, so it moves nothing. (If it
//! alternates within two samples, their measured mean is a steady load.) A core that a move in 2 or
//! 3 has affected is judged again only after another hold time.
//!
//! [`crate::policy`] says where a flow goes. Moving back would need the same gain in the other
//! direction, so a steady load settles.

use crate::cores::{CoreId, CoreTable, Load, VmId};
use crate::policy::{Basis, Decision, Request, Stay, choose_among};
use crate::settings::Settings;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A live flow, or an entry whose flows share a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow<K> {
    /// The caller's name for it.
    pub key: K,
    /// Its current core.
    pub core: CoreId,
    /// Its load over the last sample period.
    pub load: Load,
    /// The virtual machine that it is for, if known.
    pub vm: Option<VmId>,
    /// Whether it has the priority bit.
    pub priority: bool,
    /// Why it is on this core.
    pub basis: Basis,
    /// When it was last placed or moved, ns.
    pub moved_ns: u64,
}

impl<K> Flow<K> {
    fn request(&self) -> Request {
        Request {
            vm: self.vm,
            priority: self.priority,
        }
    }
}

/// Why a flow moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A virtual machine runs on its core.
    VirtualMachine,
    /// A priority flow uses its core; or it is a priority flow, and another core has room.
    Priority,
    /// It had to use its virtual machine's core, and another core has room.
    Return,
    /// Its core is highly loaded.
    Load,
}

/// A move that should be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move<K> {
    /// The flow.
    pub key: K,
    /// The core that it leaves.
    pub from: CoreId,
    /// The core that it goes to.
    pub to: CoreId,
    /// Why the new core was chosen.
    pub basis: Basis,
    /// Why it moves.
    pub cause: Cause,
}

/// Remembers the loads of a hold time, and decides which flows move.
#[derive(Clone, Debug)]
pub struct Balancer {
    windows: Vec<Window>,
    size: usize,
}

/// A core's loads in the samples of a hold time.
#[derive(Clone, Debug, Default)]
struct Window {
    /// Measured loads, the newest last.
    loads: VecDeque<Load>,
    /// Minimum and maximum of the loads, once there are enough.
    range: Option<(Load, Load)>,
}

/// State of one call of [`Balancer::decide`].
struct Plan<'a, K> {
    /// The core table after the moves decided so far.
    cores: CoreTable,
    settings: &'a Settings,
    now_ns: u64,
    moves: Vec<Move<K>>,
    moved: Vec<bool>,
    /// Requests that cannot be satisfied until something has moved, for flows of this load or more.
    /// Without this, a core with a million flows that cannot leave it would cause a million useless
    /// searches at every sample.
    hopeless: HashMap<Request, Load>,
}

impl Balancer {
    /// Makes a balancer for this many cores.
    pub fn new(count: u16, settings: &Settings) -> Balancer {
        Balancer {
            windows: vec![Window::default(); usize::from(count)],
            size: settings.window(),
        }
    }

    /// Records the loads of a sample. Call it after each [`CoreTable::sample`].
    pub fn observe(&mut self, cores: &CoreTable) {
        for (core, window) in cores.ids().zip(&mut self.windows) {
            let loads = &mut window.loads;
            if loads.len() >= self.size {
                loads.pop_front();
            }
            loads.push_back(cores.measured(core));
            let range = loads.iter().min().zip(loads.iter().max());
            let whole = loads.len() >= self.size;
            window.range = range.filter(|_| whole).map(|(min, max)| (*min, *max));
        }
    }

    /// Returns for each core whether its flows may have to move. Flows of other cores need not be
    /// passed to [`Balancer::decide`].
    pub fn sources(&self, cores: &CoreTable, settings: &Settings) -> Vec<bool> {
        let may = |core| {
            cores.runs_vm(core) || cores.is_held(core) || self.least(core) >= Some(settings.high)
        };
        cores.ids().map(may).collect()
    }

    /// Returns the lowest load of a core over the hold time; None if it has not been watched that
    /// long.
    fn least(&self, core: CoreId) -> Option<Load> {
        let (least, _) = self.windows.get(core.index())?.range?;
        Some(least)
    }

    /// Returns the highest load of a core over the hold time; None if it has not been watched that
    /// long.
    fn most(&self, core: CoreId) -> Option<Load> {
        let (_, most) = self.windows.get(core.index())?.range?;
        Some(most)
    }

    /// Decides which of the flows move. The caller carries out the moves
    /// ([`crate::table::FlowTable::move_choice`], [`crate::handover`]); moves that are not carried
    /// out are decided again after the next sample.
    ///
    /// Call it after [`Balancer::observe`], with a core table of the same number of cores.
    pub fn decide<K: Copy>(
        &mut self,
        cores: &CoreTable,
        flows: &[Flow<K>],
        settings: &Settings,
        now_ns: u64,
    ) -> Vec<Move<K>> {
        let mut plan = Plan {
            cores: cores.clone(),
            settings,
            now_ns,
            moves: Vec::new(),
            moved: vec![false; flows.len()],
            hopeless: HashMap::new(),
        };
        for priority in [true, false] {
            for (index, flow) in flows.iter().enumerate() {
                if flow.priority == priority {
                    plan.leave_at_once(index, flow);
                }
            }
        }
        let mut touched = Vec::new();
        self.return_from_own_cores(&mut plan, flows, &mut touched);
        self.relieve_hot_cores(&mut plan, flows, &mut touched);
        for core in touched {
            if let Some(window) = self.windows.get_mut(core.index()) {
                *window = Window::default();
            }
        }
        plan.moves
    }

    /// Moves flows off their virtual machine's core, if another core has had room for the hold
    /// time.
    fn return_from_own_cores<K: Copy>(
        &self,
        plan: &mut Plan<'_, K>,
        flows: &[Flow<K>],
        touched: &mut Vec<CoreId>,
    ) {
        plan.hopeless.clear();
        for (index, flow) in flows.iter().enumerate() {
            let on_own = flow.basis == Basis::OwnCore && plan.cores.runs_vm(flow.core);
            if !on_own || !plan.may_move(index, flow) || plan.is_hopeless(flow) {
                continue;
            }
            let has_room = |core| {
                let most = self.most(core).map(|most| most.max(plan.cores.load(core)));
                most.is_some_and(|most| most.plus(flow.load) < plan.settings.high)
            };
            let decision = plan.choose(flow, has_room);
            if let Decision::Use(to, basis @ Basis::LeastLoad) = decision {
                plan.make(index, flow, to, basis, Cause::Return);
                touched.push(to);
            } else {
                plan.hopeless.insert(flow.request(), flow.load);
            }
        }
    }

    /// Moves flows off cores that have been highly loaded for the hold time.
    fn relieve_hot_cores<K: Copy>(
        &self,
        plan: &mut Plan<'_, K>,
        flows: &[Flow<K>],
        touched: &mut Vec<CoreId>,
    ) {
        let high = plan.settings.high;
        let mut hot: BTreeMap<CoreId, Vec<usize>> = BTreeMap::new();
        for (index, flow) in flows.iter().enumerate() {
            if self.least(flow.core) >= Some(high) && plan.may_move(index, flow) {
                hot.entry(flow.core).or_default().push(index);
            }
        }
        for (from, mut here) in hot {
            let Some(least) = self.least(from) else {
                continue;
            };
            here.sort_by_key(|i| std::cmp::Reverse(flows[*i].load));
            plan.hopeless.clear();
            for index in here {
                let flow = &flows[index];
                let load = plan.cores.load(from).min(least);
                if load < high.minus(plan.settings.margin) && !plan.settings.level {
                    break;
                }
                let is_heavy = flow.load.plus(flow.load) > plan.cores.measured(from);
                if is_heavy || plan.is_hopeless(flow) {
                    continue;
                }
                // The highest load of the new core, with the flow there.
                let after = |core| {
                    let most = self.most(core)?.max(plan.cores.load(core));
                    (core != from && most < high).then_some(most.plus(flow.load))
                };
                match plan.choose(flow, |core| after(core).is_some()) {
                    Decision::Use(to, basis) => {
                        let gains = |after: Load| load >= after.plus(plan.settings.margin);
                        let after = after(to).unwrap_or(Load::FULL);
                        if basis != Basis::Displacing && gains(after) {
                            plan.make(index, flow, to, basis, Cause::Load);
                            touched.extend([from, to]);
                        } else if !gains(after.minus(flow.load)) {
                            // Not even a flow without load would gain.
                            plan.hopeless.insert(flow.request(), Load::ZERO);
                        }
                    }
                    Decision::Stay(Stay::AllHigh) => return,
                    Decision::Stay(_) => {
                        plan.hopeless.insert(flow.request(), Load::ZERO);
                    }
                }
            }
        }
    }
}

impl<K: Copy> Plan<'_, K> {
    fn choose(&self, flow: &Flow<K>, eligible: impl Fn(CoreId) -> bool) -> Decision {
        choose_among(&self.cores, flow.request(), self.settings, eligible)
    }

    fn is_hopeless(&self, flow: &Flow<K>) -> bool {
        let least = self.hopeless.get(&flow.request());
        least.is_some_and(|least| flow.load >= *least)
    }

    /// Returns whether a flow's own hold time is over and this plan has not moved it.
    fn may_move(&self, index: usize, flow: &Flow<K>) -> bool {
        let held = self.now_ns.saturating_sub(flow.moved_ns);
        !self.moved[index] && held >= self.settings.hold_ns
    }

    /// Moves a flow that need not wait for the hold time.
    fn leave_at_once(&mut self, index: usize, flow: &Flow<K>) {
        let cores = &self.cores;
        if self.is_hopeless(flow) {
            return;
        }
        let is_own = flow.vm.is_some_and(|vm| cores.runs(flow.core, vm));
        let (cause, decision) = if !cores.runs_vm(flow.core) {
            if flow.priority || !cores.is_held(flow.core) {
                return;
            }
            (Cause::Priority, self.choose_with_room(flow))
        } else if !is_own || flow.basis != Basis::OwnCore {
            (Cause::VirtualMachine, self.choose_with_room(flow))
        } else if flow.priority {
            // Only to a core that stays below the threshold with everything that is there. Its
            // flows without priority may have nowhere to go; then the core would be overloaded, and
            // this flow would come back.
            let has_room = |core| cores.load(core).plus(flow.load) < self.settings.high;
            (Cause::Priority, self.choose(flow, has_room))
        } else {
            return;
        };
        match decision {
            Decision::Use(to, basis) if to != flow.core => {
                self.make(index, flow, to, basis, cause);
            }
            // The result depended on the flow's own load; another flow may succeed.
            Decision::Stay(_) if cause != Cause::Priority || !flow.priority => {
                self.hopeless.insert(flow.request(), Load::ZERO);
            }
            _ => {}
        }
    }

    /// Chooses a core that the flow does not overload; if there is none, the less loaded of the
    /// policy's choice and its virtual machine's core. The policy alone ignores the flow's own
    /// load, and might prefer a core that the flow overloads to its virtual machine's core that has
    /// room.
    fn choose_with_room(&self, flow: &Flow<K>) -> Decision {
        let has_room = |core| {
            let remaining = if flow.priority {
                self.cores.load_without_normal_flows(core)
            } else {
                self.cores.load(core)
            };
            core == flow.core || remaining.plus(flow.load) < Load::FULL
        };
        let with_room = self.choose(flow, has_room);
        if with_room != Decision::Stay(Stay::NoneFit) {
            return with_room;
        }
        let any = self.choose(flow, |_| true);
        let own = self.choose(flow, |core| self.cores.runs_vm(core));
        match (any, own) {
            (Decision::Use(core, _), Decision::Use(own_core, _))
                if self.cores.load(own_core) < self.cores.load(core) =>
            {
                own
            }
            _ => any,
        }
    }

    fn make(&mut self, index: usize, flow: &Flow<K>, to: CoreId, basis: Basis, cause: Cause) {
        let (from, load) = (flow.core, flow.load);
        self.cores.moved(from, to, load, flow.priority, self.now_ns);
        self.moved[index] = true;
        self.hopeless.clear();
        self.moves.push(Move {
            key: flow.key,
            from,
            to,
            basis,
            cause,
        });
    }
}

#[cfg(test)]
mod tests;
