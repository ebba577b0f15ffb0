#!/usr/bin/env python3
"""Makes tests/golden/data_order: small token files and the sample order that Megatron's rules give for them.

Written from the description of the algorithm, with numpy's own RandomState, not from our C++. The layout of expected.json is
that of the shared reference vectors, so one test reads both. Usage: python3 tests/golden/make_data_order.py (needs numpy).
"""
import json
import math
import os
import struct
from itertools import accumulate

import numpy as np

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data_order")
CODES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}

# name: (dtype code, lengths of the sequences of each document, base, stride)
DATASETS = {
    "bytes": (1, [[9, 3], [40], [1], [17, 2, 8], [25], [5]], 0, 23),
    "short": (3, [[12], [7], [31], [2], [19], [64], [5], [1], [28]], 300, 900),
    "words": (8, [[30], [5, 44], [0], [13], [70], [1], [2, 2, 2], [26], [51], [9], [0, 6]], 40000, 1500),
    "large": (4, [[22], [18], [90], [3], [41], [11]], 100000, 1000),
    "wide": (5, [[33], [1], [8, 15], [27]], 70000, 500),
}


def write_dataset(name):
    code, documents, base, stride = DATASETS[name]
    lengths = [n for d in documents for n in d]
    sequences = [[base + stride * i + p for p in range(n)] for i, n in enumerate(lengths)]
    item = np.dtype(CODES[code]).itemsize
    pointers = [0] + [item * e for e in accumulate(lengths)][:-1]
    bounds = [0] + list(accumulate(len(d) for d in documents))
    prefix = name + "_text_document"
    with open(os.path.join(HERE, prefix + ".bin"), "wb") as f:
        for s in sequences:
            f.write(np.array(s, CODES[code]).tobytes())
    with open(os.path.join(HERE, prefix + ".idx"), "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(bounds)))
        f.write(struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(pointers)}q", *pointers))
        f.write(struct.pack(f"<{len(bounds)}q", *bounds))
    info = dict(prefix=prefix, dtype_code=code, sequence_count=len(lengths), document_index_count=len(bounds),
                sequence_lengths=lengths, sequence_pointers=pointers, document_indices=bounds, total_tokens=sum(lengths),
                token_formula=f"{base} + {stride}*sequence + position")
    return sequences, info


def split_ranges(text, n):
    w = np.array(([float(x) for x in text.split(",")] + [0.0, 0.0])[:3])
    edges = [0.0] + list(accumulate((w / w.sum()).tolist()))
    return [None if b <= a else [round(a * n), round(b * n)] for a, b in zip(edges, edges[1:])]


def order(sequences, span, seq, seed, wanted, tokens=0):
    """Indices of one split, as lists, and a reader of samples."""
    ids = np.arange(*span, dtype=np.int32)
    epoch = sum(len(sequences[i]) for i in ids)
    epochs = 1
    while wanted is not None and epochs * epoch < wanted * seq + 1:
        epochs += 1
    built = (epochs * epoch - 1) // seq
    before = ((epochs - 1) * epoch - 1) // seq
    separate = epochs > 1 and wanted - before < int(0.80 * ((epoch - 1) // seq))
    random = np.random.RandomState(seed)

    def shuffled(*parts):
        for p in parts:
            random.shuffle(p)
        return np.concatenate(parts).tolist()

    documents = shuffled(np.tile(ids, epochs - 1), ids.copy()) if separate else shuffled(np.tile(ids, epochs))
    # Walk the stream token by token: the place of token k*seq begins sample k.
    places = [[row, at] for row, d in enumerate(documents) for at in range(len(sequences[d]))]
    stream = [sequences[documents[row]][at] for row, at in places]
    samples = [places[k * seq] for k in range(built + 1)]
    samples[0] = [0, 0]
    shuffle = (shuffled(np.arange(before), np.arange(before, built)) if separate else shuffled(np.arange(built)))

    def read(i):
        return stream[shuffle[i] * seq:shuffle[i] * seq + seq + 1]

    out = dict(first_sequence=int(ids[0]), num_sequences=len(ids), num_samples_requested=wanted, tokens_per_epoch=epoch,
               num_epochs=epochs, separate_final_epoch=bool(separate), num_samples_built=built, document_index=documents,
               sample_index=samples, shuffle_index=shuffle)
    if tokens:
        out["tokens"] = [read(i) for i in range(min(tokens, built))]
    return out, read


def case(name, data, dataset, seq, split, seed, train, valid=None, test=None):
    ranges = split_ranges(split, len(data[dataset]))
    c = dict(name=name, dataset=dataset, seq_length=seq, split=split, seed=seed, sequence_ranges=ranges)
    for which, span, wanted in zip(("train", "valid", "test"), ranges, (train, valid, test)):
        usable = span is not None and any(len(data[dataset][i]) for i in range(*span))
        c[which] = order(data[dataset], span, seq, seed, wanted, 6)[0] if usable else None
    return c


def normalized(weights):
    w = np.array(weights, np.float64)
    return (w / np.sum(w)).tolist()


def blend(data, sets, weights, size, seq, split, seed, surplus=0.005):
    w = normalized(weights)
    # Megatron normalises once for the requests and again for the turns, which can move the last bit.
    turns = normalized(w)
    taken, which, position = [0] * len(w), [], []
    for i in range(size):
        behind = [x * max(float(i), 1.0) - float(t) for x, t in zip(turns, taken)]
        k = behind.index(max(behind))
        which.append(k)
        position.append(taken[k])
        taken[k] += 1
    mids, readers = [], []
    for x, s in zip(w, sets):
        wanted = math.ceil(math.ceil(size * x) * (1 + surplus))
        mid, read = order(data[s], split_ranges(split, len(data[s]))[0], seq, seed, wanted)
        mids.append(dict(dataset=s, **mid))
        readers.append(read)
    return dict(datasets=sets, weights=weights, normalized_weights=w, size=size, seq_length=seq, split=split, seed=seed, surplus=surplus,
                dataset_index=which, dataset_sample_index=position, mid_level=mids,
                tokens=[readers[k](p) for k, p in zip(which[:24], position)])


def ramp(start, increment, samples, full, iterations):
    """Megatron's ramp-up calculator: batch size and consumed samples before each of the first updates."""
    per_increment = samples / ((full - start) // increment)
    consumed, rows = 0, []
    for _ in range(iterations):
        size = full if consumed > samples else min(full, start + int(consumed / per_increment) * increment)
        rows.append([consumed, size])
        consumed += size
    return dict(start=start, increment=increment, samples=samples, global_batch=full, updates=rows, total=consumed)


def main():
    os.makedirs(HERE, exist_ok=True)
    made = {name: write_dataset(name) for name in DATASETS}
    data = {name: m[0] for name, m in made.items()}
    random = np.random.RandomState(77)
    weights = [random.uniform(0.01, 3.0, n).tolist() for n in (3, 8, 9, 23, 150)]
    result = dict(
        format=1,
        datasets={name: m[1] for name, m in made.items()},
        cases=[
            case("bytes_one_epoch", data, "bytes", 16, "90,10,0", 1234, 6, 1),
            case("bytes_many_epochs", data, "bytes", 7, "60,20,20", 99, 50, 9, 4),
            case("short_separated", data, "short", 20, "80,20,0", 3, 12, 3),
            case("words_empty_sequences", data, "words", 24, "100,0,0", 2024, 31),
            case("words_separated", data, "words", 24, "100,0,0", 2025, 13),
            case("large_ragged", data, "large", 13, "50,25,25", 4294967295, 40, 11, 3),
            case("wide_no_request", data, "wide", 5, "1", 0, None),
            case("wide_long_sequence", data, "wide", 200, "1,0,0", 8, 7),
            # 168 samples an epoch, int(0.80 * 168) = 134: 133 wanted of the last epoch shuffle it apart, 134 do not.
            case("threshold_one_below", data, "short", 1, "1", 6, 168 + 133),
            case("threshold_met", data, "short", 1, "1", 6, 168 + 134),
            case("shortest_sequence", data, "short", 1, "3,2,1", 1, 150, 60, 20),
        ],
        blend=[
            blend(data, ["words", "short"], [2, 1], 60, 16, "100,0,0", 5),
            blend(data, ["large", "wide", "words", "short", "large", "words", "wide", "short", "bytes"],
                  [0.31, 0.07, 1.3, 0.11, 0.45, 0.2, 0.6, 0.9, 0.15], 150, 10, "100", 17),
            blend(data, ["wide", "large", "short"], [1, 1, 1], 31, 9, "75,25,0", 6),
            # Position 18 is another set than with weights normalised once.
            blend(data, ["words", "short", "large", "bytes", "wide"], [1, 2, 1, 1, 1], 60, 6, "100,0,0", 7),
            # With a weight, a single set is a blend: the surplus that is built makes a second epoch.
            blend(data, ["words"], [1.0], 52, 5, "100,0,0", 3),
            # A larger surplus makes one more epoch of the first set.
            blend(data, ["words", "short"], [2, 1], 60, 16, "100,0,0", 5, surplus=0.3),
        ],
        consumption=[],
        normalize=[dict(weights=w, normalized=normalized(w)) for w in weights],
        shuffles=[dict(seed=s, n=n, values=np.random.RandomState(s).permutation(n).tolist()) for s, n in ((1, 300), (4294967295, 129))],
        ramps=[ramp(16, 8, 300, 64, 30), ramp(2, 2, 100, 16, 40), ramp(1, 3, 7, 10, 12), ramp(4, 4, 97, 28, 25)],
    )
    with open(os.path.join(HERE, "expected.json"), "w") as f:
        f.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
