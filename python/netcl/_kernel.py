"""Custom kernels in OpenCL C, as operations with gradients from other kernels, with checks on the simulated GPU, timing and tuning.

>>> import netcl as nc
>>> double = nc.kernel('''
... __kernel void twice(__global const float *x, __global float *y, const uint n) {
...   const uint i = get_global_id(0);
...   if (i < n) y[i] = 2.0f * x[i];
... }''')
>>> double(nc.tensor([1.0, 2.0], device="sim"), n=2).tolist()
[2.0, 4.0]
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ._class import like_inputs
from ._netcl import Device, KernelText, Tensor, uninitialised
from ._netcl import full as _full
from .autograd import Function, no_grad
from .errors import DTypeError, FormatError, ShapeError

Sizes = Union[int, Sequence[int], Callable[..., Any]]

POINTERS = {"float": ("float32",), "int": ("int32",), "uint": ("uint32",), "T": ("float32", "float16", "bfloat16"), "half": ("float16",), "ushort": ("bfloat16",), "uchar": ("bool",)}
NUMBERS = {"float": "float", "int": "int", "uint": "uint", "unsigned": "uint", "unsigned int": "uint", "long": "long", "ulong": "ulong", "size_t": "ulong"}


class Parameter(NamedTuple):
    """A parameter of a kernel: ``kind`` is ``read``, ``write``, ``local`` or ``number``."""

    name: str
    kind: str
    type: str


def _without_comments(source: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)


def parameters(source: str, entry: Optional[str] = None) -> Tuple[str, List[Parameter]]:
    """Parses name and parameters of a ``__kernel`` function. Without ``entry``, the first one is used."""
    found = {m[1]: m[2] for m in re.finditer(r"\b(?:__kernel|kernel)\b[^;{}]*?\bvoid\s+(\w+)\s*\(([^)]*)\)", _without_comments(source))}
    if not found or (entry is not None and entry not in found):
        raise FormatError(f"kernel: no function `__kernel void {entry or 'name'}(…)` in the source; it has {', '.join(found) or 'none'}")
    entry = entry or next(iter(found))
    out = []
    for text in filter(None, (part.strip() for part in found[entry].split(","))):
        words = re.sub(r"\b(__restrict__|__restrict|restrict|volatile)\b", " ", text.replace("*", " * ")).split()
        name, pointer, const = words[-1], "*" in words, "const" in words
        kept = [w for w in words[:-1] if w not in ("*", "const", "__global", "global", "__local", "local", "__constant", "constant")]
        if any(w in ("__local", "local") for w in words):
            kind = "local"
        elif pointer:
            kind = "read" if const or any(w in ("__constant", "constant") for w in words) else "write"
        else:
            kind = "number"
        kind_type = " ".join(kept)
        if kind == "number" and kind_type not in NUMBERS:
            raise FormatError(f"kernel {entry}: parameter {name} is {kind_type}, expected one of {', '.join(NUMBERS)}, or a pointer")
        if kind in ("read", "write") and kind_type not in POINTERS:
            raise FormatError(f"kernel {entry}: {name} points at {kind_type}, expected one of {', '.join(POINTERS)}")
        out.append(Parameter(name, kind, kind_type))
    return entry, out


LIMITS = ("netcl_items_x", "netcl_items_y", "netcl_items_z")
"""Names of the parameters that a guarded kernel has in addition: the numbers of work-items."""

GROUP_WORDS = r"\b(barrier|work_group_\w+|sub_group_\w+|async_work_group_\w+|wait_group_events|__local|local|get_local_\w+|get_group_id|get_num_groups|get_global_size)\b"
"""Words of a kernel whose work-items depend on the others of their group, so that none may be left out."""


def _blank(source: str) -> str:
    """Replaces comments with spaces, so that positions stay the same."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL)


def guarded(source: str, entry: str) -> Optional[str]:
    """Returns the source of a kernel whose work-items beyond the numbers of three more parameters end at once. Lines keep their numbers. Returns
    ``None`` if a work-group needs all of its work-items.
    """
    text = _blank(source)
    head = re.search(rf"\b(?:__kernel|kernel)\b[^;{{}}]*?\bvoid\s+{entry}\s*\(([^)]*)\)\s*{{", text)
    if head is None or re.search(GROUP_WORDS, text):
        return None
    more = ", ".join(f"const uint {name}" for name in LIMITS)
    check = " || ".join(f"get_global_id({axis}) >= {name}" for axis, name in enumerate(LIMITS))
    comma = ", " if head[1].strip() else ""
    return f"{source[: head.end(1)]}{comma}{more}{source[head.end(1) : head.end()]} if ({check}) return; {source[head.end() :]}"


def _three(sizes: Any) -> List[int]:
    given = [sizes] if isinstance(sizes, int) else list(sizes)
    if not 1 <= len(given) <= 3:
        raise ShapeError(f"kernel: {len(given)} dimensions of work, expected 1 to 3")
    return [int(n) for n in given] + [1] * (3 - len(given))


class Kernel:
    """A kernel as an operation. Call it with the tensors for its ``const`` pointers, in order, and numbers by name. The other pointers are its
    results.

    ``items`` or ``groups`` set the number of work-items or work-groups: numbers, or a function of the arguments. By default, there are as many
    work-items as the first result has elements. If ``items`` is not a multiple of ``local``, the work-items of the last group that exceed it do
    nothing. A kernel whose work-items share their group, for example with a barrier, refuses such numbers of items. ``out`` sets the results' shape [default: the shape of the first input]: a shape, a function of
    the arguments, or a dictionary by name for several results. The size of a ``__local`` pointer in bytes is passed by name. ``defines`` are
    integer macros.
    """

    def __init__(
        self,
        source: str,
        entry: Optional[str] = None,
        *,
        items: Optional[Sizes] = None,
        groups: Optional[Sizes] = None,
        local: Sizes = 64,
        out: Any = None,
        grad: "Optional[Kernel]" = None,
        defines: Optional[Mapping[str, int]] = None,
    ) -> None:
        if items is not None and groups is not None:
            raise FormatError("kernel: both items and groups are given, expected one of them")
        self.source = source
        self.entry, self.parameters = parameters(source, entry)
        self.items, self.groups, self.local, self.out, self.grad = items, groups, local, out, grad
        self.defines: Dict[str, int] = dict(defines or {})
        self.inputs = [p for p in self.parameters if p.kind == "read"]
        self.outputs = [p for p in self.parameters if p.kind == "write"]
        if not self.outputs:
            raise FormatError(f"kernel {self.entry}: every pointer is const, so the kernel does not have a result")
        self._text = KernelText(self.entry, source)
        self._guarded: Optional[Any] = None

    def _size(self, given: Any, values: Mapping[str, Any]) -> Any:
        if not callable(given):
            return given
        names = given.__code__.co_varnames[: given.__code__.co_argcount]
        missing = [n for n in names if n not in values]
        if missing:
            raise FormatError(f"kernel {self.entry}: sizes use {', '.join(missing)}, which is not an argument; arguments are {', '.join(values)}")
        return given(*(values[n] for n in names))

    def _check(self, p: Parameter, tensor: Any) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"kernel {self.entry}: {p.name} is {type(tensor).__name__}, expected a tensor")
        if tensor.dtype.name not in POINTERS[p.type]:
            raise DTypeError(f"kernel {self.entry}: {p.name} is {tensor.dtype.name}, expected {' or '.join(POINTERS[p.type])} for {p.type}")
        return tensor.detach().contiguous()

    def launch(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Launches the kernel with tensors and numbers by the names of its parameters, including the results."""
        values: Dict[str, Any] = {**tensors, **numbers}
        unknown = [n for n in numbers if n not in {p.name for p in self.parameters}]
        if unknown:
            raise FormatError(f"kernel {self.entry}: no parameter {', '.join(unknown)}; parameters are {', '.join(p.name for p in self.parameters)}")
        arguments: List[Tuple[str, Any]] = []
        for p in self.parameters:
            if p.name not in values:
                raise FormatError(f"kernel {self.entry}: {p.name} is missing")
            if p.kind in ("read", "write"):
                arguments.append((p.kind, self._check(p, values[p.name]) if p.kind == "read" else values[p.name]))
            else:
                arguments.append(("local" if p.kind == "local" else NUMBERS[p.type], float(values[p.name])))
        local = _three(self._size(self.local, values))
        if "WG" in self.defines:
            local[0] = self.defines["WG"]
        if self.groups is not None:
            groups = _three(self._size(self.groups, values))
        else:
            default = values[self.outputs[0].name].size
            wanted = _three(default if self.items is None else self._size(self.items, values))
            groups = [math.ceil(n / size) for n, size in zip(wanted, local)]
            if self.items is not None and any(n % size for n, size in zip(wanted, local)):
                return self._launch_guarded(arguments, wanted, (groups, local))
        self._text.launch(self.entry, arguments, groups, local, list(self.defines.items()))

    def _launch_guarded(self, arguments: List[Tuple[str, Any]], items: List[int], sizes: Tuple[List[int], List[int]]) -> None:
        """Launches exactly as many work-items as ``items``."""
        if self._guarded is None:
            source = guarded(self.source, self.entry)
            if source is None:
                raise FormatError(
                    f"kernel {self.entry}: {items} work-items are not a multiple of the work-group size {sizes[1]}, and the kernel uses its work-group; "
                    "pass a multiple as items=…, or groups=… and compare the index with the size in the kernel"
                )
            self._guarded = KernelText(self.entry, source)
        limits = [("uint", float(n)) for n in items]
        self._guarded.launch(self.entry, [*arguments, *limits], *sizes, list(self.defines.items()))

    def _results(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> Dict[str, Tensor]:
        values: Dict[str, Any] = {**tensors, **numbers}
        like = next(iter(tensors.values()), None)
        if like is None:
            raise FormatError(f"kernel {self.entry}: a kernel runs on the device of its inputs, so it needs at least one tensor as input")
        made = {}
        for p in self.outputs:
            wanted = self.out.get(p.name) if isinstance(self.out, dict) else self.out
            shape = like.shape if wanted is None else self._size(wanted, values)
            dtype = like.dtype.name if like.dtype.name in POINTERS[p.type] else POINTERS[p.type][0]
            made[p.name] = uninitialised(shape, dtype, like.device)
        return made

    def _named(self, tensors: Sequence[Any]) -> Dict[str, Any]:
        if len(tensors) != len(self.inputs):
            names = ", ".join(p.name for p in self.inputs)
            raise FormatError(f"kernel {self.entry}: got {len(tensors)} tensors, expected {len(self.inputs)}: {names}")
        return {p.name: t for p, t in zip(self.inputs, tensors)}

    def __call__(self, *tensors: Tensor, **numbers: float) -> Any:
        """Computes the result, or a tuple of several. Recorded on the tape if the kernel has a gradient and an input needs one."""
        self._named(tensors)
        for p, t in zip(self.inputs, tensors):
            self._check(p, t)
        if self.grad is None:
            if any(t.requires_grad for t in tensors):
                from ._netcl import is_recording
                from .errors import UnsupportedError

                if is_recording():
                    raise UnsupportedError(
                        f"kernel {self.entry}: an input needs a gradient, but the kernel has none; pass one as grad=…, or call it within no_grad"
                    )
            made = tuple(like_inputs(y, tensors) for y in self._run(tensors, numbers))
            return made[0] if len(made) == 1 else made
        return _KernelFunction.apply(self, numbers, *tensors)

    def _run(self, tensors: Sequence[Tensor], numbers: Mapping[str, float]) -> Tuple[Tensor, ...]:
        given = self._named(tensors)
        results = self._results(given, numbers)
        self.launch({**given, **results}, numbers)
        return tuple(results.values())

    def check(self, *tensors: Tensor, checks: str = "all", **numbers: float) -> Any:
        """Runs the kernel on copies of its inputs on a simulated GPU that checks bounds, races, barriers and uninitialized reads. A finding raises
        ``LaunchError`` with the line.
        """
        device = Device("sim", checks)
        with no_grad():
            made = self._run([t.detach().to(device) for t in tensors], numbers)
            device.synchronize()
        return made[0] if len(made) == 1 else made

    def time(self, *tensors: Tensor, repeat: int = 5, **numbers: float) -> float:
        """Returns the kernel's time on the device in seconds: the minimum of ``repeat`` runs after a run that compiles it."""
        if repeat < 1:
            raise FormatError(f"kernel {self.entry}: repeat is {repeat}, expected at least 1")
        device = tensors[0].device
        with no_grad():
            self._run(tensors, numbers)
            device.synchronize()
            times = []
            for _ in range(repeat):
                device._start_profile()
                self._run(tensors, numbers)
                times.append(sum(t[2] for t in device._stop_profile()))
        return min(times)

    def tune(self, space: Mapping[str, Sequence[int]], *tensors: Tensor, repeat: int = 5, **numbers: float) -> Dict[str, int]:
        """Tries every combination of these defines, keeps the fastest and returns it. A combination that fails or changes the result is skipped.
        ``WG`` also sets the work-group size.
        """
        before = dict(self.defines)
        with no_grad():
            expected = [y._bytes() for y in self._run(tensors, numbers)]
        best: Optional[Tuple[float, Dict[str, int]]] = None
        for values in itertools.product(*space.values()):
            self.defines = {**before, **dict(zip(space, values))}
            try:
                with no_grad():
                    same = [y._bytes() for y in self._run(tensors, numbers)] == expected
                taken = self.time(*tensors, repeat=repeat, **numbers) if same else math.inf
            except RuntimeError:
                continue
            if math.isfinite(taken) and (best is None or taken < best[0]):
                best = (taken, dict(self.defines))
        self.defines = before if best is None else best[1]
        return dict(self.defines)


class _KernelFunction(Function):
    """A kernel whose gradient is another kernel."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, numbers: Mapping[str, float], *tensors: Tensor) -> Any:
        made = kernel._run(tensors, numbers)
        ctx.kernel, ctx.numbers = kernel, numbers
        ctx.save_for_backward(*tensors, *made)
        return made[0] if len(made) == 1 else made

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        kernel, back = ctx.kernel, ctx.kernel.grad
        names = [p.name for p in (*kernel.inputs, *kernel.outputs)]
        known: Dict[str, Tensor] = dict(zip(names, ctx.saved_tensors))
        for p, dy in zip(kernel.outputs, grads):
            y = known[p.name]
            known[f"d{p.name}"] = _full(y.shape, 0.0, y.dtype, y.device) if dy is None else dy
        made = {}
        for p in back.outputs:
            of = p.name[1:]
            if not p.name.startswith("d") or of not in [i.name for i in kernel.inputs]:
                inputs = ", ".join(f"d{i.name}" for i in kernel.inputs)
                raise FormatError(f"kernel {back.entry}: writes {p.name}, expected the gradient of an input: {inputs}")
            x = known[of]
            made[p.name] = uninitialised(x.shape, x.dtype, x.device)
        missing = [p.name for p in back.inputs if p.name not in known]
        if missing:
            raise FormatError(f"kernel {back.entry}: reads {', '.join(missing)}, expected names from {', '.join(known)}")
        numbers = {p.name: ctx.numbers[p.name] for p in back.parameters if p.name in ctx.numbers}
        back.launch({**{p.name: known[p.name] for p in back.inputs}, **made}, numbers)
        return (None, None, *(made.get(f"d{i.name}") for i in kernel.inputs))


def kernel(source: str, entry: Optional[str] = None, **options: Any) -> Kernel:
    """Creates an operation from OpenCL C source. ``Kernel`` describes the options."""
    return Kernel(source, entry, **options)


__all__ = ["Kernel", "Parameter", "kernel", "parameters"]
