//! Tests with a server that answers as in RFC 7047, and refuses what a test tells it to.

use super::*;
use crate::config::writeback::InterfaceState;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Decides on a single value; returns the RFC 7047 error of a refusal.
type Judge = Box<dyn Fn(&str, u128, &str, &Value) -> Option<&'static str>>;
/// Decides on the contents that a transaction would leave.
type Auditor = Box<dyn Fn(&Contents) -> Option<&'static str>>;
/// Values by table, row and column.
type Contents = BTreeMap<(String, u128, String), Value>;

struct Server {
    judge: Judge,
    /// Check at the commit, after all operations.
    at_commit: Auditor,
    contents: Contents,
    /// For each transaction its time, the number of its operations without that for the lock, and
    /// whether it took effect.
    transactions: Vec<(Instant, usize, bool)>,
    /// All refusals that were reported.
    told: Vec<Refusal>,
}

impl Server {
    fn new(judge: impl Fn(&str, u128, &str, &Value) -> Option<&'static str> + 'static) -> Server {
        Server {
            judge: Box::new(judge),
            at_commit: Box::new(|_| None),
            contents: Contents::new(),
            transactions: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Answers a transaction: a result for each operation up to the one that fails, which gets an
    /// error, and null for those behind it.
    fn answer(&mut self, transaction: &Transaction) -> Value {
        let params = transaction.to_params("D");
        let (mut results, mut contents) = (vec![json!({})], self.contents.clone());
        for operation in &params[2..] {
            let (table, row) = (&operation["table"], &operation["where"][0][2][1]);
            let (table, row) = (table.as_str().unwrap(), row.as_str().unwrap());
            let row: Uuid = row.parse().unwrap();
            for (column, value) in operation["row"].as_object().unwrap() {
                if let Some(word) = (self.judge)(table, row.0, column, value) {
                    results.push(json!({"error": word, "details": format!("not {value}")}));
                    results.resize(params.len() - 1, Value::Null);
                    return Value::Array(results);
                }
                contents.insert((table.into(), row.0, column.clone()), value.clone());
            }
            results.push(json!({"count": 1}));
        }
        match (self.at_commit)(&contents) {
            Some(word) => results.push(json!({"error": word})),
            None => self.contents = contents,
        }
        Value::Array(results)
    }

    /// Runs one turn at this time. Returns how many transactions it took.
    fn take(&mut self, writeback: &mut Writeback, values: Values, now: Instant) -> usize {
        let mut turn = writeback.turn(values, |_, _| true, now);
        let before = self.transactions.len();
        while let Some(pending) = turn.next(writeback, now) {
            let operations = pending.transaction.len() - 1;
            let answer = self.answer(&pending.transaction);
            let outcome = pending.transaction.outcome(&answer);
            self.transactions.push((now, operations, outcome.is_ok()));
            match outcome {
                Ok(_) => turn.accepted(writeback, pending),
                Err(refused) => match turn.refused(writeback, pending, &refused, now) {
                    Blame::Values => {}
                    Blame::News(refusal) => self.told.push(refusal),
                    Blame::Nothing => panic!("{refused}"),
                },
            }
        }
        let count = self.transactions.len() - before;
        assert!(count <= TRIES_MAX as usize);
        count
    }

    fn has(&self, table: &str, row: u128, column: &str) -> Option<&Value> {
        self.contents.get(&(table.into(), row, column.into()))
    }
}

const ROOT: Uuid = Uuid(u128::MAX);

fn interface(number: u16) -> InterfaceState {
    InterfaceState {
        ofport: Some(number),
        mtu: Some(1500),
        link_resets: Some(3),
        ..InterfaceState::default()
    }
}

/// Returns a batch about `count` interfaces, each of which a test may change.
fn say(
    writeback: &Writeback,
    count: u16,
    cur_cfg: i64,
    change: impl Fn(u16, &mut InterfaceState),
) -> Values {
    let mut batch = writeback.begin();
    for number in 1..=count {
        let mut state = interface(number);
        change(number, &mut state);
        batch.interface(Uuid(number.into()), &state);
    }
    batch.applied(ROOT, cur_cfg);
    batch.finish()
}

/// A server that refuses MTUs above 9000.
fn small_mtu() -> Server {
    Server::new(|_, _, column, value| {
        let is_large = column == "mtu" && value.as_u64() > Some(9000);
        is_large.then_some("constraint violation")
    })
}

#[test]
fn one_value_that_is_refused_waits_and_nothing_else_does() {
    let (mut server, mut writeback, start) = (small_mtu(), Writeback::default(), Instant::now());
    let huge = |number, state: &mut InterfaceState| {
        if number == 40 {
            state.mtu = Some(9100);
        }
    };
    let values = say(&writeback, 100, 7, huge);
    // All at once; what tools wait for; the rest, with the bad row in one and in several
    // operations; MTUs of other rows, more and more at a time.
    let count = server.take(&mut writeback, values, start);
    assert!(count <= 4 + 7, "{count}");
    let happened: Vec<bool> = server.transactions.iter().map(|(_, _, did)| *did).collect();
    assert_eq!(happened[..4], [false, true, false, true]);
    assert_eq!(
        server.has("Open_vSwitch", ROOT.0, "cur_cfg"),
        Some(&json!(7))
    );
    for number in 1..=100_u128 {
        let mtu = (number != 40).then(|| json!(1500));
        assert_eq!(
            server.has("Interface", number, "mtu"),
            mtu.as_ref(),
            "{number}"
        );
        assert_eq!(
            server.has("Interface", number, "link_resets"),
            Some(&json!(3))
        );
        assert_eq!(
            server.has("Interface", number, "ofport"),
            Some(&json!(number as u64))
        );
    }
    let refusal = Refusal {
        table: "Interface",
        row: Uuid(40),
        column: "mtu",
        reason: "constraint violation: not 9100".into(),
    };
    assert_eq!(server.told, [refusal]);
    // Later changes are not held up, and take one transaction.
    let count = server.transactions.len();
    let values = say(&writeback, 100, 8, |number, state| {
        huge(number, state);
        state.link_resets = Some(4);
    });
    assert_eq!(server.take(&mut writeback, values, start), 1);
    assert!(server.transactions[count].2);
    assert_eq!(server.has("Interface", 40, "link_resets"), Some(&json!(4)));
}

/// One hour with turns whenever they are due, and every half second for something else.
#[test]
fn refused_values_are_retried_with_backoff_and_at_once_when_they_change() {
    let (mut server, mut writeback, start) = (small_mtu(), Writeback::default(), Instant::now());
    let mut tried = Vec::new();
    for turn in 0..7200_u32 {
        let now = start + turn * Duration::from_millis(500);
        let values = say(&writeback, 2, i64::from(turn), |number, state| {
            state.link_resets = Some(turn.into());
            if number == 2 {
                state.mtu = Some(9100);
            }
        });
        let before = server.transactions.len();
        server.take(&mut writeback, values, now);
        let failed = server.transactions[before..]
            .iter()
            .filter(|(.., did)| !did);
        tried.extend(failed.map(|_| turn));
        assert_eq!(
            server.has("Open_vSwitch", ROOT.0, "cur_cfg"),
            Some(&json!(turn))
        );
        assert_eq!(
            server.has("Interface", 2, "link_resets"),
            Some(&json!(turn))
        );
    }
    // Once with its row, once alone; then after 0.5 s, 1 s, 2 s and so on up to a minute.
    let first: Vec<u32> = vec![0, 0, 1, 3, 7, 15, 31, 63, 127, 247, 367, 487];
    assert_eq!(tried[..first.len()], first);
    assert_eq!(tried.len(), first.len() + (7199 - 487) / 120);
    assert_eq!(server.told.len(), 1);
    let again = writeback.again().unwrap();
    assert!(again > start + Duration::from_secs(3600));

    // A change is tried at once: one that is refused again, one that is accepted, and back.
    let now = start + Duration::from_secs(3600);
    for (mtu, count) in [(9200, 1), (9100, 1), (9000, 1), (9000, 0), (9100, 1)] {
        let values = say(&writeback, 2, 7199, |number, state| {
            state.link_resets = Some(7199);
            if number == 2 {
                state.mtu = Some(mtu);
            }
        });
        assert_eq!(server.take(&mut writeback, values, now), count, "{mtu}");
    }
    assert_eq!(server.has("Interface", 2, "mtu"), Some(&json!(9000)));
    assert_eq!(server.told.len(), 1, "that it is refused is known");
    assert_eq!(writeback.again(), Some(now + FIRST_WAIT));
    // A value that the database holds already is not written again.
    let values = say(&writeback, 2, 7199, |number, state| {
        state.link_resets = Some(7199);
        if number == 2 {
            state.mtu = Some(9000);
        }
    });
    assert_eq!(server.take(&mut writeback, values, now), 0);
    assert_eq!(writeback.again(), None);
}

#[test]
fn a_column_that_is_refused_in_many_rows_holds_up_no_other() {
    let (mut server, mut writeback, start) = (small_mtu(), Writeback::default(), Instant::now());
    let mostly_huge = |number: u16, state: &mut InterfaceState| {
        if !number.is_multiple_of(4) {
            state.mtu = Some(9100);
        }
    };
    let values = say(&writeback, 1000, 7, mostly_huge);
    server.take(&mut writeback, values, start);
    assert_eq!(
        server.has("Open_vSwitch", ROOT.0, "cur_cfg"),
        Some(&json!(7))
    );
    for number in 1..=1000 {
        assert!(server.has("Interface", number, "link_resets").is_some());
    }
    // Good values are written in the end: each turn tries as many as it may, and turns come every
    // half second.
    let mut now = start;
    let good = |server: &Server| {
        let of = |number: &u128| server.has("Interface", *number, "mtu").is_some();
        (1..=1000_u128).filter(of).count()
    };
    let mut turns = 0;
    while good(&server) < 250 {
        let again = writeback.again().unwrap();
        assert!(again >= now + PAUSE, "turns do not follow at once");
        now = again;
        let values = say(&writeback, 1000, 7, mostly_huge);
        server.take(&mut writeback, values, now);
        turns += 1;
        assert!(turns < 200, "{} of 250", good(&server));
    }
    assert_eq!(server.told.len(), TOLD_MAX, "the log has an end");
    // Rows that are gone are forgotten.
    writeback.retain(&BTreeSet::from([ROOT]));
    assert_eq!(writeback.again(), None);
    assert!(writeback.holds.told.is_empty());
}

#[test]
fn numbers_of_other_ports_come_before_the_sign_that_they_are_there() {
    let mut server = Server::new(|_, row, column, _| {
        (column == "ofport" && row % 3 == 1).then_some("constraint violation")
    });
    let (mut writeback, mut now) = (Writeback::default(), Instant::now());
    // The server refuses at the commit.
    server.at_commit = Box::new(|contents| {
        let has = |column: &str, row: u128| {
            let table = if row == ROOT.0 {
                "Open_vSwitch"
            } else {
                "Interface"
            };
            contents.contains_key(&(table.into(), row, column.into()))
        };
        let ready = (1..=100).all(|row| row % 3 == 1 || has("ofport", row));
        assert!(ready || !has("cur_cfg", ROOT.0), "too early");
        None
    });
    let mut turns = 0;
    while server.has("Open_vSwitch", ROOT.0, "cur_cfg").is_none() {
        let values = say(&writeback, 100, 7, |_, _| {});
        server.take(&mut writeback, values, now);
        assert_eq!(server.has("Interface", 100, "mtu"), Some(&json!(1500)));
        now = writeback.again().unwrap();
        turns += 1;
        assert!(turns < 50);
    }
}

#[test]
fn values_refused_at_commit_are_found() {
    // Two rows may not have the same MTU, unless it is 1500: an index.
    let mut server = Server::new(|_, _, _, _| None);
    server.at_commit = Box::new(|contents| {
        let mtus = contents
            .iter()
            .filter(|((_, _, column), _)| column == "mtu");
        let jumbo = mtus.filter(|(_, value)| **value == json!(9000));
        (jumbo.count() > 1).then_some("constraint violation")
    });
    let (mut writeback, mut now) = (Writeback::default(), Instant::now());
    let jumbo = |number, state: &mut InterfaceState| {
        if [30, 60].contains(&number) {
            state.mtu = Some(9000);
        }
    };
    let values = say(&writeback, 100, 7, jumbo);
    server.take(&mut writeback, values, now);
    assert_eq!(
        server.has("Open_vSwitch", ROOT.0, "cur_cfg"),
        Some(&json!(7))
    );
    let mut turns = 0;
    while server.told.is_empty() || writeback.holds.held.len() > 1 {
        now = writeback.again().unwrap();
        let values = say(&writeback, 100, 7, jumbo);
        server.take(&mut writeback, values, now);
        turns += 1;
        assert!(turns < 20);
    }
    let told: Vec<_> = (server.told.iter())
        .map(|refusal| (refusal.row, refusal.column, refusal.reason.as_str()))
        .collect();
    assert_eq!(told, [(Uuid(60), "mtu", "constraint violation")]);
    assert_eq!(server.has("Interface", 30, "mtu"), Some(&json!(9000)));
    assert_eq!(server.has("Interface", 99, "link_resets"), Some(&json!(3)));
}

#[test]
fn columns_that_the_schema_has_not_are_not_sent_and_told_once() {
    let (mut server, mut writeback) = (small_mtu(), Writeback::default());
    for told in [&[("Interface", "link_resets")][..], &[]] {
        let (values, now) = (say(&writeback, 3, 7, |_, _| {}), Instant::now());
        let knows = |table: &str, column: &str| (table, column) != ("Interface", "link_resets");
        let mut turn = writeback.turn(values, knows, now);
        assert_eq!(turn.lacking, told);
        while let Some(pending) = turn.next(&mut writeback, now) {
            let answer = server.answer(&pending.transaction);
            pending.transaction.outcome(&answer).unwrap();
            turn.accepted(&mut writeback, pending);
        }
    }
    assert_eq!(server.has("Interface", 1, "mtu"), Some(&json!(1500)));
    assert_eq!(server.has("Interface", 1, "link_resets"), None);
    assert_eq!(writeback.again(), None);
}

#[test]
fn failures_that_are_no_values_fault_hold_nothing() {
    let (mut writeback, now) = (Writeback::default(), Instant::now());
    let failures = [
        json!([{"error": "not owner"}, null, null]),
        json!([{}, {}, {}, {"error": "resources exhausted"}]),
        json!([{}, {"error": "not allowed", "details": "read only"}, null]),
        json!([{}, {}, {}, {"error": "I/O error", "details": "full"}]),
        json!([]),
        json!("nonsense"),
        json!([{}, {}, {}, {}, {}, {}, {"error": "what"}]),
    ];
    for answer in failures {
        let values = say(&writeback, 1, 7, |_, _| {});
        let mut turn = writeback.turn(values, |_, _| true, now);
        let pending = turn.next(&mut writeback, now).unwrap();
        let refused = pending.transaction.outcome(&answer).unwrap_err();
        let blame = turn.refused(&mut writeback, pending, &refused, now);
        assert_eq!(blame, Blame::Nothing, "{answer}");
        assert_eq!(writeback.again(), None);
    }
}

/// The server refuses every counter, so each new count is likely to be refused like the last one.
#[test]
fn counters_that_are_refused_are_tried_seldom_although_they_change() {
    let (mut writeback, start) = (Writeback::default(), Instant::now());
    let mut server =
        Server::new(|_, _, column, _| (column == "statistics").then_some("constraint violation"));
    for second in 0..600 {
        let mut batch = writeback.begin();
        batch.interface_statistics(Uuid(1), [("rx_packets", second)]);
        let values = batch.finish();
        server.take(&mut writeback, values, start + Duration::from_secs(second));
    }
    let tried = server.transactions.len();
    assert!((10..30).contains(&tried), "{tried}");
    assert_eq!(server.told.len(), 1);
}

/// A transaction that was not answered in time may still take effect, so the database may no longer
/// hold the previous values.
#[test]
fn values_of_an_unanswered_transaction_are_written_again() {
    let (mut writeback, now) = (Writeback::default(), Instant::now());
    let values = say(&writeback, 1, 7, |_, _| {});
    small_mtu().take(&mut writeback, values, now);
    let values = say(&writeback, 1, 7, |_, state| state.link_resets = Some(4));
    let mut turn = writeback.turn(values, |_, _| true, now);
    let pending = turn.next(&mut writeback, now).unwrap();
    writeback.doubt(&pending);
    let values = say(&writeback, 1, 7, |_, _| {});
    let mut turn = writeback.turn(values, |_, _| true, now);
    let pending = turn.next(&mut writeback, now).unwrap();
    let columns: Vec<_> = pending.cells().map(|((_, _, column), _)| *column).collect();
    assert_eq!(columns, ["link_resets"]);
}

proptest! {
    /// Whatever a server refuses, in the end it has everything else, and it never gets `cur_cfg`
    /// before the port numbers and errors that it accepts.
    #[test]
    fn everything_but_refused_values_is_written(
        refused in prop::collection::btree_set((0..40_u16, 0..5_usize), 0..60),
        refuses_sign in prop::bool::weighted(0.1),
        steps in prop::collection::vec((1..40_u16, 0..3_u64, 0..2000_u64), 1..8),
    ) {
        const COLUMNS: [&str; 5] = ["ofport", "error", "mtu", "link_resets", "admin_state"];
        let is_refused = {
            let refused = refused.clone();
            move |row: u128, column: &str| {
                let at = COLUMNS.iter().position(|name| *name == column);
                at.is_some_and(|at| refused.contains(&(row as u16, at)))
                    || refuses_sign && column == "cur_cfg"
            }
        };
        let judge = is_refused.clone();
        let mut server = Server::new(move |_, row, column, _| judge(row, column).then_some("constraint violation"));
        let (mut writeback, mut now) = (Writeback::default(), Instant::now());
        let say = |writeback: &Writeback, count, resets, sign| say(writeback, count, sign, |_, state| {
            state.link_resets = Some(resets);
            state.ofport = Some(100 + sign as u16);
        });
        let is_there = |server: &Server, count: u16, column: &str, value: Value| {
            (1..=count.into()).all(|row| {
                is_refused(row, column) || server.has("Interface", row, column) == Some(&value)
            })
        };
        let mut last = (0, 0, 0);
        for (sign, (count, resets, pause)) in (1..).zip(steps) {
            last = (count, resets, sign);
            let values = say(&writeback, count, resets, sign);
            server.take(&mut writeback, values, now);
            now += Duration::from_millis(pause);
            if server.has("Open_vSwitch", ROOT.0, "cur_cfg") == Some(&json!(sign)) {
                prop_assert!(is_there(&server, count, "ofport", json!(100 + sign)));
            }
        }
        let (count, resets, sign) = last;
        for _ in 0..60 {
            let values = say(&writeback, count, resets, sign);
            server.take(&mut writeback, values, now);
            now += PAUSE;
        }
        prop_assert!(is_there(&server, count, "ofport", json!(100 + sign)));
        prop_assert!(is_there(&server, count, "link_resets", json!(resets)));
        prop_assert!(is_there(&server, count, "mtu", json!(1500)));
        let cur_cfg = (!refuses_sign).then(|| json!(sign));
        prop_assert_eq!(server.has("Open_vSwitch", ROOT.0, "cur_cfg"), cur_cfg.as_ref());
        let rows = 1..=u128::from(count);
        let held = rows.flat_map(|row| COLUMNS.map(|column| is_refused(row, column)));
        let held = held.filter(|is| *is).count() + usize::from(refuses_sign);
        let now_held = (writeback.holds.held.keys())
            .filter(|(table, row, _)| *table != "Interface" || row.0 <= count.into());
        prop_assert_eq!(now_held.count(), held);
    }
}
