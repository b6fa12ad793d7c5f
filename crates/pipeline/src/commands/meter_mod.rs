//! Changes and queries of meters (OpenFlow 1.3.5 section 7.3.4.4). Deleting a meter deletes the
//! rules that send packets through it.

use crate::commands::flow_mod::Begun;
use crate::commands::sweep::Used;
use crate::state::meters::{Entry, MAX_BANDS, MAX_METERS, specs, used};
use crate::{Clock, FlowModOutcome, Pipeline};
use openflow::action::Instruction;
use openflow::error::Error;
use openflow::meter::{self, MeterCommand, MeterConfig, MeterFlags, MeterMod, MeterStats};
use openflow::stats::MeterFeatures;
use qos::meter::{Count, Meter};
use std::sync::Arc;

impl Pipeline {
    /// Adds, changes or deletes meters (OpenFlow 1.3.5 section 6.5), with the errors of Open
    /// vSwitch 3.1. The outcome has the rules deleted with a meter. Deleting a meter that does not
    /// exist is no error. A changed meter begins with full buckets and counters at zero.
    pub fn meter_mod(&mut self, change: &MeterMod, now: Clock) -> Result<FlowModOutcome, Error> {
        match self.begin_meter_mod(change, now, usize::MAX)? {
            Begun::Done(outcome) => Ok(outcome),
            Begun::Long(sweep) => self.sweep_at_once(*sweep, now),
        }
    }

    /// Carries out a meter mod like [`Pipeline::meter_mod`], but only begins to delete meters that
    /// more than `budget` rules use, or if more than that must be searched: see
    /// [`crate::commands::sweep`].
    pub fn begin_meter_mod(
        &mut self,
        change: &MeterMod,
        now: Clock,
        budget: usize,
    ) -> Result<Begun<'static>, Error> {
        let number = change.config.meter;
        match change.command {
            MeterCommand::Delete => {
                let sweep = self.begin_deletion(Used::Meters(number));
                return self.sweep_or_begin(sweep, budget, now);
            }
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
        // As in Open vSwitch, a burst size of zero is replaced by the one chosen, which queries
        // show.
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
        Ok(Begun::Done(FlowModOutcome {
            removed: Vec::new(),
            changed: 1,
        }))
    }

    /// Deletes a meter that no rule uses any more, or for [`meter::ALL`] up to `budget` of those
    /// with numbers from `next` on; returns true when there are no more.
    pub(crate) fn delete_meters(
        &mut self,
        wanted: u32,
        next: &mut u32,
        budget: usize,
        outcome: &mut FlowModOutcome,
    ) -> bool {
        let (first, last) = match wanted {
            meter::ALL => (*next, u32::MAX),
            one => (one.max(*next), one),
        };
        let known = self.meters.known.range(first..).map(|(number, _)| *number);
        let wanted = known.take_while(|number| *number <= last);
        let numbers: Vec<u32> = wanted.take(budget).collect();
        for number in &numbers {
            if let Some(entry) = self.meters.known.remove(number) {
                outcome.changed += 1;
                let place = self.meters.place(*number);
                self.meters.deleted.push((place, entry.meter));
            }
        }
        *next = numbers.last().map_or(*next, |last| last.saturating_add(1));
        numbers.len() < budget
    }

    /// Checks that every meter that a rule would use exists.
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

    /// Returns the counters of a meter, or of all for [`meter::ALL`], by ascending number.
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

    /// Returns the bands of a meter, or of all for [`meter::ALL`], by ascending number.
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

/// Returns whether instructions use a meter, or any for [`meter::ALL`].
pub(crate) fn uses_meter(instructions: &[Instruction], number: u32) -> bool {
    let mut found = false;
    used(instructions, &mut |other| {
        found |= number == meter::ALL || other == number;
    });
    found
}

/// Returns the supported features of meters.
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
    // A rate of zero has no burst size that could be chosen for it; later versions of Open vSwitch
    // refuse it too.
    if config.bands.iter().any(|band| band.rate == 0) {
        return Err(Error::BadRate);
    }
    Ok(())
}
