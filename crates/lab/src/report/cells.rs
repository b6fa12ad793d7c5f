//! Cells: where they are, in words; which of them are the same in the paper or in another run; what
//! their figures say.

use crate::report::number;
use crate::results::{Cell, Experiment, Figure, Measure, Results, Value};

/// Names of subjects for people, and how they look.
#[derive(Clone, Debug, Default)]
pub struct Names {
    subjects: Vec<(String, String)>,
}

/// Subjects that look the same in every report, in the order of their looks.
const KNOWN: [&str; 7] = [
    "sluice",
    "ovs-dpdk",
    "ovs-netdev",
    "linux-bridge",
    "linux-ip",
    "testpmd",
    "vpp",
];

/// What papers call what they measured, and the subject here that is nearest to it.
const COUNTERPARTS: [(&str, &str); 14] = [
    ("ovs", "ovs-netdev"),
    ("open vswitch", "ovs-netdev"),
    ("dpdk vswitch", "ovs-dpdk"),
    ("ovs-dpdk", "ovs-dpdk"),
    ("bridge", "linux-bridge"),
    ("linux bridge", "linux-bridge"),
    ("ip forwarding", "linux-ip"),
    ("linux ip forwarding", "linux-ip"),
    ("linux router", "linux-ip"),
    ("l2fwd", "testpmd"),
    ("dpdk l2fwd", "testpmd"),
    ("htb", "linux-htb"),
    ("trtcm", "ovs-trtcm"),
    ("vse", "sluice"),
];

impl Names {
    /// Those of a run.
    pub fn new(results: &Results) -> Names {
        let mut subjects: Vec<(String, String)> = Vec::new();
        for subject in &results.subjects {
            let name = if subject.name.is_empty() {
                &subject.id
            } else {
                &subject.name
            };
            subjects.push((subject.id.clone(), name.clone()));
        }
        Names { subjects }
    }

    /// A subject's name.
    pub fn subject<'a>(&'a self, id: &'a str) -> &'a str {
        self.subjects
            .iter()
            .find(|(other, _)| other == id)
            .map_or(id, |(_, name)| name)
    }

    /// The subject here that a paper's is nearest to.
    pub fn counterpart(&self, paper: &str) -> Option<String> {
        if let Some((id, _)) = self
            .subjects
            .iter()
            .find(|(id, name)| id == paper || name == paper)
        {
            return Some(id.clone());
        }
        let paper = paper.to_lowercase();
        if KNOWN.contains(&paper.as_str()) {
            return Some(paper);
        }
        COUNTERPARTS
            .iter()
            .find(|(name, _)| *name == paper)
            .map(|(_, id)| id.to_string())
    }

    /// Number of a subject's colour and form, if it is one that has the same everywhere.
    pub fn look(&self, subject: &str) -> Option<usize> {
        KNOWN.iter().position(|known| *known == subject)
    }
}

/// A value of a cell: a parameter's, or `subject`.
pub fn at(cell: &Cell, name: &str) -> Option<Value> {
    match name {
        "subject" => Some(Value::Text(cell.subject.clone())),
        name => cell.at.get(name).cloned(),
    }
}

/// What tells values apart: the same for numbers that differ by errors of representation only.
pub fn key(value: &Value) -> String {
    match value {
        Value::Number(number) if *number == 0.0 => "0".to_string(),
        Value::Number(number) => format!("{number:.9e}"),
        Value::Text(text) => format!("={text}"),
    }
}

/// Whether values are the same.
pub fn same(left: &Value, right: &Value) -> bool {
    key(left) == key(right)
}

/// What tells the cells of an experiment apart.
pub fn cell_key(cell: &Cell) -> String {
    let mut words = vec![cell.subject.clone()];
    words.extend(
        cell.at
            .iter()
            .map(|(name, value)| format!("{name}{}", key(value))),
    );
    words.join("\u{1f}")
}

/// Texts that differ in numbers only, together: the first of each kind, whether others were unlike
/// it, and how many there were.
pub fn alike<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<(&'a str, bool, usize)> {
    let kind = |text: &str| -> String {
        let digits = |letter: char| letter.is_ascii_digit() || letter == '.';
        let parts: Vec<&str> = text.split(digits).filter(|part| !part.is_empty()).collect();
        parts.join("#")
    };
    let mut kinds: Vec<(String, (&str, bool, usize))> = Vec::new();
    for text in texts {
        let key = kind(text);
        match kinds.iter_mut().find(|(known, _)| *known == key) {
            Some((_, (first, differ, count))) => {
                *differ |= *first != text;
                *count += 1;
            }
            None => kinds.push((key, (text, false, 1))),
        }
    }
    kinds.into_iter().map(|(_, found)| found).collect()
}

/// A measure's name for people.
pub fn title(measure: &Measure) -> String {
    if measure.title.is_empty() {
        measure.name.clone()
    } else {
        measure.title.clone()
    }
}

/// A parameter's name for people, and its unit.
pub fn parameter(experiment: &Experiment, name: &str) -> (String, String) {
    let known = experiment
        .parameters
        .iter()
        .find(|parameter| parameter.name == name);
    match known {
        Some(known) if !known.title.is_empty() => (known.title.clone(), known.unit.clone()),
        Some(known) => (name.to_string(), known.unit.clone()),
        None if name == "subject" => ("Switch".to_string(), String::new()),
        None => (name.to_string(), String::new()),
    }
}

/// A value in words: `64 B`; with the parameter before it if `named`: `packet size 64 B`.
pub fn worded(
    experiment: &Experiment,
    names: &Names,
    name: &str,
    value: &Value,
    named: bool,
) -> String {
    let (title, unit) = parameter(experiment, name);
    match value {
        Value::Text(text) if name == "subject" => names.subject(text).to_string(),
        Value::Text(text) => text.clone(),
        Value::Number(number) => {
            let mut words = number::exact(*number);
            if !unit.is_empty() {
                words = format!("{words} {unit}");
            }
            match named {
                true => format!("{} {words}", lower(&title)),
                false => words,
            }
        }
    }
}

/// A title within a sentence: its first letter is small, unless it begins an abbreviation.
pub fn lower(title: &str) -> String {
    let mut letters = title.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if !second.is_uppercase() && !second.is_numeric() => {
            first.to_lowercase().chain(title.chars().skip(1)).collect()
        }
        _ => title.to_string(),
    }
}

/// Where a cell is, in words, without its subject.
pub fn place(experiment: &Experiment, cell: &Cell) -> String {
    let mut words = Vec::new();
    let names = Names::default();
    for (name, value) in in_order(experiment, cell) {
        words.push(worded(experiment, &names, name, value, true));
    }
    words.join(", ")
}

/// A cell's values in the order of the experiment's parameters; others after them.
pub fn in_order<'a>(experiment: &'a Experiment, cell: &'a Cell) -> Vec<(&'a str, &'a Value)> {
    let mut values: Vec<(&str, &Value)> = Vec::new();
    for parameter in &experiment.parameters {
        if let Some(value) = cell.at.get(&parameter.name) {
            values.push((&parameter.name, value));
        }
    }
    for (name, value) in &cell.at {
        if !values.iter().any(|(known, _)| known == name) {
            values.push((name, value));
        }
    }
    values
}

/// A figure's interval, if it has one.
pub fn interval(figure: &Figure) -> Option<(f64, f64)> {
    let Figure {
        median, low, high, ..
    } = *figure;
    let whole = low.is_finite() && high.is_finite() && median.is_finite();
    (whole && low <= median && median <= high && (low < high || figure.runs.len() > 1))
        .then_some((low, high))
}

/// The paper's figure for what a cell measured, with what the paper calls it.
pub fn in_paper<'a>(
    experiment: &'a Experiment,
    names: &Names,
    cell: &Cell,
    measure: &str,
) -> Option<(&'a str, &'a Figure)> {
    experiment.paper_cells.iter().find_map(|paper| {
        let figure = paper.figures.get(measure)?;
        let counterpart = names.counterpart(&paper.subject)?;
        let there = counterpart == cell.subject
            && paper
                .at
                .iter()
                .all(|(name, value)| cell.at.get(name).is_some_and(|other| same(other, value)));
        there.then_some((paper.subject.as_str(), figure))
    })
}
