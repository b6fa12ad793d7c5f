//! Changes of the map of tunnel options (`NXT_TLV_TABLE_MOD`).

use crate::Pipeline;
use crate::state::options::names;
use openflow::error::Error;
use openflow::tlv::{TlvCommand, TlvMapping, TlvTable, TlvTableMod};
use packet::options::{OPTIONS, SPACE};
use packet::tunnel::Mapping;
use packet::{Field, Match};

impl Pipeline {
    /// Changes the map of tunnel options, for workers with the next commit, or refuses it with an
    /// `NXTTMFC_*` error and changes nothing.
    ///
    /// Options that find no gap between the places of others give [`Error::TlvTableFull`]: see
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
                self.unused(options.mappings().filter(|old| goes(old)))?;
                options.entries.retain(|old| !goes(&old.mapping));
            }
            TlvCommand::Clear => {
                self.unused(options.mappings())?;
                options.entries.clear();
            }
        }
        self.options = options;
        self.place_options_of_groups();
        Ok(())
    }

    /// Checks that no rule names any of these fields. As in Open vSwitch, groups may: their actions
    /// then do nothing.
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
            mappings: self.options.mappings().copied().collect(),
        }
    }

    /// Returns the map for workers: where each option is in the key.
    pub fn option_places(&self) -> Vec<Mapping> {
        let entries = self.options.entries.iter();
        entries
            .filter_map(|entry| {
                Some(Mapping {
                    class: entry.mapping.class,
                    kind: entry.mapping.kind,
                    field: u8::try_from(entry.mapping.field).ok()?,
                    place: entry.place,
                })
            })
            .collect()
    }

    /// Adds to a match, exactly, the options that a packet with this key has.
    pub fn name_options(&self, key: &packet::FlowKey, matching: &mut Match) {
        let present = key.u64(packet::key::at::TUN_METADATA_PRESENT);
        for entry in &self.options.entries {
            let option = usize::from(entry.mapping.field);
            if present >> option & 1 == 1 {
                let bytes = &key.bytes()[entry.place.start..entry.place.end];
                matching.set_option(option, bytes, None);
            }
        }
    }

    /// Returns a match of bytes of the key with the options that these are.
    pub fn with_names(&self, matching: &Match) -> Match {
        self.options.named(matching)
    }

    /// Returns a match that names options with the bytes of the key that these are. Refused as by
    /// [`Pipeline::resolve_request`].
    pub fn with_places<'m>(
        &self,
        matching: &'m Match,
    ) -> Result<std::borrow::Cow<'m, Match>, Error> {
        self.options.matching(matching)
    }
}
