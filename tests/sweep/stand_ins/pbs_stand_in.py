# PBS: qsub reads #PBS lines from the head of a script. Rules: qsub(1B), pbs_resources(7B) of OpenPBS.
import json
import os
import re

from stand_in_support import Refused, jobs, save, split, submit, take

OPTIONS = {"-a": True, "-A": True, "-c": True, "-C": True, "-e": True, "-f": False, "-h": False, "-I": False, "-j": True, "-J": True, "-k": True, "-l": True, "-m": True, "-M": True,
           "-N": True, "-o": True, "-p": True, "-P": True, "-q": True, "-r": True, "-R": True, "-S": True, "-u": True, "-v": True, "-V": False, "-W": True, "-X": False, "-z": False}
CHUNK = {"ncpus": "number", "mpiprocs": "number", "ompthreads": "number", "ngpus": "number", "naccelerators": "number", "mem": "size", "vmem": "size", "host": "text", "vnode": "text",
         "arch": "text", "accelerator": "text", "accelerator_model": "text"}
JOB_WIDE = {"walltime": "time", "min_walltime": "time", "max_walltime": "time", "cput": "time", "pcput": "time", "software": "text", "nice": "number", "file": "size", "pmem": "size", "pvmem": "size"}
OLD = ("nodes", "nodect", "ppn")
DEPENDENCIES = ("after", "afterok", "afternotok", "afterany", "before", "beforeok", "beforenotok", "beforeany", "on", "runone")
ATTRIBUTES = ("depend", "group_list", "block", "run_count", "sandbox", "stagein", "stageout", "umask", "max_run_subjobs", "release_nodes_on_stageout", "tolerate_node_failures", "pwd")


def bad(message):
    raise Refused(message, 1)


def usage(message):
    raise Refused(message + "\nusage: qsub [-a date_time] ... [script | -- command [arguments]]", 2)


def check_value(name, kind, value, what):
    good = {"number": r"\d+", "size": r"\d+([kmgtp]?[bw])?", "time": r"(\d+:)?(\d+:)?\d+(\.\d+)?", "text": r"\S+"}[kind]
    if not re.fullmatch(good, value, re.I if kind == "size" else 0):
        bad(f"Illegal attribute or resource value: {what}.{name}")


def check_select(text):
    slots = 0
    for chunk in text.split("+"):
        count, parts = 1, chunk.split(":")
        if re.fullmatch(r"\d+", parts[0]):
            count = int(parts.pop(0))
        if count < 1:
            bad(f"Illegal attribute or resource value: Resource_List.select: {chunk}")
        values = {}
        for part in parts:
            name, equals, value = part.partition("=")
            if not equals or not name:
                bad(f"Illegal attribute or resource value: Resource_List.select: {part}")
            if name in JOB_WIDE or name in OLD:
                bad(f"Resource invalid in \"select\" specification: {name}")
            if name not in CHUNK:
                bad(f"Unknown resource: {name}")
            check_value(name, CHUNK[name], value, "Resource_List.select")
            values[name] = value
        slots += count * int(values.get("mpiprocs", 1))
    return slots


def check_place(text):
    arrangement, sharing = 0, 0
    if text.startswith(":"):
        bad(f"Illegal attribute or resource value: Resource_List.place: {text}")
    for part in text.split(":"):
        arrangement += part in ("free", "pack", "scatter", "vscatter")
        sharing += part in ("excl", "shared", "exclhost")
        if part not in ("free", "pack", "scatter", "vscatter", "excl", "shared", "exclhost") and not re.fullmatch(r"group=\w+", part):
            bad(f"Illegal attribute or resource value: Resource_List.place: {text}")
    if arrangement > 1 or sharing > 1:
        bad(f"Illegal attribute or resource value: Resource_List.place: {text}")


def check_resources(lists):
    """Facts of all -l together: later ones (the command line) win."""
    found = {}
    for text in lists:
        # select and place hold no commas; job-wide requests do
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals or not name.strip():
                usage(f"qsub: illegal -l value: {part}")
            found[name.strip()] = value
    slots = 1
    if "select" in found and any(n in found for n in OLD + ("ncpus", "mpiprocs")):
        bad("Cannot combine select= with resources of a chunk or the old nodes= form")
    for name, value in found.items():
        if name == "select":
            slots = check_select(value)
        elif name == "place":
            check_place(value)
        elif name in JOB_WIDE:
            check_value(name, JOB_WIDE[name], value, "Resource_List")
        elif name in CHUNK:
            check_value(name, CHUNK[name], value, "Resource_List")
        elif name not in OLD:
            bad(f"Unknown resource: {name}")
    return found, slots


def check_array(text):
    found = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?", text)
    if not found or int(found[2]) <= int(found[1]) or found[3] == "0" or found[4] == "0":
        usage(f"qsub: illegal -J value: {text}")
    return list(range(int(found[1]), int(found[2]) + 1, int(found[3] or 1)))


def variables(text):
    """{name: value} of -v; quotation as qsub reads it: a pair with commas in quotes of one kind, its value in the other."""
    found = {}
    for pair in re.findall(r"\"[^\"]*\"|(?:[^,\"']|'[^']*')+", text):
        pair = pair.strip()
        if pair.startswith('"'):
            pair = pair[1:-1]
        name, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            usage(f"qsub: illegal -v value: {pair}")
        if value.startswith("'") and value.endswith("'") and len(value) > 1:
            value = value[1:-1]
        if equals or name in os.environ:
            found[name] = value if equals else os.environ[name]
    return found


def check(options):
    last = {k: v[-1] for k, v in options.items()}
    for name, pattern in (("-j", "oe|eo|n"), ("-r", "y|n"), ("-m", "n|[abej]+"), ("-k", "[deon]+"), ("-R", "[oe]+"), ("-N", r"[A-Za-z0-9][!-~]{0,235}"), ("-p", r"[-+]?\d{1,4}"), ("-S", r"/\S+(,/\S+)*")):
        if name in last and not re.fullmatch(pattern, last[name]):
            usage(f"qsub: illegal {name} value: {last[name]}")
    if "-p" in last and not -1024 <= int(last["-p"]) <= 1023:
        usage(f"qsub: illegal -p value: {last['-p']}")
    if "-J" in last and "-I" in last:
        usage("qsub: Job arrays cannot be interactive")
    for text in options.get("-W", []):
        for part in re.split(r",(?=\w+=)", text):
            name, equals, value = part.partition("=")
            if not equals or name not in ATTRIBUTES:
                usage(f"qsub: illegal -W value: {part}")
            if name == "depend":
                for one in value.split(","):
                    kind, _, ids = one.partition(":")
                    if kind not in DEPENDENCIES or not ids:
                        usage(f"qsub: illegal -W value: {one}")
                    for id_ in ids.split(":"):
                        if not re.fullmatch(r"\d+(\[\d*\])?(\.[\w.-]+)?", id_) and not (kind == "on" and id_.isdigit()):
                            usage(f"qsub: illegal -W value: {one}")
    wanted, slots = check_resources(options.get("-l", []))
    return last, wanted, slots


def qsub(arguments):
    given, words = take(arguments, OPTIONS, lambda m: usage(f"qsub: {m}"))
    if len(words) != 1:
        usage("qsub: one script is wanted" + (f", not also {' '.join(words[1:])}" if words else ""))
    try:
        with open(words[0], encoding="utf-8") as f:
            text = f.read()
    except OSError:
        raise Refused(f"script file {words[0]} cannot be loaded", 1) from None
    directives = {}
    for line in text.splitlines():
        if line.startswith("#PBS"):
            if not re.match(r"#PBS\s", line):
                usage(f"qsub: directive error: {line}")
            found, rest = take(split(line[4:], usage), OPTIONS, lambda m, line=line: usage(f"qsub: directive error: {line.strip()} ({m})"))
            if rest or not found:
                usage(f"qsub: directive error: {line}")
            if "-C" in found:
                usage("qsub: -C cannot be a directive")
            for k, v in found.items():
                directives.setdefault(k, []).extend(v)
        elif line.strip() and not line.startswith("#"):
            break  # directives below the first command are comments
    merged = {k: directives.get(k, []) + given.get(k, []) for k in {**directives, **given}}
    last, wanted, slots = check(merged)
    indices = check_array(last["-J"]) if "-J" in last else None
    env = {k: v for v in merged.get("-v", []) for k, v in variables(v).items()}
    if "-V" in merged:
        env = {**os.environ, **env}
    name = last.get("-N", os.path.basename(words[0]))
    number = submit("pbs", text, options=last, wanted=wanted, slots=slots, name=name, env=env, indices=indices)
    print(f"{number}{'[]' if indices is not None else ''}.stand-in")
    return 0


def number_of(job):
    return f"{job['number']}" + (f"[{job['index']}]" if job["index"] is not None else "") + ".stand-in"


def qstat(arguments):
    """Of what the scripts use: -f JOB as text, -x -t -f -F json."""
    mine = [j for j in jobs().values() if j["system"] == "pbs"]
    if "json" in arguments:
        shown = {number_of(j): {"Job_Name": j["name"], "job_state": {"pending": "Q", "running": "R", "done": "F", "killed": "F"}[j["state"]],
                                "Resource_List": j["wanted"], **({"Exit_status": j["code"]} if j["code"] is not None else {})} for j in mine}
        for j in mine:
            if j["index"] is not None:
                shown.setdefault(f"{j['number']}[].stand-in", {"Job_Name": j["name"], "job_state": "B"})
        print(json.dumps({"timestamp": 0, "Jobs": shown}))
        return 0
    id_ = arguments[-1]
    for job in mine:
        if number_of(job) == id_:
            print(f"Job Id: {id_}\n    Job_Name = {job['name']}\n    job_state = R")
            for name, value in job["wanted"].items():
                print(f"    Resource_List.{name} = {value}")
            return 0
    raise Refused(f"Unknown Job Id {id_}", 153)


def qdel(arguments):
    for id_ in arguments:
        mine = {n: j for n, j in jobs().items() if number_of(j) == id_}
        if not mine:
            raise Refused(f"Unknown Job Id {id_}", 153)
        for name, job in mine.items():
            save(name, {**job, "state": "killed"} if job["state"] == "pending" else {**job, "kill": True})


def qrerun(_):
    raise Refused("Unauthorized Request", 159)  # it is for operators
