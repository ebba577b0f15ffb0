# What the tests of scripts/sweep share: a folder of their own, small plans, the command run or started, and looks into /proc.
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("THINWIRE_BUILD", ROOT / "build")).resolve()
SWEEP = ROOT / "scripts" / "sweep"
LIMIT_S = 120
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "train")]
from run_support import FULL, main  # noqa: E402, F401: the tests take them from here

# A run of some tenths of a second: what a point of these tests is unless it says otherwise.
TINY = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32, "max_position_embeddings": 32, "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2, "train_iters": 12, "save_interval": 4, "eval_interval": 0, "eval_iters": 2, "log_interval": 4,
        "data_path": str(BUILD / "data" / "tiny_text_document")}


def environment(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "SLURM_"))}
    env.update({"THINWIRE_BUILD": str(BUILD), "OMP_WAIT_POLICY": "passive", "LC_ALL": "C", **(extra or {})})
    return env


def tail_of(path):
    return json.loads(Path(path).read_text())


class SweepCase(unittest.TestCase):
    """A scratch folder per test; `self.out` is where its sweep lives."""

    maxDiff = 4000

    def setUp(self):
        self.here = Path(tempfile.mkdtemp(prefix="thinwire-sweep-"))
        self.addCleanup(shutil.rmtree, self.here, ignore_errors=True)
        self.out = self.here / "out"
        self.started = []
        self.addCleanup(self.end_started)

    def end_started(self):
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=40)
                except subprocess.TimeoutExpired:
                    process.kill()
            for stream in (process.stdout, process.stderr):
                stream.close()
            process.wait()

    def plan(self, name="plan.json", configs=("configs/gpt2_tiny.json",), keys=None, **fields):
        """Writes a plan; keys: beside TINY in `set`. Returns its path."""
        value = {"name": "test", "configs": list(configs), "set": {**TINY, **(keys or {})}, **fields}
        path = self.here / name
        path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}, indent=1))
        return path

    def sweep(self, *arguments, expect=None, extra=None, limit=LIMIT_S, cores=None):
        """Runs the command; returns (code, stdout, stderr). cores: the only ones it may use."""
        done = subprocess.run([SWEEP, *map(str, arguments)], cwd=self.here, env=environment(extra), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=limit, preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None)
        if expect is not None:
            self.assertEqual(done.returncode, expect, f"sweep {arguments}: {done.stdout}\n{done.stderr}")
        return done.returncode, done.stdout, done.stderr

    def start(self, *arguments, extra=None):
        """The command under way; ended with the test."""
        process = subprocess.Popen([SWEEP, *map(str, arguments)], cwd=self.here, env=environment(extra), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def ids(self):
        return [p["id"] for p in tail_of(self.out / "sweep.json")["points"]]

    def status(self, part=""):
        """{id: status.json} of the points whose id contains `part`; one that is not there yet counts as init."""
        found = {}
        for id_ in self.ids():
            if part in id_:
                path = self.out / "runs" / id_ / "status.json"
                found[id_] = json.loads(path.read_text()) if path.exists() else {"state": "init", "attempts": 0}
        return found

    def states(self, part=""):
        return [s["state"] for s in self.status(part).values()]

    def only(self, part):
        found = self.status(part)
        self.assertEqual(len(found), 1, found)
        return next(iter(found.items()))

    def wait_for(self, condition, what, limit=60.0):
        deadline = time.monotonic() + limit
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"waited {limit} s for: {what}")
            time.sleep(0.02)

    def updates(self, id_):
        lines = (self.out / "runs" / id_ / "run" / "metrics.jsonl").read_text().split("\n")[:-1]  # of a run under way the last one may be half there
        return [entry["step"] for entry in map(json.loads, lines) if "loss" in entry]


def stand_in(folder, body):
    """A folder of programs in which `train` is this Python text: `config` is its configuration (a dict), `run` its run directory, `rank` its rank,
    `write(state, code, step)` its status.json. Answers --dry-run with 0 unless the text looks at `dry`. Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "train"
    program.write_text(f"""#!{sys.executable} -S
import json, os, signal, sys, time
words = sys.argv[1:]
config = json.load(open(words[words.index("--config") + 1]))
dry = "--dry-run" in words
run = next((w[8:] for w in words if w.startswith("run_dir=")), config.get("run_dir"))
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
def write(state, code, step=0, message=""):
    os.makedirs(run, exist_ok=True)
    with open(run + "/status.json.new", "w") as f:
        json.dump({{"state": state, "code": code, "step": step, "message": message, "total_steps": config.get("train_iters"),
                   "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}, f)
    os.rename(run + "/status.json.new", run + "/status.json")
if dry and "dry" not in {body!r}: sys.exit(0)
{body}
""")
    program.chmod(0o755)
    return folder
