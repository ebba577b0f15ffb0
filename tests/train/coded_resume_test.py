# Residuals, warm starts and replicas are training state: with every preset, a run that was killed goes on bit for bit.
import random
import unittest

from run_support import RunCase, facts, main

STEPS = 14
MODEL = {"num_layers": 4, "hidden_size": 48, "num_attention_heads": 4, "train_batch_size": 8, "train_iters": STEPS,
         "save_interval": 4, "hidden_dropout": 0.1, "make_vocab_size_divisible_by": 1, "vocab_size": 257,
         "train_micro_batch_size_per_gpu": 1, "async_save": False}
ZERO1 = {"zero_optimization": {"stage": 1}}
NODES = {"ranks_per_node": 2, "zero_optimization": {"stage": 3}}
PIPE = {"pipe_parallel_size": 2}
MESH = {"pipe_parallel_size": 2, "model_parallel_size": 2, "sequence_parallel": True}

# Preset, keys of a layout that it is made for, ranks.
CASES = [("bf16_wire", ZERO1, 2), ("optimus_cc", PIPE, 4), ("optimus_cc_emb", PIPE, 4), ("optimus_cc_cb_no_lep", PIPE, 2),
         ("naive_zfp", ZERO1, 4), ("naive_mpc", MESH, 4), ("mzhybrid", MESH, 4), ("zhybrid", {**MESH, **ZERO1}, 8),
         ("zeropp", NODES, 4), ("zero_topo", {"ranks_per_node": 2}, 4), ("loco", NODES, 4), ("sdp4bit", {}, 2), ("tagc", {}, 2),
         ("one_bit_adam", {}, 2), ("powersgd", {}, 2), ("thinwire", ZERO1, 2), ("thinwire", MESH, 4), ("thinwire", NODES, 4)]


class CodedResume(RunCase):
    def test_every_preset_goes_on_bit_for_bit(self):
        chance = random.Random(8)
        for number, (preset, keys, ranks) in enumerate(CASES):
            with self.subTest(preset=preset, ranks=ranks):
                model = {**MODEL, **keys, "compression": {"preset": preset, "adapt": False}}
                alone = self.config(f"alone{number}", **model)
                self.train(alone, ranks=ranks, expect=0)
                killed = self.config(f"killed{number}", **model)
                for at in (6, 11):
                    done = self.train(killed, faults=[{"at": "step.begin", "step": at, "rank": chance.randrange(ranks), "do": "kill9"}],
                                      ranks=ranks)
                    self.assertNotEqual(done.code, 0, str(done))
                done = self.train(killed, ranks=ranks, expect=0)
                self.assertIn("resumed", done.out + done.err)
                self.assertNotIn("start at zero", done.out + done.err)
                self.assert_same_run(alone, killed)

    def test_another_layout_says_that_residuals_start_anew(self):
        keys = {**MODEL, "compression": {"preset": "thinwire", "adapt": False}}
        config = self.config("reshaped", **keys)
        self.train(config, ranks=2, faults=[{"at": "step.begin", "step": 9, "rank": 0, "do": "kill9"}])
        other = self.config("reshaped", **{**keys, **PIPE})
        done = self.train(other, ranks=2, expect=0)
        self.assertIn("start at zero", done.out + done.err)
        self.assertEqual(len(facts(self.run_dir(other))[0]), STEPS)


if __name__ == "__main__":
    main()
