#!/usr/bin/env python3
"""Asks `netcl serve` with OpenAI's own client: chat, stream, schema, logprobs, choices, responses, embeddings, errors, keys.

    pip install openai
    python tools/serve_client_check.py --netcl target/release/netcl --model FOLDER

FOLDER is a model whose files have a chat template; any answers will do. The script starts the server on a free port, with a key, and ends it.
"""

import argparse
import json
import subprocess
import sys

from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

ASKED = [{"role": "user", "content": "Once upon a time"}]


def refused(call, kind, param=None, code=None):
    """That a call fails, and how."""
    try:
        call()
    except kind as error:
        assert param is None or error.param == param, error
        assert code is None or error.code == code, error
        return
    raise AssertionError(f"not refused: {param or code or kind}")


def chats(client, model):
    chat = lambda **more: client.chat.completions.create(model=model, messages=ASKED, **{"max_tokens": 16, "seed": 3, **more})
    whole = chat()
    assert whole.usage.completion_tokens == 16 and whole.choices[0].finish_reason == "length"
    parts = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content and parts[-1].usage.completion_tokens == 16
    two = chat(n=2, temperature=1.0)
    assert [choice.index for choice in two.choices] == [0, 1]
    tokens = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(tokens) == 16 and all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    found = json.loads(chat(response_format=form, max_tokens=200).choices[0].message.content)
    assert found in ({"a": 1}, {"a": 2}), found
    refused(lambda: chat(extra_body={"unheard_of": 1}), BadRequestError, param="unheard_of")
    refused(lambda: chat(temperature=-1), BadRequestError, param="temperature")
    long = [{"role": "user", "content": "word " * 5000}]
    too_long = lambda: client.chat.completions.create(model=model, messages=long)
    refused(too_long, BadRequestError, code="context_length_exceeded")
    refused(lambda: client.chat.completions.create(model="nobody", messages=ASKED), NotFoundError)


def others(client, model):
    plain = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, seed=1)
    assert plain.usage.completion_tokens == 8
    answer = client.responses.create(model=model, input="Once upon a time", max_output_tokens=16)
    assert answer.output_text and answer.usage.output_tokens == 16
    kinds = [event.type for event in client.responses.create(model=model, input="Once", max_output_tokens=16, stream=True)]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    one, same, other = client.embeddings.create(model=model, input=["a cat", "a cat", "the sun"]).data
    product = lambda a, b: sum(x * y for x, y in zip(a.embedding, b.embedding))
    assert abs(product(one, same) - 1) < 1e-3 and product(one, other) < 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--netcl", default="target/release/netcl")
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    command = [args.netcl, "serve", "-m", args.model, "--port", "0", "--api-key", "secret"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip() + "/v1"
        client = OpenAI(base_url=address, api_key="secret", max_retries=10)
        model = client.models.list().data[0].id
        chats(client, model)
        others(client, model)
        refused(lambda: OpenAI(base_url=address, api_key="wrong").models.list(), AuthenticationError)
    finally:
        server.terminate()
    assert server.wait(60) == 0
    print("OpenAI's client gets what it asks for")


if __name__ == "__main__":
    sys.exit(main())
