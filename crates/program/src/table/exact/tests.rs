use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Buckets that hold these, nearly full, each with its number as counter and port; and their slots.
fn filled<const N: usize, const SLOTS: usize>(
    words: [(u8, u64); N],
    all: &[[u64; N]],
) -> (Buckets<N, SLOTS>, Vec<usize>) {
    let mut buckets = Buckets::new(words, all.len() / 2 + SLOTS);
    let put = |(number, values): (usize, &[u64; N])| {
        buckets.put(*values, CounterId(number as u32), number as PortNo)
    };
    let slots = all.iter().enumerate().map(put).collect();
    (buckets, slots)
}

fn check<const N: usize, const SLOTS: usize>(
    words: [(u8, u64); N],
    all: &[[u64; N]],
    others: &[[u64; N]],
) -> Result<(), TestCaseError> {
    let (buckets, slots) = filled::<N, SLOTS>(words, all);
    let find = |values| {
        let slot = buckets.find(buckets.own(values), values)?;
        Some((slot, buckets.answer(slot).get()?))
    };
    for (number, values) in all.iter().enumerate() {
        let answer = (CounterId(number as u32), number as PortNo);
        prop_assert_eq!(find(*values), Some((slots[number], answer)));
    }
    for values in others.iter().filter(|values| !all.contains(values)) {
        prop_assert_eq!(find(*values), None);
    }
    // A mark is of one rule.
    for slot in slots.iter().step_by(2) {
        buckets.answer(*slot).ask();
    }
    for (number, values) in all.iter().enumerate() {
        prop_assert_eq!(find(*values).is_some(), number % 2 == 1);
        let marked = buckets.find(buckets.own(*values), *values);
        prop_assert_eq!(marked, Some(slots[number]));
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_that_were_put_in_are_found_and_no_others(
        values in prop::collection::btree_set(0..300_u64, 0..200),
        pairs in prop::collection::btree_set([0..20_u64, 0..20_u64], 0..200),
    ) {
        let all: Vec<_> = values.into_iter().map(|value| [value]).collect();
        let others: Vec<_> = (0..300).map(|value| [value]).collect();
        check::<1, 4>([(3, u64::MAX)], &all, &others)?;
        let all: Vec<_> = pairs.into_iter().collect();
        let others: Vec<_> = (0..400).map(|pair| [pair / 20, pair % 20]).collect();
        check::<2, 2>([(1, u64::MAX), (3, u64::MAX)], &all, &others)?;
    }
}

/// Addresses in a row, wherever in a word they lie, find room where they belong, but for as few as of random ones.
#[test]
fn addresses_in_a_row_are_spread() {
    let in_row = |number: u64, bytes: u32, shift: u32| {
        let address = 0x0a00_0000 + number;
        (address << (64 - 8 * bytes)).swap_bytes() << shift
    };
    for count in [1000, 10_000, 100_000] {
        for (bytes, shift) in [(4, 0), (4, 32), (6, 0), (6, 16)] {
            let mut buckets = Buckets::<1, 4>::new([(3, u64::MAX)], count);
            let mut elsewhere = 0;
            let mut seen = BTreeSet::new();
            for number in 0..count {
                let values = [in_row(number as u64, bytes, shift)];
                assert!(seen.insert(values));
                let slot = buckets.put(values, CounterId(0), 0);
                elsewhere += usize::from(slot / 4 != buckets.own(values) as usize);
            }
            assert!(
                elsewhere * 14 < count,
                "{elsewhere} of {count} addresses of {bytes} bytes at {shift}"
            );
        }
    }
}
