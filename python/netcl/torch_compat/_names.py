"""Names of ``torch`` that netcl has, under its own or another name, and the modules below ``torch``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable, Dict, List

import netcl

from .. import amp, autograd, data, distributed, distributions, func, functional, optim, utils
from .._dtype import DType, float16, float32, int32
from .._netcl import Generator, Tensor
from .._torch import linalg
from .._torch._attributes import known_device
from .._torch.refused import REFUSED
from ..errors import OutOfMemoryError, UnsupportedError
from ._device import accelerator, cuda, device
from ._parallel import GROUPS, PARALLEL, DataParallel
from ._typed import TYPES

CREATING = ("tensor", "as_tensor", "asarray", "zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm", "normal",
            "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "scalar_tensor", "tril_indices", "triu_indices")  # fmt: skip
"""Functions with ``device=``."""


ALIKE = frozenset(
    "adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d bilinear celu celu_ channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "dropout feature_alpha_dropout group_norm hardshrink layer_norm max_pool1d max_pool2d max_pool3d pairwise_distance pdist pixel_shuffle pixel_unshuffle prelu rms_norm selu "
    "selu_ threshold threshold_ relu_".split()
)
"""Functions whose arguments are the same in ``torch`` and in ``torch.nn.functional``. Others, such as ``batch_norm``, have them in another order."""


def _creating(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = known_device(kwargs["device"])
        for key, usual in (("pin_memory", False), ("layout", "strided"), ("memory_format", "preserve_format"), ("out", None)):
            if key in kwargs and kwargs.pop(key) not in (usual, None):
                raise UnsupportedError(f"{function.__name__}: {key} is not supported; leave it out")
        return function(*args, **kwargs)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call


def _compiled(model: Any = None, **options: Any) -> Any:
    """Returns the model itself: PyTorch's ``compile`` changes speed only. ``netcl.compile`` captures a step."""
    return (lambda m: m) if model is None else model


def _saved(obj: Any, f: Any, **options: Any) -> None:
    """Writes PyTorch's format, whatever the path's ending is."""
    from .._pt import write_pt

    write_pt(obj, f)


def _loaded(f: Any, map_location: Any = None, *, weights_only: bool = True, mmap: Any = None, **options: Any) -> Any:
    """Reads a file of ``torch.save``, of which only tensors, numbers, text and containers are read."""
    return netcl.load(f, map_location=map_location, weights_only=weights_only)


def _generator(device: Any = None) -> Generator:
    """Returns a random stream."""
    return Generator()


def _variable(data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Tensor:
    """Returns the tensor, which requires a gradient if asked."""
    return data.detach().requires_grad_() if requires_grad else data


class _Module(ModuleType):
    """A module below ``torch`` that takes its names from modules of netcl."""

    def __init__(self, name: str, *sources: Any, **own: Any) -> None:
        super().__init__(f"netcl.torch_compat.{name}")
        self.__path__: List[str] = []
        self._sources, self._of = sources, f"torch.{name}"
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for source in self.__dict__["_sources"]:
            try:
                return getattr(source, name)
            except AttributeError as error:
                if "write" in str(error) or "does not have" in str(error):
                    raise
        raise AttributeError(f"netcl does not have {self.__dict__['_of']}.{name}; write it with the names in dir({self.__dict__['_of']}), or with tensor operations")

    def __dir__(self) -> List[str]:
        return sorted({n for s in self.__dict__["_sources"] for n in getattr(s, "__all__", dir(s)) if not n.startswith("_")} | {n for n in self.__dict__ if not n.startswith("_")})


class _Backends(ModuleType):
    """Switches of PyTorch's backends. Reading gives what is on; writing has no effect on results."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Backends(f"{self.__name__}.{name}")
        made.is_available = lambda: False  # type: ignore[attr-defined]
        setattr(self, name, made)
        return made


_nn_utils = _Module("nn.utils", getattr(netcl.nn, "utils", None), utils)
_nn_parallel = _Module("nn.parallel", **PARALLEL)
_backends = _Backends("netcl.torch_compat.backends")
MODULES: Dict[str, Any] = {
    "nn": _Module("nn", netcl.nn, functional=functional, utils=_nn_utils, parallel=_nn_parallel, DataParallel=DataParallel),
    "nn.parallel": _nn_parallel,
    "nn.functional": functional,
    "nn.utils": _nn_utils,
    "optim": optim,
    "optim.lr_scheduler": optim.lr_scheduler,
    "autograd": _Module("autograd", autograd, Variable=_variable),
    "accelerator": accelerator,
    "distributions": distributions,
    "func": func,
    "linalg": linalg,
    "amp": amp,
    "cuda": cuda,
    "utils": _Module("utils", utils, data=data, checkpoint=utils.checkpoint),
    "utils.data": data,
    "utils.checkpoint": utils.checkpoint,
    "distributed": _Module("distributed", distributed, **GROUPS),
    "backends": _backends,
    "backends.cudnn": _backends.cudnn,
    "cuda.amp": amp,
}
"""Modules below ``torch``."""
if hasattr(netcl.nn, "init"):
    MODULES["nn.init"] = netcl.nn.init

OWN: Dict[str, Any] = {
    **TYPES,
    "long": int32, "int64": int32, "float": float32, "half": float16, "int": int32, "dtype": DType, "Size": tuple, "Tensor": Tensor, "Generator": _generator, "device": device, "compile": _compiled,
    "save": _saved, "load": _loaded, "strided": "strided", "preserve_format": "preserve_format", "contiguous_format": "contiguous_format", "autocast": amp.autocast, "vmap": func.vmap,
    "OutOfMemoryError": OutOfMemoryError, "get_default_dtype": lambda: float32, "set_float32_matmul_precision": lambda precision: None, "are_deterministic_algorithms_enabled": lambda: True,
    "is_complex": lambda x: False, "__version__": netcl.__version__, "inf": float("inf"), "nan": float("nan"), "pi": 3.141592653589793, "e": 2.718281828459045, "newaxis": None, "bool": netcl._dtype.bool_,
    "vdot": netcl._torch.vdot, "get_device": lambda x: -1, "is_nonzero": netcl._torch.is_nonzero, "is_distributed": lambda x: False, "is_storage": lambda x: False, "is_conj": lambda x: False,
}  # fmt: skip
"""Names that differ from netcl's. int64 is stored as int32: numbers out of its range are an error."""


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return MODULES[name]
    if name in OWN:
        return OWN[name]
    if name.startswith("__"):
        raise AttributeError(name)
    if name in REFUSED and not hasattr(netcl._torch, name):
        raise AttributeError(f"netcl does not have torch.{name}; {REFUSED[name]}")
    found = getattr(netcl, name, None)
    if found is None and name in ALIKE and hasattr(functional, name):
        found = getattr(functional, name)
    if found is None and hasattr(functional, name):
        raise AttributeError(f"netcl does not have torch.{name}; write torch.nn.functional.{name}, whose arguments may be in another order")
    if found is None:
        raise AttributeError(f"netcl does not have torch.{name}; write it with tensor operations. docs/book/pytorch.md lists all names")
    return _creating(found) if name in CREATING else found


def names() -> List[str]:
    """Returns the names of ``torch`` that are available."""
    public = [n for n in dir(netcl) if not n.startswith("_")]
    return sorted({*public, *OWN, *(m for m in MODULES if "." not in m), *(n for n in ALIKE if hasattr(functional, n))})


def install() -> None:
    """Makes ``import torch``, ``import torch.nn`` and so on give these modules from now on, in this process."""
    present = sys.modules.get("torch")
    package = sys.modules["netcl.torch_compat"]
    if present is not None and present is not package:
        raise UnsupportedError("install: PyTorch is imported already; call netcl.torch_compat.install() before")
    sys.modules["torch"] = package
    for name, module in MODULES.items():
        sys.modules[f"torch.{name}"] = module


for _name, _module in MODULES.items():
    sys.modules.setdefault(f"netcl.torch_compat.{_name}", _module)

__all__ = ["__getattr__", "install", "names"]
