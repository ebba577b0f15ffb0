# One cell of a compression table: runs `train`, alone or in the emulated cluster, and reads what it left behind.
import contextlib
import datetime
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

import measured
from measured import ROOT, CellError, machine, output
from sweep_store import read_object

# Micro-batches of a step by pipeline stages.
ACCUMULATION = {1: 1, 2: 4, 4: 8}
FORTUNES, PERL_MANUAL = "/usr/share/games/fortunes", "/usr/share/perl/5.*.*/pod/*.pod"


class Store:
    """Results as JSON lines in a folder: what is in there is not measured again. settings: what a cell's key does not tell, one for all cells of a folder."""

    def __init__(self, folder, settings=None):
        self.folder = os.path.abspath(folder)
        if os.path.commonpath([self.folder, ROOT]) == ROOT:
            raise CellError(f"--out {folder} is inside the tree; name a folder elsewhere")
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, "results.jsonl")
        self.records = {r["key"]: r for r in measured.read_cells(self.path)}
        if settings is not None:
            before = measured.kept(os.path.join(self.folder, "settings.json"), lambda: settings)
            if before != settings:
                raise CellError(f"--out {folder} holds cells of other settings ({before}, now {settings}): name another folder")

    def has(self, key):
        return key in self.records and "error" not in self.records[key]

    def add(self, record):
        self.records[record["key"]] = record
        measured.add_cell(self.path, record)


def layout_keys(layout, zero=0):
    """pp x dp x tp -> (keys, ranks, data-parallel ranks)."""
    pp, dp, tp = (int(n) for n in layout.split("x"))
    keys = [f"pipe_parallel_size={pp}", f"model_parallel_size={tp}"]
    if dp > 1 and zero:
        keys.append(f"zero_optimization.stage={zero}")
    return keys, pp * dp * tp, dp


def presets():
    """none, and every file of configs/compression."""
    return ["none"] + sorted(f[:-5] for f in os.listdir(os.path.join(ROOT, "configs", "compression")) if f.endswith(".json"))


def fortunes():
    """{name: text} of Debian's fortunes."""
    if not os.path.isdir(FORTUNES):
        raise CellError("no text: scripts/install_deps.sh --with fortunes, or name one with --text")
    found = {}
    for name in sorted(os.listdir(FORTUNES)):
        path = os.path.join(FORTUNES, name)
        if os.path.isfile(path) and not os.path.islink(path) and not name.endswith((".dat", ".u8")):
            with open(path, "rb") as f:
                found[name] = re.sub(rb"(?m)^%$", b"", f.read()) + b"\n"
    return found


def fortunes_and_manual():
    """{name: text} of the fortunes and of Perl's manual (Debian's perl-doc), in an order that mixes both."""
    paths = glob.glob(PERL_MANUAL)
    if not paths:
        raise CellError("no text: apt-get install perl-doc, or name one with --text")
    found = fortunes()
    for path in paths:
        with open(path, "rb") as f:
            found[os.path.basename(path)] = f.read() + b"\n"
    return {name: found[name] for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())}


def text(folder, build, given=None, source=fortunes):
    """Training and validation text as the quickstart makes them (the last 5 % held out). Returns (keys, facts: bigram, trigram, bytes)."""
    where, kind = os.path.join(folder, "text"), "given" if given else source.__name__

    def make():
        os.makedirs(where, exist_ok=True)
        if given:
            with open(given, "rb") as f:
                whole = f.read()
        else:
            whole = b"".join(source().values())
        if len(whole) < 100000:
            raise CellError(f"the text has {len(whole)} bytes; at least 100000 are needed to learn anything")
        cut = len(whole) * 95 // 100
        for part, content in (("train", whole[:cut]), ("valid", whole[cut:])):
            with open(os.path.join(where, part + ".txt"), "wb") as f:
                f.write(content)
            output([os.path.join(build, "tokenize"), "--input", os.path.join(where, part + ".txt"), "--tokenizer", "byte", "--output", os.path.join(where, part)])
        printed = output([sys.executable, os.path.join(ROOT, "scripts", "ngram_baseline.py"), *(os.path.join(where, p + "_text_document") for p in ("train", "valid"))])
        words = printed.split()
        return {"bigram": float(words[1]), "trigram": float(words[3]), "bytes": len(whole), "valid_bytes": len(whole) - cut, "source": kind}
    facts = measured.kept(os.path.join(where, "facts.json"), make)
    if facts.get("source", kind) != kind:  # the texts of two tables have other losses
        raise CellError(f"--out {folder} holds the text {facts['source']}, and this table is of {kind}: name another folder")
    return [f'{part}_data_paths=["{where}/{part}_text_document"]' for part in ("train", "valid")], facts


SITE_LINE = re.compile(r"^  (\S+) +[\d.]+ MiB.*?\((at most )?(?:(\d+) to )?(\d+) bytes in (\d+) operations?, (\w+)(?:, (?:1/([\d.]+)|none) of it by (.+))?\)$")


def predicted(build, keys, ranks):
    """{site: {low, high, at_most, ratio, codec}} of `--dry-run`: bytes that a stage's first rank sends per step. Raises CellError with the refusal."""
    sites = {}
    for line in output([os.path.join(build, "train"), *keys, "--dry-run", "--ranks", str(ranks)]).splitlines():
        match = SITE_LINE.match(line)
        if match and int(match[5]) > 0:
            sites[match[1]] = {"low": int(match[3] or match[4]), "high": int(match[4]), "at_most": bool(match[2]),
                               "ratio": float(match[7]) if match[7] else 1.0, "codec": match[8]}
    return sites


def shown(words, folder, build):
    """A command for the reader: no folders of this machine."""
    line = shlex.join(words).replace(build + "/", "build/").replace(ROOT + "/", "").replace(folder, "OUT")
    return re.sub(r" --name tables-\d+", "", line)


def train(front, build, keys, run_dir, limit, may_stop=False):
    """Runs train; returns (lines of metrics.jsonl, log.txt, seconds, the command). may_stop: its own time limit may end it."""
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [*front, os.path.join(build, "train"), *keys, f"run_dir={run_dir}"]
    start = time.monotonic()
    code, out, err = measured.run(command, limit)
    seconds, said = time.monotonic() - start, (err or out).strip()[-800:]
    state = read_object(os.path.join(run_dir, "status.json"))
    if state is None:
        raise CellError(f"exit {code}: {said}")
    if state["code"] != 0 and not (may_stop and state["code"] == 75):
        raise CellError(f"exit {state['code']}: {state['reason']} {state['message']}"[:400])
    if code != 0 and state["code"] == 0:
        raise CellError(f"exit {code} though the run had finished: {said}")
    lines = measured.read_cells(os.path.join(run_dir, "metrics.jsonl"))
    with open(os.path.join(run_dir, "log.txt"), encoding="utf-8") as f:
        log = f.read()
    shutil.rmtree(run_dir, ignore_errors=True)
    return lines, log, seconds, command


def decided_at(log):
    """After which step the run had settled how to code every site, and the lines that say so; (0, "") where nothing was to settle."""
    found = list(re.finditer(r"plan revision after step (\d+): [^\n]*", log))
    return (int(found[-1][1]), "; ".join(m[0] for m in found)) if found else (0, "")


def summary(lines, skip):
    """Medians over the steps behind `skip`; bytes are means, since some codecs send different factors in turn."""
    steps = [x for x in lines if "loss" in x and x["step"] > skip]
    if not steps:
        raise CellError(f"no step behind the first {skip}: more time is needed")
    out = {"steps": len(steps), "skipped": skip, "step_ms": statistics.median(x["step_ms"] for x in steps),
           "step_ms_low": min(x["step_ms"] for x in steps), "step_ms_high": max(x["step_ms"] for x in steps),
           "tokens_per_step": steps[-1]["samples_per_s"] and round(steps[-1]["tokens_per_s"] * steps[-1]["step_ms"] / 1e3), "loss": steps[-1]["loss"], "sites": {}}
    out["tokens_per_s"] = out["tokens_per_step"] / out["step_ms"] * 1e3
    for site in dict.fromkeys(site for x in steps for site in x["comm"]):
        rows = [x["comm"].get(site) for x in steps]
        rows = [r for r in rows if r]  # a step in which the site pauses counts, with no bytes
        out["sites"][site] = {name: sum(r[name] for r in rows) / len(steps) for name in ("wire_bytes", "logical_bytes", "wire_bytes_total", "logical_bytes_total")}
        out["sites"][site].update({name: statistics.median(r[name] for r in rows) for name in ("encode_ms", "decode_ms", "busy_ms", "exposed_ms")})
        out["sites"][site]["last_wire_bytes"] = rows[-1]["wire_bytes"]
        errors = [r["rel_error"] for r in rows if r["rel_error"] is not None]
        out["sites"][site]["rel_error"] = statistics.median(errors) if errors else None
        out["sites"][site]["baseline_dtype"] = rows[-1]["baseline_dtype"]
    out["exposed_ms"] = statistics.median(sum(s["exposed_ms"] for s in x["comm"].values()) for x in steps)
    return out


def final_loss(lines):
    losses = [x["eval_loss"] for x in lines if "eval_loss" in x and x["split"] == "valid"]
    if not losses:
        raise CellError("no evaluation")
    return losses[-1]


def agrees(site, row):
    """Whether a site sent the bytes that the dry run predicts: 'equal', 'between', 'bounded' (size depends on the data), or the difference."""
    sent = row["last_wire_bytes"]
    if site["at_most"]:
        return "bounded" if sent <= site["high"] else f"{sent:.0f} > {site['high']}"
    if site["low"] <= sent <= site["high"] and (site["low"] == site["high"] or sent in (site["low"], site["high"])):
        return "equal"
    return "between" if site["low"] <= sent <= site["high"] else f"{sent:.0f}, not {site['low']} to {site['high']}"


def alone_front(lab, ranks, run_dir):
    """The words in front of train that start one run per host, each in a folder of its own. Without the launcher's variables they are runs of one rank."""
    return [*lab.run(ranks), "sh", "-c", 'k=$PMI_RANK; unset PMI_SIZE PMI_RANK PMI_FD; exec "$0" "$@" run_dir=' + run_dir + "/$k"]


class Stopped:
    """A job in the lab that is stopped and continued from outside, to measure it in turn with another one on the same cores."""

    def __init__(self, command, run_dir, folders, warm=8):
        self.run_dir, self.folders, self.slices, self.warm = run_dir, folders, [], warm
        self.command = command
        shutil.rmtree(run_dir, ignore_errors=True)
        if folders[0] != run_dir:
            os.makedirs(run_dir)
        # A file, not a pipe that nobody empties.
        self.said = open(run_dir + ".said", "w+", encoding="utf-8")
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.said, stderr=self.said)

    def signal(self, number):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                if words[0].endswith(b"/train") and any(w.startswith(b"run_dir=" + self.run_dir.encode()) for w in words):
                    os.kill(int(pid), number)

    def step_times(self):
        """Per step the slowest rank's milliseconds, behind the first `warm`."""
        ranks = []
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
                ranks.append([json.loads(line)["step_ms"] for line in f if line.endswith("\n") and '"loss"' in line])
        return [max(of) for of in zip(*ranks)][self.warm:] if len(ranks) == len(self.folders) else []

    def log(self):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.folders[0], "log.txt"), encoding="utf-8") as f:
            return f.read()
        return ""

    def wait_until(self, done, limit):
        end = time.monotonic() + limit
        while not done():
            if self.process.poll() is not None or time.monotonic() > end:
                self.said.seek(0)
                raise CellError(f"not there after {limit} s, or ended: {self.said.read().strip()[-400:]}")
            time.sleep(0.5)

    def go(self, seconds):
        before = len(self.step_times())
        self.signal(signal.SIGCONT)
        time.sleep(seconds)
        # The step that was cut, and the one behind it, whose caches were somebody else's, are left out.
        self.slices.append((before + 2, len(self.step_times())))
        self.signal(signal.SIGSTOP)

    def medians(self):
        every = self.step_times()
        usual = statistics.median(every)
        return [statistics.median([ms for ms in every[a:b] if ms < 2 * usual] or [usual]) for a, b in self.slices]

    def end(self):
        if self.said.closed:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=30)
        self.signal(signal.SIGKILL)
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.said.close()
        os.remove(self.run_dir + ".said")
        shutil.rmtree(self.run_dir, ignore_errors=True)


def paired_with_alone(lab, build, folder, ranks, micro, rate, zero, pairs, seconds, keys):
    """thinwire between replicas, one a host, and the same work without communication, stopped and continued in turn: a machine that is slower in one
    minute than in the next is so for both. Measured behind the decision how to compress."""
    lab.be(ranks, rate)
    runs = [os.path.join(folder, "run_" + who) for who in ("ours", "alone")]
    same = ["--config", "configs/sweeps/speed_10m.json", f"train_micro_batch_size_per_gpu={micro}", "gradient_accumulation_steps=1", "train_iters=1000", *keys]
    layout, _, _ = layout_keys(f"1x{ranks}x1", zero)
    jobs = []
    try:
        jobs.append(Stopped([*lab.run(ranks), os.path.join(build, "train"), *same, *layout, "compression.preset=thinwire", "compression.adapt=true", "run_dir=" + runs[0]], runs[0], [runs[0]]))
        jobs[0].wait_until(lambda: decided_at(jobs[0].log())[0], 400)
        line = decided_at(jobs[0].log())[1]
        jobs[0].signal(signal.SIGSTOP)
        jobs.append(Stopped([*alone_front(lab, ranks, runs[1]), os.path.join(build, "train"), *same], runs[1], [os.path.join(runs[1], str(k)) for k in range(ranks)]))
        jobs[1].wait_until(jobs[1].step_times, 120)
        jobs[1].signal(signal.SIGSTOP)
        for k in range(pairs):
            for job in jobs if k % 2 else jobs[::-1]:
                job.go(seconds)
        ours, alone = (job.medians() for job in jobs)
    finally:
        for job in jobs:
            job.end()
    ratios = [a / b for a, b in zip(ours, alone)]
    return {"step_ms": statistics.median(ours), "alone_ms": statistics.median(alone), "ratios": ratios, "settled": line,
            "said": f"{statistics.median(ours):.0f} ms beside {statistics.median(alone):.0f} alone, median of ratios {statistics.median(ratios):.4f} over {pairs} turns; {line}",
            "command": f"scripts/lab up --hosts {ranks} --rate {rate}; " + shown(jobs[0].command, folder, build) + "  # and in turn: " + shown(jobs[1].command, folder, build)}


def measure(store, table, key, words, what):
    """Runs one cell unless it is known: what() returns the fields of its record beside `words`."""
    if store.has(key):
        return
    record = {"table": table, "key": key, **words, "date": datetime.datetime.now().strftime("%Y-%m-%d"), "machine": machine()}
    start = time.monotonic()
    try:
        record.update(what())
    except CellError as e:
        record["error"] = str(e)
    record["seconds"] = round(time.monotonic() - start, 1)
    store.add(record)
    said = record.get("error") or record.get("said", "done")
    print(f"{key}: {said}  [{record['seconds']:.0f} s]", flush=True)
    if "command" in record:
        print(f"    {record['command']}", flush=True)
