# Losses that jump: noticed on the step itself, skipped without a trace where the run asks for it, and judged alike behind a resume. And steps
# that iterations_to_skip names.
from run_support import RunCase, checkpoints_in, main, read_checkpoint, read_metrics

KEYS = {"train_iters": 24, "save_interval": 1, "num_layers": 1, "hidden_size": 16, "seq_length": 16, "spike_window": 16, "eval_iters": 0}


def jump(*steps):
    """The loss of these steps comes out twenty times as large as it is."""
    return [{"at": "loss", "step": step, "do": "scale:20"} for step in steps]


class Spikes(RunCase):
    def steps(self, config):
        return [line for line in read_metrics(self.run_dir(config)) if "loss" in line]

    def flagged(self, config):
        steps = self.steps(config)
        return [s["step"] for s in steps if "spike" in s], [s["step"] for s in steps if s["skipped"]]

    def state_after(self, config, step):
        return next(g for g in checkpoints_in(self.run_dir(config) / "checkpoints") if read_checkpoint(g)["step"] == step)

    def test_a_skipped_spike_leaves_no_trace(self):
        for ranks, keys in [(1, {"precision": "fp16"}), (2, {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}})]:
            config = self.config(f"skip_{ranks}", spike="skip", **KEYS, **keys)
            done = self.train(config, faults=jump(15), expect=0, ranks=ranks)
            self.assertEqual(self.flagged(config), ([15], [15]))
            line = self.steps(config)[14]
            self.assertGreater(float(line["spike"]["spreads"]), 10)
            self.assertLess(float(line["spike"]["median"]), float(line["loss"]))
            self.assertIsNone(line["non_finite"])
            said = self.status(config)["spike"]
            self.assertRegex(said, r"^step 15: loss \S+ jumps \S+ spreads above the median \S+ of the window; the step is skipped$")
            self.assertIn(said, done.err)
            before, after = self.state_after(config, 14), self.state_after(config, 15)
            self.assert_same_state(before, after, tensors_only=True)
            a, b = read_checkpoint(before), read_checkpoint(after)
            self.assertEqual(a["texts"], b["texts"], "the window holds losses of applied updates")
            self.assertEqual(a["reals"], b["reals"], "the loss scale is none of its business")
            changed = {k for k in a["integers"] if a["integers"][k] != b["integers"][k]}
            self.assertEqual(changed, {"progress/step", "progress/consumed_samples", "progress/consumed_tokens", "progress/skipped",
                                       "progress/skipped_samples", "spike/skipped_in_a_row"})

    def test_a_warning_changes_nothing(self):
        off, warn = self.config("off", spike="off", **KEYS), self.config("warn", **KEYS)
        self.train(off, expect=0)
        done = self.train(warn, faults=jump(15), expect=0)
        self.assertEqual(self.flagged(off), ([], []))
        self.assertEqual(self.flagged(warn), ([15], []))
        self.assertIn("the step is applied", done.err)
        self.assert_same_state(self.state_after(off, 24), self.state_after(warn, 24), tensors_only=True)

    def test_a_shift_is_not_skipped_for_ever(self):
        config = self.config("shift", spike="skip", spike_budget=2, **KEYS)
        done = self.train(config, faults=jump(*range(15, 25)), expect=0)
        self.assertEqual(self.flagged(config), ([15, 16, 17], [15, 16]))
        self.assertIn("taken for a real shift", done.err)

    def test_the_window_survives_a_resume(self):
        keys = {**KEYS, "save_interval": 6}
        whole, killed = self.config("whole", spike="skip", **keys), self.config("killed", spike="skip", **keys)
        self.train(whole, faults=jump(15), expect=0)
        # From step 12 on: three steps of this life alone could not judge the fifteenth.
        self.assertEqual(self.train(killed, faults=[{"at": "step.end", "step": 14, "do": "kill9"}]).code, -9)
        self.go_on(killed, faults=jump(15))
        self.assertEqual(self.flagged(killed), ([15], [15]))
        self.assert_same_run(whole, killed)

    def test_steps_that_are_named_are_left_out(self):
        # As spikes of the same steps are: samples count, neither schedule nor moments do. The last step, too.
        layouts = [(1, {"precision": "fp16"}), (2, {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
                                                    "lr_schedule_unit": "samples", "lr_decay_iters": 80})]
        for ranks, keys in layouts:
            spiked, named = (self.config(f"{name}_{ranks}", spike=spike, async_save=False, **KEYS, **keys) for name, spike in (("spiked", "skip"), ("named", "off")))
            self.train(spiked, faults=jump(15, 16, 24), expect=0, ranks=ranks)
            # The first life knows of none; the second one dies between the two.
            self.assertNotEqual(self.train(named, faults=[{"at": "step.begin", "step": 15, "do": "kill9"}], ranks=ranks).code, 0)
            skip = "iterations_to_skip=[16, 15, 24]"
            self.assertNotEqual(self.train(named, skip, faults=[{"at": "step.begin", "step": 16, "do": "kill9"}], ranks=ranks).code, 0)
            done = self.go_on(named, skip, ranks=ranks)
            self.assertIn("step 16 is left out: iterations_to_skip names it", done.err)
            self.assertIn("step 24/24 | SKIPPED by iterations_to_skip\n", done.out)
            a, b = self.steps(spiked), self.steps(named)
            self.assertEqual([(s["step"], s["loss"], s["skipped_by"]) for s in b if s["skipped"]],
                             [(n, None, "iterations_to_skip") for n in (15, 16, 24)])
            self.assertFalse({"loss_text", "grad_norm_text", "spike"} & {k for s in b for k in s})
            same = ["step", "consumed_samples", "consumed_tokens", "lr", "loss_scale", "skipped"]
            self.assertEqual([[s[k] for k in same] for s in a], [[s[k] for k in same] for s in b])
            self.assertEqual([(s["loss"], s["grad_norm"]) for s in a if not s["skipped"]], [(s["loss"], s["grad_norm"]) for s in b if not s["skipped"]])
            counted = [{k: v for k, v in read_checkpoint(self.state_after(c, 24))["integers"].items() if not k.startswith("spike/")} for c in (spiked, named)]
            self.assertEqual(*counted)
            self.assert_same_state(self.state_after(spiked, 24), self.state_after(named, 24), tensors_only=True)

    def test_all_steps_may_be_left_out(self):
        config = self.config("none", iterations_to_skip=[1, 2, 3], save_interval=1, train_iters=3, extra_save_iters=[0])
        self.train(config, expect=0)
        self.assertEqual([s["consumed_samples"] for s in self.steps(config)], [4, 8, 12])
        self.assert_same_state(self.state_after(config, 0), self.state_after(config, 3), tensors_only=True)

    def test_a_limit_of_time_holds_among_steps_that_are_left_out(self):
        for ranks in (1, 2):
            config = self.config(f"timed_{ranks}", iterations_to_skip=[1, 2, 3], train_iters=3, exit_duration_in_mins=1e-6, train_micro_batch_size_per_gpu=2)
            for step in (1, 2):
                self.train(config, expect=75, ranks=ranks)
                self.assertEqual(self.steps(config)[-1]["step"], step)


if __name__ == "__main__":
    main()
