//! Whatever is drawn is well drawn: within the drawing, without what is no number, labels apart.

use super::data::{Chart, Dimension, Lines, Look, Row, Rows, Series};
use super::drawing::{Drawing, Shape};
use super::*;
use crate::report::cells::Names;
use crate::results::{Cell, Experiment, Figure, Measure, Plot};
use proptest::collection::vec;
use proptest::prelude::*;

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => 0.0..20.0f64,
        2 => -1000.0..1000.0f64,
        1 => Just(f64::NAN),
        1 => (-190..190i32).prop_map(|exponent| 10f64.powi(exponent)),
    ]
}

fn point() -> impl Strategy<Value = Point> {
    (number(), number(), 0.0..1.5f64, any::<bool>()).prop_map(|(x, y, error, limited)| Point {
        x: if x.is_finite() { x } else { 1.0 },
        y,
        low: y - y.abs() * error,
        high: y + y.abs() * error * 3.0,
        limited,
    })
}

fn dimension(log: bool) -> Dimension {
    Dimension {
        title: "Throughput, Mpps".into(),
        unit: "Mpps".into(),
        log,
        names: None,
        zero: true,
    }
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[A-Za-z ]{1,30}", 1 => "\\PC{0,80}", 1 => Just("Open vSwitch".to_string())]
}

fn look() -> impl Strategy<Value = Look> {
    (0..14usize, any::<bool>()).prop_map(|(number, paper)| Look { number, paper })
}

prop_compose! {
    fn lines_chart()(
        series in vec((name(), look(), vec(point(), 1..60)), 1..10), x_log: bool, y_log: bool,
        names in proptest::option::of(vec(name(), 60))
    ) -> Chart {
        let mut x = dimension(x_log);
        let series = series.into_iter().map(|(name, look, mut points)| {
            if names.is_some() {
                points.iter_mut().enumerate().for_each(|(index, point)| point.x = index as f64);
            }
            points.retain(|point| names.is_some() || scale::drawable(point.x, x_log));
            points.sort_by(|left, right| left.x.total_cmp(&right.x));
            for point in &mut points {
                if !scale::drawable(point.y, y_log) {
                    point.y = f64::NAN;
                }
                if y_log && point.low <= 0.0 {
                    point.low = point.y;
                }
            }
            Series { name, look, points }
        }).filter(|series| !series.points.is_empty()).collect();
        x.names = names;
        x.log &= x.names.is_none();
        Chart::Line(Lines { title: "T".into(), x, y: dimension(y_log), series, small: false, notes: vec![] })
    }
}

prop_compose! {
    fn rows_chart()(
        rows in vec((name(), any::<bool>(), name(), look(), vec(point(), 1..10)), 1..30),
        log: bool, stacked: bool
    ) -> Chart {
        let rows = rows.into_iter().map(|(group, grouped, name, look, mut points)| {
            if !stacked {
                points.truncate(1);
            }
            for (index, point) in points.iter_mut().enumerate() {
                point.x = index as f64;
                if !scale::drawable(point.y, log && !stacked) {
                    (point.y, point.low, point.high) = (f64::NAN, f64::NAN, f64::NAN);
                }
                if log && point.low <= 0.0 {
                    point.low = point.y;
                }
            }
            let group = if grouped { group } else { String::new() };
            Row { group, name, look, points }
        }).collect();
        let parts = if stacked { (0..10).map(|n| format!("stage {n}")).collect() } else { vec![] };
        Chart::Rows(Rows {
            title: "T".into(), value: dimension(log && !stacked), parts, rows, notes: vec![],
        })
    }
}

fn inside(drawing: &Drawing) -> Result<(), TestCaseError> {
    prop_assert!(drawing.width.is_finite() && drawing.height.is_finite() && drawing.height > 40.0);
    for shape in &drawing.shapes {
        let area = shape.area();
        // A text that is not cut is one that the drawing has room for.
        prop_assert!(
            area.x >= -0.5
                && area.y >= -0.5
                && area.right() <= drawing.width + 0.5
                && area.bottom() <= drawing.height + 0.5,
            "{:?} is outside of {} x {}",
            shape,
            drawing.width,
            drawing.height
        );
    }
    let svg = drawing.svg("plot").into_string();
    let markup: String = svg
        .split('<')
        .filter_map(|piece| piece.split_once('>'))
        .filter(|(tag, _)| !tag.starts_with("svg"))
        .map(|(tag, _)| tag)
        .collect();
    prop_assert!(
        !markup.contains("NaN") && !markup.contains("inf"),
        "{}",
        markup
    );
    Ok(())
}

/// No two labels lie on each other. Daggers may: points can be in one place.
fn apart(drawing: &Drawing) -> Result<(), TestCaseError> {
    let texts: Vec<&Shape> = drawing
        .shapes
        .iter()
        .filter(|shape| matches!(shape, Shape::Text { words, .. } if words != "†" && !words.trim().is_empty()))
        .collect();
    for (number, one) in texts.iter().enumerate() {
        for other in &texts[number + 1..] {
            prop_assert!(
                !one.area().overlaps(&other.area()),
                "{:?} on {:?}",
                one,
                other
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn lines_are_inside_and_labels_apart(chart in lines_chart()) {
        for width in [WIDE, NARROW] {
            let drawing = draw(&chart, width);
            inside(&drawing)?;
            apart(&drawing)?;
        }
    }

    #[test]
    fn bars_are_inside_and_labels_apart(chart in rows_chart()) {
        for width in [WIDE, NARROW] {
            let drawing = draw(&chart, width);
            inside(&drawing)?;
            apart(&drawing)?;
        }
    }

    #[test]
    fn labels_of_an_axis_do_not_overlap(count in 1..60usize, name in name()) {
        let names: Vec<String> = (0..count).map(|number| format!("{name}{number}")).collect();
        let mut shapes = Vec::new();
        let area = Area { x: 40.0, y: 10.0, width: 280.0, height: 100.0 };
        labels_below(&Axis::categories(&names), area, NARROW, &mut shapes);
        prop_assert!(!shapes.is_empty());
        let drawing = Drawing { width: NARROW, height: 200.0, shapes, label: String::new() };
        apart(&drawing)?;
    }
}

fn marks(drawing: &Drawing) -> Vec<(f64, f64)> {
    drawing
        .shapes
        .iter()
        .filter_map(|shape| match shape {
            Shape::Mark {
                at, about: Some(_), ..
            } => Some(*at),
            _ => None,
        })
        .collect()
}

fn one_line(points: &[(f64, f64)], x_log: bool) -> Lines {
    let points = points
        .iter()
        .map(|&(x, y)| Point {
            x,
            y,
            low: y,
            high: y,
            limited: false,
        })
        .collect();
    Lines {
        x: dimension(x_log),
        y: dimension(false),
        series: vec![Series {
            name: "Sluice".into(),
            look: Look::default(),
            points,
        }],
        ..Default::default()
    }
}

#[test]
fn a_million_on_a_logarithmic_axis_is_six_equal_steps_from_one() {
    let chart = one_line(&[(1.0, 14.0), (1000.0, 14.0), (1e6, 7.0)], true);
    let marks = marks(&draw(&Chart::Line(chart), WIDE));
    assert_eq!(marks.len(), 3);
    assert!((marks[2].0 - marks[1].0 - (marks[1].0 - marks[0].0)).abs() < 1e-6);
    // Half the figure is half as high above the axis.
    assert_eq!(marks[0].1, marks[1].1);
    assert!(marks[2].1 > marks[0].1);
}

#[test]
fn one_point_is_drawn() {
    let drawing = draw(&Chart::Line(one_line(&[(64.0, 14.88)], false)), NARROW);
    assert_eq!(marks(&drawing).len(), 1);
}

#[test]
fn a_gap_breaks_the_line() {
    let lines_of = |points: &[(f64, f64)]| {
        let drawing = draw(&Chart::Line(one_line(points, false)), WIDE);
        let lines = drawing
            .shapes
            .iter()
            .filter(|shape| matches!(shape, Shape::Lines { class, .. } if class.contains("line")));
        // One of them is the legend's.
        lines.count() - 1
    };
    assert_eq!(
        lines_of(&[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 2.0)]),
        1
    );
    assert_eq!(
        lines_of(&[
            (1.0, 1.0),
            (2.0, 2.0),
            (2.5, f64::NAN),
            (3.0, 3.0),
            (4.0, 2.0)
        ]),
        2
    );
}

#[test]
fn ten_thousand_points_become_no_more_than_can_be_seen() {
    let points: Vec<(f64, f64)> = (0..10_000)
        .map(|x| {
            (
                x as f64,
                (x as f64 / 50.0).sin() + if x == 7777 { 9.0 } else { 0.0 },
            )
        })
        .collect();
    let drawing = draw(&Chart::Line(one_line(&points, false)), WIDE);
    let line = drawing.shapes.iter().find_map(|shape| match shape {
        Shape::Lines { points, class, .. } if class.contains("line") && points.len() > 2 => {
            Some(points)
        }
        _ => None,
    });
    let line = line.unwrap();
    assert!(line.len() <= 2 * WIDE as usize);
    // The one that stands out is among them.
    let top = line.iter().map(|point| point.1).fold(f64::MAX, f64::min);
    let next = line
        .iter()
        .map(|point| point.1)
        .filter(|&y| y > top + 1.0)
        .fold(f64::MAX, f64::min);
    assert!(next - top > 50.0);
}

#[test]
fn bars_are_as_long_as_their_figures() {
    let row = |y: f64| Row {
        name: "Sluice".into(),
        points: vec![Point {
            x: 0.0,
            y,
            low: y,
            high: y,
            limited: false,
        }],
        ..Default::default()
    };
    let rows = Rows {
        value: dimension(false),
        rows: vec![row(4.0), row(2.0), row(-1.0)],
        ..Default::default()
    };
    let drawing = draw(&Chart::Rows(rows), WIDE);
    let bars: Vec<Area> = drawing
        .shapes
        .iter()
        .filter_map(|shape| match shape {
            Shape::Rect {
                area,
                about: Some(_),
                ..
            } => Some(*area),
            _ => None,
        })
        .collect();
    assert!((bars[0].width - 2.0 * bars[1].width).abs() < 1e-6);
    assert!((bars[2].right() - bars[0].x).abs() < 1e-6 && bars[2].width > 1.0);
}

#[test]
fn parts_of_a_stack_lie_end_to_end() {
    let points = [41.0, 85.0, 165.0].iter().enumerate();
    let points = points
        .map(|(number, &y)| Point {
            x: number as f64,
            y,
            low: y,
            high: y,
            limited: false,
        })
        .collect();
    let rows = Rows {
        value: dimension(false),
        parts: vec!["RX".into(), "TX".into(), "processing".into()],
        rows: vec![Row {
            name: "Sluice".into(),
            points,
            ..Default::default()
        }],
        ..Default::default()
    };
    let drawing = draw(&Chart::Rows(rows), WIDE);
    let bars: Vec<Area> = drawing
        .shapes
        .iter()
        .filter_map(|shape| match shape {
            Shape::Rect {
                area,
                about: Some(_),
                ..
            } => Some(*area),
            _ => None,
        })
        .collect();
    assert_eq!(bars.len(), 3);
    assert!((bars[0].right() - bars[1].x).abs() < 1e-6);
    assert!((bars[1].right() - bars[2].x).abs() < 1e-6);
    assert!(bars[0].width < bars[1].width && bars[1].width < bars[2].width);
}

#[test]
fn subjects_that_nobody_knows_look_different_and_the_papers_follow_ours() {
    let cell = |subject: &str, y: f64| Cell {
        subject: subject.into(),
        figures: [(
            "y".to_string(),
            Figure {
                median: y,
                low: y,
                high: y,
                ..Default::default()
            },
        )]
        .into(),
        ..Default::default()
    };
    let experiment = Experiment {
        measures: vec![Measure {
            name: "y".into(),
            ..Default::default()
        }],
        cells: vec![
            cell("linux-htb", 1.0),
            cell("odd", 2.0),
            cell("sluice", 3.0),
        ],
        paper_cells: vec![cell("HTB", 1.5)],
        ..Default::default()
    };
    let plot = Plot {
        kind: "bars".into(),
        y: vec!["y".into()],
        paper: true,
        ..Default::default()
    };
    let chart = data::chart(&experiment, &plot, &Names::default());
    let Ok(Chart::Rows(rows)) = chart else {
        panic!("{chart:?}")
    };
    let names: Vec<&str> = rows.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["linux-htb", "paper: HTB", "odd", "sluice"]);
    let looks: Vec<usize> = rows.rows.iter().map(|row| row.look.number).collect();
    assert_eq!(looks, [1, 1, 2, 0]);
}
