//! What the report begins with: the answers, then what they stand on.

use super::plot::data::{Chart, Dimension, Lines, Look, Point, Series};
use super::table::numeric;
use super::{Page, cells, number, outcome, plot};
use crate::advice;
use crate::compare::{Change, Way};
use crate::findings;
use crate::results::{Cell, Figure, Finding, Results, State};
use maud::{Markup, html};
use std::collections::HashMap;

/// Quantities in the table of best figures.
const MOST_COLUMNS: usize = 3;
/// Changes of each way shown at the top; the others are with their experiments.
const MOST_CHANGES: usize = 8;

/// A quantity that several experiments measure, and what it was at its best.
#[derive(Debug)]
pub struct Column<'a> {
    /// Its title.
    pub title: String,
    /// Its unit.
    pub unit: &'a str,
    /// Its name in cells.
    pub name: &'a str,
    /// `higher` or `lower`.
    pub better: &'a str,
    /// By subject: number of the experiment, the cell, the figure.
    pub best: HashMap<&'a str, (usize, &'a Cell, &'a Figure)>,
    cells: usize,
    experiments: usize,
}

/// The quantities that most experiments measure.
pub fn columns(results: &Results) -> Vec<Column<'_>> {
    let mut columns: Vec<Column> = Vec::new();
    for (number, experiment) in results.experiments.iter().enumerate() {
        for measure in &experiment.measures {
            if measure.better.is_empty() {
                continue;
            }
            let key = |column: &Column| {
                column.name == measure.name
                    && column.unit == measure.unit
                    && column.better == measure.better
            };
            let place = columns.iter().position(key).unwrap_or_else(|| {
                columns.push(Column {
                    title: cells::title(measure),
                    unit: &measure.unit,
                    name: &measure.name,
                    better: &measure.better,
                    best: HashMap::new(),
                    cells: 0,
                    experiments: 0,
                });
                columns.len() - 1
            });
            let column = &mut columns[place];
            let before = column.cells;
            for cell in &experiment.cells {
                let Some(figure) = cell.figures.get(&measure.name) else {
                    continue;
                };
                if !figure.median.is_finite() {
                    continue;
                }
                column.cells += 1;
                let best = column
                    .best
                    .entry(&cell.subject)
                    .or_insert((number, cell, figure));
                let better = match measure.better.as_str() {
                    "lower" => figure.median < best.2.median,
                    _ => figure.median > best.2.median,
                };
                if better {
                    *best = (number, cell, figure);
                }
            }
            column.experiments += usize::from(column.cells > before);
        }
    }
    columns.retain(|column| column.cells > 0);
    columns.sort_by_key(|column| {
        let lower = column.better == "lower";
        std::cmp::Reverse((column.experiments, !lower, column.best.len(), column.cells))
    });
    columns.truncate(MOST_COLUMNS);
    columns
}

/// The subject that others are compared with: Sluice, if it was measured.
pub fn reference<'a>(results: &'a Results, column: &Column<'a>) -> Option<&'a str> {
    let known = column.best.keys().find(|id| **id == "sluice").copied();
    known.or_else(|| {
        results
            .subjects
            .iter()
            .map(|subject| subject.id.as_str())
            .find(|id| column.best.contains_key(id))
    })
}

/// A column's figures of one subject as multiples of another's, in all cells that have both.
pub fn ratios(results: &Results, column: &Column, reference: &str, other: &str) -> Vec<f64> {
    let mut ratios = Vec::new();
    for experiment in &results.experiments {
        let measured = |m: &crate::results::Measure| {
            m.name == column.name && m.unit == column.unit && m.better == column.better
        };
        if !experiment.measures.iter().any(measured) {
            continue;
        }
        let mut theirs: HashMap<String, f64> = HashMap::new();
        let key = |cell: &Cell| {
            cells::cell_key(&Cell {
                subject: String::new(),
                ..cell.clone()
            })
        };
        for cell in experiment.cells.iter().filter(|cell| cell.subject == other) {
            if let Some(figure) = cell.figures.get(column.name) {
                theirs.insert(key(cell), figure.median);
            }
        }
        for cell in experiment
            .cells
            .iter()
            .filter(|cell| cell.subject == reference)
        {
            let Some(figure) = cell.figures.get(column.name) else {
                continue;
            };
            if let Some(other) = theirs.get(&key(cell)) {
                ratios.push(figure.median / other);
            }
        }
    }
    ratios.retain(|ratio| ratio.is_finite() && *ratio > 0.0);
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Whether any experiment came to a finding.
pub fn has_findings(results: &Results) -> bool {
    results
        .experiments
        .iter()
        .any(|experiment| !experiment.findings.is_empty())
}

impl Page<'_> {
    pub(super) fn summary(&self) -> Markup {
        let machine = &self.results.machine;
        let columns = columns(self.results);
        html! {
            section id="summary" aria-labelledby="summary-title" {
                h2 id="summary-title" class="visually-hidden" { "Summary" }
                (self.lead(&columns))
                @if !columns.is_empty() { (self.best(&columns)) }
                @if !machine.limits.is_empty() {
                    div class="limits" {
                        h3 { "What limits it here" }
                        ul { @for limit in &machine.limits { li { (limit) } } }
                    }
                }
                (self.ended())
            }
            @if self.comparison.is_some() { (self.changes_at_top()) }
            @if has_findings(self.results) { (self.findings()) }
            @if !machine.headroom.is_empty() { (self.headroom()) }
            (self.subjects())
            (self.machine())
        }
    }

    /// The answer in a sentence.
    fn lead(&self, columns: &[Column]) -> Markup {
        let Some(column) = columns.first() else {
            return html! { p class="lead" { "Nothing was measured that is better when it is higher or lower." } };
        };
        let Some(reference) = reference(self.results, column) else {
            return html! {};
        };
        let (number, cell, figure) = column.best[reference];
        let experiment = &self.results.experiments[number];
        let mut peers: Vec<(&str, f64)> = column
            .best
            .keys()
            .filter(|id| **id != reference)
            .filter_map(|id| {
                let ratios = ratios(self.results, column, reference, id);
                Some((*id, *ratios.get(ratios.len() / 2)?))
            })
            .collect();
        peers.sort_by_key(|(id, _)| self.place(id));
        let place = cells::place(experiment, cell);
        html! {
            p class="lead" {
                strong { (self.names.subject(reference)) " reaches " (amount(figure, column.unit)) }
                " (" (self.link(number)) @if !place.is_empty() { ", " (place) } ")."
                @if !peers.is_empty() {
                    " In the cells that both have, in the median, it is "
                    @for (position, (id, ratio)) in peers.iter().take(4).enumerate() {
                        @if position > 0 { "; " }
                        strong { (number::times(*ratio)) } " " (self.names.subject(id))
                    }
                    "."
                }
            }
        }
    }

    /// A subject's place in the report's order.
    fn place(&self, id: &str) -> usize {
        let subjects = &self.results.subjects;
        subjects
            .iter()
            .position(|subject| subject.id == id)
            .unwrap_or(subjects.len())
    }

    fn best(&self, columns: &[Column]) -> Markup {
        let mut ids: Vec<&str> = columns
            .iter()
            .flat_map(|column| column.best.keys().copied())
            .collect();
        ids.sort_by_key(|id| (self.place(id), *id));
        ids.dedup();
        let reference = reference(self.results, &columns[0]).unwrap_or_default();
        html! {
            div class="scroll" tabindex="0" role="region" aria-label="Best figures" {
                table class="best" {
                    caption { "Best figures, and where they were measured" }
                    thead {
                        tr {
                            th scope="col" { "Switch" }
                            @for column in columns {
                                th scope="col" class="n" {
                                    (match column.better { "lower" => "Least ", _ => "Most " })
                                    (cells::lower(&column.title)) " "
                                    span class="unit" { (column.unit) }
                                }
                            }
                            th scope="col" class="n" {
                                (self.names.subject(reference)) " beside it "
                                span class="unit" { (cells::lower(&columns[0].title)) ", median" }
                            }
                        }
                    }
                    tbody {
                        @for id in ids {
                            tr class=[(id == reference).then_some("ours")] {
                                th scope="row" { (self.names.subject(id)) }
                                @for column in columns {
                                    @match column.best.get(id) {
                                        Some((number, cell, figure)) => (self.best_cell(*number, cell, figure)),
                                        None => td class="n" { (number::NONE) },
                                    }
                                }
                                (self.beside_reference(&columns[0], reference, id))
                            }
                        }
                    }
                }
            }
        }
    }

    fn best_cell(&self, number: usize, cell: &Cell, figure: &Figure) -> Markup {
        let experiment = &self.results.experiments[number];
        let place = cells::place(experiment, cell);
        html! {
            td class="n" {
                strong { (number::figure(figure.median)) }
                @if let Some(limit) = &cell.limited_by {
                    " " abbr title={ "limited by " (limit) } { "†" }
                }
                " " span class="where" title=(place) { (self.link(number)) }
            }
        }
    }

    fn beside_reference(&self, column: &Column, reference: &str, id: &str) -> Markup {
        let ratios = match id == reference {
            true => Vec::new(),
            false => ratios(self.results, column, reference, id),
        };
        let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else {
            return html! { td class="n" { (number::NONE) } };
        };
        html! {
            td class="n" {
                strong { (number::times(ratios[ratios.len() / 2])) }
                " " span class="where" {
                    @if ratios.len() > 1 {
                        (number::times(*least)) " to " (number::times(*most)) ", "
                    }
                    (number::counted(ratios.len(), "cell", "cells"))
                }
            }
        }
    }

    /// How the experiments ended, and what of their expectations held.
    fn ended(&self) -> Markup {
        let experiments = &self.results.experiments;
        let of = |wanted: &dyn Fn(&State) -> bool| -> Vec<usize> {
            let all = experiments.iter().enumerate();
            all.filter(|(_, experiment)| wanted(&experiment.state))
                .map(|(n, _)| n)
                .collect()
        };
        let failed = of(&|state| matches!(state, State::Failed(_)));
        let interrupted = of(&|state| *state == State::Interrupted);
        let done = experiments.len() - failed.len() - interrupted.len();
        let (held, not, open) = findings::count(experiments);
        let listed = |numbers: &[usize]| {
            html! { @for (place, n) in numbers.iter().enumerate() { @if place > 0 { ", " } (self.link(*n)) } }
        };
        let made = &self.results.made;
        html! {
            ul class="facts" {
                li {
                    (number::counted(done, "experiment", "experiments")) " done"
                    @if !interrupted.is_empty() {
                        ", " span class="bad" { (interrupted.len()) " interrupted" } " ("
                        (listed(&interrupted)) ")"
                    }
                    @if !failed.is_empty() {
                        ", " span class="bad" { (failed.len()) " failed" } " (" (listed(&failed)) ")"
                    }
                }
                @if held + not + open > 0 {
                    li {
                        (number::counted(held, "expectation", "expectations")) " held, "
                        @if not > 0 { a href="#findings" { (not) " did not" } } @else { "none failed" }
                        @if open > 0 { ", " (open) " cannot be told" }
                    }
                }
                @if made.repeated > 0 {
                    li {
                        (number::counted(made.repeated as usize, "window", "windows"))
                        " repeated, since the machine's speed moved"
                    }
                }
                @let missing = self.results.subjects.iter().filter(|s| s.missing.is_some()).count();
                @if missing > 0 {
                    li { a href="#switches" { (number::counted(missing, "switch", "switches")) " not measured" } }
                }
            }
        }
    }

    fn changes_at_top(&self) -> Markup {
        let Some(comparison) = &self.comparison else {
            return html! {};
        };
        let began = self.earlier.map_or("", |earlier| &earlier.made.began);
        let count = |way| {
            comparison
                .changes
                .iter()
                .filter(|change| change.way == way)
                .count()
        };
        let (worse, better, other) = (count(Way::Worse), count(Way::Better), count(Way::Other));
        let groups = comparison.groups();
        let shown: Vec<(&Change, usize)> = [Way::Worse, Way::Better, Way::Other]
            .into_iter()
            .flat_map(|way| {
                groups
                    .iter()
                    .filter(move |(change, _)| change.way == way)
                    .take(MOST_CHANGES)
            })
            .copied()
            .collect();
        html! {
            section id="changes" aria-labelledby="changes-title" {
                h2 id="changes-title" {
                    "What changed since the earlier run"
                    @if !began.is_empty() { " of " (began.replace('T', " ").replace('Z', " UTC")) }
                }
                p {
                    @if comparison.changes.is_empty() {
                        "Nothing beyond noise: "
                    } @else {
                        strong class=[(worse > 0).then_some("bad")] { (number::fixed(worse as f64, 0)) " worse" } ", "
                        strong class=[(better > 0).then_some("good")] { (number::fixed(better as f64, 0)) " better" } ", "
                        @if other > 0 { (other) " otherwise changed, " }
                    }
                    (number::counted(comparison.same, "figure", "figures"))
                    " within the noise. A change is one whose intervals have nothing in common."
                    @if comparison.unknown > 0 {
                        " Of " (number::counted(comparison.unknown, "figure", "figures"))
                        " nothing can be said, since one has no interval."
                    }
                }
                @if !comparison.remarks.is_empty() {
                    ul class="remarks" { @for remark in &comparison.remarks { li { (remark) } } }
                }
                (self.changes(&shown, true))
                @if groups.len() > shown.len() {
                    p class="note" {
                        "The other " (groups.len() - shown.len()) " are with their experiments."
                    }
                }
            }
        }
    }

    /// A table of changes. `named`: with their experiments.
    pub(super) fn changes(&self, changes: &[(&Change, usize)], named: bool) -> Markup {
        if changes.is_empty() {
            return html! {};
        }
        html! {
            div class="scroll" tabindex="0" role="region" aria-label="Changes" {
                table class="changes" {
                    thead {
                        tr {
                            th scope="col" { "Change" }
                            @if named { th scope="col" { "In" } }
                            th scope="col" { "Switch" }
                            th scope="col" { "Where" }
                            th scope="col" { "Measure" }
                            th scope="col" class="n" { "Before" }
                            th scope="col" class="n" { "Now" }
                        }
                    }
                    tbody {
                        @for (change, count) in changes {
                            tr {
                                td { (way(change)) }
                                @if named { td { (self.link(change.experiment)) } }
                                td { (self.names.subject(&change.subject)) }
                                td {
                                    (change.place)
                                    @if *count > 1 {
                                        " " span class="where" {
                                            "and " (number::counted(count - 1, "other cell", "other cells"))
                                            ", less"
                                        }
                                    }
                                }
                                td {
                                    (change.measure) " " span class="unit" { (change.unit) }
                                }
                                (interval(&change.before))
                                (interval(&change.after))
                            }
                        }
                    }
                }
            }
        }
    }

    /// Paper a's conclusions, and of the others what did not come out.
    fn findings(&self) -> Markup {
        let all: Vec<(usize, &Finding)> = self
            .results
            .experiments
            .iter()
            .enumerate()
            .flat_map(|(number, e)| e.findings.iter().map(move |finding| (number, finding)))
            .collect();
        let paper = |number: usize| self.results.experiments[number].paper.as_str();
        let ours: Vec<_> = all
            .iter()
            .filter(|(number, _)| paper(*number) == "a")
            .collect();
        let others: Vec<_> = all
            .iter()
            .filter(|(number, finding)| paper(*number) != "a" && finding.holds == Some(false))
            .collect();
        let rest = all.len() - ours.len() - others.len();
        let list = |findings: &[&(usize, &Finding)]| {
            html! {
                ul class="findings" {
                    @for (number, finding) in findings {
                        li { (self.link(*number)) " " (found(finding, &self.results.experiments[*number].id)) }
                    }
                }
            }
        };
        html! {
            section id="findings" aria-labelledby="findings-title" {
                h2 id="findings-title" { "What the papers conclude, and this host" }
                @if !ours.is_empty() {
                    h3 { "Paper a's conclusions" }
                    (list(&ours))
                }
                @if !others.is_empty() {
                    h3 { "Of the other experiments: what did not come out" }
                    (list(&others))
                }
                @if rest > 0 {
                    p class="note" {
                        (number::counted(rest, "other finding is", "other findings are"))
                        " with their experiments."
                    }
                }
            }
        }
    }

    fn headroom(&self) -> Markup {
        html! {
            section id="headroom" aria-labelledby="headroom-title" {
                h2 id="headroom-title" { "Headroom: what this host allows at each bottleneck" }
                div class="scroll" tabindex="0" role="region" aria-label="Headroom" {
                    table {
                        thead {
                            tr {
                                th scope="col" { "Bottleneck" }
                                th scope="col" class="n" { "Allows" }
                                th scope="col" {}
                            }
                        }
                        tbody {
                            @for (name, figure, words) in &self.results.machine.headroom {
                                tr {
                                    th scope="row" { (name) }
                                    @if *figure == Figure::default() {
                                        // There is none, and the words say why.
                                        td class="n" { (number::NONE) }
                                    } @else {
                                        (interval(figure))
                                    }
                                    td { (words) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn subjects(&self) -> Markup {
        html! {
            section id="switches" aria-labelledby="switches-title" {
                h2 id="switches-title" { "Switches" }
                @if self.results.subjects.is_empty() { p { "None was measured." } } @else {
                    div class="scroll" tabindex="0" role="region" aria-label="Switches" {
                        table class="switches" {
                            thead {
                                tr {
                                    th scope="col" { "Switch" }
                                    th scope="col" { "Version" }
                                    th scope="col" { "Set up" }
                                }
                            }
                            tbody {
                                @for subject in &self.results.subjects {
                                    tr {
                                        th scope="row" {
                                            (self.names.subject(&subject.id))
                                            @if subject.name != subject.id {
                                                " " code class="unit" { (subject.id) }
                                            }
                                        }
                                        @if let Some(reason) = &subject.missing {
                                            td colspan="2" {
                                                span class="outcome bad" { "not measured" } " " (reason)
                                            }
                                        } @else {
                                            td { (subject.version) }
                                            td { (subject.setup) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn machine(&self) -> Markup {
        let machine = &self.results.machine;
        let caches: Vec<String> = machine
            .caches
            .iter()
            .map(|(name, size)| format!("{name} {}", number::bytes(*size)))
            .collect();
        let mib = |size: u64| number::bytes(size.saturating_mul(1 << 20));
        let cores = if machine.threads {
            format!("{}, threads of shared cores", machine.cores)
        } else {
            machine.cores.to_string()
        };
        let known = [
            ("Processor", machine.processor.clone()),
            ("Cores", cores),
            (
                "Time stamp counter",
                format!("{} MHz", number::exact(machine.tsc_mhz)),
            ),
            ("Caches", caches.join(", ")),
            ("Memory", mib(machine.memory_mib)),
            ("Huge pages", mib(machine.huge_mib)),
            ("Kernel", machine.kernel.clone()),
            (
                "Hypervisor",
                machine.hypervisor.clone().unwrap_or("none seen".into()),
            ),
            (
                "Network cards given",
                match machine.nics.join(", ") {
                    nics if nics.is_empty() => "none".to_string(),
                    nics => nics,
                },
            ),
            (
                "Time taken by others",
                format!("{}%", number::figure(machine.noise * 100.0)),
            ),
            (
                "A cache line between two cores and back",
                between(&machine.between_ns),
            ),
            ("Windows repeated", self.results.made.repeated.to_string()),
        ];
        html! {
            section id="machine" aria-labelledby="machine-title" {
                h2 id="machine-title" { "The machine and its noise" }
                dl class="machine" {
                    @for (name, value) in known {
                        @if !value.is_empty() { dt { (name) } dd { (value) } }
                    }
                }
                (self.speeds())
            }
        }
    }

    /// The machine's speed over the run.
    fn speeds(&self) -> Markup {
        let speeds = &self.results.machine.speeds;
        let points: Vec<Point> = speeds
            .iter()
            .enumerate()
            .map(|(window, &speed)| {
                let speed = if plot::scale::drawable(speed, false) {
                    speed
                } else {
                    f64::NAN
                };
                let x = (window + 1) as f64;
                Point {
                    x,
                    y: speed,
                    low: speed,
                    high: speed,
                    limited: false,
                }
            })
            .collect();
        let mut sorted: Vec<f64> = points
            .iter()
            .map(|point| point.y)
            .filter(|speed| speed.is_finite())
            .collect();
        if sorted.is_empty() {
            return html! {};
        }
        sorted.sort_by(f64::total_cmp);
        let share = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
        let chart = Chart::Line(Lines {
            title: "The machine's speed".to_string(),
            x: Dimension {
                title: "window of measurement".into(),
                ..Default::default()
            },
            y: Dimension {
                title: "speed, relative to the median".into(),
                ..Default::default()
            },
            series: vec![Series {
                name: String::new(),
                look: Look::default(),
                points,
            }],
            small: true,
            notes: vec![],
        });
        html! {
            figure class="plot speeds" {
                figcaption {
                    "The machine's speed, window by window: nine of ten between "
                    (number::fixed(share(0.05), 3)) " and " (number::fixed(share(0.95), 3))
                    " of its median"
                }
                (drawn(&chart))
            }
        }
    }
}

/// A plot, drawn for screens with room and for phones: the style shows one of them.
pub fn drawn(chart: &Chart) -> Markup {
    html! {
        (plot::draw(chart, plot::WIDE).svg("plot wide"))
        (plot::draw(chart, plot::NARROW).svg("plot narrow"))
    }
}

/// A finding of an experiment with its outcome and what is behind it.
pub fn found(finding: &Finding, experiment: &str) -> Markup {
    html! {
        (outcome(finding, experiment == advice::ID)) " " (finding.text)
        @if !finding.because.is_empty() { " " span class="because" { (finding.because) } }
    }
}

fn amount(figure: &Figure, unit: &str) -> String {
    format!("{} {unit}", number::figure(figure.median))
        .trim_end()
        .to_string()
}

/// A figure with its interval beneath.
fn interval(figure: &Figure) -> Markup {
    match cells::interval(figure) {
        Some((low, high)) => html! {
            td class="n" {
                strong { (number::figure(figure.median)) } " "
                span class="where" { (number::figure(low)) " to " (number::figure(high)) }
            }
        },
        None => numeric(figure.median, &number::figure(figure.median)),
    }
}

fn way(change: &Change) -> Markup {
    let (class, word) = match change.way {
        Way::Better => ("good", "better"),
        Way::Worse => ("bad", "worse"),
        Way::Other => ("neutral", "changed"),
    };
    let arrow = if change.after.median > change.before.median {
        "▲"
    } else {
        "▼"
    };
    html! {
        span class={ "outcome " (class) } {
            span aria-hidden="true" { (arrow) " " } (word) " " (number::percent(change.share()))
        }
    }
}

/// A cache line's way between two cores over all windows; empty where it was not measured.
fn between(ns: &[f64]) -> String {
    let mut sorted: Vec<f64> = ns.iter().copied().filter(|ns| ns.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
        return String::new();
    };
    format!(
        "{} ns ({} to {})",
        number::figure(crate::statistics::median(&sorted)),
        number::figure(*least),
        number::figure(*most)
    )
}
