//! Problems in the configuration, and a reader for options that reports them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use ovsdb::vswitch::Strings;

/// The log level of a problem, as in Open vSwitch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Refused because it would harm others.
    Error,
    /// Not applied as written.
    #[default]
    Warning,
    /// Tunes something that this switch does not have.
    Note,
}

/// A value that was not applied as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The table, such as `Bridge`.
    pub table: &'static str,
    /// The row's name (a controller's target).
    pub row: String,
    /// The column, with the key of a map: `other_config:datapath-id`.
    pub column: String,
    /// What is wrong and what is done instead.
    pub message: String,
    /// The log level.
    pub severity: Severity,
    /// The bridge in whose row the problem is told, if rows of the table have no place for it.
    pub bridge: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.to_lowercase();
        match self.row.as_str() {
            "" => write!(f, "{table} {}: {}", self.column, self.message),
            row => write!(f, "{table} {row} {}: {}", self.column, self.message),
        }
    }
}

/// Most bytes of a row's text in the database.
pub const TOLD: usize = 1024;
/// Marks the end of a text that was cut.
const MORE: &str = " ... (the log has all)";

/// The problems found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Adds a problem at the level of a warning.
    pub fn add(
        &mut self,
        table: &'static str,
        row: &str,
        column: &str,
        message: impl Into<String>,
    ) {
        self.add_with(Severity::Warning, table, row, column, message);
    }

    /// Adds a problem at another level than a warning.
    pub fn add_with(
        &mut self,
        severity: Severity,
        table: &'static str,
        row: &str,
        column: &str,
        message: impl Into<String>,
    ) {
        let (row, column, message) = (row.to_owned(), column.to_owned(), message.into());
        self.0.push(Problem {
            table,
            row,
            column,
            message,
            severity,
            bridge: None,
        });
    }

    /// Has the problems behind the first `known` ones told in a bridge's row, too.
    pub fn tell_bridge(&mut self, known: usize, bridge: &str) {
        for problem in self.0.iter_mut().skip(known) {
            problem.bridge = Some(bridge.to_owned());
        }
    }

    /// Returns the texts for a table's rows in the database, by the rows' names: all problems of a
    /// row, [`TOLD`] bytes at most. Notes go to the log only.
    pub fn by_row(&self, table: &str) -> BTreeMap<&str, String> {
        let mut texts: BTreeMap<&str, String> = BTreeMap::new();
        for problem in (self.0.iter()).filter(|problem| problem.severity != Severity::Note) {
            let (row, one) = match &problem.bridge {
                _ if problem.table == table && !problem.row.is_empty() => (
                    &problem.row,
                    format!("{}: {}", problem.column, problem.message),
                ),
                Some(bridge) if table == "Bridge" => (bridge, problem.to_string()),
                _ => continue,
            };
            let text = texts.entry(row).or_default();
            if text.ends_with(MORE) {
                continue;
            }
            if text.len() + one.len() + 2 + MORE.len() > TOLD {
                text.push_str(MORE);
                continue;
            }
            let between = if text.is_empty() { "" } else { "; " };
            text.push_str(between);
            text.push_str(&one);
        }
        texts
    }

    /// Returns the problems that `earlier` did not have: those to be logged when the configuration
    /// changes.
    pub fn new_since<'p>(&'p self, earlier: &Problems) -> impl Iterator<Item = &'p Problem> {
        self.0
            .iter()
            .filter(move |problem| !earlier.0.contains(problem))
    }
}

/// A map column of options, read key by key.
pub struct Options<'a> {
    table: &'static str,
    row: &'a str,
    column: &'static str,
    map: &'a Strings,
    problems: &'a mut Problems,
}

impl<'a> Options<'a> {
    /// Opens the options in `column` of the row.
    pub fn new(
        table: &'static str,
        row: &'a str,
        column: &'static str,
        map: &'a Strings,
        problems: &'a mut Problems,
    ) -> Options<'a> {
        Options {
            table,
            row,
            column,
            map,
            problems,
        }
    }

    /// Reports that a key's value is not usable.
    pub fn complain(&mut self, key: &str, message: impl Into<String>) {
        let column = format!("{}:{key}", self.column);
        self.problems.add(self.table, self.row, &column, message);
    }

    /// Reports that a key's value is refused because it would harm others.
    pub fn refuse(&mut self, key: &str, message: impl Into<String>) {
        let column = format!("{}:{key}", self.column);
        self.problems
            .add_with(Severity::Error, self.table, self.row, &column, message);
    }

    /// Notes for each of these keys that is set, and not to `false`, that it has no effect.
    pub fn do_nothing(&mut self, keys: &[&str]) {
        for key in keys {
            let asks = |text: &&str| !text.eq_ignore_ascii_case("false");
            if self.text(key).filter(asks).is_some() {
                let column = format!("{}:{key}", self.column);
                let message = "has no effect in this switch";
                self.problems
                    .add_with(Severity::Note, self.table, self.row, &column, message);
            }
        }
    }

    /// Warns of keys whose feature is missing here and that others may rely on, unless they are
    /// `false`, and of unknown keys that begin like these (with one of `families`).
    pub fn not_supported(&mut self, families: &[&str], keys: &[&str]) {
        let map = self.map;
        for (key, value) in map {
            if !families.iter().any(|family| key.starts_with(family)) {
                continue;
            }
            if !keys.contains(&key.as_str()) {
                self.complain(key, "there is no such key, ignoring it");
            } else if !value.eq_ignore_ascii_case("false") {
                self.complain(key, "not supported yet, ignoring it");
            }
        }
    }

    /// Warns of keys of a column that has no others than the `known` ones.
    pub fn unknown(&mut self, known: &[&str]) {
        let map = self.map;
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            let known = known.join(", ");
            self.complain(
                key,
                format!("there is no such key, ignoring it; there are {known}"),
            );
        }
    }

    /// Warns of keys that are not among the `known` ones and look like one of them. Others may be
    /// somebody else's. Keys of one of `families`, which begin like these, are looked at elsewhere.
    pub fn misspelt(&mut self, families: &[&str], known: &[&[&str]]) {
        let map = self.map;
        let known = || known.iter().copied().flatten().copied();
        for key in map.keys() {
            let elsewhere = families.iter().any(|family| key.starts_with(family));
            if elsewhere || known().any(|known| known == key) {
                continue;
            }
            let alike = known().map(|known| (distance(key, known), known)).min();
            if let Some((..=LIKE, meant)) = alike
                && key.len() > 2 * LIKE
            {
                let message = format!("there is no such key, ignoring it ({meant} exists)");
                self.complain(key, message);
            }
        }
    }

    /// Returns the value as written.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.map.get(key).map(String::as_str)
    }

    /// Returns the value as an owned string.
    pub fn string(&self, key: &str) -> Option<String> {
        self.map.get(key).cloned()
    }

    /// Reads `true` or `false` in any case; `default` where the key is missing or has another
    /// value.
    pub fn boolean(&mut self, key: &str, default: bool) -> bool {
        match self.text(key) {
            None => default,
            Some(text) if text.eq_ignore_ascii_case("true") => true,
            Some(text) if text.eq_ignore_ascii_case("false") => false,
            Some(text) => {
                self.complain(
                    key,
                    format!("\"{text}\" is neither true nor false, using {default}"),
                );
                default
            }
        }
    }

    /// Reads a decimal integer and clamps it to `range`; `default` where the key is missing or not
    /// a number.
    pub fn integer(&mut self, key: &str, default: i64, range: RangeInclusive<i64>) -> i64 {
        let Some(text) = self.text(key) else {
            return default;
        };
        let Ok(number) = text.trim().parse::<i64>() else {
            self.complain(
                key,
                format!("\"{text}\" is not an integer, using {default}"),
            );
            return default;
        };
        let forced = number.clamp(*range.start(), *range.end());
        if forced != number {
            self.complain(
                key,
                format!(
                    "{number} is not in range {} to {}, using {forced}",
                    range.start(),
                    range.end()
                ),
            );
        }
        forced
    }

    /// Reads an integer like [`Options::integer`], but without a default: none if missing or bad.
    pub fn optional_integer(&mut self, key: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let text = self.text(key)?;
        match text.trim().parse::<i64>() {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                let (low, high) = (range.start(), range.end());
                self.complain(
                    key,
                    format!("\"{text}\" is not an integer in range {low} to {high}, ignoring it"),
                );
                None
            }
        }
    }

    /// Reads one of `choices`; `default` where the key is missing or has another value.
    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)], default: T) -> T {
        let Some(text) = self.text(key) else {
            return default;
        };
        if let Some((_, value)) = choices
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text))
        {
            return *value;
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        self.complain(
            key,
            format!(
                "\"{text}\" is not one of {}, using the default",
                words.join(", ")
            ),
        );
        default
    }
}

/// Most letters that differ between a key and its misspelling.
const LIKE: usize = 2;

/// Returns how many letters have to be replaced, added or left out to make a key of another; `_` is
/// as good as `-`.
fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| -> Vec<char> { text.replace('_', "-").chars().collect() };
    let (one, other) = (letters(one), letters(other));
    if one.len().abs_diff(other.len()) > LIKE {
        return usize::MAX;
    }
    // Of the beginnings of `other` from the empty one on, to the present beginning of `one`.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], index + 1);
        for (at, wanted) in other.iter().enumerate() {
            let replaced = corner + usize::from(letter != wanted);
            corner = row[at + 1];
            row[at + 1] = replaced.min(corner + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<R>(value: &str, read: impl FnOnce(&mut Options<'_>) -> R) -> (R, usize) {
        let map = Strings::from([("k".to_owned(), value.to_owned())]);
        let mut problems = Problems::default();
        let result = read(&mut Options::new(
            "Bridge",
            "br0",
            "other_config",
            &map,
            &mut problems,
        ));
        (result, problems.0.len())
    }

    #[test]
    fn integers_are_forced_into_their_range_and_nonsense_is_the_default() {
        assert_eq!(with("50", |o| o.integer("k", 300, 15..=3600)), (50, 0));
        assert_eq!(with("5", |o| o.integer("k", 300, 15..=3600)), (15, 1));
        assert_eq!(
            with("99999999999999999999", |o| o.integer("k", 300, 15..=3600)),
            (300, 1)
        );
        assert_eq!(
            with("x", |o| o.integer("missing", 300, 15..=3600)),
            (300, 0)
        );
        assert_eq!(with("0", |o| o.optional_integer("k", 1..=9)), (None, 1));
    }

    #[test]
    fn words_are_read_in_any_case() {
        assert_eq!(with("TRUE", |o| o.boolean("k", false)), (true, 0));
        assert_eq!(with("yes", |o| o.boolean("k", false)), (false, 1));
        assert_eq!(
            with("Try", |o| o.choice("k", &[("try", 1), ("true", 2)], 0)),
            (1, 0)
        );
        assert_eq!(
            with("tried", |o| o.choice("k", &[("try", 1), ("true", 2)], 0)),
            (0, 1)
        );
    }

    #[test]
    fn keys_that_look_like_others_are_misspelt() {
        let told = |key: &str| {
            let map = Strings::from([(key.to_owned(), "1".to_owned())]);
            let mut problems = Problems::default();
            Options::new("Bridge", "br0", "other_config", &map, &mut problems)
                .misspelt(&["stp-"], &[&["mac-aging-time"], &["hwaddr", "dp-sn"]]);
            problems.0.pop().map(|problem| problem.message)
        };
        for key in [
            "mac-agin-time",
            "mac_aging_time",
            "mac-aging-timee",
            "mac-agign-time",
        ] {
            let text = told(key).expect(key);
            assert!(text.contains("mac-aging-time"), "{text}");
        }
        assert!(told("hwadr").expect("hwadr").contains("hwaddr"));
        // What is right, somebody else's, too short to tell, or looked at elsewhere.
        for key in [
            "hwaddr",
            "mac-aging",
            "my-own-key",
            "dp-s",
            "stp-dp-sn",
            "",
            "\u{e4}",
        ] {
            assert_eq!(told(key), None, "{key}");
        }
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("", "ab"), 2);
        assert_eq!(distance("abcdef", "acdeff"), 2);
    }

    #[test]
    fn problems_of_other_tables_are_told_by_the_bridge() {
        let mut problems = Problems::default();
        problems.add("Bridge", "br0", "a", "first");
        problems.add("Mirror", "m", "output_port", "second");
        problems.tell_bridge(1, "br0");
        let text = &problems.by_row("Bridge")["br0"];
        assert_eq!(text, "a: first; mirror m output_port: second");
        assert!(problems.by_row("Port").is_empty());
    }

    #[test]
    fn keys_that_do_nothing_are_told_where_they_ask_for_something() {
        assert_eq!(with("4", |o| o.do_nothing(&["other", "k"])).1, 1);
        assert_eq!(with("False", |o| o.do_nothing(&["k"])).1, 0);
        assert_eq!(with("4", |o| o.do_nothing(&["other"])).1, 0);
    }

    #[test]
    fn unsupported_and_misspelt_options_are_reported() {
        let told = |key: &str, value: &str| {
            let map = Strings::from([(key.to_owned(), value.to_owned())]);
            let mut problems = Problems::default();
            Options::new("Bridge", "br0", "other_config", &map, &mut problems)
                .not_supported(&["stp-"], &["stp-priority", "stp-enable"]);
            let text = problems.by_row("Bridge").remove("br0");
            text.unwrap_or_default()
        };
        let text = "other_config:stp-priority: not supported yet, ignoring it";
        assert_eq!(told("stp-priority", "4"), text);
        assert_eq!(told("stp-enable", "false"), "");
        let text = "other_config:stp-pryority: there is no such key, ignoring it";
        assert_eq!(told("stp-pryority", "4"), text);
        assert_eq!(told("rstp-priority", "4"), "");
    }

    #[test]
    fn the_database_is_told_all_that_is_wrong_with_a_row_but_notes_within_bounds() {
        let mut problems = Problems::default();
        problems.add("Port", "p", "qos", "one");
        problems.add("Port", "p", "tag", "two");
        problems.add("Bridge", "p", "ports", "another row");
        problems.add_with(Severity::Note, "Port", "p", "mac", "a note");
        problems.add_with(Severity::Error, "Port", "q", "mac", "an error");
        let told = problems.by_row("Port");
        assert_eq!(told["p"], "qos: one; tag: two");
        assert_eq!((told["q"].as_str(), told.len()), ("mac: an error", 2));
        for _ in 0..10_000 {
            problems.add("Port", "p", "qos", "ä".repeat(40));
        }
        let told = problems.by_row("Port");
        assert!(told["p"].len() <= TOLD && told["p"].ends_with(MORE));
        assert!(told["p"].starts_with("qos: one; tag: two; qos: ä"));
    }

    #[test]
    fn a_problem_names_table_row_and_key() {
        let mut problems = Problems::default();
        let map = Strings::from([("datapath-id".to_owned(), "zz".to_owned())]);
        Options::new("Bridge", "br0", "other_config", &map, &mut problems)
            .boolean("datapath-id", true);
        let text = problems.0[0].to_string();
        assert_eq!(
            text,
            "bridge br0 other_config:datapath-id: \"zz\" is neither true nor false, using true"
        );
        assert_eq!(problems.new_since(&Problems::default()).count(), 1);
        assert_eq!(problems.new_since(&problems.clone()).count(), 0);
    }
}
