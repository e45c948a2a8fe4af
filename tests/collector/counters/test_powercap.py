import pytest

from pretune.collector.counters.powercap import PowercapCounters


def zone(root, name, label, energy_uj, span_uj=1_000_000):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{span_uj}\n")
    return folder / "energy_uj"


def test_energy_is_by_zone_and_beyond_its_range_goes_on(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    memory = zone(tmp_path, "intel-rapl:0:0", "dram", 100_000)
    provider = PowercapCounters(tmp_path)
    provider.start()
    package.write_text("400000\n")  # turned over at 1,000,000
    memory.write_text("350000\n")
    assert provider.stop().totals == {
        "cpu_energy_j.package-0": pytest.approx(0.5),
        "cpu_energy_j.dram.intel-rapl:0:0": pytest.approx(0.25),
    }
    assert provider.missing == {}


def test_a_zone_that_cannot_be_read_says_why_and_others_are_read(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    zone(tmp_path, "intel-rapl:1", "package-1", 1).write_text("no number\n")
    provider = PowercapCounters(tmp_path)
    provider.start()
    assert provider.stop().totals.keys() == {"cpu_energy_j.package-0"}
    assert "package-1" in str(provider.missing)


def test_a_machine_without_zones_says_so(tmp_path):
    provider = PowercapCounters(tmp_path / "none")
    provider.start()
    assert provider.stop().totals == {}
    assert "no power zones" in provider.missing["powercap"]
