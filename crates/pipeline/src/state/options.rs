//! The bridge's map of tunnel options, and rules that name `tun_metadata` fields (ovs-fields(7),
//! "Generic Tunnel Option Fields").
//!
//! Messages name a field without its length. Here the length from the map is filled in: a field
//! that is used as a whole means all of its bytes according to the map. Matches and actions that
//! have passed through here say exactly which bytes of the key they mean. A field that the map does
//! not have is refused, and an entry that rules use cannot be removed.

use openflow::action::{Action, Instruction, LearnSource, LearnTarget, Subfield};
use openflow::error::Error;
use openflow::tlv::TlvMapping;
use packet::options::{OPTIONS, Place};
use packet::{Field, Match, Value};
use std::borrow::Cow;

/// The entries of the map.
#[derive(Clone, Default, Debug)]
pub(crate) struct Options {
    /// Ascending by field.
    pub(crate) mappings: Vec<TlvMapping>,
}

impl Options {
    pub(crate) fn mapping(&self, option: usize) -> Option<&TlvMapping> {
        self.mappings
            .iter()
            .find(|mapping| usize::from(mapping.field) == option)
    }

    /// Returns the length of a field in bytes, according to the map.
    pub(crate) fn length(&self, option: usize) -> Result<usize, Error> {
        let mapping = self.mapping(option).ok_or(Error::InvalidTlvField)?;
        Ok(mapping.length.into())
    }

    pub(crate) fn add(&mut self, new: &TlvMapping) -> Result<(), Error> {
        let place = |mapping: &TlvMapping| Place::new(mapping.field.into(), mapping.length.into());
        if usize::from(new.field) >= OPTIONS {
            return Err(Error::TlvBadField);
        }
        if self.mapping(new.field.into()).is_some() {
            return Err(Error::TlvAlreadyMapped);
        }
        let same = |old: &TlvMapping| (old.class, old.kind) == (new.class, new.kind);
        if self.mappings.iter().any(same) {
            return Err(Error::TlvDuplicate);
        }
        let own = place(new).ok_or(Error::TlvTableFull)?;
        let taken = self.mappings.iter().filter_map(place);
        if taken.into_iter().any(|other| own.overlaps(other)) {
            return Err(Error::TlvTableFull);
        }
        let at = self
            .mappings
            .partition_point(|mapping| mapping.field < new.field);
        self.mappings.insert(at, *new);
        Ok(())
    }

    /// Returns the match with the map's lengths.
    pub fn matching<'m>(&self, matching: &'m Match) -> Result<Cow<'m, Match>, Error> {
        let named = matching.options();
        if named == 0 {
            return Ok(Cow::Borrowed(matching));
        }
        let named = (0..OPTIONS).filter(|option| named >> option & 1 == 1);
        let said: Vec<_> = named
            .map(|option| Some((option, matching.option(option)?)))
            .collect::<Option<_>>()
            .unwrap_or_default();
        let mut resolved = matching.clone();
        said.iter()
            .for_each(|(option, _)| resolved.clear_option(*option));
        for (option, (value, mask)) in said {
            let length = self.length(option)?;
            let (value, mask) = cut(&value, &mask, length).ok_or(Error::BadMatchLength)?;
            if !resolved.set_option(option, &value, Some(&mask)) {
                return Err(Error::BadMatchLength);
            }
        }
        Ok(Cow::Owned(resolved))
    }

    /// Returns the instructions with the map's lengths.
    pub fn instructions<'i>(
        &self,
        instructions: &'i [Instruction],
    ) -> Result<Cow<'i, [Instruction]>, Error> {
        if !instructions.iter().any(|instruction| match instruction {
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                list_names_options(actions)
            }
            _ => false,
        }) {
            return Ok(Cow::Borrowed(instructions));
        }
        let resolve = |instruction: &Instruction| match instruction {
            Instruction::ApplyActions(actions) => {
                Ok(Instruction::ApplyActions(self.list(actions)?))
            }
            Instruction::WriteActions(actions) => {
                Ok(Instruction::WriteActions(self.list(actions)?))
            }
            other => Ok(other.clone()),
        };
        let resolved: Result<Vec<_>, Error> = instructions.iter().map(resolve).collect();
        Ok(Cow::Owned(resolved?))
    }

    /// Returns the actions with the map's lengths.
    pub fn actions<'a>(&self, actions: &'a [Action]) -> Result<Cow<'a, [Action]>, Error> {
        if list_names_options(actions) {
            Ok(Cow::Owned(self.list(actions)?))
        } else {
            Ok(Cow::Borrowed(actions))
        }
    }

    pub(crate) fn list(&self, actions: &[Action]) -> Result<Vec<Action>, Error> {
        actions.iter().map(|action| self.action(action)).collect()
    }

    pub(crate) fn action(&self, action: &Action) -> Result<Action, Error> {
        for part in parts(action) {
            if let Some(option) = part.field.tunnel_option()
                && usize::from(part.start + part.bits) > 8 * self.length(option)?
            {
                return Err(Error::BadSetLength);
            }
        }
        match action {
            Action::Clone(actions) => Ok(Action::Clone(self.list(actions)?)),
            Action::DeleteField(field) => {
                let option = field.tunnel_option().ok_or(Error::BadActionArgument)?;
                self.length(option)?;
                Ok(action.clone())
            }
            Action::SetField { field, value, mask } => {
                let Some(option) = field.tunnel_option() else {
                    return Ok(action.clone());
                };
                let length = self.length(option)?;
                let (value, mask) = cut(value, mask, length).ok_or(Error::BadSetLength)?;
                let field = *field;
                let widen = |bytes: &Value| {
                    let mut wide = Value::zero(field.def().bytes);
                    let from = wide.len() - bytes.len();
                    wide[from..].copy_from_slice(bytes);
                    wide
                };
                Ok(Action::SetField {
                    field,
                    value: widen(&value),
                    mask: widen(&mask),
                })
            }
            other => Ok(other.clone()),
        }
    }
}

/// Returns the last `length` bytes of a value and of its mask. None if the value has bits set in
/// the bytes cut off, or the mask has some there and is not all ones.
pub(crate) fn cut(value: &Value, mask: &Value, length: usize) -> Option<(Value, Value)> {
    let whole = !mask.is_empty() && mask.iter().all(|byte| *byte == 0xff);
    let front = value.len().saturating_sub(length);
    let says = |bytes: &Value| bytes[..front].iter().any(|byte| *byte != 0);
    if says(value) || says(mask) && !whole {
        return None;
    }
    let (mut kept, mut bits) = (Value::zero(length), Value::zero(length));
    let own = length.min(value.len());
    kept[length - own..].copy_from_slice(&value[value.len() - own..]);
    bits[length - own..].copy_from_slice(&mask[mask.len() - own..]);
    Some((kept, bits))
}

/// Returns the subfields that an action names.
pub(crate) fn parts(action: &Action) -> Vec<Subfield> {
    match action {
        Action::OutputReg { source, .. } | Action::StackPush(source) => vec![*source],
        Action::Load { dst, .. } | Action::StackPop(dst) | Action::CheckPktLarger { dst, .. } => {
            vec![*dst]
        }
        Action::Move { src, dst } => vec![*src, *dst],
        Action::Multipath(multipath) => vec![multipath.dst],
        Action::Bundle(bundle) => bundle.dst.into_iter().collect(),
        Action::Learn(learn) => {
            let mut all: Vec<Subfield> = learn.result.into_iter().collect();
            for spec in &learn.specs {
                if let LearnSource::Field(part) = spec.source {
                    all.push(part);
                }
                if let LearnTarget::Match(part) | LearnTarget::Load(part) = spec.target {
                    all.push(part);
                }
            }
            all
        }
        _ => Vec::new(),
    }
}

pub(crate) fn list_names_options(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Clone(inner) => list_names_options(inner),
        Action::SetField { field, .. } => field.tunnel_option().is_some(),
        Action::DeleteField(_) => true,
        Action::Load { dst, .. } | Action::StackPop(dst) => dst.field.tunnel_option().is_some(),
        Action::OutputReg { source, .. } | Action::StackPush(source) => {
            source.field.tunnel_option().is_some()
        }
        Action::Move { src, dst } => {
            src.field.tunnel_option().is_some() || dst.field.tunnel_option().is_some()
        }
        Action::CheckPktLarger { .. }
        | Action::Multipath(_)
        | Action::Bundle(_)
        | Action::Learn(_) => parts(action)
            .iter()
            .any(|part| part.field.tunnel_option().is_some()),
        _ => false,
    })
}

/// Returns the option that an action writes; the packet has it from then on.
pub(crate) fn written(action: &Action) -> Option<usize> {
    let field = match action {
        Action::SetField { field, .. } => *field,
        Action::Load { dst, .. }
        | Action::Move { dst, .. }
        | Action::StackPop(dst)
        | Action::CheckPktLarger { dst, .. } => dst.field,
        Action::Multipath(multipath) => multipath.dst.field,
        Action::Bundle(bundle) => bundle.dst?.field,
        _ => return None,
    };
    field.tunnel_option()
}

/// Returns whether instructions name a field.
pub(crate) fn names(instructions: &[Instruction], field: Field) -> bool {
    pub(crate) fn in_list(actions: &[Action], field: Field) -> bool {
        actions.iter().any(|action| match action {
            Action::Clone(inner) => in_list(inner, field),
            Action::SetField { field: set, .. } | Action::DeleteField(set) => *set == field,
            other => parts(other).iter().any(|part| part.field == field),
        })
    }
    instructions.iter().any(|instruction| match instruction {
        Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
            in_list(actions, field)
        }
        _ => false,
    })
}
