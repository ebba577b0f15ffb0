# Makes tests/golden/safetensors/: a small file written by the reference library, and hostile files with its verdict on each.
# Needs: pip install safetensors numpy torch. Run: python3 tests/golden/make_safetensors.py
import json
import os
import struct

import safetensors
import torch
from safetensors.torch import save_file

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "safetensors")
os.makedirs(OUT, exist_ok=True)

halves = torch.arange(6, dtype=torch.float64).reshape(2, 3) * 0.5 - 1.0
save_file(
    {
        "b.f32": halves.float(), "a.f32": (halves * 3).float(), "half": halves.half(), "brain": halves.bfloat16(),
        "double": halves / 3, "ints": torch.tensor([-1, 2, 2**31 - 1], dtype=torch.int32),
        "longs": torch.tensor([[-(2**62), 7]], dtype=torch.int64), "bytes": torch.arange(5, dtype=torch.uint8),
        "flags": torch.tensor([True, False, True]), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4),
        "na\u00efve \u03b1": torch.ones(1),
    },
    os.path.join(OUT, "tiny.safetensors"), metadata={"format": "pt"})


def blob(header, data=b"", length=None, pad=True):
    raw = header if isinstance(header, bytes) else header.encode()
    if pad:
        raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def t(dtype="F32", shape=(1,), offsets=(0, 4), extra=""):
    return '{"dtype":"%s","shape":%s,"data_offsets":%s%s}' % (dtype, json.dumps(list(shape)), json.dumps(list(offsets)), extra)


D4, D8 = b"\0" * 4, b"\0" * 8
good = '{"a":' + t() + "}"
# name -> (bytes, stricter): stricter marks files that we refuse although the reference may accept them.
cases = {
    "plain": (blob(good, D4), False),
    "no tensors": (blob("{}"), False),
    "metadata only": (blob('{"__metadata__":{"k":"v"}}'), False),
    "metadata null": (blob('{"__metadata__":null}'), False),
    "leading blank": (blob(" " + good, D4), False),
    "leading newline": (blob("\n" + good, D4), False),
    "unpadded header": (blob(good, D4, pad=False), False),
    "padded with newlines": (blob(good + "\n\t\r ", D4), False),
    "any order of offsets": (blob('{"a":' + t(offsets=(4, 8)) + ',"b":' + t() + "}", D8), False),
    "zero-size tensor": (blob('{"a":' + t(shape=(0, 4), offsets=(0, 0)) + "}"), False),
    "zero-size between": (blob('{"a":' + t() + ',"b":' + t(shape=(0,), offsets=(4, 4)) + ',"c":' + t(offsets=(4, 8)) + "}", D8), False),
    "scalar": (blob('{"a":' + t(shape=()) + "}", D4), False),
    "unknown field": (blob('{"a":' + t(extra=',"x":1') + "}", D4), False),
    "unknown nested field": (blob('{"a":' + t(extra=',"x":{"dtype":[1,{"y":2}]}') + "}", D4), False),
    "f4 pair": (blob('{"a":' + t("F4", (2,), (0, 1)) + "}", b"\0"), False),
    "f8": (blob('{"a":' + t("F8_E4M3", (4,)) + "}", D4), False),
    "escaped name": (blob('{"\\u0061\\/b":' + t() + "}", D4), False),
    "nan values": (blob(good, b"\xff\xff\xff\xff"), False),
    "sixteen dimensions": (blob('{"a":' + t(shape=(1,) * 16) + "}", D4), False),
    # refused by everyone
    "empty file": (b"", False),
    "seven bytes": (b"\0" * 7, False),
    "header length 0": (struct.pack("<Q", 0), False),
    "header beyond file": (blob(good, b"", length=1000), False),
    "header length 2^63": (blob(good, D4, length=2**63), False),
    "header length wraps": (blob(good, D4, length=2**64 - 4), False),
    "header length 100000001": (blob(good, D4, length=100000001), False),
    "not utf-8": (blob(b'{"\xff":' + t().encode() + b"}", D4), False),
    "overlong utf-8": (blob(b'{"\xc0\xaf":' + t().encode() + b"}", D4), False),
    "lone surrogate": (blob('{"\\ud800":' + t() + "}", D4), False),
    "byte-order mark": (blob(b"\xef\xbb\xbf" + good.encode(), D4), False),
    "not json": (blob("hello"), False),
    "array root": (blob("[]"), False),
    "number root": (blob("1"), False),
    "truncated json": (blob(good[:-1], D4), False),
    "two documents": (blob(good + "{}", D4), False),
    "nul padding": (blob(good.encode() + b"\0\0", D4), False),
    "trailing comma": (blob(good[:-1] + ",}", D4), False),
    "comment": (blob("/* */" + good, D4), False),
    "tensor is a number": (blob('{"a":1}'), False),
    "tensor is null": (blob('{"a":null}'), False),
    "tensor is a string": (blob('{"a":"x"}'), False),
    "no dtype": (blob('{"a":{"shape":[1],"data_offsets":[0,4]}}', D4), False),
    "no shape": (blob('{"a":{"dtype":"F32","data_offsets":[0,4]}}', D4), False),
    "no offsets": (blob('{"a":{"dtype":"F32","shape":[1]}}', D4), False),
    "unknown dtype": (blob('{"a":' + t("F33") + "}", D4), False),
    "lower-case dtype": (blob('{"a":' + t("f32") + "}", D4), False),
    "dtype number": (blob('{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}', D4), False),
    "negative dimension": (blob('{"a":' + t(shape=(-1,)) + "}", D4), False),
    "float dimension": (blob('{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', D4), False),
    "exponent dimension": (blob('{"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}}', D4), False),
    "string dimension": (blob('{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}', D4), False),
    "nested dimension": (blob('{"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}}', D4), False),
    "dimension 2^64": (blob('{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}', D4), False),
    "negative zero offset": (blob('{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}', D4), False),
    "one offset": (blob('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}', D4), False),
    "three offsets": (blob('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}', D4), False),
    "offsets backwards": (blob('{"a":' + t(offsets=(4, 0)) + "}", D4), False),
    "first offset not 0": (blob('{"a":' + t(offsets=(4, 8)) + "}", D8), False),
    "hole": (blob('{"a":' + t() + ',"b":' + t(offsets=(8, 12)) + "}", D4 * 3), False),
    "overlap": (blob('{"a":' + t() + ',"b":' + t(offsets=(0, 4)) + "}", D4), False),
    "partial overlap": (blob('{"a":' + t(shape=(2,), offsets=(0, 8)) + ',"b":' + t(shape=(2,), offsets=(4, 12)) + "}", D4 * 3), False),
    "overlap bomb": (blob("{" + ",".join('"t%d":%s' % (i, t()) for i in range(100)) + "}", D4), False),
    "shape too large": (blob('{"a":' + t(shape=(2,)) + "}", D4), False),
    "shape too small": (blob('{"a":' + t(shape=(1,), offsets=(0, 8)) + "}", D8), False),
    "shape overflow": (blob('{"a":' + t(shape=(2**32, 2**32)) + "}", D4), False),
    "shape overflow to fit": (blob('{"a":' + t(shape=(2**62 + 1,)) + "}", D4), False),
    "zero after overflow": (blob('{"a":' + t(shape=(2**40, 2**40, 0), offsets=(0, 0)) + "}"), False),
    "end beyond 2^63": (blob('{"a":' + t(shape=(2**60,), offsets=(0, 2**62)) + "}", D4), False),
    "zero-size far away": (blob('{"a":' + t(shape=(0,), offsets=(2**63, 2**63)) + "}"), False),
    "half an f4 byte": (blob('{"a":' + t("F4", (1,), (0, 1)) + "}", b"\0"), False),
    "data cut": (blob(good, D4[:3]), False),
    "data too long": (blob(good, D8), False),
    "polyglot tail": (blob(good, D4 + b"PK\x05\x06"), False),
    "metadata number": (blob('{"__metadata__":{"k":1}}'), False),
    "metadata nested": (blob('{"__metadata__":{"k":{}}}'), False),
    "metadata array": (blob('{"__metadata__":["k"]}'), False),
    "raw control in name": (blob(b'{"a\x01":' + t().encode() + b"}", D4), False),
    "duplicate dtype": (blob('{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', D4), False),
    "deep nesting": (blob('{"a":' + t(extra=',"x":' + "[" * 5000 + "]" * 5000) + "}", D4), False),
    "unclosed nesting": (blob('{"a":' + "[" * 5000), False),
    # our extra refusals
    "duplicate tensor": (blob('{"a":' + t() + ',"a":' + t() + "}", D4), True),
    "duplicate by escape": (blob('{"a":' + t() + ',"\\u0061":' + t() + "}", D4), True),
    "duplicate metadata key": (blob('{"__metadata__":{"k":"1","k":"2"}}'), True),
    "duplicate metadata": (blob('{"__metadata__":{},"__metadata__":{}}'), True),
    "seventeen dimensions": (blob('{"a":' + t(shape=(1,) * 17) + "}", D4), True),
    "empty name": (blob('{"":' + t() + "}", D4), True),
    "escaped control in name": (blob('{"a\\u0000b":' + t() + "}", D4), True),
    "newline in name": (blob('{"a\\nb":' + t() + "}", D4), True),
    "parent in name": (blob('{"a/../../etc/passwd":' + t() + "}", D4), True),
    "tensor as array": (blob('{"a":["F32",[1],[0,4]]}', D4), True),
}

listed = []
for name, (raw, stricter) in cases.items():
    try:
        safetensors.deserialize(raw)
        accepted = True
    except Exception:
        accepted = False
    listed.append({"name": name, "hex": raw.hex(), "reference_accepts": accepted, "stricter": stricter})
with open(os.path.join(OUT, "cases.json"), "w") as out:
    json.dump({"library": "safetensors " + safetensors.__version__, "cases": listed}, out, indent=0)
    out.write("\n")
print(len(listed), "cases,", sum(c["reference_accepts"] for c in listed), "accepted by the reference")
print([c["name"] for c in listed if c["reference_accepts"] == c["stricter"]])
