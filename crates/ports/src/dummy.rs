//! Ports without a device, for tests of the switch: frames are injected by commands, and sent
//! frames are counted and, if wanted, recorded in a pcap file.

mod stream;

use crate::error::Error;
use crate::ethdev::OVERHEAD;
use crate::mbuf::{self, Mbuf};
use crate::pool::Pool;
use crate::spec::{Dummy, PortSpec};
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo};
use packet::frame::{Frame, Gso};
use packet::io::{BURST, QueueDrops, RxQueue, TxOutcome, TxQueue};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use stream::Streams;
pub use stream::Target;

/// Most injected frames that wait to be received; more are dropped, as in Open vSwitch's dummy.
const QUEUE: usize = 1024;

/// Longest frame that can be injected.
const LONGEST: usize = 65_535;

/// Counter of dummies, for their MAC addresses.
static NEXT: AtomicU32 = AtomicU32::new(0);

struct Shared {
    closed: AtomicBool,
    up: AtomicBool,
    streams: OnceLock<Arc<Streams>>,
    longest: AtomicU32,
    queue: Mutex<VecDeque<Vec<u8>>>,
    missed: AtomicU64,
    arrived: OwnedFd,
    sent: Mutex<Option<Pcap>>,
    received: Mutex<Option<Pcap>>,
}

impl Shared {
    /// Injects a frame to be received; if there is no room it is dropped and counted.
    fn put(&self, frame: &[u8]) {
        {
            let mut queue = lock(&self.queue);
            if queue.len() >= QUEUE {
                self.missed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            queue.push_back(frame.to_vec());
        }
        note(&self.received, frame);
        let _ = rustix::io::write(&self.arrived, &1_u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

pub(crate) fn open(eal: &Eal, spec: &PortSpec, options: &Dummy) -> Result<OpenPort, Error> {
    let mtu = spec.mtu.unwrap_or(1500);
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    let arrived = eventfd(0, flags).map_err(|error| Error::Open {
        name: spec.name.clone(),
        errno: error.raw_os_error(),
    })?;
    let shared = Arc::new(Shared {
        closed: AtomicBool::new(false),
        up: AtomicBool::new(true),
        streams: OnceLock::new(),
        longest: AtomicU32::new(u32::from(mtu) + OVERHEAD),
        queue: Mutex::new(VecDeque::new()),
        missed: AtomicU64::new(0),
        arrived,
        sent: Mutex::new(record(&spec.name, options.tx_pcap.as_deref())?),
        received: Mutex::new(record(&spec.name, options.rx_pcap.as_deref())?),
    });
    if let Some(target) = &options.stream {
        // The connection's threads must not keep the port alive.
        let port = Arc::downgrade(&shared);
        let deliver = move |frame: &[u8]| {
            let Some(port) = port.upgrade() else { return };
            if port.up.load(Ordering::Relaxed) {
                port.put(frame);
            } else {
                port.missed.fetch_add(1, Ordering::Relaxed);
            }
        };
        let streams = Streams::open(&spec.name, target, Box::new(deliver))?;
        let _ = shared.streams.set(streams);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, high, middle, low] = number.to_be_bytes();
    let control = DummyControl {
        shared: shared.clone(),
        mac: spec
            .mac
            .unwrap_or([0xaa, 0x55, 0xaa, high.wrapping_add(0x55), middle, low]),
        mtu,
        admin_up: true,
    };
    Ok(OpenPort {
        control: Box::new(control),
        rx: vec![Box::new(DummyRx {
            shared,
            pool: eal.pool()?,
            no_buffer: 0,
        })],
    })
}

/// Starts a recording, if one is wanted.
fn record(name: &str, path: Option<&Path>) -> Result<Option<Pcap>, Error> {
    let Some(path) = path else {
        return Ok(None);
    };
    Pcap::create(path).map(Some).map_err(|error| Error::Device {
        name: name.to_string(),
        what: format!("writing {}", path.display()),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })
}

/// A pcap file being written.
struct Pcap(File);

impl Pcap {
    fn create(path: &Path) -> io::Result<Pcap> {
        let mut file = File::create(path)?;
        let mut header = Vec::with_capacity(24);
        // Magic, version 2.4, time zone 0, accuracy 0, longest frame, Ethernet.
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, LONGEST as u32, 1u32] {
            header.extend(word.to_ne_bytes());
        }
        file.write_all(&header)?;
        Ok(Pcap(file))
    }

    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut record = Vec::with_capacity(16 + frame.len());
        let len = frame.len() as u32;
        for word in [now.as_secs() as u32, now.subsec_micros(), len, len] {
            record.extend(word.to_ne_bytes());
        }
        record.extend(frame);
        self.0.write_all(&record)
    }
}

/// Records a frame; after a write error the recording ends.
fn note(recording: &Mutex<Option<Pcap>>, frame: &[u8]) {
    let mut recording = lock(recording);
    if let Some(pcap) = recording.as_mut()
        && let Err(error) = pcap.write(frame)
    {
        tracing::warn!("a dummy port's recording ends: {error}");
        *recording = None;
    }
}

struct DummyRx {
    shared: Arc<Shared>,
    pool: Pool,
    no_buffer: u64,
}

impl RxQueue<Mbuf> for DummyRx {
    fn receive(&mut self, out: &mut Vec<Mbuf>) -> usize {
        if self.shared.closed.load(Ordering::Relaxed) {
            return 0;
        }
        let mut queue = lock(&self.shared.queue);
        let mut count = 0;
        while count < BURST
            && let Some(bytes) = queue.pop_front()
        {
            match self.pool.frame(&bytes) {
                Some(frame) => {
                    out.push(frame);
                    count += 1;
                }
                None => self.no_buffer += 1,
            }
        }
        if queue.is_empty() {
            // The event does not block.
            let _ = rustix::io::read(&self.shared.arrived, &mut [0_u8; 8]);
        }
        count
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.shared.arrived.as_raw_fd())
    }

    fn drops(&self) -> QueueDrops {
        QueueDrops {
            missed: self.shared.missed.load(Ordering::Relaxed),
            malformed: 0,
            no_buffer: self.no_buffer,
        }
    }
}

struct DummyTx {
    shared: Arc<Shared>,
}

impl TxQueue<Mbuf> for DummyTx {
    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        let longest = self.shared.longest.load(Ordering::Relaxed) as usize;
        let recording = lock(&self.shared.sent).is_some();
        for frame in frames.iter() {
            if self.shared.closed.load(Ordering::Relaxed) {
                outcome.failed += 1;
            } else if frame.len() > longest && frame.offload().gso == Gso::None {
                outcome.too_long += 1;
            } else {
                outcome.packets += 1;
                outcome.bytes += frame.len() as u64;
                if recording {
                    note(&self.shared.sent, &frame.to_vec());
                }
                if let Some(streams) = self.shared.streams.get() {
                    streams.send(&frame.to_vec());
                }
            }
        }
        mbuf::free_all(frames);
        outcome
    }
}

/// The control thread's side.
struct DummyControl {
    shared: Arc<Shared>,
    mac: Mac,
    mtu: u16,
    admin_up: bool,
}

impl PortControl for DummyControl {
    fn tx_queue(&mut self, _worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        Ok(Box::new(DummyTx {
            shared: self.shared.clone(),
        }))
    }

    fn info(&mut self) -> PortInfo {
        PortInfo {
            present: true,
            mac: self.mac,
            mtu: self.mtu,
            ifindex: 0,
            admin_up: self.admin_up,
            link_up: self.admin_up,
            link_speed: 0,
            full_duplex: None,
            link_resets: 0,
        }
    }

    fn status(&mut self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        let streams = self.shared.streams.get();
        let dropped = streams.map(|streams| ("tx_stream_dropped".to_owned(), streams.dropped()));
        dropped.into_iter().collect()
    }

    fn is_connected(&mut self) -> Option<bool> {
        self.shared.streams.get()?.is_connected()
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        if !(68..=65_517).contains(&mtu) {
            return Err(Error::Option(format!(
                "unsupported MTU {mtu}: 68 to 65517 are"
            )));
        }
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
        self.shared.up.store(up, Ordering::Relaxed);
        Ok(())
    }

    fn inject(&mut self, frame: &[u8]) -> Result<(), Error> {
        if frame.len() > LONGEST {
            return Err(Error::Option(format!(
                "a frame of {} bytes is too long",
                frame.len()
            )));
        }
        self.shared.put(frame);
        Ok(())
    }

    fn close(self: Box<Self>) {}
}

impl Drop for DummyControl {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        if let Some(streams) = self.shared.streams.get() {
            streams.close();
        }
        lock(&self.shared.queue).clear();
    }
}
