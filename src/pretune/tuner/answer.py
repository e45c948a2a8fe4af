"""The answer: what is best and by how much, and files to use it with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.datasets.frameworks import Framework
from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.trial import Trial, TrialSpec
from pretune.datasets.workload import Workload
from pretune.tuner.accelerate import accelerate_files
from pretune.tuner.job import JobSpec
from pretune.tuner.launch import own_script
from pretune.tuner.numerics import LossCheck
from pretune.tuner.reasons import Reasons
from pretune.tuner.rehearsal import Rehearsal
from pretune.tuner.remedy import Failure
from pretune.tuner.runner import read_predicted
from pretune.tuner.verify import Comparison, Measured, Ratio

if TYPE_CHECKING:
    from pretune.tuner.search import SessionState

NAMES = {"default": "the stock defaults", "careful": "the defaults with the largest micro batch"}


@dataclass
class Answer:
    """What a session found. ``comparison`` is None when no trial of the search ran; ``failure``
    then says why, unless none was even tried. ``reasons``: what else is good, and why.

    ``best`` is what the comparison recommends and the files hold: the winner of the search,
    or a baseline that measured faster. ``spent``: see :meth:`~pretune.tuner.budget.Spending.asdict`.
    ``search_ended`` says why no more trials were run. ``interfaces`` are the network interfaces that the
    trials used, one per node; empty when the launcher named none.
    """

    job: JobSpec
    state: SessionState
    out: Path
    trials: list[Trial]
    comparison: Comparison | None
    dropped: Mapping[str, int]
    spent: Mapping[str, Any]
    search_ended: str = ""
    failure: Failure | None = None
    reasons: Reasons | None = None
    rehearsal: Rehearsal | None = None
    checks: Sequence[LossCheck] = ()
    interfaces: Sequence[str | None] = ()

    @property
    def found(self) -> bool:
        """Whether anything ran."""
        return self.comparison is not None

    def asdict(self) -> dict[str, Any]:
        """The object that ``pretune tune --json`` prints."""
        found = self.comparison
        return {
            "session": self.state.id,
            "words": self.sentences(),
            "platform": self.state.platform.name,
            "workload": self.job.workload().name,
            "trials": {"number": len(self.trials), "list": [self._trial(trial) for trial in self.trials]},
            "best": found and found.recommended.asdict(),
            "winner": found and found.winner.asdict(),
            "default": found and found.default.asdict(),
            "careful": found and found.careful and self._careful(found.careful, found.probes),
            "speedup": found and {role: r and r.asdict() for role, r in found.speedup.items()},
            "space_dropped": dict(self.dropped),
            "spent": dict(self.spent),
            "search_ended": self.search_ended,
            "reasons": self.reasons and self.reasons.asdict(),
            "numerics": [check.asdict() for check in self.checks],
            "rehearsal": self.rehearsal and self.rehearsal.asdict(),
            "failure": self.failure and self.failure.asdict(),
            "store": str(self.out / "trials"),
            "mlflow_run_id": self.state.mlflow_run_id,
            "files": {path.name: str(path) for path in self.files()},
        }

    def _trial(self, trial: Trial) -> dict[str, Any]:
        predicted = read_predicted(self.out / "runs" / trial.trial_id)
        return {
            "trial_id": trial.trial_id,
            "status": str(trial.status),
            "cause": trial.cause,
            "stopped_early": bool(trial.stopped_early),
            "knobs": trial.knobs.settings(),
            "tokens_per_s_per_device": trial.tokens_per_s_per_device,
            "wall_s": trial.wall_s,
            "predicted": predicted.asdict() if predicted else None,
        }

    def _careful(self, careful: Measured, probes: list[Trial]) -> dict[str, Any]:
        cost = {"cost_trials": len(probes), "cost_s": sum(trial.wall_s or 0.0 for trial in probes)}
        return careful.asdict() | cost

    # -- files --------------------------------------------------------------------
    def write(self) -> list[Path]:
        """``best.json``, ``launch.sh`` and the framework's own files, ready to use; returns them."""
        for name, text in self._texts().items():
            (self.out / name).write_text(text, encoding="utf-8")
        if self.comparison:
            (self.out / "launch.sh").chmod(0o755)
        (self.out / "best.json").write_text(json.dumps(self.asdict(), indent=2) + "\n", encoding="utf-8")
        return self.files()

    def files(self) -> list[Path]:
        return [self.out / name for name in ("best.json", *self._texts())]

    def _texts(self) -> dict[str, str]:
        if self.comparison is None:
            return {}
        declared, knobs = find_framework(self.job.framework), self.comparison.recommended.knobs
        workload, platform = self.job.workload(), self.state.platform
        files = declared.files_to_use(workload, platform, knobs)
        if self.job.command.run is None:
            script = launch_script(declared, workload, platform, knobs, self.interfaces)
            files = {**files, **accelerate_files(declared.name, platform, knobs)}
        else:
            script = own_script(self._sheet(knobs), _exports(platform, knobs, self.interfaces))
        return {**files, "launch.sh": script}

    def _sheet(self, knobs: Knobs) -> TrialSpec:
        """What a trial of ``knobs`` would be given."""
        job = self.job
        return TrialSpec(
            trial_id="best",
            workload=job.workload(),
            platform=self.state.platform,
            framework=job.framework,
            knobs=knobs,
            seed=job.seed,
            measure=job.measure,
            script=job.command,
        )

    # -- words --------------------------------------------------------------------
    def metrics(self) -> dict[str, float]:
        """Figures of the session for its tracking run."""
        figures: dict[str, float | None] = {"trials": len(self.trials)}
        if self.comparison:
            best = self.comparison.recommended
            figures["best_tokens_per_s_per_device"] = best.tokens_per_s_per_device
            for role, found in self.comparison.speedup.items():
                if found:
                    figures |= {f"speedup_{role}": found.ratio, f"speedup_{role}_low": found.low}
                    figures[f"speedup_{role}_high"] = found.high
        return {name: float(value) for name, value in figures.items() if value is not None}

    def sentences(self) -> list[str]:
        """The result in words, one line each."""
        if not self.trials:
            given = [name for name in ("minutes", "device_hours", "cost") if getattr(self.job.budget, name)]
            return [f"no trial ended within its time; give more: {', '.join(f'budget.{n}' for n in given)}"]
        if self.failure is not None:
            return self.failure.sentences()
        assert self.comparison is not None, "a search without a comparison has failed"
        found = self.comparison
        ratios = found.over_baselines(found.winner).items()
        lines = [sentence(NAMES[role], each) for role, each in ratios if each is not None]
        rehearsed = self.rehearsal.sentences() if self.rehearsal else []
        checked = [check.sentence() for check in self.checks]
        return [f"the search ended: {self.search_ended}", *checked, *lines, self._held(found), *rehearsed]

    @staticmethod
    def _held(found: Comparison) -> str:
        """Which configuration the files hold."""
        if found.recommended is found.winner:
            return "the files hold the winner"
        role = "default" if found.recommended is found.default else "careful"
        ran = found.winner.tokens_per_s_per_device
        why = "measured faster" if ran else "ran, and the winner did not run again"
        return f"the files hold {NAMES[role]}: that {why}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pretune.tuner.report.answering import answered

        return answered(self)._repr_html_()

    def markdown(self) -> str:
        """The session's note for its tracking page."""
        from pretune.tuner.report.answering import answer_table

        lines = [f"- {line}" for line in self.sentences()]
        if self.comparison:
            lines += [
                "",
                answer_table(self).markdown(),
                "",
                "`report.html` among the artifacts has the plots.",
            ]
            best = self.comparison.recommended.knobs.settings()
            lines += ["", "```json", json.dumps(best, indent=2), "```"]
        return "\n".join([f"**{self.job.name}** on {self.state.platform.name}", "", *lines])


def sentence(name: str, found: Ratio) -> str:
    """What the winner's ratio over ``name`` says, without claiming more than its interval does."""
    if found.same:
        return f"the winner is {name}: 1.00x, nothing to gain was found"
    if found.ratio is None:
        return f"against {name}: no pair of trials ran, so there is no ratio"
    text = f"the winner is {found.ratio:.2f}x of {name}"
    if found.low is None or found.high is None:
        return f"{text} (one pair, no interval)"
    text += f" ({found.low:.2f} to {found.high:.2f}, 95 % of {found.pairs} pairs)"
    if found.low > 1:
        return text
    if found.high < 1:
        return f"{text}: slower"
    return f"{text}: no difference is shown"


def launch_script(
    declared: Framework,
    workload: Workload,
    platform: Platform,
    knobs: Knobs,
    interfaces: Sequence[str | None] = (),
) -> str:
    """A shell script that starts a user's own training script under the best configuration."""
    torchrun = f"exec torchrun --nproc_per_node {platform.devices_per_node}"
    if platform.nodes > 1:
        torchrun += (
            f' --nnodes {platform.nodes} --node_rank "${{NODE_RANK:?}}"'
            ' --master_addr "${MASTER_ADDR:?}" --master_port "${MASTER_PORT:-29500}"'
        )
    yours = [f"#   {name}: {value}" for name, value in declared.told(workload, knobs).items()]
    lines = [
        "#!/bin/sh",
        f"# Trains your script with the configuration that pretune found on {platform.name}:",
        f"#   ./launch.sh {declared.script}",
        "# What your script has to do itself, as the trials did:",
        *yours,
    ]
    if platform.nodes > 1:
        lines.append("# Run it on every node, with NODE_RANK (0, 1, ...) and MASTER_ADDR (node 0) set.")
    return "\n".join([*lines, *_exports(platform, knobs, interfaces), f'{torchrun} "$@"', ""])


def _exports(platform: Platform, knobs: Knobs, interfaces: Sequence[str | None]) -> list[str]:
    """The environment that the trials had."""
    environment = {"OMP_NUM_THREADS": str(knobs.threads_per_rank or 1), **knobs.environment()}
    if platform.backend == "gloo":
        environment["DS_ACCELERATOR"] = "cpu"
    named = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return [*_interface_exports(interfaces), *named]  # a knob may name another interface


def _interface_exports(interfaces: Sequence[str | None]) -> list[str]:
    """The network interface that the trials used; by node, where the nodes differ."""
    named = {
        node: f"export GLOO_SOCKET_IFNAME={shlex.quote(name)} NCCL_SOCKET_IFNAME={shlex.quote(name)}"
        for node, name in enumerate(interfaces)
        if name
    }
    if len(set(interfaces)) <= 1:
        return [*named.values()][:1]
    return ['case "${NODE_RANK:?}" in', *(f"{node}) {export} ;;" for node, export in named.items()), "esac"]
