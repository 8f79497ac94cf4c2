"""Language models: generate, stream, chat, embed."""

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import models
import numpy as np
import pytest

import netcl as nc

STORIES = Path(__file__).parents[3] / "shared" / "data" / "models" / "stories260K"


def test_a_run_folder_is_a_model():
    llm = models.llm()
    assert (llm.family, llm.context, llm.trained_context, llm.width) == ("gpt2", 64, 64, 32)
    assert llm.vocab == len(set(models.TEXT)) and llm.dtype is nc.float32 and llm.device == models.device().name
    decoder = nc.nn.Decoder.from_pretrained(llm.path, device=models.device())
    assert llm.parameters == sum(p.size for p in decoder.parameters())
    assert repr(llm).startswith("LLM(") and llm.path.endswith("last")
    assert llm.detokenize(llm.tokenize("lazy dog")) == "lazy dog"


def test_the_same_seed_gives_the_same_text_and_greedy_needs_none():
    llm = models.llm()
    one = llm.generate("the quick ", 12, seed=3, temperature=1.5)
    assert one.text == llm.generate("the quick ", 12, seed=3, temperature=1.5).text
    assert one.text != llm.generate("the quick ", 12, seed=4, temperature=1.5).text
    greedy = llm.generate("the quick ", 12, greedy=True)
    assert greedy.text == llm.generate("the quick ", 12, greedy=True, seed=9).text == llm.generate("the quick ", 12, top_k=1).text
    assert greedy.finish == "length" and len(greedy.tokens) == 12 and greedy.prompt_tokens == 10
    assert str(greedy) == greedy.text == llm.detokenize(greedy.tokens) and greedy.tokens_per_s > 0


def test_greedy_text_is_the_argmax_of_the_decoder():
    llm = models.llm()
    decoder = nc.nn.Decoder.from_pretrained(llm.path, device=models.device()).eval()
    ids = llm.tokenize("the quick ")
    expected = list(ids)
    with nc.no_grad():
        for _ in range(8):
            expected.append(int(decoder([expected])[0, -1].argmax().item()))
    assert llm.generate([ids, ids], 8, greedy=True)[1].tokens == expected[len(ids) :] == llm.generate("the quick ", 8, greedy=True).tokens


def test_a_stream_gives_the_text_in_pieces_and_can_be_ended():
    llm = models.llm()
    stream = llm.stream("the ", 10, greedy=True)
    pieces = list(stream)
    assert len(pieces) > 3 and "".join(pieces) == stream.result.text == llm.generate("the ", 10, greedy=True).text
    endless = llm.stream("the ", 100_000, greedy=True)
    next(endless)
    endless.stop()
    for _ in endless:
        pass
    assert endless.result.finish == "stopped" and len(endless.result.tokens) < 100_000
    dropped = llm.stream("the ", 1_000_000, greedy=True)
    next(dropped)
    del dropped  # the model stops, because nothing reads its text
    assert llm.generate("the ", 10, greedy=True).text == "".join(pieces)


def test_several_prompts_at_once_give_what_each_gives_alone():
    llm = models.llm()
    prompts = ["the quick ", "jumps ", "lazy dog. the "]
    together = llm.generate(prompts, 9, greedy=True, parallel=2)
    assert [made.text for made in together] == [llm.generate(prompt, 9, greedy=True).text for prompt in prompts]
    assert [made.prompt_tokens for made in together] == [len(prompt) for prompt in prompts]
    assert llm.generate([], 9) == [] and len(llm.generate(["the "], 3)) == 1


def test_stop_texts_length_and_context_end_a_text():
    llm = models.llm()
    whole = llm.generate("the ", 20, greedy=True).text
    stop = whole[5:7]
    ended = llm.generate("the ", 20, greedy=True, stop=stop)
    assert ended.finish == "stop" and ended.text == whole[: whole.index(stop)]
    assert llm.generate("the ", 20, greedy=True, stop=["nowhere", stop]).text == ended.text
    assert llm.generate("the ", None, greedy=True).finish == "context"
    assert llm.generate("the ", 0).text == ""


def test_biases_are_followed_and_grammars_need_a_token_that_ends_texts():
    llm = models.llm()
    with pytest.raises(nc.errors.FormatError, match="ends a text"):
        llm.generate("the ", 20, regex="(fox|dog)")
    (dot,) = llm.tokenize(".")
    assert llm.generate("the ", 4, greedy=True, logit_bias={dot: 1000.0}).text == "...."
    assert "." not in llm.generate("the ", 30, temperature=5.0, samplers=["temperature"], logit_bias=[(dot, float("-inf"))]).text
    with pytest.raises(TypeError, match="one of them"):
        llm.generate("the ", 4, regex="a", grammar='start: "a"')


def test_chat_reads_only_what_is_new():
    llm = models.llm()
    assert llm.has_chat_template
    chat = llm.conversation(system="the fox")
    first = chat.say("jumps", 4, greedy=True)
    assert first.prompt_tokens == len("s the fox u jumps a ")
    pieces = list(chat.stream("lazy", 3, greedy=True))
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert chat.messages[-1]["content"] == "".join(pieces) and chat.messages[2]["content"] == first.text
    again = llm.chat([*chat.messages, {"role": "user", "content": "dog"}], 3, greedy=True)
    assert again.reused_tokens > 20
    assert llm.chat("jumps", 4, system="the fox", greedy=True).text == first.text
    chat.clear()
    assert chat.messages == [{"role": "system", "content": "the fox"}]


def test_embeddings_are_the_mean_of_the_hidden_states():
    llm = models.llm()
    decoder = nc.nn.Decoder.from_pretrained(llm.path, device=models.device())
    rows = decoder.features([llm.tokenize("brown fox")]).numpy()[0]
    assert np.allclose(llm.embed("brown fox", normalise=False), rows.mean(axis=0), atol=1e-5)
    assert np.allclose(llm.embed("brown fox", "last", normalise=False), rows[-1], atol=1e-5)
    assert np.allclose(llm.embed("brown fox", "none", normalise=False), rows, atol=1e-5)
    both = llm.embed(["brown fox", "lazy dog"])
    assert both.shape == (2, 32) and np.allclose(np.linalg.norm(both, axis=1), 1, atol=1e-5)
    assert np.allclose(both[0], llm.embed("brown fox"), atol=1e-6)


def test_what_is_wrong_is_an_exception_with_words():
    llm = models.llm()
    with pytest.raises(TypeError, match="no setting 'topp'|no setting \"topp\""):
        llm.generate("the ", 3, topp=0.5)
    with pytest.raises(TypeError, match="top_k"):
        llm.generate("the ", 3, top_k="many")
    with pytest.raises(nc.errors.FormatError, match="top_p is 2"):
        llm.generate("the ", 3, top_p=2)
    with pytest.raises(nc.errors.FormatError, match="context"):
        llm.generate("the " * 50, 3)
    with pytest.raises(nc.errors.FormatError, match="vocabulary"):
        llm.generate([[100_000]], 3)
    with pytest.raises(nc.errors.FormatError, match="role"):
        llm.chat([{"role": "friend", "content": "the"}])
    with pytest.raises(nc.errors.FormatError, match="the user's"):
        llm.chat([{"role": "assistant", "content": "the"}])
    with pytest.raises(nc.errors.FormatError, match="embed"):
        llm.embed([[]])
    with pytest.raises(nc.errors.NetclError, match="nowhere"):
        nc.LLM("nowhere.gguf", device=models.device())
    with pytest.raises(TypeError, match="activations"):
        nc.LLM(llm.path, device=models.device(), activations="int3")
    # The model still works after these errors.
    assert len(llm.generate("the ", 3).tokens) == 3


def test_loading_tells_how_far_it_is_and_can_be_ended():
    heard = []
    with nc.LLM(models.folder() / "run", device=models.device(), context=32, dtype="bfloat16", progress=lambda *told: heard.append(told)) as llm:
        assert llm.context == 32 and llm.trained_context == 64 and llm.dtype is nc.bfloat16
        assert heard and heard[0][1] == models.device().name and heard[-1][2] == heard[-1][3] and 0 < heard[-1][3] and all(a[2] <= b[2] for a, b in zip(heard, heard[1:]))
    with pytest.raises(nc.errors.FormatError, match="closed"):
        llm.generate("the ", 3)

    def enough(*_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        nc.LLM(models.folder() / "run", device=models.device(), progress=enough)


def test_models_that_are_closed_leave_nothing():
    device = models.device()

    def used():
        with nc.LLM(models.folder() / "run", device=device) as llm:
            llm.generate(["the ", "a "], 3)
            llm.chat("the ", 3)
            llm.embed("the ")
        device.synchronize()
        return device.memory()[0], device.memory()[3]

    models.llm().generate("the ", 1)
    first = used()
    assert [used() for _ in range(4)] == [first] * 4


def test_threads_take_turns():
    llm = models.llm()
    alone = [llm.generate("the ", 8, seed=i).text for i in range(3)]
    made = [None] * 3

    def work(i):
        made[i] = llm.generate("the ", 8, seed=i).text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert made == alone


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_text_and_the_model_goes_on_with_others():
    code = f"""
        import os, signal, threading
        import netcl as nc
        llm = nc.LLM({str(models.folder() / "run")!r}, device={models.device().name!r})
        first = llm.generate("the ", 3, greedy=True).text
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            llm.generate("the ", 100_000_000, greedy=True)
        except KeyboardInterrupt:
            print("interrupted")
        assert llm.generate("the ", 3, greedy=True).text == first
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "interrupted", done.stderr


@pytest.mark.skipif(not STORIES.exists(), reason="no shared models here")
def test_grammars_and_schemas_are_followed():
    llm = nc.LLM(STORIES / "gguf" / "stories260K-q8_0.gguf", device=models.device())
    assert llm.generate("The ", 20, regex="(fox|dog)", temperature=2.0).text in ("fox", "dog")
    assert llm.generate("The ", 20, grammar='start: "jumps" | "lazy"').text in ("jumps", "lazy")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}
    assert json.loads(llm.generate("The ", 60, json_schema=schema, greedy=True).text)["n"] in (1, 22)
    assert json.loads(llm.generate("The ", 60, json_schema=json.dumps(schema), seed=4).text)["n"] in (1, 22)
    with pytest.raises(TypeError, match="schema"):
        llm.generate("The ", 4, json_schema="{")
    with pytest.raises(nc.errors.FormatError):
        llm.generate("The ", 4, grammar="start: nothing")


@pytest.mark.skipif(not STORIES.exists(), reason="no shared models here")
def test_gguf_files_and_folders_give_the_same_story():
    begin = "Once upon a time"
    stories = [nc.LLM(path, device=models.device(), dtype="float32").generate(begin, 24, greedy=True).text for path in (STORIES / "gguf" / "stories260K-f32.gguf", STORIES / "hf")]
    assert stories[0] == stories[1] and "there was a little" in stories[0]
    quantised = nc.LLM(STORIES / "gguf" / "stories260K-q8_0.gguf", device=models.device())
    assert quantised.generate(begin, 6, greedy=True).text in stories[0]
