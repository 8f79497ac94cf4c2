"""L-BFGS takes PyTorch's steps: losses, weights, counts of calls, and states that both read."""

import copy

import numpy as np
import pytest

import netcl as nc

torch = pytest.importorskip("torch")

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True)).astype(np.float32)


def trained(lib, start, steps, state=None, **options):
    model = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.Tanh(), lib.nn.Linear(4, 1))
    model.load_state_dict(start)
    optimizer = lib.optim.LBFGS(model.parameters(), **options)
    if state is not None:
        optimizer.load_state_dict(state)
    x, y, losses = lib.tensor(X), lib.tensor(Y), []

    def closure():
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        return loss

    first = [optimizer.step(closure).item() for _ in range(steps)]
    return model.state_dict(), optimizer, losses, first


OPTIONS = {
    "small step": {"lr": 0.1}, "few iterations": {"lr": 0.5, "max_iter": 4}, "short history": {"lr": 0.2, "max_iter": 8, "history_size": 2}, "few calls": {"lr": 0.3, "max_eval": 3},
    "tolerance of gradients": {"lr": 0.5, "tolerance_grad": 0.3}, "tolerance of changes": {"lr": 0.3, "tolerance_change": 1e-2}, "one iteration": {"lr": 1.0, "max_iter": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_steps_are_those_of_pytorch(name):
    torch.manual_seed(0)
    start = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).state_dict()
    start = {k: v.clone() for k, v in start.items()}
    expected, theirs, their_losses, their_first = trained(torch, start, 3, **OPTIONS[name])
    found, ours, losses, first = trained(nc, start, 3, **OPTIONS[name])
    assert len(losses) == len(their_losses)
    np.testing.assert_allclose(losses, their_losses, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(first, their_first, rtol=1e-3, atol=1e-5)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].numpy(), value.numpy(), rtol=1e-2, atol=1e-3)
    their_state, state = theirs.state_dict()["state"][0], ours.state_dict()["state"][0]
    assert state["func_evals"] == their_state["func_evals"] and state["n_iter"] == their_state["n_iter"]


def test_a_state_of_pytorch_continues():
    torch.manual_seed(1)
    start = {k: v.clone() for k, v in torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).state_dict().items()}
    weights, theirs, _, _ = trained(torch, start, 2, lr=0.2, max_iter=5)
    weights, state = {k: v.clone() for k, v in weights.items()}, theirs.state_dict()
    _, _, expected, _ = trained(torch, weights, 1, copy.deepcopy(state), lr=0.2, max_iter=5)
    _, optimizer, found, _ = trained(nc, weights, 1, state, lr=0.2, max_iter=5)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    _, _, again, _ = trained(nc, weights, 1, optimizer.state_dict(), lr=0.2, max_iter=5)
    assert len(again) > 1


def test_other_forms_are_refused():
    model = nc.nn.Linear(3, 1)
    with pytest.raises(NotImplementedError, match="line_search_fn=None"):
        nc.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    with pytest.raises(ValueError, match="one"):
        nc.optim.LBFGS([{"params": [model.weight]}, {"params": [model.bias]}])
    with pytest.raises(TypeError, match="closure"):
        nc.optim.LBFGS(model.parameters()).step()
