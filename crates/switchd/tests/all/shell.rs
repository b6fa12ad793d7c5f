//! Tests of the real daemon binary, driven by the real `ovs-appctl`, as operators and start scripts
//! do. Each test has its own directories; a daemon that a test leaves behind is killed by its
//! process id.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit for everything here.
const LIMIT: Duration = Duration::from_secs(30);

/// The database's files in the directory.
const DATABASE_FILES: [&str; 4] = ["conf.db", "db.ctl", ".conf.db.~lock~", "db.sock"];

/// A run directory with its own database. A daemon's command returns once the database's
/// configuration has been applied.
struct RunDirectory {
    directory: tempfile::TempDir,
    database: Child,
}

impl RunDirectory {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let made = Command::new("ovsdb-tool")
            .args(["create", &path("conf.db")])
            .arg("/usr/share/openvswitch/vswitch.ovsschema")
            .status();
        assert!(made.unwrap().success());
        let database = Command::new("ovsdb-server")
            .arg(path("conf.db"))
            .arg(format!("--remote=punix:{}", path("db.sock")))
            .arg(format!("--unixctl={}", path("db.ctl")))
            .args(["--no-chdir", "-vconsole:off", "-vsyslog:off", "-vfile:off"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let place = RunDirectory {
            directory,
            database,
        };
        eventually("the database serves", || place.path("db.sock").exists());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .args(arguments)
            .stdin(Stdio::null())
            .current_dir(self.directory.path());
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            command.env(variable, self.directory.path());
        }
        command
    }

    /// Runs the daemon's command until its first process ends.
    fn sluiced(&self, arguments: &[&str]) -> Output {
        // A detached daemon keeps no pipe of ours open, so this ends with the first process.
        self.command(env!("CARGO_BIN_EXE_sluiced"), arguments)
            .output()
            .unwrap()
    }

    /// Starts a daemon in the background and waits until its command returns.
    fn detach(&self, more: &[&str]) -> i32 {
        let mut arguments = vec![
            "--detach",
            "--pidfile",
            "--log-file",
            "-vconsole:off",
            "--syslog-method=null",
        ];
        arguments.extend(more);
        let output = self.sluiced(&arguments);
        assert!(output.status.success(), "{output:?}");
        self.pid()
    }

    fn pid(&self) -> i32 {
        fs::read_to_string(self.path("ovs-vswitchd.pid"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    fn appctl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self
            .command("ovs-appctl", &["-T", "20"])
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("ovs-vswitchd.log")).unwrap_or_default()
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let pidfile = fs::read_to_string(self.path("ovs-vswitchd.pid")).unwrap_or_default();
        if let Ok(pid) = pidfile.trim().parse::<i32>() {
            kill(pid, libc::SIGKILL);
        }
        let _ = self.database.kill();
        let _ = self.database.wait();
    }
}

fn kill(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: kill has no memory effects, and the pid is one that a daemon of this test wrote.
    unsafe { libc::kill(pid, signal) };
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "does not happen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether the process exists and is no zombie.
fn runs(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn parent_of(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_detached_daemon_serves_appctl_and_exits_clean() {
    let place = RunDirectory::new();
    let pid = place.detach(&[]);
    let socket = place.path(&format!("ovs-vswitchd.{pid}.ctl"));
    let attributes = fs::metadata(&socket).unwrap();
    assert!(attributes.file_type().is_socket());
    assert_eq!(attributes.permissions().mode() & 0o007, 0);
    let version = place.appctl(&["version"]).unwrap();
    assert_eq!(
        version.lines().next().unwrap().rsplit(' ').next(),
        Some("3.1.0")
    );
    assert!(version.contains("Sluice"));
    assert_eq!(
        place
            .appctl(&["-t", socket.to_str().unwrap(), "version"])
            .unwrap(),
        version
    );
    let commands = place.appctl(&["list-commands"]).unwrap();
    assert!(commands.starts_with("The available commands are:\n"));
    assert!(
        commands.contains("  exit                    [--cleanup]\n"),
        "{commands}"
    );
    assert!(!commands.contains("time/warp"));
    assert_eq!(place.appctl(&["exit"]).unwrap(), "");
    assert!(
        !socket.exists() && !place.path("ovs-vswitchd.pid").exists(),
        "the next one may start right away"
    );
    eventually("the daemon ends", || !runs(pid));
}

#[test]
fn errors_are_open_vswitchs() {
    let place = RunDirectory::new();
    place.detach(&[]);
    let error = |arguments: &[&str]| {
        place
            .appctl(arguments)
            .unwrap_err()
            .lines()
            .next()
            .unwrap()
            .to_string()
    };
    assert_eq!(
        error(&["foo"]),
        "\"foo\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
    );
    assert_eq!(
        error(&["version", "x"]),
        "\"version\" command takes at most 0 arguments"
    );
    assert_eq!(
        error(&["coverage/read-counter"]),
        "\"coverage/read-counter\" command requires at least 1 arguments"
    );
    assert_eq!(error(&["coverage/read-counter", "foo"]), "No such counter");
    assert_eq!(
        error(&["vlog/set", "foo"]),
        "no destination, level, or module \"foo\""
    );
    assert_eq!(error(&["vlog/disable-rate-limit", "foo"]), "unknown module");
    assert!(
        place
            .appctl(&["coverage/read-counter", "unixctl_received"])
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
            > 5
    );
    assert!(
        place
            .appctl(&["coverage/show"])
            .unwrap()
            .contains("\nunixctl_received  ")
    );
    assert_eq!(place.appctl(&["memory/show"]), Ok(String::new()));
}

#[test]
fn log_levels_patterns_and_rotation() {
    let place = RunDirectory::new();
    let pid = place.detach(&[]);
    place.appctl(&["vlog/set", "unixctl:file:dbg"]).unwrap();
    assert!(
        place
            .appctl(&["vlog/list"])
            .unwrap()
            .contains("\nunixctl            OFF       INFO        DBG\n")
    );
    eventually("the request is logged", || {
        place
            .log()
            .contains("|unixctl|DBG|received request vlog/list[], id=0")
    });
    let line = place.log().lines().next().unwrap().to_string();
    let (time, rest) = line.split_once('|').unwrap();
    assert_eq!(time.len(), "2026-11-21T10:00:00.123Z".len());
    assert!(
        rest.starts_with("00001|vlog|INFO|opened log file /"),
        "{line}"
    );
    place.appctl(&["vlog/set", "PATTERN:file:<%c> %m"]).unwrap();
    assert!(
        place
            .appctl(&["vlog/list-pattern"])
            .unwrap()
            .contains("\nFILE     none                              <%c> %m\n")
    );
    for rotate in ["command", "signal"] {
        let old = place.path(rotate);
        fs::rename(place.path("ovs-vswitchd.log"), &old).unwrap();
        if rotate == "command" {
            place.appctl(&["vlog/reopen"]).unwrap();
            assert!(
                place.path("ovs-vswitchd.log").exists(),
                "it is there when the command returns"
            );
        } else {
            kill(pid, libc::SIGHUP);
        }
        eventually("the new file is used", || {
            place.log().starts_with("<vlog> opened log file ")
        });
        eventually("the old file is ended", || {
            fs::read_to_string(&old)
                .unwrap()
                .ends_with("<vlog> closing log file\n")
        });
    }
    place.appctl(&["vlog/close"]).unwrap();
    assert!(runs(pid));
}

#[test]
fn one_daemon_for_one_pidfile() {
    let place = RunDirectory::new();
    let pid = place.detach(&[]);
    for arguments in [
        &["--pidfile", "--unixctl=none"][..],
        &["--pidfile", "--unixctl=none", "--detach"],
    ] {
        let output = place.sluiced(arguments);
        assert_eq!(output.status.code(), Some(1));
        let expected = format!("/ovs-vswitchd.pid: already running as pid {pid}, aborting\n");
        assert!(text(&output).ends_with(&expected), "{}", text(&output));
    }
    assert_eq!(place.pid(), pid);
    // It has the pidfile at once, and is ready once it also has the database's lock.
    let arguments = [
        "--detach",
        "--pidfile",
        "--overwrite-pidfile",
        "--syslog-method=null",
    ];
    let mut waiting = place
        .command(env!("CARGO_BIN_EXE_sluiced"), &arguments)
        .spawn()
        .unwrap();
    eventually("the second daemon has the pidfile", || place.pid() != pid);
    let second = place.pid();
    kill(pid, libc::SIGTERM);
    eventually("the first daemon ends", || !runs(pid));
    assert!(waiting.wait().unwrap().success());
    assert_eq!(
        place.pid(),
        second,
        "it leaves the pidfile that is another's by now"
    );
}

#[test]
fn a_daemon_that_cannot_start_tells_whoever_waits() {
    let place = RunDirectory::new();
    let output = place.sluiced(&[
        "--detach",
        "--pidfile",
        "--unixctl=/nonexistent/x",
        "--syslog-method=null",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "sluiced: /nonexistent/x: could not initialize control socket (No such file or directory)\n";
    assert!(text(&output).ends_with(expected), "{}", text(&output));
    assert!(!place.path("ovs-vswitchd.pid").exists());
    let output = place.sluiced(&[
        "--detach",
        "--pidfile=/nonexistent/x",
        "--syslog-method=null",
    ]);
    assert_eq!(
        text(&output),
        "sluiced: /nonexistent/x.tmp: create failed (No such file or directory)\n"
    );
    let output = place.sluiced(&["-vfoo"]);
    assert_eq!(
        text(&output),
        "sluiced: processing \"foo\": no destination, level, or module \"foo\"\n"
    );
    assert_eq!(output.status.code(), Some(1));
    let output = place.sluiced(&["--help"]);
    assert!(output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stdout)
            .contains(&format!("unix:{}/db.sock", place.path("").display()).replace("//", "/"))
    );
}

struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signals_end_a_foreground_daemon() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let place = RunDirectory::new();
        let mut command = place.command(
            env!("CARGO_BIN_EXE_sluiced"),
            &["--pidfile", "--compat", "--syslog-method=null"],
        );
        let mut daemon = Foreground(command.stderr(Stdio::null()).spawn().unwrap());
        let pid = daemon.0.id() as i32;
        eventually("it serves", || {
            place.path("ovs-vswitchd.pid").exists() && place.appctl(&["version"]).is_ok()
        });
        assert_eq!(place.pid(), pid);
        assert_eq!(
            fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(),
            "ovs-vswitchd\n"
        );
        kill(pid, signal);
        assert!(daemon.0.wait().unwrap().success());
        let left: Vec<_> = fs::read_dir(place.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| !DATABASE_FILES.iter().any(|file| name == file))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn the_monitor_restarts_what_crashes_and_ends_with_the_rest() {
    let place = RunDirectory::new();
    let first = place.detach(&["--monitor"]);
    let monitor = parent_of(first);
    let title = || {
        String::from_utf8_lossy(&fs::read(format!("/proc/{monitor}/cmdline")).unwrap())
            .replace('\0', "")
    };
    eventually("a healthy title", || {
        title() == format!("sluiced: monitoring pid {first} (healthy)")
    });
    assert_eq!(
        fs::read_to_string(format!("/proc/{monitor}/comm")).unwrap(),
        "monitor\n"
    );
    kill(first, libc::SIGSEGV);
    eventually("another daemon", || {
        place.path("ovs-vswitchd.pid").exists() && place.pid() != first
    });
    let second = place.pid();
    eventually("it serves", || place.appctl(&["version"]).is_ok());
    assert_eq!(parent_of(second), monitor);
    assert_eq!(
        fs::read_to_string(format!("/proc/{second}/comm")).unwrap(),
        "sluiced\n"
    );
    let line =
        String::from_utf8_lossy(&fs::read(format!("/proc/{second}/cmdline")).unwrap()).into_owned();
    assert!(
        line.ends_with("--monitor\0"),
        "the daemon's own command line is back: {line}"
    );
    assert!(!place.path(&format!("ovs-vswitchd.{first}.ctl")).exists());
    eventually("a title that tells", || {
        title().contains(&format!(
            "1 crashes: pid {first} died, killed (Segmentation fault"
        ))
    });
    assert!(
        place
            .log()
            .contains("|daemon_unix(monitor)|ERR|1 crashes: pid ")
    );
    kill(second, libc::SIGTERM);
    eventually("both end", || !runs(second) && !runs(monitor));
    assert!(
        place
            .log()
            .contains(&format!("pid {second} died, exit status 0, exiting"))
    );
}

#[test]
fn the_clock_stops_and_warps() {
    let place = RunDirectory::new();
    place.detach(&["--enable-dummy"]);
    place.appctl(&["time/stop"]).unwrap();
    assert_eq!(
        place.appctl(&["time/warp", "5000", "100"]).unwrap(),
        "warped\n"
    );
    for bad in [
        &["time/warp", "x"][..],
        &["time/warp", "0"],
        &["time/warp", "9999999999999"],
    ] {
        assert!(
            place
                .appctl(bad)
                .unwrap_err()
                .starts_with("invalid MSECS\n")
        );
    }
}

#[test]
fn clients_that_misbehave_hurt_only_themselves() {
    let place = RunDirectory::new();
    let pid = place.detach(&[]);
    let socket = place.path(&format!("ovs-vswitchd.{pid}.ctl"));
    let connect = || {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    for bad in [
        "[]",
        "garbage",
        "{\"id\":0,\"method\":5,\"params\":[]}",
        "{\"id\":0,\"result\":1,\"error\":null}",
    ] {
        let mut stream = connect();
        stream.write_all(bad.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"", "{bad}");
    }
    // Two requests at once, in pieces; answered in order.
    let mut stream = connect();
    for piece in b"{\"id\":\"a\",\"method\":\"nope\",\"params\":[]} {\"id\":7,\"method\":\"memory/show\",\"params\":[]}".chunks(9) {
        stream.write_all(piece).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(
        answers.starts_with(
            "{\"id\":\"a\",\"result\":null,\"error\":\"\\\"nope\\\" is not a valid command"
        ),
        "{answers}"
    );
    assert!(
        answers.ends_with("{\"id\":7,\"result\":\"\",\"error\":null}"),
        "{answers}"
    );
    // The number of silent clients is limited; when they leave there is room again.
    let crowd: Vec<_> = (0..64).map(|_| connect()).collect();
    eventually("the crowd is counted", || {
        place.appctl(&["version"]).is_err()
    });
    drop(crowd);
    eventually("there is room again", || place.appctl(&["version"]).is_ok());
    assert!(
        place
            .appctl(&["coverage/read-counter", "unixctl_refused"])
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
            > 0
    );
}
