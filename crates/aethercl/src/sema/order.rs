//! The end of the analysis: functions in the order of their calls, recursion refused.

use super::{Analysed, Sema};
use crate::hir::{Expr, ExprKind, Function, FunctionId, Init, Place, PlaceKind, Stmt, StmtKind};

impl Sema<'_> {
    /// Puts callees before callers and gives every function its final index.
    pub(super) fn finish(mut self) -> Option<Analysed> {
        for i in 0..self.functions.len() {
            let f = &self.functions[i];
            if let (None, Some(call)) = (&f.body, f.called) {
                let message = format!("function '{}' is called but has no body", f.name);
                self.diagnostics.error(call, message);
            }
        }
        let order = self.call_order()?;
        if self.diagnostics.failed() {
            return None;
        }
        let mut ids = vec![FunctionId(u32::MAX); self.functions.len()];
        for (new, old) in order.iter().enumerate() {
            ids[*old] = FunctionId(new as u32);
        }
        let mut functions: Vec<Function> = Vec::with_capacity(order.len());
        for old in order {
            if let Some(mut body) = self.functions[old].body.take() {
                let mut renumber = |id: &mut FunctionId| {
                    if let Some(new) = ids.get(id.0 as usize) {
                        *id = *new;
                    }
                };
                statements(&mut body.body, &mut renumber);
                functions.push(body);
            }
        }
        Some(Analysed { types: self.types, functions, globals: self.globals })
    }

    /// Functions with bodies, callees first; an error where one calls itself, directly or not.
    fn call_order(&mut self) -> Option<Vec<usize>> {
        let count = self.functions.len();
        // 0 not seen, 1 being walked, 2 done.
        let mut state = vec![0u8; count];
        let mut order = Vec::with_capacity(count);
        for root in 0..count {
            if state[root] != 0 {
                continue;
            }
            state[root] = 1;
            let mut stack = vec![(root, 0usize)];
            while let Some((at, next)) = stack.last_mut() {
                let at = *at;
                let Some(&(callee, span)) = self.functions[at].calls.get(*next) else {
                    state[at] = 2;
                    if self.functions[at].body.is_some() {
                        order.push(at);
                    }
                    stack.pop();
                    continue;
                };
                *next += 1;
                match state[callee] {
                    0 => {
                        state[callee] = 1;
                        stack.push((callee, 0));
                    }
                    1 => {
                        let message = format!(
                            "recursion is not allowed in OpenCL C: '{}' ends up calling itself",
                            self.functions[callee].name
                        );
                        return self.error(span, message);
                    }
                    _ => {}
                }
            }
        }
        Some(order)
    }
}

type Visit<'v> = &'v mut dyn FnMut(&mut FunctionId);

fn statements(list: &mut [Stmt], visit: Visit) {
    for stmt in list {
        statement(stmt, visit);
    }
}

fn statement(stmt: &mut Stmt, visit: Visit) {
    match &mut stmt.kind {
        StmtKind::Block(list) => statements(list, visit),
        StmtKind::Declare { init, .. } => match init {
            Some(Init::Value(value)) => expr(value, visit),
            Some(Init::List { parts, .. }) => parts.iter_mut().for_each(|p| expr(&mut p.value, visit)),
            None => {}
        },
        StmtKind::Expr(e) => expr(e, visit),
        StmtKind::If { cond, then, otherwise } => {
            expr(cond, visit);
            statement(then, visit);
            if let Some(otherwise) = otherwise {
                statement(otherwise, visit);
            }
        }
        StmtKind::For { init, cond, step, body } => {
            statements(init, visit);
            for e in cond.iter_mut().chain(step) {
                expr(e, visit);
            }
            statement(body, visit);
        }
        StmtKind::DoWhile { body, cond } => {
            statement(body, visit);
            expr(cond, visit);
        }
        StmtKind::Switch { value, cases } => {
            expr(value, visit);
            for case in cases {
                statements(&mut case.body, visit);
            }
        }
        StmtKind::Return(Some(e)) => expr(e, visit),
        StmtKind::Break(_) | StmtKind::Continue(_) | StmtKind::Return(None) => {}
    }
}

fn expr(e: &mut Expr, visit: Visit) {
    match &mut e.kind {
        ExprKind::Int(_) | ExprKind::Float(_) => {}
        ExprKind::Load(p) | ExprKind::AddressOf(p) => place(p, visit),
        ExprKind::Unary(_, a)
        | ExprKind::Convert { operand: a, .. }
        | ExprKind::Splat(a)
        | ExprKind::Reinterpret(a)
        | ExprKind::Swizzle(a, _) => expr(a, visit),
        ExprKind::Binary(_, a, b)
        | ExprKind::Compare(_, a, b)
        | ExprKind::Logical(_, a, b)
        | ExprKind::Offset { pointer: a, index: b, .. }
        | ExprKind::Difference { left: a, right: b, .. }
        | ExprKind::Comma(a, b) => {
            expr(a, visit);
            expr(b, visit);
        }
        ExprKind::Conditional { cond, then, otherwise } | ExprKind::Select { cond, then, otherwise } => {
            expr(cond, visit);
            expr(then, visit);
            expr(otherwise, visit);
        }
        ExprKind::Assign { place: p, value } | ExprKind::Update { place: p, value, .. } => {
            place(p, visit);
            expr(value, visit);
        }
        ExprKind::Statements(list, value) => {
            statements(list, visit);
            value.iter_mut().for_each(|v| expr(v, visit));
        }
        ExprKind::Call(id, args) => {
            visit(id);
            args.iter_mut().for_each(|a| expr(a, visit));
        }
        ExprKind::Vector(args) | ExprKind::Builtin(_, args) | ExprKind::Printf { args, .. } => {
            args.iter_mut().for_each(|a| expr(a, visit));
        }
    }
}

fn place(p: &mut Place, visit: Visit) {
    match &mut p.kind {
        PlaceKind::Local(_) | PlaceKind::Global(_) => {}
        PlaceKind::Deref(e) => expr(e, visit),
        PlaceKind::Index { base, index, .. } => {
            place(base, visit);
            expr(index, visit);
        }
        PlaceKind::Member { base, .. } | PlaceKind::Lanes { base, .. } => place(base, visit),
    }
}
