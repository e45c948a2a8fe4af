import pytest
import torch

from pretune.collector.outcome import Diverged, cause, describe, judge
from pretune.datasets import Status
from pretune.errors import IllegalKnobs, InputError


def raised(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function(*arguments)
    return caught.value


def test_an_allocator_that_refuses_is_oom():
    assert judge(MemoryError()) is Status.OOM
    assert judge(torch.OutOfMemoryError("CUDA out of memory")) is Status.OOM
    assert judge(raised(torch.empty, 2**50)) is Status.OOM  # the CPU allocator's own, bare RuntimeError


def test_a_refused_configuration_is_invalid():
    assert judge(IllegalKnobs(["micro_batch: 3"])) is Status.INVALID
    assert judge(InputError("job.yaml: no")) is Status.INVALID


def test_words_in_a_message_decide_nothing():
    assert judge(Diverged("the loss became nan")) is Status.DIVERGED
    assert judge(RuntimeError("error: the config is out of memory, invalid and nan")) is Status.CRASH


def test_the_description_names_type_message_and_place():
    described = describe(raised(int, "three"))
    assert described["exception"] == "ValueError"
    assert "three" in described["message"]
    assert "raised" in described["traceback"]
    assert cause(ValueError("one\ntwo")) == "ValueError: one"
    assert cause(MemoryError()) == "MemoryError"
