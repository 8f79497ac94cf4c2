//! Records that compare answers.

use super::*;
use crate::data::records::{VALUES, value};

const PAIRS: RecordKind = RecordKind::Pairs { prompts: false };
const LABELED: RecordKind = RecordKind::Labeled { block: 3 };

fn made(text: &str, kind: RecordKind) -> Made {
    let made = source(&[("a.jsonl", text)], true, Answers::All).unwrap();
    Made { tokenizer: made.tokenizer.for_kind(kind), ..made }
}

/// Returns the whole text and the answer of both rows of each record.
fn rows(text: &str, kind: RecordKind) -> Vec<[(String, String); 2]> {
    let made = made(text, kind);
    let (splits, _) = made.open(OPTIONS, None).unwrap_or_else(|e| panic!("{e}"));
    let part = |words: &[(u32, bool)], all: bool| {
        let ids = words.iter().filter(|(_, trained)| all || *trained).map(|(id, _)| *id);
        made.tokenizer.text(&ids.collect::<Vec<_>>()).unwrap()
    };
    let of =
        |record| splits.train.both(record).unwrap().map(|words| (part(&words, true), part(&words, false)));
    (0..splits.train.len()).map(of).collect()
}

#[test]
fn pairs_are_texts_or_conversations_with_or_without_a_prompt() {
    let (yes, no) =
        (r#"{"role": "assistant", "content": "Yes"}"#, r#"{"role": "assistant", "content": "No"}"#);
    let ask = r#"{"role": "user", "content": "U"}"#;
    let text = ("One two<|endoftext|>", " two<|endoftext|>", "One 2<|endoftext|>", " 2<|endoftext|>");
    let chat = (
        "user: U<|endoftext|>\nassistant: Yes<|endoftext|>\n",
        "Yes<|endoftext|>\n",
        "user: U<|endoftext|>\nassistant: No<|endoftext|>\n",
        "No<|endoftext|>\n",
    );
    for (record, expected) in [
        (r#"{"prompt": "One", "chosen": " two", "rejected": " 2"}"#.to_owned(), text),
        (r#"{"chosen": "One two", "rejected": "One 2"}"#.into(), text),
        (r#"{"prompt": "One", "chosen": " two<|endoftext|>", "rejected": " 2", "label": 1}"#.into(), text),
        (format!("{{\"prompt\": [{ask}], \"chosen\": [{yes}], \"rejected\": [{no}]}}"), chat),
        (format!("{{\"chosen\": [{ask}, {yes}], \"rejected\": [{ask}, {no}]}}"), chat),
    ] {
        let found = rows(&record, PAIRS);
        let [(chosen, yes), (rejected, no)] = &found[0];
        assert_eq!((chosen.as_str(), yes.as_str(), rejected.as_str(), no.as_str()), expected, "{record}");
    }
}

/// Each prompt is also paired with the answer before it in its block, as in TRL; pairs become answers with labels, the chosen ones first.
#[test]
fn labeled_answers_get_another_answer_of_their_block() {
    let record = |i: usize| {
        format!("{{\"prompt\": \"{i}?\", \"completion\": \" a{i}\", \"label\": {}}}\n", i % 2 == 1)
    };
    let found = rows(&(0..5).map(record).collect::<String>(), LABELED);
    let answers = |found: &[[(String, String); 2]]| {
        found
            .iter()
            .map(|[(own, _), (mixed, _)]| format!("{own} {mixed}").replace("<|endoftext|>", ""))
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(&found), ["0? a0 0? a2", "1? a1 1? a0", "2? a2 2? a1", "3? a3 3? a4", "4? a4 4? a3"]);
    let pair =
        |i: usize| format!("{{\"prompt\": \"{i}?\", \"chosen\": \" c{i}\", \"rejected\": \" r{i}\"}}\n");
    let found = rows(&(0..3).map(pair).collect::<String>(), LABELED);
    let expected = ["0? c0 0? c2", "1? c1 1? c0", "2? c2 2? c1", "0? r0 0? r2", "1? r1 1? r0", "2? r2 2? r1"];
    assert_eq!(answers(&found), expected);
}

#[test]
fn batches_have_both_answers_and_their_numbers() {
    let text = "{\"prompt\": \"ab\", \"chosen\": \"cde\", \"rejected\": \"f\"}\n{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cd\"}\n";
    for prompts in [false, true] {
        let (splits, report) = made(text, RecordKind::Pairs { prompts }).open(OPTIONS, None).unwrap();
        assert_eq!((report.records, report.trained), ([2, 0], 4 + 2 + 2 + 3), "{}", report.line());
        assert!(report.line().contains("preference pairs: 2 records to train"), "{}", report.line());
        let loader = Loader::of_records((splits.train, None), 1000, [3, 64], 1, Some(1)).unwrap();
        let batch = loader.batch(Position { seed: 3, step: 0, micro: 0 }).unwrap();
        assert_eq!((batch.rows, batch.values.len(), batch.step_targets), (6, 3 * VALUES, Some(2)));
        let at = |place: usize| &batch.values[3 * place..3 * place + 3];
        assert_eq!(at(value::PRESENT), [1.0, 1.0, 0.0]);
        let targets =
            |row: usize| batch.y[64 * row..64 * (row + 1)].iter().filter(|id| **id != IGNORED_TARGET).count();
        for place in 0..2 {
            // The record is known by the length of its chosen answer.
            let length = (1.0 / at(value::INVERSE_LENGTH[0])[place]).round() as usize;
            let (prompt, rejected) = if length == 4 { (2, 2) } else { (1, 3) };
            let before = if prompts { prompt - 1 } else { 0 };
            assert_eq!([targets(place), targets(3 + place)], [length + before, rejected + before]);
            assert_eq!(at(value::START[0])[place], (prompt - 1) as f32);
        }
        assert_eq!([targets(2), targets(5)], [0, 0]);
        let likelihood = 2.0 / if prompts { 5.0 + 2.0 } else { 4.0 + 2.0 };
        assert!((at(value::LIKELIHOOD)[0] - likelihood).abs() < 1e-6);
        assert_eq!(loader.step_targets(3, 0), Some(4 + 2 + 2 + 3));
    }
}

/// Answers are truncated; a pair whose prompt fills the row is left out, with both answers.
#[test]
fn long_pairs_lose_their_ends_together() {
    let text = "{\"prompt\": \"abcdefgh\", \"chosen\": \"ij\", \"rejected\": \"k\"}\n{\"prompt\": \"a\", \"chosen\": \"bcdefghijkl\", \"rejected\": \"c\"}\n";
    let open = |options| made(text, PAIRS).open(options, None);
    let (splits, report) = open(RecordOptions { context: 8, ..OPTIONS }).unwrap();
    assert_eq!((splits.train.len(), report.truncated, report.untrained), (1, 2, 1), "{}", report.line());
    assert_eq!(splits.train.both(0).unwrap().map(|words| words.len()), [8, 3]);
    let none = open(RecordOptions { context: 8, drop_long: true, ..OPTIONS }).unwrap_err().to_string();
    assert!(none.contains("2 dropped as longer than --context"), "{none}");
}

#[test]
fn broken_and_unfit_records_are_named_with_file_and_line() {
    let pair = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
    let labeled = "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n";
    let answer = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    for (first, second, kind, part) in [
        (pair, "{\"prompt\": \"a\", \"chosen\": 3, \"rejected\": \"c\"}", PAIRS, "`chosen` is not a text"),
        (
            pair,
            "{\"prompt\": \"a\", \"chosen\": [{\"role\": \"user\", \"content\": \"x\"}], \"rejected\": \"c\"}",
            PAIRS,
            "must all be texts, or all lists of messages",
        ),
        (pair, "{\"prompt\": [], \"chosen\": [], \"rejected\": []}", PAIRS, "`prompt` is missing or empty"),
        (
            pair,
            labeled,
            PAIRS,
            "completions with a label fit --objective kto; this run's objective needs chosen and rejected",
        ),
        (pair, answer, PAIRS, "records with one answer and no label fit --objective sft"),
        (
            labeled,
            "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": 0.5}",
            LABELED,
            "`label` is not true or false",
        ),
        (labeled, "{\"prompt\": [], \"completion\": \"b\", \"label\": true}", LABELED, "`completion` is not"),
        (
            labeled,
            answer,
            LABELED,
            "fit --objective sft; this run's objective needs prompt, completion and label",
        ),
        (answer, pair, RecordKind::Answers, "fit --objective dpo, ipo, simpo, orpo or kto"),
        (answer, labeled, RecordKind::Answers, "fit --objective kto"),
    ] {
        let made = made(&format!("{first}{second}"), kind);
        let message = made.open(OPTIONS, None).map(drop).unwrap_err().to_string();
        assert!(message.contains("a.jsonl, line 2: ") && message.contains(part), "{message} lacks {part}");
        let (splits, report) = made.open(RecordOptions { skip_bad: true, ..OPTIONS }, None).unwrap();
        assert_eq!((splits.train.len(), report.broken), (1, 1), "{second}");
    }
}
