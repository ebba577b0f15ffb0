# Hydra's mpirun, as far as the batch scripts use it: options are checked as Hydra does, and one process stands for all ranks.
import os
import re

from stand_in_support import Refused, run_ranks, whole

LAUNCHERS = ("ssh", "rsh", "fork", "slurm", "ll", "lsf", "sge", "manual", "persist")
MANAGERS = ("user", "slurm", "ll", "lsf", "sge", "pbs", "cobalt")
BIND = r"none|rr|user:[\d,+-]+|(hwthread|core|numa|socket|l[1-4]cache|l[1-4]ucache|board)(:[1-9]\d*)?"


def mpirun(arguments):
    words, counted = list(arguments), False
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word not in ("-n", "-np", "-f", "-launcher", "-rmk", "-bind-to", "-map-by", "-ppn", "-hosts"):
            raise Refused(f"unrecognized argument {word.lstrip('-')}", 255)
        if not words:
            raise Refused(f"missing argument of {word}", 255)
        value = words.pop(0)
        counted |= word in ("-n", "-np")
        if word in ("-n", "-np", "-ppn") and not whole(value):
            raise Refused(f"{word}: number of processes expected, not {value}", 255)
        if word == "-launcher" and value not in LAUNCHERS:
            raise Refused(f"unrecognized launcher {value}", 255)
        if word == "-rmk" and value not in MANAGERS:
            raise Refused(f"unrecognized resource management kernel {value}", 255)
        if word in ("-bind-to", "-map-by") and not re.fullmatch(BIND, value):
            raise Refused(f"unrecognized binding {value}", 255)
        if word == "-f" and not os.path.exists(value):
            raise Refused(f"unable to open host file: {value}", 255)
    if not counted:
        raise Refused("a number of processes is wanted here", 255)
    if not words:
        raise Refused("no executable provided", 255)
    return run_ranks(words)
