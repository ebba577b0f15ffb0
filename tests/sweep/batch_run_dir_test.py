# What the batch scripts do by themselves: find the run directory that train takes from the same arguments, and judge an end before the run has begun.
import re
import subprocess

from sweep_support import ROOT, SweepCase, main


class RunDirs(SweepCase):
    def run_dir(self, name="run"):
        return self.here / name

    def test_run_dir_is_found_where_train_finds_it(self):
        (self.here / "own.json").write_text('{\n  // "run_dir": "nowhere",\n  "train_iters": 3,\n  "run_dir": "%s"\n}\n' % self.run_dir("named"))
        (self.here / "plain.json").write_text('{"train_iters": 3}')
        text = subprocess.run(["bash", "-c", "tw_args=(--config %s/plain.json --config=%s/own.json a=1); . scripts/batch_common.sh; tw_find_run_dir; echo $tw_run_dir ${tw_args[*]}; "
                               "tw_args=(--config %s/plain.json); tw_find_run_dir; echo $tw_run_dir; tw_args=(--config %s/own.json run_dir=x/y); tw_find_run_dir; echo $tw_run_dir"
                               % ((self.here,) * 4)], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        self.assertEqual(text, [f"{self.run_dir('named')} --config {self.here}/plain.json --config={self.here}/own.json a=1 run_dir={self.run_dir('named')}", "runs/plain", "x/y"])

    def test_run_dir_is_not_taken_from_what_only_looks_like_it(self):
        for name, text in (("own.jsonc", '{\n  # "run_dir": "nowhere",\n  "run-dir": "runs/mine" // "here"\n}\n'), ("c.v2.jsonc", "{}"), ("bare", "{}"), ("vocab.json", '{"run_dir": "x"}')):
            (self.here / name).write_text(text)
        cases = {"--config c.v2.jsonc tokenizer=bpe:vocab.json vocab_file=vocab.json": "runs/c.v2", "--config c.v2.jsonc tokenizer=bpe:gone.json": "runs/c.v2",
                 "tokenizer=bpe:gone.json --config=c.v2.jsonc": "runs/c.v2", "--config c.v2.jsonc --config own.jsonc": "runs/mine", "--config bare a=1": "runs/bare",
                 "--config own.jsonc run-dir=a/b": "a/b", "run-dir=a/b --config own.jsonc run_dir=c=d": "c=d", "config=vocab.json a=1": "runs/run"}
        for words, expected in cases.items():
            with self.subTest(words):
                done = subprocess.run(["bash", "-uc", f"tw_args=({words}); . {ROOT}/scripts/batch_common.sh; tw_find_run_dir; echo $tw_run_dir; echo ${{tw_args[*]}}"], cwd=self.here,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
                kept = " ".join(w for w in words.split() if not re.match("run[-_]dir=", w))
                self.assertEqual(done.stdout.decode().splitlines(), [expected, f"{kept} run_dir={expected}"])


class EndsBeforeTheRunBegins(SweepCase):
    def verdict(self, code, **variables):
        status = self.here / "status.json"
        words = " ".join(f"{k}={v};" for k, v in {"tw_status": status, "tw_asked": "", "tw_code": code, **variables}.items())
        done = subprocess.run(["bash", "-uc", f". scripts/batch_common.sh; {words} tw_before=$(tw_fingerprint) tw_kills=${{tw_kills-$(tw_memory_group)}}; tw_decide; echo $tw_verdict $tw_exit"],
                              cwd=ROOT, stdout=subprocess.PIPE, check=True)
        return done.stdout.decode().split()

    def test_a_rank_that_was_killed_is_started_again_where_the_run_has_begun_before(self):
        refusals, deaths = (64, 65, 70, 73, 74, 76, 78, 126, 127), (9, 137, 143, 255)
        for code in (*refusals, *deaths):
            self.assertEqual(self.verdict(code), ["failed", str(code)], "it may never have run: the launcher's options, for instance")
        self.assertEqual(self.verdict(71), ["again", "75"])
        (self.here / "status.json").write_text('{"state": "running", "code": null, "step": 4, "started": "2026-01-01T00:00:00Z"}')
        for code in refusals:
            self.assertEqual(self.verdict(code), ["failed", str(code)])
        for code in deaths:
            self.assertEqual(self.verdict(code), ["again", "75"])
            self.assertEqual(self.verdict(code, THINWIRE_CHECK=0), ["failed", str(code)], "a refusal whose code the launcher has lost looks the same")
            self.assertEqual(self.verdict(code, tw_kills="other"), ["failed", str(code)], "killed for want of memory")
        self.assertEqual(self.verdict(0), ["failed", "70"])


if __name__ == "__main__":
    main()
