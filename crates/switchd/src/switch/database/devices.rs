//! Watches devices: reports changes, removes ports whose devices are gone, and opens those that
//! have appeared.
//!
//! The kernel reports changes of its interfaces ([`LinkEvents`]); all reports about one interface
//! that are read together cause one check of it. If reports were lost, every interface is checked.
//! Other devices (guests, DPDK) are checked once a second, which takes no system call. In case
//! reports are lost unnoticed, or do not come from another network namespace, a few interfaces are
//! also checked each second, in turn.
//!
//! Others decide how much is reported. So the work is done in slices, and is followed by a pause
//! that is several times as long: an interface that keeps coming and going takes only a share of
//! the control thread.

use super::Database;
use crate::coverage::Counter;
use crate::switch::aside;
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

/// Most messages of the kernel read at a time.
const NEWS: usize = 256;
/// Interfaces checked in one slice, some 30 us each.
const SLICE: usize = 32;
/// Seconds between two checks of an interface without reports, if there are few interfaces.
const SWEEP: usize = 10;
/// Most interfaces checked per second for that reason.
const SWEEP_MOST: usize = 32;
/// Shortest pause between two readings of reports.
const PAUSE: Duration = Duration::from_millis(10);
/// Factor by which the pause is longer than the work before it.
const PAUSE_TIMES: u32 = 4;
/// Longest pause.
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// Pause before listening is tried again after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// Seconds in which devices were checked, and checks of interfaces whose changes the kernel
/// reports.
static TURNS: Counter = Counter::new("device_turn");
static LOOKS: Counter = Counter::new("device_look");
/// Times that the kernel had more reports than its buffer could hold.
static LOST: Counter = Counter::new("device_news_lost");

/// An interface that could not be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Failed {
    /// Its index; 0 if no interface has this name.
    index: u32,
    /// Whether something else uses it: a bridge, or another switch.
    held: bool,
}

/// State of devices between checks.
#[derive(Default)]
pub(super) struct Known {
    /// Interfaces that could not be opened, as last seen.
    failed: RefCell<BTreeMap<String, Failed>>,
    /// Number of checks of all of these: those in use elsewhere are checked in turn.
    looks: Cell<usize>,
    /// Seconds so far, and the interface with which the sweep continues.
    turns: Cell<usize>,
    sweep: Cell<usize>,
}

/// Returns which interfaces one step of the sweep checks: the first one, and how many.
fn sweep_of(count: usize, from: usize) -> (usize, usize) {
    let most = count.div_ceil(SWEEP).min(SWEEP_MOST);
    let from = if from < count { from } else { 0 };
    (from, most.min(count - from))
}

/// Starts to listen to the kernel, again after each `pause` until it works; logs the first error.
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
    /// Checks devices whose changes are not reported. Called about once a second; does nothing
    /// while a configuration is being applied.
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
        let (mut place, mut late) = (0, 0);
        for bridge in bridges {
            bridge.start_closed().await;
            changed |= bridge.look_at_ports(|port| {
                if !port.is_announced() {
                    // Of kernel interfaces some are looked at: those of which the kernel has been
                    // late to answer.
                    late += usize::from(port.is_kernel_interface());
                    return !port.is_kernel_interface() || late <= SWEEP_MOST;
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

    /// Follows the kernel's reports on interfaces until the daemon ends.
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

    /// Checks the interfaces that reports are about.
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

    /// Writes to the database if something has changed; removes ports whose devices are gone, and
    /// retries ports that could not be opened but may be now: all of them, or those with these
    /// interface names. The caller holds `changing`.
    async fn conclude(
        &self,
        changed: bool,
        names: Option<&BTreeSet<String>>,
    ) -> anyhow::Result<()> {
        if changed {
            self.dirty.notify_one();
        }
        let Some(failed) = self.failed_interfaces(names) else {
            return Ok(());
        };
        let may_open = self.look_for_failed(failed).await;
        let gone = self.switch.drop_vanished().await;
        let desired = match &*self.current.borrow() {
            Some((desired, _)) if may_open || gone => desired.clone(),
            _ => return Ok(()),
        };
        self.apply(desired).await
    }

    /// Returns the interfaces that could not be opened and are to be looked at now, each with
    /// whether it must exist to be opened; None without a configuration. The parameter is that of
    /// [`Database::conclude`].
    fn failed_interfaces(&self, names: Option<&BTreeSet<String>>) -> Option<Vec<(String, bool)>> {
        let current = self.current.borrow();
        let (desired, failures) = current.as_ref()?;
        let mut known = self.devices.failed.borrow_mut();
        if failures.is_empty() {
            known.clear();
            return Some(Vec::new());
        }
        let failed: BTreeMap<&str, bool> = (desired.ports())
            .map(|(_, port)| port)
            .filter(|port| matches!(port.device.as_str(), "system" | "internal" | "tap"))
            .filter(|port| (port.interface).is_some_and(|uuid| failures.contains_key(&uuid)))
            .map(|port| (port.interface_name.as_str(), port.device == "system"))
            .collect();
        known.retain(|name, _| failed.contains_key(name.as_str()));
        // Nothing reports that another switch has released an interface, and each check takes two
        // requests to the kernel.
        let turns = known
            .values()
            .filter(|known| known.held)
            .count()
            .div_ceil(SWEEP_MOST);
        let turn = self.devices.looks.get();
        if names.is_none() {
            self.devices.looks.set(turn.wrapping_add(1));
        }
        let looked_at = failed.into_iter().enumerate().filter(|(place, (name, _))| {
            let before = known.get(*name);
            let unnamed = match names {
                Some(names) => !names.contains(*name),
                None => {
                    let is_held = before.is_some_and(|before| before.held);
                    is_held && !place.wrapping_add(turn).is_multiple_of(turns)
                }
            };
            !unnamed || before.is_none()
        });
        let looked_at =
            looked_at.map(|(_, (name, must_be_there))| (name.to_owned(), must_be_there));
        Some(looked_at.collect())
    }

    /// Returns whether a retry may help: an interface that could not be opened exists now or has
    /// been replaced, or the interface that occupied the name of one to be created has gone. An
    /// unchanged one is not retried until the configuration changes: it would fail again, once a
    /// second.
    async fn look_for_failed(&self, failed: Vec<(String, bool)>) -> bool {
        if failed.is_empty() {
            return false;
        }
        let looks = move || {
            let looks = failed.into_iter().map(|(name, must_be_there)| {
                let index = interface_index(&name);
                let held = must_be_there && index != 0 && !ports::is_free(&name);
                (name, must_be_there, Failed { index, held })
            });
            looks.collect::<Vec<_>>()
        };
        let mut may_open = false;
        for (name, must_be_there, now) in aside::call(looks).await.unwrap_or_default() {
            let before = self.devices.failed.borrow_mut().insert(name, now);
            may_open |= (now.index != 0) == must_be_there && !now.held && before != Some(now);
        }
        may_open
    }

    /// Deletes devices that an earlier daemon has left for ports which are no longer configured,
    /// once the first configuration has been applied.
    pub async fn remove_leftovers(self: Rc<Self>) -> anyhow::Result<()> {
        let directory = self.switch.device_records();
        self.configured.notified().await;
        for name in ports::leftovers(&directory) {
            // No port may be opened meanwhile.
            let _changing = self.changing.lock().await;
            let wanted = match &*self.current.borrow() {
                None => return Ok(()),
                Some((desired, _)) => desired.ports().any(|(_, port)| {
                    port.interface_name == name
                        && matches!(port.device.as_str(), "internal" | "tap")
                }),
            };
            if !wanted {
                let removed = {
                    let (directory, name) = (directory.clone(), name.clone());
                    aside::call(move || ports::remove_leftover(&directory, &name)).await
                };
                match removed.unwrap_or(Ok(false)) {
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

/// Returns the kernel's index of an interface; 0 if none has that name.
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
        // Interfaces have gone, so the sweep starts again.
        assert_eq!(sweep_of(5, 700), (0, 1));
        assert_eq!(sweep_of(0, 3), (0, 0));
    }
}
