#!/usr/bin/env python3
# Writes newer_categories_table.inc: general categories of the characters that came after Unicode 14.0.
"""Usage: pip install unicodedata2==16.0.0 && python3 make_newer_categories.py OUTPUT_FILE

Split patterns ask ICU for categories up to Unicode 14.0, which ICU 70 and all later ones know alike, and this table for the rest, so
that ids do not depend on the ICU of a machine. 16.0 is what Hugging Face tokenizers 0.23 classifies by. Needs a Python whose own
unicodedata is that of 14.0 (Python 3.11).
"""
import sys
import unicodedata as base

import unicodedata2 as newer


def rows():
    """[first, last, category] of neighbours that 16.0 knows and 14.0 does not."""
    out = []
    for code in range(0x110000):
        category = newer.category(chr(code))
        if category == "Cn" or base.category(chr(code)) != "Cn":
            continue
        if out and out[-1][1] == code - 1 and out[-1][2] == category:
            out[-1][1] = code
        else:
            out.append([code, code, category])
    return out


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if (base.unidata_version, newer.unidata_version) != ("14.0.0", "16.0.0"):
        sys.exit(f"needs Unicode 14.0.0 and 16.0.0, found {base.unidata_version} and {newer.unidata_version}\n{__doc__}")
    # U+1171E went from Mc to Mn, which is why patterns may say \p{M} and neither of those.
    changed = [c for c in range(0x110000) if base.category(chr(c)) not in ("Cn", newer.category(chr(c))) and c != 0x1171E]
    if changed:
        sys.exit(f"categories changed since 14.0, which the table cannot say: {[hex(c) for c in changed]}")
    with open(sys.argv[1], "w") as out:
        print("// First, last and general category of what Unicode 15.0 to 16.0 added; made by make_newer_categories.py, do not edit.", file=out)
        print("// clang-format off\ninline constexpr NewerCategory kNewerCategories[] = {", file=out)
        line = "   "
        for first, last, category in rows():
            item = f' {{{first:#x},{last:#x},"{category}"}},'
            if len(line) + len(item) > 120:
                print(line, file=out)
                line = "   "
            line += item
        print(line + "\n};\n// clang-format on", file=out)


if __name__ == "__main__":
    main()
