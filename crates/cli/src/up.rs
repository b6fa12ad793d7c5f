//! `sluice up` and `sluice down`: a database and a daemon in a directory of their own, independent
//! of anything else on the machine.

use crate::appctl::{Appctl, socket_in};
use crate::output::{errln, outln};
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, Signal, fcntl_getlk, kill_process};
use std::fs;
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The default directory of a switch.
pub(crate) const DIRECTORY: &str = "/var/run/sluice";
/// The schema from the distribution's package.
pub(crate) const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Most bytes of a log that are looked at.
const LOG_MAX: u64 = 1 << 20;
/// Time for another command to end its work on the same directory.
const OTHERS_PATIENCE: Duration = Duration::from_secs(60);
/// Time for a process to end after SIGTERM.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Where to start, and what.
#[derive(Args)]
pub struct UpOptions {
    /// Directory for database, sockets, logs and pidfiles
    #[arg(default_value = DIRECTORY)]
    pub directory: PathBuf,
    /// Schema file of the database
    #[arg(long, default_value = SCHEMA)]
    pub schema: PathBuf,
    /// Path of the daemon [default: sluiced in the directory of this command, else in PATH]
    #[arg(long)]
    pub sluiced: Option<PathBuf>,
    /// Set a key in the Open_vSwitch table before the daemon starts, such as
    /// other_config:pmd-cpu-mask=0x2; may be repeated
    #[arg(long = "set", value_name = "COLUMN:KEY=VALUE")]
    pub settings: Vec<String>,
}

/// What to stop.
#[derive(Args)]
pub struct DownOptions {
    /// Directory that was given to `up`
    #[arg(default_value = DIRECTORY)]
    pub directory: PathBuf,
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// Returns the process that holds the lock on `pidfile`, as daemons do until they end. The number
/// in the file alone may belong to another process by now.
pub(crate) fn alive(pidfile: &Path) -> Option<i32> {
    let file = fs::File::open(pidfile).ok()?;
    let held = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??;
    Some(held.pid?.as_raw_pid()).filter(|pid| *pid > 0)
}

/// Fails if it cannot be determined whether a switch runs, which differs from knowing that none
/// does.
pub(crate) fn check_readable(directory: &Path) -> Result<()> {
    let pidfile = directory.join("ovs-vswitchd.pid");
    match fs::File::open(&pidfile) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            bail!("{}: {error}; are you root?", pidfile.display())
        }
        _ => Ok(()),
    }
}

/// Returns whether a process exists and is not a zombie.
fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // PID (NAME) STATE ...; names may have parentheses.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Returns the variables by which tools and daemons find their files below `directory`.
pub(crate) fn environment(directory: &Path) -> [(&'static str, &Path); 3] {
    ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"].map(|name| (name, directory))
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns a directory as a shell's command has to name it.
fn named(directory: &Path) -> String {
    quoted(&directory.to_string_lossy())
}

/// Waits until no other command works on this directory (but `top`), and keeps others from it until
/// the result is dropped.
pub(crate) fn alone_in(directory: &Path) -> Result<fs::File> {
    let shown = directory.display();
    let file = fs::File::open(directory).with_context(|| format!("{shown}"))?;
    let deadline = Instant::now() + OTHERS_PATIENCE;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error.kind() != std::io::ErrorKind::WouldBlock {
            // A file system without locks: better without than not at all.
            break;
        }
        if Instant::now() > deadline {
            bail!(
                "{shown}: another command of `sluice` has worked on it for {} s",
                OTHERS_PATIENCE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(file)
}

/// Fails if the daemon or its database do not answer.
pub(crate) fn check_answers(directory: &Path) -> Result<()> {
    let explained = |what: &str, error: anyhow::Error, name: &str| {
        let error = format!("{error:#}");
        let pid = alive(&directory.join(format!("{name}.pid")));
        match pid.filter(|_| error.contains("does not answer")) {
            Some(pid) => {
                anyhow::anyhow!("{what}: {error}; `kill -9 {pid}` ends it whatever it does")
            }
            None => anyhow::anyhow!("{what}: {error}"),
        }
    };
    Appctl::connect(&socket_in(directory)?)
        .and_then(|mut daemon| daemon.call("version", &[]))
        .map_err(|error| explained("the switch", error, "ovs-vswitchd"))?;
    let database = directory.join("db.sock");
    if !database.exists() {
        return Ok(()); // elsewhere
    }
    Appctl::connect(&database)
        .and_then(|mut server| server.greet())
        .map_err(|error| explained("the switch's database", error, "ovsdb-server"))
}

/// Returns the line that a shell evaluates.
fn exports(directory: &Path) -> String {
    let value = quoted(&directory.to_string_lossy());
    let words = environment(directory).map(|(name, _)| format!("{name}={value}"));
    format!("export {}", words.join(" "))
}

/// Prints where the switch is, for people to standard error and for the shell to standard output.
fn tell(directory: &Path) {
    let shown = directory.display();
    match std::io::stdout().is_terminal() {
        true => {
            errln!(
                "Sluice runs in {shown}. For the ovs-* tools of a shell to talk to it, run there:"
            )
        }
        false => {
            errln!("Sluice runs in {shown}; ovs-* tools with the printed variables talk to it.")
        }
    }
    outln!("{}", exports(directory));
}

/// Warns if capabilities are missing, which root has, and what does not work without them.
fn warn_without_root() {
    const NEEDED: [(u32, &str); 2] = [(12, "NET_ADMIN"), (13, "NET_RAW")];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing(&status, &NEEDED);
    if !missing.is_empty() {
        errln!(
            "sluice: warning: not root (no {}): the switch cannot open or make kernel interfaces, \
             bridges' own among them; only ports of type dpdk that need no device, such as \
             net_pcap, will work",
            missing.join(", ")
        );
    }
}

/// Returns the names of capabilities that are not effective according to `/proc/PID/status`.
fn missing<'a>(status: &str, needed: &[(u32, &'a str)]) -> Vec<&'a str> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(u64::MAX);
    let lacks = needed.iter().filter(|(bit, _)| effective >> bit & 1 == 0);
    lacks.map(|(_, name)| *name).collect()
}

/// Returns the daemon's program: the given one, the one beside this command, or the one in PATH.
pub(crate) fn daemon_path(named: Option<&PathBuf>) -> PathBuf {
    let beside = || {
        let path = std::env::current_exe().ok()?.parent()?.join("sluiced");
        path.exists().then_some(path)
    };
    named
        .cloned()
        .or_else(beside)
        .unwrap_or_else(|| PathBuf::from("sluiced"))
}

/// Returns `ID` and `VERSION_ID` of this system, as the distribution's start script writes them.
fn system() -> (String, String) {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let find = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map_or_else(
                || "unknown".to_owned(),
                |value| value.trim_matches('"').to_owned(),
            )
    };
    (find("ID"), find("VERSION_ID"))
}

/// Starts a database and a daemon.
pub fn up(options: &UpOptions) -> Result<()> {
    // One that runs already may be root's.
    if alive(&options.directory.join("ovs-vswitchd.pid")).is_none() {
        warn_without_root();
    }
    let hint = match options.directory == Path::new(DIRECTORY) {
        true => "; name a directory of your own: sluice up DIRECTORY",
        false => "",
    };
    fs::create_dir_all(&options.directory)
        .with_context(|| format!("cannot make {}{hint}", options.directory.display()))?;
    let directory = options.directory.canonicalize()?;
    if directory.to_str().is_none() {
        // Tools take the names of sockets as text.
        bail!("{}: the name is not UTF-8", directory.display());
    }
    check_readable(&directory)?;
    let _alone = alone_in(&directory)?;
    if let Some(pid) = alive(&directory.join("ovs-vswitchd.pid")) {
        errln!("sluiced runs already (process {pid})");
        if !options.settings.is_empty() {
            bail!(
                "--set is for a switch that starts; ovs-vsctl set Open_vSwitch . changes this one"
            );
        }
        // Its database may have ended, and the switch cannot be configured without one. A database
        // elsewhere, such as the system's, is not started here.
        let is_ours = directory.join("conf.db").exists();
        if is_ours && start_database(&options.schema, &directory)? {
            errln!("The switch's database did not run, and was started.");
        }
        check_answers(&directory)?;
        tell(&directory);
        return Ok(());
    }
    // A switch run by root leaves a directory that others cannot write to.
    tempfile::tempfile_in(&directory)
        .with_context(|| format!("cannot write into {}{hint}", directory.display()))?;
    let was_there = directory.join("conf.db").exists();
    let started_database = start_database(&options.schema, &directory)?;
    let log = directory.join("ovs-vswitchd.log");
    let logged = fs::metadata(&log).map_or(0, |file| file.len());
    let started = write_system(options, &directory)
        .and_then(|()| start_switch(options.sluiced.as_ref(), &directory));
    if let Err(error) = started {
        if started_database {
            stop(&directory.join("ovsdb-server.pid"))?;
        }
        return Err(error);
    }
    tell_what_is_ignored(&log, logged);
    if was_there {
        tell_what_stayed(&directory);
    }
    tell(&directory);
    Ok(())
}

/// Prints what the daemon has logged of settings of the switch as a whole that it does not take, in
/// what its log has behind `from` bytes: no row of the database tells of these.
fn tell_what_is_ignored(log: &Path, from: u64) {
    let mut text = Vec::new();
    let read = fs::File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.take(LOG_MAX).read_to_end(&mut text)
    });
    if read.is_ok() {
        for line in String::from_utf8_lossy(&text).lines() {
            if let Some((_, said)) = line.split_once("|WARN|open_vswitch ") {
                errln!("sluice: warning: {said}");
            }
        }
    }
}

/// Prints that an earlier configuration is in force and that its rules are gone.
fn tell_what_stayed(directory: &Path) {
    let bridges = vsctl(directory, &["list-br"]).unwrap_or_default();
    let bridges: Vec<&str> = bridges.split_whitespace().collect();
    if bridges.is_empty() {
        return;
    }
    let kept = match crate::keep::has_saved(directory) {
        true => format!(
            ": `sluice restore {}` puts back what was saved",
            named(directory)
        ),
        false => String::new(),
    };
    errln!(
        "The configuration of before is in force (bridges {}); rules, groups and meters of before \
         are gone{kept}.",
        bridges.join(", ")
    );
}

/// Starts the daemon with the database of `directory`, and returns when its first configuration is
/// in force.
pub(crate) fn start_switch(sluiced: Option<&PathBuf>, directory: &Path) -> Result<()> {
    run(Command::new(daemon_path(sluiced))
        .arg(format!("unix:{}", directory.join("db.sock").display()))
        .args(["--pidfile", "--detach", "--log-file", "--compat"])
        .envs(environment(directory)))
    .with_context(|| {
        let log = directory.join("ovs-vswitchd.log");
        format!("the switch did not start; see {}", log.display())
    })?;
    Ok(())
}

/// Returns the output of `ovs-vsctl` for the database of `directory`, whether or not a switch runs.
fn vsctl(directory: &Path, arguments: &[&str]) -> Result<String> {
    run(Command::new("ovs-vsctl")
        .arg(format!("--db=unix:{}", directory.join("db.sock").display()))
        .args(["--no-wait", "--timeout=15"])
        .args(arguments)
        .envs(environment(directory)))
}

/// Starts `ovsdb-server` if it does not run; returns whether it was started.
pub(crate) fn start_database(schema: &Path, directory: &Path) -> Result<bool> {
    let path = |name: &str| directory.join(name);
    if alive(&path("ovsdb-server.pid")).is_some() {
        return Ok(false);
    }
    if !path("conf.db").exists() {
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(path("conf.db"))
            .arg(schema))?;
    }
    run(Command::new("ovsdb-server")
        .arg(path("conf.db"))
        .arg(format!("--remote=punix:{}", path("db.sock").display()))
        .arg("--remote=db:Open_vSwitch,Open_vSwitch,manager_options")
        .args([
            "--pidfile",
            "--detach",
            "--log-file",
            "-vconsole:off",
            "-vsyslog:off",
        ])
        .envs(environment(directory)))?;
    Ok(true)
}

/// Writes what the distribution's start script writes: versions and the system's name.
fn write_system(options: &UpOptions, directory: &Path) -> Result<()> {
    vsctl(directory, &["init"])?;
    let db_version = run(Command::new("ovsdb-tool")
        .arg("schema-version")
        .arg(&options.schema))?;
    // The last word of the first line is, as for ovs-vswitchd, the Open vSwitch version: here that
    // of which the daemon takes the place.
    let version = run(Command::new(daemon_path(options.sluiced.as_ref())).arg("--version"))?;
    let ovs_version = version
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().last())
        .unwrap_or("unknown");
    let (system_type, system_version) = system();
    let mut set = vec![
        "set".to_owned(),
        "Open_vSwitch".to_owned(),
        ".".to_owned(),
        format!("ovs_version={ovs_version}"),
        format!("db_version={db_version}"),
        format!("system_type={system_type}"),
        format!("system_version=\"{system_version}\""),
    ];
    set.extend(options.settings.iter().cloned());
    vsctl(
        directory,
        &set.iter().map(String::as_str).collect::<Vec<_>>(),
    )?;
    Ok(())
}

/// Ends the process of a pidfile; does nothing if it does not run.
pub(crate) fn stop(pidfile: &Path) -> Result<()> {
    let Some(pid) = alive(pidfile) else {
        return Ok(());
    };
    // The process is the one that wrote the pidfile. It may end by itself just now.
    if let Some(process) = Pid::from_raw(pid)
        && let Err(error) = kill_process(process, Signal::TERM)
        && error != Errno::SRCH
    {
        let error = std::io::Error::from(error);
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; are you root?",
            _ => "",
        };
        bail!("cannot end process {pid}: {error}{hint}");
    }
    let deadline = Instant::now() + END_PATIENCE;
    while is_running(pid) {
        if Instant::now() > deadline {
            bail!(
                "process {pid} ({}) does not end within {} s; `kill -9 {pid}` ends it whatever it does",
                pidfile.display(),
                END_PATIENCE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Fails if a switch with another database runs, such as the system's in `/run/openvswitch`.
pub(crate) fn check_own(directory: &Path) -> Result<()> {
    if directory.join("conf.db").exists() || alive(&directory.join("ovs-vswitchd.pid")).is_none() {
        return Ok(());
    }
    bail!(
        "{}: a switch runs there that `sluice up` has not started",
        directory.display()
    );
}

/// Stops what `up` started: first the switch, then the database. The configuration is kept for the
/// next `up`.
pub fn down(options: &DownOptions) -> Result<()> {
    let directory = &options.directory;
    let shown = directory.display();
    if !directory.exists() {
        errln!("No switch ran in {shown}: there is no such directory.");
        return Ok(());
    }
    check_readable(directory)?;
    check_own(directory)?;
    let _alone = alone_in(directory)?;
    let ran = alive(&directory.join("ovs-vswitchd.pid")).is_some();
    stop(&directory.join("ovs-vswitchd.pid"))?;
    stop(&directory.join("ovsdb-server.pid"))?;
    match ran {
        true => errln!(
            "Stopped. The configuration (bridges, ports, QoS) stays in {shown}/conf.db; rules, \
             groups and meters are gone, unless `sluice save {}` was run before.",
            named(directory)
        ),
        false => errln!("No switch ran in {shown}."),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_stop_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        down(&DownOptions {
            directory: directory.path().to_owned(),
        })
        .unwrap();
        fs::write(directory.path().join("ovs-vswitchd.pid"), "4194999\n").unwrap();
        down(&DownOptions {
            directory: directory.path().to_owned(),
        })
        .unwrap();
    }

    #[test]
    fn names_that_tools_cannot_say_are_refused() {
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        let options = UpOptions {
            directory: directory.path().join(std::ffi::OsStr::from_bytes(b"\xff")),
            schema: SCHEMA.into(),
            sluiced: Some("/bin/true".into()),
            settings: Vec::new(),
        };
        let error = format!("{:#}", up(&options).unwrap_err());
        assert!(error.contains("not UTF-8"), "{error}");
    }

    #[test]
    fn an_unreadable_pidfile_is_an_error() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        assert!(
            check_readable(directory.path()).is_ok(),
            "nothing runs there"
        );
        let pidfile = directory.path().join("ovs-vswitchd.pid");
        fs::write(&pidfile, "1\n").unwrap();
        assert!(check_readable(directory.path()).is_ok());
        // Root can read everything.
        fs::set_permissions(&pidfile, fs::Permissions::from_mode(0o000)).unwrap();
        if fs::File::open(&pidfile).is_err() {
            let options = DownOptions {
                directory: directory.path().to_owned(),
            };
            let error = format!("{:#}", down(&options).unwrap_err());
            assert!(error.contains("are you root?"), "{error}");
        }
    }

    #[test]
    fn a_missing_schema_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let options = UpOptions {
            directory: directory.path().to_owned(),
            schema: "/nowhere/x.ovsschema".into(),
            sluiced: Some("/bin/true".into()),
            settings: Vec::new(),
        };
        let error = format!("{:#}", up(&options).unwrap_err());
        assert!(error.contains("/nowhere/x.ovsschema"), "{error}");
        assert!(!directory.path().join("ovsdb-server.pid").exists());
    }

    #[test]
    fn a_pidfile_that_nobody_holds_is_no_process() {
        let directory = tempfile::tempdir().unwrap();
        let pidfile = directory.path().join("ovs-vswitchd.pid");
        // The id of an existing process: this one.
        fs::write(&pidfile, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(alive(&pidfile), None);
        assert!(is_running(std::process::id() as i32));
        stop(&pidfile).unwrap();
    }

    #[test]
    fn shells_read_directories_back() {
        assert_eq!(
            exports(Path::new("/tmp/a-b")),
            "export OVS_RUNDIR=/tmp/a-b OVS_LOGDIR=/tmp/a-b OVS_DBDIR=/tmp/a-b"
        );
        for name in ["/tmp/it's $HOME", "/a b;c", "/x\"y`z"] {
            let script = format!("{}; printf %s \"$OVS_LOGDIR\"", exports(Path::new(name)));
            let read = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&read.stdout), name);
        }
    }

    #[test]
    fn missing_capabilities_are_named() {
        let needed = [(12, "NET_ADMIN"), (13, "NET_RAW")];
        let of = |mask: &str| missing(&format!("Name:\tx\nCapEff:\t{mask}\n"), &needed);
        assert_eq!(of("0000000000000000"), ["NET_ADMIN", "NET_RAW"]);
        assert_eq!(of("0000000000001000"), ["NET_RAW"]);
        assert!(of("000001ffffffffff").is_empty());
        // If the capabilities are unknown, there is no warning.
        assert!(missing("", &needed).is_empty());
    }
}
