# Arrays of batch systems: no longer than their sites take, and every point is an element of one.
import os
import unittest.mock

from sweep_support import SweepCase, main

import sweep_batch
import sweep_batch_systems
import sweep_create
import sweep_plan
import sweep_store


class Arrays(SweepCase):
    def submitted(self, kind, points, **launcher):
        """(sweep, [(elements, at_once)]) of points handed over to a batch system that takes everything."""
        plan = sweep_plan.read(str(self.plan(seeds=list(range(points)), launcher={"kind": kind, **launcher})))
        sweep = sweep_store.Sweep(self.here / kind, sweep_create.facts_of(plan, plan.points, "now"))
        for point in sweep.points():
            os.makedirs(sweep.folder(point.id))
        given = []

        def take(_, path, count, at_once):
            given.append((count, at_once))
            return f"{100 + len(given)}[]" if kind == "pbs" and count else str(100 + len(given))
        # Thousands of small files: what a power cut would leave of them is not asked here.
        with unittest.mock.patch.object(sweep_batch_systems.SYSTEMS[kind], "submit", take), unittest.mock.patch("os.fsync", lambda _: None):
            sweep_batch.submit(sweep, sweep.points())
        self.assertEqual({sweep.status(p.id)["state"] for p in sweep.points()}, {"pending"})
        return sweep, given

    def jobs(self, sweep):
        return [sweep.status(p.id)["job"] for p in sweep.points()]

    def test_more_points_than_an_array_may_have(self):
        sweep, given = self.submitted("slurm", 1001, at_once=5)
        self.assertEqual(given, [(1000, 5), (1, 5)])
        self.assertEqual(self.jobs(sweep), [*(f"101_{i}" for i in range(1000)), "102_0"])
        listed = "".join((self.here / "slurm" / "batch" / f"{sweep_batch.batch_name(sweep, i)}.list").read_text() for i in (0, 1))
        self.assertEqual([line.split("\t")[1] for line in listed.splitlines()], [sweep.path(p.id, "config.json") for p in sweep.points()])

    def test_percent_signs_of_paths_are_no_fields_of_slurm(self):
        slurm = sweep_batch_systems.Slurm()
        self.assertEqual([slurm.output("/a 50%j/x", array) for array in (True, False)], ["/a 50%%j/x-%a.out", "/a 50%%j/x"])

    def test_a_user_without_a_name_is_a_number(self):
        with unittest.mock.patch.object(sweep_batch_systems.os, "geteuid", lambda: 4123456789):
            self.assertEqual(sweep_batch_systems.me(), "4123456789")

    def test_what_is_left_may_be_too_few_for_an_array(self):
        with unittest.mock.patch.object(sweep_batch_systems.System, "most", 3):
            sweep, given = self.submitted("pbs", 7)
            self.assertEqual(given, [(3, None), (3, None), (0, None)])
            self.assertEqual(self.jobs(sweep), ["101[0]", "101[1]", "101[2]", "102[0]", "102[1]", "102[2]", "103"])
            self.assertEqual(self.submitted("flux", 4)[1], [(0, None)] * 4)


if __name__ == "__main__":
    main()
