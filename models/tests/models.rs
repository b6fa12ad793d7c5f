//! Runs the models. See the library.
#![allow(missing_docs)]

use models::{epochs, fails, gates, lines, misses_its_fences, rooms, shaped, workers};

/// A test for a model, and where it says `fences` another for the same without them, which must
/// fail.
macro_rules! model {
    ($of:ident::$name:ident $(, $without:ident)?) => {
        #[test]
        fn $name() {
            $of::$name();
        }

        $(
            #[test]
            fn $without() {
                assert!(misses_its_fences($of::$name), "it sees nothing");
            }
        )?
    };
}

model!(
    epochs::a_barrier_waits_for_a_worker_that_is_about_to_begin,
    a_barrier_needs_its_fences
);
model!(
    epochs::nothing_is_freed_that_a_worker_looks_at,
    freeing_needs_its_fences
);
model!(epochs::what_is_held_beyond_a_burst_is_kept);
// Without its fences it would read memory that has been freed.
model!(rooms::readers_keep_what_they_look_at);
model!(
    gates::nobody_is_inside_after_a_gate_is_closed,
    a_gate_needs_its_fences
);
model!(gates::nobody_is_inside_after_a_gate_with_a_lock_is_closed);
model!(
    gates::users_of_two_keys_are_never_inside_together,
    a_second_key_needs_its_fences
);
model!(
    gates::how_a_gate_is_entered_may_change,
    a_change_of_how_a_gate_is_entered_needs_its_fences
);
model!(
    workers::a_worker_never_sleeps_over_what_is_put_into_its_mailbox,
    sleeping_needs_its_fences
);
model!(
    workers::a_command_is_seen_once_its_epoch_has_passed,
    commands_need_fences
);
model!(
    shaped::the_owner_lets_go_what_others_hand_over,
    handing_over_needs_its_fences
);
model!(
    shaped::the_new_owner_lets_go_what_the_former_one_has_left,
    changing_owners_needs_its_fences
);
model!(
    shaped::nothing_stays_behind_when_shaping_ends,
    an_end_needs_its_fences
);

#[test]
fn a_new_owner_must_know_what_the_former_one_has_left() {
    assert!(fails(shaped::an_owner_who_knows_only_of_his_own));
}
model!(
    lines::a_packet_reads_words_of_one_connection,
    reading_a_line_needs_its_fences
);
model!(
    lines::a_packet_prolongs_its_own_connection,
    prolonging_needs_its_fences
);
model!(lines::a_line_that_is_withdrawn_stays_so);
