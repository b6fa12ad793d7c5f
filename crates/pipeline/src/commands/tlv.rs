//! Changes of the map of tunnel options (`NXT_TLV_TABLE_MOD`).

use crate::Pipeline;
use crate::state::options::names;
use openflow::error::Error;
use openflow::tlv::{TlvCommand, TlvMapping, TlvTable, TlvTableMod};
use packet::options::{OPTIONS, Place, SPACE, capacity};
use packet::{Field, Match};

impl Pipeline {
    /// Changes the map of tunnel options, or refuses it with an `NXTTMFC_*` error and changes
    /// nothing.
    ///
    /// Options that do not fit side by side in the key give [`Error::TlvTableFull`]: see
    /// [`packet::options`].
    pub fn tlv_table_mod(&mut self, change: &TlvTableMod) -> Result<(), Error> {
        let mut options = self.options.clone();
        match change.command {
            TlvCommand::Add => {
                for mapping in &change.mappings {
                    options.add(mapping)?;
                }
            }
            TlvCommand::Delete => {
                let goes = |old: &TlvMapping| {
                    let mut mappings = change.mappings.iter();
                    mappings.any(|mapping| mapping.field == old.field)
                };
                self.unused(options.mappings.iter().filter(|old| goes(old)))?;
                options.mappings.retain(|old| !goes(old));
            }
            TlvCommand::Clear => {
                self.unused(options.mappings.iter())?;
                options.mappings.clear();
            }
        }
        self.options = options;
        Ok(())
    }

    /// Checks that no rule names any of these fields.
    fn unused<'m>(&self, mappings: impl Iterator<Item = &'m TlvMapping>) -> Result<(), Error> {
        let options: Vec<usize> = mappings.map(|mapping| mapping.field.into()).collect();
        if options.is_empty() {
            return Ok(());
        }
        let mut rules = self
            .store
            .tables()
            .flat_map(|table| self.store.table(table));
        let used = rules.any(|(_, rule)| {
            options.iter().any(|option| {
                rule.matching().options() >> option & 1 == 1
                    || names(
                        &rule.behaviour.instructions,
                        Field::of_tunnel_option(*option),
                    )
            })
        });
        if used { Err(Error::TlvInUse) } else { Ok(()) }
    }

    /// Returns the map of tunnel options.
    pub fn tlv_table(&self) -> TlvTable {
        TlvTable {
            max_space: SPACE as u32,
            max_fields: OPTIONS as u16,
            mappings: self.options.mappings.clone(),
        }
    }

    /// Adds to a match, exactly, the options that a packet with this key has.
    pub fn name_options(&self, key: &packet::FlowKey, matching: &mut Match) {
        let present = key.u64(packet::key::at::TUN_METADATA_PRESENT);
        for mapping in &self.options.mappings {
            let (option, length) = (usize::from(mapping.field), usize::from(mapping.length));
            if present >> option & 1 == 1
                && length <= capacity(option)
                && let Some(place) = Place::new(option, length)
            {
                let bytes = &key.bytes()[place.start..place.end];
                matching.set_option(option, bytes, None);
            }
        }
    }
}
