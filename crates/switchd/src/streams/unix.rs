//! Sockets in the file system, at paths of any length. The kernel takes at most 107 bytes; a longer path is reached through
//! its directory's descriptor (`/proc/self/fd/N/NAME`), as run directories of test beds tend to be deep.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The longest path that fits a socket address with its terminator.
const MAXIMUM_PATH: usize = 107;

/// Calls `work` with a path short enough for a socket address that leads to `path`.
fn with_short_path<T>(path: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= MAXIMUM_PATH {
        return work(path);
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    work(&short)
}

/// Listens at `path`, in place of a socket that is there already. Anything else that is there is left alone, and an error.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => fs::remove_file(path)?,
        _ => {}
    }
    with_short_path(path, |path| UnixListener::bind(path))
}

/// Connects to the socket at `path`. A full backlog is an error at once (`WouldBlock`) and not a wait.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    with_short_path(path, |path| UnixStream::connect(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn long_paths_work_and_only_sockets_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        let path = deep.join("socket");
        drop(listen(&path).unwrap());
        let listener = listen(&path).expect("the socket left behind is replaced");
        let mut client = connect(&path).unwrap();
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let file = deep.join("file");
        fs::write(&file, "precious").unwrap();
        assert!(listen(&file).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        assert!(connect(&deep.join("none")).is_err());
    }
}
