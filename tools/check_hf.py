#!/usr/bin/env python3
"""Opens a model folder with transformers and prints what it computes: the other end of netcl's Hugging Face layout.

    python3 tools/check_hf.py DIR ID...              # logits of these token ids, one JSON object on stdout
    python3 tools/check_hf.py DIR --text "To be"     # the same for a text, through DIR/tokenizer.json

Output: {"ids": [...], "logits": [T][V], "parameters": n, "tied": bool, "missing": [...], "unexpected": [...],
"tokens": [...], "decoded": "..."}; the last two only where DIR has a tokenizer.json. Exit 3: no transformers here.
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
    from transformers import GPT2LMHeadModel, logging
except ImportError as e:
    print(f"check_hf: {e}; install torch, transformers and tokenizers", file=sys.stderr)
    sys.exit(3)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("dir", type=pathlib.Path)
    args.add_argument("ids", type=int, nargs="*")
    args.add_argument("--text")
    args = args.parse_args()
    if not (args.dir / "config.json").exists():
        sys.exit(f"check_hf: {args.dir} has no config.json")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    file = args.dir / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file)) if file.exists() else None
    ids = args.ids
    if args.text is not None:
        if tokenizer is None:
            sys.exit(f"check_hf: --text needs {file}")
        ids = tokenizer.encode(args.text).ids
    if not ids:
        sys.exit("check_hf: no token ids")
    model, info = GPT2LMHeadModel.from_pretrained(args.dir, output_loading_info=True, dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    reply = {"ids": ids, "logits": logits.tolist(), "parameters": model.num_parameters(),
             "tied": model.lm_head.weight is model.transformer.wte.weight,
             "missing": sorted(map(str, info["missing_keys"])), "unexpected": sorted(map(str, info["unexpected_keys"]))}
    if tokenizer is not None:
        reply |= {"tokens": [tokenizer.id_to_token(i) for i in ids], "decoded": tokenizer.decode(ids)}
    print(json.dumps(reply))


if __name__ == "__main__":
    main()
