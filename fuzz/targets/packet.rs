//! Frames with any bytes in any segments: parsed, edited and segmented without a panic. Also must
//! hold:
//!
//! * the fast parser reads the same as the reference;
//! * how a frame is cut into segments, and which words are requested, does not change what is read;
//! * the key that edits maintain is what a fresh parse reads;
//! * right checksums stay right, and wrong ones wrong;
//! * segments of a large frame have right checksums.
//!
//! Input: `PLAN` bytes (see [`Plan`]), then the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::checksum::{ChecksumStatus, finish_partial, verify};
use packet::fields::FIELDS;
use packet::frame::Gso;
use packet::key::at;
use packet::parse::reference;
use packet::parse::{HEADERS_LIMIT, PACKET_WORDS, parse_frame, set_vlan_limit, vlan_limit};
use packet::{Field, FlowKey, Frame, HeapFrame, Layers, Offload, Value, WordSet, edit, segment};

const ALL: WordSet = WordSet(u64::MAX);
const PLAN: usize = 18;

/// The first bytes of an input, decoded.
struct Plan {
    /// Where the frame is cut into two segments.
    split: usize,
    /// How many VLAN tags are read.
    vlan_limit: u8,
    /// Whether checksums are corrected before edits.
    right: bool,
    gso: Gso,
    gso_size: u16,
    /// Kind and operand.
    steps: [[u8; 2]; 6],
}

impl Plan {
    fn new(bytes: &[u8; PLAN]) -> Plan {
        let [
            split,
            more,
            options,
            gso,
            size @ ..,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
        ] = *bytes;
        let mut steps = [[0; 2]; 6];
        for (step, bytes) in steps.iter_mut().zip(bytes[6..].chunks_exact(2)) {
            step.copy_from_slice(bytes);
        }
        Plan {
            split: u16::from_be_bytes([more & 7, split]).into(),
            vlan_limit: 1 + (options & 1),
            right: options & 2 != 0,
            gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::UdpL4][usize::from(gso & 3)],
            gso_size: u16::from_be_bytes(size),
            steps,
        }
    }
}

/// A frame with what is known about it.
struct Packet {
    frame: HeapFrame,
    layers: Layers,
    key: FlowKey,
}

impl Packet {
    fn parse(frame: HeapFrame, needed: WordSet) -> Packet {
        Packet::parse_from(frame, 1, needed)
    }

    fn parse_from(mut frame: HeapFrame, in_port: u32, needed: WordSet) -> Packet {
        let mut key = FlowKey::ZERO;
        let layers = parse_frame(&mut frame, in_port, needed, &mut key);
        Packet { frame, layers, key }
    }

    /// Returns the number of VLAN tags in the bytes, parsed or not.
    fn tags(&self) -> usize {
        let bytes = self.frame.to_vec();
        let types = bytes.get(12..).unwrap_or_default().chunks_exact(4);
        types
            .take_while(|tag| matches!(tag, [0x81, 0, ..] | [0x88, 0xa8, ..]))
            .count()
    }

    /// Corrects all checksums.
    fn right(&mut self) {
        let (l3, l4, end) = (
            usize::from(self.layers.l3),
            usize::from(self.layers.l4),
            self.layers.end as usize,
        );
        if l4 == 0 {
            return;
        }
        let ipv4 = self.key.u16(at::ETH_TYPE) == 0x0800;
        if ipv4 {
            let header = &mut self.frame.head_mut()[l3..l4];
            header[10..12].fill(0);
            let checksum = packet::checksum::ipv4_header(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let protocol = self.key.u8(at::IP_PROTO);
        let place = match protocol {
            6 => 16,
            17 => 6,
            1 | 2 | 58 => 2,
            132 => {
                let crc = packet::checksum::sctp(&self.frame, l4, end);
                if let Some(field) = self.frame.head_mut().get_mut(l4 + 8..l4 + 12) {
                    field.copy_from_slice(&crc.to_le_bytes());
                }
                return;
            }
            _ => return,
        };
        if !self.layers.transport || l4 + place + 2 > self.frame.head().len() {
            return;
        }
        let mut sum = packet::checksum::Sum::new();
        if protocol != 1 && protocol != 2 {
            let (from, to) = if ipv4 {
                (l3 + 12, l3 + 20)
            } else {
                (l3 + 8, l3 + 40)
            };
            let addresses = self.frame.head()[from..to].to_vec();
            let (src, dst) = addresses.split_at(addresses.len() / 2);
            sum.add_pseudo_header(src, dst, protocol, (end - l4) as u32);
        }
        self.frame.head_mut()[l4 + place..l4 + place + 2]
            .copy_from_slice(&sum.fold().to_be_bytes());
        // Padding is not covered by the checksum.
        self.frame.truncate(end);
        self.frame.set_offload(Offload {
            partial_checksum: true,
            csum_start: l4 as u16,
            csum_offset: place as u16,
            ..Offload::default()
        });
        assert!(
            finish_partial(&mut self.frame),
            "the field lies in the frame"
        );
    }

    fn verdict(&self) -> ChecksumStatus {
        verify(&self.frame, &self.layers, &self.key)
    }

    fn edit(&mut self, [kind, operand]: [u8; 2]) {
        let (frame, layers, key) = (&mut self.frame, &mut self.layers, &mut self.key);
        match kind {
            0 => drop(edit::push_vlan(
                frame,
                layers,
                key,
                [0x8100, 0x88a8][usize::from(operand & 1)],
            )),
            1 => edit::pop_vlan(frame, layers, key),
            2 => drop(edit::dec_ttl(frame, layers, key)),
            3 => drop(edit::set_vlan_vid(
                frame,
                layers,
                key,
                u16::from(operand) << 4,
                operand & 1 == 1,
            )),
            4 => drop(edit::set_vlan_pcp(
                frame,
                layers,
                key,
                operand,
                operand & 8 == 8,
            )),
            5 => drop(edit::push_mpls(frame, layers, key, 0x8847)),
            6 => edit::pop_mpls(
                frame,
                layers,
                key,
                [0x0800, 0x86dd, 0x8847, 0x8100][usize::from(operand & 3)],
            ),
            7 => drop(edit::push_pbb(frame, layers, key)),
            8 => edit::pop_pbb(frame, layers, key),
            9 => drop(edit::dec_mpls_ttl(frame, layers, key)),
            10 => edit::copy_ttl_in(frame, layers, key),
            11 => edit::copy_ttl_out(frame, layers, key),
            _ => {
                let field = field(kind);
                let def = field.def();
                let bytes = |byte: u8| Value::from_bytes(&vec![byte; def.bytes]);
                let mask = if kind & 0x80 == 0 {
                    def.place()
                } else {
                    bytes(0x3c)
                };
                edit::set_field(frame, layers, key, field, &bytes(operand), &mask);
            }
        }
    }
}

/// Returns whether a step of this kind changes how the packet is parsed.
fn shapes([kind, _]: [u8; 2]) -> bool {
    (5..FIRST_FIELD).contains(&kind)
        || kind >= FIRST_FIELD
            && matches!(
                field(kind),
                Field::EthType | Field::IpProto | Field::MplsBos
            )
}

/// The first kind of step that writes a field.
const FIRST_FIELD: u8 = 12;

/// Returns the field that a step of this kind writes.
fn field(kind: u8) -> Field {
    FIELDS[usize::from(kind & 0x7f) % FIELDS.len()].field
}

/// Parses the frame in one and in two segments; both must read the same.
fn read(bytes: &[u8], split: usize) -> Packet {
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    let mut whole = Packet::parse(HeapFrame::new(bytes), ALL);
    let cut = Packet::parse(HeapFrame::with_segments(&[first, second]), ALL);
    assert_eq!(
        whole.layers, cut.layers,
        "layers depend on where the frame is cut"
    );
    assert_eq!(
        whole.key, cut.key,
        "the key depends on where the frame is cut"
    );
    assert_eq!(cut.frame.to_vec(), bytes, "parsing changed the bytes");
    if bytes.len() <= HEADERS_LIMIT {
        let (key, layers) = reference::parse(bytes, 1, vlan_limit());
        assert_eq!(
            (whole.key, whole.layers),
            (key, layers),
            "the fast parser and the obvious one differ"
        );
    }
    let hot = Packet::parse(HeapFrame::new(bytes), WordSet::MINI_KEY);
    for word in WordSet::MINI_KEY.iter() {
        assert_eq!(
            whole.key.words[word], hot.key.words[word],
            "word {word} depends on what is asked for"
        );
    }
    whole.frame = cut.frame;
    whole
}

/// Edits, then compares the maintained key and the checksums with the bytes.
fn edit_all(packet: &mut Packet, plan: &Plan) {
    let before = packet.verdict();
    // A routing header whose destination is not the final one: `verify` does not support its
    // checksum.
    let routed = packet.key.u16(at::IPV6_EXT) & 1 << 5 != 0;
    let limit = usize::from(plan.vlan_limit);
    // With more tags than are parsed, what follows them is unknown, and popping one exposes it.
    let mut known = packet.tags() <= limit;
    let mut discovery = true;
    // Whether another transport header, or none, is parsed after an edit.
    let mut shaped = false;
    for step in plan.steps {
        let pushes = step[0] == 0;
        known &= !pushes || packet.tags() < limit;
        // Writing an ICMPv6 type turns a packet into neighbour discovery or back; the key is not
        // updated for that.
        discovery &= step[0] < FIRST_FIELD
            || !matches!(field(step[0]), Field::Icmpv6Type | Field::Icmpv6Code);
        packet.edit(step);
        shaped |= shapes(step);
        known &= !shaped || packet.tags() <= limit;
    }
    if !known || packet.layers.malformed.is_some() {
        return;
    }
    let fresh = Packet::parse_from(packet.frame.clone(), packet.key.u32(at::IN_PORT), ALL);
    let doubtful = if discovery {
        WordSet::EMPTY
    } else {
        Field::NdTarget
            .def()
            .words()
            .union(Field::NdSll.def().words())
            .union(Field::NdTll.def().words())
    };
    for word in PACKET_WORDS.minus(doubtful).iter() {
        assert_eq!(
            packet.key.words[word].to_be(),
            fresh.key.words[word].to_be(),
            "word {word} of the kept key differs from a fresh parse"
        );
    }
    // A sum of zeros only, possible for ICMP, does not distinguish a wrong zero from a right one.
    let ambiguous = matches!(packet.key.u8(at::IP_PROTO), 1 | 2) && before != ChecksumStatus::Good;
    if !routed && !ambiguous && !shaped {
        assert_eq!(
            packet.verdict(),
            before,
            "edits changed whether the checksums are right"
        );
    }
}

fn cut(packet: Packet, plan: &Plan) {
    let mut frame = packet.frame;
    frame.set_offload(Offload {
        partial_checksum: plan.right,
        csum_start: packet.layers.l4,
        csum_offset: u16::from(plan.steps[0][0]),
        gso: plan.gso,
        gso_size: plan.gso_size,
        ..Offload::default()
    });
    let mut pieces = Vec::new();
    let result = segment::segment(frame, &mut |piece: HeapFrame| pieces.push(piece));
    assert!(pieces.len() <= segment::MAX_SEGMENTS);
    if let Ok(count) = result {
        assert_eq!(count, pieces.len());
        for piece in pieces.into_iter().filter(|_| plan.gso != Gso::None) {
            let piece = Packet::parse(piece, ALL);
            // Frames are also segmented behind labels and service tags, where the parser does not
            // look.
            let opaque = matches!(piece.key.u16(at::ETH_TYPE), 0x8847 | 0x8848 | 0x88e7);
            if piece.tags() <= usize::from(plan.vlan_limit) && !opaque {
                assert_eq!(piece.verdict(), ChecksumStatus::Good, "a segment's checksum");
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((plan, bytes)) = data.split_first_chunk() else {
        return;
    };
    let plan = Plan::new(plan);
    set_vlan_limit(plan.vlan_limit);
    let mut packet = read(bytes, plan.split);
    if plan.right {
        packet.right();
        packet = read(&packet.frame.to_vec(), plan.split);
    }
    edit_all(&mut packet, &plan);
    cut(packet, &plan);
});
