#!/usr/bin/env python3
"""Compares training in Python with `netcl train`, for the same model on the same device: tokens per second and ratios.

    python3 tools/bench_python.py [--device pocl:0] [--preset char-cpu] [--steps 60] [--rounds 3] [--peer]

Needs the package netcl. It runs:

  netcl train      netcl.Trainer, with the same bits and steps as the command
  own loop         the same decoder (netcl.nn.Decoder) in a custom loop with netcl.compile
  own model        a GPT of the same size, built from netcl.nn's modules, in the same loop
  torch.compile    with --peer: such a GPT in PyTorch, on CUDA if the device is NVIDIA's, otherwise on the CPU

Each round runs all of them, and ratios are medians over the rounds. The first steps, which compile and capture, are not timed. netcl train
reads the loss of every step during the next one; the others read it every 10 steps. A GPU needs longer steps than the default preset has, for
example --preset gpt2-124m --grad-accum 1 --batch 8.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import netcl as nc

WARM = 14
"""Number of steps before timing: the trainer profiles some of its first steps."""


def text_for(folder, config):
    """Returns text for a vocabulary: the words of this repository's documentation, repeated."""
    docs = Path(__file__).resolve().parents[1] / "docs"
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(docs.glob("*.md")))
    path = folder / "text.txt"
    path.write_text("".join(c for c in text if c.isascii()), encoding="utf-8")
    return path


def settings_of(args):
    """Returns all settings of the run."""
    given = {"steps": WARM + args.steps, "eval_every": 0, "sample_every": 0, "checkpoint_every": 0, "device": args.device, "seed": 1, "dropout": 0.0, "bias": True}
    given.update({name: getattr(args, name) for name in ("batch", "grad_accum", "dtype") if getattr(args, name) is not None})
    if nc.Trainer.settings(args.preset)["tokenizer"] != "char":
        given["tokenizer"] = "char"
    return nc.Trainer.settings(args.preset, **{**given, "grad_accum": given.get("grad_accum", 1)})


def by_trainer(folder, data, config):
    """Returns the tokens per second of `netcl train`."""
    times = []

    def heard(event):
        if event.kind == "step":
            times.append(time.perf_counter())

    given = {name: value for name, value in config.items() if name not in ("preset", "data") and value is not None}
    out = tempfile.mkdtemp(dir=folder)
    with nc.Trainer(config["preset"], data=data, out=Path(out) / "run", callbacks=heard, **given) as trainer:
        trainer.run()
    tokens = config["batch"] * config["context"]
    # The last step's result comes after its checkpoint.
    used = times[WARM:-1]
    return (len(used) - 1) * tokens / (used[-1] - used[0])


def groups(parameters, decay):
    """Groups parameters: matrices have weight decay, others do not, as in netcl train."""
    both = [(n, p) for n, p in parameters]
    return [
        {"params": [(n, p) for n, p in both if p.ndim >= 2], "weight_decay": decay},
        {"params": [(n, p) for n, p in both if p.ndim < 2], "weight_decay": 0.0},
    ]


def by_loop(model, loss_of, tokens, config):
    """Returns the tokens per second of a custom training loop."""
    optimizer = nc.optim.AdamW(groups(model.named_parameters(), config["weight_decay"]), lr=config["lr"], betas=tuple(config["betas"]), eps=config["eps"])
    optimizer.clip_grad_norm(config["clip"])
    schedule = nc.optim.Schedule(optimizer, nc.optim.cosine(config["lr"], config["warmup"], config["steps"], config["min_lr"]))
    batches = nc.data.TokenBatches(tokens, config["batch"], config["context"], device=config["device"])

    @nc.compile
    def step(ids, targets):
        optimizer.zero_grad()
        loss = loss_of(ids, targets)
        loss.backward()
        optimizer.step()
        return loss

    device = nc.Device(config["device"])
    for i in range(config["steps"]):
        if i == WARM:
            device.synchronize()
            began = time.perf_counter()
        loss = step(*batches.next())
        schedule.step()
        if i % 10 == 9:
            loss.item()
    device.synchronize()
    last = loss.item()
    if not last < 20:
        raise SystemExit(f"the loss is {last}")
    return (config["steps"] - WARM) * config["batch"] * config["context"] / (time.perf_counter() - began)


def by_torch(vocab, tokens, config, cuda):
    """Returns the tokens per second of torch.compile."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    place = "cuda" if cuda else "cpu"
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(config["dtype"], torch.float32)
    width, heads = config["width"], config["heads"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(config["context"], width)
            self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(config["layers"])]), nn.LayerNorm(width)

        def forward(self, ids, targets):
            x = self.norm(self.blocks(self.tokens(ids) + self.positions.weight[: ids.shape[1]]))
            return F.cross_entropy((x @ self.tokens.weight.T).float().view(-1, vocab), targets.view(-1))

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high" if config["matmul_precision"] == "high" else "highest")
    model = Gpt().to(place, kind)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], betas=tuple(config["betas"]), fused=cuda)
    data = torch.tensor(tokens)
    began = 0.0
    for i in range(config["steps"]):
        if i == WARM:
            torch.cuda.synchronize() if cuda else None
            began = time.perf_counter()
        starts = torch.randint(len(data) - config["context"] - 1, (config["batch"],)).tolist()
        x = torch.stack([data[s : s + config["context"]] for s in starts]).to(place, non_blocking=True)
        y = torch.stack([data[s + 1 : s + 1 + config["context"]] for s in starts]).to(place, non_blocking=True)
        loss = compiled(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        optimizer.step()
        if i % 10 == 9:
            loss.item()
    torch.cuda.synchronize() if cuda else None
    return (config["steps"] - WARM) * config["batch"] * config["context"] / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default="char-cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--grad-accum", type=int, help="must be 1: the custom loop has one batch per step")
    parser.add_argument("--dtype")
    parser.add_argument("--steps", type=int, default=60, help="number of timed steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="also run PyTorch")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    nc.set_default_device(args.device)
    args.device = nc.default_device().name
    config = settings_of(args)
    if config["grad_accum"] != 1:
        raise SystemExit("the custom loop has one batch per step: use --grad-accum 1")
    rates = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = text_for(folder, config)
        text = data.read_text(encoding="utf-8")
        letters = {c: i for i, c in enumerate(sorted(set(text)))}
        tokens = [letters[c] for c in text]
        sizes = {name: config[name] for name in ("width", "layers", "heads", "context")}
        vocab = len(letters)

        def own_loop():
            decoder = nc.nn.Decoder("gpt2", **sizes, vocab=vocab, dtype=config["dtype"], seed=1)
            return by_loop(decoder, decoder.loss, tokens, config)

        def own_model():
            model = nc.nn.GPT(vocab, config["context"], config["layers"], config["heads"], config["width"], dtype=config["dtype"])
            return by_loop(model, model, tokens, config)

        runs = {"netcl train": lambda: by_trainer(folder, data, config), "own loop": own_loop, "own model": own_model}
        if args.peer:
            runs["torch.compile"] = lambda: by_torch(vocab, tokens, config, "nvidia" in args.device)
        for i in range(args.rounds):
            # Alternating order, so that a slowdown of the machine affects all of them equally.
            for name in list(runs)[:: -1 if i % 2 else 1]:
                rates.setdefault(name, []).append(runs[name]())
    middle = {name: statistics.median(found) for name, found in rates.items()}
    if args.json:
        ratios = {name: statistics.median(own / other for own, other in zip(found, rates["netcl train"])) for name, found in rates.items()}
        print(json.dumps({"device": args.device, "preset": args.preset, "rates": rates, "median": middle, "ratio": ratios}))
        return 0
    print(f"{args.preset}, batch {config['batch']} x {config['context']}, {config['dtype']}, {nc.default_device().description} ({args.device}), {args.steps} steps, {args.rounds} rounds")
    for name in sorted(middle, key=lambda name: name != "netcl train"):
        rate = middle[name]
        spread = f"{min(rates[name]):.0f} to {max(rates[name]):.0f}"
        # Ratios are per round, because the machine's other load changes between rounds.
        ratio = statistics.median(own / other for own, other in zip(rates[name], rates["netcl train"]))
        print(f"{name:14} {rate:10.0f} tokens/s ({spread}), {ratio:.3f} of netcl train")
    return 0


if __name__ == "__main__":
    sys.exit(main())
