# What measuring scripts share, and the verdicts of compare_speed and compare_commits.
import importlib.machinery
import importlib.util
import math
import os
import random
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "scripts")
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
