#!/usr/bin/env python3
"""A run on four emulated hosts that is killed again and again, and comes back through the batch scripts' own loop.

  tests/lab/soak.py run [--kills 200]      kills of six kinds; in the end losses and state are those of a run that nobody disturbed
  tests/lab/soak.py goodput [--kills 20]   how much of the time went into steps that stayed, beside Daly's formula
  tests/lab/soak.py page                   writes the page of results from soak_cells.jsonl beside it

`run` and `goodput` stop after --minutes (13) as at the end of a walltime; the same command goes on (exit code 3: there is more to do).
All that they draw comes from --seed. --directory keeps what lies between. Exit code 77: this machine cannot; the reason is printed.

The batch script is scripts/lsf/many_nodes_cpu.sh as it is. What a batch system would do is done here: it is started again when it
ends with 99, and that alone. Below it, mpirun is that of the lab, and checkpoints lie on a file system of their own.
"""
import argparse
import fcntl
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests/train"), str(ROOT / "scripts")]
from lab_namespaces import namespace_id  # noqa: E402
from run_support import BUILD, checkpoints_in, environment, facts, read_checkpoint, read_metrics, run_program, text_of  # noqa: E402

LAB, SCRIPT = ROOT / "scripts/lab", "scripts/lsf/many_nodes_cpu.sh"
CELLS = ROOT / "docs/results/soak_cells.jsonl"
PAGE = CELLS.with_name("soak.md")
HOSTS, RANKS, WATCHDOG = 4, 8, 2
KINDS = {"rank": "SIGKILL of a rank", "node": "SIGKILL of all that runs on a host", "stop": "SIGSTOP of a rank", "link": "link down",
         "full": "disk full for 5 s", "slow": "disk frozen 9 tenths of 5 s"}
DISK_SECONDS = 5.0
MORE = 3  # exit code: to be continued
FREEZE, THAW = 0xC0045877, 0xC0045878
MODELS = {
    "run": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
            "save_interval_minutes": 2.6 / 60},
    "goodput": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 128, "train_batch_size": 16,
                "train_micro_batch_size_per_gpu": 2, "train_iters": 20000, "lr_decay_style": "constant"}}


def draw(what, kills, seed, mean):
    """The faults: kind, which rank or host, and when: steps behind the fault before, seconds behind a start, or the job's own seconds."""
    chance, plan, ends = random.Random(seed), [], 0
    while ends < kills:
        kind = chance.choices(list(KINDS), [0.32, 0.2, 0.14, 0.14, 0.1, 0.1] if what == "run" else [1, 1, 1, 1, 0, 0])[0]
        ends += kind not in ("full", "slow")
        fault = {"kind": kind, "who": chance.randrange(HOSTS if kind in ("node", "link") else RANKS)}
        if what == "goodput":
            fault["after_s"] = chance.expovariate(1 / mean)
        elif plan and kind not in ("full", "slow") and "start_s" not in plan[-1] and chance.random() < 0.15:
            fault["start_s"] = chance.uniform(0.2, 3.0)  # never twice in a row: three lives without a step are enough for the script
        else:
            fault["steps"], fault["delay_s"] = chance.randint(3, 30), chance.uniform(0.0, 0.06)
        plan.append(fault)
    return plan


class Disk:
    """The checkpoints' file system: one that can be filled and frozen."""

    def __init__(self, image, place, size):
        self.image, self.place, self.until = image, place, 0.0
        if not image.exists():
            with open(image, "wb") as f:
                f.truncate(size)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
        (place / "ballast").unlink(missing_ok=True)

    def disturb(self, kind):
        self.wait()
        self.until = time.monotonic() + DISK_SECONDS
        self.thread = threading.Thread(target=getattr(self, kind))
        self.thread.start()

    def wait(self):
        if self.until:
            self.thread.join()

    def full(self):
        with open(self.place / "ballast", "wb", buffering=0) as ballast:
            size = 1 << 20
            while time.monotonic() < self.until:  # what others give back is taken, too
                try:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, size)
                except OSError:
                    size = max(4096, size // 2)
                    time.sleep(0.02 if size == 4096 else 0.0)
        os.unlink(self.place / "ballast")

    def slow(self):
        directory = os.open(self.place, os.O_RDONLY)
        while time.monotonic() < self.until:
            fcntl.ioctl(directory, FREEZE, 0)
            time.sleep(0.45)
            fcntl.ioctl(directory, THAW, 0)
            time.sleep(0.05)
        os.close(directory)


class Soak:
    def __init__(self, what, o):
        self.what, self.here, self.o = what, Path(o.directory) / what, o
        self.here.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + 60 * o.minutes
        self.plan = draw(what, o.kills, o.seed, o.mtbf)
        self.state_file, self.cells_file = self.here / "state.json", self.here / "cells.jsonl"
        self.state = json.loads(self.state_file.read_text()) if self.state_file.exists() else {"next": 0, "life": 0, "at": 0, "clock": 0.0, "by_hand": 0}
        self.lab = f"soak-{what}-{os.getpid()}"
        self.disk = None

    # ---- what the run needs -----------------------------------------------------------------------------------------------------

    def prepare(self):
        if not (self.here / "text_text_document.bin").exists():
            (self.here / "text.txt").write_text(text_of(260 if self.what == "run" else 3000, seed=11))
            made = run_program("tokenize", "--input", self.here / "text.txt", "--tokenizer", "byte", "--output", self.here / "text")
            assert made.code == 0, made
        keys = {"vocab_size": 256, "tokenizer": "byte", "data_path": str(self.here / "text_text_document"), "split": "100,0,0", "lr": 1e-3, "eval_interval": 0,
                "model_parallel_size": 2, "zero_optimization": {"stage": 1}, "compression": {"preset": "thinwire", "adapt": False}, "threads_per_rank": 1,
                "keep_last_n_checkpoints": 2, "save_interval": 0, "log_interval": 1, "watchdog_seconds": WATCHDOG, "start_timeout_s": 10, **MODELS[self.what]}
        if self.what == "run":
            keys["train_iters"] = int(1.1 * sum(f.get("steps", 0) for f in self.plan)) + 60  # lives that are spared get ahead of the plan
        else:
            keys["save_interval_minutes"] = self.o.save_seconds / 60
        for name in ("killed", "alone"):
            (self.here / f"{name}.json").write_text(json.dumps({**keys, "run_dir": str(self.here / name), "save": str(self.here / "disk" / name)}, indent=1))
        (self.here / "bin").mkdir(exist_ok=True)
        launcher = self.here / "bin/mpirun"
        launcher.write_text(f"""#!/bin/sh
# Options of the batch script, and behind them the program: on the hosts of the lab.
while [ "$1" != "{BUILD}/train" ]; do [ "$1" != -n ] || ranks=$2; shift; done
exec "{LAB}" run -n "$ranks" --shm --name {self.lab} -- "$@"
""")
        launcher.chmod(0o755)
        self.disk = Disk(self.here / "image", self.here / "disk", (96 if self.what == "run" else 512) << 20)
        self.call("up", "--hosts", str(HOSTS), "--rate", "1gbit")
        state = json.loads(Path(f"/run/thinwire-lab/{self.lab}/state.json").read_text())
        self.holders = [h["pid"] for h in state["hosts"]]
        self.networks = [namespace_id(pid) for pid in self.holders]

    def call(self, *arguments):
        subprocess.run([str(LAB), *arguments, "--name", self.lab], check=True, stdout=subprocess.DEVNULL)

    def close(self):
        if self.disk:
            self.disk.wait()
            subprocess.run([str(LAB), "down", "--name", self.lab], check=False, stdout=subprocess.DEVNULL)
            subprocess.run(["umount", "-l", str(self.here / "disk")], check=False)

    # ---- faults -----------------------------------------------------------------------------------------------------------------

    def processes(self, host):
        """Of a host, without the one that holds it: (pid, name, rank)."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) != self.holders[host] and namespace_id(pid) == self.networks[host]:
                try:
                    number = re.search(rb"(?:^|\0)PMI_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
                    yield int(pid), Path(f"/proc/{pid}/comm").read_text().strip(), int(number[1]) if number else None
                except OSError:
                    pass

    def strike(self, fault):
        """False: there is nobody yet to be struck."""
        kind, who = fault["kind"], fault["who"]
        if kind == "link":
            self.call("link", f"h{who}", "down")
            return True
        if kind in ("full", "slow"):
            self.disk.disturb(kind)
            return True
        if kind == "node":
            victims = [pid for pid, _, _ in self.processes(who)]
        else:  # below its keeper, which has another name
            victims = [pid for pid, name, rank in self.processes(who * HOSTS // RANKS) if name == "train" and rank == who]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
            except ProcessLookupError:
                pass
        return bool(victims)

    def number(self, name, file, key):
        try:
            return json.loads((self.here / name / file).read_text())[key]
        except (OSError, ValueError, KeyError):
            return 0

    # ---- lives ------------------------------------------------------------------------------------------------------------------

    def life(self, name, faults):
        """One start of the batch script; returns its cell."""
        s, log = self.state, self.here / f"{name}.out"
        env = environment({"THINWIRE_ROOT": str(ROOT), "THINWIRE_TRAIN": f"{BUILD}/train", "LSB_JOBID": "1", "LSB_DJOB_NUMPROC": str(RANKS),
                           "PATH": f"{self.here}/bin:{os.environ['PATH']}"})
        # Kills come faster than saves: the third life in a row without a new step would be the last one by the script's rule, and is let live that long.
        last_try = self.number(name, "batch_cycles.json", "without_progress") >= 2
        farthest = self.number(name, "batch_cycles.json", "step")
        start, struck, ended_by = time.monotonic(), None, None
        with open(log, "wb") as out:
            shell = subprocess.Popen(["bash", SCRIPT, "--config", str(self.here / f"{name}.json")], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        cell = {"life": s["life"], "faults": [], "restart_s": None, "resumed": 0, "step": 0}
        with open(log, encoding="utf-8", errors="replace") as said:
            rest, due = "", None
            while True:
                code = shell.poll()
                rest += said.read()
                *lines, rest = rest.split("\n")
                for line in lines:
                    if found := re.search(r"resumed .*?step[ _]0*(\d+)", line):
                        cell["resumed"] = int(found[1])
                    elif found := re.match(r"step +(\d+)/", line):
                        cell["restart_s"] = cell["restart_s"] or time.monotonic() - start
                        cell["step"] = int(found[1])
                if code is not None:
                    break
                now = time.monotonic()
                if not ended_by and faults and s["next"] < len(self.plan) and struck is None:
                    fault = self.plan[s["next"]]
                    if due is None and (("start_s" in fault and now - start >= fault["start_s"]) or
                                        ("steps" in fault and cell["step"] >= s["at"] + fault["steps"]) or
                                        ("after_s" in fault and s["clock"] + now - start >= fault["after_s"])):
                        due = now + fault.get("delay_s", 0.0)
                    spared = last_try and fault["kind"] not in ("full", "slow") and self.number(name, "status.json", "step") <= farthest
                    if due is not None and now >= due and not spared and self.strike(fault):
                        if fault["kind"] not in ("full", "slow"):
                            struck = now
                        cell["faults"].append({k: round(v, 3) if isinstance(v, float) else v for k, v in fault.items()} | {"step": cell["step"]})
                        s["at"], due = s["at"] + fault.get("steps", 0), None  # as planned: the last one is before the last step
                        s["clock"] = start - now  # the next one is counted from here
                        s["next"] += 1
                done = self.what == "goodput" and s["next"] == len(self.plan) and cell["restart_s"]
                if not ended_by and struck is None and (now > self.deadline or done):
                    ended_by = now
                    shell.send_signal(signal.SIGUSR1)
                time.sleep(0.01)
        end = time.monotonic()
        s["clock"] += end - start
        s["life"] += 1
        if struck is not None and cell["faults"][-1]["kind"] == "link":
            self.call("link", f"h{cell['faults'][-1]['who']}", "up")
        text = log.read_text(errors="replace")
        why = re.findall(r"Z: (once more: .*|failed, .*|not queued again.*|finished.*)", text)
        cell.update(seconds=end - start, detect_s=end - struck if struck is not None else None, warned_s=end - ended_by if ended_by else None, code=code,
                    why=why[-1].replace(str(self.here), "") if why else text[-500:], unsaved=text.count("not saved"), load=os.getloadavg()[0])
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in cell.items()}

    def keep(self, cell):
        with open(self.cells_file, "a", encoding="utf-8") as f:
            f.write(json.dumps(cell) + "\n")
        self.state_file.write_text(json.dumps(self.state))
        print(f"life {cell['life']}: {' '.join(f['kind'] for f in cell['faults']) or '-'}; resumed {cell['resumed']}, reached {cell['step']}; "
              f"restart {cell['restart_s']} s, detect {cell['detect_s']} s; code {cell['code']}: {cell['why'][-150:]}", flush=True)

    def go(self):
        """Until it is finished or the time is over."""
        if self.what == "run" and not self.state.get("alone"):
            cell = self.life("alone", False)
            if cell["code"] == 99:
                return MORE
            assert cell["code"] == 0, (self.here / "alone.out").read_text()[-3000:]
            self.state.update(alone=cell["seconds"], life=0, clock=0.0)
            self.state_file.write_text(json.dumps(self.state))
        while True:
            cell = self.life("killed", True)
            self.keep(cell)
            if cell["code"] == 0 and self.what == "run":
                return self.compare()
            if self.what == "goodput" and self.state["next"] == len(self.plan) and cell["warned_s"] and time.monotonic() < self.deadline:
                return self.sum_up()
            if cell["code"] != 99:  # not queued again: full for too many saves, or three lives without a step. Somebody looks, and submits it again
                self.disk.wait()
                self.state["by_hand"] += 1
                if cell["code"] not in (74, 75):
                    print((self.here / "killed.out").read_text(errors="replace")[-4000:])
                    return 1
            if time.monotonic() > self.deadline:
                print(f"to be continued: fault {self.state['next']} of {len(self.plan)}")
                return MORE

    def cells(self):
        return [json.loads(line) for line in self.cells_file.read_text().splitlines()]

    def compare(self):
        runs = [self.here / n for n in ("alone", "killed")]
        last = [read_checkpoint(checkpoints_in(self.here / "disk" / n)[-1]) for n in ("alone", "killed")]
        def digest(value):
            return hashlib.sha256(repr(sorted(value.items())).encode()).hexdigest()[:16]
        verdict = {"kind": "run", "seed": self.o.seed, "steps": last[0]["step"], "losses_equal": facts(runs[0]) == facts(runs[1]) and len(facts(runs[0])[0]) == last[0]["step"],
                   "state_equal": last[0] == last[1], "tensors": len(last[0]["tensors"]), "state_hash": [digest(g["tensors"]) for g in last],
                   "loss": [facts(r)[0][-1]["loss"] for r in runs], "by_hand": self.state["by_hand"], "alone_s": self.state["alone"]}
        return self.publish(verdict, verdict["losses_equal"] and verdict["state_equal"])

    def sum_up(self):
        # Up to where the life behind the last kill began.
        steps = [line for line in read_metrics(self.here / "killed") if "loss" in line and line["step"] <= self.cells()[-1]["resumed"]]
        ms = [float(line["step_ms"]) for line in steps]
        stalls = [float(line["time_ms"]["checkpoint"]) / 1e3 for line in steps if float(line["time_ms"].get("checkpoint", 0)) > 0]
        return self.publish({"kind": "goodput", "seed": self.o.seed, "mtbf": self.o.mtbf, "interval_s": self.o.save_seconds, "steps": len(steps), "step_ms_median": statistics.median(ms),
                             "step_ms_mean": statistics.fmean(ms), "save_s": statistics.fmean(stalls), "saves": len(stalls), "by_hand": self.state["by_hand"]}, True)

    def publish(self, verdict, good):
        kept = [line for line in CELLS.read_text().splitlines() if json.loads(line)["kind"] != verdict["kind"]] if CELLS.exists() else []
        kept += [json.dumps({"kind": verdict["kind"], **cell}) for cell in self.cells()] + [json.dumps({**verdict, "verdict": True})]
        CELLS.write_text("\n".join(kept) + "\n")
        print(json.dumps(verdict))
        return 0 if good else 1


# ---- the page --------------------------------------------------------------------------------------------------------------------


def daly(mtbf, save, restart, interval):
    """Share of the time that stays, J. T. Daly's complete model (Future Generation Computer Systems 22, 2006): intervals of work, each with a save."""
    return interval / (mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf))


def best_interval(mtbf, save, restart):
    return max((0.01 * 1.01 ** i for i in range(1200)), key=lambda t: daly(mtbf, save, restart, t))


def kind_of(cell):
    return next((f["kind"] for f in cell["faults"] if f["kind"] not in ("full", "slow")), None)


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})" if values else "–"


def page():
    every = [json.loads(line) for line in CELLS.read_text().splitlines()]
    verdicts = {c["kind"]: c for c in every if c.get("verdict")}
    lives = {k: [c for c in every if c["kind"] == k and not c.get("verdict")] for k in ("run", "goodput")}
    run, kills = verdicts["run"], [c for c in lives["run"] if kind_of(c)]
    text = f"# Killed {len(kills)} times: the same bits, and the time that it costs\n\n"
    text += "| fault | times | job ended after s, median (range) | what the batch script said |\n|---|---|---|---|\n"
    for kind, words in KINDS.items():
        hit = [c for c in lives["run"] if any(f["kind"] == kind for f in c["faults"])]
        ended = [c for c in hit if kind_of(c) == kind]
        said = sorted({re.sub(r" at step.*| \(\d.*|; its message.*", "", c["why"]).replace("once more: ", "") for c in ended})
        times = sum(f["kind"] == kind for c in lives["run"] for f in c["faults"])
        text += f"| {words} | {times} | {spread([c['detect_s'] for c in ended])} | {'; '.join(said) or 'goes on; ' + str(sum(c['unsaved'] for c in hit)) + ' saves failed' if kind == 'full' else '; '.join(said) or 'goes on'} |\n"
    early = sum("start_s" in f for c in kills for f in c["faults"])
    again = sum(c["step"] - c["resumed"] for c in lives["run"] if c["step"]) - run["steps"]
    text += f"""
- {len(kills)} kills ended {len(kills)} of {len(lives['run'])} jobs, {early} of them while the ranks were starting. Losses of all {run['steps']} steps and the last checkpoint ({run['tensors']} tensors: weights, optimizer, residuals, replicas; counters, texts) are {'**bit-equal**' if run['losses_equal'] and run['state_equal'] else '**NOT equal**'} to those of a run that nobody disturbed (`{run['state_hash'][1]}`, `{run['state_hash'][0]}`).
- {again} steps were done again: {100 * again / run['steps']:.0f} %, since kills came faster than saves. A start took {spread([c['restart_s'] for c in lives['run'] if c['restart_s']])} s until its first step.
- Submitted by hand: {run['by_hand']} times: a start on a full disk, or three saves that fail, end with 74, which is not queued again. The third job in a row without a new step, which would be the last one by the script's rule, was let run until it had one.{run.get('note', '')}
"""
    if good := verdicts.get("goodput"):
        cells = lives["goodput"]
        struck = [c for c in cells if c["detect_s"] is not None]
        # What the pieces of this measurement cost is nobody's fault: the time behind a warning, and the start after it.
        # The first start is paid for by the last one, behind which nothing counts.
        warned = [c["warned_s"] for c in cells[:-1]]
        wall = sum(c["seconds"] - (w or 0) for c, w in zip(cells, warned))
        wall -= sum(c["restart_s"] or 0 for c, w in zip(cells[1:], warned) if w is not None)
        wall += cells[-1]["restart_s"] - cells[0]["restart_s"]
        detect = statistics.fmean(c["detect_s"] for c in struck)
        restart = statistics.fmean(c["restart_s"] for c in cells if c["restart_s"]) - good["step_ms_median"] / 1e3
        useful = {k: good["steps"] * good[f"step_ms_{k}"] / 1e3 for k in ("median", "mean")}
        real = wall / len(struck)
        text += "\n## Goodput\n\n| | s |\n|---|---|\n"
        text += f"| a save holds the ranks up (mean of {good['saves']}) | {good['save_s']:.3f} |\n| from a kill to the end of the job (mean of {len(struck)}) | {detect:.2f} |\n"
        text += f"| from the next start to its first step (mean) | {restart:.2f} |\n| between kills: drawn with this mean; as it came out | {good['mtbf']:.0f}; {real:.1f} |\n"
        text += f"| from save to save: chosen; best by Daly | {good['interval_s']:.1f}; {best_interval(real, good['save_s'], detect + restart):.1f} |\n| all | {wall:.0f} |\n"
        text += f"| {good['steps']} steps that stayed, at their mean; at their median | {useful['mean']:.0f}; {useful['median']:.0f} |\n"
        tau = best_interval(real, good["save_s"], detect + restart)
        bound = daly(real, good["save_s"], detect + restart, tau)
        ratio = {k: v / wall / bound for k, v in useful.items()}
        text += f"""
- Goodput **{useful['mean'] / wall:.3f}**; Daly's optimum for these times {bound:.3f}: **{100 * ratio['mean']:.0f} % of it** ({100 * ratio['median']:.0f} % with the median step). The target, 90 %, is {'met' if ratio['mean'] >= 0.9 else 'missed'}{'' if min(ratio.values()) >= 0.9 or ratio['mean'] < 0.9 else ' with the mean, missed with the median'}.
- Mean time between kills is {real / (good['save_s'] + detect + restart):.1f} x (save + detect + restart); 10 x is what was asked for.
- The same kills as above without those of the disk, at random moments of the job's own time, starts included. `watchdog_seconds` is {WATCHDOG}: with the default of 600 s a stopped rank or a pulled cable costs ten minutes, whatever the checkpoints.
"""
    text += f"""
How: {HOSTS} hosts of [the lab](../lab.md) on one machine of two cores that other programs used as well, {RANKS} ranks (tensor 2 x data 4, ZeRO-1, preset `thinwire`), `{SCRIPT}` as it is; a stand-in for LSF starts it again when it ends with 99, and never otherwise. Kills, victims and moments come from a seed; raw records are in `soak_cells.jsonl`.

    tests/lab/soak.py run; tests/lab/soak.py goodput; tests/lab/soak.py page    # the first two again while they end with 3
"""
    PAGE.write_text(text)
    return 0


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["run", "goodput", "page"])
    options.add_argument("--kills", type=int)
    options.add_argument("--seed", type=int, default=24)
    options.add_argument("--minutes", type=float, default=13)
    options.add_argument("--mtbf", type=float, default=40, help="mean seconds between the kills of goodput")
    options.add_argument("--save-seconds", type=float, default=2, help="between the saves of goodput")
    options.add_argument("--directory", default="/var/tmp/thinwire-soak")
    o = options.parse_args()
    if o.what == "page":
        return page()
    o.kills = o.kills or (200 if o.what == "run" else 20)
    can = subprocess.run([str(LAB), "check"], capture_output=True, text=True, check=False)
    if can.returncode != 0 or not shutil.which("mkfs.ext4"):
        print(can.stderr.strip() or "mkfs.ext4 is missing (package e2fsprogs)")
        return 77
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, lambda number, _: sys.exit(128 + number))
    soak = Soak(o.what, o)
    try:
        soak.prepare()
        return soak.go()
    finally:
        soak.close()


if __name__ == "__main__":
    sys.exit(main())
