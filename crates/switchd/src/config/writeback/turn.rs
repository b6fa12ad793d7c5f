//! Writes to a server that refuses some values, because its schema is different or it enforces
//! limits that we do not.
//!
//! If one operation of a transaction is refused, none of it happens. The server names that
//! operation and does not look at those behind it (RFC 7047 section 4.1.3), so a [`Turn`] goes on
//! without refused values until the rest is written:
//!
//! * At first all changes go in one transaction, with one operation per row. After a
//!   refusal the columns that tools wait for go first, in a transaction of their own.
//! * A refused row is split into one operation per column, so that the next refusal names the
//!   column. That value is held.
//! * A server that refuses a column in one row may do so in others. These values are set aside and
//!   go alone, several per transaction: twice as many after each success; after a refusal only as
//!   many as stood before the refused one.
//! * A held value is retried alone after [`FIRST_WAIT`], and then each time after twice as long; at
//!   once when the value changes, unless it changes all the time ([`RESTLESS`]). A new schema comes
//!   with a new connection, which forgets all this.
//!
//! Columns that the schema lacks are not sent. An update of a row that is gone is not refused; it
//! updates nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use ovsdb::transaction::Refused;
use ovsdb::vswitch::LOCK;
use ovsdb::{Datum, Transaction, Uuid};

use super::{Cell, Rows, Values, Writeback};

/// How long a value is held after its first refusal; doubled after each further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest time that a value is held.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Most transactions of a turn. What is left is set aside for the next turn, which comes after
/// [`PAUSE`].
const TRIES_MAX: u32 = 16;
/// Pause between a turn that left something and the next one.
const PAUSE: Duration = Duration::from_millis(500);
/// Most refusals that are logged, so that a server cannot fill the log.
const TOLD_MAX: usize = 64;

/// A value that is written alone.
#[derive(Debug)]
struct Held {
    value: Datum,
    /// When it is tried next.
    again: Instant,
    /// How long it is held; zero when it is only set aside because the same column was refused in
    /// another row.
    wait: Duration,
    /// Whether it has never been tried alone.
    is_new: bool,
}

/// Values that are not written together with the rest.
#[derive(Debug, Default)]
pub(super) struct Holds {
    held: HashMap<Cell, Held>,
    /// Refusals that have been logged: cell and RFC 7047 error.
    told: BTreeSet<(Cell, String)>,
    /// Columns that the schema lacks.
    lacking: BTreeSet<(&'static str, &'static str)>,
    /// No held value is tried before this.
    not_before: Option<Instant>,
}

impl Holds {
    /// Forgets held values, but not which refusals have been logged.
    pub(super) fn release(&mut self) {
        self.held.clear();
        self.not_before = None;
    }

    pub(super) fn retain(&mut self, rows: &BTreeSet<Uuid>) {
        self.held.retain(|(_, uuid, _), _| rows.contains(uuid));
        self.told.retain(|((_, uuid, _), _)| rows.contains(uuid));
    }

    pub(super) fn take(&mut self, cell: &Cell) {
        self.held.remove(cell);
    }

    pub(super) fn contains(&self, cell: &Cell) -> bool {
        self.held.contains_key(cell)
    }

    /// Returns when the next held value is due.
    fn again(&self) -> Option<Instant> {
        let first = self.held.values().map(|held| held.again).min();
        first.map(|first| {
            self.not_before
                .map_or(first, |earliest| earliest.max(first))
        })
    }

    /// Returns up to `count` values that are due, those due for longest first.
    fn due(&self, count: usize, now: Instant) -> Vec<(Cell, Datum)> {
        if self.not_before.is_some_and(|earliest| now < earliest) {
            return Vec::new();
        }
        let mut due: Vec<_> = (self.held.iter())
            .filter(|(_, held)| held.again <= now)
            .collect();
        // Columns that tools wait for come first, and [`SIGN`] only behind those of them that have
        // not been tried.
        due.sort_unstable_by_key(|((table, uuid, column), held)| {
            let class = match is_outcome(column) {
                true => u8::from(*column == SIGN || !held.is_new),
                false => 2,
            };
            (class, held.again, (*table, *uuid, *column))
        });
        due.truncate(count);
        due.into_iter()
            .map(|(cell, held)| (*cell, held.value.clone()))
            .collect()
    }

    /// Sets a value aside, to be written alone as soon as possible.
    fn set_aside(&mut self, cell: Cell, value: Datum, now: Instant) {
        let held = Held {
            value,
            again: now,
            wait: Duration::ZERO,
            is_new: true,
        };
        self.held.insert(cell, held);
    }

    /// Holds a value that was refused when written alone.
    fn hold(&mut self, cell: Cell, value: Datum, now: Instant) {
        let before = self
            .held
            .get(&cell)
            .map_or(Duration::ZERO, |held| held.wait);
        let wait = (before * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
        let held = Held {
            value,
            again: now + wait,
            wait,
            is_new: false,
        };
        self.held.insert(cell, held);
    }

    /// Returns whether a refusal is to be logged: not logged before, and fewer than [`TOLD_MAX`]
    /// logged.
    fn is_news(&mut self, cell: Cell, word: &str) -> bool {
        self.told.len() < TOLD_MAX && self.told.insert((cell, word.to_owned()))
    }
}

/// Columns that change all the time: a changed value may well be refused, too.
const RESTLESS: [&str; 2] = ["statistics", "status"];

/// Errors of RFC 7047 and of ovsdb-server that no value causes, whatever operation they are
/// reported for: a server that is read-only, out of memory or disk space, or has lost its leader.
const NO_VALUES_FAULT: [&str; 6] = [
    "I/O error",
    "aborted",
    "not allowed",
    "not owner",
    "resources exhausted",
    "timed out",
];

/// The column that tools wait for before they read `ofport` and `error`.
const SIGN: &str = "cur_cfg";

/// Returns whether a column is [`SIGN`], or one that tools read once they have seen it.
fn is_outcome(column: &str) -> bool {
    matches!(column, SIGN | "ofport" | "error")
}

/// A transaction, and the values that its operations write.
#[derive(Debug)]
pub struct Pending {
    /// The transaction to send. It takes effect only while the daemon holds its lock.
    pub transaction: Transaction,
    /// What each operation writes, without the first one, which asserts the lock.
    operations: Vec<Vec<(Cell, Datum)>>,
    by_itself: bool,
}

impl Pending {
    fn of(operations: Vec<Vec<(Cell, Datum)>>, by_itself: bool) -> Pending {
        let mut transaction = Transaction::new();
        transaction.assert_lock(LOCK);
        for cells in &operations {
            let Some(((table, uuid, _), _)) = cells.first() else {
                continue;
            };
            let mut row = transaction.update(table, *uuid);
            for ((_, _, column), value) in cells {
                row = row.set(column, value.clone());
            }
        }
        Pending {
            transaction,
            operations,
            by_itself,
        }
    }

    /// Returns the values that it writes.
    pub fn cells(&self) -> impl Iterator<Item = &(Cell, Datum)> {
        self.operations.iter().flatten()
    }
}

/// A value that the server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its table.
    pub table: &'static str,
    /// Its row.
    pub row: Uuid,
    /// Its column.
    pub column: &'static str,
    /// The RFC 7047 error and the server's explanation.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal {
            table,
            row,
            column,
            reason,
        } = self;
        write!(f, "column {column} of row {row} of table {table}: {reason}")
    }
}

/// The cause of a refused transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// No value is to blame: the lock was lost, a disk is full, a cluster is electing a leader. The
    /// turn is over.
    Nothing,
    /// A value, or one of several, has been set aside or narrowed down. The turn goes on.
    Values,
    /// This value, whose refusal has not been logged yet. The turn goes on.
    News(Refusal),
}

/// The transactions that write all changes, one after the other.
#[derive(Debug)]
pub struct Turn {
    /// Rows to write, one transaction for each stage.
    stages: VecDeque<Rows>,
    /// Whether something was refused, so that what tools wait for is a stage of its own.
    is_parted: bool,
    /// Rows that are written with one operation per column.
    apart: BTreeSet<(&'static str, Uuid)>,
    /// How many set-aside values go in one transaction.
    together: usize,
    /// How many transactions are left.
    tries: u32,
    /// Columns that the schema lacks and that have not been logged yet.
    pub lacking: Vec<(&'static str, &'static str)>,
}

impl Writeback {
    /// Starts to write changed values. `knows` tells whether the schema has a column of a table.
    pub fn turn(
        &mut self,
        values: Values,
        knows: impl Fn(&str, &str) -> bool,
        now: Instant,
    ) -> Turn {
        let holds = &mut self.holds;
        let mut lacking = Vec::new();
        // The database already holds these values.
        values.settled.iter().for_each(|cell| holds.take(cell));
        let mut rows = Rows::new();
        for ((table, uuid), columns) in values.rows {
            for (column, value) in columns {
                if !knows(table, column) {
                    lacking.extend(
                        holds
                            .lacking
                            .insert((table, column))
                            .then_some((table, column)),
                    );
                    continue;
                }
                match holds.held.get_mut(&(table, uuid, column)) {
                    Some(held) if held.value != value => {
                        held.value = value;
                        if !RESTLESS.contains(&column) {
                            held.again = held.again.min(now);
                        }
                        held.is_new = true;
                    }
                    Some(_) => {}
                    None => {
                        rows.entry((table, uuid)).or_default().insert(column, value);
                    }
                }
            }
        }
        if holds.not_before.is_some_and(|earliest| earliest <= now) {
            holds.not_before = None;
        }
        let is_behind = |((_, _, column), held): (&Cell, &Held)| is_outcome(column) && held.is_new;
        let mut turn = Turn {
            stages: VecDeque::from([rows]),
            is_parted: false,
            apart: BTreeSet::new(),
            together: 1,
            tries: TRIES_MAX,
            lacking,
        };
        // [`SIGN`] must come behind what it stands for.
        if holds.held.iter().any(is_behind) {
            for (cell, value) in cells_of(turn.take(|_, column| column == SIGN)) {
                holds.set_aside(cell, value, now);
            }
        }
        turn
    }

    /// Forgets a transaction with an unknown outcome, so that its values are written again.
    pub fn doubt(&mut self, pending: &Pending) {
        for (cell, _) in pending.cells() {
            self.written.remove(cell);
        }
    }

    /// Returns when the next refused value is to be retried: a turn is due then.
    pub fn again(&self) -> Option<Instant> {
        self.holds.again()
    }

    /// Forgets held values, because there is nothing to write, or writing is impossible.
    pub fn release(&mut self) {
        self.holds.release();
    }
}

impl Turn {
    /// Returns the next transaction to send; none when the turn is over. Call [`Turn::accepted`] or
    /// [`Turn::refused`] after each.
    pub fn next(&mut self, writeback: &mut Writeback, now: Instant) -> Option<Pending> {
        while self.stages.front().is_some_and(BTreeMap::is_empty) {
            self.stages.pop_front();
        }
        if self.tries == 0 {
            let holds = &mut writeback.holds;
            for (cell, value) in self.stages.drain(..).flat_map(cells_of) {
                holds.set_aside(cell, value, now);
            }
            if holds.again().is_some_and(|again| again <= now) {
                holds.not_before = Some(now + PAUSE);
            }
            return None;
        }
        let pending = match self.stages.front() {
            Some(rows) => Pending::of(self.operations(rows), false),
            None => {
                let due = writeback.holds.due(self.together, now);
                Pending::of(due.into_iter().map(|cell| vec![cell]).collect(), true)
            }
        };
        if pending.operations.is_empty() {
            return None;
        }
        self.tries -= 1;
        Some(pending)
    }

    fn operations(&self, rows: &Rows) -> Vec<Vec<(Cell, Datum)>> {
        let mut operations = Vec::new();
        for ((table, uuid), columns) in rows {
            let cells = columns
                .iter()
                .map(|(column, value)| ((*table, *uuid, *column), value.clone()));
            match self.apart.contains(&(*table, *uuid)) {
                true => operations.extend(cells.map(|cell| vec![cell])),
                false => operations.push(cells.collect()),
            }
        }
        operations
    }

    /// Notes that the server has confirmed the transaction from [`Turn::next`].
    pub fn accepted(&mut self, writeback: &mut Writeback, pending: Pending) {
        match pending.by_itself {
            true => self.together = self.together.saturating_mul(2),
            false => drop(self.stages.pop_front()),
        }
        for (cell, value) in pending.operations.into_iter().flatten() {
            writeback.holds.take(&cell);
            writeback.written.insert(cell, value);
        }
    }

    /// Notes that the server has refused the transaction from [`Turn::next`]; returns the cause.
    pub fn refused(
        &mut self,
        writeback: &mut Writeback,
        pending: Pending,
        refused: &Refused,
        now: Instant,
    ) -> Blame {
        if NO_VALUES_FAULT.contains(&refused.error.as_str()) {
            return Blame::Nothing;
        }
        let failed = match &refused.operation {
            Some(operation) => {
                let failed = operation.index.checked_sub(1);
                match failed.filter(|&index| index < pending.operations.len()) {
                    Some(index) => Some(index),
                    None => return Blame::Nothing,
                }
            }
            // Table-wide constraints are checked at the commit, so no operation is named.
            None => match refused.error.as_str() {
                "constraint violation" | "referential integrity violation" => None,
                _ => return Blame::Nothing,
            },
        };
        let culprit = match (failed, pending.operations.as_slice()) {
            (Some(index), operations) => match operations[index].as_slice() {
                [cell] => Some(cell.clone()),
                _ => None,
            },
            (None, [cells]) if cells.len() == 1 => cells.first().cloned(),
            _ => None,
        };
        if pending.by_itself {
            // The operations before the failed one are not to blame.
            self.together = failed.unwrap_or(pending.operations.len() / 2).max(1);
        } else {
            self.part(&pending, failed, culprit.as_ref(), writeback, now);
        }
        let Some((cell, value)) = culprit else {
            return Blame::Values;
        };
        writeback.holds.hold(cell, value, now);
        if !writeback.holds.is_news(cell, &refused.error) {
            return Blame::Values;
        }
        let (table, row, column) = cell;
        let reason = match refused.details.as_str() {
            "" => refused.error.clone(),
            details => format!("{}: {details}", refused.error),
        };
        Blame::News(Refusal {
            table,
            row,
            column,
            reason,
        })
    }

    /// Narrows a refused transaction down.
    fn part(
        &mut self,
        pending: &Pending,
        failed: Option<usize>,
        culprit: Option<&(Cell, Datum)>,
        writeback: &mut Writeback,
        now: Instant,
    ) {
        let mut is_smaller = false;
        if !std::mem::replace(&mut self.is_parted, true) {
            let rest = self.take(|_, column| !is_outcome(column));
            is_smaller = !rest.is_empty() && self.stages.iter().any(|rows| !rows.is_empty());
            self.stages.push_back(rest);
        }
        let aside = match (culprit, failed) {
            (Some(((table, uuid, column), _)), _) => {
                self.take(|row, other| row == (*table, *uuid) && other == *column);
                let mut aside = self.take(|row, other| row.0 == *table && other == *column);
                if is_outcome(column) && !aside.is_empty() {
                    aside.append(&mut self.take(|_, column| column == SIGN));
                }
                aside
            }
            (None, Some(index)) => {
                let row = pending.operations[index].first();
                self.apart
                    .extend(row.map(|((table, uuid, _), _)| (*table, *uuid)));
                return;
            }
            // Any of the values may be to blame, so each goes alone, unless moving some of them to
            // another stage has narrowed it down already.
            (None, None) if is_smaller => return,
            (None, None) => {
                while self.stages.front().is_some_and(BTreeMap::is_empty) {
                    self.stages.pop_front();
                }
                self.stages.pop_front().unwrap_or_default()
            }
        };
        for (cell, value) in cells_of(aside) {
            writeback.holds.set_aside(cell, value, now);
        }
    }

    /// Removes values from all stages and returns them.
    fn take(&mut self, which: impl Fn((&'static str, Uuid), &'static str) -> bool) -> Rows {
        let mut taken = Rows::new();
        for rows in &mut self.stages {
            rows.retain(|row, columns| {
                let (cells, kept) = std::mem::take(columns)
                    .into_iter()
                    .partition::<BTreeMap<_, _>, _>(|(column, _)| which(*row, column));
                if !cells.is_empty() {
                    taken.entry(*row).or_default().extend(cells);
                }
                *columns = kept;
                !columns.is_empty()
            });
        }
        taken
    }
}

fn cells_of(rows: Rows) -> impl Iterator<Item = (Cell, Datum)> {
    rows.into_iter().flat_map(|((table, uuid), columns)| {
        columns
            .into_iter()
            .map(move |(column, value)| ((table, uuid, column), value))
    })
}

#[cfg(test)]
mod tests;
