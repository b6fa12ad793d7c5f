//! The network that tunnels run over: the bridges' local ports with the kernel's addresses, the
//! kernel's routes and those of commands, and neighbours.
//!
//! Every change makes a new [`View`], which is published to workers as ports are; they use it from
//! their next turn on. A worker that lacks a next hop's MAC address asks for it here. The ARP
//! request or neighbour solicitation goes by the rules of the underlay's bridge, as in Open
//! vSwitch; workers report the answer when it is sent to the bridge's local port.

use super::database::devices::listening;
use super::{Bridge, Switch};
use crate::config::ofport;
use ports::RouteEvents;
use program::actions::{Op, OpList};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use underlay::{Device, Mac, Neighbours, Route, Routes, View};

/// The least time between two requests for one neighbour, whoever wants it, in milliseconds.
const ASK_MS: u64 = 200;
/// Neighbours that have been asked for and are remembered.
const ASKED_MAX: usize = 4096;

/// The least time between two times that workers are told of neighbours.
const NEIGHBOURS_PAUSE: Duration = Duration::from_millis(10);
/// Messages of the kernel's that are read in one go.
const NEWS: usize = 256;
/// The least time between two readings of routes.
const PAUSE: Duration = Duration::from_millis(20);
/// How many times as long as reading them the pause after it is.
const PAUSE_TIMES: u32 = 4;
/// And the most.
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// After how long it is tried again to listen or to read, where that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What tunnels know of the network that they run over.
#[derive(Default)]
pub struct Underlay {
    state: RefCell<State>,
    /// Told when neighbours have changed.
    news: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    routes: Routes,
    neighbours: Neighbours,
    devices: Vec<Device>,
    /// Addresses of devices by their names: the kernel's, and what commands have given to dummies.
    kernel_addresses: Addresses,
    dummy_addresses: Addresses,
    generation: u64,
    /// When neighbours were asked for, and when this was looked through last.
    asked: HashMap<(String, IpAddr), u64>,
    pruned_ms: u64,
    /// What workers have now.
    view: Option<Arc<View>>,
}

type Addresses = BTreeMap<String, Vec<(IpAddr, u8)>>;

impl State {
    /// The addresses of a device.
    fn addresses(&self, device: &str) -> Vec<(IpAddr, u8)> {
        let of = |all: &Addresses| all.get(device).cloned().unwrap_or_default();
        let mut addresses = of(&self.kernel_addresses);
        addresses.extend(of(&self.dummy_addresses));
        addresses
    }

    /// Neighbours that packets have gone to do not age.
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
    /// Looks at routes.
    pub fn with_routes<R>(&self, act: impl FnOnce(&Routes) -> R) -> R {
        act(&self.state.borrow().routes)
    }

    /// Looks at neighbours.
    pub fn with_neighbours<R>(&self, act: impl FnOnce(&Neighbours) -> R) -> R {
        act(&self.state.borrow().neighbours)
    }

    /// The addresses of a device.
    pub fn addresses(&self, device: &str) -> Vec<(IpAddr, u8)> {
        self.state.borrow().addresses(device)
    }

    /// The devices that some route leads by.
    pub fn devices_with_routes(&self) -> Vec<Device> {
        let state = self.state.borrow();
        let devices = state.devices.iter();
        let led_by = devices.filter(|device| state.routes.leads_by(&device.name));
        led_by.cloned().collect()
    }
}

impl Switch {
    /// Changes routes, by a command.
    pub fn change_routes<R>(&self, act: impl FnOnce(&mut Routes) -> R) -> R {
        let result = act(&mut self.underlay.state.borrow_mut().routes);
        self.publish_underlay();
        result
    }

    /// Changes neighbours, by a command.
    pub fn change_neighbours<R>(&self, act: impl FnOnce(&mut Neighbours) -> R) -> R {
        let result = act(&mut self.underlay.state.borrow_mut().neighbours);
        self.publish_underlay();
        result
    }

    /// Gives a dummy device an address, by a command.
    pub fn add_dummy_address(&self, device: &str, address: IpAddr, len: u8) {
        let mut state = self.underlay.state.borrow_mut();
        let addresses = state.dummy_addresses.entry(device.to_owned()).or_default();
        if !addresses.contains(&(address, len)) {
            addresses.push((address, len));
        }
        drop(state);
        self.refresh_devices();
    }

    /// The kernel's addresses and routes have been read.
    pub fn set_kernel_routes(&self, addresses: Addresses, routes: Vec<Route>) {
        let mut state = self.underlay.state.borrow_mut();
        let other = state.kernel_addresses != addresses;
        state.kernel_addresses = addresses;
        let changed = state.routes.replace_kernel(routes);
        drop(state);
        let published = other && self.refresh_devices();
        if changed && !published {
            self.publish_underlay();
        }
    }

    /// Looks at which bridges there are, and at the addresses of their local ports. Whether
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
        self.publish_underlay();
        true
    }

    fn publish_underlay(&self) {
        let mut state = self.underlay.state.borrow_mut();
        // What has been in use since the last one is not forgotten with it.
        state.touch_used(self.clock.now_ms());
        let view = Arc::new(state.view());
        state.view = Some(Arc::clone(&view));
        drop(state);
        let _ = self.with_datapath(|datapath| datapath.set_underlay(view));
    }

    /// Asks for a neighbour's address in a bridge, unless that has just been done.
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
            // Workers ask again.
            return;
        }
        state.asked.insert(key, now_ms);
        drop(state);
        if let Some(question) = underlay::discovery::request(mac, source, address) {
            bridge.send_by_rules(question);
        }
    }

    /// A neighbour has said its address, whether it has been asked or not.
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

    /// Tells workers of neighbours that have changed, some times a second at most: how often they
    /// change is up to others.
    pub async fn tell_neighbours(self: Rc<Self>) -> anyhow::Result<()> {
        loop {
            self.underlay.news.notified().await;
            self.publish_underlay();
            tokio::time::sleep(NEIGHBOURS_PAUSE).await;
        }
    }

    /// Forgets neighbours that have been silent and out of use for long. About once a second.
    pub fn age_neighbours(&self) {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.state.borrow_mut();
        state.touch_used(now_ms);
        if state.neighbours.age(now_ms) {
            self.underlay.news.notify_one();
        }
    }
}

/// What the kernel knows: addresses by devices, and routes with the sources that Open vSwitch
/// picks. Takes as long as there are routes, so not for the control thread. The error is the
/// system's number.
fn read_kernel() -> Result<(Addresses, Vec<Route>), i32> {
    let mut addresses = Addresses::new();
    for found in ports::addresses()? {
        let of = addresses.entry(found.device).or_default();
        of.push((found.address, found.len));
    }
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
            // How much is told is up to others.
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
    /// Its local port as tunnels see it.
    fn underlay_device(&self, switch: &Switch) -> Option<Device> {
        let ports = self.ports.borrow();
        let local = ports.get(&ofport::LOCAL)?;
        // Without an address it is no underlay, and no neighbours are learned there.
        let addresses = switch.underlay.addresses(&local.config.interface_name);
        (!addresses.is_empty()).then(|| Device {
            name: self.name.clone(),
            id: self.id.underlay_id(),
            mac: local.info.mac,
            addresses,
            mtu: local.info.mtu,
        })
    }

    /// Sends a packet by the bridge's rules, as if its local port had sent it.
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
