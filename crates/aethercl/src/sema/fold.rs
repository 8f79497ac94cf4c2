//! Constant folding with exactly the device's arithmetic: integers wrap, floats round to nearest even.

use crate::hir::{BinaryOp, CompareOp, Expr, ExprKind, Rounding, UnaryOp};
use crate::lex::round_to;
use crate::source::Span;
use crate::types::{BOOL, Scalar, Type};

/// A constant: bits of an integer (zero above its width), or a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ConstantValue {
    /// An integer, `bool` or null pointer.
    Int(u64),
    /// A float, rounded to its type.
    Float(f64),
}

impl ConstantValue {
    /// Returns the constant value of an expression; for a vector, the value of every lane.
    pub(super) fn of(expr: &Expr) -> Option<Self> {
        match expr.kind {
            ExprKind::Int(bits) => Some(Self::Int(bits)),
            ExprKind::Float(value) => Some(Self::Float(value)),
            _ => None,
        }
    }

    fn kind(self) -> ExprKind {
        match self {
            Self::Int(bits) => ExprKind::Int(bits),
            Self::Float(value) => ExprKind::Float(value),
        }
    }

    /// Returns its bytes in memory, little-endian.
    pub(super) fn bytes(self, scalar: Scalar) -> Vec<u8> {
        let bits = match (self, scalar) {
            (Self::Int(bits), _) => bits,
            (Self::Float(v), Scalar::F16) => u64::from(half_bits(v)),
            (Self::Float(v), Scalar::F32) => u64::from((v as f32).to_bits()),
            (Self::Float(v), _) => v.to_bits(),
        };
        bits.to_le_bytes()[..scalar.size() as usize].to_vec()
    }
}

/// Returns the bits of a value that is already rounded to `half`.
fn half_bits(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return 0x7e00;
    }
    if magnitude.is_infinite() {
        return sign | 0x7c00;
    }
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    if exponent < -14 {
        return sign | (magnitude * 2f64.powi(24)) as u16;
    }
    let fraction = (magnitude * 2f64.powi(10 - exponent)) as u16;
    sign | ((exponent + 14) as u16).wrapping_mul(1024).wrapping_add(fraction)
}

/// Returns the low bits of an integer, at the width of its type.
pub(super) fn wrap(bits: u64, scalar: Scalar) -> u64 {
    match scalar {
        Scalar::Bool => u64::from(bits != 0),
        s if s.size() == 8 => bits,
        s => bits & ((1 << s.bits()) - 1),
    }
}

/// Returns an integer's value, with its sign where the type has one.
pub(super) fn signed(bits: u64, ty: Type) -> i64 {
    let Some(s) = ty.element().filter(|s| s.is_signed()) else { return bits as i64 };
    let unused = 64 - s.bits();
    (bits << unused) as i64 >> unused
}

fn binary_int(op: BinaryOp, a: u64, b: u64, s: Scalar) -> Option<u64> {
    let ty = Type::Scalar(s);
    let (x, y) = (signed(a, ty), signed(b, ty));
    let shift = (b % u64::from(s.bits())) as u32;
    let bits = match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div | BinaryOp::Rem if b == 0 => return None,
        BinaryOp::Div if s.is_signed() => x.wrapping_div(y) as u64,
        BinaryOp::Div => a / b,
        BinaryOp::Rem if s.is_signed() => x.wrapping_rem(y) as u64,
        BinaryOp::Rem => a % b,
        BinaryOp::Shl => a << shift,
        BinaryOp::Shr if s.is_signed() => (x >> shift) as u64,
        BinaryOp::Shr => a >> shift,
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
    };
    Some(wrap(bits, s))
}

/// Computes an operation on two operands of `float` or `half` in `double` and rounds again. The result equals a single rounding, because `double` has
/// more than twice their digits.
fn binary_float(op: BinaryOp, a: f64, b: f64, s: Scalar) -> Option<f64> {
    let value = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        _ => return None,
    };
    Some(round_to(value, s))
}

/// `left op right` on constants of type `ty`.
pub(super) fn binary_number(
    op: BinaryOp,
    left: ConstantValue,
    right: ConstantValue,
    s: Scalar,
) -> Option<ConstantValue> {
    match (left, right) {
        (ConstantValue::Int(a), ConstantValue::Int(b)) => binary_int(op, a, b, s).map(ConstantValue::Int),
        (ConstantValue::Float(a), ConstantValue::Float(b)) => {
            binary_float(op, a, b, s).map(ConstantValue::Float)
        }
        _ => None,
    }
}

/// Evaluates a unary operator on a constant.
pub(super) fn unary_number(op: UnaryOp, value: ConstantValue, s: Scalar) -> Option<ConstantValue> {
    match (op, value) {
        (UnaryOp::Neg, ConstantValue::Int(a)) => Some(ConstantValue::Int(wrap(a.wrapping_neg(), s))),
        (UnaryOp::Not, ConstantValue::Int(a)) => Some(ConstantValue::Int(wrap(!a, s))),
        (UnaryOp::Neg, ConstantValue::Float(a)) => Some(ConstantValue::Float(-a)),
        (UnaryOp::Not, ConstantValue::Float(_)) => None,
    }
}

/// Returns true if a comparison of constants holds.
pub(super) fn compare_number(
    op: CompareOp,
    left: ConstantValue,
    right: ConstantValue,
    s: Scalar,
) -> Option<bool> {
    let order = match (left, right) {
        (ConstantValue::Int(a), ConstantValue::Int(b)) if s.is_signed() => {
            let ty = Type::Scalar(s);
            Some(signed(a, ty).cmp(&signed(b, ty)))
        }
        (ConstantValue::Int(a), ConstantValue::Int(b)) => Some(a.cmp(&b)),
        (ConstantValue::Float(a), ConstantValue::Float(b)) => a.partial_cmp(&b),
        _ => return None,
    };
    let Some(order) = order else { return Some(op == CompareOp::Ne) };
    Some(match op {
        CompareOp::Eq => order.is_eq(),
        CompareOp::Ne => order.is_ne(),
        CompareOp::Lt => order.is_lt(),
        CompareOp::Le => order.is_le(),
        CompareOp::Gt => order.is_gt(),
        CompareOp::Ge => order.is_ge(),
    })
}

/// Returns a constant in another type.
pub(super) fn convert_number(value: ConstantValue, from: Scalar, to: Scalar) -> ConstantValue {
    match value {
        ConstantValue::Int(bits) if to == Scalar::Bool => ConstantValue::Int(u64::from(bits != 0)),
        ConstantValue::Float(v) if to == Scalar::Bool => ConstantValue::Int(u64::from(v != 0.0)),
        ConstantValue::Int(bits) if to.is_integer() => {
            let extended = signed(bits, Type::Scalar(from)) as u64;
            ConstantValue::Int(wrap(extended, to))
        }
        ConstantValue::Int(bits) if from.is_signed() => {
            int_to_float(signed(bits, Type::Scalar(from)).into(), to)
        }
        ConstantValue::Int(bits) => int_to_float(bits.into(), to),
        ConstantValue::Float(v) if to.is_float() => ConstantValue::Float(round_to(v, to)),
        ConstantValue::Float(v) if to.is_signed() => ConstantValue::Int(wrap(v as i64 as u64, to)),
        ConstantValue::Float(v) if v < 0.0 => ConstantValue::Int(wrap(v as i64 as u64, to)),
        ConstantValue::Float(v) => ConstantValue::Int(wrap(v as u64, to)),
    }
}

/// Converts directly to `float`: through `double`, a 64-bit integer would be rounded twice.
fn int_to_float(value: i128, to: Scalar) -> ConstantValue {
    ConstantValue::Float(if to == Scalar::F32 { f64::from(value as f32) } else { round_to(value as f64, to) })
}

/// Returns an integer constant.
pub(super) fn int(bits: u64, ty: Type, span: Span) -> Expr {
    let bits = ty.element().map_or(bits, |s| wrap(bits, s));
    Expr { kind: ExprKind::Int(bits), ty, span }
}

/// Returns a floating constant.
pub(super) fn float(value: f64, ty: Type, span: Span) -> Expr {
    let value = ty.element().map_or(value, |s| round_to(value, s));
    Expr { kind: ExprKind::Float(value), ty, span }
}

/// Returns `operand` as `to`, which has the same lanes; unchanged if it already has this type.
pub(super) fn convert(operand: Expr, to: Type) -> Expr {
    if operand.ty == to {
        return operand;
    }
    let span = operand.span;
    if let (Some(n), Some(from), Some(element)) =
        (ConstantValue::of(&operand), operand.ty.element(), to.element())
    {
        return Expr { kind: convert_number(n, from, element).kind(), ty: to, span };
    }
    let kind = ExprKind::Convert { operand: Box::new(operand), rounding: Rounding::Default, saturate: false };
    Expr { kind, ty: to, span }
}

/// Returns a scalar in every lane.
pub(super) fn splat(operand: Expr, lanes: u8) -> Expr {
    let (span, Some(element)) = (operand.span, operand.ty.element()) else { return operand };
    let ty = Type::of_lanes(element, lanes);
    match ConstantValue::of(&operand) {
        Some(n) => Expr { kind: n.kind(), ty, span },
        None => Expr { kind: ExprKind::Splat(Box::new(operand)), ty, span },
    }
}

/// Returns `left op right`; both have type `ty`, except the right side of a shift.
pub(super) fn binary(op: BinaryOp, left: Expr, right: Expr, ty: Type, span: Span) -> Expr {
    if let (Some(a), Some(b), Some(s)) = (ConstantValue::of(&left), ConstantValue::of(&right), ty.element())
        && let Some(n) = binary_number(op, a, b, s)
    {
        return Expr { kind: n.kind(), ty, span };
    }
    Expr { kind: ExprKind::Binary(op, Box::new(left), Box::new(right)), ty, span }
}

/// Builds a unary operation, folded where the operand is constant.
pub(super) fn unary(op: UnaryOp, operand: Expr, span: Span) -> Expr {
    let ty = operand.ty;
    if let (Some(n), Some(s)) = (ConstantValue::of(&operand), ty.element())
        && let Some(n) = unary_number(op, n, s)
    {
        return Expr { kind: n.kind(), ty, span };
    }
    Expr { kind: ExprKind::Unary(op, Box::new(operand)), ty, span }
}

/// Builds a comparison of two operands of one type. The result is `bool`, or integers in a vector's lanes.
pub(super) fn compare(op: CompareOp, left: Expr, right: Expr, span: Span) -> Expr {
    let ty = match left.ty {
        Type::Vector(s, n) => Type::Vector(s.signed_of_width(), n),
        _ => BOOL,
    };
    let element = left.ty.element().unwrap_or(Scalar::U64);
    if let (Some(a), Some(b)) = (ConstantValue::of(&left), ConstantValue::of(&right))
        && let Some(holds) = compare_number(op, a, b, element)
    {
        let yes = if ty.is_vector() { u64::MAX } else { 1 };
        return int(if holds { yes } else { 0 }, ty, span);
    }
    Expr { kind: ExprKind::Compare(op, Box::new(left), Box::new(right)), ty, span }
}
