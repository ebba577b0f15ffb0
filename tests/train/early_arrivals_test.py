# What arrives before a late rank asks for it is kept by its MPI: never more than --dry-run says, however late it is.
import array
import re

from run_support import BUILD, RunCase, main, run_program

MOST_RANKS = 16  # of the interposed MPI
# Two layers of weights and one more, so that gradients go in several operations; messages inside the node are MPI's, too.
MODEL = {"num_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "train_iters": 5, "save_interval": 0,
         "eval_iters": 0, "eval_interval": 0, "checksum": False}
LATE = 1  # the rank
# Keys, ranks, and what must really have been early at least, a part of the bound or bytes: the rank is late by far more than a step takes. Tensor ranks wait for
# each other in every layer: what is early is the late one's half of the embedding's sum, 16 rows of 64 fp32 numbers.
LAYOUTS = {"all_reduce": ({}, 4, 0.3), "scatter": ({"zero_optimization": {"stage": 2}}, 4, 0.1), "gathered": ({"zero_optimization": {"stage": 3}}, 4, 0.01),
           "gpipe": ({"pipe_parallel_size": 2, "schedule": "gpipe"}, 2, 0.3), "1f1b": ({"pipe_parallel_size": 2, "schedule": "1f1b"}, 4, 0.01),
           "tensor": ({"model_parallel_size": 2, "sequence_parallel": True}, 2, 16 * 64 * 4)}


class EarlyArrivals(RunCase):
    def test_no_more_is_early_than_the_plan_says(self):
        for name, (keys, ranks, least) in LAYOUTS.items():
            with self.subTest(name):
                config = self.config(name, **MODEL, **keys)
                priced = run_program("train", "--config", config, "--dry-run", "--ranks", ranks, cwd=self.here)
                bound = int(re.search(r"while it is late: at most .* MiB more \((\d+) bytes\)", priced.out)[1])
                counts = self.here / f"{name}.early"
                late = [{"at": "step.begin", "step": step, "rank": LATE, "do": "delay:0.5"} for step in (2, 4)]
                done = run_program("train", *self.train_arguments(config, (), late), cwd=self.here, ranks=ranks,
                                   extra={"LD_PRELOAD": str(BUILD / "tests" / "libinterposed_mpi.so"), "THINWIRE_NODE_MEMORY": "0", "THINWIRE_MPI_EARLY": str(counts)})
                self.expect(done, 0)
                numbers = array.array("q")
                numbers.frombytes(counts.read_bytes())
                early = [sum(numbers[(p * MOST_RANKS + r) * 3 + 2] for p in range(ranks)) for r in range(ranks)]
                print(f"{name}: at most {early[LATE]} bytes early at the late rank, {max(early)} at any, planned {bound}", flush=True)
                self.assertLessEqual(max(early), bound)
                self.assertGreaterEqual(early[LATE], least if least >= 1 else least * bound)


if __name__ == "__main__":
    main()
