//! The bridge's map of tunnel options, and rules that name `tun_metadata` fields (ovs-fields(7),
//! "Generic Tunnel Option Fields").
//!
//! Messages name a field without its length. Here the length from the map is filled in: a field
//! that is used as a whole means all of its bytes according to the map. A field that the map does
//! not have is refused, and an entry that rules use cannot be removed.
//!
//! The map also gives each field a place in the key ([`packet::options`]). Matches of rules compare
//! the bytes of places; what controllers are told of them names the fields again
//! ([`Options::named`]). Actions of rules name fields, and are compiled by [`Options::placed`].

use openflow::action::{Action, Instruction, LearnSource, LearnSpec, LearnTarget, Subfield};
use openflow::error::Error;
use openflow::tlv::TlvMapping;
use packet::options::{KeyRange, LONGEST, OPTIONS};
use packet::{Field, Match, Value};
use std::borrow::Cow;

/// Most bits that one step moves.
const STEP: u16 = 128;

/// An entry of the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub mapping: TlvMapping,
    /// Where workers keep the option's bytes. It stays for as long as the entry does.
    pub place: KeyRange,
}

/// The entries of the map.
#[derive(Clone, Default, Debug)]
pub(crate) struct Options {
    /// Ascending by field.
    pub(crate) entries: Vec<Entry>,
}

impl Options {
    fn entry(&self, option: usize) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| usize::from(entry.mapping.field) == option)
    }

    /// Returns the entries as messages show them, ascending by field.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = &TlvMapping> {
        self.entries.iter().map(|entry| &entry.mapping)
    }

    /// Returns where a field's bytes are; None if the map does not have it.
    pub(crate) fn place(&self, option: usize) -> Option<KeyRange> {
        Some(self.entry(option)?.place)
    }

    /// Returns the option whose place a field stands for.
    pub(crate) fn option_at(&self, place: Field) -> Option<usize> {
        place.tunnel_option()?;
        let mut entries = self.entries.iter();
        let entry =
            entries.find(|entry| entry.place.field() == place && entry.place.length() != 0)?;
        Some(entry.mapping.field.into())
    }

    /// Returns the length of a field in bytes, according to the map.
    pub(crate) fn length(&self, option: usize) -> Result<usize, Error> {
        let place = self.place(option).ok_or(Error::InvalidTlvField)?;
        Ok(place.length())
    }

    pub(crate) fn add(&mut self, new: &TlvMapping) -> Result<(), Error> {
        if usize::from(new.field) >= OPTIONS {
            return Err(Error::TlvBadField);
        }
        if self.entry(new.field.into()).is_some() {
            return Err(Error::TlvAlreadyMapped);
        }
        let same = |old: &Entry| (old.mapping.class, old.mapping.kind) == (new.class, new.kind);
        if self.entries.iter().any(same) {
            return Err(Error::TlvDuplicate);
        }
        let taken = self.entries.iter().map(|entry| entry.place);
        let place = KeyRange::free(taken, new.length.into()).ok_or(Error::TlvTableFull)?;
        let at = self
            .entries
            .partition_point(|entry| entry.mapping.field < new.field);
        self.entries.insert(
            at,
            Entry {
                mapping: *new,
                place,
            },
        );
        Ok(())
    }

    /// Returns the match with the bytes of the key that it compares.
    pub fn matching<'m>(&self, matching: &'m Match) -> Result<Cow<'m, Match>, Error> {
        let asked = matching.options();
        if asked == 0 {
            return Ok(Cow::Borrowed(matching));
        }
        let mut placed = Cow::Borrowed(matching);
        for option in (0..OPTIONS).filter(|option| asked >> option & 1 == 1) {
            let length = self.length(option)?;
            if let Some((value, mask)) = matching.option(option)
                && let Some(place) = self.place(option)
            {
                let (value, mask) = cut(&value, &mask, length).ok_or(Error::BadMatchLength)?;
                placed.to_mut().place_option(option, place, &value, &mask);
            }
        }
        Ok(placed)
    }

    /// Returns a rule's match as messages name its options.
    pub fn named(&self, matching: &Match) -> Match {
        let mut named = matching.clone();
        if named.options() != 0 {
            for entry in &self.entries {
                named.name_option(entry.mapping.field.into(), entry.place);
            }
        }
        named
    }

    /// Returns a subfield with the field that stands for its place in what workers run; None if the
    /// map does not have it.
    fn placed_part(&self, part: &Subfield) -> Option<Subfield> {
        let Some(option) = part.field.tunnel_option() else {
            return Some(*part);
        };
        let field = self.place(option)?.field();
        Some(Subfield { field, ..*part })
    }

    /// Returns what workers run for an action: it names places instead of options. An action that
    /// names an option that the map does not have does nothing.
    pub fn placed<'a>(&self, action: &'a Action) -> Cow<'a, [Action]> {
        if !list_names_options(std::slice::from_ref(action)) {
            return Cow::Borrowed(std::slice::from_ref(action));
        }
        Cow::Owned(self.placed_by_place(action).unwrap_or_default())
    }

    fn placed_by_place(&self, action: &Action) -> Option<Vec<Action>> {
        Some(vec![match action {
            Action::SetField { field, value, mask } => {
                let place = self.place(field.tunnel_option()?)?;
                let (value, mask) = cut(value, mask, place.length())?;
                let widen = |bytes: &Value| {
                    let mut wide = Value::zero(LONGEST);
                    wide[LONGEST - bytes.len()..].copy_from_slice(bytes);
                    wide
                };
                Action::SetField {
                    field: place.field(),
                    value: widen(&value),
                    mask: widen(&mask),
                }
            }
            Action::Load { dst, value } => Action::Load {
                dst: self.placed_part(dst)?,
                value: *value,
            },
            Action::Move { src, dst } => {
                return Some(moves(&self.placed_part(src)?, &self.placed_part(dst)?));
            }
            Action::OutputReg { source, max_len } => Action::OutputReg {
                source: self.placed_part(source)?,
                max_len: *max_len,
            },
            Action::StackPush(source) => Action::StackPush(self.placed_part(source)?),
            Action::StackPop(to) => Action::StackPop(self.placed_part(to)?),
            Action::CheckPktLarger { max_len, dst } => Action::CheckPktLarger {
                max_len: *max_len,
                dst: self.placed_part(dst)?,
            },
            Action::Multipath(multipath) => {
                let mut placed = multipath.clone();
                placed.dst = self.placed_part(&multipath.dst)?;
                Action::Multipath(placed)
            }
            Action::Bundle(bundle) => {
                let mut placed = bundle.clone();
                placed.dst = match &bundle.dst {
                    Some(dst) => Some(self.placed_part(dst)?),
                    None => None,
                };
                Action::Bundle(placed)
            }
            Action::Learn(learn) => {
                let mut placed = learn.clone();
                placed.result = match &learn.result {
                    Some(result) => Some(self.placed_part(result)?),
                    None => None,
                };
                let specs = learn.specs.iter().map(|spec| self.placed_spec(spec));
                placed.specs = specs.collect::<Option<_>>()?;
                Action::Learn(placed)
            }
            other => other.clone(),
        }])
    }

    /// The rule that is learned is made by control, so what it loads keeps its name.
    fn placed_spec(&self, spec: &LearnSpec) -> Option<LearnSpec> {
        let mut placed = spec.clone();
        if let LearnSource::Field(source) = &spec.source {
            placed.source = LearnSource::Field(self.placed_part(source)?);
        }
        if let LearnTarget::Match(to) = &spec.target {
            placed.target = LearnTarget::Match(self.placed_part(to)?);
        }
        Some(placed)
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
                let widen = |bytes: &Value| {
                    let mut wide = Value::zero(LONGEST);
                    wide[LONGEST - bytes.len()..].copy_from_slice(bytes);
                    wide
                };
                Ok(Action::SetField {
                    field: *field,
                    value: widen(&value),
                    mask: widen(&mask),
                })
            }
            other => Ok(other.clone()),
        }
    }
}

/// Returns moves of at most [`STEP`] bits each that do the same as one: from the end first where
/// the destination is above the source, so that no bit is read after it was written.
fn moves(src: &Subfield, dst: &Subfield) -> Vec<Action> {
    let part = |of: &Subfield, from: u16| Subfield {
        start: of.start + from,
        bits: STEP.min(of.bits - from),
        ..*of
    };
    let steps = (0..src.bits).step_by(STEP.into());
    let mut moves: Vec<Action> = steps
        .map(|from| Action::Move {
            src: part(src, from),
            dst: part(dst, from),
        })
        .collect();
    if dst.start > src.start {
        moves.reverse();
    }
    moves
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

/// Returns whether actions name a field.
fn in_list(actions: &[Action], field: Field) -> bool {
    actions.iter().any(|action| match action {
        Action::Clone(inner) => in_list(inner, field),
        Action::SetField { field: set, .. } | Action::DeleteField(set) => *set == field,
        other => parts(other).iter().any(|part| part.field == field),
    })
}

/// Returns whether instructions name a field.
pub(crate) fn names(instructions: &[Instruction], field: Field) -> bool {
    instructions.iter().any(|instruction| match instruction {
        Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
            in_list(actions, field)
        }
        _ => false,
    })
}
