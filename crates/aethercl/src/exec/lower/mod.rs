//! Lowers the typed program to bytecode.
//!
//! Lowering traverses the syntax tree of a kernel once and inlines all calls. It assumes optimistically that values are uniform (the same for the
//! whole work-group). If an assumption turns out to be wrong, it records the fact and starts again.

mod budget;
mod builtin;
mod call;
mod constants;
mod control;
mod convert;
mod declare;
mod emit;
mod expr;
mod facts;
mod image;
mod lanewise;
mod loops;
mod numeric;
mod operator;
mod place;
mod scan;
mod stmt;

pub use constants::Constants;
pub use emit::Val;

use super::bytecode::{Code, File, Inst, JumpTarget, MemType, Parameter, Reg, Slot};
use crate::hir::{FunctionId, Local, LocalId, TranslationUnit};
use crate::memory::address::{PointerSpace, object_pointer};
use crate::source::Span;
use crate::types::{Scalar, Space as TypeSpace, Type};
use budget::Budget;
use emit::Emitter;
use facts::{CallChain, Fact, Facts};
use std::collections::HashMap;
use std::rc::Rc;

/// Maximum number of passes. Each pass adds a fact; more than ten are rare, so reaching the limit indicates a defect.
const MAX_PASSES: usize = 200;

/// Register type of a scalar element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    offset: u32,
    mem: MemType,
}

/// A value: one [`Val`] for each leaf of its type.
pub type Value = Vec<Val>;

/// Storage of a variable.
#[derive(Debug, Clone)]
enum Storage {
    /// The value is in registers or constants, one for each leaf.
    Registers(Value),
    /// In memory at this address.
    Memory(u64, PointerSpace),
}

#[derive(Debug, Clone)]
struct Variable {
    storage: Storage,
    /// Nesting depth of regions at its declaration.
    depth: usize,
    /// The first of its leaves' numbers in the set of defined leaves.
    first_leaf: usize,
}

/// A loop or `switch` being lowered.
struct Breakable {
    is_loop: bool,
    site: usize,
    exit: Option<Slot>,
    proceed: Option<Slot>,
    end: JumpTarget,
    next: JumpTarget,
    /// Open regions outside the part that `break` leaves, and outside the part that `continue` leaves.
    exit_depth: usize,
    next_depth: usize,
}

/// A function being inlined.
struct Frame {
    context: CallChain,
    function: FunctionId,
    variables: Vec<Option<Variable>>,
    breakables: Vec<Breakable>,
    result: Value,
    returned: Slot,
    end: JumpTarget,
    depth: usize,
    info: Rc<scan::Info>,
    /// The call, and the work done before it.
    call: Span,
    start: u64,
}

/// The lowering of one kernel, in one pass.
pub struct Lower<'a> {
    program: &'a TranslationUnit,
    constants: &'a Constants,
    facts: &'a mut Facts,
    scans: &'a mut scan::Scans,
    budget: &'a mut Budget,
    e: Emitter,
    checked: bool,
    frames: Vec<Frame>,
    /// Open regions; true if it is divergent: entered by some lanes only.
    regions: Vec<bool>,
    /// Jump targets for the case that no lane is active, innermost last.
    joins: Vec<JumpTarget>,
    /// Registers of variables, by block.
    owned: Vec<Reg>,
    locals: HashMap<(CallChain, LocalId), u64>,
    leaf_cache: HashMap<Type, Rc<Vec<Leaf>>>,
    leaf_counts: HashMap<Type, u64>,
    /// Leaves of variables that are definitely assigned here.
    defined: Vec<bool>,
    /// The current position is unreachable.
    unreachable: bool,
    /// Lanes may have become inactive since this was last cleared.
    escaped: bool,
    error: Option<(Span, String)>,
    /// Variables declared now belong to a region that is opened next.
    ahead: usize,
    /// The current place is only used for its address.
    addressed: bool,
    /// Calls (by depth) whose `return`s gave lanes different values.
    differing: Vec<usize>,
}

/// Lowers a kernel. With `checked`, emits additional instructions for the checks.
///
/// # Errors
/// Source position and name of an unsupported construct.
pub fn lower(
    program: &TranslationUnit,
    constants: &Constants,
    kernel: FunctionId,
    checked: bool,
) -> Result<Code, (Span, String)> {
    let mut facts = Facts::default();
    let mut scans = scan::Scans::default();
    let mut budget = Budget::default();
    for _ in 0..MAX_PASSES {
        facts.changed = false;
        let name = &program.function(kernel).name;
        let mut lower = Lower {
            program,
            constants,
            facts: &mut facts,
            scans: &mut scans,
            budget: &mut budget,
            e: Emitter::new(name),
            checked,
            frames: Vec::new(),
            regions: Vec::new(),
            joins: Vec::new(),
            owned: Vec::new(),
            locals: HashMap::new(),
            leaf_cache: HashMap::new(),
            leaf_counts: HashMap::new(),
            defined: Vec::new(),
            unreachable: false,
            escaped: false,
            error: None,
            ahead: 0,
            addressed: false,
            differing: Vec::new(),
        };
        lower.kernel(kernel);
        lower.check_full();
        let (error, e) = (lower.error, lower.e);
        if let Some(error) = error {
            return Err(error);
        }
        if !facts.changed {
            return Ok(e.finish());
        }
        budget.next_pass(&e.code);
    }
    Err((program.function(kernel).span, "this kernel's control flow could not be resolved".to_string()))
}

impl Lower<'_> {
    fn kernel(&mut self, id: FunctionId) {
        let returned = self.e.slot();
        self.e.code.returned = returned;
        self.e.push(Inst::Clear { save: returned });
        self.open_frame(id, 0, Vec::new(), returned);
        self.parameters(id);
        let program = self.program;
        self.block(&program.function(id).body);
        let end = self.frame().end;
        self.e.bind(end);
        self.e.push(Inst::End);
        if self.e.code.granule > 4 {
            self.e.code.granule = 4;
        }
    }

    fn open_frame(&mut self, id: FunctionId, context: CallChain, result: Value, returned: Slot) {
        let function = self.program.function(id);
        let end = self.e.label();
        let divergent = self.facts.holds(context, Fact::Return);
        self.regions.push(divergent);
        self.joins.push(end);
        let info = self.scans.of(function);
        let (call, start) = (self.e.span, self.work());
        self.frames.push(Frame {
            context,
            function: id,
            variables: vec![None; function.locals.len()],
            breakables: Vec::new(),
            result,
            returned,
            end,
            depth: self.regions.len(),
            info,
            call,
            start,
        });
    }

    fn parameters(&mut self, id: FunctionId) {
        let program = self.program;
        let function = program.function(id);
        for at in 0..function.params {
            let local = LocalId(at as u32);
            let declared = function.local(local);
            let by_registers = !self.needs_memory(local, declared);
            if by_registers {
                self.parameter_in_registers(local, declared);
            } else {
                self.declare_storage(local);
                // Its bytes exist before the kernel starts.
                if matches!(self.e.code.insts.last(), Some(Inst::Undefine { .. })) {
                    self.e.code.insts.pop();
                    self.e.code.spans.pop();
                }
                let bytes = self.bytes_of(declared.ty, &declared.name, function.span);
                let offset = match self.variable(local).storage {
                    Storage::Memory(address, _) => crate::memory::address::offset(address),
                    Storage::Registers(_) => 0,
                };
                self.e.code.parameters.push(Parameter::Private { offset, bytes });
                self.e.code.restricted.push(declared.is_restrict);
            }
        }
    }

    fn parameter_in_registers(&mut self, local: LocalId, declared: &Local) {
        let leaves = self.leaves(declared.ty);
        let regs: Vec<Reg> = leaves.iter().map(|_| self.e.allocate(File::Uniform, true)).collect();
        let parts = leaves.iter().zip(&regs).map(|(l, r)| (l.offset, l.mem, *r)).collect();
        self.e.code.parameters.push(Parameter::Registers(parts));
        self.e.code.restricted.push(declared.is_restrict);
        let value: Value = regs.iter().map(|r| Val::Reg(*r)).collect();
        let assigned = self.frame().info.is_assigned(local);
        if assigned && self.holds(Fact::Divergent(local)) {
            self.declare_storage(local);
            self.store_variable(local, 0, declared.ty, &value);
        } else {
            self.bind_variable(local, Storage::Registers(value), leaves.len(), true);
        }
    }

    fn frame(&self) -> &Frame {
        // A frame is open from the kernel's start to its end.
        &self.frames[self.frames.len() - 1]
    }

    fn frame_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn context(&self) -> CallChain {
        self.frame().context
    }

    fn holds(&self, fact: Fact) -> bool {
        self.facts.holds(self.context(), fact)
    }

    fn note(&mut self, fact: Fact) {
        let context = self.context();
        self.facts.add(context, fact);
    }

    fn local(&self, id: LocalId) -> &Local {
        self.program.function(self.frame().function).local(id)
    }

    fn unsupported(&mut self, span: Span, what: impl Into<String>) {
        if self.error.is_none() {
            self.error = Some((span, what.into()));
        }
    }

    /// Returns the elements of a type as registers hold them.
    fn leaves(&mut self, ty: Type) -> Rc<Vec<Leaf>> {
        if let Some(leaves) = self.leaf_cache.get(&ty) {
            return leaves.clone();
        }
        let mut leaves = Vec::new();
        if self.can_be_moved(ty) {
            self.collect_leaves(ty, 0, &mut leaves);
        }
        let leaves = Rc::new(leaves);
        self.leaf_cache.insert(ty, leaves.clone());
        leaves
    }

    fn collect_leaves(&self, ty: Type, offset: u32, leaves: &mut Vec<Leaf>) {
        let types = &self.program.types;
        match ty {
            Type::Void => {}
            Type::Scalar(s) | Type::Atomic(s) => leaves.push(Leaf { offset, mem: mem_type(s) }),
            Type::Vector(s, n) => {
                let size = s.size() as u32;
                leaves
                    .extend((0..u32::from(n)).map(|i| Leaf { offset: offset + i * size, mem: mem_type(s) }));
            }
            Type::Pointer(_) | Type::Event => leaves.push(Leaf { offset, mem: MemType::B64 }),
            Type::Sampler => leaves.push(Leaf { offset, mem: MemType::B32 }),
            Type::Image(..) => {
                leaves.push(Leaf { offset, mem: MemType::B64 });
                leaves.extend((2..8).map(|word| Leaf { offset: offset + 4 * word, mem: MemType::B32 }));
            }
            Type::Array(id) => {
                let array = types.array(id);
                let size = types.size(array.of) as u32;
                for i in 0..array.len as u32 {
                    self.collect_leaves(array.of, offset + i * size, leaves);
                }
            }
            Type::Record(id) => {
                let record = types.record(id);
                if record.is_union || overlaps(types, record) {
                    let words = record.size as u32 / 4;
                    leaves.extend((0..words).map(|i| Leaf { offset: offset + i * 4, mem: MemType::B32 }));
                    let rest = words * 4..record.size as u32;
                    leaves.extend(rest.map(|i| Leaf { offset: offset + i, mem: MemType::U8 }));
                    return;
                }
                for field in record.fields.iter().filter(|f| !f.name.is_empty()) {
                    self.collect_leaves(field.ty, offset + field.offset as u32, leaves);
                }
            }
        }
    }
}

/// Returns true if fields share bytes: members of an anonymous union do.
fn overlaps(types: &crate::types::Types, record: &crate::types::Record) -> bool {
    let mut end = 0;
    record.fields.iter().filter(|f| !f.name.is_empty()).any(|f| {
        let shared = f.offset < end;
        end = f.offset + types.size(f.ty);
        shared
    })
}

/// Returns the memory type of a scalar.
fn mem_type(scalar: Scalar) -> MemType {
    match scalar {
        Scalar::Bool | Scalar::U8 => MemType::U8,
        Scalar::I8 => MemType::I8,
        Scalar::U16 | Scalar::F16 => MemType::U16,
        Scalar::I16 => MemType::I16,
        Scalar::I32 | Scalar::U32 | Scalar::F32 => MemType::B32,
        Scalar::I64 | Scalar::U64 | Scalar::F64 => MemType::B64,
    }
}

/// Returns the register file of an element in lanes.
fn file_of(mem: MemType) -> File {
    if mem == MemType::B64 { File::Long } else { File::Word }
}

/// Returns the space of an address, if the type determines it.
fn space_of(space: TypeSpace) -> Option<PointerSpace> {
    match space {
        TypeSpace::Private => Some(PointerSpace::Private),
        TypeSpace::Local => Some(PointerSpace::Local),
        TypeSpace::Constant => None,
        TypeSpace::Global => Some(PointerSpace::Global),
        TypeSpace::Generic => None,
    }
}

/// Returns the address of a node of the typed program, which identifies a loop or call.
fn site<T>(node: &T) -> usize {
    std::ptr::from_ref(node) as usize
}

/// Returns the address of an object.
fn address_of(space: PointerSpace, object: u32, offset: u32) -> u64 {
    object_pointer(space, object, u64::from(offset))
}
