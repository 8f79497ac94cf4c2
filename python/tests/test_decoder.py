"""Decoders of every family in Python: gradients, files, and custom training loops."""

import models
import numpy as np
import pytest

import netcl as nc

SIZES = {"width": 32, "layers": 2, "heads": 2, "vocab": 40, "context": 16}


def batch(seed=0, b=2, t=8):
    ids = np.random.default_rng(seed).integers(0, 40, (b, t + 1)).astype(np.int32)
    return nc.tensor(ids[:, :-1]), nc.tensor(ids[:, 1:])


@pytest.mark.parametrize("family", nc.nn.Decoder.families())
def test_every_family_has_logits_a_loss_and_gradients(family):
    decoder = nc.nn.Decoder(family, **SIZES, seed=3)
    ids, targets = batch()
    logits, loss = decoder(ids), decoder(ids, targets)
    assert logits.shape == (2, 8, 40) and decoder.features(ids).shape == (2, 8, 32)
    if "moe" not in family and family != "mixtral":  # those add a balance loss
        assert abs(nc.ops.cross_entropy(logits, targets).item() - loss.item()) < 1e-5
    loss.backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, name
    assert decoder.family == family and decoder.config["model_type"] == family


def test_a_gradient_is_that_of_the_loss():
    decoder = nc.nn.Decoder("llama", **SIZES, seed=1)
    ids, targets = batch()
    decoder.loss(ids, targets).backward()
    name, parameter = next((n, p) for n, p in decoder.named_parameters() if n.endswith("down_proj.weight"))
    gradient = parameter.grad.numpy()
    at = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
    values, h = parameter.detach().numpy(), 1e-2

    def loss(change):
        moved = values.copy()
        moved[at] += change
        with nc.no_grad():
            parameter.copy_(moved)
            return decoder.loss(ids, targets).item()

    assert abs((loss(h) - loss(-h)) / (2 * h) - gradient[at]) < 2e-2 * abs(gradient[at]) + 1e-4, name


def test_a_loop_of_ones_own_with_a_captured_step_learns():
    decoder = nc.nn.Decoder("qwen3", **SIZES, seed=2)
    optimizer = nc.optim.AdamW(decoder.named_parameters(), lr=3e-3)
    optimizer.clip_grad_norm(1.0)

    @nc.compile
    def step(ids, targets):
        optimizer.zero_grad()
        loss = decoder.loss(ids, targets)
        loss.backward()
        optimizer.step()
        return loss

    ids, targets = batch()
    losses = [step(ids, targets).item() for _ in range(40)]
    assert losses[0] > 3.5 and losses[-1] < 1.0
    # The same steps without a graph give the same bits.
    again = nc.nn.Decoder("qwen3", **SIZES, seed=2)
    optimizer = nc.optim.AdamW(again.named_parameters(), lr=3e-3)
    optimizer.clip_grad_norm(1.0)
    for _ in range(5):
        optimizer.zero_grad()
        loss = again.loss(ids, targets)
        loss.backward()
        optimizer.step()
    assert loss.item() == losses[4]


def test_a_decoder_within_a_module_is_trained():
    class Classifier(nc.nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = nc.nn.Decoder("llama", **SIZES)
            self.head = nc.nn.Linear(32, 3)

        def forward(self, ids):
            return self.head(self.decoder.features(ids).mean(axis=1))

    model = Classifier()
    names = [n for n, _ in model.named_parameters()]
    assert "decoder.model.embed_tokens.weight" in names and "head.weight" in names
    before = model.decoder.state_dict()["model.embed_tokens.weight"].numpy()
    model.decoder.freeze_head = None  # custom attributes are allowed
    trained = [(n, p) for n, p in model.named_parameters() if "lm_head" not in n]
    optimizer = nc.optim.AdamW(trained, lr=1e-2)
    ids, classes = batch()[0], nc.tensor([0, 2])
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nc.ops.cross_entropy(model(ids), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert not np.array_equal(before, model.decoder.state_dict()["model.embed_tokens.weight"].numpy())


def test_files_go_both_ways(tmp_path):
    decoder = nc.nn.Decoder("llama", **SIZES, kv_heads=1, seed=4)
    state = decoder.state_dict()
    assert state["model.layers.1.self_attn.q_proj.weight"].shape == (32, 32) and state["model.layers.1.self_attn.k_proj.weight"].shape == (16, 32)
    decoder.save_pretrained(tmp_path / "model")
    ids, targets = batch()
    opened = nc.nn.Decoder.from_pretrained(tmp_path / "model", device=models.device())
    assert opened.loss(ids, targets).item() == decoder.loss(ids, targets).item()
    other = nc.nn.Decoder("llama", **SIZES, kv_heads=1, seed=5)
    assert other.loss(ids, targets).item() != decoder.loss(ids, targets).item()
    other.load_state_dict({name: value.numpy() for name, value in state.items()})
    assert other.loss(ids, targets).item() == decoder.loss(ids, targets).item()
    with pytest.raises(nc.errors.FormatError, match="norm"):
        other.load_state_dict({name: value for name, value in state.items() if name != "model.norm.weight"})


def test_first_values_are_those_of_the_trainer(tmp_path):
    trainer = nc.Trainer("demo-tiny", data=models.folder() / "text.txt", out=tmp_path / "run", device=models.device(), seed=11)
    config = trainer.config
    sizes = {name: config[name] for name in ("width", "layers", "heads", "context", "bias")}
    decoder = nc.nn.Decoder("gpt2", **sizes, vocab=len(set(models.TEXT)), seed=11)
    parameters = trainer.parameters()
    assert all(p._bytes() == parameters[n]._bytes() for n, p in decoder.named_parameters())


def test_frozen_parameters_stay():
    decoder = nc.nn.Decoder("llama", **SIZES, freeze=["model.layers.0.*", "*embed_tokens*"])
    frozen = [n for n, p in decoder.named_parameters() if not p.requires_grad]
    assert frozen and all("layers.0." in n or "embed_tokens" in n for n in frozen)
    optimizer = nc.optim.SGD([(n, p) for n, p in decoder.named_parameters() if p.requires_grad], lr=0.1)
    decoder.loss(*batch()).backward()
    optimizer.step()
    assert all(p.grad is None for n, p in decoder.named_parameters() if n in frozen)
    with pytest.raises(nc.errors.FormatError, match="freeze"):
        decoder.requires_grad_(False)
    with pytest.raises(nc.errors.FormatError, match="stays"):
        decoder.to("sim")


def test_dropout_is_drawn_anew_and_only_in_training():
    decoder = nc.nn.Decoder("gpt2", **SIZES, dropout=0.3)
    ids, targets = batch()
    assert decoder.loss(ids, targets).item() != decoder.loss(ids, targets).item()
    decoder.eval()
    assert decoder.loss(ids, targets).item() == decoder.loss(ids, targets).item()
    decoder.train()
    with pytest.raises(nc.errors.FormatError, match="random"):
        nc.compile(lambda i, t: decoder.loss(i, t))(ids, targets)


def test_recomputation_changes_memory_not_bits():
    gradients = []
    for recompute in ("none", "block"):
        decoder = nc.nn.Decoder("gpt2", **SIZES, recompute=recompute)
        decoder.loss(*batch()).backward()
        gradients.append([p.grad._bytes() for p in decoder.parameters()])
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_storage_of_16_bits_is_trained(dtype):
    decoder = nc.nn.Decoder("llama", **SIZES, dtype=dtype, seed=2)
    assert {p.dtype.name for p in decoder.parameters()} == {dtype} == {t.dtype.name for t in decoder.state_dict().values()}
    optimizer = nc.optim.AdamW(decoder.named_parameters(), lr=3e-3)
    ids, targets = batch()
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = decoder.loss(ids, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_wrong_sizes_say_which():
    for wrong, words in [({"heads": 3}, "heads|divide"), ({"bias": True}, "bias"), ({"depth": 2}, "depth"), ({"kv_heads": 3}, "kv_heads|heads")]:
        with pytest.raises(nc.errors.NetclError, match=words):
            nc.nn.Decoder("llama", **{**SIZES, **wrong})
    with pytest.raises(nc.errors.NetclError, match="family|model_type"):
        nc.nn.Decoder("lama", **SIZES)
    with pytest.raises(nc.errors.ShapeError):
        nc.nn.Decoder("llama", **SIZES)(nc.zeros(1, 17, dtype="int32"))
