use super::*;
use netcl_test_data::{needs_data, test_data};
use std::time::Instant;

/// 26 July 2024, noon.
const DAY: Duration = Duration::from_secs(1_721_995_200);

fn render(text: &str, messages: &str) -> Result<String> {
    let chat = Chat { messages: value_of_json(messages)?, now: Some(DAY), ..Chat::default() };
    Template::new("test", text)?.render(&chat)
}

/// Name and source of each template, and the cases that `transformers` rendered.
fn cases() -> Vec<(String, String, Vec<Value>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(test_data!().join("chat-templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let cases = std::fs::read_to_string(path.with_extension("expected.json")).unwrap();
        let cases = value_of_json(&cases).unwrap().try_iter().unwrap().collect();
        all.push((path.file_stem().unwrap().to_string_lossy().into_owned(), text, cases));
    }
    all
}

fn chat(case: &Value) -> Chat {
    let get = |key: &str| case.get_attr(key).unwrap();
    Chat {
        messages: get("messages"),
        tools: Some(get("tools")).filter(|tools| !tools.is_none()),
        answer: get("add_generation_prompt").is_true(),
        bos: "<s>".into(),
        eos: "</s>".into(),
        now: Some(DAY),
        ..Chat::default()
    }
}

#[needs_data("chat-templates")]
#[test]
fn every_case_of_transformers() {
    for (name, text, cases) in cases() {
        let template = Template::new(&name, &text).unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let got = template.render(&chat(&case));
            let get = |key: &str| case.get_attr(key).unwrap();
            match (get("text").as_str(), get("error").as_str()) {
                (Some(text), _) => assert_eq!(got.unwrap(), text, "{name} {}", get("conversation")),
                (_, Some(error)) => {
                    let said = error.split_once(": ").map_or(error, |(_, said)| said);
                    let error = got.unwrap_err();
                    assert!(
                        error.message().contains(said) && error.message().contains(&name),
                        "{name}: {error}"
                    );
                    assert!(error.message().contains("line "), "{error}");
                }
                _ => panic!("{name}: the case has neither text nor error"),
            }
        }
    }
}

#[test]
fn values_are_written_as_python_does() {
    let messages = r#"[{"role": "user", "b": 1, "a": [1.0, true, null, "ü<'\""], "n": 1e-7}]"#;
    let cases = [
        (
            "{{ messages[0] | tojson }}",
            r#"{"role": "user", "b": 1, "a": [1.0, true, null, "ü<'\""], "n": 1e-07}"#,
        ),
        ("{{ messages[0] }}", r#"{'role': 'user', 'b': 1, 'a': [1.0, True, None, 'ü<\'"'], 'n': 1e-07}"#),
        ("{{ messages[0].a | tojson(ensure_ascii=true) }}", r#"[1.0, true, null, "\u00fc<'\""]"#),
        ("{{ messages[0].a[:2] | tojson(indent=1) }}", "[\n 1.0,\n true\n]"),
        ("{{ {'z': 1, 'y': {}} | tojson(separators=(',', ':'), sort_keys=true) }}", r#"{"y":{},"z":1}"#),
        ("{{ [] | tojson(indent=2) }}{{ none }}{{ true }}{{ nothing }}", "[]NoneTrue"),
        ("{{ messages | map(attribute='role') | list | tojson }}", r#"["user"]"#),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | first).b }}", "1"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}", "13"),
        (
            "{% for m in [1, 2, 3] %}\n  {% if m == 3 %}{% break %}{% endif %}\n  {{ m }}\n{% endfor %}\n",
            "  1\n  2\n",
        ),
        ("{{ ' a '.strip() + 'x,y'.split(',')[-1] + 'Ab'.upper() }}", "ayAB"),
        ("a\n{%- generation -%}\n b \n{% endgeneration %}\nc\n", "ab \nc"),
        ("{% generation %}\nx{% endgeneration %}", "x"),
        ("{{ '{% generation' }}{% raw %}{{ x + y }}{% endraw %}", "{% generation{{ x + y }}"),
        ("{{ ([1] + [2])[:3] | tojson }}{{ [1, 2][1:] }}", "[1, 2][2]"),
        ("{{ 1 + 2 }}{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 1 - 2 + 4 }}", "3[1, 2]ab3"),
    ];
    for (template, expected) in cases {
        assert_eq!(render(template, messages).unwrap(), expected, "{template}");
    }
}

#[test]
fn thoughts_have_all_their_names() {
    let messages =
        r#"[{"role": "assistant", "reasoning": "hm", "content": "x"}, {"role": "user", "content": "y"}]"#;
    let text = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ m.content }}{% endfor %}";
    assert_eq!(render(text, messages).unwrap(), "hmhmxy");
    assert!(render("{{ messages }}", "[1]").unwrap_err().message().contains("messages: expected objects"));
}

#[test]
fn errors_name_template_and_line() {
    let messages = r#"[{"role": "user", "content": "x"}]"#;
    let cases = [
        ("a\n{{ raise_exception('no ' + messages[0].role) }}", "chat template test, line 2: no user"),
        ("a\n\n{% if %}", "chat template test, line 3: "),
        ("\n{{ messages[0].no.such }}", "chat template test, line 2: "),
        ("{{ nobody() }}", "line 1: "),
        ("{{ strftime_now('%Q') }}", "line 1: %Q is not a directive"),
        (
            "{{ messages | map(attribute='role') | tojson }}",
            "line 1: Object of type generator is not JSON serializable",
        ),
        ("{% macro f() %}\n{{ raise_exception('inside') }}{% endmacro %}{{ f() }}", "line 2: inside"),
        ("{% include 'other' %}", "line 1"),
    ];
    for (template, expected) in cases {
        let error = render(template, messages).unwrap_err();
        assert!(error.message().contains(expected), "{template}: {error}");
    }
}

/// Work and memory are bounded, and so is the depth of calls and values.
#[test]
fn templates_without_end_are_stopped() {
    let cases = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(1000000000000) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(x='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set s = 'a' * 4096 %}{% set t = s.replace('a', s) %}{% set u = t.replace('a', s) %}{{ u.replace('a', s) }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(2000) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x={}) %}{% for a in range(2000) %}{% for i in range(200) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(40000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(40000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(40000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x ~ 'a' }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(40000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
        "{% set ns = namespace(x=[1], y=[2]) %}{% for i in range(90) %}{% set z = ns.x + ns.y %}{% set ns.x = ns.y %}{% set ns.y = z %}{% endfor %}{{ ns.y | length }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = (ns.x) + (ns.x) %}{% endfor %}{{ ns.x | length }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format('x') }}",
        "{{ range(1000000000) | list | length }}",
        "{{ ('a,' * 100000).split(',') | join('b' * 100000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ [1, 2, 3] | batch(1000000000, 'x') | list }}",
        "{{ [1, 2, 3] | slice(1000000000, 'x') | list }}",
        "{{ 10 ** 10 ** 10 ** 10 }}",
        "{{ lipsum(100000000) }}",
    ];
    for template in cases {
        let start = Instant::now();
        println!("{template}");
        let got = render(template, "[]");
        assert!(start.elapsed() < Duration::from_secs(60), "{template}: {:?}", start.elapsed());
        match got {
            Ok(text) => assert!(text.len() < 100_000_000, "{template}: {} bytes", text.len()),
            Err(error) => assert!(error.message().starts_with("chat template test"), "{error}"),
        }
    }
    let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(render(&format!("{{{{ {deep} }}}}"), "[]").is_err());
    for [before, behind] in
        [["{% for ", " in x %}{% endfor %}"], ["{% set ", " = 1 %}"], ["{{ f", " }}"], ["{{ ", ""]]
    {
        for bracket in ["(", "[", "{"] {
            let deep = format!("{before}{}a{behind}", bracket.repeat(10_000));
            let error = render(&deep, "[]").unwrap_err();
            assert!(error.message().contains("line 1: more than 128 nested brackets"), "{error}");
        }
    }
    let deep = "{% if true %}".repeat(100_000);
    assert!(render(&deep, "[]").is_err());
    let list = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(value_of_json(&list).is_err());
}

/// Damaged templates give an error or a text within a short time.
#[needs_data("chat-templates")]
#[test]
fn damaged_templates_neither_panic_nor_hang() {
    let all = cases();
    let mut n = 0u64;
    let mut below = |limit: usize| {
        n += 1;
        netcl_tensor::random::draw(5, 0, n)[0] as usize % limit.max(1)
    };
    let (mut wrong, mut right) = (0, 0);
    for _ in 0..500 {
        let (name, text, cases) = &all[below(all.len())];
        let mut bytes = text.clone().into_bytes();
        for _ in 0..1 + below(3) {
            let at = below(bytes.len());
            let len = below(40).min(bytes.len() - at);
            match below(5) {
                0 => drop(bytes.drain(at..at + len)),
                1 => bytes[at] = below(256) as u8,
                2 => {
                    let part = bytes[at..at + len].to_vec();
                    let to = below(bytes.len());
                    bytes.splice(to..to, part);
                }
                3 => {
                    let parts: [&[u8]; 12] = [
                        b"{%",
                        b"%}",
                        b"{{",
                        b"}}",
                        b"{#",
                        b"not ",
                        b"[-1]",
                        b" in ",
                        b"'",
                        b"*9999999",
                        b"{% for x in messages %}",
                        b"((",
                    ];
                    let part = parts[below(parts.len())];
                    bytes.splice(at..at, part.iter().copied());
                }
                _ => bytes.truncate(at),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let case = &cases[below(cases.len())];
        let start = Instant::now();
        match Template::new(name, &text).and_then(|template| template.render(&chat(case))) {
            Ok(_) => right += 1,
            Err(error) => {
                assert!(error.message().contains(name.as_str()), "{error}");
                wrong += 1;
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{text}");
    }
    assert!(wrong > 100 && right > 50, "{wrong} {right}");
}

#[test]
fn templates_come_from_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let said = |name: Option<&str>, tools: bool| {
        Templates::from_folder(folder.path()).and_then(|all| {
            all.get(name, tools)?
                .render(&Chat { messages: Value::from(Vec::<Value>::new()), ..Chat::default() })
        })
    };
    assert!(said(None, false).unwrap_err().message().contains("does not have a chat template"));
    write("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    assert_eq!(said(None, true).unwrap(), "config");
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]}"#,
    );
    assert_eq!((said(None, false).unwrap(), said(None, true).unwrap()), ("one".into(), "two".into()));
    assert!(said(Some("rag"), false).unwrap_err().message().contains("it has default, tool_use"));
    write("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(said(None, false).unwrap(), "json");
    write("chat_template.jinja", "{{ 'jinja' }}\n");
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/rag.jinja", "rag");
    assert_eq!(
        (said(None, false).unwrap(), said(Some("rag"), false).unwrap()),
        ("jinja".into(), "rag".into())
    );
    write("chat_template.jinja", "a\n{{");
    let error = said(None, false).unwrap_err();
    assert!(error.message().contains("chat_template.jinja") && error.message().contains("line 2"), "{error}");
    let named = Templates::new([("default", "x"), ("tool_use", "y")]).unwrap();
    assert_eq!(named.names().collect::<Vec<_>>(), ["default", "tool_use"]);
}

/// Values inside others are shared: a few steps could create one that no memory can hold in written form.
#[test]
fn values_that_double_end() {
    for (body, part) in [
        (
            "{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
            "a value of more than",
        ),
        (
            "{% for i in range(99) %}{% set ns.a = {1: ns.a, 2: ns.a} %}{% endfor %}{{ ns.a | upper }}",
            "a value of more than",
        ),
        (
            "{% for i in range(99) %}{% set ns.a = dict(a=ns.a, b=ns.a) %}{% endfor %}{{ ns.a | tojson }}",
            "a value of more than",
        ),
        (
            "{% for i in range(99) %}{% set ns.a = ns.a | zip(ns.a) | list %}{% endfor %}{{ ns.a | tojson }}",
            "a value of more than",
        ),
        (
            "{% for i in range(99) %}{% set ns.a = [1] | batch(3, ns.a) %}{% endfor %}{{ ns.a | string }}",
            "a value of more than",
        ),
        ("{% set ns.a = ns %}{% set ns.b = ns %}{{ ns }}", "a namespace in a namespace"),
        ("{% set x = namespace(a=ns) %}{% set ns.a = [x] %}{{ ns | upper }}", "a namespace in a namespace"),
        ("{% set ns.a = [ns] %}{{ ns | upper }}", "a namespace in a namespace"),
    ] {
        let text = "{% set ns = namespace(a=[1]) %}".to_owned() + body;
        let error = Template::new("t", &text).unwrap().render(&Chat::default()).unwrap_err();
        assert!(error.message().contains(part), "{body}: {error}");
    }
}
