//! Records of TAP devices that outlive the process: which ones belong to the switch, and where they
//! are.
//!
//! There is a file for each port in a directory that also outlives the process, written before the
//! device is made persistent. It identifies a device by its index, its network namespace and the
//! machine's boot id. Devices without a record belong to others and are never deleted.

use crate::link;
use crate::namespace::Namespace;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest record, in bytes.
const LONGEST: u64 = 512;

/// A device's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLocation {
    /// The network namespace it is in.
    pub namespace: Namespace,
    /// Its index there.
    pub index: u32,
}

/// The record of a port's device.
pub(crate) struct Record {
    directory: PathBuf,
    port: String,
    /// The network namespace of the process.
    home: Namespace,
    /// Contents of the file, as far as known.
    written: Option<DeviceLocation>,
}

impl Record {
    /// Returns the record of a port, whose name must be a valid interface name, for a process in
    /// the namespace `home`.
    pub(crate) fn new(directory: &Path, port: &str, home: Namespace) -> Record {
        Record {
            directory: directory.to_owned(),
            port: port.to_owned(),
            home,
            written: None,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(&self.port)
    }

    /// Reads the record; None if there is none, or if it was written before the machine booted or
    /// in another namespace.
    pub(crate) fn read(&self) -> Option<DeviceLocation> {
        let mut text = String::new();
        let file = fs::File::open(self.path()).ok()?;
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        decode(&text, &boot()?, self.home)
    }

    /// Records where the device is, unless that is recorded already.
    pub(crate) fn write(&mut self, place: DeviceLocation) -> io::Result<()> {
        if self.written == Some(place) {
            return Ok(());
        }
        // Set even if writing fails: that is not tried again until there is something else to
        // write.
        self.written = Some(place);
        let boot = boot().ok_or(io::ErrorKind::NotFound)?;
        fs::create_dir_all(&self.directory)?;
        // No interface name has a space, so drafts are no records. The renaming makes the record
        // appear whole.
        let draft = self.directory.join(format!(" {}", self.port));
        fs::write(&draft, encode(&boot, self.home, place))?;
        fs::rename(draft, self.path())
    }

    /// Deletes the record.
    pub(crate) fn remove(&self) {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(target: "netdev_linux", "{}: {error}", self.path().display());
            }
            _ => {}
        }
    }
}

/// Returns the machine's boot id.
fn boot() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

fn encode(boot: &str, home: Namespace, place: DeviceLocation) -> String {
    let DeviceLocation { namespace, index } = place;
    format!(
        "{boot} {} {} {} {} {index}\n",
        home.device, home.inode, namespace.device, namespace.inode
    )
}

/// Reads what [`encode`] has written since the last boot and in the same namespace.
fn decode(text: &str, boot: &str, home: Namespace) -> Option<DeviceLocation> {
    // Without the final newline it is incomplete.
    let mut words = text.strip_suffix('\n')?.split(' ');
    if words.next()? != boot {
        return None;
    }
    let mut number = || words.next()?.parse::<u64>().ok();
    let (device, inode) = (number()?, number()?);
    if home != (Namespace { device, inode }) {
        return None;
    }
    let (device, inode) = (number()?, number()?);
    let index = u32::try_from(number()?).ok()?;
    (words.next().is_none() && index != 0).then_some(DeviceLocation {
        namespace: Namespace { device, inode },
        index,
    })
}

/// Returns the ports with records in a directory: their devices were left by an earlier process, or
/// belong to this one.
pub fn leftovers(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| link::is_name(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOME: Namespace = Namespace {
        device: 4,
        inode: 4_026_531_840,
    };

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(device: u64, inode: u64, index in 1u32..) {
            let place = DeviceLocation { namespace: Namespace { device, inode }, index };
            let text = encode("b-1", HOME, place);
            prop_assert_eq!(decode(&text, "b-1", HOME), Some(place));
            prop_assert_eq!(decode(&text, "b-2", HOME), None, "another run of the machine");
            let other = Namespace { inode: 7, ..HOME };
            prop_assert_eq!(decode(&text, "b-1", other), None, "another namespace");
            for end in 0..text.len() {
                prop_assert_eq!(decode(&text[..end], "b-1", HOME), None, "cut short");
            }
            prop_assert_eq!(decode(&format!("{} 1\n", text.trim_end()), "b-1", HOME), None);
        }

        #[test]
        fn nonsense_is_no_record(text: String) {
            prop_assert_eq!(decode(&text, "b-1", HOME), None);
        }
    }

    #[test]
    fn records_are_found_written_and_forgotten() {
        let directory = std::env::temp_dir().join(format!("records-{}", std::process::id()));
        let mut record = Record::new(&directory, "tap0", HOME);
        assert_eq!((record.read(), leftovers(&directory)), (None, Vec::new()));
        let place = DeviceLocation {
            namespace: HOME,
            index: 12,
        };
        record.write(place).unwrap();
        assert_eq!(record.read(), Some(place));
        // An unfinished draft is no record.
        fs::write(directory.join(" tap1"), "x").unwrap();
        assert_eq!(leftovers(&directory), ["tap0"]);
        fs::write(directory.join("tap0"), "x".repeat(100_000)).unwrap();
        assert_eq!(record.read(), None);
        record.remove();
        record.remove();
        assert!(leftovers(&directory).is_empty());
        fs::remove_dir_all(&directory).unwrap();
        // An error is returned if the directory cannot be created.
        let mut record = Record::new(Path::new("/proc/nowhere"), "tap0", HOME);
        assert!(record.write(place).is_err());
    }
}
