//! Properties of a kernel interface that matter before a program is attached to it.

use crate::object::xdp_programs;
use crate::program::Mode;
use std::ffi::CString;
use std::io;

/// Why an interface cannot be steered.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no interface of this name.
    #[error("{0}: there is no such interface in this network namespace")]
    Unknown(String),
    /// It carries no Ethernet headers, which the program needs.
    #[error("{0}: is no Ethernet interface (type {1})")]
    NotEthernet(String, u16),
    /// Somebody else has attached a program.
    #[error(
        "{device}: carries another XDP program (number {program}, {mode} mode); it is left alone"
    )]
    Taken {
        /// The interface.
        device: String,
        /// The other program.
        program: u32,
        /// Its XDP mode.
        mode: &'static str,
    },
    /// The kernel's answer is an error.
    #[error("{device}: {error}")]
    Kernel {
        /// The interface.
        device: String,
        /// The kernel's text.
        error: String,
    },
}

/// An interface.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its driver, if known.
    pub driver: Option<String>,
    /// Whether the other end of a veth pair leaves checksums to be filled in; none if unknown.
    pub partial_checksums: Option<bool>,
    /// Whether the device keeps VLAN tags beside frames.
    pub hides_tags: bool,
}

/// An XDP mode and the reason for it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ChosenMode {
    /// The mode.
    pub mode: Mode,
    /// The reason.
    pub reason: String,
}

const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
/// Link types whose frames begin with an Ethernet header: Ethernet, and the loopback's.
const WITH_ETHERNET_HEADER: [u16; 2] = [1, 772];
const SIOCETHTOOL: libc::c_ulong = 0x8946;

impl Device {
    /// Reads an interface's properties.
    ///
    /// # Errors
    ///
    /// There is no interface of this name, or it carries no Ethernet frames.
    pub fn find(name: &str) -> Result<Device, DeviceError> {
        let unknown = || DeviceError::Unknown(name.to_owned());
        let c_name = CString::new(name).map_err(|_| unknown())?;
        // SAFETY: the name is a C string.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 || name.len() >= libc::IFNAMSIZ {
            return Err(unknown());
        }
        if let Some(kind) = link_type(index)
            && !WITH_ETHERNET_HEADER.contains(&kind)
        {
            return Err(DeviceError::NotEthernet(name.to_owned(), kind));
        }
        let driver = driver(name);
        let (partial_checksums, hides_tags) = if driver.as_deref() == Some("veth") {
            let far_end = far_end(index);
            let has = |far_end: &str, command, flag| {
                let value = ethtool(far_end, command);
                value.ok().map(|value| value & flag != 0)
            };
            let far_end = far_end.as_deref();
            (
                far_end.and_then(|far_end| has(far_end, ETHTOOL_GTXCSUM, u32::MAX)),
                far_end.and_then(|far_end| has(far_end, ETHTOOL_GFLAGS, ETH_FLAG_TXVLAN))
                    != Some(false),
            )
        } else {
            let flags = ethtool(name, ETHTOOL_GFLAGS);
            (None, flags.is_ok_and(|flags| flags & ETH_FLAG_RXVLAN != 0))
        };
        Ok(Device {
            partial_checksums,
            hides_tags,
            name: name.to_owned(),
            index,
            driver,
        })
    }

    /// Fails if the interface has an XDP program.
    ///
    /// # Errors
    ///
    /// It has one, or the kernel's answer is an error.
    pub fn check_vacant(&self) -> Result<(), DeviceError> {
        let device = self.name.clone();
        match xdp_programs(self.index) {
            Ok(programs) => match programs.first() {
                None => Ok(()),
                Some((mode, program)) => Err(DeviceError::Taken {
                    device,
                    program: *program,
                    mode,
                }),
            },
            Err(error) => Err(DeviceError::Kernel {
                device,
                error: error.to_string(),
            }),
        }
    }

    /// Returns the modes to try, in order. There is only one if the user has chosen it, or if
    /// driver mode would do harm.
    pub fn modes(&self, wanted: Option<Mode>) -> Vec<ChosenMode> {
        let chosen = |mode, reason: String| ChosenMode { mode, reason };
        let harm = self.harm_in_driver_mode();
        match wanted {
            Some(Mode::Driver) if !harm.is_empty() => vec![chosen(
                Mode::Driver,
                format!("as asked for; {}", harm.join("; ")),
            )],
            Some(mode) => vec![chosen(mode, "as asked for".to_owned())],
            None if harm.is_empty() => vec![
                chosen(Mode::Driver, "the driver can".to_owned()),
                chosen(Mode::Generic, "the driver has no driver mode".to_owned()),
            ],
            None => vec![chosen(Mode::Generic, harm.join("; "))],
        }
    }

    /// Returns what would be lost in driver mode: metadata that the kernel keeps beside a frame
    /// does not pass a `cpumap`.
    fn harm_in_driver_mode(&self) -> Vec<&'static str> {
        let mut harm = Vec::new();
        match (self.driver.as_deref(), self.partial_checksums) {
            (Some("veth"), Some(true)) => harm.push(
                "the veth pair's far end leaves checksums partial, and driver mode breaks such \
                 frames (ethtool -K FAR-END tx off)",
            ),
            (Some("veth"), None) => harm.push(
                "whether the veth pair's far end leaves checksums partial cannot be seen from \
                 here, and driver mode breaks such frames (ethtool -K FAR-END tx off)",
            ),
            (Some("tun"), _) => harm.push(
                "guests leave checksums partial, and driver mode breaks such frames (turn their \
                 checksum offload off)",
            ),
            _ => {}
        }
        if self.hides_tags {
            harm.push(
                "driver mode loses VLAN tags that are kept beside frames (ethtool -K DEV rxvlan \
                 off; at a veth pair's far end, txvlan off)",
            );
        }
        harm
    }
}

/// Returns the driver's name, from ethtool.
fn driver(name: &str) -> Option<String> {
    let mut info = [0_u8; 196];
    info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    request(name, info.as_mut_ptr().cast()).ok()?;
    let driver = info[4..36].split(|byte| *byte == 0).next()?;
    let driver = String::from_utf8_lossy(driver).into_owned();
    (!driver.is_empty()).then_some(driver)
}

/// Returns the name of a veth pair's other end, if it is in this namespace.
fn far_end(index: u32) -> Option<String> {
    let peer = peer(index)?;
    let mut buffer = [0_u8; libc::IFNAMSIZ];
    // SAFETY: the buffer has the length that the function wants.
    let found = unsafe { libc::if_indextoname(peer, buffer.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let end = buffer.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

/// Returns the link type of an interface (ARPHRD_*), if the kernel reports it: the 16-bit word at
/// offset 2 of `ifinfomsg`, behind the message's header.
fn link_type(index: u32) -> Option<u16> {
    let answer = ask_about_link(index).ok()?;
    let kind = answer.get(16 + 2..16 + 4)?;
    Some(u16::from_ne_bytes(kind.try_into().ok()?))
}

const IFLA_LINK: u16 = 5;
const IFLA_LINK_NETNSID: u16 = 37;

/// Returns the index of the other end's interface, if it is in this namespace.
fn peer(index: u32) -> Option<u32> {
    let answer = ask_about_link(index).ok()?;
    // Message header, then `ifinfomsg`, then attributes, each a length, a type and a value.
    let mut rest = answer.get(16 + 16..)?;
    let mut peer = None;
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let kind = u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff;
        let value = rest.get(4..length)?;
        match kind {
            IFLA_LINK_NETNSID => return None,
            IFLA_LINK => peer = Some(u32::from_ne_bytes(value.try_into().ok()?)),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    peer.filter(|peer| *peer != 0 && *peer != index)
}

/// Requests an interface's properties by netlink, and returns the reply.
fn ask_about_link(index: u32) -> io::Result<Vec<u8>> {
    let mut message = [0_u8; 32];
    message[..4].copy_from_slice(&32_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes());
    let mut answer = vec![0_u8; 16 << 10];
    // SAFETY: a new socket; both buffers live through the calls and have the lengths that are
    // given. Asking the kernel for one link is answered at once, so `recv` does not wait.
    let received = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let socket = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let sent = libc::send(socket, message.as_ptr().cast(), message.len(), 0);
        let received = match sent {
            32 => libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0),
            _ => -1,
        };
        libc::close(socket);
        received
    };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    answer.truncate(length);
    Ok(answer)
}

/// Reads one of ethtool's values.
fn ethtool(name: &str, command: u32) -> io::Result<u32> {
    let mut value = [command, 0];
    request(name, value.as_mut_ptr().cast())?;
    Ok(value[1])
}

fn request(name: &str, data: *mut libc::c_char) -> io::Result<()> {
    // SAFETY: plain data, of which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
    {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = data;
    // SAFETY: a new socket, which is closed below.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request's data has room for what its command returns, as callers make sure.
    let result = unsafe { libc::ioctl(socket, SIOCETHTOOL, &mut request) };
    let error = io::Error::last_os_error();
    // SAFETY: the descriptor is open and belongs to this function.
    unsafe { libc::close(socket) };
    if result < 0 { Err(error) } else { Ok(()) }
}
