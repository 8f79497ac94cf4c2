//! The syntax tree: the program in source form, without name resolution.

use crate::lex::Symbol;
use crate::source::Span;
use crate::types::{ImageAccess, Space, Type};

/// A declaration or function of program scope.
#[derive(Debug)]
pub enum Item {
    /// A function with a body.
    Function(Box<FunctionDef>),
    /// Everything else.
    Declaration(Declaration),
    /// `_Static_assert(expression, "text");`
    StaticAssert(StaticAssert),
}

/// A condition that must hold when the program is built.
#[derive(Debug)]
pub struct StaticAssert {
    /// Must not be 0.
    pub cond: Expr,
    /// Message if the condition fails, with its quotes.
    pub text: Option<Symbol>,
}

/// A function with a body.
#[derive(Debug)]
pub struct FunctionDef {
    /// Result type and qualifiers.
    pub specs: Specs,
    /// Name and parameters.
    pub declarator: Declarator,
    /// Statements.
    pub body: Vec<Stmt>,
}

/// `specs declarator = init, …;`
#[derive(Debug)]
pub struct Declaration {
    /// Specifiers shared by all declarators.
    pub specs: Specs,
    /// Names with their initializers.
    pub declarators: Vec<(Declarator, Option<Initializer>)>,
}

/// Storage class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// `typedef`.
    Typedef,
    /// `static`.
    Static,
    /// `extern`.
    Extern,
}

/// `const`, `volatile`, `restrict`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qualifiers {
    /// `const`.
    pub is_const: bool,
    /// `volatile`.
    pub is_volatile: bool,
    /// `restrict`.
    pub is_restrict: bool,
    /// Address space.
    pub space: Option<Space>,
}

/// Declaration specifiers.
#[derive(Debug)]
pub struct Specs {
    /// Storage class.
    pub storage: Option<Storage>,
    /// `__kernel`.
    pub is_kernel: bool,
    /// Qualifiers of the type.
    pub qualifiers: Qualifiers,
    /// The type.
    pub base: TypeSpec,
    /// `read_only` and similar qualifiers of an image.
    pub access: Option<ImageAccess>,
    /// Attributes.
    pub attributes: Vec<Attribute>,
    /// The type's first token.
    pub span: Span,
}

/// A type specifier.
#[derive(Debug)]
pub enum TypeSpec {
    /// A type of the language.
    Plain(Type),
    /// A name from a typedef.
    Typedef(Symbol),
    /// `struct` or `union`.
    Record(Box<RecordSpec>),
    /// `enum`.
    Enum(EnumSpec),
    /// `typeof(expression)`.
    TypeofExpr(Box<Expr>),
    /// `typeof(type)`.
    TypeofType(Box<TypeName>),
}

/// `struct tag { … }`.
#[derive(Debug)]
pub struct RecordSpec {
    /// `union`.
    pub is_union: bool,
    /// Tag.
    pub tag: Option<Symbol>,
    /// Members, where they are given.
    pub members: Option<Vec<Member>>,
    /// Attributes before and after.
    pub attributes: Vec<Attribute>,
    /// The tag or the keyword.
    pub span: Span,
}

/// One line of members.
#[derive(Debug)]
pub struct Member {
    /// Type.
    pub specs: Specs,
    /// Names; none for an anonymous struct or union.
    pub declarators: Vec<Declarator>,
}

/// `enum tag { A = 1, B }`.
#[derive(Debug)]
pub struct EnumSpec {
    /// Tag.
    pub tag: Option<Symbol>,
    /// Constants, where they are given.
    pub constants: Option<Vec<(Symbol, Span, Option<Expr>)>>,
    /// The tag or the keyword.
    pub span: Span,
}

/// `__attribute__((name(args)))`.
#[derive(Debug)]
pub struct Attribute {
    /// Name without underscores around it.
    pub name: String,
    /// Arguments, for attributes that matter here.
    pub args: Vec<Expr>,
    /// Source of arguments that are not expressions.
    pub text: String,
    /// The name.
    pub span: Span,
}

/// A name and its surrounding derivations, from the name outward.
#[derive(Debug, Default)]
pub struct Declarator {
    /// The name; none in a type name or an unnamed parameter.
    pub name: Option<(Symbol, Span)>,
    /// Nearest the name first: `*a[3]` is `[Array, Pointer]`.
    pub parts: Vec<Derived>,
    /// Attributes after it.
    pub attributes: Vec<Attribute>,
}

/// One derivation of a declarator.
#[derive(Debug)]
pub enum Derived {
    /// `*` with the pointer's own qualifiers.
    Pointer(Qualifiers),
    /// `[n]`.
    Array(Option<Box<Expr>>, Span),
    /// `(parameters)`.
    Function(Vec<Param>, Span),
}

/// A parameter.
#[derive(Debug)]
pub struct Param {
    /// Type.
    pub specs: Specs,
    /// Name.
    pub declarator: Declarator,
}

/// A type in parentheses.
#[derive(Debug)]
pub struct TypeName {
    /// Type.
    pub specs: Specs,
    /// Derivations without a name.
    pub declarator: Declarator,
}

/// Initializer.
#[derive(Debug)]
pub enum Initializer {
    /// A value.
    Expr(Expr),
    /// `{ … }`.
    List(Vec<(Vec<Designator>, Initializer)>, Span),
}

/// `.name` or `[index]` before `=`.
#[derive(Debug)]
pub enum Designator {
    /// `.name`.
    Member(Symbol, Span),
    /// `[index]`.
    Index(Expr, Span),
}

/// A statement.
#[derive(Debug)]
pub struct Stmt {
    /// Kind of statement.
    pub kind: StmtKind,
    /// First token.
    pub span: Span,
}

/// A statement.
#[derive(Debug)]
pub enum StmtKind {
    /// `{ … }`.
    Block(Vec<Stmt>),
    /// A declaration.
    Declaration(Declaration),
    /// `_Static_assert`.
    StaticAssert(StaticAssert),
    /// An expression, or `;` alone.
    Expr(Option<Expr>),
    /// `if`.
    If(Expr, Box<Stmt>, Option<Box<Stmt>>),
    /// `for`; the first clause is a declaration or an expression.
    For(Option<Box<Stmt>>, Option<Expr>, Option<Expr>, Box<Stmt>),
    /// `while`.
    While(Expr, Box<Stmt>),
    /// `do`.
    Do(Box<Stmt>, Expr),
    /// `switch`.
    Switch(Expr, Box<Stmt>),
    /// `case x:`, with the label's last value of GNU's `case a ... b:`.
    Case(Expr, Option<Expr>, Box<Stmt>),
    /// `default:`.
    Default(Box<Stmt>),
    /// `break;`.
    Break,
    /// `continue;`.
    Continue,
    /// `return`.
    Return(Option<Expr>),
    /// `name: statement`.
    Label(Symbol, Box<Stmt>),
    /// `goto name;`.
    Goto(Symbol),
}

/// An expression.
#[derive(Debug)]
pub struct Expr {
    /// Kind of expression.
    pub kind: ExprKind,
    /// Operator, name or literal.
    pub span: Span,
    /// Depth of the expression tree, which bounds the recursion over it.
    pub depth: u16,
}

/// An expression.
#[derive(Debug)]
pub enum ExprKind {
    /// A name.
    Name(Symbol),
    /// A number.
    Number(Symbol),
    /// A character constant.
    Char(Symbol),
    /// Adjacent string literals.
    Text(Vec<Symbol>),
    /// `+ - ! ~ * & ++ --` as prefix operators.
    Unary(&'static str, Box<Expr>),
    /// `++ --` behind.
    Postfix(&'static str, Box<Expr>),
    /// A binary operator, including comma.
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// `=` (operator `None`) or `+=` and so on (operator without `=`).
    Assign(Option<&'static str>, Box<Expr>, Box<Expr>),
    /// `?:`.
    Ternary(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `f(…)`.
    Call(Box<Expr>, Vec<Expr>),
    /// `a[i]`.
    Index(Box<Expr>, Box<Expr>),
    /// `a.b`, or `a->b`.
    Member(Box<Expr>, Symbol, bool),
    /// `(T)x`.
    Cast(Box<TypeName>, Box<Expr>),
    /// `(T)(a, b)` of a vector type.
    Vector(Box<TypeName>, Vec<Expr>),
    /// `(T){…}`.
    Compound(Box<TypeName>, Box<Initializer>),
    /// `sizeof(T)`, `_Alignof(T)`, `vec_step(T)`.
    TypeQuery(&'static str, Box<TypeName>),
    /// The same of an expression.
    ExprQuery(&'static str, Box<Expr>),
    /// `({ … })`: statements; the last one is the value if it is an expression.
    Statements(Vec<Stmt>),
}
