# Configurations as flat keys: what two files and some overrides say together, as `train` itself would merge them.
import difflib
import filecmp
import json
import math
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Where runs start and where the relative paths of plans begin: the root of a source tree, else the folder that one is in.
BASE = ROOT if os.path.exists(os.path.join(ROOT, "CMakeLists.txt")) else os.getcwd()
SCHEMA = os.path.join(ROOT, "docs", "config.schema.json")
SKIPPED = ("$schema", "_notes")

# Ways to say one thing: where a later source uses one of them, the others of earlier sources are withdrawn. These groups, and the words below,
# repeat engine/run/config/settings.cpp; sweep_plan_test compares.
EITHER_OR = (
    (("ffn_hidden_size",), ("intermediate_size",), ("expansion_factor",)),
    (("warmup",), ("lr_warmup_iters",), ("lr_warmup_samples",)),
    (("lr_decay_iters",), ("lr_decay_samples",)),
    (("lr_wsd_decay_iters",), ("lr_wsd_decay_samples",)),
    (("virtual_chunks",), ("num_layers_per_virtual_pipeline_stage",)),
    (("train_iters",), ("train_samples",)),
    (("min_lr",), ("decay_lr_to",)),
    (("data_path", "split"), tuple(f"{part}_data_{what}" for part in ("train", "valid", "test") for what in ("paths", "weights"))),
)
WARM_UPS = ("lr_warmup_iters", "lr_warmup_samples", "warmup")
BOTH_WAYS = "compression.sequence"  # short for its .forward and .backward
BETAS = "optimizer.params.betas"
PRECISIONS = ("fp16.enabled", "bf16.enabled")
PARTITION = "zero_optimization.zero_hpz_partition_size"
# Words that say something where they are true, in the order in which `train` takes them.
WORDS = {
    "swiglu": {"activation": "swiglu"},
    "use_rotary_position_embeddings": {"pos_emb": "rotary"},
    "no_position_embedding": {"pos_emb": "none"},  # beside a learned table, or none that is named
    "openai_gelu": {"bias_gelu_fusion": True},
    "no_bias_gelu_fusion": {"bias_gelu_fusion": False},  # unless openai_gelu says otherwise
    "disable_bias_linear": {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False},
    "recompute_activations": {"recompute_granularity": "selective"},
    "ds_sequence_parallel_fpdt": {"sequence_chunk_size": 65536},  # unless that is given
    "ds_sequence_parallel_fpdt_offloading": {"activation_offload": "host"},
}


def shipped(path, *folders):
    """`path`, or the file that ships under this name where there is none: with its folders, or without those above."""
    for there in (os.path.join(BASE, path), os.path.join(ROOT, path), *(os.path.join(ROOT, folder, path) for folder in folders)):
        if os.path.exists(there):
            return there
    return path


def as_configuration(value, path):
    """The object of a configuration file; a preset's file says compression.preset, as to `train`: by its name where it ships."""
    if not isinstance(value.get("preset"), str) or not isinstance(value.get("rules"), list):
        return value
    name = os.path.splitext(os.path.basename(path))[0]
    ours = os.path.join(ROOT, "configs", "compression", name + ".json")
    return {"compression.preset": name if os.path.exists(ours) and filecmp.cmp(path, ours, shallow=False) else path}


class Keys:
    """The keys that configurations may have, from the schema that the build writes."""

    def __init__(self):
        with open(SCHEMA, encoding="utf-8") as f:
            schema = json.load(f)
        self.sections, self.same_as, self.types = set(), {}, {}
        self.rule = schema["definitions"]["rule"]
        self._walk(schema["properties"], "")

    def _walk(self, properties, prefix):
        for key, spec in properties.items():
            name = prefix + key
            spec = self.rule if "$ref" in spec else spec
            if "properties" in spec:
                self.sections.add(name)
                self._walk(spec["properties"], name + ".")
            else:
                self.types[name] = spec.get("type")
                alias = re.match(r"Same as ([\w.]+)\. ", spec.get("description", "") + " ")
                if alias:
                    self.same_as[name] = alias[1]

    def known(self, name):
        return all(way in self.types or way in self.sections for way in self.ways(name))

    def ways(self, name):
        """The names that one stands for: [name], but for BOTH_WAYS."""
        rest = name[len(BOTH_WAYS):]
        if not name.startswith(BOTH_WAYS) or rest[:1] not in ("", ".") or name in self.types or name in self.sections:
            return [name]
        return [BOTH_WAYS + way + rest for way in (".forward", ".backward")]

    def canonical(self, name):
        """The key's own name; '-' equals '_'."""
        name = name.replace("-", "_")
        return self.same_as.get(name, name)

    def unknown(self, name):
        """What to say of a key that is none."""
        known = [*self.types, *sorted(self.sections)]
        return f'unknown configuration key "{name}"' + (nearest(name, known) or nearest(name.rsplit(".", 1)[-1], known, " (docs/config.md lists all)"))

    def flatten(self, value, prefix=""):
        """[(key, value)] of nested objects; keys by their own names, shorthands ("optimizer": "adam") written out."""
        out = []
        # A resolved configuration of version 1 calls ffn_hidden_size intermediate_size, which is another width now.
        old = not prefix and value.get("config_version", 1 if "_notes" in value else None) == 1
        for key, item in value.items():
            if not prefix and key in SKIPPED or old and key == "config_version":
                continue
            key = "ffn_hidden_size" if old and key == "intermediate_size" else key
            for name in self.ways((prefix + key).replace("-", "_")):
                if name not in self.sections:
                    out.append((self.canonical(name), item))
                elif isinstance(item, dict):
                    out += self.flatten(item, name + ".")
                else:
                    out.append((section_value(name, item), item))
        return out


def twice(keys, value):
    """The keys that an object gives more than once, other names of theirs counted; null is not given, and fields of the launcher ("@ranks") are no keys.
    `train` refuses them."""
    names = [key for key, item in keys.flatten(value) if item is not None and not key.startswith("@")]
    return sorted({name for name in names if names.count(name) > 1})


def section_value(name, value):
    """The key that a plain value for a section means."""
    if isinstance(value, bool) and name in ("fp16", "bf16"):
        return name + ".enabled"
    if isinstance(value, str):
        if name == "optimizer":
            return "optimizer.type"
        if name == "compression":
            return "compression.preset"
        if name.startswith("compression."):
            return name + ".codec"
    return name


def nearest(word, known, otherwise=""):
    """" (nearest: X)" with the known word that was probably meant."""
    return next((f" (nearest: {near})" for near in difflib.get_close_matches(word.lower(), known, 1)), otherwise)


def written_out(key, value):
    """What a word of other trainers stands for, in our keys: {key: value}; None for a key of our own."""
    if isinstance(value, bool):
        if key in WORDS:
            return WORDS[key] if value else {}
        if key in PRECISIONS:
            return {"precision": key[:4]} if value else {}
        return {"use_distributed_optimizer": {"zero_optimization.stage": int(value)}, "checkpoint_activations": {"recompute_granularity": "full" if value else "none"},
                "no_scatter_gather_tensors_in_pipeline": {"scatter_gather_tensors_in_pipeline": not value}}.get(key)
    if isinstance(value, str) and key == "activations_checkpoint_method":
        return {"recompute_granularity": "full"}
    if isinstance(value, (int, float)):
        if key == "norm_epsilon":
            return {"layernorm_epsilon": value, "rms_norm_epsilon": value}
        if key == "optimizer.params.max_grad_norm":
            return {"gradient_clipping": value}
        if key == "distributed_timeout_minutes":
            return {"watchdog_seconds": value * 60.0}
        if key == PARTITION:
            return {"placement.secondary": "pair" if value == 2 else "node"} if value > 1 else {}
        if key == "initial_loss_scale" and value > 0 and math.log2(value).is_integer():
            return {"fp16.initial_scale_power": int(math.log2(value))}
    return None


def about(key, value):
    """The keys that a key says something about: what it stands for; of words that exclude each other the first."""
    first = {side[0]: sides[0][0] for sides in EITHER_OR for side in sides if len(sides[0]) == 1}
    return [first.get(name, name) for name in written_out(key, value) or {key: value}]


def learned(positions):
    return positions is None or isinstance(positions, str) and positions.lower().replace("-", "_") in ("learned", "learned_absolute")


def lay_over(base, later, by):
    """Changes the flat configuration `base` as a later source [(key, value)] would. by: {key of base: the word that said it}."""
    later = dict(later)
    if str(later.get("fp16.type")).lower() == "bfloat16" and later.get("fp16.enabled") is not None and later.get("bf16.enabled") is None:
        del later["fp16.type"]  # older NeoX says bf16 so
        later["bf16.enabled"] = later.pop("fp16.enabled")
    given, said = {key: value for key, value in later.items() if value is not None}, {}
    order = list(WORDS)
    for key, value in sorted(later.items(), key=lambda item: order.index(item[0]) if item[0] in WORDS else -1):
        meant = {} if value is None and key in WORDS else written_out(key, value)
        if meant is None:
            continue
        fusion = said.get("bias_gelu_fusion") or ("bias_gelu_fusion" not in later and by.get("bias_gelu_fusion"))
        if (key == "no_position_embedding" and not learned({**base, **later, **given}.get("pos_emb")) or key == "no_bias_gelu_fusion" and fusion == "openai_gelu"
                or key == "ds_sequence_parallel_fpdt" and {**base, **later}.get("sequence_chunk_size") is not None):
            meant = {}
        if any(name in given and given[name] != of_word for name, of_word in meant.items()):
            continue  # both said in one source, and not the same: `train` finds the contradiction
        given.pop(key, None)
        given.update(meant)
        said.update(dict.fromkeys(meant, key))
        if value is False and base.get("precision") == key[:4]:  # "fp16": false
            del base["precision"]
    for name in WARM_UPS[:2]:  # of 0, Megatron's default, says nothing beside another word for the warm-up
        if given.get(name) == 0 and any(other in given for other in WARM_UPS if other != name):
            del given[name]
    for sides in EITHER_OR:
        side = next((side for side in sides if any(name in given for name in side)), ())
        if side and ("data_path" not in side or "data_path" in given):  # split alone withdraws nothing
            for name in (name for other in sides if other != side for name in other):
                base.pop(name, None)
    betas = later.get(BETAS, base.get(BETAS)) or [0.9, 0.999]
    for i, name in enumerate(("adam_beta1", "adam_beta2")):
        if name in given and isinstance(betas, list) and len(betas) == 2:  # else `train` says what is wrong with them
            betas = given[BETAS] = [given.pop(name) if j == i else b for j, b in enumerate(betas)]
    gone = [key for key, value in later.items() if value is None]
    for name in [n for n in base if n in gone or n.startswith(tuple(key + "." for key in gone if key.startswith("compression")))]:  # null takes back a rule, or all of them
        del base[name]
    base.update(given)
    for name in [name for name in by if name in later or name in given]:
        del by[name]
    by.update(said)


def merged(keys, sources):
    """One flat configuration of several, later ones winning. sources: objects as they were read, or lists of (key, value)."""
    out, by, flat = {}, {}, []
    for source in sources:
        later = keys.flatten(source) if isinstance(source, dict) else list(source)
        given = {key for key, value in later if value is not None}
        later = [(key, value) for key, value in later if value is not None or key not in given]  # null beside another name is not given
        # A word that is false (of the partition size: 1) or null takes back what earlier sources said by it.
        gone = {key for key, value in later if (key in WORDS or key == PARTITION) and (not value or value == 1 and value is not True)}
        flat = [[item for item in earlier if item[0] not in gone] for earlier in flat] + [later]
    for source in flat:
        lay_over(out, source, by)
    if by.get("activation") == "swiglu":  # stays the word that it was: the default width depends on it
        del out["activation"]
        out["swiglu"] = True
    return out


def text_of(config):
    """A configuration file of flat keys, one per line, in order of their names."""
    lines = [f"  {json.dumps(key)}: {json.dumps(config[key])}" for key in sorted(config)]
    return "{\n" + ",\n".join(lines) + "\n}\n"
