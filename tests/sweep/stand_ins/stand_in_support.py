# What the stand-ins of batch systems share: refusing like their vendors, a folder of submitted jobs, signals passed on.
"""A stand-in checks directives and command lines by the documented rules of the program whose name it has, refuses what that would
refuse, and writes accepted jobs into $STAND_IN_DIR. batch_queue.py (in the test) runs them from there."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys


class Refused(Exception):
    """What the real program would say."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


def program(name, action):
    """Runs action(arguments); a refusal is said on stderr and is the exit code."""
    try:
        sys.exit(action(sys.argv[1:]) or 0)
    except Refused as e:
        print(f"{name}: {e}", file=sys.stderr)
        sys.exit(e.code)


def folder():
    path = os.environ.get("STAND_IN_DIR")
    if not path:
        raise Refused("STAND_IN_DIR is not set: this is a stand-in for tests", 70)
    os.makedirs(path, exist_ok=True)
    return path


def jobs():
    """{file: job} of all that was submitted, in order."""
    found = {}
    for name in sorted(os.listdir(folder())):
        if name.endswith(".job"):
            with open(os.path.join(folder(), name), encoding="utf-8") as f:
                found[name] = json.load(f)
    return found


def save(name, job):
    path = os.path.join(folder(), name)
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(job, f, indent=1)
    os.rename(path + ".new", path)


def submit(system, script, **facts):
    """Stores a job with a copy of its script; returns its number."""
    number = 101 + sum(n.endswith(".script") for n in os.listdir(folder()))
    path = os.path.join(folder(), f"{number}.script")
    with open(path, "w", encoding="utf-8") as f:
        f.write(script)
    indices = facts.pop("indices", None)
    for index in indices if indices is not None else [None]:
        save(f"{number}" + (f"-{index:04d}" if index is not None else "") + ".job",
             {"system": system, "number": number, "index": index, "script": path, "state": "pending", "code": None, "runs": 0, "cwd": os.getcwd(), **facts})
    return number


def take(words, known, refuse):
    """Options of one dash, as getopt of the old batch systems reads them: {option: [values]}, rest. known: {option: takes a value}."""
    found, words = {}, list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word not in known:
            # -n4 is -n 4 where the longest known option that fits takes a value
            fits = [k for k in known if known[k] and word.startswith(k) and len(k) == 2]
            if not fits:
                refuse(f"illegal option -- {word.lstrip('-')}")
            found.setdefault(fits[0], []).append(word[2:])
            continue
        if known[word]:
            if not words:
                refuse(f"option requires an argument -- {word.lstrip('-')}")
            found.setdefault(word, []).append(words.pop(0))
        else:
            found.setdefault(word, []).append("")
    return found, words


def split(text, refuse):
    try:
        return shlex.split(text)
    except ValueError as e:
        return refuse(f"{text}: {e}")


def whole(text, low=1, high=10**9):
    return bool(re.fullmatch(r"\d+", text)) and low <= int(text) <= high


def run_ranks(command):
    """One process stands for all ranks. It has a session of its own, as under Hydra (under jsrun even a machine), and gets every signal that
    this program gets."""
    child = subprocess.Popen(command, start_new_session=True)

    def hand_on(number, _):
        try:
            child.send_signal(number)
        except OSError:
            pass
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    note = os.environ.get("STAND_IN_RANKS")  # who runs the job may want to signal the ranks itself
    if note:
        with open(note, "w", encoding="ascii") as f:
            f.write(str(child.pid))
    code = child.wait()
    if note:
        os.unlink(note)
    return 128 - code if code < 0 else code
