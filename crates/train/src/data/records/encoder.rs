//! Tokens of examples, and which of them are trained.

use super::comparison::Comparison;
use super::example::Example;
use super::kind::RecordKind;
use super::set::{DESIRABLE, FIRST, REJECTED, TRAINED};
use netcl_device::{Error, Result};
use netcl_llm::answers::{AnswerMasks, Answers, Dialogue, TrainedToken, overlaps};
use netcl_llm::template::{Template, Templates};
use netcl_llm::tokenizer::{Specials, Tokenizer};
use std::ops::Range;
use std::path::Path;

/// Templates by name, with the control tokens that they need; the last one ends an answer.
const BUILTIN: [(&str, &str, &[&str]); 2] = [
    (
        "chatml",
        "{%- for message in messages %}\n\
         {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n\
         {%- endfor %}\n\
         {%- if add_generation_prompt %}\n\
         {{- '<|im_start|>assistant\\n' }}\n\
         {%- endif %}\n",
        &["<|im_start|>", "<|im_end|>"],
    ),
    (
        "llama3",
        "{{- bos_token }}\n\
         {%- for message in messages %}\n\
         {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}\n\
         {%- endfor %}\n\
         {%- if add_generation_prompt %}\n\
         {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n\
         {%- endif %}\n",
        &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    ),
];

/// Returns the text of a chat template that netcl knows by name: `chatml` or `llama3`.
pub fn builtin_template(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, ..)| *known == name).map(|(_, text, _)| *text)
}

/// The tokenizer and the chat template of a model, for records.
#[derive(Debug)]
pub struct RecordTokenizer {
    tokenizer: Tokenizer,
    templates: Templates,
    answers: Answers,
    given: Option<GivenTemplate>,
    /// Whether conversations get the begin token if the template omits it.
    begins: bool,
    kind: RecordKind,
    /// The text of `tokenizer.json`, as it is used.
    file: String,
}

/// A template that the user named, which checkpoints must contain.
#[derive(Clone, Debug)]
pub struct GivenTemplate {
    /// Its source.
    pub text: String,
    /// The token that ends an answer, if it is known.
    pub stop: Option<u32>,
}

impl RecordTokenizer {
    /// Opens the tokenizer of a model's folder and its chat template, or another one: `chat_template` is `chatml`, `llama3` or a file. `answers` says
    /// which messages are trained.
    ///
    /// # Errors
    /// `Io` or `Format`; the message names the file, or the control token that the tokenizer lacks.
    pub fn open(folder: &Path, chat_template: Option<&str>, answers: Answers) -> Result<Self> {
        let tokenizer = Tokenizer::from_folder(folder)?;
        let file = netcl_model::tokenizer::Tokenizer::text_of_dir(folder)?;
        let Some(name) = chat_template else {
            let templates = Templates::from_folder(folder)?;
            let kind = RecordKind::default();
            return Ok(Self { tokenizer, templates, answers, given: None, begins: false, kind, file });
        };
        let builtin = BUILTIN.iter().find(|(known, ..)| *known == name);
        let (text, stop) = match builtin {
            Some((_, text, tokens)) => {
                if let Some(lacks) = tokens.iter().find(|token| tokenizer.id(token).is_none()) {
                    return Err(Error::format(format!(
                        "--chat-template {name}: the tokenizer of {} does not have the token {lacks}; write a template of tokens that it has to a file, and name \
                         it with --chat-template",
                        folder.display()
                    )));
                }
                ((*text).to_owned(), tokens.last().and_then(|token| tokenizer.id(token)))
            }
            None => {
                let path = Path::new(name);
                let text = netcl_device::files::read_text(path);
                let text = text.map_err(|e| Error::io("reading", path, &e).context("--chat-template"))?;
                (text, None)
            }
        };
        let templates =
            Templates::new([("default", text.as_str())]).map_err(|e| e.context("--chat-template"))?;
        let given = Some(GivenTemplate { text, stop });
        let kind = RecordKind::default();
        Ok(Self { tokenizer, templates, answers, given, begins: false, kind, file })
    }

    /// Adds the begin token to conversations whose template omits it: for the model of a GGUF file, which gets it in chats.
    #[must_use]
    pub fn beginning(self, begins: bool) -> Self {
        Self { begins, ..self }
    }

    /// Returns the same for records of another kind.
    #[must_use]
    pub fn for_kind(self, kind: RecordKind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the kind of records.
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Returns the template that the user named.
    pub fn given(&self) -> Option<&GivenTemplate> {
        self.given.as_ref()
    }

    /// Returns whether there is a chat template.
    pub fn has_template(&self) -> bool {
        self.templates.get(None, false).is_ok()
    }

    /// Returns the text of a token, for messages; control tokens have their names.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary.
    pub fn text(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode_all(ids)
    }

    /// Returns the text of the tokenizer's file.
    pub(super) fn file(&self) -> &[u8] {
        self.file.as_bytes()
    }

    /// Returns everything on which the tokens of records depend, except the tokenizer's file.
    pub(super) fn key(&self) -> Vec<u8> {
        let text = |tools| self.templates.get(None, tools).map_or("", Template::text);
        let begins = if self.begins { "\0begins" } else { "" };
        let (answers, kind) = (self.answers, self.kind.code());
        format!("{answers:?}\0{kind}\0{:?}\0{}\0{}{begins}", self.tokenizer.eos(), text(false), text(true))
            .into_bytes()
    }

    /// Creates an encoder.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub(super) fn encoder(&self) -> Result<RecordEncoder<'_>> {
        let masks = |tools| self.templates.get(None, tools).ok();
        let masks = [false, true]
            .map(masks)
            .map(|t| t.map(|t| AnswerMasks::new(&self.tokenizer, t)?.beginning(self.begins)).transpose());
        let [plain, tools] = masks;
        Ok(RecordEncoder { of: self, masks: [plain?, tools?] })
    }
}

/// Why an example is not encoded.
pub(super) enum Refused {
    /// The example is wrong.
    Example(String),
    /// No example of the kind can be encoded.
    All(Error),
}

/// An id with its place in the text, if it has one.
type PlacedToken = (u32, Option<Range<usize>>);

/// Converts examples to tokens.
pub(super) struct RecordEncoder<'a> {
    of: &'a RecordTokenizer,
    /// Without and with functions that the model may call.
    masks: [Option<AnswerMasks<'a>>; 2],
}

impl RecordEncoder<'_> {
    /// Returns the tokens of an example with the bits of [`RecordSet`](super::RecordSet); several sequences if it compares answers.
    pub fn words(&self, example: &Example) -> Result<Vec<u32>, Refused> {
        let kind = self.of.kind;
        let sequences = match (example, kind) {
            (Example::Pair(comparison), RecordKind::Pairs { .. }) => self.compared(comparison)?,
            (Example::Labeled(comparison, desirable), RecordKind::Labeled { .. }) => {
                let label = if *desirable { DESIRABLE } else { 0 };
                return Ok(self.compared(comparison)?.iter().flat_map(|s| words_of(s, label)).collect());
            }
            (Example::Pair(comparison), RecordKind::Labeled { .. }) => {
                let both = self.compared(comparison)?.into_iter().zip([DESIRABLE, REJECTED]);
                return Ok(both.flat_map(|(s, label)| words_of(&s, label)).collect());
            }
            (Example::Pair(_), _) => {
                return Err(unfit(
                    "preference pairs (chosen and rejected)",
                    "dpo, ipo, simpo, orpo or kto",
                    kind,
                ));
            }
            (Example::Labeled(..), _) => return Err(unfit("completions with a label", "kto", kind)),
            (_, RecordKind::Answers) => vec![self.encode(example)?],
            _ => return Err(unfit("records with one answer and no label", "sft", kind)),
        };
        match sequences.iter().any(Vec::is_empty) {
            true => Err(Refused::Example("the record is empty".into())),
            false => Ok(sequences.iter().flat_map(|s| words_of(s, 0)).collect()),
        }
    }

    /// Returns the tokens of a prompt with each of its answers. The answers begin with the first token that is not that of the prompt alone, as in TRL.
    fn compared(&self, comparison: &Comparison) -> Result<Vec<Vec<TrainedToken>>, Refused> {
        let wrong = |e: Error| Refused::Example(e.message().to_owned());
        let both = match comparison {
            Comparison::Dialogues(all) => {
                let one = |dialogue: &Dialogue| {
                    let masks = self.masks(dialogue)?;
                    masks.prompt_and_whole(dialogue).map_err(wrong)
                };
                all.iter().map(one).collect::<Result<Vec<_>, _>>()?
            }
            Comparison::Texts { prompt, answers } => {
                let start = self.text(prompt)?.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
                let one = |answer: &String| {
                    let whole = self.plain(prompt, answer)?.into_iter().map(|(id, _)| id).collect();
                    Ok([start.clone(), whole])
                };
                answers.iter().map(one).collect::<Result<Vec<_>, _>>()?
            }
        };
        let shared =
            |[start, whole]: &[Vec<u32>; 2]| start.iter().zip(whole).take_while(|(a, b)| a == b).count();
        let start = both.iter().map(shared).min().unwrap_or(0);
        let masked = |[_, whole]: [Vec<u32>; 2]| {
            whole.into_iter().enumerate().map(|(at, id)| (id, at >= start)).collect::<Vec<_>>()
        };
        Ok(both.into_iter().map(masked).collect())
    }

    /// Returns the converter of a conversation.
    fn masks(&self, dialogue: &Dialogue) -> Result<&AnswerMasks<'_>, Refused> {
        self.masks[usize::from(dialogue.tools.is_some())].as_ref().ok_or_else(|| {
            Refused::All(Error::format(
                "the model does not have a chat template, which conversations need: name one with --chat-template chatml, llama3 or a file",
            ))
        })
    }

    /// Returns the tokens of an example, and whether each is trained.
    fn encode(&self, example: &Example) -> Result<Vec<TrainedToken>, Refused> {
        let wrong = |e: Error| Refused::Example(e.message().to_owned());
        match example {
            Example::Dialogue(dialogue) => {
                self.masks(dialogue)?.encode(dialogue, self.of.answers).map_err(wrong)
            }
            Example::Alpaca { dialogue, prompt, completion } => match &self.masks[0] {
                Some(masks) => masks.encode(dialogue, self.of.answers).map_err(wrong),
                None => self.plain(prompt, completion),
            },
            Example::Completion { prompt, completion } => self.plain(prompt, completion),
            Example::Text(text) => self.plain("", text),
            Example::Pair(_) | Example::Labeled(..) => {
                Err(Refused::All(Error::internal("answers to compare are encoded together")))
            }
        }
    }

    /// Returns the tokens of a prompt and the text after it: the tokenizer's begin token, once, and the end token.
    fn plain(&self, prompt: &str, text: &str) -> Result<Vec<TrainedToken>, Refused> {
        let tokenizer = &self.of.tokenizer;
        let eos = tokenizer.eos().ok_or_else(|| {
            Refused::All(Error::format(
                "the tokenizer does not have an end token, which ends each record; tokenizer_config.json names it as eos_token",
            ))
        })?;
        let whole = format!("{prompt}{text}");
        let span = match self.of.answers {
            Answers::Everything => 0..whole.len(),
            Answers::All | Answers::Last => prompt.len()..whole.len(),
        };
        let ids = self.text(&whole)?.into_iter();
        let mut tokens: Vec<_> =
            ids.map(|(id, at)| (id, at.is_some_and(|at| overlaps(&at, &span)))).collect();
        match tokens.last_mut() {
            Some((last, trained)) if *last == eos => *trained = true,
            _ => tokens.push((eos, true)),
        }
        Ok(tokens)
    }

    /// Returns the tokens of a text. The tokenizer's begin token comes first, once, and without a place in the text.
    fn text(&self, text: &str) -> Result<Vec<PlacedToken>, Refused> {
        let tokenizer = &self.of.tokenizer;
        let ids = tokenizer.encode_with_ranges(text, Specials::Parsed);
        let ids = ids.map_err(|e| Refused::Example(e.message().to_owned()))?;
        let before = tokenizer.affixes().0;
        let begins = ids.iter().map(|(id, _)| id).take(before.len()).eq(before);
        let added = before.iter().filter(|_| !begins).map(|id| (*id, None));
        Ok(added.chain(ids.into_iter().map(|(id, at)| (id, Some(at)))).collect())
    }
}

/// Returns the error for records that another objective needs.
fn unfit(found: &str, objectives: &str, kind: RecordKind) -> Refused {
    Refused::Example(format!(
        "{found} fit --objective {objectives}; this run's objective needs {}",
        kind.keys()
    ))
}

/// Returns the words of a sequence; `label` has bits of its first token.
fn words_of(tokens: &[TrainedToken], label: u32) -> Vec<u32> {
    let first = |at: usize| if at == 0 { FIRST | label } else { 0 };
    let trained = |trained: bool| if trained { TRAINED } else { 0 };
    tokens.iter().enumerate().map(|(at, (id, is))| id | first(at) | trained(*is)).collect()
}
