import mmap
import socket
import time

import pytest

from pretune.collector import all_providers
from pretune.collector.counters import Counters, Readings
from pretune.collector.counters.base import joined
from pretune.collector.counters.nvml import NvmlCounters
from pretune.collector.counters.proc import ProcCounters
from pretune.collector.counters.psutil_provider import PsutilCounters

PROVIDERS = [type(provider) for provider in all_providers()]


def during(provider, action):
    provider.start()
    action()
    readings = provider.stop()
    return readings.totals | readings.means | readings.first | readings.last


def burn(seconds=0.2):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def send_to_myself(count=200, size=1000):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("127.0.0.1", 0))
        for _ in range(count):
            here.sendto(bytes(size), here.getsockname())
            here.recv(size)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_reads_floats_or_says_what_is_missing(provider):
    instance = provider()
    readings = during(instance, lambda: time.sleep(0.01))
    assert all(isinstance(value, float) for value in readings.values())
    assert readings or instance.missing
    assert all(reason for reason in instance.missing.values())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_can_be_started_again(provider):
    instance = provider()
    first, second = (set(during(instance, lambda: None)) for _ in range(2))
    assert first == second


def test_processor_time_is_what_was_burnt():
    readings = during(PsutilCounters(), burn)
    assert 0.15 <= readings["cpu_user_s"] + readings["cpu_system_s"] <= 0.5
    assert during(PsutilCounters(), lambda: time.sleep(0.2))["cpu_user_s"] < 0.1


def test_network_bytes_are_those_that_went_over_the_interface(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    readings = during(PsutilCounters(), send_to_myself)
    assert readings["net_sent_bytes.lo"] >= 200_000
    grown = readings["link_sent_end_bytes"] - readings["link_sent_start_bytes"]
    assert grown == readings["net_sent_bytes.lo"]


def test_a_link_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    provider = PsutilCounters()
    assert "link_sent_end_bytes" not in during(provider, lambda: None)
    assert "nosuch0" in provider.missing["psutil.link"]


def test_page_faults_are_counted():
    def touch_fresh_pages():  # memory that malloc gives may have been touched before
        with mmap.mmap(-1, 4000 * mmap.PAGESIZE) as pages:
            for start in range(0, len(pages), mmap.PAGESIZE):
                pages[start] = 1

    assert during(ProcCounters(), touch_fresh_pages)["page_faults_minor"] > 100


def test_all_counters_together_are_the_fields_of_a_trial():
    counters = Counters()
    counters.start()
    burn(0.1)
    readings = counters.stop(steps=4)
    assert {"cpu_user_s", "page_faults_minor"} <= readings.keys()
    assert readings["cpu_user_s_per_step"] == pytest.approx(readings["cpu_user_s"] / 4)
    assert "load_average_1min_per_step" not in readings  # a gauge has no share of a step
    assert not counters.intrusive


def test_a_share_of_a_step_keeps_the_name_of_what_was_read():
    readings = Readings({"net_sent_bytes.eth0": 10.0})
    assert readings.per_step(5) == {"net_sent_bytes_per_step.eth0": 2.0}
    assert readings.per_step(0) == {}


def test_spells_between_pauses_are_read_as_one():
    spells = [
        (1.0, Readings({"a": 1.0}, {"m": 4.0}, {"x_start": 1.0}, {"x_end": 2.0})),
        (3.0, Readings({"a": 2.0, "b": 5.0}, {"m": 8.0, "n": 1.0}, {"x_start": 7.0}, {"x_end": 9.0})),
    ]
    assert joined(spells) == Readings(
        {"a": 3.0, "b": 5.0}, {"m": 7.0, "n": 1.0}, {"x_start": 1.0}, {"x_end": 9.0}
    )


def test_nvml_reads_the_gpu_or_says_why_not():
    provider = NvmlCounters()
    readings = during(provider, lambda: time.sleep(0.5))
    if "nvml" in provider.missing:
        assert readings == {}
    else:
        assert readings["gpu_memory_used_bytes"] > 0
