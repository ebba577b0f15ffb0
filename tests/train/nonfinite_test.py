# The non-finite law on whole runs: a poisoned step is seen, named, skipped without a trace, and a series of them ends with code 76.
import array
import math

from run_support import RunCase, checkpoints_in, facts, main, read_checkpoint, read_metrics, run_program

EVERY_STEP = {"train_iters": 8, "save_interval": 1, "hidden_dropout": 0.1}
LOW_RANK = {"rank": 4}  # the preset's ranks would shrink no matrix of so small a model
# Rules with residuals, keys of a layout, ranks, and whether a skipped step zeroes the residuals instead of restoring them.
CODED = [({"preset": "thinwire"}, {"zero_optimization": {"stage": 1}}, 2, False), ({"preset": "thinwire"}, {}, 2, False),
         ({"preset": "optimus_cc", "pp.backward": LOW_RANK, "dp.gradient": LOW_RANK}, {"pipe_parallel_size": 2}, 4, False),
         ({"preset": "loco"}, {}, 2, True)]


def coding_of(checkpoint):
    """Tensors of what coding remembers: residuals, their 8-bit codes and scales, warm starts, counts of messages."""
    return {name: value for name, value in read_checkpoint(checkpoint)["tensors"].items() if "coding/" in name}


def residual_norm(checkpoint):
    """Of all ranks together; residuals in 8 bits are told by their scales."""
    total = 0.0
    for name, (_, _, data) in coding_of(checkpoint).items():
        if name.endswith(("residual", "residual_scales")):
            total += sum(x * x for x in array.array("f", data))
    return math.sqrt(total)


class NonFinite(RunCase):
    def steps(self, config):
        return [line for line in read_metrics(self.run_dir(config)) if "loss" in line]

    def assert_no_trace(self, config, step):
        """The checkpoints before and after a skipped step hold the same weights and moments; only the counters tell."""
        found = {read_checkpoint(g)["step"]: g for g in checkpoints_in(self.run_dir(config) / "checkpoints")}
        self.assert_same_state(found[step - 1], found[step], tensors_only=True)
        before, after = read_checkpoint(found[step - 1])["integers"], read_checkpoint(found[step])["integers"]
        self.assertEqual(after["progress/updates"], before["progress/updates"])
        self.assertEqual(after["progress/skipped"], before["progress/skipped"] + 1)
        self.assertGreater(after["progress/consumed_samples"], before["progress/consumed_samples"])

    def poisoned(self, value, **keys):
        config = self.config("poisoned", **EVERY_STEP, **keys)
        done = self.train(config, faults=[{"at": "grad", "step": 3, "do": value}], expect=0)
        steps = self.steps(config)
        self.assertEqual([s["step"] for s in steps if s["skipped"]], [3])
        self.assertEqual(steps[2]["non_finite"], "embedding.position.weight")
        self.assertIsNone(steps[2]["grad_norm"])
        self.assertEqual(steps[2]["grad_norm_text"], "nan" if value == "nan" else "inf")
        self.assertIn("step 3 skipped: embedding.position.weight is not finite", done.err)
        for s in steps:
            self.assertIsNotNone(s["loss"], s)  # the forward pass of a poisoned step is sound, and so is all that follows
            self.assertEqual(s["non_finite"] is not None, s["skipped"], s)
        self.assert_no_trace(config, 3)
        return steps

    def test_nan_and_inf_leave_no_trace(self):
        for i, (value, precision) in enumerate([("nan", "fp32"), ("inf", "fp32"), ("nan", "bfloat16"), ("inf", "fp16")]):
            with self.subTest(f"{value} {precision}"):
                self.here = self.here / str(i)
                self.here.mkdir()
                steps = self.poisoned(value, precision=precision)
                if precision == "fp32":
                    clean = self.config("clean", **EVERY_STEP)
                    self.train(clean, expect=0)
                    self.assertEqual(facts(self.run_dir(clean))[0][:2], facts(self.here / "poisoned")[0][:2])
                    # Step 3 computed its loss with the weights of the clean run; step 4 saw them without step 3's update.
                    self.assertEqual(self.steps(clean)[2]["loss"], steps[2]["loss"])
                    self.assertNotEqual(self.steps(clean)[3]["loss"], steps[3]["loss"])
                    # Updates are what the schedule counts: the rate of step 4 is what step 3 had in the clean run.
                    self.assertEqual(self.steps(clean)[2]["lr"], steps[3]["lr"])

    def test_copies_of_tensor_ranks_are_seen(self):
        # The first tensor of the last rank is a norm, which counts in no norm of gradients but the first tensor rank's.
        config = self.config("copies", **EVERY_STEP, model_parallel_size=2, pipe_parallel_size=2)
        for value in ("nan", "inf"):
            with self.subTest(value):
                self.train(config, f"run_dir={self.here / value}", faults=[{"at": "grad", "step": 3, "rank": 3, "do": value}], ranks=4, expect=0)
                steps = [line for line in read_metrics(self.here / value) if "loss" in line]
                self.assertEqual([s["step"] for s in steps if s["skipped"]], [3])
                self.assertIn("norm", steps[2]["non_finite"])

    def coded(self, name, rules, keys, **more):
        return self.config(name, **{**EVERY_STEP, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, **keys,
                                    "compression": {**rules, "adapt": False}, "precision": "fp16", **more})

    def assert_residuals_zeroed(self, before, after):
        """Nothing but the residuals changed, and those are zero."""
        a, b = read_checkpoint(before)["tensors"], read_checkpoint(after)["tensors"]
        self.assertEqual(sorted(a), sorted(b))
        zeroed = [name for name in a if name.endswith(("residual_codes", "residual_scales"))]
        self.assertTrue(zeroed)
        for name in a:
            self.assertTrue(not any(b[name][2]) if name in zeroed else a[name] == b[name], f"{name} of {before} and {after}")

    def test_residuals_outlive_poison_and_overflow(self):
        scale = {"initial_scale_power": 21, "loss_scale_window": 2, "hysteresis": 1}
        faults = [{"at": "grad", "step": 4, "rank": 1, "do": "nan"}, {"at": "grad", "step": 7, "rank": 0, "do": "inf"}]
        for number, (rules, keys, ranks, zeroed) in enumerate(CODED):
            with self.subTest(rules=rules, keys=keys):
                config = self.coded(f"coded{number}", rules, keys, fp16=scale, train_iters=20)
                self.train(config, faults=faults, ranks=ranks, expect=0)
                steps = self.steps(config)
                skipped = [s["step"] for s in steps if s["skipped"]]
                self.assertTrue({4, 7} < set(skipped), skipped)  # and those that overflowed of themselves
                self.assertLess(len(skipped), 8)
                self.assertGreater(max(float(s["loss_scale"]) for s in steps), 2.0**21)
                found = {read_checkpoint(g)["step"]: g for g in checkpoints_in(self.run_dir(config) / "checkpoints")}
                for step in skipped:
                    self.assertTrue(steps[step - 1]["non_finite"])
                    if step - 1 not in skipped:
                        self.assertGreater(residual_norm(found[step - 1]), 0.0)  # there is something to lose
                    if zeroed:
                        self.assert_residuals_zeroed(found[step - 1], found[step])
                    else:
                        self.assert_no_trace(config, step)
                    if step < 20 and step + 1 not in skipped:
                        self.assertEqual(float(steps[step]["loss_scale"]), float(steps[step - 1]["loss_scale"]) / 2)
                        self.assertNotEqual(coding_of(found[step]), coding_of(found[step + 1]))
                self.assertTrue(all(s["loss"] is not None for s in steps if not s["skipped"]))
                self.assertLess(float(steps[-1]["loss"]), float(steps[0]["loss"]) - 0.4)
                self.assertEqual(read_checkpoint(found[20])["integers"]["progress/updates"], 20 - len(skipped))

    def test_residuals_do_not_follow_the_loss_scale(self):
        # One run doubles the scale after each update, the other never: both learn the same, and remember the same.
        for number, (rules, keys, ranks, _) in enumerate(CODED[1:]):
            with self.subTest(rules=rules):
                norms, losses = [], []
                for name, scale in (("doubling", {"initial_scale_power": 8, "loss_scale_window": 1}), ("fixed", {"loss_scale": 2.0**12})):
                    config = self.coded(f"{name}{number}", rules, keys, fp16=scale, train_iters=12, save_interval=0)
                    self.train(config, ranks=ranks, expect=0)
                    self.assertEqual(float(self.steps(config)[-1]["loss_scale"]), 2.0**19 if name == "doubling" else 2.0**12)
                    norms.append(residual_norm(checkpoints_in(self.run_dir(config) / "checkpoints")[-1]))
                    losses.append([float(s["loss"]) for s in self.steps(config)])
                self.assertGreater(norms[1], 0.0)
                self.assertAlmostEqual(norms[0] / norms[1], 1.0, delta=0.1)
                for a, b in zip(*losses, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-4 * b)

    def test_skips_survive_a_restart(self):
        faults = [{"at": "grad", "step": 3, "do": "nan"}, {"at": "grad", "step": 4, "do": "nan"}]
        alone = self.config("alone", **EVERY_STEP)
        self.train(alone, faults=faults, expect=0)
        config = self.config("killed", **EVERY_STEP)
        done = self.train(config, faults=faults + [{"at": "step.begin", "step": 5, "do": "kill9"}])
        self.assertEqual(done.code, -9)
        self.go_on(config, faults=faults)  # step 4 may have to be repeated, poison and all
        self.assert_same_run(alone, config)

    def test_a_schedule_in_samples_counts_those_of_the_steps_taken(self):
        keys = {**EVERY_STEP, "rampup_batch_size": [2, 2, 12], "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "warmup": 0,
                "min_lr": 0, "lr_decay_style": "linear", "lr_decay_iters": 100, "lr_schedule_unit": "samples"}
        faults = [{"at": "grad", "step": s, "do": "nan"} for s in (3, 5)]
        alone, killed = self.config("alone", **keys), self.config("killed", **keys)
        self.train(alone, faults=faults, expect=0)
        steps = self.steps(alone)
        self.assertEqual([s["consumed_samples"] for s in steps], [2, 4, 8, 14, 22, 30, 38, 46])
        self.assertEqual([s["step"] for s in steps if s["skipped"]], [3, 5])
        taken = before = 0
        for s in steps:
            self.assertAlmostEqual(float(s["lr"]), 1e-3 * (1 - max(1, taken) / 100), delta=1e-9, msg=s)
            taken += 0 if s["skipped"] else s["consumed_samples"] - before
            before = s["consumed_samples"]
        self.assertEqual(self.train(killed, faults=faults + [{"at": "step.begin", "step": 7, "do": "kill9"}]).code, -9)
        self.go_on(killed, faults=faults)
        self.assert_same_run(alone, killed)

    def test_budget_spent(self):
        config = self.config("diverged", **{**EVERY_STEP, "save_interval": 2}, non_finite_budget=3)
        done = self.train(config, faults=[{"at": "grad", "step": s, "do": "nan"} for s in (2, 4, 5, 6)])
        self.expect(done, 76)
        self.assertIn("embedding.position.weight", done.errors()[0])
        status = self.status(config)
        self.assertEqual((status["code"], status["reason"], status["requeue"], status["step"]), (76, "diverged", False, 6))
        self.assertEqual([s["skipped"] for s in self.steps(config)], [False, True, False, True, True, True])
        saved = checkpoints_in(self.run_dir(config) / "checkpoints")
        self.assertEqual(saved[-1].name, "step_000006")
        self.assertEqual(run_program("checkpoint", "verify", saved[-1]).code, 0)
        # A user who removes the cause goes on: finite steps reset the count.
        self.train(config, expect=0)
        self.assertEqual([s["skipped"] for s in self.steps(config)], [False, True, False, True, True, True, False, False])

    def test_a_lower_static_scale_goes_on_after_the_budget(self):
        # As the message of code 76 is answered with fp16: the scale that the user sets is the one that is used, and the
        # budget is a whole one again, although the first step of the second life is not finite either.
        config = self.config("static", precision="fp16", fp16={"loss_scale": 2.0**36}, non_finite_budget=3, train_iters=8)
        self.expect(self.train(config), 76)
        self.assertEqual([s["skipped"] for s in self.steps(config)], [True] * 3)
        done = self.train(config, "fp16.loss_scale=256", faults=[{"at": "grad", "step": 4, "do": "inf"}], expect=0)
        self.assertIn("non_finite_budget", done.out + done.err)
        self.assertEqual([float(s["loss_scale"]) for s in self.steps(config)][3:], [256.0] * 5)
        self.assertEqual([s["skipped"] for s in self.steps(config)][3:], [True] + [False] * 4)

    def test_fp16_overflow_halves_the_scale(self):
        config = self.config("half", precision="fp16", fp16={"initial_scale_power": 32, "hysteresis": 1, "loss_scale_window": 5},
                             train_iters=30, save_interval=0)
        self.train(config, expect=0)
        steps = self.steps(config)
        scales = [float(s["loss_scale"]) for s in steps]
        self.assertEqual(scales[0], 2.0**32)
        self.assertTrue(steps[0]["skipped"])
        self.assertFalse(steps[-1]["skipped"] and steps[-2]["skipped"])
        clean = 0
        for i, s in enumerate(steps[:-1]):  # the rule, replayed
            clean = 0 if s["skipped"] else clean + 1
            expected = scales[i] / 2 if s["skipped"] else scales[i] * (2 if clean and clean % 5 == 0 else 1)
            self.assertEqual(scales[i + 1], expected, f"after step {i + 1}")
        state = read_checkpoint(checkpoints_in(self.run_dir(config) / "checkpoints")[-1])
        skipped = sum(s["skipped"] for s in steps)
        # The scaler is part of the optimizer's state, as in Megatron.
        firsts = {}
        for without in (False, True):
            again = self.config(f"again{without}", precision="fp16", fp16={"initial_scale_power": 32, "hysteresis": 1, "loss_scale_window": 50},
                                train_iters=31, save_interval=0, load=str(self.run_dir(config)), no_load_optim=without)
            self.train(again, expect=0)
            firsts[without] = float(self.steps(again)[0]["loss_scale"])
        self.assertIn(firsts[False], [scales[-1] / 2, scales[-1], scales[-1] * 2])
        self.assertEqual(firsts[True], 2.0**32)
        self.assertEqual(state["integers"]["progress/skipped"], skipped)
        self.assertEqual(state["integers"]["progress/updates"], 30 - skipped)

    def test_fp16_hysteresis(self):
        config = self.config("patient", precision="fp16", fp16={"initial_scale_power": 4, "hysteresis": 2}, train_iters=6)
        self.train(config, faults=[{"at": "grad", "step": s, "do": "inf"} for s in (2, 4)], expect=0)
        self.assertEqual([float(s["loss_scale"]) for s in self.steps(config)], [16, 16, 16, 16, 8, 8])


if __name__ == "__main__":
    main()
