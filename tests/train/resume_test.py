# Whole runs that are killed at any moment and started again end with the same bits as a run left alone.
import random
import time

from run_support import SAVE_POINTS, RunCase, facts, main

STEPS = 30
VARIANTS = {
    "fp32_dropout_accumulation_async": {"hidden_dropout": 0.1, "attention_dropout": 0.1, "train_micro_batch_size_per_gpu": 2,
                                        "async_save": True},
    "bf16_dropout_sync": {"precision": "bfloat16", "hidden_dropout": 0.1, "attention_dropout": 0.1, "async_save": False},
    # 2^26 overflows the half-precision gradients of this model for several steps, and a window of 4 raises the scale again.
    "fp16_overflow_ramp_async": {"precision": "fp16", "fp16": {"initial_scale_power": 26, "loss_scale_window": 4, "hysteresis": 1},
                                 "rampup_batch_size": [2, 2, 40], "train_batch_size": 6, "train_micro_batch_size_per_gpu": 2,
                                 "hidden_dropout": 0.1, "async_save": True},
    "llama_sgd_momentum_ramp_sync": {"optimizer": {"type": "sgd", "params": {"momentum": 0.9}}, "norm": "rmsnorm", "activation": "swiglu",
                                     "pos_emb": "rotary", "num_kv_heads": 1, "no_weight_tying": True, "rampup_batch_size": [2, 2, 40],
                                     "train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "async_save": False},
}


class Resume(RunCase):
    def undisturbed(self, variant):
        config = self.config("alone", train_iters=STEPS, save_interval=3, eval_interval=7, **VARIANTS[variant])
        self.train(config, expect=0)
        steps, evals = facts(self.run_dir(config))
        self.assertEqual([s["step"] for s in steps], list(range(1, STEPS + 1)))
        self.assertGreater(len(evals), 4)
        if "fp16" in variant:  # the variant has to be what it says
            skipped = [s for s in steps if s["skipped"]]
            self.assertGreater(len(skipped), 1)
            self.assertLess(len(skipped), STEPS // 2)
            self.assertGreater(len({s["loss_scale"] for s in steps}), 3)
        if "ramp" in variant:
            self.assertEqual(steps[0]["consumed_samples"], 2)
            self.assertEqual(steps[-1]["consumed_samples"] - steps[-2]["consumed_samples"], 6)
        return config

    def killed_at_every_save_point(self, variant):
        alone = self.undisturbed(variant)
        config = self.config("killed", train_iters=STEPS, save_interval=1, eval_interval=7, keep_last_n_checkpoints=3, **VARIANTS[variant])
        for life, point in enumerate(SAVE_POINTS):
            with self.subTest(point):
                self.go_on(config, faults=[{"at": point, "step": 2 * life + 1, "do": "kill9"}], expect=-9)
        self.go_on(config)
        self.assert_same_run(alone, config)

    def test_death_between_the_last_save_and_the_last_evaluation(self):
        alone = self.undisturbed("bf16_dropout_sync")
        config = self.config("killed", train_iters=STEPS, save_interval=3, eval_interval=7, **VARIANTS["bf16_dropout_sync"])
        self.assertEqual(self.train(config, faults=[{"at": "save.after_prune", "step": STEPS, "do": "kill9"}]).code, -9)
        self.go_on(config)
        self.assert_same_run(alone, config)
        self.go_on(config)  # and once more: nothing to do, nothing repeated
        self.assert_same_run(alone, config)

    def killed_at_random(self, variant):
        alone = self.undisturbed(variant)
        config = self.config("killed", train_iters=STEPS, save_interval=3, eval_interval=7, **VARIANTS[variant])
        chance = random.Random(variant)
        pace = [{"at": "step.begin", "do": "delay:0.02"}]  # 30 steps take milliseconds: too short a target
        for _ in range(10):
            life = self.start(config, faults=pace)
            if chance.random() < 0.8:
                life.wait_for("| loss ")  # some die while they start, most while they train
            time.sleep(chance.uniform(0.0, 0.15))
            life.process.kill()
            self.assertIn(life.finish().code, (-9, 0))
        self.go_on(config)
        self.assert_same_run(alone, config)


for name in VARIANTS:
    setattr(Resume, f"test_save_points_{name}", lambda self, v=name: self.killed_at_every_save_point(v))
    setattr(Resume, f"test_random_{name}", lambda self, v=name: self.killed_at_random(v))

if __name__ == "__main__":
    main()
