//! DPDK devices: `net_null`, `net_pcap`, `net_ring`.

use crate::support::{bytes, eal, frames_in, open, pcap, receive, send, udp};
use packet::frame::{Frame, Gso, Offload};
use packet::io::{BURST, Lengths, TxOutcome};
use ports::{Error, PortSpec, PortType};

fn dpdk(name: &str, devargs: &str) -> PortSpec {
    PortSpec::new(name, PortType::Dpdk(ports::Dpdk::new(devargs)))
}

#[test]
fn null_device_gives_and_takes() {
    let mut port = open(&dpdk("null", "net_null_give,size=64"));
    let mut frames = Vec::new();
    assert_eq!(port.rx[0].receive(&mut frames), BURST);
    assert!(
        frames
            .iter()
            .all(|frame| frame.len() == 64 && frame.headroom() >= 64)
    );
    let mut tx = port.control.tx_queue(0).unwrap();
    let outcome = tx.send(&mut frames);
    assert_eq!(
        (outcome.packets, outcome.bytes),
        (BURST as u64, BURST as u64 * 64)
    );
    assert!(frames.is_empty());
    port.control.close();
    // Queues that outlive the port do no harm.
    assert_eq!(port.rx[0].receive(&mut frames), 0);
    assert_eq!(send(&mut *tx, &[&[0; 60]]).failed, 1);
}

/// DPDK and a driver take what they are told of an indirection table. `net_null` keeps one, but
/// spreads nothing; `tests/test_cards.py` has a card that does.
#[test]
fn an_indirection_table_is_written_by_the_driver() {
    let several = |name: &str| {
        let options = ports::Dpdk {
            rx_queues: 2,
            ..ports::Dpdk::new(name)
        };
        open(&PortSpec::new("spread", PortType::Dpdk(options)))
    };
    let devargs = "net_null_spread,no-rx=1";
    let mut port = several(devargs);
    let table = port.control.indirection().expect("net_null has a table");
    assert_eq!(table.entries(), 128);
    let moves: Vec<(u16, u16)> = (0..64).map(|entry| (entry, 1)).collect();
    assert!(table.begin_moves(&moves));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while table.counts().moved < 64 && std::time::Instant::now() < end {
        let mut frames = Vec::new();
        for queue in &mut port.rx {
            queue.receive(&mut frames);
        }
        std::thread::yield_now();
    }
    let counts = table.counts();
    assert_eq!((counts.moved, counts.failed), (64, 0));
    // As before when the device has been stopped.
    port.control.set_mtu(1400).unwrap();
    assert!((0..128).all(|entry| table.queue(entry) == u16::from(entry < 64)));
}

#[test]
fn pcap_goes_through_byte_for_byte() {
    let dir = tempdir();
    let frames: Vec<Vec<u8>> = [0usize, 1, 18, 500, 1472].map(udp).to_vec();
    std::fs::write(dir.join("in.pcap"), pcap(&frames)).unwrap();
    let devargs = format!(
        "net_pcap_through,rx_pcap={0}/in.pcap,tx_pcap={0}/out.pcap",
        dir.display()
    );
    let mut port = open(&dpdk("pcap", &devargs));
    let mut got = receive(&mut *port.rx[0], frames.len());
    assert_eq!(bytes(&got), frames);
    let mut tx = port.control.tx_queue(0).unwrap();
    assert_eq!(tx.send(&mut got).packets, frames.len() as u64);
    port.control.close();
    assert_eq!(
        frames_in(&std::fs::read(dir.join("out.pcap")).unwrap()),
        frames
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn too_long_frames_are_counted_and_the_mtu_can_be_raised() {
    let mut port = open(&dpdk("long", "net_null_long,no-rx=1"));
    let mut tx = port.control.tx_queue(3).unwrap();
    let outcome = send(&mut *tx, &[&[0; 1518], &[0; 1519], &[0; 60]]);
    assert_eq!(
        (outcome.packets, outcome.too_long, outcome.bytes),
        (2, 1, 1578)
    );
    port.control.set_mtu(9000).unwrap();
    assert_eq!(port.control.info().mtu, 9000);
    assert_eq!(send(&mut *tx, &[&[0; 9018]]).packets, 1);
    assert!(matches!(port.control.set_mtu(67), Err(Error::Option(_))));
}

/// Known lengths make the scan of the frames unnecessary only if they show that none is too long.
#[test]
fn finished_frames_are_sent_as_others() {
    let pool = eal().pool().expect("a pool");
    let mut port = open(&dpdk("finished", "net_null_finished,no-rx=1"));
    let mut tx = port.control.tx_queue(0).unwrap();
    for (lens, packets, too_long) in [
        (&[60, 60][..], 2, 0),
        (&[1518], 1, 0),
        // Their bitwise OR is 1534, longer than either of them.
        (&[1500, 60], 2, 0),
        (&[60, 1519, 61], 2, 1),
    ] {
        let mut lengths = Lengths::default();
        let mut frames: Vec<_> = lens
            .iter()
            .map(|len| {
                lengths.add(*len);
                pool.frame(&vec![0; *len]).expect("a buffer")
            })
            .collect();
        let outcome = tx.send_finished(&mut frames, lengths);
        let bytes: usize = lens.iter().filter(|len| **len <= 1518).sum();
        let expected = TxOutcome {
            packets,
            bytes: bytes as u64,
            too_long,
            ..TxOutcome::default()
        };
        assert_eq!(outcome, expected, "{lens:?}");
        assert!(frames.is_empty());
    }
}

#[test]
fn a_ring_device_hands_over_what_it_is_given() {
    let mut port = open(&dpdk("ring", "net_ring_own"));
    let mut tx = port.control.tx_queue(0).unwrap();
    let frames = [udp(10), udp(3000)];
    port.control.set_mtu(9000).ok();
    let outcome = send(&mut *tx, &[&frames[0]]);
    assert_eq!(outcome.packets, 1, "{outcome:?}");
    assert_eq!(bytes(&receive(&mut *port.rx[0], 1)), frames[..1]);
}

#[test]
fn bad_devices_are_refused_by_name() {
    let error = |devargs: &str| match ports::open(eal(), &dpdk("bad", devargs)) {
        Ok(_) => panic!("{devargs} opened"),
        Err(error) => error.to_string(),
    };
    for devargs in [
        "net_foo",
        "0000:99:00.0",
        "class=eth,mac=00:00:00:00:00:99",
        "class=eth,mac=x",
        "net_pcap_no,rx_pcap=/nowhere",
    ] {
        let said = error(devargs);
        let begins = format!("Error attaching device '{devargs}' to DPDK (");
        assert!(said.starts_with(&begins) && said.ends_with(')'), "{said}");
    }
    let said = error("net_pcap_no,rx_pcap=/nowhere");
    assert!(said.contains("No such file or directory"), "{said}");
    let _first = open(&dpdk("first", "net_null_twice"));
    assert_eq!(
        error("net_null_twice"),
        "'bad' is trying to use device 'net_null_twice' which is already in use by 'first'"
    );
}

#[test]
fn a_device_can_be_opened_again_after_close() {
    for _ in 0..3 {
        let mut port = open(&dpdk("again", "net_null_again"));
        assert_eq!(receive(&mut *port.rx[0], BURST).len(), BURST);
        let info = port.control.info();
        assert!(info.present && info.link_up && info.admin_up);
        let status = port.control.status();
        assert!(
            status.contains(&("driver_name".into(), "net_null".into())),
            "{status:?}"
        );
        assert!(
            port.control
                .device_stats()
                .iter()
                .any(|(name, value)| name == "rx_packets" && *value > 0)
        );
    }
}

fn tempdir() -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("sluice-ports-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Returns a TCP frame of 64 KiB to be cut into segments of `size` bytes.
fn large(size: u16) -> ports::Mbuf {
    let payload = vec![7; 65_535 - 40];
    let bytes = packet::build::Builder::ethernet([2; 6], [4; 6])
        .ipv4(0x0a00_0001, 0x0a00_0002)
        .tcp(1, 2, 0x10)
        .payload(&payload)
        .partial_checksum()
        .bytes();
    let mut frame = eal().pool().unwrap().frame(&bytes).expect("buffers");
    frame.set_offload(Offload {
        partial_checksum: true,
        csum_start: 34,
        csum_offset: 16,
        gso: Gso::Tcp4,
        gso_size: size,
        ..Offload::default()
    });
    frame
}

/// A burst becomes more segments than there are buffers, so they are sent while they are made.
#[test]
fn a_burst_of_large_frames_is_cut_in_slices() {
    let mut port = open(&dpdk("slices", "net_null_slices,no-rx=1"));
    let mut tx = port.control.tx_queue(0).unwrap();
    let pool = eal().pool().unwrap();
    let mut frames: Vec<_> = (0..32).map(|_| large(48)).collect();
    let segments = 32 * (65_535_u64 - 40).div_ceil(48);
    assert!(segments > u64::from(pool.count()), "more than the pool has");
    let outcome = tx.send(&mut frames);
    let wanted = TxOutcome {
        packets: segments,
        bytes: segments * 54 + 32 * (65_535 - 40),
        ..TxOutcome::default()
    };
    assert_eq!(outcome, wanted);
    assert!(frames.is_empty());
}

#[test]
fn segments_that_are_too_small_are_refused_and_counted() {
    let mut port = open(&dpdk("tiny", "net_null_tiny,no-rx=1"));
    let mut tx = port.control.tx_queue(0).unwrap();
    let mut frames: Vec<_> = (0..32).map(|_| large(32)).collect();
    frames.push(eal().pool().unwrap().frame(&udp(10)).unwrap());
    let outcome = tx.send(&mut frames);
    let counts = (outcome.packets, outcome.tiny_segments, outcome.failed);
    assert_eq!(counts, (1, 32, 0));
}
