# scripts/quickstart.sh in a repository of stand-ins: which text it takes, from where. (Training and building are others' tests.)
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from run_support import BUILD, ROOT, environment, main, text_of

STAND_INS = {
    "scripts/install_deps.sh": "true",
    "bin/cmake": "echo built",
    "build/report": "true",
    "build/generate": "echo The sea",
    "build/train": """for word in "$@"; do case $word in run_dir=*) run=${word#run_dir=} ;; esac; done
mkdir -p "$run" && echo '{"step":1,"eval_loss":0.5,"split":"valid"}' >"$run"/metrics.jsonl""",
}


class Quickstart(unittest.TestCase):
    def setUp(self):
        self.here = Path(tempfile.mkdtemp(prefix="thinwire-quickstart-"))
        self.addCleanup(shutil.rmtree, self.here, True)
        self.root = self.here / "repository"
        for name, text in STAND_INS.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/bash\n{text}\n")
            path.chmod(0o755)
        (self.root / "build" / "build.ninja").touch()
        (self.root / "build" / "tokenize").symlink_to(BUILD / "tokenize")
        for name in ("quickstart.sh", "ngram_baseline.py"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts" / name)

    def run_it(self, *arguments, cwd):
        env = environment({"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"})
        script = os.path.relpath(self.root / "scripts" / "quickstart.sh", cwd)
        done = subprocess.run([script, *arguments], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120, check=False)
        return done.returncode, done.stdout.decode(errors="replace")

    def test_the_text_is_the_callers(self):
        text = text_of(700, seed=3)
        place = self.here / "place"
        (place / "my texts").mkdir(parents=True)
        (place / "my texts" / "a.txt").write_text(text)
        taken = self.root / "runs" / "quickstart" / "text" / "all.txt"
        for cwd, name in ((place, "my texts/a.txt"), (self.root, str(place / "my texts" / "a.txt")), (self.root, os.path.relpath(place / "my texts/a.txt", self.root))):
            with self.subTest(cwd=cwd, name=name):
                code, said = self.run_it(name, cwd=cwd)
                self.assertEqual(code, 0, said)
                self.assertIn("quickstart: eval_loss 0.5000 bigram ", said)
                self.assertEqual(taken.read_text(), text)
        with self.subTest("what an earlier one left"):
            for name in ("runs/quickstart/text/all.txt", "runs/quickstart/text/train.txt"):
                before = (self.root / name).read_text()
                code, said = self.run_it(name, cwd=self.root)
                self.assertEqual(code, 0, said)
                self.assertEqual(taken.read_text(), before)
        with self.subTest("a text that is not there, or too short, and nothing lost"):
            code, said = self.run_it("gone.txt", cwd=place)
            self.assertEqual(code, 64, said)
            self.assertIn(str(place / "gone.txt"), said)
            self.assertEqual(self.run_it("my texts", cwd=place)[0], 64)
            (place / "short.txt").write_text("short")
            code, said = self.run_it("short.txt", cwd=place)
            self.assertEqual(code, 65, said)
            self.assertNotIn("2/5 build", said, "refused before minutes of building")
            self.assertEqual(self.run_it(".", cwd=place)[0], 64)
            self.assertEqual(taken.read_text(), before)
        self.assertEqual([p.name for p in (self.root / "runs").iterdir()], ["quickstart"])

    def test_help(self):
        code, said = self.run_it("--help", cwd=self.here)
        self.assertEqual(code, 0, said)
        self.assertIn("[TEXT_FILE]", said)


if __name__ == "__main__":
    main()
