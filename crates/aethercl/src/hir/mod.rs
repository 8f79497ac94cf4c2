//! The typed program: the front end's output and the input of execution.
//!
//! Everything is resolved. Names are indices, every implicit conversion is a separate expression, and built-in functions are [`Builtin`]s whose
//! operands already have the parameter types. `sizeof` and constants are folded, initializers are lists of stores at byte offsets. A body consists of
//! three kinds of nodes:
//!
//! - a [`Place`] is a memory location (an lvalue): variable, element, member, lanes of a vector;
//! - an [`Expr`] is a value; [`ExprKind::Load`] reads a place, [`ExprKind::AddressOf`] takes its address;
//! - a [`Stmt`] is control flow or an expression evaluated for its effect.
//!
//! OpenCL C does not allow recursion, and the front end rejects it: the call graph is acyclic.

mod builtin;
mod order;
mod tree;
mod visit;

pub use builtin::{Builtin, ImageQuery, Reduction, Rounding, Scan};
pub use order::{MemoryOrder, MemoryScope};
pub use tree::{
    BinaryOp, Case, CompareOp, Expr, ExprKind, FormatPiece, Init, InitPart, LogicalOp, Place, PlaceKind,
    StepResult, Stmt, StmtKind, UnaryOp,
};
pub use visit::{Node, visit};

use crate::source::{SourceMap, Span};
use crate::types::{Space, Type, Types};
use std::collections::BTreeMap;

/// Number of a function, in the order of first declarations: its key in [`TranslationUnit::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);
/// Index of a variable in [`Function::locals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalId(pub u32);
/// Index of a variable in [`TranslationUnit::globals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GlobalId(pub u32);

/// A complete translation unit that passed every check of the front end.
#[derive(Clone, Debug)]
pub struct TranslationUnit {
    /// Pointer, array and record types that [`Type`]s refer to.
    pub types: Types,
    /// Functions with a body.
    pub functions: BTreeMap<FunctionId, Function>,
    /// Variables of program scope, `__constant` variables of functions, and string literals.
    pub globals: Vec<Global>,
    /// The sources, for converting [`Span`]s to lines and columns.
    pub sources: SourceMap,
    /// Warnings in the format of a compiler; those about the program only if the options request them.
    pub warnings: String,
}

/// A function with a body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Result type; `void` for kernels.
    pub ret: Type,
    /// Number of parameters: the first entries of `locals`, in order.
    pub params: usize,
    /// Parameters, then every variable of every block, `__local` ones included.
    pub locals: Vec<Local>,
    /// The statements.
    pub body: Vec<Stmt>,
    /// Set on kernels.
    pub kernel: Option<Kernel>,
    /// Span of the name in its definition.
    pub span: Span,
}

/// Additional properties of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `reqd_work_group_size`.
    pub required_group: Option<[u64; 3]>,
    /// `work_group_size_hint`.
    pub group_hint: Option<[u64; 3]>,
    /// `vec_type_hint`: the type in source form.
    pub vector_hint: Option<String>,
    /// `intel_reqd_sub_group_size` or `reqd_sub_group_size`.
    pub required_sub_group: Option<u32>,
}

/// A parameter or a variable of a function.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its name; empty for a temporary of the front end.
    pub name: String,
    /// Its type. A pointer parameter of a kernel has the space of its argument.
    pub ty: Type,
    /// Private, or local: one per work-group, declared in a kernel's body.
    pub space: Space,
    /// Alignment in bytes, from the type or an attribute.
    pub align: u64,
    /// Whether a pointer to it (or into it) is created: it then needs memory. If false, only whole-place loads and stores, members, lanes and
    /// [`PlaceKind::Index`] access it.
    pub address_taken: bool,
    /// Declared `const`.
    pub is_const: bool,
    /// Declared `volatile`.
    pub is_volatile: bool,
    /// A pointer declared `restrict`.
    pub is_restrict: bool,
    /// Span of its declaration.
    pub span: Span,
}

/// A variable that exists once for the program.
#[derive(Clone, Debug)]
pub struct Global {
    /// Its name; empty for string literals.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Constant, or global (OpenCL C 2.0 and later).
    pub space: Space,
    /// Alignment in bytes.
    pub align: u64,
    /// Declared `const` or `__constant`.
    pub is_const: bool,
    /// Its bytes before the first launch; the length is the type's size.
    pub data: Vec<u8>,
    /// Positions in `data` that hold addresses of other globals.
    pub relocations: Vec<Relocation>,
    /// Span of its declaration.
    pub span: Span,
}

/// Eight bytes of a global's data that hold another global's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Byte offset in the data.
    pub offset: u64,
    /// Variable whose address is stored.
    pub target: GlobalId,
    /// Bytes to add to it.
    pub addend: i64,
}

impl TranslationUnit {
    /// Returns a function by its index.
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[&id]
    }

    /// Returns a program-scope variable by its index.
    pub fn global(&self, id: GlobalId) -> &Global {
        &self.globals[id.0 as usize]
    }

    /// Returns the kernel with this name.
    pub fn kernel(&self, name: &str) -> Option<FunctionId> {
        self.functions.iter().find(|(_, f)| f.kernel.is_some() && f.name == name).map(|(id, _)| *id)
    }
}

impl Function {
    /// Returns a parameter or variable by its index.
    pub fn local(&self, id: LocalId) -> &Local {
        &self.locals[id.0 as usize]
    }
}
