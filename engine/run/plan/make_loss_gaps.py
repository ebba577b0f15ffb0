#!/usr/bin/env python3
# Writes loss_gaps_table.inc: what `plan --search` says of a preset's price in loss, from the cells of docs/results.
"""Usage: engine/run/plan/make_loss_gaps.py [OUTPUT_FILE]     default: loss_gaps_table.inc beside this file"""
import os
import sys

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "scripts"))
import compression_page  # noqa: E402
import compression_rivals  # noqa: E402


def table():
    lines = ["// Evaluation loss above the uncompressed run of the same seeds, percent, and half of its 95 % interval; made by make_loss_gaps.py.",
             "// clang-format off", "inline constexpr LossGap kLossGaps[] = {"]
    records = compression_page.records()
    # NAME:N and NAME@N stand for a preset with another number or ZeRO stage.
    gaps = {(int(layout.split("x")[0]), preset): got[:3] for (layout, preset), got in compression_page.losses(records).items() if preset.isidentifier()}
    # Without a pipeline the larger model counts, under the ZeRO stage that a preset is made for.
    runs = compression_rivals.Rivals(records).losses
    base = runs[compression_rivals.PLAIN]
    ends = [r["eval_loss"] for r in base.values()]
    for preset, seeds in runs.items():
        name = preset.partition("@")[0]
        if name.isidentifier():
            gap, half, count = compression_rivals.gap(seeds, base)
            gaps[1, name] = gap, half if count > 1 else 100 * (max(ends) / min(ends) - 1), count
    for (stages, preset), (gap, half, seeds) in sorted(gaps.items()):
        if preset != "none":
            lines.append(f'    {{"{preset}", {stages}, {gap:.2f}, {half:.2f}, {seeds}}},')
    return "\n".join(lines + ["};", "// clang-format on", ""])


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["--help"], ["-h"]):
        sys.exit(__doc__)
    with open(sys.argv[1] if len(sys.argv) == 2 else os.path.join(HERE, "loss_gaps_table.inc"), "w", encoding="utf-8") as out:
        out.write(table())


if __name__ == "__main__":
    main()
