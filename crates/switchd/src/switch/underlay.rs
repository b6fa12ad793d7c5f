//! The network that tunnels run over: the bridges' local ports with the kernel's addresses, the
//! kernel's routes and those of commands, and neighbours.
//!
//! Whatever changes is drawn into a new [`View`] and given to the datapath, as rules are: workers
//! go by it from their next burst on. A worker that lacks a next hop's address asks for it; the
//! question goes out in the underlay's bridge as a packet-out that its rules decide on, as in Open
//! vSwitch, and answers are seen by workers where they pass the bridge's local port.

use super::{Bridge, Switch};
use crate::config::ofport;
use program::actions::{Op, OpList};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use underlay::{Device, Mac, Neighbours, Route, Routes, View};

/// The least time between two questions for one neighbour, whoever wants it, in milliseconds.
const ASK_MS: u64 = 200;
/// Neighbours that have been asked for and are remembered.
const ASKED_MAX: usize = 4096;

/// What tunnels know of the network that they run over.
#[derive(Default)]
pub struct Underlay(RefCell<State>);

struct State {
    routes: Routes,
    neighbours: Neighbours,
    devices: Vec<Device>,
    /// Addresses of devices by their names: the kernel's, and what commands have given to dummies.
    kernel_addresses: Addresses,
    dummy_addresses: Addresses,
    generation: u64,
    asked: HashMap<(String, IpAddr), u64>,
}

type Addresses = BTreeMap<String, Vec<(IpAddr, u8)>>;

impl Default for State {
    fn default() -> State {
        State {
            routes: Routes::new(),
            neighbours: Neighbours::new(),
            devices: Vec::new(),
            kernel_addresses: Addresses::new(),
            dummy_addresses: Addresses::new(),
            generation: 0,
            asked: HashMap::new(),
        }
    }
}

impl State {
    /// The addresses of a device.
    fn addresses(&self, device: &str) -> Vec<(IpAddr, u8)> {
        let of = |all: &Addresses| all.get(device).cloned().unwrap_or_default();
        let mut addresses = of(&self.kernel_addresses);
        addresses.extend(of(&self.dummy_addresses));
        addresses
    }

    fn view(&mut self) -> View {
        self.generation += 1;
        View::new(self.generation, &self.routes, &self.neighbours, &self.devices)
    }
}

impl Underlay {
    /// Looks at routes.
    pub fn with_routes<R>(&self, act: impl FnOnce(&Routes) -> R) -> R {
        act(&self.0.borrow().routes)
    }

    /// Looks at neighbours.
    pub fn with_neighbours<R>(&self, act: impl FnOnce(&Neighbours) -> R) -> R {
        act(&self.0.borrow().neighbours)
    }

    /// The addresses of a device.
    pub fn addresses(&self, device: &str) -> Vec<(IpAddr, u8)> {
        self.0.borrow().addresses(device)
    }
}

impl Switch {
    /// Changes routes, by a command.
    pub fn change_routes<R>(&self, act: impl FnOnce(&mut Routes) -> R) -> R {
        let result = act(&mut self.underlay.0.borrow_mut().routes);
        self.publish_underlay();
        result
    }

    /// Changes neighbours, by a command.
    pub fn change_neighbours<R>(&self, act: impl FnOnce(&mut Neighbours) -> R) -> R {
        let result = act(&mut self.underlay.0.borrow_mut().neighbours);
        self.publish_underlay();
        result
    }

    /// Gives a dummy device an address, by a command.
    pub fn add_dummy_address(&self, device: &str, address: IpAddr, len: u8) {
        let mut state = self.underlay.0.borrow_mut();
        let addresses = state.dummy_addresses.entry(device.to_owned()).or_default();
        if !addresses.contains(&(address, len)) {
            addresses.push((address, len));
        }
        drop(state);
        self.refresh_devices();
    }

    /// The kernel's addresses and routes have been read.
    pub fn set_kernel_routes(&self, addresses: Addresses, routes: Vec<Route>) {
        let mut state = self.underlay.0.borrow_mut();
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
        let mut state = self.underlay.0.borrow_mut();
        if state.devices == devices {
            return false;
        }
        state.devices = devices;
        drop(state);
        self.publish_underlay();
        true
    }

    fn publish_underlay(&self) {
        let view = Arc::new(self.underlay.0.borrow_mut().view());
        let _ = self.with_datapath(|datapath| datapath.set_underlay(view));
    }

    /// Asks for a neighbour's address in a bridge, unless that has just been done.
    pub(super) fn ask_neighbour(&self, bridge: &Bridge, address: IpAddr, source: IpAddr) {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.0.borrow_mut();
        let Some(device) = state.devices.iter().find(|device| device.name == bridge.name) else {
            return;
        };
        let (mac, key) = (device.mac, (device.name.clone(), address));
        let early = |asked: &u64| now_ms.saturating_sub(*asked) < ASK_MS;
        if state.asked.get(&key).is_some_and(early) {
            return;
        }
        if state.asked.len() >= ASKED_MAX {
            state.asked.retain(|_, asked| early(asked));
        }
        if state.asked.len() < ASKED_MAX {
            state.asked.insert(key, now_ms);
        }
        drop(state);
        if let Some(question) = underlay::discovery::request(mac, source, address) {
            bridge.send_by_rules(question);
        }
    }

    /// A neighbour has said its address. Whether that is news; then the caller publishes
    /// ([`Switch::tell_neighbours`]).
    pub(super) fn neighbour_seen(&self, bridge: &Bridge, address: IpAddr, mac: Mac) -> bool {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.0.borrow_mut();
        state.neighbours.learn(&bridge.name, address, mac, now_ms)
    }

    /// Tells workers of neighbours that have changed.
    pub(super) fn tell_neighbours(&self) {
        self.publish_underlay();
    }

    /// Forgets neighbours that have been silent for long, and asks those again that soon will have
    /// been. About once a second.
    pub fn age_neighbours(&self) {
        let now_ms = self.clock.now_ms();
        let mut state = self.underlay.0.borrow_mut();
        let changed = state.neighbours.age(now_ms);
        let due = state.neighbours.due_for_refresh(now_ms);
        let sources: Vec<(String, IpAddr, Option<IpAddr>)> = due
            .into_iter()
            .map(|neighbour| {
                let routes = &state.routes;
                let route = routes.lookup(neighbour.address, 0);
                let source = route.map(|route| route.source);
                (neighbour.device, neighbour.address, source)
            })
            .collect();
        drop(state);
        if changed {
            self.publish_underlay();
        }
        for (device, address, source) in sources {
            if let (Some(bridge), Some(source)) = (self.bridge(&device), source) {
                self.ask_neighbour(&bridge, address, source);
            }
        }
    }
}

impl Bridge {
    /// Its local port as tunnels see it.
    fn underlay_device(&self, switch: &Switch) -> Option<Device> {
        let ports = self.ports.borrow();
        let local = ports.get(&ofport::LOCAL)?;
        Some(Device {
            name: self.name.clone(),
            id: self.id.underlay_id(),
            mac: local.info.mac,
            addresses: switch.underlay.addresses(&local.config.interface_name),
        })
    }

    /// Sends a packet that came from nowhere, by the bridge's rules.
    fn send_by_rules(&self, data: Vec<u8>) {
        let ops = Arc::new(OpList::new(vec![Op::Resubmit {
            in_port: None,
            table: Some(0),
        }]));
        let sent = self.switch().with_datapath(|datapath| {
            datapath.packet_out_with(self.id, openflow::port::ANY, None, None, data, ops)
        });
        if let Ok(Err(error)) = sent {
            tracing::debug!(target: "tunnel", "{}: no question for a neighbour: {error}", self.name);
        }
    }
}
