# Killed under one layout, continued under another: the loss goes on within tolerance; under the same one: the same bits.
import random
import unittest

from run_support import RunCase, facts, generations, main

STEPS = 16
MODEL = {"num_layers": 5, "hidden_size": 48, "num_attention_heads": 12, "num_kv_heads": 12, "train_batch_size": 12,
         "train_iters": STEPS, "save_interval": 5, "hidden_dropout": 0.1, "make_vocab_size_divisible_by": 1, "vocab_size": 257,
         "train_micro_batch_size_per_gpu": 1, "ranks_per_node": 2, "async_save": False}


def random_layout(chance):
    """Keys of a layout over at most six ranks, and how many ranks it needs."""
    while True:
        pp, tp, dp = chance.choice([1, 1, 2, 3]), chance.choice([1, 2, 3]), chance.choice([1, 2, 3, 4, 6])
        if 1 <= pp * tp * dp <= 6:
            break
    keys = {"pipe_parallel_size": pp, "model_parallel_size": tp, "sequence_parallel": chance.random() < 0.5,
            "schedule": chance.choice(["gpipe", "1f1b", "zb_h1"]), "zero_optimization": {"stage": chance.randint(0, 3)}}
    if pp == 2 and chance.random() < 0.4:
        keys.update(schedule="interleaved", virtual_chunks=2)
    if pp > 1:
        keys["embedding_sync"] = chance.choice(["fused", "two_step"])
    return keys, pp * tp * dp


class Reshape(RunCase):
    def alone(self, name, **more):
        config = self.config(name, **{**MODEL, **more})
        self.train(config, expect=0)
        return [float(s["loss"]) for s in facts(self.run_dir(config))[0]]

    def test_twenty_random_pairs(self):
        chance = random.Random(5)
        for family, more in (("gpt2", {}), ("llama", {"norm": "rmsnorm", "activation": "swiglu", "pos_emb": "rotary"})):
            expected = self.alone(f"{family}_alone", **more)
            for pair in range(10):
                (first, m), (second, n) = random_layout(chance), random_layout(chance)
                config = self.config(f"{family}{pair}", **{**MODEL, **more, **first})
                at = chance.randint(6, 14)
                done = self.train(config, faults=[{"at": "step.begin", "step": at, "rank": chance.randrange(m), "do": "kill9"}], ranks=m)
                self.assertNotEqual(done.code, 0, str(done))
                after = self.config(f"{family}{pair}", **{**MODEL, **more, **second})
                done = self.train(after, ranks=n, expect=0)
                self.assertIn("resumed", done.out + done.err, f"{first} -> {second}")
                losses = [float(s["loss"]) for s in facts(self.run_dir(after))[0]]
                self.assertEqual(len(losses), STEPS)
                for step, (a, b) in enumerate(zip(expected, losses, strict=True), 1):
                    self.assertAlmostEqual(a, b, delta=1e-5 * step * abs(a), msg=f"{first} -> {second}, step {step}")

    def test_the_same_layout_goes_on_bit_for_bit(self):
        chance = random.Random(6)
        for trial in range(4):
            keys, ranks = random_layout(chance)
            alone = self.config(f"alone{trial}", **{**MODEL, **keys})
            self.train(alone, ranks=ranks, expect=0)
            config = self.config(f"killed{trial}", **{**MODEL, **keys})
            for at in (4, 9, 13):
                self.train(config, faults=[{"at": "step.begin", "step": at, "rank": chance.randrange(ranks), "do": "kill9"}], ranks=ranks)
            self.train(config, ranks=ranks, expect=0)
            self.assert_same_run(alone, config)
            self.assertEqual(len(generations(self.run_dir(config) / "checkpoints")), len(generations(self.run_dir(alone) / "checkpoints")))


if __name__ == "__main__":
    main()
