#!/usr/bin/env python3
"""Writes tests/goldens/gpt_parity/: a tiny GPT-2 built by transformers, and its results in PyTorch.

    python3 tools/golden_gpt.py        # needs torch and transformers, no GPU

    model/                  as save_pretrained writes GPT2LMHeadModel: `transformer.` prefix, Conv1D weights (in, out), tied head
    model_bare/             the same weights in the layout of the first GPT-2 files: no prefix, and the causal masks among the tensors
    parity.safetensors      tokens, targets (B,T) int32; logits (B,T,V), loss, grad.<name> at the start, not clipped;
                            f32.losses (10): the loss before each of ten AdamW updates on the one batch; f32.norms (10):
                            the gradient norm before clipping; f32.final.<name>: the parameters after the ten;
                            bf16.losses, bf16.norms: the same in bf16; f64.losses: the same in float64, as a reference for both
                            __metadata__: a description, and the difference between the float32 and the float64 run

Biases and norm gains are random too: with the zeros and ones of a new model, a swapped or missing one would not be noticed.
"""
import copy
import json
import os
import shutil

import torch
import torch.nn.functional as F

from golden import ROOT, write

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import GPT2Config, GPT2LMHeadModel, logging  # noqa: E402

OUT = ROOT / "tests/goldens/gpt_parity"
LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, BATCH, STEPS = 2, 2, 32, 16, 65, 4, 10
HYPER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}

ABOUT = {
    "f32": "float32 on one CPU thread: forward, cross_entropy(mean), backward, clip_grad_norm_(1.0), AdamW, ten times on "
           "one batch. Decay only on parameters of two dimensions (wte, wpe and the Conv1D weights); biases and norms none.",
    "bf16": "Parameters, activations and gradients are bfloat16 (model.to(bfloat16), every op rounds its result); logits are "
            "cast to float32 before cross_entropy. Gradients are cast to float32, clipped there, AdamW updates float32 "
            "master weights (which start as the float32 parameters, not as their bf16 roundings), and these are rounded "
            "to nearest even into the bf16 parameters. Attention is scaled_dot_product_attention, gelu one fused op.",
    "key_bias": "The gradient of the middle third of c_attn.bias (the key's bias) is zero in exact arithmetic; what a float32 "
                "run has there is noise, which AdamW divides by its own size. Compare final.*.attn.c_attn.bias there to "
                "within lr * steps, the rest closely.",
}


def build():
    torch.manual_seed(1337)
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(torch.randn(p.shape) * 0.1 + (1.0 if "ln_" in name and name.endswith("weight") else 0.0))
    return model


def fused_gelu(model):
    """Replaces gelu_new. It consists of nine elementwise ops, each of which would round to bf16; the tanh form as one op rounds once."""
    for block in model.transformer.h:
        block.mlp.act = torch.nn.GELU(approximate="tanh")
    return model


def loss_of(model, tokens, targets):
    logits = model(tokens, use_cache=False).logits
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return logits, F.cross_entropy(wide.view(-1, VOCAB), targets.view(-1))


def adamw(params):
    groups = [{"params": [p for p in params if p.ndim >= 2], "weight_decay": HYPER["weight_decay"]},
              {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=HYPER["lr"], betas=HYPER["betas"], eps=HYPER["eps"], foreach=False)


def train(model, tokens, targets, master):
    """Runs ten updates. `master` holds the optimizer's weights: the model's own, or float32 copies of bf16 weights."""
    params, losses, norms = list(model.parameters()), [], []
    opt = adamw(master)
    for _ in range(STEPS):
        model.zero_grad(set_to_none=True)
        _, loss = loss_of(model, tokens, targets)
        loss.backward()
        for m, p in zip(master, params):
            m.grad = p.grad.to(m.dtype)
        norms.append(torch.nn.utils.clip_grad_norm_(master, HYPER["clip"]))
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, params):
                if m is not p:
                    p.copy_(m)
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(norms)


def save_models(model):
    for name in ("model", "model_bare"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    model.save_pretrained(OUT / "model")
    config = json.loads((OUT / "model/config.json").read_text())
    (OUT / "model/generation_config.json").unlink(missing_ok=True)
    tensors = {k.removeprefix("transformer."): v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    write(OUT / "model/model.safetensors", {f"transformer.{k}": v for k, v in tensors.items()}, {"format": "pt"})
    mask = torch.ones(CONTEXT, CONTEXT).tril().view(1, 1, CONTEXT, CONTEXT)
    tensors |= {f"h.{i}.attn.bias": mask for i in range(LAYERS)}
    write(OUT / "model_bare/model.safetensors", tensors, {"format": "pt"})
    (OUT / "model_bare/config.json").write_text(json.dumps(config | {"architectures": ["GPT2Model"]}, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = build()
    save_models(model)
    rng = torch.Generator().manual_seed(7)
    stream = torch.randint(VOCAB, (BATCH, CONTEXT + 1), generator=rng)
    tokens, targets = stream[:, :-1].contiguous(), stream[:, 1:].contiguous()
    logits, loss = loss_of(model, tokens, targets)
    loss.backward()
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits, "loss": loss}
    out |= {f"grad.{n}": p.grad.clone() for n, p in model.named_parameters()}

    wide = copy.deepcopy(model).double()
    narrow = fused_gelu(copy.deepcopy(model)).bfloat16()
    master = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    out["bf16.losses"], out["bf16.norms"] = train(narrow, tokens, targets, master)
    out["f64.losses"], _ = train(wide, tokens, targets, list(wide.parameters()))
    out["f32.losses"], out["f32.norms"] = train(model, tokens, targets, list(model.parameters()))
    out |= {f"f32.final.{n}": p for n, p in model.named_parameters()}

    exact = dict(wide.named_parameters())
    apart = {n: (p.double() - exact[n]).abs().max().item() for n, p in model.named_parameters()}
    worst = max(apart, key=apart.get)
    print("f32 ", [round(v, 5) for v in out["f32.losses"].tolist()], "\nbf16", [round(v, 5) for v in out["bf16.losses"].tolist()],
          "\nnorm", [round(v, 4) for v in out["f32.norms"].tolist()], "\nfarthest from float64:", worst, apart[worst])
    about = ABOUT | {"hyper": json.dumps(HYPER), "torch": torch.__version__,
                     "f32_from_f64": json.dumps({"loss": (out["f32.losses"] - out["f64.losses"]).abs().max().item(),
                                                 "final": {n: round(v, 9) for n, v in sorted(apart.items())}})}
    write(OUT / "parity.safetensors", out, about)


if __name__ == "__main__":
    main()
