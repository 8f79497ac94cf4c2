//! Rows of a table looked up by number, and the gradient of the table, whose sums always have the order of the positions.

use super::map::row_grid;
use super::past_caches;
use super::prelude::*;
use netcl_kernel::Variants;

static OWNED: Kernel = Kernel::new("embedding_owned", include_str!("embedding.cl"))
    .tune(&[("WG", &[256]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])])
    .requires(|device| device.is_cpu());
static SORTED: Kernel = Kernel::new("embedding_sorted", include_str!("embedding_sorted.cl"))
    .tune(&[("WG", &[256]), ("VW", &[4])])
    .requires(|device| !device.is_cpu());
static BACKWARD: Variants = Variants::new("embedding_bwd", &[&OWNED, &SORTED]);

/// table `(V, C)`, ids of any shape, u32 or i32 → ids' shape with an axis of `C` behind. An id outside the table gives a row
/// of NaN, and no gradient.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    check::float("embedding", "table", table)?;
    check::indices("embedding", "ids", ids)?;
    if table.shape().rank() != 2 {
        return Err(Error::shape(format!("embedding: table has shape {}, expected (V, C)", table.shape())));
    }
    Embedding.apply([table, ids])
}

/// See [`embedding`].
#[derive(Clone)]
pub struct Embedding;

impl Op<2> for Embedding {
    const NAME: &'static str = "embedding";
    type Saved = ();
    fn forward(&self, [table, ids]: [&Tensor; 2]) -> Result<(Tensor, ())> {
        let (table, ids) = (table.contiguous()?, ids.contiguous()?);
        let ([v, c], n) = (table.dims2()?, ids.count());
        let y = Tensor::empty(table.device(), [ids.dims(), &[c]].concat(), table.dtype())?;
        if y.count() > 0 {
            let value = |name| Tuning::value(table.device(), &OWNED, 0, name);
            let (local, groups) = row_grid(table.device(), value("WG"), value("VW"), n, c);
            let past = past_caches(&y) && c.is_multiple_of(16) && local == [1; 3];
            let launch = OWNED.launch("embedding_fwd").define("DTYPE", table.dtype().code()).define("PAST", past);
            let launch = launch.local(local).groups3(groups).read(&table).read(&ids).write(&y);
            launch.scalar(v).scalar(c).scalar(n).run()?;
        }
        Ok((y, ()))
    }
    fn backward(&self, [table, ids]: [&Tensor; 2], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (ids, dy) = (ids.contiguous()?, dy.contiguous()?);
        if dy.count() == 0 {
            return Ok([Some(Tensor::zeros(table.device(), table.shape(), table.dtype())?), None]);
        }
        let variant = BACKWARD.choose(table.device(), 0)?;
        let sum = if std::ptr::eq(variant, &raw const OWNED) { owned } else { sorted };
        Ok([Some(sum(table, &ids, &dy)?), None])
    }
    fn reference(&self, [table, ids]: [&Array; 2]) -> Array {
        let c = table.shape.last();
        let shape = [ids.shape.dims(), &[c]].concat();
        let rows = ids.data.iter().flat_map(|id| table.data[*id as usize * c..][..c].to_vec());
        Array::new(shape, rows.collect())
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample = |table: [usize; 2], ids: &[usize]| {
            Sample::new(Self, [Input::normal(&table), Input::indices(ids, table[0] as u32)]).sums(4)
        };
        let same = Input::values(&[40], &[2.0], Some(DType::U32));
        vec![
            sample([7, 5], &[2, 3]).bench(&[&[50_304, 768], &[8192]]),
            sample([30, 41], &[2, 2, 5]),
            sample([600, 3], &[900]).light(),
            Sample::new(Self, [Input::normal(&[4, 9]), same]).sums(40).light(),
            sample([3, 1], &[]).light(),
            sample([1, 1], &[1]).light(),
            sample([3, 4], &[0]).light(),
        ]
    }
}

/// Gradient of the table, each work-item the rows it owns.
fn owned(table: &Tensor, ids: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (device, [v, c], n) = (table.device(), table.dims2()?, ids.count());
    let order = Tensor::empty(device, [n], DType::U32)?;
    let starts = Tensor::empty(device, [v + 1], DType::U32)?;
    let dtable = table.empty_like()?;
    let past = past_caches(&dtable) && c.is_multiple_of(16);
    let begin = |entry| OWNED.launch(entry).define("DTYPE", dy.dtype().code()).define("PAST", past).local([1, 1, 1]);
    let launch = begin("embedding_sort").groups(1).read(ids).write(&order).write(&starts);
    launch.scalar(v).scalar(n).run()?;
    let launch = begin("embedding_bwd_owned").groups(row_groups(device, v + n, c).min(v));
    launch.read(dy).read(&order).read(&starts).write(&dtable).scalar(v).scalar(c).run()
        .map(|()| dtable)
}

/// Positions to a block at least, and blocks at most: ranks within a block are found by looking at all before, and each block
/// has a counter for every row of the table.
const BLOCK: usize = 512;
const BLOCKS: usize = 64;

/// Gradient of the table from positions sorted by id.
fn sorted(table: &Tensor, ids: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (device, [v, c], n) = (table.device(), table.dims2()?, ids.count());
    let per = n.div_ceil(BLOCKS).max(BLOCK);
    let blocks = n.div_ceil(per);
    let counts = Tensor::zeros(device, [blocks, v], DType::U32)?;
    let starts = Tensor::empty(device, [v + 1], DType::U32)?;
    let order = Tensor::empty(device, [n], DType::U32)?;
    let dtable = table.empty_like()?;
    let begin = |entry| SORTED.launch(entry).define("DTYPE", dy.dtype().code());
    begin("embedding_count").items(n).read(ids).write(&counts).scalar(v).scalar(n).scalar(per).run()?;
    let (wg, tuned) = (Tuning::value(device, &SORTED, 0, "WG"), Tuning::value(device, &SORTED, 0, "VW"));
    let groups = v.div_ceil(wg);
    let sums = Tensor::empty(device, [groups], DType::U32)?;
    let launch = begin("embedding_ranks").groups(groups).write(&counts).write(&starts).write(&sums);
    launch.scalar(v).scalar(blocks).run()?;
    begin("embedding_starts").groups(groups).write(&starts).read(&sums).scalar(v).run()?;
    let launch = begin("embedding_order").items(n).read(ids).read(&counts).read(&starts).write(&order);
    launch.scalar(v).scalar(n).scalar(per).run()?;
    let lanes = if has_vectors_of_16_bytes(&dtable, c) { 16 / dy.dtype().size() } else { tuned };
    let across = c.div_ceil(lanes).next_power_of_two().min(32).min(wg);
    let rows = wg / across;
    let launch = vectors_of_16_bytes(begin("embedding_sum"), &dtable, c);
    let launch = launch.local([across, rows, 1]).groups(v.div_ceil(rows));
    launch.read(dy).read(&order).read(&starts).write(&dtable).scalar(v).scalar(c).run()?;
    Ok(dtable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(device: &Device, n: usize, v: u32) -> (Vec<u32>, Tensor) {
        let host: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % v).collect();
        let ids = Tensor::from_u32(device, [n], &host).unwrap();
        (host, ids)
    }

    /// What GPUs run: several items for a row that many positions have, one for others.
    #[test]
    fn groups_agree_with_owners() {
        let device = crate::suite::test_device().unwrap();
        let params = [("WG", 64), ("VW", 4)].map(|(name, value)| (name.to_owned(), value));
        Tuning::of(&device).try_out("embedding_sorted", 0, Some(params.into()));
        for (n, v, c) in [(1500, 37, 19), (700, 401, 36)] {
            let host: Vec<u32> = (0..n as u32).map(|i| (i * i) % (v as u32 + 2)).collect();
            let ids = Tensor::from_u32(&device, [n], &host).unwrap();
            let dy: Vec<f32> = (0..n * c).map(|i| (i % 11) as f32 - 5.0).collect();
            let mut expected = vec![0f32; v * c];
            for (i, id) in host.iter().enumerate().filter(|(_, id)| (**id as usize) < v) {
                (0..c).for_each(|k| expected[*id as usize * c + k] += dy[i * c + k]);
            }
            let dy = Tensor::from_f32(&device, [n, c], &dy, DType::F32).unwrap();
            let table = Tensor::ones(&device, [v, c], DType::F32).unwrap();
            assert_eq!(sorted(&table, &ids, &dy).unwrap().to_vec().unwrap(), expected);
        }
    }

    /// Both ways over several blocks, against sums of integers, which are exact in any order; ids outside are left out.
    #[test]
    fn both_gradients_agree_over_blocks_and_bad_ids() {
        let device = crate::suite::test_device().unwrap();
        let (n, v, c) = (1500, 37, 19);
        let (host, ids) = ids(&device, n, v as u32 + 2);
        let dy: Vec<f32> = (0..n * c).map(|i| (i % 11) as f32 - 5.0).collect();
        let mut expected = vec![0f32; v * c];
        for (i, id) in host.iter().enumerate().filter(|(_, id)| (**id as usize) < v) {
            (0..c).for_each(|k| expected[*id as usize * c + k] += dy[i * c + k]);
        }
        let dy = Tensor::from_f32(&device, [n, c], &dy, DType::F32).unwrap();
        let table = Tensor::ones(&device, [v, c], DType::F32).unwrap();
        assert_eq!(sorted(&table, &ids, &dy).unwrap().to_vec().unwrap(), expected);
        if device.capabilities().is_cpu() {
            assert_eq!(owned(&table, &ids, &dy).unwrap().to_vec().unwrap(), expected);
        }
        let y = embedding(&table, &ids).unwrap().to_vec().unwrap();
        for (row, id) in y.chunks(c).zip(&host) {
            assert!(row.iter().all(|e| if (*id as usize) < v { *e == 1.0 } else { e.is_nan() }));
        }
    }
}
