//! Axes of charts: ticks at round values, and units with short labels.

use super::format;

/// Unit of a chart's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AxisUnit {
    /// Plain number; in thousands or millions if large.
    Plain,
    /// KiB, MiB, GiB.
    Bytes,
    /// A power of ten.
    Power,
}

impl AxisUnit {
    /// Returns the divisor of values up to `max`, and the unit to append to the title.
    pub fn scale(self, max: f64) -> (f64, String) {
        match self {
            Self::Bytes => {
                let (scale, unit) = format::byte_scale(max);
                (scale, unit.into())
            }
            Self::Plain if max >= 1e9 => (1e9, "billions".into()),
            Self::Plain if max >= 1e6 => (1e6, "millions".into()),
            Self::Plain if max >= 1e4 => (1e3, "thousands".into()),
            Self::Power if max > 0.0 && max < 0.1 => {
                // The margin makes 9.9e-4 appear as 0.99 thousandths, and the axis ends at 1.
                let power = (max.log10() + 0.02).floor() as i32;
                (10f64.powi(power), format!("×10{}", superscript(power)))
            }
            _ => (1.0, String::new()),
        }
    }
}

fn superscript(power: i32) -> String {
    let digit = |c| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '0'..='9' => char::from_u32('⁰' as u32 + c as u32 - '0' as u32).unwrap_or(c),
        c => c,
    };
    power.to_string().chars().map(digit).collect()
}

/// An axis from `lo` to `hi`.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub lo: f64,
    pub hi: f64,
    step: f64,
}

impl Axis {
    /// Creates an axis for `lo..=hi` with about `want` steps of 1, 2 or 5 times a power of ten. An empty range is widened. `snap` moves the ends to
    /// ticks.
    pub fn new(lo: f64, hi: f64, want: usize, snap: bool) -> Self {
        let (mut lo, mut hi) = if lo.is_finite() && hi.is_finite() { (lo, hi) } else { (0.0, 1.0) };
        // For smaller differences, labels would need more digits than f64 has.
        if hi - lo <= lo.abs().max(hi.abs()) * 1e-9 {
            let margin = if lo == 0.0 { 1.0 } else { lo.abs() * 0.1 };
            (lo, hi) = (if lo == 0.0 { 0.0 } else { lo - margin }, hi + margin);
        }
        let rough = (hi - lo) / want.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0]
            .map(|m| m * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(10.0 * power);
        if snap {
            // Rounding tolerance: 0.3 / 0.1 is slightly below 3.
            lo = (lo / step + 1e-9).floor() * step;
            hi = (hi / step - 1e-9).ceil() * step;
        }
        Self { lo, hi, step }
    }

    /// Returns the values of the ticks.
    pub fn ticks(&self) -> Vec<f64> {
        let first = (self.lo / self.step - 1e-9).ceil() as i64;
        let last = (self.hi / self.step + 1e-9).floor() as i64;
        (first..=last).map(|tick| tick as f64 * self.step).collect()
    }

    /// Returns the label of a tick, with as many decimals as the step needs.
    pub fn label(&self, tick: f64) -> String {
        let decimals = (-(self.step.log10() + 1e-9).floor()).max(0.0) as usize;
        let text = format!("{tick:.decimals$}");
        // Rounding may produce -0.
        if tick.abs() < self.step / 2.0 { text.trim_start_matches('-').to_owned() } else { text }
    }

    /// Returns the relative position of `value`: 0 at `lo`, 1 at `hi`.
    pub fn at(&self, value: f64) -> f64 {
        (value - self.lo) / (self.hi - self.lo)
    }
}
