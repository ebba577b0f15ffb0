# What the whole-run tests share: a tiny data set, tiny configurations, programs run with a time limit, and bit-exact comparison.
import array
import contextlib
import json
import os
import queue
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("THINWIRE_BUILD", ROOT / "build")).resolve()
LAUNCH = shlex.split(os.environ.get("THINWIRE_LAUNCH") or "mpirun")  # the words before `-n RANKS`
FULL = bool(os.environ.get("THINWIRE_TEST_FULL"))  # scripts/test.sh full: all cases of tests that otherwise take a fixed part of them
LIMIT_S = 120  # no single program of these tests takes longer, however busy the machine
SAVE_POINTS = ["save.begin", "save.after_copy", "save.after_mkdir", "save.before_shard", "save.mid_shard", "save.after_shard",
               "save.before_manifest", "save.after_manifest", "save.before_rename", "save.after_rename", "save.before_latest",
               "save.after_latest", "save.before_prune", "save.after_prune"]


def text_of(paragraphs, seed):
    """Paragraphs of a made-up language: words repeat, so a model has something to learn."""
    chance = random.Random(seed)
    words = "the of and a sea wind stone river light house old went under over wide grey boat rain to from".split()
    return "\n\n".join(" ".join(chance.choice(words) for _ in range(chance.randint(8, 90))) for _ in range(paragraphs))


def fault(row, **facts):
    """Prints what became of a fault (seconds, code) for fault_matrix.py to read."""
    print("fault:", json.dumps({"row": row, **{k: round(v, 2) if isinstance(v, float) else v for k, v in facts.items()}}), flush=True)


class Finished:
    """How a program ended: `code` as waitpid gives it (negative: killed by a signal), `out` and `err` as text."""

    def __init__(self, name, code, out, err):
        self.name, self.code, self.out, self.err = name, code, out, err

    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    def __str__(self):
        return f"{self.name}: code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


def environment(extra=None):
    env = dict(os.environ)
    env["OMP_WAIT_POLICY"] = "passive"  # as `train` would set it itself by starting itself again
    env["LC_ALL"] = "C"
    for name in ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        env.pop(name, None)
    env.update(extra or {})
    return env


def command_of(name, arguments, ranks):
    """One rank: the program itself. More: the launcher in front, also with more ranks than cores and as root in a container."""
    command = [str(BUILD / name)] + [str(a) for a in arguments]
    return command if ranks == 1 else [*LAUNCH, "-n", str(ranks)] + command


def run_program(name, *arguments, cwd=None, limit=LIMIT_S, stdin=None, extra=None, ranks=1):
    command = command_of(name, arguments, ranks)
    done = subprocess.run(command, cwd=cwd, env=environment(extra), stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=limit, check=False)
    return Finished(name, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


class Running:
    """A program under way whose output can be waited for."""

    def __init__(self, name, *arguments, cwd=None, ranks=1, command=None, extra=None, before=None):
        self.name = name
        self.process = subprocess.Popen(command or command_of(name, arguments, ranks), cwd=cwd, env=environment(extra),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        errors="replace", preexec_fn=before)
        self.lines = queue.Queue()
        self.text = {"out": "", "err": ""}
        self.readers = [threading.Thread(target=self._read, args=(w, s), daemon=True)
                        for w, s in (("out", self.process.stdout), ("err", self.process.stderr))]
        for reader in self.readers:
            reader.start()

    def _read(self, which, stream):
        for line in stream:
            self.text[which] += line
            self.lines.put(line)
        self.lines.put(None)

    def wait_for(self, part, limit=LIMIT_S):
        """True once a line with `part` in it appeared; False when the program ended without it. queue.Empty after `limit` seconds."""
        deadline = time.monotonic() + limit
        ended = 0
        while ended < 2:
            line = self.lines.get(timeout=max(0.001, deadline - time.monotonic()))
            if line is None:
                ended += 1
            elif part in line:
                return True
        return False

    def send(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    @contextlib.contextmanager
    def stopped(self):
        """The program, which is one process, stands still meanwhile: what is done then comes before whatever it does next."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def finish(self, limit=LIMIT_S):
        try:
            self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        for reader in self.readers:
            reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()
        return Finished(self.name, self.process.returncode, self.text["out"], self.text["err"])


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of one file."""
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    body = data[8 + length:]
    return {name: (t["dtype"], tuple(t["shape"]), body[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def checkpoints_in(directory):
    """Committed checkpoints of a directory, oldest first."""
    return sorted((p for p in Path(directory).iterdir() if re.fullmatch(r"step_\d+(-\d+)?", p.name)),
                  key=lambda p: json.loads((p / "manifest.json").read_text())["sequence"])


def read_checkpoint(path):
    """What a checkpoint holds as training state: stored pieces of tensors by name, integers, reals (as bit patterns), texts."""
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    tensors = {}
    for entry in manifest["files"]:
        for name, value in read_safetensors(Path(path) / entry["name"]).items():
            if name in tensors:  # pieces of a tensor may have one name in the files of several ranks
                name = entry["name"] + ":" + name
            tensors[name] = value
    reals = {name: value["bits"] for name, value in manifest["reals"].items()}
    return {"step": manifest["step"], "tensors": tensors, "integers": manifest["integers"], "reals": reals, "texts": manifest["texts"]}


def residual_sums(checkpoint):
    """Residuals of dp.gradient in a checkpoint, each added up over the data ranks: {name without the rank: numbers}."""
    sums = {}
    for name, (dtype, _, data) in read_checkpoint(checkpoint)["tensors"].items():
        found = re.match(r"(?:.*:)?coding/dp\.gradient/(\d+)/rank(\d+)\.\d+\.(\d+)/(.*residual)$", name)
        if found:
            values = array.array("f")
            # bf16 is the upper half of fp32.
            values.frombytes(data if dtype == "F32" else b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))
            sums[found.groups()] = [a + b for a, b in zip(sums.get(found.groups(), [0.0] * len(values)), values)]
    return sums


def read_metrics(run_dir):
    """Lines of metrics.jsonl; floating-point numbers stay the text they are, so that equality is equality of every digit."""
    return [json.loads(line, parse_float=str) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


STEP_FACTS = ["step", "consumed_samples", "consumed_tokens", "loss", "lr", "grad_norm", "loss_scale", "skipped", "non_finite"]
EVAL_FACTS = ["step", "split", "eval_loss", "perplexity", "eval_tokens"]


def facts(run_dir):
    """What a resumed run must repeat, as (steps, evaluations): everything but times and memory."""
    lines = read_metrics(run_dir)
    steps = [{k: line[k] for k in STEP_FACTS} for line in lines if "loss" in line]
    evals = [{k: line[k] for k in EVAL_FACTS} for line in lines if "eval_loss" in line]
    return steps, evals


class RunCase(unittest.TestCase):
    """A scratch directory per test, and one data set per class made by the program `tokenize`."""

    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        cls.shared = Path(tempfile.mkdtemp(prefix="thinwire-runs-"))
        cls.prefix = cls.make_data("text", 260, seed=11)

    @classmethod
    def make_data(cls, name, paragraphs, seed):
        """A data set of its own in the directory of the class; returns its prefix."""
        text = cls.shared / f"{name}.txt"
        text.write_text(text_of(paragraphs, seed))
        made = run_program("tokenize", "--input", text, "--tokenizer", "byte", "--output", cls.shared / name)
        if made.code != 0:
            raise AssertionError(str(made))
        return cls.shared / f"{name}_text_document"

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared, ignore_errors=True)

    def setUp(self):
        self.here = Path(tempfile.mkdtemp(prefix="case-", dir=self.shared))

    def config(self, name="run", **keys):
        """Writes a tiny configuration whose run directory is here/name; returns its path. A key set to None is left out."""
        value = {
            "num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32, "vocab_size": 256, "tokenizer": "byte",
            "data_path": str(self.prefix), "split": "80,10,10", "train_batch_size": 4, "train_micro_batch_size_per_gpu": 4,
            "train_iters": 10, "lr": 1e-3, "warmup": 0.2, "min_lr": 1e-4, "lr_decay_style": "cosine", "eval_interval": 0,
            "eval_iters": 2, "save_interval": 4, "log_interval": 1, "threads_per_rank": 1, "run_dir": str(self.here / name)}
        value.update(keys)
        value = {k: v for k, v in value.items() if v is not None}
        path = self.here / f"{name}.json"
        path.write_text(json.dumps(value, indent=1))
        return path

    def train(self, config, *overrides, faults=None, expect=None, limit=LIMIT_S, ranks=1):
        done = run_program("train", *self.train_arguments(config, overrides, faults), cwd=self.here, limit=limit, ranks=ranks)
        if expect is not None:
            self.expect(done, expect)
        return done

    def go_on(self, config, *overrides, expect=0, **more):
        """Trains on from the newest checkpoint, if there is one: a run that began anew would end with the same bits, too."""
        directory = self.run_dir(config) / "checkpoints"
        saved = checkpoints_in(directory) if directory.is_dir() else []
        newest = f"{saved[-1].name}: step {json.loads((saved[-1] / 'manifest.json').read_text())['step']}, " if saved else ""
        done = self.train(config, *overrides, expect=expect, **more)
        self.assertIn(newest, "".join(re.findall("resumed from .*", done.out + done.err)), str(done))
        return done

    def start(self, config, *overrides, faults=None, ranks=1):
        return Running("train", *self.train_arguments(config, overrides, faults), cwd=self.here, ranks=ranks)

    @staticmethod
    def train_arguments(config, overrides, faults):
        arguments = ["--config", config, *overrides]
        return arguments + ["--allow-faults", "faults=" + json.dumps(faults)] if faults else arguments

    def run_dir(self, config):
        return Path(json.loads(Path(config).read_text())["run_dir"])

    def status(self, config):
        return json.loads((self.run_dir(config) / "status.json").read_text())

    def expect(self, done, code):
        self.assertEqual(done.code, code, str(done))
        if code > 0:
            self.assertEqual(len(done.errors()), 0 if code == 75 else 1, str(done))

    def assert_same_state(self, left, right, tensors_only=False):
        a, b = read_checkpoint(left), read_checkpoint(right)
        self.assertEqual(sorted(a["tensors"]), sorted(b["tensors"]))
        for name, value in a["tensors"].items():
            self.assertTrue(value == b["tensors"][name], f"tensor {name} of {left} and {right} differ")
        self.assertTrue(any(name.startswith("model/") for name in a["tensors"]))
        if not tensors_only:
            for kind in ("step", "integers", "reals", "texts"):
                self.assertEqual(a[kind], b[kind], kind)

    def assert_same_run(self, undisturbed, disturbed):
        """Losses digit for digit, and weights, optimizer state and counters bit for bit."""
        a, b = self.run_dir(undisturbed), self.run_dir(disturbed)
        steps_a, evals_a = facts(a)
        steps_b, evals_b = facts(b)
        self.assertEqual(steps_a, steps_b)
        self.assertEqual(evals_a, evals_b)
        self.assert_same_state(checkpoints_in(a / "checkpoints")[-1], checkpoints_in(b / "checkpoints")[-1])
        leftovers = [p.name for p in (b / "checkpoints").iterdir() if ".tmp-" in p.name]
        self.assertEqual(leftovers, [])


def mount_small(directory, size):
    """Mounts a tmpfs of `size` bytes; returns None, or the reason that this machine cannot."""
    if os.geteuid() != 0:
        return "mounting a small tmpfs needs root"
    Path(directory).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "thinwire-test", str(directory)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return None if done.returncode == 0 else "mount refused: " + done.stdout.decode(errors="replace").strip()


class MemoryGroup:
    """A control group (version 1 or 2) with a limit of memory in bytes; `why`: the reason that there is none here, or None."""

    def __init__(self, name, limit):
        v2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        self.path = Path("/sys/fs/cgroup" if v2 else "/sys/fs/cgroup/memory") / f"thinwire-{name}-{os.getpid()}"
        self.events, self.why = self.path / ("memory.events" if v2 else "memory.oom_control"), None
        try:
            self.path.mkdir()
            (self.path / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(limit))
        except OSError as e:
            self.why = f"no control group for memory: {e}"

    def enter(self):
        """For preexec_fn: puts the new process into the group, first in line for the kernel to kill."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        Path("/proc/self/oom_score_adj").write_text("1000")

    def kills(self):
        return int(re.search(r"^oom_kill (\d+)", self.events.read_text(), re.M)[1])

    def fill(self):
        """Forks a process that takes all memory the group has left, until the kernel has killed some process of the group for it."""
        pid = os.fork()
        if pid == 0:
            taken = []
            try:
                (self.path / "cgroup.procs").write_text(str(os.getpid()))
                while self.kills() == 0:
                    taken.append(bytearray(b"x" * (1 << 20)))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def close(self):
        end = time.monotonic() + 10
        while self.path.exists() and time.monotonic() < end:
            for pid in (self.path / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.05)


def resize_mount(directory, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(directory)], check=True)


def unmount(directory):
    subprocess.run(["umount", "-l", str(directory)], check=False)


def main(limit=600):
    """limit: seconds that a single test may take, however many there are. A hang is a failure, not a wait."""
    class Result(unittest.TextTestResult):
        def startTest(self, test):
            signal.alarm(limit)
            super().startTest(test)

    result = unittest.main(verbosity=1, exit=False, testRunner=unittest.TextTestRunner(resultclass=Result)).result
    for case, reason in result.skipped:
        print(f"SKIPPED {case.id()}: {reason}", file=sys.stderr)  # for scripts/check_skips
    sys.exit(not result.wasSuccessful())
