"""The collectives of one optimizer step inside a replica: DeepSpeed's AutoTP and its pipeline.

Observed, and held by a test, with DeepSpeed 0.19.8 on four gloo ranks and the trial program's transformer.
AutoTP is Megatron's split (Shoeybi et al. 2019, arXiv:1909.08053, sec. 3), but every column-parallel matrix
reduces the gradient of its input by itself: a gated MLP has one all-reduce more. Embeddings, and a head that
is tied to them, are whole on every rank; another head's logits are gathered.
"""

from __future__ import annotations

from pretune.datasets.frameworks.base import Collective
from pretune.datasets.frameworks.common import ELEMENT_BYTES
from pretune.datasets.knobs import Knobs
from pretune.datasets.workload import Workload


def collectives(workload: Workload, knobs: Knobs) -> list[Collective]:
    """For resolved knobs, on a rank of the first stage; nothing where a replica is one rank."""
    tp, pp = knobs.tp or 1, knobs.pp or 1
    found = _split(workload, knobs, pp) if tp > 1 else []
    found += _pipeline(workload, knobs) if pp > 1 else []
    return found + ([_norm(workload, knobs)] if tp * pp > 1 else [])


def _split(workload: Workload, knobs: Knobs, pp: int) -> list[Collective]:
    """Activations of a micro batch: the partial sums forward, their inputs' gradients backward."""
    model, times, element = workload.model, knobs.accumulation or 1, _element(workload, knobs)
    positions = (knobs.micro_batch or 1) * workload.sequence_length
    forward, backward = 2, 3 if model.gated_mlp else 2
    if knobs.activation_checkpointing == "full":
        # torch runs a layer again up to what the backward pass needs; its older checkpoint to the end
        forward += 2 if knobs.zero_stage == 3 else 1
    calls = times * (forward + backward) * model.layers // pp
    if model.tied_embeddings or pp > 1:
        return [Collective("all_reduce", calls, calls * positions * model.hidden_size * element, "tp")]
    logits = times * positions * model.vocabulary * element
    calls += times
    return [
        Collective("all_reduce", calls, calls * positions * model.hidden_size * element, "tp"),
        Collective("all_gather", times, logits, "tp"),
    ]


def _pipeline(workload: Workload, knobs: Knobs) -> list[Collective]:
    """The loss to all stages, and the gradients of tied embeddings between the first and the last.

    Each rank of a stage sends its share of the activations, and gets its share of their gradients: both are
    made whole again (engine.py, is_grad_partitioned).
    """
    model, hidden = workload.model, workload.model.hidden_size * _element(workload, knobs)
    found = [Collective("broadcast", 1, 8, "pp")]
    if model.tied_embeddings:
        found.append(Collective("all_reduce", 1, model.vocabulary * hidden, "pp"))
    if (knobs.tp or 1) > 1:
        calls = 2 * (knobs.accumulation or 1)
        positions = (knobs.micro_batch or 1) * workload.sequence_length
        found.append(Collective("all_gather", calls, calls * positions * hidden, "tp"))
    return found


def _norm(workload: Workload, knobs: Knobs) -> Collective:
    """The norm of all gradients (4 bytes) and, below fp32, most optimizers' overflow flag (1 byte)."""
    masters = (knobs.pp or 1) > 1 and not knobs.zero_stage  # BF16_Optimizer's, which has no such flag
    flagged = (knobs.precision or workload.precision) != "fp32" and not masters
    return Collective("all_reduce", 1 + flagged, 4 + flagged, "pp" if (knobs.pp or 1) > 1 else "tp")


def _element(workload: Workload, knobs: Knobs) -> int:
    return ELEMENT_BYTES[knobs.precision or workload.precision]
