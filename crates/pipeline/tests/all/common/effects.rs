//! Converts what a walk does to the reference's effects, for hosts that compare the two.

use packet::{FlowKey, Frame, HeapFrame};
use pipeline::reference::{Effect, Sent};
use program::actions::ToController;
use program::host::Context;

fn sent(context: &mut Context<'_>, frame: &HeapFrame) -> Sent {
    *context.sent = true;
    Sent {
        in_port: context.in_port,
        queue: context.queue,
        bytes: frame.to_vec(),
    }
}

/// Returns an output to a port.
pub fn output(mut context: Context<'_>, port: u32, frame: &HeapFrame, to_in_port: bool) -> Effect {
    Effect::Output {
        port,
        to_in_port,
        sent: sent(&mut context, frame),
    }
}

/// Returns an output to all ports, or to those that flood.
pub fn output_all(mut context: Context<'_>, frame: &HeapFrame, flood: bool) -> Effect {
    Effect::All {
        flood,
        sent: sent(&mut context, frame),
    }
}

/// Returns an output by NORMAL, the learning switch.
pub fn normal(mut context: Context<'_>, frame: &HeapFrame) -> Effect {
    Effect::Normal(sent(&mut context, frame))
}

/// Returns a packet-in without the key.
pub fn controller(context: &Context<'_>, to: &ToController, frame: &HeapFrame) -> Effect {
    Effect::Controller {
        reason: to.reason,
        table: context.table,
        cookie: context.cookie,
        max_len: to.max_len,
        controller_id: to.controller_id,
        userdata: to.userdata.clone(),
        key: Box::new(FlowKey::ZERO),
        bytes: frame.to_vec(),
    }
}
