#!/usr/bin/env python3
"""What compression costs in loss and buys in speed: the measurements behind docs/results/compression.md.

    scripts/compression_tables.py TABLE --out DIR [options]
  presets   every preset x the layouts it applies to, a tiny model, 300 steps of real text: loss beside the uncompressed run, bytes per site
  loss      evaluation loss after equal tokens, one layout per preset, 3 seeds for the systems with a target
  loss_3m   the same of 3.2 M parameters after 4.1 M tokens in 1,000 steps, two replicas, 10 seeds for `thinwire`, 5 for the systems with a target; text: the fortunes and Perl's manual
  loss_10m  one pair of 10.8 M parameters after 2.0 M tokens, as often as there is time for
  speed     tokens/s in the emulated cluster (needs root): rates x layouts x {none, bf16_wire, thinwire}, every system's preset at 100 Mbit/s
  rivals    two replicas at 100 Mbit/s in turn: thinwire, the published systems that a user would take instead, and PyTorch DDP's hooks (needs root, and torch)
  hook_loss the same hooks' loss after 1,000 steps, three seeds (needs root, and torch)
  paired    thinwire at micro batch 8 and the same work without communication, stopped and continued in turn (needs root)
  adapt     thinwire with compression.adapt, once settled, and each fixed way, stopped and continued in turn (needs root)
  ladder    Optimus-CC's ladder at 4 stages and a vocabulary of 16k: bytes and exposed time
  rates     evaluation loss of thinwire at other rates, paired by seed with the uncompressed run: two replicas, gpt2_tiny
  rates_8   some of them between eight replicas
  sensitivity  what coarse gradients of one class of tensors cost alone, paired by seed with the uncompressed run: two replicas, gpt2_tiny, 100 steps
  curve     evaluation loss over the clock: two replicas at 100 Mbit/s and 1 Gbit/s, as many steps as each wire allows in the same time
  page      writes docs/results/compression.md, rates.md and rivals.md from the cells beside it, and from those of DIR over them

Every cell prints its command. Results go to DIR/results.jsonl, line by line; a cell that is in there is not run again (one that failed is).
  --only TEXT ...  cells whose key contains one of them ($: its end)
  --list           print the keys and stop
  --seconds S      speed: time of a cell; paired: of a turn   --rounds N     speed: so often, in turn; tables take medians
  --pairs N        paired, adapt: turns of each (24)
  --python PYTHON  rivals: one that has torch                 --peer FILE    rivals: trains with a DDP hook (default ../shared/peers/pytorch_ddp.py)
  --build DIR      default build                              --text FILE    instead of Debian's fortunes (the quickstart's text)
  --page FILE      default docs/results/compression.md        --zero STAGE   of data-parallel layouts where the preset has no placement (0)
Run it on an otherwise idle machine. Exit code 1: a cell failed.
"""
import json
import os
import sys

sys.dont_write_bytecode = True
import compression_adapt
import compression_page
from compression_adapt import LAYOUTS, RATES
from compare_pytorch import ddp_peer
from compression_cells import (ACCUMULATION, Store, agrees, decided_at, final_loss, fortunes, fortunes_and_manual, layout_keys, measure, paired_with_alone, predicted, presets, shown, summary,
                               text, train)
from measured import ROOT, CellError, Parser, emulated, ends, need

PRESET_LAYOUTS = ("1x2x1", "2x1x1", "1x1x2", "2x2x1")
TINY = ["--config", "configs/gpt2_tiny.json", "hidden_size=128", "num_attention_heads=4", "train_batch_size=16", "train_micro_batch_size_per_gpu=4", "train_iters=300",
        "optimizer.params.lr=3e-3", "min_lr=3e-4", "eval_interval=0", "threads_per_rank=1", "log_interval=1000"]

LOSS_ITERS = 500
THREE_SEEDS = (1234, 1235, 1236)
SEEDED = ("none", "bf16_wire", "thinwire", "thinwire@1", "mzhybrid", "zhybrid", "sdp4bit", "loco", "optimus_cc")
# The layout that a system is made for, as far as two cores carry it: hybrids and Optimus-CC need stages and replicas, the others replicas.
LOSS_LAYOUTS = {"1x2x1": ("none", "bf16_wire", "thinwire", "thinwire@1", "sdp4bit", "loco", "zeropp", "zero_topo", "tagc", "one_bit_adam", "powersgd"),
                "2x2x1": ("none", "bf16_wire", "thinwire", "mzhybrid", "zhybrid", "optimus_cc", "optimus_cc_cb_no_lep", "optimus_cc_cb", "optimus_cc_emb",
                          "naive_mpc", "naive_zfp", "naive_zfp:4", "naive_zfp:3")}
# Where 5 seeds are asked for, and where 3 are; the first seed tells which rank of PowerSGD keeps the loss.
LONG_ITERS, LONG_SEEDS = 1000, range(1, 11)
LONG_SEEDED = {"none@1": 10, "bf16_wire@1": 5, "thinwire@1": 10, "sdp4bit": 5, "powersgd_32/rank=64/sides=2": 5, "powersgd_32/sides=2": 3, "powersgd_32/rank=4/sides=2": 3, "powersgd_32": 1, "powersgd_16": 1, "powersgd": 1, "one_bit_adam_20": 1, "one_bit_adam/warmup_steps=200": 1, "one_bit_adam/warmup_steps=200/block=256/sum.block=256": 1, "loco_bf16_weights": 3,
               "zeropp": 3, "zero_topo": 3, "tagc": 3}
# The same of 10.8 M parameters.
WIDER = ["num_layers=6", "hidden_size=384", "num_attention_heads=6", "optimizer.params.lr=1e-3", "min_lr=1e-4"]
ZFP_SITES = ("pp.forward", "pp.backward", "dp.gradient", "zero.parameter", "embedding")

EVERYWHERE = ("none", "bf16_wire", "thinwire")
# At 100 Mbit/s and micro batch 1, beside none, bf16_wire and thinwire on the same layout.
MADE_FOR = {"1x2x1": ("none@1", "bf16_wire@1", "thinwire@1", "sdp4bit", "loco", "zeropp", "zero_topo", "tagc", "one_bit_adam", "powersgd"),
            "1x4x1": ("none@1", "bf16_wire@1", "thinwire@1"),
            "2x2x1": ("mzhybrid", "zhybrid", "naive_mpc", "naive_zfp", "optimus_cc", "optimus_cc_cb")}
# Warm-up is a share of a run; here the run is 60 steps and its uncompressed part is not what is measured.
WARMED_UP = ("one_bit_adam", "powersgd")
NO_WARM_UP = ["compression.dp.gradient.warmup_steps=2"]
# thinwire's ramp of 4 bits for a tenth of the run and 3 behind it, as a run of 1,000 steps has it on average.
MEAN_RATE = ["compression.dp.gradient.rate=3.1"]
# In turn at 100 Mbit/s, micro batch 1, two replicas; seconds of each. Hooks of PyTorch DDP train the same model; steps that are timed.
RIVALS = {"none@1": 32, "bf16_wire@1": 21, "thinwire@1": 12, "sdp4bit": 14, "powersgd_32/rank=64/sides=2": 14, "powersgd_32/sides=2": 12, "one_bit_adam_20": 12, "loco_bf16_weights": 20}
HOOKS, HOOK_STEPS = {"none": 5, "bf16": 8, "psgd4_bf16": 16, "psgd32_bf16": 12, "psgd64_bf16": 10}, 1000
# The ZeRO stage that a system is made for, where its preset has no placement of its own; the others run with --zero. NAME@1 asks for
# stage 1, NAME:R for ZFP at rate R.
MADE_FOR_ZERO = {"loco": 1, "mzhybrid": 1, "zhybrid": 1, "powersgd": 0, "optimus_cc": 0, "optimus_cc_cb": 0, "optimus_cc_cb_no_lep": 0,
                 "optimus_cc_cb_fe": 0, "optimus_cc_cb_fe_sc": 0, "optimus_cc_emb": 0, "tagc": 3}
SPEED_ITERS = 60
# Ranks, link: at micro batch 8.
PAIRED = ((2, "100mbit"), (2, "1gbit"), (4, "100mbit"))
# Ours tries three ways in turn before it settles, in 123 steps at most; what is measured is what it settles on.
OUR_ITERS = 150
# What is said of a variant, and its keys. Places of a ramp count updates: the run of 100 steps is the beginning of the run of 1,000.
GRADIENT, WEIGHT = "compression.dp.gradient.rate", "compression.zero.parameter.rate"
RATES_TRIED = {
    "none": ("uncompressed", ["compression.preset=none"]),
    "before": ("g 2.5, w 2.25", [f"{GRADIENT}=2.5", f"{WEIGHT}=2.25"]),
    "g3": ("g 3, w 2.25", [f"{GRADIENT}=3", f"{WEIGHT}=2.25"]),
    "flat": ("g 3, w 2.2", [f"{GRADIENT}=3", f"{WEIGHT}=2.2"]),
    "g3.25 w2": ("g 3.25, w 2", [f"{GRADIENT}=3.25", f"{WEIGHT}=2"]),
    "g3.2 w2": ("g 3.2, w 2", [f"{GRADIENT}=3.2", f"{WEIGHT}=2"]),
    "ramp w2": ("g 5 for 100 steps, then 3; w 2", [f"{GRADIENT}=[[0,5],[100,3]]", f"{WEIGHT}=2"]),
    "ramp": ("g 4 for 100 steps, then 3; w 2.1", [f"{GRADIENT}=[[0,4],[100,3]]", f"{WEIGHT}=2.1"]),
    "late": ("g 2.75 for 400 steps, then 3.4; w 2.1", [f"{GRADIENT}=[[0,2.75],[400,3.4]]", f"{WEIGHT}=2.1"]),
    "g4": ("g 4, w 2.25", [f"{GRADIENT}=4", f"{WEIGHT}=2.25"]),
    "ramp4": ("g 5 for 100 steps, then 4; w 2.1", [f"{GRADIENT}=[[0,5],[100,4]]", "compression.dp.gradient.light=false", f"{WEIGHT}=2.1"]),
    "g5": ("g 5, w 2.25", [f"{GRADIENT}=5", "compression.dp.gradient.light=false", f"{WEIGHT}=2.25"]),
    "g4.2 w1": ("g 4.2, w 1", [f"{GRADIENT}=4.2", "compression.dp.gradient.light=false", f"{WEIGHT}=1"]),
    "g3.95 w1.25": ("g 3.95, w 1.25", [f"{GRADIENT}=3.95", f"{WEIGHT}=1.25"]),
    "g3.7 w1.5": ("g 3.7, w 1.5", [f"{GRADIENT}=3.7", f"{WEIGHT}=1.5"]),
}
# What is tried is chosen by the first two; those behind them judge it.
RATE_STEPS, RATE_SEEDS = (100, 1000), range(1, 31)
# The same between eight replicas.
MANY, MANY_SEEDS, MANY_TRIED = 8, range(1, 21), ("none", "before", "flat", "ramp")
# One class of tensors at a time, so coarse that the loss shows it; everything else travels as it is.
COARSE = {"codec": "ecsq", "rate": 1, "block": 64, "residual": "error_feedback"}
CLASSES = {"embedding": ["embedding"], "attention": ["attention"], "mlp": ["mlp"], "norm": ["norm", "bias", "head"]}
SENSITIVITY_TRIED = {"none": ("uncompressed", []), **{
    name: (", ".join(classes), [f"compression.rules={json.dumps([{'site': 'dp.gradient', 'select': {'tensor_classes': classes}, **COARSE}])}"])
    for name, classes in CLASSES.items()}}
SENSITIVITY_STEPS, SENSITIVITY_SEEDS = (100,), range(1, 9)
# Steps between two evaluations, about as many seconds for each wire; learning rates are constant, so that a run's length changes nothing.
CURVE = {"100mbit": {"none": 5, "bf16_wire": 10, "thinwire": 60}, "1gbit": {"none": 45, "bf16_wire": 65, "thinwire": 75}}
CURVE_SECONDS, CURVE_ITERS = 260.0, 3000
LADDER = ("none two_step", "none", "optimus_cc_cb_no_lep", "optimus_cc_cb", "optimus_cc_cb_fe", "optimus_cc_cb_fe_sc", "optimus_cc_emb", "thinwire")


def parts(spec, zero):
    """NAME[:RATE][/KEY=VALUE...][@ZERO] -> name, rate or "", ZeRO stage. KEY: of the rule for dp.gradient."""
    spec, _, stage = spec.partition("@")
    spec = spec.partition("/")[0]
    name, _, rate = spec.partition(":")
    return name, rate, int(stage) if stage else MADE_FOR_ZERO.get(name, zero)


def gradient_keys(spec):
    return [f"compression.dp.gradient.{key}" for key in spec.partition("@")[0].split("/")[1:]]


class Tables:
    def __init__(self, o):
        self.o, self.store = o, Store(o.out, {"zero": o.zero, "set": o.keys, "text": o.text})
        self.run_dir = os.path.join(self.store.folder, "run")
        self.text_keys, self.facts = text(self.store.folder, o.build, o.text, source=fortunes_and_manual if o.table in ("loss_3m", "loss_10m") else fortunes)
        self.asked = []

    def cell(self, table, key, words, what):
        """Measures a cell that is wanted, unless it is known: what() returns the fields of its record beside `words`."""
        if self.o.only and not any(t in key + "$" for t in self.o.only):
            return
        self.asked.append(key)
        if not self.o.list:
            measure(self.store, table, key, words, what)

    def learn(self, table, key, preset, layout, seed, keys, skip):
        """One run on this machine as it is, to the end, with an evaluation of the whole held-out part."""
        name, rate, zero = parts(preset, self.o.zero)
        more, ranks, _ = layout_keys(layout, zero)
        # Compared over the ranks at the end of the run; a difference ends it with 70.
        iters = next(k.partition("=")[2] for k in keys if k.startswith("train_iters="))
        keys = [*keys, f"check_weight_hash_across_dp_replicas_interval={iters}"]
        compression = [f"compression.preset={name}", "compression.adapt=false", *(f"compression.{s}.rate={rate}" for s in ZFP_SITES if rate),
                       *gradient_keys(preset)]
        # Evaluation of the whole held-out part, once.
        batch, length = {"loss": (32, 128), "loss_3m": (16, 256), "loss_10m": (16, 256)}.get(table, (16, 128))
        whole = (self.facts["valid_bytes"] - 1) // length // batch
        keys = [*keys, f"eval_iters={whole}", *more, *compression, f"seed={seed}", *self.text_keys, *self.o.keys]

        def what():
            sites = predicted(self.o.build, keys, ranks)
            if name not in ("none", "identity") and not any(s["codec"] for s in sites.values()):
                return {"applies": False, "said": "compresses nothing on this layout"}
            lines, _, seconds, command = train(["mpirun", "-n", str(ranks)], self.o.build, keys, self.run_dir, 1200)
            got = summary(lines, min(skip, max(x["step"] for x in lines if "loss" in x) // 2))
            loss = final_loss(lines)
            bytes_ = {site: agrees(sites[site], got["sites"][site]) for site in sites if site in got["sites"]}
            said = f"loss {loss:.4f}, {got['tokens_per_s']:.0f} tok/s, {sum(s['wire_bytes_total'] for s in got['sites'].values()) / 1e6:.3f} MB per step"
            return {"applies": True, "eval_loss": loss, **got, "predicted": sites, "agrees": bytes_, "hashes": "equal", "run_seconds": seconds, "said": said,
                    "bigram": self.facts["bigram"], "command": shown(command, self.store.folder, self.o.build)}
        self.cell(table, key, {"preset": preset, "layout": layout, "seed": seed, "zero": zero}, what)

    def presets(self):
        for layout in PRESET_LAYOUTS:
            for preset in [*presets(), *(["thinwire@1"] if layout in ("1x2x1", "2x2x1") else [])]:
                self.learn("presets", f"presets {layout} {preset}", preset, layout, 1234, TINY, 150)

    def loss(self):
        for seed in THREE_SEEDS:
            for layout, names in LOSS_LAYOUTS.items():
                for preset in names:
                    if seed != THREE_SEEDS[0] and preset not in SEEDED:
                        continue
                    # Optimus-CC compresses the epilogue of a pipeline that has many micro-batches in a step: 8 here, of which the epilogue is one.
                    micro = 2 if preset.startswith("optimus") else 8 if layout == "2x2x1" else 16
                    keys = ["--config", "configs/sweeps/loss_1m.json", f"train_micro_batch_size_per_gpu={micro}", f"train_iters={LOSS_ITERS}"]
                    self.learn("loss", f"loss {layout} {preset} seed {seed}", preset, layout, seed, keys, LOSS_ITERS // 2)

    def loss_3m(self):
        keys = ["--config", "configs/sweeps/loss_3m.json", "train_micro_batch_size_per_gpu=8", f"train_iters={LONG_ITERS}"]
        for seed in LONG_SEEDS:
            for preset, seeds in LONG_SEEDED.items():
                if seed <= seeds:
                    self.learn("loss_3m", f"loss_3m 1x2x1 {preset} seed {seed}", preset, "1x2x1", seed, keys, LONG_ITERS // 2)

    def loss_10m(self):
        keys = ["--config", "configs/sweeps/loss_3m.json", "train_micro_batch_size_per_gpu=8", f"train_iters={LONG_ITERS // 2}", *WIDER]
        for seed in THREE_SEEDS:
            for preset in ("none@1", "thinwire@1"):
                self.learn("loss_10m", f"loss_10m 1x2x1 {preset} seed {seed}", preset, "1x2x1", seed, keys, LONG_ITERS // 4)

    def clock(self, lab, table, key, preset, layout, rate, micro, keys=(), seconds=None):
        """One run in the emulated cluster, as many steps as its time allows. With evaluations it keeps its losses."""
        name, _, zero = parts(preset, self.o.zero)
        more, ranks, data = layout_keys(layout, zero)
        stages = int(layout[0])
        accumulation = ACCUMULATION[stages]
        slow = rate == "100mbit"
        # Time for a dozen steps at least, of a core without AVX-512: a micro-batch of 1 takes it 0.35 s.
        compute_s = 0.35 * micro * accumulation * ranks / min(ranks, os.cpu_count() or 1) / stages
        wire_s = {"none": 5.0, "bf16_wire": 2.5}.get(name, 1.0) * (1.5 if layout == "1x4x1" else 1.0) if slow else 0.1
        steps = OUR_ITERS if name == "thinwire" else 7 if name in ("none", "bf16_wire") and slow else 15
        seconds = self.o.seconds or seconds or min(450.0 if micro == 8 else 150.0, 3.0 + (max(compute_s, wire_s) + 0.2 * min(compute_s, wire_s)) * steps)
        all_keys = ["--config", "configs/sweeps/speed_10m.json", *more, f"train_micro_batch_size_per_gpu={micro}", f"gradient_accumulation_steps={accumulation}",
                    f"train_iters={OUR_ITERS if name == 'thinwire' else SPEED_ITERS}", f"compression.preset={name}", *(["compression.adapt=true"] if name == "thinwire" else []), *(NO_WARM_UP if name.startswith(WARMED_UP) else []), *gradient_keys(preset), *keys,
                    f"exit_duration_in_mins={seconds / 60:.3f}", *self.text_keys, *self.o.keys]

        def what():
            lab.be(ranks, rate)
            before = lab.sent()
            lines, log, took, command = train(lab.run(ranks), self.o.build, all_keys, self.run_dir, 3 * seconds + 60, may_stop=True)
            sent = lab.sent() - before
            settled, line = decided_at(log)
            if name == "thinwire" and not line and "compression.adapt=false" not in all_keys:
                raise CellError("the run ended before it had settled how to compress: more time is needed")
            got = summary(lines, max(3, settled))
            steps = sum(1 for x in lines if "loss" in x)
            if any("eval_loss" in x for x in lines):
                got.update({k: [[x["step"], round(x["wall_s"], 2), round(x[name], 5)] for x in lines if name in x] for k, name in (("losses", "loss"), ("evaluations", "eval_loss"))})
            said = f"{got['step_ms']:.0f} ms, {got['tokens_per_s']:.0f} tok/s, exposed {got['exposed_ms']:.0f} ms, {got['steps']} of {steps} steps" + (f"; {line}" if line else "")
            return {**got, "settled": line, "eth0_mb_per_update": sent / 1e6 / steps, "run_seconds": took, "said": said,
                    "command": f"scripts/lab up --hosts {ranks} --rate {rate}; " + shown(command, self.store.folder, self.o.build)}
        words = {"preset": preset, "layout": layout, "rate": rate, "micro": micro, "accumulation": accumulation, "data": data, "zero": zero if data > 1 else 0}
        self.cell(table, key, words, what)

    def speed(self):
        with emulated() as lab:
            for round_ in range(1, self.o.rounds + 1):
                mark = f" round {round_}" if round_ > 1 else ""
                for layout in LAYOUTS:
                    for micro in (1, 8) if layout in ("1x2x1", "1x4x1") else (1,):
                        if layout == "1x4x1" and micro == 8:  # two ranks a core: only what has a target
                            self.clock(lab, "speed", f"speed {layout} mb {micro} 100mbit thinwire{mark}", "thinwire", layout, "100mbit", micro)
                            continue
                        for rate in RATES:
                            extra = MADE_FOR.get(layout, ()) if rate == "100mbit" and micro == 1 else ()
                            for preset in (*EVERYWHERE, *extra):
                                self.clock(lab, "speed", f"speed {layout} mb {micro} {rate} {preset}{mark}", preset, layout, rate, micro)

    def hook(self, lab, table, key, mode, rate, steps, *words, **more):
        """One run of PyTorch DDP with a communication hook."""
        def what():
            o = self.o
            lab.be(2, rate)
            words_ = ("--warm", "4", "--steps", str(steps), "--B", "1", "--data", os.path.join(self.store.folder, "text", "train.txt"), *words)
            got, command = ddp_peer(lab.run(2), o.python, o.peer, self.store.folder, mode, *words_)
            line = shown(command, self.store.folder, o.build).replace(o.python, "PYTHON").replace(o.peer, "pytorch_ddp.py")
            return {"step_ms": got["med_ms"], "step_ms_low": got["min_ms"], "step_ms_high": got["max_ms"], "tokens_per_s": got["tok_s"], "steps": steps, "tokens_per_step": 512,
                    "eval_loss": got["eval_loss"], "last_losses": got["loss_last20"], "mb_per_rank": got["MB_sent_per_rank"],
                    "said": f"{got['med_ms']:.0f} ms, loss {got['eval_loss'] or got['loss_last20']:.4f}", "command": f"scripts/lab up --hosts 2 --rate {rate}; " + line}
        self.cell(table, key, {"preset": f"DDP {mode}", "layout": "1x2x1", "rate": rate, "micro": 1, **more}, what)

    def rivals(self):
        with emulated() as lab:
            for round_ in range(1, self.o.rounds + 1):
                for preset, seconds in RIVALS.items():
                    self.clock(lab, "rivals", f"rivals {preset} round {round_}", preset, "1x2x1", "100mbit", 1, ["compression.adapt=false", *(MEAN_RATE if preset.startswith("thinwire") else [])], seconds)
                for mode, steps in HOOKS.items():
                    self.hook(lab, "rivals", f"rivals DDP {mode} round {round_}", mode, "100mbit", steps)

    def hook_loss(self):
        with emulated() as lab:
            for seed in THREE_SEEDS:
                for mode in HOOKS:
                    self.hook(lab, "hook_loss", f"hook_loss DDP {mode} {HOOK_STEPS} steps seed {seed}", mode, "none", HOOK_STEPS, "--eval", "--seed", str(seed), seed=seed)

    def paired(self):
        with emulated() as lab:
            for ranks, rate in PAIRED:
                self.cell("paired", f"paired 1x{ranks}x1 mb 8 {rate}", {"layout": f"1x{ranks}x1", "rate": rate, "micro": 8, "zero": self.o.zero},
                          lambda r=ranks, link=rate: paired_with_alone(lab, self.o.build, self.store.folder, r, 8, link, self.o.zero, self.o.pairs,
                                                                       self.o.seconds or 5.0 * max(1, r // 2), self.text_keys))

    def adapt(self):
        with emulated() as lab:
            for layout in LAYOUTS:
                for rate in RATES:
                    self.cell("adapt", f"adapt {layout} mb 1 {rate}", {"layout": layout, "rate": rate, "micro": 1},
                              lambda layout=layout, rate=rate: compression_adapt.in_turn(lab, self.o.build, self.store.folder, layout, rate, self.o.pairs, [*self.text_keys, *self.o.keys]))

    def ladder(self):
        keys = ["num_layers=4", "vocab_size=16384", "tokenizer=byte"]
        with emulated() as lab:
            for name in LADDER:
                preset, _, embedding = name.partition(" ")
                more = [f"embedding_sync={embedding}"] if embedding else []
                self.clock(lab, "ladder", f"ladder 4x2x1 100mbit {name}", preset, "4x2x1", "100mbit", 1, [*keys, *more])

    def of_seeds(self, table, tried, all_steps, seeds, preset, replicas=2):
        """Every variant with every seed: replicas of a small model, evaluated at the end."""
        for steps in all_steps:
            for seed in seeds:
                for variant, (words, more) in tried.items():
                    keys = ["--config", "configs/gpt2_tiny.json", "zero_optimization.stage=1", f"train_iters={steps}", f"eval_interval={steps}", "eval_iters=31", "save_interval=0",
                            "threads_per_rank=1", "log_interval=1000", f"train_micro_batch_size_per_gpu={min(4, 16 // replicas)}", f"seed={seed}", *([] if variant == "none" else preset), *more, *self.o.keys]

                    def what(keys=keys):
                        lines, _, seconds, command = train(["mpirun", "-n", str(replicas)], self.o.build, keys, self.run_dir, 3600)
                        loss = final_loss(lines)
                        return {"eval_loss": loss, "wire_bytes_total": {site: s["wire_bytes_total"] for site, s in summary(lines, 0)["sites"].items()}, "run_seconds": seconds,
                                "said": f"loss {loss:.4f}",
                                "command": shown(command, self.store.folder, self.o.build)}
                    self.cell(table, f"{table} {steps} {variant} seed {seed}", {"variant": variant, "words": words, "steps": steps, "seed": seed}, what)

    def rates(self):
        self.of_seeds("rates", RATES_TRIED, RATE_STEPS, RATE_SEEDS, ["compression.preset=thinwire"])

    def rates_8(self):
        self.of_seeds("rates_8", {name: RATES_TRIED[name] for name in MANY_TRIED}, RATE_STEPS[1:], MANY_SEEDS, ["compression.preset=thinwire"], MANY)

    def sensitivity(self):
        self.of_seeds("sensitivity", SENSITIVITY_TRIED, SENSITIVITY_STEPS, SENSITIVITY_SEEDS, [])

    def curve(self):
        with emulated() as lab:
            for rate, intervals in CURVE.items():
                for preset, interval in intervals.items():
                    keys = [f"train_iters={CURVE_ITERS}", f"eval_interval={interval}", "eval_iters=32", "compression.adapt=false"]
                    self.clock(lab, "curve", f"curve 1x2x1 {rate} {preset}", preset + "@1", "1x2x1", rate, 1, keys, CURVE_SECONDS)


def main():
    options = Parser(__doc__)
    options.add_argument("table", choices=("presets", "loss", "loss_3m", "loss_10m", "speed", "rivals", "hook_loss", "paired", "adapt", "ladder", "rates", "rates_8", "sensitivity", "curve", "page"))
    options.add_argument("--out")
    options.add_argument("--only", nargs="+", default=[])
    options.add_argument("--list", action="store_true")
    options.add_argument("--seconds", type=float)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--pairs", type=int, default=24)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--text")
    options.add_argument("--zero", type=int, default=0)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--peer", default=os.path.join(ROOT, "..", "shared", "peers", "pytorch_ddp.py"))
    options.add_argument("--page", default=os.path.join(ROOT, "docs", "results", "compression.md"))
    options.add_argument("--set", dest="keys", nargs="+", default=[], metavar="key=value", help="more configuration keys, for trials")
    o = options.parse_args()
    o.build, o.peer = os.path.abspath(o.build), os.path.abspath(o.peer)
    if o.table == "page":
        return compression_page.write(o.page, [Store(o.out).path] if o.out else [])
    if not o.out:
        raise CellError("--out DIR is missing: where results go")
    need("train", "tokenize", build=o.build)
    tables = Tables(o)
    getattr(tables, o.table)()
    if o.list:
        print("\n".join(f"{'done  ' if tables.store.has(k) else '      '}{k}" for k in tables.asked))
        return 0
    bad = [k for k in tables.asked if not tables.store.has(k)]
    print(f"{len(tables.asked)} cells, {len(bad)} failed" + "".join(f"\n  {k}: {tables.store.records[k]['error']}" for k in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    ends(main)
