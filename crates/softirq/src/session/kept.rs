//! What a session hands on to the next one of the same interface.

use super::{EntryRequest, Session};
use crate::clock::now_ns;
use crate::key::format_match;
use crate::layout::KEY_BYTES;
use crate::vms::VmLocation;
use steer::table::{Match, Scope, Target};

/// Entries and virtual machines of a session that has ended.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Entries with the times at which their hard timeouts pass, in the order of their addition.
    entries: Vec<(EntryRequest, Match<KEY_BYTES>, Option<u64>)>,
    vms: Vec<(u16, VmLocation)>,
}

impl Session {
    /// Returns its entries and virtual machines.
    pub fn keep(&self) -> Kept {
        let mut views = self.table.entries(&self.settings);
        views.sort_by_key(|view| view.id);
        let ms = |ns: u64| ns / 1_000_000;
        let entries = views.into_iter().map(|view| {
            let spec = view.spec;
            let (core, per_flow) = match spec.target {
                Target::Core(core) => (Some(self.cpu_of(core)), None),
                Target::Choose(scope) => (None, Some(scope == Scope::Flow)),
            };
            let request = EntryRequest {
                matching: format_match(&spec.matching),
                precedence: spec.precedence,
                core,
                per_flow,
                vm: spec.vm.map(|vm| vm.0),
                priority: spec.priority,
                cookie: spec.cookie,
                idle_timeout_ms: spec.idle_timeout_ns.map(ms),
                hard_timeout_ms: spec.hard_timeout_ns.map(ms),
            };
            let due = spec.hard_timeout_ns;
            let due = due.map(|timeout| view.added_ns.saturating_add(timeout));
            (request, spec.matching, due)
        });
        Kept {
            entries: entries.collect(),
            vms: (self.vms.iter())
                .map(|(id, vm)| (*id, vm.place.clone()))
                .collect(),
        }
    }

    /// Takes over what another session has left. Entries whose hard timeout has passed meanwhile
    /// are gone; the others have the rest of theirs. Returns a text for each entry and virtual
    /// machine that this session cannot have.
    pub fn take_over(&mut self, kept: &Kept) -> Vec<String> {
        let now = now_ns();
        let mut refused = Vec::new();
        for (request, matching, due) in &kept.entries {
            let left = due.map(|due| due.saturating_sub(now) / 1_000_000);
            if left == Some(0) {
                continue;
            }
            let request = EntryRequest {
                hard_timeout_ms: left,
                ..request.clone()
            };
            if let Err(error) = self.add(&request, *matching) {
                refused.push(format!("entry \"{}\": {error}", request.matching));
            }
        }
        for (id, place) in &kept.vms {
            if let Err(error) = self.set_vm(*id, Some(place.clone())) {
                refused.push(format!("virtual machine {id}: {error}"));
            }
        }
        refused
    }
}
