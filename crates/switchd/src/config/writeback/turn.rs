//! Writing although a server refuses some of it: its schema is another one, or it bounds what we do
//! not.
//!
//! Nothing of a transaction happens when one of its operations is refused. A server says which one
//! that was and does not look at those behind it (RFC 7047 section 4.1.3), so a [`Turn`] goes on
//! without what has been refused until the rest is written:
//!
//! * At first all that has changed goes in one transaction, an operation for each row. After a
//!   refusal what tools wait for goes first, by itself.
//! * Of a row that is refused each column becomes an operation, so that the next refusal names the
//!   column. That value is held.
//! * A server that refuses a column in one row may do so in others. These values are set aside and
//!   go by themselves, some together: twice as many after each transaction that happens, and those
//!   before the one that is refused.
//! * What is held goes by itself too, after [`FIRST_WAIT`], and each time it is refused again after
//!   twice as long; at once when the value changes, if it is none that changes all the time
//!   ([`RESTLESS`]). A new schema comes with a new connection, which forgets all this.
//!
//! Columns that the schema has not are not sent. Rows that are gone are no refusal: nothing is
//! updated in them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use ovsdb::transaction::Refused;
use ovsdb::vswitch::LOCK;
use ovsdb::{Datum, Transaction, Uuid};

use super::{Cell, Rows, Values, Writeback};

/// How long a value is held after its first refusal; twice as long after each further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// And at most so long.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Transactions of a turn, at most. What is left is set aside for the next one, which comes after
/// [`PAUSE`].
const TRIES_MAX: u32 = 16;
/// How long after a turn that left something the next one goes on with that.
const PAUSE: Duration = Duration::from_millis(500);
/// Refusals that are told, at most, so that a server cannot fill the log.
const TOLD_MAX: usize = 64;

/// A value that goes by itself.
#[derive(Debug)]
struct Held {
    value: Datum,
    /// When it is tried.
    again: Instant,
    /// How long it is being held; zero when it is only set aside, because the same column has been
    /// refused in another row.
    wait: Duration,
    /// Whether this value has not been tried by itself.
    is_new: bool,
}

/// What is not written with all the rest.
#[derive(Debug, Default)]
pub(super) struct Holds {
    held: HashMap<Cell, Held>,
    /// What has been told: the cell and the RFC's word.
    told: BTreeSet<(Cell, String)>,
    /// The columns that the schema has not.
    lacking: BTreeSet<(&'static str, &'static str)>,
    /// Nothing that is held is tried earlier.
    not_before: Option<Instant>,
}

impl Holds {
    /// Lets go of what is held, but remembers what has been told.
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

    /// When the next of the values that are held is due.
    fn again(&self) -> Option<Instant> {
        let first = self.held.values().map(|held| held.again).min();
        first.map(|first| {
            self.not_before
                .map_or(first, |earliest| earliest.max(first))
        })
    }

    /// So many of the values that are due, those that have been due for longest first.
    fn due(&self, count: usize, now: Instant) -> Vec<(Cell, Datum)> {
        if self.not_before.is_some_and(|earliest| now < earliest) {
            return Vec::new();
        }
        let mut due: Vec<_> = (self.held.iter())
            .filter(|(_, held)| held.again <= now)
            .collect();
        // What tools wait for first, and the sign that it is there behind all of that which has not
        // been tried.
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

    /// A value is to go by itself, as soon as may be.
    fn set_aside(&mut self, cell: Cell, value: Datum, now: Instant) {
        let held = Held {
            value,
            again: now,
            wait: Duration::ZERO,
            is_new: true,
        };
        self.held.insert(cell, held);
    }

    /// A value has been refused by itself.
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

    /// Whether a refusal has not been told before, nor too many others.
    fn is_news(&mut self, cell: Cell, word: &str) -> bool {
        self.told.len() < TOLD_MAX && self.told.insert((cell, word.to_owned()))
    }
}

/// Columns whose values change by themselves: no reason to think that the next one is not refused.
const RESTLESS: [&str; 2] = ["statistics", "status"];

/// The words of RFC 7047 and of ovsdb-server by which no value is to blame, whatever operation they
/// stand at: a server that is read-only, has no memory or no room, or has lost its leader.
const NO_VALUES_FAULT: [&str; 6] = [
    "I/O error",
    "aborted",
    "not allowed",
    "not owner",
    "resources exhausted",
    "timed out",
];

/// What tools wait for before they read the others of these columns.
const SIGN: &str = "cur_cfg";

/// Whether a column is [`SIGN`] or one that tools read when they have seen it.
fn is_outcome(column: &str) -> bool {
    matches!(column, SIGN | "ofport" | "error")
}

/// A transaction, and what its operations write.
#[derive(Debug)]
pub struct Pending {
    /// To be sent. It happens only while the daemon holds its lock.
    pub transaction: Transaction,
    /// What each operation behind the first one, which asserts the lock, writes.
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

    /// The values that it writes.
    pub fn cells(&self) -> impl Iterator<Item = &(Cell, Datum)> {
        self.operations.iter().flatten()
    }
}

/// A value that the server refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its table.
    pub table: &'static str,
    /// Its row.
    pub row: Uuid,
    /// Its column.
    pub column: &'static str,
    /// The RFC's word and the server's explanation.
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

/// What a refused transaction means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// No value is to blame: a lock that was lost, a disk that is full, a cluster that chooses a
    /// leader. The turn is over.
    Nothing,
    /// One value, or one of several; what to do about it is known. The turn goes on.
    Values,
    /// This value, which has not been told yet. The turn goes on.
    News(Refusal),
}

/// The transactions by which all that has changed is written, one after the other.
#[derive(Debug)]
pub struct Turn {
    /// What goes in one transaction each.
    stages: VecDeque<Rows>,
    /// Whether something has been refused, and so what tools wait for is a stage of its own.
    is_parted: bool,
    /// Rows of which each column is an operation.
    apart: BTreeSet<(&'static str, Uuid)>,
    /// How many of the values that go by themselves go together.
    together: usize,
    /// How many more transactions there may be.
    tries: u32,
    /// Columns that the schema has not, where that has not been told yet.
    pub lacking: Vec<(&'static str, &'static str)>,
}

impl Writeback {
    /// Starts to write what has changed. `knows` tells whether the schema has a column of a table.
    pub fn turn(
        &mut self,
        values: Values,
        knows: impl Fn(&str, &str) -> bool,
        now: Instant,
    ) -> Turn {
        let holds = &mut self.holds;
        let mut lacking = Vec::new();
        // What the database holds already.
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
        // The sign comes behind what it stands for.
        if holds.held.iter().any(is_behind) {
            for (cell, value) in cells_of(turn.take(|_, column| column == SIGN)) {
                holds.set_aside(cell, value, now);
            }
        }
        turn
    }

    /// Nobody knows whether this has happened, or will: its values are written again.
    pub fn doubt(&mut self, pending: &Pending) {
        for (cell, _) in pending.cells() {
            self.written.remove(cell);
        }
    }

    /// When something that was refused is to be tried again: a turn is due then.
    pub fn again(&self) -> Option<Instant> {
        self.holds.again()
    }

    /// Lets go of what is held: there is nothing to be written, or it cannot be.
    pub fn release(&mut self) {
        self.holds.release();
    }
}

impl Turn {
    /// What to send next; none when the turn is over. Each is to be followed by [`Turn::accepted`]
    /// or [`Turn::refused`].
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

    /// The server has confirmed what [`Turn::next`] gave.
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

    /// The server has refused what [`Turn::next`] gave.
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
            // What holds for a table as a whole is looked at when all operations have been done.
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
            // Those before it are no culprits.
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

    /// Makes what has been refused smaller.
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
            // Any of them, so that each goes by itself, unless it can be narrowed by what has been
            // done.
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

    /// Takes values out of all stages.
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
