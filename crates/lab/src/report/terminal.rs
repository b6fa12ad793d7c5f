//! What a run found, in a few lines for a terminal.

use super::cells::{self, Names};
use super::number;
use super::summary::{columns, ratios, reference};
use crate::findings;
use crate::results::{Experiment, Results, State};

/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Where the second line of an experiment begins.
const INDENT: &str = "      ";

/// A summary of at most 80 columns: one or two lines for each experiment, then the whole.
pub fn text(results: &Results) -> String {
    let names = Names::new(results);
    let mut lines = Vec::new();
    for experiment in &results.experiments {
        lines.extend(one(experiment, &names));
    }
    lines.push(String::new());
    lines.extend(whole(results, &names));
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// Without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .filter(|letter| !matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
        .collect()
}

/// Cut or filled to so many columns.
fn columns_of(text: &str, wanted: usize, fill: bool) -> String {
    let text = plain(text);
    let length = text.chars().count();
    if length > wanted {
        let cut: String = text.chars().take(wanted.saturating_sub(1)).collect();
        return format!("{cut}…");
    }
    if fill {
        format!("{text}{}", " ".repeat(wanted - length))
    } else {
        text
    }
}

fn one(experiment: &Experiment, names: &Names) -> Vec<String> {
    let count = |holds| {
        experiment
            .findings
            .iter()
            .filter(|f| f.holds == Some(holds))
            .count()
    };
    let (held, not) = (count(true), count(false));
    let state = match &experiment.state {
        State::Done if held + not == 0 => "done".to_string(),
        State::Done if not == 0 => format!("{held} held"),
        State::Done => format!("{held} held, {not} did not"),
        State::Interrupted => "interrupted".to_string(),
        State::Failed(_) => "failed".to_string(),
    };
    let time = number::duration(experiment.seconds);
    let first = format!(
        "{} {} {:>10}  {}",
        columns_of(&experiment.id, 5, true),
        columns_of(&experiment.title, 40, true),
        columns_of(&time, 12, false),
        state
    );
    let mut lines = vec![columns_of(&first, COLUMNS, false)];
    let second = match &experiment.state {
        State::Failed(reason) => reason.clone(),
        _ => best(experiment, names),
    };
    if !second.is_empty() {
        let room = COLUMNS - INDENT.len();
        lines.push(format!("{INDENT}{}", columns_of(&second, room, false)));
    }
    lines
}

/// The best figure of each subject in the experiment's first measure.
fn best(experiment: &Experiment, names: &Names) -> String {
    let Some(measure) = experiment.measures.first() else {
        return String::new();
    };
    let mut best: Vec<(&str, f64)> = Vec::new();
    for cell in &experiment.cells {
        let Some(figure) = cell.figures.get(&measure.name) else {
            continue;
        };
        if !figure.median.is_finite() {
            continue;
        }
        match best
            .iter_mut()
            .find(|(subject, _)| *subject == cell.subject)
        {
            Some((_, known)) => {
                *known = match measure.better.as_str() {
                    "lower" => known.min(figure.median),
                    _ => known.max(figure.median),
                }
            }
            None => best.push((&cell.subject, figure.median)),
        }
    }
    if best.is_empty() {
        let missing = experiment
            .cells
            .iter()
            .find_map(|cell| cell.missing.as_deref());
        return missing.map_or("no figures".to_string(), |why| format!("no figures: {why}"));
    }
    let figures: Vec<String> = best
        .iter()
        .map(|(subject, figure)| format!("{} {}", names.subject(subject), number::figure(*figure)))
        .collect();
    let kind = match measure.better.as_str() {
        "lower" => "least",
        _ => "most",
    };
    let title = cells::lower(&cells::title(measure));
    format!("{kind} {title}, {}: {}", measure.unit, figures.join(", ")).replace(", :", ":")
}

fn whole(results: &Results, names: &Names) -> Vec<String> {
    let experiments = &results.experiments;
    let count = |wanted: &dyn Fn(&State) -> bool| {
        experiments
            .iter()
            .filter(|experiment| wanted(&experiment.state))
            .count()
    };
    let done = count(&|state| *state == State::Done);
    let mut ended = vec![format!(
        "{} done",
        number::counted(done, "experiment", "experiments")
    )];
    for (count, words) in [
        (count(&|state| *state == State::Interrupted), "interrupted"),
        (count(&|state| matches!(state, State::Failed(_))), "failed"),
    ] {
        if count > 0 {
            ended.push(format!("{count} {words}"));
        }
    }
    let (held, not, _) = findings::count(experiments);
    let mut lines = vec![format!(
        "{} in {}; expectations: {held} held, {not} did not",
        ended.join(", "),
        number::duration(results.made.seconds)
    )];
    let columns = columns(results);
    if let Some(column) = columns.first()
        && let Some(reference) = reference(results, column)
    {
        let mut others: Vec<&str> = column
            .best
            .keys()
            .copied()
            .filter(|id| *id != reference)
            .collect();
        let place = |id: &str| results.subjects.iter().position(|subject| subject.id == id);
        others.sort_by_key(|id| (place(id), id.to_string()));
        for other in others {
            let ratios = ratios(results, column, reference, other);
            if ratios.is_empty() {
                continue;
            }
            lines.push(format!(
                "{} is {} {} (median of {})",
                names.subject(reference),
                number::times(ratios[ratios.len() / 2]),
                names.subject(other),
                number::counted(ratios.len(), "cell", "cells")
            ));
        }
    }
    lines
        .iter()
        .map(|line| columns_of(line, COLUMNS, false))
        .collect()
}
