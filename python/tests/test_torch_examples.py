"""Programs in the style of PyTorch's examples and of nanoGPT train here and there from the same weights: the same file, with other imports.

Each program of ``torch_examples`` has ``models()``, which makes its networks, and ``main(**networks)``, which trains them and returns losses and
other numbers. It runs once with PyTorch, and once with every ``torch`` of its imports replaced by ``netcl.torch_compat``. Random numbers are drawn
by NumPy in both runs, because the generators differ.
"""

import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent / "torch_examples"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


class Drawn(types.ModuleType):
    """The module ``torch`` with random numbers of NumPy."""

    def __init__(self, lib):
        super().__init__("torch")
        self._lib, self._random = lib, np.random.default_rng(0)

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def _tensor(self, values, options):
        return self._lib.tensor(values.tolist(), **{k: v for k, v in options.items() if k in ("device", "dtype")})

    def randn(self, *shape, **options):
        return self._tensor(self._random.normal(size=shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape), options)

    def randn_like(self, x):
        return self.randn(*x.size(), dtype=x.dtype, device=x.device)

    def randint(self, high, size, **options):
        return self._tensor(self._random.integers(0, high, size), options)

    def randperm(self, n):
        return self._tensor(self._random.permutation(n), {})

    def multinomial(self, weights, num_samples):
        assert num_samples == 1
        rows = np.atleast_2d(weights.numpy()).astype(np.float64)
        picked = [[int((np.cumsum(row / row.sum()) < self._random.random()).sum())] for row in rows]
        return self._lib.tensor(picked if weights.ndim == 2 else picked[0])


def categorical(base, lib):
    """Returns the distribution with samples of NumPy."""

    class Categorical(base):
        random = np.random.default_rng(1)

        def sample(self):
            rows = np.atleast_2d(self.probs.detach().numpy())
            picked = [int((np.cumsum(row) < self.random.random()).sum()) for row in rows]
            return lib.tensor(picked if self.probs.ndim == 2 else picked[0])

    return Categorical


def program(name, lib):
    """Returns the namespace of a program that uses PyTorch or netcl."""
    source = (FOLDER / f"{name}.py").read_text()
    if lib is not torch:
        source = re.sub(r"^import torch$", "import netcl.torch_compat as torch", source, flags=re.M)
        source = re.sub(r"^(import|from) torch\b", r"\1 netcl.torch_compat", source, flags=re.M)
    space = {"__name__": name}
    exec(compile(source, f"{name}.py of {lib.__name__}", "exec"), space)
    assert lib is torch or not any(getattr(v, "__module__", "").split(".")[0] == "torch" for v in space.values())
    space["torch"] = Drawn(lib)
    if "Categorical" in space:
        space["Categorical"] = categorical(space["Categorical"], lib)
    return space


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_are_those_of_pytorch(name):
    import netcl.torch_compat as compat

    torch.manual_seed(0)
    theirs, ours = program(name, torch), program(name, compat)
    expected, found = theirs["models"](), ours["models"]()
    for key, model in expected.items():
        assert list(found[key].state_dict()) == list(model.state_dict())
        found[key].load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
    expected, found = theirs["main"](**expected), ours["main"](**found)
    assert len(expected) > 10 and all(isinstance(v, (int, float)) for v in found)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_one_line_before_an_unchanged_program_is_enough():
    code = f"""
import netcl, runpy; netcl.torch_compat.install()
import torch
program = runpy.run_path({str(FOLDER / 'nanogpt.py')!r})
torch.manual_seed(0)
losses = program["main"](**program["models"]())
print(torch.Tensor is netcl.Tensor, losses[2] > losses[12])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr[-2000:]


def test_the_programs_are_those_of_the_list():
    assert {"mnist", "mnist_rnn", "vae", "dcgan", "word_language_model", "super_resolution", "regression", "reinforcement_learning", "siamese_network", "graph_networks",
            "forward_forward", "time_sequence_prediction", "nanogpt", "vision_transformer", "deep_q_learning", "fast_neural_style"} <= set(PROGRAMS)  # fmt: skip
