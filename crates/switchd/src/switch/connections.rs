//! The connection tracker, as commands, controllers and time see it. What concerns many connections
//! is done in slices.

use super::Switch;
use crate::config::timeouts::Timeouts;
use conntrack::{Connection, Cursor, Filter, Part, Tracker};
use openflow::ct_flush::{CtFlush, CtTuple};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Connections looked at in a slice.
const SLICE: usize = 1024;

impl Switch {
    /// Returns the connection tracker, once there is a datapath.
    pub fn tracker(&self) -> Option<Arc<Tracker>> {
        let tracker = self.with_datapath(|datapath| Arc::clone(datapath.tracker()));
        tracker.ok()
    }

    /// Sets the timeouts of zones; others get the usual ones.
    pub(super) fn set_timeouts(&self, timeouts: &Timeouts) -> Result<(), String> {
        let tracker = self.tracker().ok_or("the datapath does not run yet")?;
        let before = self.applied.borrow().timeouts.clone();
        let gone = before.keys().filter(|zone| !timeouts.contains_key(zone));
        let new = timeouts
            .iter()
            .filter(|(zone, policy)| before.get(zone) != Some(policy));
        let gone = gone.map(|zone| (*zone, None));
        let new = new.map(|(zone, policy)| (*zone, Some(*policy)));
        let changes: Vec<_> = gone.chain(new).collect();
        if !changes.is_empty() {
            tracker.set_policies(changes);
        }
        Ok(())
    }

    /// Removes connections whose time is over, and fragments that nobody has let go on.
    pub async fn expire_connections(&self) {
        let _ = self.with_datapath(|datapath| datapath.purge_overdue_fragments());
        let Some(tracker) = self.tracker() else {
            return;
        };
        while !tracker.expire(self.now().ms(), SLICE) {
            tokio::task::yield_now().await;
        }
    }
}

/// Calls `visit` for each connection.
pub async fn dump(tracker: &Tracker, mut visit: impl FnMut(&Connection)) {
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = dump_some(tracker, at, SLICE, &mut visit).await;
    }
}

/// Calls `visit` for about `count` connections, from `cursor` on; returns where to continue.
pub async fn dump_some(
    tracker: &Tracker,
    cursor: Cursor,
    count: usize,
    visit: impl FnMut(&Connection),
) -> Option<Cursor> {
    let next = tracker.dump(cursor, count, visit);
    tokio::task::yield_now().await;
    next
}

/// Removes the connections that a filter admits; returns how many it has removed.
pub async fn flush(tracker: Arc<Tracker>, filter: Filter) -> usize {
    let (mut cursor, mut removed) = (Some(Cursor::default()), 0);
    while let Some(at) = cursor {
        let flushed = tracker.flush(&filter, at, SLICE);
        (cursor, removed) = (flushed.next, removed + flushed.removed);
        tokio::task::yield_now().await;
    }
    removed
}

/// Returns the connections that a controller's request means.
pub fn filter(request: &CtFlush) -> Filter {
    let protocol = (request.protocol != 0).then_some(request.protocol);
    let part = |tuple: &Option<CtTuple>| {
        let tuple = tuple.unwrap_or_default();
        Part {
            source: tuple.source.map(address),
            destination: tuple.destination.map(address),
            protocol: None,
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
            icmp_id: tuple.icmp_id,
            icmp_type: tuple.icmp_type,
            icmp_code: tuple.icmp_code,
        }
    };
    Filter {
        zone: request.zone,
        original: Part {
            protocol,
            ..part(&request.original)
        },
        reply: part(&request.reply),
    }
}

/// Returns an address that may be IPv4 mapped into IPv6.
fn address(number: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(number)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use conntrack::Request;
    use packet::build::Builder;
    use packet::parse::parse_frame;
    use packet::{FlowKey, WordSet};
    use std::net::Ipv4Addr;

    fn begin(tracker: &Tracker, port: u16) {
        let builder = Builder::ethernet([2; 6], [4; 6]).ipv4(1, 2);
        let mut frame = builder.udp(port, 53).payload(b"some").frame();
        let mut key = FlowKey::ZERO;
        let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
        let request = Request {
            zone: 3,
            commit: true,
            ..Request::default()
        };
        tracker.track(&frame, &layers, &request, 1000);
    }

    /// A flush knows what it has removed, whatever others remove meanwhile, and one of a single
    /// connection has only one slice.
    #[tokio::test]
    async fn flushes_count_for_themselves() {
        const COUNT: u16 = 5_000;
        let tracker = Arc::new(Tracker::new([1, 2]));
        (1..=COUNT).for_each(|port| begin(&tracker, port));
        let one = |port: u16| Filter {
            zone: Some(3),
            original: Part {
                source: Some(Ipv4Addr::from_bits(1).into()),
                destination: Some(Ipv4Addr::from_bits(2).into()),
                protocol: Some(17),
                source_port: Some(port),
                destination_port: Some(53),
                ..Part::default()
            },
            ..Filter::default()
        };
        let flush = |filter| flush(Arc::clone(&tracker), filter);
        let all = flush(Filter::default());
        let (missing, found, all) = tokio::join!(flush(one(COUNT + 1)), flush(one(7)), all);
        assert_eq!((missing, found, all), (0, 1, usize::from(COUNT) - 1));
        assert_eq!(tracker.count(), 0);
    }
}
