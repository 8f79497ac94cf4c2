//! Embeddings of new tokens for a decoding step, whose positions are in device memory.

use super::map::row_grid;
use super::prelude::*;
use crate::tape;
use netcl_kernel::Launch;

static KERNEL: Kernel = Kernel::new("decode_embedding", cl_file!("decode_embedding.cl"))
    .tune(&[("WG", &[128, 256]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Computes `scale * table[ids] + positions[position + t]` `(B, T, C)` for table `(V, C)` and ids `(B, T)` u32. `positions` are a table `(P, C)` of
/// position embeddings and the number of earlier tokens, u32 `(1)` or `(B)`. An id or a position outside of its table gives NaN.
///
/// # Errors
/// `Shape` and `DType` if the operands do not fit together; `Unsupported` if a gradient is recorded, which this operation does not have.
pub fn decode_embedding(
    table: &Tensor,
    ids: &Tensor,
    scale: f32,
    positions: Option<(&Tensor, &Tensor)>,
) -> Result<Tensor> {
    let (places, position) = positions.unwrap_or((table, ids));
    let op = DecodeEmbedding { scale, placed: positions.is_some() };
    op.check([table, ids, places, position])?;
    if tape::records(&[table, places]) {
        return Err(Error::unsupported(
            "decode_embedding does not have a gradient; call it within `no_grad`",
        ));
    }
    op.apply([table, ids, places, position])
}

/// Operation of [`decode_embedding()`].
#[derive(Clone)]
pub struct DecodeEmbedding {
    pub(super) scale: f32,
    /// Whether inputs 2 and 3 are position embeddings and the number of earlier tokens.
    pub(super) placed: bool,
}

impl DecodeEmbedding {
    fn check(&self, [table, ids, places, position]: [&Tensor; 4]) -> Result<()> {
        let op = Self::NAME;
        check::float(op, "table", table)?;
        check::indices(op, "ids", ids)?;
        let [_, c] = table.dims2().map_err(|e| e.context("decode_embedding: table"))?;
        let [batch, _] = ids.dims2().map_err(|e| e.context("decode_embedding: ids"))?;
        if !self.placed {
            return Ok(());
        }
        check::same_float(op, &[("table", table), ("positions", places)])?;
        check::indices(op, "position", position)?;
        let wide = places.shape().rank() == 2 && places.shape().last() == c;
        if !wide || position.shape().rank() != 1 || ![1, batch].contains(&position.count()) {
            return Err(Error::shape(format!(
                "{op}: positions {} and position {}, expected (P, {c}) and [1] or [{batch}], with table {} and ids {}",
                places.shape(),
                position.shape(),
                table.shape(),
                ids.shape()
            )));
        }
        Ok(())
    }
}

impl Op<4> for DecodeEmbedding {
    const NAME: &'static str = "decode_embedding";
    type Saved = ();
    fn forward(&self, inputs: [&Tensor; 4]) -> Result<(Tensor, ())> {
        self.check(inputs)?;
        let [table, ids, places, position] = inputs;
        let (table, places) = (table.contiguous()?, places.contiguous()?);
        let ids = if ids.is_dense() { ids.clone() } else { ids.contiguous()? };
        let ([v, c], [batch, tokens]) = (table.dims2()?, ids.dims2()?);
        let y = Tensor::empty(table.device(), [batch, tokens, c], table.dtype())?;
        if y.count() == 0 {
            return Ok((y, ()));
        }
        let value = |name| Tuning::value(table.device(), &KERNEL, 0, name);
        let (local, groups) = row_grid(table.device(), value("WG"), value("VW"), batch * tokens, c);
        let launch = KERNEL
            .launch("decode_embedding")
            .define("DTYPE", table.dtype().code())
            .define("PLACED", self.placed);
        let launch = launch
            .local(local)
            .groups3(groups)
            .read(&table)
            .read(&places)
            .read_base(&ids)
            .read_base(position)
            .write(&y);
        let step = if self.placed && position.count() > 1 { position.layout().strides[0] } else { 0 };
        let offsets = [ids.layout().offset, position.layout().offset, step];
        let launch = offsets.into_iter().fold(launch, |launch: Launch<'static>, n| launch.scalar(n as u32));
        let sizes = [v, places.shape().dims().first().copied().unwrap_or(0), c, batch * tokens];
        let launch = sizes.into_iter().fold(launch, Launch::scalar);
        launch.scalar(tokens as u32).scalar(self.scale).run()?;
        Ok((y, ()))
    }
    fn backward(&self, _: [&Tensor; 4], (): &(), _: &Tensor) -> Result<[Option<Tensor>; 4]> {
        Ok([const { None }; 4])
    }
    fn reference(&self, [table, ids, places, position]: [&Array; 4]) -> Array {
        let (c, tokens) = (table.shape.last(), ids.shape.last());
        let row = |(i, id): (usize, &f64)| -> Vec<f64> {
            let (b, t) = (i / tokens, i % tokens);
            let before = if self.placed {
                position.data[if position.data.len() > 1 { b } else { 0 }] as usize
            } else {
                0
            };
            let place = |k: usize| if self.placed { places.data[(before + t) * c + k] } else { 0.0 };
            (0..c).map(|k| table.data[*id as usize * c + k] * f64::from(self.scale) + place(k)).collect()
        };
        Array::new([ids.shape.dims(), &[c]].concat(), ids.data.iter().enumerate().flat_map(row).collect())
    }
    fn calls() -> Vec<Call> {
        let doc = "Embeddings of new tokens. Takes table `(V, C)` and ids `(B, T)`. Returns `scale * table[ids] + positions[position + t]` `(B, T, \
                   C)`. `positions` `(P, C)` are position embeddings, and `position`, u32 `(1)` or `(B)`, is the number of earlier tokens. No \
                   gradient.";
        let call =
            Call::new(Self::NAME, doc).inputs(&["table", "ids"]).optional_inputs(&["positions", "position"]);
        vec![call.default("scale", 1.0).run(|a| {
            let [table, ids] = a.inputs()?;
            decode_embedding(table, ids, a.get("scale")?, a.optional("positions").zip(a.optional("position")))
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("scale", self.scale.into())]
    }
    fn given<'a>(&self, [table, ids, places, position]: [&'a Tensor; 4]) -> Vec<Option<&'a Tensor>> {
        vec![Some(table), Some(ids), self.placed.then_some(places), self.placed.then_some(position)]
    }
    fn samples() -> Vec<Sample<Self, 4>> {
        let sample =
            |[v, c]: [usize; 2], [b, t]: [usize; 2], (scale, placed): (f32, bool), before: &[f64]| {
                let inputs = [
                    SampleInput::normal(&[v, c]),
                    SampleInput::indices(&[b, t], v as u32),
                    SampleInput::normal(&[if placed { 40 } else { 1 }, c]),
                    SampleInput::values(&[before.len()], before, Some(DType::U32)),
                ];
                Sample::new(Self { scale, placed }, inputs)
            };
        let mut far = sample([7, 9], [2, 3], (0.5, true), &[6.0]);
        far.inputs[0] = SampleInput::values(&[7, 9], &[3e38, -1e30, 1e-30], None);
        vec![
            sample([7, 37], [2, 3], (1.5, true), &[6.0]),
            sample([30, 8], [3, 1], (1.0, true), &[6.0, 0.0, 39.0]).named("texts of three lengths").light(),
            sample([7, 40], [2, 1], (3.0, false), &[0.0]).named("no places"),
            far.extreme().pointwise().light(),
            sample([1, 1], [1, 1], (1.0, false), &[0.0]).light(),
            sample([3, 4], [0, 1], (1.0, true), &[0.0]).light(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_of_its_table_is_nan() {
        let device = crate::suite::test_device().unwrap();
        let table = |rows: usize| Tensor::ones(&device, [rows, 5], DType::F32).unwrap();
        let ids = Tensor::from_u32(&device, [2, 3], &[1, 2, 7, u32::MAX, 0, 6]).unwrap();
        let before = Tensor::from_u32(&device, [2], &[1, u32::MAX]).unwrap();
        let known = |y: Tensor| -> Vec<bool> {
            y.to_vec().unwrap().chunks(5).map(|row| row.iter().all(|v| *v > 0.0)).collect()
        };
        let (tokens, places) = (table(7), table(3));
        let placed = decode_embedding(&tokens, &ids, 1.0, Some((&places, &before))).unwrap();
        assert_eq!(known(placed), [true, true, false, false, false, false]);
        let plain = decode_embedding(&tokens, &ids, 2.0, None).unwrap();
        assert_eq!(known(plain), [true, true, false, false, true, true]);
        let trained = tokens.parameter("table");
        let e = decode_embedding(&trained, &ids, 1.0, None).unwrap_err();
        assert!(e.message().contains("decode_embedding does not have a gradient"), "{e}");
    }
}
