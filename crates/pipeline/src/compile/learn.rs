//! Compilation of `learn` actions.

use openflow::action::{Learn, LearnSource, LearnTarget, Subfield};
use program::actions::Bits;
use program::actions::learn::{self, Part, Source, Target};

fn bits(part: &Subfield) -> Bits {
    Bits {
        field: part.field,
        start: part.start,
        bits: part.bits,
    }
}

/// Compiles a `learn` action.
pub(crate) fn compile(action: &Learn) -> learn::Learn {
    let width = |source: &LearnSource| match source {
        LearnSource::Field(from) => from.bits,
        LearnSource::Immediate { bits, .. } => *bits,
    };
    let part = |spec: &openflow::action::LearnSpec| Part {
        source: match &spec.source {
            LearnSource::Field(from) => Source::Field(bits(from)),
            LearnSource::Immediate { value, .. } => Source::Number(*value),
        },
        target: match &spec.target {
            LearnTarget::Match(to) => Target::Match(bits(to)),
            LearnTarget::Load(to) => Target::Load(bits(to)),
            LearnTarget::Output => Target::Output(width(&spec.source)),
        },
    };
    learn::Learn {
        table: action.table,
        priority: action.priority,
        cookie: action.cookie,
        idle_timeout: action.idle_timeout,
        hard_timeout: action.hard_timeout,
        fin_idle_timeout: action.fin_idle_timeout,
        fin_hard_timeout: action.fin_hard_timeout,
        send_flow_rem: action.send_flow_rem,
        limit: action.limit,
        result: action.result.as_ref().map(bits),
        parts: action.specs.iter().map(part).collect(),
        ..learn::Learn::default()
    }
    .shaped()
}
