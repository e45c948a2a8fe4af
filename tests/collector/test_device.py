from types import SimpleNamespace

from pretune.collector import device


def test_the_device_figure_of_a_gpu_is_the_most_that_was_seen(monkeypatch):
    free = iter([70, 20, 60])
    cuda = SimpleNamespace(
        mem_get_info=lambda: (next(free), 100),
        max_memory_allocated=lambda: 40,
        max_memory_reserved=lambda: 50,
        reset_peak_memory_stats=lambda: None,
    )
    monkeypatch.setattr(device, "_cuda", lambda: cuda)
    memory = device.PeakMemory()
    memory.sample()
    memory.sample()
    assert memory.read() == {
        "peak_memory_allocated_bytes": 40,
        "peak_memory_reserved_bytes": 50,
        "peak_memory_device_bytes": 80,
    }
