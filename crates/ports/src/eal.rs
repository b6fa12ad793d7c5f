//! DPDK's environment (EAL): set up once per process, cleaned up at its end.
//!
//! `rte_eal_init` takes an argument list, pins the calling thread and starts threads that inherit
//! that thread's signal mask. So it runs on a temporary thread, which blocks all signals: the
//! daemon's own threads are not affected.
//!
//! Memory comes from huge pages if enough are free, on demand and without files (`--in-memory`);
//! otherwise from ordinary memory (`--no-huge`), which works everywhere and is sufficient for
//! kernel interfaces and guests. DPDK 22.11 refuses `--in-memory` and `--socket-mem` together with
//! `--no-huge`, so the user's own arguments are checked before any are added.

use crate::error::{DetachError, Error, describe};
use crate::pool::{Pool, Pools, Size};
use crate::raw;
use crate::vector::Buffers;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Megabytes of ordinary memory if there are no huge pages. Pages are allocated as they are used.
const ORDINARY_MEGABYTES: u32 = 1024;

/// Free huge page memory, MB, below which `Memory::Auto` uses ordinary memory: less would not hold
/// one pool and a few rings.
const LEAST_HUGE_MEGABYTES: u64 = 128;

/// Most log lines taken from DPDK per second; a guest can make vhost write any number of them.
const LOG_LINES: u32 = 200;

/// Kind of memory for packet buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Memory {
    /// Huge pages when at least 128 MB of them are free, otherwise ordinary memory.
    #[default]
    Auto,
    /// Huge pages; an error when there are none.
    HugePages,
    /// Ordinary memory, this many megabytes at most.
    Ordinary(u32),
}

/// Options for the environment. The defaults suit any machine.
#[derive(Clone, Debug, Default)]
pub struct EalOptions {
    /// Kind of memory for packet buffers.
    pub memory: Memory,
    /// `other_config:dpdk-lcore-mask`, hexadecimal.
    pub lcore_mask: Option<String>,
    /// `other_config:dpdk-socket-mem`, megabytes for each NUMA node, comma-separated. Ignored
    /// without huge pages.
    pub socket_mem: Option<String>,
    /// `other_config:dpdk-socket-limit`, in the format of `socket_mem`. Ignored without huge pages.
    pub socket_limit: Option<String>,
    /// `other_config:dpdk-hugepage-dir`. Pages are then files there, removed as soon as they are
    /// mapped.
    pub hugepage_dir: Option<String>,
    /// `other_config:dpdk-alloc-mem`, megabytes.
    pub alloc_mem: Option<u32>,
    /// `other_config:dpdk-extra`, split into words as a shell would.
    pub extra: String,
    /// Name of the runtime directory; unique to the process unless given.
    pub file_prefix: Option<String>,
    /// Whether the user has asked for DPDK. Otherwise its warnings at the start are not logged as
    /// warnings.
    pub asked: bool,
}

/// What [`Eal::dump`] shows.
#[derive(Clone, Copy, Debug)]
pub enum Dump {
    /// Processors that DPDK knows.
    Lcores,
    /// Levels of its log.
    Logs,
    /// Its heaps.
    Memory,
    /// All pools of buffers.
    Pools,
    /// One of them, with how many of its buffers are in use.
    Pool(Pool),
}

struct Inner {
    pools: Pools,
    huge_pages: bool,
    runtime_dir: Option<PathBuf>,
    arguments: Vec<String>,
}

/// The running environment. Clones refer to the same one.
#[derive(Clone)]
pub struct Eal(Arc<Inner>);

impl std::fmt::Debug for Eal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eal")
            .field("huge_pages", &self.0.huge_pages)
            .field("arguments", &self.0.arguments)
            .finish()
    }
}

static STARTED: Mutex<bool> = Mutex::new(false);

/// Sets DPDK up, once per process: a second call is an error. So may be a call after one that
/// failed, because DPDK can be retried only if it refused its arguments.
pub fn init(options: &EalOptions) -> Result<Eal, Error> {
    let mut started = STARTED.lock().unwrap_or_else(|poison| poison.into_inner());
    if *started {
        return Err(Error::Environment("DPDK is already initialized".into()));
    }
    let inside = cfg!(static_dpdk);
    let plan = plan(options, free_huge_megabytes(), &allowed_cpus(), inside)?;
    let whose = if inside { "its own" } else { "the system's" };
    tracing::info!(target: "dpdk", "{} ({whose})", version());
    for file in &plan.plugins {
        tracing::warn!(target: "dpdk", "dpdk-extra: '-d {file}' is passed over: this build has its drivers inside (SLUICE_DPDK=shared makes one that loads them)");
    }
    let arguments = plan.arguments.clone();
    tracing::info!(target: "dpdk", "EAL arguments: {}", arguments.join(" "));
    UNASKED.store(!options.asked, Ordering::Relaxed);
    let result = std::thread::Builder::new()
        .name("eal-init".into())
        .spawn(move || with_signals_blocked(|| init_here(&arguments)))
        .map_err(|error| Error::Environment(format!("cannot start a thread: {error}")))?
        .join();
    UNASKED.store(false, Ordering::Relaxed);
    let runtime_dir = plan.own_prefix.then(runtime_dir).flatten();
    if let Some(dir) = &runtime_dir {
        // It is empty unless the user asked for files. Removing it now leaves nothing behind even
        // if the process is killed.
        let _ = std::fs::remove_dir(dir);
    }
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error),
        Err(_) => return Err(Error::Environment("DPDK's set-up panicked".into())),
    }
    *started = true;
    Ok(Eal(Arc::new(Inner {
        pools: Pools::new(plan.huge_pages),
        huge_pages: plan.huge_pages,
        runtime_dir,
        arguments: plan.arguments,
    })))
}

/// Returns DPDK's version, such as "DPDK 22.11.11".
pub fn version() -> String {
    // SAFETY: returns a static string.
    unsafe { CStr::from_ptr(raw::rte_version()) }
        .to_string_lossy()
        .into_owned()
}

impl Eal {
    /// Returns whether packet buffers are in huge pages.
    pub fn huge_pages(&self) -> bool {
        self.0.huge_pages
    }

    /// Returns the arguments that DPDK was given.
    pub fn arguments(&self) -> &[String] {
        &self.0.arguments
    }

    /// Returns the ordinary pool, for frames that do not come from a port (packet-out, learned
    /// answers).
    pub fn pool(&self) -> Result<Pool, Error> {
        self.pool_for(-1, crate::pool::DATA_ROOM, Size::Modest)
    }

    /// Returns the buffers for frames received from kernel interfaces.
    pub(crate) fn buffers(&self) -> Result<Buffers, Error> {
        Ok(Buffers {
            pool: self.pool()?,
            tails: self.0.pools.tails(),
        })
    }

    pub(crate) fn pool_for(&self, socket: i32, room: u16, size: Size) -> Result<Pool, Error> {
        self.0.pools.get(socket, room, size)
    }

    /// Returns all pools with their NUMA node and bytes per buffer.
    pub fn pools(&self) -> Vec<(i32, u16, Pool)> {
        self.0.pools.list()
    }

    /// Returns what DPDK says of itself, as Open vSwitch's commands show it; empty without memory
    /// for the text.
    pub fn dump(&self, what: Dump) -> String {
        let (number, pool) = match what {
            Dump::Lcores => (0, std::ptr::null_mut()),
            Dump::Logs => (1, std::ptr::null_mut()),
            Dump::Memory => (2, std::ptr::null_mut()),
            Dump::Pools => (3, std::ptr::null_mut()),
            Dump::Pool(pool) => (4, pool.as_raw()),
        };
        // SAFETY: the environment is set up, and pools live as long as it does.
        let text = unsafe { raw::sluice_dump(number, pool) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a string that ends with a zero byte, ours to free.
        unsafe {
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            libc::free(text.cast());
            copy
        }
    }

    /// Sets from which level on DPDK's components log whose names match a shell pattern: 1 is an
    /// emergency, 8 is debugging. Returns false if the pattern is not one.
    pub fn set_log_level(&self, pattern: &str, level: u32) -> bool {
        // SAFETY: the string outlives the call.
        CString::new(pattern).is_ok_and(|pattern| unsafe {
            raw::rte_log_set_level_pattern(pattern.as_ptr(), level) >= 0
        })
    }

    /// Detaches a device, named as on its bus (`0000:01:00.0`), from DPDK.
    pub fn detach(&self, device: &str) -> Result<(), DetachError> {
        crate::ethdev::detach(device)
    }

    /// Cleans the environment up and leaves no files behind. Every port must be closed and every
    /// frame freed: call it last, when all workers have ended.
    pub fn cleanup(self) {
        self.0.pools.free();
        // SAFETY: the caller promises that nothing uses DPDK any more.
        let code = unsafe { raw::rte_eal_cleanup() };
        if code != 0 {
            tracing::warn!(target: "dpdk", "EAL cleanup failed ({})", describe(-code));
        }
        if let Some(dir) = &self.0.runtime_dir
            && let Err(error) = std::fs::remove_dir_all(dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(target: "dpdk", "cannot remove {}: {error}", dir.display());
        }
    }
}

/// The calling thread's registration with DPDK, which gives it a buffer cache of its own. Must be
/// dropped on that thread.
#[derive(Debug)]
pub struct Registration(PhantomData<*const ()>);

/// Registers the calling worker with DPDK. Unregistered threads can do the same, but more slowly.
/// At most 128 threads can register.
pub fn register_thread() -> Result<Registration, Error> {
    // SAFETY: affects the calling thread only; fails cleanly when the EAL is not up.
    if unsafe { raw::rte_thread_register() } == 0 {
        return Ok(Registration(PhantomData));
    }
    // SAFETY: reads a thread-local number.
    let errno = unsafe { raw::sluice_errno() };
    Err(Error::Environment(format!(
        "DPDK does not take another thread ({})",
        describe(errno)
    )))
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the type is not Send, so this is the thread that registered.
        unsafe { raw::rte_thread_unregister() }
    }
}

/// Runs `act`, which may start threads, with all signals blocked: these threads inherit the mask,
/// and signals go to the daemon's own threads.
pub(crate) fn with_signals_blocked<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are valid memory; only this thread's mask changes, and it is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let result = act();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Calls `rte_eal_init`, on the temporary thread.
fn init_here(arguments: &[String]) -> Result<(), Error> {
    // SAFETY: `log_line` has the right type and lives for ever.
    let code = unsafe { raw::sluice_log_to(log_line) };
    if code != 0 {
        return Err(Error::Environment(format!(
            "cannot take DPDK's log ({})",
            describe(-code)
        )));
    }
    let strings: Vec<CString> = arguments
        .iter()
        .map(|argument| CString::new(argument.as_str()))
        .collect::<Result<_, _>>()
        .map_err(|_| Error::Environment("dpdk-extra: a zero byte".into()))?;
    // DPDK keeps pointers into the arguments, so they are never freed.
    let mut argv: Vec<*mut c_char> = strings.into_iter().map(CString::into_raw).collect();
    let argc = argv.len() as libc::c_int;
    argv.push(std::ptr::null_mut());
    let argv = Box::leak(argv.into_boxed_slice());
    // SAFETY: `argv` is a null-terminated array of writable strings that lives for ever.
    if unsafe { raw::rte_eal_init(argc, argv.as_mut_ptr()) } >= 0 {
        return Ok(());
    }
    // SAFETY: reads a thread-local number.
    let reason = match unsafe { raw::sluice_errno() } {
        0 => "see the log".to_string(),
        errno => describe(errno),
    };
    Err(Error::Environment(format!(
        "Unable to initialize DPDK: {reason}"
    )))
}

struct Plan {
    arguments: Vec<String>,
    huge_pages: bool,
    own_prefix: bool,
    /// Driver files that are not loaded.
    plugins: Vec<String>,
}

/// Returns the argument list. `free_huge` is the free huge page memory in MB, `cpus` the process's
/// affinity; `inside` says that DPDK and its drivers are linked in.
fn plan(options: &EalOptions, free_huge: u64, cpus: &[usize], inside: bool) -> Result<Plan, Error> {
    let extra = split_words(&options.extra)?;
    refuse_exits(&extra)?;
    let (extra, plugins) = match inside {
        true => without_plugins(extra),
        false => (extra, Vec::new()),
    };
    let given = |names: &[&str]| {
        extra
            .iter()
            .any(|word| names.iter().any(|name| is_option(word, name)))
    };
    let mut arguments = vec!["sluiced".to_string()];
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| word.to_string()));

    if !given(&["-c", "-l", "--lcores", "-s", "-S"]) {
        match &options.lcore_mask {
            Some(mask) => add(&["-c", mask]),
            None => {
                let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
                add(&["--lcores", &format!("0@({})", list.join(","))]);
            }
        }
    }
    let wants_huge_files = given(&[
        "--huge-unlink",
        "--huge-dir",
        "--legacy-mem",
        "--socket-mem",
    ]);
    let huge_pages = if given(&["--no-huge"]) {
        false
    } else {
        match options.memory {
            Memory::HugePages => true,
            Memory::Ordinary(_) => wants_huge_files,
            Memory::Auto => wants_huge_files || free_huge >= LEAST_HUGE_MEGABYTES,
        }
    };
    if huge_pages {
        if let Some(megabytes) = &options.socket_mem {
            add(&["--socket-mem", megabytes]);
        }
        if let Some(megabytes) = &options.socket_limit {
            add(&["--socket-limit", megabytes]);
        }
        match &options.hugepage_dir {
            Some(dir) => add(&["--huge-dir", dir, "--huge-unlink"]),
            None if given(&[
                "--in-memory",
                "--huge-unlink",
                "--huge-dir",
                "--legacy-mem",
                "--proc-type",
            ]) => {}
            None => add(&["--in-memory"]),
        }
        if let Some(megabytes) = options.alloc_mem
            && !given(&["-m"])
        {
            add(&["-m", &megabytes.to_string()]);
        }
    } else {
        if !given(&["--no-huge"]) {
            add(&["--no-huge"]);
        }
        if !given(&["--no-shconf"]) {
            // No files that other DPDK processes could share, just as with `--in-memory`.
            add(&["--no-shconf"]);
        }
        if !given(&["-m"]) {
            let megabytes = match (options.memory, options.alloc_mem) {
                (_, Some(megabytes)) => megabytes,
                (Memory::Ordinary(megabytes), None) => megabytes,
                _ => ORDINARY_MEGABYTES,
            };
            add(&["-m", &megabytes.to_string()]);
        }
    }
    let own_prefix = !given(&["--file-prefix"]);
    if own_prefix {
        let prefix = match &options.file_prefix {
            Some(prefix) => prefix.clone(),
            None => format!("sluice-{}", std::process::id()),
        };
        add(&["--file-prefix", &prefix]);
    }
    if !given(&["--telemetry", "--no-telemetry"]) {
        add(&["--no-telemetry"]);
    }
    if !given(&["-a", "-b", "--allow", "--block", "--no-pci"]) {
        // Allow only a device that does not exist: otherwise DPDK takes every PCI device that it
        // has a driver for, such as the virtio NIC by which this machine is reached. Ports name
        // their devices, and plugging one in adds it to the list.
        add(&["-a", "0000:00:00.0"]);
    }
    arguments.extend(extra);
    Ok(Plan {
        arguments,
        huge_pages,
        own_prefix,
        plugins,
    })
}

/// Returns whether `word` is the option `name`, with or without a value in the same word.
fn is_option(word: &str, name: &str) -> bool {
    match word.strip_prefix(name) {
        None => false,
        Some("") => true,
        // A long option's value follows "=", a one-letter option's value follows directly.
        Some(rest) => rest.starts_with('=') || !name.starts_with("--"),
    }
}

/// Refuses arguments that make DPDK print something and end the process.
fn refuse_exits(words: &[String]) -> Result<(), Error> {
    let ends = |word: &str| {
        let long = word.strip_prefix("--");
        let helps = long.is_some_and(|rest| !rest.is_empty() && "help".starts_with(rest));
        let short = long.is_none()
            && word.starts_with('-')
            && word[1..].trim_start_matches('v').starts_with('h');
        helps || short
    };
    for (index, word) in words.iter().enumerate() {
        let level = word.starts_with("--log")
            && (word.ends_with("=help") || words.get(index + 1).is_some_and(|next| next == "help"));
        if ends(word) || level {
            return Err(Error::Environment(format!(
                "dpdk-extra: '{word}' would end the process"
            )));
        }
    }
    Ok(())
}

/// Removes options that load drivers from files (`-d FILE`), if DPDK is linked in: each file would
/// bring a second copy of DPDK, which does not share the first one's memory. Also returns the
/// files.
fn without_plugins(words: Vec<String>) -> (Vec<String>, Vec<String>) {
    let (mut others, mut files) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        // `-v` takes no value, so others may follow it in the same word.
        let options = word
            .strip_prefix('-')
            .map(|rest| rest.trim_start_matches('v'));
        match options.and_then(|rest| rest.strip_prefix('d')) {
            None => others.push(word),
            Some("") => files.extend(words.next()),
            Some(file) => files.push(file.to_owned()),
        }
    }
    (others, files)
}

/// Splits a text like a POSIX shell, without expansions: blanks separate words unless quoted.
fn split_words(text: &str) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            _ if c.is_whitespace() => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        None => {
                            return Err(Error::Environment(format!("dpdk-extra: no closing {c}")));
                        }
                        Some(next) if next == c => break,
                        Some('\\') if c == '"' => match characters.next() {
                            Some(kept @ ('"' | '\\' | '$' | '`')) => word.push(kept),
                            Some(other) => word.extend(['\\', other]),
                            None => {
                                return Err(Error::Environment(format!(
                                    "dpdk-extra: no closing {c}"
                                )));
                            }
                        },
                        Some(next) => word.push(next),
                    }
                }
            }
            '\\' => match characters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(Error::Environment("dpdk-extra: ends in a backslash".into())),
            },
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Returns the free huge page memory in MB, over all page sizes.
pub(crate) fn free_huge_megabytes() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else {
        return 0;
    };
    sizes
        .flatten()
        .filter_map(|size| {
            let name = size.file_name().into_string().ok()?;
            let kilobytes: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let free = std::fs::read_to_string(size.path().join("free_hugepages")).ok()?;
            Some(free.trim().parse::<u64>().ok()? * kilobytes / 1024)
        })
        .sum()
}

/// Returns the processors that the calling thread may run on.
fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(_) => vec![0],
    }
}

fn runtime_dir() -> Option<PathBuf> {
    // SAFETY: a string in static memory, empty when the EAL did not get that far.
    let dir = unsafe { CStr::from_ptr(raw::rte_eal_get_runtime_dir()) };
    let dir = PathBuf::from(dir.to_str().ok()?);
    (dir.is_absolute() && dir.is_dir()).then_some(dir)
}

thread_local! {
    /// Errors that DPDK logs on this thread, while [`with_reason`] runs.
    static ERRORS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Most errors kept for [`with_reason`]: DPDK logs the cause first, and then its consequences.
const ERRORS_KEPT: usize = 8;

/// Runs `act`; returns its result, and why it failed according to DPDK's log: empty if the log says
/// nothing. Lines that other threads log meanwhile are ignored.
pub(crate) fn with_reason<T>(act: impl FnOnce() -> T) -> (T, String) {
    ERRORS.set(Some(Vec::new()));
    let result = act();
    let errors = ERRORS.take().unwrap_or_default();
    (result, reason_of(&errors))
}

/// Returns the cause among errors: the first one that says more than that something failed.
fn reason_of(errors: &[String]) -> String {
    // What DPDK's bus and device layers log when a driver has failed.
    const FOLLOWING: [&str; 4] = [
        "Driver cannot attach the device",
        "Failed to attach device on primary process",
        "failed to initialize",
        "Failed to probe",
    ];
    let bare = |line: &String| {
        // A prefix such as "EAL: ", "ETHDEV: " or "vdev_probe(): " names the source.
        let (who, rest) = line.split_once(": ").unwrap_or(("", line));
        let is_name = !who.is_empty() && !who.contains(' ');
        (if is_name { rest } else { line.as_str() }).to_owned()
    };
    let lines: Vec<String> = errors.iter().map(bare).collect();
    let follows = |line: &&String| FOLLOWING.iter().any(|text| line.contains(text));
    let cause = lines.iter().find(|line| !follows(line));
    cause.or(lines.first()).cloned().unwrap_or_default()
}

/// Stores an error for [`with_reason`].
fn note_error(line: &str) {
    ERRORS.with_borrow_mut(|errors| {
        if let Some(errors) = errors.as_mut().filter(|errors| errors.len() < ERRORS_KEPT) {
            errors.push(line.chars().take(256).collect());
        }
    });
}

/// Whether DPDK is being started although nobody asked for it: then what it lacks (such as huge
/// pages) does not matter.
static UNASKED: AtomicBool = AtomicBool::new(false);

/// Receives one write to DPDK's log stream.
extern "C" fn log_line(level: u32, text: *const c_char, length: usize) {
    // A panic must not cross into C, even if the line is lost.
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: stdio passes a buffer of `length` bytes that lives until this returns.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
        for line in String::from_utf8_lossy(bytes).lines().map(str::trim_end) {
            if line.is_empty() {
                continue;
            }
            if level <= 4 {
                note_error(line);
            }
            if !within_limit(level > 7) {
                continue;
            }
            let unasked = UNASKED.load(Ordering::Relaxed);
            // RTE_LOG_EMERG is 1, ERR 4, WARNING 5, NOTICE 6, INFO 7, DEBUG 8.
            match level {
                0..=4 => tracing::error!(target: "dpdk", "{line}"),
                5 if !unasked => tracing::warn!(target: "dpdk", "{line}"),
                5 => tracing::info!(target: "dpdk", "{line}"),
                6 | 7 => tracing::info!(target: "dpdk", "{line}"),
                _ => tracing::debug!(target: "dpdk", "{line}"),
            }
        }
    });
}

/// Counts a line towards this second's limit, and reports lines lost in an earlier second.
/// Debugging lines have a limit of their own, so that they leave room for errors.
fn within_limit(debugging: bool) -> bool {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    static SECONDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    static COUNTS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
    let (second, count) = (
        &SECONDS[usize::from(debugging)],
        &COUNTS[usize::from(debugging)],
    );
    let now = START.get_or_init(Instant::now).elapsed().as_secs();
    if second.swap(now, Ordering::Relaxed) != now {
        let lines = count.swap(0, Ordering::Relaxed);
        if lines > LOG_LINES {
            tracing::warn!(target: "dpdk", "{} lines of DPDK's log were left out", lines - LOG_LINES);
        }
    }
    count.fetch_add(1, Ordering::Relaxed) < LOG_LINES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(options: &EalOptions, free: u64) -> String {
        let mut options = options.clone();
        options.file_prefix.get_or_insert("p".into());
        plan(&options, free, &[0, 1], true)
            .unwrap()
            .arguments
            .join(" ")
    }

    #[test]
    fn huge_pages_are_used_when_there_are_some() {
        let options = EalOptions::default();
        assert_eq!(
            arguments(&options, 4096),
            "sluiced --lcores 0@(0,1) --in-memory --file-prefix p --no-telemetry -a 0000:00:00.0"
        );
        assert_eq!(
            arguments(&options, 10),
            "sluiced --lcores 0@(0,1) --no-huge --no-shconf -m 1024 --file-prefix p --no-telemetry -a 0000:00:00.0"
        );
    }

    #[test]
    fn no_huge_leaves_out_options_that_contradict_it() {
        let options = EalOptions {
            socket_mem: Some("512,0".into()),
            lcore_mask: Some("0x1".into()),
            extra: "--no-huge -m 64".into(),
            ..EalOptions::default()
        };
        assert_eq!(
            arguments(&options, 4096),
            "sluiced -c 0x1 --no-shconf --file-prefix p --no-telemetry -a 0000:00:00.0 --no-huge -m 64"
        );
    }

    #[test]
    fn the_users_arguments_are_not_repeated() {
        let options = EalOptions {
            extra: "--in-memory --file-prefix=x -l 0 --telemetry".into(),
            ..EalOptions::default()
        };
        assert_eq!(
            arguments(&options, 4096),
            "sluiced -a 0000:00:00.0 --in-memory --file-prefix=x -l 0 --telemetry"
        );
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let words = |text| split_words(text).unwrap();
        assert_eq!(words("  -a 0:1 "), ["-a", "0:1"]);
        assert_eq!(
            words(r#"a"b c"d 'e "f' \ g "h\"i" """#),
            ["ab cd", "e \"f", " g", "h\"i", ""]
        );
        assert!(split_words("'x").is_err());
        assert!(split_words("\"x").is_err());
        assert!(split_words("x\\").is_err());
    }

    #[test]
    fn the_reason_is_the_cause_and_only_this_threads() {
        let lines = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
            reason_of(&lines)
        };
        assert_eq!(lines(&[]), "");
        assert_eq!(
            lines(&[
                "vdev_probe(): failed to initialize net_pcap7 device",
                "PMD: Couldn't open none.pcap: No such file or directory",
                "EAL: Driver cannot attach the device (net_pcap7)",
            ]),
            "Couldn't open none.pcap: No such file or directory"
        );
        assert_eq!(lines(&["EAL: Failed to probe x"]), "Failed to probe x");
        assert_eq!(lines(&["a b: c"]), "a b: c");
        let log = |text: &str| log_line(4, text.as_ptr().cast(), text.len());
        log("before");
        let ((), reason) = with_reason(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| log("EAL: another's"));
            });
            log(&format!("EAL: {}\n", "x".repeat(1000)));
            (0..1000).for_each(|_| log("EAL: more"));
        });
        assert_eq!(reason, "x".repeat(251));
        assert_eq!(with_reason(|| ()).1, "");
    }

    #[test]
    fn arguments_that_end_the_process_are_refused() {
        for extra in [
            "-h",
            "--help",
            "--he",
            "-vh",
            "--log-level=help",
            "--log-level help",
        ] {
            let options = EalOptions {
                extra: extra.into(),
                ..EalOptions::default()
            };
            assert!(plan(&options, 0, &[0], false).is_err(), "{extra}");
        }
    }

    #[test]
    fn drivers_in_files_are_passed_over_where_drivers_are_inside() {
        let options = EalOptions {
            extra: "-n 4 -d a.so -v -db.so --no-pci -vvd c.so -l 0".into(),
            file_prefix: Some("p".into()),
            ..EalOptions::default()
        };
        let kept = plan(&options, 4096, &[0], true).unwrap();
        assert_eq!(kept.plugins, ["a.so", "b.so", "c.so"]);
        let text = kept.arguments.join(" ");
        assert!(text.ends_with("-n 4 -v --no-pci -l 0"), "{text}");
        let all = plan(&options, 4096, &[0], false).unwrap();
        assert!(all.plugins.is_empty());
        let text = all.arguments.join(" ");
        assert!(text.ends_with(&options.extra), "{text}");
    }
}
