//! Reading what FTP's control connections announce: `PORT` and `EPRT` of the client (RFC 959
//! section 4.1.2, RFC 2428 section 2), replies 227 and 229 of the server.
//!
//! Only a line at the beginning of a segment is looked at, which must end in it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a segment in which a line is looked for; Open vSwitch looks at as many.
pub(crate) const LINE: usize = 128;

/// How an address and a port are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Six numbers with commas between them.
    Commas,
    /// Address and port with this byte between them.
    Extended(u8),
    /// The port only.
    Port,
}

/// An address and a port, as they are written into a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Text {
    pub form: Form,
    pub address: IpAddr,
    pub port: u16,
}

/// Text that was written, in its first bytes.
pub(crate) struct Written {
    bytes: [u8; Text::LONGEST],
    length: usize,
}

impl Written {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Written {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let place = self.bytes.get_mut(self.length..end);
        place
            .ok_or(std::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl Text {
    /// The longest address, a delimiter and five digits.
    const LONGEST: usize = 45 + 1 + 5;

    pub fn write(&self) -> Written {
        let mut out = Written {
            bytes: [0; Text::LONGEST],
            length: 0,
        };
        // Nothing is longer than the longest.
        let _ = match (self.form, self.address) {
            (Form::Commas, IpAddr::V4(address)) => {
                let [a, b, c, d] = address.octets();
                let [high, low] = self.port.to_be_bytes();
                write!(out, "{a},{b},{c},{d},{high},{low}")
            }
            (Form::Port, _) | (Form::Commas, IpAddr::V6(_)) => write!(out, "{}", self.port),
            (Form::Extended(delimiter), address) => {
                write!(out, "{address}{}{}", char::from(delimiter), self.port)
            }
        };
        out
    }
}

/// What a segment announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    /// None in replies that leave it out (229): the server's own.
    pub address: Option<IpAddr>,
    /// Not 0.
    pub port: u16,
    pub form: Form,
    /// Where in the payload address and port (with [`Form::Port`]: the port) are, and their length.
    pub at: usize,
    pub length: usize,
}

/// What a segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// Nothing that matters here.
    Nothing,
    Announced(Announced),
    /// It begins like an announcement, but is not one: it is not complete, has numbers that cannot
    /// be, or comes from the wrong side.
    Lie,
}

/// Reads the first [`LINE`] bytes of a segment's payload, of the server if it is a reply.
pub(crate) fn read(payload: &[u8], reply: bool, v6: bool) -> Reading {
    let payload = &payload[..payload.len().min(LINE)];
    let Some((word, rest)) = payload.split_first_chunk::<4>() else {
        // Half a word is left alone: nearly everything begins so.
        return match payload {
            b"227" | b"229" => Reading::Lie,
            _ => Reading::Nothing,
        };
    };
    type Parse = fn(Line<'_>, bool) -> Option<Announced>;
    let upper = word.map(|byte| byte.to_ascii_uppercase());
    let (from_server, parse): (bool, Parse) = match &upper {
        b"PORT" if !v6 => (false, port),
        b"EPRT" => (false, eprt),
        b"227 " if !v6 => (true, passive),
        b"229 " => (true, extended_passive),
        _ => return Reading::Nothing,
    };
    if !from_server && !matches!(rest.first(), None | Some(b' ' | b'\r' | b'\n')) {
        // A longer word.
        return Reading::Nothing;
    }
    let line = Line {
        bytes: payload,
        at: word.len(),
    };
    match parse(line, v6) {
        Some(announced) if from_server == reply && announced.port != 0 => {
            Reading::Announced(announced)
        }
        _ => Reading::Lie,
    }
}

/// A line that is being read.
#[derive(Clone, Copy)]
struct Line<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Line<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    /// Goes on to the first byte of a kind, in this line.
    fn find(&mut self, wanted: impl Fn(u8) -> bool) -> Option<()> {
        loop {
            match self.peek()? {
                byte if wanted(byte) => return Some(()),
                b'\r' | b'\n' => return None,
                _ => self.at += 1,
            }
        }
    }

    /// Reads at most so many digits, behind which there must be something else.
    fn number(&mut self, digits: usize) -> Option<u32> {
        let begin = self.at;
        let mut value = 0;
        while let digit @ b'0'..=b'9' = self.peek()? {
            value = value * 10 + u32::from(digit - b'0');
            self.at += 1;
            if self.at - begin > digits {
                return None;
            }
        }
        (self.at > begin).then_some(value)
    }

    /// Reads six numbers with commas between them.
    fn commas(&mut self) -> Option<Announced> {
        let begin = self.at;
        let mut numbers = [0; 6];
        for (index, number) in numbers.iter_mut().enumerate() {
            if index > 0 {
                self.expect(b',')?;
            }
            let first = self.at;
            *number = u8::try_from(self.number(3)?).ok()?;
            // In an address it may mean an octal number.
            if index < 4 && self.bytes[first] == b'0' && self.at > first + 1 {
                return None;
            }
        }
        let [a, b, c, d, high, low] = numbers;
        Some(Announced {
            address: Some(Ipv4Addr::new(a, b, c, d).into()),
            port: u16::from_be_bytes([high, low]),
            form: Form::Commas,
            at: begin,
            length: self.at - begin,
        })
    }

    fn port(&mut self) -> Option<u16> {
        u16::try_from(self.number(5)?).ok()
    }

    fn end(&mut self) -> Option<()> {
        self.spaces();
        matches!(self.next()?, b'\r' | b'\n').then_some(())
    }
}

/// `PORT h1,h2,h3,h4,p1,p2`
fn port(mut line: Line<'_>, _v6: bool) -> Option<Announced> {
    line.spaces();
    let announced = line.commas()?;
    line.end()?;
    Some(announced)
}

/// `227 Entering Passive Mode (h1,h2,h3,h4,p1,p2)`, where the text may be any without digits and
/// the brackets are left out by some.
fn passive(mut line: Line<'_>, _v6: bool) -> Option<Announced> {
    line.find(|byte| byte.is_ascii_digit())?;
    let announced = line.commas()?;
    (line.peek()? != b',').then_some(announced)
}

/// `EPRT |2|address|port|`
fn eprt(mut line: Line<'_>, v6: bool) -> Option<Announced> {
    line.spaces();
    let delimiter = line.next()?;
    if !delimiter.is_ascii_punctuation() || matches!(delimiter, b':' | b'.') {
        return None;
    }
    line.expect(if v6 { b'2' } else { b'1' })?;
    line.expect(delimiter)?;
    let begin = line.at;
    line.find(|byte| byte == delimiter)?;
    let address = std::str::from_utf8(&line.bytes[begin..line.at]).ok()?;
    let address: IpAddr = if v6 {
        address.parse::<Ipv6Addr>().ok()?.into()
    } else {
        address.parse::<Ipv4Addr>().ok()?.into()
    };
    line.expect(delimiter)?;
    let port = line.port()?;
    let length = line.at - begin;
    line.expect(delimiter)?;
    line.end()?;
    Some(Announced {
        address: Some(address),
        port,
        form: Form::Extended(delimiter),
        at: begin,
        length,
    })
}

/// `229 Entering Extended Passive Mode (|||port|)`, where the text may be any without an opening
/// bracket.
fn extended_passive(mut line: Line<'_>, _v6: bool) -> Option<Announced> {
    line.find(|byte| byte == b'(')?;
    line.expect(b'(')?;
    let delimiter = line.next().filter(u8::is_ascii_punctuation)?;
    line.expect(delimiter)?;
    line.expect(delimiter)?;
    let begin = line.at;
    let port = line.port()?;
    let length = line.at - begin;
    line.expect(delimiter)?;
    line.expect(b')')?;
    Some(Announced {
        address: None,
        port,
        form: Form::Port,
        at: begin,
        length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a whole line by taking it to pieces; None if it is no announcement.
    fn obvious(line: &str, reply: bool, v6: bool) -> Option<(Option<IpAddr>, u16)> {
        let line = line.split_inclusive(['\r', '\n']).next()?;
        let complete = line.ends_with(['\r', '\n']);
        let text = line.trim_end_matches(['\r', '\n']);
        let six = |text: &str| {
            let parts: Vec<&str> = text.split(',').collect();
            let digits = |part: &&str| part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
            if parts.len() != 6 || !parts.iter().all(digits) {
                return None;
            }
            let address: Ipv4Addr = parts[..4].join(".").parse().ok()?;
            let (high, low) = (parts[4].parse::<u8>().ok()?, parts[5].parse::<u8>().ok()?);
            Some((
                Some(IpAddr::V4(address)),
                u16::from(high) << 8 | u16::from(low),
            ))
        };
        let port = |text: &str| {
            let digits = text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<u16>().ok()).flatten()
        };
        let (word, rest) = text.split_at_checked(4)?;
        let found = match (word.to_ascii_uppercase().as_str(), reply) {
            ("PORT", false) if !v6 && complete => six(rest.strip_prefix(' ')?.trim_matches(' ')),
            ("EPRT", false) if complete => {
                let rest = rest.strip_prefix(' ')?.trim_matches(' ');
                let delimiter = rest.chars().next()?;
                if !delimiter.is_ascii_punctuation() || ":.".contains(delimiter) {
                    return None;
                }
                match rest.split(delimiter).collect::<Vec<_>>()[..] {
                    ["", "1", address, number, ""] if !v6 => Some((
                        Some(address.parse::<Ipv4Addr>().ok()?.into()),
                        port(number)?,
                    )),
                    ["", "2", address, number, ""] if v6 => Some((
                        Some(address.parse::<Ipv6Addr>().ok()?.into()),
                        port(number)?,
                    )),
                    _ => None,
                }
            }
            ("227 ", true) if !v6 => {
                let rest = &rest[rest.find(|c: char| c.is_ascii_digit())?..];
                let end = rest.find(|c: char| !c.is_ascii_digit() && c != ',');
                if end.is_none() && !complete {
                    return None;
                }
                six(&rest[..end.unwrap_or(rest.len())])
            }
            ("229 ", true) => {
                let (_, rest) = rest.split_once('(')?;
                let delimiter = rest.chars().next()?;
                if !delimiter.is_ascii_punctuation() {
                    return None;
                }
                let (inner, _) = rest.split_once(')')?;
                match inner.split(delimiter).collect::<Vec<_>>()[..] {
                    ["", "", "", number, ""] => Some((None, port(number)?)),
                    _ => None,
                }
            }
            _ => None,
        };
        found.filter(|(_, port)| *port != 0)
    }

    fn lines() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            8 => (0_u32..256).prop_map(|number| number.to_string()),
            1 => "[0-9]{0,4}",
        ];
        let six = proptest::collection::vec(number, 5..=7).prop_map(|all| all.join(","));
        let address = prop_oneof![
            any::<[u8; 4]>().prop_map(|bytes| Ipv4Addr::from(bytes).to_string()),
            any::<[u8; 16]>().prop_map(|bytes| Ipv6Addr::from(bytes).to_string()),
            "[0-9a-f:.]{0,12}",
        ];
        let port = prop_oneof![
            8 => any::<u16>().prop_map(|port| port.to_string()),
            1 => "[0-9]{0,6}",
        ];
        let end = prop_oneof![4 => Just("\r\n"), 1 => Just("\n"), 1 => Just("")];
        let eprt = ("[|!#]", "[123]", address, port.clone(), "[|!#]?").prop_map(
            |(d, family, address, port, e)| format!("{d}{family}{d}{address}{d}{port}{e}"),
        );
        let commands = prop_oneof![
            ("[Pp][Oo][Rr][Tt]|227", " {1,2}[(]?", six.clone(), "[)]? ?"),
            ("[Ee][Pp][Rr][Tt]|229", " {1,2}", eprt, " ?"),
            (
                "229|227",
                " [a-z]{0,8} ?[(]",
                ("[|!]{2,4}", port).prop_map(|(d, port)| format!("{d}{port}")),
                "[|!]?[)]?"
            ),
            ("227 [A-Za-z ]{0,12}", "[(]?", six, "[)x]?"),
            ("[PORTE2279 ]{0,6}", "", "[0-9,|() ]{0,24}", ""),
        ];
        (commands, end, "[a-z0-9,\r\n]{0,4}").prop_map(|((word, gap, rest, tail), end, more)| {
            format!("{word}{gap}{rest}{tail}{end}{more}")
        })
    }

    proptest! {
        #[test]
        fn lines_are_read_as_the_obvious_parser_does(
            line in lines(), reply: bool, v6: bool,
        ) {
            prop_assume!(line.len() <= LINE);
            let read = read(line.as_bytes(), reply, v6);
            match (obvious(&line, reply, v6), read) {
                (Some((address, port)), Reading::Announced(found)) => {
                    prop_assert_eq!((found.address, found.port), (address, port));
                    // Writing the same again leaves what means the same.
                    let text = Text {
                        form: found.form,
                        address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                        port,
                    };
                    let mut again = line.as_bytes().to_vec();
                    again.splice(
                        found.at..found.at + found.length,
                        text.write().bytes().iter().copied(),
                    );
                    let again = String::from_utf8(again).unwrap();
                    prop_assert_eq!(obvious(&again, reply, v6), Some((address, port)));
                }
                (None, Reading::Nothing | Reading::Lie) => {}
                other => prop_assert!(false, "{line:?}: {other:?}"),
            }
        }

        #[test]
        fn no_part_of_an_announcement_is_taken_for_one(
            port in 1_u16.., address: [u8; 16], v6: bool, kind in 0..4, cut in 0_usize..64,
        ) {
            let v4 = Ipv4Addr::from(*address.first_chunk().unwrap());
            let [a, b, c, d] = v4.octets();
            let [high, low] = port.to_be_bytes();
            let full: IpAddr = if v6 { Ipv6Addr::from(address).into() } else { v4.into() };
            let family = if v6 { 2 } else { 1 };
            let line = match kind {
                0 => format!("PORT {a},{b},{c},{d},{high},{low}\r\n"),
                1 => format!("227 Passive ({a},{b},{c},{d},{high},{low})\r\n"),
                2 => format!("EPRT |{family}|{full}|{port}|\r\n"),
                _ => format!("229 Passive (|||{port}|)\r\n"),
            };
            let reply = kind % 2 == 1;
            let found = read(line.as_bytes(), reply, v6);
            if v6 && kind < 2 {
                prop_assert_eq!(found, Reading::Nothing);
                return Ok(());
            }
            let announced = matches!(found, Reading::Announced(found) if found.port == port);
            prop_assert!(announced, "{}", line);
            prop_assert_eq!(read(line.as_bytes(), !reply, v6), Reading::Lie);
            // Up to the last byte that belongs to it.
            let needed = line.trim_end().len() - usize::from(kind == 1);
            // A reply is complete before its line is.
            let needed = needed - usize::from(kind == 3);
            let part = &line.as_bytes()[..cut.min(needed)];
            let found = read(part, reply, v6);
            prop_assert!(!matches!(found, Reading::Announced(_)), "{part:?}");
            if part.len() >= 4 {
                prop_assert_eq!(found, Reading::Lie);
            }
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_not_one() {
        let mut line = b"227 ".to_vec();
        line.resize(LINE - 6, b'x');
        line.extend(b"1,1,1,1,9,9\r\n");
        assert_eq!(read(&line, true, false), Reading::Lie);
    }
}
