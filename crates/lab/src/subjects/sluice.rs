//! Sluice itself.

use super::daemon::{Daemon, Kind};
use super::{find_program, is_executable};
use std::path::{Path, PathBuf};

/// Sluice: the daemon given, else the one beside the running program, else the one in PATH.
pub fn sluice(daemon: Option<&Path>) -> Daemon {
    let found = match daemon {
        Some(path) if is_executable(path) => Ok(path.to_owned()),
        Some(path) => Err(format!("there is no program {}", path.display())),
        None => beside().or_else(|| find_program("sluiced")).ok_or_else(|| {
            "there is no sluiced, neither beside this program nor in PATH".to_owned()
        }),
    };
    Daemon {
        id: "sluice".into(),
        name: "Sluice".into(),
        command: found.map(|path| vec![path.display().to_string()]),
        kind: Kind::Sluice,
    }
}

/// The daemon that was built or installed with this program, which is in `bin` where the daemon is
/// in `sbin`. Cargo puts examples one directory further down.
pub(crate) fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let directories = program.ancestors().skip(1).take(2);
    directories
        .flat_map(|directory| [directory.join("sluiced"), directory.join("sbin/sluiced")])
        .find(|path| is_executable(path))
}
