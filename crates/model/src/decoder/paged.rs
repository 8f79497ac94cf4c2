//! Texts whose states are pages of one cache (Kwon et al. 2023, "PagedAttention"). Texts of any lengths can be batched, and texts with the same
//! prefix can share its pages. The caller assigns pages to texts.
//!
//! A step is captured once for each number of texts (1, 2, 4, 6, 8, 12, …) and of new tokens. Rows without a text have a position beyond every cache.
//! Page `p` of a text is page `p` in every layer. A cache without a page table is another case of the same kernels. In a cache of 8 bits, rows are
//! rounded on writing and unpacked on reading.

use super::Decoder;
use super::pass::Angles;
use super::rotary::lengths;
use super::state::{CacheType, Reach, Room, States};
use super::step::{Steps, Stores};
use netcl_device::driver::Event;
use netcl_tensor::ops::choose::{Chooser, Rules};
use netcl_tensor::{DType, Device, Error, Result, Tensor, no_grad};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// A text in a step.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The T new tokens; empty after [other steps](Paged::queue_behind), which have sampled them.
    pub tokens: &'a [u32],
    /// Tokens before them.
    pub position: usize,
    /// Its pages, with room for the new tokens of all steps of a run.
    pub pages: &'a [u32],
    /// Sampling rules for the tokens after the new ones.
    pub rules: &'a Rules,
    /// Random words for them: T per step; empty if nothing is sampled.
    pub words: &'a [u32],
}

/// Enqueued steps.
pub struct Pending {
    key: Key,
    /// Event after the last step, if tokens were sampled.
    event: Option<Event>,
    count: u32,
    steps: usize,
    lines: usize,
}

impl Pending {
    /// Returns true if the step took several tokens of each text.
    pub fn has_several_tokens(&self) -> bool {
        self.key.1 > 1
    }
}

/// Texts and tokens of a step, and the shortest length with the same angles.
type Key = (usize, usize, usize);

/// State of steps of one size: captured launches and their memory.
struct Class {
    steps: Steps,
    /// u32 (texts, M), on the device of each stage.
    tables: Vec<Tensor>,
    /// Content of the tables.
    lines: Vec<Vec<u32>>,
    /// Samplers for different numbers of candidates, in ascending order. A step uses the first one with enough candidates, because more candidates
    /// take longer.
    choosers: Vec<Choosing>,
    /// Index of the sampler of the last step.
    chosen: usize,
    /// Steps so far.
    count: u32,
    /// Logits (texts * T, V) of the last step.
    logits: Option<Tensor>,
}

/// A sampler and its rules.
struct Choosing {
    by: Arc<Chooser>,
    rules: Vec<Rules>,
}

/// A decoder with a cache in pages.
pub struct Paged<'a> {
    decoder: &'a Decoder,
    /// Page p of a text is page p in every layer.
    states: States,
    count: usize,
    /// Maximum pages of a text.
    most: usize,
    classes: BTreeMap<Key, Class>,
    /// Angles of each stage, by the shortest length for which they are valid.
    angles: BTreeMap<usize, (RangeInclusive<usize>, Vec<Vec<Angles>>)>,
    bias: Option<Tensor>,
}

/// Position of an unused row: no cache has room for it, so nothing is written. It is so large that steps do not wrap it around.
const NOWHERE: u32 = 0x3fff_ffff;

/// Returns the batch size with separate steps for a number of texts: 1, 2, 4, 6, 8, 12, 16, 24, …
fn class_of(texts: usize) -> usize {
    let power = texts.next_power_of_two();
    let between = power / 4 * 3;
    if power >= 8 && texts <= between { between } else { power }
}

/// Returns the batch sizes, including unused rows, that have separate steps for up to `texts` concurrent texts.
pub fn step_sizes(texts: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=texts).map(class_of).collect();
    sizes.dedup();
    sizes
}

impl Decoder {
    /// Returns the bytes of a page of `tokens` tokens in these layers.
    pub fn page_bytes(&self, layers: Range<usize>, tokens: usize, kind: CacheType) -> u64 {
        let of = |layer| self.config.state(layer).page_bytes(tokens, kind, self.params.dtype());
        layers.map(of).fold(0, u64::saturating_add)
    }

    /// Returns the maximum number of tokens that a new one reads, including itself, if it is limited in all layers.
    pub fn longest_window(&self) -> Option<usize> {
        let mut windows = (0..self.config.layers).map(|layer| self.config.state(layer).window());
        windows.try_fold(0, |most, w| Some(most.max(w?)))
    }
}

impl<'a> Paged<'a> {
    /// Creates `count` pages of `size` tokens. Tokens whose `bias` (V) is −∞ are never sampled.
    ///
    /// # Errors
    /// `Shape` for no pages or empty ones, `Memory`.
    pub fn new(
        decoder: &'a Decoder,
        count: usize,
        size: usize,
        kind: CacheType,
        bias: Option<&[f32]>,
    ) -> Result<Self> {
        if count == 0 || size == 0 {
            return Err(Error::shape(format!(
                "decoder: {count} pages of {size} tokens, expected at least 1"
            )));
        }
        let states =
            States::new(decoder.states(), Room::Pages { count, size }, (kind, decoder.params.dtype()))?;
        // With windows, a text can be longer than its part in pages.
        let line = decoder.config.context.div_ceil(size);
        let most = if decoder.longest_window().is_some() { line } else { line.min(count) };
        let device = decoder.last_device();
        let bias = bias.map(|bias| Tensor::from_f32(device, [bias.len()], bias, DType::F32)).transpose()?;
        Ok(Self { decoder, states, count, most, classes: BTreeMap::new(), angles: BTreeMap::new(), bias })
    }

    /// Returns the decoder.
    pub fn decoder(&self) -> &'a Decoder {
        self.decoder
    }
    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        self.count
    }
    /// Returns the tokens per page.
    pub fn page(&self) -> usize {
        self.states.page()
    }
    /// Returns the maximum tokens of a text: the context, or all pages.
    pub fn longest(&self) -> usize {
        self.decoder.config.context.min(self.most * self.states.page())
    }

    /// Copies the states of one page to another, in all layers.
    ///
    /// # Errors
    /// `Shape` for pages that do not exist; those of the device.
    pub fn copy(&self, from: u32, to: u32) -> Result<()> {
        no_grad(|| self.states.copy(from as usize, to as usize))
    }

    /// Returns the truncation state of a new text.
    pub fn reach(&self) -> Reach {
        self.states.reach()
    }

    /// Returns the shortest length of a text with the same rotary angles as one of `length` tokens. Only texts with the same value can be in one
    /// step.
    pub fn class_of_length(&self, length: usize) -> usize {
        *lengths(&self.decoder.config.rotary, length).start()
    }

    /// Checks that a text has pages for its first `end` tokens.
    fn check(&self, pages: &[u32], end: usize) -> Result<()> {
        let wrong = pages.iter().find(|page| **page as usize >= self.count);
        if end > self.longest()
            || pages.len() * self.states.page() < end
            || pages.len() > self.most
            || wrong.is_some()
        {
            return Err(Error::shape(format!(
                "decoder: {end} tokens in pages {pages:?} of {}, at most {} tokens in pages below {}",
                self.states.page(),
                self.longest(),
                self.count
            )));
        }
        Ok(())
    }

    /// Takes `ids` after the first `start` tokens of a text with these pages → logits (V) after the last of them. Rotary angles are those of a text
    /// of `length` tokens, of which these are a part.
    ///
    /// # Errors
    /// `Shape` for no tokens or too few pages; device errors.
    pub fn read(&self, ids: &[u32], start: usize, pages: &[u32], length: usize) -> Result<Tensor> {
        let x = self.fill(ids, start, pages, length)?;
        let decoder = self.decoder;
        no_grad(|| {
            let x = x.slice(1, ids.len() - 1..ids.len())?.reshape([1, decoder.config.width])?;
            let last = decoder.last()?;
            last.logits(&last.normed(&x)?)?.reshape([decoder.config.vocab])
        })
    }

    /// Does the same without logits → input of the last norm (1, T, C).
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub fn fill(&self, ids: &[u32], start: usize, pages: &[u32], length: usize) -> Result<Tensor> {
        let end = start.saturating_add(ids.len());
        let length = length.clamp(end, self.decoder.config.context.max(end));
        self.check(pages, end)?;
        if ids.is_empty() {
            return Err(Error::shape("decoder: no tokens to read"));
        }
        let ids = Tensor::from_u32(self.decoder.params.device(), [1, ids.len()], ids)?;
        no_grad(|| self.decoder.passed(&ids, (start, length), self.states.layers(), Some(pages)))
    }

    /// Enqueues `steps` steps of these texts. The first takes T tokens of each text and samples one after each of them. Each further step takes the
    /// token that the previous one sampled, so T is then 1. If no text of a single step has random words, nothing is sampled.
    ///
    /// # Errors
    /// `Shape` for texts that do not fit their pages, one step, or [each other](Self::class_of_length); device errors.
    pub fn queue(&mut self, lines: &[Line<'_>], steps: usize) -> Result<Pending> {
        let tokens = lines.first().map_or(0, |line| line.tokens.len());
        if !lines.iter().all(|line| line.tokens.len() == tokens) {
            return Err(Error::shape("decoder: texts with different numbers of tokens in one step"));
        }
        self.enqueue(lines, (tokens, steps), None)
    }

    /// Returns true if steps can be enqueued without waiting after steps whose tokens the host does not know yet: layers are on one device.
    pub fn queues_behind(&self) -> bool {
        self.decoder.stages.len() == 1
    }

    /// Enqueues `steps` further steps of the texts of `before`. Those must be the last enqueued steps of their size and have sampled one token each:
    /// each text continues with its last one. `lines` are those texts in that order, at the start positions of these steps.
    ///
    /// # Errors
    /// Same as [`queue`](Self::queue); `Shape` after other steps.
    pub fn queue_behind(&mut self, before: &Pending, lines: &[Line<'_>], steps: usize) -> Result<Pending> {
        let last = self.classes.get(&before.key).map(|class| class.count);
        let end = before.count.wrapping_add(before.steps as u32);
        if last != Some(end) || before.event.is_none() || before.lines != lines.len() || before.key.1 != 1 {
            return Err(Error::shape("decoder: the preceding steps are not the last ones of these texts"));
        }
        self.enqueue(lines, (1, steps), Some(before.key))
    }

    /// Enqueues steps of `tokens` tokens; `behind` others of this size, or with tokens that the host knows.
    fn enqueue(
        &mut self,
        lines: &[Line<'_>],
        (tokens, steps): (usize, usize),
        behind: Option<Key>,
    ) -> Result<Pending> {
        let choosing = steps > 1 || lines.iter().any(|line| !line.words.is_empty());
        let words = if choosing { steps * tokens } else { 0 };
        let even = |line: &Line<'_>| line.words.len() == words;
        if tokens == 0 || steps == 0 || (tokens > 1 && steps > 1) || !lines.iter().all(even) {
            return Err(Error::shape(format!(
                "decoder: {steps} steps of {tokens} tokens, or texts with other numbers of tokens"
            )));
        }
        let mut range = 0..=usize::MAX;
        for line in lines {
            let end = line.position.saturating_add(tokens + steps - 1);
            self.check(line.pages, end)?;
            let own = lengths(&self.decoder.config.rotary, end);
            range = *range.start().max(own.start())..=*range.end().min(own.end());
        }
        if range.is_empty() {
            return Err(Error::shape("decoder: texts of lengths with different rotary angles in one step"));
        }
        let key = (class_of(lines.len()), tokens, *range.start());
        if behind.is_some_and(|behind| behind != key) {
            return Err(Error::shape(
                "decoder: cannot enqueue: the steps already enqueued use different rotary angles",
            ));
        }
        if !self.classes.contains_key(&key) {
            let class = self.class(key, lines, steps)?;
            self.classes.insert(key, class);
        }
        let (decoder, states, most) = (self.decoder, self.states.layers(), self.most);
        let bias = &self.bias;
        let class = self.classes.get_mut(&key).ok_or_else(|| Error::internal("a step without its class"))?;
        let behind = behind.is_some();
        class.begin((lines, behind), key, (steps, most, decoder.config.vocab), |texts, candidates| {
            Chooser::by_text(decoder.last_device(), texts, candidates, bias.clone()).map(Arc::new)
        })?;
        let store = Stores { states, pages: Some(&class.tables), texts: key.0 };
        for _ in 0..steps {
            class.logits = Some(match choosing {
                true => class.steps.next(decoder, store, &class.choosers[class.chosen].by)?,
                false => class.steps.advance(decoder, store)?,
            });
        }
        let device = decoder.last_device();
        let event = if choosing { Some(device.mark()?) } else { None };
        let pending = Pending { key, event, count: class.count, steps, lines: lines.len() };
        if choosing {
            device.flush()?;
        }
        class.count = class.count.wrapping_add(if choosing { steps as u32 } else { 0 });
        Ok(pending)
    }

    fn class(&mut self, (texts, tokens, start): Key, lines: &[Line<'_>], steps: usize) -> Result<Class> {
        let decoder = self.decoder;
        if !self.angles.contains_key(&start) {
            let length = lines.iter().map(|line| line.position + tokens + steps - 1).max().unwrap_or(1);
            let sets = &decoder.config.rotary;
            let rows = self.most * self.states.page();
            let of = |device: &Device| sets.iter().map(|set| set.rows(device, rows, length)).collect();
            let angles = decoder.stages.iter().map(|stage| of(stage.device())).collect::<Result<_>>()?;
            self.angles.insert(start, (lengths(sets, length), angles));
        }
        let (range, angles) =
            self.angles.get(&start).cloned().ok_or_else(|| Error::internal("steps without angles"))?;
        let empty = vec![0; texts * self.most];
        let table = |device: &Device| Tensor::from_u32(device, [texts, self.most], &empty);
        let tables = decoder.stages.iter().map(|stage| table(stage.device())).collect::<Result<_>>()?;
        let chooser = Chooser::by_text(decoder.last_device(), texts * tokens, 1, self.bias.clone())?;
        Ok(Class {
            steps: Steps::ragged(decoder, (texts, tokens), &angles, range)?,
            tables,
            lines: vec![Vec::new(); texts],
            choosers: vec![Choosing { by: Arc::new(chooser), rules: vec![Rules::greedy(); texts * tokens] }],
            chosen: 0,
            count: 0,
            logits: None,
        })
    }

    /// Returns the sampled tokens of each text, T per step. Waits only for these steps, not for later ones. Only the last 128 steps of a size can be
    /// read, and only steps that sampled.
    ///
    /// # Errors
    /// Device errors. Invalid logits are encoded in the tokens: see [`check_token`](crate::model::check_token).
    pub fn sampled(&self, pending: &Pending) -> Result<Vec<Vec<u32>>> {
        let (texts, tokens, _) = pending.key;
        let Some(event) = &pending.event else {
            return Err(Error::internal("tokens of a step that did not sample any"));
        };
        let all = self.of(pending)?.steps.texts()?.made_after(event, pending.count, pending.steps)?;
        let of = |line: usize| {
            let steps = all.chunks(texts * tokens);
            steps.flat_map(|step| &step[line * tokens..(line + 1) * tokens]).copied().collect()
        };
        Ok((0..pending.lines).map(of).collect())
    }

    /// Returns the logits (V) after token `t` of a text in the last of these steps. No other step of the same size may have been enqueued since.
    ///
    /// # Errors
    /// `Shape` for a text or a token that was not in the step; device errors.
    pub fn logits(&self, pending: &Pending, line: usize, t: usize) -> Result<Vec<f32>> {
        let row = line * pending.key.1 + t;
        let logits =
            self.of(pending)?.logits.as_ref().ok_or_else(|| Error::internal("a step without logits"))?;
        logits.slice(0, row..row + 1)?.to_vec()
    }

    /// Sets the execution mode of steps in one launch.
    #[cfg(test)]
    pub(super) fn run_by(&mut self, text: netcl_tensor::ops::decode_step::WeightPath) {
        self.classes.values_mut().for_each(|class| class.steps.run_by(text));
    }
    /// Returns the launches of a captured step without sampling.
    #[cfg(test)]
    pub(super) fn stage_launches(&self) -> Option<usize> {
        self.classes.values().find_map(|class| class.steps.stage_launches())
    }

    fn of(&self, pending: &Pending) -> Result<&Class> {
        self.classes.get(&pending.key).ok_or_else(|| Error::internal("a step without its class"))
    }

    /// Returns the number of sampling steps so far with this many texts and one token.
    pub fn steps(&self, texts: usize) -> usize {
        let of = self.classes.iter().filter(|(key, _)| key.0 == class_of(texts) && key.1 == 1);
        of.map(|(_, class)| class.count as usize).sum()
    }

    /// Returns the launches of a captured step with this many texts and one token; `None` before it is captured.
    pub fn launches(&self, texts: usize) -> Option<usize> {
        let mut classes = self.classes.iter();
        classes.find(|(key, _)| key.0 == class_of(texts) && key.1 == 1)?.1.steps.launches()
    }
}

impl Class {
    /// Uploads tokens, positions, pages, rules and random words of a run, if they are not already on the device; with `behind`, tokens and positions
    /// are.
    fn begin(
        &mut self,
        (lines, behind): (&[Line<'_>], bool),
        (texts, tokens, _): Key,
        (steps, most, vocab): (usize, usize, usize),
        chooser: impl Fn(usize, usize) -> Result<Arc<Chooser>>,
    ) -> Result<()> {
        let (rows, greedy) = (texts * tokens, Rules::greedy());
        let mut ids = vec![0; rows];
        let mut places = vec![NOWHERE; texts];
        let mut words = vec![0; steps * rows];
        let mut rules = vec![&greedy; rows];
        for (b, line) in lines.iter().enumerate() {
            if !behind {
                ids[b * tokens..][..tokens].copy_from_slice(line.tokens);
            }
            places[b] = u32::try_from(line.position).unwrap_or(NOWHERE);
            rules[b * tokens..][..tokens].fill(line.rules);
            for (step, own) in line.words.chunks(tokens).enumerate() {
                words[step * rows + b * tokens..][..tokens].copy_from_slice(own);
            }
            if self.lines[b] != line.pages {
                let same = self.lines[b].iter().zip(line.pages).take_while(|(a, b)| a == b).count();
                let (from, to) = (b * most + same, b * most + line.pages.len());
                if from < to {
                    for table in &self.tables {
                        let part = table.reshape([table.count()])?.slice(0, from..to)?;
                        part.set_bytes(bytemuck::cast_slice(&line.pages[same..]))?;
                    }
                }
                self.lines[b] = line.pages.to_vec();
            }
        }
        let wanted = rules.iter().filter_map(|r| r.candidates(vocab)).max().unwrap_or(1);
        self.chosen = self.choosers.partition_point(|known| known.by.candidates() < wanted);
        if self.chosen == self.choosers.len() {
            // With a reserve, which limits the number of different sizes.
            let by = chooser(rows, wanted.next_power_of_two().max(64))?;
            self.choosers.push(Choosing { by, rules: vec![greedy.clone(); rows] });
        }
        let Choosing { by, rules: known } = &mut self.choosers[self.chosen];
        if known.iter().zip(&rules).any(|(a, b)| a != *b) {
            by.set(&rules, vocab)?;
            *known = rules.into_iter().cloned().collect();
        }
        if !behind {
            self.steps.set_each(&ids, &places)?;
        }
        self.steps.texts()?.set_words(self.count, &words)
    }
}
