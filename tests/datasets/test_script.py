"""The template of a command."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.datasets.script import Script, file_placeholder
from pretune.errors import InputError


def test_a_command_line_is_split_as_a_shell_does_and_filled_in_afterwards():
    script = Script.from_mapping("train.py --note 'a b' --batch={micro_batch} --data '{path}'", "job")
    assert script.words({"micro_batch": 4, "path": "my file"}) == [
        *("train.py", "--note", "a b", "--batch=4", "--data", "my file")
    ]
    assert list(script.placeholders()) == ["micro_batch", "path"]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="{}\0")), min_size=1))
def test_words_come_back_as_they_were_given(words):
    assert Script.from_mapping({"run": words}, "job").words({}) == words


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_product_is_one_number(one, other):
    assert Script(run="{a*b}").words({"a": one, "b": other}) == [str(one * other)]


def test_a_value_chooses_its_word_and_an_empty_word_is_left_out():
    script = Script(run="t {compile:true=--compile} {how:full=--recompute|none=} {n:1=one|2=two} ''")
    assert script.words({"compile": True, "how": "none", "n": 2}) == ["t", "--compile", "two", ""]
    assert script.words({"compile": False, "how": "full", "n": 3}) == ["t", "--recompute", ""]


def test_a_brace_is_written_twice():
    assert Script(run=["x", '{{"a": {n}}}']).words({"n": 1}) == ["x", '{"a": 1}']


def test_a_list_of_words_is_the_line_that_a_shell_would_read():
    words = ["sh", "-c", "echo {n} > 'x y'"]
    assert shlex.split(Script.from_mapping(words, "job").run) == words


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("train {", "command: run: .*write a brace that is no placeholder twice"),
        ("train 'x", "command: run: No closing quotation"),
        ("  ", "command: run: is empty"),
        ({"run": "x", "step_line": "("}, "step_line: is no regular expression"),
        ({"run": "x", "step_line": "(?P<time>.)"}, "group time means nothing; known: step, loss"),
        ({"run": "x", "step_line": "a", "log_format": "nemo"}, "log_format and step_line: .*leave one out"),
        ({"run": "x", "cwd": "."}, "cwd: is no field here"),
    ],
)
def test_what_is_wrong_is_named(given, message):
    with pytest.raises(InputError, match=message) as caught:
        Script.from_mapping(given, "job.yaml: command")
    assert "\n" not in str(caught.value)


def test_a_file_stands_under_its_name_without_ending():
    assert list(map(file_placeholder, ("ds_config.json", "megatron.args", "a-b.yaml"))) == [
        *("ds_config", "megatron", "a_b")
    ]
