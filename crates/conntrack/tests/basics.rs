//! Single behaviours, packet by packet.

use conntrack::{Request, Tracker, state};
use packet::build::Builder;
use packet::parse::parse_frame;
use packet::{FlowKey, WordSet};

#[test]
fn udp_becomes_established_by_its_reply() {
    let tracker = Tracker::new([1, 2]);
    let track = |source, destination, ports: (u16, u16), commit| {
        let mut frame = Builder::ethernet([2; 6], [4; 6])
            .ipv4(source, destination)
            .udp(ports.0, ports.1)
            .payload(b"payload")
            .frame();
        let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut FlowKey::ZERO.clone());
        let request = Request {
            commit,
            ..Request::default()
        };
        tracker.track(&frame, &layers, &request, 1000).state & !state::TRACKED
    };
    assert_eq!(track(1, 2, (10, 20), false), state::NEW);
    assert_eq!(tracker.count(), 0);
    assert_eq!(track(1, 2, (10, 20), true), state::NEW);
    assert_eq!(tracker.count(), 1);
    assert_eq!(track(1, 2, (10, 20), false), state::NEW);
    assert_eq!(
        track(2, 1, (20, 10), false),
        state::ESTABLISHED | state::REPLY
    );
    assert_eq!(track(1, 2, (10, 20), false), state::ESTABLISHED);
}
