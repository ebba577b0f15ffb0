# Residuals, warm starts and replicas are training state: with every preset, a run that was killed goes on bit for bit.
import random
import re
import shutil

from run_support import FULL, RunCase, checkpoints_in, facts, main, read_checkpoint, read_metrics, residual_sums, run_program

STEPS = 14
MODEL = {"num_layers": 4, "hidden_size": 48, "num_attention_heads": 4, "train_batch_size": 8, "train_iters": STEPS,
         "save_interval": 4, "hidden_dropout": 0.1, "make_vocab_size_divisible_by": 1, "vocab_size": 257,
         "train_micro_batch_size_per_gpu": 1, "async_save": False}
ZERO1 = {"zero_optimization": {"stage": 1}}
NODES = {"ranks_per_node": 2, "zero_optimization": {"stage": 3}}
PIPE = {"pipe_parallel_size": 2}
MESH = {"pipe_parallel_size": 2, "model_parallel_size": 2, "sequence_parallel": True}

# Preset, keys of a layout that it is made for, ranks.
CASES = [("none", ZERO1, 2), ("identity", MESH, 4), ("bf16_wire", ZERO1, 2), ("optimus_cc", PIPE, 4), ("optimus_cc_emb", PIPE, 4),
         ("optimus_cc_cb_no_lep", PIPE, 2), ("optimus_cc_cb", PIPE, 2), ("optimus_cc_cb_fe", PIPE, 4), ("optimus_cc_cb_fe_sc", PIPE, 4),
         ("naive_zfp", ZERO1, 4), ("naive_mpc", MESH, 4), ("mzhybrid", MESH, 4), ("zhybrid", {**MESH, **ZERO1}, 8),
         ("zeropp", NODES, 4), ("zero_topo", {"ranks_per_node": 2}, 4), ("loco", NODES, 4), ("sdp4bit", {}, 2), ("tagc", {}, 2),
         ("one_bit_adam", {}, 2), ("powersgd", {}, 2), ("thinwire", ZERO1, 2), ("thinwire", MESH, 4), ("thinwire", NODES, 4)]
# They keep nothing from one update to the next, as others of their kind in the list, which stand for them but in the full run.
STATELESS = ("none", "bf16_wire", "naive_mpc", "zhybrid")
# They keep residuals.
REMEMBER = ("optimus_cc", "optimus_cc_emb", "optimus_cc_cb", "optimus_cc_cb_fe", "optimus_cc_cb_fe_sc", "loco", "tagc", "one_bit_adam", "powersgd",
            "thinwire")
RULES = {"optimus_cc_cb_fe_sc": {"dp.gradient": {"rank": 4}}}  # rank 128 would shrink no matrix of so small a model


def decision_of(done):
    return re.search(r"plan revision after step \d+: .*", done.out + done.err)


def wire_bytes(run_dir):
    """By step."""
    return {line["step"]: sum(site["wire_bytes"] for site in line["comm"].values()) for line in read_metrics(run_dir) if "loss" in line}


class CodedResume(RunCase):
    def killed(self, config, step, ranks, rank=0):
        """A run that is killed before this step."""
        done = self.train(config, ranks=ranks, faults=[{"at": "step.begin", "step": step, "rank": rank, "do": "kill9"}])
        self.assertNotEqual(done.code, 0, str(done))

    def assert_codes(self, preset, run_dir):
        """The preset codes something of so small a model, and what it remembers is in the last checkpoint and not zero."""
        sent = [line for line in read_metrics(run_dir) if "loss" in line][-1]["comm"].values()
        if preset not in ("none", "identity", "naive_mpc"):  # without loss nothing need become shorter
            self.assertTrue(any(site["wire_bytes_total"] < site["logical_bytes_total"] for site in sent))
        kept = read_checkpoint(checkpoints_in(run_dir / "checkpoints")[-1])["tensors"]
        if preset in REMEMBER:
            self.assertTrue(any("coding/" in name and "residual" in name and any(data) for name, (_, _, data) in kept.items()))

    def test_every_preset_goes_on_bit_for_bit(self):
        chance = random.Random(8)
        for number, (preset, keys, ranks) in enumerate(CASES):
            if preset in STATELESS and not FULL:
                continue
            with self.subTest(preset=preset, ranks=ranks):
                model = {**MODEL, **keys, "compression": {"preset": preset, "adapt": False, **RULES.get(preset, {})}}
                alone = self.config(f"alone{number}", **model)
                self.train(alone, ranks=ranks, expect=0)
                self.assert_codes(preset, self.run_dir(alone))
                killed = self.config(f"killed{number}", **model)
                for at in (6, 11) if FULL else (chance.choice((6, 11)),):
                    done = self.train(killed, faults=[{"at": "step.begin", "step": at, "rank": chance.randrange(ranks), "do": "kill9"}],
                                      ranks=ranks)
                    self.assertNotEqual(done.code, 0, str(done))
                done = self.go_on(killed, ranks=ranks)
                self.assertNotIn("start at zero", done.out + done.err)
                self.assert_same_run(alone, killed)

    def test_a_rule_for_one_stage(self):
        # Replicas of that stage alone are in the checkpoint; weights of the other are what its masters say, also behind a resume and under another rule.
        rule = {"codec": "block_int", "bits": 4, "min_bytes": 0}
        for tied in (False, True):
            with self.subTest(tied=tied):
                keys = {**MODEL, **PIPE, **ZERO1, "precision": "bfloat16", "no_weight_tying": not tied, "vocab_size": 1024}
                one = {**keys, "compression": {"adapt": False, "zero.parameter": {**rule, "select": {"stages": [0]}}}}
                alone, killed = self.config(f"one_stage{tied}", **one), self.config(f"one_stage_killed{tied}", **one)
                self.train(alone, ranks=4, expect=0)
                kill = [{"at": "step.begin", "step": 6, "rank": 3, "do": "kill9"}]
                self.assertNotEqual(self.train(killed, faults=kill, ranks=4).code, 0)
                other = self.run_dir(self.config(f"other_rule{tied}", **one))
                shutil.copytree(self.run_dir(killed), other)
                self.go_on(killed, ranks=4)
                self.assert_same_run(alone, killed)
                every = self.config(f"other_rule{tied}", **{**keys, "compression": {"adapt": False, "zero.parameter": rule}})
                done = self.train(every, ranks=4, expect=0)
                self.assertIn("resumed", done.out + done.err)
                for line, reference in zip(facts(other)[0], facts(self.run_dir(alone))[0]):
                    self.assertAlmostEqual(float(line["loss"]), float(reference["loss"]), delta=0.05, msg=str(line["step"]))

    def test_what_adapt_decided_is_kept(self):
        # Killed before it can have decided, a run decides later, after at most 163 updates for each of two sites; behind that, each life goes on as the first one did, bit for bit.
        keys = {**MODEL, **ZERO1, "train_iters": 370, "save_interval": 5, "compression": {"preset": "thinwire", "adapt": True}}
        config = self.config("adapting", **keys)
        kill = lambda step: [{"at": "step.begin", "step": step, "rank": 1, "do": "kill9"}]
        said = self.train(config, faults=kill(7), ranks=2)
        self.assertIsNone(decision_of(said), str(said))
        said = self.train(config, faults=kill(366), ranks=2)
        self.assertIsNotNone(decision_of(said), str(said))
        before = wire_bytes(self.run_dir(config))
        twin = self.config("twin", **keys)
        shutil.copytree(self.run_dir(config), self.run_dir(twin))
        self.train(config, ranks=2, expect=0)
        self.assertNotEqual(self.train(twin, faults=kill(369), ranks=2).code, 0)
        done = self.go_on(twin, ranks=2)
        self.assertIsNone(decision_of(done), str(done))
        self.assert_same_run(config, twin)
        after = wire_bytes(self.run_dir(twin))
        self.assertEqual({after[369], after[370]}, {before[365]})  # a life's first update also sends weights as they are

    def test_a_ramp_goes_on_bit_for_bit(self):
        # Rates that change at steps 5 and 10 (half of 20), killed on both sides; bytes say which one was in force.
        gradient = {"codec": "block_int", "bits": [[0, 8], [5, 4], [0.5, 2]], "residual": "error_feedback", "sum": {"codec": "block_int", "bits": [[0, 8], [10, 4]], "residual": "error_feedback"}}
        keys = {**MODEL, "train_iters": 20, "save_interval": 3, "compression": {"dp.gradient": gradient, "pp.forward": {"codec": "top_k", "density": [[0, 0.5], [7, 0.25]]}},
                **PIPE}
        alone, killed = self.config("alone", **keys), self.config("killed", **keys)
        self.train(alone, ranks=4, expect=0)
        for at in (5, 9, 12):
            self.killed(killed, at, 4, rank=1)
        done = self.go_on(killed, ranks=4)
        self.assertNotIn("start at zero", done.out + done.err)
        self.assert_same_run(alone, killed)
        sent = lambda site, what="wire_bytes_total": [line["comm"][site][what] for line in read_metrics(self.run_dir(alone)) if "loss" in line]
        for site, places in (("dp.gradient", (5, 10)), ("pp.forward", (7,))):
            changes = [n for n, (a, b) in enumerate(zip(sent(site), sent(site)[1:]), 1) if a != b]
            self.assertEqual(changes, list(places), site)
            self.assertEqual(sent(site), sorted(sent(site), reverse=True))
        dry = run_program("train", "--config", alone, "--dry-run", "--ranks", 4)
        line = next(text for text in dry.out.splitlines() if text.lstrip().startswith("dp.gradient"))
        self.assertIn("from step 6 block_int(bits=4", line)
        self.assertIn("from step 11 block_int(bits=2", line)
        self.assertIn(str(sent("dp.gradient", "wire_bytes")[-1]), line)

    def test_load_goes_on_as_a_resume_does(self):
        keys = {**MODEL, **ZERO1, "compression": {"preset": "thinwire", "adapt": False}}
        alone, killed = self.config("alone", **keys), self.config("killed", **keys)
        self.train(alone, ranks=2, expect=0)
        self.killed(killed, 10, 2, rank=1)
        loaded = self.config("loaded", **keys, load=str(self.run_dir(killed) / "checkpoints"))
        done = self.train(loaded, ranks=2, expect=0)
        self.assertNotIn("start at zero", done.out + done.err)
        self.assertEqual(facts(self.run_dir(loaded))[0], facts(self.run_dir(alone))[0][8:])  # from the save of step 8 on
        self.assert_same_state(checkpoints_in(self.run_dir(alone) / "checkpoints")[-1], checkpoints_in(self.run_dir(loaded) / "checkpoints")[-1])

    def test_states_of_other_elements_are_not_taken(self):
        # Their names and sizes fit: fewer data ranks, one rank, another layer, another algorithm.
        keys = {**MODEL, **ZERO1, "compression": {"adapt": False, "dp.gradient": {"codec": "block_int", "bits": 4, "residual": "error_feedback", "select": {"layers": [1]}}}}
        base = self.config("base", **keys)
        self.killed(base, 9, 4)
        rule = keys["compression"]["dp.gradient"]
        for name, ranks, changed in (("same", 4, {}), ("fewer", 2, {}), ("one", 1, {}), ("layer", 4, {"select": {"layers": [2]}}), ("ring", 4, {"algorithm": "ring"})):
            with self.subTest(name):
                config = self.config(name, **{**keys, "compression": {"adapt": False, "dp.gradient": {**rule, **changed}}})
                shutil.copytree(self.run_dir(base), self.run_dir(config))
                done = self.train(config, ranks=ranks, expect=0)
                self.assertIn("resumed", done.out + done.err)
                (self.assertNotIn if name in ("same", "fewer") else self.assertIn)("start at zero", done.out + done.err)
                (self.assertIn if name == "fewer" else self.assertNotIn)("dealt out anew", done.out + done.err)

    def test_states_of_another_sum_of_the_embedding_are_not_taken(self):
        # Names and sizes of the residuals fit, and in one sum of both stages' ranks each rank codes other elements than in one of its own stage's.
        keys = {**MODEL, **PIPE, "embedding_sync": "two_step", "compression": {"adapt": False, "embedding": {"codec": "block_int", "bits": 4, "residual": "error_feedback"}}}
        base = self.config("base", **keys)
        self.killed(base, 9, 4)
        for name, sync in (("same", "two_step"), ("other", "fused")):
            with self.subTest(name):
                config = self.config(name, **{**keys, "embedding_sync": sync})
                shutil.copytree(self.run_dir(base), self.run_dir(config))
                done = self.train(config, ranks=4, expect=0)
                self.assertIn("resumed", done.out + done.err)
                (self.assertNotIn if name == "same" else self.assertIn)("start at zero", done.out + done.err)

    def test_a_single_data_rank_has_no_residuals(self):
        keys = {**MODEL, **PIPE, "compression": {"adapt": False, "dp.gradient": {"codec": "block_int", "bits": 4, "residual": "error_feedback"}}}
        config = self.config("base", **keys)
        self.killed(config, 9, 4)
        done = self.train(config, ranks=2, expect=0)
        self.assertIn("residuals and warm starts of the compression start at zero: 2 data ranks wrote the checkpoint, now there are 1", done.out + done.err)

    def test_warm_up_may_change_under_several_rules(self):
        block = {"site": "dp.gradient", "codec": "block_int", "bits": 4, "residual": "error_feedback"}
        rules = lambda steps: {"compression": {"adapt": False, "rules": [{**block, "warmup_steps": steps, "select": {"tensor_classes": ["mlp"]}}, {**block, "bits": 8}]}}
        self.killed(self.config("base", **{**MODEL, **ZERO1, **rules(2)}), 9, 2)
        done = self.train(self.config("base", **{**MODEL, **ZERO1, **rules(3)}), ranks=2, expect=0)
        self.assertIn("resumed", done.out + done.err)
        self.assertNotIn("start at zero", done.out + done.err)

    def test_places_of_a_ramp_may_change(self):
        # Shares of train_iters do with it; another value is another rule.
        rule = lambda last: {"codec": "block_int", "bits": [[0, 8], [0.5, last]], "residual": "error_feedback"}
        for name, last in (("same", 4), ("other", 2)):
            with self.subTest(name):
                config = self.config(f"ramp_{name}", **MODEL, **ZERO1, compression={"adapt": False, "dp.gradient": rule(4)})
                self.killed(config, 9, 2)
                again = self.config(f"ramp_{name}", **{**MODEL, **ZERO1, "train_iters": STEPS + 4, "compression": {"adapt": False, "dp.gradient": rule(last)}})
                done = self.train(again, ranks=2, expect=0)
                self.assertIn("resumed", done.out + done.err)
                (self.assertNotIn if name == "same" else self.assertIn)("start at zero", done.out + done.err)

    def test_residuals_keep_their_sums_under_other_data_ranks(self):
        # 4 ranks, then 3, then 4; 12 sequences are dealt to either.
        block = {"codec": "block_int", "bits": 2, "residual": "error_feedback"}
        rules = {"scatter": (ZERO1, block), "sums": ({}, {**block, "residual_dtype": "bf16", "sum": block}),
                 "low_rank": ({}, {"codec": "low_rank", "rank": 2, "residual": "error_feedback"})}
        for name, (layout, rule) in rules.items():
            with self.subTest(name):
                keys = {**MODEL, **layout, "train_batch_size": 12, "compression": {"adapt": False, "dp.gradient": rule}}
                saved = None
                # Under other ranks the first step is skipped, which leaves residuals as they were loaded; then one is not.
                for life, (ranks, steps) in enumerate(((4, 2), (3, 3), (3, 5), (4, 6))):
                    load = {} if saved is None else {"load": str(saved)}
                    config = self.config(f"{name}{life}", **{**keys, **load, "train_iters": steps, "lr_decay_iters": 6, "save_interval": 0})
                    skips = steps % 3 == 0
                    done = self.train(config, ranks=ranks, faults=[{"at": "grad", "step": steps, "rank": 1, "do": "nan"}] if skips else None, expect=0)
                    before, saved = saved, self.run_dir(config) / "checkpoints"
                    if skips:
                        self.assertIn("dealt out anew", done.out + done.err)
                        sums = [residual_sums(checkpoints_in(d)[-1]) for d in (before, saved)]
                        self.assert_same_sums(*sums, 1 / 128 if name == "sums" else 1e-6)

    def test_other_residuals_start_at_zero_beside_sums_that_stay(self):
        # Only those of dp.gradient are sums over data ranks. The log has to say both, and the first step is skipped, which leaves all as it was loaded.
        rules = {"adapt": False, "dp.gradient": {"codec": "block_int", "bits": 2, "residual": "error_feedback"},
                 "pp.backward": {"codec": "block_int", "bits": 2, "residual": "lazy"}}
        keys = {**MODEL, **PIPE, **ZERO1, "no_weight_tying": True, "train_batch_size": 12, "lr_decay_iters": 6, "save_interval": 0, "compression": rules}
        base = self.config("two_data_ranks", **{**keys, "train_iters": 2})
        self.train(base, ranks=4, expect=0)
        before = checkpoints_in(self.run_dir(base) / "checkpoints")[-1]
        config = self.config("three_data_ranks", **{**keys, "train_iters": 3, "load": str(before.parent)})
        done = self.train(config, ranks=6, faults=[{"at": "grad", "step": 3, "rank": 1, "do": "nan"}], expect=0)
        self.assertIn("residuals of dp.gradient are dealt out anew", done.out + done.err)
        self.assertIn("other residuals and warm starts of the compression start at zero", done.out + done.err)
        after = checkpoints_in(self.run_dir(config) / "checkpoints")[-1]
        self.assert_same_sums(residual_sums(before), residual_sums(after), 1e-6)
        of_pipeline = lambda saved: [any(data) for name, (_, _, data) in read_checkpoint(saved)["tensors"].items() if "coding/pp.backward/" in name and "residual" in name]
        self.assertTrue(any(of_pipeline(before)))
        self.assertTrue(of_pipeline(after))
        self.assertFalse(any(of_pipeline(after)))

    def assert_same_sums(self, before, after, tolerance):
        self.assertEqual(sorted(before), sorted(after))
        self.assertTrue(before)
        for name, sums in before.items():
            largest = max(map(abs, sums))
            self.assertGreater(largest, 0, name)
            self.assertTrue(all(abs(a - b) <= tolerance * largest for a, b in zip(sums, after[name], strict=True)), name)  # NaN is never within

    def test_states_of_other_boundaries_are_not_taken(self):
        # As many ranks of each kind, and what a slot stands between is another layer.
        keys = {**MODEL, **PIPE, "num_layers": 8, "gradient_accumulation_steps": 8, "schedule": "interleaved", "virtual_chunks": 2,
                "compression": {"preset": "optimus_cc_cb", "adapt": False, "pp.backward": {"rank": 2}}}
        base = self.config("chunks", **keys)
        self.killed(base, 9, 2)
        for name, changed in (("same", {}), ("whole", {"schedule": "1f1b", "virtual_chunks": 1}), ("uneven", {"pipe_partition_method": "time", "pipe_partition_costs": [1, 0, 4]})):
            with self.subTest(name):
                config = self.config(name + "_cut", **{**keys, **changed})
                shutil.copytree(self.run_dir(base), self.run_dir(config))
                done = self.train(config, ranks=2, expect=0)
                self.assertIn("resumed", done.out + done.err)
                (self.assertNotIn if name == "same" else self.assertIn)("start at zero", done.out + done.err)

    def test_states_of_other_nodes_are_not_taken(self):
        # As many ranks and states as large: on nodes of four instead of two a rank codes other elements of the sum. The embedding's sum is one of both
        # stages' ranks, which lie on two nodes or on one, where each stage's lie on one anyway.
        rule = {"codec": "block_int", "bits": 4, "residual": "error_feedback", "algorithm": "two_level"}
        for site, layout, ranks in (("dp.gradient", {}, 8), ("embedding", PIPE, 4)):
            keys = {**MODEL, **layout, "compression": {"adapt": False, site: rule}}
            base = self.config(f"{site}_base", **keys, ranks_per_node=2)
            self.killed(base, 9, ranks)
            for name, of_node in (("same", 2), ("other", 4)):
                with self.subTest(site=site, name=name):
                    config = self.config(f"{site}_{name}", **keys, ranks_per_node=of_node)
                    shutil.copytree(self.run_dir(base), self.run_dir(config))
                    done = self.train(config, ranks=ranks, expect=0)
                    self.assertIn("resumed", done.out + done.err)
                    (self.assertNotIn if name == "same" else self.assertIn)("start at zero", done.out + done.err)

    def test_residuals_of_other_tokens_are_not_taken(self):
        # As many ranks that share out the data, and messages as large: where two of them share sequences a row is another token.
        keys = {**MODEL, **PIPE, "compression": {"adapt": False, "pp.backward": {"codec": "block_int", "bits": 4, "residual": "lazy"}}}
        base = self.config("tokens", **keys)
        self.killed(base, 9, 4)
        for name, changed in (("same", {}), ("other", {"context_parallel_size": 2, "train_micro_batch_size_per_gpu": 2})):
            with self.subTest(name):
                config = self.config(f"{name}_tokens", **{**keys, **changed})
                shutil.copytree(self.run_dir(base), self.run_dir(config))
                done = self.train(config, ranks=4, expect=0)
                self.assertIn("resumed", done.out + done.err)
                (self.assertNotIn if name == "same" else self.assertIn)("start at zero", done.out + done.err)

    def test_parts_of_pipeline_messages(self):
        # Residuals are as large as the parts: they go on bit for bit, and start anew where the same ranks send whole messages from now on.
        keys = {**MODEL, **PIPE, "model_parallel_size": 2, "compression": {"adapt": False, "pp.backward": {"codec": "low_rank", "rank": 4, "residual": "lazy"}}}
        alone, killed = self.config("alone", **keys), self.config("killed", **keys)
        self.train(alone, ranks=4, expect=0)
        self.killed(killed, 7, 4, rank=2)
        whole = self.config("whole", **keys, scatter_gather_tensors_in_pipeline=False)
        shutil.copytree(self.run_dir(killed), self.run_dir(whole))
        done = self.go_on(killed, ranks=4)
        self.assertNotIn("start at zero", done.out + done.err)
        self.assert_same_run(alone, killed)
        done = self.train(whole, ranks=4, expect=0)
        self.assertIn("start at zero", done.out + done.err)

    def test_another_layout_says_that_residuals_start_anew(self):
        keys = {**MODEL, "compression": {"preset": "thinwire", "adapt": False}}
        config = self.config("reshaped", **keys)
        self.killed(config, 9, 2)
        other = self.config("reshaped", **{**keys, **PIPE})
        done = self.train(other, ranks=2, expect=0)
        self.assertIn("start at zero", done.out + done.err)
        self.assertEqual(len(facts(self.run_dir(other))[0]), STEPS)


if __name__ == "__main__":
    main()
