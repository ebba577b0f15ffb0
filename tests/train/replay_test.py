# One seed, one run: with every shipped preset as it stands, a second run ends with the same losses and the same bits.
import json

from run_support import ROOT, RunCase, main

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


if __name__ == "__main__":
    main()
