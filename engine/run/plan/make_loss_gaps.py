#!/usr/bin/env python3
# Writes loss_gaps_table.inc: what `plan --search` says of a preset's price in loss, from the cells of docs/results.
"""Usage: engine/run/plan/make_loss_gaps.py [OUTPUT_FILE]     default: loss_gaps_table.inc beside this file"""
import os
import sys

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "scripts"))
import compression_page  # noqa: E402


def table():
    lines = ["// Evaluation loss above the uncompressed run of the same seeds, percent, and half of its 95 % interval; made by make_loss_gaps.py.",
             "// clang-format off", "inline constexpr LossGap kLossGaps[] = {"]
    found = compression_page.losses(compression_page.records())
    for (layout, preset), (gap, half, seeds, _) in sorted(found.items()):
        if preset != "none" and preset.isidentifier():  # NAME:N and NAME@N stand for a preset with another number or ZeRO stage
            stages = int(layout.split("x")[0])
            lines.append(f'    {{"{preset}", {stages}, {gap:.2f}, {half:.2f}, {seeds}}},')
    return "\n".join(lines + ["};", "// clang-format on", ""])


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["--help"], ["-h"]):
        sys.exit(__doc__)
    with open(sys.argv[1] if len(sys.argv) == 2 else os.path.join(HERE, "loss_gaps_table.inc"), "w", encoding="utf-8") as out:
        out.write(table())


if __name__ == "__main__":
    main()
