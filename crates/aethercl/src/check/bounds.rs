//! Accesses outside their object, misaligned accesses, and accesses to freed memory.

use super::report::Details;
use super::{
    Check, FindingCollector, FindingKind, GroupContext, Kind, MemoryAccess, Outside, Touch, UNKNOWN, Whole,
};
use crate::memory::address::{GLOBAL, PointerSpace};

/// Check for accesses outside of their buffer or variable.
pub struct Bounds;

impl Check for Bounds {
    fn index(
        &mut self,
        pc: usize,
        index: &dyn Fn(usize) -> u64,
        len: u32,
        cx: &GroupContext<'_>,
        report: &mut FindingCollector,
    ) {
        for lane in cx.mask.lanes() {
            let i = index(lane) as i64;
            if i < 0 || i >= i64::from(len) {
                report.add(FindingKind::IndexOutside, pc, || Details {
                    message: format!("index {i} into an array of {len} elements inside of something larger"),
                    items: vec![cx.item(lane)],
                    object: String::new(),
                    offset: i,
                    bytes: 0,
                    values: Vec::new(),
                });
            }
        }
    }

    fn outside_image(
        &mut self,
        pc: usize,
        outside: &Outside<'_>,
        cx: &GroupContext<'_>,
        report: &mut FindingCollector,
    ) {
        let (kind, what) = match outside.writes {
            true => (FindingKind::WriteOutside, "write"),
            false => (FindingKind::ReadOutside, "read without an addressing mode"),
        };
        report.add(kind, pc, || {
            let object = cx.touch(outside.lane, outside.base, 1).object;
            let (name, _) = cx.object(PointerSpace::Global, object);
            let place = outside.image.place(outside.at);
            Details {
                message: format!("{what} of the texel of `{name}` at {place}"),
                items: vec![cx.item(outside.lane)],
                object: name,
                offset: outside.at[0],
                bytes: outside.image.format.bytes() as u32,
                values: Vec::new(),
            }
        });
    }

    fn settles(&mut self, _whole: &Whole<'_>, _cx: &GroupContext<'_>) -> bool {
        true
    }

    fn access(&mut self, access: &MemoryAccess<'_>, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        for touch in access.touches {
            if !touch.inside {
                outside(access, touch, cx, report);
            } else if touch.at & (u64::from(access.align) - 1) != 0 {
                report.add(FindingKind::Misaligned, access.pc, || {
                    let (name, _) = cx.object(touch.space, touch.object);
                    let message = format!(
                        "{} of {} bytes at offset {} of {} `{name}`, whose type requires multiples of {}",
                        verb(access.kind),
                        access.bytes,
                        touch.offset,
                        touch.space.name(),
                        access.align
                    );
                    details(message, touch, access.bytes, name, cx)
                });
            }
        }
    }
}

/// Returns a noun for the kind of access.
pub fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Load => "read",
        Kind::Store => "write",
        Kind::Atomic => "atomic operation",
    }
}

/// Returns the details of one work-item's access.
pub fn details(message: String, touch: &Touch, bytes: u32, object: String, cx: &GroupContext<'_>) -> Details {
    Details {
        message,
        items: vec![cx.item(touch.lane)],
        object,
        offset: touch.offset,
        bytes,
        values: Vec::new(),
    }
}

fn outside(access: &MemoryAccess<'_>, touch: &Touch, cx: &GroupContext<'_>, report: &mut FindingCollector) {
    let freed = if touch.space == PointerSpace::Global {
        cx.shared.memory.find_freed(touch.at & GLOBAL)
    } else {
        None
    };
    let kind = match (access.kind, &freed) {
        (_, Some(_)) if touch.object == UNKNOWN => FindingKind::UseAfterFree,
        (Kind::Load, _) => FindingKind::ReadOutside,
        _ => FindingKind::WriteOutside,
    };
    report.add(kind, access.pc, || {
        let what = verb(access.kind);
        let bytes = access.bytes;
        if touch.object == UNKNOWN {
            let place = cx.shared.memory.describe(touch.at & GLOBAL);
            let message = format!("{what} of {bytes} bytes at address {:#x}: {place}", touch.at & GLOBAL);
            return details(message, touch, bytes, String::new(), cx);
        }
        let (name, size) = cx.object(touch.space, touch.object);
        let message = format!(
            "{what} of {bytes} bytes at offset {} of {} `{name}`, which has {size} bytes",
            touch.offset,
            touch.space.name()
        );
        Details { values: access.values(touch, cx), ..details(message, touch, bytes, name, cx) }
    });
}
