//! DPDK's environment itself.

use crate::support::eal;
use packet::frame::Frame;
use proptest::prelude::*;
use std::path::PathBuf;

#[test]
fn the_eal_starts_once_and_leaves_no_files() {
    let first = eal();
    assert!(!first.huge_pages());
    assert!(ports::eal::version().starts_with("DPDK "));
    let again = ports::eal::init(&ports::EalOptions::default()).unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
    let runtime = PathBuf::from(format!("/var/run/dpdk/sluice-{}", std::process::id()));
    assert!(!runtime.exists());
}

#[test]
fn the_eal_does_not_change_affinity_or_signals_of_other_threads() {
    eal();
    // SAFETY: plain memory of the sizes given.
    let (cpus, blocked) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        (
            libc::CPU_COUNT(&set),
            libc::sigismember(&mask, libc::SIGTERM),
        )
    };
    let online = std::thread::available_parallelism().unwrap().get();
    assert_eq!((cpus as usize, blocked), (online, 0));
}

#[test]
fn many_threads_register_and_leave() {
    eal();
    for _ in 0..300 {
        std::thread::spawn(|| {
            let registration = ports::eal::register_thread().unwrap();
            assert!(eal().pool().unwrap().frame(&[0; 60]).is_some());
            drop(registration);
        })
        .join()
        .unwrap();
    }
}

#[test]
fn buffers_are_given_back() {
    // Other tests use the pool at the same time: a leak per round would add up to more than all of
    // them hold.
    let pool = eal().pool().unwrap();
    for _ in 0..20 {
        let frames: Vec<_> = (0..100)
            .map(|_| pool.frame(&[7; 60_000]).unwrap())
            .collect();
        assert!(
            frames
                .iter()
                .all(|frame| frame.len() == 60_000 && frame.segment_count() > 20)
        );
        let copies: Vec<_> = frames
            .iter()
            .map(|frame| frame.duplicate().unwrap())
            .collect();
        assert!(copies.iter().all(|frame| frame.len() == 60_000));
    }
}

/// An operation on a frame.
#[derive(Clone, Debug)]
enum Step {
    PushFront(usize),
    PullFront(usize),
    Truncate(usize),
    Linearize(usize),
    Write(usize, u8),
    Duplicate,
    Sibling(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..200).prop_map(Step::PushFront),
        (0usize..3000).prop_map(Step::PullFront),
        (0usize..20_000).prop_map(Step::Truncate),
        (0usize..5000).prop_map(Step::Linearize),
        (0usize..5000, any::<u8>()).prop_map(|(at, value)| Step::Write(at, value)),
        Just(Step::Duplicate),
        (0usize..5000).prop_map(Step::Sibling),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// An mbuf has the same contents as a plain vector after the same operations.
    #[test]
    fn a_frame_is_its_bytes(len in 0usize..20_000, steps in prop::collection::vec(step(), 0..30)) {
        let pool = eal().pool().unwrap();
        let mut bytes: Vec<u8> = (0..len).map(|index| (index * 31) as u8).collect();
        let mut frame = pool.frame(&bytes).unwrap();
        for step in steps {
            match step {
                Step::PushFront(n) => {
                    let room = frame.headroom();
                    prop_assert_eq!(frame.push_front(n), n <= room);
                    if n <= room {
                        frame.head_mut()[..n].fill(0xee);
                        bytes.splice(0..0, std::iter::repeat_n(0xee, n));
                    }
                }
                Step::PullFront(n) => {
                    let first = frame.head().len();
                    prop_assert_eq!(frame.pull_front(n), n <= first);
                    if n <= first {
                        bytes.drain(..n);
                    }
                }
                Step::Truncate(n) => {
                    frame.truncate(n);
                    bytes.truncate(n);
                }
                Step::Linearize(n) => {
                    let wanted = n.min(bytes.len());
                    let done = frame.linearize(n);
                    prop_assert!(done || wanted > 2048, "{wanted} bytes fit one buffer");
                    prop_assert!(!done || frame.head().len() >= wanted);
                }
                Step::Write(at, value) => {
                    let mut offset = at;
                    for index in 0..frame.segment_count() {
                        let segment = frame.segment_mut(index).unwrap();
                        if offset < segment.len() {
                            segment[offset] = value;
                            bytes[at] = value;
                            break;
                        }
                        offset -= segment.len();
                    }
                }
                Step::Duplicate => {
                    let mut copy = frame.duplicate().unwrap();
                    prop_assert_eq!(copy.to_vec(), bytes.clone());
                    if !copy.head().is_empty() {
                        copy.head_mut()[0] ^= 0xff;
                    }
                }
                Step::Sibling(n) => {
                    let other = vec![0x55; n];
                    let sibling = frame.sibling(&other).unwrap();
                    prop_assert_eq!(sibling.to_vec(), other.clone());
                    prop_assert!(sibling.headroom() >= 64);
                    let sibling = frame.sibling_behind(400, &other).unwrap();
                    prop_assert_eq!(sibling.to_vec(), other);
                    prop_assert!(sibling.headroom() >= 400);
                }
            }
            prop_assert_eq!(frame.len(), bytes.len());
            prop_assert_eq!(frame.to_vec(), bytes.clone());
            prop_assert!(frame.segment(frame.segment_count()).is_none());
        }
    }

    /// Offload flags are read as they were set, and are copied with the frame.
    #[test]
    fn offload_flags_are_kept(partial: bool, valid: bool, start: u16, offset: u16, kind in 0usize..4, size in 1u16..) {
        use packet::frame::{Gso, Offload};
        let gso = [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::UdpL4][kind];
        let work = partial || gso != Gso::None;
        let offload = Offload {
            partial_checksum: partial,
            checksum_valid: valid,
            csum_start: if work { start } else { 0 },
            csum_offset: if work { offset } else { 0 },
            gso,
            gso_size: if gso == Gso::None { 0 } else { size },
        };
        let mut frame = eal().pool().unwrap().frame(&[1; 3000]).unwrap();
        prop_assert_eq!(frame.offload(), Offload::default());
        frame.set_offload(offload);
        prop_assert_eq!(frame.offload(), offload);
        prop_assert_eq!(frame.duplicate().unwrap().offload(), offload);
        frame.linearize(100);
        prop_assert_eq!(frame.offload(), offload);
        frame.set_offload(Offload::default());
        prop_assert_eq!(frame.offload(), Offload::default());
    }
}
