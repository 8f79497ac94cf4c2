//! What looks on while a group runs.

/// Looks on.
pub struct Observer {}

impl Observer {
    /// A group starts.
    pub fn start_group(&mut self, _id: [u64; 3], _size: [u64; 3], _arguments: &[(u32, Vec<u8>)]) {}
}

impl super::Group<'_> {
    pub(super) fn observe(&mut self, _pc: usize) {}
}
