# What the texts of all batch scripts hold to: shellcheck, and a head that explains the script.
import os
import shutil
import subprocess
import unittest

from batch_queue import ALL, SCRIPTS
from sweep_support import FULL, ROOT, main


class Texts(unittest.TestCase):
    def test_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("shellcheck is not installed (scripts/install_deps.sh)")
        # Whatever follows a script into batch_common.sh reads all of that anew: outside the full run one script per system is followed.
        followed = [p for i, p in enumerate(ALL) if FULL or p.parent != ALL[i - 1].parent]
        for options, paths in ((["-x"], ["batch_common.sh", *followed]), (["-e", "SC1091,SC2034"], ALL)):
            done = subprocess.run(["shellcheck", *options, *(f"scripts/{p}" for p in paths)], cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_script_explains_itself(self):
        for path in ALL:
            with self.subTest(str(path)):
                lines = (SCRIPTS / path).read_text().splitlines()
                self.assertEqual(lines[0], "#!/bin/bash")
                self.assertTrue(os.access(SCRIPTS / path, os.X_OK))
                comment = [n for n in lines if n.startswith("# ") and not n.startswith("# flux:")]
                self.assertTrue(8 <= len(comment) <= 14, len(comment))
                self.assertLessEqual(max(map(len, lines)), 140)


if __name__ == "__main__":
    main()
