# When checkpoints are saved, who may read them, and what a file system in trouble does to a run: nothing is lost, nothing taken for another.
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from run_support import BUILD, ROOT, MemoryGroup, RunCase, Running, checkpoints_in, environment, fault, main, read_metrics, run_program

PACE = {"at": "step.begin", "do": "delay:0.1"}
FAILING = str(BUILD / "tests" / "libfailing_files.so")


def failing(call, part, error, first=1, count=1_000_000):
    return {"LD_PRELOAD": FAILING, "THINWIRE_FILE_FAULT": f"{call}:{part}:{error}:{first}:{count}"}


class Times(RunCase):
    def steps(self, config):
        return [int(g.name[5:]) for g in checkpoints_in(self.run_dir(config) / "checkpoints")]

    def test_the_clock_saves_besides_the_interval(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                config = self.config(f"clock{ranks}", train_iters=16, save_interval=0, save_interval_minutes=0.4 / 60, train_micro_batch_size_per_gpu=2)
                self.train(config, faults=[PACE], ranks=ranks, expect=0)
                steps = self.steps(config)
                self.assertEqual(steps[-1], 16)
                self.assertGreaterEqual(len(steps), 3, steps)
                # Each save starts the clock anew: 0.4 s lie between two of them, however few steps a busy machine takes in that time.
                wall = {0: 0.0} | {line["step"]: float(line["wall_s"]) for line in read_metrics(self.run_dir(config)) if "loss" in line}
                for a, b in zip([0] + steps[:-2], steps[:-1]):
                    self.assertGreater(wall[b] - wall[a], 0.399, f"{steps}: {wall}")

    def test_no_clock_and_the_default_of_half_an_hour(self):
        for name, minutes, meant in (("never", 0, 0), ("default", None, 30)):
            config = self.config(name, save_interval=0, save_interval_minutes=minutes)
            self.train(config, expect=0)
            self.assertEqual(self.steps(config), [10])
            self.assertEqual(json.loads((self.run_dir(config) / "config.resolved.json").read_text())["save_interval_minutes"], meant)

    def test_a_run_with_nothing_to_train_saves_what_it_begins_with(self):
        fresh = self.config("fresh", train_iters=0)
        self.train(fresh, expect=0)
        self.assertEqual(self.steps(fresh), [0])
        old = self.config("old", train_iters=3, save_interval=0)
        self.train(old, expect=0)
        loaded = self.config("loaded", train_iters=3, load=str(self.run_dir(old)))
        for _ in range(2):  # the second time it is there
            self.train(loaded, expect=0)
            self.assertEqual(self.steps(loaded), [3])

    def test_extra_iterations_are_saved_besides_the_interval(self):
        config = self.config("extra", save_interval=4, extra_save_iters=[0, 3, 4, 9, 10, 50])
        self.train(config, expect=0)
        self.assertEqual(self.steps(config), [0, 3, 4, 8, 9, 10])


class Storage(RunCase):
    def train_under(self, fault, config, *overrides):
        return run_program("train", "--config", config, *overrides, cwd=self.here, extra=fault)

    def test_a_read_error_is_borne_and_then_names_its_file(self):
        config = self.config("whole", train_iters=8, save_interval=4)
        self.train(config, expect=0)
        bin_file = str(self.prefix) + ".bin"
        newest = "step_000008/shard_00000.safetensors"
        places = [("passing", ("read", newest, errno.EIO, 2, 2)), ("stale", ("read", newest, errno.ESTALE)), ("closed", ("open", newest, errno.EACCES)),
                  ("files", ("open", "step_000008/manifest.json", errno.EMFILE)), ("manifest", ("read", "step_000008/manifest.json", errno.EIO)),
                  ("data", ("read", bin_file, errno.EIO)), ("index", ("open", str(self.prefix) + ".idx", errno.ESTALE))]
        for name, _ in places:
            shutil.copytree(self.run_dir(config), self.here / name)

        def judge(place):
            name, fault = place
            return name, fault, self.train_under(failing(*fault), config, f"run_dir={self.here / name}", "train_iters=12")

        with ThreadPoolExecutor(len(places)) as pool:  # nearly all of it is patience
            ended = list(pool.map(judge, places))
        for name, fault, done in ended:
            with self.subTest(name):
                self.assertNotIn("resumed from " + str(self.here / name / "checkpoints" / "step_000004"), done.out + done.err)
                self.assertIn("; trying again", done.out + done.err)
                self.assertIn(os.strerror(fault[2]), done.out + done.err)
                self.expect(done, 0 if name == "passing" else 74)
                if name != "passing":
                    self.assertIn(fault[1], done.errors()[0])
                    again = self.train_under({}, config, f"run_dir={self.here / name}", "train_iters=12")
                    self.expect(again, 0)
                    done = again
                self.assertIn("step_000008: step 8", done.out + done.err)

    def test_a_status_that_cannot_be_read_ends_no_run(self):
        for name, first, count in (("begin", 1, 1), ("start", 2, 1), ("middle", 4, 1), ("always", 1, 1_000_000)):
            with self.subTest(name):
                config = self.config(name, train_iters=6)
                self.train(config, "exit_interval=3", expect=75)
                fault = failing("read", f"{name}/status.json", errno.ESTALE, first, count)
                running = Running("train", *self.train_arguments(config, (), [dict(PACE, do="delay:1")]), cwd=self.here, extra=fault)
                states = set()
                while running.process.poll() is None:  # three seconds, of which this test may miss one or two
                    states.add(self.status(config)["state"])
                    time.sleep(0.02)
                self.assertLessEqual(states, {"preempted", "running", "finished"})
                if name != "always":  # then nobody may write over what may be another rank's end
                    self.assertIn("running", states)
                self.expect(running.finish(), 0)
                self.assertEqual((self.status(config)["state"], self.status(config)["step"]), ("finished", 6))

    def test_a_flush_that_fails_fails_the_save_and_keeps_the_older_one(self):
        config = self.config("flush", train_iters=6, save_interval=2, async_save=False)
        done = self.train_under(failing("sync", "step_000004.tmp-", errno.EIO), config)
        self.expect(done, 0)
        self.assertIn("checkpoint of step 4 not saved", done.out + done.err)
        self.assertIn("cannot flush: Input/output error", done.out + done.err)
        self.assertEqual([g.name for g in checkpoints_in(self.run_dir(config) / "checkpoints")], ["step_000002", "step_000006"])
        last = self.config("last", train_iters=4, save_interval=2)
        done = self.train_under(failing("sync", "step_000004.tmp-", errno.EIO), last)
        self.expect(done, 74)
        self.assertEqual([g.name for g in checkpoints_in(self.run_dir(last) / "checkpoints")], ["step_000002"])
        self.train(last, expect=0)

    def test_the_umask_decides_who_reads_what_is_written(self):
        for mask in (0o077, 0o027, 0o002):
            with self.subTest(oct(mask)):
                config = self.config(f"mask{mask}", trace=True, save_interval=4, train_micro_batch_size_per_gpu=2)
                before = os.umask(mask)
                try:
                    self.train(config, ranks=2, expect=0)
                    made = run_program("tokenize", "--input", self.shared / "text.txt", "--tokenizer", "byte", "--output", self.run_dir(config) / "tokens")
                    exported = run_program("checkpoint", "export", self.run_dir(config), "--format", "hf", "--output", self.run_dir(config) / "hf")
                finally:
                    os.umask(before)
                self.expect(made, 0)
                self.expect(exported, 0)
                found = [self.run_dir(config), *self.run_dir(config).rglob("*")]
                self.assertGreater(len(found), 20)
                for path in found:
                    wanted = (0o777 if path.is_dir() else 0o666) & ~mask
                    self.assertEqual(oct(path.stat().st_mode & 0o777), oct(wanted), path)


class Memory(RunCase):
    def test_a_rank_without_memory_says_what_was_planned(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                config = self.config(f"starved{ranks}", train_micro_batch_size_per_gpu=2)
                done = self.train(config, faults=[{"at": "step.begin", "step": 3, "rank": ranks - 1, "do": "nomem"}], ranks=ranks)
                self.expect(done, 74)
                self.assertRegex(done.errors()[0], r"out of memory, with .* in use by this rank; planned: .* of a rank; there are .* \(.*\); lower ")
                status = self.status(config)
                self.assertEqual((status["code"], status["requeue"]), (74, False))
                self.assertIn("out of memory", status["message"])

    def test_a_limit_of_addresses_is_found_out_or_named(self):
        config = self.config("addresses", hidden_size=1024, num_attention_heads=4, vocab_size=1024)
        priced = run_program("train", "--config", config, "--dry-run", cwd=self.here)
        planned = int(re.search(r"total .*\((\d+) bytes\)", priced.out)[1]) // 1024
        for limit, code, words in ((planned - 1024, 78, "not enough memory: "), (planned + 20480, 74, "out of memory, with ")):
            with self.subTest(limit=limit):  # libraries take more than 20 MiB of addresses
                command = ["sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh", BUILD / "train", "--config", config]
                done = subprocess.run(command, cwd=self.here, env=environment(), capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, code, done)
                self.assertRegex(done.stderr, rf"error: {words}.* of a rank; there are .* \(.*\), for a process .* of addresses \(ulimit -v\); lower ")

    def group(self, name):
        group = MemoryGroup(name, 700 << 20)
        if group.why:
            self.skipTest(group.why)
        self.addCleanup(group.close)
        return group

    def test_a_rank_that_the_kernel_kills_for_memory_is_named(self):
        group = self.group("ranks")
        config = self.config("killed", train_iters=100000, save_interval=5, train_micro_batch_size_per_gpu=2)
        running = Running("train", "--config", config, cwd=self.here, ranks=2, before=group.enter)
        self.assertTrue(running.wait_for("step 20"))
        end = time.monotonic() + 60
        while self.status(config)["step"] < 1:  # status.json is written once a second
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        start = time.monotonic()
        group.fill()
        done = running.finish()
        fault(26, seconds=time.monotonic() - start, code=done.code)
        self.assertEqual(done.code, 74, str(done))
        line = (r"(rank \d \(host .*\): killed by the kernel for want of memory, with up to .* in use by this rank; "
                r"planned: .* of a rank; there are 700.* \(.*thinwire-ranks.*\); lower .*)")
        said = re.findall("error: " + line, done.err)
        # The neighbour holds what it took for a moment longer, and the kernel may need more than one.
        self.assertTrue(1 <= len(said) == len(done.errors()) <= group.kills(), f"{group.kills()} killed; {done}")
        status = self.status(config)
        self.assertEqual((status["code"], status["requeue"]), (74, False))
        self.assertRegex(status["message"], line)
        if group.kills() == 1:  # of two, one may be told and the other stand there
            self.assertIn(status["message"], said)
        self.assertGreaterEqual(status["step"], 1)
        again = self.train(config, "train_iters=1", expect=0)
        self.assertIn(f"warning: the last start of this run ended at step {status['step']}: {status['message']}", again.out + again.err)
        self.assertNotIn("the last start", str(self.train(config, "train_iters=1", expect=0)), "told once")

    def test_the_next_start_names_what_nobody_could_say(self):
        """The machine's own count is looked at where the group is gone, as a batch job's is."""
        for gone in (False, True):
            with self.subTest(gone=gone):
                group = self.group(f"silent{gone}")
                config = self.config(f"silent{gone}", train_iters=100000, save_interval=5)
                running = Running("train", "--config", config, cwd=self.here, before=group.enter)
                self.assertTrue(running.wait_for("step 20"))
                group.fill()
                self.assertEqual(running.finish().code, -signal.SIGKILL)
                self.assertEqual(self.status(config)["state"], "running")
                if gone:
                    group.close()
                again = self.train(config, "train_iters=1", expect=0)
                file = "/proc/vmstat" if gone else group.events
                self.assertRegex(again.out + again.err, rf"warning: the last start of this run ended at step \d+ without a word, and {file} counts processes that were "
                                 r"killed by the kernel for want of memory since; planned: .* of a rank; there are 700.* \(.*thinwire-silent.*\); lower ")

    def test_a_run_killed_by_a_person_is_not_called_out_of_memory(self):
        config = self.config("by_hand", train_iters=100000, save_interval=5)
        running = Running("train", "--config", config, cwd=self.here)
        self.assertTrue(running.wait_for("step 20"))
        running.send(signal.SIGKILL)
        self.assertEqual(running.finish().code, -signal.SIGKILL)
        self.assertNotIn("the last start", str(self.train(config, "train_iters=1", expect=0)))

    def test_the_batch_script_says_so_where_nobody_else_can(self):
        group = self.group("batch")
        config = self.config("alone", train_iters=100000, save_interval=5)
        launcher = self.here / "mpirun"
        launcher.write_text('#!/bin/sh\nwhile [ "$1" != "$THINWIRE_TRAIN" ]; do shift; done\nexec "$@"\n')
        launcher.chmod(0o755)
        extra = {"PATH": f"{self.here}:{os.environ['PATH']}", "THINWIRE_ROOT": str(ROOT), "THINWIRE_TRAIN": str(BUILD / "train"), "LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "1"}
        running = Running("batch", command=["bash", ROOT / "scripts/lsf/one_node_cpu.sh", "--config", config], extra=extra, before=group.enter)
        self.assertTrue(running.wait_for("step 20"))
        group.fill()
        done = running.finish()
        self.assertEqual(done.code, 74, str(done))
        self.assertRegex(done.out, rf"failed, not queued again: killed by the kernel for want of memory: {group.path} may use {700 << 20} bytes")

    def test_the_limits_of_the_batch_system_count(self):
        config = self.config("limited")
        done = run_program("train", "--config", config, cwd=self.here, extra={"SLURM_MEM_PER_NODE": "10"})
        self.expect(done, 78)
        self.assertRegex(done.errors()[0], r"not enough memory: .*there are 10.* \(SLURM_MEM_PER_NODE\)")
        priced = run_program("train", "--config", config, "--dry-run", cwd=self.here, extra={"SLURM_MEM_PER_NODE": "10"})
        self.expect(priced, 0)
        self.assertIn("this node has 10.0 MiB (SLURM_MEM_PER_NODE)", priced.out)


if __name__ == "__main__":
    main()
