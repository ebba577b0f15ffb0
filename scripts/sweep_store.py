# The folder of a sweep: points, their status.json, and the lock that only one runner holds.
#
#   DIR/plan.json                 the plan as it was given
#   DIR/sweep.json                the expanded points, written whole by `create`: the truth from then on
#   DIR/runner.lock               held (flock) by whoever starts runs; says who that is
#   DIR/runs/<id>/config.json     the whole configuration: `train --config` repeats the run
#   DIR/runs/<id>/job.sh          runs it by hand             log.txt      what every attempt printed
#   DIR/runs/<id>/status.json     where it stands             run/         run_dir of `train`
#   DIR/runs/<id>/cancelled       there: it is not started (again) until `sweep resume`
import contextlib
import datetime
import fcntl
import json
import os
import socket
import time

import sweep_plan
import sweep_process

STATES = ("init", "pending", "running", "finished", "failed", "refused", "oom", "timeout", "preempted")
COUNT, NUMBER, TEXT = (lambda v: whole(v) and v >= 0), (lambda v: v is None or whole(v)), (lambda v: v is None or isinstance(v, str))
# Fields of status.json: (of a point that was never started, what a sensible value is)
FIELDS = {
    "state": ("init", TEXT),
    "attempts": (0, COUNT),          # how often it was started
    "code": (None, NUMBER),          # exit code of the last attempt
    "reason": ("", TEXT),            # for a person
    "started": (None, TEXT),         # UTC, of the last attempt
    "ended": (None, TEXT),
    "step": (0, COUNT),              # last step that is known to be done
    "total_steps": (0, COUNT),
    "progress_without": (0, COUNT),  # attempts in a row that ended by themselves, to be continued, without a new step
    "seconds": (0.0, lambda v: COUNT(v) or isinstance(v, float) and v >= 0),  # all attempts together
    "job": (None, lambda v: True),   # of a batch system
    "pid": (None, NUMBER),           # of train or mpirun while it runs
    "host": (None, TEXT),
    # Who the processes of the last attempt are: every one of them has the mark in its environment.
    "mark": (None, TEXT), "start": (None, NUMBER), "boot": (None, TEXT),
    "from_step": (0, COUNT),         # where the last attempt began
    "checked": (False, lambda v: isinstance(v, bool)),  # `train --dry-run` has seen this configuration
}


def whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


class StoreError(Exception):
    """A folder that is no sweep, or cannot be read or written. `code`: the exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


class Locked(StoreError):
    """Another runner works on the sweep."""

    def __init__(self, message):
        super().__init__(message, 75)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_atomic(path, text, mode=0o666):
    """Replaces a file: whatever happens, also a power cut, it has the old or the new content. mode: less what the umask keeps."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.rename(temporary, path)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(e, OSError):
            e.filename = path  # a full disk does not say which file
        raise
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems cannot; the rename itself is atomic there
    finally:
        os.close(fd)


def read_object(path):
    """The JSON object of a file; None where it is missing or is none."""
    try:
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def end_of(path, start=0, limit=65536):
    """The last `limit` bytes of a file as text, from byte `start` on at the most; "" where it cannot be read."""
    try:
        with open(path, "rb") as f:
            f.seek(max(start, f.seek(0, os.SEEK_END) - limit))
            return f.read().decode(errors="replace")
    except OSError:
        return ""


def recent_steps(run_dir, count=20):
    """The last lines of metrics.jsonl that are steps, as objects."""
    steps = []
    for line in reversed(end_of(os.path.join(run_dir, "metrics.jsonl")).splitlines()):  # what was cut off at either end is no JSON
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and "step_ms" in entry and isinstance(entry.get("step"), int):
                steps.append(entry)
                if len(steps) == count:
                    break
    return steps[::-1]


class Sweep:
    """One folder. Reading needs no lock; whoever changes the state of points holds it."""

    def __init__(self, directory, facts=None):
        self.dir = os.path.abspath(directory)
        self.facts = facts or read_object(os.path.join(self.dir, "sweep.json"))
        if self.facts is None or not isinstance(self.facts.get("points"), list):
            there = os.path.exists(os.path.join(self.dir, "sweep.json"))
            raise StoreError(f"{directory}: " + ("sweep.json is damaged; `sweep create PLAN.json` writes it anew" if there else
                                                 "no sweep.json here; make it with `scripts/sweep create PLAN.json`"), 78)
        try:
            self.name, self.launcher = self.facts["name"], self.facts["launcher"]
            self.kind = self.launcher["kind"]
            self._points = [sweep_plan.Point(**p) for p in self.facts["points"]]
            if not all(isinstance(p.id, str) and isinstance(p.config, dict) and p.launcher["ranks"] for p in self._points):
                raise ValueError
        except (TypeError, ValueError, KeyError):
            raise StoreError(f"{directory}: sweep.json was written by another version or changed by hand; write it anew with `sweep create PLAN.json`", 78) from None
        self._by_id = {p.id: p for p in self._points}

    def points(self, only=None):
        """In the order of their numbers; only: a part of the id."""
        return [p for p in self._points if only is None or only in p.id]

    def folder(self, id_):
        return os.path.join(self.dir, "runs", id_)

    def path(self, id_, name):
        return os.path.join(self.folder(id_), name)

    def run_dir(self, id_):
        return self.path(id_, "run")

    def status(self, id_):
        """All FIELDS. A status.json that is missing or makes no sense counts as never started: what `train` has left in run/
        decides then what is still to be done."""
        found = read_object(self.path(id_, "status.json"))
        status = {k: fresh for k, (fresh, _) in FIELDS.items()}
        status["total_steps"] = self._by_id[id_].config.get("train_iters") or 0
        if found is None:
            if os.path.exists(self.path(id_, "status.json")):
                status["reason"] = "status.json was unreadable"
            return status
        good = {k: v for k, v in found.items() if k in FIELDS and FIELDS[k][1](v)}
        if found.get("state") not in STATES:
            return dict(status, reason=f"status.json had no state {found.get('state')!r}", attempts=good.get("attempts", 0))
        status.update(good)
        return status

    def set_status(self, id_, **fields):
        unknown = set(fields) - set(FIELDS)
        if unknown or fields.get("state", "init") not in STATES:
            raise ValueError(f"status of {id_}: {unknown or fields['state']}")
        status = {**self.status(id_), **fields}
        os.makedirs(self.folder(id_), exist_ok=True)  # somebody may have removed it meanwhile
        write_atomic(self.path(id_, "status.json"), json.dumps(status, indent=1) + "\n")
        return status

    def train_status(self, id_):
        """What `train` itself says of its run (status.json in its run_dir), {} where there is nothing."""
        return read_object(os.path.join(self.run_dir(id_), "status.json")) or {}

    def says_finished(self, id_):
        """Whether `train` says that this run is done."""
        status = self.train_status(id_)
        return status.get("state") == "finished" and status.get("code") == 0

    def step(self, id_):
        """The last step that is known to be done."""
        steps = recent_steps(self.run_dir(id_), 1)
        said = self.train_status(id_).get("step")
        return max(steps[-1]["step"] if steps else 0, said if whole(said) else 0)

    def is_cancelled(self, id_):
        return os.path.exists(self.path(id_, "cancelled"))

    def cancel_mark(self, id_, there):
        if there:
            os.makedirs(self.folder(id_), exist_ok=True)
            with open(self.path(id_, "cancelled"), "w", encoding="ascii"):
                pass
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(id_, "cancelled"))

    def lock(self, what="run"):
        """A context: within it this process is the one that changes the sweep. Locked otherwise."""
        return hold(self.dir, what)

    def holder(self):
        """Who holds the lock, as runner.lock says; None where that process is gone. (Not asked by taking the lock: that would be in
        the way of a runner which starts just now.)"""
        return holder_of(self.dir)


def holder_of(directory):
    found = read_object(os.path.join(directory, "runner.lock"))
    if not found or not isinstance(found.get("pid"), int):
        return None
    if found.get("host") != socket.gethostname():
        return found  # cannot be told from here
    lives = found.get("boot") == sweep_process.boot_id() and sweep_process.start_time(found["pid"]) == found.get("start")
    return found if lives else None


def describe(holder):
    if not holder:
        return "another process"
    return f"`sweep {holder.get('what')}` on host {holder.get('host')}, pid {holder['pid']}, since {holder.get('since')}"


@contextlib.contextmanager
def hold(directory, what):
    """Holds the lock of the folder: a flock, which the kernel drops with the process. The text in the file is for people. It is tried for a
    second: a runner that was killed while it started a process may have left the lock to that process for a moment."""
    path = os.path.join(directory, "runner.lock")
    deadline = time.monotonic() + 1.0
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise StoreError(f"{path}: {e.strerror}", 74) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            if time.monotonic() > deadline:
                raise Locked(f"{directory}: {describe(holder_of(directory))} works on this sweep; wait for it, watch it with `sweep status`, "
                             "or end it with `sweep cancel`") from None
            time.sleep(0.05)
            continue
        except OSError as e:
            os.close(fd)
            raise StoreError(f"{path}: this file system has no flock ({e.strerror}), so nothing keeps two runners apart; name a local folder with --out") from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:  # else it was removed in between and protects nothing
                break
        os.close(fd)
    try:
        me = {"what": what, "pid": os.getpid(), "start": sweep_process.start_time(os.getpid()), "host": socket.gethostname(),
              "boot": sweep_process.boot_id(), "since": now()}
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, (json.dumps(me) + "\n").encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        os.close(fd)
