//! From an experiment's cells to what a plot shows: which figures, in which series, at which
//! places.

use super::scale::{drawable, range};
use crate::report::cells::{self, Names, alike};
use crate::report::number;
use crate::results::{Cell, Experiment, Figure, Measure, Plot, Value};
use std::collections::{HashMap, HashSet};

/// More lines than these cannot be told apart.
pub const MOST_SERIES: usize = 12;
/// More rows of bars than these nobody reads.
pub const MOST_ROWS: usize = 90;
/// More measures than these do not stack.
pub const MOST_STACKED: usize = 16;

/// What a plot shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Lines over an axis.
    Line(Lines),
    /// Bars, or measures stacked to bars, in rows.
    Rows(Rows),
}

/// How a series looks, in colour and in form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Number of its colour and form.
    pub number: usize,
    /// Whether it is the paper's, not ours.
    pub paper: bool,
}

/// An axis's quantity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dimension {
    /// For people, with the unit.
    pub title: String,
    /// Its unit.
    pub unit: String,
    /// Whether its axis is logarithmic.
    pub log: bool,
    /// Names of its values, where these are no numbers: values are indices.
    pub names: Option<Vec<String>>,
    /// Whether its axis has to show zero.
    pub zero: bool,
}

/// Lines over an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// A title.
    pub title: String,
    /// The horizontal axis.
    pub x: Dimension,
    /// The vertical one.
    pub y: Dimension,
    /// The lines.
    pub series: Vec<Series>,
    /// Whether it is an aside, which is drawn lower.
    pub small: bool,
    /// What has to be known to read it, a sentence each.
    pub notes: Vec<String>,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Its points from left to right.
    pub points: Vec<Point>,
}

/// A point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// Its figure; not a number where there is a gap.
    pub y: f64,
    /// Lower end of the interval; the figure itself if there is none.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Whether something else than the switch was the limit.
    pub limited: bool,
}

/// Bars in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// A title.
    pub title: String,
    /// The horizontal axis, along which bars extend.
    pub value: Dimension,
    /// What is stacked; empty where bars have one part.
    pub parts: Vec<String>,
    /// The rows from top to bottom.
    pub rows: Vec<Row>,
    /// What has to be known to read it, a sentence each.
    pub notes: Vec<String>,
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// What it and the rows after it have in common; empty: the same as before, or nothing.
    pub group: String,
    /// Its name.
    pub name: String,
    /// How it looks, where bars have one part.
    pub look: Look,
    /// Its bar, or the parts of it: `x` is the number of the part.
    pub points: Vec<Point>,
}

/// Cells of one line, or of the rows of one name.
struct Group<'a> {
    name: String,
    look: Look,
    measure: Option<&'a Measure>,
    cells: Vec<&'a Cell>,
}

/// Why a plot is not drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChart {
    /// It is to show a measure that the experiment does not have.
    #[error("the experiment has no measure \"{0}\"")]
    UnknownMeasure(String),
    /// It is to show no measure.
    #[error("the plot names no measure")]
    NoMeasure,
    /// Its cells were not measured.
    #[error("no cell that it would show has a figure")]
    NoFigure,
    /// No figure has a place: a number, or above 0 for a logarithm.
    #[error("no figure is at a place that its axes can show")]
    NoPlace,
    /// Bars would have this many parts.
    #[error("{0} parts are too many to stack")]
    TooManyParts(usize),
    /// It would have this many lines.
    #[error(
        "{} lines are more than can be told apart in a plot; the table has them",
        number::fixed(*.0 as f64, 0)
    )]
    TooManyLines(usize),
    /// It would have this many bars.
    #[error(
        "{} bars are more than a plot can show; the table has them",
        number::fixed(*.0 as f64, 0)
    )]
    TooManyBars(usize),
}

/// Returns what a plot of an experiment shows.
pub fn chart(experiment: &Experiment, plot: &Plot, names: &Names) -> Result<Chart, NoChart> {
    let measures: Vec<&Measure> = plot
        .y
        .iter()
        .map(|name| {
            experiment
                .measures
                .iter()
                .find(|measure| measure.name == *name)
                .ok_or_else(|| NoChart::UnknownMeasure(name.clone()))
        })
        .collect::<Result<_, _>>()?;
    let Some(first) = measures.first() else {
        return Err(NoChart::NoMeasure);
    };
    let mut cells: Vec<&Cell> = experiment
        .cells
        .iter()
        .filter(|cell| selected(plot, cell, names, false))
        .collect();
    let ours = cells.len();
    if plot.paper {
        cells.extend(
            experiment
                .paper_cells
                .iter()
                .filter(|cell| selected(plot, cell, names, true)),
        );
    }
    if cells
        .iter()
        .take(ours)
        .all(|cell| measures.iter().all(|m| figure(cell, m).is_none()))
    {
        return Err(NoChart::NoFigure);
    }
    let mut notes = Vec::new();
    let shown: Vec<&Measure> = match plot.kind.as_str() {
        "stack" => measures.clone(),
        _ => measures
            .iter()
            .copied()
            .filter(|measure| measure.unit == first.unit)
            .collect(),
    };
    if shown.len() < measures.len() {
        notes.push("Measures in other units are in the table only.".to_string());
    }
    let stacked = plot.kind == "stack";
    if stacked && shown.len() > MOST_STACKED {
        return Err(NoChart::TooManyParts(shown.len()));
    }
    let titles: Vec<String> = shown.iter().map(|measure| cells::title(measure)).collect();
    let mut value = Dimension {
        title: match (&titles[..], stacked) {
            ([one], _) => titled(one, &first.unit),
            (_, true) => capital(&titled(&first.unit, "")),
            (several, false) => titled(&several.join(", "), &first.unit),
        },
        unit: first.unit.clone(),
        log: plot.y_log && !stacked,
        names: None,
        zero: true,
    };
    if stacked && plot.y_log {
        notes.push("Parts of a whole are not drawn on a logarithmic axis.".to_string());
    }
    let groups = groups(
        experiment,
        plot,
        &cells,
        ours,
        if stacked { &[] } else { &shown },
        names,
    );
    let figures = || {
        cells
            .iter()
            .flat_map(|cell| shown.iter().filter_map(|measure| figure(cell, measure)))
    };
    if value.log && range(figures().map(|figure| figure.median), true).is_none() {
        value.log = false;
        notes.push("No figure is above zero, so the axis is linear.".to_string());
    }
    let hidden = figures()
        .filter(|figure| !drawable(figure.median, value.log))
        .count();
    if hidden > 0 {
        let why = if value.log {
            "a logarithmic axis"
        } else {
            "an axis"
        };
        notes.push(format!(
            "{} that {why} cannot show; the table has them.",
            number::counted(hidden, "figure is left out", "figures are left out")
        ));
    }
    let limits = cells
        .iter()
        .filter(|cell| shown.iter().any(|measure| figure(cell, measure).is_some()))
        .filter_map(|cell| cell.limited_by.as_deref());
    for (limit, differ, _) in alike(limits) {
        let one = if differ { " (in one of them)" } else { "" };
        notes.push(format!("†: limited by {limit}{one}, not by the switch."));
    }
    let title = match plot.title.as_str() {
        "" => titles.join(", "),
        title => title.to_string(),
    };
    if plot.kind == "line" {
        let head = Lines {
            title,
            y: value,
            notes,
            ..Default::default()
        };
        line(experiment, plot, names, groups, head)
    } else {
        let parts = if stacked { &shown[..] } else { &[] };
        let head = Rows {
            title,
            value,
            notes,
            ..Default::default()
        };
        rows(experiment, plot, names, groups, parts, head)
    }
}

/// Whether a plot shows a cell. The paper's cells may say less of where they are.
fn selected(plot: &Plot, cell: &Cell, names: &Names, paper: bool) -> bool {
    plot.only.iter().all(|(name, wanted)| {
        if name == "subject" {
            let counterpart = names.counterpart(&cell.subject).filter(|_| paper);
            return matches!(wanted, Value::Text(text)
                if *text == cell.subject || Some(text) == counterpart.as_ref());
        }
        match cell.at.get(name) {
            Some(value) => cells::same(value, wanted),
            None => paper,
        }
    })
}

/// A cell's figure that can be drawn or told about.
fn figure<'a>(cell: &'a Cell, measure: &Measure) -> Option<&'a Figure> {
    cell.figures
        .get(&measure.name)
        .filter(|figure| !figure.median.is_nan())
}

/// `Throughput, Mpps`
fn titled(title: &str, unit: &str) -> String {
    match (title, unit) {
        (title, "") => title.to_string(),
        ("", unit) => unit.to_string(),
        (title, unit) => format!("{title}, {unit}"),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The cells by what tells lines or bars apart: the plot's series, and whatever else they differ
/// in that is not on the horizontal axis. So no line has two points in one place.
fn groups<'a>(
    experiment: &Experiment,
    plot: &Plot,
    shown: &[&'a Cell],
    ours: usize,
    measures: &[&'a Measure],
    names: &Names,
) -> Vec<Group<'a>> {
    let mut keys: Vec<&str> = Vec::new();
    let series = if plot.series.is_empty() {
        "subject"
    } else {
        plot.series.as_str()
    };
    let mut candidates = vec![series, "subject"];
    candidates.extend(
        experiment
            .parameters
            .iter()
            .map(|parameter| parameter.name.as_str()),
    );
    for name in candidates {
        if keys.contains(&name) || (name == plot.x && name != series) {
            continue;
        }
        let values: HashSet<String> = shown
            .iter()
            .take(ours)
            .filter_map(|cell| cells::at(cell, name).as_ref().map(cells::key))
            .collect();
        // Where measures tell lines apart, a single subject need not be named with each.
        if values.len() > 1 || (name == series && measures.len() < 2) {
            keys.push(name);
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    let measures: Vec<Option<&Measure>> = match measures {
        [] => vec![None],
        measures => measures.iter().copied().map(Some).collect(),
    };
    let mut known: HashMap<(bool, String), usize> = HashMap::new();
    let mut identities: Vec<Vec<String>> = Vec::new();
    for (number, &cell) in shown.iter().enumerate() {
        let paper = number >= ours;
        for &measure in &measures {
            let mut words: Vec<String> = keys
                .iter()
                .filter_map(|&key| {
                    let value = cells::at(cell, key)?;
                    Some(cells::worded(experiment, names, key, &value, key != series))
                })
                .collect();
            if paper && !keys.contains(&"subject") {
                words.insert(0, cell.subject.clone());
            }
            if measures.len() > 1
                && let Some(measure) = measure
            {
                words.push(cells::title(measure));
            }
            let name = match (paper, words.join(", ")) {
                (true, name) => format!("paper: {name}"),
                (false, name) => name,
            };
            if let Some(&group) = known.get(&(paper, name.clone())) {
                groups[group].cells.push(cell);
                continue;
            }
            known.insert((paper, name.clone()), groups.len());
            // What ours and the paper's have in common when they are the same.
            let mut identity: Vec<String> = keys
                .iter()
                .filter_map(|&key| match cells::at(cell, key)? {
                    Value::Text(subject) if key == "subject" => Some(
                        names
                            .counterpart(&subject)
                            .unwrap_or(subject.to_lowercase()),
                    ),
                    value => Some(cells::key(&value)),
                })
                .collect();
            identity.extend(measure.map(|measure| measure.name.clone()));
            identities.push(identity);
            let look = Look { number: 0, paper };
            groups.push(Group {
                name,
                look,
                measure,
                cells: vec![cell],
            });
        }
    }
    // Subjects look the same in all plots, as long as they are all that differs.
    let by_subject = keys == ["subject"] && measures.len() == 1;
    let fixed = |identity: &Vec<String>| match &identity[..] {
        [subject, ..] if by_subject => names.look(subject),
        _ => None,
    };
    let taken: HashSet<usize> = identities.iter().filter_map(fixed).collect();
    let first = usize::from(by_subject);
    let mut free = (first..).filter(|number| !taken.contains(number));
    let mut numbers: HashMap<&Vec<String>, usize> = HashMap::new();
    for (group, identity) in groups.iter_mut().zip(&identities) {
        group.look.number = *numbers
            .entry(identity)
            .or_insert_with(|| fixed(identity).or_else(|| free.next()).unwrap_or(0));
    }
    groups
}

/// The values along the horizontal axis in the order in which they are shown.
fn places(plot: &Plot, groups: &[Group]) -> Vec<Value> {
    let mut known = HashSet::new();
    let mut places: Vec<Value> = Vec::new();
    for cell in groups.iter().flat_map(|group| &group.cells) {
        if let Some(value) = cells::at(cell, &plot.x)
            && known.insert(cells::key(&value))
        {
            places.push(value);
        }
    }
    if places.iter().all(|place| matches!(place, Value::Number(_))) {
        places.sort_by(|left, right| match (left, right) {
            (Value::Number(left), Value::Number(right)) => left.total_cmp(right),
            _ => std::cmp::Ordering::Equal,
        });
    }
    places
}

fn point(x: f64, cell: &Cell, measure: &Measure, log: bool) -> Point {
    let nothing = Point {
        x,
        y: f64::NAN,
        low: f64::NAN,
        high: f64::NAN,
        limited: false,
    };
    match figure(cell, measure) {
        Some(figure) if drawable(figure.median, log) => {
            let (low, high) = cells::interval(figure).unwrap_or((figure.median, figure.median));
            let end = |end| {
                if drawable(end, log) {
                    end
                } else {
                    figure.median
                }
            };
            let limited = cell.limited_by.is_some();
            Point {
                x,
                y: figure.median,
                low: end(low),
                high: end(high),
                limited,
            }
        }
        _ => nothing,
    }
}

fn line(
    experiment: &Experiment,
    plot: &Plot,
    names: &Names,
    groups: Vec<Group>,
    head: Lines,
) -> Result<Chart, NoChart> {
    let Lines {
        title,
        y,
        mut notes,
        ..
    } = head;
    if groups.len() > MOST_SERIES {
        return Err(NoChart::TooManyLines(groups.len()));
    }
    let places = places(plot, &groups);
    let numbers = places.iter().all(|place| matches!(place, Value::Number(_)));
    let (title_x, unit) = cells::parameter(experiment, &plot.x);
    let mut log = plot.x_log && numbers;
    let number = |place: &Value| match place {
        Value::Number(number) => *number,
        Value::Text(_) => f64::NAN,
    };
    if log && range(places.iter().map(number), true).is_none() {
        log = false;
        notes.push("No value is above zero, so the horizontal axis is linear.".to_string());
    }
    let hidden = places
        .iter()
        .filter(|place| numbers && !drawable(number(place), log))
        .count();
    if hidden > 0 {
        notes.push(format!(
            "{} that the horizontal axis cannot show; the table has them.",
            number::counted(hidden, "value is left out", "values are left out")
        ));
    }
    let x = Dimension {
        title: titled(&title_x, &unit),
        unit,
        log,
        names: (!numbers).then(|| {
            places
                .iter()
                .map(|place| cells::worded(experiment, names, &plot.x, place, false))
                .collect()
        }),
        zero: false,
    };
    let index: HashMap<String, usize> = places
        .iter()
        .enumerate()
        .map(|(index, place)| (cells::key(place), index))
        .collect();
    let mut series: Vec<Series> = Vec::new();
    for group in &groups {
        let Some(measure) = group.measure else {
            continue;
        };
        let mut points: Vec<Point> = group
            .cells
            .iter()
            .filter_map(|cell| {
                let place = cells::at(cell, &plot.x)?;
                let at = match numbers {
                    true => number(&place),
                    false => *index.get(&cells::key(&place))? as f64,
                };
                drawable(at, log).then(|| point(at, cell, measure, y.log))
            })
            .collect();
        points.sort_by(|left, right| left.x.total_cmp(&right.x));
        if points.iter().any(|point| point.y.is_finite()) {
            let (name, look) = (group.name.clone(), group.look);
            series.push(Series { name, look, points });
        }
    }
    if series.is_empty() {
        return Err(NoChart::NoPlace);
    }
    Ok(Chart::Line(Lines {
        title,
        x,
        y,
        series,
        small: false,
        notes,
    }))
}

fn rows(
    experiment: &Experiment,
    plot: &Plot,
    names: &Names,
    groups: Vec<Group>,
    parts: &[&Measure],
    head: Rows,
) -> Result<Chart, NoChart> {
    let Rows {
        title,
        value,
        mut notes,
        ..
    } = head;
    // Where rows are what the horizontal axis has, they need no headings.
    let series = if plot.series.is_empty() {
        "subject"
    } else {
        plot.series.as_str()
    };
    let grouped = !plot.x.is_empty() && plot.x != series;
    let places = match grouped {
        true => places(plot, &groups),
        false => Vec::new(),
    };
    let (parameter, _) = cells::parameter(experiment, &plot.x);
    let groups = beside(groups);
    // With a single series, rows are named by their places, and the title names the series.
    let single = grouped && groups.len() == 1;
    let title = match &groups[..] {
        [only] if single && !only.name.is_empty() && !title.contains(&only.name) => {
            format!("{title}: {}", only.name)
        }
        _ => title,
    };
    let mut rows: Vec<Row> = Vec::new();
    if places.len() > MOST_ROWS {
        return Err(NoChart::TooManyBars(places.len()));
    }
    let slots: Vec<Option<&Value>> = if grouped {
        places.iter().map(Some).collect()
    } else {
        vec![None]
    };
    let mut negative = 0;
    for place in slots {
        let mut heading = match place {
            Some(place @ Value::Number(_)) => format!(
                "{parameter}: {}",
                cells::worded(experiment, names, &plot.x, place, false)
            ),
            Some(place) => cells::worded(experiment, names, &plot.x, place, false),
            None => String::new(),
        };
        for group in &groups {
            for cell in &group.cells {
                if let Some(place) = place
                    && !cells::at(cell, &plot.x).is_some_and(|at| cells::same(&at, place))
                {
                    continue;
                }
                let points: Vec<Point> = match group.measure {
                    Some(measure) => vec![point(0.0, cell, measure, value.log)],
                    None => parts
                        .iter()
                        .enumerate()
                        .map(|(number, measure)| point(number as f64, cell, measure, false))
                        .collect(),
                };
                if points.iter().all(|point| !point.y.is_finite()) {
                    continue;
                }
                if group.measure.is_none() {
                    negative += points.iter().filter(|point| point.y < 0.0).count();
                }
                let heading = std::mem::take(&mut heading);
                rows.push(match single {
                    true => Row {
                        group: String::new(),
                        name: heading,
                        look: group.look,
                        points,
                    },
                    false => Row {
                        group: heading,
                        name: group.name.clone(),
                        look: group.look,
                        points,
                    },
                });
            }
        }
    }
    if negative > 0 {
        notes.push("Parts below zero are not drawn; the table has them.".to_string());
    }
    if rows.is_empty() {
        return Err(NoChart::NoPlace);
    }
    if rows.len() > MOST_ROWS {
        return Err(NoChart::TooManyBars(rows.len()));
    }
    let parts = parts.iter().map(|measure| cells::title(measure)).collect();
    Ok(Chart::Rows(Rows {
        title,
        value,
        parts,
        rows,
        notes,
    }))
}

/// The paper's groups after those of ours that look alike: both of one thing.
fn beside(groups: Vec<Group>) -> Vec<Group> {
    let (mut papers, ours): (Vec<Group>, Vec<Group>) =
        groups.into_iter().partition(|group| group.look.paper);
    let mut ordered = Vec::new();
    for group in ours {
        let number = group.look.number;
        ordered.push(group);
        let (alike, others): (Vec<Group>, Vec<Group>) = papers
            .into_iter()
            .partition(|paper| paper.look.number == number);
        ordered.extend(alike);
        papers = others;
    }
    ordered.extend(papers);
    ordered
}

impl Lines {
    /// A sentence for those who do not see it.
    pub fn sentence(&self) -> String {
        let mut said: Vec<String> = Vec::new();
        for series in self.series.iter().take(6) {
            let points: Vec<&Point> = series
                .points
                .iter()
                .filter(|point| point.y.is_finite())
                .collect();
            let unit = &self.y.unit;
            said.push(match &points[..] {
                [] => continue,
                [one] => {
                    titled(&format!("{} {}", series.name, number::figure(one.y)), "") + " " + unit
                }
                [first, .., last] => format!(
                    "{} from {} to {} {unit}",
                    series.name,
                    number::figure(first.y),
                    number::figure(last.y)
                ),
            });
        }
        let more = self.series.len().saturating_sub(6);
        if more > 0 {
            said.push(number::counted(more, "other line", "other lines"));
        }
        let x = if self.x.title.is_empty() {
            "one value"
        } else {
            &self.x.title
        };
        format!(
            "{}. Lines of {} over {x}: {}.",
            self.title,
            self.y.title,
            said.join("; ")
        )
    }
}

impl Rows {
    /// A sentence for those who do not see it.
    pub fn sentence(&self) -> String {
        let mut group = "";
        let mut said: Vec<String> = Vec::new();
        for row in self.rows.iter().take(12) {
            if !row.group.is_empty() {
                group = &row.group;
            }
            let total: f64 = row
                .points
                .iter()
                .map(|p| p.y)
                .filter(|y| y.is_finite())
                .sum();
            let name = match (group, row.name.as_str()) {
                ("", name) => name.to_string(),
                (group, "") => group.to_string(),
                (group, name) => format!("{group}, {name}"),
            };
            said.push(format!("{name} {}", number::figure(total)));
        }
        let more = self.rows.len().saturating_sub(12);
        if more > 0 {
            said.push(number::counted(more, "other bar", "other bars"));
        }
        let kind = if self.parts.is_empty() {
            "Bars"
        } else {
            "Stacked bars"
        };
        format!(
            "{}. {kind} of {}: {}.",
            self.title,
            self.value.title,
            said.join("; ")
        )
    }
}
