//! Chooses what the backward pass recomputes, so that a run fits into the memory of its device.

use super::MemoryPlan;
use crate::config::{GraphMode, TrainConfig};
use netcl_device::{Capabilities, human};
use netcl_model::decoder::DecoderConfig;
use netcl_model::layers::Recompute;
use netcl_tensor::{Device, Error, Result};

/// Returns the settings of a run that fits into the memory of `device`, and a line about the plan if something was chosen or `--memory` was given. The
/// run recomputes at least what `config` says, and no more than memory requires. If nothing fits, it is what takes the least memory.
///
/// # Errors
/// `Format` for a limit that the device was not opened with.
pub fn fitted(
    device: &Device,
    config: &TrainConfig,
    model: &DecoderConfig,
) -> Result<(TrainConfig, Option<String>)> {
    check_limit(device, config)?;
    Ok(chosen(device.capabilities(), config, model, &|plan| plan.has_room(device)))
}

/// Does the same for any device; `room` tells whether a plan fits.
fn chosen(
    capabilities: &Capabilities,
    config: &TrainConfig,
    model: &DecoderConfig,
    room: &dyn Fn(&MemoryPlan) -> bool,
) -> (TrainConfig, Option<String>) {
    let with = |recompute| TrainConfig { recompute, ..config.clone() };
    let plan = |config: &TrainConfig| MemoryPlan::of(config, model, capabilities);
    // The memory of processors is that of the host, and copies to the host cannot be replayed.
    let stays = capabilities.is_cpu() || capabilities.unified_memory || config.graph == GraphMode::On;
    let useful = |level: &Recompute| {
        *level >= config.recompute && (*level != Recompute::Offload || !stays || *level == config.recompute)
    };
    let levels: Vec<Recompute> = Recompute::NAMES.iter().map(|(_, level)| *level).filter(useful).collect();
    let fits = levels.iter().find(|level| room(&plan(&with(**level))));
    let least = || levels.iter().min_by_key(|level| plan(&with(**level)).device());
    let level = fits.or_else(least).copied().unwrap_or(config.recompute);
    let fitted = with(level);
    if level == config.recompute && config.memory.is_none() {
        return (fitted, None);
    }
    let expected = plan(&fitted);
    let mut line = format!(
        "memory: about {} of {} ({})",
        human(expected.device()),
        human(capabilities.global_mem),
        expected
            .rows()
            .iter()
            .take(4)
            .map(|(name, bytes)| format!("{name} {}", human(*bytes)))
            .collect::<Vec<_>>()
            .join(", ")
    );
    if level != config.recompute {
        let before = human(plan(config).device());
        line += &format!("; --recompute {level}, because {} takes {before}", config.recompute);
    }
    let of_context = |context: usize| room(&plan(&TrainConfig { context, ..fitted.clone() }));
    let longest = longest_context([config.context, model.context], of_context);
    if let Some(longest) = longest.filter(|longest| *longest > config.context) {
        line += &format!("; a context of {longest} tokens fits");
    }
    (fitted, Some(line))
}

/// Returns the longest context that fits, from that of the run to that of the model; `None` if the run's own does not.
fn longest_context([own, most]: [usize; 2], fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut fit, mut more) = (own, most.max(own).saturating_add(1));
    if !fits(fit) {
        return None;
    }
    while more - fit > 1 {
        let middle = fit + (more - fit) / 2;
        *(if fits(middle) { &mut fit } else { &mut more }) = middle;
    }
    Some(fit)
}

/// Refuses a limit that the memory of the device does not have.
fn check_limit(device: &Device, config: &TrainConfig) -> Result<()> {
    let Some(limit) = config.memory_limit()? else { return Ok(()) };
    if device.capabilities().global_mem <= limit {
        return Ok(());
    }
    Err(Error::format(format!(
        "the memory of {} was not limited to {} when it was opened; set Settings::memory_limit, or the variable NETCL_MEMORY",
        device.capabilities().id,
        human(limit)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::{DeviceKind, Settings};

    /// Returns what a GPU of the given size recomputes, and the line.
    fn of(memory: u64, change: impl FnOnce(&mut TrainConfig)) -> (Recompute, Option<String>) {
        let mut card = Capabilities::floor("any:0", DeviceKind::Gpu);
        card.global_mem = memory;
        let mut config = TrainConfig::preset("gpt2-124m").unwrap();
        (config.batch, config.context) = (4, 512);
        change(&mut config);
        let model = DecoderConfig { context: 1024, ..config.decoder(50_257).unwrap() };
        let (fitted, line) = chosen(&card, &config, &model, &|plan| plan.device() <= memory);
        (fitted.recompute, line)
    }

    #[test]
    fn a_run_recomputes_no_more_than_memory_requires() {
        let sizes: Vec<u64> = (1..=16).rev().map(|half| half << 29).collect();
        let all: Vec<Recompute> = sizes.iter().map(|size| of(*size, |_| {}).0).collect();
        assert!(all.is_sorted(), "{all:?}");
        assert_eq!((all[0], all[15]), (Recompute::None, Recompute::Offload));
        assert_eq!(of(1 << 29, |c| c.graph = GraphMode::On).0, Recompute::Block);
        let (kept, line) = of(8 << 30, |c| c.recompute = Recompute::Block);
        assert_eq!((kept, line), (Recompute::Block, None));
    }

    #[test]
    fn the_line_names_the_choice_the_parts_and_the_longest_context() {
        let (_, line) = of(8 << 30, |c| c.memory = Some("8G".into()));
        let line = line.unwrap();
        assert!(line.starts_with("memory: about ") && line.contains(" of 8.0 GiB (parameters "), "{line}");
        assert!(line.ends_with("a context of 1024 tokens fits") && !line.contains("because"), "{line}");
        let (_, line) = of(5 << 29, |_| {});
        let line = line.unwrap();
        assert!(line.contains("; --recompute ") && line.contains(", because none takes "), "{line}");
    }

    #[test]
    fn a_limit_that_the_device_does_not_have_is_refused() {
        let device = Device::open("sim", &Settings::default()).unwrap();
        let config = TrainConfig { memory: Some("16M".into()), ..TrainConfig::preset("demo-tiny").unwrap() };
        let error = fitted(&device, &config, &config.decoder(64).unwrap()).unwrap_err();
        assert!(error.message().contains("NETCL_MEMORY"), "{error}");
        let wrong = TrainConfig { memory: Some("8 apples".into()), ..config };
        assert!(wrong.validate().unwrap_err().message().contains("--memory 8 apples"));
    }
}
