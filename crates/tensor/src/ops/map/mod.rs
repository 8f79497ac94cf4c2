//! Launches of generated element-wise kernels for any mixture of layouts.
//!
//! Axes along which every operand has a common stride are merged first. The result is one axis (a flat kernel) or rows.

mod alias;
mod ready;
mod typed;

pub use typed::{Number, map_typed, map_typed_into};

use super::prelude::*;
use netcl_kernel::generate::{ELEMENTWISE, Input as KernelInput, Spec, Step, defines};
use netcl_kernel::{Launch, Value};
use ready::{Key, Launches, Ready};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Minimum elements per work-item on a CPU; more work-items would only add overhead.
pub(crate) const CPU_CHUNK: usize = 8192;

type Defines = Arc<Vec<(&'static str, Value)>>;

/// Returns a new tensor of `shape` and `dtype` whose elements are `expression` over the inputs `x0, x1, …`, broadcast to `shape`, and the scalars
/// `s0, s1, …`.
pub fn map(
    expression: &'static str,
    inputs: &[&Tensor],
    scalars: &[f32],
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    let Some(first) = inputs.first() else { return Err(Error::internal("map without inputs")) };
    let y = Tensor::empty(first.device(), shape, dtype)?;
    map_into(expression, inputs, scalars, &y)?;
    Ok(y)
}

/// Computes the same into an existing contiguous tensor. It may be one of the inputs, or share memory with one: each element is computed from the
/// inputs' previous contents.
pub fn map_into(expression: &'static str, inputs: &[&Tensor], scalars: &[f32], y: &Tensor) -> Result<()> {
    if !y.is_contiguous() {
        return Err(Error::internal("map into a tensor that is not contiguous"));
    }
    if y.count() == 0 {
        return Ok(());
    }
    // Inputs that the kernel would overwrite before it reads them are copied first.
    let copies = typed::copies(inputs, y)?;
    let apart: Vec<&Tensor>;
    let inputs: &[&Tensor] = if copies.is_empty() {
        inputs
    } else {
        let copy = |i| copies.iter().find(|(at, _)| *at == i).map(|(_, copy)| copy);
        apart = inputs.iter().enumerate().map(|(i, x)| copy(i).unwrap_or(x)).collect();
        &apart
    };
    let in_place = inputs.iter().any(|x| alias::overlap(x, y));
    let launches = y.device().extension(|_| Launches::default());
    let key = Key::of((expression, in_place), inputs, scalars.len(), y);
    if let Some(ready) = key.as_ref().and_then(|key| launches.get(key)) {
        return ready.run(inputs, scalars, y);
    }
    // Inputs that the expression does not name are not read: gradients of linear functions do not need x.
    let named: Vec<usize> = (0..inputs.len()).filter(|i| places(expression, *i).next().is_some()).collect();
    let given: Vec<&Tensor> = named.iter().map(|i| inputs[*i]).collect();
    let inputs: &[&Tensor] = if named.len() == inputs.len() { inputs } else { &given };
    let mut strides = Vec::with_capacity(inputs.len());
    for input in inputs {
        let layout = input.layout().expand(y.shape());
        let layout = layout.ok_or_else(|| {
            Error::shape(format!("shape {} does not broadcast to {}", input.shape(), y.shape()))
        })?;
        strides.push(layout.strides);
    }
    let plan = Plan::new(y.shape().dims(), &strides);
    let launch = plan.launch((expression, &named), inputs, scalars, y);
    // A kernel whose output does not alias an input declares this, which its compiler uses.
    let launch = if in_place { launch.define("IN_PLACE", 1) } else { launch };
    let found = plan.geometry(launch, y.device(), plan.lanes(inputs, y)).run_finding()?;
    if let (Some(key), Some(found)) = (key, found) {
        let (sizes, extent) = (plan.strides_as_arguments(), plan.extent());
        launches.keep(&key, Ready { named, sizes, extent, found });
    }
    Ok(())
}

/// Merged axes of an element-wise launch.
struct Plan {
    /// Sizes, outermost first; the last is the row.
    sizes: Vec<usize>,
    /// Strides of each input over `sizes`.
    strides: Vec<Vec<usize>>,
}

impl Plan {
    fn new(dims: &[usize], strides: &[Vec<usize>]) -> Self {
        let mut sizes: Vec<usize> = Vec::with_capacity(dims.len());
        let mut merged: Vec<Vec<usize>> = vec![Vec::with_capacity(dims.len()); strides.len()];
        for (d, size) in dims.iter().enumerate().filter(|(_, n)| **n != 1) {
            let even = !sizes.is_empty()
                && merged.iter().zip(strides).all(|(m, s)| m.last() == Some(&(s[d] * size)));
            if let (true, Some(last)) = (even, sizes.last_mut()) {
                *last *= size;
            } else {
                sizes.push(*size);
            }
            for (m, s) in merged.iter_mut().zip(strides) {
                if even {
                    m.pop();
                }
                m.push(s[d]);
            }
        }
        if sizes.is_empty() {
            sizes.push(1);
            merged.iter_mut().for_each(|m| m.push(1));
        }
        Self { sizes, strides: merged }
    }

    fn inner(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    fn step(&self, input: usize) -> Step {
        match self.strides[input].last() {
            Some(0) => Step::Zero,
            Some(1) => Step::Unit,
            _ => Step::Strided,
        }
    }

    fn is_flat(&self) -> bool {
        self.sizes.len() == 1 && (0..self.strides.len()).all(|i| self.step(i) != Step::Strided)
    }

    fn launch(
        &self,
        (expression, named): (&'static str, &[usize]),
        inputs: &[&Tensor],
        scalars: &[f32],
        y: &Tensor,
    ) -> Launch<'static> {
        let mut launch = ELEMENTWISE.launch("elementwise");
        if let Some(lanes) = self.lanes(inputs, y) {
            launch = launch.define("VW", lanes);
        }
        for (name, value) in self.defines((expression, named), inputs, scalars.len(), y).iter() {
            launch = launch.define(name, value.clone());
        }
        for input in inputs {
            launch = launch.read_base(*input).scalar(input.layout().offset);
        }
        for scalar in scalars {
            launch = launch.scalar(*scalar);
        }
        for number in self.strides_as_arguments() {
            launch = launch.scalar(number);
        }
        launch = launch.write_base(y).scalar(y.layout().offset);
        self.extent().into_iter().fold(launch, |launch, n| launch.scalar(n))
    }

    /// Returns sizes and strides of the outer axes, and strides along rows, in the order of the kernel's arguments; empty for one flat axis.
    fn strides_as_arguments(&self) -> Vec<usize> {
        if self.is_flat() {
            return Vec::new();
        }
        let outer = self.sizes.len() - 1;
        let mut numbers = self.sizes[..outer].to_vec();
        for (i, strides) in self.strides.iter().enumerate() {
            let along = (self.step(i) == Step::Strided).then_some(strides[outer]);
            numbers.extend(strides[..outer].iter().copied().chain(along));
        }
        numbers
    }

    /// Returns the number of elements, or the rows and their length.
    fn extent(&self) -> Vec<usize> {
        match self.is_flat() {
            true => vec![self.inner()],
            false => vec![self.sizes[..self.sizes.len() - 1].iter().product(), self.inner()],
        }
    }

    /// Returns the lanes of 16-byte vectors in elements of the [`smallest`] size, on GPUs and if all operands are aligned.
    fn lanes(&self, inputs: &[&Tensor], y: &Tensor) -> Option<usize> {
        let operands = || inputs.iter().copied().chain([y]);
        let lanes = 16 / smallest(operands().map(Tensor::dtype));
        let even = self.is_flat() && operands().all(|t| t.layout().offset.is_multiple_of(lanes));
        (even && !y.device().capabilities().is_cpu()).then_some(lanes)
    }

    /// The generated source is cached, because generating it costs more than the launch.
    fn defines(
        &self,
        (expression, named): (&'static str, &[usize]),
        inputs: &[&Tensor],
        scalars: usize,
        y: &Tensor,
    ) -> Defines {
        let cache = y.device().extension(|_| Generated::default());
        let mut key = vec![expression.as_ptr() as usize, expression.len(), scalars, y.dtype() as usize];
        let aligned = self.lanes(inputs, y).is_some();
        key.push(if self.is_flat() { usize::from(aligned) << 32 } else { self.sizes.len() });
        key.extend(inputs.iter().enumerate().map(|(i, t)| t.dtype() as usize * 4 + self.step(i) as usize));
        if let Some(found) = cache.0.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Arc::clone(found);
        }
        let spec = Spec {
            expression: renumbered(expression, named),
            inputs: (0..inputs.len())
                .map(|i| KernelInput { dtype: inputs[i].dtype(), step: self.step(i) })
                .collect(),
            scalars,
            output: y.dtype(),
            outer: (!self.is_flat()).then(|| self.sizes.len() - 1),
            chunked: y.device().capabilities().is_cpu(),
            aligned,
        };
        let made = Arc::new(defines(&spec));
        cache.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&made));
        made
    }

    fn geometry(&self, launch: Launch<'static>, device: &Device, lanes: Option<usize>) -> Launch<'static> {
        let (n, inner) = (self.sizes.iter().product::<usize>(), self.inner());
        let value = |name| Tuning::value(device, &ELEMENTWISE, 0, name);
        if !self.is_flat() {
            let (local, groups) = row_grid(device, value("WG"), value("VW"), n / inner, inner);
            return launch.local(local).groups3(groups);
        }
        let units = device.capabilities().compute_units.max(1) as usize;
        if device.capabilities().is_cpu() {
            return launch.groups(n.div_ceil(CPU_CHUNK).clamp(1, units * 4));
        }
        let lanes = lanes.unwrap_or_else(|| value("VW"));
        launch.groups(n.div_ceil(lanes * value("WG")).min(units * 32))
    }
}

/// Returns the bytes of the smallest element, which determines the lanes of a vector. Masks are ignored: a float next to them has as many lanes as
/// without them. Alone they have as many as 16-bit floats.
pub(crate) fn smallest(operands: impl Iterator<Item = DType>) -> usize {
    operands.filter(|dtype| *dtype != DType::Bool).map(DType::size).min().unwrap_or(2)
}

/// Returns the positions at which an expression names input `i`.
pub(crate) fn places(expression: &str, i: usize) -> impl Iterator<Item = usize> {
    let bytes = expression.as_bytes();
    let digit = b'0' + u8::try_from(i).unwrap_or(u8::MAX).min(9);
    let part = |c: &u8| c.is_ascii_alphanumeric() || *c == b'_';
    let is = move |at: &usize| bytes[*at] == b'x' && bytes.get(at + 1) == Some(&digit);
    let alone = move |at: &usize| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !before.is_some_and(part) && !bytes.get(at + 2).is_some_and(part)
    };
    (0..bytes.len()).filter(is).filter(alone)
}

/// Returns the expression with its named inputs renumbered from 0.
fn renumbered(expression: &str, named: &[usize]) -> String {
    let mut out = expression.as_bytes().to_vec();
    for (to, from) in named.iter().enumerate() {
        places(expression, *from).for_each(|at| out[at + 1] = b'0' + to as u8);
    }
    String::from_utf8(out).unwrap_or_else(|_| expression.into())
}

/// Returns local size and groups for kernels whose dimension 0 strides along rows of `n` elements, by vectors of `lanes`, and whose dimension 1
/// strides over rows.
pub fn row_grid(device: &Device, wg: usize, lanes: usize, rows: usize, n: usize) -> ([usize; 3], [usize; 3]) {
    if device.capabilities().is_cpu() {
        return ([1, 1, 1], [1, row_groups(device, rows, n), 1]);
    }
    // Short rows share a group.
    let vectors = n.div_ceil(lanes);
    let across = vectors.next_power_of_two().min(wg);
    let local = [across, wg / across, 1];
    (local, [vectors.div_ceil(across).min(64), rows.div_ceil(local[1]).min(32_768), 1])
}

#[derive(Default)]
struct Generated(RwLock<HashMap<Vec<usize>, Defines>>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_without_a_name_are_left_out() {
        let named = |e: &str| (0..3).filter(|i| places(e, *i).next().is_some()).collect::<Vec<_>>();
        assert_eq!((named("-x1"), named("fmax0(x0, x10) * ax1")), (vec![1], vec![0]));
        assert_eq!(renumbered("x1 * x2 + x1", &[1, 2]), "x0 * x1 + x0");
        assert_eq!(renumbered("x0 + fmax0(x2)", &[0, 2]), "x0 + fmax0(x1)");
    }

    #[test]
    fn even_axes_merge() {
        let flat = Plan::new(&[2, 3, 4], &[vec![12, 4, 1], vec![12, 4, 1]]);
        assert_eq!((flat.sizes.as_slice(), flat.is_flat()), (&[24usize][..], true));
        let bias = Plan::new(&[2, 3, 4], &[vec![12, 4, 1], vec![0, 0, 1]]);
        assert_eq!((bias.sizes.as_slice(), bias.is_flat()), (&[6usize, 4][..], false));
        let scalar = Plan::new(&[2, 3], &[vec![3, 1], vec![0, 0]]);
        assert!(scalar.is_flat());
        let transposed = Plan::new(&[2, 3], &[vec![1, 2]]);
        assert_eq!(transposed.step(0), Step::Strided);
    }
}
