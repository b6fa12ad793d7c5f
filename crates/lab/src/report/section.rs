//! An experiment's part of the page.

use super::summary::{drawn, found};
use super::{Page, number, plot};
use crate::compare::Change;
use crate::results::{Experiment, State};
use maud::{Markup, html};

/// Changes shown with an experiment.
const MOST_CHANGES: usize = 24;

impl Page<'_> {
    pub(super) fn experiment(&self, number: usize) -> Markup {
        let experiment = &self.results.experiments[number];
        let anchor = &self.anchors[number];
        let charts: Vec<Result<plot::data::Chart, plot::data::NoChart>> = experiment
            .plots
            .iter()
            .map(|plot| plot::data::chart(experiment, plot, &self.names))
            .collect();
        let open = !charts.iter().any(Result::is_ok);
        html! {
            section class="experiment" id=(anchor) aria-labelledby={ (anchor) "-title" } {
                h3 id={ (anchor) "-title" } {
                    span class="id" { (experiment.id) } " " (experiment.title)
                    (state(&experiment.state))
                }
                @if let State::Failed(reason) = &experiment.state {
                    p class="failed" { "It failed: " (reason) }
                }
                @if experiment.state == State::Interrupted {
                    p class="failed" { "It was interrupted: what follows is not all that was to be measured." }
                }
                @if !experiment.purpose.trim().is_empty() { p class="purpose" { (experiment.purpose) } }
                @if !experiment.findings.is_empty() {
                    h4 { "Findings" }
                    ul class="findings" {
                        @for finding in &experiment.findings { li { (found(finding, &experiment.id)) } }
                    }
                }
                (self.changed(number))
                @for (chart, plot) in charts.iter().zip(&experiment.plots) {
                    @match chart {
                        Ok(chart) => (figure(chart)),
                        Err(reason) => p class="no-plot" {
                            "No plot" @if !plot.title.is_empty() { " “" (plot.title) "”" } ": "
                            (reason) "."
                        },
                    }
                }
                (self.nothing(experiment))
                (self.cells(experiment, open))
                (self.limited(experiment))
                (self.windows(experiment))
                (self.missing(experiment))
                (how(experiment))
            }
        }
    }

    fn changed(&self, number: usize) -> Markup {
        let Some(comparison) = &self.comparison else {
            return html! {};
        };
        let changes: Vec<(&Change, usize)> = comparison
            .changes
            .iter()
            .filter(|change| change.experiment == number)
            .map(|change| (change, 1))
            .collect();
        if changes.is_empty() {
            return html! {};
        }
        html! {
            h4 { "Changed since the earlier run" }
            (self.changes(&changes[..changes.len().min(MOST_CHANGES)], false))
            @if changes.len() > MOST_CHANGES {
                p class="note" { "And " (changes.len() - MOST_CHANGES) " more, each less." }
            }
        }
    }

    /// Why there is nothing to show, where there is not.
    fn nothing(&self, experiment: &Experiment) -> Markup {
        if experiment.cells.iter().any(|cell| !cell.figures.is_empty()) {
            return html! {};
        }
        let why = match (&experiment.state, experiment.cells.is_empty()) {
            (State::Failed(_), _) => "it failed before anything was measured",
            (State::Interrupted, _) => "it was interrupted before anything was measured",
            (State::Done, true) => "it has no cells",
            (State::Done, false) => "none of its cells could be measured; the reasons are below",
        };
        html! { p class="no-figures" { "There are no figures: " (why) "." } }
    }
}

fn figure(chart: &plot::data::Chart) -> Markup {
    let (title, notes) = match chart {
        plot::data::Chart::Line(lines) => (&lines.title, &lines.notes),
        plot::data::Chart::Rows(rows) => (&rows.title, &rows.notes),
    };
    html! {
        figure class="plot" {
            figcaption { (title) }
            (drawn(chart))
            @for note in notes { p class="note" { (note) } }
        }
    }
}

fn state(state: &State) -> Markup {
    match state {
        State::Done => html! {},
        State::Interrupted => html! { " " span class="outcome bad" { "interrupted" } },
        State::Failed(_) => html! { " " span class="outcome bad" { "failed" } },
    }
}

/// How it was done, and how to do it again.
fn how(experiment: &Experiment) -> Markup {
    html! {
        dl class="how" {
            @if !experiment.topology.trim().is_empty() { dt { "Topology" } dd { (experiment.topology) } }
            @if !experiment.substituted.is_empty() {
                dt { "Substituted" }
                dd {
                    @if let [only] = &experiment.substituted[..] { (only) } @else {
                        ul { @for words in &experiment.substituted { li { (words) } } }
                    }
                }
            }
            @if !experiment.command.is_empty() {
                dt { "Run again" } dd { code { (experiment.command) } }
            }
            dt { "Took" } dd { (number::duration(experiment.seconds)) }
        }
    }
}
