#!/usr/bin/env python3
# Writes unicode_classes.inc and unicode_nfc.inc: what the GPT-2 word pattern (\p{L} \p{N} \s) and NFC need to know.
"""Usage: pip install unicodedata2==16.0.0 && python3 make_unicode_tables.py OUTPUT_DIRECTORY

The version is pinned: 16.0.0 is what Hugging Face tokenizers 0.23 classifies by (every code point was compared).
Code points first assigned by a later Unicode version count as "other", as they do there.
"""
import sys

import unicodedata2 as unicode

VERSION = "16.0.0"
# White_Space of Unicode, which is what \s means to the pattern; unicodedata does not know the property.
SPACES = [(0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
          (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]


def scalars():
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            yield code


def ranges(value_of):
    """[(first, last, value)] of neighbouring code points with the same true value."""
    out = []
    for code in scalars():
        value = value_of(chr(code))
        if not value:
            continue
        if out and out[-1][1] == code - 1 and out[-1][2] == value:
            out[-1][1] = code
        else:
            out.append([code, code, value])
    return out


def decompositions():
    """[(code, first, second or 0, composes back)] of canonical mappings; Hangul syllables are arithmetic and left out."""
    out = []
    for code in scalars():
        mapping = unicode.decomposition(chr(code))
        if not mapping or mapping[0] == "<" or 0xAC00 <= code < 0xD7A4:
            continue
        parts = [int(p, 16) for p in mapping.split()]
        back = len(parts) == 2 and unicode.normalize("NFC", chr(code)) == chr(code)
        out.append((code, parts[0], parts[1] if len(parts) == 2 else 0, int(back)))
    return out


def write(out, name, kind, rows):
    print(f"inline constexpr {kind} {name}[] = {{", file=out)
    line = "   "
    for row in rows:
        item = " {" + ",".join(hex(v) if v > 9 else str(v) for v in row) + "},"
        if len(line) + len(item) > 120:
            print(line, file=out)
            line = "   "
        line += item
    print(line + "\n};", file=out)


def write_file(path, what, tables):
    with open(path, "w") as out:
        print(f"// {what} of Unicode {VERSION}; made by make_unicode_tables.py, do not edit.\n// clang-format off", file=out)
        for table in tables:
            write(out, *table)
        print("// clang-format on", file=out)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if unicode.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicode.unidata_version}, the tables need {VERSION}")
    write_file(f"{sys.argv[1]}/unicode_classes.inc", "Letters, numbers and white space", [
        ("kLetters", "CodeRange", [r[:2] for r in ranges(lambda c: unicode.category(c)[0] == "L")]),
        ("kNumbers", "CodeRange", [r[:2] for r in ranges(lambda c: unicode.category(c)[0] == "N")]),
        ("kSpaces", "CodeRange", SPACES)])
    write_file(f"{sys.argv[1]}/unicode_nfc.inc", "Combining classes and canonical decompositions", [
        ("kCombiningClasses", "ClassRange", ranges(unicode.combining)),
        ("kDecompositions", "Decomposition", decompositions())])


if __name__ == "__main__":
    main()
