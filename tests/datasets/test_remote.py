"""A store behind a URL: on a real S3 server in this process, and in memory."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_trials import sample_trial

from pretune.datasets import TrialStore
from pretune.datasets.redact import export
from pretune.datasets.upkeep import compact, repair
from pretune.errors import InputError, StoreError, StoreWarning

pytest.importorskip("upath")

# of the libraries that speak S3, and of their connections that nobody closes
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem(use_listings_cache=False).mkdir("history")
        yield "s3://history"
    server.stop()


@pytest.fixture(params=["s3", "memory"])
def root(request: pytest.FixtureRequest) -> str:
    """A place of its own for each test."""
    base = request.getfixturevalue("s3") if request.param == "s3" else "memory://history"
    return f"{base}/{uuid.uuid4().hex}"


def test_what_goes_in_comes_out(root: str) -> None:
    store, trials = TrialStore(root), [sample_trial("a"), sample_trial("b"), sample_trial("c", platform="d")]
    files = store.append(trials)
    assert store.append(trials) == files
    assert sorted(TrialStore(root).trials(), key=lambda t: t.trial_id) == trials
    frame = TrialStore(root).frame(places=True)
    assert frame["trial_id"].to_list() == ["a", "b", "c"]
    assert set(frame["store.file"]) == {str(path) for path in files}
    assert all(name.startswith(root) for name in frame["store.file"])
    assert (len(store), store.validate()) == (3, [])


def test_what_another_writer_adds_is_seen_at_once(root: str) -> None:
    store = TrialStore(root)
    assert store.files() == []
    TrialStore(root).append(sample_trial("a"))
    assert len(store) == 1
    writers = [
        threading.Thread(target=TrialStore(root).append, args=([sample_trial(f"w{n}")],)) for n in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(store) == 9


def test_damage_is_named_and_moved_aside(root: str) -> None:
    store = TrialStore(root)
    (bad,) = store.append(sample_trial("a"))
    store.append(sample_trial("b"))
    bad.write_bytes(bad.read_bytes()[:-7])
    with pytest.warns(StoreWarning, match=r"a\.parquet"):
        assert len(store.frame()) == 1
    (moved,) = repair(store)
    assert moved.file == str(bad)
    assert moved.to.startswith(f"{root}/aside/")
    assert store.validate() == []


def test_small_files_are_merged(root: str) -> None:
    store = TrialStore(root)
    for number in range(4):
        store.append(sample_trial(f"t{number}"))
    assert compact(store).replaced == 4
    assert (len(store), len(store.files())) == (4, 1)
    assert compact(store, grace_s=0).removed == 4
    assert (len(store), store.validate()) == (4, [])


def test_a_local_store_is_copied_there_and_back(root: str, tmp_path: Path) -> None:
    here, back = TrialStore(tmp_path / "here"), TrialStore(tmp_path / "back")
    here.append([sample_trial("a"), sample_trial("b")])
    export(here, TrialStore(root), redact=False)
    export(TrialStore(root), back, redact=False)
    assert list(back.trials()) == list(here.trials())


def test_an_upload_that_fails_leaves_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(root)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Access Denied")

    with monkeypatch.context() as patch:
        patch.setattr(store.root.fs, "pipe_file", refuse)  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match=r"a\.parquet: cannot be written \(Access Denied\)"):
            store.append(sample_trial("a"))
    assert len(store) == 0


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match="s3://nowhere/x"):
        TrialStore("s3://nowhere/x").append(sample_trial("a"))


def test_a_url_that_nothing_reads_is_wrong_input() -> None:
    with pytest.raises(InputError, match=r"nothing://x: .*fsspec"):
        TrialStore("nothing://x")


def test_a_file_url_is_the_folder(tmp_path: Path) -> None:
    store = TrialStore(f"file://{tmp_path}/a%20b")
    assert store.root == tmp_path / "a b"
