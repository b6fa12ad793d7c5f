//! `sluice top`: shows ports, queues, workers, tables, drops and the busiest rules of a running
//! daemon, live.
//!
//! A thread takes readings; the screen shows the last one, and says so when it is old.

mod lay_out;
mod sections;

use crate::appctl::{Appctl, run_directory, socket_in};
use crate::output::outln;
use crate::stats::Reading;
use anyhow::{Context, Result};
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

/// How long the screen waits for a key before it checks for a reading.
const LOOK: Duration = Duration::from_millis(100);

/// What to watch, and how.
#[derive(Args)]
pub struct TopOptions {
    /// Directory of the switch's sockets: the one given to `up` [default: $OVS_RUNDIR]
    pub directory: Option<PathBuf>,
    /// Control socket of the daemon (as for ovs-appctl -t), instead of DIRECTORY
    #[arg(long, short, conflicts_with = "directory")]
    pub target: Option<PathBuf>,
    /// Seconds between updates, 0.1 to 3600
    #[arg(long, short, default_value_t = 1.0)]
    pub interval: f64,
    /// Print this many updates as text, then exit [default: no limit on a terminal, else 1]
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

/// How a daemon is found.
#[derive(Clone)]
enum Target {
    /// By its pidfile in a directory.
    Directory(PathBuf),
    /// By its socket.
    Socket(PathBuf),
}

impl Target {
    fn of(options: &TopOptions) -> Target {
        match (&options.target, &options.directory) {
            (Some(socket), _) => Target::Socket(socket.clone()),
            (None, Some(directory)) => Target::Directory(directory.clone()),
            (None, None) => Target::Directory(run_directory()),
        }
    }

    /// Connects to the daemon, whose socket differs after each start.
    fn connect(&self) -> Result<Appctl> {
        let socket = match self {
            Target::Socket(socket) => socket.clone(),
            Target::Directory(directory) => socket_in(directory)?,
        };
        Appctl::connect(&socket)
    }
}

/// Shows the daemon's figures until the user or the count ends it.
pub fn run(options: &TopOptions) -> Result<()> {
    anyhow::ensure!(
        (0.1..=3600.0).contains(&options.interval),
        "--interval {}: must be seconds between 0.1 and 3600",
        options.interval
    );
    let place = Target::of(options);
    let mut daemon = place.connect()?;
    let interval = Duration::from_secs_f64(options.interval);
    let count = options
        .count
        .or((!std::io::stdout().is_terminal()).then_some(1));
    let Some(count) = count else {
        let first = Reading::read(&mut daemon)?;
        return live(place, daemon, first, interval);
    };
    let mut before = Reading::read(&mut daemon)?;
    for _ in 0..count {
        std::thread::sleep(interval);
        let after = Reading::read(&mut daemon)?;
        for shown in sections::all(&before, &after, usize::MAX) {
            outln!("{}", shown.text);
        }
        before = after;
    }
    Ok(())
}

/// Takes readings until nobody receives them; connects anew after a failure.
fn keep_reading(
    place: Target,
    mut daemon: Appctl,
    interval: Duration,
    (stop, readings): (Receiver<()>, Sender<News>),
) {
    let mut due = Instant::now() + interval;
    let mut failed = false;
    while let Err(RecvTimeoutError::Timeout) =
        stop.recv_timeout(due.saturating_duration_since(Instant::now()))
    {
        due = Instant::now() + interval;
        let read = match failed {
            true => place.connect().and_then(|other| {
                daemon = other;
                Reading::read(&mut daemon)
            }),
            false => Reading::read(&mut daemon),
        };
        let news = News { anew: failed, read };
        failed = news.read.is_err();
        if readings.send(news).is_err() {
            return;
        }
    }
}

/// A reading, or the reason why it failed.
struct News {
    read: Result<Reading>,
    /// Whether it came over a new connection, and so perhaps from another process.
    anew: bool,
}

/// The contents of the screen.
#[derive(Default)]
struct Page {
    shown: Vec<Shown>,
    /// The width of the layout; None if there are newer figures.
    width: Option<usize>,
}

/// The last two readings, and the part that is shown.
struct Screen {
    before: Reading,
    after: Reading,
    page: Page,
    /// When `after` was read; `fresh` is the age beyond which it is old.
    read: Instant,
    fresh: Duration,
    /// Why there is no newer reading.
    error: Option<String>,
    /// The first line shown.
    top: usize,
}

impl Screen {
    fn new(first: Reading, fresh: Duration) -> Screen {
        Screen {
            before: first.clone(),
            after: first,
            page: Page::default(),
            read: Instant::now(),
            fresh,
            error: None,
            top: 0,
        }
    }

    /// Takes over a reading, or the reason why it failed.
    fn take(&mut self, news: News) {
        match news.read {
            Ok(reading) => {
                self.before = std::mem::replace(&mut self.after, reading);
                // Counters of two processes are not compared.
                if news.anew || self.after.stats.time_us < self.before.stats.time_us {
                    self.before = self.after.clone();
                }
                self.page.width = None;
                (self.read, self.error) = (Instant::now(), None);
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// Lays the page out once for each reading and width: there may be ten thousand ports.
    fn lay_out(&mut self, width: usize) {
        if self.page.width != Some(width) {
            self.page = Page {
                shown: sections::all(&self.before, &self.after, width),
                width: Some(width),
            };
        }
    }

    /// Returns the warning if the figures are old.
    fn stale(&self, now: Instant) -> Option<String> {
        let age = now.saturating_duration_since(self.read);
        let old = self.error.is_some() || age > self.fresh;
        old.then(|| {
            let why = self
                .error
                .as_deref()
                .unwrap_or("the switch does not answer");
            let why = lay_out::harmless(why);
            format!("STALE: figures are {} s old: {why}", age.as_secs())
        })
    }

    /// Moves the window, `height` lines high, over `lines` lines.
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

    fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let shown = &self.page.shown[..];
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

fn live(place: Target, daemon: Appctl, first: Reading, interval: Duration) -> Result<()> {
    let (end, stop) = mpsc::channel();
    let (send, readings) = mpsc::channel();
    std::thread::Builder::new()
        .name("readings".into())
        .spawn(move || keep_reading(place, daemon, interval, (stop, send)))?;
    let mut screen = Screen::new(first, 2 * interval + Duration::from_secs(1));
    let result = ratatui::try_init()
        .map_err(anyhow::Error::from)
        .and_then(|mut terminal| watch(&mut terminal, &mut screen, &readings));
    // Also after an incomplete initialisation.
    ratatui::restore();
    let result = result.context("cannot use the terminal (-n COUNT prints readings as text)");
    // The next reading has no receiver any more.
    drop(end);
    result
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    readings: &Receiver<News>,
) -> Result<()> {
    loop {
        while let Ok(news) = readings.try_recv() {
            screen.take(news);
        }
        let size = terminal.size()?;
        screen.lay_out(size.width as usize);
        let height = size.height.saturating_sub(1) as usize;
        terminal.draw(|frame| screen.draw(frame, Instant::now()))?;
        if !event::poll(LOOK)? {
            continue;
        }
        if let Event::Key(key) = event::read()? {
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if control => return Ok(()),
                code => screen.scroll(code, screen.page.shown.len(), height),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen {
        Screen::new(Reading::default(), Duration::from_secs(3))
    }

    fn news(read: Result<Reading>) -> News {
        News { read, anew: false }
    }

    fn reading(time_us: u64, packets: u64) -> Reading {
        let mut reading = Reading::default();
        reading.stats.time_us = time_us;
        reading.stats.ports.push(crate::stats::Port {
            name: "p".into(),
            rx_packets: packets,
            ..Default::default()
        });
        reading
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
        screen.take(news(Err(anyhow::anyhow!("gone\u{1b}[2J"))));
        assert!(screen.stale(now).unwrap().ends_with("gone?[2J"));
        screen.take(news(Ok(Reading::default())));
        assert_eq!(screen.stale(screen.read), None);
    }

    #[test]
    fn another_process_is_not_compared_with_the_old_one() {
        let mut screen = screen();
        screen.take(news(Ok(reading(1_000_000, 5))));
        screen.take(news(Ok(reading(10, 7))));
        assert_eq!(screen.before.stats.time_us, 10);
        // The other process has run for longer than the old one had at its last reading.
        let another = News {
            read: Ok(reading(5_000_000, 900)),
            anew: true,
        };
        screen.take(another);
        assert_eq!(screen.before.stats.time_us, 5_000_000);
        screen.take(news(Ok(reading(6_000_000, 901))));
        assert_eq!(screen.before.stats.time_us, 5_000_000);
    }

    #[test]
    fn every_terminal_has_room_for_something() {
        let mut screen = screen();
        let mut many = reading(1, 1);
        many.stats.ports = vec![many.stats.ports[0].clone(); 10_000];
        screen.take(news(Ok(many)));
        screen.take(news(Err(anyhow::anyhow!(
            "a long reason for having no newer figures"
        ))));
        for (width, height) in [(0, 0), (1, 1), (20, 5), (80, 24), (500, 200)] {
            let backend = ratatui::backend::TestBackend::new(width, height);
            let mut terminal = ratatui::Terminal::new(backend).unwrap();
            screen.lay_out(width.into());
            let lines = screen.page.shown.len();
            for key in [KeyCode::End, KeyCode::PageUp, KeyCode::Home] {
                screen.scroll(key, lines, usize::from(height).saturating_sub(1));
                let drawn = terminal.draw(|frame| screen.draw(frame, Instant::now()));
                assert!(drawn.is_ok(), "{width} by {height}");
            }
            // The terminal cannot be rendered as text without columns.
            let text = match width {
                0 => String::new(),
                _ => terminal.backend().to_string(),
            };
            assert_eq!(text.contains("STALE"), width >= 20, "{width} by {height}");
            assert_eq!(
                text.contains("10000 ports"),
                width >= 80,
                "{width} by {height}"
            );
        }
    }

    #[test]
    fn a_page_is_laid_out_once_for_each_reading_and_width() {
        let mut screen = screen();
        screen.take(news(Ok(reading(1, 1))));
        screen.lay_out(80);
        screen.page.shown.clear();
        screen.lay_out(80);
        assert!(screen.page.shown.is_empty(), "it is there");
        screen.lay_out(81);
        assert!(!screen.page.shown.is_empty(), "another width");
        screen.page.shown.clear();
        screen.take(news(Ok(reading(2, 1))));
        screen.lay_out(81);
        assert!(!screen.page.shown.is_empty(), "newer figures");
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
