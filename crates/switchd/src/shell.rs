//! Everything between `exec` and the switch, and between the switch and `exit`. The order matters:
//! options, log, forks, pidfile, control socket, and only then the runtime, which starts threads.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::daemonize::{self, Daemon, Stop};
use crate::dirs::Directories;
use crate::memory::Memory;
use crate::options::{self, Options, Request};
use crate::service::Service;
use crate::streams::Tls;
use crate::unixctl::{Registry, Reply, Server};
use crate::{clock, coverage, daemon, panics, plain_error, turns, vlog};

/// How long to wait until the last lines have reached the log.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How the daemon was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitRequest {
    /// Also remove devices that the daemon has made, as `exit --cleanup` asks.
    pub cleanup: bool,
}

/// What the process provides to the switch. Shared as `Rc` within the control thread.
#[derive(Debug)]
pub struct Shell {
    /// The command line.
    pub options: Options,
    /// The control commands; the switch adds its own.
    pub commands: Registry,
    /// The reporters of `memory/show`.
    pub memory: Memory,
    /// Keys and certificates for every stream; the database's SSL row may replace those of the
    /// command line.
    pub tls: Rc<Tls>,
    /// The service manager.
    pub service: Service,
    daemon: RefCell<Daemon>,
    told_ready: Cell<bool>,
    exit: Cell<Option<ExitRequest>>,
    exit_asked: Notify,
    exit_replies: RefCell<Vec<Reply>>,
}

impl Shell {
    /// Reports that the first configuration is in force, so that the parent of `--detach` may exit.
    /// Later calls do nothing.
    pub fn ready(&self) {
        if !self.told_ready.replace(true) {
            self.service.ready();
        }
        self.daemon.borrow_mut().ready();
    }

    /// Asks the daemon to end. The first request counts, but any later one may add the cleanup.
    pub fn request_exit(&self, request: ExitRequest) {
        daemonize::note_asked();
        self.service.stopping();
        let cleanup = request.cleanup || self.exit.get().is_some_and(|earlier| earlier.cleanup);
        self.exit.set(Some(ExitRequest { cleanup }));
        self.exit_asked.notify_waiters();
    }

    /// Waits until the daemon is asked to end, by a signal or a command. Any number of tasks may
    /// wait.
    pub async fn exit_requested(&self) -> ExitRequest {
        loop {
            let asked = self.exit_asked.notified();
            tokio::pin!(asked);
            asked.as_mut().enable();
            if let Some(request) = self.exit.get() {
                return request;
            }
            asked.await;
        }
    }
}

/// Runs the whole program, with `argv`.
pub fn main(arguments: Vec<String>) -> ExitCode {
    if let [_, option, rest @ ..] = &arguments[..]
        && option == predict::ports::OPTION
    {
        return crate::calibrate::main(rest);
    }
    let current = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let options = match options::parse(&arguments, Directories::from_environment(), &current) {
        Ok(Request::Run(options)) => *options,
        Ok(Request::Print(text)) => {
            // A reader that closed the pipe has read enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    crate::name_process(&options.program);
    let program = options.program.clone();
    match start(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Exit(status)) => ExitCode::from(status.clamp(0, 255) as u8),
        Err(Stop::Failure(text)) => {
            // Printed without decoration on the terminal and logged once, but not twice on the
            // terminal.
            vlog::silence_console();
            vlog::emergency("daemon_unix", &text);
            vlog::flush(LAST_LINES);
            eprintln!("{program}: {text}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> Result<(), Stop> {
    vlog::start(vlog::Configuration {
        program: options.program.clone(),
        specifications: options.verbose.clone(),
        file: options.log_file.clone(),
        syslog_method: options.syslog_method.clone(),
        syslog_target: options.syslog_target.clone(),
    })
    .map_err(Stop::Failure)?;
    panics::install();
    allow_descriptors();
    let daemon = daemonize::start(&options)?;
    if options.mlockall {
        lock_memory();
    }
    let control = options.control_path(std::process::id() as i32);
    let server = match &control {
        Some(path) => Some(Server::bind(path).map_err(|error| {
            let error = plain_error(&error);
            Stop::Failure(format!(
                "{}: could not initialize control socket ({error})",
                path.display()
            ))
        })?),
        None => None,
    };
    vlog::start_writer()
        .map_err(|error| Stop::Failure(format!("cannot start the log's writer: {error}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::Failure(format!("cannot start the event loop: {error}")))?;
    let tasks = LocalSet::new();
    let control = tasks.run_until(control_thread(options, daemon, server));
    let result = runtime.block_on(turns::control(control));
    drop(tasks);
    // A thread that hangs in a name lookup must not delay the daemon's end.
    runtime.shutdown_background();
    vlog::flush(LAST_LINES);
    result.map_err(|error| Stop::Failure(format!("{error:#}")))
}

/// Raises the limit on open descriptors as far as this process may: each port takes some, and a
/// thousand ports take more than the default of 1,024. If they run out all the same, the port that
/// cannot be opened reports it.
fn allow_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        let error = plain_error(&error.into());
        tracing::warn!(target: "vswitchd", "cannot raise the limit on open descriptors: {error}");
    }
}

fn lock_memory() {
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        let error = plain_error(&error.into());
        tracing::error!(target: "vswitchd", "mlockall failed: {error}");
    }
}

/// Runs the control thread: serves commands and signals while the switch runs, and cleans up after
/// it.
async fn control_thread(
    options: Options,
    daemon: Daemon,
    mut server: Option<Server>,
) -> anyhow::Result<()> {
    let shell = Rc::new(Shell {
        tls: Rc::new(Tls::new(options.tls.clone())),
        options,
        service: Service::from_environment(),
        commands: Registry::default(),
        memory: Memory::default(),
        daemon: RefCell::new(daemon),
        told_ready: Cell::new(false),
        exit: Cell::new(None),
        exit_asked: Notify::new(),
        exit_replies: RefCell::default(),
    });
    register_commands(&shell);
    if let Some(server) = &mut server {
        server.serve(shell.commands.clone())?;
    }
    turns::spawn("signals", watch_signals(shell.clone())?);
    turns::spawn("coverage", async {
        let mut interval = tokio::time::interval(coverage::INTERVAL);
        interval.tick().await;
        loop {
            interval.tick().await;
            coverage::tick();
        }
    });
    let result = daemon::run(shell.clone()).await;
    if let Some(server) = &mut server {
        server.close();
    }
    shell.daemon.borrow_mut().release();
    for reply in shell.exit_replies.take() {
        reply.ok("");
    }
    if let Some(server) = server {
        server.finish().await;
    }
    result
}

/// Installs the signal handlers at once, so that no signal from now on has its default effect; the
/// returned future handles them.
fn watch_signals(shell: Rc<Shell>) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    // The handlers of before are called, too.
    daemonize::signals_are_heeded();
    Ok(async move {
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "15 (Terminated)",
                _ = interrupt.recv() => "2 (Interrupt)",
                _ = hang_up.recv() => {
                    vlog::reopen(|_| {});
                    continue;
                }
            };
            tracing::warn!(target: "fatal_signal", "terminating with signal {name}");
            shell.request_exit(ExitRequest { cleanup: false });
        }
    })
}

fn register_commands(shell: &Rc<Shell>) {
    let commands = &shell.commands;
    vlog::register(commands);
    let registry = commands.clone();
    commands.register("list-commands", "", 0, 0, move |_, reply| {
        reply.ok(registry.list())
    });
    let version = options::version(&shell.options.program);
    commands.answer("version", "", 0, 0, move |_| Ok(version.clone()));
    commands.answer("coverage/show", "", 0, 0, |_| Ok(coverage::show()));
    commands.answer("coverage/read-counter", "COUNTER", 1, 1, |arguments| {
        coverage::read(&arguments[0])
            .map(|total| total.to_string())
            .ok_or_else(|| "No such counter".into())
    });
    let memory = shell.memory.clone();
    commands.answer("memory/show", "", 0, 0, move |_| Ok(memory.show()));
    let weak = Rc::downgrade(shell);
    commands.register("exit", "[--cleanup]", 0, 1, move |arguments, reply| {
        let Some(shell) = weak.upgrade() else { return };
        // Answered once the daemon has released everything, because scripts start the next one
        // right after.
        shell.exit_replies.borrow_mut().push(reply);
        shell.request_exit(ExitRequest {
            cleanup: arguments.first().is_some_and(|word| word == "--cleanup"),
        });
    });
    if shell.options.dummy.is_some() {
        register_time(commands);
    }
}

/// Adds the commands that stop and move the clock, for tests only.
fn register_time(commands: &Registry) {
    commands.answer("time/stop", "", 0, 0, |_| {
        clock::stop();
        Ok(String::new())
    });
    commands.register(
        "time/warp",
        "[large_msecs] msecs",
        1,
        2,
        |arguments, reply| {
            let numbers: Option<Vec<i64>> = arguments
                .iter()
                .map(|text| {
                    text.parse()
                        .ok()
                        .filter(|number| (1..=i64::from(i32::MAX)).contains(number))
                })
                .collect();
            let Some(numbers) = numbers else {
                return reply.error("invalid MSECS");
            };
            let (total, step) = (numbers[0], *numbers.get(1).unwrap_or(&numbers[0]));
            turns::spawn("time/warp", async move {
                let mut left = total;
                while left > 0 && !reply.is_abandoned() {
                    clock::warp(step.min(left));
                    left -= step.min(left);
                    // Lets every task that the step woke run before the next step.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                reply.ok("warped");
            });
        },
    );
}
