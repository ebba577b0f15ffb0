# Charts and pages of sweeps: scales, labels, verdicts over claims by their rules, pages that take every number from the table, and the shipped plans.
import csv
import json
import math
import os
import re
import sys
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sweep_made import ROOT, Folder, site, update

import sweep_json
import sweep_page
import sweep_plan
import sweep_store
import sweep_svg


class Charts(unittest.TestCase):
    def test_numbers_are_short(self):
        for value, words in (
            (0, "0"),
            (1234567, "1.23M"),
            (999600, "1M"),
            (999.96, "1k"),
            (12.345, "12.3"),
            (0.00123, "0.00123"),
            (-1500, "−1.5k"),
            (100, "100"),
            (1e15, "1000T"),
            (None, "–"),
            (math.nan, "–"),
        ):
            self.assertEqual(sweep_svg.number(value), words)
        self.assertEqual(
            (sweep_svg.bytes_text(500), sweep_svg.bytes_text(1.5e6), sweep_svg.percent_text(3.14159), sweep_svg.percent_text(-31.4)),
            ("500 B", "1.5 MB", "+3.1 %", "−31.4 %"),
        )

    def test_the_front_goes_around_what_it_dominates(self):
        points = [{"x": 1, "y": 1, "name": "a", "front": True}, {"x": 2, "y": 3, "name": "b", "front": True}]
        drawn = sweep_svg.draw({"chart": "scatter", "title": "t", "x_label": "x", "y_label": "y", "points": points})
        path = re.search(r'class="front" d="M([\d.]+) ([\d.]+)V([\d.]+)H([\d.]+)"', drawn)
        x0, y0, y1, x1 = (float(v) for v in path.groups())
        self.assertTrue(x1 > x0 and y1 < y0)  # up from the better loss, then right to the better x

    def test_pictures_are_files_of_their_own(self):
        rows = [{"label": "<a>", "value": 3.0, "low": 2.0, "high": 4.0, "color": 1, "note": "x & y"}]
        drawn = sweep_svg.draw({"chart": "rows", "title": "t", "unit": "ms", "rows": rows, "heading": "title <1>", "note": "note"})
        root = xml.etree.ElementTree.fromstring(drawn)
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertIn("title <1>", [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")])

    def test_nothing_to_draw(self):
        self.assertEqual([sweep_svg.lines([], "t", "x"), sweep_svg.rows("t", "u", [])], [None, None])
        for chart in ({"chart": "lines", "series": []}, {"chart": "rows", "rows": [{"label": "a"}]}, {"chart": "rows", "rows": [], "parts": ["a"]}, {"chart": "scatter", "points": []}):
            self.assertEqual(sweep_svg.draw(chart), "")

    def test_a_document_that_is_none_is_refused(self):
        for document in ({}, {"chart": "pie"}, {"chart": "rows", "rows": [{"value": "x"}]}, {"chart": "rows", "rows": [], "format": "furlong"}):
            with self.assertRaises(sweep_store.StoreError):
                sweep_svg.draw(document)


class Verdicts(Folder):
    def sweep(self, numbers):
        """numbers: {name: [(speed, loss) per seed]}."""
        self.plan.update({"list": [{"name": n} for n in numbers], "baseline": {"list": "base"}})
        n = 0
        for name, seeds in numbers.items():
            for seed, (ms, loss) in enumerate(seeds, 1):
                n += 1
                self.point(
                    f"{n:03d}-{name}",
                    {"list": name, "seed": seed},
                    [
                        update(1, loss, ms, comm={"embedding": site(4 if name == "base" else 3, 1.0)}),
                        {"step": 1, "eval_loss": loss, "perplexity": 1.0, "eval_ms": 1.0, "eval_tokens": 1, "split": "valid"},
                    ],
                    baseline=f"{seed:03d}-base",
                    report=True,
                )
        self.collect()
        return sweep_page.FromCsv(self.dir)

    def verdict(self, sweep, rule, of="new", metric="eval_loss", over="base", **more):
        return sweep_page.judge(sweep, {"claim": "c", "paper": "p", "metric": metric, "of": {"list": of}, "over": {"list": over}, "rule": rule, **more})[1]

    def test_rules(self):
        sweep = self.sweep(
            {
                "base": [(10, 2.0), (10, 3.0)],
                "better": [(5, 1.98), (5, 2.97)],
                "mixed": [(9, 1.9), (11, 3.1)],
                "same": [(10, 2.001), (10, 3.001)],
                "worse": [(20, 2.2), (20, 3.3)],
            }
        )
        agrees, differs, open_ = sweep_page.AGREES, sweep_page.DIFFERS, sweep_page.OPEN
        table = [
            ("less", "better", 0.5, agrees),
            ("less", "better", 1.5, open_),
            ("more", "better", 0.5, differs),
            ("more", "worse", 3, agrees),
            ("less", "worse", 3, differs),
            ("less", "mixed", 0.1, open_),
            ("more", "mixed", 0.1, open_),
            ("more", "same", 0.5, open_),
        ]
        for rule, of, noise, wanted in table:
            self.assertEqual(self.verdict(sweep, rule, of, noise=noise), wanted, (rule, of, noise))
        # "worse" is 10 % above: the paper's size counts from half to twice of it.
        for size, wanted in ((10, agrees), (19, agrees), (21, sweep_page.OTHER_SIZE), (4, sweep_page.OTHER_SIZE), (0, sweep_page.OTHER_SIZE)):
            self.assertEqual(self.verdict(sweep, "more", "worse", noise=3, size=size), wanted, size)
        for of, tolerance, wanted in (("same", 0.5, agrees), ("better", 0.5, differs), ("better", 1.1, agrees), ("mixed", 1, open_), ("worse", 9, differs)):
            self.assertEqual(self.verdict(sweep, "equal", of, tolerance=tolerance), wanted, (of, tolerance))
        for of, tolerance, wanted in (("same", 0.5, agrees), ("better", 0.5, agrees), ("worse", 3, differs), ("mixed", 1, open_)):
            self.assertEqual(self.verdict(sweep, "no_worse", of, tolerance=tolerance), wanted, (of, tolerance))
        self.assertEqual(self.verdict(sweep, "between", "same", metric="embedding.wire_bytes_total", low=0.7, high=0.8), agrees)
        self.assertEqual(self.verdict(sweep, "between", "base", metric="embedding.wire_bytes_total", over="same", low=1.34, high=1.4), differs)
        self.assertEqual(self.verdict(sweep, "more", "base", metric=["embedding.wire_bytes_total", "no.such.column"], over="same", noise=3), agrees)
        self.assertEqual(self.verdict(sweep, "more", metric="no.such.column", of="better", noise=3), open_)
        order = [{"list": n} for n in ("worse", "base", "better")]
        self.assertEqual(sweep_page.judge(sweep, {"metric": "tokens_per_s", "points": order, "rule": "ordered", "noise": 3}), ("+100 % → +100 %", agrees))
        self.assertEqual(sweep_page.judge(sweep, {"metric": "tokens_per_s", "points": order[::-1], "rule": "ordered", "noise": 3})[1], differs)
        self.assertEqual(sweep_page.judge(sweep, {"metric": "tokens_per_s", "points": [order[1], {"list": "same"}], "rule": "ordered", "noise": 3})[1], open_)
        self.assertEqual(sweep_page.judge(sweep, {"rule": "not_told"})[1], open_)
        with self.assertRaisesRegex(sweep_store.StoreError, "no axis"):
            sweep_page.matching(sweep, {"nonsense": 1})

    def test_one_seed_tells_of_bytes_alone(self):
        sweep = self.sweep({"base": [(10, 2.0)], "new": [(5, 3.0)]})
        for rule, more in (("more", {"noise": 1}), ("less", {"noise": 1}), ("no_worse", {"tolerance": 1}), ("equal", {"tolerance": 90})):
            self.assertEqual(self.verdict(sweep, rule, **more), sweep_page.OPEN, rule)
        self.assertEqual(self.verdict(sweep, "between", metric="embedding.wire_bytes_total", low=0.7, high=0.8), sweep_page.AGREES)

    def test_the_first_lines_name_the_plain_wire_and_what_keeps_the_loss(self):
        points = [("base", True, 0.0, 0.0, 10.0), ("bf16", False, 0.1, 0.1, 20.0), ("new", False, 0.4, 0.2, 15.0)]
        text = sweep_page.first_lines({"take": "Take it.", "bf16": "bf16"}, [({"claim": "C."}, sweep_page.DIFFERS)], points, 2)
        self.assertIn("beside a plain bf16 wire: `new` 0.75.", text)
        self.assertIn("half the seeds' spread included: `bf16`. Above, or cannot be told: `new`.", text)
        self.assertIn("1 does not agree. Not: C.", text)
        self.assertIn("cannot be told", sweep_page.first_lines({"take": "Take it."}, [], points, 1))
        points[1] = ("bf16", False, 0.1, 0.1, 0.0)  # it ended without a step that was timed
        self.assertIn("The plain bf16 wire has no speed", sweep_page.first_lines({"take": "Take it.", "bf16": "bf16"}, [], points, 2))

    def test_a_run_that_is_missing_leaves_a_claim_open(self):
        sweep = self.sweep({"base": [(10, 2.0)], "new": [(10, 2.0)]})
        sweep.rows[1]["state"] = "failed"
        self.assertEqual(self.verdict(sweep, "more", noise=1), sweep_page.OPEN)

    def test_pages_take_their_numbers_from_the_table(self):
        self.sweep({"base": [(10, 2.0), (10, 2.5)], "new": [(8, 2.02), (8, 2.525)]})
        papers = os.path.join(self.dir, "papers")
        os.makedirs(papers)
        with open(os.path.join(papers, "made.json"), "w", encoding="utf-8") as f:
            json.dump(
                {
                    "title": "T",
                    "about": "A.",
                    "take": "Take it.",
                    "setup": "S.",
                    "ours": "O.",
                    "claims": [
                        {
                            "claim": "Faster.",
                            "paper": "+20 %",
                            "metric": "tokens_per_s",
                            "of": {"list": "new"},
                            "over": {"list": "base"},
                            "rule": "more",
                            "noise": 3,
                            "if_agrees": "because",
                        },
                        {
                            "claim": "Same | loss",
                            "paper": "kept",
                            "metric": "eval_loss",
                            "of": {"list": "new"},
                            "over": {"list": "base"},
                            "rule": "equal",
                            "tolerance": 0.5,
                        },
                    ],
                },
                f,
            )
        page = os.path.join(self.dir, "page.md")
        sweep_page.write(self.dir, page, papers)
        with open(page, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("| Faster. | +20 % | +25 % | is above in every seed, and by at least 3 % on average | **agrees** |", text)
        self.assertIn("| Same \\| loss | kept | +1 % | is within 0.5 %, half the spread over seeds included | **does not agree** |", text)
        self.assertIn("- Of the paper's 2 claims 1 agrees; 1 does not agree. Not: Same | loss.", text)
        self.assertIn("**Faster**: because", text)
        for name in re.findall(r"\]\((page_\w+\.svg)\)", text):
            xml.etree.ElementTree.parse(os.path.join(self.dir, name))
        self.assertIn("page_speed.svg", text)
        # A file of the folder that one is in.
        before = os.getcwd()
        os.chdir(self.dir)
        self.addCleanup(os.chdir, before)
        sweep_page.write(self.dir, "here.md", papers)
        with open("here.md", encoding="utf-8") as f:
            self.assertIn("| Faster. |", f.read())
        # A changed table changes the page.
        path = os.path.join(self.dir, "results.csv")
        with open(path, encoding="utf-8", newline="") as f:
            rows = list(csv.DictReader(f))
        for row in rows:
            if row["list"] == "new":
                row["tokens_per_s"] = str(float(row["tokens_per_s"]) * 0.5)
        with open(path, "w", encoding="utf-8", newline="") as f:
            writer = csv.DictWriter(f, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        sweep_page.write(self.dir, page, papers)
        with open(page, encoding="utf-8") as f:
            self.assertIn("| Faster. | +20 % | −37.5 % |", f.read())

    def test_a_table_of_other_points_is_refused(self):
        self.sweep({"base": [(10, 2.0)]})
        self.point("009-late", {"list": "late", "seed": 1})
        with self.assertRaisesRegex(sweep_store.StoreError, "collect"):
            sweep_page.FromCsv(self.dir)


class Shipped(unittest.TestCase):
    """Every plan with claims: the claims name points that the plan has."""

    def test_claims_fit_their_plans(self):
        papers = os.path.join(ROOT, "configs", "sweeps", "papers")
        names = sorted(os.listdir(papers))
        self.assertGreaterEqual(len(names), 6)
        for name in names:
            paper = sweep_json.read(os.path.join(papers, name))
            plan = sweep_plan.read(os.path.join(ROOT, "configs", "sweeps", name))
            self.assertEqual(plan.name + ".json", name)
            self.assertEqual(plan.paper, f"docs/results/{plan.name}.md")
            self.assertTrue(all(isinstance(paper[k], str) for k in ("title", "about", "take", "setup", "ours")))
            for claim in paper["claims"]:
                self.assertIn(claim["rule"], sweep_page.RULES)
                sweep_page.RULES[claim["rule"]].format(**claim)
                known = {
                    "claim",
                    "paper",
                    "metric",
                    "of",
                    "over",
                    "rule",
                    "noise",
                    "tolerance",
                    "low",
                    "high",
                    "points",
                    "why",
                    "if_agrees",
                    "if_not",
                    "if_open",
                    "size",
                }
                self.assertFalse(set(claim) - known, (name, set(claim) - known))
                for where in [claim[k] for k in ("of", "over") if k in claim] + claim.get("points", []):
                    found = [p for p in plan.points if all(p.axes.get(k) == v for k, v in where.items())]
                    self.assertEqual(len(found), len({p.seed for p in found}), (name, where))
                    self.assertTrue(found, (name, where))
                self.assertTrue(claim["rule"] == "not_told" or "metric" in claim, claim)


if __name__ == "__main__":
    unittest.main()
