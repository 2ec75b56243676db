"""Rule lossscale, random calls: a GradScaler does what `ampcheck.spec.scaler` predicts, call by call.

Each case draws its programs from a fixed seed. With `--nightly` it draws many more, from the seed that
`--hypothesis-seed` gives or else from the day's date, which stands in the run file.
"""

import pytest

from ampcheck.programs.scaler.explore import ScalerExplorer
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("lossscale")


@pytest.mark.parametrize("kind", ["iterations", "any_order"])
@scenario(values=True, dtypes="default")
def test_random(amp: Amp, kind: str, request: pytest.FixtureRequest) -> None:
    """Random calls on up to three optimizers, on the device and the host (amp.html#torch.amp.GradScaler)."""
    option = request.config.option
    explorer = ScalerExplorer(amp.device, nightly=option.nightly, seed=getattr(option, "hypothesis_seed", None))
    if found := explorer.explore(orderly=kind == "iterations"):
        difference, program = found
        amp.differences.append(difference)
        amp.script = f"# It finds: {difference}\n{explorer.script(program)}"
    amp.looked_at += explorer.compared
