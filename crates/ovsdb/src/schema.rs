//! The server's schema, as far as a client needs it: the tables and columns that exist, and the
//! type of each column (RFC 7047 section 3.2). Constraints on values are checked by the server and
//! not kept.

use indexmap::IndexMap;
use serde_json::Value;

use crate::value::excerpt;

/// The type of one atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomKind {
    /// 64-bit signed.
    Integer,
    /// Floating point.
    Real,
    /// Boolean.
    Boolean,
    /// UTF-8 text.
    String,
    /// Reference to a row.
    Uuid,
}

impl AtomKind {
    /// Returns the RFC's name for the type.
    pub fn name(self) -> &'static str {
        match self {
            AtomKind::Integer => "integer",
            AtomKind::Real => "real",
            AtomKind::Boolean => "boolean",
            AtomKind::String => "string",
            AtomKind::Uuid => "uuid",
        }
    }

    fn from_name(name: &str) -> Option<AtomKind> {
        [
            AtomKind::Integer,
            AtomKind::Real,
            AtomKind::Boolean,
            AtomKind::String,
            AtomKind::Uuid,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }
}

/// The type of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnType {
    /// Type of a set's members, or of a map's keys.
    pub key: AtomKind,
    /// Type of a map's values; None for a set.
    pub value: Option<AtomKind>,
    /// Minimum number of members: 0 or 1.
    pub min: u64,
    /// Maximum number of members; None for no limit.
    pub max: Option<u64>,
}

/// A table's columns by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSchema {
    /// Every column with its type, in the schema's order.
    pub columns: IndexMap<String, ColumnType>,
}

/// A database's tables by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The database's name, `Open_vSwitch` for a switch.
    pub name: String,
    /// The schema's version, such as `8.3.1`; empty when the schema has none.
    pub version: String,
    /// Every table, in the schema's order.
    pub tables: IndexMap<String, TableSchema>,
}

/// What is wrong with a schema, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad schema: {place}: {defect}")]
pub struct BadSchema {
    /// `name`, `tables`, a table, or TABLE.COLUMN.
    pub place: String,
    /// What is wrong there.
    pub defect: Defect,
}

/// What is wrong with a part of a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The member is missing, or has another type.
    #[error("missing")]
    Missing,
    /// A table has no `columns`.
    #[error("no columns")]
    NoColumns,
    /// A column's type has no `key`.
    #[error("no key type")]
    NoKeyType,
    /// A column's `min` is no number that RFC 7047 allows.
    #[error("min must be 0 or 1")]
    Min,
    /// A column's `max` is neither a number that RFC 7047 allows nor "unlimited".
    #[error("max must be at least 1 or \"unlimited\"")]
    Max,
    /// A column's type is neither a name nor an object; an excerpt of it.
    #[error("{0} is not a type")]
    NotAType(String),
    /// The type of a key or value is not a base type; an excerpt of it.
    #[error("{0} is not a base type")]
    NotABaseType(String),
}

fn bad(place: impl Into<String>, defect: Defect) -> BadSchema {
    BadSchema {
        place: place.into(),
        defect,
    }
}

impl Schema {
    /// Decodes a `<database-schema>`.
    pub fn from_json(value: &Value) -> Result<Schema, BadSchema> {
        let name = value["name"]
            .as_str()
            .ok_or_else(|| bad("name", Defect::Missing))?;
        let version = value["version"].as_str().unwrap_or_default();
        let tables = value["tables"]
            .as_object()
            .ok_or_else(|| bad("tables", Defect::Missing))?;
        let mut schema = Schema {
            name: name.into(),
            version: version.into(),
            tables: IndexMap::new(),
        };
        for (table, body) in tables {
            let columns = body["columns"]
                .as_object()
                .ok_or_else(|| bad(table, Defect::NoColumns))?;
            let mut parsed = TableSchema::default();
            for (column, body) in columns {
                let kind =
                    column_type(&body["type"]).map_err(|d| bad(format!("{table}.{column}"), d))?;
                parsed.columns.insert(column.clone(), kind);
            }
            schema.tables.insert(table.clone(), parsed);
        }
        Ok(schema)
    }

    /// Returns the type of a column, if the table and the column exist.
    pub fn column(&self, table: &str, column: &str) -> Option<&ColumnType> {
        self.tables.get(table)?.columns.get(column)
    }
}

fn column_type(value: &Value) -> Result<ColumnType, Defect> {
    match value {
        Value::String(_) => Ok(ColumnType {
            key: base_type(value)?,
            value: None,
            min: 1,
            max: Some(1),
        }),
        Value::Object(body) => {
            let key = base_type(body.get("key").ok_or(Defect::NoKeyType)?)?;
            let value = body.get("value").map(base_type).transpose()?;
            let min = match body.get("min") {
                None => 1,
                Some(n) => n.as_u64().filter(|n| *n <= 1).ok_or(Defect::Min)?,
            };
            let max = match body.get("max") {
                None => Some(1),
                Some(Value::String(text)) if text == "unlimited" => None,
                Some(n) => Some(n.as_u64().filter(|n| *n >= 1).ok_or(Defect::Max)?),
            };
            Ok(ColumnType {
                key,
                value,
                min,
                max,
            })
        }
        other => Err(Defect::NotAType(excerpt(other))),
    }
}

fn base_type(value: &Value) -> Result<AtomKind, Defect> {
    let name = match value {
        Value::String(name) => Some(name.as_str()),
        Value::Object(body) => body.get("type").and_then(Value::as_str),
        _ => None,
    };
    name.and_then(AtomKind::from_name)
        .ok_or_else(|| Defect::NotABaseType(excerpt(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn column_types_of_every_form() {
        let schema = Schema::from_json(&json!({"name": "D", "version": "1.2.3", "tables": {"T": {"columns": {
            "a": {"type": "integer"},
            "b": {"type": {"key": {"type": "string", "enum": ["set", ["x"]]}, "min": 0, "max": 1}},
            "c": {"type": {"key": "string", "value": {"type": "uuid", "refTable": "T"}, "min": 0, "max": "unlimited"}},
        }}}}))
        .unwrap();
        let integer = ColumnType {
            key: AtomKind::Integer,
            value: None,
            min: 1,
            max: Some(1),
        };
        let optional = ColumnType {
            key: AtomKind::String,
            value: None,
            min: 0,
            max: Some(1),
        };
        let map = ColumnType {
            key: AtomKind::String,
            value: Some(AtomKind::Uuid),
            min: 0,
            max: None,
        };
        assert_eq!(schema.column("T", "a"), Some(&integer));
        assert_eq!(schema.column("T", "b"), Some(&optional));
        assert_eq!(schema.column("T", "c"), Some(&map));
        assert_eq!(schema.column("T", "d"), None);
        assert_eq!(schema.column("U", "a"), None);
    }

    #[test]
    fn errors_name_the_place() {
        let bad =
            json!({"name": "D", "tables": {"T": {"columns": {"a": {"type": {"key": "colour"}}}}}});
        let message = Schema::from_json(&bad).unwrap_err().to_string();
        assert!(
            message.contains("T.a") && message.contains("colour"),
            "{message}"
        );
        assert!(Schema::from_json(&json!([])).is_err());
        assert!(Schema::from_json(&json!({"name": "D", "tables": {"T": 3}})).is_err());
    }
}
