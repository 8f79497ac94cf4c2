use super::*;
use crate::answer::Answer;
use serde_json::json;

type Said = (String, String, Vec<(String, String)>);

fn tools() -> Arc<Tools> {
    let f = json!({ "type": "function", "function": { "name": "f", "parameters": { "properties": { "x": { "type": "integer" }, "s": { "type": "string" } } } } });
    Arc::new(Tools::new(vec![f]).unwrap())
}

fn reader(forms: Forms) -> Reader {
    Reader::new(forms, Some(tools()))
}

fn read(forms: Forms, pieces: &[&str]) -> Said {
    let (mut reader, mut answer) = (reader(forms), Answer::default());
    for piece in pieces {
        reader.push(piece).iter().for_each(|part| answer.add(part));
    }
    reader.finish().iter().for_each(|part| answer.add(part));
    let calls = answer.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
    (answer.content, answer.reasoning, calls)
}

fn of(calls: impl Into<Option<Calls>>, thinks: bool, thinking: bool) -> Forms {
    let calls = calls.into();
    Forms { calls, channels: calls == Some(Calls::Channels), thinks, thinking }
}

fn f(arguments: &str) -> (String, String) {
    ("f".to_owned(), arguments.to_owned())
}

/// Forms, an input text, and its expected content, reasoning and calls.
type Case = (Forms, &'static str, &'static str, &'static str, Vec<(String, String)>);

/// Checks that each text gives the same result whole, in two pieces split at any position, and by character.
fn check(cases: &[Case]) {
    for (forms, text, content, reasoning, calls) in cases {
        let expected = ((*content).to_owned(), (*reasoning).to_owned(), calls.clone());
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(read(*forms, &letters), expected, "{text}");
        for (at, _) in text.char_indices() {
            let (a, b) = text.split_at(at);
            assert_eq!(read(*forms, &[a, b]), expected, "{text} at {at}");
        }
    }
}

#[test]
fn thoughts_and_text_are_told_apart() {
    check(&[
        (Forms::default(), "plain <think> {\"name\"", "plain <think> {\"name\"", "", vec![]),
        (of(None, true, false), "\n<think>a < b</think>\n\nyes", "yes", "a < b", vec![]),
        (of(None, true, true), "so\n</think>\n\nyes </think>", "yes </think>", "so\n", vec![]),
        (of(None, true, false), "<thin> air", "<thin> air", "", vec![]),
        (of(None, true, false), "<think>never ends", "", "never ends", vec![]),
    ]);
}

#[test]
fn tagged_calls_are_read_alike_in_any_pieces() {
    let tagged = of(Calls::Tagged, true, false);
    check(&[
        (
            tagged,
            "Look: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 2}\"}</tool_call>",
            "Look: ",
            "",
            vec![f("{\"x\": 1}"), f("{\"x\":2}")],
        ),
        (
            tagged,
            "<think>é</think><tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
            "",
            "é",
            vec![f("{\"x\": 1}")],
        ),
        // Arguments before the name, a brace and an end mark inside a string, and text after the arguments.
        (
            tagged,
            "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call>",
            "",
            "",
            vec![f("{\"x\":1}")],
        ),
        (
            tagged,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"}</tool_call>\\\"\"}, \"id\": \"1\"}</tool_call> on",
            "on",
            "",
            vec![f("{\"s\": \"}</tool_call>\\\"\"}")],
        ),
        // Truncated arguments are returned up to the point of truncation.
        (
            tagged,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1</tool_call> on",
            "on",
            "",
            vec![f("{\"x\": 1")],
        ),
        (tagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\"", "", "", vec![f("{\"x\"")]),
        (tagged, "<tool_call>{broken}</tool_call> on", "<tool_call>{broken}</tool_call> on", "", vec![]),
        (tagged, "<tool_call>{\"name\": \"f\"}", "<tool_call>{\"name\": \"f\"}", "", vec![]),
        (tagged, "1 <tool", "1 <tool", "", vec![]),
    ]);
}

#[test]
fn calls_without_end_marks_are_read_alike_in_any_pieces() {
    let (objects, list) = (of(Calls::Objects, false, false), of(Calls::List, false, false));
    let named = of(Calls::Named, false, false);
    check(&[
        (
            objects,
            "{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\": \"f\", \"parameters\": {\"x\": 2}}",
            "",
            "",
            vec![f("{\"x\": 1}"), f("{\"x\": 2}")],
        ),
        (
            objects,
            "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"x\": 1}}",
            "",
            "",
            vec![f("{\"x\": 1}")],
        ),
        (objects, "{\"a\": 1}", "{\"a\": 1}", "", vec![]),
        (objects, "It is {1}", "It is {1}", "", vec![]),
        (
            list,
            "So [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"f\", \"arguments\": {}}] on",
            "So on",
            "",
            vec![f("{\"x\": 1}"), f("{}")],
        ),
        (list, "[1] says", "[1] says", "", vec![]),
        (list, "[TOOL_CALLS] no", "[TOOL_CALLS] no", "", vec![]),
        (
            named,
            "[TOOL_CALLS]f[ARGS]{\"x\": {}}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"x\": 2}",
            "",
            "",
            vec![f("{\"x\": {}}"), f("{\"x\": 2}")],
        ),
        (named, "[TOOL_CALLS]is what it says", "[TOOL_CALLS]is what it says", "", vec![]),
    ]);
}

#[test]
fn calls_of_elements_have_the_types_of_their_schemas() {
    let xml = of(Calls::Xml, false, false);
    let text = "Now\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\na < b\n</parameter>\n</function>\n</tool_call>";
    check(&[
        (xml, text, "Now\n", "", vec![f("{\"x\": 1, \"s\": \"a < b\"}")]),
        (xml, "<function=f></function> on", "on", "", vec![f("{}")]),
        (xml, "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", "", vec![]),
        (xml, "<tool_call><function=f><parameter=x>1</para", "", "", vec![f("")]),
    ]);
}

#[test]
fn channels_are_thoughts_texts_and_calls() {
    let channels = of(Calls::Channels, false, false);
    let call = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>";
    check(&[
        (channels, call, "", "Hm.", vec![f("{\"x\": 1}")]),
        (
            channels,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>a <|b<|return|>",
            "a <|b",
            "Hm.",
            vec![],
        ),
        (channels, " to=functions.f<|channel|>commentary json<|message|>{}", "", "", vec![f("{}")]),
        (channels, "the text", "the text", "", vec![]),
    ]);
}

#[test]
fn text_and_arguments_are_not_held_back_longer_than_they_may_be_a_mark() {
    let mut reader = reader(of(Calls::Tagged, true, false));
    assert_eq!(reader.push("a <to"), [AnswerPart::Content("a ".into())]);
    assert_eq!(reader.push("ast"), [AnswerPart::Content("<toast".into())]);
    assert_eq!(reader.push(" on<tool_call>{\"name\": \"f\","), [AnswerPart::Content(" on".into())]);
    assert_eq!(
        reader.push(" \"arguments\": {"),
        [AnswerPart::CallBegin { name: "f".into() }, AnswerPart::CallArguments("{".into())]
    );
    assert_eq!(reader.push("\"x\": "), [AnswerPart::CallArguments("\"x\": ".into())]);
    assert_eq!(reader.push("1}}"), [AnswerPart::CallArguments("1}".into()), AnswerPart::CallEnd]);
}

#[test]
fn a_raw_newline_in_arguments_is_written_as_json_has_it() {
    let raw = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\n \"s\": \"a\nb\tc \\\\\" }}\n</tool_call>";
    let written = "{\n \"s\": \"a\\nb\\tc \\\\\" }";
    let said: serde_json::Value = serde_json::from_str(written).unwrap();
    assert_eq!(said["s"], "a\nb\tc \\");
    let named = "[TOOL_CALLS]f[ARGS]{\"s\": \"a\nb\"}";
    check(&[
        (of(Calls::Tagged, false, false), raw, "", "", vec![f(written)]),
        (of(Calls::Named, false, false), named, "", "", vec![f("{\"s\": \"a\\nb\"}")]),
    ]);
}
