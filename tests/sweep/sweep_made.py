# Sweeps made by hand for tests, with numbers that are known, and a strict reading of pages.
import csv
import html.parser
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import sweep_collect


def update(step, loss, ms, **more):
    """One line of metrics.jsonl, 1000 tokens a step."""
    return {
        "step": step,
        "consumed_samples": step * 4,
        "consumed_tokens": step * 1000,
        "loss": loss,
        "lr": 0.5,
        "grad_norm": 1.0,
        "loss_scale": 1.0,
        "skipped": False,
        "step_ms": ms,
        "samples_per_s": 4000 / ms,
        "tokens_per_s": 1e6 / ms,
        "model_tflops_per_rank": 0.25,
        "mfu": None,
        "memory_peak_bytes": 100 + step,
        "time_ms": {"data": 1.0, "forward": ms / 2},
        "non_finite": None,
        "comm": {},
        **more,
    }


def site(wire, exposed, logical=None, error=None):
    logical = wire if logical is None else logical
    return {
        "logical_bytes": logical,
        "wire_bytes": wire,
        "logical_bytes_total": 2 * logical,
        "wire_bytes_total": 2 * wire,
        "baseline_dtype": "fp32",
        "encode_ms": 1.0,
        "decode_ms": 2.0,
        "busy_ms": exposed + 5,
        "exposed_ms": exposed,
        "rel_error": error,
        "residual_norm": None,
    }


class Folder(unittest.TestCase):
    """Makes sweeps by hand, in the layout that scripts/sweep makes."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="sweep-collect-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.plan, self.points = {"name": "made", "about": "by hand"}, {}

    def point(self, id_, axes, lines=(), state="finished", baseline=None, report=False, raw="", **status):
        where = os.path.join(self.dir, "runs", id_)
        os.makedirs(os.path.join(where, "run"))
        self.points[id_] = {
            "id": id_,
            "axes": axes,
            "seed": axes.get("seed", 7),
            "baseline": baseline,
            "launcher": {"kind": "lab", "ranks": 4, "hosts": 2, "rate": "1gbit"},
            "config": {"num_layers": 3},
        }
        self.write()
        with open(os.path.join(where, "status.json"), "w", encoding="utf-8") as f:
            json.dump({"state": state, "attempts": 1, "code": 0 if state == "finished" else 78, "reason": "", **status}, f)
        if lines or raw:
            with open(os.path.join(where, "run", "metrics.jsonl"), "w", encoding="utf-8") as f:
                f.write("".join(json.dumps(line) + "\n" for line in lines) + raw)
        if report:
            with open(os.path.join(where, "run", "report.html"), "w", encoding="utf-8") as f:
                f.write("<p>made")

    def write(self):
        with open(os.path.join(self.dir, "sweep.json"), "w", encoding="utf-8") as f:
            json.dump({"name": "made", "launcher": {"kind": "lab"}, "plan_text": "// as given\n" + json.dumps(self.plan), "points": list(self.points.values())}, f)

    def collect(self):
        self.write()
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            out, sys.stdout = sys.stdout, nowhere
            try:
                sweep_collect.collect(self.dir, reports=False)
            finally:
                sys.stdout = out
        with open(os.path.join(self.dir, "results.csv"), encoding="utf-8", newline="") as f:
            return {row["id"]: row for row in csv.DictReader(f)}

    def html(self):
        with open(os.path.join(self.dir, "index.html"), encoding="utf-8") as f:
            return f.read()


class Strict(html.parser.HTMLParser):
    """Every element is closed in order; no script, nothing that would be fetched."""

    EMPTY = {"meta", "br", "img", "hr", "link", "input"}

    def __init__(self):
        super().__init__()
        self.open, self.links, self.tags = [], set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for key, value in attrs:
            if key in ("href", "src", "xlink:href"):
                self.links.add(value)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            raise AssertionError(f"</{tag}> closes {self.open[-1:]}")
        self.open.pop()


def check_html(test, text):
    """Returns the links."""
    parser = Strict()
    parser.feed(text)
    parser.close()
    test.assertEqual(parser.open, [])
    test.assertFalse(parser.tags & {"script", "link", "iframe", "img", "object"}, parser.tags)
    test.assertNotRegex(text, r"(?i)https?:|//[a-z]|@import|url\((?!#)")
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = xml.etree.ElementTree.fromstring(svg)
        width, height = [float(v) for v in root.get("viewBox").split()[2:]]
        for element in root.iter("text"):
            test.assertTrue(-1 <= float(element.get("x")) <= width + 1 and 0 <= float(element.get("y")) <= height + 1, (svg[:80], element.attrib, element.text))
    test.assertNotIn("nan", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).replace("finance", ""))
    return parser.links
