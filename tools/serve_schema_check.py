#!/usr/bin/env python3
"""Validates answers of a running `netcl serve` with OpenAI's published schema: python tools/serve_schema_check.py URL openapi.yaml [MODEL]

openapi.yaml (or .json) comes from github.com/openai/openai-openapi. Needs `pip install jsonschema pyyaml`. Each answer, and each event of a
stream, must be valid by its schema in the document; additional fields are allowed. This includes errors. Ends with 1 if an answer is invalid.
"""

import json
import sys
import urllib.error
import urllib.request

import jsonschema

USER = [{"role": "user", "content": "Once upon a time"}]
TOOL = {
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False},
}


def load(path):
    with open(path, encoding="utf-8") as file:
        if path.endswith(".json"):
            return json.load(file)
        import yaml

        return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def plain(node):
    """Converts OpenAPI's `nullable` and discriminators to JSON Schema."""
    if isinstance(node, list):
        return [plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    node = {key: plain(value) for key, value in node.items() if key not in ("discriminator", "example")}
    if node.pop("nullable", False) is True:
        return {"anyOf": [node, {"type": "null"}]}
    return node


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def events(text):
    found = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in found if line != "[DONE]"]


def main():
    url, path = sys.argv[1].rstrip("/"), sys.argv[2]
    document = plain(load(path))
    model = sys.argv[3] if len(sys.argv) > 3 else json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
    failed = 0

    def check(name, schema, values):
        nonlocal failed
        whole = {**document, "$ref": f"#/components/schemas/{schema}"}
        validator = jsonschema.Draft202012Validator(whole)
        problems = []
        for value in values:
            problems += [(error, value) for error in validator.iter_errors(value)]
        for error, value in problems[:3]:
            deep = jsonschema.exceptions.best_match([error])
            where = "/".join(str(part) for part in deep.absolute_path)
            print(f"FAILED: {name} ({schema}) at {where}: {deep.message[:300]}; in {json.dumps(value)[:300]}")
        if not values:
            print(f"FAILED: {name}: no answer arrived")
        failed += bool(problems) or not values
        if values and not problems:
            print(f"ok: {name}: {len(values)} valid by {schema}")

    def answer(name, schema, path, body, stream=None):
        status, text = post(url, path, body)
        if status != 200:
            return check(name, schema, [f"{status}: {text}"])
        check(name, schema, [json.loads(text)])
        if stream:
            check(name + ", streamed", stream, events(post(url, path, {**body, "stream": True})[1]))

    chat = {"model": model, "messages": USER, "max_tokens": 24, "seed": 1}
    tool = {"type": "function", "function": TOOL}
    whole, chunk = "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"
    answer("chat", whole, "/v1/chat/completions", chat, chunk)
    answer("chat with logprobs", whole, "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2, "n": 2}, chunk)
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": TOOL["parameters"]}}
    answer("chat with a schema", whole, "/v1/chat/completions", {**chat, "response_format": form}, chunk)
    called = {**chat, "tools": [tool], "tool_choice": "required", "max_tokens": 120, "parallel_tool_calls": False}
    tools = post(url, "/v1/chat/completions", called)[0] == 200
    if tools:
        answer("chat with a call", whole, "/v1/chat/completions", called, chunk)
    else:
        print("skipped: function calls, which the chat template does not support")
    usage = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    check("chat, streamed with usage", chunk, events(post(url, "/v1/chat/completions", usage)[1]))
    text = {"model": model, "prompt": "Once", "max_tokens": 12, "logprobs": 2}
    answer("completion", "CreateCompletionResponse", "/v1/completions", text)
    parts = events(post(url, "/v1/completions", {**text, "stream": True})[1])
    for part in parts:
        for choice in part["choices"]:
            # The document does not allow null here, but OpenAI sends it until the end.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    check("completion, streamed", "CreateCompletionResponse", parts)
    for form in ("float", "base64"):
        body = {"model": model, "input": ["a", "b"], "encoding_format": form}
        status, said = post(url, "/v1/embeddings", body)
        said = json.loads(said)
        if form == "base64":
            # The document only allows numbers.
            assert all(isinstance(one["embedding"], str) for one in said["data"])
            continue
        check("embeddings", "CreateEmbeddingResponse", [said])
    respond = {"model": model, "input": "Once", "instructions": "Tell.", "max_output_tokens": 24}
    answer("response", "Response", "/v1/responses", respond, "ResponseStreamEvent")
    if tools:
        respond = {**respond, "tools": [{"type": "function", **TOOL, "strict": True}], "tool_choice": "required", "max_output_tokens": 120, "parallel_tool_calls": False}
        answer("response with a call", "Response", "/v1/responses", respond, "ResponseStreamEvent")
    check("models", "ListModelsResponse", [json.load(urllib.request.urlopen(url + "/v1/models"))])
    check("model", "Model", [json.load(urllib.request.urlopen(f"{url}/v1/models/{model}"))])
    wrong = [
        post(url, "/v1/chat/completions", {**chat, "frobnicate": 1}),
        post(url, "/v1/chat/completions", {**chat, "model": "none"}),
        post(url, "/v1/chat/completions", []),
        post(url, "/v1/none", {}),
    ]
    assert all(status >= 400 for status, _ in wrong)
    check("errors", "ErrorResponse", [json.loads(text) for _, text in wrong])
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
