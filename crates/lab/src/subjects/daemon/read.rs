//! What daemons and their tools print.

use crate::subject::{Counters, Error, Stage};
use serde_json::Value;

/// A version in one line. `ovs-vswitchd (Open vSwitch) 3.1.0` and DPDK's in the next; Sluice names
/// the version of Open vSwitch that it stands for first.
pub(super) fn version(said: &str, is_sluice: bool) -> String {
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let lines = match is_sluice {
        true => lines
            .iter()
            .position(|line| line.starts_with("Sluice"))
            .map_or(&lines[..], |at| &lines[at..]),
        false => &lines[..],
    };
    let own: Vec<&str> = lines
        .iter()
        .take(3)
        .map(|line| line.rsplit_once(") ").map_or(*line, |(_, version)| version))
        .map(|line| line.strip_prefix("Sluice ").unwrap_or(line))
        .collect();
    own.join(", ")
}

/// A port's counters in what `ovs-ofctl dump-ports` prints.
pub(super) fn port(text: &str, number: usize) -> Option<Counters> {
    let mut lines = text.lines();
    let received = lines.find_map(|line| {
        let (port, rest) = line.trim().strip_prefix("port")?.split_once(':')?;
        // A name in quotation marks where the tool knows it, else the number.
        let port = port.trim().trim_matches('"');
        let is_it = port == number.to_string()
            || [format!("p{number}"), format!("dpdk{number}")].contains(&port.to_owned());
        is_it.then_some(rest)
    })?;
    let sent = lines.next()?;
    let count = |text: &str, name: &str| -> Option<u64> {
        let value = text
            .split([',', ' '])
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        // What a device does not count is a question mark.
        Some(value.parse().unwrap_or(0))
    };
    Some(Counters {
        received: count(received, "pkts")?,
        sent: count(sent, "pkts")?,
        dropped: count(received, "drop")? + count(sent, "drop")? + count(sent, "errs")?,
    })
}

/// Whether a thread's name is that of a worker.
pub(super) fn is_worker(name: &str) -> bool {
    name.starts_with("pmd")
}

/// Whether a line of a log says that something is wrong.
pub(super) fn is_trouble(line: &str) -> bool {
    ["|WARN|", "|ERR|", "|EMER|"]
        .iter()
        .any(|level| line.contains(level))
}

/// What `sluice/stages show --json` says of all workers together.
pub(super) fn stages_of_sluice(text: &str) -> Result<Vec<Stage>, Error> {
    let wrong = |what: &str| Error::Failed(format!("sluice/stages: {what} in {text}"));
    let told: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    let stages = told["total"]["stages"]
        .as_array()
        .ok_or_else(|| wrong("no stages"))?;
    stages
        .iter()
        .map(|stage| {
            let number = |name: &str| stage[name].as_u64().ok_or_else(|| wrong(name));
            let name = stage["name"]
                .as_str()
                .ok_or_else(|| wrong("a stage without a name"))?;
            Ok((name.to_owned(), number("cycles")?, number("packets")?))
        })
        .collect()
}

/// What `dpif-netdev/pmd-stats-show` says of all workers together.
pub(super) fn stages_of_ovs(text: &str) -> Vec<Stage> {
    let sum = |name: &str| -> u64 {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
            .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .sum()
    };
    vec![
        (
            "processing".into(),
            sum("processing cycles"),
            sum("packets received"),
        ),
        ("idle".into(), sum("idle cycles"), 0),
    ]
}

/// What has been added by stage.
pub(super) fn difference(before: &[(String, u64, u64)], now: &[(String, u64, u64)]) -> Vec<Stage> {
    now.iter()
        .map(|(name, cycles, packets)| {
            let (cycles_before, packets_before) = before
                .iter()
                .find(|(other, _, _)| other == name)
                .map_or((0, 0), |(_, cycles, packets)| (*cycles, *packets));
            (
                name.clone(),
                cycles.saturating_sub(cycles_before),
                packets.saturating_sub(packets_before),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_one_line() {
        let sluice = "sluiced (Open vSwitch) 3.1.0\nSluice 0.1.0\nDPDK 22.11.11\n";
        assert_eq!(version(sluice, true), "0.1.0, DPDK 22.11.11");
        let ovs = "ovs-vswitchd (Open vSwitch) 3.1.0\nDPDK 22.11.9\n";
        assert_eq!(version(ovs, false), "3.1.0, DPDK 22.11.9");
        assert_eq!(version("", true), "");
    }

    #[test]
    fn counters_of_ports() {
        let text = "OFPST_PORT reply (xid=0x2): 3 ports\n  port  1: rx pkts=500, bytes=30000, drop=3, errs=0, frame=?, over=?, crc=?\n           tx pkts=7, bytes=420, drop=2, errs=1, coll=?\n  port  \"p12\": rx pkts=?, bytes=0, drop=?, errs=0, frame=0, over=0, crc=0\n           tx pkts=8, bytes=1, drop=?, errs=?, coll=?\n  port LOCAL: rx pkts=0, bytes=0, drop=1, errs=0, frame=0, over=0, crc=0\n           tx pkts=0, bytes=0, drop=0, errs=0, coll=0\n";
        let wanted = Counters {
            received: 500,
            sent: 7,
            dropped: 6,
        };
        assert_eq!(port(text, 1), Some(wanted));
        let wanted = Counters {
            received: 0,
            sent: 8,
            dropped: 0,
        };
        assert_eq!(port(text, 12), Some(wanted));
        assert_eq!(port(text, 2), None);
    }

    #[test]
    fn stages_of_both() {
        let text = r#"{"on":true,"total":{"packets":9,"stages":[
            {"name":"rx","cycles":100,"calls":1,"packets":9,"cycles_per_packet":11.1},
            {"name":"empty polls","cycles":5,"calls":3,"packets":0,"cycles_per_packet":null}]}}"#;
        let stages = stages_of_sluice(text).unwrap();
        assert_eq!(
            stages,
            [("rx".into(), 100, 9), ("empty polls".into(), 5, 0)]
        );
        assert!(
            stages_of_sluice("{}")
                .unwrap_err()
                .to_string()
                .contains("no stages")
        );
        assert!(stages_of_sluice("no").is_err());
        let text = "pmd thread numa_id 0 core_id 1:\n  packets received: 1000\n  idle cycles: 300 (30.00%)\n  processing cycles: 700 (70.00%)\n  avg cycles per packet: 1.00 (1000/1000)\npmd thread numa_id 0 core_id 0:\n  packets received: 24\n  idle cycles: 1 (1%)\n  processing cycles: 2 (2%)\nmain thread:\n  packets received: 0\n";
        let stages = stages_of_ovs(text);
        assert_eq!(
            stages,
            [("processing".into(), 702, 1024), ("idle".into(), 301, 0)]
        );
    }

    #[test]
    fn differences_by_stage() {
        let before = [("a".to_owned(), 10, 1)];
        let now = [("a".to_owned(), 30, 4), ("b".to_owned(), 5, 0)];
        assert_eq!(
            difference(&before, &now),
            [("a".into(), 20, 3), ("b".into(), 5, 0)]
        );
    }

    #[test]
    fn names_of_workers() {
        assert!(is_worker("pmd-c01/id:7") && !is_worker("ovs-vswitchd") && !is_worker("urcu2"));
    }
}
