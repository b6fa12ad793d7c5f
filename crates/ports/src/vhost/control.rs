//! The control thread's side of a guest.

use super::check_mtu;
use super::hub::Watched;
use super::send::VhostTx;
use super::shared::Shared;
use super::sizes::Sizes;
use crate::error::Error;
use crate::ethdev::OVERHEAD;
use crate::gate::Key;
use crate::mbuf::Mbuf;
use crate::pool::Pool;
use crate::{Mac, PortControl, PortInfo, fault};
use packet::io::TxQueue;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The control thread's side.
pub(super) struct VhostControl {
    pub(super) name: String,
    pub(super) client: bool,
    pub(super) shared: Arc<Shared>,
    /// The key to [`Shared::asked`].
    pub(super) key: Key,
    pub(super) watched: Watched,
    pub(super) mac: Mac,
    pub(super) mtu: u16,
    pub(super) admin_up: bool,
    pub(super) rx_queues: u16,
    pub(super) pool: Pool,
    /// Number of replaced mappings that have been logged.
    pub(super) replaced: u64,
}

impl PortControl for VhostControl {
    fn pool(&self) -> Option<Pool> {
        Some(self.pool)
    }

    fn tx_queue(&mut self, worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        Ok(Box::new(VhostTx {
            sizes: self.shared.sent_by(worker),
            shared: self.shared.clone(),
            worker,
            scratch: Vec::new(),
            access: None,
        }))
    }

    fn info(&mut self) -> PortInfo {
        // Called from time to time, by a thread that may wait.
        self.shared.relent(Instant::now());
        PortInfo {
            present: true,
            mac: self.mac,
            mtu: self.mtu,
            ifindex: 0,
            admin_up: self.admin_up,
            link_up: self.shared.connected(),
            link_speed: 0,
            full_duplex: None,
            link_resets: self.shared.resets.load(Ordering::Relaxed),
        }
    }

    fn guest_queues(&self) -> Option<u16> {
        // A queue is two rings; a guest that is away has one, as in Open vSwitch.
        let rings = self.shared.table().map_or(0, |table| table.rings.len());
        let queues = u16::try_from(rings / 2).unwrap_or(u16::MAX);
        Some(queues.clamp(1, self.rx_queues.max(1)))
    }

    fn status(&mut self) -> Vec<(String, String)> {
        let mode = if self.client { "client" } else { "server" };
        let socket = self.watched.path().to_owned();
        let mut status = vec![
            ("mode".to_string(), mode.to_string()),
            ("socket".to_string(), socket),
        ];
        let mut add = |key: String, value: String| status.push((key, value));
        // Read inside the gate, which keeps this very device from going. The gate is closed while
        // there is no device.
        let inside = self.key.enter();
        let vid = self.shared.vid.load(Ordering::SeqCst);
        if inside.is_none() || vid < 0 {
            add("status".into(), "disconnected".into());
            return status;
        }
        add("status".into(), "connected".into());
        add(
            "features".into(),
            format!("0x{:016x}", self.shared.features.load(Ordering::Relaxed)),
        );
        add("n_rxq".into(), self.rx_queues.to_string());
        let Some(table) = self.shared.table() else {
            return status;
        };
        add("numa".into(), table.numa_node.to_string());
        add("num_of_vrings".into(), table.rings.len().to_string());
        for (number, size) in table.sizes() {
            add(format!("vring_{number}_size"), size.to_string());
        }
        status
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        let replaced = fault::replaced();
        if replaced > self.replaced {
            self.replaced = replaced;
            tracing::warn!(
                "a vhost-user peer took back memory in use; {replaced} mappings were replaced so far"
            );
        }
        if !self.shared.connected() {
            return Vec::new(); // as in Open vSwitch
        }
        let sent = self.shared.sent.lock();
        let sent = sent.unwrap_or_else(|poison| poison.into_inner());
        Sizes::named("rx", self.shared.received.iter())
            .chain(Sizes::named("tx", sent.values().map(Arc::as_ref)))
            .collect()
    }

    fn peer_process(&mut self) -> Option<u32> {
        self.watched.peer_process()
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        check_mtu(&self.name, mtu)?;
        self.mtu = mtu;
        self.shared
            .longest
            .store(u32::from(mtu) + OVERHEAD, Ordering::Relaxed);
        Ok(())
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        self.mac = mac;
        Ok(())
    }

    fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        self.admin_up = up;
        Ok(())
    }

    fn close(self: Box<Self>) {}
}
