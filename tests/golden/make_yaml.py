#!/usr/bin/env python3
"""Writes yaml_cases.json: YAML texts and the values that PyYAML's SafeLoader gives them (dates as text, as they were written)."""
import json
import math
import pathlib
import random

import yaml


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))

WORDS = ["True", "true", "TRUE", "tRUE", "yes", "Yes", "YES", "y", "no", "No", "n", "on", "Off", "~", "null", "Null", "None", "NULL", "nil",
         "1e-4", "1.0e-4", "1.e-4", "1.0e4", "1.0e+4", "1.0E-5", "1e4", "1E4", "1e+4", ".5", "-.5", "+.5", "5.", "-5.", "+5", "-0", "00", "010", "08", "0o17", "0x1F", "-0xff",
         "0b101", "1_000", "1_000.5", "1:30", "1:30:05", "-1:30", "1:90", "1:30.5", "190:20:30.15", "1.0e_8", "0.97e-4", "5e-05", "2.0e-4abc", "1.5.2", "--3", "+-3",
         "2024-01-02", "2001-12-14t21:59:43.10-05:00", "12-34", "=", "a=b", "949,50,1", "gpt2", "bfloat16", "./20B_checkpoints/20B_tokenizer.json", "a: b".replace(": ", ":"), "@x".strip("@"),
         "9223372036854775807", "-9223372036854775808", "0.1", "1.", "123456789.123456789", "1e308", "1.0e308", "\"1e-4\"", "'True'", "\"a\\tb\\u00e9\"", "'it''s'", "\"\"", "é", "日本", "word#no", "x #comment"]
DOCUMENTS = ["a: 1\nb: 2\n", "{a: 1, b: [1, 2.5, yes], c: {d: ~}}", "{\n  # comment\n  \"a\": 1.0e-5,\n  \"b\": True,\n}\n", "a:\n  - 1\n  - b: c\n    d: e\n  - [x, y]\n", "a: &x [1, 2]\nb: *x\n",
             "text: |\n  two\n  lines\nfolded: >\n  one\n  line\n", "\"quoted-key\": 'v'\n", "a: b # trailing\n# whole line\nc: d\n", "empty:\nnext: 1\n", "---\na: 1\n...\n", "a: \"with: colon\"\n",
             "attention_config: [[[\"flash\"], 12]]\n", "{\"a\":1,\"b\":[1.,2.]}", "a:   \n  b:\n    c: deep\n", "- 1\n- 2\n", "a: multi\n  line plain\n", "", "# nothing\n"]


def main():
    rng = random.Random(7)
    texts = [f"v: {w}" for w in WORDS] + [f"[{w}]" for w in WORDS] + DOCUMENTS
    for _ in range(300):
        texts.append("v: " + "".join(rng.choice("0123456789._eE+-x:") for _ in range(rng.randint(1, 8))))
    cases = []
    for text in texts:
        try:
            value = yaml.load(text, Loader)
        except Exception:  # PyYAML itself refuses some of the random ones
            continue
        scalar = value.get("v") if isinstance(value, dict) else None
        if isinstance(scalar, float) and not math.isfinite(scalar) or isinstance(scalar, int) and abs(scalar) >= 2**63 and scalar != -2**63:
            continue
        cases.append({"text": text, "value": {} if value is None else value})
    path = pathlib.Path(__file__).with_name("yaml_cases.json")
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(f"{path.name}: {len(cases)} cases, PyYAML {yaml.__version__}")


if __name__ == "__main__":
    main()
