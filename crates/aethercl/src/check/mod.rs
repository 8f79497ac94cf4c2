//! What a GPU hides: each check is one file behind [`Check`], and looks at every access of every work-item.

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
pub use report::{Details, Finding, FindingKind, Item, Report};
pub use whole::{Lanes, Whole};

use crate::exec::bytecode::{AtomicOp, MemType};
use crate::exec::{Mask, Shared};
use crate::hir::MemoryOrder;
use crate::image::Image;
use crate::memory::address::{self, GLOBAL, Space};

/// Which checks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checks {
    /// Accesses outside of their object, misaligned ones, and those to freed memory.
    pub bounds: bool,
    /// Reads of bytes that nothing wrote.
    pub uninitialized: bool,
    /// Two work-items at the same bytes, one of them writing, with nothing between that orders them.
    pub races: bool,
    /// Barriers that not all work-items of a group reach.
    pub barriers: bool,
    /// Integer division by zero.
    pub division: bool,
    /// Writes to buffers that the launch declared as read.
    pub contract: bool,
}

impl Checks {
    /// None.
    pub const NONE: Checks = Checks {
        bounds: false,
        uninitialized: false,
        races: false,
        barriers: false,
        division: false,
        contract: false,
    };
    /// Every one.
    pub const ALL: Checks = Checks {
        bounds: true,
        uninitialized: true,
        races: true,
        barriers: true,
        division: true,
        contract: true,
    };

    /// Whether one of them runs.
    pub fn any(&self) -> bool {
        *self != Checks::NONE
    }
}

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads and writes at once.
    Atomic,
}

/// Where one work-item's access goes.
#[derive(Debug, Clone, Copy)]
pub struct Touch {
    /// The lane.
    pub lane: usize,
    /// The address.
    pub at: u64,
    /// The space.
    pub space: Space,
    /// The argument, or the object of its space; none is known for [`UNKNOWN`].
    pub object: u32,
    /// Bytes from the object's start.
    pub offset: i64,
    /// Bytes from the start of the allocation, or of the space.
    pub place: i64,
    /// All its bytes belong to the object.
    pub inside: bool,
}

/// The object of an address that leads nowhere.
pub const UNKNOWN: u32 = u32::MAX;

/// One memory instruction of the running work-items.
pub struct Access<'a> {
    /// The instruction.
    pub pc: usize,
    /// What it does.
    pub kind: Kind,
    /// What memory holds matters: not so for stores, and for atomic operations that only replace it.
    pub reads: bool,
    /// Type of an element.
    pub ty: MemType,
    /// Bytes that each work-item touches.
    pub bytes: u32,
    /// Alignment promised.
    pub align: u32,
    /// One for each running work-item, in order.
    pub touches: &'a [Touch],
    /// The value that a lane stores at an element.
    pub stored: &'a dyn Fn(usize, usize) -> u64,
    /// What memory holds now at an address, as a lane sees it.
    pub memory: &'a dyn Fn(u64, usize) -> u64,
    /// Of an atomic operation: which, and what it orders.
    pub atomic: Option<(AtomicOp, MemoryOrder)>,
}

impl Access<'_> {
    /// Whether two values are the same as the type of the access has them.
    fn is_equal(&self, a: u64, b: u64) -> bool {
        (a ^ b) & (u64::MAX >> (64 - 8 * self.ty.size())) == 0
    }

    /// What memory holds at a touch, and what a store writes there, for people; of the first element.
    fn values(&self, touch: &Touch, cx: &Context<'_>) -> Vec<String> {
        let mut out = Vec::new();
        // The copy engine shows none.
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

/// The group that is running.
pub struct Context<'a> {
    /// The launch.
    pub shared: &'a Shared<'a>,
    /// The group's number in each dimension.
    pub group: [u64; 3],
    /// Its size.
    pub size: [u64; 3],
    /// Lanes that registers have.
    pub lanes: usize,
    /// Who runs.
    pub mask: &'a Mask,
}

impl Context<'_> {
    /// The group as one number.
    pub fn group_number(&self) -> u64 {
        let [_, global, local] = self.shared.range;
        let counts = [0, 1].map(|d| global[d].div_ceil(local[d]));
        (self.group[2] * counts[1] + self.group[1]) * counts[0] + self.group[0]
    }

    /// The work-item of a lane.
    pub fn item(&self, lane: usize) -> Item {
        Item::of(self.shared, self.group, self.size, lane)
    }

    /// The work-item of a lane of some group of the launch, with what it did; none for the copy engine, which is no work-item.
    pub fn item_of(&self, group: u64, lane: usize, did: &'static str) -> Option<Item> {
        let [_, global, local] = self.shared.range;
        let counts = [0, 1, 2].map(|d| global[d].div_ceil(local[d]).max(1));
        let group = [group % counts[0], group / counts[0] % counts[1], group / (counts[0] * counts[1])];
        let size = [0, 1, 2].map(|d| local[d].min(global[d].saturating_sub(group[d] * local[d])));
        let is_item = (lane as u64) < size.iter().product::<u64>();
        is_item.then(|| Item { did, ..Item::of(self.shared, group, size, lane) })
    }

    /// The name of an object, its size, and what it is.
    pub fn object(&self, space: Space, object: u32) -> (String, u64) {
        let code = self.shared.code;
        let of = |list: &[crate::exec::bytecode::Object]| {
            list.get(object as usize).map(|o| (o.name.clone(), u64::from(o.bytes)))
        };
        let found = match space {
            Space::Global => self
                .shared
                .buffers
                .get(object as usize)
                .and_then(Option::as_ref)
                .map(|b| (b.allocation.tag.clone(), b.bytes)),
            Space::Private => of(&code.private_objects),
            Space::Local => of(&code.local_objects).or_else(|| {
                let at = (object as usize).checked_sub(code.local_objects.len())?;
                let (_, bytes, argument) = self.shared.local_arguments.get(at)?;
                Some((format!("argument {argument}"), u64::from(*bytes)))
            }),
            Space::Constant => {
                let place = self.shared.constants.places.get(object as usize);
                place.map(|(_, bytes)| ("program-scope constant".to_string(), u64::from(*bytes)))
            }
        };
        found.unwrap_or_else(|| ("nothing".to_string(), 0))
    }

    /// Finds what an access of a lane touches.
    #[inline(always)]
    pub fn touch(&self, lane: usize, at: u64, bytes: u32) -> Touch {
        let space = address::space(at);
        if space == Space::Global {
            return self.touch_global(lane, at, bytes);
        }
        let object = address::object(at);
        let code = self.shared.code;
        let extent = match space {
            Space::Private => code.private_objects.get(object as usize).map(|o| (o.offset, o.bytes)),
            Space::Local => {
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
                space: Space::Global,
                object: UNKNOWN,
                offset: 0,
                place: 0,
                inside: false,
            };
        };
        let place = plain as i64 - buffer.allocation.address as i64;
        let offset = place - buffer.start as i64;
        let inside = offset >= 0 && offset as u64 + u64::from(bytes) <= buffer.bytes;
        Touch { lane, at, space: Space::Global, object, offset, place, inside }
    }
}

/// A work-item's texel that an image does not have, where the standard leaves undefined what happens.
pub struct Outside<'a> {
    /// The lane.
    pub lane: usize,
    /// The image.
    pub image: &'a Image,
    /// Its address, with the argument.
    pub base: u64,
    /// The texel.
    pub at: [i64; 3],
    /// It is written.
    pub writes: bool,
}

/// A check. Every method may report; none changes what the kernel does.
pub trait Check: Send {
    /// A group starts.
    fn start_group(&mut self, _cx: &Context<'_>) {}
    /// Before a load, store or atomic operation that stays within one object, aligned: whether that is all there is to see.
    /// If not, [`Check::access`] is called for it.
    fn settles(&mut self, _whole: &Whole<'_>, _cx: &Context<'_>) -> bool {
        false
    }
    /// Before a load, store or atomic operation.
    fn access(&mut self, _access: &Access<'_>, _cx: &Context<'_>, _report: &mut Report) {}
    /// Before a texel outside of its image is read or written.
    fn outside_image(&mut self, _pc: usize, _outside: &Outside<'_>, _cx: &Context<'_>, _report: &mut Report) {
    }
    /// At a barrier of these fences: 1 local, 2 global.
    fn barrier(&mut self, _pc: usize, _flags: u32, _cx: &Context<'_>, _report: &mut Report) {}
    /// At a barrier of sub-groups, of these fences.
    fn sub_barrier(&mut self, _flags: u32, _cx: &Context<'_>) {}
    /// At a fence of these memories: 1 local, 2 global.
    fn fence(&mut self, _order: MemoryOrder, _flags: u32, _cx: &Context<'_>) {}
    /// At a copy by the whole group; whether all work-items give the same operands.
    fn collective(&mut self, _pc: usize, _same: bool, _cx: &Context<'_>, _report: &mut Report) {}
    /// Before an element of an array that is part of something larger is touched.
    fn index(
        &mut self,
        _pc: usize,
        _index: &dyn Fn(usize) -> u64,
        _len: u32,
        _cx: &Context<'_>,
        _report: &mut Report,
    ) {
    }
    /// Before an integer division, with the divisor in each lane.
    fn divide(
        &mut self,
        _pc: usize,
        _divisor: &dyn Fn(usize) -> u64,
        _cx: &Context<'_>,
        _report: &mut Report,
    ) {
    }
    /// The check for races, to compare with that of another thread.
    fn races(&self) -> Option<&Races> {
        None
    }
    /// A variable's bytes of private memory are uninitialised again.
    fn undefine(&mut self, _offset: u32, _bytes: u32, _cx: &Context<'_>) {}
}

/// The checks that were asked for.
pub fn checks(which: &Checks, shared: &Shared<'_>) -> Vec<Box<dyn Check>> {
    let mut list: Vec<Box<dyn Check>> = Vec::new();
    if which.bounds {
        list.push(Box::new(bounds::Bounds));
    }
    if which.contract {
        list.push(Box::new(contract::Contract));
    }
    // Before uninitialised reads, which count an atomic operation's target as written.
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
