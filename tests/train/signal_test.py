# Preemption: a signal at any moment ends the run with code 75 and a checkpoint, and the same command goes on to the same bits.
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from run_support import RunCase, checkpoints_in, facts, main

COMMON = {"train_iters": 12, "save_interval": 4, "eval_interval": 5, "eval_iters": 3, "hidden_dropout": 0.1}
PACE = {"at": "step.begin", "do": "delay:0.03"}
HOLD = "delay:3"  # of a moment in which a signal is to come: on a busy machine the test reads of it, or sends, a second too late


class Signals(RunCase):
    def undisturbed(self):
        config = self.config("alone", **COMMON)
        self.train(config, expect=0)
        return config

    def assert_preempted(self, done, config, reason):
        self.expect(done, 75)
        status = self.status(config)
        self.assertEqual((status["state"], status["code"], status["reason"], status["requeue"]), ("preempted", 75, "preempted", True), status)
        self.assertIn(f"{reason}: saving step {status['step']}", done.err)
        newest = checkpoints_in(self.run_dir(config) / "checkpoints")[-1]
        self.assertEqual(int(newest.name[5:11]), status["step"])
        return status["step"]

    def finish_and_compare(self, alone, config):
        self.go_on(config)
        status = self.status(config)
        self.assertEqual((status["state"], status["code"], status["requeue"], status["step"]), ("finished", 0, False, COMMON["train_iters"]))
        self.assert_same_run(alone, config)

    def test_moments(self):
        alone = self.undisturbed()
        moments = [
            # name, signal, a line that says the moment has come, planned faults, steps at which it may leave
            ("starting", signal.SIGTERM, "memory:", [{"at": "step.begin", "step": 1, "do": HOLD}], range(0, 2)),
            ("first step", signal.SIGINT, "delay at step.begin, step 1", [{"at": "step.begin", "step": 1, "do": HOLD}], [1]),
            ("mid run", signal.SIGUSR1, "delay at step.end, step 6", [{"at": "step.end", "step": 6, "do": HOLD}], [6]),
            ("copying a save", signal.SIGTERM, "delay at save.after_copy", [{"at": "save.after_copy", "step": 4, "do": HOLD}], [4]),
            ("writing a save", signal.SIGINT, "delay at save.mid_shard", [{"at": "save.mid_shard", "step": 4, "do": HOLD}, PACE], range(4, 9)),
            ("after the rename", signal.SIGUSR1, "delay at save.after_rename", [{"at": "save.after_rename", "step": 4, "do": HOLD}, PACE], range(4, 9)),
            ("step of an evaluation", signal.SIGTERM, "delay at step.end, step 5", [{"at": "step.end", "step": 5, "do": HOLD}], [5]),
        ]

        def judge(moment):
            name, number, line, faults, steps = moment
            config = self.config(name.replace(" ", "_"), **COMMON)
            life = self.start(config, faults=faults)
            self.assertTrue(life.wait_for(line), name)
            life.send(number)
            done = life.finish()
            step = self.assert_preempted(done, config, signal.Signals(number).name)
            self.assertIn(step, steps, name)
            if name == "step of an evaluation":  # it waits for the next start; other signals may come in the middle of one
                self.assertNotIn("eval at step 5", done.out + done.err)
            self.finish_and_compare(alone, config)

        with ThreadPoolExecutor(3) as pool:  # most of it is waiting
            list(pool.map(judge, moments))

    def test_a_long_evaluation_is_left_for_the_next_start(self):
        keys = {"train_iters": 6, "save_interval": 4, "eval_interval": 3, "eval_iters": 150, "hidden_dropout": 0.1}
        alone = self.config("alone", **keys)
        self.train(alone, expect=0)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                config = self.config(f"stopped{ranks}", pipe_parallel_size=ranks, **keys)
                life = self.start(config, ranks=ranks)
                self.assertTrue(life.wait_for("step 3/6"))
                life.send(signal.SIGUSR1)
                done = life.finish()
                self.assertEqual(self.assert_preempted(done, config, "SIGUSR1"), 3)
                self.assertNotIn("eval at step 3", done.out + done.err)
                self.go_on(config, ranks=ranks)
                if ranks == 1:
                    self.assert_same_run(alone, config)
                else:
                    steps = [[line["step"] for line in facts(self.run_dir(c))[1]] for c in (alone, config)]
                    self.assertEqual(*steps)

    def test_an_evaluation_due_behind_the_last_step_stays_the_same_one(self):
        keys = dict(COMMON, eval_interval=6)
        alone, config = self.config("alone", **keys), self.config("stopped", **keys)
        self.train(alone, expect=0)
        life = self.start(config, faults=[{"at": "step.end", "step": 12, "do": HOLD}])
        self.assertTrue(life.wait_for("delay at step.end, step 12"))
        life.send(signal.SIGTERM)
        self.assertEqual(self.assert_preempted(life.finish(), config, "SIGTERM"), 12)
        self.finish_and_compare(alone, config)

    def test_a_failed_save_gets_a_second_chance(self):
        alone = self.undisturbed()
        config = self.config("retried", async_save=False, **COMMON)
        # The save of step 4 fails, which alone would be allowed; but the signal makes it the last one, so it is tried once more.
        life = self.start(config, faults=[{"at": "save.after_copy", "step": 4, "do": HOLD},
                                          {"at": "save.mid_shard", "step": 4, "do": "enospc"}])
        self.assertTrue(life.wait_for("delay at save.after_copy, step 4"))
        life.send(signal.SIGTERM)
        done = life.finish()
        self.expect(done, 74)
        self.assertEqual(done.err.count("enospc at save.mid_shard, step 4"), 2, str(done))
        self.assertFalse(self.status(config)["requeue"])
        self.finish_and_compare(alone, config)

    def test_again_and_again(self):
        alone = self.undisturbed()
        config = self.config("restless", **COMMON)
        chance = random.Random(5)
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
        lives, code = 0, 75
        while code == 75:
            self.assertLess(lives, 40, "no life makes progress")
            # The first life cannot come to its end before it is signalled.
            life = self.start(config, faults=[PACE if lives else dict(PACE, do="delay:0.3")])
            if life.wait_for("| loss "):
                time.sleep(chance.uniform(0.0, 0.08))
                life.send(numbers[lives % 3])
            code = life.finish().code
            lives += 1
        self.assertEqual(code, 0)
        self.assertGreater(lives, 1)
        self.assert_same_run(alone, config)

    def test_second_signal_leaves_at_once(self):
        alone = self.undisturbed()
        config = self.config("hasty", **COMMON)
        life = self.start(config, faults=[{"at": "step.begin", "step": 6, "do": "delay:60"}])
        self.assertTrue(life.wait_for("delay at step.begin, step 6"))
        life.send(signal.SIGTERM)
        time.sleep(0.1)
        # The same wish by another way: batch systems signal script, launcher and ranks alike.
        life.send(signal.SIGTERM)
        life.send(signal.SIGUSR1)
        time.sleep(5)
        self.assertIsNone(life.process.poll(), "the first signal waits for the end of the step")
        life.send(signal.SIGTERM)
        done = life.finish(limit=20)
        self.expect(done, 75)
        self.assertIn("without the save of this step", done.err)
        self.assertEqual(self.status(config)["state"], "running")
        self.finish_and_compare(alone, config)  # from step 4, the last that was saved

    def test_the_limit_behind_its_warning_does_not_cut_a_save_short(self):
        # As Slurm does: USR1 some time before the limit, TERM at the limit, KILL half a minute later.
        config = self.config("warned", **COMMON)
        life = self.start(config, faults=[{"at": "step.begin", "step": 6, "do": "delay:6"}])
        self.assertTrue(life.wait_for("delay at step.begin, step 6"))
        life.send(signal.SIGUSR1)
        time.sleep(2.4)
        life.send(signal.SIGTERM)
        self.assertEqual(self.assert_preempted(life.finish(), config, "SIGTERM"), 6)

    def test_exit_interval(self):
        alone = self.undisturbed()
        config = self.config("by_fives", exit_interval=5, **COMMON)
        for step in (5, 10):
            self.assertEqual(self.assert_preempted(self.train(config), config, "exit_interval"), step)
        self.finish_and_compare(alone, config)

    def test_exit_duration(self):
        alone = self.undisturbed()
        config = self.config("short", **COMMON)
        pace = [{"at": "step.begin", "do": "delay:0.1"}]
        done = self.train(config, "exit_duration_in_mins=0.004", faults=pace)  # 0.24 s
        step = self.assert_preempted(done, config, "exit_duration_in_mins")
        self.assertLess(step, COMMON["train_iters"])
        # Less than the start takes: every life gets on by a step.
        done = self.train(config, "exit_duration_in_mins=1e-9")
        self.assertEqual(self.assert_preempted(done, config, "exit_duration_in_mins"), step + 1)
        self.finish_and_compare(alone, config)


if __name__ == "__main__":
    main()
