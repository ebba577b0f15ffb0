# What scripts that measure share: cells as JSON lines, programs that print JSON, the emulated cluster, intervals, Markdown tables put into pages.
import argparse
import contextlib
import functools
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from sweep_store import StoreError, write_atomic

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")


class CellError(Exception):
    """One message for the user."""


def build_folder():
    """Where the programs are."""
    return os.path.abspath(os.environ.get("THINWIRE_BUILD") or os.path.join(ROOT, "build"))


def ends(main):
    """Runs a script to its exit code; a CellError or a StoreError is its one message. SIGTERM ends it as an exception does, so that it tidies up."""
    def stop(number, _):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, stop)
    try:
        sys.exit(main())
    except (CellError, StoreError) as e:
        fail(e)


def fail(text, code=1):
    """Ends the script with one message."""
    print(f"error: {os.path.basename(sys.argv[0]).removesuffix('.py')}: {text}", file=sys.stderr)
    sys.exit(code)


class Parser(argparse.ArgumentParser):
    """Of a script's command line: the script's text is the help, and a wrong line ends with 64 as those of the programs do."""

    def __init__(self, text):
        super().__init__(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        fail(f"{message}; see {sys.argv[0]} --help", 64)

    def parse_cells(self, known):
        """Of a script that measures cells into --out: those that are named, or all."""
        self.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(known))
        self.add_argument("--out", required=True)
        o = self.parse_intermixed_args()
        if unknown := [c for c in o.cells if c not in known]:
            self.error(f"no cell {', '.join(unknown)}; there are {', '.join(known)}")
        o.cells = list(dict.fromkeys(o.cells or known))
        return o


def read_cells(path):
    """Records of a file of JSON lines, [] where there is none. A last line that a kill cut off does not count."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as f:
        whole = f.read()
    return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]


def add_cell(path, record):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)  # a missing folder loses no measurement
    with open(path, "ab+") as f:
        f.seek(0)
        whole = f.read()
        if not whole.endswith(b"\n"):  # a kill cut its last line off
            f.truncate(whole.rfind(b"\n") + 1)
        f.write(json.dumps(record).encode() + b"\n")


def kept(path, make):
    """The JSON of a file, which make() returns where there is no file yet."""
    if not os.path.exists(path):
        write_atomic(path, json.dumps(make()))
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def end(process):
    """Asks a command whose output is piped to end, and returns what it had said. mpirun is asked, not killed, since ranks outlive a killed one."""
    process.terminate()
    try:
        return process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        return "", ""


def run(command, limit=None):
    """Runs a command; returns (exit code, stdout, stderr). CellError where it takes longer than limit seconds. Whatever ends this script ends the command."""
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as e:
            out, err = end(process)
            if isinstance(e, subprocess.TimeoutExpired):
                raise CellError(f"{shlex.join(map(str, command))}: not done after {limit:g} s; it had said: {(err or out).strip()[-800:]}") from None
            raise
    return process.returncode, out, err


def output(command, limit=None, codes=(0,)):
    """What a program prints. CellError with what it said where it ends with another code than these."""
    code, out, err = run(command, limit)
    if code not in codes:
        raise CellError(f"{shlex.join(map(str, command))}: exit {code}: {(err or out).strip()[-400:]}")
    return out


def json_lines(command, limit=None, codes=(0,)):
    """The JSON lines that a program prints, at least one."""
    lines = [json.loads(line) for line in output(command, limit, codes).splitlines() if line.startswith("{")]
    if not lines:
        raise CellError(f"{shlex.join(map(str, command))} printed no JSON")
    return lines


def need(*programs, build=None):
    """The paths of these programs of the build, or the end of this script."""
    paths = [os.path.join(build or build_folder(), name) for name in programs]
    if missing := [p for p in paths if not os.access(p, os.X_OK)]:
        fail(f"{missing[0]} is missing: cmake --build {os.path.dirname(missing[0])} --target {os.path.basename(missing[0])}", 66)
    return paths


def need_torch(python):
    """The whole path of a Python that has torch, or the end of this script."""
    path = shutil.which(python)
    if not path or subprocess.run([path, "-c", "import torch"], capture_output=True, check=False).returncode:
        fail(f"{python} has no torch; give --python of a virtual environment that has")
    return os.path.abspath(path)


class Emulated:
    """A lab of this script (scripts/lab): made when it is first used, made anew for another number of hosts, removed at the end."""

    def __init__(self, name=None):
        self.name, self.hosts, self.rate = name or f"tables-{os.getpid()}", 0, None

    def call(self, *arguments):
        done = subprocess.run([LAB, *arguments, "--name", self.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CellError(f"lab {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def be(self, hosts, rate):
        if hosts != self.hosts:
            self.down()
            self.call("up", "--hosts", str(hosts), "--rate", rate)
            self.hosts, self.rate = hosts, rate
        elif rate != self.rate:
            self.call("rate", rate)
            self.rate = rate

    def down(self, always=False):
        """always: also what an earlier process left under this name."""
        if self.hosts or always:
            self.hosts = 0
            subprocess.run([LAB, "down", "--name", self.name], capture_output=True, check=False)

    def run(self, ranks, delay_ms=0):
        """The words in front of a program: ranks in blocks over the hosts, rank i on core i modulo cores. delay_ms: emulated latency."""
        return [LAB, "run", "--name", self.name, "-n", str(ranks), "--bind", *(["--delay", f"{delay_ms}ms"] if delay_ms else []), "--"]

    def sent(self):
        return sum(h["eth0"]["tx_bytes"] for h in json.loads(self.call("show", "--json"))["hosts"])


@functools.cache
def planned(plan, cluster, *words):
    """The JSON lines that the program plan says of a cluster (its description as text); a question is asked once."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(cluster)
        f.flush()
        return json_lines([plan, "--cluster", f.name, *words, "--json"], 1200)


def version_of(build):
    """The commit that a build's bench is of, as it says itself."""
    return output([os.path.join(build, "bench"), "--version"]).partition("git ")[2].split()[0]


@contextlib.contextmanager
def emulated():
    lab = Emulated()
    try:
        yield lab
    finally:
        lab.down()


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        lines = [line.split(":", 1) for line in f if ":" in line]
    names = [value.strip() for key, value in lines if key.startswith("model name")]
    flags = next((value.split() for key, value in lines if key.startswith("flags")), [])
    vectors = next((name for name in ("avx512_bf16", "avx512f", "avx2") if name in flags), "no avx2")
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else 'an unknown processor'} ({vectors})"


def interval(values):
    """(median, low, high): the 95 % interval of the median by order statistics, whatever the values' distribution. Fewer than six have none: their range."""
    ordered, n, outside, below = sorted(values), len(values), 0, 0.0
    while 2 * (outside + 1) < n:
        below += math.comb(n, outside) / 2**n  # at most so many of n lie below the median
        if below > 0.025:
            break
        outside += 1
    place = max(outside - 1, 0)
    return statistics.median(values), ordered[place], ordered[n - 1 - place]


def verdict(low, high, least=-math.inf, most=math.inf):
    """Of an interval beside a bound: it holds or fails over all of it, or cannot be told."""
    if low >= least and high <= most:
        return "met"
    return "missed" if high < least or low > most else "cannot be told"


# Student's t: 97.5 % of the distribution lie below, by degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def t_interval(values):
    """(mean, half): the two-sided 95 % interval of the mean of independent values, two at least; of more than ten it is a little too wide."""
    return statistics.fmean(values), T[min(len(values) - 2, len(T) - 1)] * statistics.stdev(values) / len(values) ** 0.5


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
    write_atomic(page, head + found + text + (end + "\n" + tail if end else ""))
