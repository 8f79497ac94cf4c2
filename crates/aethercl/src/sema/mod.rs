//! Converts the syntax tree to the typed program: resolves names, checks types, makes conversions explicit, resolves overloads of built-ins, folds
//! constants.

mod assign;
mod builtin;
mod call;
mod cast;
mod constant;
mod convert;
mod declare;
mod expr;
mod fold;
mod function;
mod init;
mod labels;
mod operator;
mod order;
mod place;
mod record;
mod scope;
mod stmt;
mod swizzle;
mod ternary;

use std::collections::{BTreeMap, HashMap};

use crate::hir::{Expr, ExprKind, Function, FunctionId, Global, GlobalId, Local, LocalId, Place, PlaceKind};
use crate::lex::{Names, Symbol};
use crate::parse::ast::Item;
use crate::source::{Diagnostics, Span};
use crate::types::{PointerType, Space, Type, Types};
use scope::Scope;

/// A type with its qualifiers, in the form of declarations and typedefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qualified {
    ty: Type,
    is_const: bool,
    is_volatile: bool,
    is_restrict: bool,
    space: Option<Space>,
    /// From an attribute; 0 for the type's natural alignment.
    aligned: u32,
}

impl Qualified {
    fn plain(ty: Type) -> Self {
        Self { ty, is_const: false, is_volatile: false, is_restrict: false, space: None, aligned: 0 }
    }
}

/// A place with its permitted operations.
#[derive(Clone, Debug)]
pub(crate) struct Lvalue {
    place: Place,
    is_const: bool,
    is_volatile: bool,
    aligned: u32,
}

/// An expression before it is read.
pub(crate) enum Operand {
    /// A value.
    Value(Expr),
    /// A place.
    Place(Lvalue),
}

/// A declared function; its body may come later.
struct Declared {
    name: String,
    ret: Type,
    params: Vec<Type>,
    body: Option<Function>,
    span: Span,
    is_kernel: bool,
    /// Functions that it calls, with the place of the first call.
    calls: Vec<(usize, Span)>,
    /// Someone calls it.
    called: Option<Span>,
}

/// A construct that a jump can leave.
enum Nest {
    /// A loop.
    Loop,
    /// A `switch`.
    Switch,
    /// A block with labels: a loop with a `switch` in it, which is invisible to `break` and `continue`.
    Labelled(labels::Labels),
    /// A statement expression: only `return` leaves it.
    Expression,
}

/// The function whose body is analyzed.
struct Current {
    ret: Type,
    is_kernel: bool,
    locals: Vec<Local>,
    /// The constructs that `break`, `continue` and `goto` leave, innermost last.
    nest: Vec<Nest>,
    /// `const` integers with a constant value, permitted in array sizes.
    known: HashMap<LocalId, (u64, Type)>,
    calls: Vec<(usize, Span)>,
    /// State of `goto` into blocks.
    entries: labels::Entries,
}

/// Language features of this build.
pub(crate) struct Features {
    /// 100, 110, 120, 200 or 300.
    pub version: u32,
    /// `half` arithmetic.
    pub fp16: bool,
    /// `double`.
    pub fp64: bool,
    /// Floating constants without suffix are `float`.
    pub single_precision_constant: bool,
    /// Whether called functions may be defined elsewhere: the unit will be linked with others.
    pub open: bool,
}

/// The result of the analysis.
pub(crate) struct Analysed {
    /// Every type.
    pub types: Types,
    /// Functions with a body.
    pub functions: BTreeMap<FunctionId, Function>,
    /// Globals.
    pub globals: Vec<Global>,
}

/// The analysis of one unit.
pub(crate) struct Sema<'a> {
    names: &'a Names,
    diagnostics: &'a mut Diagnostics,
    features: &'a Features,
    types: Types,
    functions: Vec<Declared>,
    globals: Vec<Global>,
    /// Variables declared `extern` that are not defined yet, with their first use.
    externs: BTreeMap<GlobalId, Option<Span>>,
    scopes: Vec<Scope>,
    current: Option<Current>,
    /// Nesting depth of structures by record; see [`record`].
    record_depth: HashMap<Type, usize>,
    strings: HashMap<Vec<u8>, GlobalId>,
    builtins: builtin::Table,
}

/// Checks a unit; returns `None` if there were errors.
pub(crate) fn analyse(
    items: &[Item],
    names: &mut Names,
    features: &Features,
    diagnostics: &mut Diagnostics,
) -> Option<Analysed> {
    let base = scope::base(names);
    let mut sema = Sema {
        names,
        diagnostics,
        features,
        types: Types::default(),
        functions: Vec::new(),
        globals: Vec::new(),
        externs: BTreeMap::new(),
        scopes: vec![base, Scope::default()],
        current: None,
        record_depth: HashMap::new(),
        strings: HashMap::new(),
        builtins: builtin::Table::new(),
    };
    for item in items {
        if sema.diagnostics.too_many() {
            break;
        }
        sema.scopes.truncate(2);
        sema.current = None;
        sema.item(item);
    }
    if sema.diagnostics.failed() {
        return None;
    }
    sema.finish()
}

impl Sema<'_> {
    fn text(&self, symbol: Symbol) -> &str {
        self.names.text(symbol)
    }

    fn error<T>(&mut self, span: Span, message: impl Into<String>) -> Option<T> {
        self.diagnostics.error(span, message);
        None
    }

    fn type_name(&self, ty: Type) -> String {
        self.types.name(ty)
    }

    /// Returns the address space of a pointee without a qualifier.
    fn default_space(&self) -> Space {
        if self.features.version >= 200 { Space::Generic } else { Space::Private }
    }

    /// Returns the pointer type that `&place` has.
    fn pointer_to_place(&mut self, lvalue: &Lvalue, to: Type) -> Type {
        let is_const = lvalue.is_const || lvalue.place.space == Space::Constant;
        self.types.pointer_to(PointerType {
            to,
            space: lvalue.place.space,
            is_const,
            is_volatile: lvalue.is_volatile,
            aligned: lvalue.aligned,
        })
    }

    /// Adds a variable to the current function; `None` outside a function.
    fn new_local(&mut self, local: Local) -> Option<LocalId> {
        let current = self.current.as_mut()?;
        current.locals.push(local);
        Some(LocalId(current.locals.len() as u32 - 1))
    }

    /// Adds an unnamed private variable.
    fn temporary(&mut self, ty: Type, span: Span) -> Option<Lvalue> {
        let align = self.types.align(ty);
        let local = Local {
            name: String::new(),
            ty,
            space: Space::Private,
            align,
            address_taken: false,
            is_const: false,
            is_volatile: false,
            is_restrict: false,
            span,
        };
        let id = self.new_local(local)?;
        let place = Place { kind: PlaceKind::Local(id), ty, space: Space::Private, span };
        Some(Lvalue { place, is_const: false, is_volatile: false, aligned: 0 })
    }

    /// Records that a pointer to (or into) a place exists.
    fn take_address(&mut self, place: &Place) {
        let mut at = place;
        loop {
            match &at.kind {
                PlaceKind::Index { base, .. }
                | PlaceKind::Member { base, .. }
                | PlaceKind::Lanes { base, .. } => {
                    at = base;
                }
                PlaceKind::Local(id) => {
                    if let Some(local) = self.current.as_mut().and_then(|c| c.locals.get_mut(id.0 as usize)) {
                        local.address_taken = true;
                    }
                    return;
                }
                PlaceKind::Global(_) | PlaceKind::Deref(_) => return,
            }
        }
    }

    /// Reads an operand: the content of a place; for an array, a pointer to its first element.
    fn value(&mut self, operand: Operand) -> Expr {
        let lvalue = match operand {
            Operand::Value(expr) => return expr,
            Operand::Place(lvalue) => lvalue,
        };
        let span = lvalue.place.span;
        if let Type::Array(id) = lvalue.place.ty {
            let of = self.types.array(id).of;
            let ty = self.pointer_to_place(&lvalue, of);
            self.take_address(&lvalue.place);
            return Expr { kind: ExprKind::AddressOf(Box::new(lvalue.place)), ty, span };
        }
        let ty = lvalue.place.ty;
        Expr { kind: ExprKind::Load(Box::new(lvalue.place)), ty, span }
    }
}
