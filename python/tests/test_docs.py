"""Checks that the Python code of docs/python.md and docs/aethercl.md gives the output shown below it."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

import netcl as nc

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page, start, least", [("python.md", "# Python", 12), ("aethercl.md", "## From Python", 10)])
def test_the_page_runs(page, start, least):
    before = nc.default_device()
    names = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text[text.index(start) :]
    if start.startswith("## "):
        section = section[: section.index("\n## ", 1)]
    blocks = re.findall(r"```(python|text)\n(.*?)```", section, re.DOTALL)
    assert len(blocks) >= least and [kind for kind, _ in blocks] == ["python", "text"] * (len(blocks) // 2)
    for (_, code), (_, expected) in zip(blocks[::2], blocks[1::2]):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(code, page, "exec"), names)
        if not doctest.OutputChecker().check_output(expected, shown.getvalue(), doctest.ELLIPSIS):
            pytest.fail(f"{code}\ngave\n{shown.getvalue()}\ninstead of\n{expected}")
    nc.set_default_device(before)
