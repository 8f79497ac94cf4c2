//! Cost estimate for intersections of regular expressions, before matching.
//!
//! The parser computes derivatives for sets of bytes. The derivative of an intersection pairs every set of one operand with those sets of the others
//! that share a byte with it. So operands with many overlapping sets take exponential time within one step, where the parser's budgets are not
//! checked.

use llguidance::derivre::ExprRef;
use llguidance::derivre::raw::ExprSet;
use std::collections::{HashMap, HashSet};

/// Maximum number of pairs of one derivative. Each takes about a microsecond.
const MAX_PAIRS: u64 = 20_000;
/// Maximum number of expressions that the estimate visits.
const MAX_VISITS: usize = 4_000_000;

/// The parser's numbers for the kinds of expressions used here; their names are not public.
mod tag {
    pub const BYTE: u8 = 3;
    pub const BYTE_SET: u8 = 4;
    pub const BYTE_CONCAT: u8 = 5;
    pub const REMAINDER: u8 = 6;
    pub const NOT: u8 = 8;
    pub const AND: u8 = 12;
}

/// For each byte, the number of distinguishable sets with it in the derivatives of an expression.
type Overlap = Vec<u64>;

/// Returns true if each intersection in these expressions has derivatives of bounded cost.
pub fn is_bounded(set: &ExprSet) -> bool {
    let mut known: HashMap<u32, Overlap> = HashMap::new();
    let mut left = MAX_VISITS;
    // Operands have lower ids than the expressions that use them.
    for id in 0..u32::try_from(set.len()).unwrap_or(u32::MAX) {
        let own = ExprRef::new(id);
        if !own.is_valid() || set.get_tag(own) as u8 != tag::AND {
            continue;
        }
        let mut all: Overlap = vec![1; 256];
        for operand in set.get_args(own) {
            let Some(one) = overlap(set, *operand, &known, &mut left) else { return false };
            all.iter_mut().zip(one).for_each(|(all, one)| *all = all.saturating_mul(one.max(1)));
        }
        if all.iter().any(|pairs| *pairs > MAX_PAIRS) {
            return false;
        }
        known.insert(id, all);
    }
    true
}

/// Returns the overlap of one expression; `None` if it takes too many visits.
fn overlap(set: &ExprSet, expr: ExprRef, known: &HashMap<u32, Overlap>, left: &mut usize) -> Option<Overlap> {
    let mut all: Overlap = vec![0; 256];
    let mut seen = HashSet::new();
    let mut stack = vec![expr];
    let mut bytes = false;
    while let Some(expr) = stack.pop() {
        if !seen.insert(expr.as_u32()) {
            continue;
        }
        *left = left.checked_sub(1)?;
        match set.get_tag(expr) as u8 {
            tag::BYTE | tag::BYTE_SET => {
                let leaf = set.get(expr);
                (0..=255u8).filter(|b| leaf.matches_byte(*b)).for_each(|b| all[usize::from(b)] += 1);
            }
            tag::AND => {
                let nested = known.get(&expr.as_u32())?;
                all.iter_mut().zip(nested).for_each(|(all, one)| *all = all.saturating_add(*one));
            }
            // The sets of a complement are made disjoint, and so are the digits of a remainder.
            tag::NOT | tag::REMAINDER => all.iter_mut().for_each(|all| *all = all.saturating_add(1)),
            kind => {
                bytes |= kind == tag::BYTE_CONCAT;
                stack.extend(set.get_args(expr));
            }
        }
    }
    // Each byte of a literal is a separate set, counted at most once.
    all.iter_mut().filter(|_| bytes).for_each(|all| *all = all.saturating_add(1));
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::{RegexAst, RegexBuilder};

    fn regex(text: &str) -> RegexAst {
        RegexAst::Regex(text.into())
    }
    fn bounded(ast: &RegexAst) -> bool {
        let mut builder = RegexBuilder::new();
        builder.mk(ast).unwrap();
        is_bounded(builder.exprset())
    }

    #[test]
    fn kinds_of_expressions_have_the_numbers_of_the_parser() {
        let samples = [
            (regex("a"), tag::BYTE),
            (regex("[a-c]"), tag::BYTE_SET),
            (regex("abc"), tag::BYTE_CONCAT),
            (RegexAst::MultipleOf(7, 0), tag::REMAINDER),
            (RegexAst::Not(Box::new(regex("[ab]c*"))), tag::NOT),
            (RegexAst::And(vec![regex("[ab]*c"), regex("a.*")]), tag::AND),
        ];
        for (ast, expected) in samples {
            let mut builder = RegexBuilder::new();
            let expr = builder.mk(&ast).unwrap();
            assert!(builder.exprset().get_tag(expr) as u8 == expected, "{expected}");
        }
    }

    #[test]
    fn few_expressions_may_meet_and_many_may_not() {
        let meet =
            |n: usize| RegexAst::And((0..n).map(|i| regex(&format!("(?s:.*)a.{{{i}}}b(?s:.*)"))).collect());
        assert!((2..6).all(|n| bounded(&meet(n))));
        assert!(!bounded(&meet(16)) && !bounded(&meet(40)));
        // Few operands, but each with many overlapping sets.
        let sets: Vec<String> = (b'b'..b'z').map(|c| format!("[a{}].", char::from(c))).collect();
        let wide = |at: u8| regex(&format!("({}|{})*", sets.join("|"), char::from(at)));
        assert!(bounded(&RegexAst::And(vec![wide(b'0'), wide(b'1')])));
        assert!(!bounded(&RegexAst::And((b'0'..b'8').map(wide).collect())));
        // A long list of exceptions is cheap.
        let not = |n: usize| RegexAst::Not(Box::new(regex(&format!("x{n}|y.{{{n}}}z"))));
        assert!(bounded(&RegexAst::And((0..200).map(not).chain([regex("[a-z0-9]*")]).collect())));
    }
}
