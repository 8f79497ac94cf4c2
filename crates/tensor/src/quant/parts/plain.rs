//! Elements with separate bits, little-endian.

/// Reads elements of N bytes each.
pub fn read<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(chunks).for_each(|(out, bytes)| *out = value(*bytes));
}

/// Writes elements of N bytes each.
pub fn write<const N: usize>(values: &[f32], bytes: &mut [u8], of: impl Fn(f32) -> [u8; N]) {
    let (chunks, _) = bytes.as_chunks_mut::<N>();
    chunks.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = of(*value));
}
