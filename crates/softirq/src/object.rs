//! BPF objects, maps and links: safe wrappers of libbpf's functions.

use std::ffi::{CString, c_void};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Plain data: any bytes are a valid value, and there is no padding.
///
/// # Safety
///
/// The type must have these properties, and contain no references.
pub unsafe trait Plain: Copy {}

// SAFETY: integers are plain.
unsafe impl Plain for u32 {}
// SAFETY: integers are plain.
unsafe impl Plain for u64 {}

/// A failed call to the kernel.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct BpfError {
    /// The operation.
    pub what: String,
    /// The error.
    #[source]
    pub error: io::Error,
}

fn failed(what: impl Into<String>, error: io::Error) -> BpfError {
    let what = what.into();
    BpfError { what, error }
}

/// Converts the result of one of libbpf's functions: below zero is an error number.
fn checked(what: &str, result: i32) -> Result<i32, BpfError> {
    if result < 0 {
        Err(failed(what, io::Error::from_raw_os_error(-result)))
    } else {
        Ok(result)
    }
}

/// Returns a value of all zeros.
pub fn zeroed<T: Plain>() -> T {
    // SAFETY: any bytes are a value of a plain type.
    unsafe { std::mem::zeroed() }
}

/// Returns a value's bytes.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a plain value has no padding, so all its bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Programs and maps of an object file, before or after they are loaded.
pub struct Object {
    object: NonNull<libbpf_sys::bpf_object>,
    log: Vec<u8>,
}

// SAFETY: libbpf's objects belong to no thread; `Object` is not `Sync`.
unsafe impl Send for Object {}

impl Object {
    /// Reads an object file.
    ///
    /// # Errors
    ///
    /// It is not an object file.
    pub fn open(file: &[u8]) -> Result<Object, BpfError> {
        let mut log = vec![0_u8; 8 << 20];
        // SAFETY: the function only stores the pointer; none means no messages.
        unsafe { libbpf_sys::libbpf_set_print(None) };
        let options = libbpf_sys::bpf_object_open_opts {
            sz: size_of::<libbpf_sys::bpf_object_open_opts>() as _,
            kernel_log_buf: log.as_mut_ptr().cast(),
            kernel_log_size: log.len() as _,
            ..Default::default()
        };
        // SAFETY: file and options live through the call. libbpf keeps the pointer to the log,
        // whose heap memory stays in place while `Object` lives.
        let object = unsafe {
            libbpf_sys::bpf_object__open_mem(file.as_ptr().cast(), file.len() as _, &options)
        };
        let object = NonNull::new(object)
            .ok_or_else(|| failed("cannot read the BPF object", io::Error::last_os_error()))?;
        Ok(Object { object, log })
    }

    fn map(&self, name: &str) -> Result<NonNull<libbpf_sys::bpf_map>, BpfError> {
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the object is open and the name a C string.
        let map = unsafe {
            libbpf_sys::bpf_object__find_map_by_name(self.object.as_ptr(), c_name.as_ptr())
        };
        let none = || failed(format!("map {name}"), io::ErrorKind::NotFound.into());
        NonNull::new(map).ok_or_else(none)
    }

    /// Sets how many elements a map has, before it is loaded.
    ///
    /// # Errors
    ///
    /// There is no such map, or it is already loaded.
    pub fn size_map(&mut self, name: &str, elements: u32) -> Result<(), BpfError> {
        let map = self.map(name)?;
        // SAFETY: the map belongs to this object.
        let result = unsafe { libbpf_sys::bpf_map__set_max_entries(map.as_ptr(), elements) };
        checked(&format!("map {name}"), result).map(drop)
    }

    /// Loads all programs and maps into the kernel.
    ///
    /// # Errors
    ///
    /// The kernel's error, with the last lines of the verifier's log.
    pub fn load(&mut self) -> Result<(), BpfError> {
        // SAFETY: the object is open.
        let result = unsafe { libbpf_sys::bpf_object__load(self.object.as_ptr()) };
        checked("cannot load the BPF programs", result).map_err(|mut error| {
            let end = self.log.iter().position(|byte| *byte == 0).unwrap_or(0);
            let log = String::from_utf8_lossy(&self.log[..end]);
            let lines: Vec<&str> = log.trim_end().lines().rev().take(12).collect();
            for line in lines.iter().rev() {
                error.what.push('\n');
                error.what.push_str(line);
            }
            error
        })?;
        Ok(())
    }

    /// Returns the descriptor of a loaded map.
    ///
    /// # Errors
    ///
    /// There is no such map.
    pub fn map_fd(&self, name: &str) -> Result<RawFd, BpfError> {
        let map = self.map(name)?;
        // SAFETY: the map belongs to this object.
        let fd = unsafe { libbpf_sys::bpf_map__fd(map.as_ptr()) };
        checked(&format!("map {name}"), fd)
    }

    /// Returns the descriptor of a loaded program.
    ///
    /// # Errors
    ///
    /// There is no such program.
    pub fn program_fd(&self, name: &str) -> Result<RawFd, BpfError> {
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the object is open and the name a C string.
        let program = unsafe {
            libbpf_sys::bpf_object__find_program_by_name(self.object.as_ptr(), c_name.as_ptr())
        };
        if program.is_null() {
            let what = format!("program {name}");
            return Err(failed(what, io::ErrorKind::NotFound.into()));
        }
        // SAFETY: the program belongs to this object.
        let fd = unsafe { libbpf_sys::bpf_program__fd(program) };
        checked(&format!("program {name}"), fd)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the object is open, and nobody uses it any more.
        unsafe { libbpf_sys::bpf_object__close(self.object.as_ptr()) };
    }
}

/// A map whose elements are read and written by system calls. Its descriptor belongs to the object.
#[derive(Clone, Copy)]
pub struct Map<K, V> {
    fd: RawFd,
    kinds: PhantomData<(K, V)>,
}

impl<K: Plain, V: Plain> Map<K, V> {
    /// Returns a loaded map.
    ///
    /// # Errors
    ///
    /// There is no map of this name, or its elements have other sizes.
    pub fn of(object: &Object, name: &str) -> Result<Map<K, V>, BpfError> {
        let fd = object.map_fd(name)?;
        let info = map_info(fd)?;
        // A stack has no keys; values per processor are rounded up.
        let keys = info.key_size == 0 || info.key_size as usize == size_of::<K>();
        if !keys || info.value_size as usize != size_of::<V>() {
            let what = format!(
                "map {name}: sizes {} and {}",
                info.key_size, info.value_size
            );
            return Err(failed(what, io::ErrorKind::InvalidData.into()));
        }
        Ok(Map {
            fd,
            kinds: PhantomData,
        })
    }

    /// Writes an element.
    ///
    /// # Errors
    ///
    /// The kernel's: `E2BIG` if the map is full.
    pub fn set(&self, key: &K, value: &V) -> io::Result<()> {
        let (key, value) = (std::ptr::from_ref(key), std::ptr::from_ref(value));
        // SAFETY: both point to values of the map's sizes, as was checked when it was made.
        let result =
            unsafe { libbpf_sys::bpf_map_update_elem(self.fd, key.cast(), value.cast(), 0) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }

    /// Pushes a value onto a stack.
    ///
    /// # Errors
    ///
    /// The kernel's: `E2BIG` if it is full.
    pub fn push(&self, value: &V) -> io::Result<()> {
        // SAFETY: a stack takes no key, and the value has the map's size.
        let result = unsafe {
            let value = std::ptr::from_ref(value).cast();
            libbpf_sys::bpf_map_update_elem(self.fd, std::ptr::null(), value, 0)
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }

    /// Reads an element, if it exists.
    pub fn get(&self, key: &K) -> Option<V> {
        let mut value: V = zeroed();
        // SAFETY: both point to values of the map's sizes.
        let result = unsafe {
            let key = std::ptr::from_ref(key).cast();
            libbpf_sys::bpf_map_lookup_elem(self.fd, key, std::ptr::from_mut(&mut value).cast())
        };
        (result == 0).then_some(value)
    }

    /// Removes an element; returns whether it existed.
    pub fn remove(&self, key: &K) -> bool {
        // SAFETY: the key has the map's size.
        unsafe { libbpf_sys::bpf_map_delete_elem(self.fd, std::ptr::from_ref(key).cast()) == 0 }
    }
}

/// Sums up each counter of a per-processor array over all processors.
///
/// # Errors
///
/// Errors of the kernel.
pub fn sums(object: &Object, name: &str, count: usize, cpus: usize) -> Result<Vec<u64>, BpfError> {
    let fd = object.map_fd(name)?;
    let mut sums = Vec::with_capacity(count);
    // One value for each possible processor; there may be more of these than present ones.
    let mut values = vec![0_u64; cpus.max(possible_cpus())];
    for index in 0..count as u32 {
        // SAFETY: the map's values are 8 bytes, one for each possible processor.
        let result = unsafe {
            let key = std::ptr::from_ref(&index).cast();
            libbpf_sys::bpf_map_lookup_elem(fd, key, values.as_mut_ptr().cast())
        };
        checked(name, result)?;
        sums.push(values.iter().sum());
    }
    Ok(sums)
}

/// Returns the number of processors that the kernel may have.
pub fn possible_cpus() -> usize {
    // SAFETY: the function takes nothing, and returns a number or an error.
    usize::try_from(unsafe { libbpf_sys::libbpf_num_possible_cpus() })
        .map_or(1, |count| count.max(1))
}

fn map_info(fd: RawFd) -> Result<libbpf_sys::bpf_map_info, BpfError> {
    let mut info = libbpf_sys::bpf_map_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the pointer is to a structure of the length that is given.
    let result = unsafe {
        let info = std::ptr::from_mut(&mut info).cast();
        libbpf_sys::bpf_obj_get_info_by_fd(fd, info, &mut length)
    };
    checked("cannot ask about a BPF map", result)?;
    Ok(info)
}

/// Returns the kernel's id of a map.
///
/// # Errors
///
/// Errors of the kernel.
pub fn map_id(object: &Object, name: &str) -> Result<u32, BpfError> {
    Ok(map_info(object.map_fd(name)?)?.id)
}

/// An array in memory that is shared with the kernel's programs.
pub struct Shared<T> {
    first: NonNull<T>,
    count: usize,
    length: usize,
}

// SAFETY: the memory is shared with the kernel anyway, and only read and written by volatile and
// atomic accesses.
unsafe impl<T: Plain> Send for Shared<T> {}

impl<T: Plain> Shared<T> {
    /// Maps a loaded array with `BPF_F_MMAPABLE` into memory.
    ///
    /// # Errors
    ///
    /// It is not such an array, or has elements of another size.
    pub fn of(object: &Object, name: &str) -> Result<Shared<T>, BpfError> {
        let fd = object.map_fd(name)?;
        let info = map_info(fd)?;
        if info.value_size as usize != size_of::<T>() {
            let what = format!("map {name}: elements of {} bytes", info.value_size);
            return Err(failed(what, io::ErrorKind::InvalidData.into()));
        }
        let count = info.max_entries as usize;
        let length = (count * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new mapping that overlaps nothing.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                length,
                access,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(failed(format!("map {name}"), io::Error::last_os_error()));
        }
        let first = NonNull::new(memory.cast::<T>())
            .ok_or_else(|| failed(name, io::ErrorKind::InvalidData.into()))?;
        Ok(Shared {
            first,
            count,
            length,
        })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn at(&self, index: usize) -> NonNull<T> {
        assert!(index < self.count, "element {index} of {}", self.count);
        // SAFETY: the index is within the mapping.
        unsafe { self.first.add(index) }
    }

    /// Copies an element. Its words may be from different moments.
    pub fn read(&self, index: usize) -> T {
        // SAFETY: the element lies in the mapping, and any bytes are a value.
        unsafe { self.at(index).as_ptr().read_volatile() }
    }

    /// Writes an element. A program that reads it meanwhile may see some old words.
    pub fn write(&self, index: usize, value: T) {
        // SAFETY: the element lies in the mapping.
        unsafe { self.at(index).as_ptr().write_volatile(value) }
    }

    /// Returns a 32-bit word of an element, at `offset` bytes.
    pub fn word(&self, index: usize, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= size_of::<T>());
        // SAFETY: the word lies in the mapping, which lives as long as `self`, and is aligned:
        // elements are of a multiple of four bytes, from the begin of a page on.
        unsafe { AtomicU32::from_ptr(self.at(index).as_ptr().byte_add(offset).cast()) }
    }

    /// Stores a 32-bit word of an element, with release ordering.
    pub fn store(&self, index: usize, offset: usize, value: u32) {
        self.word(index, offset).store(value, Ordering::Release);
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.length) };
    }
}

/// An attachment of a program, which lasts until this is dropped, or the process ends.
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    fn from(what: &str, fd: i32) -> Result<Link, BpfError> {
        let fd = checked(what, fd)?;
        // SAFETY: the kernel has just returned this descriptor, which nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Link { fd })
    }

    /// Attaches an XDP program to an interface, with `XDP_FLAGS_*`.
    ///
    /// # Errors
    ///
    /// The kernel's: `EBUSY` or `EEXIST` if there is another program, `EOPNOTSUPP` if the driver
    /// does not support the mode.
    pub fn xdp(program: RawFd, interface: u32, flags: u32) -> Result<Link, BpfError> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            flags,
            ..Default::default()
        };
        // SAFETY: the options live through the call.
        let fd = unsafe {
            let interface = interface as i32;
            libbpf_sys::bpf_link_create(program, interface, libbpf_sys::BPF_XDP, &options)
        };
        Link::from("cannot attach the XDP program", fd)
    }

    /// Attaches a program to a tracepoint.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn tracepoint(program: RawFd, name: &str) -> Result<Link, BpfError> {
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the name is a C string.
        let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(c_name.as_ptr(), program) };
        Link::from(&format!("tracepoint {name}"), fd)
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Result of a test run of an XDP program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value (`XDP_PASS` etc.).
    pub verdict: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run, ns.
    pub duration_ns: u32,
}

/// Runs an XDP program on a frame, `repeat` times, without a device. Redirects are not carried out.
///
/// # Errors
///
/// The kernel's: frames must have at least 14 bytes.
pub fn test_run(program: RawFd, frame: &[u8], repeat: u32) -> Result<TestRun, BpfError> {
    let mut out = vec![0_u8; frame.len() + 256];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast::<c_void>(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: repeat as i32,
        ..Default::default()
    };
    // SAFETY: both buffers live through the call and have the lengths that are given.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &mut options) };
    checked("cannot run the program on a frame", result)?;
    out.truncate(options.data_size_out as usize);
    Ok(TestRun {
        verdict: options.retval,
        frame: out,
        duration_ns: options.duration,
    })
}

/// Returns the XDP programs of an interface: the mode's name and the program's id.
///
/// # Errors
///
/// Errors of the kernel.
pub fn xdp_programs(interface: u32) -> Result<Vec<(&'static str, u32)>, BpfError> {
    let mut query = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options live through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(interface as i32, 0, &mut query) };
    checked("cannot ask for the interface's XDP program", result)?;
    let all = [
        ("driver", query.drv_prog_id),
        ("generic", query.skb_prog_id),
        ("hardware", query.hw_prog_id),
    ];
    Ok(all.into_iter().filter(|(_, id)| *id != 0).collect())
}
