# The non-finite law on whole runs: a poisoned step is seen, named, skipped without a trace, and a series of them ends with code 76.
from run_support import RunCase, facts, generations, main, read_generation, read_metrics, run_program

EVERY_STEP = {"train_iters": 8, "save_interval": 1, "hidden_dropout": 0.1}


class NonFinite(RunCase):
    def steps(self, config):
        return [line for line in read_metrics(self.run_dir(config)) if "loss" in line]

    def assert_no_trace(self, config, step):
        """The checkpoints before and after a skipped step hold the same weights and moments; only the counters tell."""
        found = {read_generation(g)["step"]: g for g in generations(self.run_dir(config) / "checkpoints")}
        self.assert_same_state(found[step - 1], found[step], tensors_only=True)
        before, after = read_generation(found[step - 1])["integers"], read_generation(found[step])["integers"]
        self.assertEqual(after["progress/updates"], before["progress/updates"])
        self.assertEqual(after["progress/skipped"], before["progress/skipped"] + 1)
        self.assertGreater(after["progress/consumed_samples"], before["progress/consumed_samples"])

    def poisoned(self, value, **keys):
        config = self.config("poisoned", **EVERY_STEP, **keys)
        done = self.train(config, faults=[{"at": "grad", "step": 3, "do": value}], expect=0)
        steps = self.steps(config)
        self.assertEqual([s["step"] for s in steps if s["skipped"]], [3])
        self.assertEqual(steps[2]["non_finite"], "embedding.word.weight")
        self.assertIsNone(steps[2]["grad_norm"])
        self.assertEqual(steps[2]["grad_norm_text"], "nan" if value == "nan" else "inf")
        self.assertIn("step 3 skipped: embedding.word.weight is not finite", done.err)
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

    def test_skips_survive_a_restart(self):
        faults = [{"at": "grad", "step": 3, "do": "nan"}, {"at": "grad", "step": 4, "do": "nan"}]
        alone = self.config("alone", **EVERY_STEP)
        self.train(alone, faults=faults, expect=0)
        config = self.config("killed", **EVERY_STEP)
        done = self.train(config, faults=faults + [{"at": "step.begin", "step": 5, "do": "kill9"}])
        self.assertEqual(done.code, -9)
        self.train(config, faults=faults, expect=0)  # step 4 may have to be repeated, poison and all
        self.assert_same_run(alone, config)

    def test_budget_spent(self):
        config = self.config("diverged", **{**EVERY_STEP, "save_interval": 2}, non_finite_budget=3)
        done = self.train(config, faults=[{"at": "grad", "step": s, "do": "nan"} for s in (2, 4, 5, 6)])
        self.expect(done, 76)
        self.assertIn("embedding.word.weight", done.errors()[0])
        status = self.status(config)
        self.assertEqual((status["code"], status["reason"], status["requeue"], status["step"]), (76, "diverged", False, 6))
        self.assertEqual([s["skipped"] for s in self.steps(config)], [False, True, False, True, True, True])
        saved = generations(self.run_dir(config) / "checkpoints")
        self.assertEqual(saved[-1].name, "step_000006")
        self.assertEqual(run_program("checkpoint", "verify", saved[-1]).code, 0)
        # A user who removes the cause goes on: finite steps reset the count.
        self.train(config, expect=0)
        self.assertEqual([s["skipped"] for s in self.steps(config)], [False, True, False, True, True, True, False, False])

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
        state = read_generation(generations(self.run_dir(config) / "checkpoints")[-1])
        skipped = sum(s["skipped"] for s in steps)
        self.assertEqual(state["integers"]["progress/skipped"], skipped)
        self.assertEqual(state["integers"]["progress/updates"], 30 - skipped)

    def test_fp16_hysteresis(self):
        config = self.config("patient", precision="fp16", fp16={"initial_scale_power": 4, "hysteresis": 2}, train_iters=6)
        self.train(config, faults=[{"at": "grad", "step": s, "do": "inf"} for s in (2, 4)], expect=0)
        self.assertEqual([float(s["loss_scale"]) for s in self.steps(config)], [16, 16, 16, 16, 8, 8])


if __name__ == "__main__":
    main()
