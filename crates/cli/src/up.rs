//! `sluice up` and `sluice down`: a database and a daemon in a directory of their own, beside anything else that runs on the machine.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after SIGTERM.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Where to start, and what.
#[derive(Args)]
pub struct UpOptions {
    /// Directory for database, sockets, logs and pidfiles
    #[arg(default_value = "/var/run/sluice")]
    pub directory: PathBuf,
    /// The database's schema
    #[arg(long, default_value = "/usr/share/openvswitch/vswitch.ovsschema")]
    pub schema: PathBuf,
    /// The daemon [default: sluiced beside this command, or in PATH]
    #[arg(long)]
    pub sluiced: Option<PathBuf>,
    /// Set before the daemon starts, as COLUMN:KEY=VALUE of the Open_vSwitch table (other_config:pmd-cpu-mask=0x2)
    #[arg(long = "set", value_name = "COLUMN:KEY=VALUE")]
    pub settings: Vec<String>,
}

/// What to stop.
#[derive(Args)]
pub struct DownOptions {
    /// The directory given to `up`
    #[arg(default_value = "/var/run/sluice")]
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

/// The process whose id is in `pidfile`, if it is alive.
fn alive(pidfile: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(pidfile).ok()?.trim().parse().ok()?;
    Path::new(&format!("/proc/{pid}")).exists().then_some(pid)
}

/// The daemon's program: the one that was named, or beside this command, or in PATH.
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

/// `ID` and `VERSION_ID` of this system, as the distribution's start script writes them.
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
    fs::create_dir_all(&options.directory)
        .with_context(|| format!("cannot make {}", options.directory.display()))?;
    let directory = options.directory.canonicalize()?;
    let path = |name: &str| directory.join(name);
    let environment = [
        ("OVS_RUNDIR", &directory),
        ("OVS_LOGDIR", &directory),
        ("OVS_DBDIR", &directory),
    ];
    if let Some(pid) = alive(&path("ovs-vswitchd.pid")) {
        eprintln!("sluiced runs already (process {pid})");
        println!("export OVS_RUNDIR={}", directory.display());
        return Ok(());
    }
    let started_database = start_database(options, &directory)?;
    let started = write_system(options, &directory).and_then(|()| {
        run(Command::new(daemon_path(options.sluiced.as_ref()))
            .arg(format!("unix:{}", path("db.sock").display()))
            .args(["--pidfile", "--detach", "--log-file", "--compat"])
            .envs(environment))
        .context("the switch did not start; see ovs-vswitchd.log in the directory")
    });
    if let Err(error) = started {
        if started_database {
            stop(&path("ovsdb-server.pid"))?;
        }
        return Err(error);
    }
    eprintln!(
        "Sluice runs in {}. Let the ovs-* tools talk to it:",
        directory.display()
    );
    println!("export OVS_RUNDIR={}", directory.display());
    Ok(())
}

/// Starts `ovsdb-server` where none runs; true when it did.
fn start_database(options: &UpOptions, directory: &Path) -> Result<bool> {
    let path = |name: &str| directory.join(name);
    if alive(&path("ovsdb-server.pid")).is_some() {
        return Ok(false);
    }
    if !path("conf.db").exists() {
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(path("conf.db"))
            .arg(&options.schema))?;
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
        .envs([
            ("OVS_RUNDIR", directory),
            ("OVS_LOGDIR", directory),
            ("OVS_DBDIR", directory),
        ]))?;
    Ok(true)
}

/// Writes what the distribution's start script writes: versions and the system's name.
fn write_system(options: &UpOptions, directory: &Path) -> Result<()> {
    let database = format!("--db=unix:{}", directory.join("db.sock").display());
    let vsctl = |arguments: &[&str]| {
        run(Command::new("ovs-vsctl")
            .arg(&database)
            .args(["--no-wait", "--timeout=15"])
            .args(arguments))
    };
    vsctl(&["init"])?;
    let db_version = run(Command::new("ovsdb-tool")
        .arg("schema-version")
        .arg(&options.schema))?;
    // The last word of the first line, as for ovs-vswitchd: the Open vSwitch version that the daemon stands in for.
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
    vsctl(&set.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(())
}

/// Ends the process of a pidfile; nothing happens when it does not run.
fn stop(pidfile: &Path) -> Result<()> {
    let Some(pid) = alive(pidfile) else {
        return Ok(());
    };
    // SAFETY: kill has no memory effects; the process is the one that wrote the pidfile.
    if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
        bail!(
            "cannot end process {pid}: {}",
            std::io::Error::last_os_error()
        );
    }
    let deadline = Instant::now() + END_PATIENCE;
    while Path::new(&format!("/proc/{pid}")).exists() {
        if Instant::now() > deadline {
            bail!("process {pid} ({}) does not end", pidfile.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Stops what `up` started: the switch first, then the database. The configuration stays for the next `up`.
pub fn down(options: &DownOptions) -> Result<()> {
    stop(&options.directory.join("ovs-vswitchd.pid"))?;
    stop(&options.directory.join("ovsdb-server.pid"))
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
}
