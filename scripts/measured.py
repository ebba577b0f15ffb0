# What scripts that measure share: cells as JSON lines, programs that print JSON, intervals, Markdown tables, tables put into pages.
import json
import os
import random
import shlex
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")


def build_folder():
    """Where the programs are."""
    return os.path.abspath(os.environ.get("THINWIRE_BUILD") or os.path.join(ROOT, "build"))


def fail(text, code=1):
    """Ends the script with one message."""
    print(f"error: {os.path.basename(sys.argv[0]).removesuffix('.py')}: {text}", file=sys.stderr)
    sys.exit(code)


def read_cells(path):
    """Records of a file of JSON lines, [] where there is none. A last line that a kill cut off is removed."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as f:
        whole = f.read()
    if not whole.endswith(b"\n"):
        os.truncate(path, whole.rfind(b"\n") + 1)
    return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]


def add_cell(path, record):
    with open(path, "a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")


def json_lines(command, limit=None, codes=(0,)):
    """The JSON lines that a program prints; ends this script with what it said where it ends with another code than these, or prints none."""
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode not in codes or not lines:
        fail(f"{shlex.join(map(str, command))}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return lines


def interval(values, draws=2000):
    """(median, low, high): the 95 % interval of the median by bootstrap; the same values give the same interval."""
    chance = random.Random(len(values))
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(draws))
    return statistics.median(values), medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def table(head, rows, right=()):
    """A Markdown table; `right`: columns of numbers."""
    def line(cells):
        return "| " + " | ".join(str(c).replace("\n", " ").replace("|", "\\|") for c in cells) + " |\n"
    return line(head) + "|" + "".join("---:|" if i in set(right) else "---|" for i in range(len(head))) + "\n" + "".join(line(r) for r in rows)


def size_name(size):
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def put(page, begin, text, end=None):
    """Replaces what stands in a page behind the line `begin`, up to the line `end` or the page's end."""
    with open(page, encoding="utf-8") as f:
        head, found, rest = f.read().partition(begin + "\n")
    tail = rest.partition(end + "\n")[2] if end else ""
    if not found or end and end + "\n" not in rest:
        fail(f"{page}: no line {begin}" + (f" with {end} behind it" if end else ""))
    with open(page + ".new", "w", encoding="utf-8") as f:
        f.write(head + found + text + (end + "\n" + tail if end else ""))
    os.replace(page + ".new", page)
