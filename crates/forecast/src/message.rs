//! How to cut messages into packets if a queue sends in groups (Powell et al., "Predictable
//! Bandwidth Slicing with Open vSwitch", figures 2 and 3).
//!
//! A scheduler that sends g packets at a time takes the same time for 5 packets as for 15. So data
//! and a command for it should neither be one message nor be mixed: the data goes first, as a
//! message of its own, and if its last group has room, the command travels in it at no extra time.
//! The receiver processes the data while the rest is on its way.

use crate::Error;
use serde::Serialize;

/// A queue that sends in groups, idle at first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Groups {
    /// Its rate, in bit/s.
    pub rate: f64,
    /// Packet size in bits.
    pub size: f64,
    /// Packets per group.
    pub group: u32,
    /// Whether the first group leaves at once (a full bucket); otherwise it leaves after a group's
    /// time, as in the paper's figures.
    pub ready: bool,
}

/// Most messages of a plan.
pub const MAX_MESSAGES: usize = 1000;
/// Most packets of all messages.
pub const MAX_PACKETS: u32 = 1_000_000;

impl Groups {
    fn check(&self) -> Result<(), Error> {
        let number = |value: f64| value.is_finite() && value > 0.0;
        if !number(self.rate) || !number(self.size) || self.group == 0 || self.group > MAX_PACKETS {
            return Err(Error::new(format!(
                "groups of {} packets of {} bits at {} bit/s cannot be",
                self.group, self.size, self.rate
            )));
        }
        Ok(())
    }

    /// Returns the time between groups, in seconds.
    pub fn period(&self) -> f64 {
        f64::from(self.group) * self.size / self.rate
    }

    /// Returns when packet number `packet` (from 0) leaves.
    fn leaves(&self, packet: u32) -> f64 {
        let groups = packet / self.group + u32::from(!self.ready);
        f64::from(groups) * self.period()
    }
}

/// Messages and the order of their packets. The last message is the command, the others are data; a
/// single one is both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Packets of each message.
    pub messages: Vec<u32>,
    /// Whether packets of the messages alternate, instead of one message after the other.
    pub mixed: bool,
}

impl Plan {
    /// Parses `15+5` (one after the other), `7|8|5` (mixed) or `20` (one message).
    pub fn parse(text: &str) -> Result<Plan, Error> {
        let mixed = text.contains('|');
        let wrong = || {
            Error::new(format!(
                "\"{text}\": must be packets of messages, such as 15+5, 7|8|5 or 20"
            ))
        };
        if mixed && text.contains('+') {
            return Err(wrong());
        }
        let messages: Option<Vec<u32>> = text
            .split(['+', '|'])
            .map(|word| word.trim().parse().ok().filter(|packets| *packets > 0))
            .collect();
        let plan = Plan {
            messages: messages.ok_or_else(wrong)?,
            mixed,
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), Error> {
        let packets: u64 = self
            .messages
            .iter()
            .map(|packets| u64::from(*packets))
            .sum();
        if self.messages.len() > MAX_MESSAGES {
            return Err(Error::new(format!(
                "{} messages are more than {MAX_MESSAGES}",
                self.messages.len()
            )));
        }
        if packets == 0 || packets > MAX_PACKETS.into() || self.messages.contains(&0) {
            return Err(Error::new(format!(
                "{self}: must be 1 to {MAX_PACKETS} packets, and no message empty"
            )));
        }
        Ok(())
    }

    /// Returns the number of the last packet of each message.
    fn last(&self) -> Vec<u32> {
        if !self.mixed {
            let ends = self.messages.iter().scan(0, |sum, packets| {
                *sum += packets;
                Some(*sum - 1)
            });
            return ends.collect();
        }
        let sent_before = |at: usize| -> u32 {
            // What the others have sent when this message sends its last packet: as many as it, or
            // one less if they come after it in a round.
            let own = self.messages[at];
            let others = self
                .messages
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at);
            others
                .map(|(other, packets)| (*packets).min(if other < at { own } else { own - 1 }))
                .sum()
        };
        (0..self.messages.len())
            .map(|at| sent_before(at) + self.messages[at] - 1)
            .collect()
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.messages.iter().map(u32::to_string).collect();
        f.write_str(&words.join(if self.mixed { "|" } else { "+" }))
    }
}

/// When data and command arrive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delivery {
    /// The plan.
    pub plan: String,
    /// Arrival of the last of the data, in seconds after the first packet entered the queue.
    pub data: f64,
    /// Arrival of the last of the command, likewise.
    pub command: f64,
    /// When the command can be executed: it is there, and the data has been processed.
    pub done: f64,
    /// Whether the command came with the last group of the data, at no extra time.
    pub rides_free: bool,
}

/// Computes arrival times, if the receiver processes the data for `work` seconds before it can
/// execute the command.
pub fn deliver(groups: &Groups, plan: &Plan, work: f64) -> Result<Delivery, Error> {
    groups.check()?;
    plan.check()?;
    if !(work.is_finite() && work >= 0.0) {
        return Err(Error::new(format!(
            "{work} s of work: must be a number, 0 or more"
        )));
    }
    let times: Vec<f64> = plan
        .last()
        .into_iter()
        .map(|packet| groups.leaves(packet))
        .collect();
    let command = times[times.len() - 1];
    let data = match &times[..times.len() - 1] {
        [] => command,
        data => data.iter().copied().fold(0.0, f64::max),
    };
    Ok(Delivery {
        plan: plan.to_string(),
        data,
        command,
        done: command.max(data + work),
        rides_free: plan.messages.len() > 1 && command <= data && !plan.mixed,
    })
}

/// Recommended plan for given amounts of data and command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The best plan first, then others for comparison.
    pub plans: Vec<Delivery>,
    /// How many more packets fit the last group of the data.
    pub room: u32,
    /// Time that the best plan saves compared with one message, in seconds.
    pub gain: f64,
    /// The recommendation as text.
    pub words: String,
}

/// Compares the obvious plans and those given.
pub fn advise(
    groups: &Groups,
    data: u32,
    command: u32,
    work: f64,
    others: &[Plan],
) -> Result<Advice, Error> {
    groups.check()?;
    if data == 0 || command == 0 || data.saturating_add(command) > MAX_PACKETS {
        return Err(Error::new(format!(
            "{data} packets of data and {command} of command: must be at least one of each, and at most {MAX_PACKETS} together"
        )));
    }
    let plan = |messages: &[u32], mixed: bool| Plan {
        messages: messages.to_vec(),
        mixed,
    };
    let one = plan(&[data + command], false);
    let mut plans = vec![plan(&[data, command], false), one.clone()];
    if data > 1 {
        plans.push(plan(&[data / 2, data - data / 2, command], true));
    }
    for other in others {
        if !plans.contains(other) {
            plans.push(other.clone());
        }
    }
    let mut deliveries = Vec::new();
    for plan in &plans {
        deliveries.push(deliver(groups, plan, work)?);
    }
    let gain_over = deliver(groups, &one, work)?.done;
    deliveries.sort_by(|a, b| {
        (a.done, a.data, a.command)
            .partial_cmp(&(b.done, b.data, b.command))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let room = (groups.group - data % groups.group) % groups.group;
    let whole = data / groups.group;
    let words = if command <= room {
        format!(
            "the last group of the data has room for {room} packets: the command rides in it and costs no time"
        )
    } else if data.is_multiple_of(groups.group) || whole == 0 {
        format!(
            "the last group of the data has room for {room} packets, the command needs {command} and takes {} more",
            groups_of(command - room, groups.group)
        )
    } else {
        format!(
            "the last group of the data has room for {room} packets, the command needs {command} and takes {} more; {} packets less of data, or of command, would save a group",
            groups_of(command - room, groups.group),
            (command - room - 1) % groups.group + 1
        )
    };
    let gain = (gain_over - deliveries[0].done).max(0.0);
    Ok(Advice {
        plans: deliveries,
        room,
        gain,
        words,
    })
}

fn groups_of(packets: u32, group: u32) -> String {
    match packets.div_ceil(group) {
        1 => "one group".into(),
        more => format!("{more} groups"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAPER: Groups = Groups {
        rate: 192e6,
        size: 12_000.0,
        group: 16,
        ready: false,
    };

    /// Paper figure 3: of 20 packets sent as one message, as 7, 8 and 5 mixed, and as 15 and 5, the
    /// third delivers the data first, and so its command is executed first.
    #[test]
    fn the_papers_third_scenario_is_the_best() {
        let at = |text: &str| deliver(&PAPER, &Plan::parse(text).unwrap(), 0.0005).unwrap();
        let (one, mixed, third) = (at("20"), at("7|8|5"), at("15+5"));
        assert_eq!((one.data, one.command), (0.002, 0.002));
        assert_eq!((mixed.data, mixed.command), (0.002, 0.001));
        assert_eq!((third.data, third.command), (0.001, 0.002));
        assert!(third.done < one.done && third.done < mixed.done);
        let advice = advise(&PAPER, 15, 5, 0.0005, &[Plan::parse("7|8|5").unwrap()]).unwrap();
        assert_eq!(advice.plans[0].plan, "15+5");
        assert!((advice.gain - 0.0005).abs() < 1e-12);
        assert_eq!(advice.room, 1);
        let free = advise(&PAPER, 11, 5, 0.0, &[]).unwrap();
        assert!(free.plans[0].rides_free && free.words.contains("costs no time"));
    }

    #[test]
    fn bad_plans_are_refused() {
        for text in ["", "5+", "0", "7|8+5", "-1", "x", "4000000000", "999999+2"] {
            assert!(Plan::parse(text).is_err(), "{text}");
        }
        assert!(advise(&PAPER, 0, 5, 0.0, &[]).is_err());
        assert!(advise(&Groups { group: 0, ..PAPER }, 1, 5, 0.0, &[]).is_err());
        assert!(advise(&PAPER, 1, 5, -1.0, &[]).is_err());
        assert!(advise(&Groups { rate: 0.0, ..PAPER }, 1, 5, 0.0, &[]).is_err());
    }

    proptest! {
        /// Compares plans with packets that are put into a list and taken out in groups.
        #[test]
        fn plans_come_out_as_packets_do(
            messages in prop::collection::vec(1_u32..40, 1..6), mixed: bool, ready: bool, group in 1_u32..20,
        ) {
            let groups = Groups { group, ready, ..PAPER };
            let plan = Plan { messages: messages.clone(), mixed };
            let got = deliver(&groups, &plan, 0.0).unwrap();
            let mut left = messages.clone();
            let mut order = Vec::new();
            while left.iter().any(|packets| *packets > 0) {
                for (message, packets) in left.iter_mut().enumerate() {
                    let now = if mixed { (*packets).min(1) } else { *packets };
                    order.extend((0..now).map(|_| message));
                    *packets -= now;
                }
            }
            let mut there = vec![0.0_f64; messages.len()];
            for (number, some) in order.chunks(group as usize).enumerate() {
                let time = (number + usize::from(!ready)) as f64 * groups.period();
                some.iter().for_each(|message| there[*message] = time);
            }
            let (command, data) = there.split_last().unwrap();
            prop_assert!((got.command - command).abs() < 1e-9);
            let data = data.iter().copied().fold(0.0, f64::max);
            prop_assert!(messages.len() == 1 || (got.data - data).abs() < 1e-9);
        }
    }
}
