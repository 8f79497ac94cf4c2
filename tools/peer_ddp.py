#!/usr/bin/env python3
"""Measures PyTorch's training throughput in tokens per second on several GPUs of one machine: the peer of `netcl train --devices nvidia:0,nvidia:1`.

    torchrun --standalone --nproc-per-node 2 tools/peer_ddp.py --layers 12 --heads 12 --width 768 --batch 64
    python3 tools/peer_ddp.py --batch 64                                     # one GPU, for comparison

DistributedDataParallel over NCCL (gloo without CUDA), torch.compile, bf16 autocast, clipping, fused AdamW; `--batch` sequences per GPU. The
first rank prints one JSON object: tokens per second of all GPUs, and seconds per step.
"""
import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peer import Gpt


def main():
    parser = argparse.ArgumentParser()
    for name, value in [("layers", 12), ("heads", 12), ("width", 768), ("context", 1024), ("vocab", 50304), ("batch", 16), ("steps", 30)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    cuda = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Gpt(args.vocab, args.context, args.layers, args.heads, args.width).to(device)
    if ranks > 1:
        model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=cuda)
    step_model = model if args.eager else torch.compile(model)
    data = [torch.randint(args.vocab, (args.batch, args.context + 1), device=device) for _ in range(4)]
    cast = torch.autocast(device.type, dtype=torch.bfloat16) if cuda else contextlib.nullcontext()

    def step(i):
        x, y = data[i % 4][:, :-1].contiguous(), data[i % 4][:, 1:].contiguous()
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss = step_model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def wait():
        if cuda:
            torch.cuda.synchronize()
        if ranks > 1:
            dist.barrier()

    for i in range(6):
        step(i)
    wait()
    begun = time.perf_counter()
    for i in range(args.steps):
        step(i)
    wait()
    seconds = (time.perf_counter() - begun) / args.steps
    if rank == 0:
        tokens = ranks * args.batch * args.context / seconds
        print(json.dumps({"ranks": ranks, "batch": args.batch, "tokens_per_second": round(tokens), "seconds": seconds}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


main()
