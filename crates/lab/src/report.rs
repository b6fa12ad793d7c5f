//! What a run found, for people: one HTML file that needs nothing else, and a few lines for the
//! terminal.
//!
//! The file has the answer first: what this host can do, what limits it, what changed since an
//! earlier run. Then it has each experiment with its plots, and the figures behind them. It is
//! complete without its script, which only sorts tables and shows a mark's figure sooner.
//!
//! [`plot`] draws; `summary`, `section` and `table` are parts of the page. All that comes from
//! results is escaped by maud, unless it is a number that is written here.

pub(crate) mod cells;
mod number;
pub mod plot;
mod section;
mod summary;
mod table;
mod terminal;

pub use terminal::text;

use crate::compare::{self, Comparison};
use crate::results::{Experiment, Finding, Results};
use cells::Names;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeSet;

const STYLE: &str = include_str!("report/report.css");
const SCRIPT: &str = include_str!("report/report.js");

/// Papers, in the order of the report; experiments of others come last.
const PAPERS: [(&str, &str); 4] = [
    ("a", "Performance characteristics of virtual switching"),
    ("b", "Soft- and hardware bottlenecks"),
    ("c", "Steering flows to cores"),
    ("d", "Bandwidth slicing"),
];

/// What the parts of a page are made from.
struct Page<'a> {
    results: &'a Results,
    earlier: Option<&'a Results>,
    names: Names,
    comparison: Option<Comparison>,
    /// By the numbers of experiments.
    anchors: Vec<String>,
}

/// The report as one HTML file; with what changed if there is an earlier run to compare with.
pub fn html(results: &Results, earlier: Option<&Results>) -> String {
    let page = Page {
        results,
        earlier,
        names: Names::new(results),
        comparison: earlier.map(|earlier| compare::compare(results, earlier)),
        anchors: anchors(&results.experiments),
    };
    page.html().into_string()
}

/// The plots of a run as SVG files: each with its experiment and title.
pub fn plots(results: &Results) -> Vec<(&Experiment, String, String)> {
    let names = Names::new(results);
    let mut drawn = Vec::new();
    for experiment in &results.experiments {
        for plot in &experiment.plots {
            if let Ok(chart) = plot::data::chart(experiment, plot, &names) {
                let drawing = plot::draw(&chart, plot::WIDE);
                drawn.push((experiment, plot.title.clone(), drawing.file()));
            }
        }
    }
    drawn
}

/// A place in the page for each experiment: its name, made unique.
fn anchors(experiments: &[Experiment]) -> Vec<String> {
    let mut taken: BTreeSet<String> = [
        "top", "summary", "changes", "findings", "headroom", "switches", "machine",
    ]
    .map(str::to_string)
    .into();
    let mut anchors = Vec::new();
    for experiment in experiments {
        let plain: String = experiment
            .id
            .chars()
            .take(40)
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '-'
                }
            })
            .collect();
        let plain = plain.to_lowercase();
        let plain = if plain.is_empty() {
            "experiment".to_string()
        } else {
            plain
        };
        let mut anchor = plain.clone();
        let mut number = 2;
        while !taken.insert(anchor.clone()) {
            anchor = format!("{plain}-{number}");
            number += 1;
        }
        anchors.push(anchor);
    }
    anchors
}

impl Page<'_> {
    fn html(&self) -> Markup {
        let made = &self.results.made;
        let processor = match self.results.machine.processor.as_str() {
            "" => "an unnamed processor",
            name => name,
        };
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    // Nothing is fetched, whatever the data say.
                    meta http-equiv="Content-Security-Policy"
                        content="default-src 'none'; style-src 'unsafe-inline'; \
                                 script-src 'unsafe-inline'; img-src data:";
                    title { "Sluice lab: " (processor) @if !made.began.is_empty() { ", " (made.began) } }
                    style { (PreEscaped(STYLE)) (PreEscaped(plot::STYLE)) }
                }
                body {
                    a class="skip" href="#summary" { "To the summary" }
                    header id="top" {
                        h1 { "What this host can do" }
                        p class="made" { (self.made(processor)) }
                    }
                    div class="page" {
                        (self.contents())
                        main {
                            (self.summary())
                            (self.experiments())
                        }
                    }
                    footer {
                        p {
                            "Figures are medians of runs; the interval is where the next run's \
                             median lies with 95%. What few runs scatter by is told with \
                             the help of the experiment's other cells. Made by "
                            code { "sluice lab" } " " (made.version)
                            @if !made.command.is_empty() { ": " code class="long" { (made.command) } }
                        }
                    }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        }
    }

    /// When, how and on what: one line.
    fn made(&self, processor: &str) -> Markup {
        let made = &self.results.made;
        let machine = &self.results.machine;
        let mut parts: Vec<String> = vec![processor.to_string()];
        if machine.cores > 0 {
            parts.push(number::counted(machine.cores as usize, "core", "cores"));
        }
        if !made.began.is_empty() {
            parts.push(made.began.replace('T', " ").replace('Z', " UTC"));
        }
        if !made.version.is_empty() {
            parts.push(format!("Sluice {}", made.version));
        }
        if !made.mode.is_empty() {
            parts.push(format!("{} run", made.mode));
        }
        if made.seconds > 0.0 {
            parts.push(number::duration(made.seconds));
        }
        html! {
            (parts.join(" · "))
            @if made.interrupted {
                " · " strong class="bad" { "interrupted before all experiments were done" }
            }
        }
    }

    /// Experiments by paper: its heading, and their numbers.
    fn by_paper(&self) -> Vec<(String, Vec<usize>)> {
        let numbers = |wanted: &dyn Fn(&str) -> bool| -> Vec<usize> {
            let all = self.results.experiments.iter().enumerate();
            all.filter(|(_, experiment)| wanted(&experiment.paper))
                .map(|(number, _)| number)
                .collect()
        };
        let mut papers: Vec<(String, Vec<usize>)> = PAPERS
            .iter()
            .map(|(paper, title)| {
                (
                    format!("Paper {paper}: {title}"),
                    numbers(&|other| other == *paper),
                )
            })
            .collect();
        let known = |paper: &str| PAPERS.iter().any(|(known, _)| *known == paper);
        papers.push((
            "Other experiments".to_string(),
            numbers(&|paper| !known(paper)),
        ));
        papers.retain(|(_, numbers)| !numbers.is_empty());
        papers
    }

    fn contents(&self) -> Markup {
        let machine = &self.results.machine;
        html! {
            nav aria-label="Contents" {
                ul {
                    li { a href="#summary" { "Summary" } }
                    @if self.comparison.is_some() { li { a href="#changes" { "Changes" } } }
                    @if summary::has_findings(self.results) {
                        li { a href="#findings" { "Findings" } }
                    }
                    @if !machine.headroom.is_empty() { li { a href="#headroom" { "Headroom" } } }
                    li { a href="#switches" { "Switches" } }
                    li { a href="#machine" { "Machine" } }
                    @for (paper, numbers) in self.by_paper() {
                        li class="paper" { (paper) }
                        @for number in numbers {
                            @let experiment = &self.results.experiments[number];
                            li {
                                a href={ "#" (self.anchors[number]) } {
                                    span class="id" { (experiment.id) }
                                    span class="title" { " " (experiment.title) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn experiments(&self) -> Markup {
        html! {
            @for (paper, numbers) in self.by_paper() {
                h2 class="paper" { (paper) }
                @for number in numbers { (self.experiment(number)) }
            }
            @if self.results.experiments.is_empty() {
                p { "No experiment was run." }
            }
        }
    }

    /// A link to an experiment.
    fn link(&self, number: usize) -> Markup {
        let experiment = &self.results.experiments[number];
        html! {
            a href={ "#" (self.anchors[number]) } title=(experiment.title) { (experiment.id) }
        }
    }
}

/// What came of an expectation: a sign and a word.
/// `advice`: on how a host is set up, which it may be or not.
fn outcome(finding: &Finding, advice: bool) -> Markup {
    let (class, sign, word) = match finding.holds {
        Some(true) if advice => ("good", "✓", "so it is here"),
        Some(false) if advice => ("bad", "✗", "not so here"),
        Some(true) => ("good", "✓", "held"),
        Some(false) => ("bad", "✗", "did not hold"),
        None if finding.open => ("neutral", "?", "cannot be told"),
        None => ("neutral", "•", "found"),
    };
    html! { span class={ "outcome " (class) } { span aria-hidden="true" { (sign) " " } (word) } }
}
