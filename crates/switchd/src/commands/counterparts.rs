//! Open vSwitch's names for what this switch counts under its own names, for scripts that read
//! `coverage/read-counter`.
//!
//! Each value is a sum of existing counters, computed on request. Counters of machinery that does
//! not exist here and so can lose no packet (recirculation, spanning trees) are present and zero,
//! since scripts sum up all drop counters. Names of Open vSwitch's internals (`hmap_expand`,
//! `poll_create_node`) have no counterpart.

use std::collections::HashMap;

/// Open vSwitch's name, and those of our counters whose sum it is.
const COUNTERPARTS: &[(&str, &[&str])] = &[
    // A packet ended without having been sent. An output to nowhere (to the ingress port, say)
    // among several others is not such a packet, so `drop_ingress_port` and its like are left out.
    (
        "drop_action_of_pipeline",
        &[
            "drop_table_miss",
            "drop_action",
            "drop_fragment",
            "drop_no_group",
            "drop_no_live_bucket",
            "drop_no_receive",
            "drop_no_packet_in",
            "drop_vlan_not_carried",
            "drop_reserved_address",
            "drop_mirror_port",
            "drop_learned_on_ingress",
            "drop_learned_port_gone",
            "drop_nowhere_to_flood",
            "drop_tunnel_no_route",
            "drop_tunnel_no_neighbour",
            "drop_tunnel_too_many_wait",
            "drop_tunnel_no_destination",
            "drop_tunnel_not_ip",
        ],
    ),
    (
        "drop_action_recursion_too_deep",
        &[
            "drop_group_too_deep",
            "drop_too_many_patches",
            "drop_too_many_recirculations",
        ],
    ),
    (
        "drop_action_too_many_resubmit",
        &["drop_too_many_resubmits"],
    ),
    ("drop_action_stack_too_deep", &["drop_stack_full"]),
    ("drop_action_bridge_not_found", &["drop_bridge_gone"]),
    ("drop_action_congestion", &[]),
    ("drop_action_forwarding_disabled", &[]),
    ("drop_action_invalid_tunnel_metadata", &[]),
    ("drop_action_no_recirculation_context", &[]),
    ("drop_action_recirculation_conflict", &[]),
    ("drop_action_too_many_mpls_labels", &[]),
    ("drop_action_unsupported_packet_type", &[]),
    (
        "datapath_drop_meter",
        &["drop_meter", "drop_meter_controller"],
    ),
    ("datapath_drop_invalid_port", &["drop_port_gone"]),
    (
        "datapath_drop_rx_invalid_packet",
        &["drop_runt", "drop_split_headers"],
    ),
    ("datapath_drop_upcall_error", &["drop_held_too_many"]),
    (
        "datapath_drop_userspace_action_error",
        &["drop_packet_in_queue_full"],
    ),
    ("datapath_drop_invalid_bond", &[]),
    ("datapath_drop_invalid_tnl_port", &["drop_tunnel_no_port"]),
    ("datapath_drop_lock_error", &[]),
    ("datapath_drop_nsh_decap_error", &[]),
    ("datapath_drop_recirc_error", &[]),
    ("datapath_drop_sample_error", &[]),
    (
        "datapath_drop_tunnel_pop_error",
        &[
            "drop_tunnel_short",
            "drop_tunnel_protocol",
            "drop_tunnel_ip",
            "drop_tunnel_ip_checksum",
            "drop_tunnel_fragment",
            "drop_tunnel_ipv6_extension",
            "drop_tunnel_udp_length",
            "drop_tunnel_checksum",
            "drop_tunnel_flags",
            "drop_tunnel_length",
            "drop_tunnel_options",
            "drop_tunnel_critical_option",
            "drop_tunnel_payload",
            "drop_tunnel_inner_short",
            "drop_tunnel_segment",
            "drop_tunnel_partial_checksum",
            "drop_tunnel_congestion",
            "drop_tunnel_no_buffer",
            "drop_tunnel_fragment_bad",
            "drop_tunnel_fragment_contradiction",
            "drop_tunnel_fragment_twice",
            "drop_tunnel_fragment_full",
            "drop_tunnel_fragment_no_memory",
            "drop_tunnel_fragment_late",
            "drop_tunnel_offload",
            "drop_tunnel_segment_bad",
            "drop_tunnel_segment_contradiction",
            "drop_tunnel_segment_twice",
            "drop_tunnel_segment_full",
            "drop_tunnel_segment_no_memory",
            "drop_tunnel_segment_late",
            "drop_tunnel_segment_share",
        ],
    ),
    (
        "datapath_drop_tunnel_push_error",
        &[
            "drop_tunnel_push_segment",
            "drop_tunnel_push_no_room",
            "drop_tunnel_push_too_long",
            "drop_tunnel_push_checksum",
            "drop_tunnel_push_fragment",
        ],
    ),
    // Open vSwitch's datapath parses packets for userspace; here those are the ones for
    // controllers.
    ("flow_extract", &["packet_in_queued"]),
    (
        "ofproto_packet_out",
        &["packet_out_done", "packet_out_refused"],
    ),
    ("packet_in_overflow", &["drop_packet_in_queue_full"]),
    (
        "miniflow_extract_ipv4_pkt_too_short",
        &["malformed_ipv4_short"],
    ),
    (
        "miniflow_extract_ipv4_pkt_len_error",
        &[
            "malformed_ipv4_header_length",
            "malformed_ipv4_total_length",
        ],
    ),
    (
        "miniflow_extract_ipv6_pkt_too_short",
        &["malformed_ipv6_short"],
    ),
    (
        "miniflow_extract_ipv6_pkt_len_error",
        &["malformed_ipv6_payload_length"],
    ),
    ("mac_learning_learned", &["macs_learned"]),
    ("mac_learning_expired", &["macs_expired"]),
    ("mac_learning_evicted", &["macs_evicted"]),
    ("mac_learning_moved", &["macs_moved"]),
];

/// Computes Open vSwitch's counters from ours, and keeps the sums from falling when one of ours
/// starts again from zero: a bridge that is deleted takes its MAC table's counters along, and
/// `fdb/stats-clear` clears one.
#[derive(Default)]
pub(super) struct Counterparts {
    /// For each of our counters, its last value, and the total it had reached before it restarted.
    seen: HashMap<String, (u64, u64)>,
}

impl Counterparts {
    /// Returns all counters by Open vSwitch's names, computed from the values of `ours`.
    pub fn sums(&mut self, ours: &[(String, u64)]) -> Vec<(&'static str, u64)> {
        for (name, now) in ours {
            let (last, before) = self.seen.entry(name.clone()).or_default();
            if *now < *last {
                // Carry the old value over, so that the sum does not fall.
                *before += *last - *now;
            }
            *last = *now;
        }
        let total = |name: &&str| {
            let (last, before) = self.seen.get(*name).copied().unwrap_or_default();
            last + before
        };
        COUNTERPARTS
            .iter()
            .map(|(theirs, parts)| (*theirs, parts.iter().map(total).sum()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::DropReason;
    use packet::parse::Malformed;

    /// Every name in the table is a real counter, so that no sum stays zero because of a misspelt
    /// name.
    #[test]
    fn every_part_is_a_counter() {
        let drops = DropReason::NAMES.iter().map(|name| format!("drop_{name}"));
        let malformed = Malformed::ALL.iter().map(|reason| reason.name().to_owned());
        let others = [
            "packet_in_queued",
            "packet_out_done",
            "packet_out_refused",
            "macs_learned",
            "macs_expired",
            "macs_evicted",
            "macs_moved",
        ];
        let all: Vec<String> = drops
            .chain(malformed)
            .chain(others.map(str::to_owned))
            .collect();
        for (theirs, parts) in COUNTERPARTS {
            assert!(
                !all.iter().any(|name| name == theirs),
                "{theirs} is one of ours"
            );
            for part in *parts {
                assert!(all.iter().any(|name| name == part), "{part} of {theirs}");
            }
        }
    }

    /// What tunnels drop is part of exactly one sum, so that none is forgotten when one is added.
    #[test]
    fn each_tunnel_drop_counter_is_in_one_sum() {
        let tunnels = (DropReason::NAMES.iter()).filter(|name| name.starts_with("tunnel_"));
        for name in tunnels {
            let name = format!("drop_{name}");
            let sums = COUNTERPARTS
                .iter()
                .filter(|(_, parts)| parts.contains(&name.as_str()));
            assert_eq!(sums.count(), 1, "{name}");
        }
    }

    #[test]
    fn sums_do_not_fall() {
        let mut counterparts = Counterparts::default();
        let mut sum = |meter: u64, controller: u64, moved: u64| {
            let ours = [
                ("drop_meter".to_owned(), meter),
                ("drop_meter_controller".to_owned(), controller),
                ("macs_moved".to_owned(), moved),
            ];
            let sums = counterparts.sums(&ours);
            let of = |wanted| sums.iter().find(|(name, _)| *name == wanted).unwrap().1;
            (of("datapath_drop_meter"), of("mac_learning_moved"))
        };
        assert_eq!(sum(0, 0, 0), (0, 0));
        assert_eq!(sum(5, 2, 3), (7, 3));
        assert_eq!(sum(5, 2, 1), (7, 3), "the table began anew");
        assert_eq!(sum(6, 2, 1), (8, 3));
    }
}
