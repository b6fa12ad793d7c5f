//! The meters of a bridge.
//!
//! Each number has a place ([`MeterRef`]) to which rules' ops refer; adding, changing or deleting
//! the meter changes the contents of the place at once. Deleting a meter deletes the rules that
//! send packets through it, with the next publication like any others; the meter itself is removed
//! when no worker can run them any more. A `controller(meter_id=N)` action refers to the number: if
//! that meter does not exist, the meter does not limit its packet-ins.

use crate::state::behaviour::Behaviours;
use openflow::action::{Action, Instruction};
use openflow::meter::{self, Band, BandKind, MeterConfig, MeterFlags};
use program::epoch::Domain;
use program::meters::MeterRef;
use qos::meter::{BandKind as QosBandKind, BandSpec, Meter, Unit};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Maximum number of meters, as Open vSwitch's `MAX_METERS`.
pub const MAX_METERS: u32 = 1 << 18;
/// Maximum number of bands of a meter, as Open vSwitch's `MAX_BANDS`.
pub const MAX_BANDS: u8 = 8;
/// Places of numbers without a meter. Beyond this many, those that no rule names are removed.
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
    /// Meters deleted since the last commit, with their places.
    pub(crate) deleted: Vec<(MeterRef, Arc<Meter>)>,
}

impl Meters {
    /// Creates the meters of a bridge whose packet-in meter has the place `controller`.
    pub fn new(controller: &MeterRef) -> Meters {
        let meters = Meters::default();
        meters
            .places
            .borrow_mut()
            .insert(meter::CONTROLLER, controller.clone());
        meters
    }
    /// Returns the place of a number, whether or not that meter exists.
    pub fn place(&self, number: u32) -> MeterRef {
        let mut places = self.places.borrow_mut();
        places
            .entry(number)
            .or_insert_with(|| MeterRef::new(number))
            .clone()
    }

    /// Returns a meter's configuration, by which the reference evaluates, and the meter in force.
    pub fn get(&self, number: u32) -> Option<(&MeterConfig, &Arc<Meter>)> {
        self.known
            .get(&number)
            .map(|entry| (&entry.config, &entry.meter))
    }

    /// Schedules removal of the meters deleted since the last commit, for when no worker can run a
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

/// Passes to `take` the meters through which instructions send packets, nested lists included.
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

/// Passes to `take` the meters through which actions send packets, nested lists included.
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

/// Converts the bands to the rate limiter's types.
pub(crate) fn specs(config: &MeterConfig) -> (Unit, Vec<BandSpec>) {
    let spec = |band: &Band| BandSpec {
        kind: match band.kind {
            BandKind::Drop => QosBandKind::Drop,
            BandKind::DscpRemark(steps) => QosBandKind::Remark(steps),
        },
        rate: band.rate,
        burst: band.burst,
    };
    (unit(config.flags), config.bands.iter().map(spec).collect())
}

/// The instruction lists that use each meter.
#[derive(Default)]
pub(crate) struct Users(HashMap<u32, Vec<Weak<crate::state::behaviour::Behaviour>>>);

impl Users {
    /// Adds a new list.
    pub fn add(&mut self, behaviour: &Arc<crate::state::behaviour::Behaviour>) {
        used(&behaviour.instructions, &mut |number| {
            let users = self.0.entry(number).or_default();
            // A list that names the meter twice is added once.
            if !users
                .last()
                .is_some_and(|last| std::ptr::eq(last.as_ptr(), Arc::as_ptr(behaviour)))
            {
                users.push(Arc::downgrade(behaviour));
            }
        });
    }

    /// Removes a list that is about to be dropped.
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
    /// Returns whether a rule sends packets through a meter, or through any ([`meter::ALL`]).
    pub fn uses_meter(&self, number: u32) -> bool {
        match number {
            meter::ALL => !self.meter_users.0.is_empty(),
            one => self.meter_users.0.contains_key(&one),
        }
    }

    /// Returns how many rules send packets through a meter.
    pub fn rules_with_meter(&self, number: u32) -> u32 {
        let users = self.meter_users.0.get(&number);
        // One owner of a list is the table of known lists; the others are rules.
        let rules = |user: &Weak<_>| Weak::strong_count(user).saturating_sub(1);
        users.map_or(0, |users| users.iter().map(rules).sum::<usize>() as u32)
    }
}
