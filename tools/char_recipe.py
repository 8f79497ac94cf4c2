#!/usr/bin/env python3
"""The preset `char` in PyTorch, to compare its wall time and losses with

    netcl train --preset char --dtype bf16 --data FILE --sample-every 0 --json

    python3 tools/char_recipe.py FILE [--mode default|reduce-overhead|eager] [--dtype bf16|f32] [--steps 5000] [--seed 1337]

nanoGPT's recipe for characters of Shakespeare (config/train_shakespeare_char.py there): 6 layers of 384 with 6 heads, 256 characters,
64 sequences per step, dropout 0.2, no biases; AdamW (0.9, 0.99), decay 0.1 of matrices, clipping at 1, learning rate 1e-3 to
1e-4 by a cosine after 100 steps. Validation over 200 batches every 250 steps. Prints one JSON object; seconds count
everything after the imports; the compile time is also listed separately.
"""
import argparse, contextlib, json, math, time
import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, DROPOUT = 6, 6, 384, 256, 64, 0.2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=DROPOUT if self.training else 0.0)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, WIDTH)), DROPOUT, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), DROPOUT, self.training)


class Gpt(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if "proj" in name or "down" in name else 0.02)

    def forward(self, x, y):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        h = F.dropout(h, DROPOUT, self.training)
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    args = argparse.ArgumentParser()
    args.add_argument("file")
    args.add_argument("--mode", default="default")
    args.add_argument("--dtype", default="bf16")
    args.add_argument("--steps", type=int, default=5000)
    args.add_argument("--seed", type=int, default=1337)
    a = args.parse_args()
    begun = time.perf_counter()
    torch.manual_seed(a.seed)
    text = open(a.file, encoding="utf-8").read()
    chars = sorted(set(text))
    ids = torch.tensor([chars.index(c) for c in text], dtype=torch.long, device="cuda")
    cut = int(0.9 * len(ids))
    parts = {"train": ids[:cut], "val": ids[cut:]}
    steps_of = torch.arange(CONTEXT, device="cuda")

    def batch(part):
        data = parts[part]
        at = torch.randint(len(data) - CONTEXT, (BATCH, 1), device="cuda") + steps_of
        return data[at], data[at + 1]

    model = Gpt(len(chars)).cuda()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    run = model if a.mode == "eager" else torch.compile(model, mode=a.mode)
    cast = torch.autocast("cuda", torch.bfloat16) if a.dtype == "bf16" else contextlib.nullcontext()

    def validate():
        model.eval()
        with torch.no_grad(), cast:
            total = torch.zeros((), device="cuda")
            for _ in range(200):
                total += run(*batch("val"))
        model.train()
        return total.item() / 200

    best, first = math.inf, 0.0
    for step in range(a.steps):
        if step < 100:
            lr = 1e-3 * (step + 1) / 100
        else:
            lr = 1e-4 + 0.5 * (1 + math.cos(math.pi * (step - 100) / (a.steps - 100))) * 9e-4
        for group in adam.param_groups:
            group["lr"] = lr
        with cast:
            loss = run(*batch("train"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step == 2:
            torch.cuda.synchronize()
            first = time.perf_counter() - begun
        if (step + 1) % 250 == 0:
            best = min(best, validate())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    print(json.dumps({"mode": a.mode, "dtype": a.dtype, "seed": a.seed, "steps": a.steps, "best_val": round(best, 4),
                      "seconds": round(seconds, 1), "seconds_first_steps": round(first, 1), "torch": torch.__version__}))


main()
