# What measuring scripts share, their verdicts, their help, and the pages that they make of committed cells.
import ast
import contextlib
import importlib.machinery
import importlib.util
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS, RESULTS = os.path.join(ROOT, "scripts"), os.path.join(ROOT, "docs", "results")
sys.path.insert(0, SCRIPTS)
import measured


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(SCRIPTS, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Measured(unittest.TestCase):
    def test_cells_survive_a_kill(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cells.jsonl")
            self.assertEqual(measured.read_cells(path), [])
            measured.add_cell(path, {"a": 1})
            with open(path, "a", encoding="utf-8") as f:
                f.write('{"a": 2')
            self.assertEqual(measured.read_cells(path), [{"a": 1}])
            measured.add_cell(path, {"a": 3})
            self.assertEqual(measured.read_cells(path), [{"a": 1}, {"a": 3}])

    def test_intervals_of_medians(self):
        self.assertEqual(measured.interval([6, 1, 2, 5, 4, 3]), (3.5, 1, 6))
        self.assertEqual(measured.interval(range(1, 9)), (4.5, 1, 8))
        self.assertEqual(measured.interval(range(1, 11)), (5.5, 2, 9))
        self.assertEqual(measured.interval([3, 1]), (2.0, 1, 3))
        chance = random.Random(1)
        for n in (6, 9, 17, 30):
            drawn = [measured.interval([chance.expovariate(1.0) for _ in range(n)]) for _ in range(1000)]
            self.assertGreater(sum(low <= math.log(2) <= high for _, low, high in drawn), 935, n)

    def test_intervals_of_means(self):
        mean, half = measured.t_interval([1.0, 3.0])
        self.assertEqual((mean, round(half, 3)), (2.0, 12.706))
        self.assertAlmostEqual(measured.t_interval([1.0, 3.0] * 10)[1], 2.262 * 1.026 / 20**0.5, 3)

    def test_verdicts(self):
        self.assertEqual([measured.verdict(1.0, 1.1, most=m) for m in (0.9, 1.05, 1.1)], ["missed", "cannot be told", "met"])
        self.assertEqual([measured.verdict(1.0, 1.1, least=m) for m in (1.0, 1.05, 1.2)], ["met", "cannot be told", "missed"])

    def test_what_is_made_once(self):
        with tempfile.TemporaryDirectory() as folder:
            for made in (1, 2):
                self.assertEqual(measured.kept(os.path.join(folder, "made.json"), lambda made=made: [made]), [1])

    PATIENT = 'trap "touch $0.asked; exit" TERM; touch $0; while :; do sleep 0.05; done'

    def test_what_takes_too_long_is_asked_to_end(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(measured.CellError, "not done after 5 s"):
                measured.output(["sh", "-c", self.PATIENT, os.path.join(folder, "begun")], 5)  # enough for a shell to begin on a busy machine
            self.assertTrue(os.path.exists(os.path.join(folder, "begun.asked")))

    def test_a_script_that_is_ended_ends_what_it_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            begun = os.path.join(folder, "begun")
            text = "import sys; sys.path.insert(0, sys.argv[1]); import measured; measured.ends(lambda: measured.output(['sh', '-c', *sys.argv[2:]]))"
            with subprocess.Popen([sys.executable, "-c", text, SCRIPTS, self.PATIENT, begun]) as process:
                while not os.path.exists(begun) and process.poll() is None:
                    time.sleep(0.02)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
            self.assertTrue(os.path.exists(begun + ".asked"))

    def test_tables_and_places(self):
        self.assertEqual(measured.table(["a", "b"], [["x|y", 1]], [1]), "| a | b |\n|---|---:|\n| x\\|y | 1 |\n")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.md")
            with open(path, "w", encoding="utf-8") as f:
                f.write("head\n<!-- here -->\nold\n<!-- end -->\ntail\n")
            measured.put(path, "<!-- here -->", "new\n", "<!-- end -->")
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read(), "head\n<!-- here -->\nnew\n<!-- end -->\ntail\n")
            with self.assertRaises(SystemExit):
                measured.put(path, "<!-- nowhere -->", "new\n")

    def test_a_lab_ends_with_its_block_and_builds_tell_their_commit(self):
        with measured.emulated() as lab:
            self.assertEqual(lab.run(2)[-1], "--")
        with tempfile.TemporaryDirectory() as folder:
            bench = os.path.join(folder, "bench")
            with open(bench, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\necho 'thinwire 1.0 git 0123abc (cpu)'\n")
            os.chmod(bench, 0o755)
            self.assertEqual(measured.version_of(folder), "0123abc")

    def test_a_folder_holds_cells_of_one_setting(self):
        import compression_cells
        with tempfile.TemporaryDirectory() as folder:
            compression_cells.Store(folder, {"zero": 0, "set": []})
            compression_cells.Store(folder, {"zero": 0, "set": []}).add({"key": "a"})
            self.assertTrue(compression_cells.Store(folder).has("a"))
            with self.assertRaisesRegex(measured.CellError, "other settings"):
                compression_cells.Store(folder, {"zero": 1, "set": []})
            os.mkdir(os.path.join(folder, "text"))
            with open(os.path.join(folder, "text", "facts.json"), "w", encoding="utf-8") as f:
                f.write('{"source": "fortunes"}')
            self.assertEqual(compression_cells.text(folder, "build")[1], {"source": "fortunes"})
            with self.assertRaisesRegex(measured.CellError, "holds the text fortunes, and this table is of fortunes_and_manual"):
                compression_cells.text(folder, "build", source=compression_cells.fortunes_and_manual)


class Speed(unittest.TestCase):
    def test_verdicts(self):
        verdict, chance = script("compare_speed").verdict, random.Random(1)

        def rounds(n, factor, noise, again=1.0, base=100.0):
            return [{"old": base, "new": base * factor * chance.gauss(1, noise), "again": base * again * chance.gauss(1, noise)} for _ in range(n)]
        self.assertEqual(verdict("step", rounds(30, 1.0, 0.005)), "met")
        self.assertEqual(verdict("step", rounds(30, 1.05, 0.005)), "missed")
        self.assertEqual(verdict("comm_262144", rounds(30, 1.025, 0.002)), "met")
        self.assertEqual(verdict("step", rounds(30, 1.0, 0.1)), "cannot be told")
        self.assertEqual(verdict("step", rounds(30, 1.018, 0.01)), "cannot be told")
        self.assertEqual(verdict("step", rounds(5, 1.05, 0.005)), "cannot be told")
        self.assertEqual(verdict("step", rounds(30, 1.05, 0.005, again=1.05)), "cannot be told")
        self.assertEqual(verdict("comm_8", rounds(30, 1.05, 0.005, base=1.0)), "met")  # 0.05 us
        self.assertEqual(verdict("comm_8", rounds(30, 1.2, 0.005, base=1.0)), "missed")

    def test_the_page_of_pairs_is_what_its_cells_say(self):
        rounds = {}
        for c in measured.read_cells(os.path.join(RESULTS, "speed_pairs_cells.jsonl")):
            rounds.setdefault(c["cell"], {}).setdefault(c["round"], {})[c["who"]] = c["values"][c["cell"]]
        page = pathlib.Path(RESULTS, "speed_pairs.md").read_text(encoding="utf-8")
        for cell, of in rounds.items():
            said = ["{:.3f} ({:.3f} to {:.3f})".format(*measured.interval([r[who] / r["old"] for r in of.values()])) for who in ("new", "again")]
            self.assertIn(f"| {said[0]} | {said[1]} |", page, cell)


class Long(unittest.TestCase):
    def test_losses_of_any_number_of_seeds(self):
        long = script("compare_long")

        def rows(seeds):
            records = [{"cell": "loss_512", "round": n, "who": who, "eval_loss": 2.5 + n / 1000} for n in range(seeds) for who in long.CELLS["loss_512"]]
            return [line for line in long.tables(records).splitlines() if line.startswith("| a2a")]
        self.assertIn("| - | at most 1.005 | cannot be told |", rows(1)[0])
        self.assertIn("11 pairs) | at most 1.005 | met |", rows(11)[0])

    def test_the_longest_that_fits_may_be_none(self):
        memory = script("check_long_memory")

        class Group:
            def __init__(self, limit):
                pass

            def close(self):
                pass

        def train(o, length, way, group, more):
            if way == "whole" or length > 8192:
                raise measured.CellError("killed")
            return 1, 1.0
        memory.Group, memory.train = Group, train
        with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stderr(nothing):
            text = memory.limit(types.SimpleNamespace(limit=1, most=1 << 20))
        self.assertIn("| whole | 0 | - |\n| chunks | 8192 | - |", text)


class Help(unittest.TestCase):
    def test_every_script_says_what_it_is_and_refuses_what_it_does_not_know(self):
        for name in ("bench_tables.py", "calibrate", "check_configs", "check_copy", "check_headers", "check_long_memory", "check_overlap.py", "check_planner", "compare_commits",
                     "compare_long", "compare_pytorch.py", "compare_speed", "compression_tables.py", "published_claims", "resolve_stacks", "trace_picture.py"):
            with self.subTest(name):
                done = subprocess.run([sys.executable, os.path.join(SCRIPTS, name), "--help"], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(name, done.stdout)
                done = subprocess.run([sys.executable, os.path.join(SCRIPTS, name), "--nonsense"], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (64, 1), done.stderr)
                self.assertTrue(done.stderr.startswith(f"error: {name.removesuffix('.py')}: "), done.stderr)

    def test_scripts_that_are_installed_say_which_python_they_need(self):
        text = "import runpy, sys; sys.version_info, sys.version, sys.argv = (3, 8, 10), '3.8.10 (default)', sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        for name in ("sweep", "lab", "calibrate", "check_configs", "trace_picture.py"):
            with self.subTest(name):
                path = os.path.join(SCRIPTS, name)
                ast.parse(pathlib.Path(path).read_text(encoding="utf-8"), feature_version=(3, 6))  # an older one gets to the message
                done = subprocess.run([sys.executable, "-c", text, path], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (1, f"error: {path} needs Python 3.9 or newer, python3 is 3.8.10\n"))

    def test_compare_commits_needs_the_data_of_the_old_build(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "train").write_text("#!/bin/sh\n", encoding="utf-8")
            os.chmod(os.path.join(folder, "train"), 0o755)
            command = [sys.executable, os.path.join(SCRIPTS, "compare_commits"), "--builds", folder, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 66, done.stderr)
            self.assertIn("tiny_text_document.bin is missing: cmake --build", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_calibrate_says_first_that_it_cannot_write(self):
        command = [sys.executable, os.path.join(SCRIPTS, "calibrate"), "--output", "/nowhere/machine.json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, "error: calibrate: /nowhere: no such folder\n"))

    def test_calibrate_that_is_ended_ends_what_it_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = pathlib.Path(folder, "bench")
            bench.write_text('#!/bin/sh\ntrap "touch $0.asked; exit" TERM; touch $0.begun; while :; do sleep 0.05; done\n', encoding="utf-8")
            os.chmod(bench, 0o755)
            with subprocess.Popen([sys.executable, os.path.join(SCRIPTS, "calibrate"), "--output", os.path.join(folder, "m.json"), "--build", folder]) as process:
                while not os.path.exists(f"{bench}.begun") and process.poll() is None:
                    time.sleep(0.02)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
            self.assertTrue(os.path.exists(f"{bench}.asked"))

    def test_calibrate_knows_attention_with_fewer_heads(self):
        products = script("calibrate").with_fewer_heads({"matmul": [[8.0, 5.0]], "attention_forward": [[8.0, 1.0, 2.0], [16.0, 3.0, 4.0]]})
        self.assertEqual(products, {"matmul": [[8.0, 5.0]], "attention_forward": [[2.0, 1.0, 2.0], [4.0, 1.0, 2.0], [8.0, 1.0, 2.0], [16.0, 3.0, 4.0]]})

    def test_what_is_not_there_is_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "trace.rank0.json").write_text('[{"ph": "X", "tid": 1, "ts": 0, "dur": 5, "name": "1"}, {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "steps"}}]')
            for words, code, says in ((["resolve_stacks", "/nowhere"], 1, "error: resolve_stacks: /nowhere: No such file or directory"),
                                      (["trace_picture.py", folder, "--output", "F.svg", "--ranks", "a"], 64,
                                       f"error: trace_picture: argument --ranks: invalid numbers value: 'a'; see {os.path.join(SCRIPTS, 'trace_picture.py')} --help"),
                                      (["trace_picture.py", folder, "--output", "F.svg", "--ranks", "3"], 1, f"error: {folder}: no trace.rank*.json of rank 3")):
                done = subprocess.run([sys.executable, os.path.join(SCRIPTS, words[0]), *words[1:]], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr.splitlines()[-1]), (code, says))
                self.assertNotIn("Traceback", done.stderr)

    def test_neox_files_that_are_no_models(self):
        check = script("check_configs")
        if check.yaml is None:
            return  # PyYAML is not needed by anything else
        with tempfile.TemporaryDirectory() as folder:
            def judged(text, said="", code=78):
                path = pathlib.Path(folder, "mamba.yml")
                path.write_text(text)
                pathlib.Path(folder, "train").write_text(f"#!/bin/sh\necho 'error: {path}:1:1: {said}' >&2; exit {code}\n")
                os.chmod(os.path.join(folder, "train"), 0o755)
                return check.verdict(os.path.join(folder, "train"), [path])
            self.assertEqual(judged('{"profile": true}'), ("left out: has no model of its own", True))
            self.assertFalse(judged('{"profile": [')[1])
            model = '{"num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "attention-config": [[["mamba"], 2]]}'
            self.assertTrue(judged(model, 'layers of the kind "mamba" are not supported')[1])
            self.assertFalse(judged(model, "vocab_size: missing")[1])  # its name in the path is no refusal by name

    def test_a_page_needs_cells(self):
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "check_long_memory"), "--page", "nowhere.md"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1]), (64, f"error: check_long_memory: --page needs --cells; see {os.path.join(SCRIPTS, 'check_long_memory')} --help"))


@unittest.skipUnless(os.access(os.path.join(measured.build_folder(), "report"), os.X_OK), "report is missing: it draws the pictures")
class Pages(unittest.TestCase):
    """Pages and pictures of docs/results are what their scripts make of the cells beside them. docs_test has those of compression, fault_matrix.py its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="thinwire-pages-")
        self.addCleanup(shutil.rmtree, self.folder)

    def copy(self, name):
        return shutil.copy(os.path.join(RESULTS, name), self.folder)

    def say(self, *words):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def compare(self, *names):
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))
        for name in names:
            with open(os.path.join(self.folder, name), encoding="utf-8") as made, open(os.path.join(RESULTS, name), encoding="utf-8") as committed:
                self.assertTrue(made.read() == committed.read(), f"docs/results/{name} is not what its cells say")

    def test_long_context(self):
        page = self.copy("long_context.md")
        for name, option, cells in (("compare_long", "--out", ""), ("check_long_memory", "--cells", "_memory"), ("check_copy", "--out", "_copy")):
            self.say(os.path.join(SCRIPTS, name), option, os.path.join(RESULTS, f"long_context{cells}_cells.jsonl"), "--page", page)
        self.compare("long_context.md", "long_context_copy.svg", "long_context_memory.svg")

    def test_codecs(self):
        tables = script("bench_tables.py")
        tables.PAGES, tables.PICTURE = {"codec": self.copy("codecs.md")}, os.path.join(self.folder, "codecs_bits.svg")
        self.assertEqual(tables.page_codec(types.SimpleNamespace(file=None)), 0)
        self.compare("codecs.md", "codecs_bits.svg")

    def test_gpu(self):
        self.say(os.path.join(ROOT, "tests", "gpu", "gpu_page.py"), "page", os.path.join(RESULTS, "gpu_cells.jsonl"), os.path.join(self.folder, "gpu.md"))
        self.compare("gpu.md")

    def test_soak(self):
        sys.path.insert(0, os.path.join(ROOT, "tests", "lab"))
        import soak
        soak.PAGE = pathlib.Path(self.folder, "soak.md")
        self.assertEqual(soak.page(), 0)
        self.compare("soak.md")


class Commits(unittest.TestCase):
    def test_differences(self):
        difference = script("compare_commits").difference
        run = {"code": 0, "metrics": {"line 1.loss": "5.5", "line 1.comm.dp.gradient.rel_error": "0.1"}, "checkpoint": {"a": "1"},
               "payloads": {"rank0 to 1": ["2", "4096", "aa", "bb", "7"]}}

        def changed(part, key, value):
            return {**run, part: {**run[part], key: value}}
        self.assertIsNone(difference(run, run, "none"))
        self.assertIn("line 1.loss", difference(run, changed("metrics", "line 1.loss", "5.6"), "none"))
        self.assertIsNone(difference(run, changed("metrics", "line 1.comm.dp.gradient.rel_error", "0.10000000000000002"), "none"))
        self.assertIn("checkpoint: a", difference(run, changed("checkpoint", "a", "2"), "none"))
        self.assertIsNone(difference(run, changed("checkpoint", "b", "2"), "none"))  # newer ones may hold more
        self.assertIn("checkpoint: b", difference(changed("checkpoint", "b", "2"), run, "none"))
        self.assertIsNone(difference(run, changed("payloads", "rank0 to 1", ["2", "4096", "aa", "bb", "3"]), "none"))  # votes may change
        self.assertIn("other pieces", difference(run, changed("payloads", "rank0 to 1", ["4", "4096", "ac", "bb", "7"]), "none"))
        self.assertIn("other bytes", difference(run, changed("payloads", "rank0 to 1", ["2", "4096", "ac", "bd", "7"]), "none"))
        self.assertIn("4096 bytes", difference(run, {**run, "payloads": {}}, "none"))
        refused = {"code": 78, "said": "no"}
        self.assertIsNone(difference(refused, refused, "zeropp"))
        self.assertIn("both end", difference(refused, refused, "none"))
        self.assertIn("exit code", difference(run, refused, "none"))


if __name__ == "__main__":
    unittest.main()
