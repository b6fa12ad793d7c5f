//! TCP: which segments belong to a connection, by their flags and sequence numbers.
//!
//! The rules are those of OpenBSD's pf, which Open vSwitch follows: for each side, the highest
//! sequence number that it sent and the highest that the other side allows are remembered (Guido
//! van Rooij, "Real Stateful TCP Packet Filtering in IP Filter"). A connection whose beginning was
//! not seen is picked up with wide windows.

use crate::timeouts::Timeout;

pub(crate) mod flag {
    pub const FIN: u16 = 0x01;
    pub const SYN: u16 = 0x02;
    pub const RST: u16 = 0x04;
    pub const PSH: u16 = 0x08;
    pub const ACK: u16 = 0x10;
    pub const URG: u16 = 0x20;
}

/// What the tracker reads of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Segment {
    pub sequence: u32,
    pub acknowledgement: u32,
    pub window: u16,
    pub flags: u16,
    /// Payload bytes.
    pub length: u32,
    /// The window scale option, at most 14.
    pub scale: Option<u8>,
}

/// State of one side, in the numbering of Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum TcpState {
    /// Nothing was sent.
    #[default]
    Closed,
    /// Not used here.
    Listen,
    /// Something was sent and not acknowledged.
    SynSent,
    /// Not used here.
    SynRecv,
    /// What it sent was acknowledged.
    Established,
    /// Not used here.
    CloseWait,
    /// Not used here.
    FinWait1,
    /// It has sent a FIN.
    Closing,
    /// Not used here.
    LastAck,
    /// Its FIN was acknowledged.
    FinWait2,
    /// The connection was reset.
    TimeWait,
}

impl TcpState {
    /// Every state, in order.
    pub const ALL: [TcpState; 11] = [
        TcpState::Closed,
        TcpState::Listen,
        TcpState::SynSent,
        TcpState::SynRecv,
        TcpState::Established,
        TcpState::CloseWait,
        TcpState::FinWait1,
        TcpState::Closing,
        TcpState::LastAck,
        TcpState::FinWait2,
        TcpState::TimeWait,
    ];

    /// Returns its name in dumps.
    pub fn name(self) -> &'static str {
        match self {
            TcpState::Closed => "CLOSED",
            TcpState::Listen => "LISTEN",
            TcpState::SynSent => "SYN_SENT",
            TcpState::SynRecv => "SYN_RECV",
            TcpState::Established => "ESTABLISHED",
            TcpState::CloseWait => "CLOSE_WAIT",
            TcpState::FinWait1 => "FIN_WAIT_1",
            TcpState::Closing => "CLOSING",
            TcpState::LastAck => "LAST_ACK",
            TcpState::FinWait2 => "FIN_WAIT_2",
            TcpState::TimeWait => "TIME_WAIT",
        }
    }
}

/// What dumps show of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its state.
    pub state: TcpState,
    /// Its window scale, 0 if it announced none.
    pub scale: u8,
    /// Whether it announced a window scale.
    pub scaled: bool,
    /// Whether the handshake was not seen, so that its scale is not known.
    pub liberal: bool,
}

/// What dumps show of a TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpInfo {
    /// The side that began.
    pub original: Peer,
    /// The other side.
    pub reply: Peer,
}

/// The largest window scale (RFC 7323 section 2.3).
const SCALE_MAX: u8 = 14;
/// How far an acknowledgement may be off: the largest unscaled window, and one large frame.
const SKEW: u32 = 0xffff + 1500;

/// Bits of [`Side::scale`]: the option was seen; the handshake was not seen.
const SCALED: u8 = 0x80;
const UNKNOWN: u8 = 0x40;
const SCALE: u8 = 0x0f;

/// What is remembered of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Side {
    /// The end of what it sent.
    sent: u32,
    /// The end of what the other side lets it send.
    allowed: u32,
    /// The largest window that it announced, before scaling.
    window: u16,
    scale: u8,
    pub state: TcpState,
}

impl Side {
    pub fn info(&self) -> Peer {
        Peer {
            state: self.state,
            scale: self.scale & SCALE,
            scaled: self.scale & SCALED != 0,
            liberal: self.scale & UNKNOWN != 0,
        }
    }

    /// Returns the end of what it sent.
    pub fn sent(&self) -> u32 {
        self.sent
    }

    fn shift(&self) -> u32 {
        (self.scale & SCALE).into()
    }

    /// Returns both sides of an open connection as words; their states are not among them.
    #[inline(always)]
    pub fn to_words(sides: &[Side; 2]) -> [u64; 3] {
        let numbers = |side: &Side| u64::from(side.sent) << 32 | u64::from(side.allowed);
        let rest = |side: &Side| u64::from(side.window) << 8 | u64::from(side.scale);
        let [first, second] = sides;
        [
            numbers(first),
            numbers(second),
            rest(first) << 32 | rest(second),
        ]
    }

    /// Returns the sides of an open connection.
    #[inline(always)]
    pub fn from_words([first, second, rest]: [u64; 3]) -> [Side; 2] {
        let side = |numbers: u64, rest: u32| Side {
            sent: (numbers >> 32) as u32,
            allowed: numbers as u32,
            window: (rest >> 8) as u16,
            scale: rest as u8,
            state: TcpState::Established,
        };
        [side(first, (rest >> 32) as u32), side(second, rest as u32)]
    }
}

impl Segment {
    /// Whether it may leave an open connection as it is, but for its numbers.
    #[inline(always)]
    pub fn may_be_usual(&self) -> bool {
        self.flags & (flag::SYN | flag::FIN | flag::RST | flag::ACK) == flag::ACK
    }
}

/// Whether both sides are open.
pub(crate) fn is_open(sides: &[Side; 2]) -> bool {
    let open = |side: &Side| side.state == TcpState::Established;
    sides.iter().all(open)
}

/// Does what [`step`] does, for an open connection and a segment that [`Segment::may_be_usual`].
/// Returns whether the segment fits and leaves the connection open; if not, what has become of the
/// sides does not count.
#[inline]
pub(crate) fn step_usual(
    sides: &mut [Side; 2],
    from: usize,
    segment: &Segment,
    check: bool,
) -> bool {
    step(sides, from, segment, check) == Step::Valid(Some(Timeout::TcpEstablished))
        && is_open(sides)
}

/// What a segment means for its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It belongs to it; a new timeout, or None if the old one stays.
    Valid(Option<Timeout>),
    /// It repeats the SYN that began the connection.
    Again(Timeout),
    /// It begins a new connection with the same ports.
    Reuse,
    /// Its flags contradict each other.
    BadFlags,
    /// It lies outside the windows.
    BadWindow,
}

/// Whether `a` is behind or at `b`, modulo 2^32.
fn not_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// Whether the flags contradict each other.
fn bad_flags(flags: u16) -> bool {
    use flag::*;
    let has = |set: u16| flags & set != 0;
    match (has(SYN), has(ACK)) {
        (true, _) if has(RST | FIN) => true,
        (false, false) if !has(RST) => true,
        (_, false) => has(FIN | PSH | URG),
        _ => false,
    }
}

/// Whether a segment may begin a connection: a SYN, or a later segment of a connection whose
/// handshake was not seen, but not the answer to a SYN that was not seen.
pub(crate) fn may_begin(segment: &Segment) -> bool {
    let both = flag::SYN | flag::ACK;
    !bad_flags(segment.flags) && segment.flags & both != both
}

/// Begins a connection; returns the side that sent the segment and the other one.
pub(crate) fn begin(segment: &Segment) -> [Side; 2] {
    let syn = segment.flags & flag::SYN != 0;
    let fin = segment.flags & flag::FIN != 0;
    let allowed = segment
        .sequence
        .wrapping_add(segment.length)
        .wrapping_add(1 + u32::from(syn) + u32::from(fin));
    let scale = match (syn, segment.scale) {
        (true, Some(scale)) => scale.min(SCALE_MAX) | SCALED,
        (true, None) => 0,
        (false, _) => UNKNOWN,
    };
    let mut first = Side {
        sent: segment.sequence,
        allowed,
        window: segment.window.max(1),
        scale,
        state: TcpState::SynSent,
    };
    // The window of a SYN is not scaled, that of all later segments is.
    first.window = first.window.div_ceil(1 << first.shift());
    let second = Side {
        sent: 0,
        allowed: 1,
        window: 1,
        scale: if syn { 0 } else { UNKNOWN },
        state: TcpState::Closed,
    };
    [first, second]
}

/// Moves a connection on by a segment from `sides[from]`. `check` is false if sequence numbers are
/// not checked.
pub(crate) fn step(sides: &mut [Side; 2], from: usize, segment: &Segment, check: bool) -> Step {
    use TcpState::*;
    use flag::*;
    let [first, second] = sides;
    let (src, dst) = if from == 0 {
        (first, second)
    } else {
        (second, first)
    };
    let has = |set: u16| segment.flags & set != 0;
    if bad_flags(segment.flags) {
        return Step::BadFlags;
    }
    if segment.flags & (SYN | ACK) == SYN {
        if src.state >= FinWait2 && dst.state >= FinWait2 {
            return Step::Reuse;
        }
        if src.state <= SynSent {
            src.state = SynSent;
            return Step::Again(Timeout::TcpSynSent);
        }
    }

    // Scales apply only if both sides announced one, and not to segments with SYN. Without a
    // handshake, the largest is assumed.
    let (mut src_shift, mut dst_shift) = match (has(SYN), src.scale & dst.scale) {
        (false, both) if both & SCALED != 0 => (src.shift(), dst.shift()),
        (false, both) if both & UNKNOWN != 0 => (SCALE_MAX.into(), SCALE_MAX.into()),
        _ => (0, 0),
    };
    let mut window = segment.window;
    let mut sequence = segment.sequence;
    let mut end = sequence
        .wrapping_add(segment.length)
        .wrapping_add(u32::from(has(SYN)) + u32::from(has(FIN)));
    let mut check_skew = true;
    if src.state < SynSent {
        // The first segment from this side.
        if has(SYN) && dst.scale & SCALED != 0 {
            if let Some(scale) = segment.scale {
                src.scale = scale.min(SCALE_MAX) | SCALED;
                (src_shift, dst_shift) = (src.shift(), dst.shift());
                window = window.div_ceil(1 << src_shift);
            } else {
                // No scaling in either direction: undo what was done to the first window.
                src.scale = 0;
                dst.window = (u32::from(dst.window) << dst.shift()).min(0xffff) as u16;
                dst.scale = 0;
            }
        }
        src.sent = sequence;
        src.state = SynSent;
        let reach = end.wrapping_add((u32::from(dst.window) << dst_shift).max(1));
        if src.allowed == 1 || not_before(reach, src.allowed) {
            src.allowed = reach;
            // Nothing is known of what this side has received.
            check_skew = false;
        }
        src.window = src.window.max(window);
    }

    let mut ack = segment.acknowledgement;
    if !has(ACK) || ack == 0 && has(RST) {
        // No number, or none in the answer to a SYN that timed out.
        ack = dst.sent;
    }
    if sequence == end {
        // Segments without data may have any number.
        sequence = src.sent;
        end = sequence;
    }
    let skew = if check_skew {
        dst.sent.wrapping_sub(ack) as i32
    } else {
        0
    };
    let backwards = u32::from(dst.window) << dst_shift;
    let reset_fits = !has(RST) || segment.sequence.wrapping_sub(src.sent).wrapping_add(1) <= 2;
    let fits = not_before(src.allowed, end)
        && not_before(sequence, src.sent.wrapping_sub(backwards))
        && i64::from(skew) >= -i64::from(SKEW)
        && i64::from(skew) <= i64::from(SKEW) << src_shift
        && reset_fits;
    // Lenient while one side is silent (simultaneous SYNs, a connection picked up in the middle)
    // and after the end (late FINs), without renewing the timeout.
    let lenient = (dst.state < SynSent || dst.state >= FinWait2 || src.state >= FinWait2)
        && not_before(src.allowed.wrapping_add(SKEW), end)
        && not_before(sequence, src.sent.wrapping_sub(SKEW));
    let fits = fits || !check;
    if !fits && !lenient {
        return Step::BadWindow;
    }

    src.window = src.window.max(window);
    if not_before(end, src.sent) {
        src.sent = end;
    }
    let opened = u32::from(window) << src_shift;
    if not_before(ack.wrapping_add(opened), dst.allowed) {
        dst.allowed = ack.wrapping_add(opened.max(1));
    }
    if has(FIN) && src.state < Closing {
        src.state = Closing;
    }
    if fits && has(ACK) {
        match dst.state {
            SynSent => dst.state = Established,
            Closing => dst.state = FinWait2,
            _ => {}
        }
    }
    if has(RST) {
        (src.state, dst.state) = (TimeWait, TimeWait);
    }
    if !fits {
        return Step::Valid(None);
    }
    let (less, more) = (src.state.min(dst.state), src.state.max(dst.state));
    Step::Valid(Some(if less >= FinWait2 {
        Timeout::TcpClose
    } else if less >= Closing {
        Timeout::TcpTimeWait
    } else if less < Established {
        Timeout::TcpSynRecv
    } else if more >= Closing {
        Timeout::TcpFinWait
    } else {
        Timeout::TcpEstablished
    }))
}
