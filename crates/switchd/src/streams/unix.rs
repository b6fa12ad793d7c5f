//! Sockets in the file system, at paths of any length. The kernel takes at most 107 bytes; a longer
//! path is reached through its directory's descriptor (`/proc/self/fd/N/NAME`), because run
//! directories of test beds tend to be deep.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Bytes in one read above which more are expected to follow at once.
const FLOOD: usize = 16 << 10;

/// A stream to a process on this machine.
///
/// While much data arrives, the socket is not registered with the event loop (epoll): otherwise
/// each message costs its sender the time to look for whom to wake, although reading would find the
/// data anyway. It is registered again when there is nothing to read, or no room to write.
pub struct Local {
    socket: Socket,
    /// Whether a writer waits for the event loop to report room.
    write_waits: bool,
}

enum Socket {
    Watched(UnixStream),
    Unwatched(std::os::unix::net::UnixStream),
    /// The change from one to the other failed.
    Lost,
}

impl Local {
    /// Takes a connected socket.
    pub fn new(stream: UnixStream) -> Local {
        Local {
            socket: Socket::Watched(stream),
            write_waits: false,
        }
    }

    /// Registers the socket with the event loop, if it is not, and returns it.
    fn watched(&mut self) -> io::Result<Pin<&mut UnixStream>> {
        if matches!(self.socket, Socket::Unwatched(_))
            && let Socket::Unwatched(stream) = std::mem::replace(&mut self.socket, Socket::Lost)
        {
            self.socket = Socket::Watched(UnixStream::from_std(stream)?);
        }
        match &mut self.socket {
            Socket::Watched(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Removes the socket from the event loop, unless a writer waits for it.
    fn unwatch(&mut self) -> io::Result<()> {
        if !self.write_waits
            && matches!(self.socket, Socket::Watched(_))
            && let Socket::Watched(stream) = std::mem::replace(&mut self.socket, Socket::Lost)
        {
            self.socket = Socket::Unwatched(stream.into_std()?);
        }
        Ok(())
    }
}

/// Makes a call on a socket that is not watched; None if it would have to wait.
fn at_once<T>(mut call: impl FnMut() -> io::Result<T>) -> Option<io::Result<T>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            result => return Some(result),
        }
    }
}

impl AsyncRead for Local {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let local = self.get_mut();
        if let Socket::Unwatched(stream) = &mut local.socket {
            let read = at_once(|| stream.read(buffer.initialize_unfilled()));
            if let Some(result) = read {
                return Poll::Ready(result.map(|length| buffer.advance(length)));
            }
        }
        let before = buffer.filled().len();
        ready!(local.watched()?.poll_read(context, buffer))?;
        if buffer.filled().len() - before >= FLOOD {
            local.unwatch()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Local {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let local = self.get_mut();
        if let Socket::Unwatched(stream) = &mut local.socket
            && let Some(result) = at_once(|| stream.write(bytes))
        {
            return Poll::Ready(result);
        }
        let written = local.watched()?.poll_write(context, bytes);
        local.write_waits = written.is_pending();
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Written data is with the kernel already.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let local = self.get_mut();
        match &mut local.socket {
            Socket::Unwatched(stream) => Poll::Ready(stream.shutdown(Shutdown::Write)),
            _ => local.watched()?.poll_shutdown(context),
        }
    }
}

/// The longest path that fits a socket address with its terminator.
const MAXIMUM_PATH: usize = 107;

/// Returns a path short enough for a socket address; valid while the directory returned with it is
/// open.
fn short_path(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((short, directory))
}

/// The file of a listening socket. Dropping it removes the file, unless the name belongs to another
/// file by then.
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

/// Listens at `path`, and replaces a socket that exists there. Anything else at that path is left
/// alone and is an error. Only the owner and its group may connect, as far as the umask allows.
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
    // The directory stays open until the kernel has resolved the path, which it does on the first
    // poll.
    if path.as_os_str().len() <= MAXIMUM_PATH {
        return UnixStream::connect(path).await;
    }
    let (short, _directory) = short_path(path)?;
    UnixStream::connect(short).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A flood, a pause and another flood, while the other side sends more than the socket holds.
    #[tokio::test]
    async fn floods_are_read_whole_and_answered() {
        const PIECES: usize = 3000;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut sender = theirs.try_clone().unwrap();
        // Ensures that the first read finds much, however the threads are scheduled.
        sender.write_all(&[0; 2 * FLOOD]).unwrap();
        let send = std::thread::spawn(move || {
            for number in 0..PIECES {
                sender.write_all(&[number as u8; 500]).unwrap();
                if number % 1000 == 999 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut receiver = theirs;
        let receive = std::thread::spawn(move || {
            let mut all = Vec::new();
            receiver.read_to_end(&mut all).unwrap();
            all
        });
        let local = Local::new(UnixStream::from_std(ours).unwrap());
        let (mut reader, mut writer) = tokio::io::split(local);
        let mut buffer = Vec::new();
        let mut total = 0;
        let mut unwatched = false;
        let mut sum = 0_usize;
        loop {
            buffer.clear();
            buffer.reserve(64 << 10);
            let length = reader.read_buf(&mut buffer).await.unwrap();
            if length == 0 {
                break;
            }
            unwatched |= length >= FLOOD;
            sum += buffer.iter().map(|byte| usize::from(*byte)).sum::<usize>();
            total += length;
            writer.write_all(&buffer).await.unwrap();
            tokio::task::yield_now().await;
        }
        writer.shutdown().await.unwrap();
        drop((reader, writer));
        send.join().unwrap();
        let wanted: usize = (0..PIECES).map(|number| 500 * (number % 256)).sum();
        assert_eq!((total, sum), (2 * FLOOD + 500 * PIECES, wanted));
        assert!(unwatched, "nothing came in numbers");
        let back = receive.join().unwrap();
        assert_eq!(
            back.iter().map(|byte| usize::from(*byte)).sum::<usize>(),
            wanted
        );
    }

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
