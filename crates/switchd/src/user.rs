//! `--user`: changes to another user but keeps the few privileges that a switch needs, as Open
//! vSwitch does with libcap-ng. Done in the first process, before any fork, so that monitor and
//! daemon both run as that user.

use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;

use crate::plain_error;

/// The kept capabilities, with their numbers in `linux/capability.h`.
pub const KEPT: &[(&str, u32)] = &[
    // To listen for controllers on ports below 1024.
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_BROADCAST", 11),
    // For TAP devices and interfaces' settings.
    ("CAP_NET_ADMIN", 12),
    // For packet sockets and AF_XDP.
    ("CAP_NET_RAW", 13),
    // For --mlockall and huge pages.
    ("CAP_IPC_LOCK", 14),
    // For PCI devices bound to uio.
    ("CAP_SYS_RAWIO", 17),
    // For threads' affinities and priorities.
    ("CAP_SYS_NICE", 23),
];

/// An unused argument of `prctl`, which must be 0.
const NONE: libc::c_ulong = 0;
/// Version in `linux/capability.h`: sets of 64 bits.
const VERSION_3: u32 = 0x2008_0522;

/// A user and a group by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: libc::uid_t,
    /// Group.
    pub gid: libc::gid_t,
}

/// Reads `USER`, `USER:`, `USER:GROUP` or `:GROUP`: without a group the user's own group in the
/// password file is used, without a user the current one. The error is Open vSwitch's.
pub fn parse(text: &str) -> Result<Identity, String> {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    if uid != 0 || gid != 0 {
        return Err("only root can use --user option".into());
    }
    let text = text.trim_ascii_start();
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (text, None),
    };
    let mut identity = Identity { uid, gid };
    if !user.is_empty() {
        identity = find(user).ok_or_else(|| format!("user {user} not found, aborting."))?;
    }
    if let Some(group) = group {
        identity.gid =
            find_group(group).ok_or_else(|| format!("group {group} not found, aborting."))?;
    }
    Ok(identity)
}

fn find(user: &str) -> Option<Identity> {
    let user = CString::new(user).ok()?;
    // SAFETY: the name is a C string; the entry, in static memory, is read before the next call of
    // `getpwnam`. There is one thread.
    unsafe {
        let entry = libc::getpwnam(user.as_ptr()).as_ref()?;
        Some(Identity {
            uid: entry.pw_uid,
            gid: entry.pw_gid,
        })
    }
}

fn find_group(group: &str) -> Option<libc::gid_t> {
    let group = CString::new(group).ok()?;
    // SAFETY: as for `getpwnam` above.
    unsafe { Some(libc::getgrnam(group.as_ptr()).as_ref()?.gr_gid) }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Set {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn checked(what: &CStr, result: libc::c_int) -> Result<(), String> {
    if result == 0 {
        return Ok(());
    }
    let what = what.to_string_lossy();
    let error = plain_error(&io::Error::last_os_error());
    Err(format!("{what} failed ({error}), aborting."))
}

/// Changes to that user and keeps those of [`KEPT`] that the process has, in every set, so that
/// programs which it starts have them too. Gives `files` to that user first, and drops other
/// groups. Call it while there is one thread.
pub fn become_user(identity: Identity, files: &[&Path]) -> Result<(), String> {
    for file in files {
        std::os::unix::fs::chown(file, Some(identity.uid), Some(identity.gid)).map_err(
            |error| {
                let (file, error) = (file.display(), plain_error(&error));
                format!("{file}: chown failed ({error}), aborting.")
            },
        )?;
    }
    // SAFETY: no pointers but to live variables of the types that the kernel wants; header and sets
    // as in linux/capability.h.
    unsafe {
        let mut header = Header {
            version: VERSION_3,
            pid: 0,
        };
        let mut sets = [Set::default(); 2];
        let got = libc::syscall(libc::SYS_capget, &mut header, sets.as_mut_ptr());
        checked(c"capget", got as libc::c_int)?;
        let mut kept = [Set::default(); 2];
        for (_, number) in KEPT {
            let (word, bit) = ((number / 32) as usize, 1 << (number % 32));
            if sets[word].permitted & bit != 0 {
                kept[word].permitted |= bit;
            }
        }
        for set in &mut kept {
            (set.effective, set.inheritable) = (set.permitted, set.permitted);
        }
        let is_kept = |number: u32| {
            let set = kept.get((number / 32) as usize);
            set.is_some_and(|set| set.permitted & (1 << (number % 32)) != 0)
        };
        // Done while the process still has the privilege for it. The kernel knows fewer than 64
        // capabilities; the first unknown one ends the loop.
        for number in 0..64u32 {
            let one = libc::c_ulong::from(number);
            if !is_kept(number) && libc::prctl(libc::PR_CAPBSET_DROP, one, NONE, NONE, NONE) != 0 {
                let error = io::Error::last_os_error();
                if error.raw_os_error() == Some(libc::EINVAL) {
                    break;
                }
                checked(c"dropping capabilities", -1)?;
            }
        }
        let yes: libc::c_ulong = 1;
        let kept_on = libc::prctl(libc::PR_SET_KEEPCAPS, yes, NONE, NONE, NONE);
        checked(c"prctl", kept_on)?;
        checked(c"setgroups", libc::setgroups(0, std::ptr::null()))?;
        let (uid, gid) = (identity.uid, identity.gid);
        checked(c"setresgid", libc::setresgid(gid, gid, gid))?;
        checked(c"setresuid", libc::setresuid(uid, uid, uid))?;
        let set = libc::syscall(libc::SYS_capset, &mut header, kept.as_ptr());
        checked(c"capset", set as libc::c_int)?;
        for number in (0..64u32).filter(|number| is_kept(*number)) {
            let raise = libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong;
            let one = libc::c_ulong::from(number);
            let raised = libc::prctl(libc::PR_CAP_AMBIENT, raise, one, NONE, NONE);
            checked(c"raising capabilities", raised)?;
        }
        // So that a crash leaves a core file, and /proc/self still belongs to the process's user.
        checked(
            c"prctl",
            libc::prctl(libc::PR_SET_DUMPABLE, yes, NONE, NONE, NONE),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found() {
        let nobody = find("nobody").expect("every system has it");
        assert_ne!(nobody.uid, 0);
        assert_eq!(find("no such user"), None);
        assert_eq!(find_group("root"), Some(0));
        let parsed = parse("nobody:root");
        if !rustix::process::getuid().is_root() {
            assert_eq!(parsed, Err("only root can use --user option".into()));
            return;
        }
        assert_eq!(parsed, Ok(Identity { gid: 0, ..nobody }));
        assert_eq!(parse(" nobody"), Ok(nobody));
        assert_eq!(parse("nobody:"), Ok(nobody));
        assert_eq!(parse(":root"), Ok(Identity { uid: 0, gid: 0 }));
        assert_eq!(parse("x-1"), Err("user x-1 not found, aborting.".into()));
        assert_eq!(parse(":y-1"), Err("group y-1 not found, aborting.".into()));
        assert!(parse("a\0b").is_err());
    }
}
