"""Gradients with PyTorch's functions next to PyTorch's: grad, hooks, checkpoint, loss scaling, and transformations of functions."""

import numpy as np
import pytest
from torch_pairs import agree

import netcl as nc
from netcl import nn

torch = pytest.importorskip("torch")
A = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.5]], np.float32)
BOTH = (nc, torch)


def both(program, rtol=2e-5):
    """Compares a program's results, or requires that both refuse."""
    made, errors = [], []
    for lib in BOTH:
        try:
            made.append(program(lib))
        except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
            errors.append(error)
    assert len(errors) != 1, f"only one refuses: {errors}"
    if not errors:
        agree(*made, rtol=rtol)
    return bool(errors)


def leaf(lib, array=A):
    return lib.tensor(array, requires_grad=True)


def plain(lib):
    x, w, other = leaf(lib), leaf(lib, A * 2), leaf(lib)
    y = (x * w).sum() + other.sum()
    found = lib.autograd.grad(y, (x, w))
    assert x.grad is None and w.grad is None and other.grad is None
    return found


def within(lib):
    x = leaf(lib)
    h = x * 2
    y = (h * h * x).sum()
    return lib.autograd.grad(y, [h, x])


def weighted(lib):
    x = leaf(lib)
    return lib.autograd.grad([x * x, x.sum()], [x], grad_outputs=[lib.tensor(A), None])


def itself(lib):
    x = leaf(lib)
    h = x * 3
    return lib.autograd.grad(h, [h, x], lib.ones(2, 3))


def unused(lib, **options):
    x, w = leaf(lib), leaf(lib)
    found = lib.autograd.grad((x * 2).sum(), [x, w], **options)
    return [lib.zeros(1) - 7 if g is None else g for g in found]


@pytest.mark.parametrize("program", [plain, within, weighted, itself], ids=lambda f: f.__name__)
def test_grad_returns_gradients_and_leaves_collect_nothing(program):
    assert not both(program)


@pytest.mark.parametrize("options", [{}, {"allow_unused": True}, {"materialize_grads": True}, {"allow_unused": False}], ids=str)
def test_unused_inputs(options):
    both(lambda lib: unused(lib, **options))


def test_calls_of_grad_that_both_refuse():
    for program in (
        lambda lib: lib.autograd.grad(leaf(lib) * 2, [leaf(lib)]), lambda lib: lib.autograd.grad(lib.ones(1), [leaf(lib)]), lambda lib: lib.autograd.grad(leaf(lib).sum(), [lib.ones(2)]),
        lambda lib: (lambda x, y: (y.backward(), lib.autograd.grad(y, [x])))(*(lambda x: (x, (x * x).sum()))(leaf(lib))), lambda lib: leaf(lib).backward(), lambda lib: lib.ones(2).register_hook(lambda g: g),
    ):  # fmt: skip
        assert both(program)


def test_what_only_pytorch_does_says_so():
    x = leaf(nc)
    for call in (lambda y: nc.autograd.grad(y, x, create_graph=True), lambda y: y.backward(create_graph=True), lambda y: nc.autograd.backward(y, create_graph=True)):
        with pytest.raises(NotImplementedError, match="create_graph"):
            call((x * x).sum())
    y = (x * x).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="again"):
        y.backward()
    for name in ("jvp", "jacfwd", "hessian"):
        with pytest.raises(NotImplementedError, match="vjp"):
            getattr(nc.func, name)(lambda x: x, (x,), (x,))
    with pytest.raises(NotImplementedError, match="bfloat16"):
        nc.amp.autocast("cuda", dtype=nc.float16)
    with nc.amp.autocast("cpu", enabled=False):
        assert (x * 2).dtype is nc.float32


HOOKED = {
    "doubles": lambda lib, g: g * 2, "nothing": lambda lib, g: None, "clamps": lambda lib, g: g.clamp(-1, 1), "zeros": lambda lib, g: lib.zeros_like(g),
}  # fmt: skip


@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("where", ["leaf", "middle", "both", "result"])
def test_hooks(name, where):
    def program(lib):
        x, seen = leaf(lib), []

        def hook(g):
            seen.append(g.detach().clone())
            return HOOKED[name](lib, g)

        h = x * x
        y = (h * 3 + h.sin()).sum() + x.sum()
        for t, on in ((x, where in ("leaf", "both")), (h, where in ("middle", "both")), (y, where == "result")):
            if on:
                t.register_hook(hook)
        y.backward()
        return x.grad, seen

    assert not both(program)


def test_hooks_in_order_removed_and_kept_gradients():
    def program(lib):
        x = leaf(lib)
        h = x * 2
        h.retain_grad()
        first = h.register_hook(lambda g: g + 1)
        h.register_hook(lambda g: g * 3)
        gone = x.register_hook(lambda g: g * 100)
        gone.remove()
        (h * x).sum().backward()
        kept = h.grad, x.grad.clone()
        first.remove()
        (x * 2).register_hook(lambda g: g)
        with x.register_hook(lambda g: g * 5):
            x.sum().backward()
        x.sum().backward()
        return *kept, x.grad

    assert not both(program)


def test_hooks_of_grad_and_errors_in_hooks():
    def program(lib, wanted):
        x = leaf(lib)
        h = x * 2
        h.register_hook(lambda g: g * 10)
        x.register_hook(lambda g: g + 1)
        # PyTorch leaves the hook of h out of its gradient if x is wanted too.
        return lib.autograd.grad((h * h).sum(), [{"x": x, "h": h}[wanted]])

    for wanted in ("x", "h"):
        assert not both(lambda lib: program(lib, wanted))
    for lib in BOTH:
        x = leaf(lib)

        def bad(g):
            raise ValueError("from the hook")

        x.register_hook(bad)
        with pytest.raises(ValueError, match="from the hook"):
            x.sum().backward()
        y = leaf(lib)
        y.register_hook(lambda g: g[:1])
        with pytest.raises((RuntimeError, ValueError)):
            y.sum().backward()


def test_backward_of_some_inputs_and_several_tensors():
    def program(lib):
        x, w = leaf(lib), leaf(lib)
        (x * w).sum().backward(inputs=[x])
        assert w.grad is None
        lib.autograd.backward([x.sum(), x * w], [None, lib.tensor(A)])
        return x.grad, w.grad

    assert not both(program)


def test_gradcheck_finds_wrong_gradients():
    class Wrong(nc.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x

        @staticmethod
        def backward(ctx, dy):
            return dy * 3

    x = nc.tensor([0.5, -1.0], requires_grad=True)
    assert nc.autograd.gradcheck(lambda x: (x.sin() * x).sum(), (x,)) and nc.autograd.gradcheck(lambda x, y: (x @ y, x.exp()), (leaf(nc), nc.tensor(A.T.copy(), requires_grad=True)), atol=5e-2)
    assert not nc.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False)
    with pytest.raises(RuntimeError, match="gradcheck"):
        nc.autograd.gradcheck(Wrong.apply, x)


def test_modes_of_recording():
    def program(lib):
        x, states = leaf(lib), []

        @lib.no_grad()
        def off():
            return (x * 2).requires_grad

        @lib.inference_mode()
        def inference():
            return (x * 2).requires_grad

        states += [off(), inference()]
        with lib.set_grad_enabled(False):
            states.append((x * 2).requires_grad)
            with lib.enable_grad():
                states.append((x * 2).requires_grad)
        with lib.inference_mode():
            states += [lib.is_inference_mode_enabled(), lib.is_grad_enabled()]
        with lib.inference_mode(False):
            states += [lib.is_inference_mode_enabled(), lib.is_grad_enabled()]
        lib.set_grad_enabled(False)
        states.append(lib.is_grad_enabled())
        lib.set_grad_enabled(True)
        return [float(s) for s in (*states, lib.is_grad_enabled())]

    assert not both(program)


def test_checkpoint_has_the_gradients_and_the_random_numbers_of_the_forward():
    def program(lib):
        checkpoint = nc.utils.checkpoint.checkpoint if lib is nc else torch.utils.checkpoint.checkpoint
        x, w = leaf(lib), leaf(lib, A.T.copy())

        def part(a, factor):
            return (a @ w).sin() * factor, a.sum(1)

        y, z = checkpoint(part, x * 2, 3.0, use_reentrant=False)
        u = checkpoint(lambda a: (a @ w).exp(), lib.tensor(A), use_reentrant=False)
        ((y * y).sum() + z.sum() + u.sum()).backward()
        return y, x.grad, w.grad

    assert not both(program, 1e-4)
    x, calls = nc.ones(64, requires_grad=True), []

    def dropped(a):
        calls.append(1)
        return nc.functional.dropout(a, 0.5) * a

    y = nc.utils.checkpoint.checkpoint(dropped, x)
    y.sum().backward()
    assert len(calls) == 2 and (x.grad * 0.5).tolist() == y.tolist()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    inputs = nc.tensor(A)
    model(inputs).sum().backward()
    expected = [p.grad.tolist() for p in model.parameters()]
    model.zero_grad()
    nc.utils.checkpoint.checkpoint_sequential(model, 2, inputs).sum().backward()
    assert [p.grad.tolist() for p in model.parameters()] == expected


def test_loss_scaling_skips_infinite_steps():
    def program(lib):
        w = leaf(lib, A[0])
        optimizer, trace = lib.optim.SGD([w], lr=0.1), []
        scaler = lib.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        for step in range(6):
            optimizer.zero_grad()
            loss = scaler.scale((w * w).sum() * (float("inf") if step == 3 else 1.0))
            loss.backward()
            if step % 2:
                scaler.unscale_(optimizer)
                lib.nn.utils.clip_grad_norm_([w], 1.0) if lib is torch else nc.utils.clip_grad_norm_([w], 1.0)
            scaler.step(optimizer)
            scaler.update()
            trace.append(scaler.get_scale())
        state = scaler.state_dict()
        again = lib.amp.GradScaler("cpu")
        again.load_state_dict(state)
        off = lib.amp.GradScaler("cpu", enabled=False)
        return w, trace, again.get_scale(), off.get_scale(), off.scale(w)

    assert not both(program, 1e-4)
    for wrong in (lambda s, o: (s.step(o), s.step(o)), lambda s, o: (s.unscale_(o), s.unscale_(o)), lambda s, o: s.update()):
        def program(lib):
            w = leaf(lib, A[0])
            o, s = lib.optim.SGD([w], lr=0.1), lib.amp.GradScaler("cpu")
            s.scale(w.sum()).backward()
            wrong(s, o)
            return w

        both(program)


def test_clipping_and_vectors_of_parameters():
    for norm in (1.0, 2.0, 3.0, float("inf")):
        def program(lib):
            u = nc.utils if lib is nc else torch.nn.utils
            params = [leaf(lib), leaf(lib, A[0])]
            sum((p * p * p).sum() for p in params).backward()
            found = u.clip_grad_norm_(params, 0.5, norm_type=norm)
            u.clip_grad_value_(params, 0.1)
            vector = u.parameters_to_vector(params)
            with lib.no_grad():
                u.vector_to_parameters(vector * 2, params)
            return float(found), [p.grad for p in params], vector, params, float(u.get_total_norm([p.grad for p in params], norm))

        assert not both(program, 1e-4)


def test_transformations_of_functions():
    f = lambda x: (x.sin() * x).sum()  # noqa: E731
    programs = [
        lambda lib: lib.func.grad(f)(lib.tensor(A)), lambda lib: lib.func.grad_and_value(f)(lib.tensor(A)), lambda lib: lib.func.grad(lambda x, y: (x * y).sum(), argnums=(0, 1))(lib.tensor(A), lib.tensor(A * 2)),
        lambda lib: lib.func.grad(lambda p: (p["w"] * p["b"][0]).sum())({"w": lib.tensor(A), "b": [lib.tensor(A[0])]})["b"][0], lambda lib: lib.func.vjp(lambda x: x * x, lib.tensor(A))[1](lib.tensor(A))[0],
        lambda lib: lib.func.jacrev(lambda x: (x * x).sum(0))(lib.tensor(A)), lambda lib: lib.func.vmap(lambda x: x.sum() * x)(lib.tensor(A)), lambda lib: lib.func.vmap(lambda x, y: x @ y, in_dims=(1, None))(lib.tensor(A), lib.tensor(A[:, 0])),
        lambda lib: lib.func.vmap(lambda x: (x * 2, x.sum()), in_dims=1, out_dims=(1, 0))(lib.tensor(A)), lambda lib: lib.func.vmap(lib.func.grad(f))(lib.tensor(A)), lambda lib: lib.func.grad(lambda x: x)(lib.tensor(A)),
        lambda lib: lib.func.grad(lambda x: (f(x), x * 2), has_aux=True)(lib.tensor(A)),
    ]  # fmt: skip
    for program in programs:
        both(program, 1e-4)
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        layer = modules.Linear(3, 2)
        made = lib.func.functional_call(layer, {"weight": lib.ones(2, 3), "bias": lib.zeros(2)}, (lib.ones(1, 3),))
        assert made.tolist() == [[3.0, 3.0]] and layer.weight.tolist() != [[1.0] * 3] * 2
