# Runs the points of a sweep on this machine, alone or in the emulated cluster: what fits onto the cores, until nothing is left to do.
#
# While the lock is held nobody else starts runs. What is left to do is read from the folder alone, so it does not matter where the last
# runner was killed:
#   status.json says running  ->  its processes are ended (sweep_process), then run/ decides: finished, or to be continued
#   run/status.json finished  ->  the point is finished, whether or not somebody was there to see it
#   anything else             ->  `train` goes on from its newest checkpoint in run/, or begins
import dataclasses
import hashlib
import os
import signal
import socket
import subprocess
import time

import measured
import sweep_create
import sweep_process
import sweep_store
from sweep_plan import seconds_of
from sweep_store import StoreError, now

BASE = sweep_create.BASE
POLL_S = 0.05
GRACE_S = float(os.environ.get("THINWIRE_SWEEP_GRACE", "30"))  # from being asked to save and leave, to being killed
CYCLES = 3           # attempts in a row that stop by themselves without a new step
BUSY_WAIT_S = 5.0    # before run/ is tried again where another process held it
OPEN = ("init", "pending", "preempted")
SECOND_CHANCE = ("failed", "timeout", "oom")
SAVED = {75, 128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGUSR1, -signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1}
KILLED = {9, 137, -9}  # mpirun says 9
NO_MEMORY = ("not enough memory", "out of memory", "Out of memory", "std::bad_alloc", "Cannot allocate memory")


@dataclasses.dataclass
class Run:
    """One attempt under way."""

    point: object
    process: subprocess.Popen
    cores: set
    mark: str
    log_from: int             # where in log.txt it begins
    status: dict              # as it was when it started
    limit: float              # seconds, or None
    asked: str = None         # why it was told to leave: stop | cancel | timeout
    asked_at: float = 0.0
    hard: bool = False        # it did not leave in time and was killed
    begin: float = dataclasses.field(default_factory=time.monotonic)
    kills_before: int = dataclasses.field(default_factory=sweep_process.oom_kills)


def error_in(text):
    """The message for a person in what a program printed: from its last `error:` on."""
    at = text.rfind("\nerror:") + 1 or (0 if text.startswith("error:") else -1)
    if at < 0:
        return ""
    lines = text[at:].splitlines()
    keep = [lines[0]]
    for line in lines[1:]:
        if line.startswith(("=", "---")) or not line.strip():
            break
        keep.append(line)
    return "\n".join(keep)[:2000].removeprefix("error: ")


def describe_code(code):
    if code < 0:
        return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"killed by signal {-code}"
    if code in KILLED:
        return "a rank was killed (SIGKILL)"
    if code in (11, 139):
        return "a rank crashed (SIGSEGV)"
    return f"exit code {code}"


def verdict(code, finished, train, said, asked, memory_kill, message=""):
    """(state, reason, to be continued) of an ended attempt. finished: run/status.json says so; train: that file; said: its output."""
    text = message or error_in(said)
    if finished and code == 0:
        return "finished", "", False
    if asked == "timeout":
        return "timeout", "over its time limit", False
    if asked in ("stop", "cancel"):
        return "preempted", "cancelled" if asked == "cancel" else "the runner was told to stop", False
    if code in KILLED and memory_kill or code in {74, 78} | KILLED and any(word in text or code in KILLED and word in said for word in NO_MEMORY):
        return "oom", text or "killed by the kernel: the machine, or its share of it, ran out of memory", False
    if code in SAVED:
        return "preempted", "stopped by a signal or its own time limit", True
    if code == 71:
        return "preempted", text or "a rank hung", True
    if code == 73:
        return "preempted", text or "run/ is in use by another process", True
    if code == 0:
        return "failed", f"ended with code 0, but run/status.json says {train.get('state', 'nothing')}", False
    return "failed", text or describe_code(code), False


class Runner:
    """Options: jobs (at most so many runs at once), only (part of ids), build, again (also what failed), say (one line of text)."""

    def __init__(self, sweep, build, jobs=None, only=None, again=False, say=print, tick=None):
        self.sweep, self.build, self.only, self.again, self.say, self.tick = sweep, build, only, again, say, tick
        self.train = sweep_create.program(build)
        at_once = sweep.launcher.get("at_once", "auto")
        self.most = min(jobs or 10**6, 10**6 if at_once == "auto" else at_once)
        self.explicit = at_once != "auto" or jobs is not None
        self.cores = sweep_process.usable_cores()
        self.running, self.not_before, self.done = {}, {}, set()  # done: ids of finished points; reading thousands of files for a line would slow the runs
        self.signals = 0
        self.signal_name = ""
        # The name belongs to the folder, so that the next runner finds what a killed one has left.
        self.lab = measured.Emulated("sweep-" + hashlib.sha256(os.path.realpath(sweep.dir).encode()).hexdigest()[:10])

    # ---- the whole

    def run(self):
        """Until nothing is left: 0, 1 (not all points finished) or 75 (told to stop). The lock is held meanwhile."""
        with self.sweep.lock():
            wanted = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1) if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]  # nohup
            previous = {n: signal.signal(n, self.on_signal) for n in wanted}
            try:
                self.take_over()
                if self.again:
                    self.give_second_chances()
                sweep_create.check(self.sweep, self.points(), self.build, again=self.again)
                self.loop()
            except OSError as e:  # a full disk, a folder that went away: what the runs do then is found out at the next start
                if isinstance(e, TimeoutError) and e.errno is None:  # end_orphans': SIGKILL does not end what waits for a file system that hangs
                    raise StoreError(f"{e}; see ps -o pid,stat,wchan -p PID") from None
                raise StoreError(f"{e.filename or self.sweep.dir}: {e.strerror or e}; the runs were told to save and leave, start again when the disk has space", 74) from None
            finally:
                self.end_all()
                for number, handler in previous.items():
                    signal.signal(number, handler)
        if all(self.sweep.status(p.id)["state"] == "finished" for p in self.points()):
            return 0
        return 75 if self.signals else 1

    def points(self):
        return self.sweep.points(self.only)

    def on_signal(self, number, _):
        self.signals += 1
        self.signal_name = signal.Signals(number).name

    def loop(self):
        queue = [p for p in self.points() if self.is_open(p)]
        self.done = {p.id for p in self.points() if self.sweep.status(p.id)["state"] == "finished"}
        while queue or self.running:
            if self.signals:
                queue = []
                self.stop_all()
                if self.signals > 1:
                    self.kill_all()
            queue = self.start_what_fits(queue)
            self.watch()
            for run in list(self.running.values()):
                code = run.process.poll()
                if code is not None:
                    queue = self.ended(run, code, queue)
            if self.tick:
                self.tick()
            if queue or self.running:
                time.sleep(POLL_S)

    def is_open(self, point):
        return self.sweep.status(point.id)["state"] in OPEN and not self.sweep.is_cancelled(point.id)

    # ---- what an earlier runner has left

    def take_over(self):
        """Ends processes that a killed runner left, then corrects every status.json."""
        points = self.sweep.points()
        left = []
        for point in points:
            status = self.sweep.status(point.id)
            if status["mark"] and status["boot"] == sweep_process.boot_id() and status["state"] == "running":
                left.append((status["mark"], status["pid"], status["start"]))
        if left and sweep_process.marked([mark for mark, _, _ in left]):
            self.say("the last runner ended without its runs; waiting until they have saved and left")
            try:
                killed = sweep_process.end_orphans(left, GRACE_S)
            except TimeoutError as e:
                raise StoreError(f"{e}; the sweep cannot go on beside them") from None
            if killed:
                self.say(f"{killed} processes of it had to be killed")
        if self.sweep.kind == "lab":
            self.lab.down(always=True)
        for point in points:
            self.settle(point)

    def settle(self, point):
        """Corrects the status.json of a point after what `train` has left in run/: the runner that wrote it may have been killed."""
        status = self.sweep.status(point.id)
        if not os.path.isdir(self.sweep.folder(point.id)):
            sweep_create.write_point(self.sweep, point, self.build)
        for name in os.listdir(self.sweep.folder(point.id)):
            if name.startswith(".") and ".json." in name:  # a replacement that was killed before its rename
                os.unlink(self.sweep.path(point.id, name))
        done = self.sweep.says_finished(point.id)
        if done and status["state"] != "finished" and not sweep_create.config_is_ours(self.sweep, point):
            self.finish(point, "finished while no runner saw it")
        elif status["state"] == "finished" and not done:
            self.say(f"{point.id}: was finished, but run/ does not say so any more; it runs again")
            self.sweep.set_status(point.id, state="init", code=None, reason="run/ of the finished point was changed or removed", step=self.sweep.step(point.id))
        elif status["state"] == "running":
            self.sweep.set_status(point.id, state="preempted", reason="its runner died", ended=now(), pid=None, step=self.sweep.step(point.id))

    def finish(self, point, note=""):
        self.sweep.set_status(point.id, state="finished", code=0, reason=note, ended=self.sweep.train_status(point.id).get("updated") or now(),
                              pid=None, step=self.sweep.step(point.id), progress_without=0)

    def give_second_chances(self):
        for point in self.points():
            self.sweep.cancel_mark(point.id, False)
            status = self.sweep.status(point.id)
            if status["state"] in SECOND_CHANCE or status["state"] == "preempted":
                self.sweep.set_status(point.id, state="preempted" if status["attempts"] else "init", progress_without=0, **({} if status["attempts"] else {"checked": False}))

    # ---- starting

    def cost(self, point):
        """Cores that are taken while the point runs."""
        return len(self.cores) if point.launcher["kind"] == "lab" else min(point.cores(), len(self.cores))

    def start_what_fits(self, queue):
        """In order: when a point does not fit yet, none behind it is started, so that large points are not starved."""
        waiting = []
        while queue:
            point = queue[0]
            if not self.is_open(point):
                queue = queue[1:]
                continue
            if time.monotonic() < self.not_before.get(point.id, 0):
                waiting.append(point)
                queue = queue[1:]
                continue
            free = [c for c in self.cores if all(c not in r.cores for r in self.running.values())]
            most = self.most
            if point.config.get("device") == "cuda" and not self.explicit:
                most = 1  # runs beside each other on one GPU would share its memory
            if len(self.running) >= most or len(free) < self.cost(point):
                break
            queue = queue[1:]
            self.start(point, free[:self.cost(point)])
        return waiting + queue

    def start(self, point, cores):
        sweep, id_ = self.sweep, point.id
        if not os.path.isdir(sweep.folder(id_)):  # removed by hand
            sweep_create.write_point(sweep, point, self.build)
        changed = sweep_create.config_is_ours(sweep, point)
        if changed:
            sweep.set_status(id_, state="failed", code=78, reason=f"{changed}; put it back (remove the file), or make a point of it in the plan", ended=now())
            return self.tell(point)
        if sweep.says_finished(id_):  # by hand, meanwhile
            self.finish(point, "finished by hand")
            return self.tell(point)
        front = None
        if point.launcher["kind"] == "lab":
            try:
                self.lab.be(point.launcher["hosts"], point.launcher["rate"])
            except measured.CellError as e:
                if self.signals:
                    return None  # it was interrupted together with us
                raise StoreError(f"{e}; see scripts/lab check") from None
            front, cores = self.lab.name, self.cores
        mark, step = sweep_process.new_mark(), sweep.step(id_)
        before = sweep.status(id_)
        # Known to the next runner before the first process is there.
        status = sweep.set_status(id_, state="running", attempts=before["attempts"] + 1, code=None, reason="", started=now(), ended=None, step=step, from_step=step,
                                  mark=mark, pid=None, start=None, boot=sweep_process.boot_id(), host=socket.gethostname(), job=None)
        words = sweep_create.command(point, self.build, sweep.folder(id_), front)
        log = sweep.path(id_, "log.txt")
        with open(log, "ab") as out:
            out.write(f"--- attempt {status['attempts']}, {status['started']}\n".encode())
            out.flush()
            log_from = out.tell()
            try:
                process = subprocess.Popen(words, cwd=BASE, env={**sweep_create.environment(), sweep_process.MARK: mark}, stdin=subprocess.DEVNULL, stdout=out,
                                           stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=sweep_process.prepare_child(os.getpid(), set(cores)))
            except (OSError, subprocess.SubprocessError) as e:
                sweep.set_status(id_, state="failed", code=127, ended=now(), reason=f"{words[0]}: {getattr(e, 'strerror', None) or e}" +
                                 ("; install package mpich (scripts/install_deps.sh)" if words[0] == "mpirun" else ""))
                return self.tell(point)
        run = Run(point, process, set(cores), mark, log_from, status, seconds_of(point.launcher.get("time_limit")))
        self.running[id_] = run
        sweep.set_status(id_, pid=process.pid, start=sweep_process.start_time(process.pid))
        return None

    # ---- watching and ending

    def watch(self):
        for run in self.running.values():
            age = time.monotonic() - run.begin
            if run.asked is None and run.limit is not None and age > run.limit:
                self.ask(run, "timeout")
            if run.asked is None and self.sweep.is_cancelled(run.point.id):
                self.ask(run, "cancel")
            if run.asked and not run.hard and time.monotonic() - run.asked_at > GRACE_S:
                self.kill(run)

    def ask(self, run, why):
        """Once: the second signal would mean to leave without saving."""
        if run.asked is None:
            run.asked, run.asked_at = why, time.monotonic()
            sweep_process.send([run.process.pid], signal.SIGTERM)

    def stop_all(self):
        for run in self.running.values():
            self.ask(run, "stop")

    def kill(self, run):
        run.hard = True
        sweep_process.send(set(sweep_process.marked([run.mark])) | {run.process.pid}, signal.SIGKILL)

    def kill_all(self):
        for run in self.running.values():
            if not run.hard:
                self.kill(run)

    def ended(self, run, code, queue):
        """Books an attempt; returns the queue, with the point again where it is to be continued."""
        id_ = run.point.id
        # Its launcher is gone; a rank that outlived it would go on writing.
        sweep_process.end_orphans([(run.mark, None, None)], 0.0 if run.hard else 5.0)
        train = self.sweep.train_status(id_)
        said = sweep_store.end_of(self.sweep.path(id_, "log.txt"), run.log_from)
        message = train.get("message") if train.get("code") == code and train.get("updated", "") >= run.status["started"] else ""
        state, reason, goes_on = verdict(code, self.sweep.says_finished(id_), train, said, run.asked, sweep_process.oom_kills() > run.kills_before, message or "")
        if run.hard:
            reason += f", did not leave within {GRACE_S:.0f} s and was killed"
        if run.asked == "timeout" and state == "timeout":
            reason = f"over its time limit of {run.point.launcher['time_limit']}" + (", killed: it did not leave" if run.hard else "")
        step = self.sweep.step(id_)
        before = self.sweep.status(id_)
        without = before["progress_without"] + 1 if goes_on and step <= run.status["from_step"] else 0
        if goes_on and without >= CYCLES:
            state, goes_on = "failed", False
            reason = f"stopped {without} times in a row without a new step: {reason}"
        del self.running[id_]
        self.sweep.set_status(id_, state=state, attempts=run.status["attempts"], code=code, reason=reason, ended=now(), pid=None, step=step, progress_without=without,
                              seconds=round(before["seconds"] + time.monotonic() - run.begin, 3))
        self.tell(run.point)
        if not goes_on or self.signals:
            return queue
        if code == 73:
            self.not_before[id_] = time.monotonic() + BUSY_WAIT_S
        return queue + [run.point]

    def tell(self, point):
        status = self.sweep.status(point.id)
        if status["state"] == "finished":
            self.done.add(point.id)
        steps = sweep_store.recent_steps(self.sweep.run_dir(point.id), 1)
        loss = f", loss {steps[-1]['loss']:.4f}" if steps and isinstance(steps[-1].get("loss"), float) else ""
        reason = status["reason"].replace("\n", "; ")
        self.say(f"[{len(self.done)}/{len(self.points())}] {point.id} {status['state']}" +
                 (f" after {status['step']} steps{loss}, {status['seconds']:.1f} s" if status["state"] in ("finished", "preempted", "timeout") else "") +
                 (f": {reason}" if reason else ""))

    def end_all(self):
        """Ends all runs, however the loop ended."""
        self.stop_all()
        deadline = time.monotonic() + GRACE_S
        while self.running:
            if time.monotonic() > deadline or self.signals > 1:
                self.kill_all()
            for run in list(self.running.values()):
                code = run.process.poll()
                if code is not None:
                    try:
                        self.ended(run, code, [])
                    except OSError:
                        self.running.pop(run.point.id, None)  # the disk is full; the next runner finds out
            time.sleep(POLL_S)
        self.lab.down()
