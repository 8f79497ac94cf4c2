//! Converts specifiers and declarators to types, and declarations to variables.

use super::scope::Entity;
use super::{Qualified, Sema};
use crate::hir::{Global, GlobalId, Init, Local, Stmt, StmtKind};
use crate::parse::ast::{
    Attribute, Declaration, Declarator, Derived, Initializer, Item, Specs, StaticAssert, Storage, TypeName,
    TypeSpec,
};
use crate::source::Span;
use crate::types::{PointerType, SIZE_T, Scalar, Space, Type};

/// Maximum number of pointers and arrays around one type, including typedefs.
const MAX_TYPE_DEPTH: usize = 32;
/// Maximum bytes of one object: more than any device has.
const MAX_SIZE: u64 = 1 << 40;

impl Sema<'_> {
    /// One item of program scope.
    pub(super) fn item(&mut self, item: &Item) {
        match item {
            // The guard ensures that an unparsed construct is reported.
            Item::Function(function) => {
                if self.function(function).is_none() {
                    self.scopes.truncate(2);
                    self.bind_broken(&function.declarator);
                    if !self.diagnostics.failed() {
                        self.diagnostics.error(function.specs.span, "this function could not be understood");
                    }
                }
            }
            Item::Declaration(declaration) => _ = self.program_declaration(declaration),
            Item::StaticAssert(assert) => _ = self.static_assert(assert),
        }
    }

    pub(super) fn static_assert(&mut self, assert: &StaticAssert) -> Option<()> {
        let value = self.constant_integer(&assert.cond)?;
        if value.0 != 0 {
            return Some(());
        }
        let text = assert.text.map_or(String::new(), |t| format!(": {}", self.text(t)));
        self.error(assert.cond.span, format!("static assertion failed{text}"))
    }

    fn program_declaration(&mut self, declaration: &Declaration) -> Option<()> {
        let base = self.base_type(&declaration.specs);
        for (declarator, init) in &declaration.declarators {
            let done =
                base.and_then(|base| self.program_declarator(declaration, base, declarator, init.as_ref()));
            if done.is_none() {
                self.bind_broken(declarator);
                if !self.diagnostics.failed() {
                    self.diagnostics
                        .error(declaration.specs.span, "this declaration could not be understood");
                }
            }
        }
        Some(())
    }

    fn program_declarator(
        &mut self,
        declaration: &Declaration,
        base: Qualified,
        declarator: &Declarator,
        init: Option<&Initializer>,
    ) -> Option<()> {
        let (name, span) = declarator.name?;
        if let Some(Derived::Function(params, _)) = declarator.parts.first()
            && declaration.specs.storage != Some(Storage::Typedef)
        {
            return self.prototype(&declaration.specs, declarator, params);
        }
        let extern_only = declaration.specs.storage == Some(Storage::Extern) && init.is_none();
        let mut q = self.declared_type(base, declarator, init.is_some() || extern_only)?;
        self.apply_attributes(&declarator.attributes, &mut q)?;
        if declaration.specs.storage == Some(Storage::Typedef) {
            return self.typedef(name, q, span);
        }
        if extern_only {
            return self.extern_variable(declarator, q);
        }
        self.program_variable(declarator, q, init).map(|_| ())
    }

    /// Declares a variable with one instance: program-scope, or `__constant` or `static` in a function.
    pub(super) fn program_variable(
        &mut self,
        declarator: &Declarator,
        mut q: Qualified,
        init: Option<&Initializer>,
    ) -> Option<GlobalId> {
        let (name, span) = declarator.name?;
        let space = match q.space {
            Some(space) => space,
            // Its value is part of the program.
            None if q.ty == Type::Sampler => Space::Constant,
            None if self.features.version >= 200 => Space::Global,
            None => {
                let name = self.text(name).to_string();
                return self.error(
                    span,
                    format!("program scope variable '{name}' must reside in constant address space"),
                );
            }
        };
        if space == Space::Global && self.features.version < 200
            || matches!(space, Space::Private | Space::Local)
        {
            return self.error(span, "program scope variable must reside in constant address space");
        }
        let length_from_init =
            matches!(q.ty, Type::Array(id) if self.types.array(id).len == 0) && init.is_some();
        if !length_from_init {
            self.check_variable(q.ty, span)?;
        }
        if space == Space::Constant && init.is_none() {
            return self.error(span, "variable in constant address space must be initialized");
        }
        let (data, relocations) = match init {
            Some(init) => {
                let (ty, data) = self.constant_data(q.ty, init, span)?;
                q.ty = ty;
                self.check_object(ty, span)?;
                data
            }
            None => (vec![0; self.types.size(q.ty) as usize], Vec::new()),
        };
        let align = self.types.align(q.ty).max(u64::from(q.aligned));
        let variable = Global {
            name: self.text(name).to_string(),
            ty: q.ty,
            space,
            align,
            is_const: q.is_const || space == Space::Constant,
            data,
            relocations,
            span,
        };
        if let Some(id) = self.declared_before(name, &variable) {
            self.globals[id.0 as usize] = variable;
            self.externs.remove(&id);
            return Some(id);
        }
        self.globals.push(variable);
        let id = GlobalId(self.globals.len() as u32 - 1);
        self.bind(name, Entity::Global(id), span)?;
        Some(id)
    }

    /// Returns the variable of this name that so far has only been declared `extern`, if its type and space are the same.
    fn declared_before(&self, name: crate::lex::Symbol, variable: &Global) -> Option<GlobalId> {
        let Some((Entity::Global(id), _)) = self.lookup_here(name) else { return None };
        let before = self.globals.get(id.0 as usize)?;
        let same = before.space == variable.space && self.same_but_length(before.ty, variable.ty);
        (same && self.externs.contains_key(&id)).then_some(id)
    }

    /// Returns true for the same type, or arrays of one element type if one does not have a length yet.
    fn same_but_length(&self, a: Type, b: Type) -> bool {
        let (Type::Array(x), Type::Array(y)) = (a, b) else { return a == b };
        let (x, y) = (self.types.array(x), self.types.array(y));
        x.of == y.of && (x.len == y.len || x.len == 0 || y.len == 0)
    }

    /// Handles `extern T x;`: a variable that this unit, or one linked with it, defines.
    fn extern_variable(&mut self, declarator: &Declarator, q: Qualified) -> Option<()> {
        let (name, span) = declarator.name?;
        let space = match q.space {
            Some(space @ (Space::Constant | Space::Global)) => space,
            None if self.features.version >= 200 => Space::Global,
            _ => return self.error(span, "program scope variable must reside in constant address space"),
        };
        let variable = Global {
            name: self.text(name).to_string(),
            ty: q.ty,
            space,
            align: self.types.align(q.ty).max(u64::from(q.aligned)),
            is_const: q.is_const || space == Space::Constant,
            data: vec![0; self.types.size(q.ty) as usize],
            relocations: Vec::new(),
            span,
        };
        let known = self.scopes.get(1).and_then(|s| s.variable(name));
        let id = match known {
            Some(id) => {
                let before = &self.globals[id.0 as usize];
                if before.space != space || !self.same_but_length(before.ty, q.ty) {
                    let name = self.text(name).to_string();
                    return self.error(span, format!("redeclaration of '{name}' with a different type"));
                }
                id
            }
            None => {
                self.globals.push(variable);
                let id = GlobalId(self.globals.len() as u32 - 1);
                self.externs.insert(id, None);
                if let Some(scope) = self.scopes.get_mut(1) {
                    scope.insert_variable(name, id, span);
                }
                id
            }
        };
        self.rebind(name, Entity::Global(id), span);
        Some(())
    }

    fn typedef(&mut self, name: crate::lex::Symbol, q: Qualified, span: Span) -> Option<()> {
        // Repeating an identical declaration is allowed.
        if let Some((Entity::Typedef(before), _)) = self.lookup_here(name)
            && before == q
        {
            return Some(());
        }
        self.bind(name, Entity::Typedef(q), span)
    }

    /// Analyzes a declaration in a function.
    pub(super) fn local_declaration(&mut self, declaration: &Declaration, out: &mut Vec<Stmt>) -> Option<()> {
        let Some(base) = self.base_type(&declaration.specs) else {
            declaration.declarators.iter().for_each(|(d, _)| self.bind_broken(d));
            return None;
        };
        let mut all_fine = Some(());
        for (declarator, init) in &declaration.declarators {
            if self.local_declarator(declaration, base, declarator, init.as_ref(), out).is_none() {
                all_fine = None;
                self.bind_broken(declarator);
            }
        }
        all_fine
    }

    /// Declares a faulty name, so that its uses are not reported too.
    pub(super) fn bind_broken(&mut self, declarator: &Declarator) {
        if let Some((name, span)) = declarator.name
            && self.lookup_here(name).is_none()
        {
            self.rebind(name, Entity::Broken, span);
        }
    }

    fn local_declarator(
        &mut self,
        declaration: &Declaration,
        base: Qualified,
        declarator: &Declarator,
        init: Option<&Initializer>,
        out: &mut Vec<Stmt>,
    ) -> Option<()> {
        let (name, span) = declarator.name?;
        if let Some(Derived::Function(..)) = declarator.parts.first() {
            return self.error(span, "functions are declared at program scope");
        }
        let open = init.is_some() || declaration.specs.storage == Some(Storage::Extern);
        let mut q = self.declared_type(base, declarator, open)?;
        self.apply_attributes(&declarator.attributes, &mut q)?;
        match declaration.specs.storage {
            Some(Storage::Typedef) => return self.typedef(name, q, span),
            Some(Storage::Extern) => return self.extern_variable(declarator, q),
            Some(Storage::Static) if q.space != Some(Space::Constant) && self.features.version < 200 => {
                return self.error(span, "variables in function scope cannot be declared static");
            }
            _ => {}
        }
        let is_static = declaration.specs.storage == Some(Storage::Static);
        if q.space == Some(Space::Constant) || q.space == Some(Space::Global) || is_static {
            if q.space == Some(Space::Global) && !is_static {
                return self
                    .error(span, "function scope variable cannot be declared in global address space");
            }
            return self.program_variable(declarator, q, init).map(|_| ());
        }
        if q.space == Some(Space::Generic) {
            return self.error(span, "automatic variable cannot be in the generic address space");
        }
        self.local_variable(declarator, q, init, out)
    }

    fn local_variable(
        &mut self,
        declarator: &Declarator,
        q: Qualified,
        init: Option<&Initializer>,
        out: &mut Vec<Stmt>,
    ) -> Option<()> {
        let (name, span) = declarator.name?;
        let space = q.space.unwrap_or(Space::Private);
        if space == Space::Local {
            if init.is_some() {
                return self.error(span, "'__local' variable cannot have an initializer");
            }
            if !self.current.as_ref().is_some_and(|c| c.is_kernel) {
                return self
                    .error(span, "non-kernel function variable cannot be declared in local address space");
            }
        }
        let unsized_array =
            matches!(q.ty, Type::Array(id) if self.types.array(id).len == 0) && init.is_some();
        if !unsized_array {
            self.check_variable(q.ty, span)?;
        }
        let local = self.local_of(name, q, space, span);
        let id = self.new_local(local)?;
        // The name is in scope in its own initializer, the same as in C.
        self.bind(name, Entity::Local(id), span)?;
        let init = match init {
            Some(init) => Some(self.initializer(id, q.ty, init)?),
            None => None,
        };
        self.note_constant(id, q, init.as_ref());
        out.push(Stmt { kind: StmtKind::Declare { local: id, init }, span });
        Some(())
    }

    pub(super) fn local_of(&self, name: crate::lex::Symbol, q: Qualified, space: Space, span: Span) -> Local {
        Local {
            name: self.text(name).to_string(),
            ty: q.ty,
            space,
            align: self.types.align(q.ty).max(u64::from(q.aligned)),
            address_taken: false,
            is_const: q.is_const,
            is_volatile: q.is_volatile,
            is_restrict: q.is_restrict,
            span,
        }
    }

    /// Records a `const` integer's value.
    fn note_constant(&mut self, id: crate::hir::LocalId, q: Qualified, init: Option<&Init>) {
        if let (true, true, Some(Init::Value(value))) = (q.is_const, q.ty.is_integer(), init)
            && let crate::hir::ExprKind::Int(bits) = value.kind
            && let Some(current) = &mut self.current
        {
            current.known.insert(id, (bits, q.ty));
        }
    }

    /// Checks that a variable or field of this type is allowed; an image can only be a parameter.
    pub(super) fn check_variable(&mut self, ty: Type, span: Span) -> Option<()> {
        let mut inner = ty;
        while let Type::Array(id) = inner {
            inner = self.types.array(id).of;
        }
        if let Type::Image(..) = inner {
            let name = self.type_name(inner);
            return self.error(span, format!("type '{name}' can only be used as a function parameter"));
        }
        self.check_object(ty, span)
    }

    /// Checks that an object of this type is allowed.
    pub(super) fn check_object(&mut self, ty: Type, span: Span) -> Option<()> {
        match ty {
            Type::Void => return self.error(span, "variable has incomplete type 'void'"),
            Type::Record(id) if !self.types.record(id).complete => {
                let name = self.type_name(ty);
                return self.error(span, format!("variable has incomplete type '{name}'"));
            }
            Type::Array(id) => {
                let array = self.types.array(id);
                if array.len == 0 {
                    return self.error(
                        span,
                        "definition of variable with array type needs an explicit size or an initializer",
                    );
                }
                return self.check_object(array.of, span);
            }
            _ => {}
        }
        if self.types.size(ty) > MAX_SIZE {
            return self.error(span, "object is too large");
        }
        self.check_element(ty, span)
    }

    /// Checks that the device supports the element type.
    fn check_element(&mut self, ty: Type, span: Span) -> Option<()> {
        match ty.element() {
            Some(Scalar::F64) if !self.features.fp64 => {
                self.error(span, "use of type 'double' requires cl_khr_fp64 to be enabled")
            }
            Some(Scalar::F16) if !self.features.fp16 => {
                let name = self.type_name(ty);
                self.error(
                    span,
                    format!("declaring variable of type '{name}' is not allowed without cl_khr_fp16"),
                )
            }
            _ => Some(()),
        }
    }

    /// Returns the type that specifiers name, with their qualifiers and attributes.
    pub(super) fn base_type(&mut self, specs: &Specs) -> Option<Qualified> {
        let mut q = match &specs.base {
            TypeSpec::Plain(ty) => Qualified::plain(*ty),
            TypeSpec::Typedef(name) => match self.lookup(*name) {
                Some(Entity::Typedef(q)) => q,
                _ => {
                    let name = self.text(*name).to_string();
                    return self.error(specs.span, format!("unknown type name '{name}'"));
                }
            },
            TypeSpec::Record(record) => Qualified::plain(self.record_type(record)?),
            TypeSpec::Enum(spec) => Qualified::plain(self.enum_type(spec)?),
            TypeSpec::TypeofType(name) => self.named_type(name)?,
            TypeSpec::TypeofExpr(expr) => {
                let ty = self.unevaluated(|s| s.operand(expr).map(|o| s.operand_type(&o)))?;
                Qualified::plain(ty)
            }
        };
        q.is_const |= specs.qualifiers.is_const;
        q.is_volatile |= specs.qualifiers.is_volatile;
        q.is_restrict |= specs.qualifiers.is_restrict;
        if let Some(space) = specs.qualifiers.space {
            if q.space.is_some_and(|s| s != space) {
                return self.error(specs.span, "multiple address spaces specified for type");
            }
            q.space = Some(space);
        }
        self.apply_attributes(&specs.attributes, &mut q)?;
        Some(q)
    }

    fn apply_attributes(&mut self, attributes: &[Attribute], q: &mut Qualified) -> Option<()> {
        for attribute in attributes.iter().filter(|a| a.name == "aligned") {
            let bytes = match attribute.args.first() {
                Some(arg) => self.constant_integer(arg)?.0,
                None => 16,
            };
            if !bytes.is_power_of_two() || bytes > 1 << 20 {
                return self.error(attribute.span, "requested alignment is not a power of 2");
            }
            q.aligned = bytes as u32;
        }
        for attribute in attributes.iter().filter(|a| a.name == "ext_vector_type") {
            let lanes = match attribute.args.first() {
                Some(arg) => self.constant_integer(arg)?.0,
                None => 0,
            };
            let (Type::Scalar(s), true) = (q.ty, matches!(lanes, 2 | 3 | 4 | 8 | 16)) else {
                return self
                    .error(attribute.span, "'ext_vector_type' makes vectors of 2, 3, 4, 8 or 16 scalars");
            };
            q.ty = Type::Vector(s, lanes as u8);
        }
        if let Some(vector) = attributes.iter().find(|a| a.name == "vector_size") {
            return self.error(vector.span, "'vector_size' is not OpenCL C; use float4 and its like");
        }
        Some(())
    }

    /// Returns the type of a declarator. With `open`, `[]` does not have a length yet: an initializer or another declaration provides it.
    pub(super) fn declared_type(
        &mut self,
        base: Qualified,
        declarator: &Declarator,
        open: bool,
    ) -> Option<Qualified> {
        let mut q = base;
        for (i, part) in declarator.parts.iter().enumerate().rev() {
            match part {
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
                    q = Qualified {
                        ty,
                        is_const: own.is_const,
                        is_volatile: own.is_volatile,
                        is_restrict: own.is_restrict,
                        space: own.space,
                        aligned: 0,
                    };
                }
                Derived::Array(size, span) => {
                    let len = match size {
                        Some(size) => self.array_length(size)?,
                        None if i == 0 && open => 0,
                        None => return self.error(*span, "array needs a size here"),
                    };
                    self.check_element_of_array(q.ty, *span)?;
                    q.ty = self.types.array_of(q.ty, len);
                    if self.types.size(q.ty) > MAX_SIZE {
                        return self.error(*span, "array is too large");
                    }
                }
                Derived::Function(_, span) => {
                    return self.error(*span, "pointers to functions are not allowed in OpenCL C");
                }
            }
        }
        let span = declarator.name.map_or(Span::default(), |n| n.1);
        self.check_type_depth(q.ty, span)?;
        Some(q)
    }

    fn check_element_of_array(&mut self, ty: Type, span: Span) -> Option<()> {
        match ty {
            Type::Void => self.error(span, "array of 'void'"),
            Type::Record(id) if !self.types.record(id).complete => {
                self.error(span, "array has incomplete element type")
            }
            Type::Array(id) if self.types.array(id).len == 0 => {
                self.error(span, "array has incomplete element type")
            }
            _ => Some(()),
        }
    }

    fn array_length(&mut self, size: &crate::parse::ast::Expr) -> Option<u64> {
        let (bits, ty) =
            self.constant_integer_or(size, "variable length arrays are not supported in OpenCL C")?;
        let negative = matches!(ty, Type::Scalar(s) if s.is_signed()) && super::fold::signed(bits, ty) < 0;
        if negative {
            return self.error(size.span, "array size is negative");
        }
        if bits == 0 {
            return self.error(size.span, "zero size arrays are not allowed");
        }
        Some(bits)
    }

    /// Rejects types that are nested too deeply for recursion.
    fn check_type_depth(&mut self, ty: Type, span: Span) -> Option<()> {
        let mut at = ty;
        for _ in 0..MAX_TYPE_DEPTH {
            at = match at {
                Type::Pointer(id) => self.types.pointer(id).to,
                Type::Array(id) => self.types.array(id).of,
                _ => return Some(()),
            };
        }
        self.error(span, "type nested too deeply")
    }

    /// Analyzes a type name in parentheses.
    pub(super) fn named_type(&mut self, name: &TypeName) -> Option<Qualified> {
        let base = self.base_type(&name.specs)?;
        let mut q = self.declared_type(base, &name.declarator, false)?;
        self.apply_attributes(&name.declarator.attributes, &mut q)?;
        Some(q)
    }

    /// Returns the type of `sizeof` and of sizes in general.
    pub(super) fn size_type(&self) -> Type {
        SIZE_T
    }
}
