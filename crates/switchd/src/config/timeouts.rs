//! Timeouts of tracked connections by zone: `CT_Zone` and `CT_Timeout_Policy` of the database's
//! datapaths. All bridges share one tracker, so zones of every datapath are its zones; where two
//! datapaths have one zone, `netdev` counts.

use super::problem::{Problems, Severity};
use conntrack::timeouts::{Policy, Timeout};
use ovsdb::vswitch::OpenVSwitch;
use std::collections::BTreeMap;

/// The table that problems are reported for.
const TABLE: &str = "CT_Timeout_Policy";

/// Timeouts by zone; zones that are not named have the usual ones.
pub type Timeouts = BTreeMap<u16, Policy>;

/// Reads the policies. What only the kernel's tracker knows (`tcp_close_wait` and others) is noted
/// and left out; a timeout beyond 32 bits is refused.
pub fn read(root: &OpenVSwitch, problems: &mut Problems) -> Timeouts {
    let mut all = Timeouts::new();
    let mut datapaths: Vec<_> = root.timeouts.iter().collect();
    datapaths.sort_by_key(|(kind, _)| kind.as_str() == "netdev");
    for (kind, zones) in datapaths {
        for (zone, timeouts) in zones {
            let row = format!("{kind}, zone {zone}");
            let Ok(zone) = u16::try_from(*zone) else {
                problems.add(
                    TABLE,
                    &row,
                    "ct_zones",
                    "a zone is a number from 0 to 65535",
                );
                continue;
            };
            let mut policy = Policy::default();
            for (name, seconds) in timeouts {
                match (Timeout::by_name(name), u32::try_from(*seconds)) {
                    (Some(timeout), Ok(seconds)) => policy.set(timeout, seconds),
                    (Some(_), Err(_)) => {
                        let text = format!("{name}: {seconds} is no number of seconds");
                        problems.add(TABLE, &row, "timeouts", text);
                    }
                    (None, _) => {
                        let text = format!("{name} is for the kernel's tracker and has no effect");
                        problems.add_with(Severity::Note, TABLE, &row, "timeouts", text);
                    }
                }
            }
            all.insert(zone, policy);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    type Zone<'a> = (&'a str, i64, &'a [(&'a str, i64)]);

    fn root(zones: &[Zone<'_>]) -> OpenVSwitch {
        let mut root = OpenVSwitch::default();
        for (kind, zone, timeouts) in zones {
            let timeouts = timeouts.iter().map(|(name, it)| ((*name).to_owned(), *it));
            let datapath = root.timeouts.entry((*kind).to_owned()).or_default();
            datapath.insert(*zone, timeouts.collect());
        }
        root
    }

    #[test]
    fn zones_have_the_timeouts_that_are_set_and_the_usual_others() {
        let mut problems = Problems::default();
        let root = root(&[
            ("system", 5, &[("udp_first", 1)]),
            ("netdev", 5, &[("tcp_syn_sent", 7), ("icmp_reply", 3)]),
            ("netdev", 6, &[("tcp_close_wait", 9)]),
            ("netdev", 7, &[("udp_single", -1)]),
        ]);
        let read = read(&root, &mut problems);
        let five = &read[&5];
        assert_eq!(five.get(Timeout::TcpSynSent), 7);
        assert_eq!(five.get(Timeout::IcmpReply), 3);
        let usual = Timeout::UdpFirst.default_seconds();
        assert_eq!(five.get(Timeout::UdpFirst), usual, "netdev counts");
        assert_eq!(read[&6], Policy::default());
        assert_eq!(read[&7], Policy::default());
        let told = problems.by_row(TABLE);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told["netdev, zone 7"].contains("udp_single: -1"),
            "{told:?}"
        );
    }
}
