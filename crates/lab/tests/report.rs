//! The report of whole runs: that it says what it has to, and that no data break it. How it looks
//! is tested in a browser (tests/test_lab_report.py).

#[path = "../examples/sample_report/samples.rs"]
mod samples;

use lab::report;
use lab::results::{Cell, Experiment, Figure, Finding, Results, State};

/// Elements that are opened are closed, in order; what is between them is no markup.
fn assert_well_formed(page: &str) {
    let void = ["meta", "br", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some((before, tail)) = rest.split_once('<') {
        if !matches!(open.last(), Some(&("script" | "style"))) {
            assert!(
                !before.contains('>'),
                "{:?}",
                &before[..before.len().min(80)]
            );
        }
        // Attributes are quoted, and may have any character but quotes.
        let mut quoted = false;
        let end = tail
            .char_indices()
            .find(|(_, letter)| {
                quoted ^= *letter == '"';
                *letter == '>' && !quoted
            })
            .map(|(end, _)| end);
        let Some(end) = end else {
            panic!("an element does not end")
        };
        let name = tail[..end].split_whitespace().next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !void.contains(&name) {
            open.push(name);
        }
        rest = &tail[end + 1..];
        // Scripts and styles end with their end tags only.
        if let Some(&name @ ("script" | "style")) = open.last()
            && !tail.starts_with('/')
        {
            let end = rest.find(&format!("</{name}>")).expect("it has no end");
            rest = &rest[end..];
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

#[test]
fn samples_make_well_formed_pages_with_every_plot() {
    let (plausible, earlier) = (samples::plausible(1.0), samples::plausible(0.93));
    let (adversarial, empty) = (samples::adversarial(), samples::empty());
    for (results, earlier) in [
        (&plausible, None),
        (&plausible, Some(&earlier)),
        (&adversarial, None),
        (&adversarial, Some(&adversarial)),
        (&empty, None),
        (&empty, Some(&plausible)),
    ] {
        let page = report::html(results, earlier);
        assert_well_formed(&page);
        let plots: usize = results.experiments.iter().map(|e| e.plots.len()).sum();
        let drawn = count(&page, "<figure class=\"plot\">");
        assert_eq!(drawn + count(&page, "class=\"no-plot\""), plots);
        assert_eq!(
            count(&page, "class=\"plot wide\""),
            count(&page, "class=\"plot narrow\"")
        );
        assert!(page.len() < 8 << 20, "{} bytes", page.len());
    }
}

#[test]
fn nothing_that_data_say_is_markup() {
    let page = report::html(&samples::adversarial(), None);
    assert_eq!(count(&page, "<script"), 1);
    assert_eq!(count(&page, "<img"), 0);
    assert!(page.contains("&lt;script&gt;document.title"));
}

#[test]
fn nothing_is_fetched() {
    let page = report::html(&samples::plausible(1.0), None);
    for from in ["src=", "@import", "url(", "<link"] {
        assert_eq!(count(&page, from), 0, "{from}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_run_that_was_stored_gives_the_same_report() {
    let results = samples::plausible(1.0);
    let mut stored: Results =
        serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
    // JSON has no word for what is no number.
    stored.made = results.made.clone();
    assert_eq!(report::html(&stored, None), report::html(&results, None));
}

#[test]
fn it_says_what_was_not_measured_and_why() {
    let page = report::html(&samples::plausible(1.0), None);
    for words in [
        "There is no program &quot;vpp&quot; in PATH",
        "its table takes 65,536 addresses",
        "It failed: perf_event_open: no such device",
        "It was interrupted",
        "1 cell is limited by the generator, not by the switch",
        "sluice lab run A4 --quick",
        "There is no physical network card",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn the_paper_stands_beside_the_same_cell() {
    let page = report::html(&samples::plausible(1.0), None);
    let table = &page[page.find("Figures of A4").unwrap()..];
    let row = |name: &str, flows: &str| {
        let row = table
            .split("<tr>")
            .find(|row| row.contains(name) && row.contains(flows));
        row.unwrap().split("</tr>").next().unwrap().to_string()
    };
    assert!(row("Open vSwitch, netdev", ">1<").contains(">1.87</td>"));
    assert!(row("Open vSwitch, netdev", ">2,000<").contains(">1.76</td>"));
    assert!(!row("Open vSwitch, netdev", ">10<").contains("1.87"));
    assert!(!row("Sluice", ">1<").contains("1.87"));
}

#[test]
fn only_a_comparison_has_changes() {
    let (now, before) = (samples::plausible(1.0), samples::plausible(0.8));
    let alone = report::html(&now, None);
    assert!(!alone.contains("id=\"changes\""));
    let compared = report::html(&now, Some(&before));
    assert!(compared.contains("id=\"changes\"") && compared.contains("</span>better +"));
    // In an experiment, too.
    let a1 = &compared[compared.find("id=\"a1\"").unwrap()..];
    assert!(a1[..a1.find("</section>").unwrap()].contains("Changed since the earlier run"));
    // The other way round all of it is worse.
    let back = report::html(&before, Some(&now));
    assert!(back.contains("</span>worse −"));
    let same = report::html(&now, Some(&now));
    assert!(same.contains("Nothing beyond noise"));
}

#[test]
fn a_terminal_gets_a_line_or_two_for_each_experiment() {
    for results in [
        samples::plausible(1.0),
        samples::adversarial(),
        samples::empty(),
    ] {
        let text = report::text(&results);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert!(line.chars().all(|letter| !letter.is_control()), "{line:?}");
        }
        assert!(text.lines().count() <= 2 * results.experiments.len() + 12);
    }
    let text = report::text(&samples::plausible(1.0));
    for words in [
        "A1    Paths through the switch",
        "2 held, 1 did not",
        "failed",
        "Sluice is ",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[test]
fn plots_are_files_of_their_own() {
    let results = samples::plausible(1.0);
    let plots = report::plots(&results);
    assert!(plots.len() > 20);
    for (_, title, svg) in plots {
        assert!(
            svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "),
            "{title}"
        );
        assert_well_formed(&svg);
    }
}

#[test]
fn an_experiment_of_one_cell_is_told_whole() {
    let figure = Figure {
        median: 14.21,
        low: 14.0,
        high: 14.4,
        deviation: 0.1,
        runs: vec![14.1, 14.21, 14.3],
        borrowed: 0.0,
    };
    let results = Results {
        experiments: vec![Experiment {
            id: "own".into(),
            title: "My own".into(),
            state: State::Interrupted,
            measures: vec![lab::results::Measure {
                name: "rate".into(),
                title: "Throughput".into(),
                unit: "Mpps".into(),
                better: "higher".into(),
            }],
            cells: vec![Cell {
                subject: "sluice".into(),
                figures: [("rate".to_string(), figure)].into(),
                windows: lab::results::Windows {
                    measured: 3,
                    failed: 1,
                    because: Some("It would not start.".into()),
                    moved: 2,
                    ..Default::default()
                },
                ..Default::default()
            }],
            findings: vec![Finding {
                text: "It came out.".into(),
                holds: Some(true),
                because: "So.".into(),
                ..Finding::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let page = report::html(&results, None);
    for words in [
        "14.2",
        "14.0 to 14.4",
        "14.1, 14.2, 14.3",
        "It came out.",
        "Other experiments",
        "of 4 windows 1 failed, 2 in which the machine",
        "In 1 cell 1 of 4 windows failed and are not in the figures: It would not start.",
        "In 1 cell 2 of 4 windows are in the figures although",
    ] {
        assert!(page.contains(words), "{words}");
    }
}
