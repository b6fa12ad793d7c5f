//! A bridge's flow tables as controllers and the database configure them: names, limits, eviction,
//! vacancy events, and how to handle packets that match no rule.
//!
//! Either may enable eviction. A name from the database takes precedence over one from a
//! controller.

use super::bridge::Bridge;
use crate::openflow::{FlowDump, WatchedRules};
use openflow::action::Subfield;
use openflow::flow::FlowStats;
use openflow::stats::{
    Aggregate, EVICTION, TableConfig, TableFeatures, TableStatus, VACANCY_EVENTS, Vacancy,
};
use openflow::{Error, Version};
use packet::fields::FIELDS;
use pipeline::SeenRule;
use std::collections::BTreeSet;

/// Number of tables that OpenFlow sees: 0 to 253.
pub(super) const TABLES: u8 = 254;
/// Bits of OpenFlow 1.1 and 1.2 that say how to handle packets that match no rule.
const MISS_BITS: u32 = 3;
/// Criteria for eviction, which are fixed: other (the groups), importance, lifetime.
const EVICTION_FLAGS: u32 = 7;

/// A dump of a bridge's rules.
pub(super) struct BridgeDump<'a> {
    pub(super) bridge: &'a Bridge,
    pub(super) dump: pipeline::Dump,
}

impl FlowDump for BridgeDump<'_> {
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(&FlowStats)) -> bool {
        let now = self.bridge.switch().now();
        let mut pipeline = self.bridge.pipeline.borrow_mut();
        pipeline.continue_dump(&mut self.dump, now, budget, |stats| take(&stats))
    }

    fn sum(&mut self, budget: usize, sums: &mut Aggregate) -> bool {
        let mut pipeline = self.bridge.pipeline.borrow_mut();
        pipeline.continue_aggregate(&mut self.dump, budget, sums)
    }
}

impl WatchedRules for BridgeDump<'_> {
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(SeenRule)) -> bool {
        let mut pipeline = self.bridge.pipeline.borrow_mut();
        pipeline.continue_watch(&mut self.dump, budget, take)
    }
}

impl Bridge {
    /// Applies the database's settings of the tables.
    pub(super) fn apply_table_settings(&self) {
        self.when_idle(Bridge::apply_table_settings_now);
    }

    fn apply_table_settings_now(&self) {
        for table in 0..TABLES {
            let limit = self
                .settings
                .borrow()
                .tables
                .get(&table)
                .and_then(|settings| settings.flow_limit);
            self.pipeline
                .borrow_mut()
                .set_table_limit(table, limit.unwrap_or(u32::MAX));
            self.apply_eviction(table);
        }
        // A lower limit may have evicted rules.
        self.publish();
    }

    /// Enables or disables eviction, as the database and the controllers want it.
    fn apply_eviction(&self, table: u8) {
        let fields = {
            let settings = self.settings.borrow();
            let configured = settings.tables.get(&table).filter(|table| table.evict);
            let asked = self.table_configs.borrow().get(&table).copied();
            let wanted = configured.is_some() || asked.unwrap_or(0) & EVICTION != 0;
            let groups = configured.map_or(&[][..], |table| &table.groups);
            wanted.then(|| eviction_fields(&self.name, groups))
        };
        let now = self.switch().now();
        let removed = self
            .pipeline
            .borrow_mut()
            .set_eviction(table, fields.as_deref(), now);
        self.tell_removed(removed);
    }

    /// Carries out a table mod. In 1.1 and 1.2 it says how to handle packets that match no rule, in
    /// 1.3 nothing, from 1.4 on whether rules are evicted from a full table and whether controllers
    /// get vacancy events.
    pub(super) fn configure_table(
        &self,
        change: &TableConfig,
        version: Version,
    ) -> Result<(), Error> {
        let tables = match change.table {
            u8::MAX => 0..TABLES,
            table if table < TABLES => table..table + 1,
            _ => return Err(Error::TableModPermission),
        };
        let known = match version {
            Version::V1_0 | Version::V1_3 => 0,
            Version::V1_1 | Version::V1_2 if change.config & MISS_BITS == MISS_BITS => {
                return Err(Error::TableModBadConfig);
            }
            Version::V1_1 | Version::V1_2 => MISS_BITS,
            Version::V1_4 | Version::V1_5 => EVICTION | VACANCY_EVENTS,
        };
        let vacancy = change.vacancy.unwrap_or_default();
        if vacancy.down > vacancy.up || vacancy.up > 100 {
            return Err(Error::BadPropertyValue);
        }
        for table in tables {
            {
                let mut configs = self.table_configs.borrow_mut();
                let config = configs.entry(table).or_default();
                *config = *config & !known | change.config & known;
            }
            if known & EVICTION != 0 {
                self.apply_eviction(table);
                let wanted = change.config & VACANCY_EVENTS != 0;
                self.pipeline
                    .borrow_mut()
                    .set_vacancy(table, wanted.then_some(vacancy));
            }
        }
        self.choose_miss();
        Ok(())
    }

    /// Returns a table's configuration in the form of 1.4.
    pub(super) fn table_config(&self, table: u8) -> TableConfig {
        let asked = self.table_configs.borrow().get(&table).copied();
        let vacancy: Option<Vacancy> = self.pipeline.borrow().vacancy_thresholds(table);
        TableConfig {
            table,
            config: asked.unwrap_or(0) & (EVICTION | VACANCY_EVENTS),
            eviction: Some(EVICTION_FLAGS),
            vacancy,
        }
    }

    /// Returns how packets that match no rule are handled, as bits of 1.1 and 1.2.
    pub(super) fn miss_config(&self, table: u8) -> u32 {
        let asked = self.table_configs.borrow().get(&table).copied();
        asked.unwrap_or(0) & MISS_BITS
    }

    /// Returns a table's name, if it has one.
    pub(super) fn table_name(&self, table: u8) -> Option<String> {
        let configured = self
            .settings
            .borrow()
            .tables
            .get(&table)
            .and_then(|table| table.name.clone());
        configured.or_else(|| self.table_names.borrow().get(&table).cloned())
    }

    /// Returns the tables' features.
    pub(super) fn describe_tables(&self) -> Vec<TableFeatures> {
        let mut tables = self.pipeline.borrow().table_features();
        for table in &mut tables {
            table.name = self.table_name(table.table).unwrap_or_default();
        }
        tables
    }

    /// Changes tables' features: their names. A request to change anything else, or to remove
    /// tables, is refused.
    pub(super) fn rename_tables(&self, wanted: &[TableFeatures]) -> Result<(), Error> {
        /// `OFPTFC_MODIFY`.
        const MODIFY: u8 = 1;
        let now = self.pipeline.borrow().table_features();
        let mut named = BTreeSet::new();
        for table in wanted {
            let current = match table.table {
                u8::MAX => return Err(Error::TableFeaturesBadTable),
                number => now.get(usize::from(number)),
            };
            let current = current.ok_or(Error::TableFeaturesPermission)?;
            let same = table.max_entries == current.max_entries && table.config == current.config;
            if table.command > MODIFY || !same {
                return Err(Error::TableFeaturesPermission);
            }
            if !named.insert(table.table) {
                return Err(Error::TableFeaturesDuplicate);
            }
        }
        let replaces = wanted.iter().any(|table| table.command != MODIFY);
        if replaces && named.len() < usize::from(TABLES) {
            return Err(Error::TableFeaturesPermission);
        }
        let mut names = self.table_names.borrow_mut();
        for table in wanted {
            if table.name.is_empty() {
                names.remove(&table.table);
            } else {
                names.insert(table.table, table.name.clone());
            }
        }
        Ok(())
    }

    /// Returns the tables that have crossed a vacancy threshold.
    pub(super) fn changed_vacancies(&self) -> Vec<TableStatus> {
        let events = self.pipeline.borrow_mut().take_vacancy_events();
        let status = |(table, reason)| TableStatus {
            reason,
            table: self.table_config(table),
        };
        events.into_iter().map(status).collect()
    }
}

/// Parses the fields of `Flow_Table.groups`. Bad ones are left out and logged.
fn eviction_fields(bridge: &str, groups: &[String]) -> Vec<Subfield> {
    let parse = |text: &String| {
        let part = subfield(text);
        if part.is_none() {
            tracing::warn!(target: "bridge", "bridge {bridge}: \"{text}\" is no field to group rules by for eviction");
        }
        part
    };
    groups.iter().filter_map(parse).collect()
}

/// Parses a field or a part of one in Nicira's notation: `NXM_OF_IN_PORT[]`,
/// `NXM_OF_VLAN_TCI[0..11]`, `NXM_NX_REG0[3]`.
fn subfield(text: &str) -> Option<Subfield> {
    let (name, part) = match text.trim().split_once('[') {
        Some((name, part)) => (name, part.strip_suffix(']')?),
        None => (text.trim(), ""),
    };
    let def = FIELDS.iter().find(|def| {
        name == def.name
            || !def.alias.is_empty() && name == def.alias
            || !name.is_empty() && name == openflow::format::nxm_name(def.field)
    })?;
    let (start, end) = match part.split_once("..") {
        _ if part.is_empty() => (0, def.bits.checked_sub(1)?),
        Some((start, end)) => (start.parse().ok()?, end.parse().ok()?),
        None => (part.parse().ok()?, part.parse().ok()?),
    };
    (start <= end && end < def.bits).then(|| Subfield {
        field: def.field,
        start: start as u16,
        bits: (end - start + 1) as u16,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Field;

    #[test]
    fn fields_by_their_names() {
        let part = |field, start, bits| Some(Subfield { field, start, bits });
        assert_eq!(subfield("NXM_OF_IN_PORT[]"), part(Field::InPort, 0, 32));
        assert_eq!(
            subfield("NXM_OF_VLAN_TCI[0..11]"),
            part(Field::VlanTci, 0, 12)
        );
        assert_eq!(subfield("reg3[5]"), part(Field::Reg3, 5, 1));
        for wrong in [
            "",
            "[]",
            "NXM_OF_NOTHING[]",
            "reg0[32]",
            "reg0[5..3]",
            "reg0[",
            "reg0[a]",
        ] {
            assert_eq!(subfield(wrong), None, "{wrong}");
        }
    }
}
