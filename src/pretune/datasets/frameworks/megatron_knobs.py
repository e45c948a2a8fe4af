"""What Megatron-LM has to tune beside the layout.

``since`` is the first minor release of megatron-core (from 0.4 on) whose parser knows the option.
"""

from __future__ import annotations

from pretune.datasets.frameworks.base import KnobDeclaration
from pretune.datasets.frameworks.common import declare

DATA_PARALLEL = declare(
    KnobDeclaration(
        "zero_stage", 0, "1 shards optimizer states over dp and cp (--use-distributed-optimizer); 0 does not."
    ),
    KnobDeclaration(
        "overlap_comm", False, "Reduce gradients during the backward pass (--overlap-grad-reduce)."
    ),
    KnobDeclaration(
        "overlap_param_gather",
        False,
        "Gather updated weights during the next forward pass.",
        takes=bool,
    ),
    KnobDeclaration(
        "reduce_bucket_size",
        None,
        "Gradient elements reduced at a time when that overlaps; the larger of 4e7 and 1e6 x dp unless set.",
        since="0.7.0",
    ),
    KnobDeclaration(
        "communication_data_type",
        None,
        "Type that gradients are reduced in: fp32 unless set, or bf16 (--grad-reduce-in-bf16).",
        numerics=True,
        since="0.12.0",
    ),
    KnobDeclaration(
        "offload_optimizer", "none", "Where optimizer states live and the step runs.", since="0.12.0"
    ),
)
MODEL_PARALLEL = declare(
    KnobDeclaration(
        "expert_tp",
        None,
        "Devices that share each expert's matrices; tp unless set.",
        takes=int,
        since="0.10.0",
    ),
    KnobDeclaration(
        "tp_comm_overlap", False, "Overlap tensor-parallel collectives with products.", takes=bool
    ),
    KnobDeclaration(
        "overlap_p2p_comm",
        True,
        "Overlap what interleaved pipeline stages send each other.",
        takes=bool,
        since="0.10.0",
    ),
    KnobDeclaration(
        "cp_comm_type",
        "p2p",
        "How context-parallel ranks exchange keys and values.",
        takes=("p2p", "all_gather", "a2a"),
        since="0.10.0",
    ),
    KnobDeclaration(
        "moe_token_dispatcher",
        "allgather",
        "How tokens reach their experts.",
        takes=("allgather", "alltoall", "flex"),
        free=True,
        since="0.6.0",
    ),
    KnobDeclaration(
        "moe_grouped_gemm", False, "All experts of a rank in one kernel.", takes=bool, since="0.5.0"
    ),
)
COMPUTE = declare(
    KnobDeclaration(
        "activation_checkpointing",
        "none",
        "Recomputed in the backward pass: nothing, the attention ('selective'), or whole layers ('full').",
    ),
    KnobDeclaration(
        "recompute_method",
        "uniform",
        "Full recomputation of all layers in equal pieces, or of the first layers of each stage ('block').",
        takes=("uniform", "block"),
    ),
    KnobDeclaration(
        "recompute_num_layers", 1, "Layers of a piece, or that are recomputed in each stage.", takes=int
    ),
    KnobDeclaration(
        "attention",
        "auto",
        "Attention backend.",
        takes=("auto", "flash", "fused", "unfused", "local"),
        free=True,
        since="0.11.0",
    ),
    KnobDeclaration(
        "cross_entropy_loss_fusion",
        False,
        "The loss in one kernel.",
        takes=bool,
        free=True,
        since="0.8.0",
    ),
)
