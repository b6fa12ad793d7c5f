//! Meters of a bridge.
//!
//! A number has a place ([`MeterRef`]) that the steps of rules hold; adding, changing or deleting
//! the meter changes what lies there, at once. Deleting a meter deletes the rules that send packets
//! through it, which go with the next publication like any others; the meter itself is taken out
//! when no worker can run them any more. A `controller(meter_id=N)` action is bound to the number:
//! without a meter of it, packet-ins are not limited by it.

use crate::state::behaviour::Behaviours;
use openflow::action::{Action, Instruction};
use openflow::meter::{self, Band, BandKind, MeterConfig, MeterFlags};
use program::epoch::Domain;
use program::meters::MeterRef;
use qos::meter::{BandKind as Kind, BandSpec, Meter, Unit};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Most meters, as Open vSwitch's `MAX_METERS`.
pub const MAX_METERS: u32 = 1 << 18;
/// Most bands of a meter, as Open vSwitch's `MAX_BANDS`.
pub const MAX_BANDS: u8 = 8;
/// Numbers without a meter that may have a place before those that no rule names lose theirs.
const SPARE_PLACES: usize = 1024;

pub(crate) struct Entry {
    pub(crate) config: MeterConfig,
    pub(crate) meter: Arc<Meter>,
    pub(crate) created_ms: u64,
}

/// The meters of a bridge.
#[derive(Default)]
pub(crate) struct Meters {
    pub(crate) known: BTreeMap<u32, Entry>,
    pub(crate) places: RefCell<HashMap<u32, MeterRef>>,
    /// Deleted since the last commit, with their places.
    pub(crate) deleted: Vec<(MeterRef, Arc<Meter>)>,
}

impl Meters {
    /// Meters whose packet-in meter has its place on the bridge.
    pub fn new(controller: &MeterRef) -> Meters {
        let meters = Meters::default();
        meters
            .places
            .borrow_mut()
            .insert(meter::CONTROLLER, controller.clone());
        meters
    }
    /// The place of a number, whether there is such a meter or not.
    pub fn place(&self, number: u32) -> MeterRef {
        let mut places = self.places.borrow_mut();
        places
            .entry(number)
            .or_insert_with(|| MeterRef::new(number))
            .clone()
    }

    /// The configuration of a meter, by which the twin evaluates, and since when it holds.
    pub fn get(&self, number: u32) -> Option<(&MeterConfig, &Arc<Meter>)> {
        self.known
            .get(&number)
            .map(|entry| (&entry.config, &entry.meter))
    }

    /// Arranges that meters deleted since the last commit are taken out when no worker can run a
    /// rule that used them.
    pub fn commit(&mut self, domain: &Arc<Domain>) {
        struct TakeOut(Weak<Domain>, Vec<(MeterRef, Arc<Meter>)>);
        impl Drop for TakeOut {
            fn drop(&mut self) {
                if let Some(domain) = self.0.upgrade() {
                    for (place, meter) in &self.1 {
                        place.take_out(&domain, meter);
                    }
                }
            }
        }
        let places = self.places.get_mut();
        if places.len() > self.known.len() * 2 + SPARE_PLACES {
            places.retain(|number, place| self.known.contains_key(number) || !place.is_sole());
        }
        if !self.deleted.is_empty() {
            let deleted = std::mem::take(&mut self.deleted);
            domain.retire(Box::new(TakeOut(Arc::downgrade(domain), deleted)));
        }
    }
}

/// The meters that instructions send packets through, nested lists included.
pub(crate) fn used(instructions: &[Instruction], take: &mut impl FnMut(u32)) {
    for instruction in instructions {
        match instruction {
            Instruction::Meter(number) => take(*number),
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                used_by(actions, take)
            }
            _ => {}
        }
    }
}

/// Likewise of actions.
pub(crate) fn used_by(actions: &[Action], take: &mut impl FnMut(u32)) {
    for action in actions {
        match action {
            Action::Meter(number) => take(*number),
            Action::Clone(actions) => used_by(actions, take),
            _ => {}
        }
    }
}

pub(crate) fn unit(flags: MeterFlags) -> Unit {
    if flags.contains(MeterFlags::PKTPS) {
        Unit::Packets
    } else {
        Unit::Kilobits
    }
}

/// The bands in the rate limiter's words.
pub(crate) fn specs(config: &MeterConfig) -> (Unit, Vec<BandSpec>) {
    let spec = |band: &Band| BandSpec {
        kind: match band.kind {
            BandKind::Drop => Kind::Drop,
            BandKind::DscpRemark(steps) => Kind::Remark(steps),
        },
        rate: band.rate,
        burst: band.burst,
    };
    (unit(config.flags), config.bands.iter().map(spec).collect())
}

/// Which lists of instructions use which meters.
#[derive(Default)]
pub(crate) struct Users(HashMap<u32, Vec<Weak<crate::state::behaviour::Behaviour>>>);

impl Users {
    /// A list is new.
    pub fn add(&mut self, behaviour: &Arc<crate::state::behaviour::Behaviour>) {
        used(&behaviour.instructions, &mut |number| {
            let users = self.0.entry(number).or_default();
            // Once, also for a list that names the meter twice.
            if !users
                .last()
                .is_some_and(|last| std::ptr::eq(last.as_ptr(), Arc::as_ptr(behaviour)))
            {
                users.push(Arc::downgrade(behaviour));
            }
        });
    }

    /// A list is about to go.
    pub fn remove(&mut self, behaviour: &Arc<crate::state::behaviour::Behaviour>) {
        used(&behaviour.instructions, &mut |number| {
            if let Some(users) = self.0.get_mut(&number) {
                users.retain(|user| !std::ptr::eq(user.as_ptr(), Arc::as_ptr(behaviour)));
                if users.is_empty() {
                    self.0.remove(&number);
                }
            }
        });
    }
}

impl Behaviours {
    /// Whether a rule sends packets through a meter.
    pub fn uses_meter(&self, number: u32) -> bool {
        self.meter_users.0.contains_key(&number)
    }

    /// How many rules do.
    pub fn rules_with_meter(&self, number: u32) -> u32 {
        let users = self.meter_users.0.get(&number);
        // Of a list's owners one is the table of known lists, the others are rules.
        let rules = |user: &Weak<_>| Weak::strong_count(user).saturating_sub(1);
        users.map_or(0, |users| users.iter().map(rules).sum::<usize>() as u32)
    }
}
