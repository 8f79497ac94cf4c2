//! Expressions, places, statements and initialisers: one recursive definition, as expressions may have statements in them (GNU C).

use super::{Builtin, FunctionId, GlobalId, LocalId, Rounding};
use crate::source::Span;
use crate::types::{Space, Type};

/// A value, its type, and the token that stands for it in messages.
#[derive(Clone, Debug)]
pub struct Expr {
    /// How it is computed.
    pub kind: ExprKind,
    /// Type of the value: never an array, `void` only for calls, assignments of nothing, and comma.
    pub ty: Type,
    /// The operator, name or literal.
    pub span: Span,
}

/// How a value is computed. Operands are evaluated from left to right, each once.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// An integer, `bool` or pointer constant (`NULL` is 0): the bits, zero above the type's width. Of a vector type: every
    /// lane.
    Int(u64),
    /// A floating constant, rounded to the type already. Of a vector type: every lane.
    Float(f64),
    /// Reads a place; of a record type the whole record.
    Load(Box<Place>),
    /// A pointer to a place; an array used as a pointer is the address of its first element.
    AddressOf(Box<Place>),
    /// Operand and result have the same type, scalar or vector.
    Unary(UnaryOp, Box<Expr>),
    /// Operands and result have the same type, scalar or vector; except that a shift's right operand may be any integer of
    /// the same lanes, taken modulo the left one's width.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Operands have the same type. Scalars and pointers give `bool`; vectors give the signed integer vector of the same
    /// width, -1 where true and 0 where false.
    Compare(CompareOp, Box<Expr>, Box<Expr>),
    /// `bool` operands and result; the right one runs only where it decides. (On vectors `&&` and `||` are comparisons with
    /// zero and bitwise operations.)
    Logical(LogicalOp, Box<Expr>, Box<Expr>),
    /// `cond ? then : otherwise` with a `bool`: one side runs. Of any type, records and `void` included.
    Conditional {
        /// `bool`.
        cond: Box<Expr>,
        /// Where true.
        then: Box<Expr>,
        /// Where false.
        otherwise: Box<Expr>,
    },
    /// `?:` with a vector condition, and `select()`: both sides run. Takes `then` where the condition's lane has its most
    /// significant bit set; a scalar condition (of `select()`) where it is not 0.
    Select {
        /// Integers of the lanes and width of the result.
        cond: Box<Expr>,
        /// Taken where the condition holds.
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
    /// To the expression's type from the operand's, lane by lane. Casts, implicit conversions and `convert_` functions.
    /// To `bool`: not equal to 0. From `bool`: 0 or 1. Casts to integers round towards zero; what does not fit is any value
    /// without `saturate`, the nearest with it, and then NaN gives 0. To `void`, from anything: the operand runs and is
    /// dropped.
    Convert {
        /// A scalar, or a vector of as many lanes as the result.
        operand: Box<Expr>,
        /// The default is towards zero for floats to integers, to nearest even for the rest.
        rounding: Rounding,
        /// `_sat`.
        saturate: bool,
    },
    /// A scalar in every lane of a vector of the same element type.
    Splat(Box<Expr>),
    /// The same bytes as another type: `as_` functions, pointer casts, pointers to and from 64-bit integers. Three-lane
    /// vectors count as four lanes, the last of which is undefined.
    Reinterpret(Box<Expr>),
    /// Operands' lanes one behind another: a vector literal. Element types are equal and the lanes add up.
    Vector(Vec<Expr>),
    /// These lanes of a vector value; a scalar if there is one.
    Swizzle(Box<Expr>, Vec<u8>),
    /// Stores a value of the place's type and has that value.
    Assign {
        /// The target.
        place: Box<Place>,
        /// The value.
        value: Box<Expr>,
    },
    /// `place = (T)((O)place op value)`: the place is evaluated once. Its value is the new one, or for `x++` the old one.
    /// For pointers `op` is `Add` or `Sub`, `value` a `long` of bytes.
    Update {
        /// The target.
        place: Box<Place>,
        /// The operation.
        op: BinaryOp,
        /// Type that the operation runs in: the value's type (but for shifts, where only the left operand has it).
        compute: Type,
        /// The right operand.
        value: Box<Expr>,
        /// Which value the expression has.
        result: StepResult,
    },
    /// A function of the program; arguments have the parameters' types.
    Call(FunctionId, Vec<Expr>),
    /// A function of the language; see each [`Builtin`] for its operands.
    Builtin(Builtin, Vec<Expr>),
    /// `printf`: an `int`, 0. Arguments are promoted: integers to at least `int`, `half` and `float` to `double`; vectors
    /// stay.
    Printf {
        /// The format, taken apart; every [`FormatPiece::Value`] takes the next argument.
        format: Vec<FormatPiece>,
        /// As many as the format takes.
        args: Vec<Expr>,
    },
    /// Runs the first for its effect, has the second's value.
    Comma(Box<Expr>, Box<Expr>),
    /// Statements, then a value; without one it is `void`. `break` and `continue` do not lead out of it, `return` may.
    Statements(Vec<Stmt>, Option<Box<Expr>>),
}

/// Part of a `printf` format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatPiece {
    /// Bytes printed as they are.
    Text(Vec<u8>),
    /// A conversion.
    Value {
        /// `-`, `+`, space, `#`, `0`, as written.
        flags: String,
        /// Least width.
        width: Option<u32>,
        /// Digits.
        precision: Option<u32>,
        /// Lanes of `v2`, `v4`, …; 1 for scalars.
        lanes: u8,
        /// Bytes of an element: 1 `hh`, 2 `h`, 4 none or `hl`, 8 `l`. Integers are cut to it.
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
    /// `>>`, arithmetic where the left operand is signed.
    Shr,
    /// `&`.
    And,
    /// `|`.
    Or,
    /// `^`.
    Xor,
}

/// A comparison; any with NaN is false but `!=`.
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

/// An operator whose right side may not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogicalOp {
    /// `&&`.
    And,
    /// `||`.
    Or,
}

/// Which value an update has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// The one before: `x++`.
    Old,
    /// The one stored: `++x`, `x += y`.
    New,
}

/// Somewhere in memory.
#[derive(Clone, Debug)]
pub struct Place {
    /// Which.
    pub kind: PlaceKind,
    /// Type of what lies there; may be an array.
    pub ty: Type,
    /// Address space it lies in.
    pub space: Space,
    /// Token for messages.
    pub span: Span,
}

/// Which place.
#[derive(Clone, Debug)]
pub enum PlaceKind {
    /// A parameter or variable of the function.
    Local(LocalId),
    /// A variable of the program.
    Global(GlobalId),
    /// What a pointer points to: `*p`, `p[i]` (an [`ExprKind::Offset`]), `p->m` (a member of this).
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
        /// Bytes from its start.
        offset: u64,
    },
    /// Lanes of a vector place: one has the element's type; more are a vector, each lane named once when stored to.
    Lanes {
        /// The vector.
        base: Box<Place>,
        /// Which lanes, in order.
        lanes: Vec<u8>,
    },
}

/// A statement and where it begins.
#[derive(Clone, Debug)]
pub struct Stmt {
    /// What it does.
    pub kind: StmtKind,
    /// Its first token.
    pub span: Span,
}

/// What a statement does. Every condition has type `bool`.
#[derive(Clone, Debug)]
pub enum StmtKind {
    /// Several statements.
    Block(Vec<Stmt>),
    /// A variable's life begins: its memory is uninitialised again, then `init` runs. `__local` variables are declared
    /// without one, and belong to the group.
    Declare {
        /// Which.
        local: LocalId,
        /// Its first value.
        init: Option<Init>,
    },
    /// An expression for its effect; a `void` call, or a value that is dropped.
    Expr(Expr),
    /// `if`.
    If {
        /// The condition.
        cond: Expr,
        /// Where true.
        then: Box<Stmt>,
        /// Where false.
        otherwise: Option<Box<Stmt>>,
    },
    /// `for`; `while` is a `for` with only a condition.
    For {
        /// Before the first round: declarations or an expression.
        init: Vec<Stmt>,
        /// Before each round; none means true.
        cond: Option<Expr>,
        /// After each round, also after `continue`.
        step: Option<Expr>,
        /// The round.
        body: Box<Stmt>,
    },
    /// `do … while`.
    DoWhile {
        /// The round.
        body: Box<Stmt>,
        /// After each round, also after `continue`.
        cond: Expr,
    },
    /// `switch`. A case that does not end in `break` goes on into the next. Labels deeper in the body are refused.
    Switch {
        /// An integer, promoted.
        value: Expr,
        /// In the order of the text.
        cases: Vec<Case>,
    },
    /// Leaves a loop or `switch`: the innermost, or the one so many further out.
    Break(usize),
    /// To the next round of a loop: the innermost, or the one so many further out.
    Continue(usize),
    /// Leaves the function; the value has the function's result type.
    Return(Option<Expr>),
}

/// One or more labels of a `switch` and what follows them.
#[derive(Clone, Debug)]
pub struct Case {
    /// Values of the `case` labels, as bits of the switch value's type, sign- or zero-extended to 64.
    pub values: Vec<u64>,
    /// A `default` label stands here.
    pub is_default: bool,
    /// Statements up to the next label.
    pub body: Vec<Stmt>,
}

/// First value of a variable.
#[derive(Clone, Debug)]
pub enum Init {
    /// One value of the variable's type.
    Value(Expr),
    /// Stores at offsets in an array or record, in order.
    List {
        /// Every byte no part names becomes 0 (always so for lists in braces).
        zero_rest: bool,
        /// The stores.
        parts: Vec<InitPart>,
    },
}

/// One store of an initialiser list.
#[derive(Clone, Debug)]
pub struct InitPart {
    /// Bytes from the variable's start.
    pub offset: u64,
    /// A scalar, vector, pointer or record.
    pub value: Expr,
}
