//! Keeps the table up to date with a program in the kernel that matches packets and chooses cores
//! by itself, so that the table, the balancer and the rankings know about its choices.

use super::choices::{Choice, ChoiceId, ChoiceKey};
use super::entry::{EntryId, EntrySpec};
use super::{FlowTable, TableError};
use crate::cores::{CoreId, CoreTable, Load};
use crate::policy::Basis;
use crate::settings::Settings;

/// An entry with its state.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'a, const N: usize> {
    /// Its id.
    pub id: EntryId,
    /// Its definition.
    pub spec: &'a EntrySpec<N>,
    /// Packets that have matched it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When it was added, ns.
    pub added_ns: u64,
    /// Load to expect of one of its new flows.
    pub expected: Load,
    /// Flows with a choice of their own.
    pub overrides: u32,
}

/// A choice that the program has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// What it applies to.
    pub key: ChoiceKey,
    /// The core.
    pub core: CoreId,
    /// Why the core was chosen.
    pub basis: Basis,
    /// When it was made, ns.
    pub made_ns: u64,
    /// When it was last used, ns.
    pub used_ns: u64,
    /// Load that was expected of it.
    pub load: Load,
}

impl<const N: usize> FlowTable<N> {
    /// Returns all entries, in the order in which they were added.
    pub fn entries(&self, settings: &Settings) -> Vec<EntryView<'_, N>> {
        let mut all: Vec<EntryView<'_, N>> = self
            .entries
            .iter()
            .map(|(id, entry)| EntryView {
                id: *id,
                spec: &entry.spec,
                packets: entry.packets,
                bytes: entry.bytes,
                added_ns: entry.added_ns,
                expected: entry.expected(settings.expected),
                overrides: entry.overrides,
            })
            .collect();
        all.sort_unstable_by_key(|entry| entry.id);
        all
    }

    /// Sets the total number of packets that have matched an entry, and the time of the last one.
    pub fn counted(&mut self, id: EntryId, packets: u64, bytes: u64, used_ns: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.packets, entry.bytes) = (packets, bytes);
            entry.used_ns = entry.used_ns.max(used_ns);
        }
    }

    /// Adds a choice that the program has made. If there is an older one for the same key, which
    /// had aged in the program, it is replaced.
    ///
    /// # Errors
    ///
    /// Fails if there is no such entry or core, or no room. Nothing is changed.
    pub fn adopt(&mut self, made: Made, cores: &mut CoreTable) -> Result<ChoiceId, TableError> {
        cores.check(made.core)?;
        let entry = self.entries.get(&made.key.entry);
        let spec = entry.ok_or(TableError::NoEntry)?.spec;
        if let Some(before) = self.choices.find(made.key) {
            self.forget(before, cores);
        }
        let choice = Choice {
            key: made.key,
            core: made.core,
            basis: made.basis,
            vm: spec.vm,
            priority: spec.priority,
            used_ns: made.used_ns,
            moved_ns: made.made_ns,
            load: made.load,
        };
        let full = TableError::ChoicesFull(self.limits.choices);
        let id = self.choices.insert(choice).ok_or(full)?;
        if made.key.flow.is_some()
            && let Some(entry) = self.entries.get_mut(&made.key.entry)
        {
            entry.overrides += 1;
        }
        cores.place(made.core, made.load, spec.priority, made.made_ns);
        self.counters.chosen += 1;
        Ok(id)
    }

    /// Updates when a choice was last used, so that it does not age here before it does in the
    /// program.
    pub fn used(&mut self, id: ChoiceId, used_ns: u64) {
        if let Some(choice) = self.choices.get_mut(id) {
            choice.used_ns = choice.used_ns.max(used_ns);
        }
    }

    /// Forgets a choice, as the program has.
    pub fn forgotten(&mut self, id: ChoiceId, cores: &mut CoreTable) {
        self.forget(id, cores);
    }

    /// Returns an entry's definition.
    pub fn spec(&self, id: EntryId) -> Option<&EntrySpec<N>> {
        self.entries.get(&id).map(|entry| &entry.spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Limits, Match, Scope, Target};

    #[test]
    fn a_choice_made_elsewhere_counts_as_one_made_here() {
        let settings = Settings::default();
        let mut cores = CoreTable::new(2, 0).unwrap();
        let mut table = FlowTable::<4>::new(Limits::default());
        let spec = EntrySpec {
            matching: Match::new([0; 4], [0; 4]),
            precedence: 1,
            target: Target::Choose(Scope::Flow),
            vm: None,
            priority: true,
            cookie: 0,
            idle_timeout_ns: None,
            hard_timeout_ns: None,
            notify: false,
        };
        let entry = table.add(spec, &mut cores, 0).unwrap();
        let mut made = Made {
            key: ChoiceKey {
                entry,
                flow: Some(7),
            },
            core: CoreId(1),
            basis: Basis::LeastLoad,
            made_ns: 10,
            used_ns: 10,
            load: settings.expected,
        };
        let first = table.adopt(made, &mut cores).unwrap();
        assert!(cores.is_held(CoreId(1)));
        assert_eq!(cores.load(CoreId(1)), settings.expected);
        assert_eq!(table.entries(&settings)[0].overrides, 1);
        // Made again on another core: the first one is replaced.
        (made.core, made.made_ns) = (CoreId(0), 20);
        let second = table.adopt(made, &mut cores).unwrap();
        assert!(table.choice(first).is_none());
        assert_eq!(table.choice(second).unwrap().core, CoreId(0));
        assert!(!cores.is_held(CoreId(1)) && cores.is_held(CoreId(0)));
        assert_eq!(
            (table.choices_len(), table.entries(&settings)[0].overrides),
            (1, 1)
        );
        table.forgotten(second, &mut cores);
        assert_eq!(
            (table.choices_len(), table.entries(&settings)[0].overrides),
            (0, 0)
        );
        made.core = CoreId(2);
        assert!(matches!(
            table.adopt(made, &mut cores),
            Err(TableError::Core(_))
        ));
        table.counted(entry, 5, 500, 30);
        assert_eq!(table.entries(&settings)[0].packets, 5);
    }
}
