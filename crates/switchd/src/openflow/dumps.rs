//! Replies to requests about many rules. They are sent as fast as the peer reads, and other tasks
//! run in between.

use super::hub::Hub;
use super::session::Session;
use super::switch::FlowDump;
use openflow::flow::{FlowStats, FlowStatsRequest};
use openflow::message::{FlowFormat, MultipartReply};
use openflow::stats::Aggregate;
use openflow::steering::with_notes;
use openflow::{Error, MultipartWriter, encode_multipart};

static TOO_LONG: crate::coverage::Counter = crate::coverage::Counter::new("openflow_rule_too_long");

/// Most rules read before other tasks run: about a millisecond.
const SLICE: usize = 512;
/// Most bytes written before other tasks run: also about a millisecond. A rule of 64 KiB may take
/// twice as many in an old version before it turns out that no message can hold it.
const SLICE_BYTES: usize = 1 << 20;
/// Rules between two checks of the bytes written.
const STEP: usize = 8;

/// Continues a dump for about a millisecond; true when it is complete.
fn slice(dump: &mut dyn FlowDump, writer: &mut MultipartWriter, plain: bool) -> bool {
    let (mut looked, before) = (0, writer.written());
    while looked < SLICE && writer.written() - before < SLICE_BYTES {
        let notes = |stats: &FlowStats| plain.then(|| with_notes(&stats.instructions)).flatten();
        let push = &mut |stats: &FlowStats| match notes(stats) {
            Some(instructions) => writer.push_flow(&FlowStats {
                instructions: instructions.into(),
                ..stats.clone()
            }),
            None => writer.push_flow(stats),
        };
        if dump.next(STEP, push) {
            return true;
        }
        looked += STEP;
    }
    false
}

impl Session {
    /// Replies to a request for rules.
    pub(super) async fn dump(
        &self,
        hub: &Hub,
        xid: u32,
        request: &FlowStatsRequest,
        format: FlowFormat,
    ) -> Result<(), Error> {
        let mut dump = hub.switch().flows(request)?;
        let mut writer = MultipartWriter::flows(self.version, xid, format);
        let plain = !self.knows_steering.get();
        while !slice(&mut *dump, &mut writer, plain) {
            for part in writer.take_finished() {
                self.outbox.send(part);
            }
            self.outbox.room().await;
            tokio::task::yield_now().await;
            hub.idle().await;
        }
        // The other rules are sent all the same, as by Open vSwitch.
        let lost = writer.lost();
        TOO_LONG.add(lost as u64);
        // Logged only when the number changes, because some peers ask every second.
        if self.rules_left_out.replace(lost) != lost && lost > 0 {
            tracing::warn!(target: "ofp_flow", "{}: {lost} rules are not in the dump: no message of {} holds one", self.peer, self.version.name());
        }
        for part in writer.finish() {
            self.outbox.send(part);
        }
        Ok(())
    }

    /// Replies to a request for sums over rules.
    pub(super) async fn sum(
        &self,
        hub: &Hub,
        xid: u32,
        request: &FlowStatsRequest,
        format: FlowFormat,
    ) -> Result<(), Error> {
        let mut dump = hub.switch().flows(request)?;
        let mut sums = Aggregate::default();
        while !dump.sum(SLICE, &mut sums) {
            tokio::task::yield_now().await;
            hub.idle().await;
        }
        let reply = MultipartReply::Aggregate { sums, format };
        for part in encode_multipart(self.version, xid, &reply, false) {
            self.outbox.send(part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::Version;
    use openflow::action::{Action, Instruction};
    use openflow::flow::FlowFlags;
    use packet::{Field, Match, Value};
    use std::sync::Arc;

    /// A dump of the given number of equal rules.
    struct Equal(FlowStats, usize);

    impl FlowDump for Equal {
        fn next(&mut self, budget: usize, take: &mut dyn FnMut(&FlowStats)) -> bool {
            let some = budget.min(self.1);
            self.1 -= some;
            (0..some).for_each(|_| take(&self.0));
            self.1 == 0
        }

        fn sum(&mut self, _: usize, _: &mut Aggregate) -> bool {
            true
        }
    }

    fn rule(actions: Vec<Action>) -> FlowStats {
        FlowStats {
            table: 0,
            matching: Match::any(),
            priority: 1,
            cookie: 0,
            duration_ns: 0,
            idle_timeout: 0,
            hard_timeout: 0,
            idle_age: 0,
            hard_age: 0,
            flags: FlowFlags::default(),
            importance: 0,
            packets: 0,
            bytes: 0,
            instructions: Arc::from([Instruction::ApplyActions(actions)]),
        }
    }

    /// Returns how many bytes each slice of a 1.0 dump writes, and how many rules it leaves out.
    fn slices(rule: &FlowStats, count: usize) -> (Vec<usize>, usize) {
        let mut dump = Equal(rule.clone(), count);
        let mut writer = MultipartWriter::flows(Version::V1_0, 1, FlowFormat::Nicira);
        let mut written = vec![0];
        loop {
            let ended = slice(&mut dump, &mut writer, true);
            written.push(writer.written());
            if ended {
                let each = written.windows(2).map(|pair| pair[1] - pair[0]);
                return (each.collect(), writer.lost());
            }
        }
    }

    /// Returns an action that becomes 64 loads of 24 bytes each in 1.0.
    fn sparse() -> Action {
        let mask = Value::from_u128(0x5555_5555_5555_5555_5555_5555_5555_5555, 16);
        Action::SetField {
            field: Field::Xxreg0,
            value: mask.clone(),
            mask,
        }
    }

    #[test]
    fn a_slice_is_bounded_by_rules_and_by_bytes() {
        let (short, lost) = slices(&rule(vec![]), 10 * SLICE);
        assert_eq!((short.len(), lost), (10, 0));
        // Each fits into a message, although it is longer than in its original version.
        let (long, lost) = slices(&rule(vec![sparse(); 40]), 1000);
        let each = long.iter().sum::<usize>() / 1000;
        assert!(
            each > 40 * 64 * 24 && lost == 0,
            "{each} bytes, {lost} lost"
        );
        let most = SLICE_BYTES + STEP * each;
        assert!(
            long.len() > 30 && long.iter().all(|slice| *slice <= most),
            "{long:?}"
        );
    }

    #[test]
    fn rules_too_long_for_a_message_are_skipped_in_bounded_slices() {
        // 64 KiB in 1.5, 2.5 MB in 1.0.
        let (each, lost) = slices(&rule(vec![sparse(); 1600]), 100);
        assert_eq!(lost, 100);
        let most = SLICE_BYTES + STEP * (2 * 65536 + 2048);
        assert!(
            each.len() > 10 && each.iter().all(|slice| *slice <= most),
            "{each:?}"
        );
    }
}
