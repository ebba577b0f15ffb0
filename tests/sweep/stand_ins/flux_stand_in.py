# Flux: `flux batch` reads directives by RFC 36, `flux run` starts ranks inside. Rules: flux-batch(1), flux-run(1), RFC 23, 26, 36.
import os
import re
import shlex
import signal

from stand_in_support import Refused, jobs, run_ranks, save, submit, whole

FSD = r"\d+(\.\d+)?(ms|s|m|h|d)?"
COMMON = {"--queue": True, "-q": "--queue", "--bank": True, "-B": "--bank", "--time-limit": True, "-t": "--time-limit", "--job-name": True, "--flags": True, "--output": True, "--error": True,
          "--input": True, "--dependency": True, "--requires": True, "--signal": True, "--setattr": True, "-S": "--setattr", "--setopt": True, "-o": "--setopt", "--cwd": True, "--urgency": True,
          "--env": True, "--env-remove": True, "--env-file": True, "--rlimit": True, "--add-file": True, "--begin-time": True, "--unbuffered": False, "-u": "--unbuffered", "--verbose": False,
          "-v": "--verbose", "--dry-run": False, "--nodes": True, "-N": "--nodes", "--exclusive": False, "-x": "--exclusive"}
BATCH = {**COMMON, "--nslots": True, "-n": "--nslots", "--cores-per-slot": True, "-c": "--cores-per-slot", "--gpus-per-slot": True, "-g": "--gpus-per-slot", "--conf": True, "--wrap": False,
         "--broker-opts": True}
RUN = {**COMMON, "--ntasks": True, "-n": "--ntasks", "--cores-per-task": True, "-c": "--cores-per-task", "--gpus-per-task": True, "-g": "--gpus-per-task", "--cores": True, "--tasks-per-node": True,
       "--tasks-per-core": True, "--gpus-per-node": True, "--label-io": False, "-l": "--label-io"}
SCHEMES = ("after", "afterany", "afterok", "afternotok", "afterexcept", "singleton", "begin-time")
SHELL = {"cpu-affinity": r"(verbose,|dry-run,)*(off|per-task|on|map:.+)", "gpu-affinity": r"off|per-task|on|map:.+", "mpi": r"\S+", "pmi": r"\S+", "exit-timeout": "none|" + FSD,
         "exit-on-error": "1?", "verbose": r"\d?", "nosetpgrp": "1?", "pty.interactive": "1?", "output.mode": "append|truncate"}


def bad(message):
    raise Refused(message, 1)


def parse(words, known, what):
    """{long option: [values]}, rest: as argparse does, without abbreviations of ours."""
    found, words = {}, list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word, value = words.pop(0), None
        if word == "--":
            break
        if word.startswith("--"):
            word, equals, value = word.partition("=")
            value = value if equals else None
        elif len(word) > 2:
            word, value = word[:2], word[2:]
        if word not in known:
            raise Refused(f"usage: flux {what} ...\nflux-{what}: error: unrecognized arguments: {word}", 2)
        name = word if isinstance(known[word], bool) else known[word]
        if known[name]:
            if value is None:
                if not words:
                    raise Refused(f"flux-{what}: error: argument {name}: expected one argument", 2)
                value = words.pop(0)
        elif value is not None:
            raise Refused(f"flux-{what}: error: argument {name}: ignored explicit argument {value}", 2)
        found.setdefault(name, []).append(value)
    return found, words


def check_common(options, what):
    last = {k: v[-1] for k, v in options.items()}
    for name in ("--nodes", "--nslots", "--cores-per-slot", "--ntasks", "--cores-per-task", "--cores", "--tasks-per-node", "--tasks-per-core"):
        if name in last and not whole(last[name]):
            raise Refused(f"flux-{what}: error: argument {name}: invalid int value or below 1: {last[name]}", 2)
    for name in ("--gpus-per-slot", "--gpus-per-task", "--gpus-per-node"):
        if name in last and not whole(last[name], 0):
            raise Refused(f"flux-{what}: error: argument {name}: invalid int value: {last[name]}", 2)
    if "--time-limit" in last and not re.fullmatch(FSD, last["--time-limit"]):
        bad(f"flux-{what}: ERROR: invalid Flux standard duration: {last['--time-limit']}")
    if "--signal" in last:
        found = re.fullmatch(r"([A-Za-z0-9]*)(?:@(.+))?", last["--signal"])
        name = found[1].upper().removeprefix("SIG") if found else "?"
        if not found or name and not (name.isdigit() and 0 < int(name) < 64) and not hasattr(signal, "SIG" + name):
            bad(f"flux-{what}: ERROR: --signal={last['--signal']}: invalid signal")
        if found[2] is not None and not re.fullmatch(FSD, found[2]):
            bad(f"flux-{what}: ERROR: --signal={last['--signal']}: invalid time")
    if "--exclusive" in last and "--nodes" not in last:
        bad(f"flux-{what}: ERROR: --exclusive can only be set with a node count")
    for text in options.get("--dependency", []):
        scheme, _, value = text.partition(":")
        if scheme not in SCHEMES or (scheme != "singleton") != bool(value):
            bad(f"flux-{what}: ERROR: dependency scheme {text!r} is not supported")
        if scheme == "singleton" and "--job-name" not in last:
            bad(f"flux-{what}: ERROR: singleton needs --job-name")
    for text in options.get("--setopt", []):
        key, equals, value = text.partition("=")
        if key in SHELL and not re.fullmatch(SHELL[key], value if equals else "1"):
            bad(f"flux-{what}: ERROR: shell option {text}: invalid value")
        if key not in SHELL and not key.startswith(("stage-in", "hwloc.", "output.", "rlimit", "optional-initrc")):
            bad(f"flux-{what}: ERROR: unknown shell option {key}")
    if "--urgency" in last and last["--urgency"] not in ("hold", "default", "expedite") and not whole(last["--urgency"], 0, 31):
        bad(f"flux-{what}: ERROR: invalid urgency {last['--urgency']}")
    for text in options.get("--flags", []):
        for flag in text.split(","):
            if flag not in ("waitable", "novalidate", "debug"):
                bad(f"flux-{what}: ERROR: unknown flag {flag}")
    return last


def directives(text):
    """The words of all directives of a script."""
    words, sentinel, prefix, ended = [], None, None, False
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    for line in lines:
        found = re.match(r"^([^\w]*)(flux|FLUX):(.*)$", line)
        if found:
            here = found[1] + found[2] + ":"
            if sentinel is None:
                sentinel, prefix = here, found[1]
            elif here != sentinel:
                bad(f"flux-batch: ERROR: sentinel changed from '{sentinel}' to '{here}'")
            if ended:
                bad(f"flux-batch: ERROR: orphan '{here}' detected: directives must be grouped")
            try:
                words += shlex.split(found[3], comments=True)
            except ValueError as e:
                bad(f"flux-batch: ERROR: {line}: {e}")
        elif sentinel is not None and line.strip() and not line.startswith(prefix.rstrip() or prefix):
            ended = True
    return words


def batch(arguments):
    given, words = parse(arguments, BATCH, "batch")
    if not words:
        bad("flux-batch: ERROR: this stand-in wants a script by name")
    try:
        with open(words[0], encoding="utf-8") as f:
            text = f.read()
    except OSError as e:
        bad(f"flux-batch: ERROR: failed to open batch script {words[0]}: {e.strerror}")
    if not text.startswith("#!"):
        bad(f"flux-batch: ERROR: {words[0]} does not appear to be a script, or failed to encode as utf-8")
    own, rest = parse(directives(text), BATCH, "batch")
    if rest:
        bad(f"flux-batch: ERROR: directive holds a word that is no option: {rest[0]}")
    merged = {**own, **given}
    last = check_common(merged, "batch")
    if "--nslots" not in last and "--nodes" not in last:
        bad("flux-batch: ERROR: Number of slots to run must be specified with --nslots or --nodes")
    if "--nslots" in last and "--nodes" in last and int(last["--nslots"]) < int(last["--nodes"]):
        bad("flux-batch: ERROR: node count must not be greater than slot count")
    number = submit("flux", text, options=last, arguments=words[1:], name=last.get("--job-name", os.path.basename(words[0])), env=dict(os.environ), slots=int(last.get("--nodes", 1)))
    print(f"f{number}Aa")
    return 0


def run(arguments):
    found, words = parse(arguments, RUN, "run")
    last = check_common(found, "run")
    if not words:
        bad("flux-run: ERROR: job command and arguments are missing")
    per_task = [o for o in ("--ntasks", "--cores-per-task", "--gpus-per-task") if o in last]
    per_resource = [o for o in ("--cores", "--tasks-per-node", "--tasks-per-core", "--gpus-per-node") if o in last]
    if per_task and per_resource:
        bad(f"flux-run: ERROR: Per-resource options can't be used with per-task options. (got {', '.join(per_resource + per_task)})")
    if "--gpus-per-node" in last and "--nodes" not in last:
        bad("flux-run: ERROR: gpus-per-node requires --nodes")
    nodes, cores = int(os.environ.get("STAND_IN_NODES", "1")), int(os.environ.get("STAND_IN_NODE", "32:4").split(":")[0])
    if int(last.get("--nodes", 1)) > nodes:
        bad(f"flux-run: ERROR: unsatisfiable request: {last['--nodes']} nodes of {nodes}")
    if int(last.get("--ntasks", 1)) * int(last.get("--cores-per-task", 1)) > nodes * cores:
        bad(f"flux-run: ERROR: unsatisfiable request: {last.get('--ntasks', 1)} tasks of {last.get('--cores-per-task', 1)} cores on {nodes * cores}")
    if int(last.get("--tasks-per-node", 1)) > cores:
        bad("flux-run: ERROR: unsatisfiable request")
    return run_ranks(words)


def list_jobs(arguments):
    """flux jobs -a -n -o FORMAT."""
    form = arguments[arguments.index("-o") + 1]
    for job in jobs().values():
        if job["system"] == "flux":
            state = {"pending": "SCHED", "running": "RUN", "done": "INACTIVE", "killed": "INACTIVE"}[job["state"]]
            result = "" if state != "INACTIVE" else "CANCELED" if job["state"] == "killed" else "COMPLETED" if job["code"] == 0 else "FAILED"
            print(form.replace("{id.f58}", f"f{job['number']}Aa").replace("{state}", state).replace("{result}", result).replace("{name}", job["name"]))


def cancel(arguments):
    for id_ in arguments:
        mine = {n: j for n, j in jobs().items() if f"f{j['number']}Aa" == id_}
        if not mine:
            bad(f"flux-cancel: ERROR: {id_}: unknown job id")
        for name, job in mine.items():
            if job["state"] in ("done", "killed"):
                bad(f"flux-cancel: ERROR: {id_}: job is inactive")
            save(name, {**job, "state": "killed"} if job["state"] == "pending" else {**job, "kill": True})


def flux(arguments):
    words, inside = list(arguments), os.environ.get("STAND_IN_FLUX_JOB")
    if words and words[0] == "--parent":
        if not inside:
            bad("flux: --parent: there is no enclosing instance")
        words.pop(0)
    elif inside and words[:1] == ["batch"]:
        bad("flux-batch: ERROR: this would run inside of the job and end with it; a test wants --parent here")
    name = words.pop(0) if words else ""
    if name == "getattr" and words == ["jobid"]:
        print(inside or bad("flux-getattr: ERROR: No such attribute"))
        return 0
    if name == "resource" and words[:1] == ["list"]:
        cores = int(os.environ.get("STAND_IN_NODE", "32:4").split(":")[0])
        nodes = int(os.environ.get("STAND_IN_NODES", "1"))
        form = words[-1]
        if "-no" not in words and "-n" not in words:
            bad("flux-resource: this stand-in wants -n -o FORMAT")
        print(form.replace("{nnodes}", str(nodes)).replace("{ncores}", str(nodes * cores)))
        return 0
    if name not in ("batch", "run", "jobs", "cancel"):
        bad(f"flux: '{name}' is not a flux command known to this stand-in")
    return {"batch": batch, "run": run, "jobs": list_jobs, "cancel": cancel}[name](words)
