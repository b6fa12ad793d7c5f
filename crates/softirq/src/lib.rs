//! Steering in the kernel (after the paper that crate `steer` follows): an XDP program sends the
//! packets of a kernel interface to the core that the policy has chosen, through a `cpumap`, so
//! that the whole protocol stack runs there. `docs/steering.md` is the guide.
//!
//! * `bpf/`: the programs, in C. They match, choose and count on their own, for every packet.
//! * [`object`]: BPF objects, maps and links. [`layout`]: what programs and user space share.
//! * [`program`]: the loaded programs, to which entries, rankings and moves are published.
//! * [`key`]: keys and matches. [`parse`]: the reference for the C parser.
//! * [`sampler`]: loads of cores, by tracepoints. [`vms`]: where virtual machines run.
//! * [`device`]: an interface's properties, and the XDP mode for it.
//! * [`session`]: combines table, core table, balancer and program; samples.
//! * [`control`]: the resident's socket and its requests.
//!
//! Packets never wait for user space. When this process ends, the kernel detaches the programs, and
//! packets are processed as before.

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
