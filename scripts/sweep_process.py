# Finds and ends the processes of a run by a mark in their environment; cores that runs may use; kills for want of memory.
#
# A run is marked in its environment: THINWIRE_SWEEP=<mark>, a random word of its own for every attempt. All that it starts inherits the
# mark, wherever it moves itself: Hydra gives every rank a session of its own, so neither group nor session finds the ranks of an mpirun
# that was killed. Names of programs are never asked.
import ctypes
import os
import signal
import time

MARK = "THINWIRE_SWEEP"
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def boot_id():
    """Another one after every start of the machine; process numbers mean nothing across it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return None


def facts_of(pid):
    """What /proc/PID/stat says behind the process' name; None: gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_time(pid):
    """When the process started, in ticks since boot: together with the pid this is unique. None: gone, or a zombie."""
    fields = facts_of(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def parent(pid):
    fields = facts_of(pid)
    return int(fields[1]) if fields else 0


def new_mark():
    return os.urandom(12).hex()


def marked(marks, variable=MARK):
    """{pid: mark} of the live processes in whose environment the variable has one of these values."""
    wanted = {f"{variable}={mark}".encode(): mark for mark in marks}
    found = {}
    for name in os.listdir("/proc") if wanted else []:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue  # gone meanwhile, or another user's
        for word in words:
            if word in wanted and start_time(int(name)) is not None:
                found[int(name)] = wanted[word]
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def end_orphans(runs, patience=30.0, unled=2.0):
    """Ends what still lives of the runs of a dead runner: [(mark, pid of the leader, its start time)]. The kernel has told the leader to end
    (prepare_child), and it passes that on: they save and leave within a step. Ranks whose launcher is gone, too, are told by us, but
    not before `unled` seconds, since a second signal means to leave without saving. SIGKILL for what is left after `patience`.
    Returns how many had to be killed; TimeoutError where one does not die."""
    begin = time.monotonic()
    gone_since, asked, first_left, killed = {}, {}, {}, set()
    leaders = {mark: (pid, start) for mark, pid, start in runs}
    send([pid for pid, start in leaders.values() if pid is not None and start_time(pid) == start], signal.SIGCONT)  # a stopped one hears nothing
    while alive := marked(leaders):
        now = time.monotonic()
        for mark in set(alive.values()):
            pid, start = leaders[mark]
            mine = {p for p, m in alive.items() if m == mark}
            if mark in asked:
                # Ranks have saved when one of them has left; the others wait for a launcher that ends them.
                if mine < asked[mark] and now - first_left.setdefault(mark, now) >= unled:
                    send(mine, signal.SIGKILL)
                continue
            if pid is not None and start_time(pid) == start:
                continue
            if now - gone_since.setdefault(mark, now) >= unled:
                asked[mark] = mine
                send(mine - {parent(p) for p in mine}, signal.SIGTERM)
        if now - begin > patience:
            if now - begin > patience + 20:
                raise TimeoutError(f"processes {sorted(alive)} of an earlier run do not die")
            send(alive, signal.SIGKILL)
            killed |= set(alive)
        time.sleep(0.05)
    return len(killed)


def prepare_child(runner, cores):
    """For preexec_fn: a run whose runner dies is asked to save and leave, and it uses these cores only."""
    def prepare():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != runner:  # it died before it could be watched
            os._exit(128 + signal.SIGTERM)
        if cores:
            os.sched_setaffinity(0, cores)
    return prepare


def cgroup_folders():
    """Folders of the control groups that this process is in, and of those around them: version 1 (cpu, memory) and 2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as f:
            entries = [line.rstrip("\n").split(":", 2) for line in f]
    except OSError:
        return
    for _, controllers, path in entries:
        for root in ["/sys/fs/cgroup"] if not controllers else [f"/sys/fs/cgroup/{c}" for c in controllers.split(",")]:
            parts = [p for p in path.split("/") if p]
            for depth in range(len(parts), -1, -1):
                yield os.path.join(root, *parts[:depth])


def read_numbers(path):
    try:
        with open(path, encoding="ascii") as f:
            return f.read().split()
    except (OSError, UnicodeDecodeError):
        return []


def core_quota():
    """Cores' worth of time that control groups grant; None: no limit."""
    quotas = []
    for folder in cgroup_folders():
        two = read_numbers(os.path.join(folder, "cpu.max"))
        one = read_numbers(os.path.join(folder, "cpu.cfs_quota_us")) + read_numbers(os.path.join(folder, "cpu.cfs_period_us"))
        for quota in (two, one):
            if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]) > 0:
                quotas.append(int(quota[0]) / int(quota[1]))
    return min(quotas, default=None)


def usable_cores():
    """The cores that runs may be placed on: those this process may use (taskset, cpusets), fewer where its time is limited to less."""
    cores = sorted(os.sched_getaffinity(0))
    quota = core_quota()
    return cores if quota is None else cores[:max(1, int(quota + 0.01))]


def oom_kills():
    """How often the kernel has killed for want of memory, in our control groups and on the machine."""
    kills = 0
    for path in ["/proc/vmstat", *(os.path.join(folder, name) for folder in cgroup_folders() for name in ("memory.events", "memory.oom_control"))]:
        fields = read_numbers(path)
        if "oom_kill" in fields:
            kills += int(fields[fields.index("oom_kill") + 1])
    return kills
