//! `sluice top`: ports, queues, workers, tables, drops and the busiest rules of a running daemon, live.
//!
//! A thread reads; the screen shows the last reading that there is, and says when that is an old one.

mod lay_out;
mod sections;

use crate::appctl::{Appctl, run_directory, socket_in};
use crate::stats::Reading;
use anyhow::Result;
use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use lay_out::{Look, Shown};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long the screen waits for a key before it looks for a reading.
const LOOK: Duration = Duration::from_millis(100);

/// What to watch, and how.
#[derive(Args)]
pub struct TopOptions {
    /// The daemon's unixctl socket [default: found in OVS_RUNDIR]
    #[arg(long, short)]
    pub target: Option<PathBuf>,
    /// Seconds between readings, 0.1 to 3600
    #[arg(long, short, default_value_t = 1.0)]
    pub interval: f64,
    /// Print this many readings as text and end; without a terminal, 1
    #[arg(long, short = 'n')]
    pub count: Option<u32>,
}

/// Connects to the daemon, which has another socket after each start.
fn connect(target: Option<&PathBuf>) -> Result<Appctl> {
    let socket = match target {
        Some(socket) => socket.clone(),
        None => socket_in(&run_directory())?,
    };
    Appctl::connect(&socket)
}

/// Shows the daemon's figures until the user or the count ends it.
pub fn run(options: &TopOptions) -> Result<()> {
    anyhow::ensure!(
        (0.1..=3600.0).contains(&options.interval),
        "--interval {}: seconds between 0.1 and 3600 are meant",
        options.interval
    );
    let mut daemon = connect(options.target.as_ref())?;
    let interval = Duration::from_secs_f64(options.interval);
    let count = options
        .count
        .or((!std::io::stdout().is_terminal()).then_some(1));
    let Some(count) = count else {
        let first = Reading::read(&mut daemon)?;
        return live(options.target.clone(), daemon, first, interval);
    };
    let mut before = Reading::read(&mut daemon)?;
    for _ in 0..count {
        std::thread::sleep(interval);
        let after = Reading::read(&mut daemon)?;
        for shown in sections::all(&before, &after, usize::MAX) {
            println!("{}", shown.text);
        }
        before = after;
    }
    Ok(())
}

/// Reads until nobody wants readings any more; after a failure with a new connection.
fn keep_reading(
    target: Option<PathBuf>,
    mut daemon: Appctl,
    interval: Duration,
    (stop, readings): (Receiver<()>, Sender<Result<Reading>>),
) {
    let mut due = Instant::now() + interval;
    let mut failed = false;
    while let Err(RecvTimeoutError::Timeout) =
        stop.recv_timeout(due.saturating_duration_since(Instant::now()))
    {
        due = Instant::now() + interval;
        let read = match failed {
            true => connect(target.as_ref()).and_then(|other| {
                daemon = other;
                Reading::read(&mut daemon)
            }),
            false => Reading::read(&mut daemon),
        };
        failed = read.is_err();
        if readings.send(read).is_err() {
            return;
        }
    }
}

/// What is on the screen.
struct Screen {
    before: Reading,
    after: Reading,
    /// When `after` was read, and how old it may be.
    read: Instant,
    fresh: Duration,
    /// Why there is no newer one.
    error: Option<String>,
    /// The first line that is shown.
    top: usize,
}

impl Screen {
    /// Takes a reading, or the reason why there is none.
    fn take(&mut self, reading: Result<Reading>) {
        match reading {
            Ok(reading) => {
                self.before = std::mem::replace(&mut self.after, reading);
                // Counters of another process are not compared with.
                if self.after.stats.time_us < self.before.stats.time_us {
                    self.before = self.after.clone();
                }
                (self.read, self.error) = (Instant::now(), None);
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// What is said of figures that are old.
    fn stale(&self, now: Instant) -> Option<String> {
        let age = now.saturating_duration_since(self.read);
        let old = self.error.is_some() || age > self.fresh;
        old.then(|| {
            let why = self
                .error
                .as_deref()
                .unwrap_or("the switch does not answer");
            format!("STALE: figures are {} s old: {why}", age.as_secs())
        })
    }

    /// Moves the window over `lines` lines, of which `height` are seen; false for other keys.
    fn scroll(&mut self, key: KeyCode, lines: usize, height: usize) {
        let last = lines.saturating_sub(height);
        let page = height.saturating_sub(1).max(1);
        self.top = match key {
            KeyCode::Down | KeyCode::Char('j') => self.top + 1,
            KeyCode::Up | KeyCode::Char('k') => self.top.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top + page,
            KeyCode::PageUp => self.top.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => self.top,
        }
        .min(last);
    }

    fn draw(&self, frame: &mut Frame<'_>, shown: &[Shown], now: Instant) {
        let [body, foot] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let height = body.height as usize;
        let top = self.top.min(shown.len().saturating_sub(height));
        let lines: Vec<Line<'_>> = shown
            .iter()
            .skip(top)
            .take(height)
            .map(|one| Line::styled(one.text.as_str(), style(one.look)))
            .collect();
        let end = top + lines.len();
        frame.render_widget(ratatui::widgets::Paragraph::new(lines), body);
        let foot_line = match self.stale(now) {
            Some(stale) => Line::styled(stale, Style::new().add_modifier(Modifier::REVERSED)),
            None => Line::from(format!(
                "lines {} to {end} of {}; arrows and pages scroll, q ends",
                (top + 1).min(end),
                shown.len()
            )),
        };
        frame.render_widget(foot_line, foot);
    }
}

fn style(look: Look) -> Style {
    match look {
        Look::Title => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
        Look::Head => Style::new().add_modifier(Modifier::BOLD),
        Look::Row => Style::new(),
    }
}

fn live(target: Option<PathBuf>, daemon: Appctl, first: Reading, interval: Duration) -> Result<()> {
    let (end, stop) = mpsc::channel();
    let (send, readings) = mpsc::channel();
    std::thread::Builder::new()
        .name("readings".into())
        .spawn(move || keep_reading(target, daemon, interval, (stop, send)))?;
    let mut screen = Screen {
        before: first.clone(),
        after: first,
        read: Instant::now(),
        fresh: 2 * interval + Duration::from_secs(1),
        error: None,
        top: 0,
    };
    let mut terminal = ratatui::try_init()?;
    let result = watch(&mut terminal, &mut screen, &readings);
    ratatui::restore();
    // A reading that is being waited for is nobody's any more.
    drop(end);
    result
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    readings: &Receiver<Result<Reading>>,
) -> Result<()> {
    loop {
        while let Ok(reading) = readings.try_recv() {
            screen.take(reading);
        }
        let size = terminal.size()?;
        let shown = sections::all(&screen.before, &screen.after, size.width as usize);
        let height = size.height.saturating_sub(1) as usize;
        terminal.draw(|frame| screen.draw(frame, &shown, Instant::now()))?;
        if !event::poll(LOOK)? {
            continue;
        }
        if let Event::Key(key) = event::read()? {
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if control => return Ok(()),
                code => screen.scroll(code, shown.len(), height),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen {
        Screen {
            before: Reading::default(),
            after: Reading::default(),
            read: Instant::now(),
            fresh: Duration::from_secs(3),
            error: None,
            top: 0,
        }
    }

    #[test]
    fn old_figures_are_told_from_new_ones() {
        let mut screen = screen();
        let now = screen.read;
        assert_eq!(screen.stale(now + Duration::from_secs(2)), None);
        let silent = screen.stale(now + Duration::from_secs(7)).unwrap();
        assert!(
            silent.contains("7 s old: the switch does not answer"),
            "{silent}"
        );
        screen.take(Err(anyhow::anyhow!("gone")));
        assert!(screen.stale(now).unwrap().contains("gone"));
        screen.take(Ok(Reading::default()));
        assert_eq!(screen.stale(screen.read), None);
    }

    #[test]
    fn another_process_is_not_compared_with_the_old_one() {
        let mut screen = screen();
        screen.after.stats.time_us = 1_000_000;
        let mut young = Reading::default();
        young.stats.time_us = 10;
        screen.take(Ok(young));
        assert_eq!(screen.before.stats.time_us, 10);
    }

    #[test]
    fn the_window_stays_on_the_lines() {
        let mut screen = screen();
        for (key, top) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 20),
            (KeyCode::End, 80),
            (KeyCode::Down, 80),
            (KeyCode::PageUp, 61),
            (KeyCode::Char('x'), 61),
            (KeyCode::Home, 0),
        ] {
            screen.scroll(key, 100, 20);
            assert_eq!(screen.top, top, "{key:?}");
        }
        // Fewer lines than before.
        screen.scroll(KeyCode::End, 100, 20);
        screen.scroll(KeyCode::Char('x'), 10, 20);
        assert_eq!(screen.top, 0);
    }
}
