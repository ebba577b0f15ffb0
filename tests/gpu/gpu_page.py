#!/usr/bin/env python3
"""The page of what was measured on a GPU, from what gpu_check.py wrote.

`since` in a record says what was mended behind its call.
usage: gpu_page.py add CELLS COMMIT gpu_check.json...   appends the results of a call, of a build of that commit
       gpu_page.py page CELLS PAGE                      writes the page anew; of a step that ran more than once the last counts
"""
import json
import os
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from gpu_check import DENSE_BF16_TFLOPS
from measured import add_cell, read_cells, table, verdict

CHECKS = {"ops": "every op against its oracle, kernels of codecs against the CPU's bytes", "products": "products against a loop",
          "reference": "models against independent programs in bf16 and fp32", "attention": "cuDNN's attention against float64",
          "attention_parts": "parts of sequences on cuDNN against float64", "long": "long sequences",
          "training": "50 steps beside the CPU, and repeated", "graphs": "CUDA graphs beside steps op by op", "resume": "stopped and resumed",
          "mesh": "layouts of threads that share the GPU", "mpi": "processes that share the GPU, through the host",
          "nccl_stopped": "one of two ranks over NCCL is stopped", "nccl": "two ranks over NCCL beside the way through the host", "pair_124m": "GPT-2 124M on two ranks over NCCL", "sanitizer": "memory and race checkers"}


def add(path, commit, files):
    for file in files:
        with open(file, encoding="utf-8") as opened:
            add_cell(path, dict(json.load(opened), commit=commit))


def last(cells, step, ok=lambda record: True):
    """(cell, record) of the step's last run that says something."""
    found = [(c, c["steps"][step]) for c in cells if step in c["steps"] and not c["steps"][step].get("skipped") and ok(c["steps"][step])]
    return found[-1] if found else (None, None)


def checks(cells):
    rows = []
    for step, what in CHECKS.items():
        cell, record = last(cells, step)
        if record:
            said = record["summary"] if record["ok"] is not False else record.get("error", "")
            said += f" ({record['since']})" if "since" in record else ""
            result = {True: "passed", False: "**failed**", None: "cut off"}[record["ok"]]
            # (Parts of sequences were a step of their own; `attention` has taken them in.)
            rows.append([what, result, said, f"`{cell['mode']} --only {step.removesuffix('_parts')}`, {cell['commit']}"])
    return table(["check", "result", "what it said", "call, commit"], rows)


def least_ms(sizes, steps, ceilings):
    """What the ops of a step take at the ceilings of the same call: products, attention alone, bytes by the copy. AdamW moves 30 bytes a
    parameter, of which `bytes` counts each tensor once, 18."""
    rows = {}
    for o in sizes:
        calls = o["calls"] / steps
        if o["op"].startswith("attention"):
            least = ceilings[o["op"]]["ms"] * calls
        elif o["flops"]:
            least = o["flops"] / ceilings["product"]["gflops"] / 1e6 * calls
        else:
            least = o["bytes"] * (30 / 18 if o["op"] == "adamw" else 1) / ceilings["copy"]["gbytes_per_s"] / 1e6 * calls
        took, floor, flops = rows.get(o["op"], (0.0, 0.0, 0.0))
        rows[o["op"]] = (took + o["ms"] / steps, floor + least, flops + o["flops"] * calls)
    return rows


def of_ceilings(cells):
    """{deterministic: (bare step, {op: (ms, at its ceiling, FLOPs)}, share of the ceiling, that with the product's least and largest rate of all calls)} of the
    last call that can tell, or nothing."""
    cell, record = last(cells, "step_1b", lambda r: r["ok"])
    ceilings = cell["steps"].get("ceilings", {}) if cell else {}
    if "attention_forward" not in ceilings:
        return {}
    products = [c["steps"]["ceilings"]["product"] for c in cells if "product" in c["steps"].get("ceilings", {})]
    found = {}
    for wish in ("true", "false"):
        plain, waited = record[f"deterministic {wish}"], record[f"deterministic {wish}, every op waited for"]
        rows = least_ms(waited["sizes"], waited["steps"], ceilings)
        share = [sum(floor for _, floor, _ in least_ms(waited["sizes"], waited["steps"], dict(ceilings, product=p)).values()) / plain["step_ms"]
                 for p in (ceilings["product"], *products)]
        found[wish] = plain, rows, share[0], (min(share), max(share))
    return found


def profile(cells):
    found, text = of_ceilings(cells), ""
    if not found:
        return ""
    for wish, (plain, rows, share, (low, high)) in found.items():
        text += (f"\n`deterministic={wish}`: a step takes {plain['step_ms']:.1f} ms (least {plain['step_ms_min']:.1f}, {plain['steps']} steps, {plain['tokens_per_s']:.0f} tokens/s, "
                 f"{plain['model_tflops_per_rank']:.0f} TFLOP/s): **{100 * share:.1f} %** of the ceiling ({100 * low:.1f} to {100 * high:.1f} with the products of all calls).\n")
        if wish == "false":
            text += "\n" + table(["op", "ms", "at its ceiling", "share"], [[op, f"{took:.2f}", f"{floor:.2f}", f"{100 * floor / took:.0f} %"]
                                 for op, (took, floor, _) in sorted(rows.items(), key=lambda i: -i[1][0]) if took > 0.05], {1, 2, 3})
    return "\n## Where a step goes: Llama 1B, batch 8, length 2048, nothing recomputed\n" + text + (
        "\nThe ceilings are of the same call: a product of 8192^3 random bf16 numbers, attention of this shape alone, a copy on the device; ops are timed one by "
        "one, each waited for. AdamW counts 30 bytes a parameter.\n")


def verdicts(cells):
    rows, found = [], of_ceilings(cells)
    if found:
        said = ["{:.1f} % ({:.1f} to {:.1f})".format(*(100 * x for x in (share, *span))) for _, _, share, span in (found["false"], found["true"])]
        low, high = found["false"][3]
        rows.append(["a step of Llama 1B, nothing recomputed, at 90 % of the ceiling (of its own call; of all calls)", f"{said[0]}; with `deterministic` {said[1]}",
                     verdict(low, high, least=0.9)])
    cell, record = last(cells, "coders", lambda r: "lines" in r)
    if cell:
        copy = cell["steps"]["ceilings"]["copy"]["gbytes_per_s"]
        eight = [l for l in record["lines"] if l["op"].endswith("/block_int8")]
        slowest = min(l["gbytes_per_s"] for l in eight) / copy
        rows.append(["int8, a gradient of 2^30 packed and absorbed: at least 85 % of the copy", f"{100 * slowest:.0f} %", verdict(slowest, slowest, least=0.85)])
        if found:
            share = sum(l["ms"] for l in eight) / found["false"][0]["step_ms"]
            rows.append(["... and at most 3 % of that step", f"{100 * share:.2f} %", verdict(share, share, most=0.03)])
    for shape, entry in ((shape, e) for c in cells for shape, e in c["steps"].get("steps", {}).items() if isinstance(e, dict) and e.get("pytorch")):
        said = [over(entry[who], entry["pytorch"]) for who in ("ours, deterministic false", "ours") if entry[who]]
        if said:
            texts = [RATIO.format(*r) for r in said]
            rows.append([f"{shape}: 1.1 times torch.compile", texts[0] + (f"; with `deterministic` {texts[1]}" if len(texts) > 1 else ""),
                         verdict(*said[0][1:], least=1.1)])
    return table(["what was to be shown", "measured", "verdict"], rows)


def over(mine, theirs):
    """The ratio of the medians of tokens/s, with the least and the largest of single runs."""
    mine, theirs = ([l["tokens_per_s"] for l in lines] for lines in (mine, theirs))
    return statistics.median(mine) / statistics.median(theirs), min(mine) / max(theirs), max(mine) / min(theirs)


RATIO = "{:.3f} ({:.3f} to {:.3f})"


def speeds(cells):
    rows = []
    for cell in cells:
        for shape, entry in cell["steps"].get("steps", {}).items():
            if not isinstance(entry, dict) or "pytorch" not in entry:
                continue
            for who, lines in entry.items():
                if who == "ways" or not isinstance(lines, list) or not lines or not isinstance(lines[0], dict):
                    continue
                mine = [l["tokens_per_s"] for l in lines]
                ratio = RATIO.format(*over(lines, entry["pytorch"])) if entry["pytorch"] and who != "pytorch" else ""
                said = who if who != "pytorch" else f"PyTorch {lines[0]['version']}, {', '.join(max(lines, key=lambda l: l['tokens_per_s'])[k] for k in ('compile', 'attention'))}"
                rows.append([shape, entry["recompute"], said, len(mine), f"{statistics.median(mine):.0f} ({min(mine):.0f} to {max(mine):.0f})",
                             f"{statistics.median(l['step_ms'] for l in lines):.1f}", f"{max(l.get('memory_peak_bytes', 0) for l in lines) / 2**30:.1f}", ratio])
    if not rows:
        return ""
    return "\n## Beside PyTorch\n\n" + table(["shape", "recomputed", "who", "runs", "tokens/s: median (range)", "ms", "peak GiB", "over PyTorch"], rows, {3, 5, 6}) + (
        "\nRuns in turns, alone on the GPU. PyTorch: torch.compile by blocks and of the whole model, in default mode and max-autotune as far as there was time, the fastest of each run, fused AdamW, fp32 master weights under autocast to bf16, clipping, the "
        "faster of cuDNN's and flash attention; the same batch, length and recomputation.\n")


def ops(cells, step, title):
    cell, record = last(cells, step, lambda r: "lines" in r)
    if not record:
        return ""
    copy, product = cell["steps"]["ceilings"]["copy"]["gbytes_per_s"], cell["steps"]["ceilings"]["product"]["gflops"]
    rows = [[l["op"], f"{l['ms']:.3f}", f"{l['gbytes_per_s']:.0f}", f"{100 * l['gbytes_per_s'] / copy:.0f} %", f"{l['gflops'] / 1e3:.0f}" if l["gflops"] else "",
             f"{100 * l['gflops'] / product:.0f} %" if l["gflops"] else "", f"{l['rel_error']:.1e}"] for l in record["lines"]]
    return f"\n## {title}\n\nCopy {copy:.0f} GB/s, product {product / 1e3:.0f} TFLOP/s in the same call (commit {cell['commit']}).\n\n" + table(
        ["op", "ms", "GB/s", "of the copy", "TFLOP/s", "of the product", "relative error"], rows, {1, 2, 3, 4, 5, 6})


def long_sequences(cells):
    cell, record = last(cells, "long")
    if not record:
        return ""
    peak = next(v for k, v in DENSE_BF16_TFLOPS.items() if k in cell["steps"]["device"]["gpu"])
    rows = []
    for name, lines in record.items():
        if name == "lines" or not isinstance(lines, list):
            continue
        ms = [l["step_ms"] for l in lines]
        rate = statistics.median(l["model_tflops_per_rank"] for l in lines) if "model_tflops_per_rank" in lines[0] else None
        rows.append([name, len(ms), f"{statistics.median(ms) / 1e3:.2f} ({min(ms) / 1e3:.2f} to {max(ms) / 1e3:.2f})", f"{statistics.median(l['tokens_per_s'] for l in lines):.0f}",
                     f"{rate:.0f}" if rate else "", f"{100 * rate / peak:.1f} %" if rate else "", f"{max(l['memory_peak_bytes'] for l in lines) / 2**30:.1f}"])
    text = "\n## Long sequences: Llama 1B with heads of size 128, one sequence, blocks recomputed\n\n" + table(
        ["tokens, how", "runs", "seconds a step (range)", "tokens/s", "TFLOP/s", "MFU", "peak GiB"], rows, {1, 2, 3, 4, 5, 6})
    text += (f"\nTFLOP/s: 6 x matrix parameters x tokens and causal attention (half), without what is computed again; MFU of {peak} TFLOP/s. Chunks of 8192 tokens; offload: to the "
             "host's memory. PyTorch: torch.compile by blocks, the faster of cuDNN's and flash attention, its loss 8192 tokens at a time.\n")
    text += f"\n**{record['since'][0].upper() + record['since'][1:]}.**\n" if "since" in record else ""
    return text + (ops(cells, "long", "Attention of 65536 tokens alone") if record.get("lines") else "")


def page(cells, path):
    device = last(cells, "device")[1]
    graphs = last(cells, "graph_speed", lambda r: r["ok"])[1]
    text = "# On a GPU\n\n" + verdicts(cells) + "\n" + checks(cells) + f"\nOne {device['gpu']}, driver {device['driver']}, {device['nvcc']}. "
    text += f"Calls: {', '.join(sorted({c['started'] for c in cells}))}. Raw: [gpu_cells.jsonl](gpu_cells.jsonl).\n"
    text += profile(cells) + speeds(cells) + long_sequences(cells)
    if graphs:
        text += f"\n## CUDA graphs\n\n{graphs['summary']}.\n"
    text += ops(cells, "coders", "Codecs: 2^30 fp32 numbers packed, 8 payloads of 2^27 absorbed") + ops(cells, "bench_op", "Ops alone")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    if len(sys.argv) > 4 and sys.argv[1] == "add":
        add(sys.argv[2], sys.argv[3], sys.argv[4:])
    elif len(sys.argv) == 4 and sys.argv[1] == "page":
        page(read_cells(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(__doc__)
