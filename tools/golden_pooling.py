#!/usr/bin/env python3
"""Writes tests/goldens/pooling.json: vectors that sentence-transformers computes from the hidden states of tests/goldens/decoder/qwen3.

    python3 tools/golden_pooling.py     # needs torch, transformers and sentence-transformers, no GPU
"""
import json
import os

import torch
from safetensors.torch import load_file

from golden import ROOT

os.environ["HF_HUB_OFFLINE"] = "1"
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling  # noqa: E402
from transformers import AutoModel  # noqa: E402

folder = ROOT / "tests/goldens/decoder/qwen3"
ids = load_file(folder / "expected.safetensors")["ids"][:1].long()
model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
with torch.no_grad():
    states = model(input_ids=ids, use_cache=False).last_hidden_state
rows = []
for mode in ("cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"):
    for normalize in (False, True):
        out = Pooling(states.shape[-1], pooling_mode=mode)({"token_embeddings": states, "attention_mask": torch.ones_like(ids)})
        out = Normalize()(out) if normalize else out
        rows.append({"mode": mode, "normalize": normalize, "vector": [float(f"{x:.8g}") for x in out["sentence_embedding"][0].tolist()]})
(ROOT / "tests/goldens/pooling.json").write_text(json.dumps({"ids": ids[0].tolist(), "rows": rows}, indent=1) + "\n")
