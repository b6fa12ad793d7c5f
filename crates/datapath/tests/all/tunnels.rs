//! Packets into tunnels and out of them, over an underlay bridge with a wire as its uplink.

use crate::support::{Switch, Wire, in_port, wait_until};
use datapath::clock::Clock;
use datapath::learn_requests::RequestKind;
use datapath::monitor::{Inbox, Keys, Monitor, Probe};
use datapath::tunnel::{TunnelKey, TunnelSpec};
use datapath::{BUCKETS, BridgeId, LOCAL, PortId, PortKind, PortSettings, PortSpec, SteeringMode};
use packet::build::Builder;
use packet::edit::CompiledSet;
use packet::frame::{Gso, Offload};
use packet::tunnel::{Addresses, Mapping, TunnelFlags, TunnelKind, decapsulate, parse};
use packet::{Field, Frame, HeapFrame, Value};
use program::actions::{Bits, Op, PortNo};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use underlay::{Device, Neighbours, Route, Routes, View};

/// MTU of the underlay.
const MTU: u16 = 576;
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A bridge with a wire on port 1, and an underlay with a wire on port 1 and one as its local port.
struct Bed {
    switch: Switch,
    overlay: BridgeId,
    physical: BridgeId,
    inner: Arc<Wire>,
    uplink: Arc<Wire>,
    local: Arc<Wire>,
    generation: u64,
}

impl Bed {
    fn new() -> Bed {
        Bed::around(Switch::new(1))
    }

    fn around(mut switch: Switch) -> Bed {
        let overlay = switch.bridge("br-int");
        let physical = switch.bridge("br-phy");
        let (inner, uplink, local) = (Wire::new(true), Wire::new(true), Wire::new(true));
        switch.port(overlay, 1, &inner);
        switch.port(physical, 1, &uplink);
        switch.port(physical, LOCAL, &local);
        switch.rule(physical, 0, 1, in_port(LOCAL), vec![Op::Output(1)]);
        switch.rule(physical, 0, 1, in_port(1), vec![Op::Output(LOCAL)]);
        Bed {
            switch,
            overlay,
            physical,
            inner,
            uplink,
            local,
            generation: 0,
        }
    }

    /// Creates one whose port 1 sends by a VXLAN tunnel at port 2.
    fn with_vxlan(known: bool) -> Bed {
        Bed::new().send_by_vxlan(known)
    }

    fn send_by_vxlan(self, known: bool) -> Bed {
        let mut bed = self;
        bed.underlay(known);
        let vxlan = TunnelKind::Vxlan { gbp: false };
        bed.tunnel(2, TunnelSpec::new(vxlan, remote()));
        bed.switch
            .rule(bed.overlay, 0, 1, in_port(1), vec![Op::Output(2)]);
        bed
    }

    /// Sets the underlay: its address is `OWN`/16; `known` says whether the peer's MAC address is
    /// known.
    fn underlay(&mut self, known: bool) {
        let device = Device {
            name: "br-phy".into(),
            id: self.physical.underlay_id(),
            mac: OWN_MAC,
            addresses: vec![(OWN.into(), 16)],
            mtu: MTU,
        };
        let (mut routes, mut neighbours) = (Routes::new(), Neighbours::new());
        let net = Ipv4Addr::new(10, 0, 0, 0).into();
        routes.insert(Route::by(&device, net, 16, None, 0, false).unwrap());
        if known {
            neighbours.learn("br-phy", PEER.into(), PEER_MAC, 0);
        }
        self.generation += 1;
        let view = View::new(self.generation, &routes, &neighbours, &[device]);
        self.switch.datapath.set_underlay(Arc::new(view));
    }

    fn tunnel(&mut self, number: PortNo, spec: TunnelSpec) -> PortId {
        self.switch
            .datapath
            .add_port(PortSpec {
                name: format!("tunnel{number}"),
                bridge: self.overlay,
                number,
                settings: PortSettings::default(),
                kind: PortKind::Tunnel(spec),
            })
            .unwrap()
    }

    /// Adds so many tunnels of VXLAN, which is returned, at ports from 10 on and with the keys from
    /// 1 on.
    fn keyed_tunnels(&mut self, count: u32) -> TunnelKind {
        let vxlan = TunnelKind::Vxlan { gbp: false };
        for number in 0..count {
            let key = TunnelKey::Fixed(u64::from(number) + 1);
            let spec = TunnelSpec {
                in_key: key,
                out_key: key,
                ..TunnelSpec::new(vxlan, remote())
            };
            self.tunnel(10 + number, spec);
        }
        vxlan
    }

    /// Returns what the underlay has sent, once there are `count` frames, as a device puts it on
    /// its wire: segmented, and with its checksums done.
    fn sent(&self, count: u64) -> Vec<HeapFrame> {
        wait_until("sent by the uplink", || self.uplink.sent() >= count);
        let frames = std::mem::take(&mut *self.uplink.sent.lock().unwrap());
        let mut wire = Vec::new();
        for frame in frames {
            packet::segment::segment(frame, &mut |one: HeapFrame| {
                wire.push(HeapFrame::new(&one.to_vec()));
            })
            .unwrap();
        }
        wire
    }

    /// Returns the same packet on its way back.
    fn turned(mut frame: HeapFrame) -> HeapFrame {
        let head = frame.head_mut();
        for at in 0..6 {
            head.swap(at, 6 + at);
        }
        for at in 0..4 {
            head.swap(26 + at, 30 + at);
        }
        frame
    }
}

fn packet() -> HeapFrame {
    Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(0x0a01_0101, 0x0a01_0102)
        .udp(1000, 2000)
        .payload(&[7; 60])
        .frame()
}

fn remote() -> Option<IpAddr> {
    Some(PEER.into())
}

/// Flows move between workers while one of these holds packets that wait for a next hop: moves are
/// given up rather than overtaking them, and succeed once they have left.
#[test]
fn moves_wait_for_packets_that_are_held() {
    const EACH: u64 = 10;
    // While it is stopped, held packets wait for as long as it takes.
    let clock = Arc::new(Clock::default());
    clock.stop();
    let mut bed = Bed::around(Switch::with_clock(2, clock)).send_by_vxlan(false);
    bed.switch.datapath.set_steering(SteeringMode::Adaptive);
    assert_eq!(bed.switch.datapath.steer(), Ok(true));
    let workers = bed.switch.datapath.workers();
    let ports = bed.switch.datapath.ports();
    let is_inner = |port: &&datapath::PortInfo| port.bridge == bed.overlay && port.number == 1;
    let inner = ports.iter().find(is_inner).unwrap().id;
    let receives = |worker: &datapath::WorkerInfo| {
        let mut queues = worker.queues.iter();
        queues.any(|queue| queue.port == inner)
    };
    let receiver = workers.iter().position(receives).unwrap();
    let other = 1 - receiver;
    let state = |bed: &Bed, at: usize| bed.switch.datapath.steering().workers[at].clone();
    let all_to = |bed: &mut Bed, to: usize| {
        for bucket in 0..BUCKETS {
            bed.switch
                .datapath
                .move_bucket(receiver, bucket, to)
                .unwrap();
        }
    };
    let mut put = 0;
    let mut put_some = |bed: &Bed| {
        for _ in 0..EACH {
            let mut payload = [7; 60];
            payload[..8].copy_from_slice(&u64::to_be_bytes(put));
            put += 1;
            let builder = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]);
            let builder = builder.ipv4(0x0a01_0101, 0x0a01_0102).udp(1000, 2000);
            bed.inner.put(builder.payload(&payload).frame());
        }
    };
    all_to(&mut bed, other);
    wait_until("all is away", || state(&bed, receiver).away == BUCKETS);
    put_some(&bed);
    wait_until("the other worker holds them", || {
        state(&bed, other).taken == EACH
    });
    let moved = state(&bed, receiver).moved;
    all_to(&mut bed, receiver);
    put_some(&bed);
    wait_until("moves are given up", || {
        state(&bed, receiver).gave_up_late > 0
    });
    put_some(&bed);
    wait_until("all are there", || {
        let giver = state(&bed, receiver);
        giver.parked == 0 && state(&bed, other).taken == 3 * EACH
    });
    assert_eq!(state(&bed, receiver).moved, moved);
    assert_eq!((bed.uplink.sent(), state(&bed, receiver).refused), (0, 0));
    // The answer: what was held leaves, and the flows can go home.
    bed.underlay(true);
    let mut frames = bed.sent(3 * EACH);
    all_to(&mut bed, receiver);
    wait_until("all came back", || state(&bed, receiver).away == 0);
    put_some(&bed);
    frames.extend(bed.sent(4 * EACH));
    let number = |frame: &HeapFrame| {
        let bytes = frame.to_vec();
        let payload = &bytes[bytes.len() - 60..];
        u64::from_be_bytes(payload[..8].try_into().unwrap())
    };
    let numbers: Vec<u64> = frames.iter().map(number).collect();
    assert_eq!(numbers, (0..4 * EACH).collect::<Vec<_>>());
    assert_eq!(bed.switch.dropped_in_all(), 0);
}

/// For every kind of tunnel, a packet that is sent back comes out as it went in.
#[test]
fn a_packet_sent_through_a_tunnel_and_back_is_unchanged() {
    for kind in TunnelKind::ALL {
        if kind == TunnelKind::Ip6Gre {
            continue;
        }
        let mut bed = Bed::new();
        bed.underlay(true);
        let spec = TunnelSpec {
            in_key: TunnelKey::Fixed(77),
            out_key: TunnelKey::Fixed(77),
            ..TunnelSpec::new(kind, remote())
        };
        let port = bed.tunnel(2, spec);
        let (out, back) = (vec![Op::Output(2)], vec![Op::Output(1)]);
        bed.switch.rule(bed.overlay, 0, 1, in_port(1), out);
        bed.switch.rule(bed.overlay, 0, 1, in_port(2), back);
        bed.inner.put(packet());
        let mut outer = bed.sent(1).remove(0);
        let mut copy = outer.clone();
        let found = parse(&mut copy, kind).unwrap();
        let (src, dst) = (OWN.into(), PEER.into());
        assert_eq!(
            found.info.addresses,
            Some(Addresses::V4 { src, dst }),
            "{kind:?}"
        );
        assert_eq!(found.info.id, 77);
        assert_eq!(outer.head()[..6], PEER_MAC);
        assert_eq!(outer.head()[6..12], OWN_MAC);
        decapsulate(&mut copy, &found).unwrap();
        let whole = packet().to_vec();
        let carried = if kind == TunnelKind::Gtpu { 14 } else { 0 };
        assert_eq!(copy.to_vec(), whole[carried..], "{kind:?}");

        outer = Bed::turned(outer);
        bed.uplink.put(outer);
        wait_until("came back", || bed.inner.sent() == 1);
        let mut whole = packet().to_vec();
        whole[..carried.min(12)].fill(0);
        assert_eq!(bed.inner.take(), [whole], "{kind:?}");
        let stats = bed.switch.datapath.port_stats(port).unwrap();
        assert_eq!((stats.rx_packets, stats.tx_packets), (1, 1));
        assert_eq!(
            (stats.rx_bytes, stats.tx_bytes),
            (packet().len() as u64, packet().len() as u64)
        );
        assert_eq!(bed.local.sent(), 0, "not for the device");
        assert_eq!(bed.switch.dropped_in_all(), 0);
    }
}

/// Returns a TCP frame as a container sends it: to be segmented, with a partial checksum.
fn large_segment(payload: usize, mss: u16) -> HeapFrame {
    let payload: Vec<u8> = (0..payload).map(|at| (at * 7 / 5) as u8).collect();
    let mut frame = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(0x0a01_0101, 0x0a01_0102)
        .tcp(1000, 2000, 0x10)
        .payload(&payload)
        .partial_checksum()
        .frame();
    frame.set_offload(Offload {
        partial_checksum: true,
        csum_start: 34,
        csum_offset: 16,
        gso: Gso::Tcp4,
        gso_size: mss,
        ..Offload::default()
    });
    frame
}

/// A bed whose port 1 sends by a tunnel of type stt at port 2, and receives by it.
fn with_stt() -> Bed {
    let mut bed = Bed::new();
    bed.underlay(true);
    let spec = TunnelSpec {
        df: false,
        ..TunnelSpec::new(TunnelKind::Stt, remote())
    };
    bed.tunnel(2, spec);
    let (out, back) = (vec![Op::Output(2)], vec![Op::Output(1)]);
    bed.switch.rule(bed.overlay, 0, 1, in_port(1), out);
    bed.switch.rule(bed.overlay, 0, 1, in_port(2), back);
    bed
}

fn coverage(bed: &Bed, name: &str) -> u64 {
    let coverage = bed.switch.datapath.coverage();
    coverage.iter().find(|(other, _)| other == name).unwrap().1
}

/// A container's large segment goes into STT whole and comes out whole, with its work left to do;
/// the wire carries it in packets of its MTU.
#[test]
fn large_segments_go_through_stt_whole() {
    let bed = with_stt();
    let mut segments = 0;
    for (number, payload) in (1..).zip([1_000, 20_000, 64_000]) {
        let whole = large_segment(payload, 500);
        bed.inner.put(whole.clone());
        let mut wire = bed.sent(number);
        let stt = whole.len() + 18;
        assert_eq!(wire.len(), stt.div_ceil(usize::from(MTU) - 40));
        assert!(wire.iter().all(|one| one.len() <= 14 + usize::from(MTU)));
        wire.reverse();
        segments += wire.len() as u64;
        bed.uplink.put_all(wire.into_iter().map(Bed::turned));
        wait_until("came in", || bed.inner.sent() == number);
        let came = std::mem::take(&mut *bed.inner.sent.lock().unwrap());
        assert!(came[0].to_vec() == whole.to_vec(), "{payload}: other bytes");
        assert_eq!(came[0].offload(), whole.offload());
        // The tunnel counts frames as received, however many segments they came in.
        for counter in ["tunnel_joined", "tunnel_received"] {
            assert_eq!(coverage(&bed, counter), number);
        }
        assert_eq!(coverage(&bed, "tunnel_joined_segments"), segments);
    }
    assert_eq!(coverage(&bed, "tunnel_sent"), 3);
    assert_eq!(bed.switch.dropped_in_all(), 0);
}

/// Frames that are too long with STT's header are segmented first if they are to be segmented, and
/// so is UDP; others are dropped.
#[test]
fn what_stt_cannot_carry_whole_is_segmented_first() {
    let bed = with_stt();
    let long = large_segment(65_460, 1_400);
    let segments = 65_460_usize.div_ceil(1_400) as u64;
    bed.inner.put(long);
    bed.sent(segments);
    assert_eq!(bed.uplink.sent(), segments);
    let mut datagrams = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(0x0a01_0101, 0x0a01_0102)
        .udp(1000, 2000)
        .payload(&[7; 1000])
        .partial_checksum()
        .frame();
    datagrams.set_offload(Offload {
        partial_checksum: true,
        csum_start: 34,
        csum_offset: 6,
        gso: Gso::UdpL4,
        gso_size: 500,
        ..Offload::default()
    });
    bed.inner.put(datagrams);
    bed.sent(segments + 2);
    assert_eq!(bed.switch.dropped_in_all(), 0);
    bed.inner.put(HeapFrame::new(&[7; 65_500]));
    wait_until("too long", || {
        bed.switch.dropped("tunnel_push_too_long") == 1
    });
}

/// Segments without the rest, or with a lie about the frame inside, come in nowhere and are
/// counted; TCP to other ports is the host's.
#[test]
fn what_is_wrong_with_stt_is_counted() {
    let bed = with_stt();
    bed.inner.put(large_segment(1_000, 500));
    let wire: Vec<HeapFrame> = bed.sent(1).into_iter().map(Bed::turned).collect();
    bed.uplink.put(wire[0].clone());
    bed.uplink.put(wire[0].clone());
    wait_until("twice", || bed.switch.dropped("tunnel_segment_twice") == 1);
    wait_until("late", || bed.switch.dropped("tunnel_segment_late") == 1);
    let changed = |at: usize, value: u8| {
        let mut bytes = wire[0].to_vec();
        bytes[at] = value;
        let mut frame = HeapFrame::new(&bytes);
        frame.set_offload(Offload {
            checksum_valid: true,
            ..Offload::default()
        });
        frame
    };
    // The whole length is that of another frame.
    bed.uplink.put(wire[0].clone());
    bed.uplink.put(changed(38, 0x70));
    wait_until("contradiction", || {
        bed.switch.dropped("tunnel_segment_contradiction") == 2
    });
    // The L4 offset is another.
    bed.uplink.put(changed(56, 35));
    bed.uplink.put_all(wire[1..].iter().cloned());
    // Put together and dropped then: it counts as its segments.
    let segments = wire.len() as u64;
    assert!(segments > 1);
    wait_until("offload", || {
        bed.switch.dropped("tunnel_offload") == segments
    });
    // The same with a key that no tunnel has.
    bed.uplink.put(changed(69, 1));
    bed.uplink.put_all(wire[1..].iter().cloned());
    wait_until("no port", || {
        bed.switch.dropped("tunnel_no_port") == segments
    });
    assert_eq!(coverage(&bed, "tunnel_joined"), 0);
    // A wrong checksum.
    let mut wrong = wire[1].to_vec();
    wrong[60] ^= 1;
    bed.uplink.put(HeapFrame::new(&wrong));
    wait_until("checksum", || bed.switch.dropped("tunnel_checksum") == 1);
    // From nobody whom a tunnel has: nothing waits for the rest. (The words of the address change
    // places, which leaves the header's checksum right.)
    let mut strange = wire[0].to_vec();
    strange[26..30].rotate_left(2);
    let mut strange = HeapFrame::new(&strange);
    strange.set_offload(Offload {
        checksum_valid: true,
        ..Offload::default()
    });
    bed.uplink.put(strange);
    wait_until("nobody's", || {
        bed.switch.dropped("tunnel_no_port") == segments + 1
    });
    assert_eq!(bed.switch.dropped("tunnel_segment_late"), 1);
    assert_eq!((bed.inner.sent(), bed.local.sent()), (0, 0));
    bed.uplink.put(changed(37, 80));
    wait_until("the host's", || bed.local.sent() == 1);
}

/// Tunnels by packets' metadata: rules write key and remote endpoint, and match those of packets
/// that came.
#[test]
fn rules_say_where_to_and_see_where_from() {
    let mut bed = Bed::new();
    bed.underlay(true);
    let flow = TunnelSpec {
        in_key: TunnelKey::Flow,
        out_key: TunnelKey::Flow,
        ..TunnelSpec::new(TunnelKind::Geneve, None)
    };
    bed.tunnel(2, flow);
    let map = [Mapping {
        class: 0x102,
        kind: 0x80,
        field: 0,
        place: packet::options::KeyRange::new(0, 4).unwrap(),
    }];
    bed.switch
        .datapath
        .set_tunnel_options(bed.overlay, &map)
        .unwrap();
    let dst = u128::from(u32::from(PEER));
    let ops = vec![set(Field::TunId, 5), set(Field::TunDst, dst), Op::Output(2)];
    bed.switch.rule(bed.overlay, 0, 1, in_port(1), ops);
    let mut from = in_port(2);
    from.set_exact(Field::TunId, 5);
    from.set_exact(Field::TunSrc, dst);
    bed.switch
        .rule(bed.overlay, 0, 1, from, vec![Op::Output(1)]);
    bed.inner.put(packet());
    let outer = bed.sent(1).remove(0);
    let found = parse(&mut outer.clone(), TunnelKind::Geneve).unwrap();
    assert_eq!(found.info.id, 5);
    bed.uplink.put(Bed::turned(outer));
    wait_until("came back", || bed.inner.sent() == 1);
    assert_eq!(bed.switch.dropped_in_all(), 0);

    // Without the metadata there is no remote endpoint.
    bed.switch
        .rule(bed.overlay, 0, 2, in_port(1), vec![Op::Output(2)]);
    bed.inner.put(packet());
    wait_until("dropped", || {
        bed.switch.dropped("tunnel_no_destination") == 1
    });
}

/// Returns a step that writes a field.
fn set(field: Field, value: u128) -> Op {
    Op::SetField {
        field,
        value: Value::from_u128(value, field.def().bytes),
        mask: field.def().place(),
    }
}

/// A packet whose IPv4 destination ends with this number; an IPv6 packet for every seventh.
fn numbered(number: u8) -> HeapFrame {
    let builder = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]);
    let builder = match number.is_multiple_of(7) {
        true => builder.ipv6([number; 16], [2; 16]),
        false => builder.ipv4(0x0a01_0101, 0x0a01_0200 | u32::from(number)),
    };
    builder.udp(1000, 2000).payload(&[number; 60]).frame()
}

/// Bursts whose packets go by a tunnel, each with the key, option and remote endpoint that rules
/// copy into its metadata, and come back by what they match of these.
#[test]
fn bursts_go_and_come_by_what_rules_copy() {
    const COUNT: u8 = 200;
    for checksum in [false, true] {
        let mut bed = Bed::new();
        bed.underlay(true);
        let flow = TunnelSpec {
            in_key: TunnelKey::Flow,
            out_key: TunnelKey::Flow,
            csum: checksum,
            ..TunnelSpec::new(TunnelKind::Geneve, None)
        };
        let port = bed.tunnel(2, flow);
        let place = packet::options::KeyRange::new(0, 4).unwrap();
        let map = [Mapping {
            class: 0x102,
            kind: 0x80,
            field: 3,
            place,
        }];
        let set_map = bed.switch.datapath.set_tunnel_options(bed.overlay, &map);
        set_map.unwrap();
        let bits = |field: Field, start: u16, bits: u16| Bits { field, start, bits };
        let present = 1_u64 << 3;
        let copy = |src: Bits, dst: Bits| Op::Move { src, dst };
        let ops = vec![
            copy(bits(Field::Ipv4Dst, 0, 8), bits(Field::TunId, 4, 8)),
            copy(bits(Field::Ipv4Dst, 0, 8), bits(place.field(), 16, 8)),
            Op::Set(CompiledSet::Metadata {
                word: (packet::key::at::TUN_METADATA_PRESENT / 8) as u8,
                value: present.to_be(),
                mask: present.to_be(),
            }),
            set(Field::TunDst, u32::from(PEER).into()),
            Op::Output(2),
        ];
        bed.switch.rule(bed.overlay, 0, 1, in_port(1), ops);
        bed.inner.put_all((0..COUNT).map(numbered));
        let mut frames = bed.sent(COUNT.into());
        for (number, outer) in (0..).zip(&frames) {
            let mut outer = outer.clone();
            let found = parse(&mut outer, TunnelKind::Geneve).unwrap();
            let last = match number % 7 {
                0 => 0,
                _ => number,
            };
            assert_eq!(found.info.id, u64::from(last) << 4);
            let bytes = [1, 2, 0x80, 1, 0, last, 0, 0];
            assert_eq!(found.options(&outer).bytes(), bytes);
            let flags = found.info.flags;
            assert_eq!(flags.contains(packet::tunnel::TunnelFlags::CSUM), checksum);
            decapsulate(&mut outer, &found).unwrap();
            assert_eq!(outer.to_vec(), numbered(number).to_vec());
        }
        // Those with an odd number come out with a mark in the Ethernet header.
        let mut odd = in_port(2);
        odd.set(
            Field::TunId,
            &[0, 0, 0, 0, 0, 0, 0, 0x10],
            &[0, 0, 0, 0, 0, 0, 0, 0x10],
        );
        let ops = vec![
            copy(bits(place.field(), 16, 8), bits(Field::Reg0, 8, 8)),
            set(Field::EthSrc, 5),
            Op::Goto(1),
        ];
        bed.switch.rule(bed.overlay, 0, 2, odd, ops);
        let ops = vec![Op::Goto(1)];
        bed.switch.rule(bed.overlay, 0, 1, in_port(2), ops);
        let mut known = packet::Match::any();
        known.set_exact(Field::Reg0, 9 << 8);
        let ops = vec![set(Field::EthDst, 6), Op::Output(1)];
        bed.switch.rule(bed.overlay, 1, 2, known, ops);
        let any = packet::Match::any();
        bed.switch.rule(bed.overlay, 1, 1, any, vec![Op::Output(1)]);
        // One with a wrong checksum is not taken.
        if checksum {
            let mut wrong = frames[0].clone();
            wrong.head_mut()[34] ^= 1;
            frames.push(wrong);
        }
        bed.uplink.put_all(frames.into_iter().map(Bed::turned));
        wait_until("came back", || bed.inner.sent() == COUNT.into());
        for (number, bytes) in (0..COUNT).zip(bed.inner.take()) {
            let mut wanted = numbered(number).to_vec();
            if number % 2 == 1 && number % 7 != 0 {
                wanted[6..12].copy_from_slice(&[0, 0, 0, 0, 0, 5]);
            }
            if number == 9 {
                wanted[..6].copy_from_slice(&[0, 0, 0, 0, 0, 6]);
            }
            assert_eq!(bytes, wanted, "{number}");
        }
        let stats = bed.switch.datapath.port_stats(port).unwrap();
        assert_eq!(
            (stats.rx_packets, stats.tx_packets),
            (COUNT.into(), COUNT.into())
        );
        let wrong = u64::from(checksum);
        assert_eq!(bed.switch.dropped_in_all(), wrong);
        assert_eq!(bed.switch.dropped("tunnel_checksum"), wrong);
        assert_eq!(bed.local.sent(), 0);
    }
}

/// Bursts whose packets belong to many tunnels leave with the header of each and come in by its
/// port, in their order; what is for none of them goes to the device.
#[test]
fn bursts_of_many_tunnels_are_told_apart() {
    tell_apart(TunnelKind::Vxlan { gbp: false }, false);
}

/// The same where rules say with which key packets leave by two of three tunnels.
#[test]
fn bursts_of_many_tunnels_have_the_keys_of_rules() {
    tell_apart(TunnelKind::Vxlan { gbp: false }, true);
    tell_apart(TunnelKind::Geneve, true);
}

fn tell_apart(kind: TunnelKind, by_rules: bool) {
    const TUNNELS: u32 = 40;
    const COUNT: u32 = 400;
    let mut bed = Bed::new();
    bed.underlay(true);
    let mut ports = Vec::new();
    for number in 0..TUNNELS {
        let key = TunnelKey::Fixed((number + 1).into());
        let by_rule = by_rules && number % 3 != 0;
        let spec = TunnelSpec {
            in_key: key,
            out_key: if by_rule { TunnelKey::Flow } else { key },
            ..TunnelSpec::new(kind, remote())
        };
        ports.push(bed.tunnel(100 + number, spec));
        let mut from = in_port(1);
        from.set_exact(Field::EthType, 0x0800);
        from.set_exact(Field::Ipv4Dst, (0x0a01_0200 + number).into());
        let mut out = vec![Op::Output(100 + number)];
        if by_rules {
            // A tunnel with a key of its own does not look at it.
            let said = if by_rule { number + 1 } else { 99 };
            out.insert(0, set(Field::TunId, said.into()));
            if kind == TunnelKind::Geneve && number % 7 == 1 {
                // Control packets, whose headers are not the usual ones.
                out.insert(0, set(Field::TunFlags, TunnelFlags::OAM.bits().into()));
            }
        }
        bed.switch.rule(bed.overlay, 0, 1, from, out);
        // One sends back where packets came from, which is no way.
        let back = match number {
            7 => vec![Op::Output(107)],
            _ => vec![set(Field::EthSrc, number.into()), Op::Output(1)],
        };
        bed.switch
            .rule(bed.overlay, 0, 1, in_port(100 + number), back);
    }
    let number = |index: u32| index * 17 % TUNNELS;
    let inner = |index: u32| {
        Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
            .ipv4(0x0a01_0101, 0x0a01_0200 | number(index))
            .udp(1000, 2000)
            .payload(&[&index.to_be_bytes()[..], &[7; 60]].concat())
            .frame()
    };
    bed.inner.put_all((0..COUNT).map(inner));
    let frames = bed.sent(COUNT.into());
    let mut last = vec![None; TUNNELS as usize];
    let mut seen = Vec::new();
    for outer in &frames {
        let mut outer = outer.clone();
        let found = parse(&mut outer, kind).unwrap();
        decapsulate(&mut outer, &found).unwrap();
        let bytes = outer.to_vec();
        let index = u32::from_be_bytes(bytes[42..46].try_into().unwrap());
        assert_eq!(bytes, inner(index).to_vec());
        assert_eq!(found.info.id, u64::from(number(index)) + 1);
        let is_control = kind == TunnelKind::Geneve && number(index) % 7 == 1;
        assert_eq!(found.info.flags.contains(TunnelFlags::OAM), is_control);
        let before = last[number(index) as usize].replace(index);
        assert!(before < Some(index));
        seen.push(index);
    }
    seen.sort();
    assert!(seen.into_iter().eq(0..COUNT));

    let mut back: Vec<HeapFrame> = frames.into_iter().map(Bed::turned).collect();
    // No tunnel's: an unknown key, and another UDP port.
    let mut unknown = back[0].clone();
    unknown.head_mut()[46] = 1;
    let mut other = back[1].clone();
    other.head_mut()[37] ^= 1;
    back.insert(30, unknown);
    back.insert(60, other);
    bed.uplink.put_all(back);
    let lost = (0..COUNT).filter(|index| number(*index) == 7).count() as u64;
    wait_until("came back", || bed.inner.sent() == u64::from(COUNT) - lost);
    let mut last = vec![None; TUNNELS as usize];
    for bytes in bed.inner.take() {
        let index = u32::from_be_bytes(bytes[42..46].try_into().unwrap());
        let mut wanted = inner(index).to_vec();
        wanted[6..12].copy_from_slice(&[0, 0, 0, 0, 0, number(index) as u8]);
        assert_eq!(bytes, wanted);
        let before = last[number(index) as usize].replace(index);
        assert!(before < Some(index));
    }
    wait_until("for the device", || bed.local.sent() == 1);
    wait_until("counted", || bed.switch.dropped("tunnel_no_port") == 1);
    assert_eq!(bed.switch.dropped("ingress_port"), lost);
    assert_eq!(bed.switch.dropped_in_all(), lost + 1);
    let each = u64::from(COUNT / TUNNELS);
    for port in ports {
        let stats = bed.switch.datapath.port_stats(port).unwrap();
        assert_eq!((stats.rx_packets, stats.tx_packets), (each, each));
    }
}

/// A packet that waits for a next hop leaves without the metadata of one before it, also where its
/// tunnel begins to read metadata meanwhile.
#[test]
fn packets_that_wait_keep_no_others_metadata() {
    let mut bed = Bed::new();
    bed.underlay(false);
    let vxlan = TunnelKind::Vxlan { gbp: false };
    let by_flow = TunnelSpec {
        in_key: TunnelKey::Flow,
        out_key: TunnelKey::Flow,
        ..TunnelSpec::new(vxlan, remote())
    };
    let mut last = None;
    // So many that packets of a burst go to them together.
    for number in 0..20 {
        let spec = TunnelSpec {
            dst_port: 5000 + number,
            ..match number % 2 {
                0 => by_flow.clone(),
                _ => TunnelSpec::new(vxlan, remote()),
            }
        };
        let port = bed.tunnel(100 + PortNo::from(number), spec.clone());
        last = Some((port, spec));
    }
    let (port, spec) = last.unwrap();
    let out = [Op::Output(118), Op::Output(119)];
    for (op, low) in out.into_iter().zip([1, 2]) {
        let mut matching = in_port(1);
        matching.set_exact(Field::EthType, 0x0800);
        matching.set_exact(Field::Ipv4Dst, 0x0a01_0200 + low);
        let ops = vec![set(Field::TunId, 77), op];
        bed.switch.rule(bed.overlay, 0, 1, matching, ops);
    }
    let to = |low: u32| {
        Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
            .ipv4(0x0a01_0101, 0x0a01_0200 + low)
            .udp(1000, 2000)
            .payload(&[7; 60])
            .frame()
    };
    bed.inner.put_all([to(1), to(2)]);
    wait_until("both wait", || coverage(&bed, "tunnel_waited") == 2);
    let changed = TunnelSpec {
        in_key: TunnelKey::Flow,
        out_key: TunnelKey::Flow,
        ..spec
    };
    bed.switch.datapath.set_tunnel(port, changed).unwrap();
    bed.underlay(true);
    let mut ids: Vec<u64> = (bed.sent(2).into_iter())
        .map(|mut outer| parse(&mut outer, vxlan).unwrap().info.id)
        .collect();
    ids.sort();
    assert_eq!(ids, [0, 77]);
}

/// On a tunnel that carries many keys a monitor sends and takes messages with the key 0 only: what
/// a guest sends, with its network's key, goes by the rules.
#[test]
fn guests_messages_are_not_their_tunnels() {
    let mut bed = Bed::new();
    bed.underlay(true);
    let flow = TunnelSpec {
        in_key: TunnelKey::Flow,
        out_key: TunnelKey::Flow,
        ..TunnelSpec::new(TunnelKind::Geneve, remote())
    };
    let tunnel = bed.tunnel(2, flow);
    let key = Op::SetField {
        field: Field::TunId,
        value: Value::from_u128(5, Field::TunId.def().bytes),
        mask: Field::TunId.def().place(),
    };
    let (out, back) = (vec![key, Op::Output(2)], vec![Op::Output(1)]);
    bed.switch.rule(bed.overlay, 0, 1, in_port(1), out);
    bed.switch.rule(bed.overlay, 0, 1, in_port(2), back);
    let message = crate::monitors::message(bfd::wire::ETHERNET);
    // The monitor's own.
    let probe = Probe {
        bridge: bed.overlay,
        port: 2,
        oam: true,
        data: message.to_vec(),
    };
    bed.switch.datapath.probes().send(probe).unwrap();
    let own = bed.sent(1).remove(0);
    let found = parse(&mut own.clone(), TunnelKind::Geneve).unwrap();
    assert_eq!(found.info.id, 0);
    // A guest's.
    bed.inner.put(message);
    let guests = bed.sent(2).remove(0);
    let found = parse(&mut guests.clone(), TunnelKind::Geneve).unwrap();
    assert_eq!(found.info.id, 5);

    let mut passed = 0;
    for (keys, hears) in [(Keys::ZeroOfMany, 1), (Keys::Zero, 1), (Keys::Any, 2)] {
        let inbox = Arc::new(Inbox::default());
        let monitor = Arc::new(Monitor::new(0, None, keys, Arc::clone(&inbox)));
        let set = bed.switch.datapath.set_monitor(tunnel, Some(monitor));
        set.unwrap();
        for frame in [&guests, &own] {
            bed.uplink.put(Bed::turned(frame.clone()));
        }
        passed += 2 - hears;
        let mut heard = 0;
        wait_until("heard", || {
            heard += u64::from(inbox.take().is_some());
            heard == hears
        });
        wait_until("passed", || bed.inner.sent() == passed);
    }
    assert_eq!(bed.switch.dropped_in_all(), 0);
}

/// A packet waits until the next hop's MAC address is known, and control is asked for it.
#[test]
fn packets_wait_for_a_neighbour() {
    let mut bed = Bed::with_vxlan(false);
    bed.inner.put_all((0..200).map(|_| packet()));
    let mut requests = Vec::new();
    wait_until("asked", || {
        requests.extend(bed.switch.datapath.take_requests(10));
        !requests.is_empty()
    });
    let asked = requests.remove(0);
    assert_eq!(asked.bridge, bed.physical);
    let RequestKind::AskNeighbour { address, source } = asked.kind else {
        panic!("{asked:?}");
    };
    assert_eq!((address, source), (PEER.into(), OWN.into()));
    wait_until("too many", || {
        bed.switch.dropped("tunnel_too_many_wait") == 200 - 64
    });
    // The answer passes the underlay's local port, from which control learns.
    let mut reply = underlay::arp_request(PEER_MAC, PEER, OWN);
    reply[21] = 2;
    bed.uplink.put(HeapFrame::new(&reply));
    wait_until("seen", || {
        requests.extend(bed.switch.datapath.take_requests(10));
        requests.iter().any(|request| {
            let seen = matches!(
                request.kind,
                RequestKind::NeighbourSeen { address, mac, asked: true }
                    if address == IpAddr::from(PEER) && mac == PEER_MAC
            );
            seen && request.bridge == bed.physical
        })
    });
    wait_until("the device has it, too", || bed.local.sent() == 1);
    bed.underlay(true);
    assert_eq!(bed.sent(64).len(), 64);
    // A packet whose next hop does not answer is given up.
    bed.underlay(false);
    bed.inner.put(packet());
    wait_until("given up", || {
        bed.switch.dropped("tunnel_no_neighbour") == 1
    });
}

/// Packets for no tunnel port, malformed ones, and those for the host itself.
#[test]
fn packets_for_no_tunnel_are_counted_or_go_to_the_host() {
    let mut bed = Bed::new();
    bed.underlay(true);
    let vxlan = TunnelKind::Vxlan { gbp: false };
    let spec = TunnelSpec {
        in_key: TunnelKey::Fixed(1),
        out_key: TunnelKey::Fixed(2),
        ..TunnelSpec::new(vxlan, remote())
    };
    let port = bed.tunnel(2, spec);
    bed.switch
        .rule(bed.overlay, 0, 1, in_port(1), vec![Op::Output(2)]);
    bed.switch
        .rule(bed.overlay, 0, 1, in_port(2), vec![Op::Output(1)]);
    bed.inner.put(packet());
    let outer = bed.sent(1).remove(0);
    bed.uplink.put(Bed::turned(outer.clone()));
    wait_until("of no tunnel", || bed.switch.dropped("tunnel_no_port") == 1);
    let mut broken = Bed::turned(outer.clone());
    broken.truncate(45);
    bed.uplink.put(broken);
    let bad = |bed: &Bed| bed.switch.dropped_in_all() == 2;
    wait_until("cut short", || bad(&bed));
    let mut other = Bed::turned(outer.clone());
    other.head_mut()[36] = 1; // another UDP port
    bed.uplink.put(other);
    wait_until("the host's", || bed.local.sent() == 1);
    // Once the port is removed, such packets are for the host.
    bed.switch.datapath.remove_port(port).unwrap();
    bed.uplink.put(Bed::turned(outer));
    wait_until("the host's", || bed.local.sent() == 2);
}

/// A route that leads into its own tunnel ends.
#[test]
fn a_route_into_its_own_tunnel_ends() {
    let mut bed = Bed::with_vxlan(true);
    // What leaves by the underlay's local port is sent to the overlay, which encapsulates it again.
    bed.switch.patch(bed.overlay, 3, "a", "b");
    bed.switch.patch(bed.physical, 3, "b", "a");
    bed.switch
        .rule(bed.overlay, 0, 1, in_port(3), vec![Op::Output(2)]);
    bed.switch
        .rule(bed.physical, 0, 2, in_port(LOCAL), vec![Op::Output(3)]);
    bed.inner.put(packet());
    wait_until("ended", || bed.switch.dropped_in_all() == 1);
    assert_eq!(bed.uplink.sent(), 0);
}

/// A tunnel that permits fragments: packets that are too long for the underlay leave in fragments,
/// and such fragments, in any order, come in as packets, whatever their size.
#[test]
fn long_packets_leave_and_come_in_fragments() {
    for kind in [
        TunnelKind::Vxlan { gbp: false },
        TunnelKind::Geneve,
        TunnelKind::Gre,
    ] {
        let mut bed = Bed::new();
        bed.underlay(true);
        let spec = TunnelSpec {
            df: false,
            csum: true,
            ..TunnelSpec::new(kind, remote())
        };
        let port = bed.tunnel(2, spec);
        let (out, back) = (vec![Op::Output(2)], vec![Op::Output(1)]);
        bed.switch.rule(bed.overlay, 0, 1, in_port(1), out);
        bed.switch.rule(bed.overlay, 0, 1, in_port(2), back);
        let sizes = [MTU as usize, 3 * MTU as usize, 9000, 60_000];
        let long = |size: usize| {
            let mut payload = vec![0; size];
            (payload.iter_mut().enumerate()).for_each(|(at, byte)| *byte = (at * 7 / 5) as u8);
            let builder = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
                .ipv4(0x0a01_0101, 0x0a01_0102)
                .udp(1000, 2000);
            builder.payload(&payload).frame()
        };
        let mut sent = 0;
        let mut identifications = Vec::new();
        for (number, size) in sizes.into_iter().enumerate() {
            let payload = (usize::from(MTU) - 20) & !7;
            let outer = long(size).len() + 50 - 14 - 20;
            let header = if kind == TunnelKind::Gre { 8 } else { 16 };
            let outer = outer - 16 + header;
            let count = outer.div_ceil(payload);
            bed.inner.put(long(size));
            let mut fragments = bed.sent(sent + count as u64);
            sent += count as u64;
            assert_eq!(fragments.len(), count, "{kind:?} {size}");
            for fragment in &fragments {
                assert!(fragment.len() <= 14 + usize::from(MTU));
            }
            identifications.push(fragments[0].head()[18..20].to_vec());
            fragments.reverse();
            let middle = fragments.len() / 2;
            fragments.swap(0, middle);
            bed.uplink.put_all(fragments.into_iter().map(Bed::turned));
            wait_until("came in", || bed.inner.sent() == number as u64 + 1);
            let came = bed.inner.take();
            assert!(
                came == [long(size).to_vec()],
                "{kind:?} {size}: other bytes"
            );
        }
        identifications.dedup();
        assert_eq!(
            identifications.len(),
            sizes.len(),
            "each packet has its own"
        );
        let stats = bed.switch.datapath.port_stats(port).unwrap();
        assert_eq!(
            (stats.rx_packets, stats.tx_packets),
            (sizes.len() as u64, sizes.len() as u64),
            "the tunnel's packets are counted, not their fragments"
        );
        let coverage = bed.switch.datapath.coverage();
        let count = |name: &str| coverage.iter().find(|(other, _)| other == name).unwrap().1;
        assert_eq!(count("tunnel_fragments_sent"), sent);
        assert_eq!(count("tunnel_reassembled"), sizes.len() as u64);
        assert_eq!(bed.switch.dropped_in_all(), 0);
        assert_eq!(bed.local.sent(), 0, "not for the device");
    }
}

/// Packets with "do not fragment" leave unchanged, for the underlay's port to judge.
#[test]
fn packets_with_do_not_fragment_are_not_fragmented() {
    let bed = Bed::with_vxlan(true);
    let long = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(0x0a01_0101, 0x0a01_0102)
        .udp(1000, 2000)
        .payload(&[7; 1000])
        .frame();
    bed.inner.put(long.clone());
    assert_eq!(bed.sent(1)[0].len(), long.len() + 50);
}

/// Fragments of packets that no tunnel claims go to the host unchanged; those of a tunnel's packet
/// that does not become complete are dropped in time, and contradictory ones are counted.
#[test]
fn fragments_of_others_are_the_hosts() {
    let bed = Bed::with_vxlan(true);
    let fragments = |udp: u16, id: u8, size: usize| -> Vec<HeapFrame> {
        let mut whole = Builder::ethernet(OWN_MAC, PEER_MAC)
            .ipv4(PEER.into(), OWN.into())
            .udp(5, udp)
            .payload(&[9; 600])
            .with_ipv4(|ip| ip.set_fragment(0))
            .bytes();
        whole[19] = id;
        whole[24..26].fill(0);
        let sum = packet::checksum::ipv4_header(&whole[14..34]);
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        let cut = packet::fragment::Fragments::new(HeapFrame::new(&whole), size, 0).unwrap();
        cut.map(|fragment| fragment.unwrap()).collect()
    };
    let others = fragments(5353, 1, 300);
    let mut order = others.clone();
    order.rotate_left(1);
    bed.uplink.put_all(order);
    wait_until("the host's", || bed.local.sent() == 3);
    let mut came = bed.local.take();
    let mut wanted: Vec<_> = others.iter().map(Frame::to_vec).collect();
    came.sort();
    wanted.sort();
    assert_eq!(came, wanted);
    // One with a wrong header is for the host to judge.
    let mut wrong = others[1].clone();
    wrong.head_mut()[24] ^= 1;
    bed.uplink.put(wrong);
    wait_until("the host judges", || bed.local.sent() == 4);
    assert_eq!(bed.switch.dropped_in_all(), 0);

    let ours = fragments(4789, 2, 300);
    bed.uplink
        .put_all([ours[0].clone(), ours[0].clone(), ours[2].clone()]);
    wait_until("twice", || bed.switch.dropped("tunnel_fragment_twice") == 1);
    wait_until("late", || bed.switch.dropped("tunnel_fragment_late") == 2);
    let (ours, overlapping) = (fragments(4789, 3, 300), fragments(4789, 3, 200));
    bed.uplink
        .put_all([ours[0].clone(), overlapping[1].clone()]);
    wait_until("contradiction", || {
        bed.switch.dropped("tunnel_fragment_contradiction") == 2
    });
    assert_eq!(bed.local.sent(), 4);
}

/// A sender of first fragments alone is limited, and takes no room from others.
#[test]
fn many_first_fragments_leave_room_to_others() {
    let bed = Bed::with_vxlan(true);
    let first = |source: u8, id: u16| {
        let mut whole = Builder::ethernet(OWN_MAC, PEER_MAC)
            .ipv4(0x0a00_0100 | u32::from(source), OWN.into())
            .udp(5, 4789)
            .payload(&[9; 120])
            .bytes();
        whole[18..20].copy_from_slice(&id.to_be_bytes());
        whole[20] = 0x20;
        whole[24..26].fill(0);
        let sum = packet::checksum::ipv4_header(&whole[14..34]);
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        HeapFrame::new(&whole)
    };
    bed.uplink.put_all((0..1000).map(|id| first(1, id)));
    let full = || bed.switch.dropped("tunnel_fragment_full");
    wait_until("refused", || full() == 1000 - 64);
    bed.uplink.put_all((0..60).map(|id| first(2, id)));
    wait_until("all given up in the end", || {
        bed.switch.dropped("tunnel_fragment_late") == 64 + 60
    });
    assert_eq!(full(), 1000 - 64);
}

/// Packets that the kernel's tunnel hands over unsegmented come in unsegmented.
#[test]
fn large_packets_come_in_whole() {
    let mut bed = Bed::with_vxlan(true);
    bed.switch
        .rule(bed.overlay, 0, 1, in_port(2), vec![Op::Output(1)]);
    let inner = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(0x0a01_0101, 0x0a01_0102)
        .tcp(1000, 2000, 0x10)
        .payload(&[7; 4000])
        .partial_checksum();
    bed.inner.put(HeapFrame::new(&inner.bytes()));
    let mut outer = Bed::turned(bed.sent(1).remove(0));
    let large = packet::Offload {
        partial_checksum: true,
        csum_start: 50 + 34,
        csum_offset: 16,
        gso: packet::frame::Gso::Tcp4,
        gso_size: 1400,
        ..packet::Offload::default()
    };
    outer.set_offload(large);
    bed.uplink.put(outer.clone());
    wait_until("came in", || bed.inner.sent() == 1);
    let came = bed.inner.sent.lock().unwrap().remove(0);
    assert_eq!(came.to_vec(), inner.bytes());
    let wanted = packet::Offload {
        csum_start: 34,
        ..large
    };
    assert_eq!(came.offload(), wanted);
    // Segments of the tunnel's own packet would have no tunnel header after the first.
    outer.set_offload(packet::Offload {
        csum_start: 34,
        csum_offset: 6,
        gso: packet::frame::Gso::UdpL4,
        ..large
    });
    bed.uplink.put(outer);
    wait_until("refused", || bed.switch.dropped("tunnel_segment") == 1);
}

/// Packets of many tunnels that come together meet their own ports' rules, and have their own keys.
#[test]
fn packets_of_many_tunnels_are_told_apart() {
    const TUNNELS: u32 = 40;
    let mut bed = Bed::new();
    bed.underlay(true);
    bed.keyed_tunnels(TUNNELS);
    // Each in turn: bursts in which every packet is of another tunnel.
    let out = (0..TUNNELS).map(|number| Op::Output(10 + number)).collect();
    bed.switch.rule(bed.overlay, 0, 1, in_port(1), out);
    bed.inner.put(packet());
    let outer = bed.sent(u64::from(TUNNELS));
    for number in (0..TUNNELS).filter(|number| number % 2 == 0) {
        let mut matching = in_port(10 + number);
        // Also where rules match the key, so that packets are walked with it.
        if number % 4 == 0 {
            matching.set_exact(Field::TunId, u128::from(number) + 1);
        }
        bed.switch
            .rule(bed.overlay, 0, 1, matching, vec![Op::Output(1)]);
    }
    bed.uplink.put_all(outer.into_iter().map(Bed::turned));
    let wanted = u64::from(TUNNELS) / 2;
    wait_until("half of them", || bed.inner.sent() == wanted);
    wait_until("the others miss", || {
        bed.switch.dropped("table_miss") == wanted
    });
}

/// The learning switch takes bursts whose packets come by many tunnels: it learns behind which each
/// host is, and sends to these.
#[test]
fn the_learning_switch_takes_bursts_of_many_tunnels() {
    switch_between(40);
    switch_between(6);
}

/// The same with so many tunnels.
fn switch_between(tunnels: u32) {
    let mut bed = Bed::new();
    bed.underlay(true);
    let vxlan = bed.keyed_tunnels(tunnels);
    let host = |number: u32| [2, 0, 0, 0, 1, number as u8];
    // Packets of hosts behind the tunnels, three of each, as these would send them.
    let mut matching = in_port(1);
    matching.set_exact(Field::IpProto, 17);
    matching.set_exact(Field::EthType, 0x0800);
    let mut out = Vec::new();
    for number in 0..tunnels {
        let mac = host(number).into_iter();
        let mac = mac.fold(0, |mac, byte| mac << 8 | u128::from(byte));
        out.extend([set(Field::EthSrc, mac), Op::Output(10 + number)]);
    }
    bed.switch.rule(bed.overlay, 0, 3, matching, out);
    bed.inner.put_all((0..3).map(|_| packet()));
    let outer = bed.sent(u64::from(3 * tunnels));
    // What the host behind port 1 sends, is flooded, and teaches where it is.
    let all = packet::Match::any();
    bed.switch.rule(bed.overlay, 0, 1, all, vec![Op::Normal]);
    let tcp = |to: [u8; 6]| {
        let from = [2, 0, 0, 0, 0, 9];
        let builder = Builder::ethernet(to, from).ipv4(0x0a01_0102, 0x0a01_0101);
        builder.tcp(7, 8, 0).payload(&[to[5]; 60]).frame()
    };
    bed.inner.put(tcp([2, 0, 0, 0, 0, 7]));
    bed.sent(u64::from(3 * tunnels + tunnels));
    // One of them is not for the learning switch.
    let mut dropped = in_port(13);
    dropped.set_exact(Field::EthType, 0x0800);
    bed.switch.rule(bed.overlay, 0, 2, dropped, Vec::new());
    let back: Vec<HeapFrame> = outer.into_iter().map(Bed::turned).collect();
    bed.uplink.put_all(back.clone());
    let wanted = u64::from(3 * (tunnels - 1));
    wait_until("they arrive", || bed.inner.sent() == wanted);
    wait_until("one is dropped", || bed.switch.dropped("action") == 3);
    let others = |number: &u32| *number != 3;
    bed.inner
        .put_all((0..tunnels).filter(others).map(|number| tcp(host(number))));
    let sent = bed.sent(u64::from(4 * tunnels + tunnels - 1));
    let mut ids = Vec::new();
    for mut outer in sent {
        let found = parse(&mut outer, vxlan).unwrap();
        decapsulate(&mut outer, &found).unwrap();
        let bytes = outer.to_vec();
        assert_eq!(u64::from(bytes[5]) + 1, found.info.id);
        ids.push(found.info.id);
    }
    ids.sort();
    let wanted = (0..tunnels)
        .filter(others)
        .map(|number| u64::from(number) + 1);
    assert!(ids.into_iter().eq(wanted));
    assert_eq!(bed.switch.dropped_in_all(), 3);

    // One of whose packets of a burst an older one came by another tunnel is behind the last one's.
    let moved = [2, 0, 0, 0, 2, 1];
    let from = |number: u32, source: [u8; 6]| {
        let id = [0, 0, number as u8 + 1];
        let of = |frame: &&HeapFrame| frame.head()[46..49] == id;
        let mut frame = back.iter().find(of).unwrap().clone();
        frame.head_mut()[56..62].copy_from_slice(&source);
        frame
    };
    bed.uplink.put_all([
        from(0, host(0)),
        from(1, moved),
        from(0, moved),
        from(1, host(1)),
        from(1, host(1)),
        from(0, host(0)),
    ]);
    let arrived = u64::from(3 * (tunnels - 1)) + 6;
    wait_until("six more arrive", || bed.inner.sent() == arrived);
    bed.inner.put(tcp(moved));
    let sent = bed.sent(u64::from(4 * tunnels + tunnels - 1) + 1);
    let mut outer = sent.into_iter().next().unwrap();
    assert_eq!(parse(&mut outer, vxlan).unwrap().info.id, 1);
}

/// A mirror's copies do not carry another packet's metadata.
#[test]
fn mirrors_do_not_send_what_others_said() {
    let mut bed = Bed::new();
    bed.underlay(true);
    let flow = TunnelSpec {
        in_key: TunnelKey::Flow,
        out_key: TunnelKey::Flow,
        ..TunnelSpec::new(TunnelKind::Geneve, remote())
    };
    let mirrored = bed.tunnel(2, flow.clone());
    let other = TunnelSpec {
        dst_port: 6082,
        ..flow
    };
    bed.tunnel(3, other);
    let set = Op::SetField {
        field: Field::TunId,
        value: Value::from_u128(99, 8),
        mask: Field::TunId.def().place(),
    };
    bed.switch
        .rule(bed.overlay, 0, 1, in_port(1), vec![set, Op::Output(3)]);
    let source = Wire::new(true);
    let from = bed.switch.port(bed.overlay, 4, &source);
    let mirror = datapath::mirror::MirrorSpec {
        name: "m".into(),
        select_all: false,
        select_src: vec![from],
        select_dst: Vec::new(),
        select_vlans: Vec::new(),
        output: datapath::mirror::MirrorOutput::Port(mirrored),
        snaplen: None,
    };
    bed.switch
        .datapath
        .set_mirrors(bed.overlay, vec![mirror])
        .unwrap();
    bed.inner.put(packet());
    let said = bed.sent(1).remove(0);
    let id = |frame: HeapFrame| {
        parse(&mut frame.clone(), TunnelKind::Geneve)
            .unwrap()
            .info
            .id
    };
    assert_eq!(id(said), 99);
    source.put(packet());
    wait_until("mirrored", || bed.uplink.sent() == 2);
    let copy = HeapFrame::new(&bed.uplink.take()[0]);
    assert_eq!(id(copy), 0);
}

/// One frame behind a patch port reaches all of many tunnels, and so does a large one in many
/// segments.
#[test]
fn one_frame_reaches_many_tunnels_behind_a_patch_port() {
    const TUNNELS: u32 = 300;
    let mut bed = Bed::new();
    bed.underlay(true);
    let middle = bed.switch.bridge("br-tun");
    bed.switch.patch(bed.overlay, 3, "a", "b");
    bed.switch.patch(middle, 3, "b", "a");
    for number in 0..TUNNELS {
        let spec = TunnelSpec {
            out_key: TunnelKey::Fixed(number.into()),
            in_key: TunnelKey::Fixed(number.into()),
            ..TunnelSpec::new(TunnelKind::Geneve, remote())
        };
        let overlay = std::mem::replace(&mut bed.overlay, middle);
        bed.tunnel(10 + number, spec);
        bed.overlay = overlay;
    }
    bed.switch
        .rule(bed.overlay, 0, 1, in_port(1), vec![Op::Output(3)]);
    let out = (0..TUNNELS).map(|number| Op::Output(10 + number)).collect();
    bed.switch.rule(middle, 0, 1, in_port(3), out);
    bed.inner.put(packet());
    bed.sent(TUNNELS.into());
    let before = bed.uplink.sent();
    bed.switch
        .rule(middle, 0, 2, in_port(3), vec![Op::Output(10)]);
    let mut large = Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(0x0a01_0101, 0x0a01_0102)
        .tcp(1000, 2000, 0x10)
        .payload(&[7; 60_000])
        .partial_checksum()
        .frame();
    large.set_offload(packet::Offload {
        partial_checksum: true,
        csum_start: 34,
        csum_offset: 16,
        gso: packet::frame::Gso::Tcp4,
        gso_size: 60,
        ..packet::Offload::default()
    });
    bed.inner.put(large);
    wait_until("all segments", || bed.uplink.sent() == before + 1000);
    assert_eq!(bed.switch.dropped_in_all(), 0);
}

/// Next hops that never answer do not keep others from being asked for.
#[test]
fn silent_next_hops_leave_room_to_others() {
    const SILENT: u32 = 300;
    let mut bed = Bed::new();
    bed.underlay(false);
    let address =
        |number: u32| IpAddr::from([10, 0, 1 + (number / 200) as u8, (number % 200) as u8]);
    let mut out = Vec::new();
    for number in 0..=SILENT {
        let kind = TunnelKind::Vxlan { gbp: false };
        bed.tunnel(10 + number, TunnelSpec::new(kind, Some(address(number))));
        out.push(Op::Output(10 + number));
    }
    let last = out.pop().into_iter().collect();
    let mut udp = in_port(1);
    udp.set_exact(Field::EthType, 0x0800);
    bed.switch.rule(bed.overlay, 0, 2, udp, out);
    bed.switch.rule(bed.overlay, 0, 1, in_port(1), last);
    bed.inner.put(packet());
    // Packets that were given up for the others, and those that waited in vain.
    wait_until("all are given up", || {
        bed.switch.dropped("tunnel_no_neighbour") == u64::from(SILENT)
    });
    bed.switch.datapath.take_requests(10_000);
    let other = Builder::ethernet([2; 6], [4; 6])
        .eth_type(0x88b5)
        .payload(&[0; 60]);
    let mut asked = false;
    wait_until("the other is asked for", || {
        bed.inner.try_put(other.frame());
        std::thread::sleep(std::time::Duration::from_millis(5));
        let requests = bed.switch.datapath.take_requests(10_000);
        asked |= requests.iter().any(|request| {
            matches!(request.kind, RequestKind::AskNeighbour { address: to, .. } if to == address(SILENT))
        });
        asked
    });
}
