//! Guests that are machines of QEMU's, with one processor each: Debian's cloud kernel and busybox,
//! the image of the tests (`scripts/setup` makes it). A guest that forwards has a bridge of the
//! kernel's between two virtio-net devices; one that takes frames lets its kernel drop them. What
//! is done in them is said to a shell, their first program, through their serial lines.
//!
//! A switch whose frames come from memory sends millions of packets a second to a device as soon as
//! that is up. So devices come up last, and their packets are handled by threads of the kernel's
//! (threaded NAPI), which share the processor with the shell: in interrupts they would leave it
//! nothing.

use super::{At, Handled};
use crate::place::{Launch, Place, Program, interrupted, wait_for};
use crate::subject::{End, Error};
use crate::subjects::find_program;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PROGRAM: &str = "qemu-system-x86_64";
/// Memory of a guest, MiB.
const MEMORY: u32 = 160;
/// How long a guest may take to boot, and to answer: several share a core.
const BOOT: Duration = Duration::from_secs(120);
/// How long one may take that is to show that the host's virtualization works.
const TRY: Duration = Duration::from_secs(15);
/// What the shell says when it waits for a command first.
const PROMPT: &str = "# ";
const ANSWER: Duration = Duration::from_secs(30);
/// Most that is kept of what a guest says, bytes.
const SAID: usize = 1 << 16;

/// What is done in a guest before it forwards or takes frames: commands, one after the other. The
/// kernel has IPv6, whose messages are nobody's here. Frames of any size pass.
const PREPARE: [&str; 4] = [
    "export PATH=/bin PS1=",
    "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; \
     stty -F /dev/ttyS0 -echo -onlcr; cd /sys/class/net",
    "for m in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover \
     net_failover virtio_net; do insmod /modules/$m.ko; done; \
     while [ ! -e eth0 ]; do usleep 100000; done",
    "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; \
     for d in eth*; do ip link set $d mtu 9000 && echo 1 >$d/threaded; done",
];
const BRIDGE: &str = "for m in llc stp bridge; do insmod /modules/$m.ko || break; done; \
                      ip link add br0 type bridge && for d in eth*; do ip link set $d master br0; \
                      done && ip link set br0 up";
/// The last device first: frames come to the first.
const UP: &str = "for d in $(ls -d eth* | sort -r); do ip link set $d up; done";
/// Whether a device has a carrier, which is 1 when the switch has connected to it; and whether a
/// bridge's port forwards (`BR_STATE_FORWARDING`), which follows a second later.
const CARRIERS: (&str, &str) = ("cat /sys/class/net/eth*/carrier", "1");
const FORWARDING: (&str, &str) = ("cat /sys/class/net/br0/brif/*/state", "3");
const COUNTERS: &str = "cd /sys/class/net; for d in eth*; do echo \
                        $(cat $d/address $d/statistics/rx_packets $d/statistics/tx_packets); done";

/// Machines that run. They end when this is dropped.
pub(super) struct Machines {
    all: Vec<Machine>,
}

struct Machine {
    program: Program,
    serial: UnixStream,
    said: String,
    /// How many commands it has been given.
    asked: u32,
}

/// Why machines are emulated; none where the host's virtualization works.
static EMULATED: OnceLock<Option<String>> = OnceLock::new();

/// Why machines of this run are emulated, if they are. None also where none has been started.
pub(crate) fn why_emulated() -> Option<&'static str> {
    EMULATED.get()?.as_deref()
}

/// Looks whether the host's virtualization works, by starting a machine: a device that opens may
/// still refuse what a machine needs, or have it stand still.
fn look_for_kvm(place: &Place, core: usize, image: &(PathBuf, PathBuf)) -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return Some(format!("/dev/kvm: {error}"));
    }
    let booted = Machine::start(place, "guest-tried", &[], core, image, false)
        .and_then(|mut machine| machine.boot(TRY).map(|()| machine))
        .and_then(|machine| machine.program.stop(ANSWER));
    booted
        .err()
        .map(|error| format!("/dev/kvm opens, but a machine does not boot with it: {error}"))
}

/// The kernel and the initial file system of guests. The error names where they were looked for.
fn image() -> Result<(PathBuf, PathBuf), Error> {
    let mut places: Vec<PathBuf> = std::env::var_os("SLUICE_LAB_GUEST")
        .into_iter()
        .map(PathBuf::from)
        .collect();
    let own =
        std::env::current_exe().map_err(|error| Error::Failed(format!("own path: {error}")))?;
    // bin/sluice; target/release/sluice.
    places.extend(
        own.ancestors()
            .skip(1)
            .take(4)
            .flat_map(|at| [at.join(".build/guest"), at.join("share/sluice/lab/guest")]),
    );
    let files = |place: &Path| (place.join("vmlinuz"), place.join("initramfs"));
    let found = places.iter().map(|place| files(place));
    found
        .into_iter()
        .find(|(kernel, system)| kernel.is_file() && system.is_file())
        .ok_or_else(|| {
            let places: Vec<String> = places.iter().map(|at| at.display().to_string()).collect();
            Error::Missing(format!(
                "a guest's vmlinuz and initramfs, which scripts/setup makes, are in none of {} \
                 (SLUICE_LAB_GUEST says where)",
                places.join(", ")
            ))
        })
}

/// The Ethernet address of a guest's device, by the switch's port.
fn address(port: u16) -> String {
    let [high, low] = port.to_be_bytes();
    format!("52:54:00:00:{high:02x}:{low:02x}")
}

/// The command of a machine with devices at these ends.
fn command(
    ends: &[At],
    serial: &Path,
    (kernel, system): &(PathBuf, PathBuf),
    emulated: bool,
) -> Result<Vec<String>, Error> {
    let (accelerator, processor) = match emulated {
        true => ("tcg", "max"),
        // Some hosts refuse the register that says what the processor is not vulnerable to.
        false => ("kvm", "host,-arch-capabilities"),
    };
    let mut words: Vec<String> = vec![
        PROGRAM.into(),
        "-machine".into(),
        format!("q35,accel={accelerator},memory-backend=ram"),
        "-cpu".into(),
        processor.into(),
        "-smp".into(),
        "1".into(),
        "-m".into(),
        MEMORY.to_string(),
        // The switch maps the guest's memory. A memfd goes with its processes.
        "-object".into(),
        format!("memory-backend-memfd,id=ram,size={MEMORY}M,share=on"),
        "-kernel".into(),
        kernel.display().to_string(),
        "-initrd".into(),
        system.display().to_string(),
        "-append".into(),
        "console=ttyS0 quiet panic=1 mitigations=off tsc=unstable rdinit=/bin/sh".into(),
        "-nodefaults".into(),
        "-no-user-config".into(),
        "-no-reboot".into(),
        "-display".into(),
        "none".into(),
        "-chardev".into(),
        format!(
            "socket,id=serial,path={},server=on,wait=off",
            serial.display()
        ),
        "-serial".into(),
        "chardev:serial".into(),
    ];
    for (port, end) in ends {
        let End::Socket { path, server: true } = end else {
            return Err(Error::Failed(format!("{end:?} is no socket for a guest")));
        };
        words.extend([
            "-chardev".into(),
            format!(
                "socket,id=c{port},path={},server=on,wait=off",
                path.display()
            ),
            "-netdev".into(),
            format!("vhost-user,id=n{port},chardev=c{port},queues=1"),
            // Without MSI-X: emulated, QEMU 7.2 dies when a guest masks the vector of a vhost
            // device's control queue.
            "-device".into(),
            format!(
                "virtio-net-pci,netdev=n{port},mac={},romfile=,vectors=0",
                address(*port)
            ),
        ]);
    }
    Ok(words)
}

impl Machines {
    pub fn start(
        place: &Place,
        guests: &[(At, Option<At>)],
        core: usize,
    ) -> Result<Machines, Error> {
        find_program(PROGRAM)
            .ok_or_else(|| Error::Missing(format!("{PROGRAM} is not installed")))?;
        let image = image()?;
        let emulated = EMULATED
            .get_or_init(|| look_for_kvm(place, core, &image))
            .is_some();
        let mut started = Vec::new();
        for (one, other) in guests {
            let ends: Vec<At> = [Some(*one), *other].into_iter().flatten().collect();
            let name = format!("guest-at-{}", one.0);
            let machine = Machine::start(place, &name, &ends, core, &image, emulated)?;
            started.push((machine, ends.len()));
        }
        let mut machines = Machines { all: Vec::new() };
        for (mut machine, devices) in started {
            machine.boot(BOOT)?;
            for command in PREPARE {
                machine.run(command)?;
            }
            if devices > 1 {
                machine.run(BRIDGE)?;
            }
            machine.run(UP)?;
            machine.connected(devices)?;
            machines.all.push(machine);
        }
        Ok(machines)
    }

    pub fn handled(&mut self) -> Result<Vec<Handled>, Error> {
        let mut all = Vec::new();
        for machine in &mut self.all {
            all.extend(counters(&machine.run(COUNTERS)?));
        }
        Ok(all)
    }

    pub fn process(&self) -> Option<u32> {
        self.all.first().map(|machine| machine.program.id())
    }

    pub fn stop(self) -> Result<(), Error> {
        let ended = self.all.into_iter().map(|one| one.program.stop(ANSWER));
        ended.fold(Ok(()), Result::and)
    }
}

impl Machine {
    /// Starts one with devices at these ends.
    fn start(
        place: &Place,
        name: &str,
        ends: &[At],
        core: usize,
        image: &(PathBuf, PathBuf),
        emulated: bool,
    ) -> Result<Machine, Error> {
        let path = place.directory.join(format!("{name}.serial"));
        // One that another machine has left.
        let _ = std::fs::remove_file(&path);
        let mut program = place.start(Launch {
            name: name.into(),
            command: command(ends, &path, image, emulated)?,
            cores: vec![core],
            ..Launch::default()
        })?;
        let serial = wait_for("QEMU listens", ANSWER, || {
            program.check()?;
            Ok(UnixStream::connect(&path).ok())
        })?;
        let timeout = serial.set_read_timeout(Some(Duration::from_millis(100)));
        timeout.map_err(|error| Error::Failed(format!("{}: {error}", path.display())))?;
        Ok(Machine {
            program,
            serial,
            said: String::new(),
            asked: 0,
        })
    }

    /// Waits until the shell is there.
    fn boot(&mut self, limit: Duration) -> Result<(), Error> {
        self.read(PROMPT, limit).map(drop)
    }

    /// Reads until this has come, and returns what was before it.
    fn read(&mut self, wanted: &str, limit: Duration) -> Result<String, Error> {
        let end = Instant::now() + limit;
        let mut piece = [0; 4096];
        loop {
            if let Some(at) = self.said.find(wanted) {
                let before = self.said[..at].to_owned();
                self.said.drain(..at + wanted.len());
                return Ok(before);
            }
            self.program.check()?;
            // Booting takes long; commands end soon, and how a run ends is up to who runs it.
            if self.asked == 0
                && let Some(signal) = interrupted()
            {
                let what = format!("signal {signal} came while a guest was waited for");
                return Err(Error::Failed(what));
            }
            if Instant::now() > end {
                let from = self.said.len().saturating_sub(300);
                let tail = self
                    .said
                    .get(from..)
                    .unwrap_or_default()
                    .replace('\n', "; ");
                return Err(Error::Failed(format!(
                    "a guest did not say {wanted} within {} s, but: {tail}",
                    limit.as_secs()
                )));
            }
            match self.serial.read(&mut piece) {
                Ok(0) => return Err(Error::Failed("a guest's serial line ended".into())),
                Ok(count) => {
                    // Nothing is said but ASCII.
                    let text = piece[..count].iter().filter(|byte| byte.is_ascii());
                    self.said.extend(text.map(|byte| char::from(*byte)));
                    let over = self.said.len().saturating_sub(SAID);
                    self.said.drain(..over);
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    return Err(Error::Failed(format!("a guest's serial line: {error}")));
                }
            }
        }
    }

    /// Runs a command of the shell's; the error has what it printed.
    fn run(&mut self, command: &str) -> Result<String, Error> {
        self.asked += 1;
        let number = self.asked;
        // In two parts, so that an echo of the command is not taken for its end.
        let line = format!("{command}; echo \"en\"d-{number}-$?-\n");
        self.serial
            .write_all(line.as_bytes())
            .map_err(|error| Error::Failed(format!("a guest's serial line: {error}")))?;
        let text = self.read(&format!("end-{number}-"), ANSWER)?;
        let code = self.read("-", ANSWER)?;
        match code.as_str() {
            "0" => Ok(text),
            _ => Err(Error::Failed(format!(
                "in a guest `{command}` ended with {code}: {}",
                text.trim()
            ))),
        }
    }

    /// Waits until frames pass at all devices.
    fn connected(&mut self, devices: usize) -> Result<(), Error> {
        let end = Instant::now() + ANSWER;
        let (command, wanted) = if devices > 1 { FORWARDING } else { CARRIERS };
        loop {
            let text = self.run(command)?;
            if text
                .split_whitespace()
                .filter(|word| *word == wanted)
                .count()
                == devices
            {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Error::Failed(format!(
                    "the switch has not connected to all {devices} devices of a guest: {text}"
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What devices have received and sent, by their addresses.
fn counters(text: &str) -> Vec<Handled> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[address, received, sent] = &words[..] else {
            return None;
        };
        let digits = address.strip_prefix("52:54:00:00:")?.replace(':', "");
        Some(Handled {
            port: u16::from_str_radix(&digits, 16).ok()?,
            received: received.parse().ok()?,
            sent: sent.parse().ok()?,
        })
    };
    text.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_told_by_address() {
        let text = format!("noise\n{} 12 3\r\n{} 0 9\r\n", address(2), address(259));
        let handled = |port, received, sent| Handled {
            port,
            received,
            sent,
        };
        assert_eq!(counters(&text), [handled(2, 12, 3), handled(259, 0, 9)]);
    }

    #[test]
    fn machines_have_a_device_at_each_end() {
        let socket = |server| End::Socket {
            path: "/run/p2.sock".into(),
            server,
        };
        let image = ("/boot/vmlinuz".into(), "/boot/initramfs".into());
        let of = |end: &End, emulated| {
            command(
                &[(2, end), (3, end)],
                Path::new("/run/serial"),
                &image,
                emulated,
            )
        };
        let text = of(&socket(true), true).unwrap().join(" ");
        for wanted in [
            "accel=tcg",
            "path=/run/p2.sock,server=on",
            "netdev=n2,mac=52:54:00:00:00:02",
            "netdev=n3,mac=52:54:00:00:00:03",
            "path=/run/serial",
        ] {
            assert!(text.contains(wanted), "{text} has no {wanted}");
        }
        assert!(
            of(&socket(true), false)
                .unwrap()
                .join(" ")
                .contains("accel=kvm")
        );
        assert!(of(&socket(false), true).is_err());
    }
}
