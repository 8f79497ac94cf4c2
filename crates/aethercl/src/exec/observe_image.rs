//! Passes image reads and writes to the observer, each texel as a memory access.

use super::bytecode::{ImageRead, ImageWrite, Inst, MemType, READ, Reg, WRITE};
use super::group::Group;
use super::observer::Observer;
use crate::check::{GroupContext, Kind, MemoryAccess, Outside, Touch};
use crate::image::{MAX_TAPS, Taps};

/// Returns the memory type that a texel is transferred in.
fn moved_as(texel: u64) -> MemType {
    match texel {
        1 => MemType::U8,
        2 => MemType::U16,
        8 => MemType::B64,
        _ => MemType::B32,
    }
}

impl Group<'_> {
    fn image_context(&self) -> GroupContext<'_> {
        GroupContext {
            shared: self.shared,
            group: self.id,
            size: self.size,
            lanes: self.lanes,
            mask: &self.mask,
        }
    }

    /// Handles an image instruction before it runs; returns false for any other instruction.
    pub(super) fn observe_image(&self, o: &mut Observer, pc: usize, inst: &Inst) -> bool {
        let code = self.shared.code;
        match *inst {
            Inst::ReadImage { read, list } => self.observe_read(o, pc, read, code.listed(list, READ)),
            Inst::WriteImage { write, list } => self.observe_write(o, pc, write, code.listed(list, WRITE)),
            _ => return false,
        }
        true
    }

    fn observe_read(&self, o: &mut Observer, pc: usize, how: ImageRead, list: &[Reg]) {
        let Some((image, ..)) = self.image(list[4]) else { return };
        let base = self.lane_value(list[4], self.mask.lanes().next().unwrap_or(0));
        let taps: Vec<(usize, Taps)> =
            self.mask.lanes().map(|lane| (lane, self.taps(how, list, &image, lane))).collect();
        let cx = self.image_context();
        for (lane, taps) in taps.iter().filter(|(_, taps)| taps.undefined_outside) {
            if let Some(tap) = taps.list().iter().find(|tap| !image.holds(tap.at)) {
                let outside = Outside { lane: *lane, image: &image, base, at: tap.at, writes: false };
                o.checks.iter_mut().for_each(|c| c.outside_image(pc, &outside, &cx, &mut o.report));
            }
        }
        let bytes = image.format.bytes() as u32;
        let mut touched: Vec<Touch> = Vec::new();
        for i in 0..MAX_TAPS {
            let of = |(lane, taps): &(usize, Taps)| {
                let tap = taps.list().get(i).filter(|tap| image.holds(tap.at))?;
                Some(cx.touch(*lane, base.wrapping_add(image.offset(tap.at)), bytes))
            };
            let touches: Vec<Touch> = taps.iter().filter_map(of).collect();
            if !touches.is_empty() {
                self.show(o, pc, (Kind::Load, bytes), &touches, &|_, _| 0);
                touched.extend(touches);
            }
        }
        if let Some(counting) = &mut o.counting {
            let filtered = taps.iter().map(|(_, taps)| taps.list().len()).max().unwrap_or(1);
            counting.image(pc, Kind::Load, bytes, filtered as u64, self.mask.count() as u64, &mut touched);
        }
    }

    fn observe_write(&self, o: &mut Observer, pc: usize, how: ImageWrite, list: &[Reg]) {
        let Some((image, ..)) = self.image(list[0]) else { return };
        let base = self.lane_value(list[0], self.mask.lanes().next().unwrap_or(0));
        let cx = self.image_context();
        let bytes = image.format.bytes() as u32;
        let mut touches: Vec<Touch> = Vec::new();
        for lane in self.mask.lanes() {
            let at = self.written_place(list, lane);
            if image.holds(at) {
                touches.push(cx.touch(lane, base.wrapping_add(image.offset(at)), bytes));
                continue;
            }
            let outside = Outside { lane, image: &image, base, at, writes: true };
            o.checks.iter_mut().for_each(|c| c.outside_image(pc, &outside, &cx, &mut o.report));
        }
        let size = moved_as(bytes.into()).size() * 8;
        let stored = |lane: usize, element: usize| {
            (self.written_texel(how, list, &image, lane) >> (element as u32 * size).min(127)) as u64
        };
        if !touches.is_empty() {
            self.show(o, pc, (Kind::Store, bytes), &touches, &stored);
        }
        if let Some(counting) = &mut o.counting {
            counting.image(pc, Kind::Store, bytes, 1, self.mask.count() as u64, &mut touches);
        }
    }

    /// Passes one texel of each of several lanes to every check.
    fn show(
        &self,
        o: &mut Observer,
        pc: usize,
        (kind, bytes): (Kind, u32),
        touches: &[Touch],
        stored: &dyn Fn(usize, usize) -> u64,
    ) {
        let cx = self.image_context();
        let ty = moved_as(bytes.into());
        let memory = |at: u64, lane: usize| self.read_lane(at, ty, lane);
        let reads = kind == Kind::Load;
        let access = MemoryAccess {
            pc,
            kind,
            reads,
            ty,
            bytes,
            align: 1,
            touches,
            stored,
            memory: &memory,
            atomic: None,
        };
        o.checks.iter_mut().for_each(|c| c.access(&access, &cx, &mut o.report));
    }
}
