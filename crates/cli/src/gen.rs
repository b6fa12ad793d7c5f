//! `sluice gen`: sends traffic and measures what becomes of it.

use crate::output::{outln, print};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use traffic::report::{Percentiles, Report};
use traffic::rule_sets::{self, SetKind};
use traffic::run::Options;
use traffic::spec::{Field, Flows, Headers, Order, Port, Rate, Rules, Size, Spec, Step, Stream};

/// Maximum size of a spec in bytes.
const SPEC_MAX: u64 = 16 << 20;

/// What to send, and how.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GenOptions {
    /// What to do in place of sending.
    #[command(subcommand)]
    pub command: Option<GenCommand>,
    /// File that says what to send and where to receive it, as YAML or JSON, instead of most
    /// options; - for standard input
    #[arg(value_name = "SPEC", conflicts_with_all = [
        "to", "from", "pps", "step", "poisson", "burst", "size", "flows", "order", "by", "seconds",
        "tcp", "eth_src", "eth_dst", "ip_src", "ip_dst", "port_src", "port_dst", "vlan", "seed",
        "warm_up", "drain", "replay", "rules", "in_port", "miss", "explode",
    ])]
    pub spec: Option<PathBuf>,
    /// Port to send to: virtio-user:SOCKET, memif:SOCKET (both with ,server if the other side
    /// connects), interface:NAME, af-xdp:NAME, dpdk:DEVICE or file:PCAP
    #[arg(long, value_name = "PORT")]
    pub to: Option<String>,
    /// Port to receive from, written as for --to; may be repeated
    #[arg(long, value_name = "PORT")]
    pub from: Vec<String>,
    /// Packets per second [default: as many as the port takes]
    #[arg(long, value_name = "RATE", conflicts_with = "poisson")]
    pub pps: Option<f64>,
    /// Change the rate of --pps after this many seconds, such as 5=1e6; may be repeated
    #[arg(long, value_name = "SECONDS=RATE", requires = "pps")]
    #[arg(conflicts_with_all = ["burst", "replay"])]
    pub step: Vec<String>,
    /// Packets per second on average, at random intervals (a Poisson process)
    #[arg(long, value_name = "RATE")]
    pub poisson: Option<f64>,
    /// Packets to send at once, at the average rate of --pps [default: 1]
    #[arg(long, value_name = "COUNT", requires = "pps")]
    pub burst: Option<u32>,
    /// Pcap or pcapng file to send once, unchanged, at the recorded times or at --pps
    #[arg(long, value_name = "FILE", conflicts_with_all = ["poisson", "burst"])]
    pub replay: Option<String>,
    /// Replay this many times as fast as recorded [default: 1]
    #[arg(long, requires = "replay", conflicts_with = "pps")]
    pub speed: Option<f64>,
    /// Replay the file repeatedly until the time is over
    #[arg(long, requires = "replay")]
    pub repeat: bool,
    /// Size of frames, in bytes without FCS: a number, imix, or FIRST-LAST (each size in turn)
    #[arg(long, default_value = "60")]
    pub size: String,
    /// Number of flows [default: 1; with --rules, one for each rule; with --explode, all]
    #[arg(long, value_name = "COUNT")]
    pub flows: Option<u64>,
    /// Order of flows: in-turn, random, zipf:EXPONENT or pareto:A,B (in turn, each repeated a
    /// random number of times, distributed as in ClassBench)
    #[arg(long, default_value = "in-turn")]
    pub order: String,
    /// File of rules to make flows from: a filter set of ClassBench, or rules as ovs-ofctl
    /// dump-flows prints them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "replay"])]
    pub rules: Option<String>,
    /// Port of the switch that frames enter by, as in the rules; required if rules match in_port
    #[arg(long, value_name = "PORT", requires = "rules")]
    pub in_port: Option<String>,
    /// Share of the flows that match no rule, from 0 to 1 [default: 0]
    #[arg(long, value_name = "SHARE", requires = "rules")]
    pub miss: Option<f64>,
    /// Attack the switch's tuple space: each flow differs from a rule by one bit in every address
    /// and port that the rule matches
    #[arg(long, requires = "rules", conflicts_with = "miss")]
    pub explode: bool,
    /// Field in which flows differ: FIELD or FIELD=COUNT, where COUNT is its number of values, such
    /// as udp_dst=100; may be repeated, the first changes fastest [default: ip_src]
    #[arg(long, value_name = "FIELD")]
    pub by: Vec<String>,
    /// Send TCP instead of UDP
    #[arg(long)]
    pub tcp: bool,
    /// Source Ethernet address
    #[arg(long, value_name = "ADDRESS")]
    pub eth_src: Option<String>,
    /// Destination Ethernet address
    #[arg(long, value_name = "ADDRESS")]
    pub eth_dst: Option<String>,
    /// Source IPv4 or IPv6 address
    #[arg(long, value_name = "ADDRESS")]
    pub ip_src: Option<String>,
    /// Destination IPv4 or IPv6 address, of the same family
    #[arg(long, value_name = "ADDRESS")]
    pub ip_dst: Option<String>,
    /// Source UDP or TCP port
    #[arg(long, value_name = "PORT")]
    pub port_src: Option<u16>,
    /// Destination UDP or TCP port
    #[arg(long, value_name = "PORT")]
    pub port_dst: Option<u16>,
    /// VLAN ID of an 802.1Q tag [default: no tag]
    #[arg(long, value_name = "ID")]
    pub vlan: Option<u16>,
    /// Length of the measurement, in seconds
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Seconds of traffic before the measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub warm_up: f64,
    /// Seconds to wait for late frames after the last one is sent
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub drain: f64,
    /// Seed of the random generator; the same seed sends the same frames
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of the processor to run on [default: that of SPEC, else any]
    #[arg(long)]
    pub core: Option<usize>,
    /// Longest time to wait until ports are up, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub wait: f64,
    /// Do not measure the generator's own speed first
    #[arg(long)]
    pub no_calibration: bool,
    /// Test the generator itself: instead of using ports, keep each frame in memory for this many
    /// microseconds, then receive it
    #[arg(long = "loop", value_name = "MICROSECONDS")]
    pub delay: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What `sluice gen` does beside sending.
#[derive(Subcommand)]
pub enum GenCommand {
    /// Generate or read a set of rules, and print it as a filter set of ClassBench or as rules that
    /// ovs-ofctl add-flows reads.
    Rules(RulesOptions),
}

/// Which rules, and how.
#[derive(Args)]
pub struct RulesOptions {
    /// Type of the rules, as in ClassBench
    #[arg(long, value_enum, default_value = "acl")]
    pub kind: RuleSetKind,
    /// Number of rules
    #[arg(long, default_value_t = 1000)]
    pub count: usize,
    /// Seed of the random generator; the same seed makes the same rules
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// File of rules to print, instead of generating rules
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "count", "seed"])]
    pub file: Option<String>,
    /// Print rules for ovs-ofctl with these actions, such as output:2; earlier rules get higher
    /// priorities
    #[arg(long, value_name = "ACTIONS")]
    pub openflow: Option<String>,
}

/// A kind of rules.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RuleSetKind {
    /// An access control list
    Acl,
    /// A firewall
    Fw,
    /// IP chains
    Ipc,
}

/// Prints a set of rules.
fn print_rules(options: &RulesOptions) -> Result<()> {
    let rules = match &options.file {
        Some(path) => traffic::plan::listed::read(path, None)?,
        None => {
            let most = traffic::rules::RULES_MAX;
            ensure!(
                (1..=most).contains(&options.count),
                "--count {}: must be a number from 1 to {most}",
                options.count
            );
            let kind = match options.kind {
                RuleSetKind::Acl => SetKind::Acl,
                RuleSetKind::Fw => SetKind::Fw,
                RuleSetKind::Ipc => SetKind::Ipc,
            };
            rule_sets::make(kind, options.count, options.seed)
        }
    };
    let named = || options.file.clone().unwrap_or_else(|| "--openflow".into());
    let text = match &options.openflow {
        Some(actions) => {
            ensure!(
                !actions.trim().is_empty() && !actions.contains(['\n', '\r']),
                "--openflow {actions:?}: must be actions such as output:2"
            );
            rule_sets::open_flow_set(&rules, actions)
        }
        None => rule_sets::class_bench_set(&rules),
    };
    let text = text.with_context(named)?;
    print(format_args!("{text}"));
    Ok(())
}

/// Set by a signal: the run ends with what it has found so far.
static STOP: AtomicBool = AtomicBool::new(false);
/// The signal.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(number: libc::c_int) {
    SIGNAL.store(number, Ordering::Relaxed);
    STOP.store(true, Ordering::Relaxed);
}

fn catch_signals() {
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores numbers, and has the type that signals need.
        unsafe {
            let handler: extern "C" fn(libc::c_int) = note_signal;
            libc::signal(number, handler as libc::sighandler_t);
        }
    }
}

/// Sends, receives and prints the report.
pub fn run(options: &GenOptions) -> Result<()> {
    if let Some(GenCommand::Rules(options)) = &options.command {
        return print_rules(options);
    }
    let mut spec = spec_of(options)?;
    if options.core.is_some() {
        spec.core = options.core;
    }
    let seconds = |name: &str, value: f64, most: f64| {
        ensure!(
            (0.0..=most).contains(&value),
            "--{name} {value}: must be a number from 0 to {most}"
        );
        Ok(value)
    };
    let how = Options {
        wait: Duration::from_secs_f64(seconds("wait", options.wait, 86_400.0)?),
        calibrate: !options.no_calibration,
    };
    catch_signals();
    let report = match options.delay {
        Some(delay) => {
            let delay = Duration::from_secs_f64(seconds("loop", delay, 1e7)? / 1e6);
            traffic::run::self_test(&spec, &how, delay, &STOP)?
        }
        None => traffic::run::run(&spec, &how, &STOP)?,
    };
    if options.json {
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        print(format_args!("{}", text(&spec, &report)));
    }
    Ok(())
}

fn spec_of(options: &GenOptions) -> Result<Spec> {
    if let Some(path) = &options.spec {
        let mut text = String::new();
        let named = || format!("{}", path.display());
        let source: Box<dyn Read> = match path.as_os_str() == "-" {
            true => Box::new(std::io::stdin()),
            false => Box::new(std::fs::File::open(path).with_context(named)?),
        };
        let size = source
            .take(SPEC_MAX + 1)
            .read_to_string(&mut text)
            .with_context(named)?;
        ensure!(
            size as u64 <= SPEC_MAX,
            "{}: more than {SPEC_MAX} bytes",
            named()
        );
        return traffic::plan::read(&text).with_context(named);
    }
    ensure!(
        options.to.is_some() || !options.from.is_empty() || options.delay.is_some(),
        "a SPEC, or --to or --from, says what to do (sluice gen --help)"
    );
    let sinks = options.from.iter().map(|text| port("--from", text));
    let mut streams = Vec::new();
    let to = match (&options.to, options.delay) {
        (Some(text), _) => Some(port("--to", text)?),
        (None, Some(_)) => Some(Port::Dpdk("none".into())),
        (None, None) => None,
    };
    if let Some(to) = to {
        streams.push(stream(options, to)?);
    }
    Ok(Spec {
        streams,
        sinks: sinks.collect::<Result<_>>()?,
        core: None,
        seconds: options.seconds,
        warm_up: options.warm_up,
        drain: options.drain,
        seed: options.seed,
    })
}

/// Reads a port as options name it.
fn port(option: &str, text: &str) -> Result<Port> {
    let Some((kind, name)) = text.split_once(':') else {
        bail!("{option} {text}: must be KIND:NAME, such as interface:eth1");
    };
    let (path, server) = match name.strip_suffix(",server") {
        Some(path) => (path.to_owned(), true),
        None => (name.to_owned(), false),
    };
    ensure!(!path.is_empty(), "{option} {text}: the name is missing");
    Ok(match kind {
        "virtio-user" => Port::VirtioUser { path, server },
        "memif" => Port::Memif { path, server },
        "interface" => Port::Interface(name.into()),
        "af-xdp" => Port::AfXdp(name.into()),
        "dpdk" => Port::Dpdk(name.into()),
        "file" => Port::File(name.into()),
        _ => bail!(
            "{option} {text}: there are virtio-user, memif, interface, af-xdp, dpdk and file, not {kind:?}"
        ),
    })
}

/// Reads steps of the rate behind the first.
fn steps(pps: f64, texts: &[String]) -> Result<Vec<Step>> {
    let mut steps = vec![Step { from: 0.0, pps }];
    for text in texts {
        let numbers = text.split_once('=').and_then(|(from, pps)| {
            let (from, pps) = (from.trim().parse().ok()?, pps.trim().parse().ok()?);
            Some(Step { from, pps })
        });
        match numbers {
            Some(step) => steps.push(step),
            None => bail!("--step {text}: must be SECONDS=RATE, such as 5=1e6"),
        }
    }
    Ok(steps)
}

fn stream(options: &GenOptions, port: Port) -> Result<Stream> {
    let rate = match (&options.replay, options.pps, options.poisson, options.burst) {
        (Some(file), pps, ..) => Rate::Replay {
            file: file.clone(),
            speed: options.speed,
            pps,
            repeat: options.repeat,
        },
        (None, Some(pps), _, Some(length)) => Rate::Bursts { pps, length },
        (None, Some(pps), _, None) if options.step.is_empty() => Rate::Constant { pps },
        (None, Some(pps), _, None) => Rate::Steps(steps(pps, &options.step)?),
        (None, None, Some(pps), _) => Rate::Poisson { pps },
        (None, None, None, _) => Rate::Most,
    };
    let usual = Headers::default();
    let six = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(':'));
    let (src, dst) = match six(&options.ip_src) || six(&options.ip_dst) {
        true => ("fd00::1".to_owned(), "fd00::1:0:0:2".to_owned()),
        false => (usual.ip_src.clone(), usual.ip_dst.clone()),
    };
    let headers = Headers {
        eth_src: options.eth_src.clone().unwrap_or(usual.eth_src),
        eth_dst: options.eth_dst.clone().unwrap_or(usual.eth_dst),
        vlan: options.vlan,
        ip_src: options.ip_src.clone().unwrap_or(src),
        ip_dst: options.ip_dst.clone().unwrap_or(dst),
        protocol: if options.tcp { "tcp" } else { "udp" }.into(),
        port_src: options.port_src.unwrap_or(usual.port_src),
        port_dst: options.port_dst.unwrap_or(usual.port_dst),
        tos: 0,
        tunnel: None,
    };
    let rules = options.rules.as_ref().map(|file| Rules {
        file: file.clone(),
        format: None,
        in_port: options.in_port.clone(),
        miss: options.miss.unwrap_or(0.0),
        explode: options.explode,
    });
    let usual_count = if rules.is_some() { 0 } else { 1 };
    let by: Result<Vec<Field>> = options.by.iter().map(|text| field(text)).collect();
    Ok(Stream {
        name: String::new(),
        port,
        rate,
        size: size(&options.size)?,
        flows: Flows {
            count: options.flows.unwrap_or(usual_count),
            order: order(&options.order)?,
            by: by?,
            rules,
        },
        headers,
    })
}

fn size(text: &str) -> Result<Size> {
    let number = |part: &str| {
        part.trim()
            .parse::<u16>()
            .ok()
            .with_context(|| format!("--size {text}: must be a number, imix or FIRST-LAST"))
    };
    Ok(match text.split_once('-') {
        _ if text == "imix" => Size::Imix,
        Some((first, last)) => Size::Sweep(number(first)?, number(last)?),
        None => Size::Fixed(number(text)?),
    })
}

fn order(text: &str) -> Result<Order> {
    Ok(match text {
        "in-turn" => Order::InTurn,
        "random" => Order::Random,
        _ => {
            let number = |text: &str| text.parse::<f64>().ok();
            let zipf = text.strip_prefix("zipf:").and_then(number);
            let pareto = text.strip_prefix("pareto:").and_then(|text| {
                let (a, b) = text.split_once(',')?;
                Some((number(a)?, number(b)?))
            });
            match (zipf, pareto) {
                (Some(s), _) => Order::Zipf { s },
                (None, Some((a, b))) => Order::Pareto { a, b },
                (None, None) => {
                    bail!("--order {text}: must be in-turn, random, zipf:EXPONENT or pareto:A,B")
                }
            }
        }
    })
}

fn field(text: &str) -> Result<Field> {
    let (field, values) = match text.split_once('=') {
        None => (text, 0),
        Some((field, values)) => match values.parse::<u64>() {
            Ok(values) => (field, values),
            Err(_) => bail!("--by {text}: must be FIELD=VALUES, such as udp_dst=100"),
        },
    };
    Ok(Field {
        field: field.into(),
        values,
        step: 1,
    })
}

fn microseconds(times: &Percentiles) -> String {
    if times.count == 0 {
        return "none".into();
    }
    let us = |ns: u64| ns as f64 / 1e3;
    format!(
        "median {:.1} us, 90% {:.1}, 99% {:.1}, 99.9% {:.1}, most {:.1}",
        us(times.p50),
        us(times.p90),
        us(times.p99),
        us(times.p999),
        us(times.max)
    )
}

/// Returns the report for people.
fn text(spec: &Spec, report: &Report) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    let own = &report.generator;
    if let Some(before) = &own.calibration {
        line(format_args!(
            "generator alone: rate error {:+.4}%, at most {:.2} million packets/s",
            before.rate_error * 100.0,
            before.most_pps / 1e6
        ));
        line(format_args!(
            "  lateness    {}",
            microseconds(&before.lateness)
        ));
        line(format_args!(
            "  departures  {}",
            microseconds(&before.departures)
        ));
    }
    line(format_args!(
        "generator in the run: rate error {:+.4}%, stopped for {:.2} ms of {:.2} s",
        own.rate_error * 100.0,
        own.stalled_ns as f64 / 1e6,
        report.seconds
    ));
    line(format_args!(
        "  lateness    {}",
        microseconds(&own.lateness)
    ));
    line(format_args!(
        "  departures  {}",
        microseconds(&own.departures)
    ));
    if let Some(why) = &own.limited {
        line(format_args!("  the generator was the limit: {why}"));
    }
    for sent in &report.streams {
        line(format_args!(
            "{}: {} frames sent ({:.6} million/s), {} bytes, {} refused",
            sent.name,
            sent.packets,
            sent.packets as f64 / report.seconds.max(1e-9) / 1e6,
            sent.bytes,
            sent.refused
        ));
        for step in &sent.steps {
            line(format_args!(
                "  from {:.6} s: {} frames sent, {} refused",
                step.from_ns as f64 / 1e9,
                step.packets,
                step.refused
            ));
        }
    }
    let mut names = spec
        .sinks
        .iter()
        .filter(|port| !matches!(port, Port::File(_)));
    for sink in &report.sinks {
        let name = names.next().map_or("memory".into(), traffic::open::name_of);
        line(format_args!(
            "{name}: {} frames received, {} bytes, {} foreign",
            sink.packets, sink.bytes, sink.foreign
        ));
        for (sent, arrived) in report.streams.iter().zip(&sink.streams) {
            line(format_args!(
                "  {}: {} received, {} lost, {} duplicates, {} reordered",
                sent.name, arrived.packets, arrived.lost, arrived.duplicates, arrived.reordered
            ));
            for (step, packets) in sent.steps.iter().zip(&arrived.steps) {
                line(format_args!(
                    "    of those from {:.6} s: {packets} received",
                    step.from_ns as f64 / 1e9
                ));
            }
            if let Some(last) = arrived.last_lost_ns {
                line(format_args!(
                    "    the last that did not come was due at {:.6} s",
                    last as f64 / 1e9
                ));
            }
            let measured = arrived.latency.count;
            let unknown = if 2 * arrived.disturbed >= measured && measured > 0 {
                "not known: the generator was stopped meanwhile; with its stops "
            } else {
                ""
            };
            line(format_args!(
                "    latency   {unknown}{}",
                microseconds(&arrived.latency)
            ));
            if let Some(clear) = &arrived.undisturbed {
                line(format_args!(
                    "      of {:.2}% the generator was stopped meanwhile; of the others {}",
                    arrived.disturbed as f64 / measured.max(1) as f64 * 100.0,
                    microseconds(clear)
                ));
            }
            line(format_args!(
                "    arrivals  {}",
                microseconds(&arrived.arrivals)
            ));
        }
    }
    if STOP.load(Ordering::Relaxed) {
        let number = SIGNAL.load(Ordering::Relaxed);
        line(format_args!("interrupted by signal {number}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: GenOptions,
    }

    fn spec(words: &str) -> Result<Spec> {
        let words = std::iter::once("gen").chain(words.split_whitespace());
        spec_of(&Command::try_parse_from(words)?.options)
    }

    #[test]
    fn options_make_a_spec() {
        let spec = spec(
            "--to virtio-user:/run/x.sock,server --from interface:h2 --from dpdk:net_null0,size=64 \
             --pps 1e6 --burst 4 --size 64-70 --flows 1000 --order zipf:1.1 --by udp_dst=10 \
             --by eth_src --seconds 2 --vlan 7 --ip-src fd00::5",
        )
        .unwrap();
        let stream = &spec.streams[0];
        assert_eq!(
            stream.port,
            Port::VirtioUser {
                path: "/run/x.sock".into(),
                server: true
            }
        );
        assert_eq!(
            spec.sinks,
            [
                Port::Interface("h2".into()),
                Port::Dpdk("net_null0,size=64".into())
            ]
        );
        assert_eq!(
            stream.rate,
            Rate::Bursts {
                pps: 1e6,
                length: 4
            }
        );
        assert_eq!(stream.size, Size::Sweep(64, 70));
        assert_eq!(stream.flows.order, Order::Zipf { s: 1.1 });
        assert_eq!(stream.flows.by[0].values, 10);
        assert_eq!(stream.headers.vlan, Some(7));
        assert!(stream.headers.ip_dst.contains(':'));
        assert!(
            traffic::plan::Plan::new(&spec, 0).is_err(),
            "66 bytes of headers"
        );
    }

    #[test]
    fn steps_are_rates_one_after_the_other() {
        let spec = spec("--to dpdk:a --pps 100 --step 2=50 --step 4=1e3 --seconds 5").unwrap();
        let step = |from, pps| Step { from, pps };
        let wanted = vec![step(0.0, 100.0), step(2.0, 50.0), step(4.0, 1e3)];
        assert_eq!(spec.streams[0].rate, Rate::Steps(wanted));
        assert!(traffic::plan::Plan::new(&spec, 0).is_ok());
    }

    #[test]
    fn rules_are_asked_for() {
        let flows = |words: &str| spec(words).unwrap().streams[0].flows.clone();
        let plain = flows("--to dpdk:a --rules r.txt");
        assert_eq!((plain.count, plain.order), (0, Order::InTurn));
        let rules = plain.rules.unwrap();
        assert_eq!(
            (rules.file.as_str(), rules.miss, rules.explode),
            ("r.txt", 0.0, false)
        );
        let all = flows(
            "--to dpdk:a --rules r --flows 9 --in-port p1 --miss 0.25 --order pareto:1,0.001",
        );
        assert_eq!(
            (all.count, all.order),
            (9, Order::Pareto { a: 1.0, b: 0.001 })
        );
        let rules = all.rules.unwrap();
        assert_eq!((rules.in_port.as_deref(), rules.miss), (Some("p1"), 0.25));
        assert!(
            flows("--to dpdk:a --rules r --explode")
                .rules
                .unwrap()
                .explode
        );
    }

    #[test]
    fn bad_options_are_named() {
        for (words, wanted) in [
            ("--to dpdk:a --step 2=50", "--pps"),
            (
                "--to dpdk:a --pps 9 --step 2",
                "--step 2: must be SECONDS=RATE",
            ),
            ("", "a SPEC, or --to or --from"),
            ("--to eth0", "--to eth0: must be KIND:NAME"),
            ("--to tap:x", "there are virtio-user"),
            ("--from interface:", "the name is missing"),
            ("--to dpdk:a --size big", "--size big: must be a number"),
            ("--to dpdk:a --order zipf", "--order zipf: must be in-turn"),
            (
                "--to dpdk:a --by udp_dst=x",
                "--by udp_dst=x: must be FIELD=VALUES",
            ),
            ("x.yaml --to dpdk:a", "cannot be used with"),
            ("--to dpdk:a --burst 3", "--pps"),
            ("--to dpdk:a --miss 0.5", "--rules"),
            ("--to dpdk:a --rules r --by udp_dst", "cannot be used with"),
            (
                "--to dpdk:a --order pareto:1",
                "--order pareto:1: must be in-turn",
            ),
            ("/does/not/exist.yaml", "/does/not/exist.yaml"),
        ] {
            let told = format!("{:#}", spec(words).unwrap_err());
            assert!(told.contains(wanted), "{words}: {told}");
        }
    }
}
