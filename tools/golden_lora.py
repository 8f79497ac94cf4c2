#!/usr/bin/env python3
"""Writes tests/goldens/lora/<case>/: adapters of PEFT for the tiny models of tests/goldens/decoder, and their results in PyTorch.

    python3 tools/golden_lora.py [CASE …]     # needs torch, transformers and peft, no GPU

    adapter_config.json, adapter_model.safetensors   as save_pretrained writes them, with random values
    expected.safetensors                             ids (B,T) int32 and logits (B,T,V), computed in float64 with the adapter separate from the
                                                     weights and rounded once to float32
    model                                            name of the folder of tests/goldens/decoder
"""
import os
import shutil
import sys

import torch
from safetensors.torch import load_file

from golden import ROOT, write

os.environ["HF_HUB_OFFLINE"] = "1"
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

OUT = ROOT / "tests/goldens/lora"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
# The model, and the fields of the configuration. Ranks and alphas differ by module, and are not multiples of a kernel's tile sizes.
CASES = {
    "llama": ("llama", {"r": 4, "lora_alpha": 6, "target_modules": ATTENTION + MLP + ["lm_head"],
                        "rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\.down_proj": 5}, "alpha_pattern": {"v_proj": 2.5}}),
    "llama_root": ("llama", {"r": 5, "lora_alpha": 3, "use_rslora": True, "target_modules": ["q_proj", "up_proj"],
                             "layers_to_transform": [1]}),
    "llama_biases": ("llama", {"r": 2, "lora_alpha": 3, "lora_bias": True, "target_modules": ["v_proj", "o_proj", "down_proj"]}),
    "qwen2": ("qwen2", {"r": 3, "lora_alpha": 3, "target_modules": ["k_proj", "v_proj", "gate_proj"], "bias": "lora_only"}),
    "qwen2_embedding": ("qwen2", {"r": 3, "lora_alpha": 4, "target_modules": ["embed_tokens", "q_proj"]}),
    "qwen2_saved": ("qwen2", {"r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]}),
    "gpt2": ("gpt2", {"r": 3, "lora_alpha": 5, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_proj", "c_fc", "wte", "wpe"]}),
    "gpt2_biases": ("gpt2", {"r": 2, "lora_alpha": 5, "fan_in_fan_out": True, "target_modules": ["c_attn"], "bias": "all"}),
    "mixtral": ("mixtral", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "qwen3_moe": ("qwen3_moe", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "gemma2": ("gemma2", {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION + MLP, "modules_to_save": ["post_attention_layernorm"]}),
    "phi3": ("phi3", {"r": 3, "lora_alpha": 6, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "gpt_neox": ("gpt_neox", {"r": 3, "lora_alpha": 6, "target_modules": ["query_key_value", "dense", "dense_h_to_4h"]}),
}


def make(case):
    name, fields = CASES[case]
    folder = OUT / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(sorted(CASES).index(case) + 100)
    base = AutoModelForCausalLM.from_pretrained(ROOT / "tests/goldens/decoder" / name, attn_implementation="eager", experts_implementation="eager",
                                                dtype=torch.float32)
    before = base.double()
    ids = load_file(ROOT / "tests/goldens/decoder" / name / "expected.safetensors")["ids"].long()
    with torch.no_grad():
        plain = before(input_ids=ids).logits
    model = get_peft_model(base.float(), LoraConfig(task_type="CAUSAL_LM", **fields))
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.copy_(parameter + torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # Paths of this machine must not be in an adapter.
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(ROOT / "tests/goldens/decoder" / name), f"netcl/{name}"))
    with torch.no_grad():
        logits = model.double().eval()(input_ids=ids).logits
    change = (logits - plain).abs().max() / plain.abs().max()
    assert change > 0.02, f"{case}: the adapter changes the logits by {change:.1e} only"
    write(folder / "expected.safetensors", {"ids": ids.int(), "logits": logits.float()}, {})
    (folder / "model").write_text(name + "\n")
    print(f"{case}: logits change by {change:.2f} of the largest; {', '.join(sorted(load_file(folder / 'adapter_model.safetensors')))[:200]} …")


for case in sys.argv[1:] or CASES:
    make(case)
