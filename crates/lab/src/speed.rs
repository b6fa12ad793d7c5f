//! The machine's speed around a window of measurement.
//!
//! A virtual machine shares its processors and caches with others, and its speed may change by a
//! factor of two within minutes. Before and after each window a probe of fixed work runs on the
//! worker's core, while the switch stands still (SIGSTOP; one in the kernel has nothing to do
//! then). Where a second core takes part, the way of a cache line between both is measured, too
//! ([`between`](crate::between)). A window between whose ends the speed moved by more than
//! [`STILL`], or that way by more than [`STILL_BETWEEN`], is repeated, at most [`REPEATS`] times
//! (once in quick runs), and counted. One whose ends agree, but in a state in which the machine
//! rarely is, is measured again when the others have been ([`Usual`]).

use crate::statistics::median;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::time::Duration;

/// By how much the speed may move from one end of a window to the other.
pub const STILL: f64 = 0.05;
/// By how much the way between two cores may move. Where the host moves a processor it changes
/// several times over; otherwise it scatters by some percent.
pub const STILL_BETWEEN: f64 = 0.3;
/// How often a window is repeated, at most.
pub const REPEATS: u32 = 3;
/// How long a switch that stood still has to get going again.
const WARM: Duration = Duration::from_millis(100);

/// By how much the speed may differ from what it is most of the time: what a neighbour's load on
/// the same physical core costs is more, and what heat and other neighbours do is less.
pub const USUAL: f64 = 0.15;
/// From so few windows it is not known how the machine is most of the time.
const USUAL_LEAST: usize = 5;

/// What the machine is like most of the time: the medians, over all windows of a run with the same
/// cores, of the speed and of the way between cores. A virtual machine may be in another state for
/// seconds or minutes; windows then are whole and repeat well, and say something about that state.
#[derive(Clone, Debug, Default)]
pub struct Usual(BTreeMap<Cores, (f64, Option<f64>)>);

/// The core whose speed is looked at, and a second one.
type Cores = (usize, Option<usize>);

impl Usual {
    /// From windows: their cores, speeds, and the ways between these cores.
    pub fn of(windows: impl Iterator<Item = (Cores, f64, Option<f64>)>) -> Usual {
        let mut all: BTreeMap<Cores, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        for (cores, speed, way) in windows {
            let (speeds, ways) = all.entry(cores).or_default();
            speeds.push(speed);
            ways.extend(way);
        }
        let known = |values: &[f64]| (values.len() >= USUAL_LEAST).then(|| median(values));
        let usual = all
            .into_iter()
            .filter_map(|(cores, (speeds, ways))| Some((cores, (known(&speeds)?, known(&ways)))));
        Usual(usual.collect())
    }

    /// Whether the machine was in another state than it usually is.
    pub fn is_other(&self, cores: Cores, speed: f64, way: Option<f64>) -> bool {
        let Some(&(usual, usual_way)) = self.0.get(&cores) else {
            return false;
        };
        (speed / usual).max(usual / speed) - 1.0 > USUAL || another_way(way, usual_way)
    }
}

/// Why the speed of a core is not known.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ProbeError(#[from] Box<dyn std::error::Error + Send + Sync>);

/// Times fixed work.
pub trait Probe {
    /// Looks how fast this core is now.
    fn look(&mut self, core: usize) -> Result<Reading, ProbeError>;

    /// Nanoseconds of a cache line's way from one core to another and back, where it can be told.
    fn between(&mut self, one: usize, other: usize) -> Option<f64> {
        crate::between::round_trip(one, other)
    }

    /// Cycles of the time stamp counter per second.
    fn cycles_per_second(&self) -> f64;
}

/// The speed at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Additions per nanosecond.
    pub additions: f64,
    /// Nanoseconds for a load that misses the processor's own caches.
    pub memory_ns: f64,
}

impl Reading {
    /// How far another reading is from this one: the greater of both parts' ratios, minus 1.
    pub fn distance(&self, other: &Reading) -> f64 {
        let ratio = |a: f64, b: f64| match a > 0.0 && b > 0.0 {
            true => (a / b).max(b / a) - 1.0,
            false => 0.0,
        };
        ratio(self.additions, other.additions).max(ratio(self.memory_ns, other.memory_ns))
    }
}

/// A window that was measured.
pub struct Window<T> {
    /// What it found.
    pub found: T,
    /// How often it was repeated.
    pub repeated: u32,
    /// Whether the speed moved even in the last.
    pub moved: bool,
    /// The speed after it, additions per nanosecond.
    pub speed: f64,
    /// The way between its two cores after it, nanoseconds, where it has two and that is known.
    pub between: Option<f64>,
    /// The core whose speed it is, and the second, where there is one.
    pub cores: (usize, Option<usize>),
}

/// A process that stands still until this is dropped.
struct Halted(Option<u32>);

impl Halted {
    fn halt(process: Option<u32>) -> Halted {
        if let Some(process) = process {
            signal(process, Signal::STOP);
        }
        Halted(process)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        if let Some(process) = self.0 {
            signal(process, Signal::CONT);
        }
    }
}

fn signal(process: u32, signal: Signal) {
    // The process is a child's whose handle its owner holds, so its ID is not another's.
    let _ = Pid::from_raw(process as i32).map(|pid| kill_process(pid, signal));
}

/// Whether the way between two cores is another one.
pub(crate) fn another_way(before: Option<f64>, after: Option<f64>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => (before / after).max(after / before) - 1.0 > STILL_BETWEEN,
        _ => false,
    }
}

/// Measures a window between two looks at a core, and at the way to a second one, again while they
/// move, at most so often. `process` stands still during looks.
pub fn bracketed<T, E: From<ProbeError>>(
    probe: &mut dyn Probe,
    core: usize,
    second: Option<usize>,
    process: Option<u32>,
    repeats: u32,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Result<Window<T>, E> {
    let mut look = || {
        let halted = Halted::halt(process);
        let reading = probe.look(core)?;
        let between = second.and_then(|second| probe.between(core, second));
        drop(halted);
        if process.is_some() {
            std::thread::sleep(WARM);
        }
        Ok::<_, E>((reading, between))
    };
    let mut before = look()?;
    let mut repeated = 0;
    loop {
        let found = measure()?;
        let after = look()?;
        let moved = before.0.distance(&after.0) > STILL || another_way(before.1, after.1);
        if !moved || repeated >= repeats {
            return Ok(Window {
                found,
                repeated,
                moved,
                speed: after.0.additions,
                between: after.1,
                cores: (core, second),
            });
        }
        repeated += 1;
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Speeds(Vec<f64>);

    impl Probe for Speeds {
        fn look(&mut self, _: usize) -> Result<Reading, ProbeError> {
            match self.0.is_empty() {
                true => Err(ProbeError("out of speeds".into())),
                false => Ok(Reading {
                    additions: self.0.remove(0),
                    memory_ns: 80.0,
                }),
            }
        }

        fn cycles_per_second(&self) -> f64 {
            1e9
        }
    }

    fn measured(speeds: &[f64]) -> Result<(Window<u32>, u32), ProbeError> {
        let mut windows = 0;
        bracketed(&mut Speeds(speeds.to_vec()), 0, None, None, REPEATS, || {
            windows += 1;
            Ok(windows)
        })
        .map(|window| {
            let last = window.found;
            (window, last)
        })
    }

    #[test]
    fn windows_in_which_the_speed_moved_are_repeated() {
        let (still, windows) = measured(&[10.0, 10.2]).unwrap();
        assert_eq!((still.repeated, still.moved, windows), (0, false, 1));
        assert_eq!(still.speed, 10.2);
        let (moved, windows) = measured(&[10.0, 5.0, 10.0, 9.8]).unwrap();
        assert_eq!((moved.repeated, moved.moved, windows), (2, false, 3));
        // Bounded, and said.
        let (moving, windows) = measured(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (moving.repeated, moving.moved, windows),
            (REPEATS, true, REPEATS + 1)
        );
        assert!(measured(&[1.0]).is_err());
    }

    /// Ways between two cores, one for each look.
    struct Ways(Vec<Option<f64>>);

    impl Probe for Ways {
        fn look(&mut self, _: usize) -> Result<Reading, ProbeError> {
            Ok(Reading {
                additions: 10.0,
                memory_ns: 80.0,
            })
        }

        fn between(&mut self, one: usize, other: usize) -> Option<f64> {
            assert_eq!((one, other), (1, 0));
            self.0.remove(0)
        }

        fn cycles_per_second(&self) -> f64 {
            1e9
        }
    }

    #[test]
    fn another_way_between_cores_repeats_a_window() {
        let measured = |second, ways: &[Option<f64>]| {
            let mut ways = Ways(ways.to_vec());
            let window = bracketed(&mut ways, 1, second, None, REPEATS, || {
                Ok::<_, ProbeError>(())
            });
            window.unwrap()
        };
        let ways = [Some(50.0), Some(340.0), Some(350.0)];
        let window = measured(Some(0), &ways);
        assert_eq!((window.repeated, window.moved), (1, false));
        assert_eq!(window.between, Some(350.0));
        let alone = measured(None, &[]);
        assert_eq!((alone.repeated, alone.between), (0, None));
        // Cores that are too busy to tell move nothing.
        let busy = measured(Some(0), &[Some(50.0), None]);
        assert_eq!((busy.repeated, busy.moved), (0, false));
    }

    /// Most windows of a pair of cores say what is usual; another pair has its own.
    #[test]
    fn windows_in_another_state_than_most_are_told() {
        let near = ((1, Some(0)), 13.4, Some(60.0));
        let mut windows = vec![near; 6];
        windows.extend([
            ((1, Some(0)), 13.4, Some(340.0)),
            ((1, Some(0)), 7.1, Some(62.0)),
        ]);
        windows.extend([((1, Some(2)), 13.4, Some(340.0)); 5]);
        windows.extend([((3, None), 7.1, None); 4]);
        let usual = Usual::of(windows.into_iter());
        for (window, other) in [
            (near, false),
            (((1, Some(0)), 12.5, Some(70.0)), false),
            (((1, Some(0)), 13.4, Some(340.0)), true),
            (((1, Some(0)), 13.4, Some(28.0)), true),
            (((1, Some(0)), 7.1, Some(60.0)), true),
            // A way that could not be told.
            (((1, Some(0)), 13.4, None), false),
            (((1, Some(2)), 13.4, Some(340.0)), false),
            (((1, Some(2)), 13.4, Some(60.0)), true),
            // Of four windows nothing is known.
            (((3, None), 99.0, None), false),
        ] {
            let (cores, speed, way) = window;
            assert_eq!(usual.is_other(cores, speed, way), other, "{window:?}");
        }
    }

    #[test]
    fn memory_counts_too() {
        let reading = |additions, memory_ns| Reading {
            additions,
            memory_ns,
        };
        assert!(reading(1.0, 80.0).distance(&reading(1.0, 90.0)) > STILL);
        assert!(reading(1.0, 90.0).distance(&reading(1.0, 80.0)) > STILL);
        assert!(reading(1.0, 80.0).distance(&reading(1.01, 81.0)) < STILL);
    }

    /// The process is halted during looks only.
    #[test]
    fn the_switch_stands_still_while_the_probe_runs() {
        fn state(process: u32) -> char {
            let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            text.rsplit(") ").next().unwrap().chars().next().unwrap()
        }
        struct Looks(u32);
        impl Probe for Looks {
            fn look(&mut self, _: usize) -> Result<Reading, ProbeError> {
                for _ in 0..100 {
                    if state(self.0) == 'T' {
                        return Ok(Reading {
                            additions: 1.0,
                            memory_ns: 1.0,
                        });
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(ProbeError(
                    format!("it is in state {}", state(self.0)).into(),
                ))
            }

            fn cycles_per_second(&self) -> f64 {
                1e9
            }
        }
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = child.id();
        let window = bracketed(&mut Looks(process), 0, None, Some(process), 0, || {
            Ok::<_, ProbeError>(state(process))
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(window.unwrap().found, 'T');
    }
}
