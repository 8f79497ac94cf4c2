//! One token of one text, or of each of a few, through a whole decoder in one launch: a persistent kernel for NVIDIA's sm_90, which streams the weights through a ring in
//! local memory while its groups exchange activations, without a barrier over the device. Its drawing stands at the head of
//! `decode_step_sm90.cl`.
//!
//! It is no op of the table: it has no gradient, and its inputs are a model's parameters. What it computes is what the launches of a decoder's
//! step compute, but for the rounding of the activations: quantised weights are multiplied by bytes
//! ([`Activations::Int8`](crate::quant::Activations)), and groups of models in 16 bits exchange f16.

mod agree;
pub(crate) mod check;
pub(crate) mod kernel;
mod model;

pub use kernel::{MOST_TEXTS, Text};
pub use model::{Embedding, Layer, Map, Model, Norm, Rows};

use super::prelude::*;

/// A model's step, ready to be launched.
pub struct DecodeStep {
    text: Text,
    defines: Vec<(&'static str, netcl_kernel::Value)>,
    /// Norms, biases, norms of heads, cosines, sines, table.
    inputs: [Tensor; 6],
    words: Tensor,
    state: Tensor,
    /// What the table's addresses are of.
    weights: Vec<Tensor>,
    caches: Vec<Tensor>,
    /// Of the texts (B, M), in the caches.
    pages: Option<Tensor>,
    /// B.
    texts: usize,
    groups: usize,
    room: usize,
    /// Positions of a page.
    page: usize,
    angle_rows: usize,
    scalars: [f32; 7],
    dtype: DType,
    /// Embeddings of all tokens and of places; the table again where there are none of these.
    embedding: Option<[Tensor; 2]>,
    vocab: usize,
    /// Elements of an embedding.
    width: usize,
    /// Key heads.
    kv_heads: usize,
    /// What rounding changes a value of the first layer by, as a share of its size.
    rounding: f64,
    flops: u64,
}

impl DecodeStep {
    /// The step of a model, or why there is none for it.
    ///
    /// # Errors
    /// `Unsupported` that says why; `Memory`.
    pub fn new(model: &Model<'_>, text: Text) -> Result<Self> {
        let s = model.sizes(text)?;
        let no = |why: &str| Err(Error::unsupported(format!("decode_step: {why}")));
        if let Err(why) = model.supports(text, &s) {
            return no(why);
        }
        let ring = model.ring(&s)?;
        let device = model.device();
        if text == Text::Ring && ring.slots < 3 {
            return no("rows so long that local memory has no ring for them");
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

    /// Whether its input is a token's number instead of the token's embedding.
    pub fn takes_tokens(&self) -> bool {
        self.embedding.is_some()
    }

    /// The embeddings of a token of each of B texts (B, .., DIM), or their numbers u32 (B) where it [takes](Self::takes_tokens) those, and how many
    /// tokens are before each, u32 (B), or before all, u32 (1) → logits (B, V) of the next. Keys and values are kept in the caches; where they have
    /// no row for a text's, or there is no such token, its logits are NaN. Launches of one step run one after the other.
    ///
    /// # Errors
    /// `Shape` for other texts; those of the launch.
    pub fn run(&self, input: &Tensor, position: &Tensor) -> Result<Tensor> {
        let texts = self.texts;
        let each = if self.takes_tokens() { 1 } else { self.width };
        if input.count() != texts * each || ![1, texts].contains(&position.count()) {
            return Err(Error::shape(format!(
                "decode_step: input {:?} at positions {:?}, expected those of {texts} texts",
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
        // Of what is not read, something else that is there.
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
