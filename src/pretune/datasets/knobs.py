"""The knobs: everything that may differ between two trials of one workload on one platform."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, PositiveInt

from pretune.datasets.spec import Spec
from pretune.datasets.stated import Precision

KnobValue = bool | int | float | str


class Knobs(Spec):
    """One configuration. None means "not set": the framework's own default, or unknown in an imported trial.

    Names are DeepSpeed's where DeepSpeed has the knob; bucket sizes count elements,
    not bytes. Any further field is a knob that the user declared; ``env.NAME`` sets an
    environment variable in every rank.
    """

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())
    __pydantic_extra__: dict[str, KnobValue | None]

    micro_batch: PositiveInt | None = None
    accumulation: PositiveInt | None = None
    dp: PositiveInt | None = None
    tp: PositiveInt | None = None
    pp: PositiveInt | None = None
    vp: PositiveInt | None = None
    cp: PositiveInt | None = None
    ep: PositiveInt | None = None
    sequence_parallel: bool | None = None
    zero_stage: Literal[0, 1, 2, 3] | None = None
    reduce_bucket_size: PositiveInt | None = None
    allgather_bucket_size: PositiveInt | None = None
    overlap_comm: bool | None = None
    reduce_scatter: bool | None = None
    allgather_partitions: bool | None = None
    use_multi_rank_bucket_allreduce: bool | None = None
    contiguous_gradients: bool | None = None
    stage3_prefetch_bucket_size: PositiveInt | None = None
    stage3_param_persistence_threshold: int | None = None
    stage3_max_live_parameters: PositiveInt | None = None
    communication_data_type: Literal["fp32", "bf16", "fp16"] | None = None
    offload_optimizer: Literal["none", "cpu"] | None = None
    activation_checkpointing: Literal["none", "selective", "full"] | None = None
    precision: Precision | None = None
    attention: str | None = None
    compile: bool | None = None
    threads_per_rank: PositiveInt | None = None

    def settings(self) -> dict[str, KnobValue]:
        """The knobs that are set, by name, in declared order."""
        return {name: value for name, value in self.model_dump().items() if value is not None}

    def environment(self) -> dict[str, str]:
        """The environment variables that ``env.NAME`` knobs set."""
        return {
            name.removeprefix("env."): str(value)
            for name, value in self.settings().items()
            if name.startswith("env.")
        }
