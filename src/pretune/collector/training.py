"""Build what a trial trains: process group, model, data and engine, for real, from its TrialSpec.

Trials train on synthetic tokens, or on the file that the environment variable ``PRETUNE_TOKENS`` names
(:class:`~pretune.collector.data.TokenFile` says in which form). Set it where pretune is started: the
launchers hand it on, and every host must see the file.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn

from pretune.collector.data import Layout, SyntheticTokens, TokenFile, TokenSource, micro_batches
from pretune.collector.process import TOKENS
from pretune.collector.transformer import Execution, Transformer, check
from pretune.datasets.frameworks import framework
from pretune.datasets.knobs import Knobs
from pretune.datasets.trial import TrialSpec
from pretune.errors import InputError

Batches = Iterator[tuple[Tensor, Tensor]]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CLIP_NORM = 1.0  # DeepSpeed clips to this unless told otherwise; the frameworks train alike
# waits for the device at each call, so never in a trial that measures throughput
_COMMS_LOGGER = {"enabled": True, "prof_all": True, "verbose": False, "debug": False}
_REFUSALS = (AssertionError, ValueError, NotImplementedError)  # how deepspeed says no to a configuration


def load(name: str) -> None:
    """Import all that trials of the framework of that name run on, which takes seconds.

    Before memory is counted: an optimizer's first step would import torch's compiler, 100 MiB.
    """
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401

    if name == "deepspeed":
        import deepspeed  # noqa: F401


def resolve(spec: TrialSpec) -> TrialSpec:
    """The same trial with every knob filled in; raises :class:`InputError` when it cannot run here."""
    knobs = framework(spec.framework).resolve(spec.workload, spec.platform, spec.knobs)
    check(spec.workload.model, _execution(knobs))
    return spec.model_copy(update={"knobs": knobs})


def join(spec: TrialSpec, digest: str) -> torch.device:
    """Set threads and device, join the process group, and see that all ranks read the same files."""
    if spec.knobs.threads_per_rank:
        torch.set_num_threads(spec.knobs.threads_per_rank)
    device = torch.device("cpu")
    if spec.platform.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if spec.framework == "deepspeed":
        import deepspeed

        deepspeed.init_distributed(dist_backend=spec.platform.backend, verbose=False)
    else:
        distributed.init_process_group(spec.platform.backend)
    if distributed.get_world_size() != spec.platform.devices:
        raise InputError(
            f"platform: has {spec.platform.devices} devices, but {distributed.get_world_size()} ranks run; "
            "start one rank per device"
        )
    read: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(read, {"spec.json": digest, TOKENS: os.environ.get(TOKENS)})
    for name in read[0]:
        if len({each[name] for each in read}) > 1:
            raise InputError(f"{name}: differs between the ranks; give every host the same file")
    torch.manual_seed(spec.seed)
    return device


def leave() -> None:
    """Destroy the process group: the good end, when every rank comes here."""
    distributed.destroy_process_group()


class Training(ABC):
    """An engine that is ready to train: ``window`` runs one accumulation window, optimizer step included."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.accumulation = spec.knobs.accumulation or 1

    @abstractmethod
    def window(self, batches: Batches) -> Tensor:
        """Train on the next ``accumulation`` micro batches; returns their mean loss, on the device."""

    def batches(self) -> Batches:
        """(tokens, targets) of this rank, each (micro_batch, sequence_length), on the device."""
        layout = Layout(
            self.spec.knobs.micro_batch or 1,
            self.accumulation,
            distributed.get_world_size(),
            distributed.get_rank(),
        )
        for ids in micro_batches(token_source(self.spec), layout):
            rows = torch.from_numpy(ids).to(self.device, non_blocking=True)
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class DeepSpeedTraining(Training):
    """``deepspeed.initialize`` with the framework's ``ds_config.json``."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        import deepspeed

        super().__init__(spec, device)
        config = json.loads(_files(spec)["ds_config.json"])
        if spec.purpose == "diagnostic":
            config["comms_logger"] = _COMMS_LOGGER
        try:
            sharded = spec.knobs.zero_stage == 3
            with deepspeed.zero.Init(config_dict_or_path=config) if sharded else nullcontext():
                model = Transformer(spec.workload.model, _execution(spec.knobs))
            parameters = [p for p in model.parameters() if p.requires_grad]
            self.engine, self.optimizer, *_ = deepspeed.initialize(
                model=model, model_parameters=parameters, config=config
            )
        except _REFUSALS as error:
            raise InputError(f"deepspeed refuses the configuration: {error}") from error
        if spec.knobs.compile:
            self.engine.compile()

    def window(self, batches: Batches) -> Tensor:
        total = torch.zeros((), device=self.device)
        for _ in range(self.accumulation):
            loss = self.engine(*next(batches))
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        return total / self.accumulation


class DDPTraining(Training):
    """DistributedDataParallel; gradients are exchanged in a window's last micro batch only."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        super().__init__(spec, device)
        model = Transformer(spec.workload.model, _execution(spec.knobs))
        model = model.to(device, _DTYPES[spec.knobs.precision or spec.workload.precision])
        arguments = json.loads(_files(spec)["ddp.json"])
        ids = [device.index] if device.type == "cuda" else None
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=ids, **arguments)
        self.model, self.forward = ddp, torch.compile(ddp) if spec.knobs.compile else ddp
        if spec.workload.optimizer == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        else:
            self.optimizer = torch.optim.AdamW(
                model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1
            )

    def window(self, batches: Batches) -> Tensor:
        total = torch.zeros((), device=self.device)
        for micro in range(self.accumulation):
            last = micro == self.accumulation - 1
            with nullcontext() if last else self.model.no_sync():
                loss = self.forward(*next(batches)) / self.accumulation
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


ENGINES: dict[str, type[Training]] = {"deepspeed": DeepSpeedTraining, "torch_ddp": DDPTraining}


def build(spec: TrialSpec, device: torch.device) -> Training:
    """The training of a resolved spec. Every rank calls it, after :func:`join`."""
    return ENGINES[spec.framework](spec, device)


def token_source(spec: TrialSpec) -> TokenSource:
    """The file that ``PRETUNE_TOKENS`` names, or synthetic tokens."""
    vocabulary, length = spec.workload.model.vocabulary, spec.workload.sequence_length
    path = os.environ.get(TOKENS)
    return TokenFile(path, vocabulary, length) if path else SyntheticTokens(vocabulary, length, spec.seed)


def _execution(knobs: Knobs) -> Execution:
    return Execution(
        attention=knobs.attention or "sdpa",
        checkpointing=knobs.activation_checkpointing or "none",
        reentrant=knobs.zero_stage == 3,
    )


def _files(spec: TrialSpec) -> dict[str, str]:
    return framework(spec.framework).files(spec.workload, spec.platform, spec.knobs)
