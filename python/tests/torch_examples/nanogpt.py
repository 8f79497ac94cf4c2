"""A decoder with the calls of nanoGPT: tied tables, decayed and plain weights, a scaler, checkpoints, sampling by the best words."""

import inspect
import math
import os
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy as np

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Settings:
    context: int = 16
    words: int = 29
    layers: int = 2
    heads: int = 2
    width: int = 16
    drop: float = 0.0
    bias: bool = True
    fused: bool = True


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.qkv, self.out_proj, self.drop = s, nn.Linear(s.width, 3 * s.width, bias=s.bias), nn.Linear(s.width, s.width, bias=s.bias), nn.Dropout(s.drop)
        self.fused = s.fused and hasattr(torch.nn.functional, "scaled_dot_product_attention")
        if not self.fused:
            self.register_buffer("past", torch.tril(torch.ones(s.context, s.context)).view(1, 1, s.context, s.context))

    def forward(self, x):
        n, t, width = x.size()
        q, k, v = (part.view(n, t, self.s.heads, width // self.s.heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        if self.fused:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.s.drop if self.training else 0, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            y = self.drop(F.softmax(scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf")), dim=-1)) @ v
        return self.drop(self.out_proj(y.transpose(1, 2).contiguous().view(n, t, width)))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.before, self.attend, self.between = Norm(s.width, s.bias), Attention(s), Norm(s.width, s.bias)
        self.wide, self.gelu, self.out_proj = nn.Linear(s.width, 4 * s.width, bias=s.bias), nn.GELU(), nn.Linear(4 * s.width, s.width, bias=s.bias)

    def forward(self, x):
        x = x + self.attend(self.before(x))
        return x + self.out_proj(self.gelu(self.wide(self.between(x))))


class Decoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.body = nn.ModuleDict(dict(words=nn.Embedding(s.words, s.width), places=nn.Embedding(s.context, s.width), drop=nn.Dropout(s.drop),
                                       layers=nn.ModuleList([Layer(s) for _ in range(s.layers)]), norm=Norm(s.width, s.bias)))  # fmt: skip
        self.head = nn.Linear(s.width, s.words, bias=False)
        self.body.words.weight = self.head.weight
        self.apply(self.prepare)
        for name, p in self.named_parameters():
            if name.endswith("out_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * s.layers))

    def prepare(self, layer):
        if isinstance(layer, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(layer.weight, mean=0.0, std=0.02)
            if getattr(layer, "bias", None) is not None:
                torch.nn.init.zeros_(layer.bias)

    def forward(self, ids, wanted=None):
        t = ids.size()[1]
        x = self.body.drop(self.body.words(ids) + self.body.places(torch.arange(0, t, dtype=torch.long, device=ids.device)))
        for layer in self.body.layers:
            x = layer(x)
        x = self.body.norm(x)
        if wanted is None:
            return self.head(x[:, [-1], :]), None
        scores = self.head(x)
        return scores, F.cross_entropy(scores.view(-1, scores.size(-1)), wanted.view(-1), ignore_index=-1)

    def shorten(self, context):
        self.s.context, self.body.places.weight = context, nn.Parameter(self.body.places.weight[:context])
        for layer in self.body.layers:
            if hasattr(layer.attend, "past"):
                layer.attend.past = layer.attend.past[:, :, :context, :context]

    def optimizer(self, device):
        used = {name: p for name, p in self.named_parameters() if p.requires_grad}
        groups = [{"params": [p for p in used.values() if p.dim() >= 2], "weight_decay": 0.1}, {"params": [p for p in used.values() if p.dim() < 2], "weight_decay": 0.0}]
        more = {"fused": True} if "fused" in inspect.signature(torch.optim.AdamW).parameters and device == "cuda" else {}
        return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **more)

    @torch.no_grad()
    def write(self, ids, count, best):
        for _ in range(count):
            scores, _ = self(ids if ids.size(1) <= self.s.context else ids[:, -self.s.context :])
            scores = scores[:, -1, :] / 0.8
            least, _ = torch.topk(scores, min(best, scores.size(-1)))
            scores[scores < least[:, [-1]]] = -float("Inf")
            ids = torch.cat((ids, torch.multinomial(F.softmax(scores, dim=-1), num_samples=1)), dim=1)
        return ids


def models():
    return {"fused": Decoder(Settings()), "plain": Decoder(Settings(fused=False, bias=False))}


def batch(stream, context, device):
    starts = torch.randint(len(stream) - context, (4,))
    parts = [torch.stack([torch.from_numpy(stream[i + k : i + k + context].astype(np.int64)) for i in starts]) for k in (0, 1)]
    return [p.pin_memory().to(device, non_blocking=True) if device == "cuda" else p.to(device) for p in parts]


def learn(net, folder, losses):
    device, several = "cpu", int(os.environ.get("RANK", -1)) != -1
    if several:
        init_process_group(backend="nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    context = nullcontext() if device == "cpu" else torch.amp.autocast(device_type=device, dtype=torch.bfloat16)
    stream = np.random.default_rng(12).integers(0, 29, 400).astype(np.uint16)
    net.to(device)
    scaler, optimizer = torch.cuda.amp.GradScaler(enabled=False), net.optimizer(device)
    called = DDP(net) if several else torch.compile(net) if device == "cuda" else net
    path = os.path.join(folder, "state.pt")
    for step in range(12):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (step + 1) / 4 if step < 3 else 1e-3 + 4.5e-3 * (1.0 + math.cos(math.pi * (step - 3) / 9))
        if step % 6 == 0:
            found = torch.zeros(3)
            called.eval()
            with torch.no_grad():
                for i in range(3):
                    found[i] = called(*batch(stream[300:], net.s.context, device))[1].item()
            called.train()
            losses.append(float(found.mean()))
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "settings": asdict(net.s), "step": step, "best": found.mean()}, path)
        for _ in range(2):
            with context:
                loss = called(*batch(stream[:300], net.s.context, device))[1] / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item() * 2)
    if several:
        destroy_process_group()
    saved = torch.load(path, map_location=device)
    again = Decoder(Settings(**saved["settings"]))
    again.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in saved["net"].items()})
    optimizer = again.optimizer(device)
    optimizer.load_state_dict(saved["optimizer"])
    for _ in range(2):
        loss = again(*batch(stream, again.s.context, device))[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    again.shorten(8)
    again.eval()
    losses += [float(i) for i in again.write(torch.zeros((1, 1), dtype=torch.long, device=device), 12, 5)[0].tolist()]


def main(**nets):
    losses = []
    for net in nets.values():
        losses.append(sum(p.numel() for p in net.parameters()) - net.body.places.weight.numel())
        with tempfile.TemporaryDirectory() as folder:
            learn(net, folder, losses)
    return losses
