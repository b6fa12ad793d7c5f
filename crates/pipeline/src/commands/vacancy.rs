//! Vacancy events: how full tables are.
//!
//! A table with thresholds (OpenFlow 1.4 section 7.3.4.4) sends an event when its free share falls
//! below the lower threshold, the next one when it rises above the upper one, and so on.

use crate::Pipeline;
use crate::state::criteria::INTERNAL;
use openflow::stats::{TableReason, Vacancy};

/// The thresholds of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    down: u8,
    up: u8,
    /// The next event to send.
    next: TableReason,
}

impl Pipeline {
    /// Sets or removes a table's thresholds. `current` is ignored. A table that had thresholds
    /// already keeps the kind of its next event.
    pub fn set_vacancy(&mut self, table: u8, thresholds: Option<Vacancy>) {
        let left = self.vacancy(table);
        let Some(place) = self.vacancies.get_mut(usize::from(table)) else {
            return;
        };
        *place = thresholds.map(|wanted| Thresholds {
            down: wanted.down,
            up: wanted.up,
            next: match place {
                Some(before) => before.next,
                None if left < wanted.up => TableReason::VacancyUp,
                None => TableReason::VacancyDown,
            },
        });
        self.has_thresholds = self.vacancies.iter().any(Option::is_some);
    }

    /// Returns a table's thresholds and its free share; None when it has none.
    pub fn vacancy_thresholds(&self, table: u8) -> Option<Vacancy> {
        let thresholds = (*self.vacancies.get(usize::from(table))?)?;
        Some(Vacancy {
            down: thresholds.down,
            up: thresholds.up,
            current: self.vacancy(table),
        })
    }

    /// Returns a table's free share in percent.
    fn vacancy(&self, table: u8) -> u8 {
        let limit = self
            .limits
            .get(usize::from(table))
            .copied()
            .unwrap_or(u32::MAX);
        let used = self.store.table_len(table).0;
        if limit == 0 {
            return 0;
        }
        let left = u64::from(limit.saturating_sub(used));
        (left * 100 / u64::from(limit)) as u8
    }

    /// Returns the tables that have crossed a threshold since the last call, and which one; nothing
    /// while a batch is open. Call it after rules have changed.
    pub fn take_vacancy_events(&mut self) -> Vec<(u8, TableReason)> {
        if !self.has_thresholds || self.undo.is_some() {
            return Vec::new();
        }
        let mut events = Vec::new();
        for table in 0..INTERNAL {
            let Some(thresholds) = self.vacancies[usize::from(table)] else {
                continue;
            };
            let left = self.vacancy(table);
            let crossed = match thresholds.next {
                TableReason::VacancyDown => left < thresholds.down,
                TableReason::VacancyUp => left > thresholds.up,
            };
            if crossed {
                events.push((table, thresholds.next));
                self.vacancies[usize::from(table)] = Some(Thresholds {
                    next: match thresholds.next {
                        TableReason::VacancyDown => TableReason::VacancyUp,
                        TableReason::VacancyUp => TableReason::VacancyDown,
                    },
                    ..thresholds
                });
            }
        }
        events
    }
}
