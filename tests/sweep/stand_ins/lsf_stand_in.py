# LSF: bsub reads #BSUB lines from its standard input; jsrun cuts an allocation into resource sets. Rules: bsub and jsrun references.
import os
import re
import signal
import sys

from stand_in_support import Refused, jobs, run_ranks, save, split, submit, take, whole

OPTIONS = {"-J": True, "-n": True, "-R": True, "-W": True, "-wa": True, "-wt": True, "-Q": True, "-q": True, "-P": True, "-o": True, "-oo": True, "-e": True, "-eo": True,
           "-i": True, "-w": True, "-g": True, "-G": True, "-m": True, "-M": True, "-b": True, "-t": True, "-cwd": True, "-env": True, "-u": True, "-U": True, "-app": True, "-a": True,
           "-gpu": True, "-nnodes": True, "-alloc_flags": True, "-core_isolation": True, "-smt": True, "-csm": True, "-jsm": True, "-ln_slots": True, "-cn_mem": True, "-cn_cu": True,
           "-sla": True, "-sp": True, "-x": False, "-r": False, "-rn": False, "-B": False, "-N": False, "-H": False, "-K": False, "-I": False, "-Ip": False, "-Is": False}
SECTIONS = {"select", "order", "rusage", "span", "same", "cu", "affinity"}
GPU = {"num": r"[1-9]\d*(/task|/host)?", "mode": "shared|exclusive_process", "mps": r"(yes|per_socket|per_gpu)(,share(d)?)?(,nocvd)?|no", "j_exclusive": "yes|no", "aff": "yes|no",
       "block": "yes|no", "gpack": "yes|no", "glink": "yes", "gvendor": "amd|nvidia", "gmodel": r"[\w.-]+", "gtile": r"!|\d+", "gmem": r"\d+[KMGT]?B?", "mig": r"\d+(/\d+)?"}


def bad(message):
    raise Refused(message + ". Job not submitted.", 255)


def minutes(text, what):
    """[hour:]minute, for -W also behind it /host."""
    found = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
    if not found:
        bad(f"{what} {text}: Bad time specification, [hour:]minute is wanted")
    return int(found[1] or 0) * 60 + int(found[2])


def check_resources(text):
    if text.count("[") != text.count("]"):
        bad(f"Bad resource requirement syntax: {text}")
    rest = text.strip()
    while rest:
        found = re.match(r"(\w+)\[([^\[\]]*)\]\s*", rest)
        if not found:
            if "[" in rest:
                bad(f"Bad resource requirement syntax: {rest}")
            return  # a bare select string
        name, value = found[1], found[2].strip()
        if name not in SECTIONS:
            bad(f"Unknown section {name} in the resource requirement string")
        if name == "span" and not re.fullmatch(r"hosts=(1|-1)|ptile=([1-9]\d*|'?!'?.*)|block=[1-9]\d*|stripe(=\d+)?", value):
            bad(f"Bad span section: {value}")
        if name == "affinity" and not re.match(r"(thread|core|socket|numa|task)(\(\d+.*\))?", value):
            bad(f"Bad affinity section: {value}")
        rest = rest[found.end():]


def affinity_is_closed(text):
    # affinity[core(8)] holds brackets of its own kind
    return text.count("(") == text.count(")")


def check_name(text):
    """(name, indices or None, at most at once)."""
    found = re.fullmatch(r"([^\[\]]+?)(?:\[([^\]]*)\](?:%(\d+))?)?", text)
    if not found or not found[1].strip():
        bad(f"{text}: Bad job name or array specification")
    if found[2] is None:
        return found[1], None
    indices = []
    for part in found[2].split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not span or int(span[1]) < 1 or int(span[2] or span[1]) < int(span[1]):
            bad(f"{text}: Bad job array index list")
        indices += range(int(span[1]), int(span[2] or span[1]) + 1, int(span[3] or 1))
    if found[3] == "0":
        bad(f"{text}: Bad job array slot limit")
    return found[1], indices


def check_dependency(text):
    rest = text
    word = r"(done|ended|exit|started|external|post_done|post_err)\(\s*(\d+|\"[^\"]+\"|[\w*\[\]-]+)\s*(,[^()]*)?\)"
    if not re.search(word, rest):
        bad(f"{text}: Bad dependency condition")
    if re.sub(word, "", rest).replace("&&", "").replace("||", "").replace("!", "").replace("(", "").replace(")", "").strip():
        bad(f"{text}: Bad dependency condition")
    for number in re.findall(r"\((\d+)\)", rest):
        if not any(j["number"] == int(number) for j in jobs().values()):
            bad(f"{number}: No matching job found in the dependency condition")


def check_signal(text):
    if text == "CHKPNT":
        return
    if text.startswith("SIG") or not hasattr(signal, "SIG" + text):
        bad(f"-wa {text}: Bad warning action; a signal has no SIG before its name")


def check(options):
    """Of all options together. Returns facts of the job."""
    last = {k: v[-1] for k, v in options.items()}
    for name in ("-n",):
        if name in last and not all(whole(p) for p in last[name].split(",")):
            bad(f"{name} {last[name]}: Bad number of slots")
    for text in options.get("-R", []):
        if not affinity_is_closed(text):
            bad(f"Bad resource requirement syntax: {text}")
        check_resources(text)
    limit = minutes(last["-W"].split("/")[0], "-W") if "-W" in last else None
    if ("-wa" in last) != ("-wt" in last):
        bad("A job warning action (-wa) and a warning time (-wt) must be given together")
    if "-wa" in last:
        check_signal(last["-wa"])
        lead = minutes(last["-wt"], "-wt")
        if limit is not None and lead >= limit:
            bad(f"-wt {last['-wt']}: The warning time must lie within the run limit")
    if "-Q" in last:
        words = last["-Q"].split()
        if not words or not all(re.fullmatch(r"all|~?\d+|EXCLUDE\(\d+( \d+)*\)", w) for w in words) or any(int(n) > 255 for n in re.findall(r"\d+", last["-Q"])):
            bad(f"-Q {last['-Q']}: Bad requeue exit values")
    if "-r" in last and "-rn" in last:
        bad("-r and -rn are conflicting options")
    if "-o" in last and "-oo" in last or "-e" in last and "-eo" in last:
        bad("conflicting output options")
    if "-gpu" in last and last["-gpu"] != "-":
        for part in last["-gpu"].split(":"):
            key, _, value = part.partition("=")
            if key not in GPU:
                bad(f"-gpu {last['-gpu']}: unknown GPU requirement {key}")
            if not re.fullmatch(GPU[key], value):
                bad(f"-gpu {last['-gpu']}: bad value of {key}")
    for name in ("-nnodes", "-smt", "-ln_slots"):
        if name in last and not whole(last[name]):
            bad(f"{name} {last[name]}: a positive number is wanted")
    if "-nnodes" in last and last.get("-csm") == "y":
        bad("-nnodes: do not use with -csm y")
    for name in ("-cn_mem",):
        if name in last and last.get("-csm") != "y":
            bad(f"{name}: use only with -csm y")
    if "-alloc_flags" in last and not re.fullmatch(r"[A-Za-z0-9]+( [A-Za-z0-9]+)*", last["-alloc_flags"]):
        bad(f"-alloc_flags {last['-alloc_flags']}: alphanumeric words are wanted")
    if "-core_isolation" in last and not whole(last["-core_isolation"], 0, 6):
        bad("-core_isolation: 0 to 6")
    if "-w" in last:
        check_dependency(last["-w"])
    name, indices = check_name(last.get("-J", "job"))
    return last, name, indices


def bsub(arguments):
    given, words = take(arguments, OPTIONS, bad)
    if words:
        if os.environ.get("LSB_BSUB_PARSE_SCRIPT", "n").lower() != "y":
            # The words are a command then; directives inside are comments to LSF.
            check(given)
            print(f"Job <{submit('lsf', '#!/bin/sh' + chr(10) + ' '.join(words), options=given, name='job', env=dict(os.environ))}> is submitted to default queue <normal>.")
            return 0
        with open(words[0], encoding="utf-8") as f:
            text = f.read()
    else:
        text = sys.stdin.read()
    if not text.strip():
        bad("No command is specified")
    directives = {}
    for line in text.splitlines():
        if line.startswith("#BSUB"):
            if not line.startswith("#BSUB "):
                bad(f"{line}: Bad directive")
            body = re.sub(r"\s#.*", "", line[6:])
            found, rest = take(split(body, bad), OPTIONS, bad)
            if rest:
                bad(f"{line}: {rest[0]}: not an option")
            for k, v in found.items():
                directives.setdefault(k, []).extend(v)
    merged = {**directives, **given}
    last, name, indices = check(merged)
    number = submit("lsf", text, options=last, name=name, indices=indices, env=dict(os.environ))
    print(f"Job <{number}> is submitted to queue <{last.get('-q', 'normal')}>.")
    return 0


def bjobs(arguments):
    if "-o" not in arguments or "-noheader" not in arguments:
        raise Refused("this stand-in knows -noheader -o only", 255)
    form = arguments[arguments.index("-o") + 1]
    fields, delimiter = re.fullmatch(r"([\w ]+?)\s+delimiter='(.)'", form).groups()
    shown = 0
    for job in jobs().values():
        if job["system"] != "lsf":
            continue
        stat = {"pending": "PEND", "running": "RUN", "done": "DONE" if job["code"] == 0 else "EXIT", "killed": "EXIT"}[job["state"]]
        values = {"jobid": job["number"], "jobindex": job["index"] or 0, "stat": stat, "exit_code": job["code"] if stat == "EXIT" and job["code"] is not None else "-", "job_name": job["name"]}
        print(delimiter.join(str(values[f]) for f in fields.split()))
        shown += 1
    if not shown:
        raise Refused("No job found", 255)


def bkill(arguments):
    for word in arguments:
        found = re.fullmatch(r"(\d+)(?:\[(\d+)\])?", word)
        if not found:
            raise Refused(f"{word}: Illegal job ID", 255)
        mine = {n: j for n, j in jobs().items() if j["number"] == int(found[1]) and (found[2] is None or j["index"] == int(found[2]))}
        if not mine:
            raise Refused(f"Job <{word}>: No matching job found", 255)
        for name, job in mine.items():
            if job["state"] == "pending":
                save(name, {**job, "state": "killed", "code": None})
            elif job["state"] == "running":
                save(name, {**job, "kill": True})
        print(f"Job <{word}> is being terminated")


JSRUN = {"-n": "nrs", "--nrs": "nrs", "-a": "tasks", "--tasks_per_rs": "tasks", "-c": "cpus", "--cpu_per_rs": "cpus", "-g": "gpus", "--gpu_per_rs": "gpus", "-r": "per_host",
         "--rs_per_host": "per_host", "-b": "bind", "--bind": "bind", "-d": "spread", "--launch_distribution": "spread", "-l": "latency", "--latency_priority": "latency", "-E": "env",
         "--env": "env", "-p": "np", "--np": "np", "-e": "stdio", "--stdio_mode": "stdio", "-X": "exit", "--exit_on_error": "exit", "-M": "smpi", "--smpiargs": "smpi"}


def jsrun_options(arguments):
    words, found = list(arguments), {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if "=" in word and word.startswith("--"):
            word, value = word.split("=", 1)
        elif word in JSRUN:
            if not words:
                raise Refused(f"Error: option {word} requires an argument")
            value = words.pop(0)
        elif word[:2] in JSRUN and not word.startswith("--"):
            word, value = word[:2], word[2:]
        else:
            value = None
        if word not in JSRUN or value is None:
            raise Refused(f"Error: unknown option {word}")
        found[JSRUN[word]] = value
    return found, words


def jsrun(arguments):
    if "LSB_JOBID" not in os.environ:
        raise Refused("Error: jsrun must be used within an LSF allocation")
    found, words = jsrun_options(arguments)
    if not words:
        raise Refused("Error: no command to run")
    nodes = int(os.environ.get("STAND_IN_NODES", "1"))
    cores, gpus = (int(v) for v in os.environ.get("STAND_IN_NODE", "42:6").split(":"))
    if "np" in found and ("nrs" in found or "tasks" in found):
        raise Refused("Error: --np cannot be combined with --nrs or --tasks_per_rs")
    value = {}
    for key, word, default in (("nrs", "ALL_HOSTS", "1"), ("cpus", "ALL_CPUS", "1"), ("gpus", "ALL_GPUS", "0"), ("tasks", None, "1"), ("per_host", None, "0")):
        text = found.get(key, default)
        if text == word:
            value[key] = {"nrs": nodes, "cpus": cores, "gpus": gpus}[key]
        elif whole(text, 0 if key in ("gpus", "per_host") else 1):
            value[key] = int(text)
        else:
            raise Refused(f"Error: invalid value for {key}: {text}")
    if value["cpus"] > cores or value["gpus"] > gpus:
        raise Refused(f"Error: a resource set of {value['cpus']} cpus and {value['gpus']} gpus does not fit on a host of {cores} and {gpus}")
    fits = min(cores // value["cpus"], gpus // value["gpus"] if value["gpus"] else 10**9)
    each = value["per_host"] or fits
    if each > fits:
        raise Refused(f"Error: It is not possible to start job. {each} resource sets per host were asked for, {fits} fit")
    if value["nrs"] > each * nodes:
        raise Refused(f"Error: Resources needed not available: {value['nrs']} resource sets, {each} on each of {nodes} hosts")
    bind = re.fullmatch(r"none|rs|(proportional-)?packed(?::(?:smt:)?(\d+))?", found.get("bind", "packed:1"))
    if not bind:
        raise Refused(f"Error: invalid value for --bind: {found['bind']}")
    if bind[2] and int(bind[2]) * value["tasks"] > value["cpus"]:
        raise Refused(f"Error: binding of {bind[2]} cpus for each of {value['tasks']} tasks exceeds the {value['cpus']} of the resource set")
    if not re.fullmatch(r"packed|cyclic|plane:\d+", found.get("spread", "cyclic")):
        raise Refused(f"Error: invalid value for --launch_distribution: {found['spread']}")
    for part in found.get("latency", "gpu-cpu").split(","):
        if part.lower() not in ("cpu-cpu", "gpu-cpu", "gpu-gpu", "cpu-memory", "gpu-memory", "memory-memory"):
            raise Refused(f"Error: invalid value for --latency_priority: {part}")
    return run_ranks(words)
