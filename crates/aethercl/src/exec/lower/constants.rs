//! Program-scope variables: constants in one block of memory, and writable variables, each in a separate allocation.

use crate::hir::{GlobalId, TranslationUnit};
use crate::memory::Allocation;
use crate::memory::address::{PROGRAM_SCOPE, PointerSpace, object_pointer};
use std::sync::Arc;

/// Alignment of writable variables in bytes, and the minimum gap between them.
const GAP: u64 = 256;

/// The program's variables in a contiguous layout.
#[derive(Debug, Default)]
pub struct Constants {
    /// The constants' bytes as words, with resolved addresses.
    pub words: Vec<u32>,
    /// Byte offset and size of each variable; a writable variable does not have bytes here.
    pub places: Vec<(u32, u32)>,
    /// Variables in global memory that are not `const`: they keep the written values for the lifetime of the program.
    pub writable: Vec<Arc<Allocation>>,
    /// Index in `writable` by variable.
    writables: Vec<Option<usize>>,
}

impl Constants {
    /// Lays out the program's variables.
    pub fn new(program: &TranslationUnit) -> Constants {
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

    /// Returns the address of a variable.
    pub fn address(&self, id: GlobalId) -> u64 {
        let at = id.0 as usize;
        match self.writables[at] {
            Some(number) => self.writable[number].address,
            None => object_pointer(PointerSpace::Constant, id.0, u64::from(self.places[at].0)),
        }
    }

    /// Returns the number of a variable in the list of those that kernels may write.
    pub fn number(&self, id: GlobalId) -> Option<usize> {
        self.writables[id.0 as usize]
    }
}
