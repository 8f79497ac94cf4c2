//! Self-test of the optimizers: three clipped steps over parameters of many sizes, compared with f64.

#[cfg(test)]
use super::UpdatePlan;
use super::{Entry, KINDS, Rule, Update, UpdateStep};
use crate::ops::OpEntry;
use crate::ops::prelude::*;
use crate::suite::{Case, Depth};
use std::sync::Arc;

/// Entry in [`OPS`](crate::ops::OPS). It does not have a benchmark, since it only moves memory, and no call, since a step applies to an object with a
/// state, [`Update`].
pub const ENTRY: OpEntry = OpEntry {
    name: "optimizer::Update",
    make: each_rule,
    sample: None,
    bench: |_, _, _, _| Ok(()),
    calls: Vec::new,
};

/// Returns the rules to test. Storage types differ only in loads and stores, and each rule takes a CPU driver a second to compile.
fn rules(dtype: DType) -> Vec<Arc<dyn Rule>> {
    let mut all: Vec<_> = KINDS.iter().flat_map(|kind| (kind.cases)()).collect();
    let last = all.len() - 1;
    match dtype {
        DType::F32 => all,
        DType::F16 => vec![all.swap_remove(0)],
        _ => vec![all.swap_remove(last), all.swap_remove(0)],
    }
}

fn each_rule(dtype: DType) -> Result<Vec<Case>> {
    let case = |rule: Arc<dyn Rule>| {
        Case::new(&format!("optimizer {rule:?} {dtype}"), dtype, move |device, depth| {
            three_steps(device, dtype, &rule, Gradients::Anywhere, depth != Depth::Launches)
        })
    };
    Ok(rules(dtype).into_iter().map(case).collect())
}

/// Placement of gradients in memory.
#[derive(Clone, Copy, PartialEq)]
enum Gradients {
    /// In separate buffers, from the first element on.
    Aligned,
    /// Some in f32, some strided, the others at offsets that change with the step.
    Anywhere,
}

fn three_steps(
    device: &Device,
    dtype: DType,
    rule: &Arc<dyn Rule>,
    place: Gradients,
    compare: bool,
) -> Result<()> {
    let params = parameters(device, dtype)?;
    let mut update = Update::new(Arc::clone(rule), entries(&params), None)?;
    let mut references =
        params.iter().map(|param| Reference::of(param, &**rule)).collect::<Result<Vec<_>>>()?;
    for (step, limit) in (0..3).zip([1.0, 1e9, 10.0]) {
        let grads = give_grads(&params, step, place)?;
        let lr = 0.01 / (step + 1) as f64;
        update.step(lr, Some(limit))?;
        if !compare {
            continue;
        }
        let norm = grads.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
        let got = update.report()?.read()?;
        near("norm", &[got.norm], &[norm], 1e-5 * norm)?;
        let clip = (limit / (norm + 1e-6)).min(1.0);
        for (i, reference) in references.iter_mut().enumerate() {
            let entry = &update.entries()[i];
            for (at, g) in grads[i].iter().enumerate() {
                let (lr, decay) = (lr * entry.lr_scale, entry.weight_decay);
                let step = UpdateStep { number: step as i32 + 1, gradient: g * clip, lr, decay };
                let Reference { p, state } = reference;
                rule.reference(
                    &mut p[at],
                    &mut state[at * rule.state().len()..][..rule.state().len()],
                    &step,
                );
            }
            let what = format!("parameter {i} after step {step}");
            let state = update.state(i)?;
            let lead = state.iter().find(|(name, _)| *name == "master").map_or(&params[i], |(_, t)| t);
            near(&what, &lead.to_vec()?, &reference.p, 2e-6)?;
            if lead.to_dtype(dtype)?.to_bytes()? != params[i].to_bytes()? {
                return Err(Error::internal(format!("{what} is not its master weights, rounded")));
            }
        }
    }
    Ok(())
}

fn near(what: &str, got: &[f32], expected: &[f64], tolerance: f64) -> Result<()> {
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let close = (f64::from(*g) - e).abs() <= tolerance * e.abs().max(1.0);
        if !close {
            return Err(Error::internal(format!("{what}: element {i} is {g}, expected {e}")));
        }
    }
    Ok(())
}

/// Builds the entries: every third without decay, every fourth with half the learning rate.
fn entries(params: &[Tensor]) -> Vec<Entry> {
    let entry = |(i, param): (usize, &Tensor)| Entry {
        param: param.clone(),
        weight_decay: if i % 3 == 2 { 0.0 } else { 0.1 },
        lr_scale: if i % 4 == 3 { 0.5 } else { 1.0 },
    };
    params.iter().enumerate().map(entry).collect()
}

fn draw(seed: u64, n: usize, dtype: DType) -> Vec<f32> {
    SampleInput::normal(&[n]).draw(seed, dtype).data.iter().map(|v| *v as f32).collect()
}

/// Creates more parameters than fit in a launch, of odd sizes, some of several work-groups, one empty. They are in one buffer at multiples of 256
/// elements, alternately as views and as windows. The last three have separate buffers.
fn parameters(device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
    let mut sizes: Vec<usize> = (0..37).map(|i| 1 + (i * i * 7) % 301).collect();
    sizes.extend([1, 0, 20_011, 8192, 8193, 255, 256, 257]);
    let arena = Tensor::zeros(device, [sizes.iter().map(|n| n.next_multiple_of(256)).sum::<usize>()], dtype)?;
    let mut at = 0;
    let make = |(i, n): (usize, &usize)| {
        let tensor = if i + 3 < sizes.len() && i % 2 == 0 {
            arena.window(at, [*n])?
        } else if i + 3 < sizes.len() {
            arena.slice(0, at..at + n)?
        } else {
            Tensor::zeros(device, [*n], dtype)?
        };
        at += n.next_multiple_of(256);
        tensor.set_f32(&draw(i as u64, *n, dtype))?;
        Ok(tensor.parameter(&format!("p{i}")))
    };
    sizes.iter().enumerate().map(make).collect()
}

/// Sets the gradients of a step.
fn give_grads(params: &[Tensor], step: u64, place: Gradients) -> Result<Vec<Vec<f64>>> {
    let give = |(i, param): (usize, &Tensor)| {
        let dtype = if i % 5 == 4 { DType::F32 } else { param.dtype() };
        let n = param.count();
        let values = draw(1000 * (step + 1) + i as u64, n, dtype);
        let upload = |data: &[f32]| Tensor::from_f32(param.device(), [data.len()], data, dtype);
        let grad = if place == Gradients::Aligned {
            upload(&values)?
        } else if i % 7 == 6 {
            let spread: Vec<f32> = values.iter().flat_map(|v| [*v, f32::NAN]).collect();
            upload(&spread)?.reshape([n, 2])?.slice(1, 0..1)?
        } else {
            let skip = (i + step as usize) % 3;
            upload(&[&vec![f32::NAN; skip][..], &values].concat())?.slice(0, skip..skip + n)?
        };
        // A strided view stays strided: the axis of size 1 is removed without a copy.
        let layout = Layout {
            shape: param.shape().clone(),
            strides: vec![grad.layout().strides[0]],
            ..*grad.layout()
        };
        param.set_grad(Some(grad.with_layout(layout)));
        Ok(values.iter().map(|v| f64::from(*v)).collect())
    };
    params.iter().enumerate().map(give).collect()
}

/// One parameter in f64.
struct Reference {
    p: Vec<f64>,
    /// The state of each element, one after the other.
    state: Vec<f64>,
}

impl Reference {
    fn of(param: &Tensor, rule: &dyn Rule) -> Result<Self> {
        let p: Vec<f64> = param.to_vec()?.iter().map(|v| f64::from(*v)).collect();
        Ok(Self { state: vec![0.0; p.len() * rule.state().len()], p })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the GPU configuration: groups of several items, with and without whole vectors.
    #[test]
    fn groups_follow_f64() {
        let (device, adamw) = (crate::suite::test_device().unwrap(), rules(DType::F16).remove(0));
        let params = [("WG", 64), ("VW", 4), ("CHUNK", 4096)].map(|(name, value)| (name.to_owned(), value));
        Tuning::of(&device).try_out("optimizer", 0, Some(params.into()));
        for dtype in DType::FLOATS {
            three_steps(&device, dtype, &adamw, Gradients::Aligned, true).unwrap();
        }
        three_steps(&device, DType::Bf16, &adamw, Gradients::Anywhere, true).unwrap();
    }

    /// Tests that windows of one buffer form one arena, with a launch per 32 of them.
    #[test]
    fn windows_of_a_buffer_share_launches() {
        let device = crate::suite::test_device().unwrap();
        let arena = Tensor::zeros(&device, [40 * 256], DType::F32).unwrap();
        let make = |i: usize| arena.window(i * 256, [200]).unwrap().parameter(&format!("p{i}"));
        let params: Vec<Tensor> = (0..40).map(make).collect();
        let update = Update::new(rules(DType::F16).remove(0), entries(&params), None).unwrap();
        assert_eq!(update.arenas.len(), 1);
        let grads = vec![arena.slice(0, 0..200).unwrap(); 40];
        let plan = UpdatePlan::renew(None, &update.entries, &update.arenas, &grads).unwrap();
        assert_eq!(plan.batches.len(), 2);
    }

    #[test]
    fn rules_and_types_follow_f64() {
        crate::suite::test(super::ENTRY.name);
    }
}
