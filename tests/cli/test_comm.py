"""``pretune comm``: what would be sent, beside what the defaults would send."""

import json

JOB = """
model: gpt-tiny
sequence_length: 64
global_batch_tokens: 2048
precision: fp32
platform: {name: pair, accelerator: {name: cpu}, devices_per_node: 1, nodes: 2, backend: gloo,
           inter_node: {bandwidth_bytes_per_s: 2.5e7, latency_s: 2e-4}}
launcher: {hosts: [{address: 10.0.0.1}, {address: 10.0.0.2}]}
space: {micro_batch: [4, 16], zero_stage: [0, 1, 3]}
history: none
"""


def test_the_best_and_the_defaults_stand_side_by_side(pretune, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    found = pretune("comm", job, "--json")
    assert found.returncode == 0, found.stderr
    best, stock = json.loads(found.stdout)["configurations"]
    assert (best["name"], stock["name"]) == ("predicted best", "defaults")
    assert [each["op"] for each in stock["collectives"]] == ["all_reduce"]
    assert best["knobs"]["micro_batch"] == 16

    asked = pretune("comm", job, "--set", "zero_stage=1", "--set", "micro_batch=4")
    assert asked.returncode == 0, asked.stderr
    assert "chosen: " in asked.stdout
    assert "all_gather" in asked.stdout

    for setting, said in (
        ("zero_stage", "no KNOB=VALUE"),
        ("zero_stage=7", "zero_stage"),
        ("micro_batch=5", "5"),
    ):
        wrong = pretune("comm", job, "--set", setting)
        assert wrong.returncode == 2, wrong.stderr
        assert wrong.stderr.startswith("pretune: --set")
        assert said in wrong.stderr
