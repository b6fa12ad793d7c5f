//! What every running switch has in the lab's place: a directory, a namespace of its own, one for
//! what sends to it, and ports that the kernel has.

use crate::place::{Namespace, Pages, Place, Statistics};
use crate::subject::{Counters, End, Error, Port};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// All of it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Site {
    /// The lab's.
    pub place: Place,
    /// Begins the names of logs and files: the switch's name and a number.
    pub name: String,
    /// For sockets, databases, configuration.
    pub directory: Directory,
    /// The switch's.
    pub inside: Namespace,
    /// The generator's, where veths end.
    pub outside: Namespace,
    /// Memory for DPDK.
    pub pages: Option<Pages>,
}

/// A directory that is removed with what is in it.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl std::ops::Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The place's removal says what it cannot remove.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Site {
    /// Makes one, with so many huge pages.
    pub fn make(place: &Place, id: &str, pages: u32) -> Result<Site, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{id}{number}");
        let path = place.directory.join(&name);
        fs::create_dir(&path)
            .map_err(|error| Error::Failed(format!("{}: {error}", path.display())))?;
        let directory = Directory(path);
        Ok(Site {
            place: place.clone(),
            name,
            directory,
            inside: place.namespace(&format!("s{number}"))?,
            outside: place.namespace(&format!("g{number}"))?,
            pages: if pages > 0 {
                Some(place.reserve(pages)?)
            } else {
                None
            },
        })
    }

    /// A path in the directory, as text.
    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// DPDK's file prefix.
    pub fn file_prefix(&self) -> String {
        format!("{}{}", self.place.prefix, self.name)
    }

    /// Makes a port that the kernel has: its interface inside, and where a generator attaches.
    pub fn kernel_port(&mut self, number: usize, port: &Port) -> Result<(String, End), Error> {
        let name = format!("p{number}");
        match port {
            Port::Veth => {
                let peer = format!("e{number}");
                self.inside.veth(&name, &self.outside, &peer)?;
                let namespace = self.outside.name().to_owned();
                Ok((
                    name,
                    End::Interface {
                        namespace,
                        name: peer,
                    },
                ))
            }
            Port::Virtual => {
                self.inside.tap(&name)?;
                let namespace = self.inside.name().to_owned();
                Ok((name.clone(), End::Tap { namespace, name }))
            }
            Port::Device(device) => {
                let interface = interface_of(device)?;
                self.inside.take(&self.place.clone(), &interface)?;
                Ok((interface, End::Itself))
            }
            Port::Memory { .. } => Err(Error::Missing(format!(
                "port {number}: the kernel has no port that makes frames of memory"
            ))),
        }
    }

    /// Removes it; the error says what could not be removed.
    pub fn remove(self) -> Result<(), Error> {
        let Site {
            directory,
            inside,
            outside,
            pages,
            ..
        } = self;
        let names = [inside.name().to_owned(), outside.name().to_owned()];
        drop((inside, outside, pages, directory));
        let left: Vec<String> = names
            .into_iter()
            .filter(|name| Path::new("/run/netns").join(name).exists())
            .collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(Error::Failed(format!(
                "namespaces remain: {}",
                left.join(", ")
            ))),
        }
    }
}

/// Whether a device is named by its PCI address.
pub(crate) fn is_pci(device: &str) -> bool {
    device.contains(':') && device.contains('.')
}

/// The kernel's interface of a device that is named by its PCI address or the interface itself.
fn interface_of(device: &str) -> Result<String, Error> {
    if !is_pci(device) {
        return Ok(device.to_owned());
    }
    let path = PathBuf::from(format!("/sys/bus/pci/devices/{device}/net"));
    let first = fs::read_dir(&path)
        .ok()
        .and_then(|mut entries| entries.next()?.ok());
    let name = first.and_then(|entry| entry.file_name().into_string().ok());
    name.ok_or_else(|| {
        Error::Missing(format!(
            "{device} has no kernel interface ({} is empty or absent)",
            path.display()
        ))
    })
}

impl From<Statistics> for Counters {
    fn from(kernel: Statistics) -> Counters {
        Counters {
            received: kernel.received,
            sent: kernel.sent,
            dropped: kernel.receive_dropped + kernel.send_dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_told_from_interfaces() {
        assert!(is_pci("0000:3b:00.0"));
        assert!(!is_pci("eth0") && !is_pci("eth0.5"));
        assert_eq!(interface_of("eth7").unwrap(), "eth7");
        let error = interface_of("ffff:ff:1f.7").unwrap_err().to_string();
        assert!(error.contains("ffff:ff:1f.7"), "{error}");
    }
}
