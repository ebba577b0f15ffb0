# Which run directory the batch scripts watch: the one that train takes from the same arguments.
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


if __name__ == "__main__":
    main()
