#!/usr/bin/env python3
"""Tests a running `netcl serve` with official clients: python tools/serve_clients.py http://127.0.0.1:8080 [MODEL]

Needs `pip install openai`; the parts for `ollama`, `jsonschema`, `litellm` and `instructor` run if those packages are installed. The model
needs a chat template; its answers do not matter. Ends with 1 and lists the failed checks if one fails.
"""

import importlib.util
import json
import os
import sys

import openai

USER = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ada", "bob"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def has(package):
    return importlib.util.find_spec(package) is not None


@check
def models(client, model):
    assert model in [m.id for m in client.models.list()]
    assert client.models.retrieve(model).id == model


@check
def chat(client, model):
    ask = dict(model=model, messages=USER, max_tokens=20, seed=3)
    answer = client.chat.completions.create(**ask)
    text = answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length") and answer.usage.completion_tokens <= 20
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    several = client.chat.completions.create(**ask, n=3)
    assert [c.index for c in several.choices] == [0, 1, 2] and several.choices[0].message.content == text
    try:
        with client.chat.completions.stream(**ask) as stream:
            assert stream.get_final_completion().choices[0].message.content == text
    except openai.LengthFinishReasonError as error:
        # This helper calls an answer that was as long as allowed an error.
        assert error.completion.choices[0].message.content == text


@check
def logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens and all(len(t.top_logprobs) == 2 for t in content)
    assert all(t.logprob == t.top_logprobs[0].logprob <= 0 for t in content), "the most likely token was not chosen"


@check
def completions(client, model):
    answer = client.completions.create(model=model, prompt=["The cat", "The dog"], max_tokens=6, temperature=0, echo=True)
    assert [c.text.startswith(p) for c, p in zip(answer.choices, ["The cat", "The dog"])] == [True, True]
    stream = client.completions.create(model=model, prompt="The cat", max_tokens=6, temperature=0, stream=True)
    assert "The cat" + "".join(c.choices[0].text for c in stream) == answer.choices[0].text


@check
def schemas(client, model):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    answer = client.chat.completions.create(model=model, messages=USER, response_format=form, max_tokens=150, seed=1)
    if answer.choices[0].finish_reason == "stop":
        value = json.loads(answer.choices[0].message.content)
        assert value["name"] in ("ada", "bob") and 0 <= value["n"] <= 9
        if has("jsonschema"):
            import jsonschema

            jsonschema.validate(value, SCHEMA)
    form["json_schema"]["schema"] = {"type": "array", "uniqueItems": True}
    try:
        client.chat.completions.create(model=model, messages=USER, response_format=form)
        raise AssertionError("a keyword that cannot be enforced was accepted")
    except openai.BadRequestError as error:
        assert "uniqueItems" in error.message


@check
def tools(client, model):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}
    try:
        answer = client.chat.completions.create(model=model, messages=USER, tools=[tool], max_tokens=8)
    except openai.BadRequestError as error:
        # A template without function calls gives an error, not silence.
        assert error.param == "tools", error
        return
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    for call in answer.choices[0].message.tool_calls or []:
        assert call.function.name and isinstance(call.function.arguments, str)
    tool["function"].update(name="person", strict=True, parameters=SCHEMA)
    ask = dict(model=model, messages=USER, tools=[tool], parallel_tool_calls=False, max_tokens=200)
    whole = 0
    for seed, choice in enumerate(["required", {"type": "function", "function": {"name": "person"}}] * 3):
        answer = client.chat.completions.create(**ask, tool_choice=choice, seed=seed).choices[0]
        chunks = client.chat.completions.create(**ask, tool_choice=choice, seed=seed, stream=True)
        deltas = [c for chunk in chunks if chunk.choices for c in chunk.choices[0].delta.tool_calls or []]
        if answer.finish_reason == "length":
            continue
        whole += 1
        assert answer.finish_reason == "tool_calls" and len(answer.message.tool_calls) == 1
        call = answer.message.tool_calls[0].function
        value = json.loads(call.arguments)
        assert call.name == "person" and value["name"] in ("ada", "bob") and 0 <= value["n"] <= 9 and len(value) == 2
        assert "".join(d.function.arguments or "" for d in deltas) == call.arguments and len(deltas) > 2
    assert whole > 0, "none of the calls was complete"
    other = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "person"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = client.chat.completions.create(**{**ask, "tools": [other, tool]}, tool_choice=choice, seed=0).choices[0]
    assert all(call.function.name == "person" for call in answer.message.tool_calls or []) and not answer.message.content


@check
def embeddings(client, model):
    # This client asks for base64 and decodes it.
    answer = client.embeddings.create(model=model, input=["a cat", "a dog"])
    assert len(answer.data) == 2 and answer.usage.prompt_tokens > 0
    assert all(abs(sum(x * x for x in d.embedding) - 1) < 1e-4 for d in answer.data)
    floats = client.embeddings.create(model=model, input=["a cat"], encoding_format="float")
    assert max(abs(a - b) for a, b in zip(floats.data[0].embedding, answer.data[0].embedding)) < 1e-6


@check
def responses(client, model):
    ask = dict(model=model, input="Once upon a time", instructions="Tell a story.", max_output_tokens=12, extra_body={"seed": 2})
    answer = client.responses.create(**ask)
    assert answer.status in ("completed", "incomplete") and answer.usage.output_tokens <= 12
    events = list(client.responses.create(**ask, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    assert events[-1].response.output_text == answer.output_text


@check
def errors(client, model):
    for kind, ask in [
        (openai.NotFoundError, dict(model="no such model", messages=USER)),
        (openai.BadRequestError, dict(model=model, messages=USER, extra_body={"frobnicate": 1})),
        (openai.BadRequestError, dict(model=model, messages=[])),
        (openai.BadRequestError, dict(model=model, messages=[{"role": "user", "content": "word " * 400_000}])),
    ]:
        try:
            client.chat.completions.create(**ask)
            raise AssertionError(f"{kind.__name__} was not raised")
        except kind as error:
            assert error.body and error.body["message"]
            code = error.code
    assert code == "context_length_exceeded", code


@check
def timeouts(client, model):
    hasty = client.with_options(timeout=0.001, max_retries=0)
    try:
        hasty.chat.completions.create(model=model, messages=USER, max_tokens=200)
        raise AssertionError("no timeout")
    except openai.APITimeoutError:
        pass
    client.chat.completions.create(model=model, messages=USER, max_tokens=2)


@check
def ollama(client, model):
    if not has("ollama"):
        print("skipped: ollama (pip install ollama)")
        return
    import ollama as package

    own = package.Client(str(client.base_url).rsplit("/v1", 1)[0])
    assert model in [m.model for m in own.list().models] and own.show(model).modelinfo
    options = {"num_predict": 8, "seed": 1}
    whole = own.chat(model, USER, options=options)
    parts = list(own.chat(model, USER, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content and parts[-1].done
    assert own.generate(model, "Once", options=options).done and len(own.embed(model, "a cat").embeddings) == 1
    assert len(own.embeddings(model, "a cat").embedding) > 1 and model in [m.model for m in own.ps().models]
    assert own.generate(model).done_reason == "load", "an empty request loads a model"
    try:
        own.chat("no such model", USER)
        raise AssertionError("no error")
    except package.ResponseError as error:
        assert error.status_code == 404


@check
def litellm(client, model):
    if not has("litellm"):
        print("skipped: litellm (pip install litellm)")
        return
    # Prices are not needed here and would be downloaded.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as package

    package.suppress_debug_info = True
    where = dict(model=f"openai/{model}", api_base=str(client.base_url), api_key=client.api_key, messages=USER, max_tokens=12, seed=3)
    whole = package.completion(**where)
    parts = package.completion(**where, stream=True)
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    assert text == whole.choices[0].message.content and whole.usage.completion_tokens <= 12
    try:
        package.completion(**where, frobnicate=1)
        raise AssertionError("no error")
    except package.BadRequestError as error:
        assert "frobnicate" in str(error)


@check
def instructor(client, model):
    if not has("instructor"):
        print("skipped: instructor (pip install instructor)")
        return
    from typing import Literal

    import instructor as package
    import pydantic
    from instructor.core.exceptions import IncompleteOutputException

    class Person(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        name: Literal["ada", "bob"]
        n: int = pydantic.Field(ge=0, le=9)

    # Schemas for all models; function calls if the template supports them.
    calls = client.models.retrieve(model).netcl["tools"]
    for mode in [package.Mode.JSON_SCHEMA] + [package.Mode.TOOLS] * calls:
        own = package.from_openai(client, mode=mode)
        for seed in range(8):
            try:
                made = own.chat.completions.create(model=model, messages=USER, response_model=Person, max_retries=1, max_tokens=200, seed=seed)
            except IncompleteOutputException:
                continue
            assert made.name in ("ada", "bob") and 0 <= made.n <= 9
            break
        else:
            raise AssertionError(f"{mode}: no answer was complete")


def main():
    url = sys.argv[1].rstrip("/")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("API_KEY", "none"), max_retries=0, timeout=120)
    model = sys.argv[2] if len(sys.argv) > 2 else client.models.list().data[0].id
    failed = 0
    for function in CHECKS:
        try:
            function(client, model)
            print(f"ok: {function.__name__}")
        except Exception as error:  # the next checks still run
            failed += 1
            print(f"FAILED: {function.__name__}: {type(error).__name__}: {error}")
    print(f"openai {openai.__version__}: {len(CHECKS) - failed} of {len(CHECKS)} passed")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
