//! `memory/show`: counts of what takes memory, with names (`rules:120 ports:4`). Each owner of
//! something that grows registers a closure that reports it; amounts under the same name are added
//! up, so each bridge can report its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Returns the machine's memory, in bytes.
pub fn of_machine() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram * u64::from(system.mem_unit)
}

/// The numbers of one report.
#[derive(Debug, Default)]
pub struct Usage {
    numbers: BTreeMap<String, u64>,
}

impl Usage {
    /// Adds `amount` under `name`. Zero is not shown.
    pub fn add(&mut self, name: &str, amount: u64) {
        if amount > 0 {
            *self.numbers.entry(name.to_string()).or_default() += amount;
        }
    }
}

type Provider = Box<dyn Fn(&mut Usage)>;

/// The registered reporters. Clones share one list.
#[derive(Clone, Default)]
pub struct Memory {
    providers: Rc<RefCell<Vec<Provider>>>,
}

impl Memory {
    /// Adds a reporter for the life of the daemon.
    pub fn register(&self, provider: impl Fn(&mut Usage) + 'static) {
        self.providers.borrow_mut().push(Box::new(provider));
    }

    /// Returns the text of `memory/show`.
    pub fn show(&self) -> String {
        let mut usage = Usage::default();
        for provider in self.providers.borrow().iter() {
            provider(&mut usage);
        }
        let parts: Vec<String> = usage
            .numbers
            .iter()
            .map(|(name, amount)| format!("{name}:{amount}"))
            .collect();
        parts.join(" ")
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.show())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up() {
        let memory = Memory::default();
        assert_eq!(memory.show(), "");
        memory.register(|usage| usage.add("rules", 2));
        memory.clone().register(|usage| {
            usage.add("rules", 3);
            usage.add("ports", 1);
            usage.add("none", 0);
        });
        assert_eq!(memory.show(), "ports:1 rules:5");
    }
}
