#!/usr/bin/env python3
# Makes tests/golden/bpe/*: small byte-level BPE tokenizers and what the tokenizers package answers to nasty texts.
"""Usage: pip install tokenizers==0.23.* && python3 make_bpe.py [OUTPUT_DIRECTORY [RANDOM_CASES]]

Each folder holds tokenizer.json, or vocab.json and merges.txt, and cases.json: [{"text", "ids", "decoded" where it differs from
the text, "whole" where the file puts ids around a text}]. unicode.json holds what the package thinks of every character. The
committed files have the default number of random cases; more of them make a longer check on demand. Trained on Debian's copy of
the GPL besides the texts below.
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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
# For the layouts of published files: groups of digits, contractions in both cases, line ends, marks, joined emoji, unassigned code
# points, long words.
MORE_CASES = [
    "1 12 123 1234 12345 123456 1234567", "x1234567y", "１２３４ ٠١٢٣٤٥ Ⅷ½¾²", "3.14159265 1,234,567.89 2024-01-02T03:04:05Z 0xDEADBEEF",
    "IT'S IT'LL WE'VE YOU'RE HE'D I'M CAN'T", "it'Ll we'vE x'Re 'S'T 'ſ x'ſ 'ſt 'K", "O'Reilly's 'tis o'clock rock'n'roll", "don’t it’s",
    "a\r\n\r\n\r\nb", "a;\r\n\r\n  b", "}\n\n\t}\n\n", " \n \n  x", "a \r\n b", "...\n...\r\n\n!", "\t\tx\t y", "end.  \n", "\u2028x\u2029\u0085y", "\u00a0\u00a0x", "\u3000\u3000日",
    "e\u0301te\u0301 \u0301x a\u0301\u0302b", "हिन्दी में कि\u093c", "ไทยภาษาที่", "\u1e69\u0323", "न\u094d\u200dन", "\u0345\u0300a", "a\u20dd",
    "👩\u200d👩\u200d👧\u200d👦👨🏿\u200d🚀❤\ufe0f\u200d🔥", "🏴\U000e0067\U000e0062\U000e007f", "a👍b 👍 \n👍", "＄１００％ “quoted” «x» —dash– …",
    "\u0378\u0379 \U0002fffe\U000e0fff \ufdd0\ufffe a\u0378b", "\U000110d1\u0897\u1c89\U00010d40\U0002ebf0", "\ue123 \uf8ff\u2060\u200b\u200e",
    "supercalifragilistic" * 12, "١" * 40, "漢" * 70, "\u0301" * 40, "ab1!" * 40, "'s" * 30, "\r\n" * 40, " \n" * 40, "-" * 33 + "\n" * 5,
    "<|begin_of_text|>Hello<|eot_id|>\n\n<|end_of_text|>", "<|start_header_id|>user<|end_header_id|>\n\nWhat's 12345?<|eot_id|>", "<|padding|> <|PADDING|>",
    "This program is free software: you can redistribute it and/or modify\nit under the terms of the GNU General Public License",
]
STRIPPED = ["<r>", "<r> ", "<r>  b", "<r> xb", "<r>    b", "<r>   yb", "<r>  yb", "<r> <r>  x", "a<r>\n xb", "a  y <r>b", "<r>\t\tb", "a\n\n\nb", "a \n \n b", "<r>\n\nb",
            "\n<r>\n"]
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


def train(vocab, normalizer=None, prefix=False, regex=True, added=(), splits=(), specials=("<|endoftext|>",), corpus=CORPUS):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits) + [tokenizer.pre_tokenizer])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus, trainer)
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
    # White space that <r> strips to the right is still the beginning of the next added token; one that strips to its left, too, may be used up by it.
    yield "strips_into_next", train(300, added=[AddedToken("<r>", rstrip=True, normalized=False)] + [
        AddedToken(t, normalized=False) for t in (" ", " x", "  y")] + [AddedToken("\n", lstrip=True, rstrip=True, normalized=False)])
    yield "whole", train(400, regex=False)
    ignoring = train(400)
    state = json.loads(ignoring.to_str())
    vocab = state["model"]["vocab"]
    # Words that no merge reaches, found only because ignore_merges looks a word up first.
    for word in ["Ġtemperate", "zebra", "Ġ12", "ĠÐ¼Ð¸ÑĢ"]:
        vocab[word] = len(vocab)
    state["model"]["ignore_merges"] = True
    yield "ignore_merges", Tokenizer.from_str(json.dumps(state))


# The split patterns of Llama 3 and of GPT-4 (published by tiktoken), and three that run one behind the other as in DeepSeek's files.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def published():
    """(name, tokenizer, GPT-2's pair instead of tokenizer.json) in the layouts of published files."""
    with open("/usr/share/common-licenses/GPL-3", encoding="utf-8") as f:
        corpus = CORPUS + [f.read()]
    split = [pre_tokenizers.Split(Regex(LLAMA3), "isolated")]
    llama3 = train(700, splits=split, regex=False, specials=(), corpus=corpus)
    llama3.add_special_tokens([AddedToken(t, normalized=False) for t in ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                                                        "<|end_header_id|>", "<|eot_id|>"]])
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", special_tokens=[("<|begin_of_text|>", begin)])])
    state = json.loads(llama3.to_str())
    state["model"]["ignore_merges"] = True
    yield "llama3", Tokenizer.from_str(json.dumps(state)), False
    runs = [AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)]
    neox = train(700, normalizers.NFC(), specials=("<|endoftext|>", "<|padding|>"), added=runs, corpus=corpus)
    neox.post_processor = processors.ByteLevel(trim_offsets=True)
    yield "neox20b", neox, False
    yield "gpt2_pair", train(700, specials=(), corpus=corpus), True
    # Removed and inverted: what does not match is dropped, which this pattern leaves nothing of.
    gpt4 = train(500, splits=[pre_tokenizers.Split(Regex(GPT4), "removed", invert=True)], regex=False, corpus=corpus)
    gpt4.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    yield "gpt4", gpt4, False
    yield "deepseek", train(500, splits=[pre_tokenizers.Split(Regex(p), "isolated") for p in DEEPSEEK], regex=False, corpus=corpus), False
    yield "starcoder", train(400, splits=[pre_tokenizers.Digits(individual_digits=True)], corpus=corpus), False
    yield "removed", train(400, splits=[pre_tokenizers.Split("-", "removed"), pre_tokenizers.Digits()], regex=False, corpus=corpus), False


def write_cases(path, tokenizer, texts):
    lines = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        whole = tokenizer.encode(text).ids
        if whole != ids and len(lines) < 8:
            case["whole"] = whole
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        # The package turns stray bytes of added tokens into U+FFFD; there our own round trip is tested instead.
        if decoded != text and decoded.count("\ufffd") <= text.count("\ufffd"):
            case["decoded"] = decoded
        lines.append(json.dumps(case, ensure_ascii=True, separators=(",", ":")))
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(lines) + "\n]\n")


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))


def fnv(data, state=0xCBF29CE484222325):
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


# What of these a pattern may say: see data/tokenizer/split_pattern.h.
CLASSES = [f"\\p{{{c}}}" for c in ("L Lu Ll Lt Lm Lo M Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co".split())] + [
    "\\s", "\\S", "\\d", "\\D", "\\P{L}", "[^\\s\\p{L}\\p{N}]", "(?i:[a-z])", "."]


def unicode_facts():
    """Per class of characters how many match and the hash of their UTF-8; the hash of the NFC of every character between two others."""
    codes = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    everything = "".join(map(chr, codes))
    facts = {}
    for pattern in CLASSES:
        cut = pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(everything)
        matched = "".join(piece for piece, _ in cut)
        facts[pattern] = [len(matched), f"{fnv(matched.encode()):016x}"]
    nfc = normalizers.NFC()
    state = fnv(b"")
    for first in range(0, len(codes), 4096):
        text = "".join(f"a{chr(c)}\u0334 " for c in codes[first:first + 4096])
        state = fnv(nfc.normalize_str(text).encode(), state)
    facts["NFC"] = [len(codes), f"{state:016x}"]
    return facts


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "bpe")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    for name, tokenizer, pair in [(*v, False) for v in variants()] + list(published()):
        rng = random.Random(name)
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        state = json.loads(tokenizer.to_str())
        if pair:
            write_json(os.path.join(folder, "vocab.json"), state["model"]["vocab"])
            with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
                f.write("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in state["model"]["merges"]))
        else:
            write_json(os.path.join(folder, "tokenizer.json"), state)
        old = name in ("gpt2", "neox", "strips", "whole", "ignore_merges")
        texts = STRIPPED if name == "strips_into_next" else CASES if old else CASES[:40] + MORE_CASES
        write_cases(os.path.join(folder, "cases.json"), tokenizer, texts + [random_text(rng) for _ in range(count)])
    with open(os.path.join(out, "unicode.json"), "w", encoding="utf-8") as f:
        json.dump(unicode_facts(), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
