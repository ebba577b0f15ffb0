#!/usr/bin/env python3
"""Makes tests/golden/models: small models of the three families run by PyTorch and transformers in float64; and tests/golden/long_models: public
configurations of long context, made narrow, over more than 4096 tokens.

    python3 -m venv V && V/bin/pip install torch numpy safetensors transformers && V/bin/python tests/golden/make_models.py

The layout of each directory is what `reference_check` reads: config.json, model.safetensors (initial weights, HF names),
tokens.safetensors, step1_logits, step1_gradients, step10_model, trajectory.json. Shapes are odd on purpose. Long models have two steps, and
step1_logits holds the rows at "positions" alone.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM)

HERE = os.path.dirname(os.path.abspath(__file__))
OPT = {"type": "AdamW", "lr": 0.003, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "no_decay": "tensors with one dimension"}

CASES = {
    "gpt2_tanh_tied": (GPT2LMHeadModel, GPT2Config(vocab_size=53, n_positions=24, n_embd=24, n_layer=2, n_head=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                                  activation_function="gelu_new"), 3, 19),
    "gpt2_exact_untied": (GPT2LMHeadModel, GPT2Config(vocab_size=61, n_positions=17, n_embd=20, n_layer=3, n_head=2, n_inner=52, resid_pdrop=0, embd_pdrop=0,
                                                      attn_pdrop=0, activation_function="gelu", layer_norm_epsilon=1e-6, tie_word_embeddings=False), 4, 16),
    "neox_parallel": (GPTNeoXForCausalLM, GPTNeoXConfig(vocab_size=47, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
                                                       rotary_pct=0.25, max_position_embeddings=40, hidden_act="gelu_new", use_parallel_residual=True,
                                                       hidden_dropout=0.0, attention_dropout=0.0), 4, 33),
    "neox_serial_exact": (GPTNeoXForCausalLM, GPTNeoXConfig(vocab_size=59, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=80,
                                                           rotary_pct=0.5, rotary_emb_base=5000, max_position_embeddings=24, hidden_act="gelu",
                                                           use_parallel_residual=False, layer_norm_eps=1e-6, hidden_dropout=0.0, attention_dropout=0.0), 4, 13),
    "llama_gqa": (LlamaForCausalLM, LlamaConfig(vocab_size=67, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
                                               num_key_value_heads=2, head_dim=8, max_position_embeddings=32, rms_norm_eps=1e-5), 4, 21),
    "llama_tied_mha": (LlamaForCausalLM, LlamaConfig(vocab_size=71, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
                                                    num_key_value_heads=4, max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
                                                    rope_theta=500.0), 4, 29),
    # A large base turns most pairs so little that the gradient of the bias of k nearly cancels; in NeoX the head is tied.
    "neox_slow_rotary_tied": (GPTNeoXForCausalLM, GPTNeoXConfig(vocab_size=51, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                               intermediate_size=72, rotary_pct=1.0, rotary_emb_base=1000000, max_position_embeddings=32,
                                                               hidden_act="gelu", layer_norm_eps=1e-12, tie_word_embeddings=True, hidden_dropout=0.0,
                                                               attention_dropout=0.0), 4, 23),
    # Biases, one KV head, heads that are not hidden / heads wide, the older top-level rotary key, more tokens than max_position_embeddings.
    "llama_bias_mqa": (LlamaForCausalLM, LlamaConfig(vocab_size=57, hidden_size=20, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
                                                    num_key_value_heads=1, head_dim=6, max_position_embeddings=16, rms_norm_eps=1e-3,
                                                    attention_bias=True, mlp_bias=True, rope_theta=3000.0), 2, 27),
}
# Head size, rotary numbers, window, norm and head as in the config.json of Llama-3.2-1B and of Mistral-7B-v0.1; widths and depth are not.
LONG_CASES = {
    "llama3_2": (LlamaForCausalLM, LlamaConfig(vocab_size=43, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                              head_dim=64, max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True,
                                              rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                                                               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}), 1, 4610),
    "mistral": (MistralForCausalLM, MistralConfig(vocab_size=37, hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                                 head_dim=32, max_position_embeddings=32768, rms_norm_eps=1e-5, sliding_window=4096, tie_word_embeddings=False,
                                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), 1, 4610),
}
OLD_SPELLING = ("llama_bias_mqa",)
LARGE_WEIGHTS = ("neox_slow_rotary_tied", "llama_bias_mqa")  # 0.08 where the library starts with 0.02


def f32(tensors):
    return {k: v.detach().to(torch.float32).contiguous() for k, v in tensors.items()}


def named(model):
    return dict(model.named_parameters())  # a tied head appears once, under the embedding's name


def make(name, cls, config, batch, seq):
    torch.manual_seed(sum(map(ord, name)))
    long = name in LONG_CASES
    config._attn_implementation = "sdpa" if long else "eager"
    model = cls(config).float()
    with torch.no_grad():  # biases and norms away from 0 and 1, so that a mistake in them shows
        for key, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
            elif name in LARGE_WEIGHTS or long:  # of thousands of keys a few must count, or none does
                p.mul_(20.0 if long and ("q_proj" in key or "k_proj" in key) else 4.0)
    directory = os.path.join(HERE, "long_models" if long else "models", name)
    os.makedirs(directory, exist_ok=True)
    save_file(f32(named(model)), os.path.join(directory, "model.safetensors"))
    text = config.to_dict()
    if name in OLD_SPELLING:
        text["rope_theta"] = text.pop("rope_parameters")["rope_theta"]
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump({k: v for k, v in text.items() if v is None or isinstance(v, (int, float, str, bool, dict))}, f, indent=1, sort_keys=True)
    model = model.double()
    tokens = torch.randint(0, config.vocab_size, (2 if long else 10, batch, seq + 1), dtype=torch.int32)
    save_file({"tokens": tokens}, os.path.join(directory, "tokens.safetensors"))

    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.dim() > 1], "weight_decay": OPT["weight_decay"]},
              {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=OPT["lr"], betas=tuple(OPT["betas"]), eps=OPT["eps"])
    trajectory = []
    for step in range(len(tokens)):
        x, y = tokens[step, :, :-1].long(), tokens[step, :, 1:].long()
        logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
        if step == 0:
            kept = {"logits": logits.detach().float().contiguous()}
            if long:  # some in front, all where a window of 4096 begins to slide, and the last ones
                at = torch.cat([torch.arange(1, 4096, 256), torch.arange(4088, 4120), torch.arange(4120, seq, 48), torch.arange(seq - 8, seq)]).unique()
                kept = {"logits": kept["logits"][:, at].contiguous(), "positions": at.to(torch.int32)}
            save_file(kept, os.path.join(directory, "step1_logits.safetensors"))
            save_file(f32({k: p.grad for k, p in named(model).items()}), os.path.join(directory, "step1_gradients.safetensors"))
        coefficient = min(1.0, 1.0 / (norm.item() + 1e-6))
        for p in params:
            p.grad.mul_(coefficient)
        optimizer.step()
        trajectory.append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item()})
    save_file(f32(named(model)), os.path.join(directory, "step10_model.safetensors"))
    import transformers
    with open(os.path.join(directory, "trajectory.json"), "w") as f:
        json.dump({"optimizer": OPT, "clip": 1.0, "clip_rule": "coeff=min(1, clip/(norm+1e-6))", "lr_schedule": "constant, no warm-up",
                   "loss": "mean over all tokens of the batch", "batch": batch, "seq_length": seq,
                   "framework": f"torch {torch.__version__}, transformers {transformers.__version__}", "trajectory": trajectory}, f, indent=1)
    print(name, sum(p.numel() for p in params), trajectory[0]["loss"], trajectory[-1]["loss"])


if __name__ == "__main__":
    for case, (cls, config, batch, seq) in {**CASES, **LONG_CASES}.items():
        if len(sys.argv) < 2 or case in sys.argv[1:]:
            make(case, cls, config, batch, seq)
