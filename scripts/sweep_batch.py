# Hands points of a sweep to a batch system, follows them there, and ends them.
#
# Points of one size go as one array, or as several where one may not hold them all; DIR/batch/<name>.sh is the script that was
# submitted, <name>.list what its elements run, <name>.json which points they are. DIR/runs/<id>/job.sh submits one point by hand. All are
# made from scripts/{slurm,lsf,pbs,flux}/: the directives are those of the plan, the rest is theirs, with what they know of warnings,
# saving and going back into the queue.
import hashlib
import json
import os
import re
import shlex
import time

import sweep_create
import sweep_runner
from sweep_batch_systems import BASE, ROOT, SYSTEMS, Script, Size
from sweep_store import StoreError, end_of, now, read_object, write_atomic

WITHOUT = 3        # cycles without a new step, after which the scripts give up (tw_most_without in batch_common.sh)
LOG = "%d/log.txt"


# ---- submitting --------------------------------------------------------------------------------------------------------------------


def program(size):
    folder = os.environ.get("THINWIRE_BUILD") or os.path.join(ROOT, "build-cuda" if size.device == "cuda" and os.path.isdir(os.path.join(ROOT, "build-cuda")) else "build")
    return os.path.join(os.path.abspath(folder), "train")


def arguments(sweep, point, size):
    words = ["--config", sweep.path(point.id, "config.json"), f"run_dir={sweep.run_dir(point.id)}", f"device={size.device}"]
    if any(c in w for w in words for c in "\t\n"):
        raise StoreError(f"{sweep.dir}: a tab or a line break in this path cannot be passed on to a batch system", 78)
    return words


def setup_lines(system, sweep, size, script_path):
    f, lines = sweep.launcher, []
    lines.append(f"export THINWIRE_ROOT={shlex.quote(BASE)} THINWIRE_SHARE={shlex.quote(ROOT)} THINWIRE_TRAIN={shlex.quote(program(size))} THINWIRE_SCRIPT={shlex.quote(script_path)}")
    lines.append(f"export THINWIRE_LOG='{LOG}'")
    if size.gpus:
        lines.append("export THINWIRE_GPUS=1")
    if f.get("container"):
        lines.append(f"export THINWIRE_CONTAINER={shlex.quote(f['container'])}")
    lines += system.sizes(size)
    setup = f.get("setup", [])
    return lines + ([setup] if isinstance(setup, str) else list(setup))


def write_single(system, sweep, point, size, path, name):
    """A script for this point alone."""
    script = Script(system, system.template(size, False))
    system.direct(script, size, name, system.output(sweep.path(point.id, "log.txt"), False))
    script.directives += size.extra
    about = [f"Point {point.id} of the sweep {sweep.name}, alone: {system.how} {path}"]
    write_atomic(path, script.text(about, setup_lines(system, sweep, size, path) + system.fixed(arguments(sweep, point, size))), 0o777)
    return path


def batch_name(sweep, number):
    return f"tw-{hashlib.sha256(sweep.dir.encode()).hexdigest()[:6]}-{number:03d}"


def write_array(system, sweep, points, size, name):
    """The script and the list of an array."""
    base = os.path.join(sweep.dir, "batch", name)
    lines = ["\t".join(arguments(sweep, p, size)) for p in points]
    write_atomic(base + ".list", "\n".join(lines) + "\n")
    script = Script(system, system.template(size, True))
    system.direct(script, size, name, system.output(base, True))
    script.directives += size.extra
    about = [f"{len(points)} points of the sweep {sweep.name}, in the order of {base}.list; their output goes to runs/<id>/log.txt."]
    write_atomic(base + ".sh", script.text(about, setup_lines(system, sweep, size, base + ".sh") + system.listed(base + ".list")), 0o777)
    return base + ".sh"


def submit(sweep, points):
    """Submits the points; each is pending then and has its job. The caller holds the lock. A record is written before each submission, so
    that a sweep that is killed in between finds its jobs again by their names (recover)."""
    system = SYSTEMS[sweep.kind]()
    at_once = sweep.launcher.get("at_once", "auto")
    os.makedirs(os.path.join(sweep.dir, "batch"), exist_ok=True)
    groups = {}
    for point in points:
        size = Size(point)
        write_single(system, sweep, point, size, sweep.path(point.id, "job.sh"), f"tw-{point.id}")
        groups.setdefault(size.key(), (size, []))[1].append(point)
    for size, group in groups.values():
        step = system.most if system.arrays else 1
        for batch in (group[i:i + step] for i in range(0, len(group), step)):
            array = system.arrays and len(batch) >= system.least
            number = sum(n.endswith(".json") for n in os.listdir(os.path.join(sweep.dir, "batch")))
            name = batch_name(sweep, number)
            if array:
                path = write_array(system, sweep, batch, size, name)
            else:  # under a name by which it is found again
                path = write_single(system, sweep, batch[0], size, os.path.join(sweep.dir, "batch", name + ".sh"), name)
            facts = {"points": [p.id for p in batch], "array": array, "job": None, "booked": False, "submitted": now()}
            note(sweep, name, facts)
            facts["job"] = system.submit(path, len(batch) if array else 0, None if at_once == "auto" else at_once)
            note(sweep, name, facts)
            book(system, sweep, name, facts)


def note(sweep, name, facts):
    write_atomic(os.path.join(sweep.dir, "batch", name + ".json"), json.dumps(facts, indent=1) + "\n")


def book(system, sweep, name, facts):
    """The points of a submission get their jobs."""
    for i, id_ in enumerate(facts["points"]):
        job = system.element(facts["job"], system.first + i) if facts["array"] else facts["job"]
        sweep.set_status(id_, state="pending", job=job, code=None, reason="", started=facts["submitted"], ended=None, pid=None, mark=None, host=None)
    note(sweep, name, {**facts, "booked": True})


def recover(system, sweep):
    """Completes the records of submissions during which the sweep was killed: a job without a number is searched in the queue by its name."""
    folder = os.path.join(sweep.dir, "batch")
    named = None
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        facts = read_object(os.path.join(folder, file)) if file.endswith(".json") else None
        if not facts or facts.get("booked") or facts.get("lost"):
            continue
        name = file[:-len(".json")]
        if not facts["job"]:
            named = system.named() if named is None else named
            facts["job"] = named.get(name)
        if facts["job"]:
            book(system, sweep, name, facts)
        else:
            note(sweep, name, {**facts, "lost": True})


def run(sweep, only, build, again, say):
    """Hands open points over to the batch system and returns: the queue is watched with `sweep status`."""
    with sweep.lock():
        sweep_create.check(sweep, sweep.points(only), build, again=again)
        poll(sweep)
        if again:
            for point in sweep.points(only):
                sweep.cancel_mark(point.id, False)
        wanted = ("init", "preempted", *(sweep_runner.SECOND_CHANCE if again else ()))
        points = [p for p in sweep.points(only) if sweep.status(p.id)["state"] in wanted and not sweep.is_cancelled(p.id)]
        submit(sweep, points)
        say(f"{len(points)} points handed to {sweep.kind}; watch them with: scripts/sweep status {sweep.dir}")
    states = [sweep.status(p.id)["state"] for p in sweep.points(only)]
    return 1 if any(s in sweep_runner.SECOND_CHANCE + ("refused",) for s in states) else 0


# ---- following ---------------------------------------------------------------------------------------------------------------------


def cycles_of(sweep, id_):
    return read_object(os.path.join(sweep.run_dir(id_), "batch_cycles.json")) or {}


def poll(sweep):
    """Makes every status.json say what the batch system and the run directories say now."""
    system = SYSTEMS[sweep.kind]()
    recover(system, sweep)
    watched = [p for p in sweep.points() if sweep.status(p.id)["state"] in ("pending", "running") and sweep.status(p.id)["job"]]
    if not watched:
        return
    queue = system.queue()
    for point in watched:
        id_, status, cycles = point.id, sweep.status(point.id), cycles_of(sweep, point.id)
        job, age = status["job"], cycles_age(sweep, id_, status["started"])
        if job not in queue and cycles.get("job") and age is not None:
            job = cycles["job"]  # where a job cannot go back into the queue, another one takes over
        fields = {"job": job, "step": max(status["step"], sweep.step(id_))}
        if cycles and not stale(cycles, status):
            fields.update(attempts=cycles.get("cycles", 0), progress_without=cycles.get("without_progress", 0))
        if job in queue:
            state, why = queue[job]
            train = sweep.train_status(id_)
            again = state == "pending" and train.get("state") == "preempted"
            fields.update(state=state, reason=f"saved at step {train.get('step')}, back in the queue" if again else why if state == "pending" else "")
            if state == "running" and train.get("host"):
                fields["host"] = train["host"]
        else:
            ended = system.ended(job)
            if job != status["job"] and not ended[0] and not sweep.says_finished(id_) and age < 30:
                continue  # just submitted, the queue does not show it yet
            fields.update(outcome(sweep, point, ended))
        if any(status.get(k) != v for k, v in fields.items()):
            sweep.set_status(id_, **fields)


def stale(cycles, status):
    return not isinstance(cycles.get("cycles"), int) or cycles["cycles"] < status["attempts"]


def cycles_age(sweep, id_, since):
    """Seconds since a script of this submission wrote batch_cycles.json; None: none has (it is missing, or of an earlier submission)."""
    try:
        written = os.stat(os.path.join(sweep.run_dir(id_), "batch_cycles.json")).st_mtime
    except OSError:
        return None
    return time.time() - written if time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(written)) >= str(since or "") else None


def said_by_scripts(text):
    """The last remark of batch_common.sh, without its time."""
    return next(iter(re.findall(r"(?m)^thinwire \S+Z: (.*)$", text)[-1:]), "")


def outcome(sweep, point, ended):
    """Fields of status.json for a point whose job is gone. ended: (word, exit code) of the batch system. What `train` wrote decides;
    the batch system is asked only why there is nothing better."""
    id_, (word, code) = point.id, ended
    status, train, cycles = sweep.status(id_), sweep.train_status(id_), cycles_of(sweep, id_)
    text = end_of(sweep.path(id_, "log.txt"))
    remark, error = said_by_scripts(text), sweep_runner.error_in(text)
    fields = {"ended": train.get("updated") or now(), "step": sweep.step(id_)}
    if sweep.says_finished(id_):
        return {**fields, "state": "finished", "code": 0, "reason": "", "progress_without": 0}
    fresh = str(train.get("updated") or "") >= str(status["started"] or "")
    if fresh and train.get("code") is not None:
        code = train["code"]
    fields["code"] = code
    message = (train.get("message") if fresh else "") or error
    if word == "OUT_OF_MEMORY" or any(w in message for w in sweep_runner.NO_MEMORY):
        return {**fields, "state": "oom", "reason": message or "the batch system ended it: out of memory"}
    if sweep.is_cancelled(id_) or word == "CANCELLED":
        return {**fields, "state": "preempted", "reason": "cancelled"}
    if cycles.get("without_progress", 0) >= WITHOUT and not cycles.get("open"):
        return {**fields, "state": "failed", "reason": f"{cycles['without_progress']} cycles in a row ended at step {cycles.get('step')} without a new one"}
    if fresh and train.get("state") == "preempted":
        return {**fields, "state": "preempted", "reason": remark or "saved, but not queued again"}
    if word == "TIMEOUT":
        return {**fields, "state": "timeout", "reason": "over the walltime before it had saved"}
    if not os.path.exists(sweep.path(id_, "log.txt")) and not word:
        return {**fields, "state": "preempted", "reason": "its job vanished before it began"}
    if fresh and train.get("state") == "running" and word in ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REQUEUED", ""):
        return {**fields, "state": "preempted", "reason": "its job vanished" + (f" ({word})" if word else "")}
    return {**fields, "state": "failed", "reason": message or remark or f"the batch system says {word or 'nothing'}, exit code {code}"}


def cancel(sweep, ids):
    """Ends the jobs of these points: those that wait vanish, those that run get their batch system's chance to save."""
    poll(sweep)
    jobs = [sweep.status(i)["job"] for i in ids if sweep.status(i)["state"] in ("pending", "running") and sweep.status(i)["job"]]
    if jobs:
        SYSTEMS[sweep.kind]().cancel(jobs)
        poll(sweep)
