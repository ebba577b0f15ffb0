# Results of sweeps: folders made by hand with known numbers, and what the table and the page must say of them.
import itertools
import json
import math
import os
import random
import shutil
import statistics
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sweep_made import Folder, check_html, site, update

import sweep_collect
import sweep_html


class Rows(Folder):
    def test_a_row_has_every_number(self):
        lines = [
            update(i, loss, ms, wall_s=10 * i, comm={"dp.gradient": site(100 * i, 4.0 * i, 800), "control": site(1, 0.5)})
            for i, (loss, ms) in enumerate([(9, 500), (8, 400), (7, 300), (6, 30), (5, 10), (4, 20)], 1)
        ]
        lines.insert(3, {"step": 3, "eval_loss": 6.5, "perplexity": 600.0, "eval_ms": 3.0, "eval_tokens": 64, "split": "valid"})
        lines.append({"step": 6, "eval_loss": 6.75, "perplexity": 700.0, "eval_ms": 4.0, "eval_tokens": 64, "split": "valid"})
        # The test text is evaluated at the end of a run: runs are not compared by it.
        lines.append({"step": 6, "eval_loss": 3.0, "perplexity": 20.0, "eval_ms": 4.0, "eval_tokens": 64, "split": "test"})
        self.point("001-a", {"compression.preset": "none"}, lines, started="2026-01-01T00:00:00Z", seconds=12.5)
        row = self.collect()["001-a"]
        wanted = {
            "state": "finished",
            "code": "0",
            "attempts": "1",
            "compression.preset": "none",
            "seed": "7",
            "launcher.kind": "lab",
            "launcher.ranks": "4",
            "launcher.hosts": "2",
            "launcher.rate": "1gbit",
            "started": "2026-01-01T00:00:00Z",
            "seconds": "12.5",
            "updates": "6",
            "skipped": "0",
            "split": "valid",
            "dp.gradient.baseline_dtype": "fp32",
            "baseline": "",
            "gap.step_ms": "",
        }
        self.assertEqual({k: row.get(k, "") for k in wanted}, wanted)
        # Updates 4 to 6 are the second half: 30, 10 and 20 ms; bytes are means, all else medians, memory is the peak.
        numbers = {
            "step_ms": 20,
            "tokens_per_s": 50000,
            "samples_per_s": 200,
            "time_ms.forward": 10,
            "time_ms.data": 1,
            "model_tflops_per_rank": 0.25,
            "grad_norm": 1,
            "memory_peak_bytes": 106,
            "step": 6,
            "wall_s": 60,
            "consumed_tokens": 6000,
            "loss": 4,
            "train_loss": 4,
            "eval_loss": 6.75,
            "best_eval_loss": 6.5,
            "perplexity": 700,
            "eval_tokens": 64,
            "dp.gradient.wire_bytes": 500,
            "dp.gradient.wire_bytes_total": 1000,
            "dp.gradient.logical_bytes": 800,
            "dp.gradient.exposed_ms": 20,
            "dp.gradient.busy_ms": 25,
            "dp.gradient.encode_ms": 1,
            "dp.gradient.decode_ms": 2,
            "control.wire_bytes": 1,
            "wire_bytes": 501,
            "wire_bytes_total": 1002,
            "logical_bytes_total": 1602,
            "exposed_ms": 20.5,
            "busy_ms": 30.5,
            "encode_ms": 2,
            "decode_ms": 4,
            "run_wire_bytes_total": 2 * (100 * 21 + 6),
            "run_logical_bytes_total": 2 * (6 * 800 + 6),
            "compression_ratio": 1602 / 1002,
            "mean.eval_loss": 6.75,
            "seeds": 1,
        }
        self.assertEqual({k: float(row[k]) for k in numbers}, {k: float(v) for k, v in numbers.items()})
        self.assertNotIn("mfu", row)  # never a number in this run

    def test_a_site_that_pauses_has_its_pauses_in_the_mean(self):
        lines = [update(i, 5, 10, comm={"control": site(1, 0.5), **({"embedding": site(90, 1.0)} if i % 2 else {})}) for i in range(8)]
        self.point("001-a", {"compression.preset": "none"}, lines)
        row = self.collect()["001-a"]
        self.assertEqual([float(row[k]) for k in ("embedding.wire_bytes", "control.wire_bytes", "wire_bytes")], [45, 1, 46])

    def test_numbers_are_those_of_a_slow_independent_reading(self):
        rng = random.Random(5)
        for n in (1, 2, 3, 7, 20, 41):
            lines = [update(i, rng.uniform(1, 9), rng.uniform(1, 99), comm={"pp.forward": site(rng.randrange(1, 1000), rng.random())}) for i in range(1, n + 1)]
            self.point(f"{n:03d}", {"n": n}, lines)
            late, tail = lines[n // 2 :], lines[-min(20, math.ceil(n / 10)) :]

            def middle(values):
                values = sorted(values)
                return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2

            row = self.collect()[f"{n:03d}"]
            self.assertAlmostEqual(float(row["step_ms"]), middle(u["step_ms"] for u in late), places=12)
            self.assertAlmostEqual(float(row["pp.forward.exposed_ms"]), middle(u["comm"]["pp.forward"]["exposed_ms"] for u in late), places=12)
            self.assertAlmostEqual(float(row["pp.forward.wire_bytes"]), sum(u["comm"]["pp.forward"]["wire_bytes"] for u in late) / len(late), places=9)
            self.assertAlmostEqual(float(row["train_loss"]), sum(u["loss"] for u in tail) / len(tail), places=12)

    def test_broken_lines_do_not_count(self):
        good = [update(i, 10.0 - i, 10.0 * i) for i in range(1, 5)]
        broken = [
            '{"step": 5, "loss": 1.0, "step_ms": 1',
            "",
            "null",
            "[1, 2]",
            '{"step": "x", "loss": 0}',
            '{"loss": 0.1}',
            "\x00\x00\x00",
            '{"step": 6, "comm": 5}',
        ]
        raw = "".join(json.dumps(line) + "\n" + broken[2 * i] + "\n" + broken[2 * i + 1] + "\n" for i, line in enumerate(good))
        self.point("001", {"a": 1}, raw=raw + '{"step": 9, "lo')
        row = self.collect()["001"]
        self.assertEqual((row["updates"], float(row["loss"]), float(row["step_ms"])), ("4", 6.0, 35.0))

    def test_a_step_that_is_there_twice_counts_once(self):
        self.point("001", {"a": 1}, [update(1, 5.0, 10.0), update(2, 9.0, 99.0), update(3, 9.0, 99.0), update(2, 4.0, 20.0), update(3, 3.0, 30.0)])
        row = self.collect()["001"]
        self.assertEqual((row["updates"], float(row["loss"]), float(row["step_ms"])), ("3", 3.0, 25.0))

    def test_a_loss_that_is_no_number(self):
        self.point(
            "001",
            {"a": 1},
            [update(1, 5.0, 10.0), update(2, None, 20.0, loss_text="nan", skipped=True, comm={"dp.gradient": {**site(8, 1.0), "exposed_ms": None}})],
        )
        row = self.collect()["001"]
        self.assertEqual((row["skipped"], row.get("train_loss", ""), float(row["step_ms"]), float(row["wire_bytes"])), ("1", "", 20.0, 8.0))

    def test_an_axis_named_like_a_metric(self):
        for n, scale in enumerate((1, 2), 1):
            self.point(f"00{n}", {"loss_scale": scale}, [update(1, 5.0, 10.0)])
        self.point("003", {"loss_scale": 4}, state="init")  # has no metrics, and the same columns
        rows = self.collect()
        self.assertEqual([(r["config.loss_scale"], r["loss_scale"]) for r in rows.values()], [("1", "1.0"), ("2", "1.0"), ("4", "")])

    def test_points_that_never_ran_are_rows_with_their_reason(self):
        self.point("001", {"a": 1}, state="refused", reason='plan.json:3:9: hidden_size: 10 is no multiple of "4", num_attention_heads')
        self.point("002", {"a": 2}, [update(1, 5.0, 10.0)], state="failed", reason="exit 74: disk full\nsecond line")
        self.point("003", {"a": 3}, state="init")
        os.unlink(os.path.join(self.dir, "runs", "003", "status.json"))
        self.point("004", {"a": 4})
        shutil.rmtree(os.path.join(self.dir, "runs", "004"))  # it is not made yet
        with open(os.path.join(self.dir, "runs", "002", "run", "status.json"), "w", encoding="utf-8") as f:
            f.write("{half")
        rows = self.collect()
        self.assertEqual(
            [(r["id"], r["state"], r["a"]) for r in rows.values()],
            [("001", "refused", "1"), ("002", "failed", "2"), ("003", "init", "3"), ("004", "init", "4")],
        )
        self.assertIn('"4", num_attention_heads', rows["001"]["reason"])
        self.assertEqual(rows["002"]["reason"], "exit 74: disk full\nsecond line")
        self.assertEqual((rows["001"].get("step_ms"), rows["002"]["seeds"], rows["002"].get("mean.step_ms", "")), ("", "0", ""))
        text = self.html()
        self.assertIn("num_attention_heads", text)
        self.assertIn("disk full", text)

    def test_an_empty_sweep(self):
        os.makedirs(os.path.join(self.dir, "runs"))
        self.assertEqual(self.collect(), {})
        check_html(self, self.html())


class Comparisons(Folder):
    def grid(self, axes, seeds=(7,), numbers=None, baseline=None, states=None):
        """All points of a grid; numbers(axes) -> (loss, ms, bytes)."""
        self.plan.update({"grid": axes, "seeds": list(seeds), "baseline": baseline or {}})
        self.points.clear()
        ids = {}
        for n, choice in enumerate(itertools.product(*axes.values(), seeds), 1):
            ids[choice] = f"{n:03d}-" + "-".join(str(c) for c in choice)
        for choice, id_ in ids.items():
            values = dict(zip([*axes, "seed"], choice))
            base = ids.get(tuple((baseline or {}).get(k, v) for k, v in values.items())) if baseline else None
            loss, ms, sent = numbers(values)
            state = (states or {}).get(id_, "finished")
            lines = [
                update(1, loss, ms, comm={"dp.gradient": site(sent, ms / 10)}),
                {"step": 1, "eval_loss": loss, "perplexity": 1.0, "eval_ms": 1.0, "eval_tokens": 1, "split": "valid"},
            ]
            self.point(id_, values, lines if state == "finished" else [], state=state, baseline=base, report=state == "finished")
        return ids

    def test_gaps_are_against_the_baseline_of_the_same_remaining_axes(self):
        numbers = {
            ("none", "a", 1): (2.0, 10.0, 100),
            ("none", "a", 2): (3.0, 20.0, 100),
            ("none", "b", 1): (4.0, 40.0, 100),
            ("none", "b", 2): (5.0, 50.0, 100),
            ("x", "a", 1): (2.1, 5.0, 50),
            ("x", "a", 2): (2.7, 25.0, 50),
            ("x", "b", 1): (4.0, 20.0, 25),
            ("x", "b", 2): (5.5, 50.0, 25),
        }
        self.grid(
            {"compression.preset": ["none", "x"], "@rate": ["a", "b"]},
            (1, 2),
            lambda v: numbers[(v["compression.preset"], v["@rate"], v["seed"])],
            {"compression.preset": "none"},
        )
        rows = {(r["compression.preset"], r["@rate"], int(r["seed"])): r for r in self.collect().values()}
        wanted = {
            ("x", "a", 1): (5, 100, -50),
            ("x", "a", 2): (-10, -20, -50),
            ("x", "b", 1): (0, 100, -75),
            ("x", "b", 2): (10, 0, -75),
            ("none", "b", 2): (0, 0, 0),
        }
        for key, gaps in wanted.items():
            got = [float(rows[key][f"gap.{name}"]) for name in ("eval_loss", "tokens_per_s", "wire_bytes_total")]
            for g, w in zip(got, gaps):
                self.assertAlmostEqual(g, w, places=9, msg=str(key))
        self.assertEqual(rows[("x", "b", 1)]["baseline"], rows[("none", "b", 1)]["id"])
        # Over seeds: the mean of losses, and of gaps against the baseline of the same seed.
        r = rows[("x", "a", 2)]
        self.assertEqual((float(r["seeds"]), float(r["low.eval_loss"]), float(r["high.eval_loss"])), (2, 2.1, 2.7))
        self.assertAlmostEqual(float(r["mean.eval_loss"]), 2.4, places=12)
        self.assertAlmostEqual(float(r["mean.gap.eval_loss"]), -2.5, places=9)
        self.assertEqual(rows[("x", "a", 1)]["mean.gap.tokens_per_s"], r["mean.gap.tokens_per_s"])

    def test_no_gap_where_the_baseline_failed(self):
        ids = self.grid({"p": ["none", "x"]}, (1, 2), lambda v: (2.0, 10.0, 1), {"p": "none"}, {"001-none-1": "failed"})
        rows = self.collect()
        self.assertEqual(
            (rows[ids[("x", 1)]].get("gap.eval_loss", ""), rows[ids[("x", 2)]]["gap.eval_loss"], rows[ids[("x", 1)]]["mean.gap.eval_loss"]), ("", "0.0", "0.0")
        )
        check_html(self, self.html())

    def test_fronts_are_those_of_brute_force(self):
        rng = random.Random(3)
        for trial in range(4):
            shutil.rmtree(os.path.join(self.dir, "runs"), ignore_errors=True)
            made = {}

            def numbers(v):
                # Few values, so that there are ties; trial 3 has bytes in two clusters far apart.
                made[(v["p"], v["@rate"], v["seed"])] = got = (
                    rng.choice([1.0, 1.5, 2.0, 2.5, 3.0]),
                    rng.choice([10.0, 20.0, 40.0, 80.0]),
                    rng.choice([1, 2, 8000, 9000] if trial == 3 else [1, 2, 3]),
                )
                return got

            self.grid({"p": [f"p{i}" for i in range(11)], "@rate": ["a", "b"]}, (1, 2), numbers)
            rows = self.collect()
            for rate in "ab":
                means = {
                    p: [
                        statistics.fmean(made[(p, rate, s)][0] for s in (1, 2)),
                        -statistics.fmean(1e6 / made[(p, rate, s)][1] for s in (1, 2)),
                        statistics.fmean(2 * made[(p, rate, s)][2] for s in (1, 2)),
                    ]
                    for p in (f"p{i}" for i in range(11))
                }
                for k, column in ((1, "pareto.tokens_per_s"), (2, "pareto.run_wire_bytes_total")):
                    front = {p for p, m in means.items() if not any((o[0] <= m[0] and o[k] <= m[k]) and (o[0] < m[0] or o[k] < m[k]) for o in means.values())}
                    said = {r["p"] for r in rows.values() if r["@rate"] == rate and r[column] == "1"}
                    self.assertEqual(said, front, f"trial {trial}, {rate}, {column}")
            check_html(self, self.html())

    def test_keys_of_a_zip_are_one_axis(self):
        self.plan.update({"zip": {"@hosts": [2, 4], "@ranks": [4, 8]}, "baseline": {"list": "base"}})
        for n, (hosts, name) in enumerate(itertools.product((2, 4), ("base", "new")), 1):
            self.point(
                f"{n:03d}", {"@hosts": hosts, "@ranks": 2 * hosts, "list": name}, [update(1, 2.0 + hosts, 10.0)], baseline=f"{1 if hosts == 2 else 3:03d}"
            )
        self.collect()
        view = sweep_html.View(sweep_collect.Sweep(self.dir))
        self.assertEqual([(t, [g["name"] for g in m]) for t, m in view.panels], [("2 hosts, 4 ranks", ["base", "new"]), ("4 hosts, 8 ranks", ["base", "new"])])

    def test_lists_and_objects_on_an_axis_make_panels(self):
        self.plan["baseline"] = {"p": "none"}
        for n, (betas, p) in enumerate(itertools.product(([0.9, 0.95], [0.9, 0.999]), ("none", "coded")), 1):
            self.point(f"00{n}", {"p": p, "betas": betas, "zero": {"stage": 1}}, [update(1, 5.0 + n, 10.0)])
        self.collect()
        text = self.html()
        check_html(self, text)
        self.assertIn("[0.9, 0.95]", text)

    def test_the_page_is_well_formed_and_alone(self):
        for sizes in ((1, 1), (2, 1), (5, 4), (20, 3)):
            shutil.rmtree(os.path.join(self.dir, "runs"), ignore_errors=True)
            rng = random.Random(1)
            ids = self.grid(
                {"compression.preset": [f"p<{i}>&\"'" for i in range(sizes[0])], "compression.dp.gradient.block": [32 * (i + 1) for i in range(sizes[1])]},
                (1, 2),
                lambda v: (rng.uniform(1, 2), rng.uniform(10, 20), rng.randrange(1, 10**9)),
                {"compression.preset": "p<0>&\"'"},
            )
            self.collect()
            text = self.html()
            links = check_html(self, text)
            charts = ["loss against tokens", "loss against bytes", "eval loss", "tokens/s", "bytes of the whole run", "tokens per second", "exposed time"]
            missing = [c for c in charts if f'aria-label="{c}"' not in text]
            self.assertEqual(missing, [] if sizes[0] > 1 else ["eval loss"])  # a baseline alone has no distance from it
            for id_ in ids.values():
                self.assertIn(f"runs/{id_}/run/report.html", links)
            for link in links - {"results.csv"}:
                self.assertTrue(os.path.exists(os.path.join(self.dir, link)), link)


if __name__ == "__main__":
    unittest.main()
