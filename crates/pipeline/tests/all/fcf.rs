//! `set_fcf`: refused if the VM id does not fit the bridge's layout, otherwise accepted.

use crate::common::{Switch, add, apply, everything, output, with};
use openflow::Version;
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::group::{self, Bucket, GroupCommand, GroupKind, GroupMod};
use openflow::message::{NO_BUFFER, PacketOut};
use openflow::port;
use openflow::steering::{Fcf, Layout, Target};
use packet::Match;

fn set(vm: u16) -> Action {
    Action::SetFcf(Fcf { vm, priority: true })
}

/// Returns the results for a rule with this action in each possible place, and for a packet-out.
fn outcomes(switch: &mut Switch, action: &Action) -> Vec<Result<(), Error>> {
    let applied = apply(&[action.clone(), output(2)]);
    let nested = apply(&[Action::Clone(vec![action.clone()]), output(2)]);
    let written = vec![Instruction::WriteActions(vec![action.clone(), output(2)])];
    let mut all: Vec<Result<(), Error>> = Vec::new();
    for instructions in [applied, nested, written] {
        let change = with(add(Match::any(), 1), |change| {
            change.instructions = instructions.into();
        });
        all.push(switch.mod13(change).map(drop));
    }
    let bucket = Bucket {
        id: 0,
        weight: 0,
        watch_port: port::ANY,
        watch_group: group::ANY,
        actions: vec![action.clone(), output(2)],
    };
    let group = GroupMod {
        command: GroupCommand::Add,
        kind: GroupKind::All,
        group: 1 + switch.pipeline.group_descriptions(group::ALL).len() as u32,
        command_bucket: group::BUCKET_ALL,
        buckets: vec![bucket],
        selection: None,
    };
    let now = switch.clock();
    let done = switch.pipeline.group_mod(&group, Version::V1_3, now);
    all.push(done.map(drop));
    let packet = PacketOut {
        buffer_id: NO_BUFFER,
        in_port: port::CONTROLLER,
        matching: Match::any(),
        actions: vec![action.clone(), output(2)],
        data: vec![0; 60],
    };
    all.push(switch.pipeline.packet_out(&packet, Version::V1_3).map(drop));
    all
}

#[test]
fn a_vm_id_needs_room_in_the_bridges_layout() {
    let mut switch = Switch::new();
    let refused = outcomes(&mut switch, &set(1));
    assert_eq!(refused, [Err(Error::ActionPermission); 5], "no layout");
    for (_, layout) in Layout::ALL {
        switch.pipeline.set_fcf_layout(Some(layout));
        let most = layout.highest_vm();
        assert_eq!(outcomes(&mut switch, &set(most)), [Ok(()); 5]);
        let refused = outcomes(&mut switch, &set(most + 1));
        assert_eq!(refused, [Err(Error::BadActionArgument); 5], "{layout:?}");
    }
    // Existing rules stay when the layout is removed.
    switch.pipeline.set_fcf_layout(None);
    let rules = switch.pipeline.flow_stats(&everything(), switch.clock());
    assert_eq!(rules.len(), 1);
    let kept = vec![Instruction::WriteActions(vec![set(4094), output(2)])];
    assert_eq!(rules[0].instructions[..], kept);
}

#[test]
fn a_message_for_a_steering_table_is_no_rule() {
    let mut switch = Switch::new();
    switch.pipeline.set_fcf_layout(Some(Layout::Dscp6));
    let refused = outcomes(&mut switch, &Action::Steer(Target::Datapath));
    // Not allowed in an action set at all.
    let kinds = [Error::BadActionArgument, Error::BadActionType];
    assert!(
        refused
            .iter()
            .all(|one| one.is_err_and(|error| kinds.contains(&error)))
    );
}
