# check_weight_hash_across_dp_replicas_interval: silent where replicas agree and changes no digit of the run; one flipped bit ends it with 70 and a name.
from run_support import RunCase, facts, main, read_metrics

SIX = {"num_attention_heads": 4, "num_layers": 3, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "train_iters": 6, "eval_iters": 0}
CODED = {"compression": {"preset": "thinwire", "adapt": False}}
# Ranks and keys; the rank whose bit is flipped, and what the error names: the tensor, that rank or another one, and the rank that it differs from.
LAYOUTS = {
    "data": (2, {}, 1, "embedding.word.weight of rank 1 differs from rank 0's"),
    "coded": (2, CODED, 1, "embedding.word.weight of rank 1 differs from rank 0's"),
    "coded_zero1": (3, {**CODED, "train_batch_size": 6, "zero_optimization": {"stage": 1}}, 2, "embedding.word.weight of rank 2 differs from rank 0's"),
    "tied_ends": (2, {"pipe_parallel_size": 2}, 0, "embedding.word.weight of rank 1 differs from rank 0's"),
    # Tries light codes from step 8 on, and ends before a measurement decides anything; both ends of the embedding are one group.
    "tied_light": (4, {"compression": {"preset": "thinwire", "adapt": True}, "zero_optimization": {"stage": 1}, "pipe_parallel_size": 2, "num_layers": 4, "train_iters": 11, "vocab_size": 1024},
                   0, "embedding.word.weight of rank"),
    "tensor_and_data": (4, {**CODED, "model_parallel_size": 2, "precision": "bfloat16"}, 3, "embedding.word.weight of rank 3 differs from rank 1's"),
}
# Here no two ranks keep the same weights from step to step, so there is nothing to compare: the check must disturb nothing.
SHARDED = {
    "zero3": (4, {**CODED, "zero_optimization": {"stage": 3}, "pipe_parallel_size": 2, "schedule": "interleaved", "num_layers": 4, "virtual_chunks": 2}),
    "hpz": (4, {**CODED, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}, "ranks_per_node": 2}),
}
# What an evaluation could disturb: parameter all-gathers that a step leaves for later, whose stochastic rounding is seeded by that step; weights that are held over a step; a
# rule for one end of a tied embedding alone.
CHANCE = {"codec": "block_int", "bits": 8, "rounding": "stochastic", "min_bytes": 0}
TIMED = {
    # Tensor ranks hold whole tensors beside shards that differ in length.
    "uneven": (6, {"model_parallel_size": 3, "num_attention_heads": 6, "hidden_size": 96, "no_weight_tying": True,
                   "compression": {"adapt": False, "dp.gradient": {**CHANCE, "bits": 4}}}),
    "uneven_residual": (6, {"model_parallel_size": 3, "num_attention_heads": 6, "hidden_size": 96, "no_weight_tying": True, "compression":
                            {"adapt": False, "dp.gradient": {"codec": "block_int", "bits": 4, "min_bytes": 0, "residual": "error_feedback", "residual_dtype": "bf16"}}}),
    "uneven_weights": (6, {"model_parallel_size": 3, "num_attention_heads": 6, "hidden_size": 96, "ffn_hidden_size": 257, "zero_optimization": {"stage": 1},
                           "compression": {"adapt": False, "zero.parameter": CHANCE}}),
    # Of the head's 128 and 129 rows the units alone would be 48 and 64 KiB: below and at the size from which uncoded sums go in two levels, in another
    # order. The norm beside it is one tensor on both tensor ranks.
    "uneven_levels": (8, {"model_parallel_size": 2, "hidden_size": 64, "no_weight_tying": True, "make_vocab_size_divisible_by": 1, "vocab_size": 257,
                          "ranks_per_node": 4}),
    # On nodes of five ranks and three one tensor rank's data-parallel group lies evenly, the other's does not.
    "uneven_nodes": (8, {"model_parallel_size": 2, "num_attention_heads": 6, "hidden_size": 96, "ranks_per_node": 5}),
    "chance": (2, {"num_layers": 6, "zero_optimization": {"stage": 1}, "compression": {"adapt": False, "zero.parameter": CHANCE}}),
    "held": (4, {**CODED, "zero_optimization": {"stage": 3}, "pipe_parallel_size": 2, "num_layers": 4, "hold": "step"}),
    "one_sender": (3, {"pipe_parallel_size": 3, "train_batch_size": 6,
                       "compression": {"adapt": False, "pp.forward": {"codec": "block_int", "bits": 8, "min_bytes": 0, "select": {"stages": [0]}}}}),
    "one_end": (4, {"zero_optimization": {"stage": 1}, "pipe_parallel_size": 2, "num_layers": 4, "vocab_size": 1024,
                    "compression": {"adapt": False, "zero.parameter": {**CHANCE, "bits": 4, "select": {"stages": [0]}}}}),
}


def traffic(run_dir):
    """Bytes of every site, step by step; without control, by which hashes are compared."""
    return [{site: (s["logical_bytes"], s["wire_bytes"], s["wire_bytes_total"]) for site, s in m["comm"].items() if site != "control"}
            for m in read_metrics(run_dir) if "loss" in m]


class WeightHash(RunCase):
    plain_runs = {}  # run directories, which the tests share

    def plain(self, name, ranks, keys):
        """The run directory of the same configuration without checks or evaluations."""
        if name not in self.plain_runs:
            config = self.config(name + "_plain", **{**SIX, **keys})
            self.train(config, ranks=ranks, expect=0)
            self.plain_runs[name] = self.run_dir(config)
        return self.plain_runs[name]

    def test_replicas_that_agree_change_nothing(self):
        for name, (ranks, keys, *_) in {**LAYOUTS, **SHARDED, **TIMED}.items():
            with self.subTest(name):
                plain = self.plain(name, ranks, keys)
                checked = self.config(name, **{**SIX, **keys}, check_weight_hash_across_dp_replicas_interval=2)
                self.train(checked, ranks=ranks, expect=0)
                self.assertEqual(facts(plain)[0], facts(self.run_dir(checked))[0])
                self.assertEqual(traffic(plain), traffic(self.run_dir(checked)))

    def test_an_evaluation_changes_nothing(self):
        for name, (ranks, keys, *_) in {**LAYOUTS, **SHARDED, **TIMED}.items():
            with self.subTest(name):
                plain = self.plain(name, ranks, keys)
                evaluated = self.config(name, **{**SIX, **keys, "eval_interval": 2, "eval_iters": 1})
                self.train(evaluated, ranks=ranks, expect=0)
                lines = read_metrics(self.run_dir(evaluated))
                self.assertTrue(any("eval_loss" in m and m["step"] == 2 for m in lines))
                self.assertEqual(facts(plain)[0], facts(self.run_dir(evaluated))[0])
                self.assertEqual(traffic(plain), traffic(self.run_dir(evaluated)))
                control = [[m["comm"]["control"]["wire_bytes"] for m in read_metrics(d) if "loss" in m][1:] for d in (plain, self.run_dir(evaluated))]
                if name != "tied_light":  # what trials have measured is longer or shorter text
                    self.assertEqual(*control)  # behind the first step, which has the start
                if name == "one_sender":  # coded where training codes, and nowhere else
                    trained, own = [next(m["comm"]["pp.forward"] for m in lines if kind in m) for kind in ("loss", "eval_loss")]
                    self.assertLess(own["wire_bytes_total"], own["logical_bytes_total"])
                    self.assertEqual(own["wire_bytes_total"] * trained["logical_bytes_total"], trained["wire_bytes_total"] * own["logical_bytes_total"])
                if name in SHARDED or name == "held":  # weights are gathered for it, and its line says so
                    self.assertTrue(all(m["comm"]["zero.parameter"]["wire_bytes_total"] > 0 for m in lines if "eval_loss" in m))

    def test_a_skipped_update_changes_nothing_either(self):
        # After a skipped step weights are gathered, with stochastic rounding, as after any other.
        poison = [{"at": "grad", "step": 3, "rank": 0, "do": "inf"}]
        for name in ("zero3", "held", "chance3"):
            ranks, keys = {**SHARDED, **TIMED, "chance3": (2, {"zero_optimization": {"stage": 3}, "compression": {"adapt": False, "zero.parameter": CHANCE}})}[name]
            with self.subTest(name):
                plain = self.config(name + "_plain", **{**SIX, **keys})
                evaluated = self.config(name, **{**SIX, **keys, "eval_interval": 3, "eval_iters": 1})
                for config in (plain, evaluated):
                    self.train(config, ranks=ranks, expect=0, faults=poison)
                self.assertEqual([m["skipped"] for m in facts(self.run_dir(plain))[0]], [False, False, True, False, False, False])
                self.assertEqual(facts(self.run_dir(plain))[0], facts(self.run_dir(evaluated))[0])
                self.assertEqual(traffic(self.run_dir(plain)), traffic(self.run_dir(evaluated)))

    def test_a_flipped_bit_is_named(self):
        for name, (ranks, keys, struck, words) in LAYOUTS.items():
            with self.subTest(name):
                config = self.config(name, **{**SIX, **keys}, check_weight_hash_across_dp_replicas_interval=2)
                done = self.train(config, ranks=ranks, expect=70, faults=[{"at": "weights", "step": 4, "do": "flip", "rank": struck}])
                self.assertIn("after step 4 replicas no longer hold the same weights: " + words, done.err, str(done))
                self.assertEqual(self.status(config)["code"], 70)
                self.assertEqual(len(facts(self.run_dir(config))[0]), 4)


if __name__ == "__main__":
    main()
