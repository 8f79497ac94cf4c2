//! Expressions.

use super::ast::{Expr, ExprKind};
use super::{MAX_DEPTH, Parser};
use crate::lex::{TokenKind, strength};
use crate::source::Span;

/// Returns the operator of a compound assignment; `Some(None)` for `=`.
fn assignment_op(punct: &str) -> Option<Option<&'static str>> {
    Some(match punct {
        "=" => None,
        "+=" => Some("+"),
        "-=" => Some("-"),
        "*=" => Some("*"),
        "/=" => Some("/"),
        "%=" => Some("%"),
        "<<=" => Some("<<"),
        ">>=" => Some(">>"),
        "&=" => Some("&"),
        "|=" => Some("|"),
        "^=" => Some("^"),
        _ => return None,
    })
}

impl Parser<'_> {
    /// Parses an expression, commas included.
    pub(super) fn expression(&mut self) -> Option<Expr> {
        let mut left = self.assignment()?;
        while self.is(",") {
            let span = self.next().span;
            let right = self.assignment()?;
            let depth = left.depth.max(right.depth);
            left = self.node(ExprKind::Binary(",", Box::new(left), Box::new(right)), span, depth)?;
        }
        Some(left)
    }

    /// Returns a node one level above `depth`, up to the limit.
    fn node(&mut self, kind: ExprKind, span: Span, depth: u16) -> Option<Expr> {
        if depth >= MAX_DEPTH {
            return self.error(span, format!("expression of more than {MAX_DEPTH} levels"));
        }
        self.deepest = self.deepest.max(depth + 1);
        Some(Expr { kind, span, depth: depth + 1 })
    }

    /// Runs a parse function and also returns the depth of its deepest expression.
    fn measured<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<(T, u16)> {
        let before = std::mem::take(&mut self.deepest);
        let result = parse(self)?;
        let depth = self.deepest;
        self.deepest = before.max(depth);
        Some((result, depth))
    }

    fn punct(&self) -> &'static str {
        match self.peek().kind {
            TokenKind::Punct(p) => p,
            _ => "",
        }
    }

    /// Parses an expression without commas.
    pub(super) fn assignment(&mut self) -> Option<Expr> {
        self.nested(|p| {
            let left = p.conditional_inner()?;
            let Some(op) = assignment_op(p.punct()) else { return Some(left) };
            let span = p.next().span;
            let right = p.assignment()?;
            let depth = left.depth.max(right.depth);
            p.node(ExprKind::Assign(op, Box::new(left), Box::new(right)), span, depth)
        })
    }

    /// Parses an expression without assignment: the form of a constant expression.
    pub(super) fn conditional(&mut self) -> Option<Expr> {
        self.nested(Self::conditional_inner)
    }

    fn conditional_inner(&mut self) -> Option<Expr> {
        let cond = self.binary(1)?;
        if !self.is("?") {
            return Some(cond);
        }
        let span = self.next().span;
        let then = self.nested(Self::expression)?;
        self.expect(":", " of '?:'")?;
        let otherwise = self.conditional()?;
        let depth = cond.depth.max(then.depth).max(otherwise.depth);
        self.node(ExprKind::Ternary(Box::new(cond), Box::new(then), Box::new(otherwise)), span, depth)
    }

    fn binary(&mut self, least: u8) -> Option<Expr> {
        let mut left = self.unary()?;
        loop {
            let op = self.punct();
            let Some(s) = strength(op).filter(|s| *s >= least) else { return Some(left) };
            let span = self.next().span;
            let right = self.nested(|p| p.binary(s + 1))?;
            let depth = left.depth.max(right.depth);
            left = self.node(ExprKind::Binary(op, Box::new(left), Box::new(right)), span, depth)?;
        }
    }

    fn unary(&mut self) -> Option<Expr> {
        let token = self.peek();
        match token.kind {
            TokenKind::Punct(op @ ("+" | "-" | "!" | "~" | "*" | "&" | "++" | "--")) => {
                self.next();
                let operand = self.nested(Self::unary)?;
                let depth = operand.depth;
                self.node(ExprKind::Unary(op, Box::new(operand)), token.span, depth)
            }
            TokenKind::Punct("(") if self.type_behind_paren() => self.cast(),
            TokenKind::Name(_) => match self.word() {
                "sizeof" => self.query("sizeof"),
                "_Alignof" | "__alignof__" | "__alignof" => self.query("_Alignof"),
                "vec_step" => self.query("vec_step"),
                "__extension__" => {
                    self.next();
                    self.nested(Self::unary)
                }
                _ => self.postfix(),
            },
            _ => self.postfix(),
        }
    }

    /// Returns true if `(` here is followed by a type.
    fn type_behind_paren(&mut self) -> bool {
        self.at += 1;
        let yes = self.starts_type();
        self.at -= 1;
        yes
    }

    /// Parses `sizeof` and similar operators on a type in parentheses or an expression.
    fn query(&mut self, what: &'static str) -> Option<Expr> {
        let span = self.next().span;
        if self.is("(") && self.type_behind_paren() {
            self.next();
            let (ty, depth) = self.measured(Self::type_name)?;
            self.expect(")", "")?;
            // `sizeof (T){…}` is the size of a compound literal, which has its type's size.
            if self.is("{") {
                self.nested(Self::initializer_list)?;
            }
            return self.node(ExprKind::TypeQuery(what, Box::new(ty)), span, depth);
        }
        let operand = self.nested(Self::unary)?;
        let depth = operand.depth;
        self.node(ExprKind::ExprQuery(what, Box::new(operand)), span, depth)
    }

    /// `(T)x`, `(T)(a, b)` of a vector type, `(T){…}`.
    fn cast(&mut self) -> Option<Expr> {
        let span = self.next().span;
        let (ty, type_depth) = self.measured(Self::type_name)?;
        let ty = Box::new(ty);
        self.expect(")", " after the type")?;
        if self.is("{") {
            let (list, depth) = self.measured(|p| p.nested(Self::initializer_list))?;
            let kind = ExprKind::Compound(ty, Box::new(list));
            let literal = self.node(kind, span, depth.max(type_depth))?;
            return self.suffixes(literal);
        }
        if self.is("(")
            && ty.declarator.parts.is_empty()
            && self.is_vector(&ty.specs)
            && !self.type_behind_paren()
        {
            self.next();
            let elements = self.arguments(")")?;
            let depth = elements.iter().map(|e| e.depth).max().unwrap_or(0).max(type_depth);
            let vector = self.node(ExprKind::Vector(ty, elements), span, depth)?;
            return self.suffixes(vector);
        }
        let operand = self.nested(Self::unary)?;
        let depth = operand.depth.max(type_depth);
        self.node(ExprKind::Cast(ty, Box::new(operand)), span, depth)
    }

    /// Expressions between commas, up to and with the closing bracket.
    fn arguments(&mut self, close: &str) -> Option<Vec<Expr>> {
        let mut list = Vec::new();
        if self.eat(close) {
            return Some(list);
        }
        loop {
            list.push(self.assignment()?);
            if self.eat(close) {
                return Some(list);
            }
            if !self.eat(",") {
                self.expect(close, "")?;
            }
        }
    }

    fn postfix(&mut self) -> Option<Expr> {
        let primary = self.primary()?;
        self.suffixes(primary)
    }

    fn suffixes(&mut self, mut expr: Expr) -> Option<Expr> {
        loop {
            let token = self.peek();
            let TokenKind::Punct(op) = token.kind else { return Some(expr) };
            let depth = expr.depth;
            match op {
                "(" => {
                    self.next();
                    let args = self.arguments(")")?;
                    let depth = args.iter().map(|e| e.depth).max().unwrap_or(0).max(depth);
                    let span = expr.span;
                    expr = self.node(ExprKind::Call(Box::new(expr), args), span, depth)?;
                }
                "[" => {
                    self.next();
                    let index = self.nested(Self::expression)?;
                    self.expect("]", "")?;
                    let depth = depth.max(index.depth);
                    let span = expr.span;
                    expr = self.node(ExprKind::Index(Box::new(expr), Box::new(index)), span, depth)?;
                }
                "." | "->" => {
                    self.next();
                    let member = self.peek();
                    let Some(name) = member.name() else { return self.unexpected("a member's name") };
                    self.next();
                    let kind = ExprKind::Member(Box::new(expr), name, op == "->");
                    expr = self.node(kind, member.span, depth)?;
                }
                "++" | "--" => {
                    self.next();
                    expr = self.node(ExprKind::Postfix(op, Box::new(expr)), token.span, depth)?;
                }
                _ => return Some(expr),
            }
        }
    }

    /// `{ … })` of a statement expression.
    fn statement_expression(&mut self, span: Span) -> Option<Expr> {
        let (list, depth) = self.measured(|p| p.nested(|p| p.scoped(Self::block)))?;
        self.expect(")", " after the statements of '({'")?;
        self.node(ExprKind::Statements(list), span, depth)
    }

    fn primary(&mut self) -> Option<Expr> {
        let token = self.peek();
        let kind = match token.kind {
            TokenKind::Name(name) if !super::words::is_reserved(self.word()) => ExprKind::Name(name),
            TokenKind::Number(text) => ExprKind::Number(text),
            TokenKind::Char(text) => ExprKind::Char(text),
            TokenKind::Text(first) => {
                let mut texts = vec![first];
                while let TokenKind::Text(more) = self.token(self.at + 1).kind {
                    texts.push(more);
                    self.at += 1;
                }
                ExprKind::Text(texts)
            }
            TokenKind::Punct("(") => {
                self.next();
                if self.is("{") {
                    return self.statement_expression(token.span);
                }
                let inner = self.nested(Self::expression)?;
                if !self.is(")") {
                    return self.unexpected("')'");
                }
                self.next();
                return Some(inner);
            }
            _ => return self.unexpected("expression"),
        };
        self.next();
        self.node(kind, token.span, 0)
    }
}
