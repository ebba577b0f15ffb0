# A rank that computes longer than its like is named in the log, status.json, metrics.jsonl and the report; nobody is where all are alike.
from run_support import RunCase, main, read_metrics

KEYS = {"train_iters": 60, "save_interval": 0, "num_layers": 1, "hidden_size": 16, "seq_length": 16, "eval_iters": 0, "straggler_interval": 10,
        "train_micro_batch_size_per_gpu": 1, "train_batch_size": 4, "log_interval": 100}


class Stragglers(RunCase):
    def compared(self, config):
        return {line["step"]: line["stragglers"] for line in read_metrics(self.run_dir(config)) if "stragglers" in line}

    def test_a_slow_rank_is_named(self):
        config = self.config("slow", **KEYS)
        # A step takes a few milliseconds.
        done = self.train(config, faults=[{"at": "compute", "rank": 1, "do": "delay:0.05"}], expect=0, ranks=2)
        compared = self.compared(config)
        self.assertEqual(sorted(compared), [10, 20, 30, 40, 50, 60])
        self.assertEqual(compared[10], [], "one interval is none")
        for step in range(20, 61, 10):
            self.assertEqual([(s["rank"], s["kind"], s["since"]) for s in compared[step]], [(1, "computes", 0)], step)
            self.assertGreater(float(compared[step][0]["ratio"]), 1.5)
        line = r"rank 1 \(\S+\) computes \d+\.\d x the median since step 0"
        self.assertEqual(len([each for each in done.err.splitlines() if "x the median since step 0" in each]), 1)
        self.assertRegex(done.err, line)
        self.assertRegex(self.status(config)["stragglers"][0], "^" + line + "$")
        self.assertRegex((self.run_dir(config) / "report.html").read_text(), line)

    def test_a_rank_that_recovers_is_not_named_any_more(self):
        config = self.config("short", **KEYS)
        faults = [{"at": "compute", "rank": 1, "step": step, "do": "delay:0.05"} for step in range(11, 31)]
        done = self.train(config, faults=faults, expect=0, ranks=2)
        self.assertEqual([step for step, named in self.compared(config).items() if any(s["rank"] == 1 for s in named)], [30])
        self.assertIn("since step 10", done.err)
        self.assertIn("is like the others", done.out + done.err)
        self.assertEqual(self.status(config)["stragglers"], [])

    def test_one_rank_compares_nothing(self):
        config = self.config("alone", **KEYS)
        self.train(config, expect=0)
        self.assertEqual(self.compared(config), {})


if __name__ == "__main__":
    main()
