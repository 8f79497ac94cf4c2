#!/usr/bin/env python3
"""Writes tests/goldens/decoder/<family>/: tiny models of many families, built by transformers, and their results in PyTorch.

    python3 tools/golden_decoder.py [FAMILY …]     # needs torch and transformers, no GPU
    python3 tools/golden_decoder.py --bf16         # tests/goldens/decoder_bf16.json alone, from the existing folders

    config.json, model.safetensors   as save_pretrained writes them, with random weights
    expected.safetensors             ids, targets (B,T) int32; logits (B,T,V) and loss (mean cross entropy) and grad.<name>, computed in
                                     float64 with the eager attention and rounded once to float32. If output_router_logits is true,
                                     the loss includes the routers' balance loss times router_aux_loss_coef, like a model's own loss.
    decoder_bf16.json                next to the folders: differences of logits, loss and gradients of the same models if transformers
                                     runs them in bfloat16 (root mean square, relative to the expected values; for the loss, the
                                     absolute difference)
    stacked.safetensors              mixtral_balanced only: the same weights with experts as they are in memory

Contexts are longer than windows, rotary angles are scaled if the family scales them, and biases and norms' weights are random: with the
zeros and ones of a new model, a swapped or missing one would not be noticed.
"""
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from golden import ROOT, write

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoConfig, AutoModelForCausalLM, logging  # noqa: E402

OUT = ROOT / "tests/goldens/decoder"
BATCH, TOKENS = 2, 12
# Heads of 8, grouped if the family groups them; a width other than heads * size if the family allows it.
LLAMA = {"vocab_size": 48, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32, "rms_norm_eps": 1e-5}
SQUARE = {**LLAMA, "hidden_size": 32}
SQUARE.pop("head_dim")
STARCODER2 = {name: value for name, value in SQUARE.items() if name != "rms_norm_eps"}
WINDOWS = ["sliding_attention", "full_attention"]

FAMILIES = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    "llama": {"model_type": "llama", **SQUARE},
    "llama3": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}},
    "llama_linear": {"model_type": "llama", **LLAMA, "attention_bias": True, "mlp_bias": True,
                     "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "mistral": {"model_type": "mistral", **LLAMA, "sliding_window": 5},
    "qwen2": {"model_type": "qwen2", **SQUARE, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **LLAMA, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8}},
    # Experts: probabilities or shares of the chosen, dense layers selected by a step or a list, with or without a balance loss.
    "mixtral": {"model_type": "mixtral", **SQUARE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5},
    "mixtral_balanced": {"model_type": "mixtral", **LLAMA, "num_local_experts": 5, "num_experts_per_tok": 3,
                         "output_router_logits": True, "router_aux_loss_coef": 0.5},
    "qwen3_moe": {"model_type": "qwen3_moe", **LLAMA, "num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 20, "norm_topk_prob": True, "mlp_only_layers": [1], "output_router_logits": True,
                  "router_aux_loss_coef": 0.25},
    "qwen3_moe_step": {"model_type": "qwen3_moe", **LLAMA, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 3,
                       "moe_intermediate_size": 12, "decoder_sparse_step": 2, "attention_bias": True, "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", **LLAMA, "sliding_window": 5, "layer_types": WINDOWS, "query_pre_attn_scalar": 16,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3": {"model_type": "gemma3_text", **LLAMA, "sliding_window": 5, "layer_types": WINDOWS, "query_pre_attn_scalar": 16},
    "phi3": {"model_type": "phi3", **SQUARE, "original_max_position_embeddings": 8, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 8,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 3.0, 4.0]}},
    "olmo2": {"model_type": "olmo2", **SQUARE},
    "smollm3": {"model_type": "smollm3", **SQUARE, "no_rope_layers": [1, 0]},
    "granite": {"model_type": "granite", **SQUARE, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
                "residual_multiplier": 0.5, "attention_multiplier": 0.2, "tie_word_embeddings": True},
    "gpt_neox": {"model_type": "gpt_neox", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    "gpt_neox_serial": {"model_type": "gpt_neox", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64,
                        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
                        "use_parallel_residual": False, "attention_bias": False, "hidden_act": "relu"},
    "starcoder2": {"model_type": "starcoder2", **STARCODER2, "sliding_window": 5},
    "starcoder2_plain": {"model_type": "starcoder2", **STARCODER2, "use_bias": False, "num_key_value_heads": 4,
                         "tie_word_embeddings": False},
}


def build(fields, seed):
    fields = dict(fields)
    # No padding token, because its embedding would not get a gradient.
    fields.update(pad_token_id=None, bos_token_id=1, eos_token_id=1)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if p.dim() == 1:
                # Gains around their initial values (1, or 0 if the model adds 1), biases around 0.
                p.add_(torch.randn(p.shape) * 0.2)
            else:
                p.copy_(torch.randn(p.shape) * 0.25)
    return model


def gradients(model, saved):
    """Returns the gradients by the names of the file, which has each expert's matrices separately and GPT-NeoX's head under its old name."""
    folder, parts = ("block_sparse_moe", "w1 w3 w2") if model.config.model_type == "mixtral" else ("mlp", "gate_proj up_proj down_proj")
    gate, up, down = parts.split()
    for name, p in model.named_parameters():
        if name in saved:
            yield name, p.grad
        elif ".experts." in name:
            place = name.rsplit(".", 1)[0].replace(".mlp.", f".{folder}.")
            for e, grad in enumerate(p.grad):
                pieces = zip((gate, up), grad.chunk(2)) if name.endswith("gate_up_proj") else [(down, grad)]
                yield from ((f"{place}.{e}.{map}.weight", piece) for map, piece in pieces)
        elif name.endswith("mlp.gate.weight"):
            yield name.replace(".mlp.", f".{folder}."), p.grad
        else:
            yield "embed_out.weight", p.grad


def loss_of(model, ids, targets):
    result = model(input_ids=ids, use_cache=False)
    logits = result.logits.float() if result.logits.dtype == torch.bfloat16 else result.logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    if getattr(model.config, "output_router_logits", False):
        loss = loss + model.config.router_aux_loss_coef * result.aux_loss
    return result.logits, loss


def bf16():
    def apart(got, expected):
        return ((got - expected).square().sum() / expected.square().sum().clamp_min(1e-30)).sqrt().item()

    out = {}
    for folder in sorted(OUT.iterdir()):
        expected = load_file(folder / "expected.safetensors")
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager").eval()
        logits, loss = loss_of(model, expected["ids"].long(), expected["targets"].long())
        loss.backward()
        grads = dict(gradients(model, load_file(folder / "model.safetensors")))
        flat = [torch.cat([x.flatten().float() for x in xs]) for xs in
                ([g for _, g in sorted(grads.items())], [expected[f"grad.{n}"] for n in sorted(grads)])]
        out[folder.name] = {"logits": apart(logits.float(), expected["logits"]), "gradients": apart(*flat),
                            "loss": abs(loss.item() - expected["loss"].item())}
        print(folder.name, out[folder.name])
    (OUT.parent / "decoder_bf16.json").write_text(json.dumps(out, indent=1) + "\n")


def main(names):
    logging.set_verbosity_error()
    if names == ["--bf16"]:
        return bf16()
    for seed, (name, fields) in enumerate(FAMILIES.items()):
        if names and name not in names:
            continue
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        model = build(fields, seed)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        exact = model.double()
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 48, (BATCH, TOKENS), generator=generator)
        targets = torch.randint(0, 48, (BATCH, TOKENS), generator=generator)
        logits, loss = loss_of(exact, ids, targets)
        loss.backward()
        out = {"ids": ids.int(), "targets": targets.int(), "logits": logits.float(), "loss": loss.float()}
        saved = load_file(folder / "model.safetensors")
        out |= {f"grad.{parameter}": grad.float() for parameter, grad in gradients(exact, saved)}
        assert {key[5:] for key in out if key.startswith("grad.")} == set(saved), name
        write(folder / "expected.safetensors", out, {"about": json.dumps({"transformers": __import__("transformers").__version__})})
        if name == "mixtral_balanced":
            write(folder / "stacked.safetensors", {n: p.float() for n, p in exact.named_parameters()}, {"format": "pt"})
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: loss {loss.item():.4f}, {size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
