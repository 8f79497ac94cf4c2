//! Conversions between number formats that Rust's `as` lacks: `half`, and directed roundings.

/// A rounding other than to the nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectedRounding {
    /// Toward zero.
    Zero,
    /// Toward positive infinity.
    Up,
    /// Toward negative infinity.
    Down,
}

/// Returns the bits of the f32 equal to a half. Without branches, so that loops become SIMD.
#[inline(always)]
pub fn half_to_f32(half: u32) -> u32 {
    let magnitude = half & 0x7fff;
    let sign = (half & 0x8000) << 16;
    // Exponent and mantissa in place, scaled by 2^112 in arithmetic, which normalizes denormals.
    let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = 0x7f80_0000 | (magnitude << 13);
    (if magnitude >= 0x7c00 { special } else { scaled }) | sign
}

/// Returns the bits of the half nearest to an f32, ties to even. Without branches.
#[inline(always)]
pub fn f32_to_half(x: f32) -> u32 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal halves: round off 13 bits, and rebias the exponent.
    let normal =
        (magnitude.wrapping_add(0xfff).wrapping_add((magnitude >> 13) & 1).wrapping_sub(112 << 23)) >> 13;
    // Denormal halves: adding 0.5 leaves the rounded bits of the half at the end of the mantissa.
    let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    let finite = if magnitude < 0x3880_0000 { denormal } else { normal };
    let or_infinite = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    (if magnitude > 0x7f80_0000 { nan } else { or_infinite }) | sign
}

/// Returns the bits of the half nearest to an f64, ties to even, rounded once.
pub fn f64_to_half(x: f64) -> u32 {
    // Round to odd in f32: the later rounding to 11 bits then takes every lost bit into account.
    let near = x as f32;
    let exact = f64::from(near) == x || x.is_nan();
    let towards = if f64::from(near).abs() > x.abs() { f32::from_bits(near.to_bits() - 1) } else { near };
    let odd = if exact { near } else { f32::from_bits(towards.to_bits() | 1) };
    f32_to_half(odd)
}

/// Returns the bits of a half, rounded in a direction.
pub fn f64_to_half_directed(x: f64, direction: DirectedRounding) -> u32 {
    let half = f64_to_half(x);
    let back = |h: u32| f64::from(f32::from_bits(half_to_f32(h)));
    if x.is_nan() || back(half) == x {
        return half;
    }
    let (above, below) = if back(half) > x { (half, half_below(half)) } else { (half_above(half), half) };
    match direction {
        DirectedRounding::Up => above,
        DirectedRounding::Down => below,
        DirectedRounding::Zero if x > 0.0 => below,
        DirectedRounding::Zero => above,
    }
}

fn half_above(h: u32) -> u32 {
    match h {
        0x8000 => 0x0001,
        h if h & 0x8000 != 0 => h - 1,
        h => h + 1,
    }
}

fn half_below(h: u32) -> u32 {
    match h {
        0x0000 => 0x8001,
        h if h & 0x8000 != 0 => h + 1,
        h => h - 1,
    }
}

/// Returns `near`, a number rounded to nearest, or its neighbor if `near` is on the wrong side. `back` is `near` in the type of the exact number `x`.
macro_rules! directed {
    ($near:ident, $back:expr, $x:ident, $direction:ident) => {{
        let back = $back;
        match $direction {
            DirectedRounding::Up if back < $x => $near.next_up(),
            DirectedRounding::Down if back > $x => $near.next_down(),
            DirectedRounding::Zero if $near > 0.0 && back > $x => $near.next_down(),
            DirectedRounding::Zero if $near < 0.0 && back < $x => $near.next_up(),
            _ => $near,
        }
    }};
}

/// Returns an f64 as f32, rounded in a direction.
pub fn f64_to_f32_directed(x: f64, direction: DirectedRounding) -> f32 {
    let near = x as f32;
    directed!(near, f64::from(near), x, direction)
}

/// Returns a 64-bit integer as f64, rounded in a direction.
pub fn i128_to_f64(x: i128, direction: DirectedRounding) -> f64 {
    let near = x as f64;
    directed!(near, near as i128, x, direction)
}

/// Returns a 64-bit integer as f32, rounded in a direction.
pub fn i128_to_f32(x: i128, direction: DirectedRounding) -> f32 {
    let near = x as f32;
    directed!(near, near as i128, x, direction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_half_comes_back() {
        for h in 0..=u16::MAX {
            let x = f16::from_bits(h);
            let ours = f32::from_bits(half_to_f32(u32::from(h)));
            assert!(ours == x.to_f32() || (ours.is_nan() && x.is_nan()), "{h:#x}");
            if !x.is_nan() {
                assert_eq!(f32_to_half(ours), u32::from(h));
                assert_eq!(f64_to_half_directed(f64::from(ours), DirectedRounding::Up), u32::from(h));
            }
        }
    }

    #[test]
    fn rounding_to_half_agrees_with_the_half_crate() {
        for i in 0..1u32 << 20 {
            let x = f32::from_bits(i.wrapping_mul(0x9e37_79b1));
            let theirs = f16::from_f32(x);
            let ours = f16::from_bits(f32_to_half(x) as u16);
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{x:e}");
            assert!(x.is_nan() || f64_to_half(f64::from(x)) == f32_to_half(x), "{x:e}");
        }
    }

    #[test]
    fn directed_roundings_enclose() {
        assert_eq!(f64_to_half_directed(1e-30, DirectedRounding::Up), 1);
        assert_eq!(f64_to_half_directed(-1e-30, DirectedRounding::Down), 0x8001);
        assert_eq!(f64_to_half_directed(1e6, DirectedRounding::Zero), 0x7bff);
        assert_eq!(f64_to_half_directed(-1e-30, DirectedRounding::Zero), 0x8000);
        assert_eq!(i128_to_f32(16_777_217, DirectedRounding::Up), 16_777_218.0);
        assert_eq!(i128_to_f32(-16_777_217, DirectedRounding::Zero), -16_777_216.0);
        assert_eq!(f64_to_f32_directed(0.1, DirectedRounding::Down), 0.099_999_994);
    }
}
