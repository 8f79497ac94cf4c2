"""The design documents that netcl began with. Tests read them from the folder of test data, and are skipped if it does not have them."""

import os
import re
from pathlib import Path

import pytest


def folder() -> Path:
    """Returns the folder of the documents: next to NETCL_TEST_DATA, or next to this repository."""
    data = os.environ.get("NETCL_TEST_DATA")
    root = Path(data).parent if data else Path(__file__).resolve().parents[3] / "shared"
    return root / "seeds"


def text(number: str) -> str:
    """Returns the text of a document, such as ``000``."""
    found = sorted(folder().glob(f"{number}_*.txt")) if folder().is_dir() else []
    if not found:
        pytest.skip(f"needs the document {number} of the test data: set NETCL_TEST_DATA")
    return found[0].read_text(encoding="utf-8")


def section(number: str, heading: str) -> str:
    """Returns the part of a document below a heading, up to the next heading of the same level."""
    lines, fenced, headings = text(number).splitlines(), False, []
    for i, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and re.match(r"#+ ", line):
            headings.append((i, len(line) - len(line.lstrip("#")), line.lstrip("#").strip()))
    begin, level = next((i, level) for i, level, words in headings if words == heading)
    ends = (i for i, other, _ in headings if i > begin and other <= level)
    return "\n".join(lines[begin + 1 : next(ends, len(lines))])


def listings(part: str, language: str) -> "list[str]":
    """Returns the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)
