#!/usr/bin/env python3
"""PyTorch's training step of one long sequence on CPU cores, beside ours in scripts/compare_long: a GPT-2 of 2 layers, 128 wide, 4 heads,
256 tokens, fp32, eager, scaled_dot_product_attention (causal), clipping, fused AdamW. Prints one JSON line; the last step is timed.
usage: long_peer.py --length T [--steps N] [--threads N] [--recompute]: one process, or
       long_peer.py --length T --context N: the same over N processes of this machine with torch's context parallelism and gloo."""
import argparse
import contextlib
import json
import os
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

LAYERS, HEADS, HIDDEN, VOCABULARY = 2, 4, 128, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, HEADS, HIDDEN // HEADS).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(HIDDEN, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, length, recompute):
        super().__init__()
        self.recompute = recompute
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(length, HIDDEN)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets, at):
        x = self.tokens(tokens) + self.positions(at)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.tokens.weight).view(-1, VOCABULARY), targets.reshape(-1))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def steps_of(o, around):
    torch.manual_seed(0)
    model = Model(o.length, o.recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    text = torch.randint(0, VOCABULARY, (1, o.length + 1))
    seconds, start_bytes = [], peak()
    for _ in range(o.steps):
        tokens, targets, at = text[:, :-1].clone(), text[:, 1:].clone(), torch.arange(o.length)
        start = time.monotonic()
        with around(tokens, targets, at):
            loss = model(tokens, targets, at)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.monotonic() - start)
    return {"torch": torch.__version__, "length": o.length, "loss": loss.item(), "step_ms": 1e3 * seconds[-1], "tokens_per_s": o.length / seconds[-1],
            "memory_start_bytes": start_bytes, "memory_peak_bytes": peak()}


def rank(number, o):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(number), WORLD_SIZE=str(o.context))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (o.context,))
    got = steps_of(o, lambda *buffers: context_parallel(mesh, buffers=list(buffers), buffer_seq_dims=[1, 1, 0]))
    if number == 0:
        print(json.dumps(got), flush=True)
    dist.destroy_process_group()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--length", type=int, required=True)
    options.add_argument("--steps", type=int, default=2)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--context", type=int, default=1)
    options.add_argument("--recompute", action="store_true")
    o = options.parse_args()
    if o.context > 1:
        torch.multiprocessing.spawn(rank, (o,), o.context)
        return
    torch.set_num_threads(o.threads)
    print(json.dumps(steps_of(o, lambda *_: contextlib.nullcontext())), flush=True)


if __name__ == "__main__":
    sys.exit(main())
