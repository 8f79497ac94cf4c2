#!/usr/bin/env python3
"""Writes tests/goldens/gpt_variants/: tiny models of GPT-2's architecture with other configurations, and their logits.

    python3 tools/golden_gpt_variants.py        # needs torch and transformers, no GPU

    <variant>/config.json, model.safetensors    as save_pretrained writes GPT2LMHeadModel; `sharded` in several files with an index
    <variant>/out.safetensors                   tokens, targets (B,T) int32; logits (B,T,V), loss, grad.<name>, float32

Biases and norm gains are random: with the zeros and ones of a new model, a swapped or missing one would not be noticed.
"""
import os
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from golden import ROOT

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

OUT = ROOT / "tests/goldens/gpt_variants"
VOCAB, CONTEXT, BATCH = 19, 8, 2
VARIANTS = {
    "own_head": {"tie_word_embeddings": False},
    "unscaled": {"scale_attn_weights": False},
    "scaled_by_layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "gelu": {"activation_function": "gelu", "layer_norm_epsilon": 1e-2},
    "relu": {"activation_function": "relu", "n_inner": 24},
    "silu": {"activation_function": "silu", "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "tanh": {"activation_function": "tanh"},
    "sharded": {},
}


def build(more):
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, initializer_range=0.3, bos_token_id=None, eos_token_id=None, attn_implementation="eager", **more)
    model = GPT2LMHeadModel(config).train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(torch.randn(p.shape) * 0.1 + (1.0 if "ln_" in name and name.endswith("weight") else 0.0))
    return model


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    for name, more in VARIANTS.items():
        model, folder = build(more), OUT / name
        model.save_pretrained(folder, max_shard_size="16KB" if name == "sharded" else "1GB")
        for extra in folder.glob("generation_config.json"):
            extra.unlink()
        tokens = torch.randint(VOCAB, (BATCH, CONTEXT))
        targets = torch.randint(VOCAB, (BATCH, CONTEXT))
        logits = model(tokens, use_cache=False).logits
        loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))
        loss.backward()
        out = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()}
        out |= {f"grad.{n}": p.grad for n, p in model.named_parameters()}
        save_file({n: t.contiguous() for n, t in out.items()}, folder / "out.safetensors")
        print(f"{name}: loss {loss.item():.4f}")


main()
