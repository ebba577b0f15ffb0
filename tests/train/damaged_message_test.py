# Messages that arrive with a bit turned over: with checksums the job ends with 71 and says whose it was, without nobody knows.
import json
import random
from concurrent.futures import ThreadPoolExecutor

from run_support import BUILD, RunCase, checkpoints_in, facts, main, read_checkpoint, read_metrics, run_program

FIRST = 40  # messages of a rank before the mesh with its checksums stands, at most
LAST = 10  # ... of the last votes, behind which rank 0 calls the run finished
FLIPS = 6  # per layout
# Messages inside the node are MPI's, too.
MPI = {"LD_PRELOAD": str(BUILD / "tests" / "libinterposed_mpi.so"), "THINWIRE_NODE_MEMORY": "0"}
LAYOUTS = {
    "plain": (3, {"train_batch_size": 6, "zero_optimization": {"stage": 2}}),
    "coded": (4, {"train_batch_size": 4, "num_layers": 2, "pipe_parallel_size": 2, "zero_optimization": {"stage": 1},
                  "compression": {"dp.gradient": {"codec": "block_int", "bits": 8}, "pp.forward": {"codec": "cast", "format": "bf16"},
                                  "pp.backward": {"codec": "entropy"}, "embedding": {"codec": "sketch"}}}),
}


class DamagedMessages(RunCase):
    def start_run(self, layout, name, checksum, **variables):
        ranks, keys = LAYOUTS[layout]
        config = self.config(f"{layout}_{name}", **{"num_layers": 1, "hidden_size": 16, "seq_length": 16, "train_iters": 4, "save_interval": 2,
                                                    "train_micro_batch_size_per_gpu": 1, "eval_iters": 1, "eval_interval": 2,
                                                    "checksum": checksum, "watchdog_seconds": 10, **keys})
        return config, run_program("train", "--config", config, cwd=self.here, ranks=ranks, extra={**MPI, **variables})

    def places(self, layout, checksum, flips=FLIPS):
        """Chosen messages as (rank, number, bit), and the undisturbed run's metrics."""
        ranks, counts = LAYOUTS[layout][0], []
        for n in range(3):
            config, whole = self.start_run(layout, f"whole_{checksum}_{n}", checksum, THINWIRE_MPI_COUNT=str(self.here / f"posts{n}"))
            self.expect(whole, 0)
            counts.append([int((self.here / f"posts{n}.{rank}").read_text().split()[1]) for rank in range(ranks)])
        # Ranks that wait for a slow save tell each other that it gets on: a run whose saves are fast sends fewer messages, and a later place is not reached.
        sends = [min(of_rank) for of_rank in zip(*counts)]
        chance = random.Random(f"{layout} {checksum}")
        chosen = [chance.randrange(ranks) for _ in range(flips)]
        return [(rank, chance.randrange(FIRST, sends[rank] - LAST), chance.randrange(1 << 20)) for rank in chosen], config

    def flip(self, layout, checksum, place):
        rank, number, bit = place
        return self.start_run(layout, f"{checksum}_{rank}_{number}", checksum, THINWIRE_MPI_FLIP=f"{rank}:{number}:{bit}")

    def judge(self, layout, place):
        config, done = self.flip(layout, True, place)
        said = [line for line in done.errors() if f"rank {place[0]} (" in line and "damaged on their way: site " in line]
        status = json.loads((self.run_dir(config) / "status.json").read_text())
        wrong = [f"code {done.code}"] if done.code != 71 else []
        wrong += [] if said and not said[0].startswith(f"error: rank {place[0]}:") else ["the sender is not named by a receiver"]
        wrong += [] if (status["code"], status["requeue"]) == (71, True) else [f"status {status}"]
        return f"{layout} {place}: {'; '.join(wrong)}\n{done}" if wrong else None

    def test_every_flipped_bit_ends_the_job_with_71(self):
        for layout in LAYOUTS:
            places, _ = self.places(layout, True)
            with ThreadPoolExecutor(3) as pool:
                wrong = [w for w in pool.map(lambda place: self.judge(layout, place), places) if w]
            self.assertEqual(wrong, [], f"{len(wrong)} of {FLIPS}\n" + "\n".join(wrong[:2]))

    def test_without_checksums_nobody_knows(self):
        # Many fall on weights that this text has no token for: the first that matters is enough.
        places, whole = self.places("plain", False, 36)
        def ended(config):
            return facts(self.run_dir(config)), read_checkpoint(checkpoints_in(self.run_dir(config) / "checkpoints")[-1])["tensors"]
        good = ended(whole)
        def outcome(place):
            config, done = self.flip("plain", False, place)
            self.assertNotIn("damaged on their way", done.err)
            return place, done.code, done.code == 0 and ended(config) != good
        seen = []
        while places and (0, True) not in [(code, other) for _, code, other in seen]:
            with ThreadPoolExecutor(3) as pool:
                seen += pool.map(outcome, places[:3])
            places = places[3:]
        self.assertIn((0, True), [(code, other) for _, code, other in seen], f"no flip changed a number: {seen}")

    def test_a_rule_checks_its_own_messages(self):
        """Of a site whose rule asks for it, plain ones too; the counters say so, and the dry run agrees."""
        def gradient_bytes(name, **rule):
            config = self.config(name, num_layers=1, hidden_size=16, seq_length=16, train_batch_size=2, train_iters=1, eval_iters=0,
                                 train_micro_batch_size_per_gpu=1, compression={"dp.gradient": rule} if rule else {})
            self.expect(run_program("train", "--config", config, cwd=self.here, ranks=2), 0)
            site = next(line for line in read_metrics(self.run_dir(config)))["comm"]["dp.gradient"]
            priced = run_program("train", "--config", config, "--dry-run", "--ranks", "2", cwd=self.here)
            row = next(line for line in priced.out.splitlines() if line.split()[:1] == ["dp.gradient"])
            self.assertIn(f"({site['wire_bytes']} bytes in", row)
            return site["wire_bytes"], site["logical_bytes"]
        plain, checked = gradient_bytes("unchecked"), gradient_bytes("checked", checksum=True)
        self.assertGreater(checked[0], plain[0])
        self.assertEqual((checked[0] - plain[0]) % 4, 0)
        self.assertEqual(checked[1], plain[1])


if __name__ == "__main__":
    main()
