"""Which configurations are legal, what is said of the others, and what the legal ones become."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.datasets import Accelerator, Knobs, Platform, Workload
from pretune.datasets.frameworks import FRAMEWORKS, Framework, framework
from pretune.datasets.frameworks.legality import layout_problems
from pretune.datasets.presets import model
from pretune.errors import IllegalKnobs, InputError

CPU = Accelerator(name="cpu")
TWO = Platform(name="two", accelerator=CPU, devices_per_node=2, backend="gloo")
EIGHT = Platform(name="eight", accelerator=CPU, devices_per_node=4, nodes=2, backend="nccl")
JOB = Workload(model=model("gpt-tiny"), sequence_length=128, global_batch_tokens=128 * 16, precision="fp32")
DEEPSPEED = framework("deepspeed")
DDP = framework("torch_ddp")


def said(knobs: Knobs, one: Framework = DEEPSPEED, platform: Platform = TWO) -> list[str]:
    return [str(problem) for problem in one.refusals(JOB, platform, knobs)]


# -- the identities -------------------------------------------------------------------
@pytest.mark.parametrize("one", FRAMEWORKS.values(), ids=FRAMEWORKS)
@given(
    micro=st.none() | st.integers(1, 20),
    accumulation=st.none() | st.integers(1, 20),
    dp=st.none() | st.integers(1, 10),
    devices=st.integers(1, 8),
)
def test_what_is_legal_satisfies_the_identities(
    one: Framework, micro: int | None, accumulation: int | None, dp: int | None, devices: int
) -> None:
    """For any three of them: legal exactly when whole numbers exist, and then they hold."""
    platform = TWO.model_copy(update={"devices_per_node": devices})
    knobs = Knobs(micro_batch=micro, accumulation=accumulation, dp=dp)
    possible = [
        (m, a)
        for m in range(1, 17)
        for a in range(1, 17)
        if m * a * devices == 16
        and micro in (None, m)
        and accumulation in (None, a)
        and dp in (None, devices)
    ]
    if not possible:
        with pytest.raises(IllegalKnobs) as caught:
            one.resolve(JOB, platform, knobs, own_script=True)
        assert {problem.field for problem in caught.value.problems} <= {"micro_batch", "accumulation", "dp"}
        return
    full = one.resolve(JOB, platform, knobs, own_script=True)
    assert (full.micro_batch, full.accumulation) in possible
    assert full.dp == devices
    assert one.resolve(JOB, platform, full, own_script=True) == full


@pytest.mark.parametrize("one", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_the_nearest_values_it_names_are_legal(one: Framework) -> None:
    for knobs in (Knobs(micro_batch=3), Knobs(micro_batch=3, accumulation=3), Knobs(accumulation=5, dp=2)):
        (problem,) = one.problems(JOB, TWO, knobs)
        for value in problem.nearest:
            repaired = knobs.model_copy(update={problem.field: value})
            if problem.field == "micro_batch" and knobs.accumulation:
                repaired = repaired.model_copy(update={"accumulation": None})
            assert one.problems(JOB, TWO, repaired) == []


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            Knobs(micro_batch=3),
            "micro_batch: micro_batch 3 x accumulation 2 x dp 2 = 12, but the global batch is 16 sequences; "
            "nearest: 2, 4",
        ),
        (
            Knobs(micro_batch=2, accumulation=5),
            "accumulation: micro_batch 2 x accumulation 5 x dp 2 = 20, but the global batch is 16 sequences; "
            "nearest: 4",
        ),
        (Knobs(dp=4), "dp: dp 4 x tp 1 x pp 1 x cp 1 = 4, but the platform has 2 devices; nearest: 2"),
    ],
)
def test_a_batch_or_layout_that_does_not_fit(knobs: Knobs, message: str) -> None:
    assert said(knobs) == [message]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (Knobs(tp=8), "tp: heads 4 is not divisible by tp 8; nearest: 4"),
        (Knobs(pp=8), "pp: layers 4 is not divisible by pp 8; nearest: 4"),
        (Knobs(pp=2, vp=3), "vp: layers per stage 2 is not divisible by vp 3; nearest: 2"),
        (Knobs(vp=2), "vp: vp 2 interleaves pipeline stages, but pp is 1; nearest: 1"),
        (Knobs(ep=2), "ep: experts 1 is not divisible by ep 2; nearest: 1"),
        (Knobs(tp=3), "tp: dp 2 x tp 3 x pp 1 x cp 1 = 6, but the platform has 8 devices; nearest: 2, 4"),
    ],
)
def test_shapes_that_do_not_divide(knobs: Knobs, message: str) -> None:
    assert message in [str(problem) for problem in layout_problems(JOB, EIGHT, knobs)]


def test_a_legal_model_parallel_layout_has_no_layout_problems() -> None:
    layout = Knobs(tp=2, pp=2, vp=2, micro_batch=1)
    assert layout_problems(JOB, EIGHT, layout) == []
    assert said(layout, platform=EIGHT) == [
        "vp: 2 splits the model, but the trial program runs dp x tp x pp of this framework only; nearest: 1"
    ]


def test_the_trial_program_compiles_stages_but_nothing_under_autotp() -> None:
    assert said(Knobs(pp=2, compile=True)) == []
    (message,) = said(Knobs(tp=2, compile=True))
    assert message.startswith("compile: torch.compile breaks")
    assert DEEPSPEED.problems(JOB, TWO, Knobs(tp=2, compile=True)) == []  # a script of one's own may


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeeds_pipeline_refuses_sharded_gradients(stage: int) -> None:
    split = Knobs(pp=2, tp=2, zero_stage=stage)
    (problem,) = DEEPSPEED.problems(JOB, EIGHT, split)
    assert (problem.field, problem.nearest) == ("zero_stage", (1, 0))
    for nearest in problem.nearest:
        assert said(split.model_copy(update={"zero_stage": nearest}), platform=EIGHT) == []


@pytest.mark.parametrize("name", ["tp", "pp"])
def test_ddp_trials_are_replicas_only(name: str) -> None:
    (message,) = said(Knobs(**{name: 2}), DDP)
    assert "the trial program runs dp of this framework only; nearest: 1" in message


# -- the frameworks -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            Knobs(offload_optimizer="cpu"),
            "offload_optimizer: cpu needs ZeRO, but zero_stage is 0; set zero_stage to 1, 2 or 3",
        ),
        (Knobs(precision="fp8"), "precision: fp8 is not built in; nearest: fp32, bf16, fp16"),
        (Knobs(stage3_param_persistence_threshold=-1), "stage3_param_persistence_threshold: -1 is negative"),
        (
            Knobs(sequence_parallel=True),
            "sequence_parallel: splits the model, but the trial program runs dp x tp x pp",
        ),
        (Knobs(torch_adam="yes"), "torch_adam: 'yes' is neither true nor false; nearest: True, False"),
    ],
)
def test_what_deepspeed_refuses(knobs: Knobs, message: str) -> None:
    assert [text for text in said(knobs) if text.startswith(message)]


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        (Knobs(zero_stage=1), "zero_stage"),
        (Knobs(offload_optimizer="cpu"), "offload_optimizer"),
        (Knobs(ddp_bucket_mb=-1.0), "ddp_bucket_mb"),
        (Knobs(ddp_bucket_mb="big"), "ddp_bucket_mb"),
        (Knobs(precision="fp16"), "precision"),
    ],
)
def test_what_ddp_refuses(knobs: Knobs, field: str) -> None:
    assert [problem.field for problem in DDP.problems(JOB, TWO, knobs)] == [field]


def test_users_own_knobs_and_settings_of_other_stages_are_legal() -> None:
    knobs = Knobs(
        zero_stage=0, stage3_prefetch_bucket_size=1000, **{"env.GLOO_SOCKET_IFNAME": "lo", "mine": 3}
    )
    assert said(knobs) == []
    assert DEEPSPEED.resolve(JOB, TWO, knobs).settings()["mine"] == 3


@pytest.mark.parametrize("one", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_stock_sets_every_declared_knob_that_has_a_value(one: Framework) -> None:
    stock = one.default_knobs(JOB, TWO, own_script=True)
    rare = {name for name, knob in one.knobs.items() if knob.rare}
    assert one.knobs.keys() - stock.settings().keys() <= {"communication_data_type"} | rare
    assert not rare & stock.settings().keys()
    assert (stock.micro_batch, stock.accumulation, stock.dp, stock.precision) == (1, 8, 2, "fp32")
    for name, declaration in one.knobs.items():
        assert declaration.name == name
        assert declaration.doc
        if declaration.default is not None and not declaration.rare:
            assert stock.settings()[name] == declaration.default


def test_stock_that_cannot_run_says_why() -> None:
    with pytest.raises(IllegalKnobs, match="global batch of 16 sequences is not divisible by dp 3"):
        DEEPSPEED.default_knobs(JOB, TWO.model_copy(update={"devices_per_node": 3}))


def test_overlap_follows_the_stage_as_in_deepspeed() -> None:
    by_stage = [DEEPSPEED.resolve(JOB, TWO, Knobs(zero_stage=stage)).overlap_comm for stage in range(4)]
    assert by_stage == [False, False, False, True]
    assert DEEPSPEED.resolve(JOB, TWO, Knobs(zero_stage=3, overlap_comm=False)).overlap_comm is False


OF_SOME_STAGES = [
    name for name, knob in DEEPSPEED.knobs.items() if len(knob.zero_stages) < 4 and not knob.rare
]


@pytest.mark.parametrize("name", OF_SOME_STAGES)
def test_a_stage_that_does_not_read_a_knob_issues_the_same_whatever_its_value(name: str) -> None:
    """Some stage that reads it does not, unless the knob is inert here."""
    differs = set()
    for stage in range(4):
        scattered = name == "use_multi_rank_bucket_allreduce"
        stock = DEEPSPEED.resolve(
            JOB,
            TWO,
            Knobs(zero_stage=stage, stage3_param_persistence_threshold=1000, reduce_scatter=scattered),
        )
        value = stock.settings()[name]
        changed = stock.model_copy(update={name: not value if isinstance(value, bool) else 10})
        if DEEPSPEED.collectives(JOB, TWO, stock) != DEEPSPEED.collectives(JOB, TWO, changed):
            differs.add(stage)
    assert differs <= set(DEEPSPEED.knobs[name].zero_stages)
    assert differs or DEEPSPEED.knobs[name].inert


def test_an_unknown_framework_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="'nemo' is not known; use one of deepspeed, "):
        framework("nemo")


def test_declaring_frameworks_imports_none_of_them() -> None:
    program = (
        "import sys; from pretune.datasets.frameworks import framework; framework('deepspeed')\n"
        "assert not {'torch', 'deepspeed', 'polars', 'pyarrow'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- files ------------------------------------------------------------------------------
def config(of_a_trial: bool = True, **settings: object) -> dict:
    knobs = DEEPSPEED.resolve(JOB, TWO, Knobs.model_validate(settings))
    files = (DEEPSPEED.files if of_a_trial else DEEPSPEED.files_to_use)(JOB, TWO, knobs)
    assert list(files) == ["ds_config.json"]
    return json.loads(files["ds_config.json"])


def test_ds_config_holds_what_was_asked_for() -> None:
    written = config(
        micro_batch=2, zero_stage=3, precision="bf16", communication_data_type="fp32", offload_optimizer="cpu"
    )
    assert written["train_batch_size"] == 16
    assert written["train_micro_batch_size_per_gpu"] == 2
    assert written["gradient_accumulation_steps"] == 4
    assert written["bf16"] == {"enabled": True}
    assert written["communication_data_type"] == "fp32"
    assert written["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert written["optimizer"]["params"]["torch_adam"] is True
    assert "bf16" not in config()
    assert "communication_data_type" not in config()
    assert "offload_optimizer" not in config()["zero_optimization"]


def test_autotp_is_told_how_to_split_the_trials_model_and_checks_no_batch() -> None:
    knobs = DEEPSPEED.resolve(JOB, EIGHT, Knobs(tp=2, micro_batch=1))
    trial, users = (
        json.loads(files(JOB, EIGHT, knobs)["ds_config.json"])
        for files in (DEEPSPEED.files, DEEPSPEED.files_to_use)
    )
    assert users["tensor_parallel"] == {"autotp_size": 2}  # a user's own model has other names
    assert trial["tensor_parallel"]["partition_config"]["layer_specs"]
    assert "train_batch_size" not in users
    assert (users["train_micro_batch_size_per_gpu"], users["gradient_accumulation_steps"]) == (1, 4)


def test_a_pipeline_is_the_scripts_to_make() -> None:
    knobs = DEEPSPEED.resolve(JOB, EIGHT, Knobs(tp=2, pp=2, micro_batch=1))
    written = json.loads(DEEPSPEED.files(JOB, EIGHT, knobs)["ds_config.json"])
    assert "tensor_parallel" not in written
    assert written["train_batch_size"] == 16  # which the pipeline's engine checks against dp alone
    told = DEEPSPEED.told(JOB, knobs)
    assert (told["tp"], told["pp"]) == (2, 2)
    assert "pp" not in DEEPSPEED.told(JOB, DEEPSPEED.resolve(JOB, EIGHT, Knobs(tp=2)))


def test_a_users_file_leaves_the_optimizer_to_the_script_and_keeps_what_was_tuned() -> None:
    asked = {"micro_batch": 2, "zero_stage": 2, "offload_optimizer": "cpu", "precision": "bf16"}
    trial, users = config(**asked), config(of_a_trial=False, **asked)
    assert trial.keys() - users.keys() == {"optimizer", "steps_per_print"}
    assert {name: trial[name] for name in users} == users
    assert users["zero_force_ds_cpu_optimizer"] is False  # the trial stepped with torch.optim
    assert "zero_force_ds_cpu_optimizer" not in config(of_a_trial=False, **asked | {"torch_adam": False})


def test_deepspeeds_own_optimizer_is_the_default_where_it_can_be_built() -> None:
    knobs = DEEPSPEED.default_knobs(JOB, EIGHT)
    written = json.loads(DEEPSPEED.files(JOB, EIGHT, knobs)["ds_config.json"])
    assert written["optimizer"]["params"]["torch_adam"] is False


def test_ddp_file_holds_its_arguments() -> None:
    knobs = DDP.resolve(JOB, TWO, Knobs(ddp_bucket_mb=5))
    assert json.loads(DDP.files(JOB, TWO, knobs)["ddp.json"])["bucket_cap_mb"] == 5


READ_CONFIGS = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig

results = []
for sheet in json.load(open(sys.argv[1])):
    read = DeepSpeedConfig(sheet)
    zero = read.zero_config
    results.append({
        "train_batch_size": read.train_batch_size,
        "micro": read.train_micro_batch_size_per_gpu,
        "accumulation": read.gradient_accumulation_steps,
        "optimizer": read.optimizer_name,
        "zero": zero.model_dump(mode="json", by_alias=True),
    })
print("READ " + json.dumps(results))
"""


@pytest.mark.slow
def test_deepspeed_reads_the_file_and_agrees_on_every_default(tmp_path: Path) -> None:
    """One rank, so that DeepSpeed's own check of the batch holds; its defaults against ours."""
    one = TWO.model_copy(update={"devices_per_node": 1})
    asked = [{"zero_stage": stage, "micro_batch": 4} for stage in range(4)]
    asked.append(
        {"zero_stage": 2, "offload_optimizer": "cpu", "precision": "bf16", "reduce_bucket_size": 1000}
    )
    configs = [
        json.loads(
            DEEPSPEED.files_to_use(JOB, one, DEEPSPEED.resolve(JOB, one, Knobs(**case)))["ds_config.json"]
        )
        for case in asked
    ]
    bare = [
        {"train_batch_size": 16, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": stage}}
        for stage in range(4)
    ]
    sheet = tmp_path / "configs.json"
    sheet.write_text(json.dumps(configs + bare))
    done = subprocess.run(
        [sys.executable, "-c", READ_CONFIGS, str(sheet)],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    assert lines, done.stderr[-3000:]
    read = json.loads(lines[0].removeprefix("READ "))
    for stage in range(4):
        assert read[stage] == read[len(configs) + stage]
        assert (read[stage]["micro"], read[stage]["accumulation"]) == (4, 4)
        assert read[stage]["optimizer"] is None
    assert read[4]["zero"]["offload_optimizer"]["device"] == "cpu"
    assert read[4]["zero"]["reduce_bucket_size"] == 1000
