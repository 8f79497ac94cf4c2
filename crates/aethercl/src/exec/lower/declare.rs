//! Storage of variables, and stores to those in registers.

use super::super::bytecode::{File, Inst, Reg};
use super::facts::Fact;
use super::{Lower, Storage, Val, Value, Variable, address_of, file_of, place};
use crate::hir::{Init, Local, LocalId};
use crate::memory::address::{PointerSpace, offset};
use crate::source::Span;
use crate::types::{Space as TypeSpace, Type};

/// Arrays and records with more elements are stored in memory.
const MAX_LEAVES: usize = 512;
/// Maximum distance to search back for the instruction that computed a temporary, so that it writes the variable directly.
const RETARGET_WINDOW: usize = 24;

impl Lower<'_> {
    /// Returns true if a variable cannot be stored in registers.
    pub(super) fn needs_memory(&mut self, id: LocalId, local: &Local) -> bool {
        local.address_taken
            || self.holds(Fact::Memory(id))
            || !(1..=MAX_LEAVES as u64).contains(&self.leaf_count(local.ty))
    }

    pub(super) fn variable(&self, id: LocalId) -> &Variable {
        // Lowering visits a declaration before each use; the front end rejects a jump over it.
        static NONE: Variable =
            Variable { storage: Storage::Memory(0, PointerSpace::Private), depth: 0, first_leaf: usize::MAX };
        self.frame().variables[id.0 as usize].as_ref().unwrap_or(&NONE)
    }

    pub(super) fn bind_variable(&mut self, id: LocalId, storage: Storage, leaves: usize, defined: bool) {
        let first_leaf = self.defined.len();
        self.defined.resize(first_leaf + leaves, defined);
        let depth = self.regions.len() + self.ahead;
        self.frame_mut().variables[id.0 as usize] = Some(Variable { storage, depth, first_leaf });
    }

    /// Allocates registers or memory for a variable.
    pub(super) fn declare_storage(&mut self, id: LocalId) {
        let local = self.local(id).clone();
        let bytes = self.bytes_of(local.ty, &local.name, self.e.span);
        if local.space == TypeSpace::Local {
            let address = self.local_variable(id, &local, bytes);
            self.bind_variable(id, Storage::Memory(address, PointerSpace::Local), 0, true);
            return;
        }
        if self.needs_memory(id, &local) {
            let key = (self.context(), id);
            let known = self.locals.get(&key).copied();
            let address = known.unwrap_or_else(|| {
                let (object, at) = self.e.private_object(&local.name, bytes, local.align);
                address_of(PointerSpace::Private, object, at)
            });
            self.locals.insert(key, address);
            self.bind_variable(id, Storage::Memory(address, PointerSpace::Private), 0, true);
            if self.checked {
                self.e.push(Inst::Undefine { offset: offset(address), bytes });
            }
            return;
        }
        let leaves = self.leaves(local.ty);
        let divergent = self.holds(Fact::Divergent(id));
        let value: Value = leaves
            .iter()
            .map(|leaf| {
                let file = if divergent { file_of(leaf.mem) } else { File::Uniform };
                let reg = self.e.allocate(file, true);
                self.owned.push(reg);
                Val::Reg(reg)
            })
            .collect();
        self.bind_variable(id, Storage::Registers(value), leaves.len(), false);
    }

    fn local_variable(&mut self, id: LocalId, local: &Local, bytes: u32) -> u64 {
        let key = (self.context(), id);
        if let Some(address) = self.locals.get(&key) {
            return *address;
        }
        let (object, at) = self.e.local_object(&local.name, bytes, local.align);
        let address = address_of(PointerSpace::Local, object, at);
        self.locals.insert(key, address);
        address
    }

    /// Lowers a declaration with its initializer.
    pub(super) fn declare(&mut self, id: LocalId, init: Option<&Init>, span: Span) {
        let local = self.local(id).clone();
        if let Some(Init::Value(e)) = init
            && local.space == TypeSpace::Private
            && !self.needs_memory(id, &local)
            && !self.frame().info.is_assigned(id)
        {
            let mark = self.e.mark();
            let value = self.value(e);
            if !value.iter().any(|v| v.is_variable()) {
                self.adopt(&value, mark);
                let count = value.len();
                let value = value.into_iter().map(Val::pinned).collect();
                self.bind_variable(id, Storage::Registers(value), count, true);
                return;
            }
            self.declare_storage(id);
            self.store_variable(id, 0, local.ty, &value);
            return;
        }
        match init {
            None => self.declare_storage(id),
            Some(Init::Value(e)) => {
                let value = self.value(e);
                self.declare_storage(id);
                self.store_local(id, 0, local.ty, &value, span);
            }
            Some(Init::List { zero_rest, parts }) => {
                self.declare_storage(id);
                if *zero_rest {
                    let zeros = vec![Val::Const(0); self.leaves(local.ty).len()];
                    self.store_local(id, 0, local.ty, &zeros, span);
                }
                for part in parts {
                    let mark = self.e.mark();
                    let value = self.value(&part.value);
                    self.store_local(id, part.offset as u32, part.value.ty, &value, span);
                    self.e.release_since(mark);
                }
            }
        }
    }

    /// Lets a variable take over the registers of a value that were created for it, after the mark.
    fn adopt(&mut self, value: &Value, mark: usize) {
        for v in value {
            // Pinned if it was in a variable of an inlined function that has ended.
            if let Val::Reg(reg) | Val::Pinned(reg) = v
                && self.e.adopt(*reg, mark)
            {
                self.owned.push(*reg);
            }
        }
    }

    fn store_local(&mut self, id: LocalId, at: u32, ty: Type, value: &Value, span: Span) {
        match self.variable(id).storage.clone() {
            Storage::Registers(_) => self.store_variable(id, at, ty, value),
            Storage::Memory(address, space) => {
                let align = self.program.types.align(ty) as u32;
                let to = place::Addr::constant(address.wrapping_add(u64::from(at)), space, align);
                self.store_memory(&to, ty, value, span);
            }
        }
    }

    /// Returns the leaf of a variable's type that starts at a byte and matches `ty`; `None` if the types differ.
    pub(super) fn find_leaves(&mut self, id: LocalId, at: u32, ty: Type) -> Option<(usize, usize)> {
        let whole = self.leaves(self.local(id).ty);
        let part = self.leaves(ty);
        let first = whole.binary_search_by_key(&at, |l| l.offset).ok()?;
        let matches = part.iter().enumerate().all(|(i, leaf)| {
            whole.get(first + i).is_some_and(|w| w.offset == at + leaf.offset && w.mem == leaf.mem)
        });
        matches.then_some((first, part.len()))
    }

    /// Reads part of a variable in registers.
    pub(super) fn load_variable(&mut self, id: LocalId, at: u32, ty: Type) -> Value {
        let count = self.leaves(ty).len();
        let Some((first, count)) = self.find_leaves(id, at, ty) else {
            self.note(Fact::Memory(id));
            return vec![Val::Const(0); count];
        };
        let variable = self.variable(id);
        let leaf = variable.first_leaf;
        let Storage::Registers(value) = &variable.storage else { return vec![Val::Const(0); count] };
        let value = value[first..first + count].to_vec();
        if self.checked
            && !self.unreachable
            && !self.defined[leaf + first..leaf + first + count].iter().all(|d| *d)
        {
            self.note(Fact::Memory(id));
        }
        value
    }

    /// Stores to part of a variable in registers.
    pub(super) fn store_variable(&mut self, id: LocalId, at: u32, ty: Type, value: &Value) {
        let Some((first, count)) = self.find_leaves(id, at, ty) else {
            self.note(Fact::Memory(id));
            return;
        };
        self.store_leaves(id, &(first..first + count).collect::<Vec<_>>(), value);
    }

    /// Stores to some leaves of a variable in registers.
    pub(super) fn store_leaves(&mut self, id: LocalId, leaves: &[usize], value: &Value) {
        let variable = self.variable(id);
        let (depth, base) = (variable.depth, variable.first_leaf);
        let Storage::Registers(target) = &variable.storage else { return };
        let target: Value = leaves.iter().map(|l| target[*l]).collect();
        for l in leaves {
            self.defined[base + l] = true;
        }
        let divergent = self.regions.iter().skip(depth).any(|r| *r);
        if divergent || value.iter().any(|v| !v.is_uniform()) {
            self.note(Fact::Divergent(id));
        }
        // A value may use registers of the variable itself (`v = v.yx`): copy those first.
        let clash = value.len() > 1
            && value
                .iter()
                .enumerate()
                .any(|(i, v)| v.is_variable() && target[i] != *v && target.contains(v));
        let value: Value =
            if clash { value.iter().map(|v| self.copy(*v)).collect() } else { pin_repeats(value) };
        for (to, from) in target.iter().zip(&value) {
            if let Val::Reg(to) = to {
                self.assign(*to, *from);
            }
        }
    }

    /// Writes a variable's register, if possible by changing the destination of the instruction that computed the value.
    pub(super) fn assign(&mut self, to: Reg, from: Val) {
        if from == Val::Reg(to) || self.unreachable {
            return;
        }
        if let Val::Reg(source) = from
            && !source.variable
            && (source.file == File::Uniform) == (to.file == File::Uniform)
            && self.e.retarget(source, to, RETARGET_WINDOW)
        {
            return;
        }
        self.move_to(to, from);
    }

    fn move_to(&mut self, to: Reg, from: Val) {
        use super::super::lanes::{Unary32, Unary64};
        let a = self.e.reg(from);
        // A uniform register has any width: move it as 64 bits.
        self.e.push(if to.file == File::Word {
            Inst::Unary32 { op: Unary32::Copy, dst: to, a }
        } else {
            Inst::Unary64 { op: Unary64::Copy, dst: to, a }
        });
    }

    /// Returns a copy of a value in a temporary.
    pub(super) fn copy(&mut self, value: Val) -> Val {
        let (Val::Reg(reg) | Val::Pinned(reg)) = value else { return value };
        let to = self.e.temporary(reg.file);
        self.move_to(to, value);
        Val::Reg(to)
    }
}

/// Pins a register that represents several elements of a value.
pub(super) fn pin_repeats(value: &Value) -> Value {
    let repeats = |v: &Val| value.iter().filter(|o| *o == v).count() > 1;
    value.iter().map(|v| if repeats(v) { v.pinned() } else { *v }).collect()
}
