//! Data races: unordered accesses of two work-items to the same bytes, at least one of them a write.
//!
//! Shadow memory stores, for each granule (the size of the kernel's smallest access), the last write and the last reads: group, lane, and
//! the number of barriers with a matching fence that the group had passed. Within a group accesses on two sides of a
//! barrier are ordered, and so are those of a sub-group on two sides of a barrier of its own; between groups nothing orders them but atomic operations. Two writes of the same value are let
//! pass, as every device gives the same result.

use super::report::Details;
use super::shadow::Shadow;
use super::{Access, Check, Context, FindingKind, Kind, Report, Touch, Whole};
use crate::exec::Shared;
use crate::memory::address::Space;

/// Lane number that stands for several lanes.
const MANY: u32 = u32::MAX;

/// A sub-group's number that stands for several.
const SEVERAL: u16 = u16::MAX;

/// The last access to a granule.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// The group's number + 1; 0 for nobody, `MANY` for several.
    group: u32,
    lane: u32,
    epoch: u32,
    /// The sub-group's number; `SEVERAL` for more than one.
    sub: u16,
    /// Barriers of the fitting fence that the sub-group had passed by itself.
    sub_epoch: u16,
    /// Every access of this epoch was atomic.
    atomic: bool,
    /// Every access of this group was atomic.
    always_atomic: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Granule {
    write: Mark,
    read: Mark,
}

/// State of the check.
pub struct Races {
    /// log2 of the granule's size in bytes.
    shift: u32,
    local: Vec<Granule>,
    /// For each kernel argument, the index of its allocation in `global`.
    allocations: Vec<usize>,
    global: Vec<(u64, Shadow<Granule>)>,
    /// Allocations that some argument may write. Loads from the others race with nothing; a store to them is against the
    /// launch's contract.
    written: Vec<bool>,
    local_epoch: u32,
    global_epoch: u32,
    /// Work-items of a sub-group.
    sub_size: u32,
    /// Barriers that each sub-group of the group passed by itself: local, global.
    sub_epochs: Vec<[u16; 2]>,
    /// Races of the access being looked at: lane and the other side.
    hits: Vec<(usize, Other)>,
}

impl Races {
    /// Nothing touched yet.
    pub fn new(shared: &Shared<'_>) -> Races {
        let shift = shared.code.granule.max(1).trailing_zeros();
        let size = 1usize << shift;
        let (allocations, known) = number_allocations(shared);
        let written = known.iter().map(|(.., written)| *written).collect();
        let shadow =
            |(address, bytes, _): (u64, u64, bool)| (address, Shadow::new((bytes as usize).div_ceil(size)));
        let global = known.into_iter().map(shadow).collect();
        let local = vec![Granule::default(); (shared.local_bytes as usize).div_ceil(size)];
        let hits = Vec::new();
        let sub_size = shared.sub_group.max(1);
        let (local_epoch, global_epoch, sub_epochs) = (0, 0, Vec::new());
        Races {
            shift,
            local,
            allocations,
            global,
            written,
            local_epoch,
            global_epoch,
            sub_size,
            sub_epochs,
            hits,
        }
    }

    /// Whether work-groups of two threads conflict: both access the same granule, and one of them writes.
    pub fn conflicts(&self, other: &Races) -> bool {
        let clash = |(a, b): (&Granule, &Granule)| {
            let touched = |g: &Granule| g.write.group != 0 || g.read.group != 0;
            (a.write.group != 0 && touched(b)) || (b.write.group != 0 && touched(a))
        };
        self.global.iter().zip(&other.global).any(|((_, a), (_, b))| a.common(b).any(clash))
    }

    /// Records an access of one lane to bytes from `place` on, and collects its races.
    #[inline(always)]
    fn note(
        &mut self,
        lane: usize,
        (space, number): (Space, usize),
        places: (usize, usize),
        now: Mark,
        kind: Kind,
    ) {
        for at in places.0 >> self.shift..=(places.1 - 1) >> self.shift {
            let granule = match space {
                Space::Local => self.local.get_mut(at),
                _ => self.global.get_mut(number).and_then(|(_, shadow)| shadow.get(at)),
            };
            if let Some(other) = granule.and_then(|g| visit(g, now, kind)) {
                self.hits.push((lane, other));
            }
        }
    }

    /// Number of an argument's allocation in the shadow.
    fn number(&self, object: u32) -> usize {
        self.allocations.get(object as usize).copied().unwrap_or(usize::MAX)
    }

    fn mark(&self, lane: usize, space: Space, kind: Kind, cx: &Context<'_>) -> Mark {
        let sub = lane as u32 / self.sub_size;
        let passed = self.sub_epochs.get(sub as usize).copied().unwrap_or_default();
        Mark {
            sub: sub.min(u32::from(SEVERAL) - 1) as u16,
            sub_epoch: passed[usize::from(space != Space::Local)],
            group: cx.group_number() as u32 + 1,
            lane: lane as u32,
            epoch: if space == Space::Local { self.local_epoch } else { self.global_epoch },
            atomic: kind == Kind::Atomic,
            always_atomic: kind == Kind::Atomic,
        }
    }
}

/// Reports the hits (lane and the other side) that are no writes of the same value.
pub(super) fn report_hits(
    hits: Vec<(usize, Other)>,
    access: &Access<'_>,
    cx: &Context<'_>,
    report: &mut Report,
) {
    let group = cx.group_number() as u32 + 1;
    let mut last = None;
    for (lane, other) in hits {
        // One finding a lane.
        if last == Some(lane) {
            continue;
        }
        let Some(touch) = access.touches.iter().find(|t| t.lane == lane) else { continue };
        if access.kind == Kind::Store && other.wrote && same_value(access, touch, &other, group) {
            continue;
        }
        found(access, touch, &other, group, cx, report);
        last = Some(lane);
    }
}

/// By number of an argument the number of its allocation; and of each allocation address, size, and whether some argument may
/// write it.
pub(super) fn number_allocations(shared: &Shared<'_>) -> (Vec<usize>, Vec<(u64, u64, bool)>) {
    let mut known: Vec<(u64, u64, bool)> = Vec::new();
    let mut numbers = Vec::new();
    for buffer in &shared.buffers {
        let Some(buffer) = buffer else {
            numbers.push(usize::MAX);
            continue;
        };
        let address = buffer.allocation.address;
        let number = known.iter().position(|(a, ..)| *a == address).unwrap_or_else(|| {
            known.push((address, buffer.allocation.bytes, false));
            known.len() - 1
        });
        known[number].2 |= buffer.writable;
        numbers.push(number);
    }
    (numbers, known)
}

/// The other side of a race.
#[derive(Debug, Clone, Copy)]
pub(super) struct Other {
    /// The group's number + 1; 0 where it is one of several.
    pub group: u32,
    /// The work-item in it; none where it is one of several.
    pub lane: Option<u32>,
    /// What it did.
    pub wrote: bool,
}

impl Other {
    fn of(mark: &Mark, wrote: bool) -> Other {
        let known = mark.group != MANY;
        let group = if known { mark.group } else { 0 };
        Other { group, lane: (known && mark.lane != MANY).then_some(mark.lane), wrote }
    }
}

/// Records an access; returns the access that it races with.
#[inline(always)]
fn visit(granule: &mut Granule, now: Mark, kind: Kind) -> Option<Other> {
    let unordered = |m: &Mark| match m.group {
        0 => false,
        g if g != now.group => !(m.always_atomic && now.atomic),
        _ => {
            let within = m.sub == now.sub && m.sub_epoch != now.sub_epoch;
            m.epoch == now.epoch && m.lane != now.lane && !(m.atomic && now.atomic) && !within
        }
    };
    let mut other = None;
    if unordered(&granule.write) {
        other = Some(Other::of(&granule.write, true));
    }
    if kind == Kind::Load {
        let r = &mut granule.read;
        let same_epoch = r.group == now.group && r.epoch == now.epoch;
        if same_epoch && r.sub == now.sub && r.sub_epoch != now.sub_epoch {
            // What another sub-group races with in the one it races with in the other.
            *r = now;
            return other;
        }
        if same_epoch && (r.lane == now.lane || r.lane == MANY) {
            if r.sub != now.sub {
                r.sub = SEVERAL;
            }
            return other;
        }
        if r.group == 0 || (r.group == now.group && (r.epoch != now.epoch || r.lane == now.lane)) {
            *r = now;
        } else if r.group == now.group {
            r.lane = MANY;
            if r.sub != now.sub {
                r.sub = SEVERAL;
            }
        } else {
            r.group = MANY;
        }
        return other;
    }
    if other.is_none() && unordered(&granule.read) {
        other = Some(Other::of(&granule.read, false));
    }
    granule.write = after(&granule.write, now);
    other
}

/// The mark that stays after a write: plain ones are not forgotten over atomic ones, nor one lane over another.
fn after(before: &Mark, now: Mark) -> Mark {
    let mut mark = now;
    if before.group == now.group {
        mark.always_atomic &= before.always_atomic;
        if before.epoch == now.epoch {
            mark.atomic &= before.atomic || before.lane != now.lane;
            if before.lane != now.lane && now.atomic && before.atomic {
                mark.lane = MANY;
                if before.sub != now.sub {
                    mark.sub = SEVERAL;
                }
            }
        }
    } else if before.group != 0 && before.always_atomic && now.atomic {
        mark.group = MANY;
    }
    mark
}

impl Check for Races {
    fn start_group(&mut self, _cx: &Context<'_>) {
        self.local.fill(Granule::default());
        self.local_epoch = 0;
        self.global_epoch = 0;
        self.sub_epochs.clear();
    }

    fn sub_barrier(&mut self, flags: u32, cx: &Context<'_>) {
        self.sub_epochs.resize(cx.lanes.div_ceil(self.sub_size as usize), [0; 2]);
        let mut last = None;
        for sub in cx.mask.lanes().map(|lane| lane / self.sub_size as usize) {
            if last == Some(sub) {
                continue;
            }
            last = Some(sub);
            if let Some(passed) = self.sub_epochs.get_mut(sub) {
                // Where it can count no further it orders nothing.
                passed[0] = passed[0].saturating_add((flags & 1) as u16);
                passed[1] = passed[1].saturating_add((flags >> 1 & 1) as u16);
            }
        }
    }

    fn barrier(&mut self, _pc: usize, flags: u32, _cx: &Context<'_>, _report: &mut Report) {
        self.local_epoch += flags & 1;
        self.global_epoch += (flags >> 1) & 1;
    }

    fn races(&self) -> Option<&Races> {
        Some(self)
    }

    fn settles(&mut self, whole: &Whole<'_>, cx: &Context<'_>) -> bool {
        let number = self.number(whole.object);
        match whole.space {
            Space::Local => {}
            Space::Global => {
                if whole.kind == Kind::Load && !self.written.get(number).copied().unwrap_or(true) {
                    return true;
                }
            }
            _ => return true,
        }
        let first = self.mark(0, whole.space, whole.kind, cx);
        for lane in cx.mask.range() {
            if cx.mask.has(lane) {
                let place = whole.place(lane);
                let sub = (lane as u32 / self.sub_size) as u16;
                let mut now = Mark { lane: lane as u32, sub, ..first };
                if let Some(passed) = self.sub_epochs.get(usize::from(sub)) {
                    now.sub_epoch = passed[usize::from(whole.space != Space::Local)];
                }
                self.note(
                    lane,
                    (whole.space, number),
                    (place, place + whole.bytes as usize),
                    now,
                    whole.kind,
                );
            }
        }
        self.hits.is_empty()
    }

    fn access(&mut self, access: &Access<'_>, cx: &Context<'_>, report: &mut Report) {
        if self.hits.is_empty() {
            for touch in access.touches.iter().filter(|t| t.inside) {
                if matches!(touch.space, Space::Local | Space::Global) {
                    let now = self.mark(touch.lane, touch.space, access.kind, cx);
                    let start = touch.place as usize;
                    let to = (touch.space, self.number(touch.object));
                    self.note(touch.lane, to, (start, start + access.bytes as usize), now, access.kind);
                }
            }
        }
        report_hits(std::mem::take(&mut self.hits), access, cx, report);
    }
}

/// Whether what is written is what memory holds, or what the other lane writes in this very instruction.
pub(super) fn same_value(access: &Access<'_>, touch: &Touch, other: &Other, group: u32) -> bool {
    let size = access.ty.size();
    let elements = (access.bytes / size) as usize;
    let mask = u64::MAX >> (64 - 8 * size);
    let own = |e: usize| (access.stored)(touch.lane, e) & mask;
    let at = |e: usize| touch.at.wrapping_add(e as u64 * u64::from(size));
    // A lane that writes in this very instruction has not written yet.
    let is_twin = |t: &&Touch| other.group == group && other.lane == Some(t.lane as u32) && t.at == touch.at;
    match access.touches.iter().find(is_twin) {
        Some(t) => (0..elements).all(|e| (access.stored)(t.lane, e) & mask == own(e)),
        None => (0..elements).all(|e| (access.memory)(at(e), touch.lane) & mask == own(e)),
    }
}

fn found(
    access: &Access<'_>,
    touch: &Touch,
    other: &Other,
    group: u32,
    cx: &Context<'_>,
    report: &mut Report,
) {
    let between = other.group != group;
    let kind = if between { FindingKind::RaceBetweenGroups } else { FindingKind::RaceInGroup };
    report.add(kind, access.pc, || {
        let (name, _) = cx.object(touch.space, touch.object);
        let did = if other.wrote { "written" } else { "read" };
        let who = match between {
            true => "by another work-group",
            false => "by another work-item since the last barrier",
        };
        let does = match access.kind {
            Kind::Load => "read",
            Kind::Store => "written",
            Kind::Atomic => "changed atomically",
        };
        let message = format!(
            "offset {} of {} `{name}` is {does} here and was {did} {who}",
            touch.offset,
            touch.space.name()
        );
        let this = cx.item_of(cx.group_number(), touch.lane, does);
        let that = other
            .lane
            .and_then(|lane| cx.item_of(u64::from(other.group.checked_sub(1)?), lane as usize, did));
        let items = this.into_iter().chain(that).collect();
        let values = access.values(touch, cx);
        Details { message, items, object: name, offset: touch.offset, bytes: access.bytes, values }
    });
}
