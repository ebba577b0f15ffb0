# What runs and programs leave behind and print: every documented file, key and exit code of a healthy day.
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from run_support import BUILD, ROOT, RunCase, checkpoints_in, environment, main, read_checkpoint, read_metrics, read_safetensors, run_program

STEP_KEYS = {"step", "consumed_samples", "consumed_tokens", "loss", "lr", "grad_norm", "loss_scale", "skipped", "wall_s", "step_ms", "samples_per_s",
             "tokens_per_s", "model_tflops_per_rank", "mfu", "memory_peak_bytes", "comm", "time_ms", "non_finite"}
PROGRAMS = ["train", "tokenize", "checkpoint", "generate", "reference_check", "report", "bench", "plan"]
MODELS = sorted(p for p in (ROOT / "tests/golden/models").iterdir() if p.is_dir())


class RunOutputs(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls()
        case.setUp()
        cls.path = case.config(train_iters=12, eval_interval=5, log_interval=3, lr=3e-3, train_batch_size=8, train_micro_batch_size_per_gpu=4,
                               peak_theoretical_tflops=0.5)
        cls.done = case.train(cls.path, expect=0)
        cls.dir = case.run_dir(cls.path)

    def test_files(self):
        names = {p.name for p in self.dir.iterdir()}
        self.assertLessEqual({"config.resolved.json", "metrics.jsonl", "tensorboard", "checkpoints", "status.json", "log.txt", "report.html"}, names)
        resolved = json.loads((self.dir / "config.resolved.json").read_text())
        self.assertEqual((resolved["train_batch_size"], resolved["gradient_accumulation_steps"]), (8, 2))
        status = json.loads((self.dir / "status.json").read_text())
        self.assertLessEqual({"state", "code", "reason", "message", "step", "total_steps", "requeue", "host", "pid", "started", "updated"}, set(status))
        self.assertEqual((status["state"], status["code"], status["step"], status["total_steps"]), ("finished", 0, 12, 12))
        events = list((self.dir / "tensorboard").iterdir())
        self.assertEqual(len(events), 1)
        self.assertRegex(events[0].name, r"^events\.out\.tfevents\.")
        self.assertGreaterEqual(len(tensorboard_records(events[0])), 1 + 12 + 4)  # version, steps, evaluations
        self.assertIn("run directory", (self.dir / "log.txt").read_text())
        self.assertEqual(run_program("checkpoint", "verify", self.dir).code, 0)

    def test_metrics(self):
        lines = read_metrics(self.dir)
        steps = [line for line in lines if "loss" in line]
        evals = [line for line in lines if "eval_loss" in line]
        self.assertEqual([s["step"] for s in steps], list(range(1, 13)))
        for s in steps:
            self.assertLessEqual(STEP_KEYS, set(s))
            self.assertEqual((s["consumed_samples"], s["consumed_tokens"]), (8 * s["step"], 8 * 32 * s["step"]))
            self.assertEqual((s["skipped"], s["comm"], s["loss_scale"]), (False, {}, "1.0"))
            self.assertGreater(s["memory_peak_bytes"], 1 << 20)
            ms, rate = float(s["step_ms"]), float(s["tokens_per_s"])
            self.assertAlmostEqual(rate, 8 * 32 / ms * 1e3, delta=rate * 1e-9)
            self.assertAlmostEqual(float(s["mfu"]), float(s["model_tflops_per_rank"]) / 0.5, delta=1e-9)
        self.assertLess(float(steps[-1]["loss"]), float(steps[0]["loss"]) - 0.2)
        wall = [float(line["wall_s"]) for line in lines]
        self.assertEqual(wall, sorted(wall))
        self.assertLessEqual(sum(float(s["step_ms"]) for s in steps) / 1e3, wall[-1])
        self.assertEqual([(e["step"], e["split"]) for e in evals], [(5, "valid"), (10, "valid"), (12, "valid"), (12, "test")])
        for e in evals:
            self.assertEqual(e["eval_tokens"], 2 * 8 * 32)
            self.assertAlmostEqual(float(e["perplexity"]), 2.718281828459045 ** float(e["eval_loss"]), delta=1e-6 * float(e["perplexity"]))

    def test_console_is_plain(self):
        self.assertNotIn("\x1b", self.done.out + self.done.err)
        self.assertNotIn("\r", self.done.out + self.done.err)
        shown = re.findall(r"^step (\d+)/12 \| loss ", self.done.out, re.M)
        self.assertEqual(shown, ["1", "3", "6", "9", "12"])
        self.assertEqual(re.findall(r"^eval at step (\d+)(?: \((\w+)\))? \|", self.done.out, re.M), [("5", ""), ("10", ""), ("12", ""), ("12", "test")])

    def test_report_loads_nothing(self):
        page = (self.dir / "report.html").read_text()
        self.assertNotRegex(page, r"(?i)(src|href|action)\s*=\s*[\"']?\s*(https?:)?//")
        self.assertNotRegex(page, r"(?i)@import|url\(\s*[\"']?(https?:)?//|<link[^>]+href|<script[^>]+src|fetch\(|XMLHttpRequest")
        self.assertIn("<svg", page)
        self.assertTrue(page.rstrip().endswith("</html>"))
        out = self.here / "both.html"
        done = run_program("report", self.dir, self.dir, "--compare", "--output", out)
        self.assertEqual(done.code, 0, str(done))
        self.assertGreater(out.stat().st_size, 2000)

    def test_generate(self):
        def say(where, seed, *more):
            done = run_program("generate", "--load", where, "--prompt", "the sea", "--tokens", 60, "--seed", seed, *more)
            self.assertEqual(done.code, 0, str(done))
            self.assertTrue(done.out.startswith("the sea"))
            return done.out
        first = say(self.dir, 1)
        self.assertEqual(first, say(self.dir, 1))
        self.assertEqual(first, say(self.dir / "checkpoints", 1))
        self.assertEqual(first, say(checkpoints_in(self.dir / "checkpoints")[-1], 1))
        self.assertEqual(first, say(self.dir, 1, "--threads", 1))
        self.assertNotEqual(first, say(self.dir, 2))
        self.assertEqual(say(self.dir, 1, "--temperature", 0), say(self.dir, 2, "--temperature", 0))
        self.assertEqual(say(self.dir, 1, "--top-k", 1), say(self.dir, 9, "--temperature", 0))
        self.assertEqual(say(self.dir, 1, "--top-p", 1e-9), say(self.dir, 9, "--temperature", 0))
        self.assertEqual(first, say(self.dir, 1, "--top-p", 1))
        self.assertNotEqual(say(self.dir, 1, "--top-p", 0.9), say(self.dir, 1, "--top-p", 1e-9))

    def test_export_import(self):
        families = {
            "gpt2": {"bias_gelu_fusion": True, "make_vocab_size_divisible_by": 1},
            "llama": {"norm": "rmsnorm", "rms_norm_epsilon": 1e-5, "activation": "swiglu", "pos_emb": "rotary", "num_kv_heads": 1,
                      "no_weight_tying": True, "disable_bias_linear": True, "make_vocab_size_divisible_by": 1},
            "neox": {"pos_emb": "rotary", "rotary_pct": 0.25, "gpt_j_residual": True, "no_weight_tying": True, "make_vocab_size_divisible_by": 1,
                     "eod_token": 10},
        }
        for name, keys in families.items():
            with self.subTest(name):
                config = self.config(name, train_iters=3, **keys)
                self.train(config, expect=0)
                out, back = self.here / f"{name}-hf", self.here / f"{name}-back"
                done = run_program("checkpoint", "export", self.run_dir(config), "--format", "hf", "--output", out)
                self.assertEqual(done.code, 0, str(done))
                self.assertEqual(json.loads((out / "config.json").read_text())["eos_token_id"], keys.get("eod_token"))
                done = run_program("checkpoint", "import", out, "--output", back, "--make-vocab-size-divisible-by", 1)
                self.assertEqual(done.code, 0, str(done))
                trained = read_checkpoint(checkpoints_in(self.run_dir(config) / "checkpoints")[-1])["tensors"]
                imported = read_checkpoint(checkpoints_in(back)[-1])["tensors"]
                self.assertEqual(imported, {k: v for k, v in trained.items() if k.startswith("model/")})
                done = run_program("generate", "--load", back, "--prompt", "sea", "--tokens", 5)
                self.assertEqual(done.code, 0, str(done))
                self.assertEqual(run_program("checkpoint", "import", out, "--output", back).code, 73, "never over checkpoints that are there")
                new = f"run_dir={self.here / (name + '-new')}"
                done = self.train(config, new, f"load={back}", expect=78)
                self.assertIn("finetune", done.err)
                self.train(config, new, f"load={back}", "finetune=true", "train_iters=1", expect=0)

    def test_print_samples_and_schedule(self):
        done = self.train(self.path, "run_dir=" + str(self.here / "unused"), "--print-samples", "3", expect=0)
        tokens = (self.prefix.parent / (self.prefix.name + ".bin")).read_bytes()
        for i, line in enumerate(done.out.splitlines()):
            self.assertNotIn(" ", line)
            sample = json.loads(line)
            self.assertEqual((sample["sample"], len(sample["tokens"])), (i, 33))
            self.assertIn(struct.pack("<20H", *sample["tokens"][:20])[:16], tokens)
        self.assertEqual(len(done.out.splitlines()), 3)
        done = self.train(self.path, "run_dir=" + str(self.here / "unused"), "--print-schedule", expect=0)
        self.assertEqual(done.out, "rank 0: F0 B0 F1 B1 R C O G\n")
        done = self.train(self.path, "run_dir=" + str(self.here / "unused"), "--print-schedule", "--format", "svg", expect=0)
        words = [e.text for e in ElementTree.fromstring(done.out).iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue(any("2 micro-batches" in w for w in words), words)
        self.assertEqual([w for w in words if w in list("RCOG")], list("RCOG"))
        done = self.train(self.path, "run_dir=" + str(self.here / "unused"), "--print-schedule", "pipe_parallel_size=2", expect=0)
        self.assertEqual(done.out, "rank 0: F0 F1 B0 B1 R C O G\nrank 1: F0 B0 F1 B1 R C O G\n")
        self.assertFalse((self.here / "unused").exists())

    def test_threads_are_at_most_omp_num_threads_unless_the_configuration_says(self):
        cores = len(os.sched_getaffinity(0))
        for asked, key, found in (("1", 0, 1), ("1,2", 0, 1), ("100000", 0, cores), ("many", 0, cores), ("1", 3, 3)):
            with self.subTest(asked, key=key):
                done = subprocess.run([BUILD / "train", "--config", self.path, f"threads_per_rank={key}", "train_iters=0", "eval_iters=0"], cwd=self.here,
                                      env=environment({"OMP_NUM_THREADS": asked}), capture_output=True, text=True, check=True)
                self.assertIn(f", {found} thread", done.stdout + done.stderr)

    def test_what_is_printed_to_a_full_disk_is_an_error(self):
        for word in ("--print-config", "--dry-run", "--print-schedule"):
            with self.subTest(word), open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([BUILD / "train", "--config", self.path, word], cwd=self.here, env=environment(), stdout=full,
                                      stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (74, "error: train: standard output cannot be written\n"))

    def test_what_other_programs_print_to_a_full_disk_is_an_error(self):
        for words in (("checkpoint", "verify", self.dir), ("checkpoint", "show", self.dir), ("report", "--draw"),
                      ("report", self.dir, "--output", self.here / "r.html"), ("plan", "--shape", "tiny", "--cluster", ROOT / "configs/clusters/lab.json")):
            with self.subTest(words), open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([BUILD / words[0], *words[1:]], cwd=self.here, env=environment(), input='{"title": "t", "parts": ["words"]}', stdout=full,
                                      stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual(done.returncode, 74, done.stderr)
                self.assertTrue(done.stderr.endswith(f"error: {words[0]}: standard output cannot be written\n"), done.stderr)


class Programs(unittest.TestCase):
    def test_help_version_and_unknown_flags(self):
        for name in PROGRAMS:
            with self.subTest(name):
                done = run_program(name, "--help")
                self.assertEqual((done.code, done.err), (0, ""), str(done))
                self.assertGreater(len(done.out), 100)
                done = run_program(name, "--version")
                self.assertEqual(done.code, 0, str(done))
                for word in (name, "git", "backends", "isa"):
                    self.assertIn(word, done.out)
                for arguments in (["--no-such-flag"], []):
                    done = run_program(name, *arguments)
                    self.assertEqual(done.code, 64, str(done))
                    self.assertEqual(len(done.errors()), 1, str(done))

    def test_a_process_has_the_name_of_its_program(self):
        """In `top`, too, although the program has executed itself again to set OMP_WAIT_POLICY."""
        env = environment()
        del env["OMP_WAIT_POLICY"]
        with tempfile.TemporaryDirectory() as here:
            pipe = Path(here) / "config.json"
            os.mkfifo(pipe)  # nobody writes to it: the program waits there
            process = subprocess.Popen([BUILD / "train", "--config", pipe, "--dry-run"], env=env)
            try:
                deadline = time.monotonic() + 60
                while b"OMP_WAIT_POLICY=passive" not in Path(f"/proc/{process.pid}/environ").read_bytes():
                    self.assertLess(time.monotonic(), deadline)
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                self.assertEqual(Path(f"/proc/{process.pid}/comm").read_text().strip(), "train")
            finally:
                process.kill()
                process.wait()

    def test_dry_run_of_the_20b_recipe(self):
        # It allocates nothing of what it prices (weights of one rank alone, in 16 bits, are 5 GB) and needs no accelerator: none is to be seen.
        sanitized = not (BUILD / "tests/libfailing_files.so").exists()  # such builds cannot preload it; their runtime keeps what was freed
        limit = (2 if sanitized else 1) << 30
        for device in ("cpu", "cuda"):
            with self.subTest(device), tempfile.TemporaryFile() as out:
                process = subprocess.Popen([BUILD / "train", "--config", ROOT / "configs/gpt20b.json", "--dry-run", f"device={device}"],
                                           env=environment({"CUDA_VISIBLE_DEVICES": ""}), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
                _, status, used = os.wait4(process.pid, 0)  # of this process, where RUSAGE_CHILDREN has the largest of all so far
                process.returncode = os.waitstatus_to_exitcode(status)
                out.seek(0)
                said = out.read().decode(errors="replace")
                self.assertEqual(process.returncode, 0, said)
                self.assertIn("20554567680", said)
                self.assertIn("20552417280", said)
                self.assertLess(used.ru_maxrss << 10, limit)

    def test_dry_run_of_every_config(self):
        for path in sorted((ROOT / "configs").glob("*.json")):
            with self.subTest(path.name):
                done = run_program("train", "--config", path, "--dry-run")
                self.assertEqual(done.code, 0, str(done))
                for word in ("parameters:", "memory per rank:", "total", "FLOPs per token", "dp.gradient", "bubble"):
                    self.assertIn(word, done.out)

    def test_reference_law(self):
        cases = [[m] for m in MODELS]
        self.assertEqual(len(cases), 8)
        for m in MODELS:
            cases += [[m, "recompute_granularity=full"], [m, "recompute_granularity=selective", "threads_per_rank=2"]]
            if read_safetensors(m / "tokens.safetensors")["tokens"][1][1] % 2 == 0:
                cases.append([m, "gradient_accumulation_steps=2"])
        cases += [[MODELS[0], "checkpoint_activations=true"], [*MODELS, "threads_per_rank=1"]]
        with ThreadPoolExecutor(2) as pool:
            for done in pool.map(lambda c: run_program("reference_check", *c), cases):
                self.assertEqual(done.code, 0, str(done))
                self.assertNotIn("FAIL", done.out)
                self.assertIn("logits", done.out)

    def test_reference_of_what_was_not_done(self):
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "model"
            shutil.copytree(MODELS[0], copy)
            trajectory = json.loads((copy / "trajectory.json").read_text())
            self.assertLess(max(s["grad_norm"] for s in trajectory["trajectory"]), trajectory["clip"], "never clipped")
            (copy / "trajectory.json").write_text(json.dumps({**trajectory, "clip": None, "documents": None}))
            done = run_program("reference_check", copy)
            self.assertEqual(done.code, 0, str(done))

    def test_reference_law_can_fail(self):
        for model, victim in ((MODELS[0], "model.safetensors"), (MODELS[2], "model.safetensors"), (MODELS[4], "step1_gradients.safetensors")):
            with self.subTest(f"{model.name} {victim}"), tempfile.TemporaryDirectory() as scratch:
                copy = Path(scratch) / model.name
                shutil.copytree(model, copy)
                perturb(copy / victim)
                done = run_program("reference_check", copy)
                self.assertEqual(done.code, 1, str(done))
                self.assertIn("FAIL", done.out)


def perturb(path):
    """Adds 1e-2 to one element of the first matrix of an F32 file."""
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    name, entry = next((n, e) for n, e in sorted(header.items()) if n != "__metadata__" and len(e["shape"]) == 2 and "att" in n)
    at = 8 + length + entry["data_offsets"][0] + 4 * 17
    data[at:at + 4] = struct.pack("<f", struct.unpack("<f", data[at:at + 4])[0] + 1e-2)
    path.write_bytes(bytes(data))


def tensorboard_records(path):
    """Lengths of the records of an event file, framing checked: u64 length, u32 crc, payload, u32 crc."""
    data, records = path.read_bytes(), []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        if len(data) < 16 + length:
            raise AssertionError("torn record")
        records.append(length)
        data = data[16 + length:]
    return records


if __name__ == "__main__":
    main()
