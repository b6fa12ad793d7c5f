//! Meters of a bridge.
//!
//! A number has a place ([`MeterRef`]) that the steps of rules hold; adding, changing or deleting
//! the meter changes what lies there, at once. Deleting a meter deletes the rules that send packets
//! through it, which go with the next publication like any others; the meter itself is taken out
//! when no worker can run them any more. A `controller(meter_id=N)` action is bound to the number:
//! without a meter of it, packet-ins are not limited by it.

use crate::behaviour::Behaviours;
use crate::store::RuleId;
use crate::{Clock, FlowModOutcome, Pipeline};
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::flow::FlowRemovedReason;
use openflow::meter::{
    self, Band, BandKind, MeterCommand, MeterConfig, MeterFlags, MeterMod, MeterStats,
};
use openflow::stats::MeterFeatures;
use program::epoch::Domain;
use program::meters::MeterRef;
use qos::meter::{BandKind as Kind, BandSpec, Count, Meter, Unit};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Most meters, as Open vSwitch's `MAX_METERS`.
pub const MAX_METERS: u32 = 1 << 18;
/// Most bands of a meter, as Open vSwitch's `MAX_BANDS`.
pub const MAX_BANDS: u8 = 8;
/// Numbers without a meter that may have a place before those that no rule names lose theirs.
const SPARE_PLACES: usize = 1024;

struct Entry {
    config: MeterConfig,
    meter: Arc<Meter>,
    created_ms: u64,
}

/// The meters of a bridge.
#[derive(Default)]
pub(crate) struct Meters {
    known: BTreeMap<u32, Entry>,
    places: RefCell<HashMap<u32, MeterRef>>,
    /// Deleted since the last commit, with their places.
    deleted: Vec<(MeterRef, Arc<Meter>)>,
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

fn unit(flags: MeterFlags) -> Unit {
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

impl Pipeline {
    /// Adds, changes or deletes meters (OpenFlow 1.3.5 section 6.5), with the errors of Open
    /// vSwitch 3.1. What goes with a meter is in the outcome. A meter that is not there
    /// is deleted without an error. A changed meter begins with full buckets and counters at zero.
    pub fn meter_mod(&mut self, change: &MeterMod, now: Clock) -> Result<FlowModOutcome, Error> {
        let number = change.config.meter;
        match change.command {
            MeterCommand::Delete => return Ok(self.delete_meters(number, now)),
            MeterCommand::Add | MeterCommand::Modify => check(&change.config)?,
        }
        let adds = change.command == MeterCommand::Add;
        match (adds, self.meters.known.get(&number)) {
            (true, Some(_)) => return Err(Error::MeterExists),
            (false, None) => return Err(Error::UnknownMeter),
            (true, None) if self.meters.known.len() >= MAX_METERS as usize => {
                return Err(Error::OutOfMeters);
            }
            _ => {}
        }
        let mut config = change.config.clone();
        // Who wants bursts shown is shown the one that was chosen, as by Open vSwitch.
        if config.flags.contains(MeterFlags::BURST) {
            for band in config.bands.iter_mut().filter(|band| band.burst == 0) {
                band.burst = band.rate;
            }
        }
        let (unit, specs) = specs(&config);
        let meter = Arc::new(Meter::new(unit, &specs, now.ms().saturating_mul(1_000_000)));
        self.meters
            .place(number)
            .put(&self.program.domain, Some(Arc::clone(&meter)));
        let created_ms = self
            .meters
            .known
            .get(&number)
            .map_or(now.ms(), |old| old.created_ms);
        self.meters.known.insert(
            number,
            Entry {
                config,
                meter,
                created_ms,
            },
        );
        Ok(FlowModOutcome {
            removed: Vec::new(),
            changed: 1,
        })
    }

    fn delete_meters(&mut self, number: u32, now: Clock) -> FlowModOutcome {
        let mut gone: BTreeMap<u32, Entry> = BTreeMap::new();
        if number == meter::ALL {
            gone = std::mem::take(&mut self.meters.known);
        } else if let Some(entry) = self.meters.known.remove(&number) {
            gone.insert(number, entry);
        }
        let mut outcome = FlowModOutcome::default();
        if gone
            .keys()
            .any(|number| self.behaviours.uses_meter(*number))
        {
            for id in self.metered_rules(|number| gone.contains_key(&number)) {
                outcome.changed += 1;
                outcome
                    .removed
                    .extend(self.take_out(id, FlowRemovedReason::MeterDelete, now));
            }
            self.delete_orphans(&mut outcome, now);
        }
        for (number, entry) in gone {
            outcome.changed += 1;
            let place = self.meters.place(number);
            self.meters.deleted.push((place, entry.meter));
        }
        outcome
    }

    fn metered_rules(&self, wanted: impl Fn(u32) -> bool) -> Vec<RuleId> {
        let uses = |instructions: &[Instruction]| {
            let mut found = false;
            used(instructions, &mut |number| found |= wanted(number));
            found
        };
        self.store
            .tables()
            .flat_map(|table| self.store.table(table))
            .filter(|(_, rule)| uses(&rule.behaviour.instructions))
            .map(|(id, _)| id)
            .collect()
    }

    /// Whether every meter that a rule would use is there.
    pub(crate) fn check_meters(&self, instructions: &[Instruction]) -> Result<(), Error> {
        let mut missing = false;
        used(instructions, &mut |number| {
            missing |= !self.meters.known.contains_key(&number);
        });
        if missing {
            Err(Error::InvalidMeter)
        } else {
            Ok(())
        }
    }

    /// Counters of a meter, or of all for [`meter::ALL`], ascending.
    pub fn meter_stats(&self, number: u32, now: Clock) -> Result<Vec<MeterStats>, Error> {
        let chosen = self.chosen(number)?;
        Ok(chosen
            .map(|(number, entry)| {
                let met = entry.meter.met();
                let pair = |count: Count| (count.packets, count.bytes);
                MeterStats {
                    meter: *number,
                    flows: self.behaviours.rules_with_meter(*number),
                    packets: met.packets,
                    bytes: met.bytes,
                    duration_ns: now.ms().saturating_sub(entry.created_ms) * 1_000_000,
                    bands: entry.meter.acted().map(pair).collect(),
                }
            })
            .collect())
    }

    /// Bands of a meter, or of all for [`meter::ALL`], ascending.
    pub fn meter_configs(&self, number: u32) -> Result<Vec<MeterConfig>, Error> {
        let chosen = self.chosen(number)?;
        Ok(chosen.map(|(_, entry)| entry.config.clone()).collect())
    }

    fn chosen(&self, number: u32) -> Result<impl Iterator<Item = (&u32, &Entry)>, Error> {
        let range = if number == meter::ALL {
            0..=u32::MAX
        } else if self.meters.known.contains_key(&number) {
            number..=number
        } else {
            return Err(Error::UnknownMeter);
        };
        Ok(self.meters.known.range(range))
    }
}

/// What meters are possible.
pub fn meter_features() -> MeterFeatures {
    MeterFeatures {
        max_meters: MAX_METERS,
        // Drop and DSCP remark.
        band_types: 1 << 1 | 1 << 2,
        capabilities: MeterFlags::all().bits().into(),
        max_bands: MAX_BANDS,
        max_color: 0,
    }
}

fn check(config: &MeterConfig) -> Result<(), Error> {
    if config.flags.contains(MeterFlags::KBPS | MeterFlags::PKTPS) {
        return Err(Error::BadMeterFlags);
    }
    let numbered = (1..=meter::MAX).contains(&config.meter);
    if !numbered && ![meter::SLOWPATH, meter::CONTROLLER].contains(&config.meter) {
        return Err(Error::InvalidMeter);
    }
    if config.bands.len() > MAX_BANDS.into() {
        return Err(Error::OutOfBands);
    }
    // A rate of nothing has no burst that could be chosen for it; later versions of Open vSwitch
    // refuse it too.
    if config.bands.iter().any(|band| band.rate == 0) {
        return Err(Error::BadRate);
    }
    Ok(())
}

/// Which lists of instructions use which meters.
#[derive(Default)]
pub(crate) struct Users(HashMap<u32, Vec<Weak<crate::behaviour::Behaviour>>>);

impl Users {
    /// A list is new.
    pub fn add(&mut self, behaviour: &Arc<crate::behaviour::Behaviour>) {
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
    pub fn remove(&mut self, behaviour: &Arc<crate::behaviour::Behaviour>) {
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
