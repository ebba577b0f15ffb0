# docs/results/rivals.md: thinwire beside the systems that a user would take instead, in turn on a slow link, and what each costs in loss. From tables rivals,
# loss_3m, loss_10m and hook_loss of scripts/compression_tables.py.
import math
import os
import re
import statistics

import measured

LOSS_AT_MOST = 0.5  # percent above the uncompressed run of the same seeds
OURS, PLAIN = "thinwire@1", "none@1"
HOOK = "DDP "
# The algorithm of a hook in our engine: both factors, error feedback and warm start. Its long runs tell a loss that the hook's own short ones cannot.
SAME_IN_OURS = {"DDP psgd4_bf16": "powersgd_32/rank=4/sides=2", "DDP psgd32_bf16": "powersgd_32/sides=2", "DDP psgd64_bf16": "powersgd_32/rank=64/sides=2"}
RUN = 1000  # steps of a run; a warm-up is a share of them
NAMES = {"none@1": "none (fp32)", "bf16_wire@1": "`bf16_wire`", "thinwire@1": "`thinwire`"}


def warm_up(preset):
    """The share of a run that a preset sends uncompressed at first."""
    name, *keys = preset.partition("@")[0].split("/")
    own = [key.partition("=")[2] for key in keys if key.startswith("warmup_steps=")]
    if not own and not preset.startswith(HOOK) and name != "none":
        with open(os.path.join(measured.ROOT, "configs", "compression", name + ".json"), encoding="utf-8") as f:
            own = re.findall(r'"warmup_steps": ([\d.]+)', f.read())
    share = float(own[0]) if own else 0.0
    return share / RUN if share >= 1 else share


def gap(runs, base):
    """(mean, half of the 95 % t interval, seeds) of the loss above the base's, in percent, over seeds that both have; half is infinite for one seed. None: no seed."""
    gaps = [100 * (runs[seed]["eval_loss"] / base[seed]["eval_loss"] - 1) for seed in sorted(set(runs) & set(base))]
    return None if not gaps else (*measured.t_interval(gaps), len(gaps)) if len(gaps) > 1 else (gaps[0], math.inf, 1)


def gap_words(got):
    return "{:+.2f} ± {:.2f} ({})".format(*got) if got[2] > 1 else f"{got[0]:+.2f} (1)"


def equal(got):
    """The verdict of a loss; one seed has no interval, and none."""
    mean, half, seeds = got
    return measured.verdict(mean - half, mean + half, most=LOSS_AT_MOST) if seeds > 1 else "one seed"


def span(values, places):
    """The median of values and its interval; of one run there is none."""
    middle, low, high = measured.interval(values)
    return f"{middle:.{places}f} ({low:.{places}f}–{high:.{places}f})" if len(values) > 1 else f"{middle:.{places}f}, one run"


class Rivals:
    def __init__(self, found):
        self.rounds, self.losses, self.wider, self.records, self.megabytes = {}, {}, {}, [], {}
        longest = max((r["steps"] for r in found if r["table"] == "hook_loss"), default=0)  # cells hold shorter runs of an earlier day as well
        for r in found:
            if r["table"] == "rivals":
                self.rounds.setdefault(r["preset"], {})[int(r["key"].rpartition(" ")[2])] = r
            elif r["table"] == "loss_3m" or (r["table"] == "hook_loss" and r["steps"] == longest):
                self.losses.setdefault(r["preset"], {})[r["seed"]] = r
            elif r["table"] == "loss_10m":
                self.wider.setdefault(r["preset"], {})[r["seed"]] = r
            else:
                continue
            self.records.append(r)
        for preset, seeds in self.losses.items():
            sent = [sum(site["wire_bytes_total"] for site in r["sites"].values()) / 1e6 for r in seeds.values() if "sites" in r]
            if sent:
                self.megabytes[preset] = statistics.fmean(sent)

    def mean_ms(self, preset):
        """{round: ms of a step, in the mean over a run}."""
        share, plain = warm_up(preset), statistics.median(r["step_ms"] for r in self.rounds[PLAIN].values())
        return {n: r["step_ms"] * (1 - share) + share * plain for n, r in self.rounds[preset].items()}

    def faster(self, preset):
        """By round: how often a step of ours fits into one of theirs."""
        theirs, ours = self.mean_ms(preset), self.mean_ms(OURS)
        return [theirs[n] / ours[n] for n in sorted(set(theirs) & set(ours))]

    def loss(self, preset):
        base = HOOK + "none" if preset.startswith(HOOK) else PLAIN
        return None if preset == base or preset not in self.losses else gap(self.losses[preset], self.losses[base])

    def hook_loss(self, hook):
        """"met", "missed" or why not: of its own runs, else of the same algorithm in our engine; "" where neither was trained."""
        said = [equal(got) for got in (self.loss(hook), self.loss(SAME_IN_OURS.get(hook, ""))) if got is not None]
        return next((word for word in said if word in ("met", "missed")), said[0] if said else "")

    def row(self, preset):
        got = self.loss(preset)
        words = ["–", "–"] if got is None else [gap_words(got), equal(got)]
        speed = ["–"] * 3
        if preset in self.rounds:
            speed = [f"{statistics.median(r['step_ms'] for r in self.rounds[preset].values()):.0f}", span(list(self.mean_ms(preset).values()), 0),
                     "1" if preset == OURS else span(self.faster(preset), 2)]
        name = NAMES.get(preset) or (preset if preset.startswith(HOOK) else "`" + preset.replace("/", " ") + "`")
        return [name, *speed, f"{self.megabytes[preset]:.1f}" if preset in self.megabytes else "–", *words]

    def page(self):
        order = sorted({*self.rounds, *self.losses} - {PLAIN}, key=lambda p: (statistics.median(self.mean_ms(p).values()) if p in self.rounds else float("inf"), p))
        # Of hooks: those whose loss is not told to be worse.
        hooks = [p for p in self.rounds if p.startswith(HOOK) and self.hook_loss(p) != "missed"]
        best = min(hooks, key=lambda p: statistics.median(self.mean_ms(p).values()))
        said = []
        for who, least in (("`sdp4bit`", 1.4), (best, 1.2)):
            ratio = measured.interval(self.faster(who.strip("`")))
            verdict = measured.verdict(ratio[1], ratio[2], least=least)
            if who == best and verdict == "missed" and self.hook_loss(best) != "met":
                verdict = "cannot be told"  # whether its loss is equal is not known
            said.append(f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}) times as fast as {who}; wanted {least}: **{verdict}**")
        left_out = [f"{p} ({measured.interval(self.faster(p))[0]:.2f} times)" for p in self.rounds if p.startswith(HOOK) and p not in hooks]
        if left_out:
            said[1] += f". Left out, by what its algorithm loses in our engine: {', '.join(left_out)}; its own short runs cannot tell"
        machines = sorted({r["machine"] for r in self.records})
        dates = sorted({r["date"] for r in self.records})
        count = len(self.rounds[OURS])
        bigram = next(r["bigram"] for r in self.records if "bigram" in r)
        return f"""# `thinwire` beside its rivals

{measured.table(["what", "ms a step", f"ms, mean of {RUN:,} steps", "`thinwire` is faster, times", "MB a step", "loss, % (seeds)", f"at most {LOSS_AT_MOST} %"], [self.row(p) for p in [PLAIN, *order]], right={1})}
- `thinwire` is {said[0]}.
- `thinwire` is {said[1]}. (The target is the fastest hook of PyTorch DDP of equal loss; taken is the fastest whose loss is not told to be worse.)
- Loss: evaluation loss above the uncompressed run of the same seed, ± the two-sided 95 % t interval. *met*: its upper end is at most {LOSS_AT_MOST} %; *missed*: its lower end is above.
- Low rank and signs send the first part of a run uncompressed: the second column counts that. Bytes do not: both ranks', in the second half of the runs that tell the loss (uncompressed: gradients in fp32, weights in bf16).

**Speed**: two replicas of 10.8 M parameters on two hosts of the [lab](../lab.md), 100 Mbit/s, micro batch 1 of 256 tokens, fp32 compute, one core each, {count} rounds in turn (uncompressed runs and the bf16 hook: {len(self.rounds[PLAIN])}). Brackets: 95 % interval of the median over rounds (its range below six). `compression.adapt` is off; gradients of `thinwire` at rate 3.1, the mean of its ramp. ZeRO-1, or the placement that a system is made for; PowerSGD without ZeRO, as DDP. Hooks of DDP over gloo: the same model, one thread, without their warm-up. Hooks on other cores, beside fewer bytes of ours: [compression](compression.md).

**Loss of ours**: `configs/sweeps/loss_3m.json`, 3.2 M parameters, 1,000 steps of 4,096 tokens of Debian's fortunes and Perl's manual, bf16 with fp32 masters, two replicas. A bigram of the text has a loss of {bigram:.2f}, the uncompressed runs end at {statistics.fmean(r["eval_loss"] for r in self.losses[PLAIN].values()):.2f}.{self.wider_words()}{self.hooks_words()}

{", ".join(machines)}; {dates[0]} to {dates[-1]}. No GPU, no real network, no large model. Cells with their commands: `compression_rivals_cells.jsonl`. Again:

    scripts/compression_tables.py rivals --out DIR --rounds 6 --python PYTHON      # PYTHON has torch; needs root
    scripts/compression_tables.py hook_loss --out DIR --python PYTHON
    scripts/compression_tables.py loss_3m --out OTHER_DIR
    scripts/compression_tables.py page --out DIR
"""

    def wider_words(self):
        got = OURS in self.wider and gap(self.wider[OURS], self.wider[PLAIN])
        if not got:
            return ""
        mean, half, seeds = got
        end = statistics.fmean(r["eval_loss"] for r in self.wider[PLAIN].values())
        said = f"{mean:+.2f} ± {half:.2f} % ({seeds} seeds)" if seeds > 1 else f"{mean:+.2f} % (one pair)"
        return f" The same with 10.8 M parameters after 500 steps, 2.0 M tokens (uncompressed: {end:.2f}): `thinwire` {said}."

    def hooks_words(self):
        runs = self.losses.get(HOOK + "none")
        if not runs:
            return ""
        one = next(iter(runs.values()))
        return f"\n\n**Loss of hooks**: model and text of the speed cells, {one['steps']} steps of {one['tokens_per_step']} tokens, at most {len(runs)} seeds, beside DDP without a hook. Another model, text and batch than ours: gaps of the two are not to be compared. The algorithm of a hook in our engine is `powersgd_32` with its rank and `sides=2`: both factors, error feedback, warm start, and a tenth of the run uncompressed, which helps its loss."
