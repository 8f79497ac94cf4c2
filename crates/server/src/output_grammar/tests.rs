use super::*;
use crate::answer::Answer;
use crate::checker::Patience;
use crate::reader::Reader;
use crate::schemas::Schemas;
use crate::tools::Choice;
use netcl::llm::tokenizer::{TokenKind, Vocab};
use netcl::tensor::random;
use std::sync::Arc;

/// Returns a tokenizer with the bytes and control tokens of some families.
fn tokenizer() -> Tokenizer {
    let controls = ["</s>", LIST, ARGS, PYTHON, "<|return|>"].into_iter().chain(CHANNELS);
    let controls: Vec<_> = controls.map(|word| (word, TokenKind::Control)).collect();
    Tokenizer::from_vocab(&Vocab::of_bytes(&controls)).unwrap()
}

fn functions(strict: bool) -> Vec<Value> {
    let add = json!({
        "type": "object",
        "properties": { "a": { "$ref": "#/$defs/n" }, "op": { "type": "string", "enum": ["+", "</tool_call>"] } },
        "required": ["a", "op"], "additionalProperties": false,
        "$defs": { "n": { "type": "integer", "minimum": 0, "maximum": 99 } },
    });
    let of = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "strict": strict, "parameters": parameters } });
    vec![
        of("add", add),
        of("now", json!({ "type": "object", "properties": {}, "additionalProperties": false })),
    ]
}

const FORMS: [Calls; 6] =
    [Calls::Tagged, Calls::Xml, Calls::List, Calls::Named, Calls::Objects, Calls::Channels];

fn forms(calls: Calls, thinking: bool) -> Forms {
    Forms { calls: Some(calls), channels: calls == Calls::Channels, thinks: thinking, thinking }
}

/// Returns the grammar for these request parameters.
fn bound(tokenizer: &Arc<Tokenizer>, forms: Forms, tools: &Tools, format: &Format) -> Grammar {
    let schemas = Schemas::new(Arc::clone(tokenizer), None);
    grammar(tokenizer, forms, schemas.compiler(&Patience::begin().0), Some(tools), format).unwrap().unwrap()
}

/// Generates a text from randomly chosen allowed tokens, and returns whether it ended. Marks have a higher probability, so that texts end.
fn text(tokenizer: &Tokenizer, mut grammar: Grammar, seed: u64) -> (String, bool) {
    let (mut stream, mut said) = (tokenizer.stream().with_controls(), String::new());
    for n in 0..500 {
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        grammar.mask(&mut logits).unwrap();
        let allowed: Vec<u32> = (0..logits.len() as u32).filter(|i| logits[*i as usize] == 0.0).collect();
        let marks: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|id| *id >= 256 || b"<>\n/toolcathinkpremy".contains(&(*id as u8)))
            .collect();
        let among =
            if marks.is_empty() || random::draw(seed, 1, n)[0].is_multiple_of(4) { &allowed } else { &marks };
        let id = among[random::draw(seed, 0, n)[0] as usize % among.len()];
        if tokenizer.stops().contains(&id) {
            return (said, true);
        }
        grammar.accept(id).unwrap();
        said += &stream.push(id).unwrap();
    }
    (said, false)
}

fn read(forms: Forms, tools: &Tools, text: &str) -> Answer {
    let mut reader = Reader::new(forms, Some(Arc::new(tools.clone())));
    let mut answer = Answer::default();
    reader.push(text).iter().for_each(|part| answer.add(part));
    reader.finish().iter().for_each(|part| answer.add(part));
    answer
}

/// Returns true if a whole text matches a grammar; control tokens are written by name.
fn follows(tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> bool {
    let mut grammar = grammar.clone();
    let mut rest = text;
    while !rest.is_empty() {
        let control = (256..tokenizer.vocab_size() as u32)
            .find(|id| rest.as_bytes().starts_with(tokenizer.piece(*id).unwrap()));
        let (id, length) = match control {
            Some(id) => (id, tokenizer.piece(id).unwrap().len()),
            None => (u32::from(rest.as_bytes()[0]), 1),
        };
        if grammar.accept(id).is_err() {
            return false;
        }
        rest = &rest[length..];
    }
    grammar.is_complete().unwrap()
}

fn is_add(arguments: &str) -> bool {
    let value: Value = serde_json::from_str(arguments).unwrap();
    (0..100).contains(&value["a"].as_i64().unwrap())
        && ["+", "</tool_call>"].contains(&value["op"].as_str().unwrap())
}

#[test]
fn forced_calls_are_read_as_what_was_wanted() {
    let tokenizer = Arc::new(tokenizer());
    for form in FORMS {
        for (choice, parallel) in
            [(Choice::Required, true), (Choice::Required, false), (Choice::Function(0), true)]
        {
            let tools = Tools { choice, parallel, ..Tools::new(functions(false)).unwrap() };
            let forms = forms(form, false);
            let grammar = bound(&tokenizer, forms, &tools, &Format::Text);
            let mut ended = 0;
            for seed in 0..12 {
                let (text, whole) = text(&tokenizer, grammar.clone(), seed);
                if !whole {
                    continue;
                }
                ended += 1;
                let answer = read(forms, &tools, &text);
                assert!(
                    answer.content.is_empty() && !answer.calls.is_empty(),
                    "{form:?} {text:?} {answer:?}"
                );
                assert!(tools.may_be_several() || answer.calls.len() == 1, "{form:?} {text:?}");
                for call in &answer.calls {
                    match call.name.as_str() {
                        "add" => assert!(is_add(&call.arguments), "{form:?} {text:?} {answer:?}"),
                        "now" if choice == Choice::Required => {
                            assert_eq!(serde_json::from_str::<Value>(&call.arguments).unwrap(), json!({}))
                        }
                        _ => panic!("{form:?} {text:?}"),
                    }
                }
            }
            assert!(ended > 2, "{form:?} {choice:?}: {ended} texts ended");
        }
    }
}

#[test]
fn only_allowed_functions_are_called() {
    let tokenizer = Arc::new(tokenizer());
    for form in FORMS {
        for choice in [Choice::Auto, Choice::Required] {
            let allowed = Some(vec![1]);
            let tools = Tools { choice, allowed, ..Tools::new(functions(false)).unwrap() };
            let forms = forms(form, false);
            let grammar = bound(&tokenizer, forms, &tools, &Format::Text);
            let mut calls = 0;
            for seed in 0..24 {
                let (text, whole) = text(&tokenizer, grammar.clone(), seed);
                let answer = read(forms, &tools, &text);
                if whole {
                    assert!(choice == Choice::Auto || !answer.calls.is_empty(), "{form:?} {text:?}");
                    assert!(answer.calls.iter().all(|call| call.name == "now"), "{form:?} {text:?}");
                    calls += answer.calls.len();
                }
            }
            assert!(choice == Choice::Auto || calls > 2, "{form:?}: {calls} calls");
        }
    }
}

#[test]
fn strict_functions_bind_calls_and_leave_text_free() {
    let tokenizer = Arc::new(tokenizer());
    let tools = Tools::new(functions(true)).unwrap();
    let one = Tools { parallel: false, ..Tools::new(functions(false)).unwrap() };
    let good = "{\"a\": 1, \"op\": \"+\"}";
    let call = |form: Calls, arguments: &str| match form {
        Calls::Tagged => {
            format!("<tool_call>\n{{\"name\": \"add\", \"arguments\": {arguments}}}\n</tool_call>")
        }
        Calls::Xml => format!(
            "<tool_call>\n<function=add>\n<parameter=a>\n{}\n</parameter>\n<parameter=op>\n+\n</parameter>\n</function>\n</tool_call>",
            if arguments == good { "1" } else { "x" }
        ),
        Calls::List => format!("[TOOL_CALLS][{{\"name\": \"add\", \"arguments\": {arguments}}}]"),
        Calls::Named => format!("[TOOL_CALLS]add[ARGS]{arguments}"),
        Calls::Objects => format!("{{\"name\": \"add\", \"parameters\": {arguments}}}"),
        Calls::Channels => {
            format!("<|channel|>commentary to=functions.add <|constrain|>json<|message|>{arguments}")
        }
    };
    for form in FORMS {
        let forms = forms(form, false);
        let grammar = bound(&tokenizer, forms, &tools, &Format::Text);
        let text = if form == Calls::Channels {
            "<|channel|>final<|message|>Just a < text"
        } else {
            "Just a < text"
        };
        assert!(follows(&tokenizer, &grammar, text), "{form:?}");
        assert!(follows(&tokenizer, &grammar, &call(form, good)), "{form:?}");
        assert!(!follows(&tokenizer, &grammar, &call(form, "{\"a\": 1000, \"op\": \"+\"}")), "{form:?}");
        if !matches!(form, Calls::Objects | Calls::Channels) {
            assert!(follows(&tokenizer, &grammar, &format!("First: {}", call(form, good))), "{form:?}");
        }
        // Functions that are not strict accept any object, and one call is exactly one call.
        let grammar = bound(&tokenizer, forms, &one, &Format::Text);
        if form != Calls::Xml {
            assert!(follows(&tokenizer, &grammar, &call(form, "{\"b\": [1]}")), "{form:?}");
        }
        let two = match form {
            Calls::List => format!("[TOOL_CALLS][{0},{0}]", "{\"name\": \"now\", \"arguments\": {}}"),
            Calls::Objects => format!("{0};{0}", call(form, good)),
            _ => format!("{0}{0}", call(form, good)),
        };
        assert!(!follows(&tokenizer, &grammar, &two), "{form:?}");
        let several = bound(&tokenizer, forms, &tools, &Format::Text);
        assert_eq!(follows(&tokenizer, &several, &two), form != Calls::Channels, "{form:?}");
    }
}

#[test]
fn thoughts_come_before_what_is_bound() {
    let tokenizer = Arc::new(tokenizer());
    let schemas = Schemas::new(Arc::clone(&tokenizer), None);
    let format = Format::Schema(json!({ "type": "boolean" }), "response_format.json_schema.schema".into());
    let of = |forms: Forms| {
        grammar(&tokenizer, forms, schemas.compiler(&Patience::begin().0), None, &format).unwrap().unwrap()
    };
    let may = Forms { thinks: true, ..Forms::default() };
    for (forms, text, good) in [
        (Forms::default(), "true", true),
        (Forms::default(), "<think>x</think>true", false),
        (may, "<think>so < {</think>\n\ntrue", true),
        (may, "true", true),
        (may, "<think>so</think>text", false),
        (Forms { thinking: true, ..may }, "so</think>false", true),
        (Forms { thinking: true, ..may }, "false", false),
        (
            Forms { channels: true, ..Forms::default() },
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>true",
            true,
        ),
        (Forms { channels: true, ..Forms::default() }, "<|channel|>final<|message|>text", false),
    ] {
        assert_eq!(follows(&tokenizer, &of(forms), text), good, "{forms:?} {text}");
    }
    // Both a call and the schema are possible.
    let tools = Tools::new(functions(false)).unwrap();
    let both = bound(&tokenizer, forms(Calls::Tagged, false), &tools, &format);
    for (text, good) in [
        ("true", true),
        ("text", false),
        ("<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", true),
    ] {
        assert_eq!(follows(&tokenizer, &both, text), good, "{text}");
    }
}

#[test]
fn what_cannot_be_enforced_is_named() {
    let tokenizer = Arc::new(tokenizer());
    let schemas = Schemas::new(Arc::clone(&tokenizer), None);
    let tools = |parameters: Value| {
        let list = vec![json!({ "type": "function", "function": { "name": "f", "parameters": parameters } })];
        Tools { choice: Choice::Required, ..Tools::new(list).unwrap() }
    };
    let error = |forms: Forms, parameters: Value| {
        grammar(
            &tokenizer,
            forms,
            schemas.compiler(&Patience::begin().0),
            Some(&tools(parameters)),
            &Format::Text,
        )
        .unwrap_err()
    };
    let unique = json!({ "type": "object", "properties": { "x": { "type": "array", "uniqueItems": true } } });
    for form in FORMS {
        let error = error(forms(form, false), unique.clone());
        assert!(error.param.unwrap().starts_with("tools[0].function.parameters"));
        assert!(error.message.contains("uniqueItems"), "{}", error.message);
    }
    let bounded = json!({ "type": "object", "properties": { "x": { "type": "string", "maxLength": 3 } } });
    assert!(error(forms(Calls::Xml, false), bounded).message.contains("maxLength"));
    assert!(error(forms(Calls::Xml, false), json!({ "anyOf": [] })).message.contains("anyOf"));
    assert_eq!(error(Forms::default(), json!({})).param.as_deref(), Some("tool_choice"));
    assert_eq!(
        error(forms(Calls::Tagged, false), json!({ "type": "string" })).param.as_deref(),
        Some("tools[0].function.parameters")
    );
}
