# The Python package: frames against the lines themselves, checkpoints against the program's own export and against tensors cut at random, plots against the frames,
# and the forwarder, killed in between, against a stand-in for wandb.
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "train"))
import run_support

BUILD = os.environ.get("THINWIRE_BUILD", os.path.join(ROOT, "build"))
try:
    import matplotlib
    import numpy
    import pandas
except ImportError as e:
    # The first Python of the PATH need not be the one that the distribution's packages are for.
    if os.path.exists("/usr/bin/python3") and not os.environ.get("PYTHON_PACKAGE_TEST"):
        os.execve("/usr/bin/python3", ["/usr/bin/python3", *sys.argv], {**os.environ, "PYTHON_PACKAGE_TEST": "1"})
    print(f"skipped: {e}: scripts/install_deps.sh, or pip install pandas matplotlib")
    sys.exit(77)
matplotlib.use("Agg")
LIMIT = 120

WANDB = """# Stands in for wandb: a file of lines for each run, which is its server; offline nobody knows what is in there.
import json, os, time
FOLDER = os.environ["FAKE_WANDB"]
class Run:
    def __init__(self, id, config):
        self.path = os.path.join(FOLDER, id + ".jsonl")
        known = open(self.path).read().count("\\n") if os.path.exists(self.path) else 0
        self.offline = "FAKE_OFFLINE" in os.environ
        self.step = 0 if self.offline else known
        self.say({"config": config})
    def say(self, what):
        with open(os.path.join(FOLDER, "calls"), "a") as f:
            f.write(json.dumps(what) + "\\n")
    def define_metric(self, name, step_metric):
        self.say({"define": [name, step_metric]})
    def log(self, values):
        time.sleep(0.01)
        with open(self.path, "a") as f:
            f.write(json.dumps(values) + "\\n")
        time.sleep(0.01)
    def finish(self, exit_code):
        self.say({"exit_code": exit_code})
def init(project, name, id, resume, dir, config):
    assert resume == "allow"
    return Run(id, config)
"""


def train(run_dir, ranks, *keys):
    command = ["mpirun", "-n", str(ranks), os.path.join(BUILD, "train"), "--config", "configs/gpt2_tiny.json", "train_iters=8", "eval_interval=4", "eval_iters=1", "save_interval=8",
               "threads_per_rank=1", f"run_dir={run_dir}", *keys]
    subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)


def write_safetensors(path, header, data):
    """Returns the size of the file."""
    head = json.dumps(header).encode()
    with open(path, "wb") as f:
        return f.write(struct.pack("<Q", len(head)) + head + data)


def write_manifest(folder, files, tensors):
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as f:
        json.dump({"format": "thinwire-checkpoint", "version": 2, "sequence": 1, "files": files, "tensors": tensors}, f)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="python_package_test")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # As a user installs it; dependencies and tools are those that are here, and nothing is downloaded.
        source, cls.where = os.path.join(cls.folder, "source"), os.path.join(cls.folder, "site")
        shutil.copytree(os.path.join(ROOT, "python"), source)
        cls.said = ""
        for python in dict.fromkeys((sys.executable, shutil.which("python3"))):
            done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", cls.where, source],
                                  capture_output=True, text=True, check=False, timeout=LIMIT)
            cls.said += done.stderr
            if done.returncode == 0:
                break
        else:
            cls.where = source
        sys.path.insert(0, cls.where)
        global thinwire, plots
        import thinwire
        from thinwire import plots
        cls.runs = {}
        for name, ranks, keys in (("replicas", 2, ["zero_optimization.stage=1", "compression=thinwire"]), ("cut", 2, ["model_parallel_size=2"])):
            cls.runs[name] = os.path.join(cls.folder, name)
            train(cls.runs[name], ranks, *keys)

    def test_pip_installs_it(self):
        if not self.where.endswith("site"):
            self.skipTest("pip or setuptools is missing: " + self.said[-300:])
        self.assertTrue(thinwire.__file__.startswith(self.where))

    def test_frames_hold_what_the_lines_hold(self):
        run = thinwire.load_run(self.runs["replicas"])
        with open(os.path.join(run.directory, "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        steps = [x for x in lines if "eval_loss" not in x]
        self.assertEqual(run.problems, [])
        self.assertEqual(list(run.metrics.index), [x["step"] for x in steps])
        for x in steps:
            for key in ("loss", "lr", "wall_s", "tokens_per_s", "skipped"):
                self.assertEqual(run.metrics.loc[x["step"], key], x[key])
            for key, ms in x["time_ms"].items():
                self.assertEqual(run.metrics.loc[x["step"], "time_ms." + key], ms)
            self.assertEqual(set(run.sites.loc[x["step"]].index), set(x["comm"]))
            for site, values in x["comm"].items():
                self.assertEqual(run.sites.loc[(x["step"], site), "wire_bytes_total"], values["wire_bytes_total"])
        self.assertIn("dp.gradient", run.sites.index.get_level_values("site"))
        self.assertEqual([(*key, loss) for key, loss in run.evaluations["eval_loss"].items()], [(x["step"], x["split"], x["eval_loss"]) for x in lines if "eval_loss" in x])
        self.assertEqual((run.status["state"], run.config["hidden_size"], run.name), ("finished", 64, "replicas"))
        self.assertEqual(list(run.axis(run.evaluations, "tokens")), [run.metrics.loc[s, "consumed_tokens"] for s in (4, 8)])

    def test_broken_repeated_and_missing(self):
        folder = os.path.join(self.folder, "broken")
        os.makedirs(folder)
        empty = thinwire.load_run(folder)
        self.assertEqual((len(empty.metrics), len(empty.problems)), (0, 3))
        with open(os.path.join(folder, "metrics.jsonl"), "wb") as f:
            f.write(b'{"step":1,"loss":5,"comm":{"a":{"wire_bytes":1},"b":{"wire_bytes":2}}}\n{"step":2,"loss":4}\n\xff\xfe\n[1]\n{"step":3,"loss":null,"skipped":true,"loss_text":"nan"}\n'
                    b'{"step":2,"eval_loss":4.5}\n{"step":1,"loss":6,"comm":{"a":{"wire_bytes":7}}}\n{"step":2,"loss":3,"mfu":0.5}\n{"step":4,"lo')
        with open(os.path.join(folder, "status.json"), "w", encoding="utf-8") as f:
            f.write("[")
        run = thinwire.load_run(folder)
        self.assertEqual(list(run.metrics.index), [1, 2, 3])
        numpy.testing.assert_array_equal(run.metrics["loss"], [6, 3, numpy.nan])  # the last of those that repeat a step
        numpy.testing.assert_array_equal(run.metrics["mfu"], [numpy.nan, 0.5, numpy.nan])
        self.assertEqual({key: row["wire_bytes"] for key, row in run.sites.iterrows()}, {(1, "a"): 7})  # nothing of the line that was replaced
        self.assertEqual(list(run.evaluations.index), [(2, "valid")])
        self.assertTrue(numpy.isnan(run.axis(run.metrics, "wall_s")).all())
        self.assertEqual(len(run.problems), 3)
        self.assertIn("3 lines are no complete JSON record and left out (the last one is torn", run.problems[2])
        for draw in (lambda: plots.loss([run, empty], x="wall_s"), lambda: plots.step_time(empty), lambda: plots.site_bytes(empty), lambda: plots.site_bytes(run)):
            draw()
        with self.assertRaisesRegex(NotADirectoryError, "no such run directory"):
            thinwire.load_run(os.path.join(folder, "absent"))

    def test_plots_show_the_frames(self):
        run = thinwire.load_run(self.runs["replicas"])
        for x, column in (("step", None), ("tokens", "consumed_tokens"), ("wall_s", "wall_s")):
            training, evaluation = plots.loss(run, x=x).lines
            numpy.testing.assert_array_equal(training.get_ydata(), run.metrics["loss"])
            numpy.testing.assert_array_equal(training.get_xdata(), run.metrics[column] if column else run.metrics.index)
            numpy.testing.assert_array_equal(evaluation.get_ydata(), run.evaluations["eval_loss"])
        numpy.testing.assert_array_equal(plots.loss(run, x="wall_s").lines[1].get_xdata(), run.evaluations["wall_s"])
        highest = max(path.vertices[:, 1].max() for c in plots.step_time(run).collections for path in c.get_paths())
        self.assertAlmostEqual(highest, run.metrics["step_ms"].max(), delta=1e-6 * highest)  # parts and rest make the whole step
        bars = plots.site_bytes(run)
        at = [t.get_text() for t in bars.get_yticklabels()].index("dp.gradient")
        sent = [p.get_width() for p in bars.containers[1]][at]
        self.assertAlmostEqual(sent, run.sites.xs("dp.gradient", level="site")["wire_bytes_total"].mean() / 1e6)
        picture = os.path.join(self.folder, "bytes.png")
        bars.figure.savefig(picture)
        self.assertGreater(os.path.getsize(picture), 5000)

    def test_checkpoints_are_what_the_program_exports(self):
        for name, directory in self.runs.items():
            with self.subTest(name):
                ours = thinwire.load_checkpoint(directory)
                theirs = thinwire.load_checkpoint(os.path.join(directory, "checkpoints"), names="hf", program=os.path.join(BUILD, "checkpoint"))
                numpy.testing.assert_array_equal(*(numpy.sort(numpy.concatenate([a.reshape(-1) for n, a in t.items() if n != "lm_head.weight"])) for t in (ours, theirs)))
                # transformers stores GPT-2's matrices transposed, and the three parts of QKV in another order: all else is there as it is.
                pool = {a.tobytes() for a in ours.values()} | {numpy.ascontiguousarray(a.T).tobytes() for a in ours.values()}
                others = [n for n, a in theirs.items() if numpy.ascontiguousarray(a).tobytes() not in pool]
                self.assertEqual([n for n in others if "attn.c_attn" not in n], [])
                self.assertEqual(theirs["transformer.wte.weight"].shape, (256, 64))
                with self.assertRaisesRegex(ValueError, "weights alone"):
                    thinwire.load_checkpoint(directory, names="hf", prefix="adam_v/", program=os.path.join(BUILD, "checkpoint"))
                self.assertLess(len(repr(thinwire.load_run(directory))), len(directory) + 60)
                moments = thinwire.load_checkpoint(directory, prefix="adam_v/")
                self.assertEqual({n: a.shape for n, a in moments.items()}, {n: a.shape for n, a in ours.items()})
                self.assertTrue(all((a >= 0).all() for a in moments.values()))

    def test_tensors_cut_at_random_come_together(self):
        chance = random.Random(7)
        for trial in range(30):
            folder = os.path.join(self.folder, f"cut_{trial}")
            os.makedirs(folder)
            rows, cols = chance.randint(1, 9), chance.randint(1, 9)
            whole = numpy.arange(rows * cols, dtype="<f4").reshape(rows, cols) + trial
            edges = [sorted({0, n, *(chance.randint(0, n) for _ in range(chance.randint(0, 2)))}) for n in (rows, cols)]
            data, header, listed = b"", {}, []
            for r, r_end in zip(edges[0], edges[0][1:]):
                for c, c_end in zip(edges[1], edges[1][1:]):
                    part = whole[r:r_end, c:c_end].reshape(-1)
                    ranges = sorted({0, part.size, *(chance.randint(0, part.size) for _ in range(chance.randint(0, 3)))})
                    for first, end in zip(ranges, ranges[1:]):
                        stored = f"model/w@{r},{c}@{first}"
                        header[stored] = {"dtype": "F32", "shape": [end - first], "data_offsets": [len(data), len(data) + 4 * (end - first)]}
                        data += part[first:end].tobytes()
                        listed.append({"name": "model/w", "rows": rows, "cols": cols, "rectangle": [r, r_end - r, c, c_end - c], "first": first, "count": end - first, "dtype": "F32",
                                       "file": 0, "stored": stored})
            chance.shuffle(listed)
            name = "shard_00000.safetensors"
            size = write_safetensors(os.path.join(folder, name), header, data)

            def manifest(tensors, size, folder=folder, name=name):
                write_manifest(folder, [{"name": name, "bytes": size}], tensors)
            manifest(listed, size)
            numpy.testing.assert_array_equal(thinwire.load_checkpoint(folder)["w"], whole)
            if len(listed) > 1:
                manifest(listed[1:], size)
                with self.assertRaisesRegex(ValueError, "are stored"):
                    thinwire.load_checkpoint(folder)
            manifest(listed, size + 1)
            with self.assertRaisesRegex(ValueError, "its manifest says"):
                thinwire.load_checkpoint(folder)

    def test_more_files_than_may_be_open(self):
        folder = os.path.join(self.folder, "made", "many")
        os.makedirs(folder)
        files, listed = [], []
        for rank in range(80):
            name, stored = f"shard_{rank:05d}.safetensors", f"model/w@{rank}"
            values = numpy.full(3, rank, "<f4").tobytes()
            files.append({"name": name, "bytes": write_safetensors(os.path.join(folder, name), {stored: {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}, values)})
            listed.append({"name": "model/w", "rows": 80, "cols": 3, "first": 3 * rank, "count": 3, "dtype": "F32", "file": rank, "stored": stored})
        write_manifest(folder, files, listed)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
        numpy.testing.assert_array_equal(thinwire.load_checkpoint(folder)["w"], numpy.arange(80.0)[:, None].repeat(3, 1))

    def test_exports_in_several_files(self):
        folder = os.path.join(self.folder, "made", "large")
        os.makedirs(folder)
        write_manifest(folder, [], [])
        parts = [(f"model-{i:05d}-of-00002.safetensors", {f"h.{i}.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}, struct.pack("<2f", i, -i)) for i in (1, 2)]
        for name, header, data in parts:
            write_safetensors(os.path.join(folder, name), header, data)
        program = os.path.join(folder, "checkpoint")
        with open(program, "w", encoding="utf-8") as f:  # stands in for the program; its words are export DIR --format hf --output OUT
            f.write(f"#!{sys.executable}\nimport glob, os, shutil, sys\nos.mkdir(sys.argv[6])\nfor part in glob.glob(sys.argv[2] + '/*.safetensors'): shutil.copy(part, sys.argv[6])\n")
        os.chmod(program, 0o755)
        installed = os.path.join(folder, "bin", "thinwire")  # of an installation it alone is on the PATH
        os.mkdir(os.path.dirname(installed))
        with open(installed, "w", encoding="utf-8") as f:
            f.write(f'#!/bin/sh\ntest "$1" = checkpoint && shift && exec "{program}" "$@"\n')
        os.chmod(installed, 0o755)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.update, PATH=path)
        for given, where in ((program, path), (installed, path), (None, os.path.dirname(installed) + ":" + path)):
            os.environ["PATH"] = where
            tensors = thinwire.load_checkpoint(folder, names="hf", program=given)
            self.assertEqual({n: a.tolist() for n, a in tensors.items()}, {"h.1.weight": [[1.0, -1.0]], "h.2.weight": [[2.0, -2.0]]})

    def test_a_broken_manifest_is_named(self):
        for text in ("{", "[]", "\xff"):
            folder = os.path.join(self.folder, "made", "manifest")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "manifest.json"), "w", encoding="latin-1") as f:
                f.write(text)
            with self.subTest(text), self.assertRaisesRegex(ValueError, "manifest: its manifest.json is"):
                thinwire.load_checkpoint(folder)

    def test_no_checkpoint_no_such_names(self):
        with self.assertRaisesRegex(FileNotFoundError, "no checkpoint"):
            thinwire.load_checkpoint(self.folder)
        with self.assertRaisesRegex(ValueError, "no tensor begins with sgd"):
            thinwire.load_checkpoint(self.runs["cut"], prefix="sgd_momentum/")
        with self.assertRaisesRegex(ValueError, "there are"):
            thinwire.load_checkpoint(self.runs["cut"], names="torch")


class Forwarder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="python_package_test")
        self.addCleanup(shutil.rmtree, self.folder)
        self.run_dir = os.path.join(self.folder, "run")
        os.makedirs(self.run_dir)
        self.fake = os.path.join(self.folder, "fake")
        os.makedirs(self.fake)
        with open(os.path.join(self.fake, "wandb.py"), "w", encoding="utf-8") as f:
            f.write(WANDB)
        self.write("config.resolved.json", {"hidden_size": 64})
        self.write("status.json", {"state": "running", "code": None})

    def write(self, name, what):
        path = os.path.join(self.run_dir, name)
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(what, f)
        os.replace(path + ".new", path)

    def lines(self, steps, mode="a"):
        with open(os.path.join(self.run_dir, "metrics.jsonl"), mode, encoding="utf-8") as f:
            for step in steps:
                f.write(json.dumps({"step": step, "loss": 5 - step / 100, "mfu": None, "time_ms": {"forward": 2}, "comm": {"dp.gradient": {"wire_bytes": step, "baseline_dtype": "fp32"}}}) + "\n")
                if step % 10 == 0:
                    f.write(json.dumps({"step": step, "split": "valid", "eval_loss": 4.0, "perplexity": 54.6, "wall_s": 1.5}) + "\n")

    def start(self, *more, path=None, **env):
        process = subprocess.Popen([sys.executable, "-m", "thinwire.wandb", self.run_dir, "--every", "0.05", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "PYTHONPATH": path or f"{ROOT}/python:{self.fake}", "FAKE_WANDB": self.fake, **env}, cwd=self.folder)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def sent(self):
        names = [n for n in os.listdir(self.fake) if n.endswith(".jsonl")]
        self.assertLessEqual(len(names), 1)  # one run over there, however often this one was started
        if not names:
            return []
        with open(os.path.join(self.fake, names[0]), encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def keys(self):
        return [(x["step"], "valid/loss" in x) for x in self.sent()]

    def wait_for(self, count):
        end = time.monotonic() + LIMIT
        while len(self.sent()) < count:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def calls(self):
        with open(os.path.join(self.fake, "calls"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_follows_to_the_end(self):
        self.lines(range(1, 11))
        process = self.start()
        self.wait_for(11)
        with open(os.path.join(self.run_dir, "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"step":11,"lo')
            f.flush()
            time.sleep(0.2)
            f.write('ss":1.5}\n')
        self.write("status.json", {"state": "failed", "code": 76})
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, err), (0, ""))
        self.assertIn("12 records sent; the run has ended: failed", out)
        self.assertEqual(self.keys(), [(s, False) for s in range(1, 11)] + [(10, True), (11, False)])
        self.assertEqual(self.sent()[4], {"step": 5, "loss": 4.95, "time_ms/forward": 2, "comm/dp.gradient/wire_bytes": 5})
        self.assertEqual(self.sent()[10], {"step": 10, "wall_s": 1.5, "valid/loss": 4.0, "valid/perplexity": 54.6})
        self.assertEqual(self.sent()[11], {"step": 11, "loss": 1.5})
        self.assertEqual(self.calls(), [{"config": {"hidden_size": 64}}, {"define": ["*", "step"]}, {"exit_code": 76}])

    def killed(self, **env):
        self.lines(range(1, 61))
        for count in (5, 17, 31):
            process = self.start(**env)
            self.wait_for(count)
            process.kill()
            process.wait()
        self.write("status.json", {"state": "finished", "code": 0})
        process = self.start(**env)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0)
        return [(s, e) for s in range(1, 61) for e in ((False, True) if s % 10 == 0 else (False,))]

    def test_killed_and_started_again_sends_each_once(self):
        whole = self.killed()
        self.assertEqual(self.keys(), whole)

    def test_killed_offline_it_sends_none_twice(self):
        whole, got = self.killed(FAKE_OFFLINE="1"), self.keys()
        self.assertEqual(got, sorted(set(got), key=whole.index))
        self.assertGreaterEqual(len(got), len(whole) - 3)  # one for each kill at most

    def test_a_run_that_takes_steps_again_sends_them_once(self):
        self.lines(range(1, 26))
        process = self.start()
        self.wait_for(27)
        self.lines(range(1, 16), "w")  # went on from step 15: the file was cut there, and grows again
        time.sleep(0.3)
        self.lines(range(16, 31))
        self.write("status.json", {"state": "finished", "code": 0})
        process.communicate(timeout=LIMIT)
        self.assertEqual([s for s, evaluation in self.keys() if not evaluation], list(range(1, 31)))
        self.assertEqual([s for s, evaluation in self.keys() if evaluation], [10, 20, 30])

    def test_signals_quiet_runs_and_refusals(self):
        self.lines(range(1, 4))
        process = self.start()
        self.wait_for(3)
        process.send_signal(signal.SIGINT)
        self.assertIn("3 records sent; stopped by a signal", process.communicate(timeout=LIMIT)[0])
        self.assertEqual(process.returncode, 75)
        out, _ = self.start("--quiet", "0.3").communicate(timeout=LIMIT)
        self.assertIn("3 records sent; no news for 0.3 s", out)
        self.assertEqual(len(self.sent()), 3)
        process = self.start(path=f"{ROOT}/python")
        self.assertIn("pip install './python[wandb]'", process.communicate(timeout=LIMIT)[1])
        self.assertEqual(process.returncode, 66)
        for words in (("--every", "0"), ("--every", "soon"), ("--nonsense",), ("--quiet",)):
            process = self.start(*words)
            err = process.communicate(timeout=LIMIT)[1]
            self.assertEqual((process.returncode, err.count("\n"), err[:7]), (64, 1, "error: "), err)
        shutil.rmtree(self.run_dir)
        process = self.start()
        self.assertIn("no such run directory", process.communicate(timeout=LIMIT)[1])
        self.assertEqual(process.returncode, 65)


if __name__ == "__main__":
    run_support.main()
