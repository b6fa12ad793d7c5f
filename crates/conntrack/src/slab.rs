//! Storage in blocks: growing moves nothing, so that no packet waits for a copy of all connections.

/// No index.
pub(crate) const NONE: u32 = u32::MAX;
/// Entries in a block.
const BLOCK: usize = 64;

/// Entries by number; numbers of removed entries are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    blocks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub const fn new() -> Slab<T> {
        Slab {
            blocks: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns a number above all that are in use.
    pub fn end(&self) -> u32 {
        match self.blocks.last() {
            Some(last) => ((self.blocks.len() - 1) * BLOCK + last.len()) as u32,
            None => 0,
        }
    }

    pub fn insert(&mut self, entry: T) -> u32 {
        self.len += 1;
        if let Some(index) = self.free.pop() {
            self.blocks[index as usize / BLOCK][index as usize % BLOCK] = Some(entry);
            return index;
        }
        if self.blocks.last().is_none_or(|last| last.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let index = self.end();
        if let Some(last) = self.blocks.last_mut() {
            last.push(Some(entry));
        }
        index
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        let block = self.blocks.get(index as usize / BLOCK)?;
        block.get(index as usize % BLOCK)?.as_ref()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let block = self.blocks.get_mut(index as usize / BLOCK)?;
        block.get_mut(index as usize % BLOCK)?.as_mut()
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let block = self.blocks.get_mut(index as usize / BLOCK)?;
        let entry = block.get_mut(index as usize % BLOCK)?.take()?;
        self.free.push(index);
        self.len -= 1;
        Some(entry)
    }
}
