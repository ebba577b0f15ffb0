#!/usr/bin/env python3
"""PyTorch's training step at the shapes of `bench step`, to be compared with ours: torch.compile, bf16 by autocast over fp32 master weights,
fused AdamW, clipping, recomputation as asked. torch.compile takes blocks one by one (blocks:MODE, as torchtitan does it: a block compiles once) or
the whole model (whole:MODE). The first way is timed with scaled_dot_product_attention by cuDNN and by flash attention, the others with the faster
of the two; each prints one JSON line when it is done, or why it failed.
usage: gpu_peer.py 124m|llama3_1b|llama3_3b|llama2_7b [--batch N] [--length T] [--steps N] [--recompute none|selective|full] [--ways W,W]
                [--heads N --kv-heads N] [--loss-chunk TOKENS] [--warm-up N]"""
import argparse
import functools
import gc
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

#        layers, heads, kv heads, hidden, feed-forward, vocabulary, length, tied, llama
SHAPES = {"124m": (12, 12, 12, 768, 3072, 50304, 1024, True, False), "llama3_1b": (16, 32, 8, 2048, 8192, 128256, 2048, True, True),
          "llama3_3b": (28, 24, 8, 3072, 8192, 128256, 2048, True, True), "llama2_7b": (32, 32, 32, 4096, 11008, 32000, 2048, False, True)}
WAYS = "blocks:default,blocks:max-autotune-no-cudagraphs,whole:default,whole:max-autotune"  # the longest to compile last


def keep_products(_, op, *_arguments, **_keywords):
    """Selective recomputation, as ours: results of matrix products and attention are kept, the cheap ops between them are recomputed."""
    name = str(op)
    kept = any(word in name for word in ("aten.mm", "aten.addmm", "aten.bmm", "attention"))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self, heads, kv_heads, hidden, ffn, llama, recompute):
        super().__init__()
        self.heads, self.kv_heads, self.size, self.llama, self.recompute = heads, kv_heads, hidden // heads, llama, recompute
        norm = (lambda: nn.RMSNorm(hidden, eps=1e-5)) if llama else (lambda: nn.LayerNorm(hidden))
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.size, bias=not llama)
        self.out = nn.Linear(hidden, hidden, bias=not llama)
        self.up = nn.Linear(hidden, 2 * ffn if llama else ffn, bias=not llama)
        self.down = nn.Linear(ffn, hidden, bias=not llama)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def forward(self, x, cos, sin):
        if self.recompute == "none":
            return self.whole(x, cos, sin)
        if self.recompute == "full":
            return checkpoint(self.whole, x, cos, sin, use_reentrant=False)
        return checkpoint(self.whole, x, cos, sin, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, keep_products))

    def whole(self, x, cos, sin):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size], 2)
        q = q.view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = (t.view(batch, length, self.kv_heads, self.size).transpose(1, 2) for t in (k, v))
        if self.llama:
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, hidden))
        h = self.up(self.norm2(x))
        if self.llama:
            gate, up = h.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(h, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers, heads, kv_heads, hidden, ffn, vocab, length, tied, llama, recompute, loss_chunk=0):
        super().__init__()
        self.loss_chunk = loss_chunk
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = None if llama else nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(heads, kv_heads, hidden, ffn, llama, recompute) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5) if llama else nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight
        size = hidden // heads
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        length = tokens.shape[1]
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[:length]
        cos, sin = self.cos[:length], self.sin[:length]
        for block in self.blocks:
            x = block(x, cos, sin)
        step = self.loss_chunk or x.shape[1]
        if step >= x.shape[1]:
            return self.loss(x, targets)
        # Logits of some tokens at a time, made again in the backward pass: those of all would not fit.
        parts = [checkpoint(self.loss, x[:, i:i + step], targets[:, i:i + step], use_reentrant=False) for i in range(0, x.shape[1], step)]
        return torch.stack(parts).mean()

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())

    def compiled(self, way):
        what, mode = way.split(":")
        if what == "whole":
            return torch.compile(self, mode=mode)
        for block in self.blocks:
            block.compile(mode=mode)
        self.loss = torch.compile(self.loss, mode=mode)
        return self


def measure(options, batch, way, backend):
    layers, heads, kv_heads, hidden, ffn, vocab, length, tied, llama = SHAPES[options.shape]
    heads, kv_heads, length, steps = options.heads or heads, options.kv_heads or kv_heads, options.length or length, options.steps
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(layers, heads, kv_heads, hidden, ffn, vocab, length, tied, llama, options.recompute, options.loss_chunk)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = model.compiled(way)
    data = torch.randint(0, vocab, (options.warm_up + steps, batch, length + 1), device="cuda")
    times = []
    with sdpa_kernel(backend):
        for i in range(options.warm_up + steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = compiled(data[i, :, :-1], data[i, :, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            if i == 0:
                first = times[0]
    times = sorted(times[options.warm_up:])
    median = times[len(times) // 2]
    return {"peer": "pytorch", "version": torch.__version__, "shape": options.shape, "attention": backend.name, "batch": batch, "length": length,
            "tokens_per_s": batch * length / median, "step_ms": median * 1e3, "memory_peak_bytes": torch.cuda.max_memory_allocated(), "loss": loss.item(),
            "recompute": options.recompute, "compile": way, "first_step_s": first, "optimizer": "AdamW, fused", "weights": "fp32, autocast to bf16", "parameters": sum(p.numel() for p in model.parameters())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--heads", type=int, default=0)
    parser.add_argument("--kv-heads", type=int, default=0)
    parser.add_argument("--loss-chunk", type=int, default=0, help="tokens whose logits are in memory at once; 0: all")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=4, help="steps that are not counted; the first compiles")
    parser.add_argument("--recompute", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--ways", default=WAYS, help="of torch.compile, in this order")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    batch = options.batch or {"124m": 32, "llama3_1b": 8}.get(options.shape, 4)
    faults, speeds = [], {}
    for way in options.ways.split(","):
        kinds = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
        for backend in [max(speeds, key=speeds.get)] if speeds else kinds:
            try:
                torch._dynamo.reset()
                gc.collect()  # a model and its compiled methods refer to each other
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                line = measure(options, batch, way, backend)
                print(json.dumps(line), flush=True)
                speeds[backend] = max(speeds.get(backend, 0.0), line["tokens_per_s"])
            except Exception as error:
                faults.append(f"{way}, {backend.name}: {type(error).__name__}: {str(error)[:200]}")
                print(f"gpu_peer: {faults[-1]}", flush=True)
    if not speeds:
        raise SystemExit("error: gpu_peer: " + "; ".join(faults))


if __name__ == "__main__":
    main()
