"""Runs a training script as it is, and notes when each of its optimizer steps ended.

    STOPWATCH=sheet.json torchrun --nproc_per_node 2 stopwatch.py train.py --its --own --options

It knows nothing of pretune: torch's own hook after every optimizer's step tells the time. The sheet has
``edits`` (patterns of the script, each replaced by a text before it runs), ``pauses`` (functions that are no
part of a step, as ``module:Class.method``; an edit may say ``with left_out():``) and ``out``, which rank 0
writes.
"""

import contextlib
import functools
import importlib
import json
import os
import re
import runpy
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook


class Stopwatch:
    """``ends``: seconds at the end of each optimizer step, less all pauses before."""

    def __init__(self):
        self.ends, self.paused_s, self.depth = [], 0.0, 0

    def stepped(self, *_):
        self.ends.append(time.perf_counter() - self.paused_s)

    def leave_out(self, name):
        module, _, path = name.partition(":")
        *outer, last = path.split(".")
        owner = functools.reduce(getattr, outer, importlib.import_module(module))
        original = getattr(owner, last)

        @functools.wraps(original)
        def timed(*rest, **more):
            with self.left_out():
                return original(*rest, **more)

        setattr(owner, last, timed)

    @contextlib.contextmanager
    def left_out(self):
        began, self.depth = time.perf_counter(), self.depth + 1
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.paused_s += time.perf_counter() - began


def main():
    sheet = json.loads(Path(os.environ["STOPWATCH"]).read_text())
    watch, script = Stopwatch(), Path(sys.argv[1])
    register_optimizer_step_post_hook(watch.stepped)
    for name in sheet["pauses"]:
        watch.leave_out(name)
    text = script.read_text()
    for old, new in sheet["edits"]:
        text, count = re.subn(old, new.replace("\\", r"\\"), text)
        if not count:
            raise SystemExit(f"{script}: has nowhere: {old}")
    edited = script.with_name(f".{script.stem}.{os.environ['RANK']}.py")
    edited.write_text(text)
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[0] = str(script.parent)
    try:
        runpy.run_path(str(edited), {"left_out": watch.left_out}, run_name="__main__")
    finally:
        edited.unlink()
        if os.environ["RANK"] == "0":
            Path(sheet["out"]).write_text(json.dumps(watch.ends))


main()
