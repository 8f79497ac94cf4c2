//! Expressions.

use super::scope::Entity;
use super::{Lvalue, Operand, Sema, fold};
use crate::hir::{Expr, Global, GlobalId, Place, PlaceKind, UnaryOp};
use crate::lex::{Number, Symbol, parse_char, parse_number, parse_text};
use crate::parse::ast::{self, TypeName};
use crate::source::Span;
use crate::types::{BOOL, INT, Scalar, Space, Type};

impl Sema<'_> {
    /// Returns the value of an expression.
    pub(super) fn rvalue(&mut self, ast: &ast::Expr) -> Option<Expr> {
        let operand = self.operand(ast)?;
        if let Operand::Place(lvalue) = &operand {
            self.check_half(lvalue.place.ty, ast.span)?;
        }
        Some(self.value(operand))
    }

    /// Checks uses of `half`: without the extension it is only allowed as a pointer target.
    pub(super) fn check_half(&mut self, ty: Type, span: Span) -> Option<()> {
        if ty.element() == Some(Scalar::F16) && !self.features.fp16 {
            return self.error(
                span,
                "reading or writing 'half' requires cl_khr_fp16; use vload_half and vstore_half",
            );
        }
        Some(())
    }

    /// Returns the type of an operand before it is read: arrays stay arrays.
    pub(super) fn operand_type(&self, operand: &Operand) -> Type {
        match operand {
            Operand::Value(expr) => expr.ty,
            Operand::Place(lvalue) => lvalue.place.ty,
        }
    }

    /// Analyzes an expression as a value or place.
    pub(super) fn operand(&mut self, ast: &ast::Expr) -> Option<Operand> {
        let span = ast.span;
        let value = match &ast.kind {
            ast::ExprKind::Name(name) => return self.name(*name, span),
            ast::ExprKind::Number(text) => self.number(*text, span)?,
            ast::ExprKind::Char(text) => match parse_char(self.text(*text)) {
                Ok(value) => fold::int(value as u64, INT, span),
                Err(why) => return self.error(span, why),
            },
            ast::ExprKind::Text(texts) => return self.string(texts, span),
            ast::ExprKind::Unary(op, operand) => return self.unary(op, operand, span),
            ast::ExprKind::Postfix(op, operand) => self.step(op, operand, true, span)?,
            ast::ExprKind::Binary(op, left, right) => self.binary(op, left, right, span)?,
            ast::ExprKind::Assign(op, left, right) => self.assign(*op, left, right, span)?,
            ast::ExprKind::Ternary(cond, then, otherwise) => self.ternary(cond, then, otherwise, span)?,
            ast::ExprKind::Call(callee, args) => self.call(callee, args, span)?,
            ast::ExprKind::Index(base, index) => return self.index(base, index, span),
            ast::ExprKind::Member(base, name, arrow) => return self.member(base, *name, *arrow, span),
            ast::ExprKind::Cast(ty, operand) => self.cast(ty, operand, span)?,
            ast::ExprKind::Vector(ty, elements) => self.vector_literal(ty, elements, span)?,
            ast::ExprKind::Compound(ty, init) => return self.compound_literal(ty, init, span),
            ast::ExprKind::TypeQuery(what, ty) => self.type_query(what, ty, span)?,
            ast::ExprKind::ExprQuery(what, operand) => self.expr_query(what, operand, span)?,
            ast::ExprKind::Statements(list) => self.statement_expression(list, span)?,
        };
        Some(Operand::Value(value))
    }

    fn name(&mut self, name: Symbol, span: Span) -> Option<Operand> {
        let (kind, ty, space, is_const, is_volatile, aligned) = match self.lookup(name) {
            Some(Entity::Local(id)) => {
                let local = self.current.as_ref()?.locals.get(id.0 as usize)?;
                let (ty, space) = (local.ty, local.space);
                (PlaceKind::Local(id), ty, space, local.is_const, local.is_volatile, 0)
            }
            Some(Entity::Global(id)) => {
                if let Some(used) = self.externs.get_mut(&id) {
                    used.get_or_insert(span);
                }
                let global = self.globals.get(id.0 as usize)?;
                (PlaceKind::Global(id), global.ty, global.space, global.is_const, false, 0)
            }
            Some(Entity::Constant(bits, ty)) => return Some(Operand::Value(fold::int(bits, ty, span))),
            Some(Entity::Function(_)) => {
                let name = self.text(name).to_string();
                return self.error(
                    span,
                    format!("function '{name}' must be called: taking its address is not allowed"),
                );
            }
            Some(Entity::Broken) => return None,
            Some(Entity::Typedef(_)) => {
                let name = self.text(name).to_string();
                return self.error(span, format!("unexpected type name '{name}': expected expression"));
            }
            None => {
                let hint = self.suggest(name, false);
                let name = self.text(name).to_string();
                return self.error(span, format!("use of undeclared identifier '{name}'{hint}"));
            }
        };
        let place = Place { kind, ty, space, span };
        Some(Operand::Place(Lvalue { place, is_const, is_volatile, aligned }))
    }

    fn number(&mut self, text: Symbol, span: Span) -> Option<Expr> {
        let double = self.features.fp64 && !self.features.single_precision_constant;
        let default = if double { Scalar::F64 } else { Scalar::F32 };
        match parse_number(self.text(text), default) {
            Ok(Number::Int(bits, s)) => Some(fold::int(bits, Type::Scalar(s), span)),
            Ok(Number::Float(_, Scalar::F16)) if !self.features.fp16 => {
                self.error(span, "half precision constant requires cl_khr_fp16")
            }
            Ok(Number::Float(value, s)) => Some(fold::float(value, Type::Scalar(s), span)),
            Err(why) => self.error(span, why),
        }
    }

    /// Analyzes a string literal: an array of the program, in constant memory.
    fn string(&mut self, texts: &[Symbol], span: Span) -> Option<Operand> {
        let data = self.string_bytes(texts, span)?;
        let id = self.string_global(data, span);
        let ty = self.globals.get(id.0 as usize)?.ty;
        let place = Place { kind: PlaceKind::Global(id), ty, space: Space::Constant, span };
        Some(Operand::Place(Lvalue { place, is_const: true, is_volatile: false, aligned: 0 }))
    }

    /// Returns the bytes of adjacent literals, with a terminating zero.
    pub(super) fn string_bytes(&mut self, texts: &[Symbol], span: Span) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        for text in texts {
            match parse_text(self.text(*text)) {
                Ok(bytes) => data.extend(bytes),
                Err(why) => return self.error(span, why),
            }
        }
        data.push(0);
        Some(data)
    }

    pub(super) fn string_global(&mut self, data: Vec<u8>, span: Span) -> GlobalId {
        if let Some(id) = self.strings.get(&data) {
            return *id;
        }
        let ty = self.types.array_of(Type::Scalar(Scalar::I8), data.len() as u64);
        let id = GlobalId(self.globals.len() as u32);
        self.strings.insert(data.clone(), id);
        self.globals.push(Global {
            name: String::new(),
            ty,
            space: Space::Constant,
            align: 1,
            is_const: true,
            data,
            relocations: Vec::new(),
            span,
        });
        id
    }

    fn unary(&mut self, op: &str, operand: &ast::Expr, span: Span) -> Option<Operand> {
        match op {
            "*" => return self.dereference(operand, span),
            "&" => return self.address_of(operand, span).map(Operand::Value),
            "++" | "--" => return self.step(op, operand, false, span).map(Operand::Value),
            _ => {}
        }
        let value = self.rvalue(operand)?;
        let Some(element) = value.ty.element() else {
            if op == "!" && value.ty.is_pointer() {
                return self.not(value, span).map(Operand::Value);
            }
            return self.bad_operand(value.ty, span);
        };
        if op != "!" {
            self.check_arithmetic(value.ty, span)?;
        }
        let value = match op {
            "+" => self.promote(value),
            "-" => fold::unary(UnaryOp::Neg, self.promote(value), span),
            "~" if element.is_float() => return self.bad_operand(value.ty, span),
            "~" => fold::unary(UnaryOp::Not, self.promote(value), span),
            _ => self.not(value, span)?,
        };
        Some(Operand::Value(value))
    }

    fn bad_operand<T>(&mut self, ty: Type, span: Span) -> Option<T> {
        let name = self.type_name(ty);
        self.error(span, format!("invalid argument type '{name}' to unary expression"))
    }

    /// `!x`: `int`, or integers of a vector's lanes.
    fn not(&mut self, value: Expr, span: Span) -> Option<Expr> {
        if value.ty.is_vector() {
            let zero = super::convert::zero_of(value.ty, span);
            return Some(fold::compare(crate::hir::CompareOp::Eq, value, zero, span));
        }
        let truth = self.condition(value)?;
        let no = fold::int(0, BOOL, span);
        Some(fold::convert(fold::compare(crate::hir::CompareOp::Eq, truth, no, span), INT))
    }

    /// Checks that `half` is used in arithmetic only with the extension.
    pub(super) fn check_arithmetic(&mut self, ty: Type, span: Span) -> Option<()> {
        if ty.element() == Some(Scalar::F16) && !self.features.fp16 {
            return self
                .error(span, "arithmetic on 'half' requires cl_khr_fp16; use vload_half and vstore_half");
        }
        Some(())
    }

    fn type_query(&mut self, what: &str, ty: &TypeName, span: Span) -> Option<Expr> {
        let q = self.named_type(ty)?;
        self.query(what, q.ty, u64::from(q.aligned), span)
    }

    fn expr_query(&mut self, what: &str, operand: &ast::Expr, span: Span) -> Option<Expr> {
        let ty = self.unevaluated(|s| s.operand(operand).map(|o| s.operand_type(&o)))?;
        self.query(what, ty, 0, span)
    }

    /// `sizeof`, `_Alignof`, `vec_step`.
    fn query(&mut self, what: &str, ty: Type, aligned: u64, span: Span) -> Option<Expr> {
        if let Type::Record(id) = ty
            && !self.types.record(id).complete
        {
            let name = self.type_name(ty);
            return self
                .error(span, format!("invalid application of '{what}' to an incomplete type '{name}'"));
        }
        let size_t = self.size_type();
        Some(match what {
            "sizeof" => fold::int(self.types.size(ty), size_t, span),
            "vec_step" => fold::int(if ty.lanes() == 3 { 4 } else { ty.lanes().into() }, INT, span),
            _ => fold::int(if aligned > 0 { aligned } else { self.types.align(ty) }, size_t, span),
        })
    }

    /// Runs an analysis and discards its code: the operand of `sizeof` is not executed.
    pub(super) fn unevaluated<T>(&mut self, run: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let taken: Option<Vec<bool>> =
            self.current.as_ref().map(|c| c.locals.iter().map(|l| l.address_taken).collect());
        let result = run(self);
        if let (Some(taken), Some(current)) = (taken, &mut self.current) {
            current.locals.truncate(taken.len());
            for (local, was) in current.locals.iter_mut().zip(taken) {
                local.address_taken = was;
            }
        }
        result
    }
}
