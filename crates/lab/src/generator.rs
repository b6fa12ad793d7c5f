//! The generator: `sluice gen` in a process of its own, so that it can run in any namespace and on
//! any core, and takes its hugepages with it when it ends.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use traffic::report::Report;
use traffic::spec::Spec;

/// How long the generator may take beyond the seconds that it was asked for: it starts DPDK.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest text of its own that an error quotes, bytes.
const QUOTED: usize = 500;

/// Starts generators.
pub trait Generate {
    /// Starts one in a namespace (as `ip netns` names it), or in the lab's own.
    fn start(&mut self, spec: &Spec, namespace: Option<&str>) -> Result<Box<dyn Sending>, String>;
}

/// A generator that runs. Dropping it ends it.
pub trait Sending {
    /// Waits for its end. Returns an error if `stop` says so meanwhile, and kills it.
    fn finish(self: Box<Self>, stop: &dyn Fn() -> bool) -> Result<Report, String>;
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
    fn start(&mut self, spec: &Spec, namespace: Option<&str>) -> Result<Box<dyn Sending>, String> {
        self.count += 1;
        let path = |kind: &str| self.directory.join(format!("gen-{}.{kind}", self.count));
        let (input, output, errors) = (path("spec"), path("report"), path("log"));
        let create = |path: &PathBuf| {
            std::fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let text = serde_json::to_string(spec).map_err(|error| error.to_string())?;
        std::fs::write(&input, text).map_err(|error| format!("{}: {error}", input.display()))?;
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
            .map_err(|error| format!("the generator does not start: {error}"))?;
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
    fn finish(mut self: Box<Self>, stop: &dyn Fn() -> bool) -> Result<Report, String> {
        let status = loop {
            let waited = self.child.try_wait();
            if let Some(status) = waited.map_err(|error| format!("the generator: {error}"))? {
                break status;
            }
            if stop() {
                return Err("the run was ended".into());
            }
            if Instant::now() > self.until {
                return Err(format!("the generator has not ended: {}", self.said()));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            return Err(format!(
                "the generator ended with {status}: {}",
                self.said()
            ));
        }
        let text = std::fs::read_to_string(&self.output)
            .map_err(|error| format!("{}: {error}", self.output.display()))?;
        serde_json::from_str(&text)
            .map_err(|error| format!("the generator's report is not one: {error}"))
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
            .unwrap_err();
        assert!(error.contains("exit status: 3: no such port"), "{error}");
        let mut own = generator(directory.path(), "echo nonsense");
        let error = own
            .start(&spec(), None)
            .unwrap()
            .finish(&|| false)
            .unwrap_err();
        assert!(error.contains("report is not one"), "{error}");
        let mut own = generator(directory.path(), "exec sleep 100");
        let error = own
            .start(&spec(), None)
            .unwrap()
            .finish(&|| true)
            .unwrap_err();
        assert!(error.contains("was ended"), "{error}");
    }
}
