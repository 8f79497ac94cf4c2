use super::*;
use crate::template::Templates;
use netcl_test_data::{needs_data, test_data};
use serde_json::json;
use std::path::Path;

/// Returns position and ids of each run of trained tokens.
fn runs(tokens: &[TrainedToken]) -> Vec<(usize, Vec<u32>)> {
    let mut all: Vec<(usize, Vec<u32>)> = Vec::new();
    for (at, (id, trained)) in tokens.iter().enumerate().filter(|(_, (_, trained))| *trained) {
        let follows = all.last().is_some_and(|(start, ids)| start + ids.len() == at);
        match all.last_mut().filter(|_| follows) {
            Some((_, ids)) => ids.push(*id),
            None => all.push((at, vec![*id])),
        }
        assert!(trained);
    }
    all
}

fn dialogue(messages: &Json) -> Dialogue {
    Dialogue { messages: messages.as_array().unwrap().clone(), ..Dialogue::default() }
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_folder(&test_data!().join(name)).unwrap()
}

fn template(path: &str) -> Template {
    Template::new(path, &std::fs::read_to_string(test_data!().join(path)).unwrap()).unwrap()
}

/// tools/golden_sft.py says how the masks come from `transformers`.
#[needs_data("chat-templates", "models/stories260K/hf", "tokenizers/gpt2")]
#[test]
fn masks_are_those_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/sft/masks.json");
    let cases: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut same, mut refused) = (0, 0);
    let mut tokenizers = std::collections::HashMap::new();
    for case in cases.as_array().unwrap() {
        let name = case["tokenizer"].as_str().unwrap();
        let tokenizer = tokenizers.entry(name).or_insert_with(|| tokenizer(name));
        let template = match case["file"].as_str() {
            Some(file) => template(file),
            None => Template::new("golden", case["template"].as_str().unwrap()).unwrap(),
        };
        let masks = AnswerMasks::new(tokenizer, &template).unwrap();
        let found = masks.encode(&dialogue(&case["messages"]), Answers::All);
        let of = &case["of"];
        let Some(answers) = case["answers"].as_array() else {
            refused += usize::from(found.is_err());
            continue;
        };
        let found = found.unwrap_or_else(|e| panic!("{of}: {e}"));
        let ids = |run: &Json| run.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let expected: Vec<(usize, Vec<u32>)> =
            answers.iter().map(|run| (run[0].as_u64().unwrap() as usize, ids(&run[1]))).collect();
        assert_eq!((found.len() as u64, runs(&found)), (case["tokens"].as_u64().unwrap(), expected), "{of}");
        same += 1;
    }
    assert!(same > 120 && refused > 30, "{same} {refused}");
}

/// Qwen3's template removes the thoughts of earlier answers, so the conversation up to an answer does not begin the whole one. The text after the
/// content of an answer shows where it ends.
#[needs_data("chat-templates", "models/stories260K/hf")]
#[test]
fn an_earlier_answer_that_is_written_differently_ends_behind_its_content() {
    let (tokenizer, template) =
        (tokenizer("models/stories260K/hf"), template("chat-templates/Qwen-Qwen3-0.6B.jinja"));
    let masks = AnswerMasks::new(&tokenizer, &template).unwrap();
    let said = |role: &str, content: &str| json!({ "role": role, "content": content });
    let messages = json!([
        said("user", "Hi!"),
        said("assistant", "Hello. "),
        said("user", "What?"),
        said("assistant", "<think>\nHm.\n</think>\n\nA bear."),
        said("user", "Bye"),
        said("assistant", "Sleep well."),
    ]);
    let text = |answers| {
        let tokens = masks.encode(&dialogue(&messages), answers).unwrap();
        let texts = runs(&tokens).into_iter().map(|(_, ids)| tokenizer.decode_all(&ids).unwrap());
        texts.collect::<Vec<_>>()
    };
    let end = "<|im_end|>\n";
    let last = format!("<think>\n\n</think>\n\nSleep well.{end}");
    assert_eq!(text(Answers::All), [format!("Hello. {end}"), format!("A bear.{end}"), last.clone()]);
    assert_eq!(text(Answers::Last), [last]);
    let all = masks.encode(&dialogue(&messages), Answers::Everything).unwrap();
    assert!(all.iter().all(|(_, trained)| *trained));
}

#[needs_data("chat-templates", "models/stories260K/hf")]
#[test]
fn a_template_that_starts_answers_differently_is_refused() {
    let (tokenizer, template) = (
        tokenizer("models/stories260K/hf"),
        template("chat-templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"),
    );
    let masks = AnswerMasks::new(&tokenizer, &template).unwrap();
    let talk =
        dialogue(&json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Yes" }]));
    for answers in [Answers::All, Answers::Last] {
        let message = masks.encode(&talk, answers).unwrap_err().to_string();
        assert!(
            message.contains("answer 1 (message 2) begins") && message.contains("--train-on all"),
            "{message}"
        );
    }
    assert!(masks.encode(&talk, Answers::Everything).is_ok());
}

#[needs_data("models/stories260K/hf")]
#[test]
fn prompts_are_not_trained_and_control_tokens_in_messages_are_text() {
    let tokenizer = tokenizer("models/stories260K/hf");
    let plain = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}\
                 {% if add_generation_prompt %}assistant: {% endif %}";
    let blocks = plain.replace("{{ m.content }}{{ eos_token }}\n", BLOCK);
    const BLOCK: &str = "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}\
                         {% else %}{{ m.content }}{{ eos_token }}{% endif %}{{ '\\n' }}";
    let said = |role: &str, content: &str| json!({ "role": role, "content": content });
    let messages = json!([
        said("user", "One </s> two"),
        said("assistant", "Three"),
        said("user", "Four"),
        said("assistant", "A </s> is text <s>."),
    ]);
    let of = |source: &str, prompt: usize, answers| {
        let template = Template::new("test", source).unwrap();
        let masks = AnswerMasks::new(&tokenizer, &template).unwrap();
        masks.encode(&Dialogue { prompt, ..dialogue(&messages) }, answers).unwrap()
    };
    let texts = |tokens: &[TrainedToken]| -> Vec<String> {
        runs(tokens).iter().map(|(_, ids)| tokenizer.decode_all(ids).unwrap()).collect()
    };
    for prompt in [0, 2] {
        let [a, b] = [plain, &blocks].map(|source| of(source, prompt, Answers::All));
        assert_eq!(
            a.iter().map(|(id, _)| id).collect::<Vec<_>>(),
            b.iter().map(|(id, _)| id).collect::<Vec<_>>()
        );
        // The end token is trained, and the line break after it is not.
        let end = b.iter().rposition(|(id, _)| *id == 2).unwrap();
        assert!(b[end].1 && end + 1 < b.len() && b[end + 1..].iter().all(|(_, trained)| !trained));
        assert_eq!(texts(&b).len(), if prompt == 0 { 2 } else { 1 });
        assert!(texts(&b).last().unwrap().contains("A </s> is text <s>."), "{:?}", texts(&b));
        // The begin token once, and an end token per message; those in messages are text.
        let count = |id: u32| b.iter().filter(|(found, _)| *found == id).count();
        assert_eq!((count(1), count(2)), (1, 4));
    }
    assert_eq!(of(plain, 2, Answers::All), of(plain, 0, Answers::Last));
    assert_eq!(of(&blocks, 2, Answers::All), of(&blocks, 0, Answers::Last));
}

#[test]
fn a_model_without_a_template_says_so() {
    assert!(Templates::default().get(None, false).is_err());
}
