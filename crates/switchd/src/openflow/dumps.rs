//! Answers to questions about many rules, which go on as the peer reads and let others be served in between.

use super::hub::Hub;
use super::session::Session;
use openflow::flow::FlowStatsRequest;
use openflow::message::{FlowFormat, MultipartReply};
use openflow::stats::Aggregate;
use openflow::{Error, MultipartWriter, Version, encode_multipart};

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
        // Who gets a list without a rule that is there must know.
        if writer.lost() > 0 {
            return Err(self.too_long());
        }
        for part in writer.finish() {
            self.outbox.send(part);
        }
        Ok(())
    }

    /// What is answered when no message of this version can hold a rule.
    fn too_long(&self) -> Error {
        if self.version >= Version::V1_3 {
            Error::MultipartOverflow
        } else {
            Error::BadLength
        }
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
