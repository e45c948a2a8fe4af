"""What FSDP2, as torchtitan drives it, has to tune beside the layout."""

from __future__ import annotations

from pretune.datasets.frameworks.base import KnobDeclaration
from pretune.datasets.frameworks.common import PROGRAM, chosen, declare, merged

# schedule -> model chunks per rank that it takes: the least, the most (torch.distributed.pipelining)
SCHEDULES = {
    "1F1B": (1, 1),
    "GPipe": (1, 1),
    "Interleaved1F1B": (2, None),
    "InterleavedZeroBubble": (2, None),
    "LoopedBFS": (2, None),
    "ZBVZeroBubble": (2, 2),
    "DualPipeV": (2, 2),
}

SHARDING = declare(
    KnobDeclaration("zero_stage", None, "3 where weights are sharded, 0 where dp only replicates; follows."),
    KnobDeclaration(
        "dp_shard", None, "Replicas that share one copy of the states; all of dp unless set.", takes=int
    ),
    KnobDeclaration(
        "dp_replicate", None, "Copies of the states: above 1 with dp_shard is hybrid.", takes=int
    ),
    KnobDeclaration(
        "reshard_after_forward",
        "default",
        "Drop gathered weights after the forward pass and gather them again; by default without a pipeline.",
        takes=("default", "always", "never"),
    ),
    KnobDeclaration(
        "communication_data_type", None, "Type that gradients are reduced in: always fp32.", numerics=True
    ),
    KnobDeclaration(
        "offload_optimizer", "none", "Keep weights, gradients and optimizer states on the host; one switch."
    ),
)
PARALLEL = declare(
    KnobDeclaration("expert_tp", 1, "Devices that share each expert's matrices: 1 or tp.", takes=int),
    KnobDeclaration("async_tp", False, "Overlap tensor-parallel collectives with products.", takes=bool),
    KnobDeclaration(
        "pipeline_schedule",
        None,
        "1F1B, and with model chunks Interleaved1F1B, unless set.",
        takes=(*SCHEDULES,),
    ),
    KnobDeclaration(
        "cp_rotate_method",
        "allgather",
        "How context-parallel ranks exchange keys and values.",
        takes=("allgather", "alltoall"),
    ),
)
COMPUTE = merged(
    declare(
        KnobDeclaration(
            "activation_checkpointing",
            "selective",
            "Recomputed in the backward pass: nothing, some layers or operations, or all layers ('full').",
        ),
        KnobDeclaration("selective_every", 2, "Selective: every so many layers is recomputed.", takes=int),
        KnobDeclaration(
            "selective_operations", False, "Selective: cheap operations of all layers instead.", takes=bool
        ),
        KnobDeclaration(
            "float8_recipe",
            "tensorwise",
            "Precision fp8: what shares a scale.",
            numerics=True,
            takes=("tensorwise", "rowwise", "rowwise_with_gw_hp"),
        ),
        KnobDeclaration(
            "float8_all_gather", False, "Precision fp8: gather weights in 8 bits.", numerics=True, takes=bool
        ),
        KnobDeclaration(
            "optimizer_kernel",
            "fused",
            "How the optimizer steps.",
            takes=("fused", "foreach", "for-loop"),
            free=True,
        ),
    ),
    chosen(PROGRAM, "precision"),
    declare(KnobDeclaration("compile", False, "Compile each layer and the loss with torch.compile.")),
)
