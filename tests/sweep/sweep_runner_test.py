# The local runner: every way a point can end, signals, cancelling, damage by hand, orphans, a full disk, and cores that are shared out.
import fcntl
import hashlib
import json
import os
from pathlib import Path
import pty
import shutil
import signal
import struct
import subprocess
import termios
import time

from sweep_support import ROOT, SWEEP, SweepCase, environment, main, stand_in, tail_of

import sweep_process
from run_support import mount_small

LONG = {"train_iters": 100000, "save_interval": 0, "log_interval": 1000}  # until somebody ends it
CORES = sorted(os.sched_getaffinity(0))


def processes_of(out):
    """Live processes of the runs of this sweep, by their marks."""
    marks = []
    for path in (out / "runs").glob("*/status.json"):
        try:
            marks.append(json.loads(path.read_text())["mark"])
        except (ValueError, KeyError, FileNotFoundError):
            pass
    return set(sweep_process.marked([m for m in marks if m]))


class Endings(SweepCase):
    """The real `train`."""

    def test_every_way_to_end(self):
        plan = self.plan(list=[{"name": "good"}, {"name": "refused", "@ranks": 2, "model_parallel_size": 2, "num_attention_heads": 3},
                               {"name": "also", "@ranks": 3, "train_batch_size": 4}, {"name": "nodata", "data_path": "/nowhere/text"},
                               {"name": "slow", "@time_limit": 5, **LONG}, {"name": "huge", "num_layers": 2000, "hidden_size": 16384, "num_attention_heads": 2},
                               {"name": "pair", "@ranks": 2}])
        code, out, _ = self.sweep(plan, "--out", self.out)
        self.assertEqual(code, 1, out)
        states = {id_.split("-", 1)[1]: s for id_, s in self.status().items()}
        self.assertEqual({name: s["state"] for name, s in states.items()},
                         {"good": "finished", "refused": "refused", "also": "refused", "nodata": "failed", "slow": "timeout", "huge": "oom", "pair": "finished"})
        self.assertEqual({name: s["attempts"] for name, s in states.items()}, {"good": 1, "refused": 0, "also": 0, "nodata": 1, "slow": 1, "huge": 1, "pair": 1})
        self.assertEqual({name: s["code"] for name, s in states.items()}, {"good": 0, "refused": 78, "also": 78, "nodata": 65, "slow": 75, "huge": 78, "pair": 0})
        self.assertIn("model_parallel_size 2 must divide num_attention_heads 3", states["refused"]["reason"])
        self.assertNotIn("config.json", states["refused"]["reason"])  # identical refusals read identically
        self.assertIn("/nowhere/text", states["nodata"]["reason"])
        self.assertEqual(states["slow"]["reason"], "over its time limit of 5")
        self.assertIn("not enough memory", states["huge"]["reason"])
        self.assertGreater(states["slow"]["step"], 0)
        self.assertFalse((self.out / "runs" / "002-refused" / "run").exists())
        self.assertEqual(self.updates("001-good"), list(range(1, 13)))
        for part in ("finished      2", "refused: 002-refused", "timeout: 005-slow", "/7] 001-good finished after 12 steps, loss "):
            self.assertIn(part, out)
        # job.sh does the same by hand; `run` does not repeat what failed, `resume` does, and neither touches what is finished.
        before = self.status()
        self.sweep("run", self.out, expect=1)
        self.assertEqual(self.status(), before)
        again = subprocess.run([self.out / "runs" / "001-good" / "job.sh"], capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(self.updates("001-good"), list(range(1, 13)))
        self.sweep("resume", self.out, "--only", "nodata", expect=1)
        after = self.status()
        self.assertEqual(after["004-nodata"]["attempts"], 2)
        self.assertEqual({k: v for k, v in after.items() if "nodata" not in k}, {k: v for k, v in before.items() if "nodata" not in k})
        # What was out of time goes on from what it had saved.
        step = before["005-slow"]["step"]
        self.sweep("resume", self.out, "--only", "slow", expect=1)
        slow = self.status()["005-slow"]
        self.assertEqual((slow["state"], slow["from_step"]), ("timeout", step))
        self.assertGreater(slow["step"], step)

    def under_way(self):
        """Whether there are runs, and all of them have come as far as to hear signals: with more than two cores it is both."""
        running = [id_ for id_, status in self.status().items() if status["state"] == "running"]
        return running and all((self.out / "runs" / id_ / "run" / "metrics.jsonl").exists() for id_ in running)

    def test_sigterm_saves_and_the_next_runner_goes_on(self):
        plan = self.plan(list=[{"name": "one", **LONG, "train_iters": 3000}, {"name": "two", "@ranks": 2, **LONG, "train_iters": 3000}])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self.sweep("create", plan, "--out", self.out, expect=0)
            runner = self.start("run", self.out)
            self.wait_for(self.under_way, "runs under way")
            runner.send_signal(number)
            out, err = runner.communicate(timeout=60)
            self.assertEqual((runner.returncode, err), (75, ""), out)
            self.assertEqual(processes_of(self.out), set())
            states = self.states()
            self.assertIn("preempted", states, out)
            self.assertLessEqual(set(states), {"preempted", "init"})
            for id_, status in self.status().items():
                if status["state"] == "preempted":
                    self.assertEqual(tail_of(self.out / "runs" / id_ / "run" / "status.json")["state"], "preempted")
                    self.assertGreater(len(list((self.out / "runs" / id_ / "run" / "checkpoints").glob("step_*"))), 0)
        self.assertIn("nobody works on it", self.sweep("status", self.out, expect=1)[1])
        self.sweep("run", self.out, expect=0)
        for id_ in self.ids():
            self.assertEqual(self.updates(id_), list(range(1, 3001)))

    def test_orphans_of_a_killed_runner(self):
        """Its mpirun and Hydra's proxies killed too: the ranks train on, each in a session of its own, until the next runner ends them."""
        plan = self.plan(keys={**LONG, "train_iters": 200000}, launcher={"ranks": 2})
        self.sweep("create", plan, "--out", self.out, expect=0)
        id_ = self.ids()[0]
        metrics = self.out / "runs" / id_ / "run" / "metrics.jsonl"
        for how in ("without launcher", "with a stopped launcher", "with a launcher"):
            with self.subTest(how):
                before = self.status()[id_].get("step", 0)
                runner = self.start("run", self.out)
                self.wait_for(lambda: self.status()[id_]["state"] == "running" and metrics.exists() and len(self.updates(id_)) > before + 10, "updates")
                status = self.status()[id_]
                if how == "with a stopped launcher":
                    os.kill(status["pid"], signal.SIGSTOP)
                if how == "without launcher":
                    everyone = processes_of(self.out)
                    keepers = {pid for pid in everyone if Path(f"/proc/{pid}/comm").read_text().strip() == "tw-keeper"}
                    parents = {sweep_process.parent(pid) for pid in everyone} - keepers
                    # Stopped first: else mpirun passes on that the runner has died, or a proxy sees mpirun die and ends the ranks.
                    sweep_process.send(everyone & parents, signal.SIGSTOP)
                    runner.kill()
                    sweep_process.send(everyone & parents, signal.SIGKILL)
                    time.sleep(0.5)
                    self.assertEqual(len(processes_of(self.out) - keepers), 2, "the ranks should have outlived their launcher")
                    step = len(self.updates(id_))
                    self.wait_for(lambda: len(self.updates(id_)) > step, "orphans that train on")
                runner.kill()
                runner.communicate()
                second = self.start("run", self.out)
                self.wait_for(lambda: self.status()[id_]["attempts"] > status["attempts"], "the second runner")
                now = self.status()[id_]
                self.assertEqual(sweep_process.marked([status["mark"]]), {})
                self.assertGreater(now["from_step"], before, "the orphans should have saved before they left")
                second.send_signal(signal.SIGTERM)
                out, err = second.communicate(timeout=60)
                self.assertEqual(second.returncode, 75, out + err)
                self.assertNotIn("had to be killed", out)
                self.assertEqual(processes_of(self.out), set())

    def test_damage_by_hand(self):
        plan = self.plan(seeds=[1, 2, 3, 4, 5, 6])
        self.sweep(plan, "--out", self.out, expect=0)
        ids, runs = self.ids(), self.out / "runs"
        before = self.status()
        (runs / ids[0] / "status.json").write_text("{ broken")
        (runs / ids[1] / "status.json").write_text(json.dumps({"state": "banana", "attempts": -3}))
        shutil.rmtree(runs / ids[2])
        shutil.rmtree(runs / ids[3] / "run")
        config = json.loads((runs / ids[4] / "config.json").read_text())
        (runs / ids[4] / "config.json").write_text(json.dumps({**config, "train_iters": 13}))
        shutil.rmtree(runs / ids[4] / "run")
        os.unlink(runs / ids[5] / "config.json")
        (runs / ids[5] / ".status.json.half").write_text("{")
        code, out, err = self.sweep("run", self.out)
        self.assertEqual(code, 1, out + err)
        after = self.status()
        self.assertEqual([s["state"] for s in after.values()], ["finished"] * 4 + ["failed", "finished"])
        self.assertEqual([after[i]["attempts"] for i in ids], [0, 0, 1, 2, 1, 1])  # of the first two nothing was repeated
        self.assertIn("train_iters is 13, but this point has 12", after[ids[4]]["reason"])
        self.assertEqual(after[ids[5]], before[ids[5]])
        self.assertFalse((runs / ids[5] / ".status.json.half").exists())
        os.unlink(runs / ids[4] / "config.json")  # as the reason says
        self.sweep("resume", self.out, expect=0)
        self.assertEqual(self.updates(ids[4]), list(range(1, 13)))
        (self.out / "sweep.json").write_text("{")
        self.assertIn("sweep.json is damaged", self.sweep("run", self.out, expect=78)[2])
        os.unlink(self.out / "sweep.json")
        self.assertIn("sweep.json is gone, but", self.sweep("create", plan, "--out", self.out, expect=78)[2])

    def test_full_disk(self):
        reason = mount_small(self.out, 6 << 20)
        if reason:
            self.skipTest(reason)
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.out)], check=False)
        plan = self.plan(seeds=list(range(1, 9)))
        self.sweep("create", plan, "--out", self.out, expect=0)
        filler = self.out / "filler"
        code, out, err = self.sweep("run", self.out)  # eight runs do not fit
        self.assertIn(code, (1, 74), out + err)
        self.assertLess(self.states().count("finished"), 8)
        self.assertEqual(processes_of(self.out), set())
        done = {i: s for i, s in self.status().items() if s["state"] == "finished"}
        self.assertGreater(len(done), 0)
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(self.out)], check=True)
        # Nothing left at all, from the first byte on: what is finished stays, no state is torn.
        with open(filler, "wb", buffering=0) as f:
            try:
                while True:
                    f.write(b"x" * (1 << 16))
            except OSError:
                pass
        code, out, err = self.sweep("resume", self.out)
        self.assertEqual(code, 74, out + err)
        self.assertRegex(err, "error: sweep: .*No space left on device")
        code, out, err = self.sweep("collect", self.out)
        self.assertEqual(code, 74, out + err)
        self.assertRegex(err, r"error: sweep: .*results\.csv.*No space left on device")
        subprocess.run(["mount", "-o", "remount,ro", str(self.out)], check=True)
        code, out, err = self.sweep("resume", self.out)
        self.assertEqual(code, 74, out + err)
        self.assertRegex(err, "error: sweep: .*Read-only file system")
        subprocess.run(["mount", "-o", "remount,rw", str(self.out)], check=True)
        for path in (self.out / "runs").glob("*/status.json"):
            json.loads(path.read_text())
        os.unlink(filler)
        code, out, err = self.sweep("resume", self.out)
        self.assertEqual(code, 0, out + err)
        final = self.status()
        self.assertEqual({i: final[i] for i in done}, done)


class Shared(SweepCase):
    """A stand-in for `train`, which says where and when it ran."""

    WITNESS = """
begin = time.time()
time.sleep(float(os.environ.get("STAND_IN_SLEEP", "0.15")))
with open(os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(run))), "witness"), "a") as f:
    f.write(json.dumps({"run": run, "rank": rank, "begin": begin, "end": time.time(), "cores": sorted(os.sched_getaffinity(0)), "threads": config["threads_per_rank"]}) + "\\n")
if rank == 0: write("finished", 0, config["train_iters"])
"""

    def witnessed(self):
        """[{begin, end, cores, ranks, threads}] of the runs."""
        runs = {}
        for line in (self.out / "witness").read_text().splitlines():
            w = json.loads(line)
            r = runs.setdefault(w["run"], {"begin": w["begin"], "end": w["end"], "cores": set(), "ranks": 0, "threads": w["threads"]})
            r.update(begin=min(r["begin"], w["begin"]), end=max(r["end"], w["end"]), cores=r["cores"] | set(w["cores"]), ranks=r["ranks"] + 1)
        return list(runs.values())

    def check_sharing(self, cores):
        runs = self.witnessed()
        most = 0
        for run in runs:
            beside = [r for r in runs if r["begin"] < run["end"] and run["begin"] < r["end"]]
            wanted = sum(r["ranks"] * r["threads"] for r in beside)
            self.assertTrue(wanted <= len(cores) or len(beside) == 1, f"{beside} on {cores}")
            self.assertLessEqual(run["cores"], set(cores))
            for other in beside:
                if other is not run:
                    self.assertFalse(run["cores"] & other["cores"], "two runs on one core")
            most = max(most, len(beside))
        return most

    def test_cores_are_shared_out(self):
        build = stand_in(self.here / "bin", self.WITNESS)
        plan = self.plan(list=[{"name": f"p{i}", "@ranks": r, "@threads": t} for i, (r, t) in enumerate([(1, 1), (1, 1), (1, 2), (2, 1), (1, 1), (2, 2), (4, 1), (1, 1)])])
        # So long that runs that are begun together are seen together, also where one of them begins late.
        self.sweep("run", plan, "--out", self.out, expect=0, extra={"THINWIRE_BUILD": str(build), "STAND_IN_SLEEP": "1"})
        most = self.check_sharing(CORES)
        self.assertEqual(len(self.witnessed()), 8)
        if len(CORES) >= 2:
            self.assertGreater(most, 1)
        for run in self.witnessed():
            self.assertEqual(len(run["cores"]), min(len(CORES), run["ranks"] * run["threads"]))

    def test_fewer_cores_and_jobs(self):
        build = stand_in(self.here / "bin", self.WITNESS)
        for how, arguments, cores in (("taskset", [], {CORES[-1]}), ("--jobs", ["--jobs", 1], set(CORES)), ("at_once", [], set(CORES))):
            with self.subTest(how):
                shutil.rmtree(self.out, ignore_errors=True)
                plan = self.plan(seeds=[1, 2, 3, 4], launcher={"at_once": 1} if how == "at_once" else None)
                self.sweep("run", plan, "--out", self.out, *arguments, expect=0, extra={"THINWIRE_BUILD": str(build)}, cores=cores)
                self.assertEqual(self.check_sharing(cores), 1)

    def test_codes_and_cycles(self):
        build = stand_in(self.here / "bin", """
count = os.path.join(os.path.dirname(run), "count")
n = int(open(count).read()) + 1 if os.path.exists(count) else 1
open(count, "w").write(str(n))
what = config["vocab_file"]
if what == "crash": os.kill(os.getpid(), signal.SIGSEGV)
if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
if what == "liar": sys.exit(0)
if what == "stuck": write("preempted", 75, 3); sys.exit(75)
if what == "moving" and n < 7: write("preempted", 75, n); sys.exit(75)
if what == "hung": write("failed", 71, 0, "rank 1 hung"); sys.exit(71)
if what == "diverged": write("failed", 76, 2, "not finite"); sys.exit(76)
if what == "shy": print("error: something is wrong\\nhere"); sys.exit(70)
write("finished", 0, 12)
""")
        names = ["crash", "killed", "liar", "stuck", "moving", "hung", "diverged", "shy", "good"]
        plan = self.plan(list=[{"name": n, "vocab_file": n} for n in names])
        code, out, _ = self.sweep("run", plan, "--out", self.out, extra={"THINWIRE_BUILD": str(build)})
        self.assertEqual(code, 1)
        found = {i.split("-", 1)[1]: (s["state"], s["attempts"], s["code"]) for i, s in self.status().items()}
        self.assertEqual(found, {"crash": ("failed", 1, -11), "killed": ("failed", 1, -9), "liar": ("failed", 1, 0), "stuck": ("failed", 4, 75), "moving": ("finished", 7, 0),
                                 "hung": ("failed", 3, 71), "diverged": ("failed", 1, 76), "shy": ("failed", 1, 70), "good": ("finished", 1, 0)}, out)
        reasons = {i.split("-", 1)[1]: s["reason"] for i, s in self.status().items()}
        self.assertEqual(reasons["crash"], "killed by SIGSEGV")
        self.assertEqual(reasons["liar"], "ended with code 0, but run/status.json says nothing")
        self.assertEqual(reasons["stuck"], "stopped 3 times in a row without a new step: stopped by a signal or its own time limit")
        self.assertEqual(reasons["hung"], "stopped 3 times in a row without a new step: rank 1 hung")
        self.assertEqual((reasons["diverged"], reasons["shy"]), ("not finite", "something is wrong\nhere"))

    def test_one_that_does_not_leave_is_killed(self):
        build = stand_in(self.here / "bin", """
signal.signal(signal.SIGTERM, lambda *_: open(os.path.join(os.path.dirname(run), "asked"), "w").close())
write("running", None, 1)
if os.fork() == 0: os.setsid()  # and one that has moved away
time.sleep(60)
""")
        extra = {"THINWIRE_BUILD": str(build), "THINWIRE_SWEEP_GRACE": "0.5"}
        plan = self.plan(launcher={"time_limit": 3})  # enough for Python to begin on a busy machine, and not to hear SIGTERM
        begin = time.monotonic()
        self.sweep("run", plan, "--out", self.out, expect=1, extra=extra)
        self.assertLess(time.monotonic() - begin, 20)
        status = next(iter(self.status().values()))
        self.assertEqual((status["state"], status["code"], status["reason"]), ("timeout", -9, "over its time limit of 3, killed: it did not leave"))
        self.assertEqual(processes_of(self.out), set())
        # A second signal to the runner does not wait for the grace.
        shutil.rmtree(self.out)
        runner = self.start("run", self.plan(), "--out", self.out, extra={**extra, "THINWIRE_SWEEP_GRACE": "50"})
        self.wait_for(lambda: (self.out / "sweep.json").exists() and len(processes_of(self.out)) == 2, "the run")
        runner.send_signal(signal.SIGTERM)
        self.wait_for(lambda: list(self.out.glob("runs/*/asked")), "the first signal, handed on")  # two at once would be one
        self.assertIsNone(runner.poll())
        runner.send_signal(signal.SIGTERM)
        runner.communicate(timeout=20)
        self.assertEqual((runner.returncode, self.states()), (75, ["preempted"]))
        self.assertEqual(processes_of(self.out), set())

    def test_cancel(self):
        build = stand_in(self.here / "bin", """
signal.signal(signal.SIGTERM, lambda *_: (write("preempted", 75, 5), os._exit(75)))
write("running", None, 1)
time.sleep(0.1 if config["seed"] > 2 or os.path.exists(os.path.join(os.path.dirname(run), "go")) else 60)
write("finished", 0, 12)
""")
        extra = {"THINWIRE_BUILD": str(build)}
        plan = self.plan(seeds=[1, 2, 3, 4], launcher={"at_once": 2})
        runner = self.start("run", plan, "--out", self.out, extra=extra)
        self.wait_for(lambda: (self.out / "sweep.json").exists() and self.states().count("running") == min(2, len(CORES)), "runs")
        self.sweep("cancel", self.out, "--only", "seed1", expect=0, extra=extra)
        self.assertEqual(self.only("seed1")[1]["state"], "preempted")
        self.assertEqual(self.only("seed1")[1]["reason"], "cancelled")
        self.sweep("cancel", self.out, "--only", "seed2", expect=0, extra=extra)
        runner.communicate(timeout=30)
        self.assertEqual(runner.returncode, 1)
        self.assertEqual(self.states("seed3") + self.states("seed4"), ["finished"] * 2)
        self.sweep("run", self.out, expect=1, extra=extra)  # does not take them up again
        self.assertEqual(self.only("seed1")[1]["attempts"], 1)
        said = self.sweep("status", self.out, expect=1)[1]
        self.assertIn("(2 cancelled)", said)
        self.assertIn("what is open is cancelled (scripts/sweep resume)", said)
        for part in ("seed1", "seed2"):
            (self.out / "runs" / self.only(part)[0] / "go").touch()
        self.sweep("resume", self.out, expect=0, extra=extra)
        self.assertEqual(self.states(), ["finished"] * 4)
        # With nobody alive to do it, cancel ends the runs itself.
        shutil.rmtree(self.out)
        runner = self.start("run", plan, "--out", self.out, extra=extra)
        self.wait_for(lambda: (self.out / "sweep.json").exists() and "running" in self.states(), "runs")
        runner.kill()
        runner.communicate()
        self.sweep("cancel", self.out, expect=0, extra=extra)
        self.assertEqual(processes_of(self.out), set())
        self.assertNotIn("running", self.states())

    def test_live_table(self):
        build = stand_in(self.here / "bin", """
for step in range(1, 13):
    write("running", None, step)
    with open(run + "/metrics.jsonl", "a") as f:
        f.write(json.dumps({"step": step, "loss": 5.0 - step / 10, "step_ms": 250.0}) + "\\n")
    time.sleep(0.5 if config["seed"] == 1 else 0)
write("finished", 0, 12)
""")
        plan = self.plan(seeds=[1, 2, 3])
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        with subprocess.Popen([SWEEP, "run", plan, "--out", self.out], cwd=self.here, env=environment({"THINWIRE_BUILD": str(build)}), stdin=follower, stdout=follower,
                              stderr=follower) as process:
            os.close(follower)
            text = b""
            try:
                while part := os.read(leader, 65536):
                    text += part
            except OSError:
                pass  # the other end is closed
            os.close(leader)
        self.assertEqual(process.returncode, 0, text)
        text = text.decode()
        self.assertRegex(text, r"001-seed1 +\[#+ +\] +\d+/12  loss 4\.\d+  250\.0 ms  [123] s left")
        self.assertIn("\033[", text)  # drawn over and over
        self.assertRegex(text, r"about \d+ s left +\[`sweep run` on host")
        self.assertIn("[3/3] 001-seed1 finished after 12 steps, loss 3.8000", text)
        self.assertNotIn("\033", self.sweep("status", self.out, expect=0)[1])

    def test_one_runner_at_a_time(self):
        build = stand_in(self.here / "bin", """
while not os.path.exists(os.path.join(os.path.dirname(run), "go")): time.sleep(0.05)
write("finished", 0, 12)
""")
        extra = {"THINWIRE_BUILD": str(build)}
        plan = self.plan()
        runner = self.start("run", plan, "--out", self.out, extra=extra)
        self.wait_for(lambda: (self.out / "sweep.json").exists() and "running" in self.states(), "a run")
        for arguments in (["run", self.out], ["resume", self.out], [plan, "--out", self.out], ["create", plan, "--out", self.out]):
            code, _, err = self.sweep(*arguments, extra=extra)
            self.assertEqual(code, 75, arguments)
            self.assertRegex(err, rf"`sweep run` on host \S+, pid {runner.pid}, since \S+ works on this sweep; wait for it")
        self.assertIn(f"pid {runner.pid}", self.sweep("status", self.out, expect=1)[1])
        (self.out / "runs" / self.ids()[0] / "go").touch()
        runner.communicate(timeout=30)
        self.assertEqual(runner.returncode, 0)
        self.sweep("run", self.out, expect=0, extra=extra)

    def test_dry_run_writes_nothing_and_asks_once(self):
        build = stand_in(self.here / "bin", f"""
if dry:
    open({str(self.here / 'asked')!r}, "a").write("x")
    if config.get("num_layers") == 3:
        print("error: the configuration has 1 problem\\n" + words[words.index("--config") + 1] + ":7:3: num_layers: three is too many", file=sys.stderr)
        sys.exit(78)
    sys.exit(0)
write("finished", 0, 12)
""")
        extra = {"THINWIRE_BUILD": str(build)}
        plan = self.plan(set={}, grid={"num_layers": [2, 3]}, seeds=list(range(20)))
        code, out, _ = self.sweep(plan, "--out", self.out, "--dry-run", extra=extra)
        self.assertEqual((code, self.out.exists()), (1, False), out)
        self.assertIn("40 points, 20 refused", out)
        self.assertEqual((self.here / "asked").read_text(), "xx")  # the seed changes nothing that is looked at
        _, out, _ = self.sweep("run", plan, "--out", self.out, expect=1, extra=extra)
        self.assertEqual((self.here / "asked").read_text(), "xxxx")
        self.assertEqual(self.states(), ["finished"] * 20 + ["refused"] * 20)
        self.assertEqual({s["reason"] for s in self.status("num_layers3").values()}, {"num_layers: three is too many"})
        self.assertEqual(out.count("three is too many"), 1)  # said once for all
        self.sweep("run", self.out, expect=1, extra=extra)
        self.assertEqual((self.here / "asked").read_text(), "xxxx")
        self.sweep("resume", self.out, expect=1, extra=extra)  # asks again: `train` may be a better one now
        self.assertEqual((self.here / "asked").read_text(), "xxxxx")

    def test_no_programs(self):
        code, _, err = self.sweep("create", self.plan(), "--out", self.out, extra={"THINWIRE_BUILD": str(self.here / "nothing")})
        self.assertEqual(code, 1)
        self.assertIn("train is not there; build it", err)
        self.assertFalse(self.out.exists())


class InTheLab(SweepCase):
    LAB = str(ROOT / "scripts" / "lab")

    def labs(self):
        """Those of this sweep: other tests may have labs of their own."""
        mine = "sweep-" + hashlib.sha256(str(self.out.resolve()).encode()).hexdigest()[:10]
        return [n for n in (os.listdir("/run/thinwire-lab") if os.path.isdir("/run/thinwire-lab") else []) if n == mine]

    def test_lab(self):
        able = subprocess.run([self.LAB, "check"], capture_output=True, text=True, check=False)
        if able.returncode != 0:
            self.skipTest(able.stderr.strip())
        plan = self.plan(grid={"@hosts": [2, 1], "@rate": ["1gbit", "200mbit"]}, launcher={"kind": "lab", "ranks": 2})
        self.sweep("create", plan, "--out", self.out, expect=0)
        runner = self.start("run", self.out)
        self.wait_for(lambda: "finished" in self.states(), "the first point")
        runner.kill()
        runner.communicate()
        self.assertEqual(len(self.labs()), 1, "the killed runner leaves its lab")
        code, out, err = self.sweep("run", self.out)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(self.labs(), [])
        self.assertEqual(self.states(), ["finished"] * 4)
        for id_ in self.ids():
            self.assertEqual(self.updates(id_), list(range(1, 13)))
            sites = [json.loads(line) for line in (self.out / "runs" / id_ / "run" / "metrics.jsonl").read_text().splitlines()][0]["comm"]
            self.assertIn("dp.gradient", sites)


if __name__ == "__main__":
    main()
