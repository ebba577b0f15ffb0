# The batch systems that a sweep knows: directives for what a point asks for, submitting, polling the queue, ending.
#
# Each system has
#   template(size, array)          the shipped script that the point's is made from
#   flags(size, name, output)      its directives
#   submit(path, count, at_once)   submits it, as an array of `count` where that is not 0; returns the job
#   jobs()                         all that it lists, as Job
import json
import math
import os
import pwd
import re
import shlex
import shutil
import subprocess
from typing import NamedTuple

import sweep_plan
from sweep_store import StoreError

ROOT, BASE = sweep_plan.ROOT, sweep_plan.BASE
ASK_LIMIT_S = 60


def ask(*command, stdin=None, allow=()):
    """Standard output of a command of the batch system. StoreError where it fails, since nothing is known then; unless it says one of
    the texts of `allow`, which are answers, too."""
    try:
        done = subprocess.run(command, cwd=BASE, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=ASK_LIMIT_S)
    except FileNotFoundError:
        raise StoreError(f"{command[0]}: there is no such command here; is this a machine of that batch system, are its modules loaded?", 78) from None
    except subprocess.TimeoutExpired:
        raise StoreError(f"{command[0]} did not answer in {ASK_LIMIT_S} s; try again later") from None
    out, said = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()
    if done.returncode != 0 and not any(word in said for word in allow):
        raise StoreError(f"{command[0]} refused: {said or f'code {done.returncode}'} (command: {shlex.join(command)})")
    return out


def me():
    """This user's name; the number where none is known, as in containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class Size:
    """What a point asks the batch system for."""

    def __init__(self, point):
        f = point.launcher
        self.ranks = f["ranks"]
        each = f.get("ranks_per_node")
        self.nodes = f.get("nodes") or (math.ceil(self.ranks / each) if each else 1)
        self.each = each or math.ceil(self.ranks / self.nodes)
        self.threads = f.get("threads") or point.config.get("threads_per_rank") or 1
        self.device = point.config.get("device", "cpu")
        self.gpus = f.get("gpus_per_node", self.each if self.device == "cuda" else 0)
        limit = f.get("walltime") or f.get("time_limit")
        self.seconds = int(sweep_plan.seconds_of(limit)) if limit else None
        self.queue = f.get("partition") or f.get("queue")
        self.account = f.get("account")
        lines = f.get("extra", [])
        self.extra = [lines] if isinstance(lines, str) else lines

    def key(self):
        return tuple(v if not isinstance(v, list) else tuple(v) for v in vars(self).values())


def clock(seconds, with_seconds=True):
    minutes, rest = divmod(seconds, 60)
    if with_seconds:
        return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
    minutes += rest > 0
    return f"{minutes // 60}:{minutes % 60:02d}"


class Script:
    """A shipped script taken apart: directives that can be changed, and the commands below its explanation."""

    def __init__(self, system, name):
        self.source, self.prefix = f"scripts/{system.kind}/{name}", system.prefix
        self.directives, self.body = [], []
        with open(os.path.join(ROOT, self.source), encoding="utf-8") as f:
            for line in f.read().splitlines():
                if line.startswith(self.prefix + " "):
                    self.directives.append(line[len(self.prefix) + 1:].strip())
                elif line and not line.startswith("#"):
                    self.body.append(line)

    def set(self, flag, value, join):
        """Replaces the directive `flag`, or adds it. join: between flag and value. value None: takes it out; "": a flag alone."""
        self.directives = [d for d in self.directives if d != flag and not d.startswith(flag + join)]
        if value is not None:
            self.directives.append(flag + (join + str(value) if value != "" else ""))

    def text(self, about, setup):
        return "\n".join(["#!/bin/bash", *(f"{self.prefix} {d}" for d in self.directives), *(f"# {line}" for line in about),
                          f"# The commands are those of {self.source}; it explains them, the head of scripts/batch_common.sh what can be set.",
                          *setup, *self.body]) + "\n"


def given(flags):
    """The flags that have a value; of the others the shipped script's directives stay."""
    return {flag: value for flag, value in flags.items() if value}


class Job(NamedTuple):
    """A job as its system lists it."""

    id: str
    name: str
    state: str        # pending | running, None when it has ended
    why: str = ""     # why it is pending
    word: str = ""    # how it ended: COMPLETED | FAILED | CANCELLED | TIMEOUT | OUT_OF_MEMORY | ...
    code: int = None  # its exit code, where that is known


class System:
    """kind: its folder in scripts/; prefix, join: how it writes a directive; how: the command that submits a script by hand; arrays: whether
    it has any; first: the number of an array's first element; least, most: elements of the smallest and the largest array; index: what
    stands around an element's number in its job; in_array: that number in names of output files; kill: the command that ends jobs; gone:
    what it says of those that have ended."""

    first, arrays, least, join = 0, True, 1, "="
    most = 1000  # what Slurm and LSF take unless a site allows more
    index, in_array, gone = ("[", "]"), "", ()
    outcomes = None  # of ended(), by job: a System lives for one poll of the queue

    def element(self, job, index):
        """The job of one element of an array."""
        before, behind = self.index
        return f"{job}{before}{index}{behind}"

    def whole(self, job):
        """The array of an element."""
        return job.split(self.index[0])[0]

    def output(self, base, array):
        """Where the output of a job goes."""
        return base + (f"-{self.in_array}.out" if array else "")

    def cancel(self, jobs):
        ask(*self.kill, *jobs, allow=self.gone)

    def queue(self):
        """{job: (pending | running, why)} of what has not ended."""
        return {j.id: (j.state, j.why) for j in self.jobs() if j.state}

    def named(self):
        return {j.name: self.whole(j.id) for j in self.jobs()}

    def ended(self, job):
        """(how the job ended or "", its exit code or None)."""
        if self.outcomes is None:
            self.outcomes = {j.id: (j.word, j.code) for j in self.jobs()}
        return self.outcomes.get(job, ("", None))

    def direct(self, script, size, name, output):
        """Directives of a script for points of this size."""
        for flag, value in self.flags(size, name, output).items():
            script.set(flag, value, "=" if flag.startswith("-l ") else self.join)

    def fixed(self, words):
        return ["set -- " + shlex.join(words)]

    def listed(self, path):
        return ["export THINWIRE_LIST=" + shlex.quote(path)]

    def sizes(self, size):
        """Shell lines for what a script cannot read from its job."""
        return [f"export THINWIRE_RANKS={size.ranks}"] if size.ranks != size.nodes * size.each else []


def even(size):
    """Refuses a point that a launcher cannot start which starts the same number of ranks on each node."""
    if size.nodes > 1 and size.ranks != size.nodes * size.each:
        raise StoreError(f"the same number of ranks starts on each node here: {size.ranks} ranks do not fill {size.nodes} nodes of {size.each}; "
                         "change ranks or ranks_per_node", 78)


class Slurm(System):
    kind, prefix, how = "slurm", "#SBATCH", "sbatch"
    index, in_array, kill = ("_", ""), "%a", ("scancel",)

    def template(self, size, array):
        return "array.sh" if array else "many_nodes_gpu.sh" if size.gpus else "many_nodes_cpu.sh"

    def flags(self, size, name, output):
        timed = {"--time": clock(size.seconds), "--signal": f"B:USR1@{min(120, max(10, size.seconds // 4))}"} if size.seconds else {}
        return {"--job-name": name, "--nodes": size.nodes, "--ntasks-per-node": size.each, "--cpus-per-task": size.threads, "--gpus-per-node": size.gpus or None,
                "--exclusive": None, "--output": shlex.quote(output), **timed, **given({"--partition": size.queue, "--account": size.account})}

    def output(self, base, array):
        return super().output(base.replace("%", "%%"), array)

    def listed(self, path):
        return ["set -- " + shlex.quote(path)]

    def submit(self, path, count, at_once):
        options = [f"--array=0-{count - 1}" + (f"%{at_once}" if at_once else "")] if count else []
        return ask("sbatch", "--parsable", *options, path).strip().split(";")[0]

    def jobs(self):
        """Of this user; those that have ended are not listed."""
        for line in ask("squeue", "-h", "-r", "-u", me(), "-o", "%i|%T|%r|%j").splitlines():
            job, state, why, name = line.split("|", 3)
            waits = state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD")
            yield Job(job, name, "pending" if waits else "running", "" if why == "None" else why)

    def ended(self, job):
        text = ""
        try:
            text = ask("scontrol", "show", "-o", "job", job)
            state, code = re.search(r"JobState=(\S+)", text), re.search(r"\bExitCode=(\d+):", text)
            return state[1] if state else "", int(code[1]) if code else None
        except StoreError:  # forgotten after a while: the accounting, where there is one, knows longer
            if shutil.which("sacct"):
                try:
                    text = ask("sacct", "-nPX", "-j", job, "-o", "State,ExitCode")
                except StoreError:
                    return "", None
        state, _, code = text.partition("\n")[0].partition("|")
        return state.split(" ")[0], int(code.split(":")[0]) if code[:1].isdigit() else None


class Lsf(System):
    kind, prefix, how, first, join = "lsf", "#BSUB", "bsub <", 1, " "
    in_array, kill, gone = "%I", ("bkill",), ("already finished",)

    def __init__(self):
        self.jsrun = shutil.which("jsrun") is not None  # whole nodes, and no arrays of steps
        self.arrays = not self.jsrun

    def template(self, size, array):
        return "many_nodes_jsrun.sh" if self.jsrun else "array.sh" if array else "one_node_gpu.sh" if size.gpus else "many_nodes_cpu.sh"

    def flags(self, size, name, output):
        sizes = {"-nnodes": size.nodes} if self.jsrun else {
            "-n": size.nodes * size.each, "-R": f'"span[ptile={size.each}]' + (f' affinity[core({size.threads})]"' if size.threads > 1 else '"'),
            "-gpu": f'"num={size.gpus}:mode=shared:j_exclusive=yes"' if size.gpus else None, "-x": None}
        timed = {"-W": clock(size.seconds, False), "-wt": 5 if size.seconds >= 1800 else 1} if size.seconds else {}
        return {"-J": name, "-o": shlex.quote(output), **sizes, **timed, **given({"-q": size.queue and shlex.quote(size.queue), "-P": size.account and shlex.quote(size.account)})}

    def sizes(self, size):
        if not self.jsrun:
            return super().sizes(size)
        even(size)
        return [f"export THINWIRE_GPUS_PER_NODE={size.gpus} THINWIRE_RANKS_PER_NODE={size.each} THINWIRE_NODES={size.nodes}"]

    def submit(self, path, count, at_once):
        options = []
        if count:
            with open(path, encoding="utf-8") as f:
                name = re.search(r"(?m)^#BSUB -J (\S+)$", f.read())[1]
            options = ["-J", f"{name}[1-{count}]" + (f"%{at_once}" if at_once else "")]
        with open(path, "rb") as f:  # only on its standard input does bsub look for directives
            said = ask("bsub", *options, stdin=f)
        found = re.search(r"Job <(\d+)> is submitted", said)
        if not found:
            raise StoreError(f"bsub said no job number: {said.strip()}")
        return found[1]

    def jobs(self):
        states = {"PEND": "pending", "PSUSP": "pending", "WAIT": "pending", "RUN": "running", "USUSP": "running", "SSUSP": "running", "PROV": "running", "UNKWN": "running"}
        for line in ask("bjobs", "-a", "-noheader", "-o", "jobid jobindex stat exit_code job_name delimiter='|'", allow=("No job found", "No unfinished job found")).splitlines():
            fields = [f.strip() for f in line.split("|")]
            if len(fields) == 5:
                job, index, stat, code, name = fields
                yield Job(job if index in ("0", "-", "") else self.element(job, index), name.split("[")[0], states.get(stat),
                          word={"DONE": "COMPLETED", "EXIT": "FAILED"}.get(stat, stat), code=int(code) if code.isdigit() else None)


class Pbs(System):
    kind, prefix, how, least, join = "pbs", "#PBS", "qsub", 2, " "
    in_array, kill, gone = "^array_index^", ("qdel",), ("Job has finished", "Unknown Job")

    def template(self, size, array):
        return "array.sh" if array else "many_nodes_gpu.sh" if size.gpus else "one_node_cpu.sh"

    def flags(self, size, name, output):
        chunk = f"ncpus={size.each * size.threads}:mpiprocs={size.each}" + (f":ompthreads={size.threads}" if size.threads > 1 else "") + (f":ngpus={size.gpus}" if size.gpus else "")
        return {"-N": name[:15], "-o": shlex.quote(output),  # older servers take no longer name
                "-l select": f"{size.nodes}:{chunk}", "-l place": "scatter" if size.nodes > 1 else "pack",
                **given({"-l walltime": size.seconds and clock(size.seconds), "-q": size.queue, "-A": size.account})}

    def submit(self, path, count, at_once):
        options = ["-J", f"0-{count - 1}" + (f"%{at_once}" if at_once else "")] if count else []
        return ask("qsub", *options, path).strip()

    def element(self, job, index):
        return job.replace("[]", f"[{index}]")

    def whole(self, job):
        return re.sub(r"\[\d+\]", "[]", job)

    def jobs(self):
        states = {"Q": "pending", "H": "pending", "W": "pending", "T": "pending", "M": "pending", "R": "running", "B": "running", "E": "running", "S": "running", "U": "running"}
        text = ask("qstat", "-x", "-t", "-f", "-F", "json", allow=("Unknown Job", "Unknown job"))
        try:
            listed = json.loads(text).get("Jobs", {}) if text.strip() else {}
        except ValueError:
            raise StoreError(f"qstat -F json said no JSON: {text[:200]}") from None
        for job, facts in listed.items():
            state, code = facts.get("job_state"), facts.get("Exit_status")
            yield Job(job, facts.get("Job_Name", ""), states.get(state), facts.get("comment", "") if state == "H" else "",
                      "COMPLETED" if code == 0 else "FAILED", code if isinstance(code, int) else None)


class Flux(System):
    kind, prefix, how, arrays = "flux", "# flux:", "flux batch", False
    kill, gone = ("flux", "cancel"), ("inactive", "unknown")

    def template(self, size, _):
        return "one_node_cpu.sh" if size.nodes == 1 and not size.gpus else "many_nodes_gpu.sh"

    def flags(self, size, name, output):
        timed = {"--time-limit": f"{size.seconds}s", "--signal": f"USR1@{min(120, max(10, size.seconds // 4))}s"} if size.seconds else {}
        return {"--job-name": name, "--nodes": size.nodes, "--output": shlex.quote(output), **timed, **given({"--queue": size.queue, "--bank": size.account})}

    def sizes(self, size):
        even(size)
        return [f"export THINWIRE_RANKS={size.ranks} THINWIRE_RANKS_PER_NODE={size.each}"]

    def submit(self, path, _, __):
        return ask("flux", "batch", path).strip()

    def jobs(self):
        for line in ask("flux", "jobs", "-a", "-c", "1000000", "-n", "-o", "{id.f58}|{state}|{result}|{name}").splitlines():
            job, state, result, name = line.split("|", 3)
            yield Job(job, name, None if state == "INACTIVE" else "running" if state in ("RUN", "CLEANUP") else "pending", word={"CANCELED": "CANCELLED"}.get(result, result))


SYSTEMS = {"slurm": Slurm, "lsf": Lsf, "pbs": Pbs, "flux": Flux}
