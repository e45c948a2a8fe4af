import errno
import os

import pytest

from pretune import cli


def test_a_full_disk_is_one_line(monkeypatch, capsys):
    def full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x/session.json")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err == "pretune: runs/x/session.json: No space left on device\n"
