//! Bridges, their settings, mirrors and learned addresses.

use super::{BridgeRecord, BridgeSettings, Datapath};
use crate::error::Error;
use crate::mac_table::{self, Mac, MacEntry, MacStats, MacTable};
use crate::mirror::{MAX_MIRRORS, MirrorOutput, MirrorSpec, MirrorStats};
use crate::port::{BridgeId, MAX_PORTS, PortId};
use packet::Frame;
use program::table::Bridge;
use std::collections::HashMap;
use std::sync::Arc;

impl<F: Frame + 'static> Datapath<F> {
    /// Adds a bridge that runs `program`, the readers' side of its tables.
    pub fn add_bridge(&mut self, name: &str, program: Arc<Bridge>) -> Result<BridgeId, Error> {
        if self
            .bridges
            .iter()
            .flatten()
            .any(|bridge| bridge.name == name)
        {
            return Err(Error::NameInUse(name.to_owned()));
        }
        let slot = self
            .bridges
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.bridges.len());
        if slot >= MAX_PORTS {
            return Err(Error::TooManyBridges(name.to_owned()));
        }
        if slot == self.bridges.len() {
            self.bridges.push(None);
            self.bridge_generations.push(0);
        }
        self.bridge_generations[slot] = self.bridge_generations[slot].wrapping_add(1);
        let id = BridgeId((self.bridge_generations[slot] & 0xffff) << 16 | slot as u32);
        let settings = BridgeSettings::default();
        self.bridges[slot] = Some(BridgeRecord {
            id,
            name: name.to_owned(),
            program,
            macs: Arc::new(MacTable::new(settings.mac_table_size)),
            settings,
            mirrors: Vec::new(),
            mirror_counters: HashMap::new(),
            options: None,
        });
        self.redraw(id);
        self.apply_or_warn("adding a bridge");
        Ok(id)
    }

    /// Removes a bridge that has no ports left; returns when no worker runs its program.
    pub fn remove_bridge(&mut self, id: BridgeId) -> Result<(), Error> {
        let bridge = self.bridge(id)?;
        if self.ports.iter().flatten().any(|port| port.bridge == id) {
            return Err(Error::BridgeInUse(bridge.name.clone()));
        }
        let what = format!("removing bridge {}", bridge.name);
        let slot = id.slot() as usize;
        self.bridges[slot] = None;
        self.picture.bridges[slot] = None;
        let epoch = self.publish();
        let passed = self.wait_passed(epoch, &what);
        self.shared.fragments.purge(None);
        passed
    }

    pub(super) fn bridge(&self, id: BridgeId) -> Result<&BridgeRecord, Error> {
        let found = self
            .bridges
            .get(id.slot() as usize)
            .and_then(Option::as_ref);
        found
            .filter(|bridge| bridge.id == id)
            .ok_or(Error::NoSuchBridge)
    }

    pub(super) fn bridge_mut(&mut self, id: BridgeId) -> Result<&mut BridgeRecord, Error> {
        let found = self
            .bridges
            .get_mut(id.slot() as usize)
            .and_then(Option::as_mut);
        found
            .filter(|bridge| bridge.id == id)
            .ok_or(Error::NoSuchBridge)
    }

    /// Changes a bridge's settings. A new size of the MAC table keeps the entries that fit, the
    /// latest first.
    pub fn set_bridge(&mut self, id: BridgeId, settings: BridgeSettings) -> Result<(), Error> {
        let bridge = self.bridge_mut(id)?;
        if bridge.settings == settings {
            return Ok(());
        }
        let size = settings
            .mac_table_size
            .clamp(mac_table::SIZE_MIN, mac_table::SIZE_MAX);
        if size != bridge.macs.stats().maximum {
            bridge.macs = Arc::new(bridge.macs.resized(size));
        }
        bridge.settings = settings;
        self.redraw(id);
        self.apply("changing a bridge")
    }

    /// Replaces a bridge's mirrors. Mirrors keep their counts by name.
    pub fn set_mirrors(&mut self, id: BridgeId, mirrors: Vec<MirrorSpec>) -> Result<(), Error> {
        let bridge = self.bridge(id)?;
        if bridge.mirrors == mirrors {
            return Ok(());
        }
        let bad = |name: &str, reason: &str| {
            Err(Error::Mirror {
                name: name.to_owned(),
                reason: reason.to_owned(),
            })
        };
        for (index, mirror) in mirrors.iter().enumerate() {
            if index >= MAX_MIRRORS {
                return bad(&mirror.name, "a bridge can have 32 mirrors");
            }
            if mirrors[..index]
                .iter()
                .any(|other| other.name == mirror.name)
            {
                return bad(&mirror.name, "another mirror has the name");
            }
            match mirror.output {
                MirrorOutput::Vlan(vid) if vid > 4095 => {
                    return bad(&mirror.name, "output VLAN is not within 0 and 4095");
                }
                MirrorOutput::Port(port)
                    if !self.port(port).is_ok_and(|port| port.bridge == id) =>
                {
                    return bad(&mirror.name, "output port is not a port of the bridge");
                }
                MirrorOutput::Vlan(_) | MirrorOutput::Port(_) => {}
            }
        }
        let bridge = self.bridge_mut(id)?;
        bridge
            .mirror_counters
            .retain(|name, _| mirrors.iter().any(|mirror| mirror.name == *name));
        for mirror in &mirrors {
            bridge
                .mirror_counters
                .entry(mirror.name.clone())
                .or_default();
        }
        bridge.mirrors = mirrors;
        self.redraw(id);
        self.apply("changing mirrors")
    }

    /// Returns what a mirror has sent; None when there is no such mirror.
    pub fn mirror_stats(&self, id: BridgeId, name: &str) -> Option<MirrorStats> {
        Some(self.bridge(id).ok()?.mirror_counters.get(name)?.read())
    }

    /// Returns a bridge's learned addresses, the longest silent first.
    pub fn macs(&self, id: BridgeId) -> Result<Vec<(PortId, MacEntry)>, Error> {
        let entries = self.bridge(id)?.macs.entries(self.second());
        let port = |entry: &MacEntry| Some(self.ports.get(entry.port as usize)?.as_ref()?.id);
        Ok(entries
            .into_iter()
            .filter_map(|entry| Some((port(&entry)?, entry)))
            .collect())
    }

    /// Returns the counts of a bridge's MAC table.
    pub fn mac_stats(&self, id: BridgeId) -> Result<MacStats, Error> {
        Ok(self.bridge(id)?.macs.stats())
    }

    /// Sets the counts of a bridge's MAC table to zero.
    pub fn clear_mac_stats(&mut self, id: BridgeId) -> Result<(), Error> {
        self.bridge(id)?.macs.clear_stats();
        Ok(())
    }

    /// Forgets learned addresses of a bridge, or of one of its ports.
    pub fn flush_macs(&mut self, id: BridgeId, port: Option<PortId>) -> Result<(), Error> {
        self.bridge(id)?.macs.flush(port.map(PortId::slot), false);
        Ok(())
    }

    /// Checks that a port is one of the bridge's.
    fn check_port_of(&self, id: BridgeId, port: PortId) -> Result<(), Error> {
        let its = self.port(port)?.bridge == id;
        its.then_some(()).ok_or(Error::NoSuchPort)
    }

    /// Adds a static entry, which neither ages nor moves.
    pub fn add_static_mac(
        &mut self,
        id: BridgeId,
        port: PortId,
        vlan: u16,
        mac: Mac,
    ) -> Result<(), Error> {
        self.check_port_of(id, port)?;
        let done = self.bridge(id)?.macs.add_static(mac, vlan, port.slot());
        done.then_some(()).ok_or(Error::TableFull)
    }

    /// Learns an address as a worker does when a packet comes in by `port`.
    pub fn learn_mac(
        &mut self,
        id: BridgeId,
        port: PortId,
        vlan: u16,
        mac: Mac,
    ) -> Result<(), Error> {
        self.check_port_of(id, port)?;
        let second = self.second();
        self.bridge(id)?.macs.learn(mac, vlan, port.slot(), second);
        Ok(())
    }

    /// Removes an entry, static or learned; returns false when there is none.
    pub fn remove_mac(&mut self, id: BridgeId, vlan: u16, mac: Mac) -> Result<bool, Error> {
        Ok(self.bridge(id)?.macs.delete(mac, vlan))
    }

    pub(super) fn second(&self) -> u32 {
        (self.shared.clock.now_ms() / 1000) as u32
    }
}
