//! Flows that a card spreads over several workers' queues by its indirection table.

use crate::support::*;
use datapath::{PortKind, PortSettings, PortSpec, SteeringMode};
use packet::HeapFrame;
use packet::io::{BURST, Indirection, IndirectionCounts, RxQueue};
use program::actions::Op;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

const ENTRIES: usize = 8;

/// A card in memory, by whose queues frames of each entry come without end: it stands for a driver,
/// and records what it is told.
struct Card {
    at: [AtomicU16; ENTRIES],
    packets: [AtomicU64; ENTRIES],
    moved: AtomicU64,
    watched: AtomicBool,
    sends: AtomicBool,
}

impl Card {
    /// All entries lead to the first queue.
    fn new() -> Arc<Card> {
        Arc::new(Card {
            at: Default::default(),
            packets: Default::default(),
            moved: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            sends: AtomicBool::new(true),
        })
    }

    /// Returns the number of entries that lead to each of two queues.
    fn entries(&self) -> [usize; 2] {
        let second = (0..ENTRIES).filter(|entry| self.queue(*entry) == 1).count();
        [ENTRIES - second, second]
    }
}

impl Indirection for Card {
    fn entries(&self) -> usize {
        ENTRIES
    }

    fn queue(&self, entry: usize) -> u16 {
        self.at[entry].load(Ordering::SeqCst)
    }

    fn watch(&self, on: bool) {
        self.watched.store(on, Ordering::SeqCst);
    }

    fn packets(&self, entry: usize) -> u64 {
        self.packets[entry].load(Ordering::SeqCst)
    }

    fn begin_moves(&self, moves: &[(u16, u16)]) -> bool {
        for (entry, queue) in moves {
            self.at[usize::from(*entry)].store(*queue, Ordering::SeqCst);
        }
        self.moved.fetch_add(moves.len() as u64, Ordering::SeqCst);
        true
    }

    fn counts(&self) -> IndirectionCounts {
        IndirectionCounts {
            moved: self.moved.load(Ordering::SeqCst),
            ..IndirectionCounts::default()
        }
    }
}

struct Queue {
    card: Arc<Card>,
    index: u16,
}

impl RxQueue<HeapFrame> for Queue {
    fn receive(&mut self, out: &mut Vec<HeapFrame>) -> usize {
        if !self.card.sends.load(Ordering::SeqCst) {
            return 0;
        }
        let here: Vec<usize> = (0..ENTRIES)
            .filter(|entry| self.card.queue(*entry) == self.index)
            .collect();
        let each = BURST / ENTRIES;
        for entry in &here {
            for number in 0..each as u64 {
                out.push(frame(mac(250), mac(*entry as u8), number));
            }
            self.card.packets[*entry].fetch_add(each as u64, Ordering::SeqCst);
        }
        here.len() * each
    }
}

/// Adds a port with a card's two queues.
fn add_card(switch: &mut Switch, bridge: datapath::BridgeId, card: &Arc<Card>, name: &str) {
    let (wire, queue) = (Wire::new(true), |index| {
        let card = Arc::clone(card);
        Box::new(Queue { card, index }) as Box<dyn RxQueue<HeapFrame>>
    });
    let spec = PortSpec {
        name: name.to_owned(),
        bridge,
        number: 1,
        settings: PortSettings::default(),
        kind: PortKind::Device {
            rx: vec![queue(0), queue(1)],
            tx: Box::new(move |_| Ok(wire.tx())),
        },
    };
    let id = switch.datapath.add_port(spec).unwrap();
    let table = Arc::clone(card) as Arc<dyn Indirection>;
    switch.datapath.set_indirection(id, table).unwrap();
}

/// A worker to whose queue all flows of a card come gives some to the other one by the card's
/// table, without being asked to, and none by a ring.
#[test]
fn flows_of_a_loaded_worker_move_by_the_cards_table() {
    let mut switch = Switch::new(2);
    let bridge = switch.bridge("br0");
    let card = Card::new();
    add_card(&mut switch, bridge, &card, "card");
    let out = Wire::new(true);
    switch.port(bridge, 2, &out);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2); 4]);
    let queues = |switch: &Switch| switch.datapath.steering().cards[0].queues.clone();
    let workers: Vec<Option<usize>> = queues(&switch).iter().map(|(worker, _)| *worker).collect();
    assert_ne!(workers[0], workers[1], "each queue has a worker of its own");
    wait_until("some flows have moved", || {
        assert_eq!(switch.datapath.steer(), Ok(true));
        std::thread::sleep(switch.datapath.steering_period());
        out.take();
        card.entries()[1] > 0
    });
    let info = switch.datapath.steering();
    assert_eq!(
        (info.mode, info.effective),
        (SteeringMode::Auto, SteeringMode::Adaptive)
    );
    assert_eq!(info.cards[0].port, "card");
    assert!(info.cards[0].counts.moved > 0);
    assert!(info.workers.iter().all(|worker| worker.away == 0));
    assert!(card.watched.load(Ordering::SeqCst));
    card.sends.store(false, Ordering::SeqCst);

    // Without steering nothing is counted.
    switch.datapath.set_steering(SteeringMode::Off);
    switch.datapath.steer().unwrap();
    assert!(!card.watched.load(Ordering::SeqCst));
}

#[test]
fn entries_move_by_hand_and_those_that_do_not_exist_are_refused() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let card = Card::new();
    card.sends.store(false, Ordering::SeqCst);
    add_card(&mut switch, bridge, &card, "card");
    let plain = switch.port(bridge, 2, &Wire::new(true));
    switch.datapath.move_entries("card", 7..=7, 1).unwrap();
    assert_eq!(card.entries(), [7, 1]);
    let queues = switch.datapath.entries("card").unwrap();
    assert_eq!((queues.len(), queues[6].0, queues[7].0), (ENTRIES, 0, 1));
    assert_eq!(
        switch.datapath.steering().cards[0].queues,
        [(Some(0), 7), (Some(0), 1)]
    );
    let refused = |switch: &mut Switch, port: &str, entry, queue| {
        let moved = switch.datapath.move_entries(port, entry..=entry, queue);
        moved.unwrap_err().to_string()
    };
    assert_eq!(
        refused(&mut switch, "card", 8, 0),
        "the indirection table has no entry 8"
    );
    assert_eq!(
        refused(&mut switch, "card", 0, 2),
        "the port has no receive queue 2"
    );
    assert_eq!(
        refused(&mut switch, "nobody", 0, 0),
        datapath::Error::NoSuchPort.to_string()
    );
    let ports = switch.datapath.ports().into_iter();
    let plain = ports
        .filter(|port| port.id == plain)
        .map(|port| port.name)
        .next();
    let said = refused(&mut switch, &plain.unwrap(), 0, 0);
    assert_eq!(said, datapath::Error::NoTable.to_string());
}
