//! The monitored part of a database, in memory.
//!
//! A replica has the server's schema and the rows that it reported. Rows are read by typed
//! accessors that never fail: a column that is missing, because the server's schema is older, reads
//! as its empty value. An update is applied as a whole or not at all, and every value is first
//! checked against the schema.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::schema::{Schema, TableSchema};
use crate::value::{Atom, Datum, Uuid, excerpt};

/// Maximum number of rows in all tables: far more than a switch can have, but few enough to hold in
/// memory.
pub const MAX_ROWS: usize = 1_000_000;

/// A row: its monitored columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    columns: HashMap<Arc<str>, Datum>,
}

impl Row {
    /// Returns the cell, if the column is monitored.
    pub fn get(&self, column: &str) -> Option<&Datum> {
        self.columns.get(column)
    }

    /// Sets a column, in rows made for tests and tools; a replica's rows follow the server.
    pub fn with(mut self, column: &str, value: impl Into<Datum>) -> Row {
        self.columns.insert(column.into(), value.into());
        self
    }

    fn atoms(&self, column: &str) -> &[Atom] {
        match self.columns.get(column) {
            Some(Datum::Set(atoms)) => atoms,
            _ => &[],
        }
    }

    /// Returns a string column; empty if absent.
    pub fn string(&self, column: &str) -> &str {
        self.optional_string(column).unwrap_or_default()
    }

    /// Returns an optional string.
    pub fn optional_string(&self, column: &str) -> Option<&str> {
        match self.atoms(column) {
            [Atom::String(text), ..] => Some(text),
            _ => None,
        }
    }

    /// Returns an integer column; 0 if absent.
    pub fn int(&self, column: &str) -> i64 {
        self.optional_int(column).unwrap_or_default()
    }

    /// Returns an optional integer.
    pub fn optional_int(&self, column: &str) -> Option<i64> {
        match self.atoms(column) {
            [Atom::Integer(number), ..] => Some(*number),
            _ => None,
        }
    }

    /// Returns a boolean column; false if absent.
    pub fn bool(&self, column: &str) -> bool {
        self.optional_bool(column).unwrap_or_default()
    }

    /// Returns an optional boolean.
    pub fn optional_bool(&self, column: &str) -> Option<bool> {
        match self.atoms(column) {
            [Atom::Boolean(truth), ..] => Some(*truth),
            _ => None,
        }
    }

    /// Returns an optional reference.
    pub fn optional_uuid(&self, column: &str) -> Option<Uuid> {
        self.set_uuid(column).next()
    }

    /// Returns the references in a set.
    pub fn set_uuid(&self, column: &str) -> impl Iterator<Item = Uuid> + '_ {
        self.atoms(column).iter().filter_map(|atom| match atom {
            Atom::Uuid(uuid) => Some(*uuid),
            _ => None,
        })
    }

    /// Returns the strings in a set, sorted.
    pub fn set_string(&self, column: &str) -> impl Iterator<Item = &str> + '_ {
        self.atoms(column).iter().filter_map(|atom| match atom {
            Atom::String(text) => Some(&**text),
            _ => None,
        })
    }

    /// Returns the integers in a set, sorted.
    pub fn set_int(&self, column: &str) -> impl Iterator<Item = i64> + '_ {
        self.atoms(column).iter().filter_map(|atom| match atom {
            Atom::Integer(number) => Some(*number),
            _ => None,
        })
    }

    /// Returns a map from strings to strings.
    pub fn map(&self, column: &str) -> BTreeMap<String, String> {
        self.entries(column)
            .filter_map(|(key, value)| match (key, value) {
                (Atom::String(key), Atom::String(value)) => {
                    Some((key.to_string(), value.to_string()))
                }
                _ => None,
            })
            .collect()
    }

    /// Returns a map from integers to references.
    pub fn map_int_uuid(&self, column: &str) -> BTreeMap<i64, Uuid> {
        self.entries(column)
            .filter_map(|(key, value)| match (key, value) {
                (Atom::Integer(key), Atom::Uuid(value)) => Some((*key, *value)),
                _ => None,
            })
            .collect()
    }

    /// Returns a map from strings to integers.
    pub fn map_int(&self, column: &str) -> BTreeMap<String, i64> {
        self.entries(column)
            .filter_map(|(key, value)| match (key, value) {
                (Atom::String(key), Atom::Integer(value)) => Some((key.to_string(), *value)),
                _ => None,
            })
            .collect()
    }

    /// Returns a map from strings to references.
    pub fn map_uuid(&self, column: &str) -> BTreeMap<String, Uuid> {
        self.entries(column)
            .filter_map(|(key, value)| match (key, value) {
                (Atom::String(key), Atom::Uuid(value)) => Some((key.to_string(), *value)),
                _ => None,
            })
            .collect()
    }

    fn entries(&self, column: &str) -> impl Iterator<Item = (&Atom, &Atom)> {
        match self.columns.get(column) {
            Some(Datum::Map(map)) => Some(map.iter()),
            _ => None,
        }
        .into_iter()
        .flatten()
    }
}

/// A monitored table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Every row, in no particular order.
    pub rows: IndexMap<Uuid, Row>,
}

/// A monitored database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replica {
    /// The schema of the server's database.
    pub schema: Arc<Schema>,
    /// The monitored tables that have had a row; see [`Replica::rows`].
    pub tables: HashMap<String, Table>,
    /// Grows with every update that changes something.
    pub generation: u64,
}

/// The changes of an update: the changed columns of each table. For an inserted or deleted row,
/// every monitored column of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    columns: Vec<(String, Arc<str>)>,
}

impl Changes {
    /// Returns whether a column has changed for which `ignore(table, column)` is false.
    pub fn any_besides(&self, ignore: impl Fn(&str, &str) -> bool) -> bool {
        self.columns
            .iter()
            .any(|(table, column)| !ignore(table, column))
    }

    fn add(&mut self, table: &str, column: &Arc<str>) {
        if !self.columns.iter().any(|(t, c)| t == table && c == column) {
            self.columns.push((table.to_owned(), column.clone()));
        }
    }
}

/// An update that does not fit the schema, and the place of the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad update: {place}: {message}")]
pub struct BadUpdate {
    place: String,
    message: String,
}

fn bad(place: impl Into<String>, message: impl Into<String>) -> BadUpdate {
    BadUpdate {
        place: place.into(),
        message: message.into(),
    }
}

type Step = (String, Uuid, Option<Row>);

impl Replica {
    /// Creates an empty replica of a database with this schema.
    pub fn new(schema: Arc<Schema>) -> Replica {
        Replica {
            schema,
            ..Replica::default()
        }
    }

    /// Returns a table's rows; none if the table is not monitored.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = (Uuid, &Row)> {
        self.tables
            .get(table)
            .into_iter()
            .flat_map(|t| t.rows.iter().map(|(uuid, row)| (*uuid, row)))
    }

    /// Returns one row.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<&Row> {
        self.tables.get(table)?.rows.get(&uuid)
    }

    /// Applies a `<table-updates>` (RFC 7047 section 4.1.6), or on an error nothing of it.
    pub fn apply(&mut self, updates: &Value) -> Result<Changes, BadUpdate> {
        let steps = self.read(updates)?;
        let mut changes = Changes::default();
        for (table, uuid, new) in steps {
            let rows = &mut self.tables.entry(table.clone()).or_default().rows;
            let old = match new {
                Some(row) => {
                    let old = rows.insert(uuid, row);
                    note_changes(&mut changes, &table, old.as_ref(), &rows[&uuid]);
                    continue;
                }
                None => rows.swap_remove(&uuid),
            };
            if let Some(old) = old {
                note_changes(&mut changes, &table, None, &old);
            }
        }
        if changes.any_besides(|_, _| false) {
            self.generation += 1;
        }
        Ok(changes)
    }

    fn read(&self, updates: &Value) -> Result<Vec<Step>, BadUpdate> {
        let tables = object(updates, "update")?;
        let mut steps = Vec::new();
        let kept: usize = self.tables.values().map(|table| table.rows.len()).sum();
        for (table, rows) in tables {
            let schema = self
                .schema
                .tables
                .get(table)
                .ok_or_else(|| bad(table, "no such table in the schema"))?;
            for (uuid, change) in object(rows, table)? {
                let place = || format!("{table} {uuid:.40}");
                let id: Uuid = uuid.parse().map_err(|_| bad(place(), "not a UUID"))?;
                let new = match object(change, &place())?.get("new") {
                    None | Some(Value::Null) => None,
                    Some(new) => Some(read_row(schema, object(new, &place())?, table)?),
                };
                steps.push((table.clone(), id, new));
                if kept + steps.len() > MAX_ROWS {
                    return Err(bad(
                        table,
                        format!("more than {MAX_ROWS} rows in the database"),
                    ));
                }
            }
        }
        Ok(steps)
    }
}

fn note_changes(changes: &mut Changes, table: &str, old: Option<&Row>, new: &Row) {
    for (column, value) in &new.columns {
        if old.and_then(|row| row.columns.get(column)) != Some(value) {
            changes.add(table, column);
        }
    }
}

fn read_row(
    schema: &TableSchema,
    cells: &Map<String, Value>,
    table: &str,
) -> Result<Row, BadUpdate> {
    let mut row = Row::default();
    for (column, value) in cells {
        let place = || format!("{table}.{column:.40}");
        let kind = schema
            .columns
            .get(column)
            .ok_or_else(|| bad(place(), "no such column in the schema"))?;
        let datum = Datum::from_json(value, kind).map_err(|e| bad(place(), e.to_string()))?;
        row.columns.insert(column.as_str().into(), datum);
    }
    Ok(row)
}

fn object<'v>(value: &'v Value, place: &str) -> Result<&'v Map<String, Value>, BadUpdate> {
    value
        .as_object()
        .ok_or_else(|| bad(place, format!("{} is not an object", excerpt(value))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ROW: &str = "00000000-0000-0000-0000-000000000001";

    fn replica() -> Replica {
        let schema = json!({"name": "D", "tables": {"T": {"columns": {
            "name": {"type": "string"},
            "size": {"type": {"key": "integer", "min": 0, "max": 1}},
            "config": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
        }}}});
        Replica::new(Arc::new(Schema::from_json(&schema).unwrap()))
    }

    #[test]
    fn rows_come_change_and_go() {
        let mut replica = replica();
        let row = json!({"name": "a", "size": ["set", []], "config": ["map", [["k", "v"]]]});
        replica.apply(&json!({"T": {ROW: {"new": row}}})).unwrap();
        let uuid = ROW.parse().unwrap();
        let row = replica.row("T", uuid).unwrap();
        assert_eq!((row.string("name"), row.optional_int("size")), ("a", None));
        assert_eq!(
            row.map("config"),
            BTreeMap::from([("k".into(), "v".into())])
        );

        let next = json!({"name": "a", "size": 3, "config": ["map", [["k", "v"]]]});
        let changes = replica
            .apply(&json!({"T": {ROW: {"old": {"size": ["set", []]}, "new": next}}}))
            .unwrap();
        assert!(changes.any_besides(|_, _| false));
        assert!(!changes.any_besides(|table, column| table == "T" && column == "size"));
        assert_eq!(
            replica.row("T", uuid).unwrap().optional_int("size"),
            Some(3)
        );

        let changes = replica.apply(&json!({"T": {ROW: {"old": next}}})).unwrap();
        assert!(changes.any_besides(|_, column| column == "size"));
        assert_eq!(replica.rows("T").count(), 0);
        assert_eq!(replica.generation, 3);
    }

    #[test]
    fn an_update_that_changes_nothing_keeps_the_generation() {
        let mut replica = replica();
        let update = json!({"T": {ROW: {"new": {"name": "a"}}}});
        replica.apply(&update).unwrap();
        assert_eq!(replica.apply(&update).unwrap(), Changes::default());
        assert_eq!(replica.generation, 1);
    }

    #[test]
    fn a_bad_update_changes_nothing_and_says_where() {
        let mut replica = replica();
        let second = "00000000-0000-0000-0000-000000000002";
        let update = json!({"T": {ROW: {"new": {"name": "a"}}, second: {"new": {"size": "big"}}}});
        let message = replica.apply(&update).unwrap_err().to_string();
        assert!(
            message.contains("T.size") && message.contains("big"),
            "{message}"
        );
        assert_eq!(replica.rows("T").count(), 0);
        for bad in [
            json!(3),
            json!({"U": {}}),
            json!({"T": []}),
            json!({"T": {"x": {}}}),
            json!({"T": {ROW: 1}}),
        ] {
            assert!(replica.apply(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn columns_of_another_type_read_as_empty() {
        let row = Row::default().with("a", "text");
        assert_eq!(
            (row.int("a"), row.bool("a"), row.optional_uuid("a")),
            (0, false, None)
        );
        assert!(row.map("a").is_empty());
    }
}
