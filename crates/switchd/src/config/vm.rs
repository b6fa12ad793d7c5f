//! Virtual machines behind interfaces: `vm-id`, `vm-core`, `tenant-id` and `priority` of
//! `external_ids`.

use super::problem::{Options, Problems};
use openflow::steering::{NO_CORE, VM_ID_MAX};
use ovsdb::vswitch;

/// What the database says about a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vm {
    /// `vm-id`: its number, unique on this host.
    pub id: u16,
    /// `vm-core`: the core that it runs on; none where its process is to be asked.
    pub core: Option<u32>,
    /// `tenant-id`: whose it is; 0 where nobody says.
    pub tenant: u32,
    /// `priority`: whether its traffic has priority.
    pub priority: bool,
}

impl Vm {
    /// Reads the keys; none without a `vm-id` that can be one.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let said = problems.new_since(&Problems::default());
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
    fn what_cannot_be_is_said_with_its_key() {
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
