# The table of `sweep status`: a line per run under way, a line per state, how long the sweep will still take.
import os
import shutil
import statistics
import sys
import time

import sweep_process
import sweep_store
from sweep_plan import BATCH_KINDS

ORDER = ("running", "pending", "finished", "init", "preempted", "failed", "timeout", "oom", "refused")  # of the lines per state
OPEN = ("init", "pending", "running", "preempted")  # states of points that still have steps to do
BAR = 20  # characters


def pretty_time(seconds):
    seconds = int(round(seconds))
    if seconds < 100:
        return f"{seconds} s"
    if seconds < 6000:
        return f"{seconds // 60} min" + (f" {seconds % 60:02d} s" if seconds < 600 else "")
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


class View:
    """The folder as one poll finds it."""

    def __init__(self, sweep, only=None):
        self.sweep, self.points, self.holder = sweep, sweep.points(only), sweep.holder()
        self.status = {p.id: sweep.status(p.id) for p in self.points}
        self.cancelled = {p.id for p in self.points if self.state(p) not in ("finished", "refused") and sweep.is_cancelled(p.id)}
        self.steps = {p.id: sweep_store.recent_steps(sweep.run_dir(p.id)) for p in self.those("running")}

    def state(self, point):
        return self.status[point.id]["state"]

    def those(self, state):
        return [p for p in self.points if self.state(p) == state]

    def all_done(self):
        return not any(self.state(p) in OPEN for p in self.points)

    def at_work(self):
        """Whether anybody moves points on: a command that holds the lock, or the queue of a batch system."""
        return bool(self.holder or self.sweep.kind in BATCH_KINDS and (self.those("pending") or self.those("running")))

    def progress(self, point):
        """(steps done, steps in all or 0, ms per step or None) of a run under way."""
        recent = self.steps[point.id]
        times = [s["step_ms"] for s in recent if isinstance(s["step_ms"], (int, float))]
        done = recent[-1]["step"] if recent else self.status[point.id]["step"]
        total = self.status[point.id]["total_steps"] or self.sweep.train_status(point.id).get("total_steps") or 0
        return done, total, statistics.fmean(times) if times else None

    def seconds_left(self, point):
        done, total, ms = self.progress(point)
        return None if ms is None or not total else max(0, total - done) * ms / 1e3

    def eta(self):
        """Seconds until all is done; None before any run has been timed. A run that is not timed yet counts as long as the median of those that are."""
        seen = [self.status[p.id]["seconds"] for p in self.those("finished") if self.status[p.id]["seconds"] > 0]
        under_way = {p.id: self.seconds_left(p) for p in self.those("running")}
        for point in self.those("running"):
            _, total, ms = self.progress(point)
            if ms is not None and total:
                seen.append(total * ms / 1e3)
        if not seen:
            return None
        typical = statistics.median(seen)
        cores = len(sweep_process.usable_cores())
        at_once = self.sweep.launcher.get("at_once", "auto")
        least_share = 0.0 if at_once == "auto" else 1 / at_once
        work = longest = 0.0  # work: of the whole machine, of which each run takes its share
        for point in self.points:
            if self.state(point) not in OPEN or point.id in self.cancelled:
                continue
            left = under_way.get(point.id)
            if left is None:
                total = self.status[point.id]["total_steps"]
                left = typical * (1 - min(1, self.status[point.id]["step"] / total) if total else 1)
            share = 1.0 if point.launcher["kind"] != "local" else min(1.0, point.cores() / cores)
            work += left * max(share, least_share)
            longest = max(longest, left)
        return max(work, longest)


def shorten(words, width):
    """As many words as fit into a line, one at least, and how many more there are."""
    line = ""
    for i, word in enumerate(words):
        more = f", and {len(words) - i} more"
        if line and len(line) + len(word) + 2 + (len(more) if i + 1 < len(words) else 0) > width:
            return line + more
        line += (", " if line else "") + word
    return line


def reasons(view, width):
    """Lines: the points that failed by reason, then the reason, cut."""
    groups = {}
    for state in ("failed", "timeout", "oom", "refused"):
        for point in view.those(state):
            groups.setdefault((state, view.status[point.id]["reason"]), []).append(point.id)
    for (state, reason), ids in groups.items():
        text = (reason or "no reason was left").split("\n")
        yield f"  {state}: {shorten(ids, max(20, width - len(state) - 4))}"
        yield from (f"      {line[:400]}" for line in text[:4])
        if len(text) > 4:
            yield f"      ... {len(text) - 4} lines more in status.json"


def render(sweep, only=None, width=100):
    """(lines, whether they stay as they are: all is done, or nobody works on the rest)."""
    view = View(sweep, only)
    eta, at_work, all_done = view.eta(), view.at_work(), view.all_done()
    head = f"sweep {sweep.name}: {len(view.those('finished'))} of {len(view.points)} finished"
    if not all_done and not at_work:
        waits = any(view.state(p) in OPEN and p.id not in view.cancelled for p in view.points)
        head += ", nobody works on it (scripts/sweep run)" if waits else ", what is open is cancelled (scripts/sweep resume)"
    elif not all_done and eta is not None:
        head += f", about {pretty_time(eta)} left"
    lines = [head + (f"  [{sweep_store.describe(view.holder)}]" if view.holder else "")]
    for point in view.those("running"):
        done, total, ms = view.progress(point)
        bar = "#" * (BAR * done // total if total else 0)
        left = view.seconds_left(point)
        loss = view.steps[point.id][-1].get("loss") if view.steps[point.id] else None
        lines.append(f"  {point.id:<40} [{bar:<{BAR}}] {done:>6}/{total or '?'}" + (f"  loss {loss:.4f}" if isinstance(loss, float) else "") +
                     (f"  {ms:.1f} ms" if ms is not None else "") + (f"  {pretty_time(left)} left" if left is not None else ""))
    for state in ORDER:
        ids = [p.id for p in view.those(state)]
        if ids:
            cancelled = sum(i in view.cancelled for i in ids)
            lines.append(f"  {state:<10}{len(ids):>5}  " + (f"({cancelled} cancelled) " if cancelled else "") + shorten(ids, max(20, width - 20)))
    lines += reasons(view, width)
    return lines, all_done or not at_work


class Screen:
    """Draws lines over those of the last drawing; what is said stays above them."""

    def __init__(self):
        self.drawn, self.last = 0, 0.0

    def clear(self):
        if self.drawn:
            sys.stdout.write(f"\033[{self.drawn}F\033[J")
            self.drawn = 0

    def say(self, text):
        self.clear()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def draw(self, lines):
        size = shutil.get_terminal_size()
        lines = [line[:size.columns - 1] for line in lines[:size.lines - 2]]
        self.clear()
        sys.stdout.write("".join(line + "\n" for line in lines))
        sys.stdout.flush()
        self.drawn = len(lines)


def under_way(sweep, only, screen):
    """What the runner calls at every turn of its loop: redraws once a second."""
    def tick():
        if time.monotonic() - screen.last >= 1.0:
            screen.last = time.monotonic()
            screen.draw(render(sweep, only, shutil.get_terminal_size().columns)[0])
    return tick


def show(sweep, only, poll, live):
    """The table: once, or live until nothing in it changes any more. poll() asks a batch system, before each drawing."""
    screen = Screen()
    while True:
        poll()
        lines, final = render(sweep, only, shutil.get_terminal_size().columns if live else 10**6)
        if not live:
            print("\n".join(lines))
            return
        screen.draw(lines)
        if final:
            return
        time.sleep(1.0 if sweep.kind not in BATCH_KINDS else float(os.environ.get("THINWIRE_SWEEP_POLL", "10")))
