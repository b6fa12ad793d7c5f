//! A kernel interface as a port's control side sees it, however its frames are transferred: link,
//! addresses, counters, settings.
//!
//! A look at it tells three things apart: how it is, that it has gone, and that this cannot be
//! known now. Only the second one is the end of a port; after the third the last state counts on,
//! as it does while the kernel takes its time to answer ([`crate::asker`]).

use crate::asker::{self, Answer, NoAnswer};
use crate::error::{Error, describe};
use crate::link::{Driver, LinkState, LinkWatch, Links, SharedLinks};
use crate::namespace::{self, Namespace};
use crate::{Mac, PortInfo};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Why an interface's state could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It no longer exists.
    Gone,
    /// It could not be read, for this `errno`.
    Unknown(i32),
}

impl Trouble {
    /// Interprets the error of a request about an interface by its index.
    pub(crate) fn of_index(errno: i32) -> Trouble {
        match errno {
            libc::ENODEV => Trouble::Gone,
            errno => Trouble::Unknown(errno),
        }
    }
}

/// An interface and its present place.
pub(crate) struct Found {
    /// Its state, and its present name.
    pub link: LinkState,
    /// The network namespace that it is in, if that is not its port's.
    pub elsewhere: Option<OwnedFd>,
}

/// A way to find an interface again.
pub(crate) trait Finder: Send {
    /// Finds it, in whatever namespace it is.
    fn find(&mut self) -> Result<Found, Trouble>;

    /// Changes its MAC address, if there is a better way than by its name.
    fn set_mac(&mut self, _mac: Mac) -> Option<Result<(), i32>> {
        None
    }
}

/// Finds an interface in the port's own namespace by its index, until it is moved or deleted.
pub(crate) struct ByIndex {
    pub links: SharedLinks,
    pub index: u32,
}

impl Finder for ByIndex {
    fn find(&mut self) -> Result<Found, Trouble> {
        match self.links.lock().by_index(self.index) {
            Ok(link) => Ok(Found {
                link,
                elsewhere: None,
            }),
            Err(errno) => Err(Trouble::of_index(errno)),
        }
    }
}

/// What a look at an interface has found.
struct Looked {
    found: Result<Found, Trouble>,
    /// Speed in bit/s and whether it is full duplex; not looked for in other namespaces, where the
    /// name may be another interface's.
    speed: Option<(u64, Option<bool>)>,
    /// What its driver says, where that was asked for.
    driver: Option<Driver>,
}

type SharedFinder = Arc<Mutex<Box<dyn Finder>>>;

fn lock(finder: &SharedFinder) -> MutexGuard<'_, Box<dyn Finder>> {
    finder
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One interface, asked and changed by rtnetlink and ioctl.
pub(crate) struct Interface {
    /// The port's name, for messages; the interface may have been renamed.
    name: String,
    finder: SharedFinder,
    links: SharedLinks,
    /// A look that the kernel has not answered yet.
    pending: Option<Answer<Looked>>,
    /// A question was late, and [`Interface::info`] has not shown what came of it.
    unseen: bool,
    /// How long an answer is waited for.
    patience: Duration,
    watch: LinkWatch,
    /// Its state when it was last read successfully.
    link: LinkState,
    info: PortInfo,
    elsewhere: Option<Namespace>,
    driver: Vec<(String, String)>,
    /// The error that has been logged, while there is one.
    told: Option<i32>,
}

impl Interface {
    /// Returns the interface in the port's own namespace whose present state is `link`.
    pub(crate) fn new(name: &str, links: SharedLinks, link: &LinkState) -> Interface {
        let finder = ByIndex {
            links: links.clone(),
            index: link.ifindex,
        };
        let found = Found {
            link: link.clone(),
            elsewhere: None,
        };
        Interface::found(name, links, Box::new(finder), found)
    }

    /// Returns the interface of a finder, which has just found it.
    pub(crate) fn found(
        name: &str,
        links: SharedLinks,
        finder: Box<dyn Finder>,
        found: Found,
    ) -> Interface {
        let mut interface = Interface {
            name: name.to_string(),
            finder: Arc::new(Mutex::new(finder)),
            links,
            pending: None,
            unseen: false,
            patience: asker::PATIENCE,
            watch: LinkWatch::new(&found.link),
            link: LinkState::default(),
            info: PortInfo::default(),
            elsewhere: None,
            driver: Vec::new(),
            told: None,
        };
        let speed = interface.links.speed_of(&found);
        interface.note(found, speed);
        interface
    }

    /// Returns the port's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its index in the kernel.
    pub(crate) fn index(&self) -> u32 {
        self.link.ifindex
    }

    /// Returns the network namespace that it was in when it was last read, if that was not its
    /// port's.
    pub(crate) fn elsewhere(&self) -> Option<Namespace> {
        self.elsewhere
    }

    /// Returns its state; empty once it is gone.
    pub(crate) fn info(&mut self) -> PortInfo {
        self.look();
        self.unseen = self.pending.is_some();
        self.info.clone()
    }

    /// Returns whether the kernel has still to answer, or has answered late and nobody has seen it,
    /// so that [`Interface::info`] should be called again soon.
    pub(crate) fn is_late(&self) -> bool {
        self.pending.is_some() || self.unseen
    }

    /// Looks at it, unless the kernel takes its time; what was known counts on then.
    fn look(&mut self) {
        // An earlier question's answer does not tell what there is to be seen now.
        self.unseen |= self.pending.is_some();
        self.take_answer();
        if self.pending.is_none() {
            self.pending = Some(self.ask());
            self.take_answer();
        }
    }

    /// Looks at it and waits for that: for who has just waited for the kernel to change it. An
    /// older question's answer does not count any more.
    fn look_now(&mut self) {
        self.pending = None;
        let found = lock(&self.finder).find();
        if let Ok(found) = found {
            self.unseen = true;
            self.note(found, None);
        }
    }

    fn ask(&self) -> Answer<Looked> {
        let (finder, links) = (Arc::clone(&self.finder), self.links.clone());
        let wants_driver = self.driver.is_empty();
        asker::ask(move || {
            let found = lock(&finder).find();
            let here = (found.as_ref().ok()).filter(|found| found.elsewhere.is_none());
            let driver = here.filter(|_| wants_driver);
            Looked {
                speed: found.as_ref().ok().and_then(|found| links.speed_of(found)),
                driver: driver.and_then(|found| links.lock().driver(&found.link.name)),
                found,
            }
        })
    }

    fn take_answer(&mut self) {
        let Some(pending) = &self.pending else {
            return;
        };
        let taken = pending.take(self.patience);
        if taken.as_ref().err() == Some(&NoAnswer::Late) {
            return;
        }
        self.pending = None;
        let Ok(looked) = taken else {
            return;
        };
        if let Some(driver) = looked.driver {
            self.driver = [
                ("driver_name", driver.name),
                ("driver_version", driver.version),
                ("firmware_version", driver.firmware),
            ]
            .map(|(key, value)| (key.to_string(), value))
            .to_vec();
        }
        match looked.found {
            Ok(found) => {
                self.told = None;
                self.note(found, looked.speed);
            }
            Err(Trouble::Gone) => {
                self.info = PortInfo::default();
                self.link.counters.clear();
            }
            Err(Trouble::Unknown(errno)) => {
                if self.told.replace(errno) != Some(errno) {
                    tracing::warn!(target: "netdev_linux", "{}: its state cannot be read ({}); what was known is taken to hold", self.name, describe(errno));
                }
            }
        }
    }

    fn note(&mut self, found: Found, speed: Option<(u64, Option<bool>)>) {
        let Found { link, elsewhere } = found;
        self.elsewhere = (elsewhere.as_ref()).and_then(|fd| Namespace::of(fd.as_fd()).ok());
        // In another namespace it keeps what it had.
        let before = (self.info.link_speed, self.info.full_duplex);
        let (link_speed, full_duplex) = speed.unwrap_or(before);
        self.info = PortInfo {
            present: true,
            mac: link.mac,
            mtu: link.mtu.min(u32::from(u16::MAX)) as u16,
            ifindex: link.ifindex,
            admin_up: link.is_up(),
            link_up: link.has_link(),
            link_speed,
            full_duplex,
            link_resets: self.watch.look(&link),
        };
        self.link = link;
    }

    /// Returns `Interface.status`: its driver, which does not change.
    pub(crate) fn status(&mut self) -> Vec<(String, String)> {
        if self.driver.is_empty() && self.elsewhere.is_none() {
            self.look();
        }
        self.driver.clone()
    }

    /// The kernel's counters; `reversed` where the kernel's side is the other end. Where they
    /// cannot be read now, they are what they were: counters never go back.
    pub(crate) fn statistics(&mut self, reversed: bool) -> Vec<(String, u64)> {
        self.look();
        self.link.statistics(reversed)
    }

    /// Changes its MTU, unless it has this one already.
    pub(crate) fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        let what = format!("setting MTU {mtu}");
        self.change(what, |links, link| {
            if link.mtu == u32::from(mtu) {
                return Ok(());
            }
            links.set_mtu(&link.name, mtu)
        })
    }

    /// Changes its MAC address, unless it has this one already.
    pub(crate) fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        if let Ok(found) = lock(&self.finder).find()
            && found.link.mac == mac
        {
            return Ok(());
        }
        let text: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        let what = format!("setting MAC address {}", text.join(":"));
        let changed = lock(&self.finder).set_mac(mac);
        match changed {
            Some(result) => {
                if result.is_ok() {
                    self.look_now();
                }
                self.worded(what, result)
            }
            None => self.change(what, |links, link| links.set_mac(&link.name, mac)),
        }
    }

    /// Makes it receive frames for other MAC addresses, or only those for its own.
    pub(crate) fn set_promiscuous(&mut self, promiscuous: bool) -> Result<(), Error> {
        let what = format!(
            "setting promiscuous mode {}",
            if promiscuous { "on" } else { "off" }
        );
        self.change(what, |links, link| {
            links.set_promiscuous(&link.name, promiscuous)
        })
    }

    /// Sets it up or down.
    pub(crate) fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        let what = format!("setting it {}", if up { "up" } else { "down" });
        self.change(what, |links, link| links.set_up(&link.name, up))
    }

    /// Sets it up with an IPv4 address, and adds a default route through a gateway.
    pub(crate) fn set_ipv4(
        &mut self,
        address: Ipv4Addr,
        netmask: Ipv4Addr,
        gateway: Option<Ipv4Addr>,
    ) -> Result<(), Error> {
        let what = format!("setting IP address {address}, netmask {netmask}");
        self.change(what, |links, link| {
            links.set_up(&link.name, true)?;
            links.set_ipv4(&link.name, address, netmask)
        })?;
        let Some(gateway) = gateway else {
            return Ok(());
        };
        let what = format!("adding a route by gateway {gateway}");
        self.change(what, |links, _| links.add_gateway(gateway))
    }

    /// Runs `act` with its present name, in its present namespace.
    fn change(
        &mut self,
        what: String,
        act: impl FnOnce(&Links, &LinkState) -> Result<(), i32> + Send,
    ) -> Result<(), Error> {
        let found = lock(&self.finder).find();
        let result = match found {
            Err(Trouble::Gone) => Err(libc::ENODEV),
            Err(Trouble::Unknown(errno)) => Err(errno),
            Ok(Found {
                link,
                elsewhere: None,
            }) => act(&self.links.lock(), &link),
            Ok(Found {
                link,
                elsewhere: Some(namespace),
            }) => namespace::within(namespace.as_fd(), || act(&Links::new()?, &link)),
        };
        if result.is_ok() {
            self.look_now();
        }
        self.worded(what, result)
    }

    fn worded(&self, what: String, result: Result<(), i32>) -> Result<(), Error> {
        result.map_err(|errno| Error::Device {
            name: self.name.clone(),
            what,
            errno,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::mpsc::{Receiver, channel};

    /// Returns the given results one after the other, and then that the interface is gone.
    struct Script(VecDeque<Result<LinkState, Trouble>>);

    impl Finder for Script {
        fn find(&mut self) -> Result<Found, Trouble> {
            let link = self.0.pop_front().unwrap_or(Err(Trouble::Gone))?;
            Ok(Found {
                link,
                elsewhere: None,
            })
        }
    }

    fn link(mtu: u32, carrier_changes: u32) -> LinkState {
        LinkState {
            name: "nosuchdevice".into(),
            ifindex: 7,
            flags: (libc::IFF_UP | libc::IFF_RUNNING) as u32,
            mtu,
            mac: [2, 0, 0, 0, 0, 9],
            carrier: true,
            carrier_changes,
            counters: vec![u64::from(mtu); 16],
            ..LinkState::default()
        }
    }

    fn interface(answers: impl IntoIterator<Item = Result<LinkState, Trouble>>) -> Interface {
        let found = Found {
            link: link(1500, 2),
            elsewhere: None,
        };
        let script = Script(answers.into_iter().collect());
        patient(Box::new(script), found)
    }

    /// A port that waits for each answer.
    fn patient(finder: Box<dyn Finder>, found: Found) -> Interface {
        let mut port = Interface::found("p", SharedLinks::new().unwrap(), finder, found);
        port.patience = Duration::from_secs(60);
        port
    }

    /// Answers when it is let.
    struct Slow(Receiver<Result<LinkState, Trouble>>);

    impl Finder for Slow {
        fn find(&mut self) -> Result<Found, Trouble> {
            let link = (self.0.recv_timeout(Duration::from_secs(60)))
                .unwrap_or(Err(Trouble::Unknown(libc::ETIMEDOUT)))?;
            Ok(Found {
                link,
                elsewhere: None,
            })
        }
    }

    #[test]
    fn slow_answers_of_the_kernel_are_not_waited_for() {
        let (answer, answers) = channel();
        let found = Found {
            link: link(1500, 2),
            elsewhere: None,
        };
        let mut port = patient(Box::new(Slow(answers)), found);
        port.patience = asker::PATIENCE;
        let known = port.info.clone();
        for _ in 0..3 {
            assert_eq!(port.info(), known);
            assert_eq!(port.statistics(false)[0].1, 1500);
            assert!(port.is_late(), "to be looked at again");
        }
        // The first question's answer comes, and it is asked again, as things may be other now.
        answer.send(Ok(link(9000, 4))).unwrap();
        answer.send(Ok(link(9100, 4))).unwrap();
        port.patience = Duration::from_secs(60);
        while port.statistics(false)[0].1 != 9100 {
            answer.send(Ok(link(9100, 4))).unwrap();
        }
        assert!(port.is_late(), "only its counters have been shown");
        let end = std::time::Instant::now() + port.patience;
        while port.info().mtu != 9100 && std::time::Instant::now() < end {
            answer.send(Ok(link(9100, 4))).unwrap();
        }
        assert_eq!(port.info.mtu, 9100);
        let end = std::time::Instant::now() + port.patience;
        while port.is_late() && std::time::Instant::now() < end {
            answer.send(Ok(link(9100, 4))).unwrap();
            port.info();
        }
        assert!(!port.is_late());
    }

    #[test]
    fn an_error_that_is_no_answer_leaves_the_last_state() {
        let errors = [
            libc::ENOBUFS,
            libc::EAGAIN,
            libc::ETIMEDOUT,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::EPERM,
            libc::EPROTO,
            libc::EINTR,
            libc::EBUSY,
        ];
        let mut port = interface(errors.map(|errno| Err(Trouble::of_index(errno))));
        let known = port.info.clone();
        assert!(known.present && known.link_up && known.admin_up);
        for errno in errors {
            assert_eq!(port.info(), known, "after {}", describe(errno));
        }
        assert_eq!(port.info(), PortInfo::default(), "and then it goes");
    }

    #[test]
    fn no_such_device_is_the_end() {
        let mut port = interface([Err(Trouble::of_index(libc::ENODEV))]);
        assert!(port.info.present);
        assert!(!port.info().present);
    }

    #[test]
    fn changes_while_the_kernel_did_not_answer_show_up_later() {
        let unknown = || Err(Trouble::Unknown(libc::ENOBUFS));
        let answers = [unknown(), unknown(), Ok(link(9000, 12)), unknown()];
        let mut port = interface(answers);
        for _ in 0..2 {
            let info = port.info();
            assert_eq!((info.mtu, info.link_resets), (1500, 0));
        }
        let info = port.info();
        assert_eq!((info.mtu, info.link_resets), (9000, 10));
        // Counters keep their last values.
        let packets = |port: &mut Interface| port.statistics(false)[0].clone();
        assert_eq!(packets(&mut port), ("rx_packets".to_string(), 9000));
    }

    #[test]
    fn nothing_is_changed_while_the_interface_is_unknown() {
        let answers = [
            Err(Trouble::Unknown(libc::ENOBUFS)),
            Err(Trouble::Gone),
            Ok(link(1500, 2)),
        ];
        let mut port = interface(answers);
        let errno = |result: Result<(), Error>| match result {
            Err(Error::Device { errno, .. }) => errno,
            other => panic!("{other:?}"),
        };
        assert_eq!(errno(port.set_mtu(1400)), libc::ENOBUFS);
        assert_eq!(errno(port.set_mtu(1400)), libc::ENODEV);
        port.set_mtu(1500).expect("as it is already");
    }
}
