//! What guests and their front ends may write: rings with frames in them, and messages as QEMU
//! sends them.

use super::Corpus;

const GUEST: u64 = 0x1000;
/// Where buffers and tables are.
const BUFFERS: u64 = GUEST + 0x2000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Returns an input of the target `vhost`: features, operations, descriptors and heads of the ring,
/// buffers.
fn ring(
    features: u8,
    uses: [u8; 6],
    descriptors: &[(u64, u32, u16, u16)],
    heads: &[u16],
    buffers: &[u8],
) -> Vec<u8> {
    let mut page = vec![0; 2048];
    write_descriptors(&mut page, descriptors);
    page[514..516].copy_from_slice(&(heads.len() as u16).to_le_bytes());
    for (place, head) in page[516..].chunks_exact_mut(2).zip(heads) {
        place.copy_from_slice(&head.to_le_bytes());
    }
    [&[features][..], &uses, &page, buffers].concat()
}

fn write_descriptors(to: &mut [u8], descriptors: &[(u64, u32, u16, u16)]) {
    for (place, (address, length, flags, next)) in to.chunks_exact_mut(16).zip(descriptors) {
        place[..8].copy_from_slice(&address.to_le_bytes());
        place[8..12].copy_from_slice(&length.to_le_bytes());
        place[12..14].copy_from_slice(&flags.to_le_bytes());
        place[14..].copy_from_slice(&next.to_le_bytes());
    }
}

fn message(request: u32, words: &[u64]) -> Vec<u8> {
    let head = [request, 1 | 8, words.len() as u32 * 8];
    let head = head.iter().flat_map(|word| word.to_ne_bytes());
    head.chain(words.iter().flat_map(|word| word.to_ne_bytes()))
        .collect()
}

pub fn write_rings(corpus: &Corpus) -> std::io::Result<()> {
    let alone: Vec<_> = (0..8).map(|n| (BUFFERS + n * 128, 100, 0, 0)).collect();
    let all: Vec<u16> = (0..8).collect();
    corpus.add(
        "frames",
        &[&ring(0x1d, [0, 2, 6, 0, 3, 0], &alone, &all, &[0; 64])],
    )?;
    let chain = [
        (BUFFERS, 12, NEXT, 1),
        (BUFFERS + 64, 300, NEXT, 2),
        (BUFFERS + 512, 1500, 0, 0),
    ];
    corpus.add(
        "chain",
        &[&ring(
            0x1f,
            [0, 3, 0, 0, 0, 0],
            &chain,
            &[0, 0],
            &[1, 1, 0, 0],
        )],
    )?;
    let mut table = vec![0; 256];
    write_descriptors(&mut table, &chain[..2]);
    table[28..30].copy_from_slice(&0u16.to_le_bytes());
    let indirect = [(BUFFERS, 32, INDIRECT, 0)];
    corpus.add(
        "table",
        &[&ring(0x1d, [0, 0, 3, 0, 0, 0], &indirect, &[0], &table)],
    )?;
    let room: Vec<_> = (0..8).map(|n| (BUFFERS + n * 200, 200, WRITE, 0)).collect();
    // Frames of 8 to 1000 bytes, in one buffer or in several; the second time with logging of
    // writes.
    let puts = [1, 9, 61, 125, 3, 1];
    corpus.add("puts", &[&ring(0x1f, puts, &room, &all, &[])])?;
    corpus.add("puts-logged", &[&ring(0xff, puts, &room, &all, &[])])
}

pub fn write_messages(corpus: &Corpus) -> std::io::Result<()> {
    let region = |guest: u64| [guest, 0x10_0000, 0x7f00_0000_0000 + guest, 0];
    let table = [&[2][..], &region(0), &region(0x10_0000)].concat();
    let set_up = [
        message(1, &[]),
        message(15, &[]),
        message(16, &[0x1000b]),
        message(17, &[]),
        message(3, &[]),
        message(2, &[1 << 32 | 1 << 30]),
        message(5, &table),
        message(8, &[256 << 32]),
        message(10, &[0]),
        message(
            9,
            &[
                1 << 32,
                0x7f00_0000_0000,
                0x7f00_0000_2000,
                0x7f00_0000_1000,
                0,
            ],
        ),
        message(12, &[0]),
        message(13, &[1]),
        message(18, &[1 << 32]),
    ];
    corpus.add("set-up", &[&set_up.concat()])?;
    let moving = [
        message(6, &[0x1000, 0]),
        message(19, &[0x5254_0012_3456]),
        message(20, &[9000]),
        message(11, &[0]),
        message(34, &[]),
    ];
    corpus.add("moving", &[&moving.concat()])?;
    let inflight = [
        message(31, &[0, 0, 256 << 16 | 2]),
        message(32, &[8256, 0, 256 << 16 | 2]),
    ];
    corpus.add("in-flight", &[&inflight.concat()])?;
    corpus.add(
        "nine-regions",
        &[&message(5, &[&[9][..], &region(0).repeat(9)].concat())],
    )
}
