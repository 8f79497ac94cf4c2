//! Statements.

use super::Parser;
use super::ast::{Stmt, StmtKind};
use crate::lex::TokenKind;

impl Parser<'_> {
    /// Parses `{ … }` with its braces; faulty statements are omitted.
    pub(super) fn block(&mut self) -> Option<Vec<Stmt>> {
        let open = self.expect("{", "")?;
        let mut list = Vec::new();
        loop {
            if self.eat("}") {
                return Some(list);
            }
            if self.peek().is_end() {
                let note = vec![(open, "to match this '{'".to_string())];
                let at = self.behind_last();
                if !self.diagnostics.failed() {
                    self.diagnostics.error_with(at, "expected '}', found end of input", note);
                }
                return None;
            }
            let before = self.at;
            let nesting = self.nesting;
            match self.statement() {
                Some(stmt) => list.push(stmt),
                None => {
                    self.nesting = nesting;
                    if self.diagnostics.too_many() {
                        return None;
                    }
                    self.skip_statement();
                    self.at += usize::from(self.at == before && !self.is("}"));
                }
            }
        }
    }

    /// One statement.
    pub(super) fn statement(&mut self) -> Option<Stmt> {
        let span = self.peek().span;
        let kind = self.nested(Self::statement_kind)?;
        Some(Stmt { kind, span })
    }

    fn statement_kind(&mut self) -> Option<StmtKind> {
        if self.is("{") {
            return self.scoped(Self::block).map(StmtKind::Block);
        }
        if self.eat(";") {
            return Some(StmtKind::Expr(None));
        }
        self.refuse_asm()?;
        let word = self.word();
        if self.is_attribute() {
            // `__attribute__((opencl_unroll_hint(4)))` before a loop, or `fallthrough`: hints.
            let before = self.at;
            self.attributes(&mut Vec::new())?;
            if self.starts_declaration() {
                self.at = before;
            } else {
                return self.statement_kind();
            }
        }
        if let (Some(name), true) = (self.peek().name(), self.token(self.at + 1).is(":"))
            && !super::words::is_reserved(word)
        {
            self.at += 2;
            return Some(StmtKind::Label(name, Box::new(self.labelled()?)));
        }
        if let Some(kind) = self.keyword_statement(word) {
            return kind;
        }
        if self.starts_declaration() || self.looks_like_declaration() {
            return self.declaration().map(StmtKind::Declaration);
        }
        let expr = self.expression()?;
        self.expect(";", " after expression")?;
        Some(StmtKind::Expr(Some(expr)))
    }

    /// Returns true for `word name` that would be a declaration if `word` were known.
    fn looks_like_declaration(&self) -> bool {
        let (this, next) = (self.peek(), self.token(self.at + 1));
        let Some(name) = this.name() else { return false };
        self.meaning(name).is_none()
            && matches!(next.kind, TokenKind::Name(_))
            && !super::words::is_reserved(self.word())
    }

    fn keyword_statement(&mut self, word: &str) -> Option<Option<StmtKind>> {
        match word {
            "if" | "while" | "for" | "switch" | "do" => {
                self.next();
                let kind = self.scoped(|p| match word {
                    "if" => p.if_statement(),
                    "while" => {
                        p.condition().and_then(|c| Some(StmtKind::While(c, Box::new(p.inner_statement()?))))
                    }
                    "switch" => {
                        let value = p.condition()?;
                        let body = p.inner_statement()?;
                        p.switch(value, body)
                    }
                    "do" => p.do_statement(),
                    _ => p.for_statement(),
                });
                Some(kind)
            }
            "case" | "default" => Some(self.case_statement(word)),
            "break" | "continue" | "return" => Some(self.jump(word)),
            "goto" => Some(self.goto()),
            "else" => {
                let span = self.peek().span;
                Some(self.error(span, "'else' without an 'if' before it"))
            }
            "_Static_assert" => Some(self.static_assert().map(StmtKind::StaticAssert)),
            _ => None,
        }
    }

    /// `(condition)`.
    fn condition(&mut self) -> Option<super::ast::Expr> {
        self.expect("(", " before the condition")?;
        let cond = self.expression()?;
        self.expect(")", " after the condition")?;
        Some(cond)
    }

    fn if_statement(&mut self) -> Option<StmtKind> {
        let cond = self.condition()?;
        let then = Box::new(self.inner_statement()?);
        let otherwise = if self.eat_word("else") { Some(Box::new(self.inner_statement()?)) } else { None };
        Some(StmtKind::If(cond, then, otherwise))
    }

    fn do_statement(&mut self) -> Option<StmtKind> {
        let body = Box::new(self.inner_statement()?);
        if !self.eat_word("while") {
            return self.unexpected("'while' after the body of 'do'");
        }
        let cond = self.condition()?;
        self.expect(";", " after 'do … while'")?;
        Some(StmtKind::Do(body, cond))
    }

    fn for_statement(&mut self) -> Option<StmtKind> {
        self.expect("(", " after 'for'")?;
        let span = self.peek().span;
        let init = if self.eat(";") {
            None
        } else if self.starts_declaration() {
            let declaration = self.declaration()?;
            Some(Box::new(Stmt { kind: StmtKind::Declaration(declaration), span }))
        } else {
            let expr = self.expression()?;
            self.expect(";", " in the head of 'for'")?;
            Some(Box::new(Stmt { kind: StmtKind::Expr(Some(expr)), span }))
        };
        let cond = if self.is(";") { None } else { Some(self.expression()?) };
        self.expect(";", " in the head of 'for'")?;
        let step = if self.is(")") { None } else { Some(self.expression()?) };
        self.expect(")", " after the head of 'for'")?;
        Some(StmtKind::For(init, cond, step, Box::new(self.inner_statement()?)))
    }

    fn case_statement(&mut self, word: &str) -> Option<StmtKind> {
        self.next();
        if word == "default" {
            self.expect(":", " after 'default'")?;
            return Some(StmtKind::Default(Box::new(self.labelled()?)));
        }
        let value = self.conditional()?;
        let last = if self.eat("...") { Some(self.conditional()?) } else { None };
        self.expect(":", " after 'case'")?;
        Some(StmtKind::Case(value, last, Box::new(self.labelled()?)))
    }

    /// Parses the statement after a label; `case 1: }` has none.
    fn labelled(&mut self) -> Option<Stmt> {
        if self.is("}") {
            return Some(Stmt { kind: StmtKind::Expr(None), span: self.peek().span });
        }
        self.inner_statement()
    }

    /// Parses a statement after a label or a condition, where a declaration is not allowed.
    fn inner_statement(&mut self) -> Option<Stmt> {
        if self.starts_declaration() && !self.is_attribute() {
            let span = self.peek().span;
            return self.error(span, "expected a statement: a declaration here needs braces around it");
        }
        self.statement()
    }

    fn goto(&mut self) -> Option<StmtKind> {
        self.next();
        let Some(name) = self.peek().name() else { return self.unexpected("a label's name after 'goto'") };
        self.next();
        self.expect(";", " after 'goto' statement")?;
        Some(StmtKind::Goto(name))
    }

    fn jump(&mut self, word: &str) -> Option<StmtKind> {
        self.next();
        let kind = match word {
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            _ if self.is(";") => StmtKind::Return(None),
            _ => StmtKind::Return(Some(self.expression()?)),
        };
        self.expect(";", &format!(" after '{word}' statement"))?;
        Some(kind)
    }
}
