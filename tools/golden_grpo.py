#!/usr/bin/env python3
"""Writes tests/goldens/grpo.json: advantages and losses of TRL's GRPOTrainer for given rollouts.

    python3 tools/golden_grpo.py     # needs torch, transformers and trl, no GPU; run tools/golden_preferences.py before

    advantages    rewards of groups (null: not scored), scale, group size, and the advantages of TRL.
    rollouts      log probabilities (B,T) of the policy, the sampling policy and the reference, masks (B,T), advantages (B).
    losses        settings, the loss, its gradients by the policy's log probabilities, and TRL's numbers
"""
import json
import math
import os
import tempfile

import torch
from datasets import Dataset

from golden import ROOT

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

MODEL = ROOT / "tests/goldens/preferences/model"
OUT = ROOT / "tests/goldens/grpo.json"
LENGTH = 9
REWARDS = {
    4: [1.0, 0.0, 0.25, 2.0, 0.5, 0.5, 0.5, 0.5, -3.0, None, 4.0, 1.0],
    3: [0.0, 1.0, 0.0, 7.5, -2.5, 3.25],
}
SETTINGS = [
    {"loss_type": "dapo"},
    {"loss_type": "grpo"},
    {"loss_type": "bnpo"},
    {"loss_type": "dr_grpo"},
    {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.28},
    {"loss_type": "dapo", "beta": 0.04},
    {"loss_type": "bnpo", "beta": 0.04, "use_bias_correction_kl": False},
    {"loss_type": "grpo", "beta": 0.1, "delta": 1.3},
]


def trainer(folder, rewards, group, **settings):
    """Returns TRL's trainer with rewards that are given."""
    args = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], num_generations=group,
        per_device_train_batch_size=len(rewards), gradient_accumulation_steps=1, max_completion_length=LENGTH, **settings,
    )
    model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="eager", dtype=torch.float32)
    data = Dataset.from_list([{"prompt": "Name a color."}] * len(rewards))
    return GRPOTrainer(
        model=model, args=args, reward_funcs=lambda completions, **_: rewards[: len(completions)], train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )


def advantages(folder):
    cases = []
    for group, rewards in REWARDS.items():
        for scale in ["group", "batch", "none"]:
            made = trainer(folder, rewards, group, scale_rewards=scale)
            made.model.train()
            torch.manual_seed(1)
            out = made._generate_and_score_completions([{"prompt": "Name a color."} for _ in rewards])
            cases.append({"group": group, "scale": scale, "rewards": rewards, "advantages": out["advantages"].tolist()})
    return cases


def losses(folder):
    torch.manual_seed(3)
    count = 6
    old = -torch.rand(count, LENGTH) * 3
    policy = old + torch.randn(count, LENGTH) * 0.3
    reference = old + torch.randn(count, LENGTH) * 0.2
    lengths = [9, 4, 1, 7, 9, 5]
    mask = torch.tensor([[1.0 if at < length else 0.0 for at in range(LENGTH)] for length in lengths])
    found = torch.tensor([1.2, -0.7, 0.4, -1.1, 0.0, 0.9])
    rollouts = {"policy": policy, "old": old, "reference": reference, "mask": mask, "advantages": found}
    cases = []
    for settings in SETTINGS:
        made = trainer(folder, [0.0] * 6, 3, **settings)
        made.model.train()
        made.current_gradient_accumulation_steps = 1
        leaf = policy.clone().requires_grad_()
        made._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, torch.zeros_like(leaf), None)
        inputs = {
            "prompt_ids": torch.ones(count, 2, dtype=torch.long), "prompt_mask": torch.ones(count, 2, dtype=torch.long),
            "completion_ids": torch.ones(count, LENGTH, dtype=torch.long), "completion_mask": mask, "advantages": found,
            "old_per_token_logps": old, "ref_per_token_logps": reference, "num_items_in_batch": mask.sum(),
        }
        loss = made._compute_loss(made.model, inputs)
        loss.backward()
        metrics = {key: values[-1] for key, values in made._metrics["train"].items() if key == "kl" or key.startswith("clip_ratio")}
        cases.append({"settings": settings, "loss": loss.item(), "gradient": leaf.grad.flatten().tolist(), "metrics": metrics})
        print(settings, loss.item(), metrics)
    return {key: value.flatten().tolist() for key, value in rollouts.items()}, cases


with tempfile.TemporaryDirectory() as folder:
    made = advantages(folder)
    rollouts, cases = losses(folder)
    value = {"length": LENGTH, "advantages": made, "rollouts": rollouts, "losses": cases}
    assert all(math.isfinite(case["loss"]) for case in cases)
    OUT.write_text(json.dumps(value) + "\n")
