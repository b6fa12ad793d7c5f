//! `sluice/busiest`: the rules that match the most packets at present.
//!
//! The rate of a rule is the difference between two readings of its counters, so the previous
//! request's counters are kept: some 5 MB for 100,000 rules. With more rules, none are read.

use super::slices::{self, Pace};
use super::{Commands, bridges};
use crate::switch::{Bridge, Switch};
use openflow::flow::FlowStatsRequest;
use openflow::format;
use pipeline::RuleCount;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Most rules whose counters are read and kept.
const RULES_MAX: usize = 100_000;
/// Rules read before other tasks get their turn: some hundred microseconds.
const SLICE: usize = 2048;
/// Most rules in a reply.
const TOLD_MAX: usize = 1000;
/// Rules in a reply where no number is given.
const TOLD: usize = 10;
/// Age at which kept counters are discarded.
const OLD: Duration = Duration::from_secs(60);

/// A bridge's name and a rule's table and serial.
type Key = (Rc<str>, u8, u64);

/// Counters at the previous request.
struct Before {
    when: Instant,
    counts: HashMap<Key, (u64, u64)>,
}

/// A rule, and how much its counters have risen.
struct Moved {
    bridge: usize,
    count: RuleCount,
    /// Packets and bytes since the previous request; none for a rule that did not exist then, or if
    /// there was no previous request.
    since: Option<(u64, u64)>,
}

pub(super) fn register(commands: &Commands) {
    let before: Rc<RefCell<Option<Before>>> = Rc::default();
    commands.later(
        "sluice/busiest",
        "[count]",
        (0, 1),
        move |switch, words, reply| {
            let count = match words.first().map(|word| word.parse::<usize>()) {
                None => TOLD,
                Some(Ok(count)) if (1..=TOLD_MAX).contains(&count) => count,
                Some(_) => {
                    let text = format!("{}: must be a number from 1 to {TOLD_MAX}", words[0]);
                    return reply.error(text);
                }
            };
            let before = before.clone();
            crate::turns::spawn("sluice/busiest", async move {
                reply.ok(busiest(&switch, &before, count).await);
            });
        },
    );
}

async fn busiest(switch: &Switch, before: &RefCell<Option<Before>>, most: usize) -> String {
    let bridges = bridges(switch);
    let rules: usize = bridges
        .iter()
        .map(|bridge| bridge.pipeline.borrow().rule_count())
        .sum();
    if rules > RULES_MAX {
        before.replace(None);
        return json!({"rules": [], "left_out": rules, "interval_us": null}).to_string();
    }
    let when = Instant::now();
    let mut read: Vec<(usize, RuleCount)> = Vec::with_capacity(rules);
    for (place, bridge) in bridges.iter().enumerate() {
        let mut dump = bridge
            .pipeline
            .borrow_mut()
            .begin_dump(&FlowStatsRequest::all());
        // The limit leaves room for rules that are added meanwhile.
        while read.len() < 2 * RULES_MAX {
            let done = {
                let take = |count| read.push((place, count));
                let mut pipeline = bridge.pipeline.borrow_mut();
                pipeline.continue_counts(&mut dump, SLICE, take)
            };
            if done {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let names: Vec<Rc<str>> = bridges
        .iter()
        .map(|bridge| bridge.name.as_str().into())
        .collect();
    let key = |place: usize, count: &RuleCount| -> Key {
        (names[place].clone(), count.table, count.serial)
    };
    let last = before.take();
    let mut last = last.filter(|last| when.saturating_duration_since(last.when) <= OLD);
    let interval = last
        .as_ref()
        .map(|last| when.saturating_duration_since(last.when));
    let mut pace = Pace::new();
    let mut counts = HashMap::with_capacity(read.len());
    let mut moved: Vec<Moved> = Vec::new();
    for (bridge, count) in read {
        let (key, now) = (key(bridge, &count), (count.packets, count.bytes));
        // Removed one by one, so that little is left to free at the end.
        let then = last.as_mut().and_then(|last| last.counts.remove(&key));
        counts.insert(key, now);
        if count.packets > 0 {
            let since =
                then.map(|then| (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1)));
            moved.push(Moved {
                bridge,
                count,
                since,
            });
        }
        pace.step().await;
    }
    before.replace(Some(Before { when, counts }));
    let order = |one: &Moved| {
        let packets = one.since.map_or(0, |since| since.0);
        std::cmp::Reverse((packets, one.count.packets))
    };
    // Twice as many as wanted: some may be deleted before they are described.
    let candidates = 2 * most;
    if moved.len() > candidates {
        moved.select_nth_unstable_by_key(candidates, order);
        moved.truncate(candidates);
    }
    moved.sort_by_key(order);
    let described = moved
        .iter()
        .map(|one| describe(switch, &bridges[one.bridge], one, interval));
    let rules = slices::list(described, most).await;
    let interval = json!(interval.map(|interval| interval.as_micros() as u64));
    format!(r#"{{"interval_us":{interval},"left_out":0,"rules":{rules}}}"#)
}

fn describe(
    switch: &Switch,
    bridge: &Bridge,
    one: &Moved,
    interval: Option<Duration>,
) -> Option<Value> {
    let rule = bridge.pipeline.borrow().counted(&one.count, switch.now())?;
    let (mut matching, mut actions) = (String::new(), String::new());
    format::matching(&mut matching, &rule.stats.matching, rule.priority);
    format::instructions(&mut actions, &rule.stats.instructions);
    let seconds = interval.map(|interval| interval.as_secs_f64().max(1e-6));
    let rate = |of: fn((u64, u64)) -> u64| Some(of(one.since?) as f64 / seconds?);
    Some(json!({
        "bridge": bridge.name,
        "table": one.count.table,
        "match": matching,
        "actions": actions,
        "packets": one.count.packets,
        "bytes": one.count.bytes,
        "packets_per_s": rate(|since| since.0),
        "bits_per_s": rate(|since| since.1 * 8),
    }))
}
