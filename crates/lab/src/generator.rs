//! The generator: `sluice gen` in a process of its own, so that it can run in any namespace and on
//! any core, and takes its hugepages with it when it ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use traffic::report::Report;
use traffic::spec::Spec;

/// How long the generator may take beyond the seconds that it was asked for: it starts DPDK.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest text of its own that an error quotes, bytes.
const QUOTED: usize = 500;

/// Why a generator has no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of it cannot be written or read.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        error: std::io::Error,
    },
    /// What it is asked for cannot be written.
    #[error(transparent)]
    Spec(serde_json::Error),
    /// It cannot be started.
    #[error("the generator does not start: {0}")]
    Start(std::io::Error),
    /// It cannot be waited for.
    #[error("the generator: {0}")]
    Wait(std::io::Error),
    /// The run is to end.
    #[error("the run was ended")]
    Stopped,
    /// It takes too long; the end of what it said.
    #[error("the generator has not ended: {0}")]
    Late(String),
    /// It failed.
    #[error("the generator ended with {status}: {said}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The end of what it said.
        said: String,
    },
    /// What it printed is no report.
    #[error("the generator's report is not one: {0}")]
    Report(serde_json::Error),
}

/// Returns what makes an error of the system one about the file at `path`.
fn file(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::File {
        path: path.display().to_string(),
        error,
    }
}

/// Starts generators.
pub trait Generate {
    /// Starts one in a namespace (as `ip netns` names it), or in the lab's own.
    fn start(&mut self, spec: &Spec, namespace: Option<&str>) -> Result<Box<dyn Sending>, Error>;
}

/// A generator that runs. Dropping it ends it.
pub trait Sending {
    /// Waits for its end. Fails if `stop` says so meanwhile, and kills it.
    fn finish(self: Box<Self>, stop: &dyn Fn() -> bool) -> Result<Report, Error>;
}

/// `sluice gen`.
pub struct Own {
    /// The command.
    pub program: PathBuf,
    /// Where its files are.
    pub directory: PathBuf,
    /// Environment by which `sluice lab clean` finds it.
    pub mark: (String, String),
    /// How many have been started.
    pub count: u32,
}

impl Generate for Own {
    fn start(&mut self, spec: &Spec, namespace: Option<&str>) -> Result<Box<dyn Sending>, Error> {
        self.count += 1;
        let path = |kind: &str| self.directory.join(format!("gen-{}.{kind}", self.count));
        let (input, output, errors) = (path("spec"), path("report"), path("log"));
        let create = |path: &Path| std::fs::File::create(path).map_err(file(path));
        let text = serde_json::to_string(spec).map_err(Error::Spec)?;
        std::fs::write(&input, text).map_err(file(&input))?;
        let mut command = match namespace {
            None => Command::new(&self.program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command
                    .args(["netns", "exec", namespace])
                    .arg(&self.program);
                command
            }
        };
        let child = command
            // What it could do alone takes time to find out, before each of hundreds of trials; the
            // report says how it kept its schedule in this one.
            .args(["gen", "--json", "--no-calibration"])
            .arg(&input)
            .env(&self.mark.0, &self.mark.1)
            .stdin(Stdio::null())
            .stdout(create(&output)?)
            .stderr(create(&errors)?)
            .spawn()
            .map_err(Error::Start)?;
        let limit = spec.seconds + spec.warm_up + spec.drain;
        Ok(Box::new(Process {
            child,
            output,
            errors,
            until: Instant::now() + Duration::from_secs_f64(limit.clamp(0.0, 1e6)) + PATIENCE,
        }))
    }
}

struct Process {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
    until: Instant,
}

impl Sending for Process {
    fn finish(mut self: Box<Self>, stop: &dyn Fn() -> bool) -> Result<Report, Error> {
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(Error::Wait)? {
                break status;
            }
            if stop() {
                return Err(Error::Stopped);
            }
            if Instant::now() > self.until {
                return Err(Error::Late(self.said()));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            let said = self.said();
            return Err(Error::Failed { status, said });
        }
        let text = std::fs::read_to_string(&self.output).map_err(file(&self.output))?;
        serde_json::from_str(&text).map_err(Error::Report)
    }
}

impl Process {
    /// The end of what it said.
    fn said(&self) -> String {
        let bytes = std::fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(QUOTED)..]);
        text.trim().replace('\n', "; ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended, and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in [
            &self.output,
            &self.errors,
            &self.output.with_extension("spec"),
        ] {
            let _ = std::fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn generator(directory: &std::path::Path, script: &str) -> Own {
        let program = directory.join("gen");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Own {
            program,
            directory: directory.into(),
            mark: ("SLUICE_LAB".into(), "test".into()),
            count: 0,
        }
    }

    fn spec() -> Spec {
        Spec {
            streams: Vec::new(),
            sinks: Vec::new(),
            core: None,
            seconds: 0.1,
            warm_up: 0.0,
            drain: 0.0,
            seed: 0,
        }
    }

    #[test]
    fn a_report_is_read_and_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let report = Report {
            schema: 1,
            seconds: 0.1,
            ..Report::default()
        };
        let text = serde_json::to_string(&report).unwrap();
        let script = format!("grep -q seconds $4 && [ $SLUICE_LAB = test ] && echo '{text}'");
        let mut own = generator(directory.path(), &script);
        let found = own.start(&spec(), None).unwrap().finish(&|| false).unwrap();
        assert_eq!(found, report);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn failures_say_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let mut own = generator(directory.path(), "echo no such port >&2; exit 3");
        let error = own
            .start(&spec(), None)
            .unwrap()
            .finish(&|| false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3: no such port"), "{error}");
        let mut own = generator(directory.path(), "echo nonsense");
        let error = own
            .start(&spec(), None)
            .unwrap()
            .finish(&|| false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("report is not one"), "{error}");
        let mut own = generator(directory.path(), "exec sleep 100");
        let error = own
            .start(&spec(), None)
            .unwrap()
            .finish(&|| true)
            .unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error}");
    }
}
