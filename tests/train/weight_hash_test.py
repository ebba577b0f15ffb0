# check_weight_hash_across_dp_replicas_interval: silent where replicas agree and changes no digit of the run; one flipped bit ends it with 70 and a name.
from run_support import RunCase, facts, main, read_metrics

SIX = {"num_attention_heads": 4, "num_layers": 3, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "train_iters": 6, "eval_iters": 0}
CODED = {"compression": {"preset": "thinwire", "adapt": False}}
# Ranks and keys; the rank that is struck, and who is named then (first what is shared with the other ranks).
LAYOUTS = {
    "data": (2, {}, 1, "embedding.word.weight of rank 1 differs from rank 0's"),
    "coded": (2, CODED, 1, "embedding.word.weight of rank 1 differs from rank 0's"),
    "coded_zero1": (3, {**CODED, "train_batch_size": 6, "zero_optimization": {"stage": 1}}, 2, "embedding.word.weight of rank 2 differs from rank 0's"),
    "tied_ends": (2, {"pipe_parallel_size": 2}, 0, "embedding.word.weight of rank 1 differs from rank 0's"),
    "tensor_and_data": (4, {**CODED, "model_parallel_size": 2, "precision": "bfloat16"}, 3, "embedding.word.weight of rank 3 differs from rank 1's"),
}
# Nothing of these ranks outlives an update that another has, too: only that the comparison itself holds.
SHARDED = {
    "zero3": (4, {**CODED, "zero_optimization": {"stage": 3}, "pipe_parallel_size": 2, "schedule": "interleaved", "num_layers": 4, "virtual_chunks": 2}),
    "hpz": (4, {**CODED, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}, "ranks_per_node": 2}),
}


class WeightHash(RunCase):
    def test_replicas_that_agree_change_nothing(self):
        for name, (ranks, keys, *_) in {**LAYOUTS, **SHARDED}.items():
            with self.subTest(name):
                plain = self.config(name + "_plain", **{**SIX, **keys})
                checked = self.config(name, **{**SIX, **keys}, check_weight_hash_across_dp_replicas_interval=2)
                self.train(plain, ranks=ranks, expect=0)
                self.train(checked, ranks=ranks, expect=0)
                self.assertEqual(facts(self.run_dir(plain))[0], facts(self.run_dir(checked))[0])

    def test_an_evaluation_changes_nothing(self):
        for name, (ranks, keys, *_) in {**LAYOUTS, **SHARDED}.items():
            with self.subTest(name):
                plain = self.config(name + "_plain", **{**SIX, **keys})
                evaluated = self.config(name, **{**SIX, **keys, "eval_interval": 2, "eval_iters": 1})
                self.train(plain, ranks=ranks, expect=0)
                self.train(evaluated, ranks=ranks, expect=0)
                lines = [read_metrics(self.run_dir(c)) for c in (plain, evaluated)]
                self.assertTrue(any("eval_loss" in m and m["step"] == 2 for m in lines[1]))
                self.assertEqual(facts(self.run_dir(plain))[0], facts(self.run_dir(evaluated))[0])

    def test_a_flipped_bit_is_named(self):
        for name, (ranks, keys, struck, words) in LAYOUTS.items():
            with self.subTest(name):
                config = self.config(name, **{**SIX, **keys}, check_weight_hash_across_dp_replicas_interval=2)
                done = self.train(config, ranks=ranks, expect=70, faults=[{"at": "weights", "step": 4, "do": "flip", "rank": struck}])
                self.assertIn("after update 4 replicas no longer hold the same weights: " + words, done.err, str(done))
                self.assertEqual(self.status(config)["code"], 70)
                self.assertEqual(len(facts(self.run_dir(config))[0]), 4)


if __name__ == "__main__":
    main()
