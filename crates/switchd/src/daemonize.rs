//! Becoming a daemon. All of this happens in one thread, before any other exists. Three points need
//! care:
//!
//! * `--detach` promises that the first configuration is in force when the command returns. So the
//!   first process forks and waits on a pipe until the daemon reports that, or ends as the daemon
//!   did.
//! * `--monitor` adds a process in between that restarts the daemon when a programming error kills
//!   it, at most once in ten seconds. Unlike Open vSwitch's, it also restarts a daemon killed by
//!   `SIGKILL` (by the kernel for lack of memory, say), unless the daemon had been asked to end
//!   before: start scripts send `SIGKILL` to a daemon that does not obey `SIGTERM`.
//! * The pidfile is locked, not only written: `ovs-appctl` and start scripts check who holds the
//!   lock. `fcntl` locks belong to a process, so the daemon takes it after the last fork.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{
    Flock, FlockType, Pid, Resource, Rlimit, Signal, fcntl_getlk, getrlimit, kill_process,
    setrlimit,
};

use crate::options::Options;
use crate::{plain_error, user, vlog};

/// Shortest time between two starts of the daemon by the monitor, from the second crash on.
const RESTART_INTERVAL: Duration = Duration::from_secs(10);

/// Signals raised by programming errors; only these make the monitor restart the daemon.
const CRASHES: &[i32] = &[
    libc::SIGABRT,
    libc::SIGALRM,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGPIPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

/// Why this process must end instead of becoming the daemon.
#[derive(Debug)]
pub enum Stop {
    /// Its work is done, or the failure has been reported already: exit with this status.
    Exit(i32),
    /// Report this (in the log and on standard error) and exit with status 1.
    Failure(String),
}

/// The running daemon's link to its parent, and its pidfile. Dropping it removes the pidfile.
#[derive(Debug)]
pub struct Daemon {
    parent: Option<File>,
    detach: bool,
    chdir: bool,
    pidfile: Option<Pidfile>,
}

/// Forks as the options say. Returns only in the daemon's process, except for errors.
///
/// # Panics
/// Never, but there must be no second thread: `fork` copies only the caller.
pub fn start(options: &Options) -> Result<Daemon, Stop> {
    if let Some(path) = options
        .pidfile
        .as_deref()
        .filter(|_| !options.overwrite_pidfile)
    {
        refuse_if_running(path).map_err(Stop::Failure)?;
    }
    if let Some(user) = &options.user {
        let files: Vec<&Path> = options.log_file.as_deref().into_iter().collect();
        user::parse(user)
            .and_then(|identity| user::become_user(identity, &files))
            .map_err(Stop::Failure)?;
    }
    // The standard library's handlers would swallow such a signal from another process.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: SIG_DFL is always a valid disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut parent = None;
    if options.detach {
        match fork_and_wait()? {
            Forked::Parent { .. } => return Err(Stop::Exit(0)),
            Forked::Child(pipe) => parent = Some(pipe),
        }
        // Fails only in a group leader, which a fresh child is not.
        let _ = rustix::process::setsid();
    }
    if options.monitor {
        parent = Some(monitor(options, parent)?);
    }
    let pidfile = match &options.pidfile {
        Some(path) => {
            Some(Pidfile::create(path, options.overwrite_pidfile).map_err(Stop::Failure)?)
        }
        None => None,
    };
    Ok(Daemon {
        parent,
        detach: options.detach,
        chdir: !options.no_chdir,
        pidfile,
    })
}

impl Daemon {
    /// Removes the pidfile and releases its lock, so that the next daemon may start.
    pub fn release(&mut self) {
        self.pidfile = None;
    }

    /// Reports that the first configuration is in force: detaches from the terminal and lets the
    /// waiting parent exit. Later calls do nothing.
    pub fn ready(&mut self) {
        if let Some(mut pipe) = self.parent.take() {
            // It does not matter if the parent has been killed.
            let _ = pipe.write_all(&[0]);
        }
        if std::mem::take(&mut self.detach) {
            vlog::silence_console();
            vlog::flush(Duration::from_secs(1));
            leave_terminal(self.chdir);
        }
    }
}

/// Redirects the standard streams to `/dev/null`, and leaves the current directory, so that it can
/// be unmounted.
fn leave_terminal(chdir: bool) {
    if chdir {
        let _ = std::env::set_current_dir("/");
    }
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        // A stream that cannot be replaced stays what it is.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

enum Forked {
    /// This is the parent, and the child has reported that it is ready.
    Parent {
        child: i32,
    },
    Child(File),
}

/// Forks; the parent goes on when the child reports through the pipe that it is ready. There is no
/// time limit (a database may come up late), but if the child ends, the parent exits with its
/// status.
fn fork_and_wait() -> Result<Forked, Stop> {
    let (mut reader, writer) =
        pipe().map_err(|error| Stop::Failure(format!("pipe failed: {}", plain_error(&error))))?;
    match fork()? {
        0 => Ok(Forked::Child(writer)),
        child => {
            drop(writer);
            let mut byte = [0];
            if read_retrying(&mut reader, &mut byte) == 1 {
                return Ok(Forked::Parent { child });
            }
            let status = wait_for(child);
            if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
                return Err(Stop::Exit(libc::WEXITSTATUS(status)));
            }
            let how = describe(status);
            Err(Stop::Failure(format!(
                "fork child died before signaling startup ({how})"
            )))
        }
    }
}

fn pipe() -> io::Result<(File, File)> {
    let (reader, writer) = io::pipe()?;
    Ok((
        File::from(std::os::fd::OwnedFd::from(reader)),
        File::from(std::os::fd::OwnedFd::from(writer)),
    ))
}

fn fork() -> Result<i32, Stop> {
    // SAFETY: this process has one thread, so the child is a full copy; both sides go on in
    // ordinary code.
    match unsafe { libc::fork() } {
        -1 => Err(Stop::Failure(format!(
            "fork failed: {}",
            plain_error(&io::Error::last_os_error())
        ))),
        pid => Ok(pid),
    }
}

fn read_retrying(file: &mut File, buffer: &mut [u8]) -> usize {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.unwrap_or(0),
        }
    }
}

fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a live variable.
        let result = unsafe { libc::waitpid(pid, &mut status, 0) };
        if result == pid {
            return status;
        }
        let interrupted = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if result < 0 && !interrupted {
            return 1 << 8;
        }
    }
}

/// Describes how a process ended, in Open vSwitch's words.
fn describe(status: i32) -> String {
    let mut text = if libc::WIFEXITED(status) {
        format!("exit status {}", libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        format!("killed ({})", signal_name(libc::WTERMSIG(status)))
    } else {
        format!("terminated abnormally ({status:x})")
    };
    if libc::WIFSIGNALED(status) && libc::WCOREDUMP(status) {
        text.push_str(", core dumped");
    }
    text
}

fn signal_name(signal: i32) -> String {
    // SAFETY: strsignal returns NULL or a NUL-terminated string that stays valid until its next
    // call in this thread.
    unsafe {
        let name = libc::strsignal(signal);
        if name.is_null() {
            format!("signal {signal}")
        } else {
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}

/// Returns whether a daemon that ended this way is to be restarted; `asked`: it had been asked to
/// end.
fn is_crash(status: i32, asked: bool) -> bool {
    libc::WIFSIGNALED(status)
        && match libc::WTERMSIG(status) {
            libc::SIGKILL => !asked,
            signal => CRASHES.contains(&signal),
        }
}

/// Flag in memory shared by the monitor and its daemon: whether the daemon has been asked to end.
/// Null without a monitor.
static ASKED: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());
/// In the daemon: whether handlers for SIGTERM and SIGINT are installed.
static HEEDED: AtomicBool = AtomicBool::new(false);

/// Maps the shared memory, before the monitor forks. If that fails, the monitor does not know
/// whether the daemon was asked to end.
fn share_asked() {
    // SAFETY: an anonymous mapping at an address that the kernel chooses touches nothing that there
    // is.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<AtomicBool>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page != libc::MAP_FAILED {
        ASKED.store(page.cast(), Ordering::SeqCst);
    }
}

/// Returns the shared flag, if there is one.
fn asked() -> Option<&'static AtomicBool> {
    // SAFETY: null, or the mapping of `share_asked`, which is never undone, is large enough for
    // this and aligned to a page, and began as zeros, which is `false`.
    unsafe { ASKED.load(Ordering::SeqCst).as_ref() }
}

/// Notes that the daemon has been asked to end, so that its monitor does not restart it.
pub fn note_asked() {
    if let Some(asked) = asked() {
        asked.store(true, Ordering::SeqCst);
    }
}

/// Signal handler of a monitored daemon: notes that a signal asks it to end. Uses only atomics,
/// `signal` and `raise`, as a signal handler must.
extern "C" fn note_signal(signal: i32) {
    note_asked();
    if !HEEDED.load(Ordering::SeqCst) {
        // SAFETY: both are async-signal-safe and SIG_DFL is always a valid disposition.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// In the daemon: notes that handlers for SIGTERM and SIGINT are installed. They must call the
/// handler that was installed before.
pub fn signals_are_heeded() {
    HEEDED.store(true, Ordering::SeqCst);
}

/// Sets up the daemon's handling of signals that its monitor forwards, until the final handlers
/// exist.
fn begin_daemon() {
    handle_signals(libc::SIG_DFL);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: `note_signal` is async-signal-safe.
        unsafe { libc::signal(signal, note_signal as *const () as libc::sighandler_t) };
    }
}

/// PID of the daemon that the monitor watches; 0 while there is none.
static WATCHED: AtomicI32 = AtomicI32::new(0);
/// Whether the monitor was told to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Forwards a signal to the daemon. Uses only atomics and `kill`, as a signal handler must.
extern "C" fn hand_on(signal: i32) {
    if signal != libc::SIGHUP {
        ENDING.store(true, Ordering::SeqCst);
    }
    let pid = WATCHED.load(Ordering::SeqCst);
    if pid > 0 {
        // SAFETY: kill is async-signal-safe; the process is a child that has not been waited for.
        unsafe { libc::kill(pid, signal) };
    }
}

fn handle_signals(handler: libc::sighandler_t) {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the handler is SIG_DFL or `hand_on`, which is async-signal-safe.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Runs the monitor. Returns (with the pipe for `ready`) in each daemon it starts; in the monitor
/// itself only with an error, when it must end.
fn monitor(options: &Options, mut parent: Option<File>) -> Result<File, Stop> {
    let mut title = Title::find();
    let mut started = Instant::now();
    share_asked();
    let mut child = match fork_and_wait()? {
        Forked::Child(pipe) => {
            begin_daemon();
            return Ok(pipe);
        }
        Forked::Parent { child } => child,
    };
    vlog::set_subprogram("monitor");
    set_process_name(c"monitor");
    watch(child);
    handle_signals(hand_on as *const () as libc::sighandler_t);
    if let Some(mut pipe) = parent.take() {
        let _ = pipe.write_all(&[0]);
    }
    if options.detach {
        vlog::silence_console();
        leave_terminal(!options.no_chdir);
    }
    let mut crashes = 0;
    let mut state = String::from("healthy");
    loop {
        title.set(&format!(
            "{}: monitoring pid {child} ({state})",
            options.program
        ));
        vlog::release_file();
        let status = wait_for(child);
        vlog::resume_file();
        WATCHED.store(0, Ordering::SeqCst);
        let how = format!("pid {child} died, {}", describe(status));
        let asked_to_end = asked().is_some_and(|asked| asked.load(Ordering::SeqCst));
        if !is_crash(status, asked_to_end) {
            tracing::info!(target: "daemon_unix", "{how}, exiting");
            return Err(Stop::Exit(if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                0
            }));
        }
        crashes += 1;
        state = format!("{crashes} crashes: {how}");
        if let Some(socket) = options.control_path(child) {
            let _ = fs::remove_file(socket);
        }
        if libc::WCOREDUMP(status) {
            forbid_cores();
        }
        child = loop {
            throttle(&state, started, crashes)?;
            tracing::error!(target: "daemon_unix", "{state}, restarting");
            started = Instant::now();
            title.restore();
            match fork_and_wait() {
                Ok(Forked::Parent { child }) => break child,
                Ok(Forked::Child(pipe)) => {
                    begin_daemon();
                    vlog::set_subprogram("");
                    crate::name_process(&options.program);
                    return Ok(pipe);
                }
                // It crashed again before it was ready: retry, unless it had been asked to end. An
                // error that it reported is final.
                Err(Stop::Failure(text)) => {
                    if asked().is_some_and(|asked| asked.load(Ordering::SeqCst)) {
                        tracing::info!(target: "daemon_unix", "{text}, exiting");
                        return Err(Stop::Exit(0));
                    }
                    tracing::error!(target: "daemon_unix", "{text}");
                    crashes += 1;
                    state = format!("{crashes} crashes: {text}");
                }
                Err(exit) => return Err(exit),
            }
        };
        watch(child);
    }
}

/// Sets the process to forward signals to; forwards one that came just before.
fn watch(child: i32) {
    WATCHED.store(child, Ordering::SeqCst);
    if ENDING.load(Ordering::SeqCst)
        && let Some(child) = Pid::from_raw(child)
    {
        // The child has not been waited for, so it is still this process.
        let _ = kill_process(child, Signal::TERM);
    }
}

/// Waits until the daemon may be restarted.
fn throttle(state: &str, started: Instant, crashes: u32) -> Result<(), Stop> {
    if crashes > 1 && started.elapsed() < RESTART_INTERVAL {
        let seconds = RESTART_INTERVAL.as_secs();
        tracing::warn!(target: "daemon_unix", "{state}, waiting until {seconds} seconds since last restart");
    }
    loop {
        if ENDING.load(Ordering::SeqCst) {
            return Err(Stop::Exit(0));
        }
        let left = RESTART_INTERVAL.saturating_sub(started.elapsed());
        if crashes <= 1 || left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// Forbids further core files: one is enough, and a daemon that keeps crashing must not fill the
/// disk.
fn forbid_cores() {
    let limit = Rlimit {
        current: Some(0),
        ..getrlimit(Resource::Core)
    };
    // A process may always lower its limit.
    let _ = setrlimit(Resource::Core, limit);
}

/// Sets the name in `/proc/PID/comm` (the kernel keeps 15 bytes).
pub fn set_process_name(name: &CStr) {
    // Fails for no name.
    let _ = rustix::thread::set_name(name);
}

/// The command line as `ps` shows it. It lies in this process's own memory, and the monitor writes
/// its state there.
struct Title {
    address: usize,
    original: Vec<u8>,
}

impl Title {
    /// Finds the command line through `/proc/self/stat` (fields 48 and 49); if that fails, titles
    /// are not changed.
    fn find() -> Self {
        let none = Title {
            address: 0,
            original: Vec::new(),
        };
        let Ok(stat) = fs::read_to_string("/proc/self/stat") else {
            return none;
        };
        // The second field is a name in parentheses that may hold anything; count from its end.
        let Some((_, fields)) = stat.rsplit_once(')') else {
            return none;
        };
        let field = |number: usize| {
            fields
                .split_whitespace()
                .nth(number - 3)?
                .parse::<usize>()
                .ok()
        };
        let (Some(start), Some(end)) = (field(48), field(49)) else {
            return none;
        };
        match fs::read("/proc/self/cmdline") {
            Ok(original) if start > 0 && end > start && original.len() == end - start => Title {
                address: start,
                original,
            },
            _ => none,
        }
    }

    fn set(&mut self, text: &str) {
        let room = self.original.len().saturating_sub(1);
        let mut bytes = vec![0; self.original.len()];
        let length = text.len().min(room);
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.write(&bytes);
    }

    fn restore(&mut self) {
        let original = std::mem::take(&mut self.original);
        self.write(&original);
        self.original = original;
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.address != 0 {
            // SAFETY: the kernel says that the argument strings of this process lie in [address,
            // address + original.len()), `bytes` has exactly that length, and that
            // memory is writable (it is on the initial stack). The standard library
            // copies arguments when asked and is not asked any more; there is one thread.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address as *mut u8, bytes.len())
            };
        }
    }
}

/// A pidfile on which this process holds the lock.
#[derive(Debug)]
struct Pidfile {
    path: PathBuf,
    /// Open while the lock is to be held: closing any descriptor of the file releases the lock.
    file: File,
}

/// Returns the process that holds the lock on `file`, if another one does.
fn holder(file: &File) -> io::Result<Option<i32>> {
    let held = fcntl_getlk(file, &Flock::from(FlockType::WriteLock))?;
    Ok(held.map(|held| Pid::as_raw(held.pid)))
}

fn refuse_if_running(path: &Path) -> Result<(), String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("{}: open: {}", path.display(), plain_error(&error))),
    };
    match holder(&file) {
        Ok(None) => Ok(()),
        Ok(Some(pid)) => Err(format!(
            "{}: already running as pid {pid}, aborting",
            path.display()
        )),
        Err(error) => Err(format!(
            "{}: fcntl(F_GETLK) failed ({})",
            path.display(),
            plain_error(&error)
        )),
    }
}

impl Pidfile {
    /// Writes and locks a temporary file and renames it to `path`, so the pidfile never exists
    /// unlocked. The lock on the temporary file also decides between two daemons that start at
    /// once.
    fn create(path: &Path, overwrite: bool) -> Result<Self, String> {
        let mut name = path.as_os_str().to_owned();
        name.push(".tmp");
        let temporary = PathBuf::from(name);
        let shown = temporary.display();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&temporary)
            .map_err(|error| format!("{shown}: create failed ({})", plain_error(&error)))?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            let error = plain_error(&error.into());
            format!("{shown}: fcntl(F_SETLK) failed ({error})")
        })?;
        if !overwrite {
            refuse_if_running(path)?;
        }
        let write = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        write.map_err(|error| format!("{shown}: write failed ({})", plain_error(&error)))?;
        fs::rename(&temporary, path).map_err(|error| {
            format!(
                "failed to rename \"{shown}\" to \"{}\" ({})",
                path.display(),
                plain_error(&error)
            )
        })?;
        Ok(Pidfile {
            path: path.to_path_buf(),
            file,
        })
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        // Another daemon may have replaced the file (`--overwrite-pidfile`); then it is not ours to
        // remove.
        let same = match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(own), Ok(there)) => own.dev() == there.dev() && own.ino() == there.ino(),
            _ => false,
        };
        if same {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_read_like_open_vswitchs() {
        assert_eq!(describe(3 << 8), "exit status 3");
        assert_eq!(describe(libc::SIGSEGV), "killed (Segmentation fault)");
        assert_eq!(
            describe(libc::SIGABRT | 0x80),
            "killed (Aborted), core dumped"
        );
        assert!(is_crash(libc::SIGSEGV, false) && is_crash(libc::SIGABRT, true));
        assert!(is_crash(libc::SIGKILL, false), "nobody asked it to end");
        assert!(!is_crash(libc::SIGKILL, true), "it did not end when asked");
        assert!(!is_crash(libc::SIGTERM, false) && !is_crash(1 << 8, false));
    }

    #[test]
    fn the_pidfile_goes_with_its_daemon_unless_another_took_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.pid");
        fs::write(&path, "1\n").unwrap();
        let pidfile = Pidfile::create(&path, false).expect("a stale pidfile is no obstacle");
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n", std::process::id())
        );
        drop(pidfile);
        assert!(!path.exists());
        let pidfile = Pidfile::create(&path, false).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's\n").unwrap();
        drop(pidfile);
        assert!(path.exists());
        let error = Pidfile::create(&directory.path().join("none/x.pid"), false).unwrap_err();
        assert!(
            error.ends_with("none/x.pid.tmp: create failed (No such file or directory)"),
            "{error}"
        );
    }
}
