//! Checks for errors that a GPU hides. Each check is one file behind [`Check`] and inspects every access of every work-item.

mod barrier;
mod bounds;
mod contract;
mod divide;
mod granule;
mod leak;
mod names;
mod order;
mod ordered;
mod race;
mod report;
mod shadow;
mod uninit;
mod whole;

pub use leak::leaks;
pub use race::Races;
pub use report::{Details, Finding, FindingCollector, FindingKind, ItemIds};
pub use whole::{Lanes, Whole};

use crate::exec::bytecode::{AtomicOp, MemType};
use crate::exec::{Mask, Shared};
use crate::hir::MemoryOrder;
use crate::image::Image;
use crate::memory::address::{self, GLOBAL, PointerSpace};

/// Selection of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checks {
    /// Accesses outside their object, misaligned accesses, and accesses to freed memory.
    pub bounds: bool,
    /// Reads of uninitialized bytes.
    pub uninitialized: bool,
    /// Unordered accesses of two work-items to the same bytes, at least one of them a write.
    pub races: bool,
    /// Barriers that not all work-items of a group reach.
    pub barriers: bool,
    /// Integer division by zero.
    pub division: bool,
    /// Writes to buffers that the launch declared read-only.
    pub contract: bool,
}

impl Checks {
    /// Selects no check.
    pub const NONE: Checks = Checks {
        bounds: false,
        uninitialized: false,
        races: false,
        barriers: false,
        division: false,
        contract: false,
    };
    /// Selects every check.
    pub const ALL: Checks = Checks {
        bounds: true,
        uninitialized: true,
        races: true,
        barriers: true,
        division: true,
        contract: true,
    };

    /// Returns true if at least one check is enabled.
    pub fn any(&self) -> bool {
        *self != Checks::NONE
    }
}

/// Kind of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads and writes in one operation.
    Atomic,
}

/// Target of one work-item's access.
#[derive(Debug, Clone, Copy)]
pub struct Touch {
    /// Lane that makes the access.
    pub lane: usize,
    /// The address.
    pub at: u64,
    /// Address space.
    pub space: PointerSpace,
    /// Index of the argument, or of the object in its space; [`UNKNOWN`] if it is not known.
    pub object: u32,
    /// Byte offset from the start of the object.
    pub offset: i64,
    /// Byte offset from the start of the allocation, or of the space.
    pub place: i64,
    /// Whether all bytes belong to the object.
    pub inside: bool,
}

/// The object of an invalid address.
pub const UNKNOWN: u32 = u32::MAX;

/// One memory instruction of the running work-items.
pub struct MemoryAccess<'a> {
    /// The instruction.
    pub pc: usize,
    /// Kind of access.
    pub kind: Kind,
    /// Whether the content of memory matters. False for stores, and for atomic operations that only replace it.
    pub reads: bool,
    /// Element type.
    pub ty: MemType,
    /// Bytes that each work-item accesses.
    pub bytes: u32,
    /// Alignment that the instruction assumes, in bytes.
    pub align: u32,
    /// One entry per running work-item, in order.
    pub touches: &'a [Touch],
    /// Returns the value that a lane stores in an element.
    pub stored: &'a dyn Fn(usize, usize) -> u64,
    /// Returns the current content of memory at an address, from the view of a lane.
    pub memory: &'a dyn Fn(u64, usize) -> u64,
    /// For an atomic operation: its kind and memory order.
    pub atomic: Option<(AtomicOp, MemoryOrder)>,
}

impl MemoryAccess<'_> {
    /// Returns true if two values are equal in the type of the access.
    fn is_equal(&self, a: u64, b: u64) -> bool {
        (a ^ b) & (u64::MAX >> (64 - 8 * self.ty.size())) == 0
    }

    /// Returns the content of memory at an access, and the value to be stored, formatted for messages; only for the first element.
    fn values(&self, touch: &Touch, cx: &GroupContext<'_>) -> Vec<String> {
        let mut out = Vec::new();
        // The copy engine does not have values to show.
        if touch.lane as u64 >= cx.size.iter().product() {
            return out;
        }
        if touch.inside {
            out.push(format!("memory holds {}", self.ty.show((self.memory)(touch.at, touch.lane))));
        }
        if self.kind == Kind::Store {
            out.push(format!("the store writes {}", self.ty.show((self.stored)(touch.lane, 0))));
        }
        out
    }
}

/// The running group.
pub struct GroupContext<'a> {
    /// The launch.
    pub shared: &'a Shared<'a>,
    /// The group's number in each dimension.
    pub group: [u64; 3],
    /// Size of the group.
    pub size: [u64; 3],
    /// Number of lanes of the registers.
    pub lanes: usize,
    /// Active lanes.
    pub mask: &'a Mask,
}

impl GroupContext<'_> {
    /// Returns the linear number of the group.
    pub fn group_number(&self) -> u64 {
        let [_, global, local] = self.shared.range;
        let counts = [0, 1].map(|d| global[d].div_ceil(local[d]));
        (self.group[2] * counts[1] + self.group[1]) * counts[0] + self.group[0]
    }

    /// Returns the work-item of a lane.
    pub fn item(&self, lane: usize) -> ItemIds {
        ItemIds::of(self.shared, self.group, self.size, lane)
    }

    /// Returns the work-item of a lane of a group of the launch, with its action; `None` for the copy engine.
    pub fn item_of(&self, group: u64, lane: usize, did: &'static str) -> Option<ItemIds> {
        let [_, global, local] = self.shared.range;
        let counts = [0, 1, 2].map(|d| global[d].div_ceil(local[d]).max(1));
        let group = [group % counts[0], group / counts[0] % counts[1], group / (counts[0] * counts[1])];
        let size = [0, 1, 2].map(|d| local[d].min(global[d].saturating_sub(group[d] * local[d])));
        let is_item = (lane as u64) < size.iter().product::<u64>();
        is_item.then(|| ItemIds { did, ..ItemIds::of(self.shared, group, size, lane) })
    }

    /// Returns the name of an object, its size, and its kind.
    pub fn object(&self, space: PointerSpace, object: u32) -> (String, u64) {
        let code = self.shared.code;
        let of = |list: &[crate::exec::bytecode::Object]| {
            list.get(object as usize).map(|o| (o.name.clone(), u64::from(o.bytes)))
        };
        let found = match space {
            PointerSpace::Global => self
                .shared
                .buffers
                .get(object as usize)
                .and_then(Option::as_ref)
                .map(|b| (b.allocation.tag.clone(), b.bytes)),
            PointerSpace::Private => of(&code.private_objects),
            PointerSpace::Local => of(&code.local_objects).or_else(|| {
                let at = (object as usize).checked_sub(code.local_objects.len())?;
                let (_, bytes, argument) = self.shared.local_arguments.get(at)?;
                Some((format!("argument {argument}"), u64::from(*bytes)))
            }),
            PointerSpace::Constant => {
                let place = self.shared.constants.places.get(object as usize);
                place.map(|(_, bytes)| ("program-scope constant".to_string(), u64::from(*bytes)))
            }
        };
        found.unwrap_or_else(|| ("nothing".to_string(), 0))
    }

    /// Returns the object that an access of a lane touches.
    #[inline(always)]
    pub fn touch(&self, lane: usize, at: u64, bytes: u32) -> Touch {
        let space = address::space(at);
        if space == PointerSpace::Global {
            return self.touch_global(lane, at, bytes);
        }
        let object = address::object(at);
        let code = self.shared.code;
        let extent = match space {
            PointerSpace::Private => code.private_objects.get(object as usize).map(|o| (o.offset, o.bytes)),
            PointerSpace::Local => {
                code.local_objects.get(object as usize).map(|o| (o.offset, o.bytes)).or_else(|| {
                    let at = (object as usize).checked_sub(code.local_objects.len())?;
                    self.shared.local_arguments.get(at).map(|(offset, bytes, _)| (*offset, *bytes))
                })
            }
            _ => self.shared.constants.places.get(object as usize).copied(),
        };
        let place = i64::from(address::offset(at) as i32);
        let (start, size) = extent.unwrap_or((0, 0));
        let offset = place - i64::from(start);
        let inside = offset >= 0 && offset + i64::from(bytes) <= i64::from(size);
        Touch { lane, at, space, object, offset, place, inside }
    }

    fn touch_global(&self, lane: usize, at: u64, bytes: u32) -> Touch {
        let buffers = &self.shared.buffers;
        let plain = at & GLOBAL;
        let named = address::argument(at).filter(|k| buffers.get(*k).is_some_and(Option::is_some));
        let holds = |b: &crate::exec::Buffer| plain.wrapping_sub(b.allocation.address + b.start) < b.bytes;
        let found = named.or_else(|| buffers.iter().position(|b| b.as_ref().is_some_and(holds)));
        let Some((object, buffer)) = found.and_then(|k| Some((k as u32, buffers[k].as_ref()?))) else {
            return Touch {
                lane,
                at,
                space: PointerSpace::Global,
                object: UNKNOWN,
                offset: 0,
                place: 0,
                inside: false,
            };
        };
        let place = plain as i64 - buffer.allocation.address as i64;
        let offset = place - buffer.start as i64;
        let inside = offset >= 0 && offset as u64 + u64::from(bytes) <= buffer.bytes;
        Touch { lane, at, space: PointerSpace::Global, object, offset, place, inside }
    }
}

/// A work-item's access to a texel outside an image, where the standard leaves the behavior undefined.
pub struct Outside<'a> {
    /// The lane.
    pub lane: usize,
    /// The image.
    pub image: &'a Image,
    /// Its address with the argument number.
    pub base: u64,
    /// The texel.
    pub at: [i64; 3],
    /// It is written.
    pub writes: bool,
}

/// A check. Every method may report findings; none changes the behavior of the kernel.
pub trait Check: Send {
    /// A group starts.
    fn start_group(&mut self, _cx: &GroupContext<'_>) {}
    /// Called before an aligned load, store or atomic operation within one object. Returns true if the check needs no further information. If not,
    /// [`Check::access`] is called.
    fn settles(&mut self, _whole: &Whole<'_>, _cx: &GroupContext<'_>) -> bool {
        false
    }
    /// Called before a load, store or atomic operation.
    fn access(&mut self, _access: &MemoryAccess<'_>, _cx: &GroupContext<'_>, _report: &mut FindingCollector) {
    }
    /// Called before a texel outside its image is read or written.
    fn outside_image(
        &mut self,
        _pc: usize,
        _outside: &Outside<'_>,
        _cx: &GroupContext<'_>,
        _report: &mut FindingCollector,
    ) {
    }
    /// Called at a barrier with these fences: 1 local, 2 global.
    fn barrier(&mut self, _pc: usize, _flags: u32, _cx: &GroupContext<'_>, _report: &mut FindingCollector) {}
    /// Called at a sub-group barrier with these fences.
    fn sub_barrier(&mut self, _flags: u32, _cx: &GroupContext<'_>) {}
    /// Called at a fence of these memories: 1 local, 2 global.
    fn fence(&mut self, _order: MemoryOrder, _flags: u32, _cx: &GroupContext<'_>) {}
    /// Called at a copy by the whole group, with whether all work-items have the same operands.
    fn collective(
        &mut self,
        _pc: usize,
        _same: bool,
        _cx: &GroupContext<'_>,
        _report: &mut FindingCollector,
    ) {
    }
    /// Called before an access to an element of an array inside a larger object.
    fn index(
        &mut self,
        _pc: usize,
        _index: &dyn Fn(usize) -> u64,
        _len: u32,
        _cx: &GroupContext<'_>,
        _report: &mut FindingCollector,
    ) {
    }
    /// Called before an integer division, with the divisor in each lane.
    fn divide(
        &mut self,
        _pc: usize,
        _divisor: &dyn Fn(usize) -> u64,
        _cx: &GroupContext<'_>,
        _report: &mut FindingCollector,
    ) {
    }
    /// Returns the race check, to compare it with that of another thread.
    fn races(&self) -> Option<&Races> {
        None
    }
    /// Marks a variable's bytes of private memory as uninitialized again.
    fn undefine(&mut self, _offset: u32, _bytes: u32, _cx: &GroupContext<'_>) {}
}

/// Returns the enabled checks.
pub fn checks(which: &Checks, shared: &Shared<'_>) -> Vec<Box<dyn Check>> {
    let mut list: Vec<Box<dyn Check>> = Vec::new();
    if which.bounds {
        list.push(Box::new(bounds::Bounds));
    }
    if which.contract {
        list.push(Box::new(contract::Contract));
    }
    // Runs before the check of uninitialized reads, which marks the target of an atomic operation as written.
    if which.races {
        if shared.code.orders() {
            list.push(Box::new(ordered::OrderedRaces::new(shared)));
        } else {
            list.push(Box::new(race::Races::new(shared)));
        }
    }
    if which.uninitialized {
        list.push(Box::new(uninit::Uninitialized::new(shared)));
    }
    if which.barriers {
        list.push(Box::new(barrier::Barriers));
    }
    if which.division {
        list.push(Box::new(divide::Division));
    }
    list
}
