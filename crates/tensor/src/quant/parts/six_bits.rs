//! Scales and minimums of six bits for eight groups, in twelve bytes. For g < 4 they are the low six bits of bytes g and g + 4. For the others the
//! low four are the nibbles of byte g + 4, and the upper two are the upper two bits of bytes g - 4 and g.

/// Returns scale and minimum of group `g`.
pub fn six_bits(scales: &[u8], g: usize) -> [f32; 2] {
    let [s, m] = match g {
        0..4 => [scales[g] & 63, scales[g + 4] & 63],
        _ => [scales[g + 4] & 15 | scales[g - 4] >> 6 << 4, scales[g + 4] >> 4 | scales[g] >> 6 << 4],
    };
    [f32::from(s), f32::from(m)]
}

/// Adds scale and minimum of group `g` to bytes whose bits there are zero.
pub fn put_six_bits(scales: &mut [u8], g: usize, [s, m]: [u8; 2]) {
    if g < 4 {
        scales[g] |= s;
        scales[g + 4] |= m;
    } else {
        scales[g + 4] |= s & 15 | m << 4;
        scales[g - 4] |= s >> 4 << 6;
        scales[g] |= m >> 4 << 6;
    }
}
