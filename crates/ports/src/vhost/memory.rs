//! A guest's memory, mapped into this process, and the log of written pages.

use super::message::{VhostUserLog, VhostUserMemoryRegion};
use super::ring::Region;
use crate::error::last_errno;
use crate::fault;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the guest's memory for each bit of the log.
const LOG_PAGE: u64 = 4096;

/// Why memory cannot be mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal(pub String);

/// A mapping of a file, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: memory that another process shares, which any thread may touch as such.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a file, which must be that long.
    ///
    /// The file must be one of shared memory (a memfd, or a file on tmpfs or hugetlbfs). A page
    /// fault in any other may wait for a disk or a server, and a FUSE server is whoever mounted
    /// it: the guest could hold a worker for as long as it likes. Only files of shared memory have
    /// seals, and asking for seals does not wait for a file system, unlike `fstat`.
    fn new(file: &OwnedFd, length: u64) -> Result<Mapping, Refusal> {
        if !is_shared_memory(file) {
            return Err(Refusal(NOT_SHARED.into()));
        }
        let status = rustix::fs::fstat(file);
        let status = status.map_err(|error| refused("look at", error.raw_os_error()))?;
        if u64::try_from(status.st_size).unwrap_or(0) < length {
            let has = status.st_size;
            return Err(Refusal(format!(
                "its file has {has} bytes, and {length} are to be mapped"
            )));
        }
        // Files on hugetlbfs are mapped and unmapped in whole pages.
        let page = usize::try_from(status.st_blksize).unwrap_or(1).max(1);
        let length = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_next_multiple_of(page))
            .ok_or_else(|| refused("map", libc::EINVAL))?;
        // SAFETY: a new mapping, where the kernel wants it.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(place) if at != libc::MAP_FAILED => {
                // A guest's secrets do not belong into our core dumps.
                // SAFETY: the mapping that was just made.
                unsafe { libc::madvise(at, length, libc::MADV_DONTDUMP) };
                Ok(Mapping { at: place, length })
            }
            _ => Err(refused("map", last_errno())),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Done while the address is still this mapping's: another guest's mapping may get it next.
        fault::forget(self.at.as_ptr() as usize);
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.length) };
    }
}

/// Why a file is not mapped.
pub(super) const NOT_SHARED: &str = "its file is not shared memory; use a memfd (memory-backend-memfd), or a \
                          file on tmpfs or hugetlbfs (memory-backend-file)";

fn is_shared_memory(file: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

fn refused(what: &str, errno: i32) -> Refusal {
    Refusal(format!(
        "cannot {what} its file ({})",
        crate::describe(errno)
    ))
}

/// The memory that a front end has passed.
#[derive(Debug, Default)]
pub(super) struct Memory {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// Its address for descriptors, and its address here.
    region: Region,
    /// Its address in the front end.
    user: u64,
    mapping: Mapping,
}

impl Memory {
    /// Maps the regions of a table, each from its file. Those of other files than shared memory
    /// (a hypervisor also passes persistent memory, which lies on a disk) are left out if others
    /// remain: no buffers are to lie there.
    pub fn map(list: &[VhostUserMemoryRegion], files: &[OwnedFd]) -> Result<Memory, Refusal> {
        if list.len() != files.len() {
            let (regions, files) = (list.len(), files.len());
            return Err(Refusal(format!(
                "a memory table of {regions} regions with {files} file descriptors"
            )));
        }
        let map = |(number, (one, file)): (usize, (&VhostUserMemoryRegion, &OwnedFd))| {
            let one = *one;
            let (guest, user, size) = (one.guest_phys_addr, one.user_addr, one.memory_size);
            let named = |Refusal(why)| Refusal(format!("memory region {number}: {why}"));
            // None of these overflows: such a table would not have been decoded.
            let mapping = Mapping::new(file, one.mmap_offset + size).map_err(named)?;
            let host = mapping.at.as_ptr().wrapping_add(one.mmap_offset as usize);
            Ok(Part {
                region: Region { guest, host, size },
                user,
                mapping,
            })
        };
        // Where none is shared memory, the first says so.
        let any = files.iter().any(is_shared_memory);
        let parts = (list.iter().zip(files).enumerate())
            .filter(|(_, (_, file))| !any || is_shared_memory(file))
            .map(map);
        Ok(Memory {
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    /// Translates an address of the front end; null if it is not in the memory.
    pub fn by_user(&self, address: u64) -> *mut u8 {
        let found = self.parts.iter().find_map(|part| {
            let offset = address.wrapping_sub(part.user);
            (offset < part.region.size).then(|| part.region.host.wrapping_add(offset as usize))
        });
        found.unwrap_or(std::ptr::null_mut())
    }

    /// Returns all regions, by descriptors' addresses.
    pub fn regions(&self) -> Vec<Region> {
        self.parts.iter().map(|part| part.region).collect()
    }

    /// Returns whether one of the mappings begins there.
    pub fn begins_at(&self, address: usize) -> bool {
        let mut starts = self.parts.iter().map(|part| part.mapping.at.as_ptr());
        starts.any(|start| start as usize == address)
    }

    /// Returns whether some of it was truncated, which ends the connection at the next tick.
    pub fn was_taken_back(&self) -> bool {
        let mut starts = self.parts.iter().map(|part| part.mapping.at.as_ptr());
        starts.any(|start| fault::has_replaced(start as usize))
    }

    /// Returns the NUMA node of its first page; 0 if unknown.
    pub fn numa_node(&self) -> i32 {
        let Some(part) = self.parts.first() else {
            return 0;
        };
        let page = [part.mapping.at.as_ptr().cast::<libc::c_void>()];
        let mut node: libc::c_int = -1;
        let nowhere = std::ptr::null::<libc::c_int>();
        // SAFETY: asks about one page of our own, for which there is a place in each list, and
        // moves none.
        let code = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                1,
                page.as_ptr(),
                nowhere,
                &mut node,
                0,
            )
        };
        if code == 0 { node.max(0) } else { 0 }
    }
}

/// The log of written pages, used while a guest is migrated to another machine: one bit per page.
#[derive(Debug)]
pub(super) struct DirtyLog {
    mapping: Mapping,
    offset: usize,
    size: usize,
}

impl DirtyLog {
    pub fn map(log: &VhostUserLog, file: &OwnedFd) -> Result<DirtyLog, Refusal> {
        let named = |Refusal(why)| Refusal(format!("the log of written pages: {why}"));
        // A log that overflows would not have been decoded.
        let mapping = Mapping::new(file, log.mmap_offset + log.mmap_size).map_err(named)?;
        Ok(DirtyLog {
            mapping,
            offset: log.mmap_offset as usize,
            size: log.mmap_size as usize,
        })
    }

    /// Marks the pages of `length` bytes from a guest's address on as written. Pages beyond the
    /// log's end are ignored.
    pub fn written(&self, address: u64, length: u64) {
        let Some(last) = length
            .checked_sub(1)
            .and_then(|more| address.checked_add(more))
        else {
            return;
        };
        for page in address / LOG_PAGE..=last / LOG_PAGE {
            let Ok(byte) = usize::try_from(page / 8) else {
                return;
            };
            if byte >= self.size {
                return;
            }
            let place = self.mapping.at.as_ptr().wrapping_add(self.offset + byte);
            // SAFETY: within the mapping, which is at least `offset + size` bytes long.
            let bits = unsafe { AtomicU8::from_ptr(place) };
            bits.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn file(size: i64) -> OwnedFd {
        // SAFETY: a new file, owned by nobody else.
        unsafe {
            let fd = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, size), 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    fn region(guest: u64, size: u64, user: u64, offset: u64) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion::new(guest, size, user, offset)
    }

    #[test]
    fn addresses_are_found_where_the_front_end_has_them() {
        let list = [
            region(0, 0x2000, 0x7000_0000, 0x1000),
            region(0x10_0000, 0x1000, 0x8000_0000, 0),
        ];
        let memory = Memory::map(&list, &[file(0x3000), file(0x1000)]).unwrap();
        let regions = memory.regions();
        assert_eq!(memory.by_user(0x7000_0000), regions[0].host);
        assert_eq!(
            memory.by_user(0x7000_1fff),
            regions[0].host.wrapping_add(0x1fff)
        );
        assert!(memory.by_user(0x7000_2000).is_null());
        assert!(memory.by_user(0x6fff_ffff).is_null());
        assert_eq!(memory.by_user(0x8000_0004), regions[1].host.wrapping_add(4));
        assert!(memory.begins_at(regions[0].host as usize - 0x1000));
        assert!(!memory.begins_at(regions[0].host as usize));
        assert!(Memory::default().by_user(0).is_null());
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let refused = |list: &[VhostUserMemoryRegion], files: &[OwnedFd]| {
            Memory::map(list, files).map(|_| ()).unwrap_err().0
        };
        let two = [region(0, 4096, 0, 0), region(8192, 4096, 8192, 4096)];
        assert_eq!(
            refused(&two, &[file(4096), file(8191)]),
            "memory region 1: its file has 8191 bytes, and 8192 are to be mapped"
        );
        assert!(refused(&two, &[file(4096)]).contains("2 regions with 1 file descriptors"));
        let endless = [region(0, 1 << 62, 0, 0)];
        assert!(refused(&endless, &[file(4096)]).contains("4096 bytes"));
    }

    #[test]
    fn files_whose_pages_may_have_to_be_waited_for_are_refused() {
        // The build directory is on a disk.
        let path = std::env::current_exe().unwrap();
        let path = path.with_extension(format!("{}.memory", std::process::id()));
        let on_disk = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let on_disk = on_disk.unwrap();
        std::fs::remove_file(&path).unwrap();
        on_disk.set_len(8192).unwrap();
        let on_disk = OwnedFd::from(on_disk);
        // SAFETY: a new descriptor, owned by nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        for file in [on_disk, event] {
            let list = [region(0, 4096, 0, 0)];
            let refused = Memory::map(&list, std::slice::from_ref(&file)).map(|_| ());
            let Refusal(why) = refused.unwrap_err();
            assert!(why.starts_with("memory region 0: its file is not shared memory"));
            assert!(why.contains("memory-backend-memfd"));
            let refused = DirtyLog::map(&VhostUserLog::new(16, 0), &file).map(|_| ());
            let Refusal(why) = refused.unwrap_err();
            assert!(why.starts_with("the log of written pages: its file is not shared memory"));
        }
    }

    /// Persistent memory of a guest lies on a disk.
    #[test]
    fn other_files_beside_shared_memory_are_left_out() {
        // SAFETY: a new descriptor, owned by nobody else.
        let other = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let list = [region(0, 4096, 0, 0), region(8192, 4096, 8192, 0)];
        let memory = Memory::map(&list, &[other, file(4096)]).unwrap();
        assert_eq!(memory.regions().len(), 1);
        assert!(memory.by_user(0).is_null());
        assert!(!memory.by_user(8192).is_null());
    }

    /// The kernel may give the address of an old mapping to a new one.
    #[test]
    fn memory_that_a_guest_took_back_does_not_affect_the_next_guest() {
        fault::install();
        let size = 0x12_3000u64;
        let list = [region(0, size, 0, 0)];
        let file = file(size as i64);
        let memory = Memory::map(&list, std::slice::from_ref(&file)).unwrap();
        let host = memory.regions()[0].host;
        // SAFETY: the file is ours; the mapping is whole, and what is behind it no longer there,
        // which the handler mends.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), 0), 0);
            assert_eq!(host.read_volatile(), 0);
        }
        assert!(memory.was_taken_back());
        drop(memory);
        assert!(!fault::has_replaced(host as usize));
    }

    #[test]
    fn written_pages_are_noted_within_the_log() {
        let file = file(4096);
        let log = DirtyLog::map(&VhostUserLog::new(2, 16), &file).unwrap();
        let bytes = || {
            let mut bytes = [0u8; 4];
            // SAFETY: four writable bytes.
            unsafe { libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), 4, 15) };
            bytes
        };
        log.written(0, 0);
        assert_eq!(bytes(), [0, 0, 0, 0]);
        log.written(4095, 2);
        assert_eq!(bytes(), [0, 0b11, 0, 0]);
        log.written(9 * 4096 + 5, 1);
        log.written(15 * 4096, 100 * 4096);
        log.written(u64::MAX - 10, 20);
        log.written(u64::MAX, 1);
        assert_eq!(bytes(), [0, 0b11, 0b1000_0010, 0]);
    }
}
