//! What a datapath can do, by Open vSwitch's names: the answer of `dpif/show-dp-features`, and the
//! column `capabilities` of the database's `Datapath` rows, which `ovn-controller` reads.

use ovsdb::vswitch::Strings;
use std::fmt::Write;

/// A feature's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Whether it is there.
    Is(bool),
    /// A limit.
    Most(u32),
    /// A limit that the column has as whether it is above 0, as with `ovs-vswitchd`.
    MostOrNone(u32),
}

use Value::{Is, Most, MostOrNone};

/// The features by their titles in `dpif/show-dp-features` and their keys in `capabilities`, in the
/// order of the former. There are no datapath flows that a number (`ufid`) could identify.
const FEATURES: &[(&str, &str, Value)] = &[
    ("Masked set action", "masked_set_action", Is(true)),
    ("Tunnel push pop", "tnl_push_pop", Is(true)),
    ("Ufid", "ufid", Is(false)),
    ("Truncate action", "trunc", Is(true)),
    ("Clone action", "clone", Is(true)),
    ("Sample nesting", "sample_nesting", MostOrNone(0)),
    ("Conntrack eventmask", "ct_eventmask", Is(false)),
    ("Conntrack clear", "ct_clear", Is(true)),
    ("Max dp_hash algorithm", "max_hash_alg", Most(1)),
    ("Check pkt length action", "check_pkt_len", Is(true)),
    ("Conntrack timeout policy", "ct_timeout", Is(true)),
    ("Explicit Drop action", "explicit_drop_action", Is(true)),
    ("Optimized Balance TCP mode", "lb_output_action", Is(false)),
    ("Conntrack all-zero IP SNAT", "ct_zero_snat", Is(true)),
    ("MPLS Label add", "add_mpls", Is(false)),
    ("Max VLAN headers", "max_vlan_headers", Most(1)),
    ("Max MPLS depth", "max_mpls_depth", Most(3)),
    ("Recirc", "recirc", Is(true)),
    ("CT state", "ct_state", Is(true)),
    ("CT zone", "ct_zone", Is(true)),
    ("CT mark", "ct_mark", Is(true)),
    ("CT label", "ct_label", Is(true)),
    ("CT state NAT", "ct_state_nat", Is(true)),
    ("CT orig tuple", "ct_orig_tuple", Is(true)),
    ("CT orig tuple for IPv6", "ct_orig_tuple6", Is(true)),
    ("IPv6 ND Extension", "nd_ext", Is(true)),
];

/// Flushing connections by OpenFlow (`NXT_CT_FLUSH`), which only the column tells.
const FLUSH: (&str, &str) = ("ct_flush", "true");

/// Returns the answer of `dpif/show-dp-features`.
pub fn shown() -> String {
    let mut text = String::new();
    for (title, _, value) in FEATURES {
        let _ = match value {
            Is(true) => writeln!(text, "{title}: Yes"),
            Is(false) => writeln!(text, "{title}: No"),
            Most(most) | MostOrNone(most) => writeln!(text, "{title}: {most}"),
        };
    }
    text
}

/// Returns the content of `capabilities`, which is the same for every datapath type.
pub fn capabilities() -> Strings {
    let features = FEATURES.iter().map(|(_, key, value)| {
        let text = match value {
            Is(is) => is.to_string(),
            Most(most) => most.to_string(),
            MostOrNone(most) => (*most > 0).to_string(),
        };
        ((*key).to_owned(), text)
    });
    let (flush, is) = FLUSH;
    features
        .chain([(flush.to_owned(), is.to_owned())])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_says_the_same_as_the_command() {
        let column = capabilities();
        // All of them, and `ct_flush`.
        assert_eq!(column.len(), FEATURES.len() + 1, "a key has two titles");
        let text = shown();
        assert_eq!(text.lines().count(), FEATURES.len());
        assert!(text.contains("Conntrack all-zero IP SNAT: Yes\n"));
        for (key, value) in [
            ("ct_zero_snat", "true"),
            ("ct_flush", "true"),
            ("ufid", "false"),
            ("max_vlan_headers", "1"),
            ("max_hash_alg", "1"),
            // `ovs-vswitchd` writes a boolean, although the manual announces a number.
            ("sample_nesting", "false"),
        ] {
            assert_eq!(column[key], value, "{key}");
        }
        assert!(text.contains("Sample nesting: 0\n"));
    }
}
