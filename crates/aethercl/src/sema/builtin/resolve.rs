//! Overload resolution: selects the types for a signature's letters that match the arguments best.
//!
//! The rules are those of C++ and clang. A choice is better than another if no argument needs a worse conversion and some argument a better one.
//! Without a best choice the call is ambiguous.

use super::super::{Sema, fold};
use crate::hir::Expr;
use crate::source::Span;
use crate::types::{INT, SIZE_T, Scalar, Space, Type};

/// Conversion of an argument to a parameter's type; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The same type.
    Exact,
    /// A narrow integer to `int`, `float` to `double`.
    Promotion,
    /// Another conversion between scalars.
    Conversion,
    /// A scalar, copied to every lane of a vector.
    Splat,
}

/// A parameter of one concrete overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Param {
    Value(Type),
    PointerTo(Type),
}

/// One concrete overload.
#[derive(Debug)]
struct Candidate {
    params: Vec<Param>,
    ret: Type,
    ranks: Vec<Rank>,
}

const INTEGERS: [Scalar; 8] =
    [Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64, Scalar::I16, Scalar::U16, Scalar::I8, Scalar::U8];

impl Sema<'_> {
    /// Arguments converted to the best overload's parameters, and its result type.
    pub(super) fn resolve(
        &mut self,
        name: &str,
        signature: &'static str,
        args: Vec<Expr>,
        span: Span,
    ) -> Option<(Vec<Expr>, Type)> {
        let mut candidates: Vec<Candidate> = Vec::new();
        for overload in signature.split('|') {
            self.candidates(overload.trim(), &args, &mut candidates);
        }
        let best =
            candidates.iter().position(|c| candidates.iter().all(|o| std::ptr::eq(c, o) || better(c, o)));
        let Some(best) = best else {
            return self.no_overload(name, signature, &args, !candidates.is_empty(), span);
        };
        let chosen = candidates.swap_remove(best);
        let convert = |(arg, param): (Expr, &Param)| match *param {
            Param::Value(ty) => convert_to(arg, ty),
            Param::PointerTo(_) => arg,
        };
        let args = args.into_iter().zip(&chosen.params).map(convert).collect();
        Some((args, chosen.ret))
    }

    fn no_overload<T>(
        &mut self,
        name: &str,
        signature: &str,
        args: &[Expr],
        ambiguous: bool,
        span: Span,
    ) -> Option<T> {
        let counts: Vec<usize> = signature.split('|').map(|s| s.split_whitespace().count() - 1).collect();
        if !counts.contains(&args.len()) {
            let (least, most) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
            let few = if args.len() < *least { "few" } else { "many" };
            let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let have = args.len();
            return self
                .error(span, format!("too {few} arguments to '{name}', expected {wanted}, have {have}"));
        }
        let types: Vec<String> = args.iter().map(|a| format!("'{}'", self.type_name(a.ty))).collect();
        let types = types.join(", ");
        if ambiguous {
            let message = format!(
                "call to '{name}' is ambiguous with arguments of types {types}; cast them to one type"
            );
            return self.error(span, message);
        }
        self.error(span, format!("no matching function for call to '{name}' with arguments of types {types}"))
    }

    /// Adds every concrete overload that the arguments can be converted to.
    fn candidates(&self, overload: &str, args: &[Expr], out: &mut Vec<Candidate>) {
        let letters: Vec<&str> = overload.split_whitespace().collect();
        let Some((ret, params)) = letters.split_first() else { return };
        if params.len() != args.len() {
            return;
        }
        let Some(generic) = params.iter().chain([ret]).find_map(|l| generic_of(l)) else {
            self.candidate(ret, params, args, Type::Void, out);
            return;
        };
        for element in self.elements(generic) {
            for lanes in lanes_of(generic, args) {
                self.candidate(ret, params, args, Type::of_lanes(element, lanes), out);
            }
        }
    }

    fn candidate(&self, ret: &str, params: &[&str], args: &[Expr], generic: Type, out: &mut Vec<Candidate>) {
        let mut list = Vec::with_capacity(params.len());
        let mut ranks = Vec::with_capacity(params.len());
        for (letter, arg) in params.iter().zip(args) {
            let (param, rank) = match letter.strip_prefix('*') {
                Some(to) => {
                    let Some(to) = concrete(to, generic) else { return };
                    (Param::PointerTo(to), self.pointer_rank(arg.ty, to))
                }
                None => {
                    let Some(ty) = concrete(letter, generic) else { return };
                    (Param::Value(ty), rank(arg.ty, ty))
                }
            };
            let Some(rank) = rank else { return };
            list.push(param);
            ranks.push(rank);
        }
        let Some(ret) = concrete(ret, generic) else { return };
        if !out.iter().any(|c| c.params == list) {
            out.push(Candidate { params: list, ret, ranks });
        }
    }

    fn pointer_rank(&self, arg: Type, to: Type) -> Option<Rank> {
        let p = self.types.pointee(arg)?;
        (p.to == to && !p.is_const && p.space != Space::Constant).then_some(Rank::Exact)
    }

    /// Returns the element types that a letter stands for on this device.
    fn elements(&self, generic: char) -> Vec<Scalar> {
        let floats =
            [(Scalar::F32, true), (Scalar::F64, self.features.fp64), (Scalar::F16, self.features.fp16)];
        let floats = floats.into_iter().filter(|f| f.1).map(|f| f.0);
        match generic {
            'F' | 'G' | 'H' => floats.collect(),
            'S' | 'P' => vec![Scalar::F32],
            'I' => INTEGERS.to_vec(),
            'M' => INTEGERS[..2].to_vec(),
            'K' => INTEGERS[..4].iter().copied().chain(floats).collect(),
            _ => INTEGERS.iter().copied().chain(floats).collect(),
        }
    }
}

/// Converts an argument that was ranked.
fn convert_to(arg: Expr, ty: Type) -> Expr {
    match ty {
        Type::Vector(s, n) if !arg.ty.is_vector() => fold::splat(fold::convert(arg, Type::Scalar(s)), n),
        _ => fold::convert(arg, ty),
    }
}

/// Returns the letter whose type determines the others, if this is one or depends on one.
fn generic_of(letter: &str) -> Option<char> {
    Some(match letter.trim_start_matches('*') {
        "F" | "f" | "J" | "j" | "V" | "R" => 'F',
        "G" | "g" => 'G',
        "H" => 'H',
        "S" => 'S',
        "P" | "p" => 'P',
        "I" | "U" | "X" => 'I',
        "M" => 'M',
        "A" | "a" | "C" | "D" => 'A',
        "K" => 'K',
        "Q" => 'Q',
        _ => return None,
    })
}

/// Lanes to try: one, and those of the arguments that are vectors.
fn lanes_of(generic: char, args: &[Expr]) -> Vec<u8> {
    let mut lanes = vec![1];
    for arg in args {
        if !lanes.contains(&arg.ty.lanes()) {
            lanes.push(arg.ty.lanes());
        }
    }
    lanes.retain(|n| match generic {
        'G' | 'P' => *n <= 4,
        'H' => matches!(n, 3 | 4),
        'K' | 'Q' => *n == 1,
        _ => true,
    });
    lanes
}

/// Returns the type of a letter if the determining letter is `generic`; `None` if no such type exists.
fn concrete(letter: &str, generic: Type) -> Option<Type> {
    let lanes = generic.lanes();
    let element = generic.element();
    let each = |s: Scalar| Some(Type::of_lanes(s, lanes));
    match letter {
        "v" => Some(Type::Void),
        "u" => Some(Type::Scalar(Scalar::U32)),
        "z" => Some(SIZE_T),
        "i32" | "j" => Some(INT),
        "u4" => Some(Type::Vector(Scalar::U32, 4)),
        "F" | "G" | "H" | "S" | "P" | "I" | "M" | "A" | "K" | "Q" => Some(generic),
        "f" | "g" | "p" | "a" => element.map(Type::Scalar),
        "J" => each(Scalar::I32),
        "U" | "V" | "D" => each(element?.unsigned_of_width()),
        "C" => each(element?.signed_of_width()),
        "R" if lanes == 1 => Some(INT),
        "R" => each(element?.signed_of_width()),
        "X" => each(match element? {
            Scalar::I8 => Scalar::I16,
            Scalar::U8 => Scalar::U16,
            Scalar::I16 => Scalar::I32,
            Scalar::U16 => Scalar::U32,
            Scalar::I32 => Scalar::I64,
            Scalar::U32 => Scalar::U64,
            _ => return None,
        }),
        _ => None,
    }
}

/// Returns the conversion from `from` to `to`; `None` if impossible.
fn rank(from: Type, to: Type) -> Option<Rank> {
    if from == to {
        return Some(Rank::Exact);
    }
    match (from, to) {
        (Type::Scalar(a), Type::Scalar(b)) => {
            let widened = a.is_integer() && a.size() < 4 && b == Scalar::I32;
            let promotion = widened || (a, b) == (Scalar::F32, Scalar::F64);
            Some(if promotion { Rank::Promotion } else { Rank::Conversion })
        }
        (Type::Scalar(_), Type::Vector(..)) => Some(Rank::Splat),
        _ => None,
    }
}

/// Returns true if no argument is converted worse in `a` than in `b`, and some better.
fn better(a: &Candidate, b: &Candidate) -> bool {
    let pairs = || a.ranks.iter().zip(&b.ranks);
    pairs().all(|(x, y)| x <= y) && pairs().any(|(x, y)| x < y)
}
