//! Control messages (RFC 5880 section 4.1) and the frames that carry them (RFC 5881 section 4).

/// UDP port of control messages.
pub const PORT: u16 = 3784;
/// Bytes of a message without authentication, the only kind there is here.
pub const LENGTH: usize = 24;
/// TTL that every message is sent with; one with another has passed a router.
pub const TTL: u8 = 255;
/// First UDP port that a session may send from (RFC 5881 section 4).
pub const FIRST_SOURCE: u16 = 49152;
/// Address that messages are sent to by default, Open vSwitch's.
pub const ETHERNET: [u8; 6] = [0x00, 0x23, 0x20, 0x00, 0x00, 0x01];

const VERSION: u8 = 1;
const POLL: u8 = 1 << 5;
const FINAL: u8 = 1 << 4;
const AUTHENTICATION: u8 = 1 << 2;
const MULTIPOINT: u8 = 1 << 0;
const FLAGS: u8 = 0x3f;

/// A session's state; later ones are closer to being up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum State {
    /// Its owner holds it down.
    AdminDown,
    /// Nothing has been heard, or nothing any more.
    #[default]
    Down,
    /// The other end is heard, and may not hear this one yet.
    Init,
    /// Both ends hear each other.
    Up,
}

impl State {
    /// Returns Open vSwitch's word for it.
    pub fn name(self) -> &'static str {
        match self {
            State::AdminDown => "admin_down",
            State::Down => "down",
            State::Init => "init",
            State::Up => "up",
        }
    }

    fn from_bits(bits: u8) -> State {
        match bits & 3 {
            0 => State::AdminDown,
            1 => State::Down,
            2 => State::Init,
            _ => State::Up,
        }
    }
}

/// Why a session was last not up, as a message says it (5 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Diagnostic(u8);

impl Diagnostic {
    /// Nothing.
    pub const NONE: Diagnostic = Diagnostic(0);
    /// No message came within the detection time.
    pub const EXPIRED: Diagnostic = Diagnostic(1);
    /// The other end said that the session is down.
    pub const NEIGHBOUR_DOWN: Diagnostic = Diagnostic(3);
    /// What lies between the two ends fails.
    pub const PATH_DOWN: Diagnostic = Diagnostic(5);
    /// What lies behind the end that says so fails.
    pub const CONCATENATED_PATH_DOWN: Diagnostic = Diagnostic(6);
    /// What lies behind the end that says so fails, in the other direction.
    pub const REVERSE_CONCATENATED_PATH_DOWN: Diagnostic = Diagnostic(8);

    /// Returns RFC 5880's words for it.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "No Diagnostic",
            1 => "Control Detection Time Expired",
            2 => "Echo Function Failed",
            3 => "Neighbor Signaled Session Down",
            4 => "Forwarding Plane Reset",
            5 => "Path Down",
            6 => "Concatenated Path Down",
            7 => "Administratively Down",
            8 => "Reverse Concatenated Path Down",
            _ => "Invalid Diagnostic",
        }
    }

    /// Returns whether an end that says so must not be sent anything, although its session is up.
    pub fn forbids(self) -> bool {
        [
            Diagnostic::PATH_DOWN,
            Diagnostic::CONCATENATED_PATH_DOWN,
            Diagnostic::REVERSE_CONCATENATED_PATH_DOWN,
        ]
        .contains(&self)
    }
}

/// A control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// The sender's state.
    pub state: State,
    /// The sender's diagnostic.
    pub diagnostic: Diagnostic,
    /// The sender's flags: the bits `P F C A D M`, [`Message::is_poll`] first.
    pub flags: u8,
    /// After how many missing messages the receiver declares the session down; 1 or more.
    pub multiplier: u8,
    /// The sender's name for the session, not 0.
    pub my_discriminator: u32,
    /// The receiver's name for it, 0 where the sender does not know it.
    pub your_discriminator: u32,
    /// The interval at which the sender would like to send, us.
    pub min_tx_us: u32,
    /// The shortest interval at which the sender can receive, us.
    pub min_rx_us: u32,
    /// The same for echo packets, us; 0 where it takes none.
    pub min_echo_us: u32,
}

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It has fewer bytes than a message.
    #[error("{0} bytes long, at least {LENGTH} required")]
    Short(usize),
    /// It is of another version.
    #[error("incorrect version {0}")]
    Version(u8),
    /// It is authenticated.
    #[error("authenticated, with authentication disabled")]
    Authenticated,
    /// Its length field is too small.
    #[error("unexpected length {0}")]
    Length(u8),
    /// Its multiplier is 0.
    #[error("zero multiplier")]
    Multiplier,
    /// It is of a multipoint session.
    #[error("unsupported multipoint flag")]
    Multipoint,
    /// Its sender does not name the session.
    #[error("no my_disc")]
    NoName,
    /// Its sender claims to hear the receiver and does not name the receiver's session.
    #[error("no your_disc")]
    NoYourName,
}

impl Message {
    /// Returns whether the sender wants an answer at once.
    pub fn is_poll(&self) -> bool {
        self.flags & POLL != 0
    }

    /// Returns whether it is that answer.
    pub fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Sets the flag of a question, or that of an answer.
    pub(crate) fn asks(&mut self, poll: bool, answer: bool) {
        self.flags = if answer {
            FINAL
        } else if poll {
            POLL
        } else {
            0
        };
    }

    /// Reads a message from UDP's payload, with RFC 5880's checks (section 6.8.6) that need no
    /// session. Bytes behind the message are not looked at.
    ///
    /// # Errors
    ///
    /// Says which check it fails.
    pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let Some(bytes) = bytes.first_chunk::<LENGTH>() else {
            return Err(Malformed::Short(bytes.len()));
        };
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let message = Message {
            state: State::from_bits(bytes[1] >> 6),
            diagnostic: Diagnostic(bytes[0] & 0x1f),
            flags: bytes[1] & FLAGS,
            multiplier: bytes[2],
            my_discriminator: word(4),
            your_discriminator: word(8),
            min_tx_us: word(12),
            min_rx_us: word(16),
            min_echo_us: word(20),
        };
        if bytes[0] >> 5 != VERSION {
            return Err(Malformed::Version(bytes[0] >> 5));
        }
        if message.flags & AUTHENTICATION != 0 {
            return Err(Malformed::Authenticated);
        }
        if usize::from(bytes[3]) < LENGTH {
            return Err(Malformed::Length(bytes[3]));
        }
        if message.multiplier == 0 {
            return Err(Malformed::Multiplier);
        }
        if message.flags & MULTIPOINT != 0 {
            return Err(Malformed::Multipoint);
        }
        if message.my_discriminator == 0 {
            return Err(Malformed::NoName);
        }
        if message.your_discriminator == 0 && message.state > State::Down {
            return Err(Malformed::NoYourName);
        }
        Ok(message)
    }

    /// Returns its bytes.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = VERSION << 5 | self.diagnostic.0;
        bytes[1] = (self.state as u8) << 6 | self.flags & FLAGS;
        bytes[2] = self.multiplier;
        bytes[3] = LENGTH as u8;
        let words = [
            self.my_discriminator,
            self.your_discriminator,
            self.min_tx_us,
            self.min_rx_us,
            self.min_echo_us,
        ];
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

/// Addresses of a frame with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// Ethernet addresses.
    pub eth_src: [u8; 6],
    /// See `eth_src`.
    pub eth_dst: [u8; 6],
    /// IPv4 addresses.
    pub ip_src: [u8; 4],
    /// See `ip_src`.
    pub ip_dst: [u8; 4],
    /// UDP port that it is sent from.
    pub udp_src: u16,
}

/// Bytes of Ethernet's, IPv4's and UDP's headers.
const HEADERS: usize = 14 + 20 + 8;
/// DSCP of network control, class 6, and no ECN.
const TOS: u8 = 0xc0;

/// Returns the frame that carries a message. It has no UDP checksum, like Open vSwitch's.
pub fn frame(message: &Message, addresses: &Addresses) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADERS + LENGTH);
    bytes.extend(addresses.eth_dst);
    bytes.extend(addresses.eth_src);
    bytes.extend([0x08, 0x00]);
    let length = (HEADERS - 14 + LENGTH) as u16;
    let mut ip = [0_u8; 20];
    (ip[0], ip[1], ip[8], ip[9]) = (0x45, TOS, TTL, 17);
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[12..16].copy_from_slice(&addresses.ip_src);
    ip[16..].copy_from_slice(&addresses.ip_dst);
    let sum = ip
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(ip);
    bytes.extend(addresses.udp_src.to_be_bytes());
    bytes.extend(PORT.to_be_bytes());
    bytes.extend(((8 + LENGTH) as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(message.encode());
    bytes
}

/// A received frame that carries a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried<'f> {
    /// Ethernet address that it was sent to.
    pub eth_dst: [u8; 6],
    /// TTL.
    pub ttl: u8,
    /// UDP's payload, which may be no message at all.
    pub payload: &'f [u8],
}

/// Most bytes before a message: Ethernet, two VLAN tags, the longest IPv4 header and UDP.
pub const MOST_HEADERS: usize = 14 + 8 + 60 + 8;

/// Returns what a frame carries if it is one of this protocol: IPv4, not a later fragment, UDP to
/// [`PORT`]. The first [`MOST_HEADERS`] and [`LENGTH`] bytes of the frame are enough.
pub fn carried(frame: &[u8]) -> Option<Carried<'_>> {
    let eth_dst = *frame.first_chunk()?;
    let mut at = 12;
    let mut tags = 0;
    loop {
        match *frame.get(at..)?.first_chunk()? {
            [0x08, 0x00] => break,
            [0x81, 0x00] | [0x88, 0xa8] if tags < 2 => (at, tags) = (at + 4, tags + 1),
            _ => return None,
        }
    }
    let ip = frame.get(at + 2..)?;
    let head: &[u8; 20] = ip.first_chunk()?;
    let header = usize::from(head[0] & 0xf) * 4;
    let offset = u16::from_be_bytes([head[6], head[7]]) & 0x1fff;
    if head[0] >> 4 != 4 || header < 20 || head[9] != 17 || offset != 0 {
        return None;
    }
    let udp = ip.get(header..)?;
    let ports: &[u8; 8] = udp.first_chunk()?;
    if u16::from_be_bytes([ports[2], ports[3]]) != PORT {
        return None;
    }
    // What lies behind IP's packet is padding of the frame.
    let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let end = total.saturating_sub(header).clamp(8, udp.len());
    Some(Carried {
        eth_dst,
        ttl: head[8],
        payload: &udp[8..end],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            state: State::Up,
            diagnostic: Diagnostic::CONCATENATED_PATH_DOWN,
            flags: POLL,
            multiplier: 3,
            my_discriminator: 0xf202_9abe,
            your_discriminator: 0x2965_6704,
            min_tx_us: 100_000,
            min_rx_us: 1_000_000,
            min_echo_us: 0,
        }
    }

    fn addresses() -> Addresses {
        Addresses {
            eth_src: [0x2a, 0xbb, 0x04, 0x29, 0x47, 0x9f],
            eth_dst: ETHERNET,
            ip_src: [169, 254, 1, 1],
            ip_dst: [169, 254, 1, 0],
            udp_src: 49152,
        }
    }

    /// A frame as Open vSwitch 3.1 has sent it.
    #[test]
    fn frames_are_those_of_open_vswitch() {
        let shown: String = (frame(&message(), &addresses()).iter())
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            shown,
            "0023200000012abb0429479f080045c0003400000000ff1164fba9fe0101a9fe0100c0000ec80020000026\
             e00318f2029abe29656704000186a0000f424000000000"
        );
    }

    #[test]
    fn a_frame_is_recognised_and_read() {
        let plain = frame(&message(), &addresses());
        let read = carried(&plain).unwrap();
        assert_eq!((read.eth_dst, read.ttl), (ETHERNET, 255));
        assert_eq!(Message::decode(read.payload), Ok(message()));
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        assert_eq!(carried(&tagged).unwrap().payload, read.payload);
        // Padding is no part of what is carried.
        let padded = [&plain[..], &[0; 9]].concat();
        assert_eq!(carried(&padded).unwrap().payload, read.payload);
        let other = |at: usize, value: u8| {
            let mut frame = plain.clone();
            frame[at] = value;
            carried(&frame).is_some()
        };
        assert!(!other(13, 0x06), "ARP");
        assert!(!other(14, 0x65), "version 6");
        assert!(!other(23, 6), "TCP");
        assert!(!other(21, 1), "a later fragment");
        assert!(!other(37, 0xc9), "another port");
        assert!(other(22, 64), "another TTL, which the session refuses");
        for length in 0..HEADERS {
            assert_eq!(carried(&plain[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn each_check_names_what_is_wrong() {
        let wrong = |at: usize, value: u8| {
            let mut bytes = message().encode();
            bytes[at] = value;
            Message::decode(&bytes)
        };
        assert_eq!(Message::decode(&[0x20; 23]), Err(Malformed::Short(23)));
        assert_eq!(wrong(0, 0x40), Err(Malformed::Version(2)));
        assert_eq!(wrong(1, 0xc4), Err(Malformed::Authenticated));
        assert_eq!(wrong(3, 23), Err(Malformed::Length(23)));
        assert_eq!(wrong(2, 0), Err(Malformed::Multiplier));
        assert_eq!(wrong(1, 0xc1), Err(Malformed::Multipoint));
        let mut none = message();
        none.my_discriminator = 0;
        assert_eq!(Message::decode(&none.encode()), Err(Malformed::NoName));
        let mut none = message();
        none.your_discriminator = 0;
        assert_eq!(Message::decode(&none.encode()), Err(Malformed::NoYourName));
        none.state = State::Down;
        assert!(Message::decode(&none.encode()).is_ok());
    }
}
