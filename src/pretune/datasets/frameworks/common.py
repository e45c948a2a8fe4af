"""Knobs that every framework has: batch, device layout, and what the trial program itself honours."""

from __future__ import annotations

from collections.abc import Mapping

from pretune.datasets.frameworks.base import KnobDeclaration

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def declare(*declarations: KnobDeclaration) -> Mapping[str, KnobDeclaration]:
    """The declarations by name."""
    return {each.name: each for each in declarations}


def inert(text: str, *backends: str) -> Mapping[str, str]:
    """The same reason for several backends."""
    return dict.fromkeys(backends, text)


def merged(*groups: Mapping[str, KnobDeclaration]) -> Mapping[str, KnobDeclaration]:
    """One mapping of all groups; a name is declared once."""
    both = {name: declaration for group in groups for name, declaration in group.items()}
    assert len(both) == sum(map(len, groups)), "a knob is declared twice"
    return both


def chosen(group: Mapping[str, KnobDeclaration], *names: str) -> Mapping[str, KnobDeclaration]:
    """Some declarations of a group."""
    return {name: group[name] for name in names}


LAYOUT = declare(
    KnobDeclaration("micro_batch", None, "Sequences per device in one forward and backward pass."),
    KnobDeclaration("accumulation", None, "Micro batches per optimizer step."),
    KnobDeclaration("dp", None, "Data-parallel replicas; derived from the devices and the other degrees."),
    KnobDeclaration("tp", 1, "Devices that share each layer's matrices (tensor parallelism)."),
    KnobDeclaration("pp", 1, "Pipeline stages."),
    KnobDeclaration("vp", 1, "Model chunks per pipeline stage (interleaved schedule)."),
    KnobDeclaration("cp", 1, "Devices that share each sequence (context parallelism)."),
    KnobDeclaration("ep", 1, "Devices that share the experts of a mixture-of-experts layer."),
    KnobDeclaration("sequence_parallel", False, "Split norms and dropout over the tensor-parallel group."),
)

PROGRAM = declare(
    KnobDeclaration(
        "activation_checkpointing",
        "none",
        "Recomputed in the backward pass: nothing, the attention ('selective'), or whole layers ('full').",
        free=True,
    ),
    KnobDeclaration(
        "precision", None, "Type of weights and activations; the workload's own unless set.", numerics=True
    ),
    KnobDeclaration("attention", "sdpa", "Attention kernel, by the trial program's name for it.", free=True),
    KnobDeclaration("compile", False, "Compile the model with torch.compile."),
    KnobDeclaration(
        "threads_per_rank",
        1,
        "Threads of each rank on the host (torchrun sets OMP_NUM_THREADS=1).",
        free=True,
    ),
)
