# docs/results/compression.md with its pictures, rivals.md and rates.md from the committed cells (docs/results/compression*_cells.jsonl): speed beside a bf16 wire, loss, verdicts.
# No measured number is typed here. A verdict counts what runs of one cell differ by; where that is more than what is to be told, it says so.
import glob
import os
import statistics

import compression_adapt
import measured
import sweep_svg
from compression_adapt import RATES
from compression_rivals import LOSS_AT_MOST, Rivals, gap, gap_words
from sweep_store import write_atomic

RESULTS = os.path.join(measured.ROOT, "docs", "results")
MET, MISSED, OPEN = "met", "**missed**", "cannot be told"
CORES = {"avx512_bf16": "AVX-512", "avx2": "AVX2"}
WIRES = {"none": "fp32", "bf16_wire": "bf16", "thinwire": "thinwire"}
LAYOUTS = (("1x2x1", 1), ("1x2x1", 8), ("1x4x1", 1), ("2x2x1", 1), ("2x1x2", 1), ("4x1x1", 1))
SLOW = "100mbit"
LOSSLESS = ("none", "identity", "naive_mpc")
LINKS = ("100mbit", "1gbit", "10gbit")
LESS = 0.3  # percent, at 1.3 times the bytes
FIRST_SEEDS = 10  # those beyond were added where these could not tell


def records(more=()):
    """Committed cells, and those of other files of cells over them: the same cell of the same cores counts once."""
    found, kept = [], {}
    for path in [*sorted(glob.glob(os.path.join(RESULTS, "compression*_cells.jsonl"))), *more]:
        for r in measured.read_cells(path):
            if "error" in r:
                continue
            if "key" in r:
                kept[r["machine"], r["key"]] = r
            else:
                found.append(r)
    return [*found, *kept.values()]


def verdict(low, high, **bounds):
    said = measured.verdict(low, high, **bounds)
    return MISSED if said == "missed" else said


def span(value, low, high, places=2):
    return f"{value:.{places}f} ({low:.{places}f}–{high:.{places}f})"


class Cores:
    """The speed cells of one kind of core. NAME@1 and runs beside DDP are more runs of the same configuration, wherever their ZeRO stage is the same."""

    def __init__(self, found, kind):
        self.name, self.runs, self.theirs, self.paired, self.ladder = CORES.get(kind, kind), {}, {}, [], {}
        for r in found:
            if f"({kind})" not in r["machine"]:
                continue
            if r["table"] == "speed":
                self.runs.setdefault((r["layout"], r["micro"], r["rate"], r["preset"].partition("@")[0]), []).append(r)
            elif r["table"] == "hooks":
                where = self.runs if r["who"] == "ours" else self.theirs
                where.setdefault(("1x2x1", r["micro"], r["rate"], r["mode"]), []).append(r)
            elif r["table"] == "paired":
                self.paired.append(r)
            elif r["table"] == "ladder":
                self.ladder[r["key"].split(" ", 3)[3]] = r
        self.scatter = {}
        for (_, _, rate, _), rs in self.runs.items():
            ms = [r["step_ms"] for r in rs]
            if len(ms) > 1:
                middle = statistics.median(ms)
                self.scatter[rate] = max(self.scatter.get(rate, 1.0), max(ms) / middle, middle / min(ms))

    def step(self, key, where=None):
        """(median, low, high) of a cell's step in ms: of its runs, where there are three; else as far off as the worst repeated cell on that link."""
        ms = [r["step_ms"] for r in (self.runs if where is None else where)[key]]
        off = self.scatter.get(key[2], max(self.scatter.values()))
        middle = statistics.median(ms)
        return middle, min(*ms, middle if len(ms) > 2 else middle / off), max(*ms, middle if len(ms) > 2 else middle * off)

    def faster(self, key, other, where=None):
        """(ratio, low, high) of speeds, or None where a cell is missing."""
        if key not in self.runs or other not in (self.runs if where is None else where):
            return None
        (a, a_low, a_high), (b, b_low, b_high) = self.step(key), self.step(other, where)
        return b / a, b_low / a_high, b_high / a_low

    def over_bf16(self, layout, micro, rate, preset="thinwire"):
        return self.faster((layout, micro, rate, preset), (layout, micro, rate, "bf16_wire"))

    def waits(self, layout):
        """What thinwire waits for over what bf16 waits for, where what a step is off by may all be waiting."""
        out = []
        for preset in ("thinwire", "bf16_wire"):
            key = (layout, 1, SLOW, preset)
            if key not in self.runs:
                return None
            exposed, (ms, low, high) = statistics.median(r["exposed_ms"] for r in self.runs[key]), self.step(key)
            out.append((exposed, max(0.0, exposed - (ms - low)), exposed + (high - ms)))
        (a, a_low, a_high), (b, b_low, b_high) = out
        return a / b, a_low / b_high, a_high / max(b_low, 1e-9)

    def best_hook(self, micro, rate):
        keys = [k for k in self.theirs if k[1:3] == (micro, rate)]
        return min(keys, key=lambda k: self.step(k, self.theirs)[0], default=None)


def alone(record):
    """(share of its own speed without communication in percent, low, high) of a pair stopped and continued in turn: the 95 % interval of the median."""
    middle, low, high = measured.interval(record["ratios"])
    return 100 / middle, 100 / high, 100 / low


def losses(found):
    """{(layout, preset): (gap in percent, half of its two-sided 95 % t interval over paired seeds, seeds, all bytes shrink by)}; one seed: as much as the
    baseline's seeds differ by."""
    out, runs = {}, {}
    for r in found:
        if r["table"] == "loss_means":
            # Of three seeds the mean, the lowest and the highest are all there is to know.
            half = measured.t_interval((r["gap_low"], 3 * r["gap"] - r["gap_low"] - r["gap_high"], r["gap_high"]))[1] if r["seeds"] == 3 else r["baseline_spread"]
            out[r["layout"], r["preset"]] = r["gap"], half, r["seeds"], r["shrinks"]
        elif r["table"] == "loss" and r["applies"]:
            runs.setdefault((r["layout"], r["preset"]), {})[r["seed"]] = r
    for (layout, preset), seeds in runs.items():  # single runs take the place of a row of means that has no more seeds
        base = runs.get((layout, "none"), {})
        got = gap(seeds, base)
        if got and got[2] >= out.get((layout, preset), (0, 0, 1))[2] and len(base) > 1:
            all_of_base = [r["eval_loss"] for r in base.values()]
            half = got[1] if got[2] > 1 else 100 * (max(all_of_base) / min(all_of_base) - 1)
            wire, plain = (sum(site[what] for n in sorted(set(seeds) & set(base)) for site in seeds[n]["sites"].values()) for what in ("wire_bytes_total", "logical_bytes_total"))
            out[layout, preset] = got[0], half, got[2], plain / wire
    return out


class Rates:
    """What was tried of thinwire's rates, between two replicas or eight, or of one class of tensors at a time: paired by seed."""

    def __init__(self, found, table="rates"):
        self.runs, self.words = {}, {}
        for r in found:
            if r["table"] == table:
                self.runs.setdefault((r["variant"], r["steps"]), {})[r["seed"]] = r
                self.words[r["variant"]] = r["words"]
        self.steps = sorted({steps for _, steps in self.runs})

    def gap(self, variant, steps, base="none"):
        return gap(self.runs.get((variant, steps), {}), self.runs.get((base, steps), {}))

    def beside(self, variant):
        """Bytes over those of before, in the longest run of both."""
        most = max(s for v, s in self.runs if v == variant and ("before", s) in self.runs)
        own, before = (statistics.fmean(sum(r["wire_bytes_total"].values()) for r in self.runs[v, most].values()) for v in (variant, "before"))
        return own / before

    def table(self):
        rows = []
        for variant in sorted(set(self.words) - {"none"}, key=lambda v: (self.beside(v), v)):
            gaps = [self.gap(variant, steps) for steps in self.steps]
            if any(gaps):
                cells = ["–" if g is None else gap_words(g) + (f": {verdict(g[0] - g[1], g[0] + g[1], most=LOSS_AT_MOST)}" if g[2] > 1 else "") for g in gaps]
                rows.append([self.words[variant], f"{self.beside(variant):.2f}", *cells])
        return measured.table(["what", "bytes", *(f"{n:,} steps, % (seeds): at most {LOSS_AT_MOST} %" for n in self.steps)], rows)

    def dearer(self):
        """Per variant of about 1.3 times the bytes: its loss in the longest runs, and whether that is at most LESS."""
        last, found = self.steps[-1], []
        for variant in sorted(set(self.words) - {"none"}):
            got = self.gap(variant, last)
            if got and got[2] > 1 and 1.25 < self.beside(variant) < 1.35:
                added = gap({seed: r for seed, r in self.runs[variant, last].items() if seed > FIRST_SEEDS}, self.runs["none", last])
                found.append(f"{self.words[variant]}: {gap_words(got)} %, {verdict(got[0] - got[1], got[0] + got[1], most=LESS)}" + (f" (added seeds alone: {gap_words(added)})" if added else ""))
        return "; ".join(found)

    def classes(self):
        """One class of tensors coarse, all else as it is: most loss first."""
        first = self.steps[0]
        gaps = {v: self.gap(v, first) for v in self.words if v != "none"}
        return measured.table(["coarse gradients of", f"{first:,} steps, % (seeds)"],
                              [[self.words[v], gap_words(g)] for v, g in sorted(gaps.items(), key=lambda kv: -kv[1][0])])

    def as_key(self):
        """The means of classes as compression.sensitivities, and who of them lost for certain."""
        gaps = {v: self.gap(v, self.steps[0]) for v in ("embedding", "attention", "mlp", "norm")}
        return (f"compression.sensitivities=[{','.join(f'{round(max(0.0, g[0]), 2):g}' for g in gaps.values())}]",
                "; ".join(self.words[v] for v, g in gaps.items() if g[0] - g[1] > 0) or "none")

    def page(self, classes, eight):
        first, last, adam = self.steps[0], self.steps[-1], self.gap("adam", self.steps[0], "before")
        fewer = ", ".join(f"w {w}: {self.gap(v, first)[0]:+.2f}" for w, v in (("1.5", "g3.7 w1.5"), ("1.25", "g3.95 w1.25"), ("1", "g4.2 w1")))
        long_fewer = ", ".join(f"w {w}: {self.gap(v, last)[0]:+.2f}" for w, v in (("1.5", "g3.7 w1.5"), ("1.25", "g3.95 w1.25")))
        beside = lambda base, steps: gap_words(self.gap("ramp", steps, base))
        key, certain = classes.as_key()
        return f"""# What loss costs in bytes

{self.table()}
- `thinwire` is {self.words['ramp']}, the 100 steps as a tenth of the run. Its loss beside {self.words['before']}, which it was before: {beside("before", first)} % after {first} steps, {beside("before", last)} % after {last:,}; beside flat rates of as many bytes after {last:,}: {self.words["flat"]} {beside("flat", last)} %, {self.words['g3.25 w2']} {beside("g3.25 w2", last)} %.
- At most {LESS} % after {last:,} steps at about 1.3 times the bytes: {self.dearer()}.
- Lost: fewer than 2 bits for weights, and the bits to gradients. One seed, {first} steps: {fewer} %; {last:,} steps: {long_fewer} %. A replica then lacks a good part of a step's change all the time, and steps on from where its weights no longer are.
- Lost: coding gradients in Adam's metric (each element over the root of its second moment, told by its owner). Beside the same bits without it, {first} steps: {adam[0]:+.2f} ± {adam[1]:.2f} % ({adam[2]} seeds). Probably elements with small gradients then take bits from those that the loss falls by.

Between eight replicas, {last:,} steps:

{eight.table()}
The ramp beside flat rates of as many bytes: {gap_words(eight.gap("ramp", last, "flat"))} %; beside what `thinwire` was before: {gap_words(eight.gap("ramp", last, "before"))} %.

Which gradients the loss feels: those of one class at rate 1 (`ecsq`, blocks of 64, error feedback), all else in fp32. Embedding and positions are 11 % of the elements, vectors 1.5 %: bytes do not say what a class costs.

{classes.classes()}
These means are `{key}`, for critical rules of `dp.gradient` ([presets](../presets.md)). A mean that is not above zero is 0 there: the class gets bits last. Above zero with the whole interval: {certain}.

Two replicas where nothing else is said, ZeRO-1, `gpt2_tiny` (0.2 M parameters), fp32. A gap is that of the evaluation loss to the uncompressed run of the same seed, ± its two-sided 95 % t interval; *met* where its upper end is at most {LOSS_AT_MOST} %, *missed* where its lower end is above. Bytes are all that is sent in the longest run that both have, beside g 2.5, w 2.25. *g* and *w*: `rate` of `dp.gradient` and `zero.parameter`. All else is the preset's. A run of {first} steps is the beginning of a ramp that is meant for longer ones. Seeds 1 and 2 chose what was tried further; those above {FIRST_SEEDS} were added where {FIRST_SEEDS} could not tell.

Cells: `compression_rates_cells.jsonl` and `compression_sensitivity_cells.jsonl`, each with its command. Again, and more of them:

    scripts/compression_tables.py rates --out DIR       # also rates_8, sensitivity
    scripts/compression_tables.py page --out DIR
"""


def loss_words(got):
    gap, half, seeds, _ = got
    return f"{gap:+.2f} ± {half:.2f}" if seeds > 1 else f"{gap:+.2f}, one seed"


def targets(kinds):
    """Rows of the table of targets: words, then per kind of core what was measured and the verdict."""
    rows = []

    def row(words, of, places=2, **limits):
        cells = []
        for c in kinds:
            got = of(c)
            cells.append("–" if got is None else f"{span(*got, places)}: {verdict(*got[1:], **limits)}")
        rows.append([words, *cells])

    for layout in ("2x2x1", "2x1x2", "4x1x1"):
        row(f"{layout}, 100 Mbit/s: waits at most half of what bf16 waits", lambda c, at=layout: c.waits(at), most=0.5)
    for preset in ("mzhybrid", "zhybrid"):
        row(f"2x2x1, 100 Mbit/s: `{preset}` faster than bf16", lambda c, p=preset: c.over_bf16("2x2x1", 1, SLOW, p), least=1.0)
    return rows


def fp32_over_bf16(kinds, rate):
    """The least and the most that a step on an fp32 wire takes over one on a bf16 wire."""
    ratios = [got[0] for c in kinds for layout, micro in LAYOUTS if (got := c.faster((layout, micro, rate, "bf16_wire"), (layout, micro, rate, "none")))]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def small_differences(kinds):
    """Verdicts of bars of a few percent at 1 and 10 Gbit/s: thinwire beside itself without a limit, and beside no compression."""
    out = []
    for c in kinds:
        for layout, micro in LAYOUTS:
            for ours, other, most in ((("1gbit", "thinwire"), ("none", "thinwire"), 1.05), (("10gbit", "thinwire"), ("10gbit", "none"), 1.02)):
                got = c.faster((layout, micro, *other), (layout, micro, *ours))
                out += [verdict(*got[1:], most=most)] if got else []
    return out


def own_speed(kinds):
    rows = []
    for c in kinds:
        for r in c.paired:
            got = alone(r)
            rows.append([c.name, f"{r['layout']}, {RATES[r['rate']]}", f"{span(*got, 1)} %", verdict(*got[1:], least=95)])
    return measured.table(["cores", "pp x dp x tp, link", "of its own speed", "at least 95 %"], rows)


def wires(kinds):
    rows = []
    for layout, micro in LAYOUTS:
        for c in kinds:
            cells = []
            for rate in LINKS:
                got = c.over_bf16(layout, micro, rate)
                cells.append("–" if got is None else ("**{}**" if got[1] > 1 or got[2] < 1 else "{}").format(span(*got)))
            rows.append([f"{layout}, {micro}", c.name, *cells])
    return measured.table(["pp x dp x tp, micro batch", "cores", *(RATES[r] for r in LINKS)], rows)


def systems(kinds, loss):
    """Presets at 100 Mbit/s and micro batch 1, fastest first."""
    keys = {k for c in kinds for k in c.runs if k[1] == 1 and k[2] == SLOW and k[0] in ("1x2x1", "2x2x1") and k[3] not in ("bf16_wire", "none")}
    lines = []
    for layout, micro, rate, preset in keys:
        got = [c.over_bf16(layout, micro, rate, preset) for c in kinds]
        of = loss.get((layout, preset + "@1")) or loss.get((layout, preset))
        lines.append((layout, -(got[0] or (0,))[0], [f"`{preset}`" + (f" {layout}" if layout != "1x2x1" else ""), *("–" if g is None else f"{g[0]:.2f}" for g in got), f"{of[3]:.1f}" if of else "–",
                      *(("lossless", MET) if preset in LOSSLESS else (loss_words(of), verdict(of[0] - of[1], of[0] + of[1], most=LOSS_AT_MOST)) if of else ("–", "–"))]))
    head = ["preset", *(f"speed / bf16, {c.name}" for c in kinds), "fewer bytes than fp32", "loss, %", f"at most {LOSS_AT_MOST} %"]
    return measured.table(head, [cells for *_, cells in sorted(lines, key=lambda x: x[:2])])


def hooks(kinds):
    rows = []
    for micro, least in ((1, 1.2), (8, 1.0)):
        for rate in ("100mbit", "1gbit"):
            for c in kinds:
                best = c.best_hook(micro, rate)
                got = best and c.faster(("1x2x1", micro, rate, "thinwire"), best, c.theirs)
                plain = best and c.faster(("1x2x1", micro, rate, "none"), ("1x2x1", micro, rate, "none"), c.theirs)
                if got and plain:
                    rows.append([f"{micro}, {RATES[rate]}", c.name, best[3], f"{span(*got)}: {verdict(*got[1:], least=least)} ({least})", span(*plain)])
    return measured.table(["micro batch, link", "cores", "best hook", "`thinwire` / best hook: verdict (at least)", "uncompressed: ours / DDP"], rows)


def picture(cores):
    """Speed of two replicas, a bar per link and wire; the whisker is what runs of one cell differ by."""
    rows = []
    for rate in LINKS:
        for color, (preset, name) in enumerate(WIRES.items()):
            key = ("1x2x1", 1, rate, preset)
            ms, low, high = cores.step(key)
            tokens = cores.runs[key][0]["tokens_per_s"] * cores.runs[key][0]["step_ms"]  # of a step, in 1/1000
            rows.append({"label": name, "value": tokens / ms, "low": tokens / high, "high": tokens / low, "color": color, "note": f"{cores.over_bf16(*key)[0]:.2f} x bf16",
                         "head": RATES[rate] if not color else None})
    return sweep_svg.draw({**sweep_svg.rows("tokens per second", "tokens/s", rows), "heading": f"Two replicas, micro batch 1, {cores.name}",
                           "note": "10.8 M parameters, one core a replica; whisker: what runs differ by"})


class Curve:
    """Evaluation loss over the clock on a link, one run for each wire, and what can be read from it."""

    def __init__(self, found, rate):
        found = [r for r in found if r["table"] == "curve" and r["rate"] == rate]
        self.link = RATES[rate]
        self.points = {r["preset"].partition("@")[0]: [(wall, loss) for _, wall, loss in r["evaluations"]] for r in found}
        self.date = max(r["date"] for r in found)
        ends = [round(p[-1][0]) for p in self.points.values()]
        self.seconds = f"{min(ends)}–{max(ends)}"
        # An evaluation of 32 micro-batches a rank is off by a few hundredths: each is a mean with the two before it.
        self.points = {preset: [(p[i][0], statistics.fmean(loss for _, loss in p[max(0, i - 2):i + 1])) for i in range(len(p))] for preset, p in self.points.items()}
        self.last = {preset: p[-1][1] for preset, p in self.points.items()}

    def reached(self, preset, loss):
        """Seconds after which a run is at this loss."""
        return next(wall for wall, of in self.points[preset] if of <= loss)

    def picture(self):
        series = [{"name": name, "color": color, "dash": 0, "shape": color, "points": self.points[preset], "ends": []} for color, (preset, name) in enumerate(WIRES.items())]
        return sweep_svg.draw({**sweep_svg.lines(series, "evaluation loss", "seconds since the start"), "heading": f"Loss over the clock: two replicas on a link of {self.link}",
                               "note": "10.8 M parameters, ZeRO-1, micro batch 1; evaluation loss, mean of three; one run each, " + self.date})


def write(path, more=()):
    """The page and its pictures; returns 0."""
    found = records(more)
    kinds = [c for c in (Cores(found, kind) for kind in CORES) if c.runs]
    loss, first, curve, curve_1g = losses(found), kinds[0], *(Curve(found, rate) for rate in ("100mbit", "1gbit"))
    rows = targets(kinds)
    small = small_differences(kinds)
    replicas = [verdict(*got[1:], least=2.5) for c in kinds for layout in ("1x2x1", "1x4x1") if (got := c.over_bf16(layout, 1, SLOW))]
    said = [*small, *replicas, *(verdict(*alone(r)[1:], least=95) for c in kinds for r in c.paired), *(cell.rpartition(": ")[2] for row in rows for cell in row[1:] if cell != "–")]
    count = {v: sum(s == v for s in said) for v in (MET, MISSED, OPEN)}
    slow, busy = ([f"{c.over_bf16('1x2x1', micro, SLOW)[0]:.1f}" for c in kinds] for micro in (1, 8))
    gigabit = [c.over_bf16("1x2x1", micro, "1gbit") for c in kinds for micro in (1, 8)]
    fast = [got[0] for c in kinds for layout, micro in LAYOUTS for rate in ("10gbit", "none") if (got := c.over_bf16(layout, micro, rate))]
    fp32_weights = [c.over_bf16("1x2x1", 1, SLOW, p)[0] for c in kinds for p in ("loco", "tagc")]
    ours = loss["1x2x1", "thinwire@1"]
    dates = sorted({day for r in found if r["table"] not in ("curve", "rates", "rates_8", "sensitivity", "rivals", "adapt", "loss_3m", "loss_10m", "hook_loss") for day in r["date"].split(" to ")})
    trained = [r for r in found if r["table"] == "presets_means"]
    ddp = {(r["who"], r["mode"]): r for r in found if r["table"] == "loss_beside_ddp"}
    beside = 100 * (ddp["ours", "thinwire"]["eval_loss"] / ddp["ddp", "none"]["eval_loss"] - 1)
    seeds_of_ddp = 100 * (ddp["ddp", "none"]["high"] / ddp["ddp", "none"]["low"] - 1)
    ladder = {n: name for n, name in (("none two_step", "none"), ("optimus_cc_cb", "CB"), ("optimus_cc_cb_fe", "FE"), ("optimus_cc_cb_fe_sc", "SC"), ("optimus_cc_emb", "embedding")) if n in first.ladder}
    megabytes = {n: sum(s["wire_bytes_total"] for s in first.ladder[n]["sites"].values()) / 1e6 for n in ladder}

    text = f"""# What compression costs and what it buys

![Evaluation loss over wall-clock time at 100 Mbit/s: fp32, bf16, thinwire](compression_curve.svg)

After {curve.seconds} s: loss {curve.last["none"]:.2f} with fp32 on the wire, {curve.last["bf16_wire"]:.2f} with bf16, {curve.last["thinwire"]:.2f} with `thinwire`, which is where bf16 ends after {curve.reached("thinwire", curve.last["bf16_wire"]):.0f} s. One run each.

![1 Gbit/s](compression_curve_1gbit.svg)

At 1 Gbit/s after {curve_1g.seconds} s: {curve_1g.last["none"]:.2f}, {curve_1g.last["bf16_wire"]:.2f} and {curve_1g.last["thinwire"]:.2f}, one run each.

![Tokens per second of two replicas by link and wire](compression_speed.svg)

- **A slow link and little to compute** (100 Mbit/s, micro batch 1): use `thinwire`. Two replicas are {" and ".join(slow)} times as fast as on a bf16 wire ({" and ".join(c.name for c in kinds)} cores), with eight times the compute {" and ".join(busy)}.
- **1 Gbit/s**: {min(g[0] for g in gigabit):.2f} to {max(g[0] for g in gigabit):.2f} times bf16 between two replicas (runs of one cell differ by as much). `compression.adapt=true` measures your case in the first steps.
- **10 Gbit/s, or one machine's memory**: leave compression off. {min(fast):.2f} to {max(fast):.2f} times bf16: no gain can be told.
- **Loss**: `thinwire` with ZeRO-1 ends {ours[0]:+.2f} ± {ours[1]:.2f} % from uncompressed runs ({ours[2]} seeds, 0.8 M parameters, 500 steps). No large model was tried: test yours first.
- **Systems that leave weights in fp32** (`loco`, `tagc`) gain nothing over a bf16 cast of everything: {min(fp32_weights):.2f} to {max(fp32_weights):.2f}.

bf16 (`compression=bf16_wire`) is the baseline. An fp32 wire takes {fp32_over_bf16(kinds, SLOW)} times as long at 100 Mbit/s, {fp32_over_bf16(kinds, "1gbit")} at 1 Gbit/s.

## Verdicts

*Met* and *missed* hold over the whole range in brackets; else it *cannot be told*. {count[MET]} met, {count[MISSED]} missed, {count[OPEN]} cannot be told.

{measured.table(["target", *(c.name for c in kinds)], rows)}
`thinwire` at least 2.5 times as fast as bf16 between replicas (100 Mbit/s, micro batch 1): {replicas.count(MET)} of {len(replicas)} met. Bars of 5 % (1 Gbit/s beside no limit) and 2 % (10 Gbit/s beside no compression): {small.count(OPEN)} of {len(small)} cells cannot be told, {small.count(MISSED)} missed.

`thinwire` and the same work without communication (each updates all weights), stopped and continued in turn (micro batch 8), 95 % interval of the median:

{own_speed(kinds)}
## Speed of `thinwire` over bf16

Bold: the range excludes 1.

{wires(kinds)}
## Systems at 100 Mbit/s

Micro batch 1, 1x2x1 where nothing else is said. `±`: 95 % t interval, 3 paired seeds; one seed: what the baseline's differ by ({next(r["baseline_spread"] for r in found if r["table"] == "loss_means")} %).

{systems(kinds, loss)}
`tagc` was measured while its `density` meant the union of the ranks, and at ZeRO-3 (bf16: ZeRO-1); `powersgd` and `optimus_cc` at ZeRO-0. Bytes: a run's second half. `one_bit_adam` and `powersgd` first send uncompressed: not counted. Tuned: [rivals](rivals.md).

- {len({r["preset"].partition("@")[0] for r in trained} - {"none"})} presets trained on every layout that they apply to: {len(trained)} runs of 300 steps, {sum(not set(r["agrees"].split(", ")) - {"equal", "bounded", "between"} for r in trained)} with the dry run's bytes.
- Optimus-CC's ladder (4x2x1, 100 Mbit/s; {", ".join(ladder.values())}): {", ".join(f"{megabytes[n]:.0f}" for n in ladder)} MB a step, {", ".join(f"{first.ladder[n]['exposed_ms'] / 1e3:.1f}" for n in ladder)} s of waiting (one run each).

## Beside PyTorch DDP

Two hosts, gloo, fp32 compute. The last column: what the engines differ by uncompressed. Hooks were not held to an equal loss.

{hooks(kinds)}
Loss of `thinwire` beside plain DDP after 200 steps: {beside:+.2f} %. DDP's own three seeds span {seeds_of_ddp:.1f} %: cannot be told.

## Method and caveats

- Model: 10.8 M parameters (loss: 0.8 M), fp32 compute, 2 cores of a shared virtual machine, one rank a host of the emulated cluster ([lab](../lab.md)). Four ranks share cores. No GPU, no real network.
- `thinwire` ran with `compression.adapt=true` (not in the pictures over seconds): steps count once settled, perhaps on lighter codes or none. [Rates](rates.md) 2.5 and 2.25 then: 8 % fewer bytes.
- A range is what a cell's runs differ by; with fewer than three runs, what the worst repeated cell on that link differs by (factors {"; ".join(c.name + ": " + ", ".join(f"{RATES[k]} {v:.2f}" for k, v in sorted(c.scatter.items(), key=lambda kv: list(RATES).index(kv[0]) if kv[0] in RATES else 9) if k in RATES) for c in kinds)}).
- Waiting on pipelines holds the bubble.
- Loss rows: means; single runs were not kept.
- Cells of {dates[0]} to {dates[-1]}, several builds.

## Repeat

Cells: `compression*_cells.jsonl`.

    scripts/compression_tables.py speed --out DIR       # also presets, loss, paired, ladder, curve; needs root for scripts/lab
    scripts/compression_tables.py page [--out DIR]
"""
    pages = {os.path.basename(path): text, "rivals.md": Rivals(found).page(), "adapt.md": compression_adapt.page(found), "rates.md": Rates(found).page(Rates(found, "sensitivity"), Rates(found, "rates_8")), "compression_speed.svg": picture(first), "compression_curve.svg": curve.picture(), "compression_curve_1gbit.svg": curve_1g.picture()}
    for name, content in pages.items():
        write_atomic(os.path.join(os.path.dirname(path), name), content)
    print(f"{path} and its pictures: {count[MET]} met, {count[MISSED]} missed, {count[OPEN]} cannot be told")
    return 0
