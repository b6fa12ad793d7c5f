//! Tables of cells that fit a width: columns that can be missed go first, then long words are cut.

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// Begins a section.
    Title,
    /// Names columns.
    Head,
    /// Anything else.
    Row,
}

/// A line of the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    /// What it says.
    pub text: String,
    /// How it looks.
    pub look: Look,
}

/// What a column can do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// Nothing.
    Needed,
    /// All of it.
    Spare,
    /// What is beyond so many characters.
    Cut(usize),
}

/// A column: its name, and whether it is needed. Names of figures stand at the right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Its name.
    pub name: &'static str,
    /// Whether cells stand at the right.
    pub right: bool,
    /// What it can do without.
    pub room: Room,
}

/// A column of words.
pub(super) fn words(name: &'static str, room: Room) -> Column {
    Column {
        name,
        right: false,
        room,
    }
}

/// A column of figures.
pub(super) fn figures(name: &'static str) -> Column {
    Column {
        name,
        right: true,
        room: Room::Needed,
    }
}

/// A column of figures that is left out where there is no room.
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
    /// As many cells in each as there are columns.
    pub rows: Vec<Vec<String>>,
}

/// At most so many characters of a word, the last one saying that there were more.
fn cut(word: &str, width: usize) -> String {
    match word.chars().count() > width {
        true => word
            .chars()
            .take(width.saturating_sub(1))
            .chain(['~'])
            .collect(),
        false => word.to_owned(),
    }
}

impl Section {
    /// The widths of its columns in a page of this width, 0 for one that is left out.
    fn widths(&self, width: usize) -> Vec<usize> {
        let longest = |(at, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells
                .chain([column.name.chars().count()])
                .max()
                .unwrap_or(0)
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
        // The widest is cut first, so that short names stay whole.
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
            // By halves of what is too much, so that columns that are as wide share it.
            widths[at] -= excess.div_ceil(2).min(widths[at] - least(at));
        }
    }

    /// Its lines in a page of this width.
    pub(super) fn lines(&self, width: usize) -> Vec<Shown> {
        let widths = self.widths(width);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, width), column) in cells.zip(&widths).zip(&self.columns) {
                let cell = cut(cell, *width);
                match (*width, column.right) {
                    (0, _) => {}
                    (width, true) => text += &format!(" {cell:>width$}"),
                    (width, false) => text += &format!(" {cell:<width$}"),
                }
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
    fn what_is_spare_goes_and_then_words_are_cut() {
        assert_eq!(texts(20)[2], " name        count");
        assert_eq!(texts(15)[3], " a-long-~     1");
        for width in 1..30 {
            let longest = texts(width).iter().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{width}: {longest:?}");
        }
    }
}
