"""The keys of DeepSpeed 0.19.8's configuration; a test holds them against the library that is installed."""

from __future__ import annotations

SECTION = "zero_optimization"
SWITCHES = (
    *("contiguous_gradients", "reduce_scatter", "use_multi_rank_bucket_allreduce", "allgather_partitions"),
    *("overlap_comm", "compute_grad_norm", "load_from_fp32_weights", "elastic_checkpoint"),
    *("stage3_gather_16bit_weights_on_model_save", "stage3_use_all_reduce_for_fetch_params"),
    *("stage3_allgather_sequential", "ignore_unused_parameters", "legacy_stage1", "round_robin_gradients"),
    *("parameter_alignment", "zero_quantized_weights", "zero_quantized_nontrainable_weights"),
    *("zero_quantized_gradients", "memory_efficient_linear", "pipeline_loading_checkpoint"),
    *("override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks"),
    "save_muon_momentum_buffer_in_memory",
)
SIZES = (
    *("reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "stage3_prefetch_bucket_size"),
    *("stage3_param_persistence_threshold", "stage3_model_persistence_threshold"),
    *("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold"),
    "zero_hpz_partition_size",
)


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """DeepSpeed takes those names without their prefix too."""
    return tuple(name.removeprefix("stage3_") for name in names if name.startswith("stage3_"))


# of zero_optimization, by kind
ZERO = (
    {"stage": "stage"}
    | dict.fromkeys((*SWITCHES, *_short(SWITCHES)), "switch")
    | dict.fromkeys((*SIZES, *_short(SIZES)), "size")
    | dict.fromkeys(("offload_param", "offload_optimizer", "zenflow", "leaf_module"), "section")
)
DEPRECATED = {
    "cpu_offload": 'offload_optimizer: {"device": "cpu"}',
    "cpu_offload_param": 'offload_param: {"device": "cpu"}',
    "cpu_offload_use_pin_memory": "pin_memory in offload_optimizer or offload_param",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
REMOVED = {
    "nebula": "checkpoints are torch's own",
    "compression_training": "there is no successor",
    "amp": "use fp16, bf16 or torch_autocast",
    "quantize_training": "there is no successor",
    "sparse_gradients": "gradients are reduced dense",
    "eigenvalue": "there is no successor",
    "sparse_attention": "there is no successor",
    "elasticity": "state the batch",
    "graph_harvesting": "there is no successor",
    "curriculum_learning": "use data_efficiency.data_sampling.curriculum_learning",
    "progressive_layer_drop": "there is no successor",
    "zero_optimization.mics_shard_size": "zero_hpz_partition_size shards weights within a node",
    "zero_optimization.mics_hierarchical_params_gather": "there is no successor",
    "zero_optimization.zeropp_loco_param": "zero_quantized_gradients works without it",
}
TOP_LEVEL = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *(
        "managed_gradient_accumulation",
        "optimizer",
        "scheduler",
        "fp16",
        "bf16",
        "bfloat16",
        "torch_autocast",
    ),
    *("zero_optimization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
    *("gradient_clipping", "communication_data_type", "seq_parallel_communication_data_type"),
    *("prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op", "disable_allgather"),
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level"),
    *("disable_python_gc", "dataloader_drop_last", "vocabulary_size", "use_data_before_expert_parallelism"),
    *("data_types", "checkpoint", "activation_checkpointing", "flops_profiler", "comms_logger", "autotuning"),
    *("tensorboard", "wandb", "csv_monitor", "comet", "data_efficiency", "aio"),
    *("hybrid_engine", "pipeline", "compile", "timers", "tensor_parallel", "expert_parallel"),
    *("sequence_parallel_size", "weight_quantization", "datastates_ckpt"),
)
# numbers that must be whole
WHOLE = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("autotp_size", "sequence_parallel_size", *SIZES, *_short(SIZES)),
}
