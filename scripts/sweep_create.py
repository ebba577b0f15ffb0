# Makes the folder of a sweep from its plan, lets it grow with the plan, and asks `train --dry-run` what it thinks of each point.
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import sweep_config
import sweep_process
import sweep_store
from sweep_plan import LOCAL_KINDS, PlanError
from sweep_store import Sweep, write_atomic

ROOT, BASE = sweep_config.ROOT, sweep_config.BASE
FORMAT = 1
DRY_RUN_LIMIT_S = 120


def facts_of(plan, points, created):
    return {"format": FORMAT, "name": plan.name, "paper": plan.paper, "launcher": plan.launcher, "created": created, "plan_text": plan.text,
            "points": [dict(vars(p)) for p in points]}


def program(build):
    path = os.path.join(build, "train")
    if not os.access(path, os.X_OK):
        raise sweep_store.StoreError(f"{path} is not there; build it (scripts/quickstart.sh shows how) or name its folder with THINWIRE_BUILD")
    return path


def config_text(sweep, point):
    """The file with which `train --config` repeats the run of this point."""
    return sweep_config.text_of({**point.config, "run_dir": sweep.run_dir(point.id)})


def command(point, build, folder, lab="LAB"):
    """The words that run a point on this machine. folder: its own, as a path or a shell variable."""
    train = [os.path.join(build, "train"), "--config", f"{folder}/config.json", f"run_dir={folder}/run"]
    ranks = str(point.launcher["ranks"])
    if point.launcher["kind"] == "lab":
        return [os.path.join(ROOT, "scripts", "lab"), "run", "--name", lab, "-n", ranks, "--bind", "--", *train]
    return (["mpirun", "-n", ranks] if ranks != "1" else []) + train


def job_text(sweep, point, build):
    """job.sh: the run by hand. The runner does not use it; batch systems have their own in its place."""
    lines = ["#!/bin/sh", f"# Point {point.id} of the sweep {sweep.name}, by hand. It goes on from run/ by itself; `train` refuses to work in run/ twice at once.",
             'here=$(cd "$(dirname "$0")" && pwd) || exit 1', f"cd {shlex.quote(BASE)} || exit 1"]
    shown = [w if "$here" not in w else f'"{w}"' for w in (shlex.quote(w) if "$here" not in w else w for w in command(point, build, "$here", "sweep-by-hand"))]
    if point.launcher["kind"] == "lab":
        lab = shlex.quote(os.path.join(ROOT, "scripts", "lab"))
        lines += [f"{lab} up --name sweep-by-hand --hosts {point.launcher['hosts']} --rate {point.launcher['rate']} || exit 1",
                  f'trap "{lab} down --name sweep-by-hand" EXIT', " ".join(shown)]
    else:
        lines.append("exec " + " ".join(shown))
    return "\n".join(lines) + "\n"


def write_point(sweep, point, build):
    """The folder of a point; what its runs have left is kept."""
    folder = sweep.folder(point.id)
    os.makedirs(folder, exist_ok=True)
    write_atomic(os.path.join(folder, "config.json"), config_text(sweep, point))
    if point.launcher["kind"] in LOCAL_KINDS:
        write_atomic(os.path.join(folder, "job.sh"), job_text(sweep, point, build), 0o777)


def config_is_ours(sweep, point):
    """Whether config.json says what `create` wrote, wherever the folder was moved to; a missing file is written again. Else what differs."""
    path = sweep.path(point.id, "config.json")
    if not os.path.exists(path):
        write_atomic(path, config_text(sweep, point))
        return ""
    found = sweep_store.read_object(path)
    if found is None:
        return f"{path} is no JSON object any more"
    found.pop("run_dir", None)
    for key in sorted(set(found) | set(point.config)):
        if found.get(key) != point.config.get(key):
            return f"{path}: {key} is {json.dumps(found.get(key))}, but this point has {json.dumps(point.config.get(key))}"
    return ""


def refuse_foreign(directory):
    """A folder that is in use for something else is not filled."""
    if not os.path.isdir(directory):
        return
    runs = os.path.join(directory, "runs")
    for name in os.listdir(runs) if os.path.isdir(runs) else []:
        if os.path.exists(os.path.join(runs, name, "run")):
            raise sweep_store.StoreError(f"{directory}: sweep.json is gone, but {runs}/{name} has results; name another folder with --out, or move these away", 78)
    ours = os.path.exists(os.path.join(directory, "plan.json"))  # left by a `create` that was killed
    if not ours and [n for n in os.listdir(directory) if n not in ("runner.lock", "runs") and not n.startswith(".")]:
        raise sweep_store.StoreError(f"{directory} is there, is not empty and no sweep; name another folder with --out", 78)


def grown(old, plan):
    """(points, points to take away) of a plan that has changed since: those there are keep number and id, new ones follow. One that has
    vanished from the plan is taken away if it was never started; a result is not."""
    there = {p.identity(): p for p in old.points()}
    wanted = {p.identity(): p for p in plan.points}
    away = [p for key, p in there.items() if key not in wanted]
    lost = [p for p in away if old.status(p.id)["attempts"] or os.path.exists(old.run_dir(p.id))]
    if lost:
        raise PlanError([f"{plan.path}: the sweep in {old.dir} has {len(lost)} point{'s' * (len(lost) > 1)} with results that this plan has no longer "
                         f"({', '.join(p.id for p in lost[:3])}{' ...' if len(lost) > 3 else ''}): what was measured would be mixed with something else. "
                         "Values may be added to a plan; for another one name another folder with --out (or was a base configuration changed?)"])
    number = max((p.number for p in there.values()), default=0)
    final = {}
    for key, point in wanted.items():
        before = point.id
        if key in there:
            point.id, point.number = there[key].id, there[key].number
        else:
            number += 1
            point.id, point.number = re.sub(r"^\d+", f"{number:03d}", before), number
        final[before] = point.id
    for point in plan.points:
        point.baseline = final.get(point.baseline)
    return sorted(plan.points, key=lambda p: p.number), away


def create(plan, directory, build, say=print):
    """Makes or completes DIR and returns its Sweep. Safe to repeat, and to be killed: sweep.json comes last."""
    program(build)
    path = os.path.join(directory, "sweep.json")
    if not os.path.exists(path):
        refuse_foreign(directory)
    try:
        os.makedirs(os.path.join(directory, "runs"), exist_ok=True)
        with sweep_store.hold(directory, "create"):
            if not os.path.exists(path):
                write(plan, plan.points, directory, build, sweep_store.now())
            elif (old := Sweep(directory)).facts.get("plan_text") != plan.text or identities(old.points()) != identities(plan.points):
                points, away = grown(old, plan)
                fresh = len(points) - len(old.points()) + len(away)
                if fresh or away:
                    say(f"{directory}: the plan has changed: {fresh} points are new, {len(away)} that were never started are gone")
                write(plan, points, directory, build, old.facts.get("created"))
                for point in away:  # a kill before this leaves a folder that nothing refers to
                    shutil.rmtree(old.folder(point.id), ignore_errors=True)
            sweep = Sweep(directory)
            for point in sweep.points():
                if not os.path.exists(sweep.path(point.id, "config.json")):  # removed by hand
                    write_point(sweep, point, build)
            check(sweep, sweep.points(), build)
    except OSError as e:
        raise sweep_store.StoreError(f"{e.filename or directory}: {e.strerror}", 74) from None
    return sweep


def identities(points):
    return sorted(p.identity() for p in points)


def write(plan, points, directory, build, created):
    write_atomic(os.path.join(directory, "plan.json"), plan.text)
    sweep = Sweep(directory, facts_of(plan, points, created))
    for point in points:
        write_point(sweep, point, build)
    write_atomic(os.path.join(directory, "sweep.json"), json.dumps(sweep.facts, indent=1) + "\n")


def dry_run(train, config_file, ranks):
    """(exit code, what it said) of `train --dry-run`."""
    try:
        done = subprocess.run([train, "--config", config_file, "--dry-run", "--ranks", str(ranks)], cwd=BASE, env=environment(), check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=DRY_RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return -1, f"not done after {DRY_RUN_LIMIT_S} s"
    said = done.stderr.decode(errors="replace").strip()
    said = re.sub(r"\Aerror: (the configuration has \d+ problems?\n)?", "", said)
    # It may be said of several points, or be a file that goes away.
    return done.returncode, re.sub(r"(?m)^" + re.escape(config_file) + r":\d+:\d+: ", "", said).replace(config_file, "config.json")


def environment():
    """Of a run on this machine: it is no part of a job that this process may itself be part of."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_COMM_", "MV2_COMM_", "JSM_NAMESPACE_", "SLURM_STEP_", "HYDRA_"))}
    env.pop("SLURM_PROCID", None)
    # Hydra would start ranks through the batch system whose job it finds itself in; Open MPI wants to be told that root may.
    env.update({"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1"})
    return env


def ask(points, build, config_file):
    """[(points, exit code, what --dry-run said of them)]. config_file(point): a context with the path of its configuration. Points whose
    answer must be the same are asked about together: the seed decides nothing that --dry-run looks at."""
    train, groups = program(build), {}
    for point in points:
        config = {k: v for k, v in point.config.items() if k != "seed" or not isinstance(v, int) or v < 0}
        groups.setdefault(json.dumps([config, point.launcher["ranks"]], sort_keys=True), []).append(point)

    def answer(group):
        with config_file(group[0]) as path:
            return (group, *dry_run(train, path, group[0].launcher["ranks"]))
    with ThreadPoolExecutor(max(1, len(sweep_process.usable_cores()))) as pool:
        return list(pool.map(answer, groups.values()))


def check(sweep, points, build, again=False):
    """Asks --dry-run about the points that were not asked yet (again: about refused ones, too); those it refuses are not run."""
    status = {p.id: sweep.status(p.id) for p in points}
    open_points = [p for p in points if not status[p.id]["checked"] or again and status[p.id]["state"] == "refused"]
    for group, code, said in ask(open_points, build, lambda p: contextlib.nullcontext(sweep.path(p.id, "config.json"))):
        for id_, state in ((p.id, status[p.id]["state"]) for p in group):
            if code == 0:
                sweep.set_status(id_, checked=True, **({"state": "init", "code": None, "reason": ""} if state == "refused" else {}))
            elif state in ("init", "refused"):
                refused = {"state": "refused", "reason": said} if code == 78 else {"state": "failed", "reason": f"--dry-run: {said or f'ended with {code}'}"}
                sweep.set_status(id_, checked=True, code=code, **refused)


def preview(plan, build):
    """[(point, refusal or "")] without writing anything but a file that goes away."""
    @contextlib.contextmanager
    def config_file(point):
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
            f.write(sweep_config.text_of(point.config))
            f.flush()
            yield f.name
    refusals = {p.id: (said or f"--dry-run ended with {code}") if code else "" for group, code, said in ask(plan.points, build, config_file) for p in group}
    return [(p, refusals[p.id]) for p in plan.points]
