//! DPDK's testpmd, which forwards frames between pairs of ports without looking at them: the L2FWD
//! of the papers.

use super::daemon::memory;
use super::site::{Site, is_pci};
use super::{check, core_beside, destinations, need};
use crate::place::{Launch, Place, Program, interrupted, run};
use crate::subject::{Counters, End, Error, Job, Plan, Port, Running, Stage, Subject};
use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

const PROGRAM: &str = "dpdk-testpmd";
/// Huge pages of 2 MiB: buffers, and some more.
const PAGES: u32 = 512 + 64;
const PROMPT: &str = "testpmd> ";
/// How long it may take to start, and to answer a command.
const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);
/// How much of what it prints waits to be read, in pieces of up to 64 KiB.
const PIECES: usize = 64;

/// testpmd in the mode `io`.
#[derive(Clone, Copy, Debug)]
pub struct Testpmd;

impl Subject for Testpmd {
    fn id(&self) -> &str {
        "testpmd"
    }

    fn name(&self) -> String {
        "testpmd io (L2FWD)".into()
    }

    fn version(&self) -> Result<String, Error> {
        need(PROGRAM)?;
        need("ip")?;
        // It says its version only as its log begins, on its error output, before it refuses the
        // option that it does not know.
        let options = "-v --no-huge --no-pci --no-shconf --no-telemetry -m 16 -- --help";
        let said = run(&["sh", "-c", &format!("{PROGRAM} {options} 2>&1")])?;
        Ok(version(&said).unwrap_or_else(|| "unknown".into()))
    }

    fn setup(&self) -> String {
        "Mode io, ports in pairs. A queue of each port; workers are lcores on the plan's cores, the \
         main lcore beside them. Ports in memory are net_pcap devices that replay a capture for \
         ever and drop what is sent, or net_null; guests' ports are net_vhost devices that connect \
         to the guest's socket; veths and kernel interfaces are served through net_af_packet."
            .into()
    }

    fn can(&self, plan: &Plan) -> Result<(), Error> {
        check(plan)?;
        let count = plan.ports.len();
        if count % 2 == 1 {
            return Err(Error::Missing(format!(
                "it forwards between pairs, and {count} is odd"
            )));
        }
        job(&plan.job, count)
    }

    fn start(&self, place: &Place, plan: &Plan) -> Result<Box<dyn Running>, Error> {
        self.can(plan)?;
        let mut site = Site::make(place, self.id(), PAGES)?;
        let (mut devices, mut ends) = (Vec::new(), Vec::new());
        for (number, port) in (1..).zip(&plan.ports) {
            let (words, end) = device(&mut site, number, port)?;
            devices.extend(words);
            ends.push(end);
        }
        // More cores than ports have nothing to do, and are refused.
        let cores = &plan.cores[..plan.cores.len().min(ends.len())];
        let mut places = format!("0@{}", core_beside(&plan.cores));
        for (lcore, core) in (1..).zip(cores) {
            places += &format!(",{lcore}@{core}");
        }
        let mut command: Vec<String> = [
            "stdbuf",
            "-o0",
            PROGRAM,
            "--in-memory",
            "-n",
            "1",
            "--socket-mem",
            "1024",
            &format!("--lcores={places}"),
            &format!("--file-prefix={}", site.file_prefix()),
        ]
        .map(str::to_owned)
        .to_vec();
        if !plan
            .ports
            .iter()
            .any(|port| matches!(port, Port::Device(name) if is_pci(name)))
        {
            command.push("--no-pci".into());
        }
        command.extend(devices);
        let more = [
            "--",
            "-i",
            "--rxq=1",
            "--txq=1",
            "--total-num-mbufs=262144",
            "--no-mlockall",
        ];
        command.extend(more.map(str::to_owned));
        command.push(format!("--nb-cores={}", cores.len()));
        let mut program = site.place.start(Launch {
            name: site.name.clone(),
            command,
            namespace: Some(&site.inside),
            piped: true,
            ..Launch::default()
        })?;
        let console = Console::of(&mut program)?;
        let mut this = Run {
            console,
            program,
            ends,
            site,
        };
        this.console.read(&mut this.program, START)?;
        this.command("set fwd io")?;
        this.command("start")?;
        Ok(Box::new(this))
    }
}

/// Whether it can do a job; it does only one.
fn job(job: &Job, ports: usize) -> Result<(), Error> {
    super::check_job(job, ports)?;
    let crossed = destinations(&Job::Cross, ports).unwrap_or_default();
    let wanted = destinations(job, ports).ok_or_else(|| {
        Error::Missing("it looks at no packet: it neither switches, routes nor has rules".into())
    })?;
    match wanted.iter().find(|pair| !crossed.contains(pair)) {
        None => Ok(()),
        Some((from, to)) => Err(Error::Missing(format!(
            "it forwards to the port beside, and not from {from} to {to:?}"
        ))),
    }
}

/// A port's arguments, and where a generator attaches.
fn device(site: &mut Site, number: usize, port: &Port) -> Result<(Vec<String>, End), Error> {
    let vdev = |text: String| vec![format!("--vdev={text}")];
    match port {
        Port::Memory { frames } => Ok((vdev(memory(number, frames)), End::Itself)),
        Port::Device(name) if is_pci(name) => Ok((vec!["-a".into(), name.clone()], End::Itself)),
        Port::Virtual => {
            let path = site.directory.join(format!("p{number}.sock"));
            let text = format!(
                "net_vhost{number},iface={},client=1,queues=1",
                path.display()
            );
            Ok((vdev(text), End::Socket { path, server: true }))
        }
        port => {
            let (interface, end) = site.kernel_port(number, port)?;
            Ok((
                vdev(format!("net_af_packet{number},iface={interface}")),
                end,
            ))
        }
    }
}

/// A testpmd that runs.
struct Run {
    console: Console,
    program: Program,
    ends: Vec<End>,
    site: Site,
}

impl Run {
    fn command(&mut self, text: &str) -> Result<String, Error> {
        self.console.write(text)?;
        self.console.read(&mut self.program, ANSWER)
    }
}

impl Running for Run {
    fn ends(&self) -> Vec<End> {
        self.ends.clone()
    }

    fn counters(&mut self) -> Result<Vec<Counters>, Error> {
        let text = self.command("show port stats all")?;
        let counters = counters(&text);
        match counters.len() == self.ends.len() {
            true => Ok(counters),
            false => Err(Error::Failed(format!(
                "testpmd told counters of {} ports, and not of {}: {text}",
                counters.len(),
                self.ends.len()
            ))),
        }
    }

    fn apply(&mut self, wanted: &Job) -> Result<(), Error> {
        // It goes on as before.
        job(wanted, self.ends.len())
    }

    fn process(&self) -> Option<u32> {
        // stdbuf becomes testpmd: it replaces itself.
        Some(self.program.id())
    }

    fn workers(&self) -> Vec<u32> {
        self.program
            .threads(|name| name.starts_with("lcore-worker") || name.starts_with("rte-worker"))
    }

    fn stages(&mut self) -> Result<Option<Vec<Stage>>, Error> {
        Ok(None)
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        let Run {
            mut console,
            program,
            site,
            ..
        } = *self;
        // It ends by itself, and gives its devices back in order.
        let asked = console.write("quit");
        let ended = program.finish(ANSWER);
        let removed = site.remove();
        asked.and(ended).and(removed)
    }
}

/// Where commands are typed and answered.
pub(crate) struct Console {
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    text: String,
}

impl Console {
    pub fn of(program: &mut Program) -> Result<Console, Error> {
        let (Some(input), Some(output)) = (program.input(), program.output()) else {
            return Err(Error::Failed("testpmd was started without pipes".into()));
        };
        let (sender, receiver) = sync_channel(PIECES);
        std::thread::Builder::new()
            .name("testpmd".into())
            .spawn(move || {
                let mut output: ChildStdout = output;
                let mut piece = vec![0; 1 << 16];
                while let Ok(count @ 1..) = output.read(&mut piece) {
                    if sender.send(piece[..count].to_vec()).is_err() {
                        break;
                    }
                }
            })
            .map_err(|error| Error::Failed(format!("a thread for testpmd: {error}")))?;
        Ok(Console {
            input,
            output: receiver,
            text: String::new(),
        })
    }

    pub fn write(&mut self, command: &str) -> Result<(), Error> {
        writeln!(self.input, "{command}")
            .and_then(|()| self.input.flush())
            .map_err(|error| Error::Failed(format!("testpmd takes no commands: {error}")))
    }

    /// Reads up to the next prompt.
    pub fn read(&mut self, program: &mut Program, limit: Duration) -> Result<String, Error> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.text.find(PROMPT) {
                let rest = self.text.split_off(at + PROMPT.len());
                return Ok(std::mem::replace(&mut self.text, rest));
            }
            match self.output.recv_timeout(Duration::from_millis(100)) {
                Ok(piece) => self.text += &String::from_utf8_lossy(&piece),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {
                    if let Some(signal) = interrupted() {
                        let text = format!("signal {signal} came before testpmd answered");
                        return Err(Error::Failed(text));
                    }
                }
                Err(_) => {
                    program.check()?;
                    return Err(Error::Failed(format!(
                        "testpmd did not answer within {} s: {} {}",
                        limit.as_secs(),
                        self.text,
                        program.tail()
                    )));
                }
            }
        }
    }
}

/// DPDK's version in what it logs with `-v`.
fn version(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("RTE Version: '")?;
    let (version, _) = rest.split_once('\'')?;
    Some(version.to_owned())
}

/// Counters by port, in the order of the ports.
pub(crate) fn counters(text: &str) -> Vec<Counters> {
    let mut ports: Vec<Counters> = Vec::new();
    for line in text.lines() {
        if line.contains("NIC statistics for port") {
            ports.push(Counters::default());
        }
        let Some(port) = ports.last_mut() else {
            continue;
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let Ok(value) = pair[1].parse::<u64>() else {
                continue;
            };
            match pair[0] {
                "RX-packets:" => port.received = value,
                "TX-packets:" => port.sent = value,
                "RX-missed:" | "TX-errors:" | "RX-nombuf:" => port.dropped += value,
                _ => {}
            }
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_ports() {
        let text = "\n  ######################## NIC statistics for port 0  ########################\n  RX-packets: 512        RX-missed: 3          RX-bytes:  30720\n  RX-errors: 0\n  RX-nombuf:  2         \n  TX-packets: 1          TX-errors: 0          TX-bytes:  60\n\n  Throughput (since last show)\n  Rx-pps:      100          Rx-bps:            0\n  Tx-pps:            0          Tx-bps:            0\n  ####\n\n  ######################## NIC statistics for port 1  ####\n  RX-packets: 0          RX-missed: 0          RX-bytes:  0\n  RX-errors: 0\n  RX-nombuf:  0         \n  TX-packets: 512        TX-errors: 7          TX-bytes:  0\ntestpmd> ";
        let first = Counters {
            received: 512,
            sent: 1,
            dropped: 5,
        };
        let second = Counters {
            received: 0,
            sent: 512,
            dropped: 7,
        };
        assert_eq!(counters(text), [first, second]);
        assert!(counters("testpmd> ").is_empty());
    }

    #[test]
    fn versions() {
        let said = "EAL: Detected CPU lcores: 2\nEAL: RTE Version: 'DPDK 22.11.9'\nEAL: Error";
        assert_eq!(version(said).as_deref(), Some("DPDK 22.11.9"));
        assert_eq!(version("nothing"), None);
    }

    #[test]
    fn jobs_that_it_can_do() {
        assert!(job(&Job::Cross, 4).is_ok());
        assert!(job(&Job::To(vec![(1, vec![2]), (4, vec![3])]), 4).is_ok());
        let error = |wanted: Job| job(&wanted, 4).unwrap_err().to_string();
        assert!(error(Job::To(vec![(1, vec![2, 3])])).contains("from 1"));
        assert!(error(Job::To(vec![(2, vec![3])])).contains("from 2"));
        assert!(error(Job::Stations(5)).contains("looks at no packet"));
    }
}
