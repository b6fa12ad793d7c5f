//! Answers to questions about many rules, which go on as the peer reads and let others be served in between.

use super::hub::Hub;
use super::session::Session;
use openflow::flow::FlowStatsRequest;
use openflow::message::{FlowFormat, MultipartReply};
use openflow::stats::Aggregate;
use openflow::{Error, MultipartWriter, encode_multipart};

static TOO_LONG: crate::coverage::Counter = crate::coverage::Counter::new("openflow_rule_too_long");

/// Rules looked at before others have their turn: about a millisecond.
const SLICE: usize = 512;

impl Session {
    /// Answers a request for rules.
    pub(super) async fn dump(
        &self,
        hub: &Hub,
        xid: u32,
        request: &FlowStatsRequest,
        format: FlowFormat,
    ) -> Result<(), Error> {
        let mut dump = hub.switch().flows(request)?;
        let mut writer = MultipartWriter::flows(self.version, xid, format);
        while !dump.next(SLICE, &mut |stats| writer.push_flow(stats)) {
            for part in writer.take_finished() {
                self.outbox.send(part);
            }
            self.outbox.room().await;
            tokio::task::yield_now().await;
            hub.idle().await;
        }
        // Others are told all the same, as by Open vSwitch.
        let lost = writer.lost();
        if lost > 0 {
            TOO_LONG.add(lost as u64);
            tracing::warn!(target: "ofp_flow", "{}: {lost} rules are not in the dump: no message of {} holds one", self.peer, self.version.name());
        }
        for part in writer.finish() {
            self.outbox.send(part);
        }
        Ok(())
    }

    /// Answers a request for the sums over rules.
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
