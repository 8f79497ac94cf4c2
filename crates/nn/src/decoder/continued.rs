//! Incremental generation of one text with a key/value cache.

use super::{Batch, Decoder};
use crate::model::Continuation;
use netcl_tensor::{Error, Result, Tensor};

/// Initial capacity of the cache in tokens; it is doubled on demand.
const ROOM: usize = 256;

/// Processes only new tokens, with cached keys and values of earlier ones: several tokens in one pass, single ones by a captured step.
pub(super) struct Text<'a> {
    decoder: &'a Decoder,
    kept: Option<Kept<'a>>,
    /// Index of the first cached token of the text: 0 until the text exceeds the context.
    start: usize,
}

struct Kept<'a> {
    batch: Batch<'a>,
    /// The cached tokens.
    ids: Vec<u32>,
}

impl<'a> Text<'a> {
    pub(super) fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, kept: None, start: 0 }
    }

    /// The cache for the longest common prefix with `text`, with capacity for all of it.
    fn kept(&mut self, text: &[u32]) -> Result<Kept<'a>> {
        let room = text.len().next_power_of_two().max(ROOM).min(self.decoder.config.context);
        let Some(mut kept) = self.kept.take() else {
            return Ok(Kept { batch: self.decoder.batch(1, room)?, ids: Vec::new() });
        };
        let same = kept.ids.iter().zip(text).take_while(|(a, b)| a == b).count();
        // The last token is read again where nothing is new: its logits are asked for.
        let same = same.min(text.len() - 1);
        kept.batch.truncate(same);
        kept.ids.truncate(same);
        if text.len() > kept.batch.room() {
            kept.batch.reserve(room)?;
        }
        Ok(kept)
    }
}

impl Continuation for Text<'_> {
    fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let context = self.decoder.config.context;
        if ids.is_empty() {
            return Err(Error::shape("decoder: an empty text has no last token"));
        }
        if ids.len() - self.start.min(ids.len()) > context {
            // Positions are counted from the first token read: all that stay have others now. Half of the context is left to grow into,
            // so that this happens once in as many tokens.
            self.start = ids.len() - (context / 2).max(1);
        }
        let text = ids.get(self.start..).filter(|text| !text.is_empty()).unwrap_or(ids);
        let mut kept = self.kept(text)?;
        let logits = match &text[kept.ids.len()..] {
            [token] if !kept.ids.is_empty() => kept.batch.step(&[*token])?,
            new => {
                let new = Tensor::from_u32(self.decoder.params.device(), [1, new.len()], new)?;
                kept.batch.read(&new)?
            }
        };
        kept.ids.extend_from_slice(&text[kept.ids.len()..]);
        self.kept = Some(kept);
        logits.to_vec()
    }
    fn launches(&self) -> Option<usize> {
        self.kept.as_ref()?.batch.launches()
    }
}
