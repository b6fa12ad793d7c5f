//! Tables of an experiment's cells.

use super::Page;
use super::cells;
use super::number;
use crate::results::{Cell, Experiment, Figure, Measure, Value, Windows};
use maud::{Markup, html};
use std::collections::{BTreeMap, BTreeSet};

/// A longer table is closed until somebody opens it.
const MOST_OPEN: usize = 24;
/// Of a table that is longer, the first rows only are in the page.
const MOST_ROWS: usize = 1500;
/// Where a cell is missing for the same reason in more places, these are counted.
const MOST_PLACES: usize = 6;

/// Something that can be sorted by a number.
pub fn numeric(number: f64, words: &str) -> Markup {
    html! { td class="n" data-v=[number.is_finite().then(|| format!("{number}"))] { (words) } }
}

impl Page<'_> {
    /// All figures of an experiment. `open`: it has no plot that would show them.
    pub(super) fn cells(&self, experiment: &Experiment, open: bool) -> Markup {
        let parameters = parameters(experiment);
        let rows: Vec<(&Cell, &Measure, &Figure)> = experiment
            .cells
            .iter()
            .flat_map(|cell| {
                experiment.measures.iter().filter_map(move |measure| {
                    Some((cell, measure, cell.figures.get(&measure.name)?))
                })
            })
            .collect();
        // The paper's figures that stand beside none of ours.
        let beside = |paper: &Cell, measure: &str| {
            let counterpart = self.names.counterpart(&paper.subject);
            counterpart.is_some()
                && experiment.cells.iter().any(|cell| {
                    cell.figures.contains_key(measure)
                        && cells::in_paper(experiment, &self.names, cell, measure).is_some_and(
                            |(subject, figure)| {
                                subject == paper.subject
                                    && paper.figures.get(measure) == Some(figure)
                            },
                        )
                })
        };
        let papers: Vec<(&Cell, &Measure, &Figure)> = experiment
            .paper_cells
            .iter()
            .flat_map(|cell| {
                experiment.measures.iter().filter_map(move |measure| {
                    Some((cell, measure, cell.figures.get(&measure.name)?))
                })
            })
            .filter(|(cell, measure, _)| !beside(cell, &measure.name))
            .collect();
        if rows.is_empty() && papers.is_empty() {
            return html! {};
        }
        let several = experiment.measures.len() > 1;
        let with_paper = !experiment.paper_cells.is_empty();
        let count = rows.len() + papers.len();
        let head = |text: &str, unit: &str, class: &str| {
            html! { th scope="col" class=(class) { (text) @if !unit.is_empty() { " " span class="unit" { (unit) } } } }
        };
        let unit = match &experiment.measures[..] {
            [only] => only.unit.as_str(),
            _ => "",
        };
        html! {
            details class={ "cells" @if count > MOST_OPEN { " tall" } @if count > 200 { " long" } } open[open || count <= MOST_OPEN] {
                summary { "Figures (" (number::counted(count, "row", "rows")) ")" }
                div class="scroll" tabindex="0" role="region"
                    aria-label={ "Figures of " (experiment.id) }
                {
                    table class="sortable" {
                        thead {
                            tr {
                                (head("Switch", "", ""))
                                @for (_, title, unit) in &parameters { (head(title, unit, "")) }
                                @if several { (head("Measure", "", "")) }
                                (head("Median", unit, "n"))
                                (head("Interval", "", "n"))
                                (head("Deviation", "", "n"))
                                (head("Runs", "", "n"))
                                @if with_paper {
                                    (head("Paper", "", "n"))
                                    (head("Here / paper", "", "n"))
                                }
                            }
                        }
                        tbody {
                            @for (cell, measure, figure) in rows.iter().take(MOST_ROWS) {
                                tr {
                                    th scope="row" { (self.names.subject(&cell.subject)) }
                                    (values(cell, &parameters))
                                    @if several { td { (measured(measure)) } }
                                    (self.figure(cell, figure))
                                    @if with_paper { (self.beside(experiment, cell, measure, figure)) }
                                }
                            }
                            @for (cell, measure, figure) in papers.iter().take(MOST_ROWS) {
                                tr class="paper" {
                                    th scope="row" { "paper: " (cell.subject) }
                                    (values(cell, &parameters))
                                    @if several { td { (measured(measure)) } }
                                    td {} td {} td {} td {}
                                    (numeric(figure.median, &number::figure(figure.median)))
                                    td {}
                                }
                            }
                        }
                    }
                }
                @if rows.len() > MOST_ROWS {
                    p class="note" {
                        "The other " (number::fixed((rows.len() - MOST_ROWS) as f64, 0))
                        " rows are in results.json."
                    }
                }
            }
        }
    }

    fn figure(&self, cell: &Cell, figure: &Figure) -> Markup {
        let interval = cells::interval(figure);
        html! {
            td class="n" data-v=[figure.median.is_finite().then(|| format!("{}", figure.median))] {
                strong { (number::figure(figure.median)) }
                @if let Some(limit) = &cell.limited_by {
                    " " abbr title={ "limited by " (limit) } { "†" }
                }
            }
            @match interval {
                Some((low, high)) => td class="n" data-v=(format!("{}", high - low)) {
                    (number::figure(low)) " to " (number::figure(high))
                },
                None => td class="n" { (number::NONE) },
            }
            @if figure.runs.len() > 1 {
                (numeric(figure.deviation, &number::figure(figure.deviation)))
            } @else {
                td class="n" { (number::NONE) }
            }
            td class="n" data-v=(figure.runs.len())
                title=[(!figure.runs.is_empty()).then(|| runs(figure))]
            {
                @if figure.runs.is_empty() { (number::NONE) } @else { (figure.runs.len()) }
                @if let Some(words) = windows(cell) { " " abbr title=(words) { "‡" } }
            }
        }
    }

    /// The paper's figure for the same, and how many times that this is.
    fn beside(
        &self,
        experiment: &Experiment,
        cell: &Cell,
        measure: &Measure,
        figure: &Figure,
    ) -> Markup {
        let Some((subject, paper)) = cells::in_paper(experiment, &self.names, cell, &measure.name)
        else {
            return html! { td {} td {} };
        };
        let ratio = figure.median / paper.median;
        html! {
            td class="n" title=(subject) data-v=[paper.median.is_finite().then_some(paper.median)] {
                (number::figure(paper.median))
            }
            (numeric(ratio, &number::times(ratio)))
        }
    }

    /// Cells without figures, with their reasons: those with the same in one line.
    pub(super) fn missing(&self, experiment: &Experiment) -> Markup {
        let mut reasons: BTreeMap<(usize, &str, &str), Vec<&Cell>> = BTreeMap::new();
        let mut order: Vec<&str> = Vec::new();
        for cell in &experiment.cells {
            let Some(reason) = &cell.missing else {
                continue;
            };
            let place = order.iter().position(|subject| *subject == cell.subject);
            let place = place.unwrap_or_else(|| {
                order.push(&cell.subject);
                order.len() - 1
            });
            reasons
                .entry((place, &cell.subject, reason))
                .or_default()
                .push(cell);
        }
        if reasons.is_empty() {
            return html! {};
        }
        html! {
            h4 { "Not measured" }
            ul class="missing" {
                @for ((_, subject, reason), cells) in reasons {
                    li {
                        strong { (self.names.subject(subject)) }
                        (places(experiment, &cells))
                        ": " (reason)
                    }
                }
            }
        }
    }

    /// Cells that something else than the switch limited.
    pub(super) fn limited(&self, experiment: &Experiment) -> Markup {
        let limits = experiment
            .cells
            .iter()
            .filter_map(|c| c.limited_by.as_deref());
        html! {
            @for (limit, differ, count) in cells::alike(limits) {
                p class="note" {
                    "† " (number::counted(count, "cell is", "cells are")) " limited by " (limit)
                    @if differ { " (in one of them)" }
                    ", not by the switch: the switch might do better."
                }
            }
        }
    }

    /// How many windows did not go as they should, in cells that have figures.
    pub(super) fn windows(&self, experiment: &Experiment) -> Markup {
        let with = |part: fn(&Windows) -> u32| {
            let counted = experiment
                .cells
                .iter()
                .map(|cell| &cell.windows)
                .filter(|windows| windows.measured > 0 && part(windows) > 0);
            counted.fold((0, 0, 0), |(cells, some, all), windows| {
                let whole = (windows.measured + windows.failed + windows.aside) as usize;
                (cells + 1, some + part(windows) as usize, all + whole)
            })
        };
        let because: BTreeSet<&str> = experiment
            .cells
            .iter()
            .filter(|cell| cell.windows.measured > 0)
            .filter_map(|cell| cell.windows.because.as_deref())
            .map(|why| why.trim_end_matches('.'))
            .collect();
        let told = [
            (
                with(|windows| windows.failed),
                "failed and are not in the figures",
            ),
            (
                with(|windows| windows.aside),
                "are put aside and not in the figures: the machine's speed, or the way between its \
                 cores, was not what it was most of the time",
            ),
            (
                with(|windows| windows.moved),
                "are in the figures although the machine's speed moved in them, each time that they \
                 were repeated",
            ),
            (
                with(|windows| match windows.are_limited() {
                    true => 0,
                    false => windows.limited,
                }),
                "were limited by something else than the switch, too few to limit the median",
            ),
        ];
        html! {
            @for (number, ((cells, some, all), words)) in told.into_iter().enumerate() {
                @if cells > 0 {
                    p class="note" {
                        "‡ In " (number::counted(cells, "cell", "cells")) " " (some) " of " (all)
                        " windows " (words)
                        @if number == 0 && !because.is_empty() {
                            ": " (because.iter().take(MOST_PLACES).copied().collect::<Vec<_>>().join("; "))
                        }
                        "."
                    }
                }
            }
        }
    }
}

/// What did not go as it should in a cell's windows, in words.
fn windows(cell: &Cell) -> Option<String> {
    let windows = &cell.windows;
    let words: Vec<String> = [
        (windows.failed, "failed"),
        (windows.aside, "put aside"),
        (windows.moved, "in which the machine's speed moved"),
        (windows.limited, "limited by something else than the switch"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, words)| format!("{count} {words}"))
    .collect();
    let whole = windows.measured + windows.failed + windows.aside;
    (!words.is_empty()).then(|| format!("of {whole} windows {}", words.join(", ")))
}

/// Parameters that any cell has: name, title, unit.
fn parameters(experiment: &Experiment) -> Vec<(String, String, String)> {
    let mut names: Vec<String> = Vec::new();
    for parameter in &experiment.parameters {
        names.push(parameter.name.clone());
    }
    let cells = experiment.cells.iter().chain(&experiment.paper_cells);
    for name in cells.clone().flat_map(|cell| cell.at.keys()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names.retain(|name| cells.clone().any(|cell| cell.at.contains_key(name)));
    names
        .into_iter()
        .map(|name| {
            let (title, unit) = cells::parameter(experiment, &name);
            (name, title, unit)
        })
        .collect()
}

fn values(cell: &Cell, parameters: &[(String, String, String)]) -> Markup {
    html! {
        @for (name, _, _) in parameters {
            @match cell.at.get(name) {
                Some(Value::Number(value)) => (numeric(*value, &number::exact(*value))),
                Some(Value::Text(text)) => td { (text) },
                None => td {},
            }
        }
    }
}

fn measured(measure: &Measure) -> Markup {
    html! {
        (cells::title(measure))
        @if !measure.unit.is_empty() { " " span class="unit" { (measure.unit) } }
    }
}

/// The runs, for who points at their number.
fn runs(figure: &Figure) -> String {
    let shown: Vec<String> = figure
        .runs
        .iter()
        .take(20)
        .map(|run| number::figure(*run))
        .collect();
    let more = if figure.runs.len() > 20 { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

fn places(experiment: &Experiment, cells: &[&Cell]) -> String {
    let mut places: Vec<String> = cells
        .iter()
        .map(|cell| cells::place(experiment, cell))
        .collect();
    places.retain(|place| !place.is_empty());
    places.dedup();
    if places.is_empty() {
        return String::new();
    }
    if places.len() > MOST_PLACES {
        return format!(" ({})", number::counted(cells.len(), "cell", "cells"));
    }
    format!(" ({})", places.join("; "))
}
