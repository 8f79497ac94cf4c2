//! Statements and initialisers.

use super::{Expr, LocalId};
use crate::source::Span;

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
