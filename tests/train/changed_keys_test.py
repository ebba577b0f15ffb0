# Runtime keys that change from one job of a run to the next: each is taken as the user means it, or said aloud.
import json

from run_support import RunCase, checkpoints_in, facts, main, run_program


class ChangedKeys(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.other = cls.make_data("other", 40, seed=12)

    def stopped(self, name, step, **keys):
        """A run that saved after this step and then was killed."""
        config = self.config(name, save_interval=step, async_save=False, **keys)
        self.assertEqual(self.train(config, faults=[{"at": "step.begin", "step": step + 1, "do": "kill9"}]).code, -9)
        return config

    def test_train_iters_below_the_saved_step(self):
        # 172 validation samples, 80 an evaluation: those of an evaluation after step 2 are there, those after step 8 not.
        config = self.stopped("shorter", 8, train_iters=10, eval_interval=3, eval_iters=20)
        done = self.train(config, "train_iters=2", expect=0)
        self.assertIn("nothing to train: step 8 of 2", done.err)
        steps, evals = facts(self.run_dir(config))
        self.assertEqual(len(steps), 8)
        self.assertEqual([(e["step"], e["split"]) for e in evals], [(3, "valid"), (6, "valid"), (8, "valid"), (8, "test")])

    def test_another_number_of_epochs_is_said(self):
        # 1477 training samples an epoch: 100 updates of 16 need two, of which the last is shuffled apart; 180 need two as well.
        keys = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 16, "eval_iters": 0}
        config = self.stopped("longer", 2, train_iters=20, **keys)
        again = lambda iters, step: self.train(config, f"train_iters={iters}", "save_interval=1",
                                               faults=[{"at": "step.begin", "step": step, "do": "kill9"}]).err
        self.assertNotIn("order", again(30, 4))
        more = again(100, 6)
        self.assertEqual(more.count("another order"), 1, more)
        self.assertIn("(train: 1 epoch, now 2 epochs, the last apart", more)
        self.assertNotIn("another order", again(100, 8))
        self.assertIn("(train: 2 epochs, the last apart, now 2 epochs)", again(180, 10))

    def test_momentum_switched_on_and_off(self):
        keys = {"optimizer": {"type": "sgd", "params": {"momentum": 0.0}}, "save_interval": 3, "train_iters": 9, "async_save": False}
        plain = self.config("plain", **keys)
        self.train(plain, expect=0)
        config = self.config("switched", **keys)
        self.assertEqual(self.train(config, faults=[{"at": "step.begin", "step": 4, "do": "kill9"}]).code, -9)
        on = self.train(config, "optimizer.params.momentum=0.9", faults=[{"at": "step.begin", "step": 7, "do": "kill9"}])
        self.assertEqual(on.code, -9, str(on))
        self.assertIn("momentum starts at zero", on.err)
        off = self.train(config, expect=0)
        self.assertIn("momentum is left behind", off.err)
        # A momentum that starts at zero makes the first update the plain one: the losses part two steps later.
        losses = lambda c: [s["loss"] for s in facts(self.run_dir(c))[0]]
        self.assertEqual(losses(plain)[:5], losses(config)[:5])
        self.assertNotEqual(losses(plain)[5], losses(config)[5])

    def test_another_batch_counts_samples_on(self):
        # What rampup_batch_size does in one life: four steps of 4, then steps of 8 until 40 samples are taken.
        keys = {"train_iters": None, "train_samples": 40}
        ramp = self.config("ramp", train_batch_size=8, rampup_batch_size=[4, 4, 16], **keys)
        self.assertIn("steps: 7, tokens in all: 1280\n", run_program("train", "--config", ramp, "--dry-run").out)
        self.train(ramp, expect=0)
        self.assertEqual([s["consumed_samples"] for s in facts(self.run_dir(ramp))[0]], [4, 8, 12, 16, 24, 32, 40])
        config = self.stopped("changed", 4, train_batch_size=4, **keys)
        again = self.train(config, "train_batch_size=8", "save_interval=1", faults=[{"at": "step.begin", "step": 6, "do": "kill9"}])
        self.assertEqual(again.code, -9, str(again))
        self.assertIn("the 4 steps of the checkpoint took 16 samples", again.err)
        self.assertIn("train_iters is 7", self.train(config, "train_batch_size=8", expect=0).err)
        self.assert_same_run(ramp, config)
        self.assertEqual(self.status(config)["total_steps"], 7)
        # Smaller ones, in a blend, which has no more samples than the run asks for.
        config = self.stopped("shrunk", 4, train_batch_size=8, data_path=f"1 {self.prefix}")
        self.train(config, "train_batch_size=4", expect=0)
        self.assertEqual([s["consumed_samples"] for s in facts(self.run_dir(config))[0]], [*range(8, 33, 8), *range(36, 57, 4)])

    def test_another_batch_moves_shares_of_the_run(self):
        # 4 steps of 4 and then 8 of 2 samples: a fifth of 12 steps, where 32 samples of 2 alone would be 16.
        rule = {"dp.gradient": {"codec": "block_int", "bits": 8, "warmup_steps": 0.2}, "adapt": False}
        config = self.stopped("shares", 4, train_batch_size=4, train_micro_batch_size_per_gpu=2, train_iters=None, train_samples=32, compression=rule)
        self.train(config, "train_batch_size=2", expect=0)
        now = json.loads((self.run_dir(config) / "config.resolved.json").read_text())
        self.assertEqual((now["train_iters"], now["compression"]["dp.gradient"]["warmup_steps"]), (12, 2))

    def test_another_precision(self):
        alone = self.config("alone", train_iters=8)
        self.train(alone, expect=0)
        expected = [float(s["loss"]) for s in facts(self.run_dir(alone))[0]]
        for before, after, scale in (("fp16", "bf16", 1.0), ("bf16", "fp16", 65536.0), ("fp32", "bf16", 1.0)):
            with self.subTest(before=before, after=after):
                old = self.stopped(f"{before}_{after}", 4, train_iters=8, precision=before)
                saved = checkpoints_in(self.run_dir(old) / "checkpoints")[-1]
                elsewhere = self.config(f"{before}_{after}_elsewhere", train_iters=8, precision=after, load=str(saved))
                for done, config in ((self.train(elsewhere), elsewhere), (self.train(old, f"precision={after}"), old)):
                    self.expect(done, 0)
                    self.assertIn(f"written under precision {before}, now it is {after}", done.err)
                    steps = facts(self.run_dir(config))[0][-4:]
                    self.assertEqual([(s["step"], s["skipped"], float(s["loss_scale"])) for s in steps], [(n, False, scale) for n in (5, 6, 7, 8)])
                    for loss, step in zip(expected[4:], steps, strict=True):
                        self.assertAlmostEqual(float(step["loss"]), loss, delta=0.05)

    def test_evaluation_switched_on_and_off(self):
        keys = {"data_path": None, "split": None, "train_data_paths": [str(self.prefix)], "valid_data_paths": [str(self.other)],
                "eval_interval": 2}
        config = self.stopped("evaluated", 2, train_iters=6, eval_iters=0, **keys)
        self.assertEqual(self.train(config, "eval_iters=1", faults=[{"at": "step.begin", "step": 5, "do": "kill9"}]).code, -9)
        self.train(config, "eval_iters=0", expect=0)
        self.assertEqual([e["step"] for e in facts(self.run_dir(config))[1]], [4])


if __name__ == "__main__":
    main()
