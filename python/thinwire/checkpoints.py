"""Checkpoints as numpy arrays: whole tensors, put together from what the ranks stored (engine/run/checkpoint/checkpoint.md)."""
import itertools
import json
import os
import shutil
import subprocess
import tempfile

import numpy

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}


class Safetensors:
    """One .safetensors file; arrays are views of a memory map, bf16 becomes float32."""

    def __init__(self, path):
        self.bytes = numpy.memmap(path, dtype="u1", mode="r")
        length = int.from_bytes(self.bytes[:8].tobytes(), "little")
        if len(self.bytes) < 8 or length > len(self.bytes) - 8:
            raise ValueError(f"{path}: no safetensors file, or cut off")
        self.entries = json.loads(self.bytes[8:8 + length].tobytes())
        self.entries.pop("__metadata__", None)
        self.start, self.path = 8 + length, path

    def __getitem__(self, name):
        entry = self.entries[name]
        first, end = entry["data_offsets"]
        if self.start + end > len(self.bytes):
            raise ValueError(f"{self.path}: {name} is cut off")
        values = self.bytes[self.start + first:self.start + end].view(TYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        return values.reshape(entry["shape"])


def manifest_of(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as f:
        try:
            manifest = json.load(f)
        except ValueError as e:
            raise ValueError(f"{folder}: its manifest.json is broken: {e}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != "thinwire-checkpoint" or manifest.get("version") not in (1, 2):
        raise ValueError(f"{folder}: its manifest.json is of another format or version")
    return manifest


def find_checkpoint(path):
    """A checkpoint, or the newest one of a folder of checkpoints, or of a run directory, by the order of saving."""
    path = os.fspath(path)
    if os.path.exists(os.path.join(path, "manifest.json")):
        return path
    folder = os.path.join(path, "checkpoints") if os.path.isdir(os.path.join(path, "checkpoints")) else path
    found = [os.path.join(folder, n) for n in (os.listdir(folder) if os.path.isdir(folder) else ()) if ".tmp-" not in n and os.path.exists(os.path.join(folder, n, "manifest.json"))]
    if not found:
        raise FileNotFoundError(f"{path}: no checkpoint; give a run directory or a folder step_N")
    return max(found, key=lambda p: manifest_of(p)["sequence"])


def load_checkpoint(path, names="thinwire", prefix="model/", program=None):
    """{name: numpy array} of a checkpoint, or of the newest one of a run directory.

    names="thinwire": whole tensors rows x cols under our names without `prefix` ("model/": fp32 master weights; "adam_m/", "adam_v/", ...).
    names="hf": as transformers names and shapes them; `program`, thinwire or checkpoint (default: that of the PATH), does the renaming.
    ValueError for files that are cut off or do not fit each other; checksums are not compared (`checkpoint verify`)."""
    folder = find_checkpoint(path)
    if names == "hf":
        if prefix != "model/":
            raise ValueError(f"prefix={prefix!r}: names='hf' are those of weights alone")
        program = program or shutil.which("thinwire") or shutil.which("checkpoint")  # an installation has only the first on the PATH
        if not program:
            raise FileNotFoundError("names='hf' needs the program checkpoint: program='build/checkpoint'")
        command = [program, "checkpoint"] if os.path.basename(program) == "thinwire" else [program]
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run([*command, "export", folder, "--format", "hf", "--output", os.path.join(out, "hf")], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ValueError((done.stderr or done.stdout).strip())
            tensors = {}
            for part in sorted(n for n in os.listdir(os.path.join(out, "hf")) if n.endswith(".safetensors")):  # a large model comes in several
                file = Safetensors(os.path.join(out, "hf", part))
                tensors.update({name: numpy.array(file[name]) for name in file.entries})
            if not tensors:
                raise ValueError(f"{' '.join(command)} exported no tensors")
            return tensors
    if names != "thinwire":
        raise ValueError(f"names={names!r}: there are 'thinwire' and 'hf'")
    manifest = manifest_of(folder)
    files = [os.path.join(folder, file["name"]) for file in manifest["files"]]
    for where, file in zip(files, manifest["files"]):
        if os.path.getsize(where) != file["bytes"]:
            raise ValueError(f"{where}: {os.path.getsize(where)} bytes, its manifest says {file['bytes']}")
    wanted = [t for t in manifest["tensors"] if t["name"].startswith(prefix)]
    if not wanted:
        raise ValueError(f"{folder}: no tensor begins with {prefix}")
    tensors = dict.fromkeys(t["name"][len(prefix):] for t in wanted)  # in the order of the manifest
    filled = dict.fromkeys(tensors, 0)
    # A file is open for as long as its map lives, and ranks may be more than files that a process may open.
    for number, parts in itertools.groupby(sorted(wanted, key=lambda t: t["file"]), key=lambda t: t["file"]):
        fill(tensors, filled, Safetensors(files[number]), parts, len(prefix))
    for name, count in filled.items():
        if count != tensors[name].size:
            raise ValueError(f"{folder}: {prefix}{name} has {tensors[name].size} elements, {count} are stored")
    return tensors


def fill(tensors, filled, file, parts, skip):
    """Copies parts of tensors, as the manifest lists them, from their file. skip: characters of a name that are its prefix."""
    for t in parts:
        name, rows, cols = t["name"][skip:], t["rows"], t["cols"]
        row, part_rows, col, part_cols = t.get("rectangle") or (0, rows, 0, cols)
        stored = file[t["stored"]].reshape(-1)
        if tensors[name] is None:
            tensors[name] = numpy.empty((rows, cols), stored.dtype)
        whole = tensors[name]
        # A range of the rectangle's elements, row by row: a part of its first row, whole rows, a part of its last one.
        at, end = t["first"], t["first"] + t["count"]
        while at < end:
            r, c = divmod(at, part_cols)
            full = (end - at) // part_cols if c == 0 else 0
            count = full * part_cols if full else min(part_cols - c, end - at)
            part = stored[at - t["first"]:at - t["first"] + count]
            if full:
                whole[row + r:row + r + full, col:col + part_cols] = part.reshape(full, part_cols)
            else:
                whole[row + r, col + c:col + c + count] = part
            at += count
        filled[name] += t["count"]
