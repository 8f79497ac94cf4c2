//! Reads of uninitialized bytes.
//!
//! They are reported at the load. Global memory keeps its state between launches, including writes by the host. Local memory starts uninitialized in
//! each group, and private memory at each declaration.

use super::bounds::details;
use super::{Check, FindingCollector, FindingKind, GroupContext, Kind, MemoryAccess, Touch, Whole};
use crate::exec::Shared;
use crate::memory::address::PointerSpace;

/// Check for reads of memory that nothing wrote.
pub struct Uninitialized {
    /// One byte per byte of local memory: 1 if written.
    local: Vec<u8>,
    /// Four bits per word and lane; the lanes of a word are adjacent.
    private: Vec<u8>,
    /// By argument: whether all of the buffer was written before the launch.
    complete: Vec<bool>,
}

/// A span is checked as a whole if it is at most this many times as long as the bytes that the lanes access.
const SPAN: usize = 4;

impl Uninitialized {
    /// Nothing written yet.
    pub fn new(shared: &Shared<'_>) -> Uninitialized {
        let complete =
            |b: &crate::exec::Buffer| b.allocation.is_range_written(b.start as usize, b.bytes as usize);
        Uninitialized {
            local: vec![0; shared.local_bytes as usize],
            private: Vec::new(),
            complete: shared.buffers.iter().map(|b| b.as_ref().is_some_and(complete)).collect(),
        }
    }

    /// Returns whether the whole span was written, if this can be determined at once.
    fn is_span_written(&self, whole: &Whole<'_>, cx: &GroupContext<'_>) -> bool {
        let span = whole.places.clone();
        let short = span.len() <= SPAN * whole.touched(cx);
        match whole.space {
            PointerSpace::Constant => true,
            PointerSpace::Global => {
                let buffer = cx.shared.buffers.get(whole.object as usize).and_then(Option::as_ref);
                short && buffer.is_some_and(|b| b.allocation.is_range_written(span.start, span.len()))
            }
            PointerSpace::Local => short && self.local.get(span).is_some_and(|b| !b.contains(&0)),
            PointerSpace::Private => {
                let rows = span.start / 4..span.end.div_ceil(4);
                let lanes = cx.mask.range();
                let row = |r: usize| self.private.get(r * cx.lanes + lanes.start..r * cx.lanes + lanes.end);
                rows.len() <= SPAN * (whole.bytes as usize).div_ceil(4)
                    && rows
                        .into_iter()
                        .all(|r| row(r).is_some_and(|w| w.iter().fold(0xf, |all, w| all & w) == 0xf))
            }
        }
    }

    /// Records the writes of all running lanes, if they write one span or the same bytes of each lane.
    fn write_span(&mut self, whole: &Whole<'_>, cx: &GroupContext<'_>) -> bool {
        let span = whole.places.clone();
        let words = span.start.is_multiple_of(4) && span.len().is_multiple_of(4);
        match whole.space {
            PointerSpace::Constant => true,
            PointerSpace::Global if whole.is_consecutive(cx) => {
                let buffer = cx.shared.buffers.get(whole.object as usize).and_then(Option::as_ref);
                if let Some(b) = buffer {
                    b.allocation.mark_written(span.start, span.len());
                }
                true
            }
            PointerSpace::Local if whole.is_consecutive(cx) => {
                if let Some(b) = self.local.get_mut(span) {
                    b.fill(1);
                }
                true
            }
            PointerSpace::Private if words && span.len() == whole.bytes as usize && cx.mask.is_dense() => {
                let lanes = cx.mask.range();
                for r in span.start / 4..span.end / 4 {
                    let row = r * cx.lanes;
                    if let Some(w) = self.private.get_mut(row + lanes.start..row + lanes.end) {
                        w.fill(0xf);
                    }
                }
                true
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn is_written(&self, touch: &Touch, bytes: u32, cx: &GroupContext<'_>) -> bool {
        let (at, n) = (touch.place as usize, bytes as usize);
        match touch.space {
            PointerSpace::Constant => true,
            PointerSpace::Local => self.local.get(at..at + n).is_none_or(|b| b.iter().all(|w| *w != 0)),
            PointerSpace::Private => (at..at + n).all(|b| {
                self.private.get(b / 4 * cx.lanes + touch.lane).is_none_or(|w| w >> (b % 4) & 1 != 0)
            }),
            PointerSpace::Global => {
                let buffer = cx.shared.buffers.get(touch.object as usize).and_then(Option::as_ref);
                buffer.is_none_or(|b| {
                    if at % 32 + n <= 32 {
                        return b.allocation.is_written(at, n);
                    }
                    (at..at + n).all(|i| b.allocation.is_written(i, 1))
                })
            }
        }
    }

    #[inline(always)]
    fn write(&mut self, touch: &Touch, bytes: u32, cx: &GroupContext<'_>) {
        let (at, n) = (touch.place as usize, bytes as usize);
        match touch.space {
            PointerSpace::Constant => {}
            PointerSpace::Local => {
                if let Some(b) = self.local.get_mut(at..at + n) {
                    b.fill(1);
                }
            }
            PointerSpace::Private => {
                for b in at..at + n {
                    if let Some(w) = self.private.get_mut(b / 4 * cx.lanes + touch.lane) {
                        *w |= 1 << (b % 4);
                    }
                }
            }
            PointerSpace::Global => {
                if let Some(b) = cx.shared.buffers.get(touch.object as usize).and_then(Option::as_ref) {
                    b.allocation.mark_written(at, n);
                }
            }
        }
    }
}

impl Check for Uninitialized {
    fn start_group(&mut self, cx: &GroupContext<'_>) {
        self.local.fill(0);
        self.private.clear();
        self.private.resize(cx.shared.code.private_bytes.div_ceil(4) as usize * cx.lanes, 0);
        for (offset, bytes) in &cx.shared.private_arguments {
            for b in *offset as usize..*offset as usize + bytes.len() {
                let row = b / 4 * cx.lanes;
                self.private[row..row + cx.lanes].iter_mut().for_each(|w| *w |= 1 << (b % 4));
            }
        }
    }

    fn undefine(&mut self, offset: u32, bytes: u32, cx: &GroupContext<'_>) {
        for row in offset as usize / 4..(offset + bytes).div_ceil(4) as usize {
            let lanes = cx.mask.range();
            if cx.mask.is_dense() {
                let row = row * cx.lanes;
                if let Some(w) = self.private.get_mut(row + lanes.start..row + lanes.end) {
                    w.fill(0);
                }
                continue;
            }
            for lane in cx.mask.lanes() {
                if let Some(w) = self.private.get_mut(row * cx.lanes + lane) {
                    *w = 0;
                }
            }
        }
    }

    fn settles(&mut self, whole: &Whole<'_>, cx: &GroupContext<'_>) -> bool {
        let complete = whole.space == PointerSpace::Global
            && self.complete.get(whole.object as usize).copied().unwrap_or(false);
        if complete {
            return true;
        }
        match whole.kind {
            Kind::Load => !whole.reads || self.is_span_written(whole, cx),
            Kind::Store => self.write_span(whole, cx),
            Kind::Atomic => false,
        }
    }

    fn access(&mut self, access: &MemoryAccess<'_>, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        for touch in access.touches.iter().filter(|t| t.inside) {
            if access.reads && !self.is_written(touch, access.bytes, cx) {
                report.add(FindingKind::Uninitialized, access.pc, || {
                    let (name, _) = cx.object(touch.space, touch.object);
                    let message = format!(
                        "read of {} bytes at offset {} of {} `{name}`, which were never written",
                        access.bytes,
                        touch.offset,
                        touch.space.name()
                    );
                    details(message, touch, access.bytes, name, cx)
                });
            }
            if access.kind != Kind::Load {
                self.write(touch, access.bytes, cx);
            }
        }
    }
}
