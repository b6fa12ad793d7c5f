//! The command line of `sluiced`, read by the rules of `ovs-vswitchd`, which are those of glibc's
//! `getopt_long`: options and the one positional argument may be mixed, a long option may be
//! abbreviated to any unique prefix, its value follows after `=` or (unless it is optional) as the
//! next argument, and `--` ends the options. Start scripts depend on all of that, and on the error
//! messages, so no library is used.
//!
//! Reading changes nothing and prints nothing. [`parse`] returns the request, `main` carries it
//! out.

use std::path::PathBuf;

use crate::dirs::Directories;
use crate::streams::TlsFiles;

/// The version of Open vSwitch that Sluice is compatible with, as `--version` reports it.
pub const COMPATIBLE_VERSION: &str = "3.1.0";

/// The name of the daemon's files (pidfile, control socket, log) that Open vSwitch's tools expect,
/// whatever the binary is called.
pub const FILE_STEM: &str = "ovs-vswitchd";

/// Level of `--enable-dummy`: dummy devices exist for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DummyLevel {
    /// Types `dummy`, `dummy-pmd` and `dummy-internal` exist.
    Plain,
    /// In addition, interfaces of type `system` are dummies (`--enable-dummy=system`).
    System,
    /// In addition, every interface and datapath is a dummy (`--enable-dummy=override`).
    Override,
}

/// Place of the control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlSocket {
    /// `RUNDIR/ovs-vswitchd.PID.ctl`; the process id is known only after the forks.
    Default,
    /// At this path.
    At(PathBuf),
    /// No control socket (`--unixctl=none`).
    None,
}

/// All options and arguments of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The program's name in messages and in `/proc/PID/comm`: the last part of `argv[0]`, or
    /// `ovs-vswitchd` with `--compat`.
    pub program: String,
    /// The directories.
    pub directories: Directories,
    /// The database's connection method, by default `unix:RUNDIR/db.sock`.
    pub database: String,
    /// Run in the background (`--detach`).
    pub detach: bool,
    /// Do not change to `/` when detaching (`--no-chdir`).
    pub no_chdir: bool,
    /// The pidfile, if wanted.
    pub pidfile: Option<PathBuf>,
    /// Start even if the process in the pidfile is running (`--overwrite-pidfile`).
    pub overwrite_pidfile: bool,
    /// Restart the daemon when it crashes (`--monitor`).
    pub monitor: bool,
    /// The user to become, `USER`, `USER:GROUP` or `:GROUP` (`--user`).
    pub user: Option<String>,
    /// Lock all memory (`--mlockall`).
    pub mlockall: bool,
    /// The logging specifications (`-v`), in order; an empty one means everything at `dbg`.
    pub verbose: Vec<String>,
    /// The log file, absolute, if wanted.
    pub log_file: Option<PathBuf>,
    /// Method for the system log: `libc`, `null`, `unix:FILE` or `udp:IP:PORT`.
    pub syslog_method: String,
    /// A host and port to which the system log is sent in addition (`--syslog-target`).
    pub syslog_target: Option<String>,
    /// The control socket.
    pub unixctl: ControlSocket,
    /// Keys and certificates.
    pub tls: TlsFiles,
    /// Whether dummy devices exist and what they replace.
    pub dummy: Option<DummyLevel>,
    /// The NUMA node that commands show for each core, by the core's number, for tests
    /// (`--dummy-numa`); if empty, the machine's.
    pub dummy_numa: Vec<usize>,
    /// Refuse the kernel's own datapath (`--disable-system`).
    pub disable_system: bool,
    /// Do not follow the kernel's routing table (`--disable-system-route`).
    pub disable_system_route: bool,
    /// Use the name `ovs-vswitchd` although started under another one (`--compat`).
    pub compat: bool,
}

impl Options {
    /// Returns the path of the control socket of the daemon with this process id, if it has one.
    pub fn control_path(&self, pid: i32) -> Option<PathBuf> {
        match &self.unixctl {
            ControlSocket::None => None,
            ControlSocket::At(path) => Some(path.clone()),
            ControlSocket::Default => {
                Some(self.directories.in_run(format!("{FILE_STEM}.{pid}.ctl")))
            }
        }
    }
}

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Run the daemon.
    Run(Box<Options>),
    /// Print this text and exit with status 0 (`--help`, `--version`).
    Print(String),
}

/// A bad command line. The text is complete, with the program's name; the exit status is 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    Optional,
    Required,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Help,
    Version,
    Mlockall,
    Unixctl,
    Detach,
    NoChdir,
    Pidfile,
    OverwritePidfile,
    Monitor,
    User,
    NoSelfConfinement,
    Verbose,
    LogFile,
    SyslogMethod,
    SyslogTarget,
    PrivateKey,
    Certificate,
    CaCert,
    SslProtocols,
    SslCiphers,
    PeerCaCert,
    BootstrapCaCert,
    EnableDummy,
    DummyNuma,
    DisableSystem,
    DisableSystemRoute,
    Dpdk,
    Compat,
}

/// All long options, in the order in which an ambiguous one lists its candidates.
const LONG: &[(&str, Value, Name)] = &[
    ("help", Value::None, Name::Help),
    ("version", Value::None, Name::Version),
    ("mlockall", Value::None, Name::Mlockall),
    ("unixctl", Value::Required, Name::Unixctl),
    ("detach", Value::None, Name::Detach),
    ("no-chdir", Value::None, Name::NoChdir),
    ("pidfile", Value::Optional, Name::Pidfile),
    ("overwrite-pidfile", Value::None, Name::OverwritePidfile),
    ("monitor", Value::None, Name::Monitor),
    ("user", Value::Required, Name::User),
    ("no-self-confinement", Value::None, Name::NoSelfConfinement),
    ("verbose", Value::Optional, Name::Verbose),
    ("log-file", Value::Optional, Name::LogFile),
    ("syslog-method", Value::Required, Name::SyslogMethod),
    ("syslog-target", Value::Required, Name::SyslogTarget),
    ("private-key", Value::Required, Name::PrivateKey),
    ("certificate", Value::Required, Name::Certificate),
    ("ca-cert", Value::Required, Name::CaCert),
    ("ssl-protocols", Value::Required, Name::SslProtocols),
    ("ssl-ciphers", Value::Required, Name::SslCiphers),
    ("peer-ca-cert", Value::Required, Name::PeerCaCert),
    ("bootstrap-ca-cert", Value::Required, Name::BootstrapCaCert),
    ("enable-dummy", Value::Optional, Name::EnableDummy),
    ("dummy-numa", Value::Required, Name::DummyNuma),
    ("disable-system", Value::None, Name::DisableSystem),
    (
        "disable-system-route",
        Value::None,
        Name::DisableSystemRoute,
    ),
    ("dpdk", Value::Optional, Name::Dpdk),
    ("compat", Value::None, Name::Compat),
];

const SHORT: &[(char, Value, Name)] = &[
    ('h', Value::None, Name::Help),
    ('V', Value::None, Name::Version),
    ('v', Value::Optional, Name::Verbose),
    ('p', Value::Required, Name::PrivateKey),
    ('c', Value::Required, Name::Certificate),
    ('C', Value::Required, Name::CaCert),
];

/// Reads a command line. `arguments` begins with the program's own name (`argv[0]`); relative log
/// files are resolved against `current`, because `--detach` changes the directory before the log is
/// reopened.
pub fn parse(
    arguments: &[String],
    directories: Directories,
    current: &std::path::Path,
) -> Result<Request, UsageError> {
    let command = arguments.first().map_or("sluiced", String::as_str);
    let given: Vec<Given> = split(command, arguments.get(1..).unwrap_or_default())?;
    let mut reader = Reader::new(command, directories, current);
    let mut positional = Vec::new();
    for item in given {
        match item {
            Given::Positional(text) => positional.push(text),
            Given::Option(name, value) => {
                if let Some(text) = reader.apply(name, value)? {
                    return Ok(Request::Print(text));
                }
            }
            Given::Error(text) => return Err(UsageError(text)),
        }
    }
    let mut options = reader.options;
    match positional.len() {
        0 => {}
        1 => options.database = positional.remove(0),
        _ => {
            let program = &options.program;
            let text = format!(
                "{program}: at most one non-option argument accepted; use --help for usage"
            );
            return Err(UsageError(text));
        }
    }
    Ok(Request::Run(Box::new(options)))
}

/// One item of the command line. Errors keep their position, because a `--version` before them
/// still takes effect.
enum Given {
    Option(Name, Option<String>),
    Positional(String),
    Error(String),
}

fn split(command: &str, arguments: &[String]) -> Result<Vec<Given>, UsageError> {
    let mut items = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            items.extend(rest.by_ref().map(|text| Given::Positional(text.clone())));
        } else if let Some(long) = argument.strip_prefix("--") {
            items.push(long_option(command, long, &mut rest));
        } else if argument.len() > 1 && argument.starts_with('-') {
            short_options(command, &argument[1..], &mut rest, &mut items);
        } else {
            items.push(Given::Positional(argument.clone()));
        }
        if matches!(items.last(), Some(Given::Error(_))) {
            break;
        }
    }
    Ok(items)
}

fn long_option<'a>(
    command: &str,
    text: &str,
    rest: &mut impl Iterator<Item = &'a String>,
) -> Given {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_string())),
        None => (text, None),
    };
    let candidates: Vec<_> = match LONG.iter().find(|(full, ..)| *full == name) {
        Some(exact) => vec![exact],
        None => LONG
            .iter()
            .filter(|(full, ..)| full.starts_with(name))
            .collect(),
    };
    let &&(full, takes, option) = match candidates.as_slice() {
        [] => return Given::Error(format!("{command}: unrecognized option '--{text}'")),
        [one] => one,
        several => {
            let possible: String = several
                .iter()
                .map(|(full, ..)| format!(" '--{full}'"))
                .collect();
            return Given::Error(format!(
                "{command}: option '--{text}' is ambiguous; possibilities:{possible}"
            ));
        }
    };
    match (takes, value) {
        (Value::None, Some(_)) => Given::Error(format!(
            "{command}: option '--{full}' doesn't allow an argument"
        )),
        (Value::Required, None) => match rest.next() {
            Some(next) => Given::Option(option, Some(next.clone())),
            None => Given::Error(format!("{command}: option '--{full}' requires an argument")),
        },
        (_, value) => Given::Option(option, value),
    }
}

fn short_options<'a>(
    command: &str,
    text: &str,
    rest: &mut impl Iterator<Item = &'a String>,
    items: &mut Vec<Given>,
) {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let Some(&(_, takes, option)) = SHORT.iter().find(|(known, ..)| *known == letter) else {
            items.push(Given::Error(format!(
                "{command}: invalid option -- '{letter}'"
            )));
            return;
        };
        let attached = letters.as_str();
        items.push(match takes {
            Value::None => {
                items.push(Given::Option(option, None));
                continue;
            }
            Value::Optional => {
                Given::Option(option, (!attached.is_empty()).then(|| attached.to_string()))
            }
            Value::Required if !attached.is_empty() => {
                Given::Option(option, Some(attached.to_string()))
            }
            Value::Required => match rest.next() {
                Some(next) => Given::Option(option, Some(next.clone())),
                None => Given::Error(format!(
                    "{command}: option requires an argument -- '{letter}'"
                )),
            },
        });
        return;
    }
}

struct Reader<'a> {
    options: Options,
    current: &'a std::path::Path,
}

impl<'a> Reader<'a> {
    fn new(command: &str, directories: Directories, current: &'a std::path::Path) -> Self {
        let program = command
            .rsplit('/')
            .next()
            .filter(|name| !name.is_empty())
            .unwrap_or("sluiced")
            .to_string();
        let database = format!("unix:{}", directories.in_run("db.sock").display());
        let options = Options {
            program,
            directories,
            database,
            detach: false,
            no_chdir: false,
            pidfile: None,
            overwrite_pidfile: false,
            monitor: false,
            user: None,
            mlockall: false,
            verbose: Vec::new(),
            log_file: None,
            syslog_method: "libc".into(),
            syslog_target: None,
            unixctl: ControlSocket::Default,
            tls: TlsFiles::default(),
            dummy: None,
            dummy_numa: Vec::new(),
            disable_system: false,
            disable_system_route: false,
            compat: false,
        };
        Reader { options, current }
    }

    /// Applies one option; a returned text is to be printed, and ends the run.
    fn apply(&mut self, name: Name, value: Option<String>) -> Result<Option<String>, UsageError> {
        let options = &mut self.options;
        let path = |value: Option<String>| value.map(PathBuf::from);
        match name {
            Name::Help => return Ok(Some(help(options))),
            Name::Version => {
                let text = version(&options.program);
                return Ok(Some(format!("{text}{}\n", ports::eal::version())));
            }
            Name::Mlockall => options.mlockall = true,
            Name::Unixctl => {
                options.unixctl = match value.unwrap_or_default().as_str() {
                    "none" => ControlSocket::None,
                    text => ControlSocket::At(options.directories.in_run(text)),
                }
            }
            Name::Detach => options.detach = true,
            Name::NoChdir => options.no_chdir = true,
            Name::Pidfile => {
                let file = value
                    .filter(|text| !text.is_empty())
                    .unwrap_or_else(|| format!("{FILE_STEM}.pid"));
                options.pidfile = Some(options.directories.in_run(file));
            }
            Name::OverwritePidfile => options.overwrite_pidfile = true,
            Name::Monitor => options.monitor = true,
            Name::User => options.user = value,
            Name::NoSelfConfinement => {}
            Name::Verbose => options.verbose.push(value.unwrap_or_default()),
            Name::LogFile => {
                options.log_file = Some(match value.filter(|text| !text.is_empty()) {
                    Some(file) => self.current.join(file),
                    None => options.directories.log.join(format!("{FILE_STEM}.log")),
                })
            }
            Name::SyslogMethod => {
                let method = value.unwrap_or_default();
                if !crate::vlog::is_syslog_method(&method) {
                    let program = &options.program;
                    return Err(UsageError(format!(
                        "{program}: unsupported syslog method '{method}'"
                    )));
                }
                options.syslog_method = method;
            }
            Name::SyslogTarget => options.syslog_target = value,
            Name::PrivateKey => options.tls.private_key = path(value),
            Name::Certificate => options.tls.certificate = path(value),
            Name::CaCert => (options.tls.ca_cert, options.tls.bootstrap) = (path(value), false),
            Name::BootstrapCaCert => {
                (options.tls.ca_cert, options.tls.bootstrap) = (path(value), true)
            }
            Name::PeerCaCert => options.tls.peer_ca_cert = path(value),
            Name::SslProtocols => options.tls.protocols = value,
            Name::SslCiphers => options.tls.ciphers = value,
            Name::EnableDummy => options.dummy = Some(dummy_level(&options.program, value)?),
            Name::DummyNuma => {
                options.dummy_numa = dummy_numa(&options.program, &value.unwrap_or_default())?;
            }
            Name::DisableSystem => options.disable_system = true,
            Name::DisableSystemRoute => options.disable_system_route = true,
            Name::Dpdk => {
                let program = &options.program;
                return Err(UsageError(format!(
                    "{program}: Using --dpdk to configure DPDK is not supported."
                )));
            }
            Name::Compat => {
                options.compat = true;
                options.program = FILE_STEM.into();
            }
        }
        Ok(None)
    }
}

/// Number of possible NUMA nodes (Open vSwitch's `MAX_NUMA_NODES`).
const MAX_NUMA_NODES: usize = 128;

fn dummy_level(program: &str, value: Option<String>) -> Result<DummyLevel, UsageError> {
    match value.as_deref() {
        None | Some("") => Ok(DummyLevel::Plain),
        Some("system") => Ok(DummyLevel::System),
        Some("override") => Ok(DummyLevel::Override),
        Some(other) => Err(UsageError(format!(
            "{program}: {other}: unknown dummy level"
        ))),
    }
}

/// Reads `--dummy-numa`: the node of each core, `0,0,1,1`.
fn dummy_numa(program: &str, value: &str) -> Result<Vec<usize>, UsageError> {
    let node = |text: &str| {
        let node = text.trim().parse::<usize>().ok();
        node.filter(|node| *node < MAX_NUMA_NODES)
    };
    let nodes: Option<Vec<usize>> = value.split(',').map(node).collect();
    nodes.ok_or_else(|| {
        UsageError(format!(
            "{program}: --dummy-numa={value}: must be NUMA nodes below {MAX_NUMA_NODES}, one for each core, separated by commas"
        ))
    })
}

/// Returns the text of `--version` and of the control command `version`. Tools take the last word
/// of the first line.
pub fn version(program: &str) -> String {
    format!(
        "{program} (Open vSwitch) {COMPATIBLE_VERSION}\nSluice {}\n",
        env!("CARGO_PKG_VERSION")
    )
}

fn help(options: &Options) -> String {
    let program = &options.program;
    let database = &options.database;
    let pidfile = options.directories.in_run(format!("{FILE_STEM}.pid"));
    let log = options.directories.log.join(format!("{FILE_STEM}.log"));
    let (pidfile, log) = (pidfile.display(), log.display());
    format!(
        "{program}: Sluice, a virtual switch that replaces Open vSwitch's ovs-vswitchd
usage: {program} [OPTIONS] [DATABASE]
where DATABASE is a socket on which ovsdb-server is listening
      (default: \"{database}\").

Active DATABASE connection methods:
  tcp:HOST:PORT           PORT at remote HOST
  ssl:HOST:PORT           SSL PORT at remote HOST
  unix:FILE               Unix domain socket named FILE
PKI configuration (required to use SSL):
  -p, --private-key=FILE  file with private key
  -c, --certificate=FILE  file with certificate for private key
  -C, --ca-cert=FILE      file with peer CA certificate
  --bootstrap-ca-cert=FILE  file with peer CA certificate to read or create
  --peer-ca-cert=FILE     file with CA certificate to send to peers
SSL options:
  --ssl-protocols=PROTOS  list of SSL protocols to enable
  --ssl-ciphers=CIPHERS   list of SSL ciphers to enable

Daemon options:
  --detach                run in background as daemon
  --monitor               creates a process to monitor this daemon
  --no-chdir              do not chdir to '/'
  --user=USER[:GROUP]     run as USER, with only the privileges that a switch needs
  --pidfile[=FILE]        create pidfile (default: {pidfile})
  --overwrite-pidfile     with --pidfile, start even if already running
  --mlockall              lock all memory, so that none of it is swapped out
  --compat                use the name ovs-vswitchd in messages and process lists

Logging options:
  -vSPEC, --verbose=SPEC   set logging levels
  -v, --verbose            set maximum verbosity level
  --log-file[=FILE]        enable logging to specified FILE
                           (default: {log})
  --syslog-method=(libc|null|unix:file|udp:ip:port)
                           specify how to send messages to syslog daemon
  --syslog-target=HOST:PORT  also send syslog msgs to HOST:PORT via UDP

Datapath options:
  --enable-dummy[=system|override]  enable dummy devices, for tests
  --dummy-numa=NODE,...   report core 0, 1, ... on these NUMA nodes, for tests
  --disable-system        refuse bridges with datapath_type system
  --disable-system-route  ignore the kernel's routing table
Configure DPDK in the database (other_config:dpdk-*).

Other options:
  --unixctl=SOCKET          use this control socket, or none
  -h, --help                display this help message
  -V, --version             display version information
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn directories() -> Directories {
        Directories::from_lookup(|name| (name == "OVS_RUNDIR").then(|| "/r".into()))
    }

    fn read(arguments: &[&str]) -> Result<Request, UsageError> {
        let arguments: Vec<String> = std::iter::once("/sbin/ovs-vswitchd")
            .chain(arguments.iter().copied())
            .map(String::from)
            .collect();
        parse(&arguments, directories(), Path::new("/here"))
    }

    fn options(arguments: &[&str]) -> Options {
        match read(arguments) {
            Ok(Request::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    fn error(arguments: &[&str]) -> String {
        read(arguments).unwrap_err().0
    }

    #[test]
    fn the_distribution_starts_it_like_this() {
        let line = "unix:/var/run/openvswitch/db.sock -vconsole:emer -vsyslog:err -vfile:info --mlockall --no-chdir \
                    --log-file=/var/log/openvswitch/ovs-vswitchd.log --pidfile=/var/run/openvswitch/ovs-vswitchd.pid \
                    --detach --monitor";
        let options = options(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(options.program, "ovs-vswitchd");
        assert_eq!(options.database, "unix:/var/run/openvswitch/db.sock");
        assert_eq!(options.verbose, ["console:emer", "syslog:err", "file:info"]);
        assert!(options.mlockall && options.no_chdir && options.detach && options.monitor);
        assert_eq!(
            options.pidfile.as_deref(),
            Some(Path::new("/var/run/openvswitch/ovs-vswitchd.pid"))
        );
    }

    #[test]
    fn values_prefixes_and_order() {
        let o = options(&[
            "--unixctl",
            "x.ctl",
            "--pid",
            "--log-f=l",
            "--det",
            "tcp:1.2.3.4:6640",
            "-v",
            "-p",
            "k",
            "-cz",
        ]);
        assert_eq!(o.unixctl, ControlSocket::At("/r/x.ctl".into()));
        assert_eq!(o.pidfile.as_deref(), Some(Path::new("/r/ovs-vswitchd.pid")));
        assert_eq!(o.log_file.as_deref(), Some(Path::new("/here/l")));
        assert_eq!(o.database, "tcp:1.2.3.4:6640");
        assert_eq!(o.verbose, [""]);
        assert_eq!(o.tls.private_key.as_deref(), Some(Path::new("k")));
        assert_eq!(o.tls.certificate.as_deref(), Some(Path::new("z")));
        assert_eq!(options(&[]).database, "unix:/r/db.sock");
        assert_eq!(options(&["--", "--detach"]).database, "--detach");
        assert_eq!(options(&["--unixctl=none"]).unixctl, ControlSocket::None);
        assert_eq!(options(&["--user", "a:b"]).user.as_deref(), Some("a:b"));
        assert_eq!(
            options(&["--enable-dummy=override"]).dummy,
            Some(DummyLevel::Override)
        );
        assert!(options(&[]).dummy_numa.is_empty());
        assert_eq!(options(&["--dummy-numa=0,0,1, 1"]).dummy_numa, [0, 0, 1, 1]);
    }

    #[test]
    fn errors_have_the_texts_of_getopt() {
        let at = "/sbin/ovs-vswitchd";
        assert_eq!(
            error(&["--foo"]),
            format!("{at}: unrecognized option '--foo'")
        );
        assert_eq!(
            error(&["--v"]),
            format!("{at}: option '--v' is ambiguous; possibilities: '--version' '--verbose'")
        );
        assert_eq!(error(&["-z"]), format!("{at}: invalid option -- 'z'"));
        assert_eq!(
            error(&["--unixctl"]),
            format!("{at}: option '--unixctl' requires an argument")
        );
        assert_eq!(
            error(&["-p"]),
            format!("{at}: option requires an argument -- 'p'")
        );
        assert_eq!(
            error(&["--detach=3"]),
            format!("{at}: option '--detach' doesn't allow an argument")
        );
        assert_eq!(
            error(&["a", "b"]),
            "ovs-vswitchd: at most one non-option argument accepted; use --help for usage"
        );
        for wrong in ["", "0,", "a", "-1", "0,128"] {
            let text = error(&[&format!("--dummy-numa={wrong}")]);
            assert!(
                text.starts_with(&format!("ovs-vswitchd: --dummy-numa={wrong}: ")),
                "{text}"
            );
        }
        assert_eq!(
            error(&["--dpdk"]),
            "ovs-vswitchd: Using --dpdk to configure DPDK is not supported."
        );
        assert_eq!(
            error(&["--enable-dummy=foo"]),
            "ovs-vswitchd: foo: unknown dummy level"
        );
        assert_eq!(
            error(&["--syslog-method=foo"]),
            "ovs-vswitchd: unsupported syslog method 'foo'"
        );
    }

    #[test]
    fn version_answers_before_later_errors() {
        let Ok(Request::Print(text)) = read(&["-V", "--foo"]) else {
            panic!("no text")
        };
        let first = text.lines().next().unwrap();
        assert_eq!(first, "ovs-vswitchd (Open vSwitch) 3.1.0");
        assert!(text.contains("Sluice"));
        assert!(text.lines().last().unwrap().starts_with("DPDK "));
    }

    proptest! {
        #[test]
        fn no_command_line_panics(arguments in proptest::collection::vec("(-{0,3})([a-zA-Z=-]{0,12}|\\PC{0,6})", 0..8)) {
            let _ = parse(&arguments, directories(), Path::new("/"));
        }

        #[test]
        fn a_prefix_means_its_option_or_is_ambiguous(which in 0..LONG.len(), cut in 1usize..24) {
            let (full, ..) = LONG[which];
            let prefix = &full[..cut.min(full.len())];
            let matching = LONG.iter().filter(|(name, ..)| name.starts_with(prefix)).count();
            let exact = LONG.iter().any(|(name, ..)| *name == prefix);
            let ambiguous = matches!(read(&[&format!("--{prefix}")]), Err(UsageError(text)) if text.contains("ambiguous"));
            prop_assert_eq!(ambiguous, matching > 1 && !exact);
        }
    }
}
