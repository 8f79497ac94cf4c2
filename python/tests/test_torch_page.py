"""Checks docs/book/pytorch.md against the package, and against PyTorch's names where PyTorch is installed."""

import re

import pytest
import pytorch_names

NAMES = re.compile(r"`([^`]+)`")
OTHERS = ("nn", "nn.functional", "nn.utils")
"""Areas that grow by themselves; the page may lag behind."""


def listed():
    """Returns the names of the page by area and status."""
    found = {}
    for section in pytorch_names.PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        area, kind, of = section.splitlines()[0], "", {"same": [], "differs": [], "refused": [], "missing": []}
        for line in section.splitlines()[1:]:
            starts = {"Same:": "same", "Different:": "differs", "Refused, ": "refused", "Missing:": "missing"}
            kind = next((k for start, k in starts.items() if line.startswith(start)), kind)
            if line.startswith("- `"):
                of[kind].append(NAMES.match(line, 2).group(1))
            elif line.startswith("`"):
                of[kind] += NAMES.findall(line)
        found[area] = of
    return found


def test_names_have_the_status_that_the_page_gives():
    pages = listed()
    assert len(pages["torch"]["same"]) + len(pages["torch"]["differs"]) > 300 and len(pages["Tensor"]["same"]) > 350
    for area, of in pages.items():
        for kind, names in of.items():
            for name in names:
                now = pytorch_names.status(area, name)[0]
                grown = kind == "missing" and (area in OTHERS or name in pytorch_names.compat._names.ALIKE)
                assert now == kind or grown, f"{area}.{name} is {now}, but the page says {kind}; run python python/tests/pytorch_names.py"


def test_the_page_has_all_names_of_pytorch():
    torch = pytest.importorskip("torch")
    if torch.__version__.split("+")[0] not in pytorch_names.PAGE.read_text(encoding="utf-8"):
        pytest.skip("the page is of another version of PyTorch")
    _, places = pytorch_names.pytorch()
    pages = listed()
    for area, names in places.items():
        assert sorted(n for names_of in pages[area].values() for n in names_of) == sorted(names)


def test_differences_are_of_names_that_exist():
    for name in pytorch_names.DIFFERS:
        area, _, short = name.rpartition(".")
        assert pytorch_names.status(area, short)[0] in ("differs", "refused"), name
