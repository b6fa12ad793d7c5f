//! Routes (Open vSwitch: `lib/ovs-router.c`).
//!
//! Which route an address has is not only a matter of the longest prefix. In Open vSwitch a route
//! is a rule of a classifier, whose priority is its prefix's length (of 128 bits, also for IPv4),
//! 32 more when a command has added it, and 64 more when it says that the address is the machine's
//! own. So a route of a command beats each of the kernel's of the same family whose prefix is less
//! than 32 bits longer, and an IPv4 address of the machine is always its own. Where two priorities
//! are equal, the longer prefix wins (in Open vSwitch that is left open). And IPv4 packets never go
//! by an IPv6 route: in Open vSwitch `::/0` holds for them, too, with a source address that they
//! cannot have.

use crate::device::{self, Device, NoSource, Prefix};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The addresses it is for: those that begin with the first `len` bits of this one.
    pub prefix: IpAddr,
    /// How many bits of `prefix` count; IPv4: 0 to 32, IPv6: 0 to 128.
    pub len: u8,
    /// The device that packets leave by. It need not be one that tunnels can use.
    pub device: String,
    /// The router that packets go to first; None where the addresses are on the device's link.
    pub gateway: Option<IpAddr>,
    /// The address that packets come from, as [`Device::source_for`] tells it.
    pub source: IpAddr,
    /// The packets that it is for: those whose `pkt_mark` is exactly this.
    pub mark: u32,
    /// Whether its addresses are the machine's own.
    pub local: bool,
    /// Whether a command has added it (`ovs/route/add`), and not the kernel.
    pub user: bool,
}

impl Route {
    /// A route of a command (`user`) or of the kernel by `device`, with the source address that
    /// Open vSwitch picks. What it picks depends on all bits of `prefix`, also those beyond `len`.
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

    /// Its priority in Open vSwitch's classifier.
    fn priority(&self) -> u8 {
        self.prefix().len + self.kind().advantage()
    }

    fn kind(&self) -> Kind {
        match (self.local, self.user) {
            (true, _) => Kind::Local,
            (false, true) => Kind::User,
            (false, false) => Kind::Kernel,
        }
    }

    /// Whether the kernel's next list of routes takes its place.
    pub(crate) fn is_cached(&self) -> bool {
        self.kind() != Kind::User
    }
}

/// Where a route is from, as far as its priority goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Kernel,
    User,
    Local,
}

impl Kind {
    fn advantage(self) -> u8 {
        match self {
            Kind::Kernel => 0,
            Kind::User => 32,
            Kind::Local => 64,
        }
    }
}

/// All routes.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    table: Arc<Table>,
    /// The number of the next route that comes.
    next: u64,
}

/// Routes, to be looked up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Best ones first.
    levels: Vec<Level>,
}

/// Routes of one priority, family and length.
#[derive(Clone, Debug)]
struct Level {
    priority: u8,
    len: u8,
    v4: bool,
    /// By mark and the prefix's bits.
    routes: HashMap<(u32, u128), Numbered>,
}

/// A route with its place among those of its length: routes are shown as they have come.
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

    /// Where the level of such routes is, or would have to be.
    fn level(&self, priority: u8, prefix: Prefix) -> Result<usize, usize> {
        let wanted = (Reverse(priority), Reverse(prefix.len), prefix.v4);
        self.levels
            .binary_search_by_key(&wanted, |level| level.order())
    }

    /// Puts a route in the place of the one that differs from it in device, gateway and source
    /// only, and says whether it does.
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

    /// Whether both hold the same routes, whatever their order.
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
    /// None yet.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds a route, in the place of one from the same side (kernel or command) for the same
    /// addresses and mark, and says whether anything has changed. Bits of its prefix beyond `len`
    /// are cleared.
    pub fn insert(&mut self, mut route: Route) -> bool {
        (route.prefix, route.len) = route.prefix().parts();
        route.gateway = route.gateway.map(|gateway| gateway.to_canonical());
        route.source = route.source.to_canonical();
        let number = self.next;
        self.next += 1;
        Arc::make_mut(&mut self.table).insert(route, number)
    }

    /// Removes the route that a command has added for these addresses and this mark; false where
    /// there is none.
    pub fn remove_user(&mut self, prefix: IpAddr, len: u8, mark: u32) -> bool {
        let prefix = Prefix::new(prefix, len);
        let Ok(at) = self
            .table
            .level(prefix.len + Kind::User.advantage(), prefix)
        else {
            return false;
        };
        let key = (mark, prefix.bits);
        // Looked at before the table is copied, as views may hold it.
        let is_user = |found: &Numbered| found.route.kind() == Kind::User;
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

    /// Puts the kernel's routes in the place of those that it had, and says whether anything has
    /// changed. Of routes for the same addresses the first counts, so the kernel's best one must
    /// come first.
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

    /// The route of packets to `dst` with `pkt_mark` `mark`. Which one that is: see the module's
    /// head.
    pub fn lookup(&self, dst: IpAddr, mark: u32) -> Option<&Route> {
        self.table.lookup(dst, mark)
    }

    /// All routes, in the order in which `ovs/route/show` shows them: those of one length together,
    /// the length with the highest priority first, and as they came inside.
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

    /// Whether any route leads by a device. Open vSwitch takes tunnels' packets in only at the
    /// addresses of such devices.
    pub fn leads_by(&self, device: &str) -> bool {
        self.numbered()
            .any(|numbered| numbered.route.device == device)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table
            .levels
            .iter()
            .map(|level| level.routes.len())
            .sum()
    }

    /// Whether there is none.
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
