//! Compilation of `learn` actions.

use crate::state::options::Options;
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

/// Returns the tunnel options that packets of the learned rule must have: those that it matches.
fn options(action: &Learn, options: &Options) -> u64 {
    let targets = action.specs.iter().map(|spec| &spec.target);
    let matched = targets.filter_map(|target| match target {
        LearnTarget::Match(to) => options.option_at(to.field),
        _ => None,
    });
    matched.fold(0, |set, option| set | 1 << option)
}

/// Compiles a `learn` action that names places instead of tunnel options ([`Options::placed`]).
pub(crate) fn compile(action: &Learn, map: &Options) -> learn::Learn {
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
        options: options(action, map),
        parts: action.specs.iter().map(part).collect(),
        ..learn::Learn::default()
    }
    .shaped()
}
