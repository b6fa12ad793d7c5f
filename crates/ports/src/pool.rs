//! Pools of packet buffers.
//!
//! There is one pool for each NUMA node, buffer size and [`Size`], shared by all ports, and created
//! when the first port needs it. A pool is never freed before the EAL ends, since frames may
//! outlive the port that received them. If there is no memory for another pool, a port shares that
//! of other ports: huge pages that were free when the process started may since have gone to
//! another process.

use crate::error::Error;
use crate::mbuf::{HEADROOM, Mbuf};
use crate::raw::{self, RawPool};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Mutex;

/// Data bytes of an ordinary buffer; longer frames are chains.
pub const DATA_ROOM: u16 = 2048;

/// Bytes of a long buffer ([`Size::Tails`]), a segment length that devices accept: some have 14
/// bits for a length, and the 82599 sends at most 15.5 KiB in one segment.
pub(crate) const TAIL: u16 = 15 * 1024;

/// Bytes of the smallest ordinary pool, with DPDK's overhead per buffer; long buffers must leave
/// room for it.
const ORDINARY_BYTES: usize = 4_096 * (DATA_ROOM as usize + 512);

/// Purpose of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// Ports that hold few buffers at a time: kernel interfaces, guests, dummies.
    Modest,
    /// DPDK devices, whose rings hold many (a `net_pcap` with `infinite_rx` keeps its whole file in
    /// buffers).
    Large,
    /// The rest of long frames from kernel interfaces, for all ports together: 16 MiB hold 204
    /// frames of 64 KiB.
    Tails,
}

impl Size {
    /// Returns the number of buffers to try first.
    fn wanted(self, huge_pages: bool) -> u32 {
        match (self, huge_pages) {
            (Size::Large, true) => 262_144,
            (Size::Large | Size::Modest, _) => 32_768,
            (Size::Tails, _) => 1024,
        }
    }

    /// Returns the smallest acceptable number of buffers if there is less memory: for ordinary
    /// buffers, enough for a port with deep rings and a few bursts in flight.
    fn least(self) -> u32 {
        match self {
            Size::Large | Size::Modest => 4_096,
            Size::Tails => 256,
        }
    }

    /// Returns the size of each worker's own cache, so that most allocations touch nothing shared.
    fn cache(self) -> u32 {
        match self {
            Size::Large | Size::Modest => 512,
            Size::Tails => 64,
        }
    }
}

/// A pool of packet buffers. Copies refer to the same pool.
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
    /// Returns a new frame with `bytes` (64 KiB and more are possible) and headroom in front, in as
    /// many segments as needed. None if the pool is empty.
    pub fn frame(&self, bytes: &[u8]) -> Option<Mbuf> {
        Mbuf::holding(self.raw, bytes)
    }

    /// Returns an empty frame of one segment, with headroom. None if the pool is empty.
    pub fn empty(&self) -> Option<Mbuf> {
        Mbuf::allocate(self.raw, usize::from(HEADROOM))
    }

    /// Appends `count` empty frames of one segment, with headroom, to `out`: [`Pool::empty`] for
    /// many at once. False, and none, if the pool has too few.
    pub fn take(&self, count: usize, out: &mut Vec<Mbuf>) -> bool {
        out.reserve(count);
        let len = out.len();
        // SAFETY: there is room for `count` more pointers, and with success as many are buffers
        // that nobody else uses, of one segment and with one reference. Their other fields are set
        // before the vector has them.
        unsafe {
            let room = out.as_mut_ptr().add(len).cast::<*mut raw::RawMbuf>();
            if raw::sluice_pool_get(self.raw, room, count as u32) != 0 {
                return false;
            }
            for at in 0..count {
                let fresh = &mut **room.add(at);
                fresh.data_off = HEADROOM.min(fresh.buffer_len);
                (fresh.data_len, fresh.packet_len) = (0, 0);
                (fresh.flags, fresh.packet_type, fresh.tx_offload) = (0, 0, 0);
                (fresh.vlan_tci, fresh.vlan_tci_outer, fresh.port) = (0, 0, u16::MAX);
            }
            out.set_len(len + count);
        }
        true
    }

    /// Returns the number of buffers in the pool, free or not.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number of free buffers, with those in workers' caches. Slow; for monitoring.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool lives as long as the EAL.
        unsafe { raw::sluice_pool_available(self.raw) }
    }

    /// Returns an empty segment without headroom, to be appended to a frame. None if the pool is
    /// empty.
    pub(crate) fn tail(&self) -> Option<Mbuf> {
        Mbuf::allocate(self.raw, 0)
    }

    /// Returns a pool that must not be asked for a buffer.
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
    /// Result of [`Pools::tails`].
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

    /// Returns the pool for NUMA node `socket` (negative: any) with buffers of `room` bytes behind
    /// the headroom.
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
        match create(key, self.huge_pages) {
            Ok(pool) => {
                pools.insert(key, pool);
                Ok(pool)
            }
            Err(error) => match stand_in(&pools, key) {
                // Not stored under this key, so that the next port tries again to get its own
                // buffers.
                Some(pool) => {
                    tracing::warn!(target: "dpdk", "{error}: the port shares {} buffers with others", pool.count);
                    Ok(pool)
                }
                None => Err(error),
            },
        }
    }

    /// Returns the pool for the rest of long frames; None if there is too little memory for one
    /// beside an ordinary pool, which is logged once.
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

    /// Frees the pools of this size, from which no buffer has been taken.
    fn give_up(&self, size: Size) {
        let mut pools = self
            .pools
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        pools.retain(|key, pool| {
            if key.size == size {
                // SAFETY: no port has this pool yet, as the caller promises.
                unsafe { raw::rte_mempool_free(pool.raw) };
            }
            key.size != size
        });
    }

    /// Frees all pools; no frame may exist.
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

    /// Returns all pools with their NUMA node and data room, for `memory/show`.
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

/// Returns a substitute for a pool without memory: with buffers of the same size, preferably on the
/// same NUMA node, then the largest.
fn stand_in(pools: &HashMap<Key, Pool>, wanted: Key) -> Option<Pool> {
    let serves =
        |key: &Key| key.room == wanted.room && ![key.size, wanted.size].contains(&Size::Tails);
    let others = pools.iter().filter(|(key, _)| serves(key));
    let best = others.max_by_key(|(key, pool)| (key.socket == wanted.socket, pool.count));
    best.map(|(_, pool)| *pool)
}

fn create(key: Key, huge_pages: bool) -> Result<Pool, Error> {
    let mut count = key.size.wanted(huge_pages);
    loop {
        let name = format!("s{}-{}-{:?}-{count}", key.socket, key.room, key.size);
        let c_name = CString::new(name).expect("no zero bytes in numbers");
        let room = key.room + HEADROOM;
        // SAFETY: plain values and a string that outlives the call; the EAL is up because `Pools`
        // belongs to it.
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
            let why = crate::error::describe(errno);
            return Err(Error::Environment(format!(
                "no memory for {count} packet buffers of {} bytes on NUMA node {} ({why}{})",
                key.room,
                key.socket,
                if huge_pages {
                    let free = crate::eal::free_huge_megabytes();
                    format!("; {free} MB of huge pages are free")
                } else {
                    String::new()
                }
            )));
        }
        count /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_memory_shares_the_largest_pool_that_fits() {
        let key = |socket, room, size| Key { socket, room, size };
        let pool = |count| Pool {
            count,
            ..Pool::none()
        };
        let pools = HashMap::from([
            (key(0, DATA_ROOM, Size::Modest), pool(4_096)),
            (key(0, DATA_ROOM, Size::Large), pool(16_384)),
            (key(1, DATA_ROOM, Size::Modest), pool(8_192)),
            (key(0, TAIL - HEADROOM, Size::Tails), pool(1_024)),
        ]);
        let found = |key| stand_in(&pools, key).map(|pool| pool.count);
        assert_eq!(found(key(0, DATA_ROOM, Size::Large)), Some(16_384));
        assert_eq!(found(key(1, DATA_ROOM, Size::Large)), Some(8_192));
        assert_eq!(found(key(2, DATA_ROOM, Size::Modest)), Some(16_384));
        assert_eq!(found(key(0, 9_000, Size::Large)), None, "too short");
        assert_eq!(found(key(0, TAIL - HEADROOM, Size::Large)), None);
        assert_eq!(found(key(1, DATA_ROOM, Size::Tails)), None);
    }
}
