//! One token of one text, or of each of a few texts, through a whole decoder in one launch. This is a persistent kernel for NVIDIA's sm_90. It
//! streams the weights through a ring in local memory while its groups exchange activations, without a device-wide barrier. `decode_step_sm90.cl`
//! starts with a drawing.
//!
//! It is not in the table of operations: it does not have a gradient, and its inputs are a model's parameters. It computes the same as the several
//! launches of a decoder's step, except for the rounding of activations: quantized weights are multiplied by bytes
//! ([`Activations::Int8`](crate::quant::Activations)), and groups of 16-bit models exchange f16.
//!
//! Each group owns a share of the rows of every matrix, prefetches them, and exchanges activations as words with an epoch. Tensors are read through
//! their addresses in the step's table, so the launch declares the memory that it reaches. `agree` compares the kernel with the step of several
//! launches before its first use. Tests run the source with two groups on the simulated GPU.

mod agree;
pub(crate) mod check;
pub(crate) mod kernel;
mod model;

pub use kernel::{MAX_TEXTS, WeightPath};
pub use model::{DecodeLayer, Map, Model, NormWeights, TokenEmbedding, WeightRows};

use super::prelude::*;

/// A model's step, ready to be launched.
pub struct DecodeStep {
    text: WeightPath,
    defines: Vec<(&'static str, netcl_kernel::Value)>,
    /// Inputs of the kernel: norms, biases, head norms, cosines, sines and table.
    inputs: [Tensor; 6],
    words: Tensor,
    state: Tensor,
    /// Tensors whose addresses are in the table.
    weights: Vec<Tensor>,
    caches: Vec<Tensor>,
    /// Pages (B, M) of the texts in the caches.
    pages: Option<Tensor>,
    /// Number of texts B.
    texts: usize,
    groups: usize,
    room: usize,
    /// Positions per page.
    page: usize,
    angle_rows: usize,
    scalars: [f32; 7],
    dtype: DType,
    /// Embeddings of all tokens, and of positions; without position embeddings the first tensor again.
    embedding: Option<[Tensor; 2]>,
    vocab: usize,
    /// Elements of an embedding.
    width: usize,
    /// Number of key heads.
    kv_heads: usize,
    /// Relative rounding error of a value in the first layer.
    rounding: f64,
    flops: u64,
}

impl DecodeStep {
    /// Builds the step of a model.
    ///
    /// # Errors
    /// `Unsupported` with the reason if the kernel does not support the model; `Memory`.
    pub fn new(model: &Model<'_>, text: WeightPath) -> Result<Self> {
        let s = model.sizes(text)?;
        let no = |why: &str| Err(Error::unsupported(format!("decode_step: {why}")));
        if let Err(why) = model.supports(text, &s) {
            return no(why);
        }
        let ring = model.ring(&s)?;
        let device = model.device();
        if text == WeightPath::Ring && ring.slots < 3 {
            return no("rows that are too long for a ring in local memory");
        }
        let zeros = |n: usize| Tensor::from_u32(device, [n], &vec![0; n]);
        Ok(Self {
            text,
            defines: model.defines(text, &s, &ring),
            inputs: model.inputs(&s)?,
            words: zeros(s.words())?,
            state: zeros(1)?,
            weights: model.maps().map(|map| map.tensor().detach()).collect(),
            caches: model.layers.iter().map(|layer| layer.cache.detach()).collect(),
            pages: model.pages.map(Tensor::detach),
            texts: s.texts,
            groups: s.groups,
            room: s.room,
            page: s.page.max(1),
            angle_rows: model.angle_rows()?,
            scalars: model.scalars(),
            dtype: model.dtype(),
            embedding: model.embedding.map(|e| [e.table.detach(), e.places.unwrap_or(e.table).detach()]),
            vocab: s.vocab,
            width: s.width,
            kv_heads: s.kv_heads,
            rounding: model.rounding(),
            flops: 2
                * s.texts as u64
                * model.maps().map(|map| map.dims().map_or(0, |[n, k]| (n * k) as u64)).sum::<u64>(),
        })
    }

    /// Returns whether the input is token numbers instead of embeddings.
    pub fn takes_tokens(&self) -> bool {
        self.embedding.is_some()
    }

    /// Computes the logits (B, V) of the next token of each text.
    ///
    /// `input` has the embeddings (B, .., DIM) of one token per text, or their numbers u32 (B) if the step [takes tokens](Self::takes_tokens).
    /// `position` is the number of earlier tokens of each text, u32 (B), or of all texts, u32 (1). Keys and values are stored in the caches. If
    /// they are full, or the token's number is invalid, its logits are NaN. Launches of one step run one after the other.
    ///
    /// # Errors
    /// `Shape` for a different number of texts; those of the launch.
    pub fn run(&self, input: &Tensor, position: &Tensor) -> Result<Tensor> {
        let texts = self.texts;
        let each = if self.takes_tokens() { 1 } else { self.width };
        if input.count() != texts * each || ![1, texts].contains(&position.count()) {
            return Err(Error::shape(format!(
                "decode_step: input {:?} at positions {:?}, expected {texts} texts",
                input.dims(),
                position.dims()
            )));
        }
        let logits = Tensor::empty(input.device(), [texts, self.vocab], self.dtype)?;
        let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let page_step = self.pages.as_ref().map_or(0, |pages| pages.count() / texts);
        let launch = self.text.kernel(texts).launch("decode_step");
        let launch = self.defines.iter().fold(launch, |l, (name, v)| l.define(name, v.clone()));
        let launch = launch.local([self.text.items(), 1, 1]).groups(self.groups).flops(self.flops);
        // Bind another tensor as a placeholder for buffers that are not read.
        let (x, token, places) = match &self.embedding {
            Some([table, places]) => (table, input, places),
            None => (input, position, &self.inputs[0]),
        };
        let launch = launch.read_base(x).read_base(token).read_base(position).read(places);
        let launch = self.inputs.iter().fold(launch, |launch, x| launch.read(x));
        let launch = self.pages.iter().fold(launch, |launch, x| launch.read(x));
        let launch = launch.update_base(&self.words).update_base(&self.state).write(&logits);
        let launch = launch
            .scalar(x.layout().offset)
            .scalar(token.layout().offset)
            .scalar(position.layout().offset)
            .scalar(number(usize::from(position.count() > 1)))
            .scalar(number(page_step))
            .scalar(number(self.room))
            .scalar(number(self.angle_rows));
        let launch = self.scalars.into_iter().fold(launch, netcl_kernel::Launch::scalar);
        let launch = self.weights.iter().fold(launch, |launch, x| launch.read_indirect(x));
        self.caches.iter().fold(launch, |launch, x| launch.update_indirect(x)).run()?;
        Ok(logits)
    }
}

#[cfg(test)]
mod tests;
