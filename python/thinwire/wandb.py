"""Forwards a run to Weights & Biases: python -m thinwire.wandb RUN_DIR [--project P]. Reads metrics.jsonl; training knows nothing of it."""
import argparse
import json
import os
import signal
import sys
import threading
import time
import uuid

from .runs import flat, is_evaluation, json_lines


class Lines:
    """The records of metrics.jsonl, each step and evaluation once, numbered in the order in which they first came. A run that went on from a checkpoint cuts its
    file and takes steps again: they keep their numbers."""

    def __init__(self, path):
        self.path, self.at, self.last, self.seen = path, 0, b"", set()  # last: the end of what was read, to notice that it is no longer there

    def more(self):
        """(number, record) of what was not there yet."""
        try:
            with open(self.path, "rb") as f:
                f.seek(self.at - len(self.last))
                if f.read(len(self.last)) != self.last:
                    self.at, self.last = 0, b""
                    f.seek(0)
                text = f.read()
        except FileNotFoundError:
            return []
        whole = text[:text.rfind(b"\n") + 1]
        self.at += len(whole)
        self.last = (self.last + whole)[-200:]
        out = []
        for record in json_lines(whole)[0]:
            key = record["step"], record.get("split", "valid") if is_evaluation(record) else ""
            if key not in self.seen:
                out.append((len(self.seen), record))
                self.seen.add(key)
        return out


class Note:
    """RUN_DIR/wandb.json: the name of the run over there, and how many records were sent."""

    def __init__(self, run_dir):
        self.path = os.path.join(run_dir, "wandb.json")
        self.values = read_json(run_dir, "wandb.json") or {"id": uuid.uuid4().hex[:12], "sent": 0}

    def write(self, **values):
        self.values.update(values)
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            json.dump(self.values, f)
        os.replace(self.path + ".new", self.path)


def as_logged(record):
    """Numbers by slashes, as its pages group them: loss, comm/dp.gradient/wire_bytes, valid/loss."""
    if is_evaluation(record):
        split = record.get("split", "valid")
        return {"step": record["step"], "wall_s": record.get("wall_s"), f"{split}/loss": record["eval_loss"], f"{split}/perplexity": record.get("perplexity")}
    out = {**flat(record, ("comm", "time_ms")), **{f"time_ms/{k}": v for k, v in (record.get("time_ms") or {}).items()}}
    for site, values in (record.get("comm") or {}).items():
        out.update({f"comm/{site}/{k}": v for k, v in values.items()})
    return {k: v for k, v in out.items() if v is not None and not isinstance(v, (list, str))}


def read_json(run_dir, name):
    try:
        with open(os.path.join(run_dir, name), encoding="utf-8") as f:
            return json.load(f)
    except (FileNotFoundError, ValueError):
        return {}


def forward(wandb, o, stop):
    """Sends what there is, then what comes, until the run has ended or `stop` is set; returns the exit code."""
    note, lines = Note(o.run_dir), Lines(os.path.join(o.run_dir, "metrics.jsonl"))
    run = wandb.init(project=o.project, name=o.name or os.path.basename(os.path.abspath(o.run_dir)), id=note.values["id"], resume="allow", dir=o.run_dir,
                     config=read_json(o.run_dir, "config.resolved.json"))
    run.define_metric("*", step_metric="step")
    # Each record is one call of log(), so the server's count says what arrived; offline there is none, and the note has to do.
    sent = note.values["sent"] if run.offline else run.step
    code, end, news = 75, "stopped by a signal", time.monotonic()
    while not stop.is_set():
        status = read_json(o.run_dir, "status.json")  # before the lines: the last of them are older than the end
        for number, record in lines.more():
            news = time.monotonic()
            if number < sent:
                continue
            if stop.is_set():
                break
            sent = number + 1
            note.write(sent=sent)
            run.log(as_logged(record))
        if stop.is_set():
            break
        if status.get("state", "running") != "running":
            code, end = status.get("code") or 0, f"the run has ended: {status['state']}"
            break
        if time.monotonic() - news >= o.quiet:
            code, end = 1, f"no news for {o.quiet:g} s: the run was killed, or hangs"
            break
        stop.wait(o.every)
    run.finish(exit_code=code)
    print(f"{o.run_dir}: {sent} records sent; {end}", flush=True)
    return 75 if stop.is_set() else 0


class Parser(argparse.ArgumentParser):
    """A wrong command line ends with 64, as that of every program does."""

    def error(self, message):
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(64)


def seconds(text):
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is no time above 0")
    return value


def main():
    options = Parser(prog="python -m thinwire.wandb", description=__doc__)
    options.add_argument("run_dir", metavar="RUN_DIR")
    options.add_argument("--project", default="thinwire")
    options.add_argument("--name", help="of the run; default: the last part of its path")
    options.add_argument("--every", type=seconds, default=5, help="seconds between two looks (5)")
    options.add_argument("--quiet", type=seconds, default=3600, help="seconds without a new line after which the run is taken for dead (3600)")
    o = options.parse_args()
    if not os.path.isdir(o.run_dir):
        print(f"error: {o.run_dir}: no such run directory; give the one that holds metrics.jsonl", file=sys.stderr)
        return 65
    try:
        import wandb
    except ImportError:
        print("error: the package wandb is missing: pip install './python[wandb]'", file=sys.stderr)
        return 66
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return forward(wandb, o, stop)


if __name__ == "__main__":
    sys.exit(main())
