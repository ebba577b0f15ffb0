# The batch scripts of LSF, PBS and Flux under strict stand-ins: accepted as they are, refused when wrong, and run with warnings,
# refusals and runs that make no progress.
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from batch_queue import ALL, SCRIPTS, STAND_INS, Queue
from batch_wrong_variants import WRONG, WRONG_JSRUN
from sweep_support import FULL, ROOT, SweepCase, environment, main

TRAIN = STAND_INS / "train_stand_in"
COMMANDS = {"lsf": ["bsub"], "pbs": ["qsub"], "flux": ["flux", "batch"]}


class StandInCase(SweepCase):
    nodes, node = 1, "42:6"

    def setUp(self):
        super().setUp()
        self.queue = Queue(self.here / "queue", self.nodes, self.node)
        (self.here / "c.json").write_text('{"train_iters": 10}\n')

    def run_dir(self, name="run"):
        return self.here / name

    def words(self, *more, name="run"):
        return ["--config", str(self.here / "c.json"), f"run_dir={self.run_dir(name)}", *more]

    def command(self, *command, stdin=None, env=None):
        with open(stdin or os.devnull, "rb") as f:
            done = subprocess.run([str(c) for c in command], cwd=ROOT, env=self.queue.environment(**(env or {})), stdin=f, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                  timeout=30)
        return done.returncode, done.stdout.decode(errors="replace")

    def offer(self, path, *options, arguments=(), env=None):
        """What the stand-in says of a script: (code, text)."""
        system = next(s for s in COMMANDS if f"/{s}/" in str(path) or Path(path).parent.name == s or Path(path).name.startswith(s))
        env = {"THINWIRE_TRAIN": str(TRAIN), **(env or {})}
        if system == "lsf":
            return self.command("bsub", *options, stdin=path, env={**env, "THINWIRE_ARGS": " ".join(arguments)})
        if system == "pbs":
            given = ",".join(f"{k}={v}" for k, v in env.items())
            return self.command("qsub", "-v", f"THINWIRE_ARGS={' '.join(arguments)},{given}", *options, path)
        return self.command("flux", "batch", *options, path, *arguments, env=env)

    def submit(self, path, *options, arguments=None, env=None):
        code, said = self.offer(SCRIPTS / path, *options, arguments=self.words() if arguments is None else arguments, env=env)
        self.assertEqual(code, 0, said)
        return said.strip()

    def status(self, name="run"):
        path = self.run_dir(name) / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def cycles(self, name="run"):
        return json.loads((self.run_dir(name) / "batch_cycles.json").read_text())

    def at_step(self, step, name="run"):
        """A warning that is due when the run has got there, in its first start only."""
        return lambda job, _: self.status(name).get("step", 0) >= step and self.status(name)["state"] == "running"


# ---- refusals ----------------------------------------------------------------------------------------------------------------------


class Refusals(StandInCase):
    nodes = 4

    def test_scripts_are_accepted_as_they_are(self):
        options = {"pbs/array.sh": ["-J", "0-11"], "lsf/many_nodes_jsrun.sh": ["-P", "project"]}
        for path in ALL:
            if path.parts[0] != "slurm":
                with self.subTest(str(path)):
                    self.submit(path, *options.get(str(path), []))
        jobs = list(self.queue.jobs().values())
        self.assertEqual(len({j["number"] for j in jobs}), sum(p.parts[0] != "slurm" for p in ALL))
        self.assertEqual(sum(j["system"] == "lsf" and j["index"] is not None for j in jobs), 12)
        self.assertEqual({j["slots"] for j in jobs if j["system"] == "pbs" and "scatter" in j["wanted"].get("place", "")}, {16})

    def test_command_lines_that_the_scripts_show(self):
        """The lines that begin with three blanks in the head of a script, as far as they call a batch system."""
        (self.here / "runs.txt").write_text("--config a\n")
        count = 0
        for path in ALL:
            if path.parts[0] == "slurm":
                continue
            for line in (SCRIPTS / path).read_text().splitlines():
                if re.match(r"#   (THINWIRE|qsub|flux|bsub)", line):
                    shown = re.sub(r"\s{3,}\(.*", "", line[4:]).replace("[options]", "").replace("[key=value ...]", "").replace("bsub -P PROJECT", "bsub -P abc123")
                    code, said = self.command("bash", "-c", shown, env={"THINWIRE_TRAIN": str(TRAIN)})
                    self.assertEqual(code, 0, f"{path}: {shown}: {said}")
                    count += 1
        self.assertEqual(count, sum(p.parts[0] != "slurm" for p in ALL))

    def test_wrong_variants_are_refused(self):
        self.assertGreaterEqual(len(WRONG), 20)
        self.assertEqual(len({w[0] for w in WRONG}), len(WRONG))
        for name, path, old, new, options, expected in WRONG:
            with self.subTest(name):
                text = (SCRIPTS / path).read_text()
                if old is not None:
                    self.assertIn(old, text, "this test changes nothing")
                    text = text.replace(old, new)
                variant = self.here / f"{path.split('/')[0]}_variant.sh"
                variant.write_text(text)
                code, said = self.offer(variant, *options, arguments=self.words())
                self.assertNotEqual(code, 0, "accepted")
                self.assertIn(expected, said)
        self.assertEqual(self.queue.jobs(), {})

    def test_what_pbs_wants_at_once(self):
        path = SCRIPTS / "pbs" / "one_node_cpu.sh"
        self.assertIn("one script is wanted", self.command("qsub", path, "--config", "x")[1])
        self.assertIn("cannot be loaded", self.command("qsub", self.here / "gone.sh")[1])
        self.assertIn("Unauthorized", self.command("qrerun", "12.stand-in")[1])

    def test_wrong_resource_sets_are_refused(self):
        for name, words, expected in WRONG_JSRUN:
            with self.subTest(name):
                code, said = self.command("jsrun", *words.split(), "true", env={"LSB_JOBID": "1"})
                self.assertNotEqual(code, 0, "accepted")
                self.assertIn(expected, said)
        self.assertIn("allocation", self.command("jsrun", "-n", "1", "true")[1])
        self.assertEqual(self.command("jsrun", "-n", "4", "-r", "1", "-a", "6", "-c", "42", "-g", "6", "-b", "packed:7", "-d", "packed", "true", env={"LSB_JOBID": "1"})[0], 0)

    def test_wrong_launches_are_refused(self):
        for words, expected in (("mpirun -n 2 --bind-to core true", "unrecognized argument"), ("mpirun -n 0 true", "number of processes"), ("mpirun -launcher pbs -n 2 true", "launcher"),
                                ("flux run -n 4 --tasks-per-node=2 true", "per-task options"), ("flux run --gpus-per-node=2 true", "requires --nodes"), ("flux run --nodes=9 true", "unsatisfiable"),
                                ("flux run -o cpu-affinity=core true", "invalid value"), ("flux --parent batch x", "no enclosing instance")):
            with self.subTest(words):
                code, said = self.command(*words.split())
                self.assertNotEqual(code, 0)
                self.assertIn(expected, said)


# ---- runs --------------------------------------------------------------------------------------------------------------------------


def each(test):
    """The test with the plain script of each system, in a fresh queue."""
    @functools.wraps(test)
    def run(self):
        for path in Runs.PLAIN:
            with self.subTest(path):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                shutil.rmtree(self.run_dir(), ignore_errors=True)
                test(self, path)
    return run


class Runs(StandInCase):
    """What happens to a run is the same under all three; how it comes back into the queue is not."""

    PLAIN = ("lsf/one_node_cpu.sh", "pbs/one_node_cpu.sh", "flux/one_node_cpu.sh")

    @each
    def test_finishes(self, path):
        self.submit(path)
        self.assertEqual(self.queue.drain(), 1)
        job = next(iter(self.queue.jobs().values()))
        self.assertEqual((job["code"], self.status()["state"]), (0, "finished"), self.queue.all_output())
        self.assertEqual(self.cycles()["cycles"], 1)

    def test_a_warning_to_the_shell_alone_is_handed_on(self):
        self.queue.shell_alone = True
        code, said = self.offer(SCRIPTS / "lsf/one_node_cpu.sh", arguments=self.words("train_iters=30", "pace=0.05"))
        self.assertEqual(code, 0, said)
        warned = []
        self.queue.drain(warn=lambda job, seconds: not warned and self.at_step(5)(job, seconds) and not warned.append(job))
        text = self.queue.all_output()
        self.assertRegex(text, r"once more: preempted at step \d+ \(0 cycles without progress\)")
        self.assertEqual((self.status()["state"], self.status()["step"]), ("finished", 30), text)

    @each
    def test_warning_saves_and_goes_on(self, path):
        # PBS warns nobody: the script's own clock does, after half of a limit this short. Its directives come back when it submits itself.
        copy = self.here / path.replace("/", "_")
        copy.write_text((SCRIPTS / path).read_text().replace("walltime=04:00:00", "walltime=00:00:06"))
        code, said = self.offer(copy, arguments=self.words("train_iters=30", "pace=0.15" if path.startswith("pbs") else "pace=0.05"), env={"THINWIRE_SCRIPT": str(copy)})
        self.assertEqual(code, 0, said)
        warned = []

        def once(job, seconds, warned=warned):
            due = not warned and self.at_step(5)(job, seconds)
            if due:
                warned.append(job)
            return due
        starts = self.queue.drain(warn=once)
        text = self.queue.all_output()
        self.assertGreaterEqual(starts, 2, text)
        self.assertEqual((self.status()["state"], self.status()["step"]), ("finished", 30), text)
        self.assertFalse((self.run_dir() / "hurried").exists(), "the ranks were told to leave at once:\n" + text)
        self.assertRegex(text, r"once more: preempted at step \d+ \(0 cycles without progress\)")
        jobs = list(self.queue.jobs().values())
        if path.startswith("lsf"):
            self.assertEqual((len(jobs), jobs[0]["runs"]), (1, 2))  # the same number
        else:
            self.assertEqual(len(jobs), starts)  # a job that took over, with the same arguments
            self.assertEqual(jobs[0]["code"], 75)
            self.assertIn("resumed at", self.queue.output(jobs[-1]))
        self.assertEqual(self.cycles()["cycles"], starts)

    @each
    def test_refused_configuration_is_not_queued_again(self, path):
        self.submit(path, arguments=self.words("refuse=1"))
        self.assertEqual(self.queue.drain(), 1)
        self.assertEqual(next(iter(self.queue.jobs().values()))["code"], 78)
        self.assertIn("not today", self.queue.all_output())

    @each
    def test_refusal_is_not_hidden_by_an_earlier_status(self, path):
        """status.json of the cycle before says requeue: true, and the launcher's code says nothing."""
        self.run_dir().mkdir()
        (self.run_dir() / "status.json").write_text('{"state": "preempted", "code": 75, "reason": "preempted", "step": 4, "requeue": true}')
        self.submit(path, arguments=self.words("refuse=1"), env={"THINWIRE_CHECK": "0"})
        self.assertEqual(self.queue.drain(), 1, self.queue.all_output())
        self.assertIn("the run did not begin", self.queue.all_output())

    @each
    def test_mpi_that_fails_before_the_run_begins_is_tried_again(self, path):
        self.submit(path, arguments=self.words("lost=1"))
        self.assertEqual(self.queue.drain(), 3, self.queue.all_output())
        self.assertIn("once more: the run did not begin, launcher ended with code 71", self.queue.all_output())

    @each
    def test_a_job_that_lives_there_already_is_no_run_of_ours(self, path):
        """train leaves with 73, and status.json changes all the same: the other job goes on writing it."""
        self.run_dir().mkdir()
        (self.run_dir() / "status.json").write_text('{"state": "running", "code": null, "reason": "running", "step": 4, "requeue": false, "host": "n1", "pid": 7, '
                                                    '"started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:01Z"}')
        self.submit(path, arguments=self.words("busy=1"))
        self.assertEqual(self.queue.drain(), 1, self.queue.all_output())
        self.assertIn("the run did not begin, launcher ended with code 73", self.queue.all_output())
        self.assertEqual(self.status()["step"], 5)

    @each
    def test_failure_for_good_is_not_queued_again(self, path):
        self.submit(path, arguments=self.words("fails=76"))
        self.assertEqual(self.queue.drain(), 1)
        self.assertEqual(next(iter(self.queue.jobs().values()))["code"], 76)
        self.assertIn("diverged (code 76): it would fail again", self.queue.all_output())

    @each
    def test_exit_code_alone_decides_nothing(self, path):
        """A launcher that ends with LSF's requeue code, or with 75, does not bring the job back."""
        for code in (75, 99):
            self.submit(path, arguments=self.words(f"fails={code}"))
        self.assertEqual(self.queue.drain(), 2)
        for job in self.queue.jobs().values():
            self.assertNotEqual(job["code"], 99 if path.startswith("lsf") else None)

    @each
    def test_three_cycles_without_progress_are_enough(self, path):
        ways = (["stuck=1"], "preempted at step 0"), (["dies=1"], "ended without a word")
        for words, what in ways if FULL else [ways[Runs.PLAIN.index(path) % 2]]:
            shutil.rmtree(self.here / "queue", ignore_errors=True)
            shutil.rmtree(self.run_dir(), ignore_errors=True)
            self.submit(path, arguments=self.words(*words))
            self.assertEqual(self.queue.drain(), 3, self.queue.all_output())
            text = self.queue.all_output()
            self.assertEqual(text.count(f"once more: {what}"), 2, text)
            self.assertIn("not queued again: 3 cycles in a row ended at step 0", text)
            self.assertEqual(self.cycles()["without_progress"], 3)
            # By hand it may be tried again.
            self.submit(path)
            self.queue.drain()
            self.assertEqual((self.status()["state"], self.cycles()["without_progress"]), ("finished", 0))

    def test_progress_counts_anew(self):
        path = "lsf/one_node_cpu.sh"
        self.run_dir().mkdir()
        (self.run_dir() / "batch_cycles.json").write_text('{"cycles": 7, "without_progress": 2, "step": 3, "open": false}')
        (self.run_dir() / "saved").write_text("3")
        self.submit(path, arguments=self.words("pace=0.03", "train_iters=30"))
        warned = []
        self.queue.drain(warn=lambda job, s: not warned and self.at_step(6)(job, s) and not warned.append(1))
        self.assertEqual(self.status()["state"], "finished")
        self.assertEqual(self.cycles()["cycles"], 9)

    def test_script_killed_with_its_run_counts_at_the_next_start(self):
        self.run_dir().mkdir()
        (self.run_dir() / "status.json").write_text('{"state": "running", "code": null, "step": 5, "requeue": false}')
        (self.run_dir() / "batch_cycles.json").write_text('{"cycles": 4, "without_progress": 2, "step": 5, "open": true}')
        self.submit("lsf/one_node_cpu.sh")
        self.assertEqual(self.queue.drain(), 1)
        self.assertNotIn("starting:", self.queue.all_output())
        self.assertIn("3 cycles in a row ended at step 5", self.queue.all_output())

    @each
    def test_cancelled_run_is_not_queued_again(self, path):
        self.submit(path, arguments=self.words("train_iters=400", "pace=0.05"))
        thread = self.queue.start()
        self.wait_for(lambda: self.status().get("step", 0) > 2, "some updates")
        job = next(iter(self.queue.jobs().values()))
        id_ = {"lsf": str(job["number"]), "pbs": f"{job['number']}.stand-in", "flux": f"f{job['number']}Aa"}[job["system"]]
        code, said = self.command(*{"lsf": ["bkill"], "pbs": ["qdel"], "flux": ["flux", "cancel"]}[job["system"]], id_)
        self.assertEqual(code, 0, said)
        thread.join(20)
        self.assertFalse(thread.is_alive())
        self.assertEqual(len(self.queue.jobs()), 1)
        self.assertIn("not queued again by this script", self.queue.all_output())
        self.assertEqual(self.status()["state"], "preempted", "the launcher got TERM with the job, and the ranks from it")

    @each
    def test_hooks(self, path):
        site = self.here / "site.sh"
        site.write_text('module() { echo "module $*"; }\nTHINWIRE_CONTAINER="env WRAPPED=1"\nTHINWIRE_MODULES="mpi tools/3"\n')
        self.submit(path, env={"THINWIRE_SITE": str(site)})
        self.queue.drain()
        self.assertIn("module load mpi\nmodule load tools/3\n", self.queue.all_output())
        self.assertIn(f" env WRAPPED=1 {TRAIN} ", self.queue.all_output())

    def test_container_image(self):
        apptainer = self.here / "bin" / "apptainer"
        apptainer.parent.mkdir()
        apptainer.write_text('#!/bin/bash\necho "apptainer $*" >&2\nwhile [ "$1" != image.sif ]; do shift; done\nshift\nexec "$@"\n')
        apptainer.chmod(0o755)
        self.submit("lsf/one_node_gpu.sh", env={"THINWIRE_CONTAINER": "image.sif", "PATH": f"{apptainer.parent}:{self.queue.environment()['PATH']}"})
        self.queue.drain()
        self.assertIn(f"apptainer exec --nv image.sif {TRAIN} --config", self.queue.all_output())
        self.assertIn("device=cuda", self.queue.all_output())
        self.assertEqual(self.status()["state"], "finished")

    @each
    def test_no_arguments(self, path):
        self.submit(path, arguments=[])
        self.queue.drain()
        self.assertEqual(next(iter(self.queue.jobs().values()))["code"], 64)
        self.assertIn("no arguments for train", self.queue.all_output())


class Kinds(StandInCase):
    """Scripts of which not every system has one."""

    nodes = 4

    def test_resource_sets(self):
        self.submit("lsf/many_nodes_jsrun.sh", "-P", "abc", env={"THINWIRE_GPUS_PER_NODE": "6"})
        self.queue.drain()
        self.assertIn("starting: jsrun -n 4 -r 1 -a 6 -c 42 -g 6 -b packed:7 -d packed -l gpu-cpu ", self.queue.all_output())
        self.assertEqual(self.status()["state"], "finished")

    def test_resource_sets_without_gpus(self):
        self.submit("lsf/many_nodes_jsrun.sh", "-P", "abc", env={"THINWIRE_CORES_PER_NODE": "40", "THINWIRE_RANKS_PER_NODE": "8"})
        self.queue.drain()
        self.assertIn("starting: jsrun -n 32 -r 8 -a 1 -c 5 -g 0 -b packed:5 -d packed -l cpu-cpu ", self.queue.all_output())
        self.assertNotIn("device=cuda", self.queue.all_output())

    def test_warning_under_jsrun(self):
        self.submit("lsf/many_nodes_jsrun.sh", "-P", "abc", arguments=self.words("pace=0.05", "train_iters=20"))
        warned = []
        self.assertEqual(self.queue.drain(warn=lambda job, s: not warned and self.at_step(4)(job, s) and not warned.append(1)), 2)
        self.assertEqual(self.status()["state"], "finished")
        self.assertFalse((self.run_dir() / "hurried").exists())

    def test_gpu_scripts(self):
        for path in ("pbs/many_nodes_gpu.sh", "flux/many_nodes_gpu.sh", "lsf/one_node_gpu.sh", "lsf/many_nodes_cpu.sh"):
            with self.subTest(path):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                shutil.rmtree(self.run_dir(), ignore_errors=True)
                self.submit(path)
                self.queue.drain()
                self.assertEqual(self.status()["state"], "finished", self.queue.all_output())
                self.assertEqual("device=cuda" in self.queue.all_output(), "gpu" in path)

    def list_of_runs(self, count, *words):
        path = self.here / "runs.txt"
        path.write_text("".join(" ".join(self.words(*words, name=f"run{i}")) + "\n" for i in range(count)))
        return path

    def test_lsf_array(self):
        runs = self.list_of_runs(3, "train_iters=20", "pace=0.03")
        self.submit("lsf/array.sh", "-J", "mine[1-3]%2", arguments=[], env={"THINWIRE_LIST": str(runs)})
        warned = []
        starts = self.queue.drain(warn=lambda job, s: job["index"] == 2 and not warned and self.at_step(4, "run1")(job, s) and not warned.append(1))
        self.assertEqual(starts, 4)
        self.assertEqual([self.status(f"run{i}")["state"] for i in range(3)], ["finished"] * 3)
        self.assertEqual([self.cycles(f"run{i}")["cycles"] for i in range(3)], [1, 2, 1])
        self.assertEqual(self.cycles("run1")["job"], "101[2]")

    def test_array_that_is_longer_than_its_list(self):
        runs = self.list_of_runs(1)
        self.submit("lsf/array.sh", "-J", "mine[1-2]", arguments=[], env={"THINWIRE_LIST": str(runs)})
        self.queue.drain()
        self.assertEqual(sorted(j["code"] for j in self.queue.jobs().values()), [0, 78])
        self.assertIn("has no line for index 2", self.queue.all_output())

    def test_pbs_array_element_goes_on_as_a_job_of_its_own(self):
        runs = self.list_of_runs(2, "train_iters=30", "pace=0.15")
        copy = self.here / "pbs_array.sh"
        copy.write_text((SCRIPTS / "pbs" / "array.sh").read_text().replace("walltime=01:00:00", "walltime=6"))
        code, said = self.offer(copy, "-J", "0-1", "-v", f"THINWIRE_LIST={runs},THINWIRE_SCRIPT={copy}")
        self.assertEqual((code, said.strip()), (0, "101[].stand-in"))
        self.queue.drain()
        jobs = list(self.queue.jobs().values())
        self.assertGreaterEqual(len(jobs), 4)
        self.assertEqual({j["index"] for j in jobs[2:]}, {None})
        self.assertEqual([self.status(f"run{i}")["step"] for i in range(2)], [30, 30], self.queue.all_output())

    def test_lsf_chain(self):
        self.submit("lsf/chain.sh", arguments=self.words("train_iters=30", "pace=0.05"))
        warned = []
        self.assertEqual(self.queue.drain(warn=lambda job, s: not warned and self.at_step(4)(job, s) and not warned.append(1)), 2)
        jobs = list(self.queue.jobs().values())
        self.assertEqual([(j["state"], j["code"]) for j in jobs], [("done", 75), ("done", 0), ("killed", None)], self.queue.all_output())
        self.assertEqual(jobs[1]["options"]["-w"], "ended(101)")

    def test_lsf_chain_ends_when_its_jobs_are_killed_outright(self):
        """The successor is there, but three without a new update are enough."""
        self.submit("lsf/chain.sh", arguments=self.words("dies=1"))
        self.assertEqual(self.queue.drain(), 3, self.queue.all_output())
        self.assertEqual(list(self.queue.jobs().values())[-1]["state"], "killed")

    def test_lsf_chain_of_a_refused_run_has_no_successor(self):
        self.submit("lsf/chain.sh", arguments=self.words("refuse=1"))
        self.queue.drain()
        self.assertEqual(len(self.queue.jobs()), 1)


# ---- sweeps ------------------------------------------------------------------------------------------------------------------------


class Sweeps(StandInCase):
    """`sweep` with launchers lsf, pbs and flux; what they accept is run by the queue."""

    nodes = 2

    def setUp(self):
        super().setUp()
        self.build = self.here / "build"
        self.build.mkdir()
        shutil.copy(TRAIN, self.build / "train")
        # A machine without jsrun: where it is, LSF gives whole nodes, and no arrays are made.
        self.bin = self.here / "bin"
        self.bin.mkdir()
        for name in ("bsub", "bjobs", "bkill", "qsub", "qstat", "qdel", "flux", "mpirun"):
            (self.bin / name).symlink_to(STAND_INS / name)

    def sweep_here(self, *arguments, expect=None, env=None):
        env = {"PATH": self.queue.environment()["PATH"].replace(str(STAND_INS), str(self.bin), 1), **(env or {})}
        return self.sweep(*arguments, expect=expect, extra={**{k: v for k, v in self.queue.environment(**(env or {})).items() if k.startswith(("PATH", "STAND_IN"))}, "THINWIRE_BUILD": str(self.build)})

    def states_of(self):
        return [s["state"] for s in SweepCase.status(self).values()]

    def plan_for(self, kind, **fields):
        return self.plan(launcher={"kind": kind, "ranks": 4, "walltime": "30m", "queue": "batch", "account": "abc", "setup": ["export FROM_SETUP=${NOBODY_HAS_SET}1"], **fields.pop("launcher", {})}, **fields)

    def test_points_go_through(self):
        for kind in ("lsf", "pbs", "flux"):
            with self.subTest(kind):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                shutil.rmtree(self.out, ignore_errors=True)
                self.sweep_here(self.plan_for(kind, seeds=[1, 2, 3]), "--out", self.out, expect=0)
                self.assertEqual(self.states_of(), ["pending"] * 3)
                jobs = list(self.queue.jobs().values())
                self.assertEqual(len({j["number"] for j in jobs}), 3 if kind == "flux" else 1)
                self.assertEqual(len({s["job"] for s in SweepCase.status(self).values()}), 3)
                self.sweep_here("run", self.out, expect=0)  # nothing is submitted twice
                self.assertEqual(len(self.queue.jobs()), 3)
                self.queue.drain()
                self.sweep_here("status", self.out, "--once", expect=0)
                for id_, status in SweepCase.status(self).items():
                    log = (self.out / "runs" / id_ / "log.txt").read_text()
                    self.assertEqual((status["state"], status["step"], status["attempts"], status["code"]), ("finished", 12, 1, 0), log + self.queue.all_output())

    def test_what_is_asked_for(self):
        cases = [("lsf", {"ranks": 16, "nodes": 2, "threads": 4}, "-n", "16"), ("pbs", {"ranks": 16, "nodes": 2, "threads": 4}, "-l", None), ("flux", {"nodes": 2, "ranks_per_node": 8}, "--nodes", "2"),
                 ("lsf", {"ranks": 4, "gpus_per_node": 4}, "-gpu", "num=4:mode=shared:j_exclusive=yes"), ("pbs", {"ranks": 4, "gpus_per_node": 4}, "-l", None),
                 ("pbs", {"ranks": 16, "nodes": 2, "threads of the configuration": 4}, "-l", None),
                 ("lsf", {"extra": ["-sp 50"]}, "-sp", "50"), ("flux", {"extra": "--urgency=20"}, "--urgency", "20")]
        for i, (kind, launcher, option, value) in enumerate(cases):
            with self.subTest(f"{kind} {launcher}"):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                if kind == "flux":
                    launcher = {"ranks": launcher.get("nodes", 1) * launcher.get("ranks_per_node", 4), **launcher}
                launcher = dict(launcher)
                threads = launcher.pop("threads of the configuration", None)
                keys = {"keys": {"threads_per_rank": threads}} if threads else {}
                self.sweep_here(self.plan_for(kind, launcher=launcher, seeds=[1, 2], **keys), "--out", self.here / f"out{i}", expect=0)
                job = next(iter(self.queue.jobs().values()))
                if value:
                    self.assertEqual(job["options"][option], value)
                if kind == "pbs":
                    self.assertEqual(job["wanted"]["select"], "1:ncpus=4:mpiprocs=4:ngpus=4" if "gpus_per_node" in launcher else "2:ncpus=32:mpiprocs=8:ompthreads=4")
                self.assertEqual(job["options"].get("-q", job["options"].get("--queue")), "batch")

    def test_warned_points_are_followed(self):
        for kind in ("lsf", "pbs", "flux"):
            with self.subTest(kind):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                shutil.rmtree(self.out, ignore_errors=True)
                walltime, pace = ("6s", "0.15") if kind == "pbs" else ("30m", "0.05")  # half of a limit starts a busy machine's job
                plan = self.plan_for(kind, seeds=[1, 2], keys={"train_iters": 40}, launcher={"walltime": walltime})
                self.sweep_here(plan, "--out", self.out, expect=0, env={"STAND_IN_PACE": pace})
                for path in [*(self.out / "batch").glob("*.sh"), *(Path(job["script"]) for job in self.queue.jobs().values())]:  # PBS passes no environment on
                    path.write_text(path.read_text().replace("batch_common.sh\" || exit 78\n", f"batch_common.sh\" || exit 78\nexport STAND_IN_PACE={pace}\n"))
                warned = set()

                def due(job, _, warned=warned):
                    if (job["number"], job["index"]) in warned or len(warned) >= 2:
                        return False
                    texts = [json.loads(p.read_text()) for p in self.out.glob("runs/*/run/status.json")]
                    if any(t["state"] == "running" and t["step"] >= 5 for t in texts):
                        warned.add((job["number"], job["index"]))
                        return True
                    return False
                self.queue.drain(warn=due)
                self.sweep_here("status", self.out, "--once", expect=0)
                for status in SweepCase.status(self).values():
                    self.assertEqual((status["state"], status["step"]), ("finished", 40))
                    self.assertGreaterEqual(status["attempts"], 2)
                self.assertEqual(list(self.out.glob("runs/*/run/hurried")), [])

    def test_cancel_and_resume(self):
        for kind in ("lsf", "pbs", "flux"):
            with self.subTest(kind):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                shutil.rmtree(self.out, ignore_errors=True)
                self.sweep_here(self.plan_for(kind, seeds=[1, 2]), "--out", self.out, expect=0)
                self.sweep_here("cancel", self.out, expect=0)
                self.assertEqual([j["state"] for j in self.queue.jobs().values()], ["killed"] * 2)
                self.assertEqual(self.states_of(), ["preempted"] * 2)
                # A live table ends where no job is left that could change it.
                live = "import sweep_status, sweep_store, sys; sweep_status.show(sweep_store.Sweep(sys.argv[1]), None, lambda: None, True)"
                shown = subprocess.run([sys.executable, "-c", live, self.out], env=environment({"PYTHONPATH": str(ROOT / "scripts")}), capture_output=True, text=True,
                                       check=True, timeout=30)
                self.assertIn("what is open is cancelled (scripts/sweep resume)", shown.stdout)
                self.sweep_here("run", self.out)
                self.assertEqual(len(self.queue.jobs()), 2)  # cancelled stays cancelled
                self.sweep_here("resume", self.out, expect=0)
                self.queue.drain()
                self.sweep_here("status", self.out, "--once", expect=0)

    def test_failures_have_their_reason(self):
        plan = self.plan_for("lsf", seeds=[1, 2])
        self.sweep_here(plan, "--out", self.out, expect=0)
        configs = sorted(self.out.glob("runs/*/config.json"))
        configs[0].write_text(configs[0].read_text().replace('"train_iters"', '"fails": 76,\n  "train_iters"'))
        configs[1].write_text(configs[1].read_text().replace('"train_iters"', '"stuck": 1,\n  "train_iters"'))
        self.queue.drain()
        self.sweep_here("status", self.out, "--once", expect=1)
        first, second = SweepCase.status(self).values()
        self.assertEqual((first["state"], first["code"], first["reason"]), ("failed", 76, "cannot go on"))
        self.assertEqual((second["state"], second["attempts"]), ("failed", 3))
        self.assertIn("3 cycles in a row ended at step 0", second["reason"])

    def test_a_sweep_killed_while_it_submits_finds_its_jobs(self):
        plan = self.plan_for("lsf", seeds=[1, 2])
        self.sweep_here("create", plan, "--out", self.out)
        self.sweep_here("run", self.out, expect=0)
        # As if killed right after bsub: nothing of the job number was written down.
        record = next((self.out / "batch").glob("*.json"))
        facts = json.loads(record.read_text())
        record.write_text(json.dumps({**facts, "job": None, "booked": False}))
        for id_ in self.ids():
            path = self.out / "runs" / id_ / "status.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "state": "init", "job": None}))
        self.sweep_here("run", self.out, expect=0)
        self.assertEqual(len(self.queue.jobs()), 2, "submitted twice")
        self.assertEqual(self.states_of(), ["pending"] * 2)
        self.queue.drain()
        self.sweep_here("status", self.out, "--once", expect=0)

    def test_where_jsrun_is(self):
        everything = {"PATH": self.queue.environment()["PATH"]}
        self.sweep_here(self.plan_for("lsf", seeds=[1, 2], launcher={"ranks": 12, "nodes": 2, "gpus_per_node": 6}), "--out", self.out, expect=0, env=everything)
        jobs = list(self.queue.jobs().values())
        self.assertEqual([(j["index"], j["options"]["-nnodes"]) for j in jobs], [(None, "2")] * 2)
        self.queue.drain()
        self.sweep_here("status", self.out, "--once", expect=0, env=everything)
        self.assertIn("starting: jsrun -n 2 -r 1 -a 6 -c 42 -g 6", "".join(p.read_text() for p in self.out.glob("runs/*/log.txt")))

    def test_a_batch_system_that_is_not_there(self):
        plan = self.plan_for("pbs", seeds=[1, 2])
        code, _, said = self.sweep(plan, "--out", self.out, extra={"THINWIRE_BUILD": str(self.build), "PATH": "/usr/bin:/bin"})
        self.assertEqual(code, 78, said)
        self.assertIn("qsub: there is no such command here", said)


if __name__ == "__main__":
    main(300)
