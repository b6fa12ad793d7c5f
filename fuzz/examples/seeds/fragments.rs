//! Fragments of packets: in and out of order, duplicated, overlapping, wanted and unwanted.

use crate::Corpus;

/// Flags of a record: whether its packet is wanted.
const UNKNOWN: u8 = 0;
const UNWANTED: u8 = 1 << 1;
const WANTED: u8 = 2 << 1;

/// Returns a record: offset in units of 8 bytes, whether more follow, the packet's number and
/// source.
fn record(v6: bool, offset: u8, more: bool, id: u8, source: u8, flags: u8, length: u8) -> Vec<u8> {
    let place = match v6 {
        true => [0, offset << 3 | u8::from(more)],
        false => [if more { 0x20 } else { 0 }, offset],
    };
    let family = if v6 { 0x80 } else { 0 };
    let mut bytes = vec![length | family, flags, place[0], place[1], id, source, 2, 17];
    bytes.extend((0..length).map(|at| at ^ offset));
    bytes
}

pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    for (family, v6) in [("v4", false), ("v6", true)] {
        let part = |offset, more, flags| record(v6, offset, more, 1, 1, flags, 16);
        let (first, second) = (part(0, true, WANTED), part(2, true, UNKNOWN));
        let last = record(v6, 4, false, 1, 1, UNKNOWN, 5);
        let add = |name: &str, parts: &[&[u8]]| corpus.add(&format!("{name}-{family}"), parts);
        add("in-order", &[&first, &second, &last])?;
        add("backwards", &[&last, &second, &first])?;
        add("twice", &[&first, &first, &last, &second])?;
        add("overlap", &[&first, &part(1, true, UNKNOWN), &last])?;
        add("two-ends", &[&last, &part(6, false, UNKNOWN), &first])?;
        add("passes", &[&second, &part(0, true, UNWANTED), &last])?;
        let late = part(2, true, UNKNOWN | 0xf0);
        add("late", &[&first, &late, &last])?;
        let many: Vec<u8> = (0..12).flat_map(|at| part(at * 2, true, WANTED)).collect();
        add("many-of-one", &[&many])?;
        let all: Vec<u8> = (0..4)
            .flat_map(|id| (0..4).map(move |source| (id, source)))
            .flat_map(|(id, source)| record(v6, 0, true, id, source, WANTED, 8))
            .collect();
        add("many", &[&all, &all])?;
    }
    Ok(())
}
