//! Integer built-ins that need more than an operator.

/// Returns x * y + z, saturated to the nearest i64.
pub fn mad_sat_i64(x: i64, y: i64, z: i64) -> i64 {
    let exact = i128::from(x) * i128::from(y) + i128::from(z);
    exact.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// Returns x * y + z, saturated to the largest u64.
pub fn mad_sat_u64(x: u64, y: u64, z: u64) -> u64 {
    let exact = u128::from(x) * u128::from(y) + u128::from(z);
    exact.min(u128::from(u64::MAX)) as u64
}
