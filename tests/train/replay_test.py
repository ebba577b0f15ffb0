# One seed, one run: with every shipped preset as it stands, a second run ends with the same losses and the same bits.
import json

from run_support import ROOT, RunCase, main, read_metrics

TINY = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "train_iters": 6, "save_interval": 6, "eval_iters": 0, "hidden_dropout": 0.1}
PRESETS = sorted(p.stem for p in (ROOT / "configs" / "compression").glob("*.json"))


def keys_of(preset):
    """A layout of two ranks in which the preset codes something."""
    return {"pipe_parallel_size": 2} if preset.startswith("optimus_cc") else {"zero_optimization": {"stage": 1 if preset == "thinwire" else 0}}


class Replay(RunCase):
    def test_two_runs_with_one_seed_are_equal(self):
        self.assertIn("thinwire", PRESETS)
        for preset in PRESETS:
            with self.subTest(preset):
                first, second = (self.config(f"{preset}_{n}", **TINY, **keys_of(preset), compression=preset) for n in (1, 2))
                for config in (first, second):
                    self.train(config, ranks=2, expect=0)
                    resolved = json.loads((self.run_dir(config) / "config.resolved.json").read_text())
                    # Nothing that timing decides: six steps need not show it, the configuration does.
                    self.assertFalse(resolved["compression"]["adapt"])
                    self.assertNotEqual(resolved["pipe_partition_method"], "time")
                self.assert_same_run(first, second)

    def test_the_cpu_takes_deterministic_false_and_stays_deterministic(self):
        # The key buys speed on GPUs alone: two runs without it are equal, and equal to one with it, coded and on several threads.
        keys = {**TINY, "zero_optimization": {"stage": 1}, "threads_per_rank": 2, "compression": "thinwire"}
        runs = [self.config(f"{name}{n}", **keys, deterministic=name == "true") for n, name in enumerate(("true", "false", "false"))]
        for n, config in enumerate(runs):
            done = self.train(config, ranks=2, expect=0)
            (self.assertIn if n > 0 else self.assertNotIn)("the CPU is always deterministic", done.out + done.err)
        for config in runs[1:]:
            self.assert_same_run(runs[0], config)

    def test_critical_gradients_are_decided_by_the_plan(self):
        # 4 bits for what nothing hides, 8 for the rest: in the bytes of two equal runs, between those of 4 and of 8 for all.
        few, many = ({"site": "dp.gradient", "codec": "block_int", "bits": bits, "residual": "error_feedback"} for bits in (4, 8))
        critical = {**few, "select": {"micro_batches": "critical"}}
        keys = {**TINY, "zero_optimization": {"stage": 1}, "link_gbps": 0.1, "pipe_partition_method": "time", "pipe_partition_costs": [3, 0, 0]}
        runs = {name: self.config(name, **keys, compression={"rules": rules})
                for name, rules in (("few", [few]), ("first", [critical, many]), ("second", [critical, many]), ("many", [many]))}
        sent = {}
        for name, config in runs.items():
            self.train(config, ranks=2, expect=0)
            sent[name] = [line["comm"]["dp.gradient"]["wire_bytes"] for line in read_metrics(self.run_dir(config)) if "loss" in line][-1]
        self.assertTrue(sent["few"] < sent["first"] < sent["many"], sent)
        self.assert_same_run(runs["first"], runs["second"])


if __name__ == "__main__":
    main()
