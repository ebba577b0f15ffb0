# docs/results/compression.md from collected cells: tables, targets with met or MISSED, commands. No number is typed here but the targets' own.
# A section whose cells are not in the store stays as the page has it, with the date and machine of its own.
import math
import os
import re
import statistics

import measured

SEED_TARGET = ("thinwire", "mzhybrid", "zhybrid", "sdp4bit", "loco", "optimus_cc")
MARK = "<!-- from here on: scripts/compression_tables.py page -->"
HEAD = """# What compression costs and what it buys

Written by `scripts/compression_tables.py page` from the cells that `scripts/compression_tables.py` measured; `OUT` in commands is
its `--out` folder. Bytes and milliseconds of sites are those of rank 0 (first stage) per step. `exposed` is what computing stood still for: on pipelines it holds the bubble, too,
which no codec shortens. Links are those of `scripts/lab` (docs/lab.md): all ranks share the machine's cores.
"""


def kb(value):
    return f"{value / 1e3:.1f}" if value < 1e6 else f"{value / 1e3:.0f}"


def sites_cell(record):
    return "; ".join(f"{site} {kb(s['wire_bytes'])} / {kb(s['logical_bytes'])}" for site, s in record["sites"].items() if site != "control" and s["logical_bytes"] > 0)


MET, MISSED = "- met: ", "- **MISSED**: "


class Section:
    """The lines of a section behind its heading, and its targets."""

    def __init__(self):
        self.lines, self.targets = [], []

    def table(self, about, head, rows):
        self.lines += [about, "", *measured.table(head, rows).splitlines(), ""]

    def target(self, said, met):
        self.targets.append((MET if met else MISSED) + said)

    def commands(self, records, which):
        self.lines += [f"Commands ({which}):", "", *(f"    {r['command']}" for r in records if "command" in r), ""]


def agreement(record):
    return ", ".join(sorted(set(record["agrees"].values())))


def presets_part(store, out):
    records = store.of("presets")
    if not records:
        return
    base = {r["layout"]: r for r in records if r["preset"] == "none"}
    rows = []
    for r in records:
        if not r["applies"]:
            continue
        plain = base.get(r["layout"])
        gap = f"{100 * (r['eval_loss'] / plain['eval_loss'] - 1):+.2f} %" if plain else "-"
        rows.append([r["layout"], r["preset"], f"{r['eval_loss']:.4f}", gap, sites_cell(r), f"{r['exposed_ms']:.1f}", f"{r['tokens_per_s']:.0f}", agreement(r)])
    bigram = next((r["bigram"] for r in records if r["applies"]), "-")
    out.table("A tiny byte model, 300 steps, one seed, unshaped, compression never switched off (`compression.adapt=false`); exposed and tokens/s of this machine's memory, not of a link. "
              f"A bigram reaches {bigram} on the held-out text. Bytes against the formula: `equal` to the dry run's, `between` its smallest and largest stage, or within its bound (`bounded`, codecs whose size depends on the data).",
              ["pp x dp x tp", "preset", "loss", "against none", "site: kB on the wire / plain", "exposed ms", "tokens/s", "bytes against the formula"], rows)
    void = {}
    for r in records:
        if not r["applies"]:
            void.setdefault(r["layout"], []).append(r["preset"])
    out.lines += ["Compresses nothing on a layout: " + "; ".join(f"{layout}: {', '.join(names)}" for layout, names in void.items()) + ".", ""] if void else []
    for layout, r in base.items():
        out.target(f"uncompressed {layout} learned: loss {r['eval_loss']:.4f}, bigram {r['bigram']}", r["eval_loss"] < r["bigram"])
    bad = [r["key"] for r in records if r["applies"] and not math.isfinite(r["eval_loss"])]
    out.target(f"every preset trains on every layout that it applies to ({sum(r['applies'] for r in records)} runs)" + (f"; not: {', '.join(bad + [f['key'] for f in store.failed('presets')])}" if bad or store.failed("presets") else ""),
                 not bad and not store.failed("presets"))
    compared = sum(r.get("hashes") == "equal" for r in records)
    if compared:
        out.target(f"the weights' hashes are equal on all ranks that hold the same at the end ({compared} runs)", compared == sum(r["applies"] for r in records))
    wrong = [f"{r['key']}: {site} {v}" for r in records if r["applies"] for site, v in r["agrees"].items() if v not in ("equal", "bounded", "between")]
    out.target("bytes on the wire are those of the dry run" + ("".join(f"; {w}" for w in wrong[:6])), not wrong)
    out.commands([r for r in records if r["applies"]][:1], "one of them")


def loss_part(store, out):
    records = store.of("loss")
    if not records:
        return
    by = {}
    for r in records:
        if r["applies"]:
            by.setdefault((r["layout"], r["preset"]), {})[r["seed"]] = r
    rows = []
    for (layout, preset), seeds in by.items():
        plain = by.get((layout, "none"), {})
        both = [s for s in seeds if s in plain]
        losses = [r["eval_loss"] for r in seeds.values()]
        gaps = [100 * (seeds[s]["eval_loss"] / plain[s]["eval_loss"] - 1) for s in both]
        base = [r["eval_loss"] for r in plain.values()]
        spread = 100 * (max(base) - min(base)) / statistics.fmean(base) if len(base) > 1 else 0.0
        first = next(iter(seeds.values()))
        wire = sum(s["wire_bytes_total"] for s in first["sites"].values())
        logical = sum(s["logical_bytes_total"] for s in first["sites"].values())
        gap = f"{statistics.fmean(gaps):+.2f} ({min(gaps):+.2f} to {max(gaps):+.2f})" if gaps else "-"
        rows.append([layout, preset, len(seeds), f"{statistics.fmean(losses):.4f}", gap, f"{spread:.2f}", f"{logical / wire:.2f}x", agreement(first)])
        if preset.partition("@")[0] in SEED_TARGET and gaps:
            mean = statistics.fmean(gaps)
            out.target(f"loss of {preset} on {layout}: {mean:+.2f} % of the baseline's (allowed 0.5 % or the seeds' spread of {spread:.2f} %; {len(gaps)} seeds)", mean <= max(0.5, spread))
        if preset == "none":
            out.target(f"loss baseline on {layout} well below the bigram: {max(losses):.4f} against {first['bigram']}", max(losses) < 0.95 * first["bigram"])
    out.table(f"0.8 M parameters, unshaped, no warm-up but the preset's own tenth; `NAME@1` is NAME with ZeRO 1; gaps against the uncompressed run of the same seed and layout; `naive_zfp:R` is `naive_zfp` at rate R. Bigram {records[0].get('bigram', '')}.",
              ["pp x dp x tp", "preset", "seeds", "loss", "gap in %, mean (least to most)", "baseline's seed spread in %", "all bytes shrink", "bytes against the formula"], rows)
    out.commands([r for r in records if r["applies"]][:1], "one of them")


def pooled(records):
    """{(layout, micro, rate, preset): cell with medians over rounds}."""
    groups = {}
    for r in records:
        groups.setdefault((r["layout"], r["micro"], r["rate"], r["preset"]), []).append(r)
    return {key: {**rs[-1], "step_ms": statistics.median(r["step_ms"] for r in rs), "tokens_per_s": statistics.median(r["tokens_per_s"] for r in rs),
                  "exposed_ms": statistics.median(r["exposed_ms"] for r in rs), "rounds": len(rs), "steps": sum(r["steps"] for r in rs)} for key, rs in groups.items()}


def settled(record):
    """What the engine chose where it may choose: compression as configured, the light one, or none."""
    line = record.get("settled", "")
    return "off" if "compression off" in line else "light" if "compression light" in line else "on" if line else ""


def speed_part(store, out, layouts):
    cells = pooled([r for r in store.of("speed") if r["layout"] in layouts])
    if not cells:
        return
    rows = []
    for (layout, micro, rate, preset), r in cells.items():
        none, bf16 = cells.get((layout, micro, rate, "none")), cells.get((layout, micro, rate, "bf16_wire"))
        rows.append([layout, micro, rate, preset, f"{r['tokens_per_s']:.0f}", f"{r['step_ms']:.0f}", f"{r['exposed_ms']:.0f}", f"{r['eth0_mb_per_update']:.2f}" if "eth0_mb_per_update" in r else "-",
                     f"{r['tokens_per_s'] / bf16['tokens_per_s']:.2f}" if bf16 else "-", f"{r['tokens_per_s'] / none['tokens_per_s']:.2f}" if none else "-", r["steps"], settled(r)])
    out.table("10.8 M parameters, fp32 compute, one thread a rank, one rank a host; same buckets and overlap for all. "
              "`NAME@1` is NAME with ZeRO 1, whose gathers may hide under the next forward pass. `alone`: the same work of every rank with no communication, all ranks at once, the slowest of them in each step. "
              "MB: what all hosts sent per step, with start and end of the run. "
              "Compression: what the engine settled on where it may choose (on, light, off); only steps behind that are counted.",
              ["pp x dp x tp", "micro batch", "link", "preset", "tokens/s", "step ms", "exposed ms", "MB", "x bf16_wire", "x fp32", "steps counted", "compression"], rows)

    def hold(a, b, what, words, least=None, most=None):
        """A target of cell a over cell b, where both were measured."""
        if a in cells and b in cells and cells[b][what] > 0:
            got = cells[a][what] / cells[b][what]
            out.target(words.format(got=got, percent=100 * (got - 1)), (least is None or got >= least) and (most is None or got <= most))

    for layout in ("1x2x1", "1x4x1"):
        for preset, least in (("bf16_wire", 2.5), ("none", 4.5)):
            base = max((p for p in (preset, preset + "@1") if (layout, 1, "100mbit", p) in cells), key=lambda p: cells[layout, 1, "100mbit", p]["tokens_per_s"], default=preset)
            hold((layout, 1, "100mbit", "thinwire"), (layout, 1, "100mbit", base), "tokens_per_s",
                 f"{layout}, micro batch 1, 100 Mbit/s: thinwire {{got:.2f}}x {base} (at least {least}x)", least=least)
    in_turn = {r["layout"] for r in store.of("paired")}  # whose target is held to a better measurement
    for layout in ("1x2x1", "1x4x1"):
        if layout not in in_turn:
            hold((layout, 8, "100mbit", "thinwire"), (layout, 8, "alone", "alone"), "step_ms",
                 f"{layout}, micro batch 8, 100 Mbit/s: thinwire's step {{percent:+.1f}} % of the one without communication (at most +8 %)", most=1.08)
    for layout in ("2x2x1", "2x1x2", "4x1x1"):
        # What is exposed without a link's limits is the bubble, and the wait for ranks that share a core.
        beyond = [cells[layout, 1, "100mbit", p]["exposed_ms"] - cells[layout, 1, "none", p]["exposed_ms"] for p in ("thinwire", "bf16_wire")
                  if {(layout, 1, "100mbit", p), (layout, 1, "none", p)} <= set(cells)]
        hold((layout, 1, "100mbit", "thinwire"), (layout, 1, "100mbit", "bf16_wire"), "exposed_ms",
             f"{layout}, 100 Mbit/s: exposed_ms of thinwire {{got:.2f}} of bf16_wire's (at most 0.5)"
             + (f"; beyond what each has unshaped: {beyond[0]:.0f} and {beyond[1]:.0f} ms" if len(beyond) == 2 else ""), most=0.5)
    for layout, micro in sorted({(k[0], k[1]) for k in cells}):
        hold((layout, micro, "1gbit", "thinwire"), (layout, micro, "none", "thinwire"), "step_ms",
             f"{layout}, micro batch {micro}: thinwire at 1 Gbit/s {{percent:+.1f}} % of its unshaped step (at most +5 %)", most=1.05)
        hold((layout, micro, "10gbit", "thinwire"), (layout, micro, "10gbit", "none"), "step_ms",
             f"{layout}, micro batch {micro}, 10 Gbit/s: thinwire's step {{percent:+.1f}} % of the uncompressed (at most +2 %)", most=1.02)
    for preset in ("mzhybrid", "zhybrid") if "2x2x1" in layouts else ():
        hold(("2x2x1", 1, "100mbit", preset), ("2x2x1", 1, "100mbit", "none"), "tokens_per_s",
             f"{preset} on 2x2x1 at 100 Mbit/s: {{percent:+.1f}} % over fp32 wire (above +17.3 %)", least=1.173)
    out.commands(list(cells.values()), "all, first round")


def ladder_part(store, out):
    records = store.of("ladder")
    if not records:
        return
    of = {r["key"].split(" ", 3)[3]: r for r in records}
    rows = [[name, sites_cell(r), f"{sum(s['wire_bytes_total'] for s in r['sites'].values()) / 1e6:.2f}", f"{r['exposed_ms']:.0f}", f"{r['step_ms']:.0f}", r["steps"]] for name, r in of.items()]
    out.table("4 stages x 2 replicas, vocabulary 16384, 100 Mbit/s. The paper starts from an embedding that is summed in two steps; ours is fused unless told otherwise.",
              ["preset", "site: kB on the wire / plain, rank 0", "MB of all ranks", "exposed ms, rank 0", "step ms", "steps counted"], rows)
    total = {name: sum(s["wire_bytes_total"] for s in r["sites"].values()) for name, r in of.items()}
    steps = [n for n in ("none two_step", "optimus_cc_cb", "optimus_cc_cb_fe", "optimus_cc_cb_fe_sc", "optimus_cc_emb") if n in total]
    for a, b in zip(steps, steps[1:]):
        out.target(f"ladder: {b} sends less than {a} ({total[b] / 1e6:.2f} and {total[a] / 1e6:.2f} MB)", total[b] < total[a])
        waits = [of[n]["exposed_ms"] for n in (a, b)]
        out.target(f"ladder: {b} waits less than {a} ({waits[1]:.0f} and {waits[0]:.0f} ms)", waits[1] < waits[0])
    out.commands(records[:1], "one of them")


def ratio_row(r):
    """(row of the table, median of the ratios, its standard error) of one record."""
    low, middle, high = statistics.quantiles(r["ratios"], n=4)
    error = 1.2533 * (high - low) / 1.349 / math.sqrt(len(r["ratios"]))  # as of a normal distribution with these quartiles
    row = [r["layout"], r["micro"], r["rate"], settled(r), len(r["ratios"]), f"{r['step_ms']:.0f}", f"{r['alone_ms']:.0f}", f"{middle:.3f}", f"{error:.3f}",
           f"{low:.3f} to {high:.3f}", f"{min(r['ratios']):.3f} to {max(r['ratios']):.3f}"]
    return row, middle, error


def paired_part(store, out):
    records = store.of("paired")
    if not records:
        return
    out.table("`thinwire` between replicas and the same work of every rank with no communication, on the same cores, stopped and continued in turn, a few seconds each; behind the decision how to compress. "
              "Each turn of both gives a ratio of medians of the slowest rank's steps; what counts is the median of these ratios, since a turn that falls into somebody else's burst may say anything. "
              "Error: of that median, from the middle half of the ratios.",
              ["pp x dp x tp", "micro batch", "link", "compression", "turns", "step ms", "alone ms", "ratio, median", "error", "middle half", "least to most"], [ratio_row(r)[0] for r in records])
    for r in records:
        _, got, error = ratio_row(r)
        what = f"{r['layout']}, micro batch {r['micro']}, {r['rate']}: thinwire"
        if r["rate"] == "100mbit":
            out.target(f"{what}'s step {100 * (got - 1):+.1f} % (+- {100 * error:.1f}) of the one without communication (at most +8 %)", got <= 1.08)
        if r["layout"] == "1x2x1":
            out.target(f"{what} {100 / got:.1f} % (+- {100 * error / got ** 2:.1f}) of its own speed without communication (at least 95 %)", got <= 1 / 0.95)
    out.commands(records, "all")


# Table of the store, the heading of its section and what writes it, with more arguments.
PARTS = (("presets", "## Every preset trains", presets_part), ("loss", "## Loss after equal tokens", loss_part),
         ("speed", "## What it buys between replicas", speed_part, ("1x2x1", "1x4x1")),
         ("speed", "## What it buys between stages and in layers", speed_part, ("2x2x1", "2x1x2", "4x1x1")),
         ("paired", "## Beside the same work without communication", paired_part), ("ladder", "## Optimus-CC's ladder", ladder_part))


def from_to(values):
    values = sorted(set(values))
    return values[0] + (f" to {values[-1]}" if values[-1] != values[0] else "")


def section(store, table, heading, part, *more):
    """Heading, when and where, targets, tables; "" without cells."""
    out, records = Section(), [r for r in store.records.values() if r["table"] == table]
    part(store, out, *more)
    if not out.lines:
        return ""
    bad = [f"- {r['key']}: {r['error'].splitlines()[0]}" for r in store.failed(table)]
    failed = ["Cells that failed:", "", *bad, ""] if bad else []
    where = "; ".join(sorted({r["machine"] for r in records}))
    return "\n".join([heading, "", f"Measured {from_to(r['date'] for r in records)}: {where}.", "", *out.targets, "", *out.lines, *failed]).rstrip() + "\n"


def targets_of(text):
    return [line for line in text.splitlines() if line.startswith((MET, MISSED))]


def write(store, path):
    """What a person has written in front of the mark stays, and sections that the store has nothing for."""
    if not store.records:
        print(f"nothing collected yet in {store.path}")
        return 1
    page = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            page = f.read()
    if MARK not in page:
        page = HEAD + "\n" + MARK + "\n"
        with open(path, "w", encoding="utf-8") as f:
            f.write(page)
    kept = {text.split("\n", 1)[0]: text.rstrip() + "\n" for text in re.split(r"^(?=## )", page.partition(MARK)[2], flags=re.MULTILINE)}
    sections, fewer = {}, 0
    for table, heading, *part in PARTS:
        new, old = section(store, table, heading, *part), kept.get(heading, "")
        more = len(targets_of(new)) >= len(targets_of(old))
        # A few cells measured again are no table: what the page has stays until as much is there.
        if not more and store.of(table):
            print(f"{heading[3:]}: the store gives {len(targets_of(new))} targets and the page has {len(targets_of(old))}; it stays as it is")
            fewer += 1
        sections[heading] = new if more and new else old
    sections.update((h, text) for h, text in kept.items() if h.startswith("## ") and h not in (*sections, "## Targets", "## Bars"))  # written by nobody here
    summary, missed = [], 0
    for heading, text in sections.items():
        not_met = [line for line in targets_of(text) if line.startswith(MISSED)]
        missed += len(not_met)
        if text:
            summary += [f"- {heading[3:]}: {len(targets_of(text)) - len(not_met)} met" + (f", {len(not_met)} **missed**:" if not_met else ""), *("    " + line for line in not_met)]
    missing = [heading[3:] for heading, text in sections.items() if not text]
    text = ["", "## Targets", "", "Each section says which.", "", *summary, "", *([f"Not measured yet: {', '.join(missing)}.", ""] if missing else []), *(t for t in sections.values() if t)]
    measured.put(path, MARK, "\n".join(text).rstrip() + "\n")
    bad = [r for r in store.records.values() if "error" in r]
    print("\n".join(line for t in sections.values() for line in targets_of(t)))
    print(f"{missed} targets missed; {len(bad)} cells failed; {path}")
    return 1 if missed or bad or fewer else 0
