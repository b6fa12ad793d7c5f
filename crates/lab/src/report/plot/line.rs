//! Lines over an axis.

use super::data::{Lines, Point, Series};
use super::drawing::{Anchor, Area, Drawing, Shape, fitted, lines, text, width, wrapped};
use super::scale::Axis;
use super::{
    Entry, GAP, Key, LINE, ROOM, SIZE, SMALL, about, colour, form, labels_below, legend,
    line_class, mark_class, not_overlapping, preference, value_axis, visible,
};
use crate::report::number;

/// With more points, a line has marks at some of them only, and a band in place of whiskers.
const MOST_MARKS: usize = 40;
/// About how many these are.
const FEW_MARKS: usize = 9;

/// Draws lines.
pub fn draw(chart: &Lines, total: f64) -> Drawing {
    let wide = total >= 500.0;
    let mut shapes = Vec::new();
    let all: Vec<Point> = chart
        .series
        .iter()
        .flat_map(|series| &series.points)
        .copied()
        .collect();
    let y_axis = value_axis(
        &chart.y,
        &all,
        match (chart.small, wide) {
            (true, _) => 3,
            (false, true) => 6,
            (false, false) => 5,
        },
    );
    let x_values = || {
        let drawn = all.iter().filter(|point| point.y.is_finite());
        drawn.map(|point| point.x)
    };
    let x_axis = match &chart.x.names {
        Some(names) => Axis::categories(names),
        None if chart.x.log => Axis::log(x_values(), if wide { 10 } else { 6 })
            .unwrap_or_else(|| Axis::linear(x_values(), false, 6)),
        None => Axis::linear(x_values(), false, if wide { 8 } else { 5 }),
    };

    let mut entries: Vec<Entry> = Vec::new();
    if chart.series.len() > 1 || chart.series.iter().any(|series| !series.name.is_empty()) {
        entries.extend(chart.series.iter().map(|series| Entry {
            name: series.name.clone(),
            look: series.look,
            kind: Key::Line,
        }));
    }
    let mut top = legend(&entries, 2.0, total, &mut shapes);
    let mut title = chart.y.title.clone();
    if y_axis.log {
        title.push_str(" (logarithmic)");
    }
    for words in wrapped(&title, SMALL, total - 4.0, 2) {
        top += LINE;
        shapes.push(text((2.0, top - 3.0), Anchor::Start, SMALL, "dim", &words));
    }
    top += 14.0;

    let labels: Vec<f64> = y_axis
        .ticks
        .iter()
        .map(|tick| width(&tick.label, SMALL))
        .collect();
    let left = labels.iter().fold(8.0f64, |most, &wide| most.max(wide)) + GAP + 4.0;
    let last = x_axis
        .ticks
        .last()
        .map_or(0.0, |tick| width(&tick.label, SMALL) / 2.0);
    let right = last.clamp(ROOM + 2.0, 24.0);
    let height = match (chart.small, wide) {
        (true, _) => 110.0,
        (false, true) => 270.0,
        (false, false) => 200.0,
    };
    let area = Area {
        x: left,
        y: top,
        width: (total - left - right).max(40.0),
        height,
    };
    let place = |x: f64, y: f64| {
        (
            area.x + x_axis.place(x) * area.width,
            area.bottom() - y_axis.place(y) * area.height,
        )
    };

    let mut labels = Vec::new();
    for tick in &y_axis.ticks {
        let y = place(x_axis.low, tick.at).1;
        let class = if tick.at == 0.0 || tick.at == y_axis.low {
            "axis"
        } else {
            "grid"
        };
        shapes.push(lines(&[(area.x, y), (area.right(), y)], class));
        labels.push(text(
            (left - GAP, y + 4.0),
            Anchor::End,
            SMALL,
            "dim",
            &tick.label,
        ));
    }
    let areas: Vec<Area> = labels.iter().map(Shape::area).collect();
    for number in not_overlapping(&areas, &preference(areas.len())) {
        shapes.push(labels[number].clone());
    }
    for tick in &x_axis.ticks {
        let x = place(tick.at, y_axis.low).0;
        if chart.x.names.is_none() {
            shapes.push(lines(&[(x, area.y), (x, area.bottom())], "grid"));
        }
        shapes.push(lines(
            &[(x, area.bottom()), (x, area.bottom() + 4.0)],
            "axis",
        ));
    }
    let mut named = x_axis.clone();
    if chart.x.names.is_some() {
        // Names of categories are cut to their share of the width, unless that is too little: then
        // some are left out.
        let share = (area.width / named.ticks.len().max(1) as f64 - 8.0).max(52.0);
        for tick in &mut named.ticks {
            tick.label = fitted(&tick.label, SMALL, share);
        }
    }
    labels_below(&named, area, total, &mut shapes);
    let mut bottom = area.bottom() + 22.0;
    let mut title = chart.x.title.clone();
    if x_axis.log {
        title.push_str(" (logarithmic)");
    }
    for words in wrapped(&title, SMALL, total - 4.0, 2) {
        bottom += LINE - 2.0;
        let half = width(&words, SMALL) / 2.0;
        let x = (area.x + area.width / 2.0).min(total - 2.0 - half);
        shapes.push(text(
            (x, bottom - 3.0),
            Anchor::Middle,
            SMALL,
            "dim",
            &words,
        ));
    }

    // The first series is the most important one: it is drawn last, on top.
    for series in chart.series.iter().rev().filter(|series| series.look.paper) {
        draw_series(chart, series, area, &place, &mut shapes);
    }
    for series in chart
        .series
        .iter()
        .rev()
        .filter(|series| !series.look.paper)
    {
        draw_series(chart, series, area, &place, &mut shapes);
    }
    Drawing {
        width: total,
        height: bottom + 4.0,
        label: chart.sentence(),
        shapes,
    }
}

fn draw_series(
    chart: &Lines,
    series: &Series,
    area: Area,
    place: &dyn Fn(f64, f64) -> (f64, f64),
    shapes: &mut Vec<Shape>,
) {
    let marks = series.points.len() <= MOST_MARKS;
    let tint = colour(series.look);
    for run in series
        .points
        .split(|point| !point.y.is_finite())
        .filter(|run| !run.is_empty())
    {
        let run = thinned(run, area, place);
        let wide = run
            .iter()
            .any(|point| visible(place(0.0, point.low).1, place(0.0, point.high).1));
        if !marks && wide {
            let upper = run.iter().map(|point| place(point.x, point.high));
            let lower = run.iter().rev().map(|point| place(point.x, point.low));
            shapes.push(Shape::Lines {
                points: upper.chain(lower).collect(),
                closed: true,
                class: format!("{tint} band"),
            });
        }
        let line: Vec<(f64, f64)> = run.iter().map(|point| place(point.x, point.y)).collect();
        if line.len() > 1 {
            shapes.push(lines(&line, &line_class(series.look)));
        } else if !marks {
            shapes.push(mark(chart, series, &run[0], line[0]));
        }
    }
    // Each line begins elsewhere, so that marks of neighbours do not lie on each other.
    let every = if marks {
        1
    } else {
        series.points.len().div_ceil(FEW_MARKS)
    };
    let first = (series.look.number * 2 + 1) * every / 7 % every;
    for point in series
        .points
        .iter()
        .skip(first)
        .step_by(every)
        .filter(|p| p.y.is_finite())
    {
        let (x, y) = place(point.x, point.y);
        let (low, high) = (place(point.x, point.low).1, place(point.x, point.high).1);
        if marks && visible(low, high) {
            shapes.push(lines(&[(x, low), (x, high)], &format!("{tint} whisker")));
            for end in [low, high] {
                let cap = [((x - 3.5).max(0.0), end), (x + 3.5, end)];
                shapes.push(lines(&cap, &format!("{tint} whisker")));
            }
        }
        shapes.push(mark(chart, series, point, (x, y)));
        if point.limited {
            // Above its mark, or below where the plot ends.
            let y = if y - 16.0 < area.y - 6.0 {
                y + 17.0
            } else {
                y - 8.0
            };
            shapes.push(text((x, y), Anchor::Middle, SIZE, "text", "†"));
        }
    }
}

fn mark(chart: &Lines, series: &Series, point: &Point, at: (f64, f64)) -> Shape {
    let place = match &chart.x.names {
        Some(names) => names.get(point.x as usize).cloned().unwrap_or_default(),
        None => format!("{} {}", number::exact(point.x), chart.x.unit)
            .trim()
            .to_string(),
    };
    let words = about(&series.name, &place, point, &chart.y.unit);
    Shape::Mark {
        form: form(series.look),
        at,
        class: mark_class(series.look),
        about: Some(words),
    }
}

/// The points that can be seen: of many in one column of the drawing, the least and the most.
fn thinned(points: &[Point], area: Area, place: &dyn Fn(f64, f64) -> (f64, f64)) -> Vec<Point> {
    if points.len() as f64 <= 2.0 * area.width {
        return points.to_vec();
    }
    let mut kept: Vec<Point> = Vec::new();
    let column = |point: &Point| place(point.x, point.y).0.floor();
    for points in points.chunk_by(|left, right| column(left) == column(right)) {
        let by_figure = |left: &&Point, right: &&Point| left.y.total_cmp(&right.y);
        let ends = [
            points.iter().min_by(by_figure),
            points.iter().max_by(by_figure),
        ];
        let mut ends: Vec<Point> = ends.into_iter().flatten().copied().collect();
        ends.sort_by(|left, right| left.x.total_cmp(&right.x));
        ends.dedup();
        kept.extend(ends);
    }
    kept
}
