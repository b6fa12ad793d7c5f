//! Virtual machines behind interfaces: `vm-id`, `vm-core`, `tenant-id` and `priority` of
//! `external_ids`.

use super::port::Port;
use super::problem::{Options, Problems};
use openflow::steering::{NO_CORE, VM_ID_MAX};
use ovsdb::vswitch;
use std::collections::BTreeMap;

/// What the database says about a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vm {
    /// `vm-id`: its number, unique on this host.
    pub id: u16,
    /// `vm-core`: the core that it runs on; none means that its process is asked.
    pub core: Option<u32>,
    /// `tenant-id`: its tenant; 0 if unknown.
    pub tenant: u32,
    /// `priority`: whether its traffic has priority.
    pub priority: bool,
}

impl Vm {
    /// Reads the keys; none without a valid `vm-id`.
    pub fn read(row: &vswitch::Interface, problems: &mut Problems) -> Option<Vm> {
        let (table, column) = ("Interface", "external_ids");
        let mut options = Options::new(table, &row.name, column, &row.external_ids, problems);
        let id = options.optional_integer("vm-id", 1..=i64::from(VM_ID_MAX))?;
        let core = options.optional_integer("vm-core", 0..=i64::from(NO_CORE - 1));
        let tenant = options.optional_integer("tenant-id", 0..=i64::from(u32::MAX));
        Some(Vm {
            id: id as u16,
            core: core.map(|core| core as u32),
            tenant: tenant.unwrap_or(0) as u32,
            priority: options.boolean("priority", false),
        })
    }
}

/// Removes cores that the machine does not have. `cpus` are those that it has; if it is empty every
/// core is accepted.
pub fn check_cores<'p>(
    ports: impl Iterator<Item = &'p mut Port>,
    cpus: &[usize],
    problems: &mut Problems,
) {
    for port in ports {
        let (Some(vm), name) = (&mut port.vm, &port.interface_name) else {
            continue;
        };
        let missing = |core: &u32| !cpus.is_empty() && !cpus.contains(&(*core as usize));
        if let Some(core) = vm.core.filter(missing) {
            let message = format!("there is no core {core}, ignoring it");
            problems.add("Interface", name, "external_ids:vm-core", message);
            vm.core = None;
        }
    }
}

/// Keeps one of several virtual machines with the same number: that of the port that has had it
/// (`true` in its pair), or else the first one. Returns whether there were several.
pub fn settle(ports: Vec<(bool, &mut Port)>, problems: &mut Problems) -> bool {
    let (had, new): (Vec<_>, Vec<_>) = ports.into_iter().partition(|(had, _)| *had);
    let mut owners: BTreeMap<u16, String> = BTreeMap::new();
    let mut alike = false;
    for (_, port) in had.into_iter().chain(new) {
        let (Some(vm), name) = (&mut port.vm, &port.interface_name) else {
            continue;
        };
        if let Some(owner) = owners.get(&vm.id) {
            let message = format!("{} is the virtual machine of {owner}, ignoring it", vm.id);
            problems.add("Interface", name, "external_ids:vm-id", message);
            port.vm = None;
            alike = true;
        } else {
            owners.insert(vm.id, name.clone());
        }
    }
    alike
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_cores_are_there() {
        let port = |name: &str, id, core| Port {
            interface_name: name.to_owned(),
            vm: Some(Vm {
                id,
                core,
                tenant: 0,
                priority: false,
            }),
            ..Port::default()
        };
        let mut ports = [
            port("a", 5, Some(0)),
            port("b", 5, None),
            port("c", 6, Some(9)),
        ];
        let mut problems = Problems::default();
        check_cores(ports.iter_mut(), &[0, 1], &mut problems);
        let new = ports.iter_mut().map(|port| (false, port)).collect();
        assert!(settle(new, &mut problems));
        let kept: Vec<_> = (ports.iter())
            .map(|port| port.vm.map(|vm| (vm.id, vm.core)))
            .collect();
        assert_eq!(kept, [Some((5, Some(0))), None, Some((6, None))]);
        let before = Problems::default();
        let said: Vec<String> = problems
            .new_since(&before)
            .map(ToString::to_string)
            .collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said.iter()
                .any(|said| said.contains("5 is the virtual machine of a"))
        );
        assert!(said.iter().any(|said| said.contains("there is no core 9")));
        check_cores(ports.iter_mut(), &[], &mut Problems::default());
        assert_eq!(ports[0].vm.and_then(|vm| vm.core), Some(0));
        // Who has had a number keeps it, even if others come first.
        ports[1] = port("b", 5, None);
        let pairs = ports
            .iter_mut()
            .map(|port| (port.interface_name == "b", port));
        assert!(settle(pairs.collect(), &mut Problems::default()));
        let kept = ports.map(|port| port.vm.map(|vm| vm.id));
        assert_eq!(kept, [None, Some(5), Some(6)]);
    }

    fn read(ids: &[(&str, &str)]) -> (Option<Vm>, Vec<String>) {
        let ids = ids.iter();
        let row = vswitch::Interface {
            name: "p1".to_owned(),
            external_ids: ids
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..vswitch::Interface::default()
        };
        let mut problems = Problems::default();
        let vm = Vm::read(&row, &mut problems);
        let before = Problems::default();
        let said = problems.new_since(&before);
        (vm, said.map(ToString::to_string).collect())
    }

    #[test]
    fn a_vm_has_an_id_and_perhaps_more() {
        assert_eq!(
            read(&[("iface-id", "x"), ("priority", "7")]),
            (None, vec![])
        );
        let plain = Vm {
            id: 5,
            core: None,
            tenant: 0,
            priority: false,
        };
        assert_eq!(read(&[("vm-id", "5")]), (Some(plain), vec![]));
        let all = [
            ("vm-id", "4094"),
            ("vm-core", "3"),
            ("tenant-id", "4294967295"),
            ("priority", "TRUE"),
        ];
        let whole = Vm {
            id: 4094,
            core: Some(3),
            tenant: u32::MAX,
            priority: true,
        };
        assert_eq!(read(&all), (Some(whole), vec![]));
    }

    #[test]
    fn invalid_vm_ids_are_reported_with_key_and_value() {
        for id in ["0", "4095", "-1", "web"] {
            let (vm, said) = read(&[("vm-id", id)]);
            assert_eq!((vm, said.len()), (None, 1), "{id}");
            assert!(
                said[0].contains("vm-id") && said[0].contains(id),
                "{said:?}"
            );
        }
        let strange = [
            ("vm-id", "5"),
            ("vm-core", "x"),
            ("tenant-id", "-1"),
            ("priority", "high"),
        ];
        let (vm, said) = read(&strange);
        assert_eq!(vm.map(|vm| (vm.id, vm.core, vm.tenant)), Some((5, None, 0)));
        assert_eq!(said.len(), 3, "{said:?}");
    }
}
