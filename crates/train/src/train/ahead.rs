//! Compiles the first step's kernels before it runs, in several processes if the settings allow.

use super::adapters::new_decoder;
use super::next_token::NextToken;
use super::rule::optimizer;
use super::sums::Sums;
use super::training::{Collect, StepSlice, gradients, warm};
use super::uploads::Uploads;
use crate::config::{GraphMode, TrainConfig};
use crate::data::{Batch, DataWatch, DataWatcher, Stage};
use netcl_device::Device;
use netcl_kernel::ahead::build;
use netcl_model::decoder::DecoderConfig;
use netcl_model::model::Model;
use netcl_tensor::ops::embedding::{add_rows, embedding};
use netcl_tensor::random::counter;
use netcl_tensor::{DType, Result, Tensor, no_grad};

/// Compiles the kernels that the first step of a run launches and that a dry run finds; others are compiled at their first launch. The run is one of
/// several `ranks` if so, with `weighted` losses if so.
///
/// # Errors
/// `Io` if `watch` asks to stop.
pub(super) fn compile(
    device: &Device,
    config: &TrainConfig,
    model: &DecoderConfig,
    (ranks, weighted): (bool, bool),
    watch: &mut DataWatch<'_>,
) -> Result<()> {
    let began = std::time::Instant::now();
    let mut watcher = DataWatcher::new(watch, Stage::Kernels, 0);
    match build(device, |twin| step(twin, config, model, (ranks, weighted)), &mut |done, all| {
        watcher.compiled(done, all)
    }) {
        Ok(ahead) => tracing::debug!("compiled ahead in {:.1?}: {ahead:?}", began.elapsed()),
        Err(e) => tracing::debug!("kernels are compiled at their first launch: {e}"),
    }
    watcher.tell()
}

/// Executes a run up to the end of its first step, on any device.
fn step(
    device: &Device,
    config: &TrainConfig,
    model: &DecoderConfig,
    (ranks, weighted): (bool, bool),
) -> Result<()> {
    let model = new_decoder(device, config, model.clone(), Some(config.seed))?;
    let mut optimizer = optimizer(model.params(), config, None)?;
    let ids = vec![0; config.batch * config.context];
    let mut uploads = Uploads::new(
        device,
        [config.batch, config.context, config.grad_accum as usize],
        [weighted, config.pack],
        0,
    )?;
    let captured = config.graph_mode() != GraphMode::Off;
    let batch = Batch {
        x: ids.clone(),
        y: ids,
        rows: config.batch,
        context: config.context,
        step_targets: None,
        positions: config.pack.then(|| vec![0; config.batch * config.context]),
        values: Vec::new(),
    };
    let inputs = uploads.send(&batch, 1.0, captured)?;
    let draws = counter(device, 0)?;
    // A rank's loss is weighted by its share of the rows.
    let share = if ranks { 0.5 } else { 1.0 };
    let part = StepSlice { micros: config.grad_accum, share, rows_before: 0, apart: None, statistics: None };
    let task = NextToken { model: &model, config, draws: &draws };
    let mut sums = None;
    if captured || ranks {
        let loss = warm(&task, &optimizer, part, &inputs, None)?;
        let several = config.grad_accum > 1;
        if several || ranks {
            let (params, tied) = (model.params().trained(), model.tied_embedding().filter(|_| ranks));
            sums = Some(Sums::like(device, params.iter(), tied, loss.dtype(), several)?);
        }
        optimizer.prepare()?;
    }
    if sums.is_none() {
        optimizer.zero_grad();
    }
    let apart = sums.as_ref().and_then(Sums::apart);
    let collect = Collect::into_sums(sums.as_ref());
    let loss = gradients(&task, &optimizer, StepSlice { apart, ..part }, &inputs, collect)?;
    if let Some(sums) = &sums {
        sums.add_loss(&loss)?;
    }
    if let Some((table, later)) = apart {
        let rows = Tensor::zeros(device, [1], DType::U32)?;
        let sums = no_grad(|| embedding(later, &rows))?;
        table.grad().map_or(Ok(()), |gradient| add_rows(&gradient, &rows, &sums))?;
    }
    optimizer.apply()?;
    // Loss and norm are read as in a run.
    optimizer.count();
    optimizer.report()?.read().map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::{Silent, Trainer};
    use super::*;
    use netcl_device::Settings;
    use netcl_kernel::Programs;
    use netcl_kernel::ahead::orders;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_of_a_first_step_is_foreseen() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("text.txt");
        std::fs::write(&data, "to be, or not to be, that is the question: ".repeat(40)).unwrap();
        let all = [
            (GraphMode::Auto, 1, 0.0, DType::F32),
            (GraphMode::Auto, 3, 0.1, DType::F32),
            (GraphMode::Off, 1, 0.0, DType::F16),
        ];
        for (i, (graph, grad_accum, dropout, dtype)) in all.into_iter().enumerate() {
            let config = TrainConfig {
                data: vec![data.display().to_string()],
                layers: 1,
                heads: 2,
                width: 16,
                context: 8,
                batch: 3,
                steps: 1,
                warmup: 0,
                eval_every: 0,
                sample_every: 0,
                val_split: 0.0,
                graph,
                grad_accum,
                dropout,
                dtype,
                ..TrainConfig::preset("demo-tiny").unwrap()
            };
            let device = Device::open("sim", &Settings::default()).unwrap();
            let programs = Programs::of(&device);
            programs.start_recording();
            let mut trainer =
                Trainer::create(&device, config.clone(), &dir.path().join(format!("run-{i}"))).unwrap();
            let model = trainer.model().config().clone();
            trainer.run(&mut Silent).unwrap();
            let name = |order: netcl_kernel::Order| (order.kernel, order.source);
            let built: BTreeSet<_> = programs.stop_recording().into_iter().map(name).collect();
            let foreseen = orders(&device, |twin| step(twin, &config, &model, (false, false))).unwrap();
            let foreseen: BTreeSet<_> = foreseen.into_iter().map(name).collect();
            let missed: Vec<&String> = built.difference(&foreseen).map(|(kernel, _)| kernel).collect();
            assert!(missed.is_empty(), "{graph:?} {grad_accum}: {missed:?}");
            assert!(built.len() > 10);
        }
    }
}
