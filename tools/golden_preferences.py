#!/usr/bin/env python3
"""Writes tests/goldens/preferences/: losses, metrics and gradients of TRL's trainers for a small llama.

    python3 tools/golden_preferences.py     # needs torch, transformers, peft and trl, no GPU

    model/                the model that training starts from, with its tokenizer and chat template.
    policy.safetensors    the weights at which losses and gradients are computed; they differ from the reference.
    pairs.jsonl, chat.jsonl, labels.jsonl    records: texts, conversations with an implicit prompt, answers with labels.
    cases.json            per case: objective, settings, file, batch, the loss of the first batch, and TRL's metrics
    gradients.safetensors the gradients of each case, as <case>.<parameter>

The weights are float32, and TRL computes in float32.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file

from golden import ROOT

os.environ["HF_HUB_OFFLINE"] = "1"
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402
from trl.experimental.cpo import CPOConfig, CPOTrainer  # noqa: E402
from trl.experimental.orpo import ORPOConfig, ORPOTrainer  # noqa: E402
from trl.trainer.kto_config import KTOConfig  # noqa: E402
from trl.trainer.kto_trainer import KTOTrainer  # noqa: E402

OUT = ROOT / "tests/goldens/preferences"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTIONS = [
    ("Name a color.", " Blue is a color.", " I do not know."),
    ("How many legs does a cat have?", " Four.", " A cat has six legs, I think."),
    ("Is the sea salt?", " Yes, the sea is salt.", " No."),
    ("Say hello.", " Hello!", " Goodbye, and do not come back."),
]
PAIRS = [
    ("dpo", "dpo", "sigmoid", {"beta": 0.1}),
    ("dpo_beta", "dpo", "sigmoid", {"beta": 0.7}),
    ("sigmoid_norm", "dpo", "sigmoid_norm", {"beta": 0.5}),
    ("hinge", "dpo", "hinge", {"beta": 0.1}),
    ("robust", "dpo", "robust", {"beta": 0.2, "label_smoothing": 0.1}),
    ("exo_pair", "dpo", "exo_pair", {"beta": 0.2, "label_smoothing": 0.001}),
    ("nca_pair", "dpo", "nca_pair", {"beta": 0.2}),
    ("bco_pair", "dpo", "bco_pair", {"beta": 0.2}),
    ("sppo_hard", "dpo", "sppo_hard", {"beta": 0.2}),
    ("apo_zero", "dpo", "apo_zero", {"beta": 0.2}),
    ("apo_down", "dpo", "apo_down", {"beta": 0.2}),
    ("ipo", "ipo", "ipo", {"beta": 0.1}),
]


def tokenizer():
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = [part for question in QUESTIONS for part in question]
    words.train_from_iterator(text, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet))
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", words.token_to_id("<s>"))])
    fast = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    return fast


def models_of(words):
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id, attn_implementation="eager", dtype="float32", initializer_range=0.3,
    )
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(OUT / "model")
    words.save_pretrained(OUT / "model")
    policy = AutoModelForCausalLM.from_pretrained(OUT / "model", attn_implementation="eager")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    state = {key: value.clone() for key, value in policy.state_dict().items() if key != "lm_head.weight"}
    save_file(state, OUT / "policy.safetensors")
    return state


def records():
    pairs = [{"prompt": q, "chosen": c, "rejected": r} for q, c, r in QUESTIONS]
    ask = lambda q, a: [{"role": "user", "content": q}, {"role": "assistant", "content": a.strip()}]  # noqa: E731
    chat = [{"chosen": ask(q, c), "rejected": ask(q, r)} for q, c, r in QUESTIONS]
    labels = [{"prompt": q, "completion": c if i % 2 else r, "label": bool(i % 2)} for i, (q, c, r) in enumerate(QUESTIONS)]
    labels.append({"prompt": QUESTIONS[0][0], "completion": QUESTIONS[0][1], "label": True})
    files = {"pairs.jsonl": pairs, "chat.jsonl": chat, "labels.jsonl": labels}
    for name, rows in files.items():
        (OUT / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def common(folder, batch):
    return dict(output_dir=folder, per_device_train_batch_size=batch, use_cpu=True, bf16=False, gradient_checkpointing=False,
                report_to=[], max_length=128, disable_dropout=True, train_sampling_strategy="sequential")


def run(name, trainer, cases, gradients):
    model = trainer.model
    batch = next(iter(trainer.get_train_dataloader()))
    model.train()
    model.zero_grad()
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    metrics = getattr(trainer, "_metrics", None)
    stored = (metrics or {}).get("train") or trainer._stored_metrics["train"]
    metrics = {key: float(values[-1]) for key, values in stored.items()}
    cases[name].update(loss=loss.item(), metrics=metrics)
    for key, parameter in model.named_parameters():
        gradients[f"{name}.{key}"] = parameter.grad.detach().clone().contiguous()
    print(f"{name}: loss {loss.item():.6f}", {key: round(value, 4) for key, value in metrics.items() if "/" in key or key == "kl"})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    words = tokenizer()
    state = models_of(words)
    files = records()
    cases, gradients = {}, {}

    def policy():
        model = AutoModelForCausalLM.from_pretrained(OUT / "model", attn_implementation="eager", dtype=torch.float32)
        model.load_state_dict(state, strict=False)
        return model

    def reference():
        return AutoModelForCausalLM.from_pretrained(OUT / "model", attn_implementation="eager", dtype=torch.float32)

    def case(name, file, objective, settings):
        cases[name] = {"objective": objective, "file": file, "batch": len(files[file]), "settings": settings}
        return Dataset.from_list(files[file]), len(files[file])

    with tempfile.TemporaryDirectory() as folder:
        for name, objective, loss_type, settings in PAIRS + [("dpo_chat", "dpo", "sigmoid", {"beta": 0.1})]:
            file = "chat.jsonl" if name.endswith("chat") else "pairs.jsonl"
            named = {"loss_type": loss_type} if objective == "dpo" else {}
            data, batch = case(name, file, objective, {**settings, **named})
            args = DPOConfig(**common(folder, batch), loss_type=[loss_type], **settings)
            made = DPOTrainer(model=policy(), ref_model=reference(), args=args, train_dataset=data, processing_class=words)
            run(name, made, cases, gradients)
        for name, settings in [
            ("simpo", {"beta": 2.0, "simpo_gamma": 0.5}),
            ("simpo_smooth", {"beta": 2.0, "simpo_gamma": 1.0, "label_smoothing": 0.1, "cpo_alpha": 0.3}),
        ]:
            data, batch = case(name, "pairs.jsonl", "simpo", settings)
            args = CPOConfig(**common(folder, batch), loss_type="simpo", **{"cpo_alpha": 0.0, **settings})
            run(name, CPOTrainer(model=policy(), args=args, train_dataset=data, processing_class=words), cases, gradients)
        # The trainer adds begin and end tokens to conversations, whose template has its own.
        data, batch = case("orpo", "pairs.jsonl", "orpo", {"beta": 0.1})
        args = ORPOConfig(**common(folder, batch), beta=0.1)
        run("orpo", ORPOTrainer(model=policy(), args=args, train_dataset=data, processing_class=words), cases, gradients)
        for name, file, settings in [
            ("kto", "labels.jsonl", {"beta": 0.1}),
            ("kto_weights", "labels.jsonl", {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.7}),
            ("kto_pairs", "pairs.jsonl", {"beta": 0.3}),
            ("apo_zero_unpaired", "labels.jsonl", {"beta": 0.3, "loss_type": "apo_zero_unpaired"}),
        ]:
            data, batch = case(name, file, "kto", settings)
            batch = cases[name]["batch"] = 2 * batch if name == "kto_pairs" else batch
            args = KTOConfig(**common(folder, batch), **settings)
            made = KTOTrainer(model=policy(), ref_model=reference(), args=args, train_dataset=data, processing_class=words)
            run(name, made, cases, gradients)
    (OUT / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    save_file(gradients, OUT / "gradients.safetensors")


if __name__ == "__main__":
    sys.exit(main())
