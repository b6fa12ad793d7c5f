//! Classic capture files: a header of 24 bytes, then packets, each after a header of 16 bytes
//! (`pcap-savefile(5)`).

/// Bytes of the file's header.
const HEADER: usize = 24;
/// Bytes in front of each packet.
const RECORD: usize = 16;
/// Link type of Ethernet.
const ETHERNET: u32 = 1;

/// Returns the frames of an Ethernet capture, of either byte order and time resolution.
pub(super) fn frames(file: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let big = match file.get(..4) {
        Some([0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1]) => false,
        Some([0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d]) => true,
        _ => return Err("not a pcap file"),
    };
    let number = |at: usize| {
        let bytes = file.get(at..at + 4)?.try_into().ok()?;
        Some(if big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    };
    if number(20).map(|link| link & 0xffff) != Some(ETHERNET) {
        return Err("not a capture of Ethernet");
    }
    let mut frames = Vec::new();
    let mut at = HEADER;
    while at < file.len() {
        let (Some(captured), Some(whole)) = (number(at + 8), number(at + 12)) else {
            return Err("ends inside a packet");
        };
        let Some(frame) = file
            .get(at + RECORD..)
            .and_then(|rest| rest.get(..captured as usize))
        else {
            return Err("ends inside a packet");
        };
        if captured < whole {
            return Err("holds packets that were cut off");
        }
        frames.push(frame.to_vec());
        at += RECORD + captured as usize;
    }
    Ok(frames)
}

/// Writes a file with these frames.
pub(super) fn file<'f>(frames: impl Iterator<Item = &'f [u8]>) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, ETHERNET] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back() {
        let written = [vec![1; 60], vec![2; 1514], vec![3; 14]];
        let bytes = file(written.iter().map(|frame| &frame[..]));
        assert_eq!(frames(&bytes).unwrap(), written);
        let swapped: Vec<u8> = bytes[..HEADER]
            .chunks(4)
            .flat_map(|word| word.iter().rev().copied().collect::<Vec<_>>())
            .collect();
        assert_eq!(frames(&swapped).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn invalid_captures_have_an_error() {
        let bytes = file([&[7; 60][..]].into_iter());
        assert_eq!(frames(b"PK"), Err("not a pcap file"));
        assert_eq!(frames(&bytes[..20]), Err("not a capture of Ethernet"));
        for cut in [HEADER + 1, HEADER + RECORD, bytes.len() - 1] {
            assert_eq!(frames(&bytes[..cut]), Err("ends inside a packet"));
        }
        let mut short = bytes.clone();
        short[HEADER + 12] = 61;
        assert_eq!(frames(&short), Err("holds packets that were cut off"));
    }
}
