//! Bars in rows, one part each or measures stacked on each other. Rows have room for long names,
//! and a phone for rows.

use super::data::{Look, Point, Row, Rows};
use super::drawing::{
    Anchor, Area, BOLD, Drawing, MARK, Shape, fitted, lines, text, width, wrapped,
};
use super::scale::Axis;
use super::{
    Entry, GAP, Key, LINE, SIZE, SMALL, about, colour, form, labels_below, legend, mark_class,
    value_axis, visible,
};
use crate::report::number;

/// Height of a bar.
const BAR: f64 = 15.0;

/// Draws bars.
pub fn draw(chart: &Rows, total: f64) -> Drawing {
    let wide = total >= 500.0;
    let stacked = !chart.parts.is_empty();
    let mut shapes = Vec::new();
    let axis = if stacked {
        let totals: Vec<Point> = chart.rows.iter().flat_map(stacked_ends).collect();
        value_axis(&chart.value, &totals, if wide { 7 } else { 4 })
    } else {
        let all: Vec<Point> = chart
            .rows
            .iter()
            .flat_map(|row| row.points.clone())
            .collect();
        value_axis(&chart.value, &all, if wide { 7 } else { 4 })
    };

    let entries: Vec<Entry> = chart
        .parts
        .iter()
        .enumerate()
        .map(|(number, name)| Entry {
            name: name.clone(),
            look: Look::default(),
            kind: Key::Square(part_class(number, false)),
        })
        .collect();
    let mut top = legend(&entries, 2.0, total, &mut shapes);
    if !stacked && chart.rows.iter().any(|row| row.look.paper) {
        let remark = |name: &str, class: &str| Entry {
            name: name.to_string(),
            look: Look::default(),
            kind: match class {
                "" => Key::Remark,
                class => Key::Square(class.to_string()),
            },
        };
        let entries = [
            remark("measured here", "c5 bar"),
            remark("the paper's", "c5 bar paper"),
            remark("thin line: interval", ""),
        ];
        top = legend(&entries, top, total, &mut shapes);
    }
    top += 6.0;

    // Where everything is: names left of bars, or above them where there is little room.
    let texts: Vec<String> = chart.rows.iter().map(value_text).collect();
    let value_room = texts
        .iter()
        .fold(0.0f64, |most, words| most.max(width(words, SMALL)));
    let value_room = value_room.min(total * 0.3) + GAP + 4.0;
    let names = chart.rows.iter().map(|row| width(&row.name, SIZE));
    let name_room = names.fold(0.0f64, f64::max).min(total * 0.36);
    let indent = if chart.rows.iter().any(|row| !row.group.is_empty()) {
        10.0
    } else {
        0.0
    };
    let left = if wide {
        4.0 + indent + name_room + 10.0
    } else {
        8.0
    };
    let area_width = (total - left - value_room - 4.0).max(60.0);
    let mut y = top;
    let mut placed = Vec::new();
    for row in &chart.rows {
        if !row.group.is_empty() {
            y += if placed.is_empty() { 0.0 } else { 6.0 };
            let words = fitted(&row.group, SIZE, (total - 8.0) / BOLD);
            shapes.push(text(
                (4.0, y + 15.0),
                Anchor::Start,
                SIZE,
                "text strong",
                &words,
            ));
            y += 21.0;
        }
        if !wide && !row.name.is_empty() {
            let words = fitted(&row.name, SIZE, total - 12.0);
            shapes.push(text((8.0, y + 13.0), Anchor::Start, SIZE, "text", &words));
            y += 17.0;
        }
        placed.push(y);
        y += if wide { 23.0 } else { 22.0 };
    }
    let area = Area {
        x: left,
        y: top,
        width: area_width,
        height: y - top,
    };
    let place = |value: f64| area.x + axis.place(value) * area.width;

    let mut back = Vec::new();
    for tick in &axis.ticks {
        let x = place(tick.at);
        let class = if tick.at == 0.0 || tick.at == axis.low {
            "axis"
        } else {
            "grid"
        };
        back.push(lines(&[(x, area.y), (x, area.bottom() + 4.0)], class));
    }
    shapes.splice(0..0, back);
    for ((row, &y), words) in chart.rows.iter().zip(&placed).zip(&texts) {
        let middle = y + 11.0;
        if wide {
            let name = fitted(&row.name, SIZE, name_room);
            let at = (area.x - 10.0, middle + 4.5);
            shapes.push(text(at, Anchor::End, SIZE, "text", &name));
        }
        let end = if stacked {
            stack(chart, row, middle, &place, &mut shapes)
        } else {
            bar(chart, row, middle, &axis, &place, &mut shapes)
        };
        let words = fitted(words, SMALL, value_room - GAP - 2.0);
        let at = (
            (end + GAP).min(total - 2.0 - width(&words, SMALL)),
            middle + 4.0,
        );
        shapes.push(text(at, Anchor::Start, SMALL, "text number", &words));
    }
    labels_below(&axis, area, total, &mut shapes);
    let mut bottom = area.bottom() + 22.0;
    let mut title = chart.value.title.clone();
    if axis.log {
        title.push_str(" (logarithmic)");
    }
    for words in wrapped(&title, SMALL, total - 4.0, 2) {
        bottom += LINE - 2.0;
        let half = width(&words, SMALL) / 2.0;
        let x = (area.x + area.width / 2.0)
            .min(total - 2.0 - half)
            .max(2.0 + half);
        shapes.push(text(
            (x, bottom - 3.0),
            Anchor::Middle,
            SMALL,
            "dim",
            &words,
        ));
    }
    Drawing {
        width: total,
        height: bottom + 4.0,
        label: chart.sentence(),
        shapes,
    }
}

/// A row's parts as ends of the stack so far.
fn stacked_ends(row: &Row) -> Vec<Point> {
    let mut end = 0.0;
    row.points
        .iter()
        .filter(|point| point.y.is_finite() && point.y > 0.0)
        .map(|point| {
            end += point.y;
            Point {
                x: point.x,
                y: end,
                low: end,
                high: end,
                limited: point.limited,
            }
        })
        .collect()
}

/// What stands after a bar.
fn value_text(row: &Row) -> String {
    let total: f64 = row
        .points
        .iter()
        .map(|point| point.y)
        .filter(|y| y.is_finite())
        .sum();
    let limited = row.points.iter().any(|point| point.limited);
    format!(
        "{}{}",
        number::figure(total),
        if limited { " †" } else { "" }
    )
}

fn part_class(number: usize, paper: bool) -> String {
    let pale = if number >= 8 { " pale" } else { "" };
    format!(
        "p{} part{pale}{}",
        number % 8,
        if paper { " paper" } else { "" }
    )
}

/// Draws a bar, or a mark on a stem where the axis has no zero; says where it ends.
fn bar(
    chart: &Rows,
    row: &Row,
    middle: f64,
    axis: &Axis,
    place: &dyn Fn(f64) -> f64,
    shapes: &mut Vec<Shape>,
) -> f64 {
    let Some(point) = row.points.iter().find(|point| point.y.is_finite()) else {
        return place(0.0);
    };
    let tint = colour(row.look);
    let at = place(point.y);
    let words = Some(about(&row.name, "", point, &chart.value.unit));
    let (low, high) = (place(point.low), place(point.high));
    let paper = if row.look.paper { " paper" } else { "" };
    let mut end = at.max(high);
    if axis.log {
        // A bar's length would mean nothing here.
        shapes.push(lines(
            &[(place(axis.low), middle), (at, middle)],
            &format!("{tint} stem"),
        ));
    } else {
        let zero = place(0.0);
        end = end.max(zero);
        shapes.push(Shape::Rect {
            area: Area {
                x: at.min(zero),
                y: middle - BAR / 2.0,
                width: (at - zero).abs(),
                height: BAR,
            },
            class: format!("{tint} bar{paper}"),
            about: words.clone(),
        });
    }
    if visible(low, high) {
        // On the bar, it has to be told from the bar's colour.
        for class in ["halo", "whisker ink"] {
            shapes.push(lines(&[(low, middle), (high, middle)], class));
            for x in [low, high] {
                shapes.push(lines(&[(x, middle - 4.0), (x, middle + 4.0)], class));
            }
        }
    }
    if axis.log {
        shapes.push(Shape::Mark {
            form: form(row.look),
            at: (at, middle),
            class: mark_class(row.look),
            about: words,
        });
        end = end.max(at + MARK);
    }
    end
}

/// Draws a stack; says where it ends.
fn stack(
    chart: &Rows,
    row: &Row,
    middle: f64,
    place: &dyn Fn(f64) -> f64,
    shapes: &mut Vec<Shape>,
) -> f64 {
    let mut end = 0.0;
    let mut furthest = place(0.0);
    let mut whiskers = Vec::new();
    for point in row
        .points
        .iter()
        .filter(|point| point.y.is_finite() && point.y > 0.0)
    {
        let number = point.x as usize;
        let from = end;
        end += point.y;
        let (x, right) = (place(from), place(end));
        let name = chart.parts.get(number).map_or("", String::as_str);
        shapes.push(Shape::Rect {
            area: Area {
                x,
                y: middle - BAR / 2.0,
                width: right - x,
                height: BAR,
            },
            class: part_class(number, row.look.paper),
            about: Some(about(&row.name, name, point, &chart.value.unit)),
        });
        // Its interval, where it ends.
        let (low, high) = (
            place(end - point.y + point.low),
            place(end - point.y + point.high),
        );
        if visible(low, high) {
            furthest = furthest.max(high);
            let y = middle + BAR / 2.0 - 3.0;
            for class in ["halo", "whisker ink"] {
                whiskers.push(lines(&[(low, y), (high, y)], class));
            }
        }
        let words = number::figure(point.y);
        if width(&words, 10.5) + 6.0 <= right - x && !row.look.paper {
            let at = ((x + right) / 2.0, middle + 3.0);
            let class = format!("on{}", number % 8);
            shapes.push(text(at, Anchor::Middle, 10.5, &class, &words));
        }
    }
    shapes.extend(whiskers);
    place(end).max(furthest)
}
