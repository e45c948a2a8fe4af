"""Trials on a real Ray cluster of two nodes, also when one of them is lost."""

import os
import signal

import psutil
import pytest
from two_nodes import ended, endless, is_measuring, ranks_tell, sheet, wait_until

from pretune.collector.launchers import launcher_for
from pretune.datasets import Status
from pretune.errors import InputError, LaunchError

ray = pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of Ray's own making
]


@pytest.fixture(scope="module")
def two_nodes():
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.path.dirname(os.path.dirname(__file__)), prepend=os.pathsep)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=1)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def cluster(two_nodes):
    while len(two_nodes.list_all_nodes()) < 2:
        two_nodes.add_node(num_cpus=1)
    return two_nodes


def on_ray(cluster, folder, warm=True, **settings):
    given = {"nodes": 2, "ranks": 1, "interface": "lo", "address": cluster.address} | settings
    return launcher_for({"ray": given, "warm": warm}, folder)


def raylets(cluster):
    return {str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes()}


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:9", "nowhere"])
def test_no_cluster_at_the_address_is_an_error_that_says_where_to_run(tmp_path, address):
    """Comes first: ``auto`` would find the cluster of the other tests."""
    with (
        launcher_for({"ray": {"nodes": 2, "ranks": 1, "address": address}}, tmp_path) as launcher,
        pytest.raises(LaunchError, match=rf"address: {address}: no cluster answers.*ray job submit"),
    ):
        ranks_tell(launcher)


def test_ranks_run_on_one_node_each_and_leave_it_when_the_session_ends(cluster, tmp_path):
    with on_ray(cluster, tmp_path, warm=False) as launcher:
        ranks = ranks_tell(launcher)
    assert {rank["RAY_RAYLET_PID"] for rank in ranks} == raylets(cluster)
    with on_ray(cluster, tmp_path / "again", warm=False) as launcher:  # both places are free
        ranks_tell(launcher)


def test_trials_run_over_both_nodes_and_name_ray_s_job(cluster, tmp_path):
    with on_ray(cluster, tmp_path) as launcher:
        trials = [ended(launcher, launcher.submit(sheet(f"t{n}"))) for n in range(2)]
        job = ray.get_runtime_context().get_job_id()
    assert [trial.status for trial in trials] == [Status.OK] * 2, [trial.cause for trial in trials]
    assert {trial.scheduler_job for trial in trials} == {f"ray:{job}"}


def test_a_lost_node_interrupts_the_trial_and_the_next_one_runs_where_another_came(cluster, tmp_path):
    with on_ray(cluster, tmp_path) as launcher:
        handle = launcher.submit(endless("t0"))
        wait_until(lambda: is_measuring(handle))
        cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
        lost = ended(launcher, handle)
        cluster.add_node(num_cpus=1)
        again = ended(launcher, launcher.submit(sheet("t1")))
    assert lost.status is Status.INTERRUPTED
    assert lost.cause.startswith("node failure: host "), lost.cause
    assert (again.status, again.cause) == (Status.OK, None)


def test_a_killed_actor_interrupts_the_trial_and_takes_its_ranks_with_it(cluster, tmp_path):
    with on_ray(cluster, tmp_path) as launcher:
        handle = launcher.submit(endless("t0"))
        wait_until(lambda: is_measuring(handle))
        actor = next(p for p in psutil.process_iter() if "NodeAgent" in p.name() + "".join(p.cmdline()))
        ranks = actor.children(recursive=True)
        actor.send_signal(signal.SIGKILL)
        lost = ended(launcher, handle)
    assert lost.status is Status.INTERRUPTED
    assert len(ranks) >= 2  # the agent and its rank
    assert wait_until(lambda: not any(p.is_running() and p.status() != "zombie" for p in ranks), 20)


def test_nodes_that_the_cluster_does_not_have_are_an_error_that_says_what_it_has(cluster, tmp_path):
    with (
        on_ray(cluster, tmp_path, nodes=3, wait_s=2.0) as launcher,
        pytest.raises(
            LaunchError, match=r"no 3 nodes with \{'CPU': 1.0\} each .* the cluster has .*'CPU': 2.0"
        ),
    ):
        ranks_tell(launcher)


def test_ray_s_client_is_refused_before_anything_is_started(tmp_path):
    with pytest.raises(InputError, match=r"ray\.address: .*ray job submit"):
        launcher_for({"ray": {"nodes": 2, "ranks": 1, "address": "ray://head:10001"}}, tmp_path)
