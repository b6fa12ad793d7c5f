//! MAC addresses of neighbours (Open vSwitch: `lib/tnl-neigh-cache.c`).

use crate::Mac;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// How long a neighbour is kept after it was last heard of, unless a command says otherwise
/// (`NEIGH_ENTRY_DEFAULT_IDLE_TIME_MS`), in ms.
pub const DEFAULT_AGEING_MS: u64 = 15 * 60 * 1000;

/// The longest ageing time that a command may set (`NEIGH_ENTRY_MAX_AGING_TIME_S`), in seconds.
pub const MAX_AGEING_S: u32 = 3600;

/// Most neighbours per device, so that nobody on its link can exhaust memory.
pub const MOST_PER_DEVICE: usize = 4096;

/// Shortest time between two requests for the same neighbour, in ms.
const LEAST_PAUSE_MS: u64 = 1000;

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The device on whose link it is.
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: Mac,
    /// When it was last heard of, in ms.
    pub confirmed_ms: u64,
    /// When it expires, in ms.
    pub expires_ms: u64,
}

impl Neighbour {
    /// Returns whether it has expired (`STALE` in `tnl/neigh/show`); [`Neighbours::age`] removes
    /// it.
    pub fn is_stale(&self, now_ms: u64) -> bool {
        self.expires_ms <= now_ms
    }
}

/// All neighbours.
#[derive(Clone, Debug)]
pub struct Neighbours {
    devices: BTreeMap<String, Link>,
    ageing_ms: u64,
    most: usize,
}

/// The neighbours of one device.
#[derive(Clone, Debug, Default)]
struct Link {
    entries: HashMap<IpAddr, Entry>,
    /// When each was last heard of, oldest first. They also expire in this order, since a shorter
    /// ageing time applies to all alike.
    by_age: BTreeSet<(u64, IpAddr)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Mac,
    confirmed_ms: u64,
    expires_ms: u64,
    /// When to send another request for it.
    asks_ms: u64,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        Neighbours::new()
    }
}

impl Neighbours {
    /// Makes an empty table.
    pub fn new() -> Neighbours {
        Neighbours::with_limit(MOST_PER_DEVICE)
    }

    /// Makes an empty table with at most `most` (at least 1) neighbours per device.
    pub fn with_limit(most: usize) -> Neighbours {
        Neighbours {
            devices: BTreeMap::new(),
            ageing_ms: DEFAULT_AGEING_MS,
            most: most.max(1),
        }
    }

    /// [`Neighbours::learn`] for a neighbour that was not asked for. If it is new and half of the
    /// places are taken, it is not learned: so nobody on the link can displace the neighbours that
    /// packets go to.
    pub fn overhear(&mut self, device: &str, address: IpAddr, mac: Mac, now_ms: u64) -> bool {
        let link = self.devices.get(device);
        let is_new = |link: &&Link| !link.entries.contains_key(&address.to_canonical());
        let full = link.filter(is_new);
        if full.is_some_and(|link| link.entries.len() >= self.most / 2) {
            return false;
        }
        self.learn(device, address, mac, now_ms)
    }

    /// Records that `address` has been heard of on a device's link, with this MAC address. If the
    /// device has its maximum of neighbours, the one not heard of for longest is removed. Returns
    /// whether anything that workers see has changed.
    pub fn learn(&mut self, device: &str, address: IpAddr, mac: Mac, now_ms: u64) -> bool {
        let address = address.to_canonical();
        let (most, ageing_ms) = (self.most, self.ageing_ms);
        let link = match self.devices.get_mut(device) {
            Some(link) => link,
            None => self.devices.entry(device.to_owned()).or_default(),
        };
        let old = link.remove(address);
        while link.entries.len() >= most {
            let Some((_, oldest)) = link.by_age.first().copied() else {
                break;
            };
            link.remove(oldest);
        }
        link.put(address, Entry::new(mac, now_ms, ageing_ms));
        old.is_none_or(|old| old.mac != mac)
    }

    /// Implements `tnl/neigh/set`. As in Open vSwitch, the entry ages like any other.
    pub fn set(&mut self, device: &str, address: IpAddr, mac: Mac, now_ms: u64) -> bool {
        self.learn(device, address, mac, now_ms)
    }

    /// Records that a neighbour is in use, which keeps it from ageing, as in Open vSwitch. Does
    /// nothing if it is unknown.
    pub fn touch(&mut self, device: &str, address: IpAddr, now_ms: u64) {
        let Some(link) = self.devices.get_mut(device) else {
            return;
        };
        let address = address.to_canonical();
        let known = |entry: &Entry| now_ms < entry.expires_ms && entry.confirmed_ms < now_ms;
        if link.entries.get(&address).is_some_and(known)
            && let Some(old) = link.remove(address)
        {
            link.put(address, Entry::new(old.mac, now_ms, self.ageing_ms));
        }
    }

    /// Removes the neighbours of a device, or all; returns whether there were any.
    pub fn flush(&mut self, device: Option<&str>) -> bool {
        match device {
            Some(device) => self.devices.remove(device).is_some(),
            None => !std::mem::take(&mut self.devices).is_empty(),
        }
    }

    /// Removes expired neighbours; returns whether there were any.
    pub fn age(&mut self, now_ms: u64) -> bool {
        let mut changed = false;
        self.devices.retain(|_, link| {
            while let Some((_, address)) = link.by_age.first().copied() {
                if now_ms < link.entries[&address].expires_ms {
                    break;
                }
                link.remove(address);
                changed = true;
            }
            !link.entries.is_empty()
        });
        changed
    }

    /// Returns the neighbours with at most a third of their time left, for the caller to request
    /// again. Until heard of, each is returned again after a thirtieth of the ageing time (at least
    /// a second).
    pub fn due_for_refresh(&mut self, now_ms: u64) -> Vec<Neighbour> {
        let third = self.ageing_ms / 3;
        let pause = (self.ageing_ms / 30).max(LEAST_PAUSE_MS);
        let mut due = Vec::new();
        for (device, link) in &mut self.devices {
            for (_, address) in &link.by_age {
                let Some(entry) = link.entries.get_mut(address) else {
                    continue;
                };
                if now_ms + third < entry.expires_ms {
                    break;
                }
                if entry.expires_ms <= now_ms || now_ms < entry.asks_ms {
                    continue;
                }
                entry.asks_ms = now_ms + pause;
                due.push(entry.shown(device, *address));
            }
        }
        due
    }

    /// Iterates over all neighbours, by device and address.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> {
        self.devices.iter().flat_map(|(device, link)| {
            let mut all: Vec<Neighbour> = link
                .entries
                .iter()
                .map(|(address, entry)| entry.shown(device, *address))
                .collect();
            all.sort_by_key(|neighbour| neighbour.address);
            all
        })
    }

    /// Returns a neighbour's MAC address, if it is known and has not expired.
    pub fn mac(&self, device: &str, address: IpAddr, now_ms: u64) -> Option<Mac> {
        let entry = self
            .devices
            .get(device)?
            .entries
            .get(&address.to_canonical())?;
        (now_ms < entry.expires_ms).then_some(entry.mac)
    }

    /// Returns the number of neighbours.
    pub fn len(&self) -> usize {
        self.devices.values().map(|link| link.entries.len()).sum()
    }

    /// Returns whether there are no neighbours.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns how long neighbours are kept after they were last heard of, in ms.
    pub fn ageing_ms(&self) -> u64 {
        self.ageing_ms
    }

    /// Sets how long neighbours are kept after they were last heard of, in ms. A shorter time
    /// applies to known neighbours, too; a longer one does not, as in Open vSwitch.
    pub fn set_ageing(&mut self, ageing_ms: u64, now_ms: u64) {
        self.ageing_ms = ageing_ms;
        for link in self.devices.values_mut() {
            for entry in link.entries.values_mut() {
                entry.expires_ms = entry.expires_ms.min(now_ms + ageing_ms);
            }
        }
    }

    /// Returns the MAC addresses of one device's neighbours.
    pub(crate) fn of(&self, device: &str) -> HashMap<IpAddr, Mac> {
        let link = self.devices.get(device);
        link.into_iter()
            .flat_map(|link| &link.entries)
            .map(|(address, entry)| (*address, entry.mac))
            .collect()
    }
}

impl Link {
    fn remove(&mut self, address: IpAddr) -> Option<Entry> {
        let old = self.entries.remove(&address)?;
        self.by_age.remove(&(old.confirmed_ms, address));
        Some(old)
    }

    fn put(&mut self, address: IpAddr, entry: Entry) {
        self.by_age.insert((entry.confirmed_ms, address));
        self.entries.insert(address, entry);
    }
}

impl Entry {
    fn new(mac: Mac, now_ms: u64, ageing_ms: u64) -> Entry {
        Entry {
            mac,
            confirmed_ms: now_ms,
            expires_ms: now_ms + ageing_ms,
            asks_ms: 0,
        }
    }

    fn shown(&self, device: &str, address: IpAddr) -> Neighbour {
        Neighbour {
            device: device.to_owned(),
            address,
            mac: self.mac,
            confirmed_ms: self.confirmed_ms,
            expires_ms: self.expires_ms,
        }
    }
}
