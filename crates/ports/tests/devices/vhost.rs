//! vhost-user ports, with testpmd's virtio-user as the guest.

use crate::support::{bytes, eal, open, send, udp};
use packet::frame::{Frame, Offload};
use packet::io::{RxQueue, TxQueue};
use ports::{Error, Mbuf, OpenPort, PortSpec, PortType};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()))
}

fn client(path: &Path) -> PortSpec {
    PortSpec::new(
        "guest",
        PortType::VhostClient {
            path: path.to_path_buf(),
            rx_queues: 2,
        },
    )
}

/// A guest that sends back what it receives; killed when dropped.
struct Guest {
    process: Child,
    runtime: PathBuf,
}

impl Guest {
    /// Starts the guest; with `server` it listens on the socket.
    fn start(path: &Path, server: bool) -> Guest {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let device = format!(
            "--vdev=net_virtio_user0,path={},queue_size=256{}",
            path.display(),
            if server { ",server=1" } else { "" }
        );
        let name = format!("guest-{}-{number}", std::process::id());
        let prefix = format!("--file-prefix={name}");
        let arguments = [
            "--no-huge",
            "-m",
            "96",
            "--no-pci",
            "--no-telemetry",
            "-l",
            "0,1",
            &prefix,
            &device,
            "--",
            "--auto-start",
            "--forward-mode=io",
            "--total-num-mbufs=4096",
            "--no-mlockall",
            "--burst=32",
        ];
        let process = Command::new("dpdk-testpmd")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("dpdk-testpmd runs (Debian: dpdk)");
        Guest {
            process,
            runtime: Path::new("/var/run/dpdk").join(name),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.runtime);
    }
}

fn wait_for_link(port: &mut OpenPort, up: bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while port.control.info().link_up != up {
        assert!(
            Instant::now() < end,
            "the link does not come {}",
            if up { "up" } else { "down" }
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends `frame` until it comes back, since the guest may not be forwarding yet.
fn echo(tx: &mut dyn TxQueue<Mbuf>, rx: &mut dyn RxQueue<Mbuf>, frame: &[u8]) -> Mbuf {
    let end = Instant::now() + Duration::from_secs(20);
    let mut got = Vec::new();
    loop {
        assert!(Instant::now() < end, "nothing comes back");
        send(tx, &[frame]);
        for _ in 0..100 {
            if rx.receive(&mut got) > 0 {
                return got.remove(0);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Sends `frame`, which was never sent before, and receives until it comes back: then everything
/// that the guest had is back, because it keeps the order.
fn drain(tx: &mut dyn TxQueue<Mbuf>, rx: &mut dyn RxQueue<Mbuf>, frame: &[u8]) {
    let end = Instant::now() + Duration::from_secs(20);
    let mut got = Vec::new();
    assert_eq!(send(tx, &[frame]).packets, 1);
    while !got.iter().any(|back: &Mbuf| back.to_vec() == frame) {
        assert!(Instant::now() < end, "the last frame does not come back");
        if rx.receive(&mut got) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn a_port_opens_and_closes_without_a_guest() {
    let path = socket("alone");
    for server in [false, true] {
        let mut spec = client(&path);
        if server {
            spec.kind = PortType::VhostServer {
                path: path.clone(),
                rx_queues: 1,
            };
        }
        let mut port = open(&spec);
        assert_eq!(path.exists(), server);
        assert!(!port.control.info().link_up);
        assert!(
            port.control
                .status()
                .contains(&("status".into(), "disconnected".into()))
        );
        let mut tx = port.control.tx_queue(0).unwrap();
        assert_eq!(send(&mut *tx, &[&udp(1)]).failed, 1);
        assert_eq!(port.rx[0].receive(&mut Vec::new()), 0);
        assert!(port.rx[0].wait_fd().is_some());
        assert!(
            matches!(ports::open(eal(), &spec).err().unwrap(), Error::Option(_)),
            "the socket is in use"
        );
        port.control.close();
        assert!(!path.exists());
    }
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
    assert!(
        ports::open(eal(), &client(&long))
            .err()
            .unwrap()
            .to_string()
            .contains("107")
    );
}

#[test]
fn frames_go_to_the_guest_and_back() {
    let path = socket("echo");
    let mut port = open(&client(&path));
    let guest = Guest::start(&path, true);
    wait_for_link(&mut port, true);
    assert!(
        port.control
            .status()
            .contains(&("num_of_vrings".into(), "2".into()))
    );
    assert_eq!(port.control.guest_queues(), Some(1), "of the 8 it may have");
    let mut tx = port.control.tx_queue(5).unwrap();
    let mut rx = port.rx.remove(0);
    assert_eq!(echo(&mut *tx, &mut *rx, &udp(3)).to_vec(), udp(3));
    drain(&mut *tx, &mut *rx, &udp(4));

    let frames: Vec<Vec<u8>> = (0..200).map(|index| udp(index * 7)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut got = Vec::new();
    for burst in slices.chunks(32) {
        let outcome = send(&mut *tx, burst);
        assert_eq!(outcome.packets, burst.len() as u64, "{outcome:?}");
        let end = Instant::now() + Duration::from_secs(10);
        let before = got.len();
        while got.len() < before + burst.len() && Instant::now() < end {
            rx.receive(&mut got);
        }
    }
    assert_eq!(bytes(&got), frames);

    // This guest does not accept partial checksums, so they are filled in before.
    let mut unfinished = eal().pool().unwrap().frame(&udp(64)).unwrap();
    let mut sum = packet::checksum::Sum::new();
    sum.add_pseudo_header(&[10, 0, 0, 1], &[10, 0, 0, 2], 17, 72);
    unfinished.head_mut()[40..42].copy_from_slice(&sum.fold().to_be_bytes());
    unfinished.set_offload(Offload {
        partial_checksum: true,
        csum_start: 34,
        csum_offset: 6,
        ..Offload::default()
    });
    assert_eq!(tx.send(&mut vec![unfinished]).packets, 1);
    let end = Instant::now() + Duration::from_secs(10);
    got.clear();
    while got.is_empty() && Instant::now() < end {
        rx.receive(&mut got);
    }
    let mut sum = packet::checksum::Sum::new();
    sum.add_pseudo_header(&[10, 0, 0, 1], &[10, 0, 0, 2], 17, 72);
    sum.add_bytes(&got[0].head()[34..]);
    assert_eq!(sum.finish(), 0);

    assert_eq!(send(&mut *tx, &[&[0; 1519]]).too_long, 1);
    drop(guest);
    wait_for_link(&mut port, false);
    assert_eq!(send(&mut *tx, &[&udp(1)]).failed, 1);
    got.clear();
    assert_eq!(rx.receive(&mut got), 0);

    // Another guest connects, and the port works again.
    std::fs::remove_file(&path).ok();
    let _guest = Guest::start(&path, true);
    wait_for_link(&mut port, true);
    assert_eq!(echo(&mut *tx, &mut *rx, &udp(9)).to_vec(), udp(9));
    // Close the port while the guest is connected.
    port.control.close();
    assert_eq!(rx.receive(&mut got), 0);
    assert_eq!(send(&mut *tx, &[&udp(1)]).failed, 1);
    std::fs::remove_file(&path).ok();
}

#[test]
fn a_sleeping_worker_is_woken_by_the_guest() {
    let path = socket("wake");
    let spec = PortSpec::new(
        "guest",
        PortType::VhostServer {
            path: path.clone(),
            rx_queues: 1,
        },
    );
    let mut port = open(&spec);
    let mut tx = port.control.tx_queue(0).unwrap();
    let mut rx = port.rx.remove(0);
    // The worker sleeps while there is no guest.
    assert!(!rx.arm());
    let (tell, told) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        let mut got = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        // Number of sleeps that frames have ended. Frames sent while others had the processor come
        // together, and end one sleep.
        let (mut woken, mut slept) = (0, false);
        while woken < 5 {
            assert!(
                Instant::now() < end,
                "woken {woken} times, {} frames",
                got.len()
            );
            if rx.receive(&mut got) > 0 {
                woken += u32::from(std::mem::take(&mut slept));
                tell.send(()).unwrap();
                continue;
            }
            let Some(fd) = rx.wait_fd() else {
                std::thread::yield_now();
                continue;
            };
            if !rx.arm() {
                let mut poll = libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: one valid entry. Without a wake-up the test fails by its own limit.
                unsafe { libc::poll(&mut poll, 1, 60_000) };
                slept = true;
            }
            rx.disarm();
        }
    });
    let _guest = Guest::start(&path, false);
    wait_for_link(&mut port, true);
    while !worker.is_finished() {
        send(&mut *tx, &[&udp(5)]);
        // Long enough for the worker to fall asleep again.
        let _ = told.recv_timeout(Duration::from_millis(50));
        std::thread::sleep(Duration::from_millis(5));
    }
    worker.join().unwrap();
}

#[test]
fn a_peer_that_talks_nonsense_loses_only_its_connection() {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    let path = socket("nonsense");
    let mut port = open(&PortSpec::new(
        "guest",
        PortType::VhostServer {
            path: path.clone(),
            rx_queues: 1,
        },
    ));
    let mut seed = 1u64;
    for round in 0..50u32 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        // A message's header: request, flags (version 1), size; then any bytes.
        let mut message = Vec::new();
        message.extend((round % 45).to_ne_bytes());
        message.extend(1u32.to_ne_bytes());
        message.extend(64u32.to_ne_bytes());
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            message.extend(seed.to_ne_bytes());
        }
        let _ = stream.write_all(&message);
    }
    assert!(!port.control.info().link_up);
    let guest = Guest::start(&path, false);
    wait_for_link(&mut port, true);
    let mut tx = port.control.tx_queue(0).unwrap();
    assert_eq!(echo(&mut *tx, &mut *port.rx[0], &udp(4)).to_vec(), udp(4));
    drop(guest);
}

#[test]
fn a_peer_that_takes_its_memory_away_does_not_end_the_process() {
    let path = socket("shrink");
    let mut port = open(&PortSpec::new(
        "guest",
        PortType::VhostServer {
            path: path.clone(),
            rx_queues: 1,
        },
    ));
    // The guest's process inherits descriptors of this process's own memory; that mapping must not
    // change.
    let memory_of = |process: &str| -> std::collections::BTreeMap<u64, PathBuf> {
        std::fs::read_dir(format!("/proc/{process}/fd"))
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let target = std::fs::read_link(path).unwrap_or_default();
                target.to_string_lossy().contains("memfd:")
            })
            .map(|path| (std::fs::metadata(&path).unwrap().ino(), path))
            .collect()
    };
    let ours = memory_of("self");
    let guest = Guest::start(&path, false);
    wait_for_link(&mut port, true);
    let mut tx = port.control.tx_queue(0).unwrap();
    let mut rx = port.rx.remove(0);
    echo(&mut *tx, &mut *rx, &udp(4));
    let pid = guest.process.id() as i32;
    // SAFETY: our own child; stopped, it cannot notice what happens to it.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let mut shortened = 0;
    for (inode, path) in memory_of(&pid.to_string()) {
        if !ours.contains_key(&inode) {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(0).unwrap();
            shortened += 1;
        }
    }
    assert!(shortened > 0, "the guest's memory is a memfd");
    let mut got = Vec::new();
    for _ in 0..100 {
        rx.receive(&mut got);
        send(&mut *tx, &[&udp(6)]);
    }
    drop(guest);
    wait_for_link(&mut port, false);
    let _guest = Guest::start(&path, false);
    wait_for_link(&mut port, true);
    // Frames that were under way may come first.
    assert!((0..100).any(|_| echo(&mut *tx, &mut *rx, &udp(9)).to_vec() == udp(9)));
}
