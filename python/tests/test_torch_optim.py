"""Optimizers next to PyTorch's: frozen parameters, groups, parameters without a gradient, and leaves that are kept."""

import numpy as np
import pytest

import netcl as nc
from netcl import nn, optim

torch = pytest.importorskip("torch")

RULES = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    "adam": ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"lr": 0.05, "betas": (0.7, 0.9), "weight_decay": 0.2}),
}
START = [np.array(v, dtype=np.float32) for v in ([1.0, -2.0], [0.5, 3.0], [-1.5, 0.25])]


class Pair:
    """The same parameters in netcl and in PyTorch."""

    def __init__(self, count=3):
        self.ours = [nn.Parameter(nc.tensor(v)) for v in START[:count]]
        self.theirs = [torch.nn.Parameter(torch.tensor(v)) for v in START[:count]]

    def optimizers(self, name, groups=lambda params: params, **more):
        kind, options = RULES[name]
        options = {**options, **more}
        return getattr(optim, kind)(groups(self.ours), **options), getattr(torch.optim, kind)(groups(self.theirs), **options)

    def backward(self, used, factor=1.0):
        for params in (self.ours, self.theirs):
            loss = sum((params[i] * params[i] * params[i]).sum() * factor for i in used)
            if any(params[i].requires_grad for i in used):
                loss.backward()

    def each(self, change):
        for params in (self.ours, self.theirs):
            change(params)

    def agree(self):
        for a, b in zip(self.ours, self.theirs):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-5, atol=2e-6)
            assert a.requires_grad == b.requires_grad and (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", RULES)
def test_parameters_without_a_gradient_are_skipped_and_count_their_own_steps(name):
    pair = Pair()
    ours, theirs = pair.optimizers(name)
    for used in ([0], [0, 1], [0, 1], [1], [0, 1, 2], [2], [], [0, 2]):
        ours.zero_grad(), theirs.zero_grad()
        if used:
            pair.backward(used)
        ours.step(), theirs.step()
        pair.agree()


@pytest.mark.parametrize("name", RULES)
def test_frozen_parameters_stay_frozen_until_they_are_unfrozen(name):
    pair = Pair()
    pair.each(lambda params: params[1].requires_grad_(False))
    ours, theirs = pair.optimizers(name)
    pair.agree()
    plan = {2: (1, True), 4: (0, False), 6: (0, True)}
    for step in range(8):
        if step in plan:
            place, on = plan[step]
            pair.each(lambda params: params[place].requires_grad_(on))
        ours.zero_grad(), theirs.zero_grad()
        pair.backward([0, 1, 2])
        ours.step(), theirs.step()
        pair.agree()


GROUPS = {
    "lr": [{"lr": 0.01}, {}, {"lr": 0.5}],
    "weight_decay": [{"weight_decay": 0.0}, {"weight_decay": 0.7}, {}],
}
OWN = {
    "SGD": [{"momentum": 0.5}, {"momentum": 0.9, "dampening": 0.5, "nesterov": False}, {"momentum": 0.3, "nesterov": True, "dampening": 0.0}],
    "Adam": [{"betas": (0.5, 0.6)}, {"eps": 0.1}, {"betas": (0.9, 0.8), "eps": 1e-2, "lr": 0.2}],
    "AdamW": [{"betas": (0.5, 0.6)}, {"eps": 0.1}, {"weight_decay": 0.0, "eps": 1e-2}],
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("keys", ["lr", "weight_decay", "own"])
def test_the_keys_of_groups_count(name, keys):
    settings = GROUPS.get(keys) or OWN[RULES[name][0]]
    pair = Pair()
    ours, theirs = pair.optimizers(name, lambda params: [{"params": [p], **s} for p, s in zip(params, settings)])
    for _ in range(4):
        ours.zero_grad(), theirs.zero_grad()
        pair.backward([0, 1, 2])
        ours.step(), theirs.step()
        pair.agree()


def test_a_group_may_be_one_tensor_and_a_default_rate_may_be_zero():
    pair = Pair(2)
    ours, theirs = pair.optimizers("sgd", lambda params: [{"params": params[0], "lr": 0.3}, {"params": params[1]}], lr=0.0)
    pair.backward([0, 1])
    ours.step(), theirs.step()
    pair.agree()


@pytest.mark.parametrize("key", ["learning_rate", "beta", "momentun", "maximise", "decay"])
def test_an_unknown_key_of_a_group_is_an_error_that_lists_the_keys(key):
    for make in (optim.SGD, optim.AdamW):
        with pytest.raises(ValueError, match=f"{key}.*lr"):
            make([{"params": [nn.Parameter(nc.zeros(2))], key: 0.1}])
    with pytest.raises(ValueError, match="betas"):
        optim.SGD([{"params": [nn.Parameter(nc.zeros(2))], "betas": (0.9, 0.9)}])


def test_two_optimizers_can_share_a_parameter():
    pair = Pair(2)
    first, second = pair.optimizers("adam"), pair.optimizers("momentum", lambda params: params[::-1])
    for step in range(4):
        for ours, theirs in (first, second):
            ours.zero_grad(), theirs.zero_grad()
            pair.backward([0, 1])
            ours.step(), theirs.step()
            pair.agree()


def test_an_optimizer_made_between_forward_and_backward_keeps_the_leaf():
    pair = Pair(2)
    losses = [(params[0] * params[1]).sum() for params in (pair.ours, pair.theirs)]
    ours, theirs = pair.optimizers("adamw")
    for loss in losses:
        loss.backward()
    ours.step(), theirs.step()
    pair.agree()
    losses = [(params[0] * params[1]).sum() for params in (pair.ours, pair.theirs)]
    named = optim.SGD([("a", pair.ours[0]), ("b", pair.ours[1])], lr=0.1)
    for loss in losses:
        loss.backward()
    named.step(), torch.optim.SGD(pair.theirs, lr=0.1).step()
    pair.agree()


def test_freezing_keeps_a_gradient_that_is_there_and_new_ones_do_not_come():
    pair = Pair(2)
    ours, theirs = pair.optimizers("sgd")
    pair.backward([0, 1])
    pair.each(lambda params: params[0].requires_grad_(False))
    pair.agree()
    ours.step(), theirs.step()
    pair.agree()
    pair.backward([0, 1])
    pair.agree()


def test_what_pytorch_refuses_is_refused():
    w = nc.tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="leaf"):
        optim.SGD([w * 2])
    with pytest.raises(TypeError, match="tensor"):
        optim.SGD(w)
    with pytest.raises(ValueError, match="twice"):
        optim.SGD([{"params": [w]}, {"params": [w]}])
    with pytest.raises(RuntimeError, match="leaf"):
        (w * 2).requires_grad_(False)
    with pytest.raises(TypeError, match="float"):
        nc.tensor([1]).requires_grad_()


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_scales_gradients_in_place_and_over_all_groups(limit):
    pair = Pair()
    pair.backward([0, 1, 2])
    kept = [p.grad for p in pair.ours]
    norm = optim.clip_grad_norm_(pair.ours, limit)
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(pair.theirs, limit)), rel=1e-5)
    pair.agree()
    for p, g in zip(pair.ours, kept):
        assert p.grad.tolist() == g.tolist()
    pair = Pair()
    ours, theirs = pair.optimizers("adam", lambda params: [{"params": [p], **s} for p, s in zip(params, OWN["Adam"])])
    ours.clip_grad_norm(limit)
    for _ in range(3):
        ours.zero_grad(), theirs.zero_grad()
        pair.backward([0, 1, 2])
        torch.nn.utils.clip_grad_norm_(pair.theirs, limit)
        ours.step(), theirs.step()
        pair.agree()


def test_states_of_parameters_with_other_step_numbers_resume():
    pair, again = Pair(), Pair()
    ours, theirs = pair.optimizers("adam")
    for used in ([0], [0, 1], [0, 1, 2]):
        ours.zero_grad(), theirs.zero_grad()
        pair.backward(used)
        ours.step(), theirs.step()
    other, _ = again.optimizers("adam")
    with nc.no_grad():
        for a, b in zip(again.ours, pair.ours):
            a.copy_(b)
    other.load_state_dict(ours.state_dict())
    again.theirs = pair.theirs
    other.zero_grad(), theirs.zero_grad()
    again.backward([0, 1, 2])
    other.step(), theirs.step()
    again.agree()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_written_after_a_step_count(dtype):
    for kind, options in RULES.values():
        ours = nn.Parameter(nc.tensor([1.0, -2.0], dtype=dtype))
        theirs = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        both = getattr(optim, kind)([ours], **options), getattr(torch.optim, kind)([theirs], **options)
        for step in range(4):
            for p, optimizer, no_grad in ((ours, both[0], nc.no_grad), (theirs, both[1], torch.no_grad)):
                if step == 2:
                    with no_grad():
                        p.fill_(4.0)
                if step == 3:
                    with no_grad():
                        p *= 2
                optimizer.zero_grad()
                (p * p).sum().backward()
                optimizer.step()
        np.testing.assert_allclose(ours.detach().float().numpy(), theirs.detach().numpy(), rtol=1e-5 if dtype == "float32" else 2e-2)
