use super::*;
use packet::HeapFrame;
use packet::rss::Kinds;

const ENTRIES: usize = 8;
const QUEUES: usize = 3;
/// Frames that a queue of the model holds.
const CAPACITY: usize = 16;

/// A device whose table is in memory, and which records each call: what a driver would be told. No
/// machine of the tests has a card with such a table.
#[derive(Clone, Default)]
struct Recorder {
    calls: Arc<Mutex<Vec<Vec<u16>>>>,
    refuses: Arc<AtomicBool>,
}

impl Write for Recorder {
    fn write(&mut self, queues: &[u16]) -> Result<(), i32> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(-libc::ENOTSUP);
        }
        lock(&self.calls).push(queues.to_vec());
        Ok(())
    }
}

fn rss() -> Rss {
    Rss::new(&[], Kinds::default())
}

/// A frame of an entry: the model's hash is its first byte.
fn frame(entry: usize, number: u32) -> HeapFrame {
    let mut bytes = vec![entry as u8];
    bytes.extend(number.to_be_bytes());
    HeapFrame::new(&bytes)
}

fn read(frame: &HeapFrame) -> (usize, u32) {
    let bytes = frame.head();
    let number = bytes[1..5].try_into().map(u32::from_be_bytes);
    (usize::from(bytes[0]), number.unwrap_or_default())
}

fn hash(frame: &HeapFrame) -> Option<u32> {
    Some(u32::from(frame.head()[0]))
}

/// A step that the model leaves out, and which the real thing must therefore need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// New queues do not keep what comes early.
    Keeping,
    /// Nobody waits until old queues have been emptied.
    Leaving,
    /// Packets on their way to an old queue have no time to arrive.
    Settling,
    /// A queue that is looked at again counts as finished with what it has given.
    Finishing,
}

/// Where the thread that moves entries is.
enum Mover {
    Rests,
    Begun(u32, Moves),
    Written(u32, Moves, Vec<u16>),
    Asked(u32, Moves, Vec<u16>),
    Ended(u32, Moves),
}

/// A card, workers and the thread that moves entries, one step at a time.
struct Model {
    table: Arc<Table>,
    device: Recorder,
    flying: VecDeque<(usize, HeapFrame)>,
    rings: [VecDeque<HeapFrame>; QUEUES],
    ends: Vec<Receiver<HeapFrame>>,
    /// What each worker has received and not finished.
    hands: [Vec<HeapFrame>; QUEUES],
    mover: Mover,
    without: Without,
    sent: [u32; ENTRIES],
    /// The number of each entry's next frame.
    next: [u32; ENTRIES],
    disorder: u32,
    random: u64,
}

impl Model {
    fn new(seed: u64, without: Without) -> Model {
        let first: Vec<u16> = (0..ENTRIES).map(|at| (at % QUEUES) as u16).collect();
        let device = Recorder::default();
        lock(&device.calls).push(first.clone());
        let table = Table::new(&first, QUEUES as u16, rss(), Box::new(device.clone()));
        let table = Arc::new(table);
        let end = |queue| Receiver::new(&table, queue, CAPACITY as u16);
        Model {
            ends: (0..QUEUES as u16).map(end).collect(),
            table,
            device,
            flying: VecDeque::new(),
            rings: Default::default(),
            hands: Default::default(),
            mover: Mover::Rests,
            without,
            sent: [0; ENTRIES],
            next: [0; ENTRIES],
            disorder: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % limit
    }

    fn send(&mut self) {
        let entry = self.below(ENTRIES);
        let queue = lock(&self.device.calls)
            .last()
            .map_or(0, |table| table[entry]);
        let queue = usize::from(queue);
        let waiting = self.flying.iter().filter(|(to, _)| *to == queue).count();
        if waiting + self.rings[queue].len() < CAPACITY {
            self.flying
                .push_back((queue, frame(entry, self.sent[entry])));
            self.sent[entry] += 1;
        }
    }

    fn land(&mut self) {
        if let Some((queue, frame)) = self.flying.pop_front() {
            self.rings[queue].push_back(frame);
        }
    }

    fn finish(&mut self, worker: usize) {
        for (entry, number) in self.hands[worker].drain(..).map(|frame| read(&frame)) {
            self.disorder += u32::from(number != self.next[entry]);
            self.next[entry] = number + 1;
        }
    }

    fn receive(&mut self, worker: usize) {
        let most = 1 + self.below(6);
        let (end, ring) = (&mut self.ends[worker], &mut self.rings[worker]);
        let out = &mut self.hands[worker];
        let first = out.len();
        let finished = first == 0 || self.without == Without::Finishing;
        let count = match end.before(most, finished, out) {
            Some(count) => count,
            None => {
                out.extend(ring.drain(..most.min(ring.len())));
                end.after(out, first, most, hash)
            }
        };
        assert_eq!(count, out.len() - first);
        assert!(count <= most);
    }

    fn move_on(&mut self) {
        self.mover = match std::mem::replace(&mut self.mover, Mover::Rests) {
            Mover::Rests => {
                let count = 1 + self.below(4);
                let mut moves = Moves::new();
                for _ in 0..count {
                    let entry = self.below(ENTRIES) as u16;
                    let queue = self.below(QUEUES) as u16;
                    if !moves.iter().any(|(other, _)| *other == entry) {
                        moves.push((entry, queue));
                    }
                }
                let number = match self.without {
                    Without::Keeping => {
                        self.table.changed();
                        let number = self.table.number();
                        self.table.latest.store(number, Ordering::Relaxed);
                        number
                    }
                    _ => self.table.begin(&moves),
                };
                Mover::Begun(number, moves)
            }
            Mover::Begun(number, moves) => {
                let old = self.table.write(&moves).expect("the device takes it");
                Mover::Written(number, moves, old)
            }
            Mover::Written(number, moves, old) => {
                while self.without != Without::Settling && !self.flying.is_empty() {
                    self.land();
                }
                self.table.ask(number, &old);
                Mover::Asked(number, moves, old)
            }
            Mover::Asked(number, moves, old) => {
                if self.without == Without::Leaving || self.table.are_left(number, &old) {
                    self.table.end(number, &moves, &old);
                    Mover::Ended(number, moves)
                } else {
                    Mover::Asked(number, moves, old)
                }
            }
            Mover::Ended(number, moves) => match self.table.are_ended(number, &moves) {
                true => Mover::Rests,
                false => Mover::Ended(number, moves),
            },
        };
    }

    fn step(&mut self, sends: bool) {
        match self.below(10) {
            0..3 if sends => self.send(),
            0..5 => self.land(),
            5 => self.move_on(),
            _ => {
                let worker = self.below(QUEUES);
                // Sometimes a worker receives more before it processes what it has.
                match self.hands[worker].is_empty() || self.below(4) == 0 {
                    true => self.receive(worker),
                    false => self.finish(worker),
                }
            }
        }
    }

    /// Runs, and returns the number of frames that came out of order.
    fn run(mut self) -> u32 {
        for _ in 0..600 {
            self.step(true);
        }
        for _ in 0..20_000 {
            let done = self.next == self.sent && matches!(self.mover, Mover::Rests);
            if done || self.disorder > 0 {
                break;
            }
            self.step(false);
        }
        if self.disorder == 0 {
            assert_eq!(self.next, self.sent, "all frames arrive");
            assert_eq!(self.table.counts().parked, 0);
            assert!(self.table.counts().moved > 0);
            let hurried = self.table.counts().hurried > 0;
            assert!(!hurried || self.without == Without::Leaving);
        }
        self.disorder
    }
}

/// In whatever order a card, three workers and the thread take their steps, no frame is reordered
/// or lost; and each of the steps is needed for that.
#[test]
fn moved_entries_keep_their_packets_in_order() {
    for seed in 0..3_000 {
        assert_eq!(Model::new(seed, Without::Nothing).run(), 0, "seed {seed}");
    }
    for without in [
        Without::Keeping,
        Without::Leaving,
        Without::Settling,
        Without::Finishing,
    ] {
        let reordered = (0..3_000).any(|seed| Model::new(seed, without).run() > 0);
        assert!(reordered, "{without:?} makes no difference");
    }
}

/// Receives all of these frames by a queue, and returns what comes out until nothing does.
fn pass(end: &mut Receiver<HeapFrame>, frames: Vec<HeapFrame>) -> Vec<HeapFrame> {
    let mut waiting: VecDeque<HeapFrame> = frames.into();
    let mut all = Vec::new();
    loop {
        let mut out = Vec::new();
        let count = match end.before(64, true, &mut out) {
            Some(count) => count,
            None => {
                out.extend(waiting.drain(..waiting.len().min(64)));
                end.after(&mut out, 0, 64, hash)
            }
        };
        all.append(&mut out);
        if count == 0 && waiting.is_empty() {
            return all;
        }
    }
}

#[test]
fn frames_beyond_what_is_kept_come_in_order_and_the_move_counts_as_hurried() {
    let table = Arc::new(Table::new(&[0, 0], 2, rss(), Box::new(Recorder::default())));
    let mut end = Receiver::new(&table, 1, 64);
    let moves = [(1, 1)];
    let number = table.begin(&moves);
    let old = table.write(&moves).expect("the device takes it");
    table.ask(number, &old);
    let some = |from: u32, to: u32| (from..to).map(|number| frame(1, number)).collect();
    let most = PARKED_MOST as u32;
    assert!(pass(&mut end, some(0, most - 1)).is_empty());
    assert_eq!(table.counts().parked, u64::from(most) - 1);
    let came = pass(&mut end, some(most - 1, most + 200));
    let numbers: Vec<u32> = came.iter().map(|frame| read(frame).1).collect();
    assert!(numbers.iter().copied().eq(0..most + 200));
    assert_eq!(table.counts().parked, 0);
    // The old queue has not been emptied either.
    table.end(number, &moves, &old);
    let counts = table.counts();
    assert_eq!((counts.moved, counts.hurried), (1, 1));
}

#[test]
fn packets_are_counted_by_entry_while_somebody_watches() {
    let table = Arc::new(Table::new(
        &[0; ENTRIES],
        1,
        rss(),
        Box::new(Recorder::default()),
    ));
    let mut end = Receiver::new(&table, 0, 64);
    let count = |end: &mut Receiver<HeapFrame>| {
        for burst in 0..u64::from(SAMPLE) * 10 {
            let frames = vec![frame(3, 0), frame(3, 1), frame((burst % 2) as usize, 2)];
            assert_eq!(pass(end, frames).len(), 3);
            assert!(pass(end, Vec::new()).is_empty());
        }
    };
    count(&mut end);
    assert_eq!(table.packets(3), 0);
    table.watch(true);
    count(&mut end);
    assert_eq!(table.packets(3), u64::from(SAMPLE) * 20);
    table.watch(false);
    count(&mut end);
    assert_eq!(table.packets(3), u64::from(SAMPLE) * 20);
}

fn wait(table: &Table) {
    let end = Instant::now() + Duration::from_secs(60);
    while table.moving.load(Ordering::Acquire) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!table.moving.load(Ordering::Acquire));
}

#[test]
fn a_device_is_told_of_moves_and_its_refusals_are_counted() {
    let device = Recorder::default();
    let table = Table::start("card", &[0, 1, 0, 1], 2, rss(), Box::new(device.clone()));
    let table = table.expect("a thread");
    let calls = || lock(&device.calls).clone();
    for refused in [&[(4, 0)][..], &[(0, 2)], &[(0, 1); MOVES_MOST + 1]] {
        assert!(!table.begin_moves(refused), "{refused:?}");
    }
    assert!(table.begin_moves(&[(0, 1), (3, 0)]));
    assert!(table.moving.load(Ordering::Acquire) || !calls().is_empty());
    wait(&table);
    assert_eq!(calls(), [vec![1, 1, 0, 0]]);
    assert_eq!((table.queue(0), table.queue(3)), (1, 0));
    // Nobody looked at the old queues, so it took until the limit.
    let counts = table.counts();
    assert_eq!((counts.moved, counts.hurried, counts.failed), (2, 2, 0));

    // A device that is started anew has its table again.
    table.hold().rewrite();
    assert_eq!(calls(), [vec![1, 1, 0, 0], vec![1, 1, 0, 0]]);

    device.refuses.store(true, Ordering::Relaxed);
    assert!(table.begin_moves(&[(0, 0)]));
    wait(&table);
    assert_eq!(table.queue(0), 1, "as it was");
    assert_eq!(table.counts().failed, 1);
    let mut end = Receiver::new(&table, 0, 64);
    assert_eq!(
        pass(&mut end, vec![frame(0, 0)]).len(),
        1,
        "nothing is kept"
    );

    table.hold().close();
    assert!(!table.begin_moves(&[(0, 0)]));
    assert!(!table.moving.load(Ordering::Acquire));
}
