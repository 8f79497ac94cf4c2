//! `POST /v1/completions`: continues texts without a chat template.

use super::format::missing;
use super::{Generation, Head, aside, harmless};
use crate::app::App;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::{Fields, wrong};
use crate::logprobs::Words;
use crate::model::Loaded;
use crate::piece::{NewTokens, SequenceEnd, Token};
use crate::sampling_params::SamplingParams;
use crate::stream::{Event, Framing, Totals, Wire, collect, finish_reason, respond};
use axum::http::StatusCode;
use axum::response::Response;
use netcl::llm::engine::is_longer;
use netcl::llm::tokenizer::Specials;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 128;
/// Maximum number of most likely tokens that are listed.
const MAX_LISTED: usize = 5;

/// A prompt in the form it was sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens.
    Ids(Vec<u32>),
}

impl Prompt {
    /// Returns its tokens. Names of control tokens in a text are ordinary text.
    ///
    /// # Errors
    /// 400 for a text that the vocabulary cannot encode or that is much longer than the context, or a model without a tokenizer.
    pub fn ids(&self, model: &Loaded, param: &str) -> ApiResult<Vec<u32>> {
        match self {
            Self::Ids(ids) => Ok(ids.clone()),
            Self::Text(text) => {
                let (tokenizer, longest) = (&model.text()?.tokenizer, model.about.longest);
                let wrong = |e| ApiError::of_field(param, &e);
                let count = |part: &str| tokenizer.encode(part, Specials::Plain).map(|ids| ids.len());
                if is_longer(text, longest, count).map_err(wrong)? {
                    return Err(ApiError::long_context(longest, param));
                }
                tokenizer.encode_prompt(text, Specials::Plain).map_err(wrong)
            }
        }
    }
}

/// Parses a text, tokens, or a list of either.
///
/// # Errors
/// 400 with the field name.
pub fn prompts(value: Option<Value>, param: &str, most: usize) -> ApiResult<Vec<Prompt>> {
    let expected = "a string, an array of strings, an array of token ids or an array of those";
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = |list: &[Value]| list.iter().map(id).collect::<Option<Vec<u32>>>();
    let all: Vec<Prompt> = match value {
        None => return Err(missing(param)),
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            let ids = ids(&list);
            vec![Prompt::Ids(
                ids.ok_or_else(|| ApiError::field(param, format!("{param}: expected {expected}")))?,
            )]
        }
        Some(Value::Array(list)) => {
            let one = |value: &Value| match value {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(list) => ids(list).map(Prompt::Ids).ok_or_else(|| wrong(param, value, expected)),
                other => Err(wrong(param, other, expected)),
            };
            list.iter().map(one).collect::<ApiResult<_>>()?
        }
        Some(other) => return Err(wrong(param, &other, expected)),
    };
    match all.len() {
        n if (1..=most).contains(&n) => Ok(all),
        n => Err(ApiError::field(param, format!("{param} has {n} entries, expected 1 to {most}"))),
    }
}

struct CompletionRequest {
    model: Option<String>,
    prompts: Vec<Prompt>,
    params: SamplingParams,
    echo: bool,
    stream: bool,
    usage: bool,
}

fn asked(mut fields: Fields) -> ApiResult<CompletionRequest> {
    let mut params = SamplingParams::take(&mut fields)?;
    let model = fields.text("model")?;
    let prompts = prompts(fields.any("prompt"), "prompt", MAX_PROMPTS)?;
    // OpenAI's default since the first version of this interface.
    params.max = Some(fields.whole("max_tokens", 1, usize::MAX)?.unwrap_or(16));
    params.logprobs = fields.whole("logprobs", 0, MAX_LISTED)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && params.logprobs.is_some() {
        return Err(ApiError::field(
            "echo",
            "echo: the probabilities of a prompt's tokens are not available; omit logprobs",
        ));
    }
    fields.only("best_of", &params.choices.into())?;
    let (stream, usage) = super::streaming(&mut fields)?;
    harmless(&mut fields)?;
    fields.end()?;
    Ok(CompletionRequest { model, prompts, params, echo, stream, usage })
}

/// Continues prompts.
///
/// # Errors
/// 400 for an invalid request, 404, 429, 503.
pub async fn complete(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let CompletionRequest { model, prompts, params, echo, stream, usage } = asked(Fields::of_body(body)?)?;
    let choices = params.choices;
    let texts = choices * prompts.len();
    let own = prompts.clone();
    let Generation { model, running } =
        Generation::begin(app, request, model.as_deref(), [choices, texts], false, move |model, _| {
            own.iter().map(|prompt| params.job(model, prompt.ids(model, "prompt")?, None, "prompt")).collect()
        })
        .await?;
    let shown = match echo {
        true => {
            let own = Arc::clone(&model);
            aside(app, move || {
                prompts.iter().map(|prompt| echoed(&own, prompt)).collect::<ApiResult<Vec<_>>>()
            })
            .await?
        }
        false => vec![String::new(); prompts.len()],
    };
    let head = Head::new("cmpl-", &model);
    let words = Words(model.text().ok().map(|text| Arc::clone(&text.tokenizer)));
    if stream {
        let wire = CompletionWire { head, words, usage, shown, choices, offsets: vec![0; texts] };
        return Ok(respond(running, wire, Framing::Openai, choices));
    }
    let mut all: Vec<CompleteText> = (0..texts)
        .map(|at| CompleteText { text: shown[at / choices].clone(), ..CompleteText::default() })
        .collect();
    let totals = collect(running, choices, |piece| {
        if let Some(whole) = all.get_mut(piece.choice) {
            whole.add(piece);
        }
    })
    .await?;
    let all: Vec<Value> = all.into_iter().enumerate().map(|(at, whole)| whole.json(at, &words)).collect();
    let mut answer = head.object("text_completion");
    answer.insert("choices".into(), all.into());
    answer.insert("usage".into(), totals.usage());
    answer.insert("timings".into(), totals.timings());
    Ok(json_response(StatusCode::OK, &answer.into()))
}

/// Returns a prompt in the form in which it is repeated before its answer.
fn echoed(model: &Loaded, prompt: &Prompt) -> ApiResult<String> {
    match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => model.text()?.tokenizer.decode(ids).map_err(|e| ApiError::of_field("prompt", &e)),
    }
}

#[derive(Default)]
struct CompleteText {
    text: String,
    tokens: Vec<Token>,
    finish: &'static str,
}

impl CompleteText {
    fn add(&mut self, piece: NewTokens) {
        self.text.push_str(&piece.text);
        if piece.tokens.iter().any(|token| token.logprobs.is_some()) {
            self.tokens.extend(piece.tokens);
        }
        if let Some(SequenceEnd::Done(finish, _)) = &piece.end {
            self.finish = finish_reason(finish);
        }
    }

    fn json(self, index: usize, words: &Words) -> Value {
        let known = !self.tokens.is_empty();
        let logprobs = if known { words.of_completion(&self.tokens, &mut 0) } else { Value::Null };
        json!({ "text": self.text, "index": index, "logprobs": logprobs, "finish_reason": self.finish })
    }
}

struct CompletionWire {
    head: Head,
    words: Words,
    usage: bool,
    /// The repeated text before the answers to each prompt.
    shown: Vec<String>,
    choices: usize,
    /// Number of characters of each sequence whose tokens were sent.
    offsets: Vec<usize>,
}

impl CompletionWire {
    fn event(&self, choices: Value, usage: Value) -> Event {
        let mut chunk = self.head.object("text_completion");
        chunk.insert("choices".into(), choices);
        if self.usage {
            chunk.insert("usage".into(), usage);
        }
        Event::of(chunk.into())
    }
}

impl Wire for CompletionWire {
    fn begin(&mut self) -> Vec<Event> {
        let choices = self.choices;
        let echoed = self.shown.iter().enumerate().filter(|(_, text)| !text.is_empty());
        let each = echoed.flat_map(|(at, text)| (0..choices).map(move |n| (at * choices + n, text)));
        let event = |(index, text): (usize, &String)| {
            let choice = json!({ "text": text, "index": index, "logprobs": null, "finish_reason": null });
            self.event(json!([choice]), Value::Null)
        };
        each.map(event).collect()
    }

    fn piece(&mut self, piece: &NewTokens) -> Vec<Event> {
        let finish = match &piece.end {
            Some(SequenceEnd::Done(finish, _)) => Some(finish_reason(finish)),
            _ => None,
        };
        let known = piece.tokens.iter().any(|token| token.logprobs.is_some());
        let logprobs = match self.offsets.get_mut(piece.choice).filter(|_| known) {
            Some(offset) => self.words.of_completion(&piece.tokens, offset),
            None => Value::Null,
        };
        if piece.text.is_empty() && finish.is_none() && !known {
            return Vec::new();
        }
        let choice = json!({ "text": piece.text, "index": piece.choice, "logprobs": logprobs, "finish_reason": finish });
        vec![self.event(json!([choice]), Value::Null)]
    }

    fn end(&mut self, totals: &Totals) -> Vec<Event> {
        if !self.usage {
            return Vec::new();
        }
        let mut event = self.event(json!([]), totals.usage());
        event.data["timings"] = totals.timings();
        vec![event]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_in_four_forms() {
        let of = |value: Value| prompts(Some(value), "prompt", MAX_PROMPTS);
        assert_eq!(of(json!("a")), Ok(vec![Prompt::Text("a".into())]));
        assert_eq!(of(json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(of(json!([1, 2])), Ok(vec![Prompt::Ids(vec![1, 2])]));
        assert_eq!(of(json!([[1], [2, 3]])), Ok(vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]));
        for wrong in [json!([]), json!(3), json!([1, "a"]), json!([-1]), json!([[1.5]]), json!({})] {
            assert_eq!(of(wrong).unwrap_err().param.as_deref(), Some("prompt"));
        }
        assert_eq!(prompts(None, "input", 1).unwrap_err().code, Some("missing_required_parameter"));
    }
}
