#!/usr/bin/env python3
"""Opens model folders with transformers and prints the results, to check that they read netcl's Hugging Face layout.

    python3 tools/check_hf.py DIR... --ids 3 1 28       # logits of these token ids, one JSON object per folder on stdout
    python3 tools/check_hf.py DIR --text "To be"        # the same for a text, through DIR/tokenizer.json

Output: {"ids": [...], "logits": [T][V], "parameters": n, "tied": bool, "missing": [...], "unexpected": [...],
"tokens": [...], "decoded": "..."}; the last two only if DIR has a tokenizer.json. Exit 3: transformers is not installed.
"""
import argparse
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, logging
except ImportError as e:
    print(f"check_hf: {e}; install torch, transformers and tokenizers", file=sys.stderr)
    sys.exit(3)


def reply(folder, ids, text):
    if not (folder / "config.json").exists():
        sys.exit(f"check_hf: {folder} does not have a config.json")
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file)) if file.exists() else None
    if text is not None:
        if tokenizer is None:
            sys.exit(f"check_hf: --text needs {file}")
        ids = tokenizer.encode(text).ids
    if not ids:
        sys.exit("check_hf: no token ids")
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    out = {"ids": ids, "logits": logits.tolist(), "parameters": model.num_parameters(),
           "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
           "missing": sorted(map(str, info["missing_keys"])), "unexpected": sorted(map(str, info["unexpected_keys"]))}
    if tokenizer is not None:
        out |= {"tokens": [tokenizer.id_to_token(i) for i in ids], "decoded": tokenizer.decode(ids)}
    return out


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("dirs", type=pathlib.Path, nargs="+", metavar="DIR")
    args.add_argument("--ids", type=int, nargs="+", default=[])
    args.add_argument("--text")
    args = args.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for folder in args.dirs:
        print(json.dumps(reply(folder, args.ids, args.text)))


if __name__ == "__main__":
    main()
