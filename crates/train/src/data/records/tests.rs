mod preferences;

use super::*;
use crate::data::{Corpus, DataSource, Eval, IGNORED_TARGET, Loader, Position, Reading, TokenCache};
use netcl_device::Result;
use netcl_device::draw::mix;
use netcl_llm::answers::Answers;
use netcl_model::tokenizer::Tokenizer;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\
                        <|endoftext|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
const OPTIONS: RecordOptions =
    RecordOptions { context: 512, pack: false, drop_long: false, skip_bad: false, val_split: 0.0 };

/// A model's folder with a tokenizer of bytes, and a template if `template`.
fn model(template: bool) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Tokenizer::train_bpe(["a text of some words, and of others"], 280).unwrap().save(dir.path()).unwrap();
    if template {
        fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    }
    dir
}

struct Made {
    _dir: TempDir,
    tokenizer: RecordTokenizer,
    source: DataSource,
}

fn source(files: &[(&str, &str)], template: bool, answers: Answers) -> Result<Made> {
    let (dir, model) = (tempfile::tempdir().unwrap(), model(template));
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let how = Reading { records: true, ..Reading::default() };
    let source = DataSource::open_with(&[dir.path()], how, &mut |_| true)?;
    let tokenizer = RecordTokenizer::open(model.path(), None, answers).unwrap();
    Ok(Made { _dir: dir, tokenizer, source })
}

impl Made {
    fn open(
        &self,
        options: RecordOptions,
        cache: Option<&TokenCache>,
    ) -> Result<(RecordSplits, RecordReport)> {
        let DataSource::Records { formats, .. } = &self.source else {
            panic!("not records: {:?}", self.source)
        };
        let (train, val) = self.source.parts();
        open([train, val], formats, &self.tokenizer, options, cache, &mut |_| true)
    }

    /// Returns the whole text of each record, and the trained one.
    fn texts(&self) -> Vec<(String, String)> {
        let (splits, _) = self.open(OPTIONS, None).unwrap_or_else(|e| panic!("{e}"));
        let of = |record: usize| {
            let tokens = splits.train.record(record).unwrap();
            let text = |all: bool| {
                let ids = tokens.iter().filter(|(_, trained)| all || *trained).map(|(id, _)| *id);
                self.tokenizer.text(&ids.collect::<Vec<_>>()).unwrap()
            };
            (text(true), text(false))
        };
        (0..splits.train.len()).map(of).collect()
    }
}

fn error(files: &[(&str, &str)]) -> String {
    match source(files, true, Answers::All).and_then(|made| made.open(OPTIONS, None)) {
        Ok((_, report)) => panic!("{files:?}: {}", report.line()),
        Err(e) => e.to_string(),
    }
}

const CHAT: &str = r#"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]}"#;

#[test]
fn every_format_is_read_by_its_keys() {
    let chat =
        ("system: S<|endoftext|>\nuser: U<|endoftext|>\nassistant: A<|endoftext|>\n", "A<|endoftext|>\n");
    let short = ("user: U<|endoftext|>\nassistant: A<|endoftext|>\n", "A<|endoftext|>\n");
    let called = "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}, \"type\": \"function\"}]<|endoftext|>\n";
    let none = format!("None{called}");
    let call = format!("user: U<|endoftext|>\nassistant: {none}");
    let both = format!("{call}tool: T<|endoftext|>\nassistant: A<|endoftext|>\n");
    let both_trained = format!("{none}A<|endoftext|>\n");
    let alpaca = "user: Do\nthis<|endoftext|>\nassistant: Done<|endoftext|>\n";
    let cases = [
        ("a.jsonl", CHAT.to_owned(), vec![chat]),
        ("a.txt", format!("{CHAT}\n{CHAT}\n\n"), vec![chat, chat]),
        ("a.json", format!("[\n{CHAT},\n  {CHAT}\n]\n"), vec![chat, chat]),
        ("a.json", format!("{{\"version\": 1, \"data\": [{CHAT}, {CHAT}]}}"), vec![chat, chat]),
        ("a.json", CHAT.to_owned(), vec![chat]),
        ("a.jsonl", r#"{"messages": [{"role":"user","content":[{"type":"text","text":"U"}]},{"role":"assistant","content":"A"}]}"#.into(), vec![short]),
        ("a.jsonl", r#"{"conversations": [{"from":"system","value":"S"},{"from":"human","value":"U"},{"from":"gpt","value":"A"}]}"#.into(), vec![chat]),
        ("a.jsonl", r#"{"system":"S","conversations": [{"from":"human","value":"U"},{"from":"gpt","value":"A"}]}"#.into(), vec![chat]),
        (
            "a.jsonl",
            r#"{"conversations": [{"from":"human","value":"U"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"}]}"#.into(),
            vec![(&*call, &*none)],
        ),
        (
            "a.jsonl",
            r#"{"messages": [{"role":"user","content":"U"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"x\": 1}"},"type":"function"}]},
            {"role":"tool","content":"T"},{"role":"assistant","content":"A","name":null}]}"#.replace('\n', ""),
            vec![(&*both, &*both_trained)],
        ),
        ("a.json", r#"[{"instruction": "Do", "input": "this", "output": "Done"}]"#.into(), vec![(alpaca, "Done<|endoftext|>\n")]),
        ("a.jsonl", r#"{"prompt": "One", "completion": " two"}"#.into(), vec![("One two<|endoftext|>", " two<|endoftext|>")]),
        ("a.jsonl", r#"{"Prompt": "One<|endoftext|>", "Completion": "two<|endoftext|>"}"#.into(), vec![("One<|endoftext|>two<|endoftext|>", "two<|endoftext|>")]),
        (
            "a.jsonl",
            r#"{"prompt": [{"role":"user","content":"U"},{"role":"assistant","content":"B"},{"role":"user","content":"V"}], "completion": [{"role":"assistant","content":"A"}]}"#.into(),
            vec![("user: U<|endoftext|>\nassistant: B<|endoftext|>\nuser: V<|endoftext|>\nassistant: A<|endoftext|>\n", "A<|endoftext|>\n")],
        ),
        ("a.jsonl", r#"{"text": "some text"}"#.into(), vec![("some text<|endoftext|>", "some text<|endoftext|>")]),
        ("a.csv", "prompt,completion\n\"One, \"\"1\"\"\n\",two\nx,y\n".into(), vec![("One, \"1\"\ntwo<|endoftext|>", "two<|endoftext|>"), ("xy<|endoftext|>", "y<|endoftext|>")]),
        ("a.tsv", "id\ttext\n1\tfine\n".into(), vec![("fine<|endoftext|>", "fine<|endoftext|>")]),
    ];
    for (name, text, expected) in cases {
        let made = source(&[(name, &text)], true, Answers::All).unwrap_or_else(|e| panic!("{text}: {e}"));
        let expected: Vec<_> = expected.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        assert_eq!(made.texts(), expected, "{name}: {text}");
    }
}

#[test]
fn instructions_without_a_template_have_the_prompt_of_alpaca() {
    let text = r#"[{"instruction": "Do", "input": "this", "output": "Done"}, {"instruction": "Do", "input": "", "output": "Yes"}]"#;
    let made = source(&[("a.json", text)], false, Answers::All).unwrap();
    let all = made.texts();
    let with = "paired with an input that provides further context. Write a response that appropriately completes the request.\n\n### Instruction:\n\
                Do\n\n### Input:\nthis\n\n### Response:Done<|endoftext|>";
    let without = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\nDo\n\n\
                   ### Response:Yes<|endoftext|>";
    assert!(all[0].0.ends_with(with) && all[0].1 == "Done<|endoftext|>", "{all:?}");
    assert_eq!(all[1], (without.to_owned(), "Yes<|endoftext|>".to_owned()));
    let whole = source(&[("a.json", text)], false, Answers::Everything).unwrap().texts();
    assert!(whole.iter().all(|(all, trained)| all == trained));
    // Conversations need a template, also if broken records are skipped.
    let made = source(&[("a.jsonl", CHAT)], false, Answers::All).unwrap();
    let message = made.open(RecordOptions { skip_bad: true, ..OPTIONS }, None).unwrap_err().to_string();
    assert!(message.contains("--chat-template chatml, llama3 or a file"), "{message}");
}

#[test]
fn a_broken_record_is_named_by_file_and_line() {
    let lines = |record: &str| format!("{CHAT}\n\n{record}\n{CHAT}\n");
    for (record, part) in [
        ("{\"messages\": [}", "not valid JSON"),
        ("[1]", "expected an object, found a list"),
        ("{\"x\": 1}", "its keys are x; expected messages"),
        ("{\"messages\": 3}", "`messages` is not a list of messages"),
        ("{\"messages\": []}", "`messages` is empty"),
        ("{\"messages\": [{\"role\": \"user\"}]}", "message 1: `content` is missing"),
        ("{\"messages\": [{\"content\": \"x\"}]}", "message 1: `role` is missing"),
        ("{\"messages\": [{\"role\": \"bot\", \"content\": \"x\"}]}", "the role \"bot\" is unknown"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": 3}]}", "message 1: `content` is not a text"),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": \"x\"}]}]}",
            "a part of type \"image_url\"; only text is trained",
        ),
        ("{\"messages\": [\"x\"]}", "message 1: expected an object"),
        (
            "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{}]}]}",
            "a call in `tool_calls` lacks its name",
        ),
        ("{\"conversations\": [{\"from\": \"x\", \"value\": \"y\"}]}", "the speaker \"x\" is unknown"),
        (
            "{\"prompt\": \"x\", \"completion\": []}",
            "`completion` is a list of messages, but `prompt` is not",
        ),
        ("{\"prompt\": \"x\", \"completion\": 3}", "`completion` is not a text"),
        ("{\"text\": null}", "`text` is missing"),
        ("{\"instruction\": \"x\", \"output\": \"y\", \"input\": [1]}", "`input` is not a text"),
        (
            "{\"prompt\": \"x\", \"chosen\": \"y\", \"rejected\": \"z\"}",
            "preference pairs (chosen and rejected) fit --objective dpo, ipo, simpo, orpo or kto",
        ),
    ] {
        let message = error(&[("a.jsonl", &lines(record))]);
        assert!(message.contains("a.jsonl, line 3: ") && message.contains(part), "{message} lacks {part}");
        assert!(message.contains("--skip-bad"), "{message}");
        let made = source(&[("a.jsonl", &lines(record))], true, Answers::All).unwrap();
        let (splits, report) = made.open(RecordOptions { skip_bad: true, ..OPTIONS }, None).unwrap();
        assert_eq!((splits.train.len(), report.broken), (2, 1), "{record}");
        assert!(report.line().contains("1 skipped as broken"));
    }
    for (name, text, part) in [
        ("a.json", format!("[{CHAT},\n{CHAT},\n{{\"messages\": 1}}, {CHAT}]"), "line 3: `messages` is not"),
        ("a.json", format!("[{CHAT},\n{CHAT}\n"), "line 3: the array does not end"),
        ("a.json", format!("[{CHAT}]\nmore"), "line 2: text after the end of the array"),
        (
            "a.csv",
            "text,b\nx,1\n\"y\nz\"\n".into(),
            "line 3: the row has 1 fields, but the table has 2 columns",
        ),
        ("a.csv", "text\nx\n\"y\nz".into(), "line 3: a field in quotes does not end"),
    ] {
        let message = error(&[(name, &text)]);
        assert!(message.contains(part) && message.contains(name), "{message} lacks {part}");
    }
}

/// Formats that are not read keep their refusal.
#[test]
fn formats_that_are_not_read_are_refused_by_their_name() {
    for (text, part) in [
        (r#"{"prompt": "x"}"#, "prompts without completions"),
        (r#"{"question": "x", "answer": "y"}"#, "questions with answers"),
    ] {
        let message = error(&[("a.jsonl", text)]);
        assert!(message.contains(part) && message.contains("rename the fields"), "{message} lacks {part}");
    }
    let message = error(&[("a.jsonl", CHAT), ("b.txt", &"a long text ".repeat(100))]);
    assert!(message.contains("records (") && message.contains("b.txt"), "{message}");
    let made = source(&[("a.jsonl", CHAT), ("README.md", "# Data")], true, Answers::All).unwrap();
    assert_eq!(made.texts().len(), 1);
}

/// A file with a changed byte is read, or the error names file and line; with broken records skipped it is read.
#[test]
fn files_with_changed_bytes_are_named_or_read() {
    let bases: [(&str, String); 5] = [
        ("a.jsonl", format!("{CHAT}\n").repeat(5)),
        ("a.json", format!("[\n{}]", [CHAT; 5].join(",\n"))),
        ("s.jsonl", "{\"conversations\": [{\"from\":\"human\",\"value\":\"U\"},{\"from\":\"gpt\",\"value\":\"A\"}]}\n".repeat(5)),
        ("i.json", format!("[{}]", ["{\"instruction\": \"Do\", \"input\": \"\", \"output\": \"Done\"}"; 5].join(",\n"))),
        ("t.csv", format!("prompt,completion\n{}", "\"a, b\",c\n".repeat(5))),
    ];
    let (mut read, mut named, mut skipped) = (0, 0, 0);
    for case in 0..500u64 {
        let (name, base) = &bases[(case % 5) as usize];
        // The first record tells the format of the file.
        let first = base.find('\n').unwrap() + if *name == "a.json" { CHAT.len() + 2 } else { 1 };
        let draw = |what: u64, below: usize| (mix(case * 8 + what) % below as u64) as usize;
        let mut bytes = base.clone().into_bytes();
        let at = first + draw(0, bytes.len() - first);
        let other = b"{}[]\",:\\\n0x"[draw(1, 11)];
        match draw(2, 3) {
            0 => bytes[at] = other,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, other),
        }
        let text = String::from_utf8(bytes).unwrap();
        let made = source(&[(name, &text)], true, Answers::All).unwrap_or_else(|e| panic!("{text}: {e}"));
        match made.open(OPTIONS, None) {
            Ok(_) => read += 1,
            Err(e) => {
                assert!(e.message().contains(&format!("{name}, line ")), "{text}: {e}");
                named += 1;
            }
        }
        // A quote may join all rows of a table.
        skipped += match made.open(RecordOptions { skip_bad: true, ..OPTIONS }, None) {
            Ok((_, report)) => usize::from(report.broken > 0),
            Err(e) => usize::from(
                e.message().contains("no record is left") && e.message().contains("1 skipped as broken"),
            ),
        };
    }
    assert!(named > 100 && read > 50 && skipped == named, "{read} read, {named} named, {skipped} skipped");
}

#[test]
fn long_records_are_truncated_or_dropped_and_the_report_says_so() {
    let pair = |prompt: &str, completion: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"completion\": \"{completion}\"}}\n")
    };
    let text = pair("ab", "cd")
        + &pair(&"x".repeat(100), "y")
        + &pair("x", &"y".repeat(100))
        + "{\"prompt\": \"z\", \"completion\": \"z\"}\n";
    let made = source(&[("a.jsonl", &text)], false, Answers::All).unwrap();
    let open = |context, drop_long| {
        let (splits, report) = made.open(RecordOptions { context, drop_long, ..OPTIONS }, None).unwrap();
        (splits, report)
    };
    let (splits, report) = open(512, false);
    assert_eq!((splits.context, report.longest, report.truncated, splits.train.len()), (128, 102, 0, 4));
    let (splits, report) = open(64, false);
    // The prompt of the second record fills the context.
    assert_eq!((report.truncated, report.untrained, report.dropped, splits.train.len()), (2, 1, 0, 3));
    assert_eq!(splits.train.record(1).unwrap().len(), 64);
    assert!(
        report.line().contains("2 truncated to --context; 1 left out without a trained token"),
        "{}",
        report.line()
    );
    let (splits, report) = open(64, true);
    assert_eq!((report.truncated, report.untrained, report.dropped, splits.train.len()), (0, 0, 2, 2));
    assert!(
        report.line().starts_with(
            "JSON Lines: prompts with completions: 2 records to train and 0 records to validate"
        )
    );
    let message = made.open(RecordOptions { context: 1, ..OPTIONS }, None).unwrap_err().to_string();
    assert!(message.contains("no record is left to train on"), "{message}");
}

fn many(count: usize) -> String {
    let one =
        |i: usize| format!("{{\"prompt\": \"p{i}\", \"completion\": \"{}\"}}\n", "word ".repeat(1 + i % 7));
    (0..count).map(one).collect()
}

/// Every record comes once per epoch, padded with ignored targets; the count of a step's targets is that of its batches.
#[test]
fn batches_have_each_record_once_per_epoch() {
    let made = source(&[("a.jsonl", &many(21))], false, Answers::All).unwrap();
    let (splits, _) = made.open(OPTIONS, None).unwrap();
    let vocab = 280;
    let loader = |sizes, accum, epochs| {
        Loader::of_records((splits.train.clone(), None), vocab, sizes, accum, epochs).unwrap()
    };
    let rows_of = |loader: &Loader, steps: u64, accum: u32| {
        let mut rows = Vec::new();
        for step in 0..steps {
            let mut targets = 0;
            for micro in 0..accum {
                let batch = loader.batch(Position { seed: 5, step, micro }).unwrap();
                let count = batch.y.iter().filter(|y| **y != IGNORED_TARGET).count() as u64;
                assert_eq!(batch.step_targets, loader.step_targets(5, step));
                targets += count;
                rows.extend(
                    batch.x.chunks(64).zip(batch.y.chunks(64)).map(|(x, y)| (x.to_vec(), y.to_vec())),
                );
            }
            assert_eq!(Some(targets), loader.step_targets(5, step));
        }
        rows
    };
    // 21 records twice are 42 rows: five whole steps of 8 and a last one of two.
    let whole = rows_of(&loader([8, 64], 1, Some(2)), 6, 1);
    for (sizes, accum) in [([4, 64], 2), ([1, 64], 8), ([2, 64], 4)] {
        assert_eq!(rows_of(&loader(sizes, accum, Some(2)), 6, accum), whole);
    }
    let epochs: Vec<Vec<_>> = whole[..42]
        .chunks(21)
        .map(|epoch| {
            let mut epoch = epoch.to_vec();
            epoch.sort();
            epoch
        })
        .collect();
    assert_eq!(epochs[0], epochs[1]);
    assert!(epochs[0].windows(2).all(|pair| pair[0] != pair[1]) && whole[..21] != whole[21..42]);
    assert!(whole[42..].iter().all(|(_, y)| y.iter().all(|y| *y == IGNORED_TARGET)));
    // Without a number of epochs the order goes on.
    assert!(
        rows_of(&loader([8, 64], 1, None), 6, 1)[42..]
            .iter()
            .all(|(_, y)| y.iter().any(|y| *y != IGNORED_TARGET))
    );
    // A rank's rows are those of the whole batch, and so is the count.
    let at = Position { seed: 5, step: 1, micro: 0 };
    let (part, all) = (loader([8, 64], 1, None).part(3..5), loader([8, 64], 1, None));
    let (part, all) = (part.batch(at).unwrap(), all.batch(at).unwrap());
    assert_eq!((&part.x[..], part.step_targets), (&all.x[3 * 64..5 * 64], all.step_targets));
    let small = Loader::of_records((splits.train.clone(), None), 99, [8, 64], 1, None).unwrap();
    assert!(small.batch(at).unwrap_err().message().contains("the vocabulary has 99 tokens"));
}

/// Packed rows have every record once per epoch, each with positions from 0, and the targets of the records.
#[test]
fn packed_rows_have_each_record_once_per_epoch() {
    let made = source(&[("a.jsonl", &many(40))], false, Answers::All).unwrap();
    let (splits, report) = made.open(RecordOptions { pack: true, context: 64, ..OPTIONS }, None).unwrap();
    let rows = splits.rows();
    let full = splits.train.tokens() as f64 / (rows * 64) as f64;
    assert!(rows < 30 && full > 0.85 && splits.context == 64, "{rows} rows, {full}");
    let line = report.line();
    assert!(line.contains(&format!("packed into {rows} rows, {:.1} % full", 100.0 * full)), "{line}");
    let whole = (splits.train.clone(), splits.packing.clone());
    let loader = Loader::of_records(whole, 280, [rows, 64], 1, Some(2)).unwrap();
    assert!(loader.is_packed() && loader.is_weighted());
    let mut expected: Vec<Vec<u32>> = (0..40)
        .map(|record| splits.train.record(record).unwrap().into_iter().map(|(id, _)| id).collect())
        .collect();
    expected.sort();
    let mut orders = Vec::new();
    for step in 0..2 {
        let batch = loader.batch(Position { seed: 5, step, micro: 0 }).unwrap();
        assert_eq!(batch.step_targets, Some(splits.train.trained() as u64));
        let trained = batch.y.iter().filter(|y| **y != IGNORED_TARGET).count();
        assert_eq!(trained, splits.train.trained());
        let positions = batch.positions.unwrap();
        let mut found: Vec<Vec<u32>> = Vec::new();
        for (at, (id, position)) in batch.x.iter().zip(&positions).enumerate() {
            match (*position, found.last_mut()) {
                (0, _) => found.push(vec![*id]),
                (n, Some(record)) if record.len() == n as usize => record.push(*id),
                _ => panic!("position {position} at {at}"),
            }
            // A target is the next token of the same record.
            if batch.y[at] != IGNORED_TARGET {
                assert_eq!((batch.x[at + 1], positions[at + 1]), (batch.y[at], position + 1));
            }
        }
        found.retain(|record| record.len() > 1);
        orders.push(found.clone());
        found.sort();
        assert_eq!(found, expected);
    }
    assert_ne!(orders[0], orders[1]);
    assert!(loader.batch(Position { seed: 5, step: 2, micro: 0 }).unwrap().step_targets == Some(0));
}

#[test]
fn validation_is_the_end_of_the_records_or_a_file() {
    let made = source(&[("a.jsonl", &many(20))], false, Answers::All).unwrap();
    let (splits, report) = made.open(RecordOptions { val_split: 0.25, ..OPTIONS }, None).unwrap();
    assert_eq!(report.records, [15, 5]);
    let val = splits.val.unwrap();
    let eval = |limit| Eval::of_records(val.clone(), 280, [2, 64], limit, 1).unwrap();
    let all: Vec<_> = eval(None).batches().map(Result::unwrap).collect();
    assert_eq!((eval(None).len(), all.len(), all[2].rows), (3, 3, 1));
    assert_eq!((eval(Some(1)).len(), eval(Some(9)).len()), (1, 3));
    let scored: usize = all.into_iter().map(|batch| crate::data::Scored::from(batch).targets()).sum();
    assert_eq!(scored, val.trained());
    let made = source(&[("train.jsonl", &many(20)), ("val.jsonl", &many(3))], false, Answers::All).unwrap();
    assert_eq!(made.open(RecordOptions { val_split: 0.25, ..OPTIONS }, None).unwrap().1.records, [20, 3]);
    let own = |text: &str| source(&[("a.jsonl", text)], false, Answers::All).unwrap();
    let (data, other) = (own(&many(20)), own(&many(4)));
    let joined = Made { source: data.source.validated_by(other.source).unwrap(), ..data };
    assert_eq!(joined.open(OPTIONS, None).unwrap().1.records, [20, 4]);
    drop(other._dir);
}

/// Tokens of large files are kept on disk; another mask is another file.
#[test]
fn tokens_are_cached_with_their_masks() {
    let dir = tempfile::tempdir().unwrap();
    let settings = netcl_device::Settings { cache_dir: Some(dir.path().to_owned()), ..Default::default() };
    let cache = TokenCache::of(&settings).unwrap();
    let text = many(30_000);
    let of = |answers| {
        let made = source(&[("a.jsonl", &text)], false, answers).unwrap();
        let (splits, report) = made.open(OPTIONS, Some(&cache)).unwrap();
        let sum = |record: usize| {
            splits.train.record(record).unwrap().iter().map(|(id, t)| id * 2 + u32::from(*t)).sum::<u32>()
        };
        (report, (0..splits.train.len()).step_by(997).map(sum).collect::<Vec<_>>())
    };
    let first = of(Answers::All);
    assert_eq!(cache.list().len(), 1);
    assert_eq!(first, of(Answers::All));
    assert_eq!(cache.list().len(), 1);
    assert_ne!(first, of(Answers::Everything));
    assert_eq!(cache.list().len(), 2);
}

#[test]
fn templates_by_name_need_their_tokens() {
    let model = model(false);
    let open = |name: &str| RecordTokenizer::open(model.path(), Some(name), Answers::All);
    let message = open("chatml").unwrap_err().to_string();
    assert!(
        message.contains("--chat-template chatml")
            && message.contains("does not have the token <|im_start|>"),
        "{message}"
    );
    assert!(open("no such file").unwrap_err().message().contains("--chat-template"));
    let file = model.path().join("own.jinja");
    fs::write(&file, TEMPLATE).unwrap();
    let own = open(file.to_str().unwrap()).unwrap();
    assert_eq!(
        (own.given().unwrap().text.as_str(), own.given().unwrap().stop, own.has_template()),
        (TEMPLATE, None, true)
    );
    for name in ["chatml", "llama3"] {
        let text = builtin_template(name).unwrap();
        assert!(netcl_llm::template::Template::new(name, text).is_ok());
    }
}

#[test]
fn records_are_not_a_corpus() {
    let made = source(&[("a.jsonl", CHAT)], true, Answers::All).unwrap();
    let corpus: Result<Corpus> = made.source.into_corpus(None);
    assert!(corpus.unwrap_err().message().contains("records are not plain text"));
    assert!(!Path::new("a.jsonl").exists());
}
