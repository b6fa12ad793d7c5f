//! Network namespaces: identifying them, and running code in another one.

use crate::error::last_errno;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories with named namespaces: those of `ip netns`, and those of containers.
const NAMED: [&str; 2] = ["/var/run/netns", "/var/run/docker/netns"];

/// Most files that are checked in the search for a namespace.
const MOST: usize = 65_536;

/// Identity of a network namespace, valid while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Device number of its file.
    pub device: u64,
    /// Inode number of its file.
    pub inode: u64,
}

impl Namespace {
    /// Returns the calling thread's.
    pub(crate) fn here() -> Result<Namespace, i32> {
        Namespace::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// Returns the one that a descriptor refers to.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<Namespace, i32> {
        let status = rustix::fs::fstat(fd).map_err(Errno::raw_os_error)?;
        Ok(Namespace {
            device: status.st_dev,
            inode: status.st_ino,
        })
    }

    /// Returns the one that a path refers to.
    fn at(path: &Path) -> Result<Namespace, i32> {
        use std::os::unix::fs::MetadataExt;
        let status =
            std::fs::metadata(path).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok(Namespace {
            device: status.dev(),
            inode: status.ino(),
        })
    }

    /// Opens it, if it has a name or a process is in it; `ENOENT` if neither is found.
    pub(crate) fn find(self) -> Result<OwnedFd, i32> {
        let named = NAMED.into_iter().flat_map(|directory| files(directory, ""));
        let lived_in = files("/proc", "ns/net");
        let path = named
            .chain(lived_in)
            .take(MOST)
            .find(|path| Namespace::at(path) == Ok(self))
            .ok_or(libc::ENOENT)?;
        let file =
            std::fs::File::open(path).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok(file.into())
    }
}

/// Returns a directory's files, or `below` each of its entries; for `/proc` only those of
/// processes.
fn files(directory: &'static str, below: &'static str) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(move |entry| below.is_empty() || entry.file_name().as_bytes()[0].is_ascii_digit())
        .map(move |entry| match below {
            "" => entry.path(),
            below => entry.path().join(below),
        })
}

/// Runs `act` in another network namespace, on a temporary thread. Fails with an `errno` if the
/// namespace may not be entered, or no thread can be started.
pub(crate) fn within<R: Send>(
    namespace: BorrowedFd<'_>,
    act: impl FnOnce() -> Result<R, i32> + Send,
) -> Result<R, i32> {
    std::thread::scope(|scope| {
        let visit = move || {
            // Only the calling thread moves, and it ends soon.
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                .map_err(Errno::raw_os_error)?;
            act()
        };
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, visit)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
        thread.join().unwrap_or(Err(libc::EIO))
    })
}

/// Takes ownership of the descriptor that an ioctl has returned.
pub(crate) fn owned(code: libc::c_int) -> Result<OwnedFd, i32> {
    if code < 0 {
        return Err(last_errno());
    }
    // SAFETY: the caller's request has just made this descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(code) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_own_namespace_is_found_by_its_number() {
        let here = Namespace::here().unwrap();
        let found = here.find().unwrap();
        assert_eq!(Namespace::of(found.as_fd()).unwrap(), here);
        let nowhere = Namespace {
            device: here.device,
            inode: 1,
        };
        assert_eq!(nowhere.find().unwrap_err(), libc::ENOENT);
    }

    #[test]
    fn a_file_that_is_no_namespace_is_refused() {
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let result = within(file.as_fd(), || Ok(()));
        assert!(
            matches!(result, Err(libc::EINVAL | libc::EPERM)),
            "{result:?}"
        );
    }
}
