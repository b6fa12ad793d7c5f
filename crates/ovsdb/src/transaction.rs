//! Transactions: several operations on the database that succeed together or not at all (RFC 7047
//! section 5.2).
//!
//! ```
//! use ovsdb::{Datum, Transaction, Uuid};
//! let mut transaction = Transaction::new();
//! transaction.assert_lock("ovs_vswitchd");
//! transaction.update("Interface", Uuid(7)).set("ofport", 3).set("error", Datum::empty());
//! ```

use std::fmt;

use serde_json::{Map, Value, json};

use crate::value::{Datum, Uuid, excerpt};

/// The comparison of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Column and value are equal.
    Equal,
    /// Column and value differ.
    NotEqual,
    /// The column has every member of the value.
    Includes,
    /// The column has no member of the value.
    Excludes,
    /// The column, a scalar number, is smaller than the value.
    Less,
    /// The column, a scalar number, is greater than the value.
    Greater,
}

impl Comparison {
    fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Includes => "includes",
            Comparison::Excludes => "excludes",
            Comparison::Less => "<",
            Comparison::Greater => ">",
        }
    }
}

/// The rows of an operation: those for which all conditions hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Where(Vec<Value>);

impl Where {
    /// Selects every row.
    pub fn all() -> Where {
        Where::default()
    }

    /// Adds the condition that `column` compares in this way with `value`.
    pub fn and(mut self, column: &str, comparison: Comparison, value: impl Into<Datum>) -> Where {
        self.0
            .push(json!([column, comparison.symbol(), value.into().to_json()]));
        self
    }
}

impl From<Uuid> for Where {
    fn from(uuid: Uuid) -> Where {
        Where::all().and("_uuid", Comparison::Equal, uuid)
    }
}

/// The change of a column by a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutator {
    /// Adds a number.
    Add,
    /// Subtracts a number.
    Subtract,
    /// Adds members to a set, or entries with new keys to a map.
    Insert,
    /// Removes members from a set, or entries (given as a map) or keys (given as a set) from a map.
    Delete,
}

impl Mutator {
    fn symbol(self) -> &'static str {
        match self {
            Mutator::Add => "+=",
            Mutator::Subtract => "-=",
            Mutator::Insert => "insert",
            Mutator::Delete => "delete",
        }
    }
}

/// A list of operations, built step by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction {
    operations: Vec<Map<String, Value>>,
}

/// The columns written by an operation.
#[derive(Debug)]
pub struct RowWriter<'t>(&'t mut Map<String, Value>);

impl RowWriter<'_> {
    /// Sets a column to a value.
    pub fn set(self, column: &str, value: impl Into<Datum>) -> Self {
        if let Some(Value::Object(row)) = self.0.get_mut("row") {
            row.insert(column.to_owned(), value.into().to_json());
        }
        self
    }
}

/// The mutations of an operation.
#[derive(Debug)]
pub struct RowMutator<'t>(&'t mut Map<String, Value>);

impl RowMutator<'_> {
    /// Changes a column relative to its value.
    pub fn change(self, column: &str, mutator: Mutator, value: impl Into<Datum>) -> Self {
        if let Some(Value::Array(list)) = self.0.get_mut("mutations") {
            // A map's keys may be given as a set of one, which must not be shortened to a bare atom
            // here.
            let value = match value.into() {
                Datum::Set(atoms) if matches!(mutator, Mutator::Insert | Mutator::Delete) => {
                    json!(["set", atoms.iter().map(|a| a.to_json()).collect::<Vec<_>>()])
                }
                other => other.to_json(),
            };
            list.push(json!([column, mutator.symbol(), value]));
        }
        self
    }
}

impl Transaction {
    /// Creates an empty transaction.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Returns whether nothing would be read or written. Lock assertions and comments do not count.
    pub fn is_empty(&self) -> bool {
        self.operations
            .iter()
            .all(|op| matches!(op["op"].as_str(), Some("assert" | "comment")))
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    fn push(&mut self, operation: Value) -> &mut Map<String, Value> {
        let operation = match operation {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        self.operations.push(operation);
        let last = self.operations.len() - 1;
        &mut self.operations[last]
    }

    /// Fails the transaction unless this client holds the lock.
    pub fn assert_lock(&mut self, lock: &str) {
        self.push(json!({"op": "assert", "lock": lock}));
    }

    /// Writes columns of existing rows. It is no error if rows are gone.
    pub fn update(&mut self, table: &str, rows: impl Into<Where>) -> RowWriter<'_> {
        RowWriter(
            self.push(json!({"op": "update", "table": table, "where": rows.into().0, "row": {}})),
        )
    }

    /// Changes columns of existing rows relative to their values.
    pub fn mutate(&mut self, table: &str, rows: impl Into<Where>) -> RowMutator<'_> {
        RowMutator(
            self.push(
                json!({"op": "mutate", "table": table, "where": rows.into().0, "mutations": []}),
            ),
        )
    }

    /// Inserts a row. Other operations may refer to it as [`Atom::Named`](crate::Atom::Named) with
    /// `name`, which must be an identifier.
    pub fn insert(&mut self, table: &str, name: &str) -> RowWriter<'_> {
        RowWriter(self.push(json!({"op": "insert", "table": table, "uuid-name": name, "row": {}})))
    }

    /// Deletes rows.
    pub fn delete(&mut self, table: &str, rows: impl Into<Where>) {
        self.push(json!({"op": "delete", "table": table, "where": rows.into().0}));
    }

    /// Reads columns of rows; the result is in [`Outcome::results`].
    pub fn select(&mut self, table: &str, rows: impl Into<Where>, columns: &[&str]) {
        self.push(
            json!({"op": "select", "table": table, "where": rows.into().0, "columns": columns}),
        );
    }

    /// Waits at most `timeout` milliseconds until the column of the rows equals `value` (with
    /// `equal` false, until it differs), and fails the transaction otherwise.
    pub fn wait(
        &mut self,
        table: &str,
        rows: impl Into<Where>,
        column: &str,
        equal: bool,
        value: Datum,
        timeout: u32,
    ) {
        let until = if equal { "==" } else { "!=" };
        let row = Map::from_iter([(column.to_owned(), value.to_json())]);
        self.push(
            json!({"op": "wait", "timeout": timeout, "table": table, "where": rows.into().0,
            "columns": [column], "until": until, "rows": [row]}),
        );
    }

    /// Adds a text to the database's log.
    pub fn comment(&mut self, text: &str) {
        self.push(json!({"op": "comment", "comment": text}));
    }

    /// Makes the server answer only when the transaction is on disk.
    pub fn durable(&mut self) {
        self.push(json!({"op": "commit", "durable": true}));
    }

    /// Makes the transaction fail, so that it is checked but not carried out.
    pub fn abort(&mut self) {
        self.push(json!({"op": "abort"}));
    }

    /// Returns the arguments of a `transact` request.
    pub fn to_params(&self, database: &str) -> Vec<Value> {
        let operations = self.operations.iter().map(|op| Value::Object(op.clone()));
        std::iter::once(json!(database)).chain(operations).collect()
    }

    /// Decodes the server's answer.
    pub fn outcome(&self, answer: &Value) -> Result<Outcome, Refused> {
        let Value::Array(results) = answer else {
            return Err(Refused::whole(
                "syntax error",
                &format!("the answer is {}", excerpt(answer)),
            ));
        };
        for (index, result) in results.iter().enumerate() {
            if let Some(error) = result["error"].as_str() {
                return Err(self.refusal(
                    index,
                    error,
                    result["details"].as_str().unwrap_or_default(),
                ));
            }
        }
        if results.len() < self.operations.len()
            || results
                .iter()
                .take(self.operations.len())
                .any(Value::is_null)
        {
            return Err(Refused::whole(
                "syntax error",
                "the answer has too few results",
            ));
        }
        Ok(Outcome {
            results: results.clone(),
        })
    }

    fn refusal(&self, index: usize, error: &str, details: &str) -> Refused {
        let mut refused = Refused::whole(error, details);
        if let Some(operation) = self.operations.get(index) {
            let text = |key: &str| {
                operation
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let columns = match (
                operation.get("row"),
                operation.get("mutations"),
                operation.get("columns"),
            ) {
                (Some(Value::Object(row)), _, _) => row.keys().cloned().collect(),
                (_, Some(Value::Array(list)), _) => list
                    .iter()
                    .filter_map(|m| m[0].as_str().map(str::to_owned))
                    .collect(),
                (_, _, Some(Value::Array(list))) => list
                    .iter()
                    .filter_map(|c| c.as_str().map(str::to_owned))
                    .collect(),
                _ => Vec::new(),
            };
            let name = text("op");
            refused.operation = Some(Box::new(FailedOperation {
                index,
                name,
                table: text("table"),
                columns,
            }));
        }
        refused
    }
}

/// The results of a successful transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One result for each operation, as the RFC describes them.
    pub results: Vec<Value>,
}

impl Outcome {
    /// Returns how many rows an update, mutate or delete has affected.
    pub fn count(&self, operation: usize) -> Option<u64> {
        self.results.get(operation)?["count"].as_u64()
    }

    /// Returns the row that an insert has created.
    pub fn inserted(&self, operation: usize) -> Option<Uuid> {
        match self.results.get(operation)?["uuid"].as_array()?.as_slice() {
            [_, Value::String(text)] => text.parse().ok(),
            _ => None,
        }
    }

    /// Returns the rows that a select has found.
    pub fn rows(&self, operation: usize) -> Option<&Vec<Value>> {
        self.results.get(operation)?["rows"].as_array()
    }
}

/// Why a transaction failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The RFC's error string, such as `constraint violation`, `not owner` or `timed out`.
    pub error: String,
    /// The server's explanation.
    pub details: String,
    /// The operation that failed; None if the transaction failed as a whole, at its commit.
    pub operation: Option<Box<FailedOperation>>,
}

/// The operation of a transaction that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedOperation {
    /// Its index, from 0.
    pub index: usize,
    /// Its name, such as `update`.
    pub name: String,
    /// Its table; empty if it has none.
    pub table: String,
    /// Its columns.
    pub columns: Vec<String>,
}

impl Refused {
    pub(crate) fn whole(error: &str, details: &str) -> Refused {
        Refused {
            error: error.to_owned(),
            details: details.to_owned(),
            ..Refused::default()
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation.as_deref() {
            None => write!(f, "commit")?,
            Some(FailedOperation {
                index,
                name,
                table,
                columns,
            }) => {
                write!(f, "operation {index}, {name}")?;
                if !table.is_empty() {
                    write!(f, " of {table} ({})", columns.join(", "))?;
                }
            }
        }
        write!(f, ": {}", self.error)?;
        match self.details.as_str() {
            "" => Ok(()),
            details => write!(f, ": {details}"),
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_writes_many_columns_at_once() {
        let mut transaction = Transaction::new();
        assert!(transaction.is_empty());
        transaction.assert_lock("l");
        assert!(transaction.is_empty());
        transaction
            .update("T", Uuid(1))
            .set("a", 3)
            .set("b", Datum::empty());
        assert!(!transaction.is_empty());
        let id = Uuid(1).to_string();
        let params = transaction.to_params("D");
        assert_eq!(params[1], json!({"op": "assert", "lock": "l"}));
        assert_eq!(params[2]["where"], json!([["_uuid", "==", ["uuid", id]]]));
        assert_eq!(params[2]["row"], json!({"a": 3, "b": ["set", []]}));
    }

    #[test]
    fn a_refusal_names_operation_table_and_columns() {
        let mut transaction = Transaction::new();
        transaction.comment("x");
        transaction.update("T", Uuid(1)).set("a", 3);
        let answer = json!([{}, {"error": "constraint violation", "details": "too big"}]);
        let refused = transaction.outcome(&answer).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "operation 1, update of T (a): constraint violation: too big"
        );
        let answer = json!([{}, {"count": 1}, {"error": "referential integrity violation"}]);
        let refused = transaction.outcome(&answer).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "commit: referential integrity violation"
        );
    }

    #[test]
    fn answers_that_are_no_answers_are_refused() {
        let mut transaction = Transaction::new();
        transaction.update("T", Uuid(1)).set("a", 3);
        for answer in [json!(null), json!([]), json!([null]), json!("x")] {
            assert!(transaction.outcome(&answer).is_err(), "{answer}");
        }
        assert_eq!(
            transaction
                .outcome(&json!([{"count": 1}]))
                .unwrap()
                .count(0),
            Some(1)
        );
    }

    #[test]
    fn keys_to_delete_stay_a_set() {
        let mut transaction = Transaction::new();
        transaction
            .mutate("T", Uuid(1))
            .change("m", Mutator::Delete, "k")
            .change("n", Mutator::Add, 1);
        let params = transaction.to_params("D");
        assert_eq!(
            params[1]["mutations"],
            json!([["m", "delete", ["set", ["k"]]], ["n", "+=", 1]])
        );
    }
}
