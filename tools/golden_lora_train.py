#!/usr/bin/env python3
"""Writes tests/goldens/lora_train/<case>/: adapters of PEFT before and after 20 steps of AdamW, for the tiny models of tests/goldens/decoder.

    python3 tools/golden_lora_train.py [CASE …]     # needs torch, transformers and peft, no GPU

    adapter_config.json, adapter_model.safetensors   the adapter before the first step, as save_pretrained writes it
    trained.safetensors                              ids (STEPS,B,T) int32, losses (STEPS) of the next token, and the adapter's tensors after the last step.
                                                     They are computed in float64 and rounded once to float32
    model                                            name of the folder of tests/goldens/decoder
"""
import os
import shutil
import sys

import torch
from safetensors.torch import load_file

from golden import ROOT, write

os.environ["HF_HUB_OFFLINE"] = "1"
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

OUT = ROOT / "tests/goldens/lora_train"
STEPS, BATCH, LENGTH = 20, 2, 7
ADAMW = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": LLAMA}),
    "llama_rslora": ("llama", {"r": 3, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]}),
    "qwen3": ("qwen3", {"r": 4, "lora_alpha": 4, "target_modules": LLAMA}),
    "gemma3": ("gemma3", {"r": 3, "lora_alpha": 6, "target_modules": LLAMA}),
    "phi3": ("phi3", {"r": 3, "lora_alpha": 6, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "mixtral": ("mixtral", {"r": 4, "lora_alpha": 8, "target_modules": LLAMA[:4]}),
    "gpt2": ("gpt2", {"r": 3, "lora_alpha": 5, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt_neox": ("gpt_neox", {"r": 3, "lora_alpha": 6, "target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]}),
}


def make(case):
    name, fields = CASES[case]
    folder = OUT / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(sorted(CASES).index(case) + 500)
    source = ROOT / "tests/goldens/decoder" / name
    base = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **fields))
    # With B = 0 the first gradients of A are rounding errors, which Adam would scale up.
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(std=0.05)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # Paths of this machine must not be in an adapter.
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(source), f"netcl/{name}"))
    model = model.double()
    # Evaluation mode turns off dropout and the losses of routers.
    model.eval()
    ids = torch.randint(0, base.config.vocab_size, (STEPS, BATCH, LENGTH + 1))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **ADAMW)
    losses = []
    for step in range(STEPS):
        logits = model(input_ids=ids[step, :, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[step, :, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trained = {key: value.float().contiguous() for key, value in get_peft_model_state_dict(model).items()}
    write(folder / "trained.safetensors", {"ids": ids.int(), "losses": torch.tensor(losses), **trained}, {})
    (folder / "model").write_text(name + "\n")
    print(f"{case}: loss {losses[0]:.4f} to {losses[-1]:.4f}, {sum(v.numel() for v in trained.values())} elements")


for case in sys.argv[1:] or CASES:
    make(case)
