"""The job: one YAML file that says what to tune, where, from which history, within which budget."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import polars as pl
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from pretune.collector.reading import LOGS
from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.schema import to_table
from pretune.datasets.script import Script
from pretune.datasets.spec import Spec, read_yaml
from pretune.datasets.stated import Precision
from pretune.datasets.store import FILE, FILE_ROW, TrialStore, shipped_history
from pretune.datasets.trial import Measure, Status
from pretune.datasets.workload import ModelSpec, Workload
from pretune.errors import IllegalKnobs, InputError
from pretune.model.plausibility import examine
from pretune.tuner.arrival import check_knobs_arrive, check_placeholders
from pretune.tuner.budget import Budget
from pretune.tuner.space import Candidates, Space
from pretune.tuner.verify import Verify


class History(Spec):
    """Trials of other platforms: a store's folder, ``shipped`` (with pretune), or ``none``."""

    path: str = "shipped"
    exclude_platforms: tuple[str, ...] = ()


MAY_CHANGE = {
    "budget",
    "verify",
    "verify_pairs",
    "retries",
    "stop_hopeless",
}  # from run to run of one session


class JobSpec(Spec):
    """What ``pretune tune`` reads. Paths inside are relative to the job's file.

    ``model``: a preset's name, the fields of a ModelSpec, or ``huggingface: config.json``.
    ``platform``: ``auto`` (this machine), a YAML file, or the fields of a Platform.
    ``launcher``: ``local: {devices: 2}`` (or ``auto``), ``hosts: [...]``, or ``replay: STORE``.
    ``command``: what trains, where it is not pretune's own program: a command line, a list of words, or the
    fields of a :class:`~pretune.datasets.script.Script`; it runs in the folder of the job's file.
    ``global_batch_tokens``: what an optimizer step takes; several are tuned in turn, and shown side by side.
    ``space``, ``constraints``, ``allow_numerics``: see :class:`~pretune.tuner.space.Space`.
    ``default``: knobs that make up the configuration to compare with, where it is not the
    framework's own. ``verify_pairs``: how often winner and defaults are run again, in turn.
    ``verify: {minutes: 10}``: what is recommended is then rehearsed for so long.
    ``parallel``: trials of the search at a time, each on its own part of the launcher's devices; the
    platform is that of one part. ``retries``: how often a trial is run again that a host's failure
    interrupted; one that failed by itself is data, and never is. ``stop_hopeless``: a trial is stopped early
    when the chance that it beats the best falls below this; 0 never does.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    model: ModelSpec
    sequence_length: PositiveInt
    global_batch_tokens: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=2)]
    precision: Precision = "bf16"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    framework: str = "deepspeed"
    platform: Literal["auto"] | Platform = "auto"
    launcher: dict[str, Any]
    command: Script = Script()
    space: dict[str, list[KnobValue] | KnobValue]
    constraints: tuple[str, ...] = ()
    allow_numerics: bool = False
    default: Knobs = Knobs()
    budget: Budget = Budget(trials=20)
    history: History = History()
    strategy: Literal["transfer", "source-order", "random"] = "transfer"
    seed: int = 0
    measure: Measure = Measure()
    verify_pairs: int = Field(default=5, ge=2)
    verify: Verify | None = None
    parallel: PositiveInt = 1
    retries: NonNegativeInt = 2
    stop_hopeless: float = Field(default=0.01, ge=0, lt=0.5)

    @model_validator(mode="after")
    def _predicts(self) -> Self:
        if self.budget.stop_below is not None and self.strategy != "transfer":
            raise ValueError(
                "budget: stop_below needs a strategy that predicts; use transfer, or leave it out"
            )
        if self.verify and self.verify.checkpoint_steps and self.command.run is not None:
            raise ValueError("verify: checkpoint_steps: a command writes its own checkpoints; leave it out")
        return self

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a job, and the files it names. Raises :class:`InputError` naming file and field."""
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise InputError(f"{path}: is no mapping of fields; see examples/quickstart.yaml")
        data = {"name": Path(path).stem, **data}
        folder = Path(path).parent
        try:
            for field, load in _LOADERS.items():
                if field in data:
                    data[field] = load(data[field], folder, f"{path}: {field}")
            job = cls.from_mapping(data, str(path))
            for batch in job.global_batches:
                job.model_copy(update={"global_batch_tokens": batch})._check_knobs(str(path))
        except InputError as error:  # some know the field, or another file, but not whose job it is
            if str(error).startswith(str(path)):
                raise
            raise InputError(f"{path}: {error}") from None
        return job

    def _check_knobs(self, where: str) -> None:
        """What can be said of ``space`` and ``default`` before the platform is known."""
        declared, workload = find_framework(self.framework), self.workload(where)
        self._space(self.space, f"{where}: space").check_knobs(declared, workload, f"{where}: space")
        if self.command.run is not None:
            check_placeholders(self.command, declared, workload, self.space, where)
        if self.default.settings():
            stock = self._space(self.default.settings(), f"{where}: default")
            stock.check_knobs(declared, workload, f"{where}: default")
        if self.platform != "auto":
            self.default_knobs(self.platform, where)

    def changed(
        self,
        history: str | None = None,
        strategy: str | None = None,
        seed: int | None = None,
        **bounds: float | None,
    ) -> Self:
        """The same job with what the command line says, ``bounds`` being fields of its budget; None leaves
        a field as it is."""
        budget = self.budget.model_dump() | {name: n for name, n in bounds.items() if n is not None}
        source: Any = self.history
        if history is not None:
            source = _history(source.model_dump() | {"path": history}, Path(), "--history")
        updates = {"budget": budget, "history": source, "strategy": strategy, "seed": seed}
        given = {name: value for name, value in updates.items() if value is not None}
        return self.from_mapping(self.model_dump() | given, "command line")

    @property
    def global_batches(self) -> tuple[int, ...]:
        """All that it allows, each once."""
        told = self.global_batch_tokens
        return tuple(dict.fromkeys(told)) if isinstance(told, tuple) else (told,)

    def workload(self, where: str = "job") -> Workload:
        """Model, batch and numerics. Raises :class:`InputError` when they do not fit together, and where the
        job allows several global batches."""
        if isinstance(self.global_batch_tokens, tuple):
            raise InputError(f"{where}: global_batch_tokens: lists several, which only tune takes; give one")
        data = {name: getattr(self, name) for name in Workload.model_fields}
        return Workload.from_mapping(data, where)

    def candidates(self, platform: Platform) -> Candidates:
        """The space on ``platform``, enumerated."""
        where = f"job {self.name}: space"
        found = self.space_of_knobs().candidates(self.workload(), platform, self.framework, where)
        if self.command.run is not None:
            named = {*self.space, *self.default.settings()}
            check_knobs_arrive(self.command, named, found, self.default_knobs(platform), where)
        return found

    def space_of_knobs(self) -> Space:
        """``space`` and ``constraints`` as one."""
        return self._space(self.space, f"job {self.name}: space", self.constraints)

    def _space(self, knobs: Mapping[str, Any], where: str, constraints: Collection[str] = ()) -> Space:
        given = {"knobs": knobs, "constraints": constraints, "allow_numerics": self.allow_numerics}
        given["own_script"] = self.command.run is not None
        return Space.from_mapping(given, where)

    def default_knobs(self, platform: Platform, where: str | None = None) -> Knobs:
        """The configuration to beat: the framework's own, or the job's ``default``, resolved.

        Raises :class:`InputError` naming ``default`` when it cannot run on ``platform``.
        """
        settings = {"micro_batch": 1} | self.default.settings()
        return self.resolved(platform, settings, f"{where or f'job {self.name}'}: default")

    def resolved(self, platform: Platform, settings: Mapping[str, Any], where: str) -> Knobs:
        """A configuration with its derived values; raises :class:`InputError` naming ``where`` when it cannot
        run on ``platform``."""
        declared, own_script = find_framework(self.framework), self.command.run is not None
        knobs = Knobs.from_mapping(dict(settings), where)
        try:
            return declared.resolve(self.workload(), platform, knobs, own_script)
        except IllegalKnobs as error:
            raise InputError(f"{where}: {error}") from None

    def digest(self) -> str:
        """Changes with everything that decides which trials are run; not with how many."""
        data = self.model_dump(mode="json", exclude=MAY_CHANGE)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def history_frame(self, note: Callable[[str], None] | None = None) -> pl.DataFrame:
        """The trials to learn from, in the store's columns, without the excluded platforms; see
        :func:`read_history`.

        Raises :class:`InputError` when the folder holds no trials or a platform is unknown.
        """
        if self.history.path == "none":
            return pl.DataFrame(to_table([]))
        return read_history(self.history.path, self.history.exclude_platforms, note)


def read_history(
    path: str | Path, exclude_platforms: Collection[str] = (), note: Callable[[str], None] | None = None
) -> pl.DataFrame:
    """The trials of a store's folder, or of the one that ships (``shipped``), without those that are wrong,
    those that were interrupted, and those whose throughput is that of a diagnosis.

    ``note`` is told in a line how many were set aside, and why.
    """
    frame = find_store(path).frame(places=True)
    frame = frame.filter(
        pl.col("purpose").ne_missing("diagnostic"), pl.col("status") != str(Status.INTERRUPTED)
    )
    if frame.is_empty():
        raise InputError(f"history {path}: holds no trials; name a folder or URL with platform=*/*.parquet")
    known = frame["platform.name"].unique().sort().to_list()
    for name in exclude_platforms:
        if name not in known:
            raise InputError(f"history {path}: exclude_platforms: {name!r} is not in it; known: {known}")
    found = examine(frame.filter(~pl.col("platform.name").is_in(exclude_platforms)))
    if found.summary and note:
        note(f"history {path}: {found.summary} (pretune history validate lists them)")
    return found.kept.drop(FILE, FILE_ROW)


def find_store(path: str | Path) -> TrialStore:
    """The store in a folder or behind a URL, or the one that ships (``shipped``)."""
    return shipped_history() if str(path) == "shipped" else TrialStore(path)


def _model(value: Any, folder: Path, where: str) -> ModelSpec:
    if isinstance(value, str):
        from pretune.datasets.presets import model

        return model(value)
    if isinstance(value, dict) and set(value) == {"huggingface"}:
        return ModelSpec.from_huggingface(folder / str(value["huggingface"]))
    return ModelSpec.from_mapping(value, where)


def _platform(value: Any, folder: Path, where: str) -> Any:
    if value == "auto":
        return value
    if isinstance(value, str):
        return Platform.from_yaml(folder / value)
    return Platform.from_mapping(value, where)


def _history(value: Any, folder: Path, where: str) -> History:
    history = History.from_mapping({"path": value} if isinstance(value, str) else value, where)
    if history.path in ("shipped", "none"):
        return history
    return history.model_copy(update={"path": _store_place(folder, history.path)})


def _command(value: Any, folder: Path, where: str) -> Script:
    script = Script.from_mapping(value, where)
    if script.log_format not in (None, *LOGS):
        known = ", ".join(LOGS)
        raise InputError(
            f"{where}: log_format: {script.log_format!r} is nothing that training prints; known: {known}"
        )
    if script.run is None:  # nothing runs there: the job is the same one wherever its file lies
        return script
    return script.model_copy(update={"folder": str((folder / script.folder).resolve())})


def _launcher(value: Any, folder: Path, where: str) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{where}: is no mapping; give one such as local: {{devices: 2}}")
    return value | {"replay": _store_place(folder, str(value["replay"]))} if "replay" in value else value


def _store_place(folder: Path, place: str) -> str:
    """A store's URL as it is; its folder as the job's file has it, which names it from where it lies."""
    return place if "://" in place else str((folder / place).resolve())


_LOADERS: dict[str, Callable[[Any, Path, str], Any]] = {
    "model": _model,
    "platform": _platform,
    "history": _history,
    "launcher": _launcher,
    "command": _command,
}
