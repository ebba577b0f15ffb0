# Faults around a run: ranks that were not started alike, and a clock that somebody sets while the run goes on.
import os
import subprocess
import time
import unittest

from run_support import BUILD, LAUNCH, LIMIT_S, RunCase, environment, facts, fault, main, read_metrics

JUMPING_CLOCK = BUILD / "tests/libjumping_clock.so"
TWO = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "num_layers": 2}


class Start(RunCase):
    def start_two(self, *commands):
        """One rank per command of arguments, in one job."""
        words = []
        for arguments in commands:
            words += ([":"] if words else LAUNCH) + ["-n", "1", str(BUILD / "train")] + [str(a) for a in arguments]
        return subprocess.run(words, cwd=self.here, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=LIMIT_S, check=False, text=True)

    def test_ranks_with_different_configurations_are_refused_at_once(self):
        config = self.config("mixed", **TWO)
        for override in ("lr=2e-3", "compression=bf16_wire", "seed=7"):
            with self.subTest(override):
                began = time.monotonic()
                done = self.start_two(["--config", config], ["--config", config, override])
                self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
                self.assertIn("resolves to another configuration, or is another build, than rank 0", done.stderr)
                fault(19, seconds=time.monotonic() - began, code=done.returncode)
                self.assertLess(time.monotonic() - began, 20)
        # The same words on both sides are one configuration, whatever their order.
        done = self.start_two(["--config", config, "seed=7", "train_iters=2"], ["--config", config, "train_iters=2", "seed=7"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@unittest.skipUnless(JUMPING_CLOCK.exists(), "the preloaded clock is not built with sanitizers")
class Clock(RunCase):
    def test_a_clock_that_is_set_ends_no_run_and_changes_no_number(self):
        keys = {**TWO, "train_iters": 1500, "save_interval": 100, "watchdog_seconds": 5}
        undisturbed = self.config("undisturbed", **keys)
        self.train(undisturbed, ranks=2, expect=0)
        config = self.config("jumped", **keys, save_interval_minutes=30)
        # After 0.5 s an hour ahead, after 0.9 s a day behind: the watchdog, saves by the clock and the lease of the run directory see both.
        env = {"LD_PRELOAD": str(JUMPING_CLOCK), "THINWIRE_CLOCK_JUMPS": "0.5:3600,0.9:-90000"}
        words = [*LAUNCH, "-n", "2", str(BUILD / "train"), "--config", str(config)]
        done = subprocess.run(words, cwd=self.here, env=environment(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=LIMIT_S, check=False, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(facts(self.run_dir(undisturbed)), facts(self.run_dir(config)))
        wall = [float(line["wall_s"]) for line in read_metrics(self.run_dir(config))]
        self.assertEqual(wall, sorted(wall))
        self.assertLess(wall[-1], 300)
        self.assertGreater(wall[-1], 1.0)  # it went on behind both jumps
        # The clock really jumped: what it wrote last is of yesterday.
        self.assertLess(self.status(config)["updated"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600)))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
