//! Lays out tables of cells for a width: spare columns are left out first, then long words are cut.
//!
//! Names come from elsewhere: characters that would move the cursor or reverse the line are not
//! printed, and widths are those on a terminal.

use ratatui::text::Span;

/// The style of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// The title of a section.
    Title,
    /// Names of columns.
    Head,
    /// Anything else.
    Row,
}

/// A line of the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    /// Its text.
    pub text: String,
    /// Its style.
    pub look: Look,
}

/// How much a column can be narrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// Not at all.
    Needed,
    /// Left out completely.
    Spare,
    /// Down to this width.
    Cut(usize),
}

/// A column. Figures and their names are aligned to the right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Its name.
    pub name: &'static str,
    /// Whether cells are aligned to the right.
    pub right: bool,
    /// How much it can be narrowed.
    pub room: Room,
}

/// Returns a column of words.
pub(super) fn words(name: &'static str, room: Room) -> Column {
    Column {
        name,
        right: false,
        room,
    }
}

/// Returns a column of figures.
pub(super) fn figures(name: &'static str) -> Column {
    Column {
        name,
        right: true,
        room: Room::Needed,
    }
}

/// Returns a column of figures that is left out if there is no room.
pub(super) fn spare_figures(name: &'static str) -> Column {
    Column {
        room: Room::Spare,
        ..figures(name)
    }
}

/// A table with a title.
pub(super) struct Section {
    /// Its title.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// Returns the width of a text on a terminal.
pub(super) fn width_of(text: &str) -> usize {
    match text.is_ascii() {
        true => text.len(),
        false => Span::raw(text).width(),
    }
}

/// Returns a text without characters that a terminal would not simply print: control characters,
/// and those that change the direction of the text or have no width.
pub(super) fn harmless(text: &str) -> String {
    let obeyed = |c: char| {
        let unseen = ['\u{61c}', '\u{feff}'];
        let ranges = [
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
        ];
        c.is_control() || unseen.contains(&c) || ranges.iter().any(|range| range.contains(&c))
    };
    text.replace(obeyed, "?")
}

/// Cuts a word to a width; the last character shows that it was cut.
fn cut(word: &str, width: usize) -> String {
    if width_of(word) <= width {
        return word.to_owned();
    }
    let mut text = String::new();
    let mut room = width.saturating_sub(1);
    let mut cell = [0; 4];
    for character in word.chars() {
        let Some(left) = room.checked_sub(width_of(character.encode_utf8(&mut cell))) else {
            break;
        };
        room = left;
        text.push(character);
    }
    // A width of zero has no room for it.
    text.extend((width > 0).then_some('~'));
    text
}

/// Breaks a text into lines of at most `width`, between words if possible, and indents all but the
/// first.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    const INDENT: &str = "    ";
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let begins = line.trim().is_empty();
        if !begins && width_of(&line).saturating_add(1 + width_of(word)) > width {
            lines.push(std::mem::replace(&mut line, INDENT.to_owned()));
        } else if !begins {
            line.push(' ');
        }
        line += word;
    }
    lines.push(line);
    lines.iter().map(|line| cut(line, width)).collect()
}

impl Section {
    /// Returns the widths of its columns on a page of this width, 0 for a column that is left out.
    fn widths(&self, width: usize) -> Vec<usize> {
        let longest = |(at, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| width_of(&row[at]));
            cells.chain([width_of(column.name)]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(longest).collect();
        let all = |widths: &[usize]| -> usize {
            let used = widths.iter().filter(|width| **width > 0);
            used.map(|width| width + 1).sum()
        };
        for (at, column) in self.columns.iter().enumerate().rev() {
            if all(&widths) > width && column.room == Room::Spare {
                widths[at] = 0;
            }
        }
        // The widest column is cut first, so that short names stay whole.
        loop {
            let least = |at: usize| match self.columns[at].room {
                Room::Cut(least) => least,
                _ => usize::MAX,
            };
            let widest = (0..widths.len())
                .filter(|at| widths[*at] > least(*at))
                .max_by_key(|at| widths[*at]);
            let excess = all(&widths).saturating_sub(width);
            let Some(at) = widest.filter(|_| excess > 0) else {
                return widths;
            };
            // By half of the excess, so that equally wide columns share it.
            widths[at] -= excess.div_ceil(2).min(widths[at] - least(at));
        }
    }

    /// Returns its lines on a page of this width.
    pub(super) fn lines(&self, width: usize) -> Vec<Shown> {
        let widths = self.widths(width);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, width), column) in cells.zip(&widths).zip(&self.columns) {
                if *width == 0 {
                    continue;
                }
                let cell = cut(cell, *width);
                let room = " ".repeat(width.saturating_sub(width_of(&cell)));
                let parts = match column.right {
                    true => [" ", &room, &cell],
                    false => [" ", &cell, &room],
                };
                text.extend(parts);
            }
            cut(text.trim_end(), width)
        };
        let shown = |text: String, look| Shown { text, look };
        let head = line(&mut self.columns.iter().map(|column| column.name));
        let mut lines = vec![
            shown(String::new(), Look::Row),
            shown(cut(&self.title, width), Look::Title),
            shown(head, Look::Head),
        ];
        let rows = self.rows.iter();
        lines.extend(rows.map(|row| shown(line(&mut row.iter().map(String::as_str)), Look::Row)));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section() -> Section {
        Section {
            title: "Things".into(),
            columns: vec![
                words("name", Room::Cut(6)),
                figures("count"),
                spare_figures("more"),
            ],
            rows: vec![
                vec!["a-long-name".into(), "1".into(), "22".into()],
                vec!["b".into(), "12345".into(), "3".into()],
            ],
        }
    }

    fn texts(width: usize) -> Vec<String> {
        let lines = section().lines(width);
        lines.into_iter().map(|shown| shown.text).collect()
    }

    #[test]
    fn there_is_room_for_all() {
        let wanted = [
            "",
            "Things",
            " name        count more",
            " a-long-name     1   22",
            " b           12345    3",
        ];
        assert_eq!(texts(80), wanted);
        assert_eq!(texts(usize::MAX), wanted);
    }

    #[test]
    fn names_of_all_kinds_stay_in_their_columns() {
        let mut section = section();
        section.rows = vec![
            vec!["\u{6f22}\u{5b57}".repeat(9), "1".into(), "2".into()],
            vec!["e\u{301}te\u{301}".into(), "1".into(), "2".into()],
        ];
        for width in 0..40 {
            for line in section.lines(width) {
                assert!(width_of(&line.text) <= width, "{width}: {}", line.text);
            }
        }
        let all: Vec<usize> = (section.lines(60)[3..].iter())
            .map(|line| width_of(&line.text))
            .collect();
        assert!(all[0] == all[1] && all[0] <= 60, "{all:?}");
        let harmful = "a\u{1b}[2Jb\nc\u{202e}d\u{9b}e\u{200b}";
        assert_eq!(harmless(harmful), "a?[2Jb?c?d?e?");
        assert_eq!(harmless("\u{6f22}-\u{e9}"), "\u{6f22}-\u{e9}");
    }

    #[test]
    fn long_texts_go_on_below() {
        let text = "p (br0): could not open network device p (No such device)";
        assert_eq!(wrapped(text, usize::MAX), [text]);
        let lines = wrapped(text, 24);
        assert_eq!(lines[0], "p (br0): could not open");
        assert_eq!(lines[1], "    network device p (No");
        for width in 1..30 {
            let lines = wrapped(text, width);
            assert!(
                lines.iter().all(|line| width_of(line) <= width),
                "{lines:?}"
            );
        }
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn narrow_tables_lose_spaces_first_and_then_letters() {
        assert_eq!(texts(20)[2], " name        count");
        assert_eq!(texts(15)[3], " a-long-~     1");
        for width in 1..30 {
            let longest = texts(width).iter().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{width}: {longest:?}");
        }
    }
}
