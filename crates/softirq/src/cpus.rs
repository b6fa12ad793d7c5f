//! Lists of processors in the format of /sys and commands: `0-3,6`.

use std::collections::BTreeSet;

/// Parses a list.
pub fn parse(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last > 65_535 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

fn read(name: &str) -> BTreeSet<u32> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"));
    text.ok().and_then(|text| parse(&text)).unwrap_or_default()
}

/// Returns the processors that are online.
pub fn online() -> BTreeSet<u32> {
    let online = read("online");
    match online.is_empty() {
        // Without /sys: those that this process may use.
        true => (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32)).collect(),
        false => online,
    }
}

/// Returns the processors that exist, online or not.
pub fn present() -> BTreeSet<u32> {
    let mut present = read("present");
    present.extend(online());
    present
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse("0-2,5\n"), Some(BTreeSet::from([0, 1, 2, 5])));
        assert_eq!(parse(""), Some(BTreeSet::new()));
        for bad in ["x", "1-", "3-1", "0-99999999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
