"""Children of gpu_check.py under a time limit, what they print, and the records of steps."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from measured import ROOT


def run(command, limit, env=None, cwd=ROOT):
    """Returns (exit code, output, seconds); code 124 where the time was up. Output is stdout and stderr together."""
    start = time.time()
    full = dict(os.environ, OMP_WAIT_POLICY="passive", **(env or {}))
    try:
        child = subprocess.Popen(command, cwd=cwd, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        return 127, str(error), 0.0
    try:
        output, _ = child.communicate(timeout=max(1, limit))
        code = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        code = 124
    return code, output.decode(errors="replace"), round(time.time() - start, 1)


def json_lines(text):
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            lines += [json.loads(line)] if line.startswith("{") else []
    return lines


def tail(text, lines=25):
    return "\n".join(text.splitlines()[-lines:])


def held(record, failed, summary):
    """The record of a step, which holds where nothing failed."""
    return dict(record, ok=not failed, summary=summary, error="; ".join(failed))


def equal(same):
    return "bit-equal" if same else "DIFFERS"
