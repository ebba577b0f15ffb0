# Plans: what is refused and how it is said, the order of points, ids that stay, configurations merged as `train` itself merges them.
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from sweep_support import BUILD, ROOT, SweepCase, TINY, environment, main

import sweep_config
import sweep_create
import sweep_json
import sweep_plan
import sweep_process
import sweep_runner
import sweep_store

GOOD = {"name": "test", "configs": ["configs/gpt2_tiny.json"]}

# name, plan as text or as fields over GOOD (None: taken out), what the message must hold
BAD_PLANS = [
    ("no JSON", "{ name: }", "plan.json:1:3: a key in quotes belongs here"),
    ("cut off", '{"name": "a", "configs": [', "plan.json:1:27: the text ends where a value belongs"),
    ("no object", "[1, 2]", "holds no object"),
    ("empty", "", "the text ends where a value belongs"),
    ("more behind", '{"name": "a"} x', "plan.json:1:15: 'x' behind the end"),
    ("word", '{"name": yes}', "plan.json:1:10: 'yes' is no value; text needs quotes"),
    ("comment without end", '{"name": "a" /* ', "plan.json:1:14: this comment does not end"),
    ("too deep", "[" * 40, "nested deeper than 32"),
    ("too large", '{"seeds": [99999999999999999999]}', "99999999999999999999 is too large"),
    ("key twice", '{"name": "a",\n "name": "b"}', 'plan.json:2:2: key "name" is given twice; the first is at plan.json:1:2'),
    ("unknown key", {"grids": {}}, 'unknown key "grids" (nearest: grid)'),
    ("unknown key, nothing near", {"hyperparameters": {}}, 'unknown key "hyperparameters" (known: name, about,'),
    ("no name", {"name": None}, "name: is needed"),
    ("name with a slash", {"name": "../../etc"}, "name: is needed: up to 64 letters"),
    ("no configs", {"configs": None}, "configs: name at least one"),
    ("configs are a text", {"configs": "configs/gpt2_tiny.json"}, "configs: must be a list of files"),
    ("config is not there", {"configs": ["configs/gpt3.json"]}, "configs: configs/gpt3.json: No such file"),
    ("grid is a list", {"grid": [1]}, "grid: must be an object of lists"),
    ("grid of a value", {"grid": {"lr": 0.1}}, '"lr": must be a list of values'),
    ("empty axis", {"grid": {"lr": []}}, '"lr": must be a list of values to go through, at least one'),
    ("value twice", {"grid": {"lr": [0.1, 0.2, 0.1]}}, "the value 0.1 is there twice"),
    ("value twice, once with a point", {"grid": {"train_iters": [2, 2.0]}}, "the value 2.0 is there twice"),
    ("unknown configuration key", {"grid": {"train_itters": [1]}}, 'unknown configuration key "train_itters" (nearest: train_iters)'),
    ("unknown key in set", {"set": {"compresion.preset": "none"}}, 'unknown configuration key "compresion.preset" (nearest: compression.preset)'),
    ("unknown key inside of a value", {"grid": {"compression": [{"presett": "none"}]}}, 'unknown configuration key "compression.presett"'),
    ("run_dir", {"set": {"run_dir": "/tmp/x"}}, "run_dir: the sweep gives each point a directory of its own"),
    ("save as an axis", {"grid": {"save": ["a", "b"]}}, "save: the sweep gives each point a directory of its own"),
    ("zip of unequal lists", {"zip": {"lr": [1, 2], "min_lr": [1]}}, "zip: lists that are walked together have one length, not 2 (lr), 1 (min_lr)"),
    ("zip of a value", {"zip": {"lr": 1}}, '"lr": must be a list of values'),
    ("zip entry twice", {"zip": {"lr": [1, 1], "min_lr": [2, 2]}}, "zip: entry 2 equals an earlier one"),
    ("list without names", {"list": [{"lr": 1}]}, 'list: entry 1 must be an object with a "name"'),
    ("list names twice", {"list": [{"name": "a"}, {"name": "a", "lr": 2}]}, 'list: "a" is there twice'),
    ("empty list", {"list": []}, "list: is empty"),
    ("seeds are texts", {"seeds": ["1"]}, "seeds: must be different whole numbers"),
    ("seed twice", {"seeds": [1, 1]}, "seeds: must be different whole numbers"),
    ("key on two axes", {"grid": {"lr": [1, 2]}, "zip": {"optimizer.params.lr": [3, 4]}}, '"optimizer.params.lr" is said by two axes: lr and optimizer.params.lr'),
    ("seed on two axes", {"grid": {"seed": [1, 2]}, "seeds": [3]}, '"seed" is said by two axes'),
    ("two words for one key", {"grid": {"precision": ["fp32", "bf16"]}, "zip": {"bf16": [True, False]}}, '"precision" is said by two axes: precision and bf16'),
    ("cut off in a list", '{"name": "a", "configs": ["x"', "plan.json:1:26: this has no closing ]"),
    ("set and grid", {"set": {"lr": 1}, "grid": {"lr": [1, 2]}}, 'set: "optimizer.params.lr" is varied by an axis, too'),
    ("twice in set by two names", {"set": {"lr": 1e-3, "optimizer": {"params": {"lr": 2e-3}}}}, 'set: "optimizer.params.lr" is given twice'),
    ("twice in a zip by two names", {"zip": {"lr": [1e-3, 2e-3], "optimizer.params.lr": [3e-3, 4e-3]}}, 'zip: "optimizer.params.lr" is given twice'),
    ("twice in an entry by two names", {"list": [{"name": "a", "train_iters": 1, "train-iters": 2}]}, 'list: "a" gives "train_iters" twice'),
    ("set and grid in other words", {"set": {"warmup": 0.5}, "grid": {"lr_warmup_iters": [0, 2]}}, 'set: "warmup" is varied by an axis, too'),
    ("set and grid, a word of Megatron's", {"set": {"swiglu": True}, "grid": {"activation": ["gelu", "swiglu"]}}, 'set: "swiglu" is varied by an axis, too'),
    ("two ways to say one thing on two axes", {"grid": {"train_iters": [1, 2], "train_samples": [8, 16]}}, "is said by two axes: train_iters and train_samples"),
    ("baseline off the axes", {"grid": {"lr": [1, 2]}, "baseline": {"min_lr": 1}}, 'baseline: "min_lr" is no axis of the plan (axes: lr)'),
    ("baseline without a point", {"grid": {"lr": [1, 2]}, "baseline": {"lr": 3}}, 'baseline: no point has {"lr": 3}'),
    ("unknown launcher", {"launcher": {"kind": "sge"}}, 'launcher: kind: "sge" is not local | lab | slurm'),
    ("unknown field of it", {"launcher": {"rank": 2}}, 'launcher: unknown field "rank" (nearest: ranks)'),
    ("ranks of 0", {"launcher": {"ranks": 0}}, "launcher: ranks: 0 is not a whole number from 1"),
    ("ranks of true", {"launcher": {"ranks": True}}, "launcher: ranks: true is not a whole number"),
    ("bad time", {"launcher": {"time_limit": "soon"}}, 'launcher: time_limit: "soon" is not a time such as'),
    ("bad rate", {"launcher": {"kind": "lab", "rate": "fast"}}, 'launcher: rate: "fast" is not a rate such as'),
    ("rate of a local sweep", {"launcher": {"rate": "1gbit"}}, "launcher: rate: launcher local has no such field (it belongs to lab)"),
    ("more hosts than ranks", {"launcher": {"kind": "lab", "hosts": 4, "ranks": 2}}, "4 hosts, but 2 ranks"),
    ("ranks that do not add up", {"launcher": {"kind": "slurm", "nodes": 2, "ranks_per_node": 4, "ranks": 4}}, "2 nodes with 4 ranks each are 8 ranks, not 4"),
    ("unknown axis of the launcher", {"grid": {"@rank": [1]}}, '"@rank": the launcher has no field rank (nearest: @ranks)'),
    ("kind as an axis", {"grid": {"@kind": ["local", "lab"]}}, '"@kind": is one for the whole sweep'),
    ("launcher field in set", {"set": {"@ranks": 2}}, '"@ranks": belongs into launcher, without @'),
    ("bad value of a launcher axis", {"grid": {"@ranks": [1, -1]}}, '"@ranks": -1 is not a whole number from 1'),
    ("hosts of a local sweep", {"grid": {"@hosts": [1, 2]}}, '"@hosts": launcher local has no field hosts'),
    ("too many points", {"grid": {"lr": [i / 1000 for i in range(1, 120)]}, "seeds": list(range(100))}, "11900 points; at most 9999"),
    ("an axis that changes nothing", {"grid": {"zero_optimization.stage": [1, 2]}, "list": [{"name": "a", "bf16": False}], "zip": {"log_interval": [1, 2]}, "set": {"run": 1}},
     'unknown configuration key "run"'),
    ("equal points", {"grid": {"precision": ["bf16", "fp32"], "adam_beta1": [0.9, 0.90]}}, "the value 0.9 is there twice"),
]


class Plans(SweepCase):
    def write(self, plan):
        path = self.here / "plan.json"
        path.write_text(plan if isinstance(plan, str) else json.dumps({k: v for k, v in {**GOOD, **plan}.items() if v is not None}, indent=1))
        return path

    def read(self, **fields):
        return sweep_plan.read(str(self.write({**fields, "set": fields.get("set", TINY)})))

    def test_bad_plans(self):
        self.assertGreaterEqual(len(BAD_PLANS), 25)
        for name, plan, part in BAD_PLANS:
            with self.subTest(name):
                with self.assertRaises(sweep_plan.PlanError) as caught:
                    sweep_plan.read(str(self.write(plan)), "plan.json")
                self.assertIn(part, str(caught.exception))

    def test_unreadable_plans(self):
        path = self.here / "plan.json"
        path.write_bytes(b'{"name": "\xff"}')
        code, _, err = self.sweep(path)
        self.assertEqual(code, 78)
        self.assertIn("plan.json: byte 10 is no UTF-8", err)
        path.unlink()
        path.symlink_to(path)
        self.assertEqual(self.sweep(path)[0], 64)  # no such file

    def test_the_command_says_it_and_ends_with_78(self):
        path = self.write({"grids": {}, "configs": ["nothing.json"], "launcher": {"rank": 1}})
        code, out, err = self.sweep(path)
        self.assertEqual((code, out), (78, ""))
        lines = err.splitlines()
        self.assertEqual(len(lines), 3, err)  # all at once
        self.assertTrue(all(line.startswith("error: ") for line in lines), err)
        self.assertRegex(lines[0], r'plan\.json:6:2: unknown key "grids"')
        self.assertEqual(os.listdir(self.here), ["plan.json"])  # nothing was made

    def test_wrong_command_lines(self):
        plan = self.write({})
        for arguments, part in ((["nothing.json"], "no such plan or folder"), (["frob", plan], "no command frob"), ([plan, "--jobs", "0"], "--jobs: at least 1"),
                                ([plan, "--frob"], "unrecognized arguments: --frob"), ([self.here], "is a folder; name the plan"), (["create", self.here], "is a folder"),
                                (["run", plan, plan], "one plan or folder"), ([], "Runs many configurations")):
            code, out, err = self.sweep(*arguments)
            self.assertEqual(code, 64, arguments)
            self.assertIn(part, out + err)
        self.assertEqual(self.sweep("status", self.here)[0], 78)  # a folder, but no sweep

    def test_null_is_the_default(self):
        self.assertEqual(self.read(launcher=None, baseline=None).launcher["kind"], "local")

    def test_a_byte_order_mark_is_skipped(self):
        base, mark = self.here / "base.json", b"\xef\xbb\xbf"
        base.write_bytes(mark + (ROOT / "configs" / "gpt2_tiny.json").read_bytes())
        path = self.write({"configs": [str(base)]})
        path.write_bytes(mark + path.read_bytes())
        self.assertEqual(len(sweep_plan.read(str(path)).points), 1)

    def test_short_forms_and_files_that_train_takes(self):
        both = self.read(grid={"compression.sequence": ["none", "cast"]}).points[1].config
        self.assertEqual([both[f"compression.sequence.{way}.codec"] for way in ("forward", "backward")], ["cast"] * 2)
        shipped = ROOT / "configs" / "compression" / "zeropp.json"
        own = self.here / "own.json"
        own.write_text(shipped.read_text() + "\n// changed")
        for path, name in (("configs/compression/zeropp.json", "zeropp"), ("zeropp.json", "zeropp"), (str(shipped), "zeropp"), (str(own), str(own))):
            config = self.read(configs=[*GOOD["configs"], path]).points[0].config
            self.assertEqual((config["compression.preset"], "rules" in config, "preset" in config), (name, False, False))
        (self.here / "two.json").write_text('{"micro_batch_size": 1, "train_micro_batch_size_per_gpu": 2}')
        with self.assertRaisesRegex(sweep_plan.PlanError, 'two.json: "train_micro_batch_size_per_gpu" is given twice'):
            self.read(configs=[*GOOD["configs"], str(self.here / "two.json")])
        (self.here / "neox.yml").write_text("num-layers: 2\n")
        with self.assertRaisesRegex(sweep_plan.PlanError, "neox.yml --print-config"):
            self.read(configs=[str(self.here / "neox.yml")])

    def test_an_entry_of_a_list_wins_over_set(self):
        plan = self.read(set={**TINY, "warmup": 0.5, "bf16": True}, list=[{"name": "a", "lr_warmup_iters": 0, "precision": "fp32"}, {"name": "b"}])
        a, b = (p.config for p in plan.points)
        self.assertEqual((a.get("warmup"), a["lr_warmup_iters"], a["precision"]), (None, 0, "fp32"))
        self.assertEqual((b["warmup"], "lr_warmup_iters" in b, b["precision"]), (0.5, False, "bf16"))

    def test_a_refusal_names_no_file_that_is_gone(self):
        code, out, err = self.sweep(self.write({"set": {"precision": "fp32", "bf16": {"enabled": True}}}), "--dry-run")
        self.assertEqual(code, 1, err)
        self.assertRegex(out, r'contradicts "precision" at config\.json:\d+')

    def test_order(self):
        plan = self.read(grid={"lr": [1e-3, 2e-3], "@ranks": [1, 2]}, zip={"weight_decay": [0.1, 0.2], "min_lr": [0, 1e-4]},
                         list=[{"name": "plain"}, {"name": "coded", "compression.preset": "zeropp"}], seeds=[7, 8])
        self.assertEqual(len(plan.points), 32)
        self.assertEqual([p.number for p in plan.points], list(range(1, 33)))
        self.assertEqual([p.id for p in plan.points[:5]] + [plan.points[-1].id],
                         ["001-lr0.001-ranks1-weight_decay0.1-min_lr0-plain-seed7", "002-lr0.001-ranks1-weight_decay0.1-min_lr0-plain-seed8",
                          "003-lr0.001-ranks1-weight_decay0.1-min_lr0-coded-seed7", "004-lr0.001-ranks1-weight_decay0.1-min_lr0-coded-seed8",
                          "005-lr0.001-ranks1-weight_decay0.2-min_lr0.0001-plain-seed7", "032-lr0.002-ranks2-weight_decay0.2-min_lr0.0001-coded-seed8"])
        point = plan.points[-1]
        self.assertEqual(point.axes, {"lr": 2e-3, "@ranks": 2, "weight_decay": 0.2, "min_lr": 1e-4, "list": "coded", "seed": 8})
        self.assertEqual(point.config["optimizer.params.lr"], 2e-3)  # lr by its own name, over that of the base configuration
        self.assertEqual((point.config["compression.preset"], point.config["seed"], point.seed, point.launcher["ranks"]), ("zeropp", 8, 8, 2))
        self.assertNotIn("run_dir", point.config)
        self.assertEqual(len({p.id for p in plan.points}), 32)

    def test_ids_are_names_of_folders(self):
        plan = self.read(list=[{"name": "a+b"}, {"name": "c", "lr": 1}], grid={"init_from_hf": ["/some/../where", "ü ö\\n/x"], "tokenizer": ["byte", "bpe:tok/x.json"]})
        for point in plan.points:
            self.assertRegex(point.id, r"^\d{3}-[A-Za-z0-9_.+-]+$")
            self.assertLessEqual(len(point.id), 72)

    def test_ids_stay_when_a_plan_grows(self):
        def make(**fields):
            return sweep_create.create(self.read(**fields), str(self.out), str(BUILD), say=lambda _: None)
        first = {p.id: p.identity() for p in make(grid={"lr": [1e-3, 2e-3]}, seeds=[1, 2], baseline={"lr": 1e-3}).points()}
        self.assertEqual(list(first), ["001-lr0.001-seed1", "002-lr0.001-seed2", "003-lr0.002-seed1", "004-lr0.002-seed2"])
        # Appended to the last axis, which turns fastest: new points stand between the old ones in the order of the plan.
        second = make(grid={"lr": [1e-3, 2e-3]}, seeds=[1, 2, 3], baseline={"lr": 1e-3}).points()
        self.assertEqual([p.id for p in second], list(first) + ["005-lr0.001-seed3", "006-lr0.002-seed3"])
        self.assertEqual({p.id: p.identity() for p in second[:4]}, first)
        self.assertEqual([p.baseline for p in second], ["001-lr0.001-seed1", "002-lr0.001-seed2"] * 2 + ["005-lr0.001-seed3"] * 2)
        third = make(grid={"lr": [1e-3, 2e-3, 4e-3]}, seeds=[1, 2, 3], baseline={"lr": 1e-3}).points()
        self.assertEqual([p.id for p in third[6:]], ["007-lr0.004-seed1", "008-lr0.004-seed2", "009-lr0.004-seed3"])
        # A value that was never started may go; with results it would mix two experiments.
        for id_ in ("001-lr0.001-seed1", "004-lr0.002-seed2"):
            (self.out / "runs" / id_ / "run").mkdir()
        with self.assertRaisesRegex(sweep_plan.PlanError, r"1 point with results that this plan has no longer \(001-lr0.001-seed1\)"):
            make(grid={"lr": [2e-3, 4e-3]}, seeds=[1, 2, 3])
        with self.assertRaisesRegex(sweep_plan.PlanError, "2 points with results that this plan has no longer"):
            make(grid={"lr": [1e-3, 2e-3, 4e-3]}, seeds=[1, 2, 3], set={**TINY, "num_layers": 3})
        fewer = make(grid={"lr": [1e-3, 2e-3]}, seeds=[1, 2, 3], baseline={"lr": 1e-3}).points()
        self.assertEqual([p.id for p in fewer], [p.id for p in second])
        self.assertEqual(sorted(os.listdir(self.out / "runs")), [p.id for p in second])
        third = make(grid={"lr": [1e-3, 2e-3, 4e-3]}, seeds=[1, 2, 3], baseline={"lr": 1e-3}).points()
        # How long a point may take is no part of what it is.
        longer = make(grid={"lr": [1e-3, 2e-3, 4e-3]}, seeds=[1, 2, 3], baseline={"lr": 1e-3}, launcher={"time_limit": "1h"}).points()
        self.assertEqual(([p.id for p in longer], longer[0].launcher["time_limit"]), ([p.id for p in third], "1h"))

    def test_a_used_folder_is_not_filled(self):
        self.out.mkdir()
        (self.out / "thesis.tex").write_text("x")
        code, _, err = self.sweep(self.write({}), "--out", self.out)
        self.assertEqual(code, 78)
        self.assertIn("is not empty and no sweep", err)
        self.assertEqual(os.listdir(self.out), ["thesis.tex"])

    def test_baselines(self):
        plan = self.read(grid={"@ranks": [1, 2]}, zip={"lr": [1e-3, 2e-3], "min_lr": [0, 1e-4]}, seeds=[1, 2], baseline={"lr": 1e-3})
        by_id = {p.id: p for p in plan.points}
        for point in plan.points:
            base = by_id[point.baseline]
            self.assertEqual((base.axes["lr"], base.axes["min_lr"]), (1e-3, 0))
            self.assertEqual((base.axes["@ranks"], base.axes["seed"]), (point.axes["@ranks"], point.axes["seed"]))
        plan = self.read(list=[{"name": "a"}, {"name": "b", "lr": 2}], baseline={"list": "a"})
        self.assertEqual([p.baseline for p in plan.points], ["001-a", "001-a"])

    def test_threads_are_said_in_the_configuration(self):
        self.assertEqual(self.read(launcher={"threads": 3}).points[0].config["threads_per_rank"], 3)
        point = self.read(set={**TINY, "threads_per_rank": 2}).points[0]
        self.assertEqual((point.config["threads_per_rank"], point.cores()), (2, 2))
        self.assertEqual(self.read().points[0].config["threads_per_rank"], 1)
        self.assertNotIn("threads_per_rank", self.read(launcher={"kind": "slurm", "ranks": 4}).points[0].config)

    def test_times(self):
        for text, seconds in (("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), (5, 5), ("1:30:00", 5400), ("10:00", 600),
                              ("1:00:00:00", 86400), ("", None), ("10", None), (0, None), (True, None), ("m", None), ("-5s", None), ("5s 3", None), ("0s", None)):
            self.assertEqual(sweep_plan.seconds_of(text), seconds, text)


class Text(SweepCase):
    def test_as_configurations_are_written(self):
        value = sweep_json.parse("x", '// one\n{ # two\n "a": [1, -2.5e3, true, None, "é\\n// no"], /* three\n */ "b": {"c": {},}, }\n#')
        self.assertEqual(value, {"a": [1, -2500.0, True, None, "é\n// no"], "b": {"c": {}}})
        self.assertEqual((value.at["b"], value["b"].at["c"]), ("x:4:5", "x:4:11"))

    def test_all_shipped_configurations_and_plans(self):
        paths = list((ROOT / "configs").rglob("*.json"))
        self.assertGreater(len(paths), 9)
        for path in paths:
            self.assertTrue(sweep_json.read(path), path)


# base configurations, overrides: alone and together they must mean what they mean to `train`
MERGES = [
    ([], {}),
    ([{"lr": 5e-4}], {"optimizer.params.lr": 7e-4}),
    ([{"optimizer": {"type": "sgd", "params": {"lr": 2e-3, "momentum": 0.5}}}], {"learning-rate": None, "lr": 1e-3}),
    ([{"optimizer": "sgd"}], {"optimizer": "adam"}),
    ([{"bf16": True}], {}),
    ([{"bf16": {"enabled": True}}], {"precision": "fp32"}),
    ([{"precision": "bf16"}], {"fp16": {"enabled": True, "initial_scale_power": 8}}),
    ([{"fp16": {"enabled": False}}], {"bf16": {"enabled": True}}),
    ([{"expansion_factor": 2}], {"intermediate_size": 96}),
    ([{"ffn-hidden-size": 80}], {"expansion_factor": 3}),
    ([{"swiglu": True}], {"activation": "gelu"}),
    ([{"activation": "swiglu"}], {"swiglu": False}),
    ([{"swiglu": True, "bias_gelu_fusion": False}], {}),  # another width than that of the activation
    ([{"swiglu": True, "bias_gelu_fusion": False}], {"activation": "swiglu"}),
    ([{"activation": "swiglu", "bias_gelu_fusion": False}], {"swiglu": True}),
    ([{"swiglu": True}], {"swiglu": False}),
    ([{"swiglu": True}, {"swiglu": None}], {}),
    ([{"swiglu": True}], {"activation": None}),
    ([{"pos_emb": "rotary"}], {"no_position_embedding": True}),
    ([{"pos_emb": "learned-absolute"}], {"no_position_embedding": True}),
    ([{"no_position_embedding": True}], {"pos_emb": "learned"}),
    ([{"no_position_embedding": True}], {"no_position_embedding": False}),
    ([{"use_rotary_position_embeddings": True, "no_position_embedding": True}], {"use_rotary_position_embeddings": False}),
    ([{"openai_gelu": True}], {"openai_gelu": False}),
    ([{"no_bias_gelu_fusion": True}], {}),
    ([{"no_bias_gelu_fusion": True}], {"no_bias_gelu_fusion": False}),
    ([{"openai_gelu": True}], {"no_bias_gelu_fusion": True}),
    ([{"no_bias_gelu_fusion": True}], {"openai_gelu": True}),
    ([{"openai_gelu": True}], {"bias_gelu_fusion": True, "no_bias_gelu_fusion": True}),
    ([{"recompute_activations": True}], {"recompute_activations": False}),
    ([{"recompute_activations": True}], {"recompute_granularity": "full"}),
    ([{"checkpoint_activations": True}], {"recompute_activations": False}),
    ([{"norm_epsilon": 1e-4}], {"layernorm_epsilon": 1e-6}),
    ([{"layernorm_epsilon": 1e-6}], {"norm_epsilon": 1e-4}),
    ([{"gradient_clipping": 0.5}], {"optimizer.params.max_grad_norm": 0.25}),
    ([{"optimizer": {"params": {"max_grad_norm": 0.25}}}], {"clip_grad": 0.5}),
    ([{"adam_beta1": 0.8}], {"adam_beta2": 0.9}),
    ([{"adam_beta1": 0.8}, {"optimizer": {"params": {"betas": None}}, "adam_beta2": 0.9}], {}),
    ([{"optimizer": {"params": {"betas": [0.8, 0.9]}}, "adam_beta1": 0.8}], {}),
    ([{"lr": 5e-4, "optimizer": {"params": {"lr": None}}}], {}),
    ([{"optimizer": {"params": {"betas": 0.9}}}], {"adam_beta1": 0.8}),  # refused
    ([{"lr_warmup_iters": 2}], {"warmup": 0.5}),
    ([{"warmup": 0.25}], {"lr_warmup_iters": 1}),
    ([{"train_samples": 8, "train_iters": None}], {"train_iters": 1}),
    ([{"lr_warmup_samples": 2}], {"warmup": 0.5}),
    ([{"lr_warmup_iters": 1}], {"lr_warmup_samples": 2}),
    ([{"lr_warmup_samples": 0}], {"warmup": 0.5}),
    ([{"lr_warmup_iters": 0, "warmup": 0.5}], {}),
    ([{"lr_warmup_iters": 0, "warmup": 0.5}], {"warmup": None}),
    ([{"lr_decay_samples": 4}], {"lr_decay_iters": 1}),
    ([{"min_lr": 1e-5}], {"decay_lr_to": 0.1}),
    ([{"decay_lr_to": 0.1, "warmup_iters": 1}], {"min_lr": 1e-5}),
    ([{"lr_decay_style": "wsd", "lr_wsd_decay_samples": 4}], {"lr_wsd_decay_iters": 1}),
    ([{"no_scatter_gather_tensors_in_pipeline": True}], {"scatter_gather_tensors_in_pipeline": True}),
    ([{"scatter_gather_tensors_in_pipeline": True}], {"no-scatter-gather-tensors-in-pipeline": True}),
    ([{"scatter_gather_tensors_in_pipeline": False}], {"no_scatter_gather_tensors_in_pipeline": False}),
    ([{"activations_checkpoint_method": "uniform"}], {"recompute_granularity": "none"}),
    ([{"recompute_granularity": "selective"}], {"activation_checkpoint_method": "block"}),
    ([{"ds_sequence_parallel_fpdt": True}], {"sequence_chunk_size": 16}),
    ([{"sequence_chunk_size": 16}], {"ds_sequence_parallel_fpdt": True}),
    ([{"ds_sequence_parallel_fpdt": True}], {"ds_sequence_parallel_fpdt": False}),
    ([{"ds_sequence_parallel_fpdt": True, "sequence_chunk_size": None}], {}),
    ([{"sequence_chunk_size": 16}, {"ds_sequence_parallel_fpdt": True, "sequence_chunk_size": None}], {}),
    ([{"fp16": {"enabled": True, "type": "bfloat16"}}], {}),
    ([{"fp16": {"enabled": True, "type": "bfloat16"}}], {"precision": "fp32"}),
    ([{"precision": "bf16"}], {"fp16": {"enabled": False, "type": "bfloat16"}}),
    ([{"fp16": {"enabled": True, "type": "fp16"}}], {"bf16": True}),
    ([{"_notes": {}, "intermediate_size": 80}], {}),
    ([{"config_version": 1, "intermediate_size": 80}], {"intermediate_size": 96}),
    ([{"use_distributed_optimizer": True}], {"zero_stage": 2}),
    ([{"checkpoint_activations": True}], {"recompute_granularity": "selective"}),
    ([{"disable_bias_linear": True}], {"use_bias_in_mlp": True}),
    ([{"disable_bias_linear": True}], {"disable_bias_linear": False}),
    ([{"disable_bias_linear": True}, {"use_bias_in_mlp": False}], {"disable-bias-linear": None}),
    ([{"use_rotary_position_embeddings": True}], {"pos_emb": "none"}),
    ([{"compression": "zeropp"}], {"compression.dp.gradient": {"codec": "cast", "format": "bf16"}}),
    ([{"compression": {"preset": "zeropp", "dp.gradient": {"codec": "top_k", "density": 0.1}}}], {"compression.dp.gradient": None}),
    ([{"compression": {"preset": "zeropp"}}], {"compression": None}),
    ([{"compression": "thinwire"}], {"compression": "none"}),
    ([{"compression": {"dp.gradient": "cast"}}], {"compression.dp.gradient.sum.codec": "block_int"}),
    ([{"compression": {"sequence": "cast"}}], {"compression.sequence.forward": None}),
    ([{"train_data_paths": [TINY["data_path"]], "valid_data_paths": [TINY["data_path"]], "data_path": None, "split": None}], {"data_path": TINY["data_path"], "split": "80,20,0"}),
    ([{"weight_decay": None}, {"weight-decay": 0.3}], {"clip_grad": 0.5}),
]


class Merging(SweepCase):
    """One file made of several means to `train` what the several mean: compared by the configuration that it resolves."""

    def resolved(self, name, *arguments):
        done = subprocess.run([BUILD / "train", *arguments, f"run_dir={self.here / name}", "--print-config"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.returncode, ""
        config = json.loads(done.stdout)
        return 0, {k: v for k, v in config.items() if k not in ("run_dir", "save")}

    def test_against_train(self):
        keys = sweep_config.Keys()
        good = 0
        for i, (files, overrides) in enumerate(MERGES):
            with self.subTest(f"{files} {overrides}"):
                paths = [ROOT / "configs" / "gpt2_tiny.json"]
                for j, value in enumerate([{**TINY, "train_iters": 1, "save_interval": 0}, *files]):
                    paths.append(self.here / f"{i}-{j}.json")
                    paths[-1].write_text(json.dumps(value))
                words = [f"{k}={json.dumps(v)}" for k, v in overrides.items() if keys.known(keys.canonical(k))]
                apart = self.resolved(f"{i}-apart", *[w for p in paths for w in ("--config", p)], *words)
                one = self.here / f"{i}.json"
                one.write_text(sweep_config.text_of(sweep_config.merged(keys, [sweep_json.read(p) for p in paths] +
                                                                        [dict([w]) for w in overrides.items() if keys.known(keys.canonical(w[0]))])))
                together = self.resolved(f"{i}-together", "--config", one)
                self.assertEqual(apart, together)
                good += apart[0] == 0
        self.assertGreater(good, len(MERGES) - 4)

    def test_groups_and_words_are_those_of_the_engine(self):
        source = (ROOT / "engine" / "run" / "config" / "settings.cpp").read_text()
        groups = re.search(r" groups = (\{.*?\});", source, re.S)[1]
        self.assertEqual(json.loads(groups.translate(str.maketrans("{}", "[]"))), [[list(side) for side in sides] for sides in sweep_config.EITHER_OR])
        words = re.findall(r'"([^"]+)"', re.search(r" kWords\[\] = \{(.*?)\};", source, re.S)[1])
        self.assertEqual(set(words), {*sweep_config.WORDS, sweep_config.PARTITION})
        warm_ups = re.findall(r'"([^"]+)"', re.search(r" warm_ups = \{(.*?)\};", source)[1])
        self.assertEqual(tuple(warm_ups), sweep_config.WARM_UPS)

    def test_every_word_is_written_out(self):
        """A word that the engine rewrites, and a sweep does not, would meet the key that it stands for in one file: a contradiction there."""
        source = (ROOT / "engine" / "run" / "config" / "settings.cpp").read_text()
        words = re.findall(r'\btake(?:_if_true)?\("([^"]+)"\)', source)
        self.assertGreater(len(words), 20)
        keys, values = sweep_config.Keys(), {"boolean": True, "string": "uniform"}
        for word in words:
            if word in ("swiglu", "fp16.type"):  # the default width depends on the word; the other says nothing alone
                continue
            self.assertNotIn(word, sweep_config.merged(keys, [[(word, values.get(keys.types[word][0], 4))]]))


class Machine(SweepCase):
    def test_quotas_of_control_groups(self):
        old = sweep_process.cgroup_folders
        self.addCleanup(setattr, sweep_process, "cgroup_folders", old)
        cores = sorted(os.sched_getaffinity(0))
        for files, quota in (({}, None), ({"cpu.max": "max 100000"}, None), ({"cpu.max": "150000 100000"}, 1.5), ({"cpu.max": "50000 100000"}, 0.5),
                             ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None), ({"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}, 1.0)):
            with tempfile.TemporaryDirectory() as folder:
                for name, text in files.items():
                    Path(folder, name).write_text(text + "\n")
                sweep_process.cgroup_folders = lambda folder=folder: [folder]
                self.assertEqual(sweep_process.core_quota(), quota)
                self.assertEqual(sweep_process.usable_cores(), cores if quota is None else cores[:max(1, int(quota))])

    def test_who_holds_the_lock(self):
        folder, lock = str(self.here), self.here / "runner.lock"
        with sweep_store.hold(folder, "run"):
            me = json.loads(lock.read_text())
            self.assertEqual(sweep_store.holder_of(folder), me)
        self.assertIsNone(sweep_store.holder_of(folder))
        for change, lives in (({}, True), ({"start": 1}, False), ({"boot": "before the power cut"}, False), ({"host": "another", "boot": "another"}, True)):
            lock.write_text(json.dumps({**me, **change}))
            self.assertEqual(sweep_store.holder_of(folder) is not None, lives, change)

    def test_files_follow_the_umask(self):
        for mask in (0o077, 0o022, 0o002):
            old = os.umask(mask)
            self.addCleanup(os.umask, old)
            for name, mode in (("a", 0o666), ("b", 0o777)):
                sweep_store.write_atomic(str(self.here / name), "text", mode)
                self.assertEqual(((self.here / name).stat().st_mode & 0o777, (self.here / name).read_text()), (mode & ~mask, "text"))
            os.umask(old)
        self.assertEqual(sorted(os.listdir(self.here)), ["a", "b"])

    def test_marks(self):
        mark = sweep_process.new_mark()
        self.assertEqual(sweep_process.marked([mark]), {})
        with subprocess.Popen(["setsid", "sleep", "30"], env={sweep_process.MARK: mark, "PATH": os.environ["PATH"]}) as process:
            self.wait_for(lambda: sweep_process.marked([mark, "x"]), "the mark of a process")
            self.assertEqual(set(sweep_process.marked([mark]).values()), {mark})
            self.assertEqual(sweep_process.marked([mark[:-1]]), {})
            process.kill()


class Verdicts(SweepCase):
    def test_table(self):
        done, busy = {"state": "finished"}, {"state": "running"}
        for arguments, expected in [
                ((0, True, done, "", None, False), ("finished", False)),
                ((0, True, done, "", "stop", False), ("finished", False)),
                ((0, True, done, "", "timeout", False), ("finished", False)),
                ((0, False, busy, "", None, False), ("failed", False)),       # the code alone says nothing
                ((75, True, done, "", None, False), ("preempted", True)),     # nor does the file alone
                ((75, False, busy, "", None, False), ("preempted", True)),
                ((75, False, busy, "", "stop", False), ("preempted", False)),
                ((143, False, busy, "", None, False), ("preempted", True)),
                ((-15, False, busy, "", None, False), ("preempted", True)),
                ((138, False, busy, "", None, False), ("preempted", True)),
                ((75, False, busy, "", "timeout", False), ("timeout", False)),
                ((-9, False, busy, "", "timeout", False), ("timeout", False)),
                ((71, False, busy, "", None, False), ("preempted", True)),
                ((73, False, busy, "", None, False), ("preempted", True)),
                ((78, False, {}, "error: the configuration has 1 problem\nx", None, False), ("failed", False)),
                ((78, False, {}, "error: not enough memory: this configuration needs 9 TiB", None, False), ("oom", False)),
                ((74, False, {}, "error: train: out of memory; --dry-run prints", None, False), ("oom", False)),
                ((74, False, {}, "error: no space left", None, False), ("failed", False)),
                ((137, False, busy, "", None, True), ("oom", False)),
                ((9, False, busy, "", None, True), ("oom", False)),
                ((9, False, busy, "", None, False), ("failed", False)),
                ((1, False, busy, "", None, True), ("failed", False)),
                ((76, False, {}, "error: diverged", None, False), ("failed", False)),
                ((139, False, busy, "", None, False), ("failed", False))]:
            state, reason, goes_on = sweep_runner.verdict(*arguments)
            self.assertEqual((state, goes_on), expected, arguments)
            self.assertEqual(reason == "", state == "finished", arguments)

    def test_errors_in_a_log(self):
        self.assertEqual(sweep_runner.error_in("a\nb\n"), "")
        self.assertEqual(sweep_runner.error_in("step 1\nerror: x: two\n  lines\n\n======\nBAD TERMINATION"), "x: two\n  lines")
        self.assertEqual(sweep_runner.error_in("error: first\nerror: last"), "last")


if __name__ == "__main__":
    main()
