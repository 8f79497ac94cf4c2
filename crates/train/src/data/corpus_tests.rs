//! Tests of joining files, errors, cutting into pieces, and the cache.

use super::*;
use std::{
    fs,
    path::{Path, PathBuf},
};

fn open(files: &[(&str, &str)]) -> (tempfile::TempDir, DataSource) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let source = DataSource::open(&[dir.path()]).unwrap();
    (dir, source)
}

fn cache(dir: &Path) -> TokenCache {
    let settings = netcl_device::Settings { cache_dir: Some(dir.into()), ..Default::default() };
    TokenCache::of(&settings).unwrap()
}

fn cached_files(cache: &TokenCache) -> Vec<PathBuf> {
    fs::read_dir(cache.folder()).into_iter().flatten().map(|f| f.unwrap().path()).collect()
}

#[test]
fn files_are_joined_by_line_breaks() {
    let (_dir, source) = open(&[("b", "two"), ("a", "one\n"), ("c", "three")]);
    let text: Result<String> = source.blocks().collect();
    assert_eq!(text.unwrap(), "one\ntwo\nthree");
    let tokenizer = source.char_tokenizer(&mut |_| true).unwrap();
    let corpus = source.into_corpus(Some(&tokenizer)).unwrap();
    assert_eq!(tokenizer.decode(&corpus.train.to_vec().unwrap()).unwrap(), "one\ntwo\nthree");
}

#[test]
fn an_end_token_parts_files() {
    let (_dir, source) = open(&[("a", "one"), ("b", "two")]);
    let tokenizer = Tokenizer::train_bpe(["text"], 257).unwrap();
    let ids = source.into_corpus(Some(&tokenizer)).unwrap().train.to_vec().unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "one<|endoftext|>two");
}

#[test]
fn mistakes_are_named() {
    let tokenizer = Tokenizer::char_from_text(["abc\n"]).unwrap();
    let message =
        |files: &[(&str, &str)], tokenizer| open(files).1.into_corpus(tokenizer).unwrap_err().to_string();
    assert!(message(&[("a", "a")], Some(&tokenizer)).contains("the data has 1 token and nothing to predict"));
    assert!(message(&[("a", "ab")], None).contains("--tokenizer"));
    let unknown = message(&[("a", "abc"), ("b", "axb")], Some(&tokenizer));
    assert!(unknown.contains("/b: character 'x' (U+0078) at position 1"), "{unknown}");
    // Far after the first piece, positions still count from the file's beginning.
    let far = "abc\n".repeat(100_000) + "abx";
    let unknown = message(&[("a", "abc"), ("b", &far)], Some(&tokenizer));
    let place = "/b: character 'x' (U+0078) at position 400002 (line 100001, column 3)";
    assert!(unknown.contains(place), "{unknown}");
}

/// Returns text of several blocks and progress rounds, with multi-byte characters.
fn long() -> String {
    (0..60_000).map(|i| format!("Zeile {i}: Größe und  日本 {}\n", i * 7919 % 1000)).collect()
}

#[test]
fn pieces_give_the_ids_of_the_whole() {
    let text = long();
    let (_dir, source) = open(&[("a", &text), ("b", &text.replace('\n', " "))]);
    for tokenizer in
        [Tokenizer::char_from_text([&*text]).unwrap(), Tokenizer::train_bpe([&text[..200_000]], 400).unwrap()]
    {
        let between = tokenizer.eos().map_or_else(Vec::new, |eos| vec![eos]);
        let whole =
            [tokenizer.encode(&text).unwrap(), between, tokenizer.encode(&text.replace('\n', " ")).unwrap()];
        let mut seen = Vec::new();
        let files = DataSource::Text { files: source.files().to_vec(), val: 0 };
        let corpus = files.into_corpus_with(Some(&tokenizer), None, &mut |p: &super::super::DataProgress| {
            seen.push(*p);
            true
        });
        let train = corpus.unwrap().train;
        assert!(train.to_vec().unwrap() == whole.concat());
        let last = seen.last().unwrap();
        assert_eq!((last.done, last.tokens), (last.total, train.len() as u64));
        assert!(seen.iter().all(|p| p.stage == Stage::Tokenizing) && seen.is_sorted_by_key(|p| p.done));
    }
}

#[test]
fn the_second_run_finds_the_tokens_and_changed_text_does_not() {
    let place = tempfile::tempdir().unwrap();
    let cache = cache(place.path());
    let text = long();
    let tokenizer = Tokenizer::train_bpe([&text[..100_000]], 300).unwrap();
    let run = |text: &str, tokenizer: &Tokenizer| {
        let (_dir, source) = open(&[("a", text)]);
        let mut stages = Vec::new();
        let corpus =
            source.into_corpus_with(Some(tokenizer), Some(&cache), &mut |p: &super::super::DataProgress| {
                stages.push(p.stage);
                true
            });
        (corpus.unwrap().train.to_vec().unwrap(), stages.contains(&Stage::Tokenizing))
    };
    let (ids, encoded) = run(&text, &tokenizer);
    assert!(encoded && ids == tokenizer.encode(&text).unwrap());
    // Another folder and another time, but the same content.
    assert_eq!(run(&text, &tokenizer), (ids.clone(), false));
    let changed = text.replacen("Zeile 0", "Zeile 9", 1);
    assert!(run(&changed, &tokenizer).1);
    let other = Tokenizer::train_bpe([&text[..100_000]], 301).unwrap();
    assert!(run(&text, &other).1);
    let entries = cache.list();
    assert_eq!(entries.len(), 3);
    assert!(entries.iter().all(|e| e.width == 2 && e.source.ends_with("/a") && e.tokens > 100_000));
    assert_eq!((cache.clear().unwrap(), cache.list().len()), (3, 0));
    assert!(run(&text, &tokenizer).1);
}

#[test]
fn a_torn_or_damaged_cache_is_found_and_rebuilt() {
    let place = tempfile::tempdir().unwrap();
    let cache = cache(place.path());
    let text = long();
    let tokenizer = Tokenizer::char_from_text([&*text]).unwrap();
    let (_dir, source) = open(&[("a", &text)]);
    let files = source.files().to_vec();
    let run = || {
        let mut again = false;
        let corpus = DataSource::Text { files: files.clone(), val: 0 }.into_corpus_with(
            Some(&tokenizer),
            Some(&cache),
            &mut |p| {
                again |= p.stage == Stage::Tokenizing;
                true
            },
        );
        (corpus.unwrap().train, again)
    };
    let ids = tokenizer.encode(&text).unwrap();
    assert!(run().1 && !run().1);
    let damages: [fn(&mut Vec<u8>); 6] = [
        |bytes| bytes.truncate(100),
        |bytes| bytes.truncate(5000),
        |bytes| bytes.clear(),
        |bytes| bytes[9000] ^= 1,
        |bytes| bytes[3] ^= 1,
        |bytes| bytes.extend([0, 0]),
    ];
    for (i, damage) in damages.iter().enumerate() {
        let path = cached_files(&cache).pop().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let (train, again) = run();
        assert!(again && train.to_vec().unwrap() == ids, "damage {i}");
        assert_eq!(cached_files(&cache).len(), 1);
    }
    // A file that is cut short while in use is an error, not a SIGBUS.
    let (train, _) = run();
    let path = cached_files(&cache).pop().unwrap();
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10_000).unwrap();
    let message = train.to_vec().unwrap_err().to_string();
    assert!(message.contains("was cut short while it was in use"), "{message}");
}

#[test]
fn who_watches_can_stop_it_and_nothing_stays() {
    let place = tempfile::tempdir().unwrap();
    let cache = cache(place.path());
    let text = long();
    let tokenizer = Tokenizer::char_from_text([&*text]).unwrap();
    let (_dir, source) = open(&[("a", &text)]);
    let error = source.into_corpus_with(Some(&tokenizer), Some(&cache), &mut |_| false).unwrap_err();
    assert!(error.message().contains("stopped while tokenizing"), "{error}");
    assert_eq!(cached_files(&cache), Vec::<PathBuf>::new());
}

#[test]
fn a_cache_that_cannot_be_written_only_costs_memory() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("tokens"), "a file where the folder should be").unwrap();
    let text = long();
    let tokenizer = Tokenizer::char_from_text([&*text]).unwrap();
    let (_dir, source) = open(&[("a", &text)]);
    let cache = cache(place.path());
    let corpus = source.into_corpus_with(Some(&tokenizer), Some(&cache), &mut |_| true).unwrap();
    assert!(corpus.train.to_vec().unwrap() == tokenizer.encode(&text).unwrap());
}

#[test]
fn text_that_changes_between_look_and_reading_is_an_error() {
    let (dir, source) = open(&[("a", "some text")]);
    fs::write(dir.path().join("a"), "other one").unwrap();
    let tokenizer = Tokenizer::char_from_text(["some other text"]).unwrap();
    let message = source.into_corpus(Some(&tokenizer)).unwrap_err().to_string();
    assert!(message.contains("/a: changed while it was read"), "{message}");
}
