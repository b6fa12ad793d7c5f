//! Steering in the kernel (after the paper that crate `steer` follows): an XDP program sends the
//! packets of a kernel interface to the core that the policy has chosen, through a `cpumap`, so
//! that the whole protocol stack runs there. `docs/steering.md` is the guide.
//!
//! * `bpf/`: the programs, in C. They match, choose and count by themselves, at every packet.
//! * [`object`]: BPF objects, maps and links. [`layout`]: what programs and user space share.
//! * [`program`]: the loaded programs: entries, rankings and moves that are published to them.
//! * [`key`]: keys and matches. [`parse`]: the reference that the C parser is held to.
//! * [`sampler`]: loads of cores, by tracepoints. [`vms`]: where virtual machines run.
//! * [`device`]: what an interface can do, and which mode suits it.
//! * [`session`]: table, core table, balancer and program as one; samples.
//! * [`control`]: the resident's socket, and what is said there.
//!
//! Packets never wait for user space. When this process dies, the kernel detaches the programs,
//! and packets go as they did before.

pub mod clock;
pub mod control;
pub mod cpus;
pub mod device;
pub mod key;
pub mod layout;
pub mod object;
pub mod parse;
pub mod program;
pub mod sampler;
pub mod session;
pub mod vms;
