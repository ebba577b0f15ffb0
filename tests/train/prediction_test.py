# `train --cluster`: a dry run says what `plan` says, and a run keeps what was predicted for the report to put beside what was measured.
import json

from run_support import ROOT, RunCase, main, read_metrics, run_program

LAB = ROOT / "configs/clusters/lab.json"
LAYOUT = ["zero_optimization.stage=1", "train_batch_size=8", "compression=bf16_wire"]


class Predicted(RunCase):
    def test_a_dry_run_adds_milliseconds(self):
        path = self.config()
        for ranks in ([], ["--ranks", 2]):  # all of the cluster, which are two
            dry = run_program("train", "--config", path, *LAYOUT, "--dry-run", "--cluster", LAB, *ranks)
            plan = run_program("plan", "--config", path, *LAYOUT, "--cluster", LAB, *ranks)
            self.expect(dry, 0)
            self.expect(plan, 0)
            self.assertRegex(plan.out, r"step: [\d.]+ ms")
            self.assertRegex(plan.out, r"dp\.gradient .* exposed [\d.]+ ms")
            self.assertIn(plan.out, dry.out)
        self.assertNotIn("cluster: ", run_program("train", "--config", path, "--dry-run", "--ranks", 2, *LAYOUT).out)

    def test_bad_clusters_are_configuration_errors(self):
        path, cluster = self.config(), self.here / "cluster.json"
        cluster.write_text('{"nodes": 0}')
        for arguments in (["--dry-run"], []):
            done = run_program("train", "--config", path, "--cluster", cluster, *arguments)
            self.assertEqual(done.code, 78, str(done))
            self.assertIn("cluster.json", done.err)
        done = run_program("train", "--config", path, "--dry-run", "--cluster", LAB, "--ranks", 4, "train_batch_size=16")
        self.expect(done, 78)
        self.assertIn("the cluster 2", done.err)

    def test_the_report_has_both(self):
        path = self.config()
        self.train(path, *LAYOUT, "--cluster", LAB, expect=0, ranks=2)
        folder = self.run_dir(path)
        predicted = json.loads((folder / "prediction.json").read_text())
        plan = run_program("plan", "--config", path, "--cluster", LAB, "--ranks", 2, "--json", *LAYOUT)
        said = json.loads(plan.out.splitlines()[-1])
        self.assertEqual(predicted["comm"].keys(), said["comm"].keys())
        # Bytes are those of the run, to the last one; times are a model's.
        last = [line for line in read_metrics(folder) if "loss" in line][-1]
        for site, numbers in predicted["comm"].items():
            self.assertEqual(numbers["wire_bytes"], last["comm"][site]["wire_bytes"], site)
        self.assertTrue(predicted["comm"])
        self.expect(run_program("report", folder, "--output", self.here / "report.html"), 0)
        page = (self.here / "report.html").read_text()
        self.assertIn("<h2>Predicted and measured</h2>", page)
        self.assertIn("Predicted by <code>plan</code> for lab", page)
        self.assertIn("dp.gradient, exposed", page)
        for torn in ("", "{", "[]", '{"step_ms": null}'):
            (folder / "prediction.json").write_text(torn)
            self.expect(run_program("report", folder, "--output", self.here / "report.html"), 0)
            page = (self.here / "report.html").read_text()
            self.assertNotIn("Predicted and measured", page)
            self.assertIn("prediction.json is no line of plan --json", page)

    def test_nodes_are_those_of_the_run(self):
        path = self.config()
        placement = [f"placement.{of}" for of in ("weights=node", "gradients=node", "optimizer=global")]
        self.train(path, "train_batch_size=8", "ranks_per_node=2", *placement, "--cluster", LAB, expect=0, ranks=2)
        folder = self.run_dir(path)
        predicted = json.loads((folder / "prediction.json").read_text())
        last = [line for line in read_metrics(folder) if "loss" in line][-1]
        for site in ("dp.gradient", "zero.parameter"):
            self.assertEqual(predicted["comm"][site]["wire_bytes"], last["comm"][site]["wire_bytes"], site)

    def test_lengths_that_matrices_tell(self):
        path = self.config()
        keys = ["train_batch_size=8", "pipe_parallel_size=2", 'compression.pp.backward={"codec": "low_rank", "rank": 2, "residual": "lazy"}']
        self.train(path, *keys, "--cluster", LAB, expect=0, ranks=2)
        folder = self.run_dir(path)
        predicted = json.loads((folder / "prediction.json").read_text())["comm"]["pp.backward"]
        last = [line for line in read_metrics(folder) if "loss" in line][-1]["comm"]["pp.backward"]
        self.assertEqual(predicted["wire_bytes_total"], last["wire_bytes_total"])
        self.assertLess(last["wire_bytes_total"], last["logical_bytes_total"] / 5)


if __name__ == "__main__":
    main()
