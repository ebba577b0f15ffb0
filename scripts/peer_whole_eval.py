#!/usr/bin/env python3
"""Runs the PyTorch DDP peer with an evaluation of the whole held-out part of the text, window after window, as ours is. The peer's
own takes 20 random batches: at micro batch 1 that is 20 windows, which differ from the rest of the text by more than hooks do.
usage: peer_whole_eval.py pytorch_ddp.py [the peer's options]"""
import sys

OLD = """            for k in range(20):
                x, y = batch(ev, ge)
"""
NEW = """            for k in range((len(ev) - 1) // T):
                x, y = ev[k * T:k * T + T][None], ev[k * T + 1:k * T + T + 1][None]
"""

if __name__ == "__main__":
    peer = sys.argv[1]
    with open(peer, encoding="utf-8") as f:
        text = f.read()
    if text.count(OLD) != 1:
        sys.exit(f"{peer}: its evaluation is not the one known here; mend OLD in {__file__}")
    sys.argv = sys.argv[1:]
    exec(compile(text.replace(OLD, NEW), peer, "exec"), {"__name__": "__main__", "__file__": peer})
