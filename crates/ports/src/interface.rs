//! A kernel interface as a port's control side sees it, whichever way its frames take: link, addresses, counters, settings.

use crate::error::Error;
use crate::link::{LinkState, LinkWatch, Links};
use crate::{Mac, PortInfo};

/// One interface, asked and changed by rtnetlink and ioctl.
pub(crate) struct Interface {
    name: String,
    index: u32,
    watch: LinkWatch,
    links: Links,
}

impl Interface {
    /// The interface that `link` describes now.
    pub(crate) fn new(name: &str, links: Links, link: &LinkState) -> Interface {
        Interface {
            name: name.to_string(),
            index: link.ifindex,
            watch: LinkWatch::new(link),
            links,
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's number for it.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// What is known of it; nothing once it has gone.
    pub(crate) fn info(&mut self) -> PortInfo {
        let Ok(link) = self.links.by_index(self.index) else {
            return PortInfo::default();
        };
        let (link_speed, full_duplex) = self.links.speed(&self.name);
        PortInfo {
            present: true,
            mac: link.mac,
            mtu: link.mtu.min(u32::from(u16::MAX)) as u16,
            ifindex: link.ifindex,
            admin_up: link.is_up(),
            link_up: link.has_link(),
            link_speed,
            full_duplex,
            link_resets: self.watch.look(&link),
        }
    }

    /// `Interface.status`: its driver.
    pub(crate) fn status(&self) -> Vec<(String, String)> {
        let Some(driver) = self.links.driver(&self.name) else {
            return Vec::new();
        };
        [
            ("driver_name", driver.name),
            ("driver_version", driver.version),
            ("firmware_version", driver.firmware),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .to_vec()
    }

    /// The kernel's counters; `reversed` where the kernel's side is the other end.
    pub(crate) fn statistics(&mut self, reversed: bool) -> Vec<(String, u64)> {
        match self.links.by_index(self.index) {
            Ok(link) => link.statistics(reversed),
            Err(_) => Vec::new(),
        }
    }

    /// Changes its MTU, if it is another now.
    pub(crate) fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        let now = self.links.by_name(&self.name);
        if now.is_ok_and(|link| link.mtu == u32::from(mtu)) {
            return Ok(());
        }
        let result = self.links.set_mtu(&self.name, mtu);
        self.worded(format!("setting MTU {mtu}"), result)
    }

    /// Changes its MAC address, if it is another now.
    pub(crate) fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        let now = self.links.by_name(&self.name);
        if now.is_ok_and(|link| link.mac == mac) {
            return Ok(());
        }
        let text: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        let result = self.links.set_mac(&self.name, mac);
        self.worded(format!("setting MAC address {}", text.join(":")), result)
    }

    /// Sets it up or down.
    pub(crate) fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        let result = self.links.set_up(&self.name, up);
        self.worded(
            format!("setting it {}", if up { "up" } else { "down" }),
            result,
        )
    }

    fn worded(&self, what: String, result: Result<(), i32>) -> Result<(), Error> {
        result.map_err(|errno| Error::Device {
            name: self.name.clone(),
            what,
            errno,
        })
    }
}
