//! The network that tunnels run over: the bridges' local ports with the kernel's addresses, routes
//! of the kernel and of commands, and neighbours.
//!
//! Every change makes a new [`View`], which is published to workers in the same way as ports; they
//! use it from their next turn on. A worker that lacks a next hop's MAC address asks for it here.
//! The ARP request or neighbour solicitation is sent by the rules of the underlay's bridge, as in
//! Open vSwitch; workers report the answer when it is sent to the bridge's local port.

use super::database::devices::listening;
use super::{Bridge, Switch};
use crate::config::ofport;
use ports::RouteEvents;
use program::actions::{Op, OpList};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use underlay::{Device, Mac, Neighbour, Neighbours, Route, Routes, View};

/// Shortest time between two requests for one neighbour, ms.
const ASK_MS: u64 = 200;
/// Most requested neighbours that are remembered.
const ASKED_MAX: usize = 4096;
/// Most neighbours of those that will soon expire that are asked for again at a time, about once a
/// second.
const REFRESHED_MAX: usize = 64;

/// Shortest time between two updates of neighbours to workers.
const NEIGHBOURS_PAUSE: Duration = Duration::from_millis(10);
/// Most messages of the kernel read at a time.
const NEWS: usize = 256;
/// Shortest time between two readings of routes.
const PAUSE: Duration = Duration::from_millis(20);
/// Factor by which the pause is longer than the reading before it.
const PAUSE_TIMES: u32 = 4;
/// Longest pause.
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// Pause before listening or reading is tried again after a failure.
const AGAIN: Duration = Duration::from_secs(1);

/// State of the network that tunnels run over.
#[derive(Default)]
pub struct Underlay {
    state: RefCell<State>,
    /// Notified when neighbours have changed.
    news: tokio::sync::Notify,
    /// Whether routes or devices have changed since [`Switch::take_changed_ways`].
    ways_changed: Cell<bool>,
}

#[derive(Default)]
struct State {
    routes: Routes,
    neighbours: Neighbours,
    devices: Vec<Device>,
    /// Addresses of devices by their names: the kernel's, and those that commands gave to dummies.
    kernel_addresses: Addresses,
    dummy_addresses: Addresses,
    generation: u64,
    /// When each neighbour was last asked for, and when this map was last cleaned up.
    asked: HashMap<(String, IpAddr), u64>,
    pruned_ms: u64,
    /// The workers' present view.
    view: Option<Arc<View>>,
}

type Addresses = BTreeMap<String, Vec<(IpAddr, u8)>>;

impl State {
    /// Returns the addresses of a device.
    fn addresses(&self, device: &str) -> Vec<(IpAddr, u8)> {
        let of = |all: &Addresses| all.get(device).cloned().unwrap_or_default();
        let mut addresses = of(&self.kernel_addresses);
        addresses.extend(of(&self.dummy_addresses));
        addresses
    }

    /// Keeps neighbours from ageing to which packets were sent.
    fn touch_used(&mut self, now_ms: u64) {
        let Some(view) = self.view.clone() else {
            return;
        };
        for (device, address) in view.take_used() {
            self.neighbours.touch(device, address, now_ms);
        }
    }

    fn view(&mut self) -> View {
        self.generation += 1;
        View::new(
            self.generation,
            &self.routes,
            &self.neighbours,
            &self.devices,
        )
    }
}

impl Underlay {
    /// Runs `act` on the routes.
    pub fn with_routes<R>(&self, act: impl FnOnce(&Routes) -> R) -> R {
        act(&self.state.borrow().routes)
    }

    /// Runs `act` on the neighbours.
    pub fn with_neighbours<R>(&self, act: impl FnOnce(&Neighbours) -> R) -> R {
        act(&self.state.borrow().neighbours)
    }

    /// Returns the addresses of a device.
    pub fn addresses(&self, device: &str) -> Vec<(IpAddr, u8)> {
        self.state.borrow().addresses(device)
    }

    /// Returns the devices used by some route.
    pub fn devices_with_routes(&self) -> Vec<Device> {
        let state = self.state.borrow();
        let devices = state.devices.iter();
        let led_by = devices.filter(|device| state.routes.leads_by(&device.name));
        led_by.cloned().collect()
    }
}

impl Switch {
    /// Changes routes, for a command.
    pub fn change_routes<R>(&self, act: impl FnOnce(&mut Routes) -> R) -> R {
        let result = act(&mut self.underlay.state.borrow_mut().routes);
        self.underlay.ways_changed.set(true);
        self.publish_underlay();
        result
    }

    /// Returns whether the ways by which tunnels' packets leave may have changed since it was last
    /// called.
    pub fn take_changed_ways(&self) -> bool {
        self.underlay.ways_changed.take()
    }

    /// Changes neighbours, for a command.
    pub fn change_neighbours<R>(&self, act: impl FnOnce(&mut Neighbours) -> R) -> R {
        let result = act(&mut self.underlay.state.borrow_mut().neighbours);
        self.publish_underlay();
        result
    }

    /// Gives a dummy device an address, for a command.
    pub fn add_dummy_address(&self, device: &str, address: IpAddr, len: u8) {
        let mut state = self.underlay.state.borrow_mut();
        let addresses = state.dummy_addresses.entry(device.to_owned()).or_default();
        if !addresses.contains(&(address, len)) {
            addresses.push((address, len));
        }
        drop(state);
        self.refresh_devices();
    }

    /// Sets the kernel's addresses and routes.
    pub fn set_kernel_routes(&self, addresses: Addresses, routes: Vec<Route>) {
        let changed = self
            .underlay
            .state
            .borrow_mut()
            .routes
            .replace_kernel(routes);
        if changed {
            self.underlay.ways_changed.set(true);
        }
        let published = self.set_kernel_addresses(addresses);
        if changed && !published {
            self.publish_underlay();
        }
    }

    /// Sets the kernel's addresses. Returns whether workers have been told of all changes.
    fn set_kernel_addresses(&self, addresses: Addresses) -> bool {
        let mut state = self.underlay.state.borrow_mut();
        let other = state.kernel_addresses != addresses;
        state.kernel_addresses = addresses;
        drop(state);
        other && self.refresh_devices()
    }

    /// Reads the kernel's addresses now, since what follows it reads them some time after each
    /// change.
    ///
    /// # Errors
    ///
    /// Those of the system. The addresses stay as they were.
    pub async fn read_kernel_addresses(&self) -> std::io::Result<()> {
        let read = tokio::task::spawn_blocking(kernel_addresses).await?;
        self.set_kernel_addresses(read.map_err(std::io::Error::from_raw_os_error)?);
        Ok(())
    }

    /// Updates the list of bridges and the addresses of their local ports. Returns whether
    /// something has changed.
    pub fn refresh_devices(&self) -> bool {
        let mut devices = Vec::new();
        for bridge in self.bridges.borrow().values() {
            if let Some(device) = bridge.underlay_device(self) {
                devices.push(device);
            }
        }
        let mut state = self.underlay.state.borrow_mut();
        if state.devices == devices {
            return false;
        }
        state.devices = devices;
        drop(state);
        self.underlay.ways_changed.set(true);
        self.publish_underlay();
        true
    }

    fn publish_underlay(&self) {
        let mut state = self.underlay.state.borrow_mut();
        // Which neighbours the old view has used is lost with it, so note that first.
        state.touch_used(self.clock.now_ms());
        let view = Arc::new(state.view());
        state.view = Some(Arc::clone(&view));
        drop(state);
        let _ = self.with_datapath(|datapath| datapath.set_underlay(view));
    }

    /// Asks for a neighbour's address in a bridge, unless that was done recently.
    pub(super) fn ask_neighbour(&self, bridge: &Bridge, address: IpAddr, source: IpAddr) {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.state.borrow_mut();
        let Some(device) = state
            .devices
            .iter()
            .find(|device| device.name == bridge.name)
        else {
            return;
        };
        let (mac, key) = (device.mac, (device.name.clone(), address));
        let early = |asked: &u64| now_ms.saturating_sub(*asked) < ASK_MS;
        if state.asked.get(&key).is_some_and(early) {
            return;
        }
        if state.asked.len() >= ASKED_MAX && now_ms.saturating_sub(state.pruned_ms) >= ASK_MS {
            state.pruned_ms = now_ms;
            state.asked.retain(|_, asked| early(asked));
        }
        if state.asked.len() >= ASKED_MAX {
            // Workers will ask again.
            return;
        }
        state.asked.insert(key, now_ms);
        drop(state);
        if let Some(question) = underlay::discovery::request(mac, source, address) {
            bridge.send_by_rules(question);
        }
    }

    /// Notes a neighbour's address from a packet, whether it was asked for or not.
    pub(super) fn neighbour_seen(&self, bridge: &Bridge, address: IpAddr, mac: Mac, asked: bool) {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.state.borrow_mut();
        let neighbours = &mut state.neighbours;
        let news = match asked {
            true => neighbours.learn(&bridge.name, address, mac, now_ms),
            false => neighbours.overhear(&bridge.name, address, mac, now_ms),
        };
        if news {
            self.underlay.news.notify_one();
        }
    }

    /// Tells workers of changed neighbours, with a limited rate, since others decide how often they
    /// change.
    pub async fn tell_neighbours(self: Rc<Self>) -> anyhow::Result<()> {
        loop {
            self.underlay.news.notified().await;
            self.publish_underlay();
            tokio::time::sleep(NEIGHBOURS_PAUSE).await;
        }
    }

    /// Removes neighbours that have been silent and unused for long, and asks for those again that
    /// will soon have been: first packets after a pause then need not wait. Called about once a
    /// second.
    pub fn age_neighbours(&self) {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.state.borrow_mut();
        state.touch_used(now_ms);
        if state.neighbours.age(now_ms) {
            self.underlay.news.notify_one();
        }
        let mut due = state.neighbours.due_for_refresh(now_ms);
        due.truncate(REFRESHED_MAX);
        let source = |neighbour: &Neighbour| {
            let mut devices = state.devices.iter();
            let device = devices.find(|device| device.name == neighbour.device)?;
            device.source_for(neighbour.address, None).ok()
        };
        let asks: Vec<_> = due
            .into_iter()
            .filter_map(|neighbour| Some((source(&neighbour)?, neighbour)))
            .collect();
        drop(state);
        for (
            source,
            Neighbour {
                device, address, ..
            },
        ) in asks
        {
            let bridge = self.bridges.borrow().get(&device).cloned();
            if let Some(bridge) = bridge {
                self.ask_neighbour(&bridge, address, source);
            }
        }
    }
}

/// Reads the kernel's addresses by device. The error is the system's `errno`.
fn kernel_addresses() -> Result<Addresses, i32> {
    let mut addresses = Addresses::new();
    for found in ports::addresses()? {
        let of = addresses.entry(found.device).or_default();
        of.push((found.address, found.len));
    }
    Ok(addresses)
}

/// Reads the kernel's addresses by device, and its routes with the source addresses that Open
/// vSwitch picks. The time depends on the number of routes, so this is not for the control thread.
/// The error is the system's `errno`.
fn read_kernel() -> Result<(Addresses, Vec<Route>), i32> {
    let addresses = kernel_addresses()?;
    let mut routes = Vec::new();
    for found in ports::kernel_routes()? {
        let own = addresses.get(&found.device).map_or(&[][..], Vec::as_slice);
        let picked = underlay::source_among(own, found.prefix, found.gateway);
        let Some(source) = found.source.or(picked.ok()) else {
            continue;
        };
        routes.push(Route {
            prefix: found.prefix,
            len: found.len,
            device: found.device,
            gateway: found.gateway,
            source,
            mark: found.mark,
            local: found.local,
            user: false,
        });
    }
    Ok((addresses, routes))
}

impl Switch {
    /// Follows the kernel's addresses and routes until the daemon ends.
    pub async fn follow_routes(self: Rc<Self>) -> anyhow::Result<()> {
        let mut events = listening(RouteEvents::new, AGAIN, |error| {
            tracing::warn!(target: "route_table", "no news of routes: {error}; tunnels go by none");
        })
        .await;
        let mut changed = true;
        loop {
            let began = Instant::now();
            if std::mem::take(&mut changed) {
                match tokio::task::spawn_blocking(read_kernel).await? {
                    Ok((addresses, routes)) => self.set_kernel_routes(addresses, routes),
                    Err(error) => {
                        let error = std::io::Error::from_raw_os_error(error);
                        tracing::warn!(target: "route_table", "cannot read routes: {error}");
                        changed = true;
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                }
            }
            // Others decide how often routes change, so the pause is proportional to the work.
            let pause = (began.elapsed() * PAUSE_TIMES).clamp(PAUSE, PAUSE_MOST);
            tokio::time::sleep(pause).await;
            let mut guard = events.readable_mut().await?;
            if guard.get_inner_mut().drain(NEWS, &mut changed) {
                guard.clear_ready();
            }
        }
    }
}

impl Bridge {
    /// Returns its local port as a device for tunnels.
    fn underlay_device(&self, switch: &Switch) -> Option<Device> {
        let ports = self.ports.borrow();
        let local = ports.get(&ofport::LOCAL)?;
        // Without an address it does not belong to the underlay, and no neighbours are learned
        // there.
        let addresses = switch.underlay.addresses(&local.config.interface_name);
        (!addresses.is_empty()).then(|| Device {
            name: self.name.clone(),
            id: self.id.underlay_id(),
            mac: local.info.mac,
            addresses,
            mtu: local.info.mtu,
        })
    }

    /// Sends a packet by the bridge's rules, as if it came from the local port.
    fn send_by_rules(&self, data: Vec<u8>) {
        let ops = Arc::new(OpList::new(vec![Op::Resubmit {
            in_port: None,
            table: Some(0),
        }]));
        let sent = self.switch().with_datapath(|datapath| {
            datapath.packet_out_with(self.id, openflow::port::LOCAL, None, None, data, ops)
        });
        if let Ok(Err(error)) = sent {
            tracing::debug!(target: "tunnel", "{}: no question for a neighbour: {error}", self.name);
        }
    }
}
