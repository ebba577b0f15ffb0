# What can hang: a file system under a running job, and ranks that do not come to the start or to the end. The launcher gets 71 in time.
import json
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from run_support import BUILD, RunCase, main, run_program

RANKS = 3
START = 12  # seconds: five jobs of three ranks that begin at once on a busy machine are all there by then
PRELOADED = {"LD_PRELOAD": str(BUILD / "tests" / "libinterposed_mpi.so")}
KEYS = {"num_layers": 1, "hidden_size": 16, "seq_length": 16, "train_batch_size": 6, "train_micro_batch_size_per_gpu": 1}


def mount_image(image, directory):
    """A file system of its own that can be frozen; returns None, or why there is none here."""
    if os.geteuid() != 0 or not shutil.which("fsfreeze") or not shutil.which("mkfs.ext4"):
        return "freezing a file system needs root, fsfreeze and mkfs.ext4"
    directory.mkdir()
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, directory], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return None if done.returncode == 0 else "mount refused: " + done.stdout.decode(errors="replace").strip()


class Hangs(RunCase):
    def test_the_launcher_gets_71_while_the_file_system_is_still_frozen(self):
        frozen = self.here / "frozen"
        why = mount_image(self.here / "image", frozen)
        if why:
            self.skipTest(why)
        limit = 3
        thawed = None
        try:
            config = self.config("run", **KEYS, train_iters=100000, save_interval=5, run_dir=str(frozen / "run"), watchdog_seconds=limit)
            running = self.start(config, ranks=RANKS)
            self.assertTrue(running.wait_for("step 20"))
            subprocess.run(["fsfreeze", "--freeze", frozen], check=True)
            start = time.monotonic()
            try:
                done = running.finish(limit=30)
                took = time.monotonic() - start
            finally:
                thawed = subprocess.run(["fsfreeze", "--unfreeze", frozen], check=True)
            self.assertEqual(done.code, 71, str(done))
            self.assertLess(took, limit + 20, str(done))  # as long as it is frozen
            said = done.out + done.err
            self.assertEqual(said.count("watchdog: nothing moved between ranks"), 1, str(done))
            self.assertRegex(said, r"Culprit: rank \d .*waits? for nobody, busy outside communication")
            # Whoever was to write it down does so now.
            end = time.monotonic() + 30
            while self.status(config)["code"] != 71 and time.monotonic() < end:
                time.sleep(0.1)
            status = self.status(config)
            self.assertEqual((status["code"], status["reason"], status["requeue"]), (71, "hung_peer", True), status)
            # Rank 0 with its log, or those whose part of a save was under way: whoever was about to write.
            culprits = re.search(r"Culprit: (rank \d .*?) waits? for nobody", said)[1]
            self.assertIn(f"Culprit: {culprits} wait", status["message"])
            again = self.train(config, f"train_iters={status['step'] + 10}", ranks=RANKS, expect=0)
            self.assertIn("resumed", again.out + again.err)
        finally:
            if thawed is None:
                subprocess.run(["fsfreeze", "--unfreeze", frozen], check=False, capture_output=True)
            subprocess.run(["umount", "-l", frozen], check=False)

    def judge(self, place):
        moment, victim, expected = place
        name = f"{moment}_{victim}"
        config = self.config(name, **KEYS, train_iters=3, save_interval=0, start_timeout_s=START)
        self.run_dir(config).mkdir()
        (self.run_dir(config) / "status.json").write_text(json.dumps({"state": "preempted", "code": 75, "total_steps": 77, "started": "2020-01-01T00:00:00Z"}))
        start = time.monotonic()
        done = run_program("train", "--config", config, cwd=self.here, ranks=RANKS,
                           extra={**PRELOADED, "THINWIRE_MPI_STOP": f"{victim}:{moment}"})
        took = time.monotonic() - start
        wrong = [] if done.code == 71 else [f"code {done.code}"]
        wrong += [] if took < START + 25 else [f"{took} s"]
        wrong += [f"nobody said {e}" for e in expected if not re.search(e, done.err + done.out)]
        status = json.loads((self.run_dir(config) / "status.json").read_text()) if (self.run_dir(config) / "status.json").exists() else {}
        # At the last barrier all is done, and rank 0 has said so.
        good = status.get("state") == "finished" if moment == "last" else (status.get("code"), status.get("requeue")) == (71, True)
        good = good and status["total_steps"] == 3  # of this life
        wrong += [] if good else [f"status {status}"]
        return f"{name}: {'; '.join(wrong)}\n{done}" if wrong else None

    def test_a_rank_that_does_not_come_to_the_start_or_the_end_is_named(self):
        said = r"rank {} \(host [^)]*\): {} after start_timeout_s \(START s\); ending all ranks with code 71".replace("START", str(START))
        missing = "no sign of rank 2 in the {}"
        places = [("init", 2, [said.format(0, "still waits for the others in MPI_Init"), r"rank 2 \(host .*\): its process \d+ is stopped"]),
                  ("first", 2, [said.format(0, missing.format("first handshake"))]),
                  ("first", 0, [said.format("[12]", "still waits in the first handshake")]),
                  ("last", 2, [said.format(0, missing.format("last barrier"))]),
                  ("last", 0, [said.format("[12]", "still waits in the last barrier")])]
        with ThreadPoolExecutor(len(places)) as pool:  # nearly all of it is waiting
            wrong = [w for w in pool.map(self.judge, places) if w]
        self.assertEqual(wrong, [], "\n".join(wrong))
        end = time.monotonic() + 20
        while (left := subprocess.run(["pgrep", "-f", str(self.here)], capture_output=True, text=True, check=False).stdout.split()) and time.monotonic() < end:
            time.sleep(0.1)  # a process that was killed takes a moment to go
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        self.assertEqual(left, [], "processes are left over")


if __name__ == "__main__":
    main()
