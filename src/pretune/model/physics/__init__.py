"""Physical baselines: what first principles say of a configuration."""

from pretune.model.physics.none import NoPhysics as NoPhysics
from pretune.model.physics.transformer import TransformerPhysics as TransformerPhysics

BASELINES: dict[str, type[TransformerPhysics] | type[NoPhysics]] = {
    "transformer": TransformerPhysics,
    "none": NoPhysics,
}
