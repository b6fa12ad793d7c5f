//! Jobs as OpenFlow rules.

use crate::subject::{Job, ROUTER, route};
use crate::subjects::destinations;

/// Rules and groups as `ovs-ofctl` reads them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Wanted {
    pub rules: Vec<String>,
    pub groups: Vec<String>,
}

/// Where routed frames go next.
const NEXT_HOP: &str = "02:00:00:00:00:03";

/// The rules of a job with so many ports.
pub(super) fn of(job: &Job, ports: usize) -> Wanted {
    let rules = match job {
        Job::Cross | Job::To(_) => {
            let pairs = destinations(job, ports).unwrap_or_default();
            pairs
                .into_iter()
                .map(|(from, to)| forward(from, &to))
                .collect()
        }
        Job::Stations(_) => vec!["actions=NORMAL".into()],
        Job::Routes(count) => (0..*count).map(routed).collect(),
        Job::Rules { rules, groups } => {
            return Wanted {
                rules: rules.clone(),
                groups: groups.clone(),
            };
        }
    };
    Wanted {
        rules,
        groups: Vec::new(),
    }
}

fn forward(from: u16, to: &[u16]) -> String {
    let outputs: Vec<String> = to
        .iter()
        // An output to the port that a frame came from must be named so.
        .map(|port| match *port == from {
            true => "in_port".to_owned(),
            false => format!("output:{port}"),
        })
        .collect();
    match outputs.is_empty() {
        true => format!("in_port={from},actions=drop"),
        false => format!("in_port={from},actions={}", outputs.join(",")),
    }
}

fn routed(number: u32) -> String {
    let network = route(number);
    format!(
        "priority=124,ip,nw_dst={network}/24,actions=dec_ttl,mod_dl_src:{ROUTER},\
         mod_dl_dst:{NEXT_HOP},output:2"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_as_rules() {
        assert_eq!(
            of(&Job::Cross, 2).rules,
            ["in_port=1,actions=output:2", "in_port=2,actions=output:1"]
        );
        let copies = Job::To(vec![(1, vec![2, 3]), (2, vec![]), (3, vec![3])]);
        assert_eq!(
            of(&copies, 3).rules,
            [
                "in_port=1,actions=output:2,output:3",
                "in_port=2,actions=drop",
                "in_port=3,actions=in_port"
            ]
        );
        assert_eq!(of(&Job::Stations(5), 2).rules, ["actions=NORMAL"]);
        let routes = of(&Job::Routes(300), 2).rules;
        assert_eq!(routes.len(), 300);
        assert!(
            routes[299].contains("nw_dst=11.1.43.0/24"),
            "{}",
            routes[299]
        );
        let own = Job::Rules {
            rules: vec!["actions=group:1".into()],
            groups: vec!["group_id=1,type=all,bucket=output:2".into()],
        };
        let wanted = of(&own, 2);
        assert_eq!((wanted.rules.len(), wanted.groups.len()), (1, 1));
    }
}
