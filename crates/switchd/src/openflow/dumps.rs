//! Dumps of rules, which go on as the peer reads and let others be served in between.

use super::hub::Hub;
use super::session::Session;
use openflow::flow::FlowStatsRequest;
use openflow::message::FlowFormat;
use openflow::{Error, MultipartWriter};

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
        }
        for part in writer.finish() {
            self.outbox.send(part);
        }
        Ok(())
    }
}
