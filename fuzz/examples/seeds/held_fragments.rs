//! Fragments that wait at `ct`, see `targets/ct_fragments.rs`: in and out of order, contradicting
//! each other, too many, too late.

use crate::Corpus;

const V6: u8 = 1;
const MORE: u8 = 2;
/// The first fragment's UDP header says twice its length.
const LONG: u8 = 4;
/// Lengths are in units of 200 bytes.
const BIG: u8 = 8;
const EXPIRE: u8 = 1 << 4;
const PURGE: u8 = 4 << 4;
const ENABLE: u8 = 5 << 4;

/// Bytes of the fragments but the last, in units of 8.
const LENGTH: u8 = 60;

/// Returns a record; `offset` is in fragments of [`LENGTH`], `who` has identification and source.
fn record(flags: u8, place: u8, offset: u16, who: u8, length: u8, time: u8, setting: u8) -> Vec<u8> {
    let [high, low] = (offset * u16::from(LENGTH) * 8).to_be_bytes();
    vec![flags, place, high, low, who, length, time, setting]
}

pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    for (family, v6) in [("v4", 0), ("v6", V6)] {
        let part = |flags, offset, length| record(v6 | flags, 0, offset, 5, length, 1, 0);
        let (first, second) = (part(MORE | LONG, 0, LENGTH), part(MORE, 1, LENGTH));
        let last = part(0, 2, LENGTH);
        let add = |name: &str, parts: &[&[u8]]| corpus.add(&format!("{name}-{family}"), parts);
        add("in-order", &[&first, &second, &last])?;
        add("backwards", &[&last, &second, &first])?;
        add("twice", &[&first, &first, &last, &second])?;
        add("whole", &[&part(MORE | LONG, 0, LENGTH), &part(0, 1, LENGTH)])?;
        add("two-ends", &[&last, &part(0, 3, LENGTH), &first, &second])?;
        add("behind-the-end", &[&part(0, 1, LENGTH), &part(MORE, 2, LENGTH), &first])?;
        add("around", &[&second, &part(MORE | BIG, 0, LENGTH), &last])?;
        add("small", &[&part(MORE, 0, 20), &last])?;
        let too_long = [part(MORE | BIG, 0, 240), record(v6 | BIG, 0, 100, 5, 87, 0, 0)];
        add("too-long", &[&too_long[0], &too_long[1]])?;
        let late = record(v6 | EXPIRE | MORE, 0, 0, 6, LENGTH, 255, 9);
        add("late", &[&first, &second, &late])?;
        let purged = record(v6 | PURGE | MORE, 0, 0, 6, LENGTH, 1, 0);
        add("purged", &[&first, &second, &purged, &last])?;
        let off = record(v6 | ENABLE | MORE, 0, 0, 6, LENGTH, 1, 0);
        let on = record(v6 | ENABLE | MORE, 0, 0, 6, LENGTH, 1, 1);
        add("disabled", &[&first, &off, &second, &on, &second, &last])?;
        // Many datagrams of one holder, then some of another.
        let all: Vec<u8> = (0..16_u8)
            .flat_map(|at| record(v6 | MORE, 0, 0, at, LENGTH, 0, 0))
            .collect();
        let others: Vec<u8> = (0..8_u8)
            .flat_map(|at| record(v6 | MORE, 0x15, 0, at, LENGTH, 0, 3))
            .collect();
        add("many", &[&all, &others, &first, &second, &last])?;
    }
    Ok(())
}
