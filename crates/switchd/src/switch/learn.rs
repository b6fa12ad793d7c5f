//! Learn requests of packets: adds the rules as if a controller had sent them, publishes them one
//! by one, and tells the workers that hold the packets. Also requests of tunnels
//! ([`super::underlay`]).

use super::{Bridge, Switch};
use datapath::learn_requests::{RequestKind, WorkerRequest};
use openflow::Version;
use pipeline::reference;
use program::actions::learn::{Answer, Ended, LearnOutcome, Request};

impl Switch {
    /// Carries out up to `limit` requests; returns whether there were any.
    pub fn grant_requests(&self, limit: usize) -> bool {
        let requests = self.with_datapath(|datapath| datapath.take_requests(limit));
        let requests = requests.unwrap_or_default();
        if requests.is_empty() {
            return false;
        }
        let mut answers = Vec::new();
        for WorkerRequest {
            bridge,
            worker,
            kind,
        } in requests
        {
            let bridge = self.bridge_by_id(bridge);
            match (kind, bridge) {
                (RequestKind::Rule(request), Some(bridge)) if bridge.is_busy() => {
                    let refused = self.answer(&request, LearnOutcome::Refused);
                    let waits = bridge.request_when_idle(move |bridge| {
                        let verdict = bridge.learn(&request);
                        let switch = bridge.switch();
                        let answer = switch.answer(&request, verdict);
                        let _ = switch.with_datapath(|datapath| datapath.answer(worker, answer));
                    });
                    if !waits {
                        answers.push((worker, refused));
                    }
                }
                (RequestKind::Rule(request), Some(bridge)) => {
                    let verdict = bridge.learn(&request);
                    answers.push((worker, self.answer(&request, verdict)));
                }
                (RequestKind::Rule(request), None) => {
                    answers.push((worker, self.answer(&request, LearnOutcome::Refused)));
                }
                (RequestKind::ConnectionEnded(ended), Some(bridge)) => {
                    bridge.request_when_idle(move |bridge| {
                        bridge.pipeline.borrow_mut().connection_ended(&ended);
                    });
                }
                (RequestKind::AskNeighbour { address, source }, Some(bridge)) => {
                    self.ask_neighbour(&bridge, address, source);
                }
                (
                    RequestKind::NeighbourSeen {
                        address,
                        mac,
                        asked,
                    },
                    Some(bridge),
                ) => self.neighbour_seen(&bridge, address, mac, asked),
                (
                    RequestKind::ConnectionEnded(_)
                    | RequestKind::AskNeighbour { .. }
                    | RequestKind::NeighbourSeen { .. },
                    None,
                ) => {}
            }
        }
        let _ = self.with_datapath(|datapath| {
            for (worker, answer) in answers {
                datapath.answer(worker, answer);
            }
        });
        true
    }

    fn answer(&self, request: &Request, verdict: LearnOutcome) -> Answer {
        Answer {
            ticket: request.ticket,
            verdict,
            epoch: self.program.domain.current(),
        }
    }
}

impl Bridge {
    /// Carries out what a traced packet teaches (`ofproto/trace -generate`): the rules that it asks
    /// for, and the timeouts that it shortens. Waits while rules are being changed in slices.
    pub fn learn_from_trace(&self, traced: &reference::Outcome) {
        if traced.learned.is_empty() && traced.ended.is_empty() {
            return;
        }
        let learned = traced.learned.clone();
        let ended: Vec<Ended> = traced
            .ended
            .iter()
            .filter_map(|ended| {
                let hit = traced.hits.get(ended.hit)?;
                Some(Ended {
                    table: hit.table,
                    priority: hit.priority,
                    matching: hit.matching.clone(),
                    idle: ended.idle,
                    hard: ended.hard,
                })
            })
            .collect();
        for change in learned {
            self.request_when_idle(move |bridge| {
                if let Err(error) = bridge.change_flows(&change, Version::V1_0) {
                    tracing::info!(target: "ofproto", "{}: a traced packet's rule is refused: {error}", bridge.name);
                }
                bridge.publish();
            });
        }
        self.request_when_idle(move |bridge| {
            for ended in &ended {
                bridge.pipeline.borrow_mut().connection_ended(ended);
            }
            bridge.publish();
        });
    }

    fn learn(&self, request: &Request) -> LearnOutcome {
        let now = self.switch().now();
        let (verdict, outcome) = self.pipeline.borrow_mut().learn(request, now);
        if verdict == LearnOutcome::LimitReached {
            tracing::info!(target: "ofproto", "{}: Learn limit for flow {} reached.", self.name, request.learn.cookie);
        }
        if outcome.changed > 0 {
            // Each rule has its own epoch: the packet that asked for it continues in the epoch
            // before.
            self.publish();
        }
        self.tell_removed(outcome.removed);
        verdict
    }
}
