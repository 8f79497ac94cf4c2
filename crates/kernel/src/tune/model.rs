//! The device model: constants for estimating the run time of an algorithm. Examples are the microseconds of a launch, the bytes that memory
//! transfers in a microsecond, and the microseconds that a tile takes for one step of its sum.
//!
//! An estimate is a formula of sizes, number of compute units and these constants; the formula is code, the constants are data. A constant is looked
//! up among the results of `netcl tune --model` on this device. The next source is results for a device of the same architecture, measured locally or
//! shipped with netcl. The last source is a default for GPUs or for processors.

use super::{Origin, Tuning};
use netcl_device::Device;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// One constant. Its name ends with its unit: `_us` (microseconds), `_per_us`, `_bytes`; a name without a unit is a ratio.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Name in files and listings.
    pub name: &'static str,
    /// Meaning of the constant, for listings.
    pub about: &'static str,
    /// Defaults for GPUs and for processors if nothing was measured. Positive.
    pub fallback: [f64; 2],
}

impl Constant {
    /// Returns a constant with the same default for every device.
    pub const fn new(name: &'static str, about: &'static str, fallback: f64) -> Self {
        Self { name, about, fallback: [fallback; 2] }
    }
    /// Sets a different default for processors.
    pub const fn cpu(mut self, fallback: f64) -> Self {
        self.fallback[1] = fallback;
        self
    }
}

/// The constants that one algorithm's estimate uses, or that several estimates share.
#[derive(Debug)]
pub struct Model {
    /// Name in files and listings: the kernel's name if the model belongs to one algorithm.
    pub name: &'static str,
    /// Constants in the order of [`Model::on`].
    pub constants: &'static [Constant],
}

/// Constants of the device itself, for every estimate.
pub static DEVICE: Model = Model {
    name: "device",
    constants: &[
        Constant::new("memory_bytes_per_us", "bytes that memory reads and writes", 2e5).cpu(2e4),
        Constant::new("cache_share_bytes", "bytes that concurrent groups may keep in the last cache", 4e6)
            .cpu(1e6),
    ],
};

impl Model {
    /// Returns the values of the N constants for a device, in their order.
    pub fn on<const N: usize>(&'static self, device: &Device) -> [f64; N] {
        debug_assert_eq!(N, self.constants.len(), "{}", self.name);
        let (values, _) = self.known(device);
        std::array::from_fn(|i| values.get(i).copied().unwrap_or_default())
    }

    /// Returns the value of one constant.
    pub fn constant(&'static self, device: &Device, name: &str) -> Option<f64> {
        let at = self.constants.iter().position(|constant| constant.name == name)?;
        self.known(device).0.get(at).copied()
    }

    /// Returns the values as a list, each with its origin.
    pub fn known(&'static self, device: &Device) -> Values {
        let known = device.extension(|_| ModelConstants::default());
        let found = known.0.read().unwrap_or_else(PoisonError::into_inner).get(self.name).cloned();
        if let Some(found) = found {
            return found;
        }
        let kind = usize::from(device.capabilities().is_cpu());
        let tuning = Tuning::of(device);
        let of = |c: &Constant| {
            let stored = tuning.store().constant(self.name, c.name);
            stored.unwrap_or((c.fallback[kind], Origin::Default))
        };
        let (values, origins): (Vec<f64>, Vec<Origin>) = self.constants.iter().map(of).unzip();
        let found = (Arc::from(values), Arc::from(origins));
        known.0.write().unwrap_or_else(PoisonError::into_inner).insert(self.name, Clone::clone(&found));
        found
    }

    /// Replaces the values in memory for estimates on this device, for fitting. Nothing is stored.
    pub fn assume(&'static self, device: &Device, values: &[f64]) {
        let known = device.extension(|_| ModelConstants::default());
        let values: Arc<[f64]> = values.into();
        let origins = vec![Origin::Tuned; values.len()].into();
        known.0.write().unwrap_or_else(PoisonError::into_inner).insert(self.name, (values, origins));
    }
}

/// Values of a model's constants, each with its origin.
type Values = (Arc<[f64]>, Arc<[Origin]>);

/// Constants in use on a device, by the model's name.
#[derive(Default)]
struct ModelConstants(RwLock<HashMap<&'static str, Values>>);

/// The measured times of one problem, for fitting.
pub struct Observation<'a> {
    /// Measured microseconds of each algorithm.
    pub measured: Vec<f64>,
    /// Estimated microseconds of the same algorithms with the values now set for the device.
    pub estimates: Box<dyn Fn() -> Vec<f64> + 'a>,
    /// The models whose constants the estimates use.
    pub models: Vec<&'static Model>,
}

impl Observation<'_> {
    /// Returns the regret: measured time of the algorithm with the lowest estimate over that of the fastest algorithm; 1 without any.
    pub fn regret(&self) -> f64 {
        self.regret_of(&(self.estimates)())
    }

    fn regret_of(&self, estimates: &[f64]) -> f64 {
        let both = self.measured.iter().zip(estimates);
        let chosen = both.min_by(|a, b| a.1.total_cmp(b.1)).map_or(1.0, |(measured, _)| *measured);
        chosen / self.fastest().min(chosen)
    }

    fn fastest(&self) -> f64 {
        self.measured.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the loss of the estimates: their logarithmic errors, with less weight for algorithms far from the fastest, and the logarithm of the
    /// regret.
    fn loss(&self) -> f64 {
        let (estimates, fastest) = ((self.estimates)(), self.fastest());
        let off = estimates.iter().zip(&self.measured);
        let off: f64 = off.map(|(estimate, measured)| fastest / measured * loss(*estimate, *measured)).sum();
        off + CHOICE * self.regret_of(&estimates).ln()
    }
}

/// Weight of the logarithm of a choice's regret, relative to the squared logarithm of an estimate's error.
const CHOICE: f64 = 2.0;

/// Largest factor by which a fit may change a constant. Constants that no observation depends on stay near their value.
const MAX_CONSTANT_CHANGE: f64 = 1000.0;
/// Step sizes (factors) of the coordinate descent, from coarse to fine.
const FACTORS: [f64; 7] = [4.0, 2.0, 1.4, 1.2, 1.1, 1.05, 1.02];
/// Largest number of passes over all constants with one step size.
const PASSES: usize = 8;
/// Weight of the square of a constant's logarithmic change, relative to the mean square error of the estimates.
const STAY: f64 = 1e-4;

/// Huber loss: errors beyond a factor of 2 count linearly, so that one outlier does not dominate the fit.
fn loss(estimate: f64, measured: f64) -> f64 {
    let error = (estimate.max(1e-9) / measured).ln().abs();
    let limit = std::f64::consts::LN_2;
    if error < limit { error * error } else { limit * (2.0 * error - limit) }
}

/// Fits the constants of `models` to measurements by coordinate descent on the mean loss (see [`Observation`]). Leaves the fitted values set for
/// `device`; the estimates must be for that device. Returns the mean loss before and after.
pub fn fit(device: &Device, models: &[&'static Model], observations: &[Observation<'_>]) -> [f64; 2] {
    let uses = |o: &Observation<'_>, model: &Model| o.models.iter().any(|m| m.name == model.name);
    let mean = |model: Option<&Model>| {
        let of = observations.iter().filter(|o| model.is_none_or(|model| uses(o, model)));
        let (sum, count) = of.fold((0.0, 0), |(sum, count), o| (sum + o.loss(), count + o.measured.len()));
        sum / count.max(1) as f64
    };
    let before = mean(None);
    let mut states: Vec<_> = models
        .iter()
        .filter(|model| observations.iter().any(|o| uses(o, model)))
        .map(|model| (*model, model.known(device).0.to_vec()))
        .collect();
    let first: Vec<Vec<f64>> = states.iter().map(|(_, values)| values.clone()).collect();
    for factor in FACTORS {
        for _ in 0..PASSES {
            let mut moved = false;
            for (state, first) in states.iter_mut().zip(&first) {
                moved |= improve(device, state, first, factor, &|model| mean(Some(model)));
            }
            if !moved {
                break;
            }
        }
    }
    [before, mean(None)]
}

/// Multiplies and divides each constant of a model by `factor` and keeps changes that lower the loss. Returns true if the loss decreased.
fn improve(
    device: &Device,
    (model, values): &mut (&'static Model, Vec<f64>),
    first: &[f64],
    factor: f64,
    mean: &dyn Fn(&Model) -> f64,
) -> bool {
    let cost = |values: &[f64]| {
        model.assume(device, values);
        let change = values.iter().zip(first).map(|(now, first)| (now / first).ln().powi(2)).sum::<f64>();
        mean(model) + STAY * change
    };
    let mut best = cost(values);
    let mut moved = false;
    for i in 0..values.len() {
        for by in [factor, 1.0 / factor] {
            let mut tried = values.clone();
            tried[i] *= by;
            if !(1.0 / MAX_CONSTANT_CHANGE..=MAX_CONSTANT_CHANGE).contains(&(tried[i] / first[i])) {
                continue;
            }
            let now = cost(&tried);
            if now < best * (1.0 - 1e-6) {
                (best, *values, moved) = (now, tried, true);
                break;
            }
        }
    }
    model.assume(device, values);
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::null::NullDriver;
    use netcl_device::{Capabilities, DeviceKind, Settings};

    static LINE: Model = Model {
        name: "a line",
        constants: &[
            Constant::new("start_us", "before the first", 1.0).cpu(3.0),
            Constant::new("each_us", "of each", 1.0),
            Constant::new("unused", "nothing depends on it", 7.0),
        ],
    };

    fn device(kind: DeviceKind) -> Device {
        let driver = NullDriver::new(Capabilities::floor("null:0", kind));
        Device::from_driver(Box::new(driver), Settings::default())
    }

    #[test]
    fn without_measurements_there_are_fallbacks() {
        let [start, each, _] = LINE.on(&device(DeviceKind::Cpu));
        assert_eq!([start, each], [3.0, 1.0]);
        assert_eq!(LINE.on::<3>(&device(DeviceKind::Gpu))[0], 1.0);
        assert!(LINE.known(&device(DeviceKind::Gpu)).1.iter().all(|o| *o == Origin::Default));
    }

    /// The second algorithm's formula does not have a launch constant and cannot fit. Least squares of logarithms alone would make it look slower
    /// than the first from half the true crossover size.
    #[test]
    fn a_formula_that_does_not_fit_does_not_cost_choices() {
        let device = &device(DeviceKind::Gpu);
        let observations: Vec<Observation<'_>> = (0..12)
            .map(|i| {
                let n = f64::from(1 << i);
                Observation {
                    measured: vec![30.0, 2.0 + 0.05 * n],
                    estimates: Box::new(move || {
                        let [start, _, other] = LINE.on(device);
                        vec![start, other * n]
                    }),
                    models: vec![&LINE],
                }
            })
            .collect();
        fit(device, &[&LINE], &observations);
        let regrets: Vec<f64> = observations.iter().map(Observation::regret).collect();
        assert!(regrets.iter().all(|r| *r < 1.1), "{regrets:?}");
    }

    #[test]
    fn constants_are_found_from_times_of_which_one_is_odd() {
        let device = device(DeviceKind::Gpu);
        let device = &device;
        let observations: Vec<Observation<'_>> = (0..24)
            .map(|i| {
                let n = f64::from(1 << (i % 12));
                let exact = 12.0 + 0.07 * n;
                Observation {
                    // Noise of 3 %, and one outlier.
                    measured: vec![if i == 5 {
                        9.0 * exact
                    } else {
                        exact * (1.0 + 0.03 * f64::from(i % 3 - 1))
                    }],
                    estimates: Box::new(move || {
                        let [start, each, _] = LINE.on(device);
                        vec![start + each * n]
                    }),
                    models: vec![&LINE],
                }
            })
            .collect();
        let [before, after] = fit(device, &[&LINE, &DEVICE], &observations);
        let [start, each, unused] = LINE.on(device);
        assert!((start / 12.0).ln().abs() < 0.1 && (each / 0.07).ln().abs() < 0.1, "{start} {each}");
        assert!(unused == 7.0 && after < before / 5.0, "{unused} {before} {after}");
    }
}
