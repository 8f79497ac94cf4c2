"""Lists PyTorch's public names and whether netcl has them, as docs/book/pytorch.md: ``python python/tests/pytorch_names.py`` writes the page."""

import inspect
import re
import sys
from pathlib import Path

import netcl as nc
import netcl.torch_compat as compat

PAGE = Path(__file__).parents[2] / "docs" / "book" / "pytorch.md"
INTERNAL = re.compile(
    r"cudnn|miopen|mkldnn|fbgemm|quantize|qscheme|^q_|int_repr|sym_|_copy$|^unsafe_|native_|_autocast|autocast_|Storage|^_|sparse|_indices$(?<!tril_indices)(?<!triu_indices)|vulkan|"
    r"is_(ipu|maia|meta|mkldnn|mps|mtia|xla|xpu|nested|vulkan)$|parse_|import_ir|^merge_|batch_norm_|^(rnn|lstm|gru|quantized)_|_cell$|^(lstm|gru)$|^(ipu|mtia|xpu|hash_tensor|align|names|rename|refine)|"
    r"(indices|values|coalesce|dense_dim|crow|ccol|smm|hspmm|hsmm|dsmm|spmm|saddmm|sspaddmm)$|profiler|accelerator|^(fork|wait|prepare_|init_num|unify|typename|thread_safe|segment_reduce|"
    r"choose_qparams|constant_pad_nd|classproperty|compiled_with|cudnn|eig$|solve$|symeig$|matrix_rank$|norm_except|frobenius|nuclear|kaiser|bartlett|conv_tbc|grid_sampler|affine_grid|embedding_renorm|"
    r"fake_|fused_|get_file|has_|is_vulkan|lobpcg|layout$|memory_format$|dequantize|reinforce|volatile|map2|module_load|storage|to_mkldnn|to_padded|as_subclass|const_data|dim_order|grad_dtype|"
    r"is_(conj|neg|distributed|inference|nested|set_to|warn|anomaly|deterministic)|set_(warn|anomaly|flush|deterministic|default_tensor)|get_(num_inter|deterministic|device_module)|resolve_|record_stream|new$|"
    r"name$|output_nr|untyped|chalf|cfloat|cdouble|conj|rrelu|slice_inverse|geqrf|orgqr|ormqr|from_file|binomial|nonzero_static|ctc_loss$|error|range$)"
)
DIFFERS = {
    "torch.argmax": "indices are int32", "torch.argmin": "indices are int32", "torch.argsort": "indices are int32; always stable", "torch.sort": "indices are int32; always stable", "torch.topk": "indices are int32",
    "torch.bincount": "counts are int32; weights and sums are float32", "torch.nonzero": "indices are int32; waits for the device", "torch.unique": "indices are int32; waits for the device",
    "torch.sum": "integers add up in int32", "torch.prod": "integers multiply in int32", "torch.cumsum": "integers add up in int32", "torch.arange": "integers are int32", "torch.randint": "int32; other numbers than PyTorch's, the same on every device",
    "torch.tensor": "integers become int32, floats float32", "torch.rand": "other numbers than PyTorch's, the same on every device", "torch.randn": "other numbers than PyTorch's, the same on every device",
    "torch.randperm": "int32; another order than PyTorch's", "torch.normal": "other numbers than PyTorch's", "torch.bernoulli": "other numbers than PyTorch's", "torch.multinomial": "other numbers than PyTorch's; several samples only with replacement",
    "torch.dropout": "another mask than PyTorch's", "torch.empty": "elements are zeros", "torch.empty_like": "elements are zeros", "torch.from_numpy": "copies; int64 becomes int32 and float64 float32", "torch.as_tensor": "copies arrays",
    "torch.load": "weights only; int64 becomes int32 and float64 float32; tensors that shared memory get their own", "torch.save": "weights, numbers, text and containers only; `netcl.save` chooses the format by the path's ending",
    "torch.compile": "returns the function; `netcl.compile` captures a step", "torch.manual_seed": "other numbers than PyTorch's", "torch.inference_mode": "as `no_grad`: tensors made in it may be used in training",
    "torch.device": "`cpu` is netcl's default device; `cuda` is refused", "torch.long": "is int32: integers out of its range are an error", "torch.int64": "is int32: integers out of its range are an error",
    "torch.autocast": "only with `enabled=False`; write `model.to(\"bfloat16\")`", "torch.scatter_reduce": "`sum` and `mean` only", "torch.lgamma": "does not have a gradient", "torch.diag_embed": "copies",
    "torch.diagonal": "a copy if the tensor is not contiguous", "torch.vmap": "calls the function once per slice", "torch.equal": "tensors must be on one device",
    "torch.get_default_device": "a device of netcl", "torch.set_default_device": "takes netcl's names",
    "Tensor.size": "also without a call: the number of elements", "Tensor.data": "is not replaced; `x.data *= 2` works", "Tensor.backward": "frees the graph always; `create_graph=True` is refused", "Tensor.to": "moves off the tape; `cpu` is the default device",
    "Tensor.cpu": "returns the tensor itself", "Tensor.get_device": "always -1", "Tensor.pin_memory": "returns the tensor itself", "Tensor.shape": "a tuple", "Tensor.numpy": "copies", "Tensor.resize_": "refused", "Tensor.normal_": "other numbers than PyTorch's",
    "Tensor.uniform_": "other numbers than PyTorch's", "Tensor.is_cuda": "always False", "Tensor.is_cpu": "always True: `cpu` is netcl's default device", "Tensor.grad_fn": "without `next_functions`", "Tensor.unflatten": "sizes are given as one sequence", "Tensor.grad": "assign a tensor or None", "Tensor.long": "is int32; a number that int32 cannot hold is an error", "Tensor.unfold": "overlapping windows are a copy", "optim.LBFGS": "without a line search",
    "distributions.Categorical": "samples are int32, and other numbers than PyTorch's", **{f"distributions.{name}": "samples are other numbers than PyTorch's" for name in ("Bernoulli", "Exponential", "Laplace", "Normal", "Uniform")},
    "autograd.grad": "`create_graph` is refused; frees the graph always", "autograd.backward": "`create_graph` is refused; frees the graph always", "autograd.gradcheck": "the default steps and bounds are for float32",
    "utils.data.DataLoader": "workers start with `spawn`; with `fork`, samples must be arrays and numbers", "utils.data.random_split": "another order than PyTorch's", "optim.Optimizer": "`differentiable=True` is refused",
    "func.vmap": "calls the function once per slice", "func.jacrev": "one backward for each element", "func.grad": "the gradient cannot be derived again", "amp.autocast": "only with `enabled=False`; write `model.to(\"bfloat16\")`",
    "amp.GradScaler": "scales in place of the device's own scale", "linalg.norm": "matrix norms: `fro`, 1, -1 and infinity",
}  # fmt: skip
"""Names whose meaning differs, and how. All other names that are available have PyTorch's meaning, or refuse an argument."""


def own_names(module, keep):
    return sorted(n for n in dir(module) if not INTERNAL.search(n) and keep(n, getattr(module, n, None)))


def pytorch():
    """Returns PyTorch's public names by area."""
    import torch

    def function(n, v):
        return callable(v) and not inspect.isclass(v) and not inspect.ismodule(v)

    dtypes = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype) and not re.match(r"q|bits|uint[1-7]$|int[1-7]$|float[48]|b?complex32|chalf|bit", n)]
    classes = ["Tensor", "Generator", "Size", "device", "dtype", "no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "finfo", "iinfo"]
    places = {
        "torch": sorted({*own_names(torch, lambda n, v: function(n, v) and not n.endswith("_")), *dtypes, *classes}),
        "Tensor": own_names(torch.Tensor, lambda n, v: True),
        "nn": own_names(torch.nn, lambda n, v: inspect.isclass(v)),
        "nn.functional": own_names(torch.nn.functional, lambda n, v: function(n, v) and not n.startswith("boolean_dispatch") and n not in ("assert_int_or_pair", "handle_torch_function", "has_torch_function")),
        "nn.utils": own_names(torch.nn.utils, lambda n, v: function(n, v)),
        "optim": own_names(torch.optim, lambda n, v: inspect.isclass(v)),
        "optim.lr_scheduler": own_names(torch.optim.lr_scheduler, lambda n, v: inspect.isclass(v) and n.endswith(("LR", "Scheduler", "Restarts", "Plateau"))),
        "utils.data": own_names(torch.utils.data, lambda n, v: n in torch.utils.data.__all__ and "DataPipe" not in n and n[0] not in "_"),
        "autograd": ["Function", "backward", "enable_grad", "grad", "gradcheck", "gradgradcheck", "inference_mode", "no_grad", "set_grad_enabled", "detect_anomaly"],
        "func": ["functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "stack_module_state", "vjp", "vmap"],
        "amp": ["GradScaler", "autocast", "custom_bwd", "custom_fwd"],
        "distributions": own_names(torch.distributions, lambda n, v: (inspect.isclass(v) and n not in ("ExponentialFamily", "LKJCholesky") and not n.endswith("Transform")) or n in ("kl_divergence", "register_kl")),
        "linalg": own_names(torch.linalg, lambda n, v: callable(v) and not inspect.isclass(v)),
    }  # fmt: skip
    return torch.__version__.split("+")[0], places


def place_of(area):
    return {"torch": compat, "Tensor": nc.Tensor}.get(area) or compat.__getattr__(area)


def status(area, name):
    """Returns "same", "differs", "refused" or "missing", and how."""
    how = DIFFERS.get(f"{area}.{name}") or (DIFFERS.get(f"torch.{name.rstrip('_')}") if area == "Tensor" else None)
    try:
        found = getattr(place_of(area), name)
    except AttributeError as error:
        words = str(error)
        if "; " in words and "dir(" not in words and "docs/book" not in words:
            return "refused", words.split("; ", 1)[1]
        return "missing", ""
    doc = (inspect.getdoc(found) or "") if callable(found) else ""
    if doc.startswith("Refuses"):
        return "refused", doc.split(": ", 1)[1].splitlines()[0].rstrip(".")
    return ("differs", how) if how else ("same", "")


def wrapped(words):
    """Returns names as lines of a paragraph."""
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > 136:
            lines.append(line.rstrip())
            line = ""
        line += f"`{word}` "
    return "\n".join([*lines, line.rstrip()]) if words else "None."


def page():
    """Returns the text of the page."""
    version, places = pytorch()
    rows, sections = [], []
    for area, names in places.items():
        found = {name: status(area, name) for name in names}
        of = {kind: [n for n, (k, _) in found.items() if k == kind] for kind in ("same", "differs", "refused", "missing")}
        rows.append(f"| `{area}` | {len(names)} | {len(of['same'])} | {len(of['differs'])} | {len(of['refused'])} | {len(of['missing'])} |")
        part = [f"## {area}", "", "Same:", wrapped(of["same"]), ""]
        for kind, words in (("differs", "Different"), ("refused", "Refused, with what to write instead")):
            if of[kind]:
                part += [f"{words}:", "", *(f"- `{n}`: {found[n][1]}" for n in of[kind]), ""]
        part += ["Missing:", wrapped(of["missing"]), ""]
        sections.append("\n".join(part))
    head = f"""# PyTorch's names

This page lists the public names of PyTorch {version} and whether `netcl.torch_compat` has them. `python python/tests/pytorch_names.py` writes it from
the package, and a test compares it. A name listed as the same has PyTorch's meaning, or refuses an argument with an error that says what to write
instead. A missing name raises `AttributeError`.

```python
import netcl.torch_compat as torch              # instead of: import torch
import netcl.torch_compat.nn.functional as F    # instead of: import torch.nn.functional as F
```

`netcl.torch_compat.install()` makes `import torch` of all later imports give these modules. The functions and methods are also in `netcl`.

Everywhere, integers are int32, floats are float32, float16 or bfloat16, and a backward is not recorded, so second derivatives are refused.

| area | names | same | different | refused | missing |
| --- | --- | --- | --- | --- | --- |
"""
    return head + "\n".join(rows) + "\n\n" + "\n".join(sections).rstrip() + "\n"


def main():
    PAGE.write_text(page(), encoding="utf-8")
    print("\n".join(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")))


if __name__ == "__main__":
    sys.exit(main())
