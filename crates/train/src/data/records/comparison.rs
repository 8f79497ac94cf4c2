//! Records that compare answers: preference pairs, and answers with a label.

use super::fields::{dialogue, get, text};
use super::messages::{self, unpacked};
use netcl_llm::answers::Dialogue;
use serde_json::{Map, Value};

/// A prompt with one or two answers.
#[derive(Clone, Debug)]
pub(super) enum Comparison {
    /// Conversations that begin with the prompt's messages.
    Dialogues(Vec<Dialogue>),
    /// Texts.
    Texts { prompt: String, answers: Vec<String> },
}

/// Reads `chosen` and `rejected`, with `prompt` or with the prompt at the beginning of both, as TRL does.
///
/// # Errors
/// The key that is missing or has another type than expected.
pub(super) fn pair(record: &Map<String, Value>) -> Result<Comparison, String> {
    let part = |key: &str| get(record, key).map(unpacked).ok_or_else(|| format!("`{key}` is missing"));
    let prompt = get(record, "prompt").map(unpacked);
    match (prompt, part("chosen")?, part("rejected")?) {
        (None, Value::Array(chosen), Value::Array(rejected)) => {
            let shared = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b).count();
            let shared = shared.min((chosen.len().min(rejected.len())).saturating_sub(1));
            let prompt = chosen.iter().take(shared).cloned().collect();
            let rest = |all: Vec<Value>| all.into_iter().skip(shared).collect();
            dialogues(record, prompt, vec![("chosen", rest(chosen)), ("rejected", rest(rejected))])
        }
        (Some(Value::Array(prompt)), Value::Array(chosen), Value::Array(rejected)) => {
            dialogues(record, prompt, vec![("chosen", chosen), ("rejected", rejected)])
        }
        (prompt, chosen, rejected) => {
            let lists = |value: &Value| value.is_array();
            if lists(&chosen) || lists(&rejected) || prompt.as_ref().is_some_and(lists) {
                return Err(
                    "`prompt`, `chosen` and `rejected` must all be texts, or all lists of messages; without `prompt` it is the beginning of both".into(),
                );
            }
            let (chosen, rejected) = (text(record, "chosen")?, text(record, "rejected")?);
            let prompt = get(record, "prompt").map(|_| text(record, "prompt")).transpose()?;
            Ok(match prompt {
                Some(prompt) => Comparison::Texts { prompt, answers: vec![chosen, rejected] },
                None => {
                    let shared = shared_text(&chosen, &rejected);
                    let answers = vec![chosen[shared..].to_owned(), rejected[shared..].to_owned()];
                    Comparison::Texts { prompt: chosen[..shared].to_owned(), answers }
                }
            })
        }
    }
}

/// Returns the bytes of the common beginning of two texts. A space at its end belongs to the answers, and each answer has at least one character.
fn shared_text(a: &str, b: &str) -> usize {
    let differs = a.chars().zip(b.chars()).position(|(c, d)| c != d);
    let count = match differs {
        Some(at) if at > 0 && a.chars().nth(at - 1) == Some(' ') => at - 1,
        Some(at) => at,
        None => a.chars().count().min(b.chars().count()).saturating_sub(1),
    };
    a.chars().take(count).map(char::len_utf8).sum()
}

/// Reads `prompt`, `completion` and `label`.
///
/// # Errors
/// The key that is missing or has another type than expected.
pub(super) fn labeled(record: &Map<String, Value>) -> Result<(Comparison, bool), String> {
    let desirable = match get(record, "label") {
        Some(Value::Bool(label)) => *label,
        Some(Value::Number(number)) if number.as_f64() == Some(1.0) => true,
        Some(Value::Number(number)) if number.as_f64() == Some(0.0) => false,
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") || word == "1" => true,
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") || word == "0" => false,
        Some(_) => return Err("`label` is not true or false".into()),
        None => return Err("`label` is missing".into()),
    };
    let part = |key: &str| get(record, key).map(unpacked).ok_or_else(|| format!("`{key}` is missing"));
    let comparison = match (part("prompt")?, part("completion")?) {
        (Value::Array(prompt), Value::Array(answer)) => {
            dialogues(record, prompt, vec![("completion", answer)])?
        }
        (Value::Array(_), _) => return Err("`prompt` is a list of messages, but `completion` is not".into()),
        (_, Value::Array(_)) => return Err("`completion` is a list of messages, but `prompt` is not".into()),
        _ => {
            Comparison::Texts { prompt: text(record, "prompt")?, answers: vec![text(record, "completion")?] }
        }
    };
    Ok((comparison, desirable))
}

fn dialogues(
    record: &Map<String, Value>,
    prompt: Vec<Value>,
    answers: Vec<(&str, Vec<Value>)>,
) -> Result<Comparison, String> {
    if prompt.is_empty() {
        return Err("the answers do not begin with a common message, and `prompt` is missing or empty".into());
    }
    let prompt = messages::of("prompt", &prompt.into())?;
    let one = |(key, answer): (&str, Vec<Value>)| {
        let mut all = prompt.clone();
        all.extend(messages::of(key, &answer.into())?);
        dialogue(record, all, prompt.len())
    };
    answers.into_iter().map(one).collect::<Result<_, _>>().map(Comparison::Dialogues)
}

#[cfg(test)]
mod tests {
    use super::shared_text;

    /// Tests TRL's rule: a space before the first difference belongs to the answers.
    #[test]
    fn a_prompt_is_the_common_beginning() {
        for (a, b, prompt) in [
            ("The sky is blue.", "The sky is green.", "The sky is"),
            ("The sky is blue.", "The sky isn't.", "The sky is"),
            ("1+1=2", "1+1=3", "1+1="),
            ("äöa", "äöb", "äö"),
            ("same", "same", "sam"),
            ("same", "same and more", "sam"),
            ("x", "y", ""),
        ] {
            assert_eq!(&a[..shared_text(a, b)], prompt, "{a} {b}");
        }
    }
}
