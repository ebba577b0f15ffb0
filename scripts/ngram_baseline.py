#!/usr/bin/env python3
"""Interpolated byte bigram and trigram: what a model has to beat. Counts on one .bin/.idx pair, evaluates on another.

    scripts/ngram_baseline.py TRAIN_PREFIX VALID_PREFIX      prints "bigram 2.7012 trigram 2.2541" (nats per byte)

P(c | a b) = l3 f(c | a b) + l2 f(c | b) + l1 f(c) + l0 / 256 with relative frequencies f of the training part; the weights l are
found by expectation maximisation on the training part's last 5 %, counted on the first 95 %, and then used with all counts.
"""
import math
import sys
from array import array
from collections import Counter


def read_tokens(prefix):
    with open(prefix + ".idx", "rb") as f:
        head = f.read(34)
    if len(head) < 34 or head[:9] != b"MMIDIDX\x00\x00":
        sys.exit(f"error: {prefix}.idx is no index of token data")
    code = {1: "B", 8: "H", 4: "i"}.get(head[17])
    if code is None:
        sys.exit(f"error: {prefix}.idx: token type {head[17]} is not for bytes")
    tokens = array(code)
    with open(prefix + ".bin", "rb") as f:
        tokens.frombytes(f.read())
    return tokens


def triples(tokens):
    """How often each (a, b, c) in a row occurs, as one number each; zeros stand in front of the text."""
    before = array(tokens.typecode, [0, 0]) + tokens
    return Counter(a << 18 | b << 9 | c for a, b, c in zip(before, before[1:], tokens))


def summed(counts, part):
    """The counts of a part of each number."""
    out = Counter()
    for key, n in counts.items():
        out[part(key)] += n
    return out


def counts(tokens):
    three = triples(tokens)
    two = summed(three, lambda key: key & 0x3FFFF)
    return summed(two, lambda key: key & 511), two, three, summed(two, lambda key: key >> 9), summed(three, lambda key: key >> 9), len(tokens)


def events(tokens, table):
    """For every token the four component probabilities, highest order first; equal tuples are merged with a count."""
    one, two, three, ctx1, ctx2, total = table
    result = []
    for key, n in triples(tokens).items():
        c, pair, context = key & 511, key & 0x3FFFF, key >> 9
        p3 = three[key] / ctx2[context] if ctx2[context] else 0.0
        p2 = two[pair] / ctx1[pair >> 9] if ctx1[pair >> 9] else 0.0
        result.append((n, (p3, p2, one[c] / total, 1.0 / 256)))
    return result


def fit(evts, use):
    weights = [1.0 / sum(use) if u else 0.0 for u in use]
    for _ in range(30):
        share = [0.0] * 4
        for n, p in evts:
            mass = [w * q for w, q in zip(weights, p)]
            z = n / sum(mass)
            for i in range(4):
                share[i] += mass[i] * z
        total = sum(share)
        weights = [s / total for s in share]
    return weights


def nats(evts, weights):
    return -sum(n * math.log(sum(w * q for w, q in zip(weights, p))) for n, p in evts) / sum(n for n, _ in evts)


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 64
    train, valid = read_tokens(sys.argv[1]), read_tokens(sys.argv[2])
    cut = len(train) * 19 // 20
    held_in = events(train[cut:], counts(train[:cut]))
    test = events(valid, counts(train))
    bigram = nats(test, fit(held_in, (0, 1, 1, 1)))
    trigram = nats(test, fit(held_in, (1, 1, 1, 1)))
    print(f"bigram {bigram:.4f} trigram {trigram:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
