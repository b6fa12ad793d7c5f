//! Where packet buffers come from.
//!
//! There is one pool for each NUMA node, buffer size and [`Size`], shared by all ports, made when the first port asks for it.
//! A pool is never freed before the EAL ends: frames in flight may come from it after their port has gone.

use crate::error::Error;
use crate::mbuf::{HEADROOM, Mbuf};
use crate::raw::{self, RawPool};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Mutex;

/// Bytes of packet data in an ordinary buffer; longer frames are chains.
pub const DATA_ROOM: u16 = 2048;

/// Bytes of a long buffer ([`Size::Tails`]). Devices take segments of so many: some have 14 bits for a length, and the 82599 sends 15.5 KiB at once.
pub(crate) const TAIL: u16 = 15 * 1024;

/// What an ordinary pool takes at least, which long buffers are to leave room for, with what DPDK adds to a buffer.
const ORDINARY_BYTES: usize = 4_096 * (DATA_ROOM as usize + 512);

/// What a pool is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// Ports that hold few buffers at a time: kernel interfaces, guests, dummies.
    Modest,
    /// DPDK devices, whose rings hold many (a `net_pcap` with `infinite_rx` keeps its whole file in buffers).
    Large,
    /// The rest of long frames from kernel interfaces, of all ports together: 16 MiB hold 204 frames of 64 KiB.
    Tails,
}

impl Size {
    /// Buffers to ask for first.
    fn wanted(self, huge_pages: bool) -> u32 {
        match (self, huge_pages) {
            (Size::Large, true) => 262_144,
            (Size::Large | Size::Modest, _) => 32_768,
            (Size::Tails, _) => 1024,
        }
    }

    /// The least to take where there is less memory: for ordinary buffers a port with deep rings and a few bursts in flight.
    fn least(self) -> u32 {
        match self {
            Size::Large | Size::Modest => 4_096,
            Size::Tails => 256,
        }
    }

    /// Buffers kept by each worker for itself, so that most allocations touch nothing shared.
    fn cache(self) -> u32 {
        match self {
            Size::Large | Size::Modest => 512,
            Size::Tails => 64,
        }
    }
}

/// A pool of packet buffers. Copies are the same pool.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    raw: *mut RawPool,
    count: u32,
}

// SAFETY: DPDK's pools may be used from any thread at the same time.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A new frame holding `bytes` (up to 64 KiB and more) with headroom in front, in as many segments as it needs. None when
    /// the pool is empty.
    pub fn frame(&self, bytes: &[u8]) -> Option<Mbuf> {
        Mbuf::holding(self.raw, bytes)
    }

    /// An empty frame of one segment, with headroom in front. None when the pool is empty.
    pub fn empty(&self) -> Option<Mbuf> {
        Mbuf::allocate(self.raw, usize::from(HEADROOM))
    }

    /// Buffers in the pool, free or not.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Buffers that are free now, those in workers' caches included. Slow; for monitoring.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool lives as long as the EAL.
        unsafe { raw::sluice_pool_available(self.raw) }
    }

    /// An empty frame of one segment without headroom, which is to hang behind another. None when the pool is empty.
    pub(crate) fn tail(&self) -> Option<Mbuf> {
        Mbuf::allocate(self.raw, 0)
    }

    /// A pool that nobody may ask for a buffer.
    #[cfg(test)]
    pub(crate) fn none() -> Pool {
        Pool {
            raw: std::ptr::null_mut(),
            count: 0,
        }
    }

    pub(crate) fn as_raw(&self) -> *mut RawPool {
        self.raw
    }
}

#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct Key {
    socket: i32,
    room: u16,
    size: Size,
}

/// All pools of the process.
pub(crate) struct Pools {
    huge_pages: bool,
    pools: Mutex<HashMap<Key, Pool>>,
    /// What [`Pools::tails`] has found out.
    tails: Mutex<Option<Option<Pool>>>,
}

impl Pools {
    pub(crate) fn new(huge_pages: bool) -> Pools {
        Pools {
            huge_pages,
            pools: Mutex::new(HashMap::new()),
            tails: Mutex::new(None),
        }
    }

    /// The pool for `socket` (negative: no matter) whose buffers take `room` bytes behind the headroom.
    pub(crate) fn get(&self, socket: i32, room: u16, size: Size) -> Result<Pool, Error> {
        let key = Key {
            socket: socket.max(0),
            room: room.max(DATA_ROOM),
            size,
        };
        let mut pools = self
            .pools
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        if let Some(pool) = pools.get(&key) {
            return Ok(*pool);
        }
        let pool = create(key, size.wanted(self.huge_pages))?;
        pools.insert(key, pool);
        Ok(pool)
    }

    /// The pool of buffers for the rest of long frames; None where there is too little memory for one beside an ordinary pool, which the log says once.
    pub(crate) fn tails(&self) -> Option<Pool> {
        let mut known = self
            .tails
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        *known.get_or_insert_with(|| match self.get(-1, TAIL - HEADROOM, Size::Tails) {
            // SAFETY: plain values; the EAL is up because `Pools` belongs to it.
            Ok(pool) if unsafe { raw::sluice_memory_is_left(ORDINARY_BYTES) } => Some(pool),
            refused => {
                self.give_up(Size::Tails);
                let why = match refused {
                    Ok(_) => "too little would be left".to_owned(),
                    Err(error) => error.to_string(),
                };
                tracing::warn!(target: "dpdk", "no long packet buffers ({why}): frames of more than {DATA_ROOM} bytes from kernel interfaces are copied once more");
                None
            }
        })
    }

    /// Frees the pools of this kind, from which nobody has had a buffer.
    fn give_up(&self, size: Size) {
        let mut pools = self
            .pools
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        pools.retain(|key, pool| {
            if key.size == size {
                // SAFETY: nobody has been given the pool, as the caller says.
                unsafe { raw::rte_mempool_free(pool.raw) };
            }
            key.size != size
        });
    }

    /// Frees all pools; no frame may be left.
    pub(crate) fn free(&self) {
        *self
            .tails
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()) = Some(None);
        let mut pools = self
            .pools
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        for (_, pool) in pools.drain() {
            // SAFETY: the caller promises that no frame and no port uses the pool any more.
            unsafe { raw::rte_mempool_free(pool.raw) };
        }
    }

    /// All pools with their NUMA node and data room, for `memory/show`.
    pub(crate) fn list(&self) -> Vec<(i32, u16, Pool)> {
        let pools = self
            .pools
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        pools
            .iter()
            .map(|(key, pool)| (key.socket, key.room, *pool))
            .collect()
    }
}

fn create(key: Key, wanted: u32) -> Result<Pool, Error> {
    let mut count = wanted;
    loop {
        let name = format!("s{}-{}-{:?}-{count}", key.socket, key.room, key.size);
        let c_name = CString::new(name).expect("no zero bytes in numbers");
        let room = key.room + HEADROOM;
        // SAFETY: plain values and a string that outlives the call; the EAL is up because `Pools` belongs to it.
        let raw = unsafe {
            raw::sluice_pool_create(c_name.as_ptr(), count, key.size.cache(), room, key.socket)
        };
        if !raw.is_null() {
            tracing::info!(
                target: "dpdk",
                "packet buffers: {count} of {} bytes on NUMA node {}",
                key.room,
                key.socket
            );
            return Ok(Pool { raw, count });
        }
        if count / 2 < key.size.least() {
            // SAFETY: reads a thread-local number.
            let errno = unsafe { raw::sluice_errno() };
            return Err(Error::Environment(format!(
                "no memory for {count} packet buffers of {} bytes on NUMA node {} ({})",
                key.room,
                key.socket,
                crate::error::describe(errno)
            )));
        }
        count /= 2;
    }
}
