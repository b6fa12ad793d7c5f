//! What ports cost.
//!
//! Sending costs something for each call and something for each packet, because packets that leave by different ports go in smaller batches. Receiving is what is left of
//! a worker's turn under a [`Reference`] when sending and the reference's own work are taken off: so it holds the waiting for packets that are not in the cache yet.

use crate::engine::{EngineCost, Reference};
use crate::spread::Spread;
use crate::traffic::Traffic;
use crate::{Effort, Error};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

/// The option of the daemon by which it measures ports: `--calibrate-ports CAPTURE MEMORY CPU ROUNDS`.
pub const OPTION: &str = "--calibrate-ports";

/// Where the buffers of measured ports lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// In huge pages where enough are free.
    Huge,
    /// In ordinary memory, so that huge pages are left to a switch that runs.
    Ordinary,
}

impl Memory {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Huge => "huge",
            Memory::Ordinary => "ordinary",
        }
    }

    /// The memory of this name.
    pub fn by_name(name: &str) -> Option<Memory> {
        [Memory::Huge, Memory::Ordinary]
            .into_iter()
            .find(|memory| memory.name() == name)
    }
}

/// The process that measures ports: DPDK can be set up once in a process.
pub struct Helper<'a> {
    /// The daemon's program.
    pub program: &'a Path,
    /// Where buffers lie.
    pub memory: Memory,
    /// Where the packets are written, and removed again; nobody else should be able to write there.
    pub capture: &'a Path,
}

impl Helper<'_> {
    /// Measures DPDK's devices with this traffic.
    pub fn measure(&self, traffic: &Traffic, effort: Effort) -> Result<PortCost, Error> {
        let capture = self.capture.display();
        std::fs::write(self.capture, traffic.to_capture())
            .map_err(|error| Error::new(format!("cannot write {capture}: {error}")))?;
        let program = self.program.display();
        let output = Command::new(self.program)
            .arg(OPTION)
            .arg(self.capture)
            .arg(self.memory.name())
            .args([effort.cpu.unwrap_or(0), effort.rounds].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .output();
        // A directory that is private goes with all that is in it; elsewhere nothing should be left.
        let _ = std::fs::remove_file(self.capture);
        let output = output.map_err(|error| {
            Error::new(format!("cannot run {program} to measure ports: {error}"))
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!(
                "{program} could not measure ports: {}",
                said.trim_end()
            )));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| {
            Error::new(format!(
                "{program} said something else than what ports cost: {error}"
            ))
        })
    }
}

/// Cycles of one kind of port in and another out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortCost {
    /// For each packet received when it goes straight out again, without a worker.
    pub receive: Spread,
    /// For each packet sent.
    pub send_packet: Spread,
    /// For each batch sent, besides.
    pub send_batch: Spread,
    /// A packet's share of a worker's turn under [`Reference::Untouched`].
    pub untouched: Spread,
    /// The same under [`Reference::Touched`].
    pub touched: Spread,
    /// A look at a kernel interface that has nothing, as a bridge's own port mostly is.
    pub look: Spread,
    /// What there is to say about it, such as that there were no huge pages.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Shares of the packets that come in by, and leave by, ports of that cost; the others cost nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shares {
    /// Of packets received.
    pub received: f64,
    /// Of packets sent.
    pub sent: f64,
}

impl PortCost {
    /// Sending `sent` copies of each packet, `batch` at a time.
    pub fn send(&self, sent: f64, batch: f64) -> Spread {
        let calls = sent / batch.max(1.0);
        self.send_packet
            .times(sent)
            .plus(self.send_batch.times(calls))
    }

    /// From rounds of receiving and of sending in batches of two sizes, in cycles for each packet.
    pub fn of_rounds(
        receive: Vec<f64>,
        (large, in_large): (usize, Vec<f64>),
        (small, in_small): (usize, Vec<f64>),
    ) -> PortCost {
        let (in_large, in_small) = (Spread::of(in_large), Spread::of(in_small));
        // large: packet + batch / large; small: packet + batch / small.
        let share = 1.0 / small as f64 - 1.0 / large as f64;
        let batch = ((in_small.median - in_large.median) / share).max(0.0);
        let packet = (in_large.median - batch / large as f64).max(0.0);
        PortCost {
            receive: Spread::of(receive),
            send_packet: Spread {
                median: packet,
                low: (packet - (in_large.median - in_large.low)).max(0.0),
                high: packet + (in_large.high - in_large.median),
            },
            send_batch: Spread::exact(batch),
            ..PortCost::default()
        }
    }

    /// A packet's share of a turn under the reference.
    fn turn(&self, reference: Reference) -> Spread {
        match reference {
            Reference::Untouched => self.untouched,
            Reference::Touched => self.touched,
        }
    }

    /// Receiving, for a worker whose rules come near `reference`; `engine` has the reference's own work.
    pub fn receiving(&self, reference: Reference, engine: &EngineCost) -> Spread {
        let own = engine.without_ports(&engine.reference);
        let send = self.send(engine.reference.sent, engine.reference.batch);
        self.turn(reference)
            .minus(own)
            .minus(Spread::exact(send.median))
            .at_least(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Turns;

    #[test]
    fn sending_is_split_into_batches_and_packets() {
        // 40 cycles a batch and 10 a packet.
        let cost = PortCost::of_rounds(vec![20.0; 5], (32, vec![11.25; 5]), (4, vec![20.0; 5]));
        assert_eq!(cost.receive, Spread::exact(20.0));
        assert!((cost.send_batch.median - 40.0).abs() < 1e-9);
        assert!((cost.send_packet.median - 10.0).abs() < 1e-9);
        let send = cost.send(2.0, 16.0).median;
        assert!((send - 25.0).abs() < 1e-9, "{send}");
    }

    #[test]
    fn receiving_is_what_the_reference_leaves() {
        let turns = |cycles: f64| Turns {
            cycles: Spread::exact(cycles),
            sent: 1.0,
            batch: 32.0,
        };
        let engine = EngineCost {
            rules: turns(90.0),
            reference: turns(50.0),
            // 20 to receive and 10 to send in memory: the reference's own work is 20.
            ports: PortCost::of_rounds(vec![20.0; 3], (32, vec![10.0; 3]), (4, vec![10.0; 3])),
        };
        let mut ports = PortCost::of_rounds(vec![30.0; 3], (32, vec![25.0; 3]), (4, vec![25.0; 3]));
        ports.touched = Spread::exact(81.0);
        let receiving = ports.receiving(Reference::Touched, &engine);
        assert!((receiving.median - 36.0).abs() < 1e-9, "{receiving:?}");
        // Under the reference itself, the sum is the reference's turn.
        let whole = receiving.median + ports.send(1.0, 32.0).median + 20.0;
        assert!((whole - 81.0).abs() < 1e-9);
    }
}
