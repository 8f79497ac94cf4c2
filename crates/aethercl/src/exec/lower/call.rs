//! Calls of the program's functions, inlined.

use super::super::bytecode::{File, Inst};
use super::facts::Fact;
use super::{Lower, Storage, Val, Value, file_of, site};
use crate::hir::{Expr, FunctionId, LocalId, StmtKind};

/// Maximum call depth; a deeper nesting is recursion that the front end missed.
const MAX_DEPTH: usize = 64;

impl Lower<'_> {
    /// Returns the value of a call.
    pub(super) fn call(&mut self, id: FunctionId, args: &[Expr], e: &Expr) -> Value {
        let program = self.program;
        let function = program.function(id);
        if self.frames.len() > MAX_DEPTH {
            self.unsupported(e.span, format!("calls of `{}` are nested too deeply", function.name));
            return self.no_value(function.ret);
        }
        if self.error.is_some() {
            return self.no_value(function.ret);
        }
        let values: Vec<Value> = args.iter().map(|a| self.value(a)).collect();
        let context = self.context();
        let inner = self.facts.context(context, site(e));
        let info = self.scans.of(function);
        let direct = info.returns == 1 && info.ends_in_return;
        let divergent = self.facts.holds(inner, Fact::Return);
        let mixed = self.holds(Fact::Exit(site(e)));
        let leaves = self.leaves(function.ret);
        let result: Value = if direct {
            Vec::new()
        } else {
            let file = |mem| if mixed || divergent { file_of(mem) } else { File::Uniform };
            leaves.iter().map(|l| Val::Reg(self.e.temporary_variable(file(l.mem)))).collect()
        };
        let slot = if divergent { self.e.slot() } else { 0 };
        if divergent {
            self.e.push(Inst::Clear { save: slot });
        }
        let owned = self.owned.len();
        let escaped = std::mem::replace(&mut self.escaped, false);
        self.open_frame(id, inner, result.clone(), slot);
        for (at, value) in values.iter().enumerate() {
            self.bind_argument(LocalId(at as u32), value, e);
        }
        let direct_value = if direct { Some(self.direct_body(id)) } else { None };
        if !direct {
            self.block(&function.body);
        }
        self.close_frame(divergent.then_some(slot), owned, direct);
        self.escaped = escaped;
        if result.iter().any(|r| r.is_uniform()) && self.result_differs(site(e)) {
            self.note(Fact::Exit(site(e)));
        }
        direct_value.unwrap_or(result)
    }

    /// Lowers a body whose only `return` is at its end: the value needs no separate register.
    fn direct_body(&mut self, id: FunctionId) -> Value {
        let program = self.program;
        let body = &program.function(id).body;
        let Some((last, rest)) = body.split_last() else { return Vec::new() };
        for s in rest {
            if self.unreachable || self.error.is_some() {
                break;
            }
            self.statement(s);
        }
        match &last.kind {
            StmtKind::Return(Some(e)) => self.value(e),
            _ => Vec::new(),
        }
    }

    fn bind_argument(&mut self, local: LocalId, value: &Value, e: &Expr) {
        let declared = self.local(local).clone();
        if !self.needs_memory(local, &declared) && !self.frame().info.is_assigned(local) {
            let pinned: Value = value.iter().map(|v| v.pinned()).collect();
            self.bind_variable(local, Storage::Registers(pinned), value.len(), true);
            return;
        }
        self.declare_storage(local);
        match self.variable(local).storage.clone() {
            Storage::Registers(_) => self.store_variable(local, 0, declared.ty, value),
            Storage::Memory(address, space) => {
                let align = self.program.types.align(declared.ty) as u32;
                let to = super::place::Addr::constant(address, space, align);
                self.store_memory(&to, declared.ty, value, e.span);
            }
        }
    }

    fn close_frame(&mut self, slot: Option<super::Slot>, owned: usize, direct: bool) {
        let end = self.frame().end;
        self.e.bind(end);
        self.unreachable = false;
        self.frames.pop();
        self.joins.pop();
        self.regions.pop();
        if let Some(save) = slot {
            self.e.push(Inst::Join { save });
            self.e.release_slot(save);
        }
        if direct {
            self.hold_scope(owned);
        } else {
            self.end_scope(owned);
        }
    }

    /// Assigns the value of a `return` to the call's result.
    pub(super) fn assign_return(&mut self, value: &Value) {
        let frame = self.frame();
        let divergent = self.regions.iter().skip(frame.depth - 1).any(|r| *r);
        let result = frame.result.clone();
        for (to, from) in result.iter().zip(&super::declare::pin_repeats(value)) {
            let Val::Reg(to) = to else { continue };
            if to.file == File::Uniform && (divergent || !from.is_uniform()) {
                self.differing.push(self.frames.len());
            }
            self.assign(*to, *from);
        }
    }

    /// Returns true if a `return` of the closed call gave lanes different values.
    fn result_differs(&mut self, _site: usize) -> bool {
        let depth = self.frames.len() + 1;
        let before = self.differing.len();
        self.differing.retain(|d| *d != depth);
        self.differing.len() != before
    }
}
