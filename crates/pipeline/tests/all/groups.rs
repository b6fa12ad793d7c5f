//! Group mods: their effects, their errors, and what is deleted with a group.

use crate::common::{Switch, add, apply, end_in_slices, fields, output, with};
use openflow::Version;
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::flow::{FlowFlags, FlowRemovedReason};
use openflow::group::{self, Bucket, GroupCommand, GroupKind, GroupMod};
use openflow::port;
use packet::{Field, Match};

fn bucket(id: u32, actions: &[Action]) -> Bucket {
    Bucket {
        id,
        weight: 0,
        watch_port: port::ANY,
        watch_group: group::ANY,
        actions: actions.to_vec(),
    }
}

fn change(command: GroupCommand, group: u32, kind: GroupKind, buckets: Vec<Bucket>) -> GroupMod {
    GroupMod {
        command,
        kind,
        group,
        command_bucket: group::BUCKET_ALL,
        buckets,
        selection: None,
    }
}

fn send(switch: &mut Switch, change: &GroupMod) -> Result<(), Error> {
    let now = switch.clock();
    switch
        .pipeline
        .group_mod(change, Version::V1_5, now)
        .map(|_| ())
}

fn all(switch: &mut Switch, group: u32, actions: &[Action]) -> Result<(), Error> {
    let buckets = vec![bucket(0, actions)];
    send(
        switch,
        &change(GroupCommand::Add, group, GroupKind::All, buckets),
    )
}

fn ids(switch: &Switch, group: u32) -> Vec<u32> {
    let descriptions = switch.pipeline.group_descriptions(group);
    let buckets = descriptions.iter().flat_map(|group| &group.buckets);
    buckets.map(|bucket| bucket.id).collect()
}

#[test]
fn groups_are_added_changed_and_deleted() {
    let mut switch = Switch::new();
    all(&mut switch, 1, &[output(1)]).unwrap();
    assert_eq!(all(&mut switch, 1, &[output(2)]), Err(Error::GroupExists));
    let modify = |group| {
        let buckets = vec![bucket(0, &[output(3)])];
        change(GroupCommand::Modify, group, GroupKind::Indirect, buckets)
    };
    send(&mut switch, &modify(1)).unwrap();
    assert_eq!(send(&mut switch, &modify(2)), Err(Error::UnknownGroup));
    let mut either = modify(2);
    either.command = GroupCommand::AddOrModify;
    send(&mut switch, &either).unwrap();
    send(&mut switch, &either).unwrap();
    assert_eq!(switch.pipeline.group_count(), 2);
    let delete = |group| change(GroupCommand::Delete, group, GroupKind::All, vec![]);
    send(&mut switch, &delete(7)).unwrap();
    send(&mut switch, &delete(1)).unwrap();
    assert_eq!(switch.pipeline.group_descriptions(group::ALL).len(), 1);
    send(&mut switch, &delete(group::ALL)).unwrap();
    assert_eq!(switch.pipeline.group_count(), 0);
}

#[test]
fn invalid_group_mods_are_refused() {
    let mut switch = Switch::new();
    let with_weight = |weight| Bucket {
        weight,
        ..bucket(0, &[output(1)])
    };
    let watching = Bucket {
        watch_port: 1,
        ..bucket(0, &[output(1)])
    };
    use GroupKind::*;
    let cases = [
        (All, vec![with_weight(1)], Error::InvalidGroup),
        (All, vec![watching.clone()], Error::WatchUnsupported),
        (Indirect, vec![watching.clone()], Error::WatchUnsupported),
        (Indirect, vec![], Error::InvalidGroup),
        (
            Indirect,
            vec![bucket(0, &[]), bucket(1, &[])],
            Error::InvalidGroup,
        ),
        (
            FastFailover,
            vec![bucket(0, &[output(1)])],
            Error::InvalidGroup,
        ),
        (All, vec![bucket(3, &[]), bucket(3, &[])], Error::BadBucket),
        (All, vec![bucket(0, &[Action::Exit])], Error::BadActionType),
        (All, vec![bucket(0, &[Action::Group(1)])], Error::GroupLoop),
    ];
    for (kind, buckets, error) in cases {
        let wrong = change(GroupCommand::Add, 1, kind, buckets);
        assert_eq!(send(&mut switch, &wrong), Err(error), "{wrong:?}");
        assert_eq!(switch.pipeline.group_count(), 0);
    }
    let right = [
        (Select, vec![with_weight(5)]),
        (Select, vec![watching.clone()]),
        (FastFailover, vec![watching]),
        (All, vec![]),
    ];
    for (number, (kind, buckets)) in right.into_iter().enumerate() {
        let right = change(GroupCommand::Add, number as u32, kind, buckets);
        assert_eq!(send(&mut switch, &right), Ok(()));
    }
}

/// A group whose description would not fit into a message is refused.
#[test]
fn there_are_as_many_buckets_as_a_description_can_hold() {
    let mut switch = Switch::new();
    let many = |from: u32, count: u32| (from..from + count).map(|id| bucket(id, &[output(1)]));
    let group = change(
        GroupCommand::Add,
        1,
        GroupKind::All,
        many(0, 1500).collect(),
    );
    send(&mut switch, &group).unwrap();
    let mut more = change(
        GroupCommand::InsertBucket,
        1,
        GroupKind::All,
        many(1500, 1500).collect(),
    );
    more.command_bucket = group::BUCKET_LAST;
    assert_eq!(send(&mut switch, &more), Err(Error::OutOfBuckets));
    assert_eq!(ids(&switch, 1).len(), 1500);
}

#[test]
fn loops_are_refused_and_groups_may_come_in_any_order() {
    let mut switch = Switch::new();
    all(&mut switch, 1, &[Action::Group(2)]).unwrap();
    all(&mut switch, 2, &[Action::Group(3)]).unwrap();
    assert_eq!(
        all(&mut switch, 3, &[Action::Group(1)]),
        Err(Error::GroupLoop)
    );
    all(&mut switch, 3, &[output(1)]).unwrap();
    let back = change(
        GroupCommand::Modify,
        3,
        GroupKind::All,
        vec![bucket(0, &[Action::Group(2)])],
    );
    assert_eq!(send(&mut switch, &back), Err(Error::GroupLoop));
    assert_eq!(
        switch.pipeline.group_descriptions(3)[0].buckets[0].actions,
        [output(1)]
    );
}

#[test]
fn buckets_are_put_in_and_taken_out_by_id() {
    let mut switch = Switch::new();
    let two = vec![bucket(0, &[output(1)]), bucket(1, &[output(2)])];
    send(
        &mut switch,
        &change(GroupCommand::Add, 7, GroupKind::All, two),
    )
    .unwrap();
    let insert = |group, at, id| GroupMod {
        command_bucket: at,
        ..change(
            GroupCommand::InsertBucket,
            group,
            GroupKind::All,
            vec![bucket(id, &[output(3)])],
        )
    };
    send(&mut switch, &insert(7, group::BUCKET_FIRST, 9)).unwrap();
    send(&mut switch, &insert(7, 0, 12)).unwrap();
    send(&mut switch, &insert(7, group::BUCKET_LAST, 13)).unwrap();
    assert_eq!(ids(&switch, 7), [9, 0, 12, 1, 13]);
    assert_eq!(
        send(&mut switch, &insert(7, 55, 14)),
        Err(Error::UnknownBucket)
    );
    assert_eq!(
        send(&mut switch, &insert(7, group::BUCKET_LAST, 9)),
        Err(Error::BucketExists)
    );
    assert_eq!(
        send(&mut switch, &insert(8, group::BUCKET_LAST, 9)),
        Err(Error::UnknownGroup)
    );
    let remove = |at| GroupMod {
        command_bucket: at,
        ..change(GroupCommand::RemoveBucket, 7, GroupKind::All, vec![])
    };
    assert_eq!(send(&mut switch, &remove(55)), Err(Error::UnknownBucket));
    for (at, left) in [
        (12, &[9, 0, 1, 13][..]),
        (group::BUCKET_FIRST, &[0, 1, 13]),
        (group::BUCKET_LAST, &[0, 1]),
        (group::BUCKET_ALL, &[]),
        (group::BUCKET_LAST, &[]),
    ] {
        send(&mut switch, &remove(at)).unwrap();
        assert_eq!(ids(&switch, 7), left);
    }
}

#[test]
fn rules_need_their_groups_and_go_with_them() {
    let mut switch = Switch::new();
    let rule = |number: u32, actions: Vec<Instruction>| {
        with(
            add(fields(&[(Field::InPort, number.into())]), 5),
            |change| {
                change.flags = FlowFlags {
                    send_flow_rem: true,
                    ..FlowFlags::default()
                };
                change.instructions = actions.into();
            },
        )
    };
    let to_group = |number| apply(&[output(1), Action::Clone(vec![Action::Group(number)])]);
    assert_eq!(switch.mod13(rule(1, to_group(4))), Err(Error::BadOutGroup));
    all(&mut switch, 4, &[output(2)]).unwrap();
    all(&mut switch, 5, &[output(2)]).unwrap();
    switch.mod13(rule(1, to_group(4))).unwrap();
    let written = vec![Instruction::WriteActions(vec![Action::Group(4)])];
    switch.mod13(rule(2, written)).unwrap();
    switch.mod13(rule(3, to_group(5))).unwrap();
    switch.mod13(rule(4, apply(&[output(2)]))).unwrap();
    let references =
        |switch: &Switch, group| switch.pipeline.group_stats(group, switch.clock())[0].references;
    assert_eq!((references(&switch, 4), references(&switch, 5)), (2, 1));
    // A rule that replaces another takes over its references.
    switch.mod13(rule(3, to_group(4))).unwrap();
    assert_eq!((references(&switch, 4), references(&switch, 5)), (3, 0));

    let delete = change(GroupCommand::Delete, 4, GroupKind::All, vec![]);
    let now = switch.clock();
    // After a rollback nothing has changed.
    let before = switch.flows();
    switch.pipeline.begin_batch();
    switch
        .pipeline
        .group_mod(&delete, Version::V1_3, now)
        .unwrap();
    assert_eq!(switch.flows().len(), 1);
    switch.pipeline.roll_back();
    assert_eq!(switch.flows(), before);
    assert_eq!(references(&switch, 4), 3);
    let outcome = switch
        .pipeline
        .group_mod(&delete, Version::V1_3, now)
        .unwrap();
    assert_eq!(outcome.removed.len(), 3);
    assert!(
        outcome
            .removed
            .iter()
            .all(|removed| removed.reason == FlowRemovedReason::GroupDelete)
    );
    assert_eq!(switch.flows().len(), 1);
}

/// Slots, versions and counters of deleted groups are reused.
#[test]
fn groups_that_come_and_go_leave_nothing() {
    let mut switch = Switch::new();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut in_use = Vec::new();
    for round in 0..200_u32 {
        let number = round * 7919;
        all(&mut switch, number, &[Action::Group(number + 1)]).unwrap();
        let rule = with(add(Match::any(), 1), |change| {
            change.instructions = apply(&[Action::Group(number)]).into();
        });
        switch.mod13(rule).unwrap();
        switch.publish();
        reader.begin();
        let delete = change(GroupCommand::Delete, number, GroupKind::All, vec![]);
        send(&mut switch, &delete).unwrap();
        switch.publish();
        reader.begin();
        switch.pipeline.housekeep(usize::MAX);
        while switch.program.domain.collect() > 0 {
            switch.publish();
            reader.begin();
        }
        in_use.push(switch.program.counters.in_use());
        assert_eq!(switch.pipeline.group_slots(), 0);
    }
    assert_eq!(in_use.first(), in_use.last());
}

/// A group goes with the many rules that use it in slices, and after them; so do all groups, whose
/// rules may use several.
#[test]
fn many_users_of_a_group_go_in_slices() {
    const USERS: u32 = 300;
    const BUDGET: usize = 64;
    for (deleted, gone) in [(1, 200), (group::ALL, 300)] {
        let mut switch = Switch::new();
        for number in [1, 2] {
            all(&mut switch, number, &[output(1)]).unwrap();
        }
        for number in 0..USERS {
            let used: &[u32] = [&[1][..], &[2], &[1, 2]][number as usize % 3];
            let actions: Vec<_> = used.iter().map(|group| Action::Group(*group)).collect();
            let mut rule = add(fields(&[(Field::InPort, number.into())]), 5);
            rule.instructions = apply(&actions).into();
            rule.flags.send_flow_rem = true;
            switch.mod13(rule).unwrap();
        }
        switch.publish();
        let delete = change(GroupCommand::Delete, deleted, GroupKind::All, Vec::new());
        let now = switch.clock();
        let begun = (switch.pipeline).begin_group_mod(&delete, Version::V1_5, now, BUDGET);
        assert!(switch.pipeline.group_count() == 2, "rules still use them");
        let (outcome, longest) = end_in_slices(&mut switch, begun.unwrap(), BUDGET);
        let left = if deleted == 1 { 1 } else { 0 };
        assert_eq!(switch.pipeline.group_count(), left);
        assert_eq!(outcome.changed, gone + 2 - left);
        assert!(longest <= BUDGET + 2, "{longest}");
        assert_eq!(outcome.removed.len(), gone);
        let reasons = outcome.removed.iter().map(|told| told.reason);
        assert!(
            reasons
                .into_iter()
                .all(|it| it == FlowRemovedReason::GroupDelete)
        );
        assert_eq!(switch.flows().len(), USERS as usize - gone);
    }
}

/// Many groups that few rules use go in slices as well.
#[test]
fn many_groups_go_in_slices() {
    const GROUPS: u32 = 500;
    const BUDGET: usize = 64;
    let mut switch = Switch::new();
    for number in 0..GROUPS {
        all(&mut switch, number, &[output(1)]).unwrap();
    }
    let mut rule = add(fields(&[(Field::InPort, 1)]), 5);
    let used = [GROUPS - 1, 70].map(Action::Group);
    rule.instructions = apply(&used).into();
    switch.mod13(rule).unwrap();
    switch.publish();
    let delete = change(GroupCommand::Delete, group::ALL, GroupKind::All, Vec::new());
    let now = switch.clock();
    let begun = (switch.pipeline).begin_group_mod(&delete, Version::V1_5, now, BUDGET);
    assert_eq!(switch.pipeline.group_count(), GROUPS as usize);
    let (outcome, longest) = end_in_slices(&mut switch, begun.unwrap(), BUDGET);
    assert_eq!(outcome.changed, GROUPS as usize + 1);
    assert!(longest <= BUDGET, "{longest}");
    assert_eq!(switch.pipeline.group_count(), 0);
    assert_eq!(switch.flows().len(), 0);
}
