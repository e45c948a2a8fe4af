"""Writes ``docs/reference/knobs.md``: which knobs each framework has, what they are and where they count."""

from __future__ import annotations

from pathlib import Path

from pretune.datasets.frameworks import FRAMEWORKS, KnobDeclaration

PAGE = Path(__file__).parent / "reference" / "knobs.md"
HEAD = """# Knobs by framework

Made by `python docs/knobs.py` from what the frameworks declare. A dash: the framework derives the value,
or has none of its own. *Numerics*: the knob changes what is computed, so it is refused unless the job
says `allow_numerics: true`. A version: the first whose framework knows it, where that is known; an older
one that is installed beside pretune is refused.

`megatron` needs `command:`, since pretune's own trial program does not run it; of `fsdp` the program runs dp,
whole or hybrid sharded, and the rest needs `command:` too. Megatron-LM takes its arguments from the command
line, so a shell has to read them from their file; torchtitan takes the file:

```yaml
command: sh -c 'exec torchrun --nproc_per_node {devices_per_node} pretrain_gpt.py $(cat {megatron})'
command: torchrun --nproc_per_node {devices_per_node} -m torchtitan.train --job.config_file {train}
```

Any framework takes `env.NAME`, an environment variable of every rank, such as `env.NCCL_ALGO`,
`env.NCCL_PROTO`, `env.NCCL_MIN_NCHANNELS` or `env.NCCL_BUFFSIZE`: pretune sets it and judges nothing
about it. DeepSpeed's
MiCS is not here, because DeepSpeed 0.19.8 refuses it; `zero_hpz_partition_size`, or `dp_shard` of `fsdp`,
shards within a group.
"""


def summary() -> str:
    """Markdown: a row for each knob, its default in each framework that has it."""
    names = dict.fromkeys(name for one in FRAMEWORKS.values() for name in one.knobs)
    rows = [f"| knob | {' | '.join(FRAMEWORKS)} |", "| --- |" + " :-: |" * len(FRAMEWORKS)]
    for name in names:
        cells = [_default(one.knobs[name]) if name in one.knobs else "" for one in FRAMEWORKS.values()]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def table(framework: str) -> str:
    """Markdown: a row for each knob of one framework."""
    rows = ["| knob | default | what it is | values | notes |", "| --- | --- | --- | --- | --- |"]
    rows += [
        f"| `{name}` | {_default(knob)} | {knob.doc} | {_values(knob)} | {_notes(knob)} |"
        for name, knob in FRAMEWORKS[framework].knobs.items()
    ]
    return "\n".join(rows) + "\n"


def _default(knob: KnobDeclaration) -> str:
    return "—" if knob.default is None else f"`{str(knob.default).lower()}`"


def _values(knob: KnobDeclaration) -> str:
    if isinstance(knob.takes, tuple):
        return ", ".join(f"`{word}`" for word in knob.takes)
    return {bool: "true, false", int: "from 1", float: "above 0"}.get(knob.takes or str, "")


def _notes(knob: KnobDeclaration) -> str:
    stages = "ZeRO " + ", ".join(map(str, knob.zero_stages)) if len(knob.zero_stages) < 4 else ""
    since = f"since {knob.since}" if knob.since else ""
    idle = f"changes nothing on {', '.join(knob.inert)}" if knob.inert else ""
    return "; ".join(note for note in ("numerics" if knob.numerics else "", stages, since, idle) if note)


def page() -> str:
    """The whole page as it is now."""
    parts = [HEAD, summary(), *(f"## {name}\n\n{table(name)}" for name in FRAMEWORKS)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
