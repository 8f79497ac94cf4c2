//! The experts of a sparse mixture (Shazeer et al. 2017): gated feed-forward layers, of which each token uses a few.
//!
//! Pairs of a token and a slot are sorted by expert on the device. Then each map of all experts is one grouped product. Sizes depend on the number
//! of pairs, not on the experts' shares, so a pass can be captured in a graph.

use super::gated::{Gate, Gated, gated};
use super::map::row_grid;
use super::matmul::grouped::{self, GroupedRows};
use super::matmul::groups::Groups;
use super::prelude::*;
use super::route::MAX_EXPERTS;
use netcl_kernel::Launch;

mod stored;
pub use stored::{ExpertMap, experts_of_blocks};

static KERNEL: Kernel = Kernel::new("experts", cl_file!("experts.cl"))
    .tune(&[("WG", &[256, 128]), ("VW", &[4])])
    .tune_cpu(&[("WG", &[1]), ("VW", &[0])]);

/// Expert weights: stacked gate and value maps (E, 2H, C), gates before values, and down maps (E, C, H).
pub type ExpertMaps<'a> = [&'a Tensor; 2];

/// Computes `Σ weight * down(act(gate x) * up x)` over the slots of each token, in order: x `(.., C)`, ids u32 or i32 and weights `(.., K)` →
/// `(.., C)`. An invalid id adds nothing. Gradients flow to x, the weights and the experts' maps; an expert without tokens gets zeros.
///
/// # Errors
/// `Shape` if C, H, E, K or the axes before the last differ; `DType` if ids are not indices or the others are not floats of one type; `Unsupported`
/// for more than [`MAX_EXPERTS`].
pub fn experts(
    x: &Tensor,
    ids: &Tensor,
    weights: &Tensor,
    [gate_up, down]: ExpertMaps<'_>,
    gate: Gate,
) -> Result<Tensor> {
    Experts { gate }.apply([x, ids, weights, gate_up, down])
}

fn check_sizes([x, ids, weights, gate_up, down]: [&Tensor; 5]) -> Result<()> {
    check::same_float(Experts::NAME, &[("x", x), ("gate_up", gate_up), ("down", down)])?;
    let [e, two_h, c] = gate_up.dims3().map_err(|e| e.context("experts: gate_up"))?;
    check_operands([x, ids, weights], e)?;
    if x.shape().last() != c {
        return Err(Error::shape(format!(
            "experts: the last axis of x {} is {}, expected {c}, the last of gate_up {}",
            x.shape(),
            x.shape().last(),
            gate_up.shape()
        )));
    }
    if two_h % 2 == 1 || down.dims() != [e, c, two_h / 2] {
        return Err(Error::shape(format!(
            "experts: gate_up {} and down {}, expected (E, 2H, C) and (E, C, H)",
            gate_up.shape(),
            down.shape()
        )));
    }
    Ok(())
}

/// Checks the operands for `e` experts.
fn check_operands([x, ids, weights]: [&Tensor; 3], e: usize) -> Result<()> {
    let op = Experts::NAME;
    check::same_float(op, &[("x", x), ("weights", weights)])?;
    check::indices(op, "ids", ids)?;
    let outer = |x: &Tensor| x.dims().split_last().map(|(_, outer)| outer.to_vec());
    let (Some(tokens), Some(slots)) = (outer(x), outer(ids)) else {
        return Err(Error::shape(format!(
            "experts: x {} and ids {}, expected at least one axis",
            x.shape(),
            ids.shape()
        )));
    };
    if tokens != slots || ids.shape() != weights.shape() {
        return Err(Error::shape(format!(
            "experts: ids {} and weights {}, expected the same shape with K per token of x {}",
            ids.shape(),
            weights.shape(),
            x.shape()
        )));
    }
    if e > MAX_EXPERTS {
        return Err(Error::unsupported(format!("experts: {e} experts, at most {MAX_EXPERTS} are supported")));
    }
    Ok(())
}

/// Operation of [`experts()`].
#[derive(Clone)]
pub struct Experts {
    pub(super) gate: Gate,
}

/// Assignment of pairs to rows, which are sorted by expert.
pub struct Dispatch {
    groups: Groups,
    /// Pair of each row, u32 (P).
    order: Tensor,
    /// Token of each row, u32 (P).
    tokens: Tensor,
    /// Row of each pair, u32 (P).
    places: Tensor,
    /// Slots per token, K.
    slots: usize,
}

/// Minimum pairs that a group sorts, and maximum number of groups.
const BLOCK: usize = 1024;
const BLOCKS: usize = 64;

impl Dispatch {
    /// Sorts the pairs of ids `(.., K)` by expert.
    fn new(ids: &Tensor, experts: usize) -> Result<Self> {
        let (device, pairs, slots) = (ids.device(), ids.count(), ids.shape().last());
        if i32::try_from(pairs).is_err() {
            return Err(Error::shape(format!(
                "experts: ids {} are more than 2^31 pairs; split them",
                ids.shape()
            )));
        }
        let numbers = |dims: &[usize]| Tensor::empty(device, dims, DType::U32);
        let n_tiles = Groups::tiles_of(pairs, experts);
        let groups = Groups {
            offsets: numbers(&[experts + 1])?,
            tiles: numbers(&[n_tiles, 2])?,
            experts,
            rows: pairs,
        };
        let out = Self {
            groups,
            order: numbers(&[pairs])?,
            tokens: numbers(&[pairs])?,
            places: numbers(&[pairs])?,
            slots,
        };
        if pairs == 0 {
            return Ok(out);
        }
        let (ids, Groups { offsets, tiles, .. }) = (ids.contiguous()?, &out.groups);
        let begin = |entry| {
            let launch = KERNEL.launch(entry).define("E", experts).define("K", slots);
            launch.define("TILE", Groups::TILE_ROWS).define("VW", 1)
        };
        let placed = |launch: Launch<'static>| launch.write(&out.order).write(&out.tokens).write(&out.places);
        let per = if device.capabilities().is_cpu() { pairs } else { pairs.div_ceil(BLOCKS).max(BLOCK) };
        let blocks = pairs.div_ceil(per);
        if blocks == 1 {
            let launch = placed(begin("dispatch_all").groups(1).read(&ids).write(offsets).write(tiles));
            launch.scalar(pairs).scalar(n_tiles).run()?;
            return Ok(out);
        }
        let counts = numbers(&[blocks, experts + 1])?;
        begin("dispatch_count").groups(blocks).read(&ids).write(&counts).scalar(pairs).scalar(per).run()?;
        let launch = begin("dispatch_offsets").groups(1).write(&counts).write(offsets).write(tiles);
        launch.scalar(blocks).scalar(n_tiles).run()?;
        let launch = begin("dispatch_place").groups(blocks).read(&ids).read(&counts).read(offsets);
        placed(launch).scalar(pairs).scalar(per).run()?;
        Ok(out)
    }

    /// Adds the rows (P, N) of each token in the order of its slots, times their weights if there are any, into y, (.., N).
    fn combine(&self, rows: &Tensor, weights: Option<&Tensor>, y: &Tensor) -> Result<()> {
        combine([rows, y], weights, Some(&self.places), self.slots)
    }

    /// Computes the gradient of the weights, `Σ t h` over each row of t and h (P, H), and multiplies both by their row's weight.
    fn weight_rows(&self, t: &Tensor, h: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let dweights = weights.empty_like()?;
        if weights.count() == 0 {
            return Ok(dweights);
        }
        if t.count() == 0 {
            return Tensor::zeros(weights.device(), weights.shape(), weights.dtype());
        }
        let (rows, n) = t.shape().rows_cols();
        let launch = KERNEL.launch("weight_rows").define("DTYPE", t.dtype().code());
        let launch =
            vectors_of_16_bytes(launch.define("WG", row_group(&KERNEL, t.device(), n)).groups(rows), t, n);
        launch.write(t).write(h).read(&self.order).read(weights).write(&dweights).scalar(n).run()?;
        Ok(dweights)
    }
}

/// Adds the `slots` rows (P, N) of each token, which are at `places` or in the order of pairs.
fn combine(
    [rows, y]: [&Tensor; 2],
    weights: Option<&Tensor>,
    places: Option<&Tensor>,
    slots: usize,
) -> Result<()> {
    if y.count() == 0 {
        return Ok(());
    }
    if rows.count() == 0 {
        return y.device().fill(y.storage(), &[0]);
    }
    let (device, n) = (y.device(), y.shape().last());
    let (count, value) = (y.count() / n, |name| Tuning::value(device, &KERNEL, 0, name));
    let lanes = if has_vectors_of_16_bytes(y, n) { 16 / y.dtype().size() } else { value("VW") };
    let (local, groups) = row_grid(device, value("WG"), lanes, count, n);
    let launch = KERNEL.launch("combine").define("DTYPE", y.dtype().code()).define("K", slots);
    let launch = launch.define("PLACED", places.is_some()).define("WEIGHTED", weights.is_some());
    let launch = vectors_of_16_bytes(launch, y, n).local(local).groups3(groups);
    let launch = launch.read(rows).read(weights.unwrap_or(rows)).read(places.unwrap_or(rows));
    launch.write(y).scalar(count).scalar(n).run()
}

impl Op<5> for Experts {
    const NAME: &'static str = "experts";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("gate_up holds a gate and a value");
    /// Assignment of rows, and gates followed by values (P, 2H).
    type Saved = (Dispatch, Tensor);
    fn forward(&self, inputs: [&Tensor; 5]) -> Result<(Tensor, Self::Saved)> {
        check_sizes(inputs)?;
        let [x, ids, weights, gate_up, down] = inputs;
        let (x, weights) = (x.contiguous()?, weights.contiguous()?);
        let (gate_up, down) = (gate_up.contiguous()?, down.contiguous()?);
        let dispatch = Dispatch::new(ids, gate_up.dims()[0])?;
        let hidden = grouped::rows(&dispatch.groups, GroupedRows::of(&x, &dispatch.tokens), &gate_up, false)?;
        let made = gated(&hidden, self.gate)?;
        let rows = grouped::rows(&dispatch.groups, GroupedRows::all(&made), &down, false)?;
        let y = x.empty_like()?;
        dispatch.combine(&rows, Some(&weights), &y)?;
        Ok((y, (dispatch, hidden)))
    }
    fn backward(
        &self,
        [x, _, weights, gate_up, down]: [&Tensor; 5],
        (dispatch, hidden): &Self::Saved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 5]> {
        let (x, weights, dy) = (x.contiguous()?, weights.contiguous()?, dy.contiguous()?);
        let (gate_up_dense, down_dense) = (gate_up.contiguous()?, down.contiguous()?);
        let (groups, tokens) = (&dispatch.groups, &dispatch.tokens);
        // dy times each row's down map, before the row's weight. Its product with the hidden layer is the weight's gradient.
        let t = grouped::rows(groups, GroupedRows::of(&dy, tokens), &down_dense, true)?; // (P, H)
        let h = gated(hidden, self.gate)?; // (P, H)
        let dweights = dispatch.weight_rows(&t, &h, &weights)?;
        let ddown = match down.requires_grad() {
            true => Some(grouped::sums(groups, GroupedRows::of(&dy, tokens), GroupedRows::all(&h))?), // (E, C, H)
            false => None,
        };
        drop(h);
        let [dhidden] = Op::backward(&Gated { gate: self.gate }, [hidden], &(), &t)?; // (P, 2H)
        let Some(dhidden) = dhidden else {
            return Err(Error::internal("experts: the gate does not have a gradient"));
        };
        drop(t);
        let dgate_up = match gate_up.requires_grad() {
            true => Some(grouped::sums(groups, GroupedRows::all(&dhidden), GroupedRows::of(&x, tokens))?), // (E, 2H, C)
            false => None,
        };
        let dx = match x.requires_grad() {
            true => {
                let rows = grouped::rows(groups, GroupedRows::all(&dhidden), &gate_up_dense, true)?; // (P, C)
                let dx = x.empty_like()?;
                dispatch.combine(&rows, None, &dx)?;
                Some(dx)
            }
            false => None,
        };
        Ok([dx, None, Some(dweights), dgate_up, ddown])
    }
    fn reference(&self, [x, ids, weights, gate_up, down]: [&Array; 5]) -> Array {
        let (c, h, k) = (x.shape.last(), down.shape.last(), ids.shape.last());
        let e = gate_up.shape.dims()[0];
        let mut y = Array::zeros(x.shape.clone());
        for (p, id) in ids.data.iter().map(|id| *id as usize).enumerate().filter(|(_, id)| *id < e) {
            let row = &x.data[p / k * c..][..c];
            let dot = |weights: &[f64], x: &[f64]| weights.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
            let map = |i: usize| dot(&gate_up.data[(id * 2 * h + i) * c..][..c], row);
            let hidden: Vec<f64> = (0..h).map(|i| self.gate.in_f64(map(i)) * map(h + i)).collect();
            for i in 0..c {
                y.data[p / k * c + i] += weights.data[p] * dot(&down.data[(id * c + i) * h..][..h], &hidden);
            }
        }
        y
    }
    fn calls() -> Vec<Call> {
        let doc = "The experts of a sparse mixture. Takes x `(.., C)`, ids and weights `(.., K)` of a token's experts, stacked gate and value maps \
                   (E, 2H, C), and down maps (E, C, H). Returns `Σ weight * down(act(gate x) * up x)` `(.., C)`.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "ids", "weights", "gate_up", "down"]);
        vec![call.choice("gate", &Gate::NAMES).run(|a| {
            let [x, ids, weights, gate_up, down] = a.inputs()?;
            experts(x, ids, weights, [gate_up, down], Gate::named(&a.get::<String>("gate")?)?)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("gate", self.gate.name().into())]
    }
    fn samples() -> Vec<Sample<Self, 5>> {
        let op = || Self { gate: Gate::Silu };
        // Tokens, slots, experts, width, hidden width.
        let inputs = |[n, k, e, c, h]: [usize; 5]| {
            let ids = SampleInput::indices(&[n, k], e as u32);
            let [x, weights, gate_up, down] =
                [&[n, c][..], &[n, k], &[e, 2 * h, c], &[e, c, h]].map(SampleInput::normal);
            [x, ids, weights, gate_up, down]
        };
        let sample = |sizes: [usize; 5]| Sample::new(op(), inputs(sizes)).sums(sizes[3] * sizes[4]);
        let one = |id: f64, sizes: [usize; 5]| {
            let mut inputs = inputs(sizes);
            inputs[1] = SampleInput::values(&[sizes[0], sizes[1]], &[id], Some(DType::U32));
            Sample::new(op(), inputs).sums(sizes[3] * sizes[4])
        };
        let mut gelu = sample([4, 2, 3, 5, 3]);
        gelu.op.gate = Gate::GeluTanh;
        let mut far = inputs([5, 2, 3, 6, 4]);
        far[0] = SampleInput::uniform(&[5, 6], -1e5, 1e5);
        far[2] = SampleInput::uniform(&[5, 2], -1e3, 1e3);
        vec![
            sample([6, 2, 4, 7, 5])
                .bench(&[&[1024, 256], &[1024, 2], &[1024, 2], &[8, 2048, 256], &[8, 256, 1024]])
                .bench(&[&[4096, 1024], &[4096, 2], &[4096, 2], &[8, 2048, 1024], &[8, 1024, 1024]])
                .bench(&[&[1, 1024], &[1, 2], &[1, 2], &[8, 2048, 1024], &[8, 1024, 1024]]),
            // Whole vectors.
            sample([9, 3, 5, 16, 8]),
            gelu.named("GELU").light(),
            // An expert with more rows than a tile, and experts without rows.
            one(1.0, [90, 2, 3, 4, 3]).named("one expert").light(),
            sample([150, 2, 3, 3, 2]).named("several tiles").light(),
            // More columns than a tile.
            sample([3, 2, 2, 132, 2]).named("wide").light(),
            sample([3, 2, 2, 2, 68]).named("wide hidden layer").light(),
            // An invalid id.
            one(3.0, [4, 2, 3, 5, 3]).named("nobody's").light(),
            Sample::new(op(), far).sums(24).extreme().light(),
            sample([0, 2, 3, 4, 2]).light(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use netcl_device::Settings;

    fn drawn(device: &Device, shape: &[usize], seed: u64) -> Tensor {
        let data: Vec<f32> =
            SampleInput::normal(shape).draw(seed, DType::F32).data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(device, shape, &data, DType::F32).unwrap()
    }

    /// Tests pairs in several blocks, and experts of many tiles and of few rows: rows must be the pairs of each expert in order.
    #[test]
    fn pairs_are_sorted_by_expert_and_keep_their_order() {
        for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
            for (pairs, slots, experts) in
                [(7, 1, 3), (300, 2, 5), (1500, 2, 40), (3100, 1, 7), (66_000, 3, 4)]
            {
                // Some experts get no pairs, and a few pairs do not have an expert.
                let id = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) % 97 % (experts + 1) / 2 * 2;
                let ids: Vec<u32> =
                    (0..pairs).map(|i| if i % 51 == 50 { u32::MAX } else { id(i) as u32 }).collect();
                let uploaded = Tensor::from_u32(&device, [pairs / slots, slots], &ids).unwrap();
                let found = Dispatch::new(&uploaded, experts).unwrap();
                let bin = |p: usize| (ids[p] as usize).min(experts);
                let mut order: Vec<usize> = (0..pairs).collect();
                order.sort_by_key(|p| bin(*p));
                let read =
                    |t: &Tensor| t.to_u32().unwrap().into_iter().map(|v| v as usize).collect::<Vec<_>>();
                assert_eq!(read(&found.order), order);
                assert_eq!(read(&found.tokens), order.iter().map(|p| p / slots).collect::<Vec<_>>());
                assert!(read(&found.places).into_iter().enumerate().all(|(p, row)| order[row] == p));
                let first = |e: usize| order.iter().filter(|p| bin(**p) < e).count();
                assert_eq!(read(&found.groups.offsets), (0..=experts).map(first).collect::<Vec<_>>());
                let tile = Groups::TILE_ROWS;
                let tiles = (0..=experts).flat_map(|e| {
                    let end = if e < experts { first(e + 1) } else { pairs };
                    (first(e)..end).step_by(tile).map(move |row| [e, row])
                });
                let mut tiles: Vec<[usize; 2]> = tiles.collect();
                let room = found.groups.tiles.dims()[0];
                assert!(tiles.len() <= room);
                tiles.resize(room, [u32::MAX as usize; 2]);
                assert_eq!(read(&found.groups.tiles), tiles.as_flattened());
            }
        }
    }

    /// Compares results and gradients with every expert's layer over all tokens, times the weights of its tokens.
    #[test]
    fn results_and_gradients_are_those_of_single_experts() {
        let near = |what: &str, got: &Tensor, expected: &Tensor| {
            let (got, expected) = (got.to_vec().unwrap(), expected.to_vec().unwrap());
            let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
            for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
                assert!((g - e).abs() <= 2e-5 * largest, "{what}[{i}]: {g}, expected {e}, largest {largest}");
            }
        };
        let sizes = [[700, 2, 5, 20, 36], [40, 3, 4, 130, 70], [9, 2, 3, 401, 5]];
        let sim = Device::open("sim", &Settings::default()).unwrap();
        for (device, sizes) in [(test_device().unwrap(), &sizes[..]), (sim, &sizes[1..])] {
            for [n, k, e, c, h] in sizes.iter().copied() {
                let id = |i: usize| (i % k + i / k * i) % (e - 1);
                let ids: Vec<u32> = (0..n * k).map(|i| id(i) as u32).collect();
                let shares: Vec<f32> =
                    (0..e * n * k).map(|i| f32::from(u8::from(id(i % (n * k)) == i / (n * k)))).collect();
                let ids = Tensor::from_u32(&device, [n, k], &ids).unwrap();
                let shares = Tensor::from_f32(&device, [e, n, k], &shares, DType::F32).unwrap();
                let made = |shape: &[usize], seed| drawn(&device, shape, seed);
                let start =
                    [made(&[n, c], 1), made(&[n, k], 2), made(&[e, 2 * h, c], 3), made(&[e, c, h], 4)];
                let inputs = |name: &str| start.each_ref().map(|t| t.parameter(name));
                let (ours, theirs) = (inputs("ours"), inputs("theirs"));
                let y = experts(&ours[0], &ids, &ours[1], [&ours[2], &ours[3]], Gate::Silu).unwrap();
                let mut sum = Tensor::zeros(&device, [n, c], DType::F32).unwrap();
                for i in 0..e {
                    let map = |t: &Tensor| {
                        let [_, out, into] = t.dims3().unwrap();
                        t.slice(0, i..i + 1).unwrap().reshape([out, into]).unwrap().transpose(0, 1).unwrap()
                    };
                    let hidden = gated(&theirs[0].matmul(&map(&theirs[2])).unwrap(), Gate::Silu).unwrap();
                    let share = shares.slice(0, i..i + 1).unwrap().reshape([n, k]).unwrap();
                    let weight = theirs[1].mul(&share).unwrap().sum(&[1], true).unwrap();
                    sum = sum.add(&hidden.matmul(&map(&theirs[3])).unwrap().mul(&weight).unwrap()).unwrap();
                }
                near("y", &y, &sum);
                let dy = made(&[n, c], 5);
                y.backward_with(&dy).unwrap();
                sum.backward_with(&dy).unwrap();
                for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    near(&format!("gradient {i}"), &ours.grad().unwrap(), &theirs.grad().unwrap());
                }
                // The last expert does not have tokens.
                let idle = ours[2].grad().unwrap().slice(0, e - 1..e).unwrap();
                assert!(idle.to_vec().unwrap().iter().all(|v| *v == 0.0));
            }
        }
    }
}
