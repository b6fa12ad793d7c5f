//! A port's device, shared by control, by the datapath (a new worker needs a queue of it), and by
//! calls that are made aside ([`super::aside`]).

use super::aside;
use super::bridge::{Closed, change_device};
use crate::config::Mac;
use packet::io::TxQueue;
use ports::{Mbuf, PortControl, PortInfo};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// What a device last said of itself.
#[derive(Default)]
struct Last {
    info: PortInfo,
    announced: bool,
    elsewhere: bool,
    status: Vec<(String, String)>,
    stats: Vec<(String, u64)>,
    connected: Option<bool>,
    guest_queues: Option<u16>,
    peer_process: Option<u32>,
    pool: Option<ports::Pool>,
}

#[derive(Default)]
struct Inner {
    /// None once it is closed.
    control: Mutex<Option<Box<dyn PortControl>>>,
    last: Mutex<Last>,
}

/// A device. What is asked while it is being changed is answered by what was last known; further
/// changes wait. Dropping the last handle keeps a device that can outlive the process.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

fn gone() -> ports::Error {
    ports::Error::Option("the port is closed".into())
}

impl Inner {
    fn control(&self) -> MutexGuard<'_, Option<Box<dyn PortControl>>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    /// Only where nobody took it: the daemon ends while it was being opened. A device that the last
    /// daemon has left, with its addresses, must not be lost then.
    fn drop(&mut self) {
        if let Some(control) = self.control().take() {
            control.leave();
        }
    }
}

impl Device {
    /// Shares an open device.
    pub fn new(control: Box<dyn PortControl>) -> Device {
        let last = Last {
            announced: control.is_announced(),
            elsewhere: control.is_elsewhere(),
            guest_queues: control.guest_queues(),
            pool: control.pool(),
            ..Last::default()
        };
        Device(Arc::new(Inner {
            control: Mutex::new(Some(control)),
            last: Mutex::new(last),
        }))
    }

    /// Runs `act` on the device; None if it is closed. Others are answered meanwhile by what was
    /// known before.
    fn with<R>(&self, act: impl FnOnce(&mut dyn PortControl) -> R) -> Option<R> {
        let mut control = self.0.control();
        control.as_mut().map(|control| act(&mut **control))
    }

    fn change<R>(
        &self,
        act: impl FnOnce(&mut dyn PortControl) -> Result<R, ports::Error>,
    ) -> Result<R, ports::Error> {
        self.with(act).unwrap_or_else(|| Err(gone()))
    }

    /// Runs `act` on the device aside, after the calls made before; returns a future for its
    /// result, None if the device is closed by then. Dropping the future does not prevent the call.
    pub fn aside<R, F>(&self, act: F) -> impl Future<Output = Option<R>> + use<R, F>
    where
        R: Send + 'static,
        F: FnOnce(&mut dyn PortControl) -> R + Send + 'static,
    {
        let device = self.clone();
        let call = aside::call(move || {
            device.with(|control| {
                let result = act(control);
                // Or who asks during the next call would be answered by what was before this one.
                let info = control.info();
                let last = &device.0.last;
                (last.lock().unwrap_or_else(PoisonError::into_inner)).info = info;
                result
            })
        });
        async move { call.await.flatten() }
    }

    fn read<R: Clone + Default>(
        &self,
        place: fn(&mut Last) -> &mut R,
        ask: impl FnOnce(&mut dyn PortControl) -> R,
    ) -> R {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut control = match self.0.control.try_lock() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return place(&mut last).clone(),
        };
        let Some(control) = &mut *control else {
            return R::default();
        };
        let answer = ask(&mut **control);
        place(&mut last).clone_from(&answer);
        answer
    }
}

impl PortControl for Device {
    fn tx_queue(&mut self, worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, ports::Error> {
        self.change(|control| control.tx_queue(worker))
    }
    fn info(&mut self) -> PortInfo {
        self.read(|last| &mut last.info, |control| control.info())
    }
    fn is_announced(&self) -> bool {
        self.read(|last| &mut last.announced, |control| control.is_announced())
    }
    fn is_elsewhere(&self) -> bool {
        self.read(|last| &mut last.elsewhere, |control| control.is_elsewhere())
    }
    fn status(&mut self) -> Vec<(String, String)> {
        self.read(|last| &mut last.status, |control| control.status())
    }
    fn device_stats(&mut self) -> Vec<(String, u64)> {
        self.read(|last| &mut last.stats, |control| control.device_stats())
    }
    fn is_connected(&mut self) -> Option<bool> {
        self.read(|last| &mut last.connected, |control| control.is_connected())
    }
    fn indirection(&self) -> Option<Arc<dyn packet::io::Indirection>> {
        self.with(|control| control.indirection()).flatten()
    }

    fn guest_queues(&self) -> Option<u16> {
        self.read(
            |last| &mut last.guest_queues,
            |control| control.guest_queues(),
        )
    }
    fn pool(&self) -> Option<ports::Pool> {
        self.read(|last| &mut last.pool, |control| control.pool())
    }
    fn peer_process(&mut self) -> Option<u32> {
        self.read(
            |last| &mut last.peer_process,
            |control| control.peer_process(),
        )
    }
    fn set_mtu(&mut self, mtu: u16) -> Result<(), ports::Error> {
        self.change(|control| control.set_mtu(mtu))
    }
    fn set_mac(&mut self, mac: ports::Mac) -> Result<(), ports::Error> {
        self.change(|control| control.set_mac(mac))
    }
    fn set_ipv4(
        &mut self,
        address: Ipv4Addr,
        netmask: Ipv4Addr,
        gateway: Option<Ipv4Addr>,
    ) -> Result<(), ports::Error> {
        self.change(|control| control.set_ipv4(address, netmask, gateway))
    }
    fn set_admin(&mut self, up: bool) -> Result<(), ports::Error> {
        self.change(|control| control.set_admin(up))
    }
    fn inject(&mut self, frame: &[u8]) -> Result<(), ports::Error> {
        self.change(|control| control.inject(frame))
    }
    fn close(self: Box<Self>) {
        let control = self.0.control().take();
        if let Some(control) = control {
            control.close();
        }
    }
    fn leave(self: Box<Self>) {
        let control = self.0.control().take();
        if let Some(control) = control {
            control.leave();
        }
    }
}

/// Closes devices, and waits until they are closed.
pub async fn close_all(devices: impl IntoIterator<Item = Device>) {
    let devices: Vec<Device> = devices.into_iter().collect();
    if devices.is_empty() {
        return;
    }
    let close = || {
        for device in devices {
            Box::new(device).close();
        }
    };
    aside::call(close).await;
}

/// What is to be changed of a device.
pub struct Change {
    /// The device.
    pub device: Device,
    /// Its port's name, for messages.
    pub name: String,
    /// The MTU, if it changes.
    pub mtu: Option<u16>,
    /// The MTU if the device does not start with that one, or none is given.
    pub otherwise: Option<u16>,
    /// The address, if it changes.
    pub mac: Option<Mac>,
    /// Why it is stopped before.
    pub closed: Option<Closed>,
}

impl Change {
    /// Changes it aside; returns a future for why it is stopped after, and its state. None if it is
    /// closed.
    pub fn make(self) -> impl Future<Output = Option<(Option<Closed>, PortInfo)>> + use<> {
        let device = self.device.clone();
        device.aside(move |control| self.make_of(control))
    }

    fn make_of(mut self, control: &mut dyn PortControl) -> (Option<Closed>, PortInfo) {
        change_device(control, &self.name, self.mtu, self.mac, &mut self.closed);
        if self.closed.is_some() && self.otherwise != self.mtu {
            change_device(control, &self.name, self.otherwise, None, &mut self.closed);
        }
        (self.closed, control.info())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    /// A device that takes long to change, and says whether it was closed or left.
    struct Slow {
        mtu: u16,
        begun: Sender<()>,
        go: Receiver<()>,
        end: Sender<&'static str>,
    }

    impl PortControl for Slow {
        fn tx_queue(&mut self, _: usize) -> Result<Box<dyn TxQueue<Mbuf>>, ports::Error> {
            Err(gone())
        }
        fn info(&mut self) -> PortInfo {
            PortInfo {
                present: true,
                mtu: self.mtu,
                ..PortInfo::default()
            }
        }
        fn status(&mut self) -> Vec<(String, String)> {
            vec![("mtu".into(), self.mtu.to_string())]
        }
        fn device_stats(&mut self) -> Vec<(String, u64)> {
            vec![("rx_packets".into(), 7)]
        }
        fn set_mtu(&mut self, mtu: u16) -> Result<(), ports::Error> {
            self.begun.send(()).unwrap();
            self.go.recv_timeout(LONG).unwrap();
            self.mtu = mtu;
            Ok(())
        }
        fn set_mac(&mut self, _: ports::Mac) -> Result<(), ports::Error> {
            Ok(())
        }
        fn set_admin(&mut self, _: bool) -> Result<(), ports::Error> {
            Ok(())
        }
        fn close(self: Box<Self>) {
            self.end.send("closed").unwrap();
        }
        fn leave(self: Box<Self>) {
            self.end.send("left").unwrap();
        }
    }

    #[test]
    fn while_it_is_changed_it_is_as_it_was() {
        let ((begun, has_begun), (go, wait), (end, ended)) = (channel(), channel(), channel());
        let mut device = Device::new(Box::new(Slow {
            mtu: 1500,
            begun,
            go: wait,
            end,
        }));
        assert_eq!((device.info().mtu, device.status().len()), (1500, 1));
        assert_eq!(device.device_stats(), [("rx_packets".to_owned(), 7)]);
        let change = Change {
            device: device.clone(),
            name: "p".into(),
            mtu: Some(9000),
            otherwise: None,
            mac: None,
            closed: None,
        };
        let its = device.clone();
        let changing = std::thread::spawn(move || its.with(|control| change.make_of(control)));
        has_begun.recv_timeout(LONG).unwrap();
        assert_eq!(device.info().mtu, 1500);
        assert!(device.info().present, "or its port would be removed");
        assert_eq!(device.device_stats(), [("rx_packets".to_owned(), 7)]);
        assert_eq!(device.status(), [("mtu".to_owned(), "1500".to_owned())]);
        go.send(()).unwrap();
        let (closed, info) = changing.join().unwrap().unwrap();
        assert_eq!((closed, info.mtu, device.info().mtu), (None, 9000, 9000));
        let mut other = device.clone();
        Box::new(device).close();
        assert_eq!(ended.recv_timeout(LONG), Ok("closed"));
        assert!(!other.info().present && other.set_mtu(1).is_err());
        drop(other);
        assert!(ended.recv().is_err(), "it ends once");
    }

    #[test]
    fn a_device_that_nobody_took_is_left() {
        let ((begun, _), (_, go), (end, ended)) = (channel(), channel(), channel());
        drop(Device::new(Box::new(Slow {
            mtu: 1500,
            begun,
            go,
            end,
        })));
        assert_eq!(ended.recv_timeout(LONG), Ok("left"));
    }
}
