//! Kernel interfaces: veth pairs and TAP devices, in a separate network namespace for each test.

use crate::support::{bytes, eal, info_of, open, receive, send, udp};
use packet::frame::{Frame, Gso};
use packet::io::TxQueue;
use ports::{Error, LinkChanges, LinkEvents, Mbuf, OpenPort, PortInfo, PortSpec, PortType};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Moves the calling thread into a new network namespace, which is deleted with it.
pub fn own_namespace() {
    eal();
    // SAFETY: plain value; only the calling thread moves.
    let code = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(code, 0, "a network namespace");
    ip("link set lo up");
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("ip runs");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A named network namespace of this test, deleted when dropped.
struct Elsewhere(String);

impl Elsewhere {
    fn new(name: &str) -> Elsewhere {
        let name = format!("{name}-{}", std::process::id());
        ip(&format!("netns add {name}"));
        Elsewhere(name)
    }

    /// Moves an interface there.
    fn take(&self, interface: &str) {
        ip(&format!("link set {interface} netns {}", self.0));
    }

    fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.0));
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let arguments = ["netns", "del", &self.0];
        let _ = Command::new("ip").args(arguments).status();
    }
}

pub fn veth(a: &str, b: &str, mtu: u16) {
    ip(&format!(
        "link add {a} mtu {mtu} type veth peer name {b} mtu {mtu}"
    ));
    for name in [a, b] {
        ip(&format!("link set {name} addrgenmode none"));
        ip(&format!("link set {name} up"));
    }
}

pub fn system(name: &str) -> OpenPort {
    open(&PortSpec::new(name, PortType::System))
}

fn sender(port: &mut OpenPort) -> Box<dyn TxQueue<Mbuf>> {
    port.control.tx_queue(0).expect("a transmit queue")
}

fn readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 5000) == 1 }
}

/// Returns `frame` with a VLAN tag behind its addresses.
fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    out.extend(tpid.to_be_bytes());
    out.extend(tci.to_be_bytes());
    out.extend(&frame[12..]);
    out
}

#[test]
fn frames_pass_a_veth_with_their_tags() {
    own_namespace();
    veth("va", "vb", 1500);
    let (mut a, mut b) = (system("va"), system("vb"));
    let mut tx = sender(&mut a);
    let plain = udp(100);
    let frames = [
        plain.clone(),
        tagged(&plain, 0x8100, 5),
        tagged(&plain, 0x8100, 0x6005),
        tagged(&plain, 0x88a8, 7),
        tagged(&tagged(&plain, 0x8100, 5), 0x88a8, 7),
        tagged(&plain, 0x8100, 0),
        udp(1472),
        tagged(&udp(1472), 0x8100, 9),
    ];
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let outcome = send(&mut *tx, &slices);
    assert_eq!(outcome.packets, frames.len() as u64, "{outcome:?}");
    assert_eq!(
        outcome.bytes,
        frames.iter().map(|frame| frame.len() as u64).sum::<u64>()
    );
    assert!(readable(b.rx[0].wait_fd().unwrap()));
    let got = receive(&mut *b.rx[0], frames.len());
    assert_eq!(bytes(&got), frames);
    assert!(got.iter().all(|frame| frame.headroom() >= 64));
    // A port does not receive what it sends.
    assert_eq!(a.rx[0].receive(&mut Vec::new()), 0);
}

#[test]
fn a_frame_of_too_many_buffers_costs_no_other() {
    own_namespace();
    veth("va", "vb", 1500);
    let (mut a, mut b) = (system("va"), system("vb"));
    let mut tx = sender(&mut a);
    // More buffers than the kernel takes in one list (1024); a guest can make such frames.
    let endless = vec![0; 1100 * 2048];
    let outcome = send(&mut *tx, &[&udp(100), &endless, &udp(200)]);
    assert_eq!(outcome.packets, 2, "{outcome:?}");
    assert_eq!(outcome.failed, 1, "{outcome:?}");
    let got = receive(&mut *b.rx[0], 2);
    assert_eq!(bytes(&got), [udp(100), udp(200)]);
}

#[test]
fn frames_of_odd_lengths_are_sent_or_counted() {
    own_namespace();
    veth("va", "vb", 1500);
    let (mut a, mut b) = (system("va"), system("vb"));
    let mut tx = sender(&mut a);
    let last = udp(7);
    let outcome = send(&mut *tx, &[&[], &[1], &[0; 13], &[0; 9000], &last]);
    assert_eq!(
        (outcome.packets, outcome.too_long, outcome.failed),
        (1, 1, 3),
        "{outcome:?}"
    );
    assert_eq!(bytes(&receive(&mut *b.rx[0], 1)), [last]);
}

#[test]
fn jumbo_frames_pass_in_several_segments() {
    own_namespace();
    veth("va", "vb", 9000);
    let (mut a, mut b) = (system("va"), system("vb"));
    assert_eq!(info_of(&mut a).mtu, 9000);
    let mut tx = sender(&mut a);
    let frame = udp(8972);
    assert_eq!(send(&mut *tx, &[&frame]).packets, 1);
    let got = receive(&mut *b.rx[0], 1);
    assert!(got[0].segment_count() > 1);
    assert_eq!(got[0].to_vec(), frame);
}

/// Lock for tests that check which buffers frames consist of: there are few long ones, shared by
/// all ports.
static LONG_BUFFERS: Mutex<()> = Mutex::new(());

/// The rest of a frame longer than an ordinary buffer is in long buffers, none of which is longer
/// than devices accept.
#[test]
fn frames_of_every_length_come_whole() {
    let _alone = LONG_BUFFERS.lock();
    own_namespace();
    veth("va", "vb", 65535);
    let (mut a, mut b) = (system("va"), system("vb"));
    let mut tx = sender(&mut a);
    let around = |middle: usize| middle - 70..middle + 70;
    let payloads = around(1920)
        .chain(around(2048))
        .chain(around(3968))
        .chain([4054, 9000, 32_768, 63_000])
        .chain((1..=4).flat_map(|tails| around(2048 + tails * 15 * 1024)))
        .chain(65_450..=65_507);
    for payload in payloads {
        let frame = udp(payload);
        assert_eq!(send(&mut *tx, &[&frame]).packets, 1, "{payload}");
        let got = receive(&mut *b.rx[0], 1);
        assert_eq!(got.len(), 1, "{payload}");
        let longest = |index| got[0].segment(index).map_or(0, <[u8]>::len);
        let segments = got[0].segment_count();
        assert!(
            (0..segments).all(|it| longest(it) <= 15 * 1024),
            "{payload}"
        );
        assert!(
            segments <= 1 + frame.len().div_ceil(15 * 1024),
            "{:?}",
            got[0]
        );
        assert!(got[0].to_vec() == frame, "{payload}: {:?}", got[0]);
    }
}

/// If all long buffers are in use, frames consist of ordinary ones.
#[test]
fn long_frames_come_whole_however_many_are_held() {
    let _alone = LONG_BUFFERS.lock();
    own_namespace();
    veth("va", "vb", 9000);
    let (mut a, mut b) = (system("va"), system("vb"));
    let mut tx = sender(&mut a);
    let frame = udp(8000);
    let mut held: Vec<Mbuf> = Vec::new();
    while held.len() < 1200 {
        assert_eq!(send(&mut *tx, &[frame.as_slice(); 16]).packets, 16);
        let got = receive(&mut *b.rx[0], 16);
        assert_eq!(got.len(), 16);
        held.extend(got);
    }
    let many = |frames: &[Mbuf]| frames.iter().filter(|it| it.segment_count() > 2).count();
    assert!(many(&held) > 0, "there are 1024 long buffers");
    assert!(held.iter().all(|it| it.to_vec() == frame));
    held.clear();
    // Slots that had no long buffer get one again.
    for _ in 0..8 {
        send(&mut *tx, &[frame.as_slice(); 16]);
        held = receive(&mut *b.rx[0], 16);
    }
    assert_eq!(many(&held), 0, "{held:?}");
}

#[test]
fn information_is_the_kernels() {
    own_namespace();
    veth("va", "vb", 1400);
    let mut a = system("va");
    let info = info_of(&mut a);
    assert!(info.present && info.admin_up && info.link_up && info.ifindex > 0);
    assert_eq!(
        (info.mtu, info.link_speed, info.full_duplex),
        (1400, 10_000_000_000, Some(true))
    );
    assert!(
        a.control
            .status()
            .contains(&("driver_name".into(), "veth".into()))
    );
    a.control.set_mtu(1300).unwrap();
    a.control.set_mac([2, 0, 0, 0, 0, 9]).unwrap();
    let resets = info.link_resets;
    ip("link set vb down");
    let info = info_of(&mut a);
    assert_eq!((info.mtu, info.mac), (1300, [2, 0, 0, 0, 0, 9]));
    assert!(!info.link_up && info.link_resets > resets);
    a.control.set_admin(false).unwrap();
    assert!(!info_of(&mut a).admin_up);
    assert!(matches!(a.control.set_mtu(1), Err(Error::Device { .. })));
    assert!(
        a.control
            .device_stats()
            .iter()
            .any(|(name, _)| name == "rx_packets")
    );
    assert!(a.control.inject(&[0; 60]).is_err());
}

#[test]
fn a_vanished_device_loses_only_its_own_frames() {
    own_namespace();
    veth("va", "vb", 1500);
    let mut a = system("va");
    let mut tx = sender(&mut a);
    ip("link del va");
    let outcome = send(&mut *tx, &[&udp(1), &udp(2)]);
    assert_eq!((outcome.packets, outcome.failed), (0, 2), "{outcome:?}");
    assert_eq!(a.rx[0].receive(&mut Vec::new()), 0);
    assert!(!info_of(&mut a).present);
    assert!(a.control.tx_queue(1).is_err());
    assert!(a.control.device_stats().is_empty());
    assert_eq!(
        ports::open(eal(), &PortSpec::new("va", PortType::System))
            .err()
            .unwrap()
            .to_string(),
        "could not open network device va (No such device)"
    );
}

#[test]
fn a_closed_port_is_silent_for_queues_that_are_left() {
    own_namespace();
    veth("va", "vb", 1500);
    let (mut a, mut b) = (system("va"), system("vb"));
    let (mut tx_a, mut tx_b) = (sender(&mut a), sender(&mut b));
    let mut rx_b = b.rx.remove(0);
    b.control.close();
    send(&mut *tx_a, &[&udp(1)]);
    assert_eq!(rx_b.receive(&mut Vec::new()), 0);
    assert_eq!(send(&mut *tx_b, &[&udp(1)]).failed, 1);
}

#[test]
fn a_tap_is_the_other_end_of_its_interface() {
    own_namespace();
    let mut spec = PortSpec::new("tap9", PortType::Internal);
    spec.mac = Some([2, 0, 0, 0, 0, 7]);
    spec.mtu = Some(1400);
    let mut tap = open(&spec);
    let info = info_of(&mut tap);
    assert_eq!(
        (info.mac, info.mtu, info.admin_up),
        ([2, 0, 0, 0, 0, 7], 1400, false)
    );
    let mut tx = sender(&mut tap);
    assert_eq!(send(&mut *tx, &[&udp(1)]).failed, 1, "the device is down");
    ip("link set tap9 addrgenmode none");
    tap.control.set_admin(true).unwrap();
    assert!(info_of(&mut tap).link_up);
    let mut host = system("tap9");
    let mut from_host = sender(&mut host);
    let frames = [udp(10), tagged(&udp(20), 0x8100, 3), udp(1372)];
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(send(&mut *from_host, &slices).packets, 3);
    assert!(readable(tap.rx[0].wait_fd().unwrap()));
    assert_eq!(bytes(&receive(&mut *tap.rx[0], 3)), frames);
    assert_eq!(send(&mut *tx, &slices).packets, 3);
    assert_eq!(bytes(&receive(&mut *host.rx[0], 3)), frames);
    let stats = tap.control.device_stats();
    assert!(stats.contains(&("tx_packets".into(), 3)), "{stats:?}");
    // The device is deleted with the port, even if queues are still held.
    let mut rx = tap.rx.remove(0);
    tap.control.close();
    assert!(ports::open(eal(), &PortSpec::new("tap9", PortType::System)).is_err());
    assert_eq!(rx.receive(&mut Vec::new()), 0);
    assert_eq!(send(&mut *tx, &[&udp(1)]).failed, 1);
}

#[test]
fn the_kernel_tells_of_changes_and_says_when_it_could_not() {
    own_namespace();
    let mut events = LinkEvents::new().unwrap();
    veth("va", "vb", 1500);
    let index = info_of(&mut system("va")).ifindex;
    let mut read = |most| {
        let mut changes = LinkChanges::default();
        (events.read(most, &mut changes), changes)
    };
    let (all, first) = read(1);
    assert!(!all && first.indexes.len() == 1 && !first.is_empty());
    let (all, changes) = read(1000);
    assert!(all && !changes.missed, "{changes:?}");
    assert!(changes.indexes.contains(&index) && changes.names.contains("va"));
    // The kernel notices that the ends are connected a little later. Once it has told all, there
    // is nothing new.
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let (all, changes) = read(1000);
        assert!(all);
        if changes.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "changes that do not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Changes in another namespace are reported, too, once something has been moved there.
    let elsewhere = Elsewhere::new("news");
    elsewhere.take("vb");
    read(1000);
    elsewhere.ip("link set vb mtu 1400");
    let (_, changes) = read(1000);
    drop(elsewhere);
    assert!(changes.names.contains("vb"), "{changes:?}");
    // More reports than the buffer holds.
    veth("vc", "vd", 1500);
    read(1000);
    let path = std::env::temp_dir().join(format!("changes-{}", std::process::id()));
    let lines = "link set vc mtu 1400\nlink set vc mtu 1500\n".repeat(4000);
    std::fs::write(&path, lines).unwrap();
    ip(&format!("-batch {}", path.display()));
    std::fs::remove_file(path).unwrap();
    let (all, changes) = read(100_000);
    assert!(all && changes.missed);
}

#[test]
fn a_tap_is_followed_wherever_it_goes_until_it_is_deleted() {
    own_namespace();
    let mut port = open(&PortSpec::new("tap7", PortType::Internal));
    let before = info_of(&mut port);
    assert!(before.present && !port.control.is_elsewhere());
    let elsewhere = Elsewhere::new("moved");
    elsewhere.take("tap7");
    assert_eq!(info_of(&mut port), before, "only that it is elsewhere");
    assert!(port.control.is_elsewhere());
    elsewhere.ip("link set tap7 name other");
    elsewhere.ip("link set other mtu 1400 up");
    // Another interface takes its name.
    veth("tap7", "vb", 1300);
    let up = PortInfo {
        mtu: 1400,
        admin_up: true,
        link_up: true,
        link_resets: 1,
        ..before
    };
    assert_eq!(info_of(&mut port), up);
    port.control.set_mac([2, 0, 0, 0, 0, 5]).unwrap();
    port.control.set_mtu(1350).unwrap();
    port.control.set_admin(false).unwrap();
    let info = info_of(&mut port);
    assert_eq!(
        (info.mac, info.mtu, info.admin_up),
        ([2, 0, 0, 0, 0, 5], 1350, false)
    );
    assert_eq!(
        info_of(&mut system("tap7")).mtu,
        1300,
        "not the one of its name"
    );
    elsewhere.ip("link del other");
    assert_eq!(info_of(&mut port), PortInfo::default());
    assert!(port.control.set_mtu(1400).is_err());
}

#[test]
fn a_device_that_is_left_is_found_again() {
    own_namespace();
    let elsewhere = Elsewhere::new("left");
    let records = std::env::temp_dir().join(&elsewhere.0);
    let spec = |port: &str| PortSpec {
        records: Some(records.clone()),
        ..PortSpec::new(port, PortType::Internal)
    };
    let mut port = open(&spec("tap6"));
    let before = info_of(&mut port);
    assert_eq!(ports::leftovers(&records), ["tap6"]);
    port.control.leave();
    ip("addr add 10.4.4.4/24 dev tap6");
    let mut port = open(&spec("tap6"));
    assert_eq!(info_of(&mut port).ifindex, before.ifindex);
    assert_eq!(info_of(&mut port).mac, before.mac);
    // Elsewhere, under another name.
    elsewhere.take("tap6");
    elsewhere.ip("link set tap6 name other");
    info_of(&mut port);
    port.control.leave();
    let mut port = open(&spec("tap6"));
    assert!(port.control.is_elsewhere());
    assert_eq!(info_of(&mut port).mac, before.mac);
    port.control.leave();
    assert_eq!(ports::remove_leftover(&records, "tap6"), Ok(true));
    assert_eq!(ports::remove_leftover(&records, "tap6"), Ok(false));
    assert!(ports::leftovers(&records).is_empty());
    let left = Command::new("ip")
        .args(["-n", &elsewhere.0, "link", "show", "other"])
        .output()
        .unwrap();
    assert!(!left.status.success(), "it is still there");
    // Closing a port deletes its device and its record.
    open(&spec("tap6")).control.close();
    assert!(ports::leftovers(&records).is_empty());
    assert!(ports::open(eal(), &PortSpec::new("tap6", PortType::System)).is_err());
    std::fs::remove_dir_all(&records).unwrap();
}

#[test]
fn names_that_no_device_can_have_are_refused() {
    own_namespace();
    let error = |name: &str, kind: PortType| {
        ports::open(eal(), &PortSpec::new(name, kind))
            .err()
            .unwrap()
            .to_string()
    };
    assert_eq!(
        error("tap%d", PortType::Tap),
        "could not open network device tap%d (Invalid argument)"
    );
    assert_eq!(
        error("veth-that-is-not-there", PortType::System),
        "could not open network device veth-that-is-not-there (No such device)"
    );
    veth("va", "vb", 1500);
    assert!(error("va", PortType::Internal).starts_with("could not open network device va ("));
}

/// A host in its own namespace and thread, at the other end of a veth.
struct Host {
    thread: std::thread::JoinHandle<()>,
    ready: mpsc::Sender<()>,
}

impl Host {
    /// Starts a thread with a namespace, moves interface `name` there, sets its `address` and runs
    /// `work`.
    fn start(
        name: &'static str,
        address: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> Host {
        let (tell, told) = mpsc::channel();
        let (ready, go) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            own_namespace();
            // SAFETY: no arguments.
            tell.send(unsafe { libc::gettid() }).unwrap();
            go.recv().unwrap();
            ip(&format!("addr add {address}/24 dev {name}"));
            ip(&format!("link set {name} up"));
            work();
        });
        let tid = told.recv().unwrap();
        ip(&format!("link set {name} netns {tid}"));
        Host { thread, ready }
    }
}

fn bad_checksums() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("Tcp:"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let column = lines[0]
        .iter()
        .position(|name| *name == "InCsumErrors")
        .unwrap();
    lines[1][column].parse().unwrap()
}

/// Sends 16 MB by TCP from one host to another, through `between`, which gets both ports and a stop
/// flag.
fn tcp_through(between: impl FnOnce(OpenPort, OpenPort, &AtomicBool)) {
    const TOTAL: usize = 16 << 20;
    own_namespace();
    ip("link add va type veth peer name host-a");
    ip("link add vb type veth peer name host-b");
    static STOP: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let stop = &STOP[NEXT.fetch_add(1, Ordering::Relaxed)];
    let (listening, listens) = mpsc::channel();
    let server = Host::start("host-b", "10.9.0.2", move || {
        let listener = TcpListener::bind("10.9.0.2:9000").unwrap();
        listening.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut data = Vec::new();
        stream.read_to_end(&mut data).unwrap();
        assert_eq!(data.len(), TOTAL);
        assert!(
            data.iter()
                .enumerate()
                .all(|(index, byte)| *byte == (index / 7) as u8)
        );
        assert_eq!(bad_checksums(), 0);
        stop.store(true, Ordering::Relaxed);
    });
    let client = Host::start("host-a", "10.9.0.1", move || {
        listens.recv().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let mut stream = loop {
            match TcpStream::connect("10.9.0.2:9000") {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        stream
            .set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let data: Vec<u8> = (0..TOTAL).map(|index| (index / 7) as u8).collect();
        stream.write_all(&data).unwrap();
    });
    for name in ["va", "vb"] {
        ip(&format!("link set {name} up"));
    }
    let (a, b) = (system("va"), system("vb"));
    server.ready.send(()).unwrap();
    client.ready.send(()).unwrap();
    between(a, b, stop);
    client.thread.join().unwrap();
    server.thread.join().unwrap();
}

fn forward(
    mut a: OpenPort,
    mut b: OpenPort,
    stop: &AtomicBool,
    mut look: impl FnMut(&mut Vec<Mbuf>),
) {
    let (mut to_a, mut to_b) = (sender(&mut a), sender(&mut b));
    let mut frames = Vec::new();
    let end = Instant::now() + Duration::from_secs(40);
    while !stop.load(Ordering::Relaxed) {
        assert!(Instant::now() < end, "the transfer does not end");
        a.rx[0].receive(&mut frames);
        look(&mut frames);
        to_b.send(&mut frames);
        b.rx[0].receive(&mut frames);
        look(&mut frames);
        to_a.send(&mut frames);
    }
}

#[test]
fn large_tcp_frames_pass_whole_and_sound() {
    tcp_through(|a, b, stop| {
        let (mut large, mut partial) = (0, 0);
        forward(a, b, stop, |frames| {
            for frame in frames {
                large += u32::from(frame.offload().gso == Gso::Tcp4 && frame.len() > 10_000);
                partial += u32::from(frame.offload().partial_checksum);
            }
        });
        assert!(large > 10, "TCP sent {large} large frames");
        assert!(partial > 10, "{partial} frames had a partial checksum");
    });
}

#[test]
fn large_tcp_frames_are_cut_for_devices_that_cannot() {
    // A DPDK ring in between has no offloads: all segmentation and checksums are done in software
    // before it.
    tcp_through(|mut a, mut b, stop| {
        let spec = |name| {
            PortSpec::new(
                name,
                PortType::Dpdk(ports::Dpdk::new(format!("net_ring_{name}"))),
            )
        };
        let (mut there, mut back) = (open(&spec("there")), open(&spec("back")));
        let mut to_ring = [sender(&mut there), sender(&mut back)];
        let (mut to_a, mut to_b) = (sender(&mut a), sender(&mut b));
        let mut frames = Vec::new();
        let end = Instant::now() + Duration::from_secs(40);
        while !stop.load(Ordering::Relaxed) {
            assert!(Instant::now() < end, "the transfer does not end");
            a.rx[0].receive(&mut frames);
            to_ring[0].send(&mut frames);
            while there.rx[0].receive(&mut frames) > 0 {
                assert!(
                    frames
                        .iter()
                        .all(|frame| frame.len() <= 1514 && !frame.offload().partial_checksum)
                );
                to_b.send(&mut frames);
            }
            b.rx[0].receive(&mut frames);
            to_ring[1].send(&mut frames);
            while back.rx[0].receive(&mut frames) > 0 {
                to_a.send(&mut frames);
            }
        }
    });
}

/// A quiet port has a plain socket; one with many frames gets a ring meanwhile, and no frame is
/// lost, duplicated or reordered.
#[test]
fn a_port_gets_a_ring_without_losing_a_frame() {
    own_namespace();
    veth("va", "vb", 1500);
    let (mut a, mut b) = (system("va"), system("vb"));
    assert!(b.rx[0].is_costly(), "no ring at first");
    let mut tx = sender(&mut a);
    let end = Instant::now() + Duration::from_secs(60);
    let (mut sent, mut came, mut after) = (0_u32, 0_u32, 0);
    while after < 100 {
        assert!(Instant::now() < end, "no ring after {sent} frames");
        after += u32::from(!b.rx[0].is_costly());
        let burst: Vec<Vec<u8>> = (0..40).map(|index| numbered(sent + index)).collect();
        let slices: Vec<&[u8]> = burst.iter().map(Vec::as_slice).collect();
        assert_eq!(send(&mut *tx, &slices).packets, 40);
        sent += 40;
        let waits = b.rx[0].wait_fd().unwrap();
        while came < sent {
            let mut got = Vec::new();
            if b.rx[0].receive(&mut got) == 0 {
                assert!(readable(b.rx[0].wait_fd().unwrap()), "at {came}, {waits}");
            }
            for frame in bytes(&got) {
                assert_eq!(frame, numbered(came), "frame {came}");
                came += 1;
            }
        }
    }
    assert_eq!(b.rx[0].receive(&mut Vec::new()), 0, "nothing twice");
    assert_eq!(b.rx[0].drops(), Default::default());
    // The port is closed while a socket may still be being prepared.
    b.control.close();
    assert_eq!(b.rx[0].receive(&mut Vec::new()), 0);
}

fn numbered(number: u32) -> Vec<u8> {
    let mut frame = udp(100);
    let end = frame.len();
    frame[end - 4..].copy_from_slice(&number.to_be_bytes());
    frame
}

/// However many quiet ports there are, few of them hold memory for frames.
#[test]
fn quiet_ports_hold_no_rings() {
    own_namespace();
    let ports: Vec<OpenPort> = (0..60)
        .flat_map(|number| {
            let (a, b) = (format!("qa{number}"), format!("qb{number}"));
            veth(&a, &b, 1500);
            [system(&a), system(&b)]
        })
        .collect();
    assert_eq!(ports.len(), 120);
    assert!(ports::finish(Duration::from_secs(60)), "rings are made");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps
        .lines()
        .filter(|line| line.contains("socket:["))
        .count();
    // Including those of other tests of this process.
    assert!((1..40).contains(&rings), "{rings} rings");
    drop(ports);
}
