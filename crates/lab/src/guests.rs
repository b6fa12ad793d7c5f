//! Guests: what is behind a switch's virtual ports. One process or thread drives all of them in
//! turn, on one core, so that guests do not take more cores than a machine has.
//!
//! Behind vhost-user sockets it is testpmd with virtio-user devices in the mode `io`, or, where
//! that is asked for, a machine of QEMU's for each guest, all on that core; behind TAPs a thread of
//! the lab's that reads and writes their files.

pub(crate) mod qemu;
mod taps;

use crate::place::{Launch, Pages, Place, Program};
use crate::settings::GuestKind;
use crate::subject::{End, Error};
use crate::subjects::testpmd::{Console, counters};
use std::time::Duration;

/// A guest's interfaces are a switch's ports, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Sends what comes in at each of two ports out at the other.
    Forward(u16, u16),
    /// Takes what comes.
    Sink(u16),
}

/// What guests have received and sent at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// The switch's port.
    pub port: u16,
    /// Frames that came from the switch.
    pub received: u64,
    /// Frames that were sent to it.
    pub sent: u64,
}

/// Guests that run. They end when this is dropped.
pub struct Guests {
    kind: Kind,
}

enum Kind {
    Testpmd {
        console: Console,
        program: Program,
        /// Which port each of testpmd's is; none: it only takes frames for a sink.
        ports: Vec<Option<u16>>,
        _pages: Pages,
    },
    Taps(taps::Taps),
    Machines(qemu::Machines),
}

/// Huge pages of 2 MiB of virtio-user guests.
const PAGES: u32 = 128 + 16;
const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);

impl Guests {
    /// Starts guests of a kind at the ends of a running switch: forwarding on `core`, what else
    /// they do on `beside`.
    pub fn start(
        place: &Place,
        ends: &[End],
        guests: &[Guest],
        wanted: GuestKind,
        core: usize,
        beside: usize,
    ) -> Result<Guests, Error> {
        let end_of = |port: u16| {
            let index = usize::from(port).checked_sub(1);
            index.and_then(|index| ends.get(index)).ok_or_else(|| {
                Error::Failed(format!(
                    "a guest is to be at port {port}, of {}",
                    ends.len()
                ))
            })
        };
        let mut pairs = Vec::new();
        for guest in guests {
            pairs.push(match *guest {
                Guest::Forward(one, other) => ((one, end_of(one)?), Some((other, end_of(other)?))),
                Guest::Sink(port) => ((port, end_of(port)?), None),
            });
        }
        let all = || {
            pairs
                .iter()
                .flat_map(|(one, other)| other.iter().chain([one]))
        };
        let sockets = all().all(|(_, end)| matches!(end, End::Socket { server: true, .. }));
        let taps = all().all(|(_, end)| matches!(end, End::Tap { .. }));
        let kind = match wanted {
            GuestKind::Auto | GuestKind::VirtioUser if sockets => {
                testpmd(place, &pairs, core, beside)?
            }
            GuestKind::Auto | GuestKind::Tap if taps => {
                Kind::Taps(taps::Taps::start(&pairs, core)?)
            }
            GuestKind::Qemu if sockets => {
                Kind::Machines(qemu::Machines::start(place, &pairs, core)?)
            }
            _ => {
                let ends: Vec<&End> = all().map(|(_, end)| *end).collect();
                return Err(Error::Missing(format!(
                    "guests of the kind {} are not at such ends: {ends:?}",
                    wanted.name()
                )));
            }
        };
        Ok(Guests { kind })
    }

    /// What they have handled, by port.
    pub fn handled(&mut self) -> Result<Vec<Handled>, Error> {
        match &mut self.kind {
            Kind::Testpmd {
                console,
                program,
                ports,
                ..
            } => {
                console.write("show port stats all")?;
                let counters = counters(&console.read(program, ANSWER)?);
                let known = ports.iter().zip(counters);
                Ok(known
                    .filter_map(|(port, counters)| {
                        Some(Handled {
                            port: (*port)?,
                            received: counters.received,
                            sent: counters.sent,
                        })
                    })
                    .collect())
            }
            Kind::Taps(taps) => taps.handled(),
            Kind::Machines(machines) => machines.handled(),
        }
    }

    /// The process that has the guests, or the first of them, where it is not the lab's own.
    pub fn process(&self) -> Option<u32> {
        match &self.kind {
            Kind::Testpmd { program, .. } => Some(program.id()),
            Kind::Taps(_) => None,
            Kind::Machines(machines) => machines.process(),
        }
    }

    /// How guests are made, in words.
    pub fn setup(&self) -> String {
        match self.kind {
            Kind::Testpmd { .. } => {
                "Guests are virtio-user devices of one testpmd (io), whose one lcore serves all of \
                 them in turn."
            }
            Kind::Taps(_) => {
                "Guests are files of TAPs that one thread reads and writes in turn; it sleeps while \
                 nothing comes."
            }
            Kind::Machines(_) => {
                "Guests are machines of QEMU's with one processor and the kernel's bridge between \
                 two virtio-net devices, all on one core."
            }
        }
        .into()
    }

    /// Ends them.
    pub fn stop(self) -> Result<(), Error> {
        match self.kind {
            Kind::Testpmd {
                mut console,
                program,
                ..
            } => {
                let asked = console.write("quit");
                let ended = program.finish(ANSWER);
                asked.and(ended)
            }
            Kind::Taps(taps) => taps.stop(),
            Kind::Machines(machines) => machines.stop(),
        }
    }
}

type At<'a> = (u16, &'a End);

fn testpmd(
    place: &Place,
    pairs: &[(At, Option<At>)],
    core: usize,
    beside: usize,
) -> Result<Kind, Error> {
    let pages = place.reserve(PAGES)?;
    let prefix = format!("{}guests", place.prefix);
    let mut command: Vec<String> = [
        "stdbuf",
        "-o0",
        "dpdk-testpmd",
        "--no-pci",
        "--in-memory",
        "--single-file-segments",
    ]
    .map(str::to_owned)
    .to_vec();
    command.extend(["-n".into(), "1".into(), "--socket-mem".into(), "256".into()]);
    command.push(format!("--lcores=0@{beside},1@{core}"));
    command.push(format!("--file-prefix={prefix}"));
    let mut ports = Vec::new();
    for (one, other) in pairs {
        for at in [Some(one), other.as_ref()] {
            let number = ports.len();
            ports.push(at.map(|(port, _)| *port));
            command.push(match at {
                Some((_, End::Socket { path, .. })) => format!(
                    "--vdev=net_virtio_user{number},path={},queues=1,server=1",
                    path.display()
                ),
                // What a sink forwards to.
                _ => format!("--vdev=net_null{number},no-rx=1"),
            });
        }
    }
    let more = [
        "--",
        "-i",
        "--no-mlockall",
        "--total-num-mbufs=65536",
        "--nb-cores=1",
    ];
    command.extend(more.map(str::to_owned));
    let mut program = place.start(Launch {
        name: "guests".into(),
        command,
        piped: true,
        ..Launch::default()
    })?;
    let mut console = Console::of(&mut program)?;
    console.read(&mut program, START)?;
    for words in ["set fwd io", "start"] {
        console.write(words)?;
        console.read(&mut program, ANSWER)?;
    }
    Ok(Kind::Testpmd {
        console,
        program,
        ports,
        _pages: pages,
    })
}
