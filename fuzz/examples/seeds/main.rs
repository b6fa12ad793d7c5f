//! Makes the seeds of the fuzz targets, small inputs that reach deep into the fuzzed code: `cargo
//! run --example seeds` in `fuzz/`.
//!
//! Messages of Open vSwitch's programs are recorded from them (`ovs-ofctl`, `ovsdb-server`,
//! `ovs-appctl`, each with its own socket in a temporary directory); the rest is built here. Seeds
//! have names, which tell where a crash found in one comes from. Existing seeds of the same name
//! are replaced, all others stay.

use std::path::{Path, PathBuf};

mod captures;
mod connections;
mod fragments;
mod frames;
mod guests;
mod held_fragments;
mod json;
mod openflow_messages;
mod rule_files;
mod rules;
mod steering_messages;
mod tunnels;

/// The directory of a target's seeds.
pub struct Corpus(PathBuf);

impl Corpus {
    fn of(target: &str) -> std::io::Result<Corpus> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("corpus")
            .join(target);
        std::fs::create_dir_all(&path)?;
        Ok(Corpus(path))
    }

    /// Writes a seed made of some parts.
    pub fn add(&self, name: &str, parts: &[&[u8]]) -> std::io::Result<()> {
        std::fs::write(self.0.join(name), parts.concat())
    }
}

/// A directory for sockets, removed at the end.
pub struct SocketDirectory(PathBuf);

impl SocketDirectory {
    pub fn new() -> std::io::Result<SocketDirectory> {
        let path = std::env::temp_dir().join(format!("sluice-seeds-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(SocketDirectory(path))
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() -> std::io::Result<()> {
    let place = SocketDirectory::new()?;
    frames::write(&Corpus::of("packet")?)?;
    tunnels::write(&Corpus::of("tunnel")?)?;
    fragments::write(&Corpus::of("fragments")?)?;
    held_fragments::write(&Corpus::of("ct_fragments")?)?;
    connections::write(&Corpus::of("conntrack")?)?;
    rules::write(&Corpus::of("walk")?)?;
    guests::write_rings(&Corpus::of("vhost")?)?;
    guests::write_messages(&Corpus::of("vhost_message")?)?;
    captures::write(&Corpus::of("capture")?)?;
    captures::write_stamps(&Corpus::of("stamp")?)?;
    rule_files::write(&Corpus::of("rules")?)?;
    openflow_messages::write(&Corpus::of("openflow")?, &place)?;
    steering_messages::write(&Corpus::of("steering")?)?;
    json::write_ovsdb(&Corpus::of("ovsdb")?, &place)?;
    json::write_unixctl(&Corpus::of("unixctl")?, &place)
}
