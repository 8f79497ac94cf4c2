"""A tiny model of letters with a chat template, trained once for all tests that need it."""

import functools
import tempfile
from pathlib import Path

import netcl as nc

TEXT = "the quick brown fox jumps over the lazy dog. " * 100
TEMPLATE = "{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}a {% endif %}"


def device():
    return nc.default_device()


@functools.lru_cache(maxsize=None)
def folder():
    """Returns a folder with the text and the run folder of the model."""
    place = Path(tempfile.mkdtemp(prefix="netcl-tests-"))
    text = place / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    trainer = nc.Trainer("demo-tiny", data=text, out=place / "run", device=device(), steps=30, eval_every=0, sample_every=0, context=64, seed=1)
    assert trainer.run() == "finished"
    (place / "run" / "checkpoints" / "last" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return place


@functools.lru_cache(maxsize=None)
def llm():
    return nc.LLM(folder() / "run", device=device())
