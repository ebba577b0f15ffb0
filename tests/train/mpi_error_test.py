# An MPI that reports an error at one call of one rank: the job ends with 71, says who and what, may be queued again, and goes on.
import json
import random
from concurrent.futures import ThreadPoolExecutor

from run_support import BUILD, RunCase, main, run_program

RANKS = 3
PLACES = 50
FIRST = 20  # posts that a rank needs to find its neighbours and their cores, at most
LAST = 10  # ... for the last vote, behind which rank 0 calls the run finished
# Messages inside the node are MPI's, too.
MPI = {"LD_PRELOAD": str(BUILD / "tests" / "libinterposed_mpi.so"), "THINWIRE_NODE_MEMORY": "0"}


class MpiErrors(RunCase):
    def start_run(self, name, **variables):
        config = self.config(name, num_layers=1, hidden_size=16, seq_length=16, train_batch_size=6, train_micro_batch_size_per_gpu=1,
                             train_iters=3, save_interval=1, eval_iters=1, eval_interval=2, zero_optimization={"stage": 2})
        return config, run_program("train", "--config", config, cwd=self.here, ranks=RANKS, extra={**MPI, **variables})

    def judge(self, place):
        rank, call, posts = place
        name = f"{call}_{rank}_{posts}"
        config, done = self.start_run(name, THINWIRE_MPI_FAULT=f"{rank}:{call}:{posts}")
        said = [line for line in done.errors() if line.startswith(f"error: rank {rank}: ") and "MPI_" in line]
        wrong = []
        if done.code != 71:
            wrong.append(f"code {done.code}")
        if not said or (call == "post" and "with rank " not in said[0]):
            wrong.append("the call or the peer is not named")
        status = self.run_dir(config) / "status.json"
        if posts < FIRST:  # nobody knows the run directory yet
            wrong += ["there is a status"] if status.exists() else []
        else:
            ended = json.loads(status.read_text()) if status.exists() else {}
            # At the last barrier all is done, and rank 0 has said so or is about to.
            good = ended.get("state") in ("finished", "running") if call == "barrier" else (ended.get("code"), ended.get("requeue")) == (71, True)
            wrong += [] if good else [f"status {ended}"]
        return f"{name}: {'; '.join(wrong)}\n{done}" if wrong else None

    def test_an_error_at_any_call_of_any_rank_ends_the_job_with_71(self):
        counts = []
        for n in range(3):
            _, whole = self.start_run(f"whole{n}", THINWIRE_MPI_COUNT=str(self.here / f"posts{n}"))
            self.expect(whole, 0)
            counts.append([int((self.here / f"posts{n}.{rank}").read_text().split()[0]) for rank in range(RANKS)])
        # Ranks that wait for a slow save tell each other that it gets on: a run whose saves are fast sends fewer messages, and a later place is not reached.
        posts = [min(of_rank) for of_rank in zip(*counts)]
        chance = random.Random(24)
        places = [(chance.randrange(RANKS), call, posts) for call, posts in (("dup", 0), ("allgather", 0), ("post", 1), ("barrier", 10**6))]
        while len(places) < PLACES:
            rank = chance.randrange(RANKS)
            places.append((rank, chance.choice(["post", "poll"]), chance.randrange(FIRST, posts[rank] - LAST)))
        with ThreadPoolExecutor(4) as pool:  # ranks that end give the launcher time to hear them: most of a run is waiting
            wrong = [w for w in pool.map(self.judge, places) if w]
        self.assertEqual(wrong, [], f"{len(wrong)} of {PLACES}, posts {posts}\n" + "\n".join(wrong[:3]))

    def test_the_next_life_goes_on_from_the_last_checkpoint(self):
        config, done = self.start_run("broken", THINWIRE_MPI_FAULT="1:none:0", THINWIRE_MPI_COUNT=str(self.here / "posts"))
        self.expect(done, 0)
        posts = int((self.here / "posts.1").read_text().split()[0])
        config, done = self.start_run("again", THINWIRE_MPI_FAULT=f"1:post:{posts * 3 // 4}")
        self.assertEqual(done.code, 71, str(done))
        config, done = self.start_run("again")
        self.expect(done, 0)
        self.assertIn("resumed", done.out + done.err)
        self.assert_same_run(self.here / "broken.json", config)


if __name__ == "__main__":
    main()
