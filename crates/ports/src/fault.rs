//! Surviving a guest that takes its memory away.
//!
//! A guest's memory is a file that its hypervisor shares with us. If the hypervisor makes the file shorter, touching what is gone
//! raises SIGBUS, which would end the switch for everybody. The handler here puts fresh, empty memory in the place of the whole
//! shared mapping: the rings then hold zeroes, and only that guest's port suffers. Any other SIGBUS goes to whoever handled it before.

use crate::error::last_errno;
use libc::{c_int, c_void, siginfo_t};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Code of a SIGBUS for an address with nothing behind it (`BUS_ADRERR`).
const NOTHING_THERE: c_int = 2;

/// What handled SIGBUS before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Mappings replaced so far.
static REPLACED: AtomicU64 = AtomicU64::new(0);

/// Mappings replaced so far: above 0 means that some guest took its memory away.
pub(crate) fn replaced() -> u64 {
    REPLACED.load(Ordering::Relaxed)
}

/// Installs the handler, once.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeroes is a valid sigaction, and the handler only does what a signal handler may. The old action is
        // kept for ever, as the handler may need it at any time.
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

/// The handler. It runs at any moment, so it allocates nothing and takes no lock.
extern "C" fn handle(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes valid information, errno is the thread's own, and what was stored in BEFORE lives for ever.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let address = (*info).si_addr() as usize;
        if (*info).si_code != NOTHING_THERE || !replace(address) {
            // The instruction is repeated, and the fault goes to whoever was here before.
            libc::sigaction(
                libc::SIGBUS,
                BEFORE.load(Ordering::Acquire),
                std::ptr::null_mut(),
            );
        }
        *errno = saved;
    }
}

/// Puts empty memory in the place of the shared, writable mapping around `address`. False when there is none.
fn replace(address: usize) -> bool {
    let Some((start, end)) = shared_mapping(address) else {
        return false;
    };
    // SAFETY: the range is a mapping of memory shared with another process, whose bytes may change at any time anyway; nothing of
    // Rust's lies there.
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
    REPLACED.fetch_add(1, Ordering::Relaxed);
    true
}

/// Looks `address` up in the process's own list of mappings, with system calls only.
fn shared_mapping(address: usize) -> Option<(usize, usize)> {
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
            break answer;
        }
    };
    // SAFETY: the descriptor is open and ours.
    unsafe { libc::close(fd) };
    found
}

/// Reads lines such as `7f00-7f10 rw-s 00000000 00:01 1033 /memfd:ram` byte by byte.
struct Finder {
    address: usize,
    /// 0: first number, 1: second number, 2 and on: characters of the permissions, `DONE`: the rest of the line.
    place: u8,
    start: usize,
    end: usize,
    shared: bool,
    writable: bool,
}

const DONE: u8 = 6;

impl Finder {
    fn new(address: usize) -> Finder {
        Finder {
            address,
            place: 0,
            start: 0,
            end: 0,
            shared: false,
            writable: false,
        }
    }

    /// Takes the next byte. Some when the mapping with the address has been read: its range if it is shared and writable.
    fn next(&mut self, byte: u8) -> Option<Option<(usize, usize)>> {
        let digit = (byte as char).to_digit(16).unwrap_or(0) as usize;
        match (self.place, byte) {
            (_, b'\n') => *self = Finder::new(self.address),
            (0, b'-') => self.place = 1,
            (0, _) => self.start = self.start << 4 | digit,
            (1, b' ') => self.place = 2,
            (1, _) => self.end = self.end << 4 | digit,
            (DONE, _) => {}
            (place, _) => {
                self.writable |= place == 3 && byte == b'w';
                self.shared |= place == 5 && byte == b's';
                self.place += 1;
                if self.place == DONE && (self.start..self.end).contains(&self.address) {
                    return Some((self.shared && self.writable).then_some((self.start, self.end)));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_found_in_the_list() {
        let list = "1000-2000 r-xp 00000000 08:01 12 /bin/x\n\
                    7f00aa000000-7f00ab000000 rw-s 00000000 00:01 1033 /memfd:ram (deleted)\n\
                    7f00ab000000-7f00ac000000 r--s 00000000 00:01 1033 /file\n";
        let find = |address| {
            let mut finder = Finder::new(address);
            list.bytes().find_map(|byte| finder.next(byte)).flatten()
        };
        let range = Some((0x7f00_aa00_0000, 0x7f00_ab00_0000));
        assert_eq!(find(0x7f00_aa00_0000), range);
        assert_eq!(find(0x7f00_aaff_ffff), range);
        assert_eq!(find(0x7f00_ab00_0000), None, "not writable");
        assert_eq!(find(0x1800), None, "not shared");
        assert_eq!(find(0x3000), None, "not there");
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
        assert_eq!(replaced(), before + 1);
    }
}
