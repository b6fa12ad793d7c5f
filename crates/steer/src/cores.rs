//! The core table: what the policy knows about each core.
//!
//! Load is measured at every sample. Between two samples, a core that looked idle would get all new
//! flows if nothing else counted; so the table adds the expected load of flows placed since. A flow
//! placed in the middle of a period is included only in part in the sample that ends it: the rest
//! is carried over to the next period.

use std::fmt;

/// Most cores that a table can have.
pub const CORES_MAX: u16 = 1024;

/// A core's number, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CoreId(pub u16);

impl CoreId {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}", self.0)
    }
}

/// A virtual machine's number, unique on its host. Tenants do not matter here: the policy treats
/// all virtual machines alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VmId(pub u16);

/// A share of one core's time, in millionths. An expected (not measured) load may exceed a whole
/// core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Load(pub u32);

impl Load {
    /// No load.
    pub const ZERO: Load = Load(0);
    /// One whole core.
    pub const FULL: Load = Load(1_000_000);

    /// Returns this many hundredths of a core.
    pub const fn percent(percent: u32) -> Load {
        Load(percent.saturating_mul(10_000))
    }

    /// Returns a share of a core, 1.0 being all of it. Negative values and NaN become zero.
    pub fn of(part: f64) -> Load {
        // The cast saturates.
        Load((part * 1e6).round() as u32)
    }

    /// Returns the share of a core, 1.0 being all of it.
    pub fn part(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// Adds loads, saturating.
    pub fn plus(self, other: Load) -> Load {
        Load(self.0.saturating_add(other.0))
    }

    /// Subtracts loads, saturating at zero.
    pub fn minus(self, other: Load) -> Load {
        Load(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}%", self.part() * 100.0)
    }
}

/// Measurements of one core since the last sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Time spent on interrupts, softirqs, redirected packets and tasks.
    pub load: Load,
    /// The part of it spent on steered flows without priority, which leave when a priority flow
    /// comes. Zero if not measured.
    pub yielding: Load,
}

/// Why a call was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    /// A table has 1 to [`CORES_MAX`] cores.
    #[error("{0} cores: there must be 1 to {CORES_MAX}")]
    Count(u16),
    /// The core is not in the table.
    #[error("{core} is not one of the {count} cores")]
    Unknown {
        /// The core that was named.
        core: CoreId,
        /// Number of cores.
        count: u16,
    },
    /// A sample must cover all cores.
    #[error("a sample of {samples} cores for a table of {count}")]
    Samples {
        /// Number of samples given.
        samples: usize,
        /// Number of cores.
        count: u16,
    },
}

/// One core.
#[derive(Clone, Debug, Default)]
struct Core {
    measured: Load,
    yielding: Load,
    /// Load, in millionths, of flows that have arrived (positive) or left since the sample.
    placed: i64,
    /// Sum of each of these loads times the moment of its change, in ns after the sample.
    placed_moment: i128,
    vms: Vec<VmId>,
    priority_flows: u32,
}

/// The core table (paper, III-B). Methods that return no error treat unknown cores as idle and
/// empty.
#[derive(Clone, Debug)]
pub struct CoreTable {
    cores: Vec<Core>,
    sampled_ns: u64,
}

impl CoreTable {
    /// Makes a table of idle cores without virtual machines.
    ///
    /// # Errors
    ///
    /// Fails for zero or more than [`CORES_MAX`] cores.
    pub fn new(count: u16, now_ns: u64) -> Result<CoreTable, CoreError> {
        if count == 0 || count > CORES_MAX {
            return Err(CoreError::Count(count));
        }
        Ok(CoreTable {
            cores: vec![Core::default(); usize::from(count)],
            sampled_ns: now_ns,
        })
    }

    /// Returns the number of cores.
    pub fn count(&self) -> u16 {
        self.cores.len() as u16
    }

    /// Iterates over all cores, in order.
    pub fn ids(&self) -> impl Iterator<Item = CoreId> + use<> {
        (0..self.count()).map(CoreId)
    }

    /// Returns the core if the table has it.
    ///
    /// # Errors
    ///
    /// Fails if it has not.
    pub fn check(&self, core: CoreId) -> Result<CoreId, CoreError> {
        if core.0 < self.count() {
            Ok(core)
        } else {
            Err(CoreError::Unknown {
                core,
                count: self.count(),
            })
        }
    }

    /// Takes the measurements of all cores since the last sample.
    ///
    /// # Errors
    ///
    /// Fails if there is not one sample per core; nothing is changed.
    pub fn sample(&mut self, samples: &[Sample], now_ns: u64) -> Result<(), CoreError> {
        if samples.len() != self.cores.len() {
            return Err(CoreError::Samples {
                samples: samples.len(),
                count: self.count(),
            });
        }
        let period = i128::from(now_ns.saturating_sub(self.sampled_ns)).max(1);
        for (core, sample) in self.cores.iter_mut().zip(samples) {
            core.measured = sample.load;
            core.yielding = sample.yielding;
            // A flow that arrived after a quarter of the period was measured for three quarters of
            // it; the missing quarter is carried over.
            core.placed = (core.placed_moment / period) as i64;
            core.placed_moment = 0;
        }
        self.sampled_ns = now_ns;
        Ok(())
    }

    fn get(&self, core: CoreId) -> Option<&Core> {
        self.cores.get(core.index())
    }

    /// Returns the load of a core as last measured.
    pub fn measured(&self, core: CoreId) -> Load {
        self.get(core).map_or(Load::ZERO, |core| core.measured)
    }

    /// Returns the load of a core: as measured, plus what is expected of flows placed since.
    pub fn load(&self, core: CoreId) -> Load {
        self.get(core).map_or(Load::ZERO, |core| {
            let sum = i64::from(core.measured.0).saturating_add(core.placed);
            Load(u32::try_from(sum.max(0)).unwrap_or(u32::MAX))
        })
    }

    /// Returns the load that would remain if all flows without priority left the core.
    pub fn load_without_normal_flows(&self, core: CoreId) -> Load {
        let yielding = self.get(core).map_or(Load::ZERO, |core| core.yielding);
        self.load(core).minus(yielding)
    }

    /// Returns whether every core was measured to be highly loaded: then nothing is moved (paper,
    /// IV).
    ///
    /// Only measurements count: expectations must not declare a whole machine overloaded.
    pub fn all_high(&self, high: Load) -> bool {
        self.cores.iter().all(|core| core.measured >= high)
    }

    /// Returns whether any virtual machine runs on a core.
    pub fn runs_vm(&self, core: CoreId) -> bool {
        !self.vms(core).is_empty()
    }

    /// Returns whether this virtual machine runs on a core.
    pub fn runs(&self, core: CoreId, vm: VmId) -> bool {
        self.vms(core).contains(&vm)
    }

    /// Returns the virtual machines of a core.
    pub fn vms(&self, core: CoreId) -> &[VmId] {
        self.get(core).map_or(&[], |core| &core.vms)
    }

    /// Returns whether a core without virtual machines has priority flows, so that others keep off.
    pub fn is_held(&self, core: CoreId) -> bool {
        self.get(core)
            .is_some_and(|core| core.priority_flows > 0 && core.vms.is_empty())
    }

    /// Returns the number of held cores.
    pub fn held_cores(&self) -> u16 {
        self.ids().filter(|core| self.is_held(*core)).count() as u16
    }

    /// Records that a virtual machine runs on a core, perhaps besides others.
    ///
    /// # Errors
    ///
    /// Fails if there is no such core.
    pub fn vm_started(&mut self, vm: VmId, core: CoreId) -> Result<(), CoreError> {
        let core = self.check(core)?;
        let vms = &mut self.cores[core.index()].vms;
        if !vms.contains(&vm) {
            vms.push(vm);
        }
        Ok(())
    }

    /// Records that a virtual machine runs nowhere any more.
    pub fn vm_stopped(&mut self, vm: VmId) {
        for core in &mut self.cores {
            core.vms.retain(|other| *other != vm);
        }
    }

    /// Counts a flow that was placed on a core, with its expected load.
    pub(crate) fn place(&mut self, core: CoreId, load: Load, priority: bool, now_ns: u64) {
        self.shift(core, i64::from(load.0), now_ns);
        if priority {
            self.hold(core);
        }
    }

    /// Counts a flow that moved, with its measured load. The sample that includes it on the old
    /// core is already in the table, so its load is subtracted there.
    pub(crate) fn moved(
        &mut self,
        from: CoreId,
        to: CoreId,
        load: Load,
        priority: bool,
        now_ns: u64,
    ) {
        self.shift(from, -i64::from(load.0), now_ns);
        self.shift(to, i64::from(load.0), now_ns);
        if priority {
            self.release(from);
            self.hold(to);
        } else {
            if let Some(core) = self.cores.get_mut(from.index()) {
                core.yielding = core.yielding.minus(load);
            }
            if let Some(core) = self.cores.get_mut(to.index()) {
                core.yielding = core.yielding.plus(load);
            }
        }
    }

    fn shift(&mut self, core: CoreId, load: i64, now_ns: u64) {
        let after = now_ns.saturating_sub(self.sampled_ns);
        if let Some(core) = self.cores.get_mut(core.index()) {
            core.placed = core.placed.saturating_add(load);
            core.placed_moment += i128::from(load) * i128::from(after);
        }
    }

    /// Counts another priority flow on a core, so that others keep off.
    pub fn hold(&mut self, core: CoreId) {
        if let Some(core) = self.cores.get_mut(core.index()) {
            core.priority_flows += 1;
        }
    }

    /// Removes a priority flow from a core's count.
    pub fn release(&mut self, core: CoreId) {
        if let Some(core) = self.cores.get_mut(core.index()) {
            core.priority_flows = core.priority_flows.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: CoreId = CoreId(0);

    fn sample(load: Load) -> [Sample; 1] {
        [Sample {
            load,
            yielding: Load::ZERO,
        }]
    }

    #[test]
    fn the_load_of_a_placed_flow_counts_until_it_is_measured() {
        let mut cores = CoreTable::new(1, 0).unwrap();
        cores.sample(&sample(Load::percent(20)), 1_000).unwrap();
        cores.place(CORE, Load::percent(8), false, 1_250);
        assert_eq!(cores.load(CORE), Load::percent(28));
        // Three quarters of the period include the flow: 6% of the 26%. The other 2% are added.
        cores.sample(&sample(Load::percent(26)), 2_000).unwrap();
        assert_eq!(cores.load(CORE), Load::percent(28));
        // Now it is measured in full.
        cores.sample(&sample(Load::percent(28)), 3_000).unwrap();
        assert_eq!(cores.load(CORE), Load::percent(28));
    }

    #[test]
    fn a_flow_that_leaves_takes_its_load_along() {
        let mut cores = CoreTable::new(2, 0).unwrap();
        let half = Sample {
            load: Load::percent(50),
            yielding: Load::percent(40),
        };
        cores.sample(&[half, Sample::default()], 1_000).unwrap();
        cores.moved(CORE, CoreId(1), Load::percent(30), false, 1_000);
        assert_eq!(cores.load(CORE), Load::percent(20));
        assert_eq!(cores.load(CoreId(1)), Load::percent(30));
        assert_eq!(cores.load_without_normal_flows(CORE), Load::percent(10));
        assert_eq!(cores.load_without_normal_flows(CoreId(1)), Load::ZERO);
    }

    #[test]
    fn a_core_with_a_vm_is_not_held() {
        let mut cores = CoreTable::new(2, 0).unwrap();
        cores.place(CORE, Load::percent(1), true, 0);
        assert!(cores.is_held(CORE));
        assert_eq!(cores.held_cores(), 1);
        cores.vm_started(VmId(7), CORE).unwrap();
        assert!(!cores.is_held(CORE));
        cores.vm_stopped(VmId(7));
        cores.release(CORE);
        assert_eq!(cores.held_cores(), 0);
    }

    #[test]
    fn bad_arguments_are_errors() {
        assert_eq!(CoreTable::new(0, 0).unwrap_err(), CoreError::Count(0));
        let mut cores = CoreTable::new(2, 0).unwrap();
        assert_eq!(
            cores
                .vm_started(VmId(1), CoreId(2))
                .unwrap_err()
                .to_string(),
            "core 2 is not one of the 2 cores"
        );
        assert!(cores.sample(&[Sample::default()], 1).is_err());
    }
}
