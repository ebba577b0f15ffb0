# The folder of a sweep as one table: a row per point with every metric, its distance from the baseline point, its spread over seeds.
"""Columns of results.csv: what the point is (`id`, the axes, `seed`, ranks), how it ended (`state`, `code`, `reason`), then the metrics under the names of
metrics.jsonl, and what is computed from them:
  times, speeds, norms   medians over the second half of the steps, so that start and warm-up do not count
  SITE.*_bytes           mean per step over the second half (some codecs send different factors in turn); `wire_bytes` is the sum over sites
  run_wire_bytes_total   sum over all ranks and all steps: the abscissa of loss against bytes
  train_loss             mean over the last tenth of the steps, at most 20 (one step's loss is noise); `loss` is the last one
  gap.X                  percent above the baseline point that has the same remaining axes; `baseline` is its id
  mean.X low.X high.X    over the seeds of a point, `seeds` of them finished
  pareto.X               1 where no other point of the panel has both a smaller loss and a better X; judged on means over seeds
"""

import collections
import csv
import io
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys

import sweep_html
import sweep_json
import sweep_store
import sweep_svg
from measured import build_folder
from sweep_store import StoreError, read_object, write_atomic

LAST = {"step", "consumed_samples", "consumed_tokens", "loss", "lr", "loss_scale", "wall_s"}  # the last value says it
COMPARED = ("eval_loss", "train_loss", "tokens_per_s", "step_ms", "model_tflops_per_rank", "samples_per_s", "exposed_ms", "wire_bytes", "wire_bytes_total",
            "run_wire_bytes_total", "memory_peak_bytes")
SUMMED = ("wire_bytes", "logical_bytes", "wire_bytes_total", "logical_bytes_total", "encode_ms", "decode_ms", "busy_ms", "exposed_ms")
PARETO = {"tokens_per_s": 1, "run_wire_bytes_total": -1}  # name -> which direction is better


def finite(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


class Steps:
    """The steps of a run, a row each: as dicts they would take a gigabyte per hundred thousand. A column is named by its path:
    ("loss",), ("time_ms", "forward"), ("comm", "dp.gradient", "wire_bytes"). None where a step does not have it."""

    def __init__(self):
        self.places, self.rows = {}, {}

    def __len__(self):
        return len(self.rows)

    def add(self, entry):
        found = {}
        for name, value in entry.items():
            if name not in ("comm", "time_ms"):
                found[name,] = value
            elif isinstance(value, dict):
                for inner, v in value.items():
                    if name == "time_ms":
                        found[name, inner] = v
                    elif isinstance(v, dict):  # anything else than an object is no site
                        found.update({(name, inner, key): number for key, number in v.items()})
        for path in found:
            self.places.setdefault(path, len(self.places))
        self.rows[entry["step"]] = tuple(map(found.get, self.places))

    def column(self, path, begin=0):
        """From the row `begin` on."""
        place = self.places.get(path, len(self.places))
        return [row[place] if place < len(row) else None for row in itertools.islice(self.rows.values(), begin, None)]

    def sites(self):
        """{site: names of its columns}."""
        found = {}
        for path in self.places:
            if path[0] == "comm":
                found.setdefault(path[1], []).append(path[2])
        return found

    def sums(self, name, begin=0):
        """Of a number over the sites."""
        columns = [self.column(("comm", site, name), begin) for site, names in self.sites().items() if name in names]
        return [None if all(v is None for v in values) else sum(v for v in values if finite(v)) for values in zip(*columns)]


def metrics_of(path):
    """(steps, evaluations) of a metrics.jsonl; broken, half-written and foreign lines are left out, of a step that is there twice the later counts."""
    steps, evaluations = Steps(), {}
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in f:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(entry, dict) or not finite(entry.get("step")):
                    continue
                if entry.get("split", "valid") != "valid":
                    continue  # the test text, at the end of a run: not what runs are compared by
                if "eval_loss" in entry:
                    evaluations[entry["step"]] = entry
                elif "loss" in entry:
                    steps.add(entry)
    except OSError:
        pass
    steps.rows = dict(sorted(steps.rows.items()))
    return steps, [evaluations[s] for s in sorted(evaluations)]


def tail_loss(losses):
    losses = [loss for loss in losses[-min(20, (len(losses) + 9) // 10) :] if finite(loss)]
    return statistics.fmean(losses) if losses else None


def measured(steps, evaluations):
    """Metric columns of one run; a column is missing where nothing says it."""
    row = {}
    half = len(steps) // 2

    def put(name, values, how=statistics.median):
        values = [v for v in values if finite(v)]
        if values:
            row[name] = how(values)

    def middle(name):
        return statistics.fmean if "_bytes" in name else statistics.median

    for path in steps.places:
        name = ".".join(path)
        if name in LAST:
            put(name, steps.column(path, half), lambda v: v[-1])
        elif name == "memory_peak_bytes":
            put(name, steps.column(path), max)
        elif path[0] not in ("comm", "skipped", "non_finite"):
            put(name, steps.column(path, half))
    if steps.rows:
        row["updates"] = len(steps)
        row["skipped"] = sum(map(bool, steps.column(("skipped",))))
        loss = tail_loss(steps.column(("loss",)))
        if loss is not None:
            row["train_loss"] = loss
    for name in ("eval_loss", "perplexity", "eval_ms", "eval_tokens", "split"):
        if evaluations and evaluations[-1].get(name) is not None:
            row[name] = evaluations[-1][name]
    put("best_eval_loss", [e.get("eval_loss") for e in evaluations], min)
    for site, names in steps.sites().items():
        for name in names:
            values = steps.column(("comm", site, name), half)
            if "_bytes" in name and any(v is not None for v in values):
                values = [v or 0 for v in values]  # a site that paused in a step sent nothing
            if name != "baseline_dtype":
                put(f"{site}.{name}", values, middle(name))
            elif said := [v for v in values if v is not None]:
                row[f"{site}.{name}"] = said[-1]
    for name in SUMMED:
        put(name, steps.sums(name, half), middle(name))
    for name in ("wire_bytes_total", "logical_bytes_total"):
        if steps.rows:
            row["run_" + name] = sum(v or 0 for v in steps.sums(name))
    if row.get("wire_bytes_total"):
        row["compression_ratio"] = row["logical_bytes_total"] / row["wire_bytes_total"]
    return row


# ---- what varies, and what is compared with what


class Axes:
    """The axes of a plan: each a list of keys that change together."""

    def __init__(self, plan, values):
        seen = list(dict.fromkeys(k for v in values for k in v))
        together = [k for k in plan.get("zip") or {} if k in seen]
        self.names = [[k] for k in seen if k not in together and k != "seed"] + ([together] if together else []) + [["seed"]]
        self.columns = [k for axis in self.names for k in axis]
        self.baseline = {"list" if k == "name" else k for k in plan.get("baseline") or {}}

    def place(self, values, axis):
        return tuple(json.dumps(values.get(k), sort_keys=True) for k in axis)

    def group(self, values):
        """What all seeds of a point share."""
        return tuple(self.place(values, axis) for axis in self.names if axis != ["seed"])

    def compared(self, axis):
        return bool(self.baseline & set(axis))

    def panel(self, values):
        """Axes that change the task and not how it is solved: points of different panels are never on one Pareto front."""

        def task(axis):
            if axis == ["seed"] or self.compared(axis):
                return False
            return all(k.startswith("@") or bool(self.baseline) and not k.startswith(("compression", "placement", "list")) for k in axis)

        return tuple((k, hashable(values.get(k))) for axis in self.names if task(axis) for k in axis if k in values)


def hashable(value):
    """Lists and objects as their text."""
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, dict)) else value


def device_of(path):
    """What the run's log says it ran on."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            for _, line in zip(range(20), f):
                if match := re.search(r"(?:^| )device (\w+, .+)", line):
                    return match[1].strip()
    except OSError:
        pass
    return None


def gap(value, base):
    return 100.0 * (value / base - 1.0) if finite(value) and finite(base) and base != 0 else None


def dominated(a, others, name, sign):
    """Whether another (loss, value) is at least as good in both and better in one."""
    return any(b is not a and b["loss"] <= a["loss"] and sign * b[name] >= sign * a[name] and (b["loss"] < a["loss"] or sign * b[name] > sign * a[name])
               for b in others)


class Sweep:
    """All that the pages need: rows (dicts, in order), axes, plan, curves by id."""

    def __init__(self, folder):
        self.read(folder)
        self.rows = [self.row(point) for point in self.points]
        # An axis that is named like another column of any point stands under a name of its own in all of them.
        taken = {k for row in self.rows for k in row}
        self.rows = [{**{"config." + k if k in taken else k: values.get(k) for k in self.axes.columns}, **row} for row, values in zip(self.rows, self.values)]
        self.choose_loss()
        self.compare()
        self.over_seeds()
        self.fronts()

    def read(self, folder):
        self.store = sweep_store.Sweep(folder)
        self.plan = sweep_json.parse("plan.json", self.store.facts["plan_text"])
        self.points = self.store.points()
        self.values = [{**p.axes, "seed": p.axes.get("seed", p.seed)} for p in self.points]  # on the axes; `list` is the name of an entry
        self.axes = Axes(self.plan, self.values)
        self.curves = {}

    def choose_loss(self):
        """One loss for the whole sweep: the evaluation's where every finished point has it."""
        done = [r for r in self.rows if r["state"] == "finished"]
        self.loss = "eval_loss" if done and all(finite(r.get("eval_loss")) for r in done) else "train_loss"

    def row(self, point):
        run = self.store.run_dir(point.id)
        status, ended = (read_object(os.path.join(where, "status.json")) or {} for where in (self.store.folder(point.id), run))
        steps, evaluations = metrics_of(os.path.join(run, "metrics.jsonl"))
        self.curves[point.id] = sweep_html.curve(steps)
        row = {"id": point.id, "state": status.get("state", "init"), "code": status.get("code"),
               "reason": status.get("reason") or ended.get("message") or "", "attempts": status.get("attempts")}
        row.update({"launcher." + key: point.launcher[key] for key in ("kind", "ranks", "hosts", "rate") if key in point.launcher})
        row["device"] = device_of(os.path.join(run, "log.txt"))
        row["report"] = f"runs/{point.id}/run/report.html" if os.path.exists(os.path.join(run, "report.html")) else None
        for key in ("started", "ended", "seconds"):
            row[key] = status.get(key)
        row.update(measured(steps, evaluations))
        return row

    def compare(self):
        by_id = {row["id"]: row for row in self.rows}
        for row, point in zip(self.rows, self.points):
            base = by_id.get(point.baseline)
            row["baseline"] = point.baseline
            if base is None or base["state"] != "finished" or row["state"] != "finished":
                continue
            for name in COMPARED + tuple(k for k in row if k.endswith((".wire_bytes_total", ".exposed_ms"))):
                percent = gap(row.get(name), base.get(name))
                if percent is not None:
                    row["gap." + name] = percent

    def groups(self):
        """Points that differ by nothing but the seed, in order: lists of indices."""
        found = {}
        for i, values in enumerate(self.values):
            found.setdefault(self.axes.group(values), []).append(i)
        return list(found.values())

    def over_seeds(self):
        for group in self.groups():
            done = [self.rows[i] for i in group if self.rows[i]["state"] == "finished"]
            shared = {"seeds": len(done)}
            for name in dict.fromkeys([*COMPARED, *("gap." + c for c in COMPARED)]):
                have = [r[name] for r in done if finite(r.get(name))]
                if have:
                    shared.update({"mean." + name: statistics.fmean(have), "low." + name: min(have), "high." + name: max(have)})
            for i in group:
                self.rows[i].update(shared)

    def fronts(self):
        panels = {}
        for group in self.groups():
            row = self.rows[group[0]]
            if finite(row.get("mean." + self.loss)):
                panels.setdefault(json.dumps(self.axes.panel(self.values[group[0]])), []).append(group)
        for groups in panels.values():
            for name, sign in PARETO.items():
                have = [{"group": g, "loss": self.rows[g[0]]["mean." + self.loss], name: self.rows[g[0]]["mean." + name]} for g in groups
                        if finite(self.rows[g[0]].get("mean." + name))]
                for a in have:
                    for i in a["group"]:
                        if self.rows[i]["state"] == "finished":
                            self.rows[i]["pareto." + name] = 0 if dominated(a, have, name, sign) else 1

    def columns(self):
        """First what a point is and how it ended, then metrics in the order met, sites together, computed columns last."""
        names = list(dict.fromkeys(k for r in self.rows for k in r))

        def rank(name):
            kinds = ("gap.", "mean.", "low.", "high.", "pareto.")
            return 1 + [name.startswith(k) for k in kinds].index(True) if name.startswith(kinds) else 0

        return sorted(names, key=rank)


def text_of(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return value if isinstance(value, (str, int)) else json.dumps(value, sort_keys=True)


def write_csv(sweep, path):
    out = io.StringIO()
    names = sweep.columns()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in sweep.rows:
        writer.writerow([text_of(row.get(n)) for n in names])
    write_atomic(path, out.getvalue())


def make_reports(sweep, build):
    """Runs `report` where a run has metrics newer than its page. Returns what went wrong, for one warning."""
    program, problems = os.path.join(build, "report"), []
    for point in sweep.points():
        run = sweep.run_dir(point.id)
        metrics, page = os.path.join(run, "metrics.jsonl"), os.path.join(run, "report.html")
        if not os.path.exists(metrics) or os.path.exists(page) and os.path.getmtime(page) >= os.path.getmtime(metrics):
            continue
        if not os.access(program, os.X_OK):
            return [f"{program} is missing: no reports of single runs"]
        done = subprocess.run([program, run, "--output", page], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problems.append(f"report {point.id}: {(done.stderr or done.stdout).strip()}")
    return problems


def collect(folder, reports=True):
    """Writes results.csv and index.html into the folder of a sweep, whatever state its points are in, and says so."""
    for warning in make_reports(sweep_store.Sweep(folder), build_folder())[:3] if reports else []:
        print(f"warning: {warning}", file=sys.stderr)
    sweep = Sweep(folder)
    write_csv(sweep, os.path.join(folder, "results.csv"))
    try:
        write_atomic(os.path.join(folder, "index.html"), sweep_svg.draw(sweep_html.page(sweep)))
    except StoreError as e:
        print(f"warning: index.html is not written: {e}", file=sys.stderr)
    states = collections.Counter(row["state"] for row in sweep.rows)
    print(f"{os.path.join(folder, 'results.csv')}, {os.path.join(folder, 'index.html')}: " + ", ".join(f"{n} {s}" for s, n in sorted(states.items())))
