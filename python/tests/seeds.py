"""The design documents that netcl implements, read from the folder of shared data when a test runs."""

import os
import re
from pathlib import Path

import pytest

DATA = os.environ.get("NETCL_TEST_DATA")
FOLDER = (Path(DATA).parent if DATA else Path(__file__).parents[3] / "shared") / "seeds"


def text(number):
    """Returns the text of a document, or skips the test if it is not there."""
    found = sorted(FOLDER.glob(f"{number:03}_*.txt"))
    if not found:
        pytest.skip(f"no document {number:03} in {FOLDER}")
    return found[0].read_text(encoding="utf-8")


def listings(number, language):
    """Returns the code blocks of a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text(number), re.DOTALL | re.MULTILINE)
    return ["\n".join(line[len(indent) :] for line in code.splitlines()) for indent, code in found]


def inline(number, start):
    """Returns the inline code that begins with ``start``."""
    found = [code for code in re.findall(r"`([^`\n]+)`", text(number)) if code.startswith(start)]
    assert found, f"document {number:03} does not have inline code that begins with {start!r}"
    return found[0]
