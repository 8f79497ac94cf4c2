#!/usr/bin/env python3
"""Draws config.json files of every family that netcl reads and compares netcl with transformers.

    python3 tools/check_config.py [--number 200] [--seed 1] [--keep DIR]     # needs torch and transformers, no GPU
    python3 tools/check_config.py --defaults                                # writes tests/goldens/config_defaults.json

A drawn file contains or omits each field, has some settings under two names (`rope_theta` in and outside `rope_parameters`, `rope_scaling`
next to `rope_parameters`, `rotary_pct`, `original_max_position_embeddings`, `layer_types`), and some of these with different values.
transformers reads it, a tiny model with random weights is saved next to it, and both compute the loss of the same tokens. Each drawing ends in
one of:

    same        both read it, and the losses differ by 1e-4 at most
    both refuse
    named       netcl refuses with a reason that names a field of the file, transformers reads it
    more        netcl reads what transformers refuses
    WRONG       the losses differ, or netcl refuses without naming a field of the file
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, logging  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = ROOT / "tests/goldens/config_defaults.json"
TOKENS = 24
SIZES = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
         "max_position_embeddings": 32}
GPT2 = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
FAMILIES = ["gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "olmo2", "smollm3",
            "granite", "gpt_neox", "starcoder2"]
# A multimodal model, of which the text model is read.
WRAPPED = {"gemma3": "gemma3_text"}
VISION = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
# Fields that netcl reads, for the table of defaults.
READ = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "hidden_act", "hidden_activation", "max_position_embeddings", "rms_norm_eps", "layer_norm_eps", "norm_epsilon",
        "tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "use_sliding_window", "sliding_window", "max_window_layers",
        "num_experts_per_tok", "num_local_experts", "num_experts", "output_router_logits", "router_aux_loss_coef",
        "router_jitter_noise", "decoder_sparse_step", "moe_intermediate_size", "norm_topk_prob", "mlp_only_layers",
        "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention",
        "no_rope_layers", "no_rope_layer_interval", "embedding_multiplier", "logits_scaling", "residual_multiplier",
        "attention_multiplier", "use_parallel_residual", "n_embd", "n_layer", "n_head", "n_positions", "n_inner",
        "activation_function", "layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
        "rope_parameters", "rope_theta", "original_max_position_embeddings"}


def defaults():
    """Returns transformers' defaults for missing fields, before it derives one from another."""
    out = {}
    for family in FAMILIES:
        fields = CONFIG_MAPPING[family].__dataclass_fields__
        table = {name: f.default for name, f in fields.items() if name in READ and name != "rope_parameters"}
        # The frequencies after reading a file without any.
        rope = getattr(CONFIG_MAPPING[family](), "rope_parameters", None)
        if rope is not None:
            table["rope_parameters"] = rope
        if family == "phi3":
            table["rope_parameters"].pop("original_max_position_embeddings", None)
        if table.get("use_bidirectional_attention", False) is None:
            table["use_bidirectional_attention"] = False
        out[family] = dict(sorted(table.items()))
    DEFAULTS.write_text(json.dumps(out, indent=1) + "\n")
    print(f"{len(out)} families, {sum(map(len, out.values()))} fields: {DEFAULTS}")


def maybe(r, out, name, *values, chance=0.5):
    if r.random() < chance:
        out[name] = r.choice(values)


def scaling(r, kinds, dims):
    """Draws an object of a kind of scaling, with or without its optional keys."""
    kind = r.choice(kinds)
    out = {r.choice(["rope_type", "rope_type", "type"]): kind}
    if kind == "default" and r.random() < 0.5:
        out = {}
    if kind != "default" and r.random() < 0.95 and kind != "longrope":
        out["factor"] = r.choice([1.5, 2.0, 4.0])
    if kind == "llama3":
        out |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("llama3", "yarn", "longrope"):
        maybe(r, out, "original_max_position_embeddings", 8, 16)
    if kind == "yarn":
        maybe(r, out, "beta_fast", 16.0, 32, 0, chance=0.3)
        maybe(r, out, "beta_slow", 1.0, 2, chance=0.3)
        maybe(r, out, "truncate", True, False, chance=0.3)
        maybe(r, out, "attention_factor", 1.25, None, chance=0.2)
        maybe(r, out, "mscale", 0.7, chance=0.2)
        maybe(r, out, "mscale_all_dim", 0.7, 1.0, chance=0.2)
        maybe(r, out, "attn_factor", 0.87, chance=0.1)
    if kind == "longrope":
        out["short_factor"] = [1.0 + 0.1 * i for i in range(dims // 2)]
        out["long_factor"] = [1.5 + 0.7 * i for i in range(dims // 2)]
        maybe(r, out, "factor", 2.0, chance=0.3)
        maybe(r, out, "attention_factor", 1.25, chance=0.3)
    if r.random() < 0.1:
        out["finetuned"] = True
    return out


def angles(r, family, config, dims):
    """Draws the fields of rotary frequencies."""
    if family == "gemma3_text":
        maybe(r, config, "rope_theta", 1000000.0, 10000.0, 500.0, chance=0.4)
        maybe(r, config, "rope_local_base_freq", 10000.0, 500.0, chance=0.4)
        if r.random() < 0.5:
            config["rope_parameters"] = {
                name: scaling(r, ["default", "linear"], dims) | ({"rope_theta": r.choice([500.0, 10000.0])} if r.random() < 0.5 else {})
                for name in ("full_attention", "sliding_attention") if r.random() < 0.8}
        maybe(r, config, "rope_scaling", {"rope_type": "linear", "factor": 8.0}, {"rope_type": "linear", "factor": 2.0}, None, chance=0.4)
        return
    kinds = ["default", "default", "longrope", "linear"] if family == "phi3" else \
        ["default", "default", "linear", "llama3", "yarn", "longrope"]
    base, share = ("rotary_emb_base", "rotary_pct") if family == "gpt_neox" else ("rope_theta", "partial_rotary_factor")
    theta = r.choice([10000.0, 10000, 500.0, 1000000.0])
    maybe(r, config, base, theta, theta, 777.0, chance=0.6)
    parts = family in ("gpt_neox", "phi3")
    part = r.choice([0.5, 1.0, 0.25]) if parts else r.choice([1.0, 1.0, 0.5])
    if r.random() < (0.5 if parts else 0.15):
        config[share] = part
    else:
        part = 0.25 if family == "gpt_neox" else 1.0
    turned = int(dims * part) if parts else dims
    for name, chance in (("rope_parameters", 0.5), ("rope_scaling", 0.35)):
        if r.random() < chance:
            found = scaling(r, kinds, turned)
            maybe(r, found, "rope_theta", theta, chance=0.6)
            maybe(r, found, "partial_rotary_factor", part, chance=0.2)
            config[name] = r.choice([found] * 9 + [None])
    if "rope_parameters" in config and r.random() < 0.3 and config["rope_parameters"]:
        config["rope_scaling"] = {k: v for k, v in config["rope_parameters"].items() if k != "type"}
    maybe(r, config, "original_max_position_embeddings", 8, 16, chance=0.7 if family == "phi3" else 0.2)


def harmless(r, config):
    for name, values in {"use_mrope": [False], "unsloth_fixed": [True], "_num_labels": [1], "output_router_logits": [False],
                         "lm_head_bias": [False], "rope_interleaved": [False], "is_llama_config": [True], "interpolate_factor": [1],
                         "attention_dropout": [0.0], "torch_dtype": ["float32"], "use_cache": [True, False],
                         "pretraining_tp": [1, 2], "quantization_config": [None], "is_decoder": [True]}.items():
        maybe(r, config, name, *values, chance=0.08)


def windows(r, family, config):
    layers = config["num_hidden_layers"]
    maybe(r, config, "sliding_window", 5, 5, 9, None, chance=0.6)
    if family in ("qwen2", "qwen3", "qwen3_moe", "smollm3"):
        maybe(r, config, "use_sliding_window", True, True, False, chance=0.7)
    if family in ("qwen2", "qwen3", "qwen3_moe"):
        maybe(r, config, "max_window_layers", 0, 1, 2, 28, chance=0.5)
    if family in ("qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text", "mistral", "mixtral", "phi3"):
        kinds = [r.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
        maybe(r, config, "layer_types", kinds, ["full_attention"] * layers, chance=0.35)
    if family == "gemma3_text":
        maybe(r, config, "sliding_window_pattern", 2, 3, chance=0.4)
        maybe(r, config, "_sliding_window_pattern", 2, 3, chance=0.2)
    if family == "smollm3":
        maybe(r, config, "no_rope_layers", [r.randint(0, 1) for _ in range(layers)], None, chance=0.4)
        maybe(r, config, "no_rope_layer_interval", 2, 3, chance=0.4)


def draw(r, family):
    if family in WRAPPED:
        text = draw(r, WRAPPED[family])
        outer = {name: text.pop(name) for name in ("tie_word_embeddings", "torch_dtype", "unsloth_fixed") if name in text and r.random() < 0.7}
        if "tie_word_embeddings" in text:
            outer["tie_word_embeddings"] = text["tie_word_embeddings"]
        return {"model_type": family, "text_config": text, "vision_config": VISION, "image_token_index": 47, "mm_tokens_per_image": 4, **outer}
    if family == "gpt2":
        config = {"model_type": family, **GPT2}
        for name, values in {"n_inner": [None, 48], "activation_function": ["gelu_new", "relu", "gelu"], "layer_norm_epsilon": [1e-5, 1e-3],
                             "scale_attn_weights": [True, False], "scale_attn_by_inverse_layer_idx": [True, False],
                             "tie_word_embeddings": [True, False], "reorder_and_upcast_attn": [False]}.items():
            maybe(r, config, name, *values)
        if r.random() < 0.3:
            config["num_hidden_layers"] = r.choice([config["n_layer"], config.pop("n_layer")])
        harmless(r, config)
        return config
    # Some defaults for padding exceed this vocabulary.
    config = {"model_type": family, **SIZES, "pad_token_id": None}
    if family != "gpt_neox":
        null = [] if family in ("mixtral", "qwen3_moe", "gemma2", "gemma3_text", "starcoder2") else [None]
        maybe(r, config, "num_key_value_heads", 2, 4, *null, chance=0.6)
        # Some defaults do not divide 4 heads.
        if "num_key_value_heads" not in config and family in ("mistral", "mixtral", "qwen2", "qwen3"):
            config["num_attention_heads"] = 8 if family in ("mistral", "mixtral") else 32
    if family in ("gemma2", "gemma3_text", "qwen3"):
        config["head_dim"] = 8
        if r.random() < 0.1:
            config.pop("head_dim")
    elif family not in ("gpt_neox", "phi3") and (family in ("mistral", "mixtral") or r.random() < 0.3):
        # Without this field, transformers does not read every scaling in some families.
        config["head_dim"] = r.choice([8, 16])
    dims = config.get("head_dim") or {"gemma2": 256, "gemma3_text": 256, "qwen3": 128}.get(family) or \
        config["hidden_size"] // config["num_attention_heads"]
    if dims % 4:
        config["head_dim"] = dims = 8
    act = "hidden_activation" if family.startswith("gemma") else "hidden_act"
    maybe(r, config, act, "silu", "gelu", "relu", "gelu_pytorch_tanh", chance=0.4)
    maybe(r, config, "tie_word_embeddings", True, False)
    maybe(r, config, {"gpt_neox": "layer_norm_eps", "starcoder2": "norm_epsilon"}.get(family, "rms_norm_eps"), 1e-5, 1e-3, chance=0.5)
    if family not in ("starcoder2", "mistral", "mixtral", "phi3"):
        maybe(r, config, "attention_bias", True, False, chance=0.3)
    if family in ("llama", "granite", "smollm3"):
        maybe(r, config, "mlp_bias", True, False, chance=0.3)
    if family == "starcoder2":
        maybe(r, config, "use_bias", True, False)
        maybe(r, config, "activation_function", "gelu", chance=0.2)
    if family == "gpt_neox":
        maybe(r, config, "use_parallel_residual", True, False)
    if family == "granite":
        for name in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"):
            maybe(r, config, name, 0.5, 2.0)
    if family.startswith("gemma"):
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            maybe(r, config, name, 3.0, 30.0, None, chance=0.6)
        maybe(r, config, "query_pre_attn_scalar", 8, 64)
        maybe(r, config, "hidden_act", "gelu_pytorch_tanh", chance=0.2)
        maybe(r, config, "use_bidirectional_attention", False, None, chance=0.2)
    if family in ("mixtral", "qwen3_moe"):
        number = r.choice(["num_local_experts", "num_experts"])
        if r.random() < 0.8:
            config[number] = r.choice([4, 6])
        maybe(r, config, "num_experts_per_tok", 1, 2, 3)
        if config.get(number, 8) < 8 and family == "qwen3_moe":
            config.setdefault("num_experts_per_tok", 2)
    if family == "qwen3_moe":
        config["moe_intermediate_size"] = 20
        maybe(r, config, "norm_topk_prob", True, False)
        maybe(r, config, "decoder_sparse_step", 1, 2, chance=0.4)
        maybe(r, config, "mlp_only_layers", [], [1], chance=0.4)
    if family not in ("llama", "olmo2", "granite", "gpt_neox"):
        windows(r, family, config)
    angles(r, family, config, dims)
    harmless(r, config)
    return config


def reference(folder, config, seed):
    """Saves a model of that configuration, keeps the drawn file, and returns transformers' loss or its refusal."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ids = torch.randint(0, 48, (2, TOKENS + 1), generator=generator)
    (folder / "ids.json").write_text(json.dumps(ids.tolist()))
    try:
        read = AutoConfig.from_pretrained(folder)
        read._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(read, attn_implementation="eager", experts_implementation="eager").eval()
        with torch.no_grad():
            for _, p in sorted(model.named_parameters()):
                noise = torch.randn(p.shape, generator=generator)
                p.copy_(p + noise * 0.2 if p.dim() == 1 else noise * (0.25 if p.shape[-1] <= 256 else 0.05))
        model.save_pretrained(folder)
        # Writes the drawn file again, instead of the one that transformers writes.
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        with torch.no_grad():
            logits = model.double()(input_ids=ids[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item(), None
    except Exception as error:  # whatever transformers says
        return None, f"{type(error).__name__}: {error}"


def names_a_field(reason, config):
    inner = [key for value in config.values() if isinstance(value, dict) for key in value]
    return any(name in reason for name in [*config, *inner, "rotary scaling"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="folder for the drawn files [default: a temporary folder]")
    parser.add_argument("--family", choices=[*FAMILIES, *WRAPPED])
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--show", action="store_true", help="print every refusal")
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if args.defaults:
        return defaults()
    root = Path(args.keep or tempfile.mkdtemp())
    r, expected = random.Random(args.seed), {}
    for n in range(args.number):
        families = [*FAMILIES, *WRAPPED]
        family = args.family or families[n % len(families)]
        folder = root / f"{n:04}"
        shutil.rmtree(folder, ignore_errors=True)
        config = draw(r, family)
        expected[folder] = (config, *reference(folder, config, n))
    run = ["cargo", "nextest", "run", "--workspace", "--test", "configs", "--run-ignored", "only", "-E", "test(drawn_configurations)"]
    done = subprocess.run(run, cwd=ROOT, env={**os.environ, "NETCL_CONFIGS": str(root)}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    counts, worst = {}, (0.0, "")
    for folder, (config, loss, error) in expected.items():
        result = json.loads((folder / "result.json").read_text())
        got, refused = result.get("loss"), result.get("refused")
        if got is not None and loss is not None:
            off = abs(got - loss)
            worst = max(worst, (off, folder.name))
            kind = "same" if off <= 1e-4 else "WRONG"
        elif loss is None and (got is not None or "model.safetensors" in refused):
            # transformers has saved no weights.
            kind = "more"
        elif loss is None:
            kind = "both refuse"
        else:
            kind = "named" if names_a_field(refused, config) else "WRONG"
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "WRONG" or args.show and kind != "same":
            print(f"{kind}: {folder.name}: {json.dumps(config)}\n  netcl: {got or refused}\n  transformers: {loss or error}")
    print(f"{args.number} drawn: {counts}, largest difference {worst[0]:.1e} ({worst[1]})")
    if not args.keep:
        shutil.rmtree(root)
    sys.exit(1 if "WRONG" in counts else 0)


if __name__ == "__main__":
    main()
