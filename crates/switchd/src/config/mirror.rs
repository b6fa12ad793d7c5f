//! Mirrors: which packets are copied, and where to.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::{Uuid, vswitch};

use super::problem::Problems;
use super::vlan::VlanSet;

/// Where copies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To a port of the bridge, named by its interface; it carries nothing else then.
    Port(String),
    /// To a VLAN of the bridge.
    Vlan(u16),
}

/// A mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The UUID of its row.
    pub uuid: Uuid,
    /// A name for people.
    pub name: String,
    /// Whether all ports are mirrored, in both directions.
    pub all: bool,
    /// Interfaces whose received packets are copied.
    pub sources: BTreeSet<String>,
    /// Interfaces whose sent packets are copied.
    pub destinations: BTreeSet<String>,
    /// VLANs to which the mirror is restricted; none means all.
    pub vlans: Option<VlanSet>,
    /// Where copies go.
    pub output: Output,
    /// Bytes copied of each packet; 0 means all.
    pub length: u16,
}

/// Reads a bridge's mirrors. `ports` maps its ports' names to their interfaces' names.
pub fn read(
    rows: &[vswitch::Mirror],
    bridge: &str,
    ports: &BTreeMap<String, String>,
    problems: &mut Problems,
) -> Vec<Mirror> {
    rows.iter()
        .filter_map(|row| mirror(row, bridge, ports, problems))
        .collect()
}

fn mirror(
    row: &vswitch::Mirror,
    bridge: &str,
    ports: &BTreeMap<String, String>,
    problems: &mut Problems,
) -> Option<Mirror> {
    let output = output(row, bridge, ports, problems)?;
    let mut select = |column: &str, names: &[String]| {
        let mut interfaces = BTreeSet::new();
        for name in names {
            match ports.get(name) {
                Some(interface) => {
                    interfaces.insert(interface.clone());
                }
                None => {
                    let message =
                        format!("bridge {bridge}: cannot match on nonexistent port {name}");
                    problems.add("Mirror", &row.name, column, message);
                }
            }
        }
        interfaces
    };
    let (sources, destinations) = match row.select_all {
        true => (BTreeSet::new(), BTreeSet::new()),
        false => (
            select("select_src_port", &row.select_src_port),
            select("select_dst_port", &row.select_dst_port),
        ),
    };
    Some(Mirror {
        uuid: row.uuid,
        name: row.name.clone(),
        all: row.select_all,
        sources,
        destinations,
        vlans: (!row.select_vlan.is_empty()).then(|| VlanSet::from_column(&row.select_vlan)),
        output,
        length: row
            .snaplen
            .map_or(0, |length| length.clamp(14, 65535) as u16),
    })
}

fn output(
    row: &vswitch::Mirror,
    bridge: &str,
    ports: &BTreeMap<String, String>,
    problems: &mut Problems,
) -> Option<Output> {
    match (&row.output_port, row.output_vlan) {
        (Some(port), vlan) => {
            if vlan.is_some() {
                let message = format!(
                    "bridge {bridge}: both output port and output vlan; ignoring output vlan"
                );
                problems.add("Mirror", &row.name, "output_vlan", message);
            }
            if let Some(interface) = ports.get(port) {
                return Some(Output::Port(interface.clone()));
            }
            let message = format!(
                "bridge {bridge}: outputs to port {port}, which is not on the bridge; ignoring the mirror"
            );
            problems.add("Mirror", &row.name, "output_port", message);
        }
        (None, Some(vlan)) => return Some(Output::Vlan(vlan.clamp(1, 4095) as u16)),
        (None, None) => {
            let message = format!("bridge {bridge}: does not specify output; ignoring the mirror");
            problems.add("Mirror", &row.name, "output_port", message);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(row: vswitch::Mirror) -> (Option<Mirror>, usize) {
        let ports = BTreeMap::from([
            ("p".to_owned(), "i".to_owned()),
            ("q".to_owned(), "q".to_owned()),
        ]);
        let mut problems = Problems::default();
        (
            read(&[row], "br0", &ports, &mut problems).pop(),
            problems.0.len(),
        )
    }

    #[test]
    fn ports_are_named_by_their_interface() {
        let row = vswitch::Mirror {
            select_src_port: vec!["p".into(), "gone".into()],
            output_port: Some("q".into()),
            output_vlan: Some(3),
            select_vlan: vec![5],
            ..Default::default()
        };
        let (mirror, problems) = read_one(row);
        let mirror = mirror.unwrap();
        assert_eq!(mirror.sources, BTreeSet::from(["i".to_owned()]));
        assert_eq!((mirror.output, problems), (Output::Port("q".into()), 2));
        assert_eq!(mirror.vlans, Some(VlanSet::from_iter([5])));
    }

    #[test]
    fn a_mirror_without_an_output_is_a_problem() {
        assert_eq!(read_one(vswitch::Mirror::default()), (None, 1));
        assert_eq!(
            read_one(vswitch::Mirror {
                output_port: Some("gone".into()),
                ..Default::default()
            }),
            (None, 1)
        );
        let (mirror, problems) = read_one(vswitch::Mirror {
            output_vlan: Some(9),
            select_all: true,
            ..Default::default()
        });
        assert_eq!(
            (mirror.map(|m| m.output), problems),
            (Some(Output::Vlan(9)), 0)
        );
    }
}
