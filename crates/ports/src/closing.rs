//! What the kernel takes its time to let go of, dropped one after the other on a thread of its own.
//!
//! To close a packet socket is to wait until no processor looks at it any more, some 10 to 30 ms, with the control thread or a worker standing still. So they hand it
//! over: nothing is received or sent by it any more, and the interface may be given away, removed or used again meanwhile, since any number of such sockets may be bound to one.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Things that may wait; each may be 2 MiB of the kernel's memory. What comes beyond is dropped by who brings it.
const QUEUE_LENGTH: usize = 16;

type Thing = Box<dyn Send>;

static QUEUE: OnceLock<Option<SyncSender<Thing>>> = OnceLock::new();

/// Starts the thread, once. It inherits what its caller has of processors and priority, so this is for the control thread to call.
pub(crate) fn start() {
    QUEUE.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Thing>(QUEUE_LENGTH);
        std::thread::Builder::new()
            .name("close".to_owned())
            .spawn(move || receiver.into_iter().for_each(drop))
            .inspect_err(|error| {
                tracing::warn!("no thread to close sockets: {error}; ports go slowly")
            })
            .ok()
            .map(|_| sender)
    });
}

/// Drops something soon, and never waits for it but where too much waits already.
pub(crate) fn later(thing: impl Send + 'static) {
    let Some(Some(queue)) = QUEUE.get() else {
        return drop(thing);
    };
    match queue.try_send(Box::new(thing)) {
        Ok(()) => {}
        Err(TrySendError::Full(thing) | TrySendError::Disconnected(thing)) => drop(thing),
    }
}

/// A socket that is closed [`later`].
pub(crate) struct Lingering(Option<OwnedFd>);

impl Lingering {
    pub(crate) fn new(fd: OwnedFd) -> Lingering {
        Lingering(Some(fd))
    }
}

impl AsRawFd for Lingering {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            later(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// Tells when it goes, and waits for leave to.
    struct Slow(Sender<()>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.1.recv_timeout(Duration::from_secs(20));
            let _ = self.0.send(());
        }
    }

    #[test]
    fn nobody_waits_for_what_goes_slowly() {
        start();
        let (gone, is_gone) = channel();
        let (leave, wait) = channel();
        later(Slow(gone, wait));
        // It is not gone, and we are here.
        assert!(is_gone.recv_timeout(Duration::from_millis(50)).is_err());
        leave.send(()).unwrap();
        is_gone.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn a_socket_that_lingers_goes_in_the_end() {
        start();
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        drop(Lingering::new(socket.into()));
        assert_eq!(std::io::Read::read(&mut peer, &mut [0]).unwrap(), 0);
    }
}
