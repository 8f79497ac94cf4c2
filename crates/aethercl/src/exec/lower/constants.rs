//! Program-scope variables: constants in one block of memory, and those that kernels may write, each in an allocation of its own.

use crate::hir::{GlobalId, Program};
use crate::memory::Allocation;
use crate::memory::address::{PROGRAM_SCOPE, Space, object_pointer};
use std::sync::Arc;

/// Writable variables start at multiples of this many bytes, at least one such gap apart.
const GAP: u64 = 256;

/// The program's variables laid out one behind another.
#[derive(Debug, Default)]
pub struct Constants {
    /// The constants' bytes as words, addresses filled in.
    pub words: Vec<u32>,
    /// Byte offset and size of each; of a writable variable there are no bytes here.
    pub places: Vec<(u32, u32)>,
    /// Variables of global memory that are not `const`: they keep what launches write as long as the program lives.
    pub writable: Vec<Arc<Allocation>>,
    /// By variable its number in `writable`.
    writables: Vec<Option<usize>>,
}

impl Constants {
    /// Lays out the program's variables.
    pub fn new(program: &Program) -> Constants {
        let mut out = Constants::default();
        let mut bytes: Vec<u8> = Vec::new();
        let mut next = PROGRAM_SCOPE;
        for global in &program.globals {
            let offset = bytes.len().next_multiple_of(global.align.max(8) as usize);
            if !global.is_const && global.space == crate::types::Space::Global {
                let size = (global.data.len() as u64).max(1);
                out.writables.push(Some(out.writable.len()));
                out.writable.push(Arc::new(Allocation::new(next, size, &global.name)));
                out.places.push((offset as u32, 0));
                next = (next + size).next_multiple_of(GAP) + GAP;
                continue;
            }
            bytes.resize(offset, 0);
            bytes.extend(&global.data);
            out.writables.push(None);
            out.places.push((offset as u32, global.data.len() as u32));
        }
        for (at, global) in program.globals.iter().enumerate() {
            let mut data = global.data.clone();
            for r in &global.relocations {
                let address = out.address(r.target).wrapping_add_signed(r.addend);
                let place = r.offset as usize;
                if let Some(to) = data.get_mut(place..place + 8) {
                    to.copy_from_slice(&address.to_le_bytes());
                }
            }
            match out.writables[at] {
                Some(number) => out.writable[number].write(0, &data),
                None => {
                    let start = out.places[at].0 as usize;
                    if let Some(to) = bytes.get_mut(start..start + data.len()) {
                        to.copy_from_slice(&data);
                    }
                }
            }
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        out.words = bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        out
    }

    /// The address of a variable.
    pub fn address(&self, id: GlobalId) -> u64 {
        let at = id.0 as usize;
        match self.writables[at] {
            Some(number) => self.writable[number].address,
            None => object_pointer(Space::Constant, id.0, u64::from(self.places[at].0)),
        }
    }

    /// The number of a variable among those that kernels may write.
    pub fn number(&self, id: GlobalId) -> Option<usize> {
        self.writables[id.0 as usize]
    }
}
