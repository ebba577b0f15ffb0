# Several ranks under mpirun: the same losses as one rank, agreement on every end, and what a user sees when it cannot start.
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

from run_support import (BUILD, FULL, LAUNCH, ROOT, RunCase, Running, checkpoints_in, facts, fault, main, read_checkpoint, read_metrics,
                         read_safetensors, run_program)

FOUR = {"num_attention_heads": 4, "num_layers": 5, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}
LAYOUTS = {
    "data": (4, {}),
    "tensor_sequence": (2, {"model_parallel_size": 2, "sequence_parallel": True}),
    "pipeline": (4, {"pipe_parallel_size": 4, "schedule": "zb_h1"}),
    "cube": (8, {"pipe_parallel_size": 2, "model_parallel_size": 2, "zero_optimization": {"stage": 3},
                 "train_micro_batch_size_per_gpu": 2}),
}
# Its mpirun hands USR1 on, but answers TERM by ending the ranks itself (docs/clusters.md).
OPEN_MPI = re.search("Open MPI|OpenRTE|PRRTE", subprocess.run([LAUNCH[0], "--version"], capture_output=True, text=True, check=False).stdout)


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        return int(f.read().rsplit(")", 1)[1].split()[1])


class Ranks(RunCase):
    def losses(self, config):
        return [float(s["loss"]) for s in facts(self.run_dir(config))[0]]

    def test_every_dimension_trains_to_the_losses_of_one_rank(self):
        alone = self.config("alone", **FOUR)
        self.train(alone, expect=0)
        expected, held_out = self.losses(alone), facts(self.run_dir(alone))[1]
        for name, (ranks, keys) in LAYOUTS.items():
            config = self.config(name, **{**FOUR, **keys})
            self.train(config, ranks=ranks, expect=0)
            for a, b in zip(expected, self.losses(config), strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5 * abs(a), msg=name)
            evals = facts(self.run_dir(config))[1]
            self.assertEqual([e["eval_tokens"] for e in evals], [e["eval_tokens"] for e in held_out])
            for a, b in zip(held_out, evals, strict=True):
                self.assertAlmostEqual(float(a["eval_loss"]), float(b["eval_loss"]), delta=1e-4, msg=name)

    def test_losses_by_position_are_those_of_one_rank(self):
        # Documents end behind every "w", where attention and the count of tokens in front begin anew; 50 tokens divide by no cut.
        keys = {**FOUR, "num_layers": 2, "seq_length": 50, "eod_token": ord("w"), "reset_attention_mask": True, "eod_mask_loss": True, "eval_iters": 3}
        alone = self.config("alone", **keys)
        self.train(alone, expect=0)
        evaluations = [m for m in read_metrics(self.run_dir(alone)) if "eval_loss" in m]
        expected = [m["eval_loss_by_position"] for m in evaluations]
        self.assertEqual([len(e) for e in expected], [16] * len(evaluations))
        self.assertTrue(all(v is None or float(v) > 0 for e in expected for v in e) and all(e[0] is not None for e in expected))
        self.assertGreater(len({v for e in expected for v in e}), 8)
        self.assertFalse(any("attention_imbalance" in m for m in read_metrics(self.run_dir(alone))))
        imbalance = {}
        for name, ranks, more in (("ring", 3, {"context_parallel_size": 3, "cp_comm_type": "p2p"}),
                                  ("gather", 6, {"context_parallel_size": 3, "model_parallel_size": 2, "trace": True, "trace_steps": 1}),
                                  ("heads", 4, {"context_parallel_size": 2, "cp_comm_type": "a2a", "pipe_parallel_size": 2, "seq_length": 48}),
                                  ("chunks", 1, {"sequence_chunk_size": 16})):
            config = self.config(name, **{**keys, **more})
            self.train(config, ranks=ranks, expect=0)
            lines = read_metrics(self.run_dir(config))
            imbalance[name] = [float(m["attention_imbalance"]) for m in lines if "attention_imbalance" in m]
            if "seq_length" in more:
                continue
            for want, line in zip(expected, (m for m in lines if "eval_loss" in m), strict=True):
                for i, (a, b) in enumerate(zip(want, line["eval_loss_by_position"], strict=True)):
                    self.assertEqual(a is None, b is None, f"{name} {i}")
                    if a is not None:
                        self.assertAlmostEqual(float(a), float(b), delta=1e-4 * float(a), msg=f"{name} {i}")
            if "trace" in more:
                self.assertIn('"rank 3: stage 0, data 0, context 1, tensor 1"', (self.run_dir(config) / "trace.rank3.json").read_text())
        self.assertEqual(imbalance["ring"], imbalance["gather"])
        self.assertEqual(len(imbalance["ring"]), 10)
        self.assertTrue(all(1 < r < 3 for r in imbalance["ring"]), imbalance)
        self.assertEqual((imbalance["heads"], imbalance["chunks"]), ([1.0] * 10, []))

    def test_a_cut_by_time_moves_layers_and_no_loss(self):
        # A busy machine measures anything, so the cut is held to what was measured; costs that are given move a layer for certain.
        costly_head = {"pipe_partition_method": "time", "pipe_partition_costs": [1, 0, 3]}
        cuts, losses, said = {}, {}, {}
        for name, keys in (("even", {}), ("measured", {"pipe_partition_method": "time"}), ("given", costly_head)):
            config = self.config(name, **{**FOUR, "pipe_parallel_size": 2, **keys})
            done = self.train(config, ranks=2, expect=0)
            said[name] = re.findall(r"pipe_partition_method time: .*pipe_partition_costs=\[(.*),(.*),(.*)\]", done.out + done.err)
            cuts[name] = self.layers_of_ranks(checkpoints_in(self.run_dir(config) / "checkpoints")[-1])
            losses[name] = self.losses(config)
        self.assertEqual((cuts["even"], cuts["given"]), ([3, 2], [4, 1]))
        self.assertEqual((len(said["even"]), len(said["measured"]), len(said["given"])), (0, 1, 0))
        layer, embedding, head = (float(ms) for ms in said["measured"][0])
        longest = {first: max(embedding + first * layer, (5 - first) * layer + head) for first in range(1, 5)}
        self.assertAlmostEqual(longest[cuts["measured"][0]], min(longest.values()), msg=f"{cuts} {said}")
        self.assertEqual(sum(cuts["measured"]), 5)
        for name in ("measured", "given"):
            for a, b in zip(losses["even"], losses[name], strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5 * abs(a), msg=name)

    @staticmethod
    def layers_of_ranks(checkpoint):
        """How many layers each rank's file of a checkpoint has something of."""
        counts = []
        for entry in sorted(json.loads((checkpoint / "manifest.json").read_text())["files"], key=lambda e: e["name"]):
            counts.append(len(set(re.findall(r"layers\.(\d+)\.", " ".join(read_safetensors(checkpoint / entry["name"]))))))
        return counts

    def test_metrics_and_traces_tell_the_traffic_of_each_site(self):
        config = self.config("cube", **{**FOUR, **LAYOUTS["cube"][1]}, trace=True)
        self.train(config, ranks=8, expect=0)
        sites = {"tp.forward", "tp.backward", "pp.forward", "pp.backward", "dp.gradient", "zero.parameter", "embedding", "control"}
        steps = [m for m in read_metrics(self.run_dir(config)) if "loss" in m]
        for line in steps:
            self.assertEqual(set(line["comm"]), sites)
            for site, facts_of in line["comm"].items():
                self.assertEqual(facts_of["wire_bytes"], facts_of["logical_bytes"])
                self.assertGreaterEqual(facts_of["wire_bytes_total"], facts_of["wire_bytes"])
                self.assertGreater(float(facts_of["busy_ms"]), 0, site)
                self.assertGreaterEqual(float(facts_of["exposed_ms"]), 0, site)
        # Every update ends by waiting for the others, and a layer's sums are needed at once: no run hides all of these.
        for site in ("control", "tp.forward"):
            self.assertGreater(sum(float(m["comm"][site]["exposed_ms"]) for m in steps), 0, site)
        self.assertEqual(sorted(p.name for p in self.run_dir(config).glob("trace*")), [f"trace.rank{r}.json" for r in range(8)])
        for rank in range(8):
            self.check_trace(rank, self.run_dir(config) / f"trace.rank{rank}.json", sites)
        # A line's waits are those of its own step, also the last one, in which control sums the counters themselves.
        events = [e for e in json.loads((self.run_dir(config) / "trace.rank0.json").read_text())["traceEvents"] if e["ph"] == "X"]
        spans = [e for e in events if e["name"].startswith("step ")]
        for line, span in zip(steps, spans, strict=True):
            waits = [e["dur"] for e in events if e["name"] == "wait control" and span["ts"] <= e["ts"] <= span["ts"] + span["dur"]]
            self.assertAlmostEqual(float(line["comm"]["control"]["exposed_ms"]), sum(waits) / 1e3, delta=0.05, msg=span["name"])

    def check_trace(self, rank, path, sites):
        trace = json.loads(path.read_text())
        events, other = trace["traceEvents"], trace["otherData"]
        self.assertEqual((other["rank"], other["dropped_events"]), (rank, 0))
        titles = [e["args"]["name"] for e in events if e["name"] == "process_name"]
        self.assertEqual(titles, [f"rank {rank}: stage {rank // 4}, data {rank // 2 % 2}, tensor {rank % 2}"])
        # A site has as many lanes as it has operations at once: "pp.backward", "pp.backward +1".
        tracks = {e["tid"]: e["args"]["name"].split(" +")[0] for e in events if e["name"] == "thread_name"}
        self.assertEqual(set(tracks.values()), sites | {"steps", "compute", "waiting"})
        shown = {}
        for e in (e for e in events if e["ph"] == "X"):
            self.assertGreaterEqual(min(e["ts"], e["dur"]), 0, e)
            shown.setdefault(tracks[e["tid"]], []).append(e["name"])
        self.assertEqual(shown["steps"], [f"step {n}" for n in range(1, 11)])
        compute = shown["compute"]
        for node in ("F0", "B0", "F1", "B1", "optimizer"):  # two micro-batches in each of ten updates
            self.assertEqual(compute.count(node), 10, f"rank {rank}: {node} in {sorted(set(compute))}")
        for site in sites:
            self.assertTrue(shown.get(site), f"rank {rank}: nothing on track {site}")
        self.assertTrue(all(name.startswith("wait ") for name in shown["waiting"]))
        # Activations go down the pipeline and their gradients up, one per micro-batch.
        for site, verb in (("pp.forward", ("send", "receive")), ("pp.backward", ("receive", "send"))):
            self.assertEqual(shown[site], [verb[rank // 4]] * 20, f"rank {rank}: {site}")

    def test_refusals_are_said_once_and_leave_78(self):
        config = self.config("refused", **FOUR)
        for ranks, keys, words in ((3, ["pipe_parallel_size=2"], "3 ranks are not a multiple of pipe_parallel_size 2 * model_parallel_size 1"),
                                   (2, ["model_parallel_size=3"], "2 ranks are not a multiple of pipe_parallel_size 1 * model_parallel_size 3"),
                                   (4, ["placement.weights=global"], "placement.weights")):
            done = self.train(config, *keys, ranks=ranks)
            self.assertEqual(done.code, 78, str(done))
            self.assertEqual(len(done.errors()), 1, str(done))
            self.assertIn(words, done.err)

    def test_data_files_that_are_not_those_of_rank_0_are_refused_by_name(self):
        config = self.config("mixed", **FOUR, data_path="tokens")
        for folder, prefix in (("same", self.prefix), ("other", self.make_data("other", 200, seed=12))):
            (self.here / folder).mkdir()
            for end in (".bin", ".idx"):
                shutil.copy(f"{prefix}{end}", self.here / folder / f"tokens{end}")

        def train(second, iters):
            words = [["-n", "1", "env", "-C", str(self.here / folder), str(BUILD / "train"), "--config", str(config), f"train_iters={iters}"]
                     for folder in ("same", second)]
            return Running("train", command=[*LAUNCH, *words[0], ":", *words[1]]).finish()

        # At the start and at a resume, and the run goes on with the right ones.
        for second, iters, code in (("other", 4, 65), ("same", 4, 0), ("other", 6, 65), ("same", 6, 0)):
            done = train(second, iters)
            self.expect(done, code)
            self.assertEqual(self.status(config)["code"], code)
            if code != 0:
                self.assertRegex(done.err, "error: rank 1: the data files are not those of rank 0 .* give every node the same files")

    def test_a_signal_to_mpirun_saves_and_leaves_75_and_the_next_life_goes_on(self):
        config = self.config("stopped", train_iters=4000, save_interval=0, **FOUR)
        running = self.start(config, ranks=4)
        self.assertTrue(running.wait_for("step 20"))
        running.send(signal.SIGUSR1 if OPEN_MPI else signal.SIGTERM)
        start = time.monotonic()
        done = running.finish()
        fault(10, seconds=time.monotonic() - start, code=done.code)
        self.assertEqual(done.code, 75, str(done))
        status = self.status(config)
        self.assertTrue(status["requeue"])
        again = self.train(config, f"train_iters={status['step'] + 3}", ranks=4, expect=0)
        self.assertIn("resumed", again.out + again.err)

    def test_a_signal_to_one_rank_stops_all(self):
        config = self.config("stopped", train_iters=4000, save_interval=0, **FOUR)
        running = self.start(config, ranks=2)
        self.assertTrue(running.wait_for("step 20"))
        os.kill(self.rank_pids(running)[-1], signal.SIGUSR1)
        self.assertEqual(running.finish().code, 75)

    def test_a_signal_within_a_step_ends_the_run_with_that_step(self):
        config = self.config("within", train_iters=4000, save_interval=0, **FOUR)
        running = self.start(config, faults=[{"at": "compute", "step": 4, "do": "delay:5"}], ranks=2)
        self.assertTrue(running.wait_for("delay at compute, step 4"))
        running.send(signal.SIGUSR1)
        self.assertEqual(running.finish().code, 75)
        self.assertEqual(self.status(config)["step"], 4)

    def test_a_stopped_rank_ends_the_job_with_71_and_its_name(self):
        config = self.config("hung", train_iters=100000, save_interval=10, **FOUR)
        running = self.start(config, "watchdog_seconds=4", ranks=4)
        self.assertTrue(running.wait_for("step 20"))
        pids = self.rank_pids(running)
        os.kill(pids[2], signal.SIGSTOP)
        start = time.monotonic()
        done = running.finish(limit=60)
        self.assertEqual(done.code, 71, str(done))
        fault(20, seconds=time.monotonic() - start, code=done.code)
        self.assertLess(time.monotonic() - start, 15)
        self.assertEqual(re.findall(r"Culprit: (.*?) gives? ", done.err + done.out), [f"rank 2 (host {socket.gethostname()})"], str(done))
        self.assertEqual(json.loads((self.run_dir(config) / "watchdog.json").read_text())["culprits"], [2])
        deadline = time.monotonic() + 30
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual([pid for pid in pids if os.path.exists(f"/proc/{pid}")], [])
        status = self.status(config)
        self.assertEqual((status["code"], status["requeue"]), (71, True))
        self.train(config, f"train_iters={status['step'] + 20}", ranks=4, expect=0)

    def test_a_killed_rank_ends_the_job_at_once_and_the_restart_resumes(self):
        config = self.config("killed", train_iters=100000, save_interval=10, **FOUR)
        running = self.start(config, ranks=4)
        self.assertTrue(running.wait_for("step 20"))
        start = time.monotonic()
        pids = self.rank_pids(running)
        keepers = [parent_of(pid) for pid in pids]
        os.kill(pids[1], signal.SIGKILL)
        done = running.finish()
        self.assertNotEqual(done.code, 0)
        fault(1, seconds=time.monotonic() - start, code=done.code)
        self.assertLess(time.monotonic() - start, 30)  # far from watchdog_seconds
        # Whoever was killed is named by us. The launcher says what happened, too; Hydra kills the others the same way before it looks, and names the first that it finds.
        self.assertRegex(done.out + done.err, "(?i)signal 9")
        self.assertEqual(re.findall(r"^error: rank (\d+) \(host [^)]*\): its process (\d+) was ended by signal 9 ", done.out + done.err, re.M), [("1", str(pids[1]))], str(done))
        if not OPEN_MPI:
            named = re.findall(r"PID (\d+) RUNNING AT", done.out + done.err)
            self.assertTrue(named and set(named) <= {str(pid) for pid in keepers}, f"{keepers}\n{done}")
        again = self.train(config, "train_iters=40", ranks=4, expect=0)
        self.assertIn("resumed", again.out + again.err)

    def test_a_failure_of_one_rank_alone_has_its_code_and_is_written_down(self):
        config = self.config("alone_failing", **FOUR)
        done = self.train(config, ranks=4, faults=[{"at": "step.begin", "step": 5, "rank": 2, "do": "enospc"}])
        self.assertEqual(done.code, 74, str(done))
        self.assertIn("rank 2", done.err)
        self.assertEqual(self.status(config)["code"], 74)

    def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all(self):
        config = self.config("poisoned", **{**FOUR, "zero_optimization": {"stage": 2}})
        self.train(config, ranks=4, faults=[{"at": "grad", "step": 4, "rank": 3, "do": "nan"}], expect=0)
        skipped = [m["step"] for m in read_metrics(self.run_dir(config)) if m.get("skipped")]
        self.assertEqual(skipped, [4])

    def test_an_fp16_overflow_on_one_rank_is_skipped_by_all_and_halves_the_scale(self):
        # Between pipeline stages no sum carries the poison: the other stage learns of it by agreement alone.
        for name, keys in (("stages", {"pipe_parallel_size": 2}), ("shards", {"zero_optimization": {"stage": 2}})):
            with self.subTest(name):
                config = self.config(name, **{**FOUR, **keys}, precision="fp16", fp16={"initial_scale_power": 4, "hysteresis": 1},
                                     train_iters=6, save_interval=1)
                self.train(config, ranks=2, faults=[{"at": "grad", "step": 3, "rank": 1, "do": "inf"}], expect=0)
                steps = [m for m in read_metrics(self.run_dir(config)) if "loss" in m]
                self.assertEqual([m["step"] for m in steps if m["skipped"]], [3])
                self.assertEqual([float(m["loss_scale"]) for m in steps], [16, 16, 16, 8, 8, 8])
                # What both ranks have saved: no weight and no moment moved in that step, and every rank's moved in the next.
                found = {read_checkpoint(g)["step"]: g for g in checkpoints_in(self.run_dir(config) / "checkpoints")}
                self.assert_same_state(found[2], found[3], tensors_only=True)
                for file in self.files_of(found[3]):
                    self.assertNotEqual(read_safetensors(found[3] / file), read_safetensors(found[4] / file), file)

    def files_of(self, checkpoint):
        files = [entry["name"] for entry in json.loads((checkpoint / "manifest.json").read_text())["files"]]
        self.assertEqual({name.split("-")[0] for name in files}, {"rank0", "rank1"})
        return files

    def rank_pids(self, running):
        """Pids of the program's ranks below mpirun, in rank order: of each the process that computes, not its parent, the keeper."""
        mark = b"OMPI_COMM_WORLD_RANK" if OPEN_MPI else b"PMI_RANK"
        pids = {}
        for entry in os.listdir("/proc"):
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    values = dict(v.split(b"=", 1) for v in f.read().split(b"\0") if b"=" in v)
                with open(f"/proc/{entry}/comm", encoding="ascii", errors="replace") as f:
                    keeper = f.read().strip() == "tw-keeper"
                if mark in values and not keeper and self.below(int(entry), running.process.pid):
                    pids[int(values[mark])] = int(entry)
            except (OSError, ValueError):
                continue
        return [pids[r] for r in sorted(pids)]

    @staticmethod
    def below(pid, ancestor):
        while pid > 1:
            if pid == ancestor:
                return True
            pid = parent_of(pid)
        return False


class Reference(unittest.TestCase):
    """The reference law under layouts: an independent program's numbers, whatever the cut."""

    LAYOUTS = [(2, []), (2, ["model_parallel_size=2"]), (2, ["model_parallel_size=2", "sequence_parallel=true"]),
               (2, ["pipe_parallel_size=2"]), (2, ["context_parallel_size=2"]),
               (4, ["context_parallel_size=2", "model_parallel_size=2"]),
               (3, ["context_parallel_size=3", "cp_comm_type=p2p"]),
               (4, ["context_parallel_size=2", "cp_comm_type=p2p", "model_parallel_size=2"]),
               (2, ["zero_optimization.stage=1"]), (2, ["zero_optimization.stage=2"]),
               (2, ["zero_optimization.stage=3"]), (2, ["pipe_parallel_size=2", "schedule=zb_h1"]),
               (2, ["pipe_parallel_size=2", "schedule=gpipe"]),
               (4, ["pipe_parallel_size=2", "model_parallel_size=2", "sequence_parallel=true"]),
               (4, ["pipe_parallel_size=2", "zero_optimization.stage=3", "gradient_accumulation_steps=1"]),
               (4, ["model_parallel_size=2", "zero_optimization.stage=2", "checkpoint_activations=true"])]

    def directories(self):
        """Vectors whose batch and heads two ranks can divide: the committed ones, and a larger collection's where there is one."""
        found = []
        for models in (ROOT / "tests" / "golden" / "models", ROOT.parent / "shared" / "vectors" / "models"):
            for d in sorted(models.iterdir()) if models.is_dir() else []:
                config = json.loads((d / "config.json").read_text())
                trajectory = json.loads((d / "trajectory.json").read_text())
                numbers = [trajectory["batch"]]
                numbers += [config[k] for k in ("n_head", "num_attention_heads", "num_key_value_heads") if k in config]
                if all(n % 2 == 0 for n in numbers):
                    found.append(str(d))
        self.assertGreaterEqual(len(found), 3)
        return found

    def test_twelve_layouts(self):
        directories = self.directories()
        for number, (ranks, keys) in enumerate(self.LAYOUTS):
            some = directories if FULL else directories[number % 3::3]
            done = run_program("reference_check", *some, *keys, ranks=ranks)
            self.assertEqual(done.code, 0, f"{keys}\n{done}")
            self.assertIn("all ok", done.out)


if __name__ == "__main__":
    main()
