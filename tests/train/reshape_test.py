# Killed under one layout, continued under another: the loss goes on within tolerance; under the same one: the same bits.
import collections
import random

from run_support import FULL, RunCase, checkpoints_in, facts, main

STEPS = 16
MODEL = {"num_layers": 5, "hidden_size": 48, "num_attention_heads": 12, "num_kv_heads": 12, "train_batch_size": 12,
         "train_iters": STEPS, "save_interval": 5, "hidden_dropout": 0.1, "make_vocab_size_divisible_by": 1, "vocab_size": 257,
         "train_micro_batch_size_per_gpu": 1, "ranks_per_node": 2, "async_save": False}
ZERO = {f"ZeRO-{stage}": {"zero_optimization": {"stage": stage}} for stage in range(4)}
# For data-parallel groups that are made of nodes of two.
LEVELS = {"hpZ": {"zero_optimization": {"stage": 3}, "placement": {"secondary": "node"}},
          "MiCS": {"placement": {"weights": "node", "gradients": "node", "optimizer": "node"}},
          "3-level": {"placement": {"weights": "pair", "gradients": "node", "optimizer": "global"}}}
RECOMPUTE = ["none", "selective", "full"]


def random_layout(chance, drawn=None):
    """Keys of a layout over at most six ranks, and how many ranks it needs; `drawn` counts what they hold."""
    while True:
        pp, tp, dp = chance.choice([1, 1, 2, 3]), chance.choice([1, 2, 3]), chance.choice([1, 2, 3, 4, 6])
        if 1 <= pp * tp * dp <= 6:
            break
    keys = {"pipe_parallel_size": pp, "model_parallel_size": tp, "sequence_parallel": chance.random() < 0.5,
            "schedule": chance.choice(["gpipe", "1f1b", "zb_h1"]), "recompute_granularity": chance.choice(RECOMPUTE)}
    levels = chance.random() < (0.7 if dp % 2 == 0 and dp > 2 else 0.3 if dp == 2 and tp < 3 else 0.0)
    placement, more = chance.choice(list((LEVELS if levels else ZERO).items()))
    keys.update(more, ranks_per_node=2 * tp if levels else 2)
    if pp == 2 and chance.random() < 0.4:
        keys.update(schedule="interleaved", virtual_chunks=2)
    if pp > 1:
        keys["embedding_sync"] = chance.choice(["fused", "two_step"])
    cp = chance.choice([c for c in (1, 2, 3) if pp * tp * dp * c <= 6 and not (levels and c > 1)])
    ways = ["all_gather", "p2p"] + (["a2a"] if cp == 2 and tp == 1 else [])
    keys.update(context_parallel_size=cp, cp_comm_type=random.Random(f"{keys} {cp}").choice(ways))
    if drawn is not None:
        drawn.update([placement, keys["recompute_granularity"], f"context {cp}"] + ([keys["cp_comm_type"]] if cp > 1 else []))
    return keys, pp * tp * dp * cp


class Reshape(RunCase):
    def alone(self, name, **more):
        config = self.config(name, **{**MODEL, **more})
        self.train(config, expect=0)
        return [float(s["loss"]) for s in facts(self.run_dir(config))[0]]

    def test_twenty_random_pairs(self):
        # In the full run. Otherwise seven, by a seed with which they hold all that twenty do.
        chance, drawn = random.Random(1 if FULL else 40), collections.Counter()
        llama = {"norm": "rmsnorm", "activation": "swiglu", "pos_emb": "rotary"}
        # The tolerance is relative and grows by the step; bf16 rounds what layouts sum in another order.
        for family, more, pairs, tolerance in (("gpt2", {}, 7 if FULL else 3, 1e-7), ("llama", llama, 7 if FULL else 2, 1e-7),
                                               ("llama_bf16", {**llama, "precision": "bf16"}, 6 if FULL else 2, 2e-5)):
            expected = self.alone(f"{family}_alone", **more)
            for pair in range(pairs):
                (first, m), (second, n) = random_layout(chance, drawn), random_layout(chance, drawn)
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
                    self.assertAlmostEqual(a, b, delta=tolerance * step * abs(a), msg=f"{first} -> {second}, step {step}")
        self.assertEqual(set(drawn), {*ZERO, *LEVELS, *RECOMPUTE, "context 1", "context 2", "context 3", "all_gather", "a2a", "p2p"}, drawn)

    def test_the_same_layout_goes_on_bit_for_bit(self):
        chance = random.Random(6)
        for trial in range(4 if FULL else 2):
            keys, ranks = random_layout(chance)
            alone = self.config(f"alone{trial}", **{**MODEL, **keys})
            self.train(alone, ranks=ranks, expect=0)
            config = self.config(f"killed{trial}", **{**MODEL, **keys})
            for at in (4, 9, 13):
                done = self.train(config, faults=[{"at": "step.begin", "step": at, "rank": chance.randrange(ranks), "do": "kill9"}], ranks=ranks)
                self.assertNotEqual(done.code, 0, str(done))
            self.go_on(config, ranks=ranks)
            self.assert_same_run(alone, config)
            self.assertEqual(len(checkpoints_in(self.run_dir(config) / "checkpoints")), len(checkpoints_in(self.run_dir(alone) / "checkpoints")))


if __name__ == "__main__":
    main()
