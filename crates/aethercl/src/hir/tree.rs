//! Expressions, places, statements and initializers: one recursive definition, because expressions may contain statements (GNU C).

use super::{Builtin, FunctionId, GlobalId, LocalId, Rounding};
use crate::source::Span;
use crate::types::{Space, Type};

/// A value, its type, and its token for messages.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Computation of the value.
    pub kind: ExprKind,
    /// Type of the value: never an array, `void` only for calls, assignments of nothing, and comma.
    pub ty: Type,
    /// The operator, name or literal.
    pub span: Span,
}

/// Kind of expression. Operands are evaluated from left to right, each once.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// An integer, `bool` or pointer constant (`NULL` is 0): the bits, zero above the type's width. For a vector type: every lane.
    Int(u64),
    /// A floating constant, already rounded to the type. For a vector type: every lane.
    Float(f64),
    /// Reads a place; for a record type, the whole record.
    Load(Box<Place>),
    /// A pointer to a place; an array used as a pointer is the address of its first element.
    AddressOf(Box<Place>),
    /// Operand and result have the same type, scalar or vector.
    Unary(UnaryOp, Box<Expr>),
    /// Operands and result have the same type, scalar or vector. Exception: a shift's right operand may be any integer with the same lanes, taken
    /// modulo the left one's width.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Operands have the same type. Scalars and pointers give `bool`; vectors give the signed integer vector of the same width, -1 for true and 0 for
    /// false.
    Compare(CompareOp, Box<Expr>, Box<Expr>),
    /// `bool` operands and result. The right operand is evaluated only if it decides the result. (On vectors `&&` and `||` are comparisons with zero
    /// and bitwise operations.)
    Logical(LogicalOp, Box<Expr>, Box<Expr>),
    /// `cond ? then : otherwise` with a `bool`: one side is evaluated. Any type is possible, including records and `void`.
    Conditional {
        /// `bool`.
        cond: Box<Expr>,
        /// Value if the condition is true.
        then: Box<Expr>,
        /// Value if the condition is false.
        otherwise: Box<Expr>,
    },
    /// `?:` with a vector condition, and `select()`: both sides are evaluated. Selects `then` if the most significant bit of the condition's lane is
    /// set, or if a scalar condition (of `select()`) is not 0.
    Select {
        /// Integers with the lanes and width of the result.
        cond: Box<Expr>,
        /// Selected if the condition holds.
        then: Box<Expr>,
        /// Taken elsewhere.
        otherwise: Box<Expr>,
    },
    /// `pointer + index * scale` bytes, the index an `i64`.
    Offset {
        /// The pointer.
        pointer: Box<Expr>,
        /// Elements, `long`.
        index: Box<Expr>,
        /// Bytes of one element.
        scale: u64,
    },
    /// `(left - right) / scale`, a `long`.
    Difference {
        /// The minuend.
        left: Box<Expr>,
        /// The subtrahend.
        right: Box<Expr>,
        /// Bytes of one element.
        scale: u64,
    },
    /// Converts each lane from the operand's type to the expression's type. Covers casts, implicit conversions and `convert_` functions. To `bool`:
    /// not equal to 0. From `bool`: 0 or 1. Casts to integers round toward zero. Without `saturate`, a value that does not fit gives an unspecified
    /// result. With it, it gives the nearest value, and NaN gives 0. To `void`, from anything: the operand is evaluated and discarded.
    Convert {
        /// A scalar, or a vector with the lanes of the result.
        operand: Box<Expr>,
        /// The default is toward zero for floats to integers, to nearest even otherwise.
        rounding: Rounding,
        /// `_sat`.
        saturate: bool,
    },
    /// A scalar in every lane of a vector of the same element type.
    Splat(Box<Expr>),
    /// Reinterprets the same bytes as another type: `as_` functions, pointer casts, pointers to and from 64-bit integers. Three-lane vectors count as
    /// four lanes, the last of which is undefined.
    Reinterpret(Box<Expr>),
    /// Concatenated lanes of the operands: a vector literal. Element types are equal, and the lanes add up.
    Vector(Vec<Expr>),
    /// Selected lanes of a vector value; a scalar for one lane.
    Swizzle(Box<Expr>, Vec<u8>),
    /// Stores a value of the place's type and has that value.
    Assign {
        /// The target.
        place: Box<Place>,
        /// The value.
        value: Box<Expr>,
    },
    /// `place = (T)((O)place op value)`: the place is evaluated once. The result is the new value, or for `x++` the old one. For pointers `op` is
    /// `Add` or `Sub`, and `value` a `long` number of bytes.
    Update {
        /// The target.
        place: Box<Place>,
        /// The operation.
        op: BinaryOp,
        /// Type of the operation: the value's type. For shifts, only the left operand has it.
        compute: Type,
        /// The right operand.
        value: Box<Expr>,
        /// The value of the expression.
        result: StepResult,
    },
    /// A function of the program; arguments have the parameters' types.
    Call(FunctionId, Vec<Expr>),
    /// A built-in function; see each [`Builtin`] for its operands.
    Builtin(Builtin, Vec<Expr>),
    /// `printf`: returns `int` 0. Arguments are promoted: integers to at least `int`, `half` and `float` to `double`; vectors are not promoted.
    Printf {
        /// The parsed format; every [`FormatPiece::Value`] takes the next argument.
        format: Vec<FormatPiece>,
        /// The arguments that the format takes.
        args: Vec<Expr>,
    },
    /// Evaluates the first operand for its effect and has the second's value.
    Comma(Box<Expr>, Box<Expr>),
    /// Statements, then a value; `void` without one. `break` and `continue` do not leave it; `return` may.
    Statements(Vec<Stmt>, Option<Box<Expr>>),
}

/// Part of a `printf` format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatPiece {
    /// Bytes printed unchanged.
    Text(Vec<u8>),
    /// A conversion.
    Value {
        /// `-`, `+`, space, `#`, `0`, in source form.
        flags: String,
        /// Least width.
        width: Option<u32>,
        /// Digits.
        precision: Option<u32>,
        /// Lanes of `v2`, `v4`, …; 1 for scalars.
        lanes: u8,
        /// Bytes of an element: 1 `hh`, 2 `h`, 4 none or `hl`, 8 `l`. Integers are truncated to it.
        size: u8,
        /// One of `d i o u x X f F e E g G a A c s p`.
        conversion: u8,
    },
}

/// An operator on one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `-x`.
    Neg,
    /// `~x`, integers.
    Not,
}

/// An operator on two operands of one type. Signed overflow wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `+`.
    Add,
    /// `-`.
    Sub,
    /// `*`.
    Mul,
    /// `/`.
    Div,
    /// `%`, integers.
    Rem,
    /// `<<`, integers.
    Shl,
    /// `>>`, arithmetic if the left operand is signed.
    Shr,
    /// `&`.
    And,
    /// `|`.
    Or,
    /// `^`.
    Xor,
}

/// A comparison; with NaN, all except `!=` are false.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `==`.
    Eq,
    /// `!=`.
    Ne,
    /// `<`.
    Lt,
    /// `<=`.
    Le,
    /// `>`.
    Gt,
    /// `>=`.
    Ge,
}

/// An operator whose right side may not be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogicalOp {
    /// `&&`.
    And,
    /// `||`.
    Or,
}

/// The value of an update expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// The old value: `x++`.
    Old,
    /// The stored value: `++x`, `x += y`.
    New,
}

/// Somewhere in memory.
#[derive(Clone, Debug)]
pub struct Place {
    /// Kind of place.
    pub kind: PlaceKind,
    /// Type of the stored value; may be an array.
    pub ty: Type,
    /// Address space of the place.
    pub space: Space,
    /// Token for messages.
    pub span: Span,
}

/// Kinds of places.
#[derive(Clone, Debug)]
pub enum PlaceKind {
    /// A parameter or variable of the function.
    Local(LocalId),
    /// A variable of the program.
    Global(GlobalId),
    /// The target of a pointer: `*p`, `p[i]` (an [`ExprKind::Offset`]), `p->m` (a member of this).
    Deref(Box<Expr>),
    /// An element of an array place: `a[i]` without a pointer in between. Not checked against the length.
    Index {
        /// An array.
        base: Box<Place>,
        /// A `long`.
        index: Box<Expr>,
        /// Bytes of an element.
        scale: u64,
    },
    /// A member of a record.
    Member {
        /// The record.
        base: Box<Place>,
        /// Byte offset from its start.
        offset: u64,
    },
    /// Lanes of a vector place. One lane has the element's type; several lanes are a vector, and a store names each lane once.
    Lanes {
        /// The vector.
        base: Box<Place>,
        /// Lane indices, in order.
        lanes: Vec<u8>,
    },
}

/// A statement and its start position.
#[derive(Clone, Debug)]
pub struct Stmt {
    /// Kind of statement.
    pub kind: StmtKind,
    /// Its first token.
    pub span: Span,
}

/// Kind of statement. Every condition has type `bool`.
#[derive(Clone, Debug)]
pub enum StmtKind {
    /// Several statements.
    Block(Vec<Stmt>),
    /// Starts the lifetime of a variable: its memory becomes uninitialized again, then `init` runs. `__local` variables do not have an initializer
    /// and belong to the group.
    Declare {
        /// The declared variable.
        local: LocalId,
        /// Its first value.
        init: Option<Init>,
    },
    /// An expression for its effect: a `void` call, or a discarded value.
    Expr(Expr),
    /// `if`.
    If {
        /// The condition.
        cond: Expr,
        /// Statement that runs if the condition is true.
        then: Box<Stmt>,
        /// Where false.
        otherwise: Option<Box<Stmt>>,
    },
    /// `for`; `while` is a `for` with only a condition.
    For {
        /// Before the first iteration: declarations or an expression.
        init: Vec<Stmt>,
        /// Before each iteration; none means true.
        cond: Option<Expr>,
        /// After each iteration, also after `continue`.
        step: Option<Expr>,
        /// The round.
        body: Box<Stmt>,
    },
    /// `do … while`.
    DoWhile {
        /// The round.
        body: Box<Stmt>,
        /// After each iteration, also after `continue`.
        cond: Expr,
    },
    /// `switch`. A case that does not end in `break` falls through to the next. Labels deeper in the body are rejected.
    Switch {
        /// An integer, promoted.
        value: Expr,
        /// In source order.
        cases: Vec<Case>,
    },
    /// Leaves a loop or `switch`: the innermost one, or the one this many levels out.
    Break(usize),
    /// Continues with the next iteration of a loop: the innermost one, or the one this many levels out.
    Continue(usize),
    /// Leaves the function; the value has the function's result type.
    Return(Option<Expr>),
}

/// One or more labels of a `switch` and the statements after them.
#[derive(Clone, Debug)]
pub struct Case {
    /// Values of the `case` labels, as bits of the switch value's type, sign- or zero-extended to 64.
    pub values: Vec<u64>,
    /// Whether there is a `default` label here.
    pub is_default: bool,
    /// Statements up to the next label.
    pub body: Vec<Stmt>,
}

/// Initial value of a variable.
#[derive(Clone, Debug)]
pub enum Init {
    /// One value of the variable's type.
    Value(Expr),
    /// Stores at offsets in an array or record, in order.
    List {
        /// Whether every other byte becomes 0 (always true for lists in braces).
        zero_rest: bool,
        /// The stores.
        parts: Vec<InitPart>,
    },
}

/// One store of an initializer list.
#[derive(Clone, Debug)]
pub struct InitPart {
    /// Byte offset from the variable's start.
    pub offset: u64,
    /// A scalar, vector, pointer or record.
    pub value: Expr,
}
