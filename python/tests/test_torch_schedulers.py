"""Optimizers and schedules next to PyTorch's: every rule and schedule, parameter groups that are written, states, and refusals."""

import copy
import math
import pickle

import numpy as np
import pytest

import netcl as nc
from netcl import nn, optim

torch = pytest.importorskip("torch")

RULES = {
    "sgd": ("SGD", {"lr": 0.1}), "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd max": ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": ("Adam", {"lr": 0.05, "weight_decay": 0.1}), "adam max": ("Adam", {"lr": 0.05, "maximize": True, "eps": 1e-3}),
    "amsgrad": ("Adam", {"lr": 0.05, "amsgrad": True, "betas": (0.7, 0.6), "weight_decay": 0.1}),
    "adam decoupled": ("Adam", {"lr": 0.05, "weight_decay": 0.2, "decoupled_weight_decay": True}),
    "adamw": ("AdamW", {"lr": 0.05, "weight_decay": 0.2}), "adamw amsgrad": ("AdamW", {"lr": 0.05, "amsgrad": True, "betas": (0.7, 0.6)}),
    "rmsprop": ("RMSprop", {"lr": 0.02}), "rmsprop all": ("RMSprop", {"lr": 0.02, "momentum": 0.8, "centered": True, "weight_decay": 0.1, "alpha": 0.9, "eps": 1e-3}),
    "rmsprop max": ("RMSprop", {"lr": 0.02, "maximize": True, "momentum": 0.5}),
    "adagrad": ("Adagrad", {"lr": 0.1}), "adagrad all": ("Adagrad", {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    "adadelta": ("Adadelta", {}), "adadelta all": ("Adadelta", {"lr": 0.7, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    "adamax": ("Adamax", {"lr": 0.05}), "adamax all": ("Adamax", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True}),
    "nadam": ("NAdam", {"lr": 0.05}), "nadam all": ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.05}), "radam all": ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "asgd": ("ASGD", {"lr": 0.05, "t0": 3, "lambd": 0.1, "weight_decay": 0.1}), "rprop": ("Rprop", {"lr": 0.05}), "rprop max": ("Rprop", {"lr": 0.05, "maximize": True}),
}  # fmt: skip
START = [np.array(v, dtype=np.float32) for v in ([1.0, -2.0, 0.3], [[0.5, 3.0]])]


class Pair:
    """Equal parameters and optimizers in netcl and in PyTorch."""

    def __init__(self, name, groups=False, more=()):
        kind, options = RULES[name]
        options = {**options, **dict(more)}
        self.params = [nn.Parameter(nc.tensor(v)) for v in START], [torch.nn.Parameter(torch.tensor(v)) for v in START]
        self.both = [
            getattr(lib.optim, kind)([{"params": [params[0]], "lr": 0.03}, {"params": params[1:]}] if groups else params, **options)
            for lib, params in zip((nc, torch), self.params)
        ]

    def step(self, used=(0, 1)):
        for params, optimizer in zip(self.params, self.both):
            optimizer.zero_grad()
            sum(((params[i] * params[i]).sum() * 0.5 + (params[i] * 3).sin().sum() for i in used)).backward()
            optimizer.step()

    def agree(self, rtol=3e-5):
        for a, b in zip(*self.params):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=rtol, atol=3e-6)


@pytest.mark.parametrize("name", RULES)
def test_every_rule(name):
    pair = Pair(name)
    for used in ([0, 1], [0], [0, 1], [1], [0, 1], [0, 1], [0, 1]):
        pair.step(used)
        pair.agree()


CHANGES = {"lr": 0.02, "weight_decay": 0.3, "eps": 1e-2, "betas": (0.6, 0.7), "momentum": 0.4, "alpha": 0.5, "rho": 0.6, "lambd": 0.3, "nesterov": False}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("groups", [False, True], ids=["one", "two"])
def test_what_is_written_to_groups_counts(name, groups):
    for key, value in CHANGES.items():
        pair = Pair(name, groups)
        if key not in pair.both[1].param_groups[0]:
            continue
        if key == "momentum" and not pair.both[1].param_groups[0]["momentum"]:
            continue
        for step in range(6):
            if step in (2, 4):
                for optimizer in pair.both:
                    optimizer.param_groups[0 if step == 2 else -1][key] = value
            pair.step()
            pair.agree()


@pytest.mark.parametrize("name", RULES)
def test_a_group_that_is_added_later(name):
    pair = Pair(name)
    extra = nn.Parameter(nc.tensor([2.0, 1.0])), torch.nn.Parameter(torch.tensor([2.0, 1.0]))
    for step in range(5):
        if step == 2:
            for optimizer, p in zip(pair.both, extra):
                optimizer.add_param_group({"params": [p], "lr": 0.2})
        for p in extra:
            p.grad = None
            (p * p).sum().backward()
        pair.step()
        pair.agree()
        if step >= 2:
            np.testing.assert_allclose(extra[0].detach().numpy(), extra[1].detach().numpy(), rtol=3e-5)
    with pytest.raises(ValueError, match="twice"):
        pair.both[0].add_param_group({"params": [extra[0]]})
    with pytest.raises(TypeError):
        pair.both[0].add_param_group([extra[0]])


@pytest.mark.parametrize("name", RULES)
def test_states_move_between_both_libraries(name):
    pair = Pair(name)
    for _ in range(3):
        pair.step()
    ours, theirs = pair.both[0].state_dict(), copy.deepcopy(pair.both[1].state_dict())
    assert set(ours) == set(theirs) and [g["params"] for g in ours["param_groups"]] == [g["params"] for g in theirs["param_groups"]]
    numbers = {k: v for k, v in theirs["param_groups"][0].items() if k not in ("foreach", "fused", "capturable", "differentiable", "params")}
    assert {k: ours["param_groups"][0][k] for k in numbers} == numbers
    for i, entries in theirs["state"].items():
        for key, value in entries.items():
            if key != "momentum_buffer" or value is not None:
                mine = ours["state"][i][key]
                mine = mine.detach().numpy() if isinstance(mine, nc.Tensor) else mine
                np.testing.assert_allclose(mine, value.detach().numpy() if torch.is_tensor(value) else value, rtol=1e-4, atol=1e-5)
    again = Pair(name)
    arrays = {i: {k: v.detach().numpy().copy() if torch.is_tensor(v) else v for k, v in e.items()} for i, e in theirs["state"].items()}
    again.both[0].load_state_dict({"state": arrays, "param_groups": theirs["param_groups"]})
    again.both[1].load_state_dict(copy.deepcopy(theirs))
    resumed = Pair(name)
    resumed.both[0].load_state_dict(pickle.loads(pickle.dumps(ours)))
    with nc.no_grad(), torch.no_grad():
        for other in (again, resumed):
            for a, b, c in zip(other.params[0], other.params[1], pair.params[1]):
                a.copy_(nc.tensor(c.detach().numpy())), b.copy_(c)
    resumed.both[1].load_state_dict(copy.deepcopy(theirs))
    for _ in range(3):
        for other in (pair, again, resumed):
            other.step()
            other.agree(1e-4)


def test_a_closure_hooks_and_the_loss():
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        w, seen = modules.Parameter(lib.ones(2)), []
        optimizer = lib.optim.SGD([w], lr=0.5)
        first = optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append("before"))
        optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append("after"))

        def closure():
            optimizer.zero_grad()
            loss = (w * w).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() == 2.0 and w.tolist() == [0.0, 0.0]
        first.remove()
        optimizer.step()
        assert seen == ["before", "after", "after"]


def test_hyperparameters_out_of_bounds_are_refused_by_both():
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        for kind, options in (("SGD", {"lr": -1.0}), ("SGD", {"nesterov": True}), ("Adam", {"betas": (1.0, 0.9)}), ("AdamW", {"eps": -1.0}), ("RMSprop", {"alpha": -1.0}),
                              ("Adagrad", {"lr_decay": -1.0}), ("Adadelta", {"rho": 1.5}), ("Rprop", {"etas": (1.5, 2.0)}), ("RAdam", {"weight_decay": -1.0}), ("NAdam", {"lr": -1.0})):
            with pytest.raises(ValueError):
                getattr(lib.optim, kind)([modules.Parameter(lib.ones(2))], **options)
        with pytest.raises(TypeError):
            lib.optim.Adam([modules.Parameter(lib.ones(2))], learning_rate=1.0)
    for name in ("SparseAdam", "Muon", "Adafactor"):
        with pytest.raises(AttributeError, match="write"):
            getattr(optim, name)


def test_parameters_of_groups_are_not_replaced():
    for make in (optim.AdamW, optim.RMSprop):
        w = nn.Parameter(nc.ones(2))
        optimizer = make([w], lr=0.1)
        w.grad = nc.ones(2)
        optimizer.step()
        optimizer.param_groups[0]["params"] = [nn.Parameter(nc.ones(2))]
        with pytest.raises(NotImplementedError, match="add_param_group"):
            optimizer.step()


def test_states_of_other_parameters_are_refused():
    one = optim.Adam([nn.Parameter(nc.ones(2))])
    one.param_groups[0]["params"][0].grad = nc.ones(2)
    one.step()
    state = one.state_dict()
    for params in ([nn.Parameter(nc.ones(2)), nn.Parameter(nc.ones(2))], [nn.Parameter(nc.ones(3))]):
        with pytest.raises(ValueError):
            optim.Adam(params).load_state_dict(state)
    with pytest.raises(ValueError, match="decoupled"):
        optim.AdamW([nn.Parameter(nc.ones(2))]).load_state_dict(state)


def test_an_optimizer_of_ones_own():
    def make(lib):
        class Halving(lib.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            with lib.no_grad():
                                self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                                p.add_(p.grad / p.grad.abs() * -group["lr"])

        return Halving

    for lib, modules in ((nc, nn), (torch, torch.nn)):
        w = modules.Parameter(lib.ones(2))
        optimizer = make(lib)([w], lr=0.25)
        (w * w).sum().backward()
        optimizer.step()
        assert w.tolist() == [0.75, 0.75] and optimizer.state[w]["steps"] == 1


S = "lr_scheduler"
SCHEDULES = {
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5), "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 5, 5, 9], gamma=0.3),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.25, 4), "ConstantLR default": lambda s, o: s.ConstantLR(o), "LinearLR": lambda s, o: s.LinearLR(o, 0.1, 0.8, total_iters=6),
    "LinearLR default": lambda s, o: s.LinearLR(o), "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9), "Cosine": lambda s, o: s.CosineAnnealingLR(o, 5),
    "Cosine min": lambda s, o: s.CosineAnnealingLR(o, T_max=8, eta_min=0.01), "Restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 4),
    "Restarts longer": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.02), "LambdaLR": lambda s, o: s.LambdaLR(o, lambda n: 0.9**n + 0.1 * n),
    "LambdaLR two": lambda s, o: s.LambdaLR(o, [lambda n: 1 / (n + 1), lambda n: 1 + n]), "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda n: 1 - 0.05 * n),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 7, 2.0), "PolynomialLR default": lambda s, o: s.PolynomialLR(o), "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=25),
    "OneCycleLR linear": lambda s, o: s.OneCycleLR(o, [0.5, 0.2], epochs=5, steps_per_epoch=5, anneal_strategy="linear", pct_start=0.4, div_factor=10, final_div_factor=50),
    "OneCycleLR three": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=30, three_phase=True, base_momentum=0.5, max_momentum=0.9),
    "OneCycleLR plain": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=25, cycle_momentum=False), "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.2, step_size_up=4),
    "CyclicLR 2": lambda s, o: s.CyclicLR(o, [0.01, 0.05], [0.2, 0.3], step_size_up=3, step_size_down=5, mode="triangular2"),
    "CyclicLR exp": lambda s, o: s.CyclicLR(o, 0.01, 0.2, step_size_up=4, mode="exp_range", gamma=0.9, cycle_momentum=False),
    "CyclicLR fn": lambda s, o: s.CyclicLR(o, 0.01, 0.2, step_size_up=4, scale_fn=lambda x: 1 / (1 + x), scale_mode="iterations"),
    "Sequential": lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, 8)], [4]),
    "Sequential three": lambda s, o: s.SequentialLR(o, [s.ConstantLR(o, 0.2, 3), s.ExponentialLR(o, 0.8), s.StepLR(o, 2)], [3, 7]),
    "Sequential poly": lambda s, o: s.SequentialLR(o, [s.LambdaLR(o, lambda n: n / 5), s.PolynomialLR(o, 6), s.MultiStepLR(o, [1, 3])], [5, 11]),
    "Chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 4), s.ExponentialLR(o, 0.9)]), "Chained two": lambda s, o: s.ChainedScheduler([s.StepLR(o, 2, 0.7), s.CosineAnnealingLR(o, 6)]),
}  # fmt: skip


def made(lib, modules, kind="SGD"):
    params = [modules.Parameter(lib.ones(2)), modules.Parameter(lib.ones(3))]
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return getattr(lib.optim, kind)([{"params": params[:1], "lr": 0.4}, {"params": params[1:]}], lr=0.1, **options)


def rates(optimizer):
    return [[g["lr"], g["betas"][0] if "betas" in g else g["momentum"]] for g in optimizer.param_groups]


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule(name, kind):
    both = [made(nc, nn, kind), made(torch, torch.nn, kind)]
    schedules = [SCHEDULES[name](getattr(lib.optim, S), o) for lib, o in zip((nc, torch), both)]
    for step in range(22):
        np.testing.assert_allclose(rates(both[0]), rates(both[1]), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(schedules[0].get_last_lr(), schedules[1].get_last_lr(), rtol=1e-9, atol=1e-12)
        for o, s in zip(both, schedules):
            for p in o.param_groups[0]["params"]:
                p.grad = nc.ones(2) if o is both[0] else torch.ones(2)
            o.step()
            s.step()
        if step == 9:
            state = pickle.loads(pickle.dumps(both[0].state_dict())), pickle.loads(pickle.dumps({k: v for k, v in schedules[0].state_dict().items() if not callable(v)}))
            both[0] = made(nc, nn, kind)
            schedules[0] = SCHEDULES[name](optim.lr_scheduler, both[0])
            both[0].load_state_dict(state[0]), schedules[0].load_state_dict(state[1])


@pytest.mark.parametrize("options", [{}, {"mode": "max", "factor": 0.5, "patience": 1}, {"threshold_mode": "abs", "threshold": 0.1, "patience": 0, "cooldown": 2},
                                     {"patience": 1, "min_lr": [0.01, 0.05]}, {"mode": "max", "threshold": 0.2, "patience": 0, "factor": 0.9}], ids=str)
def test_reduce_on_plateau(options):
    both = made(nc, nn), made(torch, torch.nn)
    schedules = [getattr(lib.optim, S).ReduceLROnPlateau(o, **{"patience": 2, **options}) for lib, o in zip((nc, torch), both)]
    for step in range(40):
        metric = math.sin(step * 0.7) + 1.5 - 0.01 * step
        schedules[0].step(nc.tensor(metric)), schedules[1].step(torch.tensor(metric))
        np.testing.assert_allclose(rates(both[0]), rates(both[1]), rtol=1e-9)


@pytest.mark.parametrize("epoch", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("name", [n for n in SCHEDULES if n.split()[0] not in ("Sequential", "Chained")])
@pytest.mark.filterwarnings("ignore")
def test_a_step_to_an_epoch(name, epoch):
    both = made(nc, nn), made(torch, torch.nn)
    for lib, o in zip((nc, torch), both):
        s = SCHEDULES[name](getattr(lib.optim, S), o)
        s.step(), s.step(epoch), s.step()
    np.testing.assert_allclose(rates(both[0]), rates(both[1]), rtol=1e-9, atol=1e-12)


def test_fractions_of_epochs_restart():
    both = made(nc, nn), made(torch, torch.nn)
    schedules = [getattr(lib.optim, S).CosineAnnealingWarmRestarts(o, 2, 2) for lib, o in zip((nc, torch), both)]
    for epoch in np.arange(0, 9, 0.3):
        for s in schedules:
            s.step(float(epoch))
        np.testing.assert_allclose(rates(both[0]), rates(both[1]), rtol=1e-9)


def test_refusals_of_schedules():
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        s = getattr(lib.optim, S)
        for wrong in (lambda o: s.StepLR([], 1), lambda o: s.OneCycleLR(o, 0.1), lambda o: s.LambdaLR(o, [lambda n: n]), lambda o: s.StepLR(o, 1, last_epoch=3),
                      lambda o: s.CyclicLR(o, 0.1, 0.2, mode="square"), lambda o: s.ReduceLROnPlateau(o, factor=1.0), lambda o: s.LinearLR(o, 0.0), lambda o: s.ConstantLR(o, 2.0),
                      lambda o: s.SequentialLR(o, [s.StepLR(o, 1)], [1]), lambda o: s.ChainedScheduler([])):
            with pytest.raises((ValueError, TypeError, KeyError)):
                wrong(made(lib, modules))
        over = s.OneCycleLR(made(lib, modules), 0.1, total_steps=2)
        over.step(), over.step()
        with pytest.raises(ValueError):
            over.step()


def test_a_captured_step_follows_the_rate_and_says_what_it_cannot_follow():
    w = nn.Parameter(nc.tensor([1.0, 2.0]))
    optimizer = optim.SGD([w], lr=0.5)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    @nc.compile
    def step(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()
        return w.detach().sum()

    x = nc.ones(2)
    values = []
    for _ in range(3):
        step(x)
        values.append(w.tolist()[0])
        schedule.step()
    assert values == [0.5, 0.25, 0.125]
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(NotImplementedError, match="capture"):
        step(x)
