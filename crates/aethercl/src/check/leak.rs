//! Memory that was never freed.

use super::{Finding, FindingKind};
use crate::memory::Memory;

/// Returns a finding for each allocation that is still alive, for the end of a program.
pub fn leaks(memory: &Memory) -> Vec<Finding> {
    let live = memory.live().into_iter();
    live.map(|(address, bytes, tag)| {
        let message = format!("`{tag}` ({bytes} bytes at {address:#x}) was never freed");
        Finding {
            kind: FindingKind::Leak,
            kernel: String::new(),
            file: String::new(),
            line: 0,
            column: 0,
            text: format!("leak: {message}"),
            message,
            items: Vec::new(),
            object: tag,
            offset: 0,
            bytes: bytes.min(u64::from(u32::MAX)) as u32,
            count: 1,
            values: Vec::new(),
        }
    })
    .collect()
}
