#!/usr/bin/env python3
"""Data parallel training beside PyTorch DDP and its communication hooks over gloo, on two emulated hosts: same model, batch and compute dtype.

    scripts/compare_hooks.py --out DIR [--venv DIR] [--peer pytorch_ddp.py] [--rounds N] [--seconds S] [--loss [--updates N]] [--only TEXT ...]

Speed: none, bf16_wire and thinwire beside DDP with hooks none, bf16, psgd4, psgd32, psgd4_bf16, in turn, one thread and core per rank, fp32 compute,
the model of configs/sweeps/speed_10m.json: micro batches 1 and 8, each at 100 Mbit/s and 1 Gbit/s. --loss instead: evaluation
loss after equal tokens (micro batch 1, unshaped, the peer's text), 3 seeds. --venv (or THINWIRE_VENV): a virtual environment with torch and
numpy. Results are appended to DIR/results.jsonl, where scripts/compression_tables.py page reads them; a cell that is in there is not run again.
PowerSGD hooks run with one bucket: with several they abort now and then. Needs root (scripts/lab).
"""
import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from compression_cells import ROOT, CellError, Store, decided_at, emulated, final_loss, launch, layout_keys, measure, shown, summary, text, train

HOOKS = ("none", "bf16", "psgd32", "psgd4", "psgd4_bf16")
OURS = ("none", "bf16_wire", "thinwire")
SETTINGS = ((1, "100mbit"), (1, "1gbit"), (8, "100mbit"), (8, "1gbit"))
SEEDS = (1337, 1338, 1339)
UPDATES = 150  # of ours: up to 123 of them it tries how to code


class Compare:
    def __init__(self, o):
        self.o, self.store = o, Store(o.out)
        self.run_dir = os.path.join(self.store.folder, "run")
        self.data = os.path.realpath(os.path.join(os.path.dirname(o.peer), "..", "data", "tinyshakespeare.txt"))
        self.words, self.asked = {}, []

    def theirs(self, lab, table, key, mode, micro, rate, steps, more=(), limit=300):
        if not self.wanted(key):
            return

        def what():
            lab.be(2, rate)
            out = os.path.join(self.store.folder, "theirs.jsonl")
            whole = [os.path.join(ROOT, "scripts", "peer_whole_eval.py")] if "--eval" in more else []
            peer = [os.path.join(self.o.venv, "bin", "python"), *whole, self.o.peer, "--modes", mode, "--warm", "4", "--steps", str(steps), "--B", str(micro), "--one_bucket", *more]
            words = [*lab.run(2), "env", "OMP_NUM_THREADS=1", "MASTER_ADDR=h0", "MASTER_PORT=29500", "sh", "-c", 'RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE exec "$0" "$@"', *peer, "--out", out]
            if os.path.exists(out):
                os.remove(out)
            code, said = launch(words, limit)
            if code != 0:
                raise CellError(f"exit {code}: {said}")
            with open(out, encoding="utf-8") as f:
                d = json.loads(f.readlines()[-1])
            loss = d["eval_loss"]
            return {"step_ms": d["med_ms"], "tokens_per_s": d["tok_s"], "mb_per_rank": d["MB_sent_per_rank"], "eval_loss": loss, "drift": d["rank_drift"], "steps": steps,
                    "said": f"{d['med_ms']:.0f} ms, {d['tok_s']:.0f} tok/s, {d['MB_sent_per_rank']:.2f} MB" + (f", loss {loss:.4f}" if loss is not None else ""),
                    "command": shown(words, self.store.folder, self.o.build).replace(self.o.venv, "VENV").replace(self.o.peer, "pytorch_ddp.py").replace(self.data, "TEXT")}
        measure(self.store, table, key, {"who": "ddp", "mode": mode, "rate": rate, "micro": micro, **self.words}, what)

    def ours(self, lab, table, key, preset, micro, rate, keys, seconds, skip=4):
        if not self.wanted(key):
            return
        layout, _, _ = layout_keys("1x2x1", self.o.zero)
        all_keys = ["--config", "configs/sweeps/speed_10m.json", *layout, f"train_micro_batch_size_per_gpu={micro}", "gradient_accumulation_steps=1",
                    f"compression.preset={preset}", *([f"exit_duration_in_mins={seconds / 60:.3f}"] if seconds else []), *keys]

        def what():
            lab.be(2, rate)
            before = lab.sent()
            lines, log, _, command = train(lab.run(2), self.o.build, all_keys, self.run_dir, 3 * (seconds or 100) + 60, may_stop=True)
            sent = lab.sent() - before
            settled, line = decided_at(log)
            if preset == "thinwire" and not line and "compression.adapt=false" not in all_keys:
                raise CellError("the run ended before it had settled how to code: more time is needed")
            got = summary(lines, max(skip, settled))
            loss = final_loss(lines) if not seconds else None
            updates = sum(1 for x in lines if "loss" in x)
            return {**got, "mb_per_rank": sent / 2e6 / updates, "settled": line, "eval_loss": loss,
                    "said": f"{got['step_ms']:.0f} ms, {got['tokens_per_s']:.0f} tok/s, {sent / 2e6 / updates:.2f} MB" + (f", loss {loss:.4f}" if loss is not None else "") + (f"; {line}" if line else ""),
                    "command": shown(command, self.store.folder, self.o.build)}
        measure(self.store, table, key, {"who": "ours", "mode": preset, "rate": rate, "micro": micro, **self.words}, what)

    def wanted(self, key):
        chosen = not self.o.only or any(t in key for t in self.o.only)
        if chosen:
            self.asked.append(key)
        return chosen and not self.o.list

    def speed(self, lab):
        text_keys, _ = text(self.store.folder, self.o.build, self.o.text)
        for round_ in range(1, self.o.rounds + 1):
            self.words = {"round": round_}
            for micro, rate in SETTINGS:
                step_s = (0.9 if micro == 8 else 0.35) + (3.6 if rate == "100mbit" else 0.3)  # of DDP without a hook
                for i in range(len(HOOKS)):
                    for who, name in [*(("ours", n) for n in OURS[i:i + 1]), ("ddp", HOOKS[i])]:
                        key = f"hooks mb {micro} {rate} {who} {name} round {round_}"
                        slow = name == "none" and rate == "100mbit"
                        if who == "ours":
                            # Ours tries three ways in turn before it settles, on a core without AVX-512 at 0.35 s a sequence.
                            seconds = 3 + 0.42 * micro * UPDATES if name == "thinwire" else self.o.seconds * (2 if slow else 1) + micro * 2
                            self.ours(lab, "hooks", key, name, micro, rate, [f"train_iters={UPDATES if name == 'thinwire' else 60}", *text_keys], seconds)
                        else:
                            each = step_s / (1 if slow or rate != "100mbit" else 2 if name == "bf16" else 4)
                            self.theirs(lab, "hooks", key, name, micro, rate, max(5, min(40, int(self.o.seconds / each))))

    def loss(self, lab):
        """The peer's text, model, optimizer and number of updates; both evaluate the last tenth of the text, all of it."""
        folder = os.path.join(self.store.folder, "peer_text")
        text_keys, facts = text(folder, self.o.build, self.data, 90)
        for seed in SEEDS:
            self.words = {"seed": seed}
            for preset in OURS:
                whole = (facts["valid_bytes"] - 1) // 256 // 2
                keys = [f"train_iters={self.o.updates}", f"seed={seed}", f"eval_iters={whole}", "compression.adapt=false", *text_keys]
                self.ours(lab, "hooks_loss", f"hooks_loss ours {preset} seed {seed}", preset, 1, "none", keys, None)
            for mode in ("none", "bf16", "psgd32", "psgd4"):
                self.theirs(lab, "hooks_loss", f"hooks_loss ddp {mode} seed {seed}", mode, 1, "none", self.o.updates - 4, ["--eval", "--seed", str(seed), "--data", self.data], 400)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", required=True)
    options.add_argument("--venv", default=os.environ.get("THINWIRE_VENV", os.path.join(ROOT, ".venv")))
    options.add_argument("--peer", default=os.path.join(ROOT, "..", "shared", "peers", "pytorch_ddp.py"))
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--seconds", type=float, default=12)
    options.add_argument("--zero", type=int, default=0)
    options.add_argument("--updates", type=int, default=200)
    options.add_argument("--loss", action="store_true")
    options.add_argument("--list", action="store_true")
    options.add_argument("--text")
    options.add_argument("--only", nargs="+", default=[])
    o = options.parse_args()
    o.build, o.venv, o.peer = os.path.abspath(o.build), os.path.abspath(o.venv), os.path.abspath(o.peer)
    try:
        for path, mend in ((o.peer, "name the peer script with --peer"), (os.path.join(o.venv, "bin", "python"), "make a virtual environment with torch and numpy, and name it with --venv"),
                           (os.path.join(o.build, "train"), "cmake --build build first")):
            if not os.access(path, os.R_OK):
                raise CellError(f"{os.path.basename(path)} is missing: {mend}")
        c = Compare(o)
        with emulated() as lab:
            (c.loss if o.loss else c.speed)(lab)
        if o.list:
            print("\n".join(c.asked))
            return 0
        bad = [k for k in c.asked if not c.store.has(k)]
        print(f"{len(c.asked)} cells, {len(bad)} failed" + "".join(f"\n  {k}: {c.store.records[k]['error']}" for k in bad))
        return 1 if bad else 0
    except CellError as e:
        print(f"error: compare_hooks: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
