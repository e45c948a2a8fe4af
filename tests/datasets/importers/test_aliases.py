"""Foreign names: each means one thing, and only what it says."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.datasets.frameworks import FRAMEWORKS
from pretune.datasets.importers import FORMATS, importer
from pretune.datasets.importers.aliases import ALIASES, PAIRS, UNITLESS, lookup
from pretune.datasets.importers.complete import is_column
from pretune.datasets.importers.tracked import flat, stated, steady


def test_no_name_means_two_things():
    assert [name for name, times in Counter(name for name, _ in PAIRS).items() if times > 1] == []
    assert not UNITLESS & ALIASES.keys()
    assert [name for name in ALIASES if name != name.lower()] == []


@given(
    name=st.sampled_from(sorted(ALIASES)),
    headings=st.lists(st.sampled_from(["train", "perf", "config", "args", "Trainer"]), max_size=3),
    sign=st.sampled_from(["/", "."]),
)
def test_a_name_means_the_same_under_any_heading(name, headings, sign):
    assert lookup(sign.join([*headings, name.replace("/", sign)])) == ALIASES[name]
    assert is_column(ALIASES[name].column)


@pytest.mark.parametrize("name", ["eval/tokens_per_second", "val.loss", "test_metrics/samples_per_second"])
def test_what_is_of_an_evaluation_means_nothing(name):
    assert lookup(name) is None


def test_the_longest_ending_decides():
    assert lookup("throughput/tokens_per_sec").column == "tokens_per_s"
    assert lookup("throughput/device/tokens_per_sec").column == "tokens_per_s_per_device"


def test_units_are_read_off_names_and_rates_turned_over():
    found = stated({"perf/step_time_ms": "250", "train_steps_per_second": 4.0})
    assert found.values == {"step_time_s": pytest.approx(0.25)}


def test_two_names_that_disagree_are_both_left_out():
    found = stated({"args.tp_size": 2, "tensor_parallel_size": 4, "n_layer": 12})
    assert found.values == {"model.layers": 12}
    assert found.odd == ["knob.tp is stated in two ways; left out"]


@pytest.mark.parametrize("told", ["nan", float("nan"), "inf", "-1", "0", "fast", None, "auto", ""])
def test_no_figure_is_no_speed(told):
    assert not stated({"tokens_per_second": told}).measured


def test_readings_after_the_first_two():
    assert steady([9.0, 8.0, 1.0, 1.1, 1.2]) == 1.1
    assert steady([9.0, 1.0]) == 1.0


def test_nested_settings_are_one_level():
    assert flat({"a": {"b": {"c": 1}}, "d": [1], "e": 2}) == {"a/b/c": 1, "e": 2}


# of frameworks that pretune does not write files for
UNDECLARED = {
    *("fsdp", "precision_recipe"),  # Megatron-Bridge
    "offload_activations",  # LLM Foundry
    *("tp_mode", "tp_async_comm", "pp_engine", "ddp_bucket_cap_mb", "accumulate_grad_in_fp32"),  # nanotron
    "*",  # a tuning table's own
}


def test_knobs_have_the_names_that_frameworks_declare():
    filled = {column for name in FORMATS for column in importer(name).fills}
    filled |= {alias.column for alias in ALIASES.values()}
    knobs = {column.removeprefix("knob.") for column in filled if column.startswith("knob.")}
    declared = {name for each in FRAMEWORKS.values() for name in each.knobs}
    assert knobs - declared == UNDECLARED
