import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from pretune.collector.transformer import KERNELS, Execution, Transformer
from pretune.datasets import ModelSpec
from pretune.errors import InputError

GPT = ModelSpec(name="gpt", layers=2, hidden_size=32, heads=4, vocabulary=64, max_positions=16)
LLAMA = ModelSpec(
    name="llama",
    layers=3,
    hidden_size=32,
    heads=4,
    kv_heads=2,
    ffn_size=88,
    vocabulary=64,
    gated_mlp=True,
    tied_embeddings=False,
    positions="rotary",
    norm="rmsnorm",
)
SPECS = [
    GPT,
    LLAMA,
    GPT.model_copy(update={"tied_embeddings": False}),
    LLAMA.model_copy(update={"kv_heads": 4}),
]


def model_and_batch(spec, length=12, **execution):
    torch.manual_seed(0)
    model = Transformer(spec, Execution(**execution))
    return model, torch.randint(spec.vocabulary, (2, length), generator=torch.Generator().manual_seed(1))


def gradients(spec, **execution):
    model, tokens = model_and_batch(spec, **execution)
    loss = model(tokens, tokens.roll(-1, 1))
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def saved_bytes(spec, **execution):
    """Bytes kept for the backward pass, storages counted once, weights left out."""
    model, tokens = model_and_batch(spec, length=64, **execution)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens, tokens)
    assert loss.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("spec", SPECS)
def test_the_weights_are_exactly_those_of_the_spec(spec):
    model = Transformer(spec)
    assert sum(p.numel() for p in model.parameters()) == spec.parameters


@pytest.mark.parametrize("spec", SPECS)
def test_it_gives_logits_or_the_mean_loss(spec):
    model, tokens = model_and_batch(spec)
    logits = model(tokens)
    assert logits.shape == (2, 12, spec.vocabulary)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    assert torch.allclose(model(tokens, tokens), expected)


@pytest.mark.parametrize("attention", KERNELS)
@pytest.mark.parametrize("spec", SPECS[:2])
def test_no_position_sees_a_later_token(spec, attention):
    model, tokens = model_and_batch(spec, attention=attention)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % spec.vocabulary
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert not torch.allclose(before[:, 7], after[:, 7])


@pytest.mark.parametrize("attention", KERNELS)
@pytest.mark.parametrize("spec", SPECS[:2])
def test_every_kernel_computes_the_same(spec, attention):
    loss, grads = gradients(spec, attention="eager")
    other_loss, other_grads = gradients(spec, attention=attention)
    assert torch.allclose(loss, other_loss, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(grads, other_grads, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("spec", SPECS[:2])
def test_recomputation_changes_no_gradient(spec, checkpointing, reentrant):
    loss, grads = gradients(spec)
    other_loss, other_grads = gradients(spec, checkpointing=checkpointing, reentrant=reentrant)
    assert torch.equal(loss, other_loss)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(grads, other_grads, strict=True))


def test_recomputation_keeps_less_for_the_backward_pass():
    none = saved_bytes(LLAMA, attention="eager")
    selective = saved_bytes(LLAMA, attention="eager", checkpointing="selective")
    full = saved_bytes(LLAMA, attention="eager", checkpointing="full")
    scores = 2 * LLAMA.heads * 64 * 64 * 4  # bytes of one layer's softmax
    assert selective <= none - 0.9 * LLAMA.layers * scores
    assert full < selective / 2


def test_rotary_scores_depend_on_the_distance_only():
    from pretune.collector.transformer import rotary_angles, rotate

    rotation = rotary_angles(12, 8, torch.device("cpu"))
    q, k = torch.randn(2, 8)
    turned_q, turned_k = (rotate(x.expand(1, 1, 12, 8), rotation)[0, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in range(-5, 6):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4)


def test_what_it_cannot_build_is_refused_with_the_field():
    experts = GPT.model_copy(update={"experts": 4, "experts_per_token": 1})
    with pytest.raises(InputError, match=r"workload\.model\.experts"):
        Transformer(experts)
    with pytest.raises(InputError, match=r"knobs\.attention.*eager"):
        Transformer(GPT, Execution(attention="magic"))
