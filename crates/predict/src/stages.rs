//! Times the parser and each table's lookups separately, to divide a worker's cycles into stages.
//!
//! Separately they take about as long as in a walk, but not exactly: while a lookup waits for
//! memory, other work proceeds. So these times are used only to divide the total of a prediction.

use crate::engine::{on_a_thread, reading_cycles};
use crate::memory::{self, Buffer};
use crate::rules::Rules;
use crate::spread::Spread;
use crate::trace::Trace;
use crate::traffic::Traffic;
use crate::{Effort, Error};
use datapath::clock::cycles;
use packet::io::BURST;
use packet::parse::{self, MINI_KEY_WORDS};
use packet::{FlowKey, Frame, Layers};
use program::epoch::Guard;
use program::table::{Bridge, Reads};
use std::sync::Arc;

/// Most frames whose parsing is timed.
const PARSED_MAX: usize = 2048;
/// Fewest lookups of a table timed per round.
const LOOKUPS_MIN: usize = 4096;
/// Rounds of each measurement.
const ROUNDS: usize = 9;

/// Cycles of parts of the walk, per packet of the traffic.
#[derive(Clone, Debug, Default)]
pub struct StageCost {
    /// Parsing.
    pub parse: f64,
    /// Lookups, by table.
    pub lookups: Vec<(u8, f64)>,
}

/// Measures the stages.
pub fn measure(
    rules: &Rules,
    traffic: &Traffic,
    trace: &Trace,
    effort: Effort,
) -> Result<StageCost, Error> {
    let (program, bridge) = (Arc::clone(&rules.program), Arc::clone(rules.bridge()));
    let mut reader = rules
        .program
        .domain
        .reader()
        .ok_or_else(|| Error::new("too many readers of the rules"))?;
    on_a_thread(effort.cpu, move || {
        program.counters.add_worker(reader.index());
        let guard = reader.begin();
        let lookups = trace.tables.iter().filter_map(|table| {
            let keys = trace.keys.get(&table.table)?;
            let share = table.lookups as f64 / trace.packets.max(1) as f64;
            // Packets that need one table are looked up together; the fewer they are, the smaller
            // their groups.
            let together = ((BURST as f64 * share).round() as usize).clamp(1, BURST);
            let each = lookup_cycles(&bridge, &guard, table.table, keys, together);
            Some((table.table, each * share))
        });
        Ok(StageCost {
            lookups: lookups.collect(),
            parse: parse_cycles(&bridge, &guard, traffic),
        })
    })
}

fn median(rounds: Vec<f64>) -> f64 {
    Spread::of(rounds).median
}

/// Returns the cycles of one lookup in `table`, of which `together` are made at a time.
fn lookup_cycles(
    bridge: &Bridge,
    guard: &Guard<'_>,
    table: u8,
    keys: &[FlowKey],
    together: usize,
) -> f64 {
    let reading = reading_cycles();
    let mut burst = [FlowKey::ZERO; BURST];
    let mut found = [None; BURST];
    let rounds = LOOKUPS_MIN.div_ceil(keys.len().max(1));
    let mut round = || {
        let (mut spent, mut lookups) = (0, 0_usize);
        for _ in 0..rounds {
            for keys in keys.chunks(together) {
                burst[..keys.len()].copy_from_slice(keys);
                let start = cycles();
                bridge.lookup_burst(table, keys.len(), |index| &burst[index], guard, &mut found);
                spent += cycles().wrapping_sub(start).saturating_sub(reading);
                lookups += keys.len();
                std::hint::black_box(&found);
            }
        }
        spent as f64 / lookups.max(1) as f64
    };
    median((0..ROUNDS).map(|_| round()).collect())
}

/// Returns the cycles per packet for reading what the first table looks at.
fn parse_cycles(bridge: &Bridge, guard: &Guard<'_>, traffic: &Traffic) -> f64 {
    let arrivals = &traffic.arrivals[..traffic.arrivals.len().min(PARSED_MAX)];
    let reads = bridge.reads(0, guard);
    if reads == Reads::Port {
        return 0.0;
    }
    let reading = reading_cycles();
    let needed = bridge.needed();
    let mut hot = [[0_u64; MINI_KEY_WORDS]; BURST];
    let mut keys = vec![FlowKey::ZERO; BURST];
    let mut layers = vec![Layers::default(); BURST];
    let mut round = || {
        let (mut spent, mut packets) = (0, 0_usize);
        for arrivals in arrivals.chunks(BURST) {
            let mut frames: Vec<Buffer> = arrivals
                .iter()
                .filter_map(|arrival| memory::frame(&arrival.bytes))
                .collect();
            let port = arrivals[0].in_port;
            let start = cycles();
            for (index, frame) in frames.iter_mut().enumerate() {
                let common = reads != Reads::Whole
                    && parse::mini_key(frame.head(), frame.len(), port, &mut hot[index]).is_some();
                if !common {
                    parse::parse_frame_into(
                        frame,
                        port,
                        needed,
                        &mut keys[index],
                        &mut layers[index],
                    );
                }
            }
            spent += cycles().wrapping_sub(start).saturating_sub(reading);
            packets += frames.len();
            std::hint::black_box((&hot, &keys));
        }
        spent as f64 / packets.max(1) as f64
    };
    median((0..ROUNDS).map(|_| round()).collect())
}
