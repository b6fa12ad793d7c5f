//! Survives a guest that truncates its memory.
//!
//! A guest's memory is a file that its hypervisor shares with us. If the hypervisor truncates the
//! file, an access to the missing part raises SIGBUS, which would end the switch for everybody. The
//! handler here replaces the whole shared mapping with fresh, empty memory: the rings then hold
//! zeroes, and only that guest's port suffers. Any other SIGBUS goes to the previous handler.
//!
//! Workers share a guest's memory, so several may fault on it at once. The first one replaces it;
//! the others find the replacement, and their instruction is simply repeated.

use crate::error::last_errno;
use libc::{c_int, c_void, siginfo_t};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Signal code of a SIGBUS for an address without backing memory (`BUS_ADRERR`).
const NOTHING_THERE: c_int = 2;

/// The previous handler of SIGBUS.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Number of mappings replaced so far.
static REPLACED: AtomicU64 = AtomicU64::new(0);

/// Start addresses of recently replaced mappings that [`recent`] has not returned yet; else 0.
static RECENT: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Returns how many mappings have been replaced so far: above 0, some guest has truncated its
/// memory.
pub(crate) fn replaced() -> u64 {
    REPLACED.load(Ordering::Relaxed)
}

/// Returns the start addresses of mappings replaced since the last call; only the latest ones if
/// there were very many.
pub(crate) fn recent() -> Vec<usize> {
    let starts = RECENT.iter().map(|place| place.swap(0, Ordering::Relaxed));
    starts.filter(|start| *start != 0).collect()
}

/// Returns whether the mapping that begins there was replaced since the last call of [`recent`].
pub(crate) fn has_replaced(start: usize) -> bool {
    RECENT
        .iter()
        .any(|place| place.load(Ordering::Relaxed) == start)
}

/// Forgets what happened to the mapping that begins there, before it is unmapped. The kernel may
/// reuse its address for another mapping of that size, which was not truncated.
pub(crate) fn forget(start: usize) {
    for place in &RECENT {
        let _ = place.compare_exchange(start, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Installs the SIGBUS handler, once.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeroes is a valid sigaction, and the handler only does what a signal handler
        // may. The old action is kept for ever, as the handler may need it at any time.
        let code = unsafe {
            let before = Box::leak(Box::new(std::mem::zeroed::<libc::sigaction>()));
            libc::sigaction(libc::SIGBUS, std::ptr::null(), before);
            BEFORE.store(before, Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
        };
        if code != 0 {
            tracing::warn!("cannot handle SIGBUS ({})", crate::describe(last_errno()));
        }
    });
}

/// The signal handler. It may run at any moment, so it allocates nothing and takes no lock.
extern "C" fn handle(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes valid information, errno is the thread's own, and what was stored
    // in BEFORE lives for ever.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let address = (*info).si_addr() as usize;
        if (*info).si_code != NOTHING_THERE || !replace(address) {
            // The instruction is repeated, and the fault goes to the previous handler.
            libc::sigaction(
                libc::SIGBUS,
                BEFORE.load(Ordering::Acquire),
                std::ptr::null_mut(),
            );
        }
        *errno = saved;
    }
}

/// Replaces the shared, writable mapping around `address` with empty memory. False when there is
/// none, unless another thread has replaced it already.
fn replace(address: usize) -> bool {
    let (start, end) = match mapping(address) {
        Some(Mapping::Shared(start, end)) => (start, end),
        // Anonymous memory never lacks backing: it was put here after the fault.
        Some(Mapping::Plain) => return true,
        Some(Mapping::Other) | None => return false,
    };
    // SAFETY: the range is a mapping of memory shared with another process, whose bytes may change
    // at any time anyway; nothing of Rust's lies there.
    let placed = unsafe {
        libc::mmap(
            start as *mut c_void,
            end - start,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if placed == libc::MAP_FAILED {
        return false;
    }
    let number = REPLACED.fetch_add(1, Ordering::Relaxed);
    RECENT[(number % RECENT.len() as u64) as usize].store(start, Ordering::Relaxed);
    true
}

/// Kind of the mapping around an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapping {
    /// Shared and writable, with its first address and its end.
    Shared(usize, usize),
    /// Private, writable and anonymous.
    Plain,
    /// Anything else.
    Other,
}

/// Looks `address` up in `/proc/self/maps`, with system calls only.
fn mapping(address: usize) -> Option<Mapping> {
    // SAFETY: the path is a string that ends in a zero.
    let fd = unsafe {
        libc::open(
            c"/proc/self/maps".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return None;
    }
    let mut finder = Finder::new(address);
    let mut buffer = [0u8; 1024];
    let found = loop {
        // SAFETY: the buffer is writable for its length.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        if got <= 0 {
            break None;
        }
        if let Some(answer) = buffer[..got as usize]
            .iter()
            .find_map(|byte| finder.next(*byte))
        {
            break Some(answer);
        }
    };
    // SAFETY: the descriptor is open and ours.
    unsafe { libc::close(fd) };
    found
}

/// Parser for lines such as `7f00-7f10 rw-s 00000000 00:01 1033 /memfd:ram`, byte by byte.
struct Finder {
    address: usize,
    /// Index of the current field of the line: 0 and 1: addresses, 2: permissions, 3: offset, 4:
    /// device, 5: inode.
    place: u8,
    /// Number of permission characters so far.
    permissions: u8,
    start: usize,
    end: usize,
    inode: usize,
    shared: bool,
    writable: bool,
}

impl Finder {
    fn new(address: usize) -> Finder {
        Finder {
            address,
            place: 0,
            permissions: 0,
            start: 0,
            end: 0,
            inode: 0,
            shared: false,
            writable: false,
        }
    }

    /// Takes the next byte. Returns the mapping with the address once it has been read.
    fn next(&mut self, byte: u8) -> Option<Mapping> {
        let digit = (byte as char).to_digit(16).unwrap_or(0) as usize;
        match (self.place, byte) {
            (5, b' ' | b'\n') if (self.start..self.end).contains(&self.address) => {
                return Some(self.found());
            }
            (_, b'\n') => *self = Finder::new(self.address),
            (0, b'-') | (1..=5, b' ') => self.place += 1,
            (0, _) => self.start = self.start << 4 | digit,
            (1, _) => self.end = self.end << 4 | digit,
            (2, _) => {
                self.writable |= self.permissions == 1 && byte == b'w';
                self.shared |= self.permissions == 3 && byte == b's';
                self.permissions += 1;
            }
            (5, _) => self.inode = self.inode.wrapping_mul(10).wrapping_add(digit),
            _ => {}
        }
        None
    }

    fn found(&self) -> Mapping {
        match (self.shared, self.writable, self.inode) {
            (true, true, _) => Mapping::Shared(self.start, self.end),
            (false, true, 0) => Mapping::Plain,
            _ => Mapping::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_found_in_the_list() {
        let list = "1000-2000 r-xp 00000000 08:01 12 /bin/x\n\
                    2000-3000 rw-p 00000000 00:00 0 \n\
                    4000-5000 rw-p 00000000 08:01 12 /bin/x\n\
                    7f00aa000000-7f00ab000000 rw-s 00000000 00:01 1033 /memfd:ram (deleted)\n\
                    7f00ab000000-7f00ac000000 r--s 00000000 00:01 1033 /file\n";
        let find = |address| {
            let mut finder = Finder::new(address);
            list.bytes().find_map(|byte| finder.next(byte))
        };
        let range = Some(Mapping::Shared(0x7f00_aa00_0000, 0x7f00_ab00_0000));
        assert_eq!(find(0x7f00_aa00_0000), range);
        assert_eq!(find(0x7f00_aaff_ffff), range);
        assert_eq!(find(0x7f00_ab00_0000), Some(Mapping::Other), "not writable");
        assert_eq!(find(0x1800), Some(Mapping::Other), "not shared");
        assert_eq!(find(0x2800), Some(Mapping::Plain));
        assert_eq!(find(0x4800), Some(Mapping::Other), "of a file");
        assert_eq!(find(0x3000), None, "not there");
    }

    #[test]
    fn a_second_fault_finds_the_replaced_mapping() {
        // SAFETY: a mapping of our own over a file of our own, touched by nobody.
        unsafe {
            let fd = libc::memfd_create(c"guest".as_ptr(), 0);
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(
                std::ptr::null_mut(),
                1 << 20,
                flags,
                libc::MAP_SHARED,
                fd,
                0,
            );
            assert!(fd >= 0 && at != libc::MAP_FAILED);
            // Two threads have faulted; each handler runs as if the other thread had not.
            assert!(replace(at as usize + 5000));
            assert!(
                replace(at as usize + 5000),
                "or the handler would be taken down"
            );
            libc::munmap(at, 1 << 20);
            libc::close(fd);
        }
        assert!(!replace(16), "nothing is mapped there");
    }

    #[test]
    fn memory_that_is_taken_away_reads_as_zero() {
        install();
        let before = replaced();
        // SAFETY: a mapping of our own over a file of our own, touched only here.
        unsafe {
            let fd = libc::memfd_create(c"guest".as_ptr(), 0);
            assert!(fd >= 0 && libc::ftruncate(fd, 1 << 20) == 0);
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            let place = libc::mmap(
                std::ptr::null_mut(),
                1 << 20,
                flags,
                libc::MAP_SHARED,
                fd,
                0,
            )
            .cast::<u8>();
            place.add(5000).write_volatile(7);
            assert_eq!(libc::ftruncate(fd, 0), 0);
            assert_eq!(place.add(5000).read_volatile(), 0);
            place.add(900_000).write_volatile(9);
            assert_eq!(place.add(900_000).read_volatile(), 9);
            libc::munmap(place.cast(), 1 << 20);
            libc::close(fd);
        }
        assert!(replaced() > before);
    }
}
