//! Writes to buffers that the launch declared read-only.

use super::bounds::details;
use super::report::Details;
use super::{Access, Check, Context, FindingKind, Kind, Report, Whole};
use crate::memory::address::Space;

/// The check.
pub struct Contract;

impl Check for Contract {
    fn settles(&mut self, whole: &Whole<'_>, cx: &Context<'_>) -> bool {
        let buffer = || cx.shared.buffers.get(whole.object as usize).and_then(Option::as_ref);
        whole.kind == Kind::Load || whole.space != Space::Global || buffer().is_none_or(|b| b.writable)
    }

    fn access(&mut self, access: &Access<'_>, cx: &Context<'_>, report: &mut Report) {
        if access.kind == Kind::Load {
            return;
        }
        for touch in access.touches.iter().filter(|t| t.space == Space::Global && t.inside) {
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
