"""dp, tp and pp in the trial program: every layout trains the same model on the same batches, for real.

The trials run on four gloo ranks; what they are held against is a loop of a few lines on one.
"""

import itertools
import time

import pytest
import torch

from pretune.collector.data import SyntheticTokens
from pretune.collector.launchers.hosts import LocalLauncher
from pretune.collector.training import base
from pretune.collector.transformer import Execution, Transformer
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, TrialSpec, Workload

GPT = ModelSpec(name="gpt", layers=4, hidden_size=128, heads=4, vocabulary=256, max_positions=32)
LLAMA = ModelSpec(
    name="llama",
    layers=4,
    hidden_size=128,
    heads=4,
    kv_heads=2,
    ffn_size=352,
    vocabulary=256,
    gated_mlp=True,
    tied_embeddings=False,
    positions="rotary",
    norm="rmsnorm",
)
WINDOWS = Measure(
    min_warmup_windows=2,
    max_warmup_windows=2,
    min_windows=4,
    max_windows=4,
    max_seconds=60.0,
    checkpoint_steps=5,  # which changes nothing of what is learned
)
SEQUENCES, LENGTH = 16, 32
PLATFORM = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=4, backend="gloo")


def case(framework="deepspeed", model=GPT, precision="fp32", **knobs):
    workload = Workload(
        model=model, sequence_length=LENGTH, global_batch_tokens=SEQUENCES * LENGTH, precision=precision
    )
    return TrialSpec(
        trial_id=f"t{next(NUMBERS)}",
        framework=framework,
        workload=workload,
        platform=PLATFORM,
        knobs=Knobs(**{"micro_batch": 2} | knobs),
        measure=WINDOWS,
    )


NUMBERS = itertools.count()
MIXED = [
    case(dp=2, tp=2, zero_stage=1),
    case(tp=2, pp=2, activation_checkpointing="full"),
]
MORE = [
    case(dp=2, pp=2, zero_stage=1),
    case(model=LLAMA, tp=2, pp=2, activation_checkpointing="full"),
    *(case(dp=2, tp=2, zero_stage=stage) for stage in (0, 2, 3)),
    case(dp=2, tp=2, zero_stage=2, offload_optimizer="cpu", activation_checkpointing="selective"),
    case(dp=2, pp=2, zero_stage=1, offload_optimizer="cpu"),
    case(tp=4, zero_stage=3, micro_batch=8, attention="eager"),
    case(model=LLAMA, pp=4),
    case(tp=2, pp=2, zero_stage=1),
    case(tp=2, pp=2, precision="bf16"),
    case(dp=2, tp=2, precision="bf16", zero_stage=1),
]


def name(spec):
    return " ".join(f"{name}={value}" for name, value in spec.knobs.settings().items())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pytest.importorskip("deepspeed")
    with LocalLauncher(4, tmp_path_factory.mktemp("layouts"), warm=True) as launcher:

        def one(spec):
            handle = launcher.submit(spec)
            while (trial := launcher.poll(handle)) is None:
                time.sleep(0.05)
            assert trial.ok, trial.cause
            return trial

        yield one


def alone(workload, windows):
    """The loss of the last of so many optimizer steps of one rank, in plain torch."""
    torch.manual_seed(0)
    model = Transformer(workload.model, Execution())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    source = SyntheticTokens(workload.model.vocabulary, LENGTH, seed=0)
    for window in range(windows):
        rows = torch.from_numpy(source.sequences(window * SEQUENCES, SEQUENCES))
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def agrees(spec, trial):
    windows = trial.warmup_windows + len(trial.window_times_s)
    tolerance = 2e-2 if spec.workload.precision == "bf16" else 1e-4
    assert windows == 6
    assert trial.loss_last == pytest.approx(alone(spec.workload, windows), abs=tolerance)
    assert trial.loss_last < trial.loss_first
    tokens = SEQUENCES * LENGTH * len(trial.window_times_s)
    assert trial.tokens_per_s == pytest.approx(tokens / sum(trial.window_times_s))


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("spec", MIXED, ids=name)
def test_a_mixed_layout_learns_what_one_rank_learns(run, spec):
    agrees(spec, run(spec))


@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("spec", MORE, ids=name)
def test_every_layout_learns_what_one_rank_learns(run, spec):
    agrees(spec, run(spec))


@pytest.mark.long
@pytest.mark.timeout(280)
def test_slices_and_stages_hold_a_share_of_the_model(run):
    """Weights, gradients and Adam's two moments in fp32; what is not split is small in this model."""
    wide = LLAMA.model_copy(update={"layers": 8, "hidden_size": 384, "kv_heads": 4, "ffn_size": 1024})
    whole, *shares = (
        run(case(model=wide, **degrees)).peak_memory_device_bytes
        for degrees in ({"dp": 4}, {"tp": 4}, {"pp": 4}, {"tp": 2, "pp": 2})
    )
    states = 4 * 4 * wide.parameters
    assert whole > states
    assert all(whole - share == pytest.approx(0.75 * states, rel=0.35) for share in shares)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_only_replicas_split_the_batch(monkeypatch, tp, pp):
    """The ranks of a replica read the same, and all replicas together read the global batch once."""

    class Reader(base.Training):
        def window(self, batches):
            raise NotImplementedError

        save = window

    dp = 8 // tp // pp
    spec = case(tp=tp, pp=pp, dp=dp, accumulation=8 // dp)
    read = []
    for rank in range(8):
        monkeypatch.setattr(base.distributed, "get_rank", lambda rank=rank: rank)
        batches = Reader(spec, torch.device("cpu")).batches()
        tokens = torch.cat([next(batches)[0] for _ in range(8 // dp)])
        read.append({tuple(row.tolist()) for row in tokens})
    whole = SyntheticTokens(GPT.vocabulary, LENGTH, seed=0).sequences(0, SEQUENCES)
    assert set.union(*read) == {tuple(row[:-1]) for row in whole.tolist()}
    for rank, rows in enumerate(read):
        replica = rank // tp % dp
        assert rows == read[replica * tp]
        assert all(rows.isdisjoint(read[other * tp]) for other in range(dp) if other != replica)


@pytest.mark.parametrize("spec", [GPT, LLAMA])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_stages_one_after_another_are_the_model(spec, stages):
    torch.manual_seed(3)
    whole = Transformer(spec)
    parts = []
    for stage in range(stages):
        torch.manual_seed(3)
        parts.append(Transformer(spec, Execution(), stage, stages))
    x = tokens = torch.randint(spec.vocabulary, (2, 12))
    for part in parts:
        x = part(x)
    assert torch.equal(x, whole(tokens))
    assert [w.numel() for w in parts[0].parameters()] == spec.weight_sizes_of_rank(pp=stages)
    held = sum(weight.numel() for part in parts for weight in part.parameters())
    twice = spec.vocabulary * spec.hidden_size if spec.tied_embeddings else 0  # on the first and the last
    assert held == spec.parameters + twice
