//! A cache of the last match and instructions of a connection's messages.
//!
//! In a series of flow mods most have the same instructions and match other values of the same
//! fields. The last ones decoded are remembered; if a message repeats them, they are not decoded
//! and checked again.

use crate::Error;
use crate::codec::oxm::{self, Strictness};
use crate::codec::wire::Reader;
use crate::model::flow::Instructions;
use crate::model::word_field::{self, WordField};
use packet::{Field, Match};

/// Maximum bytes of instructions, and of a match, that are remembered.
const REMEMBERED: usize = 256;

/// Fields that may have any value, on which the validity of other fields does not depend.
const FREE: [Field; 8] = [
    Field::EthSrc,
    Field::EthDst,
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::TcpSrc,
    Field::TcpDst,
    Field::UdpSrc,
    Field::UdpDst,
];

/// What was last decoded on a connection.
#[derive(Debug, Default)]
pub struct Repeats {
    form: Form,
    bytes: Vec<u8>,
    version: u8,
    /// The table of the rule with the instructions.
    table: u8,
    instructions: Option<Instructions>,
    /// Whether they are valid in every rule of that table, whatever it matches.
    fits_all: bool,
}

impl Repeats {
    /// Returns the instructions that these bytes encode, if they are remembered.
    pub(crate) fn instructions(&self, bytes: &[u8], version: u8) -> Option<Instructions> {
        let same = self.version == version && self.bytes == bytes;
        self.instructions.as_ref().filter(|_| same).cloned()
    }

    /// Returns whether the remembered instructions are known to be valid in a rule of this table.
    pub(crate) fn fit(&self, table: u8) -> bool {
        self.fits_all && self.table == table
    }

    /// Remembers the instructions that these bytes encode, which are valid in a rule of this table.
    pub(crate) fn note(
        &mut self,
        bytes: &[u8],
        version: u8,
        table: u8,
        instructions: &Instructions,
    ) {
        if bytes.len() > REMEMBERED {
            return;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        (self.version, self.table) = (version, table);
        self.fits_all = instructions.fit_all();
        self.instructions = Some(instructions.clone());
    }

    /// Decodes a match like [`oxm::take_match`].
    pub(crate) fn take_match(&mut self, reader: &mut Reader<'_>) -> Result<Match, Error> {
        let bytes = reader.bytes();
        if let Some(matching) = self.form.read(bytes) {
            reader.skip(self.form.bytes.len())?;
            return Ok(matching);
        }
        let matching = oxm::take_match(reader, Strictness::Rule)?;
        let taken = bytes.len() - reader.len();
        self.form.note(&bytes[..taken], &matching);
        Ok(matching)
    }
}

/// The last match decoded, with its padding. One that differs only in the values of [`FREE`] fields
/// is valid too.
#[derive(Debug, Default)]
struct Form {
    /// Its bytes, with those values zero; empty for none.
    bytes: Vec<u8>,
    /// All ones, except zero for those values.
    fixed: Vec<u8>,
    /// For each of those values, its range of bytes and its position in the match.
    free: Vec<(usize, usize, WordField)>,
    matching: Match,
}

impl Form {
    /// Returns the match at the beginning of these bytes, if it has this form.
    fn read(&self, bytes: &[u8]) -> Option<Match> {
        let bytes = bytes.get(..self.bytes.len())?;
        let differ = |(byte, (fixed, wanted)): (&u8, (&u8, &u8))| (byte & fixed) ^ wanted;
        let wanted = self.fixed.iter().zip(&self.bytes);
        let difference = bytes.iter().zip(wanted).map(differ);
        if bytes.is_empty() || difference.fold(0, |all, one| all | one) != 0 {
            return None;
        }
        let mut matching = self.matching.clone();
        for (from, to, place) in &self.free {
            place.set(&mut matching, oxm::number(&bytes[*from..*to]), place.ones);
        }
        Some(matching)
    }

    /// Remembers a valid match.
    fn note(&mut self, bytes: &[u8], matching: &Match) {
        self.bytes.clear();
        self.free.clear();
        if bytes.len() > REMEMBERED {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.fixed.clear();
        self.fixed.resize(bytes.len(), 0xff);
        self.matching = matching.clone();
        for (field, from, to) in oxm::exact_fields(bytes) {
            if let Some(place) = word_field::of(field)
                && FREE.contains(&field)
            {
                self.bytes[from..to].fill(0);
                self.fixed[from..to].fill(0);
                self.free.push((from, to, place));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(repeats: &mut Repeats, bytes: &[u8]) -> (Result<Match, Error>, usize) {
        let mut reader = Reader::new(bytes, Error::BadLength);
        (repeats.take_match(&mut reader), reader.len())
    }

    fn read_alone(bytes: &[u8]) -> (Result<Match, Error>, usize) {
        let mut reader = Reader::new(bytes, Error::BadLength);
        (oxm::take_match(&mut reader, Strictness::Rule), reader.len())
    }

    proptest! {
        /// Matches in sequence, of the same form, with a bit changed, or of another form, are
        /// decoded as if each were the first.
        #[test]
        fn as_if_nothing_came_before(
            messages in prop::collection::vec(
                (0..4_usize, any::<[u64; 4]>(), prop::option::of((0..80_usize, 0..8_u32)), 0..3_usize),
                1..12,
            ),
        ) {
            let mut repeats = Repeats::default();
            for (kind, values, turned, rest) in messages {
                let mut matching = Match::any();
                let fields: &[(Field, Option<u64>)] = [
                    &[(Field::EthType, Some(0x0800)), (Field::IpProto, Some(6)), (Field::Ipv4Src, None), (Field::Ipv4Dst, None), (Field::TcpDst, None)][..],
                    &[(Field::EthType, Some(0x86dd)), (Field::IpProto, Some(17)), (Field::UdpSrc, None)],
                    &[(Field::EthSrc, None), (Field::EthDst, None), (Field::Metadata, None)],
                    &[(Field::InPortOxm, Some(7)), (Field::EthType, Some(0x0800)), (Field::Ipv4Src, None)],
                ][kind];
                for (index, (field, value)) in fields.iter().enumerate() {
                    let random = values[index % 4] & word_field::of(*field).map_or(0, |place| place.ones);
                    matching.set_exact(*field, value.unwrap_or(random).into());
                }
                if values[0] % 5 == 0 {
                    matching.set(Field::Ipv4Src, &[10, 0, 0, 0], &[255, 0, 0, 0]);
                }
                let mut bytes = Vec::new();
                oxm::put_match(&mut bytes, &matching, 5);
                bytes.extend(std::iter::repeat_n(0xaa, 4 * rest));
                if let Some((at, bit)) = turned {
                    let at = at % bytes.len();
                    bytes[at] ^= 1 << bit;
                }
                let (got, left) = read(&mut repeats, &bytes);
                let (wanted, wanted_left) = read_alone(&bytes);
                prop_assert_eq!(&got, &wanted);
                prop_assert!(got.is_err() || left == wanted_left);
            }
        }
    }
}
