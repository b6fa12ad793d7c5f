//! The daemon's directories. Open vSwitch lets four environment variables move them, and every tool
//! that talks to the switch (`ovs-appctl`, `ovs-vsctl`, start scripts, test beds) uses these, so
//! Sluice reads the same ones. They are read only once: the monitor process overwrites the command
//! line, which lies next to its environment, and a daemon whose directories changed while it runs
//! would lose its own files.

use std::path::{Path, PathBuf};

/// The directories of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Sockets and pidfiles: `OVS_RUNDIR`, else `/var/run/openvswitch`.
    pub run: PathBuf,
    /// Log files: `OVS_LOGDIR`, else `/var/log/openvswitch`.
    pub log: PathBuf,
    /// The database file: `OVS_DBDIR`, else `OVS_SYSCONFDIR/openvswitch`, else `/etc/openvswitch`.
    pub database: PathBuf,
    /// The parent of the configuration directory: `OVS_SYSCONFDIR`, else `/etc`.
    pub configuration: PathBuf,
}

impl Directories {
    /// Reads the environment of this process.
    pub fn from_environment() -> Self {
        Self::from_lookup(|name| std::env::var_os(name).map(PathBuf::from))
    }

    /// Reads the variables through `lookup`. An empty value counts as unset.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let variable = |name: &str| lookup(name).filter(|path| !path.as_os_str().is_empty());
        let configuration = variable("OVS_SYSCONFDIR");
        let database = variable("OVS_DBDIR").unwrap_or_else(|| {
            configuration.as_ref().map_or_else(
                || PathBuf::from("/etc/openvswitch"),
                |dir| dir.join("openvswitch"),
            )
        });
        Directories {
            run: variable("OVS_RUNDIR").unwrap_or_else(|| PathBuf::from("/var/run/openvswitch")),
            log: variable("OVS_LOGDIR").unwrap_or_else(|| PathBuf::from("/var/log/openvswitch")),
            database,
            configuration: configuration.unwrap_or_else(|| PathBuf::from("/etc")),
        }
    }

    /// Returns `name` itself if it is absolute, else `name` below the run directory: Open vSwitch's
    /// rule for pidfiles and control sockets.
    pub fn in_run(&self, name: impl AsRef<Path>) -> PathBuf {
        self.run.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_debian() {
        let dirs = Directories::from_lookup(|_| None);
        assert_eq!(dirs.run, Path::new("/var/run/openvswitch"));
        assert_eq!(dirs.log, Path::new("/var/log/openvswitch"));
        assert_eq!(dirs.database, Path::new("/etc/openvswitch"));
        assert_eq!(dirs.configuration, Path::new("/etc"));
    }

    #[test]
    fn variables_win_and_empty_ones_do_not() {
        let dirs = Directories::from_lookup(|name| match name {
            "OVS_RUNDIR" => Some("/r".into()),
            "OVS_SYSCONFDIR" => Some("/s".into()),
            "OVS_LOGDIR" => Some("".into()),
            _ => None,
        });
        assert_eq!(dirs.run, Path::new("/r"));
        assert_eq!(dirs.database, Path::new("/s/openvswitch"));
        assert_eq!(dirs.log, Path::new("/var/log/openvswitch"));
        assert_eq!(dirs.in_run("a.ctl"), Path::new("/r/a.ctl"));
        assert_eq!(dirs.in_run("/b/a.ctl"), Path::new("/b/a.ctl"));
    }
}
