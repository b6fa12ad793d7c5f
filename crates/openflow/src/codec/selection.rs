//! Properties of groups: decoding and encoding of Netronome's selection method.
//!
//! `fields` are NXM or OXM headers without mask bit, each followed by the mask of the bits to hash.

use crate::codec::oxm;
use crate::codec::wire::{Put, Reader};
use crate::model::error::{Error, NICIRA, ONF};
use crate::model::group::{GroupCommand, GroupKind, Selection, SelectionMethod};

/// `OFPGPT_EXPERIMENTER`, `OFPGBPT_EXPERIMENTER`.
pub(crate) const EXPERIMENTER: u16 = 0xffff;
/// Netronome's ids: the registered one, and the one that older Open vSwitch sent.
const NETRONOME: [u32; 2] = [0x0000_154d, 0x0000_1540];
/// `NTRT_SELECTION_METHOD`.
const SELECTION_METHOD: u32 = 1;
/// Length of a method's name, including its terminating zero.
const NAME: usize = 16;

/// Returns the error for an unknown experimenter's property.
pub(crate) fn unknown_experimenter(content: &mut Reader<'_>) -> Result<Error, Error> {
    let experimenter = content.u32()?;
    let known = NETRONOME.contains(&experimenter) || [NICIRA, ONF].contains(&experimenter);
    Ok(if known {
        Error::BadPropertyExperimenterType
    } else {
        Error::BadPropertyExperimenter
    })
}

/// Decodes the properties that fill `r`. Only a message that adds or replaces a select group may
/// have a selection method.
pub(crate) fn take_properties(
    r: &mut Reader<'_>,
    command: GroupCommand,
    kind: GroupKind,
) -> Result<Option<Selection>, Error> {
    let mut selection = None;
    while !r.is_empty() {
        let (property, content) = r.property(Error::BadPropertyLength)?;
        if property != EXPERIMENTER {
            return Err(Error::BadPropertyType);
        }
        let mut content = Reader::new(content.bytes(), Error::BadPropertyLength);
        let mut head = content;
        let (experimenter, what) = (head.u32()?, head.u32()?);
        if !NETRONOME.contains(&experimenter) || what != SELECTION_METHOD {
            return Err(unknown_experimenter(&mut content)?);
        }
        let makes = matches!(
            command,
            GroupCommand::Add | GroupCommand::Modify | GroupCommand::AddOrModify
        );
        if kind != GroupKind::Select || !makes {
            return Err(Error::BadPropertyValue);
        }
        selection = Some(take_selection(&mut head)?);
    }
    Ok(selection)
}

fn take_selection(r: &mut Reader<'_>) -> Result<Selection, Error> {
    r.skip(4)?;
    let name = r.take(NAME)?;
    let end = name
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(Error::BadPropertyValue)?;
    let method = [SelectionMethod::Hash, SelectionMethod::DpHash]
        .into_iter()
        .find(|method| method.name().as_bytes() == &name[..end])
        .ok_or(Error::BadPropertyValue)?;
    let parameter = r.u64()?;
    if method != SelectionMethod::Hash && !r.is_empty() {
        return Err(Error::BadPropertyValue);
    }
    let mut fields = Vec::new();
    while !r.is_empty() {
        let entry = oxm::take_masked_field(r)?;
        if fields.iter().any(|(field, _)| *field == entry.0) {
            return Err(Error::DuplicateField);
        }
        fields.push(entry);
    }
    Ok(Selection {
        method,
        parameter,
        fields,
    })
}

/// Encodes a group's selection method.
pub(crate) fn put_selection(out: &mut Vec<u8>, selection: &Selection, version: u8) {
    let start = out.len();
    out.put_u16(EXPERIMENTER);
    out.pad(2);
    out.put_u32(NETRONOME[0]);
    out.put_u32(SELECTION_METHOD);
    out.pad(4);
    out.put_text(selection.method.name(), NAME);
    out.put_u64(selection.parameter);
    for (field, mask) in &selection.fields {
        oxm::put_entry(out, field.def(), mask, None, version);
    }
    out.set_length(start + 2, start);
    out.align(start);
}
