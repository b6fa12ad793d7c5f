//! `Interface.bfd`: what a monitor of an interface is to do.

use super::address::Mac;
use super::problem::{Options, Problems};
use bfd::session::{MOST_INTERVAL_MS, Settings};
use ovsdb::vswitch;
use std::net::Ipv4Addr;

/// The keys.
const KEYS: [&str; 14] = [
    "enable",
    "min_rx",
    "min_tx",
    "decay_min_rx",
    "forwarding_if_rx",
    "cpath_down",
    "check_tnl_key",
    "bfd_local_src_mac",
    "bfd_local_dst_mac",
    "bfd_remote_dst_mac",
    "bfd_src_ip",
    "bfd_dst_ip",
    "mult",
    "oam",
];

/// Reads the column. None: the interface is not monitored.
pub fn read(interface: &vswitch::Interface, problems: &mut Problems) -> Option<Settings> {
    let mut options = Options::new(
        "Interface",
        &interface.name,
        "bfd",
        &interface.bfd,
        problems,
    );
    options.unknown(&KEYS);
    if !options.boolean("enable", false) {
        return None;
    }
    let most = i64::from(MOST_INTERVAL_MS);
    let mut ms = |key: &str, default: u32, least: i64| {
        options.integer(key, default.into(), least..=most) as u32
    };
    let defaults = Settings::default();
    let (min_rx_ms, min_tx_ms) = (
        ms("min_rx", defaults.min_rx_ms, 1),
        ms("min_tx", defaults.min_tx_ms, 1),
    );
    let mut decay_min_rx_ms = ms("decay_min_rx", 0, 0);
    if (1..min_rx_ms).contains(&decay_min_rx_ms) {
        options.complain(
            "decay_min_rx",
            format!("cannot be less than min_rx, {min_rx_ms} ms, ignoring it"),
        );
        decay_min_rx_ms = 0;
    }
    let mut mac = |key: &str| {
        let text = options.text(key)?;
        match text.parse::<Mac>() {
            Ok(mac) if !mac.is_zero() => Some(mac.0),
            _ => {
                options.complain(
                    key,
                    format!("\"{text}\" is not an Ethernet address, ignoring it"),
                );
                None
            }
        }
    };
    let (local_src_mac, local_dst_mac, remote_dst_mac) = (
        mac("bfd_local_src_mac"),
        mac("bfd_local_dst_mac").unwrap_or(defaults.local_dst_mac),
        mac("bfd_remote_dst_mac"),
    );
    let mut ip = |key: &str, default: [u8; 4]| {
        let Some(text) = options.text(key) else {
            return default;
        };
        match text.parse::<Ipv4Addr>() {
            Ok(address) => address.octets(),
            Err(_) => {
                let default_text = Ipv4Addr::from(default);
                options.complain(
                    key,
                    format!("\"{text}\" is not an IPv4 address, using {default_text}"),
                );
                default
            }
        }
    };
    let (src_ip, dst_ip) = (
        ip("bfd_src_ip", defaults.src_ip),
        ip("bfd_dst_ip", defaults.dst_ip),
    );
    Some(Settings {
        min_rx_ms,
        min_tx_ms,
        decay_min_rx_ms,
        forwarding_if_rx: options.boolean("forwarding_if_rx", false),
        cpath_down: options.boolean("cpath_down", false),
        multiplier: options.integer("mult", defaults.multiplier.into(), 1..=255) as u8,
        check_tnl_key: (interface.bfd.contains_key("check_tnl_key"))
            .then(|| options.boolean("check_tnl_key", false)),
        local_src_mac,
        local_dst_mac,
        remote_dst_mac,
        src_ip,
        dst_ip,
        oam: options.boolean("oam", false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> (Option<Settings>, Vec<String>) {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let interface = vswitch::Interface {
            name: "p1".into(),
            bfd: pairs.iter().map(pair).collect(),
            ..Default::default()
        };
        let mut problems = Problems::default();
        let settings = read(&interface, &mut problems);
        let told = problems.0.iter().map(ToString::to_string).collect();
        (settings, told)
    }

    #[test]
    fn without_enable_there_is_none() {
        assert_eq!(of(&[]), (None, vec![]));
        assert_eq!(of(&[("min_rx", "0")]), (None, vec![]));
        let (settings, told) = of(&[("enabled", "true")]);
        assert_eq!((settings, told.len()), (None, 1));
        assert!(told[0].starts_with("interface p1 bfd:enabled: there is no such key"));
        let defaults = (Some(Settings::default()), vec![]);
        assert_eq!(of(&[("enable", "TRUE")]), defaults);
    }

    #[test]
    fn every_key_is_read() {
        let (settings, told) = of(&[
            ("enable", "true"),
            ("min_rx", "200"),
            ("min_tx", "300"),
            ("decay_min_rx", "400"),
            ("forwarding_if_rx", "true"),
            ("cpath_down", "true"),
            ("mult", "5"),
            ("check_tnl_key", "true"),
            ("bfd_local_src_mac", "02:00:00:00:00:01"),
            ("bfd_local_dst_mac", "02:00:00:00:00:02"),
            ("bfd_remote_dst_mac", "02:00:00:00:00:03"),
            ("bfd_src_ip", "10.0.0.1"),
            ("bfd_dst_ip", "10.0.0.2"),
            ("oam", "true"),
        ]);
        let wanted = Settings {
            min_rx_ms: 200,
            min_tx_ms: 300,
            decay_min_rx_ms: 400,
            forwarding_if_rx: true,
            cpath_down: true,
            multiplier: 5,
            check_tnl_key: Some(true),
            local_src_mac: Some([2, 0, 0, 0, 0, 1]),
            local_dst_mac: [2, 0, 0, 0, 0, 2],
            remote_dst_mac: Some([2, 0, 0, 0, 0, 3]),
            src_ip: [10, 0, 0, 1],
            dst_ip: [10, 0, 0, 2],
            oam: true,
        };
        assert_eq!((settings, told), (Some(wanted), vec![]));
    }

    #[test]
    fn bad_values_are_told_and_become_defaults() {
        let (settings, told) = of(&[
            ("enable", "true"),
            ("min_rx", "0"),
            ("min_tx", "soon"),
            ("decay_min_rx", "9999999999"),
            ("mult", "256"),
            ("bfd_local_src_mac", "02:00"),
            ("bfd_src_ip", "fd00::1"),
        ]);
        let settings = settings.unwrap();
        assert_eq!(
            (settings.min_rx_ms, settings.min_tx_ms, settings.multiplier),
            (1, 100, 255)
        );
        assert_eq!(settings.src_ip, [169, 254, 1, 1]);
        assert_eq!(told.len(), 6, "{told:?}");
        let (settings, told) = of(&[("enable", "true"), ("decay_min_rx", "500")]);
        assert_eq!(settings, Some(Settings::default()));
        assert_eq!(
            told,
            ["interface p1 bfd:decay_min_rx: cannot be less than min_rx, 1000 ms, ignoring it"]
        );
    }
}
