//! Results as a run of the lab might have them: every kind of experiment, plausible shapes, made-up
//! figures. And results that nobody should have, to see whether the report bears them.

use lab::results::*;
use std::collections::BTreeMap;

/// A sequence of numbers that look random and are the same every time.
pub struct Noise(u64);

impl Noise {
    /// From -1 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }

    /// A figure near `median`, whose five runs deviate by about `spread` of it.
    fn figure(&mut self, median: f64, spread: f64) -> Figure {
        summed(
            (0..5)
                .map(|_| median * (1.0 + spread * self.next()))
                .collect(),
        )
    }
}

/// With digits that JSON keeps.
fn short(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// The figure of five runs.
fn summed(runs: Vec<f64>) -> Figure {
    let runs: Vec<f64> = runs.into_iter().map(short).collect();
    let mut sorted = runs.clone();
    sorted.sort_by(f64::total_cmp);
    let mean = runs.iter().sum::<f64>() / 5.0;
    let square = runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>() / 4.0;
    let (median, deviation) = (sorted[2], short(square.sqrt()));
    Figure {
        median,
        low: short(median - 1.4 * deviation),
        high: short(median + 1.4 * deviation),
        deviation,
        runs,
        borrowed: 0.0,
    }
}

/// The paper's figure: a number alone.
fn printed(median: f64) -> Figure {
    Figure {
        median,
        low: median,
        high: median,
        ..Default::default()
    }
}

type At<'a> = &'a [(&'a str, Value)];

fn number(value: f64) -> Value {
    Value::Number(value)
}

fn word(value: &str) -> Value {
    Value::Text(value.into())
}

fn at(values: At) -> BTreeMap<String, Value> {
    values
        .iter()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect()
}

fn parameter(name: &str, title: &str, unit: &str) -> Parameter {
    Parameter {
        name: name.into(),
        title: title.into(),
        unit: unit.into(),
    }
}

fn measure(name: &str, title: &str, unit: &str, better: &str) -> Measure {
    Measure {
        name: name.into(),
        title: title.into(),
        unit: unit.into(),
        better: better.into(),
    }
}

fn rate() -> Measure {
    measure("rate", "Throughput", "Mpps", "higher")
}

fn plot(title: &str, kind: &str, x: &str, y: &[&str], series: &str) -> Plot {
    Plot {
        title: title.into(),
        kind: kind.into(),
        x: x.into(),
        y: y.iter().map(|name| name.to_string()).collect(),
        series: series.into(),
        ..Default::default()
    }
}

fn experiment(id: &str, title: &str, purpose: &str, topology: &str) -> Experiment {
    Experiment {
        id: id.into(),
        title: title.into(),
        paper: id[..1].to_lowercase(),
        purpose: purpose.into(),
        topology: topology.into(),
        command: format!("sluice lab run {id} --quick"),
        seconds: 20.0 + id.len() as f64 * 7.3,
        ..Default::default()
    }
}

fn cell(subject: &str, values: At, figures: Vec<(&str, Figure)>) -> Cell {
    Cell {
        subject: subject.into(),
        at: at(values),
        figures: figures
            .into_iter()
            .map(|(name, figure)| (name.to_string(), figure))
            .collect(),
        seconds: 3.0,
        ..Default::default()
    }
}

fn missing(subject: &str, values: At, reason: &str) -> Cell {
    Cell {
        subject: subject.into(),
        at: at(values),
        missing: Some(reason.into()),
        ..Default::default()
    }
}

fn finding(text: &str, holds: Option<bool>, because: &str) -> Finding {
    Finding {
        text: text.into(),
        holds,
        open: false,
        because: because.into(),
    }
}

const SUBJECTS: [&str; 6] = [
    "sluice",
    "ovs-dpdk",
    "ovs-netdev",
    "linux-bridge",
    "linux-ip",
    "testpmd",
];

/// A whole run. `factor`: what Sluice's rates are multiplied by, for a run to compare with.
pub fn plausible(factor: f64) -> Results {
    let mut noise = Noise(1 + (factor * 1000.0) as u64);
    Results {
        schema: SCHEMA,
        made: Made {
            version: "0.1.0 (6bc1047)".into(),
            command: "sluice lab run all --quick --output report".into(),
            mode: "quick".into(),
            began: if factor == 1.0 { "2026-11-27T20:14:03Z" } else { "2026-11-20T08:01:44Z" }.into(),
            seconds: 1391.0,
            repeated: 7,
            interrupted: false,
        },
        machine: Machine {
            processor: "Intel(R) Xeon(R) Processor @ 2.90GHz".into(),
            cores: 2,
            threads: true,
            tsc_mhz: 2893.2,
            caches: vec![
                ("L1d".into(), 49152),
                ("L2".into(), 2 << 20),
                ("L3".into(), 33 << 20),
            ],
            memory_mib: 16005,
            huge_mib: 2048,
            kernel: "6.1.0-30-cloud-amd64".into(),
            hypervisor: Some("KVM".into()),
            nics: vec![],
            noise: 0.0123,
            between_ns: vec![346.0, 51.0, 343.0],
            speeds: (0..160)
                .map(|window| 1.0 + 0.012 * noise.next() - if window % 41 == 40 { 0.06 } else { 0.0 })
                .collect(),
            limits: vec![
                "There is no physical network card: a card is a port in memory, so no figure shows what a card's queues, PCIe or a wire would limit.".into(),
                "Two cores: the generator and the switch have one each, and more than one worker shares its core with the generator.".into(),
                "The processor's performance counters are not visible in this virtual machine: cache misses (B5) are estimated.".into(),
            ],
            headroom: vec![
                ("Line rate, 10 Gbit/s of 64-byte frames".into(), printed(14.88), "Mpps; no card here: computed".into()),
                ("Memory, copies by one core".into(), noise.figure(9.7, 0.02), "GB/s".into()),
                ("L1, loads".into(), noise.figure(182.0, 0.01), "GB/s".into()),
                ("L3, a dependent load".into(), noise.figure(21.4, 0.03), "ns".into()),
                ("Processor, cycles for a packet at 14.88 Mpps".into(), printed(194.4), "cycles; Sluice needs 118: met second".into()),
                ("Generator".into(), noise.figure(26.1, 0.01), "Mpps; met first".into()),
            ],
        },
        subjects: [
            ("sluice", "Sluice", "0.1.0", "One worker on core 1, default options."),
            ("ovs-dpdk", "Open vSwitch, DPDK", "3.1.0, DPDK 22.11.7", "One PMD thread on core 1, EMC as it is by default."),
            ("ovs-netdev", "Open vSwitch, netdev", "3.1.0", "Userspace datapath on veth, main thread on core 1."),
            ("linux-bridge", "Linux bridge", "6.1.0-30-cloud-amd64", "veth ports, softirqs on core 1."),
            ("linux-ip", "Linux IP forwarding", "6.1.0-30-cloud-amd64", "veth ports, softirqs on core 1."),
            ("testpmd", "testpmd io (L2FWD)", "22.11.7", "Forwards without reading a packet: the limit."),
        ]
        .into_iter()
        .map(|(id, name, version, setup)| Subject {
            id: id.into(),
            name: name.into(),
            version: version.into(),
            setup: setup.into(),
            missing: None,
        })
        .chain([Subject {
            id: "vpp".into(),
            name: "VPP".into(),
            missing: Some("There is no program \"vpp\" in PATH; Debian 12 has no package of it.".into()),
            ..Default::default()
        }])
        .collect(),
        experiments: papers_a(&mut noise, factor)
            .into_iter()
            .chain(papers_b(&mut noise, factor))
            .chain(paper_c(&mut noise))
            .chain(paper_d(&mut noise))
            .collect(),
    }
}

fn papers_a(noise: &mut Noise, factor: f64) -> Vec<Experiment> {
    let mut list = Vec::new();
    let one_way = "Frames from one port to another, by their destination address, one worker.";

    let mut e = experiment(
        "A1",
        "Paths through the switch",
        "What a packet costs between ports, into a virtual machine, through one, and on to a second.",
        "A generator's core and a worker's core; virtual machines are virtio-user ends that one process drives in turn.",
    );
    e.parameters = vec![parameter("path", "Path", "")];
    e.measures = vec![rate()];
    for (subject, rates) in [
        ("sluice", [14.2, 7.9, 4.3, 3.1]),
        ("ovs-dpdk", [4.6, 3.4, 1.9, 1.3]),
        ("ovs-netdev", [0.52, 0.41, 0.2, 0.15]),
        ("linux-bridge", [1.02, 0.71, 0.22, 0.18]),
        ("linux-ip", [1.13, 0.74, 0.23, 0.19]),
        ("testpmd", [22.4, 11.0, 0.0, 0.0]),
    ] {
        for (path, rate) in ["p-p", "p-v", "p-v-p", "p-v-v"].into_iter().zip(rates) {
            let place = [("path", word(path))];
            if rate == 0.0 {
                e.cells.push(missing(
                    subject,
                    &place,
                    "testpmd forwards between two ports only",
                ));
                continue;
            }
            let rate = if subject == "sluice" {
                rate * factor
            } else {
                rate
            };
            let mut cell = cell(subject, &place, vec![("rate", noise.figure(rate, 0.04))]);
            if rate > 20.0 {
                cell.limited_by = Some("the generator".into());
            }
            e.cells.push(cell);
        }
    }
    for (subject, rates) in [
        ("Open vSwitch", [1.88, 0.85, 0.3, 0.27]),
        ("IP forwarding", [1.58, 0.78, 0.19, 0.16]),
        ("Linux bridge", [1.11, 0.74, 0.2, 0.19]),
        ("DPDK vSwitch", [11.31, f64::NAN, 10.5, 6.5]),
    ] {
        for (path, rate) in ["p-p", "p-v", "p-v-p", "p-v-v"].into_iter().zip(rates) {
            if rate.is_finite() {
                e.paper_cells.push(cell(
                    subject,
                    &[("path", word(path))],
                    vec![("rate", printed(rate))],
                ));
            }
        }
    }
    e.plots = vec![
        Plot {
            paper: true,
            ..plot("Throughput by path", "bars", "path", &["rate"], "subject")
        },
        Plot {
            paper: true,
            y_log: true,
            only: at(&[("path", word("p-p"))]),
            ..plot(
                "Port to port, logarithmic",
                "bars",
                "path",
                &["rate"],
                "subject",
            )
        },
    ];
    e.substituted = vec![
        "There is no physical network card: p is a port in memory for switches in user space, a veth for the kernel's.".into(),
        "Virtual machines are virtio-user ends driven by one process; a QEMU guest is measured in A12.".into(),
    ];
    e.findings = vec![
        finding(
            "Into a virtual machine costs more than between ports.",
            Some(true),
            "Sluice: 7.9 Mpps into a VM, 14.2 Mpps between ports (1.8 times).",
        ),
        finding(
            "Open vSwitch forwards faster than the Linux bridge.",
            Some(false),
            "Open vSwitch without DPDK is its userspace datapath here (0.52 Mpps), not the kernel module of the paper; with DPDK: 4.6 against 1.02 Mpps.",
        ),
        finding(
            "Functions chained through virtual machines lose most of the rate.",
            Some(true),
            "p-v-v has 22% of p-p with Sluice, 28% with Open vSwitch and DPDK; the paper: 14%.",
        ),
    ];
    list.push(e);

    let mut e = experiment(
        "A2",
        "Packet size and flows",
        "Whether the size of packets matters below the bandwidth limit.",
        one_way,
    );
    e.parameters = vec![
        parameter("size", "Packet size", "B"),
        parameter("workers", "Workers", ""),
    ];
    e.measures = vec![rate(), measure("bits", "Bandwidth", "Gbit/s", "higher")];
    for (subject, base) in [("sluice", 14.0 * factor), ("ovs-dpdk", 4.6)] {
        for workers in [1.0, 2.0] {
            for size in 64..=1518 {
                let size = size as f64;
                let rate = base * if workers == 2.0 { 1.86 } else { 1.0 };
                let rate = rate.min(4.0e11 / 8.0 / (size + 20.0) / 1e6 * 0.9)
                    * (1.0 - (size - 64.0) / 9000.0);
                let figure = noise.figure(rate, 0.03);
                let runs = figure.runs.iter();
                let bits = summed(runs.map(|run| run * size * 8.0 / 1000.0).collect());
                e.cells.push(cell(
                    subject,
                    &[("size", number(size)), ("workers", number(workers))],
                    vec![("rate", figure), ("bits", bits)],
                ));
            }
        }
    }
    e.plots = vec![plot(
        "Throughput by packet size",
        "line",
        "size",
        &["rate"],
        "subject",
    )];
    e.findings = vec![finding(
        "Packet size is irrelevant below the bandwidth limit.",
        Some(true),
        "From 64 to 1518 B Sluice loses 16%.",
    )];
    list.push(e);

    let mut e = experiment(
        "A3",
        "Shared or per-core counters",
        "A counter that all cores write keeps them from scaling.",
        "Two workers, one rule.",
    );
    e.parameters = vec![
        parameter("workers", "Workers", ""),
        parameter("counters", "Counters", ""),
    ];
    e.measures = vec![rate()];
    for (counters, rates) in [("per core", [14.1, 26.4]), ("shared", [11.9, 8.2])] {
        for (workers, rate) in [1.0, 2.0].into_iter().zip(rates) {
            e.cells.push(cell(
                "sluice",
                &[("workers", number(workers)), ("counters", word(counters))],
                vec![("rate", noise.figure(rate * factor, 0.02))],
            ));
        }
    }
    e.plots = vec![plot(
        "Throughput by workers",
        "bars",
        "workers",
        &["rate"],
        "counters",
    )];
    e.findings = vec![finding(
        "Per-core counters scale, shared ones do not.",
        Some(true),
        "1.87 times with per-core counters, 0.69 times with shared ones.",
    )];
    list.push(e);

    let mut e = experiment(
        "A4",
        "Active flows",
        "How the rate falls as more flows are active. A cache of flows is fast as long as they fit; compiled rules cost what they cost.",
        one_way,
    );
    e.parameters = vec![parameter("flows", "Active flows", "")];
    e.measures = vec![rate()];
    for (subject, base, fall) in [
        ("sluice", 14.2 * factor, 0.06),
        ("ovs-dpdk", 4.6, 0.11),
        ("ovs-netdev", 0.52, 0.05),
        ("linux-bridge", 1.0, 0.03),
        ("testpmd", 22.4, 0.0),
    ] {
        for flows in [
            1.0f64,
            10.0,
            100.0,
            1000.0,
            2000.0,
            10_000.0,
            100_000.0,
            1_000_000.0,
        ] {
            let place = [("flows", number(flows))];
            if subject == "linux-bridge" && flows > 100_000.0 {
                e.cells
                    .push(missing(subject, &place, "its table takes 65,536 addresses"));
                continue;
            }
            let rate =
                base * (1.0 - fall * flows.log10()) * if flows > 50_000.0 { 0.8 } else { 1.0 };
            let mut cell = cell(subject, &place, vec![("rate", noise.figure(rate, 0.03))]);
            if subject == "testpmd" {
                cell.limited_by = Some("the generator".into());
            }
            e.cells.push(cell);
        }
    }
    for (flows, rate) in [(1.0, 1.87), (2000.0, 1.76)] {
        e.paper_cells.push(cell(
            "Open vSwitch",
            &[("flows", number(flows))],
            vec![("rate", printed(rate))],
        ));
    }
    e.plots = vec![Plot {
        x_log: true,
        paper: true,
        ..plot(
            "Throughput by active flows",
            "line",
            "flows",
            &["rate"],
            "subject",
        )
    }];
    e.findings = vec![finding(
        "Two thousand flows cost Sluice less than a fifth of its rate.",
        Some(true),
        "11.4 of 14.2 Mpps are left.",
    )];
    list.push(e);

    let mut e = experiment(
        "A5",
        "Cloned packets",
        "What an output more costs beside what a packet costs.",
        one_way,
    );
    e.parameters = vec![parameter("outputs", "Outputs", "")];
    e.measures = vec![
        rate(),
        measure("cycles", "Cycles per packet", "cycles", "lower"),
    ];
    for (subject, rates) in [
        ("sluice", [14.1, 10.8, 8.9]),
        ("ovs-dpdk", [4.6, 3.1, 2.4]),
        ("ovs-netdev", [0.5, 0.34, 0.26]),
    ] {
        for (outputs, rate) in [1.0, 2.0, 3.0].into_iter().zip(rates) {
            let cycles = noise.figure(2893.0 / rate, 0.02);
            e.cells.push(cell(
                subject,
                &[("outputs", number(outputs))],
                vec![("rate", noise.figure(rate, 0.02)), ("cycles", cycles)],
            ));
        }
    }
    e.plots = vec![
        plot(
            "Packets received, by outputs",
            "bars",
            "outputs",
            &["rate"],
            "subject",
        ),
        plot(
            "Cycles per packet, by outputs",
            "line",
            "outputs",
            &["cycles"],
            "subject",
        ),
    ];
    e.findings = vec![finding(
        "An output more costs less than a packet.",
        Some(true),
        "63 cycles against 205.",
    )];
    list.push(e);

    let mut e = experiment(
        "A6",
        "Offered load",
        "Where throughput stops following the load.",
        "p-p and p-v.",
    );
    e.parameters = vec![
        parameter("load", "Offered", "Mpps"),
        parameter("path", "Path", ""),
    ];
    e.measures = vec![
        rate(),
        measure("latency", "Latency, median", "us", "lower"),
        measure("p99", "Latency, p99", "us", "lower"),
    ];
    for (subject, limits) in [("sluice", [14.2, 7.9]), ("ovs-dpdk", [4.6, 3.4])] {
        for (path, limit) in ["p-p", "p-v"].into_iter().zip(limits) {
            for step in 1..=16 {
                let load = step as f64;
                let rate = load.min(limit) * if load > limit * 1.2 { 0.97 } else { 1.0 };
                let wait: f64 = 8.0
                    + 30.0 / (1.05 - (load / limit).min(1.0))
                    + if load > limit { 900.0 } else { 0.0 };
                e.cells.push(cell(
                    subject,
                    &[("load", number(load)), ("path", word(path))],
                    vec![
                        ("rate", noise.figure(rate, 0.01)),
                        ("latency", noise.figure(wait, 0.1)),
                        ("p99", noise.figure(wait * 3.0, 0.2)),
                    ],
                ));
            }
        }
    }
    e.plots = vec![
        plot(
            "Forwarded by offered load",
            "line",
            "load",
            &["rate"],
            "subject",
        ),
        Plot {
            y_log: true,
            only: at(&[("path", word("p-p"))]),
            ..plot(
                "Latency by offered load, p-p",
                "line",
                "load",
                &["latency", "p99"],
                "subject",
            )
        },
    ];
    list.push(e);

    let mut e = experiment(
        "A10",
        "The load that the scheduler sees",
        "Time in interrupts is hidden from /proc/stat unless the kernel accounts for it.",
        "One bridge, softirqs on one core.",
    );
    e.parameters = vec![parameter("load", "Offered", "Mpps")];
    e.measures = vec![
        measure("seen", "Load in /proc/stat", "%", ""),
        measure("real", "Cycles used", "%", ""),
    ];
    for step in 0..=10 {
        let load = step as f64 / 10.0;
        e.cells.push(cell(
            "linux-bridge",
            &[("load", number(load))],
            vec![
                ("seen", noise.figure((load * 30.0).powf(0.9), 0.1)),
                ("real", noise.figure((load * 104.0 + 1.0).min(100.0), 0.02)),
            ],
        ));
    }
    e.plots = vec![plot(
        "Load seen and real",
        "line",
        "load",
        &["seen", "real"],
        "subject",
    )];
    e.findings = vec![finding(
        "The scheduler sees less than half of the load.",
        Some(true),
        "19% of 55% at 0.5 Mpps: this kernel has no IRQ_TIME_ACCOUNTING.",
    )];
    list.push(e);

    let mut e = experiment(
        "A11",
        "The generator itself",
        "What is limited by the generator says nothing about the switch.",
        "The generator's port looped to its sink.",
    );
    e.parameters = vec![parameter("tool", "Generator", "")];
    e.measures = vec![rate()];
    for (tool, rate) in [
        ("sluice gen, memory ports", 26.1),
        ("sluice gen, virtio-user", 17.3),
        ("sluice gen, AF_PACKET", 0.91),
        ("iperf3, UDP", 0.11),
    ] {
        e.cells.push(cell(
            "sluice",
            &[("tool", word(tool))],
            vec![("rate", noise.figure(rate, 0.02))],
        ));
    }
    e.paper_cells.push(cell(
        "pktgen",
        &[("tool", word("the paper's network card"))],
        vec![("rate", printed(14.88))],
    ));
    e.plots = vec![Plot {
        y_log: true,
        paper: true,
        ..plot(
            "What the generator can send",
            "bars",
            "tool",
            &["rate"],
            "tool",
        )
    }];
    list.push(e);

    let mut e = experiment(
        "A12",
        "What a virtual machine costs its host",
        "A machine with one virtual processor can load two cores.",
        "A QEMU guest that receives.",
    );
    e.state = State::Interrupted;
    e.seconds = 12.5;
    list.push(e);
    list
}

fn papers_b(noise: &mut Noise, factor: f64) -> Vec<Experiment> {
    let mut list = Vec::new();
    let mut e = experiment(
        "B1",
        "Maximum throughput",
        "Table I: the same job for all.",
        "Port to port, both directions for testpmd.",
    );
    e.measures = vec![rate()];
    for (subject, rate) in SUBJECTS
        .into_iter()
        .zip([14.2 * factor, 4.6, 0.52, 1.02, 1.13, 22.4])
    {
        e.cells
            .push(cell(subject, &[], vec![("rate", noise.figure(rate, 0.02))]));
    }
    for (subject, rate) in [
        ("L2FWD", 14.88),
        ("DPDK vSwitch", 11.31),
        ("Open vSwitch", 1.88),
        ("IP forwarding", 1.58),
        ("Linux bridge", 1.11),
    ] {
        e.paper_cells
            .push(cell(subject, &[], vec![("rate", printed(rate))]));
    }
    e.plots = vec![Plot {
        y_log: true,
        paper: true,
        ..plot(
            "Packets per second, 64-byte frames, one core",
            "bars",
            "",
            &["rate"],
            "subject",
        )
    }];
    list.push(e);

    let mut e = experiment(
        "B6",
        "Flow entries and caches",
        "Tables that do not fit into a cache cost a miss for every packet.",
        "Rules on the destination address.",
    );
    e.parameters = vec![parameter("entries", "Flow entries", "")];
    e.measures = vec![
        measure("cycles", "Cycles per packet", "cycles", "lower"),
        measure("insert", "Insertions", "1000/s", "higher"),
    ];
    for (subject, base) in [("sluice", 118.0), ("ovs-dpdk", 610.0)] {
        for power in 0..=6 {
            for digit in [1.0, 3.0] {
                let entries = digit * 10f64.powi(power);
                if entries > 1e6 {
                    continue;
                }
                let cycles = base
                    + if entries > 400.0 { 20.0 } else { 0.0 }
                    + if entries > 10_000.0 { 60.0 } else { 0.0 }
                    + entries.log10() * 7.0;
                e.cells.push(cell(
                    subject,
                    &[("entries", number(entries))],
                    vec![
                        ("cycles", noise.figure(cycles, 0.03)),
                        ("insert", noise.figure(420.0 - 40.0 * power as f64, 0.1)),
                    ],
                ));
            }
        }
    }
    e.plots = vec![
        Plot {
            x_log: true,
            ..plot(
                "Cycles per packet by flow entries",
                "line",
                "entries",
                &["cycles"],
                "subject",
            )
        },
        Plot {
            x_log: true,
            ..plot("Insertions", "line", "entries", &["insert"], "subject")
        },
    ];
    list.push(e);

    let stages = ["rx", "tx", "memory", "skb", "processing"];
    let mut e = experiment(
        "B8",
        "Cycles by stage",
        "Where the time goes: receiving and sending in the kernel, rules in user space.",
        "Port to port at the highest rate without loss.",
    );
    e.measures = [
        ("rx", "RX"),
        ("tx", "TX"),
        ("memory", "Memory"),
        ("skb", "skb"),
        ("processing", "Processing"),
    ]
    .map(|(name, title)| measure(name, title, "cycles", "lower"))
    .to_vec();
    for (subject, cycles) in [
        ("sluice", [22.0, 27.0, 4.0, 0.0, 65.0]),
        ("ovs-dpdk", [38.0, 61.0, 0.0, 0.0, 511.0]),
        ("linux-bridge", [480.0, 420.0, 190.0, 330.0, 1390.0]),
        ("linux-ip", [440.0, 450.0, 130.0, 300.0, 800.0]),
        ("testpmd", [48.0, 59.0, 0.0, 0.0, 4.0]),
    ] {
        e.cells.push(cell(
            subject,
            &[],
            stages
                .into_iter()
                .zip(cycles)
                .map(|(stage, c)| (stage, noise.figure(c, 0.05)))
                .collect(),
        ));
    }
    for (subject, cycles) in [
        ("Linux bridge", [491.0, 456.0, 178.0, 311.0, 1508.0]),
        ("IP forwarding", [453.0, 463.0, 101.0, 292.0, 757.0]),
        ("Open vSwitch", [490.0, 447.0, 102.0, 288.0, 416.0]),
        ("DPDK vSwitch", [41.0, 85.0, 0.0, 0.0, 165.0]),
        ("L2FWD", [55.0, 62.0, 0.0, 0.0, 0.0]),
    ] {
        e.paper_cells.push(cell(
            subject,
            &[],
            stages
                .into_iter()
                .zip(cycles)
                .map(|(stage, c)| (stage, printed(c)))
                .collect(),
        ));
    }
    e.plots = vec![Plot {
        paper: true,
        ..plot(
            "Cycles per packet by stage",
            "stack",
            "subject",
            &stages,
            "subject",
        )
    }];
    e.findings = vec![
        finding(
            "RX and TX dominate in kernel paths.",
            Some(false),
            "Processing has 49% of the bridge's cycles, RX and TX 32%.",
        ),
        finding(
            "RX and TX do not dominate in Sluice.",
            Some(true),
            "42% of 118 cycles.",
        ),
    ];
    list.push(e);

    let mut e = experiment(
        "B7",
        "Cycles by stage and load",
        "How the shares move as the load rises.",
        "Port to port.",
    );
    e.parameters = vec![parameter("load", "Offered", "Mpps")];
    e.measures = [
        ("poll", "Empty polls"),
        ("rx", "RX"),
        ("parse", "Parse"),
        ("lookup", "Lookup"),
        ("actions", "Actions"),
        ("tx", "TX"),
    ]
    .map(|(name, title)| measure(name, title, "%", ""))
    .to_vec();
    for load in [1.0, 4.0, 7.0, 10.0, 13.0] {
        let used = load / 14.2;
        let shares = [
            1.0 - used,
            0.18 * used,
            0.14 * used,
            0.36 * used,
            0.11 * used,
            0.21 * used,
        ];
        let names = ["poll", "rx", "parse", "lookup", "actions", "tx"];
        e.cells.push(cell(
            "sluice",
            &[("load", number(load))],
            names
                .into_iter()
                .zip(shares)
                .map(|(n, s)| (n, noise.figure(s * 100.0, 0.02)))
                .collect(),
        ));
    }
    e.plots = vec![plot(
        "Share of cycles",
        "stack",
        "load",
        &["poll", "rx", "parse", "lookup", "actions", "tx"],
        "subject",
    )];
    list.push(e);

    let mut e = experiment(
        "B5",
        "Cache misses",
        "Whether the third level's misses rise with the load.",
        "Port to port.",
    );
    e.state = State::Failed(
        "perf_event_open: no such device: this virtual machine shows no performance counters"
            .into(),
    );
    e.plots = vec![plot(
        "L3 misses by load",
        "line",
        "load",
        &["misses"],
        "subject",
    )];
    e.measures = vec![measure("misses", "L3 misses", "M/s", "lower")];
    list.push(e);

    let mut e = experiment(
        "B9",
        "Locks and profiling",
        "What measuring costs.",
        "Port to port.",
    );
    e.parameters = vec![parameter("profiling", "Profiling", "")];
    e.measures = vec![measure("change", "Change of throughput", "%", "higher")];
    for (profiling, change) in [
        ("off", 0.4),
        ("stages", -2.1),
        ("perf, frame pointers", -15.3),
    ] {
        e.cells.push(cell(
            "sluice",
            &[("profiling", word(profiling))],
            vec![("change", noise.figure(change, 0.2))],
        ));
    }
    e.plots = vec![plot(
        "What profiling costs",
        "bars",
        "profiling",
        &["change"],
        "profiling",
    )];
    list.push(e);
    list
}

fn paper_c(noise: &mut Noise) -> Vec<Experiment> {
    let mut e = experiment(
        "C3",
        "Packets by core",
        "Where softirqs run.",
        "Two cores instead of four.",
    );
    e.measures = vec![
        measure("core0", "Core 0", "1000/s", ""),
        measure("core1", "Core 1", "1000/s", ""),
    ];
    for (subject, cores) in [
        ("default", [0.0, 412.0]),
        ("rss", [230.0, 190.0]),
        ("sluice steer", [205.0, 207.0]),
    ] {
        e.cells.push(cell(
            subject,
            &[],
            vec![
                ("core0", noise.figure(cores[0], 0.02)),
                ("core1", noise.figure(cores[1], 0.02)),
            ],
        ));
    }
    e.plots = vec![plot(
        "Packets by core",
        "stack",
        "subject",
        &["core0", "core1"],
        "",
    )];
    e.substituted =
        vec!["Two cores instead of four, namespaces instead of virtual machines.".into()];
    e.findings = vec![finding("Steering spreads evenly.", None, "50% and 50%.")];
    vec![e]
}

fn paper_d(noise: &mut Noise) -> Vec<Experiment> {
    let mut list = Vec::new();
    let veth = "Ports are veth pairs, not network cards: there is no line rate.";
    let mut e = experiment(
        "D1",
        "Bursts",
        "How a burst leaves a shaper: in steps of the packets that leave together.",
        "A queue of 500 Mbit/s.",
    );
    e.parameters = vec![parameter("burst", "Packets in the burst", "")];
    e.measures = vec![measure(
        "whole",
        "Until the last packet is there",
        "us",
        "lower",
    )];
    for (subject, group, step) in [
        ("linux-htb", 16, 190.0),
        ("trtcm", 8, 60.0),
        ("sluice", 1, 23.0),
    ] {
        for burst in 1..=48 {
            let wait = 20.0 + step * ((burst - 1) / group) as f64;
            e.cells.push(cell(
                subject,
                &[("burst", number(burst as f64))],
                vec![("whole", noise.figure(wait, 0.05))],
            ));
        }
    }
    e.plots = vec![plot(
        "Time until a burst is there",
        "line",
        "burst",
        &["whole"],
        "subject",
    )];
    e.substituted = vec![veth.into()];
    list.push(e);

    let mut e = experiment(
        "D3",
        "Queue rate and TCP's latency",
        "HTB's latency falls as the rate rises.",
        "iperf3 through the queue, a probe beside it.",
    );
    e.parameters = vec![parameter("rate", "The queue's rate", "Mbit/s")];
    e.measures = vec![measure("rtt", "TCP's round trip, median", "ms", "lower")];
    for (subject, base) in [("linux-htb", 9600.0), ("sluice", 1200.0), ("trtcm", 0.0)] {
        for rate in [50.0, 100.0, 200.0, 500.0, 1000.0] {
            let rtt = if subject == "trtcm" {
                0.27
            } else {
                base / rate
            };
            e.cells.push(cell(
                subject,
                &[("rate", number(rate))],
                vec![("rtt", noise.figure(rtt, 0.15))],
            ));
        }
    }
    e.paper_cells.push(cell(
        "HTB",
        &[("rate", number(500.0))],
        vec![("rtt", printed(19.22))],
    ));
    e.paper_cells.push(cell(
        "TRTCM",
        &[("rate", number(500.0))],
        vec![("rtt", printed(0.27))],
    ));
    e.plots = vec![Plot {
        y_log: true,
        paper: true,
        ..plot(
            "TCP's round trip by the queue's rate",
            "line",
            "rate",
            &["rtt"],
            "subject",
        )
    }];
    e.findings = vec![finding(
        "HTB's latency falls with the rate.",
        Some(true),
        "192 ms at 50 Mbit/s, 9.6 ms at 1000 Mbit/s.",
    )];
    list.push(e);

    let mut e = experiment(
        "D6",
        "Congestion window",
        "TCP's window over time.",
        "iperf3 for a minute.",
    );
    e.parameters = vec![parameter("second", "Time", "s")];
    e.measures = vec![measure("window", "Congestion window", "KiB", "")];
    for (subject, top) in [("linux-htb", 1900.0), ("trtcm", 240.0)] {
        for tenth in 0..600 {
            let second = tenth as f64 / 10.0;
            let window: f64 = top * (0.5 + 0.5 * ((second / 7.0).fract()));
            let mut figure = noise.figure(window, 0.05);
            figure.runs.truncate(1);
            (figure.low, figure.high) = (figure.median, figure.median);
            e.cells.push(cell(
                subject,
                &[("second", number(second))],
                vec![("window", figure)],
            ));
        }
    }
    e.plots = vec![plot(
        "Congestion window",
        "line",
        "second",
        &["window"],
        "subject",
    )];
    list.push(e);

    let mut e = experiment(
        "D9",
        "Many slices",
        "Hardware has 8; software may have 100,000.",
        "One port, slices of equal rate.",
    );
    e.parameters = vec![parameter("slices", "Slices", "")];
    e.measures = vec![measure(
        "error",
        "Error of a slice's rate, median",
        "%",
        "lower",
    )];
    for slices in [8.0f64, 64.0, 512.0, 4096.0, 32768.0, 100_000.0] {
        e.cells.push(cell(
            "sluice",
            &[("slices", number(slices))],
            vec![("error", noise.figure(0.02 * slices.sqrt(), 0.3))],
        ));
        e.cells.push(match slices > 5000.0 {
            true => missing(
                "linux-htb",
                &[("slices", number(slices))],
                "tc takes minutes to add so many classes",
            ),
            false => cell(
                "linux-htb",
                &[("slices", number(slices))],
                vec![("error", noise.figure(0.3 * slices.powf(0.4), 0.3))],
            ),
        });
    }
    e.plots = vec![Plot {
        x_log: true,
        y_log: true,
        ..plot(
            "Error of a slice's rate",
            "line",
            "slices",
            &["error"],
            "subject",
        )
    }];
    list.push(e);

    let mut e = experiment("D13", "TRTCM's dequeue rate", "", "");
    e.cells = vec![
        missing(
            "ovs-dpdk",
            &[],
            "Open vSwitch 3.1 has no policer of this kind on a port of this kind",
        ),
        missing("sluice", &[], "the port was taken away meanwhile"),
    ];
    e.measures = vec![measure("rate", "Dequeued", "Mbit/s", "")];
    e.plots = vec![plot("Dequeued", "bars", "", &["rate"], "subject")];
    list.push(e);
    list
}

/// Results that nobody should have: names that are markup, numbers that are none, too much of
/// everything.
pub fn adversarial() -> Results {
    let evil = "<script>document.title='evil'</script>\"'><img src=x onerror=alert(1)>&amp;";
    let long = "Donaudampfschifffahrtsgesellschaft".repeat(20);
    let turned = "\u{202e}turned\u{0}\u{7}\u{1b}[31m";
    let mut results = plausible(1.0);
    results.made.command = format!("sluice lab run {evil} {long}");
    results.made.began = evil.into();
    results.made.interrupted = true;
    results.made.seconds = f64::NAN;
    results.machine.processor = format!("{evil}{long}");
    results.machine.limits = vec![evil.into(), long.clone(), String::new()];
    results.machine.speeds = vec![f64::NAN, 1.0, f64::INFINITY, -3.0, 1e300];
    results.machine.noise = f64::NAN;
    results.machine.tsc_mhz = f64::INFINITY;
    results.machine.memory_mib = u64::MAX;
    results.machine.headroom.push((
        evil.into(),
        Figure {
            median: f64::NAN,
            ..Default::default()
        },
        long.clone(),
    ));
    results.subjects.push(Subject {
        id: evil.into(),
        name: evil.into(),
        version: long.clone(),
        setup: evil.into(),
        missing: None,
    });
    results.subjects.push(Subject {
        id: long.clone(),
        name: long.clone(),
        missing: Some(evil.into()),
        ..Default::default()
    });
    let mut list = Vec::new();
    let wide = |id: &str, title: &str| {
        let mut e = experiment("X", title, evil, &long);
        e.id = id.into();
        e.command = format!("{evil}{long}");
        e.parameters = vec![parameter("x", evil, evil), parameter("n", &long, "")];
        e.measures = vec![
            measure("y", evil, evil, "higher"),
            measure("z", &long, "", "lower"),
        ];
        e.substituted = vec![evil.into(), long.clone()];
        e.findings = vec![
            finding(evil, Some(false), &long),
            finding(turned, Some(true), ""),
        ];
        e
    };
    let figure = |median: f64| Figure {
        median,
        low: median - 1.0,
        high: median + 1.0,
        deviation: 0.1,
        runs: vec![median; 3],
        borrowed: 0.0,
    };
    let cells = |points: &[(f64, f64)]| -> Vec<Cell> {
        points
            .iter()
            .map(|&(x, y)| cell(evil, &[("x", number(x))], vec![("y", figure(y))]))
            .collect()
    };
    let both = |e: &mut Experiment| {
        for kind in ["line", "bars"] {
            for (x_log, y_log) in [(false, false), (true, true)] {
                e.plots.push(Plot {
                    x_log,
                    y_log,
                    paper: true,
                    ..plot(evil, kind, "x", &["y"], "subject")
                });
            }
        }
    };

    let mut e = wide("evil", evil);
    e.cells = cells(&[(1.0, 1.0), (2.0, 3.0)]);
    e.cells.push(missing(&long, &[("x", word(evil))], evil));
    e.cells[0].limited_by = Some(evil.into());
    e.paper_cells = cells(&[(1.0, 5.0)]);
    e.paper_cells[0].subject = evil.into();
    both(&mut e);
    e.plots
        .push(plot("unknown", "pie", "nowhere", &["y"], "nobody"));
    e.plots
        .push(plot("no measure", "line", "x", &["nothing"], "subject"));
    e.plots.push(plot("nothing", "line", "x", &[], ""));
    list.push(e);

    let mut e = wide("evil", "The same name again; numbers that are none");
    e.cells = cells(&[
        (f64::NAN, 1.0),
        (1.0, f64::NAN),
        (f64::INFINITY, 2.0),
        (2.0, f64::INFINITY),
        (3.0, 1e300),
        (4.0, -1e300),
        (5.0, 4.0),
        (6.0, 5e-324),
    ]);
    both(&mut e);
    list.push(e);

    let mut e = wide("one", "One point");
    e.cells = cells(&[(1_000_000.0, 14.0)]);
    both(&mut e);
    list.push(e);

    let mut e = wide("negative", "Negative values");
    e.cells = cells(&[(-10.0, -5.0), (0.0, 2.0), (10.0, -1.0)]);
    both(&mut e);
    list.push(e);

    let mut e = wide("equal", "All the same");
    e.cells = cells(&[(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]);
    both(&mut e);
    list.push(e);

    let mut e = wide("series", "200 series");
    for series in 0..200 {
        for x in 0..5 {
            e.cells.push(cell(
                "sluice",
                &[("x", number(x as f64)), ("n", number(series as f64))],
                vec![("y", figure((x * series) as f64))],
            ));
        }
    }
    both(&mut e);
    e.plots[0].series = "n".into();
    list.push(e);

    let mut e = wide("huge", "20,000 cells of two subjects");
    for x in 0..10_000 {
        for subject in ["sluice", evil] {
            e.cells.push(cell(
                subject,
                &[("x", number(x as f64))],
                vec![("y", figure((x as f64 / 300.0).sin() * 10.0 + 20.0))],
            ));
        }
    }
    both(&mut e);
    list.push(e);

    let mut e = wide("words", "Long words along the axis");
    for word_number in 0..30 {
        e.cells.push(cell(
            "sluice",
            &[("x", word(&format!("{evil}{word_number}{long}")))],
            vec![("y", figure(word_number as f64)), ("z", figure(3.0))],
        ));
    }
    both(&mut e);
    e.plots
        .push(plot(&long, "stack", "x", &["y", "z"], "subject"));
    list.push(e);

    let mut e = wide("widest", "Intervals that go far beyond the figures");
    e.cells = cells(&[(1.0, 3.0), (2.0, 4.0)]);
    for (cell, high) in e.cells.iter_mut().zip([1e100, f64::INFINITY]) {
        let figure = cell.figures.get_mut("y").unwrap();
        (figure.low, figure.high) = (-1e100, high);
    }
    both(&mut e);
    list.push(e);

    for (id, state) in [
        ("nothing", State::Done),
        ("broken", State::Interrupted),
        ("failed", State::Failed(format!("{evil}{long}"))),
    ] {
        let mut e = wide(id, &long);
        e.state = state;
        e.seconds = -1.0;
        both(&mut e);
        list.push(e);
    }
    list.push(Experiment::default());
    results.experiments.extend(list);
    results
}

/// As large as reports get, and larger: the Rust side of it.
pub fn empty() -> Results {
    Results::default()
}
