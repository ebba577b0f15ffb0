# An installed tree that was moved: `thinwire` alone on the PATH trains, reports, plans and sweeps from an empty folder; the manual, the
# completion, a batch script, and a foreign project that links the libraries.
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/train"))
import run_support

BUILD = Path(os.environ.get("THINWIRE_BUILD", ROOT / "build"))
TINY = ["train_iters=4", "eval_iters=1", "log_interval=1", "threads_per_rank=1"]
COMMANDS = ["train", "tokenize", "generate", "checkpoint", "report", "plan", "sweep", "lab", "bench", "calibrate", "reference_check", "check_configs", "trace_picture"]


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = Path(tempfile.mkdtemp(prefix="install_test"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        first, cls.prefix = cls.scratch / "first", cls.scratch / "moved to"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", first], check=True, stdout=subprocess.DEVNULL)
        first.rename(cls.prefix)
        cls.share, cls.here = cls.prefix / "share/thinwire", cls.scratch / "here"
        tools = cls.scratch / "tools"  # all that the scripts need of the system
        tools.mkdir()
        (tools / "python3").symlink_to(sys.executable)
        cls.env = {**os.environ, "PATH": f"{cls.prefix / 'bin'}:{tools}", "HYDRA_LAUNCHER": "fork"}
        cls.env.pop("THINWIRE_BUILD", None)
        cls.mpirun = shutil.which("mpirun")

    def setUp(self):
        self.here.mkdir()
        self.addCleanup(shutil.rmtree, self.here)

    def thinwire(self, *words, code=0, env=None, front=()):
        done = subprocess.run([*front, "thinwire", *words], cwd=self.here, env=env or self.env, capture_output=True, encoding="utf-8", errors="replace", timeout=120, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done

    def test_nothing_else_is_on_the_path(self):
        self.assertEqual(os.listdir(self.prefix / "bin"), ["thinwire"])
        self.assertEqual([p for p in self.prefix.rglob("*") if p.is_symlink() and not p.exists()], [])
        for path in self.prefix.rglob("*"):  # a prefix may be moved: no file that a person runs or reads names the one it was installed to
            if path.is_file() and path.suffix not in (".a", ".h", ".svg", ".jsonl"):
                self.assertNotIn(str(self.scratch / "first").encode(), path.read_bytes(), path)

    def test_commands_are_listed_and_found_by_a_link(self):
        for words in ((), ("--help",), ("help",), ("help", "where")):
            said = self.thinwire(*words).stdout
            self.assertEqual([c for c in COMMANDS if not re.search(rf"^  {c} +\w", said, flags=re.MULTILINE)], [])
            self.assertTrue(all(len(line) <= 80 for line in said.splitlines()), said)
        self.assertTrue(self.thinwire("--version").stdout.startswith("thinwire (thinwire) "))
        self.assertIn("--tokens", self.thinwire("help", "generate").stdout)
        link = self.here / "tw"
        link.symlink_to(self.prefix / "bin/thinwire")
        done = subprocess.run([link, "train", "--version"], env=self.env, capture_output=True, text=True, check=True)
        self.assertTrue(done.stdout.startswith("train (thinwire) "))
        self.assertEqual(self.thinwire("where").stdout, f"{self.share}\n")

    def test_an_unknown_command_is_one_line_and_64(self):
        for word, near in (("trian", "train"), ("chekpoint", "checkpoint"), ("--config", "")):
            said = self.thinwire(word, code=64).stderr
            self.assertEqual(said.count("\n"), 1, said)
            self.assertIn(f"nearest: {near} " if near else "no command", said)
        self.assertIn("nearest: report", self.thinwire("help", "reprot", code=64).stderr)

    def test_messages_name_the_command_as_it_is_typed(self):
        self.assertIn("(thinwire train --help)", self.thinwire("train", "--no-such-flag", code=64).stderr)
        self.assertIn("Usage: thinwire checkpoint export ", self.thinwire("checkpoint", "export", "--help").stdout)

    def test_two_ranks_train_on_shipped_files(self):
        words = [self.mpirun, "-n", "2", "thinwire", "train", "--config", "gpt2_tiny.json", *TINY, "train_iters=150", "run_dir=runs/two", "compression=thinwire",
                 "--allow-faults", 'faults=[{"at": "step.begin", "step": 1, "do": "delay:4"}]']  # long enough to be seen
        process = subprocess.Popen(words, cwd=self.here, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        names = []
        deadline = time.monotonic() + 60
        while (names.count("train") < 2 or "thinwire" in names) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            names = [self.name_of(p) for p in Path("/proc").iterdir() if p.name.isdigit() and self.is_of_prefix(p)]
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, said)
        self.assertGreaterEqual(names.count("train"), 2, names)
        self.assertLessEqual(set(names), {"train", "tw-keeper", "gone"})
        self.assertIn(f"gpt2_tiny.json: not here; the one that ships with Thinwire is read: {self.share}/configs/gpt2_tiny.json", said)
        self.assertIn(f"{self.share}/build/data/tiny_text_document", said)
        self.assertEqual(json.loads((self.here / "runs/two/status.json").read_text())["state"], "finished")
        self.thinwire("report", "runs/two", "--output", "two.html")
        self.assertIn("<html", (self.here / "two.html").read_text())
        self.thinwire("checkpoint", "verify", "runs/two")
        self.assertTrue(self.thinwire("generate", "--load", "runs/two", "--prompt", "The ", "--tokens", "8").stdout.startswith("The "))

    @staticmethod
    def name_of(process):
        try:
            return (process / "comm").read_text().strip()
        except OSError:
            return "gone"

    def is_of_prefix(self, process):
        try:
            return os.readlink(process / "exe").startswith(str(self.prefix))
        except OSError:
            return False

    def test_own_files_come_first(self):
        (self.here / "gpt2_tiny.json").write_text((self.share / "configs/neox_tiny.json").read_text())
        said = self.thinwire("train", "--config", "gpt2_tiny.json", "--print-config").stdout
        self.assertEqual(json.loads(said)["pos_emb"], "rotary")
        said = self.thinwire("train", "--config", "configs/gpt2_tiny.json", "--config", "bf16_wire.json", "--dry-run", "--ranks", "4").stdout
        self.assertIn(f"{self.share}/configs/compression/bf16_wire.json", said)
        self.assertIn("no_such.json", self.thinwire("train", "--config", "no_such.json", code=78).stderr)

    def test_plan_knows_shipped_clusters(self):
        done = self.thinwire("plan", "--config", "gpt2_tiny.json", "--cluster", "lab.json", "--ranks", "2", "--json")
        self.assertIn(f"note: lab.json: not here; the one that ships with Thinwire is read: {self.share}/configs/clusters/lab.json", done.stderr)

    def test_sweeps(self):
        done = self.thinwire("sweep", "--dry-run", "three_presets.json")
        self.assertIn("6 points, 0 refused; they would go to sweeps/three_presets", done.stdout)
        self.assertIn(str(self.share / "configs/sweeps/three_presets.json"), done.stderr)
        # A plan of one's own: its configurations and data are those of the folder where one is.
        self.thinwire("tokenize", "--input", str(self.share / "data/text/tiny.txt"), "--tokenizer", "byte", "--output", "mine")
        (self.here / "mine.json").write_text('{"data_path": "mine_text_document"}')
        keys = dict(word.split("=") for word in TINY[:-1])
        plan = {"name": "own", "configs": ["gpt2_tiny.json", "mine.json"], "set": {k: int(v) for k, v in keys.items()}, "grid": {"compression": ["none", "bf16_wire"]},
                "launcher": {"kind": "local", "ranks": 1, "threads": 1}}
        (self.here / "own.json").write_text(json.dumps(plan))
        self.thinwire("sweep", "own.json", env={**self.env, "PATH": self.env["PATH"] + ":" + os.environ["PATH"]})
        self.assertEqual((self.here / "sweeps/own/results.csv").read_text().count("finished"), 2)

    def test_help_of_train_fits_one_screen(self):
        lines = self.thinwire("train", "--help").stdout.splitlines()
        self.assertLessEqual(len(lines), 40)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertGreater(len(self.thinwire("train", "--help-keys").stdout.splitlines()), 400)
        said = self.thinwire("train", "--help-keys", "spike").stdout
        self.assertRegex(said, r"(?m)^  spike_budget\b")
        self.assertNotIn("num_layers", said)
        said = self.thinwire("train", "--help-keys", "num_layrs", code=64).stderr
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("nearest: num_layers", said)

    def test_pages_of_the_manual(self):
        folder = self.prefix / "share/man/man1"
        self.assertEqual(sorted(os.listdir(folder)), sorted(["thinwire.1", *(f"thinwire-{c}.1" for c in COMMANDS)]))
        checks = [c for c in (["mandoc", "-Tlint", "-Wwarning"], ["groff", "-man", "-ww", "-z", "-Tutf8", "-Kutf8"]) if shutil.which(c[0])]
        for page in sorted(folder.iterdir()):
            for check in checks:
                done = subprocess.run([*check, page], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), f"{check[0]}: {page.name}")
        text = (folder / "thinwire-train.1").read_text().replace("\\-", "-")
        for word in (".B --config FILE", ".B --print-schedule", "activation_offload", "num_layers"):
            self.assertIn(word, text)
        self.assertIn("--search", (folder / "thinwire-plan.1").read_text().replace("\\-", "-"))
        if not checks:
            self.skipTest("neither mandoc nor groff is here (scripts/install_deps.sh)")

    def complete(self, *words):
        script = '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _thinwire; printf "%s\\n" "${COMPREPLY[@]}"'
        file = self.prefix / "share/bash-completion/completions/thinwire"
        done = subprocess.run(["bash", "-uc", script, "bash", file, *words], cwd=self.here, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("thinwire", "tr"), ["train", "trace_picture"])
        self.assertEqual([c for c in COMMANDS if c not in self.complete("thinwire", "")], [])
        self.assertEqual(self.complete("thinwire", "train", "--print-s"), ["--print-samples", "--print-schedule"])
        self.assertEqual(self.complete("thinwire", "train", "--format", ""), ["text", "svg"])
        self.assertEqual(self.complete("thinwire", "checkpoint", "e"), ["export"])
        self.assertEqual(self.complete("thinwire", "checkpoint", "export", "--dtype", "b"), ["bf16"])
        self.assertEqual(self.complete("thinwire", "train", "--config", "gpt2_"), ["gpt2_124m.json", "gpt2_tiny.json"])
        self.assertEqual(self.complete("thinwire", "train", "spike_b"), ["spike_budget="])
        self.assertEqual(self.complete("thinwire", "bench", "step", "char", "pipe_parallel"), ["pipe_parallel_size="])
        # Bash hands `compression=thin` over as three words.
        self.assertEqual(self.complete("thinwire", "train", "compression", "=", "thin"), ["thinwire"])
        self.assertEqual(set(self.complete("thinwire", "train", "device", "=")), {"cpu", "cuda"})
        self.assertIn("top_k", self.complete("thinwire", "train", "compression.dp.gradient.codec", "=", "to"))
        (self.here / "gpt2_mine.json").touch()
        self.assertIn("gpt2_mine.json", self.complete("thinwire", "train", "--config", "gpt2_"))

    def test_a_batch_script_runs_from_the_installed_tree(self):
        env = {**self.env, "PATH": f"{self.prefix / 'bin'}:{os.environ['PATH']}", "THINWIRE_SHARE": str(self.share), "LS_SUBCWD": str(self.here), "LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "1",
               "THINWIRE_ARGS": " ".join(["--config", "gpt2_tiny.json", *TINY])}
        spooled = self.here / "spooled"  # as a batch system copies it
        shutil.copy(self.share / "scripts/lsf/one_node_cpu.sh", spooled)
        done = subprocess.run(["bash", spooled], cwd=self.here, env=env, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads((self.here / "runs/gpt2_tiny/status.json").read_text())["state"], "finished")

    def test_a_foreign_project_links_the_libraries(self):
        for command in (["cmake", "-G", "Ninja", "-S", Path(__file__).parent, "-B", "b", f"-DCMAKE_PREFIX_PATH={self.prefix}"], ["cmake", "--build", "b"]):
            done = subprocess.run(command, cwd=self.here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        done = subprocess.run([self.here / "b/uses_thinwire"], capture_output=True, text=True, check=True)
        self.assertTrue(done.stdout.endswith(" 124439808\n"), done.stdout)


if __name__ == "__main__":
    run_support.main()
