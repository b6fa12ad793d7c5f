//! Looking after devices: what changes is told, what went is taken out, what came is put in.
//!
//! Of its interfaces the kernel tells ([`LinkEvents`]); whatever it tells of one at a time is one
//! look at it. Where it could not tell all, every interface is looked at. Other devices (guests,
//! DPDK) are looked at once a second, which takes no request. Should news be lost all the same, or
//! not come from another network namespace, a few interfaces are looked at each second, in turn.
//!
//! How much is told is up to others, so what is done about it comes in slices, and is followed by a
//! pause that is several times as long: an interface that keeps coming and going takes no more than
//! a share of the control thread.

use super::Database;
use crate::config::Desired;
use crate::coverage::Counter;
use crate::switch::execute::Failures;
use datapath::PortId;
use ports::{LinkChanges, LinkEvents};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Messages of the kernel's that are read in one go.
const NEWS: usize = 256;
/// Interfaces that are looked at in one go, some 30 us each.
const SLICE: usize = 32;
/// After how many seconds each interface is looked at again although nothing has been heard of it,
/// where there are few.
const SWEEP: usize = 10;
/// Interfaces that are looked at so in one second.
const SWEEP_MOST: usize = 32;
/// The least time between two readings of news.
const PAUSE: Duration = Duration::from_millis(10);
/// How many times as long as what was done about news the pause after it is.
const PAUSE_TIMES: u32 = 4;
/// And the most.
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// After how long it is tried again to listen, where that failed.
const AGAIN: Duration = Duration::from_secs(10);

/// Seconds in which devices were looked after, and interfaces looked at that the kernel tells of,
/// for whatever reason.
static TURNS: Counter = Counter::new("device_turn");
static LOOKS: Counter = Counter::new("device_look");
/// Times that the kernel had more to tell of its interfaces than it could keep.
static LOST: Counter = Counter::new("device_news_lost");

/// An interface that could not be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Failed {
    /// Its index; 0 where there is none of its name.
    index: u32,
    /// Whether something else has it: a bridge, or another switch.
    held: bool,
}

/// What is remembered of devices between looks.
#[derive(Default)]
pub(super) struct Known {
    /// Interfaces that could not be opened, as each was when last looked for.
    failed: RefCell<BTreeMap<String, Failed>>,
    /// How often all of these have been looked for: those that something else has take turns.
    looks: Cell<usize>,
    /// How many seconds have been, and with which interface the sweep goes on.
    turns: Cell<usize>,
    sweep: Cell<usize>,
}

/// Which of some interfaces are looked at in one turn of the sweep: so many from this one on.
fn sweep_of(count: usize, from: usize) -> (usize, usize) {
    let most = count.div_ceil(SWEEP).min(SWEEP_MOST);
    let from = if from < count { from } else { 0 };
    (from, most.min(count - from))
}

/// Begins to listen to the kernel, again after `pause` until that works; the first error is told.
pub(in crate::switch) async fn listening<E: AsRawFd>(
    new: fn() -> Result<E, i32>,
    pause: Duration,
    tell: impl Fn(std::io::Error),
) -> AsyncFd<E> {
    let mut told = false;
    loop {
        let listen = || -> std::io::Result<AsyncFd<E>> {
            let events = new().map_err(std::io::Error::from_raw_os_error)?;
            // SAFETY: the events own their socket, the same one as long as they live, and go after
            // the registration.
            Ok(unsafe { AsyncFd::register_with_interest(events, Interest::READABLE)? })
        };
        match listen() {
            Ok(events) => return events,
            Err(error) if !std::mem::replace(&mut told, true) => tell(error),
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
    }
}

impl Database {
    /// Looks at what nobody tells of. Called about once a second; while a configuration is being
    /// applied it leaves that to the next time.
    pub async fn watch_devices(&self) -> anyhow::Result<()> {
        let Ok(_changing) = self.changing.try_lock() else {
            return Ok(());
        };
        let bridges: Vec<_> = self.switch.bridges.borrow().values().cloned().collect();
        let announced = |port: &&crate::switch::Port| port.is_announced();
        let count: usize = (bridges.iter())
            .map(|bridge| bridge.ports.borrow().values().filter(announced).count())
            .sum();
        let (from, most) = sweep_of(count, self.devices.sweep.get());
        self.devices.sweep.set(from + most);
        TURNS.increment();
        LOOKS.add(most as u64);
        let mut changed = false;
        let mut place = 0;
        for bridge in bridges {
            bridge.start_closed();
            changed |= bridge.look_at_ports(|port| {
                if !port.is_announced() {
                    return true;
                }
                place += 1;
                (from + 1..=from + most).contains(&place)
            });
            bridge.follow_admin_states();
        }
        let turn = self.devices.turns.get();
        self.devices.turns.set((turn + 1) % SWEEP);
        let none = BTreeSet::new();
        self.conclude(changed, (turn != 0).then_some(&none)).await
    }

    /// Follows what the kernel tells of its interfaces until the daemon ends.
    pub async fn follow_links(self: Rc<Self>) -> anyhow::Result<()> {
        let mut events = listening(LinkEvents::new, AGAIN, |error| {
            tracing::warn!(target: "netlink", "no news of network interfaces: {error}; each is looked at every {SWEEP} s or later");
        })
        .await;
        loop {
            let mut changes = LinkChanges::default();
            {
                let mut guard = events.readable_mut().await?;
                if guard.get_inner_mut().read(NEWS, &mut changes) {
                    guard.clear_ready();
                }
            }
            let began = Instant::now();
            if !changes.is_empty() {
                self.look_at_links(&changes).await?;
            }
            let pause = (began.elapsed() * PAUSE_TIMES).clamp(PAUSE, PAUSE_MOST);
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks at the interfaces that news are about.
    async fn look_at_links(&self, changes: &LinkChanges) -> anyhow::Result<()> {
        let mut concerned: Vec<PortId> = Vec::new();
        for bridge in self.switch.bridges.borrow().values() {
            let ports = bridge.ports.borrow();
            let ports = ports.values().filter(|port| {
                (changes.missed || changes.indexes.contains(&port.info.ifindex))
                    && port.is_announced()
            });
            concerned.extend(ports.map(|port| port.id));
        }
        LOST.add(changes.missed.into());
        LOOKS.add(concerned.len() as u64);
        let mut changed = false;
        for slice in concerned.chunks(SLICE) {
            let bridges: Vec<_> = self.switch.bridges.borrow().values().cloned().collect();
            for bridge in bridges {
                if bridge.look_at_ports(|port| slice.contains(&port.id)) {
                    bridge.follow_admin_states();
                    changed = true;
                }
            }
            tokio::task::yield_now().await;
        }
        let _changing = self.changing.lock().await;
        self.conclude(changed, (!changes.missed).then_some(&changes.names))
            .await
    }

    /// Tells the database if something has changed; takes out what has gone, and tries again what
    /// could not be opened and may be now: all of it, or interfaces of these names. For who
    /// holds `changing`.
    async fn conclude(
        &self,
        changed: bool,
        names: Option<&BTreeSet<String>>,
    ) -> anyhow::Result<()> {
        if changed {
            self.dirty.notify_one();
        }
        let again = {
            let current = self.current.borrow();
            let Some((desired, failures)) = &*current else {
                return Ok(());
            };
            let may_open = self.look_for_failed(desired, failures, names);
            let gone = self.switch.drop_vanished();
            (may_open || gone).then(|| desired.clone())
        };
        match again {
            Some(desired) => self.apply(desired).await,
            None => Ok(()),
        }
    }

    /// Whether an interface that could not be opened is there now, or is another one; or whether
    /// what has the name of one that is to be made has gone. What stays as it is is not tried
    /// again until the configuration changes: it would fail again, once a second.
    fn look_for_failed(
        &self,
        desired: &Desired,
        failures: &Failures,
        names: Option<&BTreeSet<String>>,
    ) -> bool {
        let mut known = self.devices.failed.borrow_mut();
        if failures.is_empty() {
            known.clear();
            return false;
        }
        let failed: BTreeMap<&str, bool> = (desired.ports())
            .map(|(_, port)| port)
            .filter(|port| matches!(port.device.as_str(), "system" | "internal" | "tap"))
            .filter(|port| (port.interface).is_some_and(|uuid| failures.contains_key(&uuid)))
            .map(|port| (port.interface_name.as_str(), port.device == "system"))
            .collect();
        known.retain(|name, _| failed.contains_key(name.as_str()));
        let mut may_open = false;
        // Nobody tells that another switch has let go of one, and each look takes two questions to
        // the kernel.
        let turns = known
            .values()
            .filter(|known| known.held)
            .count()
            .div_ceil(SWEEP_MOST);
        let turn = self.devices.looks.get();
        if names.is_none() {
            self.devices.looks.set(turn.wrapping_add(1));
        }
        for (place, (name, must_be_there)) in failed.into_iter().enumerate() {
            let before = known.get(name).copied();
            let unnamed = match names {
                Some(names) => !names.contains(name),
                None => {
                    let is_held = before.is_some_and(|before| before.held);
                    is_held && !place.wrapping_add(turn).is_multiple_of(turns)
                }
            };
            if unnamed && before.is_some() {
                continue;
            }
            let index = interface_index(name);
            let held = must_be_there && index != 0 && !ports::is_free(name);
            let now = Failed { index, held };
            known.insert(name.to_owned(), now);
            may_open |= (index != 0) == must_be_there && !held && before != Some(now);
        }
        may_open
    }

    /// Deletes the devices that an earlier daemon has left for ports that the configuration no
    /// longer has, when there is one.
    pub async fn remove_leftovers(self: Rc<Self>) -> anyhow::Result<()> {
        let directory = self.switch.device_records();
        self.configured.notified().await;
        for name in ports::leftovers(&directory) {
            let wanted = match &*self.current.borrow() {
                None => return Ok(()),
                Some((desired, _)) => desired.ports().any(|(_, port)| {
                    port.interface_name == name
                        && matches!(port.device.as_str(), "internal" | "tap")
                }),
            };
            if !wanted {
                match ports::remove_leftover(&directory, &name) {
                    Ok(true) => {
                        tracing::info!(target: "bridge", "{name}: deleted the device of a port that is no longer configured");
                    }
                    Ok(false) => {}
                    Err(error) => tracing::warn!(target: "bridge", "{error}"),
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// The kernel's index of an interface; 0 when it has none of that name.
fn interface_index(name: &str) -> u32 {
    let Ok(name) = CString::new(name) else {
        return 0;
    };
    // SAFETY: `name` is a string that ends with a zero byte.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sweep_comes_to_every_interface_and_looks_at_few_at_a_time() {
        for count in [0, 1, 9, 10, 11, 100, 320, 321, 1000] {
            let (mut seen, mut from, mut turns) = (BTreeSet::new(), 0, 0);
            while seen.len() < count {
                let (begin, most) = sweep_of(count, from);
                assert!(most > 0 && most <= SWEEP_MOST && begin + most <= count);
                seen.extend(begin..begin + most);
                from = begin + most;
                turns += 1;
            }
            assert!(
                turns <= count.div_ceil(SWEEP_MOST).max(SWEEP),
                "{count}: {turns}"
            );
        }
        // Interfaces went: it begins anew.
        assert_eq!(sweep_of(5, 700), (0, 1));
        assert_eq!(sweep_of(0, 3), (0, 0));
    }
}
