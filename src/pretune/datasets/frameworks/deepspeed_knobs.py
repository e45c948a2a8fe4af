"""What DeepSpeed 0.19.8 has to tune beside the layout. ``since`` is its first release that knows the key.

MiCS (``mics_shard_size``) is not here: 0.19.8 refuses it.
"""

from __future__ import annotations

from pretune.datasets.frameworks.base import KnobDeclaration
from pretune.datasets.frameworks.common import declare, inert

_BUCKET = 500_000_000

ZERO = declare(
    KnobDeclaration(
        "zero_stage", 0, "Sharded over dp: nothing; optimizer states; gradients too; weights too."
    ),
    KnobDeclaration(
        "reduce_bucket_size",
        _BUCKET,
        "Gradient elements reduced at a time.",
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "allgather_bucket_size",
        _BUCKET,
        "Weight elements gathered at a time after the step.",
        inert=inert("whole partitions are gathered by all_gather_into_tensor, unsharded", "gloo", "nccl"),
        zero_stages=(1, 2),
        free=True,
    ),
    KnobDeclaration(
        "overlap_comm",
        None,
        "Reduce gradients while the backward pass runs; on by default at ZeRO-3 only.",
        inert=inert("the CPU accelerator has no streams to overlap on", "gloo"),
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "reduce_scatter",
        True,
        "Reduce-scatter the gradients at ZeRO-3, else all-reduce them. At ZeRO-1 and ZeRO-2 it changes "
        "nothing on gloo: the same all-reduce either way.",
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "allgather_partitions",
        True,
        "Gather updated weights in one collective instead of broadcasts.",
        inert=inert("the flag is read and then not used by ZeRO-1, ZeRO-2 and ZeRO-3", "gloo", "nccl"),
        free=True,
    ),
    KnobDeclaration(
        "use_multi_rank_bucket_allreduce",
        True,
        "All-reduce a bucket of several ranks' gradients, else reduce to each owner.",
        zero_stages=(1, 2),
        free=True,
        since="0.12.4",
    ),
    KnobDeclaration(
        "contiguous_gradients",
        True,
        "Copy gradients into one buffer of reduce_bucket_size elements as they come. On gloo it changes "
        "nothing, except that off it makes ZeRO-3 reduce-scatter even with reduce_scatter off.",
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "stage3_prefetch_bucket_size",
        50_000_000,
        "Weight elements fetched ahead.",
        zero_stages=(3,),
        free=True,
    ),
    KnobDeclaration(
        "stage3_param_persistence_threshold",
        100_000,
        "Weights up to this size stay whole.",
        zero_stages=(3,),
    ),
    KnobDeclaration(
        "stage3_max_live_parameters",
        1_000_000_000,
        "Weight elements kept gathered at most.",
        zero_stages=(3,),
        free=True,
    ),
    KnobDeclaration(
        "communication_data_type",
        None,
        "Type that gradients are reduced in; that of the weights unless set.",
        numerics=True,
    ),
    KnobDeclaration("offload_optimizer", "none", "Where optimizer states live and the step runs."),
    KnobDeclaration(
        "torch_adam",
        None,
        "Step with torch.optim, not DeepSpeed's compiled AdamW; default on gloo only.",
        takes=bool,
    ),
)

# off in most jobs: a configuration says nothing of these at their defaults
RARE = declare(
    KnobDeclaration(
        "zero_hpz_partition_size",
        1,
        "Ranks that also share a second copy of the weights, gathered from in the backward pass (hpZ).",
        zero_stages=(3,),
        takes=int,
        rare=True,
        since="0.10.0",
    ),
    KnobDeclaration(
        "stage3_max_reuse_distance",
        1_000_000_000,
        "Weights used again within so many elements stay gathered.",
        zero_stages=(3,),
        takes=int,
        rare=True,
    ),
    KnobDeclaration(
        "sub_group_size",
        1_000_000_000,
        "Weight elements that the optimizer steps at a time.",
        zero_stages=(3,),
        takes=int,
        rare=True,
    ),
    KnobDeclaration(
        "zero_quantized_weights",
        False,
        "Gather weights in 8 bits (qwZ).",
        numerics=True,
        zero_stages=(3,),
        takes=bool,
        rare=True,
        since="0.10.0",
    ),
    KnobDeclaration(
        "zero_quantized_gradients",
        False,
        "Reduce gradients in 4 bits, by all-to-alls (qgZ).",
        numerics=True,
        zero_stages=(3,),
        takes=bool,
        rare=True,
        since="0.10.0",
    ),
    KnobDeclaration(
        "round_robin_gradients",
        False,
        "Deal gradients out to ranks in turn, so that all copy to the host at once when offloading.",
        zero_stages=(1, 2),
        takes=bool,
        rare=True,
    ),
    KnobDeclaration(
        "offload_param",
        "none",
        "Where weights live between their uses.",
        zero_stages=(3,),
        takes=("none", "cpu"),
        rare=True,
    ),
    KnobDeclaration(
        "partition_activations",
        False,
        "Split what DeepSpeed's own activation checkpointing keeps over tensor-parallel ranks.",
        takes=bool,
        rare=True,
    ),
)
