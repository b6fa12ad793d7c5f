//! How workers find meters.
//!
//! A rule's steps hold a [`MeterRef`]: a slot for one meter number of a bridge, which holds a meter
//! or none. Adding, changing and deleting a meter changes what the slot holds. That takes effect at
//! once, also for bursts under way; a new configuration begins with full buckets and counters at
//! zero. The replaced meter is freed when no worker can be using it.

use crate::epoch::{Domain, Guard};
use qos::meter::Meter;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

#[derive(Debug)]
struct Slot {
    number: u32,
    /// From `Arc::into_raw`, or null.
    current: AtomicPtr<Meter>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let current = *self.current.get_mut();
        if !current.is_null() {
            // SAFETY: made by `Arc::into_raw` in `put`, and taken back once: nobody else can hold
            // this place now. Steps that refer to a place are themselves freed only
            // when no worker can run them.
            drop(unsafe { Arc::from_raw(current) });
        }
    }
}

/// The slot of a meter number on a bridge. Two are equal when their numbers are: steps of different
/// bridges are not compared.
#[derive(Clone, Debug)]
pub struct MeterRef(Arc<Slot>);

impl PartialEq for MeterRef {
    fn eq(&self, other: &MeterRef) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for MeterRef {}

impl Hash for MeterRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}

impl MeterRef {
    /// Creates an empty slot: packets pass, uncounted.
    pub fn new(number: u32) -> MeterRef {
        MeterRef(Arc::new(Slot {
            number,
            current: AtomicPtr::default(),
        }))
    }

    /// Returns the meter's number.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns whether there is no other reference to this slot.
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns the current meter, for as long as the burst lasts.
    #[inline]
    pub fn get<'g>(&self, guard: &'g Guard<'_>) -> Option<&'g Meter> {
        let _ = guard;
        // SAFETY: null, or from `Arc::into_raw` in `put`. A meter that is replaced is handed to
        // `Domain::retire`, which keeps it while a guard from before lives; a place goes
        // with the last steps that name it, which are retired likewise.
        unsafe { self.0.current.load(Ordering::Acquire).as_ref() }
    }

    /// Puts a meter into the slot, or empties it; the caller is the domain's one writer.
    pub fn put(&self, domain: &Domain, meter: Option<Arc<Meter>>) {
        let new = meter.map_or(std::ptr::null_mut(), |meter| {
            Arc::into_raw(meter).cast_mut()
        });
        let old = self.0.current.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: made by `Arc::into_raw` in an earlier `put`, and unlinked by the swap, so
            // taken back once; `retire` waits for those who use it.
            domain.retire(Box::new(unsafe { Arc::from_raw(old) }));
        }
    }

    /// Empties the slot if it still holds this very meter.
    pub fn take_out(&self, domain: &Domain, meter: &Arc<Meter>) {
        if std::ptr::eq(self.0.current.load(Ordering::Acquire), Arc::as_ptr(meter)) {
            self.put(domain, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qos::meter::Unit;

    #[test]
    fn a_meter_that_is_replaced_lives_until_bursts_have_ended() {
        let domain = Arc::new(Domain::default());
        let mut reader = domain.reader().unwrap();
        let place = MeterRef::new(5);
        let first = Arc::new(Meter::new(Unit::Packets, &[], 0));
        place.put(&domain, Some(Arc::clone(&first)));
        {
            let guard = reader.begin();
            let seen = place.get(&guard).unwrap();
            place.put(&domain, Some(Arc::new(Meter::new(Unit::Packets, &[], 0))));
            domain.publish();
            assert_eq!(domain.collect(), 1);
            seen.police(60, 0);
        }
        assert_eq!(Arc::strong_count(&first), 2);
        reader.begin();
        assert_eq!(domain.collect(), 0);
        assert_eq!((Arc::strong_count(&first), first.met().packets), (1, 1));
        // A late deletion does not remove a newer meter.
        place.take_out(&domain, &first);
        assert!(place.get(&reader.begin()).is_some());
    }
}
