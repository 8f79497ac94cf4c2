//! `netcl serve` as a process: its first line, its end, and what it refuses. The server's crate tests its answers.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests

use crate::common;

use common::{device, netcl, texts};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Returns a small model with a chat template: the one in the data folder next to the repository, or one that is trained in a second.
fn model(name: &str) -> PathBuf {
    let from = netcl_test_data::test_data!().join("models/stories260K/hf");
    let folder = common::folder(name);
    let copy = |from: &Path, files: &[&str]| {
        files.iter().for_each(|file| {
            std::fs::write(folder.join(file), std::fs::read(from.join(file)).unwrap()).unwrap()
        });
    };
    if from.exists() {
        copy(&from, &["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]);
    } else {
        let (trained, run) = trained(&folder);
        copy(&trained, &["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]);
        std::fs::remove_dir_all(run).unwrap();
    }
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}assistant:";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    folder
}

/// Trains a model of characters with an end-of-text token; returns it with its run folder.
fn trained(folder: &Path) -> (PathBuf, PathBuf) {
    let (data, run) = (folder.join("text.txt"), folder.join("run"));
    let letters: String = (' '..='~').collect();
    let lines: Vec<String> = (0..300).map(|i| format!("{i} {letters}\nassistant: The cat sat.\n")).collect();
    std::fs::write(&data, lines.concat()).unwrap();
    let mut args = common::tiny_run(&data, &run, 20);
    let context = args.iter().position(|arg| arg == "--context").unwrap();
    args[context + 1] = "256".into();
    let out = netcl().args(args).args(["--vocab", "128"]).output().unwrap();
    assert!(out.status.success(), "{:?}", texts(&out));
    let step = std::fs::read_dir(run.join("checkpoints")).unwrap().next().unwrap().unwrap().path();
    let tokenizer = std::fs::read_to_string(step.join("tokenizer.json")).unwrap();
    let end = r#""added_tokens": [{ "id": 120, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }]"#;
    let with_end = tokenizer.replace(r#""added_tokens": []"#, end);
    assert!(with_end != tokenizer, "{tokenizer}");
    std::fs::write(step.join("tokenizer.json"), with_end).unwrap();
    (step, run)
}

/// Starts a server; returns it with its address.
fn serve(model: &Path, more: &[&str]) -> (Child, String) {
    let mut command = netcl();
    command
        .args(["serve", "--port", "0", "--device", &device(), "--model"])
        .arg(format!("tiny={}", model.display()));
    let mut child = command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("http://127.0.0.1:"), "{line:?}");
    (child, line.trim().to_owned())
}

/// Stops a server; returns its log.
fn stopped(mut child: Child) -> String {
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{log}");
    log
}

fn post(url: &str, path: &str, key: &str, body: &str) -> String {
    let place = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(place).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_signal_ends_it_and_keys_stay_secret() {
    let model = model("serve-signal");
    let (child, url) = serve(&model, &["--api-key", "very-secret", "--log-format", "json"]);
    let body = r#"{"messages": [{"role": "user", "content": "Once"}], "max_tokens": 5}"#;
    let answer = post(&url, "/v1/chat/completions", "very-secret", body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("chat.completion"), "{answer}");
    assert!(post(&url, "/v1/chat/completions", "wrong-secret", body).starts_with("HTTP/1.1 401"));
    let log = stopped(child);
    assert!(log.lines().any(|line| line.starts_with('{') && line.contains("\"answered\"")), "{log}");
    assert!(!log.contains("secret"), "{log}");
    std::fs::remove_dir_all(model).unwrap();
}

#[test]
fn what_cannot_be_served_is_said() {
    let run = |more: &[&str]| {
        let out = netcl().args(["serve", "--port", "0", "--device", &device()]).args(more).output().unwrap();
        (out.status.code(), texts(&out))
    };
    let model = model("serve-refused");
    let (own, file) = (model.to_str().unwrap(), |name: &str| model.join(name).to_str().unwrap().to_owned());
    let (code, (out, err)) = run(&["-m", "none.gguf"]);
    assert!(code == Some(1) && out.is_empty() && err.contains("--model none.gguf: no such file"), "{err}");
    let (code, (out, err)) = run(&["-m", own, "-m", "later=none.gguf"]);
    assert!(code == Some(1) && out.is_empty() && err.contains("--model none.gguf"), "{err}");
    let (code, (_, err)) = run(&["-m", own, "--lora", "tuned=none"]);
    assert!(code == Some(1) && err.contains("--lora none: no such file"), "{err}");
    let (code, (out, err)) = run(&["-m", own, "--host", "0.0.0.0"]);
    assert!(code == Some(1) && out.is_empty() && err.contains("--no-auth"), "{err}");
    let same = format!("a={own}");
    let (code, (_, err)) = run(&["-m", &same, "-m", &same]);
    assert!(code == Some(1) && err.contains("two models are named a"), "{err}");
    let (code, (_, err)) = run(&["-m", own, "--memory", "10K"]);
    assert!(code == Some(4) && err.contains("--memory") && err.contains("10.0 KiB"), "{err}");
    assert_eq!(run(&["-m", own, "--memory", "much"]).0, Some(2));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let out = netcl().args(["serve", "--device", &device(), "-m", own, "--port", &port]).output().unwrap();
    let (out, err) = (out.status.code(), texts(&out).1);
    assert!(
        out == Some(1) && err.contains(&format!("--port {port}")) && err.contains("another program"),
        "{err}"
    );
    let (code, (_, err)) = run(&["-m", own, "--no-auth", "--host", "192.0.2.1"]);
    assert!(code == Some(1) && err.contains("--host 192.0.2.1 is not an address of this machine"), "{err}");
    // Files without keys, and files that are not models.
    std::fs::write(model.join("keys"), "# none yet\n\n").unwrap();
    let (code, (_, err)) = run(&["-m", own, "--api-key-file", &file("keys")]);
    assert!(code == Some(1) && err.contains("contains no key"), "{err}");
    let (code, (_, err)) = run(&["-m", own, "--api-key-file", &file("absent")]);
    assert!(code == Some(1) && err.contains("--api-key-file") && err.contains("absent"), "{err}");
    assert_eq!(run(&["-m", own, "--api-key", "schlüssel"]).0, Some(1));
    std::fs::write(model.join("text.gguf"), "hello").unwrap();
    let (code, (_, err)) = run(&["-m", &file("text.gguf")]);
    assert!(code == Some(1) && err.contains("text.gguf: not a GGUF file"), "{err}");
    std::fs::create_dir(model.join("empty")).unwrap();
    let (code, (_, err)) = run(&["-m", &file("empty")]);
    assert!(code == Some(1) && err.contains("contains no model: expected config.json"), "{err}");
    std::fs::remove_dir_all(model).unwrap();
}

/// Sends schemas of a few bytes that take their compiler hours, all memory or the whole stack. The server refuses them and still stops.
#[test]
fn hostile_schemas_are_refused_and_do_not_keep_the_server_from_stopping() {
    let model = model("serve-hostile");
    let (child, url) = serve(&model, &["--drain", "1"]);
    let body = |schema: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}], "max_tokens": 2, "response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}}}"#
        )
    };
    let patterns: Vec<String> = (0..40).map(|n| format!(r#"{{"pattern": "a.{{{n}}}b"}}"#)).collect();
    let patterns = format!(r#"{{"type": "string", "allOf": [{}]}}"#, patterns.join(","));
    let link =
        |n: u32| format!(r##""a{n}": {{"type": "array", "items": {{"$ref": "#/$defs/a{}"}}}}"##, n - 1);
    let links: Vec<String> = (1..5000).map(link).collect();
    let chain = format!(
        r##"{{"$defs": {{"a0": {{"type": "string"}}, {}}}, "$ref": "#/$defs/a4999"}}"##,
        links.join(",")
    );
    let divisor = r#"{"type": "integer", "multipleOf": 99999989}"#;
    for schema in [patterns.as_str(), chain.as_str(), divisor] {
        let answer = post(&url, "/v1/chat/completions", "", &body(schema));
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("response_format"), "{answer}");
    }
    let usual = r#"{"type": "string", "pattern": "^[a-z]{1,3}$"}"#;
    let answer = post(&url, "/v1/chat/completions", "", &body(usual));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // These clients disconnect at once.
    let place = url.strip_prefix("http://").unwrap();
    for n in 0..8 {
        let body = body(&patterns.replace("a.{39}b", &format!("a.{{{}}}b", 40 + n)));
        let mut stream = TcpStream::connect(place).unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {place}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
    }
    let log = stopped(child);
    assert!(!log.contains("ERROR"), "{log}");
    std::fs::remove_dir_all(model).unwrap();
}

/// A keys file that every user can read causes a warning; so does a model without a tokenizer.
#[test]
fn what_is_served_all_the_same_is_said() {
    use std::os::unix::fs::PermissionsExt as _;
    let model = model("serve-warned");
    let keys = model.join("keys");
    std::fs::write(&keys, "secret\n").unwrap();
    for (mode, warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).unwrap();
        let (child, url) = serve(&model, &["--api-key-file", keys.to_str().unwrap()]);
        let body = r#"{"prompt": [3, 4], "max_tokens": 1}"#;
        assert!(post(&url, "/v1/completions", "secret", body).starts_with("HTTP/1.1 200"));
        let log = stopped(child);
        assert_eq!(log.contains("chmod 600"), warned, "{log}");
        assert!(!log.contains("secret"), "{log}");
    }
    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    let (child, url) = serve(&model, &[]);
    assert!(
        post(&url, "/v1/completions", "", r#"{"prompt": [3, 4], "max_tokens": 1}"#)
            .starts_with("HTTP/1.1 200")
    );
    let refused =
        post(&url, "/v1/chat/completions", "", r#"{"messages": [{"role": "user", "content": "a"}]}"#);
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.contains("does not have a tokenizer"),
        "{refused}"
    );
    assert!(stopped(child).contains("does not have a tokenizer"));
    std::fs::remove_dir_all(model).unwrap();
}

/// Writes an adapter of rank 1 as PEFT saves it, for the output projection of the first layer's attention.
fn adapter(folder: &Path) {
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 64, "target_modules": ["o_proj"], "bias": "none", "task_type": "CAUSAL_LM"}"#;
    std::fs::write(folder.join("adapter_config.json"), config).unwrap();
    let name = |part: &str| format!("base_model.model.model.layers.0.self_attn.o_proj.lora_{part}.weight");
    let header = format!(
        r#"{{"{}": {{"dtype": "F32", "shape": [1, 64], "data_offsets": [0, 256]}}, "{}": {{"dtype": "F32", "shape": [64, 1], "data_offsets": [256, 512]}}}}"#,
        name("A"),
        name("B")
    );
    let numbers = (0..128u8).flat_map(|n| (f32::from(n % 7) - 3.0).to_le_bytes());
    let bytes: Vec<u8> =
        (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(numbers).collect();
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
}

#[test]
fn an_adapter_is_a_model_of_its_own() {
    let model = model("serve-lora");
    let folder = common::folder("serve-lora-adapter");
    adapter(&folder);
    let lora = format!("tuned={}", folder.display());
    let (child, url) = serve(&model, &["--lora", &lora]);
    let said = |model: &str| {
        let body = format!(
            r#"{{"model": "{model}", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}}"#
        );
        let answer = post(&url, "/v1/completions", "none", &body);
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(&format!("\"model\":\"{model}\"")),
            "{answer}"
        );
        let from = answer.find("\"text\":").unwrap();
        answer[from..].split("\"logprobs\"").next().unwrap().to_owned()
    };
    let (plain, tuned) = (said("tiny"), said("tuned"));
    assert!(plain != tuned && said("tiny") == plain && said("tuned") == tuned, "{plain} {tuned}");
    assert!(
        post(&url, "/v1/completions", "none", r#"{"model": "other", "prompt": "a"}"#)
            .starts_with("HTTP/1.1 404")
    );
    stopped(child);
    // An adapter that does not fit is an error when it is requested; the model itself stays available.
    std::fs::remove_file(folder.join("adapter_model.safetensors")).unwrap();
    let (child, url) = serve(&model, &["--lora", &lora]);
    let answer =
        post(&url, "/v1/completions", "none", r#"{"model": "tuned", "prompt": "a", "max_tokens": 1}"#);
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("adapter_model.safetensors"), "{answer}");
    let answer = post(&url, "/v1/completions", "none", r#"{"prompt": "a", "max_tokens": 1}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stopped(child);
    [model, folder].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
}

/// Tests the official client packages if `NETCL_CLIENTS` or `NETCL_PYTHON` names a Python that has them (`tools/serve_python.sh` makes one).
#[test]
fn official_clients_are_answered() {
    let named = std::env::var("NETCL_CLIENTS").or_else(|_| std::env::var("NETCL_PYTHON"));
    let python = named.unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import openai"]).output().is_ok_and(|out| out.status.success()) {
        println!(
            "skipped: {python} does not have openai; NETCL_CLIENTS=$(tools/serve_python.sh) names one that does"
        );
        return;
    }
    let model = model("serve-clients");
    let (child, url) = serve(&model, &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/serve_clients.py");
    let out = Command::new(&python).arg(script).arg(&url).output().unwrap();
    let (said, wrong) = texts(&out);
    let log = stopped(child);
    assert!(out.status.success(), "{said}{wrong}{log}");
    println!("{said}");
    std::fs::remove_dir_all(model).unwrap();
}

/// Serves a model that is trained here, for machines without the data of the test above.
#[test]
fn a_model_that_was_trained_here_is_served() {
    let folder = common::folder("serve-trained");
    let (model, _) = trained(&folder);
    std::fs::write(model.join("chat_template.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}")
        .unwrap();
    let (child, url) = serve(&model, &[]);
    let body = r#"{"messages": [{"role": "user", "content": "The cat"}], "max_tokens": 200, "response_format": {"type": "json_schema",
        "json_schema": {"name": "s", "schema": {"enum": ["yes", "no"]}}}}"#;
    let answer = post(&url, "/v1/chat/completions", "none", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains(r#""content":"\"yes\"""#) || answer.contains(r#""content":"\"no\"""#),
        "{answer}"
    );
    assert!(answer.contains(r#""finish_reason":"stop""#), "{answer}");
    stopped(child);
    std::fs::remove_dir_all(folder).unwrap();
}
