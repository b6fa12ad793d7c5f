//! Routes (Open vSwitch: `lib/ovs-router.c`).
//!
//! The longest prefix alone does not decide which route is used. In Open vSwitch a route is a rule
//! of a classifier, whose priority is its prefix length (out of 128 bits, also for IPv4), plus 32
//! if a command has added it, plus 64 if it is for one of the machine's own addresses. So a
//! command's route beats each of the kernel's of the same family whose prefix is less than 32 bits
//! longer, and an IPv4 address of the machine is always local. Of equal priorities, the longer
//! prefix wins (Open vSwitch leaves that undefined). Unlike in Open vSwitch, IPv4 packets never use
//! an IPv6 route: there `::/0` matches them, too, with a source address that they cannot have.

use crate::device::{self, Device, NoSource, Prefix};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination: addresses that begin with the first `len` bits of this one.
    pub prefix: IpAddr,
    /// Number of significant bits of `prefix`; IPv4: 0 to 32, IPv6: 0 to 128.
    pub len: u8,
    /// The device that packets leave by. Tunnels may not be able to use it.
    pub device: String,
    /// The router that packets go to first; None if the destination is on the device's link.
    pub gateway: Option<IpAddr>,
    /// Source address of packets, as [`Device::source_for`] returns it.
    pub source: IpAddr,
    /// The `pkt_mark` that packets must have exactly.
    pub mark: u32,
    /// Whether its addresses are the machine's own.
    pub local: bool,
    /// Whether a command has added it (`ovs/route/add`), rather than the kernel.
    pub user: bool,
}

impl Route {
    /// Makes a route of a command (`user`) or of the kernel by `device`, with the source address
    /// that Open vSwitch picks. That depends on all bits of `prefix`, also those beyond `len`.
    pub fn by(
        device: &Device,
        prefix: IpAddr,
        len: u8,
        gateway: Option<IpAddr>,
        mark: u32,
        user: bool,
    ) -> Result<Route, NoSource> {
        Ok(Route {
            prefix,
            len,
            device: device.name.clone(),
            gateway,
            source: device.source_for(prefix, gateway)?,
            mark,
            local: false,
            user,
        })
    }

    fn prefix(&self) -> Prefix {
        Prefix::new(self.prefix, self.len)
    }

    /// Returns its priority in Open vSwitch's classifier.
    fn priority(&self) -> u8 {
        self.prefix().len + self.kind().advantage()
    }

    fn kind(&self) -> RouteOrigin {
        match (self.local, self.user) {
            (true, _) => RouteOrigin::Local,
            (false, true) => RouteOrigin::User,
            (false, false) => RouteOrigin::Kernel,
        }
    }

    /// Returns whether the kernel's next list of routes replaces it.
    pub(crate) fn is_cached(&self) -> bool {
        self.kind() != RouteOrigin::User
    }
}

/// Origin of a route, as far as its priority depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RouteOrigin {
    Kernel,
    User,
    Local,
}

impl RouteOrigin {
    fn advantage(self) -> u8 {
        match self {
            RouteOrigin::Kernel => 0,
            RouteOrigin::User => 32,
            RouteOrigin::Local => 64,
        }
    }
}

/// All routes.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    table: Arc<Table>,
    /// Number of the next route added.
    next: u64,
}

/// The routes, for lookup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Best first.
    levels: Vec<Level>,
}

/// Routes of one priority, family and prefix length.
#[derive(Clone, Debug)]
struct Level {
    priority: u8,
    len: u8,
    v4: bool,
    /// By mark and the prefix's bits.
    routes: HashMap<(u32, u128), Numbered>,
}

/// A route with its sequence number: routes of equal length are shown in the order of their
/// addition.
#[derive(Clone, Debug)]
struct Numbered {
    number: u64,
    route: Route,
}

impl Level {
    fn order(&self) -> (Reverse<u8>, Reverse<u8>, bool) {
        (Reverse(self.priority), Reverse(self.len), self.v4)
    }
}

impl Table {
    pub(crate) fn lookup(&self, destination: IpAddr, mark: u32) -> Option<&Route> {
        let to = Prefix::new(destination, 128);
        self.levels
            .iter()
            .filter(|level| level.v4 == to.v4)
            .find_map(|level| level.routes.get(&(mark, to.bits & device::mask(level.len))))
            .map(|numbered| &numbered.route)
    }

    /// Returns the index of the level of such routes, or where to insert it.
    fn level(&self, priority: u8, prefix: Prefix) -> Result<usize, usize> {
        let wanted = (Reverse(priority), Reverse(prefix.len), prefix.v4);
        self.levels
            .binary_search_by_key(&wanted, |level| level.order())
    }

    /// Inserts a route, replacing one that differs only in device, gateway and source; returns
    /// whether anything has changed.
    fn insert(&mut self, route: Route, number: u64) -> bool {
        let (prefix, priority) = (route.prefix(), route.priority());
        let at = self.level(priority, prefix).unwrap_or_else(|at| {
            let level = Level {
                priority,
                len: prefix.len,
                v4: prefix.v4,
                routes: HashMap::new(),
            };
            self.levels.insert(at, level);
            at
        });
        let key = (route.mark, prefix.bits);
        match self.levels[at].routes.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Numbered { number, route });
                true
            }
            Entry::Occupied(mut place) => {
                let old = std::mem::replace(&mut place.get_mut().route, route);
                old != place.get().route
            }
        }
    }

    /// Returns whether both hold the same routes, in any order.
    fn is_same(&self, other: &Table) -> bool {
        let same_level = |(a, b): (&Level, &Level)| {
            let in_other = |(key, one): (&(u32, u128), &Numbered)| {
                b.routes
                    .get(key)
                    .is_some_and(|other| other.route == one.route)
            };
            a.order() == b.order()
                && a.routes.len() == b.routes.len()
                && a.routes.iter().all(in_other)
        };
        self.levels.len() == other.levels.len()
            && self.levels.iter().zip(&other.levels).all(same_level)
    }
}

impl Routes {
    /// Makes an empty table.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds a route, replacing one from the same origin (kernel or command) for the same addresses
    /// and mark; returns whether anything has changed. Bits of its prefix beyond `len` are cleared.
    pub fn insert(&mut self, mut route: Route) -> bool {
        (route.prefix, route.len) = route.prefix().parts();
        route.gateway = route.gateway.map(|gateway| gateway.to_canonical());
        route.source = route.source.to_canonical();
        let number = self.next;
        self.next += 1;
        Arc::make_mut(&mut self.table).insert(route, number)
    }

    /// Removes a command's route for these addresses and this mark; returns false if there is none.
    pub fn remove_user(&mut self, prefix: IpAddr, len: u8, mark: u32) -> bool {
        let prefix = Prefix::new(prefix, len);
        let Ok(at) = self
            .table
            .level(prefix.len + RouteOrigin::User.advantage(), prefix)
        else {
            return false;
        };
        let key = (mark, prefix.bits);
        // Checked before the table is copied, since views may share it.
        let is_user = |found: &Numbered| found.route.kind() == RouteOrigin::User;
        if !self.table.levels[at].routes.get(&key).is_some_and(is_user) {
            return false;
        }
        let table = Arc::make_mut(&mut self.table);
        table.levels[at].routes.remove(&key);
        if table.levels[at].routes.is_empty() {
            table.levels.remove(at);
        }
        true
    }

    /// Replaces the kernel's routes; returns whether anything has changed. Of routes for the same
    /// addresses the first is used, so the kernel's best one must come first.
    pub fn replace_kernel(&mut self, routes: Vec<Route>) -> bool {
        let mut new = Routes {
            table: Arc::default(),
            next: 0,
        };
        let mut kept: Vec<&Numbered> = self
            .numbered()
            .filter(|numbered| !numbered.route.is_cached())
            .collect();
        kept.sort_by_key(|numbered| numbered.number);
        for numbered in kept {
            new.insert(numbered.route.clone());
        }
        for mut route in routes {
            route.user = false;
            let prefix = route.prefix();
            let known = new.table.level(route.priority(), prefix).is_ok_and(|at| {
                let key = (route.mark, prefix.bits);
                new.table.levels[at].routes.contains_key(&key)
            });
            if !known {
                new.insert(route);
            }
        }
        if new.table.is_same(&self.table) {
            return false;
        }
        *self = new;
        true
    }

    /// Returns the route of packets to `dst` with `pkt_mark` `mark`; the module documentation
    /// explains the order.
    pub fn lookup(&self, dst: IpAddr, mark: u32) -> Option<&Route> {
        self.table.lookup(dst, mark)
    }

    /// Iterates over all routes in the order of `ovs/route/show`: grouped by prefix length, the
    /// length with the highest priority first, and within a length in the order of their addition.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        let mut highest = [0; 129];
        for level in &self.table.levels {
            let highest = &mut highest[usize::from(level.len)];
            *highest = level.priority.max(*highest);
        }
        let mut all: Vec<&Numbered> = self.numbered().collect();
        all.sort_by_key(|numbered| {
            let len = numbered.route.prefix().len;
            let highest = highest[usize::from(len)];
            (Reverse(highest), Reverse(len), numbered.number)
        });
        all.into_iter().map(|numbered| &numbered.route)
    }

    /// Returns whether any route leads by a device. Open vSwitch receives tunnel packets only at
    /// the addresses of such devices.
    pub fn leads_by(&self, device: &str) -> bool {
        self.numbered()
            .any(|numbered| numbered.route.device == device)
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.table
            .levels
            .iter()
            .map(|level| level.routes.len())
            .sum()
    }

    /// Returns whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.table.levels.is_empty()
    }

    fn numbered(&self) -> impl Iterator<Item = &Numbered> {
        self.table
            .levels
            .iter()
            .flat_map(|level| level.routes.values())
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.clone()
    }
}
