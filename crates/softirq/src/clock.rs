//! The clock of BPF programs.

/// Returns the time of CLOCK_MONOTONIC, ns, as `bpf_ktime_get_ns` does.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
