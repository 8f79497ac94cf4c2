"""Functions of einops on tensors: the values and gradients are those on PyTorch's tensors."""

import numpy as np
import pytest

import netcl as nc

einops = pytest.importorskip("einops")
torch = pytest.importorskip("torch")

X = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype(np.float32)
CALLS = {
    "transpose": lambda x: einops.rearrange(x, "b c h w -> b h w c"), "merge": lambda x: einops.rearrange(x, "b c h w -> b (h w) c"), "patches": lambda x: einops.rearrange(x, "b c (h p) (w q) -> (b h w) (p q c)", p=2, q=3),
    "heads": lambda x: einops.rearrange(x, "b c h (g d) -> b g c h d", g=2), "new axis": lambda x: einops.rearrange(x, "b c h w -> b 1 c h 1 w"), "dots": lambda x: einops.rearrange(x, "b ... w -> ... (b w)"),
    "list": lambda x: einops.rearrange([x, x * 2], "l b c h w -> b c h (l w)"), "mean": lambda x: einops.reduce(x, "b c h w -> b c", "mean"), "max": lambda x: einops.reduce(x, "b c (h 2) (w 3) -> b c h w", "max"),
    "min": lambda x: einops.reduce(x, "b c h w -> w", "min"), "sum": lambda x: einops.reduce(x, "b c h w ->", "sum"), "prod": lambda x: einops.reduce(x, "b c h w -> b c", "prod"), "keep": lambda x: einops.reduce(x, "b c h w -> b c () ()", "mean"),
    "any": lambda x: einops.reduce(x > 1, "b c h w -> b c", "any"), "repeat": lambda x: einops.repeat(x, "b c h w -> b (c r) h w", r=2), "repeat axis": lambda x: einops.repeat(x, "b c h w -> b k c h w", k=3),
    "einsum": lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d"), "pack": lambda x: einops.pack([x, x[:, :, 0]], "b c * w")[0], "unpack": lambda x: einops.unpack(x, [[2], [2]], "b c * w")[1],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_functions(name):
    found = []
    for lib in (torch, nc):
        x = lib.tensor(X, requires_grad=True)
        y = CALLS[name](x)
        if name != "any":
            (y * y).sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy() if name != "any" else None))
        assert type(y) is lib.Tensor
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    if name != "any":
        np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4, atol=1e-4)


def test_shapes_and_errors():
    assert einops.parse_shape(nc.tensor(X), "b c _ w") == {"b": 2, "c": 3, "w": 6}
    assert einops.asnumpy(nc.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(einops.EinopsError):
        einops.rearrange(nc.ones(2, 3), "a b c -> a")
