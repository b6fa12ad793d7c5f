//! How ports, guests and generator are connected.
//!
//! `p` is a physical port or what stands in its place, `v` a guest's. What a name means:
//!
//! | name | frames go |
//! | --- | --- |
//! | `p-p` | from one physical port to another |
//! | `p-v` | from a physical port to a guest |
//! | `v-p` | from a guest to a physical port |
//! | `v-v` | from a guest to another |
//! | `p-v-p` | to a guest, which sends them on, to a physical port: `chain-1` |
//! | `p-v-v` | to a guest, which sends them on, to another, which takes them |
//! | `chain-N` | through N guests, to a physical port |
//! | `cloning-N` | from a physical port, copied to N others |

use crate::guests::Guest;
use crate::subject::{Error, Job, Plan, Port, Subject};
use std::path::{Path, PathBuf};

/// The most guests of a chain, or copies.
const MOST: usize = 64;

/// What stands for physical ports.
#[derive(Clone, Debug, PartialEq)]
pub enum Wire {
    /// Frames from a capture in memory, as fast as they are taken; what arrives at guests is taken
    /// by them. No generator is needed.
    Memory(PathBuf),
    /// Veths, with the generator at the other end.
    Veth,
    /// These devices, in order.
    Devices(Vec<String>),
}

/// Ports, what guests do, and where a generator sends and receives.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// What the switch is asked for.
    pub plan: Plan,
    /// What guests do.
    pub guests: Vec<Guest>,
    /// Ports at whose ends a generator sends; none: the switch feeds itself.
    pub sources: Vec<u16>,
    /// Ports at whose ends a generator receives; none: the switch's counters tell.
    pub sinks: Vec<u16>,
    /// The port at which frames come in, and those at which they finally go out.
    pub path: (u16, Vec<u16>),
    /// How it was built, in words.
    pub text: String,
}

/// Builds a topology for a switch, with its workers on these cores. Where it has no ports in
/// memory, veths are in their place, and the text says so.
pub fn topology(
    name: &str,
    subject: &dyn Subject,
    wire: &Wire,
    cores: &[usize],
) -> Result<Topology, Error> {
    let shape = Shape::of(name)?;
    let built = build(name, &shape, wire, cores)?;
    match (subject.can(&built.plan), wire) {
        (Ok(()), _) => Ok(built),
        (Err(Error::Missing(why)), Wire::Memory(_)) => {
            let mut other = build(name, &shape, &Wire::Veth, cores)?;
            // If this is not possible either, the reason is another one.
            subject.can(&other.plan)?;
            other.text += &format!(" (Instead of ports in memory: {why}.)");
            Ok(other)
        }
        (Err(error), _) => Err(error),
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Whether frames come from a guest, not from a wire.
    from_guest: bool,
    /// Guests that frames pass through.
    through: usize,
    /// Whether they end at a guest.
    to_guest: bool,
    copies: usize,
}

impl Shape {
    fn of(name: &str) -> Result<Shape, Error> {
        let unknown = || {
            Error::Missing(format!(
                "no topology is called {name:?}; there are p-p, p-v, v-p, v-v, p-v-p, p-v-v, \
                 chain-N and cloning-N, N up to {MOST}"
            ))
        };
        let shape = |from_guest, through, to_guest| Shape {
            from_guest,
            through,
            to_guest,
            copies: 1,
        };
        let number = |text: &str| {
            let number = text.parse::<usize>().ok();
            number
                .filter(|number| (1..=MOST).contains(number))
                .ok_or_else(unknown)
        };
        Ok(match name {
            "p-p" => shape(false, 0, false),
            "p-v" => shape(false, 0, true),
            "v-p" => shape(true, 0, false),
            "v-v" => shape(true, 0, true),
            "p-v-p" => shape(false, 1, false),
            "p-v-v" => shape(false, 1, true),
            _ => match name.split_once('-') {
                Some(("chain", count)) => shape(false, number(count)?, false),
                Some(("cloning", count)) => Shape {
                    copies: number(count)?,
                    ..shape(false, 0, false)
                },
                _ => return Err(unknown()),
            },
        })
    }
}

fn build(name: &str, shape: &Shape, wire: &Wire, cores: &[usize]) -> Result<Topology, Error> {
    let mut devices = match wire {
        Wire::Devices(names) => names.iter(),
        _ => [].iter(),
    };
    let mut wired = |first: bool| {
        Ok(match wire {
            Wire::Memory(frames) => Port::Memory {
                frames: if first {
                    frames.clone()
                } else {
                    PathBuf::new()
                },
            },
            Wire::Veth => Port::Veth,
            Wire::Devices(names) => Port::Device(devices.next().cloned().ok_or_else(|| {
                Error::Missing(format!(
                    "{name} needs more devices than the {} given",
                    names.len()
                ))
            })?),
        })
    };
    let mut ports = vec![if shape.from_guest {
        Port::Virtual
    } else {
        wired(true)?
    }];
    let mut guests = Vec::new();
    for _ in 0..shape.through {
        let first = ports.len() as u16 + 1;
        ports.extend([Port::Virtual, Port::Virtual]);
        guests.push(Guest::Forward(first, first + 1));
    }
    let last = ports.len() as u16 + 1;
    for _ in 0..shape.copies {
        ports.push(if shape.to_guest {
            Port::Virtual
        } else {
            wired(false)?
        });
    }
    let ends: Vec<u16> = (last..=ports.len() as u16).collect();
    // From each odd port to the one beside it; the last of them may have copies.
    let mut pairs: Vec<(u16, Vec<u16>)> = (1..last - 1)
        .step_by(2)
        .map(|port| (port, vec![port + 1]))
        .collect();
    pairs.push((last - 1, ends.clone()));
    let feeds_itself = matches!(wire, Wire::Memory(_)) && !shape.from_guest;
    let mut sinks = Vec::new();
    if shape.to_guest && feeds_itself {
        guests.extend(ends.iter().map(|port| Guest::Sink(*port)));
    } else if shape.to_guest || *wire == Wire::Veth {
        sinks = ends.clone();
    }
    let sources = if feeds_itself || (matches!(wire, Wire::Devices(_)) && !shape.from_guest) {
        Vec::new()
    } else {
        vec![1]
    };
    let text = format!(
        "{name}: {}",
        described(&ports, &pairs, &guests, &sources, &sinks)
    );
    Ok(Topology {
        plan: Plan {
            ports,
            cores: cores.to_vec(),
            job: Job::To(pairs),
        },
        guests,
        sources,
        sinks,
        path: (1, ends),
        text,
    })
}

fn described(
    ports: &[Port],
    pairs: &[(u16, Vec<u16>)],
    guests: &[Guest],
    sources: &[u16],
    sinks: &[u16],
) -> String {
    let port = |number: u16| match &ports[usize::from(number) - 1] {
        Port::Memory { frames } if *frames == Path::new("") => format!("port {number} (null)"),
        Port::Memory { .. } => format!("port {number} (memory)"),
        Port::Virtual => format!("port {number} (guest)"),
        Port::Veth => format!("port {number} (veth)"),
        Port::Device(name) => format!("port {number} ({name})"),
    };
    let list = |ports: &[u16]| ports.iter().map(|number| port(*number)).collect::<Vec<_>>();
    let mut sentences: Vec<String> = pairs
        .iter()
        .map(|(from, to)| format!("{} to {}", port(*from), list(to).join(" and ")))
        .collect();
    for guest in guests {
        sentences.push(match guest {
            Guest::Forward(one, other) => format!("a guest forwards between {one} and {other}"),
            Guest::Sink(port) => format!("a guest takes what comes at {port}"),
        });
    }
    for (what, ports) in [("sends", sources), ("receives", sinks)] {
        if !ports.is_empty() {
            let numbers: Vec<String> = ports.iter().map(u16::to_string).collect();
            sentences.push(format!("the generator {what} at {}", numbers.join(", ")));
        }
    }
    format!("{}.", sentences.join("; "))
}

/// Who runs on which core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The switch's workers.
    pub workers: Vec<usize>,
    /// The generator.
    pub generator: usize,
    /// All guests.
    pub guests: usize,
    /// What does not spin: the switch's main thread, the guests' and the lab itself.
    pub beside: usize,
    /// How cores were shared, in words.
    pub text: String,
}

/// Shares cores out: workers get cores of their own, from the last one down, but leave one; then
/// the generator, and then the guests get one each, as far as there are more; else they share.
///
/// `generator` and `guests` say whether there are any. An error where workers would share.
pub fn share(
    available: &[usize],
    workers: usize,
    generator: bool,
    guests: bool,
) -> Result<Shared, Error> {
    if workers == 0 || workers > available.len() {
        return Err(Error::Missing(format!(
            "{workers} workers, each on a core of its own, do not fit on {} cores",
            available.len()
        )));
    }
    let (rest, own) = available.split_at(available.len() - workers);
    let mut free = rest.iter().rev();
    let beside = rest.first().or(own.first()).copied().unwrap_or(0);
    let mut next = |wanted: bool| match wanted {
        true => free.next().copied(),
        false => None,
    };
    let for_generator = next(generator).unwrap_or(beside);
    let for_guests = next(guests).unwrap_or(match generator {
        true => for_generator,
        false => beside,
    });
    let numbers = |cores: &[usize]| {
        cores
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = match own {
        [core] => format!("The switch's worker has core {core}"),
        _ => format!("The switch's workers have cores {}", numbers(own)),
    };
    for (there, who, core) in [
        (generator, "the generator", for_generator),
        (guests, "all guests", for_guests),
    ] {
        if there {
            text += &match own.contains(&core) {
                true => format!(", which it shares with {who}"),
                false => format!(", {who} core {core}"),
            };
        }
    }
    if generator && guests && for_generator == for_guests {
        text += ", so that generator and guests wait for each other";
    }
    Ok(Shared {
        workers: own.to_vec(),
        generator: for_generator,
        guests: for_guests,
        beside,
        text: text + ".",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::{Linux, allowed_cores};

    fn memory() -> Wire {
        Wire::Memory("/dev/null".into())
    }

    fn built(name: &str, wire: &Wire) -> Topology {
        build(name, &Shape::of(name).unwrap(), wire, &[1]).unwrap()
    }

    #[test]
    fn what_names_stand_for() {
        let kinds = |name: &str| -> String {
            let topology = built(name, &memory());
            let letter = |port: &Port| if *port == Port::Virtual { 'v' } else { 'p' };
            topology.plan.ports.iter().map(letter).collect()
        };
        for (name, wanted) in [
            ("p-p", "pp"),
            ("p-v", "pv"),
            ("v-p", "vp"),
            ("v-v", "vv"),
            ("p-v-p", "pvvp"),
            ("p-v-v", "pvvv"),
            ("chain-3", "pvvvvvvp"),
            ("cloning-3", "pppp"),
        ] {
            assert_eq!(kinds(name), wanted, "{name}");
        }
        for name in [
            "", "p", "chain-0", "chain-65", "chain-x", "cloning", "v-v-v-v",
        ] {
            assert!(Shape::of(name).is_err(), "{name}");
        }
    }

    #[test]
    fn frames_pass_every_guest_once() {
        let topology = built("chain-2", &memory());
        assert_eq!(
            topology.plan.job,
            Job::To(vec![(1, vec![2]), (3, vec![4]), (5, vec![6])])
        );
        assert_eq!(
            topology.guests,
            [Guest::Forward(2, 3), Guest::Forward(4, 5)]
        );
        assert_eq!(topology.path, (1, vec![6]));
        assert_eq!(topology.plan.job, built("chain-2", &Wire::Veth).plan.job);
    }

    #[test]
    fn memory_needs_no_generator_and_veths_do() {
        let ends = |topology: &Topology| -> (Vec<u16>, Vec<u16>) {
            (topology.sources.clone(), topology.sinks.clone())
        };
        let topology = built("p-v", &memory());
        assert_eq!(ends(&topology), (Vec::new(), Vec::new()));
        assert_eq!(topology.guests, [Guest::Sink(2)]);
        let topology = built("p-v", &Wire::Veth);
        assert_eq!(ends(&topology), (vec![1], vec![2]));
        assert!(topology.guests.is_empty());
        assert_eq!(ends(&built("v-p", &memory())), (vec![1], Vec::new()));
        assert_eq!(
            ends(&built("cloning-2", &Wire::Veth)),
            (vec![1], vec![2, 3])
        );
    }

    #[test]
    fn devices_must_suffice() {
        let one = Wire::Devices(vec!["eth7".into()]);
        let shape = Shape::of("p-p").unwrap();
        let error = build("p-p", &shape, &one, &[1]).unwrap_err().to_string();
        assert!(
            error.contains("p-p") && error.contains("1 given"),
            "{error}"
        );
        assert!(build("p-v", &Shape::of("p-v").unwrap(), &one, &[1]).is_ok());
    }

    #[test]
    fn the_kernel_gets_veths_and_the_text_says_so() {
        let cores = &allowed_cores()[..1];
        let frames = tempfile::NamedTempFile::new().unwrap();
        let wire = Wire::Memory(frames.path().to_owned());
        let topology = topology("p-v-p", &Linux::Bridge, &wire, cores).unwrap();
        assert_eq!(topology.plan.ports[0], Port::Veth);
        assert!(
            topology.text.contains("Instead of ports in memory"),
            "{}",
            topology.text
        );
        assert!(
            topology.text.contains("port 1 (veth) to port 2 (guest)"),
            "{}",
            topology.text
        );
    }

    #[test]
    fn cores_are_shared_as_told() {
        let two = share(&[0, 1], 1, true, true).unwrap();
        assert_eq!((two.workers, two.generator, two.guests), (vec![1], 0, 0));
        assert!(two.text.contains("wait for each other"), "{}", two.text);
        let two = share(&[0, 1], 1, false, true).unwrap();
        assert_eq!(
            two.text,
            "The switch's worker has core 1, all guests core 0."
        );
        let four = share(&[0, 1, 2, 3], 1, true, true).unwrap();
        assert_eq!(
            (four.workers, four.generator, four.guests, four.beside),
            (vec![3], 2, 1, 0)
        );
        let one = share(&[4], 1, true, false).unwrap();
        assert!(
            one.text.contains("which it shares with the generator"),
            "{}",
            one.text
        );
        assert!(share(&[0, 1], 3, false, false).is_err());
        assert!(share(&[0, 1], 0, false, false).is_err());
    }
}
