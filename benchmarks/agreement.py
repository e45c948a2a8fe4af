"""Does a record agree with a stopwatch? Public training scripts on two gloo ranks, each way to record.

    python benchmarks/agreement.py --scripts DIR [--json] [--keep] [--only NAME] [--repeats 3]

``DIR`` holds clones of karpathy/nanoGPT, deepspeedai/DeepSpeedExamples and Lightning-AI/pytorch-lightning,
and run_clm.py, the example of language modelling of the transformers version that is installed (it needs the
packages datasets and evaluate). None of it is ours. The scripts get the lines that a user would add, and what
a machine without a GPU makes necessary; ``agreement/stopwatch.py`` runs them and times their optimizer steps.
The figure is the record's tokens/s over the stopwatch's, over the windows that the record says it measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pretune.datasets import Trial, TrialStore

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "agreement.json"
LIMIT = 0.02
MODEL = "ModelSpec(name='{name}', layers={layers}, hidden_size={width}, heads={heads}, vocabulary={words})"
MEASURE = "Measure(max_warmup_windows=6, min_windows=30, max_windows=40, max_seconds=60)"


@dataclass(frozen=True)
class Case:
    """One public script under one way to record.

    ``steps``: how many it makes. ``added``: what a user adds. ``here``: what a machine without a GPU, and the
    versions here, make necessary. ``printed``: it is recorded by ``pretune record``, from what it prints
    after so many steps each.
    """

    name: str
    script: str
    arguments: str
    steps: int
    added: tuple[tuple[str, str], ...] = ()
    here: tuple[tuple[str, str], ...] = ()
    pauses: tuple[str, ...] = ()
    printed: int = 0
    constants: dict[str, object] = field(default_factory=dict)


NANO = {"name": "nano", "layers": 4, "width": 128, "heads": 4, "words": 65}
NANO_LOOP = f"""
from pretune.collector import TrialRecorder
from pretune.collector.integrations.here import platform_here
from pretune.datasets import Knobs, Measure, ModelSpec, Workload
recorder = TrialRecorder(
    workload=Workload(model={MODEL.format(**NANO)}, sequence_length=block_size,
                      global_batch_tokens=tokens_per_iter, precision="fp32"),
    platform=platform_here(), knobs=Knobs(micro_batch=batch_size, accumulation=gradient_accumulation_steps),
    store=os.environ["STORE"], measure={MEASURE}, late=True).__enter__()
"""
ENGINE = (
    "--hidden_dim=256 --num_layers=4 --num_heads=4 --vocab_size=1000 --batch_size=4 --seq_length=128 "
    "--num_steps=60 --deepspeed_config=ds.json"
)
NO_GPU = (
    (r"    torch\.cuda\.set_device\(local_rank\)\n", ""),
    (r"    torch\.cuda\.(manual_seed_all|reset_peak).*\n", ""),
)
LAYERS = {"model.layers": 4, "model.hidden_size": 256, "model.heads": 4, "model.vocabulary": 1000}

CASES = (
    Case(
        "TrialRecorder: nanoGPT",
        "nanoGPT/train.py",
        (
            "config/train_shakespeare_char.py --device=cpu --backend=gloo --dtype=float32 --n_layer=4 "
            "--n_head=4 --n_embd=128 --block_size=64 --batch_size=8 --gradient_accumulation_steps=4 "
            "--compile=False --max_iters=60 --eval_interval=25 --eval_iters=2 --log_interval=10 "
            "--dropout=0.0"
        ),
        61,
        added=(
            ("t0 = time.time()\nlocal_iter_num = 0", f"{NANO_LOOP}t0 = time.time()\nlocal_iter_num = 0"),
            (
                "        losses = estimate_loss()\n",
                "        with recorder.pause(), left_out(): losses = estimate_loss()\n",
            ),
            ("    iter_num += 1\n", "    recorder.step(loss=loss)\n    iter_num += 1\n"),
        ),
        here=(
            (r"    device = f'cuda:\{ddp_local_rank\}'\n    torch\.cuda\.set_device\(device\)\n", ""),
            (r"DDP\(model, device_ids=\[ddp_local_rank\]\)", "DDP(model)"),
        ),
    ),
    Case(
        "Hugging Face callback: run_clm.py",
        "run_clm.py",
        (
            "--config_name tiny --tokenizer_name tiny --train_file train.txt --validation_file "
            "train.txt --do_train --do_eval --block_size 64 --per_device_train_batch_size 8 "
            "--per_device_eval_batch_size 8 --max_eval_samples 64 --gradient_accumulation_steps 2 "
            "--max_steps 60 --logging_steps 10 --eval_strategy steps --eval_steps 20 --save_steps 25 "
            "--use_cpu true --report_to none --overwrite_output_dir --output_dir out"
        ),
        60,
        added=(
            (
                "    # Training\n    if training_args.do_train:\n",
                "    from pretune.collector.integrations.transformers import PretuneCallback\n"
                "    from pretune.datasets import Measure\n"
                f"    trainer.add_callback(PretuneCallback(os.environ['STORE'], measure={MEASURE}))\n"
                "    # Training\n    if training_args.do_train:\n",
            ),
        ),
        here=(  # the metric would be fetched
            (r"evaluate\.load\(.*\)", "None"),
            (r"compute_metrics=compute_metrics [^,]*,", "compute_metrics=None,"),
        ),
        pauses=("transformers:Trainer._maybe_log_save_evaluate",),
    ),
    Case(
        "DeepSpeed engine: bf16_master_weight",
        "DeepSpeedExamples/training/bf16_master_weight/train.py",
        ENGINE,
        60,
        added=(
            (
                "    # Training loop\n",
                "    from pretune.collector.integrations.deepspeed import record\n"
                "    from pretune.datasets import Measure, ModelSpec\n"
                "    record(model_engine, store=os.environ['STORE'], sequence_length=args.seq_length,\n"
                f"           model={MODEL.format(name='simple', layers=4, width=256, heads=4, words=1000)},\n"
                f"           measure={MEASURE})\n"
                "    # Training loop\n",
            ),
            ("import argparse\n", "import argparse\nimport os\n"),
        ),
        here=NO_GPU,
    ),
    Case(
        "Lightning callback: basics/transformer.py",
        "pytorch-lightning/examples/pytorch/basics/transformer.py",
        "",
        80,
        added=(
            (
                "L.Trainer(gradient_clip_val=0.25, max_epochs=20)",
                "L.Trainer(gradient_clip_val=0.25, max_steps=80, accelerator='cpu', devices=2, "
                "strategy='ddp', val_check_interval=30, limit_val_batches=5, enable_progress_bar=False, "
                "default_root_dir='out', logger=False, callbacks=[pretune_callback()])",
            ),
            (
                "def main():\n",
                "def pretune_callback():\n"
                "    import os\n"
                "    from pretune.collector.integrations.lightning import PretuneCallback\n"
                "    from pretune.datasets import Measure, ModelSpec\n"
                f"    model = {MODEL.format(name='demo', layers=2, width=200, heads=2, words=33278)}\n"
                "    return PretuneCallback(os.environ['STORE'], model=model, sequence_length=35,\n"
                f"                           measure={MEASURE})\n"
                "\n\ndef main():\n",
            ),
            ("    trainer.test(model, test_dataloader)\n", ""),
        ),
        pauses=("lightning.pytorch.loops:_EvaluationLoop.run",),
    ),
    Case(
        "pretune record: bf16_master_weight",
        "DeepSpeedExamples/training/bf16_master_weight/train.py",
        ENGINE,
        60,
        here=NO_GPU,
        printed=5,
        constants=LAYERS | {"workload.sequence_length": 128},
    ),
)


def prepare(scripts: Path) -> None:
    """Made-up data for all of them: what is measured does not depend on it."""
    import pickle

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    draw = random.Random(0)
    words = [f"word{i}" for i in range(50)]
    text = "\n".join(" ".join(draw.choices(words, k=20)) for _ in range(6000))
    (scripts / "train.txt").write_text(text)
    known = {word: i for i, word in enumerate(["<|endoftext|>", *words])}
    plain = Tokenizer(models.WordLevel(known, unk_token="<|endoftext|>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|endoftext|>").save_pretrained(
        scripts / "tiny"
    )
    GPT2Config(vocab_size=64, n_positions=128, n_embd=128, n_layer=4, n_head=4).save_pretrained(
        scripts / "tiny"
    )
    wiki = scripts / "pytorch-lightning" / "examples" / "pytorch" / "basics" / "data" / "wikitext-2.txt"
    wiki.parent.mkdir(exist_ok=True)
    wiki.write_text(text * 2)
    characters = scripts / "nanoGPT" / "data" / "shakespeare_char"
    for name in ("train.bin", "val.bin"):
        np.array(draw.choices(range(65), k=100_000), dtype=np.uint16).tofile(characters / name)
    (characters / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "steps_per_print": 5,
        "log_level": "info",
    }
    engine = scripts / "DeepSpeedExamples" / "training" / "bf16_master_weight" / "ds.json"
    engine.write_text(json.dumps(config))


def run(case: Case, scripts: Path, folder: Path) -> tuple[Trial, list[float]]:
    """Its record, and the stopwatch's seconds at the ends of its steps."""
    script, sheet, store = scripts / case.script, folder / "sheet.json", folder / "trials"
    out = folder / "ends.json"
    literal = [(re.escape(old), new) for old, new in case.added]
    told = {"edits": [*literal, *case.here], "pauses": case.pauses, "out": str(out)}
    sheet.write_text(json.dumps(told))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(HERE / "agreement" / "stopwatch.py"), str(script), *case.arguments.split()]
    if case.printed:
        map_file = folder / "map.yaml"
        map_file.write_text(json.dumps({"constants": case.constants}))
        before = [
            sys.executable,
            "-m",
            "pretune.cli",
            "record",
            "--store",
            str(store),
            "--map",
            str(map_file),
        ]
        command = [*before, "--format", "deepspeed", "--", *command]
    settings = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    settings |= {"HF_HUB_OFFLINE": "1", "STOPWATCH": str(sheet), "STORE": str(store)}
    answer = subprocess.run(
        command, cwd=script.parent, env=os.environ | settings, capture_output=True, text=True, timeout=500
    )
    trials = list(TrialStore(store).trials()) if store.exists() else []
    if answer.returncode or len(trials) != 1:
        raise SystemExit(f"{case.name}: {len(trials)} trials\n{answer.stdout[-3000:]}{answer.stderr[-3000:]}")
    return trials[0], json.loads(out.read_text())[-case.steps :]  # some optimizers step once before


def agreement(trial: Trial, ends: list[float], printed: int) -> float:
    """The record's tokens/s over the stopwatch's, over the steps that were measured."""
    steps = len(trial.window_times_s) * (printed or 1)
    first = len(ends) - steps if printed else trial.warmup_windows  # a log counts to its last line
    span_s = ends[first + steps - 1] - ends[first - 1]
    return float(trial.tokens_per_s * span_s / (steps * trial.workload.global_batch_tokens))


def measured(scripts: Path, only: str, repeats: int) -> Iterator[dict[str, object]]:
    for case in CASES:
        if only not in case.name:
            continue
        found = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                trial, ends = run(case, scripts, Path(folder))
            found.append(
                {"ratio": agreement(trial, ends, case.printed), "windows": len(trial.window_times_s)}
            )
            found[-1] |= {"warmup_windows": trial.warmup_windows, "tokens_per_s": trial.tokens_per_s}
            found[-1] |= {"ends_s": [round(end - ends[0], 5) for end in ends]}
        ratios = [each["ratio"] for each in found]
        print(f"{case.name}: {', '.join(f'{ratio:.4f}' for ratio in ratios)}", file=sys.stderr)
        yield {"case": case.name, "script": case.script, "runs": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help=f"write {RESULT.name}")
    asked = parser.parse_args()
    scripts = asked.scripts.resolve()
    prepare(scripts)
    commits = {}
    for name in ("nanoGPT", "DeepSpeedExamples", "pytorch-lightning"):
        told = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=scripts / name, capture_output=True, text=True
        )
        commits[name] = told.stdout.strip()
    found = {"commits": commits, "cases": list(measured(scripts, asked.only, asked.repeats))}
    if asked.keep:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    if asked.json:
        print(json.dumps(found))
    worst = max(abs(run["ratio"] - 1) for case in found["cases"] for run in case["runs"])
    print(f"largest difference {worst:.2%}, asked for {LIMIT:.0%}", file=sys.stderr)


if __name__ == "__main__":
    main()
