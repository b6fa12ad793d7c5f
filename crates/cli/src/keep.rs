//! `sluice restart`, `save` and `restore`: rules, groups and meters that outlive the process.
//!
//! The script of the service's unit (`packaging/rules`) does the work; this command contains a copy
//! of it.

use crate::output::errln;
use crate::up::{
    DIRECTORY, SCHEMA, alive, alone_in, check_answers, check_own, check_readable, environment,
    start_database, start_switch, stop,
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The unit's script.
const SCRIPT: &str = include_str!("../../../packaging/rules");
/// The subdirectory of a switch's directory into which `save` writes.
const SAVED: &str = "saved";
/// The subdirectory for the files of `restart`, which restores them at once.
const RESTART: &str = "restart";

/// Which switch to restart.
#[derive(Args)]
pub struct RestartOptions {
    /// Directory that was given to `up`
    #[arg(default_value = DIRECTORY)]
    pub directory: PathBuf,
    /// Path of the daemon [default: sluiced in the directory of this command, else in PATH]
    #[arg(long)]
    pub sluiced: Option<PathBuf>,
    /// Do not save and restore rules, groups and meters; needed if the switch does not answer
    #[arg(long)]
    pub without_rules: bool,
}

/// Whose rules, and where.
#[derive(Args)]
pub struct KeepOptions {
    /// Directory of the switch's sockets: the one given to `up`, or /run/openvswitch
    #[arg(default_value = DIRECTORY)]
    pub directory: PathBuf,
    /// Directory of the saved files [default: DIRECTORY/saved]
    #[arg(long)]
    pub files: Option<PathBuf>,
}

/// Returns whether rules have been saved that `restore` would find.
pub(crate) fn has_saved(directory: &Path) -> bool {
    directory.join(SAVED).join("restore.sh").exists()
}

/// Returns the process id of the switch whose sockets are in `directory`.
fn running(directory: &Path) -> Result<i32> {
    check_readable(directory)?;
    alive(&directory.join("ovs-vswitchd.pid"))
        .with_context(|| format!("{}: no switch runs there", directory.display()))
}

/// Runs the script with one command; the script itself reports errors.
fn rules(word: &str, directory: &Path, files: &Path) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", SCRIPT, "rules", word])
        .envs(environment(directory))
        .env("SLUICE_RULES", files)
        .env("SLUICE_RULES_STRICT", "1")
        .stdin(Stdio::null())
        // Standard output is for shells, for all commands that print to it.
        .stdout(Stdio::null())
        .status()
        .context("cannot run sh")?;
    ensure!(status.success(), "rules, groups and meters: {word} failed");
    Ok(())
}

/// Returns the directory of the files, which may not exist yet.
fn files(options: &KeepOptions) -> Result<PathBuf> {
    let files = options.files.clone();
    let files = files.unwrap_or_else(|| options.directory.join(SAVED));
    // Saved files name each other by absolute paths.
    std::path::absolute(&files).with_context(|| files.display().to_string())
}

/// Writes rules, groups and meters to files.
pub fn save(options: &KeepOptions) -> Result<()> {
    keep(options, "save", "of all bridges are saved in")
}

/// Restores what was saved.
pub fn restore(options: &KeepOptions) -> Result<()> {
    keep(options, "put-back", "are those saved in")
}

/// Runs the script with one command and the files, and prints what was done.
fn keep(options: &KeepOptions, word: &str, done: &str) -> Result<()> {
    running(&options.directory)?;
    let _alone = alone_in(&options.directory)?;
    check_answers(&options.directory)?;
    let files = files(options)?;
    rules(word, &options.directory.canonicalize()?, &files)?;
    errln!("Rules, groups and meters {done} {}.", files.display());
    Ok(())
}

/// Stops a switch and starts it again with the rules that it had.
pub fn restart(options: &RestartOptions) -> Result<()> {
    check_own(&options.directory)?;
    let before = running(&options.directory)?;
    let directory = options.directory.canonicalize()?;
    let _alone = alone_in(&directory)?;
    let files = directory.join(RESTART);
    if !options.without_rules
        && let Err(error) =
            check_answers(&directory).and_then(|()| rules("save", &directory, &files))
    {
        bail!("{error:#}; the switch goes on as it was (--without-rules restarts it all the same)");
    }
    stop(&directory.join("ovs-vswitchd.pid"))?;
    start_database(Path::new(SCHEMA), &directory)?;
    if !options.without_rules {
        rules("before-start", &directory, &files)?;
    }
    let started = start_switch(options.sluiced.as_ref(), &directory);
    if !options.without_rules {
        let word = if started.is_ok() {
            "restore"
        } else {
            "after-stop"
        };
        let restored = rules(word, &directory, &files);
        started?;
        restored?;
    } else {
        started?;
    }
    let what = match options.without_rules {
        true => "without its rules, groups and meters",
        false => "with its rules, groups and meters",
    };
    errln!(
        "Restarted {what}: process {before} has ended, {} runs.",
        running(&directory)?
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn save_and_restore_without_a_switch_name_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let options = KeepOptions {
            directory: directory.path().to_owned(),
            files: None,
        };
        for done in [save(&options), restore(&options)] {
            let error = format!("{:#}", done.unwrap_err());
            assert!(error.contains("no switch runs there"), "{error}");
        }
        // The attempt has created nothing.
        assert!(!directory.path().join(SAVED).exists() && !has_saved(directory.path()));
    }

    #[test]
    fn the_script_fails_where_it_is_to_be_strict() {
        let directory = tempfile::tempdir().unwrap();
        let nothing = directory.path().join("files");
        let error = rules("put-back", directory.path(), &nothing).unwrap_err();
        assert!(error.to_string().contains("put-back failed"), "{error}");
    }
}
