"""From the times that ranks measured to a platform: fits, their doubts, and a real probe of two ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pretune.collector import detect
from pretune.collector.launchers.agents import Host
from pretune.collector.launchers.hosts import HostsLauncher
from pretune.collector.probe import QUICK, WHOLE, Plan
from pretune.collector.probe.fit import fingerprint_of, fitted, misfits, wire_bytes
from pretune.collector.probe.plan import OPS, SMALLEST_BYTES
from pretune.datasets import Platform
from pretune.datasets.platform import LinkFit
from pretune.datasets.schema import flatten
from pretune.errors import InputError
from pretune.model.physics.setup import read_setup

SIZES = WHOLE.message_bytes["cpu"]
TINY = Plan(
    matrix_sizes={"cpu": (64, 128)},
    message_bytes={"cpu": (SMALLEST_BYTES, 1 << 16, 1 << 24)},  # large enough to be slower on a busy machine
    precisions={"cpu": ("fp32", "bf16", "fp16")},
    ops=OPS,
)


# -- fits ------------------------------------------------------------------------------------------------
@given(
    latency=st.floats(1e-6, 1e-2),
    bandwidth=st.floats(1e6, 1e12),
    bucket=st.integers(0, 256 << 10),
    noise=st.lists(st.floats(-0.02, 0.02), min_size=len(SIZES), max_size=len(SIZES)),
    disturbed=st.integers(0, len(SIZES) - 1),
)
def test_the_bandwidth_is_the_link_s_though_it_sends_a_bucket_at_once_and_one_size_was_disturbed(
    latency: float, bandwidth: float, bucket: int, noise: list[float], disturbed: int
) -> None:
    assume(SIZES[-1] / bandwidth > 10 * latency)  # else no size is ruled by its bytes
    times = {
        float(size): (latency + max(size - bucket, 0) / bandwidth) * (1 + error)
        for size, error in zip(SIZES, noise, strict=True)
    }
    assert fitted(times).bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.1)
    assert 0.98 * latency <= fitted(times).latency_s <= 1.02 * (latency + SMALLEST_BYTES / bandwidth)
    times[float(SIZES[disturbed])] *= 1.5
    assert fitted(times).bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.25)


def test_a_fit_says_how_far_off_it_is() -> None:
    line = {float(size): 1e-4 + size / 1e9 for size in SIZES}
    assert fitted(line).relative_error == pytest.approx(0, abs=1e-2)
    bucket = {float(size): 1e-4 + size / 5e7 + max(size - (1 << 18), 0) / 5e7 for size in SIZES}
    assert fitted(bucket).relative_error > detect.DOUBTFUL
    assert np.median(misfits(fitted(bucket), bucket)) > detect.DOUBTFUL  # faster than the fit


def test_what_two_sizes_or_fewer_say() -> None:
    assert fitted({}) == fitted({256.0: 1e-4}) == LinkFit()
    two = fitted({256.0: 1e-4, 1e6 + 256: 1.01e-2})
    assert (two.latency_s, two.relative_error) == (1e-4, None)
    assert two.bandwidth_bytes_per_s == pytest.approx(1e8)


def test_a_large_message_that_took_no_longer_gives_no_bandwidth() -> None:
    for large in (1e-4, 0.9e-4):
        assert fitted({256.0: 1e-4, 4e6: large}) == LinkFit(latency_s=1e-4)


@pytest.mark.parametrize(
    ("op", "backend", "ranks", "share"),
    [
        ("all_reduce", "nccl", 4, 1.5),
        ("all_reduce", "gloo", 2, 1.0),
        ("all_gather", "gloo", 2, 0.5),
        ("reduce_scatter", "nccl", 4, 0.75),
        ("reduce_scatter", "gloo", 4, 1.5),
        ("point_to_point", "nccl", 8, 1.0),
    ],
)
def test_bytes_on_the_wire_are_those_of_the_algorithm(
    op: str, backend: str, ranks: int, share: float
) -> None:
    assert wire_bytes(op, backend, ranks, 1000) == pytest.approx(1000 * share)


# -- figures ---------------------------------------------------------------------------------------------
def rows(scope: str, op: str, ranks: int, latency: float, bandwidth: float) -> list[dict[str, Any]]:
    """What ranks would write of a link like that."""
    return [
        {"scope": scope, "op": op, "ranks": ranks, "bytes": size, "seconds": latency + sent / bandwidth}
        for size in SIZES
        for sent in (wire_bytes(op, "gloo", ranks, size),)
    ]


FOUND: dict[str, Any] = {
    "products": [
        {"precision": "fp32", "size": 100, "seconds": 2e-5},
        {"precision": "fp32", "size": 1000, "seconds": 1e-2},
        {"precision": "bf16", "size": 1000, "seconds": 5e-3},
    ],
    "copies": {"device": 1e10, "host_to_device": 2e10},
    "collectives": [
        *rows("all_devices", "all_reduce", 4, 4e-4, 1e8),
        *rows("intra_node", "all_reduce", 2, 1e-4, 1e9),
        *rows("inter_node", "all_reduce", 2, 2e-4, 2e8),
        *rows("inter_node", "reduce_scatter", 2, 3e-4, 2e8),
    ],
    "missing": {"inter_node_all_gather": "gloo has none"},
}


def test_figures_are_the_best_of_the_sizes_and_the_fits_by_scope() -> None:
    found = fingerprint_of(FOUND, "gloo")
    assert found.matmul_fp32_flops_per_s == pytest.approx(2e11)
    assert found.matmul_bf16_flops_per_s == pytest.approx(4e11)
    assert found.matmul_fp16_flops_per_s is None
    assert (found.copy_bytes_per_s, found.host_to_device_bytes_per_s) == (1e10, 2e10)
    assert found.device_to_host_bytes_per_s is None
    assert found.allreduce_busbw_bytes_per_s == pytest.approx(1e8)
    assert found.allreduce_latency_s == pytest.approx(4e-4, rel=0.01)
    assert found.intra_node_all_reduce.bandwidth_bytes_per_s == pytest.approx(1e9)
    assert found.inter_node_reduce_scatter.bandwidth_bytes_per_s == pytest.approx(2e8)
    assert found.inter_node_all_gather == LinkFit()


def test_where_there_is_one_kind_of_link_its_all_reduce_is_that_of_all_devices() -> None:
    one = FOUND | {"collectives": rows("inter_node", "all_reduce", 2, 2e-4, 2e8)}
    found = fingerprint_of(one, "gloo")
    assert found.allreduce_busbw_bytes_per_s == found.inter_node_all_reduce.bandwidth_bytes_per_s
    assert fingerprint_of(FOUND | {"collectives": []}, "gloo").allreduce_busbw_bytes_per_s is None


def test_doubts_name_what_is_missing_and_what_misfits_with_the_remedy() -> None:
    slow = [{**row, "seconds": row["seconds"] * (3 if 4096 < row["bytes"] < 1 << 20 else 1)} for row in
            rows("intra_node", "all_gather", 2, 1e-4, 1e9)]  # fmt: skip
    found = FOUND | {"collectives": [*FOUND["collectives"], *slow]}
    platform = Platform.from_mapping(
        {"name": "p", "accelerator": {"name": "cpu"}, "devices_per_node": 2, "nodes": 2, "backend": "gloo"},
        "",
    )
    platform = platform.model_copy(update={"fingerprint": fingerprint_of(found, "gloo")})
    missing, misfit = detect.Probed(platform, found).doubts()
    assert missing == "inter_node_all_gather: not measured: gloo has none"
    assert re.fullmatch(r"intra_node_all_gather: \d+% off the fit \(median\): .*probe again.*", misfit)


# -- the hosts -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- {address: a}", "is no mapping; give hosts:"),
        ("hosts: []", "hosts: "),
        ("hosts: [{adress: a}]", "hosts.0.adress: is no field here; check the spelling"),
        ("replay: trials", "starts no ranks"),
        ("hosts: [{ranks: 1}, {ranks: 2}]", "same number of ranks"),
        ("", "is no mapping"),
    ],
)
def test_a_hosts_file_that_cannot_be_used_is_named_with_the_field(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        detect.ranks_launcher(file, tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_name_that_is_no_folder_s_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with (
        HostsLauncher([Host()], tmp_path / "out") as launcher,
        pytest.raises(InputError, match="platform: name 'a/b'"),
    ):
        detect.probe_platform(launcher, QUICK, "a/b")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_ranks_measure_all_there_is_and_the_physics_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    phases: list[str] = []
    with HostsLauncher([Host(interface="lo", ranks=2)], tmp_path) as launcher:
        probed = detect.probe_platform(
            launcher, TINY, "here", lambda said: phases.append(said.get("phase", ""))
        )
    platform = probed.platform
    assert (platform.name, platform.devices, platform.nodes) == ("here", 2, 1)
    assert list(probed.fits()) == [f"intra_node_{op}" for op in OPS]
    for fit in probed.fits().values():
        assert 0 < fit.latency_s < 1
        assert fit.bandwidth_bytes_per_s > 1e6
        assert fit.relative_error is not None
    assert platform.fingerprint.matmul_fp16_flops_per_s > 0
    assert platform.intra_node.bandwidth_bytes_per_s == (
        platform.fingerprint.intra_node_point_to_point.bandwidth_bytes_per_s
    )
    assert "intra_node all_reduce" in phases

    platform.to_yaml(tmp_path / "platform.yaml")
    loaded = Platform.from_yaml(tmp_path / "platform.yaml")
    assert loaded == platform
    physics = read_setup(pl.DataFrame([flatten(loaded)]).rename({"backend": "platform.backend"}))
    assert physics.intra_bytes_per_s == [platform.fingerprint.allreduce_busbw_bytes_per_s]
    assert physics.memory_bytes_per_s == [platform.fingerprint.copy_bytes_per_s]
