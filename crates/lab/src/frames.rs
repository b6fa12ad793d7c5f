//! Capture files for ports that feed themselves.

use crate::Error;
use crate::settings::{JobKind, Order, Settings};
use crate::subject::{ROUTER, route, station};
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Most frames of a capture. Ports hold them all in buffers of 2 KiB each.
pub const MOST_FRAMES: u64 = 1 << 17;
/// Fewest frames of a capture, so that bursts are full.
const LEAST_FRAMES: u64 = 256;

/// Destination of a flow, by what the switch looks at.
pub struct Destination {
    /// Ethernet.
    pub ethernet: [u8; 6],
    /// IPv4.
    pub address: Ipv4Addr,
    /// UDP.
    pub port: u16,
}

/// Where a flow goes. `to` is the port that it leaves from.
pub fn destination(settings: &Settings, to: u16, flow: u64) -> Destination {
    let ethernet = |number: u64| {
        let bytes = number.to_be_bytes();
        bytes[2..].try_into().expect("six bytes")
    };
    // Whoever routes takes only what is addressed to it, and nobody else looks at that.
    let plain = Destination {
        ethernet: ethernet(u64::from_str_radix(&ROUTER.replace(':', ""), 16).unwrap_or(0)),
        address: Ipv4Addr::from(0x0A01_0000_u32.wrapping_add(flow as u32)),
        port: 2048,
    };
    match settings.job {
        JobKind::Stations => Destination {
            ethernet: ethernet(station(to, flow as u32, settings.flows as u32)),
            address: Ipv4Addr::new(10, 0, 0, 2),
            ..plain
        },
        JobKind::Routes => Destination {
            address: Ipv4Addr::from(u32::from(route(flow as u32)) + 1),
            ..plain
        },
        // 64 ports of each address, as rules of services have.
        JobKind::Rules => Destination {
            address: Ipv4Addr::from(0x0A01_0000 + (flow >> 6) as u32),
            port: 2048 + (flow & 63) as u16,
            ..plain
        },
        JobKind::Cross | JobKind::Copies | JobKind::Given => plain,
    }
}

/// A UDP frame without its check sequence. `length` is 60 or more.
pub fn frame(length: usize, to: &Destination, source_port: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(length);
    frame.extend(to.ethernet);
    frame.extend([2, 0, 0, 1, 0, 0]);
    frame.extend([8, 0]);
    let total = (length - 14) as u16;
    let mut header = [0_u8; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[8] = 64;
    header[9] = 17;
    header[12..16].copy_from_slice(&[10, 0, 0, 1]);
    header[16..20].copy_from_slice(&to.address.octets());
    let mut sum: u32 = header
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame.extend(header);
    frame.extend(source_port.to_be_bytes());
    frame.extend(to.port.to_be_bytes());
    frame.extend((total - 20).to_be_bytes());
    // No checksum.
    frame.extend([0, 0]);
    frame.resize(length, 0);
    frame
}

/// Writes the capture of a cell into a directory, if it is not there, and returns its path, which
/// is the same for the same frames. `to` is the port that they leave from.
pub fn capture(directory: &Path, settings: &Settings, to: u16) -> Result<PathBuf, Error> {
    let count = settings
        .flows
        .max(LEAST_FRAMES)
        .next_multiple_of(settings.flows);
    let name = format!(
        "{:?}-{:?}-{}-flows-{}-bytes-to-{to}.pcap",
        settings.job, settings.order, settings.flows, settings.size
    );
    let path = directory.join(name.to_lowercase());
    if path.exists() {
        return Ok(path);
    }
    let mut flows: Vec<u64> = (0..count).map(|n| n % settings.flows).collect();
    if settings.order != Order::InTurn {
        draw(&mut flows, settings);
    }
    let length = usize::from(settings.size) - 4;
    let frames = flows.iter().map(|flow| {
        let to = destination(settings, to, *flow);
        frame(length, &to, 1024 + (flow & 0x3FFF) as u16)
    });
    write(&path, frames).map_err(|error| Error::file("write", &path, error))?;
    Ok(path)
}

/// Draws flows at random, equally or by Zipf's law with the exponent 1.1, always the same ones.
fn draw(flows: &mut [u64], settings: &Settings) {
    let weight = |k: u64| match settings.order {
        Order::Zipf => ((k + 1) as f64).powf(-1.1),
        _ => 1.0,
    };
    let mut sums = Vec::with_capacity(settings.flows as usize);
    let mut sum = 0.0;
    for k in 0..settings.flows {
        sum += weight(k);
        sums.push(sum);
    }
    let mut state = 1_u64;
    for flow in flows {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let at = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        *flow = sums.partition_point(|s| *s <= at) as u64;
    }
}

/// Writes a capture file under another name first, so that a file that is there is whole.
fn write(path: &Path, frames: impl Iterator<Item = Vec<u8>>) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = BufWriter::new(std::fs::File::create(&new)?);
    let words = [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    for word in words {
        file.write_all(&word.to_le_bytes())?;
    }
    for frame in frames {
        let length = frame.len() as u32;
        for word in [0, 0, length, length] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&frame)?;
    }
    file.into_inner()?.sync_data()?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of RFC 1071's arithmetic sums to all ones.
    #[test]
    fn frames_are_whole() {
        let settings = Settings {
            job: JobKind::Stations,
            flows: 1000,
            ..Settings::default()
        };
        let to = destination(&settings, 2, 258);
        let frame = frame(60, &to, 1024);
        assert_eq!(frame.len(), 60);
        assert_eq!(frame[..6], [2, 0, 0, 2, 1, 2]);
        let mut sum: u32 = frame[14..34]
            .chunks(2)
            .map(|p| u32::from(u16::from_be_bytes([p[0], p[1]])))
            .sum();
        sum = (sum & 0xFFFF) + (sum >> 16);
        assert_eq!(sum, 0xFFFF);
        assert_eq!(u16::from_be_bytes([frame[16], frame[17]]), 46);
        assert_eq!(u16::from_be_bytes([frame[38], frame[39]]), 26);
    }

    #[test]
    fn captures_have_all_flows() {
        let directory = tempfile::tempdir().unwrap();
        for (flows, order) in [
            (1, Order::InTurn),
            (100, Order::InTurn),
            (1000, Order::Zipf),
        ] {
            let settings = Settings {
                flows,
                order,
                job: JobKind::Stations,
                ..Settings::default()
            };
            let path = capture(directory.path(), &settings, 2).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let frames: Vec<_> = bytes[24..].chunks(76).collect();
            assert!(
                frames.len() as u64 >= LEAST_FRAMES && (frames.len() as u64).is_multiple_of(flows)
            );
            let mut seen: Vec<_> = frames.iter().map(|f| &f[16..22]).collect();
            seen.sort();
            seen.dedup();
            if order == Order::InTurn {
                assert_eq!(seen.len() as u64, flows);
            } else {
                assert!(seen.len() > 100 && (seen.len() as u64) < flows);
            }
            assert_eq!(capture(directory.path(), &settings, 2).unwrap(), path);
        }
    }
}
