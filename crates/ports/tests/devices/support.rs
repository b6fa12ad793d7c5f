//! Helpers shared by the tests.

use packet::frame::Frame;
use packet::io::{RxQueue, TxOutcome, TxQueue};
use ports::{Eal, EalOptions, Mbuf, Memory, OpenPort, PortInfo, PortSpec};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the process's environment, in ordinary memory so that the tests run everywhere.
pub fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        // SAFETY: no arguments, no effects.
        assert_eq!(unsafe { libc::geteuid() }, 0, "these tests need root");
        let options = EalOptions {
            memory: Memory::Ordinary(512),
            extra: "--no-pci".into(),
            ..EalOptions::default()
        };
        ports::eal::init(&options).expect("DPDK starts")
    })
}

/// Opens a port; a failure is a panic.
pub fn open(spec: &PortSpec) -> OpenPort {
    match ports::open(eal(), spec) {
        Ok(port) => port,
        Err(error) => panic!("{}: {error}", spec.name),
    }
}

/// Polls until `wanted` frames have come, or ten seconds have passed.
pub fn receive(rx: &mut dyn RxQueue<Mbuf>, wanted: usize) -> Vec<Mbuf> {
    let end = Instant::now() + Duration::from_secs(10);
    let mut frames = Vec::new();
    while frames.len() < wanted && Instant::now() < end {
        if rx.receive(&mut frames) == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    frames
}

/// What is known of a port when the kernel has answered: the port itself waits a little only.
pub fn info_of(port: &mut OpenPort) -> PortInfo {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let info = port.control.info();
        if port.control.is_announced() {
            return info;
        }
        assert!(Instant::now() < end, "the kernel does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends copies of `frames`.
pub fn send(tx: &mut dyn TxQueue<Mbuf>, frames: &[&[u8]]) -> TxOutcome {
    let pool = eal().pool().expect("a pool");
    let mut burst: Vec<Mbuf> = frames
        .iter()
        .map(|bytes| pool.frame(bytes).expect("a buffer"))
        .collect();
    let outcome = tx.send(&mut burst);
    assert!(burst.is_empty(), "send leaves nothing");
    outcome
}

/// Returns the bytes of frames.
pub fn bytes(frames: &[Mbuf]) -> Vec<Vec<u8>> {
    frames.iter().map(Frame::to_vec).collect()
}

/// Returns a classic pcap file of Ethernet frames.
pub fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(word.to_ne_bytes());
    }
    for frame in frames {
        let len = frame.len() as u32;
        for word in [0, 0, len, len] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    file
}

/// Returns the frames in a classic pcap file in this machine's byte order.
pub fn frames_in(file: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut at = 24;
    while at + 16 <= file.len() {
        let len =
            u32::from_ne_bytes(file[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        frames.push(file[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// Returns a UDP frame over IPv4 with `payload` bytes of data and a valid IP checksum; its UDP
/// checksum is 0, "none".
pub fn udp(payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = (28 + payload) as u16;
    let mut ip = vec![
        0x45,
        0,
        (total >> 8) as u8,
        total as u8,
        0,
        1,
        0,
        0,
        64,
        17,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ];
    let sum = packet::checksum::ipv4_header(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend([0x10, 0, 0x20, 0]);
    frame.extend(((8 + payload) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..payload).map(|index| index as u8));
    frame
}
