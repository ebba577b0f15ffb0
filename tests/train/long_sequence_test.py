# Long sequences of real runs: chunks and disk change no result, a run goes on without them, a full disk is code 74, and memory
# behaves as docs/long_context.md says. Llama-3.2 and Mistral beyond 4096 tokens as Hugging Face computes them.
import json
import shutil
import subprocess
import sys

from run_support import BUILD, ROOT, RunCase, environment, main, mount_small, read_metrics, run_program, unmount

LONG = {"seq_length": 256, "max_position_embeddings": 256, "train_batch_size": 2, "train_micro_batch_size_per_gpu": 2, "eval_interval": 4}
CHUNKS = {"sequence_chunk_size": 64}
DISK = {**CHUNKS, "activation_offload": "disk"}


def numbers(run_dir, key):
    return [float(line[key]) for line in read_metrics(run_dir) if key in line]


class LongSequences(RunCase):
    def test_disk_changes_nothing_and_chunks_little(self):
        whole = self.config("whole", **LONG)
        chunks = self.config("chunks", **LONG, **CHUNKS, checkpoint_activations=True)
        disk = self.config("disk", **LONG, **DISK, checkpoint_activations=True, trace=True, trace_steps=2)
        for path in (whole, chunks, disk):
            self.train(path, expect=0)
        self.assert_same_run(chunks, disk)
        for key in ("loss", "eval_loss"):
            a, b = numbers(self.run_dir(whole), key), numbers(self.run_dir(chunks), key)
            self.assertEqual(len(a), len(b))
            for x, y in zip(a, b):
                self.assertAlmostEqual(x, y, delta=1e-4 * x)
        # Transfers are in the trace, and nothing is left of the file.
        trace = json.loads((self.run_dir(disk) / "trace.rank0.json").read_text())["traceEvents"]
        moved = {kind: sum(e["args"]["bytes"] for e in trace if e.get("cat") == "offload" and e["name"] == kind) for kind in ("write", "read")}
        self.assertGreater(min(moved.values()), 2 * 2 * 2 * 256 * 32 * 4)  # steps x layers x rows of the stream
        self.assertEqual([p.name for p in self.run_dir(disk).iterdir() if p.name.startswith("activations")], [])

    def test_a_run_goes_on_without(self):
        undisturbed = self.config("undisturbed", **LONG, **CHUNKS)
        self.train(undisturbed, expect=0)
        other = self.config("other", **LONG, **DISK)
        self.train(other, "train_iters=4", "lr_decay_iters=10", expect=0)
        self.go_on(other, "activation_offload=none")
        self.assertEqual(numbers(self.run_dir(other), "loss"), numbers(self.run_dir(undisturbed), "loss"))

    def test_a_full_disk(self):
        place = self.here / "small"
        why = mount_small(place, 1 << 20)
        if why:
            self.skipTest(why)
        try:
            path = self.config("full", **{**LONG, **DISK, "run_dir": str(place / "run"), "save": str(self.here / "saves"),
                                          "train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": 1})
            done = self.train(path, expect=74)
            for part in ("activation_offload", "MiB", str(place), "No space left"):
                self.assertIn(part, done.errors()[0])
        finally:
            unmount(place)

    def test_dry_run_says_what_moves(self):
        path = self.config("dry", **LONG, **DISK)
        said = run_program("train", "--config", path, "--dry-run").out
        self.assertRegex(said, r"activations on disk: [0-9.]+ MiB of room, [0-9.]+ MiB written and [0-9.]+ MiB read back per step")
        said = run_program("train", "--config", path, "--dry-run", "device=cuda", "activation_offload=host").out
        self.assertRegex(said, r"activations in page-locked host memory: [0-9.]+ MiB of room, [0-9.]+ MiB written and [0-9.]+ MiB read back per step")
        self.assertNotIn("on disk", run_program("train", "--config", path, "--dry-run", "activation_offload=none").out)

    def test_hugging_face_beyond_4096_positions(self):
        models = sorted((ROOT / "tests/golden/long_models").iterdir())
        self.assertEqual([m.name for m in models], ["llama3_2", "mistral"])
        for ranks, keys in ((1, ["threads_per_rank=2"]), (2, ["context_parallel_size=2", "cp_comm_type=p2p"]), (1, ["sequence_chunk_size=1024", "activation_offload=disk", "run_dir=on_disk"])):
            done = run_program("reference_check", *models, *keys, ranks=ranks, cwd=self.here)
            self.assertEqual(done.code, 0, str(done))
            self.assertEqual(done.out.count("logits "), 2)
        self.assertTrue((self.here / "on_disk").is_dir())  # where activations waited
        # What the rows of logits tell: a window one narrower, and another scaling of the slow rotary pairs.
        for model, old, new in ((models[0], '"factor": 32.0', '"factor": 31.0'), (models[1], '"sliding_window": 4096', '"sliding_window": 4095')):
            copy = self.here / model.name
            shutil.copytree(model, copy)
            text = (copy / "config.json").read_text()
            self.assertIn(old, text)
            (copy / "config.json").write_text(text.replace(old, new))
            self.assertRegex(run_program("reference_check", copy, "threads_per_rank=2").out, "(?m)^logits .* FAIL$")

    def test_memory(self):
        done = subprocess.run([sys.executable, ROOT / "scripts/check_long_memory", "--quick", "--build", BUILD, "--scratch", self.here,
                               f"data_path={self.prefix}"], env=environment(), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
