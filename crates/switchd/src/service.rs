//! Notifications to the service manager (systemd's `sd_notify(3)`): that the first configuration is
//! in force, that the daemon is ending, a status line, and regularly that it is alive. Each is a
//! datagram of lines, sent to the socket that `NOTIFY_SOCKET` names.
//!
//! Alive means that the control thread serves its tasks and that no worker is stuck. A worker is
//! stuck when a turn has lasted for half of the watchdog's period; a sleeping worker is not stuck.
//! While one is stuck the watchdog is not fed. If the worker does not go on within a period the
//! manager ends the daemon by SIGABRT, which leaves a core file of every thread, and restarts it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::coverage::Counter;
use crate::switch::Switch;

/// How long a worker's turn may last before it is logged, if there is no watchdog.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of checks of the workers during that time.
const LOOKS: u32 = 4;
/// The longest time between two checks.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

static UNTOLD: Counter = Counter::new("service_manager_untold");

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Service {
    way: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Service {
    /// Reads the environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`, if that is this
    /// process. Bad values are logged and ignored.
    pub fn from_environment() -> Service {
        let get = |name: &str| -> Option<OsString> { std::env::var_os(name) };
        Service::new(get, std::process::id())
    }

    fn new(get: impl Fn(&str) -> Option<OsString>, pid: u32) -> Service {
        let Some(name) = get("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Service::default();
        };
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(&name),
        };
        let way = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read its socket must not block the daemon.
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        });
        let way = way.inspect_err(|error| {
            let error = crate::plain_error(error);
            tracing::warn!(target: "daemon_unix", "NOTIFY_SOCKET={}: {error}", name.display());
        });
        let number = |name| get(name)?.to_str()?.parse::<u64>().ok();
        let for_us = number("WATCHDOG_PID").is_none_or(|wanted| wanted == u64::from(pid));
        let period = number("WATCHDOG_USEC").filter(|period| *period > 0 && for_us);
        Service {
            way: way.ok(),
            watchdog: period.map(Duration::from_micros),
        }
    }

    fn tell(&self, text: &str) {
        let Some((socket, address)) = &self.way else {
            return;
        };
        if socket.send_to_addr(text.as_bytes(), address).is_err() {
            UNTOLD.increment();
        }
    }

    /// Reports that the first configuration is in force.
    pub fn ready(&self) {
        self.tell("READY=1\nSTATUS=The first configuration is in force");
    }

    /// Reports that the daemon is ending.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=Ending");
    }

    fn status(&self, text: &str) {
        // A newline would begin another assignment of the protocol.
        self.tell(&format!("STATUS={}", text.replace('\n', " ")));
    }

    fn alive(&self) {
        self.tell("WATCHDOG=1");
    }
}

/// Workers' turn counters, and since when each has not changed.
#[derive(Debug, Default)]
struct Watch(BTreeMap<String, (u64, Instant)>);

impl Watch {
    /// Returns the workers that have been in one turn for `patience`, with the durations.
    fn look(
        &mut self,
        progress: Vec<(String, Option<u64>)>,
        now: Instant,
        patience: Duration,
    ) -> Vec<(String, Duration)> {
        let mut seen = BTreeMap::new();
        for (name, far) in progress {
            let Some(far) = far else { continue };
            let since = match self.0.get(&name) {
                Some((before, since)) if *before == far => *since,
                _ => now,
            };
            seen.insert(name, (far, since));
        }
        self.0 = seen;
        let each = self.0.iter();
        each.map(|(name, (_, since))| (name.clone(), now.saturating_duration_since(*since)))
            .filter(|(_, time)| *time >= patience)
            .collect()
    }
}

/// Watches the workers, and reports to the service manager, while the daemon runs.
pub async fn watch(switch: Rc<Switch>) -> anyhow::Result<()> {
    let service = &switch.shell.service;
    let patience = service.watchdog.map_or(PATIENCE, |period| period / 2);
    let mut watch = Watch::default();
    let mut stuck_before = Vec::new();
    let mut status = String::new();
    loop {
        tokio::time::sleep((patience / LOOKS).min(LOOK_LIMIT)).await;
        let progress = switch.with_datapath(|datapath| datapath.progress());
        let stuck = watch.look(progress.unwrap_or_default(), Instant::now(), patience);
        let names: Vec<String> = stuck.iter().map(|(name, _)| name.clone()).collect();
        for (name, time) in &stuck {
            if !stuck_before.contains(name) {
                tracing::error!(target: "dpif_netdev", "{name}: has been in one turn for {} ms{}", time.as_millis(),
                    if service.watchdog.is_some() { "; the service manager hears no more of us until it goes on" } else { "" });
            }
        }
        for name in stuck_before.iter().filter(|name| !names.contains(name)) {
            tracing::warn!(target: "dpif_netdev", "{name}: goes on");
        }
        if stuck.is_empty() && service.watchdog.is_some() {
            service.alive();
        }
        if service.way.is_some() {
            let now = describe(&switch, &names);
            if now != status {
                service.status(&now);
                status = now;
            }
        }
        stuck_before = names;
    }
}

/// Describes the switch in one line.
fn describe(switch: &Switch, stuck: &[String]) -> String {
    let bridges = crate::commands::bridges(switch);
    let ports: usize = bridges
        .iter()
        .map(|bridge| bridge.ports.borrow().len())
        .sum();
    let mut text = format!("{} bridges, {ports} ports", bridges.len());
    if switch.restoring.get() {
        text.push_str("; nothing is received until flow-restore-wait is taken away");
    }
    if !stuck.is_empty() {
        text.push_str(&format!("; stuck: {}", stuck.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(words: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        let words: BTreeMap<String, OsString> = words
            .iter()
            .map(|(name, value)| (name.to_string(), value.into()))
            .collect();
        move |name| words.get(name).cloned()
    }

    #[test]
    fn the_manager_is_told_at_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let path = path.to_str().unwrap();
        let heard = || {
            let mut bytes = [0; 256];
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let words = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "2000000")];
        let service = Service::new(environment(&words), 7);
        assert_eq!(service.watchdog, Some(Duration::from_secs(2)));
        service.ready();
        assert!(heard().starts_with("READY=1\n"));
        service.status("a\nREADY=0");
        assert_eq!(heard(), "STATUS=a READY=0");
        service.alive();
        assert_eq!(heard(), "WATCHDOG=1");
        service.stopping();
        assert!(heard().starts_with("STOPPING=1\n"));
    }

    #[test]
    fn a_socket_may_have_a_name_without_a_file() {
        let name = format!("sluice-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let service = Service::new(environment(&[("NOTIFY_SOCKET", &format!("@{name}"))]), 7);
        assert_eq!(service.watchdog, None);
        service.alive();
        let mut bytes = [0; 64];
        assert_eq!(manager.recv(&mut bytes).unwrap(), 10);
    }

    #[test]
    fn invalid_notify_sockets_are_ignored() {
        assert!(Service::new(environment(&[]), 7).way.is_none());
        let long = "/x".repeat(200);
        let service = Service::new(environment(&[("NOTIFY_SOCKET", &long)]), 7);
        assert!(service.way.is_none());
        service.ready();
        let of = |words: &[(&str, &str)]| {
            let mut all = vec![("NOTIFY_SOCKET", "/nonexistent/x")];
            all.extend_from_slice(words);
            let service = Service::new(environment(&all), 7);
            let before = UNTOLD.total();
            service.alive();
            assert_ne!(UNTOLD.total(), before, "nobody is there");
            service.watchdog
        };
        assert_eq!(of(&[("WATCHDOG_USEC", "x")]), None);
        assert_eq!(of(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(of(&[("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", "8")]), None);
        let ours = of(&[("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", "7")]);
        assert_eq!(ours, Some(Duration::from_micros(5)));
    }

    /// A worker is stuck if its turn does not end; not if it sleeps, or is a new one under the same
    /// number.
    #[test]
    fn only_workers_in_a_turn_are_stuck() {
        let mut watch = Watch::default();
        let begin = Instant::now();
        let patience = Duration::from_secs(5);
        let mut at = |seconds: u64, progress: &[(&str, Option<u64>)]| {
            let progress = progress
                .iter()
                .map(|(name, far)| (name.to_string(), *far))
                .collect();
            let now = begin + Duration::from_secs(seconds);
            let stuck = watch.look(progress, now, patience);
            stuck
                .into_iter()
                .map(|(name, time)| (name, time.as_secs()))
                .collect::<Vec<_>>()
        };
        assert!(at(0, &[("a", Some(1)), ("b", Some(1)), ("c", None)]).is_empty());
        assert!(at(4, &[("a", Some(1)), ("b", Some(2)), ("c", None)]).is_empty());
        let stuck = at(5, &[("a", Some(1)), ("b", Some(2)), ("c", None)]);
        assert_eq!(stuck, [("a".to_owned(), 5)]);
        assert!(at(7, &[("a", None), ("b", Some(3)), ("c", Some(9))]).is_empty());
        assert!(at(8, &[("a", Some(1)), ("b", Some(3))]).is_empty());
        let stuck = at(13, &[("a", Some(1)), ("b", Some(3)), ("c", Some(9))]);
        assert_eq!(stuck, [("a".to_owned(), 5), ("b".to_owned(), 6)]);
    }
}
