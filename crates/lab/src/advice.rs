//! What paper a's conclusions say for this host: findings computed from its state and from figures
//! of the run, where there are any.

use crate::experiment::{Expectation, Pick};
use crate::findings;
use crate::machine::Host;
use crate::results::{Experiment, Finding, Results, Value};
use std::io::Read;
use std::process::{Command, Stdio};

/// The ID of the advice among experiments.
pub const ID: &str = "advice";

/// Longest kernel configuration that is read, bytes.
const CONFIG_MAX: u64 = 4 << 20;

/// What an operator of this host can take from paper a. Each has what it is based on.
pub fn advice(host: &Host, results: &Results) -> Vec<Finding> {
    let finding = |text: &str, because: String| Finding {
        text: text.into(),
        because,
        ..Finding::default()
    };
    let mut advice = vec![pinning(host), accounting(host), interrupts(host)];
    let cores = results.machine.cores;
    advice.push(finding(
        "A virtual machine with one processor can load two of the host's cores: plan one for the \
         switch beside it.",
        format!(
            "This host has {cores} {}; the switch's worker and the guest's processor each take one \
             under load (paper a, V).",
            if cores == 1 { "core" } else { "cores" }
        ),
    ));
    advice.push(measured(
        "Bulk transfer in virtual machines is fine; packet functions in them are not.",
        results,
        ("A1", "path"),
        (Value::from("p-v"), "below", 1.0, Value::from("p-p")),
        |guest, direct| {
            format!(
                "Between ports Sluice forwards {direct:.2} Mpps here, into a guest {guest:.2} (A1): each \
                 packet of a packet function crosses that boundary twice, whatever its size."
            )
        },
        "Each packet that crosses into a guest costs as much whatever its size (paper a, V); \
         experiment A1 measures it here.",
    ));
    advice.push(measured(
        "Cloning a flow costs less than another packet would: mirror in the switch.",
        results,
        ("A5", "outputs"),
        (Value::Number(2.0), "above", 0.5, Value::Number(1.0)),
        |two, one| {
            format!(
                "A second output takes {:.0}% of the rate here (A5); in the paper 30%.",
                100.0 * (1.0 - two / one)
            )
        },
        "A second output took 30% of the rate in the paper, a third 25% more; experiment A5 measures \
         it here.",
    ));
    advice
}

/// What Sluice's rates at two values of an experiment's parameter say; or, where they were not
/// measured, what the paper says.
fn measured(
    text: &str,
    results: &Results,
    (id, parameter): (&str, &str),
    (left, is, factor, right): (Value, &str, f64, Value),
    words: impl Fn(f64, f64) -> String,
    otherwise: &str,
) -> Finding {
    let pick = |value: &Value| Pick {
        measure: "rate".into(),
        subject: "sluice".into(),
        at: [(parameter.to_string(), value.clone())].into(),
    };
    let found = results.experiments.iter().find(|e| e.id == id);
    let median = |value: &Value| {
        let cells = found?.cells.iter();
        let mut fitting =
            cells.filter(|c| c.subject == "sluice" && c.at.get(parameter) == Some(value));
        Some(fitting.next()?.figures.get("rate")?.median)
    };
    let rates = median(&left).zip(median(&right));
    let (Some(found), Some((one, other))) = (found, rates) else {
        return Finding {
            text: text.into(),
            because: otherwise.into(),
            ..Finding::default()
        };
    };
    let judged = findings::judge(
        &Expectation {
            text: text.into(),
            left: pick(&left),
            is: is.into(),
            factor: Some(factor),
            right: pick(&right),
            otherwise: None,
        },
        found,
        false,
    );
    let doubt = judged.doubt.map(|doubt| format!("But {doubt}."));
    Finding {
        text: text.into(),
        holds: judged.holds,
        open: judged.holds.is_none(),
        because: [Some(words(one, other)), doubt]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// The advice as an experiment of its own, for the report: it has findings and no cells.
pub fn experiment(host: &Host, results: &Results) -> Experiment {
    Experiment {
        id: ID.into(),
        title: "What paper a's conclusions say for this host".into(),
        paper: "a".into(),
        purpose:
            "What an operator of this host can take from the paper, from the host's state and \
                  from what this run measured."
                .into(),
        topology: "Nothing is set up: the kernel's files are read.".into(),
        command: "sluice lab run A1 A5".into(),
        findings: advice(host, results),
        ..Experiment::default()
    }
}

/// Whether cores are set aside, so that workers and guests can be pinned to disjoint ones.
fn pinning(host: &Host) -> Finding {
    let isolated = host
        .text("/sys/devices/system/cpu/isolated")
        .unwrap_or_default();
    let online = host
        .text("/sys/devices/system/cpu/online")
        .unwrap_or_default();
    Finding {
        text:
            "Pin virtual machines and interrupts of network interfaces to disjoint sets of cores."
                .into(),
        holds: Some(!isolated.is_empty()),
        open: false,
        because: match isolated.is_empty() {
            true => format!(
                "No core is set aside for them (isolcpus): the scheduler may put anything on {online}."
            ),
            false => format!("Cores {isolated} of {online} are set aside (isolcpus)."),
        },
    }
}

/// Whether the kernel tells interrupt time apart.
fn accounting(host: &Host) -> Finding {
    let release = host.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let config = config(host, &release);
    let set = |name: &str| {
        let line = format!("{name}=y");
        config.as_ref().map(|text| text.lines().any(|l| l == line))
    };
    let full = set("CONFIG_VIRT_CPU_ACCOUNTING_GEN").unwrap_or(false);
    let holds = set("CONFIG_IRQ_TIME_ACCOUNTING").map(|is_set| is_set || full);
    Finding {
        text: "Where not all tasks are pinned, have interrupt time accounted \
               (CONFIG_IRQ_TIME_ACCOUNTING), or the scheduler does not see the load of forwarding."
            .into(),
        holds,
        open: false,
        because: match holds {
            Some(true) => "This kernel accounts it.".into(),
            Some(false) => "This kernel does not: a core that only forwards looks idle in \
                            /proc/stat (experiment A10 shows it)."
                .into(),
            None => "This kernel does not show its configuration (/proc/config.gz, \
                     /boot/config-*)."
                .into(),
        },
    }
}

/// The kernel's configuration, where it shows it.
fn config(host: &Host, release: &str) -> Option<String> {
    if let Some(text) = host.text(&format!("/boot/config-{release}")) {
        return Some(text);
    }
    let path = host.path("/proc/config.gz");
    if !path.exists() {
        return None;
    }
    // gzip is on every system that has this file.
    let mut child = Command::new("gzip")
        .args(["-dc"])
        .stdin(std::fs::File::open(path).ok()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut text = String::new();
    let read = child
        .stdout
        .take()?
        .take(CONFIG_MAX)
        .read_to_string(&mut text);
    let _ = child.kill();
    let _ = child.wait();
    read.ok().filter(|bytes| *bytes > 0).map(|_| text)
}

/// Whether interrupts of network interfaces are confined to some cores.
fn interrupts(host: &Host) -> Finding {
    let online = host
        .text("/sys/devices/system/cpu/online")
        .unwrap_or_default();
    let table = host.text("/proc/interrupts").unwrap_or_default();
    let mut spread = Vec::new();
    let mut all = 0;
    for line in table.lines() {
        let Some((number, rest)) = line.split_once(':') else {
            continue;
        };
        let name = rest.split_whitespace().last().unwrap_or_default();
        let is_network = [
            "eth", "ens", "enp", "eno", "virtio", "mlx", "ixgbe", "i40e", "ice-",
        ];
        let Ok(number) = number.trim().parse::<u32>() else {
            continue;
        };
        // Of virtio's devices those with queues to send and receive.
        let is_queue = !name.starts_with("virtio") || name.contains("put");
        if !(is_network.iter().any(|start| name.starts_with(start)) && is_queue) {
            continue;
        }
        all += 1;
        let list = host
            .text(&format!("/proc/irq/{number}/smp_affinity_list"))
            .unwrap_or_default();
        if list == online {
            spread.push(name.to_string());
        }
    }
    Finding {
        text: "Confine interrupts of network interfaces to a set of cores: that limits what \
               forwarding takes of the system."
            .into(),
        holds: (all > 0).then_some(spread.is_empty()),
        open: false,
        because: match (all, spread.len()) {
            (0, _) => "No network interface with interrupts of its own was found here.".into(),
            (all, 0) => format!("All {all} are confined."),
            (all, some) => format!(
                "{some} of {all} may go to any core ({online}), {} first.",
                spread[0]
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::host;
    use crate::results::Cell;
    use crate::statistics::figure;

    #[test]
    fn a_host_as_it_comes_is_told_what_to_do() {
        let (host, _directory) = host(&[
            ("sys/devices/system/cpu/isolated", "\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("proc/sys/kernel/osrelease", "6.1\n"),
            (
                "boot/config-6.1",
                "# CONFIG_IRQ_TIME_ACCOUNTING is not set\nCONFIG_A=y\n",
            ),
            (
                "proc/interrupts",
                "   CPU0 CPU1\n 24: 1 2 PCI-MSI 1-edge virtio0-input.0\n 25: 1 2 PCI-MSI virtio1-requests\n",
            ),
            ("proc/irq/24/smp_affinity_list", "0-1\n"),
        ]);
        let advice = advice(&host, &Results::default());
        let holds: Vec<_> = advice.iter().map(|finding| finding.holds).collect();
        assert_eq!(
            holds,
            [Some(false), Some(false), Some(false), None, None, None]
        );
        assert!(
            advice[2]
                .because
                .starts_with("1 of 1 may go to any core (0-1), virtio0-input.0")
        );
        assert!(advice[4].because.contains("experiment A1"));
    }

    #[test]
    fn a_host_that_is_set_up_is_confirmed_by_figures() {
        let (host, _directory) = host(&[
            ("sys/devices/system/cpu/isolated", "1\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("proc/sys/kernel/osrelease", "6.1\n"),
            ("boot/config-6.1", "CONFIG_IRQ_TIME_ACCOUNTING=y\n"),
            ("proc/interrupts", " 24: 1 2 PCI-MSI eth0-TxRx-0\n"),
            ("proc/irq/24/smp_affinity_list", "0\n"),
        ]);
        let cell = |name: &str, value: Value, rate: f64| Cell {
            subject: "sluice".into(),
            at: [(name.to_string(), value)].into(),
            figures: [("rate".to_string(), figure(&[rate; 3]))].into(),
            ..Cell::default()
        };
        let experiment = |id: &str, cells| Experiment {
            id: id.into(),
            cells,
            ..Experiment::default()
        };
        let results = Results {
            experiments: vec![
                experiment(
                    "A1",
                    vec![
                        cell("path", "p-p".into(), 20.0),
                        cell("path", "p-v".into(), 9.0),
                    ],
                ),
                experiment(
                    "A5",
                    vec![
                        cell("outputs", 1.0.into(), 20.0),
                        cell("outputs", 2.0.into(), 14.0),
                    ],
                ),
            ],
            ..Results::default()
        };
        let advice = advice(&host, &results);
        let holds: Vec<_> = advice.iter().map(|finding| finding.holds).collect();
        assert_eq!(
            holds,
            [
                Some(true),
                Some(true),
                Some(true),
                None,
                Some(true),
                Some(true)
            ]
        );
        assert!(
            advice[4]
                .because
                .contains("20.00 Mpps here, into a guest 9.00")
        );
        assert!(advice[5].because.contains("takes 30% of the rate"));
    }

    #[test]
    fn a_compressed_configuration_is_read() {
        let (host, directory) = host(&[("proc/plain", "CONFIG_IRQ_TIME_ACCOUNTING=y\n")]);
        let from = std::fs::File::open(directory.path().join("proc/plain")).unwrap();
        let to = std::fs::File::create(directory.path().join("proc/config.gz")).unwrap();
        assert!(
            Command::new("gzip")
                .arg("-c")
                .stdin(from)
                .stdout(to)
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(accounting(&host).holds, Some(true));
        let (host, _directory) = self::host(&[("proc/stat", "")]);
        assert_eq!(accounting(&host).holds, None);
    }
}
