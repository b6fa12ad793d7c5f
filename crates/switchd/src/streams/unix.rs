//! Sockets in the file system, at paths of any length. The kernel takes at most 107 bytes; a longer path is reached through
//! its directory's descriptor (`/proc/self/fd/N/NAME`), as run directories of test beds tend to be deep.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

/// The longest path that fits a socket address with its terminator.
const MAXIMUM_PATH: usize = 107;

/// A path short enough for a socket address, good for as long as the directory returned with it is open.
fn short_path(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((short, directory))
}

/// The file of a listening socket. Dropping it removes the file, unless somebody else has taken the name since.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let there =
            fs::symlink_metadata(&self.path).map(|attributes| (attributes.dev(), attributes.ino()));
        if there.is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, in place of a socket that is there already. Anything else that is there is left alone, and an error.
/// Only the owner and its group may connect, as far as the umask lets them.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => fs::remove_file(path)?,
        _ => {}
    }
    let listener = if path.as_os_str().len() <= MAXIMUM_PATH {
        UnixListener::bind(path)?
    } else {
        let (short, _directory) = short_path(path)?;
        UnixListener::bind(short)?
    };
    let attributes = fs::metadata(path)?;
    let file = SocketFile {
        path: path.to_path_buf(),
        identity: (attributes.dev(), attributes.ino()),
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o770 & attributes.mode()))?;
    Ok((listener, file))
}

/// Connects to the socket at `path`.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    // A name's directory stays open until the kernel has followed it, which it does on the first poll.
    if path.as_os_str().len() <= MAXIMUM_PATH {
        return UnixStream::connect(path).await;
    }
    let (short, _directory) = short_path(path)?;
    UnixStream::connect(short).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn long_paths_work_and_only_sockets_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        let path = deep.join("socket");
        let left_behind = listen(&path).unwrap();
        let (listener, file) = listen(&path).expect("the socket left behind is replaced");
        drop(left_behind);
        assert!(path.exists(), "a file that is another's by now stays");
        let mut client = connect(&path).await.unwrap();
        client.write_all(b"x").await.unwrap();
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let precious = deep.join("file");
        fs::write(&precious, "precious").unwrap();
        assert!(listen(&precious).is_err());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        drop(file);
        assert!(!path.exists());
        assert!(connect(&deep.join("none")).await.is_err());
    }
}
