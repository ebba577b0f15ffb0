# What a run refuses and what it accepts when it starts on a directory that has a past, and how it copes with full disks.
import json
import os
import re
import resource
import shutil
import struct
from pathlib import Path

from run_support import BUILD, LAUNCH, ROOT, RunCase, Running, checkpoints_in, facts, main, mount_small, read_checkpoint, read_metrics, resize_mount, run_program, unmount

PACE = {"at": "step.begin", "do": "delay:0.05"}


def flip(path, offset, mask=0x10):
    data = bytearray(Path(path).read_bytes())
    data[offset] ^= mask
    Path(path).write_bytes(bytes(data))


class Refusals(RunCase):
    def half_done(self, name="run", **keys):
        """A run that was stopped by the clock after some steps."""
        config = self.config(name, **{"train_iters": 12, "save_interval": 2, **keys})
        done = self.train(config, faults=[{"at": "step.begin", "step": 8, "do": "kill9"}])
        self.assertEqual(done.code, -9)
        return config

    def files(self, config):
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in (self.run_dir(config) / "checkpoints").glob("step_??????/*")}

    def test_a_wrong_environment_of_one_rank_is_refused_by_all(self):
        train = [str(BUILD / "train"), "--config", str(self.config("wishes", train_micro_batch_size_per_gpu=1))]
        for wish, words in (("THINWIRE_DELAY_US=soon", "a whole number of microseconds is needed"), ("THINWIRE_NODE_MEMORY=off", "use 0 or 1")):
            done = Running("train", command=[*LAUNCH, "-n", "1", *train, ":", "-n", "1", "env", wish, *train], cwd=self.here).finish()
            self.expect(done, 78)
            self.assertRegex(done.errors()[0], rf"^error: rank 1 \(.+\): {wish}: {words}")

    def test_second_process_is_turned_away(self):
        config = self.config("shared")
        first = self.start(config, faults=[{"at": "step.begin", "step": 2, "do": "delay:3"}])
        self.assertTrue(first.wait_for("delay at step.begin, step 2"))
        with first.stopped():  # the second one takes the time that it takes
            before = (self.run_dir(config) / "metrics.jsonl").read_text()
            status = self.status(config)
            second = self.train(config)
            self.expect(second, 73)
            self.assertIn(f"pid {first.process.pid}", second.errors()[0])
            self.assertIn(os.uname().nodename, second.errors()[0])
            self.assertEqual((self.run_dir(config) / "metrics.jsonl").read_text(), before)
            self.assertEqual(self.status(config)["pid"], status["pid"])
        self.assertEqual(first.finish().code, 0)
        self.assertEqual(self.status(config)["state"], "finished")

    def test_a_job_that_lost_its_directory_leaves_it_to_the_other(self):
        """As behind SIGCONT, when a job on another host has taken the directory over meanwhile."""
        config = self.config("lost")
        first = self.start(config, faults=[{"at": "step.begin", "step": 3, "do": "delay:2.5"}])
        self.assertTrue(first.wait_for("delay at step.begin, step 3"))
        run = self.run_dir(config)
        with first.stopped():
            lease = json.dumps({"host": "elsewhere", "pid": 1, "job": "2", "token": "another", "heartbeat": 0.0})
            for place in (run, run / "checkpoints"):
                (place / "lease.new").write_text(lease)
                os.replace(place / "lease.new", place / "lease.json")
            status = json.dumps(dict(self.status(config), host="elsewhere"))
            (run / "status.json").write_text(status)
        done = first.finish()
        self.expect(done, 73)
        self.assertIn("taken over by host elsewhere", done.errors()[0])
        self.assertEqual((run / "status.json").read_text(), status)
        self.assertEqual([line["step"] for line in read_metrics(run)], [1, 2])
        self.assertEqual((run / "lease.json").read_text(), lease)
        self.assertFalse((run / "report.html").exists())

    def test_a_run_directory_has_one_run_wherever_it_saves(self):
        """Metrics and status lie in run_dir, whatever `save` says: beside it, below it, or the directory itself."""
        for i, (one, two) in enumerate(((None, "other"), ("some", "other"), ("d0/a", "d0/b"), ("d0", "other"), ("other", "d0"))):
            with self.subTest(first=one, second=two):
                place = lambda name: {"save": str(self.here / name.replace("d0", f"d{i}"))} if name else {}
                config = self.config(f"d{i}", **place(one))
                first = self.start(config, faults=[{"at": "step.begin", "step": 2, "do": "delay:3"}])
                self.assertTrue(first.wait_for("delay at step.begin, step 2"))
                with first.stopped():
                    second = self.train(config, *(f"save={path}" for path in place(two).values()))
                self.expect(second, 73)
                self.assertIn(f"pid {first.process.pid}", second.errors()[0])
                self.assertEqual(first.finish().code, 0)
                self.assertEqual([line["step"] for line in read_metrics(self.run_dir(config)) if "loss" in line], list(range(1, 11)))
                self.train(config, expect=0)

    def test_several_ranks_are_not_several_runs(self):
        """One refusal, from rank 0; the others leave with the same code and say nothing. Printing modes speak once."""
        config = self.config("ranks")
        for names in (("PMI_SIZE", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")):
            for rank in (0, 1):
                with self.subTest(names=names, rank=rank):
                    launched = {names[0]: "2", names[1]: str(rank)}
                    done = run_program("train", "--config", config, cwd=self.here, extra=launched)
                    self.assertEqual((done.code, len(done.errors())), (78, 1 - rank), str(done))
                    self.assertIn("the launcher started 2 processes" if rank == 0 else "", done.err)
                    self.assertFalse(self.run_dir(config).exists())
                    done = run_program("train", "--config", config, "train_batch_size=8", "--dry-run", cwd=self.here, extra=launched)
                    self.assertEqual((done.code, "ranks: 2 = pipeline 1 x data 2" in done.out), (0, rank == 0), str(done))
                    done = run_program("reference_check", ROOT / "tests/golden/models/llama_gqa", cwd=self.here, extra=launched)
                    self.assertEqual((done.code, len(done.errors())), (78, 1 - rank), str(done))
        # What a shell inherits from a job step of one task.
        alone = {"PMI_SIZE": "1", "PMI_RANK": "0"}
        second = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
        done = run_program("train", "--config", config, "train_batch_size=8", "--dry-run", cwd=self.here, extra=alone | second)
        self.assertEqual((done.code, done.out), (0, ""), "rank 1 of Open MPI says nothing")
        done = run_program("train", "--config", config, cwd=self.here, extra=alone | {"SLURM_NTASKS": "8"})
        self.expect(done, 0)

    def test_log_holds_how_the_run_ended(self):
        config = self.config("ended", vocab_size=300, make_vocab_size_divisible_by=1)
        self.train(config, "save_interval=2", "train_iters=3", expect=0)
        done = self.train(config, "hidden_size=64", expect=78)
        log = (self.run_dir(config) / "log.txt").read_text()
        self.assertIn("ended with code 0 at step 3", log)
        self.assertIn("belongs to another model", log)
        self.assertIn("ended with code 78", log)
        self.assertEqual(len(done.errors()), 1, str(done))

    def test_changed_model_and_data_keys(self):
        config = self.half_done()
        files = self.files(config)
        resolved = (self.run_dir(config) / "config.resolved.json").read_text()
        other = self.here / "other.txt"
        other.write_text("another text altogether\n\n" * 900)
        self.assertEqual(run_program("tokenize", "--input", other, "--tokenizer", "byte", "--output", self.here / "other").code, 0)
        cases = [("hidden_size=64", "32", "64"), ("num_layers=3", "2", "3"), ("seq_length=16", "32", "16"), ("norm=rmsnorm", "layernorm", "rmsnorm"),
                 ("optimizer.type=sgd", "adam", "sgd"), ("seed=4", "1234", "4"), ("split=70,20,10", "80", "70"), ("hidden_dropout=0.5", "0", "0.5"),
                 (f"data_path={self.here / 'other_text_document'}", r"\S+", r"\S+")]
        for override, was, now in cases:
            with self.subTest(override):
                done = self.train(config, override)
                self.expect(done, 78)
                key = override.split("=")[0]
                self.assertRegex(done.err, rf"\n  data files: checkpoint {was}, now {now}\n" if key == "data_path" else
                                 rf'\n  {re.escape(key)}: ["\[]?{was}[^\n]* in the checkpoint, ["\[]?{now}[^\n]* here\n')
                self.assertEqual(self.status(config)["code"], 78)
        self.assertEqual(self.files(config), files, "a refusal changes nothing")
        self.assertEqual((self.run_dir(config) / "config.resolved.json").read_text(), resolved, "nor the record of the run's configuration")
        self.train(config, expect=0)

    def test_changed_runtime_keys(self):
        config = self.half_done()
        done = self.train(config, "lr=5e-4", "save_interval=5", "threads_per_rank=2", "log_interval=3", "eval_interval=4", "async_save=false",
                          "keep_last_n_checkpoints=2", "recompute_granularity=full", "peak_theoretical_tflops=1")
        self.expect(done, 0)
        self.assertIn("resumed from", done.err)
        steps, evals = facts(self.run_dir(config))
        self.assertLess(float(steps[6]["lr"]), 4.5e-4, "under the old peak more than 5.5e-4 there")
        self.assertIn((8, "valid"), [(e["step"], e["split"]) for e in evals])
        self.assertEqual(len(checkpoints_in(self.run_dir(config) / "checkpoints")), 2)

    def test_moved_data_is_the_same_data(self):
        config = self.half_done()
        for end in (".bin", ".idx"):
            shutil.copy(str(self.prefix) + end, str(self.here / "moved") + end)
        self.expect(self.train(config, f"data_path={self.here / 'moved'}"), 0)

    def test_a_tokenizer_may_move(self):
        there, here = self.here / "there.json", self.here / "here.json"
        shutil.copy(ROOT / "tests/golden/bpe/gpt2/tokenizer.json", there)
        config = self.half_done("tokenizer", tokenizer=f"bpe:{there}", vocab_size=50257)
        there.rename(here)
        self.expect(self.train(config, f"tokenizer=bpe:{here}"), 0)

    def test_newest_damaged_falls_back(self):
        alone = self.config("alone", train_iters=12, save_interval=2)
        self.train(alone, expect=0)
        config = self.half_done(async_save=False)
        newest = checkpoints_in(self.run_dir(config) / "checkpoints")[-1]
        self.assertEqual(newest.name, "step_000006")
        flip(newest / "shard_00000.safetensors", -5)
        done = self.train(config)
        self.expect(done, 0)
        self.assertIn("step_000006 refused", done.err)
        self.assertIn("step_000004: step 4", done.err)
        self.assert_same_run(alone, config)

    def test_all_damaged_is_never_a_silent_restart(self):
        config = self.half_done()
        metrics = (self.run_dir(config) / "metrics.jsonl").read_text()
        damage = [lambda g: flip(g / "shard_00000.safetensors", 900), lambda g: (g / "manifest.json").unlink(),
                  lambda g: os.truncate(g / "shard_00000.safetensors", 1000), lambda g: (g / "manifest.json").write_text("{}")]
        all_of_them = checkpoints_in(self.run_dir(config) / "checkpoints")
        for i, checkpoint in enumerate(all_of_them):
            damage[i % len(damage)](checkpoint)
        done = self.train(config)
        self.expect(done, 65)
        for checkpoint in all_of_them:
            self.assertIn(checkpoint.name, done.err)
        self.assertEqual(self.status(config)["code"], 65)
        self.assertEqual((self.run_dir(config) / "metrics.jsonl").read_text(), metrics)

    def test_keep_last(self):
        for keep, left in ((1, 2), (2, 2), (3, 3), (0, 6)):
            config = self.config(f"keep{keep}", train_iters=12, save_interval=2, keep_last_n_checkpoints=keep)
            self.train(config, expect=0)
            kept = checkpoints_in(self.run_dir(config) / "checkpoints")
            self.assertEqual([g.name for g in kept], [f"step_{s:06d}" for s in range(12, 12 - 2 * left, -2)][::-1])
            self.assertEqual(run_program("checkpoint", "verify", self.run_dir(config)).code, 0)

    def test_load_from_elsewhere(self):
        old = self.half_done("old", async_save=False)  # saved steps 2, 4, 6
        alone = self.config("alone", train_iters=12, save_interval=2)
        self.train(alone, expect=0)
        with self.subTest("load goes on at the step of the checkpoint"):
            new = self.config("new", train_iters=12, save_interval=2, load=str(self.run_dir(old)))
            self.train(new, expect=0)
            steps = facts(self.run_dir(new))[0]
            self.assertEqual(steps, facts(self.run_dir(alone))[0][6:])
            self.assert_same_state(checkpoints_in(self.run_dir(alone) / "checkpoints")[-1], checkpoints_in(self.run_dir(new) / "checkpoints")[-1])
        with self.subTest("load refuses another model"):
            self.expect(self.train(self.config("wide", load=str(self.run_dir(old)), hidden_size=64)), 78)
        with self.subTest("finetune takes the weights only"):
            new = self.config("tuned", train_iters=1, load=str(self.run_dir(old) / "checkpoints" / "step_000006"), finetune=True, lr=1e-9, min_lr=0,
                              warmup=0, weight_decay=0)
            self.train(new, expect=0)
            steps = facts(self.run_dir(new))[0]
            self.assertEqual((steps[0]["step"], steps[0]["consumed_samples"]), (1, 4))
            self.assertLess(float(steps[0]["loss"]), float(facts(self.run_dir(alone))[0][0]["loss"]) - 0.1)
        with self.subTest("finetune may change the data and the sequence"):
            new = self.config("tuned2", train_iters=2, load=str(self.run_dir(old)), finetune=True, split="60,40,0", seed=8, train_batch_size=8)
            self.train(new, expect=0)
        with self.subTest("no_load_optim keeps the step, not the moments or the place in the schedule"):
            new = self.config("bare", train_iters=12, save_interval=2, load=str(self.run_dir(old)), no_load_optim=True)
            self.train(new, expect=0)
            steps, reference = facts(self.run_dir(new))[0], facts(self.run_dir(alone))[0][6:]
            self.assertEqual((steps[0]["step"], steps[0]["loss"]), (7, reference[0]["loss"]))
            self.assertEqual([s["lr"] for s in steps], [s["lr"] for s in facts(self.run_dir(alone))[0][:6]])
            self.assertNotEqual(steps[1]["loss"], reference[1]["loss"])
        with self.subTest("moments that begin anew are corrected by their own age, across a restart, too"):
            keys = dict(train_iters=12, save_interval=1, load=str(self.run_dir(old)), no_load_optim=True, weight_decay=0, lr=1e-3, warmup=0,
                        lr_decay_style="constant")
            new, again = self.config("young", **keys), self.config("young2", **keys)
            self.train(new, expect=0)
            self.assertEqual(self.train(again, faults=[{"at": "step.begin", "step": 9, "do": "kill9"}]).code, -9)
            self.go_on(again)
            self.assert_same_run(new, again)
            before, after = (read_checkpoint(g)["tensors"] for g in (checkpoints_in(self.run_dir(old) / "checkpoints")[-1],
                                                                     checkpoints_in(self.run_dir(new) / "checkpoints")[0]))
            moved = []
            for name, (dtype, _, data) in before.items():
                if name.startswith("model/layers.") and name.endswith("weight"):
                    a, b = (struct.unpack(f"<{len(d) // 4}f", d) for d in (data, after[name][2]))
                    moved += [abs(x - y) for x, y in zip(a, b)]
            # Adam's first update moves every element by the learning rate, whatever the gradient.
            self.assertAlmostEqual(sorted(moved)[len(moved) // 2], 1e-3, delta=1e-5)
        with self.subTest("load is not used where the run has a checkpoint, and says so"):
            done = self.train(old, f"load={self.run_dir(alone)}", expect=0)
            self.assertEqual(facts(self.run_dir(old)), facts(self.run_dir(alone)))
            warned = [line for line in done.err.splitlines() if line.startswith("warning: load")]
            self.assertEqual(len(warned), 1, str(done))
            for part in (str(self.run_dir(alone)), str(self.run_dir(old)), "step 6", "another run_dir"):
                self.assertIn(part, warned[0])
            self.assertNotIn("load=", self.train(old, expect=0).err)
            done = self.train(old, "num_layers=3", f"load={self.run_dir(alone)}", "finetune=true", expect=78)
            self.assertIn("another run_dir", done.err, "load and finetune in this one would end here again")
        with self.subTest("load of nothing"):
            done = self.train(self.config("none", load=str(self.here / "nowhere")), expect=65)
            self.assertIn(f"load: {self.here / 'nowhere'}: no such directory", done.errors()[0])

    def test_init_from_hf(self):
        old = self.config("old", train_iters=6, make_vocab_size_divisible_by=1, bias_gelu_fusion=True, max_position_embeddings=32)
        self.train(old, expect=0)
        exported = self.here / "hf"
        self.assertEqual(run_program("checkpoint", "export", self.run_dir(old), "--format", "hf", "--output", exported).code, 0)
        new = self.config("new", train_iters=2, save_interval=1, make_vocab_size_divisible_by=1, bias_gelu_fusion=True, lr=0, min_lr=0,
                          init_from_hf=str(exported))
        self.train(new, expect=0)
        weights = lambda c: {k: v for k, v in read_checkpoint(checkpoints_in(self.run_dir(c) / "checkpoints")[-1])["tensors"].items()
                             if k.startswith("model/")}
        self.assertEqual(weights(new), weights(old), "weights go out and come back bit for bit")
        wrong = self.config("wrong", init_from_hf=str(exported), num_layers=3, make_vocab_size_divisible_by=1, bias_gelu_fusion=True)
        done = self.train(wrong)
        self.assertIn(done.code, (65, 78), str(done))
        self.assertEqual(len(done.errors()), 1)

    def test_weights_of_another_model(self):
        """Numbers that no name and no shape gives away."""
        same = dict(make_vocab_size_divisible_by=1, pos_emb="rotary", rotary_pct=0.5, no_weight_tying=True)
        old = self.config("old", train_iters=1, **same)
        self.train(old, expect=0)
        exported = self.here / "hf"
        self.assertEqual(run_program("checkpoint", "export", self.run_dir(old), "--format", "hf", "--output", exported).code, 0)
        sources = {"finetune": dict(load=str(self.run_dir(old)), finetune=True), "init_from_hf": dict(init_from_hf=str(exported))}
        cases = [("num_attention_heads", 4, "2", "4"), ("num_layers", 1, "2", "1"), ("rotary_emb_base", 5000, "10000", "5000"),
                 ("rotary_pct", 0.25, "0.5", "0.25"), ("layernorm_epsilon", 1e-3, "1e-05", "0.001"),
                 ("bias_gelu_fusion", True, '"gelu"', '"gelu_tanh"'), ("gpt_j_residual", True, "false", "true"),
                 ("no_weight_tying", False, "false", "true"), ("use_bias_in_attn_linear", False, "true", "false"),
                 ("ffn_hidden_size", 64, "128", "64"), ("vocab_size", 300, "256", "300"), ("pos_emb", "learned", '"rotary"', '"learned"')]
        for source, where in sources.items():
            for key, value, was, now in cases:
                with self.subTest(source=source, key=key):
                    if (source, key) == ("finetune", "rotary_emb_base"):  # a longer context asks for another base, and for a window
                        done = self.train(self.config("longer", train_iters=1, **{**same, **where, key: value, "sliding_window_width": 7}), expect=0)
                        self.assertRegex(done.err, r"\n  rotary_base: 10000(\.0)?, here 5000(\.0)? \(rotary_emb_base\)\n  window: none, here 7 \(sliding_window_width\)\n")
                        continue
                    done = self.train(self.config(f"other-{source}-{key}", train_iters=1, **{**same, **where, key: value}))
                    self.expect(done, 78)
                    self.assertRegex(done.err, rf"\n  [a-z_]+: {was}(\.0)?, here {now}(\.0)? \(.*{key}\)\n")
            with self.subTest("what does not change what weights compute", source=source):
                free = dict(hidden_dropout=0.1, attention_dropout=0.1, precision="bfloat16", seq_length=16, init_method_std=0.01, seed=5,
                            max_position_embeddings=64)
                self.train(self.config(f"free-{source}", train_iters=1, **{**same, **where, **free}), expect=0)
        with self.subTest("no config.json"):
            (exported / "config.json").unlink()
            self.expect(self.train(self.config("bare", **same, init_from_hf=str(exported))), 65)

    def test_what_this_version_cannot_do(self):
        for override in ("device=cuda", "pipe_parallel_size=2", "model_parallel_size=2"):
            with self.subTest(override):
                config = self.config("far", train_batch_size=None)
                done = self.train(config, override)
                self.expect(done, 78)
                self.assertFalse((self.run_dir(config) / "checkpoints").exists(), "refused before anything is touched")

    def test_token_outside_the_vocabulary(self):
        for end in (".bin", ".idx"):
            shutil.copy(str(self.prefix) + end, str(self.here / "bad") + end)
        data = bytearray((self.here / "bad.bin").read_bytes())
        for at in range(1, len(data), 2):  # little-endian 16-bit ids: each is now 0x05xx
            data[at] = 5
        (self.here / "bad.bin").write_bytes(bytes(data))
        config = self.config("bad", data_path=str(self.here / "bad"))
        done = self.train(config)
        self.expect(done, 65)
        self.assertIn(str(self.here / "bad.bin"), done.errors()[0])
        self.assertEqual(self.status(config)["code"], 65)


class FullDisks(RunCase):
    def small_disk(self, size):
        disk = self.here / "disk"
        refused = mount_small(disk, size)
        if refused:
            self.skipTest(refused)
        self.addCleanup(unmount, disk)
        return disk

    def test_checkpoints_do_not_fit(self):
        alone = self.config("alone", train_iters=16, save_interval=2)
        self.train(alone, expect=0)
        one = sum(p.stat().st_size for p in checkpoints_in(self.run_dir(alone) / "checkpoints")[0].iterdir())
        disk = self.small_disk(int(one * 2.5) + 65536)  # two fit
        config = self.config("full", train_iters=16, save_interval=2, save=str(disk / "saves"))
        done = self.train(config, faults=[PACE])
        self.expect(done, 74)
        self.assertIn("No space left", done.err)
        self.assertEqual(done.err.count("2 allowed"), 2, done.err)
        self.assertEqual([g.name for g in checkpoints_in(disk / "saves")], ["step_000002", "step_000004"])
        self.assertEqual(run_program("checkpoint", "verify", disk / "saves").code, 0)
        self.assertGreaterEqual(len(facts(self.run_dir(config))[0]), 10, "two failed saves do not stop the training")
        self.assertEqual((self.status(config)["code"], self.status(config)["requeue"]), (74, False))
        self.assertEqual([p.name for p in (disk / "saves").iterdir() if ".tmp-" in p.name], [])
        resize_mount(disk, one * 20)
        self.train(config, expect=0)
        self.assertEqual(facts(self.run_dir(alone)), facts(self.run_dir(config)))
        self.assert_same_state(checkpoints_in(self.run_dir(alone) / "checkpoints")[-1], checkpoints_in(disk / "saves")[-1])

    def test_one_failed_save_is_made_up_for(self):
        alone = self.config("alone", train_iters=12, save_interval=2)
        self.train(alone, expect=0)
        config = self.config("hiccup", train_iters=12, save_interval=2, async_save=False)
        done = self.train(config, faults=[{"at": p, "step": s, "do": "enospc"} for p, s in (("save.mid_shard", 2), ("save.before_rename", 6))])
        self.expect(done, 0)
        self.assertEqual([g.name for g in checkpoints_in(self.run_dir(config) / "checkpoints")], [f"step_{s:06d}" for s in (4, 8, 10, 12)])
        self.assert_same_run(alone, config)

    def test_last_save_must_succeed(self):
        config = self.config("last", train_iters=4, save_interval=2)
        self.expect(self.train(config, faults=[{"at": "save.after_shard", "step": 4, "do": "enospc"}]), 74)
        self.train(config, expect=0)

    def test_metrics_do_not_fit(self):
        alone = self.config("alone", train_iters=12, save_interval=4)
        self.train(alone, expect=0)
        disk = self.small_disk(256 * 1024)
        config = self.config("quiet", train_iters=12, save_interval=4, run_dir=str(disk / "run"), save=str(self.here / "saves"))
        life = self.start(config, faults=[{"at": "step.begin", "step": 4, "do": "delay:4"}])
        self.assertTrue(life.wait_for("delay at step.begin, step 4"))
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(b"\0" * 512)
            except OSError:
                pass
        done = life.finish()
        self.expect(done, 0)
        self.assertIn("step 12/12", done.out)
        self.assertIn("warning:", done.err)
        self.assert_same_state(checkpoints_in(self.run_dir(alone) / "checkpoints")[-1], checkpoints_in(self.here / "saves")[-1])
        for line in (disk / "run" / "metrics.jsonl").read_text().splitlines():
            json.loads(line)

    def test_limit_of_file_sizes_is_no_signal(self):
        def limited(kib):
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, kib << 10))
        config = self.config("limited", train_iters=2, train_micro_batch_size_per_gpu=1)
        done = Running("train", "--config", config, cwd=self.here, ranks=4, before=limited(5000)).finish()  # the node's memory is a file of 6 MB
        self.expect(done, 0)
        self.assertIn("ranks of this node do not share memory", done.err)
        done = Running("report", self.run_dir(config), "--output", self.here / "r.html", before=limited(8)).finish()
        self.expect(done, 74)
        self.assertIn("File too large", done.err)

    def test_run_directory_cannot_be_made(self):
        (self.here / "file").write_text("")
        self.expect(self.train(self.config("x", run_dir=str(self.here / "file" / "run"))), 73)


if __name__ == "__main__":
    main()
