//! Declarations, functions and their leading specifiers.

use super::ast::{
    Attribute, Declaration, Declarator, Derived, FunctionDef, Item, Qualifiers, Specs, StaticAssert, Storage,
    TypeName, TypeSpec,
};
use super::words::{is_reserved, space_named, type_named, unsupported_type};
use super::{Meaning, Parser};
use crate::lex::TokenKind;
use crate::types::{INT, ImageAccess, Scalar, Type};

/// Attributes whose arguments are parsed as expressions; arguments of others are skipped.
const WITH_ARGS: [&str; 7] = [
    "ext_vector_type",
    "aligned",
    "reqd_work_group_size",
    "work_group_size_hint",
    "intel_reqd_sub_group_size",
    "reqd_sub_group_size",
    "vector_size",
];

/// The words of a type such as `unsigned long int` read so far.
#[derive(Default)]
struct Words {
    unsigned: Option<bool>,
    longs: usize,
    base: Option<Type>,
    plain_int: bool,
}

impl Parser<'_> {
    /// Parses a function or declaration of program scope.
    pub(super) fn item(&mut self) -> Option<Item> {
        if self.word() == "_Static_assert" {
            return self.static_assert().map(Item::StaticAssert);
        }
        self.refuse_asm()?;
        let specs = self.specs()?;
        if self.eat(";") {
            return Some(Item::Declaration(Declaration { specs, declarators: Vec::new() }));
        }
        let declarator = self.declarator()?;
        if let Some(Derived::Function(_, open)) = declarator.parts.first() {
            if declarator.name.is_none() {
                let open = *open;
                return self.error(open, "expected identifier before '('");
            }
            if self.is("{") {
                return self.function(specs, declarator);
            }
            if self.starts_declaration() {
                return self.error(
                    self.peek().span,
                    "parameters declared after the parameter list (K&R style) are not OpenCL C",
                );
            }
        }
        self.declaration_rest(specs, declarator).map(Item::Declaration)
    }

    fn function(&mut self, specs: Specs, declarator: Declarator) -> Option<Item> {
        if let Some((name, _)) = declarator.name {
            self.declare(name, Meaning::Other);
        }
        let params: Vec<_> = match declarator.parts.first() {
            Some(Derived::Function(params, _)) => {
                params.iter().filter_map(|p| p.declarator.name.map(|n| n.0)).collect()
            }
            _ => Vec::new(),
        };
        self.scopes.push(params.into_iter().map(|p| (p, Meaning::Other)).collect());
        let body = self.block()?;
        self.scopes.truncate(1);
        Some(Item::Function(Box::new(FunctionDef { specs, declarator, body })))
    }

    /// Parses a declaration inside a function, with its `;`.
    pub(super) fn declaration(&mut self) -> Option<Declaration> {
        let specs = self.specs()?;
        if self.eat(";") {
            return Some(Declaration { specs, declarators: Vec::new() });
        }
        let declarator = self.declarator()?;
        self.declaration_rest(specs, declarator)
    }

    fn declaration_rest(&mut self, specs: Specs, first: Declarator) -> Option<Declaration> {
        let mut declarators = Vec::new();
        let mut declarator = first;
        loop {
            let Some((name, _)) = declarator.name else { return self.unexpected("identifier") };
            let meaning = match specs.storage {
                Some(Storage::Typedef) => {
                    let all = || declarator.attributes.iter().chain(&specs.attributes);
                    let made = all().any(|a| a.name == "ext_vector_type");
                    Meaning::Type { vector: declarator.parts.is_empty() && (made || self.is_vector(&specs)) }
                }
                _ => Meaning::Other,
            };
            self.declare(name, meaning);
            let init = if self.eat("=") { Some(self.initializer()?) } else { None };
            declarators.push((declarator, init));
            if !self.eat(",") {
                break;
            }
            declarator = self.declarator()?;
        }
        self.expect(";", " at end of declaration")?;
        Some(Declaration { specs, declarators })
    }

    /// Returns true if specifiers name a vector type.
    pub(super) fn is_vector(&self, specs: &Specs) -> bool {
        match specs.base {
            TypeSpec::Plain(t) => t.is_vector(),
            TypeSpec::Typedef(name) => self.meaning(name) == Some(Meaning::Type { vector: true }),
            _ => false,
        }
    }

    pub(super) fn static_assert(&mut self) -> Option<StaticAssert> {
        self.next();
        self.expect("(", " after '_Static_assert'")?;
        let cond = self.conditional()?;
        let mut text = None;
        if self.eat(",") {
            match self.next().kind {
                TokenKind::Text(s) => text = Some(s),
                _ => return self.unexpected("string literal"),
            }
        }
        self.expect(")", "")?;
        self.expect(";", " after '_Static_assert'")?;
        Some(StaticAssert { cond, text })
    }

    pub(super) fn is_attribute(&self) -> bool {
        matches!(self.word(), "__attribute__" | "__attribute")
    }

    /// Rejects inline assembly, which is specific to one vendor's chips.
    pub(super) fn refuse_asm(&mut self) -> Option<()> {
        if matches!(self.word(), "asm" | "__asm" | "__asm__") {
            let span = self.peek().span;
            return self
                .error(span, "inline assembly needs a vendor instruction, which this device does not have");
        }
        Some(())
    }

    /// Returns true if a declaration (not an expression) starts here.
    pub(super) fn starts_declaration(&self) -> bool {
        let Some(name) = self.peek().name() else { return false };
        match self.meaning(name) {
            Some(Meaning::Type { .. }) => return true,
            Some(Meaning::Other) => return false,
            None => {}
        }
        let word = self.word();
        type_named(word).is_some()
            || space_named(word).is_some()
            || unsupported_type(word).is_some()
            || is_specifier(word)
    }

    /// Returns true if a type name starts here, as required after the `(` of a cast.
    pub(super) fn starts_type(&self) -> bool {
        self.starts_declaration() && !matches!(self.word(), "typedef" | "static" | "extern" | "inline")
    }

    /// Declaration specifiers.
    pub(super) fn specs(&mut self) -> Option<Specs> {
        let span = self.peek().span;
        let mut specs = Specs {
            storage: None,
            is_kernel: false,
            qualifiers: Qualifiers::default(),
            base: TypeSpec::Plain(Type::Void),
            access: None,
            attributes: Vec::new(),
            span,
        };
        let mut words = Words::default();
        let mut found = false;
        loop {
            let token = self.peek();
            let Some(name) = token.name() else { break };
            let word = self.word();
            if self.specifier_word(&mut specs)? {
                continue;
            }
            if self.qualifier(&mut specs.qualifiers)? {
                continue;
            }
            if !found && let Some(Meaning::Type { .. }) = self.meaning(name).filter(|_| words.is_empty()) {
                specs.base = TypeSpec::Typedef(name);
                (found, specs.span) = (true, token.span);
                self.next();
            } else if matches!(word, "struct" | "union" | "enum" | "typeof" | "__typeof__") && !found {
                specs.span = token.span;
                specs.base = self.tagged_type(word)?;
                found = true;
            } else if !found && unsupported_type(word).is_some() && self.meaning(name).is_none() {
                return self.no_type();
            } else if !found && self.meaning(name) != Some(Meaning::Other) && words.take(word) {
                specs.span = token.span;
                self.next();
            } else {
                break;
            }
        }
        if let Some(ty) = words.finish() {
            match ty {
                Ok(Type::Image(kind, access)) => {
                    specs.base = TypeSpec::Plain(Type::Image(kind, specs.access.unwrap_or(access)));
                }
                Ok(ty) => specs.base = TypeSpec::Plain(ty),
                Err(why) => return self.error(specs.span, why),
            }
        } else if !found {
            let said = specs.storage.is_some() || specs.qualifiers != Qualifiers::default();
            if !(said && self.defaults_to_int()) {
                return self.no_type();
            }
            let message = "type specifier missing, defaults to 'int'";
            self.diagnostics.warning(self.peek().span, message);
            specs.base = TypeSpec::Plain(INT);
        }
        Some(specs)
    }

    /// Returns true if a declaration without a type follows, which old C allowed: `static const n = 4`.
    fn defaults_to_int(&self) -> bool {
        let word = self.word();
        let names = !word.is_empty() && !is_reserved(word) && unsupported_type(word).is_none();
        let next = self.token(self.at + 1);
        names && ["=", ";", ",", "["].iter().any(|p| next.is(p))
    }

    /// Reports a missing type and the token found instead.
    fn no_type<T>(&mut self) -> Option<T> {
        let word = self.word();
        if let Some(why) = unsupported_type(word) {
            return self.error(self.peek().span, format!("type '{word}' is not supported: {why}"));
        }
        let next = self.token(self.at + 1);
        let names_type = !word.is_empty() && (next.name().is_some() || next.is("*"));
        if names_type && !is_reserved(word) {
            let hint = self.type_like(word);
            return self.error(self.peek().span, format!("unknown type name '{word}'{hint}"));
        }
        if !word.is_empty() && !is_reserved(word) {
            return self.error(self.peek().span, format!("type specifier missing before '{word}'"));
        }
        self.unexpected("a type")
    }

    /// Returns `; did you mean 'float4'?`.
    fn type_like(&self, word: &str) -> String {
        const TYPES: [&str; 16] = [
            "bool",
            "char",
            "uchar",
            "short",
            "ushort",
            "int",
            "uint",
            "long",
            "ulong",
            "half",
            "float",
            "double",
            "void",
            "size_t",
            "ptrdiff_t",
            "event_t",
        ];
        let declared = self.scopes.iter().flatten().filter(|(_, m)| matches!(m, Meaning::Type { .. }));
        let declared = declared.map(|(s, _)| self.names.text(*s));
        let vectors = TYPES[1..12].iter().flat_map(|t| ["2", "3", "4", "8", "16"].map(|n| format!("{t}{n}")));
        let vectors: Vec<String> = vectors.collect();
        let all = declared.chain(TYPES).chain(vectors.iter().map(String::as_str));
        crate::source::did_you_mean(word, all)
    }

    /// Parses storage classes, `inline`, `__kernel` and attributes; returns false for another word.
    fn specifier_word(&mut self, specs: &mut Specs) -> Option<bool> {
        let storage = match self.word() {
            "typedef" => Some(Storage::Typedef),
            "static" => Some(Storage::Static),
            "extern" => Some(Storage::Extern),
            "inline" | "__inline" | "__inline__" | "register" | "auto" | "_Noreturn" | "__extension__" => {
                None
            }
            word if ImageAccess::named(word).is_some() => {
                specs.access = ImageAccess::named(word);
                None
            }
            "__kernel" | "kernel" => {
                specs.is_kernel = true;
                None
            }
            "__attribute__" | "__attribute" => {
                self.attributes(&mut specs.attributes)?;
                return Some(true);
            }
            _ => return Some(false),
        };
        let span = self.next().span;
        if storage.is_some() {
            if specs.storage.is_some() && specs.storage != storage {
                return self.error(span, "cannot combine with previous storage class");
            }
            specs.storage = storage;
        }
        Some(true)
    }

    /// Parses one qualifier or address space; returns false for another word.
    pub(super) fn qualifier(&mut self, qualifiers: &mut Qualifiers) -> Option<bool> {
        let word = self.word();
        match word {
            "const" | "__const" => qualifiers.is_const = true,
            "volatile" | "__volatile__" => qualifiers.is_volatile = true,
            "restrict" | "__restrict" | "__restrict__" => qualifiers.is_restrict = true,
            _ => match space_named(word) {
                Some(space) => {
                    if qualifiers.space.is_some_and(|s| s != space) {
                        return self.error(self.peek().span, "multiple address spaces specified for type");
                    }
                    qualifiers.space = Some(space);
                }
                None => return Some(false),
            },
        }
        self.next();
        Some(true)
    }

    /// Parses any number of `__attribute__((…))`.
    pub(super) fn attributes(&mut self, list: &mut Vec<Attribute>) -> Option<()> {
        while self.is_attribute() {
            self.next();
            self.expect("(", " after '__attribute__'")?;
            self.expect("(", " after '__attribute__('")?;
            while !self.is(")") {
                if self.eat(",") {
                    continue;
                }
                let token = self.next();
                if token.name().is_none() {
                    self.at -= usize::from(!token.is_end());
                    return self.unexpected("an attribute's name");
                }
                let name = token.spelling(self.names).trim_matches('_').to_string();
                let mut attribute =
                    Attribute { name, args: Vec::new(), text: String::new(), span: token.span };
                if self.is("(") {
                    self.attribute_args(&mut attribute)?;
                }
                list.push(attribute);
            }
            self.expect(")", "")?;
            self.expect(")", "")?;
        }
        Some(())
    }

    fn attribute_args(&mut self, attribute: &mut Attribute) -> Option<()> {
        self.next();
        if WITH_ARGS.contains(&attribute.name.as_str()) {
            while !self.is(")") {
                attribute.args.push(self.assignment()?);
                if !self.eat(",") {
                    break;
                }
            }
            self.expect(")", " after the attribute's arguments")?;
            return Some(());
        }
        let mut parens = 1;
        while parens > 0 {
            let token = self.next();
            if token.is_end() {
                return self.unexpected("')'");
            }
            parens = parens + usize::from(token.is("(")) - usize::from(token.is(")"));
            if parens > 0 {
                let space = if attribute.text.is_empty() { "" } else { " " };
                attribute.text = format!("{}{space}{}", attribute.text, token.spelling(self.names));
            }
        }
        Some(())
    }

    /// Parses a type without a name, such as in a cast, without the parentheses.
    pub(super) fn type_name(&mut self) -> Option<TypeName> {
        let specs = self.specs()?;
        let declarator = self.declarator()?;
        match declarator.name {
            Some((_, span)) => self.error(span, "expected a type, found a declaration"),
            None => Some(TypeName { specs, declarator }),
        }
    }
}

fn is_specifier(word: &str) -> bool {
    const WORDS: [&str; 32] = [
        "typedef",
        "static",
        "extern",
        "inline",
        "__inline",
        "__inline__",
        "register",
        "auto",
        "_Noreturn",
        "__extension__",
        "__kernel",
        "kernel",
        "__attribute__",
        "__attribute",
        "const",
        "__const",
        "volatile",
        "__volatile__",
        "restrict",
        "__restrict",
        "__restrict__",
        "struct",
        "union",
        "enum",
        "typeof",
        "__typeof__",
        "unsigned",
        "signed",
        "__signed__",
        "long",
        "short",
        "_Static_assert",
    ];
    WORDS.contains(&word) || ImageAccess::named(word).is_some()
}

impl Words {
    fn is_empty(&self) -> bool {
        self.unsigned.is_none() && self.longs == 0 && self.base.is_none() && !self.plain_int
    }

    /// Takes a word that extends the type; returns false for any other word.
    fn take(&mut self, word: &str) -> bool {
        match word {
            "unsigned" if self.unsigned.is_none() => self.unsigned = Some(true),
            "signed" | "__signed__" if self.unsigned.is_none() => self.unsigned = Some(false),
            "int" if !self.plain_int => self.plain_int = true,
            "long" if self.base.is_none() => self.longs += 1,
            _ => match type_named(word) {
                Some(ty) if self.base.is_none() && self.longs == 0 && !self.plain_int => self.base = Some(ty),
                _ => return false,
            },
        }
        true
    }

    /// Returns the type that the words name; `None` without words.
    fn finish(self) -> Option<Result<Type, &'static str>> {
        if self.is_empty() {
            return None;
        }
        if self.longs > 1 {
            return Some(Err("'long long' is reserved in OpenCL C; 'long' has 64 bits"));
        }
        let base = match self.base {
            None if self.longs == 1 => Scalar::I64,
            None => Scalar::I32,
            Some(Type::Scalar(s @ (Scalar::I8 | Scalar::I16))) => s,
            Some(ty) if self.unsigned.is_none() && !self.plain_int => return Some(Ok(ty)),
            Some(_) => return Some(Err("invalid combination of type specifiers")),
        };
        let signed = base != Scalar::I8 || !self.plain_int;
        if !signed {
            return Some(Err("invalid combination of type specifiers"));
        }
        Some(Ok(Type::Scalar(if self.unsigned == Some(true) { base.unsigned_of_width() } else { base })))
    }
}
