# Runtime keys that change between the lives of a run: each is taken as the user means it, or said aloud.
from run_support import RunCase, facts, main


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

    def test_evaluation_switched_on_and_off(self):
        keys = {"data_path": None, "split": None, "train_data_paths": [str(self.prefix)], "valid_data_paths": [str(self.other)],
                "eval_interval": 2}
        config = self.stopped("evaluated", 2, train_iters=6, eval_iters=0, **keys)
        self.assertEqual(self.train(config, "eval_iters=1", faults=[{"at": "step.begin", "step": 5, "do": "kill9"}]).code, -9)
        self.train(config, "eval_iters=0", expect=0)
        self.assertEqual([e["step"] for e in facts(self.run_dir(config))[1]], [4])


if __name__ == "__main__":
    main()
