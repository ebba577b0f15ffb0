# The batch scripts and `sweep` with launcher slurm under a real Slurm of several nodes on this machine.
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import slurm_cluster
from sweep_support import BUILD, ROOT, SweepCase, environment

sys.path.insert(0, str(ROOT / "tests" / "train"))
from run_support import checkpoints_in, facts, main, read_checkpoint  # noqa: E402

WHY_NOT = slurm_cluster.missing()
if not WHY_NOT and not shutil.which("mpirun"):
    WHY_NOT = "mpirun"
SMALL = {f"tw{i}": (2, 0) for i in range(6)}
LARGE = {f"big{i}": (64, 8) for i in range(4)}
SCRIPTS = sorted(p.name for p in (ROOT / "scripts" / "slurm").glob("*.sh"))
CONFIG = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32, "tokenizer": "byte", "vocab_size": 256,
          "data_path": str(BUILD / "data" / "tiny_text_document"), "split": "90,10,0", "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
          "hidden_dropout": 0.1, "lr": 1e-3, "eval_interval": 0, "eval_iters": 2, "save_interval": 0, "log_interval": 50, "threads_per_rank": 1}
FINAL = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
LONG, SHORT = 330, 40  # updates: Slurm looks at time limits every 30 s, so the long run takes a little more


def paced(seconds):
    return ["--allow-faults", 'faults=[{"at":"step.begin","do":"delay:%g"}]' % seconds]


@unittest.skipIf(WHY_NOT, f"not installed: {WHY_NOT} (scripts/install_deps.sh)")
class SlurmTest(SweepCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = Path(tempfile.mkdtemp(prefix="thinwire-slurm-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        cls.cluster = slurm_cluster.Cluster({**SMALL, **LARGE})
        cls.enterClassContext(cls.cluster) if hasattr(cls, "enterClassContext") else (cls.cluster.__enter__(), cls.addClassCleanup(cls.cluster.__exit__))
        for name, steps in (("long", LONG), ("short", SHORT)):
            (cls.shared / f"{name}.json").write_text(json.dumps({**CONFIG, "train_iters": steps}, indent=1))
        # Under way while the other tests run: its time limit is a minute, its warning five seconds after the start at the earliest.
        cls.walltime_job = cls.submit("many_nodes_cpu.sh", "long", "walltime", *paced(0.1), options=["--nodes=2", "--ntasks-per-node=1", "--time=1", "--signal=B:USR1@55"])
        for name in ("long", "short"):
            done = subprocess.run(["mpirun", "-launcher", "fork", "-rmk", "user", "-n", "2", BUILD / "train", "--config", cls.shared / f"{name}.json", f"run_dir={cls.shared}/{name}"],
                                  cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120)
            if done.returncode:
                raise AssertionError(done.stdout.decode())

    @classmethod
    def submit(cls, script, config, name, *arguments, options=(), env=None):
        """The job number. A small job of two ranks unless the options say otherwise; its run directory is shared/name."""
        size = [] if any(o.startswith("--nodes") for o in options) else ["--ntasks-per-node=2"]
        path = script if str(script).startswith("/") else ROOT / "scripts" / "slurm" / script
        said = cls.cluster.run("sbatch", "--parsable", "--cpus-per-task=1", "--time=5", *size, f"--output={cls.shared}/{name}.out", *options, path,
                               "--config", f"{cls.shared}/{config}.json", f"run_dir={cls.shared}/{name}", *arguments, cwd=ROOT,
                               env={"THINWIRE_TRAIN": str(BUILD / "train"), **(env or {})})
        return said.strip()

    def text(self, name):
        path = self.shared / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, condition, what, limit=60.0):
        try:
            self.wait_for(condition, what, limit)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.cluster.run('squeue', check=False)}\n" + "".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in self.shared.glob("*.out"))) from None

    def ended(self, job, states=("COMPLETED",), limit=90.0):
        """Facts of a job that has ended, in one of these states."""
        found = {}

        def over():
            found.update(self.cluster.job(job))
            return found["JobState"] in FINAL  # on its way a job shows more states than anyone can list
        self.until(over, f"the end of job {job}", limit)
        self.assertIn(found["JobState"], states, f"{found}\n{self.cluster.logs()}")
        return found

    def status_of(self, name):
        path = self.shared / name / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def cycles(self, name):
        return json.loads((self.shared / name / "batch_cycles.json").read_text())

    def after_step(self, name, step):
        self.until(lambda: self.status_of(name).get("step", 0) >= step and self.status_of(name)["state"] == "running", f"update {step} of {name}")

    def assert_same_end(self, name, twin):
        """Losses digit for digit; weights, optimizer and counters bit for bit."""
        left, right = self.shared / twin, self.shared / name
        self.assertEqual(facts(left), facts(right))
        a, b = (read_checkpoint(checkpoints_in(d / "checkpoints")[-1]) for d in (left, right))
        self.assertEqual(a["step"], b["step"])
        self.assertTrue(any(n.startswith("model/") for n in a["tensors"]))
        self.assertEqual(sorted(a["tensors"]), sorted(b["tensors"]))
        for tensor, value in a["tensors"].items():
            self.assertTrue(value == b["tensors"][tensor], f"{tensor} of {name} differs from the uninterrupted run")
        for kind in ("integers", "reals", "texts"):
            self.assertEqual(a[kind], b[kind])

    # ---- scripts

    def test_shipped_scripts_are_accepted(self):
        self.assertEqual(len(SCRIPTS), 6)
        for script in SCRIPTS:
            with self.subTest(script):
                options = ["--array=0-3%2"] if script == "array.sh" else []
                said = self.cluster.run("sbatch", "--test-only", "--partition=large", *options, ROOT / "scripts" / "slurm" / script, "x", check=False)
                self.assertRegex(said, r"Job \d+ to start at")
        said = self.cluster.run("sbatch", "--test-only", "--partition=large", "--nodes=99", ROOT / "scripts" / "slurm" / SCRIPTS[0], check=False)
        self.assertNotRegex(said, r"to start at")

    def test_one_node(self):
        job = self.submit("one_node_cpu.sh", "short", "one")
        self.assertEqual(self.ended(job)["Restarts"], "0")
        self.assertIn(": finished: ", self.text("one"))
        self.assertEqual(self.cycles("one"), {"cycles": 1, "without_progress": 0, "step": SHORT, "saved": SHORT, "open": False, "job": job})
        self.assert_same_end("one", "short")

    def test_many_nodes_by_srun_and_by_hydra(self):
        options = ["--nodes=2", "--ntasks-per-node=1"]
        jobs = {launcher: self.submit("many_nodes_cpu.sh", "short", f"many_{launcher}", options=options, env={"THINWIRE_LAUNCHER": launcher}) for launcher in ("srun", "mpirun")}
        for launcher, job in jobs.items():
            with self.subTest(launcher):
                found = self.ended(job)
                self.assertEqual((found["NumNodes"], found["NumTasks"]), ("2", "2"))
                self.assertIn(f"starting: {launcher} ", self.text(f"many_{launcher}"))
                self.assertEqual(json.loads((self.shared / f"many_{launcher}" / "config.resolved.json").read_text())["global_num_gpus"], 2)
                self.assert_same_end(f"many_{launcher}", "short")

    def test_gpu_script_on_cores(self):
        job = self.submit("one_node_gpu.sh", "short", "gpu", "device=cpu", options=["--partition=large", "--gpus-per-node=2", "--ntasks-per-node=2"])
        self.ended(job)
        self.assertIn("--gpu-bind=none", self.text("gpu"))
        self.assertNotIn("device=cuda", self.text("gpu"))
        self.assert_same_end("gpu", "short")

    def test_hooks(self):
        site = self.shared / "site.sh"
        site.write_text('module() { echo "module $*"; }\nexport THINWIRE_MODULES="mpich/4 site-tools" THINWIRE_CONTAINER="env WRAPPED=1"\n')
        job = self.submit("one_node_cpu.sh", "short", "hooks", env={"THINWIRE_SITE": str(site)})
        self.ended(job)
        self.assertIn("module load mpich/4\nmodule load site-tools\n", self.text("hooks"))
        self.assertIn("--kill-on-bad-exit=1 env WRAPPED=1 ", self.text("hooks"))

    # ---- interruptions

    def test_interruptions(self):
        """All that begins with during_, at once: most of the time they wait for Slurm."""
        names = [n for n in dir(self) if n.startswith("during_")]
        self.assertEqual(len(names), 7)
        with ThreadPoolExecutor(len(names)) as pool:
            running = {name: pool.submit(getattr(self, name)) for name in names}
        for name, outcome in running.items():
            with self.subTest(name):
                outcome.result()

    def test_walltime_signal(self):
        found = self.ended(self.walltime_job, limit=150)
        text = self.text("walltime")
        self.assertGreaterEqual(int(found["Restarts"]), 1, text)
        self.assertEqual(text.count("USR1: asking the ranks to save and leave"), int(found["Restarts"]))
        self.assertRegex(text, r"SIGUSR1: saving step \d+ and leaving with code 75")
        self.assertRegex(text, r"once more: preempted at step \d+ \(0 cycles without progress\)")
        self.assertIn("resumed from ", text)  # both lives write into one file (--open-mode=append)
        self.assertEqual(self.cycles("walltime")["cycles"], int(found["Restarts"]) + 1)
        self.assert_same_end("walltime", "long")

    def during_scontrol_requeue(self):
        job = self.submit("one_node_cpu.sh", "short", "requeued", *paced(0.1))
        self.after_step("requeued", 5)
        self.cluster.run("scontrol", "requeue", job)
        self.assertEqual(self.ended(job)["Restarts"], "1")
        self.assertRegex(self.text("requeued"), r"SIGTERM: saving step \d+")
        self.assertIn("resumed from ", self.text("requeued"))
        self.assertEqual(self.cycles("requeued")["cycles"], 2)
        self.assert_same_end("requeued", "short")

    def during_scancel(self):
        job = self.submit("one_node_cpu.sh", "short", "cancelled", *paced(0.1))
        self.after_step("cancelled", 5)
        self.cluster.run("scancel", job)
        self.assertEqual(self.ended(job, ["CANCELLED"])["Restarts"], "0")
        self.until(lambda: self.status_of("cancelled")["state"] == "preempted", "the save")
        self.assertNotIn("once more", self.text("cancelled"))
        mark = f"run_dir={self.shared}/cancelled"
        self.until(lambda: mark not in subprocess.run(["ps", "-eo", "args"], stdout=subprocess.PIPE, check=True).stdout.decode(), "no process of the run")
        step = self.status_of("cancelled")["step"]
        again = self.submit("one_node_cpu.sh", "short", "cancelled")  # by hand
        self.ended(again)
        self.assertIn(f"from step {step}, job {again} ", self.text("cancelled"))
        self.assert_same_end("cancelled", "short")

    def test_bad_configuration_is_not_queued_again(self):
        asked = self.submit("one_node_cpu.sh", "short", "bad", "lr_decay_style=sideways")
        started = self.submit("one_node_cpu.sh", "short", "bad_started", "lr_decay_style=sideways", env={"THINWIRE_CHECK": "0"})
        found = self.ended(asked, ["FAILED"])
        self.assertEqual((found["ExitCode"], found["Restarts"]), ("78:0", "0"))
        self.assertIn("failed, not queued again: train refuses this configuration", self.text("bad"))
        # Without being asked before, the ranks say it; srun may make another code of it, and nothing is decided by that.
        self.assertEqual(self.ended(started, ["FAILED"])["Restarts"], "0")
        self.assertIn("failed, not queued again: the run did not begin", self.text("bad_started"))
        for name in ("bad", "bad_started"):
            self.assertIn('lr_decay_style: "sideways" is not an allowed value', self.text(name))

    def during_bad_configuration_after_a_save_is_not_queued_again(self):
        """status.json of the earlier cycle says requeue: true; it must not be taken for this one's."""
        job = self.submit("one_node_cpu.sh", "short", "changed", *paced(0.1))
        self.after_step("changed", 3)
        self.cluster.run("scancel", "--batch", "--signal=USR1", job)
        self.until(lambda: "once more" in self.text("changed"), "the first cycle's end")

        def cancelled():  # a job on its way back into the queue does not hear it
            self.cluster.run("scancel", job, check=False)
            return self.cluster.job(job)["JobState"] in ("CANCELLED", "COMPLETED")
        self.until(cancelled, "the end of the second cycle")
        self.ended(job, ["CANCELLED"])
        self.until(lambda: self.status_of("changed")["state"] != "running", "the save")
        self.assertEqual((self.status_of("changed")["state"], self.status_of("changed")["requeue"]), ("preempted", True))
        job = self.submit("one_node_cpu.sh", "short", "changed", "hidden_size=31")
        found = self.ended(job, ["FAILED"])
        self.assertEqual((found["ExitCode"], found["Restarts"]), ("78:0", "0"), self.text("changed"))

    def during_signal_under_mpirun(self):
        job = self.submit("one_node_cpu.sh", "short", "hydra", *paced(0.1), env={"THINWIRE_LAUNCHER": "mpirun"})
        self.after_step("hydra", 5)
        self.cluster.run("scancel", "--batch", "--signal=USR1", job)
        self.assertEqual(self.ended(job)["Restarts"], "1")
        self.assertRegex(self.text("hydra"), r"SIGUSR1: saving step \d+")
        self.assert_same_end("hydra", "short")

    def during_killed_rank(self):
        job = self.submit("one_node_cpu.sh", "short", "killed", "save_interval=5", *paced(0.1))
        self.after_step("killed", 8)

        def is_rank(pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if Path(f"/proc/{pid}/comm").read_text().strip() == "tw-keeper":
                    return False  # the parent of one
            except (FileNotFoundError, ProcessLookupError):
                return False  # it has ended since
            return f"run_dir={self.shared}/killed".encode() in words and Path(f"/proc/{pid}/exe").resolve() == (BUILD / "train").resolve()
        ranks = [p for p in slurm_cluster.processes_of(self.cluster.conf) if is_rank(p)]
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[-1], signal.SIGKILL)
        self.assertEqual(self.ended(job)["Restarts"], "1")
        self.assertIn("once more: ended without a word", self.text("killed"))
        self.assert_same_end("killed", "short")

    def during_array(self):
        """The last element has the job id of the whole array; it goes back into the queue alone."""
        names, listed = ("element_0", "element_1"), self.shared / "elements"
        listed.write_text("".join(f"--config {self.shared}/short.json run_dir={self.shared}/{name} {' '.join(paced(0.1))}\n" for name in names))
        job = self.cluster.run("sbatch", "--parsable", "--cpus-per-task=1", "--time=5", "--ntasks-per-node=2", "--array=0-1", f"--output={self.shared}/element_%a.out",
                               ROOT / "scripts" / "slurm" / "array.sh", listed, cwd=ROOT, env={"THINWIRE_TRAIN": str(BUILD / "train")}).strip()
        self.after_step("element_1", 5)
        self.cluster.run("scancel", "--batch", "--signal=USR1", f"{job}_1")
        self.assertEqual([self.ended(f"{job}_{i}")["Restarts"] for i in (1, 0)], ["1", "0"])
        for name in names:
            self.assert_same_end(name, "short")

    def during_chain(self):
        first = self.submit("chain.sh", "short", "chain", *paced(0.1), options=["--job-name=links"])
        self.after_step("chain", 5)
        self.cluster.run("scancel", "--batch", "--signal=USR1", first)
        self.assertEqual(self.ended(first, ["FAILED"])["ExitCode"], "75:0")
        second = re.search(r"job (\d+) goes on", self.text("chain"))[1]
        self.ended(second)
        third = re.findall(r"job (\d+) waits for the end", self.text("chain"))[-1]
        self.assertNotEqual(third, second)
        self.ended(third, ["CANCELLED"])
        self.assertEqual(self.cluster.job(second)["TimeLimit"], self.cluster.job(first)["TimeLimit"])
        self.assert_same_end("chain", "short")

    # ---- sweeps

    def batch_sweep(self, *arguments, expect=None):
        return self.sweep(*arguments, expect=expect, extra={"SLURM_CONF": self.cluster.conf})

    def slurm_plan(self, **fields):
        launcher = {"kind": "slurm", "ranks": 2, "partition": "main", "walltime": "5m", **fields.pop("launcher", {})}
        return self.plan(launcher=launcher, **fields)

    def test_sweep_as_an_array(self):
        plan = self.slurm_plan(grid={"zero_optimization.stage": [0, 1]}, seeds=[1, 2], list=[{"name": "good"}, {"name": "odd", "train_micro_batch_size_per_gpu": 3}], launcher={"at_once": 3})
        self.batch_sweep(plan, "--out", self.out, expect=1)  # the odd ones are refused
        self.assertEqual(self.states("odd"), ["refused"] * 4)
        jobs = {s["job"] for s in self.status("good").values()}
        self.assertEqual(len(jobs), 4)
        self.assertEqual({j.split("_")[1] for j in jobs}, {"0", "1", "2", "3"})

        def finished():
            self.batch_sweep("status", self.out, "--once")
            return not {"pending", "running"} & set(self.states())
        self.until(finished, "the points")
        for id_, status in self.status("good").items():
            log = (self.out / "runs" / id_ / "log.txt").read_text()
            self.assertEqual((status["state"], status["code"], status["step"], status["attempts"]), ("finished", 0, 12, 1), log)
            self.assertEqual(self.updates(id_), list(range(1, 13)))
        # Nothing is run twice.
        code, out, _ = self.batch_sweep("run", self.out)
        self.assertIn("0 points handed to slurm", out)
        self.assertEqual(code, 1)
        # What was submitted can be submitted by hand.
        id_ = next(iter(self.status("good")))
        shutil.rmtree(self.out / "runs" / id_ / "run")
        job = self.cluster.run("sbatch", "--parsable", self.out / "runs" / id_ / "job.sh").strip()
        self.ended(job)
        self.assertEqual(self.updates(id_), list(range(1, 13)))

    def test_sweep_is_cancelled_and_resumed(self):
        plan = self.slurm_plan(keys={"train_iters": 1000000}, seeds=[1, 2, 3, 4], launcher={"at_once": 2, "extra": ["--exclude=tw[0-3]"]})
        self.batch_sweep(plan, "--out", self.out, expect=0)

        def running():
            said = [json.loads(p.read_text()) for p in self.out.glob("runs/*/run/status.json")]
            return sum(s["state"] == "running" and s["step"] > 10 for s in said)
        self.until(lambda: running() == 2, "two points under way")
        self.batch_sweep("status", self.out, "--once")
        self.assertEqual(sorted(self.states()), ["pending", "pending", "running", "running"])
        self.batch_sweep("cancel", self.out, expect=0)

        def over():
            self.batch_sweep("status", self.out, "--once")
            return set(self.states()) == {"preempted"}
        self.until(over, "the end of all points")
        self.assertEqual({s["reason"] for s in self.status().values()}, {"cancelled"})
        _, out, _ = self.batch_sweep("run", self.out)
        self.assertIn("0 points handed", out)
        _, out, _ = self.batch_sweep("resume", self.out)
        self.assertIn("4 points handed", out)
        self.until(lambda: running() == 2, "two points under way again")
        # Until it has resumed, a run's status tells the step of its last start.
        self.until(lambda: any("resumed from" in p.read_text() for p in self.out.glob("runs/*/log.txt")), "a point that goes on")
        self.batch_sweep("cancel", self.out, expect=0)

    def test_sweep_reports_failures(self):
        plan = self.slurm_plan(keys={"data_path": str(self.here / "gone_document")}, seeds=[1, 2])
        self.batch_sweep("create", plan, "--out", self.out)
        self.batch_sweep("run", self.out)

        def over():
            self.batch_sweep("status", self.out, "--once")
            return not {"pending", "running"} & set(self.states())
        self.until(over, "the points")
        for status in self.status().values():
            self.assertEqual(status["state"], "failed", status)
            self.assertIn("gone_document", status["reason"])

    # ---- the cluster itself

    def test_nothing_outlives_a_killed_owner(self):
        owner = subprocess.Popen([sys.executable, "-c", """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import slurm_cluster
with slurm_cluster.Cluster({"x0": (2, 0)}) as c:
    # squeue calls a job running before its node has heard of it: the job says itself that it is there.
    c.run("sbatch", "--wrap", f"sleep 1000 & touch {c.folder}/job; exec sleep 2000", "--output=/dev/null")
    while not os.path.exists(f"{c.folder}/job"):
        time.sleep(0.1)
    print(c.conf, flush=True)
    time.sleep(1000)
""", str(Path(__file__).parent)], stdout=subprocess.PIPE, env=environment())
        conf = owner.stdout.readline().decode().strip()
        owner.stdout.close()
        self.assertTrue(conf)
        self.assertGreater(len(slurm_cluster.processes_of(conf)), 4)
        owner.kill()
        owner.wait()
        self.until(lambda: not slurm_cluster.processes_of(conf) and not os.path.exists(os.path.dirname(conf)), "an empty machine", 30)


if __name__ == "__main__":
    if WHY_NOT:
        print(f"SKIPPED: not installed: {WHY_NOT} (scripts/install_deps.sh)")
        sys.exit(77)
    main()
