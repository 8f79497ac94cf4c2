//! Program-scope variables in one block of memory.

use crate::hir::{GlobalId, Program};
use crate::memory::address::{Space, object_pointer};

/// The program's variables laid out one behind another.
#[derive(Debug, Clone, Default)]
pub struct Constants {
    /// Their bytes as words, addresses filled in.
    pub words: Vec<u32>,
    /// Byte offset and size of each.
    pub places: Vec<(u32, u32)>,
    /// Some lie in writable memory.
    pub writable: bool,
}

impl Constants {
    /// Lays out the program's variables.
    pub fn new(program: &Program) -> Constants {
        let mut out = Constants::default();
        let mut bytes: Vec<u8> = Vec::new();
        for global in &program.globals {
            let offset = bytes.len().next_multiple_of(global.align.max(8) as usize);
            bytes.resize(offset, 0);
            bytes.extend(&global.data);
            out.places.push((offset as u32, global.data.len() as u32));
            out.writable |= !global.is_const && global.space == crate::types::Space::Global;
        }
        for (at, global) in program.globals.iter().enumerate() {
            for r in &global.relocations {
                let address = out.address(r.target).wrapping_add_signed(r.addend);
                let place = out.places[at].0 as usize + r.offset as usize;
                if let Some(to) = bytes.get_mut(place..place + 8) {
                    to.copy_from_slice(&address.to_le_bytes());
                }
            }
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        out.words = bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        out
    }

    /// The address of a variable.
    pub fn address(&self, id: GlobalId) -> u64 {
        object_pointer(Space::Constant, id.0, u64::from(self.places[id.0 as usize].0))
    }
}
