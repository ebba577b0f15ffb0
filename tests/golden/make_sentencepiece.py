#!/usr/bin/env python3
# Makes tests/golden/sentencepiece/: a tiny model and what the sentencepiece package answers to a few texts.
"""Usage: pip install sentencepiece==0.2.* && python3 make_sentencepiece.py"""
import io
import json
import os

import sentencepiece

from make_bpe import CORPUS

CASES = ["", "a", "Shall I compare thee to a summer's day?", " leading and  inner   spaces ", "tomorrow, and tomorrow", "日本語の文章", "Быстрая лиса",
         "new\nline\tand tab", "🙂 unknown ☃", "</s> <s> <unk>", "1234567890", "x" * 60]


def main():
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentencepiece")
    os.makedirs(out, exist_ok=True)
    model = io.BytesIO()
    # The identity rule leaves out the 230 kB table of NFKC.
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=420, model_type="bpe",
                                             byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", minloglevel=2)
    with open(os.path.join(out, "tiny.model"), "wb") as f:
        f.write(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = []
    for text in CASES:
        ids = processor.encode(text)
        rows.append(json.dumps({"text": text, "ids": ids, "decoded": processor.decode(ids)}, separators=(",", ":")))
    with open(os.path.join(out, "cases.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
