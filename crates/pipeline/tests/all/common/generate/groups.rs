//! Generated groups.

use super::{GROUPS, Random, TABLES, action};
use openflow::action::Action;
use openflow::group::{
    self, Bucket, GroupCommand, GroupKind, GroupMod, Selection, SelectionMethod,
};
use openflow::port;
use packet::Field;

fn bucket(random: &mut Random, kind: GroupKind, id: u32) -> Bucket {
    let mut actions: Vec<Action> = (0..random.below(4))
        .map(|_| action(random, random.0 as u8 % TABLES as u8, true))
        .collect();
    if random.one_in(6) {
        let table = 1 + random.below(TABLES) as u8;
        actions.push(Action::Resubmit {
            in_port: random.one_in(4).then_some(2),
            table: Some(table),
            with_ct_orig: false,
        });
    }
    if !random.one_in(4) {
        actions.push(crate::common::output(1 + random.below(4) as u32));
    }
    // An action that is not allowed in an action set would make the whole group invalid.
    actions.retain(|action| {
        let name = format!("{action:?}");
        let forbidden = [
            "OutputReg",
            "OutputTrunc",
            "Controller {",
            "Enqueue",
            "PopQueue",
            "Note",
            "Exit",
            "Stack",
            "Clone",
            "Conjunction",
            "Learn",
            "Multipath",
            "Bundle",
            "CheckPkt",
            "Sample",
            "FinTimeout",
            "DeleteField",
            "Meter",
        ];
        !forbidden.iter().any(|prefix| name.starts_with(prefix))
    });
    let watches = kind == GroupKind::FastFailover || kind == GroupKind::Select && random.one_in(3);
    let by_port = watches && random.one_in(2);
    Bucket {
        id,
        weight: match kind {
            GroupKind::Select => random.pick(&[0, 1, 1, 2, 100]),
            _ => 0,
        },
        watch_port: if by_port {
            1 + random.below(6) as u32
        } else {
            port::ANY
        },
        watch_group: if watches && (!by_port || random.one_in(3)) {
            random.below(GROUPS + 1) as u32
        } else {
            group::ANY
        },
        actions,
    }
}

fn selection(random: &mut Random) -> Option<Selection> {
    let (method, fields) = match random.below(4) {
        0 => (SelectionMethod::DpHash, Vec::new()),
        1 => (
            SelectionMethod::Hash,
            vec![
                (Field::EthSrc, Field::EthSrc.def().place()),
                (Field::Reg0, Field::Reg0.def().place()),
            ],
        ),
        2 => (SelectionMethod::Hash, Vec::new()),
        _ => return None,
    };
    let parameter = random.below(3) << 32 | random.below(3);
    Some(Selection {
        method,
        parameter,
        fields,
    })
}

/// Generates a group mod, which may be refused.
pub fn group_change(random: &mut Random) -> GroupMod {
    use GroupCommand::*;
    let command = random.pick(&[
        Add,
        Add,
        Modify,
        AddOrModify,
        AddOrModify,
        Delete,
        InsertBucket,
        RemoveBucket,
    ]);
    let kind = random.pick(&[
        GroupKind::All,
        GroupKind::Select,
        GroupKind::Indirect,
        GroupKind::FastFailover,
    ]);
    let count = match (command, kind) {
        (Delete | RemoveBucket, _) => 0,
        (_, GroupKind::Indirect) => 1,
        _ => random.below(4),
    };
    let first = random.below(5) as u32;
    let command_bucket = match command {
        InsertBucket | RemoveBucket => {
            random.pick(&[group::BUCKET_FIRST, group::BUCKET_LAST, 0, 1, first])
        }
        _ => group::BUCKET_ALL,
    };
    GroupMod {
        command,
        kind,
        group: if command == Delete && random.one_in(10) {
            group::ALL
        } else {
            random.below(GROUPS) as u32
        },
        command_bucket,
        buckets: (0..count)
            .map(|offset| bucket(random, kind, first + offset as u32))
            .collect(),
        selection: (kind == GroupKind::Select && matches!(command, Add | Modify | AddOrModify))
            .then(|| selection(random))
            .flatten(),
    }
}
