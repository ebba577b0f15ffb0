# The documentation: links lead somewhere, commands work, pages stay short, and a list that repeats one of the code equals it.
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import compression_page

BUILD = os.environ.get("THINWIRE_BUILD", os.path.join(ROOT, "build"))

# Pages that programs write, which are as long as what they list: config_docs, scripts/bench_tables.py, scripts/compression_tables.py, scripts/sweep page,
# scripts/published_claims, tests/train/fault_matrix.py page, tests/lab/soak.py page. So are parts of other pages (WRITTEN_PART).
GENERATED = {"docs/config.md", *(f"docs/results/{n}.md" for n in ("compression", "adapt", "gpu", "rates", "rivals", "faults", "soak", "planner", "hybrid_compression", "optimus_cc_ladder", "sdp4bit", "tagc_sparsity", "three_level_partition", "zeropp_ablation"))}
WRITTEN_PART = r"<!-- (\w+) -->.*?<!-- end of \1 -->|<!-- table \w+ -->.*?<!-- end -->"
# Limits in words: of a page, of all of them, and of references, which nobody reads from start to end.
PAGE, ALL = 1500, 35000
LONGER = {"docs/wire_formats.md": 6500, "docs/presets.md": 3400, "docs/running.md": 2500}
NUMBER = r"(?<![\d.])\d+\.\d+(?!\.?\d)"  # no part of a version
WITH_COMMANDS = ("README.md", "docs/running.md", "docs/clusters.md", "docs/long_context.md", "docs/planner.md", "docs/schedules.md")


def files_of_ours():
    """Paths under ROOT, without hidden folders, build trees (whatever they are called) and what runs leave behind."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if (not f.startswith(".") or f == ".github") and not os.path.exists(os.path.join(folder, f, "CMakeCache.txt"))]
        if folder == ROOT:
            folders[:] = [f for f in folders if f not in ("runs", "sweeps", "shared")]
        yield from (os.path.relpath(os.path.join(folder, f), ROOT) for f in files)


def pages():
    return sorted(f for f in files_of_ours() if f.endswith(".md"))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def prose(text):
    """The text without code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text):
    """The names that GitHub gives headings."""
    heads = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in heads}


def count_words(text):
    """Bars and rules of tables do not count."""
    return sum(1 for w in text.split() if re.search(r"\w", w))


def commands(text):
    """The lines of shell blocks and of indented blocks, without comments."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for b in blocks for line in b.splitlines()]
    lines += [line[4:] for line in text.splitlines() if re.match(r"    (\./|build/|scripts/|mpirun |train )", line)]
    return [c for c in (re.sub(r"\s+#.*$", "", line).strip() for line in lines) if c and not c.startswith("#")]


class Links(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        bad = []
        for page in pages():
            for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(page))):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                there = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                if not os.path.exists(os.path.join(ROOT, there)):
                    bad.append(f"{page}: {target}: no such file")
                elif anchor and there.endswith(".md") and anchor not in anchors(read(there)):
                    bad.append(f"{page}: {target}: no such heading")
        self.assertEqual(bad, [])

    def test_pages_that_are_named_exist(self):
        """Also in sources: an error message that sends people to a page that is gone is a dead end."""
        named = re.compile(r"\b((?:docs|tests|scripts|configs|compression|engine|parallel|model|optim|data)/(?:[\w.-]+/)*[\w-]+\.md)\b")
        bad = set()
        for path in files_of_ours():
            if path.endswith((".md", ".cpp", ".h", ".cu", ".py", ".sh", ".json", ".cmake", ".txt")) or "." not in os.path.basename(path):
                with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
                    text = re.sub(r"`git show [^`]*`", "", f.read(1 << 21))  # pages of the past
                # docs/results/NAME.md stands for any page that `sweep page` writes.
                bad |= {f"{path}: {n}" for n in named.findall(text) if "NAME" not in n and not os.path.exists(os.path.join(ROOT, n))}
        self.assertEqual(sorted(bad), [])

    def test_every_page_of_docs_is_on_the_map(self):
        linked = {os.path.normpath(os.path.join("docs", t.partition("#")[0])) for t in re.findall(r"\]\(([^)\s]+\.md[^)]*)\)", read("docs/README.md"))}
        self.assertEqual([p for p in pages() if p.startswith("docs/") and p != "docs/README.md" and p not in linked], [])


class Lengths(unittest.TestCase):
    def test_pages_are_short(self):
        counts = {p: count_words(re.sub(WRITTEN_PART, "", read(p), flags=re.DOTALL)) for p in pages() if p not in GENERATED}
        self.assertEqual({p: n for p, n in counts.items() if n > LONGER.get(p, PAGE)}, {})
        self.assertLessEqual(sum(counts.values()), ALL)
        self.assertLessEqual(len(read("docs/results/compression.md").split()), PAGE)

    def test_results_open_with_something_to_look_at(self):
        for page in (p for p in pages() if p.startswith("docs/results/")):
            second = [line for line in read(page).splitlines()[1:] if line and not line.startswith("<!--")][0]
            self.assertRegex(second, r"^(!\[|\|)", page)


class Lists(unittest.TestCase):
    def test_exit_codes_are_those_of_the_code(self):
        of_code = set(re.findall(r"k\w+ = (\d+),", read("engine/base/core/error.h").partition("enum")[2].partition("};")[0]))
        section = read("docs/programs.md").partition("## Exit codes")[2]
        of_page = set(re.findall(r"^\| (\d+) \|", section, flags=re.MULTILINE))
        self.assertEqual(of_page - of_code, {"1"})  # reference_check's
        self.assertEqual(of_code - of_page, set())

    def test_codecs_are_those_of_the_table(self):
        site = json.loads(read("docs/config.schema.json"))["definitions"]["rule"]["properties"]
        codecs = [c for c in site["codec"]["anyOf"][0]["enum"] if c]
        self.assertGreater(len(codecs), 10)
        rows = re.findall(r"^\| `(\w+)` \|", read("docs/codecs.md").partition("## All of them")[2].partition("\n## ")[0], flags=re.MULTILINE)
        self.assertEqual(rows, codecs)
        formats = read("docs/wire_formats.md")
        self.assertEqual([c for c in codecs if not re.search(rf"^#+ .*\b{c}\b", formats, flags=re.MULTILINE)], [])
        self.assertEqual(re.findall(r"^\| \[`(\w+)`\]", formats, flags=re.MULTILINE), codecs)

    def test_presets_have_a_section(self):
        page = read("docs/presets.md")
        names = [n.removesuffix(".json") for n in os.listdir(os.path.join(ROOT, "configs", "compression")) if n.endswith(".json")]
        self.assertEqual([n for n in names if f"`{n}`" not in page], [])
        published = set(names) - {"identity", "bf16_wire", "thinwire"}
        self.assertIn(f"published systems as one word | {len(published)} presets |", read("README.md"))

    def test_messages_of_troubleshooting_are_real(self):
        source = ""
        for top in ("engine", "parallel", "compression", "data", "model", "optim"):
            for folder, _, files in os.walk(os.path.join(ROOT, top)):
                for name in files:
                    if name.endswith((".cpp", ".h")):
                        source += read(os.path.join(folder, name))
        source = re.sub(r'"\s*\n\s*"', "", source).replace('\\"', '"')  # literals that go on in the next line
        quoted = [m for line in read("docs/troubleshooting.md").splitlines() if line.startswith("| `") for m in re.findall(r"`([^`]+)`", line.split("|")[1])]
        self.assertGreater(len(quoted), 20)
        parts = [part.strip() for m in quoted for part in m.split("...") if part.strip()]
        self.assertEqual([p for p in parts if p not in source], [])

    def test_numbers_of_the_readme_stand_on_the_pages_that_it_names(self):
        for line in read("README.md").splitlines():
            linked = re.findall(r"\]\((docs/results/[\w]+\.md)\)", line)
            if linked:
                there = re.findall(NUMBER, " ".join(read(p) for p in linked))
                self.assertEqual(set(re.findall(NUMBER, re.sub(r"\]\([^)]*\)", "]", line))) - set(there), set(), line)


class Generated(unittest.TestCase):
    def test_the_compression_page_is_what_its_cells_say(self):
        if not os.access(os.path.join(BUILD, "report"), os.X_OK):
            self.skipTest(f"{BUILD}/report is missing: it draws the picture")
        with tempfile.TemporaryDirectory() as folder:
            compression_page.write(os.path.join(folder, "compression.md"))
            for name in ("compression.md", "rates.md", "adapt.md", "rivals.md", "compression_speed.svg", "compression_curve.svg", "compression_curve_1gbit.svg"):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    self.assertTrue(f.read() == read("docs/results/" + name), f"docs/results/{name}: run scripts/compression_tables.py page")

    def test_lists_of_losses_are_those_of_the_pictures(self):
        """Tables of some sweeps were not kept, and lists on their pages were written by hand; the pictures have every seed."""
        listed = 0
        for page in sorted(GENERATED):
            said = re.search(r"half the seeds' spread included: (.*?)\.(?: Above, or cannot be told: .*)?$", read(page), flags=re.MULTILINE)
            if said:
                losses, baseline = {}, re.search(r"^\| (\S+) \(baseline\)", read(page), flags=re.MULTILINE)[1]
                for point, seed, loss in re.findall(r"\d+-([\w.]+)-seed(\d+), eval loss ([\d.]+)", read(page[:-3] + "_front.svg")):
                    losses.setdefault(point, {})[seed] = float(loss)
                above = {p: [100 * (of[s] / losses[baseline][s] - 1) for s in of] for p, of in losses.items() if p != baseline}
                kept = {p for p, gaps in above.items() if sum(gaps) / len(gaps) + (max(gaps) - min(gaps)) / 2 <= 0.5}
                self.assertEqual(set(re.findall(r"`(.*?)`", said[1])), kept, page)
                listed += 1
        self.assertGreater(listed, 0)

    def test_the_planner_says_the_loss_that_was_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.inc")
            subprocess.run([sys.executable, os.path.join(ROOT, "engine/run/plan/make_loss_gaps.py"), path], check=True)
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read(), read("engine/run/plan/loss_gaps_table.inc"), "run engine/run/plan/make_loss_gaps.py")


class Commands(unittest.TestCase):
    """Each command of a page as it stands there, in a folder of its own with links to the repository's; training is cut to two steps."""

    @classmethod
    def setUpClass(cls):
        if not os.access(os.path.join(BUILD, "train"), os.X_OK):
            raise unittest.SkipTest(f"{BUILD}/train is missing")
        cls.folder = tempfile.mkdtemp(prefix="docs_test")
        for name in ("configs", "scripts", "data", "tests"):
            os.symlink(os.path.join(ROOT, name), os.path.join(cls.folder, name))
        os.symlink(BUILD, os.path.join(cls.folder, "build"))
        os.symlink(os.path.join(BUILD, "train"), os.path.join(cls.folder, "train"))
        with open(os.path.join(cls.folder, "MY.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"The number {n} comes before the number {n + 1}.\n\n" for n in range(4000)))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_in(self, words, page):
        done = subprocess.run(words, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=False)
        self.assertEqual(done.returncode, 0, f"{page}: {shlex.join(words)}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        return done.stdout

    def check(self, command, page):
        """Runs what can be run here of a command; whether anything was checked."""
        words, front = shlex.split(command), []
        if words[0] == "mpirun":
            front, words = words[:3], words[3:]
            self.assertEqual(front[1], "-n", command)
        program, arguments = words[0], words[1:]
        if program in ("train", "./train", "build/train"):
            return self.check_train(front, arguments, command, page)
        if program.startswith("build/"):
            self.run_in([*front, *words], page)
        elif program.startswith("scripts/"):
            self.assertTrue(os.access(os.path.join(ROOT, program), os.X_OK), command)
            # These read their options themselves; others hand them on.
            if os.path.basename(program) in ("sweep", "lab", "install_deps.sh", "quickstart.sh", "gpu_check.sh", "bench_tables.py"):
                for option in (w.partition("=")[0] for w in arguments if w.startswith("--") and w != "--"):
                    self.assertIn(option, read(program), f"{page}: {command}")
        else:
            return False
        return True

    def check_train(self, front, arguments, command, page):
        files = [w for w in arguments if w.endswith((".json", ".yml", ".args")) and "=" not in w]
        if "device=cuda" in arguments or any(re.match(r"[A-Z0-9]", f) for f in files):
            return False  # MY.json stands for the reader's own file
        if any(w == "--dry-run" or w.startswith("--print") for w in arguments):
            self.assertTrue(self.run_in(["build/train", *arguments], page), command)
        elif front and int(front[2]) > 2:  # more than there are cores here: the layout is checked and priced
            self.run_in(["build/train", *arguments, "--dry-run", "--ranks", front[2]], page)
        else:
            self.run_in([*front, "build/train", *arguments, "train_iters=2", "eval_iters=1", "log_interval=1", "threads_per_rank=1"], page)
        return True

    def test_commands_of_pages_work(self):
        tried = 0
        for page in WITH_COMMANDS:
            for command in commands(read(page)):
                for part in re.split(r"\s*&&\s*", command):
                    if not re.search(r"\b(PLAN|NAME|DIR|MINE|MY\.json)\b|\.\.\.", part):  # forms to be filled in
                        with self.subTest(page=page, command=part):
                            tried += self.check(part, page)
        self.assertGreater(tried, 20)

    def test_the_dry_run_says_what_long_context_says(self):
        """The two tables of memory and bytes, row by row, by the command that stands below them."""
        page = read("docs/long_context.md")
        words = shlex.split(re.search(r"Repeat a row with `\./train (.*?)`", page, flags=re.DOTALL)[1])
        rows = 0
        for part in re.split(r"(?=\nThe same with as many KV heads)", page.partition("What `--dry-run` says of")[2]):
            more = re.findall(r"\(`(num_kv_heads=\d+)`\)", part.partition("|")[0])
            for ranks, kind, *cells in re.findall(r"^\| (\d+) \| (\w*) ?\| ([\d,]+) MiB \| ([\d,]+) MiB \| (?:([\d,]+) MiB )?\| (?:([\d,]+) MiB )?\|$", part, flags=re.MULTILINE):
                row = [w for w in words if not w.startswith(("context_parallel_size=", "cp_comm_type="))] + more
                row[row.index("--ranks") + 1] = ranks
                out = self.run_in(["build/train", *row, *([f"context_parallel_size={ranks}", f"cp_comm_type={kind}"] if kind else [])], "docs/long_context.md")
                said = [(re.search(rf"^  {name} +([\d.]+) MiB", out, flags=re.MULTILINE) or [0, 0])[1]
                        for name in ("activations", "workspace", r"sequence\.forward", r"sequence\.backward")]
                for cell, value in zip(cells, said):
                    self.assertAlmostEqual(float(cell.replace(",", "") or 0), float(value), delta=0.6, msg=f"{ranks} {kind} {more}")
                rows += 1
        self.assertEqual(rows, 12)

    def test_configurations_that_pages_name_exist(self):
        for page in pages():
            for name in re.findall(r"\bconfigs/[\w/.-]+\.(?:json|yml)", read(page)):
                if not re.search(r"NAME|MINE|[*<]", name):
                    self.assertTrue(os.path.exists(os.path.join(ROOT, name)), f"{page}: {name}")


if __name__ == "__main__":
    unittest.main()
