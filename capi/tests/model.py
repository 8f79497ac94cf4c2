"""Makes a language model whose output is known: it continues each byte with the next one. Needs only Python's standard library.

    python3 model.py FOLDER

The result is a folder in the Hugging Face layout: a Llama model with single-byte tokens and an embedding that distinguishes all tokens. Its blocks
add nothing, and row i of its head is the embedding of i - 1. Trained models differ only in their numbers, so loading, tokenizer, cache, sampler
and callbacks are all tested.
"""

import array
import json
import os
import struct
import sys

VOCAB, WIDTH, MIDDLE, LAYERS = 258, 264, 16, 2


def tensors():
    """Yields name, shape and values of each tensor."""

    def plain(name, rows, columns, at):
        values = array.array("f", bytes(4 * rows * columns))
        for row in range(rows):
            for column, value in at(row):
                values[row * columns + column] = value
        return name, [rows, columns], values

    def ones(name):
        return name, [WIDTH], array.array("f", [1.0] * WIDTH)

    yield plain("model.embed_tokens.weight", VOCAB, WIDTH, lambda row: [(row, 1.0)])
    yield plain("lm_head.weight", VOCAB, WIDTH, lambda row: [(row - 1, 1.0)] if row else [])
    yield ones("model.norm.weight")
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        yield ones(name + "input_layernorm.weight")
        yield ones(name + "post_attention_layernorm.weight")
        some = lambda row: [((7 * row + i) % 16, 0.1 * i) for i in range(3)]
        yield plain(name + "self_attn.q_proj.weight", WIDTH, WIDTH, some)
        yield plain(name + "self_attn.k_proj.weight", WIDTH // 2, WIDTH, some)
        yield plain(name + "self_attn.v_proj.weight", WIDTH // 2, WIDTH, some)
        yield plain(name + "self_attn.o_proj.weight", WIDTH, WIDTH, lambda row: [])
        yield plain(name + "mlp.gate_proj.weight", MIDDLE, WIDTH, some)
        yield plain(name + "mlp.up_proj.weight", MIDDLE, WIDTH, some)
        yield plain(name + "mlp.down_proj.weight", WIDTH, MIDDLE, lambda row: [])


def letters():
    """Maps each byte to its character in byte-level tokenizers: itself if it is printable, otherwise a character after 255."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in seen]
    return {b: chr(b) if b in seen else chr(256 + others.index(b)) for b in range(256)}


def make(folder):
    os.makedirs(folder, exist_ok=True)

    def write(name, content):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f)

    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": MIDDLE,
        "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257,
        "attention_bias": False, "torch_dtype": "float32",
    })  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    write("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for i, text in ((256, "<s>"), (257, "</s>"))
        ],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False, "vocab": {letter: byte for byte, letter in letters().items()}, "merges": [],
        },
    })  # fmt: skip
    header, data = {}, bytearray()
    for name, shape, values in tensors():
        if sys.byteorder == "big":
            values.byteswap()
        begin = len(data)
        data += values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    make(sys.argv[1])
