//! Conjunctive matches, and actions that choose a link or a port, as ovs-fields(7) and
//! ovs-actions(7) describe them.
//!
//! No standard defines the hash, so the program's is used; what is done with it is written out
//! here.

use super::{At, Machine};
use crate::state::store::Rule;
use openflow::action::{Action, Bundle, HashFields, Instruction, Multipath, MultipathAlgorithm};
use openflow::port::{self, PortNo};
use packet::key::at;
use packet::{Field, FlowKey};
use program::actions::multipath;
use std::collections::BTreeMap;

/// Returns a rule's conjunctions: id, clause and number of clauses; none for other rules.
fn conjunctions(rule: &Rule) -> impl Iterator<Item = (u32, u8, u8)> {
    let actions = match &*rule.behaviour.instructions {
        [Instruction::ApplyActions(actions)] => &actions[..],
        _ => &[],
    };
    actions.iter().filter_map(|action| match action {
        Action::Conjunction {
            id,
            clause,
            clauses,
        } => Some((*id, *clause, *clauses)),
        _ => None,
    })
}

/// Returns the best of the rules without conjunctions.
fn ordinary<'p>(rules: &[&'p Rule], key: &FlowKey) -> Option<&'p Rule> {
    let matching = rules
        .iter()
        .copied()
        .filter(|rule| conjunctions(rule).next().is_none() && rule.matching().matches(key));
    matching.reduce(|best, rule| {
        if rule.priority > best.priority {
            rule
        } else {
            best
        }
    })
}

/// Returns whether a rule matches a packet, or would with another `conj_id`: others do not matter
/// to [`best`].
pub(super) fn may_count(rule: &Rule, key: &FlowKey) -> bool {
    let mut words = rule.matching().words().iter();
    words.all(|word| {
        usize::from(word.word) == at::CONJ_ID / 8
            || key.words[usize::from(word.word)] & word.mask == word.value
    })
}

/// Returns the rule that a packet meets. If the packet matches every clause of a conjunction at a
/// priority above that of the best ordinary rule, it is looked up again among the ordinary rules
/// with that `conj_id`, and the rule found is the answer. If none is found, the next conjunction is
/// tried.
pub(super) fn best<'p>(rules: &[&'p Rule], key: &FlowKey) -> Option<&'p Rule> {
    let best = ordinary(rules, key);
    let mut seen: BTreeMap<(u32, u32, u8), Vec<u8>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.matching().matches(key)) {
        for (id, clause, clauses) in conjunctions(rule) {
            let condition = (u32::MAX - rule.priority, id, clauses);
            seen.entry(condition).or_default().push(clause);
        }
    }
    for ((below, id, clauses), fulfilled) in seen {
        let above = best.is_none_or(|best| best.priority < u32::MAX - below);
        if above && (0..clauses).all(|clause| fulfilled.contains(&clause)) {
            let mut key = *key;
            key.set_u32(at::CONJ_ID, id);
            if let Some(found) = ordinary(rules, &key) {
                return Some(found);
            }
        }
    }
    best
}

/// Returns the fields that a hash reads.
fn hashed(fields: HashFields) -> &'static [Field] {
    use Field::*;
    match fields {
        HashFields::EthSrc => &[EthSrc],
        HashFields::NwSrc => &[EthType, Ipv4Src, Ipv6Src],
        HashFields::NwDst => &[EthType, Ipv4Dst, Ipv6Dst],
        HashFields::SymmetricL3 => &[EthType, Ipv4Src, Ipv4Dst, Ipv6Src, Ipv6Dst],
        HashFields::SymmetricL3L4 | HashFields::SymmetricL3L4Udp => &[
            EthType, Ipv4Src, Ipv4Dst, Ipv6Src, Ipv6Dst, IpProto, TcpSrc, TcpDst,
        ],
        HashFields::SymmetricL4 => &[
            EthSrc, EthDst, EthType, VlanVid, Ipv4Src, Ipv4Dst, Ipv6Src, Ipv6Dst, IpProto, TcpSrc,
            TcpDst,
        ],
    }
}

impl Machine<'_> {
    fn hash(&mut self, fields: HashFields, basis: u16) -> u32 {
        for field in hashed(fields) {
            self.look_at(*field);
        }
        crate::compile::fields(fields).hash(&self.key, basis)
    }

    pub(super) fn multipath(&mut self, multipath: &Multipath) {
        let hash = self.hash(multipath.fields, multipath.basis);
        let ways = u32::from(multipath.max_link) + 1;
        let way = match multipath.algorithm {
            MultipathAlgorithm::HashThreshold => {
                (f64::from(hash) * f64::from(ways) / 4_294_967_296.0) as u32
            }
            MultipathAlgorithm::Hrw if ways <= 64 => heaviest(hash, &mut (0..ways)),
            MultipathAlgorithm::ModuloN | MultipathAlgorithm::Hrw => hash % ways,
            MultipathAlgorithm::IterHash => {
                let near = (ways..=2 * ways + 1).contains(&multipath.arg);
                let modulus = if near {
                    multipath.arg
                } else {
                    (0..)
                        .map(|bit| 1 << bit)
                        .find(|power| *power >= ways)
                        .unwrap_or(ways)
                };
                let mut hashes = (0..64).map(|turn| multipath::weight(hash, turn) % modulus);
                hashes.find(|way| *way < ways).unwrap_or(hash % ways)
            }
        };
        self.write(&multipath.dst, way.into());
    }

    pub(super) fn bundle(&mut self, bundle: &Bundle, at: At) {
        let is_live = |port: PortNo| match port {
            port::ANY | port::CONTROLLER => false,
            port::MAX..=port::ANY => true,
            port => (self.live)(port),
        };
        let mut live: Vec<u32> = (0..bundle.members.len() as u32).collect();
        live.retain(|index| is_live(bundle.members[*index as usize]));
        let chosen = match live[..] {
            [] => None,
            [first, ..] if bundle.active_backup => Some(first),
            _ => {
                let hash = self.hash(bundle.fields, bundle.basis);
                Some(heaviest(hash, &mut live.into_iter()))
            }
        };
        let port = chosen.map_or(port::ANY, |index| bundle.members[index as usize]);
        match &bundle.dst {
            Some(dst) => self.write(dst, u128::from(port & 0xffff)),
            None => self.output(port, 0, at),
        }
    }
}

/// Returns the way with the highest weight, the first of several.
fn heaviest(hash: u32, ways: &mut dyn Iterator<Item = u32>) -> u32 {
    let mut best: Option<(u32, u32)> = None;
    for way in ways {
        let weight = multipath::weight(hash, way);
        if best.is_none_or(|(heaviest, _)| weight > heaviest) {
            best = Some((weight, way));
        }
    }
    best.map_or(0, |(_, way)| way)
}
