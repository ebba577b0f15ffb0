# Many points, the runner killed (-9) several times at random moments, its launchers too: a result each, none run twice, none lost.
import json
import os
import random
import re
import signal
import time

from sweep_support import FULL, SweepCase, main

POINTS, KILLS, SEEDS = (60, 5, [1, 2, 3, 4, 5]) if FULL else (24, 3, [1, 2])


class Killed(SweepCase):
    def children(self, pid):
        """Processes that this one has started, as /proc says."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                        if int(f.read().rpartition(")")[2].split()[1]) == pid:
                            found.append(int(name))
                except (FileNotFoundError, ProcessLookupError):
                    pass
        return found

    def finished(self):
        return {id_: s for id_, s in self.status().items() if s["state"] == "finished"}

    def test_points_and_kills(self):
        plan = self.plan(keys={"train_iters": 16, "train_batch_size": 16, "seq_length": 64, "max_position_embeddings": 64, "hidden_size": 64},
                         grid={"lr": [1e-3, 2e-3, 3e-3], "zero_optimization.stage": [0, 1], "@ranks": [1, 2]}, seeds=SEEDS, launcher={"at_once": 2})
        self.sweep("create", plan, "--out", self.out, expect=0)
        self.assertEqual(len(self.ids()), POINTS)
        chance = random.Random(20)
        seen = {}   # what was finished when a runner was killed, with the time of its last writing
        killed_at = []
        for life in range(KILLS):
            runner = self.start("run", self.out)
            # Each life does some points, so few that all of them leave work for the last.
            goal = len(seen) + (chance.randint(3, 9) if FULL else chance.randint(1, 3))
            self.wait_for(lambda: len(self.finished()) >= goal or runner.poll() is not None, f"{goal} finished points")
            self.assertIsNone(runner.poll(), "a runner ended before it was killed")
            if life == 1:
                code, _, said = self.sweep("run", self.out)
                self.assertEqual(code, 75, said)
                self.assertRegex(said, rf"`sweep run` on host \S+, pid {runner.pid}, since .* works on this sweep")
                self.assertEqual(self.sweep("resume", plan, "--out", self.out)[0], 75)
            time.sleep(chance.uniform(0.0, 0.35))
            launchers = self.children(runner.pid)
            runner.send_signal(signal.SIGKILL)
            if life % 2 == 1:  # ranks live on without a launcher
                for pid in launchers:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            runner.communicate()
            now = self.finished()
            for id_, status in seen.items():
                self.assertEqual(now.get(id_), status, f"{id_} was finished and has been touched since")
            seen = now
            killed_at.append(len(seen))
        self.assertLess(killed_at[-1], POINTS)
        last = self.start("run", self.out)
        out, err = last.communicate(timeout=120)
        self.assertEqual(last.returncode, 0, out + err)

        final = self.status()
        self.assertEqual([s["state"] for s in final.values()], ["finished"] * POINTS)
        for id_, status in seen.items():
            self.assertEqual(final[id_], status, f"{id_} was finished and has been touched since")
        again = 0
        for id_, status in final.items():
            self.assertEqual(self.updates(id_), list(range(1, 17)), id_)
            self.assertEqual(json.loads((self.out / "runs" / id_ / "run" / "status.json").read_text())["state"], "finished")
            log = (self.out / "runs" / id_ / "log.txt").read_text()
            # Killed between its status and its log, a runner leaves an attempt out; the one that finished is the last.
            begun = [int(n) for n in re.findall(r"^--- attempt (\d+),", log, re.MULTILINE)]
            self.assertEqual(begun, sorted(set(begun)), id_)
            self.assertEqual(begun[-1], status["attempts"], id_)
            # Killed between its last update and its last save, a run does that update again; a finished one never.
            self.assertIn(log.count("step 16/16 "), range(1, 1 + status["attempts"]), f"{id_} came to its end too often")
            again += status["attempts"] - 1
        self.assertLessEqual(again, 2 * KILLS)  # at most the two that were under way when a runner died
        before = {id_: (self.out / "runs" / id_ / "run" / "metrics.jsonl").stat().st_mtime_ns for id_ in final}
        self.sweep("run", self.out, expect=0)
        self.assertEqual(self.status(), final)
        self.assertEqual({id_: (self.out / "runs" / id_ / "run" / "metrics.jsonl").stat().st_mtime_ns for id_ in final}, before)
        print(f"finished when killed: {killed_at}; {again} runs continued")

    def test_killed_while_it_makes_the_folder(self):
        plan = self.plan(seeds=list(range(1, 31)))
        chance = random.Random(3)
        whole = 0
        for _ in range(12):
            process = self.start("create", plan, "--out", self.out)
            time.sleep(chance.uniform(0.03, 0.5))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            whole += (self.out / "sweep.json").exists()
        self.sweep("create", plan, "--out", self.out, expect=0)
        self.assertEqual(len(self.ids()), 30)
        self.assertEqual(self.states(), ["init"] * 30)
        for id_ in self.ids():
            for name in ("config.json", "job.sh"):
                self.assertGreater((self.out / "runs" / id_ / name).stat().st_size, 50, f"{id_}/{name}")


if __name__ == "__main__":
    main()
