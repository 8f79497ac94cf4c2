#!/usr/bin/env python3
"""Prints llama.cpp's results for GGUF files: greedy tokens after a prompt, and the logits before the first token. A test of `llm` compares them.

    python3 tools/llama_cpp_steps.py STEPS ID,ID,… FILE …     # needs llama-cpp-python; LLAMA_CPP_LIB_PATH names a folder with its libraries

Prints one JSON object per file: {"tokens": […], "logits": […]}, computed on the CPU with keys and values in f32.
"""
import json
import sys

import llama_cpp
import numpy as np

steps, prompt = int(sys.argv[1]), [int(i) for i in sys.argv[2].split(",")]
for path in sys.argv[3:]:
    model = llama_cpp.Llama(path, n_ctx=128, n_threads=2, verbose=False, type_k=0, type_v=0, n_gpu_layers=0, flash_attn=False, n_batch=64)
    model.eval(prompt)
    row = lambda: np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),))  # noqa: E731
    logits, tokens = [float(v) for v in row()], []
    for _ in range(steps):
        tokens.append(int(np.argmax(row())))
        model.eval(tokens[-1:])
    print(json.dumps({"tokens": tokens, "logits": logits}), flush=True)
