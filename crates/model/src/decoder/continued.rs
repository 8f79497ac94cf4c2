//! Incremental generation of one text with a key/value cache.

use super::ahead::Ahead;
use super::rotary::lengths;
use super::{Batch, Decoder};
use crate::model::{Choice, Continuation, check_token};
use netcl_tensor::{Error, Result, Tensor};

/// Initial capacity of the cache in tokens; it is doubled on demand.
const ROOM: usize = 256;
/// Additional capacity that is reserved at once, if that many tokens are requested.
const GROWTH: usize = 1024;

/// Processes only new tokens, with cached keys and values of earlier ones: several tokens in one pass, single ones by a captured step.
pub(super) struct Text<'a> {
    decoder: &'a Decoder,
    kept: Option<KeptText<'a>>,
    /// Index of the first cached token of the text: 0 until the text exceeds the context.
    start: usize,
}

struct KeptText<'a> {
    batch: Batch<'a>,
    /// The cached tokens, without tokens generated ahead that have not been requested.
    ids: Vec<u32>,
    ahead: Option<Ahead>,
    /// Shortest text length that has the same rotary angles as the cached keys.
    class: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, kept: None, start: 0 }
    }

    /// Returns the shortest length of a text with the rotary angles of a text of `length` tokens.
    fn class(&self, length: usize) -> usize {
        *lengths(&self.decoder.config.rotary, length).start()
    }

    /// Returns the cache for the longest common prefix with `text`, with capacity for `room` tokens. All keys in it have the angles of a text of
    /// `length` tokens. Keys with other angles are dropped, and a text that exceeds LongRoPE's original context is read again.
    fn kept(&mut self, text: &[u32], length: usize, room: usize) -> Result<KeptText<'a>> {
        let class = self.class(length);
        let room = room.next_power_of_two().max(ROOM).min(self.decoder.config.context);
        let Some(mut kept) = self.kept.take() else {
            return Ok(KeptText { batch: self.decoder.batch(1, room)?, ids: Vec::new(), ahead: None, class });
        };
        let same = kept.ids.iter().zip(text).take_while(|(a, b)| a == b).count();
        // If no token is new, the last one is read again, because its logits are requested.
        let same = same.min(text.len() - 1);
        let same = if kept.class == class { same } else { 0 };
        kept.class = class;
        kept.ahead = None;
        let same = kept.batch.truncate(same);
        kept.ids.truncate(same);
        kept.batch.reserve(room)?;
        Ok(kept)
    }

    /// Does the same with all tokens of `text` except the last in the cache, the last one as the next step's input, and capacity for further tokens.
    fn begun(&mut self, text: &[u32], choice: &Choice<'_>) -> Result<KeptText<'a>> {
        let room = text.len() + choice.most.min(text.len().max(GROWTH));
        let mut kept = self.kept(text, text.len(), room)?;
        let Some((last, before)) = text.split_last() else { return Ok(kept) };
        let missing = &before[kept.ids.len()..];
        if !missing.is_empty() {
            let missing = Tensor::from_u32(self.decoder.params.device(), [1, missing.len()], missing)?;
            kept.batch.fill(&missing, text.len())?;
        }
        kept.batch.start(&[*last])?;
        // The first step adds the last one.
        kept.ids = text.to_vec();
        kept.ahead = Some(Ahead::new(choice.by, *last));
        Ok(kept)
    }
}

impl Continuation for Text<'_> {
    fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let context = self.decoder.config.context;
        if ids.is_empty() {
            return Err(Error::shape("decoder: an empty text does not have a last token"));
        }
        if ids.len() - self.start.min(ids.len()) > context {
            // Positions are counted from the first cached token, so they change for all remaining tokens. Half of the context is left free, so that
            // this happens only once per that many tokens.
            self.start = ids.len() - (context / 2).max(1);
        }
        let text = ids.get(self.start..).filter(|text| !text.is_empty()).unwrap_or(ids);
        let mut kept = self.kept(text, text.len(), text.len())?;
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
    fn begin(&mut self, ids: &[u32], length: usize) -> Result<()> {
        if ids.is_empty() || self.start > 0 || ids.len() > self.decoder.config.context {
            return self.logits_after(ids).map(drop);
        }
        let mut kept = self.kept(ids, length, ids.len())?;
        let new = &ids[kept.ids.len()..];
        let tensor = Tensor::from_u32(self.decoder.params.device(), [1, new.len()], new)?;
        kept.batch.fill(&tensor, length)?;
        kept.ids.extend_from_slice(new);
        self.kept = Some(kept);
        Ok(())
    }
    fn keeps(&self, length: usize) -> bool {
        let class = self.class(length);
        self.kept.as_ref().is_none_or(|kept| kept.ids.is_empty() || kept.class == class)
    }
    fn token_after(&mut self, ids: &[u32], choice: &Choice<'_>) -> Result<Option<u32>> {
        let text = ids.get(self.start..).unwrap_or_default();
        let Some((last, before)) = text.split_last().filter(|_| text.len() <= self.decoder.config.context)
        else {
            return Ok(None);
        };
        let follows = self.kept.as_ref().is_some_and(|kept| {
            let ahead = kept.ahead.as_ref();
            ahead.is_some_and(|ahead| ahead.is_behind(*last, choice)) && kept.ids == before
        });
        let kept = if follows { self.kept.take() } else { None };
        let mut kept = match kept {
            Some(mut kept) => {
                kept.ids.push(*last);
                kept
            }
            None => self.begun(text, choice)?,
        };
        let Some(ahead) = &mut kept.ahead else { return Err(Error::internal("a text without tokens ahead")) };
        let token = match ahead.next(&mut kept.batch, choice)? {
            Some(token) => Some(token),
            // The cache is full, and all tokens generated ahead are read: enlarge it.
            None => {
                self.kept = Some(kept);
                kept = self.begun(text, choice)?;
                kept.ahead.as_mut().map_or(Ok(None), |ahead| ahead.next(&mut kept.batch, choice))?
            }
        };
        if token.is_none() {
            kept.ids.truncate(kept.batch.length());
        }
        self.kept = Some(kept);
        token.map(check_token).transpose()
    }
    fn launches(&self) -> Option<usize> {
        self.kept.as_ref()?.batch.launches()
    }
}
