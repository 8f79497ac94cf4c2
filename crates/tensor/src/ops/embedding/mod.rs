//! Rows of a table looked up by index, and the gradient of the table, whose sums are always in the order of the positions.

use super::map::row_grid;
use super::prelude::*;
use super::streaming_stores;
use netcl_kernel::Variants;

static OWNED: Kernel = Kernel::new("embedding_owned", cl_file!("embedding.cl"))
    .tune(&[("WG", &[256]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])])
    .requires(|device| device.is_cpu());
static SORTED: Kernel = Kernel::new("embedding_sorted", cl_file!("embedding_sorted.cl"))
    .tune(&[("WG", &[256]), ("VW", &[4])])
    .requires(|device| !device.is_cpu());
static BACKWARD: Variants = Variants::new("embedding_bwd", &[&OWNED, &SORTED]);

/// Looks up rows: table `(V, C)`, ids of any shape, u32 or i32 → the shape of ids followed by an axis of `C`. An id outside the table gives a row
/// of NaN, and no gradient.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    check::float("embedding", "table", table)?;
    check::indices("embedding", "ids", ids)?;
    if table.shape().rank() != 2 {
        return Err(Error::shape(format!("embedding: table has shape {}, expected (V, C)", table.shape())));
    }
    Embedding.apply([table, ids])
}

/// Adds `table[ids[i]] += rows[i]` in place: table `(V, C)`, rows `(N, C)` of its type, ids `(N)`, u32 or i32 and different from each other. An id
/// outside the table adds nothing. Not recorded on the tape.
///
/// # Errors
/// `Shape` or `DType` if they do not fit.
pub fn add_rows(table: &Tensor, ids: &Tensor, rows: &Tensor) -> Result<()> {
    check::float("add_rows", "table", table)?;
    check::indices("add_rows", "ids", ids)?;
    let [v, c] = table.dims2().map_err(|e| e.context("add_rows: table"))?;
    let n = ids.count();
    if !table.is_contiguous() || ids.dims() != [n] || rows.dims() != [n, c] || rows.dtype() != table.dtype() {
        return Err(Error::shape(format!(
            "add_rows: rows {} {} with ids {} to a table {} {}; expected a contiguous table (V, C), ids (N) and rows (N, C) of one type",
            rows.dtype(),
            rows.shape(),
            ids.shape(),
            table.dtype(),
            table.shape()
        )));
    }
    if rows.count() == 0 {
        return Ok(());
    }
    let (ids, rows) = (ids.contiguous()?, rows.contiguous()?);
    let value = |name| Tuning::value(table.device(), &OWNED, 0, name);
    let (local, groups) = row_grid(table.device(), value("WG"), value("VW"), n, c);
    let launch = OWNED.launch("embedding_add_rows").define("DTYPE", table.dtype().code());
    let launch = launch.local(local).groups3(groups).write(table).read(&ids).read(&rows);
    launch.scalar(v).scalar(c).scalar(n).run()
}

/// Operation of [`embedding`].
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
            let streaming = streaming_stores(&y) && c.is_multiple_of(16) && local == [1; 3];
            let launch = OWNED
                .launch("embedding_fwd")
                .define("DTYPE", table.dtype().code())
                .define("STREAMING", streaming);
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
    fn calls() -> Vec<Call> {
        let doc = "Rows of a table by index: table `(V, C)`, ids u32 or i32 → the shape of ids followed by an axis of C. An id outside of the \
                   table gives a row of NaN, and no gradient.";
        vec![Call::new(Self::NAME, doc).inputs(&["table", "ids"]).run(|a| {
            let [table, ids] = a.inputs()?;
            embedding(table, ids)
        })]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample = |table: [usize; 2], ids: &[usize]| {
            Sample::new(Self, [SampleInput::normal(&table), SampleInput::indices(ids, table[0] as u32)])
                .sums(4)
        };
        let same = SampleInput::values(&[40], &[2.0], Some(DType::U32));
        vec![
            sample([7, 5], &[2, 3]).bench(&[&[50_304, 768], &[8192]]).gathers(0, 1),
            sample([30, 41], &[2, 2, 5]),
            sample([600, 3], &[900]).light(),
            Sample::new(Self, [SampleInput::normal(&[4, 9]), same]).sums(40).light(),
            Sample::new(
                Self,
                [SampleInput::values(&[7, 5], &[3e38, -1e30, 1e-30], None), SampleInput::indices(&[2, 3], 7)],
            )
            .extreme()
            .pointwise()
            .light(),
            sample([3, 1], &[]).light(),
            sample([1, 1], &[1]).light(),
            sample([3, 4], &[0]).light(),
        ]
    }
}

/// Computes the gradient of the table; each work-item owns a run of rows.
fn owned(table: &Tensor, ids: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (device, [v, c], n) = (table.device(), table.dims2()?, ids.count());
    let order = Tensor::empty(device, [n], DType::U32)?;
    let starts = Tensor::empty(device, [v + 1], DType::U32)?;
    let dtable = table.empty_like()?;
    let streaming = streaming_stores(&dtable) && c.is_multiple_of(16);
    let begin = |entry| {
        OWNED.launch(entry).define("DTYPE", dy.dtype().code()).define("STREAMING", streaming).local([1, 1, 1])
    };
    let launch = begin("embedding_sort").groups(1).read(ids).write(&order).write(&starts);
    launch.scalar(v).scalar(n).run()?;
    let launch = begin("embedding_bwd_owned").groups(row_groups(device, v + n, c).min(v));
    launch.read(dy).read(&order).read(&starts).write(&dtable).scalar(v).scalar(c).run().map(|()| dtable)
}

/// Minimum number of positions per block, and maximum number of blocks. The rank of a position within its block is found by comparison with all
/// earlier positions of the block. Each block has a counter for every row of the table.
const BLOCK: usize = 512;
const BLOCKS: usize = 64;

/// Rows with more positions than this get separate work-groups; single items sum all others.
const POPULAR: usize = 32;

/// Computes the gradient of the table from positions sorted by id.
fn sorted(table: &Tensor, ids: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (device, [v, c], n) = (table.device(), table.dims2()?, ids.count());
    let per = n.div_ceil(BLOCKS).max(BLOCK);
    let blocks = n.div_ceil(per);
    let (wg, tuned) = (Tuning::value(device, &SORTED, 0, "WG"), Tuning::value(device, &SORTED, 0, "VW"));
    let (groups, most) = (v.div_ceil(wg), v.min(n / (POPULAR + 1)));
    let numbers = |dims: &[usize]| Tensor::empty(device, dims, DType::U32);
    let counts = Tensor::zeros(device, [blocks, v], DType::U32)?;
    let (starts, order, popular) = (numbers(&[v + 1])?, numbers(&[n])?, numbers(&[1 + most])?);
    let (sums, found) = (numbers(&[groups, 2])?, numbers(&[groups, wg])?);
    let dtable = table.empty_like()?;
    let begin = |entry| SORTED.launch(entry).define("DTYPE", dy.dtype().code()).define("POPULAR", POPULAR);
    begin("embedding_count").items(n).read(ids).write(&counts).scalar(v).scalar(n).scalar(per).run()?;
    let launch = begin("embedding_ranks").groups(groups).write(&counts).write(&starts).write(&sums);
    launch.write(&found).scalar(v).scalar(blocks).run()?;
    let launch = begin("embedding_starts").groups(groups).write(&starts).read(&sums).read(&found);
    launch.write(&popular).scalar(v).run()?;
    let launch = begin("embedding_order").items(n).read(ids).read(&counts).read(&starts).write(&order);
    launch.scalar(v).scalar(n).scalar(per).run()?;
    let lanes = if has_vectors_of_16_bytes(&dtable, c) { 16 / dy.dtype().size() } else { tuned };
    let across = |limit: usize| c.div_ceil(lanes).next_power_of_two().min(limit).min(wg);
    let begin = |entry, x: usize| vectors_of_16_bytes(begin(entry), &dtable, c).local([x, wg / x, 1]);
    let x = across(32);
    let launch = begin("embedding_sum", x).groups(v.div_ceil(wg / x)).read(dy).read(&order).read(&starts);
    launch.write(&dtable).scalar(v).scalar(c).run()?;
    if most > 0 {
        let x = across(16);
        let launch = begin("embedding_popular", x).groups3([most, c.div_ceil(x * lanes), 1]);
        let launch = launch.read(dy).read(&order).read(&starts).read(&popular).write(&dtable);
        launch.scalar(c).run()?;
    }
    Ok(dtable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares `sum` over rows of small integers with the expected sums, which are exact in any order. Ids outside the table are left out.
    fn check(
        sum: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
        device: &Device,
        host: &[u32],
        [v, c]: [usize; 2],
        dtype: DType,
    ) {
        let n = host.len();
        let dy: Vec<f32> = (0..n * c).map(|i| (i % 5) as f32 - 2.0).collect();
        let mut expected = vec![0f32; v * c];
        for (i, id) in host.iter().enumerate().filter(|(_, id)| (**id as usize) < v) {
            (0..c).for_each(|k| expected[*id as usize * c + k] += dy[i * c + k]);
        }
        let ids = Tensor::from_u32(device, [n], host).unwrap();
        let dy = Tensor::from_f32(device, [n, c], &dy, dtype).unwrap();
        let table = Tensor::ones(device, [v, c], dtype).unwrap();
        assert_eq!(sum(&table, &ids, &dy).unwrap().to_vec().unwrap(), expected, "{v} x {c}, {dtype}");
    }

    /// Returns well-mixed ids, with row t at `counts[t]` positions.
    fn mixed(counts: &[usize]) -> Vec<u32> {
        let mut ids: Vec<u32> = (0u32..).zip(counts).flat_map(|(t, n)| std::iter::repeat_n(t, *n)).collect();
        let n = ids.len();
        (1..n).for_each(|i| ids.swap(i, i.wrapping_mul(0x9E37_79B9) % (i + 1)));
        ids
    }

    /// Tests some rows of a table, in any order, in every type; an id outside the table adds nothing.
    #[test]
    fn rows_are_added_in_place() {
        let device = crate::suite::test_device().unwrap();
        for (dtype, c) in DType::FLOATS.into_iter().flat_map(|dtype| [1, 19, 64].map(|c| (dtype, c))) {
            let (v, host) = (11, [7u32, 0, 10, 11, 3]);
            let before: Vec<f32> = (0..v * c).map(|i| (i % 9) as f32).collect();
            let rows: Vec<f32> = (0..host.len() * c).map(|i| (i % 7) as f32 - 3.0).collect();
            let mut expected = before.clone();
            for (i, id) in host.iter().enumerate().filter(|(_, id)| (**id as usize) < v) {
                (0..c).for_each(|k| expected[*id as usize * c + k] += rows[i * c + k]);
            }
            let table = Tensor::from_f32(&device, [v, c], &before, dtype).unwrap();
            let rows = Tensor::from_f32(&device, [host.len(), c], &rows, dtype).unwrap();
            let ids = Tensor::from_u32(&device, [host.len()], &host).unwrap();
            add_rows(&table, &ids, &rows).unwrap();
            assert_eq!(table.to_vec().unwrap(), expected, "{dtype} x {c}");
            let wrong = rows.slice(0, 0..2).unwrap();
            let error = add_rows(&table, &ids, &wrong).unwrap_err().to_string();
            assert!(error.contains("add_rows: rows"), "{error}");
        }
    }

    /// Tests the kernels for GPUs: several items for a row with many positions, one for other rows.
    #[test]
    fn groups_agree_with_owners() {
        let device = crate::suite::test_device().unwrap();
        let params = [("WG", 64), ("VW", 4)].map(|(name, value)| (name.to_owned(), value));
        Tuning::of(&device).try_out("embedding_sorted", 0, Some(params.into()));
        for (n, v, c) in [(1500u32, 37, 19), (700, 401, 36)] {
            let host: Vec<u32> = (0..n).map(|i| (i * i) % (v as u32 + 2)).collect();
            check(sorted, &device, &host, [v, c], DType::F32);
        }
    }

    /// Tests adjacent popular rows, in one group and across the edges of groups, rows at the limit and one above it, and the last row.
    #[test]
    fn popular_rows_have_groups_of_their_own() {
        let device = crate::suite::test_device().unwrap();
        let params = [("WG", 64), ("VW", 4)].map(|(name, value)| (name.to_owned(), value));
        Tuning::of(&device).try_out("embedding_sorted", 0, Some(params.into()));
        let (limit, v) = (POPULAR, 200);
        let mut counts: Vec<usize> = (0..=v).map(|t| t % 3).collect();
        counts[..5].copy_from_slice(&[100, limit + 1, limit, 90, limit + 1]);
        counts[61..67].copy_from_slice(&[limit, limit, limit + 1, limit + 1, 70, limit]);
        counts[v - 1] = limit + 1;
        counts[v] = limit + 9; // outside the table
        for (c, dtype) in [19, 200].into_iter().flat_map(|c| DType::FLOATS.map(|dtype| (c, dtype))) {
            check(sorted, &device, &mixed(&counts), [v, c], dtype);
        }
        check(sorted, &device, &mixed(&[POPULAR + 1; 3]), [3, 5], DType::F32); // the maximum number
        check(sorted, &device, &mixed(&[POPULAR]), [1, 5], DType::F32); // none
    }

    /// Tests both kernels over several blocks; ids outside the table are left out.
    #[test]
    fn both_gradients_agree_over_blocks_and_bad_ids() {
        let device = crate::suite::test_device().unwrap();
        let (n, v, c) = (1500u32, 37, 19);
        let spread = (0..n).map(|i| i.wrapping_mul(2_654_435_761) % (v as u32 + 2)).collect();
        // The last two rows are outside.
        let popular: Vec<usize> = (0..v + 2).map(|t| [POPULAR + 1, POPULAR, 120, 1][t / 2 % 4]).collect();
        let table = Tensor::ones(&device, [v, c], DType::F32).unwrap();
        for host in [spread, mixed(&popular)] {
            check(sorted, &device, &host, [v, c], DType::F32);
            if device.capabilities().is_cpu() {
                check(owned, &device, &host, [v, c], DType::F32);
            }
            let ids = Tensor::from_u32(&device, [host.len()], &host).unwrap();
            let y = embedding(&table, &ids).unwrap().to_vec().unwrap();
            for (row, id) in y.chunks(c).zip(&host) {
                assert!(row.iter().all(|e| if (*id as usize) < v { *e == 1.0 } else { e.is_nan() }));
            }
        }
    }
}
