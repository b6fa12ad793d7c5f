//! Compares neighbours with a list that is searched linearly, and tests their limits.

use proptest::prelude::*;
use std::net::IpAddr;
use underlay::neighbours::DEFAULT_AGEING_MS;
use underlay::{Mac, Neighbours};

const A: Mac = [2, 0, 0, 0, 0, 1];
const B: Mac = [2, 0, 0, 0, 0, 2];

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn known(neighbours: &Neighbours) -> Vec<(String, IpAddr, Mac)> {
    neighbours
        .iter()
        .map(|neighbour| (neighbour.device, neighbour.address, neighbour.mac))
        .collect()
}

#[test]
fn only_what_workers_see_is_a_change() {
    let mut all = Neighbours::new();
    assert!(all.learn("br0", ip(1), A, 0));
    assert!(!all.learn("br0", ip(1), A, 10));
    assert!(all.learn("br0", ip(1), B, 20));
    assert!(all.set("br1", ip(1), B, 20));
    assert_eq!(all.len(), 2);
    assert_eq!(all.mac("br0", ip(1), 20), Some(B));
    assert_eq!(all.mac("br0", ip(1), 20 + DEFAULT_AGEING_MS), None);
    assert!(!all.age(19 + DEFAULT_AGEING_MS));
    all.touch("br1", ip(1), 21);
    assert!(all.age(20 + DEFAULT_AGEING_MS));
    assert_eq!(known(&all), [("br1".into(), ip(1), B)]);
    assert!(!all.flush(Some("br0")));
    assert!(all.flush(Some("br1")));
    assert!(!all.flush(None));
    assert!(all.is_empty());
}

#[test]
fn the_oldest_goes_where_there_are_too_many() {
    let mut all = Neighbours::with_limit(2);
    all.learn("br1", ip(9), A, 0);
    all.learn("br0", ip(1), A, 0);
    all.learn("br0", ip(2), A, 1);
    all.learn("br0", ip(1), A, 2);
    assert!(all.learn("br0", ip(3), A, 3));
    let left: Vec<IpAddr> = all.iter().map(|neighbour| neighbour.address).collect();
    assert_eq!(left, [ip(1), ip(3), ip(9)]);
}

#[test]
fn those_whose_time_runs_out_are_asked_for_again() {
    let mut all = Neighbours::new();
    all.set_ageing(90_000, 0);
    all.learn("br0", ip(1), A, 0);
    all.learn("br0", ip(2), A, 10_000);
    let due = |all: &mut Neighbours, now| -> Vec<IpAddr> {
        let due = all.due_for_refresh(now).into_iter();
        due.map(|neighbour| neighbour.address).collect()
    };
    assert_eq!(due(&mut all, 59_999), [] as [IpAddr; 0]);
    assert_eq!(due(&mut all, 60_000), [ip(1)]);
    assert_eq!(due(&mut all, 62_999), [] as [IpAddr; 0]);
    assert_eq!(due(&mut all, 70_000), [ip(1), ip(2)]);
    all.learn("br0", ip(1), A, 70_001);
    assert_eq!(due(&mut all, 80_000), [ip(2)]);
    assert_eq!(
        due(&mut all, 100_000),
        [] as [IpAddr; 0],
        "its time is over"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u8, u8, u8),
    Touch(u8, u8),
    Age,
    Ageing(u64),
    Flush(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..2, 0u8..6, 0u8..3).prop_map(|(d, a, m)| Step::Learn(d, a, m)),
        2 => (0u8..2, 0u8..6).prop_map(|(d, a)| Step::Touch(d, a)),
        3 => Just(Step::Age),
        1 => (1u64..100).prop_map(Step::Ageing),
        1 => (0u8..3).prop_map(Step::Flush),
    ]
}

/// A neighbour in the list.
#[derive(Clone, Debug)]
struct Row {
    device: String,
    address: IpAddr,
    mac: Mac,
    confirmed: u64,
    expires: u64,
}

proptest! {
    #[test]
    fn neighbours_age_as_in_a_list(steps in proptest::collection::vec((step(), 0u64..20), 0..80)) {
        const MOST: usize = 4;
        let mut all = Neighbours::with_limit(MOST);
        let mut list: Vec<Row> = Vec::new();
        let (mut now, mut ageing) = (0, DEFAULT_AGEING_MS);
        for (step, later) in steps {
            now += later;
            let before: Vec<(String, IpAddr, Mac)> = known(&all);
            let device = |number: u8| format!("br{number}");
            let find = |list: &[Row], device: &str, address| {
                list.iter().position(|row| row.device == device && row.address == address)
            };
            match step {
                Step::Learn(d, a, mac) => {
                    let (device, address, mac) = (device(d), ip(a), [mac; 6]);
                    let changed = all.learn(&device, address, mac, now);
                    if let Some(at) = find(&list, &device, address) {
                        list.remove(at);
                    }
                    while list.iter().filter(|row| row.device == device).count() >= MOST {
                        let rows = list.iter().enumerate().filter(|(_, row)| row.device == device);
                        let oldest = rows.min_by_key(|(_, row)| (row.confirmed, row.address));
                        let at = oldest.unwrap().0;
                        list.remove(at);
                    }
                    list.push(Row { device, address, mac, confirmed: now, expires: now + ageing });
                    prop_assert_eq!(changed, known(&all) != before);
                }
                Step::Touch(d, a) => {
                    let device = device(d);
                    all.touch(&device, ip(a), now);
                    if let Some(at) = find(&list, &device, ip(a)) && list[at].expires > now {
                        (list[at].confirmed, list[at].expires) = (now, now + ageing);
                    }
                    prop_assert_eq!(known(&all), before);
                }
                Step::Age => {
                    let changed = all.age(now);
                    list.retain(|row| row.expires > now);
                    prop_assert_eq!(changed, known(&all) != before);
                }
                Step::Ageing(new) => {
                    ageing = new;
                    all.set_ageing(new, now);
                    for row in &mut list {
                        row.expires = row.expires.min(now + new);
                    }
                }
                Step::Flush(d) => {
                    let device = (d < 2).then(|| device(d));
                    let changed = all.flush(device.as_deref());
                    list.retain(|row| device.as_ref().is_some_and(|name| *name != row.device));
                    prop_assert_eq!(changed, known(&all) != before);
                }
            }
            let mut wanted: Vec<_> = list
                .iter()
                .map(|row| (row.device.clone(), row.address, row.mac, row.confirmed, row.expires))
                .collect();
            wanted.sort();
            let got: Vec<_> = all
                .iter()
                .map(|n| (n.device, n.address, n.mac, n.confirmed_ms, n.expires_ms))
                .collect();
            prop_assert_eq!(got, wanted);
        }
    }
}

/// Unsolicited neighbours take at most half of the places, and displace nobody.
#[test]
fn those_overheard_drive_nobody_out() {
    let mut all = Neighbours::with_limit(8);
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    for last in 0..3 {
        assert!(all.learn("br0", address(last), [2, 0, 0, 0, 0, last], 0));
    }
    let heard = (10..30)
        .filter(|last| all.overhear("br0", address(*last), [4; 6], 1))
        .count();
    assert_eq!((heard, all.len()), (1, 4));
    // A known neighbour may announce another MAC address.
    assert!(all.overhear("br0", address(0), [6; 6], 2));
    assert_eq!(all.mac("br0", address(0), 2), Some([6; 6]));
    // Solicited neighbours get the other half, and more.
    for last in 100..110 {
        assert!(all.learn("br0", address(last), [8; 6], 3));
    }
    assert_eq!(all.len(), 8);
}
