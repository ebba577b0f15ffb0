# What timing decides is a list of plan revisions: written down, kept over restarts, and replayed bit for bit.
import json
import shutil

from run_support import RunCase, checkpoints_in, facts, main, read_metrics, run_program

MODEL = {"num_layers": 4, "hidden_size": 48, "num_attention_heads": 4, "train_batch_size": 8, "train_iters": 44, "save_interval": 4, "hidden_dropout": 0.1,
         "make_vocab_size_divisible_by": 1, "vocab_size": 257, "train_micro_batch_size_per_gpu": 1, "eval_interval": 22, "async_save": False, "zero_optimization": {"stage": 1}}


def kill(step, rank=1):
    return [{"at": "step.begin", "step": step, "rank": rank, "do": "kill9"}]


class Revisions(RunCase):
    def revisions(self, config):
        return [json.loads(line) for line in (self.run_dir(config) / "revisions.jsonl").read_text().splitlines()]

    def assert_replays(self, measured, replay):
        a, b = self.run_dir(measured), self.run_dir(replay)
        self.assertEqual(facts(a), facts(b))
        self.assert_same_state(checkpoints_in(a / "checkpoints")[-1], checkpoints_in(b / "checkpoints")[-1], tensors_only=True)
        self.assertEqual((a / "revisions.jsonl").read_bytes(), (b / "revisions.jsonl").read_bytes())

    def test_a_file_that_cannot_be_written_ends_no_run(self):
        config = self.config("blocked", compression={"adapt": True})
        blocked = self.run_dir(config) / "revisions.jsonl"
        blocked.mkdir(parents=True)
        done = self.train(config, expect=0)
        self.assertEqual(done.err.count("written anew behind each update"), 1, str(done))
        blocked.rmdir()
        self.train(config, "train_iters=12", expect=0)
        self.assertEqual([list(line) for line in self.revisions(config)], [["run"]])

    def test_trials_go_on_and_are_replayed(self):
        # Killed twice in the middle of trials: on the way the run codes in three ways, by its own times.
        adapt = {**MODEL, "compression": {"preset": "thinwire", "adapt": True}}
        measured = self.config("measured", **adapt)
        for at in (11, 23):
            self.assertNotEqual(self.train(measured, ranks=2, faults=kill(at)).code, 0)
        self.train(measured, ranks=2, expect=0)
        first, *lines = self.revisions(measured)
        self.assertEqual(first["run"]["layout"], {"pipeline": 1, "tensor": 1, "data": 2, "context": 1})
        self.assertLessEqual({"light", "bf16", "plain"}, {line["coding"] for line in lines})  # somebody's, tried in turn
        self.assertEqual(lines[0]["site"], "dp.gradient", lines)
        # A life looks at no update before its fourth, and the trials go on where they were: at update 3 they begin, each block has 4.
        self.assertEqual(lines[0]["after"], 7, lines)
        told = {r["step"]: r["revisions"] for r in read_metrics(self.run_dir(measured)) if "revisions" in r}
        within = [line for line in lines if line["after"] < MODEL["train_iters"]]
        self.assertEqual(told, {line["after"] + 1: [other for other in within if other["after"] == line["after"]] for line in within})

        log = self.here / "told.jsonl"
        shutil.copy(self.run_dir(measured) / "revisions.jsonl", log)
        again = {**adapt, "compression": {**adapt["compression"], "revisions": str(log)}}
        replay, killed = self.config("replay", **again), self.config("killed", **{**again, "compression": {**again["compression"], "adapt": False}})
        done = self.train(replay, ranks=2, expect=0)
        self.assertNotIn("plan revision after", done.out + done.err)
        self.assert_replays(measured, replay)
        self.assertNotEqual(self.train(killed, ranks=2, faults=kill(14, 0)).code, 0)
        self.train(killed, ranks=2, expect=0)
        self.assert_replays(measured, killed)

        # Elsewhere nothing that was measured counts.
        fewer = self.config("fewer", **{**adapt, "train_iters": 46})
        shutil.copytree(self.run_dir(measured), self.run_dir(fewer))
        done = self.train(fewer, ranks=4, expect=0)
        self.assertIn("what was measured of compression elsewhere is dropped", done.out + done.err)
        ways = {line["site"]: line["coding"] for line in lines}
        if set(ways.values()) != {"coded"}:
            self.assertEqual([(r["after"], r["coding"], r.get("site")) for r in self.revisions(fewer)[1:]][len(lines):], [(44, "coded", None)])
        # Nor under other rules, on the same ranks and hosts.
        other = self.config("other", **{**adapt, "train_iters": 46, "compression": {**adapt["compression"], "dp.gradient": {"rate": 3}}})
        shutil.copytree(self.run_dir(measured), self.run_dir(other))
        done = self.train(other, ranks=2, expect=0)
        self.assertIn("what was measured of compression elsewhere is dropped", done.out + done.err)

        # What does not fit is refused, by file and line.
        text = log.read_text().splitlines()
        bad = {1: text[0].replace('"data":2', '"data":4'), 2: '{"after": 7, "coding": "softly"}', 5: '{"after": 99, "site": "outer", "coding": "plain"}', 3: text[2].replace('"after":', '"after":-'), 4: "{"}
        for number, line in bad.items():
            log.write_text("\n".join([*text[:number - 1], line, *text[number:]]) + "\n")
            done = run_program("train", "--config", replay, "--dry-run", "--ranks", 2)
            self.assertEqual(done.code, 78, str(done))
            self.assertIn(f"told.jsonl:{number}: ", done.err)
        done = self.train(self.config("refused", **again), ranks=2)
        self.assertEqual(done.code, 78, str(done))
        self.assertIn("told.jsonl:4: is no line of JSON", done.out + done.err)
        log.unlink()
        done = run_program("train", "--config", replay, "--dry-run", "--ranks", 2)
        self.assertEqual(done.code, 78, str(done))
        self.assertIn("told.jsonl", done.err)

    def test_a_run_that_stops_adapting_is_replayed(self):
        # Killed in the trial of another way, and from the save before it without adapt: coded as the rules say, which the log has to tell.
        adapt = {**MODEL, "train_iters": 20, "compression": {"preset": "thinwire", "adapt": True}}
        measured = self.config("stops", **adapt)
        self.assertNotEqual(self.train(measured, ranks=2, faults=kill(14)).code, 0)
        done = self.train(measured, "compression.adapt=false", ranks=2, expect=0)
        self.assertIn("compression.adapt decides nothing any more", done.out + done.err)
        last = self.revisions(measured)[-1]
        self.assertEqual((last["after"], last["coding"], "site" in last), (12, "coded", False))
        log = self.here / "stops.jsonl"
        shutil.copy(self.run_dir(measured) / "revisions.jsonl", log)
        replay = self.config("stops_replay", **{**adapt, "compression": {"preset": "thinwire", "adapt": False, "revisions": str(log)}})
        self.train(replay, ranks=2, expect=0)
        self.assert_replays(measured, replay)

    def test_an_evaluation_behind_a_skipped_step_is_coded_as_the_last_update(self):
        # Step 6 is skipped, and a revision that it was the first one under begins with the next: a restart would know of nothing else.
        keys = {**MODEL, "train_iters": 8, "eval_interval": 6, "pipe_parallel_size": 2}
        rule = {"pp.forward": {"codec": "block_int", "bits": 4}}
        adapted = self.config("adapted", **keys, compression={**rule, "adapt": True})
        self.train(adapted, ranks=2, expect=0)
        head = (self.run_dir(adapted) / "revisions.jsonl").read_text().splitlines()[0]
        losses = {}
        for after in (5, 6):
            told = self.here / f"after_{after}.jsonl"
            told.write_text(head + "\n" + json.dumps({"after": after, "site": "pp.forward", "coding": "plain", "why": "told"}) + "\n")
            config = self.config(f"after_{after}", **keys, compression={**rule, "revisions": str(told)})
            self.train(config, ranks=2, faults=[{"at": "grad", "step": 6, "do": "nan"}], expect=0)
            lines = [line for line in read_metrics(self.run_dir(config)) if line["step"] == 6]
            (step,), (evaluation,) = [line for line in lines if "loss" in line], [line for line in lines if "eval_loss" in line]
            self.assertTrue(step["skipped"])
            sent = evaluation["comm"]["pp.forward"]
            self.assertLess(sent["wire_bytes_total"], sent["logical_bytes_total"])  # two that are not coded at all are equal, too
            losses[after] = (step["loss"], evaluation["eval_loss"])
        self.assertNotEqual(losses[5][0], losses[6][0])
        self.assertEqual(losses[5][1], losses[6][1])

    def test_a_measured_partition_is_kept_and_replayed(self):
        keys = {**MODEL, "train_iters": 8, "pipe_parallel_size": 2, "pipe_partition_method": "time"}
        measured = self.config("cut", **keys)
        self.assertNotEqual(self.train(measured, ranks=2, faults=kill(6)).code, 0)
        before = self.revisions(measured)
        self.train(measured, ranks=2, expect=0)
        self.assertEqual(self.revisions(measured), before)  # the second life measured nothing
        (line,) = before[1:]
        self.assertEqual(line["after"], 0)
        told = self.here / "cut.jsonl"
        # Costs that this machine would never measure: the head takes as long as three layers.
        told.write_text(json.dumps(before[0]) + "\n" + json.dumps({"after": 0, "partition": [1.0, 0.0, 3.0], "why": "measured"}) + "\n")
        replay = self.config("cut_replay", **keys, compression={"revisions": str(told)})
        self.train(replay, ranks=2, expect=0)
        given = self.config("cut_given", **keys, pipe_partition_costs=[1, 0, 3])
        self.train(given, ranks=2, expect=0)
        self.assertEqual(facts(self.run_dir(replay)), facts(self.run_dir(given)))
        done = run_program("train", "--config", given, f"compression.revisions={told}", "--dry-run", "--ranks", 2)
        self.assertEqual(done.code, 78, str(done))
        self.assertIn("cut.jsonl:2: ", done.err)


if __name__ == "__main__":
    main()
