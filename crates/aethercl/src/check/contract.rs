//! Writes to buffers that the launch declared read-only.

use super::bounds::details;
use super::report::Details;
use super::{Check, FindingCollector, FindingKind, GroupContext, Kind, MemoryAccess, Whole};
use crate::memory::address::PointerSpace;

/// Check for stores to buffers that are declared as read.
pub struct Contract;

impl Check for Contract {
    fn settles(&mut self, whole: &Whole<'_>, cx: &GroupContext<'_>) -> bool {
        let buffer = || cx.shared.buffers.get(whole.object as usize).and_then(Option::as_ref);
        whole.kind == Kind::Load || whole.space != PointerSpace::Global || buffer().is_none_or(|b| b.writable)
    }

    fn access(&mut self, access: &MemoryAccess<'_>, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        if access.kind == Kind::Load {
            return;
        }
        for touch in access.touches.iter().filter(|t| t.space == PointerSpace::Global && t.inside) {
            let buffer = cx.shared.buffers.get(touch.object as usize).and_then(Option::as_ref);
            if buffer.is_some_and(|b| !b.writable) {
                report.add(FindingKind::WriteToRead, access.pc, || {
                    let (name, _) = cx.object(touch.space, touch.object);
                    let message = format!(
                        "write at offset {} of `{name}`, which the launch declared as read",
                        touch.offset
                    );
                    let values = access.values(touch, cx);
                    Details { values, ..details(message, touch, access.bytes, name, cx) }
                });
            }
        }
    }
}
