//! What a plot consists of, and how it is written as SVG. Plots are lists of shapes first, so that
//! tests can ask where these are.

use maud::{Markup, html};

/// A drawing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawing {
    /// Its width, in units that are pixels where the page is wide enough.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// What those hear who do not see it.
    pub label: String,
    /// What it consists of; later shapes lie on earlier ones.
    pub shapes: Vec<Shape>,
}

/// A shape. Classes are those of the style sheet.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Points in order, joined by straight lines.
    Lines {
        /// The points.
        points: Vec<(f64, f64)>,
        /// Whether the last is joined with the first.
        closed: bool,
        /// How it looks.
        class: String,
    },
    /// A rectangle.
    Rect {
        /// Its place and size.
        area: Area,
        /// How it looks.
        class: String,
        /// What is shown when somebody points at it.
        about: Option<String>,
    },
    /// A mark of a point.
    Mark {
        /// Which form, by number (all that a plot uses differ).
        form: usize,
        /// Its middle.
        at: (f64, f64),
        /// How it looks.
        class: String,
        /// What is shown when somebody points at it.
        about: Option<String>,
    },
    /// A line of text.
    Text {
        /// Where its base line begins, has its middle, or ends.
        at: (f64, f64),
        /// Which of these.
        anchor: Anchor,
        /// Size of letters.
        size: f64,
        /// How it looks.
        class: String,
        /// The text.
        words: String,
    },
}

/// Which part of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Area {
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

impl Area {
    /// Its right end.
    pub fn right(&self) -> f64 {
        self.x + self.width
    }

    /// Its lower end.
    pub fn bottom(&self) -> f64 {
        self.y + self.height
    }

    /// Whether they have a part in common that is more than an edge.
    pub fn overlaps(&self, other: &Area) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.bottom()
            && other.y < self.bottom()
    }

    /// The least that has all these points.
    fn around(points: &[(f64, f64)]) -> Area {
        let (mut low, mut high) = ((f64::MAX, f64::MAX), (f64::MIN, f64::MIN));
        for &(x, y) in points {
            low = (low.0.min(x), low.1.min(y));
            high = (high.0.max(x), high.1.max(y));
        }
        Area {
            x: low.0,
            y: low.1,
            width: high.0 - low.0,
            height: high.1 - low.1,
        }
    }
}

/// Half the width of a mark.
pub const MARK: f64 = 5.5;

/// How much wider bold letters are.
pub const BOLD: f64 = 1.15;

/// Forms of marks.
pub const FORMS: usize = 8;

impl Shape {
    /// Where it is. Of a text it is estimated, for fonts at least as wide as the usual ones.
    pub fn area(&self) -> Area {
        match self {
            Shape::Lines { points, .. } => Area::around(points),
            Shape::Rect { area, .. } => *area,
            Shape::Mark { at: (x, y), .. } => Area {
                x: x - MARK,
                y: y - MARK,
                width: 2.0 * MARK,
                height: 2.0 * MARK,
            },
            Shape::Text {
                at: (x, y),
                anchor,
                size,
                words,
                class,
            } => {
                let bold = if class.contains("strong") { BOLD } else { 1.0 };
                let width = width(words, *size) * bold;
                let x = match anchor {
                    Anchor::Start => *x,
                    Anchor::Middle => x - width / 2.0,
                    Anchor::End => x - width,
                };
                Area {
                    x,
                    y: y - size * 0.8,
                    width,
                    height: *size,
                }
            }
        }
    }
}

/// A line of text.
pub fn text(at: (f64, f64), anchor: Anchor, size: f64, class: &str, words: &str) -> Shape {
    Shape::Text {
        at,
        anchor,
        size,
        class: class.into(),
        words: words.into(),
    }
}

/// Straight lines from point to point.
pub fn lines(points: &[(f64, f64)], class: &str) -> Shape {
    Shape::Lines {
        points: points.into(),
        closed: false,
        class: class.into(),
    }
}

/// How wide a text is, about: as in DejaVu Sans, which is wider than what most machines have.
pub fn width(words: &str, size: f64) -> f64 {
    let letters: f64 = words
        .chars()
        .map(|letter| match letter {
            'i' | 'j' | 'l' | '|' | '\'' => 0.29,
            'f' | 't' | 'r' | 'I' | 'J' | '.' | ',' | ':' | ';' | ' ' | '(' | ')' | '/' | '-' => {
                0.4
            }
            '¹' | '²' | '³' | '⁰'..='⁻' => 0.42,
            'm' | 'w' | 'M' | 'W' | '%' | '@' | '†' | '×' | '−' | '+' | '<' | '>' | '=' => {
                0.98
            }
            'A'..='Z' | 'Ä' | 'Ö' | 'Ü' => 0.76,
            letter if letter.is_ascii() => 0.64,
            letter if (letter as u32) < 0x2000 => 0.75,
            '–' | '…' => 1.0,
            // Characters of East Asia, symbols, faces.
            _ => 1.15,
        })
        .sum();
    letters * size
}

/// The text, cut with an ellipsis where it is wider.
pub fn fitted(words: &str, size: f64, most: f64) -> String {
    if width(words, size) <= most {
        return words.to_string();
    }
    let mut room = most - width("…", size);
    let mut cut = String::new();
    for letter in words.chars() {
        room -= width(letter.encode_utf8(&mut [0; 4]), size);
        if room < 0.0 {
            break;
        }
        cut.push(letter);
    }
    format!("{}…", cut.trim_end())
}

/// The text in at most `most` lines that are no wider; what is left over is cut with an ellipsis.
pub fn wrapped(words: &str, size: f64, widest: f64, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= widest => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    if lines.len() > most.max(1) {
        let rest = lines.split_off(most.max(1) - 1).join(" ");
        lines.push(rest);
    }
    lines
        .into_iter()
        .map(|line| fitted(&line, size, widest))
        .collect()
}

/// A coordinate as it is written: a tenth is less than anybody sees.
fn written(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

fn path(points: &[(f64, f64)], closed: bool) -> String {
    let mut path = String::new();
    for (number, (x, y)) in points.iter().enumerate() {
        path.push(if number == 0 { 'M' } else { 'L' });
        path.push_str(&written(*x));
        path.push(' ');
        path.push_str(&written(*y));
    }
    if closed {
        path.push('Z');
    }
    path
}

/// Corners of a form around a point. Forms are about equally heavy.
fn corners(form: usize, (x, y): (f64, f64)) -> Vec<(f64, f64)> {
    // Number of corners, whether every second one is further in, turn in degrees, radius.
    let (count, star, turn, radius) = match form % FORMS {
        1 => (4, false, 0.0, MARK),
        2 => (4, false, 45.0, MARK),
        3 => (3, false, -90.0, MARK),
        4 => (3, false, 90.0, MARK),
        5 => (8, true, -90.0, MARK),
        6 => (6, false, 0.0, MARK * 0.9),
        _ => (10, true, -90.0, MARK),
    };
    (0..count)
        .map(|corner| {
            let angle = (turn + 360.0 * corner as f64 / count as f64).to_radians();
            let radius = if star && corner % 2 == 1 {
                radius * 0.5
            } else {
                radius
            };
            (x + radius * angle.cos(), y + radius * angle.sin())
        })
        .collect()
}

impl Drawing {
    /// The drawing as an `svg` element for a page with the report's style sheet.
    pub fn svg(&self, class: &str) -> Markup {
        let size = format!("0 0 {} {}", written(self.width), written(self.height));
        html! {
            svg class=(class) viewBox=(size) width=(written(self.width))
                height=(written(self.height)) role="img" aria-label=(self.label)
            {
                @for shape in &self.shapes { (shape.svg()) }
            }
        }
    }

    /// The same as a file of its own, with its style.
    pub fn file(&self) -> String {
        let mut svg = self.svg("plot").into_string();
        let style = format!("<style>{}</style>", super::STYLE);
        if let Some(end) = svg.find('>') {
            svg.insert_str(end + 1, &style);
        }
        svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1)
    }
}

impl Shape {
    fn svg(&self) -> Markup {
        match self {
            Shape::Lines {
                points,
                closed,
                class,
            } => {
                html! { path class=(class) d=(path(points, *closed)) {} }
            }
            Shape::Rect { area, class, about } => html! {
                rect class=(class) x=(written(area.x)) y=(written(area.y))
                    width=(written(area.width)) height=(written(area.height))
                {
                    @if let Some(about) = about { title { (about) } }
                }
            },
            Shape::Mark {
                form,
                at,
                class,
                about,
            } => {
                let about = html! { @if let Some(about) = about { title { (about) } } };
                match form % FORMS {
                    0 => html! {
                        circle class=(class) cx=(written(at.0)) cy=(written(at.1)) r="4.5" {
                            (about)
                        }
                    },
                    form => html! {
                        path class=(class) d=(path(&corners(form, *at), true)) { (about) }
                    },
                }
            }
            Shape::Text {
                at,
                anchor,
                size,
                class,
                words,
            } => html! {
                text class=(class) x=(written(at.0)) y=(written(at.1)) font-size=(written(*size))
                    text-anchor=(match anchor {
                        Anchor::Start => "start",
                        Anchor::Middle => "middle",
                        Anchor::End => "end",
                    })
                {
                    (words)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms_differ_and_lie_in_their_area() {
        let drawn: Vec<_> = (1..FORMS)
            .map(|form| path(&corners(form, (0.0, 0.0)), true))
            .collect();
        for (number, form) in drawn.iter().enumerate() {
            assert!(drawn[number + 1..].iter().all(|other| other != form));
            for (x, y) in corners(number + 1, (0.0, 0.0)) {
                assert!(x.abs() <= MARK + 1e-9 && y.abs() <= MARK + 1e-9);
            }
        }
    }

    #[test]
    fn a_file_has_a_name_space_and_its_style() {
        let file = Drawing {
            width: 10.0,
            height: 5.0,
            ..Default::default()
        }
        .file();
        assert!(file.starts_with("<svg xmlns="));
        assert!(file.contains("><style>"));
    }

    #[test]
    fn what_data_say_is_escaped() {
        let shape = text((0.0, 0.0), Anchor::Start, 12.0, "text", "<script>\"&");
        assert!(
            shape
                .svg()
                .into_string()
                .contains("&lt;script&gt;&quot;&amp;")
        );
    }

    proptest! {
        #[test]
        fn cut_text_fits(words in "\\PC{0,60}", size in 8.0..20.0f64, room in 20.0..300.0f64) {
            let cut = fitted(&words, size, room);
            prop_assert!(width(&cut, size) <= room + 1e-9, "{}", cut);
            prop_assert!(cut == words || cut.ends_with('…'));
        }

        #[test]
        fn wrapped_text_fits(words in "\\PC{0,60}", room in 20.0..300.0f64, most in 1..4usize) {
            let lines = wrapped(&words, 12.0, room, most);
            prop_assert!(lines.len() <= most);
            prop_assert!(lines.iter().all(|line| width(line, 12.0) <= room + 1e-9));
        }
    }
}
