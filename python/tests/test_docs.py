"""Checks that the code of docs/python.md gives the output shown below it."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

import netcl as nc

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_page_runs():
    before = nc.default_device()
    names = {}
    blocks = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 12 and [kind for kind, _ in blocks] == ["python", "text"] * (len(blocks) // 2)
    for (_, code), (_, expected) in zip(blocks[::2], blocks[1::2]):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(code, str(PAGE), "exec"), names)
        if not doctest.OutputChecker().check_output(expected, shown.getvalue(), doctest.ELLIPSIS):
            pytest.fail(f"{code}\ngave\n{shown.getvalue()}\ninstead of\n{expected}")
    nc.set_default_device(before)
