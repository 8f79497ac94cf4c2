"""Type stubs of the operations, generated from the registry: ``python -m netcl._stubs`` writes them, ``--check`` compares them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, List

from ._netcl import Op, ops
from ._torch.methods import TorchMethods

BEGIN = "    # Made by `python -m netcl._stubs` from the registry of operations."
END = "    # End of what is made."
TYPES = {"float": "_Number", "int": "int", "seed": "Optional[int]", "bool": "bool", "ints": "_Ints", "text": "str", "dtype": "_DTypeLike"}
INPUTS = {"one": "Tensor", "optional": "Optional[Tensor]", "list": "Sequence[Tensor]"}


def _parameter(attribute: Any) -> str:
    name, kind, required, default, optional, names = attribute
    kind_type = "Literal[" + ", ".join(f'"{n}"' for n in names) + "]" if kind == "choice" else TYPES[kind]
    if optional and kind != "seed":
        kind_type = f"Optional[{kind_type}]"
    if required:
        return f"{name}: {kind_type}"
    shown = None if kind == "seed" else default
    text = f'"{shown}"' if isinstance(shown, str) else repr(shown)
    return f"{name}: {kind_type} = {text}"


def _result(op: Op) -> str:
    if op.many:
        return "Tuple[Tensor, ...]"
    n = len(op.results)
    return "Tensor" if n == 1 else "Tuple[" + ", ".join(["Tensor"] * n) + "]"


def signature(name: str, method: bool) -> str:
    """Formats the signature of an operation as a function, or as a method of its first tensor."""
    op = Op(name)
    parts = [f"{i}: {INPUTS[arity]}" + (" = None" if arity == "optional" else "") for i, arity in op.inputs]
    parts += [_parameter(a) for a in op.attributes]
    if method:
        parts[0] = "self"
    # A required attribute after an optional input must be given by name.
    for i, part in enumerate(parts):
        if "=" in part and any("=" not in p for p in parts[i:]):
            parts = parts[:i] + ["*"] + [p for p in parts[i:]]
            break
    return f"def {name}({', '.join(parts)}) -> {_result(op)}:"


def _documented(line: str, name: str, indent: str) -> str:
    doc = Op(name).doc
    return f'{indent}{line}\n{indent}    """{doc}"""\n'


def functions() -> str:
    """Generates the stub of ``netcl.ops``."""
    head = (
        '"""Every operation of netcl as a function. Made by `python -m netcl._stubs` from the registry of operations."""\n\n'
        "from typing import Any, Callable, Literal, Optional, Sequence, Tuple, Union\n\n"
        "from ._netcl import _DTypeLike, _Ints, _Number, Op, Tensor\n\n"
        f"__all__ = [{', '.join(repr(n) for n in ops())}]\n\n"
        "def function(op: Op) -> Callable[..., Any]: ...\n"
    )
    return head + "".join(_documented(signature(name, False), name, "") for name in ops())


def methods(written: str) -> str:
    """Generates operations as methods, except those that are written by hand."""
    own = {line.split("def ", 1)[1].split("(", 1)[0] for line in written.splitlines() if line.startswith("    def ")}
    own |= set(vars(TorchMethods)) | set(TorchMethods.__annotations__)
    names = [n for n in ops() if Op(n).inputs[0][1] == "one" and n not in own]
    return "".join(_documented(signature(name, True), name, "    ") for name in names)


def reexported(folder: Path) -> str:
    """Generates imports of the operations that the parts of ``netcl.functional`` do not define themselves, and its list of names."""
    parts = sorted(path.stem for path in folder.glob("_[a-z]*.py"))
    own = [name for part in parts for name in getattr(import_module(f"netcl.functional.{part}"), "__all__", [])]
    others = [name for name in ops() if name not in own]
    imports = "".join(f"from ..ops import {name} as {name}\n" for name in sorted(others))
    # Type checkers follow only a list that is written out.
    return f"{imports}\n__all__ = {own + others!r}  # fmt: skip\n"


def _files() -> "dict[Path, str]":
    folder = Path(__file__).parent
    functional = folder / "functional" / "__init__.py"
    first, _, second = functional.read_text(encoding="utf-8").partition(BEGIN.strip())
    last = second.partition(END.strip())[2]
    shown = f"{first}{BEGIN.strip()}\n{reexported(functional.parent)}{END.strip()}{last}"
    native = folder / "_netcl.pyi"
    text = native.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    # Only names of the class itself count: other classes may have methods of these names.
    own = before.rpartition("\nclass Tensor(TorchMethods):")[2]
    made = f"{before}{BEGIN}\n{methods(own)}{END}{after}"
    return {folder / "ops.pyi": functions(), native: made, functional: shown}


def outdated() -> List[str]:
    """Returns the names of the stubs that differ from the registry."""
    return [p.name for p, text in _files().items() if not p.exists() or p.read_text(encoding="utf-8") != text]


def main() -> int:
    """Writes or compares the stubs. Returns 1 if they differ."""
    if "--check" in sys.argv:
        old = outdated()
        if old:
            print(f"stubs differ from the registry: {', '.join(old)}; run python -m netcl._stubs", file=sys.stderr)
        return 1 if old else 0
    for path, text in _files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
