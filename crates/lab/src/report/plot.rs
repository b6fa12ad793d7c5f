//! Plots: from cells to drawings. [`data`] decides what is shown, [`scale`] how axes are divided,
//! `line` and [`rows`] where everything is, [`drawing`] how it is written. All are pure functions
//! of their arguments.

pub mod data;
pub mod drawing;
pub mod line;
pub mod rows;
pub mod scale;

use data::{Chart, Dimension, Look, Point};
use drawing::{Anchor, Area, MARK, Shape, lines, text, width};
use scale::Axis;

/// Style of plots: colours of series, lines, text.
pub const STYLE: &str = include_str!("plot.css");

/// How wide a plot is drawn for screens with room, and paper.
pub const WIDE: f64 = 760.0;
/// And for phones.
pub const NARROW: f64 = 330.0;

/// Size of letters.
const SIZE: f64 = 12.5;
/// Size of letters beside axes.
const SMALL: f64 = 11.5;
/// Distance of base lines.
const LINE: f64 = 18.0;
/// Room between a mark and its name.
const GAP: f64 = 6.0;

/// Draws a chart so wide.
pub fn draw(chart: &Chart, width: f64) -> drawing::Drawing {
    match chart {
        Chart::Line(lines) => line::draw(lines, width),
        Chart::Rows(rows) => rows::draw(rows, width),
    }
}

/// An axis for a dimension that covers the points' figures, and their intervals unless these are so
/// wide that nothing else could be seen.
fn value_axis(dimension: &Dimension, points: &[Point], most: usize) -> Axis {
    let medians = || points.iter().map(|point| point.y);
    if dimension.log {
        if let Some((low, high)) = scale::range(medians(), true) {
            let (low, high) = (low / 10.0, high * 10.0);
            let ends = points.iter().flat_map(|point| [point.low, point.high]);
            let ends = ends.map(|end| end.clamp(low, high));
            if let Some(axis) = Axis::log(medians().chain(ends), most) {
                return axis;
            }
        }
    } else if let Some((low, high)) = scale::range(medians(), false) {
        let room = (high - low).max(low.abs()).max(high.abs());
        let ends = points.iter().flat_map(|point| [point.low, point.high]);
        let ends = ends
            .filter(|end| end.is_finite())
            .map(|end| end.clamp(low - room, high + room));
        return Axis::linear(
            medians().chain(ends.collect::<Vec<_>>()),
            dimension.zero,
            most,
        );
    }
    Axis::linear([], dimension.zero, most)
}

/// The class of a series' colour.
fn colour(look: Look) -> String {
    format!("c{}", look.number % 8)
}

/// The form of a series' marks: series that share a colour differ in it.
fn form(look: Look) -> usize {
    look.number % 8 + look.number / 8 * 3
}

/// The class of a series' marks.
fn mark_class(look: Look) -> String {
    format!(
        "{} {}",
        colour(look),
        if look.paper { "hollow" } else { "solid" }
    )
}

/// Which labels can be written side by side, given where each is; earlier ones in `order` go first.
fn not_overlapping(areas: &[Area], order: &[usize]) -> Vec<usize> {
    let mut kept: Vec<usize> = Vec::new();
    for &number in order {
        let Area {
            x,
            y,
            width,
            height,
        } = areas[number];
        // Neighbours need a little room between them.
        let area = Area {
            x: x - 3.0,
            y,
            width: width + 6.0,
            height,
        };
        if kept.iter().all(|&other| !areas[other].overlaps(&area)) {
            kept.push(number);
        }
    }
    kept
}

/// Order in which ticks are labelled while there is room: both ends, then every 8th, 4th, 2nd, all.
fn preference(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = if count > 0 {
        vec![0, count - 1]
    } else {
        vec![]
    };
    let mut every = count.next_power_of_two();
    while every > 0 {
        order.extend((0..count).step_by(every));
        every /= 2;
    }
    let mut known = vec![false; count];
    order.retain(|&number| !std::mem::replace(&mut known[number], true));
    order
}

/// Labels of a horizontal axis, below the plot's area, as many as there is room for.
fn labels_below(axis: &Axis, area: Area, total: f64, shapes: &mut Vec<Shape>) {
    let labels: Vec<Shape> = axis
        .ticks
        .iter()
        .map(|tick| {
            let words = drawing::fitted(&tick.label, SMALL, total - 4.0);
            let half = width(&words, SMALL) / 2.0;
            let x = area.x + axis.place(tick.at) * area.width;
            // The outermost are moved inwards as far as the drawing's edge demands.
            let x = x.min(total - 2.0 - half).max(2.0 + half);
            text(
                (x, area.bottom() + 16.0),
                Anchor::Middle,
                SMALL,
                "dim",
                &words,
            )
        })
        .collect();
    let areas: Vec<Area> = labels.iter().map(Shape::area).collect();
    let mut kept = not_overlapping(&areas, &preference(areas.len()));
    kept.sort_unstable();
    shapes.extend(kept.into_iter().map(|number| labels[number].clone()));
}

/// Something in a legend.
struct Entry {
    name: String,
    look: Look,
    kind: Key,
}

/// What stands before a legend's name.
enum Key {
    /// A line with a mark.
    Line,
    /// A square of a colour, with a class.
    Square(String),
    /// Nothing: a remark.
    Remark,
}

/// A legend: entries side by side, in as many lines as they need. Returns where it ends.
fn legend(entries: &[Entry], top: f64, total: f64, shapes: &mut Vec<Shape>) -> f64 {
    let (mut x, mut y) = (2.0, top);
    for entry in entries {
        let before = match entry.kind {
            Key::Line => 28.0 + GAP,
            Key::Square(_) => 12.0 + GAP,
            Key::Remark => 0.0,
        };
        let name = drawing::fitted(&entry.name, SIZE, total - 4.0 - before);
        let wide = before + width(&name, SIZE);
        if x > 2.0 && x + wide > total - 2.0 {
            (x, y) = (2.0, y + LINE);
        }
        let middle = y + LINE / 2.0;
        match &entry.kind {
            Key::Line => {
                shapes.push(lines(
                    &[(x, middle), (x + 28.0, middle)],
                    &line_class(entry.look),
                ));
                shapes.push(Shape::Mark {
                    form: form(entry.look),
                    at: (x + 14.0, middle),
                    class: mark_class(entry.look),
                    about: None,
                });
            }
            Key::Square(class) => shapes.push(Shape::Rect {
                area: Area {
                    x,
                    y: middle - 6.0,
                    width: 12.0,
                    height: 12.0,
                },
                class: class.clone(),
                about: None,
            }),
            Key::Remark => {}
        }
        shapes.push(text(
            (x + before, middle + 4.5),
            Anchor::Start,
            SIZE,
            "text",
            &name,
        ));
        x += wide + 18.0;
    }
    if entries.is_empty() { top } else { y + LINE }
}

/// The class of a series' line.
fn line_class(look: Look) -> String {
    let dashes = match (look.paper, look.number / 8) {
        (true, _) => " paper",
        (false, 0) => "",
        (false, _) => " dashed",
    };
    format!("{} line{dashes}", colour(look))
}

/// What is shown when somebody points at a figure.
fn about(name: &str, place: &str, point: &Point, unit: &str) -> String {
    use crate::report::number::figure;
    let before: Vec<&str> = [name, place]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    let mut words = format!("{}: {}", before.join(", "), figure(point.y));
    if !unit.is_empty() {
        words = format!("{words} {unit}");
    }
    if point.low < point.high {
        words = format!("{words} ({} to {})", figure(point.low), figure(point.high));
    }
    if point.limited {
        words.push_str(" †");
    }
    words
}

/// Whether a point's interval is wide enough to be seen, given its ends on the drawing.
fn visible(from: f64, to: f64) -> bool {
    (to - from).abs() >= 1.5
}

/// Half a mark, and a little.
const ROOM: f64 = MARK + 1.5;

#[cfg(test)]
mod tests;
