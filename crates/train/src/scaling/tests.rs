use super::*;
use std::time::Duration;

const FREE: Link = Link { delay: Duration::ZERO, bytes_per_s: 1e30 };
const MACHINE: Machine = Machine { memory: 80e9, memory_bandwidth: 1e12, relay: 1e30, sums: f64::INFINITY };

fn gpt2() -> (TrainConfig, DecoderConfig) {
    let config = TrainConfig { batch: 16, grad_accum: 32, ..TrainConfig::preset("gpt2-124m").unwrap() };
    let model = config.decoder(50_304).unwrap();
    (config, model)
}

fn planned<'a>((config, model): &'a (TrainConfig, DecoderConfig), link: Link) -> RunToPlan<'a> {
    RunToPlan { model, config, machine: MACHINE, compute: Compute::Flops(1e14), link, overlap: true }
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found}, expected {expected}");
}

#[test]
fn a_free_link_scales_but_for_the_update() {
    let run = gpt2();
    let plan = planned(&run, FREE);
    let one = plan.plan(1, Strategy::Data).unwrap();
    close(one.efficiency, 1.0);
    close(one.tokens_per_s, (512 * 1024) as f64 / one.step);
    let four = plan.plan(4, Strategy::Data).unwrap();
    assert_eq!((four.rows, four.accum), (16, 8));
    close(four.parts[0], one.parts[0] / 4.0);
    close(four.parts[1], 0.0);
    close(four.parts[2], one.parts[2]);
    // A sharded update also scales.
    let sharded = plan.plan(4, Strategy::Optimizer).unwrap();
    close(sharded.efficiency, 1.0);
}

#[test]
fn without_overlap_the_exchange_is_the_sum_of_its_stages() {
    let run = gpt2();
    let link = Link { delay: Duration::from_micros(50), bytes_per_s: 1e9 };
    let machine = Machine { relay: 2e9, sums: 4e9, ..MACHINE };
    let plan = RunToPlan { machine, overlap: false, ..planned(&run, link) };
    let bytes = 2.0 * run.1.parameters() as f64;
    let two = plan.plan(2, Strategy::Data).unwrap();
    close(two.parts[1], 2.0 * bytes / 2e9 + link.all_reduce(bytes, 2) + bytes / 4e9);
}

/// Returns GPT-2 124M with a vocabulary of bytes, whose table is small: gradients are in one buffer of 1 MiB and others of 25 MiB.
fn bytes() -> (TrainConfig, DecoderConfig, f64) {
    let (config, _) = gpt2();
    let model = config.decoder(256).unwrap();
    let bytes = 2.0 * model.parameters() as f64;
    (config, model, bytes)
}

const FIRST: f64 = (1 << 20) as f64;
const LARGEST: f64 = (25 << 20) as f64;

/// Returns the size of the last buffer for `left` bytes of gradients: after the first buffer, each has half of the rest.
fn last_buffer(mut left: f64) -> f64 {
    let (mut next, mut last) = (FIRST, 0.0);
    while left > 0.0 {
        last = left.min(next);
        left -= last;
        next = (left / 2.0).clamp(FIRST, LARGEST);
    }
    last
}

/// Cases of the overlap with closed solutions. A link that is fast enough exposes only the last buffer. A link that is far too slow exposes
/// everything except the first part of the backward.
#[test]
fn with_overlap_the_slower_of_backward_and_link_counts() {
    let (config, model, bytes) = bytes();
    let run = (config, model);
    for gb_per_s in [100.0, 1e-3] {
        let link = Link { delay: Duration::ZERO, bytes_per_s: gb_per_s * 1e9 };
        let two = planned(&run, link).plan(2, Strategy::Data).unwrap();
        let backward = two.parts[0] / two.accum as f64 * 2.0 / 3.0;
        let expected = match gb_per_s > 1.0 {
            true => link.all_reduce(last_buffer(bytes), 2),
            false => backward * FIRST / bytes + link.all_reduce(bytes, 2) - backward,
        };
        assert!((two.parts[1] - expected).abs() <= 1e-6 * expected, "{} {expected}", two.parts[1]);
    }
}

#[test]
fn a_link_at_half_the_needed_speed_slows_by_what_is_left() {
    let (config, model, bytes) = bytes();
    let run = (config, model);
    let alone = planned(&run, FREE).plan(2, Strategy::Data).unwrap();
    let backward = alone.parts[0] / alone.accum as f64 * 2.0 / 3.0;
    // Between two ranks, each sends the whole vector once: this link needs the time of two backward passes. It starts with the first buffer.
    let link = Link { delay: Duration::ZERO, bytes_per_s: bytes / (2.0 * backward) };
    let two = planned(&run, link).plan(2, Strategy::Data).unwrap();
    // The second buffer is sent when it is computed, which is after the first one was sent.
    let expected = backward * (1.0 + ((1 << 20) as f64 + LARGEST) / bytes - 2.0 * (1 << 20) as f64 / bytes);
    assert!((two.parts[1] / expected - 1.0).abs() < 1e-6, "{two:?} {expected}");
}

/// A large tied table is exchanged during the backward, except for the rows of the tokens.
#[test]
fn of_a_tied_table_the_rows_of_the_tokens_are_exposed() {
    let (config, model) = gpt2();
    let link = Link { delay: Duration::ZERO, bytes_per_s: 100e9 };
    let config = TrainConfig { batch: 8, context: 4, grad_accum: 1, ..config };
    let model = DecoderConfig { context: 4, ..model };
    let (width, table) = (768.0 * 2.0, (50_304 * 768 * 2) as f64);
    let last = last_buffer(2.0 * model.parameters() as f64 - table);
    let run = (config, model);
    let slow = RunToPlan { compute: Compute::Flops(1e9), ..planned(&run, link) };
    let two = slow.plan(2, Strategy::Data).unwrap();
    // Some of the 32 tokens of all ranks are equal.
    let rows = (two.parts[1] * link.bytes_per_s - last) / width;
    assert!(rows > 10.0 && rows < 32.0, "{rows} rows");
}

#[test]
fn measured_times_and_speeds_give_them_back() {
    let run = gpt2();
    let given = RunToPlan { compute: Compute::TokensPerS(12_345.0), ..planned(&run, FREE) };
    close(given.plan(1, Strategy::Data).unwrap().tokens_per_s, 12_345.0);
    let measured = Compute::Measured { rows: 8, passes: 0.5, update: 0.25 };
    let given = RunToPlan { compute: measured, ..planned(&run, FREE) };
    let one = given.plan(1, Strategy::Data).unwrap();
    close(one.step, 32.0 * 1.0 + 0.25);
}

#[test]
fn pipelines_have_bubbles() {
    let run = gpt2();
    let plan = planned(&run, FREE);
    let four = plan.plan(4, Strategy::Pipeline(4)).unwrap();
    // 512 rows in micro-batches of 16: 32 of them, and three slots to fill and to drain.
    assert_eq!((four.rows, four.accum), (16, 32));
    let alone = plan.plan(1, Strategy::Data).unwrap();
    // The head takes the time of 4.9 layers including attention, so the last stage is the slowest, with one of twelve layers.
    let model = &run.1;
    let last = crate::train::stage_flops(model, &(11..12)) / model.flops(1, model.context);
    close(four.parts[0], alone.parts[0] * last * 35.0 / 32.0);
    assert!((0.34..0.36).contains(&last));
}

#[test]
fn a_stage_takes_less_memory_the_more_there_are() {
    let config = TrainConfig { batch: 1, grad_accum: 64, ..TrainConfig::preset("gpt2-1558m").unwrap() };
    let model = config.decoder(50_304).unwrap();
    let run = (config, model);
    let memory = |stages: usize| planned(&run, FREE).plan(stages, Strategy::Pipeline(stages)).unwrap().memory;
    let alone = planned(&run, FREE).plan(1, Strategy::Data).unwrap().memory;
    // More than half: the head leaves more layers to the first stage, which keeps the activations of all micro-batches in flight.
    assert!(memory(2) < 0.7 * alone && memory(4) < 0.7 * memory(2), "{} {} {alone}", memory(2), memory(4));
}

#[test]
fn what_does_not_fit_is_divided() {
    let config = TrainConfig { batch: 16, grad_accum: 32, ..TrainConfig::preset("gpt2-1558m").unwrap() };
    let model = config.decoder(50_304).unwrap();
    let run = (config, model);
    let link = Link { delay: Duration::from_micros(5), bytes_per_s: 25e9 };
    // 16 bytes per parameter are 25 GB, which is more than this device has.
    let machine = Machine { memory: 24e9, ..MACHINE };
    let plan = RunToPlan { machine, ..planned(&run, link) };
    let data = plan.plan(8, Strategy::Data).unwrap();
    assert!(!data.fits && data.rows == 1, "{data:?}");
    let best = plan.best(8).unwrap();
    assert!(best.fits && best.strategy != Strategy::Data && best.memory <= 24e9, "{best:?}");
    let none = RunToPlan { machine: Machine { memory: 1e9, ..MACHINE }, ..plan }.best(2).unwrap();
    assert!(!none.fits);
    assert!(planned(&run, link).best(0).is_err());
}

#[test]
fn a_thousand_devices_are_slower_each_than_two() {
    let run = gpt2();
    let link = Link { delay: Duration::from_micros(5), bytes_per_s: 25e9 };
    let efficiency: Vec<f64> = (1..=10)
        .map(|i| planned(&run, link).best(1 << i).unwrap())
        .map(|plan| {
            assert!(plan.fits && plan.step > 0.0 && plan.tokens_per_s.is_finite());
            plan.efficiency
        })
        .collect();
    assert!(efficiency.is_sorted_by(|a, b| *a >= *b - 0.02), "{efficiency:?}");
    assert!(efficiency[0] > 0.9 && efficiency[9] < efficiency[0]);
}

#[test]
fn state_that_is_divided_takes_its_part_of_the_memory() {
    let run = gpt2();
    let plan = planned(&run, FREE);
    let of = |strategy| plan.plan(2, strategy).unwrap();
    let (data, optimizer, gradients) = (of(Strategy::Data), of(Strategy::Optimizer), of(Strategy::Gradients));
    let count = run.1.parameters() as f64;
    // In bf16: 12 bytes of master weights and averages, 2 of gradients, and gradients of the other rank of the same size, or half of it.
    assert!((data.memory - optimizer.memory - 7.0 * count).abs() < 4.0);
    // With several passes per step, sums are in f32, which uses what halving the gradients saves; buffers in flight are 16th parts.
    let buffers = 3.0 * 1.5 * 2.0 * count / 16.0;
    assert!(
        (optimizer.memory - gradients.memory - (count - buffers)).abs() < 1e4,
        "{optimizer:?} {gradients:?}"
    );
}
