//! DPDK Ethernet devices: NICs and DPDK's virtual devices, plugged in and out while the switch
//! runs.
//!
//! A device is named by its devargs. If no DPDK port matches them yet, the device is probed; the
//! port is set up and started, and detached again on close. Workers' bursts pass a gate for each
//! queue (see `gate`), so the control thread can stop a device to change it, or remove it, while
//! workers keep polling.

use crate::eal::{Eal, with_reason};
use crate::egress::{self, Abilities};
use crate::error::{DetachError, Error};
use crate::gate::{Gate, Inside, Key};
use crate::indirection::{Receiver, Table, Write};
use crate::mbuf::{self, Mbuf};
use crate::pool::{DATA_ROOM, Pool, Size};
use crate::raw::{
    self, EthConf, EthCounter, EthCounterName, EthInfo, EthLink, EthStats, capability,
};
use crate::spec::{Dpdk, PortSpec};
use crate::{Mac, OpenPort, PortControl, PortInfo};
use packet::Frame;
use packet::frame::Gso;
use packet::io::{BURST, Indirection, Lengths, RxQueue, TxOutcome, TxQueue};
use packet::rss::{KEY_MAX, Kinds, Rss};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most ports of DPDK (`RTE_MAX_ETHPORTS`).
const MAX_PORTS: usize = 32;

/// Bytes of a frame beyond the MTU: Ethernet header and one VLAN tag.
pub(crate) const OVERHEAD: u32 = 18;

/// The largest MTU any port takes: frames stay below 64 KiB.
pub(crate) const MAX_MTU: u16 = 65_535 - OVERHEAD as u16;

/// DPDK ports in use, with the names of our ports.
static USED: Mutex<BTreeMap<u16, String>> = Mutex::new(BTreeMap::new());

/// Taken while a device is plugged in and claimed, closed, or detached: one that is not claimed yet
/// must not be detached, nor one that is being closed be asked for its name.
static PLUGGING: Mutex<()> = Mutex::new(());

/// How long to wait for a worker's burst in a device. A burst takes microseconds, or some
/// milliseconds if its worker is interrupted.
const LONGEST_BURST: Duration = Duration::from_secs(1);

/// Devices to be closed that a worker has not left yet.
static LEFT_BEHIND: Mutex<Vec<LeftBehind>> = Mutex::new(Vec::new());

/// A device with closed gates.
struct LeftBehind {
    shared: Arc<Shared>,
    device: Device,
}

/// Closes devices that workers have left since. Called whenever a device is opened or closed.
fn close_those_left() {
    let mut waiting = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
    let (gone, kept) = std::mem::take(&mut *waiting)
        .into_iter()
        .partition(|left| Gate::all_left(left.shared.gates()));
    *waiting = kept;
    drop(waiting); // closing takes long
    let gone: Vec<LeftBehind> = gone;
    gone.into_iter().for_each(|left| drop(left.device));
}

/// Opens the device named by the options.
pub(crate) fn open(eal: &Eal, spec: &PortSpec, options: &Dpdk) -> Result<OpenPort, Error> {
    close_those_left();
    let plugging = PLUGGING.lock().unwrap_or_else(PoisonError::into_inner);
    let (port, probed) = find_or_probe(&options.devargs)?;
    let claim = Claim::new(port, &spec.name, &options.devargs)?;
    drop(plugging);
    let device = Device {
        port,
        probed,
        claim,
    };
    let info = device.info()?;
    let mtu = spec.mtu.unwrap_or(1500);
    check_mtu(&spec.name, &info, mtu)?;
    let mut conf = configuration(&info, options, spec.tx_queues, mtu);
    let room = data_room(&info, &conf);
    let pool = eal.pool_for(info.socket, room, Size::Large)?;
    device.set_up(&spec.name, &mut conf, pool.as_raw())?;
    if let Some(mac) = spec.mac {
        device.check("setting the MAC address", &spec.name, |port| {
            // SAFETY: `mac` is six readable bytes.
            unsafe { raw::sluice_eth_set_mac(port, mac.as_ptr()) }
        })?;
    }
    let table = match conf.rx_queues {
        0 | 1 => None,
        count => indirection(&spec.name, device.port, &info, count),
    };
    let shared = Arc::new(Shared {
        port,
        rx_gates: (0..conf.rx_queues).map(|_| Gate::open()).collect(),
        tx_gates: (0..conf.tx_queues).map(|_| Gate::open()).collect(),
        longest: AtomicU32::new(u32::from(mtu) + OVERHEAD),
        checksum: conf.tx_offloads & capability::TX_CHECKSUM == capability::TX_CHECKSUM,
        segmentation: conf.tx_offloads & capability::TX_TCP_SEG != 0,
        chains: conf.tx_offloads & capability::TX_MULTI_SEGMENT != 0
            || takes_chains(&text(&info.driver)),
    });
    let rx = (0..conf.rx_queues)
        .map(|queue| {
            Box::new(EthRx {
                key: shared.rx_gates[usize::from(queue)].key(),
                port,
                queue,
                most: BURST as u16,
                table: (table.as_ref())
                    .map(|table| Receiver::new(table, queue, conf.rx_descriptors)),
            }) as Box<dyn RxQueue<Mbuf>>
        })
        .collect();
    let control = Box::new(EthControl {
        name: spec.name.clone(),
        shared,
        device: ManuallyDrop::new(device),
        conf,
        pool,
        table,
        closed: false,
        configured: true,
        admin_up: true,
        last_link: None,
        link_resets: 0,
    });
    Ok(OpenPort { control, rx })
}

fn find_or_probe(devargs: &str) -> Result<(u16, bool), Error> {
    let because = |why: &str| Error::Attach {
        devargs: devargs.to_string(),
        why: why.into(),
    };
    let attach = || because("no such device");
    if let Some(mac) = devargs.strip_prefix("class=eth,mac=") {
        let mac = parse_mac(mac).ok_or_else(|| because("not an Ethernet address"))?;
        return find_by_mac(mac)
            .map(|port| (port, false))
            .ok_or_else(attach);
    }
    let c_devargs = CString::new(devargs).map_err(|_| because("a zero byte"))?;
    if let Some(port) = matching(&c_devargs).first() {
        return Ok((*port, false));
    }
    // SAFETY: the string outlives the call.
    let (code, why) = with_reason(|| unsafe { raw::rte_dev_probe(c_devargs.as_ptr()) });
    if code != 0 {
        let why = match why.is_empty() {
            true => crate::describe(-code),
            false => why,
        };
        return Err(because(&why));
    }
    matching(&c_devargs)
        .first()
        .map(|port| (*port, true))
        .ok_or_else(attach)
}

fn matching(devargs: &CStr) -> Vec<u16> {
    let mut ports = [0u16; MAX_PORTS];
    // SAFETY: the string outlives the call and the array has the stated length.
    let count = unsafe {
        raw::sluice_eth_matching(
            devargs.as_ptr(),
            ports.as_mut_ptr(),
            ports.len() as libc::c_int,
        )
    };
    ports[..count.max(0) as usize].to_vec()
}

fn find_by_mac(mac: Mac) -> Option<u16> {
    let mut port = 0u16;
    loop {
        // SAFETY: plain values; owner 0 means "not owned".
        let next = unsafe { raw::rte_eth_find_next_owned_by(port, 0) };
        if next >= MAX_PORTS as u64 {
            return None;
        }
        port = next as u16;
        if eth_info(port).is_ok_and(|info| info.mac == mac) {
            return Some(port);
        }
        port += 1;
    }
}

fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 2 {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn eth_info(port: u16) -> Result<EthInfo, i32> {
    let mut info = std::mem::MaybeUninit::<EthInfo>::zeroed();
    // SAFETY: the structure is writable and mirrors the shim's; all zeroes is a valid value of it.
    unsafe {
        match raw::sluice_eth_info(port, info.as_mut_ptr()) {
            0 => Ok(info.assume_init()),
            code => Err(-code),
        }
    }
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters
        .iter()
        .map(|&c| c as u8)
        .take_while(|&c| c != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn check_mtu(name: &str, info: &EthInfo, mtu: u16) -> Result<(), Error> {
    let least = info.min_mtu.max(68);
    let most = match info.max_mtu {
        0 => MAX_MTU,
        most => most.min(MAX_MTU),
    };
    if (least..=most).contains(&mtu) {
        return Ok(());
    }
    Err(Error::Option(format!(
        "{name}: unsupported MTU {mtu}: the device takes {least} to {most}"
    )))
}

fn configuration(info: &EthInfo, options: &Dpdk, tx_queues: u16, mtu: u16) -> EthConf {
    let rx_queues = options.rx_queues.clamp(1, info.max_rx_queues.max(1));
    let long = u32::from(mtu) + OVERHEAD > u32::from(DATA_ROOM);
    let mut rx_offloads = 0;
    if !leaves_checksums(&text(&info.driver)) {
        rx_offloads |= info.rx_offloads & capability::RX_CHECKSUM;
    }
    if long {
        rx_offloads |= info.rx_offloads & capability::RX_SCATTER;
    }
    if rx_queues > 1 {
        rx_offloads |= info.rx_offloads & capability::RX_RSS_HASH;
    }
    let mut tx_offloads = info.tx_offloads & capability::TX_MULTI_SEGMENT;
    if info.tx_offloads & capability::TX_CHECKSUM == capability::TX_CHECKSUM {
        tx_offloads |= capability::TX_CHECKSUM;
        if tx_offloads & capability::TX_MULTI_SEGMENT != 0 {
            tx_offloads |= info.tx_offloads & capability::TX_TCP_SEG;
        }
    }
    EthConf {
        rx_queues,
        tx_queues: tx_queues.clamp(1, info.max_tx_queues.max(1)),
        rx_descriptors: options.rx_descriptors,
        tx_descriptors: options.tx_descriptors,
        mtu,
        pad: 0,
        socket: info.socket.max(0),
        rx_offloads,
        tx_offloads,
        rss_types: info.rss_types,
    }
}

/// A started device's indirection table, behind the driver's calls.
struct DeviceTable(u16);

impl Write for DeviceTable {
    fn write(&mut self, queues: &[u16]) -> Result<(), i32> {
        // SAFETY: the array has the stated length. The device is open, for its table is forgotten
        // before it is closed.
        match unsafe { raw::sluice_eth_write_table(self.0, queues.as_ptr(), queues.len() as u16) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

/// Returns the indirection table of a started device with so many receive queues; None if it has
/// none that can be read.
fn indirection(name: &str, port: u16, info: &EthInfo, count: u16) -> Option<Arc<Table>> {
    let mut queues = vec![0; usize::from(info.table_size)];
    let (mut key, mut length, mut types) = ([0; KEY_MAX], KEY_MAX as u8, 0);
    // SAFETY: the array has the stated length.
    let read = unsafe { raw::sluice_eth_read_table(port, queues.as_mut_ptr(), info.table_size) };
    let driver = text(&info.driver);
    let why = match read {
        _ if queues.is_empty() => "it has none".to_owned(),
        _ if info.rss_types & raw::rss::ALL == 0 => "it hashes neither IP, TCP nor UDP".to_owned(),
        // It stops and starts the device for each change, while workers use it.
        _ if driver.starts_with("mlx5") => format!("{driver} restarts the device for it"),
        0 if queues.iter().all(|queue| *queue < count) => String::new(),
        0 => "it leads to queues that are not used".to_owned(),
        code => crate::describe(-code),
    };
    if !why.is_empty() {
        tracing::info!(target: "dpdk", "{name}: flows cannot be moved by the device's indirection table: {why}");
        return None;
    }
    // SAFETY: the key has the stated length, and the others are writable. If the driver does not
    // tell them, frames without a hash of the device's all count for one entry.
    if unsafe { raw::sluice_eth_read_hash(port, key.as_mut_ptr(), &mut length, &mut types) } != 0 {
        (length, types) = (0, 0);
    }
    let has = |kind: u64| types & kind != 0;
    let kinds = Kinds {
        ipv4: has(raw::rss::IPV4),
        tcp4: has(raw::rss::TCP4),
        udp4: has(raw::rss::UDP4),
        ipv6: has(raw::rss::IPV6),
        tcp6: has(raw::rss::TCP6),
        udp6: has(raw::rss::UDP6),
    };
    let rss = Rss::new(&key[..usize::from(length).min(KEY_MAX)], kinds);
    Table::start(name, &queues, count, rss, Box::new(DeviceTable(port)))
}

/// Returns the data bytes of a buffer: a whole frame if the device cannot scatter one over several.
fn data_room(info: &EthInfo, conf: &EthConf) -> u16 {
    let frame = u32::from(conf.mtu) + OVERHEAD + 4;
    if frame <= u32::from(DATA_ROOM)
        || conf.rx_offloads & capability::RX_SCATTER != 0
        || takes_chains(&text(&info.driver))
    {
        return DATA_ROOM;
    }
    frame.next_multiple_of(1024).min(65_535 - 128) as u16
}

/// Returns whether checksum offload on receive must not be enabled: with it, the other end of such
/// a device may leave checksums unfilled, and frames would arrive unfinished.
fn leaves_checksums(driver: &str) -> bool {
    driver.starts_with("net_virtio") || driver.starts_with("net_vhost")
}

/// Returns whether a virtual driver sends and receives chains without announcing it.
fn takes_chains(driver: &str) -> bool {
    ["net_pcap", "net_null", "net_ring", "net_memif", "net_tap"].contains(&driver)
}

/// A claim of one of our ports on a DPDK port.
struct Claim(u16);

impl Claim {
    fn new(port: u16, name: &str, devargs: &str) -> Result<Claim, Error> {
        let mut used = USED.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(other) = used.get(&port) {
            return Err(Error::Option(format!(
                "'{name}' is trying to use device '{devargs}' which is already in use by '{other}'"
            )));
        }
        used.insert(port, name.to_string());
        Ok(Claim(port))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut used = USED.lock().unwrap_or_else(|poison| poison.into_inner());
        used.remove(&self.0);
    }
}

/// A DPDK port of ours. When dropped it is stopped, closed and, if it was plugged in for us,
/// unplugged.
struct Device {
    port: u16,
    probed: bool,
    claim: Claim,
}

impl Device {
    fn info(&self) -> Result<EthInfo, Error> {
        eth_info(self.port).map_err(|errno| Error::Device {
            name: format!("DPDK port {}", self.port),
            what: "asking the driver".into(),
            errno,
        })
    }

    fn check(&self, what: &str, name: &str, act: impl FnOnce(u16) -> i32) -> Result<(), Error> {
        match act(self.port) {
            0 => Ok(()),
            code => Err(Error::Device {
                name: name.to_string(),
                what: what.to_string(),
                errno: -code,
            }),
        }
    }

    /// Configures the stopped port and starts it.
    fn set_up(&self, name: &str, conf: &mut EthConf, pool: *mut raw::RawPool) -> Result<(), Error> {
        self.check("configuring the device", name, |port| {
            // SAFETY: the structure mirrors the shim's; the pool lives as long as the EAL.
            unsafe { raw::sluice_eth_setup(port, conf, pool) }
        })?;
        self.check("starting the device", name, |port| {
            // SAFETY: plain values; the port is configured.
            unsafe { raw::rte_eth_dev_start(port) }
        })?;
        // SAFETY: plain values. Devices that do not support this receive everything anyway.
        unsafe {
            raw::rte_eth_promiscuous_enable(self.port);
            raw::rte_eth_allmulticast_enable(self.port);
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _plugging = PLUGGING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the gates of all queues are closed or were never handed out, so nobody is using
        // the port; the device is asked for before the port goes and used while it is still
        // plugged in.
        unsafe {
            let device = raw::sluice_eth_device(self.claim.0);
            raw::rte_eth_dev_stop(self.port);
            raw::rte_eth_dev_close(self.port);
            // Devices are opened and closed one at a time (`switchd::switch::aside`).
            raw::sluice_xsk_delete_left();
            if self.probed && !device.is_null() {
                let code = raw::rte_dev_remove(device);
                if code != 0 {
                    tracing::warn!(target: "dpdk", "DPDK port {} cannot be detached ({})", self.port, crate::describe(-code));
                }
            }
        }
    }
}

/// Detaches a device from DPDK by its name on the bus, unless ports use it.
pub(crate) fn detach(name: &str) -> Result<(), DetachError> {
    let _plugging = PLUGGING.lock().unwrap_or_else(PoisonError::into_inner);
    let used = USED.lock().unwrap_or_else(|poison| poison.into_inner());
    let mut users = Vec::new();
    let mut found = std::ptr::null_mut();
    let mut ports = Vec::new();
    for port in 0..MAX_PORTS as u16 {
        // SAFETY: plain values; the name lives as long as the device, which nobody detaches
        // meanwhile. Asking about a number without a port would be logged as an error.
        let is_named = unsafe {
            raw::rte_eth_dev_is_valid_port(port) != 0 && {
                let its = raw::sluice_eth_device_name(port);
                !its.is_null() && CStr::from_ptr(its).to_bytes() == name.as_bytes()
            }
        };
        if !is_named {
            continue;
        }
        if let Some(user) = used.get(&port) {
            users.push(user.clone());
        }
        // SAFETY: plain values.
        found = unsafe { raw::sluice_eth_device(port) };
        ports.push(port);
    }
    if !users.is_empty() {
        let device = name.to_owned();
        return Err(DetachError::InUse { device, users });
    }
    if found.is_null() {
        return Err(DetachError::NotFound(name.to_owned()));
    }
    for port in ports {
        // SAFETY: no port of ours uses it, so no worker does.
        unsafe { raw::rte_eth_dev_close(port) };
    }
    // SAFETY: as above; devices are opened and closed one at a time.
    match unsafe { raw::rte_dev_remove(found) } {
        0 => Ok(()),
        _ => Err(DetachError::Failed(name.to_owned())),
    }
}

/// State shared by the control thread and the workers.
struct Shared {
    port: u16,
    rx_gates: Box<[Gate]>,
    tx_gates: Box<[Gate]>,
    /// Longest frame that may be sent.
    longest: AtomicU32,
    checksum: bool,
    segmentation: bool,
    chains: bool,
}

impl Shared {
    fn gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        self.rx_gates.iter().chain(self.tx_gates.iter())
    }

    /// Closes the gates; returns false if a worker has not left within [`LONGEST_BURST`].
    fn close(&self) -> bool {
        Gate::close_all_within(self.gates(), LONGEST_BURST)
    }

    fn reopen(&self) {
        self.gates().for_each(Gate::reopen);
    }
}

/// Fewest frames asked for at a time: some drivers take frames by eight only.
const FEWEST: u16 = 8;

struct EthRx {
    key: Key,
    port: u16,
    queue: u16,
    /// Most frames asked for at a time, at most [`BURST`].
    most: u16,
    table: Option<Receiver<Mbuf>>,
}

impl EthRx {
    /// Appends the frames that the driver has; None if the device is stopped or gone.
    #[inline(always)]
    fn poll(&mut self, out: &mut Vec<Mbuf>) -> Option<usize> {
        let _inside = self.key.try_enter()?;
        out.reserve(BURST);
        let len = out.len();
        // SAFETY: there is room for BURST more pointers; the driver writes as many valid mbufs as
        // it says, whose chains are ours alone from then on. The gate keeps the port
        // started.
        unsafe {
            let room = out.as_mut_ptr().add(len).cast();
            let count = usize::from(raw::sluice_rx_burst(self.port, self.queue, room, self.most));
            out.set_len(len + count);
            Some(count)
        }
    }

    /// Receives frames; `finished` if all that have been received before are finished.
    #[inline(always)]
    fn take(&mut self, out: &mut Vec<Mbuf>, finished: bool) -> usize {
        let most = usize::from(self.most);
        if let Some(table) = &mut self.table
            && let Some(count) = table.before(most, finished, out)
        {
            return count;
        }
        let first = out.len();
        let Some(count) = self.poll(out) else {
            return 0;
        };
        match &mut self.table {
            Some(table) => table.after(out, first, most, Mbuf::hash),
            None => count,
        }
    }
}

impl RxQueue<Mbuf> for EthRx {
    /// No driver marks frames as other ports do ([`mbuf::WORK`]), and those that pass on a guest's
    /// unfinished checksums are not asked to check any ([`leaves_checksums`]).
    fn never_offloads(&self) -> bool {
        true
    }

    fn limit(&mut self, most: usize) {
        self.most = (most.min(BURST) as u16).next_multiple_of(FEWEST);
    }

    #[inline]
    fn receive(&mut self, out: &mut Vec<Mbuf>) -> usize {
        self.take(out, true)
    }

    fn receive_more(&mut self, out: &mut Vec<Mbuf>) -> usize {
        self.take(out, false)
    }
}

struct EthTx {
    shared: Arc<Shared>,
    key: Key,
    queue: u16,
    scratch: Vec<Mbuf>,
}

impl TxQueue<Mbuf> for EthTx {
    fn send_finished(&mut self, frames: &mut Vec<Mbuf>, lengths: Lengths) -> TxOutcome {
        let Some((inside, open)) = self.enter() else {
            return refused(frames, TxOutcome::default());
        };
        if lengths.most <= u64::from(open.longest) && open.shared.chains {
            return open.transmit(&inside, frames, lengths.bytes, false, TxOutcome::default());
        }
        // Some may be too long for the device, or the driver wants them in one piece.
        drop(inside);
        self.send(frames)
    }

    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let seen = self.shared.longest.load(Ordering::Relaxed);
        let scan = egress::scan(frames, seen);
        if scan.special || (scan.chained && !self.shared.chains) {
            return self.send_special(frames, seen);
        }
        let Some((inside, open)) = self.enter() else {
            return refused(frames, TxOutcome::default());
        };
        if open.longest != seen {
            // The MTU has been changed meanwhile.
            let longest = open.longest;
            drop(inside);
            return self.send_special(frames, longest);
        }
        open.transmit(&inside, frames, scan.bytes, false, TxOutcome::default())
    }
}

impl Shared {
    /// Returns the device's capabilities while `longest` is its longest frame.
    fn abilities(&self, longest: u32) -> Abilities {
        Abilities {
            longest,
            checksum: self.checksum,
            tcp_segmentation: self.segmentation,
            udp_segmentation: false,
            chains: self.chains,
        }
    }
}

impl EthTx {
    /// Sends frames of which some are not as the device takes them; `longest` is its longest frame.
    /// Slow work is done before the gate is entered, since others may wait there.
    #[cold]
    fn send_special(&mut self, frames: &mut Vec<Mbuf>, longest: u32) -> TxOutcome {
        let abilities = self.shared.abilities(longest);
        let mut slice = std::mem::take(&mut self.scratch);
        let send = |slice: &mut Vec<Mbuf>| self.send_slice(slice, longest);
        let outcome = egress::send_in_slices(frames, &mut slice, &abilities, send);
        self.scratch = slice;
        outcome
    }

    /// Sends frames that were prepared when `seen` was the longest length.
    fn send_slice(&mut self, slice: &mut Vec<Mbuf>, seen: u32) -> TxOutcome {
        let Some((inside, open)) = self.enter() else {
            return refused(slice, TxOutcome::default());
        };
        let mut outcome = TxOutcome::default();
        if open.longest < seen {
            // The MTU has been changed meanwhile.
            let longest = open.longest as usize;
            slice.retain(|frame| {
                let offload = frame.offload();
                let len = match offload.gso {
                    Gso::None => frame.len(),
                    // A segment's transport header is at most 60 bytes long.
                    _ => usize::from(offload.csum_start) + 60 + usize::from(offload.gso_size),
                };
                outcome.too_long += u64::from(len > longest);
                len <= longest
            });
        }
        let bytes = slice.iter().map(|frame| frame.len() as u64).sum();
        let mark = |work, frame| egress::mark_for_driver(frame) | work;
        let work = slice.iter_mut().fold(false, mark);
        open.transmit(&inside, slice, bytes, work, outcome)
    }
}

impl EthTx {
    /// Enters the gate, and only then reads the longest frame length, which changes while the gate
    /// is closed.
    #[inline(always)]
    fn enter(&mut self) -> Option<(Inside<'_>, OpenTx<'_>)> {
        let inside = self.key.enter()?;
        let longest = self.shared.longest.load(Ordering::Relaxed);
        let open = OpenTx {
            shared: &self.shared,
            queue: self.queue,
            longest,
        };
        Some((inside, open))
    }
}

/// Drops and counts frames for a device that is stopped or gone, or whose queue stays busy.
/// `outcome` counts other frames.
#[cold]
fn refused(frames: &mut Vec<Mbuf>, mut outcome: TxOutcome) -> TxOutcome {
    outcome.failed += frames.len() as u64;
    mbuf::free_all(frames);
    outcome
}

/// A transmit queue while its user is inside the gate.
struct OpenTx<'a> {
    shared: &'a Shared,
    queue: u16,
    /// Longest frame that may be sent while inside.
    longest: u32,
}

impl OpenTx<'_> {
    /// Passes frames, of `bytes` in total, to the driver; `work` says whether the driver must first
    /// prepare offloads.
    #[inline(always)]
    fn transmit(
        self,
        _inside: &Inside<'_>,
        frames: &mut Vec<Mbuf>,
        bytes: u64,
        work: bool,
        mut outcome: TxOutcome,
    ) -> TxOutcome {
        let shared = self.shared;
        // SAFETY: the vector holds pointers to chains it owns. The driver takes over those it says
        // it sent, and the vector forgets all of them before the rest are freed. The gate
        // keeps the port started and other senders out.
        unsafe {
            let end = frames.as_mut_ptr_range().end.cast::<*mut raw::RawMbuf>();
            let mut next = frames.as_mut_ptr().cast::<*mut raw::RawMbuf>();
            frames.set_len(0);
            let mut lost = 0;
            while next < end {
                let mut burst = end.offset_from(next).min(isize::from(i16::MAX)) as u16;
                if work {
                    burst = raw::sluice_tx_prepare(shared.port, self.queue, next, burst);
                    if burst == 0 {
                        // The driver refuses this frame for good, but may accept those behind it.
                        lost += u64::from((**next).packet_len);
                        outcome.failed += 1;
                        raw::sluice_mbuf_free(*next);
                        next = next.add(1);
                        continue;
                    }
                }
                let taken = raw::sluice_tx_burst(shared.port, self.queue, next, burst);
                if taken == 0 {
                    break;
                }
                outcome.packets += u64::from(taken);
                next = next.add(usize::from(taken));
            }
            while next < end {
                lost += u64::from((**next).packet_len);
                outcome.full += 1;
                raw::sluice_mbuf_free(*next);
                next = next.add(1);
            }
            outcome.bytes += bytes - lost;
        }
        outcome
    }
}

/// The control thread's side.
struct EthControl {
    name: String,
    shared: Arc<Shared>,
    /// Taken out on drop.
    device: ManuallyDrop<Device>,
    conf: EthConf,
    pool: Pool,
    /// Its indirection table, where it has one and several queues.
    table: Option<Arc<Table>>,
    /// Whether the device has been stopped and did not start again.
    closed: bool,
    /// Whether its queues are as `conf` says; false if setting them up has failed halfway.
    configured: bool,
    admin_up: bool,
    last_link: Option<bool>,
    link_resets: u64,
}

impl EthControl {
    /// Stops the device while no worker is in it, runs `act`, and starts it again. If it does not
    /// start, its gates stay closed, and the error is [`Error::Closed`]. If a worker is stuck in
    /// it, nothing is done.
    fn while_stopped(
        &mut self,
        act: impl FnOnce(&mut EthControl) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.shared.close() {
            if !self.closed {
                self.shared.reopen();
            }
            return Err(Error::Device {
                name: self.name.clone(),
                what: "waiting for a worker to leave the device".to_owned(),
                errno: libc::EBUSY,
            });
        }
        // A copy, since `act` has the rest.
        let table = self.table.clone();
        let mut table = table.as_ref().map(|table| table.hold());
        // SAFETY: no worker is inside.
        unsafe { raw::rte_eth_dev_stop(self.device.port) };
        let result = act(self);
        let configured = match self.configured {
            true => Ok(()),
            false => self.set_up(self.conf.clone()),
        };
        let started = configured.and_then(|()| {
            (self.device).check("starting the device", &self.name, |port| {
                // SAFETY: the port is configured.
                unsafe { raw::rte_eth_dev_start(port) }
            })
        });
        self.closed = started.is_err();
        let Err(why) = started else {
            if let Some(table) = &mut table {
                table.rewrite();
            }
            self.shared.reopen();
            return result;
        };
        if let Some(table) = &mut table {
            table.suspend();
        }
        let why = match result {
            Ok(()) => why.to_string(),
            Err(first) => format!("{first}; {why}"),
        };
        Err(Error::Closed { why })
    }

    /// Configures the stopped device and its queues by `conf`.
    fn set_up(&mut self, mut conf: EthConf) -> Result<(), Error> {
        self.configured = false;
        let pool = self.pool.as_raw();
        (self.device).check("configuring the device", &self.name, |port| {
            // SAFETY: the structure mirrors the shim's; the pool lives as long as the EAL.
            unsafe { raw::sluice_eth_setup(port, &mut conf, pool) }
        })?;
        self.configured = true;
        self.conf = conf;
        Ok(())
    }

    /// Returns the driver's counters that Open vSwitch shows, in the driver's order.
    fn counters(&self) -> Vec<(String, u64)> {
        let port = self.device.port;
        // SAFETY: with no room given, the count is returned.
        let count = unsafe { raw::rte_eth_xstats_get_names(port, std::ptr::null_mut(), 0) };
        let Ok(count) = usize::try_from(count) else {
            return Vec::new();
        };
        let mut names = vec![EthCounterName { name: [0; 64] }; count];
        let mut values = vec![EthCounter::default(); count];
        // SAFETY: both arrays have the stated length.
        let (named, valued) = unsafe {
            (
                raw::rte_eth_xstats_get_names(port, names.as_mut_ptr(), count as u32),
                raw::rte_eth_xstats_get(port, values.as_mut_ptr(), count as u32),
            )
        };
        if named != count as i32 || valued < 0 {
            return Vec::new();
        }
        values
            .iter()
            .take(valued as usize)
            .filter_map(|counter| {
                let name = shown_name(text(&names.get(counter.id as usize)?.name))?;
                Some((name, counter.value))
            })
            .collect()
    }
}

/// Returns the name in `Interface.statistics` of a driver's counter, as Open vSwitch's netdev-dpdk
/// chooses it: packets by size and kind by their names in the database; and by the driver's, what
/// queues receive and send, errors, drops and packets of the management. None for all others.
fn shown_name(name: String) -> Option<String> {
    let size = name.split_once("_size_").and_then(|(way, size)| {
        let size = match size {
            "64_packets" => "1_to_64_packets",
            "65_to_127_packets"
            | "128_to_255_packets"
            | "256_to_511_packets"
            | "512_to_1023_packets"
            | "1024_to_1522_packets"
            | "1523_to_max_packets" => size,
            _ => return None,
        };
        matches!(way, "rx" | "tx").then(|| format!("{way}_{size}"))
    });
    let of_queue = || {
        let queue = name
            .strip_prefix("rx_q")
            .or_else(|| name.strip_prefix("tx_q"));
        queue.is_some_and(|queue| {
            let counter = queue.trim_start_matches(|digit: char| digit.is_ascii_digit());
            counter.len() < queue.len() && matches!(counter, "_packets" | "_bytes")
        })
    };
    let shown = name.ends_with("_errors")
        || name.ends_with("_dropped")
        || name.contains("_management_")
        || matches!(
            name.as_str(),
            "rx_multicast_packets"
                | "tx_multicast_packets"
                | "rx_broadcast_packets"
                | "tx_broadcast_packets"
        )
        || of_queue();
    size.or_else(|| shown.then_some(name))
}

impl PortControl for EthControl {
    fn pool(&self) -> Option<Pool> {
        Some(self.pool)
    }

    fn indirection(&self) -> Option<Arc<dyn Indirection>> {
        let table = self.table.as_ref()?;
        Some(Arc::clone(table) as Arc<dyn Indirection>)
    }

    fn tx_queue(&mut self, worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        let queue = worker % self.shared.tx_gates.len();
        Ok(Box::new(EthTx {
            shared: self.shared.clone(),
            key: self.shared.tx_gates[queue].key(),
            queue: queue as u16,
            scratch: Vec::new(),
        }))
    }

    fn info(&mut self) -> PortInfo {
        let mut link = EthLink::default();
        // SAFETY: the structure mirrors the shim's.
        let known = unsafe { raw::sluice_eth_link(self.device.port, &mut link) } == 0;
        let up = known && link.up != 0 && !self.closed;
        if self.last_link.is_some_and(|last| last != up) {
            self.link_resets += 1;
        }
        self.last_link = Some(up);
        let info = self.device.info().ok();
        PortInfo {
            present: info.is_some(),
            mac: info.as_ref().map(|info| info.mac).unwrap_or_default(),
            mtu: self.conf.mtu,
            ifindex: info.as_ref().map(|info| info.if_index).unwrap_or_default(),
            admin_up: self.admin_up,
            link_up: up,
            link_speed: u64::from(link.speed_mbps) * 1_000_000,
            full_duplex: known.then_some(link.full_duplex != 0),
            link_resets: self.link_resets,
        }
    }

    fn status(&mut self) -> Vec<(String, String)> {
        let Ok(info) = self.device.info() else {
            return Vec::new();
        };
        let driver = text(&info.driver);
        let mut status = vec![
            ("port_no".to_string(), self.device.port.to_string()),
            ("numa_id".to_string(), info.socket.max(0).to_string()),
            ("driver_name".to_string(), driver.clone()),
            (
                "if_descr".to_string(),
                format!("{} {driver}", crate::eal::version()),
            ),
            ("if_type".to_string(), "6".to_string()),
        ];
        for (key, value) in [
            ("min_rx_bufsize", info.min_rx_bufsize),
            ("max_rx_pktlen", u32::from(self.conf.mtu) + OVERHEAD),
            ("max_rx_queues", u32::from(info.max_rx_queues)),
            ("max_tx_queues", u32::from(info.max_tx_queues)),
            ("max_mac_addrs", info.max_mac_addrs),
            ("max_hash_mac_addrs", info.max_hash_mac_addrs),
            ("max_vfs", u32::from(info.max_vfs)),
            ("max_vmdq_pools", u32::from(info.max_vmdq_pools)),
            ("n_rxq", u32::from(self.conf.rx_queues)),
            ("n_txq", u32::from(self.conf.tx_queues)),
        ] {
            status.push((key.to_string(), value.to_string()));
        }
        let rx_checksum =
            self.conf.rx_offloads & capability::RX_CHECKSUM == capability::RX_CHECKSUM;
        status.push(("rx_csum_offload".to_string(), rx_checksum.to_string()));
        status
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        let mut stats = EthStats::default();
        // SAFETY: the structure mirrors the shim's.
        if unsafe { raw::sluice_eth_stats(self.device.port, &mut stats) } != 0 {
            return Vec::new();
        }
        let mut named = self.counters();
        for (name, value) in [
            ("rx_packets", stats.rx_packets),
            ("rx_bytes", stats.rx_bytes),
            ("rx_errors", stats.rx_errors),
            ("rx_dropped", stats.rx_missed + stats.rx_no_buffer),
            ("rx_missed_errors", stats.rx_missed),
            ("tx_packets", stats.tx_packets),
            ("tx_bytes", stats.tx_bytes),
            ("tx_errors", stats.tx_errors),
        ] {
            match named.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = value,
                None => named.push((name.to_string(), value)),
            }
        }
        named
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        if mtu == self.conf.mtu {
            return match self.closed {
                true => self.while_stopped(|_| Ok(())),
                false => Ok(()),
            };
        }
        let info = self.device.info()?;
        check_mtu(&self.name, &info, mtu)?;
        if data_room(
            &info,
            &EthConf {
                mtu,
                ..self.conf.clone()
            },
        ) > data_room(&info, &self.conf)
        {
            return Err(Error::Unsupported {
                name: self.name.clone(),
                what: format!(
                    "MTU {mtu} while the port is open: its buffers are too short; the port must be opened again, which"
                ),
            });
        }
        self.while_stopped(|control| {
            // SAFETY: plain values; the port is stopped and no worker inside.
            let code = unsafe { raw::rte_eth_dev_set_mtu(control.device.port, mtu) };
            // Virtual devices without an MTU of their own accept any.
            if code != 0 && code != -libc::ENOTSUP {
                return Err(Error::Device {
                    name: control.name.clone(),
                    what: format!("setting MTU {mtu}"),
                    errno: -code,
                });
            }
            let mut conf = EthConf {
                mtu,
                ..control.conf.clone()
            };
            if u32::from(mtu) + OVERHEAD > u32::from(DATA_ROOM) {
                conf.rx_offloads |= info.rx_offloads & capability::RX_SCATTER;
            }
            if conf.rx_offloads != control.conf.rx_offloads {
                control.set_up(conf)?;
            } else {
                control.conf = conf;
            }
            control
                .shared
                .longest
                .store(u32::from(mtu) + OVERHEAD, Ordering::Relaxed);
            Ok(())
        })
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        // DPDK lets one thread at a time change a device.
        let _held = self.table.as_ref().map(|table| table.hold());
        self.device
            .check("setting the MAC address", &self.name, |port| {
                // SAFETY: `mac` is six readable bytes.
                unsafe { raw::sluice_eth_set_mac(port, mac.as_ptr()) }
            })
    }

    fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        let _held = self.table.as_ref().map(|table| table.hold());
        // SAFETY: plain values.
        let code = unsafe {
            if up {
                raw::rte_eth_dev_set_link_up(self.device.port)
            } else {
                raw::rte_eth_dev_set_link_down(self.device.port)
            }
        };
        if code != 0 && code != -libc::ENOTSUP {
            return Err(Error::Device {
                name: self.name.clone(),
                what: format!("setting the link {}", if up { "up" } else { "down" }),
                errno: -code,
            });
        }
        self.admin_up = up;
        Ok(())
    }

    fn close(self: Box<Self>) {}
}

impl Drop for EthControl {
    /// Closes the device, or leaves that for later if a worker is stuck in it: closing would free
    /// memory in use.
    fn drop(&mut self) {
        if let Some(table) = &self.table {
            table.hold().close();
        }
        let left = self.shared.close();
        // SAFETY: it is not used after this.
        let device = unsafe { ManuallyDrop::take(&mut self.device) };
        if !left {
            tracing::error!(target: "dpdk", "{}: a worker has not left the device, which is closed once it has", self.name);
            let shared = Arc::clone(&self.shared);
            let mut waiting = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(LeftBehind { shared, device });
        }
        close_those_left();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mbuf::kept::{self, Kept};
    use std::time::Instant;

    /// Returns a port without a device: DPDK refuses all calls with its number.
    fn without_device(port: u16) -> EthControl {
        let shared = Arc::new(Shared {
            port,
            rx_gates: Box::new([Gate::open()]),
            tx_gates: Box::new([Gate::open()]),
            longest: AtomicU32::new(1518),
            checksum: false,
            segmentation: false,
            chains: true,
        });
        // SAFETY: all of it are plain numbers.
        let info: EthInfo = unsafe { std::mem::zeroed() };
        EthControl {
            name: "dpdk7".into(),
            shared,
            device: ManuallyDrop::new(Device {
                port,
                probed: false,
                claim: Claim::new(port, "dpdk7", "none").expect("a number of its own"),
            }),
            conf: configuration(&info, &Dpdk::new("none"), 1, 1500),
            pool: Pool::none(),
            table: None,
            closed: false,
            configured: true,
            admin_up: true,
            last_link: None,
            link_resets: 0,
        }
    }

    /// Returns a worker's access to the first transmit queue.
    fn sender(shared: &Arc<Shared>) -> EthTx {
        EthTx {
            shared: Arc::clone(shared),
            key: shared.tx_gates[0].key(),
            queue: 0,
            scratch: Vec::new(),
        }
    }

    /// A sender that waits for another one sees an MTU that was changed meanwhile.
    #[test]
    fn how_long_frames_may_be_is_asked_inside_the_gate() {
        let control = without_device(MAX_PORTS as u16 - 2);
        let shared = &control.shared;
        let mut holder = shared.tx_gates[0].key();
        let mut sender = sender(shared);
        for longest in 100..110 {
            let inside = holder.enter().expect("open");
            let waits = AtomicU32::new(0);
            std::thread::scope(|scope| {
                let seen = scope.spawn(|| {
                    waits.store(1, Ordering::SeqCst);
                    loop {
                        // The wait is bounded, so repeat it.
                        if let Some((_inside, open)) = sender.enter() {
                            return open.longest;
                        }
                    }
                });
                while waits.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                (0..100).for_each(|_| std::thread::yield_now());
                shared.longest.store(longest, Ordering::Relaxed);
                drop(inside);
                assert_eq!(seen.join().ok(), Some(longest));
            });
        }
        // A closed gate is not asked for the length.
        shared.close();
        assert!(sender.enter().is_none());
        assert_eq!(sender.send(&mut Vec::new()), TxOutcome::default());
    }

    /// Frames are prepared while another worker has the queue, and checked again if the MTU has
    /// changed since.
    #[test]
    fn frames_are_prepared_before_the_gate_is_entered() {
        let control = without_device(MAX_PORTS as u16 - 3);
        let shared = &control.shared;
        let mut holder = shared.tx_gates[0].key();
        let mut sender = sender(shared);
        let (mut unfinished, mut long) = (Kept::new(), Kept::new());
        let outcome = loop {
            shared.longest.store(1518, Ordering::Relaxed);
            let mut frames = vec![kept::unfinished(&mut unfinished), long.frame(&[0; 1519])];
            let inside = holder.enter().expect("open");
            let outcome = std::thread::scope(|scope| {
                let sent = scope.spawn(|| sender.send(&mut frames));
                let end = Instant::now() + Duration::from_secs(60);
                while !long.is_freed() && Instant::now() < end {
                    std::thread::yield_now();
                }
                shared.longest.store(59, Ordering::Relaxed);
                drop(inside);
                sent.join().expect("a sender")
            });
            assert!(kept::is_finished(&mut unfinished));
            if outcome.failed == 0 {
                break outcome;
            }
            // The sender has given up waiting.
            assert_eq!((outcome.too_long, outcome.failed), (1, 1));
        };
        let wanted = TxOutcome {
            too_long: 2,
            ..TxOutcome::default()
        };
        assert_eq!(outcome, wanted);
    }

    /// A worker stuck in a device delays nobody else, and the device is closed only after it has
    /// left.
    #[test]
    fn a_device_that_a_worker_does_not_leave_is_closed_later() {
        const PORT: u16 = MAX_PORTS as u16 - 4;
        let mut control = without_device(PORT);
        let mut key = control.shared.rx_gates[0].key();
        let mut other = control.shared.tx_gates[0].key();
        let used = || USED.lock().expect("nobody failed").contains_key(&PORT);
        let inside = key.try_enter();
        assert!(inside.is_some());
        let changed = control.while_stopped(|_| unreachable!());
        assert!(matches!(changed, Err(Error::Device { errno, .. }) if errno == libc::EBUSY));
        assert!(other.try_enter().is_some(), "it works on");
        drop(control);
        assert!(other.try_enter().is_none());
        close_those_left();
        assert!(used(), "a worker is in it");
        drop(inside);
        close_those_left();
        // Another test may be closing it just now.
        let end = Instant::now() + Duration::from_secs(60);
        while used() && Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(!used());
    }

    #[test]
    fn a_device_that_does_not_start_again_is_told_of_and_tried_again() {
        let mut control = without_device(MAX_PORTS as u16 - 1);
        let gone = crate::describe(libc::ENODEV);
        let closed = |why: String| Err(Error::Closed { why });
        let start = format!("dpdk7: starting the device failed ({gone})");
        assert_eq!(control.set_mtu(1500), Ok(()), "nothing to do");
        assert_eq!(control.while_stopped(|_| Ok(())), closed(start.clone()));
        let mut key = control.shared.rx_gates[0].key();
        assert!(key.try_enter().is_none());
        assert!(!control.info().link_up);
        // Setting the present MTU fails in the same way.
        assert_eq!(control.set_mtu(1500), closed(start.clone()));
        // The first failure is not forgotten.
        let refused = || Error::Device {
            name: "dpdk7".into(),
            what: "setting MTU 9000".into(),
            errno: libc::EINVAL,
        };
        let why = format!("{}; {start}", refused());
        assert_eq!(
            control.while_stopped(|_| Err(refused())),
            closed(why.clone())
        );
        assert_eq!(
            Error::Closed { why: why.clone() }.to_string(),
            format!("{why}; the port is closed")
        );
    }

    #[test]
    fn counters_of_drivers_are_shown_by_the_names_of_the_database() {
        let shown = |name: &str| shown_name(name.to_string());
        for (name, wanted) in [
            ("rx_size_64_packets", Some("rx_1_to_64_packets")),
            (
                "tx_size_1523_to_max_packets",
                Some("tx_1523_to_max_packets"),
            ),
            ("rx_q12_packets", Some("rx_q12_packets")),
            ("tx_q0_bytes", Some("tx_q0_bytes")),
            ("rx_q3_errors", Some("rx_q3_errors")),
            ("rx_crc_errors", Some("rx_crc_errors")),
            ("tx_management_packets", Some("tx_management_packets")),
            ("tx_dropped", Some("tx_dropped")),
            ("rx_broadcast_packets", Some("rx_broadcast_packets")),
            ("rx_good_packets", None),
            ("rx_q_packets", None),
            ("rx_q0_good_packets", None),
            ("rx_q0_size_64_packets", None),
            ("rx_size_1519_max_packets", None),
        ] {
            assert_eq!(shown(name).as_deref(), wanted, "{name}");
        }
    }

    /// The other end of a virtio device may leave checksums unfilled if the device is to check
    /// them.
    #[test]
    fn virtio_devices_are_not_asked_to_check_checksums() {
        let asked = |driver: &str| {
            // SAFETY: all of it are plain numbers.
            let mut info: EthInfo = unsafe { std::mem::zeroed() };
            for (to, byte) in info.driver.iter_mut().zip(driver.bytes()) {
                *to = byte as std::ffi::c_char;
            }
            info.rx_offloads = capability::RX_CHECKSUM | capability::RX_SCATTER;
            (info.max_rx_queues, info.max_tx_queues) = (1, 1);
            configuration(&info, &Dpdk::new("any"), 1, 9000).rx_offloads
        };
        for driver in ["net_virtio_user", "net_virtio", "net_vhost"] {
            assert_eq!(asked(driver), capability::RX_SCATTER, "{driver}");
        }
        assert_eq!(
            asked("net_ice"),
            capability::RX_CHECKSUM | capability::RX_SCATTER
        );
    }
}
