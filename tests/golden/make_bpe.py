#!/usr/bin/env python3
# Makes tests/golden/bpe/*: small byte-level BPE tokenizers and what the tokenizers package answers to nasty texts.
"""Usage: pip install tokenizers==0.23.* && python3 make_bpe.py [OUTPUT_DIRECTORY [RANDOM_CASES]]

Each folder holds tokenizer.json and cases.json: [{"text", "ids", "decoded" where it differs from the text}].
The committed files have the default number of random cases; more of them make a longer check on demand.
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Shakespeare (public domain) and sentences of our own in several scripts.
CORPUS = [
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: rough winds do shake the darling buds"
    " of May, and summer's lease hath all too short a date. Sometime too hot the eye of heaven shines, and often is his gold"
    " complexion dimm'd; and every fair from fair sometime declines, by chance, or nature's changing course, untrimm'd.",
    "Tomorrow, and tomorrow, and tomorrow, creeps in this petty pace from day to day, to the last syllable of recorded time;"
    " and all our yesterdays have lighted fools the way to dusty death. Out, out, brief candle! Life's but a walking shadow.",
    "We've said they'll do what you're asking; he'd go, I'm sure, and it's 1234 or 56.78 or 2024-01-02, isn't it?\n\n\tif x:\n"
    "        return f(x) + 1  // tabs,   spaces\n    }\n",
    "Straße, café, naïve, œuvre; Příliš žluťoučký kůň; Быстрая лиса прыгает; γλώσσα και λόγος; 日本語の文章です。 漢字仮名。"
    " 한국어 문장; العربية; עברית; हिन्दी भाषा; ไทย; 🙂🙂 👍🏽 👩‍👩‍👧",
] * 3

CASES = [
    "", " ", "  ", "\n", "\n\n", " \n", "\n ", "\t\t x", "a", "a ", " a", "  a", "a  b", "a   b ", "a\n\nb", "a \n b", "a\r\n\r\nb\r\n", "\r", "\x0b\x0c x",
    "'s", "'S", "it's It'S I'm we'll they've you're he'd can't 'tis 'twas", "''s 's's 'll'll 'l 'v 're're '", "x'", "'", "' s", " 's", "l'été d'où",
    "1234567890", "a1b2 c3", "½ ² Ⅷ ٣ १२३ 1½x", " 12 ab", "0x1F 3.14e-10", "...", " ...", " ... a", "a.b,c;d", "!?!?", "\"quoted\"", "a_b-c+d", "$5.00 €3", "C++ & D#",
    "\u00a0nbsp\u00a0\u00a0x", "\u2003em\u2003 \u3000全角\u3000", "\u2028line\u2029para", "\u0085nel", "\u200bzero\u200dwidth\ufeffbom", "\u180emongol", "\u1680ogham x",
    "e\u0301 é a\u0300\u0323 \u1ea1\u0300 q\u0307\u0323 \u0344 \u212b \u00c5 A\u030a \u2126", "\u1100\u1161\u11a8 각 \u1112\u1161\u11ab", "\u0915\u093c \u0958", "\u0301start",
    "\u0f71\u0f72\u0f80", "\ufb1d \u05d9\u05b4 \ufb49", "が か\u3099 ﾊﾟ", "x\u0338= \u2260 <\u0338", "\u1d15e \U0001d15e \U0001d1bb", "\U0002f800 \u4e3d", "ﬁ ﬀ ①", "a\u0315\u0300\u05ae\u0062",
    "🙂", " 🙂🙂", "👍🏽👩‍👩‍👧🏳️‍🌈", "🇩🇪🇫🇷", "🙂a 🙂 a🙂", "\U0001f980\U00010348x", "𝒜𝓑𝟙𝟚", "\U0001fae8 \U000323af \ua7cb \U00010d40", "\ue000\U000f0000\ufffd\uffff", "\x00\x01\x7f\x80\xad",
    "日本語 text混在123漢字", "Привет, мир!", "γλώσσα", "العربية ١٢٣", "हिन्दी", "ไทยภาษา", "한국어", "ꙮ", "ǅ ʰ ª º", "İı ß ẞ",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|endoftext", "<|endoftext|", "|endoftext|>", "<<|endoftext|>>",
    "<mask>", " <mask> ", "a  <mask>  b", "\u3000<mask>", "<mask><mask>", "x <r>  y", "<r> <mask>", "<r>\n\n<l>", "<é> <e\u0301>", "<cafe\u0301> <café>", "<pre><prefix> <pre <prefi",
    "        return x", "  " * 20 + "y", "a" + " " * 7, "x" * 100, "ab" * 60, "=" * 80, " " * 70, "\n" * 60, "é" * 50, "aA" * 30 + "1" * 50, "the " * 20, "tomorrow" * 12,
    "Thou art more lovely and more temperate: rough winds", "http://example.org/a?b=c&d=%20#e", "{\"k\": [1, 2.5, null]}", "\\n\\t\\u00e9",
]
POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "0123456789½²٣", "     ", " \t\n\r\u00a0\u2003\u3000\u0085", "'''sdtmlrv", ".,;:!?-_=+*/()[]{}<>|\\\"#$%&@^~`", "àéîõüçñßœæ",
    "\u0300\u0301\u0307\u0308\u0323\u0327\u0328\u0338\u0345\u3099", "бвгджзиЖЩ", "αβγδεώΣ", "日本語漢字仮名のがぱ", "한국어문장각힣", "\u1100\u1112\u1161\u1175\u11a8\u11c2", "अआकखि्\u093c", "אבגד\u05b4",
    "🙂👍🏽👩\u200d\ufe0f", "𝒜𝟙\U00010348", "\x00\x07\x1b\x7f\x9f\xad\ufeff\u200b",
]
SNIPPETS = ["<|endoftext|>", "<mask>", "<r>", "<l>", "<café>", "<cafe\u0301>", "<pre>", "<prefix>", "    ", "  ", "'ll", "'re", " the", "tomorrow", "summer's"]


def random_text(rng):
    parts = []
    for _ in range(rng.randrange(1, 9)):
        kind = rng.random()
        if kind < 0.15:
            parts.append(rng.choice(SNIPPETS))
        elif kind < 0.2:
            code = rng.randrange(0x20, 0x30000)
            parts.append(chr(code) if not 0xD800 <= code < 0xE000 else "?")
        else:
            pool = rng.choice(POOLS)
            parts.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 6))))
    return "".join(parts)


def train(vocab, normalizer=None, prefix=False, regex=True, added=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


def variants():
    yield "gpt2", train(560)
    # The shape of GPT-NeoX: NFC, and runs of spaces as added tokens that are matched after normalisation.
    runs = [AddedToken(" " * n, normalized=True) for n in range(12, 1, -1)]
    yield "neox", train(460, normalizers.NFC(), added=runs + [AddedToken("<café>", normalized=True)])
    strips = [AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
              AddedToken("<l>", lstrip=True, rstrip=True, normalized=False), AddedToken("<pre>", normalized=False),
              AddedToken("<prefix>", normalized=True), AddedToken("<é>", normalized=False)]
    yield "strips", train(400, prefix=True, added=strips)
    yield "whole", train(400, regex=False)
    ignoring = train(400)
    state = json.loads(ignoring.to_str())
    vocab = state["model"]["vocab"]
    # Words that no merge reaches, found only because ignore_merges looks a word up first.
    for word in ["Ġtemperate", "zebra", "Ġ12", "ĠÐ¼Ð¸ÑĢ"]:
        vocab[word] = len(vocab)
    state["model"]["ignore_merges"] = True
    yield "ignore_merges", Tokenizer.from_str(json.dumps(state))


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "bpe")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    for name, tokenizer in variants():
        rng = random.Random(name)
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(json.loads(tokenizer.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        lines = []
        for text in CASES + [random_text(rng) for _ in range(count)]:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            case = {"text": text, "ids": ids}
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            # The package turns stray bytes of added tokens into U+FFFD; there our own round trip is tested instead.
            if decoded != text and decoded.count("\ufffd") <= text.count("\ufffd"):
                case["decoded"] = decoded
            lines.append(json.dumps(case, ensure_ascii=True, separators=(",", ":")))
        with open(os.path.join(out, name, "cases.json"), "w", encoding="utf-8") as f:
            f.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
