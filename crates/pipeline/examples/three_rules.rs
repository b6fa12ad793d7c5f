//! Three rules, written as for `ovs-ofctl add-flow`, compiled and run on three packets.
//!
//!     cargo run -p sluice-pipeline --example three_rules

use openflow::Version;
use openflow::parse::{self, no_names};
use packet::build::Builder;
use packet::parse::Malformed;
use packet::{Frame, HeapFrame};
use pipeline::{Clock, Options, Pipeline};
use program::Program;
use program::actions::{PortNo, ToController};
use program::exec::Engine;
use program::host::{Context, DropReason, Host};
use program::table::Bridge;
use std::sync::Arc;

/// Prints what happens to packets.
struct Printer;

impl Host<HeapFrame> for Printer {
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: HeapFrame, _: bool) {
        *context.sent = true;
        println!("  {} bytes leave by port {port}", frame.len());
    }
    fn output_all(&mut self, _: Context<'_>, _: HeapFrame, _: bool) {
        println!("  to all ports");
    }
    fn normal(&mut self, _: Context<'_>, _: HeapFrame) {
        println!("  to the learning switch");
    }
    fn controller(&mut self, _: Context<'_>, to: &ToController, _: &HeapFrame) {
        println!("  to the controllers, {:?}", to.reason);
    }
    fn dropped(&mut self, reason: DropReason) {
        println!("  dropped: {reason:?}");
    }
    fn malformed(&mut self, what: Malformed) {
        println!("  malformed: {what:?}");
    }
    fn port_is_live(&self, _: PortNo) -> bool {
        true
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let options = Options::default();
    let mut pipeline = Pipeline::new(Arc::clone(&program), Arc::clone(&bridge), options);

    for text in [
        "priority=20,udp,nw_dst=10.0.0.0/24,actions=dec_ttl,resubmit(,1)",
        "table=1,udp,tp_dst=53,actions=output:2",
        "priority=10,arp,actions=NORMAL",
    ] {
        let rule = parse::flow(text, &no_names).map_err(|error| error.to_string())?;
        pipeline
            .flow_mod(&rule, Version::V1_3, Clock::from_ms(0))
            .map_err(|error| format!("{text}: {error:?}"))?;
    }
    // Workers see nothing until both have been called.
    pipeline.commit();
    program.domain.publish();

    let to = |address: u32, port: u16| {
        let builder = Builder::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        builder
            .ipv4(0x0a00_0101, address)
            .udp(5000, port)
            .payload(b"hello")
            .frame()
    };
    let packets = [
        ("DNS to 10.0.0.7", to(0x0a00_0007, 53)),
        ("something else to 10.0.0.7", to(0x0a00_0007, 54)),
        ("DNS to elsewhere", to(0x0a00_0107, 53)),
    ];
    let mut reader = program.domain.reader().ok_or("too many readers")?;
    program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    for (name, frame) in packets {
        println!("{name}:");
        let guard = reader.begin();
        engine.burst(&bridge, &guard, 1, &mut vec![frame], 0, 0, &mut Printer);
    }
    Ok(())
}
