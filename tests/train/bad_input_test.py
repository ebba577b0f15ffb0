# The error law on whole programs: damaged or hostile files end in one clear message and a documented code, never in a signal.
import json
import os
import random
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run_support import ROOT, RunCase, checkpoints_in, main, run_program

BAD = {64, 65, 74, 78}


def patched(data, at, value):
    return data[:at] + value + data[at + len(value):]


def u64(value):
    return struct.pack("<Q", value % 2**64)


class BadInput(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls()
        case.setUp()
        cls.good_config = case.config("good", train_iters=4, save_interval=2, bias_gelu_fusion=True, make_vocab_size_divisible_by=1)
        case.train(cls.good_config, expect=0)
        cls.good = case.run_dir(cls.good_config)
        cls.hf = cls.shared / "hf"
        made = run_program("checkpoint", "export", cls.good, "--format", "hf", "--output", cls.hf)
        if made.code != 0:
            raise AssertionError(str(made))

    def check(self, cases, codes=BAD, lines=1):
        """cases: {name: (program, arguments...)}. Each must end with one of `codes` and one error message."""
        with ThreadPoolExecutor(2) as pool:
            results = pool.map(lambda c: run_program(c[0], *c[1:], cwd=self.here), cases.values())
            for name, done in zip(cases, results):
                with self.subTest(name):
                    self.assertIn(done.code, codes, f"{name}\n{done}")
                    self.assertEqual(len(done.errors()), lines, f"{name}\n{done}")
                    self.assertGreater(len(done.errors()[0]), 20, "says what, where and how to mend it")
                    self.assertNotIn("nlohmann", done.err)
                    self.assertNotIn("std::", done.err)

    def test_token_files(self):
        idx, data = Path(str(self.prefix) + ".idx").read_bytes(), Path(str(self.prefix) + ".bin").read_bytes()
        n, m = struct.unpack("<QQ", idx[18:34])
        lengths, offsets, bounds = 34, 34 + 4 * n, 34 + 12 * n
        chance = random.Random(3)
        damage = {
            "idx empty": (b"", data), "idx of one byte": (idx[:1], data), "idx header only": (idx[:34], data), "idx half": (idx[:len(idx) // 2], data),
            "idx one byte short": (idx[:-1], data), "idx garbage": (chance.randbytes(len(idx)), data), "idx zeros": (bytes(len(idx)), data),
            "magic": (patched(idx, 0, b"MMIDIDZ"), data), "old format": (patched(idx, 0, b"TNTIDX\0\0"), data), "version 2": (patched(idx, 9, u64(2)), data),
            **{f"dtype {c}": (patched(idx, 17, bytes([c])), data) for c in (0, 6, 7, 9, 255)}, "dtype of another size": (patched(idx, 17, b"\4"), data),
            "no sequences": (patched(idx, 18, u64(0)), data), "2^63 sequences": (patched(idx, 18, u64(2**63)), data),
            "2^62 sequences": (patched(idx, 18, u64(2**62)), data), "-1 sequences": (patched(idx, 18, u64(-1)), data),
            "a sequence more": (patched(idx, 18, u64(n + 1)), data), "no documents": (patched(idx, 26, u64(0)), data),
            "-1 documents": (patched(idx, 26, u64(-1)), data), "documents more than bytes": (patched(idx, 26, u64(2**40)), data),
            "negative length": (patched(idx, lengths, struct.pack("<i", -5)), data), "huge length": (patched(idx, lengths, struct.pack("<i", 2**31 - 1)), data),
            "negative offset": (patched(idx, offsets + 8, u64(-2)), data), "offset past the end": (patched(idx, offsets + 8, u64(len(data))), data),
            "offset of 2^63 - 1": (patched(idx, offsets + 8, u64(2**63 - 1)), data), "boundary not at 0": (patched(idx, bounds, u64(1)), data),
            "boundary beyond": (patched(idx, bounds + 8 * (m - 1), u64(n + 7)), data), "boundaries descend": (patched(idx, bounds + 8, u64(n)), data),
            "bin empty": (idx, b""), "bin half": (idx, data[:len(data) // 2]), "bin one byte short": (idx, data[:-1]),
            "ids too large": (idx, b"\xff" * len(data)), "bin missing": (idx, None), "idx missing": (None, data)}
        cases = {}
        for i, (name, (a, b)) in enumerate(damage.items()):
            for end, content in ((".idx", a), (".bin", b)):
                if content is not None:
                    (self.here / f"d{i}{end}").write_bytes(content)
            cases[name] = ("train", "--config", self.config(f"c{i}", train_iters=2, save_interval=0, data_path=str(self.here / f"d{i}")))
        os.mkdir(self.here / "dir.idx")
        (self.here / "dir.bin").write_bytes(data)
        cases["idx is a directory"] = ("train", "--config", self.config("cdir", data_path=str(self.here / "dir")))
        cases["nothing there"] = ("train", "--config", self.config("cnone", data_path=str(self.here / "none")))
        self.check(cases, {65})
        for i in range(len(damage)):
            self.assertEqual(list((self.here / f"c{i}").glob("checkpoints/step_*")), [])

    def test_tokenizers_and_texts(self):
        whole = ROOT / "tests/golden/bpe/gpt2/tokenizer.json"
        text = self.here / "t.txt"
        text.write_text("a few words\n\nand more")
        chance = random.Random(4)
        specs = {"no such kind": "words:file", "no file named": "bpe:", "missing": "bpe:nowhere.json", "missing model": "sentencepiece:nowhere.model",
                 "directory": f"bpe:{self.here}"}
        contents = {"empty": b"", "not json": b"{", "list": b"[]", "object": b"{}", "null model": b'{"model":null}', "wrong type": b'{"model":{"type":"WordPiece"}}',
                    "vocab list": b'{"model":{"type":"BPE","vocab":[],"merges":[]}}', "vocab of text": b'{"model":{"type":"BPE","vocab":{"a":"b"},"merges":[]}}',
                    "negative id": b'{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}', "huge id": b'{"model":{"type":"BPE","vocab":{"a":9e18},"merges":[]}}',
                    "merge of strangers": b'{"model":{"type":"BPE","vocab":{"a":0},"merges":["x y"]}}', "merge of three": b'{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a a"]}}',
                    "deep": b"[" * 100000, "deep objects": b'{"a":' * 50000, "noise": chance.randbytes(4000), "not utf-8": b'{"model":"\xff\xfe"}'}
        if whole.exists():
            contents["truncated"] = whole.read_bytes()[:-100]
        for i, (name, content) in enumerate(contents.items()):
            (self.here / f"k{i}.json").write_bytes(content)
            specs[f"bpe {name}"] = f"bpe:{self.here / f'k{i}.json'}"
        tiny = (ROOT / "tests/golden/sentencepiece/tiny.model").read_bytes()
        for name, content in {"empty": b"", "noise": chance.randbytes(3000), "half": tiny[:len(tiny) // 2], "one short": tiny[:-1]}.items():
            (self.here / f"{name}.model").write_bytes(content)
            specs[f"sentencepiece {name}"] = f"sentencepiece:{self.here / f'{name}.model'}"
        cases = {name: ("tokenize", "--input", text, "--tokenizer", spec, "--output", self.here / "out") for name, spec in specs.items()}
        for name, content in {"cut.jsonl": b'{"text": "a"}\n{"text": "b', "key.jsonl": b'{"words": "a"}\n', "number.jsonl": b'{"text": 5}\n',
                              "list.jsonl": b"[1]\n", "noise.jsonl": chance.randbytes(3000), "latin.jsonl": b'{"text": "\xe9"}\n', "hole.jsonl": b'{"text": "a"}\0\0{"text": "b"}\n',
                              "deep.jsonl": b"[" * 90000,
                              "empty.txt": b"", "other.csv": b"a,b\n"}.items():
            (self.here / name).write_bytes(content)
            cases[name] = ("tokenize", "--input", self.here / name, "--tokenizer", "byte", "--output", self.here / "out")
        cases["no input"] = ("tokenize", "--input", self.here / "none.txt", "--tokenizer", "byte", "--output", self.here / "out")
        cases["input is a directory"] = ("tokenize", "--input", self.here, "--tokenizer", "byte", "--output", self.here / "out")
        cases["output below a file"] = ("tokenize", "--input", text, "--tokenizer", "byte", "--output", text / "out")
        self.check(cases, BAD | {73})
        self.assertEqual(list(self.here.glob("out*")), [])

    def test_hugging_face_directories(self):
        good_config, weights = json.loads((self.hf / "config.json").read_text()), (self.hf / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", weights[:8])[0]
        header, body = json.loads(weights[8:8 + length]), weights[8 + length:]
        names = sorted(n for n in header if n != "__metadata__")

        def packed(change):
            copy = json.loads(json.dumps(header))
            change(copy)
            text = json.dumps(copy).encode()
            return struct.pack("<Q", len(text)) + text + body

        def put(key, value):
            return lambda h: h[names[0]].__setitem__(key, value)
        files = {"empty": b"", "seven bytes": weights[:7], "cut header": weights[:200], "cut body": weights[:-64], "header of 2^63": patched(weights, 0, u64(2**63)),
                 "header of 2^40": patched(weights, 0, u64(2**40)), "header not json": patched(weights, 8, b"xxxx"), "deep header": u64(60000) + b"[" * 60000,
                 "missing tensor": packed(lambda h: h.pop(names[0])), "offsets swapped": packed(put("data_offsets", [64, 0])),
                 "offsets negative": packed(put("data_offsets", [-8, 8])), "offsets beyond": packed(put("data_offsets", [0, 2**60])), "offsets of text": packed(put("data_offsets", "x")),
                 "no dtype": packed(lambda h: h[names[0]].pop("dtype")), "unknown dtype": packed(put("dtype", "F99")), "shape negative": packed(put("shape", [-1, 4])),
                 "shape overflow": packed(put("shape", [2**62, 2**62])), "shape other": packed(put("shape", [3, 5])), "overlap": packed(put("data_offsets", header[names[1]]["data_offsets"]))}
        configs = {"not json": "{", "list": "[]", "unknown family": {"model_type": "bert"}, "no layers": {"n_layer": 0}, "negative width": {"n_embd": -32},
                   "heads do not divide": {"n_head": 5}, "text for a number": {"n_layer": "two"}, "huge": {"n_embd": 2**50, "n_layer": 2**50}, "huge vocabulary": {"vocab_size": 2**62},
                   "no vocabulary": {"vocab_size": None}, "real number": {"n_head": 1.5}}
        cases = {}
        for i, (name, content) in enumerate([*files.items(), *configs.items()]):
            place = self.here / f"hf{i}"
            place.mkdir()
            is_file = name in files and i < len(files)
            (place / "model.safetensors").write_bytes(content if is_file else weights)
            text = json.dumps(good_config) if is_file else content if isinstance(content, str) else json.dumps({**good_config, **content})
            (place / "config.json").write_text(text)
            cases[f"{'weights' if is_file else 'config'} {name}"] = ("checkpoint", "import", place, "--output", self.here / f"o{i}")
        (self.here / "bare").mkdir()
        cases["no config"] = ("checkpoint", "import", self.here / "bare", "--output", self.here / "ob")
        cases["init_from_hf"] = ("train", "--config", self.config("init", init_from_hf=str(self.here / "hf3"), make_vocab_size_divisible_by=1))
        self.check(cases)

    def test_checkpoints(self):
        chance = random.Random(6)
        newest = checkpoints_in(self.good / "checkpoints")[-1]
        manifest, shard = (newest / "manifest.json").read_bytes(), (newest / "shard_00000.safetensors").read_bytes()
        flips = {f"shard byte {at}": (manifest, patched(shard, at, bytes([shard[at] ^ 1]))) for at in [0, 9, 500] + [chance.randrange(len(shard)) for _ in range(3)]}
        flips |= {f"manifest byte {at}": (patched(manifest, at, bytes([manifest[at] ^ 4])), shard) for at in [0, 40] + [chance.randrange(len(manifest)) for _ in range(3)]}
        damage = {**flips, "manifest empty": (b"", shard), "manifest cut": (manifest[:-30], shard), "manifest grown": (manifest + b" ", shard), "manifest gone": (None, shard),
                  "shard cut": (manifest, shard[:-1]), "shard grown": (manifest, shard + b"\0"), "shard gone": (manifest, None), "both empty": (b"", b"")}
        cases = {}
        for i, (name, (m, s)) in enumerate(damage.items()):
            place = self.here / f"run{i}" / "checkpoints" / "step_000004"
            place.mkdir(parents=True)
            for file, content in (("manifest.json", m), ("shard_00000.safetensors", s)):
                if content is not None:
                    (place / file).write_bytes(content)
            run = self.here / f"run{i}"
            programs = {"verify": ("checkpoint", "verify", run), "generate": ("generate", "--load", run, "--prompt", "a", "--tokens", 2),
                        "export": ("checkpoint", "export", place, "--output", self.here / f"x{i}"),
                        "resume": ("train", "--config", self.good_config, f"run_dir={run}"),
                        "load": ("train", "--config", self.good_config, f"run_dir={self.here / f'new{i}'}", f"load={run}")}
            for program in ("verify", *chance.sample(["generate", "export", "resume", "load"], 2)):
                cases[f"{name}: {program}"] = programs[program]
        self.check(cases, {65})

    def test_places_and_arguments(self):
        (self.here / "file").write_text("x")
        (self.here / "empty").mkdir()
        (self.here / "bad.json").write_text('{"model":{}}')
        say = ("generate", "--prompt", "a", "--load")
        plan = ("plan", "--shape", "tiny", "--cluster", ROOT / "configs/clusters/lab.json")
        self.check({
            "verify nothing": ("checkpoint", "verify", self.here / "none"), "verify a file": ("checkpoint", "verify", self.here / "file"),
            "verify an empty directory": ("checkpoint", "verify", self.here / "empty"), "verify an empty name": ("checkpoint", "verify", ""),
            "export to an empty name": ("checkpoint", "export", self.good, "--output", ""), "import to an empty name": ("checkpoint", "import", self.hf, "--output", ""),
            "show nothing": ("checkpoint", "show", self.here / "none"),
            "generate from nothing": (*say, self.here / "none"), "generate from a file": (*say, self.here / "file"),
            "generate from an empty directory": (*say, self.here / "empty"), "negative tokens": (*say, self.good, "--tokens", -1),
            "a million threads": (*say, self.good, "--threads", 1000000), "bench of too many threads": ("bench", "step", "tiny", "threads_per_rank=65536"),
            "bench of no op": ("bench", "op", "no-such-op"), "bench of no codec": ("bench", "codec", "no-such-codec"), "bench with a negative number of threads": ("bench", "op", "adam", "--threads", -1),
            "negative ranks": ("train", "--config", self.good_config, "--dry-run", "--ranks", -3), "no ranks": ("train", "--config", self.good_config, "--dry-run", "--ranks", 0),
            "negative samples": ("train", "--config", self.good_config, "--print-samples", -5), "picture of nothing": ("train", "--config", self.good_config, "--format", "svg"), "picture of words": ("train", "--config", self.good_config, "--print-schedule", "--format", "png"),
            "negative temperature": (*say, self.good, "--temperature", -1), "temperature nan": (*say, self.good, "--temperature", "nan"),
            "negative seed": (*say, self.good, "--seed", -1), "seed beyond 64 bits": (*say, self.good, "--seed", 1 << 64), "top-p of more than all": (*say, self.good, "--top-p", 1.5), "top-p nan": (*say, self.good, "--top-p", "nan"),
            "bos of bytes": (*say, self.good, "--add-bos"),
            "temperature of words": (*say, self.good, "--temperature", "hot"),
            "top-k of words": (*say, self.good, "--top-k", "x"), "prompt too long": ("generate", "--load", self.good, "--prompt", "a" * 40),
            "bad tokenizer": (*say, self.good, "--tokenizer", f"bpe:{self.here / 'bad.json'}"), "unknown tokenizer": (*say, self.good, "--tokenizer", "morse"),
            "tokenizer too large": (*say, self.good, "--tokenizer", f"bpe:{ROOT / 'tests/golden/bpe/gpt2/tokenizer.json'}"),
            "report of nothing": ("report", self.here / "none"), "report of a file": ("report", self.here / "file"),
            "report into nowhere": ("report", self.good, "--output", self.here / "none" / "r.html"), "compare one": ("report", self.good, "--compare"),
            "reference of nothing": ("reference_check", self.here / "none"), "reference of an empty directory": ("reference_check", self.here / "empty"),
            "reference of a name too long": ("reference_check", "x" * 300),
            "plan with an unknown preset": (*plan, "--search", "--presets", "thinwir"), "presets without a search": (*plan, "--presets", "thinwire"),
            "trace of a search": (*plan, "--search", "--trace", "t.json"),
            "plan on nothing": (*plan[:-1], self.here / "none.json"), "plan on a directory": (*plan[:-1], self.here), "plan on words": (*plan[:-1], self.here / "file"),
            "reference of another batch": ("reference_check", ROOT / "tests/golden/models/llama_gqa", "train_batch_size=64"),
            "ranks without a dry run": ("train", "--config", self.good_config, "--ranks", 4), "a folder that is not UTF-8": ("train", "--config", self.good_config, "run_dir=caf\udce9"),
            "bench of nothing": ("bench", "step", "no-such-shape"), "override without =": ("train", "--config", self.good_config, "lr"),
        })

    def test_the_file_system_is_to_blame_with_two_ranks_as_well(self):
        done = run_program("reference_check", "x" * 300, ranks=2)
        self.assertEqual(done.code, 74, done.out)
        self.assertNotIn("report it", done.out)

    def test_more_ranks_than_there_are(self):
        dry = ("train", "--config", self.good_config, "--dry-run")
        self.check({
            "no data rank on a node": (*dry, "global_num_gpus=2", "pipe_parallel_size=4", "ranks_per_node=2", "placement.optimizer=node"),
            "tensor ranks beyond a token's widths": (*dry, "--ranks", 4096, "sequence_chunk_size=auto", "model_parallel_size=4096"),
            "a billion replicas": (*dry, "train_batch_size=1000000000", "train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=1", "pipe_parallel_size=4"),
        })

    def test_configurations(self):
        texts = {"empty": "", "not an object": "[1]", "cut": '{"num_layers": 2', "unknown key": '{"num_layrs": 2}', "twice": '{"seed": 1, "seed": 2}', "noise": "\x01\x02{",
                 "deep": "[" * 50000, "nan": '{"lr": NaN}', "wrong types": '{"num_layers": "two", "lr": [], "seed": {}}', "mixture of experts": '{"moe_num_experts": 4}'}
        cases = {}
        for i, (name, text) in enumerate(texts.items()):
            (self.here / f"t{i}.json").write_text(text)
            cases[name] = ("train", "--config", self.here / f"t{i}.json")
        cases["missing file"] = ("train", "--config", self.here / "none.json")
        for override in ("lr=-1", "lr=x", "train_iters=0.5", "seq_length=0", "num_attention_heads=5", "train_batch_size=7", "hidden_dropout=2", "save_interval=-1",
                         "faults=[{\"at\":\"save.begin\",\"do\":\"kill9\"}]", "precision=int4", "split=a,b", "run_dir=", "threads_per_rank=65536", "seq_length=16777216", "hidden_size=131072"):
            cases[override] = ("train", "--config", self.config(f"o{len(cases)}"), override)
        for fault in ("{}", "[{}]", '[{"at":"here","do":"kill9"}]', '[{"at":"save.begin","do":"dance"}]', '[{"at":"grad","do":"kill9"}]', '[{"at":"step.end","do":"delay:x"}]',
                      '[{"at":"step.end","step":1.5,"do":"abort"}]', '[{"at":"step.end","step":-1,"do":"abort"}]', '[{"at":"step.end","stpe":1,"do":"abort"}]',
                      '[{"at":"step.end","do":"delay"}]', '[{"at":"loss","do":"scale:"}]', "[5]"):
            cases["fault " + fault] = ("train", "--config", self.config(f"f{len(cases)}"), "--allow-faults", "faults=" + fault)
        with ThreadPoolExecutor(2) as pool:
            for name, done in zip(cases, pool.map(lambda c: run_program(c[0], *c[1:], cwd=self.here), cases.values())):
                with self.subTest(name):
                    self.assertIn(done.code, {64, 78}, f"{name}\n{done}")
                    self.assertGreaterEqual(len(done.errors()), 1, f"{name}\n{done}")

    def test_small_files_of_a_run_do_not_matter(self):
        """Damage to what only people read, or what can be made again, never stops a run or a report."""
        chance = random.Random(8)
        for i, content in enumerate([b"", b"{", b"[]\n", b"null\n", b'{"step":"x","loss":[],"eval_loss":{}}\n' * 3, chance.randbytes(2000), b"\0" * 5000, b"[" * 70000]):
            with self.subTest(content[:20]):
                run = self.here / f"copy{i}"
                shutil.copytree(self.good, run)
                for name in ("metrics.jsonl", "status.json", "report.html", "log.txt", "config.resolved.json", "checkpoints/latest.json"):
                    (run / name).write_bytes(content)
                done = run_program("report", run, "--output", self.here / f"r{i}.html")
                self.assertEqual(done.code, 0, str(done))
                done = self.train(self.good_config, f"run_dir={run}", "train_iters=4")
                self.assertEqual(done.code, 0, str(done))
                self.assertEqual(json.loads((run / "status.json").read_text())["state"], "finished")
                for line in (run / "metrics.jsonl").read_text().splitlines():
                    json.loads(line)


if __name__ == "__main__":
    main()
