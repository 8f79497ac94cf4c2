//! Functions: prototypes, rules for kernels, bodies.

use std::collections::HashMap;

use super::scope::Entity;
use super::{Current, Declared, Qualified, Sema, labels};
use crate::hir::{Function, Kernel, LocalId, Stmt, StmtKind};
use crate::parse::ast::{Attribute, Declarator, Derived, FunctionDef, Param, Specs};
use crate::source::Span;
use crate::types::{ImageAccess, PointerType, Scalar, Space, Type};

impl Sema<'_> {
    /// Analyzes a prototype.
    pub(super) fn prototype(
        &mut self,
        specs: &Specs,
        declarator: &Declarator,
        params: &[Param],
    ) -> Option<()> {
        let (ret, params) = self.signature(specs, declarator, params)?;
        let types = params.iter().map(|p| p.ty).collect();
        self.declare_function(specs, declarator, ret, types).map(|_| ())
    }

    /// Result type and parameters.
    fn signature(
        &mut self,
        specs: &Specs,
        declarator: &Declarator,
        params: &[Param],
    ) -> Option<(Type, Vec<Qualified>)> {
        let base = self.base_type(specs)?;
        let outer = Declarator { name: declarator.name, parts: Vec::new(), attributes: Vec::new() };
        let mut result = self.declared_type(base, &outer, false)?;
        for part in declarator.parts.iter().skip(1).rev() {
            let Derived::Pointer(own) = part else {
                return self.error(specs.span, "function cannot return an array or a function");
            };
            let space = result.space.unwrap_or(self.default_space());
            let (is_const, is_volatile, aligned) = (result.is_const, result.is_volatile, result.aligned);
            let ty =
                self.types.pointer_to(PointerType { to: result.ty, space, is_const, is_volatile, aligned });
            result = Qualified { space: own.space, ..Qualified::plain(ty) };
        }
        if result.space.is_some_and(|s| s != Space::Private) {
            return self.error(specs.span, "return value cannot be qualified with address space");
        }
        if matches!(result.ty, Type::Array(_)) {
            return self.error(specs.span, "function cannot return an array");
        }
        let params: Vec<_> = params.iter().map(|p| self.parameter(p)).collect();
        Some((result.ty, params.into_iter().collect::<Option<_>>()?))
    }

    /// Returns a parameter's type: arrays become pointers.
    fn parameter(&mut self, param: &Param) -> Option<Qualified> {
        let base = self.base_type(&param.specs)?;
        let span = param.declarator.name.map_or(param.specs.span, |n| n.1);
        let mut parts_declarator = Declarator::default();
        // `float a[]` and `float a[4]` are pointers; further dimensions stay.
        let is_array = matches!(param.declarator.parts.first(), Some(Derived::Array(..)));
        let mut q = if is_array {
            let unsized_first = matches!(param.declarator.parts.first(), Some(Derived::Array(None, _)));
            if unsized_first {
                parts_declarator.name = param.declarator.name;
                let rest = &param.declarator.parts[1..];
                self.pointer_over(base, rest, span)?
            } else {
                let array = self.declared_type(base, &param.declarator, false)?;
                self.decayed(array)
            }
        } else {
            let q = self.declared_type(base, &param.declarator, false)?;
            if matches!(q.ty, Type::Array(_)) { self.decayed(q) } else { q }
        };
        if q.ty == Type::Void {
            return self.error(span, "a parameter cannot have type 'void'");
        }
        if q.space.is_some_and(|s| s != Space::Private) {
            return self.error(span, "parameter may not be qualified with an address space");
        }
        q.space = None;
        self.check_object(q.ty, span)?;
        Some(q)
    }

    /// Returns the pointer type of `T a[]` with the further dimensions.
    fn pointer_over(&mut self, base: Qualified, rest: &[Derived], span: Span) -> Option<Qualified> {
        let mut q = base;
        for part in rest.iter().rev() {
            match part {
                Derived::Array(Some(size), _) => {
                    let (len, _) = self.constant_integer(size)?;
                    if len == 0 || len > 1 << 32 {
                        return self.error(span, "bad array size");
                    }
                    q.ty = self.types.array_of(q.ty, len);
                }
                Derived::Pointer(own) => {
                    let space = q.space.unwrap_or(self.default_space());
                    let (is_const, is_volatile, aligned) = (q.is_const, q.is_volatile, q.aligned);
                    let ty = self.types.pointer_to(PointerType {
                        to: q.ty,
                        space,
                        is_const,
                        is_volatile,
                        aligned,
                    });
                    q = Qualified { is_const: own.is_const, space: own.space, ..Qualified::plain(ty) };
                }
                _ => return self.error(span, "array has incomplete element type"),
            }
        }
        let len_one = self.types.array_of(q.ty, 1);
        Some(self.decayed(Qualified { ty: len_one, ..q }))
    }

    /// Returns an array as the pointer to its first element.
    fn decayed(&mut self, q: Qualified) -> Qualified {
        let Type::Array(id) = q.ty else { return q };
        let of = self.types.array(id).of;
        let space = q.space.unwrap_or(self.default_space());
        let (is_const, is_volatile, aligned) = (q.is_const, q.is_volatile, q.aligned);
        let ty = self.types.pointer_to(PointerType { to: of, space, is_const, is_volatile, aligned });
        Qualified::plain(ty)
    }

    /// Declares a function's name, or finds an earlier declaration.
    fn declare_function(
        &mut self,
        specs: &Specs,
        declarator: &Declarator,
        ret: Type,
        params: Vec<Type>,
    ) -> Option<usize> {
        let (name, span) = declarator.name?;
        let text = self.text(name).to_string();
        match self.lookup_here(name) {
            Some((Entity::Function(index), _)) => {
                let known = &mut self.functions[index];
                if known.ret != ret || known.params != params {
                    let note = vec![(known.span, "previous declaration is here".to_string())];
                    self.diagnostics.error_with(span, format!("conflicting types for '{text}'"), note);
                    return None;
                }
                known.is_kernel |= specs.is_kernel;
                return Some(index);
            }
            Some((_, before)) => {
                let note = vec![(before, "previous definition is here".to_string())];
                let message = format!("redefinition of '{text}' as different kind of symbol");
                self.diagnostics.error_with(span, message, note);
                return None;
            }
            None => {}
        }
        self.functions.push(Declared {
            name: text,
            ret,
            params,
            body: None,
            span,
            is_kernel: specs.is_kernel,
            calls: Vec::new(),
            called: None,
        });
        let index = self.functions.len() - 1;
        self.rebind(name, Entity::Function(index), span);
        Some(index)
    }

    /// Analyzes a function with its body.
    pub(super) fn function(&mut self, def: &FunctionDef) -> Option<()> {
        let (_, span) = def.declarator.name?;
        let Some(Derived::Function(params, _)) = def.declarator.parts.first() else { return None };
        let (ret, types) = self.signature(&def.specs, &def.declarator, params)?;
        let plain = types.iter().map(|q| q.ty).collect();
        let index = self.declare_function(&def.specs, &def.declarator, ret, plain)?;
        if self.functions[index].body.is_some() {
            let note = vec![(self.functions[index].span, "previous definition is here".to_string())];
            let message = format!("redefinition of '{}'", self.functions[index].name);
            self.diagnostics.error_with(span, message, note);
            return None;
        }
        self.functions[index].span = span;
        let kernel =
            if self.functions[index].is_kernel { Some(self.kernel(def, ret, params, &types)?) } else { None };
        self.current = Some(Current {
            ret,
            is_kernel: kernel.is_some(),
            locals: Vec::new(),
            nest: Vec::new(),
            known: HashMap::new(),
            calls: Vec::new(),
            entries: labels::Entries::of(&def.body),
        });
        let body = self.scoped(|s| {
            s.bind_params(params, &types)?;
            s.statements(&def.body)
        });
        let current = self.current.take()?;
        self.functions[index].calls = current.calls;
        let mut body = body?;
        // Unnamed variables live as long as the call.
        let unnamed = current.locals.iter().enumerate().skip(types.len()).filter(|(_, l)| l.name.is_empty());
        let declare = |(i, l): (usize, &crate::hir::Local)| Stmt {
            kind: StmtKind::Declare { local: LocalId(i as u32), init: None },
            span: l.span,
        };
        body.splice(0..0, unnamed.map(declare).chain(current.entries.reset()).collect::<Vec<_>>());
        self.functions[index].body = Some(Function {
            name: self.functions[index].name.clone(),
            ret,
            params: types.len(),
            locals: current.locals,
            body,
            kernel,
            span,
        });
        Some(())
    }

    fn bind_params(&mut self, params: &[Param], types: &[Qualified]) -> Option<()> {
        for (param, q) in params.iter().zip(types) {
            let Some((name, span)) = param.declarator.name else {
                return self.error(param.specs.span, "parameter name omitted");
            };
            let local = self.local_of(name, *q, Space::Private, span);
            let id = self.new_local(local)?;
            self.bind(name, Entity::Local(id), span)?;
        }
        Some(())
    }

    /// Checks the rules for kernels.
    fn kernel(
        &mut self,
        def: &FunctionDef,
        ret: Type,
        params: &[Param],
        types: &[Qualified],
    ) -> Option<Kernel> {
        let (_, span) = def.declarator.name?;
        if ret != Type::Void {
            return self.error(span, "kernel must have void return type");
        }
        for (param, q) in params.iter().zip(types) {
            let span = param.declarator.name.map_or(param.specs.span, |n| n.1);
            self.kernel_parameter(q.ty, span)?;
        }
        let mut kernel = Kernel::default();
        for attribute in def.specs.attributes.iter().chain(&def.declarator.attributes) {
            self.kernel_attribute(attribute, &mut kernel)?;
        }
        Some(kernel)
    }

    fn kernel_parameter(&mut self, ty: Type, span: Span) -> Option<()> {
        let name = self.type_name(ty);
        match ty {
            Type::Pointer(id) => {
                let p = self.types.pointer(id);
                if matches!(p.space, Space::Private | Space::Generic) {
                    let message = "pointer arguments to kernel functions must reside in '__global', '__constant' or '__local' address space";
                    return self.error(span, message);
                }
                if p.to.is_pointer() && self.features.version < 200 {
                    return self.error(
                        span,
                        format!("kernel parameter cannot be declared as a pointer to a pointer ('{name}')"),
                    );
                }
                Some(())
            }
            Type::Image(_, ImageAccess::Both) if self.features.version < 200 => {
                self.error(span, "access qualifier 'read_write' needs OpenCL C 2.0")
            }
            Type::Scalar(Scalar::Bool | Scalar::F16) | Type::Event | Type::Atomic(_) => {
                self.error(span, format!("'{name}' cannot be used as the type of a kernel parameter"))
            }
            Type::Record(_) if self.holds_pointer(ty) => {
                self.error(span, "structure kernel parameters may not contain pointers")
            }
            _ => Some(()),
        }
    }

    fn holds_pointer(&self, ty: Type) -> bool {
        match ty {
            Type::Pointer(_) => true,
            Type::Array(id) => self.holds_pointer(self.types.array(id).of),
            Type::Record(id) => self.types.record(id).fields.iter().any(|f| self.holds_pointer(f.ty)),
            _ => false,
        }
    }

    fn kernel_attribute(&mut self, attribute: &Attribute, kernel: &mut Kernel) -> Option<()> {
        let wanted = match attribute.name.as_str() {
            "reqd_work_group_size" | "work_group_size_hint" => 3,
            "reqd_sub_group_size" | "intel_reqd_sub_group_size" => 1,
            "vec_type_hint" => {
                kernel.vector_hint = Some(attribute.text.clone());
                return Some(());
            }
            _ => return Some(()),
        };
        let name = attribute.name.clone();
        if attribute.args.len() != wanted {
            return self
                .error(attribute.span, format!("'{name}' attribute requires exactly {wanted} arguments"));
        }
        let mut values = Vec::new();
        for arg in &attribute.args {
            let (value, _) = self.constant_integer(arg)?;
            if value == 0 || value > u64::from(u32::MAX) {
                return self.error(arg.span, format!("'{name}' attribute must be greater than 0"));
            }
            values.push(value);
        }
        match (name.as_str(), &values[..]) {
            ("reqd_work_group_size", [x, y, z]) => kernel.required_group = Some([*x, *y, *z]),
            ("work_group_size_hint", [x, y, z]) => kernel.group_hint = Some([*x, *y, *z]),
            (_, [n, ..]) => kernel.required_sub_group = Some(*n as u32),
            _ => {}
        }
        Some(())
    }

    /// Analyzes the statements of a body; faulty ones are omitted together with the body.
    pub(super) fn statements(&mut self, list: &[crate::parse::ast::Stmt]) -> Option<Vec<Stmt>> {
        if self.has_labels(list) {
            return self.labelled_block(list);
        }
        let mut out = Vec::with_capacity(list.len());
        let mut all_fine = true;
        for stmt in list {
            all_fine &= self.statement(stmt, &mut out).is_some();
            if self.diagnostics.too_many() {
                return None;
            }
        }
        all_fine.then_some(out)
    }
}
